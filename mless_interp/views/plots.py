"""The one door to matplotlib: pictures, colours and marks that every plot here shares.

Everything is drawn through the object interface: no pyplot, no global state, no rcParams touched. Colours are Okabe and
Ito's, with dashes, markers and hatches that tell things apart without colour. A text is drawn as it is: names that came from
outside are no formulas of matplotlib's, whatever they hold (`Picture`).
"""

import io
import re
import textwrap
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pandas as pd
from matplotlib import font_manager
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.colorbar import Colorbar
from matplotlib.colors import Normalize, TwoSlopeNorm
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.legend import Legend
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle
from matplotlib.text import Text
from matplotlib.ticker import FixedFormatter, FuncFormatter, NullFormatter

from ..runtime.results import Quantity, Result
from ..runtime.text_safety import code_of, one_line, short_name, visible
from .notebook import show_after_cell

DIVERGING = "RdBu_r"
"""A map that stays readable for colour-blind people; white is 0. In grey print a small minus tells the signs apart."""
NEGATIVE = 0.1
"""Cells below minus this share of the colour scale carry a minus."""
SEQUENTIAL = "cividis"
"""For numbers without a sign: from dark (low) to light (high), in grey print too."""
UNDEFINED = "0.8"
"""The grey of what is undefined or was not tested."""
GREY = "0.55"

Style: TypeAlias = Mapping[str, Any]
"""Options of a marker, a bar or a legend's patch."""
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
STROKES = {"facecolor": "white", "hatch": "////", "edgecolor": "black", "linewidth": 0.5}
"""What a legend shows of cells with strokes."""
MADE_WITH = ("model", "insertion", "contrast", "direction", "edit", "outcome")
"""Settings that stand over a picture."""
LETTERS_PER_INCH = 15
"""Of a legend's size, with what stands before its words."""
HATCHES = ("", "//", "..", "xx", "\\\\", "++")


LONGEST_NAME = 60
"""Letters of a name from outside in a title, at a tick, or in a legend among the curves."""
LONGEST_LINE, MOST_LINES = 160, 12
"""Letters of a line and lines of any text that is drawn."""


class Picture(Figure):
    """A matplotlib figure that shows itself in a notebook and saves itself as a file.

    Whatever is written in it is drawn letter by letter: `$` and `\\` begin no formula, control characters and letters that
    the font lacks show as their codes, and what is too long is cut. `seen` says how it was shown or saved.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.seen: set[str] = set()
        show_after_cell(self)

    def draw(self, renderer: Any) -> None:
        _as_written(self)
        super().draw(renderer)
        _as_written(self)  # ticks that were made while drawing

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


class _TickNames(FuncFormatter):
    """Names at ticks, as they are drawn."""

    def __init__(self, names: Any) -> None:
        super().__init__(lambda x, place: drawable(names(x, place), longest=LONGEST_NAME))


def _as_written(picture: Figure) -> None:
    for axes in picture.findobj(Axes):
        for axis in (axes.xaxis, axes.yaxis):
            names = axis.get_major_formatter()
            if isinstance(names, FixedFormatter | FuncFormatter) and not isinstance(names, _TickNames):
                axis.set_major_formatter(_TickNames(names))
    inside = {text for axes in picture.findobj(Axes) for legend in axes.findobj(Legend) for text in legend.get_texts()}
    for text in picture.findobj(Text):
        text.set_parse_math(False)
        written = text.get_text()
        longest = LONGEST_NAME if text in inside else LONGEST_LINE
        shown = drawable(written, tuple(text.get_fontfamily()), longest)
        if shown != written:
            text.set_text(shown)


def drawable(text: str, families: tuple[str, ...] = ("sans-serif",), longest: int = LONGEST_LINE) -> str:
    r"""A text as a picture can draw it: no line longer than `longest`, control characters and letters that these fonts
    lack by their codes.

    >>> print(drawable("$x_1$ \x1b[31m"))
    $x_1$ \x1b[31m
    """
    lines = [shortened(line, longest) for line in visible(text).replace("\t", " ").split("\n")[:MOST_LINES]]
    return re.sub(r"[^\x00-\x7f]", lambda found: _letter(found[0], families), "\n".join(lines))


def _letter(letter: str, families: tuple[str, ...]) -> str:
    return letter if any(ord(letter) in letters for letters in _letters(families)) else code_of(letter)


@lru_cache(maxsize=8)
def _letters(families: tuple[str, ...]) -> tuple[frozenset[int], ...]:
    """The letters that the fonts of these families have, the first that is found of each name."""
    files = [font_manager.findfont(font_manager.FontProperties(family=[family])) for family in families]
    return tuple(frozenset(font_manager.get_font(file).get_charmap()) for file in files)


def shortened(name: str, longest: int = LONGEST_NAME) -> str:
    """A name with its middle left out where it is too long.

    >>> shortened("abcdefghij", 5)
    'ab…ij'
    """
    return name if len(name) <= longest else f"{name[: longest // 2]}…{name[len(name) - (longest - 1) // 2 :]}"


def panel(width: float, height: float) -> tuple[Picture, Axes]:
    """A picture of this size in inches with one pair of axes."""
    picture = Picture(figsize=(width, height), layout="constrained")
    return picture, picture.add_subplot()


def name_axes(axes: Axes, *, x: str | None = None, y: str | None = None, title: str | None = None) -> None:
    """Words at the axes, in the size that all pictures have; None leaves what is there."""
    for write, words in ((axes.set_xlabel, x), (axes.set_ylabel, y), (axes.set_title, title)):
        if words is not None:
            write(words, fontsize=8)
    axes.tick_params(labelsize=7)


def key_below(picture: Figure, *, ncols: int = 2, **options: Any) -> None:
    """The legend of a whole picture, under it: in fewer columns, and wrapped, where the picture is too narrow for it."""
    made: dict[str, Any] = {"loc": "outside lower center", "fontsize": 7, "frameon": False, **options}
    legend, room = picture.legend(ncols=ncols, **made), int(LETTERS_PER_INCH * picture.get_figwidth())
    if any(len(text.get_text()) > room // ncols for text in legend.get_texts()):
        legend.remove()
        legend = picture.legend(ncols=1, **made)
    for text in legend.get_texts():
        text.set_text(textwrap.fill(text.get_text(), room))


def draw_series(
    axes: Axes, x: Values, y: Values, limits: tuple[Values, Values] | None, number: int, label: str, **options: Any
) -> None:
    """The line of the series of this number, with its interval as a band where there is one."""
    colour, dashes, marker = LINES[number % len(LINES)]
    style: Style = {"marker": marker, "markersize": 3.5} | options
    axes.plot(x, y, color=colour, linestyle=dashes, label=label, **style)
    if limits is not None and np.isfinite(np.asarray(limits[0], dtype=float)).any():
        axes.fill_between(x, *limits, color=colour, alpha=0.2, linewidth=0)


def chosen_column(found: Result, table: pd.DataFrame, value: str | None) -> tuple[str, Quantity]:
    """The column to draw (None: the result's own choice), and what it is."""
    value = found.default_column(table) if value is None else value
    if value not in table:
        raise ValueError(f"no column {value!r} to draw; there are {', '.join(table.columns)}")
    return value, found.quantity(value)


def draw_map(
    axes: Axes,
    grid: np.ndarray,
    *,
    label: str,
    diverging: bool = True,
    limit: float | None = None,
    hatched: Sequence[tuple[int, int]] = (),
    outlined: Mapping[tuple[int, int], str] | None = None,
    texts: Mapping[tuple[int, int], str] | None = None,
) -> None:
    """A layer × head map `[layer, head]` with its colour bar.

    Zero-based numbers left and below, the paper's one-based ones right and above. `hatched` cells carry strokes, `outlined`
    ones a frame (its value is the line style), `texts` words; NaN is grey, and a clearly negative cell has a minus below its
    middle. `limit` is the end of the colours, which infinite cells have too.
    """
    limit = limit or end_of(grid)
    grid = np.clip(grid, -limit, limit)
    image = draw_cells(axes, grid, limit=limit, diverging=diverging, hatched=hatched)
    frame: Style = {"fill": False, "edgecolor": "black", "linewidth": 1.8}
    for (layer, head), style in (outlined or {}).items():
        axes.add_patch(Rectangle((head - 0.45, layer - 0.45), 0.9, 0.9, linestyle=style, **frame))
    for (layer, head), text in (texts or {}).items():
        ink, ground = ("white", "black") if _is_dark(image, grid[layer, head]) else ("black", "white")
        box = {"facecolor": ground, "alpha": 0.85, "linewidth": 0, "pad": 0.8}
        size = min(7.5, 27.0 / len(text))  # as wide as its cell at most
        axes.text(head, layer, text, ha="center", va="center", fontsize=size, color=ink, bbox=box, zorder=3)
    _count_axes(axes, *grid.shape)
    colour_bar(image, axes, label, shrink=0.95)


def colour_bar(image: AxesImage, axes: Axes | np.ndarray, label: str, **options: Any) -> Colorbar:
    """The colour bar of the maps on these axes."""
    bar = image.figure.colorbar(image, ax=axes, label=label, **options)
    bar.ax.yaxis.label.set_fontsize(8)
    bar.ax.tick_params(labelsize=7)
    return bar


def end_of(grid: np.ndarray) -> float:
    """The end of a map's colours: its largest magnitude."""
    return float(np.abs(grid[np.isfinite(grid)]).max(initial=0.0)) or 1.0


def draw_cells(
    axes: Axes, grid: np.ndarray, *, limit: float, diverging: bool = True, hatched: Sequence[tuple[int, int]] = ()
) -> AxesImage:
    """The cells `[row, column]` of a map as colours up to `limit`, strokes and minuses; returns the image. NaN is grey."""
    axes.set_facecolor(UNDEFINED)
    norm = TwoSlopeNorm(0.0, -limit, limit) if diverging else Normalize(0.0, limit)
    image = axes.imshow(grid, cmap=DIVERGING if diverging else SEQUENTIAL, norm=norm, aspect="auto")
    for row, column in hatched:
        ink = "white" if _is_dark(image, grid[row, column]) else "black"
        box = Rectangle((column - 0.5, row - 0.5), 1, 1, fill=False, hatch="////", edgecolor=ink, linewidth=0)
        axes.add_patch(box)
    for row, column in negative_cells(grid, limit) if diverging else ():
        ink = "white" if _is_dark(image, grid[row, column]) else "black"
        axes.plot([column], [row + 0.36], marker="_", markersize=5, markeredgewidth=1.3, color=ink, zorder=4)
    return image


def draw_maps(
    grids: np.ndarray,
    *,
    titles: Sequence[str],
    columns: Sequence[str],
    rows: Sequence[str],
    x: str,
    y: str,
    limit: float,
    hatched: np.ndarray,
    label: str,
    title: str,
    claim: str,
    edges: Sequence[int] = (),
    cell: tuple[float, float] = (0.21, 0.24),
    **bar: Any,
) -> tuple[Picture, Colorbar]:
    """Maps `[map, row, column]` side by side on one colour scale, strokes where `hatched`; the picture and its colour bar."""
    width, height = max(2.7, cell[0] * len(columns) + 0.95), max(2.2, cell[1] * len(rows) + 1.2)
    picture = Picture(figsize=(width * len(grids) + 1.0, height + 0.5), layout="constrained")
    axes: np.ndarray = picture.subplots(1, len(grids), squeeze=False)
    image: Any = None
    for at, (here, grid) in enumerate(zip(axes[0], grids, strict=True)):
        marked = [(int(row), int(column)) for row, column in np.argwhere(hatched[at])]
        image = draw_cells(here, np.clip(grid, -limit, limit), limit=limit, hatched=marked)
        here.set_xticks(range(len(columns)), columns, rotation=90)
        here.set_yticks(range(len(rows)), rows)
        name_axes(here, x=x, y=y if at == 0 else None, title=titles[at] or None)
        for edge in edges:
            here.axvline(edge - 0.5, color="black", linewidth=0.9)
    made = colour_bar(image, axes, label, shrink=0.9, **bar)
    picture.suptitle(title, fontsize=9)
    if hatched.any():
        key_below(picture, handles=key([(claim, STROKES)]))
    return picture, made


def draw_stack(axes: Axes, series: Sequence[tuple[str, Values, Style]], width: float = 0.7) -> np.ndarray:
    """Bars of (label, heights, style) upon each other, those below 0 downwards; returns their sums."""
    heights = np.array([height for _, height, _ in series], dtype=float)
    above, below = (np.cumsum(side(heights, 0), axis=0) for side in (np.maximum, np.minimum))
    for (label, _, style), height, high, low in zip(series, heights, above, below, strict=True):
        bottom = np.where(height >= 0, high, low) - height
        line: Style = {"edgecolor": "white", "linewidth": 0}
        axes.bar(np.arange(len(height)), height, width, bottom, label=label, **line, **style)
    axes.axhline(0, color="0.4", linewidth=0.8)
    return heights.sum(0)


def negative_cells(grid: np.ndarray, limit: float | None = None) -> list[tuple[int, int]]:
    """Cells `(layer, head)` whose value lies below minus a tenth of the colour scale's end: those that carry a minus."""
    with np.errstate(invalid="ignore"):
        return [(int(row), int(column)) for row, column in np.argwhere(grid < -NEGATIVE * (limit or end_of(grid)))]


def _is_dark(image: AxesImage, value: float) -> bool:
    if not np.isfinite(value):
        return False
    red, green, blue, _ = image.cmap(image.norm(np.asarray(value)))
    return bool(0.3 * red + 0.59 * green + 0.11 * blue < 0.5)


def _count_axes(axes: Axes, n_layers: int, n_heads: int) -> None:
    step, layer_step = max(1, n_heads // 14), max(1, n_layers // 14)
    axes.set_xticks(range(0, n_heads, step))
    axes.set_yticks(range(0, n_layers, layer_step))
    axes.set_xlabel("head (zero-based)", fontsize=8)
    axes.set_ylabel("layer (zero-based)", fontsize=8)
    axes.tick_params(labelsize=8)
    one_based = (lambda x: x + 1, lambda x: x - 1)
    above, right = axes.secondary_xaxis("top", functions=one_based), axes.secondary_yaxis("right", functions=one_based)
    above.set_xticks(range(1, n_heads + 1, step))
    right.set_yticks(range(1, n_layers + 1, layer_step))
    for axis in (above, right):
        axis.tick_params(labelsize=7, colors="0.4")
    above.set_xlabel("head in the paper's counting", fontsize=8, color="0.4")


def draw_forest(axes: Axes, rows: Sequence[str], series: Sequence[tuple[str, Values, Values, Values, Style]]) -> None:
    """Points with intervals, a row each from above; every series is (name, estimates, lows, highs, marker style)."""
    places = np.arange(len(rows))[::-1].astype(float)
    height = 0.7 / max(1, len(series))
    for number, (name, estimate, low, high, style) in enumerate(series):
        at = places + (0.35 - (number + 0.5) * height if len(series) > 1 else 0.0)
        estimate, low, high = (np.asarray(x, dtype=float) for x in (estimate, low, high))
        line: Style = {"linestyle": "none", "capsize": 2.5, "linewidth": 1.1, "markersize": 4.5}
        axes.errorbar(estimate, at, xerr=reach_of(estimate, low, high), label=name, **line, **style)
    axes.axvline(0, color="0.4", linewidth=0.8)
    axes.set_yticks(places, list(rows), fontsize=8)
    axes.set_ylim(-0.6, len(rows) - 0.4)
    for place in places[1:] + 0.5:
        axes.axhline(place, color="0.9", linewidth=0.6, zorder=0)
    axes.tick_params(axis="x", labelsize=7)


def reach_of(estimate: np.ndarray, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """How far an interval reaches below and above its estimate, `[2, ...]`; 0 where it is undefined."""
    reach = np.stack([estimate - low, high - estimate])
    return np.where(np.isfinite(reach), np.maximum(reach, 0.0), 0.0)


def key(entries: Sequence[tuple[str, Style]]) -> list[Artist]:
    """Legend handles: (words, style of a patch, or of a line where it has a linestyle and no facecolor)."""
    return [
        Patch(label=words, **style) if "facecolor" in style else Line2D([], [], label=words, **style)
        for words, style in entries
    ]


def words_of(result: Result, *names: str) -> str:
    """What a result was made with, as far as it says, for the title of its picture."""
    said = {name: str(result.settings[name]) for name in names if result.settings.get(name)}
    return ", ".join(shortened(one_line(short_name(each) if name == "model" else each)) for name, each in said.items())


def plain_numbers(axis: Axis) -> None:
    """Plain numbers, 0.001, at a logarithmic axis, where matplotlib writes formulas."""
    axis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
    axis.set_minor_formatter(NullFormatter())


def whole_numbers(axis: Axis, values: Values) -> None:
    """Ticks at these whole numbers and nowhere between."""
    axis.set_ticks(values, labels=[str(value) for value in values])
    axis.set_ticks([], minor=True)
