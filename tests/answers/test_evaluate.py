"""Evaluating accuracy: prompts as elsewhere, every answer on disk at once, a stopped run that goes on as if it had not been."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from generated_under_test import generate_completions
from tokenizers_under_test import read_tokenizer

from mless_interp.answers import AccuracyResults, Treatment, evaluate_accuracy, has_closed_box
from mless_interp.answers import evaluate as evaluate_module
from mless_interp.answers.decoding import Request
from mless_interp.core.heads import Head
from mless_interp.mechanism.arm import ARM
from mless_interp.models.base import Model
from mless_interp.prompts.insertions import Insertion
from mless_interp.prompts.pairs import make_pairs
from mless_interp.prompts.problems import Problem, load_problems
from mless_interp.prompts.prompt import build_prompt

SLASHES = Insertion.meaningless(" /", 55)
ARM_HERE = ARM(0.5, 99.5, layers=(0, 1), p_max=0.6)
HIDDEN = Treatment(
    insertion=SLASHES, knockout=tuple(Head(layer, h) for layer in range(4) for h in range(28)), name="hidden"
)
TREATMENTS = [None, SLASHES, ARM_HERE, HIDDEN]
QUICK: dict[str, Any] = {"max_new_tokens": 8, "progress": False, "batch_size": 4}


@pytest.fixture(scope="module")
def problems() -> tuple[Problem, ...]:
    return load_problems("demo", limit=6)


@pytest.fixture(scope="module")
def whole(demo: Model, problems: tuple[Problem, ...]) -> AccuracyResults:
    """The evaluation that nothing interrupted."""
    return evaluate_accuracy(demo, problems, TREATMENTS, **QUICK)


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The keys of the completions that are really generated."""
    keys: list[str] = []
    complete_all = evaluate_module.complete_all

    def counted(*args: Any, **options: Any) -> Any:
        keys.extend(found := complete_all(*args, **options))
        return found

    monkeypatch.setattr(evaluate_module, "complete_all", counted)
    return keys


# ------------------------------------------------------------------------------------------------------------- answers


def test_every_treatment_answers_its_own_prompts(
    demo: Model, problems: tuple[Problem, ...], whole: AccuracyResults
) -> None:
    assert whole.treatments == ("none", "Mless ' /' x55", ARM_HERE.label, "hidden")
    pairs = make_pairs(demo, problems, SLASHES)
    inserted = [Request(pair.inserted.ids, pair.id, pair.span) for pair in pairs]
    bare = [Request(build_prompt(demo.tokenizer, problem).ids, problem.id) for problem in problems]
    options: dict[str, Any] = {"max_new_tokens": 8, "complete": has_closed_box}
    expected = [
        generate_completions(demo, bare, **options),
        generate_completions(demo, inserted, **options),
        generate_completions(demo, bare, arm=ARM_HERE, **options),
        generate_completions(demo, inserted, knockout=HIDDEN.knockout, **options),
    ]
    for at, problem in enumerate(problems):
        for place, completions in enumerate(expected):
            text = completions[problem.id].text(demo.tokenizer)
            assert whole.completions[at][place] == (text,)
            right = text == f"Answer : \\boxed{{ {problem.answer} }}"
            assert whole.correct["strict"][at, place, 0] == right
            assert whole.n_tokens[at, place, 0] == len(completions[problem.id].tokens)
    assert whole.correct["strict"][:, 0].all() and not whole.cut_off.any() and whole.boxed.all()


def test_a_problems_samples_depend_on_nothing_but_seed_and_id(demo: Model, problems: tuple[Problem, ...]) -> None:
    options: dict[str, Any] = {**QUICK, "temperature": 3.0, "top_p": 0.98, "n_samples": 3}
    both = evaluate_accuracy(demo, problems[:3], [None, SLASHES], **options)
    alone = evaluate_accuracy(demo, problems[2:3], [SLASHES], **options | {"batch_size": 1})
    assert both.completions[2][1] == alone.completions[0][0]
    texts = [text for problem in both.completions for samples in problem for text in samples]
    assert len(set(texts)) > len(texts) / 2, "samples differ"
    other = evaluate_accuracy(demo, problems[2:3], [SLASHES], seed=1, **options)
    assert other.completions != alone.completions


def test_answers_are_as_long_as_the_context_leaves_and_what_a_model_cannot_do_is_said_before(
    demo: Model, problems: tuple[Problem, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = evaluate_accuracy(demo, problems[:2], [None, SLASHES], progress=False)
    assert evaluate_accuracy(demo, problems[:2], [None], **QUICK | {"max_new_tokens": 3}).cut_off.all()
    longest = max(len(pair.inserted) for pair in make_pairs(demo, problems[:2], SLASHES))
    assert found.settings["max_new_tokens"] == 512 - longest
    cut = Treatment(Insertion.meaningless(" /", 4, before="system", after="question"), knockout=["L0H1"])
    for asked, message in ((ARM(0.1, 99.0, layers=(4,)), "layer 4 is out of range"), (cut, "in 2 blocks")):
        with pytest.raises(ValueError, match=message):
            evaluate_module.check_answers(demo, problems, [asked])
    with pytest.raises(ValueError, match="511 new ones do not fit"):
        evaluate_module.check_answers(demo, problems, None, max_new_tokens=511)
    monkeypatch.setattr("mless_interp.answers.decoding.stop_ids_of", lambda _: frozenset())
    evaluate_module.check_answers(demo, problems, None)  # it would stop at boxes


def test_a_knockout_needs_a_span_whose_tokens_have_not_merged(
    model: Model, tokenizer_dir: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model, "tokenizer", read_tokenizer(tokenizer_dir("qwen2_5")))
    monkeypatch.setattr(model, "info", replace(model.info, d_vocab=len(model.tokenizer)))
    asked = [Problem("a", "How many apples ?", "3"), Problem("b", "Find x .", "4")]
    cut = Treatment(Insertion.meaningless(" /", 5), knockout=(Head(0, 1),), name="k")
    with pytest.raises(ValueError, match=r"treatment 'k': in \d of 2 prompts tokens merged at the border"):
        evaluate_accuracy(model, asked, [cut], template="paper", progress=False)


# ------------------------------------------------------------------------------------------------------------ resuming


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_each_answer_is_one_line_as_soon_as_it_ends_and_problems_can_be_added_or_left_out(
    demo: Model, problems: tuple[Problem, ...], whole: AccuracyResults, tmp_path: Path, made: list[str]
) -> None:
    path, seen = tmp_path / "a.jsonl", []
    accept = evaluate_module.Checkpoint.put

    def look(self: Any, values: dict[str, Any]) -> None:
        accept(self, values)
        seen.append(len(lines(path)) - 1)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(evaluate_module.Checkpoint, "put", look)
        evaluate_accuracy(demo, problems[:4], TREATMENTS, checkpoint=path, **QUICK)
    assert seen[0] <= 4 and seen[-1] == 16 and seen == sorted(set(seen))
    line = next(line for line in lines(path)[1:] if line["id"] == json.dumps(["none", problems[0].id, 0]))
    text = f"Answer : \\boxed{{ {problems[0].answer} }}"
    graded = {"strict": True, "paper": True, "boxed": True, "decided": "text"}
    assert line["value"] == {"completion": text, **graded, "cut_off": False, "n_tokens": 5}
    made.clear()
    found = evaluate_accuracy(demo, problems, TREATMENTS, checkpoint=path, **QUICK)
    assert found.to_frame().equals(whole.to_frame()) and found.settings == whole.settings
    assert len(made) == 2 * len(TREATMENTS) and {problem.id for problem in problems[4:]} == set(made)
    made.clear()
    fewer = evaluate_accuracy(demo, problems[1:3], TREATMENTS, checkpoint=path, **QUICK)
    assert made == [] and fewer.problem_ids == tuple(problem.id for problem in problems[1:3])
    before = path.read_bytes()
    shorter = Treatment(Insertion.meaningless(" /", 54), name=SLASHES.label)
    with pytest.raises(ValueError, match="a.jsonl was made with other settings: .*n_tokens was 55, now 54"):
        evaluate_accuracy(demo, problems, [None, shorter, *TREATMENTS[2:]], checkpoint=path, **QUICK)
    assert made == [] and path.read_bytes() == before


def test_another_question_or_answer_of_a_kept_problem_is_answered_and_graded_again(
    demo: Model, problems: tuple[Problem, ...], tmp_path: Path, made: list[str]
) -> None:
    path = tmp_path / "a.jsonl"
    evaluate_accuracy(demo, problems, [None], checkpoint=path, **QUICK)
    made.clear()
    others = [replace(problems[5], question=problems[4].question), replace(problems[3], answer=problems[4].answer)]
    found = evaluate_accuracy(demo, [*problems[:3], *others], [None], checkpoint=path, **QUICK)
    assert len(made) == 2
    assert found.to_frame().equals(evaluate_accuracy(demo, [*problems[:3], *others], [None], **QUICK).to_frame())


# ------------------------------------------------------------------------------------------------------------- messages


@pytest.mark.parametrize(
    ("change", "options", "message"),
    [
        ("none", {}, "there are no problems to answer"),
        ("twice", {}, "the problem id 'demo/same/0' is given twice"),
        ("no answer", {}, "problem 'x' has no answer to grade against"),
        ("long", {}, "prompt of 1014 tokens and 1 new ones do not fit demo's context of 512"),
        ("", {"n_samples": 3}, "greedy answers are all the same, so n_samples=3 needs a temperature"),
        ("", {"treatments": [Insertion.meaningless(" /", 900)]}, "has a context of 512"),
        ("", {"treatments": [Treatment(SLASHES, knockout=(Head(0, 28),))]}, "head 28 is out of range (zero-based)"),
    ],
)
def test_wrong_input_is_refused_before_anything_is_generated(
    change: str, options: dict[str, Any], message: str, demo: Model, problems: tuple[Problem, ...], tmp_path: Path
) -> None:
    asked = {
        "none": [],
        "twice": [problems[0], problems[1], problems[0]],
        "no answer": [problems[0], Problem("x", "how many ?", " ")],
        "long": [problems[0], Problem("y", "how many ? " * 333, "3", system=problems[0].system)],
    }.get(change, list(problems))
    options = {"progress": False, "treatments": [None], "checkpoint": tmp_path / "a.jsonl", **options}
    with pytest.raises(ValueError, match=re.escape(message)):
        evaluate_accuracy(demo, asked, **options)
    assert not (tmp_path / "a.jsonl").exists(), "no file is begun"
