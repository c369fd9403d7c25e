"""What stands in a folder."""

from pathlib import Path


def contents(folder: Path) -> dict[str, str]:
    """Every file under a folder by its path, hidden ones and leftovers too, without the manifests."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file() and path.name != "manifest.json")
    return {str(path.relative_to(folder)): path.read_bytes().decode("utf-8", "surrogateescape") for path in files}


def everything_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())
