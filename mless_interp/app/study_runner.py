"""Studies: read what one file asks (`read_study`), and measure every insertion alike (`run_study`)."""

import dataclasses
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, TypeVar

from ..answers import AccuracyResults, Treatment, evaluate_accuracy
from ..answers.evaluate import check_answers
from ..circuits.locate import LOCATED, locate_heads
from ..circuits.located import LocatedHeads
from ..core.arguments import Arguments, check_count, checked, nearest, one_of, several_of
from ..core.heads import Head
from ..models.base import Model
from ..models.load import load_model
from ..patching.outcomes import OUTCOMES, outcome_named
from ..patching.prepared import prepare
from ..patching.sweep import PatchScores, patch_heads
from ..prompts.conditions import CONTRASTS
from ..prompts.insertions import AT, KINDS, Insertion
from ..prompts.pairs import PromptPair, make_pairs
from ..prompts.problems import Problem, groups_of, whole_groups
from ..prompts.prompt import template_named
from ..prompts.texts import problems_of
from ..runtime.engines import ShardDone
from ..runtime.loop import progress_bar
from ..runtime.text_safety import one_line
from ..scores.catalogue import metric_named
from ..scores.score import HeadScores, score_heads
from ..statistics import CONFIDENCE
from . import INCLUDED
from .study_result import NONE, StudyResult

ANY_PROBLEMS = (Problem("a", "one", "1"), Problem("b", "two", "2"))
"""Stand for problems that are not known yet, where an insertion that draws from them is checked."""
ANY_HEAD = (Head(0, 0),)
"""A sweep of one head has the whole effect as well."""
SPAN_MASS = "span_mass"
"""The measure of attention that every study reports: the later rows' share on the inserted tokens."""
Found = TypeVar("Found")


@checked
@dataclass(frozen=True, kw_only=True)
class InsertionAsked:
    """Ask for one row of a study: an insertion by its kind's name, as `Insertion.named` takes it, at a place.

    `unit`: the unit, word or text; the key of `from_key`, the ids of `ids`, how many times `repeat_question` repeats.
    `n_tokens`: 55 unless given. What means nothing to a kind is refused. `emitted`: answers are given with the insertion
    emitted by the model, as `Treatment` has it; effects are measured with it inserted.
    """

    name: str
    kind: str
    unit: str | None = None
    n_tokens: int | None = None
    before: str | tuple[str, ...] | None = None
    after: str | tuple[str, ...] | None = None
    at: int | tuple[int, ...] | None = None
    emitted: bool | str = False

    def __post_init__(self) -> None:
        one_of(self.kind, KINDS, "insertion")
        if not slug(self.name):
            raise ValueError(f"name must hold a letter or a digit, got {self.name!r}")
        self.made(0, ANY_PROBLEMS)

    def made(self, seed: int, problems: Iterable[Problem]) -> Insertion:
        """Return the insertion; `problems` are those that `other_questions` draws from."""
        place: Any = {name: getattr(self, name) for name in AT}
        return Insertion.named(self.kind, unit=self.unit, n_tokens=self.n_tokens, seed=seed, problems=problems, **place)


@checked
@dataclass(frozen=True, kw_only=True)
class Study:
    """Hold everything that a study asks; made of a file by `read_study`.

    `limit` problems are measured; `metrics` of attention, `span_mass` first (none: it is left out); `heads` "all": heads are
    named on them by `locate_heads` (`locate_by`: the contrast) and tested on `confirm` fresh ones (0: not); the first `answers`
    problems are answered (0: none). The first of `seeds` is that of all that is drawn; drawn insertions have a row for each.
    `source` and `claims`: where the question comes from, and what is claimed there.
    """

    title: str
    insertions: tuple[InsertionAsked, ...]
    source: str = ""
    claims: str = ""
    model: str = "demo"
    problems: str | None = None
    template: str = "raw"
    limit: int = 32
    contrasts: tuple[str, ...] = ("content", "shift")
    outcomes: tuple[str, ...] = ("answer_logprob",)
    seeds: tuple[int, ...] = (0,)
    metrics: tuple[str, ...] = (SPAN_MASS,)
    heads: str = "none"
    locate_by: str = "content"
    confirm: int = 0
    answers: int = 0
    max_new_tokens: int | None = None

    def __post_init__(self) -> None:
        several_of(self.contrasts, CONTRASTS, "contrast")
        for outcome in several_of(self.outcomes, OUTCOMES, "outcome"):
            outcome_named(outcome, signed_for="a study")
        if not self.seeds or min(self.seeds) < 0:
            raise ValueError(f"seeds must be one or more numbers, 0 or more, got {list(self.seeds)}")
        one_of(self.heads, ("none", "all"), "choice of heads")
        one_of(self.locate_by, LOCATED, "contrast to locate heads by")
        template_named(self.template)
        for metric in self.metrics:
            metric_named(metric)
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
        slugs = [slug(row.name) for row in self.rows(ANY_PROBLEMS)]
        if NONE in slugs:
            raise ValueError(f"no insertion may be named {NONE!r}, which is what answers are compared with")
        if twice := [each for each in slugs if slugs.count(each) > 1]:
            raise ValueError(f"two insertions are named {twice[0]!r}")

    @property
    def n_problems(self) -> int:
        """Count the problems that the study takes."""
        return max(self.limit + self.confirm, self.answers)

    @property
    def draws_questions(self) -> bool:
        """Return True where all problems are read, so that draws from them do not depend on how many are measured."""
        return any(each.kind == "other_questions" for each in self.insertions)

    def rows(self, problems: Iterable[Problem]) -> list[Treatment]:
        """Return every row's insertion, named, and as it is answered: one for each seed where it is drawn."""
        problems, found = tuple(problems), []
        for asked in self.insertions:
            seeds = self.seeds if KINDS[asked.kind].drawn else self.seeds[:1]
            for seed in seeds:
                name = asked.name if len(seeds) == 1 else f"{asked.name}, seed {seed}"
                found.append(Treatment(asked.made(seed, problems), name=name, emitted=asked.emitted))
        return found

    def with_changes(self, *, n_tokens: int | None = None, **changes: Any) -> "Study":
        """Return the same study with what is not None put in place of its own; `n_tokens` in place of every counted
        insertion's."""
        given = {name: value for name, value in changes.items() if value is not None}
        if n_tokens is not None:
            given["insertions"] = tuple(
                dataclasses.replace(each, n_tokens=n_tokens) if KINDS[each.kind].counted else each
                for each in self.insertions
            )
        return dataclasses.replace(self, **given)

    def check_enough(self, problems: Sequence[Problem]) -> None:
        """`ValueError` where these are fewer problems than the study takes."""
        if len(problems) < self.n_problems:
            raise ValueError(
                f"limit {self.limit}, confirm {self.confirm} and answers {self.answers} need {self.n_problems} problems, "
                f"there are {len(problems)}: ask for fewer, or give more"
            )


def slug(name: str) -> str:
    """Return a row's name as that of a file: "random words, seed 1" as random-words-seed-1."""
    return re.sub(r"\W+", "-", name).strip("-").lower()


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
        return _study(tomllib.loads(path.read_text(encoding="utf-8")))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path.name} is no TOML: {error}") from error
    except (ValueError, TypeError) as error:
        raise type(error)(f"{path.name}: {error}") from error


def _study(told: Mapping[str, Any]) -> Study:
    rows = told.get("insertions", ())
    if not isinstance(rows, Sequence) or isinstance(rows, str) or not all(isinstance(each, Mapping) for each in rows):
        raise TypeError("insertions must be tables: write [[insertions]] with a name and a kind for each")
    made = []
    for number, row in enumerate(rows):
        try:
            made.append(InsertionAsked(**row))
        except (ValueError, TypeError) as error:
            raise type(error)(f"insertion {row.get('name', number)!r}: {error}") from error
    return Study(**{**told, "insertions": tuple(made)})


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

    Parameters
    ----------
    study : as `read_study` takes it.
    model, problems : in place of those that the study names. As many `problems` are measured as it asks for; those
        after them only serve `other_questions` to draw from.
    checkpoint : a folder that receives each finished problem of each measurement; a run started again goes on from there.

    Raises `ValueError` before anything is computed where the study makes no sense, the problems are too few, an insertion
    cannot be put into one of them, or answers do not fit the context.
    """
    asked = read_study(study)
    if problems is None:
        problems = problems_of(asked.model, asked.problems, limit=None if asked.draws_questions else asked.n_problems)
    every = tuple(problems)
    given = whole_groups(every, asked.limit, asked.n_problems - asked.limit)[: asked.n_problems]
    asked.check_enough(given)
    chosen = {each.id for each in given}
    every = (*given, *(each for each in every if each.id not in chosen))  # other questions are drawn from all of them
    if model is None:
        model = load_model(asked.model, backend="bridge")
    pairs = pairs_of(asked, model, every)
    measured = {name: made[: asked.limit] for name, made in pairs.items()}
    ready = {
        name: {outcome: _of(name, prepare, model, here, outcome, signed_for="a study") for outcome in asked.outcomes}
        for name, here in measured.items()
    }
    treatments = [Treatment(name=NONE), *asked.rows(every)]
    answering: Arguments = {"max_new_tokens": asked.max_new_tokens, "template": asked.template}
    if asked.answers:
        check_answers(model, given[: asked.answers], treatments, **answering)
    effects: dict[str, dict[str, dict[str, PatchScores]]] = {}
    attention: dict[str, HeadScores] = {}
    located: dict[str, LocatedHeads] = {}
    answers: dict[str, AccuracyResults] = {}
    waiting: list[ShardDone] = []
    seed = asked.seeds[0]
    each = len(asked.contrasts) * len(asked.outcomes) + bool(asked.metrics) + (asked.heads == "all")

    def done(
        into: dict[Any, Any], name: str, file: str, measure: Callable[..., object], *given: object, **how: object
    ) -> None:
        """Measure, with a file of its own; where other shards' parts are missing go on to the next."""
        kept = None if checkpoint is None else Path(checkpoint) / file
        if kept is not None:
            kept.parent.mkdir(parents=True, exist_ok=True)
        try:
            into[name] = measure(model, *given, checkpoint=kept, progress=progress, seed=seed, **how)
        except ShardDone as ended:
            waiting.append(ended)
        bar.update(1)

    with progress_bar(len(measured) * each + bool(asked.answers), "study", enabled=progress) as bar:
        for name, here in measured.items():
            bar.set_description(one_line(f"study: {name}"))
            files, of = slug(name), effects.setdefault(name, {})
            for contrast, outcome in product(asked.contrasts, asked.outcomes):
                what: dict[str, object] = {"contrast": contrast, "outcome": outcome, "heads": ANY_HEAD}
                file = f"{files}/{contrast}-{outcome}.jsonl"
                done(of.setdefault(contrast, {}), outcome, file, patch_heads, ready[name][outcome], **what)
            if asked.metrics:
                what = {"metrics": asked.metrics, "conditions": ("inserted",)}
                done(attention, name, f"{files}/attention.jsonl", score_heads, here, **what)
            if asked.heads == "all":
                what = {"confirm": pairs[name][asked.limit : asked.limit + asked.confirm] or None}
                what |= {"contrast": asked.locate_by, "outcome": asked.outcomes[0]}
                what["confidence"] = 1 - (1 - CONFIDENCE) / len(measured)  # any false name, of any insertion
                done(located, name, f"{files}/heads", locate_heads, here, **what)
        if asked.answers:
            bar.set_description("study: answers")
            some = given[: asked.answers]
            done(answers, "answers", "answers.jsonl", evaluate_accuracy, some, treatments, **answering)
    if waiting:
        raise ShardDone(f"{len(waiting)} measurements wait for the other shards; {waiting[0]}")
    return StudyResult(
        title=asked.title,
        source=asked.source,
        claims=asked.claims,
        problem_ids=tuple(problem.id for problem in given[: asked.limit]),
        groups=groups_of(given[: asked.limit]),
        insertions=tuple(pairs),
        contrasts=asked.contrasts,
        outcomes=asked.outcomes,
        effects=effects,
        attention=attention,
        located=located,
        answers=answers.get("answers"),
        settings={
            **model.identity,
            "template": asked.template,
            "seeds": list(asked.seeds),
            "heads": asked.heads,
            "locate_by": asked.locate_by,
            "n_fresh": asked.confirm,
            "insertions": {name: made[0].insertion.label for name, made in pairs.items()},
            "resolution": model.resolution,
        },
    )


def pairs_of(asked: Study, model: Model, problems: tuple[Problem, ...]) -> dict[str, tuple[PromptPair, ...]]:
    """Return the pairs of every row by its name; `ValueError` says which insertion cannot be put in."""
    template, measured = asked.template, problems[: asked.n_problems]
    return {
        row.name: _of(row.name, make_pairs, model, measured, row.insertion, template=template)
        for row in asked.rows(problems)
    }


def _of(insertion: str, do: Callable[..., Found], *given: object, **options: object) -> Found:
    """Run one insertion's measurement; an error names the insertion."""
    try:
        return do(*given, **options)
    except ValueError as error:
        raise ValueError(f"insertion {insertion!r}: {error}") from error
