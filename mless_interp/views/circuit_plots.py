"""Pictures of circuits: direct and indirect parts, edges as a graph, sites by layer and token."""

from typing import Any

import numpy as np
import pandas as pd

from ..circuits.cells import POSITION
from ..circuits.paths import LOGITS, TOGETHER, WAYS, DirectEffects, PathEffects
from ..circuits.site_patches import ALL, PositionMap, SitePatches
from ..core.arguments import count_of
from ..core.heads import Head
from ..runtime.results import largest_first
from .head_plots import MADE_WITH
from .plots import HATCHES, LINES, Picture, draw_cells, key, key_below, name_axes, panel, words_of

WIDEST = 6.0
"""Points of the widest edge of a graph."""
JOINED = {"together": "+", "either": "|"}
"""Between inputs of an edge that act only together, or in each other's place."""
NUMBERED = 20
"""Edges of a graph that bear their number, the widest ones: more would lie over each other."""
GOLDEN = 0.618034
"""Steps of this size, taken modulo 1, spread evenly whatever their number."""
WAY_WORDS = dict(zip(WAYS, ("straight to the logits", "through later parts of the model"), strict=True))
MEAN_SHARE, EFFECT = "effect_fraction", "effect"


def _column(table: pd.DataFrame) -> tuple[str, str]:
    """The column of means to draw: shares where they are defined, which add up as the means do; and what it is."""
    shares = bool(table[MEAN_SHARE].notna().any())
    return (MEAN_SHARE, "part of the insertion's effect") if shares else (EFFECT, "mean effect")


def direct_bars(found: DirectEffects, *, top: int = 12) -> Picture:
    """A stacked bar per head: what it writes straight to the logits, and what goes through later parts.

    Means over problems, which add up: shares of the mean total effect where that is known, else in the outcome's unit. Bars of
    one head may point both ways; the diamond is their sum. A star stands at a way that most problems show (corrected p).
    """
    column, words = _column(found.table())
    table = found.table().set_index("of")
    size = np.abs(found.effect.mean(0))
    heads = [str(found.heads[at]) for at in np.argsort(-size, kind="stable")[:top]]
    picture, axes = panel(max(4.6, 0.5 * len(heads) + 2.0), 3.4)
    at, above, below = np.arange(len(heads)), np.zeros(len(heads)), np.zeros(len(heads))
    for number, way in enumerate(WAYS):
        rows = table[table["way"] == way].loc[heads]
        height = rows[column].to_numpy(dtype=float)
        bottom = np.where(height >= 0, above, below)
        style = {"color": LINES[number][0], "hatch": HATCHES[2 * number], "edgecolor": "white", "linewidth": 0}
        axes.bar(at, height, 0.7, bottom, label=f"{way}: {WAY_WORDS[way]}", **style)
        sure = (rows["p_corrected"] < found.level).to_numpy()
        starred = f"most problems show it (p < {found.level:.3g}, corrected)" if way == WAYS[-1] else None
        star = {"color": "white", "markeredgecolor": "black", "markersize": 9, "linestyle": "none", "label": starred}
        axes.plot(at[sure], (bottom + height / 2)[sure], "*", **star)
        above, below = above + np.maximum(height, 0), below + np.minimum(height, 0)
    axes.plot(at, above + below, "D", color="black", markersize=4, label="both together: the head's")
    axes.axhline(0, color="0.4", linewidth=0.8)
    axes.set_xticks(at, heads, rotation=45, ha="right")
    name_axes(axes, y=f"{words}\n({found.quantity(column).unit})", title=words_of(found, *MADE_WITH))
    key_below(picture)
    return picture


def path_graph(found: PathEffects, *, part: str = TOGETHER, only_found: bool = True, smallest: float = 0.01) -> Picture:
    """The edges as a graph: heads and MLPs by layer from below, the logits on top; the wider, the larger the share.

    Solid lines are with the insertion's effect, dashed ones against it; grey tones do not carry meaning. On the 20 widest
    edges stand their number and, into a head, those of q, k and v that most problems show: "k+v" where they act only together,
    "k|v" in each other's place. Where a node stands in its layer
    means nothing.

    Parameters
    ----------
    part : through what edges enter heads: "qkv" (where that is not among those to draw, the largest of the others), "q", "k"
        or "v".
    only_found : draw the edges that most problems show (corrected p) alone; False draws all whose share is `smallest` or more.

    Where there is no such edge, a sentence under the nodes says so and, as far as it is known, why.
    """
    table = found.table()
    column, words = "share", "share of the insertion's effect"
    if not found.established:  # there is nothing to have a share of
        table[column], words = found.whole.turned(table[EFFECT].to_numpy()), "mean effect, with the median total effect"
    sure = table["p_corrected"] < found.level
    wanted = sure if only_found else table[column].abs() >= smallest
    rows = largest_first(table[wanted & (table["part"].isin(["", part]) | (part == TOGETHER))], column)
    other = ~rows["part"].isin(["", part])
    rows = rows.iloc[np.argsort(other, kind="stable")].drop_duplicates(["sender", "receiver"])
    nodes = list(dict.fromkeys([*table["sender"], *table["receiver"]]))
    places = _places(nodes)
    levels = sorted({y for _, y in places.values()})
    width = max(x for x, _ in places.values()) - min(x for x, _ in places.values())
    picture, axes = panel(max(4.6, 1.1 * width + 2.0), max(3.0, 0.75 * len(levels) + 1.4))
    rows = largest_first(rows, column)
    largest = float(rows[column].abs().max()) if len(rows) else 1.0
    taken = list(places.values())
    how = found.together().query("how != ''")
    mark = {
        (str(row["sender"]), str(row["receiver"])): JOINED[row["how"]].join(row["inputs"])
        for row in how.sort_values("inputs", key=lambda each: -each.str.len(), kind="stable").to_dict("records")
    }
    shown = table[sure].groupby(["sender", "receiver"])["part"].agg(set).to_dict()
    for rank, row in enumerate(rows.to_dict("records")):
        start, end = (np.array(places[row[node]]) for node in ("sender", "receiver"))
        size = WIDEST * abs(row[column]) / largest
        arrow = {
            "arrowstyle": "-|>",
            "linewidth": max(size, 0.6),
            "linestyle": "-" if row[column] >= 0 else (0, (3, 1.5)),
            "color": "0.25",
            "shrinkA": 13,
            "shrinkB": 13,
            "mutation_scale": 9 + size,
        }
        axes.annotate("", end, start, arrowprops=arrow, zorder=1)
        if rank >= NUMBERED:
            continue
        ends = (row["sender"], row["receiver"])
        letters = mark.get(ends) or ", ".join(letter for letter in "qkv" if letter in shown.get(ends, ()))
        text = f"{row[column]:.2f}" + (f" {letters}" if letters else "")
        box = {"facecolor": "white", "edgecolor": "none", "pad": 0.6, "alpha": 0.85}
        x, y = _free(start, end, taken)
        taken.append((x, y))
        axes.text(x, y, text, fontsize=6.5, ha="center", va="center", bbox=box, zorder=2)
    for node, (x, y) in places.items():
        shape = "round,pad=0.3" if node.startswith("L") else "square,pad=0.3"
        linked = node in set(rows["sender"]) | set(rows["receiver"])
        box = {"boxstyle": shape, "facecolor": "white", "edgecolor": "black" if linked else "0.7", "linewidth": 1.1}
        axes.text(
            x, y, node, fontsize=8, ha="center", va="center", bbox=box, color="black" if linked else "0.55", zorder=3
        )
    axes.set_xlim(min(x for x, _ in places.values()) - 0.6, max(x for x, _ in places.values()) + 0.6)
    axes.set_ylim(-0.6, max(levels) + 0.6)
    axes.set_axis_off()
    axes.set_title(words_of(found, *MADE_WITH), fontsize=9)
    line: dict[str, Any] = {"color": "0.25", "linewidth": 1.5}
    drawn = f"that most problems show (p < {found.level:.3g}, corrected)" if only_found else f"of {smallest:g} or more"
    numbered = f"; numbers on the {NUMBERED} widest" if len(rows) > NUMBERED else ""
    if rows.empty:
        which, size = (
            f"that enters by {part} " * (part != TOGETHER),
            "share" if found.established else "mean effect",
        )
        why = found.why_none() or f"No edge {which}is among those that most problems show."
        said = why if only_found else f"No edge {which}has a {size} {drawn}."
        key_below(picture, handles=key([(said, {"linestyle": "none"})]), ncols=1)
        return picture
    entries: list[tuple[str, Any]] = [
        (f"with the effect; width and number: {words}", {"linestyle": "-", **line}),
        ("against the effect", {"linestyle": (0, (3, 1.5)), **line}),
        (f"{count_of(len(rows), 'edge')} {drawn}{numbered}", {"linestyle": "none"}),
    ]
    key_below(picture, handles=key(entries), ncols=1)
    return picture


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
    table = found.table()
    value = found.default_column(table) if value is None else value
    if value not in table:
        raise ValueError(f"no column {value!r} to draw; there are {', '.join(table.columns)}")
    absolute = any(
        name.startswith(POSITION) for name in (found.positions if isinstance(found, SitePatches) else found.places)
    )
    if isinstance(found, SitePatches):
        of_span = "; of the span" if found.positions[-1].startswith("span ") else ""
        x, y = f"token of the question, from either end{of_span}", "layer (zero-based)"
        titles, names = found.sites, found.positions
        rows = list(map(str, found.layers))
    else:
        titles, names, x, y = ("",), found.places, "token of the question; part of the span", "head (zero-based)"
        rows = [str(head) for head in found.heads]
    x = "position in the prompt" if absolute else x
    shape = len(titles), len(rows), len(names)
    grids, p = (table[name].to_numpy(dtype=float).reshape(shape) for name in (value, "p_corrected"))
    finite = grids[np.isfinite(grids)]
    limit = limit or (float(np.abs(finite).max()) if finite.size else 1.0) or 1.0
    size = max(2.6, 0.21 * len(names) + 0.9), max(2.2, 0.24 * len(rows) + 1.2)
    picture = Picture(figsize=(size[0] * shape[0] + 1.0, size[1] + 0.5), layout="constrained")
    axes: Any = picture.subplots(1, shape[0], squeeze=False)
    image: Any = None
    hatched = False
    for at in range(shape[0]):
        with np.errstate(invalid="ignore"):
            marked = [(int(row), int(column)) for row, column in zip(*np.nonzero(p[at] < found.level), strict=True)]
        hatched = hatched or bool(marked)
        image = draw_cells(axes[0, at], np.clip(grids[at], -limit, limit), limit=limit, hatched=marked)
        axes[0, at].set_xticks(range(len(names)), list(map(_tick, names)), rotation=90)
        axes[0, at].set_yticks(range(len(rows)), rows)
        name_axes(axes[0, at], x=x, y=y if at == 0 else None, title=titles[at] or None)
        for edge in _edges(names):
            axes[0, at].axvline(edge - 0.5, color="black", linewidth=0.9)
    quantity = found.quantity(value)
    bar = picture.colorbar(image, ax=axes, shrink=0.9)
    bar.set_label(value.replace("_", " ") + (f" ({quantity.unit})" if quantity.unit else ""), fontsize=8)
    bar.ax.tick_params(labelsize=7)
    picture.suptitle(words_of(found, *MADE_WITH), fontsize=9)
    if hatched:
        strokes = {"facecolor": "white", "hatch": "////", "edgecolor": "black", "linewidth": 0.5}
        key_below(picture, handles=key([(f"p < {found.level:.3g}, corrected: {quantity.claim}", strokes)]))
    return picture


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
