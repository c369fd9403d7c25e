"""Pictures of the mechanism: lambda, shares of scale and bias, layers, mediation, reads, near zero, what spans hold."""

from typing import Any

import numpy as np
import pandas as pd

from ..core.arguments import count_of
from ..mechanism import ActivationShift, AttentionDecomposition, Mediation, SpanReadings
from ..mechanism.span_readings import READERS
from ..patching.reads import ReadEffects
from ..runtime.results import turned
from .plots import (
    GREY,
    HATCHES,
    LINES,
    Axes,
    Picture,
    Style,
    chosen_column,
    draw_forest,
    draw_maps,
    draw_series,
    draw_stack,
    key,
    key_below,
    name_axes,
    panel,
    reach_of,
    whole_numbers,
    words_of,
)

PARTS = (
    ("scale_share", "scale"),
    ("bias_share", "bias"),
    ("shift_share", "shift of positions"),
    ("rest_share", "upstream"),
)
SHOWN_EFFECTS = ("scale", "bias", "both", "interaction", "total")
NEAR_ZERO = ("near_zero_arm", "near_zero_quantile", "relative_sparsity")
READ_MARKS = {
    "more": ("o", LINES[0][0], "more, in most problems"),
    "against": ("v", LINES[1][0], "more, against the effect"),
    "less": ("s", "0.2", "less, in most problems"),
}
"""What is shown of an edit -> marker, colour, words."""
READING_NAMES = {
    "near_zero_arm": "near-zero share (ARM's form)",
    "near_zero_quantile": "near-zero share (quantile)",
    "mean": "mean activation",
    "mean_absolute": "mean |activation|",
    "variance": "variance over tokens",
}


def lambda_heads(found: AttentionDecomposition, *, layer: int = 0, contrast: str | None = None) -> Picture:
    """Lambda of each head of a layer with its 95 % interval over problems, its null, and what it is not.

    Grey line: what uniform attention would retain, crosses: the control insertion. Open squares: the slope of the best
    global affine fit, which is another number. Filled where lambda differs from uniform (corrected p < 0.05).
    """
    table = _of_layer(found.table(contrast), layer)
    picture, axes = _heads_panel(table, layer)
    at = np.arange(len(table))
    null = found.layer_table(contrast).set_index("layer").loc[layer, "lam_null"]
    axes.axhline(null, color=GREY, linewidth=1.6, label="uniform attention", zorder=1)
    if "lam_control" in table:
        axes.plot(at, table["lam_control"], "x", color="0.2", markersize=6, label=str(found.settings.get("control")))
    hollow: Style = {"color": LINES[1][0], "markerfacecolor": "none", "markersize": 5}
    axes.plot(at, table["fit_slope"], "s", label="slope of the fit (not lambda)", **hollow)
    bars: Style = {"fmt": "none", "ecolor": LINES[0][0], "linewidth": 1.2, "capsize": 2}
    axes.errorbar(at, table["lam"], yerr=_reach(table, "lam"), **bars)
    sure = (table["lam_p"] < found.alpha).to_numpy()
    for filled, words in ((True, "lambda (differs from uniform)"), (False, "lambda (no difference shown)")):
        rows = sure == filled
        if rows.any():
            face = LINES[0][0] if filled else "white"
            axes.plot(
                at[rows], table["lam"][rows], "o", color=LINES[0][0], markerfacecolor=face, markersize=5, label=words
            )
    axes.set_ylim(min(0.0, float(np.nanmin(table["fit_slope"].fillna(0))) - 0.05), None)
    name_axes(axes, y="share of attention kept\noutside the span", title=_words(found, contrast))
    key_below(picture)
    return picture


def shares(
    found: AttentionDecomposition, *, layer: int = 0, contrast: str | None = None, after_norm: bool = False
) -> Picture:
    """Each head's share in what a layer's attention changes in the residual stream, split into its parts.

    Bars: scale, bias, shift of positions, upstream (they may have different signs); points: their sum with its 95 %
    interval over problems. All heads sum to 1 before a norm of attention's output (`after_norm`: after it, its scale frozen;
    there the rest is the norm's own). A large share does not say that anything reads it.
    """
    end = "_after_norm" if after_norm else ""
    table = _of_layer(found.table(contrast), layer)
    if f"share{end}" not in table:
        raise ValueError("this model does not norm what attention writes: there are no shares after a norm")
    picture, axes = _heads_panel(table, layer)
    at = np.arange(len(table))
    series = [
        (name, table[f"{column}{end}"].fillna(0), {"color": LINES[number][0], "hatch": HATCHES[number]})
        for number, (column, name) in enumerate(PARTS)
        if f"{column}{end}" in table and (column != "rest_share" or layer > 0)
    ]
    draw_stack(axes, series, 0.75)
    points: Style = {"fmt": "D", "color": "black", "markersize": 3, "linewidth": 1, "capsize": 2}
    axes.errorbar(at, table[f"share{end}"], yerr=_reach(table, f"share{end}"), label="sum", **points)
    title = _words(found, contrast) + (", after the norm" if after_norm else "")
    name_axes(axes, y="share of the layer's\nresidual change", title=title)
    key_below(picture, ncols=5)
    return picture


def affine_layers(found: AttentionDecomposition, *, contrast: str | None = None) -> Picture:
    """How far attention is affine in each layer: what lambda z + Sigma leaves open, and the best fit's R squared.

    Means over heads with 95 % intervals over problems. 0 in layer 0 is an identity, not a finding.
    """
    table = found.layer_table(contrast)
    picture, axes = panel(max(4.6, 0.25 * len(table) + 2.2), 3.2)
    names = {"residual": "residual of lambda z + Sigma", "fit_r2": "R squared of the best affine fit", "lam": "lambda"}
    for number, (column, name) in enumerate(names.items()):
        limits = table[f"{column}_ci_low"], table[f"{column}_ci_high"]
        draw_series(axes, table["layer"], table[column], limits, number, name, markersize=4)
    axes.axhline(0, color="0.4", linewidth=0.8)
    whole_numbers(axes.xaxis, table["layer"][:: max(1, len(table) // 14)])
    name_axes(axes, x="layer (zero-based)", y="ratio, R squared, share", title=_words(found, contrast))
    key_below(picture)
    return picture


def mediation(found: Mediation) -> Picture:
    """What scale alone, bias alone and both do to each reading, their interaction, and the whole effect.

    Medians over problems with 95 % intervals; filled: corrected p < 0.05, a sign test, Holm over the effects on a reading.
    """
    table = found.table()
    readings = list(dict.fromkeys(table["reading"]))
    columns = 3
    rows = -(-len(readings) // columns)
    picture = Picture(figsize=(3.4 * columns, 2.1 * rows + 0.5), layout="constrained")
    for number, reading in enumerate(readings):
        axes = picture.add_subplot(rows, columns, number + 1)
        here = table[table["reading"] == reading].set_index("effect").loc[list(SHOWN_EFFECTS)]
        style = {"fmt": "o", "color": LINES[0][0], "markerfacecolor": "white"}
        draw_forest(
            axes, SHOWN_EFFECTS, [(reading, here["median"], here["median_ci_low"], here["median_ci_high"], style)]
        )
        places = np.arange(len(here))[::-1]
        sure = (here["p_corrected"] < 1 - found.confidence).to_numpy()
        axes.plot(here["median"][sure], places[sure], "o", color=LINES[0][0], markersize=4.5, zorder=5)
        outcome = found.settings.get("outcome", "outcome")
        axes.set_title(READING_NAMES.get(reading, f"{outcome} ({found.unit})"), fontsize=8)
        axes.locator_params(axis="x", nbins=4)
        if number % columns:
            axes.set_yticklabels([])
    s = found.settings
    heads = "all heads" if s.get("all_heads") else ", ".join(s.get("heads", []))
    words = words_of(found, "model", "insertion", "contrast", "direction")
    picture.suptitle(f"{words}: {heads} of layer {s.get('layer')} (zero-based)", fontsize=9)
    return picture


def read_effects(found: ReadEffects) -> Picture:
    """What each edit of each head's read removes: a panel per head, median over problems with its 95 % interval.

    As shares of the total effect; in the outcome's unit where that is not established. Filled: shown to be more than
    the smallest effect of interest in most problems, with the insertion's effect (round) or against it (a triangle); square:
    shown to be less; open: neither is shown. The band is the smallest effect of interest.
    """
    table = turned(found, found.table())
    value, quantity = chosen_column(found, table, None)
    low, high = quantity.limits or ("", "")
    labels = list(dict.fromkeys(table["label"]))
    columns = min(3, len(labels))
    rows = -(-len(labels) // columns)
    picture = Picture(figsize=(2.7 * columns + 1.9, 1.9 * rows + 1.0), layout="constrained")
    reach = found.whole.delta / (abs(float(found.whole.median.estimate)) if value == "share" else 1)
    axes: Any = None
    for number, label in enumerate(labels):
        axes = picture.add_subplot(rows, columns, number + 1, sharex=axes)
        here = table[table["label"] == label]
        names = here["intervention"].str.replace("_", " ").tolist()
        style = {"fmt": "o", "color": LINES[0][0], "markerfacecolor": "white"}
        draw_forest(axes, names, [(label, here[value], here[low], here[high], style)])
        places = np.arange(len(here))[::-1]
        for shown, (marker, colour, _) in READ_MARKS.items():
            at = (here["shown"] == shown).to_numpy()
            axes.plot(here[value][at], places[at], marker, color=colour, markersize=5, zorder=5)
        for place in places[here[value].isna().to_numpy()]:
            axes.text(0, place, "undefined", fontsize=7, color=GREY, ha="left", va="center")
        if np.isfinite(reach):
            axes.axvspan(-reach, reach, color="0.9", zorder=0)
        axes.set_title(f"{label} (paper: {here['paper_label'].iloc[0]})", fontsize=8)
        axes.locator_params(axis="x", nbins=5)
        if number % columns:
            axes.set_yticklabels([])
        if number + columns >= len(labels):
            axes.set_xlabel(f"removed ({quantity.unit})", fontsize=7)
    picture.suptitle(words_of(found, "model", "insertion", "contrast", "outcome"), fontsize=9)
    point = {"linestyle": "none", "markersize": 5}
    marks: list[tuple[str, Style]] = [
        (words, {"marker": marker, "color": colour, **point})
        for shown, (marker, colour, words) in READ_MARKS.items()
        if (table["shown"] == shown).any()
    ]
    if (table["shown"] == "").any():
        marks.append(("neither is shown", {"marker": "o", "markerfacecolor": "white", "color": LINES[0][0], **point}))
    if np.isfinite(reach):
        marks.append(("smallest effect of interest", {"facecolor": "0.9", "edgecolor": "none"}))
    key_below(picture, ncols=3, handles=key(marks))
    return picture


def near_zero(shift: ActivationShift, *, contrast: str | None = None, metric: str = "near_zero_arm") -> Picture:
    """The share of activations near zero by token class, before and after, with 95 % intervals over problems.

    Classes without tokens in a problem leave that problem out (n at the class). Intervals of shares end at 0 and 1.
    """
    contrast = shift.contrasts[0] if contrast is None else contrast
    if contrast not in shift.contrasts or metric not in shift.metrics:
        raise ValueError(
            f"no {metric!r} for contrast {contrast!r} here; there are {', '.join(shift.metrics)} for "
            f"{', '.join(shift.contrasts)}"
        )
    table = shift.by_class()
    table = table[(table["contrast"] == contrast) & (table["metric"] == metric)]
    series = []
    for number, run in enumerate(("before", "after")):
        numbers = table[[run, f"{run}_ci_low", f"{run}_ci_high"]].to_numpy(dtype=float).T
        style = {"fmt": LINES[number][2], "color": LINES[number][0]}
        series.append((run, *(np.clip(numbers, 0.0, 1.0) if metric in NEAR_ZERO else numbers), style))
    picture, axes = panel(5.6, 1.4 + 0.45 * len(table))
    draw_forest(axes, [f"{g} (n = {n})" for g, n in zip(table["token_class"], table["n"], strict=True)], series)
    title = f"{words_of(shift, 'model', 'insertion')}, contrast {contrast}\nMLP of layer {shift.layer} (zero-based)"
    name_axes(axes, x="share of activations near zero" if metric in NEAR_ZERO else metric, title=title)
    axes.legend(fontsize=7)
    return picture


def _of_layer(table: pd.DataFrame, layer: int) -> pd.DataFrame:
    found = table[table["layer"] == layer].sort_values("head").reset_index(drop=True)
    if not len(found):
        raise ValueError(f"layer {layer} (zero-based) is not in this result; there are {sorted(set(table['layer']))}")
    return found


def _heads_panel(table: pd.DataFrame, layer: int) -> tuple[Picture, Axes]:
    """A picture with a place for each head of a layer."""
    picture, axes = panel(max(5.0, 0.3 * len(table) + 2.0), 3.6)
    axes.set_xticks(np.arange(len(table)), [str(head) for head in table["head"]])
    name_axes(axes, x=f"head of layer {layer} (zero-based; the paper's layer {layer + 1})")
    return picture, axes


def _reach(table: pd.DataFrame, column: str) -> np.ndarray:
    """How far the interval reaches below and above the estimate, `[2, row]`; 0 where there is none."""
    low, estimate, high = (table[f"{column}{end}"].to_numpy(dtype=float) for end in ("_ci_low", "", "_ci_high"))
    return reach_of(estimate, low, high)


def _words(found: AttentionDecomposition, contrast: str | None) -> str:
    where = [f"contrast {contrast or found.contrasts[0]}", count_of(len(found.problem_ids), "problem")]
    return ", ".join(filter(None, [words_of(found, "model", "insertion"), *where]))


def span_map(found: SpanReadings) -> Picture:
    """Layer x position for each reader of a `SpanReadings`: in which share of the pairs own tokens are read better.

    Above half (chance) in one colour, below it in the other with a minus; strokes where most pairs show it (corrected p), grey
    where nothing differs or nothing is known. The lowest row is the embedding.
    """
    table = found.table()
    shape = len(READERS), len(found.layers), len(found.places)
    shares = table["pairs_share"].where(table["p_corrected"].notna()).to_numpy(dtype=float).reshape(shape) - 0.5
    picture, bar = draw_maps(
        shares,
        titles=tuple(READERS),
        columns=found.places,
        rows=["embedding", *map(str, found.layers[1:])],
        x="inserted tokens",
        y="after layer (zero-based)",
        limit=0.5,
        hatched=found.found,
        label="pairs read right",
        title=words_of(found, "model", "insertion", "what"),
        claim=f"p < {found.level:.3g}, corrected: most pairs show it",
        cell=(0.3, 0.22),
        ticks=[-0.5, 0.0, 0.5],
    )
    bar.ax.set_yticklabels(["0 %", "50 %", "100 %"])
    for axes in picture.axes[: len(READERS)]:
        axes.invert_yaxis()
    return picture
