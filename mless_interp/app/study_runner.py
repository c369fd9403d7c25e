"""Studies: read what one file asks (`read_study`), measure every insertion alike (`run_study`): `StudyResult`."""

import re
import tomllib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pandas as pd

from .. import statistics
from ..answers import AccuracyResults, Treatment, evaluate_accuracy
from ..answers.evaluate import check_answers
from ..circuits.judge import few_problems
from ..circuits.locate import locate_heads
from ..circuits.located import LocatedHeads, by_kind
from ..core.arguments import Arguments, check_count, checked, count_of, listed, nearest, one_of, several_of
from ..core.heads import Head
from ..models.base import Model
from ..models.load import load_model
from ..patching.outcomes import outcome_named
from ..patching.prepared import prepare
from ..patching.sweep import PatchScores, patch_heads
from ..prompts.conditions import CONTRASTS
from ..prompts.insertions import AT, KINDS, Insertion
from ..prompts.pairs import PromptPair, make_pairs
from ..prompts.problems import Problem, groups_of, whole_groups
from ..prompts.prompt import template_named
from ..runtime.base_result import Result, Shown, ShownTable, interval_columns, limits_of, of_heads
from ..runtime.checkpoint import key_of
from ..runtime.columns import columns_of
from ..runtime.loop import progress_bar
from ..runtime.text_safety import one_line
from ..runtime.workers import ShardDone
from ..scores.catalogue import metric_named
from ..scores.score import HeadScores, score_heads
from ..statistics import CONFIDENCE, defined_mean
from . import INCLUDED
from .command_line import problems_of

NONE = "none"  # the treatment that answers under insertions are compared with
ANY_PROBLEMS = (Problem("a", "one", "1"), Problem("b", "two", "2"))  # stand for problems that are not known yet
LONGEST_SLUG = 80  # letters; a file system takes 255 bytes
ANY_HEAD = (Head(0, 0),)  # a sweep of one head has the whole effect as well
ROW = ("name", "kind", "unit", "n_tokens", *AT)  # the keys of an insertion: a name, and what `Insertion.named` takes
SPAN_MASS = "span_mass"  # the attention that every study reports: the later rows' share on the inserted tokens
Found = TypeVar("Found")


@checked
@dataclass(frozen=True, kw_only=True)
class Study:
    """Hold everything that a study asks; made of a file by `read_study`.

    `limit` problems are measured; `metrics` of attention, `span_mass` first (none: it is left out); `heads` "all": heads are
    named on them by `locate_heads` and tested on `confirm` fresh ones (0: not); the first `answers` problems are answered (0:
    none). The first of `seeds` is that of all that is drawn; drawn insertions have a row for each. `source` and `claims`:
    where the question comes from, and what is claimed there.
    """

    title: str
    insertions: tuple[Mapping[str, Any], ...]
    source: str = ""
    claims: str = ""
    model: str = "demo"
    problems: str | None = None
    template: str = "raw"
    limit: int = 32
    contrasts: tuple[str, ...] = ("content", "shift")
    outcome: str = "answer_logprob"
    seeds: tuple[int, ...] = (0,)
    metrics: tuple[str, ...] = (SPAN_MASS,)
    heads: str = "none"
    confirm: int = 0
    answers: int = 0
    max_new_tokens: int | None = None

    def __post_init__(self) -> None:
        several_of(self.contrasts, CONTRASTS, "contrast")
        outcome_named(self.outcome, signed_for="a study")
        if not self.seeds or min(self.seeds) < 0 or len(set(self.seeds)) < len(self.seeds):
            raise ValueError(f"seeds must be one or more different numbers, 0 or more, got {list(self.seeds)}")
        one_of(self.heads, ("none", "all"), "choice of heads")
        template_named(self.template)
        for metric in self.metrics:
            if metric_named(metric).kind == "paired":
                raise ValueError(
                    f"metric {metric!r} compares two runs, and a study scores one, with the insertion: leave it out"
                )
        if self.metrics and (self.metrics[0] != SPAN_MASS or len(set(self.metrics)) < len(self.metrics)):
            raise ValueError(f"metrics must be none, or {SPAN_MASS} and then others, got {list(self.metrics)}")
        check_count(self.limit, name="limit", at_least=2)
        for name in ("confirm", "answers"):
            if (count := getattr(self, name)) < 0 or count == 1:
                raise ValueError(f"{name} takes 2 or more problems, or 0, got {count}")
        if self.confirm and self.heads == "none":
            raise ValueError('confirm tests named heads on fresh problems, so it needs heads = "all"')
        if not self.insertions:
            raise ValueError("a study needs insertions: write [[insertions]] with a name and a kind")
        for at, row in enumerate(self.insertions):
            _of(str(row.get("name", at)), _check_keys, row, ROW, ("name", "kind"))
        slugs = [NONE, *(slug(row.name) for row in self.rows(ANY_PROBLEMS))]
        if twice := [each for each in slugs if slugs.count(each) > 1]:
            why = f"case and signs make no difference, and {NONE!r} is the one without an insertion"
            raise ValueError(f"two treatments are named {twice[0]!r} ({why})")

    @property
    def n_problems(self) -> int:
        """Count the problems that the study takes."""
        return max(self.limit + self.confirm, self.answers)

    @property
    def n_read(self) -> int | None:
        """Count the problems to read: all (None) where insertions draw from them, so that draws do not depend on `limit`."""
        return None if any(each["kind"] == "other_questions" for each in self.insertions) else self.n_problems

    def rows(self, problems: Iterable[Problem]) -> list[Treatment]:
        """Return every row's insertion, named, and as it is answered: one for each seed where it is drawn."""
        problems, found = tuple(problems), []
        for asked in self.insertions:
            name, how = asked["name"], {key: value for key, value in asked.items() if key != "name"}
            seeds = self.seeds if _of(name, one_of, asked["kind"], KINDS, "insertion").drawn else self.seeds[:1]
            for seed in seeds:
                made = _of(name, Insertion.named, **how, seed=seed, problems=problems)
                found.append(Treatment(made, name=name if len(seeds) == 1 else f"{name}, seed {seed}"))
        return found

    def with_changes(self, *, n_tokens: int | None = None, **changes: Any) -> "Study":
        """Return the same study with what is not None in place of its own; `n_tokens` in every counted insertion."""
        given = {name: value for name, value in changes.items() if value is not None}
        if n_tokens is not None:
            counted = [{**row, "n_tokens": n_tokens} if KINDS[row["kind"]].counted else row for row in self.insertions]
            given["insertions"] = tuple(counted)
        return replace(self, **given)

    def in_order(self, problems: Sequence[Problem]) -> tuple[Problem, ...]:
        """Return the problems that the study takes (no group is both measured and fresh), and behind them all others;
        `ValueError` where they are too few."""
        taken = whole_groups(problems, self.limit, self.n_problems - self.limit)[: self.n_problems]
        if len(taken) < self.n_problems:
            asked = f"limit {self.limit}, confirm {self.confirm} and answers {self.answers}"
            raise ValueError(f"{asked} need {self.n_problems} problems, there are {len(taken)}: ask for fewer")
        chosen = {each.id for each in taken}
        return (*taken, *(each for each in problems if each.id not in chosen))


def slug(name: str) -> str:
    """Return a row's name as that of a file: "random words, seed 1" as random-words-seed-1, "/" and long ones by a digest."""
    words = re.sub(r"\W+", "-", name).strip("-").lower()
    return words if 0 < len(words) <= LONGEST_SLUG else key_of(name)


@checked
def read_study(study: str | Path | Mapping[str, object] | Study) -> Study:
    """Read a study: an included one by its name (`mless-interp study` lists them), a .toml file, or a mapping of what it holds.

    Raises `ValueError` or `TypeError` that name the file for unknown and missing keys and values that make no sense,
    `FileNotFoundError` where there is no such file. Nothing is loaded for it.
    """
    if isinstance(study, Study):
        return study
    if isinstance(study, Mapping):
        return _study(study)
    path = INCLUDED.get(str(study), Path(study))
    if not path.is_file():
        meant = nearest(study, INCLUDED)
        raise FileNotFoundError(f"no study at {str(path)!r}{meant}: give a .toml file, or one of {', '.join(INCLUDED)}")
    try:
        return _study(tomllib.loads(path.read_text(encoding="utf-8-sig")))
    except (ValueError, TypeError) as error:  # what is no TOML is a ValueError too
        raise (TypeError if isinstance(error, TypeError) else ValueError)(f"{path.name}: {error}") from error


def _study(told: Mapping[str, Any]) -> Study:
    rows = told.get("insertions", ())
    if not isinstance(rows, Sequence) or not all(isinstance(each, Mapping) for each in rows):
        raise TypeError("insertions must be tables: write [[insertions]] with a name and a kind for each")
    _check_keys(told, Study.__dataclass_fields__, ("title",))
    return Study(**{"insertions": (), **told})


def _check_keys(told: Mapping[str, Any], known: Collection[str], needed: Iterable[str]) -> None:
    for key in told:
        one_of(key, known, "key")
    for key in needed:
        if key not in told:
            raise ValueError(f"the key {key!r} is missing")


def _of(insertion: str, do: Callable[..., Found], *given: object, **options: Any) -> Found:
    try:
        return do(*given, **options)
    except (ValueError, TypeError) as error:
        raise type(error)(f"insertion {insertion!r}: {error}") from error


OF_EFFECTS = """
    {0}_median | {0}, median effect | | median over problems of what the contrast does to the outcome ({1})
    {0}_k | {0}, problems | of {0}_n | problems in which the effect has the median's sign, beyond rounding ({1})
    {0}_n | {0}, n | later | problems where the outcome is defined ({1})
    {0}_p | {0}, p, corrected | p | that most problems show one sign (sign test; Holm over all effects of the study) ({1})
    {0}_n_undefined | {0}, undefined | | problems where the outcome is not defined ({1})
"""


@dataclass(frozen=True, eq=False, repr=False)
class StudyResult(Result):
    """Hold effects, attention, heads and answers of several insertions on the same problems.

    `effects[insertion][contrast]` is a `PatchScores`, of which the whole effect is read (`total_effect`, `whole`);
    `attention[insertion]` a `HeadScores`, `located[insertion]` a `LocatedHeads`, `answers` an `AccuracyResults` with a
    treatment for each insertion after `none`; empty or None where the study does not ask for them.
    """

    title: str
    source: str
    claims: str
    problem_ids: tuple[str, ...]
    insertions: tuple[str, ...]
    contrasts: tuple[str, ...]
    outcome: str
    effects: dict[str, dict[str, PatchScores]]
    attention: dict[str, HeadScores]
    located: dict[str, LocatedHeads]
    answers: AccuracyResults | None = None
    confidence: float = CONFIDENCE

    picture = "study_effects"
    columns = (
        columns_of("""
        inserts | inserts | | which tokens, how many, and where if not before the question
        insertion | insertion | | its name in the study
        contrast | contrast | | the two runs that are compared
        most_read_by | most read by | | the head with the largest share of attention on the inserted tokens, mean over problems
        shown_again | heads confirmed | | heads that were named and pass again on fresh problems
        answers_n | answered | | problems answered without the insertion and with it
        difference_p | p, answers | p | that right answers change; corrected for all insertions of the study
    """)
        + columns_of("".join(OF_EFFECTS.format(name, contrast.says) for name, contrast in CONTRASTS.items()))
        + HeadScores.columns
        + AccuracyResults.columns
    )

    @property
    def reported(self) -> tuple[str, ...]:
        """The first contrast's effect, `span_mass`, `most_read_by`, the heads, the answers."""
        effect = (f"{self.contrasts[0]}_{end}" for end in ("median", "k", "n", "p"))
        answers = ("accuracy", "answers_n", "difference", "difference_p")
        return ("insertion", "inserts", *effect, "span_mass", "most_read_by", "heads", "shown_again", *answers)

    @property
    def unit(self) -> str:
        """The outcome's unit."""
        return self.effects[self.insertions[0]][self.contrasts[0]].unit

    def effect_table(self) -> pd.DataFrame:
        """Return one row per insertion and contrast: the median effect over problems in `unit`; `k` of the `n` problems where
        it is defined have its sign (beyond rounding); `p` of the sign test, `p_corrected` after Holm over all rows."""
        rows = []
        for insertion in self.insertions:
            for contrast, made in self.effects[insertion].items():
                whole = made.whole
                values = whole.units(whole.turned(made.total_effect))
                row: dict[str, object] = {"insertion": insertion, "contrast": contrast}
                row |= {name: float(end) for name, end in interval_columns("median", whole.median).items()}
                row |= {"unit": made.unit, "k": (values > whole.rounding).sum(), "n": np.isfinite(values).sum()}
                rows.append(row | {"n_undefined": np.isnan(values).sum(), "p": whole.p})
        table = pd.DataFrame(rows)
        p = table["p"].to_numpy(dtype=float)
        return table.assign(p_corrected=statistics.holm(p) if np.isfinite(p).any() else p)

    def _attention_to(self, insertion: str, metric: str) -> np.ndarray:
        """Return a metric of the runs with this insertion, mean over heads where it is defined, `[problem]`."""
        made = self.attention[insertion]
        return defined_mean(of_heads(made.of(metric, "inserted"), made.heads), axis=1)

    def table(self) -> pd.DataFrame:
        """Return one row per insertion: the median effect of each contrast (`content_median`, `_k` of `_n` problems of its
        sign, `_p` after Holm), each metric of attention (mean over heads and problems, `_n` where it is defined), the heads
        that are named and those `shown_again` on fresh problems, right answers and their `difference` from no insertion."""
        effects = self.effect_table().drop(columns=["unit", "p"]).rename(columns={"p_corrected": "p"})
        effect_of = effects.set_index(["insertion", "contrast"]).to_dict("index")
        rows = []
        for name in self.insertions:
            row: dict[str, object] = {"insertion": name, "inserts": self.settings.get("insertions", {}).get(name, "")}
            for contrast in self.contrasts:
                row |= {f"{contrast}_{end}": value for end, value in effect_of[name, contrast].items()}
            if scores := self.attention.get(name):
                for metric in scores.metrics:
                    values = scores.by_group(self._attention_to(name, metric))
                    finite = np.where(np.isinf(values), np.nan, values)
                    mean = statistics.mean_interval(finite, confidence=scores.confidence, seed=scores.seed)
                    row |= {each: float(end) for each, end in interval_columns(metric, mean).items()}
                    if np.isinf(values).any():  # on one problem, so the mean has no limits
                        row[metric] = float(defined_mean(values))
                        row[f"{metric}_ci_low"] = row[f"{metric}_ci_high"] = np.nan
                    row[f"{metric}_n"] = (~np.isnan(values)).sum()
                uniform = scores.by_group(scores.null["span_mass"]["inserted"])[
                    :, [head.layer for head in scores.heads]
                ]
                row["span_mass_null"] = float(defined_mean(uniform.ravel()))
                row["most_read_by"] = str(scores.top("span_mass", 1)["label"].iloc[0])
            if located := self.located.get(name):
                row["heads"] = by_kind(located.found, len(located.heads)) or "none"
                if self.settings.get("n_fresh"):
                    row["shown_again"] = by_kind(located.confirmed, len(located.heads)) or "none"
            rows.append(row)
        table = pd.DataFrame(rows)
        if self.answers is None:
            return table
        called = {"second": "insertion", "accuracy_second": "accuracy", "n": "answers_n", "p_corrected": "difference_p"}
        answers = self.answers.compare_all(NONE).table().rename(columns=called)
        ends = ["difference", "difference_ci_low", "difference_ci_high", "difference_p"]
        return table.merge(answers[["insertion", "accuracy", "answers_n", *ends]], how="left", on="insertion")

    def to_frame(self) -> pd.DataFrame:
        """Return one tidy row per insertion, measure and problem: the contrast with its unit, each metric (mean over heads),
        `right` (share of right answers; also of `none`)."""
        parts: list[tuple[object, ...]] = []
        for insertion, made in self.effects.items():
            parts += [(insertion, name, each.problem_ids, each.total_effect, each.unit) for name, each in made.items()]
        for insertion, scores in self.attention.items():
            for metric in scores.metrics:
                values, unit = self._attention_to(insertion, metric), metric_named(metric).unit
                parts.append((insertion, metric, scores.problem_ids, values, unit))
        if (answers := self.answers) is not None:
            right = zip(answers.treatments, answers.share_right().T, strict=True)
            parts += [(name, "right", answers.problem_ids, share, "share") for name, share in right]
        names = ("insertion", "measure", "problem", "value", "unit")
        return pd.concat([pd.DataFrame(dict(zip(names, part, strict=True))) for part in parts], ignore_index=True)

    def headline(self) -> str:
        contrast, n = self.contrasts[0], len(self.insertions)
        table = self.effect_table().query("contrast == @contrast and p_corrected < 1 - @self.confidence")
        have = "has" if 1 in (len(table), n) else "have"
        told = f"{len(table)} of {count_of(n, 'insertion')} {have} an established {contrast} effect on {self.outcome}"
        if len(table):
            limits = map(partial(limits_of, form="+.2f"), table["median_ci_low"], table["median_ci_high"])
            sizes = zip(table["insertion"], table["median"], limits, strict=True)
            told += f" (median, {self.unit}): {listed(f'{name!r} {size:+.2f}{ends}' for name, size, ends in sizes)}"
        if self.located:
            tested = any(made.confirmation is not None for made in self.located.values())
            named = {name: list(made.confirmed if tested else made.found) for name, made in self.located.items()}
            heads = [f"{listed(heads)} under {name!r}" for name, heads in named.items() if heads]
            each = next(iter(self.located.values()))
            none = few_problems(each.judged.effect.n, len(each.heads), each.confidence).rstrip(".") or "none"
            told += f"; heads {'confirmed' if tested else 'named'}: {'; '.join(heads) or none}"
        return f"{told} ({self.counted})."

    def caveats(self) -> list[str]:
        tested, told = self.effect_table().dropna(subset="p"), super().caveats()
        n, m = tested["n"].max(), len(tested)
        if m and n < (needed := statistics.fewest_problems(2 * m, alpha=1 - self.confidence)):
            told = [f"{n} problems are too few to establish any of {m} effects; {needed} problems are needed.", *told]
        return told[:3]

    def details(self) -> list[str]:
        effects, n = f"Contrasts {', '.join(self.contrasts)}, outcome {self.outcome}", len(self.located)
        found = [f"{effects}; p of sign tests after Holm over all {len(self.insertions) * len(self.contrasts)}."]
        if n:
            found.append(f"Heads are named for {count_of(n, 'insertion')}, each at {1 - self.confidence:.3g} / {n}.")
        return found

    def shown(self) -> Shown:
        table = self.table()
        columns = [name for name in table.columns if not name.endswith("_n")]
        does = f"What each insertion does: medians of effects in {self.unit}, and how many problems have that sign."
        each = ShownTable(self.effect_table(), "Each effect, and its sign test before and after Holm.")
        return Shown((ShownTable(table, does, columns), each))


@checked
def run_study(
    study: str | Path | Mapping[str, Any] | Study,
    *,
    model: Model | None = None,
    problems: Iterable[Problem] | None = None,
    checkpoint: str | Path | None = None,
    progress: bool = True,
) -> StudyResult:
    """Measure every insertion of a study side by side, by `patch_heads`, `score_heads`, `locate_heads`, `evaluate_accuracy`.

    `study`: as `read_study` takes it; `model`, `problems`: in place of those that it names. As many problems are measured as
    it asks for; those after them only serve `other_questions` to draw from. `checkpoint`: a folder that receives each finished
    problem of each measurement; a run started again goes on from there. `ValueError` before anything is computed where the
    problems are too few, an insertion cannot be put into one of them, or answers do not fit the context.
    """
    asked = read_study(study)
    every = tuple(problems_of(asked.model, asked.problems, limit=asked.n_read) if problems is None else problems)
    every = asked.in_order(every)  # other questions are drawn from all of them
    given = every[: asked.n_problems]
    if model is None:
        model = load_model(asked.model, backend="bridge")
    pairs = pairs_of(asked, model, every)
    measured = {name: made[: asked.limit] for name, made in pairs.items()}
    signed = partial(prepare, model, outcome=asked.outcome, signed_for="a study")
    ready = {name: _of(name, signed, pairs=here) for name, here in measured.items()}
    treatments = [Treatment(name=NONE), *asked.rows(every)]
    answering: Arguments = {"max_new_tokens": asked.max_new_tokens, "template": asked.template}
    if asked.answers:
        check_answers(model, given[: asked.answers], treatments, **answering)

    jobs: dict[str, Callable[..., Any]] = {}  # by the file that keeps it
    for name, here in measured.items():
        for contrast in asked.contrasts:
            sweep = partial(patch_heads, model, ready[name], contrast=contrast, outcome=asked.outcome, heads=ANY_HEAD)
            jobs[f"{slug(name)}/{contrast}.jsonl"] = sweep
        if asked.metrics:
            scores = partial(score_heads, model, here, metrics=asked.metrics, conditions=("inserted",))
            jobs[f"{slug(name)}/attention.jsonl"] = scores
        if asked.heads == "all":
            how: Arguments = {"contrast": "content", "outcome": asked.outcome}
            how["confirm"] = pairs[name][asked.limit : asked.limit + asked.confirm] or None
            how["confidence"] = 1 - (1 - CONFIDENCE) / len(measured)  # any false name, of any insertion
            jobs[f"{slug(name)}/heads"] = partial(locate_heads, model, here, **how)
    if asked.answers:
        jobs["answers.jsonl"] = partial(evaluate_accuracy, model, given[: asked.answers], treatments, **answering)
    found = _measured(jobs, None if checkpoint is None else Path(checkpoint), progress, asked.seeds[0])
    settings = {**model.identity, "template": asked.template, "seeds": list(asked.seeds), "heads": asked.heads}
    settings |= {"n_fresh": asked.confirm, "resolution": model.resolution}
    settings["insertions"] = {name: made[0].insertion.label for name, made in pairs.items()}
    same = {name: getattr(asked, name) for name in ("title", "source", "claims", "contrasts", "outcome")}
    return StudyResult(
        **same,
        problem_ids=tuple(problem.id for problem in given[: asked.limit]),
        groups=groups_of(given[: asked.limit]),
        insertions=tuple(pairs),
        effects={name: {each: found[f"{slug(name)}/{each}.jsonl"] for each in asked.contrasts} for name in pairs},
        attention={name: found[f"{slug(name)}/attention.jsonl"] for name in pairs if asked.metrics},
        located={name: found[f"{slug(name)}/heads"] for name in pairs if asked.heads == "all"},
        answers=found.get("answers.jsonl"),
        settings=settings,
    )


def _measured(jobs: Mapping[str, Callable[..., Any]], folder: Path | None, progress: bool, seed: int) -> dict[str, Any]:
    found, waiting = {}, []
    with progress_bar(len(jobs), "study", enabled=progress) as bar:
        for file, measure in jobs.items():
            bar.set_description(one_line(f"study: {file}"))
            if kept := folder and folder / file:
                kept.parent.mkdir(parents=True, exist_ok=True)
            try:
                found[file] = measure(checkpoint=kept, progress=progress, seed=seed)
            except ShardDone as ended:  # other shards' parts are missing: on to the next
                waiting.append(ended)
            bar.update(1)
    if waiting:
        raise ShardDone(f"{len(waiting)} measurements wait for the other shards; {waiting[0]}")
    return found


def pairs_of(asked: Study, model: object, problems: tuple[Problem, ...]) -> dict[str, tuple[PromptPair, ...]]:
    """Return the pairs of every row by its name, for a model or its tokenizer; `ValueError` says which insertion cannot be
    put in."""
    make = partial(make_pairs, model, problems[: asked.n_problems], template=asked.template)
    return {row.name: _of(row.name, make, row.insertion) for row in asked.rows(problems)}
