"""Parts of an insertion's effect, problem by problem: what is claimed of them, and how it is said."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from ..given import count_of
from ..prompts.conditions import CONTRASTS
from ..running.results import Quantity, interval_columns, with_limits
from ..statistics import (
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


class Parts:
    """What results share that take an effect apart: into heads, edges or sites ("cells").

    A result gives `per_cell` `[problem, cell]` and `total_effect` `[problem]`, and has the fields below. What is claimed of a
    cell is how many problems show it: more than `delta` = `smallest_effect` x |median total effect| (and more than rounding),
    with the total effect or against it, in more than half of all problems (`prevalence`). Means describe.
    """

    problem_ids: Any
    per_cell: Any
    total_effect: Any
    unit: str
    settings: Any
    seed: int
    confidence: float
    smallest_effect: float
    signed: ClassVar[bool] = True
    drawn: ClassVar[tuple[str, ...]] = ("effect_fraction", "effect")
    what: ClassVar[tuple[str, str]] = ("head", "heads")
    """What a cell is called, one and several."""

    @cached_property
    def total_interval(self) -> Interval:
        """Mean total effect with its bootstrap interval over problems (NaN limits for a single problem)."""
        return mean_interval(self.total_effect, confidence=self.confidence, seed=self.seed)

    @cached_property
    def effect_interval(self) -> Interval:
        """Mean effect per cell with its interval."""
        return mean_interval(self.per_cell, confidence=self.confidence, seed=self.seed)

    @cached_property
    def effect_fraction(self) -> Interval:
        """Ratio of means per cell with its interval."""
        return share_interval(self.per_cell, self.total_effect, confidence=self.confidence, seed=self.seed)

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
        return float(sign_test(self.total_effect, rounding=self.rounding))

    @property
    def established(self) -> bool:
        """Whether most problems show a total effect; where not, there is nothing for a cell to carry and none is tested."""
        return self.p_total < self.alpha

    @property
    def direction(self) -> int:
        """The sign of the median total effect: +1, -1 (0 counts as +1)."""
        return -1 if float(self.median_total.estimate) < 0 else 1

    @property
    def rounding(self) -> float:
        """Effects up to this are taken for rounding, in `unit`."""
        return float(self.settings.get("resolution", 0.0))

    @property
    def delta(self) -> float:
        """The smallest effect of interest, in `unit`: a share of the median total, and more than rounding."""
        return max(self._asked, self.rounding)

    @property
    def _asked(self) -> float:
        """The share of the median total that is asked for, in `unit`."""
        return self.smallest_effect * abs(float(self.median_total.estimate))

    @cached_property
    def prevalence(self) -> Prevalence:
        """In how many problems each cell does more than `delta`, with the total effect and against it, `[sense, cell]`.

        p is exact for any distribution and corrected (Holm) over cells and senses; NaN where the total effect is not
        established, and for a cell that is undefined on every problem.
        """
        turned = self.direction * self.per_cell
        tested = np.full(turned.shape[1:], self.established)
        return prevalence_test(turned, self.delta, tested=tested, confidence=self.confidence)

    @cached_property
    def sense(self) -> np.ndarray:
        """The sense in which more problems show each cell's effect: +1 with the total effect, -1 against it, `[cell]`."""
        with_it, against = (self.prevalence.in_sense(sense, self.prevalence.count) for sense in SENSES)
        return np.where(against > with_it, -1, 1)

    def _in_its_sense(self, values: np.ndarray) -> np.ndarray:
        """The row `[cell]` of values `[sense, cell]` that belongs to each cell's own sense."""
        return np.where(self.sense > 0, *(self.prevalence.in_sense(sense, values) for sense in SENSES))

    @cached_property
    def p_prevalence(self) -> np.ndarray:
        """Corrected p of each cell in its sense."""
        return self._in_its_sense(self.prevalence.p_corrected)

    @cached_property
    def median(self) -> Interval:
        """Median effect per cell with the interval of its order statistics."""
        return median_interval(self.per_cell, confidence=self.confidence)

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

    def claim_columns(self) -> dict[str, Any]:
        """The columns of a summary that say what is claimed: sense, k of n problems with limits, p, the median with limits."""
        told = self.prevalence
        return {
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
        }

    def share_columns(self) -> dict[str, Any]:
        """The columns of a summary that describe: the mean as a share of the mean total, with its limits."""
        share = self.effect_fraction
        return {"effect_fraction": share.estimate, "ci_low": share.low, "ci_high": share.high}

    def quantity(self, column: str) -> Quantity:
        """Parts of the effect, or shares of it or of the problems; all rest on the same test."""
        limits = ("ci_low", "ci_high") if column == "effect_fraction" else (f"{column}_ci_low", f"{column}_ci_high")
        if column == "prevalence":
            return Quantity("share of problems", False, limits, "p_prevalence", self._claim())
        share = column in ("effect_fraction", "median_fraction")
        below = "against the effect" if share else "lowers the outcome"
        return Quantity(WHOLE if share else self.unit, True, limits, "p_prevalence", self._claim(), below)

    def _claim(self) -> str:
        return f"more than {100 * self.smallest_effect:.3g} % of the effect in most problems"

    def _total_words(self) -> list[str]:
        mean, n = self.total_interval, len(self.problem_ids)
        low, high = float(mean.low), float(mean.high)
        same = int((self.direction * self.total_effect > 0).sum())
        contrast = CONTRASTS.get(str(self.settings.get("contrast")))
        name = "" if contrast is None or contrast.name == "total" else f"{contrast.name} "
        ends = "" if contrast is None else f" ({contrast.corrupted} - {contrast.clean})"
        found = [
            f"Total {name}effect{ends}: median {with_limits(self.median_total, self.unit)}, of this sign in {same} of "
            f"{count_of(n, 'problem')} (sign test, p = {self.p_total:.2g}); mean {with_limits(mean, self.unit)}."
        ]
        if n == 1:
            found.append(
                "One problem: the mean has no interval, and effect_fraction is that problem's, without limits."
            )
        elif not low * high > 0:
            found.append("The mean's interval holds 0: effect_fraction is NaN, read the raw effects only.")
        few = self.concentration
        if few.concentrated and n >= FEWEST:
            names = listed([str(self.problem_ids[at]) for at in few.problems])
            found.append(
                f"A few problems carry most of it: {len(few.problems)} of {n} ({names}) hold {100 * few.share:.0f} % of the "
                f"sum of all |effects|; as they are left out, the mean lies between {few.low:+.4f} and {few.high:+.4f}."
            )
            if self.settings.get("outcome") != "answer_prob":
                found.append('Patch with outcome="answer_prob" as well: it is bounded and has no such tails.')
        return found

    def _claim_words(self) -> list[str]:
        """Which cells are shown to do more than the smallest effect; of a summary with a `label` per row."""
        if why := self.why_none():
            return [why]
        table = self.summary().sort_values("p_prevalence", kind="stable")  # type: ignore[attr-defined]
        passed = table[table["p_prevalence"] < self.alpha]
        rest, share = len(passed) - NAMED_AT_MOST, f"{100 * self.smallest_effect:.3g} %"
        return [
            f"{len(passed)} of {count_of(self._n_tested, *self.what)} {'does' if len(passed) == 1 else 'do'} more than {share} "
            f"of the effect in most problems ({self._test_words()}).",
            *(_cell_words(row, share) for row in passed.head(NAMED_AT_MOST).to_dict("records")),
            *([f"{rest} more {'stands' if rest == 1 else 'stand'} in the table."] if rest > 0 else []),
        ]

    @property
    def _n_tested(self) -> int:
        """Cells that are defined on any problem."""
        return int((~np.isnan(self.per_cell)).any(0).sum())

    def _test_words(self) -> str:
        cells = count_of(self._n_tested, *self.what)
        test = f"prevalence test, p < {self.alpha:.3g} after Holm over {cells} and both senses"
        if self.delta > self._asked:
            test += f"; effects up to {self.delta:.2g} {self.unit} are taken for rounding, which is more than that"
        return test

    def why_none(self) -> str:
        """Why no cell is shown to do more than the smallest effect, in a sentence; "" where one is."""
        one, n, m = self.what[0], len(self.total_effect), self._n_tested
        if not self.established:
            return f"That most problems show an effect of one sign is not established, so no {one} is tested."
        if bool((self.p_prevalence < self.alpha).any()):
            return ""
        least = fewest_problems(m, alpha=self.alpha) if m else 0
        if n < least:
            takes = "takes" if m == 1 else "take"
            return (
                f"No {one} can pass with {count_of(n, 'problem')}: {count_of(m, *self.what)} {takes} at least {least} "
                f"({self._test_words()})."
            )
        said = f"No {one} is shown to do more than {100 * self.smallest_effect:.3g} % of the effect in most problems"
        if not m:
            return f"{said}: none is defined on any problem."
        power = detectable_prevalence(n, m, alpha=self.alpha)
        found = f"one that does in {100 * power:.0f} % of all problems would be found with 80 % power"
        return f"{said} ({self._test_words()}); {found}."


def _cell_words(row: dict[str, Any], share: str) -> str:
    """One cell's claim, from its row of the summary."""
    way = "of the effect" if row["sense"] > 0 else "against the effect"
    middle, low, high = (100 * row[f"median_fraction{end}"] for end in ("", "_ci_low", "_ci_high"))
    return (
        f"{row['label']}: more than {share} {way} in {row['k']} of {count_of(row['n'], 'problem')}; median {middle:.0f} % "
        f"[{low:.0f}, {high:.0f}] of the total."
    )


def listed(names: Sequence[str]) -> str:
    """At most ten names, as words."""
    return ", ".join(names[:NAMED_AT_MOST]) + (", ..." if len(names) > NAMED_AT_MOST else "")
