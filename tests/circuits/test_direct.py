"""Direct and indirect effects: against the whole sweep and plain passes, on every build of layers."""

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
        if contrast == "replaced":  # pairs of an insertion have no clean prompt
            continue
        for edit in ("z", "knockout") if made.cuts else ("z",):
            options: dict[str, Any] = {"heads": HEADS, "contrast": contrast, "direction": direction, "edit": edit}
            split = mi.direct_effects(model, pairs, progress=False, **options)
            swept = mi.patch_heads(model, pairs, progress=False, **options)
            np.testing.assert_allclose(split.effect, swept.per_head, atol=1e-5)
            np.testing.assert_allclose(split.total, swept.total_effect, atol=1e-6)
            assert np.abs(split.effect).max() > 1e-4, (contrast, edit)


def test_planted_heads_act_through_the_last_mlp() -> None:
    made, model = planted_here(1)
    found = mi.direct_effects(model, planted_pairs(made, model, 12), [*made.readers, *made.mediators], progress=False)
    table = found.table().set_index("label")
    assert set(table.index[table["p_corrected"] < found.level]) == {f"{head} indirect" for head in found.heads}
    assert np.abs(found.direct).max() < 0.01 * np.abs(found.effect).min()
