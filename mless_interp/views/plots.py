"""Still pictures with matplotlib. The only file that imports matplotlib; nothing here touches pyplot's global state."""

import io
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.colors import TwoSlopeNorm
from matplotlib.figure import Figure

from ..heads import Head
from ..scores import AttentionProfile, Curve

COLOURS = "RdBu_r"
"""A diverging map that stays readable in print and for colour-blind people; white is 0, grey is undefined."""

LINES = (("#0072B2", "-"), ("#D55E00", "--"), ("#009E73", "-."), ("#CC79A7", ":"))
"""Colours and dashes of curves, in order (Okabe and Ito's palette): told apart without colour too."""
SERIES = {"base": "without insertion", "inserted": "with insertion"}


class Picture(Figure):
    """A matplotlib figure that shows itself in a notebook and saves itself as a file."""

    def _repr_png_(self) -> bytes:
        buffer = io.BytesIO()
        self.savefig(buffer, format="png", dpi=110, bbox_inches="tight")
        return buffer.getvalue()

    def save(self, path: str | Path, *, dpi: int = 150) -> Path:
        """Write the picture (the suffix says the format) and return its path."""
        self.savefig(path, dpi=dpi, bbox_inches="tight")
        return Path(path)


def head_map(scores: Any, *, value: str | None = None, top: int = 3) -> Picture:
    """Layer × head map of a result's summary (`PatchScores` or anything with `.summary()`), 0 in the middle.

    `value` is the column to show: by default effect_fraction, or the raw effect where fractions are undefined. The
    `top` heads of largest magnitude are named. Both ways of counting are on the axes: zero-based left and below, the
    paper's one-based right and above.
    """
    table = scores.summary()
    if value is None:
        value = "effect_fraction" if table["effect_fraction"].notna().any() else "effect"
    if value not in table:
        raise ValueError(f"no column {value!r} to draw; there are {', '.join(table.columns)}")
    n_layers, n_heads = int(table["layer"].max()) + 1, int(table["head"].max()) + 1
    grid = np.full((n_layers, n_heads), np.nan)
    grid[table["layer"], table["head"]] = table[value]
    picture = Picture(figsize=(max(4.0, 0.32 * n_heads + 1.8), max(2.4, 0.32 * n_layers + 1.6)), layout="constrained")
    axes = picture.add_subplot()
    limit = float(np.nanmax(np.abs(grid))) if np.isfinite(grid).any() else 1.0
    limit = limit or 1.0
    axes.set_facecolor("0.8")
    image = axes.imshow(grid, cmap=COLOURS, norm=TwoSlopeNorm(0.0, -limit, limit), aspect="auto")
    ranked = table.loc[table[value].abs().sort_values(ascending=False, kind="stable").index].head(top)
    for layer, head in zip(ranked["layer"], ranked["head"], strict=True):
        dark = abs(grid[layer, head]) > 0.6 * limit
        axes.text(head, layer, str(head), ha="center", va="center", fontsize=8, color="white" if dark else "black")
    _count_axes(axes, n_layers, n_heads)
    unit = "" if value == "effect_fraction" else f" ({getattr(scores, 'unit', '')})"
    picture.colorbar(image, ax=axes, label=value.replace("_", " ") + unit, shrink=0.9)
    settings = getattr(scores, "settings", {})
    words = [str(settings[key]) for key in ("model", "contrast", "direction", "edit", "outcome") if key in settings]
    axes.set_title(", ".join(words), fontsize=9)
    return picture


def _count_axes(axes: Any, n_layers: int, n_heads: int) -> None:
    step = max(1, n_heads // 14)
    axes.set_xticks(range(0, n_heads, step))
    axes.set_yticks(range(0, n_layers, max(1, n_layers // 14)))
    axes.set_xlabel("head (zero-based)")
    axes.set_ylabel("layer (zero-based)")
    one_based = (lambda x: x + 1, lambda x: x - 1)
    above, right = axes.secondary_xaxis("top", functions=one_based), axes.secondary_yaxis("right", functions=one_based)
    above.set_xticks(range(1, n_heads + 1, step))
    right.set_yticks(range(1, n_layers + 1, max(1, n_layers // 14)))
    for axis in (above, right):
        axis.tick_params(labelsize=7, colors="0.4")
    above.set_xlabel("head in the paper's counting", fontsize=8, color="0.4")


def profile(profile: AttentionProfile, head: Head, **options: Any) -> Picture:
    """One head's attention received per token; the options are those of `profiles`."""
    return profiles(profile, [head], **options)


def profiles(
    profile: AttentionProfile,
    heads: Iterable[Head] | None = None,
    *,
    conditions: Sequence[str] | None = None,
    whole: bool = True,
    relative: bool = False,
    null: bool = True,
    names: Mapping[str, str] | None = None,
) -> Picture:
    """Attention received per token, a column per head.

    Above, all conditions at the base prompt's tokens; below (`whole`), the whole sequence of the last condition with its
    inserted span shaded.

    Lines are means over problems, bands their 95 % bootstrap intervals (none for a single problem), grey is what
    uniform attention would give. `relative` divides by it. `names` are the conditions' names in the legend.
    """
    shown = tuple(profile.heads if heads is None else heads)
    conditions = tuple(conditions or profile.conditions)
    last = conditions[-1]
    whole = whole and profile.shaded(last) is not None
    names = SERIES | dict(names or {})
    picture = _grid(len(shown), 2 if whole else 1)
    for column, head in enumerate(shown):
        axes = picture.add_subplot(2 if whole else 1, len(shown), column + 1)
        for number, condition in enumerate(conditions):
            curve = profile.curve(head, condition, aligned=True, relative=relative)
            _draw(axes, curve, names.get(condition, condition), number)
        if null and not relative:
            _draw_null(axes, profile.curve(head, conditions[0], aligned=True, null=True))
        title = f"{profile.settings.get('model', '')}\n{head} ({head.paper_label} in the paper)"
        _label(axes, title, "token (without the span)", relative)
        if not whole:
            continue
        axes = picture.add_subplot(2, len(shown), len(shown) + column + 1)
        _draw(axes, profile.curve(head, last, relative=relative), names.get(last, last), conditions.index(last))
        if null and not relative:
            _draw_null(axes, profile.curve(head, last, null=True))
        _shade(axes, profile, last)
        _label(axes, "", "token (whole prompt)", relative)
    return picture


def compare_profiles(
    panels: Sequence[tuple[str, Head, Mapping[str, AttentionProfile]]],
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
            _draw(axes, found.curve(head, condition, aligned=aligned, relative=relative), name, number)
        if not aligned:
            _shade(axes, next(iter(named.values())), condition)
        where = "token (without the span)" if aligned else "token (whole prompt)"
        _label(axes, f"{title}\n{head} ({head.paper_label} in the paper)", where, relative)
    return picture


def bars_and_profiles(
    bars: Any, named: Mapping[str, AttentionProfile], head: Head, *, bars_title: str, relative: bool = False
) -> Picture:
    """Left, bars of accuracy (a table: model, condition, percent); right, one head without and with each insertion.

    Above right all at the same tokens, with the base prompt of the first profile; below right the whole sequences.
    """
    picture = Picture(figsize=(11.0, 6.0), layout="constrained")
    halves: Any = picture.subfigures(1, 2, width_ratios=(1.0, 1.3))
    left, right = halves
    axes = left.add_subplot()
    models, conditions = list(dict.fromkeys(bars["model"])), list(dict.fromkeys(bars["condition"]))
    width = 0.8 / len(conditions)
    for number, condition in enumerate(conditions):
        heights = [bars[(bars["model"] == m) & (bars["condition"] == condition)]["percent"].mean() for m in models]
        places = np.arange(len(models)) + (number - (len(conditions) - 1) / 2) * width
        hatch = ("", "//", "..", "xx")[number % 4]
        drawn = axes.bar(
            places, heights, width, color=LINES[number][0], label=condition, hatch=hatch, edgecolor="white"
        )
        axes.bar_label(drawn, fmt="%.0f", fontsize=7)
    axes.set_xticks(range(len(models)), [str(m) for m in models], fontsize=7)
    axes.set_ylabel("accuracy (%)")
    axes.set_title(bars_title, fontsize=9)
    axes.legend(fontsize=7, loc="upper right")
    above, below = right.subplots(2, 1)
    first = next(iter(named.values()))
    _draw(above, first.curve(head, "base", aligned=True, relative=relative), "none", 0)
    for number, (name, found) in enumerate(named.items(), start=1):
        _draw(above, found.curve(head, "inserted", aligned=True, relative=relative), name, number)
        _draw(below, found.curve(head, "inserted", relative=relative), name, number)
    _shade(below, first, "inserted")
    title = f"{first.settings.get('model', '')}: {head} ({head.paper_label} in the paper)"
    _label(above, title, "token (without the span)", relative)
    _label(below, "", "token (whole prompt)", relative)
    return picture


def circuit_curve(found: Any) -> Picture:
    """A `CircuitCurve`: the share of the effect restored against the number of heads that see the span.

    The ranking with its 95 % interval over problems, its reverse, and the range of the random orders (grey).
    """
    table = found.summary()
    picture = Picture(figsize=(5.2, 3.4), layout="constrained")
    axes = picture.add_subplot()
    at = table["n_heads"]
    axes.fill_between(at, table["random_low"], table["random_high"], color="0.8", linewidth=0, label="random orders")
    for number, (column, name) in enumerate((("faithfulness", "ranking"), ("reversed", "reversed"))):
        colour, dashes = LINES[number]
        axes.plot(at, table[column], color=colour, linestyle=dashes, marker="o", markersize=3, label=name)
    axes.fill_between(at, table["ci_low"], table["ci_high"], color=LINES[0][0], alpha=0.2, linewidth=0)
    axes.axhline(1, color="0.5", linewidth=0.8)
    axes.set_xscale("symlog", linthresh=1)
    axes.set_xticks(at, [str(size) for size in at])
    axes.set_xticks([], minor=True)
    axes.set_xlim(left=0)
    axes.set_xlabel(f"heads that see the inserted tokens (of {len(found.ranking)})", fontsize=8)
    axes.set_ylabel("share of the effect restored", fontsize=8)
    axes.set_title(str(found.settings.get("insertion", "")), fontsize=8)
    axes.tick_params(labelsize=7)
    axes.legend(fontsize=6.5)
    return picture


def dose_response(found: Any) -> Picture:
    """A `DoseResponse`: left, each head's log odds of reading the span at held positions (thick grey: slope 1), middle,
    as inserted; right, the effect of each number of tokens on the outcome with its 95 % interval over problems.
    """
    picture = Picture(figsize=(11.0, 3.4), layout="constrained")
    doses = found.doses
    for column, (condition, title) in enumerate((("held", "positions held"), ("inserted", "inserted"))):
        axes = picture.add_subplot(1, 3, column + 1)
        curves = found.log_odds[condition].mean(0)
        above = curves - np.log(doses)[:, None]
        middle = np.median(above[np.isfinite(above)]) if np.isfinite(above).any() else 0.0
        axes.plot(doses, np.log(doses) + middle, color="0.8", linewidth=5, label="slope 1")
        axes.plot(doses, curves, linewidth=0.8, color=LINES[column][0])
        axes.set_ylabel("log odds of reading the span (nats)", fontsize=8)
        axes.set_title(f"layer {found.layer} (zero-based), {title}", fontsize=8)
        axes.legend(fontsize=6.5)
    axes = picture.add_subplot(1, 3, 3)
    for number, (contrast, name) in enumerate(
        (("total", "total"), ("content", "content"), ("shift", "shift of positions"))
    ):
        made = found.effects(contrast)
        colour, dashes = LINES[number]
        axes.plot(doses, made.estimate, color=colour, linestyle=dashes, marker="o", markersize=3, label=name)
        axes.fill_between(doses, made.low, made.high, color=colour, alpha=0.2, linewidth=0)
    axes.axhline(0, color="0.5", linewidth=0.8)
    axes.set_ylabel(f"effect on {found.settings.get('outcome', 'the outcome')} ({found.unit})", fontsize=8)
    axes.set_title(str(found.settings.get("model", "")), fontsize=8)
    axes.legend(fontsize=6.5)
    for axes in picture.axes:
        axes.set_xscale("log")
        axes.set_xticks(doses, [str(dose) for dose in doses], minor=False)
        axes.set_xticks([], minor=True)
        axes.set_xlabel("inserted tokens", fontsize=8)
        axes.tick_params(labelsize=7)
    return picture


def _grid(columns: int, rows: int) -> Picture:
    if not columns:
        raise ValueError("there is nothing to draw: no heads")
    return Picture(figsize=(max(4.6, 3.9 * columns), 2.9 * rows + 0.3), layout="constrained")


def _draw(axes: Any, curve: Curve, name: str, number: int) -> None:
    colour, dashes = LINES[number % len(LINES)]
    axes.plot(curve.position, curve.mean, color=colour, linestyle=dashes, linewidth=1.3, label=name)
    if np.isfinite(curve.low).any():
        axes.fill_between(curve.position, curve.low, curve.high, color=colour, alpha=0.2, linewidth=0)


def _draw_null(axes: Any, curve: Curve) -> None:
    axes.plot(curve.position, curve.mean, color="0.55", linewidth=0.9, label="uniform attention", zorder=1)


def _shade(axes: Any, profile: AttentionProfile, condition: str) -> None:
    span = profile.shaded(condition)
    if span is not None:
        axes.axvspan(span[0] - 0.5, span[1] - 0.5, color="0.85", zorder=0, label="inserted tokens")


def _label(axes: Any, title: str, where: str, relative: bool) -> None:
    axes.set_title(title, fontsize=8)
    axes.set_xlabel(where, fontsize=8)
    axes.set_ylabel("received attention / uniform" if relative else "mean attention received (probability)", fontsize=8)
    axes.set_ylim(bottom=0)
    axes.tick_params(labelsize=7)
    axes.legend(fontsize=6.5)
