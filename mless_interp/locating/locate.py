"""The experiment that names heads: measured, judged, held against controls, put together."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..heads import Head
from ..models.base import Model
from ..patching.joint import JointKnockout, joint_knockout
from ..patching.outcomes import outcome_named, resolution_of
from ..patching.prepared import Prepared, prepare
from ..prompts.conditions import one_of
from ..prompts.pairs import PromptPair
from .control import Controls, check_controls, specificity
from .judge import Judged, established, judge
from .located import LocatedHeads
from .measure import Measured, Way, chosen_way, measure, screened

MODES = ("auto", "exact", "screen")


def locate_heads(
    model: Model,
    pairs: Iterable[PromptPair] | Prepared,
    *,
    outcome: str = "answer_logprob",
    heads: Iterable[Head] | None = None,
    alpha: float = 0.05,
    smallest_effect: float = 0.05,
    mode: str = "auto",
    budget_seconds: float = 3600.0,
    n_permutations: int = 10_000,
    n_control_draws: int = 5,
    n_random_sets: int = 100,
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

    Other controls are reported, and decide nothing: a repeated word in place of the insertion (Mful); the gap alone (the
    shift contrast: what the change of positions does with nothing inserted, and each named head's part in it); and the
    readers knocked out together, against `n_random_sets` random sets of the same layers and against the sum of their
    single knockouts.

    Parameters
    ----------
    mode : "exact" sweeps all `heads` on all problems; "screen" ranks heads by gradients on one half of the problems and
        tests the best 64 on the other; "auto" sweeps exactly where that stays within `budget_seconds`, estimated from
        small sweeps over all layers of the first problem. The result says which was done and why.
    controls : False leaves all controls out (`specific` is then unknown).
    checkpoint : folder for the sweeps' partial results; a run started again with the same settings goes on from there.

    Source: methods §8; single-step max-T of Westfall & Young (1993). Differs from a plain patching sweep in that the
    problem is the unit of replication and every claim is about both directions.
    """
    rules = Rules(alpha, smallest_effect, n_permutations, n_control_draws, n_random_sets, controls, seed)
    one_of(mode, dict.fromkeys(MODES), "mode")
    if not budget_seconds >= 0:
        raise ValueError(f"budget_seconds must be 0 or more, got {budget_seconds}")
    prepared = prepare(model, pairs, outcome_named(outcome, signed_for="locating heads"))
    if len(prepared.ids) < 2:
        raise ValueError(f"locating heads needs at least 2 problems (the unit of replication), got {len(prepared.ids)}")
    if controls:
        check_controls(prepared.bare)
    candidates = model.info.chosen(heads, what="locate")
    folder = None if checkpoint is None else Path(checkpoint)
    way = chosen_way(prepared, candidates, mode=mode, budget_seconds=budget_seconds)
    family = candidates
    if not way.exact:
        everything = range(len(prepared.ids))
        discovery, prepared = prepared.only(everything[::2]), prepared.only(everything[1::2])
        family = screened(discovery, candidates, progress=progress)
    file = None if folder is None else folder / "mless.jsonl"
    measured = measure(prepared, family, checkpoint=file, progress=progress, seed=seed)
    judged = rules.judged(measured, family, resolution_of(model.info.dtype))
    named = tuple(head for head, r, m in zip(family, judged.readers, judged.mediators, strict=True) if r or m)
    held = rules.controlled(prepared, measured, judged, family, named, folder=folder, progress=progress)
    settings = {
        **prepared.settings,
        **rules.settings,
        **_way_settings(way, family, candidates, budget_seconds if mode == "auto" else None),
        "mful_left_out": held.mful_left_out,
        "resolution": resolution_of(model.info.dtype),
    }
    return _assembled(prepared, measured, judged, family, held, settings, seed)


@dataclass(frozen=True)
class Rules:
    """By what heads are named and what the named ones are held against; checked before anything runs."""

    alpha: float
    smallest_effect: float
    n_permutations: int
    n_control_draws: int
    n_random_sets: int
    controls: bool
    seed: int

    def __post_init__(self) -> None:
        if not 0 < self.alpha < 1 or not self.smallest_effect >= 0:
            raise ValueError(
                f"alpha must lie in (0, 1) and smallest_effect be 0 or more, got {self.alpha} and {self.smallest_effect}"
            )
        if self.controls and self.n_control_draws < 1:
            raise ValueError(
                f"n_control_draws must be 1 or more, got {self.n_control_draws}; controls=False leaves controls out"
            )
        if self.n_random_sets < 0:
            raise ValueError(f"n_random_sets must be 0 or more, got {self.n_random_sets}")

    @property
    def settings(self) -> dict[str, Any]:
        return {
            "alpha": self.alpha,
            "smallest_effect": self.smallest_effect,
            "n_permutations": self.n_permutations,
            "n_control_draws": self.n_control_draws if self.controls else 0,
            "n_random_sets": self.n_random_sets if self.controls else 0,
        }

    def judged(self, measured: Measured, family: tuple[Head, ...], resolution: float) -> Judged:
        """The verdicts; no head is named where the total effect is not established."""
        found = judge(
            measured.values,
            family,
            alpha=self.alpha,
            smallest=self.smallest_effect * abs(float(measured.total.mean())),
            n_permutations=self.n_permutations,
            seed=self.seed,
        )
        stands = established(measured.total, resolution=resolution, seed=self.seed)
        return Judged(found.p, found.readers & stands, found.mediators & stands)

    def controlled(
        self,
        prepared: Prepared,
        measured: Measured,
        judged: Judged,
        family: tuple[Head, ...],
        named: tuple[Head, ...],
        *,
        folder: Path | None,
        progress: bool,
    ) -> "Held":
        """The named heads under other circumstances, and whether they are specific."""
        values: dict[str, np.ndarray] = {}
        left_out, joint = None, None
        if self.controls:
            made = Controls(prepared, folder=folder, progress=progress, seed=self.seed)
            values = made.gap_alone(named, family[0])
            if named:
                others, left_out = made.other_insertions(named, self.n_control_draws)
                values |= others
            if judged.readers.any():
                joint = joint_knockout(
                    prepared.model,
                    prepared,
                    [head for head, reads in zip(family, judged.readers, strict=True) if reads],
                    outcome=prepared.outcome,
                    n_random_sets=self.n_random_sets,
                    singles=measured.values["knockout"][:, judged.readers],
                    checkpoint=None if folder is None else folder / "random-sets.jsonl",
                    progress=progress,
                    seed=self.seed,
                )
        options: dict[str, Any] = {"alpha": self.alpha, "n_permutations": self.n_permutations, "seed": self.seed}
        specific, p = specificity(measured.values, family, named, judged.readers, values, **options)
        return Held(values, specific, p, joint, left_out)


@dataclass(frozen=True, eq=False)
class Held:
    """What came of the controls: effects by name, whether each head is specific, the readers as a set."""

    values: dict[str, np.ndarray]
    specific: np.ndarray
    p_specific: np.ndarray
    joint: JointKnockout | None
    mful_left_out: str | None


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


def _assembled(
    prepared: Prepared,
    measured: Measured,
    judged: Judged,
    family: tuple[Head, ...],
    held: Held,
    settings: dict[str, Any],
    seed: int,
) -> LocatedHeads:
    return LocatedHeads(
        problem_ids=prepared.ids,
        heads=family,
        values=measured.values,
        total=measured.total,
        readers=judged.readers,
        mediators=judged.mediators,
        p_reader=np.maximum(judged.p["knockout"], judged.p["edge_noise"]),
        p_mediator=np.maximum(judged.p["mediated_removed"], judged.p["mediated_added"]),
        tested=np.isfinite(judged.p["knockout"]),
        specific=held.specific,
        patches=measured.patches,
        controls=held.values,
        unit=prepared.outcome.unit,
        settings=settings,
        seed=seed,
        p_specific=held.p_specific,
        joint=held.joint,
    )
