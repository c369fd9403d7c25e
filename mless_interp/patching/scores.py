"""What an exact sweep gives: patched outcomes per problem and head, effects, fractions and intervals."""

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from ..heads import Head
from ..running.results import Quantity, Result, Shown, ShownTable, head_columns, head_map, interval_columns, of_heads
from ..statistics import CONFIDENCE, Interval, corrected_p, mean_interval, one_problem, ratio_interval

WHOLE = "1: everything"
"""How an axis says what a share is of."""
INTERVAL_MARK = "outlined: the 95 % interval does not hold 0 (each head by itself, not corrected for testing many)"


@dataclass(frozen=True, eq=False, repr=False)
class PatchScores(Result):
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
    confidence: float = CONFIDENCE

    signed = True
    drawn = ("effect_fraction", "effect")

    def __post_init__(self) -> None:
        n = len(self.problem_ids)
        if self.patched.shape[0] != n or self.receiving.shape != (n,) or self.donor.shape != (n,):
            raise ValueError(f"{n} problems but arrays of shape {self.patched.shape}, {self.receiving.shape}")

    @property
    def effect(self) -> np.ndarray:
        """patched - receiving, `[problem, layer, head]`, in `unit`."""
        return self.patched - self.receiving[:, None, None]

    @property
    def per_head(self) -> np.ndarray:
        """`effect` of the patched heads, `[problem, head]` in the order of `heads`."""
        return of_heads(self.effect, self.heads)

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
        return mean_interval(self.total_effect, confidence=self.confidence, seed=self.seed)

    @cached_property
    def effect_interval(self) -> Interval:
        """Mean effect per head with its interval, cells in the order of `heads`."""
        return mean_interval(self.per_head, confidence=self.confidence, seed=self.seed)

    @cached_property
    def effect_fraction(self) -> Interval:
        """Ratio of means with its interval, cells in the order of `heads`."""
        effect, total = self.per_head, self.total_effect
        if len(total) == 1:
            single = effect[0] / total[0] if total[0] else np.full(effect[0].shape, np.nan)
            return one_problem(single, confidence=self.confidence)
        return ratio_interval(effect, total, confidence=self.confidence, seed=self.seed)

    @cached_property
    def effect_p(self) -> np.ndarray:
        """p of no mean effect, corrected over all patched heads (max-T sign flips of whole problems), in their order.

        NaN where nothing can be tested: a single problem, a head that is undefined on one, one that never varies.
        """
        return corrected_p(self.per_head, seed=self.seed)

    def summary(self) -> pd.DataFrame:
        """One row per head, in order of layer and head: effect, its corrected p, effect_fraction, recovered, n, flag.

        `ci_low` and `ci_high` are the limits of `effect_fraction`.
        """
        fraction, effect = self.effect_fraction, self.effect_interval
        recovered = fraction.estimate, fraction.low, fraction.high
        if self.settings.get("direction") == "noising":
            recovered = 1 - fraction.estimate, 1 - fraction.high, 1 - fraction.low
        return pd.DataFrame(
            {
                **head_columns(self.heads),
                **interval_columns("effect", effect),
                "effect_p": self.effect_p,
                "effect_fraction": fraction.estimate,
                "recovered": recovered[0],
                "ci_low": fraction.low,
                "ci_high": fraction.high,
                "recovered_ci_low": recovered[1],
                "recovered_ci_high": recovered[2],
                "n": fraction.n,
                "flag": fraction.flag,
            }
        )

    def quantity(self, column: str) -> Quantity:
        """An effect in the outcome's unit, or a share of the whole one; all of them rest on the same test."""
        if column == "effect_fraction":
            return Quantity(WHOLE, True, ("ci_low", "ci_high"), "effect_p")
        unit = WHOLE if column == "recovered" else self.unit
        return Quantity(unit, True, (f"{column}_ci_low", f"{column}_ci_high"), "effect_p")

    def to_frame(self) -> pd.DataFrame:
        """One tidy row per problem and head."""
        n, per_head = len(self.problem_ids), len(self.heads)
        columns = head_columns(self.heads, times=n)
        del columns["paper_label"]
        return pd.DataFrame(
            {
                "problem": np.repeat(self.problem_ids, per_head),
                **columns,
                "receiving": np.repeat(self.receiving, per_head),
                "donor": np.repeat(self.donor, per_head),
                "patched": of_heads(self.patched, self.heads).ravel(),
                "effect": self.per_head.ravel(),
            }
        )

    def top(self, k: int = 10) -> pd.DataFrame:
        """The `k` heads of largest |effect_fraction| (largest |effect| where fractions are undefined)."""
        table = self.summary()
        key = self.default_column(table)
        order = table[key].abs().sort_values(ascending=False, kind="stable").index
        return table.loc[order].head(k).reset_index(drop=True)

    def sentences(self) -> list[str]:
        """What was measured."""
        s, total = self.settings, self.total_interval
        low, high = float(total.low), float(total.high)
        found = [
            f"{s.get('edit', 'z')} patch of {len(self.heads)} heads, contrast {s.get('contrast')}, {s.get('direction')}, "
            f"outcome {s.get('outcome')}, {len(self.problem_ids)} problems.",
            f"Total effect (donor - receiving): {float(total.estimate):+.4f} {self.unit}, 95 % interval [{low:.4f}, "
            f"{high:.4f}].",
        ]
        if not low * high > 0:
            found.append("That interval holds 0 (or is undefined): effect_fraction is NaN, read the raw effects only.")
        undefined = int(np.isnan(self.per_head).any(0).sum())
        return [*found, f"{undefined} heads are undefined on some problem (NaN)."] if undefined else found

    def printed(self) -> pd.DataFrame:
        """The ten heads of the largest share."""
        return self.top(10)[["label", "paper_label", "effect", "effect_fraction", "ci_low", "ci_high", "n"]]

    def shown(self) -> Shown:
        """Every head's share as a map and a table."""
        columns = ["label", "paper_label", "effect_fraction", "ci_low", "effect", "recovered", "n"]
        table = self.summary()
        key = self.default_column(table)
        low, high = self.quantity(key).limits or ("", "")
        marked = (table[low] * table[high] > 0).tolist()
        caption = f"Patched heads, the largest share first. Effects in {self.unit}."
        return Shown(
            (ShownTable(self.top(len(table)), caption, columns),),
            head_map(table, [key], columns, marked=marked, means=INTERVAL_MARK),
        )
