"""What an exact sweep gives: patched outcomes per problem and head, effects, fractions and intervals."""

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from ..heads import Head
from ..prompts.conditions import CONTRASTS, DIRECTIONS
from ..running.results import (
    Quantity,
    Result,
    Shown,
    ShownTable,
    head_columns,
    head_map,
    interval_columns,
    of_heads,
    with_limits,
)
from ..statistics import (
    CONFIDENCE,
    SENSES,
    Concentration,
    Interval,
    Prevalence,
    concentration,
    detectable_prevalence,
    fewest_problems,
    mean_interval,
    median_interval,
    prevalence_test,
    share_interval,
    sign_test,
)

WHOLE = "1: the whole effect"
"""How an axis says what a share is of."""
SMALLEST_EFFECT = 0.05
"""The smallest effect of interest, as a share of the median total effect."""
FEWEST = 6
"""Problems from which on it is said that a few of them carry the mean; of fewer, one always may."""
NAMED_AT_MOST = 10
"""Heads or problems that a sentence names."""


def check_smallest_effect(share: float) -> None:
    """`ValueError` unless a smallest effect of interest is a share of the total: 0 or more and below 1."""
    if not 0 <= share < 1:
        raise ValueError(f"smallest_effect is a share of the median total effect, from 0 to below 1, got {share!r}")


@dataclass(frozen=True, eq=False, repr=False)
class PatchScores(Result):
    """Patched outcomes of an exact sweep, `[problem, layer, head]`; NaN for heads that were not patched.

    `total_effect` is the insertion's own (corrupted - clean) and `effect` the part of it that a head carries: what denoising
    the head takes out, what noising it brings in. What patching does to the outcome, patched - receiving, is
    `patching_changes`: `effect` when noising, the same with its sign turned when denoising. `effect_fraction` = mean effect /
    mean total effect: 0 nothing, 1 everything, below 0 against it, in both directions; rank by it. `recovered` = (patched -
    corrupted) / (clean - corrupted): 1 minus it when noising. Fractions are ratios of means over problems with intervals;
    where the denominator's own interval holds 0 they are NaN and flagged, and only the raw effect stands.

    Means describe; what is *claimed* of a head is how many problems show it: more than `delta` = `smallest_effect` x
    |median total effect|, with the total effect or against it, in more than half of all problems (`prevalence`). On
    log-probabilities a few problems often carry the mean (`concentration`).

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
    smallest_effect: float = SMALLEST_EFFECT
    noise: np.ndarray | None = None

    signed = True
    drawn = ("effect_fraction", "effect")
    axes = (
        ("patched", "problem layer head_of_layer"),
        ("receiving", "problem"),
        ("donor", "problem"),
        ("noise", "problem layer"),
    )

    def __post_init__(self) -> None:
        check_smallest_effect(self.smallest_effect)
        n = len(self.problem_ids)
        shapes = {name: np.shape(getattr(self, name)) for name in ("patched", "receiving", "donor", "noise")}
        layers, heads = (*shapes["patched"][1:], 0, 0)[:2]
        expected = {"patched": (n, layers, heads), "receiving": (n,), "donor": (n,), "noise": (n, layers)}
        if self.noise is None:
            del shapes["noise"]
        for name, shape in shapes.items():
            if shape != expected[name]:
                axes = {"patched": "[problem, layer, head]", "noise": "[problem, layer]"}.get(name, "[problem]")
                raise ValueError(f"{name} must be {axes} for {n} problems, got shape {list(shape)}")
        outside = [head for head in self.heads if head.layer >= layers or head.head >= heads]
        if outside or not self.heads:
            raise ValueError(
                f"heads must be of the {layers} layers x {heads} heads of `patched`, got {outside[0] if outside else 'none'}"
            )

    @property
    def sign(self) -> int:
        """What turns changes of the receiving run into parts of the insertion's effect (`prompts.conditions.DIRECTIONS`)."""
        return DIRECTIONS[self.settings.get("direction", "denoising")]

    @property
    def patching_changes(self) -> np.ndarray:
        """patched - receiving, `[problem, layer, head]`, in `unit`."""
        return self.patched - self.receiving[:, None, None]

    @property
    def effect(self) -> np.ndarray:
        """The part of the insertion's effect that each head carries, `[problem, layer, head]`, in `unit`."""
        return self.sign * self.patching_changes + 0.0  # no -0

    @property
    def per_head(self) -> np.ndarray:
        """`effect` of the patched heads, `[problem, head]` in the order of `heads`."""
        return of_heads(self.effect, self.heads)

    @property
    def total_effect(self) -> np.ndarray:
        """What the insertion does to the outcome (corrupted - clean), `[problem]`, in `unit`."""
        return self.sign * (self.donor - self.receiving) + 0.0

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
        return share_interval(self.per_head, self.total_effect, confidence=self.confidence, seed=self.seed)

    @property
    def alpha(self) -> float:
        """The level of every test: 1 - `confidence`."""
        return 1 - self.confidence

    @cached_property
    def median_total(self) -> Interval:
        """Median total effect with the interval of its order statistics."""
        return median_interval(self.total_effect, confidence=self.confidence)

    @cached_property
    def p_total(self) -> float:
        """Two-sided sign test of the total effect: do most problems show one, of one sign?"""
        return float(sign_test(self.total_effect, rounding=self.settings.get("resolution", 0.0)))

    @property
    def established(self) -> bool:
        """Whether most problems show a total effect; where not, there is nothing for a head to carry and none is tested."""
        return self.p_total < self.alpha

    @property
    def direction(self) -> int:
        """The sign of the median total effect: +1, -1 (0 counts as +1)."""
        return -1 if float(self.median_total.estimate) < 0 else 1

    @property
    def delta(self) -> float:
        """The smallest effect of interest, in `unit`."""
        return self.smallest_effect * abs(float(self.median_total.estimate))

    @cached_property
    def prevalence(self) -> Prevalence:
        """In how many problems each head does more than `delta`, with the total effect and against it, `[sense, head]`.

        p is exact for any distribution and corrected (Holm) over heads and senses; NaN where the total effect is not
        established, and for a head that is undefined on every problem.
        """
        turned = self.direction * self.per_head
        tested = np.full(turned.shape[1:], self.established)
        return prevalence_test(turned, self.delta, tested=tested, confidence=self.confidence)

    @cached_property
    def sense(self) -> np.ndarray:
        """The sense in which more problems show each head's effect: +1 with the total effect, -1 against it, `[head]`."""
        with_it, against = (self.prevalence.in_sense(sense, self.prevalence.count) for sense in SENSES)
        return np.where(against > with_it, -1, 1)

    def _in_its_sense(self, values: np.ndarray) -> np.ndarray:
        """The row `[head]` of values `[sense, head]` that belongs to each head's own sense."""
        return np.where(self.sense > 0, *(self.prevalence.in_sense(sense, values) for sense in SENSES))

    @cached_property
    def p_prevalence(self) -> np.ndarray:
        """Corrected p of each head in its sense, in the order of `heads`."""
        return self._in_its_sense(self.prevalence.p_corrected)

    @cached_property
    def median(self) -> Interval:
        """Median effect per head with the interval of its order statistics, cells in the order of `heads`."""
        return median_interval(self.per_head, confidence=self.confidence)

    @cached_property
    def median_fraction(self) -> Interval:
        """`median` as a share of the median total effect; NaN where the total effect is not established."""
        total = float(self.median_total.estimate) if self.established else np.nan
        one, made = abs(total) or np.nan, self.median
        low, high = (made.low, made.high) if self.direction > 0 else (-made.high, -made.low)
        estimate, low, high = (x / one + 0.0 for x in (self.direction * made.estimate, low, high))  # no -0
        return replace(made, estimate=estimate, low=low, high=high)

    @cached_property
    def concentration(self) -> Concentration:
        """How far the mean total effect rests on a few problems."""
        return concentration(self.total_effect)

    def summary(self) -> pd.DataFrame:
        """One row per head, in order of layer and head.

        What is claimed: `sense` (+1 with the total effect, -1 against it), `k` of `n` problems with more than the smallest
        effect in it, `prevalence` = k / n with its exact limits, `p_prevalence` (prevalence test, Holm over heads and
        senses), `median` and `median_fraction` with their limits. What describes: the means of `effect` and
        `patching_changes`, `effect_fraction` (limits `ci_low`, `ci_high`), `recovered`, `flag`. `noise` is `noise_floor`,
        `rank` NaN where the mean effect does not exceed it.
        """
        fraction, told = self.effect_fraction, self.prevalence
        recovered = fraction.estimate, fraction.low, fraction.high
        if self.sign > 0:
            recovered = 1 - fraction.estimate, 1 - fraction.high, 1 - fraction.low
        return pd.DataFrame(
            {
                **head_columns(self.heads),
                "sense": self.sense,
                "k": self._in_its_sense(told.count),
                "n": told.n,
                "prevalence": self._in_its_sense(told.share),
                "prevalence_ci_low": self._in_its_sense(told.low),
                "prevalence_ci_high": self._in_its_sense(told.high),
                "p_prevalence": self.p_prevalence,
                **interval_columns("median", self.median),
                **interval_columns("median_fraction", self.median_fraction),
                **interval_columns("effect", self.effect_interval),
                "patching_changes": self.sign * self.effect_interval.estimate + 0.0,
                "effect_fraction": fraction.estimate,
                "recovered": recovered[0],
                "ci_low": fraction.low,
                "ci_high": fraction.high,
                "recovered_ci_low": recovered[1],
                "recovered_ci_high": recovered[2],
                "flag": fraction.flag,
                "noise": self.noise_floor,
                "rank": self.rank,
            }
        )

    def quantity(self, column: str) -> Quantity:
        """An effect in the outcome's unit, or a share of the whole one or of the problems; all rest on the same test."""
        if column in ("noise", "rank"):
            return Quantity(self.unit if column == "noise" else "")
        limits = ("ci_low", "ci_high") if column == "effect_fraction" else (f"{column}_ci_low", f"{column}_ci_high")
        if column == "prevalence":
            return Quantity("share of problems", False, limits, "p_prevalence", self._claim())
        if column in ("effect_fraction", "recovered", "median_fraction"):
            against = "" if column == "recovered" else "against the effect"
            return Quantity(WHOLE, True, limits, "p_prevalence", self._claim(), against)
        below = "patching lowers the outcome" if column == "patching_changes" else "lowers the outcome"
        return Quantity(self.unit, True, limits, "p_prevalence", self._claim(), below)

    def _claim(self) -> str:
        return f"more than {100 * self.smallest_effect:.3g} % of the effect in most problems"

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
                "patching_changes": of_heads(self.patching_changes, self.heads).ravel(),
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
        """What was measured, who carries the total effect, and which heads do how much in how many problems."""
        s = self.settings
        found = [
            f"{s.get('edit', 'z')} patch of {len(self.heads)} heads, contrast {s.get('contrast')}, {s.get('direction')}, "
            f"outcome {s.get('outcome')}, {len(self.problem_ids)} problems.",
            *self._total_words(),
            *self._head_words(),
        ]
        undefined = int(np.isnan(self.per_head).any(0).sum())
        if undefined:
            found.append(f"{undefined} heads are undefined on some problem (NaN).")
        within = int(self.within_noise.sum())
        if within:
            found.append(
                f"{within} {'head is' if within == 1 else 'heads are'} not ranked: the mean effect is within "
                f"{self.noise_floor:.1e} {self.unit}, what rounding in {s.get('dtype', 'the model')} does to rows that are "
                "not edited."
            )
        return found

    def _total_words(self) -> list[str]:
        mean, n = self.total_interval, len(self.problem_ids)
        low, high = float(mean.low), float(mean.high)
        same = int((self.direction * self.total_effect > 0).sum())
        contrast = CONTRASTS.get(str(self.settings.get("contrast")))
        name = "" if contrast is None or contrast.name == "total" else f"{contrast.name} "
        ends = "" if contrast is None else f" ({contrast.corrupted} - {contrast.clean})"
        found = [
            f"Total {name}effect{ends}: median {with_limits(self.median_total, self.unit)}, of this sign in {same} of {n} "
            f"problems (sign test, p = {self.p_total:.2g}); mean {with_limits(mean, self.unit)}."
        ]
        if not low * high > 0:
            found.append(
                "The mean's interval holds 0 (or is undefined): effect_fraction is NaN, read the raw effects only."
            )
        few = self.concentration
        if few.concentrated and n >= FEWEST:
            names = _listed([str(self.problem_ids[at]) for at in few.problems])
            found.append(
                f"A few problems carry most of it: {len(few.problems)} of {n} ({names}) hold {100 * few.share:.0f} % of the "
                f"sum of all |effects|; as they are left out, the mean lies between {few.low:+.4f} and {few.high:+.4f}."
            )
            if self.settings.get("outcome") != "answer_prob":
                found.append('Patch with outcome="answer_prob" as well: it is bounded and has no such tails.')
        return found

    def _head_words(self) -> list[str]:
        n, m, share = len(self.problem_ids), len(self.heads), f"{100 * self.smallest_effect:.3g} %"
        if not self.established:
            return ["That most problems show an effect of one sign is not established, so no head is tested."]
        table = self.summary().sort_values("p_prevalence", kind="stable")
        passed = table[table["p_prevalence"] < self.alpha]
        test = f"prevalence test, p < {self.alpha:.3g} after Holm over {m} heads and both senses"
        if len(passed):
            rest = len(passed) - NAMED_AT_MOST
            return [
                f"{len(passed)} of {m} heads do more than {share} of the effect in most problems ({test}).",
                *(_head_words(row, share) for row in passed.head(NAMED_AT_MOST).to_dict("records")),
                *([f"{rest} more stand in the table."] if rest > 0 else []),
            ]
        least = fewest_problems(m, alpha=self.alpha)
        if n < least:
            return [f"No head can pass with {n} problems: {m} heads take at least {least} ({test})."]
        power = detectable_prevalence(n, m, alpha=self.alpha)
        return [
            f"No head is shown to do more than {share} of the effect in most problems ({test}); one that does in "
            f"{100 * power:.0f} % of all problems would be found with 80 % power."
        ]

    def printed(self) -> pd.DataFrame:
        """The ten heads of the largest share, of those that have a rank."""
        columns = ["label", "paper_label", "k", "n", "median_fraction", "effect", "effect_fraction"]
        top = self.top(10)
        return top.loc[top["rank"].notna(), [*columns, "ci_low", "ci_high"]]

    def shown(self) -> Shown:
        """Every head's share as a map and a table."""
        columns = ["label", "paper_label", "effect_fraction", "ci_low", "effect", "recovered"]
        columns += [
            "median_fraction",
            "median_fraction_ci_low",
            "prevalence",
            "prevalence_ci_low",
            "k",
            "n",
            "p_prevalence",
        ]
        table = self.summary()
        key = self.default_column(table)
        marked = ((table["p_prevalence"] < self.alpha) & table["rank"].notna()).tolist()
        means = f"outlined: {self._claim()}, p < {self.alpha:.3g} corrected for testing many heads"
        caption = f"Patched heads, the largest share first. Effects are the parts of the insertion's, in {self.unit}."
        return Shown(
            (ShownTable(self.top(len(table)), caption, columns),),
            head_map(table, [key], columns, marked=marked, means=means),
        )


def _head_words(row: dict[str, Any], share: str) -> str:
    """One head's claim, from its row of the summary."""
    way = "of the effect" if row["sense"] > 0 else "against the effect"
    middle, low, high = (100 * row[f"median_fraction{end}"] for end in ("", "_ci_low", "_ci_high"))
    return (
        f"{row['label']}: more than {share} {way} in {row['k']} of {row['n']} problems; median {middle:.0f} % "
        f"[{low:.0f}, {high:.0f}] of the total."
    )


def _listed(names: list[str]) -> str:
    return ", ".join(names[:NAMED_AT_MOST]) + (", ..." if len(names) > NAMED_AT_MOST else "")
