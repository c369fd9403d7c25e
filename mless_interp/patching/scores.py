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

    `noise` `[problem, layer]` is how far the outcome of a row was off that continued the receiving run from that layer
    unedited (NaN for layers that were not swept but 0; None in results of versions that did not measure it): rounding.
    A head whose mean effect does not exceed `noise_floor` has no rank.
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
    noise: np.ndarray | None = None

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

    @cached_property
    def noise_floor(self) -> float:
        """What rounding alone can do to a mean effect, in `unit`; NaN where it was not measured.

        The mean over problems of the largest |noise| of any layer. Not layer by layer: a row that joins late has hardly
        rounded anew, but the run that it continues has; and not a high quantile: the problems that round most are those
        that carry the mean.
        """
        return float("nan") if self.noise is None else float(np.nanmax(np.abs(self.noise), axis=1).mean())

    @cached_property
    def rank(self) -> np.ndarray:
        """Rank of each head by |effect|, 1 the largest, in the order of `heads`; NaN where undefined or within the noise."""
        size = np.abs(self.effect_interval.estimate)
        return pd.Series(np.where(self.within_noise, np.nan, size)).rank(ascending=False, method="min").to_numpy()

    @property
    def within_noise(self) -> np.ndarray:
        """Whether a head's mean effect is no larger than `noise_floor`, in the order of `heads`."""
        return np.abs(self.effect_interval.estimate) <= self.noise_floor

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

        `noise` is `noise_floor`, `rank` NaN where the mean effect does not exceed it. `ci_low` and `ci_high` are the
        limits of `effect_fraction`.
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
                "noise": self.noise_floor,
                "rank": self.rank,
            }
        )

    def quantity(self, column: str) -> Quantity:
        """An effect in the outcome's unit, or a share of the whole one; all of them rest on the same test."""
        if column in ("noise", "rank"):
            return Quantity(self.unit if column == "noise" else "")
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
        """The `k` heads of largest |effect_fraction| (largest |effect| where fractions are undefined); those without a
        rank come last."""
        table = self.summary()
        key = self.default_column(table)
        order = table[key].abs().sort_values(ascending=False, kind="stable").index
        ranked = table.loc[order].sort_values("rank", key=np.isnan, kind="stable")
        return ranked.head(k).reset_index(drop=True)

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
        if undefined:
            found.append(f"{undefined} heads are undefined on some problem (NaN).")
        within = int(self.within_noise.sum())
        if within:
            found.append(
                f"{within} heads are not ranked: their mean effect is within {self.noise_floor:.1e} {self.unit}, what "
                f"rounding in {s.get('dtype', 'the model')} does to rows that are not edited."
            )
        return found

    def printed(self) -> pd.DataFrame:
        """The ten heads of the largest share, of those that have a rank."""
        top = self.top(10)
        return top[top["rank"].notna()][["label", "paper_label", "effect", "effect_fraction", "ci_low", "ci_high", "n"]]

    def shown(self) -> Shown:
        """Every head's share as a map and a table."""
        columns = ["label", "paper_label", "effect_fraction", "ci_low", "effect", "recovered", "n"]
        table = self.summary()
        key = self.default_column(table)
        low, high = self.quantity(key).limits or ("", "")
        marked = ((table[low] * table[high] > 0) & table["rank"].notna()).tolist()
        caption = f"Patched heads, the largest share first. Effects in {self.unit}."
        return Shown(
            (ShownTable(self.top(len(table)), caption, columns),),
            head_map(table, [key], columns, marked=marked, means=INTERVAL_MARK),
        )
