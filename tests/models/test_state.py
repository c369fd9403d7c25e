"""What a model does beside its weights (hooks, training mode) and what the process is set to: seen at every use, put back."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from architectures_under_test import random_model
from conftest import BACKENDS, word_tokenizer
from models_under_test import QUIET, pairs_for, problems

import mless_interp as mi
from mless_interp.ground_truth.certificate import _self_check
from mless_interp.models import memory
from mless_interp.models.base import Model
from mless_interp.models.checks import check_model


@pytest.fixture(scope="module", params=BACKENDS)
def model(request: pytest.FixtureRequest, tiny_model_dir) -> Model:
    return mi.load_model(tiny_model_dir("qwen2"), backend=request.param)


def mlp_of(model: Model) -> Any:
    return model.underlying.blocks[1].mlp if model.info.backend != "nnsight" else model.hf_model.model.layers[1].mlp


@contextmanager
def forward_hook(model: Model, by: float = 2.0) -> Iterator[None]:
    handle = mlp_of(model).register_forward_hook(lambda module, given, made: made * by)
    yield
    handle.remove()


@contextmanager
def replaced_forward(model: Model) -> Iterator[None]:
    mlp = getattr(mlp_of(model), "original_component", mlp_of(model))  # a bridge's own sets it there
    had, own = vars(mlp).get("forward"), mlp.forward
    mlp.forward = lambda *given: own(*given) * 2
    yield
    del mlp.forward
    if had is not None:
        mlp.forward = had


@contextmanager
def transformer_lens_hook(model: Model) -> Iterator[None]:
    if model.info.backend == "nnsight":
        pytest.skip("nnsight has no hook points")
    with model.underlying.hooks(fwd_hooks=[("blocks.1.hook_mlp_out", lambda value, hook: value * 2)]):
        yield


@contextmanager
def nnsight_edit(model: Model) -> Iterator[None]:
    if model.info.backend != "nnsight":
        pytest.skip("only nnsight has edits")
    with model.underlying.edit(inplace=True):
        model.underlying.model.layers[1].mlp.output = model.underlying.model.layers[1].mlp.output * 2
    yield
    model.underlying.clear_edits()


KINDS = [forward_hook, replaced_forward, transformer_lens_hook, nnsight_edit]


def swept(model: Model, **options: Any) -> torch.Tensor:
    found = mi.patch_heads(model, pairs_for(model, 5, 1), heads=["L0H1", "L1H2"], **QUIET, **options)
    return torch.tensor(found.patched).nan_to_num()  # heads that are not asked for


@pytest.mark.parametrize("added", KINDS)
@pytest.mark.filterwarnings("ignore:.* is slow. hooks were added to it")
def test_what_is_added_after_loading_is_obeyed_by_the_replay_too(model: Model, added: Callable[..., Any]) -> None:
    before, plain = model.identity, swept(model)
    inputs = pairs_for(model, 5)[0].condition("inserted")
    with added(model):
        recording = model.record(inputs, start=8)
        z = recording.z[0] * 0.5
        replayed = model.replay(recording, 0, z, logits_at="last")
        assert torch.equal(replayed, model.replay(recording, 0, z, logits_at="last", exact_forward=True))
        assert not torch.allclose(swept(model), plain, atol=1e-3)
        assert model.identity != before
        with pytest.raises(mi.ModelError, match=r"cannot \(hooks were added to it, .*1 hook, first .*mlp|edit"):
            mi.direct_effects(model, pairs_for(model, 5), **QUIET)
        lines, again = _self_check(model)
        assert again.replay.startswith("whole forward passes (hooks were added")
        (line,) = [line for line in lines if line.name == "S4"]
        assert line.status == "not applicable" and "hooks were added" in line.reason
    assert model.identity == before and model.stepper is not None
    assert torch.equal(swept(model), plain)


@pytest.mark.filterwarnings("ignore:.* is slow. hooks were added to it")
def test_a_checkpoint_made_with_a_hook_is_not_resumed_with_another_at_its_place(model: Model, tmp_path) -> None:
    with forward_hook(model):
        swept(model, checkpoint=tmp_path / "kept.jsonl")
    with forward_hook(model, by=3.0), pytest.raises(ValueError, match="hooks"):
        swept(model, checkpoint=tmp_path / "kept.jsonl")


def everything(model: Model) -> list[Any]:
    """Numbers of a run, of a sweep, of scores, of an engine's answers and of a self-check."""
    pairs = pairs_for(model, 5, 1)
    logits = model.run(pairs[0].condition("inserted")).logits
    scores = mi.score_heads(model, pairs, metrics=["lam", "entropy"], **QUIET).to_frame()["value"].to_numpy()
    accuracy = mi.evaluate_accuracy(model, problems()[:1], max_new_tokens=2, **QUIET).to_frame().to_csv()
    return [logits, swept(model), torch.tensor(scores), accuracy, check_model(model)]


def equal(a: list[Any], b: list[Any]) -> bool:
    same = lambda x, y: torch.equal(x.nan_to_num(), y.nan_to_num()) if isinstance(x, torch.Tensor) else x == y  # noqa: E731
    return all(same(x, y) for x, y in zip(a, b, strict=True))


def test_training_mode_changes_no_number_and_is_put_back(backend: str) -> None:
    """Where dropout makes every number random in it."""
    made = random_model("GPT-2", **dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.5))
    model = mi.load_model(SimpleNamespace(name="dropping", hf_model=made, tokenizer=word_tokenizer()), backend=backend)
    plain = everything(model)
    module = model.underlying._module if backend == "nnsight" else model.underlying
    module.train()
    assert equal(everything(model), plain)
    assert mi.wrap_model(model.underlying, tokenizer=model.tokenizer).stepper is not None
    assert all(part.training for part in module.modules())
    with pytest.raises(ZeroDivisionError):
        model.run(torch.arange(3), edits={"blocks.0.hook_mlp_out": lambda value: value / (1 // 0)})
    assert all(part.training for part in module.modules())


@pytest.mark.parametrize("model", ["nnsight", pytest.param("bridge", marks=pytest.mark.slow)], indirect=True)
def test_no_number_is_made_in_autocast_or_in_the_default_dtype(model: Model, tiny_model_dir) -> None:
    def found(of: Model) -> list[Any]:
        slow = of.info.backend == "bridge"
        return [of.checks, str(mi.certify_model(of, pairs_for(of, 5, 1), **QUIET)) if slow else "", *everything(of)]

    plain = found(model)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert equal(found(mi.load_model(tiny_model_dir("qwen2"), backend=model.info.backend)), plain)
        assert torch.is_autocast_enabled("cpu")
    torch.set_default_dtype(torch.bfloat16)
    try:
        assert equal(found(mi.load_model(tiny_model_dir("qwen2"), backend=model.info.backend)), plain)
    finally:
        torch.set_default_dtype(torch.float32)


def test_a_pass_computes_with_as_many_threads_as_its_products_are_worth(monkeypatch: pytest.MonkeyPatch) -> None:
    model = mi.load_model("demo")
    used: list[int] = []
    note = {"blocks.0.hook_mlp_out": lambda value: used.append(torch.get_num_threads())}
    product, before = 1024 * model.info.d_model * model.info.d_mlp, torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        for worth, expected in ((1, 1), (2, 2), (9, 3)):  # never more than the process has
            monkeypatch.setattr(memory, "PER_THREAD", product // worth)
            model.run(torch.arange(3), capture=note)
            assert used.pop() == expected == model.identity["computed_on"]["threads"]
            assert torch.get_num_threads() == 3
        with pytest.raises(ZeroDivisionError):
            model.run(torch.arange(3), capture={"blocks.0.hook_mlp_out": lambda value: 1 // 0})
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)
