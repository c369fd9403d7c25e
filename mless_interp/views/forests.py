"""Forests: numbers with their intervals, a row each."""

from collections.abc import Iterable
from itertools import cycle
from typing import Any

from ..circuits.judge import NAMED
from ..circuits.located import LocatedHeads
from ..core.heads import Head, as_heads
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
    picture, axes = panel(7.2, 1.5 + (0.45 if located else 0.33) * len(rows))
    draw_forest(axes, rows, [(name, with_limits(shown, each), style) for each, name, style in measures])
    if located is not None and (reach := located.judged.effect.delta) > 0:
        line: Style = {"color": "0.4", "linewidth": 0.9, "linestyle": (0, (4, 3))}
        axes.axvline(-reach, label=f"smallest effect of interest, {reach:.3g}", **line)
        axes.axvline(reach, **line)
    name_axes(axes, x=label, title=words_of(found) + draw.some_of(len(shown), len(table), "heads"))
    if len(axes.get_legend_handles_labels()[0]) > 1:
        key_below(picture)
    return picture


def summary_plot(found: Result, *, value: str | None = None, top: int = 40) -> Picture:
    """Draw a number of a result's printed table with its interval, a row each; of `table()`, where the print has no number.
    `value`: default the first number there. Of `table()`, effects are above 0 where they go with the whole effect. Each unit
    has its own axes. Of more than `top` rows the largest are drawn, some of each kind: a row's names but the last."""
    both = (found.printed(), turned(found, found.table()).drop(columns="paper_label", errors="ignore"))
    tables = [each for each in both if len(each) and (value or each.select_dtypes("float").notna().any(axis=None))]
    if not tables:
        raise ValueError("there is nothing to draw: its tables are empty or have no number")
    table = next((each for each in tables if value is None or value in each), tables[-1])
    value, _, label = draw.chosen_column(found, table, value)
    column = column_of(value, found.declared())
    drawn = (100 if column.role == "points" else 1) * with_limits(table, value)
    names = table.loc[:, :value].select_dtypes(exclude=["number", "boolean"]).astype(str).reset_index(drop=True)
    rows = names.assign(unit=table["unit"].to_numpy() if "unit" in table else "", size=abs(drawn[0]))
    rows["size"] /= rows.groupby("unit")["size"].transform("max")  # much in one unit is little in another
    rows["rank"] = rows.groupby(["unit", *names.columns[:-1]])["size"].rank(method="first", ascending=False)
    rows = rows.sort_values(["rank", "size"], ascending=[True, False]).head(top).sort_index()
    heights = 1.2 + 0.33 * rows["unit"].value_counts(sort=False).to_numpy()
    picture, places = panel(7.2, heights.sum(), len(heights), 1, squeeze=False, height_ratios=heights)
    for axes, (unit, part) in zip(places[:, 0], rows.groupby("unit", sort=False), strict=True):
        words = [one_line(" ".join(row)) for row in part[names.columns].to_numpy()]
        draw_forest(axes, words, [(value, drawn[:, part.index], FILLED)])
        name_axes(axes, x=f"{column.heading} ({unit})" if unit else label)
    some = draw.some_of(len(rows), len(table), "rows, the largest of their kinds")
    name_axes(places[0, 0], title=words_of(found) + some)
    return picture


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
