"""Sweeps of spans that stand anywhere against whole forward passes, and what a span reads of the question."""

from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from conftest import ONE_OF_EACH
from models_under_test import QUIET, loaded, pairs_for, problems, without_stepper

import mless_interp as mi
from mless_interp.core.heads import Head
from mless_interp.models.base import Model
from mless_interp.patching.knockouts import gated_outcomes
from mless_interp.patching.prepared import prepare
from mless_interp.patching.sweep import patch_heads
from mless_interp.prompts.conditions import CONTRASTS
from mless_interp.prompts.insertions import Insertion
from mless_interp.prompts.pairs import PromptPair, make_pairs

PLACES: dict[str, dict[str, Any]] = {
    "after": {"after": "question"},
    "index": {"at": 14},
    "blocks": {"before": "question", "after": "question", "at": 12},
}
PLACE = pytest.mark.parametrize("place", PLACES)
BEFORE = [
    *product(("content", "shift", "total"), ("denoising", "noising"), ("z",)),
    *product(("content",), ("noising", "denoising"), ("knockout",)),
    *product(("content",), ("denoising",), ("knockout_zero", "restore_scale", "reroute_uniform", "q", "k", "v")),
]
"""Sweeps (contrast, direction, edit) of a span before the question, on each architecture and backend once."""
ANYWHERE = [
    *product(("content", "presence", "shift", "total", "held"), ("denoising",), ("z",)),
    *product(("computed",), ("denoising", "noising"), ("z", "knockout")),
    *product(("content",), ("noising",), ("knockout",)),
    *product(("total",), ("noising",), ("z",)),
]


def pairs_at(model: Model, place: str, n_tokens: int = 12, count: int = 2) -> tuple[PromptPair, ...]:
    return make_pairs(model, problems()[:count], Insertion.meaningless(" /", n_tokens, **PLACES[place]))


def outcome_of(model: Model, pair: PromptPair, condition: str, **options: Any) -> float:
    """The answer's log-probability by one whole pass, without any of the machinery."""
    answered = pair.answered()
    logits = model.run(answered.condition(condition), **options).logits[0, -len(answered.answer_ids) - 1 : -1]
    return float(logits.log_softmax(-1)[torch.arange(len(answered.answer_ids)), list(answered.answer_ids)].sum())


def check_whole_passes(model: Model, pairs: tuple[PromptPair, ...], contrast: str, direction: str, edit: str) -> None:
    """Patched outcomes are those of one whole forward pass per head, and the total effect that of two without any edit."""
    heads = [Head(0, 1), Head(1, 0), Head(1, 6), Head(2, 7)]
    options: dict[str, Any] = {"contrast": contrast, "direction": direction, "edit": edit, "heads": heads, **QUIET}
    fast, slow = (patch_heads(each, pairs, **options) for each in (model, without_stepper(model)))
    assert np.nanmax(np.abs(fast.patched - slow.patched)) < 1e-4
    assert np.isfinite(fast.patched).sum() == len(pairs) * len(heads) and np.abs(fast.per_head).max() > 1e-4
    between = CONTRASTS[contrast]
    ends = [[outcome_of(model, pair, run) for pair in pairs] for run in (between.clean, between.corrupted)]
    assert fast.total_effect == pytest.approx(np.subtract(ends[1], ends[0]), abs=1e-4)


@pytest.mark.parametrize(("architecture", "backend"), ONE_OF_EACH)
@pytest.mark.parametrize("sweep", BEFORE, ids=" ".join)
def test_a_sweep_is_one_whole_forward_pass_per_head(backend: str, model: Model, sweep: tuple[str, str, str]) -> None:
    check_whole_passes(model, pairs_for(model, count=1), *sweep)


@PLACE
@pytest.mark.parametrize("sweep", ANYWHERE, ids=" ".join)
def test_a_sweep_anywhere_is_one_whole_forward_pass_per_head(
    place: str, sweep: tuple[str, str, str], model: Model
) -> None:
    check_whole_passes(model, pairs_at(model, place), *sweep)


@PLACE
@pytest.mark.parametrize("contrast", ["content", "presence"])
@pytest.mark.parametrize("direction", ["denoising", "noising"])
def test_no_inserted_token_is_patched_where_it_changes_nothing(
    contrast: str, direction: str, place: str, model: Model
) -> None:
    (pair,), heads = pairs_at(model, place, count=1), [Head(0, 1), Head(1, 6)]
    found = patch_heads(model, [pair], contrast=contrast, direction=direction, heads=heads, **QUIET)
    ends = (CONTRASTS[contrast].clean, CONTRASTS[contrast].corrupted)
    donor, receiving = ends if direction == "denoising" else ends[::-1]
    answered = pair.answered()
    for head in heads:
        name, shared = f"blocks.{head.layer}.attn.hook_z", answered.shared
        given = model.run(answered.condition(donor), capture={name: lambda z: z.clone()}).captured[name]

        def put(z: Any, given: Any = given, at: int = head.head, rows: Any = shared) -> Any:
            return z.index_put((torch.tensor(0), rows, torch.tensor(at)), given[0, rows, at])

        value = outcome_of(model, pair, receiving, edits={name: put})
        assert found.patched[0, head.layer, head.head] == pytest.approx(value, abs=1e-5)


@pytest.mark.parametrize("way", ["replay", "forward"])
@pytest.mark.parametrize("contrast", ["content", "computed"])
@PLACE
def test_closing_all_heads_is_the_clean_run(way: str, contrast: str, place: str, model: Model) -> None:
    pairs = pairs_at(model, place)
    asked = prepare(model if way == "replay" else without_stepper(model), pairs)
    gates = torch.stack([torch.zeros(3, 8), torch.ones(3, 8)])
    values = gated_outcomes(asked, gates, label="all or none", settings={}, contrast=CONTRASTS[contrast])
    for column, run in enumerate((CONTRASTS[contrast].clean, CONTRASTS[contrast].corrupted)):
        assert values[:, column] == pytest.approx([outcome_of(model, pair, run) for pair in pairs], abs=1e-4)
    assert np.abs(values[:, 0] - values[:, 1]).min() > 1e-4


@PLACE
def test_gate_gradients_of_computed_add_up(place: str, tiny_model_dir: Any) -> None:
    model = loaded(tiny_model_dir("qwen2"), "bridge", "float64")
    pairs = pairs_at(model, place)
    found = mi.attribute_heads(model, pairs, contrast="computed", verify=0, **QUIET)
    exact = patch_heads(model, pairs, contrast="computed", heads=["L0H0"], **QUIET).total_effect
    assert found.inserted - found.masked == pytest.approx(exact, abs=1e-6)
    assert np.abs(found.completeness).max() < 1e-3 * np.abs(exact).max()
    shift = mi.attribute_heads(model, pairs, contrast="shift", method="atp", **QUIET)
    assert shift.inserted - shift.masked == pytest.approx(
        patch_heads(model, pairs, contrast="shift", heads=["L0H0"], **QUIET).total_effect, abs=1e-6
    )
