"""Insertions that depend on the problem, and tokens that are no text: what goes in, what is refused, what analyses do."""

import copy
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import qwen2_tokenizer, word_tokenizer
from models_under_test import loaded, problems
from tokenizers_under_test import REAL, read_tokenizer

import mless_interp as mi
from mless_interp.prompts import pairs as prompt_pairs
from mless_interp.prompts.insertions import KINDS, Insertion
from mless_interp.prompts.pairs import make_pairs
from mless_interp.prompts.problems import Problem
from mless_interp.prompts.prompt import Template, build_prompt, encode

Folder = Callable[[str], Path]
words, bytewise = lru_cache(word_tokenizer), lru_cache(qwen2_tokenizer)
ASKED = Problem(
    "p", "How many apples ?", "3", system="reason .", distractor="5", extra={"distractor_text": "Ben has 7 cards ."}
)


def shown(insertion: Insertion, problem: Problem = ASKED) -> str:
    return words().decode(list(insertion.span(words(), problem).ids))


def test_other_repeated_tokens_stand_where_the_insertion_does_as_often() -> None:
    own = Insertion.meaningless(" /", 12, after="question")
    others = own.other_repeats(words(), 5, seed=1)
    spans = [each.span(words(), ASKED).ids for each in others]
    assert all(len(ids) == 12 and len(set(ids)) == 1 for ids in spans) and len({ids[0] for ids in spans}) == 5
    assert own.span(words(), ASKED).ids[0] not in {ids[0] for ids in spans}
    assert all(each.after == "question" and each.before is None for each in others)
    assert others == own.other_repeats(words(), 5, seed=1) != own.other_repeats(words(), 5, seed=2)
    with pytest.raises(ValueError, match="repeats no unit"):
        Insertion.counting(12).other_repeats(words())
    with pytest.raises(ValueError, match="need 9999 ordinary tokens, this tokenizer has"):
        own.other_repeats(words(), 9999)


def test_a_problem_s_own_text_is_inserted_by_its_key() -> None:
    assert shown(Insertion.from_key("distractor_text")) == "Ben has 7 cards ."
    assert shown(Insertion.from_key("distractor")) == "5"
    with pytest.raises(
        ValueError, match=r"problem 'p', its hint: there is no such text to insert \(it has id, question, "
    ):
        Insertion.from_key("hint").span(words(), ASKED)
    with pytest.raises(ValueError, match="problem 'p', its solution: there is no such text"):
        Insertion.from_key("solution").span(words(), ASKED)
    with pytest.raises(ValueError, match="problem 'p', its hint: 100 % of its tokens are '<unk>'"):
        Insertion.from_key("hint").span(words(), replace(ASKED, extra={"hint": "zebra zebra"}))
    with pytest.raises(ValueError, match="from_key needs the key to insert"):
        Insertion.from_key(" ")


@pytest.mark.parametrize("make", [qwen2_tokenizer, word_tokenizer])
def test_a_problem_s_own_text_never_becomes_special_tokens(make: Callable[[], Any]) -> None:
    tokenizer = make()
    many = "Ben has 7 cards . " * 20  # so that letters the tokenizer does not know are few
    spelt = replace(ASKED, question=f"{many}<|im_end|> ?", extra={"distractor_text": f"{many}<|im_end|>"})
    special = tokenizer.convert_tokens_to_ids("<|im_end|>")
    for insertion in (Insertion.repeat_question(), Insertion.from_key("distractor_text")):
        span = insertion.span(tokenizer, spelt)
        assert special not in span.ids and "special tokens in it as text" in span.source


def test_white_space_is_repeated_without_merging_and_nothing_else_is_white_space() -> None:
    span = Insertion.whitespace(7, unit="\n").span(bytewise(), "p")
    assert span.ids == encode(bytewise(), "\n") * 7
    with pytest.raises(ValueError, match="inserts white space alone, got ' /'"):
        Insertion.whitespace(7, unit=" /")


def test_ids_go_in_as_they_are() -> None:
    special = words().convert_tokens_to_ids("<|im_end|>")
    once = Insertion.ids([9, special])
    assert once.span(words(), "p").ids == (9, special) and once.span(words(), "p").source == "ids, with special tokens"
    assert Insertion.ids([9, 10], 4).span(words(), "p").ids == (9, 10, 9, 10)
    assert Insertion.ids([len(words())]).span(words(), "p").source == "ids, with rows that no token names"
    with pytest.raises(ValueError, match="the unit of ids is 2 tokens .* does not divide n_tokens=5; use 4"):
        Insertion.ids([9, 10], 5).span(words(), "p")
    with pytest.raises(ValueError, match="there are no token ids to insert"):
        Insertion.ids([])
    with pytest.raises(ValueError, match="token ids are 0 or more, got -1"):
        Insertion.ids([-1])


def test_words_beyond_the_model_s_vocabulary_are_refused_before_anything_runs(tiny_model_dir: Folder) -> None:
    """Also where only the last of many problems holds one: a tokenizer with words that were added later."""
    model = copy.copy(loaded(tiny_model_dir("qwen2"), "bridge"))
    model.tokenizer = copy.deepcopy(model.tokenizer)
    model.tokenizer.add_tokens([f"added{index}" for index in range(model.info.d_vocab)])
    highest = model.info.d_vocab + 3
    word = model.tokenizer.convert_ids_to_tokens(highest)
    last = replace(problems()[2], question=f"How many {word} does Ben have ?")
    with pytest.raises(ValueError, match=rf"problem 'p2' holds token id {highest}, but .* has the ids 0 to"):
        make_pairs(model, [*problems()[:2], last], Insertion.meaningless(" /", 3))


def test_a_pause_is_a_reserved_token_or_refused_with_the_remedy() -> None:
    with pytest.raises(ValueError, match="no reserved token to pause with, and none is added: .* token=") as refused:
        Insertion.pause(3).span(words(), "p")
    row = int(str(refused.value).rsplit("=", 1)[1])
    assert Insertion.pause(3, token=row).span(words(), "p").ids == (row,) * 3
    grown = word_tokenizer()
    grown.add_special_tokens(
        {"additional_special_tokens": ["<|reserved_special_token_1|>", "<|reserved_special_token_0|>"]}
    )
    first = grown.convert_tokens_to_ids("<|reserved_special_token_1|>")
    span = Insertion.pause(3).span(grown, "p")
    assert span.ids == (first,) * 3 and span.source == "token '<|reserved_special_token_1|>'", "the lowest id"
    other = Insertion.pause(2, token="<|reserved_special_token_0|>").span(grown, "p")
    assert other.ids == (first + 1,) * 2
    grown.add_special_tokens({"additional_special_tokens": ["<pause>"]})
    assert Insertion.pause(1).span(grown, "p").source == "token '<pause>'", "a token trained as a pause comes first"
    with pytest.raises(ValueError, match="this tokenizer has no token '<none>' to pause with"):
        Insertion.pause(1, token="<none>").span(words(), "p")


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
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>")


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
        (Insertion.meaningful("a", 3), ["▁a"] * 3),
        (Insertion.text("ab"), ["a", "b"]),
    ],
    ids=lambda made: made.label if isinstance(made, Insertion) else "",
)
def test_a_text_has_the_ids_that_it_has_in_the_middle_of_a_prompt(
    form: str, insertion: Insertion, pieces: list[str]
) -> None:
    tokenizer = spaced(form)
    assert tokenizer.convert_ids_to_tokens(list(insertion.span(tokenizer, TWICE).ids)) == pieces


@pytest.mark.parametrize("form", ["prepend", "metaspace"])
def test_an_answer_goes_on_with_its_prefix_and_no_space_comes_between(form: str) -> None:
    tokenizer = spaced(form)
    asked = [Problem("p", "a b?", "3", distractor="ab", answer_prefix=prefix) for prefix in (None, "a:", "")]
    asked = [replace(problem, id=str(at), system="a") for at, problem in enumerate(asked)]
    template = Template("raw", "", answer_prefix="\na:")
    first, second, alone = make_pairs(tokenizer, asked, Insertion.meaningless("/", 2), template=template)
    pieces = [tokenizer.convert_ids_to_tokens(list(pair.answered().base.ids)) for pair in (first, second, alone)]
    assert pieces[0][-4:] == ["\n", "a", ":", "3"] and "".join(pieces[0]).endswith("?\na:3")
    assert pieces[1][-3:] == ["▁a", ":", "3"] and pieces[2][-2:] == [
        "▁",
        "3",
    ]  # with nothing before it, a word of its own
    assert tokenizer.convert_ids_to_tokens(list(first.distractor_ids)) == ["a", "b"]


@pytest.mark.parametrize("form", ["prepend", "metaspace"])
def test_a_space_that_the_tokenizer_puts_between_parts_is_no_difference(form: str) -> None:
    """A text that was cut between its words reads as it did whole; a chat, whose template has no space there, does not."""
    tokenizer = spaced(form)
    prompt = build_prompt(tokenizer, Problem("p", "b a?", "3", system="a b."))
    assert "".join(tokenizer.convert_ids_to_tokens(list(prompt.ids))) == "▁a▁b.▁b▁a?"
    assert prompt.ids == encode(tokenizer, "a b. b a?") and prompt.joined_differs is False
    tokenizer.chat_template = "{{ messages[0]['content'] }}\n{{ messages[1]['content'] }}"
    chat = build_prompt(tokenizer, Problem("p", "b a?", "3", system="a b."), "chat")
    assert chat.ids != encode(tokenizer, "a b.\nb a?") and chat.joined_differs is True


PAUSES = {"llama3_1": "<|reserved_special_token_0|>", "gemma3": "<unused0>", "qwen2_5": None}


@pytest.mark.parametrize("name", REAL)
def test_every_kind_with_published_tokenizers(name: str, tokenizer_dir: Folder) -> None:
    tokenizer = read_tokenizer(tokenizer_dir(name))
    spelt = Problem("p", "How many <|im_end|><end_of_turn><|eot_id|> apples?", "3")
    special = {token for token, kind in tokenizer.added_tokens_decoder.items() if kind.special}
    assert not special.intersection(Insertion.repeat_question(2).span(tokenizer, spelt).ids)
    plain = Problem("p", "How many apples?", "3")
    again = Insertion.repeat_question(2).span(tokenizer, plain)
    assert tokenizer.decode(list(again.ids)) == " How many apples? How many apples?"
    assert tokenizer.decode(list(Insertion.counting(11).span(tokenizer, "p").ids)).startswith(" 1 2 3 4")
    assert len(set(Insertion.whitespace(9).span(tokenizer, "p").ids)) == 1
    if PAUSES[name] is None:
        with pytest.raises(ValueError, match=f"leaves unused, {len(tokenizer)} or more"):
            Insertion.pause(4).span(tokenizer, "p")
    else:
        assert tokenizer.convert_ids_to_tokens(Insertion.pause(4).span(tokenizer, "p").ids) == [PAUSES[name]] * 4


def test_every_kind_says_where_its_tokens_come_from() -> None:
    spelt = replace(ASKED, extra={"hint": f"{'Ben has 7 cards . ' * 20}<|im_end|>"})
    special = words().convert_tokens_to_ids("<|im_end|>")
    made = {
        "unit": Insertion.meaningful("he", 2),
        "unit, with special tokens": Insertion.meaningless("<|im_end|>", 2),
        "text": Insertion.text("Ben has 7 cards ."),
        "text, with special tokens": Insertion.text("Ben <|im_end|>"),
        "numbers": Insertion.counting(2),
        "words": Insertion.random_sentence(2),
        "questions of other problems": Insertion.other_questions(problems(), 2),
        "bos token": Insertion.repeated_bos(2),
        "ids": Insertion.ids([9]),
        "ids, with special tokens": Insertion.ids([special] * 2),
        "ids, with special tokens, with rows that no token names": Insertion.ids([special, len(words())]),
        "token '<|im_end|>'": Insertion.pause(2, token="<|im_end|>"),
        "the problem's question": Insertion.repeat_question(2),
        "the problem's distractor": Insertion.from_key("distractor"),
        "the problem's hint, special tokens in it as text": Insertion.from_key("hint"),
    }
    tokenizers = {"words": bytewise()}
    found = {name: made[name].span(tokenizers.get(name, words()), spelt).source for name in made}
    assert found == {name: name for name in made}


# ---------------------------------------------------------------------------------------------------- names and places


@pytest.mark.parametrize(
    "place", [{"before": "template"}, {"after": "question", "before": ("bos", "system")}, {"at": (0, 2)}]
)
def test_an_insertion_takes_the_place_of_another(place: dict[str, Any]) -> None:
    """Whatever its own was; places in a list are those in a tuple."""
    other = Insertion.meaningless(" /", 4, **place)
    for own in ({}, {"at": 3}, {"after": "bos"}):
        assert Insertion.counting(4, **own).placed_as(other) == Insertion.counting(4, **place)
    listed = {name: list(value) if isinstance(value, tuple) else value for name, value in place.items()}
    assert (
        Insertion.meaningless(" /", 4, **listed) == other
        and len({other, Insertion.meaningless(" /", 4, **listed)}) == 1
    )


NAMED = {
    "meaningless": (" ?", Insertion.meaningless(" ?", 6)),
    "meaningful": ("she", Insertion.meaningful("she", 6)),
    "random_sentence": (None, Insertion.random_sentence(6, seed=4)),
    "other_questions": (None, Insertion.other_questions(problems(), 6, seed=4)),
    "repeat_question": ("2", Insertion.repeat_question(2)),
    "from_key": ("hint", Insertion.from_key("hint")),
    "counting": (None, Insertion.counting(6)),
    "whitespace": ("\n", Insertion.whitespace(6, unit="\n")),
    "pause": ("17", Insertion.pause(6, token=17)),
    "repeated_bos": (None, Insertion.repeated_bos(6)),
    "ids": ("5, 6", Insertion.ids([5, 6], 6)),
    "text": ("Anna has", Insertion.text("Anna has", 6)),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_command_line_names_every_kind(kind: str) -> None:
    unit, made = NAMED[kind]
    length = None if KINDS[kind].own_length else 6
    options: dict[str, Any] = {"unit": unit, "n_tokens": length, "seed": 4, "problems": problems()}
    assert Insertion.named(kind, **options) == made
    assert Insertion.named(kind, **options, at=0) == replace(made, before=None, at=0)
    assert not KINDS[kind].counted or Insertion.named(kind, problems=problems()).n_tokens == 55
    if KINDS[kind].own_length:
        with pytest.raises(ValueError, match=f"insertion '{kind}' is as long as each problem's own text, .* got 9"):
            Insertion.named(kind, unit=unit, n_tokens=9)


@pytest.mark.parametrize(
    ("kind", "unit", "message"),
    [
        ("ids", None, "cannot read '': give whole numbers such as 128002,128003"),
        ("noise", None, "unknown insertion 'noise'; choose one of meaningless, meaningful, random_senten"),
        ("counting", "x", "insertion 'counting' has no unit, got 'x': leave it out"),
        ("from_key", None, "from_key needs the key to insert"),
    ],
)
def test_what_a_command_line_gets_wrong_is_said(kind: str, unit: str | None, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Insertion.named(kind, unit=unit)


def test_labels_are_short_and_tell_insertions_apart() -> None:
    made = {
        "question again": Insertion.repeat_question(),
        "question again, 2 times": Insertion.repeat_question(2),
        "its own 'hint'": Insertion.from_key("hint"),
        "counting x9": Insertion.counting(9),
        "whitespace '\\n' x9": Insertion.whitespace(9, unit="\n"),
        "pause x9": Insertion.pause(9),
        "pause 17 x9": Insertion.pause(9, token=17),
        "ids 5,6 x4": Insertion.ids([5, 6], 4),
        "ids 0,1,2,3": Insertion.ids(range(4)),
        "ids 0,1,2,... #93f215": Insertion.ids(range(5)),
    }
    assert {name: insertion.label for name, insertion in made.items()} == {name: name for name in made}
    many, others = Insertion.ids(range(100)).label, Insertion.ids([*range(99), 200]).label
    assert many != others and len(many) < 30


# ------------------------------------------------------------------------------------------------------- every analysis

UNEVEN = [
    replace(problem, question=question, system="Please reason step by step .", extra={"hint": f"Dan {'gets ' * at}7 ."})
    for at, (problem, question) in enumerate(
        zip(problems(), [p.question + " ?" * 3 * at for at, p in enumerate(problems())], strict=True)
    )
]


@pytest.mark.slow
@pytest.mark.parametrize(
    "insertion", [Insertion.repeat_question(), Insertion.from_key("hint")], ids=lambda made: made.kind
)
def test_every_analysis_takes_spans_of_several_lengths(insertion: Insertion, tiny_model_dir: Folder) -> None:
    model = loaded(tiny_model_dir("qwen2"), "bridge")
    pairs = make_pairs(model, UNEVEN, insertion)
    assert len({pair.n_inserted for pair in pairs}) == 3
    quiet: dict[str, Any] = {"progress": False}
    alone = [mi.patch_heads(model, [pair], contrast="content", **quiet) for pair in pairs]
    found = mi.patch_heads(model, pairs, contrast="content", **quiet)
    for at, one in enumerate(alone):
        np.testing.assert_allclose(found.per_head[at], one.per_head[0], atol=1e-5)
    assert mi.score_heads(model, pairs, **quiet).count("span_mass").min() == 3
    assert len(mi.attention_profile(model, pairs, heads=["L0H1"], **quiet).curves())
    mi.attribute_heads(model, pairs, **quiet)
    mi.joint_knockout(model, pairs, ["L0H1", "L1H2"], n_random_sets=2, **quiet)
    mi.read_effects(model, pairs, ["L0H1"], **quiet)
    mi.activation_shift(model, pairs, **quiet)
    mi.mediate(model, pairs, **quiet)
    parts = mi.decompose_attention(model, pairs, control="random_sentence", n_control_draws=2, **quiet)
    assert parts.control is not None and np.isfinite(parts.control).all()
    mi.views.attention(model, pairs, [mi.Head(0, 1)])
    mi.evaluate_accuracy(model, UNEVEN, [None, insertion], max_new_tokens=2, **quiet)
    with pytest.raises(ValueError, match="has one length only, so it has no dose"):
        mi.dose_response(model, UNEVEN, insertion, doses=(2, 4), **quiet)


def test_controls_are_as_long_as_each_problem_s_own_insertion(
    tiny_model_dir: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mless_interp.circuits import specificity as control

    made = []

    def spy(*given: Any, **options: Any) -> Any:
        pairs = pairs_of_any(*given, **options)
        made.extend((pair.insertion.kind, pair.id, pair.n_inserted) for pair in pairs)
        return pairs

    model = loaded(tiny_model_dir("qwen2"), "bridge")
    pairs = make_pairs(model, UNEVEN, Insertion.repeat_question())
    pairs_of_any = prompt_pairs.pairs_of_any
    monkeypatch.setattr(prompt_pairs, "pairs_of_any", spy)
    prepared = control.prepare(model, pairs)
    rules = control.Controls(1, 0, 0.05, 0.05, None, False, 0)
    for insertion in (Insertion.random_sentence(1), Insertion.meaningful("he", 1)):
        under = rules._under(prepared, insertion)
        assert under.ids == prepared.ids and [p.span for p in under.bare] == [p.span for p in pairs]
    control.check_controls(pairs)
    own = {pair.id: pair.n_inserted for pair in pairs}
    assert len(made) == 6 and all(own[name] == n for _, name, n in made)


def test_drawn_sentences_do_not_depend_on_how_the_list_is_split() -> None:
    pool = [
        Problem(f"p{at}", f"How many {word} ?", "1") for at, word in enumerate(("apples", "pears", "coins", "books"))
    ]
    for insertion in (Insertion.other_questions(pool, 9, seed=3), Insertion.random_sentence(9, seed=3)):
        together = make_pairs(words(), pool, insertion)
        split = [*make_pairs(words(), pool[:1], insertion), *make_pairs(words(), pool[1:], insertion)]
        assert [pair.inserted.ids for pair in together] == [pair.inserted.ids for pair in split]
