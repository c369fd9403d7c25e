"""Attention from segment to segment: naive sums on every backend, rows that sum to 1, a few-shot prompt, messages."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from models_under_test import loaded, problems
from small_results import between_segments

import mless_interp as mi
from mless_interp.models.sites import site
from mless_interp.prompts.insertions import Insertion
from mless_interp.prompts.pairs import make_pairs
from mless_interp.prompts.prompt import SEGMENTS


def shots(model: Any) -> Any:
    """Pairs with examples; the system prompt of the last problem is empty."""
    asked = [*problems()[:2], replace(problems()[2], system="")]
    shown = mi.with_examples(asked, problems(), n=1, form="{question} {answer} ")
    return make_pairs(model, shown, Insertion.meaningless(" /", 5))


@pytest.mark.parametrize("condition", ["base", "inserted", "masked"])
def test_masses_are_naive_sums(condition: str, tiny_model_dir: Any) -> None:
    model = loaded(tiny_model_dir("gemma3"), "bridge")
    pairs = shots(model)
    found = mi.attention_between_segments(model, pairs, conditions=[condition], progress=False)
    there = {"bos", "system", "examples", "question", *["inserted"] * (condition != "base")}
    assert found.segments == tuple(segment for segment in SEGMENTS if segment in there)
    for at, pair in enumerate(pairs):
        segments = (pair.base if condition == "base" else pair.inserted).segments
        for layer in range(model.info.n_layers):
            name = site(layer, "attn.hook_pattern")
            pattern = model.run(pair.condition(condition), capture={name: None}, logits_at="none").captured[name][0]
            for dest in found.segments:
                for src in found.segments:
                    rows = [i for i, s in enumerate(segments) if s == dest]
                    keys = [i for i, s in enumerate(segments) if s == src]
                    got = found.of(dest, src)[at, layer]
                    if not rows:
                        assert np.isnan(got).all()
                        continue
                    expected = [np.mean([sum(float(head[i, j]) for j in keys) for i in rows]) for head in pattern]
                    np.testing.assert_allclose(got, expected, atol=1e-6)
    table = found.over_heads().set_index("reads").astype(float)
    np.testing.assert_allclose(table.sum(axis=1), 1, atol=1e-5, err_msg="also where some prompts lack a segment")


def test_it_tells_by_hand() -> None:
    found = between_segments()
    table = found.over_heads().set_index("reads")
    assert table.loc["question"].tolist() == pytest.approx([0, 0.55, 0.45])
    assert table.loc["system"].tolist() == [1, 0, 0]
    rows = found.table().set_index(["label", "dest", "src"])
    assert rows.loc[("L1H2", "question", "inserted"), "share"] == pytest.approx(0.8) and set(rows["n"]) == {3}
    assert found.of("question", "inserted")[:, 1, 2].mean() == pytest.approx(0.8)
    with pytest.raises(ValueError, match="no segment 'examples' here; there are system, inserted, question"):
        found.of("question", "examples")
    with pytest.raises(ValueError, match="no condition 'gap' here; there are inserted"):
        found.over_heads("gap")
