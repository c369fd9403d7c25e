"""Logits are float32 whatever the model's precision: on every backend, in whole passes and in replay, with gradients too."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from conftest import tiny_model, word_tokenizer
from models_under_test import loaded, without_stepper

import mless_interp as mi
from mless_interp.models import traced_ops as sent
from mless_interp.models.checks import _resolution
from mless_interp.models.info import Inputs
from mless_interp.models.traced_ops import float32_logits

TOKENS = torch.arange(14)[None]


def finer(logits: torch.Tensor, dtype: torch.dtype) -> float:
    """The share of numbers that this precision cannot hold."""
    return float((logits != logits.to(dtype).to(logits.dtype)).float().mean())


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("architecture", ["llama", "gemma3"])
def test_half_precision_does_not_round_logits(architecture: str, dtype: str, backend: str, tiny_model_dir: Any) -> None:
    model = loaded(tiny_model_dir(architecture), backend, dtype)
    run = model.run(TOKENS, logits_at=[9, 12])
    recording = model.record(Inputs(TOKENS), start=8, logits_at="none")
    by_layers = model.replay(recording, 1, recording.z[1], logits_at=[9, 12])
    whole = without_stepper(model).replay(recording, 1, recording.z[1], logits_at=[9, 12])
    for logits in (run.logits, by_layers, whole):
        assert logits.dtype == torch.float32 and finer(logits, getattr(torch, dtype)) > 0.9
    assert torch.equal(whole, run.logits)


def test_a_soft_cap_comes_after_and_is_float32_too(backend: str) -> None:
    """Logits near the cap differ by less than bfloat16 can tell."""
    weights = tiny_model("gemma3", word_tokenizer())
    weights.config.final_logit_softcapping = 2.0
    made = SimpleNamespace(name="capped", hf_model=weights, tokenizer=word_tokenizer())
    half, full = (mi.load_model(made, backend=backend, dtype=dtype) for dtype in ("bfloat16", "float32"))
    logits = half.run(TOKENS).logits
    assert finer(logits, torch.bfloat16) > 0.9 and 1.5 < float(logits.abs().max()) <= 2.0
    assert float((logits - full.run(TOKENS).logits).abs().max()) < 0.1


def test_blocks_and_gradients_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    weight, bias = torch.randn(31, 8).bfloat16(), torch.randn(31).bfloat16()
    x = torch.randn(2, 3, 8, requires_grad=True)
    exact = x @ weight.float().T + bias.float()
    (wanted,) = torch.autograd.grad(exact.square().sum(), x)
    monkeypatch.setattr(sent, "BLOCK", 40)  # five rows at a time
    made = float32_logits(x, weight, bias)
    assert torch.allclose(made, exact, atol=1e-6)
    (found,) = torch.autograd.grad(made.square().sum(), x)
    assert torch.allclose(found, wanted, rtol=1e-5)


@pytest.mark.parametrize(
    ("dtype", "least"), [("float64", 1e-9), ("float32", 1e-5), ("bfloat16", 0.0), ("float16", 0.0)]
)
def test_what_is_taken_for_rounding_is_measured(dtype: str, least: float) -> None:
    model, unmeasured = mi.load_model("demo", dtype=dtype), least or 1e-2
    assert model.checks is not None and model.checks.resolution is not None
    assert model.resolution == max(least, model.checks.resolution)
    assert model.checked(replace(model.checks, resolution=None)).resolution == unmeasured
    assert model.checked(None).resolution == unmeasured
    eps = torch.finfo(getattr(torch, dtype)).eps
    most = torch.finfo(torch.float32).eps if model.float32_softmax and dtype == "float64" else eps
    assert eps < model.checks.resolution < 100 * most, "a few of the smallest steps"


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_rounding_is_what_the_smallest_steps_of_heads_outputs_do(
    dtype: str, tiny_model_dir: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, seen = loaded(tiny_model_dir("llama"), "bridge", dtype), {}

    def replay(receiving: Any, layer: Any, z: torch.Tensor, *, logits_at: list[int]) -> torch.Tensor:
        made = torch.randn(len(layer), len(logits_at), model.info.d_vocab, generator=torch.Generator().manual_seed(0))
        seen.update(own=receiving, joins=list(layer), z=z, read=list(logits_at), logits=made)
        return made

    monkeypatch.setattr(model, "replay", replay)
    found = _resolution(model, TOKENS)
    assert seen["joins"] == [0] * 4 + [1] * 4 + [2] * 4 and seen["own"].start == 7 and seen["read"] == [*range(7, 13)]
    step = torch.finfo(getattr(torch, dtype)).eps
    for own, (kept, *moved) in zip(seen["own"].z, seen["z"].unflatten(0, (3, 4)), strict=True):
        assert torch.equal(kept, own[0]), "put back as it is"
        for z in moved:
            share = ((z - own[0]) / own[0])[own[0] != 0].double()
            assert (share.abs() < 1.34 * step).all() and (share.abs() > 0.49 * step).all()
            assert 0.4 < (share > 0).double().mean() < 0.6, "up as often as down"
    after = TOKENS[:, 8:].expand(12, -1)[..., None]
    new, old = (x.double().log_softmax(-1) for x in (seen["logits"], seen["own"].logits.expand_as(seen["logits"])))
    off = (new - old).gather(-1, after)
    assert found == pytest.approx(2 * float((off**2).mean()) ** 0.5, rel=1e-9)
