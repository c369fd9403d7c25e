"""Check the figures' claims about attention, each against its null: agrees, disagrees or cannot tell.

Everything is a number per problem, averaged over the heads given. The intervals are not corrected for testing several claims.
Most of these claims agree on random weights too, so each stands beside the same check of untrained twins. That a repeated token
receives little is compared with other repeated tokens: equal tokens share one score, so uniform attention is no null of it.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
import torch

from ..core.arguments import count_of
from ..core.heads import Head, as_heads
from ..data import paper_entries
from ..metrics.recovery import aligned_recovery, span_variation, timing_spearman
from ..runtime.columns import columns_of
from ..runtime.registry import savable
from ..runtime.results import Result, Shown, ShownTable
from ..scores import AttentionProfile
from ..statistics import CONFIDENCE, by_group, defined_mean, derive_generator, mean_interval

N_SHIFTS = 100
FEWEST_REPEATS = 20
"""Other repeated tokens that a rank among them takes: with 20, the first of 21 has p = .048."""
WITHOUT_TRAINING = "holds without training"
SAME = 0.05
"""Layers whose retention differs by less than this, with confidence, count as alike."""


@savable
@dataclass(frozen=True)
class Claim:
    """A claim of the figures, what is measured for it, what it is compared with, and which way the claim says it goes.

    `direction`: +1 measured above null, -1 below, 0 different from it.
    """

    key: str
    text: str
    figures: tuple[str, ...]
    measure: str
    null: str
    direction: int


CLAIMS: dict[str, Claim] = {entry["key"]: Claim(**entry) for entry in paper_entries("claims")["claims"]}


@savable
@dataclass(frozen=True)
class ClaimCheck:
    """One claim on one model: measured mean with interval, null mean, interval of their difference, verdict."""

    claim: Claim
    measured: float
    low: float
    high: float
    null: float
    difference_low: float
    difference_high: float
    n: int
    verdict: str
    reason: str = ""


@dataclass(frozen=True, eq=False, repr=False)
class ClaimChecks(Result):
    """The claims checked on one model; `twins` are the same checks of its untrained twins (`untrained_twin`), if any."""

    checks: tuple[ClaimCheck, ...]
    settings: dict[str, Any] = field(default_factory=dict)
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

    def __getitem__(self, key: str) -> ClaimCheck:
        for check in self.checks:
            if check.claim.key == key:
                return check
        raise KeyError(f"no check of {key!r}; there are {', '.join(check.claim.key for check in self.checks)}")

    def shared(self, check: ClaimCheck) -> int:
        """In how many untrained twins a claim agrees."""
        return sum(twin[check.claim.key].verdict == "agrees" for twin in self.twins)

    @property
    def without_training(self) -> tuple[ClaimCheck, ...]:
        """The claims that agree here and in most untrained twins."""
        return tuple(c for c in self.checks if c.verdict == "agrees" and 2 * self.shared(c) > len(self.twins))

    def table(self) -> pd.DataFrame:
        """One row per claim: measured against its null, with the interval of the difference, and the verdict; of untrained
        twins the mean of what was measured, and in how many the claim agrees."""
        table = pd.DataFrame(
            [
                {
                    "claim": check.claim.text,
                    "key": check.claim.key,
                    "figures": " ".join(check.claim.figures),
                    "measure": check.claim.measure,
                    "measured": check.measured,
                    "measured_ci_low": check.low,
                    "measured_ci_high": check.high,
                    "null": check.null,
                    "null_is": check.claim.null,
                    "above_null": check.measured - check.null,
                    "above_null_ci_low": check.difference_low,
                    "above_null_ci_high": check.difference_high,
                    "n": check.n,
                    "verdict": check.verdict,
                    "reason": check.reason,
                }
                for check in self.checks
            ]
        )
        if self.twins:
            measured = [[twin[check.claim.key].measured for check in self.checks] for twin in self.twins]
            table["untrained"] = np.mean(measured, axis=0)
            table["untrained_verdict"] = [
                f"{self.shared(check)} of {len(self.twins)} agree"
                + f": {WITHOUT_TRAINING}" * (check in self.without_training)
                for check in self.checks
            ]
        return table

    def to_frame(self) -> pd.DataFrame:
        """The same as `table`: what is kept of a claim is one row."""
        return self.table()

    def headline(self) -> str:
        """Return how many claims agree, which do not, and how many hold without training."""
        s, plural = self.settings, {"agrees": "agree", "disagrees": "disagree"}
        counted = Counter(plural.get(check.verdict, check.verdict) for check in self.checks)
        told = ", ".join(f"{number} {verdict}" for verdict, number in counted.items())
        n = len(self.without_training)
        without = f"; {n or 'none'} of those that agree {'holds' if n == 1 else 'hold'} without training" * bool(
            self.twins
        )
        return f"{count_of(len(self.checks), 'claim')} on {s.get('model')} ({s.get('n_problems')} problems): {told}{without}."

    def details(self) -> list[str]:
        """Return what was checked, and each claim that does not agree."""
        s = self.settings
        return [
            f"Heads {s.get('heads')} (zero-based), {s.get('insertion')}, {count_of(len(self.twins), 'untrained twin')}.",
            *(f"{check.claim.text}: {check.verdict}." for check in self.checks if check.verdict != "agrees"),
        ]

    def printed(self) -> pd.DataFrame:
        """Return every claim against its null."""
        return self.table()[["claim", "verdict", "measured", "measured_ci_low", "measured_ci_high", "null", "n"]]

    def shown(self) -> Shown:
        """Every claim against its null."""
        columns = ["claim", "measured", "null", "null_is", "above_null", "n", "verdict"]
        columns += [*["untrained", "untrained_verdict"] * bool(self.twins), "reason"]
        return Shown((ShownTable(self.table(), "The paper's claims, each against its null.", columns),))


def check_claims(
    profile: AttentionProfile,
    *,
    heads: Iterable[Head | str] | None = None,
    random_sentence: AttentionProfile | Sequence[AttentionProfile] = (),
    meaningful: AttentionProfile | None = None,
    repeats: Sequence[AttentionProfile] = (),
    claims: Iterable[str] | None = None,
    seed: int = 0,
    confidence: float = CONFIDENCE,
) -> ClaimChecks:
    """Check what the figures claim on a model's own profiles.

    Parameters
    ----------
    profile : of the meaningless insertion, conditions base and inserted; with gap too, the position-matched null.
    heads : which of its heads; default all of the lowest layer there is. `first_layer_differs` also takes the heads of
        the same number in layers 1 and 2 (zero-based), if the profile has them.
    random_sentence : of the same problems with random words of the same length, in place of the paper's random sentence;
        several draws are averaged.
    meaningful : of the same problems with a repeated word.
    repeats : of the same problems with other repeated tokens (`Insertion.other_repeats`), condition inserted, at least
        `FEWEST_REPEATS`: among them the insertion's own token has its rank.

    For an untrained twin check its own profiles, and give the checks of all: `replace(checks, twins=(...))`. A claim whose
    null is not here, or with fewer than two problems, is "cannot tell", with the reason.
    """
    for name in ("base", "inserted"):
        if name not in profile.conditions:
            raise ValueError(
                f"check_claims needs a profile with conditions base and inserted, this one has {profile.conditions}"
            )
    lowest = min(head.layer for head in profile.heads)
    chosen = as_heads(heads) if heads is not None else tuple(head for head in profile.heads if head.layer == lowest)
    for head in chosen:
        profile.of(head)
    wanted = tuple(CLAIMS) if claims is None else tuple(claims)
    for key in wanted:
        if key not in CLAIMS:
            raise ValueError(f"unknown claim {key!r}; there are {', '.join(CLAIMS)}")
    draws = (random_sentence,) if isinstance(random_sentence, AttentionProfile) else tuple(random_sentence)
    for other in (*draws, *repeats, *([] if meaningful is None else [meaningful])):
        if other.problem_ids != profile.problem_ids:
            raise ValueError(
                "the profiles must be of the same problems in the same order: they are compared problem by problem"
            )
    measures = _Measures(profile, chosen, draws, meaningful, seed)
    common: dict[str, Any] = {"groups": profile.groups, "seed": seed, "confidence": confidence}
    checks = tuple(
        _ranked(CLAIMS[key], measures.level(profile), [measures.level(each) for each in repeats], **common)
        if key == "low_in_span"
        else _judged(CLAIMS[key], *measures.of(key), **common)
        for key in wanted
    )
    settings = {**profile.settings, "heads": " ".join(map(str, chosen)), "n_problems": len(profile.problem_ids)}
    return ClaimChecks(checks, settings)


@dataclass(frozen=True, eq=False)
class _Measures:
    """Measured and null numbers per problem, by claim."""

    profile: AttentionProfile
    heads: tuple[Head, ...]
    draws: tuple[AttentionProfile, ...]
    meaningful: AttentionProfile | None
    seed: int

    def of(self, key: str) -> tuple[np.ndarray | None, np.ndarray | float | None, str]:
        """(measured `[problem]`, null `[problem]` or a number, why one is missing)."""
        match key:
            case "attenuation":
                return self.retention(self.profile), 1.0, ""
            case "attenuation_beyond_position":
                if "gap" not in self.profile.conditions:
                    return self.retention(self.profile), None, "profile has no gap condition"
                return self.retention(self.profile), self.retention(self.profile, "gap"), ""
            case "attenuation_beyond_dilution":
                return self.retention(self.profile), self.retention(self.profile, uniform=True), ""
            case "low_in_span_beyond_random":
                return self.level(self.profile), self.over_draws(self.level), self.no_draws()
            case "timing":
                return (*self.timing(), "")
            case "recovery":
                return self.level(self.profile, "question") - self.level(self.profile), 0.0, ""
            case "more_uniform":
                return self.variation(self.profile), self.over_draws(self.variation), self.no_draws()
            case "first_layer_differs":
                return self.layers()
        if self.meaningful is None:
            return None, None, "no profile with meaningful tokens"
        return self.alike(self.meaningful), self.over_draws(self.alike), self.no_draws()

    def no_draws(self) -> str:
        return "" if self.draws else "no profile with random words"

    def over_draws(self, measure: Callable[[AttentionProfile], np.ndarray]) -> np.ndarray | None:
        return np.mean([measure(draw) for draw in self.draws], 0) if self.draws else None

    def retention(
        self,
        profile: AttentionProfile,
        condition: str = "inserted",
        *,
        uniform: bool = False,
        heads: Sequence[Head] | None = None,
    ) -> np.ndarray:
        """Received attention that shared tokens keep, mean over heads, `[problem]`."""
        if uniform:
            profile = AttentionProfile(**{**vars(profile), "received": profile.uniform})
        rows = [profile.of(head) for head in heads or self.heads]
        found = []
        for base, other in zip(profile.aligned("base"), profile.aligned(condition), strict=True):
            tokens = torch.ones(base.shape[1], dtype=torch.bool)
            kept = aligned_recovery(torch.from_numpy(base[rows]), torch.from_numpy(other[rows]), tokens=tokens)
            found.append(defined_mean(kept.numpy()))
        return np.array(found)

    def level(self, profile: AttentionProfile, segment: str = "inserted") -> np.ndarray:
        """Received attention of a segment over uniform attention's, mean over heads, `[problem]`."""
        rows = [profile.of(head) for head in self.heads]
        return np.array([defined_mean(heads) for heads in profile.level("inserted", segment, relative=True)[:, rows]])

    def variation(self, profile: AttentionProfile) -> np.ndarray:
        rows = [profile.of(head) for head in self.heads]
        found = []
        for index, values in enumerate(profile.whole("inserted")):
            inside = torch.from_numpy(profile.is_inserted(index))
            found.append(defined_mean(span_variation(torch.from_numpy(values[rows]), span=inside).numpy()))
        return np.array(found)

    def timing(self) -> tuple[np.ndarray, np.ndarray]:
        """Rank correlation with and without the insertion, and its mean over rotations within prefix and question."""
        rows = [self.profile.of(head) for head in self.heads]
        measured, null = [], []
        pairs = zip(self.profile.aligned("base"), self.profile.aligned("inserted"), self.profile.spans, strict=True)
        for index, (base, other, (start, _)) in enumerate(pairs):
            x, y = torch.from_numpy(base[rows]), torch.from_numpy(other[rows])
            defined = ~(x.isnan() | y.isnan()).any(0)
            x, y, first = x[:, defined], y[:, defined], int(defined[:start].sum())
            measured.append(defined_mean(timing_spearman(x, y).numpy()))
            draw = derive_generator(self.seed, "claim timing", index)
            turned = []
            for _ in range(N_SHIFTS):
                parts = [
                    part.roll(int(draw.integers(0, max(1, part.shape[1]))), 1) for part in (y[:, :first], y[:, first:])
                ]
                turned.append(torch.cat(parts, 1))
            shifted = timing_spearman(x.expand(N_SHIFTS, *x.shape), torch.stack(turned))
            null.append(defined_mean(shifted.numpy().ravel()))
        return np.array(measured), np.array(null)

    def layers(self) -> tuple[np.ndarray | None, np.ndarray | None, str]:
        first = [head for head in self.heads if head.layer == 0]
        later = [Head(layer, head.head) for layer in (1, 2) for head in first]
        if not first or any(head not in self.profile.heads for head in later):
            return None, None, "profile lacks these heads in layers 0, 1 and 2 (zero-based)"
        return self.retention(self.profile, heads=first), self.retention(self.profile, heads=later), ""

    def alike(self, other: AttentionProfile) -> np.ndarray:
        """Rank correlation of two insertions' profiles on shared tokens, mean over heads, `[problem]`."""
        own, their = [self.profile.of(head) for head in self.heads], [other.of(head) for head in self.heads]
        pairs = zip(self.profile.aligned("inserted"), other.aligned("inserted"), strict=True)
        return np.array(
            [
                defined_mean(timing_spearman(torch.from_numpy(a[own]), torch.from_numpy(b[their])).numpy())
                for a, b in pairs
            ]
        )


Made = tuple[float, float, float, int]
"""A mean over problems, its limits, and of how many problems."""
NOTHING: Made = (np.nan, np.nan, np.nan, 0)


def _unsure(claim: Claim, made: Made, why: str, null: float = np.nan) -> ClaimCheck:
    mean, low, high, n = made
    return ClaimCheck(claim, mean, low, high, null, np.nan, np.nan, n, "cannot tell", why)


def _judged(
    claim: Claim,
    measured: np.ndarray | None,
    null: np.ndarray | float | None,
    why: str,
    *,
    groups: tuple[str, ...],
    **how: Any,
) -> ClaimCheck:
    if measured is None:
        return _unsure(claim, NOTHING, why)
    measured = np.where(np.isfinite(measured), measured, np.nan)
    if null is None:
        return _unsure(claim, _interval(by_group(measured, groups), **how), why)
    difference = measured - null  # on the same problems
    own, reference = (by_group(np.where(np.isnan(difference), np.nan, each), groups) for each in (measured, null))
    mean, low, high, _ = made = _interval(own, **how)
    _, below, above, n = _interval(by_group(difference, groups), **how)
    if n < 2:
        return _unsure(claim, (*made[:3], n), "fewer than 2 problems", float(defined_mean(reference)))
    if claim.direction == 0:
        alike = below > -SAME and above < SAME
        verdict = "disagrees" if alike else "agrees" if below > 0 or above < 0 else "cannot tell"
    else:
        ends = sorted((claim.direction * below, claim.direction * above))
        verdict = "agrees" if ends[0] > 0 else "disagrees" if ends[1] < 0 else "cannot tell"
    return ClaimCheck(claim, mean, low, high, float(defined_mean(reference)), below, above, n, verdict)


def _ranked(
    claim: Claim, measured: np.ndarray, others: Sequence[np.ndarray], *, groups: tuple[str, ...], **how: Any
) -> ClaimCheck:
    """A claim about one repeated token, by the rank of its mean over problems among other repeated tokens'."""
    measured, others = by_group(measured, groups), [by_group(other, groups) for other in others]
    mean, low, high, n = made = _interval(measured, **how)
    levels = np.array([defined_mean(other) for other in others])
    if len(levels) < FEWEST_REPEATS or not np.isfinite([mean, *levels]).all():
        known = f"{len(levels)} other repeated tokens, {FEWEST_REPEATS} needed"
        return _unsure(claim, made, known if np.isfinite(mean) else "undefined")
    _, below, above, _ = _interval(measured - np.mean(others, axis=0), **how)
    ranks = [1 + int((claim.direction * side * (levels - mean) >= 0).sum()) for side in (1, -1)]
    likely = (1 - how["confidence"]) * (1 + len(levels))
    verdict = "agrees" if ranks[0] <= likely else "disagrees" if ranks[1] <= likely else "cannot tell"
    where = f"rank {ranks[0]} of {1 + len(levels)} repeated tokens, the lowest first"
    return ClaimCheck(claim, mean, low, high, float(levels.mean()), below, above, n, verdict, where)


def _interval(values: np.ndarray, *, seed: int, confidence: float) -> Made:
    mean, n = float(defined_mean(values)), int(np.isfinite(values).sum())
    if len(values) < 2:
        return mean, np.nan, np.nan, n
    found = mean_interval(values, seed=seed, confidence=confidence)
    return mean, float(found.low), float(found.high), n
