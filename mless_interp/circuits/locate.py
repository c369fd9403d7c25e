"""Which heads carry an effect: every head measured, the named ones held against controls and confirmed on fresh problems."""

import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import compress
from pathlib import Path

import numpy as np

from ..core.arguments import Arguments, check_count, check_share, checked, listed, one_of
from ..core.heads import Head
from ..models.base import Model
from ..patching.effect import SMALLEST_EFFECT, check_smallest_effect
from ..patching.interventions import MatchedMassKnockout
from ..patching.knockouts import joint_knockout, read_effects
from ..patching.outcomes import Outcome, outcome_named
from ..patching.prepared import Prepared, Settings, prepare
from ..patching.sweep import PatchScores, Sweep, sweep_heads
from ..prompts.conditions import CONTRASTS, DIRECTIONS, LOCATED, Contrast
from ..prompts.insertions import Insertion
from ..prompts.pairs import Given, PromptPair, draws_beside, pairs_like
from ..prompts.problems import overlap
from ..runtime.checkpoint import CheckpointError
from ..runtime.loop import RunOptions, stage
from ..runtime.text_safety import visible
from ..statistics import CONFIDENCE
from .judge import OTHERS, SIDES, Claims, few_problems, measured
from .located import Confirmation, LocatedHeads

Values = dict[str, np.ndarray]


@checked
def locate_heads(
    model: Model,
    pairs: Iterable[PromptPair] | Prepared,
    *,
    confirm: Iterable[PromptPair] | Prepared | None = None,
    contrast: str = "content",
    outcome: str | Outcome = "answer_logprob",
    by: str | None = None,
    heads: Iterable[Head | str] | None = None,
    confidence: float = CONFIDENCE,
    smallest_effect: float = SMALLEST_EFFECT,
    n_control_draws: int = 5,
    n_random_sets: int = 100,
    controls: bool = True,
    checkpoint: str | Path | None = None,
    progress: bool = True,
    seed: int = 0,
) -> LocatedHeads:
    """Name the heads that carry the insertion's content effect (or that of another `contrast`): who reads it, who passes it on,
    in how many problems.

    A head is named if patching its output removes, or adds, more than `smallest_effect` of the median total effect in most
    problems: the prevalence test (exact binomial; Holm over all tested heads, both ways and both senses). Its kind
    (`judge.KINDS`) follows from the same test of four measures. Heads shown to do less are negligible, all others undecided.

    Parameters
    ----------
    confirm : fresh problems with the same insertion: the named heads alone are tested there again, with the controls, and the
        set of those that read against `n_random_sets` random sets.
    contrast : "content"; "computed" (blind -> inserted) and "inside": what the span has read of the question, of itself; a
        reader there reads it from the span's own rows. "shift", "total", "replaced" name heads by their z patches alone.
    by : "answer", or another key of the problems (`Problem.tags`, level, subject): heads are tested over all problems and
        within each stratum that is large enough, in one family; one that passes in some alone is a *specialist* (methods §9).
    controls : the named heads under random words of the same length (mean of `n_control_draws`) and, for readers, under a
        knockout of as much attention elsewhere: more than both in most problems is *specific*. A repeated word, and the gap
        alone, are reported.
    confidence : of intervals; 1 - confidence bounds the probability that any head is named falsely.
    smallest_effect : of interest, as a share of the upper limit of the median total effect.
    checkpoint : a folder, as in `patch_heads`.

    Warns before it sweeps where the problems are too few to name any head, or the fresh ones to confirm one.

    Source: methods §8 and §9.
    """
    check_share(confidence, name="confidence")
    check_smallest_effect(smallest_effect)
    if controls:
        check_count(n_control_draws, name="n_control_draws (controls=False leaves controls out)")
    check_count(n_random_sets, name="n_random_sets", at_least=0)
    between = one_of(contrast, {name: CONTRASTS[name] for name in LOCATED}, "contrast to locate heads by")
    run = RunOptions(checkpoint, progress, seed)
    prepared = prepare(model, pairs, outcome_named(outcome, signed_for="locating heads")).under(between)
    if prepared.n_groups < 2:
        raise ValueError(f"locating heads needs at least 2 problems (the unit of replication), got {prepared.n_groups}")
    if controls:
        check_controls(prepared.bare)
        if between.reads_inserted and not all(pair.given for pair in prepared.bare):
            model.need_tokenizer("locate_heads with controls (controls=False does without)")
            under(prepared, Insertion.random_sentence(prepared.bare[0].n_inserted, seed=seed))  # refused now or never
    _strata(prepared, by)
    fresh = None
    if confirm is not None:
        fresh = fresh_problems(prepare(model, confirm, prepared.outcome).under(between), prepared)
        _strata(fresh, by)
    family = model.info.chosen(heads, what="locate")
    few = few_problems(prepared.n_groups, len(family), confidence)
    few_fresh = "" if fresh is None else few_problems(fresh.n_groups, 1, confidence, per_head=1)
    for words in filter(None, (few, few_fresh)):
        warnings.warn(visible(words), stacklevel=3)
    with stage("naming heads"):
        made, patches = measure(prepared, family, contrast=between, options=run.part("mless"))
    settings: Settings = {
        "contrast": contrast,
        "n_control_draws": n_control_draws if controls else 0,
        "n_random_sets": n_random_sets if controls else 0,
        "control_seed": seed,
        "n_fresh": 0 if fresh is None else len(fresh.ids),
        **({} if by is None else {"by": by}),
    }
    rules: Arguments = {"smallest_effect": smallest_effect, "confidence": confidence}

    def fields(of: Prepared, told: Settings) -> Arguments:
        return {"strata": _strata(of, by), "seed": seed, **rules, **of.fields(settings | told)}

    located = LocatedHeads(heads=family, patches=replace(patches, **rules), **(fields(prepared, {}) | made))
    claims, controlled = located.judged.found, Controls(n_control_draws, n_random_sets, between, run, **rules)
    if not claims.heads:
        return located
    held: Arguments = {}
    told: Settings = {}
    if fresh is None:
        if controls:
            with stage("running controls"):
                values = {name: each[:, located.judged.named] for name, each in located.values.items()}
                held, told = controlled.held(prepared, claims, values)
        return replace(located, **held, settings=located.settings | told)
    apart = run if run.checkpoint is None else replace(run, checkpoint=Path(run.checkpoint) / "confirm")
    with stage("confirming"):
        again, _ = measure(fresh, claims.heads, contrast=between, options=apart.part("mless", claims.heads))
        if controls:
            held, told = replace(controlled, options=apart).held(fresh, claims, again["values"], fresh=True)
    return replace(located, confirmation=Confirmation(**vars(claims), **(fields(fresh, told) | again), **held))


def fresh_problems(fresh: Prepared, used: Prepared) -> Prepared:
    """Check the problems to confirm on: none of them was used, insertion and prompt are the same."""

    def known(pair: PromptPair) -> set[object]:
        """Return by what a problem is recognised: variants have a group, token ids may have any clean prompt."""
        own = pair.problem
        return {pair.id, own.group or own.id, ("asked", own.asked), *([pair.inserted.ids] if pair.given else [])}

    before = set().union(*map(known, used.bare))
    again = [pair.id for pair in fresh.bare if known(pair) & before]
    mine, theirs = ([pair.problem for pair in prepared.bare] for prepared in (fresh, used))
    if again or (alike := overlap(mine, theirs)):
        which = f"{len(again) or 'some'} of {len(fresh.ids)} problems to confirm on"
        first = f"first: {again[0]!r}" if again else alike
        raise ValueError(f"{which} are among those that name the heads, or variants of them: give others ({first})")
    for what in ("insertion", "template"):
        each = ({getattr(pair, what) for pair in prepared.bare} for prepared in (used, fresh))
        ours, other = (sorted({one.label if isinstance(one, Given) else str(one) for one in some}) for some in each)
        if ours != other:
            there, here = map(listed, (other, ours))
            than = f"another {what} ({there}) than those that name the heads ({here})"
            raise ValueError(f"the problems to confirm on have {than}: make both with the same one")
    return fresh


def _strata(prepared: Prepared, by: str | None) -> tuple[str, ...]:
    """Return the stratum of each problem by a key; `ValueError` where some problems have nothing under it."""
    if by is None:
        return ()
    found = [pair.problem.texts.get(by) for pair in prepared.bare]
    lacking = [pair.id for pair, value in zip(prepared.bare, found, strict=True) if not value]
    if lacking:
        known = sorted(set.intersection(*(set(pair.problem.texts) for pair in prepared.bare)) - {"id", "question"})
        which = f"{len(lacking)} of {len(found)} problems have nothing under that key (first: {lacking[0]!r})"
        raise ValueError(f"by={by!r}: {which}; all have {', '.join(known)}")
    return tuple(map(str, found))


def measure(
    prepared: Prepared, heads: Sequence[Head], *, contrast: Contrast, options: RunOptions
) -> tuple[Arguments, PatchScores]:
    """Sweep exactly, four times over runs that are made once (methods §3, I7 and I14): fields of a result, and the z sweep.

    `values` `[problem, head]` are parts of `total` `[problem]`. `knockout`: what cutting a head's sight of the span removes;
    `edge_noise`: what its sight alone adds; `mediated_removed`, `mediated_added`: z patch minus direct read. Where nothing can
    be cut: the z patches alone. `resolution`: the precision's own, or what it did to rows that were not edited.
    """
    runs = sweep_heads(prepared, sweeps_of(contrast), heads, options=options)
    sides = {"removed": "denoising", "added": "noising"}
    values = {f"z_{side}": runs[f"z-{direction}"].per_head for side, direction in sides.items()}
    if contrast.cuts:
        own = {side: runs[f"knockout-{direction}"].per_head for side, direction in sides.items()}
        mediated = {f"mediated_{side}": values[f"z_{side}"] - own[side] for side in sides}
        values = {"knockout": own["removed"], "edge_noise": own["added"], **mediated}
    floor = float(np.fmax.reduce([prepared.model.resolution, *(run.noise_floor for run in runs.values())]))
    return {"values": values, "total": runs["z-noising"].total_effect, "resolution": floor}, runs["z-denoising"]


def sweeps_of(contrast: Contrast) -> dict[str, Sweep]:
    """Return the exact sweeps that `measure` takes, by name: four, or two of a contrast in which nothing can be cut off."""
    return {
        f"{edit}-{direction}": Sweep.named(contrast.name, edit=edit, direction=direction)
        for edit in (("knockout", "z") if contrast.cuts else ("z",))
        for direction in DIRECTIONS
    }


def check_controls(pairs: Sequence[PromptPair]) -> None:
    """Raise `ValueError` where controls cannot be matched to one insertion: the pairs have several, or several templates."""
    every = {
        "insertions": [pair.insertion.label for pair in pairs],
        "templates": [str(pair.template) for pair in pairs],
    }
    for what, names in every.items():
        if len(found := sorted(set(names))) > 1:
            have = f"the pairs have {len(found)} {what} ({', '.join(found[:3])})"
            ways = "locate heads for each one alone, or leave controls out (controls=False)"
            raise ValueError(f"controls are matched in place and length to one insertion, but {have}: {ways}")


def under(prepared: Prepared, insertion: Insertion) -> Prepared:
    """Return the same problems with another insertion in the same place, in each as long as its own."""
    return prepare(prepared.model, pairs_like(prepared.model, prepared.bare, insertion), prepared.outcome)


@dataclass(frozen=True)
class Controls:
    """Which controls are run."""

    draws: int
    n_random_sets: int
    contrast: Contrast
    options: RunOptions
    confidence: float
    smallest_effect: float

    def held(
        self, prepared: Prepared, claims: Claims, values: Values, *, fresh: bool = False
    ) -> tuple[Arguments, Settings]:
        """Measure fields of a result, and what its settings say of controls. `values`: measures of the named heads; `fresh`:
        they were chosen on other problems, so that the set and its reads may be tested."""
        named, contrast, first, options = claims.heads, self.contrast, prepared.bare[0], self.options
        controls = self._gap_alone(prepared, named) if first.spans else {}
        left_out: dict[str, str] = {}
        if first.given or not contrast.reads_inserted:
            why = "pairs of token ids have no text to draw others from"
            why = why if first.given else "with no tokens inserted, other tokens make no difference"
            left_out = dict.fromkeys(OTHERS, why)
        else:
            controls |= self._other_insertions(prepared, named, left_out)
        held: Arguments = {"controls": controls}
        common: Arguments = {"outcome": prepared.outcome, "chosen_elsewhere": fresh, "progress": options.progress}
        if contrast.cuts:
            controls |= self._matched_mass(prepared, named)
        if claims.together.any() and contrast.cuts:
            members = tuple(compress(named, claims.together))
            common |= {"checkpoint": options.part("random-sets", members).checkpoint}
            of: Arguments = {"contrast": contrast.name, "n_random_sets": self.n_random_sets, "seed": options.seed}
            singles = values["knockout"][:, claims.together]
            held["joint"] = joint_knockout(prepared.model, prepared, members, singles=singles, **of, **common)
        if claims.reads.any() and contrast.reads_span:
            readers = tuple(compress(named, claims.reads))
            common |= {"checkpoint": options.part("reads", readers).checkpoint}
            by: Arguments = {"confidence": self.confidence, "smallest_effect": self.smallest_effect or SMALLEST_EFFECT}
            held["reads"] = read_effects(prepared.model, prepared, readers, **by, **common)
        return held, {"left_out": left_out}

    def _gap_alone(self, prepared: Prepared, named: Sequence[Head]) -> Values:
        """Return what the shift of positions does with nothing inserted (C0 -> C2), in all and by each named head."""
        sweeps = {z: Sweep.named("shift", way) for z, way in zip(SIDES.values(), ("denoising", "noising"), strict=True)}
        runs = sweep_heads(prepared, sweeps, named, options=self.options.part("shift", named))
        return {f"shift_{z}": run.per_head for z, run in runs.items()} | {"shift_total": runs["z_added"].total_effect}

    def _other_insertions(self, prepared: Prepared, named: Sequence[Head], left_out: dict[str, str]) -> Values:
        """Measure the named heads with something else in the same place and of the same length; `random_size_removed`,
        `_added`: the mean over draws of |z patch|, so that opposite signs do not hide each other."""
        own, n_tokens, seed = prepared.bare[0].insertion, prepared.bare[0].n_inserted, self.options.seed

        def beside(name: str, insertion: Insertion) -> Values:
            other = under(prepared, insertion)
            return measure(other, named, contrast=self.contrast, options=self.options.part(name, named))[0]["values"]

        found = [
            beside(f"random-{each.draw}", each)
            for each in draws_beside(own, Insertion.random_sentence(n_tokens, seed=seed), self.draws)
        ]
        held = {f"random_{part}": np.mean([one[part] for one in found], axis=0) for part in found[0]}
        for side, z in SIDES.items():
            held[f"random_size_{side}"] = np.mean([np.abs(measured(one, z)) for one in found], axis=0)
        repeated = Insertion.meaningful("he", n_tokens)
        if (own.kind, own.unit) == (repeated.kind, repeated.unit):
            left_out["mful"] = "it is the insertion under study"
            return held
        try:
            return held | {f"mful_{part}": each for part, each in beside("mful-0", repeated).items()}
        except CheckpointError:
            raise
        except ValueError as error:  # random words decide; this one is reported
            left_out["mful"] = str(error).rstrip(".")
            return held

    def _matched_mass(self, prepared: Prepared, named: Sequence[Head]) -> Values:
        """Take as much attention elsewhere: mean over draws, and mean over draws of its size."""
        edits = [MatchedMassKnockout(seed=self.options.seed, draw=draw) for draw in range(self.draws)]
        sweeps = {f"matched-{at}": Sweep.named(self.contrast.name, edit=edit) for at, edit in enumerate(edits)}
        runs = sweep_heads(prepared, sweeps, named, options=self.options.part("matched-mass", named))
        drawn = [run.per_head for run in runs.values()]
        return {"matched_mass": np.mean(drawn, axis=0), "matched_mass_size": np.mean(np.abs(drawn), axis=0)}
