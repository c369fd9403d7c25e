"""Whether gradients can be had from a model at all: said before anything long starts."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

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
    if getattr(model, "remote", False):
        return f"{name} runs remotely, where its gradients cannot be fetched: load it here, or {INSTEAD}"
    for module in _modules(model):
        found = _quantised(module)
        if found:
            return (
                f"{name} is quantised ({found}); gradients need weights of 16 bits or more: load it in bfloat16 or "
                f"float32, or {INSTEAD}"
            )
        if any(parameter.is_inference() for parameter in module.parameters()):
            return (
                f"{name} was made inside torch.inference_mode(), so its weights can never enter a gradient: load it "
                f"outside, or {INSTEAD}"
            )
    if model.stepper is None:
        return f"{name} cannot be continued layer by layer, which gradients need: {INSTEAD}"
    return None


def refuse_without_gradients(model: Model, what: str) -> None:
    """`ModelError` that names what needs gradients, what stands in the way and what to do instead."""
    reason = no_gradients_because(model)
    if reason is not None:
        raise ModelError(f"{what} needs gradients, but {reason}")


def _modules(model: Model) -> Iterator[nn.Module]:
    """Where the weights are: the Hugging Face module underneath, else the library's own object."""
    for module in (model.hf_model, model.underlying):
        if isinstance(module, nn.Module):
            yield module
            return


def _quantised(module: Any) -> str:
    """How the weights are quantised, in a word; empty where they are not."""
    for bits in ("8bit", "4bit"):
        if getattr(module, f"is_loaded_in_{bits}", False) or getattr(
            getattr(module, "cfg", None), f"load_in_{bits}", False
        ):
            return bits
    config = getattr(getattr(module, "config", None), "quantization_config", None)
    if config is not None:
        method = config.get("quant_method") if isinstance(config, dict) else getattr(config, "quant_method", None)
        return str(getattr(method, "value", method) or "quantization_config in its config")
    for label, parameter in module.named_parameters():
        if not parameter.is_floating_point():
            return f"{label} is {str(parameter.dtype).removeprefix('torch.')}"
        if parameter.element_size() < 2:  # float8
            return f"{label} is {str(parameter.dtype).removeprefix('torch.')}"
    for part in module.modules():
        library = type(part).__module__.partition(".")[0]
        if library in ("bitsandbytes", "auto_gptq", "gptqmodel", "awq", "hqq") or ".quantized" in type(part).__module__:
            return type(part).__name__
    return ""
