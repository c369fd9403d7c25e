"""Models on several devices: at every split the numbers are those of one device, to the last digit."""

from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from models_under_test import pairs_for, problems
from torch import Tensor, nn
from virtual_devices import ONE, OTHER, watched

import mless_interp as mi
from mless_interp.models.base import Model
from mless_interp.models.sites import SITES, site
from mless_interp.patching.interventions import INTERVENTIONS

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
            if field.name not in ("settings", "seed", "info"):
                yield from numbers(getattr(found, field.name))


def everything_captured(model: Model, pairs: Any) -> Any:
    """Logits and every site of a masked run."""
    lacks = {"attn.hook_attn_scores", "attn.hook_pattern"} if model.info.attention != "eager" else set()
    names = [site(layer, name) for layer in range(model.info.n_layers) for name in SITES if name not in lacks]
    run = model.run(pairs[0].condition("masked"), capture=dict.fromkeys(names))
    return run.logits, run.captured


def gradients(model: Model, pairs: Any) -> Any:
    with torch.autograd.set_multithreading_enabled(False):  # a thread for each device is not imitated
        return [mi.attribute_heads(model, pairs, method=method, steps=3, progress=False) for method in ("gate_ig", "atp")]


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
    return mi.locate_heads(model, pairs, heads=["L0H1", "L1H2", "L2H3"], n_control_draws=1, n_random_sets=2, progress=False)


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
    "attention_parts": lambda model, pairs: mi.attention_parts(model, pairs[0], layer=2),
    "score_heads": lambda model, pairs: mi.score_heads(model, pairs, metrics="all", progress=False),
    "attention_profile": lambda model, pairs: mi.attention_profile(model, pairs, progress=False),
    "activation_shift": lambda model, pairs: mi.activation_shift(model, pairs, layer=2, progress=False),
    "mediate": lambda model, pairs: mi.mediate(model, pairs, layer=2, progress=False),
    "joint_knockout": lambda model, pairs: mi.joint_knockout(model, pairs, ["L0H1", "L2H3"], n_random_sets=2, progress=False),
    "dose_response": lambda model, pairs: mi.dose_response(
        model, problems()[:2], SLASHES, doses=(2, 4), layer=2, progress=False
    ),
    "read_effects": lambda model, pairs: mi.read_effects(model, pairs, ["L0H1", "L2H3"], progress=False),
    "evaluate_accuracy": answers,
    "locate_heads": located,
    "certify_model": certified,
}


@lru_cache(maxsize=64)
def computed(folder: Path, where: str, attention: str, analysis: str) -> list[np.ndarray]:
    model = here(folder, where, attn_implementation=attention)
    pairs = pairs_for(model, count=2)
    return list(numbers(ANALYSES[analysis](model, pairs)))


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("where", SPLITS)
@pytest.mark.parametrize("analysis", ANALYSES)
def test_a_split_changes_nothing(analysis: str, where: str, attention: str, tiny_model_dir: Any) -> None:
    folder = tiny_model_dir("llama")
    whole = computed(folder, ALONE, attention, analysis)
    split = list(numbers(ANALYSES[analysis](*_ready(folder, where, attention))))
    assert len(whole) == len(split) > 0
    for a, b in zip(whole, split, strict=True):
        assert np.array_equal(a, b, equal_nan=a.dtype.kind == "f")


def _ready(folder: Path, where: str, attention: str) -> tuple[Model, Any]:
    model = here(folder, where, attn_implementation=attention)
    return model, pairs_for(model, count=2)
