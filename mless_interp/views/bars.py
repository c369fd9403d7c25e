"""Bars: answers by treatment, activations before and after, parts of heads, what heads write, what a transfer brings."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pandas as pd

from ..answers import AccuracyResults
from ..circuits.head_writes import KINDS, LOOKS, SIDES, UNITS, HeadWrites
from ..circuits.paths import WAYS, DirectEffects
from ..circuits.transfer import Transfer
from ..core.arguments import count_of
from ..core.heads import Head, both_names
from ..mechanism import ActivationShift, AttentionDecomposition
from ..runtime.results import place_of, turned
from ..scores import AttentionProfile
from . import plots
from .lines import draw_curve, label_curve, shade_span
from .plots import GREY, HATCHES, LINES, Axes, Picture, Style, name_axes, name_ticks, reach_of, with_limits, words_of

_BOX = {"facecolor": "white", "alpha": 0.8, "linewidth": 0, "pad": 1}
STAR: Style = {"color": "white", "markeredgecolor": "black", "markersize": 9, "linestyle": "none"}


def accuracy_bars(results: AccuracyResults) -> Picture:
    """Draw accuracy by treatment in percent, with 95 % intervals over problems."""
    table = results.table()
    names, percent = list(table["treatment"].astype(str)), 100 * with_limits(table, "accuracy")
    picture, axes = plots.panel(max(4.2, 1.1 * len(names) + 1.6), 3.6)
    for at, n in enumerate(table["n"]):
        colour, hatch = LINES[at % len(LINES)][0], HATCHES[at % len(HATCHES)]
        axes.bar(at, percent[0, at], 0.7, color=colour, alpha=0.85, hatch=hatch, edgecolor="white", zorder=1)
        for ink, wide, order in (("white", 4.0, 2), ("black", 1.2, 3)):  # seen on dark bars and on white
            if np.isfinite(percent[:, at]).all():
                line: Style = {"linewidth": wide, "capthick": wide, "capsize": 4}
                axes.errorbar(at, percent[0, at], yerr=reach_of(percent[:, [at]]), color=ink, zorder=order, **line)
        words = f"{percent[0, at]:.1f} %" if np.isfinite(percent[0, at]) else "undefined"
        axes.text(at, 1.0, f"{words}\nn = {int(n)}", ha="center", va="bottom", fontsize=7, zorder=4, bbox=_BOX)
    name_ticks(axes.xaxis, names, rotation=20 if len(names) > 4 else 0)
    axes.set_xlim(-0.6, len(names) - 0.4)
    axes.set_ylim(0, min(100.0, 1.15 * float(np.nanmax([*percent.ravel(), 1.0]))))
    name_axes(axes, y="accuracy (%), bars: 95 % interval", title=words_of(results, "model", "benchmark"))
    return picture


def bars_and_profiles(
    bars: pd.DataFrame, named: Mapping[str, AttentionProfile], head: Head | str, *, bars_title: str
) -> Picture:
    """Draw bars of accuracy on the left (a table: model, treatment, percent); right, one head without and with each insertion.

    Each model and treatment has one row of `bars`, with the limits of an interval in `low` and `high` where it has one.
    Above right all at the same tokens, with the base prompt of the first profile; below right the whole sequences.
    """
    picture = Picture(figsize=(11.0, 6.0), layout="constrained")
    halves: Any = picture.subfigures(1, 2, width_ratios=(1.0, 1.3))
    axes, ends = halves[0].add_subplot(), ["percent", "low", "high"]
    models, treatments = list(dict.fromkeys(bars["model"])), list(dict.fromkeys(bars["treatment"]))
    bars = bars.set_index(["model", "treatment"]).reindex(columns=ends).astype(float)
    width = 0.8 / len(treatments)
    for number, treatment in enumerate(treatments):
        places = np.arange(len(models)) + (number - (len(treatments) - 1) / 2) * width
        values = bars.reindex([(model, treatment) for model in models]).to_numpy().T
        style = {"color": LINES[number][0], "hatch": HATCHES[number % 4], "edgecolor": "white"}
        drawn = axes.bar(places, values[0], width, label=plots.shortened(treatment), **style)
        axes.bar_label(drawn, fmt="%.0f", fontsize=7, label_type="center", bbox=_BOX)
        known = np.isfinite(values[1])
        line: Style = {"fmt": "none", "color": "black", "capsize": 3, "linewidth": 1}
        axes.errorbar(places[known], values[0][known], reach_of(values[:, known]), **line)
    name_ticks(axes.xaxis, models, fontsize=7, rotation=20 if len(models) > 2 else 0)
    axes.set_ylabel("accuracy (%)")
    axes.set_title(bars_title, fontsize=9)
    axes.legend(fontsize=7, loc="upper center", bbox_to_anchor=(0.5, -0.12), ncols=len(treatments), frameon=False)
    above, below = halves[1].subplots(2, 1)
    first = next(iter(named.values()))
    draw_curve(above, first.curve(head, "base", aligned=True), "none", 0)
    for number, (name, found) in enumerate(named.items(), start=1):
        draw_curve(above, found.curve(head, "inserted", aligned=True), name, number)
        draw_curve(below, found.curve(head, "inserted"), name, number)
    shade_span(below, first, "inserted")
    label_curve(above, f"{first.settings.get('model', '')}: {both_names(head)}", aligned=True)
    label_curve(below, "", aligned=False)
    return picture


def activation_histograms(
    shift: ActivationShift, *, contrast: str | None = None, token_class: str = "all", metric: str = "near_zero_arm"
) -> Picture:
    """Draw MLP activations before and after, as shares per unit of activation (log scale), and what changes.

    Below, after minus before in the same bins. Right, one `metric` by token class with its 95 % interval over problems.
    Activations are no replicates: the histogram is a picture, the intervals are the evidence. Source: methods §5.
    """
    counts = shift.histograms()
    contrast = str(counts["contrast"].iloc[0]) if contrast is None else contrast
    known = counts["contrast"] + "/" + counts["token_class"]
    place_of(f"{contrast}/{token_class}", dict.fromkeys(known), "histogram of contrast/token class")
    here = counts[known == f"{contrast}/{token_class}"]
    edges = np.append(here["bin_low"], here["bin_high"].iloc[-1])
    before, after = (here[f"{run}_density"].to_numpy() for run in ("before", "after"))
    picture = Picture(figsize=(9.6, 4.6), layout="constrained")
    places = picture.subplot_mosaic([["above", "beside"], ["below", "beside"]], height_ratios=(2.0, 1.0))
    above, below, beside = places["above"], places["below"], places["beside"]
    above.stairs(before, edges, fill=True, color=LINES[0][0], alpha=0.35, label="before")
    above.stairs(before, edges, color=LINES[0][0], linewidth=1.0)
    above.stairs(after, edges, color=LINES[1][0], linestyle=LINES[1][1], linewidth=1.4, label="after")
    shares = np.concatenate([before, after])
    if (shares > 0).any():
        above.set_yscale("log")
        above.yaxis.set_major_formatter(lambda x, _: f"{x:g}")  # matplotlib's own writes formulas
        above.yaxis.set_minor_formatter("")
        above.set_ylim(bottom=shares[shares > 0].min() / 2)  # an empty bin has no logarithm
    above.legend(fontsize=7)
    where = f"MLP of layer {shift.layer} (paper: layer {shift.layer + 1})"
    title = f"{words_of(shift, 'model', 'insertion')}\n{where}, contrast {contrast}, {token_class} tokens"
    name_axes(above, y="share of activations\nper unit", title=title)
    below.stairs(here["density_change"], edges, fill=True, color="0.45", hatch="//", edgecolor="white")
    below.axhline(0, color="0.4", linewidth=0.8)
    name_axes(below, x="activation (the outer bins hold everything beyond)", y="after − before")
    table = shift.by_class()
    place_of(metric, dict.fromkeys(table["metric"]), "metric")
    rows = table[(table["contrast"] == contrast) & (table["metric"] == metric) & (table["n"] > 0)]
    names = [f"{row.token_class} (n = {int(row.n)})" for row in rows.itertuples()]
    unit = f" ({rows['unit'].iloc[0]})" if len(rows) else ""
    plots.draw_forest(beside, names, [(metric, with_limits(rows, "change"), plots.FILLED)])
    name_axes(beside, x=f"{metric.replace('_', ' ')}: after − before{unit}")
    beside.set_title("by token class, n problems, 95 % intervals", fontsize=8)
    return picture


def lambda_heads(found: AttentionDecomposition, *, layer: int = 0, contrast: str | None = None) -> Picture:
    """Draw lambda of each head of a layer with its 95 % interval over problems, its null, and what it is not.

    Grey line: what uniform attention would retain, crosses: the control insertion. Open squares: the slope of the best
    global affine fit, which is another number. Filled where lambda differs from uniform (corrected p < 0.05).
    """
    table, picture, axes = _of_layer(found, layer, contrast)
    at, lam = np.arange(len(table)), with_limits(table, "lam")
    null = found.layer_table(contrast).set_index("layer").loc[layer, "lam_null"]
    axes.axhline(null, color=GREY, linewidth=1.6, label="uniform attention", zorder=1)
    if "lam_control" in table:
        axes.plot(at, table["lam_control"], "x", color="0.2", markersize=6, label=str(found.settings.get("control")))
    hollow: Style = {"color": LINES[1][0], "markerfacecolor": "none", "markersize": 5}
    axes.plot(at, table["fit_slope"], "s", label="slope of the fit (not lambda)", **hollow)
    axes.errorbar(at, lam[0], yerr=reach_of(lam), fmt="none", ecolor=LINES[0][0], linewidth=1.2, capsize=2)
    sure = (table["lam_p"] < found.alpha).to_numpy()
    for rows, words, style in ((sure, "differs", plots.FILLED), (~sure, "not shown to differ", plots.OPEN)):
        if rows.any():
            axes.plot(
                at[rows], lam[0][rows], label=f"lambda ({words} from uniform)", linestyle="none", markersize=5, **style
            )
    axes.set_ylim(min(0.0, float(np.nanmin(table["fit_slope"].fillna(0))) - 0.05), None)
    name_axes(axes, y="share of attention kept\noutside the span")
    plots.key_below(picture)
    return picture


def shares(found: AttentionDecomposition, *, layer: int = 0, contrast: str | None = None) -> Picture:
    """Draw each head's share in what a layer's attention changes in the residual stream, split into its parts.

    Bars: scale, bias, shift of positions, upstream (they may have different signs); points: their sum with its 95 %
    interval over problems. All heads sum to 1, before a norm of attention's output. A large share does not say that anything
    reads it.
    """
    table, picture, axes = _of_layer(found, layer, contrast)
    parts = {"scale": "scale", "bias": "bias", "shift": "shift of positions", "rest": "upstream"}
    series = [
        (words, table[f"{name}_share"].fillna(0), {"color": LINES[number][0], "hatch": HATCHES[number]})
        for number, (name, words) in enumerate(parts.items())
        if f"{name}_share" in table and (name != "rest" or layer > 0)
    ]
    plots.draw_stack(axes, series, 0.75)
    points: Style = {"fmt": "D", "color": "black", "markersize": 3, "linewidth": 1, "capsize": 2}
    whole = with_limits(table, "share")
    axes.errorbar(np.arange(len(table)), whole[0], yerr=reach_of(whole), label="sum", **points)
    name_axes(axes, y="share of the layer's\nresidual change")
    plots.key_below(picture, ncols=5)
    return picture


def _of_layer(found: AttentionDecomposition, layer: int, contrast: str | None) -> tuple[pd.DataFrame, Picture, Axes]:
    """The heads of a layer, and a picture with a place for each."""
    table = found.table(contrast)
    rows = table[table["layer"] == layer].sort_values("head").reset_index(drop=True)
    if not len(rows):
        raise ValueError(f"layer {layer} (zero-based) is not in this result; there are {sorted(set(table['layer']))}")
    picture, axes = plots.panel(max(5.0, 0.3 * len(rows) + 2.0), 3.6)
    name_ticks(axes.xaxis, list(rows["head"]))
    where = [f"contrast {contrast or found.contrasts[0]}", count_of(len(found.problem_ids), "problem")]
    title = ", ".join(filter(None, [words_of(found, "model", "insertion"), *where]))
    name_axes(axes, x=f"head of layer {layer} (zero-based; the paper's layer {layer + 1})", title=title)
    return rows, picture, axes


def direct_bars(found: DirectEffects, *, top: int = 12) -> Picture:
    """Draw a stacked bar per head: what it writes straight to the logits, and what goes through later parts.

    Means over problems, which add up: shares of the mean total effect where that is known, else in the outcome's unit. Bars of
    one head may point both ways; the diamond is their sum. A star stands at a way that most problems show (corrected p).
    """
    table = turned(found, found.table())
    known = bool(table["effect_fraction"].notna().any())
    column, words = ("effect_fraction", "part of the insertion's effect") if known else ("effect", "mean effect")
    heads = [str(found.heads[at]) for at in np.argsort(-np.abs(found.effect.mean(0)), kind="stable")[:top]]
    ways = {way: table[table["way"] == way].set_index("of").loc[heads] for way in WAYS}
    told = ("straight to the logits", "through later parts of the model")
    picture, axes = plots.panel(max(4.6, 0.5 * len(heads) + 2.0), 3.4)
    series = [
        (f"{way}: {told[number]}", rows[column], {"color": LINES[number][0], "hatch": HATCHES[2 * number]})
        for number, (way, rows) in enumerate(ways.items())
    ]
    sums = plots.draw_stack(axes, series)
    for number, (bars, rows) in enumerate(zip(axes.containers, ways.values(), strict=True)):
        sure = (rows["p_corrected"] < found.level).to_numpy()
        middle = np.array([bar.get_y() + bar.get_height() / 2 for bar in bars])
        label = None if number else f"most problems show it (p < {found.level:.3g}, corrected)"
        axes.plot(np.flatnonzero(sure), middle[sure], "*", label=label, **STAR)
    axes.plot(np.arange(len(heads)), sums, "D", color="black", markersize=4, label="both together: the head's effect")
    name_ticks(axes.xaxis, heads, rotation=45, ha="right")
    name_axes(axes, y=f"{words}\n({found.quantity(column).unit})", title=words_of(found))
    plots.key_below(picture)
    return picture


def transfer_bars(found: Transfer) -> Picture:
    """Draw the median outcome without the tokens, with them, and with heads moved as by them (or as in the controls) instead.

    Bars are medians over problems, whiskers their intervals: of levels, which differ between problems. The test of what comes
    back is paired; a star stands where most problems show it (corrected p).
    """
    values, made = tuple(found.levels), found.median_levels
    levels = np.array([made.estimate, made.low, made.high], dtype=float)
    sure = np.concatenate([[False, False], np.nan_to_num(found.p_corrected, nan=1.0) < found.level])
    picture, axes = plots.panel(0.8 * len(values) + 2.0, 3.4)
    for at, name in enumerate(values):
        colour = (GREY, LINES[0][0], LINES[1][0], *[LINES[5][0]] * len(values))[at]
        axes.bar(at, levels[0, at], 0.7, color=colour, hatch=HATCHES[at % len(HATCHES)], edgecolor="white", label=name)
    known = np.flatnonzero(np.isfinite(levels[1]))
    axes.errorbar(known, levels[0, known], reach_of(levels[:, known]), fmt="none", color="black", linewidth=1.2)
    axes.plot(np.flatnonzero(sure), levels[0, sure], "*", **STAR)
    axes.axhline(levels[0, 0], color="0.4", linestyle=":", linewidth=0.9)
    axes.axhline(levels[0, 1], color=LINES[0][0], linestyle=":", linewidth=0.9)
    name_ticks(axes.xaxis, [name.replace(" + ", "\n+ ") for name in values], rotation=30, ha="right")
    name_axes(axes, y=f"median outcome ({found.unit})", title=words_of(found))
    return picture


def token_bars(found: HeadWrites, *, heads: Iterable[Head | str] | None = None, top: int = 5) -> Picture:
    """Draw a row of panels per head: the tokens that its Sigma and its change promote and suppress, and those whose keys its
    query prefers and avoids, at most `top` each; lines are standard deviations over problems. A description, not evidence.

    Panels of one column share no scale. Means within rounding are left out. `heads`: of the result's; default its first six.
    """
    wanted = found.heads[:6] if heads is None else heads
    chosen = [found.heads[place_of(str(head), map(str, found.heads), "head")] for head in wanted]
    table = found.table()
    most = max(2, *((table["label"] == str(head)).groupby(table["of"]).sum().max() for head in chosen))
    picture = Picture(figsize=(9.0, len(chosen) * (0.17 * min(most, 2 * top) + 0.75) + 0.6), layout="constrained")
    titles = {"Sigma": "takes from the span", "change": "writes more with the span", LOOKS: "looks at"}
    styles = [
        {"facecolor": LINES[at][0], "hatch": HATCHES[2 * at], "edgecolor": "white", "linewidth": 0} for at in (0, 1)
    ]
    panels = picture.subplots(len(chosen), len(KINDS), squeeze=False)
    for row, head in enumerate(chosen):
        for axes, kind in zip(panels[row], KINDS, strict=True):
            rows = table[(table["label"] == str(head)) & (table["of"] == kind)]
            up, down = (rows[rows["side"] == side] for side in SIDES[kind])
            shown = pd.concat([up.head(top), down.tail(top)])
            amount, spread = (shown[name].to_numpy(dtype=float) for name in ("amount", "spread"))
            places = np.arange(len(shown))[::-1]
            upper = np.arange(len(shown)) < len(up.head(top))
            for part, style in ((upper, styles[0]), (~upper, styles[1])):
                axes.barh(places[part], amount[part], 0.75, **style)
            axes.errorbar(amount, places, xerr=spread, linestyle="none", color="black", linewidth=0.8, capsize=1.5)
            axes.axvline(0, color="0.4", linewidth=0.8)
            name_ticks(axes.yaxis, list(shown["token"]), places)
            axes.set_ylim(-0.7, max(len(shown), 1) - 0.3)
            axes.locator_params(axis="x", nbins=3)
            if shown.empty:
                axes.set_xticks([])
                plots.say(axes, "nothing above rounding")
            name_axes(axes, x=UNITS[kind] if row == len(chosen) - 1 else None)
            axes.set_title(f"{head} {titles[kind]}", fontsize=8)
    picture.suptitle(words_of(found), fontsize=9)
    words = ("promoted, preferred", "suppressed, avoided")
    plots.key_below(picture, handles=plots.key(list(zip(words, styles, strict=True))))
    return picture
