"""Forests: numbers with their intervals, a row each."""

from collections.abc import Iterable
from itertools import cycle
from typing import Any

import numpy as np

from ..circuits.judge import NAMED
from ..circuits.located import LocatedHeads
from ..core.heads import Head, as_heads, both_names
from ..mechanism import Mediation
from ..patching.knockouts import ReadEffects
from ..runtime.columns import column_of
from ..runtime.results import Result, largest_first, place_of, turned
from ..runtime.text_safety import one_line
from . import plots
from .plots import FILLED, LINES, OPEN, Picture, Style, draw_forest, key_below, name_axes, panel, with_limits, words_of

SQUARE: Style = {"marker": "s", "color": LINES[1][0]}
LOCATED: tuple[tuple[str, str, Style], ...] = (
    ("removed_median", "undone: its output patched out", FILLED),
    ("added_median", "reproduced: its output patched in", OPEN),
    ("knockout_median", "undone: its own read removed", SQUARE),
    ("edge_noise_median", "reproduced: its own read added", SQUARE | {"markerfacecolor": "white"}),
    ("random_effect", "undone, with random words instead of the insertion", {"marker": "x", "color": "0.45"}),
)
READ_MARKS: dict[str, tuple[Style, str]] = {
    "more": (FILLED, "more, in most problems"),
    "against": ({"marker": "v", "color": LINES[1][0]}, "more, against the effect"),
    "less": ({"marker": "s", "color": "0.2"}, "less, in most problems"),
    "": (OPEN, "neither is shown"),
}
"""What is shown of an edit -> marker, words."""
SHOWN_EFFECTS = ("scale", "bias", "both", "interaction", "total")
READING_NAMES = {
    "near_zero_arm": "near-zero share (ARM's form)",
    "near_zero_quantile": "near-zero share (quantile)",
    "mean": "mean activation",
    "mean_absolute": "mean |activation|",
    "variance": "variance over tokens",
}


def forest(
    found: Result, *, heads: Iterable[Head | str] | None = None, value: str | None = None, top: int = 10
) -> Picture:
    """Draw effects with their 95 % intervals over problems, a row per head, the largest first; above 0 with the whole effect.

    Of `LocatedHeads`: medians of what patching the head's output (round) and its own read alone (square) undoes (filled) and
    reproduces (open), parts of the insertion's effect, beside the same under random words (crosses); the dashed lines are
    the smallest effect of interest. Of other results, or with a `value`: one column with its interval. `heads`: default the
    named heads and then the largest, `top` in all.
    """
    table = plots.head_table(found)
    located = found if isinstance(found, LocatedHeads) and value is None else None
    value, quantity = plots.chosen_column(found, table, value)
    if located is not None:
        measures = [measure for measure in LOCATED if measure[0] in table and table[measure[0]].notna().any()]
        label = f"part of the insertion's effect ({located.unit}; below 0: against it)"
    else:
        measures = [(value, value.replace("_", " "), FILLED)]
        label, table = plots.label_of(value, quantity), largest_first(table, value)
    names = [str(Head(int(a), int(b))) for a, b in zip(table["layer"], table["head"], strict=True)]
    table = table.set_axis(names)
    if heads is None:
        shown = table.head(max(top, int(table["kind"].isin(NAMED).sum()) if "kind" in table else 0))
    else:
        shown = table.iloc[[place_of(str(head), names, "head (zero-based)") for head in as_heads(heads)]]
    rows = []
    for head, row in zip(shown.index, shown.to_dict("records"), strict=True):
        against = " against the effect" * (row.get("sense") == "against")
        rows.append(both_names(head) + (f"\n{row['kind']}{against}" if row.get("kind") in NAMED else ""))
    series = [(name, with_limits(shown, each, found.quantity(each).limits), style) for each, name, style in measures]
    picture, axes = panel(7.2, 1.5 + (0.45 if located else 0.33) * len(rows))
    draw_forest(axes, rows, series)
    if located is not None and (reach := located.judged.effect.delta) > 0:
        line: Style = {"color": "0.4", "linewidth": 0.9, "linestyle": (0, (4, 3))}
        axes.axvline(-reach, label=f"smallest effect of interest, {reach:.3g}", **line)
        axes.axvline(reach, **line)
    name_axes(axes, x=label, title=words_of(found))
    if len(axes.get_legend_handles_labels()[0]) > 1:
        key_below(picture)
    return picture


def summary_plot(found: Result, *, value: str | None = None, top: int = 12) -> Picture:
    """Draw a number of a result's printed table with its interval, a row each; `value`: default the first number there."""
    table = found.printed().head(top)
    ends = ("_ci_low", "_low", "_ci_high", "_high")
    numbers = [name for name in table if table[name].dtype.kind == "f" and not f"_{name}".endswith(ends)]
    if not len(table) or (value is None and not numbers):
        raise ValueError("there is nothing to draw: the table of its print is empty or has no number")
    value = value or numbers[0]
    limits = (f"{value}_low", f"{value}_high") if f"{value}_low" in table else None
    column = column_of(value, found.declared())
    drawn = (100 if column.role == "points" else 1) * with_limits(table, value, limits)
    names = table.select_dtypes(exclude="number").iloc[:, :2].astype(str)
    picture, axes = panel(7.2, 1.2 + 0.33 * len(table))
    draw_forest(axes, [one_line(" ".join(row)) for row in names.to_numpy()], [(value, drawn, FILLED)])
    name_axes(axes, x=column.heading, title=words_of(found))
    return picture


def mediation(found: Mediation) -> Picture:
    """Draw what scale alone, bias alone and both do to each reading, their interaction, and the whole effect.

    Medians over problems with 95 % intervals; filled: corrected p < 0.05, a sign test, Holm over the effects on a reading.
    """
    readings = {name: rows.set_index("effect") for name, rows in found.table().groupby("reading", sort=False)}
    outcome = f"{found.settings.get('outcome', 'outcome')} ({found.unit})"
    rows = -(-len(readings) // 3)
    picture = Picture(figsize=(10.2, 2.1 * rows + 0.5), layout="constrained")
    for number, (reading, table) in enumerate(readings.items()):
        axes = picture.add_subplot(rows, 3, number + 1)
        here = table.loc[list(SHOWN_EFFECTS)]
        drawn = with_limits(here, "median")
        draw_forest(axes, SHOWN_EFFECTS, [(str(reading), drawn, OPEN)])
        plots.draw_marks(axes, drawn[0], here["p_corrected"] < 1 - found.confidence, 4.5, FILLED)
        axes.set_title(READING_NAMES.get(str(reading), outcome), fontsize=8)
        axes.locator_params(axis="x", nbins=4)
        if number % 3:
            axes.set_yticklabels([])
    s = found.settings
    heads = "all heads" if s.get("all_heads") else ", ".join(s.get("heads", []))
    words = words_of(found, "model", "insertion", "contrast", "direction")
    picture.suptitle(f"{words}: {heads} of layer {s.get('layer')} (zero-based)", fontsize=9)
    return picture


def read_effects(found: ReadEffects) -> Picture:
    """Draw what each edit of each head's read removes: a panel per head, median over problems with its 95 % interval.

    As shares of the total effect; in the outcome's unit where that is not established. The marks say what most problems show
    beside the smallest effect of interest, which is the band.
    """
    table = turned(found, found.table())
    value, quantity = plots.chosen_column(found, table, None)
    heads = list(table.groupby("label", sort=False))
    columns = min(3, len(heads))
    rows = -(-len(heads) // columns)
    picture = Picture(figsize=(2.7 * columns + 1.9, 1.9 * rows + 1.0), layout="constrained")
    reach = found.whole.delta / (abs(float(found.whole.median.estimate)) if value == "share" else 1)
    axes: object = None
    for number, (label, here) in enumerate(heads):
        axes = picture.add_subplot(rows, columns, number + 1, sharex=axes)
        drawn = with_limits(here, value, quantity.limits)
        draw_forest(axes, here["intervention"].str.replace("_", " ").tolist(), [(str(label), drawn, OPEN)])
        for shown, (style, _) in list(READ_MARKS.items())[:3]:
            plots.draw_marks(axes, drawn[0], here["shown"] == shown, 5.0, style)
        for place in np.arange(len(here))[::-1][np.isnan(drawn[0])]:
            axes.text(0, place, "undefined", fontsize=7, color=plots.GREY, ha="left", va="center")
        if np.isfinite(reach):
            axes.axvspan(-reach, reach, color="0.9", zorder=0)
        axes.set_title(f"{label} (paper: {here['paper_label'].iloc[0]})", fontsize=8)
        axes.locator_params(axis="x", nbins=5)
        if number % columns:
            axes.set_yticklabels([])
        if number + columns >= len(heads):
            axes.set_xlabel(f"removed ({quantity.unit})", fontsize=7)
    picture.suptitle(words_of(found, "model", "insertion", "contrast", "outcome"), fontsize=9)
    point: Style = {"linestyle": "none", "markersize": 5}
    marks = [(words, point | style) for each, (style, words) in READ_MARKS.items() if (table["shown"] == each).any()]
    if np.isfinite(reach):
        marks.append(("smallest effect of interest", {"facecolor": "0.9", "edgecolor": "none"}))
    key_below(picture, ncols=3, handles=plots.key(marks))
    return picture


def study_effects(found: Any, *, outcome: str | None = None) -> Picture:
    """Draw the median effect of every insertion of a `StudyResult` with its 95 % interval over problems, a row each; one
    series per contrast. `outcome`: one of the study's (default: the first); below 0 the insertion lowers it."""
    outcome = found.outcomes[0] if outcome is None else outcome
    table = found.effect_table().query("outcome == @outcome")
    series = []
    for contrast, (colour, _, marker) in zip(found.contrasts, cycle(LINES), strict=False):
        rows = table[table["contrast"] == contrast].set_index("insertion").loc[list(found.insertions)]
        series.append((contrast, with_limits(rows, "median"), {"marker": marker, "color": colour}))
    picture, axes = panel(7.2, 1.5 + (0.2 + 0.2 * len(series)) * len(found.insertions))
    draw_forest(axes, list(found.insertions), series)
    unit = found.effect_of(found.insertions[0], outcome=outcome).unit
    name_axes(axes, x=f"effect on {outcome} ({unit}; below 0: the insertion lowers it)", title=words_of(found, "model"))
    if len(series) > 1:
        key_below(picture)
    return picture
