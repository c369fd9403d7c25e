"""Pairs of token ids: by hand, beside those of an insertion, and beside whole passes; models as they come."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from conftest import needs_hooked_transformer
from models_under_test import hooked, loaded, pairs_for
from typer.testing import CliRunner

import mless_interp as mi
from mless_interp.__main__ import app
from mless_interp.prompts.own_ids import pairs_from_file

QUIET: dict[str, Any] = {"progress": False}
IDS = [[7, 1, 2, 3, 4], [7, 5, 6, 1, 4]]


def test_a_span_of_token_ids_is_a_pair_by_hand() -> None:
    first, second = mi.pairs_from_ids(
        IDS, [3, [4, 5]], span=(1, 3), clean=[[7, 1, 2, 8, 4], [0, 5, 6, 1, 4]], tags={"of": ["a", "b"]}
    )
    assert first.base.ids == (7, 3, 4) and first.alignment == (0, 3, 4) and first.n_answer == 0
    assert first.condition("clean").tokens.tolist() == [[7, 1, 2, 8, 4]]
    assert (first.first_change, second.first_change) == (1, 0)  # the span's first row, or the first other token
    assert second.problem.tags == {"of": "b"} and first.id != second.id
    assert second.answered(unfed=1).inserted.ids == (7, 5, 6, 1, 4, 4)
    (alone,) = mi.pairs_from_ids([[7, 1, 2]], [3], clean=[[7, 1, 5]], names={7: "<s>"})
    assert not alone.spans and alone.first_change == 2 and alone.names == ((7, "<s>"),)
    assert {prompt.template for pair in (second, alone) for prompt in (pair.base, pair.inserted, pair.clean)} == {"ids"}
    assert (alone.problem.question, alone.problem.answer, alone.problem.distractor) == ("7,1,2,clean,7,1,5", "3", None)
    kept = {"tags": [{"subject": "s", "level": 2, "of": "x"}], "distractors": [np.int64(8)], "names": {3: "three"}}
    (told,) = mi.pairs_from_ids(torch.tensor([[7, 1, 2]]), np.array([[3, 7]]), span=range(1, 2), **kept)
    assert (told.problem.answer, told.problem.distractor, told.distractor_ids) == ("three 7", "8", (8,))
    assert (told.problem.subject, told.problem.level, told.problem.tags) == ("s", "2", {"of": "x"})
    assert (told.span, told.inserted.segments, told.base.template) == (
        (1, 2),
        ("question", "inserted", "question"),
        "ids",
    )
    assert (
        len(told.id) == 10 and told.problem.group == mi.pairs_from_ids([[7, 1, 2]], [0], span=(0, 1))[0].problem.group
    )


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, "give a span whose effect is asked for, or a clean prompt"),
        ({"span": (2, 5)}, "before the last of 5 tokens, where the answer is read"),
        ({"clean": [[7, 1, 2, 3], IDS[0]]}, "problem 0 .*clean must be as many tokens as ids, 5, .* got 4"),
        ({"clean": [IDS[1], IDS[1]]}, "problem 1 .*and other ones, got the same"),
        ({"span": (1, 2), "distractors": [1]}, "distractors must hold one entry for each of 2 problems, got 1"),
        ({"span": (1, 2), "tags": {"of": [1, 2, 3]}}, "tags must hold one entry for each of 2 problems, got 3"),
        ({"span": (1, 2), "answers": [1, -1]}, "problem 1 .*whole numbers of 0 or more"),
        ({"span": (1, 2), "answers": [[], 1]}, "problem 0 .*answer must be token ids"),
        ({"span": (1, 2), "answers": [[[1]], 1]}, "problem 0 .*answer must be token ids"),
        ({"span": "ab"}, "span must hold one entry for each of 2 problems, got 2"),
        ({"span": (2, 2)}, "problem 0 .*span must be .first, one past the last. position"),
        ({"span": (-1, 2)}, "problem 0 .*span must be .first"),
        ({"span": ["a", "b"]}, "problem 0 .*span must be .first, .* got 'a'"),
    ],
)
def test_wrong_ids_are_named(given: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        mi.pairs_from_ids(IDS, **{"answers": [3, 4], **given})


@needs_hooked_transformer
@pytest.mark.parametrize(
    ("ids", "answer", "model", "words"),
    [
        ([7, 1, 9, 4], 3, {}, "holds token id 9, but small has the ids 0 to 8"),
        ([7, 1, 2, 4], 9, {}, "holds token id 9, but small has"),
        ([7, 1, 2, 4], 3, {"d_vocab_out": 3}, "small gives one of 3 classes"),
        ([7, 1, 2, 4, 4, 4], 3, {}, "needs 6 positions with 1 inserted, but small has a context of 5"),
    ],
)
def test_ids_that_a_model_lacks_are_named(ids: Any, answer: int, model: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        mi.patch_heads(hooked(**model), mi.pairs_from_ids([ids], [answer], span=(1, 2)), **QUIET)


def test_an_insertions_own_ids_give_its_numbers(tiny_model_dir: Any) -> None:
    model = loaded(tiny_model_dir("qwen2"), "bridge")
    made = pairs_for(model, 6, 3)
    own = mi.pairs_from_ids(
        [pair.inserted.ids + pair.answer_prefix_ids for pair in made],
        [pair.answer_ids for pair in made],
        span=[pair.span for pair in made],
    )
    for contrast in ("content", "total"):
        expected, found = (mi.patch_heads(model, pairs, contrast=contrast, **QUIET) for pairs in (made, own))
        np.testing.assert_allclose(found.effect, expected.effect, atol=1e-5)
    with pytest.raises(ValueError, match="has no clean prompt of equal length"):
        mi.patch_heads(model, own, contrast="replaced", **QUIET)


@needs_hooked_transformer
@pytest.mark.parametrize("shape", [{}, {"n_layers": 1, "n_heads": 1}, {"d_vocab_out": 3}, {"normalization_type": "LN"}])
def test_replaced_tokens_are_patched_as_by_whole_passes(shape: dict[str, Any]) -> None:
    """On a prompt that fills the context, with or without a norm, classes, one layer and one head."""
    model, clean = hooked(**shape), [[7, 1, 8, 3, 4], [7, 5, 6, 0, 4]]
    pairs = mi.pairs_from_ids(IDS, [2, 1], clean=clean)
    found = mi.patch_heads(model, pairs, contrast="replaced", **QUIET)
    for row, (ids, other) in enumerate(zip(IDS, clean, strict=True)):
        tokens, gold = torch.tensor([ids]), [2, 1][row]
        for head in model.info.heads:
            name = f"blocks.{head.layer}.attn.hook_z"
            z = model.run(torch.tensor([other]), capture={name: None}).captured[name]

            def patched(old: torch.Tensor, z: Any = z, at: int = head.head) -> torch.Tensor:
                new = old.clone()
                new[:, :, at] = z[:, :, at]
                return new

            runs = (
                model.run(tokens, edits=edits).logits[0, -1].log_softmax(-1)[gold] for edits in ({}, {name: patched})
            )
            before, after = map(float, runs)
            assert found.effect[row, head.layer, head.head] == pytest.approx(before - after, abs=1e-4)  # taken out
    closed = mi.joint_knockout(model, pairs, model.info.heads[:1], contrast="replaced", n_random_sets=0, **QUIET)
    assert closed.effect == pytest.approx(closed.singles[:, 0], abs=1e-4)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:by=.*no stratum has enough problems")
@needs_hooked_transformer
def test_everything_takes_pairs_of_ids(tmp_path: Path) -> None:
    """What is asked for by name is computed, shown, saved and found again; what needs a span says so in a line."""
    model, draw = hooked(d_vocab_out=3), np.random.default_rng(0)
    ids, gold = draw.integers(0, 9, (24, 5)), draw.integers(0, 3, 24)
    clean = np.concatenate([ids[:, :2], (ids[:, 2:4] + 1) % 9, ids[:, 4:]], 1)
    tags = {"of": ["a", "b"] * 12}
    spans = mi.pairs_from_ids(ids, gold, tags=tags, span=(1, 3))
    replaced = mi.pairs_from_ids(ids, gold, tags=tags, clean=clean)
    for pairs, contrast, words in ((spans, "content", "given span"), (replaced, "replaced", "replaced tokens")):
        options: dict[str, Any] = {"contrast": contrast, **QUIET}
        found = [
            mi.locate_heads(model, pairs[:12], confirm=pairs[12:], by="of", n_random_sets=2, **options),
            mi.attribute_heads(model, pairs, **options),
            mi.circuit_curve(model, pairs, model.info.heads, n_random=2, **options),
            mi.minimal_sets(model, pairs, n_random_sets=2, **options),
            mi.patch_heads(model, pairs, **options),
            mi.trace_circuit(model, pairs, ["L0H0", "L1H1"], n_rows=1, **options),
        ]
        assert found[-1].parts().keys() >= {"direct", "edges", "sites", "positions", "sets"}
        assert {each.settings["insertion"] for each in found[:5]} == {words}
        mi.save(tmp_path / contrast, **{f"result{at}": each for at, each in enumerate(found)})
        loaded_again = mi.load(tmp_path / contrast)
        assert [repr(each) for each in found] == [repr(loaded_again[f"result{at}"]) for at in range(len(found))]
        mi.views.attention(model, pairs[0], ["L0H0"])
        mi.Report("x", question="?").result(found[0]).save(tmp_path / f"{contrast}.html")
    assert mi.trace_paths(model, spans, ["L0H0", "L1H1"], contrast="inside", **QUIET).settings["contrast"] == "inside"
    assert mi.transfer(model, spans, ["L0H0"], n_random_sets=1, **QUIET).settings["control"] is None
    assert len(mi.score_heads(model, spans, **QUIET).problem_ids) == 24
    for asked in (mi.score_heads, mi.decompose_attention):
        with pytest.raises(ValueError, match=r"has no span, so .* is not defined"):
            asked(model, replaced, **QUIET)


def test_a_file_of_pairs_is_read_line_by_line(tmp_path: Path) -> None:
    path = tmp_path / "pairs.jsonl"
    rows = [
        {"ids": IDS[0], "answer": 3, "span": [1, 3], "tags": {"kind": "a"}, "id": "one"},
        {"ids": IDS[1], "answer": [4], "clean": IDS[0]},
    ]
    path.write_text("\n".join(map(json.dumps, rows)) + "\n")
    first, second = pairs_from_file(path)
    assert (first.id, first.span, first.problem.tags, second.spans) == ("one", (1, 3), {"kind": "a"}, ())
    path.write_text('{"ids": [1, 2], "answer": 3, "spam": 1}')
    with pytest.raises(ValueError, match=r"pairs.jsonl, line 1: a pair is an object with ids and answer, and of distr"):
        pairs_from_file(path)
    for text, message in (
        ("\n", " holds no pairs"),
        ('{"ids": [1, 2], "answer": 3}', ", line 1: give a span whose effect"),
    ):
        path.write_text(text)
        with pytest.raises(ValueError, match=f"pairs.jsonl{message}"):
            pairs_from_file(path)


def test_the_command_takes_a_file_of_pairs(tmp_path: Path) -> None:
    rows = [{"ids": [5, 6, at, 8], "answer": at, "clean": [5, 6, 3, 8], "span": [1, 3]} for at in (20, 21, 22)]
    file, out = tmp_path / "pairs.jsonl", tmp_path / "out"
    file.write_text("\n".join(map(json.dumps, rows)))
    more = ["--mode", "sweep", "--contrast", "replaced", "--heads", "0:0,1:1", "--limit", "2", "--no-progress"]
    done = CliRunner().invoke(app, ["locate", "--model", "demo", "--pairs", str(file), "--out", str(out), *more])
    assert done.exit_code == 0, done.stderr
    options = {"contrast": "replaced", "heads": ["0:0", "1:1"], **QUIET}
    swept = mi.patch_heads(mi.load_model("demo"), pairs_from_file(file, limit=2), **options)
    np.testing.assert_allclose(mi.load(out)["PatchScores"].effect, swept.effect, atol=1e-6)


@needs_hooked_transformer
def test_one_prompt_with_many_clean_ones_is_one_problem() -> None:
    """Its variants count once, whether their clean prompts are used or nothing tells them apart."""
    model = hooked()
    clean = [[8 if at == changed else token for at, token in enumerate(IDS[0])] for changed in range(4)]
    pairs = mi.pairs_from_ids([IDS[0]] * 4, [3] * 4, span=(1, 3), clean=clean)
    assert mi.patch_heads(model, pairs, contrast="content", **QUIET).n_groups == 1
    one = mi.pairs_from_ids([IDS[0]] * 3 + [IDS[1]], [3] * 4, clean=[*clean[:3], [7, 5, 6, 0, 4]])
    found = mi.patch_heads(model, one, contrast="replaced", **QUIET)
    assert len(set(found.groups)) == 2 and set(found.summary()["n"]) == {2}
    other = mi.pairs_from_ids(
        [IDS[0], [1, 2, 3, 4, 5]], [3, 4], clean=[clean[3], [1, 2, 0, 4, 5]], tags={"group": [1, 2]}
    )
    with pytest.raises(ValueError, match="1 of 2 problems to confirm on are among those that name the heads"):
        mi.locate_heads(model, one, confirm=other, contrast="replaced", controls=False, **QUIET)


def test_a_table_of_tags_and_numpys_spans_are_taken_as_they_come() -> None:
    """What a table has no value for is no tag, not a stratum called "nan"."""
    table = pd.DataFrame({"kind": ["a", None], "size": [np.nan, 2.0], "day": [pd.NA, pd.NaT]})
    for tags in (table, table.to_dict("list"), table.to_dict("records")):
        first, second = mi.pairs_from_ids(IDS, [3, 4], span=(1, 3), tags=tags)
        assert (first.problem.tags, second.problem.tags) == ({"kind": "a"}, {"size": "2.0"})
    first, second = mi.pairs_from_ids(IDS, [3, 4], span=(1, 3), tags=[None, {"kind": "b"}])
    assert (first.problem.tags, second.problem.tags) == ({}, {"kind": "b"})
    spans = ((np.int64(1), np.int64(3)), np.array([1, 3]), [(np.int64(1), np.int64(3))] * 2)
    for span in spans:
        assert [pair.span for pair in mi.pairs_from_ids(IDS, [3, 4], span=span)] == [(1, 3)] * 2
