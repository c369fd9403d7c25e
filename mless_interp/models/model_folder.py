"""How a model is loaded, and its folder, looked at for what transformers would not say."""

import functools
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from .info import ModelError

BACKENDS = ("auto", "hooked_transformer", "bridge", "nnsight")
DTYPES = ("float32", "float64", "bfloat16", "float16")
HOSTED = "remote=True takes a hub id, whose weights lie elsewhere"
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
ADAPTER = "adapter_config.json"
"""What PEFT saves; in the folder of a model its adapter is loaded with it."""
TOKENIZERS = (
    "tokenizer.json tokenizer.model vocab.json vocab.txt spiece.model sentencepiece.bpe.model tekken.json".split()
)
"""Any of these holds a vocabulary."""


def document(folder: Path, name: str) -> dict[str, Any]:
    """A JSON object of the folder."""
    path = folder / name
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(f"{path} is missing or damaged, it holds no JSON ({error}): get the file again") from error
    if not isinstance(found, dict):
        raise ModelError(f"{path} is damaged: expected a JSON object, got a {type(found).__name__}; get the file again")
    return found


def check_index(index: Path) -> None:
    """`ModelError` where the index of split weights names a file that is no safetensors: transformers would unpickle it."""
    named = document(index.parent, index.name).get("weight_map", {}).values()
    others = [file for file in named if not str(file).endswith(".safetensors")]
    if others:
        raise ModelError(f"{index} names {others[0]!r}: weights are read from safetensors only, as others can run code")


def check_tokenizer(folder: Path) -> None:
    """`ModelError` for a folder that holds no vocabulary: some tokenizers would be made up without one."""
    if any((folder / name).exists() for name in TOKENIZERS) or any(folder.glob("*.tiktoken")):
        return
    config = folder / "tokenizer_config.json"
    if not config.exists() or "auto_map" not in document(folder, config.name):
        raise ModelError(
            f"{str(folder)!r} holds no tokenizer (none of {', '.join(TOKENIZERS)}): put the model's tokenizer files there, "
            "as tokenizer.save_pretrained writes them"
        )


def first_line(error: BaseException) -> str:
    """What an error of another library says, on one line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    said = next((at for at, line in enumerate(lines) if not line.endswith(":")), len(lines) - 1)  # "x failed:", and why
    return " ".join(lines[: said + 1]) or type(error).__name__


CACHE_LINE = 64
"""Bytes; what PyTorch allocates lies on one."""
ANYWHERE = frozenset((torch.bfloat16, torch.float16))
"""Dtypes whose products on a CPU have the same bits wherever a weight lies. Those of float32 with a single row, and many of
float64, have not (MKL)."""


def must_move(dtype: torch.dtype | None, n_axes: int, address: int) -> bool:
    """Return whether a weight at this address is to be copied, so that last bits do not depend on where a file has it.

    Of stacked experts, of three axes, too: transformers chooses the kernel by their address where torch is older than 2.11.
    """
    return (dtype not in ANYWHERE or n_axes > 2) and address % CACHE_LINE != 0


@dataclass(frozen=True)
class Loading:
    """The options of `load_model`, checked; `ValueError` for those that do not go together."""

    backend: str = "auto"
    dtype: str | torch.dtype = "float32"
    device: str | None = None
    device_map: Any = None
    max_memory: dict[int | str, int | str] | None = None
    offload_folder: str | Path | None = None
    quantization_config: Any = None
    attn_implementation: str = "eager"
    tf32: bool = True
    trust_remote_code: bool = False
    remote: bool | str = False
    remote_timeout: float = 600.0

    def __post_init__(self) -> None:
        backend, device, remote, spread = self.asked, self.device, self.remote, self.device_map
        bounded = self.max_memory is not None or self.offload_folder is not None
        split, traced, own = self.splits, self._traced, BACKENDS[-1]
        on_disk = isinstance(spread, dict) and "disk" in spread.values()
        wrong = (
            (backend not in BACKENDS, f"unknown backend {backend!r}; choose one of {', '.join(BACKENDS)}"),
            (self._dtype not in DTYPES, f"unknown dtype {self.dtype!r}; choose one of {', '.join(DTYPES)}"),
            (traced and backend != own, f"remote and attn_implementation need backend='nnsight', got {backend!r}"),
            (split and backend == BACKENDS[1], "device_map and quantization_config need backend='nnsight' or 'bridge'"),
            (bounded and spread is None, "max_memory and offload_folder bound a map: give device_map='auto' too"),
            (on_disk and backend == "bridge", "a bridge reads weights itself, so none may lie on the disk"),
            (None not in (device, spread), f"give device or device_map, not both (got {device!r} and {spread!r})"),
            (remote not in (False, True, "local"), f'remote must be False, True or "local", got {remote!r}'),
            (not self.remote_timeout > 0, f"remote_timeout must be above 0 seconds, got {self.remote_timeout}"),
            (
                remote is True and (split or device is not None),
                f"{HOSTED}: it takes no device, device_map or quantisation",
            ),
        )
        for holds, reason in wrong:
            if holds:
                raise ValueError(reason)

    @property
    def asked(self) -> str:
        """The backend asked for; nnsight for "auto" where only it will do."""
        return "nnsight" if self.backend == "auto" and (self.device_map is not None or self._traced) else self.backend

    @property
    def splits(self) -> bool:
        """Whether weights are spread or quantised."""
        return self.device_map is not None or self.quantization_config is not None

    @property
    def _traced(self) -> bool:
        return bool(self.remote) or self.attn_implementation != "eager"

    @property
    def _dtype(self) -> str:
        return str(self.dtype).removeprefix("torch.")

    @property
    def precision(self) -> torch.dtype:
        found: torch.dtype = getattr(torch, self._dtype)
        return found

    @functools.cached_property
    def place(self) -> str:
        """The device asked for, or the first GPU if there is one, else the CPU; `ModelError` for one that is not here."""
        if self.device is None:
            return "cuda" if torch.cuda.is_available() else "cpu"
        try:
            if torch.empty(0, device=self.device).is_meta:
                raise RuntimeError("it holds no numbers")
        except (RuntimeError, AssertionError, ImportError) as error:
            first = first_line(error).partition(". ")[0]
            there = " or ".join(["cpu", *(f"cuda:{gpu}" for gpu in range(torch.cuda.device_count()))])
            raise ModelError(
                f"there is no device {self.device!r} here ({first}); choose {there} (or None: the first GPU, else the CPU)"
            ) from error
        return self.device
