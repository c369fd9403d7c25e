"""Forests: numbers with their intervals, a row each."""

from collections.abc import Iterable, Sequence
from itertools import cycle
from typing import Any

import numpy as np

from ..circuits.judge import NAMED
from ..circuits.located import LocatedHeads
from ..core.heads import Head, as_heads
from ..mechanism import Mediation
from ..patching.knockouts import ReadEffects
from ..runtime.base_result import Result, largest_first, place_of, turned
from ..runtime.columns import column_of
from ..runtime.text_safety import one_line
from . import draw
from .draw import FILLED, LINES, OPEN, Picture, Style, draw_forest, key_below, name_axes, panel, with_limits, words_of

SQUARE: Style = {"marker": "s", "color": LINES[1][0]}
LOCATED: tuple[tuple[str, str, Style], ...] = (
    ("removed_median", "undone: its output patched out", FILLED),
    ("added_median", "reproduced: its output patched in", OPEN),
    ("knockout_median", "undone: the span hidden from it", SQUARE),
    ("edge_noise_median", "reproduced: the span shown to it", SQUARE | {"markerfacecolor": "white"}),
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


def forest(
    found: Result, *, heads: Iterable[Head | str] | None = None, value: str | None = None, top: int = 10
) -> Picture:
    """Draw effects with their 95 % intervals over problems, a row per head, the largest first; above 0 with the whole effect.

    Of `LocatedHeads`: medians of what patching the head's output (round) and its own read alone (square) undoes (filled) and
    reproduces (open), parts of the insertion's effect, beside the same under random words (crosses); the dashed lines are
    the smallest effect of interest. Of other results, or with a `value`: one column with its interval. `heads`: default the
    named heads and then the largest, `top` in all.
    """
    table = draw.head_table(found)
    located = found if isinstance(found, LocatedHeads) and value is None else None
    value, _, label = draw.chosen_column(found, table, value)
    if located is not None:
        measures = [measure for measure in LOCATED if measure[0] in table and table[measure[0]].notna().any()]
        label = f"part of the insertion's effect ({located.unit}; below 0: against it)"
    else:
        measures = [(value, value.replace("_", " "), FILLED)]
        table = largest_first(table, value)
    if heads is None:
        shown = table.head(max(top, int(table["kind"].isin(NAMED).sum()) if "kind" in table else 0))
    else:
        shown = table.iloc[[place_of(str(head), table["label"], "head (zero-based)") for head in as_heads(heads)]]
    rows = []
    for row in shown.to_dict("records"):
        against = " against the effect" * (row.get("sense") == "against")
        rows.append(row["label"] + (f"\n{row['kind']}{against}" if row.get("kind") in NAMED else ""))
    series = [(name, with_limits(shown, each), style) for each, name, style in measures]
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
    numbers = [name for name in table if table[name].dtype.kind == "f" and not f"_{name}".endswith(("_low", "_high"))]
    if not len(table) or (value is None and not numbers):
        raise ValueError("there is nothing to draw: the table of its print is empty or has no number")
    value = value or numbers[0]
    column = column_of(value, found.declared())
    drawn = (100 if column.role == "points" else 1) * with_limits(table, value)
    names = table.select_dtypes(exclude="number").iloc[:, :2].astype(str)
    picture, axes = panel(7.2, 1.2 + 0.33 * len(table))
    draw_forest(axes, [one_line(" ".join(row)) for row in names.to_numpy()], [(value, drawn, FILLED)])
    name_axes(axes, x=column.heading, title=words_of(found))
    return picture


def mediation(found: Mediation) -> Picture:
    """Draw what scale alone, bias alone and both do to each reading, their interaction, and the whole effect.
    Medians over problems with 95 % intervals; filled: corrected p < 0.05, a sign test, Holm over the effects on a reading."""
    s, readings = found.settings, list(found.table().groupby("reading", sort=False))
    names = {"outcome": f"{s.get('outcome', 'outcome')} ({found.unit})"}
    picture, places = _panels([names.get(str(name), str(name).replace("_", " ")) for name, _ in readings])
    for axes, (reading, table) in zip(places, readings, strict=True):
        here = table.set_index("effect").loc[list(SHOWN_EFFECTS)]
        sure = (here["p_corrected"] < 1 - found.confidence).to_numpy()
        draw_forest(axes, SHOWN_EFFECTS, [(str(reading), with_limits(here, "median"), OPEN)], [(sure, FILLED)])
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
    value, quantity, _ = draw.chosen_column(found, table, None)
    heads = list(table.groupby("label", sort=False))
    reach = found.whole.delta / (abs(float(found.whole.median.estimate)) if value == "share" else 1)
    titles = [str(label) for label, _ in heads]
    picture, places = _panels(titles, sharex=True)
    for axes, (label, here) in zip(places, heads, strict=True):
        drawn = with_limits(here, value)
        marks = [((here["shown"] == each).to_numpy(), style) for each, (style, _) in READ_MARKS.items() if each]
        draw_forest(axes, here["intervention"].str.replace("_", " ").tolist(), [(str(label), drawn, OPEN)], marks)
        axes.set_xlabel(f"removed ({quantity.unit})", fontsize=7)
        if np.isfinite(reach):
            axes.axvspan(-reach, reach, color="0.9", zorder=0)
    picture.suptitle(words_of(found, "model", "insertion", "contrast", "outcome"), fontsize=9)
    point: Style = {"linestyle": "none", "markersize": 5}
    entries = [(words, point | style) for each, (style, words) in READ_MARKS.items() if (table["shown"] == each).any()]
    if np.isfinite(reach):
        entries.append(("smallest effect of interest", {"facecolor": "0.9", "edgecolor": "none"}))
    key_below(picture, entries, ncols=3)
    return picture


def _panels(titles: Sequence[str], *, sharex: bool = False) -> tuple[Picture, list[draw.Axes]]:
    """Return a picture with axes of these titles for forests of the same rows, three beside each other."""
    columns = min(3, len(titles))
    rows = -(-len(titles) // columns)
    size = (2.7 * columns + 1.9, 1.9 * rows + 1.0)
    picture, grid = panel(*size, rows, columns, squeeze=False, sharex=sharex, sharey=True)
    places = grid.ravel().tolist()
    for axes, title in zip(places, titles, strict=False):
        axes.set_title(title, fontsize=8)
        axes.tick_params(labelbottom=True)
        axes.locator_params(axis="x", nbins=5)
    for axes in places[len(titles) :]:
        axes.remove()
    return picture, places[: len(titles)]


def study_effects(found: Any) -> Picture:
    """Draw the median effect of every insertion of a `StudyResult` with its 95 % interval over problems, a row each; one
    series per contrast; below 0 the insertion lowers the outcome."""
    table, series = found.effect_table(), []
    for contrast, (colour, _, marker) in zip(found.contrasts, cycle(LINES), strict=False):
        rows = table[table["contrast"] == contrast].set_index("insertion").loc[list(found.insertions)]
        series.append((contrast, with_limits(rows, "median"), {"marker": marker, "color": colour}))
    picture, axes = panel(7.2, 1.5 + (0.2 + 0.2 * len(series)) * len(found.insertions))
    draw_forest(axes, list(found.insertions), series)
    words = f"effect on {found.outcome} ({found.unit}; below 0: the insertion lowers it)"
    name_axes(axes, x=words, title=words_of(found, "model"))
    if len(series) > 1:
        key_below(picture)
    return picture
