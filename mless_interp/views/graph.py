"""The graph of a circuit: heads and MLPs by layer, edges as wide as the part of the effect that they carry."""

from collections.abc import Mapping

import numpy as np
import pandas as pd

from ..circuits.paths import LOGITS, TOGETHER, PathEffects
from ..core.arguments import count_of
from ..core.heads import Head
from ..runtime.results import largest_first, turned
from .plots import Axes, Picture, Style, key, key_below, name_axes, panel, words_of

WIDEST = 6.0
"""Points of the widest edge."""
NUMBERED = 20
"""Edges that bear their number, the widest ones: more would lie over each other."""
JOINED = {"together": "+", "either": "|"}
"""Between inputs of an edge that act only together, or in each other's place."""
GOLDEN = 0.618034
"""Steps of this size, taken modulo 1, spread evenly whatever their number."""
SOLID, DASHED = "-", (0, (3, 1.5))


def path_graph(found: PathEffects, *, part: str = TOGETHER, only_found: bool = True, smallest: float = 0.01) -> Picture:
    """Draw the edges as a graph: heads and MLPs by layer from below, the logits on top; the wider, the larger the share.

    Solid lines are with the insertion's effect, dashed ones against it; grey tones do not carry meaning. On the 20 widest
    edges stand their number and, into a head, those of q, k and v that most problems show: "k+v" where they act only together,
    "k|v" in each other's place. Where a node stands in its layer means nothing. Without edges a sentence says why.

    Parameters
    ----------
    part : through what edges enter heads: "qkv" (where that is not among those to draw, the largest of the others), "q", "k"
        or "v".
    only_found : draw the edges that most problems show (corrected p) alone; False draws all whose share is `smallest` or more.
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
    picture, axes = panel(max(4.6, 1.1 * (max(across) - min(across)) + 2.0), max(3.0, 0.75 * len(set(up)) + 1.4))
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
    which = f"that most problems show (p < {found.level:.3g}, corrected)" if only_found else f"of {smallest:g} or more"
    none: Style = {"linestyle": "none"}
    line: Style = {"color": "0.25", "linewidth": 1.5}
    entries = [
        (f"with the effect; width and number: {words}", {"linestyle": SOLID, **line}),
        ("against the effect", {"linestyle": DASHED, **line}),
        (
            f"{count_of(len(rows), 'edge')} {which}" + f"; numbers on the {NUMBERED} widest" * (len(rows) > NUMBERED),
            none,
        ),
    ]
    if rows.empty:
        enters = f"that enters by {part} " * (part != TOGETHER)
        why = found.why_none() or f"No edge {enters}is among those that most problems show."
        size = "share" if found.established else "mean effect"
        entries = [(why if only_found else f"No edge {enters}has a {size} {which}.", none)]
    key_below(picture, handles=key(entries), ncols=1)
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
