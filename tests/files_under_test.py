"""What stands in a folder."""

from pathlib import Path

from safetensors.torch import save_file
from torch import Tensor


def contents(folder: Path) -> dict[str, str]:
    """Every file under a folder by its path, hidden ones and leftovers too, without the manifests."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file() and path.name != "manifest.json")
    return {str(path.relative_to(folder)): path.read_bytes().decode("utf-8", "surrogateescape") for path in files}


def everything_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def save_at(weights: dict[str, Tensor], file: Path, offset: int) -> None:
    """Weights in a file of safetensors whose data begin so many bytes (a multiple of 8) behind a cache line."""
    for more in range(0, 64, 8):
        save_file(weights, file, {"format": "pt", "more": "x" * more})
        with file.open("rb") as opened:
            if (8 + int.from_bytes(opened.read(8), "little")) % 64 == offset:
                return
    raise AssertionError(f"no header of {file} ends there: {offset}")
