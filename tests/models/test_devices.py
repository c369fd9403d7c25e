"""Models on several devices: at every split the numbers are those of one device, to the last digit."""

import gc
import os
import warnings
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import fields, is_dataclass
from functools import lru_cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from models_under_test import pairs_for, problems
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM
from virtual_devices import ONE, OTHER, watched

import mless_interp as mi
from mless_interp.models import load, memory, nnsight
from mless_interp.models.base import Model
from mless_interp.models.loaded_weights import device_of, refuse_not_finite
from mless_interp.models.nnsight import wrapped
from mless_interp.models.sites import SITES, site
from mless_interp.patching.interventions import INTERVENTIONS
from mless_interp.scores import streaming

SLASHES = mi.Insertion.meaningless(" /", 21)


def placed(folder: Path, where: str, **options: Any) -> Model:
    """A model of three layers on virtual devices: `where` has a digit for the embedding, each layer, the norm and the head."""
    parts = ("embed_tokens", "layers.0", "layers.1", "layers.2", "norm")
    names = [*(f"model.{part}" for part in parts), "lm_head"]
    places = {name: f"virtual:{digit}" for name, digit in zip(names, where, strict=True)}
    places["model.rotary_emb"] = places["model.embed_tokens"]
    options = {"backend": "nnsight", "device_map": places, **options}
    return mi.load_model(folder, **options)


@lru_cache(maxsize=16)
def here(folder: Path, where: str, **options: Any) -> Model:
    return placed(folder, where, **options)


ALONE = "111111"
SPLITS = ("111112", "111122", "111222", "112222", "122222", "211111", "121212", "122112")
"""Every border between two devices; and there and back again, with the embedding and the head apart."""


def numbers(found: Any) -> Iterator[np.ndarray]:
    """Every array of a result, in order."""
    if isinstance(found, Tensor):
        yield found.detach().cpu().numpy()
    elif isinstance(found, np.ndarray):
        yield found
    elif isinstance(found, float | int):
        yield np.array(found)
    elif isinstance(found, dict):
        for value in found.values():
            yield from numbers(value)
    elif isinstance(found, list | tuple):
        for value in found:
            yield from numbers(value)
    elif is_dataclass(found):
        for field in fields(found):
            if field.name not in ("settings", "seed", "info", "resolution"):
                yield from numbers(getattr(found, field.name))


def everything_captured(model: Model, pairs: Any) -> Any:
    """Logits and every site of a masked run."""
    lacks = {"attn.hook_attn_scores", "attn.hook_pattern"} if model.info.attention != "eager" else set()
    names = [site(layer, name) for layer in range(model.info.n_layers) for name in SITES if name not in lacks]
    run = model.run(pairs[0].condition("masked"), capture=dict.fromkeys(names))
    return run.logits, run.captured


def gradients(model: Model, pairs: Any) -> Any:
    cases = (("gate_ig", "answer_logprob"), ("gate_ig", "kl"), ("atp", "answer_logprob"))
    options = {"steps": 3, "verify": 2, "progress": False}
    return [mi.attribute_heads(model, pairs, method=method, outcome=outcome, **options) for method, outcome in cases]


def edits(model: Model, pairs: Any) -> Any:
    return [mi.patch_heads(model, pairs, edit=edit, progress=False) for edit in INTERVENTIONS]


def contrasts(model: Model, pairs: Any) -> Any:
    cases = (("total", "question"), ("shift", "all"), ("held", "last"), ("content", "span"))
    swept = [
        mi.patch_heads(model, pairs, contrast=contrast, positions=positions, direction="noising", progress=False)
        for contrast, positions in cases
    ]
    return [*swept, mi.patch_heads(model, pairs, edit="knockout", outcome="kl", progress=False)]


def answers(model: Model, pairs: Any) -> Any:
    """Each treatment's tokens; knocked out under sdpa and eager attention alike."""
    heads = [mi.Head(1, 2), mi.Head(2, 3)]
    treatments = [None, mi.Treatment(SLASHES, knockout=heads, name="cut"), mi.ARM(layers=(1,), c=0.45, p1=90)]
    options = {"max_new_tokens": 4, "progress": False, "stop_after_box": False}
    found = mi.evaluate_accuracy(model, problems()[:2], treatments, **options)
    return [list(map(ord, text)) for text in found.to_frame()["completion"]]


def located(model: Model, pairs: Any) -> Any:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "2 problems are too few", UserWarning)
        return mi.locate_heads(
            model, pairs, heads=["L0H1", "L1H2", "L2H3"], n_control_draws=1, n_random_sets=2, progress=False
        )


def circuits(model: Model, pairs: Any) -> Any:
    heads, quiet = ["L0H1", "L1H2", "L2H3"], {"progress": False}
    return [
        mi.direct_effects(model, pairs, heads, **quiet).direct,
        mi.trace_paths(model, pairs, heads, mlps="all", contrast="computed", **quiet).values,
        mi.trace_paths(model, pairs, heads, mlps=[1], **quiet).values,
        mi.patch_sites(model, pairs, n_rows=1, contrast="total", **quiet).values,
        mi.map_positions(model, pairs, heads, n_rows=1, n_blocks=2, **quiet).values,
    ]


def certified(model: Model, pairs: Any) -> Any:
    return [(verdict.error, verdict.status == "pass") for verdict in mi.certify_model(model, progress=False).verdicts]


ANALYSES: dict[str, Callable[[Model, Any], Any]] = {
    "capture": everything_captured,
    "patch_heads with every edit": edits,
    "patch_heads between other conditions": contrasts,
    "attribute_heads": gradients,
    "decompose_attention": lambda model, pairs: mi.decompose_attention(
        model, pairs, contrasts=["content", "total", "held"], n_control_draws=1, progress=False
    ),
    "score_heads": lambda model, pairs: mi.score_heads(model, pairs, metrics="all", progress=False),
    "attention_profile": lambda model, pairs: mi.attention_profile(model, pairs, progress=False),
    "activation_shift": lambda model, pairs: mi.activation_shift(model, pairs, layer=2, progress=False),
    "mediate": lambda model, pairs: mi.mediate(model, pairs, layer=2, progress=False),
    "joint_knockout": lambda model, pairs: mi.joint_knockout(
        model, pairs, ["L0H1", "L2H3"], n_random_sets=2, progress=False
    ),
    "dose_response": lambda model, pairs: mi.dose_response(
        model, problems()[:2], SLASHES, doses=(2, 4), layer=2, progress=False
    ),
    "read_effects": lambda model, pairs: mi.read_effects(model, pairs, ["L0H1", "L2H3"], progress=False),
    "evaluate_accuracy": answers,
    "locate_heads": located,
    "circuits": circuits,
    "certify_model": certified,
}


@lru_cache(maxsize=64)
def computed(folder: Path, where: str, attention: str, analysis: str) -> list[np.ndarray]:
    model = here(folder, where, attn_implementation=attention)
    pairs = pairs_for(model, count=2)
    return list(numbers(ANALYSES[analysis](model, pairs)))


EVERY = bool(os.environ.get("MLESS_EVERY_SPLIT"))
"""Set, the whole grid is run: every analysis at every split and order under both attentions (a quarter of an hour)."""
CASES = [
    pytest.param(analysis, where, attention, marks=[] if (at + 3 * n) % 16 == 8 * k else [pytest.mark.slow])
    for at, analysis in enumerate(ANALYSES)
    for n, where in enumerate(SPLITS)
    for k, attention in enumerate(("eager", "sdpa"))
    if EVERY or (at + 3 * n) % 16 == 8 * k or (at + n + 4 * k) % 8 == 0
]
"""In the usual run each analysis and each split comes about once, among the slow tests each analysis under both attentions."""


@pytest.mark.parametrize(("analysis", "where", "attention"), CASES)
def test_a_split_changes_nothing(analysis: str, where: str, attention: str, tiny_model_dir: Any) -> None:
    folder = tiny_model_dir("llama")
    same(
        computed(folder, ALONE, attention, analysis),
        found(here(folder, where, attn_implementation=attention), analysis),
    )


def found(model: Model, analysis: str) -> list[np.ndarray]:
    return list(numbers(ANALYSES[analysis](model, pairs_for(model, count=2))))


def same(whole: list[np.ndarray], split: list[np.ndarray]) -> None:
    assert len(whole) == len(split) > 0
    for a, b in zip(whole, split, strict=True):
        assert np.array_equal(a, b, equal_nan=a.dtype.kind == "f")


@pytest.mark.parametrize("analysis", ["capture", "attribute_heads", "score_heads", "evaluate_accuracy"])
def test_one_virtual_device_gives_what_memory_gives(analysis: str, tiny_model_dir: Any) -> None:
    """Up to rounding, as products in memory are another kernel's."""
    folder = tiny_model_dir("llama")
    plain = found(mi.load_model(folder, backend="nnsight"), analysis)
    for a, b in zip(computed(folder, ALONE, "eager", analysis), plain, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_blocks_of_rows_on_two_devices_are_the_whole(
    attention: str, tiny_model_dir: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tiny_model_dir("llama")
    whole = computed(folder, ALONE, attention, "score_heads")
    monkeypatch.setattr(streaming, "BLOCK_ELEMENTS", 8 * 60 * 7)  # some seven rows
    blocks = found(here(folder, "112222", attn_implementation=attention), "score_heads")
    for a, b in zip(whole, blocks, strict=True):
        np.testing.assert_allclose(b, a, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("analysis", ["capture", "patch_heads between other conditions", "decompose_attention"])
def test_a_bridge_is_split_too(analysis: str, tiny_model_dir: Any) -> None:
    folder = tiny_model_dir("llama")
    whole, split = (here(folder, where, backend="bridge") for where in (ALONE, "112222"))
    assert split.info.backend == "bridge" and split.stepper is not None
    same(found(whole, analysis), found(split, analysis))


def test_windows_and_norms_of_their_own_are_split_too(tiny_model_dir: Any) -> None:
    """Gemma 3: two rotations, windows, a norm after attention; embedding and head are one."""
    folder = tiny_model_dir("gemma3")
    whole, split = (here(folder, where, attn_implementation="sdpa") for where in (ALONE, "121211"))
    for analysis in ("capture", "patch_heads with every edit", "score_heads"):
        same(found(whole, analysis), found(split, analysis))


# ------------------------------------------------------------------------------------------------------------ offloading

OFFLOADED = {
    "memory first": ("cpu", "disk", "cpu", "disk", "cpu", "disk"),
    "disk first": ("disk", "cpu", "disk", "cpu", "disk", "cpu"),
    "a device, then memory": ("virtual:1", "cpu", "virtual:1", "cpu", "virtual:1", "cpu"),
    "memory, then a device": ("cpu", "virtual:1", "cpu", "virtual:1", "cpu", "virtual:1"),
}


USUAL = ("capture", "attribute_heads", "score_heads")


@lru_cache(maxsize=8)
def offloaded(folder: Path, order: str, attention: str = "eager") -> Model:
    names = ["model.embed_tokens", *(f"model.layers.{layer}" for layer in range(3)), "model.norm", "lm_head"]
    places = dict(zip(names, OFFLOADED[order], strict=True)) | {
        "model.rotary_emb": OFFLOADED[order][0].replace("disk", "cpu")
    }
    kept = folder.parent / f"weights of {order}"
    return mi.load_model(folder, device_map=places, offload_folder=kept, attn_implementation=attention)


@pytest.mark.parametrize(
    ("analysis", "attention", "order"),
    [
        pytest.param(name, attention, order, marks=[] if name in USUAL and at == 2 * k else [pytest.mark.slow])
        for name in ANALYSES
        for k, attention in enumerate(("eager", "sdpa"))
        for at, order in enumerate(OFFLOADED)
        if EVERY or name in USUAL or (list(ANALYSES).index(name) + at) % 4 == 2 * k
    ],
)
def test_weights_that_lie_elsewhere_change_nothing(
    analysis: str, attention: str, order: str, tiny_model_dir: Any
) -> None:
    folder = tiny_model_dir("llama")
    model = offloaded(folder, order, attention)
    assert any(weight.is_meta for weight in model.hf_model.parameters()) and model.stepper is not None
    on_device = "device" in order
    assert model.info.device == ("virtual:1" if on_device else "cpu") and model.info.backend == "nnsight"
    if on_device:
        same(computed(folder, ALONE, attention, analysis), found(model, analysis))
    else:
        same(found(whole_in_memory(folder, attention), analysis), found(model, analysis))


@lru_cache(maxsize=4)
def whole_in_memory(folder: Path, attention: str) -> Model:
    return mi.load_model(folder, backend="nnsight", attn_implementation=attention)


@pytest.mark.parametrize("order", OFFLOADED)
def test_output_weights_are_brought_and_the_hash_is_the_same(order: str, tiny_model_dir: Any) -> None:
    folder = tiny_model_dir("llama")
    model, whole = offloaded(folder, order), whole_in_memory(folder, "eager")
    for layer in range(3):
        assert torch.equal(model.output_weights(layer).cpu(), whole.output_weights(layer))
    assert model.weights_hash == whole.weights_hash


def test_a_model_wrapped_by_its_owner_may_be_split(tiny_model_dir: Any) -> None:
    folder = tiny_model_dir("llama")
    split = here(folder, "112222")
    again = mi.wrap_model(split.underlying, tokenizer=split.tokenizer)
    same(computed(folder, "112222", "eager", "capture"), found(again, "capture"))


def test_an_offloaded_embedding_that_its_owner_wrapped_is_refused(tiny_model_dir: Any) -> None:
    brought = offloaded(tiny_model_dir("llama"), "disk first")
    options = {"tokenizer": deepcopy(brought.tokenizer), "task": "text-generation"}
    traced = nnsight.nnsight.TransformersModel(brought.hf_model, **options)
    with pytest.raises(
        mi.ModelError, match=r"its embedding is offloaded, .*: load it with load_model\(device_map=...\)"
    ):
        mi.wrap_model(traced, tokenizer=brought.tokenizer)


def test_tokens_go_where_the_embedding_is_or_is_computed() -> None:
    def place(embedding: nn.Module, hook: Any = None) -> str:
        if hook is not None:
            embedding._hf_hook = hook
        behind = nn.Linear(2, 2).to(OTHER)
        return str(device_of(SimpleNamespace(get_input_embeddings=lambda: embedding, parameters=behind.parameters)))

    def brought() -> nn.Module:
        return nn.Embedding(3, 2, device="meta")

    first, second = (SimpleNamespace(execution_device=device) for device in (ONE, OTHER))
    without, empty = SimpleNamespace(), SimpleNamespace(execution_device=None)
    assert place(nn.Embedding(3, 2).to(ONE), second) == "virtual:1"
    assert place(nn.Module(), first) == "virtual:2", "without weights of its own"
    assert place(brought()) == place(brought(), empty) == place(brought(), without) == "cpu"
    assert place(brought(), first) == "virtual:1"
    assert place(brought(), SimpleNamespace(hooks=(without, empty, second, first))) == "virtual:2"


def test_what_is_not_finite_is_found_wherever_it_lies() -> None:
    module = nn.Linear(2, 2).requires_grad_(False).to(OTHER)
    module.counts = nn.Buffer(torch.tensor([7], device=ONE))
    module.nothing = nn.Buffer(torch.empty(0))
    module.elsewhere = nn.Buffer(torch.empty(2, device="meta"))
    refuse_not_finite(module, name="m")
    module.bias[1] = float("nan")
    with pytest.raises(mi.ModelError, match="m.*bias"):
        refuse_not_finite(module, name="m")


# -------------------------------------------------------------------------------------------------------------- the choice


def test_auto_converts_only_what_is_small(tiny_model_dir: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tiny_model_dir("llama")
    monkeypatch.setattr(load, "CONVERTED_AT_MOST", 1)
    assert mi.load_model(folder).info.backend == "bridge"
    assert mi.load_model(folder, device_map={"": "cpu"}).info.backend == "nnsight"
    assert mi.load_model(folder, attn_implementation="sdpa").info.backend == "nnsight"


def test_max_memory_bounds_what_auto_places(tiny_model_dir: Any, tmp_path: Path) -> None:
    model = mi.load_model(
        tiny_model_dir("llama"), device_map="auto", max_memory={"cpu": 200_000}, offload_folder=tmp_path / "weights"
    )
    assert set(model.hf_model.hf_device_map.values()) == {"cpu", "disk"}


def test_two_models_share_an_offload_folder_and_keep_their_own_weights(tmp_path: Path) -> None:
    """Weights that no file holds as they are run are written there, by their names alone."""
    names = ("embed_tokens", "rotary_emb", "layers.0", "norm")
    places = dict.fromkeys([*(f"model.{name}" for name in names), "lm_head"], "cpu") | {"model.layers.1": "disk"}
    options: dict[str, Any] = {"device_map": places, "offload_folder": tmp_path / "weights"}
    made = [mi.planted_model(readers=[mi.Head(0, 3)], seed=seed, n_layers=2, n_heads=4) for seed in (1, 2)]
    first = mi.load_model(made[0], **options)
    tokens = torch.arange(8)[None]
    before = first.run(tokens).logits
    second = mi.load_model(made[1], **options)
    assert torch.equal(first.run(tokens).logits, before)
    assert not torch.equal(second.run(tokens).logits, before)
    assert len(list((tmp_path / "weights").glob("weights-*"))) == 2
    del first, second
    gc.collect()
    assert list((tmp_path / "weights").iterdir()) == []


def test_an_offload_folder_that_cannot_be_written_is_told(tiny_model_dir: Any, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(
        mi.ModelError, match=r"the offload_folder '.*file' cannot be written \(File exists\): choose another"
    ):
        mi.load_model(tiny_model_dir("llama"), device_map={"": "cpu"}, offload_folder=tmp_path / "file")


@pytest.mark.parametrize("where", [{"device_map": {"": "disk"}}, {"device_map": "auto", "max_memory": {"cpu": 0}}])
def test_a_model_that_lies_on_the_disk_alone_has_no_device_to_run_on(
    where: dict[str, Any], tiny_model_dir: Any, tmp_path: Path
) -> None:
    with pytest.raises(
        mi.ModelError, match=r"all weights of .* would lie on the disk, and no device is left that computes"
    ):
        mi.load_model(tiny_model_dir("llama"), offload_folder=tmp_path / "weights", **where)
    assert list((tmp_path / "weights").iterdir()) == []


def test_nothing_is_moved_when_it_is_wrapped(tiny_model_dir: Any) -> None:
    """A pipeline of transformers would move it to the first GPU."""
    model = here(tiny_model_dir("llama"), ALONE)
    assert {str(weight.device) for weight in model.hf_model.parameters()} == {"virtual:1"}


def test_a_wrapped_model_stays_where_it_is_and_has_a_tokenizer_of_its_own(
    tiny_model_dir: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, made = tiny_model_dir("llama"), []
    models = {"cpu": whole_in_memory(folder, "eager"), "virtual:1": here(folder, ALONE), "": here(folder, "112222")}
    monkeypatch.setattr(nnsight.nnsight, "TransformersModel", lambda model, **how: made.append((model, how)))
    for place, model in models.items():
        wrapped(model.hf_model, model.tokenizer)
        hf_model, how = made.pop()
        own = how.pop("tokenizer")
        assert hf_model is model.hf_model and how.pop("task") == "text-generation"
        assert how == ({"device": torch.device(place)} if place else {}), "what is placed already is not moved"
        own.add_tokens("<new>")
        assert "<new>" in own.get_vocab() and "<new>" not in model.tokenizer.get_vocab()


def test_where_a_model_lies(tiny_model_dir: Any) -> None:
    folder = tiny_model_dir("llama")
    assert here(folder, "112222").devices == ("virtual:1", "virtual:2")
    assert here(folder, "211111").devices == ("virtual:2", "virtual:1"), "where tokens go in comes first"
    assert offloaded(folder, "memory first").devices == ("cpu",)
    assert offloaded(folder, "a device, then memory").devices == ("virtual:1",)


def products_in_passes(model: Model, pairs: Any, monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """How products of float32 are made in a run, a replay and a pass with gradients."""
    seen = []

    def look(activation: Tensor) -> None:
        seen.append(torch.get_float32_matmul_precision())

    mlp_out = type(model.layers).mlp_out
    monkeypatch.setattr(type(model.layers), "mlp_out", lambda *given: (look(given[-1]), mlp_out(*given))[1])
    model.run(pairs[0].condition("inserted"), capture={"blocks.1.hook_resid_pre": look})
    n_runs = len(seen)
    mi.patch_heads(model, pairs[:1], heads=["L1H2"], progress=False)
    mi.attribute_heads(model, pairs[:1], method="gate_ig", steps=2, verify=1, progress=False)
    assert n_runs == 1 and len(seen) > 4
    return set(seen)


@pytest.mark.parametrize(("options", "products"), [({}, "high"), ({"tf32": False}, "highest")])
def test_products_are_in_tf32_on_a_device_within_passes_alone(
    options: dict[str, Any], products: str, tiny_model_dir: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tiny_model_dir("qwen2")
    model = placed(folder, ALONE, **options)
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")  # whatever the process has
    try:
        assert products_in_passes(model, pairs_for(model, count=1), monkeypatch) == {products}
        assert torch.get_float32_matmul_precision() == "medium"
        with pytest.raises(ZeroDivisionError):
            model.run(torch.arange(9), capture={"blocks.0.hook_resid_pre": lambda resid: 1 / 0})
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision(before)
    assert model.identity["computed_on"]["products"] == ("tf32" if products == "high" else "highest")
    assert model.checks.tolerance == (2e-2 if products == "high" else 1e-3)


@pytest.mark.parametrize("options", [{}, {"dtype": "bfloat16"}, {"dtype": "float64"}])
def test_elsewhere_and_in_other_precisions_products_are_left_to_the_process(
    options: dict[str, Any], tiny_model_dir: Any
) -> None:
    folder = tiny_model_dir("qwen2")
    model = placed(folder, ALONE, **options) if options else mi.load_model(folder, backend="nnsight")
    assert model.tf32 is None and model.multiplying(tf32=True) is model
    assert model.identity["computed_on"]["products"] == torch.get_float32_matmul_precision()
    assert mi.wrap_model(placed(folder, ALONE).underlying).tf32 is None, "its owner's"


def test_the_smallest_gpu_decides_how_much_goes_into_a_pass(
    tiny_model_dir: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = whole_in_memory(tiny_model_dir("llama"), "eager")
    pairs = pairs_for(model, count=1)
    sizes = {"cuda:0": 80 * 10**9, "cuda:1": 24 * 10**9}
    kinds = {"cuda:0": "large", "cuda:1": "little"}
    asked: list[str] = []
    monkeypatch.setattr(memory, "gpu_memory", lambda device: asked.append(device) or sizes[device])
    shape = {"changed": 50, "length": 100_000, "read": 5}
    for rows, more in ((memory.rows_per_pass, {"batch": 1}), (memory.rows_per_graph, {"bytes_each": 4})):
        large, little, both = (
            rows(model.info, **shape, **more, devices=devices) for devices in (["cuda:0"], ["cuda:1"], list(sizes))
        )
        assert 1 < little == both < large
    monkeypatch.setattr(torch.cuda, "get_device_name", kinds.__getitem__)
    monkeypatch.setattr(type(model), "devices", tuple(sizes))
    assert model.identity["computed_on"]["device"] == "large and little"
    analyses: dict[str, Callable[[], Any]] = {
        "sweep": lambda: mi.patch_heads(model, pairs, heads=["L0H1"], progress=False),
        "sets": lambda: mi.joint_knockout(model, pairs, ["L0H1"], n_random_sets=1, progress=False),
        "gradients": lambda: mi.attribute_heads(model, pairs, method="atp", progress=False),
        "answers": lambda: mi.evaluate_accuracy(model, problems()[:1], max_new_tokens=1, progress=False),
    }
    for name, run in analyses.items():
        asked.clear()
        run()
        assert {*asked} == {*sizes}, name


# ------------------------------------------------------------------------------------------------------------- quantised


class Whole8(nn.Module):
    """A linear layer that keeps whole numbers and a scale per output, as quantised ones do."""

    def __init__(self, plain: nn.Linear) -> None:
        super().__init__()
        self.in_features = plain.in_features
        self.scale = plain.weight.detach().abs().amax(1, keepdim=True) / 127
        self.weight = nn.Parameter((plain.weight.detach() / self.scale).round().to(torch.int8), requires_grad=False)
        self.bias = plain.bias

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(x, self.weight.to(x.dtype) * self.scale.to(x.dtype), self.bias)


def test_output_weights_of_quantised_layers_are_what_they_compute_with(tiny_model_dir: Any) -> None:
    folder = tiny_model_dir("llama")
    hf_model = LlamaForCausalLM.from_pretrained(folder, attn_implementation="eager").eval()
    for layer in hf_model.model.layers:
        layer.self_attn.o_proj = Whole8(layer.self_attn.o_proj)
    tokenizer = whole_in_memory(folder, "eager").tokenizer
    model = mi.wrap_model(wrapped(hf_model, tokenizer), name="mine", tokenizer=tokenizer)
    assert model.quantised and model.stepper is not None
    for layer in range(3):
        module = model.hf_model.model.layers[layer].self_attn.o_proj
        expected = (module.weight * module.scale).T.view(8, 8, 64)
        assert torch.equal(model.output_weights(layer), expected)
    found(model, "decompose_attention")
    calls: list[int] = []
    module.register_forward_hook(lambda *_: calls.append(1))
    model.output_weights(2)
    assert not calls, "its hooks are those of a run"


@pytest.mark.parametrize("bits", ["load_in_4bit", "load_in_8bit"])
def test_a_directory_that_is_quantised_loads_by_itself(bits: str, tiny_model_dir: Any, tmp_path: Path) -> None:
    pytest.importorskip("bitsandbytes", reason="bitsandbytes is no dependency")
    config = {"quant_method": "bitsandbytes", bits: True}
    tokenizer = whole_in_memory(tiny_model_dir("llama"), "eager").tokenizer
    torch.manual_seed(0)
    shape = {
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
    }  # in blocks of 32
    plain = LlamaForCausalLM(LlamaConfig(vocab_size=len(tokenizer), max_position_embeddings=256, **shape))
    plain.save_pretrained(tmp_path / "plain")
    tokenizer.save_pretrained(tmp_path / "plain")
    made = mi.load_model(tmp_path / "plain", device="cpu", backend="nnsight", quantization_config=config)
    assert made.quantised and made.output_weights(1).is_floating_point()
    made.hf_model.save_pretrained(tmp_path)
    made.tokenizer.save_pretrained(tmp_path)
    again = mi.load_model(tmp_path, device="cpu")
    assert again.quantised and again.info.backend == "bridge"
    whole = plain.model.layers[1].self_attn.o_proj.weight.detach().T.view(4, 16, 64)
    assert (again.output_weights(1).float() - whole).abs().max() < 0.2 * whole.abs().max(), "up to its rounding"
    pairs = pairs_for(made, count=1)
    for model in (made, again):
        mi.decompose_attention(model, pairs, contrasts=["content"], control=None, progress=False)


# ------------------------------------------------------------------------------------------------------- synchronisations


@pytest.mark.parametrize("edit", ["z", "knockout"])
def test_a_sweep_waits_once_a_pass_and_never_for_a_head(edit: str, tiny_model_dir: Any) -> None:
    model = here(tiny_model_dir("llama"), ALONE)
    pairs = pairs_for(model, count=1)

    def stops(**options: Any) -> int:
        with watched() as seen:
            mi.patch_heads(model, pairs, edit=edit, progress=False, **options)
        return seen.waits + seen.sends

    few, all_of_them = stops(heads=["L0H1", "L1H1", "L2H1"]), stops()
    assert few == all_of_them, "one pass each, 3 heads or 24"
    passes = 27 - 1  # in single rows: 24 heads and one row of each layer without an edit
    assert (stops(max_rows=1) - all_of_them) / passes <= 10


def test_scores_and_decompositions_wait_per_layer_not_per_head(tiny_model_dir: Any) -> None:
    model = here(tiny_model_dir("llama"), ALONE)
    pairs = pairs_for(model, count=1)
    with watched() as seen:
        mi.score_heads(model, pairs, progress=False)
    assert seen.waits / (2 * 3) <= 40, "per condition and layer"
    with watched() as seen:
        mi.decompose_attention(model, pairs, contrasts=["content"], control=None, progress=False)
    assert seen.waits / 3 <= 25, "per layer"


# ------------------------------------------------------------------------------------------------- the devices themselves


def test_virtual_devices_do_not_mix() -> None:
    one, other, memory = torch.ones(2, device=ONE), torch.ones(2, device=OTHER), torch.ones(2)
    assert (one.device, other.device) == (ONE, OTHER) and (one + one).device == ONE
    for mixed in ((one, other), (one, memory), (memory, other)):
        for product in (torch.add, torch.dot, lambda a, b: torch.stack([a, b])):
            with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
                product(*mixed)
    with pytest.raises(RuntimeError, match="indices should be either on cpu"):
        memory[torch.zeros(1, dtype=torch.long, device=ONE)]
    with pytest.raises(RuntimeError, match="same device"):
        one[torch.zeros(1, dtype=torch.long, device=OTHER)]
    with pytest.raises(RuntimeError, match="numpy"):
        one.numpy()
    assert torch.equal((one + torch.tensor(1.0)).cpu(), memory + 1), "single numbers may join"
    assert torch.equal(one.to(other).cpu() + memory, 2 * memory) and one.to(other).device == OTHER
    assert torch.arange(3, device=OTHER).tolist() == [0, 1, 2] and torch.zeros_like(other).device == OTHER


def test_gradients_cross_virtual_devices_and_do_not_mix_them() -> None:
    x = torch.tensor([1.0, 2.0], device=ONE).requires_grad_()
    y = (x * x).to(OTHER)[torch.tensor([1, 1])].sum()
    (slope,) = torch.autograd.grad(y, x)
    assert (y.device, slope.device) == (OTHER, ONE) and slope.tolist() == [0.0, 8.0]
    lost = (x * x).view(2)
    lost.register_hook(lambda slope: slope.to(OTHER))  # a gradient that came to the wrong device
    with pytest.raises(RuntimeError, match="same device"):
        torch.autograd.grad(lost.sum(), x)
