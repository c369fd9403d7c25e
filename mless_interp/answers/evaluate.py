"""`evaluate_accuracy`: the same problems answered under several treatments, graded, and kept on disk as they finish."""

import json
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

from ..core.arguments import Arguments, check_count, checked, one_of
from ..models.base import Model
from ..prompts.insertions import Insertion
from ..prompts.pairs import PromptPair, pairs_of_any
from ..prompts.problems import Problem, distinct, groups_of
from ..prompts.prompt import Template, Tokenizer, build_prompt, check_known, template_named, warnings_of
from ..runtime.checkpoint import Checkpoint, key_of
from ..runtime.loop import Bar, progress_bar
from ..runtime.workers import shard_of
from .decoding import Completion, CompletionEngine, Decoding, Request, check_requests, complete_all, decoding_for
from .engines import ENGINES, engine_for
from .graders import GRADERS, grade, has_closed_box
from .results import AccuracyResults
from .treatments import Treatment, as_treatments
from .vllm import Vllm

MAX_NEW_TOKENS = 2048  # what the paper allows (methods §11)
Answer = dict[str, Any]


@checked
def evaluate_accuracy(
    model: Model,
    problems: Iterable[Problem],
    treatments: object = (None,),
    *,
    n_samples: int = 1,
    temperature: float = 0.0,
    top_p: float = 1.0,
    max_new_tokens: int | None = None,
    batch_size: int | None = None,
    template: str | Template = "raw",
    stop_after_box: bool = True,
    checkpoint: str | Path | None = None,
    progress: bool = True,
    seed: int = 0,
    engine: str | Vllm = "auto",
) -> AccuracyResults:
    """Answer every problem under every treatment; grade the completions strictly and as the paper does.

    Parameters
    ----------
    treatments : one or several, each None (the plain prompt), an `Insertion`, an `ARM`, or a `Treatment`, which names any of
        these together, with heads knocked out. The prompts are those of `make_pairs` without the answer prefix.
    n_samples : answers to each problem; above 1 with a `temperature`. Their draws depend on the seed, the problem's id and
        the number of the sample alone.
    temperature, top_p : 0 is greedy. The paper's best-of-5 uses 0.5 and 0.95.
    max_new_tokens : default 2048 (the paper's), or what the context leaves after the longest prompt. Answers that reach it
        are counted as cut off.
    stop_after_box : stop after the first balanced box that is not empty, as well as at end-of-sequence tokens.
    checkpoint : a .jsonl file that receives each answer, graded, as soon as it ends. A stopped run goes on from there with the
        same settings, also with more problems (or fewer) where `max_new_tokens` is given, or its default 2048.
    engine : "hugging_face" (batched, with a key-value cache: every bridge and nnsight model), "forward" (a whole forward
        pass per token: HookedTransformer), "vllm" or a `Vllm` (a process of its own, insertions only), or "auto". Batched and
        single answers are equal up to rounding: in half precision, near-ties can fall either way.
    """
    asked, made = _checked_problems(problems), template_named(template)
    given: Arguments = {"max_new_tokens": max_new_tokens, "temperature": temperature, "top_p": top_p, "engine": engine}
    chosen = check_asked(treatments, n_samples=n_samples, batch_size=batch_size, **given)
    complete = has_closed_box if stop_after_box else None
    running, runs = _ready(model, asked, chosen, made, seed=seed, complete=complete, **given)
    for told in warnings_of(model.tokenizer, asked):
        warnings.warn(told, stacklevel=3)
    kept: dict[str, object] = {
        **model.identity,
        "engine": running.name,
        **running.settings,
        "template": made.name,
        "n_samples": n_samples,
        "temperature": temperature,
        "top_p": top_p,
        "max_new_tokens": runs[0].decoding.max_new_tokens,
        "stop_after_box": stop_after_box,
        "stop_ids": sorted(runs[0].decoding.stop_ids),
        "tokenizer": key_of(sorted(model.tokenizer.get_vocab().items())),
        "treatments": {treatment.name: treatment.record() for treatment in chosen},
        "seed": seed,
    }
    if redrawn := [layer for treatment in chosen if treatment.arm for layer in treatment.arm.layers]:
        kept["gated"] = all(model.gated_mlp(layer).gated for layer in redrawn)
    golds = {problem.id: problem.answer for problem in asked}
    shard = shard_of(model.engine)
    origins = {
        _line(run.name, request.key, n): key_of([request.prompt, golds[request.key]])
        for run in runs
        for request in run.requests
        for n in range(n_samples)
    }
    saved = Checkpoint(checkpoint, kept, origins, shard=shard)
    settings = kept | {
        "n_problems": len(asked),
        "problems": key_of([[problem.id, problem.answer] for problem in asked]),
        "prompts": {run.name: key_of([request.prompt for request in run.requests]) for run in runs},
    }  # which tell of all problems together; a kept answer is told by its own prompt and key
    answers: list[Answer] = []
    with saved, progress_bar(len(origins), "answers", enabled=progress) as bar:
        for run in runs:
            answers += _answer(model, run, golds, n_samples, running, batch_size, saved, bar)
    if shard is not None and len(answers) < len(origins):
        raise shard.done("answers", f"{len(answers)} of {len(origins)}", saved.path)
    return AccuracyResults.from_rows(
        answers,
        problem_ids=tuple(golds),
        treatments=tuple(treatment.name for treatment in chosen),
        n_samples=n_samples,
        golds=tuple(golds.values()),
        groups=groups_of(asked),
        settings=settings,
        seed=seed,
    )


@checked
def check_asked(
    treatments: object,
    *,
    n_samples: int = 1,
    temperature: float = 0.0,
    top_p: float = 1.0,
    max_new_tokens: int | None = None,
    batch_size: int | None = None,
    engine: str | Vllm = "auto",
) -> tuple[Treatment, ...]:
    """Return the treatments; errors for all that `evaluate_accuracy` can refuse without a model, before one is loaded."""
    chosen = as_treatments(treatments)
    for name, count in {"n_samples": n_samples, "batch_size": batch_size}.items():
        check_count(1 if count is None else count, name=name)
    if n_samples > 1 and temperature == 0 and any(treatment.arm is None for treatment in chosen):
        raise ValueError(
            f"greedy answers are all the same, so n_samples={n_samples} needs a temperature above 0 (0.5, say)"
        )
    # making one refuses numbers that no model can take
    Decoding(1 if max_new_tokens is None else max_new_tokens, temperature, top_p)
    if isinstance(engine, str):
        one_of(engine, ENGINES, "engine")
    return chosen


def check_answers(
    model: Model,
    problems: Iterable[Problem],
    treatments: object,
    *,
    template: str | Template = "raw",
    max_new_tokens: int | None = None,
) -> None:
    """Raise errors for all that `evaluate_accuracy`, asked the same, can refuse with a model, before anything is measured."""
    chosen, asked, made = as_treatments(treatments), _checked_problems(problems), template_named(template)
    _ready(model, asked, chosen, made, engine="auto", max_new_tokens=max_new_tokens, complete=has_closed_box)


def _checked_problems(problems: Iterable[Problem]) -> tuple[Problem, ...]:
    asked = distinct(problems)
    if not asked:
        raise ValueError("there are no problems to answer")
    if without := [problem.id for problem in asked if not problem.answer.strip()]:
        raise ValueError(f"problem {without[0]!r} has no answer to grade against: leave it out or give it one")
    return asked


class _Run(NamedTuple):
    name: str
    requests: tuple[Request, ...]
    decoding: Decoding


def _ready(
    model: Model,
    problems: tuple[Problem, ...],
    treatments: Sequence[Treatment],
    template: Template,
    *,
    engine: str | Vllm,
    max_new_tokens: int | None,
    **decoding: Any,
) -> tuple[CompletionEngine, list[_Run]]:
    model.need_tokenizer("evaluate_accuracy")
    check_known(model.tokenizer, problems)
    of_insertion = cache(partial(pairs_of_any, model, problems, template=template))  # several treatments have the same
    prompts = [_requests(model, problems, treatment, template, of_insertion) for treatment in treatments]
    if max_new_tokens is None:  # the paper's, or what the context leaves after the longest prompt
        longest = max(len(request.prompt) for requests in prompts for request in requests)
        max_new_tokens = max(1, min(MAX_NEW_TOKENS, model.info.context_length - longest))
    decoding["max_new_tokens"], runs = max_new_tokens, []
    for treatment, requests in zip(treatments, prompts, strict=True):
        how = decoding_for(model, knockout=treatment.knockout, arm=treatment.arm, **decoding)
        check_requests(model, requests, how)
        runs.append(_Run(treatment.name, requests, how))
    running = engine_for(model, engine)
    for run in runs:
        running.check(model, run.decoding)
    return running, runs


def _requests(
    model: Model,
    problems: tuple[Problem, ...],
    treatment: Treatment,
    template: Template,
    of_insertion: Callable[[Insertion], tuple[PromptPair, ...]],
) -> tuple[Request, ...]:
    if treatment.insertion is None:
        return tuple(Request(build_prompt(model.tokenizer, each, template).ids, each.id) for each in problems)
    pairs = of_insertion(treatment.insertion)
    if treatment.knockout:
        if merged := sum(pair.boundary_merge for pair in pairs):
            raise ValueError(
                f"treatment {treatment.name!r}: in {merged} of {len(pairs)} prompts tokens merged at the border of the "
                'inserted text, so heads cannot be kept from seeing it alone: use template="raw" for knockouts'
            )
        for pair in pairs:
            pair.one_block("knocking heads out while an answer is completed")
    return tuple(Request(pair.inserted.ids, pair.id, pair.span) for pair in pairs)


def _answer(
    model: Model,
    run: _Run,
    golds: dict[str, str],
    n_samples: int,
    engine: CompletionEngine,
    batch_size: int | None,
    saved: Checkpoint,
    bar: Bar,
) -> list[Answer]:
    places = {_key(problem, n): (problem, n) for problem in golds for n in range(n_samples)}
    lines = {key: _line(run.name, *place) for key, place in places.items()}
    found: dict[str, Answer] = {key: kept for key, line in lines.items() if (kept := saved.get(line)) is not None}
    bar.update(len(found))

    def keep(ended: dict[str, Completion]) -> None:
        new = {key: _graded(each, model.tokenizer, golds[places[key][0]]) for key, each in ended.items()}
        saved.put({lines[key]: answer for key, answer in new.items()})
        found.update(new)
        bar.update(len(new))

    requests = [replace(request, key=_key(request.key, n)) for request in run.requests for n in range(n_samples)]
    complete_all(model, requests, run.decoding, engine, batch_size=batch_size, skip=set(found), on_finished=keep)
    rows = ((places[key], answer) for key, answer in found.items())
    return [{"treatment": run.name, "problem": problem, "sample": n, **answer} for (problem, n), answer in rows]


def _graded(completion: Completion, tokenizer: Tokenizer, gold: str) -> Answer:
    """Grade one answer as it is kept on disk, by the completion alone, never the prompt with its own box."""
    text = completion.text(tokenizer)
    graded = grade(text, gold)
    return {
        "completion": text,
        **{name: getattr(graded, name) for name in (*GRADERS, "boxed", "decided")},
        "cut_off": completion.stop == "length",
        "n_tokens": len(completion.tokens),
    }


def _line(treatment: str, problem: str, sample: int) -> str:
    return json.dumps([treatment, problem, sample], ensure_ascii=False)


def _key(problem: str, sample: int) -> str:
    """Return what a row's random numbers are keyed by: the problem's id, and the sample where it is not the first."""
    return problem if sample == 0 else json.dumps([problem, sample])
