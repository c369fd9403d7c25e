"""What looking for a set of heads gives: how it was grown, what it does on fresh problems, what stands in for its members."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd

from ..core.arguments import count_of, listed
from ..core.heads import Head
from ..patching.effect import Effect
from ..patching.parts import WHOLE
from ..runtime.columns import columns_of
from ..runtime.results import Quantity, Result, Shown, ShownTable, interval_columns, tidy
from ..statistics import CONFIDENCE, Interval, Prevalence, holm, prevalence_test
from .stream_changes import named_words

SIDES = {"sufficient": ("alone bring", "alone brings"), "necessary": ("closed together take away", "closed takes away")}
"""The two kinds of sets, and what their sight of the span does: of several heads, of one."""


@dataclass(frozen=True, eq=False, repr=False)
class HeadSet(Result):
    """One set of heads that `minimal_sets` looked for, `side` "sufficient" or "necessary"; `heads` is empty where there is
    none.

    `steps` are the sets on the way: grown head by head, then with heads left out again. `effects` `[problem, step]` is what
    each does on the problems of the search, `fresh` `[fresh, step]` on others, parts of `total` `[problem]` and `fresh_total`
    `[fresh]`: what its heads' sight of the span brings where no other head sees it, or what closing it takes away. `swaps`
    are sets with one member replaced that do as well (`swap_effects`, `swap_fresh`); `random` `[fresh, set]` is what `sets`,
    others of the same size and layers, do, of which there are `n_possible`. `fresh_groups`: the groups of `fresh_ids`.
    """

    problem_ids: tuple[str, ...]
    fresh_ids: tuple[str, ...]
    side: str
    candidates: tuple[Head, ...]
    heads: tuple[Head, ...]
    steps: tuple[tuple[Head, ...], ...]
    effects: np.ndarray
    fresh: np.ndarray
    total: np.ndarray
    fresh_total: np.ndarray
    swaps: tuple[tuple[Head, ...], ...]
    swap_effects: np.ndarray
    swap_fresh: np.ndarray
    sets: tuple[tuple[Head, ...], ...]
    random: np.ndarray
    n_possible: int
    unit: str
    share: float
    settings: dict[str, Any] = field(default_factory=dict)
    confidence: float = CONFIDENCE
    resolution: float = 0.0
    fresh_groups: tuple[str, ...] = field(default=(), kw_only=True)

    picture = "set_growth"
    columns = columns_of("""
        fresh_share | share on fresh problems | share | what the set brings there / median effect
        changed | changed | | heads that came (+) and went (-)
    """)
    drawn = ("fresh_share", "share")
    axes = (
        *(("effects", "problem step"), ("fresh", "fresh step"), ("total", "problem"), ("fresh_total", "fresh")),
        *(("swap_effects", "problem swap"), ("swap_fresh", "fresh swap"), ("random", "fresh set")),
    )

    @property
    def found(self) -> bool:
        """Whether there is such a set."""
        return bool(self.heads)

    @cached_property
    def wholes(self) -> tuple[Effect, Effect]:
        """The total effect where the set was sought, and on the fresh problems, where its sign is claimed."""
        here = Effect(self.total, self.confidence, rounding=self.resolution, groups=self.groups)
        return here, replace(here, total=self.fresh_total, claimed=here.direction, groups=self.fresh_groups)

    @property
    def direction(self) -> float:
        """The sign of the median total effect on the problems of the search."""
        return self.wholes[0].direction

    @property
    def established(self) -> tuple[bool, bool]:
        """Whether most problems show a total effect of this sign: where the set was sought, and on the fresh ones."""
        return self.wholes[0].established, self.wholes[1].established

    def shares(self, effects: np.ndarray, *, fresh: bool) -> Interval:
        """The share of the total effect that effects `[problem, cell]` are, with exact limits; NaN where none is
        established."""
        if not effects.shape[1]:
            nothing = np.zeros(0)
            return Interval(nothing, nothing, nothing, nothing, nothing, nothing, self.confidence, "sign test")
        return self.wholes[fresh].share(effects)

    @cached_property
    def test(self) -> Prevalence:
        """In how many fresh problems the set does more than `share` of that problem's own effect, and p: most of them?

        A problem whose own effect is none, or of the other sign, does not count.
        """
        own = self.direction * self.fresh_total
        more = self.direction * self.fresh[:, -1:] - self.share * own[:, None]
        tested = np.array([self.found and self.established[1]])
        more = self.wholes[1].units(np.minimum(more, own[:, None]))
        return prevalence_test(more, self.wholes[1].rounding, senses=(1,), tested=tested)

    @property
    def p(self) -> float:
        """The set's own p (one test); NaN where there is no set, or no total effect on the fresh problems."""
        return float(self.test.p[0, 0]) if self.found else float("nan")

    @property
    def n_as_large(self) -> int:
        """Random sets whose median effect on the fresh problems is as large as the set's."""
        return count_as_large(self.wholes[1], self.fresh[:, -1], self.random)

    @property
    def p_random(self) -> float:
        """Rank of the set's median effect among those of sets of the same size and layers, itself included."""
        return (1 + self.n_as_large) / (1 + len(self.sets)) if self.found and self.sets else float("nan")

    @property
    def stand_ins(self) -> dict[Head, tuple[Head, ...]]:
        """Member -> the heads of which each, in its place, reaches the share too on the problems of the search."""
        stands: dict[Head, tuple[Head, ...]] = {}
        for one in self.swaps:
            (member,), (other,) = set(self.heads) - set(one), set(one) - set(self.heads)
            stands[member] = (*stands.get(member, ()), other)
        return {head: stands[head] for head in self.heads if head in stands}

    def table(self) -> pd.DataFrame:
        """One row per set, the steps in order, then the swaps: `share` of the total effect on the problems of the search and
        `fresh_share` on the others, both with limits; `changed` says which head came or went."""
        rows = [*self.steps, *self.swaps]
        here = self.shares(np.column_stack([self.effects, self.swap_effects]), fresh=False)
        there = self.shares(np.column_stack([self.fresh, self.swap_fresh]), fresh=True)
        return pd.DataFrame(
            {
                "set": [*("step" for _ in self.steps), *("swap" for _ in self.swaps)],
                "changed": [
                    *(changed(before, after) for before, after in pairwise([(), *self.steps])),
                    *(changed(self.heads, each) for each in self.swaps),
                ],
                "n_heads": [len(each) for each in rows],
                "heads": [named(each) for each in rows],
                **interval_columns("share", here),
                **interval_columns("fresh_share", there),
            }
        )

    def quantity(self, column: str) -> Quantity:
        """Shares of the whole effect."""
        return Quantity(WHOLE, True, (f"{column}_ci_low", f"{column}_ci_high"))

    def to_frame(self) -> pd.DataFrame:
        """One tidy row per problem and set, of both halves (`half`: "search" or "fresh")."""
        parts = []
        for half, ids, total, *groups in (
            ("search", self.problem_ids, self.total, self.effects, self.swap_effects, None),
            ("fresh", self.fresh_ids, self.fresh_total, self.fresh, self.swap_fresh, self.random),
        ):
            every = zip(("step", "swap", "random"), (self.steps, self.swaps, self.sets), groups, strict=True)
            for name, sets, effects in every:
                if effects is not None and sets:
                    part = tidy({"problem": ids, "number": range(len(sets))}, effect=effects)
                    heads = np.array([named(each) for each in sets])[part["number"]]
                    part = part.assign(half=half, set=name, heads=heads, total=np.repeat(total, len(sets)))
                    parts.append(part[["half", "problem", "set", "number", "heads", "effect", "total"]])
        return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame({"half": [], "problem": [], "effect": []})

    def headline(self) -> str:
        """Return which heads suffice or are needed, and what they do where they were found and on fresh problems."""
        one, asked = self.side, share_of(self.share)
        if not self.established[0]:
            return f"No {one} set: most problems do not show an effect of one sign."
        if not self.found:
            at = int(np.argmax(np.median(self.direction * self.effects, axis=0)))
            reached = float(np.median(self.effects[:, at]) / np.median(self.total))
            most = f"{np.floor(1000 * reached) / 10:.1f} %"  # rounded down: it is less than what was asked
            return (
                f"No {one} set: none of up to {max(map(len, self.steps))} of these {count_of(len(self.candidates), 'head')} "
                f"reaches {asked} of the median effect; the most is {most} ({listed(self.steps[at])})."
            )
        here = share_of(float(np.asarray(self.shares(self.effects, fresh=False).estimate)[-1]))
        does = SIDES[one][len(self.heads) == 1]
        return (
            f"{one.capitalize()}: {listed(self.heads)} {does} {here} of the effect where found, {self._fresh_words()}"
        )

    def details(self) -> list[str]:
        """Return what random sets do, and which heads can stand in."""
        if not self.found:
            return []
        stand = [
            f"In the place of {head}, {listed(others)} will do there too." for head, others in self.stand_ins.items()
        ]
        return [*self._random_words(), *stand]

    def _fresh_words(self) -> str:
        fresh = count_of(len(self.fresh_ids), "fresh problem")
        if not self.established[1]:
            return f"but on {fresh} such an effect is not established, so nothing is tested there."
        made, count = self.shares(self.fresh[:, -1:], fresh=True), int(self.test.count[0, 0])
        estimate, low, high = (100 * float(np.asarray(each)[0]) for each in (made.estimate, made.low, made.high))
        return (
            f"{estimate:z.0f} % [{low:z.0f}, {high:z.0f}] on {fresh}, with more than {share_of(self.share)} of the "
            f"problem's own effect in {count} of them (p = {self.p:.2g}, for this set alone)."
        )

    def _random_words(self) -> list[str]:
        if not self.sets or not self.established[1]:
            return []
        shares = np.asarray(self.shares(self.random, fresh=True).estimate)
        which = f"All {len(self.sets)} other" if len(self.sets) == self.n_possible else f"{len(self.sets)} random"
        return [
            f"{which} sets of the same layers and size do {share_of(float(np.median(shares)))} "
            f"(median; at most {share_of(float(shares.max()))}), {self.n_as_large or 'none'} of them as much "
            f"(p = {self.p_random:.2g})."
        ]

    def printed(self) -> pd.DataFrame:
        """The steps, with the share reached on either half."""
        table = self.table()
        columns = ["changed", "n_heads", "share", "fresh_share", "fresh_share_ci_low", "fresh_share_ci_high"]
        return table.loc[table["set"] == "step", columns].reset_index(drop=True)


@dataclass(frozen=True, eq=False, repr=False)
class MinimalSets(Result):
    """A sufficient and a necessary set of heads (`HeadSet`), from the same candidates.

    `scores` `[problem, candidate]` are the candidates' gate gradients (`HeadAttribution.scores`).
    """

    problem_ids: tuple[str, ...]
    candidates: tuple[Head, ...]
    scores: np.ndarray
    sufficient: HeadSet
    necessary: HeadSet
    unit: str
    settings: dict[str, Any] = field(default_factory=dict)
    seed: int = 0

    picture = "set_growth"
    columns = columns_of("""
        p_random | p, random sets | p | rank among random sets of the same size and layers, on fresh problems
        random_share | share of random sets | share | median over them, on fresh problems
    """)
    axes = (("scores", "problem candidate"),)
    drawn = ("fresh_share", "share")

    @property
    def both(self) -> tuple[HeadSet, HeadSet]:
        """Both sets."""
        return self.sufficient, self.necessary

    @property
    def p(self) -> np.ndarray:
        """Corrected p of both sets, `[side]`: do they reach the share of the problem's own effect in most fresh problems?"""
        p = np.array([each.p for each in self.both])
        return holm(p) if np.isfinite(p).any() else p

    @property
    def confirmed(self) -> dict[str, bool]:
        """Whether each set is shown to do its share in most fresh problems."""
        return {
            each.side: bool(p < 1 - each.confidence)
            for each, p in zip(self.both, np.nan_to_num(self.p, nan=1.0), strict=True)
        }

    @property
    def stand_in(self) -> tuple[Head, ...]:
        """Heads of the necessary set that the sufficient one does without: the others do their work."""
        return tuple(
            head for head in self.necessary.heads if self.sufficient.found and head not in self.sufficient.heads
        )

    def table(self) -> pd.DataFrame:
        """One row per set: its heads, the share reached on either half with limits, k of n fresh problems with corrected p,
        and the rank among random sets; NaN where there is no such set."""
        rows = []
        for each, p, sure in zip(self.both, self.p, self.confirmed.values(), strict=True):
            last = each.table().query("set == 'step'").tail(1) if each.found else None
            numbers = [f"{name}{end}" for name in ("share", "fresh_share") for end in ("", "_ci_low", "_ci_high")]
            random = np.asarray(each.shares(each.random, fresh=True).estimate) if each.found and each.sets else [np.nan]
            rows.append(
                {
                    "side": each.side,
                    "heads": named(each.heads),
                    "n_heads": len(each.heads),
                    **{name: np.nan if last is None else float(last[name].iloc[0]) for name in numbers},
                    "k": int(each.test.count[0, 0]) if each.found else 0,
                    "n": int(each.test.n[0]) if each.found else 0,
                    "p_corrected": float(p),
                    "confirmed": sure,
                    "p_random": each.p_random,
                    "random_share": float(np.median(random)),
                }
            )
        return pd.DataFrame(rows)

    def quantity(self, column: str) -> Quantity:
        """Shares of the whole effect."""
        return Quantity(WHOLE, True, (f"{column}_ci_low", f"{column}_ci_high"), "p_corrected")

    def to_frame(self) -> pd.DataFrame:
        """One tidy row per problem and set, of both sides and both halves."""
        frames = [each.to_frame() for each in self.both]
        for frame, each in zip(frames, self.both, strict=True):
            frame.insert(0, "side", each.side)
        return pd.concat(frames, ignore_index=True)

    def headline(self) -> str:
        """Return which heads suffice and which are needed, and whether fresh problems confirm it."""
        short = "; ".join(self._in_short(each) for each in self.both)
        return f"{short[0].upper()}{short[1:]}."

    def details(self) -> list[str]:
        """Return what each set does."""
        found = [words for each in self.both for words in (each.headline(), *each.details())]
        return [*found, *named_words(self.settings)]

    def _in_short(self, each: HeadSet) -> str:
        if not each.found:
            return f"{each.side}: no set"
        sure = "confirmed" if self.confirmed[each.side] else "not confirmed"
        return f"{each.side}: {listed(each.heads)} ({sure} on fresh problems)"

    def shown(self) -> Shown:
        """Both sets, and the steps of each."""
        tables = [ShownTable(self.table(), "The sets; shares are of the whole effect.")]
        how = "How the {} set was found, and what would do in its place."
        tables += [ShownTable(each.table(), how.format(each.side)) for each in self.both if each.steps]
        return Shown(tuple(tables))

    def printed(self) -> pd.DataFrame:
        """Both sets in a row each."""
        columns = ["side", "n_heads", "share", "fresh_share", "k", "n", "p_corrected", "p_random", "heads"]
        return self.table()[columns]


def count_as_large(whole: Effect, own: np.ndarray, random: np.ndarray) -> int:
    """Random sets, effects `[problem, set]`, whose median is as large as a set's own, `[problem]`."""
    if not random.shape[1]:
        return 0
    mine, others = (whole.cell_medians(whole.turned(each)).estimate for each in (own, random))
    return int((others >= mine - whole.rounding).sum())


def named(heads: Sequence[Head]) -> str:
    """A set as a table has it."""
    return " ".join(map(str, heads))


def share_of(share: float) -> str:
    """A share as words: `80 %`."""
    return f"{100 * share:z.0f} %"


def changed(before: Sequence[Head], after: Sequence[Head]) -> str:
    """What came (+) and went (-) from one set to another: `+L0H2 -L0H5`."""
    came, went = ([head for head in one if head not in other] for one, other in ((after, before), (before, after)))
    return " ".join([*(f"+{head}" for head in came), *(f"-{head}" for head in went)])
