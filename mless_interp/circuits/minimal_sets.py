"""Sets of heads that suffice, and sets that are needed: for heads that stand in for each other, or act only together."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from ..core.arguments import check_count, checked, count_of, listed
from ..core.heads import Head
from ..models.base import Model, refuse_without_gradients
from ..patching.attribution import HeadAttribution, attribute_heads
from ..patching.effect import SMALLEST_EFFECT, Effect
from ..patching.joint import count_sets, cutting, gate_row, gated_outcomes, random_sets
from ..patching.outcomes import Outcome
from ..patching.parts import WHOLE, share_words
from ..patching.prepared import Prepared, prepare
from ..prompts.conditions import Contrast
from ..prompts.pairs import PromptPair, digest_of
from ..runtime.columns import columns_of
from ..runtime.loop import RunOptions
from ..runtime.results import Quantity, Result, Shown, ShownTable, interval_columns, of_heads, tidy
from ..statistics import CONFIDENCE, Interval, Prevalence, derive_generator, fewest_problems, holm, prevalence_test
from .cells import heads_of, named_on, named_words
from .locate import fresh_problems
from .located import LocatedHeads
from .measure import kept_file

SHARE = 0.8
"""How much of the median effect a set must bring, or take away."""
MAX_HEADS = 16
"""How far a set is grown."""
N_CANDIDATES = 32
"""Of all heads, the best by gate gradient are tried."""


@checked
def minimal_sets(
    model: Model,
    pairs: Iterable[PromptPair] | Prepared,
    heads: LocatedHeads | Iterable[Head | str] | None = None,
    *,
    fresh: Iterable[PromptPair] | Prepared | None = None,
    contrast: str = "content",
    outcome: str | Outcome = "answer_logprob",
    share: float = SHARE,
    max_heads: int = MAX_HEADS,
    n_random_sets: int = 100,
    checkpoint: str | Path | None = None,
    progress: bool = True,
    seed: int = 0,
) -> "MinimalSets":
    r"""The fewest heads whose sight of the span suffices, and the fewest whose closing removes the effect.

    Whole sets $S$ are opened where nobody else sees the span, and closed where everybody else does:

    $$ \Delta^{\text{suff}}_p(S) = Y_p^{\,\text{only } S \text{ sees}} - Y_p^{\,\text{nobody sees}}, \qquad
       \Delta^{\text{nec}}_p(S) = Y_p^{\,\text{all see}} - Y_p^{\,\text{all but } S \text{ see}} $$

    A set is found where the median over problems is `share` or more of the median total effect. Of two heads of which each is
    enough (OR) either is sufficient, both are necessary; of two that are needed (AND) both are sufficient, either is necessary.

    Each set grows by the head that adds most, exactly measured. Where none adds more than 5 % of the effect (as when two act
    only together), the next one is taken by what each does alone, and of those that do little by the gate gradient. The set is
    then pruned as long as the rest reaches the share: no member can be left out, but a smaller set that lies elsewhere can be
    missed. The last look is for stand-ins: which other candidate reaches the share too in the place of a member.

    On fresh problems the set is measured again: the share with its interval, the test that it does more than `share` of the
    problem's own effect in most problems (prevalence, Holm over both sets), and its rank among `n_random_sets` sets of the same
    size and layers. A set that just reaches the share where it was found is not confirmed.

    Parameters
    ----------
    heads : candidates: zero-based heads, or what `locate_heads` gave (its named heads). Default: the 32 best of all heads by
        gate gradient. Mediators, having no sight of the span, are in no set.
    fresh : problems to confirm on, none of them among `pairs`. Default: every second one of `pairs` is kept for that.
    contrast : "content"; "computed", what is opened and closed is then the span's sight of the question; "replaced", a closed
        head writes what it does in the clean run.
    share : of the median effect, above 0 and at most 1.
    max_heads : how far a set is grown.
    checkpoint : a folder that receives each finished problem of each step; started again with the same settings the run goes on
        there, also in shards.

    Returns `MinimalSets`. A set that was not found has no heads, and NaN in the tables. Raises `ValueError` before anything
    runs for fewer problems than could show anything (6 to find, 6 to confirm), `ModelError` where no gradients can be had.

    Source: methods §8.1; faithfulness and completeness of Wang et al. (2211.00593), necessity and sufficiency of sets as in
    Shi et al. (2410.13032) | differs in: attention to the span is what a set has or lacks, not the heads themselves.
    """
    between = cutting(contrast)
    if not 0 < share <= 1:
        raise ValueError(f"share is a part of the median effect, above 0 and at most 1, got {share!r}")
    check_count(max_heads, name="max_heads")
    check_count(n_random_sets, name="n_random_sets", at_least=0)
    derive_generator(seed)
    prepared = prepare(model, pairs, outcome, signed_for="finding sets of heads")
    search, other = (each.under(between) for each in halves(prepared, fresh))
    tests = (search, 2, "find sets"), (other, len(SIDES), "confirm them")  # both senses of the total effect; both sets
    for problems, n_tests, what in tests:
        if problems.n_groups < (needed := fewest_problems(n_tests)):
            raise ValueError(f"at least {needed} problems are needed to {what}, got {problems.n_groups}")
    given = None if heads is None else heads_of(model, heads, "find sets of")
    refuse_without_gradients(model, "minimal_sets")
    folder = None if checkpoint is None else Path(checkpoint)
    found = attribute_heads(
        model,
        search,
        method="gate_ig" if between.cuts else "atp",
        contrast=contrast,
        outcome=search.outcome,
        verify=0,
        checkpoint=kept_file(folder, "gates"),
        progress=progress,
    )
    candidates = _by_gradient(found, model.info.heads if given is None else given)[: None if given else N_CANDIDATES]
    here, there = (_Measured(each, between, folder, progress) for each in (search, other))
    totals = {each: each.effects("sufficient", [model.info.heads])[:, 0] for each in (here, there)}
    whole = Effect(totals[here], rounding=model.resolution, groups=search.groups)
    size = abs(float(whole.median.estimate))
    way = _Way(whole.direction, share * size, SMALLEST_EFFECT * size)
    order = candidates
    sides: dict[str, tuple[list[tuple[Head, ...]], tuple[Head, ...]]] = {side: ([], ()) for side in SIDES}
    if whole.established:
        order = way.in_doubt(here, candidates)
        sides = {side: way.found(here, side, order, max_heads) for side in SIDES}
    made: dict[str, Any] = {}
    for side, (steps, chosen) in sides.items():
        swaps = way.swaps(here, side, chosen, order)
        others = random_sets(chosen, model.info, n_random_sets, seed=seed) if chosen else ()
        on_search = np.split(here.effects(side, [*steps, *swaps]), [len(steps)], 1)
        on_fresh = np.split(there.effects(side, [*steps, *swaps, *others]), [len(steps), len(steps) + len(swaps)], 1)
        made[side] = HeadSet(
            problem_ids=search.ids,
            groups=search.groups,
            fresh_ids=other.ids,
            fresh_groups=other.groups,
            side=side,
            candidates=order,
            heads=chosen,
            steps=tuple(steps),
            effects=on_search[0],
            fresh=on_fresh[0],
            total=totals[here],
            fresh_total=totals[there],
            swaps=tuple(swaps),
            swap_effects=on_search[1],
            swap_fresh=on_fresh[1],
            sets=others,
            random=on_fresh[2],
            n_possible=count_sets(chosen, model.info) if chosen else 0,
            unit=search.outcome.unit,
            share=share,
            settings={**search.settings, "contrast": contrast, "max_heads": max_heads},
            resolution=model.resolution,
        )
    return MinimalSets(
        problem_ids=search.ids,
        groups=search.groups,
        candidates=order,
        scores=of_heads(found.scores, order),
        **made,
        unit=search.outcome.unit,
        settings={
            "contrast": contrast,
            "share": share,
            "max_heads": max_heads,
            "n_random_sets": n_random_sets,
            "seed": seed,
            **search.settings,
            **named_on(heads, other.ids),
            "fresh_prompts": digest_of(other.pairs),
            "n_fresh": len(other.ids),
        },
        seed=seed,
    )


def halves(prepared: Prepared, fresh: Iterable[PromptPair] | Prepared | None) -> tuple[Prepared, Prepared]:
    """The problems to search and those to confirm on: fresh ones, checked to be so, or every second one."""
    if fresh is not None:
        return prepared, fresh_problems(prepare(prepared.model, fresh, prepared.outcome), prepared)
    if prepared.n_groups < 2:
        raise ValueError("one half of the problems is kept to confirm on, and there is 1: give more, or fresh=...")
    return prepared.halves()


def _by_gradient(found: HeadAttribution, heads: Sequence[Head]) -> tuple[Head, ...]:
    """The heads by the largest of what the gate gradients say: the integral, and both estimates at its ends (medians)."""
    estimates = [each for each in (found.scores, found.knockout, found.edge_noise) if each is not None]
    size = np.max([np.abs(np.median(of_heads(each, heads), axis=0)) for each in estimates], axis=0)
    return tuple(heads[at] for at in np.argsort(-size, kind="stable"))


class _Measured:
    """What sets of heads do on some problems: each measured once. Short-lived."""

    def __init__(self, prepared: Prepared, contrast: Contrast, folder: Path | None, progress: bool) -> None:
        self.prepared, self.contrast, self.folder, self.progress = prepared, contrast, folder, progress
        self._known: dict[tuple[str, tuple[Head, ...]], np.ndarray] = {}

    def effects(self, side: str, sets: Sequence[Sequence[Head]]) -> np.ndarray:
        """What each set brings, or takes away, `[problem, set]`: against a run beside it with nothing opened, or closed."""
        asked = [(side, tuple(sorted(each))) for each in sets]
        new = [each for each in dict.fromkeys(asked) if each not in self._known]
        if new:
            info, closed = self.prepared.model.info, side == "necessary"
            names = [named(heads) for _, heads in new]
            values = gated_outcomes(
                self.prepared,
                torch.stack([gate_row(heads, info, closed=closed) for heads in ((), *(heads for _, heads in new))]),
                label=f"{side} sets",
                settings={"side": side, "sets": names, "contrast": self.contrast.name},
                contrast=self.contrast,
                options=RunOptions(kept_file(self.folder, side, names, digest_of(self.prepared.pairs)), self.progress),
            )
            sign = -1 if closed else 1
            self._known |= zip(new, (sign * (values[:, 1:] - values[:, :1]) + 0.0).T, strict=True)
        found = np.array([self._known[each] for each in asked])
        return found.reshape(len(sets), len(self.prepared.ids)).T


@dataclass(frozen=True)
class _Way:
    """How a set is looked for: what it must reach, and how little is no step of its own; both in the outcome's unit."""

    direction: float
    target: float
    little: float

    def _medians(self, measured: _Measured, side: str, sets: Sequence[Sequence[Head]]) -> np.ndarray:
        return np.median(self.direction * measured.effects(side, sets), axis=0)

    def in_doubt(self, measured: _Measured, candidates: Sequence[Head]) -> tuple[Head, ...]:
        """The candidates by what each does alone, open or closed; those that do little stay in their order behind."""
        alone = np.max([self._medians(measured, side, [(head,) for head in candidates]) for side in SIDES], axis=0)
        return tuple(candidates[at] for at in np.argsort(-np.where(alone > self.little, alone, 0), kind="stable"))

    def found(
        self, measured: _Measured, side: str, order: Sequence[Head], most: int
    ) -> tuple[list[tuple[Head, ...]], tuple[Head, ...]]:
        """The sets on the way, and the set: empty where none was found."""
        chosen: tuple[Head, ...] = ()
        waiting, steps, best = list(order), [], 0.0
        while best < self.target and waiting and len(chosen) < most:
            medians = self._medians(measured, side, [(*chosen, head) for head in waiting])
            at = int(np.argmax(medians)) if float(medians.max()) > best + self.little else 0
            chosen, best = (*chosen, waiting.pop(at)), float(medians[at])
            steps.append(chosen)
        if best < self.target:
            return steps, ()
        while len(chosen) > 1:
            fewer = [tuple(head for head in chosen if head != left) for left in chosen]
            medians = self._medians(measured, side, fewer)
            if not float(medians.max()) >= self.target:
                break
            chosen = fewer[int(np.argmax(medians))]
            steps.append(chosen)
        return steps, chosen

    def swaps(
        self, measured: _Measured, side: str, chosen: Sequence[Head], order: Sequence[Head]
    ) -> list[tuple[Head, ...]]:
        """The sets with one member replaced by another candidate that reach the target too."""
        others = [head for head in order if head not in set(chosen)]
        tried = [tuple(other if head == left else head for head in chosen) for left in chosen for other in others]
        medians = self._medians(measured, side, tried) if tried else np.zeros(0)
        return [each for each, median in zip(tried, medians, strict=True) if median >= self.target]


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
        """The share of the total that effects `[problem, cell]` are, with exact limits; NaN where none is established."""
        if not effects.shape[1]:
            nothing = np.zeros(0)
            return Interval(nothing, nothing, nothing, nothing, nothing, nothing, self.confidence, "sign test")
        return self.wholes[fresh].share(effects)

    @cached_property
    def test(self) -> Prevalence:
        """In how many fresh problems the set does more than `share` of that problem's own effect, if it has one of that
        sign."""
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
            tried = f"none of up to {max(map(len, self.steps))} of these {count_of(len(self.candidates), 'head')}"
            return f"No {one} set: {tried} reaches {asked} of the median effect."
        row, fresh = self.table().query("set == 'step'").iloc[-1], count_of(len(self.fresh_ids), "fresh problem")
        told = f"{one.capitalize()}: {listed(self.heads)} {SIDES[one][len(self.heads) == 1]}"
        told += f" {share_of(row['share'])} of the effect where found, "
        if not self.established[1]:
            return f"{told}but on {fresh} such an effect is not established, so nothing is tested there."
        own = f"more than {asked} of the problem's own effect in {int(self.test.count[0, 0])} of them"
        return f"{told}{share_words(row, 'fresh_share')} on {fresh}, with {own} (p = {self.p:.2g}, for this set alone)."

    def details(self) -> list[str]:
        """Return what random sets do, and which heads can stand in."""
        found = []
        if self.found and self.sets and self.established[1]:
            middle = share_of(float(np.median(np.asarray(self.shares(self.random, fresh=True).estimate))))
            random = f"{count_of(len(self.sets), 'random set')} of the same layers and size: {middle} (median)"
            found.append(f"{random}, {self.n_as_large or 'none'} as much (p = {self.p_random:.2g}).")
        return [*found, *(f"In place of {head}: {listed(others)} too." for head, others in self.stand_ins.items())]

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
