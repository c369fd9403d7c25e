"""What a claim about heads is held against: other insertions, other attention, the gap alone, other heads."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ..heads import Head
from ..models.base import Model
from ..patching.interventions import MatchedMassKnockout
from ..patching.joint import JointKnockout, joint_knockout
from ..patching.scores import PatchScores
from ..prompts.insertions import Insertion
from ..prompts.pairs import PromptPair, make_pairs
from ..statistics import max_t_sign_flip
from .located import MEASURES

Sweep = Callable[..., PatchScores]
"""`sweep(name, pairs, heads, **options)`: an exact sweep with its checkpoint."""
LEAST_MATCHED = 8
"""A matched-mass knockout is tested where it is defined on this many problems and on half of them (on all if fewer)."""


@dataclass(frozen=True, eq=False)
class Measured:
    """The four measures `[problem, head]`, each with the sign of the insertion's effect, and the total `[problem]`."""

    values: dict[str, np.ndarray]
    total: np.ndarray
    patches: PatchScores


def measures(sweep: Sweep, name: str, pairs: Sequence[PromptPair], heads: Sequence[Head]) -> Measured:
    """Four exact sweeps, as `LocatedHeads` defines its measures; layer 0 mediates exactly nothing (I7)."""
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
        values[:, first] = 0.0  # exactly, whatever rounding says
    return Measured(
        {
            "knockout": effect["knockout", "denoising"],
            "edge_noise": effect["knockout", "noising"],
            "mediated_removed": mediated["denoising"],
            "mediated_added": mediated["noising"],
        },
        runs["z", "noising"].total_effect,
        runs["z", "denoising"],
    )


def check_controls(pairs: Sequence[PromptPair]) -> None:
    """Controls are matched to one insertion: `ValueError` where the pairs have several, or prompts of several templates."""
    for what, found in (
        ("insertions", {pair.insertion.label for pair in pairs}),
        ("lengths of insertion", {pair.n_inserted for pair in pairs}),
        ("templates", {str(pair.template) for pair in pairs}),
    ):
        if len(found) > 1:
            shown = ", ".join(sorted(map(str, found))[:3])
            raise ValueError(
                f"controls are matched in place and length to one insertion, but the pairs have {len(found)} {what} "
                f"({shown}): locate heads for each one alone, or leave controls out (controls=False)"
            )


def gap_alone(sweep: Sweep, pairs: Sequence[PromptPair], named: Sequence[Head], spare: Head) -> dict[str, np.ndarray]:
    """What the shift of positions does with nothing inserted (C0 -> C2), and each named head's part in it.

    `shift_total` `[problem]`; `shift_removed`, `shift_added` `[problem, named]`: z patches under contrast "shift", denoising
    and noising, in the sign of the shift's own effect. `spare` is patched where no head is named, for the total.
    """
    heads = tuple(named) or (spare,)
    runs = {
        direction: sweep(f"shift-z-{direction}", pairs, heads, contrast="shift", edit="z", direction=direction)
        for direction in (("denoising", "noising") if named else ("noising",))
    }
    found = {"shift_total": runs["noising"].total_effect}
    if named:
        at = (slice(None), [head.layer for head in named], [head.head for head in named])
        found |= {"shift_removed": -runs["denoising"].effect[at], "shift_added": runs["noising"].effect[at]}
    return found


def other_insertions(
    model: Model, sweep: Sweep, pairs: Sequence[PromptPair], named: Sequence[Head], draws: int, seed: int
) -> tuple[dict[str, np.ndarray], str | None]:
    """Effects of the named heads `[problem, named]` where something else is inserted: same place, length and problems.

    Random sentences (mean over draws within each problem), Mful, and as much attention taken elsewhere. The second value
    says why Mful was left out, if it was.
    """
    first = pairs[0].insertion
    n_tokens = pairs[0].n_inserted
    place: dict[str, Any] = {"before": first.before, "after": first.after, "at": first.at}
    problems = [pair.problem for pair in pairs]
    template = pairs[0].template

    def under(insertion: Insertion, name: str) -> Measured:
        made = replace(insertion, **place)
        return measures(sweep, name, make_pairs(model, problems, made, template=template), named)

    found: dict[str, np.ndarray] = {}
    sentences = [
        under(Insertion.random_sentence(n_tokens, seed=seed, draw=draw), f"random-{draw}").values
        for draw in range(draws)
    ]
    for measure in MEASURES:
        found[f"random_{measure}"] = np.mean([values[measure] for values in sentences], axis=0)
    left_out = None
    meaningful = Insertion.meaningful("he", n_tokens)
    if (first.kind, first.unit) == (meaningful.kind, meaningful.unit):
        left_out = "it is the insertion under study"
    else:
        try:
            mful = under(meaningful, "mful").values
            found |= {f"mful_{measure}": mful[measure] for measure in MEASURES}
        except ValueError as error:
            left_out = str(error)
    at = (slice(None), [head.layer for head in named], [head.head for head in named])
    matched = sweep("matched-mass", pairs, named, edit=MatchedMassKnockout(seed=seed))
    found["matched_mass"] = -matched.effect[at]
    return found, left_out


def readers_together(
    model: Model,
    pairs: Sequence[PromptPair],
    readers: Sequence[Head],
    singles: np.ndarray,
    *,
    outcome: str,
    n_random_sets: int,
    folder: Path | None,
    progress: bool,
    seed: int,
) -> JointKnockout | None:
    """The named readers knocked out together, against random sets; None where there is no reader."""
    if not readers:
        return None
    return joint_knockout(
        model,
        pairs,
        readers,
        outcome=outcome,
        n_random_sets=n_random_sets,
        singles=singles,
        checkpoint=None if folder is None else folder / "random-sets.jsonl",
        progress=progress,
        seed=seed,
    )


def specificity(
    values: dict[str, np.ndarray],
    heads: Sequence[Head],
    named: Sequence[Head],
    readers: np.ndarray,
    controls: dict[str, np.ndarray],
    *,
    alpha: float,
    n_permutations: int,
    seed: int,
) -> tuple[np.ndarray, np.ndarray]:
    """(1 specific, 0 not, NaN not named or unknown; the p-value behind it), both `[head]`.

    |effect| must exceed that under random sentences and, for a reader, that of taking as much attention elsewhere: each
    paired over problems, one-sided, max-T over the named heads; p is the larger of the two. A head that reads is judged
    by its knockout, another mediator by its mediated part. Where the matched-mass knockout is undefined on too many
    problems (not enough other attention to take), the random sentences alone decide.
    """
    flags, p_values = np.full(len(heads), np.nan), np.full(len(heads), np.nan)
    if not named or "matched_mass" not in controls:
        return flags, p_values
    place = {head: i for i, head in enumerate(heads)}
    margins, matched = [], []
    for at, head in enumerate(named):
        i = place[head]
        measure = "knockout" if readers[i] else "mediated_removed"
        own = _outward(values[measure][:, i])
        margins.append(own - _outward(controls[f"random_{measure}"][:, at]))
        matched.append(own - _outward(controls["matched_mass"][:, at]) if readers[i] else np.full_like(own, np.nan))
    n = len(values["knockout"])
    least = min(n, max(LEAST_MATCHED, n // 2))
    options = {"alpha": alpha, "n_permutations": n_permutations, "seed": seed}
    p = _p_greater(np.stack(margins, 1), n, **options)
    against_mass = _p_greater(np.stack(matched, 1), least, **options)
    p = np.where(np.isnan(against_mass), p, np.maximum(p, against_mass))
    for at, head in enumerate(named):
        p_values[place[head]] = p[at]
        flags[place[head]] = float(p[at] < alpha)
    return flags, p_values


def _outward(values: np.ndarray) -> np.ndarray:
    """Effects `[problem]` turned so that their mean is not negative."""
    known = values[np.isfinite(values)]
    return values if not len(known) else (-1.0 if known.mean() < 0 else 1.0) * values


def _p_greater(table: np.ndarray, least: int, **options: Any) -> np.ndarray:
    """Corrected one-sided p per column; NaN where too few problems are defined, 1 where all values are equal."""
    known = np.isfinite(table)
    enough = known.sum(0) >= max(2, least)
    filled = np.where(known, table, np.nan)
    p = np.full(table.shape[1], np.nan)
    if not enough.any():
        return p
    low = np.min(filled, axis=0, where=known, initial=np.inf)
    high = np.max(filled, axis=0, where=known, initial=-np.inf)
    varied = enough & (high > low)
    p[enough & ~varied] = 1.0  # the same in every problem: no test can tell it from chance
    if varied.any():
        test = max_t_sign_flip(filled, tested=varied, min_problems=max(2, least), alternative="greater", **options)
        p[varied] = test.p_corrected[varied]
    return p
