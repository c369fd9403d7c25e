"""Pictures of sets of heads: how they were grown, what they do on fresh problems, what they bring without the tokens."""

import textwrap

import numpy as np

from ..circuits.minimal_sets import HeadSet, MinimalSets
from ..circuits.transfer import Transfer
from ..core.arguments import count_of
from ..statistics import median_interval
from .plots import (
    GREY,
    HATCHES,
    LINES,
    MADE_WITH,
    Axes,
    Picture,
    Style,
    draw_series,
    key_below,
    name_axes,
    panel,
    words_of,
)

WHAT = {
    "sufficient": "they alone see the span: share of the effect brought",
    "necessary": "they alone cannot see it: share of the effect taken away",
}


def set_growth(found: MinimalSets) -> Picture:
    """A panel per set: the share of the effect at every step, where it was sought and on fresh problems.

    Heads come (+) from left to right and go (-) where the set was pruned; the last step is the set. The dotted line is the
    share that was asked for, the grey bar at the end what random sets of the same size and layers do on the fresh problems.
    """
    longest = max(1, *(len(each.steps) for each in found.both))
    picture = Picture(figsize=(2 * (0.32 * longest + 2.8), 4.4), layout="constrained")
    axes: np.ndarray = picture.subplots(1, 2, sharey=True)
    for place, each in zip(axes, found.both, strict=True):
        _one_set(place, found, each)
    picture.suptitle(words_of(found, *MADE_WITH), fontsize=8)
    handles = {label: one for place in axes for one, label in zip(*place.get_legend_handles_labels(), strict=True)}
    key_below(picture, handles=list(handles.values()), labels=list(handles), ncols=1)
    return picture


def _one_set(axes: Axes, found: MinimalSets, each: HeadSet) -> None:
    table = found.growth(each)[lambda made: made["set"] == "step"]
    x = np.arange(len(table))
    for number, (column, words) in enumerate((("share", "problems of the search"), ("fresh_share", "fresh problems"))):
        limits = table[f"{column}_ci_low"].to_numpy(float), table[f"{column}_ci_high"].to_numpy(float)
        draw_series(axes, x, table[column].to_numpy(float), limits, number, f"{words} (band: its limits)")
    axes.axhline(found.share, color="black", linestyle=":", linewidth=0.9, label="share asked for")
    axes.axhline(0, color="0.4", linewidth=0.8)
    if each.sets and found.established[1]:
        shares = np.asarray(found.shares(each.random, fresh=True).estimate)
        style: Style = {"color": GREY, "linewidth": 5, "solid_capstyle": "butt", "alpha": 0.7}
        axes.plot(
            [len(table) - 0.5] * 2, [shares.min(), shares.max()], label="random sets, fresh problems: range", **style
        )
        axes.plot(len(table) - 0.5, np.median(shares), "D", color="black", markersize=4, label="their median")
    axes.set_xticks(x, table["changed"], rotation=90)
    axes.set_xlim(-0.5, max(len(table), 1))
    outcome = count_of(len(each.heads), "head") if each.heads else "none found"
    name_axes(axes, x="head that comes or goes", y=textwrap.fill(WHAT[each.side], 34), title=f"{each.side}: {outcome}")


def transfer_bars(found: Transfer) -> Picture:
    """The median outcome without the tokens, with them, and without them but heads moved, as by them or as in the controls.

    Bars are medians over problems, whiskers the intervals of their order statistics. They are of levels, which differ between
    problems; the test of what comes back is paired, and a star stands where most problems show it (corrected p).
    """
    values = {"base": found.base, "inserted": found.inserted}
    values |= {f"base + {name.lower()}": found.base + found.per_cell[:, at] for at, name in enumerate(found.cells)}
    made = median_interval(found.by_group(np.stack(list(values.values()), 1)), confidence=found.confidence)
    picture, axes = panel(0.8 * len(values) + 2.0, 3.4)
    middle, low, high = (np.asarray(each, dtype=float) for each in (made.estimate, made.low, made.high))
    sure = np.concatenate([[False, False], np.nan_to_num(found.p_corrected, nan=1.0) < found.level])
    for at, name in enumerate(values):
        colour = LINES[0 if at == 1 else 1 if at == 2 else 5][0] if at else GREY
        axes.bar(at, middle[at], 0.7, color=colour, hatch=HATCHES[at % len(HATCHES)], edgecolor="white", label=name)
        if np.isfinite(low[at]):
            axes.plot([at, at], [low[at], high[at]], color="black", linewidth=1.2)
        if sure[at]:
            axes.plot(at, middle[at], "*", color="white", markeredgecolor="black", markersize=10)
    axes.axhline(middle[0], color="0.4", linestyle=":", linewidth=0.9)
    axes.axhline(middle[1], color=LINES[0][0], linestyle=":", linewidth=0.9)
    axes.set_xticks(range(len(values)), [name.replace(" + ", "\n+ ") for name in values], rotation=30, ha="right")
    name_axes(axes, y=f"median outcome ({found.unit})", title=words_of(found, *MADE_WITH))
    return picture
