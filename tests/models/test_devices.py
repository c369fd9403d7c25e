"""Models on several devices: at every split the numbers are those of one device, to the last digit."""

import gc
import warnings
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import virtual_devices  # noqa: F401 - registers them
from models_under_test import pairs_for, problems
from torch import Tensor

import mless_interp as mi
from mless_interp.models import load
from mless_interp.models.base import Model
from mless_interp.models.sites import SITES, site
from mless_interp.patching.interventions import INTERVENTIONS

SLASHES = mi.Insertion.meaningless(" /", 21)
QUIET: dict[str, Any] = {"progress": False}


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
    if is_dataclass(found):
        kept = [field.name for field in fields(found) if field.name not in ("settings", "seed", "info", "resolution")]
        found = [getattr(found, name) for name in kept]
    if isinstance(found, Tensor | np.ndarray | float | int):
        yield found.detach().cpu().numpy() if isinstance(found, Tensor) else np.array(found)
    elif isinstance(found, dict | list | tuple):
        for value in found.values() if isinstance(found, dict) else found:
            yield from numbers(value)


def everything_captured(model: Model, pairs: Any) -> Any:
    """Logits and every site of a masked run."""
    lacks = {"attn.hook_attn_scores", "attn.hook_pattern"} if model.info.attention != "eager" else set()
    names = [site(layer, name) for layer in range(model.info.n_layers) for name in SITES if name not in lacks]
    run = model.run(pairs[0].condition("masked"), capture=dict.fromkeys(names))
    return run.logits, run.captured


def gradients(model: Model, pairs: Any) -> Any:
    cases = (("gate_ig", "answer_logprob"), ("gate_ig", "kl"), ("atp", "answer_logprob"))
    options = {"steps": 3, "verify": 2, **QUIET}
    return [mi.attribute_heads(model, pairs, method=method, outcome=outcome, **options) for method, outcome in cases]


def edits(model: Model, pairs: Any) -> Any:
    return [mi.patch_heads(model, pairs, edit=edit, progress=False) for edit in INTERVENTIONS]


def contrasts(model: Model, pairs: Any) -> Any:
    cases = {"total": "question", "shift": "all", "held": "last", "content": "span"}
    asked = [{"contrast": contrast, "positions": at, "direction": "noising"} for contrast, at in cases.items()]
    return [mi.patch_heads(model, pairs, **each, **QUIET) for each in (*asked, {"edit": "knockout", "outcome": "kl"})]


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
            model, pairs, heads=["L0H1", "L1H2", "L2H3"], n_control_draws=1, n_random_sets=2, **QUIET
        )


def circuits(model: Model, pairs: Any) -> Any:
    heads = ["L0H1", "L1H2", "L2H3"]
    return [
        mi.direct_effects(model, pairs, heads, **QUIET).direct,
        mi.trace_paths(model, pairs, heads, mlps="all", contrast="computed", **QUIET).values,
        mi.trace_paths(model, pairs, heads, mlps=[1], **QUIET).values,
        mi.patch_sites(model, pairs, n_rows=1, contrast="total", **QUIET).values,
        mi.map_positions(model, pairs, heads, n_rows=1, n_blocks=2, **QUIET).values,
    ]


def certified(model: Model, pairs: Any) -> Any:
    return [(verdict.error, verdict.status == "pass") for verdict in mi.certify_model(model, progress=False).verdicts]


OPTIONS: dict[str, dict[str, Any]] = {
    "decompose_attention": {"contrasts": ["content", "total", "held"], "n_control_draws": 1},
    "score_heads": {"metrics": "all"},
    "attention_profile": {},
    "activation_shift": {"layer": 2},
    "mediate": {"layer": 2},
    "joint_knockout": {"heads": ["L0H1", "L2H3"], "n_random_sets": 2},
    "read_effects": {"heads": ["L0H1", "L2H3"]},
}
ANALYSES: dict[str, Callable[[Model, Any], Any]] = {
    "capture": everything_captured,
    "patch_heads with every edit": edits,
    "patch_heads between other conditions": contrasts,
    "attribute_heads": gradients,
} | {
    name: lambda model, pairs, name=name, options=options: getattr(mi, name)(model, pairs, **options, **QUIET)
    for name, options in OPTIONS.items()
}
ANALYSES |= {
    "dose_response": lambda model, pairs: mi.dose_response(
        model, problems()[:2], SLASHES, doses=(2, 4), layer=2, **QUIET
    ),
    "evaluate_accuracy": answers,
    "locate_heads": located,
    "circuits": circuits,
    "certify_model": certified,
}


def found(model: Model, analysis: str) -> list[np.ndarray]:
    return list(numbers(ANALYSES[analysis](model, pairs_for(model, count=2))))


def attention_of(analysis: str) -> str:
    return ("eager", "sdpa")[list(ANALYSES).index(analysis) % 2]


@pytest.mark.parametrize(
    ("analysis", "where"),
    [
        pytest.param(analysis, SPLITS[at % len(SPLITS)], marks=[] if at < 6 else [pytest.mark.slow])
        for at, analysis in enumerate(ANALYSES)
    ],
)
def test_a_split_changes_nothing(analysis: str, where: str, tiny_model_dir: Any) -> None:
    folder, attention = tiny_model_dir("llama"), attention_of(analysis)
    whole, split = (here(folder, at, attn_implementation=attention) for at in (ALONE, where))
    same(found(whole, analysis), found(split, analysis))


def same(whole: list[np.ndarray], split: list[np.ndarray]) -> None:
    assert len(whole) == len(split) > 0
    for a, b in zip(whole, split, strict=True):
        assert np.array_equal(a, b, equal_nan=a.dtype.kind == "f")


ORDERS = {"memory first": ("cpu", "disk") * 3, "a device, then memory": ("virtual:1", "cpu") * 3}


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(
    "analysis", [pytest.param(name, marks=[] if name == "capture" else [pytest.mark.slow]) for name in ANALYSES]
)
def test_weights_that_lie_elsewhere_change_nothing(analysis: str, order: str, tiny_model_dir: Any) -> None:
    folder, attention = tiny_model_dir("llama"), attention_of(analysis)
    names = ["model.embed_tokens", *(f"model.layers.{layer}" for layer in range(3)), "model.norm", "lm_head"]
    places = dict(zip(names, ORDERS[order], strict=True)) | {"model.rotary_emb": ORDERS[order][0]}
    kept = folder.parent / f"weights of {order}"
    model = mi.load_model(folder, device_map=places, offload_folder=kept, attn_implementation=attention)
    assert any(weight.is_meta for weight in model.hf_model.parameters()) and model.stepper is not None
    assert model.info.device == ORDERS[order][0] and model.info.backend == "nnsight"
    on_device = order.startswith("a device")
    whole = here(folder, ALONE, attn_implementation=attention) if on_device else whole_in_memory(folder, attention)
    same(found(whole, analysis), found(model, analysis))


@lru_cache(maxsize=4)
def whole_in_memory(folder: Path, attention: str) -> Model:
    return mi.load_model(folder, backend="nnsight", attn_implementation=attention)


def test_auto_converts_only_what_is_small(tiny_model_dir: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tiny_model_dir("llama")
    monkeypatch.setattr(load, "CONVERTED_AT_MOST", 1)
    assert mi.load_model(folder).info.backend == "bridge"
    assert mi.load_model(folder, device_map={"": "cpu"}).info.backend == "nnsight"
    assert mi.load_model(folder, attn_implementation="sdpa").info.backend == "nnsight"


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


@pytest.mark.parametrize("where", [{"device_map": {"": "disk"}}, {"device_map": "auto", "max_memory": {"cpu": 0}}])
def test_a_model_that_lies_on_the_disk_alone_has_no_device_to_run_on(
    where: dict[str, Any], tiny_model_dir: Any, tmp_path: Path
) -> None:
    with pytest.raises(mi.ModelError, match="all weights of .* would lie on the disk: give some module a device"):
        mi.load_model(tiny_model_dir("llama"), offload_folder=tmp_path / "weights", **where)
    assert list((tmp_path / "weights").iterdir()) == []


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
