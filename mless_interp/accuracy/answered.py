"""`AccuracyResults`: what was answered under each treatment, graded, `[problem, treatment, sample]`."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from ..arguments import count_of
from ..grading.graders import GRADERS, OPEN
from ..models.mlp_activations import extension_of
from ..running.results import Result, Shown, ShownTable
from ..statistics import CONFIDENCE, Interval, by_group, defined_mean, holm, pass_at_k
from .comparisons import Comparison, Comparisons, compare_answers
from .intervals import accuracy_interval
from .linked import LinkedAccuracy, link

ROW = ("problem", "treatment", "sample", "completion", *GRADERS, "boxed", "decided", "cut_off", "n_tokens")
"""The keys of one finished answer, as `AccuracyResults.from_rows` reads them."""


@dataclass(frozen=True, eq=False, repr=False)
class AccuracyResults(Result, renamed={"conditions": "treatments"}):
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

    def __post_init__(self) -> None:
        check_names(self.problem_ids, "problem id")
        check_names(self.treatments, "treatment")
        if GRADERS[0] not in self.correct or not set(self.correct) <= set(GRADERS):
            raise ValueError(
                f"correct needs grader {GRADERS[0]} and may have others of {', '.join(GRADERS)}, got "
                f"{', '.join(self.correct) or 'none'}"
            )
        arrays = self.correct | {"boxed": self.boxed, "cut_off": self.cut_off, "n_tokens": self.n_tokens}
        expected = (len(self.problem_ids), len(self.treatments), self.n_samples)
        for name, array in (*arrays.items(), ("decided", self.decided)):
            if array.shape != expected:
                raise ValueError(f"{name} must be [problem, treatment, sample] = {expected}, got shape {array.shape}")
        for name in (*self.correct, "boxed", "cut_off"):
            if not np.isin(arrays[name][~np.isnan(arrays[name])], (0.0, 1.0)).all():
                raise ValueError(f"{name} must be 1, 0 or NaN (not run)")
        if self.golds and len(self.golds) != len(self.problem_ids):
            raise ValueError(f"{len(self.problem_ids)} problems but {len(self.golds)} gold answers")
        shape = {len(self.completions), len(self.problem_ids)}, {len(c) for c in self.completions}
        if shape != ({len(self.problem_ids)}, {len(self.treatments)}):
            raise ValueError("completions must be nested as [problem][treatment][sample]")

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
        check_names(problem_ids, "problem id")
        check_names(treatments, "treatment")
        shape = (len(problem_ids), len(treatments), n_samples)
        numbers = {name: np.full(shape, np.nan) for name in (*GRADERS, "boxed", "cut_off", "n_tokens")}
        decided = np.full(shape, "", dtype="<U16")
        texts: list[list[list[str | None]]] = [[[None] * n_samples for _ in treatments] for _ in problem_ids]
        places = {p: i for i, p in enumerate(problem_ids)}, {c: i for i, c in enumerate(treatments)}
        for number, row in enumerate(rows):
            missing = [key for key in ROW if key not in row]
            if missing:
                raise ValueError(f"answer {number} lacks {', '.join(missing)}; an answer has the keys {', '.join(ROW)}")
            where = f"answer {number} ({row['problem']!r}, {row['treatment']!r}, sample {row['sample']!r})"
            if row["problem"] not in places[0] or row["treatment"] not in places[1]:
                raise ValueError(f"{where} belongs to none of these problems and treatments ({', '.join(treatments)})")
            if row["sample"] not in range(n_samples):
                raise ValueError(f"{where}: samples are counted from 0 to {n_samples - 1}")
            at = places[0][row["problem"]], places[1][row["treatment"]], int(row["sample"])
            if decided[at]:
                raise ValueError(f"{where} is there twice")
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

    def summary(self, *, pass_at: Sequence[int] | None = None) -> pd.DataFrame:
        """One row per treatment.

        `accuracy`, `low`, `high`, `n` (problems): strictly graded; each other grader with its own `_low`, `_high`;
        `pass_at_k` for each k of `pass_at` (all samples, when there are several); shares `boxed`, `cut_off`,
        `gave_up` (grades that nothing decided, which count as wrong); mean `n_tokens`; `n_missing` answers not run; `flag`.
        """
        strict = self.accuracy()
        columns: dict[str, Any] = {
            "treatment": list(self.treatments),
            "accuracy": strict.estimate,
            "low": strict.low,
            "high": strict.high,
            "n": strict.n,
        }
        for grader in self.graders[1:]:
            found = self.accuracy(grader=grader)
            columns |= {grader: found.estimate, f"{grader}_low": found.low, f"{grader}_high": found.high}
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

    def compare(self, first: str, second: str, *, grader: str = "strict") -> Comparison:
        """The second treatment against the first, on the problems that both answered.

        Do more problems gain than lose? The exact sign test of the problems whose share of right answers differs. With one
        sample per problem that is McNemar's test, and the difference has Tango's score interval; with several the interval
        is that of the mean change (t below 20 problems), which it describes. Where the test does not reject, the interval
        holds 0. Variants of one problem (`groups`) count as several samples of one.
        """
        return self._compared(first, second, grader=grader, n_tests=1)

    def _compared(self, first: str, second: str, *, grader: str, n_tests: int) -> Comparison:
        if first == second:
            raise ValueError(f"two different treatments are compared, got {first!r} twice")
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
        found = [self._compared(reference, name, grader=grader, n_tests=len(others)) for name in others]
        p = np.array([one.p for one in found])
        corrected = holm(p) if not np.isnan(p).all() else p
        return Comparisons(reference=reference, grader=grader, comparisons=tuple(found), p_holm=np.asarray(corrected))

    def linked(
        self,
        scores: Any,
        *,
        reference: str | None = None,
        treatments: Sequence[str] | None = None,
        metrics: Sequence[str] | None = None,
        grader: str = "strict",
    ) -> LinkedAccuracy:
        """Which heads' scores go with a changed answer: every problem and treatment beside the scores of each head.

        `scores`: `HeadScores` (`metrics`: span mass, when not named), `PatchScores`, `HeadAttribution` or `LocatedHeads`
        of the same problems. A problem changes where most of its samples are right under `reference` (the first
        treatment, when not named) and not under the other, or the reverse.
        """
        reference = self.treatments[0] if reference is None else reference
        self._place(reference)
        chosen = [name for name in self.treatments if name != reference] if treatments is None else list(treatments)
        check_names(chosen, "treatment")
        for name in chosen:
            self._place(name)
        if not chosen or reference in chosen:
            raise ValueError(f"name treatments other than the reference {reference!r}, got {chosen}")
        shares = self.share_right(grader=grader)
        return link(
            scores,
            shares={name: shares[:, self._place(name)] for name in (reference, *chosen)},
            problem_ids=self.problem_ids,
            groups=self.groups,
            metrics=metrics,
            grader=grader,
            seed=self.seed,
        )

    def bars(self, published: pd.DataFrame | None = None) -> pd.DataFrame:
        """What the bar chart shows: treatment, accuracy, low, high, n, and source ("measured").

        `published`: a table of `mi.paper.published(model=..., benchmark=...)`, added as rows whose source is the paper's
        table, without intervals (the paper prints none).
        """
        measured = self.summary()[["treatment", "accuracy", "low", "high", "n"]].assign(source="measured")
        if published is None:
            return measured
        printed = pd.DataFrame(
            {
                "treatment": published["treatment"],
                "accuracy": published["percent"] / 100,
                "low": np.nan,
                "high": np.nan,
                "n": np.nan,
                "source": published["source"],
            }
        )
        return pd.concat([measured, printed], ignore_index=True)

    def sentences(self) -> list[str]:
        """What was run, and what is missing or suspicious."""
        table = self.summary()
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
        cut = table.loc[table["cut_off"] > 0.05, ["treatment", "cut_off"]]
        if len(cut):
            listed = ", ".join(f"{name} {100 * share:.0f} %" for name, share in cut.to_numpy())
            found.append(
                f"Cut off before an end: {listed}; raise the number of new tokens, or these grades are too low."
            )
        return found

    def printed(self) -> pd.DataFrame:
        """The strict grades with their intervals, the other graders beside them."""
        table = self.summary()
        at_k = [name for name in table if name.startswith("pass_at_")]
        wanted = ["treatment", "accuracy", "low", "high", "n", *self.graders[1:], *at_k, "boxed", "cut_off", "n_tokens"]
        return table[wanted]

    def shown(self) -> Shown:
        """The summary as a table."""
        table = self.summary()
        caption = (
            "Answers by treatment: shares of problems, strictly graded and beside it leniently and as the paper grades."
        )
        named = dict.fromkeys(table.columns, "") | {"n_tokens": "tokens of an answer"}
        return Shown((ShownTable(table, caption, named),))

    def __repr__(self) -> str:
        shown = super().__repr__()
        return f"{shown}\n{self.compare_all()!r}" if len(self.treatments) > 1 else shown

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


def check_names(names: Sequence[str], what: str) -> None:
    """At least one name, and none twice."""
    if not names:
        raise ValueError(f"at least one {what} is needed")
    twice = (
        [name for name in dict.fromkeys(names) if list(names).count(name) > 1] if len(set(names)) < len(names) else []
    )
    if twice:
        raise ValueError(f"every {what} is named once, but {', '.join(map(repr, twice))} came twice or more")
