"""`AccuracyResults`: what was answered under each treatment, graded, `[problem, treatment, sample]`."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import pandas as pd

from ..core.arguments import count_of, listed
from ..models.sites import extension_of
from ..runtime.columns import columns_of
from ..runtime.results import Result, Shown, ShownTable, interval_columns, limits_of
from ..statistics import CONFIDENCE, Interval, by_group, defined_mean, holm, pass_at_k
from .comparisons import RIGHT, Comparison, Comparisons, accuracy_interval, compare_answers
from .graders import GRADERS, OPEN

ROW = ("problem", "treatment", "sample", "completion", *GRADERS, "boxed", "decided", "cut_off", "n_tokens")
"""The keys of one finished answer, as `AccuracyResults.from_rows` reads them."""


@dataclass(frozen=True, eq=False, repr=False)
class AccuracyResults(Result):
    """Graded answers of the same problems under several treatments.

    `correct[grader]`, `boxed`, `cut_off` (1 or 0) and `n_tokens` (length of the completion) are `[problem, treatment,
    sample]`, NaN where nothing was run. `completions[problem][treatment][sample]` is the text, None where not run;
    `decided` says what settled each strict grade ("" where not run). `golds` are the answer key's entries.
    """

    problem_ids: tuple[str, ...]
    treatments: tuple[str, ...]
    correct: dict[str, np.ndarray]
    boxed: np.ndarray
    cut_off: np.ndarray
    n_tokens: np.ndarray
    completions: tuple[tuple[tuple[str | None, ...], ...], ...]
    decided: np.ndarray
    golds: tuple[str, ...] = ()
    settings: dict[str, Any] = field(default_factory=dict)
    seed: int = 0
    confidence: float = CONFIDENCE
    axes: ClassVar = tuple(
        (name, "problem treatment sample") for name in ("correct", "boxed", "cut_off", "n_tokens", "decided")
    )

    picture = "accuracy_bars"
    columns = columns_of("""
        accuracy | right | share | share of right answers, strictly graded
        paper | right, paper's grader | share | share of right answers as the paper's own rule grades
        boxed | boxed | share | share of answers with a \\boxed{} result
        cut_off | cut off | share | share of answers that ran into the longest length
        gave_up | undecided | share | share of grades that nothing decided; they count as wrong
        n_missing | not run | | answers that are missing
    """)

    def __post_init__(self) -> None:
        self.check_axes()

    @classmethod
    def from_rows(
        cls,
        rows: Iterable[Mapping[str, Any]],
        *,
        problem_ids: Sequence[str],
        treatments: Sequence[str],
        n_samples: int = 1,
        golds: Sequence[str] = (),
        groups: tuple[str, ...] = (),
        settings: dict[str, Any] | None = None,
        seed: int = 0,
    ) -> "AccuracyResults":
        """Results from finished answers in any order, one mapping with the keys `ROW` each; the others count as not run."""
        shape = (len(problem_ids), len(treatments), n_samples)
        numbers = {name: np.full(shape, np.nan) for name in (*GRADERS, "boxed", "cut_off", "n_tokens")}
        decided = np.full(shape, "", dtype="<U16")
        texts: list[list[list[str | None]]] = [[[None] * n_samples for _ in treatments] for _ in problem_ids]
        first, second = ({name: at for at, name in enumerate(names)} for names in (problem_ids, treatments))
        for row in rows:
            at = first[row["problem"]], second[row["treatment"]], int(row["sample"])
            for name, array in numbers.items():
                array[at] = float(row[name])
            decided[at] = row["decided"]
            texts[at[0]][at[1]][at[2]] = str(row["completion"])
        return cls(
            problem_ids=tuple(problem_ids),
            treatments=tuple(treatments),
            correct={name: numbers[name] for name in GRADERS},
            boxed=numbers["boxed"],
            cut_off=numbers["cut_off"],
            n_tokens=numbers["n_tokens"],
            completions=tuple(tuple(tuple(samples) for samples in problem) for problem in texts),
            decided=decided,
            golds=tuple(golds),
            groups=groups,
            settings=settings or {},
            seed=seed,
        )

    @property
    def graders(self) -> tuple[str, ...]:
        """Who graded, the strict one first."""
        return tuple(name for name in GRADERS if name in self.correct)

    @property
    def n_samples(self) -> int:
        """Answers per problem and treatment."""
        return self.n_tokens.shape[2] if self.n_tokens.ndim == 3 else 0

    def share_right(self, *, grader: str = "strict") -> np.ndarray:
        """Share of a problem's samples that are right, `[problem, treatment]`; NaN where none was run."""
        return defined_mean(self._graded(grader), axis=2)

    def accuracy(self, *, grader: str = "strict") -> Interval:
        """Accuracy of each treatment with its interval: Wilson's with one sample per problem, else bootstrapped over
        problems (Wilson's over problems where all of them are always right, or never)."""
        shares = self.share_right(grader=grader)
        sampled = self.n_samples > 1 or bool(self.groups)
        return accuracy_interval(self.by_group(shares), sampled=sampled, confidence=self.confidence, seed=self.seed)

    def by_group(self, values: np.ndarray) -> np.ndarray:
        """Return shares `[problem, ...]` as those of groups: their problems' answers count as several answers to one."""
        return by_group(values, self.groups, mean=True)

    def pass_at(self, k: int, *, grader: str = "strict") -> np.ndarray:
        """Unbiased pass@k of each treatment (Chen et al. 2021), over the problems with at least k samples; NaN without."""
        graded = self._graded(grader)
        done = ~np.isnan(graded)
        n, right = done.sum(2), np.where(done, graded, 0.0).sum(2).astype(int)
        if not 1 <= k <= self.n_samples:
            raise ValueError(f"pass@{k} needs k from 1 to the {self.n_samples} samples of each problem")
        found = np.full(n.shape, np.nan)
        enough = n >= k
        found[enough] = pass_at_k(right[enough], n[enough], k=k)
        return defined_mean(self.by_group(found))

    def table(self, *, pass_at: Sequence[int] | None = None) -> pd.DataFrame:
        """One row per treatment: `accuracy` with its limits, of `n` problems, strictly graded, and as each other grader says;
        `pass_at_k` for each k of `pass_at` (all samples, when there are several); shares, tokens, answers not run."""
        strict = self.accuracy()
        columns: dict[str, Any] = {"treatment": list(self.treatments)} | interval_columns("accuracy", strict)
        columns["n"] = strict.n
        for grader in self.graders[1:]:
            columns |= interval_columns(grader, self.accuracy(grader=grader))
        for k in pass_at if pass_at is not None else ((self.n_samples,) if self.n_samples > 1 else ()):
            columns[f"pass_at_{k}"] = self.pass_at(k)
        run = ~np.isnan(self.correct["strict"])
        for name in ("boxed", "cut_off", "n_tokens"):
            columns[name] = self._per_treatment(getattr(self, name))
        columns["gave_up"] = self._per_treatment(np.where(run, np.isin(self.decided, OPEN).astype(float), np.nan))
        columns["n_missing"] = (~run).sum((0, 2))
        columns["flag"] = strict.flag
        return pd.DataFrame(columns)

    def to_frame(self) -> pd.DataFrame:
        """One tidy row per problem, treatment and sample: grades, boxed, cut_off, n_tokens, decided, completion, gold."""
        n_problems, n_treatments, n_samples = self.boxed.shape
        rows = n_treatments * n_samples
        columns: dict[str, Any] = {
            "problem": np.repeat(self.problem_ids, rows),
            "treatment": np.tile(np.repeat(self.treatments, n_samples), n_problems),
            "sample": np.tile(np.arange(n_samples), n_problems * n_treatments),
        }
        columns |= {grader: self.correct[grader].ravel() for grader in self.graders}
        columns |= {name: getattr(self, name).ravel() for name in ("boxed", "cut_off", "n_tokens", "decided")}
        columns["completion"] = [text for problem in self.completions for samples in problem for text in samples]
        if self.golds:
            columns["gold"] = np.repeat(self.golds, rows)
        return pd.DataFrame(columns)

    def compare(self, first: str, second: str, *, grader: str = "strict", n_tests: int = 1) -> Comparison:
        """The second treatment against the first, on the problems that both answered.

        The exact sign test of the problems whose share of right answers differs. With one sample per problem that is McNemar's
        test, and the difference has Tango's score interval; with several that of the mean change (t below 20 problems). Where
        the test does not reject, the interval holds 0. `n_tests`: how many comparisons are made together, which the smallest
        detectable change allows for.
        """
        graded = self._graded(grader)
        a, b = (graded[:, self._place(name)] for name in (first, second))
        return compare_answers(
            a,
            b,
            names=(first, second),
            ids=self.problem_ids,
            groups=self.groups,
            grader=grader,
            n_tests=n_tests,
            seed=self.seed,
            confidence=self.confidence,
        )

    def compare_all(self, reference: str | None = None, *, grader: str = "strict") -> Comparisons:
        """Every other treatment against one (the first, when not named), with Holm's correction over them."""
        reference = self.treatments[0] if reference is None else reference
        self._place(reference)
        others = [name for name in self.treatments if name != reference]
        if not others:
            raise ValueError(f"there is only one treatment, {reference!r}: nothing to compare")
        found = [self.compare(reference, name, grader=grader, n_tests=len(others)) for name in others]
        p = np.array([one.p for one in found])
        corrected = holm(p) if not np.isnan(p).all() else p
        return Comparisons(
            reference=reference, grader=grader, comparisons=tuple(found), p_corrected=np.asarray(corrected)
        )

    def headline(self) -> str:
        """Return which treatments change right answers, against the first."""
        if len(self.treatments) > 1:
            return self.compare_all().headline()
        row = self.table().iloc[0]
        limits = limits_of(row["accuracy_ci_low"], row["accuracy_ci_high"], ".1f", scale=100)
        n = count_of(int(row["n"]), "problem")
        return f"{100 * row['accuracy']:.1f} %{limits} of {n} are answered right under {row['treatment']!r}."

    def caveats(self) -> list[str]:
        """Return which answers were cut off."""
        cut = self.table().query("cut_off > 0.05")
        words = listed(f"{row.treatment} {100 * row.cut_off:.0f} %" for row in cut.itertuples())
        few = [f"Cut off before an end: {words}; raise the number of new tokens, or these grades are too low."]
        return [*few * bool(len(cut)), *super().caveats()]

    def details(self) -> list[str]:
        """Return what was run, what is missing, and every comparison with the first treatment."""
        table = self.table()
        samples = f", {self.n_samples} samples each" if self.n_samples > 1 else ""
        found = [
            f"Accuracy of {self.settings.get('model', 'a model')} on {count_of(len(self.problem_ids), 'problem')}{samples}, "
            f"strictly graded, with {100 * self.confidence:g} % intervals over problems."
        ]
        found += extension_of(self.settings)
        missing, gave_up = int(table["n_missing"].sum()), int(np.isin(self.decided, OPEN).sum())
        if missing:
            found.append(f"Left out, as not run: {count_of(missing, 'answer')}.")
        if gave_up:
            found.append(f"{gave_up} grades were not decided (out of time or memory) and count as wrong.")
        return [*found, *(self.compare_all().details() if len(self.treatments) > 1 else [])]

    def printed(self) -> pd.DataFrame:
        """Return right answers by treatment, and how they differ from those under the first."""
        table = self.table()[list(RIGHT)]
        if len(self.treatments) == 1:
            return table
        beside = self.compare_all().printed().astype({"gained": "Int64", "lost": "Int64"})
        return table.join(beside.set_index("second").drop(columns=["n", "accuracy_second"]), on="treatment")

    def shown(self) -> Shown:
        """The table."""
        table = self.table()
        caption = "Answers by treatment: shares of problems, graded strictly, and as the paper grades."
        named = dict.fromkeys(table.columns, "") | {"n_tokens": "tokens of an answer"}
        return Shown((ShownTable(table, caption, named),))

    def _graded(self, grader: str) -> np.ndarray:
        if grader not in self.correct:
            raise ValueError(f"no grader {grader!r}; there are {', '.join(self.correct)}")
        return self.correct[grader]

    def _place(self, treatment: str) -> int:
        if treatment not in self.treatments:
            raise ValueError(f"no treatment {treatment!r} here; there are {', '.join(map(repr, self.treatments))}")
        return self.treatments.index(treatment)

    def _per_treatment(self, values: np.ndarray) -> np.ndarray:
        """Mean over samples, then over groups' problems, then over groups."""
        return defined_mean(self.by_group(defined_mean(values, axis=2)))
