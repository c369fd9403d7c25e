"""Sign-flip tests: under the null a problem's effects are as likely as the same effects with the sign reversed."""

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

from .arguments import (
    AnyArray,
    CellCounts,
    CellMask,
    Cells,
    Effects,
    check_choice,
    check_count,
    check_effects,
    check_share,
    derive_generator,
)

Alternative = Literal["two-sided", "greater", "less"]

EXACT_UP_TO = 13
"""Up to this many problems all 2^n sign patterns are enumerated."""
_CHUNK_VALUES = 2**19


@dataclass(frozen=True, eq=False)
class SignFlipTest:
    """What `max_t_sign_flip` found; every array has the shape of the cells.

    `statistic` is given wherever it is defined, inside the family or not; `p` (uncorrected) and `p_corrected` are NaN
    outside the family, which is `tested`. `n` counts the problems in which a cell is defined. `smallest_p` is the
    smallest p-value that this number of problems and flips can reach.
    """

    statistic: Cells
    p: Cells
    p_corrected: Cells
    n: CellCounts
    tested: CellMask
    n_problems: int
    n_flips: int
    exact: bool
    smallest_p: float
    statistic_name: str
    alternative: str
    step_down: bool
    alpha: float
    seed: int

    @property
    def n_tests(self) -> int:
        """How many cells the family holds."""
        return int(self.tested.sum())

    def __repr__(self) -> str:
        flips = f"all {self.n_flips:,} sign patterns" if self.exact else f"{self.n_flips:,} random sign flips"
        below = int((self.p_corrected[self.tested] < self.alpha).sum())
        return (
            f"max-{self.statistic_name} sign flip ({self.alternative}{', step-down' if self.step_down else ''}): "
            f"{self.n_tests} of {self.tested.size} cells tested on {self.n_problems} problems, {flips}; "
            f"{below} with corrected p < {self.alpha:g}; smallest reachable p {self.smallest_p:.2g}"
        )


def max_t_sign_flip(
    effects: Effects,
    *,
    n_permutations: int = 10_000,
    seed: int = 0,
    statistic: Literal["t", "mean"] = "t",
    alternative: Alternative = "two-sided",
    step_down: bool = False,
    tested: AnyArray | None = None,
    min_problems: int | None = None,
    alpha: float = 0.05,
) -> SignFlipTest:
    r"""Which cells have a non-zero mean effect, with the family-wise error held over all of them at once.

    $$ T_h = \frac{\bar d_h}{s_h / \sqrt n}, \qquad
       p_h = \frac{1 + \#\{b : \max_g |T_g^{(b)}| \ge |T_h|\}}{B + 1} $$

    In flip $b$ whole problems change sign, the same for all cells, so the dependence between cells is kept. With at most
    13 problems all $2^n$ patterns are counted, the identity among them, and $p = \# / 2^n$. Assumes that under the null
    a problem's effects are symmetric about 0. A p-value of `smallest_p` means that no flip came as far.

    The sum of squares does not change under flips: with $u = \bar d / \sqrt{\overline{d^2}}$ one has
    $T^2 = (n - 1) u^2 / (1 - u^2)$, increasing in $|u|$ alone, so one matrix product of signs and scaled effects decides.

    statistic: `"t"` weighs every cell by its own spread; `"mean"` compares raw means, so that noisy cells dominate.
    step_down: cells already surpassed by larger ones leave the maximum (Westfall & Young's step-down max-T): never larger p.
    tested: the cells of the family (all, when not given). Cells without spread (all values equal, 0 among them: a head
        that does nothing) are left out, with p = NaN, for either statistic. A cell whose differences are only rounding
        noise is not recognised: leave it out with `tested`.
    min_problems: a cell undefined (NaN) in some problems is left out, unless this number is given: then cells defined in
        at least that many are tested on the problems that they have. A cell with very few has a wild T and weakens the
        whole family; keep this close to the number of problems.
    alpha: only for the warning that this threshold is out of reach, and for the printed count.

    Source: Westfall & Young 1993; Nichols & Holmes 2002; p-value of Phipson & Smyth 2010. As published.

    >>> d = np.array([[1.0, 1.0], [2.0, -1.0], [3.0, 2.0]])  # 3 problems, 2 cells, 8 patterns
    >>> max_t_sign_flip(d, statistic="mean", alpha=0.3).p_corrected
    array([0.25, 1.  ])
    """
    check_choice(statistic, name="statistic", choices=("t", "mean"))
    check_choice(alternative, name="alternative", choices=("two-sided", "greater", "less"))
    check_count(n_permutations, name="n_permutations")
    check_share(alpha, name="alpha")
    array = check_effects(effects)
    n_problems, shape = array.shape[0], array.shape[1:]
    values = array.reshape(n_problems, -1)
    counts = (~np.isnan(values)).sum(axis=0)

    family = _family(values, counts, tested=tested, shape=shape, min_problems=min_problems)
    n = counts[family]
    units, rms = _scaled(values[:, family], n)
    hits, joint_hits, n_flips = _count_flips(
        units,
        alternative=alternative,
        n_permutations=n_permutations,
        seed=seed,
        joint=_Joint(
            spread=rms if statistic == "mean" else None,
            share=(n - 1) / (n.max() - 1) if statistic == "t" and n.min() < n.max() else None,
            step_down=step_down,
        ),
    )
    exact = n_problems <= EXACT_UP_TO
    smallest = _smallest_p(int(n.max()), n_flips=n_flips, alternative=alternative)
    _warn_if_out_of_reach(smallest, n_problems=int(n.max()), n_flips=n_flips, exact=exact, alpha=alpha)

    p = np.full(values.shape[1], np.nan)
    p_corrected = np.full(values.shape[1], np.nan)
    p[family] = _p_values(hits, n_flips=n_flips, exact=exact)
    p_corrected[family] = _p_values(joint_hits, n_flips=n_flips, exact=exact)
    return SignFlipTest(
        statistic=_statistic(values, counts, name=statistic).reshape(shape),
        p=p.reshape(shape),
        p_corrected=p_corrected.reshape(shape),
        n=counts.reshape(shape),
        tested=family.reshape(shape),
        n_problems=n_problems,
        n_flips=n_flips,
        exact=exact,
        smallest_p=smallest,
        statistic_name=statistic,
        alternative=alternative,
        step_down=step_down,
        alpha=alpha,
        seed=seed,
    )


def corrected_p(effects: Effects, *, tested: AnyArray | None = None, seed: int = 0) -> Cells:
    """`max_t_sign_flip(...).p_corrected` for a table: NaN in every cell that cannot be tested (a single problem, undefined
    or infinite in one, no spread), and no warning about few problems, which show as p-values that are not small.

    >>> corrected_p(np.array([[1.0, 0.0], [2.0, 0.0], [3.0, 0.0]]))
    array([0.25,  nan])
    """
    family = np.isfinite(effects).all(axis=0)
    if tested is not None:
        family &= tested
    values = np.where(family, effects, np.nan)
    if len(values) < 2 or not (np.ptp(values, axis=0) > 0).any():
        return np.full(values.shape[1:], np.nan)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return max_t_sign_flip(values, seed=seed).p_corrected


def sign_flip(
    effects: Effects,
    *,
    n_permutations: int = 10_000,
    seed: int = 0,
    alternative: Alternative = "two-sided",
    alpha: float = 0.05,
) -> Cells:
    r"""Uncorrected sign-flip p-value of each cell's mean effect, on the problems in which the cell is defined.

    $$ p = \frac{1 + \#\{b : |\bar d^{(b)}| \ge |\bar d|\}}{B + 1}, \qquad \text{or } \# / 2^n \text{ over all patterns} $$

    1 for a cell that is 0 everywhere; NaN for a cell defined in fewer than 2 problems. The t statistic orders the flips of
    one cell as the mean does, so these are also `max_t_sign_flip(...).p` where that tests. Correct them with `holm` or
    `benjamini_hochberg`, passing as `alpha` the threshold over the number of tests, so that the warning is about that.

    Source: TransformerLens 4.x `sign_flip_permutation_pvalue` | differs in: all patterns up to 13 problems (there 12), a
    generator of NumPy, ties decided relative to the cell's size, NaN allowed.

    >>> sign_flip(np.array([1.0, 2.0, 3.0, 4.0, 5.0, 6.0])).item() == 2 / 64
    True
    """
    check_choice(alternative, name="alternative", choices=("two-sided", "greater", "less"))
    check_count(n_permutations, name="n_permutations")
    check_share(alpha, name="alpha")
    array = check_effects(effects)
    n_problems, shape = array.shape[0], array.shape[1:]
    values = array.reshape(n_problems, -1)
    counts = (~np.isnan(values)).sum(axis=0)
    if not (counts >= 2).any():
        raise ValueError("no cell is defined in at least 2 problems: the family is empty")
    units, _ = _scaled(values, counts)
    hits, _, n_flips = _count_flips(units, alternative=alternative, n_permutations=n_permutations, seed=seed)
    exact = n_problems <= EXACT_UP_TO
    n = int(counts.max())
    smallest = _smallest_p(n, n_flips=n_flips, alternative=alternative)
    _warn_if_out_of_reach(smallest, n_problems=n, n_flips=n_flips, exact=exact, alpha=alpha)
    p = _p_values(hits, n_flips=n_flips, exact=exact)
    return np.where(counts >= 2, p, np.nan).reshape(shape)


def _family(
    values: np.ndarray,
    counts: np.ndarray,
    *,
    tested: np.ndarray | None,
    shape: tuple[int, ...],
    min_problems: int | None,
) -> np.ndarray:
    """The cells that can be tested together, flat; refuses an empty family and says why it is empty."""
    n_problems = values.shape[0]
    needed = n_problems if min_problems is None else min_problems
    check_count(needed, name="min_problems", at_least=2)
    asked = np.ones(values.shape[1], dtype=bool)
    if tested is not None:
        mask = np.asarray(tested)
        if mask.dtype != bool or mask.shape != shape:
            raise ValueError(
                f"tested must be a boolean array of the cells' shape {shape}, got {mask.dtype} of shape {mask.shape}"
            )
        asked = mask.ravel()
    enough = counts >= needed
    low = np.min(values, axis=0, where=~np.isnan(values), initial=np.inf)
    high = np.max(values, axis=0, where=~np.isnan(values), initial=-np.inf)
    family = asked & enough & (high > low)
    if not family.any():
        raise ValueError(
            f"the family is empty: of {asked.size} cells {int((~asked).sum())} are excluded by `tested`, "
            f"{int((asked & ~enough).sum())} are undefined (NaN) in too many problems (needed: {needed} of {n_problems}) and "
            f"{int((asked & enough & ~(high > low)).sum())} have the same value in every problem. Drop the problems that "
            "are undefined everywhere, or lower `min_problems`."
        )
    return family


def _scaled(values: np.ndarray, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Columns whose signed sum is the flipped mean in units of the cell's root mean square, and that root mean square."""
    filled = np.where(np.isnan(values), 0.0, values)
    n = np.maximum(counts, 1)
    largest = np.maximum(np.abs(filled).max(axis=0), np.finfo(np.float64).tiny)
    rms = largest * np.sqrt(((filled / largest) ** 2).sum(axis=0) / n)
    return filled / (np.where(rms > 0, rms, 1.0) * n), rms


@dataclass(frozen=True, eq=False)
class _Joint:
    """How the cells of a family are compared: raw means are `spread` times u, T with unequal n is a function of u."""

    spread: np.ndarray | None
    share: np.ndarray | None
    step_down: bool

    def comparable(self, u: np.ndarray) -> np.ndarray:
        r"""`u` on a scale that all cells share; changes `u` in place.

        For T with unequal numbers of problems that is the u which the largest number would have at the same T:
        $v = u \sqrt{r / (1 - (1 - r) u^2)}$ with $r = (n_h - 1) / (n_{max} - 1)$.
        """
        if self.spread is not None:
            u *= self.spread
        if self.share is not None:
            u *= np.sqrt(self.share / (1 - (1 - self.share) * np.minimum(u * u, 1.0)))
        return u

    def tie(self, tie: float) -> float:
        """The rounding error of `u`, carried to the shared scale."""
        if self.spread is not None:
            tie *= self.spread.max()
        return tie if self.share is None else tie / self.share.min()


def _count_flips(
    units: np.ndarray, *, alternative: str, n_permutations: int, seed: int, joint: _Joint | None = None
) -> tuple[np.ndarray, np.ndarray, int]:
    """How many flips reach each cell's own observed value: that cell's flips, and the family's largest; and all flips.

    A flip that ties with the observed value up to rounding has reached it, the identity among them.
    """
    n_problems, n_cells = units.shape
    tie = 4 * n_problems * np.finfo(np.float64).eps
    two_sided = alternative == "two-sided"
    units = -units if alternative == "less" else units
    observed = np.abs(units.sum(axis=0)) if two_sided else units.sum(axis=0)
    threshold = observed - tie
    hits, joint_hits = np.zeros(n_cells, dtype=np.int64), np.zeros(n_cells, dtype=np.int64)
    if joint is not None:
        observed = joint.comparable(observed)
        order = np.argsort(observed, kind="stable")
        joint_threshold = observed - joint.tie(tie)

    n_flips = 0
    for signs in _sign_chunks(n_problems, n_cells=n_cells, n_permutations=n_permutations, seed=seed):
        n_flips += len(signs)
        null = signs @ units
        if two_sided:
            np.abs(null, out=null)
        hits += np.count_nonzero(null >= threshold, axis=0)
        if joint is None:
            continue
        null = joint.comparable(null)
        if joint.step_down:
            null = np.maximum.accumulate(null[:, order], axis=1)
            joint_hits[order] += np.count_nonzero(null >= joint_threshold[order], axis=0)
        else:
            largest = np.sort(null.max(axis=1))
            joint_hits += largest.size - np.searchsorted(largest, joint_threshold, side="left")
    if joint is not None and joint.step_down:
        joint_hits[order] = np.maximum.accumulate(joint_hits[order][::-1])[::-1]
    return hits, joint_hits, n_flips


def _statistic(values: np.ndarray, counts: np.ndarray, *, name: str) -> np.ndarray:
    """Each cell's mean or T, NaN where undefined."""
    defined = ~np.isnan(values)
    n = np.where(counts > 0, counts, np.nan)
    mean = np.where(defined, values, 0.0).sum(axis=0) / n
    if name == "mean":
        return mean
    squares = (np.where(defined, values - mean, 0.0) ** 2).sum(axis=0)
    low = np.min(values, axis=0, where=defined, initial=np.inf)
    high = np.max(values, axis=0, where=defined, initial=-np.inf)
    spread = np.where((counts >= 2) & (high > low) & (squares > 0), squares, np.nan)
    return mean / np.sqrt(spread / np.maximum(counts - 1, 1) / n)


def _sign_chunks(n_problems: int, *, n_cells: int, n_permutations: int, seed: int) -> Iterator[np.ndarray]:
    """Rows of +1 and -1, all patterns or random ones, a bounded number at a time; the chunks do not change the rows."""
    rows = max(64, _CHUNK_VALUES // n_cells)
    if n_problems <= EXACT_UP_TO:
        for start in range(0, 2**n_problems, rows):
            pattern = np.arange(start, min(start + rows, 2**n_problems))[:, None]
            yield 1.0 - 2.0 * ((pattern >> np.arange(n_problems)) & 1)
        return
    generator = derive_generator(seed, "sign flip", n_problems)
    words = -(-n_problems // 64)
    for start in range(0, n_permutations, rows):
        size = (min(rows, n_permutations - start), words)
        drawn = generator.integers(0, 2**64, size=size, dtype=np.uint64).astype("<u8")
        bits = np.unpackbits(drawn.view(np.uint8), axis=1, bitorder="little")[:, :n_problems]
        yield 1.0 - 2.0 * bits


def _p_values(hits: np.ndarray, *, n_flips: int, exact: bool) -> np.ndarray:
    return hits / n_flips if exact else (1 + hits) / (1 + n_flips)


def _smallest_p(n: int, *, n_flips: int, alternative: str) -> float:
    """The smallest p-value that `n` problems and this number of flips can give."""
    return max(2.0 ** ((1 if alternative == "two-sided" else 0) - n), 1 / (1 + n_flips))


def _warn_if_out_of_reach(smallest: float, *, n_problems: int, n_flips: int, exact: bool, alpha: float) -> None:
    if smallest >= alpha:
        advice = "more problems are needed" if exact else "raise n_permutations, or use more problems"
        warnings.warn(
            f"no p-value below {alpha:.2g} can be reached with {n_problems} problems and {n_flips:,} sign flips: the smallest "
            f"is {smallest:.2g}; {advice}",
            UserWarning,
            stacklevel=3,
        )
    elif not exact and 1 / (1 + n_flips) > alpha / 10:
        warnings.warn(
            f"{n_flips:,} sign flips are few for a threshold of {alpha:.2g}: a p-value there has a standard error of "
            f"{(alpha * (1 - alpha) / n_flips) ** 0.5:.2g}; raise n_permutations to at least {round(10 / alpha):,}",
            UserWarning,
            stacklevel=3,
        )
