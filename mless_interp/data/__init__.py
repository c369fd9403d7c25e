"""Bundled data: the demo model, word lists, and what the paper prints (`paper/`)."""

import csv
import tomllib
from pathlib import Path
from typing import Any

_PAPER = Path(__file__).parent / "paper"


def paper_table(name: str) -> list[dict[str, str]]:
    """Return the rows of `paper/NAME.csv`."""
    with open(_PAPER / f"{name}.csv", encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def paper_entries(name: str) -> dict[str, Any]:
    """Return what `paper/NAME.toml` holds."""
    return tomllib.loads((_PAPER / f"{name}.toml").read_text(encoding="utf-8"))
