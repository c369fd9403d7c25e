"""Attention by token and by segment: alignment, curves and levels by hand, formulas and naive sums as oracles, pictures."""

from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
from models_under_test import loaded, pairs_for, problems
from small_results import uneven

import mless_interp as mi
from mless_interp.core.heads import Head
from mless_interp.models.sites import site
from mless_interp.prompts.insertions import Insertion
from mless_interp.prompts.pairs import make_pairs
from mless_interp.scores import attention_profile

NAN = np.nan


def test_curves_put_insertion_points_on_each_other() -> None:
    curve = uneven().curve(Head(0, 13), "inserted")
    np.testing.assert_allclose(curve["mean"], [0.5, 0.25, 0.1, 0.15, 0.1, NAN])
    assert curve["n"].tolist() == [1, 2, 2, 2, 2, 0]
    assert (curve["low"][1:5] <= curve["mean"][1:5]).all() and (curve["mean"][1:5] <= curve["high"][1:5]).all()
    assert uneven().shaded("inserted") == ((2, 4),) and uneven().shaded("base") == ()
    null = uneven().curve(Head(0, 13), "inserted", null=True)
    np.testing.assert_allclose(null["mean"], [0.25, 0.25, 0.2, 0.2, 0.15, NAN])


def test_levels_are_means_over_segments() -> None:
    made = uneven()
    np.testing.assert_allclose(made.aligned("inserted")[0], [[0.3, 0.1, NAN]])
    np.testing.assert_allclose(made.aligned("inserted", relative=True)[0], [[1.0, 1.0, NAN]])
    np.testing.assert_allclose(made.level("inserted", "before"), [[0.3], [0.35]])
    np.testing.assert_allclose(made.level("inserted", "inserted"), [[0.1], [0.15]])
    np.testing.assert_allclose(made.level("inserted", "question", relative=True), [[1.0], [0.5]])
    assert np.isnan(made.level("base", "inserted")).all()
    table = made.table()
    assert table["before_received"].tolist() == pytest.approx([0.425, 0.325])


def test_the_first_token_is_left_out_where_it_is_a_bos(tiny_model_dir: Any) -> None:
    for architecture, undefined in (("qwen2", False), ("llama", True)):
        model = loaded(tiny_model_dir(architecture), "bridge")
        pairs = pairs_for(model, count=1)
        options: dict[str, Any] = {"heads": [Head(0, 0)], "progress": False}
        assert np.isnan(attention_profile(model, pairs, **options).received["base"][0][0, 0]) == undefined
        forced = attention_profile(model, pairs, exclude_sink=not undefined, **options)
        assert np.isnan(forced.received["base"][0][0, 0]) != undefined


def test_only_inserted_tokens_are_shaded_also_in_several_blocks(model: Any) -> None:
    pairs = pairs_for(model, 8, before=("question",), at=(2,))
    found = attention_profile(model, pairs, heads=[Head(0, 1)], progress=False)
    assert found.shaded("inserted") == pairs[0].spans and len(pairs[0].spans) == 2
    assert len(mi.views.profiles(found).axes[-1].patches) == 2, "nothing between the blocks"


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
    assert set(found.metrics) == {f"{dest}_to_{src}" for dest, src in product(there, there)}
    assert found.metrics[0].startswith(f"question_to_{'inserted' if 'inserted' in there else 'bos'}")
    for at, pair in enumerate(pairs):
        segments = np.array((pair.base if condition == "base" else pair.inserted).segments)
        name = site(1, "attn.hook_pattern")
        run = model.run(pair.condition(condition), capture={name: None}, logits_at="none")
        pattern = run.captured[name][0].double().numpy()
        for dest, src in product(there, there):
            block = pattern[:, segments == dest][..., segments == src]
            expected = block.sum(-1).sum(-1) / ((segments == dest).sum() or NAN)
            np.testing.assert_allclose(found.of(f"{dest}_to_{src}")[at, 1], expected, atol=1e-6)
    totals = {dest: sum(found.mean(f"{dest}_to_{src}") for src in there) for dest in there}
    np.testing.assert_allclose([*totals.values()], 1, atol=1e-5, err_msg="also where some prompts lack a segment")
