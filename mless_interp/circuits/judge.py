"""From measures to verdicts: which heads carry the effect, in how many problems, and how (methods §8)."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np

from ..core.heads import Head
from ..patching.effect import SMALLEST_EFFECT, Effect
from ..runtime.columns import Column, columns_of
from ..runtime.registry import savable
from ..statistics import CONFIDENCE, SENSES, Prevalence

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
        Kind(
            "specialist",
            "Sp",
            "both",
            False,
            False,
            "carries the effect in some strata of problems, not shown over all",
        ),
        Kind("negligible", "", "", False, False, "shown to do less than the smallest effect in most problems"),
        Kind("undecided", "", "", False, False, "neither shown to carry the effect nor shown not to"),
    )
}
"""Every verdict: carriers pass on both sides, other named heads on one."""
_BY_PARTS = {
    (kind.side, kind.reads, kind.mediates): name
    for name, kind in KINDS.items()
    if name not in ("conditional reader", "specialist")
}
NAMED = tuple(name for name, kind in KINDS.items() if kind.side)


PER_HEAD = len(SIDES) * len(SENSES)
"""Tests of a head in the family that names heads."""


def strata_sizes(strata: Sequence[str], groups: Sequence[str] = ()) -> dict[str, int]:
    """Count the problems (or their groups) of each stratum, the largest first."""
    named = np.array(groups or range(len(strata)), dtype=object)
    where = np.array(strata, dtype=object)
    sizes = {name: len(set(named[where == name])) for name in dict.fromkeys(strata)}
    return dict(sorted(sizes.items(), key=lambda each: (-each[1], each[0])))


def measured(values: dict[str, np.ndarray], measure: str) -> np.ndarray:
    """One of the measures, or one of the two z patches, from the measures that are kept.

    Where nothing can be cut off (contrasts "shift" and "total") the two patches are all that is kept.
    """
    if measure in values:
        return values[measure]
    return np.asarray(sum(values[part] for part in PARTS.get(measure, (measure,))))


@savable
@dataclass(frozen=True, order=True)
class InStratum:
    """A head that passes within a stratum of the problems: on which side ("both", "removed", "added"), in which sense."""

    head: Head
    stratum: str
    side: str
    sense: int


@dataclass(frozen=True, eq=False)
class Claims:
    """What is said of the heads that are named: kinds, senses `[head]`, and the direction of the effect they are told by.

    `within`: in which strata of the problems they pass.
    """

    direction: float
    heads: tuple[Head, ...]
    kinds: tuple[str, ...]
    sense: np.ndarray
    within: tuple[InStratum, ...] = ()

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
    """The verdicts over a family of heads, from measures `[problem, head]` and the total `effect`.

    Everything is a prevalence test: more than `effect.delta` in more than half of all problems, Holm over the family. All
    measures are turned so that the insertion's own effect is positive; a head's sense is +1 with it, -1 against it. Heads are
    named by what patching their output removes or adds, in either sense: one family, so that any false name at all has at most
    the stated probability. Where `claims` are tested again, the claimed senses alone.

    `strata` names the stratum of each problem: every head is then tested over all problems and within each stratum that is
    large enough, in the same family (methods §9).
    """

    heads: tuple[Head, ...]
    values: dict[str, np.ndarray]
    effect: Effect
    claims: Claims | None = None
    strata: tuple[str, ...] = ()

    @cached_property
    def large(self) -> tuple[str, ...]:
        """The strata that are tested, the largest first: as many as can still pass where so many are tested."""
        sizes = strata_sizes(self.strata, self.effect.groups)
        order = list(sizes)
        enough = [
            k
            for k in range(1, len(order) + 1)
            if sizes[order[k - 1]] >= self.effect.fewest(PER_HEAD * len(self.heads) * (1 + k))
        ]
        return tuple(order[: max(enough, default=0)])

    @property
    def established(self) -> bool:
        """Whether the insertion does anything in most problems (as claimed); where not, no head is named."""
        return self.effect.established

    def turned(self, measure: str) -> np.ndarray:
        """A measure, or one of the two z patches, `[problem, head]`, positive with the insertion's effect."""
        return self.effect.turned(measured(self.values, measure))

    @cached_property
    def _tests(self) -> dict[str, Prevalence]:
        """side -> the tests of all heads over all problems, then within each stratum, `[sense, 1 + stratum, head]`; Holm over
        all of them."""
        both = np.stack([measured(self.values, measure) for measure in SIDES.values()], 1)
        own, senses = (1, SENSES) if self.claims is None else (self.claims.sense, (1,))
        where = np.array(self.strata, dtype=object)
        inside = [np.where((where == name)[:, None, None], both, np.nan) for name in self.large]
        test = self.effect.prevalence(np.stack([both, *inside], 2) * own, senses=senses)
        return {side: test.of(at) for at, side in enumerate(SIDES)}

    @property
    def sides(self) -> dict[str, Prevalence]:
        """The tests of all heads over all problems: what patching their output removes, and what it adds."""
        return {side: test.of(0) for side, test in self._tests.items()}

    def within(self, stratum: str) -> dict[str, Prevalence]:
        """The same tests within a stratum that is large enough."""
        return {side: test.of(1 + self.large.index(stratum)) for side, test in self._tests.items()}

    @cached_property
    def in_strata(self) -> tuple[InStratum, ...]:
        """Where heads pass within strata, each in one sense."""
        found = []
        for stratum in self.large:
            passed = {
                side: np.subtract(*self._sure(test.p_corrected).astype(int))
                for side, test in self.within(stratum).items()
            }
            for at, head in enumerate(self.heads):
                senses = {side: int(sense[at]) for side, sense in passed.items() if sense[at]}
                if len(set(senses.values())) == 1:
                    side = "both" if len(senses) == len(SIDES) else next(iter(senses))
                    found.append(InStratum(head, stratum, side, next(iter(senses.values()))))
        return tuple(sorted(found))

    @cached_property
    def passed(self) -> dict[str, np.ndarray]:
        """side -> the sense in which each head passed, 0 for neither, `[head]`; nobody where no effect is established."""
        found = {}
        for side, test in self.sides.items():
            sure = self._sure(test.p_corrected).astype(int)
            found[side] = sure[0] - sure[1] if self.claims is None else sure[0] * self.claims.sense
        return found

    def _sure(self, p: np.ndarray) -> np.ndarray:
        return np.nan_to_num(p, nan=1.0) < self.effect.level

    @cached_property
    def sense(self) -> np.ndarray:
        """+1: with the insertion's effect, -1: against it, 0: not named, or each way on another side, `[head]`."""
        removed, added = self.passed["removed"], self.passed["added"]
        whole = np.where(removed * added < 0, 0, np.sign(removed + added))
        inside = np.array([sum(each.sense for each in self.in_strata if each.head == head) for head in self.heads])
        return np.where((whole == 0) & ~(removed * added < 0), np.sign(inside), whole)

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

    def counted(self, measure: str, tested: np.ndarray | None = None) -> Prevalence:
        """In how many problems a measure exceeds delta in each head's own sense, `[1, head]`; Holm over the heads tested."""
        return self.effect.prevalence(measured(self.values, measure) * self.told_in, senses=(1,), tested=tested)

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
            measure: self.counted(measure, tested).p_corrected[0]
            for measure, tested in asked.items()
            if measure in self.values
        }

    @cached_property
    def negligible(self) -> np.ndarray:
        """Heads shown to remove and to add less than the smallest effect in most problems, `[head]`."""
        both = [self.effect.within(measured(self.values, measure))[1] for measure in SIDES.values()]
        return self._sure(np.maximum(*both))

    @cached_property
    def kinds(self) -> tuple[str, ...]:
        """One of `KINDS` for each head."""
        sure = {measure: self._sure(p) for measure, p in self.parts.items()}
        return tuple(
            self._kind(str(self.side[at]), {measure: bool(passed[at]) for measure, passed in sure.items()}, at)
            for at in range(len(self.heads))
        )

    def _kind(self, side: str, sure: dict[str, bool], at: int) -> str:
        if not side and any(each.head == self.heads[at] for each in self.in_strata):
            return "specialist"
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
            self.effect.direction,
            tuple(self.heads[i] for i in at),
            tuple(self.kinds[i] for i in at),
            np.where(self.sense[at] == 0, 1, self.sense[at]),
            self.in_strata,
        )


def judge(
    values: dict[str, np.ndarray],
    total: np.ndarray,
    heads: Sequence[Head],
    *,
    confidence: float = CONFIDENCE,
    smallest_effect: float = SMALLEST_EFFECT,
    rounding: float = 0.0,
    claims: Claims | None = None,
    groups: tuple[str, ...] = (),
    strata: tuple[str, ...] = (),
) -> Judged:
    """The statistics of `locate_heads`, from measures `[problem, head]` (`measure.MEASURES`) on.

    `claims`: verdicts reached on other problems, to be tested again: the direction of the effect and the heads' senses are
    then taken as claimed, and Holm's family is these heads alone.
    """
    claimed = 0.0 if claims is None else claims.direction
    effect = Effect(np.asarray(total, dtype=float), confidence, smallest_effect, rounding, claimed, groups)
    return Judged(tuple(heads), values, effect, claims, strata)


class Verdicts:
    """What is judged of measures `values` `[problem, head]` and of the `total` effect `[problem]` of a result."""

    heads: tuple[Head, ...]
    values: dict[str, np.ndarray]
    total: np.ndarray
    confidence: float
    smallest_effect: float
    resolution: float
    groups: tuple[str, ...]
    strata: tuple[str, ...]

    columns: ClassVar[tuple[Column, ...]] = columns_of("""
        kind | verdict | verdict | a test over most problems, corrected for testing many heads
        claimed | claimed | verdict | the verdict on the problems that named the head
        strata | in strata | verdict | the strata of the problems in which a specialist was named
        confirmed_strata | confirmed in | verdict | the strata in which fresh problems confirm a specialist
        confirmed | confirmed | verdict | passes again on fresh problems
        removed_k | undone in | of n | problems in which patching its output out undoes more than the smallest effect
        added_k | reproduced in | of n | problems in which patching its output in reproduces more than the smallest effect
        removed_median | undone, median | | median of what patching its output out undoes, in the outcome's unit
        added_median | reproduced, median | | median of what patching its output in reproduces, in the outcome's unit
        removed_p | p, undone | p | patching out undoes more in most problems; Holm over heads, sides and senses
        added_p | p, reproduced | p | patching in reproduces more in most problems; Holm over heads, sides and senses
        random_words_share | with random words | share | share of its effect that random words have too
        random_effect | under random words | | the head's effect where random words of the same length are inserted
        questions_effect | under other questions | | the head's effect where questions of other problems are inserted
        mful_effect | under a repeated word | | the head's effect where a repeated word is inserted
        matched_mass_effect | same attention elsewhere | | what removing as much attention from other tokens undoes
        shift_effect | under the gap alone | | the head's effect where positions are shifted and nothing is inserted
        exceeds_random | > random words in | of exceeds_random_n | problems in which random words of the same length do less
        exceeds_mass | > same attention in | of exceeds_mass_n | problems in which as much attention elsewhere does less
        exceeds_random_n | of | | problems where random words were tried
        exceeds_mass_n | of | | problems where as much attention elsewhere can be removed
        p_specific | p, specific | p | more than under random words by more than the smallest effect, on fresh problems
    """)

    @property
    def claims(self) -> Claims | None:
        """What was claimed of the heads on other problems, if anything was."""
        return None

    @cached_property
    def judged(self) -> Judged:
        """The verdicts: of every head its kind, its sense, and the tests behind them."""
        return judge(
            self.values,
            self.total,
            self.heads,
            confidence=self.confidence,
            smallest_effect=self.smallest_effect,
            rounding=self.resolution,
            claims=self.claims,
            groups=self.groups,
            strata=() if self.claims else self.strata,
        )

    @property
    def established(self) -> bool:
        """Whether most problems show an effect of one sign (as claimed), beyond rounding."""
        return self.judged.established
