"""`run_study`: every insertion of a study measured alike, each measurement with a checkpoint of its own."""

from collections.abc import Callable, Iterable, Mapping
from itertools import product
from pathlib import Path
from typing import Any, TypeVar

from ..answers import AccuracyResults, Treatment, evaluate_accuracy
from ..answers.evaluate import check_answers
from ..circuits.locate import locate_heads
from ..circuits.located import LocatedHeads
from ..core.arguments import checked
from ..core.heads import Head
from ..models.base import Model
from ..models.load import load_model
from ..patching.prepared import prepare
from ..patching.scores import PatchScores
from ..patching.sweep import patch_heads
from ..prompts.pairs import PromptPair, make_pairs
from ..prompts.problems import Problem, groups_of, whole_groups
from ..prompts.texts import problems_of
from ..runtime.engines import ShardDone
from ..runtime.progress import progress_bar
from ..runtime.text_safety import one_line
from ..scores.score import score_heads
from ..scores.scored import HeadScores
from ..statistics import CONFIDENCE
from .study_result import StudyResult
from .study_spec import NONE, Study, read_study, slug

ANY_HEAD = (Head(0, 0),)
"""A sweep of one head has the whole effect as well."""
Found = TypeVar("Found")


@checked
def run_study(
    study: str | Path | Mapping[str, Any] | Study,
    *,
    model: Model | None = None,
    problems: Iterable[Problem] | None = None,
    checkpoint: str | Path | None = None,
    progress: bool = True,
) -> StudyResult:
    """Measure every insertion of a study: effects, attention, heads and answers, side by side.

    Parameters
    ----------
    study : the name of an included study, a .toml file, or a mapping of what such a file holds.
    model, problems : in place of those that the study names. As many `problems` are measured as it asks for; those
        after them only serve `other_questions` to draw from.
    checkpoint : a folder that receives each finished problem of each measurement; a run started again goes on from there.

    Each number is that of `patch_heads` (effects of the whole insertion), `score_heads` (attention), `locate_heads` (named
    heads) or `evaluate_accuracy` (answers). Raises `ValueError` before anything is computed where the study makes no sense,
    the problems are too few, an insertion cannot be put into one of them, or answers do not fit the context.
    """
    asked = read_study(study)
    if problems is None:
        problems = problems_of(asked.model, asked.problems, limit=None if asked.draws_questions else asked.n_problems)
    every = tuple(problems)
    given = whole_groups(every, asked.limit, asked.n_problems - asked.limit)[: asked.n_problems]
    check_enough(asked, given)
    chosen = {each.id for each in given}
    every = (*given, *(each for each in every if each.id not in chosen))  # other questions are drawn from all of them
    if model is None:
        model = load_model(asked.model, backend="bridge")
    pairs = pairs_of(asked, model, every)
    folder = None if checkpoint is None else Path(checkpoint)
    measured = {name: made[: asked.limit] for name, made in pairs.items()}
    ready = {
        name: {outcome: _of(name, prepare, model, here, outcome, signed_for="a study") for outcome in asked.outcomes}
        for name, here in measured.items()
    }
    treatments = [Treatment(name=NONE), *(Treatment(made[0].insertion, name=name) for name, made in pairs.items())]
    answering: dict[str, Any] = {"max_new_tokens": asked.max_new_tokens, "template": asked.template}
    if asked.answers:
        check_answers(model, given[: asked.answers], treatments, **answering)
    effects: dict[str, dict[str, dict[str, PatchScores]]] = {}
    attention: dict[str, HeadScores] = {}
    located: dict[str, LocatedHeads] = {}
    waiting: list[ShardDone] = []
    each = len(asked.contrasts) * len(asked.outcomes) + bool(asked.metrics) + (asked.heads == "all")

    def done(into: dict[Any, Any], name: str, file: str, measure: Callable[..., Any], *given: Any, **how: Any) -> None:
        """Measure, with a file of its own; where other shards' parts are missing go on to the next."""
        kept = None if folder is None else folder / file
        if kept is not None:
            kept.parent.mkdir(parents=True, exist_ok=True)
        try:
            into[name] = measure(model, *given, checkpoint=kept, progress=progress, **how)
        except ShardDone as ended:
            waiting.append(ended)
        bar.update(1)

    answers: dict[str, AccuracyResults] = {}
    with progress_bar(len(measured) * each + bool(asked.answers), "study", enabled=progress) as bar:
        for name, here in measured.items():
            bar.set_description(one_line(f"study: {name}"))
            files, of, seed = slug(name), effects.setdefault(name, {}), asked.seeds[0]
            for contrast, outcome in product(asked.contrasts, asked.outcomes):
                what: dict[str, Any] = {"contrast": contrast, "outcome": outcome, "heads": ANY_HEAD, "seed": seed}
                file = f"{files}/{contrast}-{outcome}.jsonl"
                done(of.setdefault(contrast, {}), outcome, file, patch_heads, ready[name][outcome], **what)
            if asked.metrics:
                what = {"metrics": asked.metrics, "conditions": ("inserted",), "seed": seed}
                done(attention, name, f"{files}/attention.jsonl", score_heads, here, **what)
            if asked.heads == "all":
                what = {"confirm": pairs[name][asked.limit : asked.limit + asked.confirm] or None, "seed": seed}
                what |= {"contrast": asked.locate_by, "outcome": asked.outcomes[0]}
                what["confidence"] = 1 - (1 - CONFIDENCE) / len(measured)  # any false name, of any insertion
                done(located, name, f"{files}/heads", locate_heads, here, **what)
        if asked.answers:
            bar.set_description("study: answers")
            some = given[: asked.answers]
            done(
                answers,
                "answers",
                "answers.jsonl",
                evaluate_accuracy,
                some,
                treatments,
                **answering,
                seed=asked.seeds[0],
            )
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


def check_enough(asked: Study, problems: tuple[Problem, ...]) -> None:
    """`ValueError` where these are fewer problems than a study takes, or cannot be graded."""
    if len(problems) < asked.n_problems:
        raise ValueError(
            f"limit {asked.limit}, confirm {asked.confirm} and answers {asked.answers} need {asked.n_problems} problems, "
            f"there are {len(problems)}: ask for fewer, or give more"
        )
    keyless = [each.id for each in problems[: asked.answers] if not each.answer.strip()]
    if keyless:
        raise ValueError(
            f"answers {asked.answers}: {len(keyless)} of these problems have no answer to grade against (first: "
            f"{keyless[0]!r}); leave them out, give them one, or ask for answers = 0"
        )


def pairs_of(asked: Study, model: Model, problems: tuple[Problem, ...]) -> dict[str, tuple[PromptPair, ...]]:
    """The pairs of every row by its name; `ValueError` says which insertion cannot be put in."""
    template, measured = asked.template, problems[: asked.n_problems]
    return {
        name: _of(name, make_pairs, model, measured, made, template=template) for name, made in asked.rows(problems)
    }


def _of(insertion: str, do: Callable[..., Found], *given: Any, **options: Any) -> Found:
    """Run one insertion's measurement; an error names the insertion."""
    try:
        return do(*given, **options)
    except ValueError as error:
        raise ValueError(f"insertion {insertion!r}: {error}") from error
