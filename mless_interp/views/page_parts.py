"""What a page is built of: tables and head maps, turned from numbers into texts, sort keys and colours. No HTML here."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import pandas as pd

COLUMNS = {
    "label": ("head", "layer and query head, zero-based"),
    "paper_label": ("in the paper's counting", "one-based"),
    "effect": ("effect", "the part of the insertion's effect that the head carries, in the outcome's unit"),
    "patching_changes": ("patching changes", "patched - receiving, mean over problems, in the outcome's unit"),
    "effect_fraction": (
        "share of the effect",
        "effect / the insertion's whole effect: 0 nothing, 1 everything, below 0 against it",
    ),
    "k": ("k", "problems of n in which it does more than the smallest effect"),
    "prevalence": ("share of problems", "k / n"),
    "p_prevalence": ("p, corrected", "prevalence test: more than half of all problems; Holm over heads and senses"),
    "median_fraction": ("median share", "median effect / median of the insertion's whole effect"),
    "recovered": ("recovered", "(patched - corrupted) / (clean - corrupted)"),
    "kind": ("verdict", "a test over most problems, corrected for testing many heads"),
    "sense": ("sense", "with the insertion's effect, or against it"),
    "confirmed": ("confirmed", "passes again on fresh problems"),
    "removed_count": (
        "problems: removed",
        "in so many of n, patching its output out removes more than the smallest effect",
    ),
    "added_count": ("problems: added", "in so many of n, patching its output in adds more than the smallest effect"),
    "removed_share": ("removed, share", "median of what patching its output out removes / median total"),
    "added_share": ("added, share", "median of what patching its output in adds / median total"),
    "removed_p": ("p, removed", "corrected for all heads tested, and for both senses"),
    "added_p": ("p, added", "corrected for all heads tested, and for both senses"),
    "knockout_median": ("own read, median", "what hiding the inserted tokens from this head takes away"),
    "mediated_removed_median": ("mediated, median", "the part of the head's effect that earlier heads cause"),
    "exceeds_random": ("more than random words", "in so many problems"),
    "exceeds_mass": ("more than as much attention", "in so many problems"),
    "p_specific": ("p, specific", "more than under random words, on fresh problems"),
    "lam": ("lambda", "share of attention left to the tokens that are not inserted"),
    "lam_minus_uniform": ("lambda minus uniform", "more than 0: the inserted tokens are read less than evenly"),
    "accuracy": ("right", "share of right answers, strictly graded"),
    "difference": ("difference", "in the share of right answers, on the same problems"),
    "p_holm": ("p, corrected", "Holm's correction over the comparisons"),
    "n": ("n", "problems where it is defined"),
    "n_heads": ("heads", ""),
    "ci_low": ("95 % interval", "over problems"),
    "low": ("95 % interval", "over problems"),
}
"""Column names of result tables as people read them, and what they mean."""

BLUE_TO_RED = "053061 2166ac 4393c3 92c5de d1e5f0 f7f7f7 fddbc7 f4a582 d6604d b2182b 67001f".split()
"""ColorBrewer's RdBu, reversed, as in the still pictures: told apart by colour-blind readers, 0 in the middle."""

MISSING = "–"
"""What a cell shows where a number is undefined."""


@dataclass(frozen=True)
class Column:
    """A column's heading, its explanation, and whether it sorts by number."""

    label: str
    note: str
    numeric: bool


@dataclass(frozen=True)
class Cell:
    """What a cell shows and what it sorts by ("" = undefined, which always comes last)."""

    text: str
    key: str


@dataclass(frozen=True)
class Table:
    """Rows of cells under columns that sort."""

    kind: ClassVar[str] = "table"
    caption: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]

    @classmethod
    def of(
        cls, frame: pd.DataFrame, caption: str, *, columns: Sequence[str] | Mapping[str, str] | None = None
    ) -> "Table":
        """A table of a data frame; `columns` chooses and orders them, as a mapping also names them.

        `x_ci_low` and `x_ci_high` (or `x_low` and `x_high`) become one column beside `x`, sorted by its lower end.
        """
        names = dict(columns) if isinstance(columns, Mapping) else dict.fromkeys(columns or frame.columns, "")
        unknown = [name for name in names if name not in frame.columns]
        if unknown:
            raise ValueError(f"no column {unknown[0]!r} to show; there are {', '.join(map(str, frame.columns))}")
        made, cells = [], []
        for name, label in _with_intervals(names, frame):
            usual, note = COLUMNS.get(name, (str(name).replace("_", " "), ""))
            high = _upper(str(name), frame)
            if high is not None:
                if name not in COLUMNS:
                    confident = str(name).endswith("_ci_low")
                    usual = "95 % interval" if confident else "from, to"
                    note = f"of {str(name).removesuffix('_ci_low' if confident else '_low').replace('_', ' ')}"
                cells.append(_numbers(frame[name].tolist(), frame[high].tolist()))
                made.append(Column(label or usual, note, True))
                continue
            values = frame[name].tolist()
            numeric = frame[name].dtype.kind in "fiu"
            made.append(Column(label or usual, note, numeric))
            cells.append(_numbers(values) if numeric else [_other(value) for value in values])
        return cls(caption, tuple(made), tuple(zip(*cells, strict=True)))

    def sentence(self, row: int) -> str:
        """A row in words: every column's heading with its value, left to right."""
        cells = zip(self.columns, self.rows[row], strict=True)
        return "; ".join(f"{column.label} {cell.text}" for column, cell in cells)


def _with_intervals(names: Mapping[str, str], frame: pd.DataFrame) -> Iterable[tuple[str, str]]:
    """Columns in order; each lower end stands for the whole interval and follows what it belongs to, upper ends go."""
    follow = {name: low for name in names for low in (f"{name}_ci_low", f"{name}_low") if _upper(low, frame)}
    ends = {_upper(str(name), frame) for name in frame.columns}
    for name, label in names.items():
        if name in follow.values() or name in ends:
            continue
        yield name, label
        if name in follow:
            yield follow[name], ""


def _upper(name: str, frame: pd.DataFrame) -> str | None:
    """The column with the upper end of the interval whose lower end is `name`; None if that is no lower end."""
    high = f"{name.removesuffix('low')}high"
    ends = name == "low" or name.endswith("_low")
    return high if ends and name in frame.columns and high in frame.columns else None


def _numbers(values: Sequence[Any], high: Sequence[Any] | None = None) -> list[Cell]:
    """Numbers of one column, or intervals up to `high`, with the same number of decimals, signed if any is negative."""
    known = [float(value) for value in (*values, *(high or ())) if not pd.isna(value)]
    whole = high is None and all(isinstance(value, int) or pd.isna(value) for value in values)
    signed, decimals = any(value < 0 for value in known), 0 if whole else _decimals(known)
    cells = []
    for ends in zip(values, *(() if high is None else (high,)), strict=True):
        if any(pd.isna(end) for end in ends):
            cells.append(Cell(MISSING, ""))
        else:
            words = ", ".join(_number(float(end), decimals, signed) for end in ends)
            cells.append(Cell(words if high is None else f"[{words}]", _key(float(ends[0]))))
    return cells


def _other(value: Any) -> Cell:
    if pd.isna(value):
        return Cell(MISSING, "")
    text = {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)
    return Cell(text, text)


def _decimals(known: Sequence[float]) -> int:
    """Four significant digits of the column's largest number, but no more than four decimals (up to 1: four)."""
    largest = max((abs(value) for value in known if math.isfinite(value)), default=0.0)
    return 4 if largest <= 1 else max(0, 3 - math.floor(math.log10(largest)))


def _number(value: float, decimals: int, signed: bool) -> str:
    if math.isinf(value):
        return "∞" if value > 0 else "-∞"
    plus, step = "+" if signed else "", 10.0**-decimals
    if (
        value != 0 and abs(value) < (0.5 if decimals > 2 else 10) * step
    ):  # in a column of larger numbers: its own digits
        return f"{value:{plus}.{2 if decimals > 2 else 3}g}"
    return f"{abs(value):.{decimals}f}" if value == 0 else f"{value:{plus}.{decimals}f}"


def _key(value: float) -> str:
    """A number as JavaScript's Number() reads it."""
    return ("Infinity" if value > 0 else "-Infinity") if math.isinf(value) else f"{value:.9g}"


@dataclass(frozen=True)
class Square:
    """One head's place, colour, value and everything known of it in words; `marked` ones are outlined."""

    layer: int
    head: int
    colour: str
    words: str
    marked: bool


@dataclass(frozen=True)
class HeadMap:
    """Layer × head map, zero-based, with all numbers of a head on hover, tap or arrow key."""

    kind: ClassVar[str] = "head_map"
    caption: str
    value: str
    limit: str
    n_layers: int
    n_heads: int
    squares: tuple[Square, ...]
    marked_means: str = ""
    note: str = ""

    @classmethod
    def of(
        cls,
        frame: pd.DataFrame,
        caption: str,
        *,
        value: str,
        columns: Sequence[str] | None = None,
        marked: Sequence[bool] | None = None,
        marked_means: str = "",
    ) -> "HeadMap":
        """A map of one column of a table with columns layer and head; `columns` are told on hover."""
        for name in ("layer", "head", value):
            if name not in frame.columns:
                raise ValueError(f"no column {name!r} to draw; there are {', '.join(map(str, frame.columns))}")
        layers, heads = frame["layer"].tolist(), frame["head"].tolist()
        if len(set(zip(layers, heads, strict=True))) != len(layers):
            raise ValueError("a head map needs one row per head; this table has several rows of the same head")
        table = Table.of(frame, "", columns=columns)
        numbers = [float("nan") if pd.isna(number) else float(number) for number in frame[value].tolist()]
        finite = [abs(number) for number in numbers if math.isfinite(number)]
        limit = max(finite, default=0.0) or 1.0
        shown = [False] * len(numbers) if marked is None else list(marked)
        squares = tuple(
            Square(layer, head, colour(number / limit), table.sentence(row), bool(shown[row]))
            for row, (layer, head, number) in enumerate(zip(layers, heads, numbers, strict=True))
        )
        name, note = COLUMNS.get(value, (value.replace("_", " "), ""))
        size, means = (max(layers) + 1, max(heads) + 1), marked_means if any(shown) else ""
        return cls(caption, name, f"{limit:.3g}", *size, squares, means, note)


def colour(share: float) -> str:
    """Colour of a number in -1..1 (beyond is clipped): blue below 0, red above, grey where undefined.

    >>> colour(0.0), colour(1.0), colour(float("nan"))
    ('#f7f7f7', '#67001f', '#bbbbbb')
    """
    if math.isnan(share):
        return "#bbbbbb"
    place = (min(1.0, max(-1.0, share)) + 1) / 2 * (len(BLUE_TO_RED) - 1)
    low = min(int(place), len(BLUE_TO_RED) - 2)
    ends = [[int(stop[i : i + 2], 16) for i in (0, 2, 4)] for stop in BLUE_TO_RED[low : low + 2]]
    mixed = [round(a + (b - a) * (place - low)) for a, b in zip(*ends, strict=True)]
    return "#" + "".join(f"{part:02x}" for part in mixed)
