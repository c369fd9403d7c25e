"""What the toolkit promises of every architecture, each held against its slow definition: for tests and for the page."""

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import torch
from architectures_under_test import folder_of
from generated_under_test import with_logits
from models_under_test import Gated, loaded, pairs_for, without_stepper

import mless_interp as mi
from mless_interp.answers.decoding import Request
from mless_interp.core.heads import Head
from mless_interp.ground_truth.certificate import certify_model
from mless_interp.models.base import Model
from mless_interp.models.info import Inputs
from mless_interp.patching.outcomes import OUTCOMES
from mless_interp.patching.sweep import patch_heads
from mless_interp.prompts.pairs import PromptPair

HEADS = (Head(0, 1), Head(1, 6), Head(2, 7))


def by_layers(model: Model, pairs: tuple[PromptPair, ...]) -> None:
    """Runs are continued layer by layer, the self-check agrees."""
    assert model.stepper is not None and model.shows_rotated, (model.checks.replay, model.checks.entering)
    assert model.checks.entering_error < 1e-5 and model.checks.replay_difference < 1e-4
    assert model.checks.output_error < 1e-5


def identities(model: Model, pairs: tuple[PromptPair, ...]) -> None:
    """Every exact identity that does not depend on norms or windows applies, and holds."""
    found = certify_model(model, pairs[:1], progress=False)
    assert found.passed, [(verdict.name, verdict.error) for verdict in found.failed]
    frame = found.to_frame().set_index("name")
    undefined = (  # I14: nothing of the question stands before these spans
        {"I12", "I14"}
        | ({"I3"} if model.learned_positions else set())
        | ({"I9", "I10"} if model.attention_output(0).norm else set())
    )
    assert set(frame.index[frame["status"] == "not applicable"]) <= undefined, frame


def sweep(model: Model, pairs: tuple[PromptPair, ...]) -> None:
    """A z sweep by replay is one whole forward pass per head, in both directions."""
    for direction in ("denoising", "noising"):
        fast, slow = (
            patch_heads(each, pairs, direction=direction, heads=HEADS, progress=False).patched
            for each in (model, without_stepper(model))
        )
        at = np.isfinite(fast)
        assert at.any() and np.array_equal(at, np.isfinite(slow))
        assert np.abs(fast - slow)[at].max() < 1e-4
    assert np.ptp(fast[at]) > 1e-3, "the heads differ"


def knockout(model: Model, pairs: tuple[PromptPair, ...]) -> None:
    """A knockout by replay is a forward pass whose heads' output is that of a mask on this head alone."""
    outcome = OUTCOMES["answer_logprob"]
    pair = pairs[0].answered(outcome.appended)
    inputs, (start, stop) = pair.condition("inserted"), pair.span
    read = [inputs.n_tokens - back for back in outcome.reads(pair)]
    found, changes = patch_heads(model, pairs[:1], edit="knockout", heads=HEADS, progress=False), []
    for head in HEADS:
        visible = torch.ones(1, model.info.n_heads, inputs.n_tokens, inputs.n_tokens, dtype=torch.bool)
        visible[:, head.head, stop:, start:stop] = False
        masked = _masked_z(model, inputs, head.layer, visible)[:, stop:, head.head]

        def edit(old: torch.Tensor, head: Head = head, masked: torch.Tensor = masked) -> torch.Tensor:
            new = old.clone()
            new[:, stop:, head.head] = masked
            return new

        whole = model.run(inputs, edits={f"blocks.{head.layer}.attn.hook_z": edit}, logits_at=read).logits
        by_hand = float(outcome.value(whole, pair, None))
        assert abs(found.patched[0, head.layer, head.head] - by_hand) < 1e-4
        changes.append(abs(by_hand - found.receiving[0]))
    assert max(changes) > 1e-3


def _masked_z(model: Model, inputs: Inputs, layer: int, visible: torch.Tensor) -> torch.Tensor:
    """z of a layer where this mask acts on this layer alone: its input is the unmasked run's."""
    resid, z = f"blocks.{layer}.hook_resid_pre", f"blocks.{layer}.attn.hook_z"
    plain = model.run(inputs, capture={resid: None}, logits_at="none").captured[resid]
    masked = Inputs(inputs.tokens, inputs.position_ids, visible)
    return model.run(masked, edits={resid: lambda value: plain}, capture={z: None}, logits_at="none").captured[z]


def attribution(model: Model, pairs: tuple[PromptPair, ...]) -> None:
    """The differentiable pass: all gates closed is the masked run, one closed is its knockout."""
    assert model.stepper is not None, "gradients go layer by layer"
    gated = Gated(model, pairs[0])
    gates = gated.open(2 + len(HEADS))
    gates[0] = 0
    for row, head in enumerate(HEADS):
        gates[2 + row, head.layer, head.head] = 0
    values = gated(gates).detach().double().numpy()
    exact = patch_heads(model, pairs[:1], heads=HEADS, edit="knockout", progress=False)
    expected = [exact.donor[0], exact.receiving[0], *(exact.patched[0, head.layer, head.head] for head in HEADS)]
    assert np.abs(values - expected).max() < 1e-4
    middle = gated.open().requires_grad_()
    (gradient,) = torch.autograd.grad(gated(middle).sum(), middle)
    assert float(gradient.abs().max()) > 1e-4


def decomposition(model: Model, pairs: tuple[PromptPair, ...]) -> None:
    """Every head's change is its scale part, its bias part and its shift, with nothing left that is not said."""
    found = mi.decompose_attention(model, pairs[:2], contrasts=["content"], progress=False)
    lam = found.of("lam")
    assert np.isfinite(lam).all() and (lam > 0).all() and (lam <= 1 + 1e-5).all()


def generation(model: Model, pairs: tuple[PromptPair, ...]) -> None:
    """Batched generation with heads knocked out is one whole forward pass per token."""
    requests = [Request(pair.inserted.ids, pair.id, pair.span) for pair in pairs]
    options: dict[str, Any] = {"max_new_tokens": 4, "knockout": HEADS[:2]}
    fast = with_logits(model, requests, **options)
    slow = with_logits(model, requests, engine="forward", **options)
    for request in requests:
        assert fast[request.key].tokens == slow[request.key].tokens
        torch.testing.assert_close(fast[request.key].logits, slow[request.key].logits, atol=2e-4, rtol=1e-3)


def streaming(model: Model, pairs: tuple[PromptPair, ...]) -> None:
    """Scores from queries and keys in blocks of rows are those from the model's own pattern."""
    own, streamed = (
        mi.score_heads(model, pairs[:2], source=source, progress=False).to_frame()
        for source in ("pattern", "recomputed")
    )
    numbers = own.select_dtypes("number").columns
    assert np.allclose(own[numbers], streamed[numbers], atol=1e-4, rtol=1e-3, equal_nan=True)


FEATURES: dict[str, Callable[[Model, tuple[PromptPair, ...]], None]] = {
    "layer by layer": by_layers,
    "identities": identities,
    "z sweep": sweep,
    "knockout": knockout,
    "attribution": attribution,
    "decomposition": decomposition,
    "generation": generation,
    "streaming": streaming,
}


def model_of(architecture: str, backend: str) -> Model:
    """One model per process, loaded from its folder; tests must not change it."""
    return loaded(folder_of(architecture), backend)


@cache
def pairs_of(architecture: str, backend: str) -> tuple[PromptPair, ...]:
    """Three pairs, whose span is longer than a sliding window."""
    return pairs_for(model_of(architecture, backend))
