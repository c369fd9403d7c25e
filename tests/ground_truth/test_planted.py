"""Planted models: the planted heads, and no others, carry the span; their text, and what is refused."""

import json
import random
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from models_under_test import planted_problems
from random_circuits import random_planted
from test_circuits import behind_bridge, swept
from transformers import AutoModelForCausalLM, AutoTokenizer

from mless_interp.core.heads import Head
from mless_interp.ground_truth.planted import PlantedModel, planted_model
from mless_interp.prompts.insertions import Insertion
from mless_interp.prompts.pairs import make_pairs
from mless_interp.prompts.problems import Problem, load_problems

CARRIES, NOTHING, NEARLY_NOTHING = 0.08, 0.02, 0.03
EVERY_KIND = {"reader", "mediator", "silent", "unread", "avoids", "copier", "idle"}


def encode(planted: PlantedModel, text: str) -> list[int]:
    return planted.tokenizer(text, add_special_tokens=False)["input_ids"]


def effects(
    planted: PlantedModel, n_tokens: int, unit: str = " /", problems: Sequence[Problem] = ()
) -> tuple[float, dict[str, np.ndarray]]:
    """The total effect, and what each head removes and adds as a share of it, `[head]`, means over two problems."""
    model = behind_bridge(planted)
    insertion = Insertion.text(unit) if len(unit.split()) > 1 else Insertion.meaningless(unit, n_tokens)
    runs = swept(model, make_pairs(model, problems or planted_problems(planted, 2), insertion))
    total = float(runs["z_added"].total_effect.mean())
    return total, {name: run.per_head.mean(0) / total for name, run in runs.items()}


def share_range(planted: PlantedModel, values: np.ndarray, kinds: set[str]) -> tuple[float, float]:
    """Smallest and largest of the values `[head]` of the heads whose kind is in `kinds`; `idle` has no role."""
    chosen = [
        float(v) for head, v in zip(planted.expected, values, strict=True) if planted.truth.get(head, "idle") in kinds
    ]
    return (min(chosen), max(chosen)) if chosen else (0.0, 0.0)


# ------------------------------------------------------------------------------------------------------ the truth holds


def assert_truth(planted: PlantedModel, n_tokens: int, problems: Sequence[Problem] = ()) -> None:
    total, found = effects(planted, n_tokens, problems=problems)
    assert 0.25 < total * planted.settings["sign"] < 2
    upstream = [found["z_removed"] - found["knockout"], found["z_added"] - found["edge_noise"]]
    for kind, measures in (("reader", [found["knockout"], found["edge_noise"]]), ("mediator", upstream)):
        for values in measures:
            assert kind not in planted.truth.values() or share_range(planted, values, {kind})[0] > CARRIES, kind
            low, high = share_range(planted, values, EVERY_KIND - {kind})
            assert -NOTHING < low <= high < NOTHING, kind


def test_the_hardest_allowed_layout_keeps_every_share_above_the_threshold() -> None:
    readers = [Head(0, 0), Head(1, 1), Head(1, 2), Head(1, 3)]  # one reader alone feeds three mediators
    mediators = [Head(1, 4), Head(1, 5), Head(1, 6)]
    assert_truth(planted_model(readers, mediators, n_heads=8, n_key_value_heads=2), 110)


@pytest.mark.slow
def test_the_truth_holds_for_the_paper_s_heads_and_in_long_prompts() -> None:
    planted = planted_model()
    long = planted.problems(2, seed=3, n_clauses=(40, 42))
    assert all(len(encode(planted, problem.question)) > 230 for problem in long)
    assert_truth(planted, 55, long)


def test_tokens_are_read_as_strongly_as_they_were_asked_to_be_and_no_others_are() -> None:
    planted = planted_model(n_heads=8, reads={"/": 1.0, "he": 0.5})
    words = [token for token in planted.vocabulary.tokens if token.isalpha() and token != "he"]
    sentence = " ".join(random.Random(7).choices(words, k=30))
    whole, half = (effects(planted, 30, unit)[0] for unit in ("/", "he"))
    assert 0.1 * whole < half < 0.8 * whole
    for unit in ("she", sentence):
        total, found = effects(planted, 30, unit)
        assert abs(total) < 0.05 * whole
        for name in ("knockout", "edge_noise"):
            assert np.abs(found[name] * total).max() < NEARLY_NOTHING * whole, name
    assert_truth(planted, 30)


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
    decoys, readers = share_range(planted, mass, {"silent", "unread"}), share_range(planted, mass, {"reader"})
    assert decoys[0] > 0.9 and share_range(planted, mass, {"mediator", "avoids", "copier"})[1] < 1e-3
    assert 0.5 < readers[0] <= readers[1] < decoys[1]


# ---------------------------------------------------------------------------------------------------------------- text


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
    for text in (" /", "/", "he", "?", "}", "\\boxed{", "Answer"):
        assert len(encode(planted, text)) == 1 and encode(planted, text) != [unknown]
    assert len(encode(planted, "/ " * 54 + "/")) == 55
    paper = r"Please reason step by step and put your final answer within \boxed{{}}."
    assert unknown not in encode(planted, paper)
    for problem in planted.problems(50, n_clauses=(0, 6)):
        for text in (problem.question, problem.solution, problem.system):
            assert unknown not in encode(planted, text)
        assert len(encode(planted, problem.answer)) == len(encode(planted, problem.distractor)) == 1
        numbers = [int(word) for word in problem.question.split() if word.isdigit()]
        assert sorted(numbers)[-2:] == [int(problem.distractor), int(problem.answer)]
        assert 1 <= int(problem.level) <= 5
        questions = set(problem.question.split()) - {".", ",", "?"}
        assert not any(planted.vocabulary.is_system(word) for word in questions)


def test_problems_depend_on_their_seed_and_number_only() -> None:
    planted = planted_model(n_heads=8)
    assert planted.problems(3, seed=1) == planted.problems(5, seed=1)[:3] != planted.problems(3, seed=2)
    plain, swapped = (planted.problems(200, swap=swap) for swap in (False, True))
    assert len({problem.id for problem in plain}) == 200
    assert [p.question for p in plain] == [p.question for p in swapped]
    assert 70 < sum(p.answer == s.distractor for p, s in zip(plain, swapped, strict=True)) < 130


# ------------------------------------------------------------------------------------------- building, saving, refusing


def test_defaults_follow_the_papers_heads() -> None:
    planted = planted_model()
    assert planted.readers == (Head(0, 13), Head(0, 21)) and planted.mediators == (Head(1, 4),)
    assert all(len(planted.decoys[kind]) == 1 for kind in ("silent", "unread", "avoids"))
    assert planted.hf_model.config.architectures == ["LlamaForCausalLM"]
    assert sum(planted.shares[reader] for reader in planted.readers) == pytest.approx(1)
    assert repr(planted).startswith("PlantedModel(2 layers, 28 query heads, 4 key-value heads, seed 0: L0H0 silent, ")


def test_equal_seeds_give_equal_models_and_leave_the_callers_generator_alone() -> None:
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    first, second, other = (planted_model(n_heads=8, seed=seed) for seed in (4, 4, 5))
    assert torch.equal(torch.rand(2), expected)
    a, b, c = (model.hf_model.state_dict() for model in (first, second, other))
    assert all(torch.equal(a[name], b[name]) for name in a)
    assert first.truth == second.truth == other.truth
    assert first.vocabulary == second.vocabulary != other.vocabulary
    assert not torch.equal(a["model.layers.0.self_attn.q_proj.weight"], c["model.layers.0.self_attn.q_proj.weight"])


def test_a_saved_model_loads_with_equal_logits(tmp_path) -> None:
    planted = random_planted(36)
    directory = planted.save(tmp_path / "model", n_problems=5)
    model = AutoModelForCausalLM.from_pretrained(directory)
    tokenizer = AutoTokenizer.from_pretrained(directory)
    ids = torch.tensor([encode(planted, planted.problems(1)[0].question)])
    with torch.no_grad():
        assert torch.equal(model(ids).logits, planted.hf_model(ids).logits)
    for text in (planted.problems(1)[0].question, " / / / he", r"Answer : \boxed{7} unheard"):
        assert tokenizer(text)["input_ids"] == encode(planted, text)
    assert load_problems(directory) == planted.problems(5) == load_problems(planted, limit=5)
    keys = set("problem solution answer subject level unique_id system distractor answer_prefix".split())
    lines = (directory / "problems.jsonl").read_text(encoding="utf-8").splitlines()
    assert all(set(record := json.loads(line)) == keys and isinstance(record["level"], int) for line in lines)
    facts = json.loads((directory / "planted.json").read_text(encoding="utf-8"))
    assert facts["truth"] == {str(head): kind for head, kind in planted.truth.items()}
    assert facts["expected"].keys() == facts["truth"].keys() and facts["settings"] == planted.settings
    with pytest.raises(ValueError, match="not an empty folder"):
        planted.save(directory)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: planted_model([Head(0, 28)]), r"L0H28: head 28 is out of range \(zero-based\)"),
        (lambda: planted_model([Head(2, 0)], n_layers=2), r"layer 2 is out of range \(zero-based\)"),
        (lambda: planted_model([Head(0, 1)], decoys={"silent": [Head(0, 1)]}), "two roles, readers and silent decoys"),
        (lambda: planted_model([Head(1, 1)], [Head(1, 2)]), r"mediator L1H2 has nothing to carry.*\(zero-based\)"),
        (lambda: planted_model([]), "name at least one reader, or ask for null=True"),
        (lambda: planted_model(decoys={"loud": [Head(0, 1)]}), "unknown kind of decoys 'loud'; choose one of silent"),
        (lambda: planted_model(n_heads=10, n_key_value_heads=4), "multiple of n_key_value_heads, got 10 and 4"),
        (lambda: planted_model(reads=("unheard",)), "'unheard' is not a token"),
        (lambda: planted_model(reads=("?",)), "part of the prompts themselves"),
        (lambda: planted_model([Head(0, i) for i in range(12)], []), "carry only 0.083 of the span's effect each"),
        (lambda: planted_model(n_heads=1, n_key_value_heads=1, n_layers=2), "no head is free for the default"),
    ],
)  # fmt: skip
def test_wrong_calls_say_what_is_wrong(call, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()
