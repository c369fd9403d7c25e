"""Accuracy: counts of right and wrong answers."""

from math import comb

import numpy as np
from jaxtyping import Shaped
from scipy import stats
from scipy.optimize import brentq
from scipy.special import ndtri

from ..core.arguments import check_count, check_share
from .intervals import CONFIDENCE, Cells, Interval

Counts = int | Shaped[np.ndarray, "*cells"]


def mcnemar(only_first: int, only_second: int) -> float:
    r"""Return the exact two-sided McNemar p-value that two conditions are right equally often, on the same problems.

    $$ p = \min\{1,\; 2 \sum_{i \le \min(b, c)} \tbinom{n}{i} / 2^n\}, \qquad n = b + c $$

    Only the problems that change count: $b$ right in the first condition alone, $c$ right in the second alone. 1 if none.
    Source: McNemar 1947, exact binomial form. As published.

    >>> mcnemar(5, 1)
    0.21875
    """
    n = int(only_first) + int(only_second)
    return float(stats.binomtest(int(only_first), n, 0.5).pvalue) if n else 1.0


def wilson(successes: Counts, n: Counts, *, confidence: float = CONFIDENCE) -> Interval:
    r"""Return the Wilson score interval of a share of `n` independent problems.

    $$ \frac{\hat p + z^2 / 2n \pm z \sqrt{\hat p (1 - \hat p) / n + z^2 / 4n^2}}{1 + z^2 / n} $$

    Never a point and never outside [0, 1], also at 0 or n successes. NaN where `n` is 0. Repeated samples of one problem are
    not independent: average them first and use `bootstrap_interval`. Source: Wilson 1927. As published (no continuity
    correction).

    >>> wilson(362, 500)
    0.724 [0.6832, 0.7614] (95 % wilson, n = 500)
    """
    check_share(confidence, name="confidence")
    k, total = np.broadcast_arrays(np.asarray(successes, np.int64), np.asarray(n, np.int64))
    if (k > total).any():
        raise ValueError("successes must not exceed n")
    z = float(ndtri((1 + confidence) / 2))
    with np.errstate(divide="ignore", invalid="ignore"):
        share = k / total
        centre = (share + z**2 / (2 * total)) / (1 + z**2 / total)
        half = z * np.sqrt(share * (1 - share) / total + z**2 / (4.0 * total**2)) / (1 + z**2 / total)
        error = np.sqrt(share * (1 - share) / total)
    low = np.where((k == 0) & (total > 0), 0.0, centre - half)
    high = np.where((k == total) & (total > 0), 1.0, centre + half)
    share, error, flag = np.asarray(share), np.asarray(error), np.where(total == 0, "no problems", "")
    return Interval(share, low, high, error, total.copy(), flag, confidence, "wilson")


def paired_difference(only_first: int, only_second: int, n: int, *, confidence: float = CONFIDENCE) -> Interval:
    r"""Return the difference of two proportions on the same problems (second - first), with Tango's score interval.

    $$ \left|\frac{c - b - n \Delta}{\sqrt{n (2 \tilde q(\Delta) + \Delta (1 - \Delta))}}\right| \le z, \qquad
       \tilde q = \frac{\sqrt{B^2 - 4 A C} - B}{2 A} $$

    with b problems right in the first only, c in the second only, $A = 2n$, $B = -b - c + (2n - c + b) \Delta$, $C = -b \Delta
    (1 - \Delta)$. Never a point, also where nothing changed. A limit that would exclude 0 while the exact McNemar test does not
    reject is drawn to 0, so that interval and test never contradict each other. Source: Tango 1998, Statistics in Medicine
    17:891 | differs in: the limits drawn to 0.

    >>> paired_difference(3, 0, 30)
    -0.1 [-0.2562, 0.02486] (95 % tango, n = 30)
    """
    check_share(confidence, name="confidence")
    b, c, total = int(only_first), int(only_second), int(n)
    if min(b, c) < 0 or b + c > total or not total:
        raise ValueError(f"{b} + {c} problems changed, but there are {total} in all")
    z = float(ndtri((1 + confidence) / 2))

    def excess(delta: float, side: int) -> float:
        one = 2 * total
        two = -b - c + (2 * total - c + b) * delta
        three = -b * delta * (1 - delta)
        q = (np.sqrt(max(two**2 - 4 * one * three, 0.0)) - two) / (2 * one)
        spread = total * (2 * q + delta * (1 - delta))
        return (c - b - total * delta) - side * z * np.sqrt(max(spread, 0.0))

    estimate = (c - b) / total
    first, last = -1 + 1e-12, 1 - 1e-12
    # the excess falls with delta; where it does not reach 0 (all problems changed the same way) the limit is the end
    low = float(brentq(excess, first, last, args=(1,), xtol=1e-12)) if excess(first, 1) > 0 else -1.0
    high = float(brentq(excess, first, last, args=(-1,), xtol=1e-12)) if excess(last, -1) < 0 else 1.0
    if mcnemar(b, c) >= 1 - confidence:
        low, high = min(low, 0.0), max(high, 0.0)
    error = np.sqrt(b + c - (c - b) ** 2 / total) / total
    made = {"estimate": estimate, "low": low, "high": high, "standard_error": error, "n": total, "flag": ""}
    return Interval(**{name: np.asarray(each) for name, each in made.items()}, confidence=confidence, method="tango")


def pass_at_k(n_correct: Counts, n_samples: Counts, *, k: int) -> Cells:
    r"""Return the chance that at least one of `k` samples is right, without bias, from `n_samples` samples per problem.

    $$ 1 - \binom{n - c}{k} \Big/ \binom{n}{k} $$

    One value per problem; average over problems. 1 where fewer than `k` samples are wrong. Source: Chen et al. 2021
    (2107.03374). As published.

    >>> pass_at_k(np.array([0, 1, 3]), 4, k=2)
    array([0. , 0.5, 1. ])
    """
    check_count(k, name="k")
    c, n = np.broadcast_arrays(np.asarray(n_correct, np.int64), np.asarray(n_samples, np.int64))
    if (n < k).any():
        raise ValueError(f"pass@{k} needs at least {k} samples of every problem, got {int(n.min())}")
    numbers = zip((n - c).ravel().tolist(), n.ravel().tolist(), strict=True)
    return np.asarray(1.0 - np.reshape([comb(wrong, k) / comb(total, k) for wrong, total in numbers], c.shape))
