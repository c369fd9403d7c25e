"""Scores of heads and edges in the format of MIB's circuit track (`importances.json`): written, and read to be drawn."""

import json
import re
import warnings
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from ..core.arguments import checked, listed
from ..core.heads import Head
from ..models.base import Model
from ..patching.sweep import PatchScores
from ..runtime.text_safety import visible
from .cells import INPUTS, LOGITS, Edge, Mlp, Node
from .located import LocatedHeads
from .paths import PathEffects

_NODE = re.compile(r"a(\d+)\.h(\d+)|m(\d+)|input|logits")
_EDGE = re.compile(r"([a-z0-9.]+)->([a-z0-9.]+?)(?:<([qkv])>)?")


@checked
def save_importances(
    path: str | Path, model: Model, *, heads: LocatedHeads | PatchScores | None = None, edges: PathEffects | None = None
) -> None:
    """Write scores of heads and edges as MIB's circuit track reads them: mean effects in the outcome's unit.

    In the circuit (`in_graph`) are heads that are named (and confirmed, where fresh problems were given), or of a sweep those
    that most problems show; and edges that most problems show, with the nodes at their ends. Edges into q, k or v are written,
    those into several inputs at once are not: warns of edges that most problems show in no other way.

    Source: MIB, Mueller et al. 2025 (2504.13151): "cfg", "nodes" and "edges" with `score` and `in_graph`, as EAP-IG's graphs
    (2403.17806) are saved.
    """
    if heads is None and edges is None:
        raise ValueError("there is nothing to save: give heads=, edges=, or both")
    parallel = bool(model.need_layers("save_importances").layers.parallel(0))
    info = model.info
    made = [*map(_name, info.heads), *(_name(Mlp(layer)) for layer in range(info.n_layers))]
    nodes: dict[str, dict[str, object]] = {name: {"in_graph": name == LOGITS} for name in ("input", *made, LOGITS)}
    if heads is not None:
        patches = heads.patches if isinstance(heads, LocatedHeads) else heads
        named = set(map(str, heads.sure)) if isinstance(heads, LocatedHeads) else None
        for row in patches.table().to_dict("records"):
            inside = row["p_corrected"] < patches.level if named is None else row["label"] in named
            nodes[_name(Head.parse(row["label"]))] = {"in_graph": bool(inside), "score": float(row["effect"])}
    links: dict[str, dict[str, object]] = {}
    if edges is not None:
        found = set(edges.found)
        written = {(edge.sender, edge.receiver) for edge in found if edge.part in ("", *INPUTS)}
        lost = [edge for edge in edges.found if (edge.sender, edge.receiver) not in written]
        if lost:
            why = "edges shown through several inputs at once alone, which it cannot say, are left out"
            warnings.warn(visible(f"{why}: {listed(lost)}"), stacklevel=3)
        for edge, effect in zip(edges.edges, edges.mean_effect, strict=True):
            if edge.part not in ("", *INPUTS):
                continue
            into = f"<{edge.part}>" if edge.part else ""
            name = f"{_name(edge.sender)}->{_name(edge.receiver)}{into}"
            links[name] = {"score": float(effect), "in_graph": edge in found}
            for node in (edge.sender, edge.receiver) if edge in found else ():
                nodes[_name(node)]["in_graph"] = True
    cfg = {"n_layers": info.n_layers, "n_heads": info.n_heads, "parallel_attn_mlp": parallel, "d_model": info.d_model}
    Path(path).write_text(json.dumps({"cfg": cfg, "nodes": nodes, "edges": links}), encoding="utf-8")


@dataclass(frozen=True, eq=False)
class Importances:
    """Somebody's circuit: `nodes` (label, score, in_graph) and `edges` (sender, receiver, part, score, in_graph), a row each,
    in the words of this toolkit ("L0H13", "MLP0", "logits"; "input" for the embeddings); `cfg` as the file has it."""

    nodes: pd.DataFrame
    edges: pd.DataFrame
    cfg: dict[str, object]

    def paths(self, *, in_graph: bool = True) -> PathEffects:
        """Return the edges (those of the circuit alone, or all) between heads, MLPs and logits, for
        `views.path_graph(..., only_found=False)`. One row of scores, so nothing is tested or claimed."""
        table = self.edges[self.edges["sender"] != "input"]
        table = table[table["in_graph"]] if in_graph else table
        if table.empty:
            raise ValueError("no edge of heads, MLPs and logits is in this circuit (in_graph=False takes all edges)")
        columns = (table[name] for name in ("sender", "receiver", "part"))
        cells = tuple(Edge(*each) for each in zip(*columns, strict=True))
        scores, settings = table["score"].to_numpy(dtype=float)[None], {"contrast": "", "model": "importances.json"}
        return PathEffects(("scores",), cells, scores, np.ones(1), "score", settings)


@checked
def load_importances(path: str | Path) -> Importances:
    """Read an `importances.json` of MIB's circuit track; `ValueError` for a file that is none."""
    try:
        found = json.loads(Path(path).read_text(encoding="utf-8"))
        nodes = [
            (_label(name), float(each.get("score", np.nan)), bool(each["in_graph"]))
            for name, each in found["nodes"].items()
        ]
        edges = []
        for name, each in found["edges"].items():
            if (parts := _EDGE.fullmatch(name)) is None:
                raise ValueError(f"{name!r} is no edge")
            ends = (_label(parts[1]), _label(parts[2]), parts[3] or "")
            edges.append((*ends, float(each["score"]), bool(each["in_graph"])))
        cfg = dict(found["cfg"])
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        why = f"it lacks {error}" if isinstance(error, KeyError) else str(error)
        raise ValueError(f"{Path(path).name} is no importances.json of MIB's circuit track: {why}") from error
    columns = ["sender", "receiver", "part", "score", "in_graph"]
    return Importances(
        pd.DataFrame(nodes, columns=["label", "score", "in_graph"]), pd.DataFrame(edges, columns=columns), cfg
    )


def _name(node: Node) -> str:
    if isinstance(node, Head):
        return f"a{node.layer}.h{node.head}"
    return f"m{node.layer}" if isinstance(node, Mlp) else str(node)


def _label(name: str) -> str:
    """A node's name here."""
    found = _NODE.fullmatch(name)
    if found is None:
        raise ValueError(f"{name!r} is no node")
    layer, head, mlp = found.groups()
    return f"L{layer}H{head}" if layer else f"MLP{mlp}" if mlp else name
