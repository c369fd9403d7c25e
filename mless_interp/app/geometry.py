"""Count a model's parameters, weights and operations from its config."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import try_to_load_from_cache
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.pytorch_utils import Conv1D

from ..models.decoder import decoder_layers
from ..models.hugging_face import hugging_face_info, load_tokenizer, only_here
from ..models.info import ModelError, ModelInfo
from ..models.load import source_of
from ..models.weights import INDEX, WEIGHTS, check_tokenizer, document, first_line

PACKS_EXPERTS = ("fp8", "mxfp4")
"""Ways of quantising that take experts too, which are no linear layers."""


@dataclass(frozen=True, eq=False)
class Shape:
    """A model's geometry and tokenizer.

    `n_parameters`: of the whole model, tied ones once. `active`: parameters of a layer that a token meets (of experts the
    chosen ones). `bits` of each of `n_quantised` parameters, where the config says that weights are quantised.
    """

    info: ModelInfo
    config: Any
    tokenizer: Any
    n_parameters: int
    active: float
    bits: float = 0.0
    n_quantised: int = 0

    @classmethod
    def of(cls, name: str, *, trust_remote_code: bool = False) -> "Shape":
        """Read config.json and the tokenizer; `ModelError` where there are none, or for a model of a kind that is not taken."""
        source = source_of(name)
        options: dict[str, Any] = {"local_files_only": only_here(source), "trust_remote_code": trust_remote_code}
        if Path(source).is_dir():
            document(Path(source), "config.json")
            check_tokenizer(Path(source))
        try:
            config = AutoConfig.from_pretrained(source, **options)
            tokenizer = load_tokenizer(source, **options)
            with torch.device("meta"):
                made = AutoModelForCausalLM.from_config(config, trust_remote_code=trust_remote_code)
            info = hugging_face_info(made, name=name)
            layers = [layer.module for layer in decoder_layers(made, info)]
            per_layer = sum(map(_count, layers)) / len(layers)
        except ModelError:
            raise
        except Exception as error:  # of a dozen kinds, as where models are loaded
            raise ModelError(f"cannot plan with {name!r}: {first_line(error)}") from error
        text = config.get_text_config()
        counts = (getattr(text, key, None) for key in ("num_local_experts", "num_experts", "n_routed_experts"))
        n_experts = next((count for count in counts if count), None)
        idle = 0.0 if n_experts is None else 1 - text.num_experts_per_tok / n_experts
        named = [item for layer in layers for item in layer.named_parameters()]
        experts = sum(weight.numel() for label, weight in named if "experts" in label and "shared" not in label)
        linear = [each for layer in layers for each in layer.modules() if isinstance(each, nn.Linear | Conv1D)]
        packed = getattr(config, "quantization_config", None)
        packed = None if packed is None else packed if isinstance(packed, dict) else packed.to_dict()
        return cls(
            info=info,
            config=config,
            tokenizer=tokenizer,
            n_parameters=_count(made),
            active=per_layer - idle * experts / len(layers),
            bits=0.0 if packed is None else _bits(packed),
            n_quantised=0
            if packed is None
            else sum(each.weight.numel() for each in linear) + experts * (packed.get("quant_method") in PACKS_EXPERTS),
        )

    @property
    def is_here(self) -> bool:
        """Return True where the model's weights are on this machine."""
        source = source_of(self.info.name)
        if Path(source).is_dir():
            return any(Path(source).glob("*.safetensors"))
        return any(isinstance(try_to_load_from_cache(source, file), str) for file in (WEIGHTS, INDEX))

    def weights(self, dtype: str) -> float:
        """Bytes of all weights in this precision, those that are quantised by their bits."""
        return (self.n_parameters - self.n_quantised) * bytes_of(dtype) + self.n_quantised * self.bits / 8

    def operations(self, length: int, *, positions: float | int, read: float | int, layers: float = 1.0) -> float:
        """Return the floating-point operations (two for a product and its sum) of so many positions that see up to `length`
        tokens, through this share of the layers, with logits at `read` of them."""
        info = self.info
        each = 2 * self.active + 2 * info.n_heads * ((info.d_key or info.d_head) + info.d_head) * length
        return layers * info.n_layers * positions * each + 2.0 * read * info.d_model * info.d_vocab


def _count(module: nn.Module) -> int:
    return sum(weight.numel() for weight in module.parameters())


def bytes_of(dtype: str) -> int:
    """Return the bytes of a number of this dtype."""
    return int(getattr(torch, dtype).itemsize)


def _bits(packed: dict[str, Any]) -> float:
    """Bits of a quantised weight, as its config says; 8 where that names none."""
    four = packed.get("load_in_4bit") or packed.get("_load_in_4bit") or packed.get("quant_method") == "mxfp4"
    return 4.0 if four else float(packed.get("bits") or 8)
