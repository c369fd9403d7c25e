"""Maps: layer × head, layer or head × token; 0 in the middle of the colours, strokes where a test says so."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from ..circuits.judge import KINDS, NAMED, Kind
from ..circuits.site_patches import ALL, POSITION, PositionMap, SitePatches
from ..core.arguments import count_of
from ..mechanism import AttentionDecomposition, SpanReadings
from ..mechanism.span_reading import READERS
from ..runtime.results import Quantity, Result, largest_first, turned
from . import plots
from .plots import Axes, Picture, Style, draw_cells, name_axes, words_of

FRAMES = {(True, False): "-", (False, True): "--", (True, True): "-.", (False, False): ":"}
"""Frames of named heads, by whether they read and mediate."""
Cell = tuple[int, int]
"""Layer and head, or row and column."""


def head_map(
    found: Result, *, value: str | None = None, top: int = 3, level: float | None = None, limit: float | None = None
) -> Picture:
    """Draw a layer × head map of a result's table, 0 in the middle of the colours where the number has a sign.

    Works for any result whose `.table()` has a row per head with layer and head. Effects are above 0 where they go with the
    whole effect. Strokes mark heads whose corrected p-value is below `level` (None: the result's own); frames the heads that
    locating named, with the letters of their kind (a minus before them: against the effect): solid those that read, dashed
    those that mediate, dash-dotted both, dotted neither resolved. Grey is undefined or not tested. Zero-based numbers are left
    and below, the paper's one-based ones right and above.

    Parameters
    ----------
    value : the column to show. None: the result's own choice (for example removed_share, share, lam), where
        that is defined.
    top : how many heads of largest magnitude carry their number.
    limit : the end of the colour scale, in the value's unit (None: the largest magnitude).
    """
    table = plots.head_table(found)
    value, quantity = plots.chosen_column(found, table, value)
    level = quantity.level if level is None else level
    grid = _grid_of(table, value)
    limit = limit or plots.end_of(grid)
    hatched, named = _significant(table, quantity, level), _named(table)
    ranked = largest_first(table, value).dropna(subset=[value]).head(top)
    largest = list(zip(ranked["layer"], ranked["head"], strict=True))
    texts = {cell: str(cell[1]) for cell in largest}
    texts |= {cell: f"{cell[1]}{letters}" for cell, (letters, _) in named.items()}
    frames = {cell: FRAMES[kind.reads, kind.mediates] for cell, (_, kind) in named.items()}
    signed = quantity.signed or bool((grid[np.isfinite(grid)] < 0).any())
    picture, axes = plots.panel(*_map_size(grid))
    label = plots.label_of(value, quantity)
    _draw_heads(axes, grid, label, limit, diverging=signed, hatched=hatched, outlined=frames, texts=texts)
    name_axes(axes, title=words_of(found))
    entries: list[tuple[str, Style]] = []
    if hatched:
        words = quantity.claim or f"{count_of(len(table), 'head')} tested"
        entries.append((f"p < {level:.3g}, corrected: {words}", plots.STROKES))
    for letters, kind in dict(named.values()).items():
        frame = {"facecolor": "white", "edgecolor": "black", "linestyle": FRAMES[kind.reads, kind.mediates]}
        against = " against the effect" if letters != kind.letters else ""
        entries.append((f"{letters}: {kind.name.replace('+', ' and ')}{against}", frame | {"linewidth": 1.5}))
    if set(largest) - set(named):
        entries.append((f"number alone: the head, of the {len(largest)} largest", {"linestyle": "none"}))
    if signed and plots.negative_cells(grid, limit):
        minus = {"marker": "_", "linestyle": "none", "color": "black", "markeredgewidth": 1.3}
        entries.append((f"clearly negative{quantity.below and f': {quantity.below}'}", minus))
    if np.isnan(grid).any():
        entries.append(("undefined or not tested", {"facecolor": "0.8", "edgecolor": "0.6"}))
    if entries:
        picture.set_figheight(picture.get_figheight() + 0.17 * max(0, len(entries) - 2))
        plots.key_below(picture, handles=plots.key(entries))
    return picture


def lambda_map(found: AttentionDecomposition, *, contrast: str | None = None, level: float = 0.05) -> Picture:
    """Draw lambda of every head (retained attention mass, a share), and how far it is from its null.

    First from 0 to 1: lambda 1 means that the inserted tokens get nothing. Second lambda minus what uniform attention would
    retain: red, the span is avoided; blue, preferred. Strokes: corrected p below `level`. Source: methods §3, §4.3.
    """
    table = found.table(contrast)
    grid, against = _grid_of(table, "lam"), _grid_of(table, "lam_minus_uniform")
    width, height = _map_size(grid)
    rows, columns = (2, 1) if width > 2 * height else (1, 2)  # wide maps one below the other, to be readable
    picture = Picture(figsize=(width * columns, height * rows), layout="constrained")
    axes, beside = picture.add_subplot(rows, columns, 1), picture.add_subplot(rows, columns, 2)
    _draw_heads(axes, grid, "lambda (share)", 1.0, diverging=False)
    name_axes(axes, title=words_of(found))
    hatched = _significant(table, found.quantity("lam_minus_uniform"), level)
    _draw_heads(beside, against, "lambda − uniform's (share)", plots.end_of(against), hatched=hatched)
    passed = f"strokes: {len(hatched)} of {count_of(len(table), 'head')}" if hatched else "no head passes"
    words = f"minus sign: below it\n{passed} (corrected p < {level:g})"
    beside.set_title(f"against uniform attention; {words}", fontsize=8)
    return picture


def _draw_heads(
    axes: Axes,
    grid: np.ndarray,
    label: str,
    limit: float,
    *,
    diverging: bool = True,
    hatched: Sequence[Cell] = (),
    outlined: Mapping[Cell, str] | None = None,
    texts: Mapping[Cell, str] | None = None,
) -> None:
    """A map `[layer, head]`: its cells, frames of `outlined` ones (by line style), `texts` in cells, numbers at its axes."""
    image = draw_cells(axes, grid, limit=limit, diverging=diverging, hatched=hatched)
    frame: Style = {"fill": False, "edgecolor": "black", "linewidth": 1.8}
    for (layer, head), style in (outlined or {}).items():
        axes.add_patch(plots.Rectangle((head - 0.45, layer - 0.45), 0.9, 0.9, linestyle=style, **frame))
    for (layer, head), text in (texts or {}).items():
        ink, ground = ("white", "black") if plots.is_dark(image, layer, head) else ("black", "white")
        box = {"facecolor": ground, "alpha": 0.85, "linewidth": 0, "pad": 0.8}
        size = min(7.5, 27.0 / len(text))  # as wide as its cell at most
        axes.text(head, layer, text, ha="center", va="center", fontsize=size, color=ink, bbox=box, zorder=3)
    one_based = (lambda x: x + 1, lambda x: x - 1)
    above, right = axes.secondary_xaxis("top", functions=one_based), axes.secondary_yaxis("right", functions=one_based)
    sides = ((axes.xaxis, above.xaxis, grid.shape[1], "head"), (axes.yaxis, right.yaxis, grid.shape[0], "layer"))
    for own, paper, n, what in sides:
        step = max(1, n // 14)
        own.set_ticks(range(0, n, step))
        own.set_label_text(f"{what} (zero-based)", fontsize=8)
        own.set_tick_params(labelsize=8)
        paper.set_ticks(range(1, n + 1, step))
        paper.set_tick_params(labelsize=7, colors="0.4")
    above.set_xlabel("head in the paper's counting", fontsize=8, color="0.4")
    plots.colour_bar(image, axes, label, shrink=0.95)


def _named(table: pd.DataFrame) -> dict[Cell, tuple[str, Kind]]:
    """The named heads -> the letters of their kind, a minus before them for heads against the effect."""
    if "kind" not in table:
        return {}
    rows = table[table["kind"].isin(NAMED)]
    return {
        (layer, head): ("−" * (sense == "against") + KINDS[kind].letters, KINDS[kind])
        for layer, head, kind, sense in rows[["layer", "head", "kind", "sense"]].itertuples(index=False)
    }


def _grid_of(table: pd.DataFrame, value: str) -> np.ndarray:
    grid = np.full((int(table["layer"].max()) + 1, int(table["head"].max()) + 1), np.nan)
    grid[table["layer"], table["head"]] = table[value].astype(float)
    return grid


def _map_size(grid: np.ndarray) -> tuple[float, float]:
    """Width and height in inches of the map of a grid `[layer, head]`."""
    return max(4.6, 0.32 * grid.shape[1] + 2.0), max(2.8, 0.32 * grid.shape[0] + 1.9)


def _significant(table: pd.DataFrame, quantity: Quantity, level: float) -> list[Cell]:
    """The heads whose corrected p-value is below the level."""
    rows = table[table[quantity.p] < level] if quantity.p in table else table.head(0)
    return list(zip(rows["layer"].astype(int), rows["head"].astype(int), strict=True))


def site_map(found: SitePatches | PositionMap, *, value: str | None = None, limit: float | None = None) -> Picture:
    """Draw layer × token for each kind of site, or head × token and head × part of the span: activation patching's picture.

    0 in the middle of the colours, a minus in clearly negative cells, strokes where most problems show it (corrected p), grey
    where no problem has that token. The questions' first tokens stand left, their last ones right, all of them at the end.

    `value`: the column of the table to draw (default: the share of the effect, where that is known); `limit`: the end of the
    colour scale.
    """
    table = turned(found, found.table())
    value, quantity = plots.chosen_column(found, table, value)
    if isinstance(found, SitePatches):
        of_span = "; of the span" if found.positions[-1].startswith("span ") else ""
        x, y = f"token of the question, from either end{of_span}", "layer (zero-based)"
        titles, names, rows = found.sites, found.positions, list(map(str, found.layers))
    else:
        x, y = "token of the question; part of the span", "head (zero-based)"
        titles, names, rows = ("",), found.places, list(map(str, found.heads))
    if any(name.startswith(POSITION) for name in names):
        x = "position in the prompt"
    shape = len(titles), len(rows), len(names)
    grids, p = (table[name].to_numpy(dtype=float).reshape(shape) for name in (value, "p_corrected"))
    with np.errstate(invalid="ignore"):
        hatched = p < found.level
    ticks = [name.removeprefix("row ").removeprefix(POSITION) for name in names]
    options: Style = {"limit": limit or plots.end_of(grids), "label": plots.label_of(value, quantity), "axes": (x, y)}
    picture, _ = _draw_panels(grids, titles, ticks, rows, hatched, quantity.claim, found.level, **options)
    picture.suptitle(words_of(found), fontsize=9)
    # a line where tokens begin to be counted from the other end, and before the span
    bare = [tick.removeprefix("span ") for tick in ticks]
    kinds = [(a != b, b if b == ALL else b.startswith("-")) for a, b in zip(ticks, bare, strict=True)]
    for edge in (at for at in range(1, len(kinds)) if kinds[at] != kinds[at - 1]):
        for axes in picture.axes[: len(titles)]:
            axes.axvline(edge - 0.5, color="black", linewidth=0.9)
    return picture


def span_map(found: SpanReadings) -> Picture:
    """Draw layer x position for each reader of a `SpanReadings`: in which share of the pairs own tokens are read better.

    Above half (chance) in one colour, below it in the other with a minus; strokes where most pairs show it (corrected p), grey
    where nothing differs or nothing is known. The lowest row is the embedding.
    """
    table = found.table()
    shape = len(READERS), len(found.layers), len(found.places)
    shares = table["pairs_share"].where(table["p_corrected"].notna()).to_numpy(dtype=float).reshape(shape) - 0.5
    rows, names = ["embedding", *map(str, found.layers[1:])], ("inserted tokens", "after layer (zero-based)")
    options: Style = {"limit": 0.5, "label": "pairs read right", "axes": names, "wide": 0.3}
    claim = "most pairs show it"
    picture, bar = _draw_panels(shares, tuple(READERS), found.places, rows, found.found, claim, found.level, **options)
    picture.suptitle(words_of(found, "model", "insertion", "what"), fontsize=9)
    bar.set_ticks([-0.5, 0.0, 0.5], labels=["0 %", "50 %", "100 %"])
    for axes in picture.axes[: len(READERS)]:
        axes.invert_yaxis()
    return picture


def _draw_panels(
    grids: np.ndarray,
    titles: Sequence[str],
    columns: Sequence[str],
    rows: Sequence[str],
    hatched: np.ndarray,
    claim: str,
    level: float,
    *,
    limit: float,
    label: str,
    axes: tuple[str, str],
    wide: float = 0.21,
) -> tuple[Picture, plots.Colorbar]:
    """Maps `[map, row, column]` side by side on one colour scale, strokes where `hatched`, which claims something; the picture
    and its colour bar."""
    width, height = max(2.7, wide * len(columns) + 0.95), max(2.2, 0.24 * len(rows) + 1.2)
    picture = Picture(figsize=(width * len(grids) + 1.0, height + 0.5), layout="constrained")
    places: np.ndarray = picture.subplots(1, len(grids), squeeze=False)
    image: Any = None
    for at, (here, grid) in enumerate(zip(places[0], grids, strict=True)):
        marked = [(int(row), int(column)) for row, column in np.argwhere(hatched[at])]
        image = draw_cells(here, grid, limit=limit, hatched=marked)
        plots.name_ticks(here.xaxis, columns, rotation=90)
        plots.name_ticks(here.yaxis, rows)
        name_axes(here, x=axes[0], y=axes[1] if at == 0 else None, title=titles[at] or None)
    if hatched.any():
        plots.key_below(picture, handles=plots.key([(f"p < {level:.3g}, corrected: {claim}", plots.STROKES)]))
    return picture, plots.colour_bar(image, places, label, shrink=0.9)
