"""Parts of an insertion's effect, problem by problem: what is claimed of them, and how it is said."""

from collections.abc import Sequence
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from ..core.arguments import count_of, listed
from ..prompts.conditions import CONTRASTS
from ..runtime.columns import Column, columns_of
from ..runtime.results import Quantity, interval_columns, largest_first, limits_of
from ..statistics import CONFIDENCE, SENSES, Interval, Prevalence, concentration, defined_mean
from .effect import Effect

WHOLE = "1: the whole effect"
"""The axis label of a share."""
FEWEST = 6
"""Problems from which on it is said that a few of them carry the mean; of fewer, one always may."""


class Parts:
    """Share the arithmetic of results that take an effect apart into heads, edges or sites ("cells").

    A result gives `per_cell` `[problem, cell]` and `total_effect` `[problem]`, and has the fields below. What is claimed of a
    cell is how many problems show it: more than the smallest effect of interest, with the total effect or against it, in more
    than half of all problems (`whole`, an `Effect`, has the rules). Means describe.
    """

    problem_ids: Any
    groups: Any
    per_cell: Any
    total_effect: Any
    unit: str
    settings: Any
    confidence: float
    smallest_effect: float
    resolution: float
    signed: ClassVar[bool] = True
    drawn: ClassVar[tuple[str, ...]] = ("share", "median")
    what: ClassVar[tuple[str, str]] = ("head", "heads")
    """What a cell is called, one and several."""
    columns: ClassVar[tuple[Column, ...]] = columns_of("""
        effect | mean effect | | the part of the insertion's effect that the head carries, in the outcome's unit
        effect_fraction | share of the mean effect | share | mean effect / the insertion's mean effect
        prevalence | share of problems | later | k / n
        sense | sense | later | with the insertion's effect, or against it
        share | share | share | part of the whole that this one has: 0 nothing, 1 everything, below 0 against it
    """)

    @cached_property
    def whole(self) -> Effect:
        """The whole effect, by which its parts are judged."""
        return Effect(self.total_effect, self.confidence, self.smallest_effect, self.rounding, groups=self.groups)

    @property
    def established(self) -> bool:
        """Most problems show a total effect; without one no cell is tested."""
        return self.whole.established

    @property
    def level(self) -> float:
        """The level that corrected p-values of cells are compared with."""
        return self.whole.level

    @property
    def rounding(self) -> float:
        """Effects up to this are taken for rounding, in `unit`."""
        return self.resolution

    @cached_property
    def prevalence(self) -> Prevalence:
        """In how many problems each cell does more than the smallest effect, with the total and against it, `[sense, cell]`."""
        return self.whole.prevalence(self.per_cell)

    @cached_property
    def sense(self) -> np.ndarray:
        """The sense in which more problems show each cell's effect: +1 with the total effect, -1 against it, `[cell]`."""
        with_it, against = (self.prevalence.in_sense(sense, self.prevalence.count) for sense in SENSES)
        return np.where(against > with_it, -1, 1)

    def _in_its_sense(self, values: np.ndarray) -> np.ndarray:
        """The row `[cell]` of values `[sense, cell]` that belongs to each cell's own sense."""
        return np.where(self.sense > 0, *(self.prevalence.in_sense(sense, values) for sense in SENSES))

    @cached_property
    def p_corrected(self) -> np.ndarray:
        """Corrected p of each cell in its sense."""
        return self._in_its_sense(self.prevalence.p_corrected)

    @cached_property
    def median(self) -> Interval:
        """Median effect per cell with the interval of its order statistics."""
        return self.whole.cell_medians(self.per_cell)

    @cached_property
    def share(self) -> Interval:
        """The share of the total effect that each cell is, with exact limits; NaN where the total is not established."""
        return self.whole.share(self.per_cell)

    @cached_property
    def mean_effect(self) -> np.ndarray:
        """Mean effect per cell: a description, without limits."""
        return defined_mean(self.per_cell)

    @property
    def effect_fraction(self) -> np.ndarray:
        """Ratio of means per cell: a description; NaN where the mean total is not one to have a share of (`Effect.mean`)."""
        return self.mean_effect / self.whole.mean + 0.0

    def claim_columns(self) -> dict[str, Any]:
        """The columns of a summary that say what is claimed, and the means that describe."""
        told = self.prevalence
        counted = {"prevalence": told.share, "prevalence_ci_low": told.low, "prevalence_ci_high": told.high}
        return {
            "sense": self.sense,
            "k": self._in_its_sense(told.count),
            "n": told.n,
            **{name: self._in_its_sense(values) for name, values in counted.items()},
            "p_corrected": self.p_corrected,
            **interval_columns("median", self.median),
            **interval_columns("share", self.share),
            "effect": self.mean_effect,
            "effect_fraction": self.effect_fraction,
        }

    def quantity(self, column: str) -> Quantity:
        """Parts of the effect, or shares of it or of the problems; all rest on the same test."""
        limits, tested = (f"{column}_ci_low", f"{column}_ci_high"), ("p_corrected", self._claim())
        if column == "prevalence":
            return Quantity("share of problems", False, limits, *tested, level=self.level)
        share = column in ("effect_fraction", "share")
        return Quantity(WHOLE if share else self.unit, True, limits, *tested, "against the effect", self.level)

    def _claim(self) -> str:
        return f"more than {100 * self.smallest_effect:.3g} % of the effect in most problems"

    def headline(self) -> str:
        """Return the total effect with its direction, and which cells carry more than the smallest effect of it."""
        s = self.settings
        whole = self.whole.headline(s.get("insertion"), s.get("outcome"), self.unit)
        contrast = CONTRASTS.get(str(s.get("contrast")))
        name = f" ({contrast.name})" if contrast is not None and contrast.name not in ("total", "content") else ""
        return f"{whole}{name}{'; ' if self.established else ', so '}{self.claim()}."

    def claim(self) -> str:
        """Return which cells carry more than the smallest effect in most problems, as a clause."""
        one, several = self.what
        if not self.established:
            return f"no {one} is tested"
        table = self.table()  # type: ignore[attr-defined]
        table = largest_first(table[table["p_corrected"] < self.level], "share")
        share = f"{100 * self.smallest_effect:.3g} %"
        if not len(table):
            return f"no {one} of {self._n_tested} is shown to carry more than {share} of it"
        named = listed((f"{row['label']} {share_words(row)}" for row in table.to_dict("records")), 3)
        carry = f"{several} carry" if len(table) > 1 else f"{several} carries"
        limits = "" if self.confidence == CONFIDENCE else f" ({100 * self.confidence:.4g} % intervals)"
        return f"{len(table)} of {self._n_tested} {carry} more than {share} of it in most problems: {named}{limits}"

    def caveats(self) -> list[str]:
        """Return that a few problems carry most of the effect, where they do, and what limits every result."""
        return [*concentration_words(self.total_effect, self.problem_ids, self.unit), *super().caveats()]  # type: ignore[misc]

    def _claim_words(self) -> list[str]:
        """Return the total effect in numbers, and by which test cells are shown to carry more than the smallest effect."""
        return [self.whole.details(self.unit), self.why_none() or f"Shown in most problems: {self._test_words()}."]

    @property
    def _n_tested(self) -> int:
        """Cells that are defined on any problem."""
        return int((~np.isnan(self.per_cell)).any(0).sum())

    def _test_words(self) -> str:
        cells = count_of(self._n_tested, *self.what)
        return (
            f"prevalence test, p < {self.level:.3g} after Holm over {cells} and both senses; smallest effect "
            f"{self.whole.delta_words(self.unit)}"
        )

    def why_none(self) -> str:
        """Why no cell is shown to do more than the smallest effect, in a sentence; "" where one is."""
        one, n, m = self.what[0], self.whole.n, self._n_tested
        if not self.established:
            return f"That most problems show an effect of one sign is not established, so no {one} is tested."
        if bool((self.p_corrected < self.level).any()):
            return ""
        said = f"No {one} is shown to do more than {100 * self.smallest_effect:.3g} % of the effect in most problems"
        if not m:
            return f"{said}: none is defined on any problem."
        if n < (least := self.whole.fewest(len(SENSES) * m)):
            takes = f"{count_of(m, *self.what)} {'takes' if m == 1 else 'take'} at least {least}"
            return f"No {one} can pass with {self.whole.counted(n)}: {takes}."
        found = f"one that does in {100 * self.whole.detectable(len(SENSES) * m):.0f} % of all problems"
        return f"{said} ({self._test_words()}); {found} would be found with 80 % power."


def concentration_words(total: np.ndarray, ids: Sequence[str], unit: str) -> list[str]:
    """Return which problems carry most of an effect, where a few do, and the mean without them."""
    few = concentration(total)
    if not few.concentrated or len(total) < FEWEST:
        return []
    return [
        f"{len(few.problems)} of {len(total)} problems carry {100 * few.share:.0f} % of the effect "
        f"({listed(ids[at] for at in few.problems)}); without them the mean ranges from {few.low:+.4f} to {few.high:+.4f} "
        f"{unit}."
    ]


def share_words(row: Any, column: str = "share") -> str:
    """A share with its limits in percent, from a row of a summary: `31 % [28, 34]`."""
    limits = limits_of(row[f"{column}_ci_low"], row[f"{column}_ci_high"], "z.0f", scale=100)
    return f"{100 * row[column]:z.0f} %{limits}"
