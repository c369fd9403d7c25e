"""`HeadScores`: what every head does with an insertion, `[problem, layer, head]` per metric and condition."""

from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
from scipy.stats import binom

from ..heads import Head
from ..running.results import Result
from ..statistics import CONFIDENCE, bootstrap_interval
from .catalogue import metric_named

CENSORED = ("recovery_latency",)
"""Metrics that may be infinite ("never"): summarised by their median, not by their mean."""


@dataclass(frozen=True, eq=False)
class HeadScores(Result):
    """Attention metrics per problem and head.

    `values[metric][condition]` is `[problem, layer, head]`, NaN where undefined or not asked for; a metric of the span
    has no entry for a condition without one, and paired metrics stand under the condition that is compared with the
    first. `null[metric][condition]` `[problem, layer]` is the same metric of uniform attention on the same prompts,
    where it has one. Infinite values (attention that never recovers) are kept.
    """

    problem_ids: tuple[str, ...]
    conditions: tuple[str, ...]
    heads: tuple[Head, ...]
    values: dict[str, dict[str, np.ndarray]]
    null: dict[str, dict[str, np.ndarray]]
    settings: dict[str, Any] = field(default_factory=dict)
    seed: int = 0
    confidence: float = CONFIDENCE
    n_resamples: int = 2000

    def __post_init__(self) -> None:
        for metric, found in self.values.items():
            for condition, array in found.items():
                if array.ndim != 3 or len(array) != len(self.problem_ids):
                    raise ValueError(f"{metric}, {condition}: [problem, layer, head] expected, got shape {array.shape}")

    @property
    def metrics(self) -> tuple[str, ...]:
        """The metrics that are here."""
        return tuple(self.values)

    def of(self, metric: str, condition: str | None = None) -> np.ndarray:
        """One metric `[problem, layer, head]`; `condition` defaults to the last one that has it."""
        if metric not in self.values:
            raise ValueError(f"no metric {metric!r} here; there are {', '.join(self.values)}")
        found = self.values[metric]
        if condition is None:
            condition = list(found)[-1]
        if condition not in found:
            raise ValueError(f"metric {metric!r} is not defined in condition {condition!r}, only in {', '.join(found)}")
        return found[condition]

    def mean(self, metric: str, condition: str | None = None) -> np.ndarray:
        """Mean over the problems where it is finite, `[layer, head]`; NaN where there is none (see `count`)."""
        return _mean(self.of(metric, condition))

    def count(self, metric: str, condition: str | None = None) -> np.ndarray:
        """Problems where the metric is finite, `[layer, head]`."""
        return np.isfinite(self.of(metric, condition)).sum(0)

    def summary(self, condition: str | None = None) -> Any:
        """One row per head: layer, head, label, paper_label, and for each metric its mean over problems (median for
        latencies), interval `_ci_low`, `_ci_high`, the number of problems `_n`, and uniform attention's `_null`.

        Intervals are bootstrapped over problems; for medians they are those of order statistics.
        """
        import pandas as pd

        condition = self._condition(condition)
        layers, heads = _places(self.heads)
        columns: dict[str, Any] = {
            "layer": list(layers),
            "head": list(heads),
            "label": [str(head) for head in self.heads],
            "paper_label": [head.paper_label for head in self.heads],
        }
        for metric, found in self.values.items():
            if condition not in found:
                continue
            cells = found[condition][:, layers, heads]
            if metric in CENSORED:
                estimate, low, high = _median_interval(cells, self.confidence)
            else:
                estimate, low, high = self._interval(cells)
            columns |= {metric: estimate, f"{metric}_ci_low": low, f"{metric}_ci_high": high}
            columns[f"{metric}_n"] = (~np.isnan(cells) if metric in CENSORED else np.isfinite(cells)).sum(0)
            if condition in self.null.get(metric, {}):
                columns[f"{metric}_null"] = _mean(self.null[metric][condition])[list(layers)]
        return pd.DataFrame(columns)

    def to_frame(self) -> Any:
        """One tidy row per problem, condition, head and metric: value, null, unit."""
        import pandas as pd

        layers, heads = _places(self.heads)
        n_problems, n_heads = len(self.problem_ids), len(self.heads)
        parts = []
        for metric, found in self.values.items():
            for condition, array in found.items():
                null = self.null.get(metric, {}).get(condition)
                parts.append(
                    pd.DataFrame(
                        {
                            "problem": np.repeat(self.problem_ids, n_heads),
                            "condition": condition,
                            "layer": list(layers) * n_problems,
                            "head": list(heads) * n_problems,
                            "label": [str(head) for head in self.heads] * n_problems,
                            "metric": metric,
                            "value": array[:, layers, heads].ravel(),
                            "null": np.nan if null is None else null[:, layers].ravel(),
                            "unit": metric_named(metric).unit,
                        }
                    )
                )
        return pd.concat(parts, ignore_index=True)

    def top(self, metric: str, k: int = 10, condition: str | None = None) -> Any:
        """The `k` heads with the largest mean of a metric, as rows of `summary`."""
        self.of(metric, condition)
        if condition is None:
            condition = list(self.values[metric])[-1]
        return (
            self.summary(condition).sort_values(metric, ascending=False, kind="stable").head(k).reset_index(drop=True)
        )

    def describe(self) -> str:
        """What was measured, and how much of it is undefined."""
        s = self.settings
        cells = {m: [array[:, *_places(self.heads)] for array in found.values()] for m, found in self.values.items()}
        missing = {m: sum(int(np.isnan(a).sum()) for a in arrays) for m, arrays in cells.items()}
        total = {m: sum(a.size for a in arrays) for m, arrays in cells.items()}
        words = (
            f"{len(self.values)} attention metrics of {len(self.heads)} heads on {len(self.problem_ids)} problems, "
            f"{s.get('insertion', 'no insertion')}, conditions {', '.join(self.conditions)}, rows {s.get('rows')!r}."
        )
        if s.get("sink_moved"):
            words += f" On {s['sink_moved']} the span holds the first token: their sink is the first token after it."
        if s.get("boundary_merge"):
            words += f" On {s['boundary_merge']} tokens merged at a border of the span and are left out of comparisons."
        undefined = [f"{m} {missing[m]}/{total[m]}" for m in cells if missing[m]]
        return words + (f" Undefined (NaN): {', '.join(undefined)}." if undefined else "")

    def __repr__(self) -> str:
        condition = self.conditions[-1]
        here = [m for m, found in self.values.items() if condition in found]
        usual = [m for m in ("span_mass", "log_density_ratio", "collapse_relative", "recovery_aligned") if m in here]
        shown: list[str] = [*(usual or here)][:5]
        if not shown:
            return self.describe()
        table = self._narrow(condition, shown)
        return f"{self.describe()}\n{table.to_string(index=False, float_format=lambda x: f'{x:.4f}')}"

    def _narrow(self, condition: str, metrics: list[str]) -> Any:
        """Means of a few metrics, ten heads, the largest of the first metric first (without the cost of intervals)."""
        import pandas as pd

        layers, heads = _places(self.heads)
        table = pd.DataFrame(
            {"label": map(str, self.heads), "paper_label": [head.paper_label for head in self.heads]}
            | {metric: self.mean(metric, condition)[layers, heads] for metric in metrics}
        )
        return table.sort_values(metrics[0], ascending=False, kind="stable").head(10)

    def _condition(self, condition: str | None) -> str:
        condition = condition or self.conditions[-1]
        if condition not in self.conditions:
            raise ValueError(f"no condition {condition!r} here; there are {', '.join(self.conditions)}")
        return condition

    def _interval(self, cells: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        cells = np.where(np.isfinite(cells), cells, np.nan)
        if len(cells) == 1:
            unknown = np.full(cells.shape[1:], np.nan)
            return cells[0], unknown, unknown
        found = bootstrap_interval(cells, confidence=self.confidence, seed=self.seed, n_resamples=self.n_resamples)
        return np.where(found.n > 0, _mean(cells), np.nan), found.low, found.high


def _places(heads: tuple[Head, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    return tuple(head.layer for head in heads), tuple(head.head for head in heads)


def _mean(values: np.ndarray) -> np.ndarray:
    """Mean over the first axis of what is finite."""
    finite = np.isfinite(values)
    count = finite.sum(0)
    return np.where(count > 0, np.where(finite, values, 0.0).sum(0) / np.maximum(count, 1), np.nan)


def _median_interval(cells: np.ndarray, confidence: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Median `[cell]` of values that may be infinite, with the interval between two order statistics."""
    found = np.full((3, *cells.shape[1:]), np.nan)
    for cell in np.ndindex(cells.shape[1:]):
        values = np.sort(cells[(slice(None), *cell)])
        values = values[~np.isnan(values)]
        if not len(values):
            continue
        middle = values[(len(values) - 1) // 2 : len(values) // 2 + 1]
        found[(0, *cell)] = middle[0] if middle[0] == middle[-1] else middle.mean()
        lower = _lower_rank(len(values), confidence)
        if lower >= 0:
            found[(1, *cell)], found[(2, *cell)] = values[lower], values[-1 - lower]
    return found[0], found[1], found[2]


@lru_cache(maxsize=256)
def _lower_rank(n: int, confidence: float) -> int:
    """Zero-based rank whose value and its mirror image enclose the median with at least `confidence`; -1: none does.

    They enclose it unless at most `rank` of the n values lie on one side, each with chance 1/2.
    """
    tail = (1 - confidence) / 2
    return max((rank for rank in range(n // 2) if binom.cdf(rank, n, 0.5) <= tail), default=-1)
