"""W_O per query head on every backend: what heads write adds up to what attention adds, before any norm of it."""

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from architectures_under_test import folder_of, random_model, with_lora
from conftest import ARCHITECTURES, BACKENDS, word_tokenizer
from models_under_test import loaded, pairs_for
from safetensors.torch import load_file, save_file

import mless_interp as mi
from mless_interp.ground_truth.certificate import certify_model
from mless_interp.models.checks import check_model
from mless_interp.models.info import ModelError
from mless_interp.models.load import load_model, wrap_model
from mless_interp.models.sites import site


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("backend", BACKENDS)
def test_heads_add_up_to_what_attention_writes(architecture: str, backend: str, tiny_model_dir: Any) -> None:
    model = loaded(tiny_model_dir(architecture), backend)
    (pair,) = pairs_for(model, count=1)
    for layer in range(model.info.n_layers):
        names = [site(layer, name) for name in ("attn.hook_z", "hook_attn_out")]
        captured = model.run(pair.inserted.tokens, capture=dict.fromkeys(names), logits_at="none").captured
        z, wrote = captured[names[0]], captured[names[1]]
        output = model.attention_output(layer)
        assert tuple(output.weights.shape) == (model.info.n_heads, model.info.d_head, model.info.d_model)
        assert not output.weights.requires_grad
        heads = torch.einsum("bthd,hdm->btm", z, output.weights)
        torch.testing.assert_close(output.before_norm(z), heads if output.bias is None else heads + output.bias)
        assert (output.norm is None) == (architecture != "gemma3")
        whole = heads if output.norm is None else output.norm(output.before_norm(z))
        torch.testing.assert_close(whole, wrote, rtol=1e-4, atol=1e-5)
        assert output.norm is None or (heads - wrote).abs().max() > 0.1, "the norm is not a detail"


def traced_peft_model() -> Any:
    import nnsight

    adapted = with_lora(random_model("Llama", attn_implementation="eager"))
    return nnsight.TransformersModel(adapted, tokenizer=word_tokenizer(), task="text-generation")


@pytest.mark.parametrize("given", ["bridge", "nnsight", "wrapped"])
def test_an_adapter_that_is_not_merged_writes_what_the_merged_one_writes(given: str) -> None:
    merged, whole = loaded(folder_of("Llama, LoRA merged"), "nnsight"), folder_of("Llama, LoRA")
    model = wrap_model(traced_peft_model(), tokenizer=word_tokenizer()) if given == "wrapped" else loaded(whole, given)
    pairs, options = pairs_for(merged, count=2), {"progress": False}
    for layer in range(model.info.n_layers):
        mine, theirs = (each.attention_output(layer) for each in (model, merged))
        torch.testing.assert_close(mine.weights, theirs.weights, rtol=1e-4, atol=1e-5)
    asked: tuple[Any, ...] = (
        lambda m: mi.direct_effects(m, pairs, ["L0H1", "L2H7"], **options).direct,
        lambda m: mi.decompose_attention(m, pairs, contrasts=["content"], **options).of("share"),
        lambda m: mi.what_it_writes(m, pairs, ["L1H3"], **options).alike,
    )
    for ask in asked:
        np.testing.assert_allclose(ask(model), ask(merged), rtol=1e-3, atol=1e-4)


def test_which_adapters_act_is_part_of_what_a_model_is(tmp_path: Path) -> None:
    traced = traced_peft_model()
    model, base = wrap_model(traced, tokenizer=word_tokenizer()), loaded(folder_of("Llama"), "nnsight")
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


def test_a_layer_whose_attention_adds_something_else_is_not_taken_for_its_weights(tiny_model_dir: Any) -> None:
    model = loaded(tiny_model_dir("qwen2"), "bridge")
    hooked = model.hf_model.model.layers[1].self_attn.o_proj.register_forward_hook(lambda part, given, made: made * 2)
    try:
        with pytest.warns(UserWarning, match="only whole passes obey"):
            model = model.checked(check_model(model))
    finally:
        hooked.remove()
    assert model.checks.output_error == pytest.approx(0.5)
    with pytest.raises(ModelError, match=r"what attention adds is not z W_O \+ b \(off by 0.5 of the largest value\)"):
        model.attention_output(0)
    lines = {line.name: line for line in certify_model(model, pairs_for(model, count=1), progress=False).verdicts}
    assert lines["S5"].status == "not applicable"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("base lacks a weight", r"1 missing \(model.layers.1.self_attn.o_proj.weight\)"),
        ("adapter lacks a weight", r"its adapter' are not those .* 1 missing \(model.layers.0.*lora_B"),
        ("adapter has no safetensors", "cannot load model .*adapter_model.safetensors"),
        ("adapter alone", r"holds an adapter without its model: .*merge_and_unload"),
    ],
)
def test_an_adapter_in_a_folder_is_loaded_whole_or_not_at_all(change: str, message: str, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(folder_of("Llama, LoRA"), folder)
    name = "model.safetensors" if change.startswith("base") else "adapter_model.safetensors"
    if change.endswith("lacks a weight"):
        weights = load_file(folder / name)
        lost = next(key for key in sorted(weights) if "1.self_attn.o_proj.weight" in key or "lora_B" in key)
        save_file({key: value for key, value in weights.items() if key != lost}, folder / name, {"format": "pt"})
    else:
        (folder / ("config.json" if change == "adapter alone" else name)).unlink()
    with pytest.raises(ModelError, match=message):
        load_model(folder, backend="nnsight")


def test_an_adapter_in_memory_is_refused_with_what_to_do() -> None:
    made = SimpleNamespace(name="mine", hf_model=with_lora(random_model("Llama")), tokenizer=word_tokenizer())
    with pytest.raises(ModelError, match=r"'mine' has an adapter that is not merged.*merge_and_unload.*wrap_model"):
        load_model(made)
