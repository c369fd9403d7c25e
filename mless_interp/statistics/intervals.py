"""Intervals of means over problems, and what every statistic shares: shapes, checked input, random numbers from a seed."""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64, Shaped
from scipy import stats
from scipy.special import ndtr, ndtri

from ..core.arguments import as_annotated, check_count, check_share, count_of

Effects = Shaped[np.ndarray, "problem *cells"]
"""Input: one number (or truth value) per problem and cell; read as float64."""
Groups = Shaped[np.ndarray, "group *cells"]  # output: one number per group of problems and cell
AnyArray = Shaped[np.ndarray, "..."]
Cells = Float64[np.ndarray, "*cells"]  # output: one number per cell
CellCounts = Shaped[np.ndarray, "*cells"]

TOO_FEW = "fewer than 2 problems"
ALL_EQUAL = "all values equal"
FEW = "few problems"
FELL_BACK = "BCa undefined: percentile"

FEW_PROBLEMS = 20  # below, means get Student's t intervals and a flag
_CHUNK_VALUES = 2**22
_TIE = 1e-13
CONFIDENCE = 0.95  # of every interval that is not asked for with another


def derive_generator(seed: int, *labels: object) -> np.random.Generator:
    """Return a NumPy generator keyed by a seed and any labels (the SHA-256 digest of their text), the same in every process."""
    key = json.dumps([str(as_annotated(seed, int, "seed")), *(str(label) for label in labels)]).encode()
    return np.random.default_rng(int.from_bytes(hashlib.sha256(key).digest(), "little"))


def check_effects(
    values: object, *, name: str = "effects", min_problems: int = 2, infinite: bool = False
) -> np.ndarray:
    """Return the values as float64 `[problem, *cells]`: enough problems, all finite (or `infinite`) or NaN."""
    array = np.asarray(values, dtype=np.float64)
    if len(array) < min_problems:
        needed = count_of(min_problems, "problem")
        raise ValueError(f"{name} needs at least {needed} on its first axis, got shape {array.shape}")
    if not infinite and np.isinf(array).any():
        raise ValueError(f"{name} holds {np.isinf(array).sum()} infinite values; use NaN where a value is undefined")
    return array


def defined_mean(values: AnyArray, axis: int = 0) -> AnyArray:
    """Return the mean over one axis (the problems, unless named) of what is not NaN, infinities too; NaN where nothing is."""
    defined = ~np.isnan(values)
    if values.ndim == 1:  # summed without gaps, so that a gap does not change which numbers are added first
        values, defined = values[defined], defined[defined]
    count = defined.sum(axis)
    with np.errstate(invalid="ignore"):  # both infinities together have no mean
        return np.where(count > 0, np.where(defined, values, 0.0).sum(axis) / np.maximum(count, 1), np.nan)


@dataclass(frozen=True, eq=False)
class Interval:
    """Estimates with confidence intervals; every array has the shape of the cells (no axes for a single number), NaN where
    undefined. `n` counts the problems behind an estimate; `flag` says what is special about it, or "".
    """

    estimate: Cells
    low: Cells
    high: Cells
    standard_error: Cells
    n: CellCounts
    flag: CellCounts
    confidence: float
    method: str

    def __repr__(self) -> str:
        kind = f"{100 * self.confidence:g} % {self.method}"
        if self.estimate.size == 1:
            flag = f"; {self.flag.item()}" if self.flag.item() else ""
            ends = f"[{self.low.item():.4g}, {self.high.item():.4g}]"
            return f"{self.estimate.item():.4g} {ends} ({kind}, n = {self.n.item()}{flag})"
        told = f"{np.isnan(self.estimate).sum()} undefined, {(self.flag != '').sum()} flagged"
        return f"{self.estimate.size} intervals ({kind}, n = {self.n.min()} to {self.n.max()}, {told})"


def bootstrap_interval(
    values: Effects, *, confidence: float = CONFIDENCE, n_resamples: int = 10_000, seed: int = 0
) -> Interval:
    r"""Return the bootstrap confidence interval of each cell's mean over problems.

    $$ \alpha' = \Phi\!\left(z_0 + \frac{z_0 + z_\alpha}{1 - a (z_0 + z_\alpha)}\right), \qquad
       z_0 = \Phi^{-1}\!\left(\frac{\#\{t^* < t\} + \frac12 \#\{t^* = t\}}{B}\right), \qquad
       a = \frac{\sum_i (\bar t - t_{(i)})^3}{6 [\sum_i (\bar t - t_{(i)})^2]^{3/2}} $$

    The limits are the $\alpha'$ quantiles of the $B$ resampled means; $t_{(i)}$ leaves problem $i$ out. A cell's interval
    depends on its own defined values and the seed alone. All values equal: a point, flagged; $z_0$ infinite: the percentile
    interval, flagged. Source: Efron 1987; agrees with `scipy.stats.bootstrap` | differs in: the flagged cases and NaN values.

    >>> bootstrap_interval(np.array([2.0, 2.0, 2.0]))
    2 [2, 2] (95 % bca, n = 3; all values equal)
    """
    check_share(confidence, name="confidence")
    check_count(n_resamples, name="n_resamples", at_least=2)
    array = check_effects(values, name="values")
    shape = array.shape[1:]
    flat = array.reshape(len(array), -1)
    counts = (~np.isnan(flat)).sum(axis=0)
    found = np.full((4, flat.shape[1]), np.nan)
    flag = np.full(counts.shape, TOO_FEW, dtype=f"<U{len(FELL_BACK)}")
    size = max(1, _CHUNK_VALUES // n_resamples)  # cells whose resampled means fit in a bounded block of memory
    for cells, column in by_count(flat, at_least=2):
        weights = resample_weights(len(column), n_resamples, seed)
        for start in range(0, cells.size, size):
            at, x = cells[start : start + size], column[:, start : start + size]
            mean = x.mean(axis=0)
            deviation = x - mean
            tie, draws = _TIE * np.abs(x).max(axis=0), _means(x, weights)
            squares = (deviation**2).sum(axis=0)
            with np.errstate(invalid="ignore"):  # the acceleration a, from the jackknife's deviations; 0 without any
                skew = (deviation**3).sum(axis=0) / (6 * np.where(squares > 0, squares, 1.0) ** 1.5)
            low, high, fell_back = _limits(draws, mean, tie=tie, skew=skew, confidence=confidence)
            equal = (x == x[0]).all(axis=0)
            error = deviation.std(axis=0, ddof=1) / len(x) ** 0.5
            found[:, at] = np.where(equal, [x[0], x[0], x[0], np.zeros(len(mean))], (mean, low, high, error))
            flag[at] = np.where(equal, ALL_EQUAL, np.where(fell_back, FELL_BACK, ""))
    estimate, low, high, error = (row.reshape(shape) for row in found)
    return Interval(estimate, low, high, error, counts.reshape(shape), flag.reshape(shape), confidence, "bca")


def mean_interval(
    values: Effects, *, confidence: float = CONFIDENCE, n_resamples: int = 10_000, seed: int = 0
) -> Interval:
    r"""Return each cell's mean over problems with its interval: BCa from 20 problems on, Student's t below, flagged.

    $$ \bar x \pm t_{n - 1}\, s / \sqrt n \qquad (n < 20) $$

    One problem has an estimate without limits. On very skewed values every interval of a mean is too narrow: see
    `concentration`, and `median_interval` for what most problems show.

    >>> mean_interval(np.array([1.0, 2.0, 3.0]))
    2 [-0.4841, 4.484] (95 % t, n = 3; few problems)
    """
    array = check_effects(values, name="values", min_problems=1)
    few = (~np.isnan(array)).sum(0) < FEW_PROBLEMS
    if not few.any():
        return bootstrap_interval(array, confidence=confidence, n_resamples=n_resamples, seed=seed)
    student = _student(array, confidence)
    if few.all():
        return student
    resampled = bootstrap_interval(array, confidence=confidence, n_resamples=n_resamples, seed=seed)
    fields = ("estimate", "low", "high", "standard_error", "n", "flag")
    parts = {name: np.where(few, getattr(student, name), getattr(resampled, name)) for name in fields}
    return Interval(**parts, confidence=confidence, method="t below 20 problems, else bca")


def _student(array: np.ndarray, confidence: float) -> Interval:
    """Return Student's t interval of each cell's mean; all values equal: a point, flagged, as for the bootstrap."""
    defined = ~np.isnan(array)
    n = np.asarray(defined.sum(0))
    with np.errstate(invalid="ignore"):
        mean = np.where(defined, array, 0.0).sum(0) / np.where(n > 0, n, np.nan)
        error = np.sqrt((np.where(defined, array - mean, 0.0) ** 2).sum(0) / np.where(n > 1, n - 1, np.nan) / n)
        half = stats.t.isf((1 - confidence) / 2, np.maximum(n - 1, 1)) * error
    least = np.min(array, axis=0, where=defined, initial=np.inf)
    equal = (n > 1) & (least == np.max(array, axis=0, where=defined, initial=-np.inf))
    flag = np.where(n < 2, TOO_FEW, np.where(equal, ALL_EQUAL, FEW))
    half, error, mean = np.where(equal, 0.0, half), np.where(equal, 0.0, error), np.where(equal, least, mean)
    estimate, low, high, error, flag = map(np.asarray, (mean, mean - half, mean + half, error, flag))
    return Interval(estimate, low, high, error, n, flag, confidence, "t" if len(array) > 1 else "none")


def by_count(array: np.ndarray, *, at_least: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield cells with equally many defined problems, and those problems' values, in the problems' order."""
    undefined = np.isnan(array)
    counts = (~undefined).sum(axis=0)
    for n in np.unique(counts[counts >= at_least]):
        cells = np.flatnonzero(counts == n)
        column = array[:, cells]
        if n < len(undefined):
            column = np.take_along_axis(column, np.argsort(undefined[:, cells], axis=0, kind="stable")[:n], axis=0)
        yield cells, column


def resample_weights(n: int, n_resamples: int, seed: int) -> np.ndarray:
    """Return how often each problem is drawn in each resample, `[resample, problem]`."""
    generator = derive_generator(seed, "bootstrap", n)
    weights = np.empty((n_resamples, n), dtype=np.uint16)
    rows = max(1, _CHUNK_VALUES // n)
    for start in range(0, n_resamples, rows):
        size = min(rows, n_resamples - start)
        drawn = generator.integers(0, n, size=(size, n)) + n * np.arange(size)[:, None]
        weights[start : start + size] = np.bincount(drawn.ravel(), minlength=size * n).reshape(size, n)
    return weights


def _means(x: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return the resampled means, `[cell, resample]`."""
    n_resamples, n = weights.shape
    draws = np.empty((x.shape[1], n_resamples))
    rows = max(1, _CHUNK_VALUES // 4 // n)
    columns = np.ascontiguousarray(x.T) / n
    for start in range(0, n_resamples, rows):
        draws[:, start : start + rows] = columns @ weights[start : start + rows].T.astype(np.float64)
    return draws


def _limits(
    draws: np.ndarray, estimate: np.ndarray, *, tie: np.ndarray, skew: np.ndarray, confidence: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the lower and upper limit of each cell, and where BCa had to give way to percentile; sorts `draws` in place."""
    tails = np.array([[(1 - confidence) / 2], [1 - (1 - confidence) / 2]])
    difference = draws - estimate[:, None]
    below, tied = difference < -tie[:, None], np.abs(difference) <= tie[:, None]
    share = (np.count_nonzero(below, axis=1) + 0.5 * np.count_nonzero(tied, axis=1)) / draws.shape[1]
    with np.errstate(divide="ignore", invalid="ignore"):
        z0 = ndtri(share)
        shifted = z0 + ndtri(tails)
        room = 1 - skew * shifted
        adjusted = ndtr(z0 + shifted / room)
        fell_back = ~((room > 0) & np.isfinite(room)).all(axis=0)
    levels = np.where(fell_back, tails, adjusted)
    draws.sort(axis=1)
    position = levels * (draws.shape[1] - 1)
    left = np.floor(position).astype(np.intp)
    right = np.minimum(left + 1, draws.shape[1] - 1)
    rows = np.arange(len(draws))
    with np.errstate(invalid="ignore"):
        low, high = draws[rows, left] + (position - left) * (draws[rows, right] - draws[rows, left])
    return low, high, fell_back
