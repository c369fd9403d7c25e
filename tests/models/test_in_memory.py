"""Models that are loaded from memory: what they give is what they would give from a folder, and they stay as they are."""

import copy
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from conftest import BACKENDS, qwen2_tokenizer, tiny_model
from safetensors.torch import load_file, save_file

import mless_interp as mi

TOKENS = torch.tensor([[5, 9, 7, 12, 6, 20, 11]])


def in_memory() -> SimpleNamespace:
    tokenizer = qwen2_tokenizer()
    return SimpleNamespace(name="mine", hf_model=tiny_model("qwen2", tokenizer), tokenizer=tokenizer)


@pytest.mark.slow
@pytest.mark.parametrize("backend", BACKENDS)
def test_numbers_do_not_depend_on_where_a_file_has_the_weights(backend: str, tmp_path: Path) -> None:
    """A weight that lies across cache lines is multiplied by another kernel, which rounds otherwise."""
    planted = mi.planted_model(n_heads=8, n_key_value_heads=4)
    held = mi.load_model(planted, backend=backend)
    pairs = mi.make_pairs(held, planted.problems(3), mi.Insertion.meaningless(" /", 12))
    expected = mi.patch_heads(held, pairs, edit="knockout", progress=False)
    folder = planted.save(tmp_path / "planted", n_problems=1)
    for more in ("", "x", "more in the header"):
        save_file(load_file(folder / "model.safetensors"), folder / "model.safetensors", {"format": "pt", "more": more})
        saved = mi.load_model(folder, backend=backend)
        assert all(weight.data_ptr() % 64 == 0 for weight in saved.weights.parameters())
        assert np.array_equal(mi.patch_heads(saved, pairs, edit="knockout", progress=False).patched, expected.patched)


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_object_stays_as_it_was(backend: str) -> None:
    mine = in_memory()
    mine.hf_model.generation_config.repetition_penalty = 1.5
    weights, config = copy.deepcopy(mine.hf_model.state_dict()), mine.hf_model.config.to_dict()
    parts = {name: type(part) for name, part in mine.hf_model.named_modules()}
    said, special = copy.deepcopy(mine.tokenizer.init_kwargs), mine.tokenizer.special_tokens_map
    model = mi.load_model(mine, backend=backend)
    before = model.run(TOKENS).logits
    assert model.hf_model is None or model.hf_model.generation_config.repetition_penalty == 1.5
    assert mine.hf_model.config.to_dict() == config
    assert {name: type(part) for name, part in mine.hf_model.named_modules()} == parts
    assert mine.hf_model.state_dict().keys() == weights.keys()
    assert all(torch.equal(weight, weights[name]) for name, weight in mine.hf_model.state_dict().items())
    assert mine.tokenizer.init_kwargs == said and mine.tokenizer.special_tokens_map == special
    assert model.tokenizer.special_tokens_map == special, "a bridge fills in what is missing on a copy of its own"
    mine.tokenizer.padding_side = "left"
    assert model.tokenizer.padding_side == "right"
    with torch.no_grad():
        mine.hf_model.get_input_embeddings().weight.zero_()
    assert torch.equal(model.run(TOKENS).logits, before), "no weight is shared"
