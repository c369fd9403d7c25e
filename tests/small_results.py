"""A real result of every kind, made of a few numbers in a moment: what is told, drawn and saved is tested on these."""

import inspect
from collections.abc import Callable
from dataclasses import fields, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import mless_interp as mi
from mless_interp.answers.graders import GRADERS
from mless_interp.answers.same_answer import GAVE_UP
from mless_interp.circuits.head_sets import SIDES, HeadSet
from mless_interp.circuits.paths import Way
from mless_interp.circuits.site_patches import Place, Site
from mless_interp.ground_truth.certificate import FAIL, NOT_APPLICABLE, PASS, Verdict
from mless_interp.mechanism.decompose import METRICS
from mless_interp.mechanism.mediation import READINGS
from mless_interp.mechanism.span_reading import SpanReadings
from mless_interp.models.info import ModelInfo
from mless_interp.paper import CLAIMS, ClaimCheck
from mless_interp.patching.attribution import HeadAttribution
from mless_interp.patching.dose import DoseResponse
from mless_interp.patching.knockouts import JointKnockout, ReadEffects
from mless_interp.patching.sweep import PatchScores
from mless_interp.patching.transplant import Transplant
from mless_interp.runtime.base_result import Result
from mless_interp.scores import AttentionProfile, HeadScores
from mless_interp.scores.score import OF_SINKS

SIX = tuple(mi.Head(layer, head) for layer in range(2) for head in range(3))
SETTINGS = {"model": "tiny", "insertion": "Mless ' /' x55", "outcome": "answer_logprob"}


def problems(n: int) -> tuple[str, ...]:
    return tuple(f"p{i}" for i in range(n))


def spread(n: int, width: float = 0.05) -> np.ndarray:
    """A little difference between problems, 0 on average, `[problem]`."""
    return np.linspace(-width, width, n)


def patched(n: int = 4, *, donor: np.ndarray | None = None, **settings: Any) -> PatchScores:
    """Head L1H2 does half of everything, the others nothing."""
    values = np.zeros((n, 2, 3))
    values[:, 1, 2] = np.linspace(0.4, 0.6, n)
    end = np.ones(n) if donor is None else donor
    return PatchScores(
        problems(n), values, np.zeros(n), end, SIX, "nats", settings={"model": "tiny", "edit": "z"} | settings
    )


def swept(n: int = 24) -> PatchScores:
    """Variants of 12 problems, one of which has nearly all of the effect: L0H0 acts against it, L0H1 is within the noise, L1H0
    not always defined."""
    made = patched(n, donor=np.where(np.arange(n) < 2, 30.0, 1.0), insertion="x", contrast="shift", outcome="kl")
    made.patched[:, 0] = np.stack([-0.3 + spread(n, 0.1), spread(n, 0.01), 0.2 + spread(n, 0.3)], 1)
    made.patched[:3, 1, 0] = np.nan
    noise = np.stack([spread(n, 0.001), spread(n, 0.002)], 1)
    return replace(made, noise=noise, direction="noising", groups=tuple(f"g{at // 2}" for at in range(n)))


HEADS = (mi.Head(0, 1), mi.Head(1, 0), mi.Head(0, 0))


def measures(scale: float, n: int) -> dict[str, np.ndarray]:
    """L0H1 reads, L1H0 mediates, of a total effect of 1; L0H0 goes either way."""
    made = {
        "knockout": ((0.6, 0.0, -0.2), (0.15, 0.05, 0.6)),
        "edge_noise": ((0.5, 0.0, -0.1), (0.15, 0.05, 0.6)),
        "mediated_removed": ((0.0, 0.4, 0.0), (0.0, 0.15, 0.0)),
        "mediated_added": ((0.0, 0.3, 0.0), (0.0, 0.15, 0.0)),
    }
    return {
        name: scale * np.array(mean) + spread(n, 1.0)[:, None] * np.array(width) for name, (mean, width) in made.items()
    }


def beside(n: int, n_named: int) -> dict[str, np.ndarray]:
    """Controls of named heads, the first of which reads: all of them do a tenth of what the insertion does."""
    little = 0.05 + 0.1 * spread(n)[:, None] + np.zeros(n_named)
    names = ("knockout", "edge_noise", "mediated_removed", "mediated_added")
    controls = {f"{other}_{name}": little for other in ("random", "mful") for name in names}
    mass = np.where(np.arange(n_named) == 0, 2 * little, np.nan)
    return controls | {
        "random_size_removed": 2 * little,
        "random_size_added": 2 * little,
        "matched_mass": mass,
        "matched_mass_size": mass,
        "shift_z_removed": 0.2 * little,
        "shift_z_added": 0.1 * little,
        "shift_total": 0.02 + 0.1 * spread(n, 0.15),
    }


LOCATING = SETTINGS | {
    "alpha": 0.05,
    "smallest_effect": 0.05,
    "resolution": 1e-6,
    "left_out": {"mful": "its tokenizer has no such word"},
}


def located(scale: float = 1.0, n: int = 12) -> mi.LocatedHeads:
    """L0H1 a reader, L1H0 a mediator, L0H0 undecided, of a total effect of 1."""
    of_problem = spread(n, 0.15)
    z = np.full((n, 2, 2), np.nan)
    z[:, [0, 1, 0], [1, 0, 0]] = scale * np.array([0.5, 0.3, 0.0]) + of_problem[:, None]
    settings = LOCATING | {"direction": "denoising"}
    patches = PatchScores(problems(n), z, np.zeros(n), 1.0 + of_problem, HEADS, "nats", settings=settings)
    return mi.LocatedHeads(
        problems(n),
        HEADS,
        measures(scale, n),
        1.0 + of_problem,
        patches=patches,
        controls=beside(n, 2),
        settings=settings,
    )


def confirmed(scale: float = 1.0, n: int = 10) -> mi.Confirmation:
    """Of a reader, a mediator and a sufficient head the first two act again on fresh problems."""
    return mi.Confirmation(
        problem_ids=tuple(f"fresh {at}" for at in range(n)),
        heads=HEADS,
        kinds=("reader", "mediator", "sufficient only"),
        senses=np.array([1, 1, -1]),
        direction=1.0,
        values=measures(scale, n),
        total=1.0 + spread(n, 0.15),
        controls=beside(n, 3),
        joint=replace(knocked_out(n), chosen_elsewhere=True),
        settings=LOCATING,
    )


def scored(n: int = 3) -> HeadScores:
    """A share, one with a sign, one that may never be reached, one of both conditions with a hole, and whether it is a sink."""
    level = np.arange(6.0).reshape(2, 3) / 10 + spread(n)[:, None, None]
    values = {
        "span_mass": {"inserted": 0.3 + level},
        "collapse_relative": {"inserted": 0.3 - level},
        "recovery_latency": {"inserted": np.where(level > 0.4, np.inf, 10 * level)},
        "entropy": {"base": 1 + level, "inserted": np.where(level < 0, np.nan, 2 * level)},
        "span_sink_rate": {"inserted": np.where(level > 0.46, 0.25, 0.0)},
        "span_residual_norm": {"inserted": 1 + level},
        "span_first_residual_norm": {"inserted": np.where(level > 0.4, 10.0, np.where(level < 0, np.nan, 2.0))},
    }
    null = {"span_mass": {"inserted": np.full((n, 2), 0.4)}}
    settings = SETTINGS | {"rows": "shared", "sink_moved": 1, "boundary_merge": 2}
    return HeadScores(problems(n), ("base", "inserted"), SIX, values, null, settings=settings)


def rated(scale: float = 1.0, n: int = 4) -> Any:
    """Pairs of heads that are alike, not all of them asked for; more metrics than a page shows intervals of."""
    level = (1 + np.arange(24) // 2 % 7).reshape(3, 8) / 10 + spread(n)[:, None, None]
    names = (
        "kurtosis",
        "entropy",
        "span_mass",
        "lam_last",
        "log_density_ratio",
        "collapse_relative",
        "recovery_latency",
        *OF_SINKS,
    )
    values = {name: {"base": at - level, "inserted": scale * (at + 1) * level} for at, name in enumerate(names)}
    values["recovery_latency"]["inserted"][1:, 2, 5] = np.inf
    values["kurtosis"]["inserted"][0, 1, :4] = values["span_residual_norm"]["inserted"][0, 0, 4:] = np.nan
    values["span_sink_rate"]["inserted"][1:, :, :4] = 0.0
    null = {name: {"base": level[..., 0], "inserted": level[..., 7] / 2} for name in names[:3]}
    heads = tuple(mi.Head(layer, head) for layer in range(3) for head in range(8) if layer + head != 3)
    return HeadScores(problems(n), ("base", "inserted"), heads, values, null)


def between_segments(n: int = 3) -> dict[str, dict[str, np.ndarray]]:
    """Attention among two segments of six heads; the question reads the span as much as head and problem say."""
    read = 0.3 + np.arange(6.0).reshape(2, 3) / 10 + spread(n)[:, None, None]
    shares = {"question_to_inserted": read, "question_to_question": 1 - read}
    found = {name: {"base": float(name[-1] == "n") + 0 * read, "inserted": each} for name, each in shares.items()}
    return found | {"inserted_to_inserted": {"inserted": np.ones_like(read)}}


def profiled(level: float = 0.02) -> AttentionProfile:
    """One head of three problems; the four inserted tokens receive `level` each."""
    base = [np.array([[0.3, 0.1 + 0.01 * i, 0.2, 0.05, 0.02, np.nan]]) for i in range(3)]
    grown = [np.concatenate([b[:, :3], np.full((1, 4), level), 0.7 * b[:, 3:]], 1) for b in base]
    return AttentionProfile(
        problem_ids=("a", "b", "c"),
        conditions=("base", "inserted"),
        heads=(mi.Head(0, 13),),
        received={"base": tuple(base), "inserted": tuple(grown)},
        uniform={"base": tuple(0.1 + 0 * b for b in base), "inserted": tuple(0.08 + 0 * g for g in grown)},
        alignment=(np.array([0, 1, 2, 7, 8, 9]),) * 3,
        spans=((3, 7),) * 3,
        base_texts=(tuple("abcdef"),) * 3,
        inserted_texts=(tuple("abc////def"),) * 3,
        settings={"model": "tiny"},
    )


def uneven(n: int = 2) -> Any:
    """Up to two problems, one head: three and four base tokens, two inserted after one and after two tokens."""
    rows = {
        "base": ([0.4, 0.2, np.nan], [0.6, 0.3, 0.2, np.nan]),
        "inserted": ([0.3, 0.1, 0.1, 0.1, np.nan], [0.5, 0.2, 0.1, 0.2, 0.1, np.nan]),
    }
    even = {
        "base": ([0.4, 0.4, np.nan], [0.3, 0.3, 0.2, np.nan]),
        "inserted": ([0.3, 0.2, 0.2, 0.1, np.nan], [0.25, 0.2, 0.2, 0.2, 0.2, np.nan]),
    }
    return AttentionProfile(
        problem_ids=("a", "b")[:n],
        conditions=("base", "inserted"),
        heads=(mi.Head(0, 13),),
        received={name: tuple(np.array([row]) for row in each[:n]) for name, each in rows.items()},
        uniform={name: tuple(np.array([row]) for row in each[:n]) for name, each in even.items()},
        alignment=(np.array([0, 3, 4]), np.array([0, 1, 4, 5]))[:n],
        spans=((1, 3), (2, 4))[:n],
        base_texts=(("x", "y", "z"), ("v", "x", "y", "z"))[:n],
        inserted_texts=(("x", "/", "/", "y", "z"), ("v", "x", "/", "/", "y", "z"))[:n],
        settings={"model": "by hand", "insertion": "Mless", "rows": "shared"},
    )


def curve(top: float = 0.95, *, total: float = 1.0, n: int = 6) -> mi.CircuitCurve:
    """Four of 16 heads restore `top` of the effect, which is `total` (0: there is none, and no curve)."""
    sizes = np.array([0, 1, 2, 4, 16])
    rise = np.array([0.0, 0.5, 0.8, top, 1.0])
    orders = np.stack([rise, rise**4, (sizes / 16) ** 2, (sizes / 16) ** 0.5])
    of_problem = spread(n, 0.4)[:, None, None]
    return mi.CircuitCurve(
        problem_ids=problems(n),
        ranking=tuple(mi.Head(layer, head) for layer in range(2) for head in range(8)),
        sizes=sizes,
        orders=("ranking", "reversed", "random 0", "random 1"),
        values=orders * (total + of_problem) + 2 * of_problem * orders * (1 - orders),
        unit="nats",
        settings={"model": "tiny", "ablation": "none", "outcome": "answer_logprob"},
    )


def doses(slope: float = 1.0, n: int = 9) -> DoseResponse:
    """Four heads whose log odds grow with about that slope at held positions, a tenth faster as inserted."""
    numbers, of_problem = np.array([1, 2, 4, 8]), spread(n, 0.1)
    held = (slope + of_problem)[:, None, None] * np.log(numbers)[:, None] + np.linspace(-4, -1, 4)
    effect = of_problem[:, None] + 0.1 * np.log(numbers)
    return DoseResponse(
        problem_ids=problems(n),
        doses=numbers,
        layer=0,
        log_odds={"held": held, "inserted": 1.1 * held},
        outcomes={"inserted": 2 * effect - 3, "held": effect - 3, "masked": effect / 2 - 3},
        base=-3 * np.ones(n),
        unit="nats",
        settings=SETTINGS | {"insertion": "Mless ' /' x8"},
    )


def decomposed(
    first: float = 0.8, *, heads: tuple[mi.Head, ...] = (mi.Head(0, 0), mi.Head(0, 1), mi.Head(1, 0)), n: int = 8
) -> mi.AttentionDecomposition:
    """Lambda of the first head is `first`, of the last 0.3; of all others about uniform attention's 0.5, here more, there
    less. All other numbers differ, and those at held positions are smaller."""
    shape = (n, 1 + max(head.layer for head in heads), 1 + max(head.head for head in heads))
    lam = np.full(shape, np.nan)
    for head in heads:
        lam[:, head.layer, head.head] = 0.55 + spread(n, 0.2)
    lam[:, heads[-1].layer, heads[-1].head] = 0.3 + spread(n)
    lam[:, heads[0].layer, heads[0].head] = first + spread(n)
    part = lam / np.nansum(lam, 2, keepdims=True)
    values = {"lam": lam, "residual": 0 * lam, "fit_slope": 1.2 * lam, "fit_r2": lam, "sigma_norm": 2 * lam}
    values |= {"share": part, "scale_share": 0.25 * part, "bias_share": 0.75 * part, "rest_share": 0 * part}
    values |= {name: (1 + at / 10) * lam for at, name in enumerate(METRICS) if name not in values}
    return mi.AttentionDecomposition(
        problem_ids=problems(n),
        contrasts=("content", "held"),
        heads=heads,
        values={name: {"content": array, "held": 0.9 * array} for name, array in values.items()},
        uniform={"content": np.full(shape[:2], 0.5), "held": np.full(shape[:2], 0.4)},
        control=lam + 0.02,
        settings={"model": "tiny", "n_heads": shape[2], "control": "random words"},
    )


def mediated(n: int = 6) -> mi.Mediation:
    """Scale does nothing, bias everything, in layer 0."""
    row = np.array([1.0, 1.4, 1.0, 1.0, 1.4, 1.4])  # without, with, reference, scale, bias, both
    readings = (*READINGS, "outcome")
    values = np.arange(1.0, 1 + len(readings))[:, None] * row + spread(n)[:, None, None] * row
    settings = SETTINGS | {"layer": 0, "all_heads": True}
    return mi.Mediation(problems(n), readings, values, "nats", settings=settings)


def activations(moved: int = 30, n: int = 8) -> mi.ActivationShift:
    """`moved` of 160 activations go from the first of three bins to the second, of half as many under "total". There the mean
    falls in all problems but one, and two have no digits. A distance has no value of its own."""
    metrics = ("near_zero_arm", "mean", "variance", "root_mean_square", "wasserstein")
    first = np.array([[-0.01, 0.1, 0.2, 0.1, 0.3], [0.02, 0.1, 0.2, 0.1, 0.4]])
    difference = np.stack([first, first * [-1, -1, 1, 0.5, 2]]) * (1 + spread(n, 0.5)[:, None, None, None])
    difference[0, 1, :, 1] *= -1
    difference[:2, 1, 1] = np.nan
    before = np.where(np.isnan(difference) | (np.array(metrics) == "wasserstein"), np.nan, 0.4)
    bins = np.array([[100, 50, 10], [100 - moved, 50 + moved, 10]], dtype=float)
    return mi.ActivationShift(
        problem_ids=problems(n),
        layer=0,
        contrasts=("content", "total"),
        token_groups=("all", "digit"),
        metrics=metrics,
        before=before,
        after=before + difference,
        difference=difference,
        n_tokens=np.tile([20, 4], (n, 1)),
        thresholds=np.ones((n, 2)),
        edges=np.array([-0.3, 0.0, 0.3, 0.9]),
        counts=np.stack([np.stack([bins, bins / 10]), np.stack([bins, bins / 10]) / 2]).round(),
        settings={"model": "tiny", "positions": "shared", "c": 0.13, "insertion": "x", "gated": False},
    )


def attributed(n: int = 4) -> HeadAttribution:
    """Estimates of six heads, the best one verified."""
    scores = np.arange(6.0).reshape(2, 3) / 15 + spread(n, 0.01)[:, None, None]
    exact = np.full_like(scores, np.nan)
    exact[:, 1, 2] = 0.4
    settings = {"method": "gate_ig", "steps": 16}
    estimates = (0.9 * scores, 0.8 * scores, exact)
    return HeadAttribution(
        problems(n), scores, np.zeros(n), scores.sum((1, 2)) + 0.1, "nats", *estimates, settings=settings
    )


def knocked_out(n: int = 8) -> JointKnockout:
    """Two heads that back each other up, against three random sets."""
    singles = np.full((n, 2), 0.3) + spread(n, 0.02)[:, None]
    sets = tuple((mi.Head(0, a), mi.Head(0, b)) for a, b in ((3, 4), (4, 5), (3, 5)))
    random = np.array([0.1, 0.2, 0.3]) + spread(n)[:, None]
    found = ((mi.Head(0, 1), mi.Head(0, 2)), 0.8 + spread(n), singles, random)
    return JointKnockout(problems(n), *found, sets, "nats", settings={"n_random_sets": 100})


def transplanted(carries: float = 0.5, n: int = 12) -> Transplant:
    """Each problem with the pair behind its own, whose spans make their own answers more likely by `carries`."""
    values = np.full((n, 3, 3), -2.0) + carries * np.eye(3) + spread(n, 0.1)[:, None, None] * np.eye(3)
    values[:, 0, 0] += 0.2 + spread(n)
    ids = problems(n)
    partners = tuple((ids[at], ids[at + 1]) for at in [(each // 2 * 2 + 2) % n for each in range(n)])
    settings = SETTINGS | {"insertion": "Mless ' /' x8", "n_prompts": 3}
    return Transplant(ids, partners, values, "nats", settings=settings)


def read_apart(bias: float = 0.4, n: int = 12) -> ReadEffects:
    """L0H1 reads by its bias; of L1H2 the scale matters, the first token does as well where it is seen; total 1."""
    removed = np.array([[bias, bias, 0.0, bias, 0.9 * bias], [0.3, 0.01, 0.3, 0.02, 0.1]])
    values = removed + spread(n, 0.02)[:, None, None]
    values[:2, 1, 3] = np.nan
    settings = SETTINGS | {"contrast": "content"}
    heads = (mi.Head(0, 1), mi.Head(1, 2))
    return ReadEffects(problems(n), heads, values, 1.0 + spread(n), "nats", settings=settings, chosen_elsewhere=True)


def readable(known: float = 1.0, n: int = 24) -> SpanReadings:
    """After layer 1 the lens reads each problem's token by `known` better than others' in three of four blocks' rows."""
    shape = (n, 2, 3, 4)  # the embedding and two layers
    margin = np.tile(spread(n, 0.5)[:, None, None, None], (1, *shape[1:]))
    margin[:, :, 0] = 0.0
    margin[:, 0, 2, :3] = known
    partner = np.arange(n) ^ 1
    margin = (margin + margin[np.minimum(partner, n - 1)]) / 2
    margin[: n // 4, 1] = np.nan
    units = tuple(f"p{at - at % 2} | p{at - at % 2 + 1}" if at - at % 2 + 1 < n else "" for at in range(n))
    margin[[not unit for unit in units]] = np.nan
    rank = np.tile(np.array([90.0, 40.0, 2.0])[None, :, None], (n, 1, 8))
    own = np.where(np.isnan(margin), np.nan, -3.0 + np.nan_to_num(margin))
    settings = SETTINGS | {"what": "answer", "insertion": "Mless ' /' x8, after question"}
    of_token = (rank, -rank / 10, own, own - margin, margin)
    return SpanReadings(problems(n), units, *of_token, settings=settings)


def enriched() -> mi.Enrichment:
    heads = (mi.Head(0, 1), mi.Head(1, 4))
    ranks, limits = {"L0H1": 1.0, "L1H4": 2.5}, {"L0H1": (1.0, 2.0), "L1H4": (1.0, 4.5)}
    return mi.Enrichment(heads, 1.75, 4.5, 0.03, ranks, limits)


def answered(first: float = 0.72, n: int = 500) -> mi.AccuracyResults:
    """Share `first` of the problems right without anything, three quarters with the insertion, half with words."""
    shape = (n, 3, 1)
    right = np.zeros(shape)
    for at, share in enumerate((first, 0.75, 0.5)):
        right[:, at, 0] = np.arange(n) < round(share * n)
    one, texts = np.ones(shape), (((("x",),) * 3),) * n
    graded = (dict.fromkeys(GRADERS, right), one, 0 * one, 20 * one, texts, np.full(shape, "text"))
    return mi.AccuracyResults(problems(n), ("none", "Mless", "Mful"), *graded, settings={"model": "tiny"})


def asked_twice(n_treatments: int = 3, n: int = 30, **more: Any) -> Any:
    """Two answers each, more and more of them right; some are cut off or not decided."""
    cells = np.arange(6.0 * n).reshape(n, 3, 2)[:, :n_treatments]
    right = (cells * 7 % 11 < np.array([[2], [6], [10]])[:n_treatments]).astype(float)
    graded = ({"strict": right, "paper": np.maximum(right, cells % 5 == 0)}, 1.0 * (cells % 3 > 0))
    texts = tuple(tuple(tuple(map(str, two)) for two in each) for each in cells)
    decided = np.where(cells % 13 == 0, GAVE_UP, "text")
    names = ("none", "Mless", f"Mful {'he ' * 120}")[:n_treatments]
    graded += (1.0 * (cells % 8 == 0), cells % 6, texts, decided, ("7",) * n)
    return mi.AccuracyResults(
        problems(n), names, *graded, settings={"model": "tiny", "reference": "Mless"}, seed=3, **more
    )


def checked() -> mi.ClaimChecks:
    attenuation, uniform = CLAIMS["attenuation"], CLAIMS["more_uniform"]
    checks = (
        ClaimCheck(attenuation, 0.5, 0.4, 0.6, 6, 1.0, -0.5, -0.6, -0.4, "agrees"),
        ClaimCheck(uniform, 0.2, 0.1, 0.3, 6, reason="no profile with random words"),
    )
    settings = {"model": "tiny", "heads": "L0H1", "insertion": "Mless", "n_problems": 6}
    return mi.ClaimChecks(checks, (mi.ClaimChecks(checks, settings=settings),), settings=settings)


def judged(*verdicts: str) -> Any:
    """Four claims, two of each verdict."""
    claims = zip(CLAIMS.values(), 2 * verdicts, strict=False)
    checks = (replace(checked().checks[0], claim=claim, verdict=verdict) for claim, verdict in claims)
    return mi.ClaimChecks(tuple(checks), settings=checked().settings)


def hook_compared(n: int = 4) -> mi.HookComparison:
    """A hook that changes another head, in all problems but one."""
    found = tuple("as meant" if at == 1 else "it changes L1H1, not L1H2" for at in range(n))
    return mi.HookComparison(problems(n), "the edit 'zero' of L1H2", found, np.full(n, 0.3))


def certified() -> mi.Certificate:
    widths = {"d_head": 4, "d_model": 12, "d_mlp": 24, "d_vocab": 50}
    sizes = {"n_layers": 2, "n_heads": 3, "n_key_value_heads": 3, **widths}
    kind = {"name": "tiny", "backend": "bridge", "architecture": "Qwen2ForCausalLM", "attention": "eager"}
    where = {"dtype": "float32", "device": "cpu", "versions": {"torch": "2"}}
    info = ModelInfo(**kind, **sizes, **where, context_length=64, windows=(None, 16))
    verdicts = (
        Verdict("S1", "logits = the plain pass", PASS, 3e-7, 1e-3),
        Verdict("I9", "heads add up", NOT_APPLICABLE, float("nan"), 1e-4, "the output is normed"),
        Verdict("I12", "slope 1", FAIL, 0.5, 1e-3),
    )
    return mi.Certificate(info, verdicts, ({"inserted_ids": [1, 2, 3], "insertion": "Mless"},))


ACTING = SETTINGS | {"contrast": "content", "direction": "denoising", "edit": "z"}


def directed(n: int = 12) -> mi.DirectEffects:
    """L0H1 acts through others, L1H0 straight and a little against itself, of a total effect of 1."""
    values = np.tile([0.0, 0.5, 0.4, -0.1, 0.0, 0.0], (n, 1))
    values[:, ::2] += spread(n)[:, None]
    cells = tuple(Way(head, way) for head in HEADS for way in ("direct", "indirect"))
    return mi.DirectEffects(problems(n), cells, values, 1 + spread(n), "nats", settings=ACTING)


def traced(n: int = 12) -> mi.PathEffects:
    """L0H1 acts on L1H0 by its value and on the last MLP; L0H0 against the effect."""
    sizes = {"L0H1 -> L1H0 q": 0.0, "L0H1 -> L1H0 v": 0.4, "L0H1 -> L1H0": 0.4, "L0H0 -> L1H0": -0.2}
    sizes |= {"L0H1 -> MLP1": 0.3, "L1H0 -> MLP1": 0.5, "MLP1 -> logits": 0.9}
    values = np.array(list(sizes.values())) + spread(n)[:, None]
    return mi.PathEffects(problems(n), tuple(map(mi.Edge.parse, sizes)), values, 1 + spread(n), "nats", settings=ACTING)


def placed(n: int = 16) -> mi.SitePatches:
    """Two sites of three layers at one token of each end: the stream carries more and more, the first token is missing once."""
    values = np.zeros((n, 2, 3, 3)) + spread(n)[:, None, None, None]
    values[:, 0, :, 1:] += np.array([0.0, 0.4, 0.9])[:, None]
    values[:, 1, 0] -= 0.3
    values[0, :, :, 0] = np.nan
    settings = SETTINGS | {"contrast": "content", "direction": "noising"}
    cells = tuple(Site(*each) for each in product(("resid_pre", "attn_out"), range(3), ("0", "-1", "all")))
    return mi.SitePatches(problems(n), cells, values.reshape(n, -1), 1 + spread(n), "nats", settings=settings)


def spots(n: int = 12) -> mi.PositionMap:
    """L0H1 acts through the last token and reads the first one of the span."""
    places = ("row 0", "row -1", "row all", "span first token", "span block 0", "span block 1", "span all")
    values = np.zeros((n, 7)) + spread(n)[:, None]
    values[:, [1, 2, 3, 4, 6]] += 0.5
    cells = tuple(Place(mi.Head(0, 1), place) for place in places)
    return mi.PositionMap(problems(n), cells, values, 1 + spread(n), "nats", settings=SETTINGS)


def sets_found(n: int = 12) -> mi.MinimalSets:
    """L0H1 and then L1H0 bring everything, L0H0 does as well in the place of L0H1, three other sets do nothing; no necessary
    set."""
    part = 1 + spread(n)
    one = HeadSet(
        side="sufficient",
        heads=HEADS[:2],
        swaps=((HEADS[2], HEADS[1]),),
        effects=part[:, None] * [0.95, 0.9],
        fresh=part[:, None] * [0.92, 0.85],
        sets=((HEADS[2], HEADS[1]), (mi.Head(0, 2), HEADS[1]), (mi.Head(0, 2), mi.Head(1, 1))),
        random=part[:, None] * [0.85, 0.1, 0.0],
    )
    none = HeadSet("necessary", (), (), one.effects[:, :0], one.fresh[:, :0], (), one.random[:, :0])
    return mi.MinimalSets(
        problem_ids=problems(n),
        fresh_ids=tuple(f"fresh {at}" for at in range(n)),
        candidates=HEADS,
        total=part,
        fresh_total=part,
        sufficient=one,
        necessary=none,
        unit="nats",
        share=0.8,
        settings=SETTINGS | {"contrast": "content", "max_heads": 2},
        resolution=1e-6,
    )


def transferred(n: int = 12) -> mi.Transfer:
    """Two heads' means bring back 0.9 of a total effect of 1; random heads 0.1, another insertion's means 0.3."""
    part = 1 + spread(n)
    return mi.Transfer(
        problem_ids=tuple(f"fresh {at}" for at in range(n)),
        measured_ids=problems(n),
        heads=HEADS[:2],
        edit_lam=np.array([0.4, 0.9]),
        edit_sigma=np.array([[3.0, 4.0], [0.0, 1.0]]),
        base=-2 * np.ones(n),
        inserted=-2 + part,
        given=0.9 * part,
        sets=((HEADS[2], HEADS[1]), (mi.Head(0, 2), HEADS[1])),
        random=part[:, None] * [0.2, 0.0],
        other=part[:, None] * [0.4, 0.2],
        unit="nats",
        settings=SETTINGS | {"contrast": "total", "control": "random words", "place": {"before": "question"}},
    )


def written(n: int = 6) -> mi.HeadWrites:
    """L0H1 promotes a, suppresses b and looks at the span; L1H0 writes nothing that could be told from rounding."""
    texts = (" a", " c", " d", " b")
    looks = (" / (inserted)", "", "", " a")
    values = np.zeros((n, 2, 3, 4)) + 0.01 * spread(n)[:, None, None, None]
    values[:, 0, :2] += np.array([0.5, 0.1, -0.1, -0.4])
    values[:, :, 2] += np.array([1.0, np.nan, np.nan, -1.0])
    tokens = ((texts, texts, looks), (texts, texts, looks))
    heads = (mi.Head(0, 1), mi.Head(1, 0))
    return mi.HeadWrites(problems(n), heads, tokens, values, 1e-3, settings=SETTINGS | {"outcome": None})


def circuit(n: int = 12) -> mi.Circuit:
    """L0H1's direct effects and edges; sites and the rest left out."""
    left_out = {"sites": "not asked for", "writes": "its weights are quantised"}
    made = directed(n), traced(n), traced(n)
    return mi.Circuit((mi.Head(0, 1),), made[0].problem_ids, None, *made, left_out=left_out, settings=SETTINGS)


def studied(n: int = 8) -> mi.StudyResult:
    """Slashes lower the outcome by 1 and nothing else is shown; the other insertion does exactly nothing."""
    totals = {"slashes": -1 + spread(n), "he": np.zeros(n)}
    return mi.StudyResult(
        title="A study",
        source="somebody",
        claims="something",
        problem_ids=problems(n),
        insertions=tuple(totals),
        contrasts=("content",),
        outcome="answer_logprob",
        effects={name: {"content": patched(n, donor=-total, contrast="content")} for name, total in totals.items()},
        attention={name: scored(n) for name in totals},
        located={"slashes": located()},
        settings={"model": "tiny", "insertions": {"slashes": "Mless ' /' x8", "he": "Mful 'he' x8"}},
    )


def turned(found: Any, **changes: Any) -> Any:
    """Effects of the other sign."""
    values = {name: -each for name, each in found.values.items()} if isinstance(found.values, dict) else -found.values
    return replace(found, total=-found.total, values=values, **changes)


def in_strata(n: int = 40) -> Any:
    """L1H0 passes on 0.4 and 0.3 in stratum a, and nothing in b, on fresh problems too."""
    strata = tuple("ab" * (n // 2))
    acts = (np.array(strata) == "a")[:, None] | (np.arange(3) != 1)
    of: dict[str, Any] = {"values": {name: acts * each for name, each in measures(1.0, n).items()}, "strata": strata}
    found = replace(located(1.0, n), **of, settings=LOCATING | {"by": "kind"})
    kinds, within = ("reader", "specialist", "sufficient only"), found.judged.in_strata
    return replace(found, confirmation=replace(confirmed(1.0, n), **of, kinds=kinds, within=within))


def whole_circuit() -> Any:
    """Every part but what heads write, of two heads of which one is confirmed."""
    parts: dict[str, Any] = {"direct": directed(), "edges": replace(traced(), confidence=0.975)}
    parts |= {"sufficient": traced(), "sites": placed(12)}
    parts |= {"positions": spots(), "sets": sets_found(), "transfer": transferred()}
    named = replace(located(), confirmation=confirmed())
    return mi.Circuit((mi.Head(0, 1), mi.Head(0, 0)), problems(12), named, **parts)


MADE = [made for made in list(vars().values()) if getattr(made, "__module__", "") == __name__ and callable(made)]
RESULTS: dict[str, Callable[[], Any]] = {
    kind.__name__: made
    for made in MADE
    if isinstance(kind := made.__annotations__["return"], type) and issubclass(kind, Result)
} | {
    "RunsCompared": lambda: mi.compare_runs({"one": located(), "other": located()}),
    "Comparison": lambda: answered(n=20).compare("none", "Mless"),
    "Comparisons": lambda: answered(n=20).compare_all(),
}
"""A result of every kind, by its class."""

NOTHING = np.zeros((12, 0))
OTHERS: dict[str, Callable[[], Any]] = {
    "StudyResult with answers": lambda: replace(
        studied(20),
        answers=replace(answered(n=20), treatments=("none", "slashes", "he")),
        settings=studied(20).settings | {"dtype": "bfloat16", "resolution": 2e-3},
    ),
    "LocatedHeads, confirmed": lambda: replace(located(), confirmation=confirmed()),
    "LocatedHeads, lowering, in bfloat16": lambda: turned(located(), settings=LOCATING | {"dtype": "bfloat16"}),
    "Confirmation, lowering": lambda: turned(confirmed(), direction=-1.0),
    "Confirmation, no effect": lambda: replace(confirmed(), total=spread(10)),
    "Confirmation of few": lambda: replace(confirmed(n=6), controls={}, joint=None, reads=read_apart(n=6)),
    "LocatedHeads in strata, confirmed": in_strata,
    "LocatedHeads, two against": lambda: replace(
        turned(located(), joint=knocked_out(12), reads=read_apart()),
        total=located().total,
        settings=LOCATING | {"outcome": "logit_diff", "contrast": "inside"},
    ),
    "LocatedHeads, nothing, of spans": lambda: replace(
        located(),
        values={name: 0 * each for name, each in measures(1.0, 12).items()},
        strata=tuple("ab" * 6),
        settings=LOCATING | {"contrast": "computed", "n_fresh": 9, "by": "kind"},
    ),
    "LocatedHeads, no effect": lambda: replace(located(), total=spread(12), settings=LOCATING | {"n_fresh": 9}),
    "MinimalSets, less on fresh problems": lambda: replace(
        sets_found(), fresh_total=1.3 * sets_found().fresh_total, settings=sets_found().settings | {"named_on_these": 3}
    ),
    "MinimalSets, no effect": lambda: replace(sets_found(), total=spread(12)),
    "MinimalSets without any": lambda: replace(
        sets_found(),
        total=spread(12),
        **{side: HeadSet(side, (), (), *[NOTHING] * 2, (), NOTHING) for side in SIDES},
    ),
    "MinimalSets, no effect on fresh problems": lambda: replace(sets_found(), fresh_total=spread(12)),
    "CircuitCurve, chosen elsewhere": lambda: replace(
        curve(0.4, total=-1.0, n=8), chosen_elsewhere=True, settings=SETTINGS | {"ablation": "none", "n_ranked": 4}
    ),
    "CircuitCurve without random orders": lambda: replace(curve(), orders=("a", "b"), values=curve().values[:, :2]),
    "CircuitCurve, no effect": lambda: curve(total=0.0),
    "Transfer, no effect": lambda: replace(transferred(), inserted=transferred().base),
    "Transfer without controls": lambda: replace(transferred(), sets=(), random=NOTHING, other=NOTHING),
    "HeadWrites of four heads": lambda: replace(
        written(), heads=SIX[:4], tokens=2 * written().tokens, values=np.repeat(-written().values, 2, 1)
    ),
    "DirectEffects, lowering": lambda: turned(directed(), settings=ACTING | {"beside": "commas"}),
    "PathEffects, lowering, named here": lambda: turned(traced(), settings=ACTING | {"named_on_these": 12}),
    "SitePatches of few": lambda: placed(5),
    "PositionMap, no effect": lambda: replace(spots(), total=spread(12)),
    "Circuit of all parts": whole_circuit,
    "Circuit of no head": lambda: mi.Circuit((), (), located(0.0)),
    "Circuit of no given head": lambda: mi.Circuit((), ()),
    "PatchScores, raising": lambda: replace(patched(12, insertion="slashes", outcome="p"), confidence=0.9),
    "PatchScores, lowering, of variants": lambda: replace(swept(), donor=-np.ones(24), settings={"dtype": "float16"}),
    "PatchScores, nothing shown": lambda: replace(patched(24), patched=patched(24).patched / 100),
    "PatchScores of one problem": lambda: patched(1),
    "HeadAttribution by atp": lambda: replace(attributed(), knockout=None, exact=None, settings={"method": "atp"}),
    "HeadAttribution, lowering": lambda: replace(attributed(), inserted=-attributed().inserted),
    "HeadAttribution, nothing": lambda: replace(attributed(), inserted=np.zeros(4)),
    "JointKnockout, overlapping": lambda: replace(knocked_out(), effect=0.2 + spread(8), chosen_elsewhere=True),
    "JointKnockout of one head": lambda: replace(
        knocked_out(5), heads=HEADS[:1], singles=knocked_out(5).singles[:, :1], sets=(), random=np.zeros((5, 0))
    ),
    "DoseResponse of a deeper layer, nothing shown": lambda: replace(doses(n=5), layer=3),
    "ReadEffects, lowering, chosen here": lambda: turned(read_apart(), chosen_elsewhere=False),
    "ReadEffects of few": lambda: read_apart(n=8),
    "ReadEffects, no effect": lambda: replace(read_apart(), total=spread(12)),
    "HeadScores beside twins": lambda: replace(rated(), twins=(rated(0.7), rated(5.0))),
    "HeadScores, two metrics": lambda: replace(
        rated(), values={name: rated().values[name] for name in ("kurtosis", "recovery_latency")}
    ),
    "HeadScores, undefined": lambda: replace(scored(), values={"lam": {"inserted": np.full((3, 2, 3), np.nan)}}),
    "AttentionProfile of uneven prompts": uneven,
    "AttentionProfile of one problem": lambda: replace(uneven(1), conditions=("base",)),
    "HeadScores of segments": lambda: replace(scored(), values=between_segments(), conditions=("base", "inserted")),
    "Transplant, the other way": lambda: transplanted(-0.5),
    "Transplant, not established": lambda: transplanted(0.02),
    "Transplant of few": lambda: transplanted(n=4),
    "AttentionDecomposition of few": lambda: decomposed(n=6),
    "Mediation of a deeper layer": lambda: replace(
        mediated(8), settings=SETTINGS | {"layer": 1}, values=mediated(8).values * [1, 1, 1, 0.9, 1, 1.2]
    ),
    "ActivationShift of few": lambda: activations(n=3),
    "SpanReadings, nothing readable": lambda: readable(0.0),
    "RunsCompared, one confirmed": lambda: mi.compare_runs(
        {"one": located(), "other": {"found": replace(located(), confirmation=confirmed())}}
    ),
    "RunsCompared of sweeps": lambda: mi.compare_runs({"one": patched(12), "other": patched(4)}),
    "RunsCompared of answers": lambda: mi.compare_runs(dict.fromkeys(("one", "other"), answered(n=20))),
    "ClaimChecks, two of each": lambda: replace(
        judged("agrees", "disagrees"), twins=(judged("cannot tell", "agrees"),)
    ),
    "Enrichment over problems": lambda: replace(enriched(), settings={"n_problems": 12}),
    "Comparisons, several sure": lambda: asked_twice().compare_all("none", grader="paper"),
    "AccuracyResults of two answers": asked_twice,
    "AccuracyResults of one treatment": lambda: asked_twice(1),
    "AccuracyResults of two treatments": lambda: asked_twice(2, groups=tuple(f"g{at % 15}" for at in range(30))),
}
"""The same in other cases, where other things are said of them."""

KEPT = Path(__file__).with_name("kept_results.txt")
"""All that these results say and show, as it was when this file was written: `python tests/small_results.py` writes it anew,
and its diff is what users will see differently."""


PRINTED = ("printed", "to_frame", "top")


def tables_of(kind: type) -> list[str]:
    """Names of the methods that make a table of a result and ask for nothing."""
    return [
        name
        for name, method in inspect.getmembers(kind, inspect.isfunction)
        if inspect.signature(method).return_annotation is pd.DataFrame
        and name.isascii()  # no copy that mutmut makes
        and not {"each", "metric", "head"} & set(inspect.signature(method).parameters)
    ]


def told(name: str) -> str:
    """Everything of a result that a person reads: its print, explanation, tables, and the texts of its page."""
    result = (RESULTS | OTHERS)[name]()
    tables = {method: getattr(result, method)() for method in tables_of(type(result)) if method not in PRINTED}
    rows = result.to_frame()
    tables["some rows"] = rows.iloc[:: 1 + len(rows) // 12]
    page = []
    for part in mi.Report("T", question="Q?").result(result, heading=None).parts:
        for each in part.parts if part.kind == "folded" else (part,):
            if each.kind == "table":
                notes = " | ".join(column.note for column in each.columns if column.note != column.heading)
                page.append(f"page: {each.caption} {len(each.rows)} rows, {each.at_once} columns at once; {notes}")
                page += [each.sentence(row) for row in dict.fromkeys((0, len(each.rows) - 1)) if each.rows]
            elif each.kind == "head_map":
                column, limit, means, below = (each.shown[name] for name in ("column", "limit", "means", "below"))
                page.append(f"page: map of {column.heading}, {limit}, {means}, {below}")
                squares = (f"{square['colour']}{'*' * square['marked']}" for square in each.shown["squares"])
                page.append(" ".join(squares))
    units = {str(result.quantity(column)): column for column in result.table()}
    page += [f"quantity: {column}: {unit}" for unit, column in units.items()]
    parts = [repr(result), *result.explain().splitlines(), *page]
    if "confidence" in {field.name for field in fields(result)}:
        wider = replace(result, confidence=0.8)
        tables["at 80 %"], parts = wider.table(), [*parts, f"at 80 %: {wider.explain()}"]
    rounded = lambda x: f"{x if abs(x) > 1e-12 else 0:.4g}"  # noqa: E731 - what cancels does so alike on no two processors
    parts += [f"{method}\n{table.to_csv(index=False, float_format=rounded)}" for method, table in tables.items()]
    return f"=== {name}\n" + "\n".join(parts)


if __name__ == "__main__":
    KEPT.write_text("".join(map(told, RESULTS | OTHERS)), encoding="utf-8")
