"""Screening: estimates of every head's share from a few passes with gradients, to be verified by exact sweeps."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from .heads import Head
from .insertions import PromptPair
from .models.base import Model, ModelError
from .outcomes import OUTCOMES, Outcome, named
from .patching import CONTRASTS, checked_pairs, span_of
from .progress import progress_bar

METHODS = ("gate_ig", "atp")


def attribute_heads(
    model: Model,
    pairs: Iterable[PromptPair],
    *,
    method: str = "gate_ig",
    outcome: str | Outcome = "answer_logprob",
    steps: int = 16,
    progress: bool = True,
) -> "HeadAttribution":
    r"""Estimate what each head's response to the insertion's content adds to the outcome.

    "gate_ig": gates on the attention from the question to the span, integrated from closed to open,

    $$ \mathrm{IG}_{l,h} = \int_0^1 \frac{\partial Y}{\partial g_{l,h}}\Big|_{g = s} ds, \qquad
       \sum_{l,h} \mathrm{IG}_{l,h} = Y(C_1) - Y(C_3), $$

    by Gauss-Legendre with `steps` nodes, all in one batch. It sees direct reads (readers); `completeness` is the error of
    the sum (where it is not small beside the effect, raise `steps`). "atp": (z_inserted - z_masked) . dY/dz at the
    inserted run, one backward pass; it sees mediators too.

    Positive: the head's response raises the outcome. Per problem, never averaged before.

    Source: gates of Michel et al. (1905.10650), integrated gradients of Sundararajan et al. (1703.01365), attribution
    patching as in AtP* (2403.00745); methods §7. Raises `ModelError` for a model that cannot be continued layer by layer
    and `ValueError` for an outcome whose gradient vanishes at the run ("kl").
    """
    read_outcome = named(outcome, OUTCOMES, "outcome", Outcome)
    if method not in METHODS:
        raise ValueError(f"unknown method {method!r}; choose one of {', '.join(METHODS)}")
    if read_outcome.needs_clean and method == "atp":
        raise ValueError(
            "atp from a divergence is 0 by construction at its own reference; use outcome='answer_logprob'"
        )
    if model.stepper is None:
        raise ModelError(f"{model.info.name} cannot be continued layer by layer, which gradients need: use patch_heads")
    if torch.is_inference_mode_enabled():
        raise ModelError("no gradients inside torch.inference_mode(): leave it first (torch.no_grad() is no obstacle)")
    if steps < 1:
        raise ValueError(f"steps must be 1 or more, got {steps}")
    answered = [pair.answered(read_outcome.appended) for pair in checked_pairs(pairs)]
    read_outcome.check(answered)
    info = model.info
    scores = np.full((len(answered), info.n_layers, info.n_heads), np.nan)
    ends = np.full((len(answered), 2), np.nan)
    with progress_bar(len(answered), f"attributing ({method})", enabled=progress) as bar:
        for index, pair in enumerate(answered):
            one = _gate_ig if method == "gate_ig" else _atp
            scores[index], ends[index] = one(model, pair, read_outcome, steps)
            bar.update(1)
    return HeadAttribution(
        problem_ids=tuple(pair.id for pair in answered),
        scores=scores,
        masked=ends[:, 0],
        inserted=ends[:, 1],
        unit=read_outcome.unit,
        settings={"method": method, "outcome": read_outcome.name, "steps": steps, "model": info.name},
    )


def _gate_ig(model: Model, pair: PromptPair, outcome: Outcome, steps: int) -> tuple[np.ndarray, np.ndarray]:
    info = model.info
    recording, read, clean = _recorded(model, pair, outcome)
    nodes, weights = np.polynomial.legendre.leggauss(steps)
    at = torch.tensor((nodes + 1) / 2, device=recording.z[0].device, dtype=recording.z[0].dtype)
    weight = torch.tensor(weights / 2, device=at.device, dtype=at.dtype)
    span = span_of([pair], recording.inputs).to(at.device)
    gates = at[:, None, None].expand(steps, info.n_layers, info.n_heads).clone().requires_grad_()
    with torch.enable_grad():
        values = outcome.value(model.stepper.tail(recording, read, gates=gates, span=span), pair, clean)
        (gradient,) = torch.autograd.grad(values.sum(), gates)
    closed = torch.stack([torch.zeros_like(gates[0]), torch.ones_like(gates[0])])
    with torch.no_grad():
        ends = outcome.value(model.stepper.tail(recording, read, gates=closed.detach(), span=span), pair, clean)
    scores = (gradient * weight[:, None, None]).sum(0)
    return scores.double().cpu().numpy(), ends.double().cpu().numpy()


def _atp(model: Model, pair: PromptPair, outcome: Outcome, steps: int) -> tuple[np.ndarray, np.ndarray]:
    recording, read, clean = _recorded(model, pair, outcome)
    inputs = pair.condition(CONTRASTS["content"][0])
    masked = model.record(inputs, start=recording.start, logits_at=read + recording.start)
    offsets = [torch.zeros_like(z).requires_grad_() for z in recording.z]
    with torch.enable_grad():
        value = outcome.value(model.stepper.tail(recording, read, offsets=offsets), pair, clean)
        gradients = torch.autograd.grad(value.sum(), offsets)
    scores = torch.stack(
        [((z - m) * g)[0].sum((0, -1)) for z, m, g in zip(recording.z, masked.z, gradients, strict=True)]
    )
    assert masked.logits is not None
    before = outcome.value(masked.logits, pair, clean)
    ends = torch.stack([before[0], value.detach()[0]])
    return scores.double().cpu().numpy(), ends.double().cpu().numpy()


def _recorded(model: Model, pair: PromptPair, outcome: Outcome) -> tuple[Any, torch.Tensor, torch.Tensor | None]:
    """(the inserted run recorded, read positions counted from its start, the clean run's logits if needed)."""
    length = len(pair.inserted)
    start = length - pair.n_after
    read = [length - back for back in outcome.reads(pair)]
    recording = model.record(pair.condition("inserted"), start=start)
    clean = None
    if outcome.needs_clean:
        masked = pair.condition("masked")
        clean = model.run(masked.tokens, attention_mask=masked.attention_mask, logits_at=read).logits
    return recording, torch.tensor(read, device=recording.z[0].device) - start, clean


@dataclass(frozen=True, eq=False)
class HeadAttribution:
    """Estimated contribution of every head, `[problem, layer, head]`, in the outcome's unit.

    `masked` and `inserted` are the outcome in C3 and C1 per problem. `completeness` is (sum of scores) - (inserted -
    masked) per problem: about 0 for "gate_ig", without meaning for "atp".
    """

    problem_ids: tuple[str, ...]
    scores: np.ndarray
    masked: np.ndarray
    inserted: np.ndarray
    unit: str
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def completeness(self) -> np.ndarray:
        """Sum over heads minus the total effect, `[problem]`."""
        return self.scores.sum((1, 2)) - (self.inserted - self.masked)

    def mean(self) -> np.ndarray:
        """Mean over problems, `[layer, head]`."""
        return self.scores.mean(0)

    def ranking(self) -> tuple[Head, ...]:
        """Heads by |mean score|, largest first."""
        mean = np.abs(self.mean())
        order = np.argsort(-mean, axis=None, kind="stable")
        return tuple(Head(int(i // mean.shape[1]), int(i % mean.shape[1])) for i in order)

    def to_frame(self) -> Any:
        """One tidy row per problem and head."""
        import pandas as pd

        n, layers, heads = self.scores.shape
        grid = np.indices((n, layers, heads)).reshape(3, -1)
        return pd.DataFrame(
            {
                "problem": np.array(self.problem_ids)[grid[0]],
                "layer": grid[1],
                "head": grid[2],
                "label": [f"L{layer}H{head}" for layer, head in zip(grid[1], grid[2], strict=True)],
                "score": self.scores.ravel(),
            }
        )

    def __repr__(self) -> str:
        total = float((self.inserted - self.masked).mean())
        lines = [
            f"{self.settings.get('method')} of {self.scores[0].size} heads, {len(self.problem_ids)} problems; total effect "
            f"(inserted - masked) {total:+.4f} {self.unit}"
        ]
        if self.settings.get("method") == "gate_ig":
            lines.append(f"largest completeness error {np.abs(self.completeness).max():.2e} {self.unit}")
        mean = self.mean()
        lines += [f"  {head}  {mean[head.layer, head.head]:+.4f}" for head in self.ranking()[:10]]
        return "\n".join(lines)
