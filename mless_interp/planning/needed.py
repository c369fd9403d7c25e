"""Memory that a run needs, and what there is here."""

import re
from dataclasses import dataclass
from pathlib import Path

import torch

from ..models.info import ModelInfo
from ..models.load import CONVERTED_AT_MOST, source_of
from ..models.mapped import Stored, stored_in
from ..models.sent import BLOCK
from ..models.transformer_lens import has_hooked_transformer
from .free import available_memory
from .shape import Shape
from .timing import Chosen

SHARE_OF_GPU = 0.9
_ONE_EXPERT = re.compile(r"(^|\.)experts\.\d+\.")
"""Weights of a single expert, in a file; transformers stacks those of a layer."""
CONTEXT_BYTES = 0.8e9
"""What a GPU's libraries take of it."""


@dataclass(frozen=True)
class Memory:
    """Bytes: of the weights, of the two recorded runs of a unit, of one pass, and of libraries in this process.

    `loading`: of weights while they are converted. `mapped`: of files that weights are copied out of, at once; they count as
    resident beside the copies, and the system takes them back where memory is short. `kept`: of the weights, those that stay in
    their files; the system takes them back too, and reads them again for the next pass.
    """

    weights: float
    recordings: float
    one_pass: float
    libraries: float
    loading: float
    mapped: float
    kept: float

    @property
    def device(self) -> float:
        """At the peak, on a GPU."""
        return CONTEXT_BYTES + max(self.loading, self.weights + self.recordings + self.one_pass)

    @property
    def host(self) -> float:
        """What must be there at the peak, where the model runs on the CPU."""
        return self.libraries + max(self.loading, self.weights + self.recordings + self.one_pass)

    @property
    def anonymous(self) -> float:
        """Of `host`, what the system cannot take back: all but weights in their files."""
        return self.host - self.kept

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


def kept_and_mapped(shape: Shape, chosen: Chosen) -> tuple[float, float]:
    """(bytes of weights that stay in their files, bytes of files that are mapped at once beside copies of their weights).

    Weights are copied where they are converted, or experts stacked, out of files that are all mapped meanwhile, and where
    `must_move` says so, out of one file at a time unless others stay in it. As the files' headers say; where no file is here,
    as the config says, as if all weights were in one file and on no cache line.
    """
    wanted = chosen.torch_dtype
    files = [list(stored_in(file)) for file in sorted(Path(source_of(shape.info.name)).glob("*.safetensors"))]

    def made_anew(one: Stored) -> bool:
        if shape.quantised:
            return False
        return one.dtype not in (None, wanted) or (shape.stacked > 0 and bool(_ONE_EXPERT.search(one.name)))

    kept = together = alone = 0
    for tensors in files or [_as_configured(shape, wanted)]:
        as_it_is = [one for one in tensors if not made_anew(one)]
        moved = sum(one.n_bytes for one in as_it_is if one.must_move)
        stay = sum(one.n_bytes for one in as_it_is) - moved
        together += sum(one.n_bytes for one in tensors) - stay - (0 if stay else moved)
        alone = max(alone, 0 if stay else moved)
        kept += stay
    kept = 0 if _converts(shape, chosen) else kept
    return min(float(kept), weights_bytes(shape, chosen)), float(together + alone)


def _as_configured(shape: Shape, wanted: torch.dtype) -> list[Stored]:
    """The weights that a config tells of, experts apart, as if they were stored without regard for cache lines."""
    said = getattr(shape.config, "dtype", None)
    dtype = said if isinstance(said, torch.dtype) else wanted
    whole = int(shape.bytes_of_weights(dtype.itemsize))
    if shape.quantised:
        return [Stored("all", 1, whole, 2, None)]
    stacked = shape.stacked * dtype.itemsize
    return [Stored("experts", 1, stacked, 3, dtype), Stored("others", 1, whole - stacked, 2, dtype)]


def loading_bytes(shape: Shape, chosen: Chosen) -> float:
    """Weights, where HookedTransformer converts them twice: its output layer is never tied."""
    weights = weights_bytes(shape, chosen)
    if not _converts(shape, chosen):
        return weights
    tied = shape.config.get_text_config().tie_word_embeddings
    return 2 * weights + tied * shape.info.d_vocab * shape.info.d_model * chosen.bytes_each


def _converts(shape: Shape, chosen: Chosen) -> bool:
    """Whether weights are converted for a HookedTransformer."""
    small = weights_bytes(shape, chosen) <= CONVERTED_AT_MOST
    return chosen.backend == "hooked_transformer" or (chosen.backend == "auto" and has_hooked_transformer() and small)


def recordings_bytes(info: ModelInfo, chosen: Chosen, *, problems: int, length: int, changed: int) -> float:
    """Two runs with all that a replay of the last `changed` of `length` positions needs."""
    kept = changed * (info.d_model + 2 * info.n_heads * info.d_head)
    kept += length * 2 * info.n_key_value_heads * info.d_head
    return 2.0 * problems * info.n_layers * (kept * chosen.bytes_each + changed * length)


def pass_bytes(info: ModelInfo, chosen: Chosen, *, rows: int, changed: int, length: int, read: int) -> float:
    """One pass of so many rows: the widest layer's numbers, its attention, logits that are read, W_U's block in float32."""
    wide = 6 * info.d_model + 3 * (info.d_mlp or 4 * info.d_model) + 2 * info.n_heads * info.d_head
    keys = length * 4 * info.n_heads * info.d_head
    block = 4 * min(BLOCK, info.d_vocab * info.d_model) if chosen.bytes_each < 4 else 0
    return float(rows * (changed * wide + keys) * chosen.bytes_each + 3 * rows * read * info.d_vocab * 4 + block)


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
