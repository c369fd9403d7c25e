"""Screening by gradients: completeness, finite differences, exact knockouts at the ends, planted heads first."""

from typing import Any

import numpy as np
import pytest
import torch
from conftest import ARCHITECTURES, BACKENDS
from models_under_test import loaded, pairs_for, planted_here, planted_pairs

from mless_interp.attribution import attribute_heads
from mless_interp.heads import Head
from mless_interp.interventions import Gate
from mless_interp.models.base import Model, ModelError
from mless_interp.patching import OUTCOMES, patch_heads, span_of
from mless_interp.store import load, save


class Gated:
    """One problem's outcome as a function of all gates `[row, layer, head]`, by the differentiable pass."""

    def __init__(self, model: Model, bare: Any, outcome: str = "answer_logprob") -> None:
        self.model, self.outcome = model, OUTCOMES[outcome]
        self.pair = bare.answered(self.outcome.appended)
        length = len(self.pair.inserted)
        start = length - self.pair.n_after
        self.recording = model.record(self.pair.condition("inserted"), start=start)
        self.read = torch.tensor([length - back for back in self.outcome.reads(self.pair)]) - start
        self.span = span_of([self.pair], self.recording.inputs)

    def __call__(self, gates: torch.Tensor) -> torch.Tensor:
        logits = self.model.stepper.tail(self.recording, self.read, gates=gates, span=self.span)
        return self.outcome.value(logits, self.pair, None)

    def open(self, rows: int = 1) -> torch.Tensor:
        return torch.ones(rows, self.model.info.n_layers, self.model.info.n_heads, dtype=self.recording.z[0].dtype)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-3), ("float64", 1e-5)])
def test_gate_gradients_add_up_to_the_total_effect(
    architecture: str, backend: str, dtype: str, tolerance: float, tiny_model_dir: Any
) -> None:
    model = loaded(tiny_model_dir(architecture), backend, dtype)
    found = attribute_heads(model, pairs_for(model, count=1), steps=48, progress=False)
    total = found.inserted - found.masked
    assert np.abs(total).max() > 0.01
    assert np.abs(found.completeness).max() < tolerance * np.abs(total).max()
    assert f"{np.abs(found.completeness).max():.2e}" in repr(found)


def test_more_steps_bring_the_sum_closer_and_smooth_models_need_few(tiny_model_dir: Any) -> None:
    model = loaded(tiny_model_dir("qwen2"), "bridge", "float64")
    errors = [
        np.abs(attribute_heads(model, pairs_for(model), steps=steps, progress=False).completeness).max()
        for steps in (4, 16, 48)
    ]
    assert errors[0] > 10 * errors[1] > 100 * errors[2]
    made, planted = planted_here(dtype=torch.float64)
    found = attribute_heads(planted, planted_pairs(made, planted, 3), progress=False)
    assert np.abs(found.completeness / (found.inserted - found.masked)).max() < 1e-4


@pytest.mark.parametrize("outcome", list(OUTCOMES))
def test_ends_are_the_masked_and_the_inserted_run_for_every_outcome(outcome: str, tiny_model_dir: Any) -> None:
    model = loaded(tiny_model_dir("qwen2"), "bridge", "float64")
    pairs = pairs_for(model, count=1)
    found = attribute_heads(model, pairs, outcome=outcome, steps=48, progress=False)
    exact = patch_heads(model, pairs, outcome=outcome, heads=[Head(0, 0)], progress=False)
    assert found.masked == pytest.approx(exact.donor, abs=1e-5)
    assert found.inserted == pytest.approx(exact.receiving, abs=1e-5)
    assert np.abs(found.completeness).max() < 1e-5 * max(1.0, np.abs(exact.receiving - exact.donor).max())


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_gradients_of_gates_equal_finite_differences(architecture: str, tiny_model_dir: Any) -> None:
    model = loaded(tiny_model_dir(architecture), "bridge", "float64")
    gated = Gated(model, pairs_for(model, count=1)[0])
    middle = (0.5 * gated.open()).requires_grad_()
    (gradient,) = torch.autograd.grad(gated(middle).sum(), middle)
    step = 3e-3  # the norms of Hugging Face decoders are float32 in any dtype
    for head in (Head(0, 0), Head(1, 3), Head(2, 7)):
        sides = (0.5 * gated.open(2)).clone()
        sides[0, head.layer, head.head] += step
        sides[1, head.layer, head.head] -= step
        up, down = gated(sides).detach()
        assert float(gradient[0, head.layer, head.head]) == pytest.approx(
            float(up - down) / (2 * step), rel=3e-3, abs=2e-4
        )


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_closed_gate_is_the_exact_knockout_and_all_closed_the_masked_run(
    architecture: str, backend: str, tiny_model_dir: Any
) -> None:
    model = loaded(tiny_model_dir(architecture), backend)
    bare = pairs_for(model, count=1)
    gated = Gated(model, bare[0])
    heads = [Head(0, 1), Head(1, 0), Head(2, 7)]
    gates = gated.open(2 + 2 * len(heads))
    gates[0] = 0
    for row, head in enumerate(heads):
        gates[2 + row, head.layer, head.head] = 0
        gates[2 + len(heads) + row, head.layer, head.head] = 0.3
    values = gated(gates).detach().double().numpy()
    exact = patch_heads(model, bare, heads=heads, edit="knockout", progress=False)
    partly = patch_heads(model, bare, heads=heads, edit=Gate(0.3), progress=False)
    assert values[0] == pytest.approx(exact.donor[0], abs=1e-4)
    assert values[1] == pytest.approx(exact.receiving[0], abs=1e-4)
    for row, head in enumerate(heads):
        at = (0, head.layer, head.head)
        assert values[2 + row] == pytest.approx(exact.patched[at], abs=1e-4)
        assert values[2 + len(heads) + row] == pytest.approx(partly.patched[at], abs=1e-4)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_attribution_patching_is_the_first_order_of_the_exact_patch(architecture: str, tiny_model_dir: Any) -> None:
    """A z patch of a small part of the way moves the outcome by that part of the score."""
    model = loaded(tiny_model_dir(architecture), "bridge", "float64")
    bare = pairs_for(model, count=1)
    found = attribute_heads(model, bare, method="atp", progress=False)
    gated = Gated(model, bare[0])
    recording, read = gated.recording, gated.read + gated.recording.start
    masked = model.record(gated.pair.condition("masked"), start=recording.start)
    part = 3e-3
    for head in (Head(0, 2), Head(1, 5), Head(2, 0)):
        z = recording.z[head.layer].repeat(2, 1, 1, 1)
        way = (masked.z[head.layer] - recording.z[head.layer])[0, :, head.head]
        z[0, :, head.head] += part * way
        z[1, :, head.head] -= part * way
        up, down = gated.outcome.value(model.replay(recording, head.layer, z, logits_at=read), gated.pair, None)
        slope = float(up - down) / (2 * part)
        assert found.scores[0, head.layer, head.head] == pytest.approx(-slope, rel=3e-3, abs=2e-4)


def test_planted_readers_come_first_by_gates_and_mediators_too_by_attribution_patching() -> None:
    made, model = planted_here()
    pairs = planted_pairs(made, model, 4)
    readers, mediators = set(made.readers), set(made.mediators)
    by_gate = attribute_heads(model, pairs, progress=False).ranking()
    by_z = attribute_heads(model, pairs, method="atp", progress=False).ranking()
    assert set(by_gate[: len(readers)]) == readers
    assert set(by_z[: len(readers | mediators)]) == readers | mediators
    assert len(set(by_gate)) == model.info.n_layers * model.info.n_heads


def test_gate_gradients_rank_as_the_exact_knockouts_do() -> None:
    made, model = planted_here()
    pairs = planted_pairs(made, model, 4)
    score = attribute_heads(model, pairs, progress=False).mean()
    exact = -patch_heads(model, pairs, edit="knockout", progress=False).mean()
    for head in made.readers:
        assert np.sign(score[head.layer, head.head]) == np.sign(exact[head.layer, head.head]) == 1
        assert score[head.layer, head.head] == pytest.approx(exact[head.layer, head.head], rel=0.6)


def test_scores_are_per_problem_and_the_mean_is_theirs(tiny_model_dir: Any, tmp_path: Any) -> None:
    model = loaded(tiny_model_dir("llama"), "bridge")
    pairs = pairs_for(model)
    found = attribute_heads(model, pairs, progress=False)
    alone = attribute_heads(model, pairs[1:2], progress=False)
    assert np.array_equal(alone.scores[0], found.scores[1])
    table = found.to_frame()
    assert len(table) == 3 * 3 * 8 and list(table.columns) == ["problem", "layer", "head", "label", "score"]
    mean = table.groupby(["layer", "head"])["score"].mean()
    assert mean.loc[(2, 5)] == pytest.approx(found.mean()[2, 5])
    first = found.ranking()[0]
    assert f"  {first}  {found.mean()[first.layer, first.head]:+.4f}" in repr(found)
    kept = load(save(tmp_path / "screen", found))["HeadAttribution"]
    assert np.array_equal(kept.scores, found.scores) and kept.problem_ids == found.problem_ids
    assert kept.settings == found.settings


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "eap"}, "unknown method 'eap'; choose one of gate_ig, atp"),
        ({"outcome": "accuracy"}, "unknown outcome 'accuracy'; choose one of answer_logprob"),
        ({"outcome": "kl", "method": "atp"}, "atp from a divergence is 0 by construction"),
        ({"steps": 0}, "steps must be 1 or more, got 0"),
    ],
)
def test_wrong_requests_are_named(options: dict[str, Any], message: str, tiny_model_dir: Any) -> None:
    model = loaded(tiny_model_dir("qwen2"), "bridge")
    with pytest.raises(ValueError, match=message):
        attribute_heads(model, pairs_for(model, count=1), progress=False, **options)


def test_a_model_or_a_place_without_gradients_is_refused(tiny_model_dir: Any) -> None:
    model = loaded(tiny_model_dir("qwen2"), "bridge")
    pairs = pairs_for(model, count=1)
    with pytest.raises(ValueError, match="there are no prompt pairs"):
        attribute_heads(model, [])
    closed = object.__new__(type(model))
    closed.__dict__ = {**model.__dict__, "stepper": None}
    with pytest.raises(ModelError, match="cannot be continued layer by layer, which gradients need: use patch_heads"):
        attribute_heads(closed, pairs)
    with torch.inference_mode(), pytest.raises(ModelError, match=r"no gradients inside torch.inference_mode\(\)"):
        attribute_heads(model, pairs)
    with torch.no_grad():
        assert np.isfinite(attribute_heads(model, pairs, progress=False).scores).all()
