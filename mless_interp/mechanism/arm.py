"""ARM, the paper's activation redistribution module, as a seeded edit of any layers on any backend."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from ..core.arguments import checked, one_of
from ..data import paper_table
from ..metrics.activations import arm_threshold, quantile
from ..metrics.patterns import widened
from ..models.base import Model
from ..models.info import Edit
from ..models.sites import gate_edits
from ..runtime.folders import savable
from ..statistics import derive_generator

CHOICES = {
    "reading": ("paper_add", "code_replace"),
    "scope": ("tensor", "token"),
    "fraction": ("share", "direct"),
    "selection": ("smallest", "quantile"),
    "upper": ("signed", "absolute"),
    "mad": ("absolute", "signed"),
}
"""What each option may be."""

CODE_OPTIONS: Mapping[str, Mapping[str, Any]] = {
    "qwen": {"p_min": 0.02},
    "llama": {"p_min": 0.2},
    "gemma": {"fraction": "direct", "selection": "quantile", "upper": "absolute"},
}
"""What the paper's code sets for a family of models beside c and p1."""

GateActivations = Float[Tensor, "token d_mlp"]


@savable
@checked
@dataclass(frozen=True)
class ARM:
    r"""Move the activations nearest to zero away from it: arXiv 2510.01032, section 5, and its code, which differs (`reading`).

    Those are a = act(gate(x)) before the multiplication by up(x), or, our extension, a = act(up(x)) of an MLP without a gate.

    $$ \epsilon = 1.4826 \operatorname{MAD} c, \qquad p = \operatorname{mean}[|a| \le \epsilon], \qquad
       f = \operatorname{clip}(k p, p_{min}, p_{max}) $$

    and the $\max(1, \operatorname{round}(f n))$ elements of smallest $|a|$ change (ties: those that come first), all
    others stay bit for bit:

    - `reading="paper_add"`: $a \leftarrow a + u$, $u \sim U(\min a,\; Q_{p1}(a))$.
    - `reading="code_replace"`: $a \leftarrow \operatorname{sign}(a)\, U(0, B)$, where $\operatorname{sign}(0) = +1$ and
      $B$ is $Q_{p1}(a)$ for the non-negative and $|\min a|$ for the negative ones; here $p$ counts $|a| < \epsilon$.

    c : width of near zero in robust standard deviations; with `fraction="direct"` the share itself, up to 1.
    p1 : percentile of the upper bound, 0 to 100, linearly interpolated.
    layers : zero-based; the paper edits the first layer only.
    scope : "tensor" measures a whole prompt (the code's with its padding and the rest of the batch), "token" each token.
    prefill_only : leave decode steps alone; otherwise each decode step is a tensor of its own, as in the code.
    seed : with a prompt's key, layer and step the source of every draw.
    fraction : "share" as in the formula; "direct": f = c (the code's `choose=False`, for Gemma).
    selection : "smallest" f n elements; "quantile": all with |a| at most the f quantile of |a|, ties included (Gemma).
    upper : p1 of the "signed" activations or of the "absolute" ones (Gemma).
    mad : the medians are of "absolute" activations (as in the code), or "signed".

    As in the code, medians are the lower middle value, MAD is at least 1e-12, and non-negative selected elements land below
    zero if the p1 percentile is negative. Without a negative element the lower bound is 0.
    """

    c: float | int
    p1: float | int
    layers: Sequence[int] = (0,)
    reading: str = "paper_add"
    scope: str = "tensor"
    prefill_only: bool = False
    seed: int = 0
    k: float | int = 1.0
    p_min: float | int = 0.02
    p_max: float | int = 0.25
    fraction: str = "share"
    selection: str = "smallest"
    upper: str = "signed"
    mad: str = "absolute"

    def __post_init__(self) -> None:
        for name, choices in CHOICES.items():
            one_of(getattr(self, name), choices, name)
        for name in ("c", "p1", "k", "p_min", "p_max"):
            object.__setattr__(self, name, float(getattr(self, name)))
        if not (0 < self.c < math.inf and 0 < self.k < math.inf):
            raise ValueError(f"c and k must be positive and finite, got c={self.c:g}, k={self.k:g}")
        if self.fraction == "direct" and self.c > 1:
            raise ValueError(f'with fraction="direct" c is the share that changes, at most 1, got {self.c:g}')
        if not (0 <= self.p1 <= 100 and 0 <= self.p_min <= self.p_max <= 1):
            raise ValueError(
                "p1 is a percentile from 0 to 100, and 0 <= p_min <= p_max <= 1 must hold, got "
                f"p1={self.p1:g}, p_min={self.p_min:g}, p_max={self.p_max:g}"
            )
        if not self.layers or min(self.layers) < 0 or len(set(self.layers)) != len(self.layers):
            raise ValueError(f"layers must be different zero-based layer numbers such as (0,), got {self.layers}")

    @classmethod
    @checked
    def from_paper(cls, model: str, benchmark: str, *, source: str = "table", **options: object) -> "ARM":
        """Return the published setting (`source`: "table", Table 9, or "code") for a model (its key, or a hub id), benchmark.

        With `reading="code_replace"` the rest follows the code for that model too. Any field can be given as an option.
        """
        one_of(source, ("table", "code"), "source")
        every, key = paper_table("arm"), model.rpartition("/")[2].lower()
        rows = {row["benchmark"].lower(): row for row in every if row["model"] == key}
        if benchmark.lower() not in rows:
            known = ", ".join(row["benchmark"] for row in rows.values())
            models = ", ".join(dict.fromkeys(row["model"] for row in every))
            of = f"{key} on {benchmark!r}; it does for {known}" if rows else f"model {model!r}; it does for {models}"
            raise ValueError(f"the paper gives no ARM setting for {of}")
        row = rows[benchmark.lower()]
        made = dict(CODE_OPTIONS[row["family"]])
        if options.get("reading", "paper_add") != "code_replace":  # Table 9 itself gives Gemma's p instead of a c
            made = {name: value for name, value in made.items() if name == "fraction"}
        numbers = {name: row[f"{name}_code" if source == "code" else name] for name in ("c", "p1")}
        made |= {name: float(number) for name, number in numbers.items() if number} | options
        if missing := numbers.keys() - made.keys():
            lacks = f"the {source} gives no {min(missing)} for {key} on {benchmark}"
            raise ValueError(f"{lacks} ({row['note']}): give it, or ask the other source")
        return cls(**made)

    @property
    def label(self) -> str:
        """A short name that tells settings apart: layers, reading, seed, and whatever is not the default."""
        always = ("layers", "reading", "seed")
        values = [(each, getattr(self, each.name)) for each in fields(self)]
        told = [f"{each.name}={value!r}" for each, value in values if each.name in always or value != each.default]
        return f"ARM({', '.join(told)})"

    def redistribute(self, activations: GateActivations, *, generator: torch.Generator) -> GateActivations:
        """Return the redistributed activations of one prompt without padding; `ValueError` for any that are infinite or NaN."""
        if not bool(torch.isfinite(activations).all()):
            raise ValueError("ARM needs finite activations; some are infinite or NaN")
        values = widened(activations)
        selected, lower, upper = self._plan(values)
        # one number per element, used or not, so an element's draw depends on its place alone
        draws = torch.rand(activations.shape, generator=generator, dtype=torch.float32).to(values)
        if self.reading == "paper_add":
            new = values + lower + draws * (upper - lower)
        else:
            new = torch.where(values < 0, -draws * lower, draws * upper)
        return torch.where(selected, new.to(activations.dtype), activations)

    def _plan(self, values: GateActivations) -> tuple[Tensor, Tensor, Tensor]:
        """Choose what changes `[token, d_mlp]`, and between which bounds `[group, 1]` ("code_replace": two magnitudes)."""
        groups = values.reshape(1, -1) if self.scope == "tensor" else values
        n = groups.shape[-1]
        size = groups.abs()
        if self.fraction == "direct":
            fraction = size.new_full(size.shape[:1], self.c, dtype=torch.float64)
        else:
            threshold = arm_threshold(groups, c=self.c, absolute=self.mad == "absolute")[:, None]
            near = size <= threshold if self.reading == "paper_add" else size < threshold
            fraction = (self.k * (near.sum(-1).double() / n)).clamp(self.p_min, self.p_max)
        if self.selection == "quantile":
            bars = [quantile(row, q=float(f)) for row, f in zip(size, fraction, strict=True)]
            selected = size <= torch.stack(bars)[:, None]
        else:
            counts = (fraction * n).round().long().clamp(min=1, max=n)
            largest = [row.kthvalue(count).values for row, count in zip(size, counts.tolist(), strict=True)]
            bar = torch.stack(largest)[:, None]
            below, ties = size < bar, size == bar
            missing = counts[:, None] - below.sum(-1, keepdim=True)
            selected = below | (ties & (ties.cumsum(-1) <= missing))  # of equal ones those that come first
        upper = quantile(groups if self.upper == "signed" else size, q=self.p1 / 100)
        lower = groups.amin(-1)
        if self.reading == "code_replace":
            lower = lower.clamp(max=0).abs()
        return selected.reshape(values.shape), lower[:, None], upper[:, None]

    def generator(self, key: object, *, layer: int = 0, step: int = 0) -> torch.Generator:
        """Return the CPU generator of one prompt (`key`: its problem's id, say), layer and decode step (0: the prefill)."""
        number = derive_generator(self.seed, "arm", key, layer, step).integers(2**63 - 1)
        return torch.Generator().manual_seed(int(number))

    def edits(self, model: Model, *, keys: Sequence[object]) -> dict[str, Edit]:
        """Return the edits of one `Model.run` on prompts without padding; equal on every backend up to its own rounding.

        keys : one per row of the batch, what its draws are keyed by (a problem's id).
        """

        def redistribute(layer: int, activations: Float[Tensor, "row token d_mlp"]) -> Tensor:
            rows = zip(activations, keys, strict=True)
            return torch.stack(
                [self.redistribute(row, generator=self.generator(key, layer=layer)) for row, key in rows]
            )

        edits: dict[str, Edit] = {}
        for layer in self.layers:
            edits |= gate_edits(layer, model.gated_mlp(layer), partial(redistribute, layer))
        return edits
