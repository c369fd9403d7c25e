"""How many bits a weight takes that a config says is quantised."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn
from transformers.pytorch_utils import Conv1D

BLOCK_OF_4BIT, BLOCK_OF_SCALES = 64, 256
"""Weights for each scale of bitsandbytes, and scales for each scale of scales."""


@dataclass(frozen=True)
class Quantised:
    """`method` by its name; `bits` of a weight with its share of scales and zeros; `n_weights` are stored so.

    `known`: whether the method's bits are; where they are not, weights count in the chosen precision.
    """

    method: str
    bits: float
    n_weights: int
    known: bool = True

    @classmethod
    def of(cls, config: Any, model: nn.Module, layers: Sequence[nn.Module]) -> "Quantised | None":
        """What `config.quantization_config` says of the `layers` of a model; None where there is none."""
        found = getattr(config, "quantization_config", None)
        if found is None:
            return None
        asked: dict[str, Any] = found if isinstance(found, dict) else found.to_dict()
        method = asked.get("quant_method") or "unknown"
        method = str(getattr(method, "value", method))
        bits = bits_of(asked, method)
        if bits is None:
            return cls(method, 0.0, 0, known=False)
        skipped = tuple(asked.get("modules_to_not_convert") or asked.get("llm_int8_skip_modules") or ())
        n, names = 0, {module: label for label, module in model.named_modules()}
        for layer in layers:
            for module in layer.modules():
                if any(part in names[module] for part in skipped):
                    continue
                if isinstance(module, nn.Linear | Conv1D):
                    n += module.weight.numel()
                elif method != "bitsandbytes":  # which takes linear modules alone
                    n += sum(weight.numel() for weight in module.parameters(recurse=False) if weight.dim() > 2)
        return cls(method, bits, n)


def bits_of(asked: dict[str, Any], method: str) -> float | None:
    """Bits of a weight with its share of what belongs to its group; None where the method is not known.

    >>> bits_of({"bits": 4, "group_size": 128}, "gptq"), bits_of({"load_in_8bit": True}, "bitsandbytes")
    (4.15625, 8.0)
    """
    if method == "bitsandbytes":
        if not (asked.get("load_in_4bit") or asked.get("_load_in_4bit")):
            return 8.0
        twice = asked.get("bnb_4bit_use_double_quant")
        scales = (8 + 32 / BLOCK_OF_SCALES) if twice else 32
        return 4 + scales / BLOCK_OF_4BIT
    if method in ("gptq", "awq", "auto-round") and _is_size(asked.get("bits")):
        group, bits = asked.get("group_size"), asked["bits"]
        return float(bits + ((16 + bits) / group if _is_size(group) else 0))
    if method in ("fp8", "fbgemm_fp8"):
        return 8.0
    return 4 + 8 / 32 if method == "mxfp4" else None


def _is_size(value: Any) -> bool:
    return type(value) is int and value > 0
