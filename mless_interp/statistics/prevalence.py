"""Exact tests of claims about most problems, for any distribution, and corrections for many tests."""

from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Shaped
from scipy import stats

from ..core.arguments import check_count, check_share
from .intervals import CONFIDENCE, CellCounts, Cells, Effects, check_effects

SENSES = (1, -1)
"""With the effect, and against it."""
Senses = Shaped[np.ndarray, "sense *cells"]


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
        """The tests at one place of the first axis of the cells, corrected as they are."""
        rows = {name: getattr(self, name)[:, at] for name in ("count", "low", "high", "p", "p_corrected")}
        return replace(self, n=self.n[at], **rows)

    def in_sense(self, sense: int, values: Senses) -> CellCounts:
        """The row of `values` that belongs to a sense."""
        return np.asarray(values[self.senses.index(sense)])


def prevalence_test(
    effects: Effects,
    delta: float,
    *,
    senses: tuple[int, ...] = SENSES,
    tested: np.ndarray | None = None,
    confidence: float = CONFIDENCE,
) -> Prevalence:
    r"""Does a cell exceed a smallest effect in more than half of all problems?

    $$ k = \#\{p : s\, d_p > \delta\}, \qquad p = P(\mathrm{Bin}(n, \tfrac12) \ge k), \qquad
       H_0 : P(s\, d > \delta) \le \tfrac12 $$

    for each sense $s$, Holm over all tested cells and senses. Exact for any skew and under any dependence between cells. Values
    equal to $\delta$ do not count. A problem in which a cell is NaN leaves its n; a cell without problems is not tested, and
    nothing is where $\delta$ is NaN (unknown). Source: the sign test of a quantile (Conover 1999, section 3.2), at the smallest
    effect of interest; methods §9.

    >>> prevalence_test(np.array([2.0, 3, 4, 5, 6, 0.5]), 1.0).count.tolist()
    [5, 0]
    >>> prevalence_test(np.array([2.0, 3, 4, 5, 6, 0.5]), 1.0).p.round(4).tolist()
    [0.1094, 1.0]
    """
    array = check_effects(effects, min_problems=1)
    if delta < 0 or np.isinf(delta):
        raise ValueError(f"delta must be a finite number, 0 or more, in the unit of the effects, got {delta!r}")
    defined = ~np.isnan(array)
    n = np.asarray(defined.sum(0))
    count = np.stack([np.asarray((defined & (sense * array > delta)).sum(0)) for sense in senses])
    if np.isnan(delta):
        count = np.full(count.shape, np.nan)
    p, corrected = _most_of_all(count, n, tested)
    low, high = exact_limits(count, np.broadcast_to(n, count.shape), confidence=confidence)
    return Prevalence(senses, count, n, low, high, p, corrected, float(delta), confidence)


def _most_of_all(count: np.ndarray, n: np.ndarray, tested: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
    """P(Bin(n, 1/2) >= count), NaN where not tested, and the same after Holm."""
    p = np.where(n > 0, stats.binom.sf(count - 1, n, 0.5), np.nan)
    p = np.asarray(p if tested is None else np.where(tested, p, np.nan))
    return p, holm(p)


def exact_limits(count: np.ndarray, n: np.ndarray, *, confidence: float = CONFIDENCE) -> tuple[np.ndarray, np.ndarray]:
    """Clopper and Pearson's limits of a share; NaN without problems. Source: Clopper & Pearson 1934. As published.

    >>> [limit.round(4).tolist() for limit in exact_limits(np.array([0, 61]), np.array([10, 64]))]
    [[0.0, 0.8691], [0.3085, 0.9902]]
    """
    check_share(confidence, name="confidence")
    half = (1 - confidence) / 2
    with np.errstate(invalid="ignore"):
        low = np.where(count == 0, 0.0, stats.beta.ppf(half, count, n - count + 1))
        high = np.where(count == n, 1.0, stats.beta.isf(half, count + 1, n - count))
    return np.where(n > 0, low, np.nan), np.where(n > 0, high, np.nan)


def within_test(effects: Effects, delta: float, *, tested: np.ndarray | None = None) -> tuple[Cells, Cells]:
    r"""Is |d| below a smallest effect in more than half of all problems? (p, p after Holm) per cell.

    $$ k = \#\{p : |d_p| < \delta\}, \qquad p = P(\mathrm{Bin}(n, \tfrac12) \ge k) $$

    NaN where $\delta$ is (unknown).

    >>> within_test(np.array([0.1] * 6), 1.0)[0].round(4).item()
    0.0156
    """
    array = check_effects(effects, min_problems=1)
    if delta <= 0 or np.isinf(delta):
        raise ValueError(f"delta must be a finite number above 0, in the unit of the effects, got {delta!r}")
    defined = ~np.isnan(array)
    n, count = defined.sum(0), (defined & (np.abs(array) < delta)).sum(0)
    return _most_of_all(np.where(np.isnan(delta), np.nan, count), np.asarray(n), tested)


def fewest_problems(n_tests: int, *, alpha: float = 0.05) -> int:
    """Problems with which any of so many prevalence tests (cells x senses x sides) can reject: 2^-n < alpha / tests.

    >>> fewest_problems(2 * 784), fewest_problems(2 * 2 * 112, alpha=0.04)
    (15, 14)
    """
    check_count(n_tests, name="n_tests")
    check_share(alpha, name="alpha")
    return int(np.floor(np.log2(n_tests / alpha) + 1e-12)) + 1


def detectable_prevalence(n: int, n_tests: int, *, power: float = 0.8, alpha: float = 0.05) -> float:
    """The true prevalence that `n` problems find with this power in a family of so many tests; NaN where none can be.

    From the binomial alone, never from an observed effect. It is what the sharpest step of Holm needs (Bonferroni's).

    >>> round(detectable_prevalence(64, 2 * 112), 3), detectable_prevalence(10, 2 * 112)
    (0.77, nan)
    """
    check_share(power, name="power")
    if n < fewest_problems(n_tests, alpha=alpha):
        return float("nan")
    least = next(k for k in range(n // 2, n + 1) if stats.binom.sf(k - 1, n, 0.5) <= alpha / n_tests)
    return float(stats.beta.ppf(power, least, n - least + 1))


def holm(p_values: CellCounts) -> Cells:
    r"""Holm's step-down family-wise adjusted p-values, over all cells that are not NaN.

    $$ \tilde p_{(k)} = \max_{j \le k} \min\{1, (m - j + 1)\, p_{(j)}\} $$

    Valid under any dependence between the tests. Source: Holm 1979. As published.

    >>> holm(np.array([0.01, 0.04, 0.03]))
    array([0.03, 0.06, 0.06])
    """
    made, tested = np.full(np.shape(p_values), np.nan), ~np.isnan(p_values)
    family = np.asarray(p_values, dtype=np.float64)[tested]
    order = np.argsort(family, kind="stable")
    adjusted = np.empty(family.size)
    adjusted[order] = np.maximum.accumulate(np.minimum(1.0, family[order] * np.arange(family.size, 0, -1)))
    made[tested] = adjusted
    return made


def benjamini_hochberg(p_values: CellCounts) -> Cells:
    r"""Benjamini-Hochberg adjusted p-values (false discovery rate), over all cells that are not NaN.

    $$ \tilde p_{(k)} = \min\{1, \min_{j \ge k} m\, p_{(j)} / j\} $$

    For exploratory maps: of the cells with an adjusted p-value below 0.05 about one in twenty is expected to be false. Source:
    Benjamini & Hochberg 1995, computed by `scipy.stats.false_discovery_control` | differs in: NaN allowed.

    >>> benjamini_hochberg(np.array([0.01, 0.04, 0.03, 0.5])).round(6)
    array([0.04    , 0.053333, 0.053333, 0.5     ])
    """
    made, tested = np.full(np.shape(p_values), np.nan), ~np.isnan(p_values)
    if tested.any():
        made[tested] = stats.false_discovery_control(np.asarray(p_values, dtype=np.float64)[tested], method="bh")
    return made
