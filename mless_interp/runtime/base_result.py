"""What every result has: a headline, a table, tidy rows, caveats, a picture, and a name under which it is saved."""

import dataclasses
import functools
import inspect
import sys
import textwrap
from collections import ChainMap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any, ClassVar, SupportsFloat

import numpy as np
import pandas as pd

from ..core.arguments import count_of
from ..core.heads import Head
from ..statistics import CONFIDENCE, Interval, by_group
from .columns import COMMON, Column, Table, TextTable, ends_of, says
from .folders import savable
from .text_safety import WIDTH, one_line

savable(Interval)

HALF = {"bfloat16": "8 bits (by up to 0.4 %)", "float16": "11 bits (by up to 0.05 %)"}
"""To what half precision rounds a number."""
ROWS, MOST = 5, 20  # rows of the table in a print; columns of a summary, at most
Found = dict[str, dict[str, np.ndarray]]  # metric -> condition or contrast -> values


@dataclass(frozen=True, eq=False)
class ShownTable:
    """A table of a page; `columns` chooses, orders and, as a mapping, names those of the frame."""

    frame: pd.DataFrame
    caption: str
    columns: Sequence[str] | Mapping[str, str] | None = None


@dataclass(frozen=True, eq=False)
class ShownMap:
    """A column with one row per head, drawn layer by head; `marked` heads are outlined, `means` says why."""

    frame: pd.DataFrame
    value: str
    columns: Sequence[str]
    marked: Sequence[bool] | None = None
    means: str = ""


@dataclass(frozen=True, eq=False)
class Shown:
    """A result on a page."""

    tables: tuple[ShownTable, ...]
    head_map: ShownMap | None = None


@dataclass(frozen=True)
class Quantity:
    """What a picture must know of a column: its `unit`, whether 0 is the middle of its colours (`signed`), the column with
    its corrected `p`, words for a legend (what a small p claims, what a number `below` 0 does), and the `level` below which p
    is small."""

    unit: str = ""
    signed: bool = False
    p: str | None = None
    claim: str = ""
    below: str = ""
    level: float = 0.05


def counted(n: int, groups: Sequence[str], kind: str = "") -> str:
    """Say how many problems, or groups of them where problems have `groups`, of a kind there are: `24 fresh problems`."""
    return count_of(n, *((f"{kind}group of problems", f"{kind}groups of problems") if groups else (f"{kind}problem",)))


@dataclass(frozen=True, eq=False, repr=False)
class Result:
    """A frozen outcome of an analysis. Subclasses are dataclasses; all data frames that their methods give are `Table`s.

    `groups`: one name per problem of `problem_ids`; () where every problem is its own. `settings`: what it was made with.
    """

    groups: tuple[str, ...] = dataclasses.field(default=(), kw_only=True)
    settings: dict[str, Any] = dataclasses.field(default_factory=dict, kw_only=True)

    signed: ClassVar[bool] = False
    """Whether 0 is the middle of its pictures' colours."""
    caption: ClassVar[str] = ""
    """What a page writes above its table."""
    picture: ClassVar[str] = "summary_plot"
    """The view that `plot` draws."""
    columns: ClassVar[tuple[Column, ...]] = COMMON
    """Columns of its tables, beside those of the classes that it is made of."""
    drawn: ClassVar[tuple[str, ...]] = ()
    """Columns of its table that a picture shows unless told otherwise: the first that is known of any row."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        savable(cls)
        for name, member in list(vars(cls).items()):
            if inspect.isfunction(member) and member.__annotations__.get("return") is pd.DataFrame:
                setattr(cls, name, _as_table(member))

    @property
    def n_groups(self) -> int:
        """Problems, variants of one another counted once."""
        return len(set(self.groups)) or len(self.problem_ids)  # type: ignore[attr-defined]

    @property
    def counted(self) -> str:
        """How many problems, or groups of them, there are, in words."""
        return counted(self.n_groups, self.groups)

    def by_group(self, values: np.ndarray) -> np.ndarray:
        """Return values `[problem, ...]` as those of groups, `[group, ...]`: what intervals and tests are made of."""
        return by_group(values, self.groups)

    @classmethod
    def declared(cls) -> Mapping[str, Column]:
        """Return what columns of its tables mean, by name: its own, then those of its bases."""
        return ChainMap(*({c.name: c for c in vars(kind).get("columns", ())} for kind in cls.__mro__))

    @property
    def interval_words(self) -> str:
        """The confidence of its intervals, as headings say it."""
        return f"{100 * getattr(self, 'confidence', CONFIDENCE):.4g} %"

    def headline(self) -> str:
        """Return what was found, in one sentence."""
        return self.details()[0]

    def details(self) -> list[str]:
        """Return what else was found, a sentence each."""
        raise NotImplementedError

    def caveats(self) -> list[str]:
        """Return what limits the finding, at most three lines."""
        said, dtype = [], str(self.settings.get("dtype"))
        if self.groups:
            n = count_of(len(set(self.groups)), "group")
            said.append(f"These {len(self.groups)} problems are variants in {n}; each group counts once.")
        if dtype in HALF:
            floor = getattr(self, "rounding", getattr(self, "resolution", self.settings.get("resolution")))
            words = f"The model ran in {dtype}, which rounds every activation to {HALF[dtype]}"
            if floor:
                words += f"; effects up to {floor:.1e} {getattr(self, 'unit', '')}".rstrip() + " are taken for rounding"
            said.append(f"{words}.")
        return said

    def rest(self) -> str:
        """Return one line on what its printed table leaves out."""
        return ""

    def explain(self) -> "Words":
        """Return everything that can be said of it, a sentence per line."""
        told = dict.fromkeys([self.headline(), *self.details(), self.rest(), *self.caveats()])
        return Words("\n".join(one_line(each) for each in told if each))

    @property
    def reported(self) -> tuple[str, ...]:
        """Columns of its table that a researcher plots or reports, without the ends of intervals; (): all of them."""
        return ()

    def summary(self, *which: object, **options: object) -> pd.DataFrame:
        """Return what a researcher reports of `table` (whose arguments it takes): its `reported` columns that are not empty,
        each interval right after its number; where there would be more than `MOST`, without intervals."""
        table = self.table(*which, **options)
        wanted = [each for name in self.reported or table.columns for each in (name, *ends_of(name))]
        names = [name for name in dict.fromkeys(wanted) if name in table and (table.empty or says(table[name]))]
        if len(names) > MOST:
            names = [name for name in names if not name.endswith(ends_of(""))]
        return table[names[:MOST]]

    def table(self) -> pd.DataFrame:
        """Return every number behind the headline, with intervals: what files, pages and pictures take."""
        raise NotImplementedError

    def to_frame(self) -> pd.DataFrame:
        """Return one tidy row per problem and cell."""
        raise NotImplementedError

    @property
    def printed_of(self) -> str:
        """What the printed table is of, where that is not said above it."""
        return ""

    def printed(self) -> pd.DataFrame:
        """Return the table that a print begins."""
        return self.summary().drop(columns=["layer", "head", "paper_label"], errors="ignore")

    def plot(self, **options: object) -> object:
        """Draw it as `mless_interp.views` draws its kind; `options` are those of the view (`picture`)."""
        views = sys.modules["mless_interp"].views  # through the package, as in `store`: this room knows no view
        return getattr(views, self.picture)(self, **options)

    def quantity(self, column: str) -> Quantity:
        """Return what a column of its table is."""
        return Quantity(getattr(self, "unit", ""), self.signed)

    def default_column(self, table: pd.DataFrame) -> str:
        """Return the column of its table that a picture shows unless told otherwise: of `drawn`, else the first number."""
        numbers = [name for name in table if name not in ("layer", "head") and table[name].dtype.kind == "f"]
        named = [name for name in (*self.drawn, *numbers) if name in table]
        return next((name for name in named if table[name].notna().any()), named[0])

    def shown(self) -> Shown:
        """Return its table, and a head map of what `plot` shows where there is one row per head."""
        table = self.table()
        columns = [name for name in table.columns if name not in ("layer", "head")]
        per_head = {"layer", "head"} <= set(table.columns)
        drawn = head_map(table, [self.default_column(table)], columns) if per_head else None
        return Shown((ShownTable(table, self.caption or f"Summary of {type(self).__name__}.", columns),), drawn)

    def _first_rows(self, table: pd.DataFrame) -> TextTable:
        made = TextTable.of(table, "", known=self.declared(), interval=self.interval_words)  # signed by all rows
        return dataclasses.replace(made, rows=made.rows[:ROWS])

    def lines(self) -> list[str]:
        """Return the print: headline, table, the rest and the first caveat, at most 11 lines of at most 110 letters."""
        table = self.printed()
        more = len(table) - ROWS
        more_rows = f"... and {count_of(more, 'more row')}." * (more > 0)
        rest = " ".join(filter(None, [more_rows, self.printed_of, self.rest()]))
        below = [one_line(text) for text in (rest, *self.caveats()[:1]) if text]
        return [
            *textwrap.wrap(one_line(self.headline()), WIDTH, max_lines=3, placeholder=" ..."),
            *(self._first_rows(table).lines() if len(table) else []),
            *(textwrap.shorten(text, width=WIDTH, placeholder=" ...") for text in below),
        ]

    def __repr__(self) -> str:
        return "\n".join([*self.lines(), "More: .summary() .to_frame() .explain() .plot()"])

    def _repr_html_(self) -> str:
        """Show in a notebook the headline and the table of a print, everything else folded."""
        table, (headline, *others) = self.printed(), self.explain().splitlines()
        below = self._first_rows(table).html() if len(table) else ""
        folded = "".join(f"<p>{escape(each)}</p>" for each in others)
        return (
            f'<div style="max-width:60rem;overflow-wrap:anywhere"><p><strong>{escape(headline)}</strong></p>{below}'
            f"<details><summary>Everything else</summary>{folded}</details></div>"
        )


class Words(str):
    """A text that a notebook shows as it is."""

    __repr__ = str.__str__


def _as_table(method: Callable[..., pd.DataFrame]) -> Callable[..., Table]:
    @functools.wraps(method)
    def wrapped(*args: object, **kwargs: object) -> Table:
        return Table(method(*args, **kwargs))

    return wrapped


def head_map(
    table: pd.DataFrame,
    values: Sequence[str],
    columns: Sequence[str],
    *,
    marked: Sequence[bool] | None = None,
    means: str = "",
) -> ShownMap | None:
    """Return a map of the first of `values` that is known of any head; none for fewer than two heads or several rows of one."""
    known = [name for name in values if name in table and table[name].notna().any()]
    if not known or len(table) < 2 or table.duplicated(["layer", "head"]).any():
        return None
    return ShownMap(table, known[0], [name for name in columns if name in table], marked, means)


def turned(result: Result, table: pd.DataFrame) -> pd.DataFrame:
    """Return a table with effects (means and medians in the outcome's unit) above 0 where they go with the whole one."""
    effect = getattr(result, "whole", None) or getattr(getattr(result, "judged", None), "effect", None)
    if getattr(effect, "direction", 1.0) > 0:
        return table
    made = table.copy()
    for name in (each for each in table if each.endswith(("median", "effect")) and table[each].dtype.kind == "f"):
        made[name] = 0.0 - table[name]
        low, high = ends_of(name)
        if low in table:
            made[low], made[high] = 0.0 - table[high], 0.0 - table[low]
    return made


def with_limits(made: Interval, unit: str = "") -> str:
    """Return one estimate as sentences show it, with its limits where there are any: `+0.1000 nats [+0.0500, +0.2000]`."""
    return f"{float(made.estimate):+.4f} {unit}".rstrip() + limits_of(made.low, made.high)


def limits_of(low: SupportsFloat, high: SupportsFloat, form: str = "+.4f", *, scale: int = 1) -> str:
    """Return an interval's limits behind its estimate, ` [+0.0500, +0.2000]`; nothing where they are undefined."""
    ends = [scale * float(end) for end in (low, high)]
    return "" if np.isnan(ends).any() else f" [{ends[0]:{form}}, {ends[1]:{form}}]"


def head_columns(heads: Sequence[Head]) -> dict[str, list[Any]]:
    """Return the columns that name heads, zero-based (`label`) and as the paper counts (`paper_label`)."""
    columns: dict[str, list[Any]] = {"layer": [head.layer for head in heads], "head": [head.head for head in heads]}
    return columns | {"label": [*map(str, heads)], "paper_label": [head.paper_label for head in heads]}


def of_heads(values: np.ndarray, heads: Sequence[Head]) -> np.ndarray:
    """Return the cells of these heads, `[..., head]`, of an array `[..., layer, head]`."""
    return values[..., [head.layer for head in heads], [head.head for head in heads]]


def interval_columns(name: str, interval: Interval) -> dict[str, np.ndarray]:
    """Return an estimate and its limits as the columns `name`, `name_ci_low`, `name_ci_high`."""
    return {name: interval.estimate, f"{name}_ci_low": interval.low, f"{name}_ci_high": interval.high}


def largest_first(table: pd.DataFrame, column: str) -> pd.DataFrame:
    """Return its rows by the magnitude of a column, ties in their order, undefined ones last; numbered anew."""
    return table.sort_values(column, key=np.abs, ascending=False, kind="stable", ignore_index=True)


def place_of(name: str, known: Iterable[str], what: str) -> int:
    """Return where a name stands among those of a result; `ValueError` lists them."""
    if name not in (names := list(known)):
        raise ValueError(f"no {what} {name!r} here; there are {', '.join(names)}")
    return names.index(name)


def put(found: Found, metric: str, name: str, layer: int, values: object, *, shape: int | tuple[int, ...]) -> None:
    """Set one layer of `found[metric][name]`, an array of this shape that is NaN until it is set."""
    found.setdefault(metric, {}).setdefault(name, np.full(shape, np.nan))[layer] = values


def stacked(parts: Sequence[Any], order: Iterable[str] | None = None) -> Found:
    """Return `[problem, ...]` from the `Found` of one problem after the other, metrics in this order (default: as they are)."""
    return {
        metric: {name: np.stack([np.asarray(part[metric][name], dtype=float) for part in parts]) for name in named}
        for metric, named in ((metric, parts[0][metric]) for metric in order or parts[0] if metric in parts[0])
    }


def undefined(values: Found, heads: Sequence[Head], groups: Sequence[str] = ()) -> str:
    """Return how many cells of each metric are NaN, as words; "" where none is."""
    cells = {
        name: np.isnan([by_group(of_heads(array, heads), groups) for array in found.values()])
        for name, found in values.items()
    }
    return ", ".join(f"{name} {missing.sum()}/{missing.size}" for name, missing in cells.items() if missing.any())


def rows_of(
    problem_ids: Sequence[str],
    heads: Sequence[Head],
    array: np.ndarray,
    metric: str,
    *,
    called: str = "metric",
    **fixed: object,
) -> pd.DataFrame:
    """Return one tidy row per problem and head of a metric `[problem, layer, head]` or `[problem, head]`; `fixed` first."""
    cells = of_heads(array, heads) if array.ndim == 3 else array
    places = head_columns([*heads] * len(problem_ids))
    del places["paper_label"]
    of = {"problem": np.repeat(problem_ids, len(heads)), **fixed, **places, called: metric}
    return pd.DataFrame(of | {"value": cells.ravel()})


def rows_per_head(problem_ids: Sequence[str], heads: Sequence[Head], values: Mapping[str, np.ndarray]) -> pd.DataFrame:
    """Return one tidy row per measure, problem and head of arrays `[problem, head]`."""
    parts = [rows_of(problem_ids, heads, array, name, called="measure") for name, array in values.items()]
    return pd.concat(parts, ignore_index=True)


def tidy(axes: Mapping[str, Any], **values: np.ndarray) -> pd.DataFrame:
    """Return one row per cell of arrays over these axes (in this order), a column per axis and per array."""
    grid = np.indices([len(labels) for labels in axes.values()])
    columns = {name: np.asarray(labels)[grid[at].ravel()] for at, (name, labels) in enumerate(axes.items())}
    return pd.DataFrame(columns | {name: array.ravel() for name, array in values.items()})
