"""What a config says where no weights are: parameters, exactly, and a few random layers of the same geometry to time."""

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.initialization import no_init_weights

from ..given import shown
from ..ground_truth.stand_ins import StandIn
from ..models.decoder import Geometry, decoder_layers
from ..models.hugging_face import hugging_face_info, load_tokenizer
from ..models.info import ModelError, ModelInfo
from ..models.load import source_of
from ..models.saved import SIZES, check_tokenizer, document, first_line
from .quantised import Quantised

MOST_LAYERS = 1000
"""No model has more; building them, even without memory, would take minutes."""
BLOCK = 2**20
"""Random numbers that are drawn once and repeated: the time of a product does not depend on its numbers."""


@dataclass(frozen=True, eq=False)
class Shape:
    """A model's geometry, config and tokenizer.

    `n_parameters`: of the whole model, tied ones once. `per_layer`: the mean of a layer, of which `projections` make queries,
    keys and values. `active`: those of a layer that a token meets (of experts the chosen ones). `stacked`: of all, those of
    three axes (experts). `quantised`: how weights are stored, where the config says that they are quantised.
    """

    info: ModelInfo
    config: Any
    tokenizer: Any
    n_parameters: int
    per_layer: float
    projections: float
    active: float
    stacked: int
    quantised: Quantised | None = None

    @classmethod
    def of(cls, name: str, *, trust_remote_code: bool = False) -> "Shape":
        """From config.json and the tokenizer; `ModelError` where there are none, or no model of that kind is taken."""
        source = source_of(name)
        folder = Path(source)
        options: dict[str, Any] = {"local_files_only": folder.is_dir(), "trust_remote_code": trust_remote_code}
        if folder.is_dir():
            said = document(folder, "config.json")
            text = said.get("text_config")
            _check_sizes(said | text if isinstance(text, dict) else said, name)
            packed = said.get("quantization_config")
            if packed is not None and not isinstance(packed, dict):
                raise ModelError(
                    f"cannot plan with {name!r}: quantization_config must be an object, got {shown(packed)}"
                )
            check_tokenizer(folder)
        try:
            config = AutoConfig.from_pretrained(source, **options)
            _check_sizes(vars(config.get_text_config()), name)
            tokenizer = load_tokenizer(source, **options)
            with torch.device("meta"):
                made = AutoModelForCausalLM.from_config(config, trust_remote_code=trust_remote_code)
        except ModelError:
            raise
        except Exception as error:  # of a dozen kinds, as where models are loaded
            raise ModelError(f"cannot plan with {name!r}: {first_line(error)}") from error
        info = hugging_face_info(made, name=name, backend="none yet", attention="eager", versions={})
        layers = decoder_layers(made, Geometry.of(info))
        if not layers:
            raise ModelError(f"cannot plan with {name!r}: its layers are not where those of known decoders are")
        n = len(layers)
        text = config.get_text_config()
        counts = (getattr(text, key, None) for key in ("num_local_experts", "num_experts", "n_routed_experts"))
        n_experts = next((count for count in counts if count), None)
        idle = 0.0 if n_experts is None else 1 - text.num_experts_per_tok / n_experts
        per_layer = sum(_count(layer.module) for layer in layers) / n
        experts = sum(
            weight.numel()
            for layer in layers
            for label, weight in layer.module.named_parameters()
            if "experts" in label and "shared" not in label
        )
        projections = float(info.n_heads + 2 * info.n_key_value_heads) * info.d_head * info.d_model
        return cls(
            info=info,
            config=config,
            tokenizer=tokenizer,
            n_parameters=_count(made),
            per_layer=per_layer,
            projections=projections,
            active=per_layer - idle * experts / n,
            stacked=sum(weight.numel() for weight in made.parameters() if weight.dim() > 2),
            quantised=Quantised.of(config, made, [layer.module for layer in layers]),
        )

    def bytes_of_weights(self, bytes_each: int) -> float:
        """Bytes of all weights, those that are quantised as they are stored, the others at so many each."""
        packed = self.quantised
        if packed is None:
            return float(self.n_parameters * bytes_each)
        return (self.n_parameters - packed.n_weights) * bytes_each + packed.n_weights * packed.bits / 8

    def layers_like(self, n_layers: int, *, n_words: int, dtype: torch.dtype, attention: str) -> StandIn:
        """A model of the same geometry with the first `n_layers` layers, a vocabulary of its own, and random weights."""
        config = copy.deepcopy(self.config)
        text = config.get_text_config()
        for key, value in list(vars(text).items()):  # what is said of each layer
            if isinstance(value, list | tuple) and len(value) == self.info.n_layers:
                setattr(text, key, value[:n_layers])
        text.num_hidden_layers, text.vocab_size = n_layers, n_words
        text.pad_token_id = text.bos_token_id = text.eos_token_id = None
        if getattr(config, "quantization_config", None) is not None:
            del config.quantization_config
        with no_init_weights():
            made = AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation=attention)
        made.tie_weights()
        _fill(made)
        return StandIn(f"{n_layers} random layers like {self.info.name}", made.eval(), self.tokenizer)


LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
"""What configs call how many there are."""


def _check_sizes(said: Mapping[str, Any], name: str) -> None:
    """`ModelError` for sizes that no model has, before one is built."""
    for key in (*SIZES, *LAYERS):
        value = said.get(key)
        several = value if isinstance(value, list | tuple) else [value]
        if value is not None and not all(type(n) is int and n > 0 for n in several):
            raise ModelError(f"cannot plan with {name!r}: {key} must be a whole number above 0, got {shown(value)}")
        if key in LAYERS and isinstance(value, int) and value > MOST_LAYERS:
            raise ModelError(f"cannot plan with {name!r}: {key} is {value:,}, no model has more than {MOST_LAYERS:,}")
    n_heads, groups = (said.get(key) for key in ("num_attention_heads", "num_key_value_heads"))
    if n_heads and groups and isinstance(groups, int) and n_heads % groups:
        raise ModelError(
            f"cannot plan with {name!r}: {n_heads} query heads cannot share {groups} key-value heads evenly"
        )


def _count(module: nn.Module) -> int:
    return sum(weight.numel() for weight in module.parameters())


@torch.no_grad()
def _fill(model: nn.Module) -> None:
    """Small random weights; norms as they are initialised."""
    block = torch.randn(BLOCK, generator=torch.Generator().manual_seed(0)) * 0.02
    for label, weight in model.named_parameters():
        flat = weight.data.view(-1)
        if weight.dim() < 2:
            flat.fill_(1.0 if label.endswith("weight") else 0.0)
            continue
        some = block.to(weight.dtype)
        for at in range(0, flat.numel(), BLOCK):
            flat[at : at + BLOCK] = some[: flat.numel() - at]
