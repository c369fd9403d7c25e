"""A loaded model proves that its backend does what the seam promises."""

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch import Tensor

from ..core.arguments import checked
from .arithmetic import mix_values, pattern_of, softmax, values_of_heads, with_sinks
from .base import Model
from .info import BY_LAYERS, ModelChecks, ModelError
from .inputs import Inputs, Recording
from .model_folder import first_line
from .sites import attention_sites, site
from .traced_ops import is_half, look_at_self

TOLERANCE = {"float64": 1e-4, "float32": 1e-3, "bfloat16": 5e-2, "float16": 2e-2}
"""Largest difference allowed, relative to the largest logit. HF's eager softmax is float32 even in float64. TF32 has
float16's bits."""


class FailedCheck(ModelError):
    """A model was loaded and its backend does not do what the seam promises."""


def probe_tokens(d_vocab: int, *, n_tokens: int = 12, seed: int = 0) -> Tensor:
    """A fixed prompt of random token ids `[1, n_tokens]` for checks."""
    return torch.randint(0, d_vocab, (1, n_tokens), generator=torch.Generator().manual_seed(seed))


@checked
def check_model(model: Model, reference: Tensor | None = None) -> ModelChecks:
    """Run the self-check; `reference` is `[1, token, vocab]` of the plain Hugging Face pass on `probe_tokens`.

    Raises `ModelError` with the reason if the model fails. A replay that disagrees is no failure: `replay` says that whole
    forward passes take its place. The model is left as it is: `model.checked(figures)` is the one that goes by them.
    """
    model, info = model.checked(None), model.info
    tokens = probe_tokens(info.d_vocab, n_tokens=min(12, info.context_length))
    tolerance = TOLERANCE.get("float16" if model.tf32 else info.dtype, 1e-3)

    def must(holds: object, reason: str) -> None:
        if not holds:
            raise FailedCheck(f"{info.name} on backend {info.backend!r} failed its check: {reason}")

    @contextmanager
    def told(what: str, *kinds: type[Exception]) -> Iterator[None]:
        try:
            yield
        except FailedCheck:
            raise
        except kinds as failure:
            must(False, f"{what}: {first_line(failure)}; use another backend or dtype")

    with told("its forward pass fails", RuntimeError):
        logits = model.run(tokens).logits
    assert logits is not None
    finite = bool(torch.isfinite(logits).all())
    must(finite, "its logits contain NaN or infinity on a prompt of ordinary tokens; are the weights complete?")
    largest = float(logits.abs().max())
    allowed = tolerance * max(largest, 1.0)
    difference = None if reference is None else _distance(logits, reference)
    other = "nnsight" if info.backend == "bridge" else "bridge"
    must(
        difference is None or difference <= allowed,
        f"its logits differ from the plain Hugging Face forward pass by {difference} (allowed {allowed:.3g}); use another "
        f'backend, for example "{other}"',
    )
    row_error = error = effect = None
    if info.attention == "eager":
        with told("it shows no attention patterns", ModelError):
            row_error = _row_error(model, tokens, must)
        must(
            row_error <= max(tolerance, 1e-5),
            f"the rows of its attention pattern do not sum to 1 (largest error {row_error:.3g})",
        )
        error, effect = _edited_pattern(model, tokens, logits)
        must(
            error <= tolerance,
            "an edit of its attention pattern is not obeyed: where every token looks at itself alone, head outputs differ "
            f"from their own values by {error:.3g} of the largest (allowed {tolerance:.3g})",
        )
    gap = None
    if not (model.remote and model.windows_by_index):
        with told("it takes no mask of its own for each head", RuntimeError, ValueError):
            gap, sees_later = _gap_difference(model, tokens, logits)
        must(
            sees_later <= allowed,
            f"a plain run and one with an explicit causal mask differ by {sees_later:.3g} logits before anything is hidden: "
            "its attention is not causal, or no mask of this form reaches it",
        )
        must(gap <= allowed, f"the gap condition differs from the masked one on shared tokens by {gap:.3g} logits")
    entering_error, entering = _check_entering(model, tokens, tolerance)
    replayed, reason = _check_replay(model, tokens, allowed) if not entering else (None, entering)
    figures = ModelChecks(
        largest_logit=largest,
        row_sum_error=row_error,
        edit_effect=effect,
        edit_error=error,
        logits_difference=difference,
        gap_difference=gap,
        replay_difference=replayed,
        tolerance=tolerance,
        replay=BY_LAYERS if reason is None else f"whole forward passes ({reason})",
        shows_rotated=not entering,
        entering_error=entering_error,
        entering=entering,
        output_error=_output_error(model, tokens),
    )
    return replace(figures, resolution=None if model.remote else _resolution(model.checked(figures), tokens))


def _row_error(model: Model, tokens: Tensor, must: Callable[[object, str], None]) -> float:
    """Largest |sum - 1| of the rows of a pattern `[1, head, dest, src]`, with what a learned sink takes where there is one."""
    info, layers = model.info, range(model.info.n_layers)
    rules = [model.attention_rule(layer) for layer in layers]
    names = [attention_sites(layer, "pattern", "attn_scores")[: 1 + rules[layer].n_extra] for layer in layers]
    seen = model.run(tokens, capture=dict.fromkeys(name for of in names for name in of), logits_at="none").captured
    expected, errors = [1, info.n_heads, tokens.shape[1], tokens.shape[1]], []
    for rule, of in zip(rules, names, strict=True):
        shape = list(seen[of[0]].shape)
        must(shape == expected, f"pattern of shape {shape}, expected {expected}")
        sums = seen[of[0]].double().sum(-1)
        if rule.column is not None:
            sums = sums + softmax(with_sinks(seen[of[1]].double(), rule.column))[..., -1]
        errors.append((sums - 1).abs().max())
    return _max_of(errors)


def _max_of(errors: Iterable[Tensor]) -> float:
    """The largest, wherever each lies; NaN if any is."""
    return float(torch.stack([error.cpu() for error in errors]).max())


def _share(off: Tensor, of: Tensor) -> Tensor:
    """The largest of these differences as a share of the largest of these numbers; 0 where there is no difference."""
    off = off.abs().max()
    return off if off == 0 else off / of.abs().max()


def _steps(z: Tensor, up: Tensor, model: Model) -> Tensor:
    """Head outputs moved by their smallest step, to where `up` is 1 or -1."""
    return z + z * up.to(z) * torch.finfo(torch.float16 if model.tf32 else z.dtype).eps


def _distance(a: Tensor | None, b: Tensor) -> float:
    assert a is not None
    return float((a.cpu().double() - b.cpu().double()).abs().max())


def _edited_pattern(model: Model, tokens: Tensor, logits: Tensor) -> tuple[float, float]:
    """Every token of every layer made to look at itself: largest |z - v| of a layer, as a share of its largest |v|, and
    largest change of a logit (0 where attention writes nothing)."""
    layers = range(model.info.n_layers)
    edits = {site(layer, "attn.hook_pattern"): look_at_self for layer in layers}
    capture = dict.fromkeys(site(layer, f"attn.hook_{what}") for layer in layers for what in "zv")
    run = model.run(tokens, edits=edits, capture=capture)
    errors = []
    for layer in layers:
        z, v = (run.captured[site(layer, f"attn.hook_{what}")][0].double().cpu() for what in "zv")
        errors.append(_share(z - values_of_heads(v, model.info.n_heads).transpose(0, 1), v))
    return _max_of(errors), _distance(run.logits, logits)


def _gap_difference(model: Model, tokens: Tensor, logits: Tensor) -> tuple[float, float]:
    """Largest difference of the masked condition's logits (a mask for each head) from the gap's on shared tokens, and from
    the plain run's (`logits`) on the tokens before the span."""
    size = tokens.shape[1]
    start, stop = size // 3, 2 * size // 3
    keep = torch.tensor([*range(start), *range(stop, size)])
    inside = torch.zeros(size, dtype=torch.bool)
    inside[start:stop] = True
    mask = (~(inside[None, :] & ~inside[:, None]))[None, None].expand(-1, model.info.n_heads, -1, -1)
    masked = model.run(tokens, attention_mask=mask, logits_at=keep).logits
    gapped = model.run(tokens[:, keep], position_ids=keep[None]).logits
    assert gapped is not None and masked is not None
    return _distance(masked, gapped), _distance(masked[:, :start], logits[:, :start])


def _check_entering(model: Model, tokens: Tensor, tolerance: float) -> tuple[float | None, str]:
    """How far queries and keys as they enter the scores explain what heads give, as they are and with all queries 0; and
    why they are not to be used (empty: they are)."""
    layers, visible = range(model.info.n_layers), model.visible(Inputs(tokens.to(model.info.device)))
    parts = ("rot_q", "rot_k", "v", "z")
    capture = dict.fromkeys(name for layer in layers for name in attention_sites(layer, *parts))
    zero = {site(layer, "attn.hook_rot_q"): torch.zeros_like for layer in layers}
    errors = []
    try:
        for edits in ({}, zero):
            seen = model.run(tokens, capture=capture, edits=edits, logits_at="none").captured
            for layer in layers:
                q, k, v, z = (seen[name].double() for name in attention_sites(layer, *parts))
                q = q * 0 if edits else q
                pattern = pattern_of(q, k, visible[layer].to(q.device), model.attention_rule(layer))
                errors.append(_share(mix_values(pattern, v) - z, v))
    except (ModelError, AttributeError, KeyError, ValueError, RuntimeError) as error:
        return None, first_line(error)
    largest = _max_of(errors)
    off = f"heads' outputs are off by {largest:.3g} of the largest value where they are computed from them"
    return largest, "" if largest <= tolerance else off


@torch.no_grad()
def _output_error(model: Model, tokens: Tensor) -> float | None:
    """Return the largest difference of what a layer's attention adds from z W_O + b at random z, as a share of the largest;
    None where the weights are not here."""
    layers, shape = range(model.info.n_layers), (model.info.n_heads, model.info.d_head)
    z = torch.randn(1, tokens.shape[1], *shape, dtype=torch.float32, generator=torch.Generator().manual_seed(4))
    edits = {site(layer, "attn.hook_z"): lambda old: z.to(old) for layer in layers}
    names = [site(layer, "hook_attn_out") for layer in layers]
    errors = []
    try:
        model.attention_output(0)
        added = model.run(tokens, edits=edits, capture=dict.fromkeys(names), logits_at="none").captured
        for layer, name in zip(layers, names, strict=True):
            output = model.attention_output(layer)
            wrote = output.before_norm(z.to(output.weights))
            wrote = wrote if output.norm is None else output.norm(wrote)
            errors.append(_share((wrote.to(added[name]) - added[name]).double(), added[name]))
    except ModelError:
        return None
    return _max_of(errors)


def _resolution(model: Model, tokens: Tensor, *, rows: int = 4) -> float:
    """What rounding does to the log-probability of a token, in nats: `ModelChecks.resolution`."""
    n_layers, start = model.info.n_layers, tokens.shape[1] // 2
    at = list(range(start, tokens.shape[1] - 1))
    recording = model.record(Inputs(tokens), start=start, logits_at=at)
    generator = torch.Generator().manual_seed(2)
    joins, z = [], []
    for layer in sorted({0, n_layers // 3, 2 * n_layers // 3, n_layers - 1}):
        own = recording.z[layer].cpu()
        up = torch.randint(0, 2, (rows, *own.shape), generator=generator) * 2 - 1
        up[0] = 0  # put back as it is
        joins += [layer] * rows
        z.append(_steps(own, up, model).to(recording.z[0]))
    found = model.replay(recording, joins, torch.cat(z).flatten(0, 1), logits_at=at)
    assert recording.logits is not None
    after = tokens[:, start + 1 :].expand(len(joins), -1)[..., None]
    off = _log_probability(found, after) - _log_probability(recording.logits.expand_as(found), after)
    return 2 * float(off.square().mean().sqrt())


def _log_probability(logits: Tensor, ids: Tensor) -> Tensor:
    ids = ids % logits.shape[-1]  # where it gives classes, any will do
    return logits.cpu().double().log_softmax(-1).gather(-1, ids)


def _moved_by_rounding(model: Model, recording: Recording, layers: list[int], z: Tensor, logits: Tensor) -> float:
    """Twice the largest change of a logit where every head output `z` is moved by its smallest step, up or down: what whole
    passes, whose `logits` these are, cannot tell apart either."""
    generator, moved = torch.Generator().manual_seed(3), []
    for _ in range(4):
        stepped = _steps(z, torch.randint(0, 2, z.shape, generator=generator) * 2 - 1, model)
        moved.append(_distance(model.replay(recording, layers, stepped, logits_at="all", exact_forward=True), logits))
    return 2 * max(moved)


def _check_replay(model: Model, tokens: Tensor, allowed: float) -> tuple[float | None, str | None]:
    """How far a replay of three layers at once is off, and why runs are not to be continued so (None: they are). In half
    precision it is held against what rounding does, as measured here, where that is more than is allowed."""
    if model.stepper is None:
        return None, model.why_whole_passes
    layers, start = sorted({0, model.info.n_layers // 2, model.info.n_layers - 1}), tokens.shape[1] // 2
    recording = model.record(Inputs(tokens), start=start)
    generator = torch.Generator().manual_seed(1)
    noise = torch.randn(recording.z[0].shape, generator=generator, dtype=torch.float32)
    z = torch.stack([(recording.z[layer].cpu() + noise).to(recording.z[0]) for layer in layers], 1).flatten(0, 1)
    try:
        fast = model.replay(recording, layers, z, logits_at="all")
    except (AttributeError, TypeError, RuntimeError) as error:
        return None, f"continuing layer by layer failed: {str(error).splitlines()[0]}"
    exact = model.replay(recording, layers, z, logits_at="all", exact_forward=True)
    difference, rounding = _distance(fast, exact), ""
    if not difference <= allowed and (model.tf32 or is_half(z)):
        moved = _moved_by_rounding(model, recording, layers, z, exact)
        rounding = f", more than rounding moves them ({moved:.3g})"
        allowed = max(allowed, moved) if math.isfinite(moved) else allowed
    off = f"continuing layer by layer was off by {difference:.3g} logits{rounding}"
    return difference, None if difference <= allowed else off
