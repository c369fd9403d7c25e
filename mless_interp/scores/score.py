"""`score_heads`: model and prompt pairs in, attention metrics of every head out."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, get_args

import numpy as np

from ..core.arguments import checked
from ..core.heads import Head
from ..metrics.patterns import RowChoice
from ..models.base import Model
from ..prompts.conditions import CONDITIONS, one_of, several_of
from ..prompts.pairs import PromptPair, digest_of, followed, over_pairs, own_pairs
from ..prompts.problems import distinct, groups_of
from ..runtime.engines import Tick, Unit
from ..runtime.loop import RunOptions, in_context
from ..runtime.results import Found, put, stacked
from .catalogue import Profile, chosen_metrics, metric_named
from .evaluation import layer_values, plan_for
from .layout import Layout, Thresholds, pair_layout
from .scored import HeadScores
from .streaming import SOURCES, Other, Plan, PromptReduction, Source

T = TypeVar("T")


@checked
def score_heads(
    model: Model,
    pairs: Iterable[PromptPair],
    *,
    metrics: str | Iterable[str] | None = None,
    conditions: Sequence[str] = ("base", "inserted"),
    heads: Iterable[Head | str] | None = None,
    rows: RowChoice = "shared",
    exclude_sink: bool = True,
    renorm: bool = False,
    thresholds: Thresholds | None = None,
    source: Source = "auto",
    checkpoint: str | Path | None = None,
    progress: bool = True,
    seed: int = 0,
) -> HeadScores:
    """Describe every head's attention with and without an insertion: collapse, recovery, span mass, entropy, sinks, ...

    Parameters
    ----------
    metrics : names of `mless_interp.scores.METRICS` (row metrics also with `_last`), "all", "sinks" (is the span
        one: its size, direction and values beside attention), or None for the usual ones (all but span_output_weight,
        rollout_span_share, the distances and what is said of sinks, which need more than one pattern).
    conditions : of methods section 2; later ones are compared with the first (paired metrics).
    heads : zero-based `Head`s; default all.
    rows : which rows a token's received attention is averaged over: "shared" (not the span's: comparable between
        conditions), "all", "question", "last" (with `Thresholds(min_rows=1)`).
    exclude_sink : leave the first token out of received attention. `renorm` also divides rows by their mass elsewhere.
    source : "pattern" (the model's own), "recomputed" (from rotated queries and keys, in blocks of rows: what a fused
        model needs), "auto" (the first where there is one).
    checkpoint : a file that receives each finished problem; a run started again with the same settings goes on there.

    Patterns are reduced inside the layer that made them. What a prompt is too short for
    is NaN and counted. Raises `ValueError` naming the problem where it has no tokens after the insertion, and for heads out of
    range (zero-based).
    """
    names = chosen_metrics(metrics)
    thresholds = thresholds or Thresholds()
    found = own_pairs(model, described_pairs(pairs, conditions, source, rows, min_rows=thresholds.min_rows))
    chosen = model.info.chosen(heads, what="describe")
    settings = {
        "metrics": list(names),
        "conditions": list(conditions),
        "heads": [str(head) for head in chosen],
        "rows": rows,
        "exclude_sink": exclude_sink,
        "renorm": renorm,
        "thresholds": vars(thresholds),
        **model.identity,
        "prompts": digest_of(found),
        "insertion": found[0].insertion.label,
        **{metric.name: metric.variant for metric in map(metric_named, names) if metric.variant},
    }
    counted = {name: sum(getattr(pair, name) for pair in found) for name in ("sink_moved", "boundary_merge")}
    asked, layers = model.info.mask_of(chosen), sorted({head.layer for head in chosen})

    def plan(layout: Layout, *, other: bool) -> Plan:
        span = layout.span is not None
        return plan_for(names, span=span, other=other, values=True, exclude_sink=exclude_sink, renorm=renorm)

    def scored(pair: PromptPair, tick: Tick) -> dict[str, Found]:
        """One problem in every condition: values `[layer, head]` and nulls `[layer]`."""
        values: Found = {}
        null: Found = {}
        base: dict[int, tuple[Profile, Profile]] = {}
        other: dict[int, Other] | None = None
        for number, condition in enumerate(conditions):
            layout = pair_layout(pair, condition, rows=rows)
            keep = number == 0 and len(conditions) > 1 and "first_rows" in plan(layout, other=True).needs
            asks: dict[str, Any] = {"layers": layers, "source": source, "keep": keep, "compare": other}
            try:
                inputs = pair.condition(condition)
                run = PromptReduction(model, inputs, layout, plan(layout, other=number > 0), **asks).run()
                for layer in layers:
                    made, nulls, profiles = layer_values(
                        names, run.layers[layer], run.nulls[layer], layout, thresholds, base.get(layer)
                    )
                    for name, heads_ in made.items():
                        cells = np.where(asked[layer], heads_.double().numpy(), np.nan)
                        put(values, name, condition, layer, cells, shape=asked.shape)
                    for name, one in nulls.items():
                        put(null, name, condition, layer, float(one[0]), shape=len(asked))
                    if number == 0 and len(conditions) > 1:
                        base[layer] = profiles
            except ValueError as error:
                raise in_context(error, f"condition {condition}") from error
            other = run.kept if keep else other or {}
            tick(1)
        return {"values": values, "null": null}

    options = {"label": "scoring heads", "options": RunOptions(checkpoint, progress)}
    done = over_described(model, found, scored, conditions, settings | {"source": source}, **options)
    return HeadScores(
        problem_ids=tuple(pair.id for pair in found),
        groups=groups_of(pair.problem for pair in found),
        conditions=tuple(conditions),
        heads=chosen,
        values=stacked([each["values"] for each in done]),
        null=stacked([each["null"] for each in done]),
        settings=settings | counted,
        seed=seed,
    )


def over_described(
    model: Model,
    pairs: Sequence[PromptPair],
    compute: Callable[[PromptPair, Tick], T],
    conditions: Sequence[str],
    settings: Mapping[str, object],
    **options: Any,
) -> list[T]:
    """`over_pairs`, a pair at a time in all conditions."""

    def in_turn(unit: Unit, tick: Tick) -> list[T]:
        return [compute(pairs[at], tick) for at in unit]

    return over_pairs(model, pairs, in_turn, settings=settings, steps=len(conditions), **options)


def described_pairs(
    pairs: Iterable[PromptPair], conditions: Sequence[str], source: str, rows: str, *, min_rows: int = 1
) -> tuple[PromptPair, ...]:
    """The pairs, and errors for unknown conditions, sources or rows, for no pairs, or repeated problems."""
    several_of(conditions, CONDITIONS, "condition")
    one_of(source, dict.fromkeys(SOURCES), "source")
    one_of(rows, dict.fromkeys(get_args(RowChoice)), "rows")
    if rows == "last" and min_rows > 1:
        raise ValueError(
            f"rows 'last' is one row, and a token that fewer than min_rows={min_rows} rows read is undefined: choose shared, "
            "all or question, or (in Python) min_rows=1"
        )
    found = followed(pairs)
    if not found:
        raise ValueError("there are no prompt pairs to describe")
    distinct(pair.problem for pair in found)
    for pair in found:
        pair.need_span("its attention")
    return found
