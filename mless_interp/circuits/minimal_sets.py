"""Sets of heads that suffice, and sets that are needed: for heads that stand in for each other, or act only together."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from ..core.arguments import Arguments, check_count, checked, count_of, listed
from ..core.heads import Head
from ..models.base import Model, refuse_without_gradients
from ..patching.attribution import HeadAttribution, attribute_heads
from ..patching.effect import SMALLEST_EFFECT, WHOLE, Effect, share_words
from ..patching.knockouts import cutting, gate_row, gated_outcomes, random_sets
from ..patching.outcomes import Outcome
from ..patching.prepared import Prepared, Settings, prepare
from ..prompts.conditions import Contrast
from ..prompts.pairs import PromptPair, digest_of
from ..runtime.columns import columns_of
from ..runtime.folders import savable
from ..runtime.loop import RunOptions
from ..runtime.results import Quantity, Result, Shown, ShownTable, interval_columns, of_heads
from ..statistics import CONFIDENCE, Interval, Prevalence, derive_generator, fewest_problems, holm, prevalence_test
from .cells import Asked, heads_of, named_on, named_words
from .locate import fresh_problems

SHARE = 0.8
"""How much of the median effect a set must bring, or take away."""
MAX_HEADS = 16
"""How far a set is grown."""
N_CANDIDATES = 32
"""Of all heads, the best by gate gradient are tried."""
SIDES = ("sufficient", "necessary")
Members = tuple[Head, ...]


@checked
def minimal_sets(
    model: Model,
    pairs: Iterable[PromptPair] | Prepared,
    heads: Asked | None = None,
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
    r"""Find the fewest heads whose sight of the span suffices, and the fewest whose blinding removes the effect.

    Whole sets $S$ are opened where nobody else sees the span, and closed where everybody else does:

    $$ \Delta^{\text{suff}}_p(S) = Y_p^{\,\text{only } S \text{ sees}} - Y_p^{\,\text{nobody sees}}, \qquad
       \Delta^{\text{nec}}_p(S) = Y_p^{\,\text{all see}} - Y_p^{\,\text{all but } S \text{ see}} $$

    A set is found where the median over problems is `share` or more of the median total effect. Of two heads of which each is
    enough (OR) either is sufficient, both are necessary; of two that are needed (AND) both are sufficient, either is necessary.

    Each set grows by the head that adds most; where none adds more than 5 % of the effect (as when two act only together), by
    what each does alone, then by the gate gradient. It is pruned as long as the rest reaches the share; a smaller set can be
    missed. Stand-ins are candidates that reach the share in the place of a member. On fresh problems each set is tested to do
    more than `share` of the problem's own effect in most problems (Holm over both sets), and ranked among `n_random_sets` sets
    of the same size and layers.

    Parameters
    ----------
    heads : candidates: zero-based heads, or what `locate_heads` gave (its named heads). Default: the 32 best of all heads by
        gate gradient. Mediators, having no sight of the span, are in no set.
    fresh : problems to confirm on, none of them among `pairs`. Default: every second one of `pairs` is kept for that.
    contrast : "content"; "computed", what is opened and closed is then the span's sight of the question; "replaced", a closed
        head writes what it does in the clean run.
    share : of the median effect, above 0 and at most 1.
    max_heads : how far a set is grown.
    checkpoint : a folder that keeps each finished problem; started again with the same settings the run goes on there.

    A set that was not found has no heads, and NaN in the tables. Raises `ValueError` before anything runs for fewer problems
    than could show anything (6 to find, 6 to confirm), `ModelError` where no gradients can be had.

    Source: methods §8.1; Wang et al. (2211.00593), Shi et al. (2410.13032) | differs in: attention to the span is what a set
    has or lacks, not the heads themselves.
    """
    between, options = cutting(contrast), RunOptions(checkpoint, progress, seed)
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
    kept: Arguments = {"checkpoint": options.part("gates").checkpoint, "progress": progress}
    method = "gate_ig" if between.cuts else "atp"
    gradients = attribute_heads(
        model, search, method=method, contrast=contrast, outcome=search.outcome, verify=0, **kept
    )
    candidates = _by_gradient(gradients, given or model.info.heads)[: None if given else N_CANDIDATES]
    here, there = (_Measured(each, between, options) for each in (search, other))
    total, fresh_total = (each.effects("sufficient", [model.info.heads])[:, 0] for each in (here, there))
    whole = Effect(total, rounding=model.resolution, groups=search.groups)
    size = abs(float(whole.median.estimate))
    way = _Search(here, whole.direction, share * size, SMALLEST_EFFECT * size)
    order = way.in_doubt(candidates) if whole.established else candidates
    made: dict[str, HeadSet] = {}
    for side in SIDES:
        steps, chosen = way.found(side, order, max_heads) if whole.established else ((), ())
        swaps = way.swaps(side, chosen, order)
        others = random_sets(chosen, model.info, n_random_sets, seed=seed) if chosen else ()
        tried = (*steps, *swaps)
        on_fresh, random = np.split(there.effects(side, [*tried, *others]), [len(tried)], axis=1)
        made[side] = HeadSet(side, chosen, steps, swaps, here.effects(side, tried), on_fresh, others, random)
    settings: Settings = {"contrast": contrast, "max_heads": max_heads, "n_random_sets": n_random_sets, "seed": seed}
    settings |= {**named_on(heads, other.ids), "fresh_prompts": digest_of(other.pairs), "n_fresh": len(other.ids)}
    return MinimalSets(
        fresh_ids=other.ids,
        fresh_groups=other.groups,
        candidates=order,
        scores=of_heads(gradients.scores, order),
        total=total,
        fresh_total=fresh_total,
        sufficient=made["sufficient"],
        necessary=made["necessary"],
        share=share,
        seed=seed,
        **search.fields(settings),
    )


def halves(prepared: Prepared, fresh: Iterable[PromptPair] | Prepared | None) -> tuple[Prepared, Prepared]:
    """The problems to search and those to confirm on: fresh ones, checked to be so, or every second one."""
    if fresh is not None:
        return prepared, fresh_problems(prepare(prepared.model, fresh, prepared.outcome), prepared)
    return prepared.halves()


def _by_gradient(found: HeadAttribution, heads: Sequence[Head]) -> Members:
    """The heads by the largest of what the gate gradients say: the integral, and both estimates at its ends (medians)."""
    estimates = [each for each in (found.scores, found.knockout, found.edge_noise) if each is not None]
    size = np.max([np.abs(np.median(of_heads(each, heads), axis=0)) for each in estimates], axis=0)
    return tuple(heads[at] for at in np.argsort(-size, kind="stable"))


class _Measured:
    """What sets of heads do on some problems: each measured once. Short-lived."""

    def __init__(self, prepared: Prepared, contrast: Contrast, options: RunOptions) -> None:
        self.prepared, self.contrast, self.options = prepared, contrast, options
        self._known: dict[tuple[str, Members], np.ndarray] = {}

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
                options=self.options.part(side, names, digest_of(self.prepared.pairs)),
            )
            sign = -1 if closed else 1
            self._known |= zip(new, (sign * (values[:, 1:] - values[:, :1]) + 0.0).T, strict=True)
        found = np.array([self._known[each] for each in asked])
        return found.reshape(len(sets), len(self.prepared.ids)).T


@dataclass(frozen=True)
class _Search:
    """How a set is looked for: what it must reach, and how little is no step of its own; both in the outcome's unit."""

    measured: _Measured
    direction: float
    target: float
    little: float

    def _medians(self, side: str, sets: Sequence[Members]) -> np.ndarray:
        return np.median(self.direction * self.measured.effects(side, sets), axis=0) if sets else np.zeros(0)

    def in_doubt(self, candidates: Sequence[Head]) -> Members:
        """The candidates by what each does alone, open or closed; those that do little stay in their order behind."""
        alone = np.max([self._medians(side, [(head,) for head in candidates]) for side in SIDES], axis=0)
        return tuple(candidates[at] for at in np.argsort(-np.where(alone > self.little, alone, 0), kind="stable"))

    def found(self, side: str, order: Sequence[Head], most: int) -> tuple[tuple[Members, ...], Members]:
        """The sets on the way, and the set: empty where none was found."""
        chosen: Members = ()
        waiting, steps, best = list(order), [], 0.0
        while best < self.target and waiting and len(chosen) < most:
            medians = self._medians(side, [(*chosen, head) for head in waiting])
            at = int(np.argmax(medians)) if float(medians.max()) > best + self.little else 0
            chosen, best = (*chosen, waiting.pop(at)), float(medians[at])
            steps.append(chosen)
        if best < self.target:
            return tuple(steps), ()
        while len(chosen) > 1:
            fewer = [tuple(head for head in chosen if head != left) for left in chosen]
            medians = self._medians(side, fewer)
            if not float(medians.max()) >= self.target:
                break
            chosen = fewer[int(np.argmax(medians))]
            steps.append(chosen)
        return tuple(steps), chosen

    def swaps(self, side: str, chosen: Members, order: Sequence[Head]) -> tuple[Members, ...]:
        """The sets with one member replaced by another candidate that reach the target too."""
        others = [head for head in order if head not in chosen]
        tried = [tuple(other if head == left else head for head in chosen) for left in chosen for other in others]
        return tuple(
            each for each, median in zip(tried, self._medians(side, tried), strict=True) if median >= self.target
        )


@savable
@dataclass(frozen=True, eq=False)
class HeadSet:
    """One set of heads that `minimal_sets` looked for, `side` "sufficient" or "necessary"; no `heads` where there is none.

    `steps` are the sets on the way: grown head by head, then with heads left out again; `swaps` are sets with one member
    replaced that do as well. `effects` `[problem, step or swap]` is what each does on the problems of the search, `fresh` on
    others; `random` `[fresh, set]` what `sets`, others of the same size and layers, do.
    """

    side: str
    heads: Members
    steps: tuple[Members, ...]
    swaps: tuple[Members, ...]
    effects: np.ndarray
    fresh: np.ndarray
    sets: tuple[Members, ...]
    random: np.ndarray

    @property
    def own(self) -> np.ndarray:
        """What the set does on the fresh problems, `[fresh]`; NaN where there is none."""
        return self.fresh[:, len(self.steps) - 1] if self.heads else np.full(len(self.fresh), np.nan)

    @property
    def stand_ins(self) -> dict[Head, Members]:
        """Member -> the heads of which each, in its place, reaches the share too on the problems of the search."""
        stands: dict[Head, Members] = {}
        for one in self.swaps:
            (member,), (other,) = set(self.heads) - set(one), set(one) - set(self.heads)
            stands[member] = (*stands.get(member, ()), other)
        return {head: stands[head] for head in self.heads if head in stands}


@dataclass(frozen=True, eq=False, repr=False)
class MinimalSets(Result):
    """A sufficient and a necessary set of heads (`HeadSet`), from the same candidates.

    Effects are parts of `total` `[problem]`, on the problems of the search, and of `fresh_total` `[fresh]`, on those of
    `fresh_ids` (in `fresh_groups`). `scores` `[problem, candidate]`: the candidates' gate gradients.
    """

    problem_ids: tuple[str, ...]
    fresh_ids: tuple[str, ...]
    candidates: Members
    scores: np.ndarray
    total: np.ndarray
    fresh_total: np.ndarray
    sufficient: HeadSet
    necessary: HeadSet
    unit: str
    share: float
    settings: Settings = field(default_factory=dict)
    seed: int = 0
    confidence: float = CONFIDENCE
    resolution: float = 0.0
    fresh_groups: tuple[str, ...] = field(default=(), kw_only=True)

    picture = "set_growth"
    columns = columns_of("""
        fresh_share | share on fresh problems | share | what the set brings there / median effect
        p_random | p, random sets | p | rank among random sets of the same size and layers, on fresh problems
        random_share | share of random sets | share | median over them, on fresh problems
        changed | changed | | heads that came (+) and went (-)
    """)
    axes = (("scores", "problem candidate"), ("total", "problem"), ("fresh_total", "fresh"))
    drawn = ("fresh_share", "share")

    @property
    def both(self) -> tuple[HeadSet, HeadSet]:
        return self.sufficient, self.necessary

    @cached_property
    def wholes(self) -> tuple[Effect, Effect]:
        """The total effect where sets were sought, and on the fresh problems, where its sign is claimed."""
        here = Effect(self.total, self.confidence, rounding=self.resolution, groups=self.groups)
        return here, replace(here, total=self.fresh_total, claimed=here.direction, groups=self.fresh_groups)

    @property
    def established(self) -> tuple[bool, bool]:
        """Whether most problems show a total effect of this sign: where sets were sought, and on the fresh ones."""
        return self.wholes[0].established, self.wholes[1].established

    def shares(self, effects: np.ndarray, *, fresh: bool) -> Interval:
        """The share of the total that effects `[problem, cell]` are, with exact limits; NaN where none is established."""
        return self.wholes[fresh].share(effects)

    def test(self, each: HeadSet) -> Prevalence:
        """In how many fresh problems a set does more than `share` of that problem's own effect, if it has one of that sign."""
        there = self.wholes[1]
        whole, own = there.turned(self.fresh_total), there.turned(each.own)
        more = there.units(np.minimum(own - self.share * whole, whole)[:, None])
        return prevalence_test(more, there.rounding, senses=(1,), tested=np.array([there.established]))

    @property
    def p(self) -> np.ndarray:
        """Corrected p of both sets, `[side]`: do they reach the share of the problem's own effect in most fresh problems?"""
        return holm(np.array([float(self.test(each).p[0, 0]) for each in self.both]))

    @property
    def confirmed(self) -> dict[str, bool]:
        """Whether each set is shown to do its share in most fresh problems."""
        sure = np.nan_to_num(self.p, nan=1.0) < 1 - self.confidence
        return {each.side: bool(shown) for each, shown in zip(self.both, sure, strict=True)}

    def p_random(self, each: HeadSet) -> float:
        """Rank of a set's median effect among those of sets of the same size and layers, itself included."""
        as_large = count_as_large(self.wholes[1], each.own, each.random)
        return (1 + as_large) / (1 + len(each.sets)) if each.sets else float("nan")

    def growth(self, each: HeadSet) -> pd.DataFrame:
        """One row per set that was tried, the steps in order, then the swaps: `share` of the total effect where it was sought,
        `fresh_share` on the other problems, both with limits; `changed` says which head came or went."""
        every = [*each.steps, *each.swaps]
        before = [*((), *each.steps)[: len(each.steps)], *(each.heads for _ in each.swaps)]
        columns = {
            "set": ["step"] * len(each.steps) + ["swap"] * len(each.swaps),
            "changed": [changed(*both) for both in zip(before, every, strict=True)],
            "n_heads": [len(heads) for heads in every],
            "heads": [named(heads) for heads in every],
        }
        for name, effects, fresh in (("share", each.effects, False), ("fresh_share", each.fresh, True)):
            columns |= interval_columns(name, self.shares(effects, fresh=fresh))
        return pd.DataFrame(columns)

    def table(self) -> pd.DataFrame:
        """One row per set: its heads, the share reached on either half with limits, k of n fresh problems with corrected p,
        and the rank among random sets; NaN where there is no such set."""
        rows = []
        for each, p in zip(self.both, self.p, strict=True):
            test, grown = self.test(each), self.growth(each).drop(columns=["set", "changed", "n_heads", "heads"])
            reached = grown.iloc[len(each.steps) - 1] if each.heads else dict.fromkeys(grown, np.nan)
            random = self.shares(each.random, fresh=True).estimate
            row = {"side": each.side, "heads": named(each.heads), "n_heads": len(each.heads), **reached}
            row |= {"k": int(test.count[0, 0]), "n": int(test.n[0]), "p_corrected": float(p)}
            row |= {"confirmed": self.confirmed[each.side], "p_random": self.p_random(each)}
            rows.append({**row, "random_share": float(np.median(random)) if each.sets else np.nan})
        return pd.DataFrame(rows)

    def quantity(self, column: str) -> Quantity:
        """Shares of the whole effect."""
        return Quantity(WHOLE, True, (f"{column}_ci_low", f"{column}_ci_high"), "p_corrected")

    def to_frame(self) -> pd.DataFrame:
        """One tidy row per set that was measured and problem, of both sides and both halves (`half`: "search" or "fresh")."""
        frames = [pd.DataFrame(columns=["side", "half", "set", "heads", "problem", "effect", "total"])]
        for each in self.both:
            tried = [*(("step", heads) for heads in each.steps), *(("swap", heads) for heads in each.swaps)]
            fresh = [*tried, *(("random", heads) for heads in each.sets)]
            for half, ids, total, sets, effects in (
                ("search", self.problem_ids, self.total, tried, each.effects),
                ("fresh", self.fresh_ids, self.fresh_total, fresh, np.c_[each.fresh, each.random]),
            ):
                for (kind, heads), effect in zip(sets, effects.T, strict=True):
                    of = {"side": each.side, "half": half, "set": kind, "heads": named(heads)}
                    frames.append(pd.DataFrame({**of, "problem": ids, "effect": effect, "total": total}))
        return pd.concat(frames[len(frames) > 1 :], ignore_index=True)

    def headline(self) -> str:
        """Return which heads suffice and which are needed, and whether fresh problems confirm it."""
        told = []
        for each in self.both:
            sure = f"{'' if self.confirmed[each.side] else 'not '}confirmed on fresh problems"
            told.append(f"{each.side}: {listed(each.heads)} ({sure})" if each.heads else f"{each.side}: no set")
        short = "; ".join(told)
        return f"{short[0].upper()}{short[1:]}."

    def details(self) -> list[str]:
        """Return what each set does, why there is none, and which heads can stand in."""
        found, asked, (here, there) = [], f"{100 * self.share:z.0f} %", self.established
        for each, row in zip(self.both, self.table().to_dict("records"), strict=True):
            if not here:
                found.append(f"No {each.side} set: most problems do not show an effect of one sign.")
            elif not each.heads:
                tried = f"none of up to {max(map(len, each.steps))} of these {count_of(len(self.candidates), 'head')}"
                found.append(f"No {each.side} set: {tried} reaches {asked} of the median effect.")
            else:
                where = f"{share_words(row, 'fresh_share')} on {count_of(len(self.fresh_ids), 'fresh problem')}"
                where = where if there else "on fresh problems no such effect is established"
                found.append(f"{each.side.capitalize()}, of the effect: {share_words(row)} where found, {where}.")
            found += [f"In place of {head}: {listed(others)} too." for head, others in each.stand_ins.items()]
        return [*found, *named_words(self.settings)]

    def shown(self) -> Shown:
        """Both sets, and the steps of each."""
        tables = [ShownTable(self.table(), "The sets; shares are of the whole effect.")]
        how = "How the {} set was found, and what would do in its place."
        tables += [ShownTable(self.growth(each), how.format(each.side)) for each in self.both if each.steps]
        return Shown(tuple(tables))

    def printed(self) -> pd.DataFrame:
        """Both sets in a row each."""
        columns = ["side", "n_heads", "share", "fresh_share", "k", "n", "p_corrected", "p_random", "heads"]
        return self.table()[columns]


def count_as_large(whole: Effect, own: np.ndarray, random: np.ndarray) -> int:
    """Random sets, effects `[problem, set]`, whose median is as large as a set's own, `[problem]`."""
    mine, others = (whole.cell_medians(whole.turned(each)).estimate for each in (own, random))
    return int((others >= mine - whole.rounding).sum())


def named(heads: Sequence[Head]) -> str:
    """A set as a table has it."""
    return " ".join(map(str, heads))


def changed(before: Sequence[Head], after: Sequence[Head]) -> str:
    """What came (+) and went (-) from one set to another: `+L0H2 -L0H5`."""
    came, went = ([head for head in one if head not in other] for one, other in ((after, before), (before, after)))
    return " ".join([*(f"+{head}" for head in came), *(f"-{head}" for head in went)])
