"""Ways and edges: what a head does straight to the answer, and what one part of the model does through another one alone."""

import json
import re
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
from torch import Tensor

from ..core.arguments import Arguments, checked, listed, one_of, several_of
from ..core.heads import Head, as_head
from ..models.base import Model
from ..models.replay import Layers, stage
from ..patching.outcomes import Outcome
from ..patching.prepared import Prepared
from ..patching.sweep import PatchScores
from ..prompts.pairs import PromptPair
from ..runtime.columns import columns_of
from ..runtime.folders import savable
from ..runtime.loop import RunOptions
from ..runtime.text_safety import visible
from . import cells
from .located import LocatedHeads

INPUTS = ("q", "k", "v")  # what a head makes of the stream; "qkv" is all three
LOGITS = "logits"
TOGETHER = "".join(INPUTS)
PARTS_OF_A_HEAD = (*INPUTS, TOGETHER)
"""Through what an edge enters a head: its queries, its keys, its values, all of them."""
PAIRS_OF_INPUTS = ("qk", "qv", "kv")  # two of them at once, which edges may name as well
WAYS = ("direct", "indirect")
"""The parts of a head's effect: straight to the logits, and through later parts of the model."""


@savable
@dataclass(frozen=True)
class Mlp:
    """The MLP of a layer (zero-based) as a node of a circuit."""

    layer: int

    def __str__(self) -> str:
        return f"MLP{self.layer}"

    __repr__ = __str__


Node = Head | Mlp | str  # a part of a model; of texts `LOGITS` alone


@savable
@dataclass(frozen=True)
class Edge:
    """From a sender (a head or an MLP, "L0H13" or "MLP0") to a receiver (these, or "logits"); all numbers zero-based.

    `part` of a head that receives: "q", "k", "v", two of them or "qkv"; empty for other receivers, which have one input.

    >>> Edge.parse("L0H13 -> L1H4 v"), Edge.parse("L0H13 -> MLP1")
    (L0H13 -> L1H4 v, L0H13 -> MLP1)
    """

    sender: Node
    receiver: Node
    part: str = ""

    def __post_init__(self) -> None:
        for name in ("sender", "receiver"):
            object.__setattr__(self, name, self._node(getattr(self, name)))
        into_head = isinstance(self.receiver, Head)
        if into_head and not self.part:
            object.__setattr__(self, "part", TOGETHER)
        allowed = (*PARTS_OF_A_HEAD, *PAIRS_OF_INPUTS) if into_head else ("",)
        if self.part not in allowed:
            must = ", ".join(allowed) or "none"
            raise ValueError(f"{self.sender} -> {self.receiver}: the part must be {must}, got {self.part!r}")

    @staticmethod
    def _node(node: Node) -> Node:
        name = str(node).strip().lower()
        if name == LOGITS:
            return LOGITS
        if name.startswith("mlp") and name[3:].isdecimal():
            return Mlp(int(name[3:]))
        try:
            return Head.parse(str(node))
        except ValueError:
            raise ValueError(f'a node must be "L0H13", "MLP0" or "logits" (zero-based), got {node!r}') from None

    @classmethod
    def parse(cls, text: str) -> "Edge":
        """Return the edge of a text such as "L0H13 -> L1H4 v"; without a part all three of a head."""
        sender, _, receiver = text.replace("→", "->").partition("->")
        words = receiver.split()
        if not sender.strip() or len(words) not in (1, 2):
            raise ValueError(f'cannot read {text!r} as an edge: write "L0H13 -> L1H4 v" or "L0H13 -> MLP1"')
        return cls(sender.strip(), *words)

    def __str__(self) -> str:
        return f"{self.sender} -> {self.receiver} {self.part}".rstrip()

    __repr__ = __str__


@savable
@dataclass(frozen=True)
class Way:
    """A way of a head's effect: `way` "direct" (straight to the logits) or "indirect" (through later parts)."""

    of: Head
    way: str

    def __str__(self) -> str:
        return f"{self.of} {self.way}"


def _written(layers: Layers, node: Node) -> int:
    """Return from which stage on what it writes is in the stream; of the logits, where their change enters."""
    if isinstance(node, str):
        return 2 * layers.n_layers
    return stage(layers, node.layer, "mlp" if isinstance(node, Mlp) else "attention")


def _reads(layers: Layers, node: Node) -> int:
    if isinstance(node, Mlp):
        return cells.mlp_reads(layers, node.layer)
    return 2 * (node.layer if isinstance(node, Head) else layers.n_layers)


@checked
def trace_paths(
    model: Model,
    pairs: Iterable[PromptPair] | Prepared,
    heads: cells.Asked | None = None,
    *,
    mlps: str | Iterable[int] = (),
    inputs: Iterable[str] = PARTS_OF_A_HEAD,
    edges: Iterable[Edge | str] | None = None,
    contrast: str = "content",
    direction: str = "denoising",
    outcome: str | Outcome = "answer_logprob",
    control: Iterable[PromptPair] | None = None,
    checkpoint: str | Path | None = None,
    progress: bool = True,
) -> "PathEffects":
    r"""Measure what heads do through one another, edge by edge, exactly: path patching by replay.

    The sender's output is the donor run's, $\Delta z_s$ more at every token that can change. The receiver alone sees it, in the
    stream that its query, key or value is made of; what it then writes more goes on through the rest of the model:

    $$ q_r' = R_p\, W_Q^r\, n\big(x_l + \Delta z_s W_O^s\big), \qquad z_r' = A(q_r', k_r, v_r)\, v_r, \qquad
       Y_{s \to r} = Y(z_r \leftarrow z_r') - Y_\text{receiving} $$

    (k and v alike; under grouped queries the receiver has its own copy of them). Into an MLP likewise; into the logits it is
    the direct effect. Edges do not add up to a head's effect: paths of several edges count in each.

    Parameters
    ----------
    heads, mlps : senders and receivers: heads, or what `locate_heads` gave (its named heads); layers of MLPs, "all" or "none".
        The logits receive, too.
    inputs : through what edges enter heads: of "q", "k", "v", two of them, and "qkv" (together).
    edges : exactly these in place of all edges among `heads` and `mlps`, such as "L0H13 -> L1H4 v" or `Edge(...)`.
    contrast, direction, outcome, checkpoint : as in `patch_heads` (denoising finds edges that are needed,
        noising those that suffice); control : as in `direct_effects`.

    Raises `ModelError` as `direct_effects` does.

    Source: Wang et al. (2211.00593), Goldowsky-Dill et al. (2304.05969), methods §8.1.
    """
    layers = model.need_layers("trace_paths").layers
    if edges is None:
        chosen = _among(model, layers, heads, mlps, tuple(inputs), contrast=contrast, outcome=outcome)
    elif heads is not None or mlps:
        raise ValueError("give heads (and mlps) or edges, not both")
    else:
        chosen = tuple(dict.fromkeys(edge if isinstance(edge, Edge) else Edge.parse(edge) for edge in edges))
    _check(model, layers, chosen)
    problems = cells.compared(model, pairs, contrast, direction, outcome, control)
    options = RunOptions(checkpoint, progress)

    def place_of(at: int) -> tuple[int, int, str]:
        """Sort by where receivers write; within a layer sender by sender, so that projections are shared."""
        receiver = chosen[at].receiver
        return _written(layers, receiver), (Head, Mlp, str).index(type(receiver)), str(chosen[at])

    def changes(flow: cells.Flow) -> Iterator[tuple[int, int, Tensor]]:
        @cache
        def sent(node: Node) -> Tensor:
            return flow.part_writes(node.layer, "mlp") if isinstance(node, Mlp) else flow.head_writes(as_head(node))

        for at in sorted(range(len(chosen)), key=place_of):
            sender, receiver = chosen[at].sender, chosen[at].receiver
            change = sent(sender)
            if isinstance(receiver, Head):
                change = flow.head_answers(receiver, change, chosen[at].part, sender=sender)
            elif isinstance(receiver, Mlp):
                change = flow.mlp_answers(receiver.layer, change)
            yield at, _written(flow.layers, receiver), change

    how: Arguments = {"label": "tracing paths", "heads": heads}
    return cells.measure_cells(PathEffects, chosen, changes, problems, options, **how)


def _among(
    model: Model,
    layers: Layers,
    heads: cells.Asked | None,
    mlps: str | Iterable[int],
    inputs: tuple[str, ...],
    **asked: str | Outcome,
) -> tuple[Edge, ...]:
    if heads is None:
        raise ValueError("trace_paths needs heads (a list, or what locate_heads gave) or edges")
    several_of(inputs, (*PARTS_OF_A_HEAD, *PAIRS_OF_INPUTS), "input")
    if isinstance(mlps, str):
        every = range(model.info.n_layers) if cells.has_mlps(model) else ()
        mlps = one_of(mlps, {"all": every, "none": ()}, "mlps (or layers, zero-based)")
    parts: list[Node] = [*sorted(cells.heads_of(model, heads, "trace paths between", **asked))]
    parts += [Mlp(model.info.check_layer(layer)) for layer in mlps]
    return tuple(
        Edge(sender, receiver, part)
        for sender in parts
        for receiver in (*parts, LOGITS)
        if sender != receiver and _written(layers, sender) <= _reads(layers, receiver)
        for part in (inputs if isinstance(receiver, Head) else ("",))
    )


def _check(model: Model, layers: Layers, edges: Sequence[Edge]) -> None:
    """Check that every edge is one of this model, whose weights can be read."""
    nodes = {node for edge in edges for node in (edge.sender, edge.receiver)}
    heads = [node for node in nodes if isinstance(node, Head)]
    model.info.chosen(heads or None, what="trace paths between")
    for node in nodes:
        if isinstance(node, Mlp):
            if not cells.has_mlps(model):
                raise ValueError(f"this model has no MLPs, so there is no {node}: leave it out")
            model.info.check_layer(node.layer)
    for edge in edges:
        if edge.sender == LOGITS or _written(layers, edge.sender) > _reads(layers, edge.receiver):
            own = isinstance(edge.sender, Head) and edge.receiver == Mlp(edge.sender.layer)
            why = "the two are parallel" if own else f"the model has layers 0 to {model.info.n_layers - 1}"
            raise ValueError(f"{edge}: a sender stands before its receiver, which reads what it writes ({why})")
    cells.need_weights(model, [head.layer for head in heads], "trace_paths")


@dataclass(frozen=True, eq=False, repr=False)
class PathEffects(cells.CellEffects[Edge]):
    """What goes along each edge: `values` `[problem, cell]`, of which the cells are `edges` (`CellEffects`)."""

    picture = "path_graph"
    columns = columns_of("""
        sender | sender | | the part whose change is passed on
        receiver | receiver | | the part that alone sees the change
        part | part | | which input of a receiving head: q, k, v, or several together
    """)
    what = ("edge", "edges")

    @property
    def edges(self) -> tuple[Edge, ...]:
        return self.cells

    def together(self) -> pd.DataFrame:
        """Compare inputs of a receiving head at once with each of them alone, per problem (methods §8.1).

        One row per edge into two or all of q, k, v (`inputs`) that was traced with each input alone, too; `interaction`: its
        value minus the sum of the single ones, tested like edges. `how`: "together" where the edge passes, none of its inputs
        alone does, and the interaction has its sense; "either" where two inputs or more pass alone, in one sense, and the
        interaction takes back (`inputs` are then those); else "".
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
        rows = []
        for (place, alone), sense, tested in zip(singles.items(), between, joint.table().itertuples(), strict=True):
            edge, single = self.edges[place], [each for each in alone if passes[each]]
            inputs, how = edge.part, ""
            if passes[place] and not single and sense == passes[place]:
                how = "together"
            elif len(single) > 1 and len(set(passes[single])) == 1 and sense == -passes[single[0]]:
                how, inputs = "either", "".join(self.edges[each].part for each in single)
            named = str(edge.sender), str(edge.receiver), inputs, how, float(self.share.estimate[place])
            rows.append((*named, tested.median, tested.k, tested.n, tested.p_corrected))
        return pd.DataFrame(rows, columns=columns)

    def together_words(self) -> list[str]:
        """Say of which edges the inputs act together, or in each other's place: the fewest inputs that do."""
        table = self.together().query("how != ''").sort_values("inputs", key=lambda each: each.str.len(), kind="stable")
        found = []
        for row in table.drop_duplicates(["sender", "receiver"]).itertuples():
            *most, last = row.inputs
            joined, does = ("and", "together") if row.how == "together" else ("or", "in each other's place")
            inputs = f"{', '.join(most)} {joined} {last} act {does}, {100 * row.share:z.0f} % at once"
            interaction = f"interaction {row.interaction:+.4f} {self.unit}, in {row.k} of {row.n} problems"
            found.append(f"{row.sender} -> {row.receiver}: {inputs} ({interaction}).")
        return found

    def details(self) -> list[str]:
        return [*super().details(), *self.together_words()]


@checked
def save_importances(
    path: str | Path, model: Model, *, heads: LocatedHeads | PatchScores | None = None, edges: PathEffects | None = None
) -> None:
    """Write scores of heads and edges as MIB's circuit track reads them: mean effects in the outcome's unit.

    In the circuit (`in_graph`) are heads that are named (and confirmed), or of a sweep those that most problems show; and edges
    that most problems show, with their ends. Edges into several inputs at once are not written: warns of those that matter.

    Source: MIB, Mueller et al. 2025 (2504.13151): "cfg", "nodes" and "edges" with `score` and `in_graph`, as EAP-IG's graphs
    (2403.17806) are saved.
    """
    parallel, info = bool(model.need_layers("save_importances").layers.parallel(0)), model.info
    made = [*map(_name, info.heads), *(_name(Mlp(layer)) for layer in range(info.n_layers))]
    nodes: dict[str, dict[str, object]] = {name: {"in_graph": name == LOGITS} for name in ("input", *made, LOGITS)}
    links: dict[str, dict[str, object]] = {}
    if heads is not None:
        patches = heads.patches if isinstance(heads, LocatedHeads) else heads
        table = patches.table()
        shown = set(table["label"][table["p_corrected"] < patches.level])
        named = set(map(str, heads.sure)) if isinstance(heads, LocatedHeads) else shown
        for label, effect in zip(table["label"], table["effect"], strict=True):
            nodes[_name(Head.parse(label))] = {"in_graph": label in named, "score": float(effect)}
    if edges is not None:
        single = {edge: score for edge, score in zip(edges.edges, edges.mean_effect, strict=True) if len(edge.part) < 2}
        written = {(edge.sender, edge.receiver) for edge in set(edges.found) & single.keys()}
        if lost := [edge for edge in edges.found if (edge.sender, edge.receiver) not in written]:
            why = "edges shown through several inputs at once alone, which it cannot say, are left out"
            warnings.warn(visible(f"{why}: {listed(lost)}"), stacklevel=3)
        for edge, score in single.items():
            ends, found = (_name(edge.sender), _name(edge.receiver)), edge in edges.found
            links["->".join(ends) + f"<{edge.part}>" * bool(edge.part)] = {"score": float(score), "in_graph": found}
            for node in ends if found else ():
                nodes[node]["in_graph"] = True
    cfg = {"n_layers": info.n_layers, "n_heads": info.n_heads, "parallel_attn_mlp": parallel, "d_model": info.d_model}
    Path(path).write_text(json.dumps({"cfg": cfg, "nodes": nodes, "edges": links}), encoding="utf-8")


@checked
def load_importances(path: str | Path) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Read an `importances.json` of MIB's circuit track (`ValueError` for any other file): a table of nodes and one of edges,
    in the words of this toolkit ("L0H13", "MLP0", "logits"; "input" for the embeddings)."""
    nodes, edges, scored = [], [], ["score", "in_graph"]
    try:
        found = json.loads(Path(path).read_text(encoding="utf-8"))
        for name, each in found["nodes"].items():
            nodes.append((_label(name), float(each.get("score", np.nan)), bool(each["in_graph"])))
        for name, each in found["edges"].items():
            ends, _, part = name.removesuffix(">").partition("<")
            sender, receiver = map(_label, ends.split("->"))
            edges.append((sender, receiver, part, float(each["score"]), bool(each["in_graph"])))
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        why = f"it lacks {error}" if isinstance(error, KeyError) else str(error)
        raise ValueError(f"{Path(path).name} is no importances.json of MIB's circuit track: {why}") from error
    columns = ["sender", "receiver", "part", *scored]
    return pd.DataFrame(nodes, columns=["label", *scored]), pd.DataFrame(edges, columns=columns)


def _name(node: Node) -> str:
    if isinstance(node, Head):
        return f"a{node.layer}.h{node.head}"
    return f"m{node.layer}" if isinstance(node, Mlp) else node


def _label(name: str) -> str:
    if (found := re.fullmatch(r"a(\d+)\.h(\d+)|m(\d+)|input|logits", name)) is None:
        raise ValueError(f"{name!r} is no node")
    layer, head, mlp = found.groups()
    return f"L{layer}H{head}" if layer else f"MLP{mlp}" if mlp else name


@checked
def direct_effects(
    model: Model,
    pairs: Iterable[PromptPair] | Prepared,
    heads: cells.Asked | None = None,
    *,
    contrast: str = "content",
    direction: str = "denoising",
    outcome: str | Outcome = "answer_logprob",
    control: Iterable[PromptPair] | None = None,
    checkpoint: str | Path | None = None,
    progress: bool = True,
) -> "DirectEffects":
    r"""Split each head's effect into what it writes straight to the answer and what goes through later parts, exactly.

    The head's output is the donor run's, $\Delta z$ more at every token that can change (`patch_heads`, "question"). Added to
    the *last* residual stream $x_L$ only, where nothing but the final norm and the unembedding reads it, this is its direct
    effect:

    $$ Y_\text{direct} = Y\big(x_L + \Delta z\, W_O\big) - Y(x_L), \qquad
       Y_\text{indirect} = Y_\text{patched} - Y_\text{receiving} - Y_\text{direct} $$

    both parts of the insertion's effect. The indirect part holds all that later heads and MLPs make of it, of the last layer's
    heads that layer's MLP, unless the two are parallel.

    Parameters
    ----------
    heads : zero-based heads, or what `locate_heads` gave (its named heads). Default all.
    contrast, direction, outcome, checkpoint : as in `patch_heads`.
    control : the same problems with another insertion of as many tokens at the same place, from `make_pairs`. Clean is then the
        run with the control, and the span's own rows change too: what heads write there for later ones to read is seen.

    Raises `ModelError` before anything runs for models whose weights or layers cannot be read (quantised, run elsewhere).

    Source: methods §8.1; path patching of head to logits in Wang et al. (2211.00593).
    """
    chosen = cells.heads_of(model, heads, "split", contrast=contrast, outcome=outcome)
    cells.need_weights(model, [head.layer for head in chosen], "direct_effects")
    problems = cells.compared(model, pairs, contrast, direction, outcome, control)
    options = RunOptions(checkpoint, progress)
    ways = [Way(head, way) for head in chosen for way in WAYS]

    def changes(flow: cells.Flow) -> Iterator[tuple[int, int, Tensor]]:
        """Put the whole effect of each head in the place of its indirect one."""
        for head in sorted(chosen):
            yield 2 * chosen.index(head) + 1, _written(flow.layers, head), flow.head_writes(head)
        for head in sorted(chosen):
            yield 2 * chosen.index(head), _written(flow.layers, LOGITS), flow.head_writes(head)

    how: Arguments = {"label": "direct effects", "heads": heads}
    found = cells.measure_cells(DirectEffects, ways, changes, problems, options, **how)
    values = found.values.copy()
    values[:, 1::2] -= values[:, ::2]
    return replace(found, values=values)


@dataclass(frozen=True, eq=False, repr=False)
class DirectEffects(cells.CellEffects[Way]):
    """How much of each head's effect goes straight to the logits: `values` `[problem, cell]`, two cells (`Way`) per head;
    `effect` `[problem, head]` is `direct` and `indirect` together."""

    picture = "direct_bars"
    columns = columns_of("""
        part | part | | the head and the way of its effect
        way | way | | direct: straight to the logits; indirect: through later parts of the model
    """)
    what = ("part", "parts")

    heads = cells.of_cells("of")

    @property
    def direct(self) -> np.ndarray:
        return self.values[:, ::2]

    @property
    def indirect(self) -> np.ndarray:
        return self.values[:, 1::2]

    @property
    def effect(self) -> np.ndarray:
        return self.direct + self.indirect
