"""A saved model's folder, looked at for what transformers would not say: only safetensors, no codes, a tokenizer."""

import json
import re
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

from .info import ModelError

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
ADAPTER = "adapter_config.json"
"""What PEFT saves; in the folder of a model its adapter is loaded with it."""
TOKENIZERS = (
    "tokenizer.json tokenizer.model vocab.json vocab.txt spiece.model sentencepiece.bpe.model tekken.json".split()
)
"""Any of these holds a vocabulary."""
_WHOLE = re.compile("BOOL|[IU][0-9]+$")
"""What safetensors calls types of whole numbers."""


def check_saved(folder: Path) -> None:
    """`ModelError`, naming the file, for a folder whose weights may not be read or whose tokenizer is missing."""
    check_tokenizer(folder)
    if (folder / INDEX).exists():
        check_index(document(folder, INDEX), str(folder / INDEX))
    if "quantization_config" in document(folder, "config.json"):
        return
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, framework="pt") as opened:
            names = [name for name in sorted(opened.keys()) if name.endswith(".weight")]
            whole = [name for name in names if _WHOLE.match(opened.get_slice(name).get_dtype())]
        if whole:
            raise ModelError(
                f"{path} holds whole numbers where weights are expected, first {whole[0]}, and config.json has no "
                "quantization_config that says what they mean: get the whole folder again"
            )


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


def check_index(index: dict[str, Any], where: str) -> None:
    """`ModelError` where the index of split weights names a file that is no safetensors."""
    others = [name for name in index.get("weight_map", {}).values() if not str(name).endswith(".safetensors")]
    if others:
        raise ModelError(f"{where} names {others[0]!r}: weights are read from safetensors only, as others can run code")


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
