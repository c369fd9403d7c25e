"""Problems from plain text: the parts are the text, cut between words, with the ids of the text in one piece."""

import pytest
from conftest import qwen2_tokenizer, word_tokenizer

import mless_interp as mi
from mless_interp.prompts.insertions import Insertion
from mless_interp.prompts.pairs import make_pairs
from mless_interp.prompts.prompt import build_prompt, encode

TEXT = "What is the sum of two numbers ? Find the total of all apples and pears in each garden . Let the river share the stone"


@pytest.mark.parametrize("make", [qwen2_tokenizer, word_tokenizer])
def test_parts_join_to_the_text_and_to_its_ids(make: object) -> None:
    tokenizer = make()  # type: ignore[operator]
    (made,) = mi.problems_from_texts(tokenizer, [TEXT], n_context=12, n_before=4, n_answer=2)
    parts = (made.system, made.question, made.answer)
    assert " ".join("".join(f" {part}" for part in parts).split()) == " ".join(
        TEXT.split()[: len(" ".join(parts).split())]
    )
    whole = " ".join(TEXT.split()[: len(" ".join(parts).split())])
    prompt = build_prompt(tokenizer, made, "text")
    bos = (tokenizer.bos_token_id,) if tokenizer.bos_token_id is not None else ()
    assert (*prompt.ids, *encode(tokenizer, made.answer)) == (*bos, *encode(tokenizer, whole))
    assert prompt.segments.count("system") >= 4 and len(prompt.ids) - len(bos) >= 12
    (pair,) = make_pairs(tokenizer, [made], Insertion.meaningless(" /", 5), template="text")
    assert pair.span[0] == len(bos) + len(encode(tokenizer, made.system)), "the insertion stands between the parts"


def test_short_texts_are_counted_and_nothing_but_short_ones_refused() -> None:
    tokenizer = qwen2_tokenizer()
    with pytest.warns(UserWarning, match="1 of 2 texts are too short and left out"):
        (made,) = mi.problems_from_texts(tokenizer, ["What is", TEXT], n_context=8, n_before=2)
    assert made.id == "text-1"
    with pytest.raises(ValueError, match="none of the 1 texts has 65 tokens that can be cut between words"):
        mi.problems_from_texts(tokenizer, ["What is"])


def test_wrong_requests_are_named() -> None:
    tokenizer = qwen2_tokenizer()
    with pytest.raises(TypeError, match="texts must be several texts, got '"):
        mi.problems_from_texts(tokenizer, TEXT)
    with pytest.raises(
        ValueError, match="n_before must lie in 1 to n_context - 1 and n_answer be 1 or more, got 8, 8, 1"
    ):
        mi.problems_from_texts(tokenizer, [TEXT], n_context=8, n_before=8)
