"""How large an effect is, how many problems it takes to see it, and whether it is too small to matter."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from math import ceil, sqrt
from typing import Literal

import numpy as np
from scipy import stats

from .arguments import CellCounts, CellMask, Cells, Effects, Rows, check_choice, check_count, check_effects, check_share


def cohen_dz(effects: Effects) -> Cells:
    r"""Standardised paired effect, $d_z = \bar d / s$, of each cell over the problems in which it is defined.

    0.2 is small, 0.5 medium, 0.8 large by convention. NaN with fewer than 2 problems, or where all values are equal.

    Source: Cohen 1988. As published.

    >>> cohen_dz(np.array([1.0, 2.0, 3.0])).item()
    2.0
    """
    mean, sd, _ = _moments(check_effects(effects))
    return np.asarray(mean / sd)


def sample_size(
    d_z: float,
    *,
    n_tests: int = 1,
    power: float = 0.8,
    alpha: float = 0.05,
    method: Literal["normal", "t"] = "normal",
) -> int:
    r"""Problems needed for a two-sided paired test to find an effect of size `d_z`, with Bonferroni over `n_tests` cells.

    $$ n = \left\lceil \left(\frac{\Phi^{-1}(1 - \alpha / 2m) + \Phi^{-1}(\text{power})}{d_z}\right)^2 \right\rceil $$

    `"normal"` is that formula: a few problems too few (5 for 28 heads, 8 for 784), since the t distribution has heavier
    tails; `"t"` finds the smallest n of the exact t test. Under max-T with dependent cells fewer suffice.

    >>> [sample_size(d, n_tests=28) for d in (0.3, 0.4, 0.5)]
    [175, 99, 63]
    >>> sample_size(0.5, n_tests=28, method="t")
    68
    """
    check_count(n_tests, name="n_tests")
    check_share(power, name="power")
    check_share(alpha, name="alpha")
    check_choice(method, name="method", choices=("normal", "t"))
    if not (np.isfinite(d_z) and d_z != 0):
        raise ValueError(f"d_z must be a finite number other than 0, got {d_z!r}: no sample shows an effect of 0")
    size, level = abs(float(d_z)), alpha / n_tests / 2
    n = max(2, ceil(((stats.norm.isf(level) + stats.norm.ppf(power)) / size) ** 2))
    if method == "normal":
        return n

    def reached(n: int) -> bool:
        critical, shift = stats.t.isf(level, n - 1), size * sqrt(n)
        both = stats.nct.sf(critical, n - 1, [shift, -shift])  # nct.cdf(-critical) is NaN for every sixth n
        return bool(both.sum() >= power)

    while not reached(n):
        n += 1
    return n


@dataclass(frozen=True, eq=False)
class Equivalence:
    """What `tost` found, per cell: `p` < `alpha` (`equivalent`) says that the mean lies within ±`delta`.

    `low` and `high` are the limits of the 1 - 2 alpha interval that the test compares with ±`delta`.
    """

    estimate: Cells
    low: Cells
    high: Cells
    p: Cells
    equivalent: CellMask
    n: CellCounts
    delta: float
    alpha: float

    def __repr__(self) -> str:
        return (
            f"equivalence to 0 within ±{self.delta:g}: {int(self.equivalent.sum())} of {self.p.size} cells at p < "
            f"{self.alpha:g}, {int(np.isnan(self.p).sum())} undefined (uncorrected)"
        )


def tost(effects: Effects, delta: float, *, alpha: float = 0.05) -> Equivalence:
    r"""Two one-sided paired t tests: is each cell's mean effect smaller than `delta` in both directions?

    $$ p = \max\left\{P\!\left(t_{n-1} \ge \frac{\bar d + \delta}{s / \sqrt n}\right),
                      P\!\left(t_{n-1} \ge \frac{\delta - \bar d}{s / \sqrt n}\right)\right\} $$

    A small p is evidence of absence, which a large p-value of a test against 0 is not. Set `delta` before looking. The
    p-values are uncorrected: pass `.p` to `holm`. NaN with fewer than 2 problems, and where all values are equal: their
    spread is unknown, and ten equal answers do not prove that the eleventh agrees.

    Source: Schuirmann 1987. As published.

    >>> tost(np.array([0.1, -0.1, 0.2, -0.2]), 1.0)
    equivalence to 0 within ±1: 1 of 1 cells at p < 0.05, 0 undefined (uncorrected)
    """
    check_share(alpha, name="alpha")
    if not (np.isfinite(delta) and delta > 0):
        raise ValueError(f"delta must be a finite number above 0, in the unit of the effects, got {delta!r}")
    mean, sd, n = _moments(check_effects(effects))
    error, freedom = sd / np.sqrt(np.maximum(n, 1)), np.maximum(n - 1, 1)
    p = np.maximum(stats.t.sf((mean + delta) / error, freedom), stats.t.sf((delta - mean) / error, freedom))
    half = stats.t.isf(alpha, freedom) * error
    return Equivalence(
        estimate=mean,
        low=np.asarray(mean - half),
        high=np.asarray(mean + half),
        p=np.asarray(p),
        equivalent=np.asarray(p < alpha),
        n=n,
        delta=float(delta),
        alpha=alpha,
    )


@dataclass(frozen=True, eq=False)
class ProblemMeans:
    """One row per problem, in order of first appearance; `n` counts the defined draws behind each value."""

    values: Effects
    n: Effects
    problems: tuple[Hashable, ...]


def average_within_problem(values: Rows, problems: Sequence[Hashable] | np.ndarray) -> ProblemMeans:
    """The mean of all rows that belong to one problem, so that the problem is the unit of replication again.

    For repeated samples, control draws or seeds: without this step they would pass for independent problems and every
    interval would be too narrow. NaN rows are left out; NaN where no row of a problem is defined.

    >>> average_within_problem(np.array([1.0, 3.0, 5.0]), ["a", "a", "b"]).values
    array([2., 5.])
    """
    array = check_effects(values, name="values", min_problems=1)
    labels = list(problems.tolist() if isinstance(problems, np.ndarray) else problems)
    if len(labels) != len(array):
        raise ValueError(f"one problem label per row: got {len(labels)} labels for {len(array)} rows")
    unique = {label: i for i, label in enumerate(dict.fromkeys(labels))}
    rows = np.array([unique[label] for label in labels])
    defined = ~np.isnan(array)
    total = np.zeros((len(unique), *array.shape[1:]))
    count = np.zeros(total.shape, dtype=np.int64)
    np.add.at(total, rows, np.where(defined, array, 0.0))
    np.add.at(count, rows, defined.astype(np.int64))
    return ProblemMeans(values=total / np.where(count > 0, count, np.nan), n=count, problems=tuple(unique))


def _moments(array: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Mean, standard deviation (n - 1; NaN with fewer than 2 values or no spread) and count of each cell."""
    defined = ~np.isnan(array)
    n = np.asarray(defined.sum(axis=0))
    mean = np.where(defined, array, 0.0).sum(axis=0) / np.where(n > 0, n, np.nan)
    squares = (np.where(defined, array - mean, 0.0) ** 2).sum(axis=0)
    low = np.min(array, axis=0, where=defined, initial=np.inf)
    high = np.max(array, axis=0, where=defined, initial=-np.inf)
    spread = np.where((n >= 2) & (high > low), squares, np.nan)
    return np.asarray(mean), np.asarray(np.sqrt(spread / np.maximum(n - 1, 1))), n
