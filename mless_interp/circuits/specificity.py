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
            shown = ", ".join(sorted(map(str, found))[:3])
            raise ValueError(
                f"controls are matched in place and length to one insertion, but the pairs have {len(found)} {what} "
                f"({shown}): locate heads for each one alone, or leave controls out (controls=False)"
            )


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

    def _options(self, name: str, *of: Any) -> dict[str, Any]:
        return {"checkpoint": kept_file(self.folder, name, *of), "progress": self.progress, "seed": self.seed}

    def held(
        self, prepared: Prepared, claims: Claims, knockouts: np.ndarray | None, spare: Head, *, fresh: bool
    ) -> "Held":
        """The named heads under other circumstances; those that read, as a set and taken apart.

        `knockouts` `[problem, head]` of the named heads (None where nothing can be cut off); `spare` is swept where
        none is, for the total of the gap alone; `fresh`: the heads were chosen on other problems, so that the set and
        its reads may be tested.
        """
        named = claims.heads
        values = self._gap_alone(prepared, named, spare) if prepared.bare[0].spans else {}
        if not named:
            return Held(values)
        left_out: dict[str, str] = {}
        prompts: dict[str, str] = {}
        if prepared.bare[0].given:
            left_out |= dict.fromkeys(OTHERS, "pairs of token ids have no text to draw others from")
        elif self.contrast.reads_inserted:
            self._other_insertions(prepared, named, values, left_out, prompts)
        else:
            left_out |= dict.fromkeys(OTHERS, "with no tokens inserted, other tokens make no difference")
        if self.contrast.cuts:
            self._matched_mass(prepared, named, values)
        joint = None
        if claims.together.any() and knockouts is not None:
            members = tuple(compress(named, claims.together))
            joint = joint_knockout(
                prepared.model,
                prepared,
                members,
                contrast=self.contrast.name,
                outcome=prepared.outcome,
                n_random_sets=self.n_random_sets,
                singles=knockouts[:, claims.together],
                chosen_elsewhere=fresh,
                **self._options("random-sets", members),
            )
        reads = None
        if claims.reads.any() and self.contrast.reads_span:
            readers = tuple(compress(named, claims.reads))
            reads = read_effects(
                prepared.model,
                prepared,
                readers,
                outcome=prepared.outcome,
                confidence=self.confidence,
                smallest_effect=self.smallest_effect or SMALLEST_EFFECT,
                chosen_elsewhere=fresh,
                checkpoint=kept_file(self.folder, "reads", readers),
                progress=self.progress,
            )
        return Held(values, joint, reads, left_out, prompts)

    def _gap_alone(self, prepared: Prepared, named: Sequence[Head], spare: Head) -> dict[str, np.ndarray]:
        """What the shift of positions does with nothing inserted (C0 -> C2), and each named head's part in it.

        `shift_total` `[problem]`; `shift_removed`, `shift_added` `[problem, named]`: z patches under contrast "shift",
        denoising and noising, parts of the shift's own effect. `spare` is patched where no head is named, for the total.
        """
        directions = ("denoising", "noising") if named else ("noising",)
        sweeps = {direction: Sweep.named("shift", direction) for direction in directions}
        heads = tuple(named) or (spare,)
        runs = sweep_heads(prepared, sweeps, heads, **self._options("shift", heads))
        found = {"shift_total": runs["noising"].total_effect}
        if named:
            names = {"shift_removed": "denoising", "shift_added": "noising"}
            found |= {name: runs[direction].per_head for name, direction in names.items()}
        return found

    def _other_insertions(
        self,
        prepared: Prepared,
        named: Sequence[Head],
        values: dict[str, np.ndarray],
        left_out: dict[str, str],
        prompts: dict[str, str],
    ) -> None:
        """The measures of the named heads with something else in the same place and of the same length, into `values`.

        `{name}_{measure}` `[problem, named]`: mean over draws within each problem; `random_size_removed`, `_added`: the mean
        over draws of |z patch|, so that draws of opposite signs do not hide each other. Where random words or other questions
        are themselves under study, other draws of them are taken. Their prompts go into `prompts`.
        """
        own, n_tokens = prepared.bare[0].insertion, prepared.bare[0].n_inserted
        problems = [pair.problem for pair in prepared.bare]
        drawing: dict[str, Any] = {"n_tokens": n_tokens, "seed": self.seed}
        drawn = own.kind in ("random_sentence", "other_questions") and own.seed == self.seed
        draws = [draw for draw in range(self.draws + 1) if not (drawn and draw == own.draw)][: self.draws]
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
                    under = self._under(prepared, other)
                    asked = prompts[f"{name}-{draw}"] = digest_of(under.pairs)
                    of = (named, asked) if name == "questions" else (named,)  # a problem changes the others' questions
                    options = self._options(f"{name}-{draw}", *of)
                    found.append(measure(under, named, contrast=self.contrast, **options).values)
            except ValueError as error:
                if name == "random" or isinstance(error, CheckpointError):  # what decides is never left out silently
                    raise
                left_out[name] = str(error).rstrip(".")
                continue
            for part in found[0]:
                values[f"{name}_{part}"] = np.mean([one[part] for one in found], axis=0)
            if name == "random":
                for side, z in SIDES.items():
                    sizes = [np.abs(measured(one, z)) for one in found]
                    values[f"random_size_{side}"] = np.mean(sizes, axis=0)

    def _under(self, prepared: Prepared, insertion: Insertion) -> Prepared:
        """The same problems with another insertion in the same place, in each as long as its own."""
        return prepare(prepared.model, pairs_like(prepared.model, prepared.bare, insertion), prepared.outcome)

    def _matched_mass(self, prepared: Prepared, named: Sequence[Head], values: dict[str, np.ndarray]) -> None:
        """As much attention taken elsewhere, into `values`: mean over draws, and mean over draws of its size."""
        sweeps = {
            f"matched-{draw}": Sweep.named(self.contrast.name, edit=MatchedMassKnockout(seed=self.seed, draw=draw))
            for draw in range(self.draws)
        }
        runs = sweep_heads(prepared, sweeps, named, **self._options("matched-mass", named))
        drawn = [run.per_head for run in runs.values()]
        values |= {"matched_mass": np.mean(drawn, axis=0), "matched_mass_size": np.mean(np.abs(drawn), axis=0)}


@dataclass(frozen=True, eq=False)
class Held:
    """What came of the controls: effects by name, those that read as a set and taken apart, what was left out and why, and
    a digest of the prompts of every other insertion and draw."""

    values: dict[str, np.ndarray] = field(default_factory=dict)
    joint: JointKnockout | None = None
    reads: ReadEffects | None = None
    left_out: dict[str, str] = field(default_factory=dict)
    prompts: dict[str, str] = field(default_factory=dict)

    @property
    def settings(self) -> dict[str, Any]:
        """What a result says of its controls: those left out, and which prompts the others were."""
        return {"left_out": self.left_out, "control_prompts": self.prompts}


@dataclass(frozen=True, eq=False)
class Specificity:
    """In how many problems each named head does more than under its controls, and the test of that, arrays `[named]`.

    More: by more than the smallest effect. `exceeds` of `n` problems more than random words; `exceeds_mass` of `n_mass` more
    than a knockout of as much attention elsewhere (heads whose knockout is tested; 0 of 0 else); `p`: Holm over the named
    heads, the larger of the two.
    """

    exceeds: np.ndarray
    n: np.ndarray
    exceeds_mass: np.ndarray
    n_mass: np.ndarray
    p: np.ndarray


def specificity(
    effect: Effect, claims: Claims, values: dict[str, np.ndarray], controls: dict[str, np.ndarray]
) -> Specificity | None:
    """Is a head's effect larger than random words' of the same length, and a reader's than that of taking as much attention?

    Paired over problems, in size, by the prevalence test (by more than `effect.delta` in most problems). `values` are the
    measures of the named heads, `[problem, head]`. A head is compared by the z patch of its side, a reader that is needed
    also by its knockout. Where the matched-mass knockout is undefined on too many problems (not enough other attention to
    take), random words alone decide. None where the controls were not run. Source: methods §8, rule 5.
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

    Parts of the effect of what is inserted, in the outcome's unit; the z patch of the head's side. `random`:
    random words; `questions`: those of other problems; `mful`: a repeated word; `matched_mass`: as much attention taken
    elsewhere (readers); `shift`: the head's part in what the gap alone does. `random_words_share` is the share of the head's
    effect that comes with random words too. `exceeds_random` of `exceeds_random_n` problems are more than random words' by
    more than the smallest effect, likewise `exceeds_mass`; `p_specific` is NaN unless the problems are `fresh`. NaN where a
    control was not run or does not apply.
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
    columns |= {
        "exceeds_random": unknown if made is None else made.exceeds,
        "exceeds_random_n": unknown if made is None else made.n,
        "exceeds_mass": unknown if made is None else made.exceeds_mass,
        "exceeds_mass_n": unknown if made is None else made.n_mass,
        "p_specific": unknown if made is None or not fresh else made.p,
    }
    return pd.DataFrame(columns)


def sinks_read(prepared: Prepared, heads: Sequence[Head], *, checkpoint: Path | None, progress: bool) -> HeadScores:
    """What tells whether the span is a sink to these heads, on prompts with the insertion and the answer."""
    options = {"checkpoint": checkpoint, "progress": progress}
    return score_heads(
        prepared.model,
        prepared.pairs,
        metrics="sinks",
        conditions=("inserted",),
        heads=heads,
        **options,  # type: ignore[arg-type]
    )
