"""Ways and edges: what a head does straight to the answer, and what one part of the model does through another one alone."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd
from torch import Tensor

from ..core.arguments import checked
from ..core.heads import Head, as_head
from ..models.base import Model
from ..models.replay import Layers, stage
from ..patching.effect import SMALLEST_EFFECT, check_smallest_effect
from ..patching.interventions import Intervention
from ..patching.outcomes import Outcome
from ..patching.prepared import Prepared
from ..prompts.conditions import several_of
from ..prompts.pairs import PromptPair
from ..runtime.columns import columns_of
from ..runtime.loop import RunOptions
from ..runtime.results import Result, largest_first
from .cells import (
    LOGITS,
    PAIRS_OF_INPUTS,
    PARTS_OF_A_HEAD,
    Asked,
    CellEffects,
    Edge,
    Experiment,
    Flow,
    Mlp,
    Node,
    Way,
    compared,
    has_mlps,
    heads_of,
    mlp_reads,
    need_weights,
    of_cells,
)


def _written(layers: Layers, node: Node) -> int:
    """From which stage on what it writes is in the stream; of the logits, where their change enters."""
    if isinstance(node, str):
        return 2 * layers.n_layers
    return stage(layers, node.layer, "mlp" if isinstance(node, Mlp) else "attention")


def _reads(layers: Layers, node: Node) -> int:
    """The stage of the stream that it reads."""
    if isinstance(node, str):
        return 2 * layers.n_layers
    return mlp_reads(layers, node.layer) if isinstance(node, Mlp) else 2 * node.layer


@checked
def trace_paths(
    model: Model,
    pairs: Iterable[PromptPair] | Prepared,
    heads: Asked | None = None,
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

    The edit changes the sender's output by $\Delta z_s$ at every token that can change. The receiver alone sees it, in the
    stream that its query, key or value is made of; what it then writes more goes on through the rest of the model:

    $$ q_r' = R_p\, W_Q^r\, n\big(x_l + \Delta z_s W_O^s\big), \qquad z_r' = A(q_r', k_r, v_r)\, v_r, \qquad
       Y_{s \to r} = Y(z_r \leftarrow z_r') - Y_\text{receiving} $$

    (k and v alike; under grouped queries the receiver has its own copy of them). Into an MLP likewise; into the logits it is
    the direct effect. Edges do not add up to a head's effect: paths of several edges count in each.

    Parameters
    ----------
    heads : senders and receivers: zero-based heads, or what `locate_heads` gave (its named heads).
    mlps : layers of MLPs that are nodes too, or "all" (of an attention-only model none).
    logits : whether edges into the logits are asked for.
    inputs : through what edges enter heads: of "q", "k", "v" and "qkv" (together).
    edges : exactly these in place of all edges among `heads` and `mlps`, such as "L0H13 -> L1H4 v" or `Edge(...)`.
    contrast, direction, edit, outcome, checkpoint, max_rows, smallest_effect : as in `patch_heads`. Denoising finds edges that
        are needed, noising those that suffice. MLPs send what the donor run has more, so they need edit="z".
    control : as in `direct_effects`.

    Returns `PathEffects` with values `[problem, edge]`. Raises `ValueError` before anything runs for an edge whose sender does
    not stand before its receiver, `ModelError` for models whose weights or layers cannot be read (quantised, run elsewhere).

    Source: Wang et al. (2211.00593), Goldowsky-Dill et al. (2304.05969), methods §8.1.
    """
    check_smallest_effect(smallest_effect)
    options = RunOptions(checkpoint, progress, seed, max_rows)
    layers = model.need_layers("trace_paths").layers
    if edges is None:
        chosen = _among(model, layers, heads, mlps, tuple(inputs), logits)
    elif heads is not None or mlps:
        raise ValueError("give heads (and mlps) or edges, not both")
    else:
        chosen = tuple(edge if isinstance(edge, Edge) else Edge.parse(edge) for edge in edges)
    _check(model, layers, chosen, edit)
    problems = compared(model, pairs, contrast, direction, edit, outcome, control)

    def place_of(at: int) -> tuple[int, bool, bool, str, str, str]:
        """Where receivers write; within a layer sender by sender, so that projections are shared."""
        edge = chosen[at]
        last = edge.receiver == LOGITS
        joins = _written(layers, edge.receiver)
        return joins, last, isinstance(edge.receiver, Mlp), str(edge.sender), str(edge.receiver), edge.part

    order = sorted(range(len(chosen)), key=place_of)

    def changes(flow: Flow) -> Iterator[tuple[int, int, Tensor]]:
        sent: dict[Node, Tensor] = {}
        for at in order:
            sender, receiver = chosen[at].sender, chosen[at].receiver
            if sender not in sent:
                sent[sender] = (
                    flow.part_writes(sender.layer, "mlp")
                    if isinstance(sender, Mlp)
                    else flow.head_writes(as_head(sender))
                )
            change = sent[sender]
            if isinstance(receiver, Head):
                change = flow.head_answers(receiver, change, chosen[at].part, sender=sender)
            elif isinstance(receiver, Mlp):
                change = flow.mlp_answers(receiver.layer, change)
            yield at, _written(flow.layers, receiver), change

    asked = Experiment(*problems, options, smallest_effect, heads)
    return asked.measured(PathEffects, chosen, changes, label="tracing paths")


def _among(
    model: Model,
    layers: Layers,
    heads: Asked | None,
    mlps: str | Iterable[int],
    inputs: tuple[str, ...],
    logits: bool,
) -> tuple[Edge, ...]:
    """All edges among these parts; `ValueError` where there are none."""
    if heads is None:
        raise ValueError("trace_paths needs heads (a list, or what locate_heads gave) or edges")
    several_of(inputs, dict.fromkeys((*PARTS_OF_A_HEAD, *PAIRS_OF_INPUTS)), "input")
    if isinstance(mlps, str):
        if mlps != "all":
            raise ValueError(f'mlps must be layers (zero-based) or "all", got {mlps!r}')
        mlps = range(model.info.n_layers) if has_mlps(model) else ()
    nodes = [Mlp(model.info.check_layer(layer)) for layer in mlps]
    named = heads_of(model, heads, "trace paths between")
    if len(named) < 2 and not nodes:
        raise ValueError(f'a path needs two parts, got {named[0]} alone: give more, or edges=["{named[0]} -> logits"]')
    parts: list[Node] = [*sorted(named), *nodes]
    found = [
        Edge(sender, receiver, part)
        for sender in parts
        for receiver in [*parts, *([LOGITS] if logits else [])]
        if sender != receiver and _written(layers, sender) <= _reads(layers, receiver)
        for part in (inputs if isinstance(receiver, Head) else ("",))
    ]
    if not found:
        raise ValueError("no edge can be among these parts, which lie in one layer: give others, or logits=True")
    return tuple(found)


def _check(model: Model, layers: Layers, edges: Sequence[Edge], edit: str | Intervention) -> None:
    """`ValueError` unless every edge is one of this model, each once; `ModelError` where its weights cannot be read."""
    if not edges:
        raise ValueError("there are no edges to trace: name at least one")
    if twice := [edge for edge in edges if edges.count(edge) > 1]:
        raise ValueError(f"edge {twice[0]} is given twice")
    nodes = dict.fromkeys(node for edge in edges for node in (edge.sender, edge.receiver))
    heads = [node for node in nodes if isinstance(node, Head)]
    if heads:
        model.info.chosen(heads, what="trace paths between")
    for node in nodes:
        if isinstance(node, Mlp):
            if not has_mlps(model):
                raise ValueError(f"this model has no MLPs, so there is no {node}: leave it out")
            model.info.check_layer(node.layer)
    for edge in edges:
        if _written(layers, edge.sender) > _reads(layers, edge.receiver):
            own = isinstance(edge.sender, Head) and edge.receiver == Mlp(edge.sender.layer)
            why = "the two are parallel" if own else f"the model has layers 0 to {model.info.n_layers - 1}"
            raise ValueError(f"{edge}: a sender stands before its receiver, which reads what it writes ({why})")
    name = edit if isinstance(edit, str) else edit.name
    if name != "z" and any(isinstance(edge.sender, Mlp) for edge in edges):
        raise ValueError(f"an MLP sends what the donor has more: it needs edit='z', got {name!r}; leave such edges out")
    need_weights(model, [head.layer for head in heads], "trace_paths")


@dataclass(frozen=True, eq=False, repr=False)
class PathEffects(CellEffects[Edge], Result):
    """What goes along each edge: `values` `[problem, cell]`, of which the cells are `edges` (`CellEffects`)."""

    picture = "path_graph"
    columns = columns_of("""
        sender | sender | | the part whose change is passed on
        receiver | receiver | | the part that alone sees the change
    """)
    what = ("edge", "edges")

    @property
    def edges(self) -> tuple[Edge, ...]:
        """The edges, in the order in which they were asked for."""
        return self.cells

    def together(self) -> pd.DataFrame:
        """Compare inputs of a receiving head at once with each of them alone, per problem (methods §8.1).

        One row per edge into two or all of q, k, v (`inputs`) that was traced with each input alone: its `share` of the effect,
        the `interaction` (its value minus the sum of the single ones, median), tested like edges (`k` of `n`, `p`). `how`:
        "together" where the edge passes, none of its inputs alone does, and the interaction has its sense; "either" where two
        inputs or more pass alone, in one sense, and the interaction takes back (`inputs` are then those); else "".
        """
        at = {(edge.sender, edge.receiver, edge.part): place for place, edge in enumerate(self.edges)}
        singles = {
            place: [at[sender, receiver, name] for name in part]
            for (sender, receiver, part), place in at.items()
            if len(part) > 1 and all((sender, receiver, name) in at for name in part)
        }
        columns = ["sender", "receiver", "inputs", "how", "share", "interaction", "k", "n", "p"]
        if not singles:
            return pd.DataFrame(columns=columns)
        values = np.stack([self.values[:, place] - self.values[:, alone].sum(1) for place, alone in singles.items()], 1)
        joint = replace(self, cells=tuple(self.edges[place] for place in singles), values=values)
        passes, between = (each.sense * (each.p_corrected < each.level) for each in (self, joint))
        rows, tested = [], joint.table()
        for row, (place, alone) in enumerate(singles.items()):
            edge, of, single = self.edges[place], tested.iloc[row], [each for each in alone if passes[each]]
            inputs, how = edge.part, ""
            if passes[place] and not single and between[row] == passes[place]:
                how = "together"
            elif len(single) > 1 and len(set(passes[single])) == 1 and between[row] == -passes[single[0]]:
                how, inputs = "either", "".join(self.edges[each].part for each in single)
            named = str(edge.sender), str(edge.receiver), inputs, how, float(self.share.estimate[place])
            rows.append((*named, of["median"], of["k"], of["n"], of["p_corrected"]))
        return pd.DataFrame(rows, columns=columns)

    def together_words(self) -> list[str]:
        """Say of which edges the inputs act together, or in each other's place: the fewest inputs that do."""
        table = self.together()
        table = table[table["how"] != ""].sort_values("inputs", key=lambda each: each.str.len(), kind="stable")
        found = []
        for row in table.drop_duplicates(["sender", "receiver"]).itertuples():
            *most, last = row.inputs
            joined, does = ("and", "together") if row.how == "together" else ("or", "in each other's place")
            found.append(
                f"{row.sender} -> {row.receiver}: {', '.join(most)} {joined} {last} act {does}, {100 * row.share:z.0f} % at "
                f"once (interaction {row.interaction:+.4f} {self.unit}, in {row.k} of {row.n} problems)."
            )
        return found

    def details(self) -> list[str]:
        """Return how edges were traced, which are shown in most problems, and whose inputs act together."""
        return [*super().details(), *self.together_words()]


WAYS = ("direct", "indirect")
"""The parts of a head's effect: straight to the logits, and through later parts of the model."""


@checked
def direct_effects(
    model: Model,
    pairs: Iterable[PromptPair] | Prepared,
    heads: Asked | None = None,
    *,
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
) -> "DirectEffects":
    r"""Split each head's effect into what it writes straight to the answer and what goes through later parts, exactly.

    The edit changes the head's output by $\Delta z$ at every token that can change (`patch_heads`, "question"). Added to the
    *last* residual stream $x_L$ only, where nothing but the final norm and the unembedding reads it, this is its direct effect:

    $$ Y_\text{direct} = Y\big(x_L + \Delta z\, W_O\big) - Y(x_L), \qquad
       Y_\text{indirect} = Y_\text{patched} - Y_\text{receiving} - Y_\text{direct} $$

    each with the sign of `DIRECTIONS`, so that both are parts of the insertion's effect. The indirect part holds all that later
    heads and MLPs make of it. A head of the last layer still acts through that layer's MLP, unless the two are parallel.

    Parameters
    ----------
    heads : zero-based heads, or what `locate_heads` gave (its named heads). Default all.
    contrast, direction, edit, outcome, checkpoint, max_rows, smallest_effect : as in `patch_heads`.
    control : the same problems with another insertion of as many tokens at the same place, from `make_pairs`. Clean is then the
        run with the control, and the span's own rows change too: what heads write there for later ones to read is seen.

    Returns `DirectEffects` with values `[problem, head]` in the outcome's unit. Raises `ModelError` before anything runs for
    models whose weights or layers cannot be read (quantised, run elsewhere).

    Source: methods §8.1; path patching of head to logits in Wang et al. (2211.00593).
    """
    check_smallest_effect(smallest_effect)
    options = RunOptions(checkpoint, progress, seed, max_rows)
    chosen = heads_of(model, heads, "split")
    need_weights(model, [head.layer for head in chosen], "direct_effects")
    problems = compared(model, pairs, contrast, direction, edit, outcome, control)
    ways = [Way(head, way) for head in chosen for way in WAYS]

    def changes(flow: Flow) -> Iterator[tuple[int, int, Tensor]]:
        """The whole effect of each head stands in the place of its indirect one."""
        for head in sorted(chosen):
            yield 2 * chosen.index(head) + 1, _written(flow.layers, head), flow.head_writes(head)
        for head in sorted(chosen):
            yield 2 * chosen.index(head), _written(flow.layers, LOGITS), flow.head_writes(head)

    asked = Experiment(*problems, options, smallest_effect, heads)
    found = asked.measured(DirectEffects, ways, changes, label="direct effects")
    values = found.values.copy()
    values[:, 1::2] -= values[:, ::2]
    return replace(found, values=values)


@dataclass(frozen=True, eq=False, repr=False)
class DirectEffects(CellEffects[Way], Result):
    """How much of each head's effect goes straight to the logits: `values` `[problem, cell]`, two cells (`Way`) per head.

    `effect` `[problem, head]` is the part of the insertion's effect (`total`, corrupted - clean) that the head carries,
    `direct` and `indirect` what it consists of; both ways of every head are tested (`CellEffects`).
    """

    picture = "direct_bars"
    columns = columns_of("""
        way | way | | direct: straight to the logits; indirect: through later parts of the model
    """)
    what = ("part", "parts")

    heads = of_cells("of")
    """The heads, in the order in which they were asked for."""

    @property
    def direct(self) -> np.ndarray:
        """Straight to the logits, `[problem, head]`."""
        return self.values[:, ::2]

    @property
    def indirect(self) -> np.ndarray:
        """Through later parts of the model, `[problem, head]`."""
        return self.values[:, 1::2]

    @property
    def effect(self) -> np.ndarray:
        """Both together, `[problem, head]`."""
        return self.direct + self.indirect

    def printed(self) -> pd.DataFrame:
        """The heads' shares, the largest first."""
        size = np.repeat(self.effect.mean(0), len(WAYS))
        return largest_first(self.table().assign(size=size), "size")[self.printed_columns.split()].head(2 * 8)
