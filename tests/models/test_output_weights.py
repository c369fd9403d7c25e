"""W_O per query head on every backend: what heads write adds up to what attention adds, before any norm of it."""

from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import ARCHITECTURES, BACKENDS, word_tokenizer
from models_under_test import loaded, pairs_for

from mless_interp.models.info import ModelError
from mless_interp.models.load import load_model
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
        weights = model.output_weights(layer)
        assert tuple(weights.shape) == (model.info.n_heads, model.info.d_head, model.info.d_model)
        assert not weights.requires_grad
        heads = torch.einsum("bthd,hdm->bthm", z, weights).sum(2)
        output = model.attention_output(layer)
        torch.testing.assert_close(output.before_norm(z), heads if output.bias is None else heads + output.bias)
        assert (output.norm is None) == (architecture != "gemma3")
        whole = heads if output.norm is None else output.norm(output.before_norm(z))
        torch.testing.assert_close(whole, wrote, rtol=1e-4, atol=1e-5)
        if output.norm is not None:
            assert (heads - wrote).abs().max() > 0.1, "the norm is not a detail"


@pytest.mark.parametrize("backend", ["bridge", "nnsight"])
def test_an_output_bias_belongs_to_no_head(backend: str, tmp_path: Path) -> None:
    """A Llama with biases in its attention, which HookedTransformer's converter does not take."""
    import transformers

    tokenizer = word_tokenizer()
    config = transformers.LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        attention_bias=True,
    )
    hf_model = transformers.LlamaForCausalLM(config)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, weight in hf_model.named_parameters():
            if name.endswith("bias"):
                weight.normal_(0.0, 0.5, generator=generator)
    hf_model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    model = load_model(tmp_path, backend=backend)
    tokens = torch.arange(6, 12)[None]
    names = [site(0, name) for name in ("attn.hook_z", "hook_attn_out")]
    captured = model.run(tokens, capture=dict.fromkeys(names), logits_at="none").captured
    output = model.attention_output(0)
    assert output.bias is not None and float(output.bias.abs().max()) > 0.1
    torch.testing.assert_close(output.before_norm(captured[names[0]]), captured[names[1]], rtol=1e-4, atol=1e-5)


def test_a_norm_after_attention_is_found_where_another_family_has_it(tmp_path: Path) -> None:
    """OLMo 2 norms attention's output too, under the name of another family's norm before the MLP."""
    import transformers

    tokenizer = word_tokenizer()
    config = transformers.Olmo2Config(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=64,
        pad_token_id=1,
        bos_token_id=3,
        eos_token_id=2,
    )
    torch.manual_seed(0)
    transformers.Olmo2ForCausalLM(config).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    model = load_model(tmp_path, backend="bridge")
    captured = model.run(
        torch.arange(6, 12)[None],
        capture={site(0, name): None for name in ("attn.hook_z", "hook_resid_pre", "hook_resid_mid")},
        logits_at="none",
    ).captured
    output = model.attention_output(0)
    assert output.norm is not None
    wrote = output.norm(output.before_norm(captured[site(0, "attn.hook_z")]))
    added = captured[site(0, "hook_resid_mid")] - captured[site(0, "hook_resid_pre")]
    torch.testing.assert_close(wrote, added, rtol=1e-4, atol=1e-5)


def test_a_layer_out_of_range_is_named(tiny_model_dir: Any) -> None:
    model = loaded(tiny_model_dir("qwen2"), "bridge")
    for layer in (-1, 3):
        with pytest.raises(ValueError, match=rf"layer {layer} is out of range \(zero-based\): 0 to 2"):
            model.output_weights(layer)


def test_weights_that_cannot_be_read_are_an_error(tiny_model_dir: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    model = loaded(tiny_model_dir("qwen2"), "bridge")
    monkeypatch.setattr(type(model), "_attention_output", lambda self, layer: None)
    with pytest.raises(ModelError, match=r"layer 1 has no output weights of shape \[8, 8, 64\].*found: none"):
        model.output_weights(1)
