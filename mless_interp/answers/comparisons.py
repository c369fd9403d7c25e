"""Two treatments of the same problems: how many answers changed, in which direction, and what that can tell."""

from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
from scipy.stats import beta

from ..core.arguments import count_of, listed
from ..runtime.columns import columns_of
from ..runtime.results import Result, Shown, ShownTable, limits_of
from ..statistics import (
    CONFIDENCE,
    Interval,
    by_group,
    defined_mean,
    mcnemar,
    mean_interval,
    one_problem,
    paired_difference,
    wilson,
)

RIGHT = ("treatment", "accuracy", "accuracy_ci_low", "accuracy_ci_high", "n")
"""Columns of a table of answers: right ones, and of how many problems."""
CHANGE = ("difference", "difference_ci_low", "difference_ci_high", "p_corrected")
"""Columns of a comparison among several: what changes, and the test."""
ENDS = ("", "_ci_low", "_ci_high")
POWER = 0.8
ROUNDING = 1e-9
"""Shares of right answers that differ by less are equal."""
NO_CHANGE = "no problem changed: exact bound"
ALL_EQUAL = "all problems equal: Wilson"


@dataclass(frozen=True, eq=False, repr=False)
class Comparison(Result):
    """The second treatment against the first.

    `difference` = second - first accuracy, with its interval over problems, which leaves out 0 only where `p` is below
    `alpha`; `p` and the `test` behind it: do more problems gain than lose? `gained` and `lost`: problems whose share of right
    answers rises, or falls. `n` problems were answered under both, `n_left_out` were not. `detectable`: the share of
    problems that must change, all one way, for the test to find it with 80 % power (Bonferroni over the comparisons made
    together). Of problems in groups, each group counts as one, by its name.
    """

    first: str
    second: str
    grader: str
    accuracy_first: float
    accuracy_second: float
    difference: Interval
    p: float
    test: str
    gained: tuple[str, ...]
    lost: tuple[str, ...]
    n: int
    n_left_out: int
    detectable: float

    columns = columns_of("""
        second | treatment | | what was done to the problem before it was answered
        first | against | | the treatment that it is compared with
        accuracy_second | right | share | share of right answers under the treatment
        accuracy_first | right under the first | share | share of right answers under the treatment that it is compared with
        difference | change, points | points | right answers under the treatment - under the first, on the same problems
        gained | gained | | problems right under this treatment alone
        lost | lost | | problems right under the first treatment alone
        test | test | | which test gives p
        detectable | detectable | share | share of problems that must change, all one way, to be found with 80 % power
    """)

    @property
    def confidence(self) -> float:
        """The confidence of the difference's interval."""
        return self.difference.confidence

    @property
    def alpha(self) -> float:
        """The level of the test: 1 - the interval's confidence."""
        return 1 - self.confidence

    def table(self) -> pd.DataFrame:
        """One row."""
        told = {name: getattr(self, name) for name in ("first", "second", "accuracy_first", "accuracy_second")}
        told |= {f"difference{end}": value for end, value in zip(ENDS, self._change, strict=True)}
        told |= {"gained": len(self.gained), "lost": len(self.lost)}
        told |= {name: getattr(self, name) for name in ("n", "p", "test", "detectable")}
        return pd.DataFrame([told | {"flag": str(self.difference.flag)}])

    @property
    def _change(self) -> tuple[float, float, float]:
        made = self.difference
        return float(made.estimate), float(made.low), float(made.high)

    def printed(self) -> pd.DataFrame:
        """Return the change, and what it rests on."""
        change = [f"difference{end}" for end in ENDS]
        return self.table()[["second", "accuracy_second", *change, "gained", "lost", "n", "p"]]

    def to_frame(self) -> pd.DataFrame:
        """The same row: there is nothing below a comparison."""
        return self.table()

    def headline(self, *, p_corrected: float | None = None, n_tests: int = 1) -> str:
        """Return whether right answers change, and by how much; `p_corrected`: of the `n_tests` comparisons made together."""
        if not self.n:
            return f"{self.second!r} against {self.first!r}: no problem was answered under both."
        p, (change, low, high) = self.p if p_corrected is None else p_corrected, self._change
        does = "raises" if len(self.gained) > len(self.lost) else "lowers"
        over = f" after Holm over {n_tests} comparisons" * (n_tests > 1)
        said = f"{self.second!r} {does} right answers" if p < self.alpha else f"No change is shown for {self.second!r}"
        return (
            f"{said}: "
            f"{_percent(self.accuracy_second)} against {_percent(self.accuracy_first)} under {self.first!r} "
            f"({_points(change)} points{limits_of(low, high, '+.1f', scale=100)}, {len(self.gained)} "
            f"gained, {len(self.lost)} lost of {count_of(self.n, 'problem')}, p = {p:.2g}{over})."
        )

    def details(self) -> list[str]:
        """Return the test, and what the problems cannot show."""
        if not self.n:
            return []
        found = [f"{self.test[0].upper()}{self.test[1:]} over problems ({self.grader} grades)."]
        reach = 100 * max(map(abs, self._change[1:]))
        if self.p < self.alpha:
            return found
        if np.isnan(reach):
            return [*found, "A single problem has no interval."]
        fits = f"With {count_of(self.n, 'problem')}, a true difference of up to {reach:.1f} points fits too"
        share = f"; a change in {100 * self.detectable:.1f} % of the problems is found {100 * POWER:.0f} % of the time"
        return [*found, f"{fits}{share if np.isfinite(self.detectable) else ''}."]


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _points(share: float) -> str:
    return f"{100 * share:+.1f}"


@dataclass(frozen=True, eq=False, repr=False)
class Comparisons(Result):
    """Several treatments against one reference; `p_corrected` are corrected over them."""

    reference: str
    grader: str
    comparisons: tuple[Comparison, ...]
    p_corrected: np.ndarray

    def table(self) -> pd.DataFrame:
        """One row per comparison, with `p_corrected` after `p`."""
        table = pd.concat([one.table() for one in self.comparisons], ignore_index=True)
        table.insert(list(table.columns).index("p") + 1, "p_corrected", self.p_corrected)
        return table

    def to_frame(self) -> pd.DataFrame:
        """The same rows: there is nothing below a comparison."""
        return self.table()

    def headline(self) -> str:
        """Return which treatments change right answers, against the reference; else the largest difference."""
        sure = [one for one, p in zip(self.comparisons, self.p_corrected, strict=True) if p < one.alpha]
        if len(sure) > 1:
            told = (f"{one.second!r} {_points(float(one.difference.estimate))}" for one in sure)
            return (
                f"{len(sure)} of {len(self.comparisons)} treatments change right answers against {self.reference!r} "
                f"({_percent(sure[0].accuracy_first)} right), in points: {listed(told)}."
            )
        n = len(self.comparisons)
        largest = max(range(n), key=lambda at: np.nan_to_num(abs(self.comparisons[at]._change[0]), nan=-1.0))
        one = sure[0] if sure else self.comparisons[largest]
        words = one.headline(p_corrected=float(self.p_corrected[self.comparisons.index(one)]), n_tests=n)
        others = f"no difference is shown for {count_of(n - 1, 'other treatment')}"
        return words if n == 1 else f"{words[:-1]}; {others}."

    def details(self) -> list[str]:
        """Return each comparison in words; p-values after Holm's correction where there are several."""
        told = (
            [one.headline(p_corrected=p, n_tests=len(self.comparisons)), *one.details()]
            for one, p in zip(self.comparisons, self.p_corrected.tolist(), strict=True)
        )
        return [sentence for of_one in told for sentence in of_one]

    def printed(self) -> pd.DataFrame:
        """Return a row per comparison."""
        table = pd.concat([one.printed() for one in self.comparisons])
        return table.assign(p_corrected=self.p_corrected).drop(columns="p")

    def shown(self) -> Shown:
        """The comparisons as a table."""
        caption = f"Each treatment against {self.reference!r} on the same problems ({self.grader} grades)."
        table = self.table()
        first = ["second", "difference", "p_corrected", "gained", "lost", "accuracy_second", "accuracy_first"]
        rest = [name for name in table if name not in (*first, "first")]
        return Shown((ShownTable(table, caption, [*first, *rest]),))


def compare_answers(
    first: np.ndarray,
    second: np.ndarray,
    *,
    names: tuple[str, str],
    ids: tuple[str, ...],
    grader: str,
    groups: tuple[str, ...] = (),
    n_tests: int = 1,
    seed: int = 0,
    confidence: float = CONFIDENCE,
) -> Comparison:
    """Compare right (1) and wrong (0) answers `[problem, sample]`, NaN where not run, under two treatments.

    `n_tests`: how many comparisons will be corrected together; the numbers about power allow for it.
    """
    shares = np.stack([defined_mean(graded, axis=1) for graded in (first, second)], 1)
    shares[np.isnan(shares).any(1)] = np.nan  # answered under both
    units = by_group(shares, groups, mean=True)
    both = ~np.isnan(units[:, 0])
    a, b = units[both].T
    change = b - a
    n = int(both.sum())
    known = [problem for problem, there in zip(dict.fromkeys(groups or ids), both, strict=True) if there]
    gained = tuple(problem for problem, d in zip(known, change, strict=True) if d > ROUNDING)
    lost = tuple(problem for problem, d in zip(known, change, strict=True) if d < -ROUNDING)
    single = first.shape[1] == 1 and not groups
    p = mcnemar(len(lost), len(gained)) if n else float("nan")
    if single and n:
        difference = paired_difference(len(lost), len(gained), n, confidence=confidence)
    else:
        difference = _difference(change, p, seed=seed, confidence=confidence)
    return Comparison(
        first=names[0],
        second=names[1],
        grader=grader,
        accuracy_first=float(a.mean()) if n else float("nan"),
        accuracy_second=float(b.mean()) if n else float("nan"),
        difference=difference,
        p=p,
        test="exact McNemar test" if single else "exact sign test of the problems that differ",
        gained=gained,
        lost=lost,
        n=n,
        n_left_out=len(units) - n,
        detectable=_detectable(n, n_tests=n_tests, alpha=1 - confidence),
    )


def _difference(change: np.ndarray, p: float, *, seed: int, confidence: float) -> Interval:
    """The mean change `[problem]` with its interval, which reaches 0 where the test does not reject; where no problem
    changes, the exact bound on the share of problems that do."""
    n = len(change)
    if not n:
        return one_problem(np.asarray(np.nan), confidence=confidence)
    found = mean_interval(change, confidence=confidence, seed=seed)
    if n < 2:
        return found
    if not change.any():
        bound = np.asarray(1 - ((1 - confidence) / 2) ** (1 / n))
        return replace(found, low=np.asarray(-bound), high=bound, flag=np.asarray(NO_CHANGE), method="exact bound")
    if p < 1 - confidence:
        return found
    return replace(found, low=np.asarray(np.minimum(found.low, 0.0)), high=np.asarray(np.maximum(found.high, 0.0)))


def _detectable(n: int, *, n_tests: int, alpha: float) -> float:
    """Return the share of problems that must change, all one way, for `n` of them to show it with `POWER`; NaN: none can.

    The exact test rejects from `least` changes of one direction on. More is needed where answers change both ways.
    """
    least = int(np.floor(np.log2(2 * n_tests / alpha))) + 1
    return float(beta.ppf(POWER, least, n - least + 1)) if n >= max(2, least) else float("nan")


def accuracy_interval(shares: np.ndarray, *, sampled: bool, confidence: float, seed: int) -> Interval:
    """Accuracy of each treatment from the problems' shares of right samples `[problem, treatment]`, with its interval.

    One sample per problem: Wilson's. Several (`sampled`): of the mean over problems (`mean_interval`), and Wilson's over
    problems where all of them are always right, or never, because any other would give a point there.
    """
    done = ~np.isnan(shares)
    n, right = done.sum(0), np.where(done, shares, 0.0).sum(0)
    by_wilson = wilson(np.round(right).astype(int), n, confidence=confidence)
    if not sampled:
        return by_wilson
    found = mean_interval(shares, confidence=confidence, seed=seed)
    found = replace(found, estimate=defined_mean(shares))  # also where a single problem was run
    if len(shares) < 2:
        return found
    certain = (n > 0) & ((right == 0) | (right == n))
    return replace(
        found,
        low=np.where(certain, by_wilson.low, found.low),
        high=np.where(certain, by_wilson.high, found.high),
        flag=np.where(certain, ALL_EQUAL, found.flag.astype("<U40")),
        method=f"{found.method} over problems",
    )
