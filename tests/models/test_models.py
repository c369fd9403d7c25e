"""Loading, wrapping and the self-check: what is accepted, what is refused and with which words."""

import json
import re
import shutil
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import needs_hooked_transformer, tiny_model, word_tokenizer
from models_under_test import hooked, loaded, pairs_for
from safetensors.torch import save_file

import mless_interp as mi
from mless_interp.models.attention_math import visibility
from mless_interp.models.info import Inputs, ModelError
from mless_interp.models.transformer_lens import bridge_from, has_hooked_transformer


@pytest.mark.skipif(has_hooked_transformer(), reason="HookedTransformer is installed")
def test_hooked_transformer_says_what_to_install_where_it_is_gone(tiny_model_dir: Any) -> None:
    with pytest.raises(ModelError, match=r'pip install "transformer-lens>=3.9,<4"'):
        mi.load_model(tiny_model_dir("llama"), backend="hooked_transformer")


@needs_hooked_transformer
def test_a_conversion_that_leaves_weights_over_is_refused(tiny_model_dir: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from transformer_lens.pretrained import weight_conversions

    convert = weight_conversions.convert_llama_weights

    def changed(*arguments: Any) -> Any:
        return {name: each for name, each in convert(*arguments).items() if name != "blocks.1.attn.W_O"}

    monkeypatch.setattr(weight_conversions, "convert_llama_weights", changed)
    with pytest.raises(ModelError, match="left 1 weights without a value or a place, first blocks.1"):
        mi.load_model(tiny_model_dir("llama"), backend="hooked_transformer")


def test_auto_falls_back_to_the_bridge_which_replays_by_whole_passes(tmp_path: Path) -> None:
    """A CodeGen, which has no converter, and known names for another order of queries, keys and values."""
    import transformers

    tokenizer = word_tokenizer()
    shape = {"n_embd": 64, "n_layer": 2, "n_head": 8, "n_positions": 128, "rotary_dim": 4}
    ids = {"bos_token_id": tokenizer.bos_token_id, "eos_token_id": tokenizer.eos_token_id}
    config = transformers.CodeGenConfig(vocab_size=len(tokenizer), **shape, **ids)
    transformers.CodeGenForCausalLM(config).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    model = mi.load_model(tmp_path)
    assert model.info.backend == "bridge" and model.checks.replay.startswith("whole forward passes")
    pairs = pairs_for(model, n_tokens=4, count=1)
    found = mi.patch_heads(model, pairs, progress=False)
    assert found.patched.shape == (1, 2, 8) and abs(found.effect).max() > 0
    assert "was off by" in model.checks.replay, "a description that is not true is found out"
    assert abs(mi.patch_heads(model, pairs, edit="knockout", progress=False).effect).max() > 0
    with pytest.raises(ModelError, match="cannot be continued layer by layer, which gradients need"):
        mi.attribute_heads(model, pairs, progress=False)


@needs_hooked_transformer
def test_a_hooked_transformer_of_your_own_is_welcome() -> None:
    mine = hooked(attn_only=False, d_mlp=16, n_ctx=64, normalization_type="LN").underlying
    before = {key: value.clone() for key, value in mine.state_dict().items()}
    model = mi.wrap_model(mine, name="mine", tokenizer=word_tokenizer())
    assert model.info.name == "mine" and model.checks.gap_difference < 1e-4, "learned positions follow position ids too"
    assert all(torch.equal(before[key], value) for key, value in mine.state_dict().items())
    assert not any(point.fwd_hooks for point in mine.hook_dict.values())
    assert model.quantised == "" and model.checks.by_layers and model.shows_rotated
    assert not model.gated_mlp(0).gated
    mine.tokenizer = word_tokenizer()
    again = mi.wrap_model(mine)
    assert again.tokenizer is mine.tokenizer and again.info.name == "wrapped HookedTransformer"


@needs_hooked_transformer
def test_a_saved_hooked_transformer_is_loaded_as_it_was(tmp_path: Path) -> None:
    shape = {"n_layers": 2, "n_heads": 2, "d_model": 8, "d_head": 4, "n_ctx": 5, "d_vocab": 9, "act_fn": "relu"}
    (tmp_path / "config.json").write_text(json.dumps(shape | {"attn_only": True, "normalization_type": None}))
    made, file, tokens = hooked(), tmp_path / "model.safetensors", torch.tensor([[1, 8, 3]])
    weights = {name: weight.clone() for name, weight in made.underlying.named_parameters()}
    save_file(weights, file)
    model = mi.load_model(tmp_path, tf32=False)
    assert torch.equal(model.run(tokens).logits, made.run(tokens).logits) and model.weights_hash == made.weights_hash
    assert model.info.loaded_from == model.info.name == str(tmp_path) and model.how.keywords["tf32"] is False
    refused = "holds a HookedTransformer: backend must be 'hooked_transformer', on one device"
    with pytest.raises(ValueError, match=refused):
        mi.load_model(tmp_path, backend="bridge")
    lacking = {name: weight for name, weight in weights.items() if name != "embed.W_E"}
    for others, first in ((weights | {"b": torch.ones(1)}, "b"), (lacking, "embed.W_E")):
        save_file(others, file)
        with pytest.raises(ModelError, match=f"1 weights are missing or too many, first {first}"):
            mi.load_model(tmp_path)


def test_what_a_bridge_cannot_take_is_named(tiny_model_dir: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from transformer_lens.model_bridge import TransformerBridge
    from transformers import AutoModelForCausalLM

    def fails(*given: Any, **options: Any) -> None:
        raise ValueError("no part" + " Available architectures: a, b" * bool(made.config.architectures))

    made = AutoModelForCausalLM.from_pretrained(tiny_model_dir("llama"))
    assert bridge_from(made, None, name="bare").tokenizer("reason").input_ids == word_tokenizer()("reason").input_ids
    monkeypatch.setattr(TransformerBridge, "boot_transformers", fails)
    for named, word in ((["LlamaForCausalLM"], ""), (["A", "B"], "A, B"), (None, "nothing")):
        made.config.architectures = named
        told = f" (its config names {word})" if word else ""
        said = f"TransformerBridge cannot take 'odd' (LlamaForCausalLM): no part{told}; try 'nnsight'"
        with pytest.raises(ModelError, match=re.escape(said)):
            bridge_from(made, None, name="odd")


def test_a_bridge_and_an_nnsight_model_of_your_own_are_welcome(tiny_model_dir: Any) -> None:
    from nnsight import TransformersModel
    from transformer_lens.model_bridge import TransformerBridge

    tokenizer = word_tokenizer()
    bridge = TransformerBridge.boot_transformers(str(tiny_model_dir("llama")), device="cpu")
    traced = TransformersModel(tiny_model("llama", tokenizer).eval(), tokenizer=tokenizer, task="text-generation")
    traced._module.set_attn_implementation("eager")
    ours = [mi.wrap_model(thing) for thing in (bridge, traced)]
    assert all(model.tokenizer("reason about /").input_ids == tokenizer("reason about /").input_ids for model in ours)
    tokens = torch.tensor([[5, 6, 7, 8]])
    assert torch.allclose(ours[0].run(tokens).logits, ours[1].run(tokens).logits, atol=1e-5)
    assert [model.info.backend for model in ours] == ["bridge", "nnsight"]
    torch.nn.init.zeros_(traced._module.model.layers[0].self_attn.q_proj.weight)  # scores of 0 are no pattern
    assert mi.wrap_model(traced).operations == ours[1].operations
    both = {"transformers": version("transformers"), "torch": version("torch")}
    for model, library in zip(ours, ("transformer-lens", "nnsight"), strict=True):
        assert model.info.versions == both | {library: version(library)}


def test_other_objects_cannot_be_wrapped() -> None:
    with pytest.raises(TypeError, match="takes a HookedTransformer, a TransformerBridge or an nnsight model"):
        mi.wrap_model(torch.nn.Linear(2, 2))
    native = type("TransformerBridge", (), {"original_model": torch.nn.Linear(1, 1)})()  # as boot_native makes it
    with pytest.raises(ModelError, match="holds a Linear and no Hugging Face model"):
        mi.wrap_model(native)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        (str(Path(__file__).with_name("test_modles.py")), {}, r"test_modles.py'.*did you mean test_models.py"),
        ("nobody/no-model", {}, "cannot load model 'nobody/no-model' from a local directory, 'demo', or a hub id"),
        ("demo", {"backend": "jax"}, "unknown backend 'jax'; choose one of auto, hooked_transformer, bridge, nnsight"),
        ("demo", {"backend": "bridge", "remote": True}, "remote needs backend='nnsight', got 'bridge'"),
        ("a/b", {"remote": "there"}, 'remote must be False, True or "local"'),
        ("a/b", {"remote": True, "device": "cpu"}, "remote=True takes a hub id, .*: it takes no device"),
        (Path("a"), {"remote": True}, "remote=True takes a hub id, whose weights lie elsewhere: .* is not one"),
        ("demo", {"backend": "hooked_transformer", "device_map": "auto"}, "need backend='nnsight' or 'bridge'"),
        ("dmo", {}, "or a hub id that could be reached .did you mean demo"),
        ("demo", {"dtype": "int8"}, "unknown dtype 'int8'; choose one of float32, float64"),
        ("a/b", {"remote": True, "device_map": "auto"}, "it takes no device, device_map or quantisation"),
        ("demo", {"backend": "hooked_transformer", "quantization_config": {}}, "need backend='nnsight' or 'bridge'"),
        ("demo", {"offload_folder": "a"}, "give device_map='auto' too"),
        ("demo", {"max_memory": {0: "1GiB"}}, "give device_map='auto' too"),
        ("demo", {"device": "cpu", "device_map": "auto"}, "give device or device_map, not both"),
        ("demo", {"backend": "bridge", "device_map": {"": "disk"}}, "none may lie on the disk"),
        ("demo", {"device": "hpu"}, "there is no device 'hpu' here"),
    ],
)
def test_what_cannot_be_loaded_is_named(name: Any, options: dict[str, Any], message: str, untyped: None) -> None:
    with pytest.raises(Exception, match=message):
        mi.load_model(name, **options)


def test_a_saved_word_level_tokenizer_survives_loading(tmp_path: Path, tiny_model_dir: Any) -> None:
    """For Qwen2, transformers 5 would rebuild a byte-level tokenizer whatever was saved."""
    folder = tmp_path / "words"
    shutil.copytree(tiny_model_dir("qwen2"), folder)
    for file in folder.glob("*token*"):
        file.unlink()
    tokenizer = word_tokenizer()
    tokenizer.save_pretrained(folder)
    model = mi.load_model(folder, backend="bridge")
    text = "Anna has 3 apples"
    assert model.tokenizer.encode(text) == tokenizer.encode(text)


def test_visibility_by_hand() -> None:
    four = torch.zeros(1, 4)
    window = visibility(Inputs(four), 2)[0, 0].int().tolist()
    assert window == [[1, 0, 0, 0], [1, 1, 0, 0], [0, 1, 1, 0], [0, 0, 1, 1]]
    gap = visibility(Inputs(four, torch.tensor([[0, 1, 5, 6]])), 2)[0, 0].int().tolist()
    assert gap == [[1, 0, 0, 0], [1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 1, 1]]
    hidden = torch.ones(1, 1, 4, 4, dtype=torch.bool)
    hidden[..., 2, :] = False
    assert visibility(Inputs(four, None, hidden))[0, 0, 2].tolist() == [False, False, True, False], "it sees itself"


def test_a_twin_has_the_models_shape_and_other_weights(tiny_model_dir: Any) -> None:
    model = loaded(tiny_model_dir("gemma3"), "bridge")
    state = torch.random.get_rng_state()
    twin, again, other = (mi.untrained_twin(model, seed) for seed in (1, 1, 2))
    assert torch.equal(torch.random.get_rng_state(), state), "no global state"
    for name in "backend n_layers n_heads n_key_value_heads d_model d_vocab windows dtype attention".split():
        assert getattr(twin.info, name) == getattr(model.info, name), name
    assert twin.weights_hash == again.weights_hash != other.weights_hash and twin.weights_hash != model.weights_hash
    assert not torch.allclose(
        twin.run(torch.arange(4, 20)[None]).logits, model.run(torch.arange(4, 20)[None]).logits, atol=0.1
    )
    assert mi.score_heads(twin, pairs_for(model), metrics="lam", progress=False).of("lam").shape == (3, 3, 8)


@needs_hooked_transformer
def test_a_wrapped_hooked_transformers_twin_is_drawn_by_its_own_initialisation() -> None:
    model = hooked()
    twin, again = mi.untrained_twin(model), mi.untrained_twin(model)
    assert type(twin.underlying).__name__ == "HookedTransformer" and twin.underlying is not model.underlying
    assert twin.weights_hash == again.weights_hash != model.weights_hash
