"""Screening: estimates of every head's share from a few passes with gradients, to be verified by exact sweeps."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..heads import Head
from ..models.base import Model
from ..models.gradients import INSTEAD, refuse_without_gradients
from ..models.info import ModelError
from ..models.inputs import Recording
from ..models.memory import halved, out_of_memory
from ..prompts.pairs import PromptPair
from ..running.progress import progress_bar
from .interventions import EdgeNoise, Knockout, LayerState
from .outcomes import OUTCOMES, Outcome, named, resolution_of
from .sweep import CONTRASTS, checked_pairs, equal_geometry, patch_heads, span_of, stacked

METHODS = ("gate_ig", "atp")
N_VERIFIED = 64


def attribute_heads(
    model: Model,
    pairs: Iterable[PromptPair],
    *,
    method: str = "gate_ig",
    outcome: str | Outcome = "answer_logprob",
    steps: int = 16,
    verify: int | None = None,
    progress: bool = True,
) -> "HeadAttribution":
    r"""Estimate what each head's response to the insertion's content adds to the outcome.

    "gate_ig": gates on the attention from the question to the span, integrated from closed to open,

    $$ \mathrm{IG}_{l,h} = \int_0^1 \frac{\partial Y}{\partial g_{l,h}}\Big|_{g = s} ds, \qquad
       \sum_{l,h} \mathrm{IG}_{l,h} = Y(C_1) - Y(C_3), $$

    by Gauss-Legendre with `steps` nodes, in one batch where memory allows. It sees direct reads (readers);
    `completeness` is the error of the sum (where it is not small beside the effect, raise `steps`). The integral shares
    the whole effect out over a path on which all gates move together; a knockout moves one gate while the others stay
    open, so where heads interact the two rank heads differently. From the gradients at both ends of the path come
    therefore estimates of the exact sweeps themselves: `knockout` and `edge_noise`, the exact change of the head's output
    times the outcome's gradient,

    $$ \hat\Delta_{l,h} = (z_{l,h} - z_{l,h}^{\text{cannot see the span}}) \cdot \frac{\partial Y}{\partial z_{l,h}}\Big|_{C_1},
       \qquad \text{and at } C_3 \text{ with } z^{\text{sees it}} - z, $$

    exact where the rest of the model responds linearly. Heads are ranked by `knockout`.

    "atp": (z_inserted - z_masked) . dY/dz at the inserted run, one backward pass for all problems of a length; it sees
    mediators too.

    The `verify` best heads (default: 64 for "gate_ig", none for "atp") are then swept exactly, by the knockout or z patch
    that the method estimates; `exact` holds what came, and the ranking uses it in place of the estimate. Where the
    model is far from linear the order of the first heads would otherwise be the estimate's error.

    Positive: the head's response raises the outcome. Per problem, never averaged before.

    Source: gates of Michel et al. (1905.10650), integrated gradients of Sundararajan et al. (1703.01365), attribution
    patching as in AtP* (2403.00745; its exact re-softmax is what the knockout estimate does for the gates); methods §7.
    Raises `ModelError` where no gradients can be had (quantised weights, inference mode, a remote model, one that cannot
    be continued layer by layer) and `ValueError` for an outcome whose gradient vanishes at the run ("kl" with "atp").
    """
    read_outcome = named(outcome, OUTCOMES, "outcome", Outcome)
    if method not in METHODS:
        raise ValueError(f"unknown method {method!r}; choose one of {', '.join(METHODS)}")
    if read_outcome.needs_clean and method == "atp":
        raise ValueError(
            "atp from a divergence is 0 by construction at its own reference; use outcome='answer_logprob'"
        )
    if steps < 1:
        raise ValueError(f"steps must be 1 or more, got {steps}")
    n_verified = {"gate_ig": N_VERIFIED, "atp": 0}[method] if verify is None else verify
    if n_verified < 0:
        raise ValueError(f"verify must be 0 or more, got {verify}")
    bare = checked_pairs(pairs)
    answered = [pair.answered(read_outcome.appended) for pair in bare]
    read_outcome.check(answered)
    refuse_without_gradients(model, f"attribute_heads(method={method!r})")
    info = model.info
    shape = (len(answered), info.n_layers, info.n_heads)
    found = {name: np.full(shape, np.nan) for name in ("scores", "knockout", "edge_noise")}
    ends = np.full((len(answered), 2), np.nan)
    with progress_bar(len(answered), f"attributing ({method})", enabled=progress) as bar:
        for group in equal_geometry(list(range(len(answered))), answered, read_outcome):
            batch = [answered[index] for index in group]
            if method == "atp":
                found["scores"][group], ends[group] = _atp(model, batch, read_outcome)
                bar.update(len(batch))
                continue
            for index, pair in zip(group, batch, strict=True):
                estimates, ends[index] = _gate_ig(model, pair, read_outcome, steps)
                for name, values in estimates.items():
                    found[name][index] = values
                bar.update(1)
    gated = method == "gate_ig"
    made = HeadAttribution(
        problem_ids=tuple(pair.id for pair in answered),
        scores=found["scores"],
        masked=ends[:, 0],
        inserted=ends[:, 1],
        unit=read_outcome.unit,
        settings={
            "method": method,
            "outcome": read_outcome.name,
            "steps": steps,
            "verify": n_verified,
            "model": info.name,
            "resolution": resolution_of(info.dtype),
        },
        knockout=found["knockout"] if gated else None,
        edge_noise=found["edge_noise"] if gated else None,
    )
    if not n_verified:
        return made
    edit = "knockout" if gated else "z"
    best = made.ranking()[:n_verified]
    swept = patch_heads(model, bare, heads=best, edit=edit, outcome=read_outcome, progress=progress)
    return replace(made, exact=-swept.effect)


def _gate_ig(
    model: Model, pair: PromptPair, outcome: Outcome, steps: int
) -> tuple[dict[str, np.ndarray], tuple[float, float]]:
    info = model.info
    recording, masked, read, clean = _recorded(model, [pair], outcome)
    nodes, weights = np.polynomial.legendre.leggauss(steps)
    device, dtype = recording.z[0].device, recording.z[0].dtype
    weight = torch.tensor(weights / 2, device=device, dtype=dtype)
    span = span_of([pair], recording.inputs).to(device)
    at = torch.tensor((nodes + 1) / 2, device=device, dtype=dtype)
    gates = at[:, None, None].expand(steps, info.n_layers, info.n_heads)

    def gradient_of_gates(rows: slice) -> Tensor:
        part = gates[rows].clone().requires_grad_()
        logits = model.stepper.tail(recording, read, gates=part, span=span)
        (gradient,) = torch.autograd.grad(outcome.value(logits, pair, clean).sum(), part)
        return (gradient * weight[rows, None, None]).sum(0)

    def gradients_at_the_ends(rows: slice) -> tuple[Tensor, list[Tensor]]:
        both = torch.stack([torch.zeros_like(gates[0]), torch.ones_like(gates[0])])[rows]
        offsets = [z.new_zeros(len(both), *z.shape[1:]).requires_grad_() for z in recording.z]
        logits = model.stepper.tail(recording, read, gates=both, span=span, offsets=offsets)
        values = outcome.value(logits, pair, clean)
        return values.detach(), list(torch.autograd.grad(values.sum(), offsets))

    most = _graph_rows(model, recording, len(read))
    scores = torch.stack(_in_parts(model, gradient_of_gates, steps, most)).sum(0)
    parts = _in_parts(model, gradients_at_the_ends, 2, most)
    closed, opened = torch.cat([values for values, _ in parts]).tolist()
    estimates = {"scores": scores}
    slopes = [torch.cat([gradients[layer] for _, gradients in parts]) for layer in range(info.n_layers)]
    for name, run, intervention, end, sign in (
        ("edge_noise", masked, EdgeNoise(), 0, 1.0),
        ("knockout", recording, Knockout(), 1, -1.0),
    ):
        per_layer = []
        for layer, slope in enumerate(slopes):
            with torch.no_grad():
                changed = intervention(LayerState.of(model, run, layer, span=span)) - run.z[layer]
            per_layer.append(sign * (changed[0] * slope[end].to(changed)).sum((0, -1)).to(device))
        estimates[name] = torch.stack(per_layer)
    return {name: values.double().cpu().numpy() for name, values in estimates.items()}, (closed, opened)


def _atp(model: Model, pairs: list[PromptPair], outcome: Outcome) -> tuple[np.ndarray, np.ndarray]:
    """Scores `[problem, layer, head]` and ends `[problem, (masked, inserted)]` of problems of one geometry."""
    recording, masked, read, _ = _recorded(model, pairs, outcome)
    most = _graph_rows(model, recording, len(read))
    if len(pairs) > most:
        halves = [_atp(model, pairs[at : at + most], outcome) for at in range(0, len(pairs), most)]
        return np.concatenate([scores for scores, _ in halves]), np.concatenate([ends for _, ends in halves])

    def value_of(logits: Tensor) -> Tensor:
        return torch.cat([outcome.value(logits[i : i + 1], pair, None) for i, pair in enumerate(pairs)])

    def gradients(rows: slice) -> tuple[Tensor, tuple[Tensor, ...]]:
        offsets = [torch.zeros_like(z).requires_grad_() for z in recording.z]
        value = value_of(model.stepper.tail(recording, read, offsets=offsets))
        return value.detach(), torch.autograd.grad(value.sum(), offsets)

    ((value, slopes),) = _in_parts(model, gradients, 1, 1)
    scores = [((z - m) * g).sum((1, -1)).cpu() for z, m, g in zip(recording.z, masked.z, slopes, strict=True)]
    assert masked.logits is not None
    ends = torch.stack([value_of(masked.logits), value], 1)
    return torch.stack(scores, 1).double().numpy(), ends.double().cpu().numpy()


def _recorded(
    model: Model, pairs: list[PromptPair], outcome: Outcome
) -> tuple[Recording, Recording, Tensor, Tensor | None]:
    """(the inserted runs, the masked runs, read positions counted from their start, the clean runs' logits if needed)."""
    first = pairs[0]
    length = len(first.inserted)
    start = length - first.n_after
    read = [length - back for back in outcome.reads(first)]
    clean_name, corrupted_name = CONTRASTS["content"]
    recording = model.record(stacked([pair.condition(corrupted_name) for pair in pairs]), start=start)
    masked = model.record(stacked([pair.condition(clean_name) for pair in pairs]), start=start, logits_at=read)
    clean = masked.logits if outcome.needs_clean else None
    return recording, masked, torch.tensor(read, device=recording.z[0].device) - start, clean


GRAPH_BYTES = 2e9
"""What the graph of one pass with gradients may take on a CPU; on a GPU half of what is free."""


def _graph_rows(model: Model, recording: Recording, n_read: int) -> int:
    """Rows of one pass whose graph over all layers fits the memory."""
    info, changed = model.info, recording.n_tokens - recording.start
    width = 10 * info.d_model + 4 * (info.d_mlp or 4 * info.d_model) + 3 * info.n_heads * recording.n_tokens
    numbers = info.n_layers * changed * width + 3 * n_read * info.d_vocab
    budget = torch.cuda.mem_get_info(info.device)[0] / 2 if "cuda" in info.device else GRAPH_BYTES
    return max(1, int(budget / (numbers * recording.z[0].element_size())))


def _in_parts(model: Model, compute: Callable[[slice], Any], n_rows: int, most: int) -> list[Any]:
    """`compute` with gradients over all rows, at most `most` at a time; memory that runs out halves the parts."""
    found, at, most = [], 0, min(most, n_rows)
    while at < n_rows:
        try:
            with torch.enable_grad():
                found.append(compute(slice(at, min(at + most, n_rows))))
        except (MemoryError, RuntimeError) as error:
            if not out_of_memory(error):
                raise ModelError(
                    f"{model.info.name}: the outcome has no gradient with respect to its heads ({error}); {INSTEAD}"
                ) from error
            most = halved(most, error)
            continue
        at += most
    return found


@dataclass(frozen=True, eq=False)
class HeadAttribution:
    """Estimated contribution of every head, `[problem, layer, head]`, in the outcome's unit.

    `masked` and `inserted` are the outcome in C3 and C1 per problem. `completeness` is (sum of scores) - (inserted -
    masked) per problem: about 0 for "gate_ig", without meaning for "atp". `knockout` and `edge_noise` estimate, in the
    sign of the insertion's own effect, what the exact sweeps of these edits give ("gate_ig" only). `exact` is the exact
    sweep of the best heads (knockout for "gate_ig", z patch for "atp", same sign), NaN for all others; None if none was.
    """

    problem_ids: tuple[str, ...]
    scores: np.ndarray
    masked: np.ndarray
    inserted: np.ndarray
    unit: str
    settings: dict[str, Any] = field(default_factory=dict)
    knockout: np.ndarray | None = None
    edge_noise: np.ndarray | None = None
    exact: np.ndarray | None = None

    @property
    def completeness(self) -> np.ndarray:
        """Sum over heads minus the total effect, `[problem]`."""
        return self.scores.sum((1, 2)) - (self.inserted - self.masked)

    def mean(self) -> np.ndarray:
        """Mean score over problems, `[layer, head]`."""
        return self.scores.mean(0)

    @property
    def best(self) -> np.ndarray:
        """What heads are ranked by, `[problem, layer, head]`: exact where verified, else the estimate of that sweep."""
        estimate = self.scores if self.knockout is None else self.knockout
        return estimate if self.exact is None else np.where(np.isnan(self.exact), estimate, self.exact)

    def ranking(self, by: str = "best") -> tuple[Head, ...]:
        """Heads by |mean|, largest first, of "best", "scores", "knockout" or "edge_noise"."""
        known = [name for name in ("best", "scores", "knockout", "edge_noise") if getattr(self, name) is not None]
        if by not in known:
            raise ValueError(f"cannot rank by {by!r}; this result has {', '.join(known)}")
        mean = np.abs(getattr(self, by).mean(0))
        order = np.argsort(-mean, axis=None, kind="stable")
        return tuple(Head(int(i // mean.shape[1]), int(i % mean.shape[1])) for i in order)

    def to_frame(self) -> Any:
        """One tidy row per problem and head."""
        import pandas as pd

        n, layers, heads = self.scores.shape
        grid = np.indices((n, layers, heads)).reshape(3, -1)
        table = {
            "problem": np.array(self.problem_ids)[grid[0]],
            "layer": grid[1],
            "head": grid[2],
            "label": [f"L{layer}H{head}" for layer, head in zip(grid[1], grid[2], strict=True)],
            "score": self.scores.ravel(),
        }
        for name in ("knockout", "edge_noise", "exact"):
            values = getattr(self, name)
            if values is not None:
                table[name] = values.ravel()
        return pd.DataFrame(table)

    def __repr__(self) -> str:
        method, effects = self.settings.get("method"), self.inserted - self.masked
        lines = [
            f"{method} of {self.scores[0].size} heads, {len(self.problem_ids)} problems; total effect "
            f"(inserted - masked) {float(effects.mean()):+.4f} {self.unit}"
        ]
        if np.abs(effects).max() <= self.settings.get("resolution", 0.0):
            lines.append("The outcome does not change at all in any problem: there is nothing to attribute.")
        if method == "gate_ig":
            worst, size = np.abs(self.completeness).max(), np.abs(effects).max()
            lines.append(f"largest completeness error {worst:.2e} {self.unit}")
            if worst > 0.05 * size > 0:
                lines[-1] += f", {worst / size:.0%} of the largest effect: raise steps ({self.settings.get('steps')})"
        n_exact = 0 if self.exact is None else int(np.isfinite(self.exact[0]).sum())
        columns = {
            "score": self.scores,
            "knockout (estimate)": self.knockout,
            "edge noise (estimate)": self.edge_noise,
            "exact": self.exact,
        }
        given = {name: values.mean(0) for name, values in columns.items() if values is not None}
        for head in self.ranking()[:10]:
            cells = ", ".join(f"{name} {mean[head.layer, head.head]:+.4f}" for name, mean in given.items())
            lines.append(f"  {head}  {cells}")
        verified = f"The first {n_exact} heads were verified by an exact sweep. " if n_exact else ""
        return "\n".join(
            [
                *lines,
                f"{verified}Estimates are for screening: name heads with exact sweeps of both directions (locate_heads).",
            ]
        )
