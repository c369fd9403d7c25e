"""Logits in float32, whatever a model's own precision: bfloat16 rounds those of 16 to 32 to an eighth."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

BLOCK = 2**24
"""Weights that are held in float32 at a time (64 MB)."""


def float32_logits(normed: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    r"""Logits `[..., vocab]` in float32 of a normed stream `[..., d_model]`, W_U `[vocab, d_model]` in half precision.

    $$ \ell = W_U\, n(x) + b $$

    W_U is cast block by block, and with gradients once more on the way back, so that it is never whole in float32.
    """
    x = normed.to(weight.device, torch.float32)
    blocks = weight.split(max(1, BLOCK // weight.shape[1]))
    if torch.is_grad_enabled():
        parts = [checkpoint(_product, x, block, use_reentrant=False) for block in blocks]
    else:
        parts = [_product(x, block) for block in blocks]
    logits = torch.cat(parts, -1)
    return logits if bias is None else logits + bias.float()


def _product(x: Tensor, block: Tensor) -> Tensor:
    return x @ block.float().T


def is_half(weight: Tensor) -> bool:
    """Whether these are floats of 16 bits."""
    return weight.is_floating_point() and weight.element_size() == 2


def unembedded(module: Any, normed: Tensor) -> Tensor | None:
    """What a plain linear layer in half precision gives, in float32; None for any other, which does it by itself.

    None too where its weights are not here but brought for each pass (offloaded).
    """
    if type(module) is not nn.Linear or not is_half(module.weight) or module.weight.is_meta:
        return None
    return float32_logits(normed, module.weight, module.bias)
