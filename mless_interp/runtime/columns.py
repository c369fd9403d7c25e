"""Columns of results as people read them: one declaration each, from which prints, pages and head maps take their words."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any, ClassVar

import pandas as pd

from .text_safety import WIDTH, one_line, visible

AT_ONCE = 6
"""Columns that a table shows before all are asked for."""
LONGEST_CELL = 52
"""Letters of a text in a printed table, at most."""
MISSING = "–"
"""What a cell shows where a number is undefined."""


@dataclass(frozen=True)
class Column:
    """A column of a result's tables: its name there, its heading, what it is, its unit, and the role that it plays.

    Roles: "share" is written in percent, "points" in percentage points, "p" with two digits, "count" (ranks too) without
    decimals where all are whole, else with one, "of NAME" as a count out of the
    column NAME; "verdict" stands right after the first column, "later" behind the others.
    """

    name: str
    heading: str = ""
    note: str = ""
    unit: str = ""
    role: str = ""


DECLARED: dict[str, Column] = {}
"""Every column that a metric, a contrast or else a result declares, by name. A result's own come first for its tables
(`Result.declared`), so what they say does not depend on what else is imported."""
ENDS = {
    "_null": ", of uniform attention on the same prompts",
    "_untrained": ", of untrained twins of the model",
    "_n": "; problems where it is defined",
    "_infinite": "; problems where it is infinite",
    "_control": ", under the control",
}
"""What the ends of a metric's further columns mean."""


def declare(*columns: Column) -> tuple[Column, ...]:
    """Make columns of metrics and contrasts known by their names, and return them."""
    DECLARED.update((column.name, column) for column in columns)
    return columns


def columns_of(text: str) -> tuple[Column, ...]:
    """Declare columns of a result, a line each: `name | heading | role | note`.

    >>> columns_of("n_twins | twins | | untrained twins of the model")[0].heading
    'twins'
    """
    parts = ([part.strip() for part in line.split("|")] for line in text.splitlines() if line.strip())
    made = tuple(Column(name, heading, note, role=role) for name, heading, role, note in parts)
    for column in made:
        DECLARED.setdefault(column.name, column)
    return made


def column_of(name: str, known: Mapping[str, Column] = DECLARED) -> Column:
    """The declared column of this name; else one with its name for a heading and, of a metric's, what its end means."""
    if name in known:
        return known[name]
    end = next((end for end in ENDS if name.endswith(end) and name.removesuffix(end) in known), "")
    metric = known.get(name.removesuffix(end)) if end else None
    role = "later" if name.endswith(("_null", "_untrained", "_n", "_infinite")) else ""
    role = "p" if name.startswith("p_") or name.endswith("_p") else f"of {name[:-2]}_n" if name.endswith("_k") else role
    return Column(name, name.replace("_", " "), f"{metric.note}{ENDS[end]}" if metric else "", role=role)


@dataclass(frozen=True)
class Cell:
    """What a cell shows, the limits of its interval, and what it sorts by ("" = undefined, which always comes last)."""

    text: str
    key: str
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
        known: Mapping[str, Column] = DECLARED,
        interval: str = "95 %",
    ) -> "TextTable":
        """A table of a data frame; `columns` chooses and orders them, as a mapping also names them; `known`: what they mean;
        `interval`: the confidence of intervals.

        `x` shows its interval `x_ci_low`, `x_ci_high` (or `x_low`, `x_high`) in the same cell, under a heading that names
        both; counts say of how many. Verdicts stand second; where there are more than six columns, those that matter less
        stand last.
        """
        names = dict(columns) if isinstance(columns, Mapping) else dict.fromkeys(columns or frame.columns, "")
        roles = [column_of(str(name), known).role for name in names]
        of = {role[3:] for role in roles if role.startswith("of ")}
        names = {name: label for name, label in names.items() if name not in of}
        unknown = [name for name in names if name not in frame.columns]
        if unknown:
            raise ValueError(f"no column {unknown[0]!r} to show; there are {', '.join(map(str, frame.columns))}")
        made, cells = [], []
        ordered, at_once = _ordered(_with_intervals(names, frame), frame, known)
        for name, low in ordered:
            column, values = column_of(str(name), known), frame[name].tolist()
            numeric = frame[name].dtype.kind in "fiu"
            label, role = names[name] or column.heading or str(name).replace("_", " "), column.role
            limits = None if low is None else (frame[low].tolist(), frame[_upper(low, frame)].tolist())
            if low == name:
                whose = str(low).removesuffix("_low").removesuffix("_ci").removesuffix("ci").replace("_", " ")
                of_whom = f" of the {whose}" if whose not in ("", "low") else ""
                label = names[name] or _heading_of(str(low), interval).replace("%", "% interval") + of_whom
                cells.append([Cell(c.limits or MISSING, c.key if c.limits else "") for c in _numbers(values, limits)])
            elif limits is not None and not pd.isna([*limits[0], *limits[1]]).all():
                label = f"{label} [{_heading_of(str(low), interval)}]"
                cells.append(_numbers(values, limits, role))
            elif numeric and role.startswith("of ") and role[3:] in frame.columns:
                cells.append(_counts(values, frame[role[3:]].tolist()))
            else:
                cells.append(_numbers(values, None, role) if numeric else [_other(value) for value in values])
            made.append(Column(str(name), label, column.note or label, column.unit, role if numeric else "text"))
        return cls(caption, tuple(made), tuple(zip(*cells, strict=True)), at_once)

    def sentence(self, row: int) -> str:
        """A row in words: every column's heading with its value, left to right."""
        cells = zip(self.columns, self.rows[row], strict=True)
        return "; ".join(f"{column.heading} {cell}" for column, cell in cells)

    def lines(self) -> list[str]:
        """Return the table as a print shows it: as many columns as go into one line."""
        texts = [[one_line(column.heading)] for column in self.columns]
        for at, column in enumerate(texts):
            cells = (one_line(str(row[at])) for row in self.rows)
            column += [text if len(text) <= LONGEST_CELL else f"{text[: LONGEST_CELL - 1]}…" for text in cells]
        wide = [max(map(len, column)) for column in texts]
        fit = max(at for at in range(1, len(wide) + 1) if at == 1 or sum(wide[:at]) + 2 * at <= WIDTH)
        left = [column.role == "text" for column in self.columns]
        return [
            "  ".join(
                t.ljust(w) if le else t.rjust(w) for t, w, le in zip(row[:fit], wide, left, strict=False)
            ).rstrip()
            for row in zip(*texts, strict=True)
        ]

    def html(self) -> str:
        """The same for a notebook, all columns, every text escaped; a wide table scrolls in a frame of its own."""
        head = "".join(f'<th title="{escape(each.note)}">{escape(visible(each.heading))}</th>' for each in self.columns)
        rows = ("".join(f"<td>{escape(one_line(str(cell)))}</td>" for cell in row) for row in self.rows)
        body = "".join(f"<tr>{row}</tr>" for row in rows)
        return f'<div style="overflow-x:auto"><table><tr>{head}</tr>{body}</table></div>'


def _with_intervals(names: Mapping[Any, str], frame: pd.DataFrame) -> list[tuple[Any, str | None]]:
    """Columns in order, each with the lower end of its interval, if it has one; ends that belong to none stand alone."""
    ends = {_upper(str(name), frame) for name in frame.columns}
    found: list[tuple[Any, str | None]] = []
    lows = {name: [low for low in (f"{name}_ci_low", f"{name}_low") if _upper(low, frame)] for name in names}
    taken = {low[0] for low in lows.values() if low}
    for name in names:
        if name in taken or name in ends:
            continue
        own = lows[name][0] if lows[name] else None
        if own is None and _upper(str(name), frame):
            own = name
        found.append((name, own))
    return found


def _ordered(
    columns: Sequence[tuple[Any, str | None]], frame: pd.DataFrame, known: Mapping[str, Column]
) -> tuple[list[tuple[Any, str | None]], int]:
    """The first column, verdicts, the others; where there are many, last those that matter less or say nothing. And how
    many of them are shown at once."""
    many = len(columns) > AT_ONCE

    def rank(at: int) -> int:
        name, role = columns[at][0], column_of(str(columns[at][0]), known).role
        if at == 0:
            return 0
        says = (frame[name].notna() & (frame[name].astype(object) != "")).any()
        return 3 if many and (not says or role == "later") else 1 if role == "verdict" else 2

    ranks = [rank(at) for at in range(len(columns))]
    first = sum(each < 3 for each in ranks)
    return [columns[at] for at in sorted(range(len(columns)), key=ranks.__getitem__)], min(AT_ONCE, first)


def _heading_of(low: str, interval: str) -> str:
    return interval if low.endswith("ci_low") or low == "low" else "from, to"


def _upper(name: str, frame: pd.DataFrame) -> str | None:
    """The column with the upper end of the interval whose lower end is `name`; None if that is no lower end."""
    high = f"{name.removesuffix('low')}high"
    ends = name == "low" or name.endswith("_low")
    return high if ends and name in frame.columns and high in frame.columns else None


def _numbers(values: Sequence[Any], limits: tuple[Sequence[Any], Sequence[Any]] | None, role: str = "") -> list[Cell]:
    """Numbers of one column, with the ends of their intervals, all with the same number of decimals, signed if any is
    negative."""
    scale, unit = 100 if role in ("share", "points") else 1, " %" if role == "share" else ""
    ends = () if limits is None else (*limits[0], *limits[1])
    known = [scale * float(value) for value in (*values, *ends) if not pd.isna(value)]
    whole = role == "share" or (
        role not in ("points", "count") and limits is None and all(isinstance(x, int) or pd.isna(x) for x in values)
    )
    signed = role == "points" or (role != "share" and any(value < 0 for value in known))
    decimals = 0 if whole else 1 if role == "points" else _decimals(known)
    if role == "count":
        decimals = int(not all(value.is_integer() for value in known))

    def number(value: Any) -> str:
        return f"{value:.2g}" if role == "p" else _number(scale * float(value), decimals, signed)

    cells = []
    for row, value in enumerate(values):
        pair = () if limits is None else (limits[0][row], limits[1][row])
        words = ", ".join(map(number, pair)) if pair and not any(map(pd.isna, pair)) else ""
        undefined = pd.isna(value)
        text, key = (MISSING, "") if undefined else (f"{number(value)}{unit}", _key(float(value)))
        cells.append(Cell(text, key, words and f"[{words}]"))
    return cells


def _counts(values: Sequence[Any], of: Sequence[Any]) -> list[Cell]:
    """Counts with the number that they are of; undefined of none."""
    return [
        Cell(MISSING, "")
        if pd.isna(value) or pd.isna(n) or not n
        else Cell(f"{int(value)}/{int(n)}", _key(float(value)))
        for value, n in zip(values, of, strict=True)
    ]


def _other(value: Any) -> Cell:
    if pd.isna(value):
        return Cell(MISSING, "")
    text = {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)
    return Cell(text, text)


def _decimals(known: Sequence[float]) -> int:
    """Four decimals; where the column's largest number is 100 or more, four digits of it."""
    largest = max((round(abs(value), 9) for value in known if math.isfinite(value)), default=0.0)
    return 4 if largest < 100 else max(0, 3 - math.floor(math.log10(largest)))


def _number(value: float, decimals: int, signed: bool) -> str:
    if math.isinf(value):
        return "∞" if value > 0 else "-∞"
    plus, step = "+" if signed else "", 10.0**-decimals
    # in a column of larger numbers: its own digits
    if decimals and value != 0 and abs(value) < (0.5 if decimals > 2 else 10) * step:
        return f"{value:{plus}.{2 if decimals > 2 else 3}g}"
    return f"{abs(value):.{decimals}f}" if value == 0 else f"{value:{plus}z.{decimals}f}"


def _key(value: float) -> str:
    """A number as JavaScript's Number() reads it."""
    return ("Infinity" if value > 0 else "-Infinity") if math.isinf(value) else f"{value:.9g}"
