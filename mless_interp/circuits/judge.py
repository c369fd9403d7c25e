"""From measures to verdicts: which heads carry the effect, in how many problems, and how (methods §8)."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from ..core.arguments import cells_of, count_of
from ..core.heads import Head
from ..patching.effect import Effect, fewest_for
from ..runtime.base_result import interval_columns
from ..runtime.folders import savable
from ..statistics import SENSES, Prevalence, holm, prevalence_test

SIDES = {"removed": "z_removed", "added": "z_added"}
"""What a claim about a head rests on: the patch of its output, denoising and noising."""
PARTS = {"z_removed": ("knockout", "mediated_removed"), "z_added": ("edge_noise", "mediated_added")}
"""A z patch is the head's own read and the part that earlier heads cause, exactly (methods §8)."""
MEASURES = ("knockout", "edge_noise", "mediated_removed", "mediated_added")
LEAST_MATCHED = 8
"""A matched-mass knockout is tested where it is defined on this many problems and on half of them (on all if fewer)."""
OTHERS = {"random": "random words", "mful": "a repeated word"}
"""What else is inserted, in the same place and length: the first decides, the other one is reported."""


@dataclass(frozen=True)
class Kind:
    """A verdict on a head: `side` on which it passed; whether it `reads`, `mediates` there; its `letters` in a picture."""

    name: str
    letters: str
    side: str
    reads: bool
    mediates: bool
    says: str


_KINDS = """
    reader | R | both | reads | reads the span by itself, and what it reads carries the effect
    conditional reader | CR | both | reads mediates | its attention to the span is needed, enough only with upstream heads (AND)
    mediator | M | both | mediates | passes on what upstream heads read
    reader+mediator | RM | both | reads mediates | reads the span, and passes on what upstream heads read
    carrier | C | both | | carries the effect; whether by reading or passing on is not resolved
    necessary reader | nR | removed | reads | its attention to the span is needed; that it suffices is not shown
    necessary mediator | nM | removed | mediates | what it passes on is needed; that it suffices is not shown
    necessary reader+mediator | nRM | removed | reads mediates | both are needed; that they suffice is not shown
    necessary only | n | removed | | needed; that it suffices is not shown, nor how it acts
    redundant reader | rR | added | reads | its attention to the span suffices; that it is needed is not shown
    redundant mediator | rM | added | mediates | what it passes on suffices; that it is needed is not shown
    redundant reader+mediator | rRM | added | reads mediates | both suffice; that they are needed is not shown
    sufficient only | s | added | | suffices; that it is needed is not shown, nor how it acts
    specialist | Sp | both | | acts in some strata of problems, with the effect or against it; not shown over all
    negligible | | | | shown to do less than the smallest effect in most problems
    undecided | | | | neither shown to carry the effect nor shown not to
"""
KINDS: dict[str, Kind] = {
    name: Kind(name, letters, side, "reads" in parts, "mediates" in parts, says)
    for name, letters, side, parts, says in cells_of(_KINDS)
}
"""Every verdict: carriers pass on both sides, other named heads on one."""
_OF_MORE = ("conditional reader", "specialist")  # which follow from more than the side and its two parts
_BY_PARTS = {(kind.side, kind.reads, kind.mediates): name for name, kind in KINDS.items() if name not in _OF_MORE}
NAMED = tuple(name for name, kind in KINDS.items() if kind.side)
PER_HEAD = len(SIDES) * len(SENSES)  # tests of a head in the family that names heads


def measured(values: dict[str, np.ndarray], measure: str) -> np.ndarray:
    """Return a measure, or a z patch: kept where nothing can be cut off ("shift", "total"), else the sum of its parts."""
    return values[measure] if measure in values else np.sum([values[part] for part in PARTS[measure]], axis=0)


def few_problems(n: int, n_heads: int, confidence: float, *, per_head: int = PER_HEAD) -> str:
    """Say that so few problems cannot name (or, with one test `per_head`, confirm) any of so many heads; "" where they can."""
    needed, again = fewest_for(per_head * n_heads, confidence), per_head == 1
    heads = "a head" if n_heads == 1 else f"any of {n_heads} heads"
    few = f"{count_of(n, 'problem')} {'is' if n == 1 else 'are'} too few to {'confirm' if again else 'name'} {heads}"
    return "" if n >= needed else f"{few} (alpha = {1 - confidence:.3g}): at least {needed} are needed."


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
    """What is said of the named heads: kinds, senses `[head]`, the effect's direction, the strata in which they pass."""

    direction: float
    heads: tuple[Head, ...]
    kinds: tuple[str, ...]
    senses: np.ndarray
    within: tuple[InStratum, ...] = ()

    def each(self) -> Iterator[tuple[Head, str, int]]:
        return zip(self.heads, self.kinds, self.senses.tolist(), strict=True)

    def own(self, values: dict[str, np.ndarray], measure: str) -> np.ndarray:
        """Return a measure of these heads, `[problem, head]`, positive in each head's own sense."""
        return self.direction * self.senses * measured(values, measure)

    @property
    def adds(self) -> np.ndarray:
        """Which are named, and so compared, by what they add alone; others by what they remove, `[head]`."""
        return np.array([KINDS[kind].side == "added" for kind in self.kinds], dtype=bool)

    @property
    def reads(self) -> np.ndarray:
        return np.array([KINDS[kind].reads for kind in self.kinds], dtype=bool)

    @property
    def together(self) -> np.ndarray:
        """Those that read and act with the effect, `[head]`: the set to knock out."""
        return self.reads & (self.senses > 0)


@dataclass(frozen=True, eq=False)
class Judged:
    """The verdicts over a family of heads, from measures `[problem, head]` and the total `effect`.

    Everything is a prevalence test: more than `effect.delta` in more than half of all problems, Holm over all heads, both
    sides, both senses (+1 with the insertion's effect, -1 against it), all problems and each stratum (`strata` `[problem]`)
    that is large enough (methods §9). Where `claims` are tested again, the claimed senses alone.
    """

    heads: tuple[Head, ...]
    values: dict[str, np.ndarray]
    effect: Effect
    claims: Claims | None = None
    strata: tuple[str, ...] = ()

    @cached_property
    def large(self) -> tuple[str, ...]:
        """The strata that are tested, the largest first: as many as can still pass where so many are tested."""
        groups = self.effect.groups or range(len(self.strata))
        sizes = Counter(name for name, _ in set(zip(self.strata, groups, strict=False)))  # there may be no strata
        order, n_tests = sorted(sizes, key=lambda name: (-sizes[name], name)), PER_HEAD * len(self.heads)
        # the k-th is tested with those before it and with all problems
        needed = (fewest_for(n_tests * (1 + k), self.effect.confidence) for k in range(1, 1 + len(order)))
        able = [k for k, (name, n) in enumerate(zip(order, needed, strict=True), start=1) if sizes[name] >= n]
        return tuple(order[: max(able, default=0)])

    @cached_property
    def _tests(self) -> dict[str, Prevalence]:
        """side -> tests of all heads, `[sense, 1 + stratum, head]`: over all problems, then within each stratum."""
        both = np.stack([measured(self.values, measure) for measure in SIDES.values()], 1)
        own, senses = (1, SENSES) if self.claims is None else (self.claims.senses, (1,))
        where = np.array(self.strata, dtype=object)
        inside = [np.where((where == name)[:, None, None], both, np.nan) for name in self.large]
        test = self.effect.prevalence(np.stack([both, *inside], 2) * own, senses=senses)
        return {side: test.of(at) for at, side in enumerate(SIDES)}

    @property
    def sides(self) -> dict[str, Prevalence]:
        return {side: test.of(0) for side, test in self._tests.items()}

    def within(self, stratum: str) -> dict[str, Prevalence]:
        return {side: test.of(1 + self.large.index(stratum)) for side, test in self._tests.items()}

    def _passed(self, tests: dict[str, Prevalence]) -> dict[str, np.ndarray]:
        """Return side -> the sense in which each head passed, 0 for neither, `[head]`."""
        sure = {side: (test.p_corrected < self.effect.level).astype(int) for side, test in tests.items()}
        own = self.claims  # tested in the claimed sense alone
        return {side: each[0] - each[1] if own is None else each[0] * own.senses for side, each in sure.items()}

    @cached_property
    def in_strata(self) -> tuple[InStratum, ...]:
        """Where heads pass within strata, each in one sense."""
        found = []
        for stratum in self.large:
            passed = self._passed(self.within(stratum))
            for at, head in enumerate(self.heads):
                senses = {side: int(sense[at]) for side, sense in passed.items() if sense[at]}
                if len(set(senses.values())) == 1:
                    (side, sense), *more = senses.items()
                    found.append(InStratum(head, stratum, "both" if more else side, sense))
        return tuple(sorted(found))

    @cached_property
    def passed(self) -> dict[str, np.ndarray]:
        return self._passed(self.sides)

    @cached_property
    def sense(self) -> np.ndarray:
        """+1: with the insertion's effect, -1: against it, 0: not named, or each way on another side, `[head]`."""
        removed, added = self.passed["removed"], self.passed["added"]
        inside = np.array([sum(each.sense for each in self.in_strata if each.head == head) for head in self.heads])
        whole = np.sign(removed + added)
        return np.where(removed * added < 0, 0, np.where(whole == 0, np.sign(inside), whole))

    @cached_property
    def side(self) -> np.ndarray:
        """ "both", "removed", "added" or "" for each head, `[head]`."""
        removed, added = (self.passed[side] * self.sense > 0 for side in SIDES)
        return np.where(removed & added, "both", np.where(removed, "removed", np.where(added, "added", "")))

    def counted(self, measure: str, tested: np.ndarray | None = None) -> Prevalence:
        """Count in how many problems a measure exceeds delta in each head's own (or claimed) sense, `[1, head]`."""
        own = self.sense if self.claims is None else self.claims.senses
        values = measured(self.values, measure) * np.where(own == 0, 1, own)
        return self.effect.prevalence(values, senses=(1,), tested=tested)

    @cached_property
    def parts(self) -> dict[str, np.ndarray]:
        """measure -> corrected p of each named head in its own sense, `[head]`; Holm over the heads it is asked of."""
        deeper = np.array([head.layer > 0 for head in self.heads])  # in layer 0 nothing can be mediated
        found = {}
        for side, z in SIDES.items():
            asked = np.isin(self.side, ("both", side))
            for measure, of in zip(PARTS[z], (asked, asked & deeper), strict=True):
                if measure in self.values:
                    found[measure] = self.counted(measure, of).p_corrected[0]
        return found

    @cached_property
    def negligible(self) -> np.ndarray:
        """Heads shown to remove and to add less than the smallest effect in most problems, `[head]`."""
        both = (self.effect.within(measured(self.values, measure))[0] for measure in SIDES.values())
        return holm(np.maximum(*both)) < self.effect.level  # one family: both must pass

    @cached_property
    def kinds(self) -> tuple[str, ...]:
        sure = {measure: p < self.effect.level for measure, p in self.parts.items()}
        return tuple(self._kind(at, {name: bool(p[at]) for name, p in sure.items()}) for at in range(len(self.heads)))

    def _kind(self, at: int, sure: dict[str, bool]) -> str:
        side = str(self.side[at])
        if not side:
            if any(each.head == self.heads[at] for each in self.in_strata):
                return "specialist"
            return "negligible" if self.negligible[at] else "undecided"
        if not sure:  # what cannot be cut off is neither read nor passed on
            return _BY_PARTS[side, False, False]
        asked = [PARTS[z] for name, z in SIDES.items() if side in ("both", name)]
        reads, mediates = (all(sure[name] for name in names) for names in zip(*asked, strict=True))
        if side == "both" and not reads and not mediates and sure["knockout"] and sure["mediated_added"]:
            return "conditional reader"
        return _BY_PARTS[side, reads, mediates]

    @cached_property
    def named(self) -> np.ndarray:
        return np.isin(self.kinds, NAMED)

    @property
    def found(self) -> Claims:
        at = np.flatnonzero(self.named)
        heads, kinds = tuple(self.heads[i] for i in at), tuple(self.kinds[i] for i in at)
        sense = np.where(self.sense[at] == 0, 1, self.sense[at])
        return Claims(self.effect.direction, heads, kinds, sense, self.in_strata)


def judge(
    values: dict[str, np.ndarray],
    total: np.ndarray,
    heads: Sequence[Head],
    *,
    claims: Claims | None = None,
    strata: tuple[str, ...] = (),
    **rules: Any,
) -> Judged:
    """Judge measures `[problem, head]` (`MEASURES`) by `rules` of an `Effect`, or test `claims` of other problems again."""
    effect = Effect(np.asarray(total, dtype=float), claimed=claims.direction if claims else 0.0, **rules)
    return Judged(tuple(heads), values, effect, claims, strata)


def specificity(
    effect: Effect, claims: Claims, values: dict[str, np.ndarray], controls: dict[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """Count in how many problems each named head does more (by more than the smallest effect) than random words, and than as
    much attention elsewhere; `p_specific`: the larger p of both, after Holm. NaN where no controls were run.

    A head is compared by the z patch of its side, a reader that is needed also by its knockout; where the matched-mass knockout
    is undefined on too many problems, random words alone decide (methods §8, rule 5).
    """
    columns = ("exceeds_random", "exceeds_random_n", "exceeds_mass", "exceeds_mass_n", "p_specific")
    if "random_size_removed" not in controls:
        return dict.fromkeys(columns, np.full(len(claims.heads), np.nan))
    removed, added = (claims.own(values, z) - controls[f"random_size_{side}"] for side, z in SIDES.items())
    margin = effect.units(np.where(claims.adds, added, removed))
    mass = np.full_like(removed, np.nan)
    if "matched_mass_size" in controls:
        more_mass = claims.own(values, "knockout") - controls["matched_mass_size"]
        mass = np.where(claims.reads & ~claims.adds, more_mass, np.nan)
    mass = effect.units(mass)
    n, defined = len(mass), np.isfinite(mass).sum(0)
    enough = defined >= min(n, max(LEAST_MATCHED, n / 2))
    more = prevalence_test(margin, effect.delta, senses=(1,))
    beyond = prevalence_test(mass, effect.delta, senses=(1,), tested=enough)
    p = holm(np.fmax(more.p[0], beyond.p[0]))
    return dict(zip(columns, (more.count[0], np.asarray(more.n), beyond.count[0], defined, p), strict=True))


def beside_controls(
    effect: Effect, claims: Claims, values: dict[str, np.ndarray], controls: dict[str, np.ndarray], *, fresh: bool
) -> pd.DataFrame:
    """Make one row per named head: medians of the z patch of its side and of the same under each control, then `specificity`,
    of which `p_specific` is NaN unless the problems are `fresh`."""
    columns: dict[str, Any] = {"label": list(map(str, claims.heads)), "kind": list(claims.kinds)}
    if not claims.heads:
        return pd.DataFrame(columns)
    nothing = np.full((len(effect.total), len(claims.heads)), np.nan)

    def by_side(table: dict[str, np.ndarray], name: str = "") -> np.ndarray:
        own = {measure.removeprefix(name): each for measure, each in table.items() if measure.startswith(name)}
        there = {z: z in own or own.keys() >= set(PARTS[z]) for z in SIDES.values()}
        removed, added = (measured(own, z) if known else nothing for z, known in there.items())
        return np.where(claims.adds, added, removed)

    used = {"effect": by_side(values)} | {f"{name}_effect": by_side(controls, f"{name}_") for name in OTHERS}
    used["matched_mass_effect"] = np.where(claims.reads, controls.get("matched_mass", nothing), np.nan)
    used["shift_effect"] = by_side(controls, "shift_")
    for name, effects in used.items():
        columns |= interval_columns(name, effect.cell_medians(effects))
    for at, (own, random) in enumerate(zip(used["effect"].T, used["random_effect"].T, strict=True)):
        shares = interval_columns("random_words_share", replace(effect, total=own, claimed=0.0).share(random))
        for name, share in shares.items():
            columns.setdefault(name, np.full(len(claims.heads), np.nan))[at] = share
    table = pd.DataFrame(columns | specificity(effect, claims, values, controls))
    return table if fresh else table.assign(p_specific=np.nan)
