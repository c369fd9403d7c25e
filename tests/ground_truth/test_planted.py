"""Planted models: the planted heads, and no others, carry the span; checked by brute force on Hugging Face layers."""

import json
import random
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

from mless_interp.core.heads import Head
from mless_interp.ground_truth.planted import PlantedModel, planted_model, planted_truth, random_planted
from mless_interp.prompts.problems import Problem, load_problems

CARRIES, NOTHING, NEARLY_NOTHING = 0.08, 0.02, 0.03


# ---------------------------------------------------------------------------------------------------------------------
# A slow, independent checker: one row of a batch per head, the layers from the edited one on, 4D float masks


@dataclass
class Prompt:
    """Token ids `[token]`, the span, the row whose next token is the answer, and the answer's id."""

    ids: list[int]
    span: slice
    reads_at: int
    answer: int


def encode(planted: PlantedModel, text: str) -> list[int]:
    return planted.tokenizer(text, add_special_tokens=False)["input_ids"]


def make_prompt(planted: PlantedModel, problem: Problem, span: list[int]) -> Prompt:
    """System, span, question, answer prefix and answer, tokenised apart and joined."""
    system = encode(planted, problem.system)
    head = system + span + encode(planted, problem.question) + encode(planted, r" Answer : \boxed{")
    (answer,) = encode(planted, problem.answer)
    return Prompt([*head, answer], slice(len(system), len(system) + len(span)), len(head) - 1, answer)


class Checker:
    """Outcomes (log-probability of the answer, nats) of one prompt under every intervention on every head."""

    def __init__(self, planted: PlantedModel, prompt: Prompt) -> None:
        self.model, self.prompt = planted.hf_model, prompt
        self.layers = self.model.model.layers
        self.n_heads = self.model.config.num_attention_heads
        n = len(prompt.ids)
        self.causal = torch.ones(n, n, dtype=torch.bool).tril()
        self.inserted = self.causal[None].expand(self.n_heads, n, n)  # C1 [head, dest, src], True = visible
        self.masked = self.inserted.clone()  # C3
        self.masked[:, prompt.span.stop :, prompt.span] = False
        self.question = slice(prompt.span.stop, n)

    def run(
        self, base: Tensor, *, start: int = 0, resid: Tensor | None = None, mask: Tensor | None = None, z=None
    ) -> tuple[Tensor, list[Tensor], list[Tensor]]:
        """Outcome [row], residuals [row, token, d_model] before and z [row, token, head x d] of each layer run.

        `base` [head, dest, src] is every layer's mask; `mask` [row, head, dest, src] or `z` (row, token, head x d)
        replaces that of layer `start`.
        """
        model = self.model
        h = model.model.embed_tokens(torch.tensor([self.prompt.ids])) if resid is None else resid
        position = model.model.rotary_emb(h, torch.arange(len(self.prompt.ids))[None])
        resids, zs = [], []
        for index in range(start, len(self.layers)):
            seen = base[None] if mask is None or index != start else mask
            additive = torch.zeros(seen.shape, dtype=h.dtype).masked_fill(~seen, torch.finfo(h.dtype).min)

            def edit(module, args, index=index):
                zs.append(args[0])
                return (z,) if z is not None and index == start else args

            hook = self.layers[index].self_attn.o_proj.register_forward_pre_hook(edit)
            resids.append(h)
            h = self.layers[index](h, attention_mask=additive, position_embeddings=position)
            hook.remove()
        logits = model.lm_head(model.model.norm(h[:, self.prompt.reads_at]))
        return logits.log_softmax(-1)[:, self.prompt.answer].double(), resids, zs

    @torch.no_grad()
    def effects(self) -> dict[str, Tensor]:
        """`total`, and per head [layer, head]: knockout, edge_noise, denoise, noise; all signed as removals in C1 or
        additions in C3 are (methods section 6: patched - receiving)."""
        y1, resid1, z1 = self.run(self.inserted)
        y3, resid3, z3 = self.run(self.masked)
        n, rows = len(self.prompt.ids), range(self.n_heads)
        found: dict[str, list[Tensor]] = {name: [] for name in ("knockout", "edge_noise", "denoise", "noise")}
        for layer in range(len(self.layers)):
            knocked = self.inserted.repeat(self.n_heads, 1, 1, 1)
            opened = self.masked.repeat(self.n_heads, 1, 1, 1)
            knocked[rows, rows], opened[rows, rows] = self.masked[0], self.causal
            patched1, patched3 = (
                z.view(1, n, self.n_heads, -1).repeat(self.n_heads, 1, 1, 1) for z in (z1[layer], z3[layer])
            )
            clean, corrupted = patched3.clone(), patched1.clone()
            for h in rows:
                patched1[h, self.question, h] = clean[h, self.question, h]
                patched3[h, self.question, h] = corrupted[h, self.question, h]
            many1, many3 = (r[layer].expand(self.n_heads, -1, -1) for r in (resid1, resid3))
            at = {"start": layer}
            found["knockout"].append(self.run(self.inserted, resid=many1, mask=knocked, **at)[0] - y1)
            found["edge_noise"].append(self.run(self.masked, resid=many3, mask=opened, **at)[0] - y3)
            found["denoise"].append(self.run(self.inserted, resid=many1, z=patched1.flatten(2), **at)[0] - y1)
            found["noise"].append(self.run(self.masked, resid=many3, z=patched3.flatten(2), **at)[0] - y3)
        return {"total": (y1 - y3)[0], "inserted": y1[0], "masked": y3[0]} | {
            k: torch.stack(v) for k, v in found.items()
        }


def mean_effects(planted: PlantedModel, *, n_tokens: int, n_problems: int = 3, span: list[int] | None = None) -> dict:
    """`Checker.effects`, averaged over problems; head effects as fractions of the total (removal and addition: > 0)."""
    unit = encode(planted, " /") * n_tokens if span is None else span
    cells = [Checker(planted, make_prompt(planted, p, unit)).effects() for p in planted.problems(n_problems, seed=7)]
    mean = {name: torch.stack([cell[name] for cell in cells]).mean(0) for name in cells[0]}
    fractions = {"knockout": -mean["knockout"], "edge_noise": mean["edge_noise"]}
    fractions |= {
        "denoise_upstream": mean["knockout"] - mean["denoise"],
        "noise_upstream": mean["noise"] - mean["edge_noise"],
    }
    return mean | {name: value / mean["total"] for name, value in fractions.items()}


def share_range(planted: PlantedModel, values: Tensor, kinds: set[str]) -> tuple[float, float]:
    """Smallest and largest of the values [layer, head] of the heads whose kind is in `kinds`; `idle` has no role."""
    n_layers, n_heads = values.shape
    cells = [Head(layer, head) for layer in range(n_layers) for head in range(n_heads)]
    chosen = [float(values[c.layer, c.head]) for c in cells if planted.truth.get(c, "idle") in kinds]
    return (min(chosen), max(chosen)) if chosen else (0.0, 0.0)


@torch.no_grad()
def span_mass(planted: PlantedModel, *, n_tokens: int) -> Tensor:
    """Mean attention of question rows to the span, [layer, head], on one problem (eager attention)."""
    prompt = make_prompt(planted, planted.problems(1)[0], encode(planted, " /") * n_tokens)
    planted.hf_model.set_attn_implementation("eager")
    patterns = planted.hf_model(torch.tensor([prompt.ids]), output_attentions=True).attentions
    return torch.stack([a[0, :, prompt.span.stop :, prompt.span].sum(-1).mean(-1) for a in patterns])


# ---------------------------------------------------------------------------------------------------------------------
# The truth holds

EVERY_KIND = {"reader", "mediator", "silent", "unread", "avoids", "copier", "idle"}
# Chosen from the first sixty for size: 2-6 layers, 8-28 heads, one to all key-value heads, up to 4 + 3 planted heads.
RANDOM_SEEDS = (7, 25, 29, 45)


def assert_truth(planted: PlantedModel, *, n_tokens: int, n_problems: int = 2) -> None:
    found = mean_effects(planted, n_tokens=n_tokens, n_problems=n_problems)
    assert found["total"].sign() == planted.settings["sign"]
    assert 0.25 < found["total"].abs() < 2
    for name in ("knockout", "edge_noise"):
        assert share_range(planted, found[name], {"reader"})[0] > CARRIES, name
        low, high = share_range(planted, found[name], EVERY_KIND - {"reader"})
        assert -NOTHING < low <= high < NOTHING, name
    for name in ("denoise_upstream", "noise_upstream"):
        if planted.mediators:
            assert share_range(planted, found[name], {"mediator"})[0] > CARRIES, name
        low, high = share_range(planted, found[name], EVERY_KIND - {"mediator"})
        assert -NOTHING < low <= high < NOTHING, name


@pytest.mark.slow
@pytest.mark.parametrize("seed", RANDOM_SEEDS)
def test_only_planted_readers_and_mediators_carry_the_span(seed: int) -> None:
    assert_truth(random_planted(seed), n_tokens=8 + seed)


@pytest.mark.slow
@pytest.mark.parametrize("n_key_value_heads", [4, 28])
def test_the_truth_holds_for_the_papers_head_counts(n_key_value_heads: int) -> None:
    assert_truth(planted_model(n_key_value_heads=n_key_value_heads), n_tokens=30)


@pytest.mark.parametrize("seed", [0])
def test_the_hardest_allowed_layout_keeps_every_share_above_the_threshold(seed: int) -> None:
    readers = [Head(0, 0), Head(1, 1), Head(1, 2), Head(1, 3)]  # one reader alone feeds three mediators
    mediators = [Head(1, 4), Head(1, 5), Head(1, 6)]
    assert_truth(planted_model(readers, mediators, n_heads=8, n_key_value_heads=2, seed=seed), n_tokens=110)


@pytest.mark.slow
def test_the_truth_holds_in_long_prompts() -> None:
    planted = planted_model(n_heads=8)
    long = planted.problems(2, seed=3, n_clauses=(40, 42))
    span = encode(planted, " /") * 55
    prompts = [make_prompt(planted, problem, span) for problem in long]
    assert all(330 < len(prompt.ids) < 400 for prompt in prompts)
    cells = [Checker(planted, prompt).effects() for prompt in prompts]
    total = torch.stack([cell["total"] for cell in cells]).mean()
    knockout = -torch.stack([cell["knockout"] for cell in cells]).mean(0) / total
    assert total > 0.25
    assert share_range(planted, knockout, {"reader"})[0] > CARRIES
    assert share_range(planted, knockout.abs(), EVERY_KIND - {"reader"})[1] < NOTHING


def test_the_checker_agrees_with_the_plain_forward_pass() -> None:
    planted = random_planted(29)
    prompt = make_prompt(planted, planted.problems(1)[0], encode(planted, " /") * 20)
    checker = Checker(planted, prompt)
    with torch.no_grad():
        logits = planted.hf_model(torch.tensor([prompt.ids])).logits[0, prompt.reads_at]
        ours = checker.run(checker.inserted)[0]
    assert torch.allclose(logits.log_softmax(-1)[prompt.answer].double(), ours[0], atol=1e-5)


@pytest.mark.parametrize("seed", [25, 36])
def test_decoys_look_and_mediators_look_away(seed: int) -> None:
    planted = random_planted(seed)
    mass = span_mass(planted, n_tokens=30)
    look_away = {"mediator", "avoids", "copier"}
    assert share_range(planted, mass, {"silent", "unread"})[0] > 0.9
    assert share_range(planted, mass, look_away)[1] < 1e-3
    readers = share_range(planted, mass, {"reader"})
    assert 0.5 < readers[0] <= readers[1] < share_range(planted, mass, {"silent", "unread"})[1]


@pytest.mark.slow
def test_other_texts_are_not_read() -> None:
    planted, rng = random_planted(7), random.Random(7)
    whole = mean_effects(planted, n_tokens=55, n_problems=1)["total"].abs()
    words = [token for token in planted.vocabulary.tokens if token.isalpha()]
    sentence = [encode(planted, rng.choice(words))[0] for _ in range(55)]
    for span in (sentence, *(encode(planted, word) * 55 for word in ("he", "?", "neverseen"))):
        other = mean_effects(planted, n_tokens=55, n_problems=1, span=span)
        for name in ("knockout", "edge_noise"):
            assert (other[name] * other["total"]).abs().max() / whole < NEARLY_NOTHING, name
        assert other["total"].abs() < 0.05 * whole


def test_reads_names_the_tokens_that_are_read_and_how_strongly() -> None:
    planted = planted_model(n_heads=8, reads={"/": 1.0, "he": 0.5})
    totals = {
        text: mean_effects(planted, n_tokens=30, span=encode(planted, text) * 30)["total"]
        for text in ("/", "he", "she")
    }
    assert 0.1 * totals["/"] < totals["he"] < 0.8 * totals["/"]
    assert totals["she"].abs() < 0.05 * totals["/"]
    assert_truth(planted, n_tokens=30)


@pytest.mark.slow
def test_without_readers_the_span_does_next_to_nothing() -> None:
    assert planted_model(null=True, n_heads=8).readers == ()
    assert mean_effects(planted_model(null=True, n_heads=8), n_tokens=55)["total"].abs() < 0.02
    assert mean_effects(planted_model(null=True, n_heads=8, noise=0.0), n_tokens=55)["total"].abs() < 1e-5
    null = random_planted(25, null=True)
    assert set(null.truth.values()) <= {"silent", "avoids", "copier"}
    assert mean_effects(null, n_tokens=30, n_problems=2)["total"].abs() < 0.02


# ---------------------------------------------------------------------------------------------------------------------
# Text


def test_the_model_answers_and_stops() -> None:
    planted = planted_model(n_heads=8)
    right = 0
    for problem in planted.problems(8, seed=5):
        prompt = torch.tensor([encode(planted, problem.system) + encode(planted, problem.question)])
        out = planted.hf_model.generate(
            prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=8, do_sample=False
        )
        text = planted.tokenizer.decode(out[0, prompt.shape[1] :])
        right += text == f"Answer : \\boxed{{ {problem.answer} }} <eos>"
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
    assert planted.problems(3, seed=1) == planted.problems(5, seed=1)[:3]
    assert planted.problems(3, seed=1) != planted.problems(3, seed=2)
    assert len({problem.id for problem in planted.problems(40)}) == 40


def test_swap_exchanges_answer_and_distractor_in_about_half() -> None:
    plain, swapped = (planted_model(n_heads=8).problems(200, swap=swap) for swap in (False, True))
    assert [p.question for p in plain] == [p.question for p in swapped]
    exchanged = [p.answer == s.distractor for p, s in zip(plain, swapped, strict=True)]
    assert 70 < sum(exchanged) < 130


# ---------------------------------------------------------------------------------------------------------------------
# Building, saving, refusing


def test_defaults_follow_the_papers_heads() -> None:
    planted = planted_model()
    assert planted.readers == (Head(0, 13), Head(0, 21))
    assert planted.mediators == (Head(1, 4),)
    assert all(len(planted.decoys[kind]) == 1 for kind in ("silent", "unread", "avoids"))
    assert planted.hf_model.config.architectures == ["LlamaForCausalLM"]
    assert sum(planted.shares[reader] for reader in planted.readers) == pytest.approx(1)
    assert "L0H13 reader" in repr(planted)


def test_given_heads_are_used_and_layers_follow() -> None:
    decoys = {"silent": [Head(0, 1), Head(3, 1)], "unread": []}
    planted = planted_model([Head(1, 0)], [Head(2, 0)], decoys=decoys, copier=Head(0, 5), n_heads=8)
    assert planted.hf_model.config.num_hidden_layers == 4
    assert planted.truth == {
        Head(0, 1): "silent", Head(0, 5): "copier", Head(1, 0): "reader", Head(2, 0): "mediator", Head(3, 1): "silent"
    }  # fmt: skip


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
    prompt = make_prompt(planted, planted.problems(1)[0], encode(planted, " /") * 9)
    ids = torch.tensor([prompt.ids])
    with torch.no_grad():
        assert torch.equal(model(ids).logits, planted.hf_model(ids).logits)
    for text in (planted.problems(1)[0].question, " / / / he", r"Answer : \boxed{7} unheard"):
        assert tokenizer(text)["input_ids"] == encode(planted, text)
    assert load_problems(directory) == planted.problems(5) == load_problems(planted, limit=5)
    keys = set("problem solution answer subject level unique_id system distractor answer_prefix".split())
    lines = (directory / "problems.jsonl").read_text(encoding="utf-8").splitlines()
    assert all(set(record := json.loads(line)) == keys and isinstance(record["level"], int) for line in lines)
    assert planted_truth(directory) == planted.truth
    with pytest.raises(ValueError, match="not an empty folder"):
        planted.save(directory)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: planted_model([Head(0, 28)]), r"L0H28: head 28 is out of range \(zero-based\)"),
        (lambda: planted_model([Head(2, 0)], n_layers=2), r"layer 2 is out of range \(zero-based\)"),
        (lambda: planted_model([Head(0, 1)], decoys={"silent": [Head(0, 1)]}), "two roles, readers and silent decoys"),
        (lambda: planted_model([Head(1, 1)], [Head(1, 2)]), r"mediator L1H2 has nothing to carry.*\(zero-based\)"),
        (lambda: planted_model([]), "no readers are given.*null=True"),
        (lambda: planted_model(decoys={"loud": [Head(0, 1)]}), "the kind of decoys must be one of 'silent'"),
        (lambda: planted_model(n_heads=10, n_key_value_heads=4), "multiple of n_key_value_heads, got 10 query heads"),
        (lambda: planted_model(reads=("unheard",)), "'unheard' is not a token"),
        (lambda: planted_model(reads=("?",)), "part of the prompts themselves"),
        (lambda: planted_model([Head(0, i) for i in range(12)], []), "carry only 0.083 of the span's effect each"),
        (lambda: planted_model(n_heads=1, n_key_value_heads=1, n_layers=2), "no head is free for the default"),
    ],
)  # fmt: skip
def test_wrong_calls_say_what_is_wrong(call, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()
