"""Two groups of problems: in which cells do their means differ, with the family-wise error held over all cells?"""

import warnings
from dataclasses import dataclass

import numpy as np
from scipy import stats

from .arguments import AnyArray, CellCounts, Cells, Effects, check_effects, defined_mean, derive_generator
from .bootstrap import CONFIDENCE

N_PERMUTATIONS = 999
_BATCH_VALUES = 2**22
_LEAST_VARIANCE = 1e-4
"""Within a group, in units of the whole: below, divisions are told apart by their means alone, never by rounding."""


@dataclass(frozen=True, eq=False)
class TwoGroups:
    """What `two_groups` found, per cell: the means of both groups and Welch's uncorrected limits of their difference.

    `p` and `p_corrected` are NaN where a cell has fewer than two problems on either side, or no spread.
    """

    mean_in: Cells
    mean_out: Cells
    low: Cells
    high: Cells
    p: Cells
    p_corrected: Cells
    n_in: CellCounts
    n_out: CellCounts


def two_groups(values: Effects, group: AnyArray, *, seed: int = 0) -> TwoGroups:
    r"""Test in which cells a group of problems has another mean than the rest, corrected over all cells at once.

    $$ T_h = \frac{\bar x_{h,in} - \bar x_{h,out}}{\sqrt{s_{h,in}^2 / n_{in} + s_{h,out}^2 / n_{out}}}, \qquad
       p_h = \frac{1 + \#\{b : \max_g |T_g^{(b)}| \ge |T_h|\}}{B + 1} $$

    In division $b$ the same number of problems is drawn into the group, the same for all cells, so the dependence between
    cells is kept; 999 divisions are drawn, or all where there are no more. The two groups keep their own spreads, in every
    division: with one for both, groups of different spread and size (9 problems against 91, sd 3 to 1) reject a true null
    in 40 % of data sets. Two-sided.

    group: `[problem]`, True for the problems in the group, for example those whose answer changed.

    Source: Westfall & Young 1993; studentised as by Janssen 1997; `scipy.stats.permutation_test`; p-value of Phipson &
    Smyth 2010; limits of Welch 1947.

    >>> found = two_groups(np.array([[1.0], [2.0], [7.0], [9.0]]), np.array([False, False, True, True]))
    >>> found.mean_in - found.mean_out, found.p.round(3)
    (array([6.5]), array([0.429]))
    """
    array = check_effects(values, name="values")
    inside, outside = array[group], array[~group]
    n_in, n_out = (np.asarray((~np.isnan(side)).sum(0)) for side in (inside, outside))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # cells with too few problems or no spread, which become NaN
        limits = stats.ttest_ind(inside, outside, equal_var=False, nan_policy="omit").confidence_interval(CONFIDENCE)
        scaled = (array - np.nanmean(array, 0)) / np.nanstd(array, 0)
    tested = (n_in >= 2) & (n_out >= 2) & np.isfinite(scaled).any(0)
    p, p_corrected = np.full(tested.shape, np.nan), np.full(tested.shape, np.nan)
    if tested.any():
        found = stats.permutation_test(
            (scaled[group][:, tested], scaled[~group][:, tested]),
            _welch,
            vectorized=True,
            n_resamples=N_PERMUTATIONS,
            batch=max(1, _BATCH_VALUES // array.size),
            rng=derive_generator(seed, "two groups", *group.shape, int(group.sum())),
        )
        null, reached = np.abs(found.null_distribution), np.abs(found.statistic) * (1 - 1e-9)
        p[tested] = (1 + (null >= reached).sum(0)) / (1 + len(null))
        p_corrected[tested] = (1 + (null.max(1, keepdims=True) >= reached).sum(0)) / (1 + len(null))
    return TwoGroups(
        mean_in=defined_mean(inside),
        mean_out=defined_mean(outside),
        low=np.asarray(limits.low),
        high=np.asarray(limits.high),
        p=p,
        p_corrected=p_corrected,
        n_in=n_in,
        n_out=n_out,
    )


def _welch(inside: AnyArray, outside: AnyArray, axis: int) -> AnyArray:
    """Welch's t of scores in units of their spread; 0 where fewer than two are defined on a side."""
    means, errors, enough = [], [], True
    for side in (inside, outside):
        n = (~np.isnan(side)).sum(axis)
        mean = np.nansum(side, axis) / np.maximum(n, 1)
        squares = np.nansum((side - np.expand_dims(mean, axis)) ** 2, axis)
        means.append(mean)
        errors.append(np.maximum(squares / np.maximum(n - 1, 1), _LEAST_VARIANCE) / np.maximum(n, 1))
        enough = enough & (n >= 2)
    return np.where(enough, (means[0] - means[1]) / np.sqrt(errors[0] + errors[1]), 0.0)
