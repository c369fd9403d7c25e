"""`HeadScores`: what every head does with an insertion, `[problem, layer, head]` per metric and condition."""

from dataclasses import dataclass, field, replace

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
from .catalogue import METRICS, metric_named

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

    `values[metric][condition]` is `[problem, layer, head]`, NaN where undefined or not asked for; a metric of the span has no
    entry for a condition without one, and paired metrics stand under the condition that is compared with the first.
    `null[metric][condition]` `[problem, layer]` is the same metric of uniform attention on the same prompts, where it has one.
    `twins` are the scores of untrained twins (`untrained_twin`) on the same pairs, if any. Infinite values (attention that
    never recovers) are kept, counted, and rank as the most extreme.
    """

    problem_ids: tuple[str, ...]
    conditions: tuple[str, ...]
    heads: tuple[Head, ...]
    values: Found
    null: Found
    settings: dict[str, object] = field(default_factory=dict)
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
        return ("label", "layer", "head", *self._usual(self.metrics))

    @property
    def metrics(self) -> tuple[str, ...]:
        """The metrics that are here."""
        return tuple(self.values)

    def of(self, metric: str, condition: str | None = None) -> np.ndarray:
        """Return one metric `[problem, layer, head]`; `condition` defaults to the last one that has it."""
        place_of(metric, self.values, "metric")
        found = self.values[metric]
        condition = list(found)[-1] if condition is None else condition
        if condition not in found:
            raise ValueError(f"metric {metric!r} is not defined in condition {condition!r}, only in {', '.join(found)}")
        return found[condition]

    def mean(self, metric: str, condition: str | None = None) -> np.ndarray:
        """Return the mean over the problems where it is defined, `[layer, head]`; infinite where it is on one."""
        return defined_mean(self.by_group(self.of(metric, condition)))

    def middle(self, metric: str, condition: str | None = None) -> np.ndarray:
        """Return the mean over problems, `[layer, head]`; the median of metrics that may be infinite (`Metric.censored`)."""
        values = self.by_group(self.of(metric, condition))
        censored = metric_named(metric).censored
        return median_interval(values, confidence=self.confidence).estimate if censored else defined_mean(values)

    def count(self, metric: str, condition: str | None = None) -> np.ndarray:
        """Count the problems where the metric is defined (not NaN), `[layer, head]`."""
        return (~np.isnan(self.by_group(self.of(metric, condition)))).sum(0)

    def table(self, condition: str | None = None) -> pd.DataFrame:
        """Return one row per head, with each metric's mean over problems (median of those that may be infinite), interval
        `_ci_low`, `_ci_high`, the number of problems `_n` where it is defined and `_infinite` where it is infinite (if any),
        uniform attention's `_null`, and the untrained twins' mean `_untrained`."""
        condition = self.conditions[place_of(condition or self.conditions[-1], self.conditions, "condition")]
        columns: dict[str, object] = dict(head_columns(self.heads))
        for metric in self._in(condition):
            cells = self.by_group(of_heads(self.values[metric][condition], self.heads))
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
        """Return one tidy row per problem, condition, head and metric: value, null, unit."""
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
        """Count the problems in which the span is a sink to each head (`is_sink`), and those where that is known, `[head]`.

        Unknown: a quantity is undefined and the others do not make it one. Needs metrics="sinks"."""
        sunk = is_sink(self)
        unknown = ~sunk & np.any([np.isnan(of_heads(self.of(name), self.heads)) for name in OF_SINKS], axis=0)
        known = self.by_group(np.where(unknown, np.nan, sunk))
        return (known > 0.5).sum(0), (~np.isnan(known)).sum(0)

    def top(self, metric: str, k: int = 10, condition: str | None = None) -> pd.DataFrame:
        """Return the `k` heads with the largest mean (median, where it may be infinite) of a metric, as rows of `table`."""
        self.of(metric, condition)
        table = self.table(condition or list(self.values[metric])[-1])
        return table.sort_values(metric, ascending=False, kind="stable").head(k).reset_index(drop=True)

    def headline(self) -> str:
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
        s, found = self.settings, []
        for name, says in (
            ("sink_moved", "the span holds the first token: their sink is the first token after it."),
            ("boundary_merge", "tokens merged at a border of the span and are left out of comparisons."),
        ):
            found += [f"On {s[name]} {says}"] if s.get(name) else []
        if set(OF_SINKS) <= set(self.values):
            found.append(self._sink_words())
        counted = undefined(self.values, self.heads)
        found += [f"Undefined (NaN): {counted}."] if counted else []
        infinite = []
        for metric, by_condition in self.values.items():
            cells = np.stack([of_heads(array, self.heads) for array in by_condition.values()])
            infinite += [f"{metric} {int(np.isinf(cells).sum())}/{cells.size}"] * bool(np.isinf(cells).any())
        found += [f"Infinite, kept as the most extreme: {', '.join(infinite)}."] if infinite else []
        return [
            f"{count_of(len(self.values), 'attention metric')} of {count_of(len(self.heads), 'head')} on "
            f"{count_of(len(self.problem_ids), 'problem')}, {s.get('insertion', 'no insertion')}, "
            f"conditions {', '.join(self.conditions)}, rows {s.get('rows')!r}.",
            *found,
        ]

    def printed(self) -> pd.DataFrame:
        """Return means (or medians) of a few metrics, the headline's heads first, then by size (no costly intervals)."""
        condition = self.conditions[-1]
        here = self._in(condition)
        shown = [metric for metric in PRINTED if metric in here] or here[:5]
        if not shown:
            return pd.DataFrame()
        means = {metric: of_heads(self.middle(metric, condition), self.heads) for metric in shown}
        table = pd.DataFrame({"label": list(map(str, self.heads)), **means})
        table = table.sort_values(shown[0], ascending=False, kind="stable")
        told = [table[metric].idxmax() for metric in TOLD if metric in shown and table[metric].notna().any()]
        return table.loc[list(dict.fromkeys([*told, *table.index]))]

    def quantity(self, column: str) -> Quantity:
        if column not in METRICS and column.removesuffix("_last") not in METRICS:  # a count, a null, a label
            return super().quantity(column)
        metric = metric_named(column)
        return Quantity(metric.unit, metric.signed, (f"{column}_ci_low", f"{column}_ci_high"))

    def shown(self) -> Shown:
        table, where = self.table(), f"condition {self.conditions[-1]!r}"
        here = self._in(self.conditions[-1])
        first = self._usual(here)
        ends = ("", "_null", "_untrained", "_n", "_infinite")
        columns = ["label", "paper_label", *(m + end for m in first for end in ends if m + end in table)]
        caption = (
            f"Attention per head, {where}: means over problems (medians of those that may be infinite); null: uniform "
            f"attention on the same prompts; {'untrained: untrained twins; ' if self.twins else ''}n: problems."
        )
        tables = [ShownTable(table, caption, columns)]
        if len(here) > len(first):
            means = f"All {len(here)} metrics, {where}: means over problems (medians of those that may be infinite)."
            tables.append(ShownTable(table[["label", "paper_label", *here]], means))
        return Shown(tuple(tables), head_map(table, first, columns))

    def _in(self, condition: str) -> list[str]:
        return [metric for metric, found in self.values.items() if condition in found]

    def _usual(self, metrics: "list[str] | tuple[str, ...]") -> list[str]:
        """All of a few metrics; of many the usual ones."""
        usual = [metric for metric in USUAL if metric in metrics] if len(metrics) > len(USUAL) else []
        return usual or list(metrics[: len(USUAL)])

    def _interval(self, cells: np.ndarray, *, censored: bool) -> Interval:
        if censored:
            return median_interval(cells, confidence=self.confidence)
        mean = defined_mean(cells)
        values = np.where(np.isinf(mean), np.nan, cells)
        found = mean_interval(values, confidence=self.confidence, n_resamples=self.n_resamples, seed=self.seed)
        return replace(found, estimate=mean)

    def _sink_words(self) -> str:
        """To how many heads the span is a sink in most problems, and to which most often."""
        counts, n = self.sinks()
        if not n.any():
            return "Is the span an attention sink? Undefined for every head."
        most = int(np.where(n > 0, counts / np.maximum(n, 1), -1.0).argmax())
        limits = wilson(int(counts[most]), int(n[most]), confidence=self.confidence)
        interval = f"{100 * float(limits.low):.0f}, {100 * float(limits.high):.0f}"
        twins = [int((2 * sunk > known).sum()) for sunk, known in (twin.sinks() for twin in self.twins)]
        untrained = f" In untrained twins: to {' and '.join(map(str, twins))}." if twins else ""
        return (
            f"Is the span an attention sink? In most problems to {int((2 * counts > n).sum())} of "
            f"{count_of(len(counts), 'head')}; most often to {self.heads[most]}, in {counts[most]} of "
            f"{count_of(n[most], 'problem')} ({100 * counts[most] / n[most]:.0f} % [{interval}]).{untrained}"
        )


def is_sink(scores: HeadScores) -> np.ndarray:
    """Whether the span is a sink to a head, `[problem, head]`: to its attention, or in the residual stream that it reads.

    Some span token gets more than the sink threshold (0.3) of the attention of all rows that see it, on average; or the span's
    tokens, or the first of them, are at least `MASSIVE` times as long as other tokens. Source: Gu et al. (2410.10781), Sun et
    al. (2402.17762), secondary sinks (2512.22213), repeated tokens (2503.08908).
    """
    attended = of_heads(scores.of("span_sink_rate"), scores.heads) > 0
    long = [of_heads(scores.of(name), scores.heads) >= MASSIVE for name in LONGEST]
    return attended | np.any(long, axis=0)
