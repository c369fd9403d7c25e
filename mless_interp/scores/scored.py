"""`HeadScores`: what every head does with an insertion, `[problem, layer, head]` per metric and condition."""

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd

from ..core.arguments import count_of
from ..core.heads import Head
from ..runtime.results import (
    Found,
    Quantity,
    Result,
    Shown,
    ShownTable,
    head_columns,
    head_map,
    interval_columns,
    limits_of,
    of_heads,
    place_of,
    rows_of,
    undefined,
)
from ..statistics import CONFIDENCE, Interval, defined_mean, mean_interval, median_interval, wilson
from .catalogue import metric_named

USUAL = ("collapse_relative", "recovery_aligned", "span_mass", "log_density_ratio", "entropy")
"""Metrics whose intervals a page shows; of all others it shows the means."""
PRINTED = ("span_mass", "log_density_ratio", "collapse_relative", "recovery_aligned")
"""Metrics that a print shows, where they are here."""
TOLD = ("span_mass", "collapse_relative")
"""Metrics whose largest head the headline names."""
MASSIVE = 10.0
"""A span token whose residual stream is this many times as long as other tokens' is a sink (the project's own number)."""
LONGEST = ("span_residual_norm", "span_first_residual_norm")
OF_SINKS = ("span_sink_rate", *LONGEST)
"""What tells whether the span is a sink."""


@dataclass(frozen=True, eq=False, repr=False)
class HeadScores(Result):
    """Attention metrics per problem and head.

    `values[metric][condition]` is `[problem, layer, head]`, NaN where undefined or not asked for; a metric of the span
    has no entry for a condition without one, and paired metrics stand under the condition that is compared with the
    first. `null[metric][condition]` `[problem, layer]` is the same metric of uniform attention on the same prompts,
    where it has one. `twins` are the scores of untrained twins (`untrained_twin`) on the same pairs, if any: a table has
    their mean in `_untrained`. Infinite values (attention that never recovers) are kept, counted, and rank as the most
    extreme.
    """

    problem_ids: tuple[str, ...]
    conditions: tuple[str, ...]
    heads: tuple[Head, ...]
    values: Found
    null: Found
    settings: dict[str, Any] = field(default_factory=dict)
    seed: int = 0
    confidence: float = CONFIDENCE
    n_resamples: int = 2000
    twins: tuple["HeadScores", ...] = ()

    picture = "head_map"
    drawn = ("collapse_relative", "lam")
    axes = (
        ("values", "problem layer head_of_layer"),
        ("null", "problem layer"),
    )

    @property
    def reported(self) -> tuple[str, ...]:
        """`label`, `layer`, `head` and each metric; of more than five the usual ones (`USUAL`)."""
        usual = [metric for metric in USUAL if metric in self.metrics] if len(self.metrics) > len(USUAL) else []
        return ("label", "layer", "head", *(usual or self.metrics[: len(USUAL)]))

    @property
    def metrics(self) -> tuple[str, ...]:
        """The metrics that are here."""
        return tuple(self.values)

    def of(self, metric: str, condition: str | None = None) -> np.ndarray:
        """One metric `[problem, layer, head]`; `condition` defaults to the last one that has it."""
        place_of(metric, self.values, "metric")
        found = self.values[metric]
        condition = list(found)[-1] if condition is None else condition
        if condition not in found:
            raise ValueError(f"metric {metric!r} is not defined in condition {condition!r}, only in {', '.join(found)}")
        return found[condition]

    def mean(self, metric: str, condition: str | None = None) -> np.ndarray:
        """Mean over the problems where it is defined, `[layer, head]`; NaN where there is none (see `count`), infinite where
        it is infinite on one (see `middle`)."""
        return defined_mean(self.by_group(self.of(metric, condition)))

    def middle(self, metric: str, condition: str | None = None) -> np.ndarray:
        """The mean over problems, `[layer, head]`; the median of metrics that may be infinite (`Metric.censored`)."""
        values = self.by_group(self.of(metric, condition))
        censored = metric_named(metric).censored
        return median_interval(values, confidence=self.confidence).estimate if censored else defined_mean(values)

    def count(self, metric: str, condition: str | None = None) -> np.ndarray:
        """Problems where the metric is defined (not NaN), `[layer, head]`."""
        return (~np.isnan(self.by_group(self.of(metric, condition)))).sum(0)

    def table(self, condition: str | None = None) -> pd.DataFrame:
        """One row per head: layer, head, label, paper_label, and for each metric its mean over problems (median of metrics
        that may be infinite), interval `_ci_low`, `_ci_high`, the number of problems `_n` where it is defined, in how many of
        them it is infinite (`_infinite`, where any is), uniform attention's `_null`, and the untrained twins' mean
        `_untrained`. Intervals of means are `mean_interval`'s (t below 20 problems), of medians those of order statistics.
        """
        condition = self._condition(condition)
        columns: dict[str, Any] = dict(head_columns(self.heads))
        for metric, found in self.values.items():
            if condition not in found:
                continue
            cells = self.by_group(of_heads(found[condition], self.heads))
            columns |= interval_columns(metric, self._interval(cells, censored=metric_named(metric).censored))
            columns[f"{metric}_n"] = (~np.isnan(cells)).sum(0)
            if np.isinf(cells).any():
                columns[f"{metric}_infinite"] = np.isinf(cells).sum(0)
            if condition in self.null.get(metric, {}):
                null = defined_mean(self.by_group(self.null[metric][condition]))
                columns[f"{metric}_null"] = null[[head.layer for head in self.heads]]
            if self.twins:
                untrained = [of_heads(twin.middle(metric, condition), self.heads) for twin in self.twins]
                columns[f"{metric}_untrained"] = np.mean(untrained, axis=0)
        return pd.DataFrame(columns)

    def to_frame(self) -> pd.DataFrame:
        """One tidy row per problem, condition, head and metric: value, null, unit."""
        layers = [head.layer for head in self.heads]
        parts = []
        for metric, found in self.values.items():
            for condition, array in found.items():
                null = self.null.get(metric, {}).get(condition)
                nulls = np.nan if null is None else null[:, layers].ravel()
                rows = rows_of(self.problem_ids, self.heads, array, metric, condition=condition)
                parts.append(rows.assign(null=nulls, unit=metric_named(metric).unit))
        return pd.concat(parts, ignore_index=True)

    def sinks(self) -> tuple[np.ndarray, np.ndarray]:
        """In how many problems the span is a sink to each head (`is_sink`), of how many where that is known, `[head]` each.

        It is not known where one of its quantities is undefined and the others do not make it one. Needs metrics="sinks".
        """
        sunk = is_sink(self)
        unknown = ~sunk & np.any([np.isnan(of_heads(self.of(name), self.heads)) for name in OF_SINKS], axis=0)
        known = self.by_group(np.where(unknown, np.nan, sunk))
        return (known > 0.5).sum(0), (~np.isnan(known)).sum(0)

    def top(self, metric: str, k: int = 10, condition: str | None = None) -> pd.DataFrame:
        """The `k` heads with the largest mean (median, where it may be infinite) of a metric, as rows of `table`."""
        self.of(metric, condition)
        table = self.table(condition or list(self.values[metric])[-1])
        return table.sort_values(metric, ascending=False, kind="stable").head(k).reset_index(drop=True)

    def headline(self) -> str:
        """Return which head's attention drops most inside the span, and which head attends to it most."""
        table, n = self.table(), count_of(len(self.problem_ids), "problem")
        known = [metric for metric in self.metrics if metric in table and table[metric].notna().any()]
        if not known:
            return f"Nothing is defined of the span of {self.settings.get('insertion')}."
        told = []
        for metric in [name for name in TOLD if name in known] or known[:1]:
            row = table.loc[table[metric].idxmax()]
            value = f"{row[metric]:.3g}{limits_of(row[f'{metric}_ci_low'], row[f'{metric}_ci_high'], '.3g')}"
            null = row.get(f"{metric}_null", np.nan)
            beside = f", uniform attention {null:.3g}" if np.isfinite(null) else ""
            if self.twins:
                of_twins = np.mean([np.nanmax(of_heads(twin.middle(metric), twin.heads)) for twin in self.twins])
                beside += f", untrained twins {of_twins:.3g}"
            told.append(f"{metric} is largest in {row['label']} ({value}{beside})")
        of = f"{count_of(len(self.heads), 'head')}, means over {n}"
        return f"{self.settings.get('insertion', 'No insertion')}: {'; '.join(told)} ({of})."

    def details(self) -> list[str]:
        """Return what was measured, and how much of it is undefined."""
        s = self.settings
        found = [
            f"{count_of(len(self.values), 'attention metric')} of {count_of(len(self.heads), 'head')} on "
            f"{count_of(len(self.problem_ids), 'problem')}, "
            f"{s.get('insertion', 'no insertion')}, conditions {', '.join(self.conditions)}, rows {s.get('rows')!r}."
        ]
        for name, says in (
            ("sink_moved", "the span holds the first token: their sink is the first token after it."),
            ("boundary_merge", "tokens merged at a border of the span and are left out of comparisons."),
        ):
            found += [f"On {s[name]} {says}"] if s.get(name) else []
        if set(OF_SINKS) <= set(self.values):
            found.append(_sink_words(self))
        counted = undefined(self.values, self.heads)
        found += [f"Undefined (NaN): {counted}."] if counted else []
        infinite = []
        for metric, by_condition in self.values.items():
            cells = np.stack([of_heads(array, self.heads) for array in by_condition.values()])
            n_low, n_high = (int((cells == end).sum()) for end in (-np.inf, np.inf))
            if n_low or n_high:
                infinite.append(f"{metric} {n_low} at minus, {n_high} at plus infinity of {cells.size}")
        return [*found, f"Infinite, kept as the most extreme: {'; '.join(infinite)}."] if infinite else found

    def printed(self) -> pd.DataFrame:
        """Return means (or medians) of a few metrics, the headline's heads first, then by size (no costly intervals)."""
        condition = self.conditions[-1]
        here = [metric for metric, found in self.values.items() if condition in found]
        shown = [metric for metric in PRINTED if metric in here] or here[:5]
        if not shown:
            return pd.DataFrame()
        table = pd.DataFrame(head_columns(self.heads)).drop(columns=["layer", "head"])
        for metric in shown:
            table[metric] = of_heads(self.middle(metric, condition), self.heads)
        table = table.drop(columns="paper_label").sort_values(shown[0], ascending=False, kind="stable")
        told = [table[metric].idxmax() for metric in TOLD if metric in shown and table[metric].notna().any()]
        return table.loc[list(dict.fromkeys([*told, *table.index]))]

    def quantity(self, column: str) -> Quantity:
        """A metric in its unit, around 0 where it has a sign."""
        try:
            metric = metric_named(column)
        except ValueError:  # another column: a count, a null, a label
            return super().quantity(column)
        return Quantity(metric.unit, metric.signed, (f"{column}_ci_low", f"{column}_ci_high"))

    def shown(self) -> Shown:
        """The usual metrics with intervals and nulls as a table, the first of them as a map, and the means of all."""
        table = self.table()
        here = [metric for metric in self.metrics if metric in table]
        first = [metric for metric in USUAL if metric in here] or here[:5]
        columns = ["label", "paper_label"]
        for metric in first:
            columns += [
                name for end in ("", "_null", "_untrained", "_n", "_infinite") if (name := f"{metric}{end}") in table
            ]
        where = f"condition {self.conditions[-1]!r}"
        caption = (
            f"Attention per head, {where}: means over problems (medians of those that may be infinite); null: uniform "
            f"attention on the same prompts; {'untrained: untrained twins; ' if self.twins else ''}n: problems."
        )
        tables = [ShownTable(table, caption, columns)]
        if len(here) > len(first):
            means = f"All {len(here)} metrics, {where}: means over problems (medians of those that may be infinite)."
            tables.append(ShownTable(table[["label", "paper_label", *here]], means))
        return Shown(tuple(tables), head_map(table, first, columns))

    def _condition(self, condition: str | None) -> str:
        return self.conditions[place_of(condition or self.conditions[-1], self.conditions, "condition")]

    def _interval(self, cells: np.ndarray, *, censored: bool) -> Interval:
        if censored:
            return median_interval(cells, confidence=self.confidence)
        mean = defined_mean(cells)
        values = np.where(np.isinf(mean), np.nan, cells)
        found = mean_interval(values, confidence=self.confidence, n_resamples=self.n_resamples, seed=self.seed)
        return replace(found, estimate=mean)


def is_sink(scores: HeadScores) -> np.ndarray:
    """Whether the span is a sink to a head, `[problem, head]`: to its attention, or in the residual stream that it reads.

    Some span token gets more than the sink threshold (0.3) of the attention of all rows that see it, on average; or the span's
    tokens, or the first of them, are at least `MASSIVE` times as long as other tokens. Source: Gu et al. 2024 (2410.10781),
    Sun et al. 2024 (2402.17762), secondary sinks (2512.22213), repeated tokens (2503.08908).
    """
    attended = of_heads(scores.of("span_sink_rate"), scores.heads) > 0
    long = [of_heads(scores.of(name), scores.heads) >= MASSIVE for name in LONGEST]
    return attended | np.any(long, axis=0)


def _sink_words(scores: HeadScores) -> str:
    """To how many heads the span is a sink in most problems, and to which most of all, in how many of those that tell."""
    counts, n = scores.sinks()
    cells = scores.n_groups * len(n)
    lacking = f" Undefined in {cells - int(n.sum())} of {cells} cells (problem x head)." if n.sum() < cells else ""
    if not n.any():
        return f"Is the span an attention sink? It is undefined for every head.{lacking}"
    shares = np.where(n > 0, counts / np.maximum(n, 1), -1.0)
    most, m = int(shares.argmax()), int((2 * counts > n).sum())
    limits = wilson(int(counts[most]), int(n[most]), confidence=scores.confidence)
    untrained = [int((2 * sunk > known).sum()) for sunk, known in (twin.sinks() for twin in scores.twins)]
    if untrained:
        lacking += f" In untrained twins to {' and '.join(map(str, untrained))} of {len(counts)}."
    said = f"yes, to {m} of {len(counts)} heads" if m else f"no, to none of {len(counts)} heads"
    often = f"most often to {scores.heads[most]}, in" if counts[most] else "in no problem to any of them,"
    if len(counts) == 1:
        said, often = "yes" if m else "no", f"to {scores.heads[most]} in"
    return (
        f"Is the span an attention sink? In most problems {said}; {often} {counts[most]} of "
        f"{count_of(n[most], 'problem')} ({100 * shares[most]:.0f} % [{100 * float(limits.low):.0f}, "
        f"{100 * float(limits.high):.0f}])."
        f"{lacking}"
    )
