"""Insertions, pairs with proved alignment, and the conditions, by hand and on all of MATH-500."""

import json
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from conftest import qwen2_tokenizer, word_tokenizer
from small_results import certified
from tokenizers_under_test import EACH_REAL, read_tokenizer, slash_pairs

from mless_interp.models.attention_math import visibility
from mless_interp.prompts.conditions import CONTRASTS
from mless_interp.prompts.insertions import Insertion
from mless_interp.prompts.pairs import (
    CONDITIONS,
    PromptPair,
    check_fits,
    digest_of,
    followed,
    insert_tokens,
    make_pairs,
)
from mless_interp.prompts.problems import Problem
from mless_interp.prompts.prompt import PAPER_SYSTEM_AS_SENT, Prompt, encode

Folder = Callable[[str], Path]
words = lru_cache(word_tokenizer)
bytewise = lru_cache(qwen2_tokenizer)
SLASHES = Insertion.meaningless(" /", 4)
PROBLEM = Problem(
    id="p", question="How many apples ?", answer="3", system="reason .", distractor="5", solution="Anna has 3 apples ."
)


def pair_of(insertion: Insertion = SLASHES, tokenizer: Any = None, template: str = "raw", **changes: Any) -> PromptPair:
    return make_pairs(tokenizer or words(), [replace(PROBLEM, **changes)], insertion, template=template)[0]


def tiny_words(*vocabulary: str) -> Any:
    """A tokenizer that knows these words only, one token each."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.WordLevel({w: i for i, w in enumerate(["<unk>", *vocabulary])}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>")


def test_a_random_sentence_is_the_same_in_every_process_and_of_ordinary_tokens_where_few_words_are_known() -> None:
    few = tiny_words("window", "stone", "river", "quiet", "lamp", "garden", "blue", "bell", "bear", "apple")
    span = Insertion.random_sentence(6, seed=3, draw=1).span(few, "p1")
    # random.Random seeded by the first 8 bytes of sha256("3|p1|1") draws from these words in alphabetical order.
    assert few.decode(list(span)) == "blue lamp river river blue bell"
    few = tiny_words("river", "stone", "xx", "4", "a7", "b\u00b2", *(rare := ("aa", "bb", "cc", "dd", "yy")))
    span = Insertion.random_sentence(200).span(few, "p")
    assert len(span) == 200 and set(few.convert_ids_to_tokens(span)) == {"river", "stone", "xx", *rare}
    enough = tiny_words("xx", "window", "stone", "river", "quiet", "lamp", "garden", "blue", "bell")
    assert "xx" not in enough.convert_ids_to_tokens(Insertion.random_sentence(200).span(enough, "p"))


def asked(*questions: str) -> list[Problem]:
    return [Problem(f"p{at}", question, "1") for at, question in enumerate(questions)]


def test_other_questions_are_cut_to_length_and_never_the_problem_s_own() -> None:
    """Nor the same question under another name."""
    tokenizer = tiny_words("river", "stone", "lamp", "window", "quiet", "garden")
    pool = asked("river river river", "stone lamp", "window quiet", "river river river")

    def drawn(n_tokens: int, draw: int, problem: str | Problem = "p0") -> str:
        span = Insertion.other_questions(pool, n_tokens, draw=draw).span(tokenizer, problem)
        assert len(span) == n_tokens
        return tokenizer.decode(list(span))

    assert not any("river" in drawn(n_tokens, draw) for n_tokens in (1, 3, 4) for draw in range(6))
    again = Problem("new", " river river river ", "1")
    assert not any("river" in drawn(4, draw, again) for draw in range(6))
    assert {drawn(4, d) for d in range(9)} == {"stone lamp window quiet", "window quiet stone lamp"}, "in any order"
    with pytest.raises(ValueError, match="all other questions are 4 tokens, fewer than n_tokens=5: give more problems"):
        drawn(5, 0)
    with pytest.raises(ValueError, match="give at least 2 with different questions"):
        Insertion.other_questions(pool[::3])
    unknown = asked("river stone", "river " * 18 + "zebra")
    with pytest.raises(ValueError, match="the inserted questions: 5 % of the tokens are '<unk>', unknown words: draw"):
        Insertion.other_questions(unknown, 19).span(tokenizer, "p0")


BY_HAND = Prompt((1, 2, 3, 4, 5), ("bos", "system", "system", "question", "template"))


@pytest.mark.parametrize(
    ("place", "at"),
    [({}, (3,)), ({"before": "question"}, (3,)), ({"before": "system"}, (1,)), ({"after": "question"}, (4,))]
    + [({"before": "bos"}, (0,)), ({"after": "bos"}, (1,)), ({"after": "system"}, (3,)), ({"after": "template"}, (5,))]
    + [({"at": at}, (at,)) for at in (0, 5)]
    + [({"at": (4, 1)}, (1, 4)), ({"at": [4, 1]}, (1, 4)), ({"before": "question", "after": "question"}, (3, 4))]
    + [({"before": ("system", "template"), "at": 0}, (0, 1, 4)), ({"before": "answer"}, (5,))],
)
def test_each_place_is_a_token_index(place: dict[str, Any], at: tuple[int, ...]) -> None:
    assert Insertion.meaningless(" /", 3, **place).places(BY_HAND) == at


def test_several_places_share_the_tokens_in_equal_blocks() -> None:
    made = insert_tokens(BY_HAND, (1, 4), [7, 8, 9])
    assert made.ids == (1, 7, 8, 2, 3, 4, 9, 5)
    pair = pair_of(Insertion.meaningless(" /", 3, before="bos", after="question"))
    n = len(pair.base)
    assert pair.spans == ((0, 2), (2 + n, 3 + n)) and pair.span == (0, 3 + n) and pair.n_inserted == 3
    assert pair.alignment == tuple(range(2, 2 + n)) and pair.sink_moved
    assert pair.record()["spans"] == pair.fingerprint()[-2:] == [[0, 2], [2 + n, 3 + n]]
    assert pair.span_mask.tolist() == [True] * 2 + [False] * n + [True]
    with pytest.raises(ValueError, match="latency is not defined for an insertion in 2 blocks: insert in one place"):
        pair.one_block("latency")


def test_a_pair_by_hand() -> None:
    pair, slash = pair_of(), words().convert_tokens_to_ids("/")
    bos, *rest = encode(words(), "<bos> reason . How many apples ?", markers=True)
    assert pair.base.ids == (bos, *rest)
    assert pair.inserted.ids == (bos, *rest[:2], *[slash] * 4, *rest[2:])
    assert (pair.span, pair.n_inserted, pair.n_after, pair.sink_moved) == ((3, 7), 4, 4, False)
    assert pair.alignment == tuple(pair.shared.tolist()) == (0, 1, 2, 7, 8, 9, 10)
    assert pair.span_mask.tolist() == [False] * 3 + [True] * 4 + [False] * 4
    assert pair.answer_prefix_ids == encode(words(), "\nThe final answer is \\boxed{")
    assert pair.answer_ids == encode(words(), "3") and pair.distractor_ids == encode(words(), "5")
    assert pair.solution_ids == encode(words(), "Anna has 3 apples .")


def test_a_pair_is_told_from_any_other_by_its_fingerprint() -> None:
    """Its span, its prompts, its answer, its distractor, whether it is answered; the order counts for a list."""
    pair = pair_of()
    others = [pair_of(Insertion.meaningless(" /", n, before=side)) for n, side in ((3, "question"), (4, "system"))]
    changes = ({"question": "How many ?"}, {"answer": "4"}, {"distractor": "6"}, {"id": "q"})
    others += [pair.answered(), *(pair_of(**change) for change in changes)]
    assert len({str(each.fingerprint()) for each in [pair, *others]}) == 8
    assert pair.fingerprint() == pair_of().fingerprint() == json.loads(json.dumps(pair.fingerprint()))
    assert digest_of([pair, others[0]]) == digest_of(iter([pair_of(), others[0]])) != digest_of([others[0], pair])


def test_a_pair_that_does_not_fit_together_cannot_be_made() -> None:
    pair = pair_of()
    ids, segments = pair.base.ids, pair.base.segments
    for changes, at in (
        ({"ids": (*ids[:4], 0, *ids[5:])}, 4),
        ({"segments": ("system", *segments[1:])}, 0),
        ({"ids": ids[:-1], "segments": segments[:-1]}, 6),
    ):
        with pytest.raises(ValueError, match=f"differ at clean position {at}"):
            replace(pair, base=replace(pair.base, **changes))


def hand_pair(at: int) -> PromptPair:
    """Three system tokens, three question tokens, two inserted at `at`."""
    base = Prompt((10, 11, 12, 20, 21, 22), ("system",) * 3 + ("question",) * 3)
    return PromptPair(
        problem=PROBLEM,
        base=base,
        inserted=insert_tokens(base, at, [7, 7]),
        insertion=Insertion.meaningless(" /", 2, at=at),
        answer_prefix_ids=(30, 31),
        answer_ids=(40,),
        solution_ids=(50, 51, 52),
    )


def table(*rows: str) -> list[list[bool]]:
    return [[sign == "x" for sign in row.replace(" ", "")] for row in rows]


@pytest.mark.parametrize(
    ("name", "contrast", "rows"),
    [
        ("masked", "content", ["xxxx x. ..", "xxxx xx ..", "xxxx .. x.", "xxxx .. xx"]),
        ("blind", "computed", ["xxx. x. ..", "xxx. xx ..", "xxxx xx x.", "xxxx xx xx"]),
        ("apart", "inside", ["xxxx .. ..", "xxxx .. ..", "xxxx xx x.", "xxxx xx xx"]),
    ],
)
def test_what_a_condition_hides_by_hand_is_what_a_knockout_cuts(name: str, contrast: str, rows: list[str]) -> None:
    pair = hand_pair(4)
    made, prompt = pair.condition(name), pair.inserted
    assert made.tokens.tolist() == [[10, 11, 12, 20, 7, 7, 21, 22]] and made.position_ids is None
    assert made.attention_mask.shape == (1, 1, 8, 8) and made.attention_mask.dtype == torch.bool
    seen = visibility(made)[0, 0]
    assert seen.tolist() == table("x... .. ..", "xx.. .. ..", "xxx. .. ..", "xxxx .. ..", *rows)
    assert torch.equal(CONTRASTS[contrast].cut(prompt).mask, ~made.attention_mask[0, 0])


def test_where_the_runs_of_a_contrast_begin_to_differ_by_hand() -> None:
    pair = replace(hand_pair(4), clean=replace(hand_pair(4).inserted, ids=(10, 11, 9, 20, 7, 7, 21, 22)))
    starts = {name: [made.start(pair, each) for each in made.conditions] for name, made in CONTRASTS.items()}
    assert starts == {
        "content": [6, 6], "shift": [4, 4], "total": [4, 6], "held": [4, 6], "presence": [6, 6], "computed": [4, 4],
        "inside": [4, 4], "replaced": [2, 2],
    }  # fmt: skip
    for name in ("total", "presence", "replaced"):
        with pytest.raises(ValueError, match=f"contrast '{name}' .* use one of 'content', 'computed', 'inside'$"):
            CONTRASTS[name].cut(pair.inserted)
    with pytest.raises(ValueError, match="the span holds the first token, which would see nothing at all"):
        hand_pair(0).condition("apart")


@pytest.mark.parametrize(("at", "held_positions"), [(0, None), (3, None), (3, "spread"), (6, "spread")])
def test_rows_side_by_side_are_the_conditions(at: int, held_positions: str | None) -> None:
    """Of the inserted prompt's length each: its own positions, and what it hides; one without the span hides it."""
    pair, options = hand_pair(at), {} if held_positions is None else {"held_positions": held_positions}
    shown = torch.ones(8, 8, dtype=torch.bool)
    every = [name for name in CONDITIONS if name != "clean" and not (name == "apart" and at == 0)]
    for names in (every, ["inserted", "held"], ["base"]):
        batch = pair.side_by_side(names, **options)
        assert batch.tokens.tolist() == [list(pair.inserted.ids)] * len(names)
        assert batch.position_ids.shape == (len(names), 8) and batch.attention_mask.shape == (len(names), 1, 8, 8)
        for row, name in enumerate(names):
            own = pair.condition(name, **options)
            hidden = pair.condition("masked") if name in ("base", "gap") else own
            mask = shown if hidden.attention_mask is None else hidden.attention_mask[0, 0]
            assert torch.equal(batch.attention_mask[row, 0], mask)
            positions = torch.arange(own.tokens.shape[1]) if own.position_ids is None else own.position_ids[0]
            there = batch.position_ids[row] if own.tokens.shape[1] == 8 else batch.position_ids[row, pair.shared]
            assert there.tolist() == positions.tolist(), name
    with pytest.raises(ValueError, match="unknown condition 'none'"):
        pair.side_by_side(["none"])


def test_an_insertion_at_the_start_moves_the_sink_by_hand() -> None:
    pair = hand_pair(0)
    assert pair.sink_moved and pair.record()["sink_moved"] and not hand_pair(1).sink_moved
    assert pair.condition("inserted").tokens.tolist() == [[7, 7, 10, 11, 12, 20, 21, 22]]
    assert pair.condition("gap").position_ids.tolist() == [[2, 3, 4, 5, 6, 7]]
    assert pair.condition("held").position_ids.tolist() == [[0, 0, 0, 1, 2, 3, 4, 5]]
    spread = pair.condition("held", held_positions="spread").position_ids[0].tolist()
    assert spread == pytest.approx([-2 / 3, -1 / 3, 0, 1, 2, 3, 4, 5])
    seen = visibility(pair.condition("masked"))[0, 0]
    assert seen[:4].tolist() == table("x. ......", "xx ......", ".. x.....", ".. xx....")


def test_an_answered_pair_ends_with_prefix_and_answer_on_both_sides() -> None:
    pair = hand_pair(3).answered()
    assert pair.base.ids == (10, 11, 12, 20, 21, 22, 30, 31, 40)
    assert pair.inserted.ids == (10, 11, 12, 7, 7, 20, 21, 22, 30, 31, 40)
    assert pair.base.segments[6:] == pair.inserted.segments[8:] == ("template", "template", "answer")
    assert pair.alignment == (0, 1, 2, 5, 6, 7, 8, 9, 10)
    assert (pair.n_answer, pair.n_after, pair.span) == (1, 6, (3, 5))
    assert pair.shared.tolist() == list(pair.alignment) and len(pair.span_mask) == 11
    assert pair.condition("gap").position_ids.tolist() == [[0, 1, 2, 5, 6, 7, 8, 9, 10]]
    assert pair.condition("held").position_ids.tolist() == [[0, 1, 2, 3, 3, 3, 4, 5, 6, 7, 8]]
    solved = hand_pair(3).answered("solution", unfed=1)
    assert (solved.base.ids[6:], solved.inserted.ids[8:], solved.n_answer) == ((50, 51), (50, 51), 2)
    with pytest.raises(ValueError, match="pair 'p' already ends with its answer"):
        solved.answered()
    last, within = hand_pair(6), hand_pair(3)
    assert [pair.n_answer for pair in followed([last, within, solved])] == [1, 1, 2]
    assert followed(iter([within, solved])) == (within, solved), "something follows each"


def test_a_span_that_sees_the_question_and_a_pair_without_a_span() -> None:
    assert [hand_pair(at).span_sees_question for at in (3, 4, 6)] == [False, True, True]
    with pytest.raises(ValueError, match="pair 'p' has no span, so condition 'gap' is not defined: use contrast='repl"):
        replace(hand_pair(3), inserted=hand_pair(3).base).condition("gap")


def test_what_makes_no_pair_is_named() -> None:
    pair = pair_of()
    needed = len(pair.inserted) + len(pair.answer_prefix_ids) + len(pair.answer_ids) - 1
    model = SimpleNamespace(tokenizer=words(), info=replace(certified().info, context_length=needed, d_vocab=10**6))
    assert len(make_pairs(model, [PROBLEM], SLASHES)) == 1, "the answer's last token is not fed"
    highest = max(pair.inserted.ids + pair.answer_prefix_ids + pair.answer_ids + pair.distractor_ids)
    for change, message in (
        ({"context_length": needed - 1}, f"needs {needed} positions with 4 inserted, but tiny has a context of"),
        ({"d_vocab": highest}, f"holds token id {highest}, but tiny has the ids 0 to {highest - 1}: put the model's"),
    ):
        model.info = replace(certified().info, **{"context_length": needed, "d_vocab": 10**6} | change)
        with pytest.raises(ValueError, match=f"problem 'p' {message}"):
            make_pairs(model, [PROBLEM], SLASHES)
    classes = replace(certified().info, context_length=needed, d_vocab=max(pair.inserted.ids) + 1, n_classes=2)
    check_fits(classes, replace(pair, answer_ids=(10**6,)))
    with pytest.raises(TypeError, match="got a SimpleNamespace without a tokenizer: give it one, wrap_model"):
        make_pairs(SimpleNamespace(tokenizer=None), [PROBLEM], SLASHES)
    with pytest.raises(ValueError, match="problem 'p': its answer encodes to no tokens; leave it out or give it one"):
        pair_of(answer=" ").answered()
    for insertion in (Insertion.meaningless(" /", 2, at=1), Insertion.repeated_bos(2)):
        with pytest.raises(ValueError, match='template="paper" inserts text between system and question'):
            pair_of(insertion, template="paper")


def test_text_between_words_merges_nothing_and_can_be_patched() -> None:
    pair = pair_of(template="paper")
    assert not pair.boundary_merge and pair.span == (3, 7) and pair.alignment == (0, 1, 2, 7, 8, 9, 10)
    assert pair.inserted.segments == ("bos", *["system"] * 2, *["inserted"] * 4, *["question"] * 4)
    assert pair.answered().inserted.ids == pair_of().answered().inserted.ids
    (several,) = make_pairs(words(), [PROBLEM], Insertion.meaningless(" / ?", 6), template="paper")
    assert words().decode(list(several.inserted.ids[3:9])) == "/ ? / ? / ?" and several.span == (3, 9)


def test_a_merged_border_is_flagged_and_its_tokens_have_no_counterpart() -> None:
    # the unit's " ap" is stripped to "ap" and joins the question's "ples": one token, where there were others
    pair = pair_of(Insertion.text(" ap"), bytewise(), "paper", system="red ", question="ples ?")
    assert pair.boundary_merge
    assert bytewise().decode(list(pair.inserted.ids)) == "red apples ?"
    assert -1 in pair.alignment and len(pair.shared) < len(pair.base)
    kept = [(t, i) for t, i in enumerate(pair.alignment) if i >= 0]
    assert kept and all(pair.base.ids[t] == pair.inserted.ids[i] for t, i in kept)


@pytest.mark.slow
@pytest.mark.parametrize("name", EACH_REAL)
def test_the_papers_text_merges_at_a_border_in_all_of_math500(
    name: str, tokenizer_dir: Folder, math500_path: Path
) -> None:
    tokenizer = read_tokenizer(tokenizer_dir(name))
    pairs = slash_pairs(tokenizer_dir(name), math500_path, "paper")
    assert all(pair.boundary_merge for pair in pairs)
    for pair in pairs:
        kept = [(t, i) for t, i in enumerate(pair.alignment) if i >= 0]
        assert len(kept) >= len(pair.base) - 4  # all but the tokens at the two borders
        assert all(pair.base.ids[t] == pair.inserted.ids[i] for t, i in kept)
        assert not any(pair.span[0] <= i < pair.span[1] for _, i in kept)
    sent = PAPER_SYSTEM_AS_SENT + "/ " * 54 + "/" + pairs[0].problem.question
    skip = int(name != "qwen2_5")
    assert tokenizer.decode(list(pairs[0].inserted.ids[skip:])) == sent
