"""The experiment that names heads: measured, judged, held against controls, confirmed on fresh problems, put together."""

import warnings
from collections.abc import Iterable
from dataclasses import replace
from itertools import compress
from pathlib import Path

from ..core.arguments import Arguments, check_count, check_share, checked, one_of
from ..core.heads import Head
from ..models.base import Model
from ..patching.effect import SMALLEST_EFFECT, check_smallest_effect
from ..patching.outcomes import Outcome, outcome_named
from ..patching.prepared import Prepared, Settings, prepare
from ..prompts.conditions import CONTRASTS
from ..prompts.pairs import Given, PromptPair, digest_of
from ..prompts.problems import overlap
from ..runtime.loop import RunOptions, stage
from ..runtime.text_safety import visible
from ..scores import score_heads
from ..statistics import CONFIDENCE, derive_generator
from .judge import few_in_strata, few_problems
from .located import Confirmation, LocatedHeads
from .measure import N_SCREENED, Controls, check_controls, chosen_way, measure, screened

MODES = ("auto", "exact", "screen")
LOCATED = ("content", "computed", "inside", "shift", "total", "replaced")
"""The contrasts whose heads can be located."""


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
    mode: str = "auto",
    budget_seconds: float = 3600.0,
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
    problems: the prevalence test (exact binomial, against half of all problems; Holm over all tested heads, both ways and both
    senses, with the effect and against it). Its kind (`judge.KINDS`) follows from the same test of four measures among the
    named heads. Heads shown to do less than that are negligible, all others undecided. If most problems do not show a total
    effect of one sign, no head is named.

    Parameters
    ----------
    confirm : fresh problems, none of them among `pairs`, with the same insertion: the named heads, and nothing else, are
        tested on them again, with the controls, and the set of those that read against `n_random_sets` random sets.
        Without it nothing that was chosen on these problems gets a p-value.
    contrast : "content"; "computed" (blind -> inserted) and "inside": what the span has read of the question, of itself; a
        reader there reads it from the span's own rows. "shift", "total", "replaced" differ in more than in what may be seen:
        heads are named by their z patches alone, as carriers; "shift" inserts nothing, so there are no controls.
    by : "answer", or another key of the problems (`Problem.tags`, level, subject): every head is tested over all problems and
        within each stratum that is large enough, in one family; a head that passes in some and not over all is a *specialist*
        for these (methods §9). Fresh problems confirm it in the same strata.
    controls : the named heads under random words of the same length (mean of `n_control_draws`) and, for readers, under a
        knockout of as much attention elsewhere: more than both, by more than the smallest effect, in most problems is
        *specific*. Reported beside: questions of other problems, a repeated word, the gap alone, and whether the span that a
        head reads is an attention sink (`LocatedHeads.sinks`).
    confidence : of intervals; 1 - confidence bounds the probability that any head is named falsely.
    smallest_effect : of interest, as a share of the upper limit of the median total effect.
    mode : "exact" sweeps all `heads` on all problems; "screen" ranks heads by gradients on one half of the problems and
        tests the best 64 on the other; "auto" sweeps exactly where that is estimated to stay within `budget_seconds`.
    checkpoint : folder for partial results; a run started again with the same settings (or with more problems) goes on from
        there, the way that "auto" took the first time included.

    Warns before it sweeps where the problems are too few to name any head, or the fresh ones to confirm one.

    Source: methods §8 and §9.
    """
    check_share(confidence, name="confidence")
    check_smallest_effect(smallest_effect)
    if controls:
        check_count(n_control_draws, name="n_control_draws (controls=False leaves controls out)")
    check_count(n_random_sets, name="n_random_sets", at_least=0)
    derive_generator(seed)
    one_of(mode, MODES, "mode")
    between = one_of(contrast, {name: CONTRASTS[name] for name in LOCATED}, "contrast to locate heads by")
    run = RunOptions(checkpoint, progress, seed)
    prepared = prepare(model, pairs, outcome_named(outcome, signed_for="locating heads")).under(between)
    if prepared.n_groups < 2:
        raise ValueError(f"locating heads needs at least 2 problems (the unit of replication), got {prepared.n_groups}")
    if controls:
        check_controls(prepared.bare)
        if between.reads_inserted and not all(pair.given for pair in prepared.bare):
            model.need_tokenizer("locate_heads with controls (controls=False does without)")
    strata = _strata(prepared, by)
    fresh = None
    if confirm is not None:
        fresh = fresh_problems(prepare(model, confirm, prepared.outcome).under(between), prepared)
        _strata(fresh, by)
    candidates = model.info.chosen(heads, what="locate")
    exact, why, seconds = chosen_way(prepared, candidates, between, mode, budget_seconds, options=run)
    discovery, n_tested = None, len(candidates)
    if not exact:
        discovery, prepared = prepared.halves()
        strata, n_tested = _strata(prepared, by), min(n_tested, N_SCREENED)
    few = [few_problems(prepared.n_groups, n_tested, confidence)]
    few += [] if by is None else [few_in_strata(strata, prepared.groups, n_tested, confidence, by)]
    few += [] if fresh is None else [few_problems(fresh.n_groups, 1, confidence, per_head=1)]
    for words in filter(None, few):
        warnings.warn(visible(words), stacklevel=3)
    family = candidates if discovery is None else screened(discovery, candidates, between, options=run)
    with stage("naming heads"):
        made = measure(prepared, family, contrast=between, options=run.part("mless", *(() if exact else (family,))))
    swept = "all heads on all problems, exactly" if exact else "heads screened on the other half of the problems"
    settings: Settings = {
        "contrast": contrast,
        "n_control_draws": n_control_draws if controls else 0,
        "n_random_sets": n_random_sets if controls else 0,
        "control_seed": seed,
        "swept": swept,
        "why": why,
        "estimated_seconds": seconds,
        "budget_seconds": budget_seconds if mode == "auto" else None,
        "n_candidates": len(candidates),
        "screened": None if exact else [str(head) for head in family],
        "n_fresh": 0 if fresh is None else len(fresh.ids),
        **({} if by is None else {"by": by}),
    }
    rules: Arguments = {"smallest_effect": smallest_effect, "confidence": confidence}
    found = LocatedHeads(
        heads=family,
        values=made.values,
        total=made.total,
        patches=replace(made.patches, smallest_effect=smallest_effect, confidence=confidence),
        strata=strata,
        seed=seed,
        **(rules | prepared.fields(settings) | {"resolution": made.resolution}),
    )
    claims, confirmation = found.judged.found, None
    held: Arguments = {}
    beside = Controls(n_control_draws, n_random_sets, confidence, smallest_effect, run, between)
    if fresh is not None and claims.heads:
        apart = run if run.checkpoint is None else replace(run, checkpoint=Path(run.checkpoint) / "confirm")
        with stage("confirming"):
            confirmation = _confirmed(fresh, found, replace(beside, options=apart), controls=controls)
    elif controls:
        knockouts = made.values["knockout"][:, found.judged.named] if between.cuts else None
        with stage("running controls"):
            held = beside.held(prepared, claims, knockouts, family[0], fresh=False)
    sinks, readers = None, tuple(compress(claims.heads, claims.reads))
    if controls and readers:
        kept: Arguments = {"checkpoint": run.part("sinks", readers).checkpoint, "progress": progress}
        sinks = score_heads(model, prepared.pairs, metrics="sinks", conditions=("inserted",), heads=readers, **kept)
    return replace(found, **_with_settings(held, found.settings), confirmation=confirmation, sinks=sinks)


def _confirmed(fresh: Prepared, found: LocatedHeads, beside: Controls, *, controls: bool) -> Confirmation:
    """The named heads again, on problems that had no part in naming them; what is tested there alone beside."""
    claims, settings = found.judged.found, {**found.settings, "prompts": digest_of(fresh.pairs)}
    made = measure(fresh, claims.heads, contrast=beside.contrast, options=beside.options.part("mless", claims.heads))
    knockouts = made.values.get("knockout")
    held = beside.held(fresh, claims, knockouts, claims.heads[0], fresh=True) if controls else {}
    return Confirmation(
        heads=claims.heads,
        kinds=claims.kinds,
        senses=claims.sense,
        direction=claims.direction,
        values=made.values,
        total=made.total,
        within=claims.within,
        strata=_strata(fresh, settings.get("by")),
        seed=found.seed,
        confidence=found.confidence,
        smallest_effect=found.smallest_effect,
        **(fresh.fields({}) | _with_settings(held, settings) | {"resolution": made.resolution}),
    )


def _with_settings(held: Arguments, settings: Settings) -> Arguments:
    """What the controls gave as fields of a result, with its settings, which say what was left out."""
    told = ("left_out", "control_prompts")
    fields = {name: each for name, each in held.items() if name not in told}
    return fields | {"settings": settings | {name: held.get(name, {}) for name in told}}


def fresh_problems(fresh: Prepared, used: Prepared) -> Prepared:
    """The problems to confirm on; `ValueError` where one of them was used, or the insertion or the prompt is another."""
    mine, before = ([pair.problem for pair in prepared.bare] for prepared in (fresh, used))
    ids, asked, named = set(used.ids), {each.asked for each in before}, {each.group or each.id for each in before}
    given = {pair.inserted.ids for pair in used.bare if pair.given}  # whatever their clean prompts
    again = [
        pair.id
        for pair, problem in zip(fresh.bare, mine, strict=True)
        if {pair.id, problem.group or problem.id} & (ids | named)
        or problem.asked in asked
        or (pair.given and pair.inserted.ids in given)
    ]
    if again or (alike := overlap(mine, before)):
        first = f"first: {again[0]!r}" if again else alike
        raise ValueError(
            f"{len(again) or 'some'} of {len(fresh.ids)} problems to confirm on are among those that name the heads, or "
            f"variants of them: heads cannot be confirmed on the problems that chose them; give others ({first})"
        )
    for what in ("insertion", "template"):
        each = ({getattr(pair, what) for pair in prepared.bare} for prepared in (used, fresh))
        ours, theirs = (sorted({one.label if isinstance(one, Given) else str(one) for one in some}) for some in each)
        if ours != theirs:
            raise ValueError(
                f"the problems to confirm on have another {what} ({', '.join(theirs)[:99]}) than those that name the heads "
                f"({', '.join(ours)[:99]}): make both with the same one"
            )
    return fresh


def _strata(prepared: Prepared, by: str | None) -> tuple[str, ...]:
    """The stratum of each problem by a key; `ValueError` where some problems have nothing under it."""
    if by is None:
        return ()
    found = [pair.problem.text(by) for pair in prepared.bare]
    lacking = [pair.id for pair, value in zip(prepared.bare, found, strict=True) if not value]
    if lacking:
        known = sorted(set.intersection(*(set(pair.problem.keys) for pair in prepared.bare)) - {"id", "question"})
        raise ValueError(
            f"by={by!r}: {len(lacking)} of {len(found)} problems have nothing under that key (first: {lacking[0]!r}); all have "
            f"{', '.join(known)}"
        )
    return tuple(map(str, found))
