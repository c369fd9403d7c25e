"""Sets of heads that suffice, and sets that are needed: for heads that stand in for each other, or act only together."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..core.arguments import checked
from ..core.heads import Head
from ..models.base import Model, refuse_without_gradients
from ..patching.attribution import HeadAttribution, attribute_heads
from ..patching.effect import SMALLEST_EFFECT, Effect
from ..patching.joint import count_sets, cutting, gate_row, gated_outcomes, random_sets
from ..patching.outcomes import Outcome
from ..patching.prepared import Prepared, prepare
from ..prompts.conditions import Contrast
from ..prompts.pairs import PromptPair, digest_of
from ..runtime.results import of_heads
from ..statistics import fewest_problems
from ..statistics.arguments import check_count, derive_generator
from .head_sets import SIDES, HeadSet, MinimalSets, named
from .locate import fresh_problems
from .located import LocatedHeads
from .measure import kept_file
from .stream_changes import heads_of, named_on

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
) -> MinimalSets:
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
                checkpoint=kept_file(self.folder, side, names, digest_of(self.prepared.pairs)),
                progress=self.progress,
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
        """The candidates by what each does alone, open or closed; those that do little stay in their order behind.

        Heads that act only together show where one is closed, heads that stand in for each other where one is open.
        """
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
