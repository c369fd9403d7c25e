"""Continuing a run from edited layers: only what can have changed is computed.

`Stepper` holds the recipe, written once: for the positions from `start` on, each row (one alternative edit of a prompt)
joins the batch at the layer that it edits, and the rows of a prompt share its prefix keys and values. Subclasses only say
how one layer projects, finishes and unembeds: `HuggingFaceStepper` here, `hooked.HookedTransformerStepper`.
"""

import inspect
import sys
from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import torch
from einops import rearrange
from torch import Tensor, nn

from .attention import finished_scores, softmax
from .hugging_face import decoder_of, unwrapped
from .info import AttentionRule
from .inputs import Recording

_ONEDNN: Any = getattr(torch.ops.mkldnn, "_linear_pointwise", None)
"""oneDNN's float32 linear: up to twice as fast as the default one for the few hundred tokens of a pass."""


def linear(module: Any, x: Tensor) -> Tensor:
    """`module(x)`, for a plain linear layer in float32 on a CPU (without gradients) by oneDNN's product."""
    plain = type(module) is nn.Linear and not module._forward_hooks and not module._forward_pre_hooks
    on_cpu = x.device.type == "cpu" and x.dtype == torch.float32
    if _ONEDNN is None or not (plain and on_cpu) or torch.is_grad_enabled() or not torch.backends.mkldnn.is_available():
        return module(x)
    return _ONEDNN(x, module.weight, module.bias, "none", [], "")


FUSED_FROM = 4
"""Queries per row from which fused attention over a row's own copy of the prefix beats shared prefix products."""


def _fused(q: Tensor, k: Tensor, v: Tensor, visible: Tensor, scale: float) -> Tensor:
    """Head outputs `[rows, dest, H, d]` by PyTorch's fused attention; a kv group's heads are stacked as queries."""
    rows, n_dest, n_heads, _ = q.shape
    n_kv = k.shape[2]
    shown = rearrange(visible.expand(-1, n_heads, -1, -1), "b (kv group) dest src -> b kv (group dest) src", kv=n_kv)
    if len(shown) > 1:
        shown = shown.repeat_interleave(rows // len(shown), 0)
    z = torch.nn.functional.scaled_dot_product_attention(
        rearrange(q, "row dest (kv group) d -> row kv (group dest) d", kv=n_kv),
        k.transpose(1, 2),
        v.transpose(1, 2),
        attn_mask=shown,
        scale=scale,
    )
    return rearrange(z, "row kv (group dest) d -> row dest (kv group) d", dest=n_dest)


def _with_prefix(prefix: Tensor, own: Tensor) -> Tensor:
    """Keys or values `[batch x row, src, KV, d]`: each prompt's prefix before its rows' own."""
    return torch.cat([prefix.repeat_interleave(len(own) // len(prefix), 0), own], 1)


def _joined(running: Tensor, fresh: Tensor) -> Tensor:
    """Rows `[batch x row, ...]` with more rows `[batch, more, ...]` behind those of each prompt."""
    if not len(running):
        return fresh.flatten(0, 1)
    return torch.cat([running.unflatten(0, (len(fresh), -1)), fresh], 1).flatten(0, 1)


class Stepper(ABC):
    """One decoder, layer by layer, from a residual stream on."""

    n_layers: int

    @abstractmethod
    def project(self, layer: int, resid: Tensor, positions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Rotated q `[rows, token, H, d]`, rotated k and v `[rows, token, KV, d]`; positions `[rows or 1, token]`."""

    @abstractmethod
    def finish(self, layer: int, resid: Tensor, z: Tensor) -> Tensor:
        """The residual stream after the layer, from the one before it and the head outputs `[rows, token, H, d]`."""

    @abstractmethod
    def unembed(self, resid: Tensor) -> Tensor:
        """Logits `[..., vocab]` of the last layer's residual stream."""

    @abstractmethod
    def rule(self, layer: int) -> AttentionRule:
        """Scale and soft-cap of the layer's scores."""

    def replay(self, receiving: Recording, layers: Sequence[int], z: Tensor, read: Tensor) -> Tensor:
        """Logits `[batch x row, read, vocab]` at `read` (counted from `start`); see `Model.replay`.

        `layers` (one per row, never falling) says where each row joins: one pass reads every layer's weights once.
        """
        batch, rows = receiving.inputs.batch, len(layers)
        last = int(read.max()) + 1  # later positions are read by nobody
        positions = receiving.inputs.positions[:, receiving.start :][:, :last]
        edited = z.view(batch, rows, *z.shape[1:])[:, :, :last]
        active = 0
        resid, z = receiving.resid_pre[layers[0]][:0], z[:0]  # none yet
        for at in range(layers[0], self.n_layers):
            final = at == self.n_layers - 1  # there, all queries but those read are of no use
            if active:
                resid = resid.to(receiving.resid_pre[at].device)  # layers may lie on several devices
                q, k, v = self.project(at, resid, positions.repeat_interleave(active if batch > 1 else 1, 0))
                if final:
                    q, resid = q[:, read], resid[:, read]
                z = self._attend(receiving, at, q, k, v, dest=read if final else None)
            joining = layers.count(at)
            if joining:
                fresh = receiving.resid_pre[at][:, None, :last].expand(-1, joining, -1, -1)
                own = edited[:, active : active + joining].to(fresh.device)
                if final:
                    fresh, own = fresh[:, :, read], own[:, :, read]
                resid, z = _joined(resid, fresh), _joined(z, own)
                active += joining
            resid = self.finish(at, resid, z)
        return self.unembed(resid)

    def tail(
        self,
        receiving: Recording,
        read: Tensor,
        *,
        gates: Tensor | None = None,
        span: Tensor | None = None,
        offsets: list[Tensor] | None = None,
    ) -> Tensor:
        """Every layer of the changed positions, in one differentiable pass: logits `[batch x row, read, vocab]`.

        `gates` `[row, layer, head]` multiply the attention that these positions pay to the keys of `span` `[batch, src]`
        before the row is renormalised: 1 leaves a head alone, 0 is its knockout, all 0 is the run that cannot see the
        span. `offsets[layer]` `[batch, changed, head, d_head]` is added to z (for gradients at z).
        """
        batch = receiving.inputs.batch
        rows = 1 if gates is None else gates.shape[0]
        positions = receiving.inputs.positions[:, receiving.start :]
        if batch > 1:
            positions = positions.repeat_interleave(rows, 0)
        resid = receiving.resid_pre[0].repeat_interleave(rows, 0)
        for layer in range(self.n_layers):
            q, k, v = self.project(layer, resid, positions)
            gate = None if gates is None or span is None else (gates[:, layer], span)
            z = self._attend(receiving, layer, q, k, v, gate=gate)
            if offsets is not None:
                z = z + offsets[layer]
            resid = self.finish(layer, resid, z)
        return self.unembed(resid[:, read])

    def _attend(
        self,
        receiving: Recording,
        layer: int,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        dest: Tensor | None = None,
        gate: tuple[Tensor, Tensor] | None = None,
    ) -> Tensor:
        """Head outputs `[batch x row, dest, H, d]`; the prefix's keys and values are shared by all rows of a prompt."""
        start = receiving.start
        batch = receiving.inputs.batch
        rows = q.shape[0] // batch
        n_dest = q.shape[1]
        n_own, n_kv = k.shape[1:3]
        k_prefix, v_prefix = receiving.k[layer][:, :start], receiving.v[layer][:, :start]
        visible = receiving.masks[layer][..., : start + n_own]
        visible = (visible[:, :, dest] if dest is not None else visible[:, :, :n_dest]).to(q.device)
        rule = self.rule(layer)
        if gate is None and rule.softcap is None and n_dest >= FUSED_FROM:
            return _fused(q, _with_prefix(k_prefix, k), _with_prefix(v_prefix, v), visible, rule.scale)
        # all rows of a prompt meet its shared prefix in one product, each row its own later keys in another
        shared = rearrange(q, "(b row) dest (kv group) d -> b kv (row group dest) d", kv=n_kv, row=rows)
        with_prefix = shared @ rearrange(k_prefix, "b src kv d -> b kv d src")
        own = rearrange(shared, "b kv (row group dest) d -> b kv row (group dest) d", row=rows, dest=n_dest)
        with_own = own @ rearrange(k, "(b row) src kv d -> b kv row d src", row=rows)
        scores = torch.cat(
            [
                rearrange(with_prefix, "b kv (row group dest) src -> b kv row group dest src", row=rows, dest=n_dest),
                rearrange(with_own, "b kv row (group dest) src -> b kv row group dest src", dest=n_dest),
            ],
            -1,
        )
        if visible.shape[1] == 1:
            visible = rearrange(visible, "b 1 dest src -> b 1 1 1 dest src")
        else:
            visible = rearrange(visible, "b (kv group) dest src -> b kv 1 group dest src", kv=n_kv)
        pattern = softmax(finished_scores(scores, visible, rule))
        if gate is not None:
            open_to, span = gate  # [row, H], [batch, src]
            factor = rearrange(open_to, "row (kv group) -> 1 kv row group 1 1", kv=n_kv)
            inside = rearrange(span[:, : start + n_own], "b src -> b 1 1 1 1 src").to(pattern)
            pattern = pattern * (1 + inside * (factor - 1))
            pattern = pattern / pattern.sum(-1, keepdim=True)
        to_prefix = rearrange(pattern[..., :start], "b kv row group dest src -> b kv (row group dest) src")
        to_own = rearrange(pattern[..., start:], "b kv row group dest src -> b kv row (group dest) src")
        from_prefix = to_prefix @ rearrange(v_prefix, "b src kv d -> b kv src d")
        from_own = to_own @ rearrange(v, "(b row) src kv d -> b kv row src d", row=rows)
        return rearrange(
            rearrange(from_prefix, "b kv (row group dest) d -> b kv row group dest d", row=rows, dest=n_dest)
            + rearrange(from_own, "b kv row (group dest) d -> b kv row group dest d", dest=n_dest),
            "b kv row group dest d -> (b row) dest (kv group) d",
        )


class HuggingFaceStepper(Stepper):
    """Llama-style decoders (Llama, Qwen2, Qwen3, Mistral, Gemma 1 to 3), plain or inside a TransformerBridge.

    Raises `TypeError` for a decoder of another build; the model then replays by whole forward passes.
    """

    def __init__(self, hf_model: nn.Module) -> None:
        self.hf_model = hf_model
        self.decoder = decoder_of(hf_model)
        self.layers = [unwrapped(layer) for layer in getattr(self.decoder, "layers", ())]
        self.n_layers = len(self.layers)
        if not self.layers:
            raise TypeError(f"{type(hf_model).__name__} has no decoder layers in the expected place")
        for holder, names in (
            (self.layers[0], ("input_layernorm", "self_attn", "post_attention_layernorm", "mlp")),
            (unwrapped(self.layers[0].self_attn), ("q_proj", "k_proj", "v_proj", "o_proj", "head_dim")),
            (unwrapped(self.layers[0].mlp), ("gate_proj", "up_proj", "down_proj", "act_fn")),
            (self.decoder, ("norm", "rotary_emb")),
        ):
            lacking = [name for name in names if not hasattr(holder, name)]
            if lacking:
                raise TypeError(f"{type(holder).__name__} has no {lacking}")
        attention = type(unwrapped(self.layers[0].self_attn))
        self._rotate: Any = getattr(sys.modules[attention.__module__], "apply_rotary_pos_emb", None)
        if self._rotate is None:
            raise TypeError(f"{attention.__module__} has no apply_rotary_pos_emb")

    @cached_property
    def _rotary_takes_layer_type(self) -> bool:
        return "layer_type" in inspect.signature(type(unwrapped(self.decoder.rotary_emb)).forward).parameters

    def _cos_sin(self, layer: int, resid: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        rotary = unwrapped(self.decoder.rotary_emb)
        if self._rotary_takes_layer_type:
            return rotary(resid, positions, self.decoder.config.layer_types[layer])
        return rotary(resid, positions)

    def project(self, layer: int, resid: Tensor, positions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        attn = unwrapped(self.layers[layer].self_attn)
        h = unwrapped(self.layers[layer].input_layernorm)(resid)
        split = (*h.shape[:-1], -1, attn.head_dim)
        q = linear(unwrapped(attn.q_proj), h).view(split)
        k = linear(unwrapped(attn.k_proj), h).view(split)
        v = linear(unwrapped(attn.v_proj), h).view(split)
        if getattr(attn, "q_norm", None) is not None:
            q, k = unwrapped(attn.q_norm)(q), unwrapped(attn.k_norm)(k)
        cos, sin = self._cos_sin(layer, resid, positions)
        q, k = self._rotate(q.transpose(1, 2), k.transpose(1, 2), cos, sin)
        return q.transpose(1, 2), k.transpose(1, 2), v

    def finish(self, layer: int, resid: Tensor, z: Tensor) -> Tensor:
        block = self.layers[layer]
        out = linear(unwrapped(unwrapped(block.self_attn).o_proj), z.flatten(-2))
        after_attention = unwrapped(block.post_attention_layernorm)
        if hasattr(block, "pre_feedforward_layernorm"):  # Gemma 2 and 3 also norm what attention and MLP write
            resid = resid + after_attention(out)
            wrote = self._mlp(block, unwrapped(block.pre_feedforward_layernorm)(resid))
            return resid + unwrapped(block.post_feedforward_layernorm)(wrote)
        resid = resid + out
        return resid + self._mlp(block, after_attention(resid))

    @staticmethod
    def _mlp(block: Any, h: Tensor) -> Tensor:
        mlp = unwrapped(block.mlp)
        gate = unwrapped(mlp.act_fn)(linear(unwrapped(mlp.gate_proj), h))
        return linear(unwrapped(mlp.down_proj), gate * linear(unwrapped(mlp.up_proj), h))

    def unembed(self, resid: Tensor) -> Tensor:
        logits = linear(unwrapped(self.hf_model.lm_head), unwrapped(self.decoder.norm)(resid))
        cap = getattr(self.decoder.config, "final_logit_softcapping", None)
        return logits if cap is None else torch.tanh(logits / cap) * cap

    def rule(self, layer: int) -> AttentionRule:
        attn = unwrapped(self.layers[layer].self_attn)
        return AttentionRule(float(attn.scaling), getattr(attn, "attn_logit_softcapping", None))
