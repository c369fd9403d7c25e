"""The one door to matplotlib: pictures, and the marks that every plot here shares.

Everything is drawn through the object interface: no pyplot, no global state, no rcParams touched. Colours are Okabe and Ito's.
"""

import io
import textwrap
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pandas as pd
from matplotlib import font_manager
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.colorbar import Colorbar
from matplotlib.colors import Normalize, TwoSlopeNorm
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle
from matplotlib.text import Text

from ..core.arguments import Arguments
from ..runtime.base_result import Quantity, Result, ends_of, place_of, turned
from ..runtime.columns import column_of
from ..runtime.text_safety import one_line, short_name, shortened, visible
from . import show_after_cell

DIVERGING = "RdBu_r"  # a map that stays readable for colour-blind people; white is 0
SEQUENTIAL = "cividis"  # for numbers without a sign: from dark (low) to light (high), in grey print too
GREY = "0.55"

Style: TypeAlias = dict[str, Any]
Values: TypeAlias = np.ndarray | pd.Series | Sequence[float] | Sequence[int]
LINES = (
    ("#0072B2", "-", "o"),
    ("#D55E00", "--", "s"),
    ("#009E73", "-.", "^"),
    ("#CC79A7", ":", "D"),
    ("#56B4E9", (0, (5, 1, 1, 1, 1, 1)), "v"),
    ("#000000", (0, (1, 1)), "x"),
)
"""Colours, dashes and markers of series, in order: told apart without colour too."""
HATCHES = ("", "//", "..", "xx", "\\\\", "++")
STROKES = {"facecolor": "white", "hatch": "////", "edgecolor": "black", "linewidth": 0.5}
MADE_WITH = ("model", "insertion", "contrast", "direction", "edit", "outcome")
FILLED: Style = {"marker": "o", "color": LINES[0][0]}
OPEN: Style = FILLED | {"markerfacecolor": "white"}
LETTERS_PER_INCH = 15  # of a legend's size, with what stands before its words
LONGEST_LINE, MOST_LINES = 160, 12  # letters of a line and lines of any text that is drawn


class Picture(Figure):
    """A matplotlib figure that shows itself in a notebook and saves itself as a file.

    Whatever is written in it is drawn letter by letter: `$` and `\\` begin no formula, control characters show as their
    codes, and what is too long is cut. `seen` says how it was shown or saved.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.seen: set[str] = set()
        show_after_cell(self)

    def draw(self, renderer: Any) -> None:
        for text in self.findobj(Text):
            text.set_parse_math(False)
            text.set_text(drawable(text.get_text()))
        super().draw(renderer)

    def savefig(self, *args: Any, **options: Any) -> None:
        self.seen.add("saved")
        super().savefig(*args, **options)

    def _repr_png_(self) -> bytes:
        buffer = io.BytesIO()
        self.savefig(buffer, format="png", dpi=110, bbox_inches="tight")
        return buffer.getvalue()

    def save(self, path: str | Path, *, dpi: int = 150) -> Path:
        """Write the picture (the suffix says the format) and return its path."""
        self.savefig(path, dpi=dpi, bbox_inches="tight")
        return Path(path)


def drawable(text: str) -> str:
    """Return a text as a picture can draw it: control characters and letters that the font lacks as codes, no long lines."""
    lines = visible(text).replace("\t", " ").split("\n")[:MOST_LINES]
    return "".join(map(_letter, "\n".join(shortened(line, LONGEST_LINE) for line in lines)))


@lru_cache(maxsize=4096)
def _letter(letter: str) -> str:
    font = font_manager.get_font(font_manager.findfont(font_manager.FontProperties(family=["sans-serif"])))
    known = letter.isascii() or font.get_char_index(ord(letter))
    return letter if known else letter.encode("unicode_escape").decode()


def panel(width: float, height: float, *grid: int, **options: Any) -> tuple[Picture, Any]:
    """Return a picture of this size in inches with one pair of axes, or with those of a grid (rows, columns)."""
    picture = Picture(figsize=(width, height), layout="constrained")
    return picture, picture.subplots(*grid, **options)


def words_of(result: Result, *names: str) -> str:
    """Return what a result was made with (`MADE_WITH`, or these settings), for the title of its picture."""
    said = {name: str(result.settings[name]) for name in names or MADE_WITH if result.settings.get(name)}
    return ", ".join(shortened(one_line(short_name(each) if name == "model" else each)) for name, each in said.items())


def some_of(n: int, total: int, what: str) -> str:
    """Return a title's line on how many of all there are were drawn; nothing where all were."""
    return f"\n{n} of {total} {what}" * (n < total)


def head_table(found: Result) -> pd.DataFrame:
    """Return a result's table with a row per head, effects above 0 with the whole one; `ValueError` for another."""
    table = turned(found, found.table())
    if not {"layer", "head"} <= set(table):
        raise ValueError(f"a picture of heads needs a row per head; this table has {', '.join(table.columns)}")
    return table


def chosen_column(found: Result, table: pd.DataFrame, value: str | None) -> tuple[str, Quantity, str]:
    """Return the column to draw (None: the result's own choice), what it is, and its heading with the unit."""
    value = found.default_column(table) if value is None else value
    place_of(value, table.columns, "column")
    quantity = found.quantity(value)
    unit = f" ({quantity.unit})" if quantity.unit else ""
    return value, quantity, column_of(value, found.declared()).heading + unit


def with_limits(table: pd.DataFrame, column: str, limits: tuple[str, str] | None = None) -> np.ndarray:
    """Return a column with the limits of its interval, `[3, row]`: estimate, low, high; NaN where it has none."""
    low, high = limits or ends_of(column)
    return table.reindex(columns=[column, low, high]).to_numpy(dtype=float).T


def name_axes(axes: Axes, *, x: str | None = None, y: str | None = None, title: str | None = None) -> None:
    """Write at the axes, in the size that all pictures have; None leaves what is there."""
    for write, words, size in ((axes.set_xlabel, x, 8), (axes.set_ylabel, y, 8), (axes.set_title, title, 9)):
        if words is not None:
            write(words, fontsize=size)
    axes.tick_params(labelsize=7)


def name_ticks(axis: Axis, names: Sequence[object], at: Values | None = None, wide: int = 60, **options: Any) -> None:
    """Write names at these places (default: 0, 1, ...), none of them too long, in lines of `wide` letters at most."""
    shown = [drawable("\n".join(textwrap.fill(shortened(x), wide) for x in str(name).split("\n"))) for name in names]
    axis.set_ticks(range(len(names)) if at is None else at, labels=shown, **options)
    axis.set_ticks([], minor=True)


def key_below(picture: Figure, entries: Sequence[tuple[str, Style]] = (), *, ncols: int = 2) -> None:
    """Draw the legend of a whole picture under it: in fewer columns, and wrapped, where the picture is too narrow for it.
    `entries`: (words, style of a patch, or of a line where it has no facecolor); without them, each label once."""
    labelled = {each.get_label(): each for axes in picture.axes for each in axes.get_legend_handles_labels()[0]}
    made: Arguments = {"loc": "outside lower center", "fontsize": 7, "frameon": False}
    made["handles"] = [
        Patch(label=words, **style) if "facecolor" in style else Line2D([], [], label=words, **style)
        for words, style in entries
    ] or [*labelled.values()]
    legend, room = picture.legend(ncols=ncols, **made), int(LETTERS_PER_INCH * picture.get_figwidth())
    if any(len(text.get_text()) > room // ncols for text in legend.get_texts()):
        legend.remove()
        legend = picture.legend(ncols=1, **made)
    for text in legend.get_texts():
        text.set_text(textwrap.fill(text.get_text(), room))


def draw_series(axes: Axes, x: Values, values: np.ndarray, number: int, label: str, **options: object) -> None:
    """Draw the line of the series of this number, `with_limits`, with its interval as a band where there is one."""
    colour, dashes, marker = LINES[number % len(LINES)]
    style: Style = {"marker": marker, "markersize": 3.5} | options
    axes.plot(x, values[0], color=colour, linestyle=dashes, label=shortened(label), **style)
    if np.isfinite(values[1]).any():
        axes.fill_between(x, values[1], values[2], color=colour, alpha=0.2, linewidth=0)


def draw_forest(axes: Axes, rows: Sequence[str], series: Sequence[tuple[str, np.ndarray, Style]]) -> None:
    """Draw points with intervals, a row each from above; every series is (name, `with_limits`, marker style)."""
    places = np.arange(len(rows))[::-1].astype(float)
    height = 0.7 / max(1, len(series))
    line: Style = {"linestyle": "none", "capsize": 2.5, "linewidth": 1.1, "markersize": 4.5}
    for number, (name, values, style) in enumerate(series):
        at = places + (0.35 - (number + 0.5) * height)
        axes.errorbar(values[0], at, xerr=reach_of(values), label=shortened(name), **line | style)
    axes.axvline(color="0.4", linewidth=0.8)
    name_ticks(axes.yaxis, rows, places)
    axes.set_ylim(-0.6, len(rows) - 0.4)
    for place in places[1:] + 0.5:
        axes.axhline(place, color="0.9", linewidth=0.6, zorder=0)


def reach_of(values: np.ndarray) -> np.ndarray:
    """Return how far intervals (`with_limits`) reach below and above their estimates, `[2, ...]`; 0 where undefined."""
    estimate, low, high = values
    reach = np.stack([estimate - low, high - estimate])
    return np.where(np.isfinite(reach), np.maximum(reach, 0.0), 0.0)


def end_of(grid: np.ndarray) -> float:
    """Return the end of a map's colours: its largest magnitude."""
    return float(np.abs(grid[np.isfinite(grid)]).max(initial=0.0)) or 1.0


def draw_cells(
    axes: Axes, grid: np.ndarray, *, limit: float, diverging: bool = True, hatched: Sequence[tuple[int, int]] = ()
) -> AxesImage:
    """Draw the cells `[row, column]` of a map as colours up to `limit` (NaN: grey), strokes where `hatched`."""
    axes.set_facecolor("0.8")
    grid = np.clip(grid, -limit, limit)
    norm = TwoSlopeNorm(0.0, -limit, limit) if diverging else Normalize(0.0, limit)
    image = axes.imshow(grid, cmap=DIVERGING if diverging else SEQUENTIAL, norm=norm, aspect="auto")
    dark = image.cmap(norm(grid))[..., :3] @ (0.3, 0.59, 0.11) < 0.5
    for row, column in hatched:
        ink = "white" if dark[row, column] else "black"
        axes.add_patch(Rectangle((column - 0.5, row - 0.5), 1, 1, fill=False, hatch="////", edgecolor=ink, linewidth=0))
    return image


def colour_bar(image: AxesImage, axes: Axes | np.ndarray, label: str, **options: Any) -> Colorbar:
    bar = image.figure.colorbar(image, ax=axes, label=label, **options)
    bar.ax.yaxis.label.set_fontsize(8)
    bar.ax.tick_params(labelsize=7)
    return bar
