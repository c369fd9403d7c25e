"""Models on several devices: at every split the numbers are those of one device, to the last digit."""

import gc
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
import virtual_devices  # noqa: F401 - registers them
from analyses_under_test import ANALYSES, asked, frames, long
from conftest import BACKENDS

import mless_interp as mi
from mless_interp.models import load
from mless_interp.models.base import Model
from mless_interp.models.sites import SITES, site
from mless_interp.patching.interventions import INTERVENTIONS

NAMES = ("model.embed_tokens", "model.layers.0", "model.layers.1", "model.norm", "lm_head")
LEAN = ("patches", "direct", "answers")
"""Analyses that are asked of fused attention."""


def placed(made: Any, where: tuple[str, ...], **options: Any) -> Model:
    """A model of two layers whose parts lie at these places: embedding, layers, norm and head."""
    places = dict(zip(NAMES, where, strict=True)) | {"model.rotary_emb": where[0]}
    return mi.load_model(made, backend="nnsight", device_map=places, **options)


@lru_cache
def planted() -> Any:
    """That of `asked`, which a bridge rebuilds in place."""
    return mi.planted_model(n_heads=8, n_key_value_heads=2, seed=1)


@lru_cache(maxsize=16)
def here(where: tuple[str, ...], attention: str, **options: Any) -> Model:
    return placed(planted(), where, attn_implementation=attention, **options)


ALONE, *SPLITS = (
    tuple(f"virtual:{digit}" for digit in digits)
    for digits in ("11111", "11112", "11122", "11222", "12222", "21111", "12121")
)
"""Every border between two devices; and there and back again, with the embedding and the head apart."""


def everything_captured(model: Model) -> Iterator[np.ndarray]:
    """Logits and every site of a masked run."""
    names = [site(layer, name) for layer in range(model.info.n_layers) for name in SITES]
    run = model.run(asked().pairs[0].condition("masked"), capture=dict.fromkeys(names))
    yield from (each.detach().cpu().numpy() for each in (run.logits, *run.captured.values()))


def edited(model: Model) -> Iterator[np.ndarray]:
    """Sweeps with every edit, in a direction in which it acts."""
    for edit, made in INTERVENTIONS.items():
        direction = made.acts_in or "denoising"
        options = {"edit": edit, "direction": direction, "progress": False}
        yield mi.patch_heads(model, asked().pairs[:1], heads=["L0H1", "L0H6", "L1H2"], **options).patched


MADE = {"capture": everything_captured, "edits": edited}


def same(name: str, whole: Model, split: Model) -> None:
    if name in MADE:
        for a, b in zip(MADE[name](whole), MADE[name](split), strict=True):
            assert np.array_equal(a, b, equal_nan=True)
        return
    a, b = (frames(ANALYSES[name](replace(asked(), model=model), **long(name))) for model in (whole, split))
    assert all(a[table].equals(b[table]) for table in a)


def attention_of(name: str) -> str:
    return "sdpa" if name in LEAN else "eager"


OF_OTHERS = ("profile", "segments", "patches of knockouts, noising", "joint", "reads", "transplant", "curve", "sets")
"""Analyses that ask a model nothing but what others ask."""
EVERY = [name for name in (*MADE, *ANALYSES) if name not in OF_OTHERS]


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] * (name not in MADE)) for name in EVERY])
def test_no_split_changes_anything(name: str) -> None:
    same(name, *(here(at, attention_of(name)) for at in (ALONE, SPLITS[EVERY.index(name) % len(SPLITS) - 1])))


@pytest.mark.parametrize("backend", BACKENDS[:2])
def test_one_device_gives_what_memory_does(backend: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Up to rounding, as products in memory are oneDNN's; loading prints nothing."""
    made = [(mi.planted_model(n_heads=8, n_key_value_heads=2, seed=1), place) for place in ("cpu", "virtual:0")]
    both = [mi.load_model(each, backend=backend, device=place) for each, place in made]
    assert capsys.readouterr().out == ""
    for make in MADE.values():
        assert all(np.allclose(a, b, atol=1e-5, equal_nan=True) for a, b in zip(*map(make, both), strict=True))
    sources: tuple[Any, ...] = ("pattern", "recomputed")
    for source in sources:
        memory, device = (
            mi.score_heads(each, asked().pairs[:1], metrics="all", source=source, progress=False) for each in both
        )
        pd.testing.assert_frame_equal(memory.to_frame(), device.to_frame(), atol=1e-5, rtol=1e-5)


ELSEWHERE = ("edits", "attribution", "answers", "paths")
ORDERS = {"memory first": ("cpu", "disk") * 3, "a device, then memory": ("virtual:1", "cpu") * 3}


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("name", ["capture", *(pytest.param(name, marks=pytest.mark.slow) for name in ELSEWHERE)])
def test_weights_that_lie_elsewhere_change_nothing(name: str, order: str, tmp_path: Path) -> None:
    where, attention = ORDERS[order][:5], attention_of(name)
    model = here(where, attention, offload_folder=tmp_path)
    assert any(weight.is_meta for weight in model.hf_model.parameters()) and model.stepper is not None
    alone = ALONE if where[0] == "virtual:1" else ("cpu",) * 5
    assert model.info.device == alone[0] and model.info.backend == "nnsight"
    same(name, here(alone, attention), model)


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


def test_a_model_that_lies_on_the_disk_alone_has_no_device_to_run_on(tiny_model_dir: Any, tmp_path: Path) -> None:
    with pytest.raises(mi.ModelError, match="all weights of .* would lie on the disk: give some module a device"):
        mi.load_model(
            tiny_model_dir("llama"), offload_folder=tmp_path / "weights", device_map="auto", max_memory={"cpu": 0}
        )
    assert list((tmp_path / "weights").iterdir()) == []


@pytest.mark.parametrize(
    ("options", "products"), [({}, "high"), pytest.param({"tf32": False}, "highest", marks=pytest.mark.slow)]
)
def test_products_are_in_tf32_on_a_device_within_passes_alone(
    options: dict[str, Any], products: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a run, a replay and a pass with gradients."""
    model, pairs, seen = placed(planted(), ALONE, **options), asked().pairs[:1], []
    look = lambda *given: seen.append(torch.get_float32_matmul_precision())  # noqa: E731
    mlp_out, before = type(model.layers).mlp_out, torch.get_float32_matmul_precision()
    monkeypatch.setattr(type(model.layers), "mlp_out", lambda *given: (look(), mlp_out(*given))[1])
    torch.set_float32_matmul_precision("medium")  # whatever the process has
    try:
        model.run(pairs[0].condition("inserted"), capture={"blocks.1.hook_resid_pre": look})
        mi.patch_heads(model, pairs, heads=["L1H2"], progress=False)
        mi.attribute_heads(model, pairs, method="gate_ig", steps=2, verify=1, progress=False)
        assert len(seen) > 4 and set(seen) == {products} and torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision(before)
    assert model.identity["computed_on"]["products"] == ("tf32" if products == "high" else "highest")
    assert model.checks.tolerance == (2e-2 if products == "high" else 1e-3)
