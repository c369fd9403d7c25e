"""From measures to verdicts: which heads carry the effect, in how many problems, and how (methods §8)."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ..heads import Head
from ..statistics import SENSES, Prevalence, prevalence_test, sign_test, within_test

SIDES = {"removed": "z_removed", "added": "z_added"}
"""What a claim about a head rests on: the patch of its output, denoising and noising."""
PARTS = {"z_removed": ("knockout", "mediated_removed"), "z_added": ("edge_noise", "mediated_added")}
"""A z patch is the head's own read and the part that earlier heads cause, exactly (methods §8)."""


@dataclass(frozen=True)
class Kind:
    """A verdict on a head. `side`: on which side it passed; `reads`, `mediates`: by which measures of that side.

    `letters` stand for it in a picture, `says` explains it.
    """

    name: str
    letters: str
    side: str
    reads: bool
    mediates: bool
    says: str


KINDS: dict[str, Kind] = {
    made.name: made
    for made in (
        Kind("reader", "R", "both", True, False, "reads the span by itself, and what it reads carries the effect"),
        Kind(
            "conditional reader",
            "CR",
            "both",
            True,
            True,
            "its sight of the span is needed, and is shown to bring the effect only with what upstream heads write (AND)",
        ),
        Kind("mediator", "M", "both", False, True, "passes on what upstream heads read"),
        Kind("reader+mediator", "RM", "both", True, True, "reads the span, and passes on what upstream heads read"),
        Kind(
            "carrier", "C", "both", False, False, "carries the effect; whether by reading or passing on is not resolved"
        ),
        Kind(
            "necessary reader",
            "nR",
            "removed",
            True,
            False,
            "its sight of the span is needed; that it suffices is not shown",
        ),
        Kind(
            "necessary mediator",
            "nM",
            "removed",
            False,
            True,
            "what it passes on is needed; that it suffices is not shown",
        ),
        Kind(
            "necessary reader+mediator", "nRM", "removed", True, True, "both are needed; that they suffice is not shown"
        ),
        Kind("necessary only", "n", "removed", False, False, "needed; that it suffices is not shown, nor how it acts"),
        Kind(
            "redundant reader",
            "rR",
            "added",
            True,
            False,
            "its sight of the span suffices; that it is needed is not shown (others may do the same)",
        ),
        Kind(
            "redundant mediator",
            "rM",
            "added",
            False,
            True,
            "what it passes on suffices; that it is needed is not shown (others may do the same)",
        ),
        Kind(
            "redundant reader+mediator",
            "rRM",
            "added",
            True,
            True,
            "both suffice; that they are needed is not shown (others may do the same)",
        ),
        Kind(
            "sufficient only", "s", "added", False, False, "suffices; that it is needed is not shown, nor how it acts"
        ),
        Kind("negligible", "", "", False, False, "shown to do less than the smallest effect in most problems"),
        Kind("undecided", "", "", False, False, "neither shown to carry the effect nor shown not to"),
    )
}
"""Every verdict: carriers pass on both sides, other named heads on one."""
_BY_PARTS = {
    (kind.side, kind.reads, kind.mediates): name for name, kind in KINDS.items() if name != "conditional reader"
}
NAMED = tuple(name for name, kind in KINDS.items() if kind.side)


def measured(values: dict[str, np.ndarray], measure: str) -> np.ndarray:
    """One of the measures, or one of the two z patches, from the measures that are kept.

    Where nothing can be cut off (contrasts "shift" and "total") the two patches are all that is kept.
    """
    if measure in values:
        return values[measure]
    return np.asarray(sum(values[part] for part in PARTS.get(measure, (measure,))))


@dataclass(frozen=True, eq=False)
class Claims:
    """What is said of the heads that are named: kinds, senses `[head]`, and the direction of the effect they are told by."""

    direction: float
    heads: tuple[Head, ...]
    kinds: tuple[str, ...]
    sense: np.ndarray

    def own(self, values: dict[str, np.ndarray], measure: str) -> np.ndarray:
        """A measure of these heads, `[problem, head]`, positive in each head's own sense."""
        return self.direction * self.sense * measured(values, measure)

    def sides(self) -> tuple[str, ...]:
        """The side by which each head is compared: what it adds if that is what it is named for, else what it removes."""
        return tuple("added" if KINDS[kind].side == "added" else "removed" for kind in self.kinds)

    def by_side(self, removed: np.ndarray, added: np.ndarray) -> np.ndarray:
        """Of numbers `[..., head]` for both sides, those of the side by which each head is compared."""
        return np.where(np.array(self.sides()) == "added", added, removed)

    @property
    def reads(self) -> np.ndarray:
        """Which of them read the span, `[head]`."""
        return np.array([KINDS[kind].reads for kind in self.kinds], dtype=bool)

    @property
    def together(self) -> np.ndarray:
        """Those that read the span and act with the effect, `[head]`: the set to knock out."""
        return self.reads & (self.sense > 0)


@dataclass(frozen=True, eq=False)
class Judged:
    """The verdicts over a family of heads, from measures `[problem, head]` and the total effect `[problem]`.

    Everything is a prevalence test: more than `delta` of the effect in more than half of all problems, exact for a given
    `delta` (which is a share of these problems' own median total), Holm over the family. All measures are turned so that
    the insertion's own effect is positive; a head's sense is +1 with it, -1 against it. Both senses are tested; where
    `claims` are tested again, the claimed ones alone.
    """

    heads: tuple[Head, ...]
    values: dict[str, np.ndarray]
    total: np.ndarray
    smallest_effect: float
    alpha: float
    rounding: float
    claims: Claims | None = None

    @cached_property
    def direction(self) -> float:
        """The sign of the total effect: of the median total, or as claimed."""
        if self.claims is not None:
            return self.claims.direction
        return -1.0 if float(np.median(self.total)) < 0 else 1.0

    @cached_property
    def delta(self) -> float:
        """The smallest effect of interest in the outcome's unit: a share of the median total, and more than rounding."""
        return max(self.smallest_effect * abs(float(np.median(self.total))), self.rounding)

    @cached_property
    def p_total(self) -> float:
        """Sign test of the total effect, beyond rounding."""
        return float(sign_test(self.total, rounding=self.rounding))

    @property
    def established(self) -> bool:
        """Whether the insertion does anything in most problems (as claimed); where not, no head is named."""
        return self.direction * float(np.median(self.total)) > self.rounding and self.p_total < self.alpha

    def turned(self, measure: str) -> np.ndarray:
        """A measure, or one of the two z patches, `[problem, head]`, positive with the insertion's effect."""
        return self.direction * measured(self.values, measure)

    @cached_property
    def sides(self) -> dict[str, Prevalence]:
        """The tests of all heads: what patching their output removes, and what it adds."""
        if self.claims is None:
            return {side: self._test(self.turned(measure), SENSES) for side, measure in SIDES.items()}
        return {side: self._test(self.turned(measure) * self.claims.sense, (1,)) for side, measure in SIDES.items()}

    def _test(self, turned: np.ndarray, senses: tuple[int, ...], tested: np.ndarray | None = None) -> Prevalence:
        return prevalence_test(turned, self.delta, senses=senses, tested=tested)

    @cached_property
    def passed(self) -> dict[str, np.ndarray]:
        """side -> the sense in which each head passed, 0 for neither, `[head]`; nobody where no effect is established."""
        found = {}
        for side, test in self.sides.items():
            sure = (np.nan_to_num(test.p_corrected, nan=1.0) < self.alpha).astype(int) * int(self.established)
            found[side] = sure[0] - sure[1] if self.claims is None else sure[0] * self.claims.sense
        return found

    @cached_property
    def sense(self) -> np.ndarray:
        """+1: with the insertion's effect, -1: against it, 0: not named, or each way on another side, `[head]`."""
        removed, added = self.passed["removed"], self.passed["added"]
        return np.where(removed * added < 0, 0, np.sign(removed + added))

    @cached_property
    def side(self) -> np.ndarray:
        """ "both", "removed", "added" or "" for each head, `[head]`."""
        removed, added = (self.passed[side] * self.sense > 0 for side in SIDES)
        return np.where(removed & added, "both", np.where(removed, "removed", np.where(added, "added", "")))

    @cached_property
    def told_in(self) -> np.ndarray:
        """The sense in which each head is told about, `[head]`: its own or the claimed one, else with the effect."""
        own = self.sense if self.claims is None else self.claims.sense
        return np.where(own == 0, 1, own)

    def counted(self, measure: str) -> Prevalence:
        """In how many problems a measure exceeds delta in each head's own sense: a description, uncorrected; `[1, head]`."""
        return self._test(self.turned(measure) * self.told_in, (1,))

    @cached_property
    def parts(self) -> dict[str, np.ndarray]:
        """measure -> corrected p of each named head in its own sense, `[head]`; Holm over the heads it is asked of."""
        removed, added = (np.isin(self.side, ("both", side)) for side in SIDES)
        deeper = np.array([head.layer > 0 for head in self.heads])  # in layer 0 nothing can be mediated
        asked = {
            "knockout": removed,
            "edge_noise": added,
            "mediated_removed": removed & deeper,
            "mediated_added": added & deeper,
        }
        return {
            measure: self._test(self.turned(measure) * self.told_in, (1,), tested).p_corrected[0]
            for measure, tested in asked.items()
            if measure in self.values
        }

    @cached_property
    def negligible(self) -> np.ndarray:
        """Heads shown to remove and to add less than delta in most problems, `[head]`."""
        if not self.established or not self.delta > 0:
            return np.zeros(len(self.heads), dtype=bool)
        both = [within_test(self.turned(measure), self.delta)[1] for measure in SIDES.values()]
        return np.nan_to_num(np.maximum(*both), nan=1.0) < self.alpha

    @cached_property
    def kinds(self) -> tuple[str, ...]:
        """One of `KINDS` for each head."""
        sure = {measure: np.nan_to_num(p, nan=1.0) < self.alpha for measure, p in self.parts.items()}
        return tuple(
            self._kind(str(self.side[at]), {measure: bool(passed[at]) for measure, passed in sure.items()}, at)
            for at in range(len(self.heads))
        )

    def _kind(self, side: str, sure: dict[str, bool], at: int) -> str:
        if not side:
            return "negligible" if self.negligible[at] else "undecided"
        removed, added = side != "added", side != "removed"
        if not sure:  # what cannot be cut off is neither read nor passed on
            return _BY_PARTS[side, False, False]
        reads = all(sure[name] for name, asked in (("knockout", removed), ("edge_noise", added)) if asked)
        mediates = all(
            sure[name] for name, asked in (("mediated_removed", removed), ("mediated_added", added)) if asked
        )
        if side == "both" and not reads and not mediates and sure["knockout"] and sure["mediated_added"]:
            return "conditional reader"
        return _BY_PARTS[side, reads, mediates]

    @cached_property
    def named(self) -> np.ndarray:
        """Which heads have a verdict that names them, `[head]`."""
        return np.isin(self.kinds, NAMED)

    @property
    def found(self) -> Claims:
        """What is said of the heads that are named, in the family's order."""
        at = np.flatnonzero(self.named)
        return Claims(
            self.direction,
            tuple(self.heads[i] for i in at),
            tuple(self.kinds[i] for i in at),
            self.sense[at],
        )


def judge(
    values: dict[str, np.ndarray],
    total: np.ndarray,
    heads: Sequence[Head],
    *,
    alpha: float = 0.05,
    smallest_effect: float = 0.05,
    rounding: float = 0.0,
    claims: Claims | None = None,
) -> Judged:
    """The statistics of `locate_heads`, from measures `[problem, head]` (`measure.MEASURES`) on.

    `claims`: verdicts reached on other problems, to be tested again: the direction of the effect and the heads' senses are
    then taken as claimed, and Holm's family is these heads alone.
    """
    return Judged(tuple(heads), values, np.asarray(total, dtype=float), smallest_effect, alpha, rounding, claims)


def established(total: np.ndarray, *, resolution: float, alpha: float = 0.05) -> bool:
    """Whether an effect `[problem]` is there: most problems show it with one sign, beyond rounding (sign test)."""
    return abs(float(np.median(total))) > resolution and float(sign_test(total, rounding=resolution)) < alpha
