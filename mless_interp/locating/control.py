"""What a claim about heads is held against: other insertions, other attention, the gap alone, other heads."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ..heads import Head
from ..patching.interventions import MatchedMassKnockout
from ..patching.prepared import Prepared, prepare
from ..patching.sweep import Sweep, sweep_heads
from ..prompts.insertions import Insertion
from ..prompts.pairs import PromptPair, make_pairs
from ..statistics import max_t_sign_flip
from .measure import MEASURES, SIGN, Measured, measure

LEAST_MATCHED = 8
"""A matched-mass knockout is tested where it is defined on this many problems and on half of them (on all if fewer)."""


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


class Controls:
    """The controls of one experiment: the same problems under other circumstances; short-lived.

    Every sweep has a file of its own in `folder`, if there is one.
    """

    def __init__(self, prepared: Prepared, *, folder: Path | None, progress: bool, seed: int) -> None:
        self.prepared, self.folder, self.progress, self.seed = prepared, folder, progress, seed

    def _options(self, name: str) -> dict[str, Any]:
        file = None if self.folder is None else self.folder / f"{name}.jsonl"
        return {"checkpoint": file, "progress": self.progress, "seed": self.seed}

    def gap_alone(self, named: Sequence[Head], spare: Head) -> dict[str, np.ndarray]:
        """What the shift of positions does with nothing inserted (C0 -> C2), and each named head's part in it.

        `shift_total` `[problem]`; `shift_removed`, `shift_added` `[problem, named]`: z patches under contrast "shift",
        denoising and noising, in the sign of the shift's own effect. `spare` is patched where no head is named, for the
        total.
        """
        directions = ("denoising", "noising") if named else ("noising",)
        sweeps = {direction: Sweep.named("shift", direction) for direction in directions}
        runs = sweep_heads(self.prepared, sweeps, tuple(named) or (spare,), **self._options("shift"))
        found = {"shift_total": runs["noising"].total_effect}
        if named:
            names = {"shift_removed": "denoising", "shift_added": "noising"}
            found |= {name: SIGN[direction] * runs[direction].per_head for name, direction in names.items()}
        return found

    def other_insertions(self, named: Sequence[Head], draws: int) -> tuple[dict[str, np.ndarray], str | None]:
        """Effects of the named heads `[problem, named]` where something else is inserted: same place and length.

        Random sentences (mean over draws within each problem), Mful, and as much attention taken elsewhere. The second
        value says why Mful was left out, if it was.
        """
        bare = self.prepared.bare
        own, n_tokens = bare[0].insertion, bare[0].n_inserted
        found: dict[str, np.ndarray] = {}
        sentences = [
            self._under(Insertion.random_sentence(n_tokens, seed=self.seed, draw=draw), f"random-{draw}", named).values
            for draw in range(draws)
        ]
        for name in MEASURES:
            found[f"random_{name}"] = np.mean([values[name] for values in sentences], axis=0)
        left_out = None
        meaningful = Insertion.meaningful("he", n_tokens)
        if (own.kind, own.unit) == (meaningful.kind, meaningful.unit):
            left_out = "it is the insertion under study"
        else:
            try:
                values = self._under(meaningful, "mful", named).values
                found |= {f"mful_{name}": values[name] for name in MEASURES}
            except ValueError as error:
                left_out = str(error)
        sweeps = {"matched": Sweep.named(edit=MatchedMassKnockout(seed=self.seed))}
        matched = sweep_heads(self.prepared, sweeps, named, **self._options("matched-mass"))["matched"]
        found["matched_mass"] = SIGN["denoising"] * matched.per_head
        return found, left_out

    def _under(self, insertion: Insertion, name: str, named: Sequence[Head]) -> Measured:
        """The four measures of the named heads with another insertion in the same place."""
        model, bare = self.prepared.model, self.prepared.bare
        own = bare[0].insertion
        placed = replace(insertion, before=own.before, after=own.after, at=own.at)
        pairs = make_pairs(model, [pair.problem for pair in bare], placed, template=bare[0].template)
        return measure(prepare(model, pairs, self.prepared.outcome), named, **self._options(name))


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
