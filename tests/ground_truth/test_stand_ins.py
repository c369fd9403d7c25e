"""Random models in the shape of real ones."""

from collections import Counter

import pytest
import torch
from conftest import ONE_OF_EACH

from mless_interp.ground_truth.stand_ins import Architecture, stand_in, stand_in_problems


@pytest.mark.parametrize(("architecture", "backend"), ONE_OF_EACH)
def test_it_has_the_shape_that_is_asked_for_and_reads_its_problems(architecture: Architecture, backend: str) -> None:
    """With a beginning of the text where the real one has one; its seed decides the weights."""
    model, other = (
        stand_in(architecture, name="X", n_heads=6, n_key_value_heads=3, n_layers=2, seed=seed, backend=backend)
        for seed in (1, 2)
    )
    info, tokenizer = model.info, model.tokenizer
    assert info.name == "stand-in for X (random weights)"
    assert (info.n_layers, info.n_heads, info.n_key_value_heads, info.d_head) == (2, 6, 3, 8)
    assert (info.context_length, info.d_mlp) == (1024, 96) == (tokenizer.model_max_length, 2 * info.d_model)
    assert info.windows == ((64, None) if architecture == "gemma3" else (None, None))
    tokens = torch.arange(4, 20)[None]
    assert not torch.allclose(model.run(tokens).logits, other.run(tokens).logits, atol=0.1)
    for problem in stand_in_problems(3):
        ids = tokenizer(problem.question)["input_ids"]
        assert tokenizer.unk_token_id not in ids and 40 <= len(ids) <= 61
        begins = Counter(ids)[tokenizer.bos_token_id] if tokenizer.bos_token_id is not None else 0
        assert begins == (architecture != "qwen2") and (not begins or ids[0] == tokenizer.bos_token_id)
