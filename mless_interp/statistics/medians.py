"""Medians with exact intervals, the sign test, the share of an effect, and how far a mean rests on a few problems."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from ..core.arguments import check_share
from .intervals import CONFIDENCE, AnyArray, Cells, Effects, Groups, Interval, check_effects

TOO_FEW_FOR_MEDIAN = "too few problems for a median's interval"
NO_TOTAL = "the total effect is not established"


def by_group(values: Effects, groups: Sequence[str], *, mean: bool = False) -> Groups:
    """Return `[group, *cells]`: the median of each group's problems, groups in order of first appearance.

    Problems that are variants of one another do not replicate, so tests and intervals take these values. NaN members are left
    out; NaN where all are. Where every problem has a group of its own the values come back as they are.

    groups: one name per problem; () where every problem is its own.
    mean: take the mean of a group's problems, as for shares of right answers.

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
    r"""Each cell's median over problems with the interval of its order statistics.

    $$ [x_{(k)}, x_{(n + 1 - k)}], \qquad k = \max\{k : P(\mathrm{Bin}(n, \tfrac12) \le k - 1) \le \alpha / 2\} $$

    Exact for any distribution: it covers at least as often as it says. With fewer than 6 problems (at 95 %) there is none,
    flagged. `standard_error` is NaN. Infinite values ("never") rank as the most extreme. Source: Thompson 1936; Conover 1999.
    As published.

    >>> median_interval(np.arange(1.0, 17))
    8.5 [4, 13] (95 % order statistics, n = 16)
    """
    check_share(confidence, name="confidence")
    array = check_effects(values, name="values", min_problems=1, infinite=True)
    flat = array.reshape(len(array), -1)
    middle, low, high = (np.full(flat.shape[1], np.nan) for _ in range(3))
    counts = (~np.isnan(flat)).sum(0)
    for n in np.unique(counts[counts > 0]).tolist():
        cells = counts == n
        ordered = np.sort(flat[:, cells], axis=0)[:n]  # NaN last
        middle[cells] = np.median(ordered, axis=0)
        k = order_statistic(n, (1 - confidence) / 2)
        if k > 0:
            low[cells], high[cells] = ordered[k - 1], ordered[n - k]
    shape = array.shape[1:]
    estimate, least, most, n_defined = (each.reshape(shape) for each in (middle, low, high, counts))
    flag = np.where(np.isnan(least), TOO_FEW_FOR_MEDIAN, "")
    return Interval(estimate, least, most, np.full(shape, np.nan), n_defined, flag, confidence, "order statistics")


def order_statistic(n: int, tail: float) -> int:
    """The largest k such that the k-th of n ordered values lies above the median with probability `tail` at most; 0 for none.

    >>> order_statistic(16, 0.025), order_statistic(6, 0.01)
    (4, 0)
    """
    return int((stats.binom.cdf(np.arange((n + 1) // 2), n, 0.5) <= tail).sum())


def sign_test(values: Effects, *, rounding: float = 0.0) -> Cells:
    r"""Do most problems show an effect of one sign? Exact, two-sided, per cell.

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


@dataclass(frozen=True, eq=False)
class Concentration:
    """How much of an effect the largest 5 % of the problems carry: `share` of the sum of |x|, and which they are.

    `problems` are their places, the largest first. `mean` is over all problems; `low`, `high` the smallest and the largest mean
    as these problems are left out, one after the other and all together.
    """

    share: float
    problems: tuple[int, ...]
    mean: float
    low: float
    high: float

    @property
    def concentrated(self) -> bool:
        """A few problems carry most of it."""
        return self.share > 0.5


def concentration(values: Effects, *, largest: float = 0.05) -> Concentration:
    r"""How far a mean over problems rests on a few of them.

    $$ C = \frac{\sum_{p \in L} |x_p|}{\sum_p |x_p|}, \qquad |L| = \lceil 0.05\, n \rceil $$

    with L the problems of the largest |x|. 5 % where all are equal, 1 where one problem carries everything; NaN where nothing
    happens at all. NaN values are left out. Source: methods §9.

    >>> concentration(np.array([10.0] + [0.1] * 19)).problems
    (0,)
    >>> round(concentration(np.array([10.0] + [0.1] * 19)).share, 3)
    0.84
    """
    check_share(largest, name="largest")
    array = check_effects(values, name="values", min_problems=1)
    if array.ndim != 1:
        raise ValueError(f"concentration is of one number per problem, got shape {array.shape}")
    places = np.flatnonzero(~np.isnan(array))
    if not len(places):
        raise ValueError("no value is defined")
    known = array[places]
    n_largest = int(np.ceil(largest * len(known) - 1e-9))
    order = np.argsort(-np.abs(known), kind="stable")
    whole = float(np.abs(known).sum())
    share = float(np.abs(known[order[:n_largest]]).sum()) / whole if whole > 0 else float("nan")
    left = [float(known[order[cut:]].mean()) for cut in range(min(n_largest, len(known) - 1) + 1)]
    return Concentration(share, tuple(places[order[:n_largest]].tolist()), left[0], min(left), max(left))


def share_of_total(part: Effects, total: AnyArray, *, confidence: float = CONFIDENCE) -> Interval:
    r"""The share $\theta$ of a total effect that a part of it is, per cell, with limits that hold for any distribution.

    $$ \{\theta : \max(n_+, n_-) \le n - k\}, \qquad n_\pm(\theta) = \#\{p : \pm (g_p - \theta\, t_p) > 0\} $$

    The limits enclose every $\theta$ that the two-sided sign test of $g_p - \theta t_p$ does not reject ($k$ as in
    `median_interval`); the estimate is the middle of those that balance the signs. Where all $t_p$ have one sign, these are the
    order statistics and the median of $g_p / t_p$.

    `total` `[problem]`, `part` `[problem, *cells]`; a problem where either is NaN leaves the cell's n. NaN, flagged, where the
    sign test does not establish the total on the cell's problems. Source: the inverted sign test (Conover 1999, section 3.5),
    as Fieller (1954) inverts the t test; methods §9.

    >>> share_of_total(np.array([1.0, 2, 3, 4, 5, 6, 7, 8, 9]), np.full(9, 10.0))
    0.5 [0.2, 0.8] (95 % sign test, n = 9)
    """
    check_share(confidence, name="confidence")
    parts, whole = check_effects(part, name="part", min_problems=1), check_effects(total, name="total", min_problems=1)
    if whole.shape != parts.shape[:1]:
        raise ValueError(f"total must be [problem] = {list(parts.shape[:1])} as part has, got {list(whole.shape)}")
    flat = parts.reshape(len(parts), -1)
    found = np.full((3, flat.shape[1]), np.nan)
    counts = (~np.isnan(flat + whole[:, None])).sum(0)
    for at, column in enumerate(flat.T):
        defined = ~np.isnan(column + whole)
        g, t = column[defined], whole[defined]
        if len(t) and sign_test(t) < 1 - confidence:
            limits = _accepted(g, t, len(t) - order_statistic(len(t), (1 - confidence) / 2))
            found[:, at] = sum(_accepted(g, t, len(t) / 2)) / 2, *limits
    estimate, low, high = (row.reshape(parts.shape[1:]) for row in found)
    unknown, flag = np.full(estimate.shape, np.nan), np.where(np.isnan(estimate), NO_TOTAL, "")
    return Interval(estimate, low, high, unknown, counts.reshape(estimate.shape), flag, confidence, "sign test")


def _accepted(g: np.ndarray, t: np.ndarray, most: float | int) -> tuple[float, float]:
    """The smallest and the largest share at which at most so many g - share x t have one sign.

    Both are ratios g / t, since nothing changes between two of them. One is always there where more than `most` of t have one
    sign: towards either end g - share x t takes t's sign, or the other one.
    """
    rest = g[t == 0]
    rising, falling = (np.sort(g[side] / t[side]) for side in (t > 0, t < 0))
    ratios = np.concatenate([rising, falling])
    above = len(rising) - np.searchsorted(rising, ratios, "right") + np.searchsorted(falling, ratios, "left")
    below = np.searchsorted(rising, ratios, "left") + len(falling) - np.searchsorted(falling, ratios, "right")
    kept = ratios[np.maximum(above + (rest > 0).sum(), below + (rest < 0).sum()) <= most]
    return float(kept.min()) + 0.0, float(kept.max()) + 0.0  # no -0
