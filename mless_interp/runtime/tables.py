"""Tables as results give them: data frames that are safe to print, and to open as .csv in a spreadsheet."""

import csv
import re
from pathlib import Path
from typing import Any

import pandas as pd

from .text_safety import visible

_FORMULA = re.compile("'*[=+\\-@\t\r\n＝＋－＠]")
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", re.IGNORECASE)


class Table(pd.DataFrame):
    """A data frame whose texts never act: printed, control characters show as their codes; in a .csv no text is a formula.

    Everything else is pandas'. Numbers stay numbers; a text that a spreadsheet would take for a formula gets a `'` in front in
    the file, and `read_csv` takes it away again.
    """

    @property
    def _constructor(self) -> type["Table"]:
        return Table

    def __repr__(self) -> str:
        return visible(super().__repr__())

    def to_csv(self, path_or_buf: Any = None, **options: Any) -> Any:
        """As pandas writes it, the texts in cells, index and heading with `'` before what would be a formula."""
        safe = pd.DataFrame(self, copy=True)
        for place, kind in enumerate(safe.dtypes):
            if not pd.api.types.is_numeric_dtype(kind) and not pd.api.types.is_datetime64_any_dtype(kind):
                safe.isetitem(place, safe.iloc[:, place].astype(object).map(neutral))
        safe.columns, safe.index = safe.columns.map(neutral), safe.index.map(neutral)
        if "\r" in "".join(cell for cell in safe.to_numpy().ravel() if isinstance(cell, str)):
            options.setdefault("quoting", csv.QUOTE_NONNUMERIC)  # a bare one would begin a row
        return safe.to_csv(path_or_buf, **options)


def neutral(cell: Any) -> Any:
    """A cell of a .csv file: a text that begins like a formula (and is no number) with `'` in front, all else as it is.

    >>> neutral("=1+1"), neutral("-0.5"), neutral("'=x"), neutral(-0.5)
    ("'=1+1", '-0.5', "''=x", -0.5)
    """
    if isinstance(cell, tuple):
        return tuple(map(neutral, cell))
    if not isinstance(cell, str) or not _FORMULA.match(cell) or _NUMBER.fullmatch(cell):
        return cell
    return f"'{cell}"


def original(cell: Any) -> Any:
    """What `neutral` was given.

    >>> original("'=1+1"), original("'quoted'")
    ('=1+1', "'quoted'")
    """
    return cell[1:] if isinstance(cell, str) and cell.startswith("'") and _FORMULA.match(cell) else cell


def read_csv(path: str | Path, **options: Any) -> Table:
    """A table that `Table.to_csv` wrote, with its texts as they were; only an empty cell is undefined.

    Columns of texts that look like numbers come back as numbers, as from every .csv: name them in `dtype={"problem": str}`.
    """
    found = pd.read_csv(path, **{"keep_default_na": False, "na_values": [""]} | options)
    for place, kind in enumerate(found.dtypes):
        if not pd.api.types.is_numeric_dtype(kind):
            found.isetitem(place, found.iloc[:, place].map(original))
    return Table(found.rename(columns=original))
