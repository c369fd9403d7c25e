"""A total effect over problems, what may be claimed of its parts, and how it is said: one place for the rules of methods §9."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import pandas as pd

from .. import statistics
from ..core.arguments import count_of, listed
from ..prompts.conditions import CONTRASTS
from ..runtime.base_result import Quantity, counted, interval_columns, largest_first, limits_of, with_limits
from ..runtime.columns import Column, columns_of
from ..statistics import CONFIDENCE, SENSES, Interval, Prevalence, defined_mean
from .prepared import Measured

SMALLEST_EFFECT = 0.05  # the smallest effect of interest, as a share of the upper limit of the median total effect
OF_THE_LIMIT = 0.2
"""Part of alpha that may go wrong in estimating the smallest effect; the rest is for the tests of cells."""
WHOLE = "1: the whole effect"


def check_smallest_effect(share: float) -> None:
    if not 0 <= share < 1:
        raise ValueError(
            f"smallest_effect is a share of the upper limit of the median total effect, from 0 to below 1, got {share!r}"
        )


def fewest_for(n_tests: int, confidence: float = CONFIDENCE) -> int:
    """Return the fewest problems with which any of `n_tests` tests of cells can pass and the smallest effect is defined.

    >>> fewest_for(2 * 2 * 112), fewest_for(1)
    (14, 7)
    """
    alpha, fewest = 1 - confidence, statistics.fewest_problems
    return max(fewest(n_tests, alpha=(1 - OF_THE_LIMIT) * alpha), fewest(1, alpha=OF_THE_LIMIT * alpha))


@dataclass(frozen=True, eq=False)
class Effect:
    """A total effect, `total` `[problem]`, and the rules by which its parts ("cells") are judged (methods §9).

    `claimed` is the sign that the effect was found to have on other problems (0: the sign of the median); `groups` name
    variants of one problem, which count once. Of alpha = 1 - `confidence`, a fifth goes to estimating the smallest effect
    (`delta`), the rest (`level`) to tests of cells.
    """

    total: np.ndarray
    confidence: float = CONFIDENCE
    smallest_effect: float = SMALLEST_EFFECT
    rounding: float = 0.0
    claimed: float = 0.0
    groups: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_smallest_effect(self.smallest_effect)

    def only(self, inside: np.ndarray) -> "Effect":
        groups = tuple(np.array(self.groups)[inside].tolist()) if self.groups else ()
        return replace(self, total=self.total[inside], groups=groups)

    def units(self, values: np.ndarray) -> np.ndarray:
        """Return what replicates, `[problem or group, *cells]`, of values `[problem, *cells]`."""
        return statistics.by_group(values, self.groups)

    @property
    def n(self) -> int:
        return int(np.isfinite(self.units(self.total)).sum())

    def counted(self, n: int) -> str:
        return counted(n, self.groups)

    @property
    def of_this_sign(self) -> int:
        """How many have an effect of the claimed sign, beyond rounding."""
        return int((self.units(self.turned(self.total)) > self.rounding).sum())

    @property
    def level(self) -> float:
        return (1 - OF_THE_LIMIT) * (1 - self.confidence)

    @cached_property
    def median(self) -> Interval:
        return statistics.median_interval(self.units(self.total), confidence=self.confidence)

    @property
    def direction(self) -> float:
        """The claimed sign, or that of the median total (0 counts as +1)."""
        return self.claimed or (-1.0 if float(self.median.estimate) < 0 else 1.0)

    @cached_property
    def p(self) -> float:
        """Two-sided sign test of the total effect, beyond rounding."""
        return float(statistics.sign_test(self.units(self.total), rounding=self.rounding))

    @cached_property
    def established(self) -> bool:
        """Most problems show a total effect (of the claimed sign); without one no cell has a part."""
        return self.p < 1 - self.confidence and self.direction * float(self.median.estimate) > 0

    @cached_property
    def _limits(self) -> tuple[float, float]:
        # of |median total|, each one-sided at its part of alpha; NaN with too few problems
        own, confidence = self.units(self.turned(self.total)), 1 - 2 * OF_THE_LIMIT * (1 - self.confidence)
        made = statistics.median_interval(own, confidence=confidence)
        return float(made.low), float(made.high)

    @property
    def delta(self) -> float:
        """The smallest effect of interest: `smallest_effect` of the upper limit of |median total|, and more than rounding. NaN
        (nothing is tested) where no total effect is established or too few problems limit its median."""
        return self._least(self._limits[1])

    def _least(self, size: float) -> float:
        return float(np.maximum(self.smallest_effect * size, self.rounding)) if self.established else float("nan")

    def turned(self, cells: np.ndarray) -> np.ndarray:
        """Turn values `[problem, *cells]` so that they are positive with the total effect."""
        return self.direction * cells

    def prevalence(
        self, cells: np.ndarray, *, senses: tuple[int, ...] = SENSES, tested: np.ndarray | None = None
    ) -> Prevalence:
        """Test in how many problems each cell does more than `delta`, with the effect and against it, `[sense, *cells]`."""
        made = self.units(self.turned(cells))
        return statistics.prevalence_test(made, self.delta, senses=senses, tested=tested, confidence=self.confidence)

    def within(self, cells: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Test whether most problems show less than the smallest effect, (p, p after Holm) `[*cells]`: here of the lower limit
        of |median total|, the least that the total may be."""
        delta = self._least(max(self._limits[0], 0.0))
        room = (delta if delta > 0 else float("nan")) - np.abs(self.units(cells))
        made = statistics.prevalence_test(room, 0.0, senses=(1,))
        return made.p[0], made.p_corrected[0]

    def cell_medians(self, cells: np.ndarray) -> Interval:
        return statistics.median_interval(self.units(cells), confidence=self.confidence)

    def share(self, cells: np.ndarray) -> Interval:
        """Estimate the share of the total that each cell is; NaN where the total is not established."""
        total = self.units(self.total if self.established else np.zeros_like(self.total))
        return statistics.share_of_total(self.units(cells), total, confidence=self.confidence)

    @cached_property
    def mean(self) -> float:
        """The mean total effect; NaN, as no mean is a share of it, where its interval holds 0 or has not the median's sign."""
        made = statistics.mean_interval(self.units(self.total), confidence=self.confidence)
        nearest = min(self.direction * float(end) for end in (made.low, made.high))
        return float(defined_mean(self.units(self.total))) if nearest > self.rounding else float("nan")

    def detectable(self, n_tests: int) -> float:
        """Compute the prevalence that these problems find with 80 % power among so many tests; NaN where they find none."""
        enough = self.n >= fewest_for(n_tests, self.confidence)
        return statistics.detectable_prevalence(self.n, n_tests, alpha=self.level) if enough else float("nan")

    def headline(self, what: object, outcome: object, unit: str) -> str:
        """Say what the effect does, as a clause: `X lowers Y by 2.25 nats [1.91, 2.56] in 64 of 64 problems`."""
        what, outcome = str(what or "the insertion"), outcome or "the outcome"
        what, several = what[0].upper() + what[1:], what.endswith(" tokens")
        if np.isnan(self.total).all():
            return f"{outcome} is undefined in every problem"
        if not self.established:
            has = "have" if several else "has"
            told = f"median {with_limits(self.median, unit)}"
            if 0 < abs(float(self.median.estimate)) <= self.rounding:
                told += f"; up to {self.rounding:.1g} {unit} is taken for rounding"
            return f"{what} {has} no established effect on {outcome} ({told})"
        low, high = sorted(self.direction * float(end) for end in (self.median.low, self.median.high))
        size = f"{abs(float(self.median.estimate)):#.3g} {unit}{limits_of(low, high, '#.3g')}"
        does = ("raise" if self.direction > 0 else "lower") + "s" * (not several)
        return f"{what} {does} {outcome} by {size} in {self.of_this_sign} of {self.counted(self.n)}"

    def details(self, unit: str, name: str = "") -> str:
        median, n = f"median {with_limits(self.median, unit)}", self.counted(self.n)
        total, mean = f"Total {name}{' ' * bool(name)}effect", defined_mean(self.units(self.total))
        return f"{total}: {median}, sign test p = {self.p:.2g} over {n}, mean {mean:+.4f}."

    def delta_words(self, unit: str) -> str:
        if np.isnan(self.delta):
            return f"undefined {'with so few problems' if self.established else 'without an established effect'}"
        share, limit, confidence = self.smallest_effect, self._limits[1], 1 - OF_THE_LIMIT * (1 - self.confidence)
        of = f"{100 * share:.3g} % of {limit:.3g}, the median total's upper {100 * confidence:.4g} % limit"
        return f"{self.delta:.3g} {unit}, {'which rounding may reach' if self.delta > share * limit else of}"


class Parts(Measured):
    """What results have in common that take a total effect apart into heads, edges or sites (`per_cell` `[problem, *cells]`).
    What is claimed of a cell is that most problems show it (`whole` has the rules). Means describe."""

    values: np.ndarray
    total: np.ndarray
    unit: str
    smallest_effect: float
    signed: ClassVar[bool] = True
    drawn: ClassVar[tuple[str, ...]] = ("share", "median")
    what: ClassVar[tuple[str, str]] = ("head", "heads")
    """What a cell is called, one and several."""
    columns: ClassVar[tuple[Column, ...]] = columns_of("""
        effect | mean effect | | the part of the insertion's effect that the head carries, in the outcome's unit
        effect_fraction | share of the mean effect | share | mean effect / the insertion's mean effect
        prevalence | share of problems | later | k / n
        sense | sense | later | with the insertion's effect, against it, or each way (by stratum)
        share | share | share | part of the whole that this one has: 0 nothing, 1 everything, below 0 against it
    """)

    @property
    def per_cell(self) -> np.ndarray:
        return self.values

    @property
    def total_effect(self) -> np.ndarray:
        return self.total

    @cached_property
    def whole(self) -> Effect:
        return Effect(self.total_effect, self.confidence, self.smallest_effect, self.rounding, groups=self.groups)

    @property
    def established(self) -> bool:
        return self.whole.established

    @property
    def level(self) -> float:
        return self.whole.level

    @property
    def rounding(self) -> float:
        return self.resolution

    @cached_property
    def prevalence(self) -> Prevalence:
        """In how many problems each cell does more than the smallest effect, `[sense, cell]`."""
        return self.whole.prevalence(self.per_cell)

    @cached_property
    def sense(self) -> np.ndarray:
        """The sense in which more problems show each cell's effect: +1 with the total effect, -1 against it, `[cell]`."""
        with_it, against = self.prevalence.count
        return np.where(against > with_it, -1, 1)

    def _in_its_sense(self, values: np.ndarray) -> np.ndarray:
        # of values `[sense, cell]` the row `[cell]` of each cell's own sense
        return np.where(self.sense > 0, *values)

    @cached_property
    def p_corrected(self) -> np.ndarray:
        return self._in_its_sense(self.prevalence.p_corrected)

    @cached_property
    def median(self) -> Interval:
        return self.whole.cell_medians(self.per_cell)

    @cached_property
    def share(self) -> Interval:
        """The share of the total effect that each cell is, with exact limits."""
        return self.whole.share(self.per_cell)

    @cached_property
    def mean_effect(self) -> np.ndarray:
        return defined_mean(self.by_group(self.per_cell))

    @property
    def effect_fraction(self) -> np.ndarray:
        """Ratio of means per cell: a description; NaN where `Effect.mean` is."""
        return self.mean_effect / self.whole.mean + 0.0

    def claim_columns(self) -> dict[str, np.ndarray]:
        told = self.prevalence
        found = {"sense": self.sense, "k": self._in_its_sense(told.count), "n": told.n, "p_corrected": self.p_corrected}
        counted = {"prevalence": told.share, "prevalence_ci_low": told.low, "prevalence_ci_high": told.high}
        found |= {name: self._in_its_sense(values) for name, values in counted.items()}
        found |= interval_columns("median", self.median) | interval_columns("share", self.share)
        return found | {"effect": self.mean_effect, "effect_fraction": self.effect_fraction}

    def quantity(self, column: str) -> Quantity:
        if column == "prevalence":
            return Quantity("share of problems", False, "p_corrected", self._claim(), level=self.level)
        unit = WHOLE if column in ("effect_fraction", "share") else self.unit
        return Quantity(unit, True, "p_corrected", self._claim(), "against the effect", self.level)

    @property
    def _least(self) -> str:
        return f"{100 * self.smallest_effect:.3g} %"

    def _claim(self) -> str:
        return f"more than {self._least} of the effect in most problems"

    def headline(self) -> str:
        s = self.settings
        whole, contrast = self.whole.headline(s.get("insertion"), s.get("outcome"), self.unit), s.get("contrast")
        name = f" ({contrast})" if contrast in CONTRASTS and contrast not in ("total", "content") else ""
        return f"{whole}{name}{'; ' if self.established else ', so '}{self.claim()}."

    def _by_construction(self, table: pd.DataFrame) -> np.ndarray:
        """Mark the rows of cells that carry nearly everything whatever the model does: a headline names them last."""
        return np.zeros(len(table), bool)

    def claim(self) -> str:
        one, several = self.what
        if not self.established:
            return f"no {one} is tested"
        table = self.table()
        table = largest_first(table[table["p_corrected"] < self.level], "share")
        if not len(table) and (least := self.n_needed):
            few = f"{self.whole.counted(self.whole.n)} are too few to show any of {self._n_tested} {several}"
            return f"{few}, at least {least} are needed"
        rows = table.iloc[np.argsort(self._by_construction(table), kind="stable")].to_dict("records")
        carry, against = ([row for row in rows if row["sense"] == sense] for sense in SENSES)
        of = count_of(self._n_tested, one)
        of = f"{len(carry) or 'none'} of {of} {'are' if len(carry) > 1 else 'is'} shown to carry"
        told = f"{of} more than {self._least} of it in most problems{': ' * bool(carry)}{_with_shares(carry)}"
        if against:
            told += f"; {len(against)} {'act' if len(against) > 1 else 'acts'} against it: {_with_shares(against)}"
        return told + f" ({100 * self.confidence:.4g} % intervals)" * (bool(rows) and self.confidence != CONFIDENCE)

    def caveats(self) -> list[str]:
        return [*concentration_words(self, self.total_effect, self.unit), *super().caveats()]

    def _claim_words(self) -> list[str]:
        """Say the total effect in numbers, and by which test cells are shown to carry more than the smallest effect."""
        test = f"p < {self.level:.3g} after Holm over {count_of(self._n_tested, *self.what)} and both senses"
        power = 100 * self.whole.detectable(len(SENSES) * max(self._n_tested, 1))
        found = f"one that does in {power:.0f} % of all problems is found at most 80 % of the time"
        how = f"prevalence test, {test}; smallest effect {self.whole.delta_words(self.unit)}; {found}"
        whole = self.whole.details(self.unit)
        return [whole, f"Shown in most problems: {how}."] if self.established and power > 0 else [whole]

    @property
    def _n_tested(self) -> int:
        return int((~np.isnan(self.per_cell)).any(0).sum())

    @property
    def n_needed(self) -> int:
        """The problems that it takes for any cell to pass; 0 where there are as many."""
        least = fewest_for(len(SENSES) * max(self._n_tested, 1), self.confidence)
        return least if self.whole.n < least else 0


def concentration_words(of: Measured, total: np.ndarray, unit: str) -> list[str]:
    """Say which few problems of a result carry most of an effect, and the range of the mean as they are left out."""
    few, names = statistics.concentration(of.by_group(total)), list(dict.fromkeys(of.groups or of.problem_ids))
    n_known = int(np.isfinite(of.by_group(total)).sum())
    if not few.share > 0.5 or n_known < 6:  # of fewer, one always may
        return []
    n = len(few.problems)
    carry = f"{100 * few.share:.0f} % of the effect lies in {n} of {counted(n_known, of.groups)}"
    mean = f"the mean is {few.low:+.4f} to {few.high:+.4f} {unit}"
    return [
        f"{carry} ({listed(names[at] for at in few.problems)}); with and without {'it' if n == 1 else 'them'} {mean}."
    ]


def _with_shares(rows: Iterable[Mapping[str, Any]]) -> str:
    return listed((f"{row['label']} {share_words(row)}" for row in rows), 3)


def share_words(row: Mapping[str, Any] | pd.Series) -> str:
    """Write a share with its limits in percent, from a row of a summary: `31 % [28, 34]`."""
    limits = limits_of(row["share_ci_low"], row["share_ci_high"], "z.0f", scale=100)
    return f"{100 * row['share']:z.0f} %{limits}"
