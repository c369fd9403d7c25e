"""The arithmetic of a HookedTransformer, layer by layer: its rotation, its rule of attention, its unembedding, its replay."""

from typing import Any

import torch
from torch import Tensor

from .info import AttentionRule
from .replay import Stepper


class HookedTransformerStepper(Stepper):
    """A TransformerLens HookedTransformer with rotary positions."""

    def __init__(self, hooked: Any) -> None:
        cfg = hooked.cfg
        plain = not (cfg.use_attn_in or cfg.use_split_qkv_input or cfg.use_hook_mlp_in or cfg.use_attn_result)
        if cfg.positional_embedding_type != "rotary" or not plain or cfg.load_in_4bit or cfg.use_attention_sinks:
            raise TypeError("replay by layers needs a HookedTransformer with rotary positions and its default hooks")
        self.hooked = hooked
        self.n_layers = cfg.n_layers

    def _rotate(self, attn: Any, x: Tensor, positions: Tensor) -> Tensor:
        return turned(attn, x, *rotary_tables(attn, positions))

    def project(self, layer: int, resid: Tensor, positions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        block = self.hooked.blocks[layer]
        h = block.ln1(resid)
        q, k, v = block.attn.calculate_qkv_matrices(h, h, h)
        return self._rotate(block.attn, q, positions), self._rotate(block.attn, k, positions), v

    def finish(self, layer: int, resid: Tensor, z: Tensor) -> Tensor:
        block, cfg = self.hooked.blocks[layer], self.hooked.cfg
        out = z.flatten(-2) @ block.attn.W_O.flatten(0, 1) + block.attn.b_O
        if cfg.use_normalization_before_and_after:
            out = block.ln1_post(out)
        if cfg.attn_only:
            return resid + out
        if cfg.parallel_attn_mlp:
            return resid + out + block.apply_mlp(block.ln2(resid))
        resid = resid + out
        return resid + block.apply_mlp(block.ln2(resid))

    def unembed(self, resid: Tensor) -> Tensor:
        return hooked_unembed(self.hooked, resid)

    def rule(self, layer: int) -> AttentionRule:
        return hooked_rule(self.hooked, layer)


def hooked_unembed(hooked: Any, resid: Tensor) -> Tensor:
    """Logits `[..., vocab]` of a HookedTransformer's last residual stream, with its final norm and soft-cap."""
    if hooked.cfg.normalization_type is not None:
        resid = hooked.ln_final(resid)
    logits = hooked.unembed(resid)
    cap = hooked.cfg.output_logits_soft_cap
    return logits if cap is None or cap <= 0 else torch.tanh(logits / cap) * cap


def hooked_rule(hooked: Any, layer: int) -> AttentionRule:
    """Scale and soft-cap of a HookedTransformer layer's scores."""
    attn, cap = hooked.blocks[layer].attn, hooked.cfg.attn_scores_soft_cap
    return AttentionRule(1.0 / float(attn.attn_scale), cap if cap and cap > 0 else None)


def turned(attn: Any, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Queries or keys `[batch, token, head, d_head]` of a HookedTransformer layer, turned by these tables."""
    dim = cos.shape[-1]
    rotated = x[..., :dim] * cos.to(x.dtype) + attn.rotate_every_two(x[..., :dim]) * sin.to(x.dtype)
    return torch.cat([rotated, x[..., dim:]], -1)


def rotary_tables(attn: Any, positions: Tensor) -> tuple[Tensor, Tensor]:
    """cos and sin `[batch, token, 1, rotary_dim]` of a HookedTransformer attention layer at any (fractional) positions.

    The angles come from the layer's own table (its row for position 1), so scaled and local rotary bases are kept.
    """
    high = torch.float64 if attn.rotary_sin.dtype == torch.float64 else torch.float32
    whole = not positions.is_floating_point() and int(positions.max()) < attn.rotary_cos.shape[0]
    if whole and int(positions.min()) >= 0:
        return attn.rotary_cos[positions][:, :, None], attn.rotary_sin[positions][:, :, None]
    theta = torch.atan2(attn.rotary_sin[1].to(high), attn.rotary_cos[1].to(high))
    length = torch.hypot(attn.rotary_sin[1].to(high), attn.rotary_cos[1].to(high))  # YaRN's attention factor
    angles = positions[..., None].to(high) * theta
    return (torch.cos(angles) * length)[:, :, None], (torch.sin(angles) * length)[:, :, None]
