"""What decoders are made of: parts found by name, heads whose outputs add up, logits in float32."""

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from architectures_under_test import folder_of, random_model, with_lora
from conftest import tiny_model, word_tokenizer
from models_under_test import loaded, pairs_for, without_stepper
from safetensors.torch import load_file, save_file

import mless_interp as mi
from mless_interp.models import traced_ops
from mless_interp.models.architectures import linear
from mless_interp.models.attention_math import fused
from mless_interp.models.checks import check_model
from mless_interp.models.info import Inputs, ModelError


@pytest.mark.parametrize("kind", [torch.nn.Linear, transformers.pytorch_utils.Conv1D])
def test_the_fast_product_of_a_layer_is_its_own(kind: Any) -> None:
    """Also of rows that lie apart, which GPT-2's own does not take; with gradients, hooks and in float64 the layer is asked."""
    generator, gelu = torch.Generator().manual_seed(0), transformers.activations.ACT2FN["gelu_new"]
    layer, x = kind(4, 4), torch.randn(2, 5, 4, generator=generator)
    torch.nn.init.normal_(layer.bias, generator=generator)
    gradients = [torch.autograd.grad(made.square().sum(), layer.weight)[0] for made in (linear(layer, x), layer(x))]
    assert torch.equal(*gradients)
    torch.testing.assert_close(fused(gelu)(9 * x), gelu(9 * x), rtol=1e-5, atol=1e-6)
    with torch.no_grad():
        torch.testing.assert_close(linear(layer, x[:, 1:4]), layer(x)[:, 1:4])
        hook = layer.register_forward_hook(lambda module, args, output: output * 0)
        assert not linear(layer, x).any()
        hook.remove()
        assert torch.equal(linear(layer.double(), x.double()), layer(x.double()))


def traced_peft_model() -> Any:
    import nnsight

    adapted = with_lora(random_model("Llama", attn_implementation="eager"))
    return nnsight.TransformersModel(adapted, tokenizer=word_tokenizer(), task="text-generation")


@pytest.mark.parametrize("given", ["bridge", "nnsight", "wrapped"])
def test_an_adapter_that_is_not_merged_writes_what_the_merged_one_writes(given: str) -> None:
    merged, whole = loaded(folder_of("Llama, LoRA merged"), "nnsight"), folder_of("Llama, LoRA")
    model = (
        mi.wrap_model(traced_peft_model(), tokenizer=word_tokenizer()) if given == "wrapped" else loaded(whole, given)
    )
    for layer in range(model.info.n_layers):
        mine, theirs = (each.attention_output(layer) for each in (model, merged))
        torch.testing.assert_close(mine.weights, theirs.weights, rtol=1e-4, atol=1e-5)
    mine, theirs = (
        mi.direct_effects(each, pairs_for(merged, count=1), ["L0H1", "L2H7"], progress=False)
        for each in (model, merged)
    )
    np.testing.assert_allclose(mine.direct, theirs.direct, rtol=1e-3, atol=1e-4)


def test_which_adapters_act_is_part_of_what_a_model_is(tmp_path: Path) -> None:
    traced = traced_peft_model()
    model, base = mi.wrap_model(traced, tokenizer=word_tokenizer()), loaded(folder_of("Llama"), "nnsight")
    pairs, options = pairs_for(model, count=1), {"heads": ["L0H1"], "progress": False}
    on = model.identity
    adapted = mi.patch_heads(model, pairs, checkpoint=tmp_path / "on.jsonl", **options).patched
    with traced._module.disable_adapter():
        assert model.identity["weights"] != on["weights"]
        with pytest.raises(ValueError, match="made with other settings: weights"):
            mi.patch_heads(model, pairs, checkpoint=tmp_path / "on.jsonl", **options)
        torch.testing.assert_close(model.attention_output(0).weights, base.attention_output(0).weights)
        off = mi.patch_heads(model, pairs, **options).patched
    assert model.identity == on and np.nanmax(np.abs(adapted - off)) > 0.01
    for layer in model.hf_model.modules():
        if hasattr(layer, "set_scale"):
            layer.set_scale("default", 0.5)
    assert model.identity["weights"] != on["weights"]


def test_a_layer_whose_attention_adds_something_else_is_not_taken_for_its_weights(model: Any) -> None:
    hooked = model.hf_model.model.layers[1].self_attn.o_proj.register_forward_hook(lambda part, given, made: made * 2)
    try:
        with pytest.warns(UserWarning, match="only whole passes obey"):
            model = model.checked(check_model(model))
    finally:
        hooked.remove()
    assert model.checks.output_error == pytest.approx(0.5)
    with pytest.raises(ModelError, match=r"what attention adds is not z W_O \+ b \(off by 0.5 of the largest value\)"):
        model.attention_output(0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("base lacks a weight", r"1 missing \(model.layers.1.self_attn.o_proj.weight\)"),
        ("adapter lacks a weight", r"its adapter' are not those .* 1 missing \(model.layers.0.*lora_B"),
        ("adapter alone", r"holds an adapter without its model: .*merge_and_unload"),
    ],
)
def test_an_adapter_in_a_folder_is_loaded_whole_or_not_at_all(change: str, message: str, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(folder_of("Llama, LoRA"), folder)
    if change.endswith("lacks a weight"):
        name = "model.safetensors" if change.startswith("base") else "adapter_model.safetensors"
        weights = load_file(folder / name)
        lost = next(key for key in sorted(weights) if "1.self_attn.o_proj.weight" in key or "lora_B" in key)
        save_file({key: value for key, value in weights.items() if key != lost}, folder / name, {"format": "pt"})
    else:
        (folder / "config.json").unlink()
    with pytest.raises(ModelError, match=message):
        mi.load_model(folder, backend="nnsight")


def test_an_adapter_in_memory_is_refused_with_what_to_do() -> None:
    made = SimpleNamespace(name="mine", hf_model=with_lora(random_model("Llama")), tokenizer=word_tokenizer())
    with pytest.raises(ModelError, match=r"'mine' has an adapter that is not merged.*merge_and_unload.*wrap_model"):
        mi.load_model(made)


TOKENS = torch.arange(14)[None]


def finer(logits: torch.Tensor, dtype: torch.dtype) -> float:
    """The share of numbers that this precision cannot hold."""
    return float((logits != logits.to(dtype).to(logits.dtype)).float().mean())


@pytest.mark.parametrize(("architecture", "dtype"), [("llama", "float16"), ("gemma3", "bfloat16")])
def test_half_precision_does_not_round_logits(dtype: str, backend: str, model: Any) -> None:
    run = model.run(TOKENS, logits_at=[9, 12])
    recording = model.record(Inputs(TOKENS), start=8, logits_at="none")
    by_layers = model.replay(recording, 1, recording.z[1], logits_at=[9, 12])
    whole = without_stepper(model).replay(recording, 1, recording.z[1], logits_at=[9, 12])
    for logits in (run.logits, by_layers, whole):
        assert logits.dtype == torch.float32 and finer(logits, getattr(torch, dtype)) > 0.9
    assert torch.equal(whole, run.logits) and model.checks.by_layers


def test_a_soft_cap_comes_after_and_is_float32_too(backend: str) -> None:
    """Logits near the cap differ by less than bfloat16 can tell."""
    weights = tiny_model("gemma3", word_tokenizer())
    weights.config.final_logit_softcapping = 2.0
    made = SimpleNamespace(name="capped", hf_model=weights, tokenizer=word_tokenizer())
    half, full = (mi.load_model(made, backend=backend, dtype=dtype) for dtype in ("bfloat16", "float32"))
    logits = half.run(TOKENS).logits
    assert finer(logits, torch.bfloat16) > 0.9 and 1.5 < float(logits.abs().max()) <= 2.0
    assert float((logits - full.run(TOKENS).logits).abs().max()) < 0.1


def test_blocks_and_gradients_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    module = torch.nn.Linear(8, 31, dtype=torch.bfloat16)
    x = torch.randn(2, 3, 8, requires_grad=True)
    exact = x @ module.weight.float().T + module.bias.float()
    (wanted,) = torch.autograd.grad(exact.square().sum(), x)
    monkeypatch.setattr(traced_ops, "BLOCK", 40)  # five rows at a time
    made = traced_ops.unembedded(module, x)
    assert torch.allclose(made, exact, atol=1e-6)
    (found,) = torch.autograd.grad(made.square().sum(), x)
    assert torch.allclose(found, wanted, rtol=1e-5)


@pytest.mark.parametrize(
    ("dtype", "least"), [("float64", 1e-9), ("float32", 1e-5), ("bfloat16", 0.0), ("float16", 0.0)]
)
def test_what_is_taken_for_rounding_is_measured(dtype: str, least: float) -> None:
    model, unmeasured = mi.load_model("demo", dtype=dtype), least or 1e-2
    assert model.resolution == max(least, model.checks.resolution)
    assert model.checked(None).resolution == unmeasured
    eps = torch.finfo(getattr(torch, dtype)).eps
    most = torch.finfo(torch.float32).eps if model.float32_softmax and dtype == "float64" else eps
    assert eps < model.checks.resolution < 100 * most, "a few of the smallest steps"
