"""Locating heads: exactly the planted ones, honest negatives, the four measures."""

from typing import Any

import numpy as np
import pytest
from analyses_under_test import whole
from located_under_test import N, located, pairs_of, planted_kinds
from models_under_test import loaded, pairs_for, planted_here

import mless_interp as mi
from mless_interp.circuits.located import LocatedHeads
from mless_interp.patching.sweep import patch_heads


@pytest.fixture(scope="module")
def found() -> LocatedHeads:
    """Of the default planted model."""
    return whole("located")


def test_exactly_the_planted_readers_and_mediators_are_named(found: LocatedHeads) -> None:
    made, _ = planted_here()
    assert found.found == planted_kinds(made) and set(found.judged.sense[found.judged.named]) == {1}
    decoys = {head for heads in made.roles.decoys.values() for head in heads} | {made.roles.copier}
    assert decoys and not decoys & set(found.found)


def test_where_the_span_does_nothing_no_head_is_named_and_nothing_is_divided() -> None:
    made, model = planted_here(null=True, noise=0.0)
    result = located(made, model)
    assert not result.found and not result.established
    assert result.table()[["removed_share", "p_either"]].isna().all(axis=None) and np.isnan(result.judged.effect.delta)


def test_measures_are_parts_of_the_effect_from_the_four_sweeps(found: LocatedHeads) -> None:
    made, model = planted_here()
    sides = {"denoising": ("knockout", "mediated_removed"), "noising": ("edge_noise", "mediated_added")}
    for direction, (own, mediated) in sides.items():
        options: dict[str, Any] = {"direction": direction, "progress": False}
        pairs = pairs_of(made, model, N)
        cut, z = (patch_heads(model, pairs, edit=edit, **options).per_head for edit in ("knockout", "z"))
        assert found.values[own] == pytest.approx(cut, abs=1e-5)
        assert found.values[mediated] == pytest.approx(z - cut, abs=1e-5)
        if direction == "denoising":
            assert found.patches.per_head == pytest.approx(z, abs=1e-5)
    assert found.total == pytest.approx(found.patches.receiving - found.patches.donor, abs=1e-6)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"smallest_effect": 1.0}, "a share of the upper limit of the median total effect, from 0 to below 1, got 1.0"),
        ({"n_control_draws": 0}, r"leaves controls out\) must be 1 or more, got 0"),
        ({"count": 1}, "needs at least 2 problems"),
    ],
)
def test_wrong_requests_are_named(options: dict[str, Any], message: str, tiny_model_dir: Any) -> None:
    model, count = loaded(tiny_model_dir("qwen2"), "bridge"), options.pop("count", 3)
    with pytest.raises(ValueError, match=message):
        mi.locate_heads(model, pairs_for(model, count=count), progress=False, **options)
