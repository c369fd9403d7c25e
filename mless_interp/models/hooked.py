"""A HookedTransformer behind the seam: its rotation, its rule of attention, its unembedding, its layers."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from .arithmetic import fused, is_hooked, masked_scores, product
from .base import Model
from .info import AttentionOutput, AttentionRule, Foreign, GatedMlp, ModelError, ModelInfo, versions_of
from .inputs import Edit, Inputs, Masks, Tap, Taps
from .sites import Held, attention_sites, site, turned_taps
from .traced_ops import float32_logits, is_half

Hook = Callable[..., Tensor | None]
"""A function of an activation and, by name, its hook point."""


def as_hook(tap: Tap) -> Hook:
    """A TransformerLens hook; without an edit it gives nothing back, and the run goes on with what it had."""

    def hook(value: Tensor, hook: object = None) -> Tensor | None:
        new = tap(value)
        return None if tap.edit is None else new

    return hook


class HookedTransformerModel(Model):
    """A HookedTransformer. It takes neither 4D masks nor position ids: they are realised at its hooks."""

    def __init__(self, hooked: Foreign, *, name: str, tokenizer: Foreign = None) -> None:
        cfg = hooked.cfg
        self.underlying, self._own = hooked, HookedLayers(hooked)
        placed, seen = cfg.positional_embedding_type, cfg.attention_dir
        if seen != "causal" or placed not in ("standard", "shortformer", "rotary"):
            reason = f"whose attention is {seen!r} sees later tokens"
            reason = reason if seen != "causal" else f"with {placed!r} positions has no position ids"
            raise ModelError(f"{name}: a HookedTransformer {reason}, so conditions are undefined for it")
        if cfg.use_attn_in or cfg.use_split_qkv_input:  # its projections take a stream per head
            self.why_not_by_layers = "its cfg.use_attn_in or cfg.use_split_qkv_input is set"
        elif not cfg.load_in_4bit:
            self.layers = self._own
        self.quantised = "4bit" if cfg.load_in_4bit else ""
        self.tokenizer = tokenizer if tokenizer is not None else hooked.tokenizer
        self.whole_positions = self.learned_positions = placed != "rotary"
        kinds, kv = cfg.attn_types or ["global"] * cfg.n_layers, cfg.n_key_value_heads or cfg.n_heads
        self.info = ModelInfo(
            name=name,
            backend="hooked_transformer",
            architecture=cfg.original_architecture or "HookedTransformer",
            **{name: getattr(cfg, name) for name in ("n_layers", "n_heads", "d_head", "d_model", "d_vocab")},
            n_key_value_heads=cfg.n_heads if cfg.ungroup_grouped_query_attention else kv,
            d_mlp=None if cfg.num_experts else cfg.d_mlp,
            n_classes=None if cfg.d_vocab_out == cfg.d_vocab else cfg.d_vocab_out,
            context_length=cfg.n_ctx,
            windows=tuple(cfg.window_size if kind == "local" else None for kind in kinds),
            dtype=str(cfg.dtype).removeprefix("torch."),
            device=str(cfg.device),
            attention="eager",
            versions=versions_of("transformer-lens", "transformers", "torch"),
        )

    @property
    def weights(self) -> nn.Module:
        return self.underlying

    def attention_rule(self, layer: int) -> AttentionRule:
        return self._own.rule(layer)

    def _gated_mlp(self, layer: int) -> GatedMlp | None:
        cfg: Foreign = self.underlying.cfg
        mlp: Foreign = getattr(self.underlying.blocks[layer], "mlp", None)
        if cfg.num_experts or not callable(getattr(mlp, "act_fn", None)) or (hasattr(mlp, "ln") and not cfg.gated_mlp):
            return None
        return GatedMlp(mlp.act_fn, mlp.b_in) if cfg.gated_mlp else GatedMlp(mlp.act_fn, gated=False)  # after the bias

    def _attention_output(self, layer: int) -> AttentionOutput | None:
        block = self.underlying.blocks[layer]
        attn, norm = block.attn, None
        if self.underlying.cfg.use_normalization_before_and_after:
            norm = block.ln1_post.forward
        elif norms_after(self.underlying):
            norm = block.ln1.forward
        return AttentionOutput(attn.W_O.detach(), attn.b_O.detach(), norm)

    def _forward(self, inputs: Inputs, masks: Masks, taps: Taps, read: Tensor | None) -> Tensor | None:
        hooked = self.underlying
        if self.learned_positions:
            taps = turned_taps(taps, lambda layer, which, value, back: value)  # what is projected is what enters
        hooks = [] if masks is None else self.position_hooks(inputs, masks)
        hooks += [(name, as_hook(tap)) for name, tap in taps.items() if name in hooked.mod_dict]
        whole = torch.ones_like(inputs.tokens)  # else a left-padding tokenizer would have its pad tokens masked
        with hooked.hooks(fwd_hooks=hooks):
            resid = hooked(inputs.tokens, attention_mask=whole, stop_at_layer=hooked.cfg.n_layers)
            return None if read is None else self._own.unembed(resid[:, read], bit_for_bit=True)

    def position_hooks(self, inputs: Inputs, masks: tuple[Tensor, ...]) -> list[tuple[str, Hook]]:
        """TransformerLens hooks that make a plain run one with these masks and this input's position ids."""
        edits = [] if inputs.position_ids is None else list(self._positions(inputs.position_ids))
        for layer, mask in enumerate(masks):
            if inputs.position_ids is not None and self.info.windows[layer] is not None:
                edits += self._rebuilt_scores(layer, mask)  # the layer's own window counts indices: too narrow here
            else:
                fill = lambda scores, mask=mask: scores.masked_fill(~mask, -torch.inf)  # noqa: E731
                edits.append((site(layer, "attn.hook_attn_scores"), fill))
        return [(name, as_hook(Tap(edit))) for name, edit in edits]

    def _positions(self, positions: Tensor) -> Iterator[tuple[str, Edit]]:
        cfg = self.underlying.cfg
        kind = cfg.positional_embedding_type
        if kind in ("standard", "shortformer"):
            table = self.underlying.pos_embed.W_pos
            yield "hook_pos_embed", lambda value: table[positions.long()].to(value.dtype)
            return
        # RoPE composes: turn what has been turned for its index on to its new position
        delta = positions - torch.arange(positions.shape[1], device=positions.device)
        delta = delta if delta.is_floating_point() else delta.to(torch.float64)

        def turn(attn: Foreign) -> Edit:
            def edit(value: Tensor) -> Tensor:
                cos, sin = rotary_tables(attn, delta)
                size = torch.hypot(attn.rotary_sin[1].double(), attn.rotary_cos[1].double()).to(cos)
                return turned(attn, value, cos / size, sin / size)

            return edit

        for layer in range(cfg.n_layers):
            for name in attention_sites(layer, "rot_q", "rot_k"):
                yield name, turn(self.underlying.blocks[layer].attn)

    def _rebuilt_scores(self, layer: int, mask: Tensor) -> Iterator[tuple[str, Edit]]:
        rotary = self.underlying.cfg.positional_embedding_type == "rotary"
        held, names = Held(), attention_sites(layer, *(("rot_q", "rot_k") if rotary else ("q", "k")))

        def rebuild(scores: Tensor) -> Tensor:
            q, k = held.take(*names)
            return masked_scores(q, k, mask, self.attention_rule(layer))

        yield from held.edits(*names).items()
        yield site(layer, "attn.hook_attn_scores"), rebuild


class HookedLayers:
    """A HookedTransformer with its default hooks, layer by layer; each method: see `Layers`."""

    def __init__(self, hooked: Foreign) -> None:
        self.hooked, self.n_layers = hooked, hooked.cfg.n_layers

    def project(self, layer: int, resid: Tensor, positions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        block, kind = self.hooked.blocks[layer], self.hooked.cfg.positional_embedding_type
        h = resid if norms_after(self.hooked) else block.ln1(resid)
        placed = h + self.hooked.pos_embed.W_pos[positions.long()].to(h.dtype) if kind == "shortformer" else h
        q, k, v = _queries_keys_values(block.attn, placed, h)
        if kind == "rotary":
            tables = rotary_tables(block.attn, positions)
            q, k = (turned(block.attn, x, *tables) for x in (q, k))
        return q, k, v

    def parallel(self, layer: int) -> bool:
        return bool(self.hooked.cfg.parallel_attn_mlp)

    def attention_out(self, layer: int, z: Tensor) -> Tensor:
        block, cfg = self.hooked.blocks[layer], self.hooked.cfg
        out = product(z.flatten(-2), block.attn.W_O.flatten(0, 1).T, block.attn.b_O)
        if cfg.use_normalization_before_and_after:
            out = block.ln1_post(out)
        return block.ln1(out) if norms_after(self.hooked) else out

    def mlp_out(self, layer: int, resid: Tensor) -> Tensor:
        """As `apply_mlp` of the normed stream, written out for a plain one without hooks."""
        block = self.hooked.blocks[layer]
        if self.hooked.cfg.attn_only:
            return torch.zeros_like(resid)
        x = resid if norms_after(self.hooked) else block.ln2(resid)
        mlp, kind = block.mlp, type(block.mlp).__name__
        if kind not in ("MLP", "GatedMLP") or getattr(mlp, "ln", None) is not None or is_hooked(mlp):
            return block.apply_mlp(x.contiguous())
        act = fused(mlp.act_fn)
        if kind == "MLP":
            post = act(product(x, mlp.W_in.T, mlp.b_in))
        else:
            post = act(product(x, mlp.W_gate.T)) * product(x, mlp.W_in.T) + mlp.b_in
        out = product(post, mlp.W_out.T, mlp.b_out)
        if self.hooked.cfg.use_normalization_before_and_after:
            out = block.ln2_post(out)
        return block.ln2(out) if norms_after(self.hooked) else out

    def unembed(self, resid: Tensor, *, bit_for_bit: bool = False) -> Tensor:
        """At least float32; in float32 the library's own, bit for bit, or else without its copy of W_U each time."""
        cfg, last = self.hooked.cfg, self.hooked.unembed
        resid = resid.to(cfg.dtype)
        if cfg.normalization_type is not None:
            resid = self.hooked.ln_final(resid)
        if is_half(last.W_U):
            logits = float32_logits(resid, last.W_U.T, last.b_U)
        else:
            logits = last(resid) if bit_for_bit or is_hooked(last) else product(resid, last.W_U.T, last.b_U)
        cap = cfg.output_logits_soft_cap
        return logits if cap is None or cap <= 0 else torch.tanh(logits / cap) * cap

    def rule(self, layer: int) -> AttentionRule:
        attn, cap = self.hooked.blocks[layer].attn, self.hooked.cfg.attn_scores_soft_cap
        sinks = attn.sinks.detach() if getattr(self.hooked.cfg, "use_attention_sinks", False) else None
        return AttentionRule(1.0 / float(attn.attn_scale), cap if cap and cap > 0 else None, sinks)


def _queries_keys_values(attn: Foreign, placed: Tensor, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """q, k `[..., heads, d]` of one stream and v of another: `calculate_qkv_matrices`, written out for plain ones."""
    if is_hooked(attn) or attn.cfg.ungroup_grouped_query_attention:
        return attn.calculate_qkv_matrices(placed, placed, x)
    made = []
    for letter, stream in zip("QKV", (placed, placed, x), strict=True):
        weight, bias = (getattr(attn, f"_{kind}_{letter}", getattr(attn, f"{kind}_{letter}")) for kind in "Wb")
        rows = product(stream, weight.transpose(0, 1).flatten(1).T, bias.flatten())
        made.append(rows.unflatten(-1, bias.shape))
    q, k, v = made
    if attn.cfg.use_qk_norm:
        q, k = attn._apply_qk_norm(q, attn.q_norm), attn._apply_qk_norm(k, attn.k_norm)
    return q, k, v


def norms_after(hooked: Foreign) -> bool:
    """Whether a HookedTransformer norms after attention and MLP instead of before (`apply_mlp` does the second)."""
    return str(hooked.cfg.original_architecture).startswith(("Olmo2", "Olmo3"))


def turned(attn: Foreign, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Queries or keys `[batch, token, head, d_head]` of a HookedTransformer layer, turned by these tables."""
    dim = cos.shape[-1]
    rotated = x[..., :dim] * cos.to(x.dtype) + attn.rotate_every_two(x[..., :dim]) * sin.to(x.dtype)
    return torch.cat([rotated, x[..., dim:]], -1)


def rotary_tables(attn: Foreign, positions: Tensor) -> tuple[Tensor, Tensor]:
    """cos and sin `[batch, token, 1, rotary_dim]` of a HookedTransformer attention layer at any (fractional) positions.

    The angles come from the layer's own table (its row for position 1), so scaled and local rotary bases are kept.
    """
    high = torch.float64 if attn.rotary_sin.dtype == torch.float64 else torch.float32
    whole = not positions.is_floating_point() and int(positions.max()) < attn.rotary_cos.shape[0]
    if whole and int(positions.min()) >= 0:
        return attn.rotary_cos[positions][:, :, None], attn.rotary_sin[positions][:, :, None]
    sin, cos = attn.rotary_sin[1].to(high), attn.rotary_cos[1].to(high)
    theta, length = torch.atan2(sin, cos), torch.hypot(sin, cos)  # the length: YaRN's attention factor
    angles = positions[..., None].to(high) * theta
    return (torch.cos(angles) * length)[:, :, None], (torch.sin(angles) * length)[:, :, None]
