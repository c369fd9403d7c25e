"""Graded answers, `[problem, treatment, sample]`, and treatments compared on the same problems."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from .. import statistics
from ..core.arguments import Arguments, count_of, listed
from ..models.sites import extension_of
from ..runtime.base_result import Result, Shown, ShownTable, counted, interval_columns, limits_of, place_of, tidy
from ..runtime.columns import columns_of
from .graders import GRADERS
from .same_answer import GAVE_UP

NUMBERS = (*GRADERS, "boxed", "cut_off", "n_tokens")
PRINTED = "second accuracy_second difference difference_ci_low difference_ci_high gained lost n".split()
ROUNDING = 1e-9  # shares of right answers that differ by less are equal


@dataclass(frozen=True, eq=False, repr=False)
class Comparison(Result):
    """The second treatment against the first.

    `difference` = second - first accuracy, with its interval over problems, which leaves out 0 only where the test
    rejects; `p` and the `test` behind it: do more problems gain than lose? `p_corrected` is Holm's over the `n_tests`
    comparisons made together. `gained` and `lost`: problems whose share of right answers rises, or falls, of `n`. Of
    problems in groups, each group counts as one, by its name.
    """

    first: str
    second: str
    grader: str
    accuracy_first: float
    accuracy_second: float
    difference: statistics.Interval
    p: float
    test: str
    gained: tuple[str, ...]
    lost: tuple[str, ...]
    n: int
    p_corrected: float
    n_tests: int = 1

    columns = columns_of("""
        second | treatment | | what was done to the problem before it was answered
        first | against | | the treatment that it is compared with
        accuracy_second | right | rate | share of right answers under the treatment
        accuracy_first | right under that one | rate | share of right answers under the treatment that it is compared with
        difference | change, points | points | under the treatment - under the one it is compared with, on the same problems
        gained | gained | | problems right only under the treatment
        lost | lost | beside | problems right only under the one it is compared with
        test | test | | which test gives p
    """)

    @property
    def confidence(self) -> float:
        """The confidence of the difference's interval; the level of the test is what is left of 1."""
        return self.difference.confidence

    @property
    def sure(self) -> bool:
        """Whether the test rejects, corrected."""
        return self.p_corrected < 1 - self.confidence

    def table(self) -> pd.DataFrame:
        """Return one row."""
        told = {name: getattr(self, name) for name in ("first", "second", "accuracy_first", "accuracy_second")}
        told |= interval_columns("difference", self.difference) | {"gained": len(self.gained), "lost": len(self.lost)}
        told |= {name: getattr(self, name) for name in ("n", "p", "p_corrected", "test")}
        return pd.DataFrame(told | {"flag": str(self.difference.flag)}, index=[0])

    def printed(self) -> pd.DataFrame:
        return self.table()[[*PRINTED, "p"]]

    to_frame = table

    def headline(self) -> str:
        does = "raises" if len(self.gained) > len(self.lost) else "lowers"
        said = f"{self.second!r} {does} right answers" if self.sure else f"No change is shown for {self.second!r}"
        over = f" after Holm over {self.n_tests} comparisons" * (self.n_tests > 1)
        counts = "{} gained, {} lost of"
        if "McNemar" not in self.test:  # the mean may go the other way
            said, counts = f"{said}{' in most problems that change' * self.sure}", "more in {}, fewer in {} of"
        return (
            f"{said}: {100 * self.accuracy_second:.1f} % against {100 * self.accuracy_first:.1f} % under {self.first!r} "
            f"({self._points}, {counts.format(len(self.gained), len(self.lost))} "
            f"{counted(self.n, self.groups)}, p = {self.p_corrected:.2g}{over})."
        )

    @property
    def _points(self) -> str:
        points = 100 * float(self.difference.estimate)
        return f"{points:+.1f} points{limits_of(self.difference.low, self.difference.high, '+.1f', scale=100)}"

    def change(self) -> str:
        """Return the change in short: points, interval and p-value."""
        p = f"p = {self.p_corrected:.2g}{f' (Holm, {self.n_tests})' * (self.n_tests > 1)}{', not shown' * (not self.sure)}"
        return f"{self._points}, {p}"

    def details(self) -> list[str]:
        found = [f"{self.test[0].upper()}{self.test[1:]} over problems ({self.grader} grades)."]
        reach = 100 * max(abs(self.difference.low), abs(self.difference.high))
        words = f"{self.second!r}: with {counted(self.n, self.groups)}, a true difference of up to {reach:.1f} points fits too."
        return found if self.sure or np.isnan(reach) else [*found, words]


@dataclass(frozen=True, eq=False, repr=False)
class Comparisons(Result):
    """Several treatments against one reference; p-values are corrected over them."""

    reference: str
    grader: str
    comparisons: tuple[Comparison, ...]

    columns = Comparison.columns
    caption = "Each treatment against the same one, on the same problems."

    def table(self) -> pd.DataFrame:
        """Return one row per comparison."""
        return pd.concat([one.table() for one in self.comparisons], ignore_index=True)

    to_frame = table

    def headline(self) -> str:
        sure, n = [one for one in self.comparisons if one.sure], len(self.comparisons)
        if len(sure) > 1:
            counts = ((one, len(one.gained), len(one.lost)) for one in sure)
            told = (
                f"{one.second!r} {100 * one.difference.estimate:+.1f} ({up} gained, {down} lost)"
                for one, up, down in counts
            )
            return (
                f"{len(sure)} of {n} treatments change right answers against {self.reference!r} "
                f"({100 * sure[0].accuracy_first:.1f} % right), in points: {listed(told)}."
            )
        largest = max(self.comparisons, key=lambda one: np.nan_to_num(abs(one.difference.estimate), nan=-1))
        words = (sure or [largest])[0].headline()
        return words if n == 1 else f"{words[:-1]}; no difference is shown for {count_of(n - 1, 'other treatment')}."

    def details(self) -> list[str]:
        return [sentence for one in self.comparisons for sentence in (one.headline(), *one.details())]

    def printed(self) -> pd.DataFrame:
        return self.table()[[*PRINTED, "p_corrected"]]


@dataclass(frozen=True, eq=False, repr=False)
class AccuracyResults(Result):
    """Graded answers of the same problems under several treatments.

    `correct[grader]`, `boxed`, `cut_off` (1 or 0) and `n_tokens` (of the completion) are `[problem, treatment, sample]`.
    `completions[problem][treatment][sample]` is the text; `decided` says what settled each strict grade.
    """

    problem_ids: tuple[str, ...]
    treatments: tuple[str, ...]
    correct: dict[str, np.ndarray]
    boxed: np.ndarray
    cut_off: np.ndarray
    n_tokens: np.ndarray
    completions: tuple[tuple[tuple[str, ...], ...], ...]
    decided: np.ndarray
    golds: tuple[str, ...] = ()
    seed: int = 0
    confidence: float = statistics.CONFIDENCE

    picture = "accuracy_bars"
    columns = (
        columns_of("""
        accuracy | right | rate | share of right answers, strictly graded
        paper | right, paper's grader | rate | share of right answers as the paper's own rule grades
        boxed | boxed | share | share of answers with a \\boxed{} result
        cut_off | cut off | share | share of answers that ran into the longest length
        gave_up | undecided | share | share of grades that nothing decided; they count as wrong
    """)
        + Comparison.columns
    )

    @classmethod
    def from_rows(
        cls,
        rows: Iterable[Mapping[str, Any]],
        *,
        problem_ids: Sequence[str],
        treatments: Sequence[str],
        n_samples: int = 1,
        **fields: Any,
    ) -> "AccuracyResults":
        """Make results from finished answers in any order, one mapping each with problem, treatment, sample, completion,
        decided and `NUMBERS`; `ValueError` where one is missing. `fields`: golds, groups, settings, seed."""
        shape = (len(problem_ids), len(treatments), n_samples)
        numbers: Arguments = {name: np.full(shape, np.nan) for name in NUMBERS}
        texts, decided = np.full(shape, None, dtype=object), np.full(shape, "", dtype="<U16")
        first, second = ({name: at for at, name in enumerate(names)} for names in (problem_ids, treatments))
        for row in rows:
            at = first[row["problem"]], second[row["treatment"]], int(row["sample"])
            for name, array in numbers.items():
                array[at] = float(row[name])
            decided[at], texts[at] = row["decided"], str(row["completion"])
        if missing := sum(text is None for text in texts.flat):
            raise ValueError(f"{missing} of {texts.size} answers are missing: leave out the problems that lack one")
        return cls(
            problem_ids=tuple(problem_ids),
            treatments=tuple(treatments),
            correct={name: numbers.pop(name) for name in GRADERS},
            completions=tuple(tuple(map(tuple, problem)) for problem in texts.tolist()),
            decided=decided,
            **numbers,
            **fields,
        )

    @property
    def n_samples(self) -> int:
        """Answers per problem and treatment."""
        return self.n_tokens.shape[2]

    def share_right(self, *, grader: str = "strict") -> np.ndarray:
        """Return the share of a problem's samples that are right, `[problem, treatment]`."""
        return statistics.defined_mean(self._graded(grader), axis=2)

    def accuracy(self, *, grader: str = "strict") -> statistics.Interval:
        """Return accuracy of each treatment with its interval: Wilson's with one sample per problem, else that of the mean."""
        shares = self.by_group(self.share_right(grader=grader))
        n, right = len(shares), shares.sum(0)
        by_wilson = statistics.wilson(np.round(right).astype(int), n, confidence=self.confidence)
        if self.n_samples == 1 and not self.groups:
            return by_wilson
        found = statistics.mean_interval(shares, confidence=self.confidence, seed=self.seed)
        # the mean also where a single problem was run; Student's t may leave the range of a share
        low, high = np.clip(found.low, 0, 1), np.clip(found.high, 0, 1)
        found = replace(found, estimate=statistics.defined_mean(shares), low=low, high=high)
        if len(shares) < 2:
            return found
        # where all problems are always right, or never, any other interval would be a point
        certain = (right == 0) | (right == n)
        return replace(
            found,
            low=np.where(certain, by_wilson.low, found.low),
            high=np.where(certain, by_wilson.high, found.high),
            flag=np.where(certain, "all problems equal: Wilson", found.flag.astype("<U40")),
            method=f"{found.method} over problems",
        )

    def by_group(self, values: np.ndarray) -> np.ndarray:
        """Return shares `[problem, ...]` as those of groups: their problems' answers count as several answers to one."""
        return statistics.by_group(values, self.groups, mean=True)

    def pass_at(self, k: int, *, grader: str = "strict") -> np.ndarray:
        """Return unbiased pass@k of each treatment (Chen et al. 2021)."""
        found = statistics.pass_at_k(self._graded(grader).sum(2).astype(int), self.n_samples, k=k)
        return statistics.defined_mean(self.by_group(found))

    def table(self) -> pd.DataFrame:
        """Return one row per treatment: `accuracy` with its limits, of `n` problems, strictly graded, and as each other grader
        says; `pass_at_k` of all k samples, where there are several; shares, tokens."""
        strict = self.accuracy()
        columns: dict[str, object] = {"treatment": list(self.treatments), **interval_columns("accuracy", strict)}
        columns["n"] = strict.n
        for grader in GRADERS[1:]:
            columns |= interval_columns(grader, self.accuracy(grader=grader))
        if self.n_samples > 1:
            columns[f"pass_at_{self.n_samples}"] = self.pass_at(self.n_samples)
        for name in ("boxed", "cut_off", "n_tokens"):
            columns[name] = self._per_treatment(getattr(self, name))
        columns["gave_up"] = self._per_treatment((self.decided == GAVE_UP).astype(float))
        columns["flag"] = strict.flag
        return pd.DataFrame(columns)

    def to_frame(self) -> pd.DataFrame:
        """Return a row per problem, treatment and sample: grades, boxed, cut_off, n_tokens, decided, completion, gold."""
        axes = {"problem": self.problem_ids, "treatment": self.treatments, "sample": range(self.n_samples)}
        more = {name: getattr(self, name) for name in ("boxed", "cut_off", "n_tokens", "decided")}
        table = tidy(axes, **{grader: self.correct[grader] for grader in GRADERS}, **more)
        table["completion"] = [text for problem in self.completions for samples in problem for text in samples]
        if self.golds:
            table["gold"] = np.repeat(self.golds, len(table) // len(self.golds))
        return table

    def compare(self, first: str, second: str, *, grader: str = "strict") -> Comparison:
        """Return the second treatment against the first, on the same problems.

        The exact sign test of the problems whose share of right answers differs. With one sample per problem that is McNemar's
        test, and the difference has Tango's score interval; with several that of the mean change (t below 20 problems). Where
        the test does not reject, the interval holds 0.
        """
        shares = self.by_group(self.share_right(grader=grader))
        a, b = (shares[:, place_of(name, self.treatments, "treatment")] for name in (first, second))
        n, change = len(a), b - a
        known = np.array([*dict.fromkeys(self.groups or self.problem_ids)], dtype=object)
        gained, lost = known[change > ROUNDING], known[change < -ROUNDING]
        single = self.n_samples == 1 and not self.groups
        p = statistics.mcnemar(len(lost), len(gained))
        if single:
            difference = statistics.paired_difference(len(lost), len(gained), n, confidence=self.confidence)
        else:
            difference = _difference(change, p, seed=self.seed, confidence=self.confidence)
        return Comparison(
            first,
            second,
            groups=self.groups,
            grader=grader,
            accuracy_first=float(a.mean()),
            accuracy_second=float(b.mean()),
            difference=difference,
            p=p,
            test="exact McNemar test" if single else "exact sign test of the problems that differ",
            gained=tuple(gained),
            lost=tuple(lost),
            n=n,
            p_corrected=p,
        )

    def compare_all(self, reference: str | None = None, *, grader: str = "strict") -> Comparisons:
        """Return every other treatment against one, with Holm's correction over them; when none is named, against the one
        that the settings name as `reference`, or the first."""
        reference = str(self.settings.get("reference", self.treatments[0])) if reference is None else reference
        place_of(reference, self.treatments, "treatment")
        others = [name for name in self.treatments if name != reference]
        if not others:
            raise ValueError(f"there is only one treatment, {reference!r}: nothing to compare")
        found = [self.compare(reference, name, grader=grader) for name in others]
        both = zip(found, statistics.holm(np.array([one.p for one in found])), strict=True)
        made = (replace(one, p_corrected=float(each), n_tests=len(found)) for one, each in both)
        return Comparisons(reference, grader, tuple(made))

    def headline(self) -> str:
        if len(self.treatments) > 1:
            return self.compare_all().headline()
        row = self.table().iloc[0]
        limits = limits_of(row["accuracy_ci_low"], row["accuracy_ci_high"], ".1f", scale=100)
        n = counted(int(row["n"]), self.groups)
        return f"{100 * row['accuracy']:.1f} %{limits} of {n} are answered right under {row['treatment']!r}."

    def caveats(self) -> list[str]:
        cut = self.table().query("cut_off > 0.05")
        words = listed(f"{row.treatment} {100 * row.cut_off:.0f} %" for row in cut.itertuples())
        few = [f"Raise max_new_tokens, these grades may be too low: answers were cut off ({words})."] * bool(words)
        return [*few, *super().caveats()]

    def details(self) -> list[str]:
        samples = f", {self.n_samples} samples each" if self.n_samples > 1 else ""
        found = [
            f"Accuracy of {self.settings.get('model', 'a model')} on {self.counted}{samples}, "
            f"strictly graded, with {100 * self.confidence:g} % intervals over problems."
        ]
        found += extension_of(self.settings)
        if gave_up := int((self.decided == GAVE_UP).sum()):
            found.append(f"{gave_up} grades were not decided (out of time or memory) and count as wrong.")
        return [*found, *(self.compare_all().details() if len(self.treatments) > 1 else [])]

    def printed(self) -> pd.DataFrame:
        table = self.table()[["treatment", "accuracy", "accuracy_ci_low", "accuracy_ci_high", "n"]]
        if len(self.treatments) == 1:
            return table
        beside = self.compare_all().printed().astype({"gained": "Int64", "lost": "Int64"})
        return table.join(beside.set_index("second").drop(columns=["n", "accuracy_second"]), on="treatment")

    def shown(self) -> Shown:
        printed, table = self.printed(), self.table()
        table = printed.join(table.drop(columns=printed.columns, errors="ignore"))
        against = f"; changes against {self.compare_all().reference!r}" if len(self.treatments) > 1 else ""
        caption = f"Answers by treatment: shares of problems, graded strictly, and as the paper grades{against}."
        return Shown((ShownTable(table, caption, dict.fromkeys(table, "") | {"n_tokens": "tokens of an answer"}),))

    def _graded(self, grader: str) -> np.ndarray:
        place_of(grader, self.correct, "grader")
        return self.correct[grader]

    def _per_treatment(self, values: np.ndarray) -> np.ndarray:
        return statistics.defined_mean(self.by_group(statistics.defined_mean(values, axis=2)))


def _difference(change: np.ndarray, p: float, *, seed: int, confidence: float) -> statistics.Interval:
    """Return the mean change and its interval within -1 and 1: holding 0 where the test does not reject; where all problems
    change alike, as far as the share of others that they do not rule out can move the mean."""
    n, found = len(change), statistics.mean_interval(change, confidence=confidence, seed=seed)
    low, high = max(float(found.low), -1.0), min(float(found.high), 1.0)
    if n > 1 and np.ptp(change) < ROUNDING:
        others, flag = (
            1 - ((1 - confidence) / 2) ** (1 / n),
            "no problem changed" if not change.any() else "all change alike",
        )
        low, high = (float(change[0]) + others * (end - float(change[0])) for end in (-1, 1))
        found = replace(found, flag=np.asarray(f"{flag}: exact bound"), method="exact bound")
    if n > 1 and not p < 1 - confidence:
        low, high = min(low, 0.0), max(high, 0.0)
    return replace(found, low=np.asarray(low), high=np.asarray(high))
