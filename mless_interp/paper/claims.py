"""The figures' claims about attention on a model: `reproduce_figure` measures them and holds each against its null.

Everything is a number per problem, mean over the heads given; intervals are not corrected for testing several claims. Most
claims agree on random weights too, so each stands beside the same check of untrained twins. That a repeated token receives
little is compared with other repeated tokens: equal tokens share one score, so uniform attention is no null of it.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from ..core.arguments import Arguments, checked, count_of
from ..core.heads import Head
from ..data import paper_entries
from ..metrics.collapse import aligned_recovery, span_variation, timing_spearman
from ..metrics.patterns import RowChoice
from ..models.base import Model
from ..models.load import untrained_twin
from ..prompts.insertions import Insertion
from ..prompts.pairs import make_pairs
from ..prompts.problems import Problem
from ..runtime.base_result import Result
from ..runtime.columns import columns_of
from ..runtime.folders import savable
from ..scores import AttentionProfile, attention_profile
from ..statistics import CONFIDENCE, by_group, defined_mean, derive_generator, mean_interval
from .figures import figure_named

N_SHIFTS = 100  # rotations that are the null of the timing
N_DRAWS = 3  # of random words per problem, averaged
REPEATS = 20  # other repeated tokens that a rank among them takes: the first of 21 has p = .048
SAME = 0.05  # layers whose retention differs by less than this, with confidence, count as alike


@savable
@dataclass(frozen=True)
class Claim:
    """Hold a claim of the figures: what is measured for it, what it is compared with, and which way it goes.

    `direction`: +1 measured above null, -1 below, 0 different from it. `missing`: what to say where one of both is not there.
    """

    key: str
    text: str
    figures: tuple[str, ...]
    measure: str
    null: str
    direction: int
    missing: str = ""


CLAIMS: dict[str, Claim] = {
    entry["key"]: Claim(**entry | {"figures": tuple(entry["figures"])}) for entry in paper_entries("claims")["claims"]
}


@savable
@dataclass(frozen=True)
class ClaimCheck:
    """Hold one claim on one model: measured mean with interval, null mean, interval of their difference, verdict."""

    claim: Claim
    measured: float = np.nan
    measured_ci_low: float = np.nan
    measured_ci_high: float = np.nan
    n: int = 0
    null: float = np.nan
    above_null: float = np.nan
    above_null_ci_low: float = np.nan
    above_null_ci_high: float = np.nan
    verdict: str = "cannot tell"
    reason: str = ""


@dataclass(frozen=True, eq=False, repr=False)
class ClaimChecks(Result):
    """Hold the claims checked on one model; `twins` are the same checks of its untrained twins (`untrained_twin`), if any."""

    checks: tuple[ClaimCheck, ...]
    twins: tuple["ClaimChecks", ...] = ()

    columns = columns_of("""
        measured | measured | | mean over problems
        above_null | above the null | | measured - null
        null | null | | what it is compared with; see the column 'null is'
        null_is | null is | later | what would be measured if the claim did not hold
        untrained | untrained | | the same of untrained twins: same configuration and prompts, weights drawn anew
        untrained_verdict | untrained twins | verdict | twins in which the claim agrees; most: it holds without training
        key | key | | the claim's name
        figures | figures | | of the paper, which show it
        measure | measure | | the number that is compared
    """)

    caption = "The paper's claims, each against its null."

    def __getitem__(self, key: str) -> ClaimCheck:
        return {check.claim.key: check for check in self.checks}[key]

    def shared(self, check: ClaimCheck) -> int:
        """Count the untrained twins in which a claim agrees."""
        return sum(twin[check.claim.key].verdict == "agrees" for twin in self.twins)

    @property
    def without_training(self) -> tuple[ClaimCheck, ...]:
        """The claims that agree here and in most untrained twins."""
        return tuple(c for c in self.checks if c.verdict == "agrees" and 2 * self.shared(c) > len(self.twins))

    def table(self) -> pd.DataFrame:
        """Return one row per claim: measured against its null, with the interval of the difference, and the verdict; of
        untrained twins the mean of what was measured, and in how many the claim agrees."""
        rows = []
        for check in self.checks:
            claim = check.claim
            row: dict[str, object] = vars(check) | {"claim": claim.text}
            row |= {"key": claim.key, "figures": " ".join(claim.figures)}
            row |= {"measure": claim.measure, "null_is": claim.null}
            if self.twins:
                agree = f"{self.shared(check)} of {len(self.twins)} agree"
                row["untrained"] = float(np.mean([twin[claim.key].measured for twin in self.twins]))
                row["untrained_verdict"] = agree + ": holds without training" * (check in self.without_training)
            rows.append(row)
        return pd.DataFrame(rows)

    to_frame = table

    def headline(self) -> str:
        s, counted = self.settings, Counter(check.verdict for check in self.checks)
        plural = {"agrees": "agree", "disagrees": "disagree"}
        told = ", ".join(f"{n} {plural.get(verdict, verdict) if n > 1 else verdict}" for verdict, n in counted.items())
        if self.twins:
            n = len(self.without_training)
            told += f"; {n or 'none'} of those that agree {'holds' if n == 1 else 'hold'} without training"
        return f"{count_of(len(self.checks), 'claim')} on {s.get('model')} ({s.get('n_problems')} problems): {told}."

    def details(self) -> list[str]:
        made, twins = self.settings, count_of(len(self.twins), "untrained twin")
        return [f"Heads {made.get('heads')} (zero-based), {made.get('insertion')}, {twins}."]

    def printed(self) -> pd.DataFrame:
        return self.table()[["claim", "verdict", "measured", "measured_ci_low", "measured_ci_high", "null", "n"]]


@checked
def reproduce_figure(
    model: Model,
    figure: str,
    problems: Iterable[Problem],
    *,
    heads: Iterable[Head | str] | None = None,
    n_tokens: int = 55,
    template: str = "raw",
    rows: RowChoice = "shared",
    twins: int = 0,
    checkpoint: str | Path | None = None,
    progress: bool = True,
    seed: int = 0,
) -> dict[str, object]:
    """Measure what one of the paper's figures shows on a model, and check its claims.

    `figure`: the paper's number ("13") or key ("000"). `heads`: those to show; default the figure's, of its first model.
    `twins`: untrained twins of the model that are checked alike. `checkpoint`: a folder that receives each finished problem.
    Returns `AttentionProfile`s by the name of their series ("Mless", "Mful", "random words"), `ClaimChecks` under "claims".
    """
    shown = figure_named(figure)
    chosen = shown.heads(shown.models[0]) if heads is None else model.info.chosen(heads, what="show")
    questions, filler = tuple(problems), Insertion.meaningless(n_tokens=n_tokens)

    def measured(of: Model, folder: Path | None) -> dict[str, Any]:
        def profile(name: str, insertion: Insertion, *conditions: str) -> AttentionProfile:
            pairs = make_pairs(of, questions, insertion, template=template)
            how: Arguments = {"conditions": conditions or ("base", "inserted"), "heads": chosen, "rows": rows}
            how["checkpoint"] = folder and folder / f"{name}.jsonl"
            return attention_profile(of, pairs, **how, progress=progress, seed=seed)

        made, random, others = {"Mless": profile("mless", filler, "base", "inserted", "gap")}, [], []
        if shown.key in CLAIMS["low_in_span"].figures:
            tokens = filler.other_repeats(of.tokenizer, REPEATS, seed=seed)
            others = [profile(f"repeat-{at}", each, "inserted") for at, each in enumerate(tokens)]
        if shown.kind in ("against_random_sentence", "bars_and_head"):
            words = (Insertion.random_sentence(n_tokens, seed=seed, draw=draw) for draw in range(N_DRAWS))
            random = [profile(f"random-{at}", each) for at, each in enumerate(words)]
        if shown.kind == "against_random_sentence":
            made["random words"] = random[0]
        if shown.kind == "bars_and_head":
            made["Mful"] = profile("mful", Insertion.meaningful(n_tokens=n_tokens))
        first = [head for head in chosen if head.layer == 0]
        checking = _Checking(made["Mless"], first, random, made.get("Mful"), others, seed)
        return made | {"claims": checking.checked(claim for claim in CLAIMS.values() if shown.key in claim.figures)}

    folder = None if checkpoint is None else Path(checkpoint)
    made = measured(model, folder)
    of_twins = [measured(untrained_twin(model, at), folder and folder / f"twin-{at}")["claims"] for at in range(twins)]
    return made | {"claims": replace(made["claims"], twins=tuple(of_twins))}


def _only(profile: AttentionProfile, heads: Sequence[Head]) -> AttentionProfile:
    rows, both = [profile.of(head) for head in heads], (profile.received, profile.uniform)
    received, uniform = ({name: tuple(each[rows] for each in found) for name, found in of.items()} for of in both)
    return replace(profile, heads=tuple(heads), received=received, uniform=uniform)


@dataclass(frozen=True, eq=False)
class _Checking:
    """What claims are checked on: numbers per problem, their null, and the verdict."""

    profile: AttentionProfile
    heads: Sequence[Head]
    draws: Sequence[AttentionProfile]
    meaningful: AttentionProfile | None
    repeats: Sequence[AttentionProfile]
    seed: int

    def checked(self, claims: Iterable[Claim]) -> ClaimChecks:
        checks = [self.ranked(claim) if claim.key == "low_in_span" else self.judged(claim) for claim in claims]
        heads, n_problems = " ".join(map(str, self.heads)), len(self.profile.problem_ids)
        return ClaimChecks(tuple(checks), settings={**self.profile.settings, "heads": heads, "n_problems": n_problems})

    def measured(self, key: str) -> tuple[np.ndarray | None, np.ndarray | float | None]:
        """Return what was measured `[problem]` and its null `[problem]` or a number; None for what is missing."""
        made = _only(self.profile, self.heads)
        match key:
            case "attenuation":
                return _retention(made), 1.0
            case "attenuation_beyond_position":
                return _retention(made), _retention(made, "gap") if "gap" in made.conditions else None
            case "attenuation_beyond_dilution":
                return _retention(made), _retention(replace(made, received=made.uniform))
            case "low_in_span_beyond_random":
                return self.level(self.profile), self.of_draws(self.level)
            case "timing":
                return self.timing()
            case "recovery":
                return self.level(self.profile, "question") - self.level(self.profile), 0.0
            case "more_uniform":
                return self.variation(self.profile), self.of_draws(self.variation)
            case "first_layer_differs":
                first = [head for head in self.heads if head.layer == 0]
                later = [Head(layer, head.head) for layer in (1, 2) for head in first]
                if not first or any(head not in self.profile.heads for head in later):
                    return None, None
                return _retention(_only(self.profile, first)), _retention(_only(self.profile, later))
        return None if self.meaningful is None else self.alike(self.meaningful), self.of_draws(self.alike)

    def of_draws(self, measure: Callable[[AttentionProfile], np.ndarray]) -> np.ndarray | None:
        return np.mean([measure(draw) for draw in self.draws], 0) if self.draws else None

    def level(self, of: AttentionProfile, segment: str = "inserted") -> np.ndarray:
        """Return the received attention of a segment over uniform attention's."""
        levels = of.level("inserted", segment, relative=True)[:, [of.of(head) for head in self.heads]]
        return np.array([defined_mean(heads) for heads in levels])

    def variation(self, of: AttentionProfile) -> np.ndarray:
        inside = map(of.is_inserted, range(len(of.problem_ids)))
        values = _only(of, self.heads).whole("inserted")
        return _per_problem(lambda values, span: span_variation(values, span=span), values, inside)

    def alike(self, other: AttentionProfile) -> np.ndarray:
        """Return the rank correlation of two insertions' profiles on shared tokens."""
        shared = (_only(of, self.heads).aligned("inserted") for of in (self.profile, other))
        return _per_problem(timing_spearman, *shared)

    def timing(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the rank correlation with and without the insertion, and its mean over rotations of prefix and question."""
        made, measured, null = _only(self.profile, self.heads), [], []
        pairs = zip(made.aligned("base"), made.aligned("inserted"), made.spans, strict=True)
        for index, (base, other, (start, _)) in enumerate(pairs):
            x, y = torch.from_numpy(base), torch.from_numpy(other)
            defined = ~(x.isnan() | y.isnan()).any(0)
            x, y, first = x[:, defined], y[:, defined], int(defined[:start].sum())
            measured.append(defined_mean(timing_spearman(x, y).numpy()))
            draw, parts, turned = derive_generator(self.seed, "claim timing", index), (y[:, :first], y[:, first:]), []
            for _ in range(N_SHIFTS):
                steps = [int(draw.integers(0, max(1, part.shape[1]))) for part in parts]
                turned.append(torch.cat([part.roll(step, 1) for part, step in zip(parts, steps, strict=True)], 1))
            shifted = timing_spearman(x.expand(N_SHIFTS, *x.shape), torch.stack(turned))
            null.append(defined_mean(shifted.numpy().ravel()))
        return np.array(measured), np.array(null)

    def mean(self, values: np.ndarray) -> tuple[float, float, float, int]:
        found = mean_interval(values, seed=self.seed, confidence=CONFIDENCE)
        return float(defined_mean(values)), float(found.low), float(found.high), int(np.isfinite(values).sum())

    def judged(self, claim: Claim) -> ClaimCheck:
        (measured, null), groups = self.measured(claim.key), self.profile.groups
        if measured is None or null is None:
            return ClaimCheck(claim, reason=claim.missing)
        difference = np.where(np.isfinite(measured), measured, np.nan) - null
        own, other = (by_group(np.where(np.isnan(difference), np.nan, each), groups) for each in (measured, null))
        mean, low, high, _ = self.mean(own)
        reference = float(defined_mean(other))
        _, below, above, n = self.mean(by_group(difference, groups))
        if n < 2:
            return ClaimCheck(claim, mean, low, high, n, reference, mean - reference, reason="fewer than 2 problems")
        ends = sorted((claim.direction * below, claim.direction * above))
        verdict = "agrees" if ends[0] > 0 else "disagrees" if ends[1] < 0 else "cannot tell"
        if claim.direction == 0:
            alike = below > -SAME and above < SAME
            verdict = "disagrees" if alike else "agrees" if below > 0 or above < 0 else "cannot tell"
        return ClaimCheck(claim, mean, low, high, n, reference, mean - reference, below, above, verdict)

    def ranked(self, claim: Claim) -> ClaimCheck:
        """Judge a claim about one repeated token by the rank of its mean over problems among other repeated tokens'."""
        own, *others = (by_group(self.level(each), self.profile.groups) for each in (self.profile, *self.repeats))
        mean, low, high, n = self.mean(own)
        levels = np.array([defined_mean(other) for other in others])
        if len(levels) < REPEATS or not np.isfinite([mean, *levels]).all():
            few = f"{len(levels)} other repeated tokens, {REPEATS} needed"
            return ClaimCheck(claim, mean, low, high, n, reason=few if np.isfinite(mean) else "undefined")
        _, below, above, _ = self.mean(own - np.mean(others, axis=0))
        ranks = [1 + int(by(claim.direction * (levels - mean), 0).sum()) for by in (np.greater_equal, np.less_equal)]
        likely, null = (1 - CONFIDENCE) * (1 + len(levels)), float(levels.mean())
        verdict = "agrees" if ranks[0] <= likely else "disagrees" if ranks[1] <= likely else "cannot tell"
        where = f"rank {ranks[0]} of {1 + len(levels)} repeated tokens, the lowest first"
        return ClaimCheck(claim, mean, low, high, n, null, mean - null, below, above, verdict, where)


def _retention(of: AttentionProfile, condition: str = "inserted") -> np.ndarray:
    def kept(base: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        return aligned_recovery(base, other, tokens=torch.ones(base.shape[1], dtype=torch.bool))

    return _per_problem(kept, of.aligned("base"), of.aligned(condition))


def _per_problem(formula: Callable[..., torch.Tensor], *values: Iterable[np.ndarray]) -> np.ndarray:
    """Return a formula of a number per head, mean over heads, `[problem]`."""
    parts = (formula(*map(torch.from_numpy, each)).numpy() for each in zip(*values, strict=True))
    return np.array([defined_mean(part.ravel()) for part in parts])
