"""Weights: what does not fit, is not finite, is damaged or lies elsewhere is refused; what is loaded is known by a hash."""

import copy
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

import numpy as np
import pytest
import torch
from architectures_under_test import random_model
from conftest import BACKENDS, qwen2_tokenizer, tiny_model, word_tokenizer
from files_under_test import save_at
from safetensors.torch import load_file, save_file
from torch import nn

import mless_interp as mi
from mless_interp.models import weights as looked_at
from mless_interp.models.base import Model
from mless_interp.models.info import Inputs, ModelError
from mless_interp.models.sites import site
from mless_interp.models.weights import WeightsHash, config_hash, refuse_not_finite
from mless_interp.runtime.store import provenance

State = dict[str, torch.Tensor]
Change = Callable[[Path], Any]
TOKENS = torch.tensor([[5, 9, 7, 12, 6, 20, 11]])


def state(change: Callable[[State], Any]) -> Change:
    def of_folder(folder: Path) -> None:
        weights = load_file(folder / "model.safetensors")
        save_file(change(weights) or weights, folder / "model.safetensors", metadata={"format": "pt"})

    return of_folder


def put(place: str, number: float) -> Change:
    def of_weights(weights: State) -> None:
        weights[f"model.{place}"].view(-1)[-1] = number

    return state(of_weights)


def cut_weights(folder: Path) -> None:
    file = folder / "model.safetensors"
    os.truncate(file, file.stat().st_size // 2)


def pickled_by_index(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    index = {"metadata": {}, "weight_map": {"lm_head.weight": "pytorch_model.bin"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def text(name: str, what: str) -> Change:
    return lambda folder: (folder / name).write_text(what)


def config(**changes: Any) -> Change:
    return lambda folder: (folder / "config.json").write_text(
        json.dumps(json.loads((folder / "config.json").read_text()) | changes)
    )


NOT_FINITE = r"holds NaN {} times and infinity {} times \(as float32\)"
BROKEN: dict[str, tuple[Change, str]] = {
    "names changed": (
        state(lambda weights: {name.replace("layers.2.", "other."): each for name, each in weights.items()}),
        r"in its config: .*missing \(model.layers.2.*unexpected \(model.other\.",
    ),
    "another size": (config(intermediate_size=96), r"shape .*mlp.down_proj.weight is \[64, 128\] for \[64, 96\]"),
    "NaN": (put("layers.1.self_attn.q_proj.weight", float("nan")), "q_proj.weight " + NOT_FINITE.format(1, 0)),
    "a row that no probe reads": (put("embed_tokens.weight", -np.inf), "tokens.weight " + NOT_FINITE.format(0, 1)),
    "truncated weights": (cut_weights, "cannot load model .* from this directory: "),
    "index of pickled weights": (pickled_by_index, "names 'pytorch_model.bin': weights are read from safetensors only"),
    "config no JSON": (text("config.json", "{"), "is missing or damaged, it holds no JSON"),
    "Kimi-K2's model type": (config(model_type="kimi_k2"), 'kimi_k2.* write "model_type": "deepseek_v3"'),
    "tokenizer of another kind": (text("tokenizer.json", "{}"), "cannot load the tokenizer of"),
    "no tokenizer": (
        lambda folder: [path.unlink() for path in folder.glob("*token*")],
        "holds no tokenizer .*save_pre",
    ),
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
    assert str(folder) in str(error.value) and "\n" not in str(error.value) and capfd.readouterr().err == ""


def test_a_gpt2_of_old_is_whole_without_its_prefix(tmp_path: Path) -> None:
    """Saved with its masks, and as a base model (no `transformer.` before its names, no output layer: that is tied)."""
    hf_model = random_model("GPT-2", n_positions=64)
    hf_model.transformer.save_pretrained(tmp_path)
    word_tokenizer().save_pretrained(tmp_path)

    def old(weights: State) -> None:
        for layer in range(3):
            weights[f"h.{layer}.attn.bias"] = torch.ones(64, 64).tril().bool()[None, None]
            weights[f"h.{layer}.attn.masked_bias"] = torch.tensor(-1e4)

    state(old)(tmp_path)
    model = mi.load_model(tmp_path, backend="bridge")
    with torch.no_grad():
        torch.testing.assert_close(model.run(TOKENS).logits, hf_model(TOKENS).logits, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_number_that_is_none_is_refused_when_wrapped(backend: str, tiny_model_dir: Any) -> None:
    mine = mi.load_model(tiny_model_dir("qwen2"), backend=backend).underlying
    next((mine._module if backend == "nnsight" else mine).parameters()).data.view(-1)[-1] = float("nan")
    with pytest.raises(ModelError, match=r"the weights of 'mine' are damaged: .* holds NaN \d times"):
        mi.wrap_model(mine, name="mine")


def test_buffers_are_looked_at_too_but_a_mask_may_hold_infinities() -> None:
    module = nn.Linear(2, 2)
    module.register_buffer("mask", torch.tensor([0.0, -torch.inf]))
    refuse_not_finite(module, name="mine")
    module.register_buffer("scale", torch.tensor([torch.inf]), persistent=False)
    with pytest.raises(ModelError, match="scale holds NaN 0 times and infinity 1 times"):
        refuse_not_finite(module, name="mine")


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


def test_the_hash_is_of_names_dtypes_shapes_and_bytes_of_what_is_saved() -> None:
    def of(**tensors: torch.Tensor) -> str:
        made = nn.Module()
        for name, tensor in tensors.items():
            made.register_buffer(name, tensor, persistent=name != "made_anew")
        return WeightsHash().of(made)

    x = torch.arange(6.0)
    others = [of(), of(a=x), of(b=x), of(a=x.double()), of(a=x.reshape(2, 3)), of(a=x.reshape(2, 3).T)]
    others += [of(a=x, b=x), of(a=x, b=x + 1), of(a=x + 1, b=x)]
    assert len(set(others)) == len(others) and all(len(made) == 5 + 32 and made.startswith("xxh3:") for made in others)
    assert of(a=x, b=x + 1) == of(b=x + 1, a=x), "in any order"
    assert of(a=x.reshape(2, 3).T) == of(a=x.reshape(2, 3).T.contiguous()), "strides are no part of it"
    assert of(a=x, b=x) == of(a=x, b=x.clone()), "tied or not"
    assert of(a=x, made_anew=x) == of(a=x)


def test_a_config_s_hash_is_of_how_it_is_run() -> None:
    def hashed(**said: Any) -> Any:
        return config_hash(SimpleNamespace(to_dict=lambda: said))

    base = hashed(a=1, b={"c": 2})
    assert base == hashed(b={"c": 2}, a=1, torch_dtype="x", use_cache=True) and config_hash(object()) is None
    assert len({base, hashed(a=2, b={"c": 2}), hashed(a=1, b={"c": 3}), hashed(a=1)}) == 4


def in_memory(kind: str = "gemma3") -> SimpleNamespace:
    tokenizer = qwen2_tokenizer() if kind == "qwen2" else word_tokenizer()
    return SimpleNamespace(name="mine", hf_model=tiny_model(kind, tokenizer), tokenizer=tokenizer)


def test_the_same_weights_have_one_hash_on_every_backend_and_in_memory(tiny_model_dir: Any) -> None:
    loaded = [mi.load_model(tiny_model_dir("gemma3"), backend=name) for name in ("auto", "bridge", "nnsight")]
    loaded.append(mi.load_model(in_memory(), backend="bridge"))
    assert len({model.info.weights_hash for model in loaded}) == 1
    assert all(model.weights_hash == model.info.weights_hash == model.identity["weights"] for model in loaded)


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
    assert model.identity["weights"] == model.weights_hash == provenance(model)["model"]["weights_hash"]
    weight.data.copy_(kept)
    assert model.weights_hash == model.info.weights_hash, "and back"


def test_offloaded_weights_are_brought_to_be_looked_at(tiny_model_dir: Any, tmp_path: Path) -> None:
    places = {"model.embed_tokens": "cpu", "model.layers": "disk", "model.norm": "cpu", "model.rotary_emb": "cpu"}
    options: dict[str, Any] = {"backend": "nnsight", "offload_folder": tmp_path / "away"}
    options["device_map"] = {**places, "lm_head": "disk"}
    here = mi.load_model(tiny_model_dir("llama"), backend="nnsight").weights_hash
    for given in (tiny_model_dir("llama"), in_memory("llama")):  # where files hold the weights, and where copies do
        away = mi.load_model(given, **options)
        assert any(weight.is_meta for weight in away.weights.parameters()) and away.weights_hash == here
    shutil.copytree(tiny_model_dir("llama"), tmp_path / "spoilt")
    put("layers.1.self_attn.q_proj.weight", torch.nan)(tmp_path / "spoilt")
    with pytest.raises(ModelError, match="q_proj.weight holds NaN 1 times"):
        mi.load_model(tmp_path / "spoilt", **options)


def test_weights_that_lie_elsewhere_are_read_again_only_if_a_write_was_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    module, read = nn.Linear(3, 3), []
    digest = looked_at._digest
    monkeypatch.setattr(looked_at, "_digest", lambda tensor: read.append(tensor) or digest(tensor))
    hashing = WeightsHash()
    monkeypatch.setattr(torch.Tensor, "is_cpu", False)
    first = hashing.of(module)
    assert len(read) == 2 and hashing.of(module) == first and len(read) == 2
    with torch.no_grad():
        module.bias += 1
    assert hashing.of(module) != first and len(read) == 3


@pytest.mark.parametrize("dtype", [pytest.param("float32", marks=pytest.mark.slow), "bfloat16"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_numbers_do_not_depend_on_where_a_file_has_the_weights(backend: str, dtype: str, tmp_path: Path) -> None:
    """A weight that lies across cache lines is multiplied by another kernel: of bfloat16 to the same bits, others are moved."""
    planted = mi.planted_model(n_heads=8, n_key_value_heads=4)
    folder = planted.save(tmp_path / "planted", n_problems=1)
    file, found = folder / "model.safetensors", []
    weights = {name: weight.to(getattr(torch, dtype)) for name, weight in load_file(file).items()}
    for offset in (0, 8, 40):
        save_at(weights, file, offset)
        saved = mi.load_model(folder, backend=backend, dtype=dtype)
        assert dtype == "bfloat16" or all(weight.data_ptr() % 64 == 0 for weight in saved.weights.parameters())
        pairs = mi.make_pairs(saved, planted.problems(1), mi.Insertion.meaningless(" /", 12))
        found.append(mi.patch_heads(saved, pairs, edit="knockout", progress=False).patched)
    assert all(np.array_equal(each, found[0]) for each in found)


@pytest.mark.parametrize("backend", ["bridge", "nnsight"])
def test_edits_never_reach_the_file(backend: str, tmp_path: Path) -> None:
    """In which weights of half precision stay, mapped."""
    folder = mi.planted_model(n_heads=8, n_key_value_heads=4).save(tmp_path / "planted", n_problems=1)
    file = folder / "model.safetensors"
    save_at({name: weight.bfloat16() for name, weight in load_file(file).items()}, file, 8)
    before, model = file.read_bytes(), mi.load_model(folder, backend=backend, dtype="bfloat16")
    assert any(weight.data_ptr() % 64 for weight in model.weights.parameters()), "none is copied"
    known, logits = model.weights_hash, model.run(TOKENS).logits
    with torch.no_grad():
        for weight in model.weights.parameters():
            weight.mul_(2)
    assert model.weights_hash != known and not torch.equal(model.run(TOKENS).logits, logits)
    assert file.read_bytes() == before


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_model_in_memory_stays_as_it_was(backend: str) -> None:
    mine = in_memory("qwen2")
    mine.hf_model.generation_config.repetition_penalty = 1.5
    weights, config = copy.deepcopy(mine.hf_model.state_dict()), mine.hf_model.config.to_dict()
    parts = {name: type(part) for name, part in mine.hf_model.named_modules()}
    said, special = copy.deepcopy(mine.tokenizer.init_kwargs), mine.tokenizer.special_tokens_map
    model = mi.load_model(mine, backend=backend)
    before = model.run(TOKENS).logits
    assert model.hf_model is None or model.hf_model.generation_config.repetition_penalty == 1.5
    assert mine.hf_model.config.to_dict() == config
    assert {name: type(part) for name, part in mine.hf_model.named_modules()} == parts
    assert all(torch.equal(weight, weights[name]) for name, weight in mine.hf_model.state_dict().items())
    assert mine.tokenizer.init_kwargs == said and mine.tokenizer.special_tokens_map == special
    assert model.tokenizer.special_tokens_map == special, "a bridge fills in what is missing on a copy of its own"
    with torch.no_grad():
        mine.hf_model.get_input_embeddings().weight.zero_()
    assert torch.equal(model.run(TOKENS).logits, before), "no weight is shared"


@pytest.mark.parametrize("backend", BACKENDS)
def test_two_threads_may_use_models(backend: str, tiny_model_dir: Any) -> None:
    """One edits a layer and hides keys, the other runs plainly and replays."""
    model = mi.load_model(tiny_model_dir("llama"), backend=backend)
    again: Model = mi.wrap_model(model.underlying, tokenizer=model.tokenizer)
    tokens, mask = torch.arange(4, 24)[None], torch.ones(1, 1, 20, 20, dtype=torch.bool)
    mask[..., 10:, 3:8] = False
    edits = {site(1, "mlp.hook_post"): torch.zeros_like, site(0, "attn.hook_z"): lambda z: 2 * z}

    def plain() -> torch.Tensor:
        recording = again.record(Inputs(tokens), start=6, logits_at="all")
        return torch.cat([recording.logits[:, 6:], again.replay(recording, 1, recording.z[1], logits_at="all")])

    works: tuple[Callable[[], Any], ...] = (lambda: model.run(Inputs(tokens, None, mask), edits=edits).logits, plain)
    expected = [work() for work in works]
    with ThreadPoolExecutor(len(works)) as pool:
        gave = [pool.submit(lambda work=work: [work() for _ in range(8)]) for work in works]
    for wanted, found in zip(expected, gave, strict=True):
        assert all(torch.equal(each, wanted) for each in found.result(120))
