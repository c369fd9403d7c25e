"""What a completion is, draws and stops at; what is refused; batches; vLLM, by a stand-in."""

import re
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from generated_under_test import generate_completions
from small_results import certified
from vllm_under_test import FakeVllm

from mless_interp.answers import engines as generation_engines
from mless_interp.answers.decoding import (
    Completion,
    CompletionEngine,
    Decoding,
    Request,
    Row,
    accept_all,
    check_requests,
    complete_all,
    decoding_for,
    next_tokens,
    rows_at_once,
    sampled,
)
from mless_interp.answers.engines import engine_for
from mless_interp.answers.vllm import Vllm, VllmEngine
from mless_interp.core.heads import Head
from mless_interp.mechanism.arm import ARM
from mless_interp.models.base import Model
from mless_interp.models.info import ModelError
from mless_interp.prompts.problems import load_problems
from mless_interp.prompts.prompt import build_prompt


def boxed(text: str) -> bool:
    return "}" in text


# ------------------------------------------------------------------------------------------------------------- sampling


def test_sampling_inverts_the_distribution_function_by_hand() -> None:
    logits = torch.log(torch.tensor([[0.2, 0.3, 0.5]], dtype=torch.float64))
    draw = lambda u, **options: int(sampled(logits, torch.tensor([u]), **{"temperature": 1.0, "top_p": 1.0, **options}))  # noqa: E731
    assert [draw(u) for u in (0.0, 0.19, 0.21, 0.49, 0.51, 0.9999999999)] == [0, 0, 1, 1, 2, 2]
    # at temperature 1/2: squares, 0.04 / 0.38, 0.09 / 0.38, 0.25 / 0.38
    assert [draw(u, temperature=0.5) for u in (0.10, 0.11, 0.34, 0.35)] == [0, 1, 1, 2]
    # the nucleus of 0.7 holds the last two (0.5 alone is not enough): 0.3 / 0.8 of what is left
    assert [draw(u, top_p=0.7) for u in (0.0, 0.37, 0.38, 0.99)] == [1, 1, 2, 2]
    assert [draw(u, top_p=0.5) for u in (0.0, 0.99)] == [2, 2]
    logits = torch.tensor([[-torch.inf, 0.0, -torch.inf, 0.0, -torch.inf]]).repeat(4, 1)
    drawn = sampled(logits, torch.tensor([0.0, 0.5, 1 - 2**-53, 1.0], dtype=torch.float64), temperature=1.0, top_p=1.0)
    assert drawn.tolist() == [1, 3, 3, 3], "a token of probability zero is never drawn"
    with pytest.raises(ValueError, match="the model gave logits that are no numbers"):
        sampled(torch.tensor([[0.0, torch.nan]]), torch.tensor([0.5]), temperature=1.0, top_p=1.0)
    halves = sampled(torch.zeros(1, 4), torch.tensor([0.99]), temperature=1.0, top_p=0.5)
    assert halves.tolist() == [1], "the first two hold a half, the third is beyond"


# ------------------------------------------------------------------------------------------------------ rows and batches


class Spelling:
    """A tokenizer whose token `at` is the letter at that place; the last one is special."""

    def decode(self, ids: list[int], skip_special_tokens: bool = False) -> str:
        return "".join("ab}c|"[at] for at in ids if at < 4 or not skip_special_tokens)


def row(key: str = "r", **options: Any) -> Row:
    return Row(Request((0,), key), Decoding(3, stop_ids=frozenset([4]), **options), Spelling())  # type: ignore[arg-type]


def test_a_row_stops_at_an_end_or_a_whole_text_or_its_length() -> None:
    asked: list[str] = []
    whole = lambda text: asked.append(text) or text == "b}"  # noqa: E731
    for tokens, stop, complete in (
        ([4], "eos", whole), ([1, 2], "box", whole), ([0, 0, 4], "eos", whole), ([0, 1, 2], "length", whole),
        ([1, 2, 0], "length", None), ([0, 3, 1], "length", whole),
    ):  # fmt: skip
        made, ended = row(complete=complete), []
        for token in tokens:
            assert made.stop is None
            accept_all([made], torch.tensor([token]), ended.extend)
        accept_all([made], torch.tensor([1]), ended.extend)
        assert made.completion() == Completion(tuple(tokens), stop) and ended == [made] and made.ids == (0, *tokens)
    assert asked == ["b}", "ab}"], "asked after a closing brace alone"
    special = Row(Request((0,), "r"), Decoding(9, complete=whole), Spelling())  # type: ignore[arg-type]
    for token in (4, 1, 2):
        special.accept(token)
    assert special.stop == "box", "special tokens are no text"
    assert Completion((1, 0), "eos").text(Spelling()) == "b" == Completion((1, 4), "length").text(Spelling())


def test_rows_that_go_on_draw_their_own_numbers_and_need_numbers() -> None:
    logits = torch.tensor([[0.0, 2.0], [torch.nan, 0.0]])
    going, stopped = row("a"), row("b")
    stopped.stop = "eos"
    for temperature in (0.0, 0.01):
        assert next_tokens([going, stopped], logits, Decoding(1, temperature=temperature))[0] == 1
    with pytest.raises(ValueError, match="'b': the model gave logits that are no numbers"):
        next_tokens([going, row("b")], logits, Decoding(1))
    flat, free = torch.zeros(2, 1000), Decoding(1, temperature=2.0, top_p=0.9)
    first = [int(token) for token in next_tokens([row("a"), row("b")], flat, free)]
    uniform = [row(key).uniform() for key in "ab"]
    assert first == [int(0.9 * 1000 * each) for each in uniform] and uniform[0] != uniform[1]
    assert uniform == pytest.approx([0.605770961264005, 0.2221485017485716]), (
        "as ever: a seed gives the answers that it gave"
    )
    going.uniform = lambda: 0.5 - 2**-40  # type: ignore[method-assign]
    assert next_tokens([going], torch.zeros(1, 2), free).tolist() == [0], "in float64"
    before = stopped._sampling.bit_generator.state
    next_tokens([row("a"), stopped], flat, free)
    assert stopped._sampling.bit_generator.state == before, "a row that has stopped draws nothing"


@pytest.mark.parametrize("prefill_only", [False, True])
def test_a_row_redraws_its_prompt_and_then_each_token(prefill_only: bool) -> None:
    arm = ARM(0.5, 99.5, layers=(1,), prefill_only=prefill_only)
    made, values = row(arm=arm), torch.linspace(-1, 1, 60).reshape(3, 20)
    prompt = made.all_redrawn(values[:2], 1)
    assert torch.equal(prompt, arm.redistribute(values[:2], generator=arm.generator("r", layer=1, step=0)))
    made.accept(0)
    last = arm.redistribute(values[2:], generator=arm.generator("r", layer=1, step=1))
    expected = torch.cat([prompt, values[2:] if prefill_only else last])
    assert torch.equal(made.all_redrawn(values, 1), expected) and made.redrawn(values.half(), 2).dtype == torch.half


class Counting(CompletionEngine):
    """Gives every row one token, its prompt's length, and counts its batches."""

    name, most = "counting", 99

    def __init__(self) -> None:
        self.batches: list[list[str]] = []

    def run(self, rows: list[Row], decoding: Decoding, finished: Any) -> None:
        if len(rows) > self.most:
            raise MemoryError
        self.batches.append([row.request.key for row in rows])
        accept_all(rows, torch.tensor([len(row.request.prompt) for row in rows]), finished)


def test_batches_are_cut_by_length_as_if_nothing_was_kept(demo: Model) -> None:
    requests = [Request((5,) * n, f"r{n}") for n in (4, 1, 3, 2, 5)]
    told: list[str] = []
    for skip, batches in ((set(), ["12", "34", "5"]), ({"r1", "r3", "r5"}, ["2", "4"])):
        engine, how = Counting(), Decoding(1)
        told.clear()
        found = complete_all(demo, requests, how, engine, batch_size=2, on_finished=told.extend, skip=skip)
        assert engine.batches == [[f"r{n}" for n in batch] for batch in batches]
        assert {key: each.tokens for key, each in found.items()} == {f"r{n}": (int(n),) for n in "".join(batches)}
        assert told == list(found)
    engine = Counting()
    engine.rows_at_once = 3
    complete_all(demo, requests, Decoding(1), engine, batch_size=None, on_finished=told.extend)
    assert list(map(len, engine.batches)) == [3, 2]
    engine.most = 1
    complete_all(demo, requests, Decoding(1), engine, batch_size=None, on_finished=told.extend)
    assert list(map(len, engine.batches)) == [3, 2, *[1] * 5], "fewer at once where memory ran out"
    assert complete_all(demo, [], Decoding(1), Counting(), batch_size=None, on_finished=told.extend) == {}
    check_requests(demo, requests[:1], Decoding(508))
    with pytest.raises(
        ValueError, match="'r4': a prompt of 4 tokens and 509 new ones do not fit demo's context of 512"
    ):
        check_requests(demo, requests[:1], Decoding(509))


def test_an_engine_is_chosen_and_what_it_or_a_model_cannot_do_is_said(demo: Model) -> None:
    info = certified().info
    bare = Mock(spec=Model, info=info, hf_model=None, tokenizer=None)
    assert engine_for(bare, "auto").name == "forward"
    with pytest.raises(ModelError, match="tiny on backend 'bridge' has no Hugging Face module to generate with"):
        engine_for(bare, "hugging_face")
    with pytest.raises(ModelError, match="engine='vllm' loads the weights itself"):
        engine_for(bare, Vllm())
    with pytest.raises(ModelError, match="tiny names no end-of-sequence token"):
        decoding_for(bare, max_new_tokens=1)
    assert decoding_for(bare, max_new_tokens=1, complete=boxed).stop_ids == set()
    with pytest.raises(ModelError, match="tiny gives 3 classes, not tokens"):
        decoding_for(Mock(spec=Model, info=replace(info, n_classes=3), hf_model=None, tokenizer=None), max_new_tokens=1)
    config = SimpleNamespace(get_text_config=lambda: SimpleNamespace(eos_token_id=4))
    bare.hf_model = SimpleNamespace(generation_config=SimpleNamespace(eos_token_id=[2, 3]), config=config)
    bare.tokenizer = SimpleNamespace(eos_token_id=1)
    assert decoding_for(bare, max_new_tokens=1).stop_ids == {1, 2, 3, 4}
    bare.hf_model = SimpleNamespace(config=config)
    assert decoding_for(bare, max_new_tokens=1).stop_ids == {1, 4}
    engine, hiding = Counting(), Decoding(1, knockout=(Head(0, 0),))
    with pytest.raises(ModelError, match="engine='counting' shows no heads of demo, .*'hugging_face' or engine='forw"):
        engine.check(demo, hiding)
    engine.hides_under = ("sdpa", "flash")
    with pytest.raises(ModelError, match="demo runs 'eager' attention, .* attn_implementation='sdpa' or 'flash' to kn"):
        engine.check(demo, hiding)


def test_as_many_rows_run_at_once_as_memory_holds() -> None:
    info = replace(
        certified().info, n_layers=10, n_heads=7, n_key_value_heads=4, d_head=50, d_model=300, d_mlp=1000, d_vocab=5000
    )
    # numbers: 10 * 2 * 4 * 50 * (100 + 60) of the cache, 100 * (8 * 300 + 4 * 1000 + 3 * 7 * 100) of the prompt
    each, without = 640_000 + 850_000, replace(info, d_mlp=None, dtype="float32", d_vocab=500_000)
    assert rows_at_once(without, 10**9, longest=100, max_new_tokens=60) == int(
        2.5e8 / ((each + 80_000) * 4 + 8_000_000)
    )
    for dtype, size in (("float64", 8), ("float32", 4), ("bfloat16", 2)):
        for gpu, most, budget in ((None, 64, 2e9), (10**9, 256, 2.5e8), (10**12, 256, 2.5e11), (1, 256, 0)):
            rows = rows_at_once(replace(info, dtype=dtype), gpu, longest=100, max_new_tokens=60)
            assert rows == max(1, min(most, int(budget / (each * size + 16 * 5000))))


# ------------------------------------------------------------------------------------------------------------- stopping


def test_the_models_own_generation_config_lends_its_stop_ids_and_nothing_else(
    demo: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers import GenerationConfig

    request = Request(build_prompt(demo.tokenizer, load_problems("demo", limit=1)[0]).ids, "a")
    usual = generate_completions(demo, [request], max_new_tokens=9)["a"]
    brace = demo.tokenizer.encode("}", add_special_tokens=False)[0]
    odd = GenerationConfig(do_sample=True, temperature=9.0, repetition_penalty=5.0, eos_token_id=[brace], max_length=70)
    monkeypatch.setattr(demo.hf_model, "generation_config", odd)
    found = generate_completions(demo, [request], max_new_tokens=9)["a"]
    assert found.tokens == usual.tokens[:-1] and found.stop == "eos"
    assert demo.hf_model.generation_config is odd


# ------------------------------------------------------------------------------------------------------------- messages


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_new_tokens": 0}, "max_new_tokens must be 1 or more, got 0"),
        ({"top_p": 0.0}, "top_p must lie above 0 and at most at 1, got 0.0"),
        ({"temperature": torch.inf}, "temperature must be 0 (greedy) or more, got inf"),
        ({"temperature": -0.5}, "temperature must be 0 (greedy) or more, got -0.5"),
        ({"engine": "tgi"}, "unknown engine 'tgi'; choose one of auto, hugging_face, forward, vllm"),
        ({"max_new_tokens": 511}, "'a': a prompt of 2 tokens and 511 new ones do not fit demo's context of 512"),
        ({"knockout": [Head(4, 1)]}, "L4H1: layer 4 is out of range (zero-based)"),
        ({"arm": ARM(0.1, 99.0, layers=(9,))}, "layer 9 is out of range (zero-based)"),
    ],
)
def test_wrong_settings_are_refused(options: dict[str, Any], message: str, demo: Model) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        generate_completions(demo, [Request((5, 6), "a")], **{"max_new_tokens": 4, **options})
    with pytest.raises(ValueError, match="the key 'a' is given twice"):
        generate_completions(demo, [Request((5,), "a"), Request((6,), "a")], max_new_tokens=2)


def test_a_module_that_computes_something_else_is_refused(demo: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    other = lambda module, tokens: torch.zeros(1, tokens.shape[1], demo.info.d_vocab)  # noqa: E731
    monkeypatch.setattr(generation_engines, "reference_logits", other)
    with pytest.raises(ModelError, match=r'gives other logits \(off by 1.0e\+00 of the largest\); use engine="forwa'):
        generate_completions(demo, [Request((5,), "a")], max_new_tokens=2)


# ----------------------------------------------------------------------------------------------------------------- vLLM


@pytest.fixture
def by_vllm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes the stand-in for vLLM, with its answers."""
    return lambda answers: FakeVllm(tmp_path, answers, monkeypatch)


def test_vllm_is_given_token_ids_and_its_answers_are_cut_after_the_box(demo: Model, by_vllm: Any) -> None:
    problems = load_problems("demo", limit=2)
    requests = [Request(build_prompt(demo.tokenizer, problem).ids, problem.id) for problem in problems]
    ours = generate_completions(demo, requests, max_new_tokens=9, complete=boxed)
    eos = demo.tokenizer.eos_token_id
    by_length = sorted(requests, key=lambda request: len(request.prompt))
    fake = by_vllm([[*ours[request.key].tokens, 9, eos] for request in by_length])
    options: dict[str, Any] = {"max_new_tokens": 9, "temperature": 0.7, "top_p": 0.9}
    ended: list[str] = []
    how = Vllm(tensor_parallel_size=2, options={"gpu_memory_utilization": 0.5})
    found = generate_completions(demo, requests, complete=boxed, engine=how, on_finished=ended.extend, **options)
    assert {k: (c.tokens, c.stop) for k, c in found.items()} == {k: (c.tokens, "box") for k, c in ours.items()}
    assert ended == [request.key for request in reversed(by_length)], "each is kept as it ends"
    assert fake.given("prompt") == [list(request.prompt) for request in by_length]
    (made,) = fake.given("llm")
    assert Path(made["model"], "config.json").is_file() and not made["enable_prefix_caching"]
    assert made["tensor_parallel_size"] == 2 and made["gpu_memory_utilization"] == 0.5
    for parameters in fake.given("parameters"):
        assert parameters["temperature"] == 0.7 and parameters["top_p"] == 0.9 and parameters["max_tokens"] == 9
        assert parameters["stop_token_ids"] == [eos] and parameters["detokenize"] is False
    seeds = [parameters["seed"] for parameters in fake.given("parameters")]
    assert len(set(seeds)) == 2 and all(isinstance(seed, int) and 0 <= seed < 2**31 for seed in seeds)


def test_vllm_begins_anew_where_a_longer_context_is_needed_and_its_settings_are_kept(demo: Model, by_vllm: Any) -> None:
    fake = by_vllm([[demo.tokenizer.eos_token_id]])
    requests = [Request((5,) * n, f"r{n}") for n in (5, 247, 248)]
    found = generate_completions(demo, requests, max_new_tokens=9, engine="vllm", batch_size=1)
    assert [each.stop for each in found.values()] == ["eos"] * 3
    assert [made["max_model_len"] for made in fake.given("llm")] == [256, 512]
    settings = VllmEngine(demo, Vllm(options={"seed": 1})).settings
    assert (settings["vllm"], settings["seed"], settings["dtype"]) == ("0.33.0", 1, "float32")
    with pytest.raises(ValueError, match="the engine sets dtype, model itself: leave it out of options"):
        Vllm(options={"model": "x", "dtype": "y", "seed": 1})


@pytest.mark.parametrize("python", [sys.executable, "/nowhere/bin/python"])
def test_vllm_needs_an_environment_that_has_it(demo: Model, python: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLESS_VLLM_PYTHON", python)
    with pytest.raises(ModelError, match=f"engine='vllm': {python} has no vllm. It needs an environment of its own"):
        generate_completions(demo, [Request((5, 6, 7), "a")], max_new_tokens=2, engine="vllm")


def test_vllm_says_what_it_lacks(demo: Model, by_vllm: Any) -> None:
    request, fake, told = Request((5, 6, 7), "a", (1, 2)), by_vllm([[9, 9]]), "use engine='hugging_face' or engine='for"
    asked: dict[str, Any] = {"arm": ARM(0.1, 99.0), "knockout": [Head(0, 0)]}
    with pytest.raises(
        ModelError, match=f"'vllm' shows no heads and no activations of demo, which this asks for; {told}"
    ):
        generate_completions(demo, [request], max_new_tokens=2, engine="vllm", **asked)
    assert fake.given("llm") == [], "its process has not begun"


@pytest.mark.parametrize(
    ("answers", "told"),
    [
        ([[9]], "vLLM ended 'a' after 1 tokens \\('stop'\\)"),
        ("cannot", "vLLM failed: ValueError: no GPU here"),
        (["die"], "vLLM's process ended .*out of memory"),
    ],
)
def test_what_goes_wrong_in_vllm_is_told(demo: Model, by_vllm: Any, answers: Any, told: str) -> None:
    by_vllm(answers)
    with pytest.raises(ModelError, match=told):
        generate_completions(demo, [Request((5, 6, 7), "a")], max_new_tokens=2, engine="vllm")
