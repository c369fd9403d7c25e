"""The arithmetic of attention (who may see whom, scores from rotated queries and keys, values mixed by a pattern), and the
fastest kernels that give the same numbers."""

from collections.abc import Callable

import torch
from einops import rearrange, repeat
from torch import Tensor, nn

from .info import AttentionRule, Foreign, Inputs


def visibility(inputs: Inputs, window: int | None = None) -> Tensor:
    """Return who may see whom in one layer: causality AND the layer's window AND the input's mask, boolean `[b, 1|H, T, T]`.

    Causality is by index. A sliding window of `w` shows the query itself and the `w - 1` positions before it, counted on
    position ids where they are given (methods: otherwise the gap condition would not equal the masked one). A query
    that could see nothing sees itself, so that no row is empty.
    """
    index = torch.arange(inputs.n_tokens, device=inputs.tokens.device)
    visible = (index[:, None] >= index[None, :])[None, None]
    if window is not None:
        positions = index[None] if inputs.position_ids is None else inputs.position_ids
        visible = visible & (positions[:, None, :, None] - positions[:, None, None, :] < window)
    if inputs.attention_mask is not None:
        visible = visible & inputs.attention_mask
    alone = ~visible.any(-1, keepdim=True)
    return visible | (alone & (index[:, None] == index[None, :]))


def masked_scores(q: Tensor, k: Tensor, visible: Tensor, rule: AttentionRule) -> Tensor:
    """Return attention scores `[b, H, dest, src]` (-inf if not visible) of rotated q `[b, dest, H, d]`, k `[b, src, KV, d]`.
    Grouped-query attention: query head h reads kv head h // (H / KV). `visible` is boolean `[b|1, H|1, dest, src]`."""
    grouped = rearrange(q, "b dest (kv group) d -> b kv (group dest) d", kv=k.shape[2])
    scores = grouped @ rearrange(k, "b src kv d -> b kv d src")
    return finished_scores(
        rearrange(scores, "b kv (group dest) src -> b (kv group) dest src", dest=q.shape[1]), visible, rule
    )


def finished_scores(scores: Tensor, visible: Tensor, rule: AttentionRule) -> Tensor:
    """Return products of q and k, scaled, soft-capped, -inf where not visible."""
    scores = scores * rule.scale
    if rule.softcap is not None:
        scores = torch.tanh(scores / rule.softcap) * rule.softcap
    return scores.masked_fill(~visible, -torch.inf)


def softmax(scores: Tensor, sinks: Tensor | None = None) -> Tensor:
    """Take the softmax over the last axis, in float32 for half precision; without what sinks take (`with_sinks`)."""
    if sinks is not None:
        return softmax(with_sinks(scores, sinks))[..., :-1]
    return torch.softmax(scores, -1, dtype=torch.float32 if scores.element_size() < 4 else None).to(scores.dtype)


def with_sinks(scores: Tensor, sinks: Tensor | None) -> Tensor:
    """Return scores with learned sinks (a column of logits, `AttentionRule.column`) as one more key; for None as they are."""
    if sinks is None:
        return scores
    return torch.cat([scores, sinks.to(scores).expand(*scores.shape[:-1], 1)], -1)


def with_extra(of_keys: Tensor, rule: AttentionRule, *, value: bool = False) -> Tensor:
    """Return a mask over keys (last axis) with this value at the keys of `with_sinks` that are no tokens."""
    return torch.nn.functional.pad(of_keys, (0, rule.n_extra), value=value)


def pattern_of(q: Tensor, k: Tensor, visible: Tensor, rule: AttentionRule) -> Tensor:
    """Return attention probabilities `[b, H, dest, src]` from what `masked_scores` takes."""
    return softmax(masked_scores(q, k, visible, rule), rule.column)


def mix_values(pattern: Tensor, v: Tensor) -> Tensor:
    """Return head outputs z `[b, dest, H, d]`: pattern `[b, H, dest, src]` times v `[b, src, KV, d]` of the head's kv group."""
    grouped = rearrange(pattern, "b (kv group) dest src -> b kv (group dest) src", kv=v.shape[2])
    z = grouped @ rearrange(v, "b src kv d -> b kv src d")
    return rearrange(z, "b kv (group dest) d -> b dest (kv group) d", dest=pattern.shape[2])


def values_of_heads(v: Tensor, n_heads: int) -> Tensor:
    """Return values `[H, src, d]` of every query head from those of its kv group, `[src, KV, d]`."""
    return repeat(v, "src kv d -> (kv group) src d", group=n_heads // v.shape[1])


_ONEDNN: Foreign = getattr(torch.ops.mkldnn, "_linear_pointwise", None)
"""oneDNN's float32 linear: for the few hundred tokens of a pass the default one takes 5 to 30 % longer, on one thread."""
_TANH_GELU = ("NewGELUActivation", "FastGELUActivation", "gelu_new", "gelu_fast")
"""GELU by its tanh formula, in eight steps: as modules of transformers, as functions of TransformerLens."""


def product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Compute x Wᵀ + b of `[..., in]`, weight `[out, in]` (a transposed view will do); in float32 on a CPU by oneDNN."""
    plain = all(each.device.type == "cpu" and each.dtype == torch.float32 for each in (x, weight))
    if _ONEDNN is None or not plain or torch.is_grad_enabled() or not torch.backends.mkldnn.is_available():
        return nn.functional.linear(x, weight, bias)
    return _ONEDNN(x, weight, bias, "none", [], "")


def fused(activation: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """Return the same activation function in one step, where it is known to be written in several (equal up to rounding)."""
    if getattr(activation, "__name__", type(activation).__name__) in _TANH_GELU:
        return nn.GELU(approximate="tanh")
    return activation


def is_hooked(module: nn.Module) -> bool:
    """Return whether calling it does more than its own arithmetic."""
    return any(part._forward_hooks or part._forward_pre_hooks for part in module.modules())
