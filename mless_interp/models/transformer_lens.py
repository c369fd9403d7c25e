"""TransformerLens: TransformerBridge (3.9 and 4.x) behind the seam, and how a HookedTransformer (3.9) is made.

The only file that imports transformer_lens.
"""

import copy
import importlib
import math
import warnings
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from importlib.metadata import version
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import PreTrainedModel

from .architectures import Positions, attention_rule_of, decoder_layers, unwrapped
from .attention_math import fused, is_hooked, masked_scores, product, values_of_heads
from .base import Model
from .hugging_face import HuggingFaceModel, hooked_for_run, hugging_face_info, own_windows_lifted
from .info import (
    AttentionOutput,
    AttentionRule,
    Edit,
    Foreign,
    GatedMlp,
    Inputs,
    Masks,
    ModelError,
    ModelInfo,
    Tap,
    Taps,
)
from .load_options import WEIGHTS, Loading, document, first_line
from .sites import Held, attention_sites, mixed_taps, parsed, site, through, turned_taps
from .traced_ops import float32_logits, is_half, look_at_self
from .weights import adapters, refuse_not_finite

CONVERTERS = {
    **{f"{kind}ForCausalLM": kind.lower() for kind in "GPTJ OPT Phi Phi3 Gemma Qwen2 Qwen3 Llama Mistral".split()},
    "GPT2LMHeadModel": "gpt2",
    "GPTNeoForCausalLM": "neo",
    "GPTNeoXForCausalLM": "neox",
    "GptOssForCausalLM": "gpt_oss",
    **dict.fromkeys(("Gemma2ForCausalLM", "Gemma3ForCausalLM", "Gemma3ForConditionalGeneration"), "gemma"),
}
"""Architectures that are converted, and the name of TransformerLens' converter."""
BUFFERS = ("mask", "IGNORE", "rotary_sin", "rotary_cos")
"""What a HookedTransformer makes itself, whatever its weights are."""
LATENT_POINTS = {"attn.hook_rot_q": "attn.hook_q", "attn.hook_rot_k": "attn.hook_k", "attn.hook_v": "attn.hook_v"}
"""Sites of latent attention, and the hook points of a bridge that show them."""


def has_hooked_transformer() -> bool:
    """Ask whether the installed TransformerLens still has HookedTransformer (removed in 4.0)."""
    return int(version("transformer-lens").split(".")[0]) < 4


Hook = Callable[..., Tensor | None]  # a function of an activation and, by name, its hook point


def as_hook(tap: Tap) -> Hook:
    """Return a TransformerLens hook; without an edit it gives nothing back, and the run goes on with what it had."""

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
        self.layers, self.quantised = (None, "4bit") if cfg.load_in_4bit else (self._own, "")
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
        norm = block.ln1_post.forward if self.underlying.cfg.use_normalization_before_and_after else None
        return AttentionOutput(block.attn.W_O.detach(), block.attn.b_O.detach(), norm)

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
        """Return TransformerLens hooks that make a plain run one with these masks and this input's position ids."""
        placed, edits = inputs.position_ids, list[tuple[str, Edit]]()
        if placed is not None and self.learned_positions:
            table, ids = self.underlying.pos_embed.W_pos, placed.long()
            edits.append(("hook_pos_embed", lambda value: table[ids].to(value.dtype)))
        elif placed is not None:  # RoPE composes: turn what has been turned for its index on to its new position
            delta = placed - torch.arange(inputs.n_tokens, device=placed.device)
            delta = delta if delta.is_floating_point() else delta.to(torch.float64)
            for layer, block in enumerate(self.underlying.blocks):
                turn = partial(_turned_on, block.attn, delta)
                edits += [(name, turn) for name in attention_sites(layer, "rot_q", "rot_k")]
        for layer, mask in enumerate(masks):
            scores = site(layer, "attn.hook_attn_scores")
            hide = partial(Tensor.masked_fill, mask=~mask, value=-torch.inf)
            if placed is not None and self.info.windows[layer] is not None:
                # the layer's own window counts indices, too narrow here: its scores are made again
                held = Held()
                names = attention_sites(layer, *(("q", "k") if self.learned_positions else ("rot_q", "rot_k")))
                edits += held.edits(*names).items()
                hide = partial(_scores_again, held, names, mask, self.attention_rule(layer))
            edits.append((scores, hide))
        return [(name, as_hook(Tap(edit))) for name, edit in edits]


class HookedLayers:
    """A HookedTransformer with its default hooks, layer by layer; each method: see `Layers`."""

    def __init__(self, hooked: Foreign) -> None:
        self.hooked, self.n_layers = hooked, hooked.cfg.n_layers

    def project(self, layer: int, resid: Tensor, positions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        block, kind = self.hooked.blocks[layer], self.hooked.cfg.positional_embedding_type
        h = block.ln1(resid)
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
        return block.ln1_post(out) if cfg.use_normalization_before_and_after else out

    def mlp_out(self, layer: int, resid: Tensor) -> Tensor:
        """Compute `apply_mlp` of the normed stream, written out for a plain one without hooks."""
        block = self.hooked.blocks[layer]
        if self.hooked.cfg.attn_only:
            return torch.zeros_like(resid)
        x = block.ln2(resid)
        mlp, kind = block.mlp, type(block.mlp).__name__
        if kind not in ("MLP", "GatedMLP") or getattr(mlp, "ln", None) is not None or is_hooked(mlp):
            return block.apply_mlp(x.contiguous())
        act = fused(mlp.act_fn)
        if kind == "MLP":
            post = act(product(x, mlp.W_in.T, mlp.b_in))
        else:
            post = act(product(x, mlp.W_gate.T)) * product(x, mlp.W_in.T) + mlp.b_in
        out = product(post, mlp.W_out.T, mlp.b_out)
        return block.ln2_post(out) if self.hooked.cfg.use_normalization_before_and_after else out

    def unembed(self, resid: Tensor, *, bit_for_bit: bool = False) -> Tensor:
        """Return logits of at least float32; in float32 the library's own, bit for bit, or made without its copy of W_U."""
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
    """Return q, k `[..., heads, d]` of one stream and v of another: `calculate_qkv_matrices`, written out for plain ones."""
    if is_hooked(attn) or attn.cfg.ungroup_grouped_query_attention:
        return attn.calculate_qkv_matrices(placed, placed, x)
    made = []
    for letter, stream in zip("QKV", (placed, placed, x), strict=True):
        weight, bias = (getattr(attn, f"_{kind}_{letter}", getattr(attn, f"{kind}_{letter}")) for kind in "Wb")
        made.append(product(stream, weight.transpose(0, 1).flatten(1).T, bias.flatten()).unflatten(-1, bias.shape))
    q, k, v = made
    if attn.cfg.use_qk_norm:
        q, k = attn._apply_qk_norm(q, attn.q_norm), attn._apply_qk_norm(k, attn.k_norm)
    return q, k, v


def turned(attn: Foreign, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn queries or keys `[batch, token, head, d_head]` of a HookedTransformer layer by these tables."""
    dim = cos.shape[-1]
    rotated = x[..., :dim] * cos.to(x.dtype) + attn.rotate_every_two(x[..., :dim]) * sin.to(x.dtype)
    return torch.cat([rotated, x[..., dim:]], -1)


def _turned_on(attn: Foreign, delta: Tensor, value: Tensor) -> Tensor:
    cos, sin = rotary_tables(attn, delta)
    size = torch.hypot(attn.rotary_sin[1].double(), attn.rotary_cos[1].double()).to(cos)
    return turned(attn, value, cos / size, sin / size)


def rotary_tables(attn: Foreign, positions: Tensor) -> tuple[Tensor, Tensor]:
    """Return cos and sin `[batch, token, 1, rotary_dim]` at any (fractional) positions, from the layer's own table (its row for
    position 1), so scaled and local rotary bases are kept."""
    high = torch.float64 if attn.rotary_sin.dtype == torch.float64 else torch.float32
    whole = not positions.is_floating_point() and int(positions.max()) < attn.rotary_cos.shape[0]
    if whole and int(positions.min()) >= 0:
        return attn.rotary_cos[positions][:, :, None], attn.rotary_sin[positions][:, :, None]
    sin, cos = attn.rotary_sin[1].to(high), attn.rotary_cos[1].to(high)
    theta, length = torch.atan2(sin, cos), torch.hypot(sin, cos)  # the length: YaRN's attention factor
    angles = positions[..., None].to(high) * theta
    return (torch.cos(angles) * length)[:, :, None], (torch.sin(angles) * length)[:, :, None]


def _scores_again(held: Held, names: Sequence[str], mask: Tensor, rule: AttentionRule, scores: Tensor) -> Tensor:
    q, k = held.take(*names)
    return masked_scores(q, k, mask, rule)


class BridgeModel(HuggingFaceModel):
    """A TransformerBridge: Hugging Face's own modules with TransformerLens' hook names, always eager attention."""

    backend = "bridge"

    def __init__(self, bridge: Foreign, *, name: str, tokenizer: Foreign = None) -> None:
        if not hasattr(bridge.original_model, "config"):
            holds = f"this bridge holds a {type(bridge.original_model).__name__} and no Hugging Face model"
            raise ModelError(f"{holds}: wrap a bridge of boot_transformers")
        super().__init__(bridge, bridge.original_model, name=name, tokenizer=tokenizer)

    def _attention(self, layer: int) -> nn.Module:
        known = self.parts[layer].attention if self.parts else None
        return unwrapped(self.underlying.blocks[layer].attn) if known is None else known

    @cached_property
    def _points(self) -> dict[str, Foreign]:
        """Hook name -> hook point. The bridge builds this anew for every hook of a run, which takes longer than the run."""
        return self.underlying.hook_dict

    @cached_property
    def _shows_and_obeys(self) -> tuple[bool, bool]:
        """Whether hooks on entering queries and keys are called, and whether an edit of a pattern reaches z."""
        names = attention_sites(0, "pattern", "v", "z", "rot_q", "rot_k")
        seen: dict[str, Tensor] = {}
        edit = {names[0]: look_at_self}
        taps = {name: Tap(edit.get(name), partial(seen.__setitem__, name)) for name in names}
        with torch.no_grad(), warnings.catch_warnings():
            warnings.filterwarnings("ignore", "A hook on .* returned a modified tensor", UserWarning)
            self._run(Inputs(torch.arange(2, device=self.info.device)[None]), None, taps, None)
        shows, n_heads = {*names[3:]} <= seen.keys(), self.info.n_heads
        v = seen.get(names[1])
        known = v is not None and v.dim() == 4 and v.shape[2] in (self.info.n_key_value_heads, n_heads)
        if v is None or not known or not {*names[:3]} <= seen.keys():
            return shows, True  # it has not what to judge by: the self-check will say so
        off = (seen[names[2]][0] - values_of_heads(v[0], n_heads).transpose(0, 1)).abs().max()
        return shows, bool(off <= 0.05 * v.abs().max())

    def _forward(self, inputs: Inputs, masks: Masks, taps: Taps, read: Tensor | None) -> Tensor | None:
        shows, obeys = self._shows_and_obeys
        if not obeys:
            taps = mixed_taps(taps, lambda: masks or self.visible(inputs), self.attention_rule)
        return self._run(inputs, masks, taps if shows and not self.latent else self._turned(taps, inputs), read)

    def _placed(self, name: str, tap: Tap) -> tuple[str, Tap]:
        """Return a site's hook point and what is done there: latent attention shows heads first, and z cut to another width."""
        layer, what = parsed(name) or (0, "")
        if self.latent and what in LATENT_POINTS:
            swap = partial(torch.transpose, dim0=1, dim1=2)
            return site(layer, LATENT_POINTS[what]), through(tap, swap, swap)
        if self.latent and what == "attn.hook_z":
            cut: list[torch.Size] = []

            def by_heads(value: Tensor) -> Tensor:
                cut[:] = [value.shape]
                return value.flatten(2).unflatten(-1, (self.info.n_heads, -1))

            return name, through(tap, by_heads, lambda z: z.reshape(cut[0]))
        return name, tap

    def _run(self, inputs: Inputs, masks: Masks, taps: Taps, read: Tensor | None) -> Tensor | None:
        bridge = self.underlying
        placed = (self._placed(name, tap) for name, tap in taps.items())
        hooks = [(self._points[name], as_hook(tap)) for name, tap in placed if name in self._points]
        options: dict[str, object] = {"attention_mask": torch.ones_like(inputs.tokens), "use_cache": False}
        if inputs.position_ids is not None:
            options["position_ids"] = inputs.position_ids
        # as numbers: a tensor would lie on one of several devices
        options["logits_to_keep"] = [inputs.n_tokens - 1] if read is None else read.tolist()
        level = bridge.context_level + 1  # as `run_with_hooks` does: the caller's own hooks are left alone
        try:
            bridge.context_level = level
            for point, hook in hooks:
                point.add_hook(hook, level=level)
            attentions, last = [block.attn for block in bridge.blocks], bridge.original_model.get_output_embeddings()
            own = own_windows_lifted([unwrapped(each) for each in attentions], masks)
            with own, hooked_for_run(attentions, masks, unwrapped(last)):
                logits = bridge(inputs.tokens, **options)
        finally:
            for point, _ in hooks:
                point.remove_hooks(level=level)
            bridge.context_level = level - 1
        return logits if read is not None else None


def bridge_from(hf_model: PreTrainedModel, tokenizer: Foreign, *, name: str) -> BridgeModel:
    """Make a TransformerBridge around a loaded Hugging Face model (which it rebuilds in place)."""
    own = copy.deepcopy(tokenizer)  # a bridge fills in special tokens, and loads one anew that adds no beginning token
    if own is not None:
        own.init_kwargs = {"name_or_path": "", **own.init_kwargs, "add_bos_token": True}
    try:
        if hf_model.config.get_text_config() is not hf_model.config:
            importlib.import_module("torchvision")  # where it is not here, TransformerLens would install it by itself
        bridge = importlib.import_module("transformer_lens.model_bridge").TransformerBridge.boot_transformers(
            hf_model.config.name_or_path or name,
            hf_model=hf_model,
            tokenizer=own,
            device=None if getattr(hf_model, "hf_device_map", None) else str(hf_model.device),
            dtype=hf_model.dtype,
        )
        assert bridge.blocks, "it has no blocks"
    except Exception as error:  # a part that an adapter expects and a model lacks fails in any way
        named, run = ", ".join(hf_model.config.architectures or ()) or "nothing", type(hf_model).__name__
        reason = first_line(error).partition(" Available architectures")[0]  # two hundred
        told = "" if named == run else f" (its config names {named})"
        raise ModelError(f"TransformerBridge cannot take {name!r} ({run}): {reason}{told}; try 'nnsight'") from error
    return BridgeModel(bridge, name=name, tokenizer=tokenizer)


def hooked_transformer_from(hf_model: PreTrainedModel, tokenizer: Foreign, *, name: str) -> HookedTransformerModel:
    """Make a HookedTransformer with a loaded Hugging Face model's weights, unprocessed (no folding, no centring).

    TransformerLens 3.9 only knows published names; here its own weight converters are given a config made from the
    Hugging Face one, so a local directory works too. Raises `ModelError` for architectures without a converter.
    """
    _need_hooked_transformer(name)
    architecture = type(hf_model).__name__
    if architecture not in CONVERTERS or any(adapters(hf_model)):
        what = architecture if architecture not in CONVERTERS else "an adapter that is not merged"
        raise ModelError(f'{name!r}: {what} cannot be converted to a HookedTransformer here; use backend="bridge"')
    convert = importlib.import_module("transformer_lens.pretrained.weight_conversions")
    try:
        hooked = _hooked(_hooked_config(hf_model, architecture))
        with torch.no_grad():
            state = getattr(convert, f"convert_{CONVERTERS[architecture]}_weights")(hf_model, hooked.cfg)
        for key, value in state.items():  # one by one, so that what a converter made of a weight goes as its copy comes
            state[key] = value.detach().to(hf_model.dtype).clone(memory_format=torch.contiguous_format)
    except Exception as error:  # as above; a weight that the converter awaits may be None
        raise ModelError(f"{name!r} ({architecture}) cannot be converted: {first_line(error)}; use 'bridge'") from error
    missing, unexpected = hooked.load_state_dict(state, strict=False, assign=True)
    strange = [key for key in unexpected if state[key].any()]  # zeros say nothing
    for key in missing:
        if key.rpartition(".")[2].startswith("b_"):  # as in the model: 0
            torch.nn.init.zeros_(hooked.get_parameter(key))
        elif not key.endswith(BUFFERS):
            strange.append(key)
    if strange:
        where = f"left {len(strange)} weights without a value or a place, first {strange[0]}"
        raise ModelError(f'{name!r}: converting {architecture} {where}; use backend="bridge"')
    hooked.tokenizer = tokenizer  # kept with the object, for whoever takes it out and wraps it again
    hooked = hooked.to(hf_model.device, print_details=False).eval()
    return HookedTransformerModel(hooked, name=name)


def _hooked_config(hf_model: PreTrainedModel, architecture: str) -> dict[str, Foreign]:
    config = hf_model.config.get_text_config()
    info = hugging_face_info(hf_model)
    layers = decoder_layers(hf_model, info)
    layer, positions = layers[0], Positions.of(hf_model, layers)
    assert layer.norms is not None and layer.attention is not None and positions is not None, "its parts are not known"
    norm, rule = layer.norm(min(layer.norms.names)), attention_rule_of(layer.attention, d_head=info.d_head)
    root_mean_square = getattr(norm, "bias", None) is None
    scale = rule.scale * positions.prescaled
    activations = ("hidden_act", "hidden_activation", "activation_function")
    made: dict[str, Foreign] = {
        **{name: getattr(info, name) for name in ("n_layers", "n_heads", "d_model", "d_head", "d_vocab", "device")},
        "original_architecture": architecture,
        "n_key_value_heads": info.n_key_value_heads if info.n_key_value_heads != info.n_heads else None,
        "d_mlp": info.d_mlp or config.intermediate_size,
        "n_ctx": info.context_length,
        "eps": getattr(norm, "variance_epsilon", None) or norm.eps,
        "act_fn": next(getattr(config, name) for name in activations if getattr(config, name, None)),
        "normalization_type": "RMS" if root_mean_square else "LN",
        "final_rms": root_mean_square,
        "gated_mlp": layer.mlp is not None and layer.mlp.gate is not None,
        "parallel_attn_mlp": layer.parallel,
        "use_qk_norm": layer.inputs is not None and layer.inputs.norms is not None,
        "use_attn_scale": scale != 1.0,
        "attn_scale": 1 / scale,
        "scale_attn_by_inverse_layer_idx": getattr(config, "scale_attn_by_inverse_layer_idx", False),
        "positional_embedding_type": "standard" if positions.learned else "rotary",
        "dtype": hf_model.dtype,
        "init_weights": False,
    }
    if rule.sinks is not None:
        experts = {"num_experts": config.num_local_experts, "experts_per_token": config.num_experts_per_tok}
        made |= {"use_attention_sinks": True, "gated_mlp": True, **experts}
    if any(info.windows):
        kinds = ["global" if window is None else "local" for window in info.windows]
        made |= {"use_local_attn": True, "window_size": max(filter(None, info.windows)), "attn_types": kinds}
    if layer.norms.after_attention is not None and layer.norms.before_attention is not None:  # Gemma 2 and 3
        made |= {
            "use_normalization_before_and_after": True,
            "attn_scores_soft_cap": config.attn_logit_softcapping or -1.0,
            "output_logits_soft_cap": config.final_logit_softcapping or -1.0,
        }
    return made if positions.learned else made | _rotary_config(config, positions, info.d_head)


def _rotary_config(config: Foreign, positions: Positions, d_head: int) -> dict[str, Foreign]:
    made: dict[str, Foreign] = {"rotary_adjacent_pairs": positions.adjacent, "rotary_dim": positions.width or d_head}
    ropes = getattr(config, "rope_parameters", None) or {"rope_theta": 10000.0}  # GPT-J's table is of these
    per_kind = "full_attention" in ropes
    rope = ropes["full_attention"] if per_kind else ropes
    made["rotary_base"] = rope["rope_theta"]
    if per_kind and "sliding_attention" in ropes:
        made["rotary_base_local"] = ropes["sliding_attention"]["rope_theta"]
    kind = rope.get("rope_type", "default")
    if kind == "llama3":
        made |= {f"NTK_by_parts_{name}": rope[name] for name in ("factor", "low_freq_factor", "high_freq_factor")}
        made |= {"use_NTK_by_parts_rope": True, "NTK_original_ctx_len": rope["original_max_position_embeddings"]}
    elif kind == "yarn" and not rope.get("mscale") and not rope.get("mscale_all_dim"):
        factor = float(rope["factor"])
        length = rope.get("attention_factor") or (0.1 * math.log(factor) + 1.0 if factor > 1 else 1.0)
        made |= {
            "use_yarn_rope": True,
            "yarn_factor": factor,
            "yarn_attention_factor": float(length),
            "yarn_beta_fast": float(rope.get("beta_fast") or 32.0),
            "yarn_beta_slow": float(rope.get("beta_slow") or 1.0),
            "yarn_original_max_position_embeddings": rope["original_max_position_embeddings"],
            "yarn_truncate": bool(rope.get("truncate", True)),
        }
    elif kind == "linear":
        made["rotary_scaling_factor"] = rope["factor"]
    elif kind != "default":
        raise ModelError(f"rotary scaling {kind!r} is none of TransformerLens'")
    return made


def _hooked(config: Foreign) -> Foreign:
    library = importlib.import_module("transformer_lens")
    with warnings.catch_warnings():  # that it goes in 4.0 is known here
        warnings.filterwarnings("ignore", "HookedTransformer is deprecated", DeprecationWarning)
        return library.HookedTransformer(config, move_to_device=False)


def _need_hooked_transformer(name: str) -> None:
    if not has_hooked_transformer():
        raise ModelError(
            f"{name!r}: HookedTransformer was removed in TransformerLens 4.0 and {version('transformer-lens')} is installed: "
            'pip install "transformer-lens>=3.9,<4", or use backend="bridge"'
        )


def hooked_from_folder(folder: Path, loading: Loading, *, name: str) -> HookedTransformerModel:
    """Read a HookedTransformer of a saved directory: its config's fields as config.json, its state as model.safetensors."""
    _need_hooked_transformer(name)
    options = {"dtype": loading.precision, "device": loading.place, "init_weights": False}
    try:
        hooked = _hooked(document(folder, "config.json") | options)
        missing, unexpected = hooked.load_state_dict(load_file(folder / WEIGHTS), strict=False)
    except (TypeError, ValueError, RuntimeError, AssertionError, OSError, SafetensorError) as error:
        raise ModelError(f"{name!r} holds no HookedTransformer that can be made here: {first_line(error)}") from error
    strange = [key for key in missing if not key.endswith(BUFFERS)] + unexpected
    if strange:
        raise ModelError(f"{name!r}: {len(strange)} weights are missing or too many, first {strange[0]}")
    refuse_not_finite(hooked, name=name)
    return HookedTransformerModel(hooked.to(loading.place, print_details=False).eval(), name=name)
