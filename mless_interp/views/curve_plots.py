"""Curves: attention received per token, circuits growing head by head, dose and response."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..circuits.curves import CircuitCurve
from ..core.arguments import count_of
from ..core.heads import Head, as_heads
from ..patching.dose import DoseResponse
from ..runtime.results import limits_of
from ..scores import AttentionProfile, Curve
from .plots import GREY, LINES, Axes, Picture, draw_series, name_axes, panel, whole_numbers, words_of
from .pooling import both_names

SERIES = {"base": "without insertion", "inserted": "with insertion"}


def profile(profile: AttentionProfile, head: Head | str, **options: Any) -> Picture:
    """One head's attention received per token; the options are those of `profiles`."""
    return profiles(profile, [head], **options)


def profiles(
    profile: AttentionProfile | Sequence[AttentionProfile],
    heads: Iterable[Head | str] | None = None,
    *,
    conditions: Sequence[str] | None = None,
    whole: bool = True,
    relative: bool = False,
    null: bool = True,
    names: Mapping[str, str] | None = None,
) -> Picture:
    """Attention received per token, a column per head; of several models' profiles side by side.

    Above, all conditions at the base prompt's tokens; below (`whole`), the whole sequence of the last condition with its
    inserted span shaded.

    Lines are means over problems, bands their 95 % bootstrap intervals (none for a single problem), grey is what
    uniform attention would give. `relative` divides by it. `names` are the conditions' names in the legend.
    """
    every = [profile] if isinstance(profile, AttentionProfile) else list(profile)
    chosen = None if heads is None else as_heads(heads)
    shown = [(profile, head) for profile in every for head in (profile.heads if chosen is None else chosen)]
    conditions = tuple(conditions or every[0].conditions)
    last = conditions[-1]
    whole = whole and all(profile.shaded(last) for profile in every)
    names = SERIES | dict(names or {})
    picture = _grid(len(shown), 2 if whole else 1)
    for column, (profile, head) in enumerate(shown):
        axes = picture.add_subplot(2 if whole else 1, len(shown), column + 1)
        for number, condition in enumerate(conditions):
            curve = profile.curve(head, condition, aligned=True, relative=relative)
            draw_curve(axes, curve, names.get(condition, condition), number)
        if null and not relative:
            _draw_null(axes, profile.curve(head, conditions[0], aligned=True, null=True))
        title = f"{words_of(profile, 'model')}\n{both_names(head)}"
        label_curve(axes, title, "token (without the span)", relative)
        if not whole:
            continue
        axes = picture.add_subplot(2, len(shown), len(shown) + column + 1)
        draw_curve(axes, profile.curve(head, last, relative=relative), names.get(last, last), conditions.index(last))
        if null and not relative:
            _draw_null(axes, profile.curve(head, last, null=True))
        shade_span(axes, profile, last)
        label_curve(axes, "", "token (whole prompt)", relative)
    return picture


def compare_profiles(
    panels: Sequence[tuple[str, Head | str, Mapping[str, AttentionProfile]]],
    *,
    condition: str = "inserted",
    aligned: bool = False,
    relative: bool = False,
) -> Picture:
    """Several insertions in one panel per (title, head, {name: profile}); the span is shaded if not `aligned`."""
    picture = _grid(len(panels), 1)
    for column, (title, head, named) in enumerate(panels):
        axes = picture.add_subplot(1, len(panels), column + 1)
        for number, (name, found) in enumerate(named.items()):
            draw_curve(axes, found.curve(head, condition, aligned=aligned, relative=relative), name, number)
        if not aligned:
            shade_span(axes, next(iter(named.values())), condition)
        where = "token (without the span)" if aligned else "token (whole prompt)"
        label_curve(axes, f"{title}\n{both_names(head)}", where, relative)
    return picture


def circuit_curve(found: CircuitCurve) -> Picture:
    """A `CircuitCurve`: the share of the effect restored against the number of heads that see the span.

    The ranking, its reverse, and the range of the random orders (hatched grey): shares of means, which have no intervals. 0:
    nothing, 1: everything; the area under the ranking's line is CPR.
    """
    table = found.table()
    picture, axes = panel(5.6, 3.7)
    at = table["n_heads"]
    axes.fill_between(
        at, table["random_low"], table["random_high"], facecolor="0.88", hatch="....", edgecolor="0.7", linewidth=0.0,
        label="range of random orders",
    )  # fmt: skip
    for number, (column, name) in enumerate((("faithfulness", "ranking"), ("reversed", "ranking reversed"))):
        draw_series(axes, at, table[column], None, number, name)
    for level in (0, 1):
        axes.axhline(level, color="0.5", linewidth=0.8, zorder=1)
    axes.set_xscale("symlog", linthresh=1)
    whole_numbers(axes.xaxis, at)
    axes.set_xlim(left=0)
    if not table["faithfulness"].notna().any():
        undefined = "undefined: the whole effect is not established,\nor its mean is not told from 0"
        axes.text(0.5, 0.5, undefined, transform=axes.transAxes, ha="center", va="center", fontsize=8)
    name_axes(
        axes,
        x=f"heads that see the inserted tokens (of {len(found.ranking)})",
        y="share of the effect restored (1: all of it)",
        title=words_of(found, "model", "insertion", "outcome"),
    )
    axes.legend(fontsize=6.5, loc="upper left")
    return picture


def dose_response(found: DoseResponse) -> Picture:
    """A `DoseResponse`: attention to the span, and the outcome, against the number of inserted tokens.

    Left at held positions, middle as inserted: every head's log odds of reading the span (thin), their mean with its 95 %
    interval over problems, and thick grey the slope 1 that identical tokens give in the first layer; the legend has the
    mean's slope with its interval. Right: each number's median effect on the outcome with its interval.
    """
    picture = Picture(figsize=(11.4, 3.6), layout="constrained")
    doses, places = found.doses, picture.subplots(1, 3)
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
        where = f"layer {found.layer} (paper: layer {found.layer + 1}), {title}"
        name_axes(axes, y="log odds of reading the span (nats)", title=where)
    axes, table = places[2], found.outcome_table()
    names = {"total": "total", "content": "content", "shift": "shift of positions"}
    for number, (contrast, name) in enumerate(names.items()):
        limits = table[f"{contrast}_ci_low"], table[f"{contrast}_ci_high"]
        draw_series(axes, doses, table[contrast], limits, number, name)
    axes.axhline(0, color="0.5", linewidth=0.8)
    effect = f"insertion's effect on {found.settings.get('outcome', 'the outcome')} ({found.unit})"
    name_axes(axes, y=effect, title=f"{words_of(found, 'model')}, bands: 95 % intervals over problems")
    for axes in places:
        axes.set_xscale("log")
        whole_numbers(axes.xaxis, doses)
        name_axes(axes, x="inserted tokens")
        axes.legend(fontsize=6.5)
    return picture


def _grid(columns: int, rows: int) -> Picture:
    if not columns:
        raise ValueError("there is nothing to draw: no heads")
    return Picture(figsize=(max(4.6, 3.9 * columns), 2.9 * rows + 0.3), layout="constrained")


def draw_curve(axes: Axes, curve: Curve, name: str, number: int) -> None:
    draw_series(axes, curve.position, curve.mean, (curve.low, curve.high), number, name, marker=None, linewidth=1.3)


def _draw_null(axes: Axes, curve: Curve) -> None:
    axes.plot(curve.position, curve.mean, color=GREY, linewidth=0.9, label="uniform attention", zorder=1)


def shade_span(axes: Axes, profile: AttentionProfile, condition: str) -> None:
    for number, (start, stop) in enumerate(profile.shaded(condition)):
        label = "inserted tokens" if number == 0 else None
        axes.axvspan(start - 0.5, stop - 0.5, color="0.85", zorder=0, label=label)


def label_curve(axes: Axes, title: str, where: str, relative: bool) -> None:
    received = "received attention / uniform" if relative else "mean attention received (probability)"
    name_axes(axes, x=where, y=received, title=title)
    axes.set_ylim(bottom=0)
    axes.legend(fontsize=6.5)
