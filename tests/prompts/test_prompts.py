"""Prompts: what each template sends, which part each token belongs to, and what no template can do."""

from collections.abc import Callable
from functools import lru_cache
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
from conftest import qwen2_tokenizer, word_tokenizer
from models_under_test import loaded, problems
from tokenizers_under_test import REAL, read_tokenizer, slash_pairs

import mless_interp as mi
from mless_interp.prompts.problems import Problem
from mless_interp.prompts.prompt import (
    CHAT_SYSTEM,
    Prompt,
    build_prompt,
    encode,
)

PROBLEM = Problem(id="p", question="How many apples ?", answer="3", system="reason step by step")
words = lru_cache(word_tokenizer)
bytewise = lru_cache(qwen2_tokenizer)


def runs(prompt: Prompt) -> list[tuple[str, tuple[int, ...]]]:
    """The prompt's parts in order: segment name and token ids."""
    pairs = zip(prompt.segments, prompt.ids, strict=True)
    return [(name, tuple(i for _, i in part)) for name, part in groupby(pairs, key=lambda pair: pair[0])]


def texts(tokenizer: Any, prompt: Prompt) -> list[tuple[str, str]]:
    return [(name, tokenizer.decode(list(ids))) for name, ids in runs(prompt)]


def test_a_raw_prompt_is_system_then_question_by_hand() -> None:
    prompt = build_prompt(words(), PROBLEM)
    ids = words().convert_tokens_to_ids
    assert runs(prompt) == [
        ("bos", (ids("<bos>"),)),
        ("system", tuple(ids(["reason", "step", "by", "step"]))),
        ("question", tuple(ids(["How", "many", "apples", "?"]))),
    ]
    assert (prompt.bos_added, prompt.template) == (True, "raw")


def test_a_seam_that_would_merge_in_one_piece_is_recorded_not_mended() -> None:
    apart = build_prompt(bytewise(), Problem(id="p", question="apples ?", answer="3", system="red ap"))
    merges = build_prompt(bytewise(), Problem(id="p", question="ples ?", answer="3", system="red ap"))
    assert merges.joined_differs and merges.ids == encode(bytewise(), "red ap") + encode(bytewise(), "ples ?")
    assert "".join(text for _, text in texts(bytewise(), merges)) == "red apples ?"
    assert apart.joined_differs is not None


def with_template(template: str | None) -> Any:
    tokenizer = qwen2_tokenizer()
    tokenizer.chat_template = template
    return tokenizer


def test_a_chat_prompt_names_its_parts() -> None:
    prompt = build_prompt(bytewise(), PROBLEM, "chat")
    assert texts(bytewise(), prompt) == [
        ("template", "<|im_start|>system\n"),
        ("system", "reason step by step"),
        ("template", "<|im_end|>\n<|im_start|>user\n"),
        ("question", "How many apples ?"),
        ("template", "<|im_end|>\n<|im_start|>assistant\n"),
    ]
    assert not prompt.bos_added


@pytest.mark.parametrize("question", ["How many ?\n", "  How many ?", "How many ?"])
def test_white_space_around_a_question_is_what_the_chat_template_makes_of_it(question: str) -> None:
    problem = Problem(id="p", question=question, answer="3", system=" reason \n")
    trims = with_template("{% for m in messages %}[{{ m['role'] }}] {{ m['content'] | trim }} [end]{% endfor %}")
    for tokenizer in (bytewise(), trims):
        messages = [{"role": "system", "content": problem.system}, {"role": "user", "content": question}]
        whole = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        assert "".join(text for _, text in texts(tokenizer, build_prompt(tokenizer, problem, "chat"))) == whole


@pytest.mark.parametrize(
    ("template", "message"),
    [
        (None, 'this tokenizer has no chat template; use template="raw"'),
        ("{{ raise_exception('System role not supported') }}", r"takes no system prompt \(System role not supported\)"),
        ("{{ messages[1]['content'] }}", "does not show system prompt and question once each"),
        (
            "{% for m in messages * 2 %}{{ m['content'] }}{% endfor %}",
            "does not show system prompt and question once each",
        ),
        ("{{ messages[1]['content'] + messages[0]['content'] }}", "does not show system prompt and question once each"),
        (
            "{{ messages[0]['content'] + messages[1]['content'] | replace('How', 'Why') }}",
            "problem 'p': .* as they are",
        ),
    ],
)
def test_a_chat_template_that_cannot_be_cut_apart_is_refused(template: str | None, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build_prompt(with_template(template), PROBLEM, "chat")


Folder = Callable[[str], Path]


@pytest.mark.slow
@pytest.mark.parametrize("name", REAL)
def test_a_chat_prompt_is_what_the_tokenizers_own_template_encodes(
    name: str, tokenizer_dir: Folder, math500_path: Path
) -> None:
    tokenizer = read_tokenizer(tokenizer_dir(name))
    compared = 0
    for pair in slash_pairs(tokenizer_dir(name), math500_path, "chat"):
        messages = [{"role": "system", "content": CHAT_SYSTEM}, {"role": "user", "content": pair.problem.question}]
        whole = tokenizer.apply_chat_template(messages, tokenize=True, add_generation_prompt=True, return_dict=False)
        assert pair.base.joined_differs == (list(pair.base.ids) != list(whole))
        compared += not pair.base.joined_differs
    assert compared == 500


def test_pairs_of_another_tokenizer_are_refused_by_every_analysis(tiny_model_dir: Any) -> None:
    """Their ids are tokens here too, but others: all numbers would be of prompts that nobody wrote."""
    model = loaded(tiny_model_dir("llama"), "bridge")
    planted = mi.planted_model(readers=[mi.Head(0, 2)], n_heads=8, n_key_value_heads=2)
    pairs = mi.make_pairs(planted.tokenizer, mi.load_problems(planted, limit=2), mi.Insertion.meaningless(" /", 4))
    works = [mi.patch_heads, mi.locate_heads, mi.score_heads, mi.attention_profile, mi.decompose_attention]
    for work in (*works, mi.activation_shift, mi.mediate):
        with pytest.raises(ValueError, match="made for another tokenizer: its token .* make the pairs with this model"):
            work(model, pairs, progress=False)
    copied = mi.load_model(tiny_model_dir("llama"), backend="bridge")
    own = mi.make_pairs(model, problems(), mi.Insertion.meaningless(" /", 4))
    assert mi.score_heads(copied, own, metrics="lam", progress=False).problem_ids == ("p0", "p1", "p2")
