"""Corrections of a set of p-values; a NaN p-value belongs to a cell that was not tested and leaves the family."""

import numpy as np
from scipy import stats

from .arguments import Cells, PValues


def holm(p_values: PValues) -> Cells:
    r"""Holm's step-down family-wise adjusted p-values, over all cells that are not NaN.

    $$ \tilde p_{(k)} = \max_{j \le k} \min\{1, (m - j + 1)\, p_{(j)}\} $$

    Valid under any dependence between the tests. Source: Holm 1979. As published.

    >>> holm(np.array([0.01, 0.04, 0.03]))
    array([0.03, 0.06, 0.06])
    """
    family = _defined(p_values)
    order = np.argsort(family, kind="stable")
    steps = np.minimum(1.0, family[order] * np.arange(family.size, 0, -1))
    adjusted = np.empty(family.size)
    adjusted[order] = np.maximum.accumulate(steps)
    return _in_place(p_values, adjusted)


def benjamini_hochberg(p_values: PValues) -> Cells:
    r"""Benjamini-Hochberg adjusted p-values (false discovery rate), over all cells that are not NaN.

    $$ \tilde p_{(k)} = \min\{1, \min_{j \ge k} m\, p_{(j)} / j\} $$

    For exploratory maps: of the cells with an adjusted p-value below 0.05 about one in twenty is expected to be false. Source:
    Benjamini & Hochberg 1995, computed by `scipy.stats.false_discovery_control` | differs in: NaN allowed.

    >>> benjamini_hochberg(np.array([0.01, 0.04, 0.03, 0.5])).round(6)
    array([0.04    , 0.053333, 0.053333, 0.5     ])
    """
    family = _defined(p_values)
    return _in_place(p_values, stats.false_discovery_control(family, method="bh") if family.size else family)


def _defined(p_values: np.ndarray) -> np.ndarray:
    return np.asarray(p_values, dtype=np.float64)[~np.isnan(p_values)]


def _in_place(p_values: np.ndarray, adjusted: np.ndarray) -> np.ndarray:
    result = np.full(np.shape(p_values), np.nan)
    result[~np.isnan(p_values)] = adjusted
    return result
