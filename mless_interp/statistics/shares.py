"""What share of an effect a part of it is: the one number that balances the signs, with exact limits."""

import numpy as np

from .arguments import AnyArray, Effects, check_effects, check_share
from .bootstrap import CONFIDENCE, Interval
from .medians import order_statistic, sign_test

NO_TOTAL = "the total effect is not established"


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
