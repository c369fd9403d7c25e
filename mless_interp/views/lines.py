"""Lines: attention received per token, circuits growing head by head, dose and response."""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import pandas as pd

from ..circuits.head_sets import CircuitCurve
from ..core.arguments import count_of
from ..core.heads import Head, as_head, as_heads
from ..patching.dose import DoseResponse
from ..runtime.base_result import largest_first, limits_of
from ..scores import AttentionProfile
from . import draw
from .draw import GREY, LINES, Axes, Picture, Style, draw_series, name_axes, name_ticks, with_limits, words_of

SERIES = {"base": "without insertion", "inserted": "with insertion"}
MOST = 6  # heads of a profile that are drawn unless they are chosen: 784 side by side would be 80 metres


def profiles(
    profile: AttentionProfile | Sequence[AttentionProfile],
    heads: Iterable[Head | str] | None = None,
    *,
    conditions: Sequence[str] | None = None,
    whole: bool = True,
) -> Picture:
    """Draw attention received per token, a column per head; of several profiles side by side.

    Above, all conditions at the base prompt's tokens; below (`whole`), the whole sequence of the last condition with its
    inserted span shaded. Lines are means over problems, bands their 95 % intervals, grey is what uniform attention
    would give. `heads`: default all, of more than 6 those whose inserted tokens receive the most beside uniform attention.
    """
    every = [profile] if isinstance(profile, AttentionProfile) else list(profile)
    chosen = None if heads is None else as_heads(heads)
    shown = [(each, head) for each in every for head in (_strongest(each) if chosen is None else chosen)]
    conditions = tuple(conditions or every[0].conditions)
    last = conditions[-1]
    whole = whole and all(profile.shaded(last) for profile in every)
    picture, rows = _grid(len(shown), 2 if whole else 1)
    if chosen is None and len(shown) < (n := sum(len(each.heads) for each in every)):
        picture.suptitle(
            f"{len(shown)} of {n} heads, the largest ratios to uniform attention; choose with heads=", fontsize=9
        )
    for column, (profile, head) in enumerate(shown):
        for axes, drawn, aligned in zip(rows[:, column], (conditions, (last,)), (True, False), strict=False):
            for condition in drawn:
                at, name = conditions.index(condition), SERIES.get(condition, condition)
                _draw_curve(axes, profile.curve(head, condition, aligned=aligned), name, at)
                even = profile.curve(head, condition, aligned=aligned, null=True)
                style: Style = {"color": GREY, "linewidth": 0.9, "linestyle": LINES[at][1], "zorder": 1}
                axes.plot(even["position"], even["mean"], label=f"uniform attention, {name}", **style)
            title = "\n".join([words_of(profile, "model"), words_of(profile, "insertion"), str(head)])
            _label_curve(axes, profile, title if aligned else "", aligned=aligned)
    draw.key_below(picture)
    return picture


def _strongest(profile: AttentionProfile) -> Sequence[Head]:
    if len(profile.heads) <= MOST:
        return profile.heads
    table = profile.table()
    table = table[table["condition"] == profile.conditions[-1]]
    return as_heads(largest_first(table, profile.default_column(table))["label"][:MOST])


def compare_profiles(panels: Sequence[tuple[str, Head | str, Mapping[str, AttentionProfile]]]) -> Picture:
    """Draw several insertions in one panel per (title, head, {name: profile}), over the whole prompts; the span is shaded."""
    (picture, rows), names = _grid(len(panels), 1), list(dict.fromkeys(name for *_, named in panels for name in named))
    for axes, (title, head, named) in zip(rows[0], panels, strict=True):
        for name, found in named.items():
            _draw_curve(axes, found.curve(head, "inserted"), name, names.index(name))
        _label_curve(axes, next(iter(named.values())), f"{title}\n{as_head(head)}", aligned=False)
    draw.key_below(picture)
    return picture


def _grid(columns: int, rows: int) -> tuple[Picture, np.ndarray]:
    return draw.panel(max(4.6, 3.9 * columns), 2.9 * rows + 0.3, rows, columns, squeeze=False)


def _draw_curve(axes: Axes, curve: pd.DataFrame, name: str, number: int) -> None:
    values = with_limits(curve, "mean", ("low", "high"))
    draw_series(axes, curve["position"], values, number, name, marker=None, linewidth=1.3)


def _label_curve(axes: Axes, of: AttentionProfile, title: str, *, aligned: bool) -> None:
    for start, stop in () if aligned else of.shaded("inserted"):
        axes.axvspan(start - 0.5, stop - 0.5, color="0.85", zorder=0, label="inserted tokens")
    words = f"mean attention received\n(probability; bands: {of.interval_words} intervals)"
    name_axes(axes, x=f"token ({'without the span' if aligned else 'whole prompt'})", y=words, title=title)
    axes.set_ylim(bottom=0)


def circuit_curve(found: CircuitCurve) -> Picture:
    """Draw a `CircuitCurve`: the share of the effect restored against the number of heads that see the span.

    The ranking, its reverse, and the range of the random orders (hatched grey): shares of means, which have no intervals. 0:
    nothing, 1: everything; the area under the ranking's line is CPR. A partial ranking ends at a dotted line, and is not
    drawn in reverse.
    """
    table = found.table()
    picture, axes = draw.panel(5.6, 3.7)
    at, random = table["n_heads"], (table["random_low"], table["random_high"])
    style: Style = {"facecolor": "0.88", "hatch": "....", "edgecolor": "0.7", "linewidth": 0.0}
    axes.fill_between(at, *random, label="range of random orders", **style)
    orders = [("faithfulness", "ranking"), ("reversed", "ranking reversed")]
    if found.n_tail:
        given, orders = len(found.ranking) - found.n_tail, orders[:1]
        end = f"end of the {count_of(given, 'given head')}; the others follow by layer"
        axes.axvline(given, color="black", linestyle=":", linewidth=1.0, label=end)
    for number, (column, name) in enumerate(orders):
        draw_series(axes, at, with_limits(table, column), number, name)
    for level in (0, 1):
        axes.axhline(level, color="0.5", linewidth=0.8, zorder=1)
    axes.set_xscale("symlog", linthresh=1)
    name_ticks(axes.xaxis, list(at), at)
    axes.set_xlim(left=0)
    if not table["faithfulness"].notna().any():
        words = "undefined: the whole effect is not established,\nor its mean is not told from 0"
        axes.text(0.5, 0.5, words, transform=axes.transAxes, ha="center", va="center", fontsize=8)
    heads = f"heads of the ranking that are restored (of {len(found.ranking)})"
    title = words_of(found, "model", "insertion", "outcome")
    name_axes(axes, x=heads, y="share of the effect restored (1: all of it)", title=title)
    axes.legend(fontsize=7, loc="upper left")
    return picture


def dose_response(found: DoseResponse) -> Picture:
    """Draw attention to the span, and the outcome, against the number of inserted tokens.

    Left at held positions, middle as inserted: every head's log odds of reading the span (thin), their mean with its 95 %
    interval over problems, and thick grey the slope 1 that identical tokens give in the first layer; the legend has the
    mean's slope with its interval. Right: each number's median effect on the outcome with its interval.
    """
    doses, (picture, places) = found.doses, draw.panel(11.4, 3.6, 1, 3)
    for column, (condition, title) in enumerate((("held", "positions held"), ("inserted", "as inserted"))):
        axes, table = places[column], found.reading_table(condition)
        axes.plot(doses, table["slope_1"], color="0.8", linewidth=5, label="slope 1", zorder=0)
        colour, dashes, marker = LINES[column]
        for number, head in enumerate(found.heads):
            label = count_of(len(found.heads), "head") if number == 0 else None
            axes.plot(doses, table[str(head)], linewidth=0.6, color=colour, alpha=0.45, label=label)
        slope = found.mean_slope(condition)
        words = f"mean: slope {float(slope.estimate):.3f}{limits_of(slope.low, slope.high, '.3f')}"
        axes.plot(doses, table["mean"], color="black", linestyle=dashes, marker=marker, markersize=3.5, label=words)
        axes.fill_between(doses, table["mean_ci_low"], table["mean_ci_high"], color="black", alpha=0.15, linewidth=0)
        where = f"layer {found.layer}, {title}"
        name_axes(axes, y="log odds of reading the span (nats)", title=where)
    axes, table = places[2], found.outcome_table()
    names = {"total": "total", "content": "content", "shift": "shift of positions"}
    for number, (contrast, name) in enumerate(names.items()):
        below: Style = {"linewidth": 4, "alpha": 0.5} if name == "total" else {}  # content alone may cover it
        draw_series(axes, doses, with_limits(table, contrast), number, name, **below)
    axes.axhline(color="0.5", linewidth=0.8)
    effect = f"insertion's effect on {found.settings.get('outcome', 'the outcome')} ({found.unit})"
    name_axes(axes, y=effect, title=f"{words_of(found, 'model')}, bands: 95 % intervals over problems")
    for axes in places:
        axes.set_xscale("log")
        name_ticks(axes.xaxis, list(doses), np.array(doses))
        name_axes(axes, x="inserted tokens")
        axes.legend(fontsize=7)
    return picture
