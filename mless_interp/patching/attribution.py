"""Screening: estimates of every head's share from a few passes with gradients, to be verified by exact sweeps."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from ..core.arguments import Arguments, check_count, checked, count_of, one_of
from ..core.heads import Head
from ..models.base import INSTEAD, Model, refuse_without_gradients
from ..models.info import ModelError, Recording
from ..models.memory import halved, rows_per_graph
from ..prompts.conditions import CONTRASTS, Contrast
from ..prompts.pairs import PromptPair
from ..runtime.base_result import counted, head_columns, of_heads, rows_per_head
from ..runtime.columns import columns_of
from ..runtime.loop import RunOptions, out_of_memory
from ..runtime.workers import Tick, Unit
from ..statistics import defined_mean
from .interventions import EdgeNoise, Intervention, Knockout, LayerState
from .outcomes import Outcome, outcome_named
from .prepared import Gated, Measured, Prepared, Runs, Settings, prepare
from .sweep import Sweep, sweep_heads

METHODS = {"gate_ig": ("knockout", 64), "atp": ("z", 0)}
"""What edit a method estimates, and how many of its best heads are swept with it unless told otherwise."""
Part = TypeVar("Part")


@checked
def attribute_heads(
    model: Model,
    pairs: Iterable[PromptPair] | Prepared,
    *,
    method: str | None = None,
    contrast: str = "content",
    outcome: str | Outcome = "answer_logprob",
    steps: int = 16,
    verify: int | None = None,
    checkpoint: str | Path | None = None,
    progress: bool = True,
) -> "HeadAttribution":
    r"""Estimate what each head's response to the insertion's content (or another `contrast`) adds to the outcome (methods §7).

    "gate_ig" (the default where something can be cut off): gates on the attention to the span, integrated from closed to open
    by Gauss-Legendre with `steps` nodes,

    $$ \mathrm{IG}_{l,h} = \int_0^1 \frac{\partial Y}{\partial g_{l,h}}\Big|_{g = s} ds, \qquad
       \sum_{l,h} \mathrm{IG}_{l,h} = Y(C_1) - Y(C_3), $$

    which sees direct reads; `completeness` is the error of the sum. As all gates move together, single knockouts are estimated
    as well, from the gradients at both ends; `knockout` ranks the heads. "atp": (z_inserted - z_masked) . dY/dz at the inserted
    run; it sees mediators too. Positive: the head's response raises the outcome.

    contrast : "content", "computed", "inside" or, for "atp", any whose runs have equal length.
    verify : so many of the best heads (default: 64 for "gate_ig", none for "atp") are then swept exactly; they come first.

    Raises `ModelError` where no gradients can be had.
    Source: gates of Michel et al. (1905.10650), integrated gradients of Sundararajan et al. (1703.01365), attribution patching
    as in AtP* (2403.00745).
    """
    options, between = RunOptions(checkpoint, progress), one_of(contrast, CONTRASTS, "contrast")
    method = method or ("gate_ig" if between.cuts else "atp")
    edit, usual = one_of(method, METHODS, "method")
    if outcome_named(outcome).needs_clean and method == "atp":
        raise ValueError("atp from a divergence is 0 by construction: use outcome='answer_logprob'")
    check_count(steps, name="steps")
    n_verified = usual if verify is None else check_count(verify, name="verify", at_least=0)
    if not between.equal_length or (method == "gate_ig" and not between.cuts):
        needs = "gate_ig takes 'content', 'computed' and 'inside'; atp all runs of equal length ('shift' too)"
        raise ValueError(f"{method} does not know contrast {contrast!r}: {needs}; patch_heads knows them all")
    prepared = prepare(model, pairs, outcome).under(between)
    refuse_without_gradients(model, f"attribute_heads(method={method!r})")

    def of_unit(unit: Unit, tick: Tick) -> list[dict[str, np.ndarray]]:
        passes = _Gradients(prepared.runs(unit), between)
        return _atp(passes) if method == "atp" else [_gate_ig(passes, steps)]

    settings: Settings = {"method": method, "contrast": contrast, "steps": steps, "verify": n_verified}
    how: Arguments = {"settings": settings, "alone": method == "gate_ig", "options": options}
    found = prepared.each(of_unit, label=f"attributing ({method})", **how)
    arrays: Arguments = {name: np.array([each[name] for each in found], dtype=float) for name in found[0]}
    for name in arrays.keys() - {"masked", "inserted"}:  # where an outcome is undefined, its gradient may be 0
        arrays[name][np.isnan(arrays["inserted"] - arrays["masked"])] = np.nan
    made = HeadAttribution(**arrays, **prepared.fields(settings))
    if not n_verified:
        return made
    sweeps, best = {"exact": Sweep.named(contrast, edit=edit)}, made.ranking()[:n_verified]
    swept = sweep_heads(prepared, sweeps, best, options=options.beside("exact", best))
    return replace(made, exact=swept["exact"].effect)


class _Gradients(Gated):
    """The corrupted (inserted) and the clean (masked) runs of a unit, and passes with gradients over them."""

    def __init__(self, runs: Runs, contrast: Contrast) -> None:
        super().__init__(runs, contrast)
        self.masked = runs.recording(contrast.clean, runs.start(contrast, contrast.clean))
        each = self.recording.z[0].element_size()
        self.most = rows_per_graph(self.model.info, **self.sizes, bytes_each=each, devices=self.model.devices)

    def values(self, logits: Tensor) -> Tensor:
        """Read outcomes `[problem x row]`, with their graph."""
        return self.runs.values(logits, self.masked.logits).flatten()

    def in_parts(self, compute: Callable[[slice], Part], n_rows: int, most: int) -> list[Part]:
        """Compute all rows, at most `most` at a time; memory that runs out halves the parts."""
        found, at, most = [], 0, min(most, n_rows)
        while at < n_rows:
            try:
                with torch.enable_grad():
                    found.append(compute(slice(at, min(at + most, n_rows))))
                at += most
            except (MemoryError, RuntimeError) as error:
                if not out_of_memory(error):
                    why = f"the outcome has no gradient with respect to its heads ({error})"
                    raise ModelError(f"{self.model.info.name}: {why}; {INSTEAD}") from error
                most = halved(most, error)
        return found


def _gate_ig(passes: _Gradients, steps: int) -> dict[str, np.ndarray]:
    info, recording = passes.model.info, passes.recording
    nodes, weights = np.polynomial.legendre.leggauss(steps)
    places, weight = (recording.z[0].new_tensor(each) for each in ((nodes + 1) / 2, weights / 2))
    gates = places[:, None, None].expand(steps, info.n_layers, info.n_heads)

    def gradient_of_gates(rows: slice) -> Tensor:
        part = gates[rows].clone().requires_grad_()
        values = passes.values(passes.tail(gates=part, span=passes.span, rows=passes.rows))
        (gradient,) = torch.autograd.grad(values.sum(), part)
        return (gradient * weight[rows, None, None]).sum(0)

    def gradients_at_the_ends(rows: slice) -> tuple[Tensor, list[Tensor]]:
        both = torch.stack([torch.zeros_like(gates[0]), torch.ones_like(gates[0])])[rows]
        offsets = [z.new_zeros(len(both), *z.shape[1:]).requires_grad_() for z in recording.z]
        values = passes.values(passes.tail(gates=both, span=passes.span, rows=passes.rows, offsets=offsets))
        return values.detach(), list(torch.autograd.grad(values.sum(), offsets))

    found = {"scores": torch.stack(passes.in_parts(gradient_of_gates, steps, passes.most)).sum(0)}
    parts = passes.in_parts(gradients_at_the_ends, 2, passes.most)
    found["masked"], found["inserted"] = torch.cat([values for values, _ in parts])
    slopes = [torch.cat([gradients[layer] for _, gradients in parts]) for layer in range(info.n_layers)]

    @torch.no_grad()
    def estimate(run: Recording, edit: Intervention, end: int) -> Tensor:
        per_layer = []
        for layer, slope in enumerate(slopes):
            state = LayerState.of(passes.model, run, layer, span=passes.span, rows=passes.rows)
            changed = edit.edited(state) - run.z[layer]
            per_layer.append((changed[0] * slope[end].to(changed)).sum((0, -1)).cpu())
        return torch.stack(per_layer)

    found["edge_noise"] = estimate(passes.masked, EdgeNoise(), 0)
    found["knockout"] = -estimate(recording, Knockout(), 1)
    return {name: values.double().cpu().numpy() for name, values in found.items()}


def _atp(passes: _Gradients) -> list[dict[str, np.ndarray]]:
    """Make the same by attribution patching, of each problem of one geometry."""
    recording, masked, runs = passes.recording, passes.masked, passes.runs
    if len(runs.pairs) > passes.most:
        parts = [runs.pairs[at : at + passes.most] for at in range(0, len(runs.pairs), passes.most)]
        fewer = (_Gradients(Runs(runs.model, runs.outcome, part), passes.contrast) for part in parts)
        return [one for each in fewer for one in _atp(each)]

    def gradients(rows: slice) -> tuple[Tensor, tuple[Tensor, ...]]:
        offsets = [torch.zeros_like(z).requires_grad_() for z in recording.z]
        values = passes.values(passes.tail(offsets=offsets))
        return values.detach(), torch.autograd.grad(values.sum(), offsets)

    ((inserted, slopes),) = passes.in_parts(gradients, 1, 1)
    rows, _ = Sweep.named(passes.contrast.name).edited(runs, masked, recording)
    both = zip(recording.z, masked.z, slopes, strict=True)
    per_layer = [((z - m) * g)[:, rows.to(z.device)].sum((1, -1)).cpu() for z, m, g in both]
    assert masked.logits is not None
    made = {"scores": torch.stack(per_layer, 1), "masked": passes.values(masked.logits), "inserted": inserted}
    arrays = {name: values.double().cpu().numpy() for name, values in made.items()}
    return [{name: array[at] for name, array in arrays.items()} for at in range(len(runs.pairs))]


@dataclass(frozen=True, eq=False, repr=False)
class HeadAttribution(Measured):
    """Estimated contribution of every head, `scores` `[problem, layer, head]`, in the outcome's unit.

    `masked` and `inserted` `[problem]` are outcomes of the clean and the corrupted run. `knockout` and `edge_noise` estimate
    the `PatchScores.effect` of these edits ("gate_ig" only); `exact` is that of the best heads, NaN for all others.
    """

    scores: np.ndarray
    masked: np.ndarray
    inserted: np.ndarray
    unit: str
    knockout: np.ndarray | None = None
    edge_noise: np.ndarray | None = None
    exact: np.ndarray | None = None

    picture = "head_map"
    signed = True
    drawn = ("exact", "knockout", "score")
    columns = columns_of("""
        ranked_by | ranked by | | exact: verified by patching; estimate: the gradient alone
        score | estimate | | of the method, mean over problems
        exact | exact effect | | mean over problems of the same patch made exactly, where it was
        knockout | knockout, estimated | | the same from the gradient where the head sees the span
        edge_noise | edge noise, estimated | | the same from the gradient where it does not
    """)

    @property
    def completeness(self) -> np.ndarray:
        """Sum over heads minus the total effect, `[problem]`: about 0 for "gate_ig", without meaning for "atp"."""
        return self.scores.sum((1, 2)) - (self.inserted - self.masked)

    @property
    def best(self) -> np.ndarray:
        """The best value of each head, `[problem, layer, head]`: exact where `verified`, else that sweep's estimate."""
        estimate = self.scores if self.knockout is None else self.knockout
        return estimate if self.exact is None else np.where(self.verified, self.exact, estimate)

    @property
    def verified(self) -> np.ndarray:
        """Heads that an exact sweep measured on every problem with an outcome, `[layer, head]`."""
        exact = np.full_like(self.scores, np.nan) if self.exact is None else self.exact
        return np.isfinite(exact[self._known]).all(0) & self._known.any()

    @property
    def _known(self) -> np.ndarray:
        return np.isfinite(self.inserted - self.masked)

    def ranking(self) -> tuple[Head, ...]:
        """Rank heads by |mean|, largest first: the verified ones by their exact value, then the others by the estimate."""
        size = np.abs(defined_mean(self.by_group(self.best)))
        order = np.lexsort((-size.ravel(), ~self.verified.ravel()))  # stable: the last key decides first
        return tuple(Head(*divmod(int(place), size.shape[1])) for place in order)

    @property
    def _given(self) -> dict[str, np.ndarray]:
        every = {"score": self.scores} | {name: getattr(self, name) for name in ("knockout", "edge_noise", "exact")}
        return {name: values for name, values in every.items() if values is not None}

    def to_frame(self) -> pd.DataFrame:
        """Return one tidy row per measure, problem and head."""
        heads = [Head(*place) for place in np.ndindex(self.scores.shape[1:])]
        measures = {name: of_heads(values, heads) for name, values in self._given.items()}
        return rows_per_head(self.problem_ids, heads, measures)

    def table(self) -> pd.DataFrame:
        """Return one row per head, best first: whether it was verified (`ranked_by`), and its measures' means."""
        ranked = self.ranking()
        means = {name: of_heads(defined_mean(self.by_group(values)), ranked) for name, values in self._given.items()}
        ranked_by = np.where(of_heads(self.verified, ranked), "exact", "estimate")
        return pd.DataFrame({**head_columns(ranked), "ranked_by": ranked_by, **means})

    def headline(self) -> str:
        effect = self.by_group(self.inserted - self.masked)
        mean, over = float(defined_mean(effect)), counted(int(np.isfinite(effect).sum()), self.groups)
        if np.isnan(mean):
            return f"{self.settings.get('outcome')} is undefined in every problem."
        n, of = int(self.verified.sum()), f"of {count_of(self.scores[0].size, 'head')}"
        edits, method = "patches" if self.knockout is None else "knockouts", self.settings.get("method")
        first = ", ".join(map(str, self.ranking()[: min(n or 3, 3)]))
        told = f"{edits.capitalize()} estimated by {method} rank {first} first {of}"
        if n:
            told = f"Exact {edits} of the best {n} {of} by {method} rank {first} first"
        return f"{told}; effect of the insertion {mean:+.4f} {self.unit} (mean over {over}, not tested)."

    def details(self) -> list[str]:
        size, found = np.fmax.reduce(np.abs(self.inserted - self.masked)), []
        if size <= self.resolution:
            found.append("The outcome does not change at all in any problem: there is nothing to attribute.")
        return [*found, "Estimates are for screening: name heads with exact sweeps of both directions (locate_heads)."]

    def caveats(self) -> list[str]:
        if self.settings.get("method") != "gate_ig":
            return super().caveats()
        worst, size = (np.fmax.reduce(np.abs(each)) for each in (self.completeness, self.inserted - self.masked))
        large = f", {100 * worst / size:.0f} % of the effect" if worst > 0.05 * size > 0 else ""
        error = f"completeness error up to {worst:.1e} {self.unit}{large}"
        return [f"Mediators are not seen (atp sees them); {error}.", *super().caveats()]
