"""Any text, any insertion, any template, three published tokenizers: the pair is right, or refused in words."""

import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fuzzing import fuzz
from hypothesis import assume
from hypothesis import strategies as st
from tokenizers_under_test import REAL, read_tokenizer

from mless_interp.prompts.insertions import Insertion
from mless_interp.prompts.pairs import PromptPair, make_pairs
from mless_interp.prompts.problems import Problem

CONTROL = tuple(
    "<|im_end|>;<|im_start|>system\n;<|eot_id|>;<|begin_of_text|>;<bos>;<start_of_turn>user;<eos>".split(";")
)
PIECES = tuple(" ;  ;\n;\t;$x^2$;\\boxed{;};{};/ / /;1234567;é;e\u0301;\u200b;\ufeff;\u202e".split(";"))
HARD = ("中", "नमस्ते", "👩‍👩‍👧", "<", "|", ">", "</s>", "[INST]", "<|", "|>", "▁", "Ġ", "he", " he")

anything = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12)
texts = st.lists(st.one_of(anything, st.sampled_from(CONTROL + PIECES + HARD)), min_size=1, max_size=8).map("".join)
words, lengths = texts.filter(str.strip), st.integers(1, 60)
insertions = st.one_of(  # how one is made, and of what: made inside the test, as it draws words of its own
    st.tuples(st.just("meaningless"), st.sampled_from((" /", "/", " he", ".", "\n", " ...", "中")), lengths),
    st.tuples(st.just("meaningful"), st.sampled_from(("he", "she", "the")), lengths),
    st.tuples(st.just("random_sentence"), lengths, st.integers(0, 99)),
    st.tuples(st.just("text"), words),
)
templates = st.sampled_from(("raw", "raw_as_sent", "text", "chat"))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.* spell special tokens:UserWarning")
@fuzz(few=60, share=10, name=st.sampled_from(REAL), question=words, answer=words, asked=insertions, template=templates)
def test_a_pair_of_any_text_is_right_or_refused(
    tokenizer_dir: Callable[[str], Path], name: str, question: str, answer: str, asked: tuple, template: str
) -> None:
    insertion = getattr(Insertion, asked[0])(*asked[1:])
    tokenizer = read_tokenizer(tokenizer_dir(name))
    problem = Problem(id="fuzzed", question=question, answer=answer)
    try:
        (pair,) = make_pairs(tokenizer, [problem], insertion, template=template)
        answered = pair.answered()
    except ValueError as error:
        assert "fuzzed" in str(error) or insertion.kind in str(error) or "insertion" in str(error), error
        assume(False)
    (plain,) = make_pairs(tokenizer, [Problem(id="plain", question="x", answer="x")], insertion, template=template)
    for each in (pair, answered):
        check_alignment(each)
    check_text(tokenizer, pair, question)
    special = set(tokenizer.all_special_ids)
    assert count(pair.base.ids, special) == count(plain.base.ids, special), "the text became control tokens"
    assert not set(answered.answer_ids) & special


def check_alignment(pair: PromptPair) -> None:
    start, stop = pair.span
    inserted, base = pair.inserted.ids, pair.base.ids
    assert inserted[:start] + inserted[stop:] == base
    assert [inserted[at] for at in pair.alignment] == list(base)
    assert [*pair.alignment] == [*range(start), *range(stop, len(inserted))]
    assert pair.inserted.indices("inserted") == tuple(range(start, stop))
    if pair.insertion.n_tokens is not None:
        assert stop - start == pair.insertion.n_tokens
    if pair.insertion.repeats:
        unit = set(inserted[start:stop])
        assert len(unit) <= 12, "a repeated unit is a few tokens, again and again"


def check_text(tokenizer: Any, pair: PromptPair, question: str) -> None:
    """The question can be read in the prompt, as the tokenizer's own normalisation leaves it."""
    read = tokenizer.decode(list(pair.base.ids), skip_special_tokens=False, clean_up_tokenization_spaces=False)
    expected, found = (unicodedata.normalize("NFC", text).replace("▁", " ") for text in (question.strip(), read))
    assert expected in found


def count(ids: tuple[int, ...], special: set[int]) -> int:
    return sum(token in special for token in ids)
