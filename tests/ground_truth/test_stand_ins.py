"""Random models in the shape of real ones."""

from collections import Counter

import pytest
import torch
from conftest import ONE_OF_EACH

from mless_interp.ground_truth.stand_ins import Architecture, stand_in, stand_in_problems

CLASSES = {"qwen2": "Qwen2ForCausalLM", "llama": "LlamaForCausalLM", "gemma3": "Gemma3ForCausalLM"}


@pytest.mark.slow
@pytest.mark.parametrize("architecture", CLASSES)
def test_it_has_the_shape_that_is_asked_for_and_its_seed_decides_the_weights(architecture: Architecture) -> None:
    def made(seed: int):
        return stand_in(architecture, name="X", n_heads=6, n_key_value_heads=3, n_layers=2, seed=seed, backend="bridge")

    model, again, other = made(1), made(1), made(2)
    info = model.info
    assert info.name == "stand-in for X (random weights)" and info.architecture == CLASSES[architecture]
    assert (info.n_layers, info.n_heads, info.n_key_value_heads, info.d_head) == (2, 6, 3, 8)
    assert info.windows == ((64, None) if architecture == "gemma3" else (None, None))
    tokens = torch.arange(4, 20)[None]
    logits = [each.run(tokens).logits for each in (model, again, other)]
    assert torch.equal(logits[0], logits[1]) and not torch.allclose(logits[0], logits[2], atol=0.1)


@pytest.mark.parametrize(("architecture", "backend"), ONE_OF_EACH)
def test_it_reads_its_problems_with_a_beginning_where_the_real_one_has_one(
    architecture: Architecture, backend: str
) -> None:
    model = stand_in(architecture, name="X", n_heads=4, n_key_value_heads=2, backend=backend)
    tokenizer = model.tokenizer
    for problem in stand_in_problems(3):
        ids = tokenizer(problem.question)["input_ids"]
        assert tokenizer.unk_token_id not in ids and 40 <= len(ids) <= 61
        begins = Counter(ids)[tokenizer.bos_token_id] if tokenizer.bos_token_id is not None else 0
        assert begins == (architecture != "qwen2") and (not begins or ids[0] == tokenizer.bos_token_id)
