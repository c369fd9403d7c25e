"""Two treatments of the same problems: how many answers changed, in which direction, and what that can tell."""

from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
from scipy.stats import beta

from ..given import count_of
from ..running.results import Result, Shown, ShownTable, as_text, limits_of
from ..statistics import (
    CONFIDENCE,
    Interval,
    cohen_dz,
    defined_mean,
    mcnemar,
    mean_interval,
    one_problem,
    paired_difference,
    sample_size,
    sign_flip,
)

POWER = 0.8
NO_CHANGE = "no problem changed: exact bound"


@dataclass(frozen=True, eq=False, repr=False)
class Comparison(Result):
    """The second treatment against the first.

    `difference` = second - first accuracy, with its interval over problems, which leaves out 0 only where `p` is below
    `alpha`; `p` and the `test` behind it. `gained` are the
    problems right under the second alone, `lost` those right under the first alone (with several samples: whose share of
    right answers rises or falls). `n` problems were answered under both, `n_left_out` were not. `n_needed` problems would
    show a true difference of the observed size with 80 % power (NaN without one); with `n` problems that is
    `detectable` (a difference in accuracy). Both allow for the number of comparisons made together (Bonferroni).
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
    n_needed: float
    detectable: float

    @property
    def alpha(self) -> float:
        """The level of the test: 1 - the interval's confidence."""
        return 1 - self.difference.confidence

    def summary(self) -> pd.DataFrame:
        """One row."""
        return pd.DataFrame(
            {
                "first": [self.first],
                "second": [self.second],
                "accuracy_first": [self.accuracy_first],
                "accuracy_second": [self.accuracy_second],
                "difference": [float(self.difference.estimate)],
                "low": [float(self.difference.low)],
                "high": [float(self.difference.high)],
                "gained": [len(self.gained)],
                "lost": [len(self.lost)],
                "n": [self.n],
                "p": [self.p],
                "test": [self.test],
                "n_needed": [self.n_needed],
                "detectable": [self.detectable],
                "flag": [str(self.difference.flag)],
            }
        )

    def to_frame(self) -> pd.DataFrame:
        """The same row: there is nothing below a comparison."""
        return self.summary()

    def sentences(self, *, p_corrected: float | None = None) -> list[str]:
        """The difference, and what it cannot tell; `p_corrected`: of the comparisons made together."""
        if not self.n:
            return [f"{self.second!r} against {self.first!r}: no problem was answered under both."]
        low, high = float(self.difference.low), float(self.difference.high)
        words = (
            f"{self.second!r} against {self.first!r}: {_percent(self.accuracy_second)} against "
            f"{_percent(self.accuracy_first)} of {count_of(self.n, 'problem')} ({self.grader} grades), a difference of "
            f"{_points(float(self.difference.estimate))} points{limits_of(low, high, '+.1f', scale=100)}; "
            f"{len(self.gained)} gained, {len(self.lost)} lost, p = {self.p:.3g} ({self.test})"
        )
        p = self.p
        if p_corrected is not None:
            words += f", {p_corrected:.3g} after Holm's correction"
            p = p_corrected
        if p < self.alpha and low * high > 0:
            return [f"{words}."]
        found = [f"{words}: no difference is established."]
        if np.isnan([low, high]).any():
            return [*found, "A single problem has no interval."]
        if not np.isfinite(self.n_needed):
            reach = 100 * max(abs(low), abs(high))
            fits = f"a true difference of up to {reach:.1f} points fits too"
            return [*found, f"With {count_of(self.n, 'problem')}, {fits}."]
        return [
            *found,
            f"To show a true difference of this size, about {self.n_needed:,.0f} problems would be needed; with {self.n}, "
            f"differences below {100 * self.detectable:.1f} points are more likely missed than one time in five (power "
            f"{100 * POWER:.0f} %).",
        ]

    def describe(self, *, p_corrected: float | None = None) -> str:
        """The sentences as one text."""
        return " ".join(self.sentences(p_corrected=p_corrected))

    def printed(self) -> pd.DataFrame:
        """Nothing more: the sentences have the numbers."""
        return pd.DataFrame()


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _points(share: float) -> str:
    return f"{100 * share:+.1f}"


@dataclass(frozen=True, eq=False, repr=False)
class Comparisons(Result):
    """Several treatments against one reference; `p_holm` are corrected over them."""

    reference: str
    grader: str
    comparisons: tuple[Comparison, ...]
    p_holm: np.ndarray

    def summary(self) -> pd.DataFrame:
        """One row per comparison, with `p_holm` after `p`."""
        table = pd.concat([one.summary() for one in self.comparisons], ignore_index=True)
        table.insert(list(table.columns).index("p") + 1, "p_holm", self.p_holm)
        return table

    def to_frame(self) -> pd.DataFrame:
        """The same rows: there is nothing below a comparison."""
        return self.summary()

    def each(self) -> list[list[str]]:
        """The sentences of each comparison; p-values after Holm's correction where there are several."""
        p_values = self.p_holm if len(self.comparisons) > 1 else [None]
        return [one.sentences(p_corrected=p) for one, p in zip(self.comparisons, p_values, strict=True)]

    def sentences(self) -> list[str]:
        """Each comparison in words."""
        return [sentence for told in self.each() for sentence in told]

    def printed(self) -> pd.DataFrame:
        """A row per comparison, without what its sentences say."""
        wanted = ["second", "accuracy_second", "difference", "low", "high", "gained", "lost", "n", "p", "p_holm"]
        return self.summary()[wanted].rename(columns={"second": "treatment", "accuracy_second": "accuracy"})

    def shown(self) -> Shown:
        """The comparisons as a table."""
        caption = f"Each treatment against {self.reference!r} on the same problems ({self.grader} grades)."
        table = self.summary()
        first = ["second", "difference", "low", "high", "p_holm", "gained", "lost", "accuracy_second", "accuracy_first"]
        return Shown(
            (ShownTable(table, caption, [*first, *(name for name in table if name not in (*first, "first"))]),)
        )

    def __repr__(self) -> str:
        return "\n".join([*map(" ".join, self.each()), as_text(self.printed())])


def compare_answers(
    first: np.ndarray,
    second: np.ndarray,
    *,
    names: tuple[str, str],
    ids: tuple[str, ...],
    grader: str,
    n_tests: int = 1,
    seed: int = 0,
    confidence: float = CONFIDENCE,
) -> Comparison:
    """Compare right (1) and wrong (0) answers `[problem, sample]`, NaN where not run, under two treatments.

    `n_tests`: how many comparisons will be corrected together; the numbers about power allow for it.
    """
    shares = [defined_mean(graded, axis=1) for graded in (first, second)]
    both = ~np.isnan(shares[0] + shares[1])
    a, b = shares[0][both], shares[1][both]
    change = b - a
    n = int(both.sum())
    known = [problem for problem, there in zip(ids, both, strict=True) if there]
    gained = tuple(problem for problem, d in zip(known, change, strict=True) if d > 0)
    lost = tuple(problem for problem, d in zip(known, change, strict=True) if d < 0)
    single = first.shape[1] == 1
    test = "exact McNemar test" if single else "sign-flip test over problems"
    if single:
        p = mcnemar(len(lost), len(gained)) if n else float("nan")
    else:
        p = _sign_flip_p(change, seed=seed) if n else float("nan")
    if single and n:
        difference = paired_difference(len(lost), len(gained), n, confidence=confidence)
    else:
        difference = _difference(change, p, seed=seed, confidence=confidence)
    needed, detectable = _power(change, difference, n_tests=n_tests)
    return Comparison(
        first=names[0],
        second=names[1],
        grader=grader,
        accuracy_first=float(a.mean()) if n else float("nan"),
        accuracy_second=float(b.mean()) if n else float("nan"),
        difference=difference,
        p=p,
        test=test,
        gained=gained,
        lost=lost,
        n=n,
        n_left_out=len(ids) - n,
        n_needed=needed,
        detectable=detectable,
    )


def _sign_flip_p(change: np.ndarray, *, seed: int) -> float:
    """p of no mean change; 1 where nothing changes, also with one problem."""
    if len(change) < 2 or (change == change[0]).all():
        return 1.0 if not change.any() else 2.0 ** (1 - len(change))
    return float(sign_flip(change, seed=seed, alpha=0.999))  # the warning about few problems is said by `describe`


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


def _power(change: np.ndarray, difference: Interval, *, n_tests: int) -> tuple[float, float]:
    """Problems needed to show the observed difference, and the difference that this many problems can show.

    The latter never from what was observed: McNemar's exact test rejects from `least` changes of one direction on, where none
    goes the other way; a difference is detectable where that many come with the power asked for. More is needed where
    answers change both ways.
    """
    n = len(change)
    if n < 2:
        return float("nan"), float("nan")
    alpha = 1 - difference.confidence
    least = int(np.floor(np.log2(2 * n_tests / alpha))) + 1
    detectable = float(beta.ppf(POWER, least, n - least + 1)) if least <= n else float("nan")
    if not change.any():
        return float("nan"), detectable
    effect = float(cohen_dz(change))
    needed = float("nan")
    if np.isfinite(effect) and effect:
        needed = float(sample_size(effect, n_tests=n_tests, alpha=alpha, power=POWER))
    return needed, detectable
