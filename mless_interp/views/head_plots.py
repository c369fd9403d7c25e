"""Pictures of heads: layer × head maps, intervals per head, attention patterns before and after."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from ..heads import Head
from ..models.base import Model
from ..prompts.pairs import PromptPair
from ..statistics import max_t_sign_flip
from .plots import DIVERGING, LINES, Picture, draw_forest, draw_map, key, negative_cells
from .pooling import both_names, chosen_heads, read_patterns

VALUES = ("knockout_fraction", "effect_fraction", "effect", "collapse_relative", "lam")
"""Columns that a map shows unless told otherwise: the first that is there and defined."""
SIGNED = ("effect", "fraction", "recovered", "collapse", "log", "shift", "attribution", "difference")
"""Columns with these words are drawn around 0, even where no value happens to be negative."""
LETTERS = {"reader": "R", "mediator": "M", "reader+mediator": "RM"}
FRAMES = {"reader": "-", "mediator": "--", "reader+mediator": "-."}
MEASURES = (
    ("knockout_effect", "knockout: the direct read removed", {"fmt": "o", "color": LINES[0][0]}),
    (
        "edge_noise_effect",
        "the direct read added alone",
        {"fmt": "o", "color": LINES[0][0], "markerfacecolor": "white"},
    ),
    ("mediated_removed_effect", "mediated part removed", {"fmt": "s", "color": LINES[1][0]}),
    ("mediated_added_effect", "mediated part added", {"fmt": "s", "color": LINES[1][0], "markerfacecolor": "white"}),
    ("random_effect", "same, random sentence instead", {"fmt": "x", "color": "0.45"}),
)


def head_map(
    scores: Any, *, value: str | None = None, top: int = 3, level: float = 0.05, limit: float | None = None
) -> Picture:
    """Layer × head map of a result's summary, 0 in the middle of the colours.

    Works for `LocatedHeads`, `PatchScores`, `HeadScores` and anything whose `.summary()` has a row per head with layer and
    head. Strokes mark heads with a corrected p-value below `level` (max-T over the heads tested, where the result allows a
    test), frames the heads that locating named: solid readers (R), dashed mediators (M), dash-dotted both (RM). Grey is
    undefined or not tested. Zero-based numbers are left and below, the paper's one-based ones right and above.

    Parameters
    ----------
    value : the column to show. None: the first of knockout_fraction, effect_fraction, effect, collapse_relative, lam that
        is there and defined.
    top : how many heads of largest magnitude carry their number.
    limit : the end of the colour scale, in the value's unit (None: the largest magnitude).
    """
    table = scores.summary()
    value = _value(table, value)
    grid = _grid_of(table, value)
    cells = [(int(layer), int(head)) for layer, head in zip(table["layer"], table["head"], strict=True)]
    significant, words = _significant(scores, table, value, level)
    hatched = [cell for cell, yes in zip(cells, significant, strict=True) if yes]
    kinds = dict(zip(cells, table["kind"], strict=True)) if "kind" in table else {}
    named = {cell: kind for cell, kind in kinds.items() if kind in LETTERS}
    ranked = table.loc[table[value].abs().sort_values(ascending=False, kind="stable").index].dropna(subset=[value])
    largest = [(int(row.layer), int(row.head)) for row in ranked.head(top).itertuples()]
    texts = {cell: str(cell[1]) for cell in largest} | {
        cell: f"{cell[1]}{LETTERS[kind]}" for cell, kind in named.items()
    }
    n_layers, n_heads = grid.shape
    picture = Picture(figsize=(max(4.6, 0.32 * n_heads + 2.0), max(2.8, 0.32 * n_layers + 1.9)), layout="constrained")
    axes = picture.add_subplot()
    diverging = any(word in value for word in SIGNED) or bool((grid[np.isfinite(grid)] < 0).any())
    draw_map(
        axes,
        grid,
        label=value.replace("_", " ") + _unit(scores, value),
        diverging=diverging,
        limit=limit,
        hatched=hatched,
        outlined={cell: FRAMES[kind] for cell, kind in named.items()},
        texts=texts,
    )
    axes.set_title(_settings_words(scores), fontsize=9)
    entries: list[tuple[str, Any]] = []
    if hatched:
        entries.append((words, {"facecolor": "white", "hatch": "////", "edgecolor": "black", "linewidth": 0.5}))
    for kind in LETTERS:
        if kind in named.values():
            frame = {"facecolor": "white", "edgecolor": "black", "linestyle": FRAMES[kind], "linewidth": 1.5}
            entries.append((f"{LETTERS[kind]}: {kind.replace('+', ' and ')}", frame))
    if diverging and negative_cells(grid, limit):
        entries.append(("negative", {"marker": "_", "linestyle": "none", "color": "black", "markeredgewidth": 1.3}))
    if np.isnan(grid).any():
        entries.append(("undefined or not tested", {"facecolor": "0.8", "edgecolor": "0.6"}))
    if entries:
        picture.legend(handles=key(entries), loc="outside lower center", ncols=2, fontsize=7, frameon=False)
    return picture


def _value(table: Any, value: str | None) -> str:
    if value is None:
        numbers = [c for c in table.columns if c not in ("layer", "head", "n") and table[c].dtype.kind == "f"]
        value = next((name for name in (*VALUES, *numbers) if name in table and table[name].notna().any()), "effect")
    if value not in table:
        raise ValueError(f"no column {value!r} to draw; there are {', '.join(table.columns)}")
    return value


def _grid_of(table: Any, value: str) -> np.ndarray:
    grid = np.full((int(table["layer"].max()) + 1, int(table["head"].max()) + 1), np.nan)
    grid[table["layer"], table["head"]] = table[value].astype(float)
    return grid


def _significant(scores: Any, table: Any, value: str, level: float) -> tuple[np.ndarray, str]:
    """(row is significant, in words what that means); nothing where the result has no corrected p-value."""
    words = f"corrected p < {level:g} (max-T over {len(table)} heads)"
    if {"p_reader", "p_mediator"} <= set(table.columns):
        return (table[["p_reader", "p_mediator"]].min(axis=1) < level).to_numpy(), words
    if f"{value}_p" in table:
        return (table[f"{value}_p"] < level).to_numpy(), words
    effect = getattr(scores, "effect", None)
    if isinstance(effect, np.ndarray) and len(effect) > 1 and value in ("effect", "effect_fraction", "recovered"):
        values = effect[:, table["layer"].to_numpy(), table["head"].to_numpy()]
        defined = np.isfinite(values).all(0) & (values.std(0) > 0)
        found = np.zeros(len(table), dtype=bool)
        if defined.any():
            import warnings

            with warnings.catch_warnings():  # how small a p-value can get with few problems shows as no stroke
                warnings.simplefilter("ignore")
                found[defined] = (
                    max_t_sign_flip(values[:, defined], seed=getattr(scores, "seed", 0)).p_corrected < level
                )
        return found, words
    return np.zeros(len(table), dtype=bool), words


def _unit(scores: Any, value: str) -> str:
    if "fraction" in value or value == "recovered":
        return " (1: everything)"
    unit = getattr(scores, "unit", "") if "effect" in value else ""
    return f" ({unit})" if unit else ""


def _settings_words(scores: Any) -> str:
    settings = getattr(scores, "settings", {})
    names = ("model", "insertion", "contrast", "direction", "edit", "outcome")
    return ", ".join(str(settings[name]) for name in names if settings.get(name))


def lambda_map(found: Any, *, contrast: str | None = None, level: float = 0.05) -> Picture:
    """Lambda of every head (retained attention mass, a share), and how far it is from its null.

    First from 0 to 1: lambda 1 means that the inserted tokens get nothing. Second lambda minus what uniform attention would
    retain: red, the span is avoided; blue, preferred. Strokes: corrected p below `level`. Source: methods §3, §4.3.
    """
    table = found.summary() if contrast is None else found.summary(contrast)
    if "lam" not in table:
        raise ValueError(f"no column 'lam' to draw; there are {', '.join(table.columns)}")
    grid = _grid_of(table, "lam")
    with_null = "lam_null" in table
    n_layers, n_heads = grid.shape
    size = (max(4.6, 0.32 * n_heads + 2.0), max(2.8, 0.32 * n_layers + 1.9))
    n_maps = 2 if with_null else 1
    rows, columns = (
        (n_maps, 1) if size[0] > 2 * size[1] else (1, n_maps)
    )  # wide maps one below the other, to be readable
    picture = Picture(figsize=(size[0] * columns, size[1] * rows), layout="constrained")
    axes = picture.add_subplot(rows, columns, 1)
    draw_map(axes, grid, label="lambda (share)", diverging=False, limit=1.0)
    axes.set_title(_settings_words(found), fontsize=9)
    if with_null:
        cells = list(zip(table["layer"], table["head"], strict=True))
        significant = (table["lam_p"] < level).to_numpy() if "lam_p" in table else np.zeros(len(table), dtype=bool)
        beside = picture.add_subplot(rows, columns, 2)
        null = _grid_of(table, "lam_null")
        hatched = [(int(a), int(b)) for (a, b), yes in zip(cells, significant, strict=True) if yes]
        draw_map(beside, grid - null, label="lambda − uniform's (share)", hatched=hatched)
        words = f"minus: lower; strokes: corrected p < {level:g} ({int(significant.sum())} of {len(table)} heads)"
        beside.set_title(f"against uniform attention; {words}", fontsize=9)
    return picture


def forest(found: Any, *, heads: Iterable[Head] | None = None, value: str | None = None, top: int = 10) -> Picture:
    """Effects with their 95 % intervals over problems, a row per head, the largest first.

    Of `LocatedHeads`: both measures of the direct read (round) and of the mediated part (square), removed (filled) and added
    (open), in the sign of the insertion's own effect, beside the same of random sentences (crosses); the dashed lines are the
    smallest effect of interest. Of other results: one column with its interval.

    Parameters
    ----------
    heads : default: the named heads and then the largest, `top` in all.
    value : the column of a result without kinds; its limits are `{value}_ci_low` and `{value}_ci_high` (of `effect_fraction`
        `ci_low` and `ci_high`).
    """
    table = found.summary()
    table = table.assign(_head=[Head(int(a), int(b)) for a, b in zip(table["layer"], table["head"], strict=True)])
    located = "kind" in table and "knockout_effect" in table and value is None
    measures: list[tuple[str, str, Any]] = []
    if located:
        measures = [m for m in MEASURES if m[0] in table and table[m[0]].notna().any()]
        order = table
    else:
        value = _value(table, value)
        order = table.loc[table[value].abs().sort_values(ascending=False, kind="stable").index]
        measures = [(value, value.replace("_", " "), {"fmt": "o", "color": LINES[0][0]})]
    if heads is None:
        shown = order.head(max(top, int((table["kind"] != "neither").sum()) if "kind" in table else 0))
    else:
        wanted = list(heads)
        missing = [str(head) for head in wanted if head not in set(table["_head"])]
        if missing:
            raise ValueError(f"{', '.join(missing)} (zero-based) not in this result, which has {len(table)} heads")
        shown = table.set_index("_head", drop=False).loc[wanted]
    if not len(shown):
        raise ValueError("there is nothing to draw: no heads")
    rows = [
        both_names(head) + (f"\n{kind}" if kind in LETTERS else "")
        for head, kind in zip(shown["_head"], shown["kind"] if "kind" in shown else [""] * len(shown), strict=True)
    ]
    series = [(name, shown[column], *_limits(shown, column), style) for column, name, style in measures]
    picture = Picture(figsize=(7.2, 1.5 + (0.45 if located else 0.33) * len(rows)), layout="constrained")
    axes = picture.add_subplot()
    draw_forest(axes, rows, series)
    smallest = found.settings.get("smallest_effect") if located else None
    if smallest and found.established:
        reach = smallest * abs(float(found.total_interval.estimate))
        line: dict[str, Any] = {"color": "0.4", "linewidth": 0.9, "linestyle": (0, (4, 3))}
        axes.axvline(-reach, label=f"smallest effect of interest, {reach:.3g}", **line)
        axes.axvline(reach, **line)
    axes.set_xlabel((value or "effect").replace("_", " ") + _unit(found, value or "effect"), fontsize=8)
    axes.set_title(_settings_words(found), fontsize=9)
    if len(axes.get_legend_handles_labels()[0]) > 1:
        picture.legend(loc="outside lower center", ncols=2, fontsize=7, frameon=False)
    return picture


def _limits(table: Any, column: str) -> tuple[Any, Any]:
    for low, high in ((f"{column}_ci_low", f"{column}_ci_high"), ("ci_low", "ci_high")):
        if low in table and (low != "ci_low" or column in ("effect_fraction", "recovered")):
            return table[low], table[high]
    unknown = np.full(len(table), np.nan)
    return unknown, unknown


def head_patterns(
    model: Model,
    pair: PromptPair,
    heads: Iterable[Head],
    *,
    conditions: Sequence[str] = ("base", "inserted"),
    difference: bool = True,
    max_span: int | None = None,
    scale: float | None = None,
) -> Picture:
    """Attention patterns before and after, a row per head: without, with, and their difference on shared tokens.

    One colour scale in the whole picture: `scale` has the darkest colour (None: the 99th percentile of all cells). Black
    lines bound the inserted tokens, which are pooled into at most `max_span` (means; None: as they are).
    """
    chosen = chosen_heads(model, heads)
    panels = [read_patterns(model, pair, name, chosen).with_short_span(max_span) for name in conditions]
    if scale is None:
        scale = float(np.quantile(np.concatenate([panel.visible.ravel() for panel in panels]), 0.99))
    columns = [(panel.title, panel.values, np.flatnonzero(panel.inserted)) for panel in panels]
    if difference and len(panels) > 1:
        first, last = panels[0], panels[-1]
        both = sorted(set(first.base[first.base >= 0]) & set(last.base[last.base >= 0]))
        picks = [[int(np.flatnonzero(panel.base == token)[0]) for token in both] for panel in (first, last)]
        before, after = (p.values[:, rows][:, :, rows] for p, rows in zip((first, last), picks, strict=True))
        title = f"{last.condition} − {first.condition}, shared tokens"
        columns.append((title, after - before, np.array([], dtype=int)))
    picture = Picture(figsize=(3.1 * len(columns) + 0.9, 2.9 * len(chosen) + 0.3), layout="constrained")
    axes: Any = picture.subplots(len(chosen), len(columns), squeeze=False)
    image: Any = None
    for row, head in enumerate(chosen):
        for column, (title, values, span) in enumerate(columns):
            here = axes[row, column]
            shown = np.where(np.tri(values.shape[-1], dtype=bool), values[row], np.nan)
            here.set_facecolor("0.92")
            image = here.imshow(shown, cmap=DIVERGING, vmin=-scale, vmax=scale, interpolation="nearest")
            for edge in (span[0] - 0.5, span[-1] + 0.5) if len(span) else ():
                here.axvline(edge, color="black", linewidth=0.7)
                here.axhline(edge, color="black", linewidth=0.7)
            here.tick_params(labelsize=6.5)
            here.set_xlabel("attended token", fontsize=7)
            here.set_ylabel("attending token", fontsize=7)
            here.set_title(f"{both_names(head)}\n{title}", fontsize=7.5)
    bar = picture.colorbar(image, ax=axes, extend="both", shrink=0.7, label="attention (probability)")
    bar.ax.tick_params(labelsize=7)
    bar.ax.yaxis.label.set_fontsize(8)
    return picture
