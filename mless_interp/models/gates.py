"""Editing the gate activations of an MLP, which no library shows."""

from collections.abc import Callable

import torch
from torch import Tensor

from .info import GatedMlp, ModelError
from .inputs import Edit
from .sites import site


def gate_edits(layer: int, gate: GatedMlp, change: Callable[[Tensor], Tensor]) -> dict[str, Edit]:
    """Edits that put `change(a)` in the place of a layer's gate activations a `[batch, token, d_mlp]`.

    No library has a hook on act(gate(x)), so the product is made again at `hook_post`, and only where `a` has changed.
    """
    held: dict[str, Tensor] = {}
    name = site(layer, "mlp.hook_post")

    def hold(key: str) -> Edit:
        def keep(value: Tensor) -> Tensor:
            held[key] = value
            return value

        return keep

    def override(post: Tensor) -> Tensor:
        if len(held) < 2:
            raise ModelError(f"{name} came before its two factors; this backend cannot edit the gate activations")
        activations, linear = gate.activation(held.pop("pre")), held.pop("linear")
        bias = 0 if gate.bias is None else gate.bias
        if not torch.allclose(activations * linear + bias, post, rtol=2e-2, atol=1e-3 * float(post.abs().max())):
            raise ModelError(f"{name} is not act(pre) * pre_linear here: this MLP is built otherwise, edit it by hand")
        changed = change(activations)
        return torch.where(changed == activations, post, changed * linear + bias)

    return {
        site(layer, "mlp.hook_pre"): hold("pre"),
        site(layer, "mlp.hook_pre_linear"): hold("linear"),
        name: override,
    }
