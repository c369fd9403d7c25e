"""How firmly a ranking of cells stands: ranks are of means over problems, and problems are what varies."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy import stats

from .arguments import (
    AnyArray,
    CellCounts,
    Cells,
    Effects,
    check_choice,
    check_count,
    check_effects,
    check_share,
    derive_generator,
)
from .bootstrap import CONFIDENCE, resample_weights

By = Literal["abs", "value"]
_CHUNK_VALUES = 2**19


@dataclass(frozen=True, eq=False)
class RankIntervals:
    """Ranks of cells (1 = largest, ties share the middle rank) with bootstrap intervals; NaN for cells left out."""

    rank: Cells
    low: Cells
    high: Cells
    p_top_k: Cells
    n: CellCounts
    top_k: int
    confidence: float
    by: str

    def __repr__(self) -> str:
        ranked = int((~np.isnan(self.rank)).sum())
        steady = int((self.p_top_k >= self.confidence).sum())
        return (
            f"ranks of {ranked} cells by {'|mean|' if self.by == 'abs' else 'mean'}: {steady} in the top {self.top_k} in at "
            f"least {100 * self.confidence:g} % of the resamples"
        )


def rank_intervals(
    effects: Effects,
    *,
    top_k: int = 10,
    by: By = "abs",
    confidence: float = CONFIDENCE,
    n_resamples: int = 2_000,
    seed: int = 0,
) -> RankIntervals:
    """Bootstrap interval of each cell's rank, and the share of resamples in which it is among the `top_k` largest.

    Problems are drawn together for all cells. Percentile intervals, widened to the next rank; cells that tie around the
    border of the top share its places, so `p_top_k` sums to `top_k`. A cell undefined (NaN) in some problem is not ranked.
    The ranks of nearly equal cells are noisier than any bootstrap shows: read `p_top_k` near 1 as firm, the rest as unknown.

    >>> rank_intervals(np.array([[3.0, 1.0], [4.0, 2.0]]), top_k=1).p_top_k
    array([1., 0.])
    """
    check_choice(by, name="by", choices=("abs", "value"))
    check_share(confidence, name="confidence")
    check_count(n_resamples, name="n_resamples", at_least=2)
    check_count(top_k, name="top_k")
    flat, ranked, shape, counts = _rankable(effects)
    if top_k > flat.shape[1]:
        raise ValueError(f"top_k is {top_k}, but only {flat.shape[1]} cells are defined in every problem")
    weights = resample_weights(len(flat), n_resamples, seed)
    ranks = np.empty((n_resamples, flat.shape[1]), dtype=np.float32)
    p_top = np.zeros(flat.shape[1])
    rows = max(1, _CHUNK_VALUES // flat.shape[1])
    for start in range(0, n_resamples, rows):
        part = slice(start, start + rows)
        best, worst = _best_and_worst(weights[part].astype(np.float64) @ flat, by)
        ranks[part] = (best + worst) / 2
        p_top += np.clip((top_k - best + 1) / (worst - best + 1), 0, 1).sum(axis=0)
    tail = (1 - confidence) / 2
    best, worst = _best_and_worst(flat.sum(axis=0, keepdims=True), by)
    columns = np.full((4, ranked.size), np.nan)
    columns[0, ranked] = ((best + worst) / 2)[0]
    columns[1, ranked] = np.quantile(ranks, tail, axis=0, method="lower")
    columns[2, ranked] = np.quantile(ranks, 1 - tail, axis=0, method="higher")
    columns[3, ranked] = p_top / n_resamples
    rank, low, high, p_top_k = (row.reshape(shape) for row in columns)
    return RankIntervals(
        rank=rank,
        low=low,
        high=high,
        p_top_k=p_top_k,
        n=counts.reshape(shape),
        top_k=top_k,
        confidence=confidence,
        by=by,
    )


@dataclass(frozen=True, eq=False)
class RankEnrichment:
    """How high some cells rank among the others of their strata. `rank` (1 = largest, ties share the middle rank), `low` and
    `high` are of the chosen cells, in their order; `mean_rank` is of all of them, `expected` that of random ones."""

    rank: Cells
    low: Cells
    high: Cells
    mean_rank: float
    expected: float
    p: float
    n_draws: int
    confidence: float

    def __repr__(self) -> str:
        return f"mean rank {self.mean_rank:.2f} of {len(self.rank)} cells (random ones: {self.expected:.2f}), p = {self.p:.3g}"


def rank_enrichment(
    effects: Effects,
    chosen: AnyArray,
    *,
    strata: AnyArray | None = None,
    by: By = "abs",
    confidence: float = CONFIDENCE,
    n_draws: int = 10_000,
    n_resamples: int = 2_000,
    seed: int = 0,
) -> RankEnrichment:
    r"""Do chosen cells rank higher than as many random cells of the same strata?

    $$ p = \frac{1 + \#\{b : \bar r^{(b)} \le \bar r\}}{B + 1} $$

    with $\bar r$ the mean over the chosen cells of their rank within their stratum (1 = largest mean over problems, ties share
    the middle rank: where all cells are equal, p is 1). Limits of each rank are from a bootstrap over problems; one problem
    has none.

    effects: `[problem, cell]`. chosen: numbers of the cells, `[chosen]`. strata: a label per cell (a head's layer); one, when
        not given.

    Source: methods §8, E9.

    >>> found = rank_enrichment(np.array([[5.0, 4.0, 1.0, 2.0], [6.0, 5.0, 2.0, 1.0]]), np.array([0, 1]))
    >>> found.rank, found.mean_rank, round(found.p, 1)
    (array([1., 2.]), 1.5, 0.2)
    """
    check_choice(by, name="by", choices=("abs", "value"))
    check_count(n_draws, name="n_draws")
    array = check_effects(effects, min_problems=1)
    cells = np.asarray(chosen)
    if array.ndim != 2:
        raise ValueError(f"effects must be [problem, cell], got shape {array.shape}")
    if not cells.size or cells.dtype.kind not in "iu" or not ((cells >= 0) & (cells < array.shape[1])).all():
        raise ValueError(f"chosen must be numbers of cells from 0 to {array.shape[1] - 1}, got {cells.tolist()}")
    if len(set(cells.tolist())) < len(cells):
        raise ValueError(f"every cell is chosen once, got {cells.tolist()}")
    labels = np.zeros(array.shape[1], dtype=int) if strata is None else np.asarray(strata)
    if labels.shape != array.shape[1:]:
        raise ValueError(f"strata must have one label per cell, {array.shape[1:]}, got {labels.shape}")
    undefined = np.isnan(array).any(0) & np.isin(labels, labels[cells])
    if undefined.any():
        raise ValueError(
            f"{int(undefined.sum())} cells are undefined (NaN) on some problem and have no rank: leave out those problems"
        )
    rank, low, high = (np.full(array.shape[1], np.nan) for _ in range(3))
    generator, draws = derive_generator(seed, "rank enrichment", *cells.tolist()), np.zeros(n_draws)
    expected = 0.0
    for label in np.unique(labels[cells]):
        members = np.flatnonzero(labels == label)
        best, worst = _best_and_worst(array[:, members].mean(0, keepdims=True), by)
        rank[members] = ((best + worst) / 2)[0]
        if len(array) > 1:
            options = {"by": by, "confidence": confidence, "n_resamples": n_resamples, "seed": seed}
            made = rank_intervals(array[:, members], top_k=1, **options)  # type: ignore[arg-type]
            low[members], high[members] = made.low, made.high
        count = int(np.isin(cells, members).sum())
        order = generator.random((n_draws, len(members))).argsort(1)[:, :count]
        draws += rank[members][order].sum(1)
        expected += count * (len(members) + 1) / 2
    observed = rank[cells].sum()
    hits = int((draws <= observed + 1e-9).sum())
    return RankEnrichment(
        rank=rank[cells],
        low=low[cells],
        high=high[cells],
        mean_rank=float(observed / len(cells)),
        expected=expected / len(cells),
        p=(1 + hits) / (1 + n_draws),
        n_draws=n_draws,
        confidence=confidence,
    )


@dataclass(frozen=True)
class SplitHalf:
    """Agreement of rankings from two random halves of the problems.

    `mean`, `low` and `high` describe the splits (mean and central 95 %; the spread of splits is not a confidence
    interval). `spearman_brown` = 2r / (1 + r) estimates the agreement of rankings from twice as many problems, that is
    from all of them. `n_undefined` splits had a half in which all cells tie.
    """

    mean: float
    low: float
    high: float
    spearman_brown: float
    n_splits: int
    n_undefined: int
    n_cells: int

    def __repr__(self) -> str:
        return (
            f"split-half Spearman {self.mean:.3f} (splits {self.low:.3f} to {self.high:.3f}; all problems, by "
            f"Spearman-Brown: {self.spearman_brown:.3f}; {self.n_cells} cells, {self.n_splits} splits)"
        )


def split_half_spearman(effects: Effects, *, by: By = "value", n_splits: int = 1_000, seed: int = 0) -> SplitHalf:
    r"""Spearman correlation between the cells' means over two random halves of the problems, over many splits.

    1: any half gives the same ranking; 0: the ranking is noise. `by="value"` is the default because magnitudes also agree
    on pure noise, as soon as some cells are noisier than others. A cell undefined (NaN) in some problem is left out.

    >>> d = np.array([[1.0, 2.0, 3.0]] * 4)
    >>> split_half_spearman(d).mean
    1.0
    """
    check_choice(by, name="by", choices=("abs", "value"))
    check_count(n_splits, name="n_splits")
    flat, _, _, _ = _rankable(effects)
    n, n_cells = flat.shape
    if n_cells < 2:
        raise ValueError("a ranking needs at least 2 cells that are defined in every problem, got 1")
    half = n // 2
    generator = derive_generator(seed, "split half", n)
    correlation = np.empty(n_splits)
    rows = max(1, _CHUNK_VALUES // max(n, n_cells))
    for start in range(0, n_splits, rows):
        size = min(rows, n_splits - start)
        order = np.argsort(generator.random((size, n)), axis=1)
        chosen = (order < half).astype(np.float64)
        first, second = chosen @ flat / half, (1 - chosen) @ flat / (n - half)
        a, b = (stats.rankdata(np.abs(x) if by == "abs" else x, axis=1) - (n_cells + 1) / 2 for x in (first, second))
        with np.errstate(invalid="ignore"):
            correlation[start : start + size] = (a * b).sum(axis=1) / np.sqrt((a**2).sum(axis=1) * (b**2).sum(axis=1))
    defined = correlation[~np.isnan(correlation)]
    if defined.size == 0:
        raise ValueError("all cells have the same mean in every half: there is no ranking to compare")
    mean = float(defined.mean())
    low, high = np.quantile(defined, [0.025, 0.975]).tolist()
    return SplitHalf(
        mean=mean,
        low=low,
        high=high,
        spearman_brown=2 * mean / (1 + mean) if mean > -1 else float("-inf"),
        n_splits=n_splits,
        n_undefined=n_splits - defined.size,
        n_cells=n_cells,
    )


def jaccard_at_k(first: AnyArray, second: AnyArray, *, k: int, by: By = "abs") -> float:
    r"""Overlap of the `k` largest cells of two sets of scores over the same cells.

    $$ J_k = |A_k \cap B_k| / |A_k \cup B_k| $$

    1: the same cells; 0: none in common. Cells that are NaN in either are left out of both; of cells that tie at the
    border the earlier one is taken.

    >>> jaccard_at_k(np.array([3.0, 2.0, 1.0]), np.array([3.0, 1.0, 2.0]), k=2) == 1 / 3
    True
    """
    check_choice(by, name="by", choices=("abs", "value"))
    check_count(k, name="k")
    a, b = np.asarray(first, dtype=np.float64), np.asarray(second, dtype=np.float64)
    if a.shape != b.shape:
        raise ValueError(f"the scores must be over the same cells, got shapes {a.shape} and {b.shape}")
    defined = ~(np.isnan(a) | np.isnan(b))
    if k > defined.sum():
        raise ValueError(f"k is {k}, but only {int(defined.sum())} cells are defined in both")
    top = []
    for scores in (a[defined], b[defined]):
        size = np.abs(scores) if by == "abs" else scores
        top.append(set(np.argsort(-size, kind="stable")[:k].tolist()))
    return len(top[0] & top[1]) / len(top[0] | top[1])


def _rankable(effects: Effects) -> tuple[np.ndarray, np.ndarray, tuple[int, ...], np.ndarray]:
    """Columns defined in every problem, which cells they are (flat), the cells' shape, and every cell's count."""
    array = check_effects(effects)
    flat = array.reshape(len(array), -1)
    counts = (~np.isnan(flat)).sum(axis=0)
    ranked = counts == len(flat)
    if not ranked.any():
        raise ValueError(
            f"none of the {ranked.size} cells is defined in all {len(flat)} problems; drop the problems that are undefined"
        )
    return flat[:, ranked], ranked, array.shape[1:], counts


def _best_and_worst(means: np.ndarray, by: str) -> tuple[np.ndarray, np.ndarray]:
    """The first and last place that each cell's tie group takes, 1 = largest."""
    size = -np.abs(means) if by == "abs" else -means
    return stats.rankdata(size, method="min", axis=1), stats.rankdata(size, method="max", axis=1)
