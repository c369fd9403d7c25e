"""What locating heads gives: the heads named, in how many problems, what that rests on; and the same on fresh problems."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import compress
from typing import Any, ClassVar

import numpy as np
import pandas as pd

from ..core.arguments import Arguments, count_of, listed
from ..core.heads import Head, as_head
from ..patching.effect import SMALLEST_EFFECT, WHOLE, Parts, concentration_words
from ..patching.knockouts import JointKnockout, ReadEffects
from ..patching.prepared import Measured
from ..patching.sweep import PatchScores
from ..runtime import base_result as results
from ..runtime.base_result import Quantity, Result, Shown, ShownTable, counted
from ..runtime.columns import Column, columns_of, says
from ..runtime.text_safety import WIDTH
from ..statistics import CONFIDENCE, SENSES, holm
from . import judge as rules
from .judge import KINDS, PER_HEAD, SIDES, Claims, InStratum, measured

NAMED_AT_MOST = 10  # undecided heads that a print names
NAMED_MARK = "outlined: named, by a test of most problems, corrected for testing many heads"
SATURATES = "A saturating outcome can hide what a head undoes or reproduces: try outcome='logit_diff' too."


def strata_of(found: Sequence[InStratum], head: Head) -> tuple[str, ...]:
    return tuple(each.stratum for each in found if each.head == head)


def strata_in_words(found: Sequence[InStratum], head: Head) -> str:
    """Name the strata in which a head passes, "against" behind those in which it acts against the effect: a; b, against."""
    told = (strata_of([each for each in found if each.sense == sense], head) for sense in SENSES)
    return "; ".join(", ".join(names) + end for names, end in zip(told, ("", ", against"), strict=True) if names)


def _reported(names: str) -> property:
    """Return a property: columns with these names, medians where shares are undefined."""
    return property(lambda self: tuple((names if self.established else names.replace("_share", "_median")).split()))


@dataclass(frozen=True, eq=False, repr=False)
class Verdicts(Measured):
    """What is judged of `values[measure]` `[problem, head]` (`judge.MEASURES`) and of the `total` effect `[problem]`.

    `controls[name]` `[problem, named]` are effects of the named heads, `joint` those that read, knocked out together, `reads`
    what these take from the span; `strata` name each problem's stratum.
    """

    heads: tuple[Head, ...]
    values: dict[str, np.ndarray]
    total: np.ndarray
    controls: dict[str, np.ndarray] = field(default_factory=dict)
    joint: JointKnockout | None = None
    reads: ReadEffects | None = None
    unit: str = "nats"
    smallest_effect: float = SMALLEST_EFFECT
    strata: tuple[str, ...] = ()

    columns: ClassVar[tuple[Column, ...]] = (
        *PatchScores.columns,
        *(each for each in Parts.columns if each.name != "effect"),  # here a median
        *columns_of("""
        kind | verdict | verdict | a test over most problems, corrected for testing many heads
        claimed | claimed | verdict | the verdict on the problems that named the head
        strata | in strata | verdict | the strata of the problems in which a specialist was named; against: against the effect
        confirmed_strata | confirmed in | verdict | the strata in which fresh problems confirm a specialist
        confirmed | confirmed | verdict | passes again on fresh problems
        removed_share | undone | share | share of the whole effect that disappears when the head is patched out
        added_share | reproduced | share | share of the whole effect that appears when the head is patched in
        removed_k | undone in | of n | problems where patching the head out undoes (against: adds) more than the smallest effect
        added_k | reproduced in | of n | problems in which patching the head in reproduces more than the smallest effect
        removed_median | undone, median | | median effect that disappears when the head is patched out, in the outcome's unit
        added_median | reproduced, median | | median effect that appears when the head is patched in, in the outcome's unit
        removed_p | p, undone | p | that it undoes more in most problems; Holm over heads, sides and senses
        added_p | p, reproduced | p | that it reproduces more in most problems; Holm over heads, sides and senses
        effect | median effect | | the head's effect on the side on which it was named, in the outcome's unit
        random_words_share | share with random words | share | share of the head's effect that random words have too
        random_effect | effect with random words | | the head's effect where random words of the same length are inserted
        mful_effect | under a repeated word | | the head's effect where a repeated word is inserted
        matched_mass_effect | same attention elsewhere | | what removing as much attention from other tokens undoes
        shift_effect | under the gap alone | | the head's effect where positions are shifted and nothing is inserted
        exceeds_random | > random words in | of exceeds_random_n | problems in which it exceeds these by the smallest effect
        exceeds_mass | > same attention in | of exceeds_mass_n | problems in which it exceeds that by the smallest effect
        exceeds_random_n | with random words | | problems where random words were tried
        exceeds_mass_n | with attention elsewhere | | problems where as much attention elsewhere can be removed
        p_specific | p, specific | p | more than under random words by more than the smallest effect, on fresh problems
    """),
    )

    @property
    def claims(self) -> Claims | None:
        """What was claimed of the heads on other problems."""
        return None

    @cached_property
    def judged(self) -> rules.Judged:
        """The verdicts: of every head its kind, its sense, and the tests behind them."""
        by: Arguments = {"confidence": self.confidence, "smallest_effect": self.smallest_effect, "groups": self.groups}
        by |= {"claims": self.claims, "strata": () if self.claims else self.strata, "rounding": self.resolution}
        return rules.judge(self.values, self.total, self.heads, **by)

    @property
    def established(self) -> bool:
        """Whether most problems show an effect of one sign (as claimed), beyond rounding."""
        return self.judged.effect.established

    @property
    def _least(self) -> str:
        return f"more than {100 * self.smallest_effect:.3g} % of"

    @property
    def _counted(self) -> str:
        effect, medians = self.judged.effect, "" if self.established else f"; medians in {self.unit}"
        told = "none is tested against" if np.isnan(effect.delta) else "counts: problems with more than"
        return f"{told} the smallest effect, {effect.delta_words(self.unit)}{medians}"

    def to_frame(self) -> pd.DataFrame:
        """Return one tidy row per measure (`judge.MEASURES`), problem and head; below 0 lowers the outcome."""
        return results.rows_per_head(self.problem_ids, self.heads, self.values)

    def control_table(self) -> pd.DataFrame:
        """Return one row per named head: its effect beside the same under each control (`judge.beside_controls`)."""
        judged, fresh = self.judged, self.claims is not None
        named = {measure: each if fresh else each[:, judged.named] for measure, each in self.values.items()}
        return rules.beside_controls(judged.effect, self.claims or judged.found, named, self.controls, fresh=fresh)

    def _side_columns(self, side: str) -> dict[str, np.ndarray]:
        values, effect = measured(self.values, SIDES[side]), self.judged.effect
        medians = results.interval_columns(f"{side}_median", effect.cell_medians(values))
        return medians | results.interval_columns(f"{side}_share", effect.share(values))

    def _of_specialists(self, kinds: Sequence[str], **found: Sequence[InStratum]) -> dict[str, list[str]]:
        """Return the strata of each specialist in words, "" of other heads; no columns where there are no specialists."""
        if "specialist" not in kinds:
            return {}
        each = [(head, kind == "specialist") for head, kind in zip(self.heads, kinds, strict=True)]
        return {name: [strata_in_words(within, head) * so for head, so in each] for name, within in found.items()}

    def _held_words(self) -> list[str]:
        """Return what the heads that read remove as a set, what their reads are, and which controls were left out."""
        held = [] if self.joint is None else [self.joint.headline(), *self.joint.details()]
        held += [] if self.reads is None else [self.reads.headline()]
        left_out = self.settings.get("left_out") or {}
        return [*held, *(f"The control of {rules.OTHERS[name]} was left out: {why}." for name, why in left_out.items())]


@dataclass(frozen=True, eq=False, repr=False)
class Confirmation(Verdicts):
    """The heads that were named elsewhere, and nothing else, on fresh problems: Holm over these heads alone.

    `heads`, `kinds` and `senses` `[head]` are the claims, `within` those about strata, `direction` the sign of the effect;
    everything else was measured on the fresh problems.
    """

    kinds: tuple[str, ...] = field(kw_only=True)
    senses: np.ndarray = field(kw_only=True)
    direction: float = field(kw_only=True)
    within: tuple[InStratum, ...] = ()

    reported = _reported(
        "label layer head claimed strata confirmed_strata removed_share removed_k added_k n p_corrected confirmed "
        "exceeds_random exceeds_random_n p_specific kind sense"
    )

    @property
    def claims(self) -> Claims:
        return Claims(self.direction, self.heads, self.kinds, self.senses, self.within)

    @property
    def confirmed(self) -> np.ndarray:
        """Whether every side that a head was named for passes again, in its sense, `[head]`; of a specialist, in a stratum."""
        return self.p < self.judged.effect.level

    @property
    def confirmed_within(self) -> tuple[InStratum, ...]:
        """The claims about strata that pass again on fresh problems of the same stratum."""
        return tuple(compress(self.within, self._p[1] < self.judged.effect.level))

    @property
    def p(self) -> np.ndarray:
        """Corrected p of each claim, `[head]`: the larger of its sides'; of a specialist the smallest of its strata's."""
        return self._p[0]

    @cached_property
    def _p(self) -> tuple[np.ndarray, np.ndarray]:
        """Corrected p of the heads' claims, and of the claims about strata: one family."""
        special, strata = np.array(self.kinds) == "specialist", np.array(self.strata, dtype=object)
        every, sides = np.full(len(self.total), True), [KINDS[kind].side for kind in self.kinds]
        claimed = zip(self.heads, sides, self.senses.tolist(), strict=True)
        whole = [self._p_of(head, side, sense, every) for head, side, sense in claimed]
        inside = [self._p_of(each.head, each.side, each.sense, strata == each.stratum) for each in self.within]
        p, within = np.split(holm(np.array([*np.where(special, np.nan, whole), *inside], dtype=float)), [len(whole)])
        for at in np.flatnonzero(special):
            p[at] = np.fmin.reduce(within[[each.head == self.heads[at] for each in self.within]], initial=np.nan)
        return p, within

    def _p_of(self, head: Head, side: str, sense: int | float, inside: np.ndarray) -> float:
        """Return, of a claim about some problems, boolean `[problem]`, the larger p of its sides; NaN where there are none."""
        at, wanted = self.heads.index(head), [z for each, z in SIDES.items() if side in ("both", each)]
        own = sense * np.stack([measured(self.values, z)[:, at] for z in wanted], 1)
        return float(self.judged.effect.prevalence(np.where(inside[:, None], own, np.nan), senses=(1,)).p.max())

    @property
    def kinds_again(self) -> tuple[str, ...]:
        """The verdict on each head here, `[head]`; "specialist" for one that passes again in a stratum that named it."""
        again = {each.head for each in self.confirmed_within}
        return tuple(
            claimed if claimed == "specialist" and head in again else kind
            for head, claimed, kind in zip(self.heads, self.kinds, self.judged.kinds, strict=True)
        )

    @property
    def specific(self) -> tuple[Head, ...]:
        """Heads that do more than under random words of the same length, by more than the smallest effect."""
        return tuple(compress(self.heads, self.control_table()["p_specific"] < self.judged.effect.level))

    def table(self) -> pd.DataFrame:
        """Return a row per head: claim, verdict here, counts of problems, corrected p of each side, median, share, controls."""
        columns: dict[str, object] = results.head_columns(self.heads) | {
            "claimed": list(self.kinds),
            "sense": np.where(self.senses > 0, "with", "against"),
            "confirmed": self.confirmed,
            "p_corrected": self.p,
            "kind": list(self.kinds_again),
            **self._of_specialists(self.kinds, strata=self.within, confirmed_strata=self.confirmed_within),
            "n": np.full(len(self.heads), self.judged.effect.n),
        }
        for side, test in self.judged.sides.items():
            columns |= {f"{side}_k": test.count[0], f"{side}_p": test.p_corrected[0]}
        beside = self.control_table().reindex(columns=["label", "exceeds_random", "exceeds_random_n", "p_specific"])
        return pd.DataFrame(columns | self._side_columns("removed")).merge(beside, on="label")

    def headline(self) -> str:
        s, effect = self.settings, self.judged.effect
        return f"{effect.headline(s.get('insertion'), s.get('outcome'), self.unit)}; {self.in_short()}."

    def in_short(self) -> str:
        """Return which of the heads are confirmed, and which of these are specific to the insertion, as a clause."""
        sure, lost = (list(compress(self.heads, self.confirmed == each)) for each in (True, False))
        fresh = counted(self.judged.effect.n, self.groups, "fresh ")
        failed = f" ({listed(lost)} not)" * bool(sure and lost)
        if not self.established:
            return f"on {fresh} no effect of the claimed direction is established, so none is confirmed"
        named = "all" if len(sure) == len(self.heads) > 1 else listed(sure) or "none"
        told = f"on {fresh} {named} {'is' if len(sure) < 2 else 'are'} confirmed{failed}"
        if not sure or "random_size_removed" not in self.controls:
            return told + ", specificity not tested" * bool(sure)
        which = [head for head in sure if head in self.specific]
        return f"{told}, {'and' if which == sure else listed(which) or 'none'} specific to this insertion"

    def caveats(self) -> list[str]:
        few = rules.few_problems(self.judged.effect.n, len(self.heads), self.confidence, per_head=1)
        return [*filter(None, [few]), *super().caveats()]

    def details(self) -> list[str]:
        effect = self.judged.effect
        found = [effect.details(self.unit, self.settings.get("contrast", "content"))]
        return found if np.isnan(effect.delta) else [*found, *self._held_words()]

    def shown(self) -> Shown:
        claims = f"Named heads on fresh problems; {self._counted}."
        beside = "The same heads and their controls; medians over problems."
        tables = [_on_a_page(self, claims), *[ShownTable(self.control_table(), beside)] * bool(self.controls)]
        return Shown(tuple(tables))

    def printed(self) -> pd.DataFrame:
        table = super().printed()
        return table.assign(claimed=in_words(table, "claimed")).drop(columns=["kind", "sense"])


@dataclass(frozen=True, eq=False, repr=False)
class LocatedHeads(Verdicts):
    """The heads that carry the insertion's content effect (or another contrast's), with everything that the claim rests on.

    `heads` are the family that was tested, `patches` its exact z sweep (denoising). `confirmation`: the named heads on fresh
    problems, where there were some; controls, `joint` and `reads` were then measured there.
    """

    patches: PatchScores = field(kw_only=True)
    confirmation: Confirmation | None = None

    columns = columns_of("""
        knockout_median | own read, median | | what hiding the inserted tokens from this head takes away
        mediated_removed_median | mediated, median | | the part of the head's effect that earlier heads cause
        edge_noise_median | own read added, median | | what showing them to this head alone brings
        mediated_added_median | mediated, added, median | | the part that earlier heads cause, patched in
        p_either | p, either side | p | the smaller of both sides' corrected p
    """)
    picture = "forest"
    drawn = ("removed_share", "removed_median")
    reported = _reported(
        "label layer head kind strata removed_share removed_k added_k n removed_p exceeds_random exceeds_random_n "
        "confirmed sense added_share added_p"
    )

    @property
    def found(self) -> dict[Head, str]:
        """Named heads and their kind (`judge.KINDS`)."""
        return {head: kind for head, kind, _ in self.judged.found.each()}

    @property
    def confirmed(self) -> dict[Head, str]:
        """The named heads that fresh problems confirm, and their kind; empty where none were given."""
        return {head: kind for head, kind in self.found.items() if self.confirmed_or_unknown(head)}

    @property
    def sure(self) -> dict[Head, str]:
        """The heads to report: confirmed ones where there were fresh problems, else the named ones."""
        return self.found if self.confirmation is None else self.confirmed

    @property
    def specialists(self) -> dict[Head, tuple[str, ...]]:
        """The strata of each head that passes within some and is not shown to act over all problems."""
        special = [head for head, kind in self.found.items() if kind == "specialist"]
        return {head: strata_of(self.judged.in_strata, head) for head in special}

    def by_stratum(self) -> pd.DataFrame:
        """Return one row per head and tested stratum, the largest first: of both sides `_k` of `n`, corrected `_p`, `_median`,
        `_share` of the stratum's total; `passes`, and whether fresh problems confirm it (`confirmed`)."""
        judged, made, tables = self.judged, self.confirmation, []
        passed = {(each.head, each.stratum) for each in judged.in_strata}
        sure = {(each.head, each.stratum) for each in ((made and made.confirmed_within) or ())}
        for stratum in judged.large:
            inside = np.array(self.strata) == stratum
            passes = [(head, stratum) in passed for head in self.heads]
            columns: dict[str, object] = {"label": list(map(str, self.heads)), "stratum": stratum, "passes": passes}
            if made is not None:
                again = [(head, stratum) in sure for head in self.heads]
                columns["confirmed"] = pd.arrays.BooleanArray(np.array(again), ~np.array(passes))
            for side, test in judged.within(stratum).items():
                values = measured(self.values, SIDES[side])[inside]
                columns |= {"n": test.n, f"{side}_k": test.count.max(0), f"{side}_p": np.fmin(*test.p_corrected)}
                effect = judged.effect.only(inside)
                columns[f"{side}_median"] = effect.cell_medians(judged.effect.turned(values)).estimate
                columns |= results.interval_columns(f"{side}_share", effect.share(values))
            tables.append(pd.DataFrame(columns))
        return pd.concat(tables, ignore_index=True) if tables else pd.DataFrame()

    def table(self) -> pd.DataFrame:
        """Return one row per tested head, the named ones first, then by size: the verdict, its sides (`removed`: z patch,
        denoising; `added`: noising) with `_k` of `n` problems, `_p` of the better sense, `_median`, `_share`; `p_either`, the
        smaller p; medians of the four measures; controls that were run on these problems."""
        judged = self.judged
        again = {} if self.confirmation is None else {"confirmed_strata": self.confirmation.confirmed_within}
        patched = self.patches.table()[[*results.head_columns(()), "effect_fraction", "recovered", "n", "rank"]]
        columns: dict[str, Any] = dict(patched) | {
            "kind": list(judged.kinds),
            "sense": np.select(
                [~judged.named, judged.sense > 0, judged.sense < 0], ["", "with", "against"], "each way"
            ),
            **self._of_specialists(judged.kinds, strata=judged.in_strata, **again),
            "confirmed": pd.array([self.confirmed_or_unknown(head) for head in self.heads], dtype="boolean"),
        }
        for side, measure in SIDES.items():
            columns[f"{side}_k"] = judged.counted(measure).count[0]
            columns[f"{side}_p"] = np.fmin(*judged.sides[side].p_corrected)
            columns |= self._side_columns(side)
        columns["p_either"] = np.fmin(columns["removed_p"], columns["added_p"])
        for measure in (name for name in rules.MEASURES if name in self.values):
            columns |= results.interval_columns(f"{measure}_median", judged.effect.cell_medians(self.values[measure]))
        beside = self.control_table() if self.confirmation is None else self.control_table().head(0)
        beside = beside.drop(columns=["kind", *(name for name in beside if name.startswith("effect"))])
        table = pd.DataFrame(columns).merge(beside, on="label", how="left")
        size = table[[f"{side}_{'share' if self.established else 'median'}" for side in SIDES]].abs().max(axis=1)
        return table.loc[np.lexsort((-size, ~judged.named))].reset_index(drop=True)

    @property
    def read(self) -> ReadEffects | None:
        """`reads`, on fresh problems where there were some."""
        return (self.confirmation or self).reads

    def confirmed_or_unknown(self, head: Head | str) -> bool | None:
        """Return whether fresh problems confirm a head; None where it was not tested again."""
        made, head = self.confirmation, as_head(head)
        return None if made is None or head not in made.heads else bool(made.confirmed[made.heads.index(head)])

    def quantity(self, column: str) -> Quantity:
        claim = f"> {100 * self.smallest_effect:.3g} % in most problems"
        made = replace(self.patches.quantity(column), p="p_either", claim=claim, level=self.judged.effect.level)
        return replace(made, unit=WHOLE) if column.removesuffix("_share") in SIDES else made

    def control_table(self) -> pd.DataFrame:
        return super().control_table() if self.confirmation is None else self.confirmation.control_table()

    def headline(self) -> str:
        # a print has three lines for it, of which the last words matter most
        return next((told for each in (6, 2) if len(told := self._told(each)) <= 3 * WIDTH - 20), self._told(0))

    def _told(self, most: int) -> str:
        s, effect, made = self.settings, self.judged.effect, self.confirmation
        whole = effect.headline(s["insertion"], s["outcome"], self.unit)
        if (contrast := s.get("contrast", "content")) not in ("total", "content"):
            whole += f" ({contrast})"
        unused = f", and the {s['n_fresh']} fresh problems were not used" if s.get("n_fresh") else ""
        if not self.established:
            return f"{whole}, so no head is named{unused}."
        of, more = f"of {count_of(len(self.heads), 'head')}", f"{self._least} it in most problems"
        found, against = (
            {head: kind for head, kind, one in self.judged.found.each() if one == sense and kind != "specialist"}
            for sense in (1, -1)
        )
        carry = f"{len(found)} {of} {'is' if len(found) == 1 else 'are'} shown to carry {more}: {by_kind(found, most)}"
        told = carry if found else f"none {of} is shown to carry {more}"
        if against:
            told += f"; {len(against)} {'acts' if len(against) == 1 else 'act'} against it: {by_kind(against, most)}"
        if special := self.specialists:
            inside = ", ".join(f"{head} ({strata_in_words(self.judged.in_strata, head)})" for head in special)
            told += f"; {len(special)} {'more ' * bool(found or against)}only in strata of {s.get('by')}: {inside}"
        tested = "not yet confirmed on fresh problems" if made is None else made.in_short()
        return f"{whole}; {told}{f'; {tested}' if self.found else unused}."

    def rest(self) -> str:
        if not self.established:
            return ""
        undecided = [head for head, kind in zip(self.heads, self.judged.kinds, strict=True) if kind == "undecided"]
        few = f" ({listed(undecided, NAMED_AT_MOST)})" * (0 < len(undecided) <= NAMED_AT_MOST)
        return f"Not named: {self.judged.kinds.count('negligible')} negligible, {len(undecided)} undecided{few}."

    def caveats(self) -> list[str]:
        some = [*filter(None, [rules.few_problems(self.judged.effect.n, len(self.heads), self.confidence)])]
        some += concentration_words(self, self.total, self.unit)
        some += self._power() if self.established and not self.found else []
        if self.confirmation is None and self.found:
            some.append("The named heads were not tested on fresh problems: pass confirm=pairs.")
        return [*some, *super().caveats()][:3]

    def details(self) -> list[str]:
        s, judged, made = self.settings, self.judged, self.confirmation
        tested = f"{count_of(len(self.heads), 'head')}{', none' * bool(np.isnan(judged.effect.delta))} tested"
        found = [f"{s['insertion']}, {self.counted}, {tested}, outcome {s['outcome']}."]
        found.append(judged.effect.details(self.unit, s.get("contrast", "content")))
        found += [f"Intervals: {self.interval_words}."] * (self.confidence != CONFIDENCE)
        found += [*self._power(), *self._named_words()] if self.established else []
        if made is not None:
            found += [f"On fresh problems: {made.headline()}", *made.details()]
        return found

    def _power(self) -> list[str]:
        """Return how often a head must act to be found, from the binomial alone, never from what was observed."""
        n, n_heads, strata = self.judged.effect.n, len(self.heads), len(self.judged.large)
        least = 100 * self.judged.effect.detectable(PER_HEAD * n_heads * (1 + strata))
        found = f"a head that acts in {least:.0f} % of all problems is found at most 80 % of the time"
        return [] if np.isnan(least) else [f"Power: with {n} problems and {count_of(n_heads, 'head')}, {found}."]

    def _named_words(self) -> list[str]:
        judged, s = self.judged, self.settings
        effect, n = judged.effect, len(judged.large)
        tests = f"{PER_HEAD * len(self.heads) * (1 + n)} tests (heads, sides, senses{', strata' * bool(self.strata)})"
        least = f"Smallest effect of interest: {effect.delta_words(self.unit)}"
        found = [f"{least}; p < {effect.level:.3g} after Holm over {tests}."]
        if self.strata:
            tested = f"{n} of {count_of(len(set(self.strata)), 'stratum', 'strata')} of {s.get('by')}"
            found.append(f"{tested} have enough problems to be tested.")
        if (judged.side[judged.named] != "both").any() and s["outcome"] != "logit_diff":
            found.append(SATURATES)
        return [*found, *(self._held_words() if self.confirmation is None and judged.named.any() else [])]

    @property
    def printed_of(self) -> str:
        return "" if self.confirmation is None else "Table: fresh problems."

    def printed(self) -> pd.DataFrame:
        if self.confirmation is not None:
            return self.confirmation.printed()
        table = super().printed().head(len(self.found) or 3 * self.established)
        return table.assign(kind=in_words(table, "kind")).drop(columns="sense", errors="ignore")

    def shown(self) -> Shown:
        made = self.confirmation
        on = " on the problems that chose the named ones, whose effects are overestimated here (fresh problems: below)"
        how = f"Heads{on * (made is not None)}. Named ones first, then by the larger side; {self._counted}."
        tables = [_on_a_page(self, how)]
        if self.strata and len(strata := self.by_stratum()):
            of = f"Heads within strata of {self.settings['by']}"
            tables.append(ShownTable(strata, f"{of}; p: Holm over heads, sides, senses, strata and all problems."))
        if len(held := self.control_table()):
            where = "fresh" if made is not None else "the same"
            tables.append(ShownTable(held, f"The named heads' effect and its controls, on {where} problems; medians."))
        tables += [] if made is None else [made.shown().tables[0]]
        tables += [] if self.read is None else self.read.shown().tables
        table, columns = tables[0].frame, list(tables[0].columns or ())
        marked = table["label"].isin(list(map(str, self.found))).tolist()
        return Shown(tuple(tables), results.head_map(table, list(self.drawn), columns, marked=marked, means=NAMED_MARK))


def by_kind(found: Mapping[Head, str], at_most: int = 6) -> str:
    """List heads by their kind: L0H1, L0H2 (reader); L1H0 (mediator). `at_most` 0: three of them, without it."""
    if not at_most:
        return listed(found, 3)
    kinds = {kind: [head for head, one in found.items() if one == kind] for kind in found.values()}
    return "; ".join(f"{listed(heads, at_most)} ({kind})" for kind, heads in kinds.items())


def _on_a_page(found: Result, caption: str) -> ShownTable:
    """Return its table, of which a page shows the columns that are reported."""
    table = found.table()
    some = [name for name in found.reported if name in table and says(table[name])]
    for name in {"kind", "claimed"} & {*some}:
        table[name] = in_words(table, name)
    return ShownTable(table, caption, [name for name in some if name not in ("layer", "head")])


def in_words(table: pd.DataFrame, verdict: str) -> pd.Series:
    """Return the verdicts, with the sense of those that go against the effect."""
    whole = table[verdict].isin(rules.NAMED) & (table[verdict] != "specialist")  # whose strata say it
    against = (table.get("sense") == "against") & whole
    return table[verdict].mask(against, table[verdict] + ", against")
