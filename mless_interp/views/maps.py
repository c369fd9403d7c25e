"""Maps: layer × head, layer or head × token, strokes where a test says so; and the graph of a circuit's edges."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from ..circuits.judge import KINDS, NAMED, Kind
from ..circuits.paths import LOGITS, TOGETHER, PathEffects
from ..circuits.site_patches import ALL, POSITION, PositionMap, SitePatches
from ..core.arguments import count_of
from ..core.heads import Head
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

    `value`: the column to show (None: the result's own choice, for example removed_share, share, lam); `top`: how many heads
    of largest magnitude carry their number; `limit`: the end of the colours (None: the largest magnitude).
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


def lambda_map(found: AttentionDecomposition, *, contrast: str | None = None) -> Picture:
    """Draw lambda of every head (retained attention mass, a share), and how far it is from its null.

    First from 0 to 1: lambda 1 means that the inserted tokens get nothing. Second lambda minus what uniform attention would
    retain: red, the span is avoided; blue, preferred. Strokes: corrected p < 0.05. Source: methods §3, §4.3.
    """
    table = found.table(contrast)
    grid, against = _grid_of(table, "lam"), _grid_of(table, "lam_minus_uniform")
    width, height = _map_size(grid)
    rows, columns = (2, 1) if width > 2 * height else (1, 2)  # wide maps one below the other, to be readable
    picture = Picture(figsize=(width * columns, height * rows), layout="constrained")
    axes, beside = picture.add_subplot(rows, columns, 1), picture.add_subplot(rows, columns, 2)
    _draw_heads(axes, grid, "lambda (share)", 1.0, diverging=False)
    name_axes(axes, title=words_of(found))
    quantity = found.quantity("lam_minus_uniform")
    hatched = _significant(table, quantity, quantity.level)
    _draw_heads(beside, against, "lambda − uniform's (share)", plots.end_of(against), hatched=hatched)
    passed = f"strokes: {len(hatched)} of {count_of(len(table), 'head')}" if hatched else "no head passes"
    words = f"minus sign: below it\n{passed} (corrected p < {quantity.level:g})"
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
    return {
        (row.layer, row.head): ("−" * (row.sense == "against") + KINDS[row.kind].letters, KINDS[row.kind])
        for row in table[table["kind"].isin(NAMED)].itertuples()
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


def site_map(found: SitePatches | PositionMap, *, value: str | None = None) -> Picture:
    """Draw layer × token for each kind of site, or head × token and head × part of the span: activation patching's picture.

    0 in the middle of the colours, a minus in clearly negative cells, strokes where most problems show it (corrected p), grey
    where no problem has that token. The questions' first tokens stand left, their last ones right, all of them at the end.
    `value`: the column to draw (default: the share of the effect, where that is known).
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
    options: Style = {"limit": plots.end_of(grids), "label": plots.label_of(value, quantity), "axes": (x, y)}
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


# ------------------------------------------------------------------------------------------------ the graph of a circuit

WIDEST = 6.0
"""Points of the widest edge."""
NUMBERED = 20
"""Edges that bear their number, the widest ones: more would lie over each other."""
JOINED = {"together": "+", "either": "|"}
"""Between inputs of an edge that act only together, or in each other's place."""
GOLDEN = 0.618034
"""Steps of this size, taken modulo 1, spread evenly whatever their number."""
SOLID, DASHED = "-", (0, (3, 1.5))
SMALLEST = 0.01
"""Share of the smallest edge that is drawn where all are."""


def path_graph(found: PathEffects, *, part: str = TOGETHER, only_found: bool = True) -> Picture:
    """Draw the edges as a graph: heads and MLPs by layer from below, the logits on top; the wider, the larger the share.

    Solid lines are with the insertion's effect, dashed ones against it. On the 20 widest edges stand their number and, into a
    head, those of q, k and v that most problems show: "k+v" where they act only together, "k|v" in each other's place. Where a
    node stands in its layer means nothing. Without edges a sentence says why.

    `part`: through what edges enter heads: "qkv" (where that is not among those to draw, the largest of the others), "q", "k"
    or "v". `only_found`: the edges that most problems show (corrected p) alone; False: all whose share is 0.01 or more.
    """
    table = turned(found, found.table())
    column, words = ("share", "share of the insertion's effect")
    if not found.established:  # there is nothing to have a share of
        column, words = "effect", "mean effect, with the median total effect"
    sure = table["p_corrected"] < found.level
    rows = largest_first(table[sure if only_found else table[column].abs() >= SMALLEST], column)
    rows = rows[rows["part"].isin(["", part]) | (part == TOGETHER)]
    rows = rows.iloc[np.argsort(~rows["part"].isin(["", part]), kind="stable")]
    rows = largest_first(rows.drop_duplicates(["sender", "receiver"]), column)
    places = _places(list(dict.fromkeys([*table["sender"], *table["receiver"]])))
    across, up = ([place[axis] for place in places.values()] for axis in (0, 1))
    picture, axes = plots.panel(max(4.6, 1.1 * (max(across) - min(across)) + 2.0), max(3.0, 0.75 * len(set(up)) + 1.4))
    _draw_edges(axes, rows, column, places, _letters(found, table[sure]))
    linked = {*rows["sender"], *rows["receiver"]}
    for node, (x, y) in places.items():
        edge, color = ("black", "black") if node in linked else ("0.7", "0.55")
        shape = "round,pad=0.3" if node.startswith("L") else "square,pad=0.3"
        box = {"facecolor": "white", "edgecolor": edge, "linewidth": 1.1, "boxstyle": shape}
        axes.text(x, y, node, fontsize=8, ha="center", va="center", bbox=box, color=color, zorder=3)
    axes.set_xlim(min(across) - 0.6, max(across) + 0.6)
    axes.set_ylim(-0.6, max(up) + 0.6)
    axes.set_axis_off()
    name_axes(axes, title=words_of(found))
    which = f"that most problems show (p < {found.level:.3g}, corrected)" if only_found else f"of {SMALLEST:g} or more"
    none: Style = {"linestyle": "none"}
    line: Style = {"color": "0.25", "linewidth": 1.5}
    widest = f"; numbers on the {NUMBERED} widest" * (len(rows) > NUMBERED)
    entries = [
        (f"with the effect; width and number: {words}", {"linestyle": SOLID, **line}),
        ("against the effect", {"linestyle": DASHED, **line}),
        (f"{count_of(len(rows), 'edge')} {which}{widest}", none),
    ]
    if rows.empty:
        enters = f"that enters by {part} " * (part != TOGETHER)
        why = found.why_none() or f"No edge {enters}is among those that most problems show."
        size = "share" if found.established else "mean effect"
        entries = [(why if only_found else f"No edge {enters}has a {size} {which}.", none)]
    plots.key_below(picture, handles=plots.key(entries), ncols=1)
    return picture


def _letters(found: PathEffects, sure: pd.DataFrame) -> dict[tuple[str, str], str]:
    """(sender, receiver) -> which of q, k and v most problems show, and how they act where that is known."""
    ends = ["sender", "receiver"]
    shown = {
        each: ", ".join(name for name in "qkv" if name in set(parts)) for each, parts in sure.groupby(ends)["part"]
    }
    how = found.together().query("how != ''").sort_values("inputs", key=lambda each: -each.str.len(), kind="stable")
    both = how[[*ends, "how", "inputs"]].itertuples(index=False)
    return shown | {(sender, receiver): JOINED[way].join(inputs) for sender, receiver, way, inputs in both}


def _draw_edges(
    axes: Axes,
    rows: pd.DataFrame,
    column: str,
    places: Mapping[str, tuple[float, float]],
    letters: Mapping[tuple[str, str], str],
) -> None:
    taken = list(places.values())
    for rank, row in enumerate(rows.to_dict("records")):
        start, end = (np.array(places[row[node]]) for node in ("sender", "receiver"))
        size = WIDEST * abs(row[column]) / float(rows[column].abs().max())
        arrow: dict[str, object] = {"arrowstyle": "-|>", "linewidth": max(size, 0.6), "mutation_scale": 9 + size}
        arrow |= {"linestyle": SOLID if row[column] >= 0 else DASHED, "color": "0.25", "shrinkA": 13, "shrinkB": 13}
        axes.annotate("", tuple(end), tuple(start), arrowprops=arrow, zorder=1)
        if rank < NUMBERED:
            text = f"{row[column]:.2f} {letters.get((row['sender'], row['receiver']), '')}".rstrip()
            box = {"facecolor": "white", "edgecolor": "none", "pad": 0.6, "alpha": 0.85}
            taken.append(_free(start, end, taken))
            axes.text(*taken[-1], text, fontsize=7, ha="center", va="center", bbox=box, zorder=2)


def _free(start: np.ndarray, end: np.ndarray, taken: list[tuple[float, float]]) -> tuple[float, float]:
    """The point between two nodes that is farthest from every node and number; a number is wider than high.

    >>> _free(np.array([0.0, 0.0]), np.array([0.0, 2.0]), [(0.0, 0.0), (0.0, 2.0), (0.0, 1.0)])
    (0.0, 0.5)
    """
    at = start + np.linspace(0.15, 0.85, 15)[:, None] * (end - start)
    away = np.abs(at[:, None] - np.array(taken)) / (1.0, 0.5)
    x, y = at[np.argmax(np.linalg.norm(away, axis=-1).min(1))]
    return float(x), float(y)


def _places(nodes: list[str]) -> dict[str, tuple[float, float]]:
    """Where nodes stand: layer by layer from below, an MLP above its layer's heads, the logits on top.

    Layers are shifted against each other, so that few edges pass over a node.
    """

    def level(node: str) -> tuple[float, int]:
        if node.startswith("L"):
            head = Head.parse(node)
            return float(head.layer), head.head
        return (np.inf, 0) if node == LOGITS else (int(node[3:]) + 0.5, 0)

    by_level: dict[float, list[str]] = {}
    for node in sorted(nodes, key=level):
        by_level.setdefault(level(node)[0], []).append(node)
    width = max(0.3 * len(by_level) + 1, *map(len, by_level.values()))
    found: dict[str, tuple[float, float]] = {}
    for y, beside in enumerate(by_level.values()):
        shift = 0.0 if beside == [LOGITS] else (y * GOLDEN % 1 - 0.5) * max(width - len(beside), 0.6)
        found |= {node: (x - (len(beside) - 1) / 2 + shift, float(y)) for x, node in enumerate(beside)}
    return found
