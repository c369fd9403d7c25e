"""Memory that a run needs, and what there is here."""

import re
from dataclasses import dataclass
from pathlib import Path

import torch

from ..models.info import ModelInfo
from ..models.load import CONVERTED_AT_MOST, source_of
from ..models.transformer_lens import has_hooked_transformer
from .free import available_memory
from .shape import Shape
from .timing import Chosen

SHARE_OF_GPU = 0.9
CONTEXT_BYTES = 0.8e9
"""What a GPU's libraries take of it."""


@dataclass(frozen=True)
class Memory:
    """Bytes: of the weights, of the two recorded runs of a unit, of one pass, and of libraries in this process.

    `loading`: of weights while they are converted. `mapped`: of files that weights are copied out of, at once; they count as
    resident beside the copies, and the system takes them back where memory is short.
    """

    weights: float
    recordings: float
    one_pass: float
    libraries: float
    loading: float
    mapped: float

    @property
    def device(self) -> float:
        """At the peak, on a GPU."""
        return CONTEXT_BYTES + max(self.loading, self.weights + self.recordings + self.one_pass)

    @property
    def host(self) -> float:
        """What must be there at the peak, where the model runs on the CPU."""
        return self.libraries + max(self.loading, self.weights + self.recordings + self.one_pass)

    @property
    def resident(self) -> float:
        """Resident at the peak, where the model runs on the CPU: with files that are mapped."""
        return max(self.host, self.host_beside)

    @property
    def host_beside(self) -> float:
        """Resident at the peak on the host, where the model runs on a GPU: its weights pass through."""
        return self.libraries + self.weights + self.mapped


def weights_bytes(shape: Shape, chosen: Chosen) -> float:
    return shape.bytes_of_weights(chosen.bytes_each)


def mapped_bytes(shape: Shape, chosen: Chosen) -> float:
    """Of the files of weights those that are mapped at once: converted to another dtype all of them, else one at a time."""
    said = getattr(shape.config, "dtype", None)
    stored = said if isinstance(said, torch.dtype) else chosen.torch_dtype
    files = [float(file.stat().st_size) for file in Path(source_of(shape.info.name)).glob("*.safetensors")]
    sizes = files or [shape.bytes_of_weights(stored.itemsize)]
    return max(sizes) if stored == chosen.torch_dtype or shape.quantised else sum(sizes)


def loading_bytes(shape: Shape, chosen: Chosen) -> float:
    """Weights, where HookedTransformer converts them twice: its output layer is never tied."""
    weights = weights_bytes(shape, chosen)
    converts = chosen.backend == "hooked_transformer" or (
        chosen.backend == "auto" and has_hooked_transformer() and weights <= CONVERTED_AT_MOST
    )
    if not converts:
        return weights
    tied = shape.config.get_text_config().tie_word_embeddings
    return 2 * weights + tied * shape.info.d_vocab * shape.info.d_model * chosen.bytes_each


def recordings_bytes(info: ModelInfo, chosen: Chosen, *, problems: int, length: int, changed: int) -> float:
    """Two runs with all that a replay of the last `changed` of `length` positions needs."""
    kept = changed * (info.d_model + 2 * info.n_heads * info.d_head)
    kept += length * 2 * info.n_key_value_heads * info.d_head
    return 2.0 * problems * info.n_layers * (kept * chosen.bytes_each + changed * length)


def pass_bytes(info: ModelInfo, chosen: Chosen, *, rows: int, changed: int, length: int, read: int) -> float:
    """One pass of so many rows: the widest layer's numbers, its attention, logits where they are read."""
    wide = 6 * info.d_model + 3 * (info.d_mlp or 4 * info.d_model) + 2 * info.n_heads * info.d_head
    keys = length * 4 * info.n_heads * info.d_head
    return float(rows * (changed * wide + keys) * chosen.bytes_each + 3 * rows * read * info.d_vocab * 4)


def here() -> dict[str, int]:
    """Bytes of memory by device: what the CPU can still have now, and all that each GPU has."""
    found = {"cpu": available_memory()}
    for gpu in range(torch.cuda.device_count()):
        found[f"cuda:{gpu}"] = int(torch.cuda.get_device_properties(gpu).total_memory)
    return found


LIBRARIES = {"nnsight": 0.55e9}
MOST_LIBRARIES = 0.65e9
"""Resident bytes of Python and the libraries of a backend; TransformerLens brings more."""


def parsed_bytes(text: str) -> int:
    """Bytes of a text such as 80GB.

    >>> parsed_bytes("80GB"), parsed_bytes("24 GiB"), parsed_bytes("512M")
    (80000000000, 25769803776, 512000000)
    """
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)b?\s*", text, re.IGNORECASE)
    if found is None:
        raise ValueError(f"cannot read {text!r} as an amount of memory: write 80GB or 24GiB")
    power = "kmgt".find(found[2].lower()) + 1 if found[2] else 0
    return int(float(found[1]) * (1024 if found[3] else 1000) ** power)
