"""What a claim about heads is held against: other insertions, other attention, the gap alone, other heads."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import compress
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ..core.heads import Head
from ..patching.effect import SMALLEST_EFFECT, Effect
from ..patching.interventions import MatchedMassKnockout
from ..patching.joint import JointKnockout, joint_knockout
from ..patching.prepared import Prepared, prepare
from ..patching.reads import ReadEffects, read_effects
from ..patching.sweep import Sweep, sweep_heads
from ..prompts.conditions import CONTRASTS, Contrast
from ..prompts.insertions import Insertion
from ..prompts.pairs import PromptPair, digest_of, pairs_like
from ..runtime.checkpoint import CheckpointError
from ..runtime.loop import RunOptions
from ..runtime.results import interval_columns
from ..scores import HeadScores, score_heads
from ..statistics import holm, one_problem, prevalence_test
from .judge import PARTS, SIDES, Claims, measured
from .measure import kept_file, measure

LEAST_MATCHED = 8
"""A matched-mass knockout is tested where it is defined on this many problems and on half of them (on all if fewer)."""
OTHERS = {"random": "random words", "questions": "questions of other problems", "mful": "a repeated word"}
"""What else is inserted, in the same place and length: the first decides, the others are reported."""


def check_controls(pairs: Sequence[PromptPair]) -> None:
    """Controls are matched to one insertion: `ValueError` where the pairs have several, or prompts of several templates."""
    for what, found in (
        ("insertions", {pair.insertion.label for pair in pairs}),
        ("templates", {str(pair.template) for pair in pairs}),
    ):
        if len(found) > 1:
            raise ValueError(
                f"controls are matched in place and length to one insertion, but the pairs have {len(found)} {what} "
                f"({', '.join(sorted(found)[:3])}): locate heads for each one alone, or leave controls out (controls=False)"
            )


def draws_beside(own: Insertion, n_draws: int, seed: int, kinds: Sequence[str]) -> list[int]:
    """Draws of these kinds to hold against an insertion: without its own, if it is one of them."""
    drawn = own.kind in kinds and own.seed == seed
    return [draw for draw in range(n_draws + 1) if not (drawn and draw == own.draw)][:n_draws]


def under(prepared: Prepared, insertion: Insertion) -> Prepared:
    """The same problems with another insertion in the same place, in each as long as its own."""
    return prepare(prepared.model, pairs_like(prepared.model, prepared.bare, insertion), prepared.outcome)


@dataclass(frozen=True)
class Controls:
    """Which controls are run, and where their partial results go: every sweep has a file of its own in `folder`."""

    draws: int
    n_random_sets: int
    confidence: float
    smallest_effect: float
    folder: Path | None
    progress: bool
    seed: int
    contrast: Contrast = CONTRASTS["content"]

    def _run(self, name: str, *of: object) -> RunOptions:
        return RunOptions(kept_file(self.folder, name, *of), self.progress, self.seed)

    def _options(self, name: str, *of: object) -> dict[str, Any]:
        return {"checkpoint": kept_file(self.folder, name, *of), "progress": self.progress, "seed": self.seed}

    def held(
        self, prepared: Prepared, claims: Claims, knockouts: np.ndarray | None, spare: Head, *, fresh: bool
    ) -> "Held":
        """The named heads under other circumstances; those that read, as a set and taken apart.

        `knockouts` `[problem, head]` of the named heads (None: nothing can be cut off); `spare` is swept where none is named;
        `fresh`: the heads were chosen on other problems, so that the set and its reads may be tested.
        """
        named, contrast = claims.heads, self.contrast
        held = Held(self._gap_alone(prepared, named, spare) if prepared.bare[0].spans else {})
        if not named:
            return held
        if prepared.bare[0].given:
            held.left_out |= dict.fromkeys(OTHERS, "pairs of token ids have no text to draw others from")
        elif contrast.reads_inserted:
            self._other_insertions(prepared, named, held)
        else:
            held.left_out |= dict.fromkeys(OTHERS, "with no tokens inserted, other tokens make no difference")
        if contrast.cuts:
            held.values |= self._matched_mass(prepared, named)
        joint = reads = None
        if claims.together.any() and knockouts is not None:
            members = tuple(compress(named, claims.together))
            joint = joint_knockout(
                *(prepared.model, prepared, members),
                contrast=contrast.name,
                outcome=prepared.outcome,
                n_random_sets=self.n_random_sets,
                singles=knockouts[:, claims.together],
                chosen_elsewhere=fresh,
                **self._options("random-sets", members),
            )
        if claims.reads.any() and contrast.reads_span:
            readers = tuple(compress(named, claims.reads))
            reads = read_effects(
                *(prepared.model, prepared, readers),
                outcome=prepared.outcome,
                confidence=self.confidence,
                smallest_effect=self.smallest_effect or SMALLEST_EFFECT,
                chosen_elsewhere=fresh,
                checkpoint=kept_file(self.folder, "reads", readers),
                progress=self.progress,
            )
        return replace(held, joint=joint, reads=reads)

    def _gap_alone(self, prepared: Prepared, named: Sequence[Head], spare: Head) -> dict[str, np.ndarray]:
        """What the shift of positions does with nothing inserted (C0 -> C2): `shift_total` `[problem]`, and the part of it that
        each named head carries, `shift_removed`, `shift_added` `[problem, named]` (z patches, denoising and noising)."""
        directions = ("denoising", "noising") if named else ("noising",)
        sweeps = {direction: Sweep.named("shift", direction) for direction in directions}
        heads = tuple(named) or (spare,)
        runs = sweep_heads(prepared, sweeps, heads, options=self._run("shift", heads))
        found = {"shift_total": runs["noising"].total_effect}
        if named:
            found |= {"shift_removed": runs["denoising"].per_head, "shift_added": runs["noising"].per_head}
        return found

    def _other_insertions(self, prepared: Prepared, named: Sequence[Head], held: "Held") -> None:
        """The measures of the named heads with something else in the same place and of the same length.

        `{name}_{measure}` `[problem, named]`: mean over draws within each problem; `random_size_removed`, `_added`: the mean
        over draws of |z patch|, so that opposite signs do not hide each other. What is itself under study is drawn anew.
        """
        own, n_tokens = prepared.bare[0].insertion, prepared.bare[0].n_inserted
        problems = [pair.problem for pair in prepared.bare]
        drawing: dict[str, Any] = {"n_tokens": n_tokens, "seed": self.seed}
        draws = draws_beside(own, self.draws, self.seed, ("random_sentence", "other_questions"))
        made: dict[str, tuple[list[int], Callable[[int], Insertion]]] = {
            "random": (draws, lambda draw: Insertion.random_sentence(**drawing, draw=draw)),
            "questions": (draws, lambda draw: Insertion.other_questions(problems, **drawing, draw=draw)),
            "mful": ([0], lambda draw: Insertion.meaningful("he", n_tokens)),
        }
        for name, (numbers, insertion) in made.items():
            found = []
            try:
                for draw in numbers:
                    other = insertion(draw)
                    if name == "mful" and (own.kind, own.unit) == (other.kind, other.unit):
                        raise ValueError("it is the insertion under study")
                    beside = under(prepared, other)
                    asked = held.prompts[f"{name}-{draw}"] = digest_of(beside.pairs)
                    of = (named, asked) if name == "questions" else (named,)  # a problem changes the others' questions
                    options = self._options(f"{name}-{draw}", *of)
                    found.append(measure(beside, named, contrast=self.contrast, **options).values)
            except ValueError as error:
                if name == "random" or isinstance(error, CheckpointError):  # what decides is never left out silently
                    raise
                held.left_out[name] = str(error).rstrip(".")
                continue
            held.values |= {f"{name}_{part}": np.mean([one[part] for one in found], axis=0) for part in found[0]}
            if name == "random":
                for side, z in SIDES.items():
                    sizes = [np.abs(measured(one, z)) for one in found]
                    held.values[f"random_size_{side}"] = np.mean(sizes, axis=0)

    def _matched_mass(self, prepared: Prepared, named: Sequence[Head]) -> dict[str, np.ndarray]:
        """As much attention taken elsewhere: mean over draws, and mean over draws of its size."""
        sweeps = {
            f"matched-{draw}": Sweep.named(self.contrast.name, edit=MatchedMassKnockout(seed=self.seed, draw=draw))
            for draw in range(self.draws)
        }
        runs = sweep_heads(prepared, sweeps, named, options=self._run("matched-mass", named))
        drawn = [run.per_head for run in runs.values()]
        return {"matched_mass": np.mean(drawn, axis=0), "matched_mass_size": np.mean(np.abs(drawn), axis=0)}


@dataclass(eq=False)
class Held:
    """What came of the controls: effects by name, those that read as a set and taken apart, what was left out and why, and
    a digest of the prompts of every other insertion and draw."""

    values: dict[str, np.ndarray] = field(default_factory=dict)
    joint: JointKnockout | None = None
    reads: ReadEffects | None = None
    left_out: dict[str, str] = field(default_factory=dict)
    prompts: dict[str, str] = field(default_factory=dict)

    def fields(self, settings: dict[str, Any]) -> dict[str, Any]:
        """Fields of a result: with its settings, which controls were left out, and which prompts the others were."""
        settings = {**settings, "left_out": self.left_out, "control_prompts": self.prompts}
        return {"controls": self.values, "joint": self.joint, "reads": self.reads, "settings": settings}


@dataclass(frozen=True, eq=False)
class Specificity:
    """In how many problems each named head does more (by more than the smallest effect) than under its controls, `[named]`:
    `exceeds` of `n`, and than as much attention elsewhere `exceeds_mass` of `n_mass`; `p`: the larger of both, after Holm."""

    exceeds: np.ndarray
    n: np.ndarray
    exceeds_mass: np.ndarray
    n_mass: np.ndarray
    p: np.ndarray


def specificity(
    effect: Effect, claims: Claims, values: dict[str, np.ndarray], controls: dict[str, np.ndarray]
) -> Specificity | None:
    """Test whether a head's effect is larger than random words', and a reader's than that of taking as much attention.

    Paired over problems, in size, by the prevalence test; `values` are the measures of the named heads. A head is compared by
    the z patch of its side, a reader that is needed also by its knockout; where the matched-mass knockout is undefined on too
    many problems, random words alone decide. None where no controls were run. Source: methods §8, rule 5.
    """
    if "random_size_removed" not in controls or not claims.heads:
        return None
    margin = claims.by_side(*(claims.own(values, z) - controls[f"random_size_{side}"] for side, z in SIDES.items()))
    needed = claims.reads & (np.array(claims.sides()) == "removed")
    mass = np.full_like(margin, np.nan)
    if "matched_mass_size" in controls:
        mass = np.where(needed, claims.own(values, "knockout") - controls["matched_mass_size"], np.nan)
    mass = effect.units(mass)
    n, defined = len(mass), np.isfinite(mass).sum(0)
    more = prevalence_test(effect.units(margin), effect.delta, senses=(1,))
    more_mass = prevalence_test(mass, effect.delta, senses=(1,), tested=defined >= min(n, max(LEAST_MATCHED, n // 2)))
    p = np.fmax(more.p[0], more_mass.p[0])
    p = holm(p) if np.isfinite(p).any() else p
    return Specificity(more.count[0], np.asarray(more.n), more_mass.count[0], defined, p)


def beside_controls(
    effect: Effect, claims: Claims, values: dict[str, np.ndarray], controls: dict[str, np.ndarray], *, fresh: bool
) -> pd.DataFrame:
    """One row per named head: its effect and the same measure under each control, medians over problems with intervals.

    The z patch of the head's side, in the outcome's unit. `random`: random words; `questions`: those of other problems;
    `mful`: a repeated word; `matched_mass`: as much attention taken elsewhere (readers); `shift`: the gap alone. The rest is
    of `Specificity`, `p_specific` NaN unless the problems are `fresh`.
    """
    made = specificity(effect, claims, values, controls)
    columns: dict[str, Any] = {"label": [str(head) for head in claims.heads], "kind": list(claims.kinds)}
    nothing = np.full((len(next(iter(values.values()))), len(claims.heads)), np.nan)

    def by_side(table: dict[str, np.ndarray], name: str) -> np.ndarray:
        def whole(z: str) -> np.ndarray:
            parts = (z,) if f"{name}{z}" in table else PARTS[z]
            return np.sum([table.get(f"{name}{part}", nothing) for part in parts], axis=0)

        return claims.by_side(*map(whole, SIDES.values()))

    used = {"effect": by_side(values, "")} | {f"{name}_effect": by_side(controls, f"{name}_") for name in OTHERS}
    used["matched_mass_effect"] = np.where(claims.reads, controls.get("matched_mass", nothing), np.nan)
    used["shift_effect"] = claims.by_side(*(controls.get(f"shift_{side}", nothing) for side in SIDES))
    for name, effects in used.items():  # without named heads there are the columns alone
        columns |= interval_columns(name, effect.cell_medians(effects) if claims.heads else one_problem(effects[0]))
    shares = [
        interval_columns("random_words_share", replace(effect, total=own, claimed=0.0).share(random))
        for own, random in zip(used["effect"].T, used["random_effect"].T, strict=True)
    ]
    for name in ("random_words_share", "random_words_share_ci_low", "random_words_share_ci_high"):
        columns[name] = [float(share[name]) for share in shares]
    unknown = np.full(len(claims.heads), np.nan)
    made = made or Specificity(*[unknown] * 5)
    columns |= {"exceeds_random": made.exceeds, "exceeds_random_n": made.n}
    columns |= {"exceeds_mass": made.exceeds_mass, "exceeds_mass_n": made.n_mass}
    return pd.DataFrame({**columns, "p_specific": made.p if fresh else unknown})


def sinks_read(prepared: Prepared, heads: Sequence[Head], *, checkpoint: Path | None, progress: bool) -> HeadScores:
    """What tells whether the span is a sink to these heads, on prompts with the insertion and the answer."""
    return score_heads(
        *(prepared.model, prepared.pairs),
        metrics="sinks",
        conditions=("inserted",),
        heads=heads,
        checkpoint=checkpoint,
        progress=progress,
    )
