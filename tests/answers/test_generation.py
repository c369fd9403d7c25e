"""Completions: batched as single, the cache as whole forward passes, every row by its own random numbers."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import ARCHITECTURES, needs_hooked_transformer
from generated_under_test import generate_completions, with_logits
from models_under_test import loaded, pairs_for

from mless_interp.answers import engines as generation_engines
from mless_interp.answers.decoding import Completion, Request, Row, decoding_for
from mless_interp.core.heads import Head
from mless_interp.mechanism.arm import ARM
from mless_interp.models.base import Model
from mless_interp.models.info import Inputs, ModelError
from mless_interp.models.sites import gate_edits
from mless_interp.patching.interventions import Knockout, run_edits
from mless_interp.prompts.pairs import PromptPair

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


# ----------------------------------------------------------------------------------------- batched equals single, exactly


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize(("backend", "attention"), BACKENDS_HERE)
def test_a_padded_batch_gives_what_each_prompt_gives_alone(backend: str, model: Model) -> None:
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
def test_a_batched_knockout_is_that_of_whole_passes(backend: str, model: Model) -> None:
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


def redrawn(arm: ARM, request: Request, layer: int, activations: torch.Tensor) -> torch.Tensor:
    """ARM by hand: the prompt is one tensor, and each later token one of its own."""
    n, after = len(request.prompt), 0 if arm.prefill_only else activations.shape[1] - len(request.prompt)
    changed = activations.clone()
    for step, part in enumerate([slice(n), *(slice(n + at, n + at + 1) for at in range(after))]):
        draws = arm.generator(request.key, layer=layer, step=step)
        changed[0, part] = arm.redistribute(activations[0, part], generator=draws)
    return changed


@pytest.mark.parametrize(("architecture", "prefill_only"), [("qwen2", False), ("gemma3", True)])
@pytest.mark.parametrize(("backend", "attention"), BACKENDS_HERE)
def test_arm_acts_on_each_rows_own_tokens_at_the_prompt_and_at_every_step(
    backend: str, model: Model, prefill_only: bool
) -> None:
    requests = requests_of(pairs_for(model))
    arm = ARM(1.0, 99.5, layers=(0, 2), prefill_only=prefill_only, p_max=0.9, seed=3)
    found = with_logits(model, requests, max_new_tokens=5, arm=arm)
    for request in requests:
        completion = found[request.key]
        edits = [
            gate_edits(layer, model.gated_mlp(layer), partial(redrawn, arm, request, layer)) for layer in arm.layers
        ]
        expected = whole(model, request, completion, edits={**edits[0], **edits[1]})
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


def test_a_rows_draws_do_not_depend_on_its_neighbours_or_the_order(model: Model) -> None:
    requests = requests_of(pairs_for(model))
    options: dict[str, Any] = {"max_new_tokens": 8, "temperature": 1.5, "top_p": 0.95}
    state = torch.get_rng_state()
    together = generate_completions(model, requests, seed=4, **options)
    assert torch.equal(torch.get_rng_state(), state), "the global generator is not touched"
    reversed_alone = generate_completions(model, requests[::-1], seed=4, batch_size=1, **options)
    assert {k: c.tokens for k, c in together.items()} == {k: c.tokens for k, c in reversed_alone.items()}
    other_seed = generate_completions(model, requests, seed=5, **options)
    assert all(other_seed[k].tokens != c.tokens for k, c in together.items())


# ----------------------------------------------------------------------------------------------- nothing is left, lost


def hooks_of(module: Any) -> int:
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in module.modules())


@pytest.mark.parametrize("backend", ["bridge", "nnsight"])
def test_no_hook_stays_behind_an_error(backend: str, model: Model) -> None:
    requests = requests_of(pairs_for(model))
    before, config = hooks_of(model.hf_model), model.hf_model.generation_config

    def fail(_: dict[str, Completion]) -> None:
        raise RuntimeError("the disk is on fire")

    with pytest.raises(RuntimeError, match="on fire"):
        generate_completions(model, requests, max_new_tokens=3, knockout=HEADS, arm=ARM(1.0, 99.0), on_finished=fail)
    assert hooks_of(model.hf_model) == before and model.hf_model.generation_config is config


def test_running_out_of_memory_halves_the_batch_and_goes_on(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_fused_attention_has_no_scores_for_the_forward_engine(tiny_model_dir: Callable[[str], Path]) -> None:
    model = loaded(tiny_model_dir("qwen2"), "nnsight", attention="sdpa")
    request = Request(tuple(range(5, 20)), "a", (2, 6))
    with pytest.raises(ModelError, match="'sdpa' attention, under which engine='forward' cannot keep heads from"):
        generate_completions(model, [request], max_new_tokens=2, knockout=[Head(0, 0)], engine="forward")
