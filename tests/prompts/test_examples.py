"""Worked examples before the question: a segment of their own, never the problem's own question, text that stays text."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from conftest import qwen2_tokenizer, word_tokenizer
from models_under_test import problems
from tokenizers_under_test import REAL, read_tokenizer

import mless_interp as mi
from mless_interp.prompts.insertions import Insertion
from mless_interp.prompts.pairs import make_pairs
from mless_interp.prompts.problems import Problem
from mless_interp.prompts.prompt import build_prompt, encode

POOL = problems()
FORM = "{question} Answer {answer} . "


def test_examples_stand_between_system_prompt_and_question() -> None:
    tokenizer = word_tokenizer()
    (made,) = mi.with_examples(POOL[:1], POOL[1:], form=FORM)
    prompt = build_prompt(tokenizer, made, "raw")
    assert "".join(dict.fromkeys(f"{name} " for name in prompt.segments)) == "bos system examples question "
    shown = tokenizer.decode([prompt.ids[at] for at in prompt.indices("examples")])
    assert shown == f"{POOL[1].question} Answer 4 . {POOL[2].question} Answer 2 ."
    plain = build_prompt(tokenizer, POOL[0], "raw")
    rest = [at for at, name in zip(prompt.ids, prompt.segments, strict=True) if name != "examples"]
    assert tuple(rest) == plain.ids


@pytest.mark.parametrize("make", [qwen2_tokenizer, word_tokenizer])
def test_a_chat_template_shows_them_in_the_message_of_the_question(make: Callable[[], Any]) -> None:
    tokenizer = make()
    (made,) = mi.with_examples(POOL[:1], POOL, n=1, form=FORM)
    prompt = build_prompt(tokenizer, made, "chat")
    last, first = prompt.indices("examples")[-1], prompt.indices("question")[0]
    assert last + 1 == first and prompt.segments[-1] == "template"
    assert tuple(prompt.ids[at] for at in prompt.indices("examples")) == encode(tokenizer, made.examples or "")


@pytest.mark.parametrize("name", REAL)
def test_published_chat_templates_keep_the_segments(name: str, tokenizer_dir: Callable[[str], Path]) -> None:
    tokenizer = read_tokenizer(tokenizer_dir(name))
    (made,) = mi.with_examples([Problem("a", " How many? ", "3")], [Problem("b", " Two and two? ", "4")])
    for template in ("raw", "chat"):
        prompt = build_prompt(tokenizer, made, template)
        shown = tokenizer.decode([prompt.ids[at] for at in prompt.indices("examples")])
        assert shown.lstrip() == "Two and two? \nThe final answer is \\boxed{4}\n\n"


def test_which_examples_depends_on_seed_and_problem_never_on_the_list() -> None:
    pool = [Problem(f"p{at}", f"{at} + {at} ?", str(2 * at)) for at in range(9)]
    drawn = mi.with_examples(pool, pool, n=3, seed=1)
    assert drawn == tuple(mi.with_examples([problem], pool, n=3, seed=1)[0] for problem in pool)
    assert drawn != mi.with_examples(pool, pool, n=3, seed=2) and len({made.examples for made in drawn}) > 6
    for problem, made in zip(pool, drawn, strict=True):
        assert problem.question not in (made.examples or "") and replace(made, examples=None) == problem
    again = replace(pool[0], id="another name")
    assert again.question not in (mi.with_examples([again], pool, n=8)[0].examples or "")


@pytest.mark.parametrize(
    ("examples", "options", "message"),
    [
        (" ", {}, "the text of the examples is empty"),
        (f"Look :  {POOL[0].question} 3", {}, "problem 'p0': the examples hold its own question"),
        (POOL[:1], {}, "problem 'p0': only 0 of the 1 examples ask another question: give others, fewer, or n="),
        (POOL[:1], {"n": 1}, "problem 'p0': only 0 of the 1 examples"),
        ([*POOL[1:], POOL[1]], {"n": 1}, "among the examples, the problem id 'p1' is given twice"),
        ("Two is 2 .", {"form": FORM}, "n and form write examples that are given as problems"),
        (POOL, {"n": 3}, "problem 'p0': only 2 of the 3 examples"),
        (POOL[1:], {"form": "{question} {hint}"}, "its fields are {question}, {answer} and {solution}"),
    ],
)
def test_what_makes_no_sense_is_refused(examples: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        mi.with_examples(POOL[:1], examples, **options)


def test_examples_are_text_and_words_that_the_tokenizer_knows() -> None:
    tokenizer = qwen2_tokenizer()
    (spelt,) = mi.with_examples(POOL[:1], "Anna <|im_end|> has 3 . ")
    special = tokenizer.convert_tokens_to_ids("<|im_end|>")
    with pytest.warns(UserWarning, match="first: 'p0', its examples"):
        (pair,) = make_pairs(tokenizer, [spelt], Insertion.meaningless(" /", 4))
    assert special not in pair.base.ids and pair.special_as_text == ("examples",)
    (unknown,) = mi.with_examples(POOL[:1], "zebra zebra zebra ")
    with pytest.raises(ValueError, match="hold words that this tokenizer does not know.*'zebra'"):
        make_pairs(word_tokenizer(), [unknown], Insertion.meaningless(" /", 4))
    with pytest.raises(ValueError, match='takes no examples; use template="raw"'):
        make_pairs(tokenizer, [unknown], Insertion.meaningless(" /", 4), template="paper")
