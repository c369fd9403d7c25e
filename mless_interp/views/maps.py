"""Maps: layer × head, layer or head × token, strokes where a test says so; and the graph of a circuit's edges."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from ..circuits.judge import KINDS, NAMED
from ..circuits.paths import LOGITS, TOGETHER, PathEffects
from ..circuits.site_patches import POSITION, PositionMap, SitePatches
from ..core.arguments import count_of
from ..core.heads import Head
from ..mechanism import SpanReadings
from ..mechanism.span_reading import READERS
from ..runtime.base_result import Result, largest_first, turned
from ..scores import HeadScores
from . import draw
from .draw import Axes, Picture, Style, draw_cells, name_axes, words_of

FRAME: Style = {"edgecolor": "black", "linewidth": 1.8}
UNDEFINED: tuple[str, Style] = ("undefined or not tested", {"facecolor": "0.8", "edgecolor": "0.6"})


def head_map(found: Result, *, value: str | None = None, top: int = 3) -> Picture:
    """Draw a layer × head map of a result's table, 0 in the middle of the colours where the number has a sign.

    Works for any result whose `.table()` has a row per head with layer and head. Effects are above 0 where they go with the
    whole effect. Strokes mark heads whose corrected p-value is small; frames the heads that locating named, with the letters
    of their kind (a minus before them: against the effect). Grey is undefined or not tested.

    `value`: the column to show (None: the result's own choice, for example removed_share, share, lam); `top`: how many heads
    of largest magnitude (of scores: of largest value) carry their number.
    """
    table = draw.head_table(found)
    value, quantity, label = draw.chosen_column(found, table, value)
    grid = np.full((int(table["layer"].max()) + 1, int(table["head"].max()) + 1), np.nan)
    grid[table["layer"], table["head"]] = table[value].astype(float)
    signed = quantity.signed or bool((grid[np.isfinite(grid)] < 0).any())
    sure = table[table[quantity.p] < quantity.level] if quantity.p in table else table.head(0)
    named = table[table["kind"].isin(NAMED)] if "kind" in table else table.head(0)
    scores = isinstance(found, HeadScores)  # their headline and `top` name the largest values
    ranked = table.sort_values(value, ascending=False, kind="stable") if scores else largest_first(table, value)
    ranked = ranked.dropna(subset=[value]).head(top)
    texts = {(row.layer, row.head): str(row.head) for row in ranked.itertuples()}
    picture, axes = draw.panel(max(4.6, 0.32 * grid.shape[1] + 2.0), max(2.8, 0.32 * grid.shape[0] + 1.9))
    hatched = list(zip(sure["layer"], sure["head"], strict=True))
    image = draw_cells(axes, grid, limit=draw.end_of(grid), diverging=signed, hatched=hatched)
    words = {}  # letters of a kind -> what they mean
    for row in named.itertuples():
        axes.add_patch(draw.Rectangle((row.head - 0.45, row.layer - 0.45), 0.9, 0.9, fill=False, **FRAME))
        kind, against = KINDS[row.kind], row.sense == "against"
        letters = "−" * against + kind.letters
        texts[row.layer, row.head] = f"{row.head}{letters}"
        words[letters] = f"{letters}: {kind.name.replace('+', ' and ')}" + " against the effect" * against
    for (layer, head), text in texts.items():
        box = {"facecolor": "white", "alpha": 0.85, "linewidth": 0, "pad": 0.8}
        size = min(7.5, 27.0 / len(text))  # as wide as its cell at most
        axes.text(head, layer, text, ha="center", va="center", fontsize=size, bbox=box, zorder=3)
    axes.set_xticks(range(0, grid.shape[1], max(1, grid.shape[1] // 14)))
    axes.set_yticks(range(0, grid.shape[0], max(1, grid.shape[0] // 14)))
    name_axes(axes, x="head (zero-based)", y="layer (zero-based)", title=words_of(found))
    draw.colour_bar(image, axes, label, shrink=0.95)
    entries: list[tuple[str, Style]] = []
    if hatched:
        claim = quantity.claim or f"{count_of(len(table), 'head')} tested"
        entries.append((f"p < {quantity.level:.3g}, corrected: {claim}", draw.STROKES))
    entries += [(each, FRAME | {"facecolor": "white"}) for each in words.values()]
    if len(texts) > len(named):
        largest = f"one of the {len(ranked)} largest {'values' if scores else 'heads'}"
        entries.append((f"number without letters: {largest}", {"linestyle": "none"}))
    if np.isnan(grid).any():
        entries.append(UNDEFINED)
    if entries:
        picture.set_figheight(picture.get_figheight() + 0.17 * max(0, len(entries) - 2))
        draw.key_below(picture, entries)
    return picture


def site_map(found: SitePatches | PositionMap, *, value: str | None = None) -> Picture:
    """Draw layer × token for each kind of site, or head × token and head × part of the span: activation patching's picture.

    0 in the middle of the colours, strokes where most problems show it (corrected p), grey where no problem has that token. The
    questions' first tokens stand left, their last ones right, all of them at the end.
    `value`: the column to draw (default: the share of the effect, where that is known).
    """
    table = turned(found, found.table())
    value, quantity, label = draw.chosen_column(found, table, value)
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
    hatched = p < found.level
    ticks = [name.removeprefix("row ").removeprefix(POSITION) for name in names]
    options: Style = {"limit": draw.end_of(grids), "label": label, "axes": (x, y)}
    claim = f"p < {found.level:.3g}, corrected: {quantity.claim}"
    picture, _ = _draw_panels(grids, titles, ticks, rows, hatched, claim, **options)
    picture.suptitle(words_of(found), fontsize=9)
    return picture


def span_map(found: SpanReadings) -> Picture:
    """Draw layer x position for each reader of a `SpanReadings`: in which share of the pairs own tokens are read better.

    Above half (chance) in one colour, below it in the other; strokes where most pairs show it (corrected p), grey
    where nothing is known, or own and exchanged tokens are read alike: the margin's interval lies within the smallest margin.
    The lowest row is the embedding.
    """
    table = found.table()
    shape = len(READERS), len(found.layers), len(found.places)
    known = table["p_corrected"].notna() & (np.abs(draw.with_limits(table, "margin")) > found.tested.delta).any(0)
    shares = table["pairs_share"].where(known).to_numpy(dtype=float).reshape(shape) - 0.5
    rows, names = ["embedding", *map(str, found.layers[1:])], ("inserted tokens", "after layer (zero-based)")
    options: Style = {"limit": 0.5, "label": "pairs read right", "axes": names, "wide": 0.3}
    options["grey"] = "not tested, or own and exchanged tokens read alike"
    claim = f"p < {found.level:.3g}, corrected: most pairs show it"
    picture, bar = _draw_panels(shares, tuple(READERS), found.places, rows, found.found, claim, **options)
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
    *,
    limit: float,
    label: str,
    axes: tuple[str, str],
    wide: float = 0.21,
    grey: str = UNDEFINED[0],
) -> tuple[Picture, draw.Colorbar]:
    """Draw maps `[map, row, column]` side by side on one colour scale, strokes where `hatched`, which claims something."""
    width, height = max(2.7, wide * len(columns) + 0.95), max(2.2, 0.24 * len(rows) + 1.2)
    picture, places = draw.panel(width * len(grids) + 1.0, height + 0.5, 1, len(grids), squeeze=False)
    image: Any = None
    for at, (here, grid) in enumerate(zip(places[0], grids, strict=True)):
        marked = [(int(row), int(column)) for row, column in np.argwhere(hatched[at])]
        image = draw_cells(here, grid, limit=limit, hatched=marked)
        draw.name_ticks(here.xaxis, columns, rotation=90)
        draw.name_ticks(here.yaxis, rows)
        name_axes(here, x=axes[0], y=axes[1] if at == 0 else None, title=titles[at] or None)
    entries = [(claim, draw.STROKES)] * bool(hatched.any()) + [(grey, UNDEFINED[1])] * bool(np.isnan(grids).any())
    if entries:
        draw.key_below(picture, entries)
    return picture, draw.colour_bar(image, places, label, shrink=0.9)


# ------------------------------------------------------------------------------------------------ the graph of a circuit

WIDEST = 6.0  # points of the widest edge
NUMBERED = 20  # edges that bear their number, the widest ones: more would lie over each other
GOLDEN = 0.618034  # steps of this size, taken modulo 1, spread evenly whatever their number
SOLID, DASHED = "-", (0, (3, 1.5))
BENDS, BOX, INCHES = (0.0, 0.15, -0.15, 0.3, -0.3, 0.45, -0.45), (0.4, 0.3), (1.1, 0.75)
"""How arrows may bend; half a node's box, in places; inches from one place to the next."""


def path_graph(found: PathEffects) -> Picture:
    """Draw the edges that most problems show (corrected p) as a graph: heads and MLPs by layer from below, the
    logits on top; the wider, the larger the share.

    Solid lines are with the insertion's effect, dashed ones against it. On the 20 widest edges stand their number and, into a
    head, those of q, k and v that most problems show. Where a node stands in its layer means nothing. Without edges a sentence
    says why. An edge into a head is that of q, k and v together; where this is not to be drawn, the largest of the others.
    """
    table = turned(found, found.table())
    column, words = ("share", "share of the insertion's effect")
    if not found.established:  # there is nothing to have a share of
        column, words = "effect", "mean effect, with the median total effect"
    sure = table["p_corrected"] < found.level
    rows = largest_first(table[sure], column)
    rows = rows.iloc[np.argsort(~rows["part"].isin(["", TOGETHER]), kind="stable")]
    rows = largest_first(rows.drop_duplicates(["sender", "receiver"]), column)
    places = _places(list(dict.fromkeys([*table["sender"], *table["receiver"]])))
    across, up = ([place[axis] for place in places.values()] for axis in (0, 1))
    picture, axes = draw.panel(max(4.6, 1.1 * (max(across) - min(across)) + 2.0), max(3.0, 0.75 * len(set(up)) + 1.4))
    shown = table[sure].groupby(["sender", "receiver"])["part"]
    letters = {each: ", ".join(name for name in "qkv" if name in set(parts)) for each, parts in shown}
    _draw_edges(axes, rows, column, places, letters)
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
    none: Style = {"linestyle": "none"}
    line: Style = {"color": "0.25", "linewidth": 1.5}
    n = count_of(int(sure.sum()), "edge")
    widest = f"; numbers on the {NUMBERED} widest" * (len(rows) > NUMBERED)
    entries = [
        (f"with the effect; width and number: {words}", {"linestyle": SOLID, **line}),
        ("against the effect", {"linestyle": DASHED, **line}),
        (f"{n} that most problems show (p < {found.level:.3g}, corrected){widest}", none),
    ]
    if rows.empty:
        entries = [(found.headline(), none)]
    draw.key_below(picture, entries, ncols=1)
    return picture


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
        others = [place for node, place in places.items() if node not in (row["sender"], row["receiver"])]
        bend, free = _route(start, end, np.array(taken), np.array(others).reshape(-1, 2))
        arrow |= {"connectionstyle": f"arc3,rad={bend}"}
        arrow |= {"linestyle": SOLID if row[column] >= 0 else DASHED, "color": "0.25", "shrinkA": 13, "shrinkB": 13}
        axes.annotate("", tuple(end), tuple(start), arrowprops=arrow, zorder=1)
        if rank < NUMBERED:
            text = f"{row[column]:.2f} {letters.get((row['sender'], row['receiver']), '')}".rstrip()
            box = {"facecolor": "white", "edgecolor": "none", "pad": 0.6, "alpha": 0.85}
            taken.append(free)
            axes.text(*taken[-1], text, fontsize=7, ha="center", va="center", bbox=box, zorder=2)


def _route(
    start: np.ndarray, end: np.ndarray, taken: np.ndarray, others: np.ndarray
) -> tuple[float, tuple[float, float]]:
    """Return how an arrow bends to pass under the fewest `others` (nodes), and its point that is farthest from all that is
    `taken`; a number is wider than high."""
    t, (dx, dy), found = np.linspace(0.15, 0.85, 15)[:, None], (end - start) * INCHES, []
    for bend in BENDS:  # as matplotlib's arc3
        middle = (start + end) / 2 + bend * np.array([dy, -dx]) / INCHES
        at = (1 - t) ** 2 * start + 2 * t * (1 - t) * middle + t**2 * end
        under = int((np.abs(at[:, None] - others) < BOX).all(-1).any(0).sum())
        free = np.linalg.norm(np.abs(at[:, None] - taken) / (1.0, 0.5), axis=-1).min(1)
        found.append((under, abs(bend), bend, at, free))
    _, _, bend, at, free = min(found, key=lambda each: each[:3])
    x, y = at[np.argmax(free)]
    return bend, (float(x), float(y))


def _places(nodes: list[str]) -> dict[str, tuple[float, float]]:
    """Place nodes layer by layer from below, an MLP above its layer's heads, the logits on top; layers shifted, so that few
    edges pass over a node."""

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
