"""The experiment that names heads: exact sweeps in both directions, controls, corrected statistics."""

import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..heads import Head, check_heads
from ..models.base import Model
from ..models.gradients import no_gradients_because, refuse_without_gradients
from ..models.info import ModelError
from ..patching.attribution import attribute_heads
from ..patching.outcomes import OUTCOMES, resolution_of
from ..patching.scores import PatchScores
from ..patching.sweep import checked_pairs, patch_heads
from ..prompts.pairs import PromptPair
from ..statistics import max_t_sign_flip
from .control import check_controls, gap_alone, measures, other_insertions, readers_together, specificity
from .located import MEASURES, LocatedHeads, established

N_SCREENED = 64
FEWEST_TO_SPLIT = 8


def locate_heads(
    model: Model,
    pairs: Iterable[PromptPair],
    *,
    outcome: str = "answer_logprob",
    heads: Iterable[Head] | None = None,
    alpha: float = 0.05,
    smallest_effect: float = 0.05,
    mode: str = "auto",
    budget_seconds: float = 3600.0,
    n_permutations: int = 10_000,
    n_control_draws: int = 5,
    n_random_sets: int = 100,
    controls: bool = True,
    checkpoint: str | Path | None = None,
    progress: bool = True,
    seed: int = 0,
) -> "LocatedHeads":
    """Name the heads that carry the insertion's content effect: readers, mediators, and whether they are specific.

    All four measures have the sign of the insertion's own effect, per problem and head: `knockout` (what cutting this
    head's sight of the span removes), `edge_noise` (what its sight alone adds to a run that cannot see the span), and the
    upstream-mediated parts `mediated_removed`, `mediated_added` (z patch minus direct read, denoising and noising; exactly
    0 in layer 0, which is not tested for it).

    A head is a *reader* if knockout and edge_noise both are significant (max-T over all tested heads, whole problems
    flipped), agree in sign and reach `smallest_effect` x |total content effect|; a *mediator* if both mediated parts do.
    It is *specific* if its effect also exceeds, paired and corrected over the named heads, that of random sentences of
    the same length (mean of `n_control_draws`) and, for a reader, of a knockout of as much attention elsewhere. If the
    interval of the total content effect holds 0, no head is named.

    Other controls are reported, and decide nothing: a repeated word in place of the insertion (Mful); the gap alone (the
    shift contrast: what the change of positions does with nothing inserted, and each named head's part in it); and the
    readers knocked out together, against `n_random_sets` random sets of the same layers and against the sum of their
    single knockouts.

    Parameters
    ----------
    mode : "exact" sweeps all `heads` on all problems; "screen" ranks heads by gradients on one half of the problems and
        tests the best 64 on the other; "auto" sweeps exactly where that stays within `budget_seconds`, estimated from
        small sweeps over all layers of the first problem. The result says which was done and why.
    controls : False leaves all controls out (`specific` is then unknown).
    checkpoint : folder for the sweeps' partial results; a run started again with the same settings goes on from there.

    Source: methods §8; single-step max-T of Westfall & Young (1993). Differs from a plain patching sweep in that the
    problem is the unit of replication and every claim is about both directions.
    """
    if mode not in ("auto", "exact", "screen"):
        raise ValueError(f'mode must be "auto", "exact" or "screen", got {mode!r}')
    allowed = ", ".join(name for name, known in OUTCOMES.items() if not known.needs_clean)
    if outcome not in OUTCOMES:
        raise ValueError(f"unknown outcome {outcome!r}; heads are located on one of {allowed}")
    if OUTCOMES[outcome].needs_clean:
        raise ValueError(
            f"{outcome!r} is never negative, so its sign cannot be tested: locate heads on one of {allowed}"
        )
    if not 0 < alpha < 1 or smallest_effect < 0:
        raise ValueError(
            f"alpha must lie in (0, 1) and smallest_effect be 0 or more, got {alpha} and {smallest_effect}"
        )
    if controls and n_control_draws < 1:
        raise ValueError(
            f"n_control_draws must be 1 or more, got {n_control_draws}; controls=False leaves controls out"
        )
    if n_random_sets < 0:
        raise ValueError(f"n_random_sets must be 0 or more, got {n_random_sets}")
    if not budget_seconds >= 0:
        raise ValueError(f"budget_seconds must be 0 or more, got {budget_seconds}")
    bare = checked_pairs(pairs)
    if len(bare) < 2:
        raise ValueError(f"locating heads needs at least 2 problems (the unit of replication), got {len(bare)}")
    if controls:
        check_controls(bare)
    family = check_heads(
        model.info.heads if heads is None else heads, n_layers=model.info.n_layers, n_heads=model.info.n_heads
    )
    if not family:
        raise ValueError("there are no heads to locate: heads is empty")
    OUTCOMES[outcome].check([pair.answered(OUTCOMES[outcome].appended) for pair in bare])
    folder = None if checkpoint is None else Path(checkpoint)
    exact, why, seconds = _chosen_mode(model, bare, family, outcome, mode, budget_seconds)
    screened: tuple[Head, ...] | None = None
    n_candidates = len(family)
    if not exact:
        discovery, bare = bare[::2], bare[1::2]
        family = screened = _screen(model, discovery, family, outcome, progress)

    def sweep(name: str, pairs: Sequence[PromptPair], over: Sequence[Head], **options: Any) -> PatchScores:
        file = None if folder is None else folder / f"{name}.jsonl"
        return patch_heads(
            model, pairs, heads=over, outcome=outcome, checkpoint=file, progress=progress, seed=seed, **options
        )

    measured = measures(sweep, "mless", bare, family)
    total = measured.total
    stands = established(total, resolution=resolution_of(model.info.dtype), seed=seed)
    verdict = judged(
        measured.values,
        family,
        alpha=alpha,
        smallest=smallest_effect * abs(float(total.mean())),
        n_permutations=n_permutations,
        seed=seed,
    )
    readers, mediators = verdict.readers & stands, verdict.mediators & stands
    named = tuple(head for head, r, m in zip(family, readers, mediators, strict=True) if r or m)
    controlled: dict[str, np.ndarray] = {}
    mful_left_out, joint = None, None
    if controls:
        controlled = gap_alone(sweep, bare, named, family[0])
    if controls and named:
        others, mful_left_out = other_insertions(model, sweep, bare, named, n_control_draws, seed)
        controlled |= others
        joint = readers_together(
            model,
            bare,
            [head for head, reads in zip(family, readers, strict=True) if reads],
            measured.values["knockout"][:, readers],
            outcome=outcome,
            n_random_sets=n_random_sets,
            folder=folder,
            progress=progress,
            seed=seed,
        )
    specific, p_specific = specificity(
        measured.values,
        family,
        named,
        readers,
        controlled,
        alpha=alpha,
        n_permutations=n_permutations,
        seed=seed,
    )
    return LocatedHeads(
        problem_ids=tuple(pair.id for pair in bare),
        heads=family,
        values={name: measured.values[name] for name in MEASURES},
        total=total,
        readers=readers,
        mediators=mediators,
        p_reader=np.maximum(verdict.p["knockout"], verdict.p["edge_noise"]),
        p_mediator=np.maximum(verdict.p["mediated_removed"], verdict.p["mediated_added"]),
        tested=np.isfinite(verdict.p["knockout"]),
        specific=specific,
        patches=measured.patches,
        controls=controlled,
        unit=OUTCOMES[outcome].unit,
        settings={
            "model": model.info.name,
            "backend": model.info.backend,
            "outcome": outcome,
            "insertion": bare[0].insertion.label,
            "alpha": alpha,
            "smallest_effect": smallest_effect,
            "n_permutations": n_permutations,
            "n_control_draws": n_control_draws if controls else 0,
            "n_random_sets": n_random_sets if controls else 0,
            "mful_left_out": mful_left_out,
            "swept": "all heads on all problems, exactly"
            if exact
            else "heads screened on the other half of the problems",
            "why": why,
            "estimated_seconds": seconds,
            "budget_seconds": budget_seconds if mode == "auto" else None,
            "n_candidates": n_candidates,
            "resolution": resolution_of(model.info.dtype),
            "screened": None if screened is None else [str(head) for head in screened],
        },
        seed=seed,
        p_specific=p_specific,
        joint=joint,
    )


def _tested(values: np.ndarray, heads: Sequence[Head], measure: str) -> np.ndarray:
    """Cells of the family: in layer 0 nothing can be mediated, and an effect that never varies cannot be tested."""
    defined = np.isfinite(values).all(0)
    deeper = (
        np.array([head.layer > 0 for head in heads]) if measure.startswith("mediated") else np.ones(len(heads), bool)
    )
    varies = np.ptp(np.where(np.isfinite(values), values, 0), axis=0) > 0
    return defined & deeper & varies


@dataclass(frozen=True, eq=False)
class Verdict:
    """What the tests say of every head of a family: corrected p-values per measure (NaN: not tested) and the kinds."""

    p: dict[str, np.ndarray]
    readers: np.ndarray
    mediators: np.ndarray


def judged(
    values: dict[str, np.ndarray],
    heads: Sequence[Head],
    *,
    alpha: float = 0.05,
    smallest: float = 0.0,
    n_permutations: int = 10_000,
    seed: int = 0,
) -> Verdict:
    """The statistics of `locate_heads`, from measures `[problem, head]` on: one max-T test each over the whole family."""
    p = {}
    for name in MEASURES:
        tested = _tested(values[name], heads, name)
        p[name] = np.full(len(heads), np.nan)
        if tested.any():
            test = max_t_sign_flip(values[name], n_permutations=n_permutations, seed=seed, alpha=alpha, tested=tested)
            p[name] = test.p_corrected

    def passing(first: str, second: str) -> np.ndarray:
        means = values[first].mean(0), values[second].mean(0)
        agree = np.sign(means[0]) == np.sign(means[1])
        for name, mean in zip((first, second), means, strict=True):
            agree = agree & (np.nan_to_num(p[name], nan=1.0) < alpha) & (np.abs(mean) >= smallest)
        return agree

    return Verdict(p, passing("knockout", "edge_noise"), passing("mediated_removed", "mediated_added"))


def _chosen_mode(
    model: Model, pairs: Sequence[PromptPair], heads: Sequence[Head], outcome: str, mode: str, budget: float
) -> tuple[bool, str, float | None]:
    """(whether to sweep exactly, why, the estimated seconds of the four sweeps if there was an estimate)."""
    seconds = None
    if mode == "exact":
        return True, "as asked for", seconds
    if mode == "auto":
        if len(heads) <= N_SCREENED:
            return True, f"{len(heads)} heads, no more than screening would keep ({N_SCREENED})", seconds
        seconds = estimated_seconds(model, pairs, heads, outcome)
        estimate = f"the four exact sweeps are estimated at {_duration(seconds)}"
        if seconds <= budget:
            return True, f"{estimate}, within the budget of {_duration(budget)}", seconds
        why = f"{estimate}, above the budget of {_duration(budget)}"
        ways = f"{why}; raise budget_seconds, or choose mode='exact' to sweep whatever it takes"
        obstacle = no_gradients_because(model)
        if obstacle is not None:
            raise ModelError(f"heads cannot be screened: {obstacle}. But {ways}")
    else:
        refuse_without_gradients(model, 'locate_heads(mode="screen")')
        why, ways = "as asked for", "choose mode='exact'"
    if len(pairs) < FEWEST_TO_SPLIT:
        raise ValueError(
            f"screening splits the problems in two halves and needs at least {FEWEST_TO_SPLIT}, got {len(pairs)}: give "
            f"more problems. {ways[0].upper()}{ways[1:]}"
        )
    return False, why, seconds


def estimated_seconds(
    model: Model,
    pairs: Sequence[PromptPair],
    heads: Sequence[Head],
    outcome: str,
    *,
    clock: Callable[[], float] | None = None,
) -> float:
    """Seconds that the four exact sweeps over all problems would take, from small sweeps of the first problem.

    The sweeps' arithmetic is rows times the layers that remain, so the sample has the same number of heads in each layer
    (first one, then four): the line through the two times has the cost of the two runs as its intercept and that of a
    head as its slope. Problems count by their tokens after the insertion.
    """
    now = clock or time.perf_counter
    layers: dict[int, list[Head]] = {}
    for head in heads:
        layers.setdefault(head.layer, []).append(head)

    def timed(per_layer: int) -> tuple[int, float]:
        sample = [head for members in layers.values() for head in members[:per_layer]]
        began = now()
        patch_heads(model, pairs[:1], heads=sample, edit="knockout", outcome=outcome, progress=False)
        return len(sample), now() - began

    timed(1)  # first calls are slow
    (few, short), (many, long) = timed(1), timed(4)
    each = max(long - short, 0.0) / (many - few) if many > few else short / few
    one = max(short - each * few, 0.0) + each * len(heads)
    share = sum(pair.n_after for pair in pairs) / pairs[0].n_after
    return 4 * one * share


def _duration(seconds: float) -> str:
    if not math.isfinite(seconds):
        return "any length"
    return (
        f"{seconds:.3g} s"
        if seconds < 120
        else f"{seconds / 60:.3g} min"
        if seconds < 7200
        else f"{seconds / 3600:.3g} h"
    )


def _screen(
    model: Model, pairs: Sequence[PromptPair], heads: Sequence[Head], outcome: str, progress: bool
) -> tuple[Head, ...]:
    """The union of the best by gate gradients (readers) and by attribution patching (mediators too), in order."""
    chosen: set[Head] = set()
    asked = set(heads)
    for method in ("gate_ig", "atp"):
        ranked = attribute_heads(model, pairs, method=method, outcome=outcome, verify=0, progress=progress).ranking()
        chosen |= set([head for head in ranked if head in asked][: N_SCREENED // 2])
    return tuple(sorted(chosen))
