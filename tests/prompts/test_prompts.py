"""Prompts: what each template sends, which part each token belongs to; what a problem spells is text, and known words."""

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
from conftest import qwen2_tokenizer, word_tokenizer
from models_under_test import loaded, problems
from tokenizers_under_test import EACH_REAL, SLASHES, read_tokenizer, slash_pairs

import mless_interp as mi
from mless_interp.prompts.pairs import make_pairs
from mless_interp.prompts.problems import Problem
from mless_interp.prompts.prompt import CHAT_SYSTEM, TEMPLATES, Prompt, Template, build_prompt, encode, spells_special

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


def test_a_seam_that_would_merge_in_one_piece_does_not() -> None:
    merges = build_prompt(bytewise(), Problem(id="p", question="ples ?", answer="3", system="red ap"))
    assert merges.ids == encode(bytewise(), "red ap") + encode(bytewise(), "ples ?")
    assert "".join(text for _, text in texts(bytewise(), merges)) == "red apples ?"


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


@pytest.mark.parametrize("shown", [None, " 1 + 1 ? 2\n\n", "\n"])
@pytest.mark.parametrize("question", ["How many ?\n", "  How many ?", "How many ?"])
def test_white_space_around_a_question_is_what_the_chat_template_makes_of_it(question: str, shown: str | None) -> None:
    problem = Problem(id="p", question=question, answer="3", system=" reason \n", examples=shown)
    trims = with_template("{% for m in messages %}[{{ m['role'] }}] {{ m['content'] | trim }} [end]{% endfor %}")
    for tokenizer in (bytewise(), trims):
        content = f"{shown or ''}{question}"
        messages = [{"role": "system", "content": problem.system}, {"role": "user", "content": content}]
        whole = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        assert "".join(text for _, text in texts(tokenizer, build_prompt(tokenizer, problem, "chat"))) == whole


@pytest.mark.parametrize(
    ("template", "message"),
    [
        (None, 'this tokenizer has no chat template; use template="raw"'),
        ("{{ raise_exception('System role not supported') }}", r"takes no system prompt \(System role not supported\)"),
        ("{{ messages[1]['content'] }}", "does not show system prompt and question once each"),
        ("{% for m in messages * 2 %}{{ m['content'] }}{% endfor %}", "does not show system prompt and question once"),
        ("{{ messages[0]['content'] + messages[1]['content'] | replace('How', 'Why') }}", "'p': .* as they are"),
    ],
)
def test_a_chat_template_that_cannot_be_cut_apart_is_refused(template: str | None, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build_prompt(with_template(template), PROBLEM, "chat")


Folder = Callable[[str], Path]


@pytest.mark.slow
@pytest.mark.parametrize("name", EACH_REAL)
def test_a_chat_prompt_is_what_the_tokenizers_own_template_encodes(
    name: str, tokenizer_dir: Folder, math500_path: Path
) -> None:
    tokenizer = read_tokenizer(tokenizer_dir(name))
    for pair in slash_pairs(tokenizer_dir(name), math500_path, "chat"):
        messages = [{"role": "system", "content": CHAT_SYSTEM}, {"role": "user", "content": pair.problem.question}]
        whole = tokenizer.apply_chat_template(messages, tokenize=True, add_generation_prompt=True, return_dict=False)
        assert list(pair.base.ids) == list(whole)


def test_pairs_of_another_tokenizer_are_refused_by_every_analysis(tiny_model_dir: Any) -> None:
    """Their ids are tokens here too, but others: all numbers would be of prompts that nobody wrote."""
    model = loaded(tiny_model_dir("llama"), "bridge")
    planted = mi.planted_model(readers=[mi.Head(0, 2)], n_heads=8, n_key_value_heads=2)
    pairs = mi.make_pairs(planted.tokenizer, mi.load_problems(planted, limit=2), mi.Insertion.meaningless(" /", 4))
    for work in (mi.patch_heads, mi.score_heads, mi.attention_profile, mi.decompose_attention, mi.activation_shift):
        with pytest.raises(ValueError, match="made for another tokenizer: its token .* make the pairs with this model"):
            work(model, pairs, progress=False)
    copied = mi.load_model(tiny_model_dir("llama"), backend="bridge")
    own = mi.make_pairs(model, problems(), mi.Insertion.meaningless(" /", 4))
    assert mi.score_heads(copied, own, metrics="lam", progress=False).problem_ids == ("p0", "p1", "p2")


@pytest.fixture(params=EACH_REAL)
def tokenizer(request: pytest.FixtureRequest, tokenizer_dir: Folder) -> Any:
    return read_tokenizer(tokenizer_dir(request.param))


@pytest.mark.parametrize("template", list(TEMPLATES))
def test_no_text_of_a_problem_becomes_a_control_token_which_is_said_once(tokenizer: Any, template: str) -> None:
    own = None if template.startswith("gemma") else "Reason."
    usual = Problem("a", "What is 1 + 1?", "2", own, solution="so 2", distractor="3", answer_prefix="So ")
    plain = [usual, *(replace(usual, id=name, question=f"What is {name}?") for name in "bc")]
    marker, special = tokenizer.eos_token, tokenizer.all_special_ids
    parts = ("question", "answer", "distractor", "answer_prefix", "solution", *(["system"] if own else []))
    spelt = {part: f"{getattr(plain[0], part)}{marker}." for part in parts}
    told = r"1 of 3 problems spell special tokens .*first: 'b', its .* as the text"
    with pytest.warns(UserWarning, match=told) as said:
        made = make_pairs(tokenizer, [plain[0], replace(plain[1], **spelt), plain[2]], SLASHES, template=template)
    assert len(said) == 1
    for prompts in zip(*((pair.base.ids, pair.inserted.ids) for pair in made[:2]), strict=True):
        first, second = ([at for at in ids if at in special] for ids in prompts)
        assert first == second, "the template's own alone"
    for part in ("answer_prefix", "answer", "distractor", "solution"):
        ids = list(getattr(made[1], f"{part}_ids"))
        assert not set(ids) & {*special}
        assert tokenizer.decode(ids, clean_up_tokenization_spaces=False) == spelt[part]
    assert spelt["question"] in tokenizer.decode(list(made[1].base.ids), clean_up_tokenization_spaces=False)


def test_a_templates_own_text_and_an_insertions_unit_may_name_special_tokens(tokenizer: Any) -> None:
    marker, at = tokenizer.eos_token, tokenizer.eos_token_id
    mine = Template("mine", f"Reason.{marker}", answer_prefix=f"{marker}Answer: ")
    (pair,) = make_pairs(tokenizer, [Problem("a", "1 + 1?", "2")], mi.Insertion.meaningless(marker, 3), template=mine)
    assert pair.base.ids.count(at) == 1 and pair.inserted.ids.count(at) == 4 and pair.answer_prefix_ids[0] == at
    for insertion, template in ((mi.Insertion.meaningless(marker, 3), "paper"), (SLASHES, replace(mine, as_text=True))):
        with pytest.raises(ValueError, match="no special tokens|but its system prompt spells special tokens"):
            make_pairs(tokenizer, [Problem("a", "1 + 1?", "2")], insertion, template=template)


def test_a_tokenizer_that_cannot_tell_text_from_its_tokens_is_refused_with_the_place() -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocabulary = {word: at for at, word in enumerate("<unk> <eos> a b c / 1 2 Answer :".split())}
    words = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()  # so that "<eos>" is a word of the vocabulary
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, unk_token="<unk>", eos_token="<eos>")
    assert spells_special(tokenizer, "a <eos>") and not spells_special(tokenizer, "a zebra <unk>")
    usual = Problem("p", "a b c", "1", system="b", distractor="2", solution="a 1", answer_prefix="Answer :")
    assert make_pairs(tokenizer, [usual], mi.Insertion.meaningless("/", 5))
    for part in ("question", "system", "answer", "distractor", "solution", "answer_prefix"):
        with pytest.raises(ValueError, match=f"problem 'p', its {part}: the text spells the special token '<eos>'"):
            make_pairs(tokenizer, [replace(usual, **{part: "a <eos>"})], mi.Insertion.meaningless("/", 5))
    pool = [replace(usual, id=str(at), question=f"{at} <eos>") for at in (1, 2)]
    with pytest.raises(ValueError, match="the text spells the special token '<eos>'"):
        make_pairs(tokenizer, [usual], mi.Insertion.other_questions(pool, 2))
    (pair,) = make_pairs(tokenizer, [usual], mi.Insertion.meaningless("<eos>", 5))
    assert pair.inserted.ids.count(tokenizer.eos_token_id) == 5


def test_problems_of_words_that_a_tokenizer_does_not_know_are_refused() -> None:
    """More than 5 % of a question, or any of an answer or a distractor."""
    first, *others = problems()

    def asked(n_known: int) -> list[Problem]:
        return [replace(first, system=None, question=" ".join(["apples"] * n_known + ["zebra"]))]

    assert make_pairs(word_tokenizer(), asked(19), SLASHES)
    unknown = r"'p0' holds words .* are '<unk>' \(for example 'zebra'\)\. Use the model's own problems \(--prob"
    refused = {unknown: asked(18), f".*{unknown}": asked(0)}
    for part in ("answer", "distractor"):
        spoilt = replace(first, **{part: "zebra"})
        refused[f"problem 'p0': its {part} 'zebra' becomes the unknown token '<unk>'"] = [*others, spoilt]
        assert make_pairs(qwen2_tokenizer(), [spoilt], SLASHES), "a tokenizer of bytes knows every word"
    for message, some in refused.items():
        with pytest.raises(ValueError, match=message):
            make_pairs(word_tokenizer(), some, SLASHES)
