"""The activations of an MLP: what they are called, and how they are edited, where no library shows them."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from .activation_buffer import Held
from .info import GatedMlp, ModelError
from .inputs import Edit
from .sites import site

UNGATED = (
    "This model's MLP has no gate, so its activations are act(up(x)) themselves: our extension of the paper's gated form, "
    "act(gate(x))."
)
"""What a result says whose activations are those of an MLP without a gate."""


def extension_of(settings: Mapping[str, Any]) -> list[str]:
    """The sentence that labels a result made with these settings; none for the paper's form, which alone older ones have."""
    return [] if settings.get("gated", True) else [UNGATED]


def gate_edits(layer: int, gate: GatedMlp, change: Callable[[Tensor], Tensor]) -> dict[str, Edit]:
    """Edits that put `change(a)` in the place of a layer's activations a `[batch, token, d_mlp]`, and only where `a` changed.

    With a gate, a = act(gate(x)): no library has a hook on it, so the product is made again at `hook_post`. Without one
    a = act(up(x)) is `hook_post` itself.
    """
    held, factors = Held(), [site(layer, "mlp.hook_pre")]
    factors += [site(layer, "mlp.hook_pre_linear")] if gate.gated else []
    name = site(layer, "mlp.hook_post")

    def override(post: Tensor) -> Tensor:
        pre, *linear = held.take(*factors)
        activations = gate.activation(pre)

        def made(activations: Tensor) -> Tensor:
            product = activations * linear[0] if gate.gated else activations
            return product if gate.bias is None else product + gate.bias

        if not torch.allclose(made(activations), post, rtol=2e-2, atol=1e-3 * float(post.abs().max())):
            form = "act(pre) * pre_linear" if gate.gated else "act(pre)"
            raise ModelError(f"{name} is not {form} here: this MLP is built otherwise, edit it by hand")
        changed = change(activations)
        return torch.where(changed == activations, post, made(changed))

    return {**held.edits(*factors), name: override}
