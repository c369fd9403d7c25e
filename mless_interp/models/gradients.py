"""Whether gradients can be had from a model at all: said before anything long starts."""

import torch

from .base import Model
from .info import ModelError

INSTEAD = "use exact sweeps, which need none: patch_heads, or locate_heads(mode='exact')"


def no_gradients_because(model: Model) -> str | None:
    """Why no gradients can be had from this model here and now; None where nothing speaks against them.

    Weights below 16 bits are refused even where a library offers some backward pass: what would be differentiated is a
    dequantised approximation, and its error is not known.
    """
    if torch.is_inference_mode_enabled():
        return "inside torch.inference_mode() nothing has a gradient: leave it first (torch.no_grad() is no obstacle)"
    name = model.info.name
    if model.remote:
        return f"{name} runs remotely, where its gradients cannot be fetched: load it here, or {INSTEAD}"
    if model.quantised:
        return (
            f"{name} is quantised ({model.quantised}); gradients need weights of 16 bits or more: load it in bfloat16 or "
            f"float32, or {INSTEAD}"
        )
    if model.weights is not None and any(weight.is_inference() for weight in model.weights.parameters()):
        return (
            f"{name} was made inside torch.inference_mode(), so its weights can never enter a gradient: load it "
            f"outside, or {INSTEAD}"
        )
    if model.stepper is None:
        return f"{name} cannot be continued layer by layer, which gradients need ({model.why_whole_passes}): {INSTEAD}"
    return None


def refuse_without_gradients(model: Model, what: str) -> None:
    """`ModelError` that names what needs gradients, what stands in the way and what to do instead."""
    reason = no_gradients_because(model)
    if reason is not None:
        raise ModelError(f"{what} needs gradients, but {reason}")
