"""Weights that stay in their memory-mapped files: which may, and where a file's header says that each lies."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from .info import ModelError

CACHE_LINE = 64
"""Bytes; what PyTorch allocates lies on one."""
ANYWHERE = frozenset((torch.bfloat16, torch.float16))
"""Dtypes whose products on a CPU have the same bits wherever a weight lies. Those of float32 with a single row, and many of
float64, have not (MKL)."""
_DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
"""By their names in safetensors; of other types no weight is converted."""
_LENGTH, LONGEST = 8, 100_000_000
"""Bytes that say how long the header is that follows them, and of the longest one that the format allows."""


def must_move(dtype: torch.dtype | None, n_axes: int, address: int) -> bool:
    """Whether a weight that lies at this address is to be copied, so that last bits do not depend on where a file has it.

    Of stacked experts, of three axes, too: transformers chooses the kernel by their address where torch is older than 2.11.
    """
    return (dtype not in ANYWHERE or n_axes > 2) and address % CACHE_LINE != 0


@dataclass(frozen=True)
class Stored:
    """A tensor of a safetensors file: its name, where it begins, bytes, axes, dtype (None: no float of 16 bits or more)."""

    name: str
    start: int
    n_bytes: int
    n_axes: int
    dtype: torch.dtype | None

    @property
    def must_move(self) -> bool:
        """Whether it is to be copied; a file is mapped at the border of a page, which is one of a cache line."""
        return must_move(self.dtype, self.n_axes, self.start)


def stored_in(file: Path) -> Iterator[Stored]:
    """What the header of a safetensors file says of its tensors; `ModelError` where it cannot be read.

    Source: the format's own description (https://github.com/huggingface/safetensors#format); its library tells no offsets.
    """
    try:
        with file.open("rb") as opened:
            length = int.from_bytes(opened.read(_LENGTH), "little")
            if length > min(LONGEST, file.stat().st_size - _LENGTH):
                raise ValueError(f"a header of {length:,} bytes in a file of {file.stat().st_size:,}")
            header = json.loads(opened.read(length))
        for name, said in header.items():
            if name != "__metadata__":
                start, stop = said["data_offsets"]
                dtype = _DTYPES.get(said["dtype"])
                yield Stored(name, _LENGTH + length + start, stop - start, len(said["shape"]), dtype)
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise ModelError(f"{file} is damaged or was cut off ({error}): get the file again") from error
