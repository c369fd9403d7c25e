"""Locating heads: exactly the planted ones, honest negatives, the four measures, screening."""

from typing import Any

import numpy as np
import pytest
from analyses_under_test import whole
from located_under_test import N, located, pairs_of, planted_kinds
from models_under_test import loaded, pairs_for, planted_here, planted_pairs, planted_problems, without_stepper

import mless_interp as mi
from mless_interp.circuits import locate as measuring
from mless_interp.circuits.locate import N_SCREENED
from mless_interp.circuits.located import LocatedHeads
from mless_interp.patching.prepared import prepare
from mless_interp.patching.sweep import patch_heads
from mless_interp.prompts.conditions import CONTRASTS
from mless_interp.runtime.loop import RunOptions


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


@pytest.mark.slow
def test_screening_finds_the_planted_heads_of_a_model_with_more_heads_than_it_tests() -> None:
    made, model = planted_here(n_layers=3, n_heads=28, n_key_value_heads=4)
    result = located(made, model, 26, mode="screen")
    assert 84 > N_SCREENED >= len(result.heads)
    assert result.found == planted_kinds(made)
    assert result.problem_ids == tuple(problem.id for problem in planted_problems(made, 26)[1::2])
    assert result.settings["screened"] == [str(head) for head in result.heads]


def test_what_cannot_be_screened_is_refused_before_anything_runs(monkeypatch: Any) -> None:
    made, model = planted_here()
    pairs, closed = planted_pairs(made, model, 8), without_stepper(model)
    monkeypatch.setattr(type(model), "_forward", lambda *a, **k: pytest.fail("it ran"))
    with pytest.raises(mi.ModelError, match=r'locate_heads\(mode="screen"\) needs gradients, but .* layer by layer'):
        mi.locate_heads(closed, pairs, mode="screen", progress=False)
    measuring.check_screening(prepare(model, pairs), CONTRASTS["content"])
    with pytest.raises(ValueError, match=r"needs at least 8, got 7: give more problems, or choose mode='exact'"):
        mi.locate_heads(model, pairs[:7], mode="screen", progress=False)


def test_screening_takes_the_best_of_both_estimates(monkeypatch: Any) -> None:
    made, model = planted_here()
    prepared = prepare(model, pairs_of(made, model, 2))
    monkeypatch.setattr(measuring, "N_SCREENED", 4)
    ways = (mi.attribute_heads(model, prepared, method=name, verify=0, progress=False) for name in ("gate_ig", "atp"))
    best = {head for each in ways for head in each.ranking()[:2]}
    found = measuring.screened(prepared, model.info.heads, CONTRASTS["content"], options=RunOptions(progress=False))
    assert found == tuple(sorted(best))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mode": "fast"}, "unknown mode 'fast'; choose one of exact, screen"),
        ({"smallest_effect": 1.0}, "a share of the upper limit of the median total effect, from 0 to below 1, got 1.0"),
        ({"n_control_draws": 0}, r"leaves controls out\) must be 1 or more, got 0"),
        ({"count": 1}, "needs at least 2 problems"),
    ],
)
def test_wrong_requests_are_named(options: dict[str, Any], message: str, tiny_model_dir: Any) -> None:
    model, count = loaded(tiny_model_dir("qwen2"), "bridge"), options.pop("count", 3)
    with pytest.raises(ValueError, match=message):
        mi.locate_heads(model, pairs_for(model, count=count), progress=False, **options)
