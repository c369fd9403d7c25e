"""What an exact sweep gives: patched outcomes per problem and head, effects, fractions and intervals."""

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from ..heads import Head
from ..statistics import Interval, bootstrap_interval, ratio_interval


@dataclass(frozen=True, eq=False)
class PatchScores:
    """Patched outcomes of an exact sweep, `[problem, layer, head]`; NaN for heads that were not patched.

    `effect` = patched - receiving. `effect_fraction` = mean effect / mean (donor - receiving): 0 nothing, 1 everything,
    in both directions; rank by it. `recovered` = (patched - corrupted) / (clean - corrupted): the same when denoising,
    1 minus it when noising. Fractions are ratios of means over problems with bootstrap intervals; where the
    denominator's own interval holds 0 they are NaN and flagged, and only the raw effect stands.
    """

    problem_ids: tuple[str, ...]
    patched: np.ndarray
    receiving: np.ndarray
    donor: np.ndarray
    heads: tuple[Head, ...]
    unit: str
    settings: dict[str, Any] = field(default_factory=dict)
    seed: int = 0
    confidence: float = 0.95

    def __post_init__(self) -> None:
        n = len(self.problem_ids)
        if self.patched.shape[0] != n or self.receiving.shape != (n,) or self.donor.shape != (n,):
            raise ValueError(f"{n} problems but arrays of shape {self.patched.shape}, {self.receiving.shape}")

    @property
    def effect(self) -> np.ndarray:
        """patched - receiving, `[problem, layer, head]`, in `unit`."""
        return self.patched - self.receiving[:, None, None]

    @property
    def total_effect(self) -> np.ndarray:
        """donor - receiving, `[problem]`: what patching everything would do."""
        return self.donor - self.receiving

    def mean(self) -> np.ndarray:
        """Mean effect over problems, `[layer, head]` (NaN where a problem's is undefined)."""
        return self.effect.mean(0)

    @cached_property
    def total_interval(self) -> Interval:
        """Mean total effect with its bootstrap interval over problems (NaN limits for a single problem)."""
        return interval_of(self.total_effect, self.confidence, self.seed)

    @cached_property
    def effect_interval(self) -> Interval:
        """Mean effect per head with its interval, cells in the order of `heads`."""
        return interval_of(self._per_head(self.effect), self.confidence, self.seed)

    @cached_property
    def effect_fraction(self) -> Interval:
        """Ratio of means with its interval, cells in the order of `heads`."""
        effect, total = self._per_head(self.effect), self.total_effect
        if len(total) == 1:
            return _single(effect[0] / total[0] if total[0] else np.full(effect[0].shape, np.nan), self.confidence)
        return ratio_interval(effect, total, confidence=self.confidence, seed=self.seed)

    def _per_head(self, values: np.ndarray) -> np.ndarray:
        layers, heads = zip(*((head.layer, head.head) for head in self.heads), strict=True)
        return values[:, list(layers), list(heads)]

    def summary(self) -> Any:
        """One row per head, in order of layer and head: effect, effect_fraction, recovered, interval, n, flag."""
        import pandas as pd

        fraction, effect = self.effect_fraction, self.effect_interval
        noising = self.settings.get("direction") == "noising"
        return pd.DataFrame(
            {
                "layer": [head.layer for head in self.heads],
                "head": [head.head for head in self.heads],
                "label": [str(head) for head in self.heads],
                "paper_label": [head.paper_label for head in self.heads],
                "effect": effect.estimate,
                "effect_ci_low": effect.low,
                "effect_ci_high": effect.high,
                "effect_fraction": fraction.estimate,
                "recovered": 1 - fraction.estimate if noising else fraction.estimate,
                "ci_low": fraction.low,
                "ci_high": fraction.high,
                "n": fraction.n,
                "flag": fraction.flag,
            }
        )

    def to_frame(self) -> Any:
        """One tidy row per problem and head."""
        import pandas as pd

        n, per_head = len(self.problem_ids), len(self.heads)
        return pd.DataFrame(
            {
                "problem": np.repeat(self.problem_ids, per_head),
                "layer": [head.layer for head in self.heads] * n,
                "head": [head.head for head in self.heads] * n,
                "label": [str(head) for head in self.heads] * n,
                "receiving": np.repeat(self.receiving, per_head),
                "donor": np.repeat(self.donor, per_head),
                "patched": self._per_head(self.patched).ravel(),
                "effect": self._per_head(self.effect).ravel(),
            }
        )

    def top(self, k: int = 10) -> Any:
        """The `k` heads of largest |effect_fraction| (largest |effect| where fractions are undefined)."""
        table = self.summary()
        key = "effect_fraction" if table["effect_fraction"].notna().any() else "effect"
        order = table[key].abs().sort_values(ascending=False, kind="stable").index
        return table.loc[order].head(k).reset_index(drop=True)

    def describe(self) -> str:
        """What was measured, in two sentences."""
        s, total = self.settings, self.total_interval
        words = (
            f"{s.get('edit', 'z')} patch of {len(self.heads)} heads, contrast {s.get('contrast')}, {s.get('direction')}, "
            f"outcome {s.get('outcome')}, {len(self.problem_ids)} problems."
        )
        low, high = float(total.low), float(total.high)
        words += f" Total effect (donor - receiving): {float(total.estimate):+.4f} {self.unit}, "
        words += f"95 % interval [{low:.4f}, {high:.4f}]."
        if not low * high > 0:
            words += " That interval holds 0 (or is undefined): effect_fraction is NaN, read the raw effects only."
        undefined = int(np.isnan(self._per_head(self.patched)).any(0).sum())
        return words + (f" {undefined} heads are undefined on some problem (NaN)." if undefined else "")

    def __repr__(self) -> str:
        columns = ["label", "paper_label", "effect", "effect_fraction", "ci_low", "ci_high", "n"]
        table = self.top(10)[columns].to_string(index=False, float_format=lambda x: f"{x:+.4f}")
        return f"{self.describe()}\n{table}"


def interval_of(values: np.ndarray, confidence: float, seed: int) -> Interval:
    """Mean over problems with its bootstrap interval; one problem has an estimate without limits, flagged."""
    if len(values) > 1:
        return bootstrap_interval(values, confidence=confidence, seed=seed)
    return _single(np.asarray(values[0]), confidence)


def _single(estimate: np.ndarray, confidence: float) -> Interval:
    """The "interval" of one problem: an estimate without limits, flagged."""
    estimate = np.asarray(estimate, dtype=float)
    unknown = np.full(estimate.shape, np.nan)
    return Interval(
        estimate=estimate,
        low=unknown,
        high=unknown,
        standard_error=unknown,
        n=np.asarray(np.isfinite(estimate), dtype=int),
        flag=np.full(estimate.shape, "fewer than 2 problems"),
        confidence=confidence,
        method="none",
    )
