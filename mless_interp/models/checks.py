"""A loaded model proves that its backend does what the seam promises."""

from dataclasses import asdict, dataclass

import torch
from torch import Tensor

from ..running.registry import savable
from .base import Model
from .info import ModelError
from .inputs import Inputs
from .sites import site

TOLERANCE = {"float64": 1e-4, "float32": 1e-3, "bfloat16": 5e-2, "float16": 2e-2}
"""Largest difference allowed, relative to the largest logit. HF's eager softmax is float32 even in float64."""


class FailedCheck(ModelError):
    """A model was loaded and its backend does not do what the seam promises."""


@savable
@dataclass(frozen=True)
class ModelChecks:
    """The figures of the self-check at loading; they travel with every saved result.

    `row_sum_error`: largest |row sum of a pattern - 1|. `edit_effect`: largest change of a logit when every token
    of layer 0 is made to look at itself. `logits_difference`: largest difference to the plain Hugging Face forward pass.
    `gap_difference`: largest difference between the gap and the masked condition on shared tokens (methods: C2 = C3).
    `replay_difference`: replay against one whole forward pass. All in logits, except the first; None = does not apply
    (fused attention has no patterns; a wrapped object has no Hugging Face model beside it).
    """

    largest_logit: float
    row_sum_error: float | None
    edit_effect: float | None
    logits_difference: float | None
    gap_difference: float | None
    replay_difference: float | None
    tolerance: float
    replay: str

    def to_dict(self) -> dict[str, float | str | None]:
        """The figures, ready for JSON."""
        return asdict(self)


def probe_tokens(d_vocab: int, *, n_tokens: int = 12, seed: int = 0) -> Tensor:
    """A fixed prompt of random token ids `[1, n_tokens]` for checks."""
    return torch.randint(0, d_vocab, (1, n_tokens), generator=torch.Generator().manual_seed(seed))


def check_model(model: Model, reference: Tensor | None = None) -> ModelChecks:
    """Run the self-check; `reference` is `[1, token, vocab]` of the plain Hugging Face pass on `probe_tokens`.

    Raises `ModelError` with the reason if the model fails. A replay that disagrees is switched off, not refused: the
    model then replays by whole forward passes, and `replay` says so.
    """
    info = model.info
    tokens = probe_tokens(info.d_vocab)
    size = tokens.shape[1]
    tolerance = TOLERANCE.get(info.dtype, 1e-3)

    def fail(reason: str) -> FailedCheck:
        return FailedCheck(f"{info.name} on backend {info.backend!r} failed its check: {reason}")

    logits = model.run(tokens).logits
    assert logits is not None
    if not bool(torch.isfinite(logits).all()):
        raise fail("its logits contain NaN or infinity on a prompt of ordinary tokens; are the weights complete?")
    largest = float(logits.abs().max())
    allowed = tolerance * max(largest, 1.0)

    difference = None
    if reference is not None:
        difference = _distance(logits, reference)
        if difference > allowed:
            raise fail(
                f"its logits differ from the plain Hugging Face forward pass by {difference:.3g} (allowed "
                f'{allowed:.3g}); use another backend, for example "bridge"'
            )

    row_error = effect = None
    if info.attention == "eager":
        name = site(0, "attn.hook_pattern")
        pattern = model.run(tokens, capture={name: None}, logits_at="last").captured[name]
        if tuple(pattern.shape) != (1, info.n_heads, size, size):
            raise fail(f"pattern of shape {list(pattern.shape)}, expected [1, {info.n_heads}, {size}, {size}]")
        row_error = float((pattern.double().sum(-1) - 1).abs().max())
        if row_error > max(tolerance, 1e-5):
            raise fail(f"the rows of its attention pattern do not sum to 1 (largest error {row_error:.3g})")
        edited = model.run(tokens, edits={name: lambda p: torch.eye(size).to(p).expand_as(p)}).logits
        effect = _distance(edited, logits)
        if effect == 0:
            raise fail("an edit of its attention pattern does not change the logits")

    gap = None
    if not getattr(model, "remote", False):
        gap = _gap_difference(model, tokens)
        if gap > allowed:
            raise fail(f"the gap condition differs from the masked one on shared tokens by {gap:.3g} logits")
    return ModelChecks(
        largest_logit=largest,
        row_sum_error=row_error,
        edit_effect=effect,
        logits_difference=difference,
        gap_difference=gap,
        replay_difference=(replayed := _check_replay(model, tokens, allowed))[0],
        tolerance=tolerance,
        replay=replayed[1],
    )


def _distance(a: Tensor | None, b: Tensor) -> float:
    assert a is not None
    return float((a.cpu().double() - b.cpu().double()).abs().max())


def _gap_difference(model: Model, tokens: Tensor) -> float:
    size, start, stop = tokens.shape[1], 4, 8
    keep = torch.tensor([*range(start), *range(stop, size)])
    inside = torch.zeros(size, dtype=torch.bool)
    inside[start:stop] = True
    mask = ~(inside[None, :] & ~inside[:, None])[None, None]
    masked = model.run(tokens, attention_mask=mask, logits_at=keep).logits
    gapped = model.run(tokens[:, keep], position_ids=keep[None]).logits
    assert gapped is not None
    return _distance(masked, gapped)


def _check_replay(model: Model, tokens: Tensor, allowed: float) -> tuple[float | None, str]:
    try:
        model.run(
            tokens, capture={site(0, "attn.hook_rot_q"): None, site(0, "attn.hook_rot_k"): None}, logits_at="none"
        )
    except (ModelError, AttributeError, KeyError, ValueError):
        model.shows_rotated, model.stepper = False, None
    if model.stepper is None:
        return None, "whole forward passes (this architecture cannot be continued layer by layer)"
    layers, start = sorted({0, model.info.n_layers // 2, model.info.n_layers - 1}), tokens.shape[1] // 2
    recording = model.record(Inputs(tokens), start=start)
    generator = torch.Generator().manual_seed(1)
    noise = torch.randn(recording.z[0].shape, generator=generator)
    z = torch.stack([(recording.z[layer].cpu() + noise).to(recording.z[0]) for layer in layers], 1).flatten(0, 1)
    try:
        fast = model.replay(recording, layers, z, logits_at="all")
    except (AttributeError, TypeError, RuntimeError) as error:
        model.stepper = None
        return None, f"whole forward passes (continuing layer by layer failed: {str(error).splitlines()[0]})"
    difference = _distance(fast, model.replay(recording, layers, z, logits_at="all", exact_forward=True))
    if difference > allowed:
        model.stepper = None
        return difference, f"whole forward passes (continuing layer by layer was off by {difference:.3g} logits)"
    return difference, "layer by layer"
