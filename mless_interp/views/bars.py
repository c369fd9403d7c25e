"""Bars: answers by treatment, activations before and after, parts of heads."""

import numpy as np
import pandas as pd

from ..answers import AccuracyResults
from ..answers.treatments import RANDOM
from ..circuits.paths import WAYS, DirectEffects
from ..mechanism import ActivationShift
from ..runtime.base_result import largest_first, place_of, turned
from . import draw
from .draw import HATCHES, LINES, Picture, Style, name_axes, name_ticks, reach_of, with_limits, words_of

_BOX = {"facecolor": "white", "alpha": 0.8, "linewidth": 0, "pad": 1}
STAR: Style = {"color": "white", "markeredgecolor": "black", "markersize": 9, "linestyle": "none"}


def accuracy_bars(results: AccuracyResults) -> Picture:
    """Draw accuracy by treatment in percent, with 95 % intervals over problems."""
    table = results.table()
    names, title = table["treatment"].astype(str), words_of(results, "model", "benchmark")
    return _bars(names, names, 100 * with_limits(table, "accuracy"), table["n"], title)


def bars_of_models(bars: pd.DataFrame, title: str) -> Picture:
    """Draw bars of accuracy of several models: a table of model, treatment and `percent`; `low` and `high` end an
    interval, `n` counts problems, where a row has them."""
    names = bars["treatment"] + "\n" + bars["model"]
    return _bars(names, bars["treatment"], with_limits(bars, "percent", ("low", "high")), bars["n"], title)


def _bars(names: pd.Series, treatments: pd.Series, percent: np.ndarray, n: pd.Series, title: str) -> Picture:
    """Draw bars of `percent` `[3, bar]` (`with_limits`), those of one treatment alike, and random sets grey."""
    end = min(100.0, 1.15 * float(np.nanmax([*percent.ravel(), 1.0])))
    picture, axes = draw.panel(max(4.2, 1.1 * len(names) + 1.6), 3.8)
    for at, (kind, count) in enumerate(zip(pd.factorize(treatments)[0], n, strict=True)):
        own: Style = {"color": LINES[kind % len(LINES)][0], "hatch": HATCHES[kind % len(HATCHES)]}
        style = {"color": draw.GREY} if str(treatments.iloc[at]).startswith(RANDOM.partition("{")[0]) else own
        axes.bar(at, percent[0, at], 0.7, alpha=0.85, edgecolor="white", **style)
        if np.isfinite(percent[:, at]).all():
            axes.errorbar(at, percent[0, at], yerr=reach_of(percent[:, [at]]), color="black", capsize=4)
        words = f"{percent[0, at]:.1f} %" if np.isfinite(percent[0, at]) else "undefined"
        words += f"\nn = {count:.0f}" * bool(np.isfinite(count))
        axes.text(at, 0.01 * end, words, ha="center", va="bottom", fontsize=7, bbox=_BOX)
    name_ticks(axes.xaxis, list(names), wide=18)
    axes.set_xlim(-0.6, len(names) - 0.4)
    axes.set_ylim(0.0, end)
    name_axes(axes, y="accuracy (%), bars: 95 % interval", title=title)
    return picture


def activation_histograms(shift: ActivationShift, *, contrast: str | None = None) -> Picture:
    """Draw MLP activations of all tokens before and after, as shares per unit of activation (log scale), and what changes.

    Below, after minus before in the same bins. Activations are no replicates: this is a picture, the intervals of the tables
    are the evidence. Source: methods §5.
    """
    counts = shift.histograms()
    contrast = shift.contrasts[0] if contrast is None else contrast
    place_of(contrast, shift.contrasts, "contrast")
    here = counts[(counts["contrast"] == contrast) & (counts["token_class"] == "all")]
    edges = np.append(here["bin_low"], here["bin_high"].iloc[-1])
    before, after = (here[f"{run}_density"].to_numpy() for run in ("before", "after"))
    picture, (above, below) = draw.panel(6.4, 4.6, 2, 1, height_ratios=(2.0, 1.0))
    above.stairs(before, edges, fill=True, color=LINES[0][0], alpha=0.35, label="before")
    above.stairs(after, edges, color=LINES[1][0], linestyle=LINES[1][1], linewidth=1.4, label="after")
    shares = np.concatenate([before, after])
    if (shares > 0).any():
        above.set_yscale("log")
        above.yaxis.set_major_formatter(lambda x, _: f"{x:g}")  # matplotlib's own writes formulas
        above.yaxis.set_minor_formatter("")
        above.set_ylim(bottom=shares[shares > 0].min() / 2)  # an empty bin has no logarithm
    above.legend(fontsize=7)
    title = f"{words_of(shift, 'model', 'insertion')}\nMLP of layer {shift.layer}, contrast {contrast}"
    name_axes(above, y="share of activations\nper unit", title=title)
    below.stairs(here["density_change"], edges, fill=True, color="0.45", hatch="//", edgecolor="white")
    below.axhline(color="0.4", linewidth=0.8)
    name_axes(below, x="activation (the outer bins hold everything beyond)", y="after − before")
    return picture


def direct_bars(found: DirectEffects, *, top: int = 12) -> Picture:
    """Draw a stacked bar per head: what it writes straight to the logits, and what goes through later parts.

    Heads stand as in the print, by the larger median of both ways. Bars are means over problems, which add up: shares of the
    mean total effect where that is known, else in the outcome's unit. Bars of one head may point both ways; the diamond is
    their sum. A star stands at a way that most problems show (corrected p).
    """
    table = turned(found, found.table())
    known = bool(table["effect_fraction"].notna().any())
    column, words = ("effect_fraction", "mean, as part of the mean effect") if known else ("effect", "mean effect")
    heads = list(largest_first(table, "median")["of"].unique()[:top])
    ways = {way: table[table["way"] == way].set_index("of").loc[heads] for way in WAYS}
    told = ("straight to the logits", "through later parts of the model")
    picture, axes = draw.panel(max(4.6, 0.5 * len(heads) + 2.0), 3.4)
    at, above, below = np.arange(len(heads)), np.zeros(len(heads)), np.zeros(len(heads))
    for number, (way, rows) in enumerate(ways.items()):
        height, sure = rows[column].to_numpy(), (rows["p_corrected"] < found.level).to_numpy()
        bottom = np.where(height >= 0, above, below)  # bars below 0 are stacked downwards
        above, below = above + np.maximum(height, 0), below + np.minimum(height, 0)
        style: Style = {"color": LINES[number][0], "hatch": HATCHES[2 * number], "edgecolor": "white", "linewidth": 0}
        axes.bar(at, height, 0.7, bottom, label=f"{way}: {told[number]}", **style)
        label = None if number else f"most problems show it (p < {found.level:.3g}, corrected)"
        axes.plot(at[sure], (bottom + height / 2)[sure], "*", label=label, **STAR)
    axes.axhline(color="0.4", linewidth=0.8)
    axes.plot(at, above + below, "D", color="black", markersize=4, label="both together: the head's effect")
    name_ticks(axes.xaxis, heads, rotation=45, ha="right")
    some = draw.some_of(len(heads), table["of"].nunique(), "heads")
    name_axes(axes, y=f"{words}\n({found.quantity(column).unit})", title=words_of(found) + some)
    draw.key_below(picture)
    return picture
