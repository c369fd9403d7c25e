"""The experiment that names heads: measured, judged, held against controls, confirmed on fresh problems, put together."""

import warnings
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import compress
from pathlib import Path
from typing import Any

import numpy as np

from ..core.arguments import checked
from ..core.heads import Head
from ..models.base import Model
from ..patching.effect import SMALLEST_EFFECT, check_smallest_effect
from ..patching.outcomes import outcome_named
from ..patching.prepared import Prepared, prepare
from ..prompts.conditions import CONTRASTS, Contrast, one_of
from ..prompts.pairs import Given, PromptPair, digest_of
from ..prompts.problems import overlap
from ..runtime.progress import stage
from ..runtime.text_safety import visible
from ..statistics import CONFIDENCE
from ..statistics.arguments import check_count, check_share, derive_generator
from .confirmation import Confirmation
from .judge import PER_HEAD, Judged
from .located import LocatedHeads
from .measure import N_SCREENED, Measured, Way, chosen_way, kept_file, measure, screened
from .sentences import few_in_strata, few_problems
from .specificity import Controls, Held, check_controls, sinks_read

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
    outcome: str = "answer_logprob",
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

    Four measures, per problem and head, parts of the insertion's effect: `knockout` (what cutting this head's
    sight of the span removes), `edge_noise` (what its sight alone adds to a run that cannot see the span), and the
    upstream-mediated parts `mediated_removed`, `mediated_added` (z patch minus direct read, denoising and noising; exactly
    0 in layer 0). Read and mediated part together are what patching the head's output removes and adds.

    A head is named if patching its output removes, or adds, more than `smallest_effect` of the median total effect in most
    problems: the prevalence test (exact binomial, against half of all problems; Holm over all tested heads, both ways and both
    senses, with the effect and against it), since effects on log-probabilities are far too skewed for tests of means. Both
    ways: a carrier; one way: necessary only, or sufficient only. Its kind (reader, conditional reader, mediator, ...,
    `judge.KINDS`) follows from the same test of the four measures among the named heads. Heads shown to do less than that are
    negligible, all others undecided. If most problems do not show a total effect of one sign, no head is named.

    Parameters
    ----------
    confirm : fresh problems, none of them among `pairs`, with the same insertion: the named heads, and nothing else, are
        tested on them again, with the controls, and the set of those that read against `n_random_sets` random sets.
        Without it nothing that was chosen on these problems gets a p-value.
    contrast : "content"; "computed" (blind -> inserted): what the span has read of the question. A reader there reads the
        question from the span's own rows, a mediator passes on what was read; `read_effects` is of the span's readers and left
        out. "shift" and "total" differ in more than in what may be seen: heads are named by their z patches alone, as
        carriers, and not taken apart; "shift" inserts nothing, so there are no controls.
    by : "answer", or another key of the problems (`Problem.tags`, level, subject): every head is tested over all problems and
        within each stratum that is large enough, in one family; a head that passes in some and not over all is a *specialist*
        for these (methods §9). Fresh problems confirm it in the same strata. Strata are fixed before effects are seen.
    controls : the named heads under random words of the same length (mean of `n_control_draws`) and, for readers, under a
        knockout of as much attention elsewhere: more than both, by more than the smallest effect, in most problems is
        *specific*. Reported beside: questions of other problems, a repeated word, the gap alone, and whether the span that a
        head reads is an attention sink (`LocatedHeads.sinks`). False leaves them all out.
    confidence : of intervals; 1 - confidence bounds the probability that any head is named falsely.
    smallest_effect : of interest, as a share of the median total effect, which is taken at its upper limit (a fifth of 1 -
        confidence is spent on that, the rest on the tests).
    mode : "exact" sweeps all `heads` on all problems; "screen" ranks heads by gradients on one half of the problems and
        tests the best 64 on the other; "auto" sweeps exactly where that stays within `budget_seconds`, estimated from
        small sweeps over all layers of the first problem. The result says which was done and why.
    checkpoint : folder for the sweeps' partial results; a run started again with the same settings goes on from there, the
        way that "auto" took the first time included, however long the sweeps are estimated to take now. So does one with more
        problems: what it shares with the first is not computed again, except for heads that are named only now.

    Warns before it sweeps where the problems are too few to name any of so many heads, or the fresh ones to confirm a single
    one, with the number needed.

    Source: methods §8 and §9. Differs from a plain patching sweep in that the problem is the unit of replication, and a
    claim about a head is a number of problems.
    """
    rules = Rules(confidence, smallest_effect, n_control_draws, n_random_sets, controls, seed)
    one_of(mode, dict.fromkeys(MODES), "mode")
    between = CONTRASTS[one_of(contrast, dict(zip(LOCATED, LOCATED, strict=True)), "contrast to locate heads by")]
    if not budget_seconds >= 0:
        raise ValueError(f"budget_seconds must be 0 or more, got {budget_seconds}")
    prepared = prepare(model, pairs, outcome_named(outcome, signed_for="locating heads")).under(between)
    if prepared.n_groups < 2:
        raise ValueError(f"locating heads needs at least 2 problems (the unit of replication), got {prepared.n_groups}")
    if controls:
        check_controls(prepared.bare)
        if between.reads_inserted and not all(pair.given for pair in prepared.bare):
            model.need_tokenizer("locate_heads with controls (controls=False does without)")
    strata = _strata(prepared, by)
    fresh = None if confirm is None else prepare(model, confirm, prepared.outcome).under(between)
    fresh = None if fresh is None else fresh_problems(fresh, prepared)
    if fresh is not None:
        _strata(fresh, by)
    candidates = model.info.chosen(heads, what="locate")
    top = folder = None if checkpoint is None else Path(checkpoint)
    way = chosen_way(prepared, candidates, between, mode=mode, budget_seconds=budget_seconds, folder=folder)
    family = candidates
    if not way.exact:
        discovery, prepared = prepared.halves()
        strata = _strata(prepared, by)
        _warn_of_few(prepared.n_groups, min(len(candidates), N_SCREENED), confidence)
        family = screened(discovery, candidates, between, folder=folder, progress=progress)
    else:
        _warn_of_few(prepared.n_groups, len(family), confidence)
    if by is not None and (words := few_in_strata(strata, prepared.groups, len(family), confidence, by)):
        warnings.warn(visible(words), stacklevel=3)
    if fresh is not None:
        _warn_of_few(fresh.n_groups, 1, confidence, per_head=1)
    file = None if folder is None else folder / "mless.jsonl" if way.exact else kept_file(folder, "mless", family)
    with stage("naming heads"):
        measured = measure(prepared, family, contrast=between, checkpoint=file, progress=progress, seed=seed)
    settings = {
        **prepared.settings,
        "contrast": contrast,
        **rules.settings,
        **_way_settings(way, family, candidates, budget_seconds if mode == "auto" else None),
        "n_fresh": 0 if fresh is None else len(fresh.ids),
        **({} if by is None else {"by": by}),
    }
    found = LocatedHeads(
        problem_ids=prepared.ids,
        heads=family,
        values=measured.values,
        total=measured.total,
        patches=replace(measured.patches, smallest_effect=smallest_effect, confidence=confidence),
        unit=prepared.outcome.unit,
        settings=settings,
        seed=seed,
        confidence=confidence,
        smallest_effect=smallest_effect,
        resolution=_resolution(model, measured),
        groups=prepared.groups,
        strata=strata,
    )
    judged = found.judged
    held, confirmation = Held(), None
    if fresh is not None and judged.named.any():
        folder = None if folder is None else folder / "confirm"
        with stage("confirming"):
            confirmation = rules.confirmed(fresh, judged, settings, folder=folder, progress=progress)
    elif controls:
        knockouts = measured.values["knockout"][:, judged.named] if between.cuts else None
        made = rules.controls_in(folder, progress, between)
        with stage("running controls"):
            held = made.held(prepared, judged.found, knockouts, family[0], fresh=False)
    readers = tuple(compress(judged.found.heads, judged.found.reads))
    sinks = None
    if controls and readers:
        sinks = sinks_read(prepared, readers, checkpoint=kept_file(top, "sinks", readers), progress=progress)
    return replace(
        found,
        controls=held.values,
        settings={**settings, **held.settings},
        joint=held.joint,
        reads=held.reads,
        confirmation=confirmation,
        sinks=sinks,
    )


def fresh_problems(fresh: Prepared, used: Prepared) -> Prepared:
    """The problems to confirm on; `ValueError` where one of them was used, or the insertion or the prompt is another."""
    ids, asked = set(used.ids), {pair.problem.asked for pair in used.bare}
    given = {pair.inserted.ids for pair in used.bare if pair.given}  # whatever their clean prompts
    again = [
        pair.id
        for pair in fresh.bare
        if pair.id in ids or pair.problem.asked in asked or (pair.given and pair.inserted.ids in given)
    ]
    if again:
        raise ValueError(
            f"{len(again)} of {len(fresh.ids)} problems to confirm on are among those that name the heads (first: "
            f"{again[0]!r}): nothing can be confirmed on what it was chosen by; give others, for example "
            "problems[:64] to name and problems[64:128] to confirm"
        )
    mine, before = ([pair.problem for pair in prepared.bare] for prepared in (fresh, used))
    named = {problem.group or problem.id for problem in before}
    variants = [problem for problem in mine if (problem.group or problem.id) in named]
    if variants:
        raise ValueError(
            f"{len(variants)} of {len(fresh.ids)} problems to confirm on are variants of those that name the heads (first: "
            f"{variants[0].id!r}, of group {variants[0].group!r}): nothing can be confirmed on what it was chosen by; give "
            "problems of other groups"
        )
    if alike := overlap(mine, before):
        raise ValueError(f"nothing can be confirmed on variants of the problems that name the heads: {alike}")
    if fresh.n_groups < 2:
        raise ValueError(f"confirming needs at least 2 problems (the unit of replication), got {fresh.n_groups}")
    for what in ("insertion", "template"):
        ours, theirs = ({_named(getattr(pair, what)) for pair in prepared.bare} for prepared in (used, fresh))
        if ours != theirs:
            raise ValueError(
                f"the problems to confirm on have another {what} ({', '.join(sorted(theirs))[:200]}) than those that name the "
                f"heads ({', '.join(sorted(ours))[:200]}): make both with the same one"
            )
    return fresh


def _named(what: Any) -> str:
    return what.label if isinstance(what, Given) else str(what)


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


def _resolution(model: Model, measured: Measured) -> float:
    """What is rounding: the precision's own size, or what it did to rows that were not edited, if that is more."""
    return float(np.fmax(model.resolution, measured.noise))


def _warn_of_few(n: int, n_heads: int, confidence: float, *, per_head: int = PER_HEAD) -> None:
    words = few_problems(n, n_heads, confidence, per_head=per_head)
    if words:
        warnings.warn(visible(words), stacklevel=4)


@dataclass(frozen=True)
class Rules:
    """By what heads are named and what the named ones are held against; checked before anything runs."""

    confidence: float
    smallest_effect: float
    n_control_draws: int
    n_random_sets: int
    controls: bool
    seed: int

    def __post_init__(self) -> None:
        check_share(self.confidence, name="confidence")
        check_smallest_effect(self.smallest_effect)
        if not isinstance(self.controls, bool):
            raise TypeError(f"controls must be True or False, got {self.controls!r}")
        if self.controls:
            check_count(self.n_control_draws, name="n_control_draws (controls=False leaves controls out)")
        check_count(self.n_random_sets, name="n_random_sets", at_least=0)
        derive_generator(self.seed)

    @property
    def settings(self) -> dict[str, Any]:
        return {
            "n_control_draws": self.n_control_draws if self.controls else 0,
            "n_random_sets": self.n_random_sets if self.controls else 0,
            "control_seed": self.seed,
        }

    def controls_in(self, folder: Path | None, progress: bool, contrast: Contrast) -> Controls:
        draws, sets = self.n_control_draws, self.n_random_sets
        return Controls(draws, sets, self.confidence, self.smallest_effect, folder, progress, self.seed, contrast)

    def confirmed(
        self, fresh: Prepared, judged: Judged, settings: dict[str, Any], *, folder: Path | None, progress: bool
    ) -> Confirmation:
        """The named heads again, on problems that had no part in naming them; what is tested there alone beside."""
        claims, contrast = judged.found, CONTRASTS[settings["contrast"]]
        file = kept_file(folder, "mless", claims.heads)
        measured = measure(fresh, claims.heads, contrast=contrast, checkpoint=file, progress=progress, seed=self.seed)
        held = Held()
        if self.controls:
            made = self.controls_in(folder, progress, contrast)
            held = made.held(fresh, claims, measured.values.get("knockout"), claims.heads[0], fresh=True)
        return Confirmation(
            problem_ids=fresh.ids,
            groups=fresh.groups,
            heads=claims.heads,
            kinds=claims.kinds,
            senses=claims.sense,
            direction=claims.direction,
            values=measured.values,
            total=measured.total,
            controls=held.values,
            joint=held.joint,
            reads=held.reads,
            unit=fresh.outcome.unit,
            settings={**settings, **held.settings, "prompts": digest_of(fresh.pairs)},
            seed=self.seed,
            confidence=self.confidence,
            smallest_effect=self.smallest_effect,
            resolution=_resolution(fresh.model, measured),
            within=claims.within,
            strata=_strata(fresh, settings.get("by")),
        )


def _way_settings(
    way: Way, family: tuple[Head, ...], candidates: tuple[Head, ...], budget: float | None
) -> dict[str, Any]:
    exactly, halved = "all heads on all problems, exactly", "heads screened on the other half of the problems"
    return {
        "swept": exactly if way.exact else halved,
        "why": way.why,
        "estimated_seconds": way.estimated_seconds,
        "budget_seconds": budget,
        "n_candidates": len(candidates),
        "screened": None if way.exact else [str(head) for head in family],
    }
