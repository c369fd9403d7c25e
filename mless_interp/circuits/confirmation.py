"""What verdicts about heads share as results, and named heads tested again on problems that had no part in naming them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import pandas as pd

from ..core.arguments import count_of, listed
from ..core.heads import Head
from ..patching.effect import SMALLEST_EFFECT, Effect
from ..patching.joint import CHOSEN_HERE, JointKnockout
from ..patching.reads import ReadEffects
from ..runtime.columns import Column, columns_of
from ..runtime.results import (
    Grouped,
    Result,
    Shown,
    ShownTable,
    head_columns,
    interval_columns,
    rows_per_head,
    with_limits,
)
from ..runtime.tables import Table
from ..scores import HeadScores
from ..scores.scored import is_sink
from ..statistics import CONFIDENCE, Prevalence, holm
from .judge import KINDS, SIDES, Claims, InStratum, Judged, few_problems, judge, measured
from .specificity import OTHERS, beside_controls


def strata_words(what: str, found: Sequence[InStratum]) -> list[str]:
    """In which strata heads pass, head by head: `Confirmed within strata: L1H0 a, c; L1H2 b.`"""
    by_head: dict[Head, list[str]] = {}
    for each in found:
        by_head.setdefault(each.head, []).append(each.stratum + " (against the effect)" * (each.sense < 0))
    told = "; ".join(f"{head} {', '.join(strata)}" for head, strata in by_head.items())
    return [f"{what}: {told or 'none'}."]


def specific_words(table: pd.DataFrame, *, level: float, n: int, confirmed: Sequence[str] | None = None) -> list[str]:
    """Return which heads do more than under random words of the same length, and where attention could not be matched.

    `confirmed`: those that fresh problems confirmed, which the table is then of; None where it is of the problems on which
    they were named.
    """
    if table.empty or not table["exceeds_random_n"].any():
        return ["Controls were not run, so whether the heads are specific is unknown."] if len(table) else []
    words = [f"Controls: `control_table()` ({CHOSEN_HERE})."]
    if confirmed is not None:
        passed = [label for label in table.loc[table["p_specific"] < level, "label"] if label in confirmed]
        words = [f"Confirmed and specific to this insertion: {listed(passed) or 'none'}."]
    needed = [name for name, kind in KINDS.items() if kind.reads and kind.side != "added"]
    short = table[table["kind"].isin(needed) & (table["exceeds_mass_n"] < n)]
    some = [f"{row.label} on {row.exceeds_mass_n}" for row in short.itertuples() if row.exceeds_mass_n]
    none = [row.label for row in short.itertuples() if not row.exceeds_mass_n]
    where = [f"possible for {', '.join(some)} of {count_of(n, 'problem')}"] * bool(some)
    where += [f"not possible for {', '.join(none)} on any problem"] * bool(none)
    why = "too little other attention to remove; on too few, random words alone decide"
    return words + [f"Matched-attention control: {'; '.join(where)} ({why})."] * bool(where)


def gap_words(controls: Mapping[str, np.ndarray], effect: Effect, unit: str) -> list[str]:
    """What the change of positions does with nothing inserted, by the rules of the whole `effect`."""
    if "shift_total" not in controls:
        return []
    shift = replace(effect, total=controls["shift_total"], claimed=0.0)
    words = "Gap only (positions shifted as by the insertion, nothing inserted): median"
    some = bool((np.abs(shift.total) > shift.rounding).any())
    end = ": no change at all" if not some else "" if shift.established else ": not established"
    return [f"{words} {with_limits(shift.median, unit)}{end}."]


def sink_words(scores: HeadScores | None) -> list[str]:
    """Which heads read a span that is a sink in most problems; nothing where none does."""
    if scores is None:
        return []
    counts, n = is_sink(scores).sum(0), len(scores.problem_ids)
    each = [(head, count) for head, count in zip(scores.heads, counts, strict=True) if 2 * count > n]
    flagged = ", ".join(f"{head} (in {count} of {count_of(n, 'problem')})" for head, count in each)
    return [
        f"Reading a span that is an attention sink: {flagged}. Attention rests on a sink whatever stands there, so "
        "that these heads read the span does not show that they use what it says."
    ] * bool(each)


@dataclass(frozen=True, eq=False, repr=False)
class Verdicts(Grouped):
    """What is judged of `values[measure]` `[problem, head]` (`measure.MEASURES`) and of the `total` effect `[problem]`.

    `controls[name]` `[problem, named]` are effects of the named heads, `joint` those that read, knocked out together, `reads`
    what these take from the span; `strata` names the stratum of each problem.
    """

    problem_ids: tuple[str, ...]
    heads: tuple[Head, ...]
    values: dict[str, np.ndarray]
    total: np.ndarray
    controls: dict[str, np.ndarray] = field(default_factory=dict)
    joint: JointKnockout | None = None
    reads: ReadEffects | None = None
    unit: str = "nats"
    settings: dict[str, Any] = field(default_factory=dict)
    seed: int = 0
    confidence: float = CONFIDENCE
    smallest_effect: float = SMALLEST_EFFECT
    resolution: float = 0.0
    strata: tuple[str, ...] = ()

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
        removed_p | p, undone | p | that it undoes more in most problems; Holm over heads, sides and senses
        added_p | p, reproduced | p | that it reproduces more in most problems; Holm over heads, sides and senses
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
    axes: ClassVar[tuple[tuple[str, str], ...]] = (("values", "problem head"), ("total", "problem"))

    @property
    def claims(self) -> Claims | None:
        """What was claimed of the heads on other problems, if anything was."""
        return None

    @cached_property
    def judged(self) -> Judged:
        """The verdicts: of every head its kind, its sense, and the tests behind them."""
        rules = {"confidence": self.confidence, "smallest_effect": self.smallest_effect, "rounding": self.resolution}
        strata = () if self.claims else self.strata
        return judge(
            self.values, self.total, self.heads, **rules, claims=self.claims, groups=self.groups, strata=strata
        )

    @property
    def established(self) -> bool:
        """Whether most problems show an effect of one sign (as claimed), beyond rounding."""
        return self.judged.established

    @property
    def smallest_words(self) -> str:
        """The smallest effect of interest: `5 %`."""
        return f"{100 * self.smallest_effect:.3g} %"

    def to_frame(self) -> pd.DataFrame:
        """One tidy row per measure (`measure.MEASURES`), problem and head."""
        return Table(rows_per_head(self.problem_ids, self.heads, self.values))

    def control_table(self) -> pd.DataFrame:
        """One row per named head: its effect beside the same under each control (`specificity.beside_controls`)."""
        raise NotImplementedError

    def _of_specialists(self, kinds: Sequence[str], **found: Sequence[InStratum]) -> dict[str, list[str]]:
        """Columns with the strata of each specialist in words, "" of other heads; none where there are no specialists."""
        if "specialist" not in kinds:
            return {}
        named = [head if kind == "specialist" else None for head, kind in zip(self.heads, kinds, strict=True)]
        return {
            name: [", ".join(each.stratum for each in within if each.head == head) for head in named]
            for name, within in found.items()
        }

    def _held_words(self, confirmed: Sequence[str] | None = None) -> list[str]:
        """What the controls show, and what the heads that read remove as a set and taken apart."""
        table, level = self.control_table(), self.judged.effect.level
        found = specific_words(table, level=level, n=len(self.total), confirmed=confirmed)
        if self.joint is not None:
            which = (
                "Heads that attend to the span" if len(self.joint.heads) > 1 else "The head that attends to the span"
            )
            found += [f"{which}: {self.joint.headline()}", *self.joint.details()]
        return found + ([] if self.reads is None else [self.reads.headline(), *self.reads.details()])

    def _left_out_words(self) -> list[str]:
        left_out = self.settings.get("left_out") or {}
        return [f"The control of {OTHERS[name]} was left out: {why}." for name, why in left_out.items()]


@dataclass(frozen=True, eq=False, repr=False)
class Confirmation(Verdicts, Result):
    """The heads that were named elsewhere, and nothing else, on fresh problems: Holm over these heads alone.

    `heads`, `kinds` and `senses` `[head]` are the claims, `within` those about strata, `direction` the sign of the effect that
    they are told by; everything else was measured on the fresh problems, so that its p-values mean something.
    """

    kinds: tuple[str, ...] = field(kw_only=True)
    senses: np.ndarray = field(kw_only=True)
    direction: float = field(kw_only=True)
    within: tuple[InStratum, ...] = ()

    reported = tuple(
        "label layer head claimed confirmed kind confirmed_strata p_corrected removed_share removed_k added_k n removed_p "
        "added_p exceeds_random exceeds_random_n p_specific".split()
    )
    axes = (*Verdicts.axes, ("senses", "head"))

    @property
    def claims(self) -> Claims:
        """What was claimed."""
        return Claims(self.direction, self.heads, self.kinds, self.senses, self.within)

    @property
    def confirmed(self) -> np.ndarray:
        """Whether every side that a head was named for passes again, in its sense, `[head]`; of a specialist, in a stratum."""
        return np.nan_to_num(self.p, nan=1.0) < self.judged.effect.level

    @property
    def confirmed_within(self) -> tuple[InStratum, ...]:
        """The claims about strata that pass again on fresh problems of the same stratum."""
        return tuple(each for each, p in zip(self.within, self._p[1], strict=True) if p < self.judged.effect.level)

    @property
    def p(self) -> np.ndarray:
        """Corrected p of each head's claim, `[head]`: the larger of its sides'; of a specialist the smallest of its
        strata's."""
        return self._p[0]

    @cached_property
    def _p(self) -> tuple[np.ndarray, np.ndarray]:
        """Corrected p of the heads' claims, and of the claims about strata: one family."""
        special = np.array(self.kinds) == "specialist"
        whole = [self._larger(self.judged.sides, KINDS[kind].side, at) for at, kind in enumerate(self.kinds)]
        p = np.array([*np.where(special, np.nan, whole), *map(self._within, self.within)], dtype=float)
        p = holm(p) if np.isfinite(p).any() else p
        heads, inside = np.split(p, [len(whole)])
        for at in np.flatnonzero(special):
            own = [p for each, p in zip(self.within, inside, strict=True) if each.head == self.heads[at]]
            heads[at] = np.fmin.reduce(own, initial=np.nan)
        return heads, inside

    def _larger(self, tests: dict[str, Prevalence], wanted: str, at: int) -> float:
        return max(float(tests[side].p[0, at]) for side in SIDES if wanted in ("both", side))

    def _within(self, claim: InStratum) -> float:
        """The p of a claim about a stratum, on the fresh problems of that stratum; NaN where there are none."""
        inside, at = np.array([name == claim.stratum for name in self.strata]), self.heads.index(claim.head)
        if not inside.any():
            return float("nan")
        both = np.stack([measured(self.values, measure)[:, [at]] for measure in SIDES.values()], 1)
        test = self.judged.effect.prevalence(np.where(inside[:, None, None], both, np.nan) * claim.sense, senses=(1,))
        return self._larger({side: test.of(place) for place, side in enumerate(SIDES)}, claim.side, 0)

    @property
    def kinds_again(self) -> tuple[str, ...]:
        """The verdict on each head here, `[head]`; "specialist" for one that passes again in a stratum that named it."""
        again = {each.head for each in self.confirmed_within}
        return tuple(
            claimed if claimed == "specialist" and head in again else kind
            for head, claimed, kind in zip(self.heads, self.kinds, self.judged.kinds, strict=True)
        )

    @property
    def same_kind(self) -> np.ndarray:
        """Whether a head is confirmed, and as the same kind, `[head]`."""
        return self.confirmed & (np.array(self.kinds_again) == np.array(self.kinds))

    def _heads(self, *, confirmed: bool) -> list[Head]:
        return [head for head, sure in zip(self.heads, self.confirmed, strict=True) if sure == confirmed]

    @property
    def specific(self) -> tuple[Head, ...]:
        """Heads that do more than under random words of the same length, by more than the smallest effect."""
        passed = self.control_table()["p_specific"] < self.judged.effect.level
        return tuple(head for head, sure in zip(self.heads, passed, strict=True) if sure)

    def control_table(self) -> pd.DataFrame:
        """One row per head: its effect beside the same under each control, with the test (`specificity.beside_controls`)."""
        return Table(beside_controls(self.judged.effect, self.claims, self.values, self.controls, fresh=True))

    def table(self) -> pd.DataFrame:
        """One row per head: claim, verdict here, counts of problems, corrected p of each side, the median with limits; and
        whether it does more than under random words (`control_table`)."""
        strata = self._of_specialists(self.kinds, strata=self.within, confirmed_strata=self.confirmed_within)
        columns: dict[str, Any] = head_columns(self.heads) | {
            "claimed": list(self.kinds),
            "confirmed": self.confirmed,
            "p_corrected": self.p,
            "kind": list(self.kinds_again),
            **strata,
            "n": np.full(len(self.heads), self.judged.effect.n),
        }
        for side, measure in SIDES.items():
            test, values = self.judged.sides[side], measured(self.values, measure)
            columns |= {f"{side}_k": test.count[0], f"{side}_p": test.p_corrected[0]}
            if side == "removed":
                columns |= interval_columns(f"{side}_median", self.judged.effect.cell_medians(values))
                columns |= interval_columns(f"{side}_share", self.judged.effect.share(values))
        beside = self.control_table().reindex(columns=["label", "exceeds_random", "exceeds_random_n", "p_specific"])
        return pd.DataFrame(columns).merge(beside, on="label", how="left")

    def headline(self) -> str:
        """Return whether the effect comes again, and which heads are confirmed."""
        s, effect = self.settings, self.judged.effect
        whole = effect.headline(s.get("insertion", "The insertion"), s.get("outcome", "the outcome"), self.unit)
        if not effect.established:
            return f"{whole}, in the direction claimed, so no head is confirmed."
        sure, lost = (self._heads(confirmed=confirmed) for confirmed in (True, False))
        return f"{whole}; confirmed: {listed(sure) or 'none'}" + (f"; not confirmed: {listed(lost)}." if lost else ".")

    def in_short(self) -> str:
        """Return which of the heads are confirmed, and which of these are specific to the insertion, as a clause."""
        sure, n = self._heads(confirmed=True), len(self.heads)
        every = "all" if n > 2 else "both" if n == 2 else str(self.heads[0])
        who = every if len(sure) == n else listed(sure) or "none"
        fresh = count_of(len(self.problem_ids), "fresh problem")
        told = f"on {fresh} {who} {'is' if len(sure) < 2 else 'are'} confirmed"
        if not sure or "random_size_removed" not in self.controls:
            return told + ", specificity not tested" * bool(sure)
        which = [head for head in sure if head in self.specific]
        if len(which) == len(sure):
            return f"{told}, {['', 'and ', 'both ', 'all '][min(len(sure), 3)]}specific to this insertion"
        return f"{told}, {listed(which) or 'none'} specific to this insertion"

    def caveats(self) -> list[str]:
        """Return that so few problems can confirm no head, where they are too few."""
        few = few_problems(self.judged.effect.n, len(self.heads), self.confidence, per_head=1)
        return [*([few] if few else []), *super().caveats()]

    def details(self) -> list[str]:
        """Return what the set and the controls show on these problems."""
        n, effect = len(self.total), self.judged.effect
        tested = f"{count_of(len(self.heads), 'head')} tested."
        found = [f"{count_of(n, 'fresh problem')}, none of them used to name the heads; {tested}"]
        found.append(effect.details(self.unit, self.settings.get("contrast", "content")))
        if not self.established or np.isnan(effect.delta):
            return found
        found += strata_words("Confirmed within strata", self.confirmed_within) if self.within else []
        return [*found, *self._held_words([str(head) for head in self._heads(confirmed=True)]), *self._left_out_words()]

    def shown(self) -> Shown:
        """The claims and what came of them, and the effects beside the controls."""
        table = self.table()
        names = "label paper_label claimed confirmed kind strata confirmed_strata removed_k added_k n removed_median"
        names += " removed_p added_p"
        columns = [name for name in names.split() if name in table]
        caption = (
            f"Named heads on fresh problems; counts of problems with more than {self.smallest_words} of the effect."
        )
        tables = [ShownTable(table, caption, columns)]
        if self.controls:
            tables.append(
                ShownTable(self.control_table(), "The same heads beside their controls; medians over problems.")
            )
        return Shown(tuple(tables))

    def printed(self) -> pd.DataFrame:
        """Return the claims and what came of them, with the control of random words where it was run."""
        names = (
            "label claimed strata confirmed_strata removed_share removed_share_ci_low removed_share_ci_high removed_k"
        )
        names += " added_k n p_corrected confirmed exceeds_random exceeds_random_n p_specific"
        return self.table().reindex(columns=names.split()).dropna(axis=1, how="all")
