"""A total effect over problems, and what may be claimed of its parts: one place for every rule of methods §9."""

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from ..core.arguments import count_of
from ..runtime.results import limits_of, with_limits
from ..statistics import (
    CONFIDENCE,
    SENSES,
    Interval,
    Prevalence,
    by_group,
    defined_mean,
    detectable_prevalence,
    fewest_problems,
    mean_interval,
    median_interval,
    prevalence_test,
    share_of_total,
    sign_test,
    within_test,
)

SMALLEST_EFFECT = 0.05
"""The smallest effect of interest, as a share of the median total effect."""
OF_THE_LIMIT = 0.2
"""Part of alpha that may go wrong in estimating the smallest effect; the rest is for the tests of cells."""


def check_smallest_effect(share: float) -> None:
    """`ValueError` unless a smallest effect of interest is a share of the total: 0 or more and below 1."""
    if not 0 <= share < 1:
        raise ValueError(f"smallest_effect is a share of the median total effect, from 0 to below 1, got {share!r}")


def fewest_for(n_tests: int, confidence: float = CONFIDENCE) -> int:
    """Return the fewest problems with which any of `n_tests` tests of cells can pass and the smallest effect is defined.

    >>> fewest_for(2 * 2 * 112), fewest_for(1)
    (14, 7)
    """
    alpha = 1 - confidence
    return max(
        fewest_problems(n_tests, alpha=(1 - OF_THE_LIMIT) * alpha), fewest_problems(1, alpha=OF_THE_LIMIT * alpha)
    )


@dataclass(frozen=True, eq=False)
class Effect:
    r"""A total effect, `total` `[problem]`, and the rules by which its parts ("cells") are judged (methods §9).

    `smallest_effect` is a share of the median total, `rounding` in the effect's unit; `claimed` is the sign that the effect was
    found to have on other problems (0: the sign of the median); `groups` name variants of one problem, which count once.

    Of alpha = 1 - `confidence`, a fifth goes to estimating the smallest effect (`delta`), the rest (`level`) to tests of cells.
    """

    total: np.ndarray
    confidence: float = CONFIDENCE
    smallest_effect: float = SMALLEST_EFFECT
    rounding: float = 0.0
    claimed: float = 0.0
    groups: tuple[str, ...] = ()

    def only(self, inside: np.ndarray) -> "Effect":
        """The effect on some of the problems, boolean `[problem]`."""
        groups = tuple(name for name, here in zip(self.groups, inside, strict=True) if here) if self.groups else ()
        return replace(self, total=self.total[inside], groups=groups)

    def units(self, values: np.ndarray) -> np.ndarray:
        """Return what replicates, `[problem or group, *cells]`, of values `[problem, *cells]`."""
        return by_group(values, self.groups)

    @property
    def n(self) -> int:
        """Count the problems, or groups of problems, that replicate."""
        return len(self.units(self.total))

    def counted(self, n: int) -> str:
        """So many of what replicates, in words."""
        return count_of(n, *(("group of problems", "groups of problems") if self.groups else ("problem",)))

    @property
    def alpha(self) -> float:
        """The level of all that is claimed together."""
        return 1 - self.confidence

    @property
    def level(self) -> float:
        """The level of the tests of cells."""
        return (1 - OF_THE_LIMIT) * self.alpha

    @cached_property
    def median(self) -> Interval:
        """The median total effect with the interval of its order statistics."""
        return median_interval(self.units(self.total), confidence=self.confidence)

    @property
    def direction(self) -> float:
        """The claimed sign, or that of the median total: +1, -1 (0 counts as +1)."""
        return self.claimed or (-1.0 if float(self.median.estimate) < 0 else 1.0)

    @cached_property
    def p(self) -> float:
        """Two-sided sign test of the total effect, beyond rounding: do most problems show one, of one sign?"""
        return float(sign_test(self.units(self.total), rounding=self.rounding))

    @cached_property
    def established(self) -> bool:
        """Return True where most problems show a total effect (of the claimed sign); without one no cell has a part."""
        return self.p < self.alpha and self.direction * float(self.median.estimate) > 0

    @cached_property
    def _limits(self) -> tuple[float, float]:
        """The lower and the upper limit of |median total|, each one-sided at its part of alpha; NaN with too few problems."""
        made = median_interval(self.units(self.turned(self.total)), confidence=1 - 2 * OF_THE_LIMIT * self.alpha)
        return float(made.low), float(made.high)

    @property
    def delta(self) -> float:
        """The smallest effect of interest: `smallest_effect` of the upper limit of |median total|, and more than rounding.

        NaN, and nothing is tested, where no total effect is established or too few problems limit its median.
        """
        return self._least(self._limits[1])

    def _least(self, size: float) -> float:
        return float(np.maximum(self.smallest_effect * size, self.rounding)) if self.established else float("nan")

    def turned(self, cells: np.ndarray) -> np.ndarray:
        """Values `[problem, *cells]`, positive with the total effect."""
        return self.direction * cells

    def prevalence(
        self, cells: np.ndarray, *, senses: tuple[int, ...] = SENSES, tested: np.ndarray | None = None
    ) -> Prevalence:
        """In how many problems each cell does more than `delta`, with the total effect and against it, `[sense, *cells]`.

        p is corrected (Holm) over cells and senses, to be held against `level`; NaN where nothing can be tested.
        """
        made = self.units(self.turned(cells))
        return prevalence_test(made, self.delta, senses=senses, tested=tested, confidence=self.confidence)

    def within(self, cells: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(p, p after Holm) that most problems show less than the smallest effect, of either sense, `[*cells]`.

        The smallest effect is here of the lower limit of |median total|, the least that the total may be. NaN without one.
        """
        delta = self._least(max(self._limits[0], 0.0))
        return within_test(self.units(cells), delta if delta > 0 else float("nan"))

    def cell_medians(self, cells: np.ndarray) -> Interval:
        """The median of each cell with the interval of its order statistics, as they come."""
        return median_interval(self.units(cells), confidence=self.confidence)

    def share(self, cells: np.ndarray) -> Interval:
        """The share of the total that each cell is, with limits (`share_of_total`); NaN where the total is not established."""
        total = self.units(self.total if self.established else 0 * self.total)
        return share_of_total(self.units(cells), total, confidence=self.confidence)

    @cached_property
    def mean(self) -> float:
        """The mean total effect; NaN, as no mean is a share of it, unless its interval leaves out 0 with the median's sign."""
        made = mean_interval(self.units(self.total), confidence=self.confidence)
        nearest = min(self.direction * float(end) for end in (made.low, made.high))
        return float(defined_mean(self.total)) if nearest > self.rounding else float("nan")

    def fewest(self, n_tests: int) -> int:
        """Return the fewest problems with which any of `n_tests` tests can pass."""
        return fewest_for(n_tests, self.confidence)

    def detectable(self, n_tests: int) -> float:
        """The prevalence that these problems find with 80 % power among so many tests; NaN where they find none."""
        enough = self.n >= self.fewest(n_tests)
        return detectable_prevalence(self.n, n_tests, alpha=self.level) if enough else float("nan")

    def headline(self, what: object, outcome: object, unit: str) -> str:
        """Return what the effect does, as a clause: `X lowers Y by 2.25 nats [1.91, 2.56] in 64 of 64 problems`."""
        low, high = sorted(self.direction * float(end) for end in (self.median.low, self.median.high))
        size = f"{abs(float(self.median.estimate)):#.3g} {unit}{limits_of(low, high, '#.3g')}"
        what, outcome = str(what or "the insertion"), outcome or "the outcome"
        what, several = what[0].upper() + what[1:], what.endswith(" tokens")
        if not self.established:
            has = "have" if several else "has"
            return f"{what} {has} no established effect on {outcome} (median {with_limits(self.median, unit)})"
        same = int((self.units(self.turned(self.total)) > self.rounding).sum())
        does = ("raise" if self.direction > 0 else "lower") + "s" * (not several)
        return f"{what} {does} {outcome} by {size} in {same} of {self.counted(self.n)}"

    def details(self, unit: str, name: str = "") -> str:
        """Return the median with its limits, the sign test and the mean, as a sentence."""
        return (
            f"Total {name}{' ' * bool(name)}effect: median {with_limits(self.median, unit)}, sign test p = {self.p:.2g} over "
            f"{self.counted(self.n)}, mean {defined_mean(self.total):+.4f}."
        )

    def delta_words(self, unit: str) -> str:
        """Return the smallest effect that was used: `0.031 nats (5 % of the most that the median total may be)`."""
        if self.delta > self.smallest_effect * self._limits[1]:
            return f"{self.delta:.3g} {unit}, which rounding may reach"
        return f"{self.delta:.3g} {unit}, {100 * self.smallest_effect:.3g} % of the upper limit of the median total"
