"""MLPs without a gate: metrics, ARM and mediation of the activation itself, labelled, against plain Hugging Face's hooks."""

import warnings
from collections.abc import Callable
from functools import cache
from operator import attrgetter
from typing import Any

import numpy as np
import pytest
import torch
from architectures_under_test import folder_of
from conftest import needs_hooked_transformer
from generated_under_test import generate_completions
from models_under_test import loaded, pairs_for

from mless_interp.answers.decoding import Request
from mless_interp.mechanism import ARM, activation_shift, mediate
from mless_interp.models.base import Model
from mless_interp.models.info import ModelError
from mless_interp.models.sites import UNGATED, site

ACTIVATION = {
    "GPT-2": "transformer.h.{}.mlp.act",
    "GPT-NeoX (Pythia)": "gpt_neox.layers.{}.mlp.act",
    "OPT": "model.decoder.layers.{}.activation_fn",
    "Phi-2": "model.layers.{}.mlp.activation_fn",
    "Phi-3": "model.layers.{}.mlp.activation_fn",
}
"""Where plain Hugging Face has the activation of a layer's MLP."""
BACKENDS = ("hooked_transformer", "bridge", "nnsight")


def here(name: str, backend: str) -> Model:
    with warnings.catch_warnings():
        # TransformerLens 4.3, where it obeys no edit
        warnings.filterwarnings("ignore", "A hook on .*hook_pattern", UserWarning)
        return loaded(folder_of(name), backend)


@cache
def plain(name: str) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder_of(name), attn_implementation="eager").eval()


def hooked(name: str, layer: int, tokens: torch.Tensor, change: Callable[[torch.Tensor], Any]) -> torch.Tensor:
    """Logits of plain Hugging Face; `change` gets the activations `[batch, token, d_mlp]`, and None leaves them."""

    def hook(module: Any, args: Any, out: torch.Tensor) -> Any:
        new = change(out.view(len(tokens), tokens.shape[1], -1))
        return None if new is None else new.view_as(out)

    handle = attrgetter(ACTIVATION[name].format(layer))(plain(name)).register_forward_hook(hook)
    try:
        with torch.no_grad():
            return plain(name)(tokens).logits
    finally:
        handle.remove()


@pytest.mark.parametrize(
    ("name", "backend"),
    [
        pytest.param(name, BACKENDS[at % 3], marks=[needs_hooked_transformer] * (at % 3 == 0))
        for at, name in enumerate(ACTIVATION, start=1)
    ],
)
def test_arm_is_a_hook_on_hugging_face_s_activation(name: str, backend: str) -> None:
    model, layer = here(name, backend), 1
    tokens = pairs_for(model)[0].condition("inserted").tokens
    arm = ARM(c=0.3, p1=99, layers=(layer,), reading="code_replace")
    draw = lambda: arm.generator("p0", layer=layer)  # noqa: E731
    expected = hooked(name, layer, tokens, lambda out: arm.redistribute(out[0], generator=draw())[None])
    post = site(layer, "mlp.hook_post")
    before = model.run(tokens, capture={post: None})
    found = model.run(tokens, edits=arm.edits(model, keys=["p0"]), capture={post: None})
    assert float((found.logits - expected).abs().max()) < 2e-4
    assert float((expected - before.logits).abs().max()) > 1e-2, "ARM does something here"
    if name != "Phi-3":  # which has a gate
        old, new = before.captured[post][0], found.captured[post][0]
        selected = arm._plan(old)[0]
        torch.testing.assert_close(new, arm.redistribute(old, generator=draw()), rtol=1e-5, atol=1e-6)
        assert torch.equal(new[~selected], old[~selected]) and not torch.equal(new[selected], old[selected])
    assert torch.equal(model.run(tokens).logits, before.logits), "nothing stays behind"


@pytest.mark.parametrize("name", ["GPT-2", "GPT-NeoX (Pythia)"])
def test_mediation_reads_the_activation_where_attention_reaches_it(name: str) -> None:
    model, layer = here(name, "nnsight"), 1
    bare = pairs_for(model, n_tokens=9)[:2]
    found = mediate(model, bare, layer=layer, progress=False)
    shift = activation_shift(model, bare, layer=layer, contrasts=("content",), progress=False)
    for reading in ("mean", "mean_absolute", "variance", "near_zero_arm", "near_zero_quantile"):
        at, off = shift.metrics.index(reading), 2e-4 if reading.startswith("near_zero") else 1e-6
        assert found.of(reading, "without") == pytest.approx(shift.before[:, 0, 0, at], abs=off)
        assert found.of(reading, "with") == pytest.approx(shift.after[:, 0, 0, at], abs=off)
    moved = float(np.abs(found.effect("mean_absolute", "both")).max())
    assert UNGATED in " ".join(found.details()) and found.settings["gated"] is False
    assert (moved < 1e-6) is (name != "GPT-2"), "in parallel with attention"
    assert np.abs(found.effect("outcome", "both")).max() > 1e-3


@pytest.mark.parametrize(("name", "backend"), [("Mixtral", "bridge"), ("Qwen3-MoE", "nnsight")])
def test_experts_share_no_activation(name: str, backend: str) -> None:
    model = here(name, backend)
    pairs, arm = pairs_for(model, n_tokens=9)[:1], ARM(0.1, 99.0, layers=(1,))
    words = f"{model.info.architecture}.*layer 1 has no activation act.*experts.*undefined"
    for doing in (
        lambda: activation_shift(model, pairs, layer=1, progress=False),
        lambda: mediate(model, pairs, layer=1, progress=False),
        lambda: arm.edits(model, keys=["p0"]),
        lambda: generate_completions(model, [Request(pairs[0].inserted.ids, "p")], max_new_tokens=1, arm=arm),
    ):
        with pytest.raises(ModelError, match=words):
            doing()
