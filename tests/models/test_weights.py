"""Weights: what does not fit, is not finite, is damaged or lies elsewhere is refused; what is loaded is known by a hash."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers
from conftest import BACKENDS, tiny_model, word_tokenizer
from safetensors.torch import load_file, save_file

import mless_interp as mi
from mless_interp.answers.complete import generate_completions
from mless_interp.answers.decoding import Request
from mless_interp.models.base import Model
from mless_interp.models.info import ModelError
from mless_interp.models.inputs import Inputs
from mless_interp.models.loaded_weights import WeightsHash, refuse_not_finite
from mless_interp.models.sites import site
from mless_interp.models.transformer_lens import has_hooked_transformer

State = dict[str, torch.Tensor]


@pytest.fixture
def rewritten(tiny_model_dir: Any, tmp_path: Path) -> Callable[..., Path]:
    """A copy of a tiny model's folder whose weights `change` has changed."""

    def folder_of(change: Callable[[State], Any], architecture: str = "llama") -> Path:
        folder = tmp_path / "changed"
        shutil.copytree(tiny_model_dir(architecture), folder)
        weights = load_file(folder / "model.safetensors")
        change(weights)
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
        return folder

    return folder_of


def one_line(error: pytest.ExceptionInfo[Any]) -> str:
    assert "\n" not in str(error.value)
    return str(error.value)


def drop(*parts: str) -> Callable[[State], None]:
    return lambda state: [state.pop(key) for key in list(state) if any(part in key for part in parts)] and None


def rename(state: State) -> None:
    for key in list(state):
        state[f"other.{key}"] = state.pop(key)


def reshape(state: State) -> None:
    state["model.layers.1.mlp.up_proj.weight"] = torch.zeros(3, 64)


STRANGE = {
    "a layer missing": (drop("layers.2."), r"missing \(model.layers.2"),
    "every name changed": (rename, r"missing \(.*unexpected \(other\."),
    "of another shape": (
        reshape,
        r"1 of another shape \(model.layers.1.mlp.up_proj.weight is \[3, 64\] for \[128, 64\]\)",
    ),
}


@pytest.mark.parametrize("case", STRANGE)
def test_weights_that_do_not_fit_are_refused_by_name(
    case: str, rewritten: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    change, message = STRANGE[case]
    folder = rewritten(change)
    capfd.readouterr()
    with pytest.raises(ModelError, match=f"are not those of the .*ForCausalLM in its config: .*{message}") as error:
        mi.load_model(folder)
    assert "save_pretrained" in one_line(error) and capfd.readouterr().err == ""


def same_logits(model: Model, hf_model: Any) -> None:
    tokens = torch.arange(4, 14)[None]
    with torch.no_grad():
        torch.testing.assert_close(model.run(tokens).logits, hf_model(tokens).logits, rtol=1e-4, atol=1e-5)


def test_a_gpt2_of_old_is_whole_without_its_prefix(tmp_path: Path) -> None:
    """Saved with its masks, and as a base model (no `transformer.` before its names, no output layer: that is tied)."""
    tokenizer = word_tokenizer()
    config = transformers.GPT2Config(
        vocab_size=len(tokenizer), n_embd=32, n_layer=2, n_head=4, n_positions=64, bos_token_id=3, eos_token_id=2
    )
    torch.manual_seed(0)
    hf_model = transformers.GPT2LMHeadModel(config).eval()
    hf_model.transformer.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    state = load_file(tmp_path / "model.safetensors")
    for layer in range(2):
        state[f"h.{layer}.attn.bias"] = torch.ones(64, 64).tril().bool()[None, None]
        state[f"h.{layer}.attn.masked_bias"] = torch.tensor(-1e4)
    save_file(state, tmp_path / "model.safetensors", metadata={"format": "pt"})
    same_logits(mi.load_model(tmp_path, backend="bridge"), hf_model)


SPOILT = {
    "layers.1.self_attn.q_proj.bias": float("nan"),
    "layers.0.mlp.down_proj.weight": float("inf"),
    "embed_tokens.weight": -float("inf"),  # its last row, which no probe reads
}


@pytest.mark.parametrize("place", SPOILT)
def test_one_number_that_is_none_is_refused(place: str, rewritten: Any) -> None:
    bad = SPOILT[place]

    def spoil(state: State) -> None:
        state[f"model.{place}"].view(-1)[-1] = bad

    n_nan, n_inf = (1, 0) if bad != bad else (0, 1)
    message = rf"damaged: model.{place} holds NaN {n_nan} times and infinity {n_inf} times \(as float32\)"
    with pytest.raises(ModelError, match=message) as error:
        mi.load_model(rewritten(spoil, "qwen2"), backend="bridge")
    one_line(error)


@pytest.mark.parametrize("backend", BACKENDS)
def test_it_is_refused_when_wrapped(backend: str, tiny_model_dir: Any) -> None:
    mine = mi.load_model(tiny_model_dir("qwen2"), backend=backend).underlying
    next((mine._module if backend == "nnsight" else mine).parameters()).data.view(-1)[-1] = float("nan")
    with pytest.raises(ModelError, match=r"the weights of 'mine' are damaged: .* holds NaN \d times"):
        mi.wrap_model(mine, name="mine")


def test_buffers_are_looked_at_too_but_a_mask_may_hold_infinities() -> None:
    module = torch.nn.Linear(2, 2)
    module.register_buffer("mask", torch.tensor([0.0, -torch.inf]))
    refuse_not_finite(module, name="mine")
    module.register_buffer("scale", torch.tensor([torch.inf]), persistent=False)
    with pytest.raises(ModelError, match="scale holds NaN 0 times and infinity 1 times"):
        refuse_not_finite(module, name="mine")
    module.scale = torch.ones(1)
    module.mask[0] = torch.nan
    with pytest.raises(ModelError, match="mask holds NaN 1 times"):
        refuse_not_finite(module, name="mine")


def cut_weights(folder: Path) -> None:
    data = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(data[: len(data) // 2])


def only_pickled(folder: Path) -> None:
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()


def pickled_by_index(folder: Path) -> None:
    only_pickled(folder)
    index = {"metadata": {}, "weight_map": {"lm_head.weight": "pytorch_model.bin"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def text(name: str, what: str) -> Callable[[Path], Any]:
    return lambda folder: (folder / name).write_text(what)


def config(**changes: Any) -> Callable[[Path], Any]:
    def change(folder: Path) -> None:
        path = folder / "config.json"
        found = json.loads(path.read_text()) | changes
        path.write_text(json.dumps(found))

    return change


def gone(*patterns: str) -> Callable[[Path], Any]:
    return lambda folder: [path.unlink() for pattern in patterns for path in folder.glob(pattern)] and None


BROKEN: dict[str, tuple[Callable[[Path], Any], str]] = {
    "truncated weights": (cut_weights, "cannot load model .* from this directory: "),
    "only .bin": (only_pickled, "cannot load model .*no file named model.safetensors"),
    "index of pickled weights": (pickled_by_index, "names 'pytorch_model.bin': weights are read from safetensors only"),
    "config no JSON": (text("config.json", "{"), "is missing or damaged, it holds no JSON"),
    "unknown model type": (config(model_type="nonsense"), "cannot load .*nonsense"),
    "another size": (
        config(intermediate_size=96),
        r"another shape .*mlp.down_proj.weight is \[64, 128\] for \[64, 96\]",
    ),
    "tokenizer of another kind": (text("tokenizer.json", "{}"), "cannot load the tokenizer of"),
    "no tokenizer": (gone("*token*"), "holds no tokenizer .*tokenizer.save_pretrained"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_folder_is_refused_on_one_line(
    case: str, tiny_model_dir: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "broken"
    shutil.copytree(tiny_model_dir("llama"), folder)
    change, message = BROKEN[case]
    change(folder)
    capfd.readouterr()
    with pytest.raises(ModelError, match=message) as error:
        mi.load_model(folder, backend="bridge")
    assert str(folder) in one_line(error) and capfd.readouterr().err == ""


@pytest.mark.slow
def test_a_hub_s_id_is_read_from_its_cache_without_a_network(tiny_model_dir: Any, tmp_path: Path) -> None:
    repository = tmp_path / "models--a--b"
    shutil.copytree(tiny_model_dir("llama"), repository / "snapshots" / "0123")
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("0123")
    code = "import mless_interp as mi; print(mi.load_model('a/b', backend='bridge').weights_hash)"
    here = {**os.environ, "HF_HUB_CACHE": str(tmp_path), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=here, check=False)
    assert done.stdout.strip() == mi.load_model(tiny_model_dir("llama")).weights_hash, done.stderr
    pickled_by_index(repository / "snapshots" / "0123")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=here, check=False)
    assert "names 'pytorch_model.bin': weights are read from safetensors only" in done.stderr


def in_memory() -> SimpleNamespace:
    tokenizer = word_tokenizer()
    return SimpleNamespace(name="mine", hf_model=tiny_model("gemma3", tokenizer), tokenizer=tokenizer)


@pytest.mark.slow
def test_the_same_weights_have_one_hash_on_every_backend_and_in_memory(tiny_model_dir: Any) -> None:
    backends = ["bridge", "nnsight", *(["hooked_transformer"] if has_hooked_transformer() else [])]
    loaded = [mi.load_model(tiny_model_dir("gemma3"), backend=backend) for backend in backends]
    loaded.append(mi.load_model(in_memory(), backend="bridge"))
    hashes = {model.info.weights_hash for model in loaded}
    assert len(hashes) == 1 and str(hashes.pop()).startswith("xxh3:")
    assert all(model.weights_hash == model.info.weights_hash == model.identity["weights"] for model in loaded)
    assert all(model.identity["toolkit"] == mi.__version__ for model in loaded)
    half = mi.load_model(tiny_model_dir("gemma3"), backend="bridge", dtype="bfloat16")
    assert half.weights_hash != loaded[0].weights_hash


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("way", ["in place", "by .data", "another tensor"])
def test_weights_changed_after_loading_are_another_model(backend: str, way: str, tiny_model_dir: Any) -> None:
    model = mi.load_model(tiny_model_dir("llama"), backend=backend)
    weight = next(weight for weight in model.weights.parameters() if weight.dim() >= 2)
    kept = weight.detach().clone()
    with torch.no_grad():
        if way == "in place":
            weight[0, 0] += 1
        elif way == "by .data":
            weight.data[0, 0] += 1
        else:
            weight.data = weight + 1
    assert model.weights_hash not in (None, model.info.weights_hash)
    assert model.identity["weights"] == model.weights_hash == mi.provenance(model)["model"]["weights_hash"]
    weight.data.copy_(kept)
    assert model.weights_hash == model.info.weights_hash, "and back"


def test_offloaded_weights_are_brought_to_be_looked_at(tiny_model_dir: Any, rewritten: Any) -> None:
    places = {"model.embed_tokens": "cpu", "model.layers": "disk", "model.norm": "cpu", "model.rotary_emb": "cpu"}
    options = {"backend": "nnsight", "device_map": {**places, "lm_head": "disk"}}
    away = mi.load_model(tiny_model_dir("llama"), **options)
    assert any(weight.is_meta for weight in away.weights.parameters())
    assert away.weights_hash == mi.load_model(tiny_model_dir("llama"), backend="nnsight").weights_hash

    def spoil(state: State) -> None:
        state["model.layers.1.self_attn.q_proj.weight"][0, 0] = torch.nan

    with pytest.raises(ModelError, match="q_proj.weight holds NaN 1 times"):
        mi.load_model(rewritten(spoil), **options)


def test_weights_that_lie_elsewhere_are_read_again_only_if_a_write_was_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    from mless_interp.models import loaded_weights as weights

    module, read = torch.nn.Linear(3, 3), []
    digest = weights._digest
    monkeypatch.setattr(weights, "_digest", lambda tensor: read.append(tensor) or digest(tensor))
    hashing = WeightsHash()
    monkeypatch.setattr(torch.Tensor, "is_cpu", False)
    first = hashing.of(module)
    assert len(read) == 2 and hashing.of(module) == first and len(read) == 2
    with torch.no_grad():
        module.bias += 1
    assert hashing.of(module) != first and len(read) == 3


def test_a_checkpoint_of_other_weights_is_refused(tiny_model_dir: Any, rewritten: Any, tmp_path: Path) -> None:
    from models_under_test import pairs_for

    model = mi.load_model(tiny_model_dir("llama"), backend="bridge")
    checkpoint = tmp_path / "checkpoint.jsonl"
    found = mi.score_heads(model, pairs_for(model, count=2), checkpoint=checkpoint, progress=False)
    assert found.settings["weights"] == model.weights_hash and found.settings["toolkit"] == mi.__version__

    def turn(state: State) -> None:
        state["model.layers.1.mlp.up_proj.weight"][0, 0] += 1e-4

    other = mi.load_model(rewritten(turn), backend="bridge")
    with pytest.raises(ValueError, match="other settings: (model was|weights was 'xxh3:)"):
        mi.score_heads(other, pairs_for(other, count=2), checkpoint=checkpoint, progress=False)


@pytest.mark.slow
@pytest.mark.parametrize("backend", BACKENDS)
def test_two_threads_may_use_one_model(backend: str, tiny_model_dir: Any) -> None:
    """One edits a layer and hides keys, the other runs plainly, replays, and completes."""
    model = mi.load_model(tiny_model_dir("llama"), backend=backend)
    again = mi.wrap_model(model.underlying, tokenizer=model.tokenizer)
    tokens = torch.arange(4, 24)[None]
    mask = torch.ones(1, 1, 20, 20, dtype=torch.bool)
    mask[..., 10:, 3:8] = False
    edits = {site(1, "mlp.hook_post"): torch.zeros_like, site(0, "attn.hook_z"): lambda z: 2 * z}

    def edited() -> Any:
        return model.run(Inputs(tokens, None, mask), edits=edits).logits

    def plain() -> Any:
        recording = again.record(Inputs(tokens), start=6, logits_at="all")
        return recording.logits, again.replay(recording, 1, recording.z[1], logits_at="all")

    def completed() -> Any:
        request = Request(tuple(range(4, 24)), "a", (3, 8))
        done = generate_completions(again, [request], max_new_tokens=3, knockout=[mi.Head(1, 2)], keep_logits=True)
        return done["a"].logits

    works = (edited, plain, completed)
    expected = [work() for work in works]
    with ThreadPoolExecutor(len(works)) as pool:
        gave = [pool.submit(lambda work=work: [work() for _ in range(8)]) for work in works]
    for wanted, found in zip(expected, gave, strict=True):
        for each in found.result(120):
            torch.testing.assert_close(each, wanted, rtol=0, atol=0)
