"""Editing the gate activations of an MLP, which no library shows."""

from collections.abc import Callable

import torch
from torch import Tensor

from .held import Held
from .info import GatedMlp, ModelError
from .inputs import Edit
from .sites import site


def gate_edits(layer: int, gate: GatedMlp, change: Callable[[Tensor], Tensor]) -> dict[str, Edit]:
    """Edits that put `change(a)` in the place of a layer's gate activations a `[batch, token, d_mlp]`.

    No library has a hook on act(gate(x)), so the product is made again at `hook_post`, and only where `a` has changed.
    """
    held, factors = Held(), (site(layer, "mlp.hook_pre"), site(layer, "mlp.hook_pre_linear"))
    name = site(layer, "mlp.hook_post")

    def override(post: Tensor) -> Tensor:
        pre, linear = held.take(*factors)
        activations = gate.activation(pre)
        bias = 0 if gate.bias is None else gate.bias
        if not torch.allclose(activations * linear + bias, post, rtol=2e-2, atol=1e-3 * float(post.abs().max())):
            raise ModelError(f"{name} is not act(pre) * pre_linear here: this MLP is built otherwise, edit it by hand")
        changed = change(activations)
        return torch.where(changed == activations, post, changed * linear + bias)

    return {**held.edits(*factors), name: override}
