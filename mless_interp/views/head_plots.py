"""Pictures of heads: layer × head maps, intervals per head, attention patterns before and after."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pandas as pd

from ..circuits.judge import KINDS, NAMED, Kind
from ..circuits.located import LocatedHeads
from ..core.arguments import count_of
from ..core.heads import Head, as_heads
from ..mechanism import AttentionDecomposition
from ..models.base import Model
from ..prompts.pairs import PromptPair
from ..runtime.columns import column_of
from ..runtime.results import Quantity, Result, largest_first, turned
from ..runtime.text_safety import one_line
from .plots import (
    DIVERGING,
    LINES,
    MADE_WITH,
    STROKES,
    Picture,
    Style,
    Values,
    chosen_column,
    draw_forest,
    draw_map,
    key,
    key_below,
    negative_cells,
    panel,
    shortened,
    words_of,
)
from .pooling import both_names, difference_of, read_patterns, scale_of

FRAMES = {(True, False): "-", (False, True): "--", (True, True): "-.", (False, False): ":"}
"""Frames of named heads, by whether they read and mediate."""
LOCATED: tuple[tuple[str, str, Style], ...] = (
    ("removed_median", "removed: its output patched out", {"fmt": "o", "color": LINES[0][0]}),
    ("added_median", "added: its output patched in", {"fmt": "o", "color": LINES[0][0], "markerfacecolor": "white"}),
    ("knockout_median", "its own read removed", {"fmt": "s", "color": LINES[1][0]}),
    ("edge_noise_median", "its own read added", {"fmt": "s", "color": LINES[1][0], "markerfacecolor": "white"}),
    ("random_effect", "same, random words instead", {"fmt": "x", "color": "0.45"}),
)


def head_map(
    found: Result, *, value: str | None = None, top: int = 3, level: float | None = None, limit: float | None = None
) -> Picture:
    """Layer × head map of a result's table, 0 in the middle of the colours where the number has a sign.

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
    table = turned(found, found.table())
    value, quantity = _chosen(found, table, value)
    level = quantity.level if level is None else level
    grid = _grid_of(table, value)
    hatched, named = _significant(table, quantity, level), _named(table)
    ranked = largest_first(table, value).dropna(subset=[value]).head(top)
    largest = list(zip(ranked["layer"], ranked["head"], strict=True))
    texts = {cell: str(cell[1]) for cell in largest}
    texts |= {cell: f"{cell[1]}{letters}" for cell, (letters, _) in named.items()}
    picture, axes = panel(*_map_size(grid))
    diverging = quantity.signed or bool((grid[np.isfinite(grid)] < 0).any())
    frames = {cell: FRAMES[kind.reads, kind.mediates] for cell, (_, kind) in named.items()}
    marks: Style = {"hatched": hatched, "outlined": frames, "texts": texts}
    draw_map(axes, grid, label=_label(value, quantity), diverging=diverging, limit=limit, **marks)
    axes.set_title(words_of(found, *MADE_WITH), fontsize=9)
    entries: list[tuple[str, Style]] = []
    if hatched:
        words = quantity.claim or f"{count_of(len(table), 'head')} tested"
        entries.append((f"p < {level:.3g}, corrected: {words}", STROKES))
    for letters, kind in dict(named.values()).items():
        frame = {"facecolor": "white", "edgecolor": "black", "linestyle": FRAMES[kind.reads, kind.mediates]}
        against = " against the effect" if letters != kind.letters else ""
        entries.append((f"{letters}: {kind.name.replace('+', ' and ')}{against}", frame | {"linewidth": 1.5}))
    if set(largest) - set(named):
        entries.append((f"number alone: the head, of the {len(largest)} largest", {"linestyle": "none"}))
    if diverging and negative_cells(grid, limit):
        minus = {"marker": "_", "linestyle": "none", "color": "black", "markeredgewidth": 1.3}
        entries.append((f"clearly negative{quantity.below and f': {quantity.below}'}", minus))
    if np.isnan(grid).any():
        entries.append(("undefined or not tested", {"facecolor": "0.8", "edgecolor": "0.6"}))
    if entries:
        picture.set_figheight(picture.get_figheight() + 0.17 * max(0, len(entries) - 2))
        key_below(picture, handles=key(entries))
    return picture


def _named(table: pd.DataFrame) -> dict[tuple[int, int], tuple[str, Kind]]:
    """(layer, head) of the named heads -> the letters of their kind, a minus before them for heads against the effect."""
    if "kind" not in table:
        return {}
    rows = table[table["kind"].isin(NAMED)]
    return {
        (layer, head): ("−" * (sense == "against") + KINDS[kind].letters, KINDS[kind])
        for layer, head, kind, sense in zip(*(rows[name] for name in ("layer", "head", "kind", "sense")), strict=True)
    }


def _chosen(found: Result, table: pd.DataFrame, value: str | None) -> tuple[str, Quantity]:
    """The column to draw, and what it is."""
    if not {"layer", "head"} <= set(table):
        raise ValueError(f"a picture of heads needs a row per head; this table has {', '.join(table.columns)}")
    return chosen_column(found, table, value)


def _grid_of(table: pd.DataFrame, value: str) -> np.ndarray:
    grid = np.full((int(table["layer"].max()) + 1, int(table["head"].max()) + 1), np.nan)
    grid[table["layer"], table["head"]] = table[value].astype(float)
    return grid


def _map_size(grid: np.ndarray) -> tuple[float, float]:
    """Width and height in inches of the map of a grid `[layer, head]`."""
    return max(4.6, 0.32 * grid.shape[1] + 2.0), max(2.8, 0.32 * grid.shape[0] + 1.9)


def _significant(table: pd.DataFrame, quantity: Quantity, level: float) -> list[tuple[int, int]]:
    """(layer, head) of the rows whose corrected p-value is below the level."""
    rows = table[table[quantity.p] < level] if quantity.p in table else table.head(0)
    return list(zip(rows["layer"].astype(int), rows["head"].astype(int), strict=True))


def _label(value: str, quantity: Quantity) -> str:
    return value.replace("_", " ") + (f" ({quantity.unit})" if quantity.unit else "")


def lambda_map(found: AttentionDecomposition, *, contrast: str | None = None, level: float = 0.05) -> Picture:
    """Lambda of every head (retained attention mass, a share), and how far it is from its null.

    First from 0 to 1: lambda 1 means that the inserted tokens get nothing. Second lambda minus what uniform attention would
    retain: red, the span is avoided; blue, preferred. Strokes: corrected p below `level`. Source: methods §3, §4.3.
    """
    table = found.table(contrast)
    grid = _grid_of(table, "lam")
    width, height = _map_size(grid)
    rows, columns = (2, 1) if width > 2 * height else (1, 2)  # wide maps one below the other, to be readable
    picture = Picture(figsize=(width * columns, height * rows), layout="constrained")
    axes, beside = picture.add_subplot(rows, columns, 1), picture.add_subplot(rows, columns, 2)
    draw_map(axes, grid, label="lambda (share)", diverging=False, limit=1.0)
    axes.set_title(words_of(found, *MADE_WITH), fontsize=9)
    hatched = _significant(table, found.quantity("lam_minus_uniform"), level)
    draw_map(beside, _grid_of(table, "lam_minus_uniform"), label="lambda − uniform's (share)", hatched=hatched)
    passed = f"strokes: {len(hatched)} of {count_of(len(table), 'head')}" if hatched else "no head passes"
    words = f"minus sign: below it\n{passed} (corrected p < {level:g})"
    beside.set_title(f"against uniform attention; {words}", fontsize=8)
    return picture


def forest(
    found: Result, *, heads: Iterable[Head | str] | None = None, value: str | None = None, top: int = 10
) -> Picture:
    """Effects with their 95 % intervals over problems, a row per head, the largest first; above 0 with the whole effect.

    Of `LocatedHeads`: medians of what patching the head's output (round) and its own read alone (square) removes (filled) and
    adds (open), parts of the insertion's effect, beside the same under random words (crosses); the dashed lines are
    the smallest effect of interest. Of other results: one column with its interval.

    Parameters
    ----------
    heads : default: the named heads and then the largest, `top` in all.
    value : the column to draw; of `LocatedHeads` in place of the measures.
    """
    table = turned(found, found.table())
    located = found if isinstance(found, LocatedHeads) and value is None else None
    value, quantity = _chosen(found, table, value)
    if located is not None:
        measures = [measure for measure in LOCATED if measure[0] in table and table[measure[0]].notna().any()]
        label = f"part of the insertion's effect ({located.unit}; above 0: with it)"
    else:
        measures = [(value, value.replace("_", " "), {"fmt": "o", "color": LINES[0][0]})]
        label, table = _label(value, quantity), largest_first(table, value)
    names = [str(Head(int(a), int(b))) for a, b in zip(table["layer"], table["head"], strict=True)]
    table = table.set_axis(names)
    if heads is None:
        shown = table.head(max(top, int(table["kind"].isin(NAMED).sum()) if "kind" in table else 0))
    else:
        wanted = list(map(str, as_heads(heads)))
        if missing := [head for head in wanted if head not in names]:
            raise ValueError(f"{', '.join(missing)} (zero-based) not in this result, which has {len(table)} heads")
        shown = table.loc[wanted]
    if not len(shown):
        raise ValueError("there is nothing to draw: no heads")
    rows = []
    for head, row in zip(shown.index, shown.to_dict("records"), strict=True):
        kind = (
            f"\n{row['kind']}{' against the effect' * (row['sense'] == 'against')}" if row.get("kind") in NAMED else ""
        )
        rows.append(both_names(head) + kind)
    series = [(name, shown[each], *_limits(shown, found.quantity(each)), style) for each, name, style in measures]
    picture, axes = panel(7.2, 1.5 + (0.45 if located else 0.33) * len(rows))
    draw_forest(axes, rows, series)
    if located is not None and located.judged.effect.delta > 0:
        reach = located.judged.effect.delta
        line: Style = {"color": "0.4", "linewidth": 0.9, "linestyle": (0, (4, 3))}
        axes.axvline(-reach, label=f"smallest effect of interest, {reach:.3g}", **line)
        axes.axvline(reach, **line)
    axes.set_xlabel(label, fontsize=8)
    axes.set_title(words_of(found, *MADE_WITH), fontsize=9)
    if len(axes.get_legend_handles_labels()[0]) > 1:
        key_below(picture)
    return picture


def summary_plot(found: Result, *, value: str | None = None, top: int = 12) -> Picture:
    """Draw a number of a result's printed table with its interval, a row each; `value`: default the first number there."""
    table = found.printed().head(top)
    ends = ("_ci_low", "_low", "_ci_high", "_high")
    numbers = [name for name in table if table[name].dtype.kind == "f" and not f"_{name}".endswith(ends)]
    if not len(table) or (value is None and not numbers):
        raise ValueError("there is nothing to draw: the table of its print is empty or has no number")
    value = value or numbers[0]
    low = next((low for low in (f"{value}_ci_low", f"{value}_low") if low in table), None)
    unknown = np.full(len(table), np.nan)
    limits = (unknown, unknown) if low is None else (table[low], table[low.removesuffix("low") + "high"])
    column = column_of(value, found.declared())
    drawn = [(100 if column.role == "points" else 1) * each for each in (table[value], *limits)]
    names = table.select_dtypes(exclude="number").iloc[:, :2].astype(str)
    picture, axes = panel(7.2, 1.2 + 0.33 * len(table))
    style = {"fmt": "o", "color": LINES[0][0]}
    draw_forest(axes, [shortened(one_line(" ".join(row))) for row in names.to_numpy()], [(value, *drawn, style)])
    axes.set_xlabel(column.heading, fontsize=8)
    axes.set_title(words_of(found, *MADE_WITH), fontsize=9)
    return picture


def _limits(table: pd.DataFrame, quantity: Quantity) -> tuple[Values, Values]:
    """The limits of a column, NaN where it has none."""
    if quantity.limits is not None and set(quantity.limits) <= set(table.columns):
        return table[quantity.limits[0]], table[quantity.limits[1]]
    return np.full(len(table), np.nan), np.full(len(table), np.nan)


def head_patterns(
    model: Model,
    pair: PromptPair,
    heads: Iterable[Head | str],
    *,
    conditions: Sequence[str] = ("base", "inserted"),
    difference: bool = True,
    max_span: int | None = None,
    scale: float | None = None,
) -> Picture:
    """Attention patterns before and after, a row per head: without, with, and their difference on shared tokens.

    One colour scale in the whole picture: `scale` has the darkest colour (None: the 99th percentile of all cells). Black
    lines bound the inserted tokens, which are drawn as at most `max_span` blocks (their attention
    summed; None: as they are).
    """
    chosen = model.info.chosen(heads, what="show")
    panels = [read_patterns(model, pair, name, chosen).with_short_span(max_span) for name in conditions]
    scale = scale_of(panels, scale)
    columns = [(panel.title, panel.values, np.flatnonzero(panel.inserted)) for panel in panels]
    if difference and len(panels) > 1:
        first, last = panels[0], panels[-1]
        _, values, on = difference_of(first, last)
        columns.append((f"{last.condition} − {first.condition}, {on} tokens", values, np.array([], dtype=int)))
    picture = Picture(figsize=(3.1 * len(columns) + 0.9, 2.9 * len(chosen) + 0.3), layout="constrained")
    axes: np.ndarray = picture.subplots(len(chosen), len(columns), squeeze=False)
    image: Any = None
    for row, head in enumerate(chosen):
        for column, (title, values, span) in enumerate(columns):
            here = axes[row, column]
            shown = np.where(np.tri(values.shape[-1], dtype=bool), values[row], np.nan)
            here.set_facecolor("0.92")
            image = here.imshow(shown, cmap=DIVERGING, vmin=-scale, vmax=scale, interpolation="nearest")
            for edge in (span[0] - 0.5, span[-1] + 0.5) if len(span) else ():
                here.axvline(edge, color="black", linewidth=0.7)
                here.axhline(edge, color="black", linewidth=0.7)
            here.tick_params(labelsize=6.5)
            here.set_xlabel("attended token", fontsize=7)
            here.set_ylabel("attending token", fontsize=7)
            here.set_title(f"{both_names(head)}\n{title}", fontsize=7.5)
    bar = picture.colorbar(image, ax=axes, extend="both", shrink=0.7, label="attention (probability)")
    bar.ax.tick_params(labelsize=7)
    bar.ax.yaxis.label.set_fontsize(8)
    return picture
