"""What most of a replay's time goes into, by the fastest kernel that gives the same numbers."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

_ONEDNN: Any = getattr(torch.ops.mkldnn, "_linear_pointwise", None)
"""oneDNN's float32 linear: up to twice as fast as the default one for the few hundred tokens of a pass."""
_TANH_GELU = ("NewGELUActivation", "FastGELUActivation", "gelu_new", "gelu_fast")
"""GELU by its tanh formula, in eight steps of their own: as modules of transformers, as functions of TransformerLens."""


def product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x Wᵀ + b of `[..., in]`, weight `[out, in]` (as it lies: a transposed view will do); without gradients in float32 on a
    CPU by oneDNN."""
    plain = all(each.device.type == "cpu" and each.dtype == torch.float32 for each in (x, weight))
    if _ONEDNN is None or not plain or torch.is_grad_enabled() or not torch.backends.mkldnn.is_available():
        return nn.functional.linear(x, weight, bias)
    return _ONEDNN(x, weight, bias, "none", [], "")


def fused(activation: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """The same activation function in one step, where it is known to be written in several (equal up to rounding)."""
    if getattr(activation, "__name__", type(activation).__name__) in _TANH_GELU:
        return nn.GELU(approximate="tanh")
    return activation


def is_hooked(module: nn.Module) -> bool:
    """Whether calling it does more than its own arithmetic."""
    return any(part._forward_hooks or part._forward_pre_hooks for part in module.modules())
