"""Direct and indirect effects: against the whole sweep and plain passes, on every build of layers."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from architectures_under_test import folder_of
from circuits_under_test import ByHand
from models_under_test import loaded, pairs_for, planted_here, planted_pairs

import mless_interp as mi
from mless_interp.circuits.paths import Edge
from mless_interp.prompts.conditions import CONTRASTS

HEADS = ["L0H1", "L1H2", "L2H3", "L2H6"]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["Llama", "GPT-2", "GPT-NeoX (Pythia)", "OLMo 2", "Gemma 2"])
def test_both_ways_are_those_of_whole_passes(name: str) -> None:
    model = loaded(folder_of(name), "bridge")
    pairs = pairs_for(model, count=2)
    found = mi.direct_effects(model, pairs, HEADS, progress=False)
    swept = mi.patch_heads(model, pairs, heads=HEADS, progress=False)
    np.testing.assert_allclose(found.effect, swept.per_head, atol=1e-5)
    np.testing.assert_allclose(found.total, swept.total_effect, atol=1e-6)
    for row, pair in enumerate(pairs):
        hand = ByHand(model, pair)
        direct = [hand.edge(Edge(head, "logits"), parallel=False) for head in HEADS]
        np.testing.assert_allclose(found.direct[row], direct, atol=1e-5)
        assert np.abs(direct).max() > 1e-4
    last = np.abs(found.indirect[:, 2:]).max()
    assert (last < 1e-5) == (name == "GPT-NeoX (Pythia)")  # else the layer's own MLP still reads it


@pytest.mark.slow
@pytest.mark.parametrize("direction", ["denoising", "noising"])
@pytest.mark.parametrize("place", [{"after": "question"}, {"before": "question", "after": "question", "at": 12}])
def test_spans_anywhere_under_every_contrast(place: dict[str, Any], direction: str) -> None:
    model = loaded(folder_of("Llama"), "bridge")
    pairs = pairs_for(model, 12, 2, **place)
    for contrast, made in CONTRASTS.items():
        for edit in ("z", "knockout") if made.cuts else ("z",):
            options: dict[str, Any] = {"heads": HEADS, "contrast": contrast, "direction": direction, "edit": edit}
            split = mi.direct_effects(model, pairs, progress=False, **options)
            swept = mi.patch_heads(model, pairs, progress=False, **options)
            np.testing.assert_allclose(split.effect, swept.per_head, atol=1e-5)
            np.testing.assert_allclose(split.total, swept.total_effect, atol=1e-6)
            assert np.abs(split.effect).max() > 1e-4, (contrast, edit)


@pytest.mark.slow
@pytest.mark.parametrize("direction", ["denoising", "noising"])
@pytest.mark.parametrize("edit", ["z", "knockout"])
def test_other_edits_and_the_other_direction(direction: str, edit: str) -> None:
    model = loaded(folder_of("Llama"), "bridge")
    pairs = pairs_for(model)
    edit = {"noising": "edge_noise"}.get(direction, edit) if edit == "knockout" else edit
    options = {"heads": HEADS, "direction": direction, "edit": edit, "progress": False}
    found, swept = mi.direct_effects(model, pairs, **options), mi.patch_heads(model, pairs, **options)
    np.testing.assert_allclose(found.effect, swept.per_head, atol=1e-5)


def test_planted_heads_act_through_the_last_mlp() -> None:
    made, model = planted_here(1)
    found = mi.direct_effects(model, planted_pairs(made, model, 12), [*made.readers, *made.mediators], progress=False)
    table = found.summary().set_index("label")
    assert set(table.index[table["p_prevalence"] < found.alpha]) == {f"{head} indirect" for head in found.heads}
    assert np.abs(found.direct).max() < 0.01 * np.abs(found.effect).min()


@pytest.mark.slow
def test_half_precision_takes_common_rounding_out() -> None:
    model = loaded(folder_of("Llama"), "bridge", "bfloat16")
    exact = loaded(folder_of("Llama"), "bridge")
    heads = ["L0H1", "L1H2"]
    half, full = (mi.direct_effects(each, pairs_for(each), heads, progress=False) for each in (model, exact))
    np.testing.assert_allclose(half.effect, full.effect, atol=0.1)
    np.testing.assert_allclose(half.direct, full.direct, atol=0.1)


def test_heads_come_in_the_order_in_which_they_were_asked_for() -> None:
    model = loaded(folder_of("Llama"), "bridge")
    pairs = pairs_for(model, count=1)
    one, other = (mi.direct_effects(model, pairs, heads, progress=False) for heads in (HEADS, HEADS[::-1]))
    np.testing.assert_allclose(one.direct, other.direct[:, ::-1], atol=1e-6)
    np.testing.assert_allclose(one.effect, other.effect[:, ::-1], atol=1e-6)
    assert list(map(str, other.heads)) == HEADS[::-1]


def test_located_heads_without_any_are_refused() -> None:
    from small_results import located

    model = loaded(folder_of("Llama"), "bridge")
    nothing = replace(located(0.0), total=0 * located().total)
    assert not nothing.found
    with pytest.raises(ValueError, match="locating named no head"):
        mi.direct_effects(model, pairs_for(model, count=1), nothing)


def test_of_one_problem_it_is_said_that_nothing_has_limits() -> None:
    model = loaded(folder_of("Llama"), "bridge")
    found = mi.direct_effects(model, pairs_for(model, count=1), HEADS, progress=False)
    assert np.isfinite(found.effect_fraction.estimate).all() and np.isnan(found.effect_fraction.low).all()
    assert "One problem" in str(found) and "effect_fraction is NaN" not in str(found)
    none = replace(found, **{name: np.repeat(getattr(found, name), 2, 0) for name in ("effect", "direct")})
    none = replace(none, problem_ids=("a", "b"), total=np.array([1.0, -1.0]))
    assert "effect_fraction is NaN" in str(none) and np.isnan(none.effect_fraction.estimate).all()
