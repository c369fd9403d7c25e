"""`score_heads` and `score_cache`: a model and prompt pairs, or a cache, in; `HeadScores`, metrics of every head, out."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar, get_args

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from ..core.arguments import Arguments, checked, count_of, one_of, several_of
from ..core.heads import Head
from ..metrics.patterns import RowChoice, segment_mean
from ..models.attention_math import visibility
from ..models.base import Model
from ..models.info import Inputs
from ..prompts.conditions import CONDITIONS
from ..prompts.pairs import PromptPair, digest_of, followed, over_pairs, own_pairs
from ..prompts.problems import distinct, groups_of
from ..runtime import base_result as results
from ..runtime.code_digests import codes_of
from ..runtime.columns import ends_of
from ..runtime.loop import RunOptions
from ..runtime.workers import Tick, Unit
from ..statistics import CONFIDENCE, Interval, defined_mean, mean_interval, median_interval
from . import streaming
from .catalogue import COLUMNS, METRICS, Metric, OwnMetric, Profile, chosen_metrics, metric_shown

T = TypeVar("T")
_PATTERN = re.compile(r"^blocks\.(\d+)\.attn\.hook_pattern$")

USUAL = ("span_mass", "collapse_relative", "log_density_ratio", "recovery_aligned", "entropy")
"""Metrics whose intervals a page shows (of all others the means); a print shows the first four, and the headline names the
largest head of the first two."""
MASSIVE = 10.0
"""A span token whose residual stream is this many times as long as other tokens' is a sink (the project's own number)."""
OF_SINKS = ("span_sink_rate", "span_residual_norm", "span_first_residual_norm")


def _told(conditions: Iterable[str]) -> str:
    return "inserted" if "inserted" in conditions else list(conditions)[-1]


@dataclass(frozen=True, eq=False, repr=False)
class HeadScores(results.Result):
    """Attention metrics: `values[metric][condition]` is `[problem, layer, head]`, NaN where undefined or not asked for.

    A metric of the span has no entry for a condition without one; paired metrics stand under the condition that is compared
    with the first. `null[metric][condition]` `[problem, layer]` is the same metric of uniform attention, where it has one.
    `twins` are the scores of untrained twins on the same pairs. Infinite values (no recovery) rank as the most extreme.
    """

    problem_ids: tuple[str, ...]
    conditions: tuple[str, ...]
    heads: tuple[Head, ...]
    values: results.Found
    null: results.Found
    seed: int = 0
    confidence: float = CONFIDENCE
    twins: tuple["HeadScores", ...] = ()

    picture = "head_map"
    columns = COLUMNS
    drawn = ("collapse_relative", "lam")

    @property
    def reported(self) -> tuple[str, ...]:
        return ("label", "layer", "head", *self._usual(self.metrics))

    @property
    def told(self) -> str:
        """The condition that prints, tables and pictures are of: "inserted", or the last where that was not run."""
        return _told(self.conditions)

    @property
    def metrics(self) -> tuple[str, ...]:
        """The metrics that are here."""
        return tuple(self.values)

    def of(self, metric: str, condition: str | None = None) -> np.ndarray:
        """Return one metric `[problem, layer, head]`; `condition` defaults to "inserted", or the last one that has it."""
        results.place_of(metric, self.values, "metric")
        found = self.values[metric]
        condition = _told(found) if condition is None else condition
        results.place_of(condition, found, f"{metric} of condition")
        return found[condition]

    def mean(self, metric: str, condition: str | None = None) -> np.ndarray:
        """Return the mean over the problems where it is defined, `[layer, head]`; infinite where it is on one."""
        return defined_mean(self.by_group(self.of(metric, condition)))

    def middle(self, metric: str, condition: str | None = None) -> np.ndarray:
        """Return the mean over problems, `[layer, head]`; the median of metrics that may be infinite (`Metric.censored`)."""
        if not metric_shown(metric).censored:
            return self.mean(metric, condition)
        return median_interval(self.by_group(self.of(metric, condition))).estimate

    def table(self, condition: str | None = None) -> pd.DataFrame:
        """Return one row per head: each metric's mean over problems (median of those that may be infinite), its interval, the
        problems `_n` where it is defined and `_infinite`, uniform attention's `_null`, the twins' mean `_untrained`."""
        condition = self.conditions[results.place_of(condition or self.told, self.conditions, "condition")]
        columns: dict[str, object] = dict(results.head_columns(self.heads))
        for metric in self._in(condition):
            cells = self.by_group(results.of_heads(self.values[metric][condition], self.heads))
            columns |= results.interval_columns(metric, self._interval(cells, censored=metric_shown(metric).censored))
            columns[f"{metric}_n"] = (~np.isnan(cells)).sum(0)
            if np.isinf(cells).any():
                columns[f"{metric}_infinite"] = np.isinf(cells).sum(0)
            if condition in self.null.get(metric, {}):
                null = defined_mean(self.by_group(self.null[metric][condition]))
                columns[f"{metric}_null"] = null[[head.layer for head in self.heads]]
            if self.twins:
                untrained = [results.of_heads(twin.middle(metric, condition), self.heads) for twin in self.twins]
                columns[f"{metric}_untrained"] = np.mean(untrained, axis=0)
        return pd.DataFrame(columns)

    def to_frame(self) -> pd.DataFrame:
        """Return one tidy row per problem, condition, head and metric: value, null, unit."""
        layers = [head.layer for head in self.heads]
        parts = []
        for metric, found in self.values.items():
            for condition, array in found.items():
                null = self.null.get(metric, {}).get(condition)
                nulls = np.nan if null is None else null[:, layers].ravel()
                rows = results.rows_of(self.problem_ids, self.heads, array, metric, condition=condition)
                parts.append(rows.assign(null=nulls, unit=metric_shown(metric).unit))
        return pd.concat(parts, ignore_index=True)

    def sinks(self) -> tuple[np.ndarray, np.ndarray]:
        """Count the problems in which the span is a sink to each head, and those where that is known, `[head]`.

        Some span token gets more than 0.3 of the attention of all rows that see it; or, in the residual stream that the head
        reads, the span's tokens, or the first of them, are at least `MASSIVE` times as long as others. Source: Gu et al.
        (2410.10781), Sun et al. (2402.17762), secondary sinks (2512.22213), repeated tokens (2503.08908).
        """
        found = np.stack([results.of_heads(self.of(name), self.heads) for name in OF_SINKS])
        sunk = (found[0] > 0) | (found[1:] >= MASSIVE).any(0)
        known = self.by_group(np.where(~sunk & np.isnan(found).any(0), np.nan, sunk))
        return (known > 0.5).sum(0), (~np.isnan(known)).sum(0)

    def top(self, metric: str, k: int = 10, condition: str | None = None) -> pd.DataFrame:
        """Return the `k` heads with the largest mean (median, where it may be infinite) of a metric under `condition` (None:
        "inserted", or the only one): what `summary` shows of them, this metric first."""
        if np.isnan(self.of(metric, condition)).all():
            raise ValueError(
                f"{metric} is undefined in every problem: what it compares (tokens before the span, rows) is not there"
            )
        table = self.table(condition or _told(self.values[metric]))
        wanted = dict.fromkeys((metric, *self._usual(self.metrics)))
        names = [name for each in wanted for name in (each, *ends_of(each)) if name in table]
        table = table.sort_values(metric, ascending=False, kind="stable", ignore_index=True).head(k)
        return table[["label", "layer", "head", *names]]

    def headline(self) -> str:
        table, n = self.table(), self.counted
        known = [metric for metric in self.metrics if metric in table and table[metric].notna().any()]
        if not known:
            return f"Nothing is defined of the span of {self.settings.get('insertion')}."
        told = []
        for metric in [name for name in USUAL[:2] if name in known] or known[:1]:
            row = table.loc[table[metric].idxmax()]
            value = f"{row[metric]:.3g}{results.limits_of(row[f'{metric}_ci_low'], row[f'{metric}_ci_high'], '.3g')}"
            null = row.get(f"{metric}_null", np.nan)
            beside = f", uniform attention {null:.3g}" if np.isfinite(null) else ""
            if self.twins:
                largest = [np.nanmax(results.of_heads(twin.middle(metric), twin.heads)) for twin in self.twins]
                beside += f", the largest of untrained twins {np.mean(largest):.3g}"
            told.append(f"{metric} is largest in {row['label']} ({value}{beside})")
        of = f"{count_of(len(self.heads), 'head')}, means over {n}"
        where = "" if self.told == "inserted" else f", condition {self.told}"
        return f"{self.settings.get('insertion', 'No insertion')}{where}: {'; '.join(told)} ({of})."

    def details(self) -> list[str]:
        s, found = self.settings, []
        for name, says in (
            ("sink_moved", "the span holds the first token: their sink is the first token after it."),
            ("boundary_merge", "tokens merged at a border of the span and are left out of comparisons."),
        ):
            found += [f"On {s[name]} {says}"] if s.get(name) else []
        if set(OF_SINKS) <= set(self.values):
            found.append(self._sink_words())
        counted = results.undefined(self.values, self.heads, self.groups)
        found += [f"Undefined (NaN): {counted}."] if counted else []
        return [
            f"{count_of(len(self.values), 'attention metric')} of {count_of(len(self.heads), 'head')} on "
            f"{self.counted}, {s.get('insertion', 'no insertion')}, "
            f"conditions {', '.join(self.conditions)}, rows {s.get('rows')!r}.",
            *found,
        ]

    @property
    def defined(self) -> list[str]:
        """The metrics that are defined in any problem under the condition that is told."""
        return [metric for metric in self._in(self.told) if not np.isnan(self.of(metric, self.told)).all()]

    def printed(self) -> pd.DataFrame:
        """Return means (or medians, no costly intervals) of a few metrics, the largest first."""
        known = self.defined
        shown = known if len(known) <= 4 else [metric for metric in USUAL[:4] if metric in known] or known[:5]
        means = {metric: results.of_heads(self.middle(metric, self.told), self.heads) for metric in shown}
        table = pd.DataFrame({"label": list(map(str, self.heads)), **means})
        return table.sort_values(shown[0], ascending=False, kind="stable") if shown else pd.DataFrame()

    def quantity(self, column: str) -> results.Quantity:
        if column.removesuffix("_last") not in {*METRICS, *self.metrics}:  # a count, a null, a label
            return super().quantity(column)
        metric = metric_shown(column)
        return results.Quantity(metric.unit, metric.signed)

    def shown(self) -> results.Shown:
        table, where = self.table(), f"condition {self.told!r}"
        here = self._in(self.told)
        first = self._usual(here)
        ends = ("", "_null", "_untrained", "_n", "_infinite")
        columns = ["label", "paper_label", *(m + end for m in first for end in ends if m + end in table)]
        caption = (
            f"Attention per head, {where}: means over problems (medians of those that may be infinite); null: uniform "
            f"attention on the same prompts; {'untrained: untrained twins; ' if self.twins else ''}n: problems."
        )
        tables = [results.ShownTable(results.largest_first(table, first[0]) if first else table, caption, columns)]
        if len(here) > len(first):
            means = f"All {len(here)} metrics, {where}: means over problems (medians of those that may be infinite)."
            tables.append(results.ShownTable(table[["label", "paper_label", *here]], means))
        return results.Shown(tuple(tables), results.head_map(table, first, columns))

    def _in(self, condition: str) -> list[str]:
        return [metric for metric, found in self.values.items() if condition in found]

    def _usual(self, metrics: "list[str] | tuple[str, ...]") -> list[str]:
        usual = [metric for metric in USUAL if metric in metrics] if len(metrics) > len(USUAL) else []
        return usual or list(metrics[: len(USUAL)])

    def _interval(self, cells: np.ndarray, *, censored: bool) -> Interval:
        if censored:
            return median_interval(cells, confidence=self.confidence)
        mean = defined_mean(cells)
        values = np.where(np.isinf(mean), np.nan, cells)
        found = mean_interval(values, confidence=self.confidence, n_resamples=2000, seed=self.seed)
        return replace(found, estimate=mean)

    def _sink_words(self) -> str:
        every = [each.sinks() for each in (self, *self.twins)]
        if not every[0][1].any():
            return "Is the span an attention sink? Undefined for every head."
        own, *twins = (int((2 * sunk > known).sum()) for sunk, known in every)
        untrained = f" In untrained twins: to {' and '.join(map(str, twins))}." if twins else ""
        return f"Is the span an attention sink? In most problems to {own} of {count_of(len(self.heads), 'head')}.{untrained}"


@checked
def score_heads(
    model: Model,
    pairs: Iterable[PromptPair],
    *,
    metrics: str | Iterable[str | OwnMetric] | None = None,
    conditions: Sequence[str] = ("base", "inserted"),
    heads: Iterable[Head | str] | None = None,
    rows: RowChoice = "shared",
    exclude_sink: bool = True,
    min_rows: int = 3,
    source: streaming.Source = "auto",
    checkpoint: str | Path | None = None,
    progress: bool = True,
    seed: int = 0,
) -> HeadScores:
    """Describe every head's attention with and without an insertion: collapse, recovery, span mass, entropy, sinks, ...

    Parameters
    ----------
    metrics : names of `mless_interp.scores.METRICS` (row metrics also with `_last`), "all", "sinks" (is the span one: its
        size, direction and values besides attention), or None for the usual ones (those that need only one pattern). A
        function of your own takes the question's attention rows `[head, row, key]` and the span's mask `[key]`, and gives a
        number for each row, `[head, row]`; its mean over rows goes by the function's name.
    conditions : of methods section 2; later ones are compared with the first (paired metrics).
    heads : zero-based `Head`s; default all.
    rows : which rows a token's received attention is averaged over: "shared" (not the span's: comparable between
        conditions), "all", "question".
    exclude_sink : leave the first token out of received attention. `min_rows` : tokens read by fewer rows are undefined.
    source : "pattern" (the model's own), "recomputed" (from rotated queries and keys, in blocks of rows: what a fused
        model needs), "auto" (the first where there is one).
    checkpoint : a file that receives each finished problem; a run started again with the same settings goes on there.
    """
    names = chosen_metrics(metrics)
    described = Described.of(model, pairs, heads, conditions, source, rows)
    described.settings.update(
        metrics=list(names), exclude_sink=exclude_sink, min_rows=min_rows, **codes_of(*names.values())
    )
    asked = model.info.mask_of(described.heads)

    def scored(pair: PromptPair, tick: Tick) -> dict[str, results.Found]:
        """Return one problem in every condition."""
        made = _Scores(names, min_rows, asked.shape)
        other: dict[int, streaming.Other] | None = None
        for number, condition in enumerate(conditions):
            layout = streaming.pair_layout(pair, condition, rows=rows)
            plan = _plan(names, layout, compared=number > 0, exclude_sink=exclude_sink)
            keep = number == 0 and len(conditions) > 1 and any("first_rows" in each.needs for each in names.values())
            run, nulls, kept = described.reduced(pair, condition, layout, plan, keep=keep, compare=other)
            for layer in described.layers:
                made.add(condition, layer, layout, run[layer], nulls[layer], asked=asked[layer])
            other = kept if keep else other or {}
            tick(1)
        return {"values": made.values, "null": made.null}

    done = described.each(scored, "scoring heads", RunOptions(checkpoint, progress))
    for name in ("sink_moved", "boundary_merge"):
        described.settings[name] = sum(getattr(pair, name) for pair in described.pairs)
    return HeadScores(
        **described.fields,
        conditions=tuple(conditions),
        values=results.stacked([each["values"] for each in done]),
        null=results.stacked([each["null"] for each in done]),
        seed=seed,
    )


@checked
def score_cache(
    cache: Mapping[str, Tensor] | object,
    pair: PromptPair,
    *,
    base: Mapping[str, Tensor] | object = None,
    metrics: str | Iterable[str | OwnMetric] | None = None,
    rows: RowChoice = "shared",
    exclude_sink: bool = True,
    windows: Sequence[int | None] | None = None,
    sinks: bool = False,
    min_rows: int = 3,
) -> HeadScores:
    """Compute attention metrics of one prompt from the patterns of a TransformerLens `ActivationCache` or a dict like it.

    Parameters
    ----------
    cache : of a HookedTransformer or a bridge, of one prompt; layers without a pattern are left out.
    pair : the `PromptPair` whose prompt was run (with or without insertion: its length says which).
    base : the cache of the pair's prompt without insertion; with it there are paired metrics too.
    windows : the sliding window of each layer in tokens, None where it has none; not needed without windows.
    sinks : whether the model's heads have learned sinks (GPT-OSS), so that rows sum to less than 1 and the sink has the rest.

    The rest is as in `score_heads`. Metrics that need more than patterns (values, queries and keys) are refused.
    """
    names = chosen_metrics(metrics)
    beyond = [name for name, metric in names.items() if not metric.of_patterns]
    if beyond and metrics != "all":
        raise ValueError(f"{beyond[0]} needs more than patterns (such as values): use score_heads with the model")
    names = {name: metric for name, metric in names.items() if name not in beyond}
    given = [_patterns(each) for each in ((cache,) if base is None else (base, cache))]
    held = [next(iter(patterns.values())).shape[-1] for patterns in given]
    lengths = {"base": len(pair.base), "inserted": len(pair.inserted)}
    told = list(lengths) if len(given) == 2 else [name for name, length in lengths.items() if length == held[0]][-1:]
    if [lengths[name] for name in told] != held:
        raise ValueError(
            f"the cache holds {' and '.join(map(str, held))} tokens, but the pair's prompts have {lengths['base']} (base) and "
            f"{lengths['inserted']} (inserted): run the model on `pair.inserted.tokens` or `pair.base.tokens` (as base=), "
            "with prepend_bos=False"
        )
    caches, patterns = dict(zip(told, given, strict=True)), given[-1]
    n_layers, n_heads = max(map(max, caches.values())) + 1, next(iter(patterns.values())).shape[0]
    if windows is not None and len(windows) < n_layers:
        raise ValueError(f"windows must name every layer: {n_layers} layers, got {len(windows)}")
    made = _Scores(names, min_rows, (n_layers, n_heads))
    for number, (name, layers) in enumerate(caches.items()):
        layout = streaming.pair_layout(pair, name, rows=rows)
        plan = _plan(names, layout, compared=number > 0, exclude_sink=exclude_sink)
        for layer, pattern in layers.items():
            window = None if windows is None else windows[layer]
            visible = visibility(Inputs(torch.zeros(1, len(layout.span), device=pattern.device)), window)[0]
            blocks = streaming.pattern_blocks(pattern, visible, n_extra=int(sinks))
            even = streaming.uniform_blocks(visible, pattern.float().dtype, n_extra=int(sinks))
            reduced = streaming.reduce_blocks(blocks, layout, plan)
            made.add(name, layer, layout, reduced, streaming.reduce_blocks(even, layout, plan.of_uniform()))
    settings = {"rows": rows, "exclude_sink": exclude_sink, "sinks": sinks}
    return HeadScores(
        problem_ids=(pair.id,),
        conditions=tuple(caches),
        heads=tuple(Head(layer, head) for layer in sorted(patterns) for head in range(n_heads)),
        values=results.stacked([made.values]),
        null=results.stacked([made.null]),
        settings=settings | {"min_rows": min_rows, "insertion": pair.insertion.label},
    )


def _patterns(cache: Any) -> dict[int, Tensor]:
    found = {int(match[1]): cache[name] for name in cache.keys() if (match := _PATTERN.match(str(name)))}  # noqa: SIM118
    if not found:
        raise ValueError(
            "this cache holds no attention patterns (blocks.{layer}.attn.hook_pattern): run_with_cache without a "
            'filter, or with names_filter=lambda name: name.endswith("hook_pattern"); fused attention never makes one'
        )
    for pattern in found.values():
        if pattern.ndim == 4 and len(pattern) > 1:
            raise ValueError(f"the cache holds {len(pattern)} prompts: run the model on one")
    return {layer: found[layer].detach().reshape(found[layer].shape[-3:]) for layer in sorted(found)}


def _plan(
    names: Mapping[str, Metric], layout: streaming.Layout, *, compared: bool, exclude_sink: bool
) -> streaming.Plan:
    """Return what a run has to be reduced to for these metrics; `compared`: with the first condition's."""
    missing: set[streaming.Need] = set() if layout.span.any() else {"span"}
    missing |= set() if compared else {"first_rows"}
    wanted = {metric.name: metric for metric in names.values() if not missing & set(metric.needs)}
    rows = {name: metric for name, metric in wanted.items() if metric.kind == "row"}
    return streaming.Plan(
        exclude_sink=exclude_sink,
        rows={name: metric.formula for name, metric in rows.items()},
        null_rows=tuple(name for name, metric in rows.items() if metric.of_patterns),
        states={name: metric.formula for name, metric in wanted.items() if metric.kind == "state"},
        needs=frozenset(need for metric in wanted.values() for need in metric.needs),
    )


class _Scores:
    """One problem's values `[layer, head]` and nulls `[layer]`, put together layer by layer; short-lived."""

    def __init__(self, names: Mapping[str, Metric], min_rows: int, shape: tuple[int, ...]) -> None:
        self.names, self.min_rows, self.shape = names, min_rows, shape
        self.values: results.Found = {}
        self.null: results.Found = {}
        self._first: dict[int, tuple[Profile, Profile]] = {}

    def add(
        self,
        condition: str,
        layer: int,
        layout: streaming.Layout,
        reduced: streaming.Reduced,
        null: streaming.Reduced,
        *,
        asked: np.ndarray | bool = True,
    ) -> None:
        """Add the metrics of a layer's heads that are `asked` for, and those of uniform attention in its place."""
        own, uniform = (Profile(each, null, layout, self.min_rows) for each in (reduced, null))
        first, uniform_first = self._first.get(layer, (None, None))
        for name, cells in _head_values(self.names, own, first).items():
            found = np.where(asked, cells.double().numpy(), np.nan)
            results.put(self.values, name, condition, layer, found, shape=self.shape)
        for name, cells in _head_values(self.names, uniform, uniform_first).items():
            results.put(self.null, name, condition, layer, float(cells[0]), shape=self.shape[0])
        self._first.setdefault(layer, (own, uniform))


def _head_values(names: Mapping[str, Metric], run: Profile, base: Profile | None) -> dict[str, Tensor]:
    """Return each metric that is defined in this run, `[head]`; `base` is the profile to compare with."""
    values: dict[str, Tensor] = {}
    rows, states = run.reduced.of("rows"), run.reduced.of("states")
    given = {"profile": (run,)} if base is None else {"profile": (run,), "paired": (base, run)}
    for name, metric in names.items():
        if metric.name in rows:
            found = rows[metric.name].cpu()
            mean = segment_mean(found, torch.ones(found.shape[-1], dtype=torch.bool))
            value = found[:, -1] if name != metric.name else mean
            # infinite where a probability underflowed: unknown, not nothing
            values[name] = value.masked_fill(value.isinf(), torch.nan)
        elif name in states:
            values[name] = states[name].cpu()
        elif metric.kind in given and (run.layout.span.any() or "span" not in metric.needs):
            if metric.one_block and not run.layout.one_block:
                values[name] = torch.full_like(run.received[:, 0], torch.nan)
            else:
                values[name] = metric.formula(*given[metric.kind])
    return values


@dataclass(frozen=True, eq=False)
class Described:
    """Pairs and heads to describe in some conditions, checked, with the settings that say so."""

    model: Model
    pairs: tuple[PromptPair, ...]
    heads: tuple[Head, ...]
    source: str
    settings: dict[str, Any]

    @classmethod
    def of(
        cls,
        model: Model,
        pairs: Iterable[PromptPair],
        heads: Iterable[Head | str] | None,
        conditions: Sequence[str],
        source: str,
        rows: str,
    ) -> "Described":
        several_of(conditions, CONDITIONS, "condition")
        one_of(source, get_args(streaming.Source), "source")
        one_of(rows, get_args(RowChoice), "rows")
        found = followed(pairs)
        if not found:
            raise ValueError("there are no prompt pairs to describe")
        distinct(pair.problem for pair in found)
        for pair in found:
            pair.need_span("its attention")
        found, chosen = own_pairs(model, found), model.info.chosen(heads, what="describe")
        settings = {"conditions": list(conditions), "heads": list(map(str, chosen)), "prompts": digest_of(found)}
        settings |= {**model.identity, "insertion": found[0].insertion.label, "rows": rows}
        return cls(model, found, chosen, source, settings)

    @property
    def layers(self) -> list[int]:
        return sorted({head.layer for head in self.heads})

    @property
    def fields(self) -> Arguments:
        """What every result of it says of pairs and heads."""
        ids, groups = tuple(pair.id for pair in self.pairs), groups_of(pair.problem for pair in self.pairs)
        return {"problem_ids": ids, "groups": groups, "heads": self.heads, "settings": self.settings}

    def reduced(
        self, pair: PromptPair, condition: str, layout: streaming.Layout, plan: streaming.Plan, **more: Any
    ) -> streaming.Reductions:
        how: Arguments = {"layers": self.layers, "source": self.source, **more}
        return streaming.reduce_prompt(self.model, pair.condition(condition), layout, plan, **how)

    def each(self, compute: Callable[[PromptPair, Tick], T], label: str, options: RunOptions) -> list[T]:
        """Call `over_pairs`, a pair at a time in all conditions."""

        def in_turn(unit: Unit, tick: Tick) -> list[T]:
            return [compute(self.pairs[at], tick) for at in unit]

        steps, settings = len(self.settings["conditions"]), self.settings | {"source": self.source}
        return over_pairs(self.model, self.pairs, in_turn, label=label, settings=settings, steps=steps, options=options)
