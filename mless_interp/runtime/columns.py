"""Columns of results, declared once for prints, pages and pictures, and the tables made of them: as text, as .csv."""

import csv
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape
from itertools import accumulate, chain
from typing import Any, ClassVar

import numpy as np
import pandas as pd

from ..core.arguments import cells_of
from .text_safety import WIDTH, one_line, visible

_FORMULA = re.compile("'*[=+\\-@\t\r\n＝＋－＠]")
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", re.IGNORECASE)
AT_ONCE = 6  # columns that a table shows before all are asked for
LONGEST_CELL = 52  # letters of a text in a printed table, at most
ROUNDING = 1e-12  # smaller numbers are what is left of float64's rounding: a cell shows 0
MISSING = "–"  # what a cell shows where a number is undefined


@dataclass(frozen=True)
class Column:
    """A column of a result's tables: its name there, its heading, what it is, and its role.

    "share" is written in percent, "rate" with a decimal, "points" in percentage points, "p" with two digits, "level" (no
    change) without a plus sign, "count" (ranks too) without decimals where all are whole, "of NAME" as a count out of the
    column NAME; "verdict" stands second, "later" behind the others, "beside" in a print where the column before it does.
    """

    name: str
    heading: str = ""
    note: str = ""
    role: str = ""


ENDS = {
    "_null": ", of uniform attention on the same prompts",
    "_untrained": ", of untrained twins of the model",
    "_n": "; problems where it is defined",
    "_infinite": "; problems where it is infinite",
    "_control": ", under the control",
}
"""What the ends of a metric's further columns mean."""


def columns_of(text: str) -> tuple[Column, ...]:
    """Return columns of a result, a line each: `name | heading | role | note`."""
    return tuple(Column(name, heading, note, role) for name, heading, role, note in cells_of(text))


COMMON = columns_of("""
    label | head | | layer and query head, zero-based
    paper_label | in the paper's counting | later | one-based
    median | median | | over problems
    n_undefined | undefined | | problems where it is not defined
    contrast | contrast | later | the two runs that are compared
    metric | metric | | what is measured, in the unit of its row
    unit | unit | later | of the values in this row
    claim | claim | | what the paper says
    verdict | verdict | verdict | agrees, disagrees, or cannot tell: from the interval against the null, over problems
    reason | reason | | why nothing can be told, or the rank that the verdict rests on
    rank | rank | count | 1 is the largest; ties share the first rank
    condition | condition | | which run: without insertion, with it, ...
    n_tokens | tokens | count | number of inserted tokens
    total | total effect | | with the insertion - without it, median over problems
    treatment | treatment | | what was done to the problem before it was answered
    p | p | p | before correction for several tests
    k | problems | of n | problems in which the effect exceeds the smallest effect
    p_corrected | p, corrected | p | corrected for all tests made together (Holm)
    flag | remark | later | what is unusual about the interval
    set | set | | which heads together
    n | n | later | problems where it is defined
    n_heads | number of heads | | how many heads
    heads | heads | | which heads, zero-based
    side | side | | which end of the tokens: promoted or suppressed, preferred or avoided; of a set: sufficient or necessary
    layer | layer | later | zero-based
    head | head | later | query head, zero-based
""")
"""What columns mean that many results have; the others are declared by the results that have them."""
KNOWN = {column.name: column for column in COMMON}
REMARKS = ("flag", "reason", "test", "unit")  # texts that tell of a row, and not which it is


def column_of(name: str, known: Mapping[str, Column] = KNOWN) -> Column:
    """Return the declared column of this name; else one with its name for a heading and, of a metric's, what its end means."""
    if name in known:
        return known[name]
    note = next((known[of].note + means for end, means in ENDS.items() if (of := name.removesuffix(end)) in known), "")
    role = "later" if name.endswith(("_null", "_untrained", "_n", "_infinite")) else ""
    role = "p" if name.startswith("p_") or name.endswith("_p") else f"of {name[:-2]}_n" if name.endswith("_k") else role
    return Column(name, name.replace("_", " "), note, role)


def ends_of(column: str) -> tuple[str, str]:
    """Return the columns with the limits of a column's interval."""
    return f"{column}_ci_low", f"{column}_ci_high"


@dataclass(frozen=True)
class Cell:
    """What a cell shows, the limits of its interval, and what it sorts by ("" = undefined, which always comes last)."""

    text: str = MISSING
    key: str = ""
    limits: str = ""

    def __str__(self) -> str:
        return f"{self.text} {self.limits}".rstrip()


@dataclass(frozen=True)
class TextTable:
    """Rows of cells under columns that sort; those after the first `at_once` are shown when all are asked for."""

    kind: ClassVar[str] = "table"
    caption: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    at_once: int = AT_ONCE

    @classmethod
    def of(
        cls,
        frame: pd.DataFrame,
        caption: str,
        *,
        columns: Sequence[str] | Mapping[str, str] | None = None,
        known: Mapping[str, Column] = KNOWN,
        interval: str = "95 %",
    ) -> "TextTable":
        """Make the table of a data frame: its `columns` (default: all), in this order, named by a mapping or as `known`.

        `x` shows its interval `x_ci_low`, `x_ci_high` in the same cell; counts say of how many. Texts that tell rows apart
        stand first, then verdicts; of many columns those that matter less stand last, a p that is also corrected among them.
        """
        frame = frame.rename(columns=str)
        names = dict(columns) if isinstance(columns, Mapping) else dict.fromkeys(columns or frame.columns, "")
        if unknown := [name for name in names if name not in frame.columns]:
            raise ValueError(f"no column {unknown[0]!r} to show; there are {', '.join(frame.columns)}")
        means = {name: column_of(name, known) for name in names}
        limits = {name: ends_of(name) for name in names if set(ends_of(name)) <= set(frame)}
        merged = {each.role.removeprefix("of ") for each in means.values() if each.role.startswith("of ")}
        merged |= {*chain(*limits.values())}
        shown = [means[name] for name in names if name not in merged]

        apart = [shown[0].name]
        for each in shown[1:]:
            if frame[each.name].dtype.kind not in "fiub" and each.role != "verdict" and each.name not in REMARKS:
                distinct = frame[[*apart, each.name]].astype(str).drop_duplicates()
                apart += [each.name] * bool(distinct.duplicated(apart).any())

        def rank(column: Column) -> int:
            """Return its place: first, verdicts, others; where there are many, last those that matter less or say nothing."""
            if column.name in apart:
                return 0
            less = column.role == "later" or (column.name == "p" and "p_corrected" in names)
            if len(shown) > AT_ONCE and (less or not says(frame[column.name])):
                return 3
            return 1 if column.role == "verdict" else 2

        made, cells = [], []
        for column in sorted(shown, key=rank):
            name, role, label = column.name, column.role, names[column.name] or column.heading
            numeric, ends = frame[name].dtype.kind in "fiu", list(limits.get(name, ()))
            if ends and frame[ends].notna().any(axis=None):
                label += f" [{interval}]"
                cells.append(_numbers(frame[[name, *ends]], role))
            elif numeric and role.startswith("of ") and (of := role.removeprefix("of ")) in frame.columns:
                cells.append([_count(k, n) for k, n in zip(frame[name], frame[of], strict=True)])
            else:
                cells.append(_numbers(frame[[name]], role) if numeric else [*map(_other, frame[name].tolist())])
            made.append(replace(column, heading=label, note=column.note or label, role=role if numeric else "text"))
        at_once = min(AT_ONCE, sum(rank(each) < 3 for each in shown))
        return cls(caption, tuple(made), tuple(zip(*cells, strict=True)), at_once)

    def sentence(self, row: int) -> str:
        """Return a row in words: every column's heading with its value, left to right."""
        return "; ".join(f"{column.heading} {cell}" for column, cell in zip(self.columns, self.rows[row], strict=True))

    def lines(self, width: int = WIDTH) -> list[str]:
        """Return the table as a print shows it: as many columns as go into one line."""
        texts = []
        for at, column in enumerate(self.columns):
            cells = [one_line(str(row[at])) for row in self.rows]
            cut = [text if len(text) <= LONGEST_CELL else f"{text[: LONGEST_CELL - 1]}…" for text in cells]
            wide = max(map(len, (heading := one_line(column.heading), *cut)))
            texts.append([f"{text:{'<' if column.role == 'text' else '>'}{wide}}" for text in (heading, *cut)])
        fit = max(1, sum(end <= width for end in accumulate(len(column[0]) + 2 for column in texts)))
        fit -= any(column.role == "beside" for column in self.columns[fit : fit + 1])
        return ["  ".join(row[:fit]).rstrip() for row in zip(*texts, strict=True)]

    def html(self) -> str:
        """Return the same for a notebook, all columns, every text escaped; a wide table scrolls in a frame of its own."""
        head = "".join(f'<th title="{escape(each.note)}">{escape(visible(each.heading))}</th>' for each in self.columns)
        rows = ("".join(f"<td>{escape(one_line(str(cell)))}</td>" for cell in row) for row in self.rows)
        body = "".join(f"<tr>{row}</tr>" for row in rows)
        return f'<div style="overflow-x:auto"><table><tr>{head}</tr>{body}</table></div>'


def says(column: pd.Series) -> bool:
    """Return whether any cell of a column says something."""
    return bool((column.notna() & (column.astype(object) != "")).any())


def _numbers(frame: pd.DataFrame, role: str) -> list[Cell]:
    """Return the numbers of one column, and the limits of their intervals in two more, signed if any is negative, with equally
    many decimals; where the largest is 100 or more, with four digits of each."""
    rows = frame.to_numpy(dtype=float, na_value=np.nan)
    scale, unit = 100 if role in ("share", "rate", "points") else 1, " %" if role in ("share", "rate") else ""
    known = scale * rows[~np.isnan(rows)]
    signed = role == "points" or (role not in ("share", "rate", "level") and bool((known < 0).any()))
    whole = frame.shape[1] == 1 and frame.dtypes.iloc[0].kind in "iu"
    decimals = {"points": 1, "rate": 1, "share": 0}.get(role, 0 if whole else 4)
    if role == "count":
        decimals = int((known % 1 != 0).any())  # of infinity, too
    large = decimals == 4 and _largest(known) >= 100

    def number(value: float, decimals: int) -> str:
        return f"{value:.2g}" if role == "p" else _number(scale * value, decimals, signed)

    cells = []
    for value, *pair in rows.tolist():
        row = max(0, 4 - len(str(int(_largest(np.array([value, *pair])))))) if large else decimals
        limits = f"[{', '.join(number(end, row) for end in pair)}]" if pair and not np.isnan(pair).any() else ""
        cell = Cell(limits=limits) if math.isnan(value) else Cell(f"{number(value, row)}{unit}", _key(value), limits)
        cells.append(cell)
    return cells


def _largest(values: np.ndarray) -> float:
    return round(float(np.abs(values[np.isfinite(values)]).max(initial=0.0)), 9)


def _count(value: Any, of: Any) -> Cell:
    return Cell() if pd.isna(value) or pd.isna(of) or not of else Cell(f"{int(value)}/{int(of)}", _key(value))


def _other(value: object) -> Cell:
    text = ("yes" if value else "no") if isinstance(value, bool) else str(value)
    return Cell() if pd.isna(value) else Cell(text, text)


def _number(value: float, decimals: int, signed: bool) -> str:
    if math.isinf(value):
        return f"{value:.0f}".replace("inf", "∞")
    value = 0.0 if abs(value) < ROUNDING else value
    plus, step = "+" if signed else "", 10.0**-decimals
    # in a column of larger numbers: its own digits
    if decimals and value != 0 and abs(value) < (0.5 if decimals > 2 else 10) * step:
        return f"{value:{plus}.{2 if decimals > 2 else 3}g}"
    return f"{abs(value):.{decimals}f}" if value == 0 else f"{value:{plus}z.{decimals}f}"


def _key(value: float | int) -> str:  # as JavaScript's Number() reads it
    return f"{float(value):.9g}".replace("inf", "Infinity")


class Table(pd.DataFrame):
    """A data frame whose texts never act: printed, control characters show as their codes; in a .csv a text that a spreadsheet
    would take for a formula gets a `'` in front. Everything else is pandas'."""

    @property
    def _constructor(self) -> type["Table"]:
        return Table

    def __repr__(self) -> str:
        return visible(super().__repr__())

    def to_csv(self, path_or_buf: object = None, **options: object) -> object:
        """Write it as pandas does, the texts in cells, index and heading with `'` before what would be a formula."""
        safe = pd.DataFrame(self).copy()
        for place, kind in enumerate(safe.dtypes):
            if not pd.api.types.is_numeric_dtype(kind) and not pd.api.types.is_datetime64_any_dtype(kind):
                safe.isetitem(place, safe.iloc[:, place].astype(object).map(neutral))
        safe.columns, safe.index = safe.columns.map(neutral), safe.index.map(neutral)
        if "\r" in "".join(cell for cell in safe.to_numpy().ravel() if isinstance(cell, str)):
            options.setdefault("quoting", csv.QUOTE_NONNUMERIC)  # a bare one would begin a row
        return safe.to_csv(path_or_buf, **options)


def neutral(cell: object) -> object:
    """Return a cell of a .csv file: a text that begins like a formula (and is no number) has `'` in front."""
    if isinstance(cell, tuple):
        return tuple(map(neutral, cell))
    if not isinstance(cell, str) or not _FORMULA.match(cell) or _NUMBER.fullmatch(cell):
        return cell
    return f"'{cell}"
