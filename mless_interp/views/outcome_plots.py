"""Pictures of outcomes: accuracy by treatment, MLP activations before and after."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from ..answers import AccuracyResults
from ..core.heads import Head
from ..mechanism import ActivationShift
from ..scores import AttentionProfile
from .curve_plots import draw_curve, label_curve, shade_span
from .plots import (
    HATCHES,
    LINES,
    Axes,
    Picture,
    Style,
    draw_forest,
    key_below,
    name_axes,
    panel,
    plain_numbers,
    reach_of,
    words_of,
)
from .pooling import both_names


def accuracy_bars(results: AccuracyResults, published: Mapping[str, float] | pd.DataFrame | None = None) -> Picture:
    """Accuracy by treatment in percent, with 95 % intervals over problems; the paper's numbers as marks beside them.

    `published` is a mapping from treatment to a share, or a table with treatment and percent (or accuracy, a share) and, if
    there are several sources, source. Treatments that only the paper has get a place of their own. Bars are numbers of this
    run, marks are not: other problems, other sampling.
    """
    table, marks = results.table(), _published(published)
    names = list(dict.fromkeys([*table["treatment"].astype(str), *marks["treatment"]]))
    percent = 100 * table[["accuracy", "accuracy_ci_low", "accuracy_ci_high"]].to_numpy(dtype=float)
    picture, axes = panel(max(4.2, 1.1 * len(names) + 1.6), 3.6)
    for at, ((estimate, low, high), n) in enumerate(zip(percent, table["n"], strict=True)):
        colour, hatch = LINES[at % len(LINES)][0], HATCHES[at % len(HATCHES)]
        axes.bar(at, estimate, 0.7, color=colour, alpha=0.85, hatch=hatch, edgecolor="white", zorder=1)
        reach = reach_of(*np.array([[estimate], [low], [high]]))
        for ink, wide, order in (("white", 4.0, 2), ("black", 1.2, 3)):  # seen on dark bars and on white
            if np.isfinite([estimate, low, high]).all():
                line: Style = {"linewidth": wide, "capthick": wide, "capsize": 4}
                axes.errorbar(at, estimate, yerr=reach, color=ink, zorder=order, **line)
        words = f"{estimate:.1f} %" if np.isfinite(estimate) else "undefined"
        axes.text(at, 1.0, f"{words}\nn = {int(n)}", ha="center", va="bottom", fontsize=7, zorder=4, bbox=_BOX)
    for number, (source, here) in enumerate(marks.groupby("source", sort=False)):
        places = [names.index(name) + 0.2 + 0.1 * number for name in here["treatment"]]
        style: Style = {"linestyle": "none", "color": "black", "markerfacecolor": "white", "markersize": 7, "zorder": 5}
        axes.plot(places, 100 * here["share"], marker="Dv^sPX"[number % 6], label=f"published: {source}", **style)
    axes.set_xticks(range(len(names)), names, rotation=20 if len(names) > 4 else 0)
    axes.set_xlim(-0.6, len(names) - 0.4)
    axes.set_ylim(0, min(100.0, 1.15 * float(np.nanmax([*percent.ravel(), *(100 * marks["share"]), 1.0]))))
    name_axes(axes, y="accuracy (%), bars: 95 % interval", title=words_of(results, "model", "benchmark"))
    if len(marks):
        axes.legend(fontsize=7, loc="upper right")
    return picture


_BOX = {"facecolor": "white", "alpha": 0.8, "linewidth": 0, "pad": 1}


def _published(published: Mapping[str, float] | pd.DataFrame | None) -> pd.DataFrame:
    """Treatment, share and source of the numbers that others have published."""
    table = published
    if not isinstance(table, pd.DataFrame):
        table = pd.DataFrame((table or {}).items(), columns=["treatment", "accuracy"])
    if not {"percent", "accuracy"} & set(table):
        raise ValueError(
            "published must map treatments to shares, or be a table with treatment and percent (or accuracy); its columns "
            f"are {', '.join(map(str, table.columns))}"
        )
    shares = table["percent"] / 100 if "percent" in table else table["accuracy"]
    source = table.get("source", "the paper")
    made = table.assign(treatment=table["treatment"].astype(str), share=shares.astype(float), source=source)
    return made[np.isfinite(made["share"])]


def activation_histograms(
    shift: ActivationShift,
    *,
    contrast: str | None = None,
    token_class: str = "all",
    metric: str | None = "near_zero_arm",
) -> Picture:
    """MLP activations before and after, as shares per unit of activation (log scale), and what changes.

    Below, after minus before in the same bins: where activations go to and come from. Right, one `metric` by token class
    with its 95 % interval over problems (None: leave it out). Activations are no replicates: the histogram is a picture, the
    intervals are the evidence. The outer bins hold everything beyond them. Source: methods §5.
    """
    counts = shift.histograms()
    contrast = str(counts["contrast"].iloc[0]) if contrast is None else contrast
    here = counts[(counts["contrast"] == contrast) & (counts["token_class"] == token_class)]
    if not len(here):
        known = ", ".join(
            f"{c}/{g}" for c, g in counts[["contrast", "token_class"]].drop_duplicates().itertuples(index=False)
        )
        raise ValueError(f"no histogram of contrast {contrast!r}, token class {token_class!r}; there are {known}")
    edges = np.append(here["bin_low"], here["bin_high"].iloc[-1])
    shares = {run: here[f"{run}_density"].to_numpy() for run in ("before", "after")}
    picture = Picture(figsize=(9.6 if metric else 5.4, 4.6), layout="constrained")
    halves: Any = picture.add_gridspec(2, 2 if metric else 1, height_ratios=(2.0, 1.0))
    above, below = picture.add_subplot(halves[0, 0]), picture.add_subplot(halves[1, 0])
    before, after = LINES[0], LINES[1]
    above.stairs(shares["before"], edges, fill=True, color=before[0], alpha=0.35, label="before")
    above.stairs(shares["before"], edges, color=before[0], linewidth=1.0)
    above.stairs(shares["after"], edges, color=after[0], linestyle=after[1], linewidth=1.4, label="after")
    positive = np.concatenate([values[values > 0] for values in shares.values()])
    if positive.size:
        above.set_yscale("log")
        plain_numbers(above.yaxis)
        above.set_ylim(bottom=positive.min() / 2)
    above.legend(fontsize=7)
    below.stairs(here["density_change"], edges, fill=True, color="0.45", hatch="//", edgecolor="white")
    below.axhline(0, color="0.4", linewidth=0.8)
    name_axes(below, x="activation (the outer bins hold everything beyond)", y="after − before")
    words, layer = words_of(shift, "model", "insertion"), shift.layer
    where = f"MLP of layer {layer} (paper: layer {layer + 1})"
    title = f"{words}\n{where}, contrast {contrast}, {token_class} tokens"
    name_axes(above, y="share of activations\nper unit", title=title)
    if metric:
        _by_class(picture.add_subplot(halves[:, 1]), shift, contrast, metric)
    return picture


def _by_class(axes: Axes, shift: ActivationShift, contrast: str, metric: str) -> None:
    table = shift.by_class()
    if metric not in set(table["metric"]):
        raise ValueError(f"no metric {metric!r} by token class; there are {', '.join(dict.fromkeys(table['metric']))}")
    rows = table[(table["contrast"] == contrast) & (table["metric"] == metric) & (table["n"] > 0)]
    names = [f"{row.token_class} (n = {int(row.n)})" for row in rows.itertuples()]
    style = {"fmt": "o", "color": LINES[0][0]}
    draw_forest(axes, names, [(metric, rows["change"], rows["change_ci_low"], rows["change_ci_high"], style)])
    unit = f" ({rows['unit'].iloc[0]})" if len(rows) else ""
    what = f"{metric.replace('_', ' ')}: after − before{unit}"
    axes.set_xlabel(what, fontsize=8)
    axes.set_title("by token class, n problems, 95 % intervals", fontsize=8)


def bars_and_profiles(
    bars: pd.DataFrame,
    named: Mapping[str, AttentionProfile],
    head: Head | str,
    *,
    bars_title: str,
    relative: bool = False,
) -> Picture:
    """Left, bars of accuracy (a table: model, treatment, percent); right, one head without and with each insertion.

    Each model and treatment has one row of `bars`, with the limits of an interval in `low` and `high` where it has one.
    Above right all at the same tokens, with the base prompt of the first profile; below right the whole sequences.
    """
    picture = Picture(figsize=(11.0, 6.0), layout="constrained")
    halves: Any = picture.subfigures(1, 2, width_ratios=(1.0, 1.3))
    left, right = halves
    axes = left.add_subplot()
    models, treatments = list(dict.fromkeys(bars["model"])), list(dict.fromkeys(bars["treatment"]))
    columns = [name for name in ("percent", "low", "high") if name in bars]
    wide = bars.pivot(index="model", columns="treatment", values=columns).loc[models].astype(float)
    width = 0.8 / len(treatments)
    for number, treatment in enumerate(treatments):
        places = np.arange(len(models)) + (number - (len(treatments) - 1) / 2) * width
        style = {"color": LINES[number][0], "hatch": ("", "//", "..", "xx")[number % 4], "edgecolor": "white"}
        drawn = axes.bar(places, wide["percent"][treatment], width, label=treatment, **style)
        axes.bar_label(drawn, fmt="%.0f", fontsize=7, label_type="center", bbox=_BOX)
        if len(columns) == 3:
            reach = reach_of(*(wide[name][treatment].to_numpy() for name in columns))
            known = reach.any(0)
            line: Style = {"fmt": "none", "color": "black", "capsize": 3, "linewidth": 1}
            axes.errorbar(places[known], wide["percent"][treatment][known], reach[:, known], **line)
    axes.set_xticks(range(len(models)), [str(m) for m in models], fontsize=7, rotation=20 if len(models) > 2 else 0)
    axes.set_ylabel("accuracy (%)")
    axes.set_title(bars_title, fontsize=9)
    axes.legend(fontsize=7, loc="upper center", bbox_to_anchor=(0.5, -0.12), ncols=len(treatments), frameon=False)
    above, below = right.subplots(2, 1)
    first = next(iter(named.values()))
    draw_curve(above, first.curve(head, "base", aligned=True, relative=relative), "none", 0)
    for number, (name, found) in enumerate(named.items(), start=1):
        draw_curve(above, found.curve(head, "inserted", aligned=True, relative=relative), name, number)
        draw_curve(below, found.curve(head, "inserted", relative=relative), name, number)
    shade_span(below, first, "inserted")
    title = f"{first.settings.get('model', '')}: {both_names(head)}"
    label_curve(above, title, "token (without the span)", relative)
    label_curve(below, "", "token (whole prompt)", relative)
    return picture


def study_effects(found: Any, *, outcome: str | None = None) -> Picture:
    """Median effect of every insertion of a study with its 95 % interval over problems, a row each; one series per contrast.

    `found`: a `StudyResult`. `outcome`: one of the study's (default: the first); effects are in its unit, below 0 where
    the insertion lowers it.
    """
    outcome = found.outcomes[0] if outcome is None else outcome
    unit = found.effect_of(found.insertions[0], outcome=outcome).unit
    table = found.effect_table().query("outcome == @outcome")
    series = []
    for number, contrast in enumerate(found.contrasts):
        rows = table[table["contrast"] == contrast].set_index("insertion").loc[list(found.insertions)]
        colour, _, marker = LINES[number % len(LINES)]
        style = {"fmt": marker, "color": colour}
        series.append((contrast, rows["median"], rows["median_ci_low"], rows["median_ci_high"], style))
    picture, axes = panel(7.2, 1.5 + (0.2 + 0.2 * len(series)) * len(found.insertions))
    draw_forest(axes, list(found.insertions), series)
    axes.set_xlabel(f"effect on {outcome} ({unit})", fontsize=8)
    axes.set_title(words_of(found, "model"), fontsize=9)
    if len(series) > 1:
        key_below(picture)
    return picture
