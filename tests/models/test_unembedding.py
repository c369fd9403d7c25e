"""Logits are float32 whatever the model's precision: on every backend, in whole passes and in replay, with gradients too."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from conftest import tiny_model, word_tokenizer
from models_under_test import loaded, without_stepper

import mless_interp as mi
from mless_interp.models import unembedding
from mless_interp.models.inputs import Inputs
from mless_interp.models.unembedding import float32_logits, unembedded

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
    monkeypatch.setattr(unembedding, "BLOCK", 40)  # five rows at a time
    made = float32_logits(x, weight, bias)
    assert torch.allclose(made, exact, atol=1e-6)
    (found,) = torch.autograd.grad(made.square().sum(), x)
    assert torch.allclose(found, wanted, rtol=1e-5)


def test_layers_that_are_not_plain_or_not_here_do_it_by_themselves() -> None:
    class Own(torch.nn.Linear):
        pass

    x = torch.ones(1, 4)
    for module in (torch.nn.Linear(4, 3), Own(4, 3).bfloat16(), torch.nn.Linear(4, 3, device="meta").bfloat16()):
        assert unembedded(module, x) is None
    assert unembedded(torch.nn.Linear(4, 3).bfloat16(), x.bfloat16()).dtype == torch.float32
