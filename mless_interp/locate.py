"""The experiment that names heads: exact sweeps in both directions, controls, corrected statistics."""

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from .attribution import attribute_heads
from .heads import Head, check_heads
from .insertions import Insertion, PromptPair, make_pairs
from .interventions import MatchedMassKnockout
from .located import MEASURES, LocatedHeads, established
from .models.base import Model
from .outcomes import OUTCOMES
from .patch_scores import PatchScores
from .patching import checked_pairs, patch_heads
from .statistics import max_t_sign_flip

N_SCREENED = 64


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

    Parameters
    ----------
    mode : "exact" sweeps all `heads` on all problems; "screen" ranks heads by gradients on one half of the problems and
        tests the best 64 on the other; "auto" sweeps exactly where the estimate from one layer stays in `budget_seconds`.
    controls : False leaves out the random sentences, Mful and matched-mass knockouts (`specific` is then unknown).
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
    bare = checked_pairs(pairs)
    if len(bare) < 2:
        raise ValueError(f"locating heads needs at least 2 problems (the unit of replication), got {len(bare)}")
    family = check_heads(
        model.info.heads if heads is None else heads, n_layers=model.info.n_layers, n_heads=model.info.n_heads
    )
    folder = None if checkpoint is None else Path(checkpoint)
    seconds = _estimate(model, bare, family, outcome) if mode == "auto" else None
    exact = mode == "exact" or (seconds is not None and (seconds <= budget_seconds or len(family) <= N_SCREENED))
    screened: tuple[Head, ...] | None = None
    if not exact:
        if len(bare) < 8:
            raise ValueError(f"screening splits the problems in two halves and needs at least 8, got {len(bare)}")
        discovery, bare = bare[::2], bare[1::2]
        family = screened = _screen(model, discovery, family, outcome, progress)

    def sweep(name: str, pairs: Sequence[PromptPair], over: Sequence[Head], **options: Any) -> PatchScores:
        file = None if folder is None else folder / f"{name}.jsonl"
        return patch_heads(
            model, pairs, heads=over, outcome=outcome, checkpoint=file, progress=progress, seed=seed, **options
        )

    measured = _measures(sweep, "mless", bare, family)
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
    controlled: dict[str, Any] = {}
    named = tuple(head for head, r, m in zip(family, readers, mediators, strict=True) if r or m)
    if controls and named:
        controlled = _controls(model, sweep, bare, named, n_control_draws, seed)
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
        specific=_specific(measured.values, family, named, readers, controlled, alpha, n_permutations, seed),
        patches=measured.patches,
        controls={key: value for key, value in controlled.items() if isinstance(value, np.ndarray)},
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
            "swept": "all heads on all problems, exactly"
            if exact
            else "heads screened on the other half of the problems",
            "estimated_seconds": seconds,
            "resolution": resolution_of(model.info.dtype),
            "screened": None if screened is None else [str(head) for head in screened],
        },
        seed=seed,
    )


@dataclass(frozen=True, eq=False)
class _Measured:
    values: dict[str, np.ndarray]
    total: np.ndarray
    patches: PatchScores


def _measures(sweep: Any, name: str, pairs: Sequence[PromptPair], heads: Sequence[Head]) -> _Measured:
    """The four measures `[problem, head]`, each with the sign of the insertion's effect, and the total `[problem]`."""
    layer, head = ([getattr(h, part) for h in heads] for part in ("layer", "head"))
    runs = {
        (edit, direction): sweep(f"{name}-{edit}-{direction}", pairs, heads, edit=edit, direction=direction)
        for edit in ("knockout", "z")
        for direction in ("denoising", "noising")
    }
    sign = {"denoising": -1.0, "noising": 1.0}
    effect = {key: sign[key[1]] * run.effect[:, layer, head] for key, run in runs.items()}
    first = np.array(layer) == 0
    mediated = {d: effect["z", d] - effect["knockout", d] for d in sign}
    for values in mediated.values():
        values[:, first] = 0.0  # I7: exactly, whatever rounding says
    return _Measured(
        {
            "knockout": effect["knockout", "denoising"],
            "edge_noise": effect["knockout", "noising"],
            "mediated_removed": mediated["denoising"],
            "mediated_added": mediated["noising"],
        },
        runs["z", "noising"].total_effect,
        runs["z", "denoising"],
    )


def _tested(values: np.ndarray, heads: Sequence[Head], measure: str) -> np.ndarray:
    """Cells of the family: in layer 0 nothing can be mediated, and an effect of rounding size is no effect."""
    defined = np.isfinite(values).all(0)
    deeper = (
        np.array([head.layer > 0 for head in heads]) if measure.startswith("mediated") else np.ones(len(heads), bool)
    )
    moved = np.abs(np.where(np.isfinite(values), values, 0)).max(0) > 0
    return defined & deeper & moved


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


def resolution_of(dtype: str) -> float:
    """Mean differences of an outcome below this are rounding, not an effect (of sums of logits, in their unit)."""
    return {"float64": 1e-9, "float32": 1e-5}.get(dtype, 1e-2)


def _estimate(model: Model, pairs: Sequence[PromptPair], heads: Sequence[Head], outcome: str) -> float:
    """Seconds that the four exact sweeps would take, from one head set in the middle layer on the first problem."""
    middle = model.info.n_layers // 2
    sample = [head for head in heads if head.layer == middle] or list(heads[:1])
    began = time.perf_counter()
    patch_heads(model, pairs[:1], heads=sample, outcome=outcome, progress=False)
    return (time.perf_counter() - began) * len(heads) / len(sample) * 4 * len(pairs)


def _screen(
    model: Model, pairs: Sequence[PromptPair], heads: Sequence[Head], outcome: str, progress: bool
) -> tuple[Head, ...]:
    """The union of the best by gate gradients (readers) and by attribution patching (mediators too), in order."""
    chosen: set[Head] = set()
    asked = set(heads)
    for method in ("gate_ig", "atp"):
        ranked = attribute_heads(model, pairs, method=method, outcome=outcome, progress=progress).ranking()
        chosen |= set([head for head in ranked if head in asked][: N_SCREENED // 2])
    return tuple(sorted(chosen))


def _controls(
    model: Model, sweep: Any, pairs: Sequence[PromptPair], named: Sequence[Head], draws: int, seed: int
) -> dict[str, Any]:
    """Effects of the named heads under other insertions `[problem, head]`, same place, length and problems."""
    first = pairs[0].insertion
    n_tokens = pairs[0].n_inserted
    place: dict[str, Any] = {"before": first.before, "after": first.after, "at": first.at}
    problems = [pair.problem for pair in pairs]
    template = pairs[0].template

    def under(insertion: Insertion, name: str) -> _Measured:
        return _measures(sweep, name, make_pairs(model, problems, insertion, template=template), named)

    found: dict[str, Any] = {}
    sentences = [
        under(replace(Insertion.random_sentence(n_tokens, seed=seed, draw=draw), **place), f"random-{draw}").values
        for draw in range(draws)
    ]
    for measure in MEASURES:
        found[f"random_{measure}"] = np.mean([values[measure] for values in sentences], axis=0)
    meaningful = Insertion.meaningful("he", n_tokens)
    try:
        mful = under(replace(meaningful, **place), "mful").values
        found |= {f"mful_{measure}": mful[measure] for measure in ("knockout", "mediated_removed")}
    except ValueError as error:
        found["mful_left_out"] = str(error)
    layer, head = ([getattr(h, part) for h in named] for part in ("layer", "head"))
    matched = sweep("matched-mass", pairs, named, edit=MatchedMassKnockout(seed=seed))
    found["matched_mass"] = -matched.effect[:, layer, head]
    return found


def _specific(
    values: dict[str, np.ndarray],
    heads: Sequence[Head],
    named: Sequence[Head],
    readers: np.ndarray,
    controls: dict[str, Any],
    alpha: float,
    n_permutations: int,
    seed: int,
) -> np.ndarray:
    """1 specific, 0 not, NaN unknown or not named, `[head]`: paired, one-sided, max-T over the named heads."""
    found = np.full(len(heads), np.nan)
    if not controls:
        return found
    place = {head: i for i, head in enumerate(heads)}
    margins, matched = [], []
    for at, head in enumerate(named):
        i = place[head]
        measure = "knockout" if readers[i] else "mediated_removed"
        own = values[measure][:, i]
        other = controls[f"random_{measure}"][:, at]
        margins.append(np.sign(own.mean()) * own - np.sign(other.mean()) * other)
        removed = controls["matched_mass"][:, at]
        sure = np.isfinite(removed)
        sign = np.sign(removed[sure].mean()) if sure.any() else 1.0
        matched.append(np.sign(own.mean()) * own - sign * removed if readers[i] else np.full_like(own, np.nan))

    def passes(table: np.ndarray, **options: Any) -> np.ndarray:
        if not _tested(table, named, "knockout").any() and "min_problems" not in options:
            return np.zeros(table.shape[1], bool)
        test = max_t_sign_flip(
            table, alternative="greater", n_permutations=n_permutations, seed=seed, alpha=alpha, **options
        )
        return np.nan_to_num(test.p_corrected, nan=1.0) < alpha

    over_random = passes(np.stack(margins, 1))
    against_mass = np.stack(matched, 1)
    reachable = np.isfinite(against_mass).sum(0) >= max(8, len(against_mass) // 2)
    over_mass = np.ones(len(named), bool)
    if reachable.any():
        over_mass[reachable] = passes(against_mass[:, reachable], min_problems=max(8, len(against_mass) // 2))
    for at, head in enumerate(named):
        found[place[head]] = float(over_random[at] and over_mass[at])
    return found
