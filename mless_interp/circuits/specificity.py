"""What a claim about heads is held against: other insertions, other attention, the gap alone, other heads."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import compress
from typing import Any

import numpy as np
import pandas as pd

from ..core.heads import Head
from ..patching.effect import SMALLEST_EFFECT, Effect
from ..patching.interventions import MatchedMassKnockout
from ..patching.joint import joint_knockout
from ..patching.prepared import Prepared, prepare
from ..patching.reads import read_effects
from ..patching.sweep import Sweep, sweep_heads
from ..prompts.conditions import CONTRASTS, Contrast
from ..prompts.insertions import Insertion
from ..prompts.pairs import PromptPair, digest_of, pairs_like
from ..runtime.checkpoint import CheckpointError
from ..runtime.loop import RunOptions
from ..runtime.results import interval_columns
from ..statistics import holm, prevalence_test
from .judge import PARTS, SIDES, Claims, measured
from .measure import measure

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
    """Which controls are run; every sweep keeps a file of its own in the options' folder."""

    draws: int
    n_random_sets: int
    confidence: float
    smallest_effect: float
    options: RunOptions
    contrast: Contrast = CONTRASTS["content"]

    def held(
        self, prepared: Prepared, claims: Claims, knockouts: np.ndarray | None, spare: Head, *, fresh: bool
    ) -> dict[str, Any]:
        """Fields of a result: the named heads under other circumstances (`controls`); those that read, as a set (`joint`) and
        taken apart (`reads`); and for its settings, which controls were `left_out`, and digests of the others' prompts.

        `knockouts` `[problem, head]` of the named heads (None: nothing can be cut off); `spare` is swept where none is named;
        `fresh`: the heads were chosen on other problems, so that the set and its reads may be tested.
        """
        named, contrast, first = claims.heads, self.contrast, prepared.bare[0]
        left_out: dict[str, str] = {}
        prompts: dict[str, str] = {}
        controls = self._gap_alone(prepared, named, spare) if first.spans else {}
        held: dict[str, Any] = {"controls": controls, "left_out": left_out, "control_prompts": prompts}
        if not named:
            return held
        if first.given:
            left_out |= dict.fromkeys(OTHERS, "pairs of token ids have no text to draw others from")
        elif contrast.reads_inserted:
            controls |= self._other_insertions(prepared, named, left_out, prompts)
        else:
            left_out |= dict.fromkeys(OTHERS, "with no tokens inserted, other tokens make no difference")
        if contrast.cuts:
            controls |= self._matched_mass(prepared, named)
        common: dict[str, Any] = {"outcome": prepared.outcome, "chosen_elsewhere": fresh}
        if claims.together.any() and knockouts is not None:
            members = tuple(compress(named, claims.together))
            held["joint"] = joint_knockout(
                *(prepared.model, prepared, members),
                contrast=contrast.name,
                n_random_sets=self.n_random_sets,
                singles=knockouts[:, claims.together],
                checkpoint=self.options.part("random-sets", members).checkpoint,
                progress=self.options.progress,
                seed=self.options.seed,
                **common,
            )
        if claims.reads.any() and contrast.reads_span:
            readers = tuple(compress(named, claims.reads))
            held["reads"] = read_effects(
                *(prepared.model, prepared, readers),
                confidence=self.confidence,
                smallest_effect=self.smallest_effect or SMALLEST_EFFECT,
                checkpoint=self.options.part("reads", readers).checkpoint,
                progress=self.options.progress,
                **common,
            )
        return held

    def _gap_alone(self, prepared: Prepared, named: Sequence[Head], spare: Head) -> dict[str, np.ndarray]:
        """What the shift of positions does with nothing inserted (C0 -> C2): `shift_total` `[problem]`, and the part of it that
        each named head carries, `shift_z_removed`, `shift_z_added` `[problem, named]` (z patches, denoising and noising)."""
        directions = ("denoising", "noising") if named else ("noising",)
        sweeps = {direction: Sweep.named("shift", direction) for direction in directions}
        heads = tuple(named) or (spare,)
        runs = sweep_heads(prepared, sweeps, heads, options=self.options.part("shift", heads))
        parts = zip(SIDES.values(), directions, strict=True) if named else ()
        return {f"shift_{z}": runs[direction].per_head for z, direction in parts} | {
            "shift_total": runs["noising"].total_effect
        }

    def _other_insertions(
        self, prepared: Prepared, named: Sequence[Head], left_out: dict[str, str], prompts: dict[str, str]
    ) -> dict[str, np.ndarray]:
        """The measures of the named heads with something else in the same place and of the same length.

        `{name}_{measure}` `[problem, named]`: mean over draws within each problem; `random_size_removed`, `_added`: the mean
        over draws of |z patch|, so that opposite signs do not hide each other. What is itself under study is drawn anew.
        """
        own, n_tokens, seed = prepared.bare[0].insertion, prepared.bare[0].n_inserted, self.options.seed
        problems = [pair.problem for pair in prepared.bare]
        draws = draws_beside(own, self.draws, seed, ("random_sentence", "other_questions"))
        made: dict[str, tuple[list[int], Callable[[int], Insertion]]] = {
            "random": (draws, lambda draw: Insertion.random_sentence(n_tokens, seed=seed, draw=draw)),
            "questions": (draws, lambda draw: Insertion.other_questions(problems, n_tokens, seed=seed, draw=draw)),
            "mful": ([0], lambda draw: Insertion.meaningful("he", n_tokens)),
        }
        held: dict[str, np.ndarray] = {}
        for name, (numbers, insertion) in made.items():
            found = []
            try:
                for draw in numbers:
                    other = insertion(draw)
                    if name == "mful" and (own.kind, own.unit) == (other.kind, other.unit):
                        raise ValueError("it is the insertion under study")
                    beside = under(prepared, other)
                    asked = prompts[f"{name}-{draw}"] = digest_of(beside.pairs)
                    of = (named, asked) if name == "questions" else (named,)  # a problem changes the others' questions
                    options = self.options.part(f"{name}-{draw}", *of)
                    found.append(measure(beside, named, contrast=self.contrast, options=options).values)
            except ValueError as error:
                if name == "random" or isinstance(error, CheckpointError):  # what decides is never left out silently
                    raise
                left_out[name] = str(error).rstrip(".")
                continue
            held |= {f"{name}_{part}": np.mean([one[part] for one in found], axis=0) for part in found[0]}
            if name == "random":
                sizes = {side: [np.abs(measured(one, z)) for one in found] for side, z in SIDES.items()}
                held |= {f"random_size_{side}": np.mean(each, axis=0) for side, each in sizes.items()}
        return held

    def _matched_mass(self, prepared: Prepared, named: Sequence[Head]) -> dict[str, np.ndarray]:
        """As much attention taken elsewhere: mean over draws, and mean over draws of its size."""
        edits = [MatchedMassKnockout(seed=self.options.seed, draw=draw) for draw in range(self.draws)]
        sweeps = {f"matched-{at}": Sweep.named(self.contrast.name, edit=edit) for at, edit in enumerate(edits)}
        runs = sweep_heads(prepared, sweeps, named, options=self.options.part("matched-mass", named))
        drawn = [run.per_head for run in runs.values()]
        return {"matched_mass": np.mean(drawn, axis=0), "matched_mass_size": np.mean(np.abs(drawn), axis=0)}


def specificity(
    effect: Effect, claims: Claims, values: dict[str, np.ndarray], controls: dict[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """Test whether a head's effect is larger than random words', and a reader's than that of taking as much attention.

    Of each named head the problems in which it does more (by more than the smallest effect) than random words
    (`exceeds_random` of `exceeds_random_n`) and than as much attention elsewhere (`exceeds_mass` of `exceeds_mass_n`);
    `p_specific`: the larger p of both, after Holm. NaN where no controls were run.

    Paired over problems, in size, by the prevalence test; `values` are the measures of the named heads. A head is compared by
    the z patch of its side, a reader that is needed also by its knockout; where the matched-mass knockout is undefined on too
    many problems, random words alone decide. Source: methods §8, rule 5.
    """
    columns = ("exceeds_random", "exceeds_random_n", "exceeds_mass", "exceeds_mass_n", "p_specific")
    if "random_size_removed" not in controls:
        return dict.fromkeys(columns, np.full(len(claims.heads), np.nan))
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
    return dict(zip(columns, (more.count[0], np.asarray(more.n), more_mass.count[0], defined, p), strict=True))


def beside_controls(
    effect: Effect, claims: Claims, values: dict[str, np.ndarray], controls: dict[str, np.ndarray], *, fresh: bool
) -> pd.DataFrame:
    """One row per named head: its effect and the same measure under each control, medians over problems with intervals.

    The z patch of the head's side, in the outcome's unit. `random`: random words; `questions`: those of other problems;
    `mful`: a repeated word; `matched_mass`: as much attention taken elsewhere (readers); `shift`: the gap alone. The rest is
    of `specificity`, `p_specific` NaN unless the problems are `fresh`.
    """
    columns: dict[str, Any] = {"label": [str(head) for head in claims.heads], "kind": list(claims.kinds)}
    if not claims.heads:
        return pd.DataFrame(columns)
    nothing = np.full((len(effect.total), len(claims.heads)), np.nan)

    def by_side(table: dict[str, np.ndarray], name: str = "") -> np.ndarray:
        own = {measure.removeprefix(name): each for measure, each in table.items() if measure.startswith(name)}
        there = {z: z in own or own.keys() >= set(PARTS[z]) for z in SIDES.values()}
        return claims.by_side(*(measured(own, z) if known else nothing for z, known in there.items()))

    used = {"effect": by_side(values)} | {f"{name}_effect": by_side(controls, f"{name}_") for name in OTHERS}
    used["matched_mass_effect"] = np.where(claims.reads, controls.get("matched_mass", nothing), np.nan)
    used["shift_effect"] = by_side(controls, "shift_")
    for name, effects in used.items():
        columns |= interval_columns(name, effect.cell_medians(effects))
    for at, (own, random) in enumerate(zip(used["effect"].T, used["random_effect"].T, strict=True)):
        shares = interval_columns("random_words_share", replace(effect, total=own, claimed=0.0).share(random))
        for name, share in shares.items():
            columns.setdefault(name, np.full(len(claims.heads), np.nan))[at] = share
    tested = specificity(effect, claims, values, controls)
    unknown = {} if fresh else {"p_specific": np.full(len(claims.heads), np.nan)}
    return pd.DataFrame(columns | tested | unknown)
