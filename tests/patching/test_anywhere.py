"""Spans that stand anywhere: after the question, at a token, in several blocks; and what a span reads of the question."""

from functools import lru_cache
from typing import Any

import numpy as np
import pytest
import torch
from conftest import ARCHITECTURES, BACKENDS
from models_under_test import loaded, problems, without_stepper

import mless_interp as mi
from mless_interp.core.heads import Head
from mless_interp.models.base import Model
from mless_interp.patching.joint import gated_outcomes
from mless_interp.patching.prepared import prepare
from mless_interp.patching.sweep import patch_heads
from mless_interp.prompts.conditions import CONTRASTS
from mless_interp.prompts.insertions import Insertion
from mless_interp.prompts.pairs import PromptPair, make_pairs

QUIET: dict[str, Any] = {"progress": False}
PLACES: dict[str, dict[str, Any]] = {
    "after": {"after": "question"},
    "index": {"at": 14},
    "blocks": {"before": "question", "after": "question", "at": 12},
}
PLACE = pytest.mark.parametrize("place", PLACES)
SWEEPS = [
    ("content", "denoising", "z"),
    ("content", "noising", "knockout"),
    ("presence", "denoising", "z"),
    ("computed", "denoising", "z"),
    ("computed", "noising", "z"),
    ("computed", "denoising", "knockout"),
    ("computed", "noising", "knockout"),
    ("shift", "denoising", "z"),
    ("total", "denoising", "z"),
    ("total", "noising", "z"),
    ("held", "denoising", "z"),
]


def pairs_at(model: Model, place: str, n_tokens: int = 12, count: int = 2) -> tuple[PromptPair, ...]:
    return make_pairs(model, problems()[:count], Insertion.meaningless(" /", n_tokens, **PLACES[place]))


def outcome_of(model: Model, pair: PromptPair, condition: str) -> float:
    """The answer's log-probability by one whole pass, without any of the machinery."""
    answered = pair.answered()
    inputs = answered.condition(condition)
    logits = model.run(inputs).logits[0, -len(answered.answer_ids) - 1 : -1]
    return float(logits.log_softmax(-1)[torch.arange(len(answered.answer_ids)), list(answered.answer_ids)].sum())


@PLACE
@pytest.mark.parametrize(("contrast", "direction", "edit"), SWEEPS)
def test_a_sweep_anywhere_is_one_whole_forward_pass_per_head(
    place: str, contrast: str, direction: str, edit: str, tiny_model_dir: Any
) -> None:
    model = loaded(tiny_model_dir("qwen2"), "bridge")
    pairs, heads = pairs_at(model, place), [Head(0, 1), Head(1, 0), Head(2, 7)]
    options: dict[str, Any] = {"contrast": contrast, "direction": direction, "edit": edit, "heads": heads, **QUIET}
    fast, slow = patch_heads(model, pairs, **options), patch_heads(without_stepper(model), pairs, **options)
    assert np.nanmax(np.abs(fast.patched - slow.patched)) < 1e-4
    between = CONTRASTS[contrast]
    ends = [[outcome_of(model, pair, run) for pair in pairs] for run in (between.clean, between.corrupted)]
    assert fast.total_effect == pytest.approx(np.subtract(ends[1], ends[0]), abs=1e-4)
    assert np.abs(fast.per_head).max() > 1e-4


@PLACE
@pytest.mark.parametrize("contrast", ["content", "presence"])
def test_no_inserted_token_is_patched_where_it_changes_nothing(contrast: str, place: str, tiny_model_dir: Any) -> None:
    model = loaded(tiny_model_dir("qwen2"), "bridge")
    (pair,), heads = pairs_at(model, place, count=1), [Head(0, 1), Head(1, 6)]
    between, answered = CONTRASTS[contrast], pair.answered()
    for direction in ("denoising", "noising"):
        found = patch_heads(model, [pair], contrast=contrast, direction=direction, heads=heads, **QUIET)
        ends = (between.clean, between.corrupted)
        donor, receiving = ends if direction == "denoising" else ends[::-1]
        for head in heads:
            name = f"blocks.{head.layer}.attn.hook_z"
            given = model.run(answered.condition(donor), capture={name: lambda z: z.clone()}).captured[name]

            def put(z: Any, given: Any = given, head: Head = head) -> Any:
                new = z.clone()
                new[:, answered.shared, head.head] = given[:, answered.shared, head.head]
                return new

            logits = model.run(answered.condition(receiving), edits={name: put}).logits
            assert logits is not None
            n = len(answered.answer_ids)
            ids = torch.tensor(answered.answer_ids)
            value = logits[0, -n - 1 : -1].log_softmax(-1)[torch.arange(n), ids].sum()
            assert found.patched[0, head.layer, head.head] == pytest.approx(float(value), abs=1e-5)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("edit", ["z", "knockout"])
def test_computed_is_swept_on_every_backend(architecture: str, backend: str, edit: str, tiny_model_dir: Any) -> None:
    model = loaded(tiny_model_dir(architecture), backend)
    pairs, heads = pairs_at(model, "after", 9, 1), [Head(0, 1), Head(1, 6), Head(2, 7)]
    options: dict[str, Any] = {"contrast": "computed", "edit": edit, "heads": heads, **QUIET}
    fast, slow = patch_heads(model, pairs, **options), patch_heads(without_stepper(model), pairs, **options)
    assert np.nanmax(np.abs(fast.patched - slow.patched)) < 1e-4
    if edit == "knockout":  # in layer 0 it is the z patch (I14)
        patch = patch_heads(model, pairs, contrast="computed", heads=heads, **QUIET)
        assert fast.per_head[:, 0] == pytest.approx(patch.per_head[:, 0], abs=1e-4)
        assert np.abs(fast.per_head[:, 0]).max() > 1e-4


@pytest.mark.parametrize("backend", BACKENDS)
def test_before_the_question_nothing_is_computed_at_all(backend: str, tiny_model_dir: Any) -> None:
    model = loaded(tiny_model_dir("qwen2"), backend)
    pairs = make_pairs(model, problems()[:2], Insertion.meaningless(" /", 9))
    for edit in ("z", "knockout"):
        found = patch_heads(model, pairs, contrast="computed", edit=edit, **QUIET)
        assert not found.total_effect.any() and not found.effect.any()
    presence = patch_heads(model, pairs, contrast="presence", heads=["L0H1"], **QUIET)
    content = patch_heads(model, pairs, contrast="content", heads=["L0H1"], **QUIET)
    assert np.array_equal(presence.total_effect, content.total_effect) and np.abs(content.total_effect).min() > 1e-4


@pytest.mark.slow
@PLACE
def test_content_is_presence_and_computed(place: str, tiny_model_dir: Any) -> None:
    model = loaded(tiny_model_dir("qwen2"), "bridge")
    pairs = pairs_at(model, place)
    total = {
        c: patch_heads(model, pairs, contrast=c, heads=["L0H0"], **QUIET).total_effect
        for c in ("content", "presence", "computed")
    }
    assert total["presence"] + total["computed"] == pytest.approx(total["content"], abs=1e-5)
    assert min(np.abs(total["computed"]).max(), np.abs(total["presence"]).max()) > 1e-3


@PLACE
def test_what_changes_begins_where_a_contrast_says(place: str, tiny_model_dir: Any) -> None:
    model = loaded(tiny_model_dir("qwen2"), "bridge")
    (pair,) = pairs_at(model, place, count=1)
    names = [f"blocks.{layer}.hook_resid_post" for layer in range(3)]
    runs = {
        c: torch.stack(list(model.run(pair.condition(c), capture=dict.fromkeys(names)).captured.values()))
        for c in ("masked", "blind", "inserted")
    }
    for contrast, first in (("content", pair.spans[0][1]), ("computed", pair.span[0])):
        clean, corrupted = CONTRASTS[contrast].conditions
        if contrast == "content" and place != "blocks" and not pair.n_after:
            continue
        apart = (runs[clean.name] - runs[corrupted.name]).abs().amax((0, 1, 3))
        start = CONTRASTS[contrast].start(pair, corrupted)
        assert start == first and not apart[:start].any() and (start == len(apart) or apart.any())


@pytest.mark.parametrize("way", ["replay", "forward"])
@pytest.mark.parametrize("contrast", ["content", "computed"])
@PLACE
def test_closing_all_heads_is_the_clean_run(way: str, contrast: str, place: str, tiny_model_dir: Any) -> None:
    model = loaded(tiny_model_dir("qwen2"), "bridge")
    pairs = pairs_at(model, place)
    asked = prepare(model if way == "replay" else without_stepper(model), pairs)
    gates = torch.stack([torch.zeros(3, 8), torch.ones(3, 8)])
    values = gated_outcomes(asked, gates, label="all or none", settings={}, contrast=CONTRASTS[contrast], **QUIET)
    for column, run in enumerate((CONTRASTS[contrast].clean, CONTRASTS[contrast].corrupted)):
        assert values[:, column] == pytest.approx([outcome_of(model, pair, run) for pair in pairs], abs=1e-4)
    assert np.abs(values[:, 0] - values[:, 1]).min() > 1e-4


@pytest.mark.slow
@PLACE
def test_gate_gradients_of_computed_add_up(place: str, tiny_model_dir: Any) -> None:
    model = loaded(tiny_model_dir("qwen2"), "bridge", "float64")
    pairs = pairs_at(model, place)
    found = mi.attribute_heads(model, pairs, contrast="computed", verify=0, **QUIET)
    exact = patch_heads(model, pairs, contrast="computed", heads=["L0H0"], **QUIET).total_effect
    assert found.inserted - found.masked == pytest.approx(exact, abs=1e-6)
    assert np.abs(found.completeness).max() < 1e-3 * np.abs(exact).max()
    verified = mi.attribute_heads(model, pairs, contrast="computed", verify=2, **QUIET)
    knocked = patch_heads(model, pairs, contrast="computed", edit="knockout", **QUIET)
    sure = verified.verified
    assert sure.sum() == 2 and verified.exact[:, sure] == pytest.approx(knocked.effect[:, sure], abs=1e-9)
    shift = mi.attribute_heads(model, pairs, contrast="shift", method="atp", **QUIET)
    assert shift.inserted - shift.masked == pytest.approx(
        patch_heads(model, pairs, contrast="shift", heads=["L0H0"], **QUIET).total_effect, abs=1e-6
    )


def test_positions_within_computed(tiny_model_dir: Any) -> None:
    """In layer 0 what the span reads stands in its rows, so patching them is patching everything, and the prefix nothing."""
    model = loaded(tiny_model_dir("qwen2"), "bridge")
    pairs = pairs_at(model, "after")
    options: dict[str, Any] = {"contrast": "computed", "heads": ["L0H1", "L0H5"], **QUIET}
    every, span = (patch_heads(model, pairs, positions=at, **options) for at in ("question", "span"))
    assert span.per_head == pytest.approx(every.per_head, abs=1e-4) and np.abs(span.per_head).max() > 1e-3
    assert not patch_heads(model, pairs, positions="prefix", **options).per_head.any()


# ---------------------------------------------------------------------------------- everything else holds there as well


@lru_cache(maxsize=4)
def described(directory: Any, place: str) -> tuple[Model, tuple[PromptPair, ...]]:
    model = loaded(directory, "bridge", "float64")
    return model, pairs_at(model, place)


@PLACE
def test_attention_is_described_anywhere(place: str, tiny_model_dir: Any) -> None:
    model, pairs = described(tiny_model_dir("qwen2"), place)
    found = mi.score_heads(model, pairs, metrics=["span_mass", "lam", "onset_step", "recovery_latency"], **QUIET)
    asked = [pair if pair.n_after else pair.answered() for pair in pairs]
    for at, pair in enumerate(asked):
        pattern = model.run(pair.condition("inserted"), capture={"blocks.1.attn.hook_pattern": None}).captured[
            "blocks.1.attn.hook_pattern"
        ][0]
        span = pair.span_mask
        rows = ~span & (torch.arange(len(span)) >= pair.spans[0][1])
        assert found.values["span_mass"]["inserted"][at, 1] == pytest.approx(
            pattern[:, rows][..., span].sum(-1).mean(-1).numpy(), abs=1e-6
        )
    several = place == "blocks"  # where one of several spans begins is no single place
    assert np.isnan(found.values["onset_step"]["inserted"]).all() == several
    assert np.isnan(found.values["recovery_latency"]["inserted"]).all() == several or place == "after"
    profile = mi.attention_profile(model, pairs, conditions=("base", "inserted", "blind"), **QUIET)
    frame = profile.to_frame().query("problem == 'p0' and condition == 'inserted' and label == 'L0H0'")
    assert ((frame["segment"] == "inserted").to_numpy() == asked[0].span_mask.numpy()).all()
    assert mi.views.tokens(profile, ["L0H0"]).data["elements"]


@pytest.mark.slow
@PLACE
def test_the_mechanism_holds_anywhere(place: str, tiny_model_dir: Any) -> None:
    model, pairs = described(tiny_model_dir("qwen2"), place)
    parts = mi.decompose_attention(
        model, pairs, contrasts=("content", "total", "held", "presence"), control=None, **QUIET
    )
    for contrast in ("content", "total", "held", "presence"):
        table = parts.table(contrast).query("layer == 0")
        assert table["residual"].max() < 1e-5 and (table["lam"] < 1).all()  # I1: exact in the first layer
    shift = mi.activation_shift(model, pairs, contrasts=("content", "computed"), positions="question", **QUIET)
    assert np.isfinite(shift.difference[:, :, 0]).all() and np.nanmax(np.abs(shift.difference[:, 0])) > 0
    if place == "blocks":
        with pytest.raises(ValueError, match="mediation, .*is not defined for an insertion in 3 blocks"):
            mi.mediate(model, pairs, **QUIET)
    else:
        assert np.isfinite(mi.mediate(model, pairs, **QUIET).values).all()
    dose = mi.dose_response(
        model, problems()[:2], Insertion.meaningless(" /", 4, **PLACES[place]), doses=(3, 6, 12), **QUIET
    )
    assert dose.slopes("held") == pytest.approx(1.0, abs=1e-4)  # I12, wherever the tokens stand


def test_without_an_answer_either_nothing_follows(tiny_model_dir: Any) -> None:
    from dataclasses import replace

    model = loaded(tiny_model_dir("qwen2"), "bridge")
    bare = [replace(problem, answer="", answer_prefix="") for problem in problems()[:2]]
    pairs = make_pairs(model, bare, Insertion.meaningless(" /", 4, after="question"))
    with pytest.raises(ValueError, match="2 of 2 pairs have no tokens after the insertion, nor an answer"):
        patch_heads(model, pairs, **QUIET)
