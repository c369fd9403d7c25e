"""Problems from plain text, cut between words; worked examples before a question, never the problem's own."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import text_problems
from conftest import qwen2_tokenizer, word_tokenizer
from models_under_test import problems
from typer.testing import CliRunner

import mless_interp as mi
from mless_interp.prompts.insertions import Insertion
from mless_interp.prompts.pairs import make_pairs
from mless_interp.prompts.problems import Problem
from mless_interp.prompts.prompt import build_prompt, encode

TEXT = "What is the sum of two numbers ? Find the total of all apples and pears in each garden . Let the river share the stone"


@pytest.mark.parametrize("make", [qwen2_tokenizer, word_tokenizer])
def test_parts_join_to_the_text_and_to_its_ids(make: object) -> None:
    tokenizer = make()  # type: ignore[operator]
    (made,) = mi.problems_from_texts(tokenizer, [TEXT], n_context=12, n_before=4, n_answer=2)
    parts = " ".join((made.system, made.question, made.answer)).split()
    whole = " ".join(TEXT.split()[: len(parts)])
    assert " ".join(parts) == whole
    prompt = build_prompt(tokenizer, made, "text")
    bos = (tokenizer.bos_token_id,) if tokenizer.bos_token_id is not None else ()
    assert (*prompt.ids, *encode(tokenizer, made.answer)) == (*bos, *encode(tokenizer, whole))
    assert prompt.segments.count("system") >= 4 and len(prompt.ids) - len(bos) >= 12
    (pair,) = make_pairs(tokenizer, [made], Insertion.meaningless(" /", 5), template="text")
    assert pair.span[0] == len(bos) + len(encode(tokenizer, made.system)), "the insertion stands between the parts"


def test_short_texts_are_counted() -> None:
    tokenizer = qwen2_tokenizer()
    with pytest.warns(UserWarning, match=r"1 of 2 texts are too short and left out \(number 0\)"):
        (made,) = mi.problems_from_texts(tokenizer, ["What is", TEXT], n_context=8, n_before=2)
    assert made.id == "text-1"


def test_a_file_s_texts_are_parted_by_blank_lines_and_keep_their_names(tmp_path: Path) -> None:
    tokenizer = qwen2_tokenizer()
    wrapped = TEXT.replace(" Let", "\nLet")
    file = tmp_path / "texts.txt"
    file.write_text(f"\n{wrapped}\n  \n\n{TEXT}\n\t\n{TEXT} and more\n", encoding="utf-8-sig")
    sizes = {"n_context": 8, "n_before": 2}
    found = mi.problems_from_texts(tokenizer, file, **sizes)
    assert found == mi.problems_from_texts(tokenizer, [wrapped, TEXT, f"{TEXT} and more"], **sizes)
    assert [made.id for made in found] == ["text-0", "text-1", "text-2"]
    assert mi.problems_from_texts(tokenizer, file, limit=2, **sizes) == found[:2]
    long = mi.problems_from_texts(tokenizer, file, limit=1, n_context=24, n_before=4)[0]
    assert "\n" in f"{long.system}{long.question}", "a text may have several lines"


def test_a_file_without_texts_is_refused(tmp_path: Path) -> None:
    tokenizer, file, sizes = word_tokenizer(), tmp_path / "texts.txt", {"n_context": 8, "n_before": 2}
    for content, message in ((b" \n\n\t\n", "none of 0 texts has"), (b"What \xff", "in position 5")):
        file.write_bytes(content)
        with pytest.raises(ValueError, match=message):
            mi.problems_from_texts(tokenizer, file, **sizes)


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
def test_a_chat_template_shows_examples_in_the_message_of_the_question(make: Callable[[], Any]) -> None:
    tokenizer = make()
    (made,) = mi.with_examples(POOL[:1], POOL, n=1, form=FORM)
    prompt = build_prompt(tokenizer, made, "chat")
    last, first = prompt.indices("examples")[-1], prompt.indices("question")[0]
    assert last + 1 == first and prompt.segments[-1] == "template"
    assert tuple(prompt.ids[at] for at in prompt.indices("examples")) == encode(tokenizer, made.examples or "")


def test_which_examples_depends_on_seed_and_problem_never_on_the_list() -> None:
    pool = [Problem(f"p{at}", f"{at} + {at} ?", str(2 * at)) for at in range(9)]
    assert mi.with_examples(pool[:1], pool[1:2])[0].examples == "1 + 1 ?\nThe final answer is \\boxed{2}\n\n"
    drawn = mi.with_examples(pool, pool, n=3, seed=1)
    assert drawn == tuple(mi.with_examples([problem], pool, n=3, seed=1)[0] for problem in pool)
    assert drawn != mi.with_examples(pool, pool, n=3, seed=2) and len({made.examples for made in drawn}) > 6
    for problem, made in zip(pool, drawn, strict=True):
        assert problem.question not in (made.examples or "") and replace(made, examples=None) == problem
    again = replace(pool[0], id="another name")
    assert again.question not in (mi.with_examples([again], pool, n=8)[0].examples or "")


def test_examples_are_others_text_and_words_that_the_tokenizer_knows() -> None:
    tokenizer = qwen2_tokenizer()
    with pytest.raises(
        ValueError, match="problem 'p0': only 2 of the 3 examples ask another question: give others, or"
    ):
        mi.with_examples(POOL[:1], POOL, n=3)
    spelt = replace(POOL[0], examples="Anna <|im_end|> has 3 . ")
    special = tokenizer.convert_tokens_to_ids("<|im_end|>")
    with pytest.warns(UserWarning, match="first: 'p0', its examples"):
        (pair,) = make_pairs(tokenizer, [spelt], Insertion.meaningless(" /", 4))
    assert special not in pair.base.ids
    unknown = replace(POOL[0], examples="zebra zebra zebra ")
    with pytest.raises(ValueError, match="holds words that this tokenizer does not know.*'zebra'"):
        make_pairs(word_tokenizer(), [unknown], Insertion.meaningless(" /", 4))
    with pytest.raises(ValueError, match="is one string of system prompt and question, but problem 'p0' has examples"):
        make_pairs(tokenizer, [unknown], Insertion.meaningless(" /", 4), template="paper")


def test_a_models_samples_become_problems(tiny_model_dir: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = mi.load_model(tiny_model_dir("llama"), backend="bridge")
    model.tokenizer.bos_token = "apples"
    monkeypatch.setattr(mi, "load_model", lambda *_, **__: model)
    sizes = ["--n-before", "4", "--n-context", "9", "--n-answer", "2"]
    command = ["--model", "tiny", "--sample", "3", *sizes, "--out", str(tmp_path / "texts.jsonl")]
    found = CliRunner().invoke(text_problems.app, command, catch_exceptions=False)
    made = [json.loads(line) for line in (tmp_path / "texts.jsonl").read_text().splitlines()]
    assert found.output.startswith(f"{len(made)} problems in") and len(made) > 0
    assert all(each["system"] and each["problem"] and each["answer"] for each in made)
