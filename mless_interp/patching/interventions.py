"""Interventions on attention heads, one object and one formula each (methods §6), and outputs moved as a span moves them."""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from ..core.heads import Head
from ..core.shapes import Z
from ..models.attention_math import mix_values, pattern_of
from ..models.base import Model
from ..models.info import AttentionRule, Edit, Inputs, Recording
from ..models.sites import Held, attention_sites, site
from ..statistics import derive_generator
from .outcomes import left_as_they_are


@dataclass(frozen=True, eq=False)
class LayerState:
    """One layer of a recorded run, at the positions from the recording's `start` on (dest) and at all positions (src).

    `q`, `z` `[b, dest, H, d]`; `k`, `v` `[b, src, KV, d]`; `visible` `[b, 1|H, dest, src]` under the run's own mask, `unmasked`
    without the input's; `span` `[b, src]` the keys that a knockout cuts off, `rows` `[b, dest]` from which rows (None: all).
    """

    q: Tensor
    k: Tensor
    v: Tensor
    z: Tensor
    visible: Tensor
    unmasked: Tensor
    rule: AttentionRule
    span: Tensor
    donor: "LayerState | None" = None
    layer: int = 0
    names: tuple[str, ...] = ()
    rows: Tensor | None = None

    @classmethod
    def of(
        cls, model: Model, recording: Recording, layer: int, *, span: Tensor, rows: Tensor | None = None
    ) -> "LayerState":
        """Take the state of `layer` of a recording; `span` and `rows` are boolean `[b, token]`."""
        if not recording.q:
            model.need_rotated("edits of attention (other than edit='z')")
        place, start = recording.k[layer].device, recording.start
        return cls(
            q=recording.q[layer],
            k=recording.k[layer],
            v=recording.v[layer],
            z=recording.z[layer],
            visible=recording.masks[layer],
            unmasked=model.visible(replace(recording.inputs, attention_mask=None))[layer].to(place)[:, :, start:],
            rule=model.attention_rule(layer),
            span=span.to(place),
            layer=layer,
            rows=None if rows is None else rows[:, start:].to(place),
        )

    @property
    def sink(self) -> Tensor:
        """The first token outside the span, boolean `[b, 1, 1, src]`."""
        return (~self.span & ((~self.span).cumsum(-1) == 1))[:, None, None, :]

    @property
    def span_keys(self) -> Tensor:
        """What the edit hides, boolean `[b, 1, 1 or dest, src]`."""
        keys = self.span[:, None, None, :]
        return keys if self.rows is None else keys & self.rows[:, None, :, None]

    def pattern(self, visible: Tensor | None = None) -> Tensor:
        """Compute attention `[b, H, dest, src]`, under the run's own visibility or another."""
        return pattern_of(self.q, self.k, self.visible if visible is None else visible, self.rule)

    def split(self) -> tuple[Tensor, Tensor]:
        """Split the pattern: outside the span (0 inside), and how much of each row is inside, `[b, H, dest, 1]`."""
        pattern = self.pattern()
        return pattern * ~self.span_keys, (pattern * self.span_keys).sum(-1, keepdim=True)

    def renormalised(self, edited: Tensor, pattern: Tensor) -> Tensor:
        """Scale rows to sum to 1, together with what learned sinks had in `pattern`, where there are any."""
        total = edited.sum(-1, keepdim=True)
        if self.rule.sinks is not None:
            total = total + (1 - pattern.sum(-1, keepdim=True)).clamp(min=0)
        return edited / total

    def mixed(self, pattern: Tensor) -> Z:
        return mix_values(pattern, self.v)


@dataclass(frozen=True)
class Intervention(ABC):
    """A named edit of head outputs. `needs_span`: a span that can be read. `acts_in`: the direction in which it can change
    anything ("": both)."""

    name: ClassVar[str]
    needs_donor: ClassVar[bool] = False
    needs_span: ClassVar[bool] = True
    needs_equal_length: ClassVar[bool] = False
    acts_in: ClassVar[str] = ""

    @property
    def label(self) -> str:
        options = ", ".join(f"{key}={value}" for key, value in vars(self).items())
        return f"{self.name}({options})" if options else self.name

    def edited(self, state: LayerState) -> Z:
        """Make head outputs `[b, dest, H, d]`, each as if its head alone were edited; rows that lose nothing keep theirs."""
        with left_as_they_are(f"the edit {self.name!r}", vars(state).values()):
            new = self(state)
        if getattr(new, "shape", None) != state.z.shape:
            got = f"shape {list(new.shape)}" if isinstance(new, Tensor) else type(new).__name__
            wanted = f"head outputs [batch, token, head, d_head] = {list(state.z.shape)}"
            raise ValueError(f"the edit {self.name!r} must return {wanted}, got {got}")
        if state.rows is None or not self.needs_span:
            return new
        return torch.where(state.rows[:, :, None, None], new, state.z)

    @abstractmethod
    def __call__(self, state: LayerState) -> Z:
        """Edit every row, `[b, dest, H, d]`."""


class PatchZ(Intervention):
    """z <- the donor's z: all of the head's response to the contrast (activation patching)."""

    name = "z"
    needs_donor = True
    needs_span = False

    def __call__(self, state: LayerState) -> Z:
        assert state.donor is not None
        return state.donor.z


class Knockout(Intervention):
    """Span keys cannot be seen, the rest (a learned sink with it) is renormalised: removes the direct read, scale and bias.
    Source: Geva et al. (2304.14767), there over windows of layers."""

    name = "knockout"
    acts_in = "denoising"

    def __call__(self, state: LayerState) -> Z:
        left = state.visible & ~state.span_keys  # a row that would lose its last key keeps what it had
        return state.mixed(state.pattern(torch.where(left.any(-1, keepdim=True), left, state.visible)))


class KnockoutZero(Intervention):
    """Attention on the span is set to 0 without renormalising: removes the bias, keeps lambda (I8)."""

    name = "knockout_zero"
    acts_in = "denoising"

    def __call__(self, state: LayerState) -> Z:
        return state.mixed(state.split()[0])


class EdgeNoise(Intervention):
    """In a run that cannot see the span, this head alone sees it: its direct read is added alone."""

    name = "edge_noise"
    acts_in = "noising"

    def __call__(self, state: LayerState) -> Z:
        return state.mixed(state.pattern(state.visible | (state.unmasked & state.span_keys)))


class RestoreScale(Intervention):
    """z <- z_ref + Sig: the scale part of the response is undone, the bias part stays (z_ref is the donor's)."""

    name = "restore_scale"
    acts_in = "denoising"
    needs_donor = True

    def __call__(self, state: LayerState) -> Z:
        assert state.donor is not None
        return state.donor.z + state.mixed(state.pattern() * state.span_keys)


@dataclass(frozen=True)
class Gate(Intervention):
    """A <- A G / sum(A G) with G = g on span keys, 1 elsewhere: g = 1 changes nothing, g = 0 is `Knockout`."""

    g: float
    name = "gate"
    acts_in = "denoising"

    def __post_init__(self) -> None:
        if not 0 <= self.g <= 1:
            raise ValueError(f"a gate lies between 0 and 1, got {self.g}")

    def __call__(self, state: LayerState) -> Z:
        if self.g == 0:
            return Knockout()(state)
        pattern = state.pattern()
        return state.mixed(state.renormalised(pattern * torch.where(state.span_keys, self.g, 1.0), pattern))


class RerouteToSink(Intervention):
    """The span's attention goes to the first token outside the span: tests "just another sink". NaN where it is not seen."""

    name = "reroute_to_sink"
    acts_in = "denoising"

    def __call__(self, state: LayerState) -> Z:
        kept, mass = state.split()
        sees_sink = (state.visible & state.sink).any(-1, keepdim=True)
        return state.mixed(torch.where(sees_sink, kept + mass * state.sink, torch.nan))


class RerouteUniform(Intervention):
    """The span's attention is spread evenly over the other visible keys: tests "dilution only"."""

    name = "reroute_uniform"
    acts_in = "denoising"

    def __call__(self, state: LayerState) -> Z:
        (kept, mass), others = state.split(), state.visible & ~state.span_keys
        return state.mixed(kept + mass * others / others.sum(-1, keepdim=True).clamp(min=1))


@dataclass(frozen=True)
class MatchedMassKnockout(Intervention):
    """As much attention as the span holds is taken from random other keys instead (not the span, the sink or itself), drawn in
    order, the last one in part, and renormalised: the control for generic mask damage. NaN where the others hold too little."""

    seed: int = 0
    draw: int = 0
    name = "matched_mass"
    acts_in = "denoising"

    def __call__(self, state: LayerState) -> Z:
        pattern = state.pattern()
        n_dest, n_src = pattern.shape[-2:]
        at = torch.arange(n_src, device=pattern.device)
        own = at == at[n_src - n_dest :, None]
        candidates = state.visible & ~state.span_keys & ~state.sink & ~own
        drawn = np.empty(pattern.shape)
        for problem, name in enumerate(state.names or map(str, range(len(pattern)))):
            for head in range(pattern.shape[1]):
                draw = derive_generator(self.seed, "matched mass", self.draw, name, Head(state.layer, head))
                drawn[problem, head] = draw.random((n_dest, n_src))
        order = torch.from_numpy(drawn).to(pattern.device).masked_fill(~candidates, 2.0).argsort(-1)
        available = (pattern * candidates).gather(-1, order)
        mass = (pattern * state.span_keys).sum(-1, keepdim=True)
        taken_before = available.cumsum(-1) - available
        removed = torch.minimum(available, (mass - taken_before).clamp(min=0))
        reachable = available.sum(-1, keepdim=True) >= mass
        kept = pattern - torch.zeros_like(pattern).scatter(-1, order, removed)
        return state.mixed(torch.where(reachable, state.renormalised(kept, pattern), torch.nan))


@dataclass(frozen=True)
class PatchInput(Intervention):
    """A query head's q, k or v <- the donor's, for that query head alone (its kv group's other heads keep theirs)."""

    part: Literal["q", "k", "v"]
    name = "input"
    needs_donor = True
    needs_span = False
    needs_equal_length = True

    def __call__(self, state: LayerState) -> Z:
        assert state.donor is not None
        edited = replace(state, **{self.part: getattr(state.donor, self.part)})
        return edited.mixed(edited.pattern())


def run_edits(
    model: Model,
    inputs: Inputs,
    intervention: Intervention,
    heads: Iterable[Head | str],
    *,
    span: Tensor,
    start: int,
    rows: Tensor | None = None,
    donor: Recording | None = None,
) -> dict[str, Edit]:
    """Make edits for one `Model.run` that apply one intervention to a set of heads at once, from position `start` on, each
    layer's computed from the run as the earlier ones left it. `span`, `rows`: boolean `[batch, token]`, as in `LayerState`."""
    chosen = model.info.chosen(heads, what="edit")
    masks, plain = model.visible(inputs), model.visible(replace(inputs, attention_mask=None))
    span = span.expand(inputs.tokens.shape)
    cut = None if rows is None else rows.expand(inputs.tokens.shape)[:, start:]

    def of_layer(layer: int) -> dict[str, Edit]:
        numbers = [head.head for head in chosen if head.layer == layer]
        held, parts = Held(), attention_sites(layer, "rot_q", "rot_k", "v")

        def edit_z(z: Tensor) -> Tensor:
            source = None if donor is None else LayerState.of(model, donor, layer, span=span)
            q, k, v = held.take(*parts)
            state = LayerState(
                *(q[:, start:], k, v, z[:, start:]),
                visible=masks[layer][:, :, start:].to(z.device),
                unmasked=plain[layer][:, :, start:].to(z.device),
                rule=model.attention_rule(layer),
                span=span.to(z.device),
                donor=source,
                layer=layer,
                rows=cut,
            )
            new, edited = intervention.edited(state), z.clone()
            edited[:, start:, numbers] = new[:, :, numbers].to(z.dtype)
            return edited

        return {**held.edits(*parts), site(layer, "attn.hook_z"): edit_z}

    return {name: edit for layer in {head.layer for head in chosen} for name, edit in of_layer(layer).items()}


_PLAIN = PatchZ(), Knockout(), KnockoutZero(), EdgeNoise(), RestoreScale(), RerouteToSink(), RerouteUniform()
INTERVENTIONS: dict[str, Intervention] = {made.name: made for made in (*_PLAIN, MatchedMassKnockout())}
INTERVENTIONS |= {"q": PatchInput("q"), "k": PatchInput("k"), "v": PatchInput("v")}
"""The interventions that need no number, by name."""
KNOCKOUTS: dict[str, Intervention] = {"denoising": Knockout(), "noising": EdgeNoise()}
"""edit="knockout" in each direction: the head's sight of the span taken from it, or given to it alone."""
