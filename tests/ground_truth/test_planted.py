"""Planted models: the planted heads, and no others, carry the span; their text, and what is refused."""

import random

import numpy as np
import pytest
import torch
from models_under_test import planted_problems
from random_circuits import expected_of, random_planted
from test_circuits import behind_bridge, differing, judged
from transformers import AutoModelForCausalLM, AutoTokenizer

from mless_interp.core.heads import Head
from mless_interp.ground_truth.planted import PlantedModel, planted_model
from mless_interp.ground_truth.tokenizer import SYSTEM
from mless_interp.patching.sweep import patch_heads
from mless_interp.prompts.insertions import Insertion
from mless_interp.prompts.pairs import make_pairs
from mless_interp.prompts.problems import load_problems


def encode(planted: PlantedModel, text: str) -> list[int]:
    return planted.tokenizer(text, add_special_tokens=False)["input_ids"]


def masses(planted: PlantedModel, values: np.ndarray, *kinds: str) -> np.ndarray:
    """The values `[head]` of the heads of these kinds."""
    return np.array(
        [v for head, v in zip(expected_of(planted), values, strict=True) if planted.truth.get(head) in kinds]
    )


def test_the_hardest_allowed_layout_keeps_every_head_above_the_threshold() -> None:
    readers = [Head(0, 0), Head(1, 1), Head(1, 2), Head(1, 3)]  # one reader alone feeds three mediators
    mediators = [Head(1, 4), Head(1, 5), Head(1, 6)]
    made = planted_model(readers, mediators, n_heads=8, n_key_value_heads=2)
    assert differing(expected_of(made), judged(made, 12, n_tokens=110)) == {}


def test_the_readers_and_no_others_read_in_long_prompts() -> None:
    made = planted_model()
    asked = made.problems(2, seed=3, n_clauses=(40, 42))
    assert all(len(encode(made, problem.question)) > 230 for problem in asked)
    model = behind_bridge(made)
    pairs = make_pairs(model, asked, Insertion.meaningless(" /", 55))
    found = patch_heads(model, pairs, edit="knockout", progress=False)
    shares = found.per_head.mean(0) / found.total_effect.mean()
    assert {head for head, share in zip(found.heads, shares, strict=True) if abs(share) > 0.05} == set(
        made.roles.readers
    )


def effect(planted: PlantedModel, unit: str) -> float:
    """Of 30 tokens, mean over two problems."""
    model = behind_bridge(planted)
    insertion = Insertion.text(unit) if len(unit.split()) > 1 else Insertion.meaningless(unit, 30)
    pairs = make_pairs(model, planted_problems(planted, 2), insertion)
    return float(patch_heads(model, pairs, heads=[Head(0, 0)], progress=False).total_effect.mean())


def test_the_tokens_that_were_asked_for_are_read_and_no_others_are() -> None:
    planted = planted_model(n_heads=8, reads=["/", "he"])
    words = [token for token in planted.vocabulary.tokens if token.isalpha() and token != "he"]
    sentence = " ".join(random.Random(7).choices(words, k=30))
    whole = effect(planted, "/")
    assert effect(planted, "he") > 0.8 * whole
    assert max(abs(effect(planted, unit)) for unit in ("she", sentence)) < 0.05 * whole


@pytest.mark.parametrize("seed", [25, 36])
@torch.no_grad()
def test_decoys_look_and_mediators_look_away(seed: int) -> None:
    planted = random_planted(seed)
    problem = planted.problems(1)[0]
    parts = (problem.system, " /" * 30, problem.question, r" Answer : \boxed{")
    before, span, question, prefix = (encode(planted, part) for part in parts)
    planted.hf_model.set_attn_implementation("eager")
    ids, end = torch.tensor([[*before, *span, *question, *prefix]]), len(before) + 30
    patterns = planted.hf_model(ids, output_attentions=True).attentions
    mass = np.array([a[0, :, end:, len(before) : end].sum(-1).mean(-1).numpy() for a in patterns]).ravel()
    decoys, readers = masses(planted, mass, "silent", "unread"), masses(planted, mass, "reader")
    assert decoys.min() > 0.9 and masses(planted, mass, "mediator", "avoids", "copier").max() < 1e-3
    assert 0.5 < readers.min() <= readers.max() < decoys.max()


def test_the_model_answers_and_stops() -> None:
    planted = planted_model(n_heads=8)
    right = 0
    for problem in planted.problems(8, seed=5):
        prompt = torch.tensor([encode(planted, problem.system) + encode(planted, problem.question)])
        options = {"attention_mask": torch.ones_like(prompt), "max_new_tokens": 8, "do_sample": False}
        out = planted.hf_model.generate(prompt, **options)[0, prompt.shape[1] :]
        right += planted.tokenizer.decode(out) == f"Answer : \\boxed{{ {problem.answer} }} <eos>"
    assert right >= 7


def test_tokens_of_the_prompts_are_known_and_single() -> None:
    planted = planted_model(n_heads=8)
    unknown = planted.tokenizer.unk_token_id
    assert len(encode(planted, "/ " * 54 + "/")) == 55
    for problem in planted.problems(50, n_clauses=(0, 6)):
        for text in (problem.question, problem.solution, problem.system):
            assert unknown not in encode(planted, text)
        numbers = [int(word) for word in problem.question.split() if word.isdigit()]
        assert sorted(numbers)[-2:] == [int(problem.distractor), int(problem.answer)]
        assert SYSTEM.isdisjoint(problem.question.split())


def test_making_a_model_leaves_the_callers_generator_alone() -> None:
    state = torch.get_rng_state()
    planted_model(n_heads=8)
    assert torch.equal(torch.get_rng_state(), state)


def test_a_saved_model_loads_with_equal_logits(tmp_path) -> None:
    planted = random_planted(36)
    directory = planted.save(tmp_path / "model", n_problems=5)
    model = AutoModelForCausalLM.from_pretrained(directory)
    tokenizer = AutoTokenizer.from_pretrained(directory)
    ids = torch.tensor([encode(planted, planted.problems(1)[0].question)])
    with torch.no_grad():
        assert torch.equal(model(ids).logits, planted.hf_model(ids).logits)
    text = r"Ben has 7 / / he Answer : \boxed{7} unheard"
    assert tokenizer(text)["input_ids"] == encode(planted, text)
    assert load_problems(directory) == planted.problems(5) == load_problems(planted, limit=5)
    with pytest.raises(ValueError, match="not an empty folder"):
        planted.save(directory)
