"""A loaded model proves that its backend does what the seam promises; how far two sides of an identity are apart."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..core.arguments import checked
from ..runtime.folders import savable
from ..runtime.loop import out_of_memory
from .attention_math import mix_values, pattern_of, softmax, values_of_heads, with_sinks
from .base import Model
from .info import BY_LAYERS, Inputs, ModelChecks, ModelError, Recording
from .load_options import first_line
from .sites import attention_sites, site
from .traced_ops import is_half, look_at_self

TOLERANCE = {"float64": 1e-4, "float32": 1e-3, "bfloat16": 5e-2, "float16": 2e-2}
"""Largest difference allowed, relative to the largest logit. HF's eager softmax is float32 even in float64. TF32 has
float16's bits."""


REACH = 160  # tokens on which masks and replay are checked at loading; longer prompts are checked when they come


class FailedCheck(ModelError):
    """A model was loaded and its backend does not do what the seam promises."""


@dataclass(frozen=True)
class Finding:
    """How far two sides of an identity are apart: `error` the largest difference, `scale` the largest value compared."""

    error: float
    scale: float

    @property
    def relative(self) -> float:
        """`error` / `scale`; infinite where there is nothing to compare an error with, or NaN."""
        if self.error == 0:
            return 0.0
        ratio = self.error / self.scale if self.scale > 0 else math.inf
        return math.inf if math.isnan(ratio) else ratio


def apart(a: Tensor, b: Tensor, *, scale: float | None = None) -> Finding:
    """Return the largest difference of two tensors, and the largest value in them (or `scale`); NaN is infinitely far."""
    a, b = a.detach().cpu().double(), b.detach().cpu().double()
    error = float((a - b).abs().nan_to_num(nan=math.inf).max()) if a.numel() else 0.0
    largest = max(float(x.abs().nan_to_num(nan=0.0).max()) for x in (a, b)) if a.numel() else 0.0
    return Finding(error, largest if scale is None else scale)


def worst(findings: Iterable[Finding]) -> Finding:
    """Return the finding with the largest relative error."""
    return max(findings, key=lambda finding: finding.relative)


def size(values: Tensor) -> float:
    """Return the largest absolute value."""
    return float(values.detach().double().abs().max())


def probe_tokens(d_vocab: int, *, n_tokens: int = 12, seed: int = 0) -> Tensor:
    """Return a fixed prompt of random token ids `[1, n_tokens]` for checks."""
    return torch.randint(0, d_vocab, (1, n_tokens), generator=torch.Generator().manual_seed(seed))


@savable
@dataclass(frozen=True, repr=False)
class SelfCheck(ModelChecks):
    """The figures of a self-check that goes on with longer prompts."""

    def on_longer(self, model: Model, n_tokens: int) -> ModelChecks:
        """Check masks and replay on so many tokens too.

        A replay that disagrees goes by whole forward passes from then on; `ModelError` for masks that do.
        """
        tokens, found = probe_tokens(model.info.d_vocab, n_tokens=n_tokens), replace(self, reach=n_tokens)
        longer = model.checked(found)
        try:
            _check_masks(longer, tokens, found.tolerance)
        except ModelError as error:
            raise ModelError(
                f"{model.info.name} is right on prompts of up to {self.reach} tokens, but {error}"
            ) from error
        if longer.stepper is not None and (reason := _check_replay(longer, tokens, found.tolerance, [0])[1]):
            return replace(found, replay=f"whole forward passes ({reason})")
        return found


@checked
def check_model(model: Model, reference: Tensor | None = None) -> ModelChecks:
    """Run the self-check; `reference` is `[1, token, vocab]` of the plain Hugging Face pass on `probe_tokens`.

    Raises `ModelError` with the reason if the model fails. A replay that disagrees is no failure: `replay` says that whole
    forward passes take its place. The model is left as it is: `model.checked(figures)` is the one that goes by them.
    """
    try:
        return _figures(model.checked(None), reference)
    except Exception as error:  # of a library, or ours, whatever it is: such a model is not used
        where = f"{model.info.name} on backend {model.info.backend!r}"
        raise FailedCheck(f"{where} failed its check: {first_line(error)}; use another backend or dtype") from error


def _figures(model: Model, reference: Tensor | None) -> ModelChecks:
    info = model.info
    tokens = probe_tokens(info.d_vocab, n_tokens=min(12, info.context_length))
    tolerance = TOLERANCE.get("float16" if model.tf32 else info.dtype, 1e-3)
    logits = model.run(tokens).logits
    assert logits is not None
    if not logits.isfinite().all():
        raise ModelError("its logits contain NaN or infinity on a prompt of ordinary tokens; are the weights complete?")
    if not (largest := size(logits)) > 0:  # every tolerance below is a share of it
        raise ModelError("its logits are all 0 on a prompt of ordinary tokens; are the weights damaged?")
    allowed = tolerance * largest
    difference = row_error = gap = None
    if reference is not None:
        difference = apart(logits, reference).error
        _must(difference, allowed, "its logits differ from the plain Hugging Face forward pass")
    eager, masked = info.attention == "eager", not (model.remote and model.windows_by_index)
    if eager:
        row_error = _row_error(model, tokens)
        _must(row_error, max(tolerance, 1e-5), "the rows of its attention pattern do not sum to 1 and are off")
    if eager or masked:
        broken = (
            "an edit of its attention pattern is not obeyed" if eager else "what it mixes is not its heads' outputs"
        )
        what = f"{broken}: with every token looking at itself alone, head outputs differ from their own values"
        _must(_looking_at_themselves(model, tokens), tolerance, f"{what}, as a share of the largest,")
    if masked:
        gap, sees_later = _gap_difference(model, tokens, logits)
        _must(sees_later, allowed, "a plain run and one with an explicit causal mask differ before anything is hidden")
        _must(gap, allowed, "the gap condition differs from the masked one on shared tokens")
    entering_error, entering = _check_entering(model, tokens, tolerance)
    replayed, reason = _check_replay(model, tokens, tolerance) if not entering else (None, entering)
    replay, output = f"whole forward passes ({reason})" if reason else BY_LAYERS, _output_error(model, tokens)
    figures = SelfCheck(
        largest_logit=largest,
        row_sum_error=row_error,
        logits_difference=difference,
        gap_difference=gap,
        replay_difference=replayed,
        tolerance=tolerance,
        replay=replay,
        shows_rotated=not entering,
        entering_error=entering_error,
        entering=entering,
        output_error=output,
    )
    figures = replace(figures, resolution=None if model.remote else _resolution(model.checked(figures), tokens))
    return figures.on_longer(model.checked(figures), min(REACH, info.context_length))


def _check_masks(model: Model, tokens: Tensor, tolerance: float) -> None:
    """Raise `ModelError` where the model does not see what its windows say, on the last tokens of a prompt."""
    if model.remote and model.windows_by_index:
        return
    n_tokens = tokens.shape[1]
    last, every = list(range(max(0, n_tokens - 4), n_tokens)), torch.ones(1, 1, n_tokens, n_tokens, dtype=torch.bool)
    own, masked = (model.run(inputs, logits_at=last).logits for inputs in (Inputs(tokens), Inputs(tokens, None, every)))
    assert own is not None and masked is not None
    what = f"with an explicit causal mask of {n_tokens} tokens its logits are others"
    _must(apart(own, masked).error, tolerance * size(own), what)


def _must(error: float, allowed: float, what: str) -> None:
    if not error <= allowed:
        raise ModelError(f"{what} by {error:.3g} (allowed {allowed:.3g})")


def _row_error(model: Model, tokens: Tensor) -> float:
    """Return the largest |sum - 1| of the rows of a pattern `[1, head, dest, src]`, with what a sink takes."""
    rules = [model.attention_rule(layer) for layer in range(model.info.n_layers)]
    names = [attention_sites(at, "pattern", "attn_scores")[: 1 + rule.n_extra] for at, rule in enumerate(rules)]
    seen = model.run(tokens, capture=dict.fromkeys(name for of in names for name in of), logits_at="none").captured
    errors = []
    for rule, (name, *scores) in zip(rules, names, strict=True):
        sums = seen[name].double().sum(-1)
        if rule.column is not None:
            sums = sums + softmax(with_sinks(seen[scores[0]].double(), rule.column))[..., -1]
        errors.append(apart(sums, torch.ones_like(sums)).error)
    return max(errors)


def _looking_at_themselves(model: Model, tokens: Tensor) -> float:
    """Let every token see itself alone, by pattern or (under a fused kernel) by mask: largest |z - v| as a share of a layer's
    largest |v|."""
    names = [attention_sites(layer, "z", "v") for layer in range(model.info.n_layers)]
    mask = torch.eye(tokens.shape[1], dtype=torch.bool).expand(1, model.info.n_heads, -1, -1)
    edits = {site(layer, "attn.hook_pattern"): look_at_self for layer in range(model.info.n_layers)}
    how = (Inputs(tokens), edits) if model.info.attention == "eager" else (Inputs(tokens, None, mask), {})
    capture, found = dict.fromkeys(name for of in names for name in of), []
    seen = model.run(how[0], edits=how[1], capture=capture, logits_at="none").captured
    for of in names:
        z, v = (seen[name][0] for name in of)
        found.append(apart(z, values_of_heads(v, model.info.n_heads).transpose(0, 1), scale=size(v)))
    return worst(found).relative


def _gap_difference(model: Model, tokens: Tensor, logits: Tensor) -> tuple[float, float]:
    """Return how far the masked condition's logits are from the gap's on shared tokens, and before it from the plain run's."""
    n_tokens = tokens.shape[1]
    start, stop = n_tokens // 3, 2 * n_tokens // 3
    index = torch.arange(n_tokens)
    inside = (index >= start) & (index < stop)
    keep = index[~inside]
    mask = (~(inside[None, :] & ~inside[:, None]))[None, None].expand(-1, model.info.n_heads, -1, -1)
    masked = model.run(Inputs(tokens, None, mask), logits_at=keep).logits
    gapped = model.run(Inputs(tokens[:, keep], keep[None])).logits
    assert gapped is not None and masked is not None
    return apart(masked, gapped).error, apart(masked[:, :start], logits[:, :start]).error


def _check_entering(model: Model, tokens: Tensor, tolerance: float) -> tuple[float | None, str]:
    """Say how far entering queries and keys explain what heads give, as they are and with queries 0; why not to use them."""
    visible = model.visible(Inputs(tokens.to(model.info.device)))
    names = [attention_sites(layer, "rot_q", "rot_k", "v", "z") for layer in range(model.info.n_layers)]
    capture, found = dict.fromkeys(name for of in names for name in of), []
    try:
        for edits in ({}, {of[0]: torch.zeros_like for of in names}):
            seen = model.run(tokens, capture=capture, edits=edits, logits_at="none").captured
            for layer, of in enumerate(names):
                q, k, v, z = (seen[name].double() for name in of)
                q = q * 0 if edits else q
                pattern = pattern_of(q, k, visible[layer].to(q.device), model.attention_rule(layer))
                found.append(apart(mix_values(pattern, v), z, scale=size(v)))
    except (ModelError, AttributeError, KeyError, ValueError, RuntimeError) as error:
        return None, first_line(error)
    largest = worst(found).relative
    off = f"heads' outputs are off by {largest:.3g} of the largest value where they are computed from them"
    return largest, "" if largest <= tolerance else off


@torch.no_grad()
def _output_error(model: Model, tokens: Tensor) -> float | None:
    """Return how far what attention adds is from z W_O + b at random z, as a share; None where the weights are not here."""
    layers, shape = range(model.info.n_layers), (model.info.n_heads, model.info.d_head)
    z = torch.randn(1, tokens.shape[1], *shape, dtype=torch.float32, generator=torch.Generator().manual_seed(4))
    edits = {site(layer, "attn.hook_z"): lambda old: z.to(old) for layer in layers}
    names, found = [site(layer, "hook_attn_out") for layer in layers], []
    try:
        model.attention_output(0)
        added = model.run(tokens, edits=edits, capture=dict.fromkeys(names), logits_at="none").captured
        for layer, name in zip(layers, names, strict=True):
            output = model.attention_output(layer)
            wrote = output.before_norm(z.to(output.weights))
            wrote = wrote if output.norm is None else output.norm(wrote)
            found.append(apart(wrote, added[name], scale=size(added[name])))
    except ModelError:
        return None
    return worst(found).relative


def _steps(z: Tensor, up: Tensor, model: Model) -> Tensor:
    """Move head outputs by their smallest step, to where `up` is 1 or -1."""
    return z + z * up.to(z) * torch.finfo(torch.float16 if model.tf32 else z.dtype).eps


def _resolution(model: Model, tokens: Tensor, *, rows: int = 4) -> float:
    """Return what rounding does to the log-probability of a token, in nats: `ModelChecks.resolution`."""
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
    after = tokens[:, start + 1 :].expand(len(joins), -1)[..., None] % found.shape[-1]  # of classes any will do
    said = (x.cpu().double().log_softmax(-1).gather(-1, after) for x in (found, recording.logits.expand_as(found)))
    return 2 * float(torch.sub(*said).square().mean().sqrt())


def _moved_by_rounding(model: Model, recording: Recording, layers: list[int], z: Tensor, logits: Tensor) -> float:
    """Return twice the largest change of a logit as head outputs move by their smallest step: whole passes differ so, too."""
    generator, moved = torch.Generator().manual_seed(3), []
    for _ in range(4):
        stepped = _steps(z, torch.randint(0, 2, z.shape, generator=generator) * 2 - 1, model)
        moved.append(apart(model.replay(recording, layers, stepped, logits_at="all", exact_forward=True), logits).error)
    return 2 * max(moved)


def _check_replay(
    model: Model, tokens: Tensor, tolerance: float, layers: list[int] | None = None
) -> tuple[float | None, str | None]:
    """Return how far a replay of `layers` at once (three, unless given) is off, and why runs are not to be continued so (None:
    they are)."""
    if model.stepper is None:
        return None, model.why_whole_passes
    layers = layers or sorted({0, model.info.n_layers // 2, model.info.n_layers - 1})
    start = max(tokens.shape[1] // 2, tokens.shape[1] - 6)
    recording = model.record(Inputs(tokens), start=start)
    generator = torch.Generator().manual_seed(1)
    noise = torch.randn(recording.z[0].shape, generator=generator, dtype=torch.float32)
    z = torch.stack([(recording.z[layer].cpu() + noise).to(recording.z[0]) for layer in layers], 1).flatten(0, 1)
    try:
        fast = model.replay(recording, layers, z, logits_at="all")
    except (AttributeError, TypeError, RuntimeError) as error:
        if out_of_memory(error):
            raise
        return None, f"continuing layer by layer failed: {first_line(error)}"
    exact = model.replay(recording, layers, z, logits_at="all", exact_forward=True)
    difference, rounding, allowed = apart(fast, exact).error, "", tolerance * size(exact)
    if not difference <= allowed and (model.tf32 or is_half(z)):
        moved = _moved_by_rounding(model, recording, layers, z, exact)
        rounding = f", more than rounding moves them ({moved:.3g})"
        allowed = max(allowed, moved) if math.isfinite(moved) else allowed
    off = f"continuing layer by layer was off by {difference:.3g} logits on {tokens.shape[1]} tokens{rounding}"
    return difference, None if difference <= allowed else off
