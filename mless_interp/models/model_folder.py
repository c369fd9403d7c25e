"""A saved model's folder, looked at before anything long: only safetensors, only inside it, whole, with its tokenizer."""

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from transformers import AutoConfig, AutoModelForCausalLM

from .info import ModelError

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
ADAPTER, ADAPTER_WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
"""What PEFT saves; in the folder of a model they are loaded with it."""
TOKENIZERS = (
    "tokenizer.json tokenizer.model vocab.json vocab.txt spiece.model sentencepiece.bpe.model tekken.json".split()
)
"""Any of these holds a vocabulary."""
DOCUMENTS = (
    "config.json tokenizer.json tokenizer_config.json special_tokens_map.json added_tokens.json generation_config.json"
).split()
_WHOLE = re.compile("BOOL|[IU][0-9]+$")
"""What safetensors calls types of whole numbers."""
WEIGHTS_PER_BYTE = 4
"""Quantised to 4 bits there are 2; no model has more than this for a byte of its files."""


def check_saved(folder: Path, *, trust_remote_code: bool = False) -> None:
    """`ModelError`, naming the file and what to do, for a folder that holds no whole model that may be read."""
    for name in DOCUMENTS:
        if (folder / name).exists():
            document(folder, name)
    if (folder / ADAPTER).exists():
        document(folder, ADAPTER)
        inside(folder, ADAPTER_WEIGHTS)
    files = _weight_files(folder)
    n_tensors = _count_tensors(folder, files, quantised="quantization_config" in document(folder, "config.json"))
    check_tokenizer(folder)
    n_bytes = sum(path.stat().st_size for path in files)
    _check_config(folder, n_tensors, n_bytes, trust_remote_code=trust_remote_code)


def document(folder: Path, name: str) -> dict[str, Any]:
    """A JSON object of the folder."""
    path = inside(folder, name)
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(f"{path} is damaged, it holds no JSON ({error}): get the file again") from error
    if not isinstance(found, dict):
        raise ModelError(f"{path} is damaged: expected a JSON object, got a {type(found).__name__}; get the file again")
    return found


def inside(folder: Path, name: str) -> Path:
    """A file of the folder; `ModelError` for one outside, but for the blobs that a hub's cache links to, and where none is."""
    path = folder / name
    base, real = folder.resolve(), path.resolve()
    blobs = base.parent.parent / "blobs" if base.parent.name == "snapshots" else base
    plain = not Path(name).is_absolute() and ".." not in Path(name).parts
    if not plain or not (real.is_relative_to(base) or real.is_relative_to(blobs)):
        raise ModelError(f"{str(folder)!r} names the file {name!r}, which lies outside of it: copy it into the folder")
    if not real.is_file():
        raise ModelError(f"{str(folder)!r} lacks the file {name!r}: get the whole folder again")
    return path


def named_shards(index: Any, where: str) -> list[str]:
    """The files that the index of split weights names; `ModelError` for any that is not a safetensors file by its side."""
    named = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(named, dict) or not named or not all(isinstance(name, str) for name in named.values()):
        raise ModelError(f"{where} is damaged: expected a weight_map from weights to files; get the file again")
    shards = sorted(set(named.values()))
    for shard in shards:
        if not shard.endswith(".safetensors"):
            raise ModelError(f"{where} names {shard!r}: weights are read from safetensors only, as others can run code")
        if Path(shard).is_absolute() or ".." in Path(shard).parts:
            raise ModelError(f"{where} names {shard!r}, which lies outside of its folder: copy it into the folder")
    return shards


def _weight_files(folder: Path) -> list[Path]:
    if (folder / WEIGHTS).exists() or (folder / WEIGHTS).is_symlink():
        return [inside(folder, WEIGHTS)]
    if (folder / INDEX).exists():
        shards = named_shards(document(folder, INDEX), str(folder / INDEX))
        return [inside(folder, shard) for shard in shards]
    pickled = sorted(path.name for path in folder.iterdir() if path.suffix in (".bin", ".pt", ".pth", ".ckpt"))
    if pickled:
        raise ModelError(
            f"{str(folder)!r} has its weights as {pickled[0]} only, which can run code: weights are read from safetensors "
            "only; save the model once more with save_pretrained, or get its safetensors"
        )
    raise ModelError(f"{str(folder)!r} holds no weights: neither {WEIGHTS} nor {INDEX}; get the whole folder again")


def _count_tensors(folder: Path, files: Iterable[Path], *, quantised: bool) -> int:
    """How many tensors these files hold, each once; opening a file holds its header against its length.

    Whole numbers in the place of weights are refused, unless the config says that they are quantised.
    """
    found: set[str] = set()
    for path in files:
        try:
            with safe_open(path, framework="pt") as opened:
                names = set(opened.keys())
                whole = [name for name in sorted(names) if _WHOLE.match(opened.get_slice(name).get_dtype())]
        except (SafetensorError, OSError) as error:
            raise ModelError(f"{path} is damaged or was cut off ({error}): get the file again") from error
        whole = [name for name in whole if name.endswith(".weight") and not quantised]
        if whole:
            raise ModelError(
                f"{path} holds whole numbers where weights are expected, first {whole[0]}, and config.json has no "
                "quantization_config that says what they mean: get the whole folder again"
            )
        found |= names
    return len(found)


def check_tokenizer(folder: Path) -> None:
    """`ModelError` for a folder that holds no vocabulary."""
    here = [name for name in TOKENIZERS if (folder / name).exists()] or [
        path.name for path in folder.glob("*.tiktoken")
    ]
    if not here and "auto_map" not in (
        document(folder, "tokenizer_config.json") if (folder / "tokenizer_config.json").exists() else {}
    ):
        raise ModelError(
            f"{str(folder)!r} holds no tokenizer (none of {', '.join(TOKENIZERS)}): put the model's tokenizer files there, "
            "as tokenizer.save_pretrained writes them"
        )


def _check_config(folder: Path, n_tensors: int, n_bytes: int, *, trust_remote_code: bool) -> None:
    path = folder / "config.json"
    try:
        whole = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=trust_remote_code)
    except Exception as error:
        raise ModelError(f"{path} cannot be read by this version of transformers: {first_line(error)}") from error
    n_layers = getattr(whole.get_text_config(), "num_hidden_layers", None)
    if not isinstance(n_layers, int):
        raise ModelError(f"{path} is damaged: num_hidden_layers must be a whole number, got {n_layers!r}")
    absurd = f"num_hidden_layers is {n_layers}" if n_layers > n_tensors else ""
    if not absurd:
        try:
            with torch.device("meta"):
                made = AutoModelForCausalLM.from_config(whole, trust_remote_code=trust_remote_code)
        except Exception as error:
            raise ModelError(f"no model can be made as {path} says: {first_line(error)}") from error
        n_weights = sum(weight.numel() for weight in made.parameters())
        absurd = f"it describes {n_weights:,} weights" if n_weights > n_bytes * WEIGHTS_PER_BYTE else ""
    if absurd:
        raise ModelError(
            f"{path} does not belong to the weights beside it: {absurd}, and they are {n_tensors} tensors in {n_bytes:,} "
            "bytes; get the whole folder again"
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
