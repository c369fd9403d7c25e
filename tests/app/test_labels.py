"""`heads=["L0H2"]`: every public function that takes heads takes their labels too."""

from typing import Any

import pytest
from models_under_test import planted_here, planted_pairs

import mless_interp as mi
from mless_interp.core.heads import Head

QUIET = {"progress": False}
CALLS: dict[str, Any] = {
    "score_heads": lambda m, p, h: mi.score_heads(m, p, heads=h, metrics="span_mass".split(), **QUIET).heads,
    "attention_profile": lambda m, p, h: mi.attention_profile(m, p, heads=h, **QUIET).heads,
    "profile of": lambda m, p, h: mi.attention_profile(m, p, heads=h, **QUIET).curves(heads=h)["label"].tolist(),
    "patch_heads": lambda m, p, h: mi.patch_heads(m, p, heads=h, **QUIET).heads,
    "joint_knockout": lambda m, p, h: mi.joint_knockout(m, p, h, n_random_sets=1, **QUIET).heads,
    "read_effects": lambda m, p, h: mi.read_effects(m, p, h, **QUIET).heads,
    "mediate": lambda m, p, h: mi.mediate(m, p, heads=h, **QUIET).settings["heads"],
    "decompose": lambda m, p, h: mi.decompose_attention(m, p, heads=h, **QUIET).heads,
    "circuit_curve": lambda m, p, h: mi.circuit_curve(m, p, h, n_random=1, joint_up_to=0, **QUIET).ranking,
    "locate_heads": lambda m, p, h: mi.locate_heads(m, p, heads=h, controls=False, **QUIET).heads,
    "enrichment": lambda m, p, h: mi.enrichment(mi.patch_heads(m, p, **QUIET), h, n_draws=9).heads,
    "attention view": lambda m, p, h: mi.views.attention(m, p[0], h).data["heads"],
    "head patterns": lambda m, p, h: len(mi.views.head_patterns(m, p[0], h).axes),
    "forest": lambda m, p, h: len(mi.views.forest(mi.patch_heads(m, p, **QUIET), heads=h).axes),
    "profiles": lambda m, p, h: len(mi.views.profiles(mi.attention_profile(m, p, **QUIET), h).axes),
    "tokens": lambda m, p, h: mi.views.tokens(mi.attention_profile(m, p, **QUIET), h).data["elements"],
    "treatment": lambda m, p, h: mi.Treatment(mi.Insertion.meaningless(), knockout=h).knockout,
}


@pytest.mark.filterwarnings("ignore:.*problems are too few")
@pytest.mark.parametrize("name", list(CALLS))
def test_labels_name_heads(name: str) -> None:
    made, model = planted_here(readers=(Head(0, 2),))
    pairs = planted_pairs(made, model, 2, n_tokens=5)
    assert CALLS[name](model, pairs, ["L0H2", "0:3"]) == CALLS[name](model, pairs, [Head(0, 2), Head(0, 3)])
