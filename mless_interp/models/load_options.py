"""The options of `load_model`, and what a model's folder must hold."""

import functools
import json
from dataclasses import dataclass
from pathlib import Path

import torch

from .info import Foreign, ModelError

BACKENDS = ("auto", "hooked_transformer", "bridge", "nnsight")
DTYPES = ("float32", "float64", "bfloat16", "float16")
HOSTED = "remote=True takes a hub id, whose weights lie elsewhere"


@dataclass(frozen=True)
class Loading:
    """The options of `load_model`, checked; `ValueError` for those that do not go together."""

    backend: str = "auto"
    dtype: str | torch.dtype = "float32"
    device: str | None = None
    device_map: Foreign = None
    max_memory: dict[int | str, int | str] | None = None
    offload_folder: str | Path | None = None
    quantization_config: object = None
    attn_implementation: str = "eager"
    tf32: bool = True
    trust_remote_code: bool = False
    remote: bool | str = False

    def __post_init__(self) -> None:
        backend, spread, split = self.asked, self.device_map, self.splits
        bounded = self.max_memory is not None or self.offload_folder is not None
        on_disk = isinstance(spread, dict) and "disk" in spread.values()
        placed = split or self.device is not None
        wrong = {
            f"unknown backend {backend!r}; choose one of {', '.join(BACKENDS)}": backend not in BACKENDS,
            f"unknown dtype {self.dtype!r}; choose one of {', '.join(DTYPES)}": self._dtype not in DTYPES,
            'remote must be False, True or "local"': self.remote not in (False, True, "local"),
            f"{'remote' if self.remote else 'attn_implementation'} needs backend='nnsight', got {backend!r}": (
                self._traced and backend != "nnsight"
            ),
            "device_map and quantization_config need backend='nnsight' or 'bridge'": (
                split and backend == "hooked_transformer"
            ),
            "max_memory and offload_folder bound a map: give device_map='auto' too": bounded and spread is None,
            "a bridge reads weights itself, so none may lie on the disk": on_disk and backend == "bridge",
            "give device or device_map, not both": None not in (self.device, spread),
            f"{HOSTED}: it takes no device, device_map or quantisation": self.remote is True and placed,
        }
        for reason, holds in wrong.items():
            if holds:
                raise ValueError(reason)

    @property
    def asked(self) -> str:
        """The backend asked for; nnsight for "auto" where only it will do."""
        return "nnsight" if self.backend == "auto" and (self.device_map is not None or self._traced) else self.backend

    @property
    def splits(self) -> bool:
        """True where weights are spread or quantised."""
        return self.device_map is not None or self.quantization_config is not None

    @property
    def _traced(self) -> bool:
        return bool(self.remote) or self.attn_implementation != "eager"

    @property
    def _dtype(self) -> str:
        return str(self.dtype).removeprefix("torch.")

    @property
    def precision(self) -> Foreign:
        return getattr(torch, self._dtype)

    @functools.cached_property
    def place(self) -> str:
        """The device asked for, or the first GPU if there is one, else the CPU; `ModelError` for one that is not here."""
        if self.device is None:
            return "cuda" if torch.cuda.is_available() else "cpu"
        try:
            torch.empty(1, device=self.device).tolist()
        except (RuntimeError, AssertionError, ImportError) as error:
            known = " or ".join(["cpu", *(f"cuda:{gpu}" for gpu in range(torch.cuda.device_count()))])
            why = first_line(error)
            raise ModelError(f"there is no device {self.device!r} here ({why}); choose {known}") from error
        return self.device


WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
ADAPTER = "adapter_config.json"  # what PEFT saves; in the folder of a model its adapter is loaded with it
TOKENIZERS = (
    "tokenizer.json tokenizer.model vocab.json vocab.txt spiece.model sentencepiece.bpe.model tekken.json".split()
)
"""Any of these holds a vocabulary."""


def document(folder: Path, name: str) -> dict[str, Foreign]:
    """Read a JSON object of the folder."""
    path = folder / name
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(f"{path} is missing or damaged, it holds no JSON ({error}): get the file again") from error
    if not isinstance(found, dict):
        raise ModelError(f"{path} is damaged: expected a JSON object, got a {type(found).__name__}; get the file again")
    return found


def check_index(index: Path) -> None:
    """Raise `ModelError` where an index of split weights names a file that is no safetensors, which would be unpickled."""
    named = document(index.parent, index.name).get("weight_map", {}).values()
    others = [file for file in named if not str(file).endswith(".safetensors")]
    if others:
        raise ModelError(f"{index} names {others[0]!r}: weights are read from safetensors only, as others can run code")


def check_tokenizer(folder: Path) -> None:
    """Raise `ModelError` for a folder that holds no vocabulary: some tokenizers would be made up without one."""
    if not any((folder / name).exists() for name in TOKENIZERS) and not any(folder.glob("*.tiktoken")):
        raise ModelError(
            f"{str(folder)!r} holds no tokenizer (none of {', '.join(TOKENIZERS)}): put the files there that "
            "tokenizer.save_pretrained writes"
        )


def first_line(error: BaseException) -> str:
    """Say on one line what an error of another library says."""
    text = f"it has no {error}" if isinstance(error, KeyError) else str(error)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    said = next((at for at, line in enumerate(lines) if not line.endswith(":")), len(lines) - 1)  # "x failed:", and why
    return " ".join(lines[: said + 1]) or type(error).__name__
