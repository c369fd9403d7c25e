"""What most problems show, exactly and for any distribution: medians, shares, tests of claims, corrections for many tests."""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from jaxtyping import Shaped
from scipy import stats

from ..core.arguments import check_count, check_share
from .intervals import CONFIDENCE, AnyArray, CellCounts, Cells, Effects, Groups, Interval, by_count, check_effects

SENSES = (1, -1)  # with the effect, and against it
Senses = Shaped[np.ndarray, "sense *cells"]
TOO_FEW_FOR_MEDIAN = "too few problems for a median's interval"
NO_TOTAL = "the total effect is not established"


def by_group(values: Effects, groups: Sequence[str], *, mean: bool = False) -> Groups:
    """Return `[group, *cells]`: the median of each group's problems, groups in order of first appearance.

    Problems that are variants of one another do not replicate, so tests and intervals take these values. NaN members are left
    out; NaN where all are. Where every problem has a group of its own (`groups` may be () then) the values come back as they
    are. `mean` takes a group's mean, as for shares of right answers.

    >>> by_group(np.array([1.0, 5.0, 2.0, 9.0]), ("a", "b", "a", "a"))
    array([2., 5.])
    """
    if groups and len(groups) != len(values):
        raise ValueError(f"groups must name one group per problem: got {len(groups)} for {len(values)} problems")
    members: dict[str, list[int]] = {}
    for place, name in enumerate(groups):
        members.setdefault(name, []).append(place)
    if len(members) == len(groups):
        return values
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # all of a group's members undefined: NaN is the answer
        middle = np.nanmean if mean else np.nanmedian
        return np.stack([middle(values[places], axis=0) for places in members.values()])


def median_interval(values: Effects, *, confidence: float = CONFIDENCE) -> Interval:
    r"""Return each cell's median over problems with the interval of its order statistics.

    $$ [x_{(k)}, x_{(n + 1 - k)}], \qquad k = \max\{k : P(\mathrm{Bin}(n, \tfrac12) \le k - 1) \le \alpha / 2\} $$

    Covers at least as often as it says. With fewer than 6 problems (at 95 %) there is none, flagged. Infinite values ("never")
    rank as the most extreme. Source: Thompson 1936; Conover 1999. As published.

    >>> median_interval(np.arange(1.0, 17))
    8.5 [4, 13] (95 % order statistics, n = 16)
    """
    check_share(confidence, name="confidence")
    array = check_effects(values, name="values", min_problems=1, infinite=True)
    shape = array.shape[1:]
    flat = array.reshape(len(array), -1)
    middle, low, high = (np.full(flat.shape[1], np.nan) for _ in range(3))
    for cells, column in by_count(flat, at_least=1):
        ordered, k = np.sort(column, axis=0), order_statistic(len(column), (1 - confidence) / 2)
        middle[cells] = np.median(ordered, axis=0)
        if k > 0:
            low[cells], high[cells] = ordered[k - 1], ordered[-k]
    estimate, least, most, n_defined = (each.reshape(shape) for each in (middle, low, high, (~np.isnan(flat)).sum(0)))
    flag = np.where(np.isnan(least), TOO_FEW_FOR_MEDIAN, "")
    return Interval(estimate, least, most, np.full(shape, np.nan), n_defined, flag, confidence, "order statistics")


def order_statistic(n: int, tail: float) -> int:
    """Return the largest k for which the k-th of n values is above the median with at most this probability; 0: none."""
    return int((stats.binom.cdf(np.arange(n), n, 0.5) <= tail).sum())


def sign_test(values: Effects, *, rounding: float = 0.0) -> Cells:
    r"""Test whether most problems show an effect of one sign. Exact, two-sided, per cell.

    $$ p = \min\{1,\; 2 P(\mathrm{Bin}(n, \tfrac12) \ge \max(n_+, n_-))\}, \qquad
       n_\pm = \#\{p : \pm x_p > \text{rounding}\} $$

    Problems without an effect (within rounding) stay in n and so speak against it. NaN without problems. Source: Arbuthnott
    1710, Conover 1999 | differs in: ties are kept, since the claim is about most of *all* problems.

    >>> sign_test(np.array([1.0, 2, 3, 4, 5, -1])).round(4).item()
    0.2188
    """
    array = check_effects(values, name="values", min_problems=1)
    defined = ~np.isnan(array)
    n = defined.sum(0)
    most = np.maximum((defined & (array > rounding)).sum(0), (defined & (array < -rounding)).sum(0))
    return np.where(n > 0, np.minimum(1.0, 2 * stats.binom.sf(most - 1, n, 0.5)), np.nan)


class Concentration(NamedTuple):
    """The largest 5 % of the problems: their `share` of the sum of |x|, their places (`problems`, the largest first), and the
    smallest and the largest mean (`low`, `high`) as they are left out one after the other."""

    share: float
    problems: tuple[int, ...]
    low: float
    high: float


def concentration(values: Effects) -> Concentration:
    r"""Return how far a mean over problems rests on a few of them.

    $$ C = \frac{\sum_{p \in L} |x_p|}{\sum_p |x_p|}, \qquad |L| = \lceil 0.05\, n \rceil $$

    with L the problems of the largest |x|. 5 % where all are equal, 1 where one problem carries everything; NaN where nothing
    happens at all. Source: methods §9.

    >>> round(concentration(np.array([10.0] + [0.1] * 19)).share, 3)
    0.84
    """
    array = check_effects(values, name="values", min_problems=1)
    places = np.flatnonzero(~np.isnan(array))
    known = array[places]
    n_largest = int(np.ceil(0.05 * len(known) - 1e-9))
    order = np.argsort(-np.abs(known), kind="stable")
    whole = float(np.abs(known).sum())
    share = float(np.abs(known[order[:n_largest]]).sum()) / whole if whole > 0 else float("nan")
    every = range(min(n_largest, len(known) - 1) + 1)
    left = [float(known[order[cut:]].mean()) for cut in every] or [float("nan")]
    return Concentration(share, tuple(places[order[:n_largest]].tolist()), min(left), max(left))


def share_of_total(part: Effects, total: AnyArray, *, confidence: float = CONFIDENCE) -> Interval:
    r"""Return the share $\theta$ of a total effect that a part of it is, per cell, with limits that hold for any distribution.

    $$ \{\theta : \max(n_+, n_-) \le n - k\}, \qquad n_\pm(\theta) = \#\{p : \pm (g_p - \theta\, t_p) > 0\} $$

    The limits enclose every $\theta$ that the two-sided sign test of $g_p - \theta t_p$ does not reject ($k$ as in
    `median_interval`); the estimate is the middle of those that balance the signs. Where all $t_p$ have one sign, these are the
    order statistics and the median of $g_p / t_p$.

    `total` `[problem]`, `part` `[problem, *cells]`. NaN, flagged, where the sign test does not establish the total. Source: the
    inverted sign test (Conover 1999, section 3.5), as Fieller (1954) inverts the t test; methods §9.

    >>> share_of_total(np.array([1.0, 2, 3, 4, 5, 6, 7, 8, 9]), np.full(9, 10.0))
    0.5 [0.2, 0.8] (95 % sign test, n = 9)
    """
    check_share(confidence, name="confidence")
    parts, whole = check_effects(part, name="part", min_problems=1), check_effects(total, name="total", min_problems=1)
    shape = parts.shape[1:]
    flat = parts.reshape(len(parts), -1)
    found = np.full((3, flat.shape[1]), np.nan)
    defined = ~(np.isnan(flat) | np.isnan(whole[:, None]))
    for at, known in enumerate(defined.T):
        g, t = flat[known, at], whole[known]
        if len(t) and sign_test(t) < 1 - confidence:
            limits = _accepted(g, t, len(t) - order_statistic(len(t), (1 - confidence) / 2))
            found[:, at] = sum(_accepted(g, t, len(t) / 2)) / 2, *limits
    estimate, low, high = (row.reshape(shape) for row in found)
    unknown, flag = np.full(shape, np.nan), np.where(np.isnan(estimate), NO_TOTAL, "")
    return Interval(estimate, low, high, unknown, defined.sum(0).reshape(shape), flag, confidence, "sign test")


def _accepted(g: np.ndarray, t: np.ndarray, most: float | int) -> tuple[float, float]:
    """Return the least and the largest share at which at most `most` of g - share x t have one sign: ratios g / t."""
    rest = g[t == 0]
    rising, falling = (np.sort(g[side] / t[side]) for side in (t > 0, t < 0))
    ratios = np.concatenate([rising, falling])
    above = len(rising) - np.searchsorted(rising, ratios, "right") + np.searchsorted(falling, ratios)
    below = np.searchsorted(rising, ratios) + len(falling) - np.searchsorted(falling, ratios, "right")
    kept = ratios[np.maximum(above + (rest > 0).sum(), below + (rest < 0).sum()) <= most]
    return float(kept.min()) + 0.0, float(kept.max()) + 0.0  # no -0


@dataclass(frozen=True, eq=False)
class Prevalence:
    """In how many of `n` problems each cell exceeds `delta`, in each of `senses`: arrays `[sense, *cells]`.

    `p` is one cell's own, `p_corrected` Holm's over the whole family (all tested cells, all senses); NaN: not tested. `low` and
    `high` are the exact limits of the prevalence count / n. Where `delta` is NaN nothing is counted: all is NaN.
    """

    senses: tuple[int, ...]
    count: Senses
    n: CellCounts
    low: Senses
    high: Senses
    p: Senses
    p_corrected: Senses
    delta: float
    confidence: float

    @property
    def share(self) -> Senses:
        """count / n; NaN without problems."""
        return np.asarray(self.count / np.where(self.n > 0, self.n, np.nan))

    def of(self, at: int) -> "Prevalence":
        """Return the tests at one place of the first axis of the cells, corrected as they are."""
        rows = {name: getattr(self, name)[:, at] for name in ("count", "low", "high", "p", "p_corrected")}
        return replace(self, n=np.asarray(self.n[at]), **rows)


def prevalence_test(
    effects: Effects,
    delta: float,
    *,
    senses: tuple[int, ...] = SENSES,
    tested: np.ndarray | None = None,
    confidence: float = CONFIDENCE,
) -> Prevalence:
    r"""Test whether a cell exceeds a smallest effect in more than half of all problems.

    $$ k = \#\{p : s\, d_p > \delta\}, \qquad p = P(\mathrm{Bin}(n, \tfrac12) \ge k), \qquad
       H_0 : P(s\, d > \delta) \le \tfrac12 $$

    for each sense $s$, Holm over all tested cells and senses, valid under any dependence between cells. A cell without problems
    is not tested, and nothing is where $\delta$ is NaN (unknown). Source: the sign test of a quantile (Conover 1999, section
    3.2), at the smallest effect of interest; methods §9.

    >>> prevalence_test(np.array([2.0, 3, 4, 5, 6, 0.5]), 1.0).p.round(4).tolist()
    [0.1094, 1.0]
    """
    array = check_effects(effects, min_problems=1)
    defined = ~np.isnan(array)
    n = np.asarray(defined.sum(0))
    count = np.stack([np.asarray((defined & (sense * array > delta)).sum(0)) for sense in senses])
    if np.isnan(delta):
        count = np.full(count.shape, np.nan)
    p = np.where(n > 0 if tested is None else tested & (n > 0), stats.binom.sf(count - 1, n, 0.5), np.nan)
    low, high = exact_limits(count, np.broadcast_to(n, count.shape), confidence=confidence)
    return Prevalence(senses, count, n, low, high, p, holm(p), float(delta), confidence)


def exact_limits(count: np.ndarray, n: np.ndarray, *, confidence: float = CONFIDENCE) -> tuple[np.ndarray, np.ndarray]:
    """Return Clopper and Pearson's limits of a share; NaN without problems. Source: Clopper & Pearson 1934. As published.

    >>> [limit.round(4).tolist() for limit in exact_limits(np.array([0, 61]), np.array([10, 64]))]
    [[0.0, 0.8691], [0.3085, 0.9902]]
    """
    check_share(confidence, name="confidence")
    half = (1 - confidence) / 2
    with np.errstate(invalid="ignore"):
        low = np.where(count == 0, 0.0, stats.beta.ppf(half, count, n - count + 1))
        high = np.where(count == n, 1.0, stats.beta.isf(half, count + 1, n - count))
    return np.where(n > 0, low, np.nan), np.where(n > 0, high, np.nan)


def fewest_problems(n_tests: int, *, alpha: float = 0.05) -> int:
    """Count the problems with which any of so many prevalence tests (cells x senses x sides) can reject: 2^-n < alpha / tests.

    >>> fewest_problems(2 * 784), fewest_problems(2 * 2 * 112, alpha=0.04)
    (15, 14)
    """
    check_count(n_tests, name="n_tests")
    check_share(alpha, name="alpha")
    return int(np.floor(np.log2(n_tests / alpha) + 1e-12)) + 1


def detectable_prevalence(n: int, n_tests: int, *, power: float = 0.8, alpha: float = 0.05) -> float:
    """Return the true prevalence that `n` problems find with this power in a family of so many tests; NaN where none can be.

    From the binomial alone, never from an observed effect. It is what the sharpest step of Holm needs (Bonferroni's).

    >>> round(detectable_prevalence(64, 2 * 112), 3), detectable_prevalence(10, 2 * 112)
    (0.77, nan)
    """
    check_share(power, name="power")
    if n < fewest_problems(n_tests, alpha=alpha):
        return float("nan")
    least = next(k for k in range(n + 1) if stats.binom.sf(k - 1, n, 0.5) <= alpha / n_tests)
    return float(stats.beta.ppf(power, least, n - least + 1))


def holm(p_values: CellCounts) -> Cells:
    r"""Return Holm's step-down family-wise adjusted p-values, over all cells that are not NaN.

    $$ \tilde p_{(k)} = \max_{j \le k} \min\{1, (m - j + 1)\, p_{(j)}\} $$

    Valid under any dependence between the tests. Source: Holm 1979. As published.

    >>> holm(np.array([0.01, 0.04, 0.03]))
    array([0.03, 0.06, 0.06])
    """

    def step_down(family: np.ndarray) -> np.ndarray:
        order, adjusted = np.argsort(family, kind="stable"), np.empty(family.size)
        adjusted[order] = np.maximum.accumulate(np.minimum(1.0, family[order] * np.arange(family.size, 0, -1)))
        return adjusted

    return _as_family(p_values, step_down)


def benjamini_hochberg(p_values: CellCounts) -> Cells:
    r"""Return Benjamini-Hochberg adjusted p-values (false discovery rate), over all cells that are not NaN.

    $$ \tilde p_{(k)} = \min\{1, \min_{j \ge k} m\, p_{(j)} / j\} $$

    Source: Benjamini & Hochberg 1995, computed by `scipy.stats.false_discovery_control` | differs in: NaN allowed.

    >>> benjamini_hochberg(np.array([0.01, 0.04, 0.03, 0.5])).round(6)
    array([0.04    , 0.053333, 0.053333, 0.5     ])
    """
    return _as_family(p_values, stats.false_discovery_control)


def _as_family(p_values: CellCounts, adjusted: Callable[[np.ndarray], np.ndarray]) -> Cells:
    p_values = np.asarray(p_values, dtype=np.float64)  # of a table's column: its own labels must not order it
    made, tested = np.full(p_values.shape, np.nan), ~np.isnan(p_values)
    if tested.any():
        made[tested] = adjusted(p_values[tested])
    return made
