"""Pictures of circuits: direct and indirect parts, edges as a graph, sites by layer and token."""

from collections.abc import Mapping

import numpy as np
import pandas as pd

from ..circuits.cells import LOGITS, POSITION, TOGETHER
from ..circuits.paths import WAYS, DirectEffects, PathEffects
from ..circuits.site_patches import ALL, PositionMap, SitePatches
from ..core.arguments import count_of
from ..core.heads import Head
from ..runtime.results import largest_first, turned
from .plots import (
    HATCHES,
    LINES,
    MADE_WITH,
    Axes,
    Picture,
    Style,
    chosen_column,
    draw_maps,
    draw_stack,
    end_of,
    key,
    key_below,
    name_axes,
    panel,
    words_of,
)

WIDEST = 6.0
"""Points of the widest edge of a graph."""
JOINED = {"together": "+", "either": "|"}
"""Between inputs of an edge that act only together, or in each other's place."""
NUMBERED = 20
"""Edges of a graph that bear their number, the widest ones: more would lie over each other."""
GOLDEN = 0.618034
"""Steps of this size, taken modulo 1, spread evenly whatever their number."""
WAY_WORDS = dict(zip(WAYS, ("straight to the logits", "through later parts of the model"), strict=True))
SOLID, DASHED = "-", (0, (3, 1.5))


def direct_bars(found: DirectEffects, *, top: int = 12) -> Picture:
    """A stacked bar per head: what it writes straight to the logits, and what goes through later parts.

    Means over problems, which add up: shares of the mean total effect where that is known, else in the outcome's unit. Bars of
    one head may point both ways; the diamond is their sum. A star stands at a way that most problems show (corrected p).
    """
    table = turned(found, found.table())
    shares = bool(table["effect_fraction"].notna().any())
    column, words = ("effect_fraction", "part of the insertion's effect") if shares else ("effect", "mean effect")
    table = table.set_index("of")
    heads = [str(found.heads[at]) for at in np.argsort(-np.abs(found.effect.mean(0)), kind="stable")[:top]]
    ways = {way: table[table["way"] == way].loc[heads] for way in WAYS}
    picture, axes = panel(max(4.6, 0.5 * len(heads) + 2.0), 3.4)
    series = [
        (f"{way}: {WAY_WORDS[way]}", rows[column], {"color": LINES[number][0], "hatch": HATCHES[2 * number]})
        for number, (way, rows) in enumerate(ways.items())
    ]
    sums = draw_stack(axes, series)
    star: Style = {"color": "white", "markeredgecolor": "black", "markersize": 9, "linestyle": "none"}
    for number, (bars, rows) in enumerate(zip(axes.containers, ways.values(), strict=True)):
        sure = (rows["p_corrected"] < found.level).to_numpy()
        middle = np.array([bar.get_y() + bar.get_height() / 2 for bar in bars])
        label = None if number else f"most problems show it (p < {found.level:.3g}, corrected)"
        axes.plot(np.flatnonzero(sure), middle[sure], "*", label=label, **star)
    axes.plot(np.arange(len(heads)), sums, "D", color="black", markersize=4, label="both together: the head's")
    axes.set_xticks(range(len(heads)), heads, rotation=45, ha="right")
    name_axes(axes, y=f"{words}\n({found.quantity(column).unit})", title=words_of(found, *MADE_WITH))
    key_below(picture)
    return picture


def path_graph(found: PathEffects, *, part: str = TOGETHER, only_found: bool = True, smallest: float = 0.01) -> Picture:
    """The edges as a graph: heads and MLPs by layer from below, the logits on top; the wider, the larger the share.

    Solid lines are with the insertion's effect, dashed ones against it; grey tones do not carry meaning. On the 20 widest
    edges stand their number and, into a head, those of q, k and v that most problems show: "k+v" where they act only together,
    "k|v" in each other's place. Where a node stands in its layer means nothing.

    Parameters
    ----------
    part : through what edges enter heads: "qkv" (where that is not among those to draw, the largest of the others), "q", "k"
        or "v".
    only_found : draw the edges that most problems show (corrected p) alone; False draws all whose share is `smallest` or more.

    Where there is no such edge, a sentence under the nodes says so and, as far as it is known, why.
    """
    table = turned(found, found.table())
    column, words = ("share", "share of the insertion's effect")
    if not found.established:  # there is nothing to have a share of
        column, words = "effect", "mean effect, with the median total effect"
    sure = table["p_corrected"] < found.level
    rows = largest_first(table[sure if only_found else table[column].abs() >= smallest], column)
    rows = rows[rows["part"].isin(["", part]) | (part == TOGETHER)]
    rows = rows.iloc[np.argsort(~rows["part"].isin(["", part]), kind="stable")]
    rows = largest_first(rows.drop_duplicates(["sender", "receiver"]), column)
    places = _places(list(dict.fromkeys([*table["sender"], *table["receiver"]])))
    across, up = ([place[axis] for place in places.values()] for axis in (0, 1))
    wide, high = max(across) - min(across), len(set(up))
    picture, axes = panel(max(4.6, 1.1 * wide + 2.0), max(3.0, 0.75 * high + 1.4))
    _draw_edges(axes, rows, column, places, _letters(found, table[sure]))
    linked = {*rows["sender"], *rows["receiver"]}
    for node, (x, y) in places.items():
        ink, shape = ("black", "0.7")[node not in linked], "round" if node.startswith("L") else "square"
        box = {"boxstyle": f"{shape},pad=0.3", "facecolor": "white", "edgecolor": ink, "linewidth": 1.1}
        color = "black" if node in linked else "0.55"
        axes.text(x, y, node, fontsize=8, ha="center", va="center", bbox=box, color=color, zorder=3)
    axes.set_xlim(min(across) - 0.6, max(across) + 0.6)
    axes.set_ylim(-0.6, max(up) + 0.6)
    axes.set_axis_off()
    axes.set_title(words_of(found, *MADE_WITH), fontsize=9)
    drawn = f"that most problems show (p < {found.level:.3g}, corrected)" if only_found else f"of {smallest:g} or more"
    none, line = {"linestyle": "none"}, {"color": "0.25", "linewidth": 1.5}
    entries: list[tuple[str, Style]] = [
        (f"with the effect; width and number: {words}", {"linestyle": SOLID, **line}),
        ("against the effect", {"linestyle": DASHED, **line}),
        (
            f"{count_of(len(rows), 'edge')} {drawn}" + f"; numbers on the {NUMBERED} widest" * (len(rows) > NUMBERED),
            none,
        ),
    ]
    if rows.empty:
        which = f"that enters by {part} " * (part != TOGETHER)
        size = "share" if found.established else "mean effect"
        why = found.why_none() or f"No edge {which}is among those that most problems show."
        entries = [(why if only_found else f"No edge {which}has a {size} {drawn}.", none)]
    key_below(picture, handles=key(entries), ncols=1)
    return picture


def _letters(found: PathEffects, sure: pd.DataFrame) -> dict[tuple[str, str], str]:
    """(sender, receiver) -> which of q, k and v most problems show, and how they act where that is known."""
    shown = {
        ends: ", ".join(letter for letter in "qkv" if letter in set(parts))
        for ends, parts in sure.groupby(["sender", "receiver"])["part"]
    }
    how = found.together().query("how != ''")
    how = how.sort_values("inputs", key=lambda each: -each.str.len(), kind="stable")
    return shown | {
        (row["sender"], row["receiver"]): JOINED[row["how"]].join(row["inputs"]) for row in how.to_dict("records")
    }


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
        arrow = {"arrowstyle": "-|>", "linewidth": max(size, 0.6), "mutation_scale": 9 + size, "color": "0.25"}
        arrow |= {"linestyle": SOLID if row[column] >= 0 else DASHED, "shrinkA": 13, "shrinkB": 13}
        axes.annotate("", tuple(end), tuple(start), arrowprops=arrow, zorder=1)
        if rank < NUMBERED:
            text = f"{row[column]:.2f} {letters.get((row['sender'], row['receiver']), '')}".rstrip()
            box = {"facecolor": "white", "edgecolor": "none", "pad": 0.6, "alpha": 0.85}
            taken.append(_free(start, end, taken))
            axes.text(*taken[-1], text, fontsize=6.5, ha="center", va="center", bbox=box, zorder=2)


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

    def level(node: str) -> float:
        if node == LOGITS:
            return np.inf
        return int(node[3:]) + 0.5 if node.startswith("MLP") else float(Head.parse(node).layer)

    by_level: dict[float, list[str]] = {}
    for node in sorted(nodes, key=lambda node: (level(node), Head.parse(node).head if node.startswith("L") else 0)):
        by_level.setdefault(level(node), []).append(node)
    width = max(0.3 * len(by_level) + 1, *map(len, by_level.values()))
    found: dict[str, tuple[float, float]] = {}
    for y, beside in enumerate(by_level.values()):
        shift = 0.0 if beside == [LOGITS] else (y * GOLDEN % 1 - 0.5) * max(width - len(beside), 0.6)
        found |= {node: (x - (len(beside) - 1) / 2 + shift, float(y)) for x, node in enumerate(beside)}
    return found


def site_map(found: SitePatches | PositionMap, *, value: str | None = None, limit: float | None = None) -> Picture:
    """Layer × token for each kind of site, or head × token and head × part of the span: activation patching's picture.

    0 in the middle of the colours, a minus in clearly negative cells, strokes where most problems show it (corrected p), grey
    where no problem has that token. The questions' first tokens stand left, their last ones right, all of them at the end.

    Parameters
    ----------
    value : the column of the table to draw; default the share of the effect, where that is known.
    limit : the end of the colour scale.
    """
    table = turned(found, found.table())
    value, quantity = chosen_column(found, table, value)
    if isinstance(found, SitePatches):
        of_span = "; of the span" if found.positions[-1].startswith("span ") else ""
        x, y = f"token of the question, from either end{of_span}", "layer (zero-based)"
        titles, names, rows = found.sites, found.positions, list(map(str, found.layers))
    else:
        x, y = "token of the question; part of the span", "head (zero-based)"
        titles, names, rows = ("",), found.places, list(map(str, found.heads))
    absolute = any(name.startswith(POSITION) for name in names)
    shape = len(titles), len(rows), len(names)
    grids, p = (table[name].to_numpy(dtype=float).reshape(shape) for name in (value, "p_corrected"))
    with np.errstate(invalid="ignore"):
        hatched = p < found.level
    return draw_maps(
        grids,
        titles=titles,
        columns=list(map(_tick, names)),
        rows=rows,
        x="position in the prompt" if absolute else x,
        y=y,
        limit=limit or end_of(grids),
        hatched=hatched,
        label=value.replace("_", " ") + (f" ({quantity.unit})" if quantity.unit else ""),
        title=words_of(found, *MADE_WITH),
        claim=f"p < {found.level:.3g}, corrected: {quantity.claim}",
        edges=_edges(names),
    )[0]


def _tick(name: str) -> str:
    """A token's name at an axis that says what is counted."""
    return name.removeprefix("row ").removeprefix(POSITION)


def _edges(names: tuple[str, ...]) -> list[int]:
    """Where the columns change from first tokens to last ones, to all, and to parts of the span."""

    def kind(name: str) -> tuple[bool, str]:
        place = _tick(name)
        label = place.removeprefix("span ")
        return place.startswith("span "), ALL if label == ALL else "last" if label.startswith("-") else "first"

    return [at for at in range(1, len(names)) if kind(names[at]) != kind(names[at - 1])]
