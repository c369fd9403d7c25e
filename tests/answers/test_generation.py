"""Completions: batched as single, the cache as whole forward passes, every row by its own random numbers."""

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import ARCHITECTURES, needs_hooked_transformer
from generated_under_test import with_logits
from models_under_test import loaded, pairs_for
from vllm_under_test import FakeVllm

from mless_interp.answers import engines as generation_engines
from mless_interp.answers.decoding import Completion, Request, Row, decoding_for, sampled
from mless_interp.answers.engines import generate_completions
from mless_interp.answers.vllm import Vllm
from mless_interp.core.heads import Head
from mless_interp.mechanism.arm import ARM
from mless_interp.models.base import Model
from mless_interp.models.info import Inputs, ModelError
from mless_interp.models.load import load_model
from mless_interp.patching.interventions import Knockout, run_edits
from mless_interp.prompts.pairs import PromptPair
from mless_interp.prompts.problems import load_problems
from mless_interp.prompts.prompt import build_prompt

WITH_CACHE = [("bridge", "eager"), ("nnsight", "eager"), ("nnsight", "sdpa")]
BACKENDS_HERE = [
    *[pytest.param(*case, id=" ".join(case)) for case in WITH_CACHE],
    pytest.param("hooked_transformer", "eager", marks=needs_hooked_transformer, id="hooked_transformer"),
]
HEADS = (Head(0, 1), Head(0, 6), Head(2, 3))


def requests_of(pairs: tuple[PromptPair, ...]) -> list[Request]:
    """One request per pair, of different lengths: the shortest is the base prompt's last tokens' worth shorter."""
    return [
        Request(pair.inserted.ids[: len(pair.inserted) - 2 * i], pair.id, pair.span) for i, pair in enumerate(pairs)
    ]


def whole(model: Model, request: Request, completion: Any, **options: Any) -> torch.Tensor:
    """The logits that one whole forward pass gives for every completed token: what a cache must reproduce."""
    tokens = torch.tensor([request.prompt + completion.tokens])
    logits = model.run(tokens, **options).logits
    assert logits is not None
    return logits[0, len(request.prompt) - 1 : -1].float()


@pytest.fixture(scope="module")
def demo() -> Model:
    return load_model("demo", backend="bridge")


def boxed(text: str) -> bool:
    return "}" in text


# ----------------------------------------------------------------------------------------- batched equals single, exactly


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize(("backend", "attention"), BACKENDS_HERE)
def test_a_padded_batch_gives_what_each_prompt_gives_alone(
    architecture: str, backend: str, attention: str, tiny_model_dir: Callable[[str], Path]
) -> None:
    model = loaded(tiny_model_dir(architecture), backend, attention=attention)
    requests = requests_of(pairs_for(model))
    assert len({len(request.prompt) for request in requests}) == 3, "rows of different length, so that padding matters"
    assert min(len(request.prompt) for request in requests) > 16, "longer than Gemma's window"
    together = with_logits(model, requests, max_new_tokens=8)
    for request in requests:
        alone = generate_completions(model, [request], max_new_tokens=8)[request.key]
        found = together[request.key]
        assert found.tokens == alone.tokens and found.stop == alone.stop
        torch.testing.assert_close(found.logits, whole(model, request, found), atol=2e-4, rtol=1e-4)
        assert list(found.tokens) == found.logits.argmax(-1).tolist()


@pytest.mark.parametrize("dtype", ["float64", "float16"])
@pytest.mark.parametrize(("backend", "attention"), [("bridge", "eager"), ("nnsight", "sdpa")])
def test_rows_of_padding_stay_finite_in_every_dtype(
    dtype: str, backend: str, attention: str, tiny_model_dir: Callable[[str], Path]
) -> None:
    """The mask's lowest float64 number is -inf in eager attention's float32 softmax: NaN, that spread to real tokens."""
    model = loaded(tiny_model_dir("gemma3"), backend, dtype=dtype, attention=attention)
    requests = [
        Request(pair.inserted.ids[i:], pair.id, (pair.span[0] - i, pair.span[1] - i))
        for i, pair in enumerate(pairs_for(model))
    ]
    assert len({request.prompt[0] for request in requests}) > 1, "no shared beginning, so padding comes first"
    options: dict[str, Any] = {"max_new_tokens": 4, "knockout": HEADS}
    together = with_logits(model, requests, **options)
    for request in requests:
        alone = with_logits(model, [request], **options)[request.key]
        found = together[request.key]
        near = {"atol": 2e-4, "rtol": 1e-4} if dtype == "float64" else {"atol": 0.1, "rtol": 2e-2}
        torch.testing.assert_close(found.logits[0], alone.logits[0], **near)
        if dtype == "float64":  # in half precision near-ties can fall either way
            assert found.tokens == alone.tokens


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize(("backend", "attention"), BACKENDS_HERE)
def test_a_batched_knockout_is_that_of_whole_passes(
    architecture: str, backend: str, attention: str, tiny_model_dir: Callable[[str], Path]
) -> None:
    model = loaded(tiny_model_dir(architecture), backend, attention=attention)
    requests = requests_of(pairs_for(model))
    found = with_logits(model, requests, knockout=HEADS, max_new_tokens=6)
    for request in requests:
        completion = found[request.key]
        tokens = torch.tensor([request.prompt + completion.tokens])
        span = torch.zeros_like(tokens, dtype=torch.bool)
        span[0, slice(*request.span)] = True
        edits = run_edits(model, Inputs(tokens), Knockout(), HEADS, span=span, start=request.span[1])
        expected = whole(model, request, completion, edits=edits)
        torch.testing.assert_close(completion.logits, expected, atol=5e-4, rtol=1e-4)
        change = expected - whole(model, request, completion)
        assert float(change.abs().max()) > 1e-2, "the knockout does something here"


@pytest.mark.parametrize(("architecture", "prefill_only"), [("qwen2", False), ("gemma3", True)])
@pytest.mark.parametrize(("backend", "attention"), BACKENDS_HERE)
def test_arm_acts_on_each_rows_own_tokens_at_the_prompt_and_at_every_step(
    architecture: str, prefill_only: bool, backend: str, attention: str, tiny_model_dir: Callable[[str], Path]
) -> None:
    model = loaded(tiny_model_dir(architecture), backend, attention=attention)
    requests = requests_of(pairs_for(model))
    arm = ARM(1.0, 99.5, layers=(0, 2), prefill_only=prefill_only, p_max=0.9, seed=3)
    found = with_logits(model, requests, max_new_tokens=5, arm=arm)
    for request in requests:
        completion = found[request.key]
        tokens = torch.tensor([request.prompt + completion.tokens])
        edits = arm.edits(model, tokens, keys=[request.key], n_prompt=len(request.prompt))
        expected = whole(model, request, completion, edits=edits)
        torch.testing.assert_close(completion.logits, expected, atol=5e-4, rtol=1e-4)
        unedited = whole(model, request, completion)
        assert float((expected - unedited).abs().max()) > 1e-2, "ARM does something here"


@pytest.mark.parametrize("knockout", [(), HEADS])
@pytest.mark.parametrize(("backend", "attention"), [pytest.param(*case, id=" ".join(case)) for case in WITH_CACHE])
def test_a_shared_beginning_is_computed_once_and_changes_nothing(
    backend: str,
    attention: str,
    knockout: tuple[Head, ...],
    tiny_model_dir: Callable[[str], Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Spans inside the shared tokens, across their end, after it, and different ones; lengths that need padding."""
    model = loaded(tiny_model_dir("llama"), backend, attention=attention)
    ids = pairs_for(model)[0].inserted.ids
    tails = (ids[5:9], ids[9:16], ids[5:6] + ids[20:21])
    cases = [[(4, 12)] * 3, [(10, 22)] * 3, [(21, 22)] * 3, [(12, 20), (14, 21), (20, 22)], [(2, 9), (2, 10), (2, 9)]]
    for spans in cases:
        requests = [Request(ids[:20] + tail, f"r{i}", spans[i]) for i, tail in enumerate(tails)]
        rows = [Row(request, decoding_for(model, max_new_tokens=1), model.tokenizer) for request in requests]
        shared = generation_engines.shared_prefix(model, rows, decoding_for(model, max_new_tokens=1, knockout=knockout))
        assert shared == (20 if not knockout or len(set(spans)) == 1 else {12: 12, 2: 0}[spans[0][0]])
        options: dict[str, Any] = {"max_new_tokens": 6, "knockout": knockout}
        found = with_logits(model, requests, **options)
        with monkeypatch.context() as patch:
            patch.setattr(generation_engines, "shared_prefix", lambda *_: 0)
            expected = with_logits(model, requests, **options)
        for key, completion in expected.items():
            assert found[key].tokens == completion.tokens
            torch.testing.assert_close(found[key].logits, completion.logits, atol=2e-4, rtol=1e-4)


# ------------------------------------------------------------------------------------------------------------- sampling


def test_sampling_inverts_the_distribution_function_by_hand() -> None:
    logits = torch.log(torch.tensor([[0.2, 0.3, 0.5]], dtype=torch.float64))
    draw = lambda u, **options: int(sampled(logits, torch.tensor([u]), **{"temperature": 1.0, **options}))  # noqa: E731
    assert [draw(u) for u in (0.0, 0.19, 0.21, 0.49, 0.51, 0.9999999999)] == [0, 0, 1, 1, 2, 2]
    # at temperature 1/2: squares, 0.04 / 0.38, 0.09 / 0.38, 0.25 / 0.38
    assert [draw(u, temperature=0.5) for u in (0.10, 0.11, 0.34, 0.35)] == [0, 1, 1, 2]
    # the nucleus of 0.7 holds the last two (0.5 alone is not enough): 0.3 / 0.8 of what is left
    assert [draw(u, top_p=0.7) for u in (0.0, 0.37, 0.38, 0.99)] == [1, 1, 2, 2]
    assert [draw(u, top_p=0.5) for u in (0.0, 0.99)] == [2, 2]
    logits = torch.tensor([[-torch.inf, 0.0, -torch.inf, 0.0, -torch.inf]]).repeat(4, 1)
    drawn = sampled(logits, torch.tensor([0.0, 0.5, 1 - 2**-53, 1.0], dtype=torch.float64), temperature=1.0)
    assert drawn.tolist() == [1, 3, 3, 3], "a token of probability zero is never drawn"
    with pytest.raises(ValueError, match="the model gave logits that are no numbers"):
        sampled(torch.tensor([[0.0, torch.nan]]), torch.tensor([0.5]), temperature=1.0)


def test_a_rows_draws_do_not_depend_on_its_neighbours_or_the_order(tiny_model_dir: Callable[[str], Path]) -> None:
    model = loaded(tiny_model_dir("qwen2"), "bridge")
    requests = requests_of(pairs_for(model))
    options: dict[str, Any] = {"max_new_tokens": 8, "temperature": 1.5, "top_p": 0.95}
    state = torch.get_rng_state()
    together = generate_completions(model, requests, seed=4, **options)
    assert torch.equal(torch.get_rng_state(), state), "the global generator is not touched"
    reversed_alone = generate_completions(model, requests[::-1], seed=4, batch_size=1, **options)
    assert {k: c.tokens for k, c in together.items()} == {k: c.tokens for k, c in reversed_alone.items()}
    other_seed = generate_completions(model, requests, seed=5, **options)
    assert all(other_seed[k].tokens != c.tokens for k, c in together.items())
    renamed = [Request(request.prompt, request.key + "'", request.span) for request in requests]
    other_key = generate_completions(model, renamed, seed=4, **options)
    assert all(other_key[k + "'"].tokens != c.tokens for k, c in together.items())


# ------------------------------------------------------------------------------------------------------------- stopping


def test_rows_stop_at_a_box_at_end_of_sequence_or_are_cut_off(demo: Model) -> None:
    problems = load_problems("demo", limit=3)
    requests = [Request(build_prompt(demo.tokenizer, problem).ids, problem.id) for problem in problems]
    at_box = generate_completions(demo, requests, max_new_tokens=9, complete=boxed)
    at_end = generate_completions(demo, requests, max_new_tokens=9)
    cut = generate_completions(demo, requests, max_new_tokens=3, complete=boxed)
    for problem in problems:
        text = f"Answer : \\boxed{{ {problem.answer} }}"
        assert at_box[problem.id].stop == "box" and at_box[problem.id].text(demo.tokenizer) == text
        assert len(at_box[problem.id].tokens) == 5
        assert at_end[problem.id].stop == "eos" and at_end[problem.id].text(demo.tokenizer) == text
        assert at_end[problem.id].tokens[-1] == demo.tokenizer.eos_token_id
        assert cut[problem.id].stop == "length" and cut[problem.id].text(demo.tokenizer) == "Answer : \\boxed{"


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
    monkeypatch.setattr(demo.hf_model, "generation_config", None)
    assert generate_completions(demo, [request], max_new_tokens=9)["a"].tokens == usual.tokens


# ----------------------------------------------------------------------------------------------- nothing is left, lost


def hooks_of(module: Any) -> int:
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in module.modules())


@pytest.mark.parametrize("backend", ["bridge", "nnsight"])
def test_no_hook_stays_behind_an_error(backend: str, tiny_model_dir: Callable[[str], Path]) -> None:
    model = loaded(tiny_model_dir("qwen2"), backend)
    requests = requests_of(pairs_for(model))
    before, config = hooks_of(model.hf_model), model.hf_model.generation_config
    plain = generate_completions(model, requests, max_new_tokens=3)

    def fail(_: dict[str, Completion]) -> None:
        raise RuntimeError("the disk is on fire")

    with pytest.raises(RuntimeError, match="on fire"):
        generate_completions(model, requests, max_new_tokens=3, knockout=HEADS, arm=ARM(1.0, 99.0), on_finished=fail)
    assert hooks_of(model.hf_model) == before and model.hf_model.generation_config is config
    again = generate_completions(model, requests, max_new_tokens=3)
    assert {k: c.tokens for k, c in again.items()} == {k: c.tokens for k, c in plain.items()}


def test_running_out_of_memory_halves_the_batch_and_goes_on(
    tiny_model_dir: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = loaded(tiny_model_dir("qwen2"), "bridge")
    prompts = [request.prompt for request in requests_of(pairs_for(model))]
    requests = [Request(prompts[i % 3], f"r{i}") for i in range(9)]
    options: dict[str, Any] = {"max_new_tokens": 4, "temperature": 1.0, "batch_size": 8}
    usual = generate_completions(model, requests, **options)
    sizes: list[int] = []
    generate = type(model.hf_model).generate

    def small(self: Any, **given: Any) -> Any:
        sizes.append(len(given["input_ids"]))
        if len(given["input_ids"]) > 2:
            raise RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory")
        return generate(self, **given)

    monkeypatch.setattr(type(model.hf_model), "generate", small)
    found = generate_completions(model, requests, **options)
    assert sizes == [8, 4, 2, 2, 2, 2, 1]
    assert {k: c.tokens for k, c in found.items()} == {k: c.tokens for k, c in usual.items()}


# ------------------------------------------------------------------------------------------------------------- messages


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_new_tokens": 0}, "max_new_tokens must be 1 or more, got 0"),
        ({"top_p": 0.0}, "top_p must lie above 0 and at most at 1, got 0.0"),
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
    with pytest.raises(
        ModelError, match=r'gives other logits \(off by 1.0e\+00 of the largest\); use engine="forward"'
    ):
        generate_completions(demo, [Request((5,), "a")], max_new_tokens=2)
    assert generate_completions(demo, [Request((5,), "a")], max_new_tokens=2, engine="forward")


def test_fused_attention_has_no_scores_for_the_forward_engine(tiny_model_dir: Callable[[str], Path]) -> None:
    model = loaded(tiny_model_dir("qwen2"), "nnsight", attention="sdpa")
    request = Request(tuple(range(5, 20)), "a", (2, 6))
    with pytest.raises(ModelError, match="'sdpa' attention, under which engine='forward' cannot keep heads from"):
        generate_completions(model, [request], max_new_tokens=2, knockout=[Head(0, 0)], engine="forward")


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
    assert Path(made["model"], "config.json").is_file() and made["skip_tokenizer_init"] and made["dtype"] == "float32"
    assert made["tensor_parallel_size"] == 2 and made["gpu_memory_utilization"] == 0.5
    assert made["enable_prefix_caching"] is made["enable_chunked_prefill"] is False
    assert made["max_num_batched_tokens"] >= made["max_model_len"]
    need = len(by_length[-1].prompt) + 9
    assert need <= made["max_model_len"] <= need + 255 and made["max_model_len"] <= demo.info.context_length
    for parameters in fake.given("parameters"):
        assert parameters["temperature"] == 0.7 and parameters["top_p"] == 0.9 and parameters["max_tokens"] == 9
        assert parameters["stop_token_ids"] == [eos] and parameters["detokenize"] is False
    seeds = [parameters["seed"] for parameters in fake.given("parameters")]
    assert len(set(seeds)) == 2 and all(isinstance(seed, int) and 0 <= seed < 2**31 for seed in seeds)
    generate_completions(demo, requests, complete=boxed, engine="vllm", **options | {"temperature": 0.0})
    assert [parameters["seed"] for parameters in fake.given("parameters")[2:]] == [None, None]


@pytest.mark.parametrize("python", [sys.executable, "/nowhere/bin/python"])
def test_vllm_needs_an_environment_that_has_it(demo: Model, python: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLESS_VLLM_PYTHON", python)
    with pytest.raises(ModelError, match=f"engine='vllm': {python} has no vllm. It needs an environment of its own"):
        generate_completions(demo, [Request((5, 6, 7), "a")], max_new_tokens=2, engine="vllm")


def test_vllm_says_what_it_lacks(demo: Model, by_vllm: Any) -> None:
    request, fake, told = Request((5, 6, 7), "a", (1, 2)), by_vllm([[9, 9]]), "use engine='hugging_face' or engine='for"
    for asked, lacks in (
        ({"arm": ARM(0.1, 99.0)}, "no activations of"),
        ({"arm": ARM(0.1, 99.0), "knockout": [Head(0, 0)]}, "no heads and no activations of"),
    ):
        with pytest.raises(ModelError, match=f"engine='vllm' shows {lacks} demo, which this asks for; {told}"):
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
