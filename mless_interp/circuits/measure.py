"""What is measured of every head: its own read and what earlier heads cause; and what named heads are held against."""

import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import compress
from typing import Any

import numpy as np
import pandas as pd

from ..core.arguments import Arguments, count_of
from ..core.heads import Head
from ..models.base import no_gradients_because, refuse_without_gradients
from ..models.info import ModelError
from ..patching.attribution import attribute_heads
from ..patching.effect import SMALLEST_EFFECT, Effect
from ..patching.interventions import MatchedMassKnockout
from ..patching.knockouts import joint_knockout, read_effects
from ..patching.prepared import Prepared, prepare
from ..patching.sweep import PatchScores, Sweep, sweep_heads
from ..prompts.conditions import CONTRASTS, DIRECTIONS, Contrast
from ..prompts.insertions import Insertion
from ..prompts.pairs import PromptPair, digest_of, pairs_like
from ..runtime.checkpoint import Checkpoint, CheckpointError
from ..runtime.engines import shard_of
from ..runtime.loop import OF_THE_LIST, RunOptions
from ..runtime.results import interval_columns
from ..statistics import holm, prevalence_test
from .judge import PARTS, SIDES, Claims, measured

MEASURES = ("knockout", "edge_noise", "mediated_removed", "mediated_added")
N_SCREENED = 64
FEWEST_TO_SPLIT = 8
ENOUGH = 1.0
"""Seconds of a run that is long enough to be timed."""


@dataclass(frozen=True, eq=False)
class Measured:
    """The four measures `[problem, head]`, parts of the insertion's effect, and that effect, the total `[problem]`.

    Of a contrast in which nothing can be cut off, the two z patches (`judge.SIDES`) in their place. `resolution`: the
    precision's own size, or what it did to rows that were not edited, if that is more.
    """

    values: dict[str, np.ndarray]
    total: np.ndarray
    patches: PatchScores
    resolution: float


def measure(
    prepared: Prepared, heads: Sequence[Head], *, contrast: Contrast = CONTRASTS["content"], options: RunOptions
) -> Measured:
    """Sweep exactly, four times over runs that are made once (methods §3, I7 and I14).

    `knockout`: what cutting a head's sight of the span removes; `edge_noise`: what its sight alone adds to a run that cannot
    see the span; `mediated_removed`, `mediated_added`: z patch minus direct read, denoising and noising. Under "computed" it is
    the span's rows whose sight of the question is cut. Where nothing can be cut: the z patches alone.
    """
    sweeps = sweeps_of(contrast)
    runs = sweep_heads(prepared, sweeps, heads, options=options)
    sides = {"removed": "denoising", "added": "noising"}
    values = {f"z_{side}": runs[f"z-{direction}"].per_head for side, direction in sides.items()}
    if contrast.cuts:
        own = {side: runs[f"knockout-{direction}"].per_head for side, direction in sides.items()}
        mediated = {f"mediated_{side}": values[f"z_{side}"] - own[side] for side in sides}
        values = {"knockout": own["removed"], "edge_noise": own["added"], **mediated}
    floor = np.fmax.reduce([prepared.model.resolution, *(run.noise_floor for run in runs.values())])
    return Measured(values, runs["z-noising"].total_effect, runs["z-denoising"], float(floor))


def sweeps_of(contrast: Contrast) -> dict[str, Sweep]:
    """Return the exact sweeps that `measure` takes, by name: four, or two of a contrast in which nothing can be cut off."""
    return {
        f"{edit}-{direction}": Sweep.named(contrast.name, edit=edit, direction=direction)
        for edit in (("knockout", "z") if contrast.cuts else ("z",))
        for direction in DIRECTIONS
    }


def screening(contrast: Contrast) -> tuple[str, ...]:
    """The estimates by which heads can be screened: gates need something to open, patches runs of equal length."""
    return ("gate_ig",) * bool(contrast.cuts) + ("atp",) * contrast.equal_length


def chosen_way(
    prepared: Prepared,
    heads: Sequence[Head],
    contrast: Contrast,
    mode: str,
    budget_seconds: float,
    *,
    options: RunOptions,
) -> tuple[bool, str, float | None]:
    """Return whether heads are measured exactly, why, and the estimated seconds; raise where they cannot be screened."""
    seconds, why, ways = None, "as asked for", "choose mode='exact'"
    joins = f"contrast {contrast.name!r} joins runs of two lengths, which no gradient does" * (not screening(contrast))
    if mode == "exact":
        return True, why, None
    if mode == "auto":
        if len(heads) <= N_SCREENED:
            return True, f"{count_of(len(heads), 'head')}, no more than screening would keep ({N_SCREENED})", None
        seconds = _kept_seconds(prepared, heads, contrast, options)
        if seconds is None:
            return True, "shards sweep exactly, as no clock of one is that of all", None
        why = f"the {'four' if contrast.cuts else 'two'} exact sweeps are estimated"
        if seconds <= budget_seconds:
            return True, f"{why} to stay within the budget of {duration(budget_seconds)}", seconds
        why += f" to exceed the budget of {duration(budget_seconds)}"
        ways = f"{why}, at {duration(seconds)}; raise budget_seconds, or choose mode='exact' to sweep whatever it takes"
        if obstacle := joins or no_gradients_because(prepared.model):
            raise ModelError(f"heads cannot be screened: {obstacle}. But {ways}")
    elif joins:
        raise ValueError(f"heads cannot be screened: {joins}; {ways}")
    refuse_without_gradients(prepared.model, 'locate_heads(mode="screen")')
    if (n := len(prepared.ids)) < FEWEST_TO_SPLIT:
        needs = f"screening splits the problems in two halves and needs at least {FEWEST_TO_SPLIT}, got {n}"
        raise ValueError(f"{needs}: give more problems. {ways[0].upper()}{ways[1:]}")
    return False, why, seconds


def _kept_seconds(prepared: Prepared, heads: Sequence[Head], contrast: Contrast, options: RunOptions) -> float | None:
    """Return the estimate that the run's first start kept, so that a run started again goes the same way; None of shards."""
    settings = {"heads": list(map(str, heads)), "contrast": contrast.name, **prepared.settings}
    fixed = {name: value for name, value in settings.items() if name not in OF_THE_LIST}
    shard = shard_of(prepared.model.engine)
    with Checkpoint(options.part("estimate").checkpoint, fixed, shard=shard) as saved:
        kept = saved.get("estimate")
        if kept is None:
            sweeps = sweeps_of(contrast).values()
            kept = {"seconds": None if shard is not None else estimated_seconds(prepared, heads, sweeps)}
            saved.put({"estimate": kept})
    return kept["seconds"]


def estimated_seconds(prepared: Prepared, heads: Sequence[Head], sweeps: Iterable[Sweep]) -> float:
    """Return the seconds of these sweeps over all problems, from some heads of each layer on a problem of usual length."""
    rows = np.array([len(pair.inserted) - pair.spans[0][1] for pair in prepared.pairs])
    usual = prepared.only([int(np.argmin(np.abs(rows - rows.mean())))])
    named = {str(at): sweep for at, sweep in enumerate(sweeps)}
    layers = [[head for head in heads if head.layer == layer] for layer in {head.layer for head in heads}]

    def run(per_layer: int) -> None:
        some = [head for members in layers for head in members[:per_layer]]
        sweep_heads(usual, named, some, options=RunOptions(progress=False))

    return len(rows) * extrapolated(run, max(map(len, layers)))


def extrapolated(run: Callable[[int], object], total: float | int, *, sizes: int = 1) -> float:
    """Return the seconds of `run(total)`, by the line through runs of 1, 2, 4 ... units up to the first that takes `ENOUGH`, of
    `sizes` at least."""

    def timed(units: int) -> float:
        began = time.perf_counter()
        run(units)
        return time.perf_counter() - began

    size, spent = 1, timed(1)
    if spent < ENOUGH:  # what loads at the first call does not count
        spent = timed(1)
    each = spent
    while 2 * size <= total and (spent < ENOUGH or size < sizes):
        before, size = spent, 2 * size
        spent = timed(size)
        each = max(0.0, spent - before) / (size - size // 2)
    return spent + each * (total - size)


def duration(seconds: float) -> str:
    """Return seconds in words: s, min or h.

    >>> duration(3.14159), duration(600.0), duration(9000.0)
    ('3.14 s', '10 min', '2.5 h')
    """
    if not math.isfinite(seconds):
        return "any length"
    if seconds < 120:
        return f"{seconds:.3g} s"
    return f"{seconds / 60:.3g} min" if seconds < 7200 else f"{seconds / 3600:.3g} h"


def screened(prepared: Prepared, heads: Sequence[Head], contrast: Contrast, *, options: RunOptions) -> tuple[Head, ...]:
    """The union of the best by gate gradients (readers) and by attribution patching (mediators too), in order."""
    chosen: set[Head] = set()
    methods = screening(contrast)
    for method in methods:
        kept = {"checkpoint": options.part(f"screen-{method}").checkpoint, "progress": options.progress}
        of: Arguments = {"contrast": contrast.name, "outcome": prepared.outcome, **kept}
        estimates = attribute_heads(prepared.model, prepared, method=method, verify=0, **of)
        chosen |= set([head for head in estimates.ranking() if head in heads][: N_SCREENED // len(methods)])
    return tuple(sorted(chosen))


LEAST_MATCHED = 8
"""A matched-mass knockout is tested where it is defined on this many problems and on half of them (on all if fewer)."""
OTHERS = {"random": "random words", "questions": "questions of other problems", "mful": "a repeated word"}
"""What else is inserted, in the same place and length: the first decides, the others are reported."""


def check_controls(pairs: Sequence[PromptPair]) -> None:
    """Controls are matched to one insertion: `ValueError` where the pairs have several, or prompts of several templates."""
    names = {
        "insertions": {pair.insertion.label for pair in pairs},
        "templates": {str(pair.template) for pair in pairs},
    }
    for what, found in names.items():
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
    ) -> dict[str, object]:
        """Fields of a result: the named heads under other circumstances (`controls`); those that read, as a set (`joint`) and
        taken apart (`reads`); for its settings, which controls were `left_out`, and digests of the others' prompts.

        `knockouts` `[problem, head]` of the named heads (None: nothing can be cut off); `spare` is swept where none is named;
        `fresh`: the heads were chosen on other problems, so that the set and its reads may be tested.
        """
        named, contrast, first = claims.heads, self.contrast, prepared.bare[0]
        left_out: dict[str, str] = {}
        prompts: dict[str, str] = {}
        controls = self._gap_alone(prepared, named, spare) if first.spans else {}
        held: dict[str, object] = {"controls": controls, "left_out": left_out, "control_prompts": prompts}
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
        options = self.options
        common: Arguments = {"outcome": prepared.outcome, "chosen_elsewhere": fresh, "progress": options.progress}
        if claims.together.any() and knockouts is not None:
            members = tuple(compress(named, claims.together))
            held["joint"] = joint_knockout(
                *(prepared.model, prepared, members),
                contrast=contrast.name,
                n_random_sets=self.n_random_sets,
                singles=knockouts[:, claims.together],
                checkpoint=options.part("random-sets", members).checkpoint,
                seed=options.seed,
                **common,
            )
        if claims.reads.any() and contrast.reads_span:
            readers = tuple(compress(named, claims.reads))
            held["reads"] = read_effects(
                *(prepared.model, prepared, readers),
                confidence=self.confidence,
                smallest_effect=self.smallest_effect or SMALLEST_EFFECT,
                checkpoint=options.part("reads", readers).checkpoint,
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
        shifted = {f"shift_{z}": runs[direction].per_head for z, direction in parts}
        return shifted | {"shift_total": runs["noising"].total_effect}

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
    """In how many problems each named head does more (by more than the smallest effect) than random words, `exceeds_random` of
    `exceeds_random_n`, and than as much attention elsewhere, `exceeds_mass` of `exceeds_mass_n`; `p_specific`: the larger p of
    both, after Holm. NaN where no controls were run.

    `values` are the measures of the named heads. A head is compared by the z patch of its side, a reader that is needed also by
    its knockout; where the matched-mass knockout is undefined on too many problems, random words alone decide. Source: methods
    §8, rule 5.
    """
    columns = ("exceeds_random", "exceeds_random_n", "exceeds_mass", "exceeds_mass_n", "p_specific")
    if "random_size_removed" not in controls:
        return dict.fromkeys(columns, np.full(len(claims.heads), np.nan))
    removed, added = (claims.own(values, z) - controls[f"random_size_{side}"] for side, z in SIDES.items())
    margin = np.where(claims.adds, added, removed)
    mass = np.full_like(margin, np.nan)
    if "matched_mass_size" in controls:
        more_mass = claims.own(values, "knockout") - controls["matched_mass_size"]
        mass = np.where(claims.reads & ~claims.adds, more_mass, np.nan)
    mass = effect.units(mass)
    n, defined = len(mass), np.isfinite(mass).sum(0)
    more = prevalence_test(effect.units(margin), effect.delta, senses=(1,))
    enough = defined >= min(n, max(LEAST_MATCHED, n // 2))
    beyond = prevalence_test(mass, effect.delta, senses=(1,), tested=enough)
    p = holm(np.fmax(more.p[0], beyond.p[0]))
    return dict(zip(columns, (more.count[0], np.asarray(more.n), beyond.count[0], defined, p), strict=True))


def beside_controls(
    effect: Effect, claims: Claims, values: dict[str, np.ndarray], controls: dict[str, np.ndarray], *, fresh: bool
) -> pd.DataFrame:
    """One row per named head: the z patch of its side and the same under each control (`OTHERS`; `matched_mass`: as much
    attention taken elsewhere, of readers; `shift`: the gap alone), medians over problems with intervals. The rest is of
    `specificity`, `p_specific` NaN unless the problems are `fresh`.
    """
    columns: dict[str, Any] = {"label": [str(head) for head in claims.heads], "kind": list(claims.kinds)}
    if not claims.heads:
        return pd.DataFrame(columns)
    nothing = np.full((len(effect.total), len(claims.heads)), np.nan)

    def by_side(table: dict[str, np.ndarray], name: str = "") -> np.ndarray:
        own = {measure.removeprefix(name): each for measure, each in table.items() if measure.startswith(name)}
        there = {z: z in own or own.keys() >= set(PARTS[z]) for z in SIDES.values()}
        removed, added = (measured(own, z) if known else nothing for z, known in there.items())
        return np.where(claims.adds, added, removed)

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
