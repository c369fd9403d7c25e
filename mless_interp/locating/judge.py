"""From measures to verdicts: which heads carry the effect, as one test over the whole family says."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..heads import Head
from ..statistics import max_t_sign_flip, mean_interval
from .measure import MEASURES


def established(total: np.ndarray, *, resolution: float, seed: int = 0) -> bool:
    """Whether the insertion's effect `[problem]` is there: larger than rounding, and its 95 % interval does not hold 0."""
    interval = mean_interval(total, seed=seed)
    return abs(float(interval.estimate)) > resolution and float(interval.low) * float(interval.high) > 0


@dataclass(frozen=True, eq=False)
class Judged:
    """What the tests say of every head of a family: corrected p-values per measure (NaN: not tested) and the kinds."""

    p: dict[str, np.ndarray]
    readers: np.ndarray
    mediators: np.ndarray


def judge(
    values: dict[str, np.ndarray],
    heads: Sequence[Head],
    *,
    alpha: float = 0.05,
    smallest: float = 0.0,
    n_permutations: int = 10_000,
    seed: int = 0,
) -> Judged:
    """The statistics of `locate_heads`, from measures `[problem, head]` on: one max-T test each over the whole family."""
    p = {}
    for name in MEASURES:
        tested = _tested(values[name], heads, name)
        p[name] = np.full(len(heads), np.nan)
        if tested.any():
            test = max_t_sign_flip(values[name], n_permutations=n_permutations, seed=seed, alpha=alpha, tested=tested)
            p[name] = test.p_corrected

    def passing(first: str, second: str) -> np.ndarray:
        means = values[first].mean(0), values[second].mean(0)
        agree = np.sign(means[0]) == np.sign(means[1])
        for name, mean in zip((first, second), means, strict=True):
            agree = agree & (np.nan_to_num(p[name], nan=1.0) < alpha) & (np.abs(mean) >= smallest)
        return agree

    return Judged(p, passing("knockout", "edge_noise"), passing("mediated_removed", "mediated_added"))


def _tested(values: np.ndarray, heads: Sequence[Head], measure: str) -> np.ndarray:
    """Cells of the family: in layer 0 nothing can be mediated, and an effect that never varies cannot be tested."""
    defined = np.isfinite(values).all(0)
    can_be = np.array([head.layer > 0 or not measure.startswith("mediated") for head in heads])
    varies = np.ptp(np.where(np.isfinite(values), values, 0), axis=0) > 0
    return defined & can_be & varies
