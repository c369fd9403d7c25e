"""Edges: what one part of the model does through another one alone."""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from torch import Tensor

from ..given import checked, count_of
from ..heads import Head
from ..locating.located import LocatedHeads
from ..models.base import Model
from ..models.replay import Layers
from ..patching.interventions import Intervention
from ..patching.outcomes import Outcome
from ..patching.parts import SMALLEST_EFFECT
from ..patching.prepared import Prepared
from ..patching.sweep import Sweep
from ..prompts.pairs import PromptPair
from ..running.registry import savable
from ..running.results import Result, Shown, ShownTable, largest_first, tidy
from ..running.work import Tick, Unit
from ..statistics import CONFIDENCE
from .cells import PRINTED, Cells, effects_of, made_with
from .controls import prepared_with, sweep_of
from .stream_changes import (
    INPUTS,
    Flow,
    check_options,
    heads_of,
    mlp_reads,
    named_words,
    need_layers,
    need_weights,
    writes,
)

LOGITS = "logits"
TOGETHER = "".join(INPUTS)
PARTS_OF_A_HEAD = (*INPUTS, TOGETHER)
"""Through what an edge enters a head: its queries, its keys, its values, all of them."""
_EDGE = re.compile(r"^\s*(\S+)\s*(?:->|→)\s*(\S+)(?:\s+(\w+))?\s*$")
_MLP = re.compile(r"^MLP(\d+)$", re.IGNORECASE)


@savable
@dataclass(frozen=True, order=True)
class Edge:
    """From a sender ("L0H13" or "MLP0") to a receiver (a head, an MLP, or "logits"); all numbers zero-based.

    `part` of a head that receives: "q", "k", "v" or "qkv"; empty for other receivers, which have one input.

    >>> Edge.parse("L0H13 -> L1H4 v"), Edge.parse("L0H13 -> MLP1")
    (L0H13 -> L1H4 v, L0H13 -> MLP1)
    """

    sender: str
    receiver: str
    part: str = ""

    def __post_init__(self) -> None:
        for name in ("sender", "receiver"):
            object.__setattr__(self, name, _node(getattr(self, name), name))
        into_head = not isinstance(_place(self.receiver), int | None)
        if into_head and not self.part:
            object.__setattr__(self, "part", TOGETHER)
        if self.sender == LOGITS:
            raise ValueError("the logits send nothing: an edge begins at a head or an MLP")
        if self.part not in (PARTS_OF_A_HEAD if into_head else ("",)):
            allowed = ", ".join(PARTS_OF_A_HEAD) if into_head else "none"
            raise ValueError(
                f"{self.sender} -> {self.receiver}: the part of the receiver must be {allowed}, got {self.part!r}"
            )

    @classmethod
    def parse(cls, text: str) -> "Edge":
        """The edge of a text such as "L0H13 -> L1H4 v"; without a part all three of a head."""
        found = _EDGE.match(text)
        if found is None:
            raise ValueError(
                f'cannot read {text!r} as an edge: write "L0H13 -> L1H4 v" or "L0H13 -> MLP1" (zero-based)'
            )
        return cls(found[1], found[2], found[3] or "")

    def __str__(self) -> str:
        return f"{self.sender} -> {self.receiver} {self.part}".rstrip()

    __repr__ = __str__


def _node(name: str, what: str) -> str:
    """A node's name as results have it; `ValueError` for what is none."""
    mlp = _MLP.match(name)
    if mlp is not None:
        return f"MLP{int(mlp[1])}"
    if name.lower() == LOGITS:
        return LOGITS
    try:
        return str(Head.parse(name))
    except ValueError:
        known = '"L0H13" or "MLP0"' + (', or "logits"' if what == "receiver" else "")
        raise ValueError(f"the {what} of an edge must be {known} (zero-based), got {name!r}") from None


def _place(node: str) -> Head | int | None:
    """A head, the layer of an MLP, or None for the logits."""
    mlp = _MLP.match(node)
    return int(mlp[1]) if mlp is not None else None if node == LOGITS else Head.parse(node)


def _written(layers: Layers, node: str) -> int:
    """From which stage on what it writes is in the stream."""
    place = _place(node)
    assert place is not None
    return writes(layers, place, "mlp") if isinstance(place, int) else writes(layers, place.layer, "attention")


def _reads(layers: Layers, node: str) -> int:
    """The stage of the stream that it reads."""
    place = _place(node)
    if place is None:
        return 2 * layers.n_layers
    return mlp_reads(layers, place) if isinstance(place, int) else 2 * place.layer


@checked
def trace_paths(
    model: Model,
    pairs: Iterable[PromptPair] | Prepared,
    heads: LocatedHeads | Iterable[Head | str] | None = None,
    *,
    mlps: str | Iterable[int] = (),
    logits: bool = True,
    inputs: Iterable[str] = PARTS_OF_A_HEAD,
    edges: Iterable[Edge | str] | None = None,
    contrast: str = "content",
    direction: str = "denoising",
    edit: str | Intervention = "z",
    outcome: str | Outcome = "answer_logprob",
    control: Iterable[PromptPair] | None = None,
    checkpoint: str | Path | None = None,
    max_rows: int | None = None,
    smallest_effect: float = SMALLEST_EFFECT,
    progress: bool = True,
    seed: int = 0,
) -> "PathEffects":
    r"""What heads do through one another, edge by edge, exactly: path patching by replay.

    The edit changes the sender's output by $\Delta z_s$ at every token that can change. The receiver alone sees it, added
    to the stream that its query, key or value is made of; everything between is frozen. What the receiver then writes more
    goes on through the rest of the model:

    $$ q_r' = R_p\, W_Q^r\, n\big(x_l + \Delta z_s W_O^s\big), \qquad z_r' = A(q_r', k_r, v_r)\, v_r, \qquad
       Y_{s \to r} = Y(z_r \leftarrow z_r') - Y_\text{receiving} $$

    (k and v alike; under grouped queries the receiver has its own copy of them, and where a norm spans the queries or keys of
    all heads, OLMo 2, it is that of the whole changed input). Into an MLP the change is added to the stream that it reads, and
    what it answers more is added to what it wrote; into the logits it is the direct effect.

    Edges do not add up to a head's effect: the model is not linear, and paths of several edges count in each. Of parts of one
    layer an edge exists only where one is read by the other: from a head to its own layer's MLP, unless the two are parallel.

    Parameters
    ----------
    heads : senders and receivers: zero-based heads, or what `locate_heads` gave (its named heads).
    mlps : layers of MLPs that are nodes too, or "all".
    logits : whether edges into the logits are asked for.
    inputs : through what edges enter heads: of "q", "k", "v" and "qkv" (together).
    edges : exactly these in place of all edges among `heads` and `mlps`, such as "L0H13 -> L1H4 v" or `Edge(...)`.
    contrast, direction, edit, outcome, checkpoint, max_rows, smallest_effect : as in `patch_heads`. Denoising finds edges that
        are needed, noising those that suffice. MLPs send what the donor run has more, so they need edit="z".
    control : as in `direct_effects`.

    Returns `PathEffects` with values `[problem, edge]`. Raises `ValueError` before anything runs for an edge whose sender does
    not stand before its receiver, and for a single head without MLPs; `ModelError` for models whose weights cannot be read
    (quantised, run elsewhere) or whose layers are not known one by one.

    Source: Wang et al. (2211.00593), Goldowsky-Dill et al. (2304.05969), methods §8.1.
    """
    check_options(smallest_effect, max_rows)
    sweep = sweep_of(contrast, direction, edit, control)
    layers = need_layers(model, "trace_paths").layers
    if edges is None:
        chosen = _among(model, layers, heads, mlps, tuple(inputs), logits)
    elif heads is not None or mlps:
        raise ValueError("give heads (and mlps) or edges, not both")
    else:
        chosen = tuple(edge if isinstance(edge, Edge) else Edge.parse(edge) for edge in edges)
    _check(model, layers, chosen, sweep)
    prepared = prepared_with(model, pairs, outcome, control)
    order = sorted(range(len(chosen)), key=lambda at: _order(layers, chosen[at]))

    def of_unit(unit: Unit, tick: Tick) -> list[Any]:
        flow = Flow(prepared.runs(unit), sweep, max_rows)
        values = flow.outcomes(_cells(flow, [chosen[at] for at in order]), tick)
        values = values[:, np.argsort(order)]
        return [{"patched": values[at], "ends": flow.ends[at]} for at in range(len(unit))]

    found = prepared.each(
        of_unit,
        label="tracing paths",
        settings={**sweep.settings, "edges": list(map(str, chosen))},
        checkpoint=checkpoint,
        progress=progress,
        steps=len(chosen),
    )
    values, total = effects_of(found, direction)
    return PathEffects(
        problem_ids=prepared.ids,
        edges=chosen,
        values=values,
        total=total,
        unit=prepared.outcome.unit,
        settings=made_with(prepared, sweep, heads),
        seed=seed,
        smallest_effect=smallest_effect,
    )


def _among(
    model: Model, layers: Layers, heads: Any, mlps: str | Iterable[int], inputs: tuple[str, ...], logits: bool
) -> tuple[Edge, ...]:
    """All edges among these parts; `ValueError` where there are none."""
    if heads is None:
        raise ValueError("trace_paths needs heads (a list, or what locate_heads gave) or edges")
    unknown = set(inputs) - set(PARTS_OF_A_HEAD)
    if unknown or not inputs or len(set(inputs)) != len(inputs):
        raise ValueError(f"inputs must be different ones of {', '.join(PARTS_OF_A_HEAD)}, got {list(inputs)}")
    if isinstance(mlps, str) and mlps != "all":
        raise ValueError(f'mlps must be layers (zero-based) or "all", got {mlps!r}')
    asked = range(model.info.n_layers) if isinstance(mlps, str) else [model.info.check_layer(layer) for layer in mlps]
    named = heads_of(model, heads, "trace paths between")
    if len(named) < 2 and not asked:
        raise ValueError(
            f"a path needs two parts, got {named[0]} alone: give more heads, or mlps=... ; direct_effects(...) splits one head"
        )
    if len(set(asked)) != len(asked):
        raise ValueError(f"mlps: a layer is given twice in {list(asked)}")
    parts = [*map(str, sorted(named)), *(f"MLP{layer}" for layer in asked)]
    found = [
        Edge(sender, receiver, part)
        for sender in parts
        for receiver in [*parts, *([LOGITS] if logits else [])]
        if sender != receiver and _written(layers, sender) <= _reads(layers, receiver)
        for part in (inputs if isinstance(_place(receiver), Head) else ("",))
    ]
    if not found:
        raise ValueError(
            f"no edge can be among {', '.join(parts)}, which lie in one layer: give heads of several layers, or logits=True"
        )
    return tuple(found)


def _check(model: Model, layers: Layers, edges: Sequence[Edge], sweep: Sweep) -> None:
    """`ValueError` unless every edge is one of this model, each once; `ModelError` where its weights cannot be read."""
    if not edges:
        raise ValueError("there are no edges to trace: name at least one")
    twice = next((edge for edge in edges if edges.count(edge) > 1), None)
    if twice is not None:
        raise ValueError(f"edge {twice} is given twice")
    places = [_place(node) for edge in edges for node in (edge.sender, edge.receiver)]
    heads = list(dict.fromkeys(place for place in places if isinstance(place, Head)))
    if heads:
        model.info.chosen(heads, what="trace paths between")
    for layer in (place for place in places if isinstance(place, int)):
        model.info.check_layer(layer)
    for edge in edges:
        if _written(layers, edge.sender) > _reads(layers, edge.receiver):
            why = (
                "the two are parallel" if _same_layer(edge) else f"the model has layers 0 to {model.info.n_layers - 1}"
            )
            raise ValueError(
                f"{edge}: what {edge.sender} writes is not in the stream that {edge.receiver} reads ({why}): a sender stands "
                "before its receiver"
            )
    if sweep.intervention.name != "z" and any(isinstance(_place(edge.sender), int) for edge in edges):
        raise ValueError(
            f"an MLP sends what the donor run has more, so it needs edit='z', got {sweep.intervention.name!r}: leave MLPs out "
            "of the senders"
        )
    need_weights(model, [head.layer for head in heads], "trace_paths")


def _same_layer(edge: Edge) -> bool:
    sender, receiver = _place(edge.sender), _place(edge.receiver)
    return isinstance(sender, Head) and isinstance(receiver, int) and sender.layer == receiver


def _order(layers: Layers, edge: Edge) -> tuple[Any, ...]:
    """In the order of the stages at which receivers write; within a layer sender by sender, so that projections are shared."""
    place = _place(edge.receiver)
    joins = 2 * layers.n_layers if place is None else _written(layers, edge.receiver)
    return joins, edge.receiver == LOGITS, isinstance(place, int), edge.sender, edge.receiver, edge.part


def _cells(flow: Flow, edges: Sequence[Edge]) -> Iterator[tuple[int, Tensor]]:
    """Where each edge's change enters the stream, and the change."""
    sent: dict[str, Tensor] = {}
    for edge in edges:
        sender, receiver = _place(edge.sender), _place(edge.receiver)
        if edge.sender not in sent:
            sent[edge.sender] = (
                flow.head_writes(sender) if isinstance(sender, Head) else flow.part_writes(sender, "mlp")  # type: ignore[arg-type]
            )
        change = sent[edge.sender]
        if receiver is None:
            yield 2 * flow.layers.n_layers, change
        elif isinstance(receiver, Head):
            yield (
                writes(flow.layers, receiver.layer, "attention"),
                flow.head_answers(receiver, change, edge.part, sender=edge.sender),
            )
        else:
            yield writes(flow.layers, receiver, "mlp"), flow.mlp_answers(receiver, change)


@dataclass(frozen=True, eq=False, repr=False)
class PathEffects(Cells, Result):
    """What goes along each edge: `values` `[problem, edge]`, parts of the insertion's effect `total` `[problem]`.

    Positive is with the effect (in denoising: what the edge takes out of it, in noising what it brings in). What is claimed of
    an edge is in how many problems it carries more than the smallest effect of interest (prevalence test, Holm over all edges
    traced and both senses); means describe.
    """

    problem_ids: tuple[str, ...]
    edges: tuple[Edge, ...]
    values: np.ndarray
    total: np.ndarray
    unit: str
    settings: dict[str, Any] = field(default_factory=dict)
    seed: int = 0
    confidence: float = CONFIDENCE
    smallest_effect: float = SMALLEST_EFFECT

    what = ("edge", "edges")
    axes = (("values", "problem edge"), ("total", "problem"))

    @property
    def found(self) -> tuple[Edge, ...]:
        """The edges that carry more than the smallest effect in most problems."""
        return tuple(edge for edge, p in zip(self.edges, self.p_prevalence, strict=True) if p < self.alpha)

    def summary(self) -> pd.DataFrame:
        """One row per edge, in their order.

        `sender`, `receiver`, `part`; `k` of `n` problems with more than the smallest effect in `sense`, `prevalence` with
        exact limits, `p_prevalence` (Holm over edges and senses), `median` and its share of the median total, mean `effect`,
        each with limits; `effect_fraction`, the mean as a share of the mean total.
        """
        return pd.DataFrame(
            {
                "label": list(map(str, self.edges)),
                "sender": [edge.sender for edge in self.edges],
                "receiver": [edge.receiver for edge in self.edges],
                "part": [edge.part for edge in self.edges],
                **self.claim_columns(),
                **self.share_columns(),
            }
        )

    def to_frame(self) -> pd.DataFrame:
        """One tidy row per problem and edge."""
        return tidy({"problem": self.problem_ids, "label": list(map(str, self.edges))}, effect=self.values)

    def sentences(self) -> list[str]:
        """What was traced, and which edges are shown in most problems."""
        s, nodes = self.settings, {node for edge in self.edges for node in (edge.sender, edge.receiver)} - {LOGITS}
        heads = sum(isinstance(_place(node), Head) for node in nodes)
        mlps = count_of(len(nodes) - heads, "MLP") if len(nodes) > heads else "no MLPs"
        return [
            f"{count_of(len(self.edges), 'edge')} among {count_of(heads, 'head')} and {mlps} ({s.get('edit', 'z')} patch), "
            f"contrast {s.get('contrast')}, {s.get('direction')}, outcome {s.get('outcome')}, "
            f"{count_of(len(self.problem_ids), 'problem')}.",
            *self._total_words(),
            *self._claim_words(),
            *named_words(s),
        ]

    def printed(self) -> pd.DataFrame:
        """The ten edges of the largest median."""
        columns = [*PRINTED[:3], "p_prevalence", *PRINTED[3:]]
        return largest_first(self.summary(), "median")[columns].head(10)

    def shown(self) -> Shown:
        """Every edge, the largest median first."""
        table = largest_first(self.summary(), "median")
        caption = f"Edges, the largest first. Effects are the parts of the insertion's, in {self.unit}."
        return Shown((ShownTable(table.drop(columns=["sender", "receiver", "part"]), caption),))
