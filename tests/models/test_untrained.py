"""An untrained twin: the same configuration and prompts, other weights, drawn by a seed."""

import warnings
from typing import Any

import pytest
import torch
from conftest import needs_hooked_transformer
from models_under_test import loaded, pairs_for

import mless_interp as mi

TOKENS = torch.arange(4, 20)[None]


def test_a_twin_has_the_models_shape_and_other_weights(tiny_model_dir: Any) -> None:
    model = loaded(tiny_model_dir("gemma3"), "bridge")
    state = torch.random.get_rng_state()
    twin, again, other = (mi.untrained_twin(model, seed) for seed in (1, 1, 2))
    assert torch.equal(torch.random.get_rng_state(), state), "no global state"
    assert twin.info.name == f"untrained twin of {model.info.name} (seed 1)"
    for name in "backend n_layers n_heads n_key_value_heads d_model d_vocab windows dtype attention".split():
        assert getattr(twin.info, name) == getattr(model.info, name), name
    assert twin.weights_hash == again.weights_hash != other.weights_hash and twin.weights_hash != model.weights_hash
    assert not torch.allclose(twin.run(TOKENS).logits, model.run(TOKENS).logits, atol=0.1)
    pairs = pairs_for(model, count=2)
    scores = mi.score_heads(twin, pairs, metrics="lam", progress=False)
    assert scores.problem_ids == ("p0", "p1") and scores.of("lam").shape == (2, twin.info.n_layers, twin.info.n_heads)


@needs_hooked_transformer
def test_a_wrapped_hooked_transformers_twin_is_drawn_by_its_own_initialisation() -> None:
    from transformer_lens import HookedTransformer, HookedTransformerConfig

    size = {"n_layers": 2, "d_model": 16, "n_heads": 4, "d_head": 4, "n_ctx": 64, "d_vocab": 50, "attn_only": True}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        hooked = HookedTransformer(HookedTransformerConfig(**size, device="cpu"))
    hooked.W_Q.data.mul_(3)
    model = mi.wrap_model(hooked, name="mine")
    twin, again = mi.untrained_twin(model), mi.untrained_twin(model)
    assert type(twin.underlying).__name__ == "HookedTransformer" and twin.underlying is not hooked
    assert twin.weights_hash == again.weights_hash != model.weights_hash


def test_a_model_that_runs_elsewhere_has_no_twin(tiny_model_dir: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    model = loaded(tiny_model_dir("llama"), "nnsight")
    monkeypatch.setattr(model, "remote", True)
    with pytest.raises(mi.ModelError, match="runs elsewhere, and its untrained twin would have to be made here"):
        mi.untrained_twin(model)
