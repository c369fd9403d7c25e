"""Pairs of token ids: by hand, beside those of an insertion, and beside whole passes; models as they come."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from conftest import needs_hooked_transformer
from models_under_test import QUIET, hooked, pairs_for
from typer.testing import CliRunner

import mless_interp as mi
from mless_interp.__main__ import app
from mless_interp.prompts.own_ids import pairs_from_file

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
    kept = {"tags": [{"subject": "s", "level": 2, "of": "x"}], "distractors": [np.int64(8)], "names": {3: "three"}}
    (told,) = mi.pairs_from_ids(torch.tensor([[7, 1, 2]]), np.array([[3, 7]]), span=range(1, 2), **kept)
    assert (told.problem.answer, told.problem.distractor, told.distractor_ids) == ("three 7", "8", (8,))
    assert (told.problem.subject, told.problem.level, told.problem.tags) == ("s", "2", {"of": "x"})
    assert told.problem.group == mi.pairs_from_ids([[7, 1, 2]], [0], span=(0, 1))[0].problem.group


@needs_hooked_transformer
@pytest.mark.parametrize(
    ("ids", "answer", "model", "words"),
    [
        ([7, 1, 9, 4], 3, {}, "holds token id 9, but small has the ids 0 to 8"),
        ([7, 1, 2, 4], 3, {"d_vocab_out": 3}, "small gives one of 3 classes"),
        ([7, 1, 2, 4, 4, 4], 3, {}, "needs 6 positions with 1 inserted, but small has a context of 5"),
    ],
)
def test_ids_that_a_model_lacks_are_named(ids: Any, answer: int, model: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        mi.patch_heads(hooked(**model), mi.pairs_from_ids([ids], [answer], span=(1, 2)), **QUIET)


def test_an_insertions_own_ids_give_its_numbers(model: Any) -> None:
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
    with pytest.raises(ValueError, match=r"pairs.jsonl, line 1: expected keys ids, answer and any of distractor"):
        pairs_from_file(path)
    for text, words in (
        ("\n", "pairs.jsonl holds no pairs"),
        ('{"ids": [1, 2], "answer": 3, "tags": "a"}', "line 1: tags must be an object"),
    ):
        path.write_text(text)
        with pytest.raises(ValueError, match=words):
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
    for asked in (mi.score_heads, mi.decompose_attention):
        with pytest.raises(ValueError, match=r"has no span, so .* is not defined"):
            asked(model, one, **QUIET)


def test_a_table_of_tags_and_numpys_spans_are_taken_as_they_come() -> None:
    table = pd.DataFrame({"kind": ["a", None], "size": [np.nan, 2.0], "day": [pd.NA, pd.NaT]})
    for tags in (table, table.to_dict("list"), table.to_dict("records")):
        first, second = mi.pairs_from_ids(IDS, [3, 4], span=(1, 3), tags=tags)
        assert (first.problem.tags, second.problem.tags) == ({"kind": "a"}, {"size": "2.0"})
    spans = ((np.int64(1), np.int64(3)), np.array([1, 3]), [(np.int64(1), np.int64(3))] * 2)
    for span in spans:
        assert [pair.span for pair in mi.pairs_from_ids(IDS, [3, 4], span=span)] == [(1, 3)] * 2
