"""Insertions that depend on the problem, and tokens that are no text: what goes in, what is refused, what analyses do."""

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import qwen2_tokenizer, word_tokenizer
from models_under_test import problems
from tokenizers_under_test import EACH_REAL, read_tokenizer

import mless_interp as mi
from mless_interp.prompts.insertions import KINDS, Insertion
from mless_interp.prompts.pairs import make_pairs, pairs_like
from mless_interp.prompts.problems import Problem
from mless_interp.prompts.prompt import Template, build_prompt, encode
from mless_interp.prompts.texts import _pieces

Folder = Callable[[str], Path]
words, bytewise = lru_cache(word_tokenizer), lru_cache(qwen2_tokenizer)
ASKED = Problem(
    "p", "How many apples ?", "3", system="reason .", distractor="5", extra={"distractor_text": "Ben has 7 cards ."}
)


def test_other_repeated_tokens_stand_where_the_insertion_does_as_often() -> None:
    own = Insertion.meaningless(" /", 12, after="question")
    others = own.other_repeats(words(), 5, seed=1)
    spans = [each.span(words(), ASKED) for each in others]
    assert all(len(ids) == 12 and len(set(ids)) == 1 for ids in spans) and len({ids[0] for ids in spans}) == 5
    assert own.span(words(), ASKED)[0] not in {ids[0] for ids in spans}
    assert all(each.after == "question" and each.before is None for each in others)
    assert others == own.other_repeats(words(), 5, seed=1) != own.other_repeats(words(), 5, seed=2)
    of_two = [each.span(words(), ASKED) for each in Insertion.meaningless(" / ?", 12).other_repeats(words())]
    assert len(of_two) == 20 and all(ids == ids[:2] * 6 for ids in of_two)
    assert len({token for ids in of_two for token in ids} - {*own.span(words(), ASKED)}) == 40, "all of them others"
    for place in ({"before": "template"}, {"after": "question", "before": ("bos", "system")}, {"at": (0, 2)}):
        other = Insertion.meaningless(" /", 4, **place)
        assert Insertion.counting(4, at=3).placed_as(other) == Insertion.counting(4, **place)


@pytest.mark.parametrize("make", [qwen2_tokenizer, word_tokenizer])
def test_a_problem_s_own_text_never_becomes_special_tokens(make: Callable[[], Any]) -> None:
    tokenizer = make()
    many = "Ben has 7 cards . " * 20  # so that letters the tokenizer does not know are few
    spelt = replace(ASKED, question=f"{many}<|im_end|> ?", extra={"distractor_text": f"{many}<|im_end|>"})
    for insertion in (Insertion.repeat_question(), Insertion.from_key("distractor_text")):
        assert tokenizer.convert_tokens_to_ids("<|im_end|>") not in insertion.span(tokenizer, spelt)


def test_a_pause_is_the_first_reserved_token_or_one_that_was_trained() -> None:
    grown = word_tokenizer()
    names = ["<|reserved_special_token_1|>", "<|reserved_special_token_0|>"]
    grown.add_special_tokens({"additional_special_tokens": names})
    first = grown.convert_tokens_to_ids(names[0])
    assert Insertion.pause(3).span(grown, "p") == (first,) * 3, "the lowest id"
    assert Insertion.pause(2, token=names[1]).span(grown, "p") == (first + 1,) * 2
    grown.add_special_tokens({"additional_special_tokens": ["<pause>"]})
    trained = grown.convert_tokens_to_ids("<pause>")
    assert Insertion.pause(1).span(grown, "p") == (trained,), "a token trained as a pause comes first"


def spaced(form: str) -> Any:
    """A tokenizer that puts a space before whatever it encodes, as Llama 2's (`prepend`) or T5's (`metaspace`) does."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    pieces = ["<unk>", *"▁\n/.?:1234567890ab", "▁a", "▁/"]
    tokenizer = Tokenizer(
        models.BPE({piece: at for at, piece in enumerate(pieces)}, [("▁", "a"), ("▁", "/")], unk_token="<unk>")
    )
    if form == "prepend":
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always", split=False)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>", eos_token="<eos>")


TWICE = Problem("p", "a b?", "3", extra={"hint": "ab."})


@pytest.mark.parametrize("form", ["prepend", "metaspace"])
@pytest.mark.parametrize(
    ("insertion", "pieces"),
    [
        (Insertion.whitespace(3), ["▁"] * 3),
        (Insertion.whitespace(2, unit="\n"), ["\n"] * 2),
        (Insertion.counting(5), ["▁", "1", "▁", "2", "▁"]),
        (Insertion.repeat_question(2), ["▁a", "▁", "b", "?"] * 2),
        (Insertion.from_key("hint"), ["▁a", "b", "."]),
        (Insertion.meaningless(" /", 3), ["▁/"] * 3),
        (Insertion.meaningless("/", 3), ["/"] * 3),
        (Insertion.meaningless("/<eos>", 4), ["/", "<eos>"] * 2),
        (Insertion.meaningful("a", 3), ["▁a"] * 3),
        (Insertion.text("ab"), ["a", "b"]),
    ],
)
def test_a_text_has_the_ids_that_it_has_in_the_middle_of_a_prompt(
    form: str, insertion: Insertion, pieces: list[str]
) -> None:
    tokenizer = spaced(form)
    assert tokenizer.convert_ids_to_tokens(list(insertion.span(tokenizer, TWICE))) == pieces


@pytest.mark.parametrize("form", ["prepend", "metaspace"])
def test_an_answer_goes_on_with_its_prefix_and_no_space_comes_between(form: str) -> None:
    tokenizer = spaced(form)
    asked = [Problem("p", "a b?", "3", distractor="ab", answer_prefix=prefix) for prefix in (None, "a:", "")]
    asked = [replace(problem, id=str(at), system="a") for at, problem in enumerate(asked)]
    template = Template("raw", "", answer_prefix="\na:")
    first, second, alone = make_pairs(tokenizer, asked, Insertion.meaningless("/", 2), template=template)
    pieces = [tokenizer.convert_ids_to_tokens(list(pair.answered().base.ids)) for pair in (first, second, alone)]
    assert pieces[0][-4:] == ["\n", "a", ":", "3"] and "".join(pieces[0]).endswith("?\na:3")
    assert pieces[1][-3:] == ["▁a", ":", "3"]
    assert pieces[2][-2:] == ["▁", "3"], "with nothing before it, a word of its own"
    prompt = build_prompt(tokenizer, Problem("p", "b a?", "3", system="a b."))
    assert prompt.ids == encode(tokenizer, "a b. b a?"), "a text that was cut between its words reads as it did whole"
    assert _pieces(tokenizer, " a b a", [0, 2, 6])[0] == " a", "the space that a text begins with is its own"


PAUSES = {"llama3_1": "<|reserved_special_token_0|>", "gemma3": "<unused0>", "qwen2_5": None}


@pytest.mark.parametrize("name", EACH_REAL)
def test_every_kind_with_published_tokenizers(name: str, tokenizer_dir: Folder) -> None:
    tokenizer = read_tokenizer(tokenizer_dir(name))
    again = Insertion.repeat_question(2).span(tokenizer, Problem("p", "How many apples?", "3"))
    assert tokenizer.decode(list(again)) == " How many apples? How many apples?"
    assert tokenizer.decode(list(Insertion.counting(11).span(tokenizer, "p"))).startswith(" 1 2 3 4")
    assert len(set(Insertion.whitespace(9).span(tokenizer, "p"))) == 1
    if PAUSES[name] is not None:
        assert tokenizer.convert_ids_to_tokens(Insertion.pause(4).span(tokenizer, "p")) == [PAUSES[name]] * 4


NAMED = {
    "meaningless": (" ?", Insertion.meaningless(" ?", 6)),
    "meaningful": ("she", Insertion.meaningful("she", 6)),
    "random_sentence": (None, Insertion.random_sentence(6, seed=4)),
    "other_questions": (None, Insertion.other_questions(problems(), 6, seed=4)),
    "repeat_question": ("2", Insertion.repeat_question(2)),
    "from_key": ("hint", Insertion.from_key("hint")),
    "counting": (None, Insertion.counting(6)),
    "whitespace": ("\n", Insertion.whitespace(6, unit="\n")),
    "pause": ("<a>", Insertion.pause(6, token="<a>")),
    "repeated_bos": (None, Insertion.repeated_bos(6)),
    "ids": ("5, 6", Insertion.ids([5, 6], 6)),
    "text": ("Anna has", Insertion.text("Anna has")),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_command_line_names_every_kind(kind: str) -> None:
    unit, made = NAMED[kind]
    length = None if KINDS[kind].own_length else 6
    options: dict[str, Any] = {"unit": unit, "n_tokens": length, "seed": 4, "problems": problems()}
    assert Insertion.named(kind, **options) == made
    assert Insertion.named(kind, **options, at=0) == replace(made, before=None, at=0)
    assert not KINDS[kind].counted or Insertion.named(kind, problems=problems()).n_tokens == 55


UNEVEN = [
    replace(problem, question=question, system="Please reason step by step .", extra={"hint": f"Dan {'gets ' * at}7 ."})
    for at, (problem, question) in enumerate(
        zip(problems(), [p.question + " ?" * 3 * at for at, p in enumerate(problems())], strict=True)
    )
]


@pytest.mark.parametrize("insertion", [Insertion.repeat_question(), Insertion.from_key("hint")])
def test_analyses_take_spans_of_several_lengths(insertion: Insertion, model: Any) -> None:
    pairs = make_pairs(model, UNEVEN, insertion)
    own = [pair.n_inserted for pair in pairs]
    assert len(set(own)) == 3
    quiet: dict[str, Any] = {"progress": False}
    alone = [mi.patch_heads(model, [pair], contrast="content", **quiet).per_head[0] for pair in pairs]
    np.testing.assert_allclose(mi.patch_heads(model, pairs, contrast="content", **quiet).per_head, alone, atol=1e-5)
    for analysis in (mi.attribute_heads, mi.activation_shift, mi.mediate, mi.attention_profile, mi.score_heads):
        analysis(model, pairs, **quiet)
    parts = mi.decompose_attention(model, pairs, n_control_draws=2, **quiet)
    assert parts.control is not None and np.isfinite(parts.control).all()
    mi.evaluate_accuracy(model, UNEVEN, [None, insertion], max_new_tokens=2, **quiet)
    with pytest.raises(ValueError, match="has one length only, so it has no dose"):
        mi.dose_response(model, UNEVEN, insertion, doses=(2, 4), **quiet)


def test_other_insertions_are_as_long_as_each_problem_s_own() -> None:
    pairs = make_pairs(words(), UNEVEN, Insertion.repeat_question())
    for insertion in (Insertion.random_sentence(1), Insertion.meaningful("he", 1)):
        others = pairs_like(words(), pairs, insertion)
        assert [(pair.id, pair.span) for pair in others] == [(pair.id, pair.span) for pair in pairs]
