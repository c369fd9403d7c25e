"""`trace_circuit`: named heads taken apart: directly or through others, edge by edge, where, what they write, in sets."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ..core.arguments import Arguments, checked, listed, one_of, several_of
from ..core.heads import Head
from ..models.base import Model
from ..models.info import ModelError
from ..patching.effect import Parts
from ..patching.prepared import Settings
from ..prompts.conditions import OF_CIRCUITS
from ..prompts.pairs import REPLACED, PromptPair
from ..runtime.base_result import Result, largest_first
from ..runtime.columns import columns_of
from ..statistics import CONFIDENCE
from .cells import Asked, CellEffects, check_question, has_mlps, heads_of
from .head_sets import MinimalSets, minimal_sets
from .head_writes import HeadWrites, what_it_writes
from .located import LocatedHeads
from .paths import PAIRS_OF_INPUTS, PARTS_OF_A_HEAD, DirectEffects, Edge, PathEffects, direct_effects, trace_paths
from .site_patches import N_ROWS, PositionMap, SitePatches, map_positions, patch_sites
from .transfer import Transfer, transfer

HEADINGS = {  # of its results, in the order of the story
    "direct": "Direct and indirect effects",
    "edges": "Who reads whom",
    "sufficient": "Which edges suffice",
    "sites": "Where in the network",
    "positions": "Through which tokens heads act",
    "writes": "What they write, and where they look",
    "sets": "Which heads suffice, and which are needed",
    "transfer": "The effect without the tokens",
}
PARTS = tuple(name for name in HEADINGS if name != "sufficient")  # measured with the edges that are needed
OF_EDGES = 1 - (1 - CONFIDENCE) / 2
"""Confidence of the edges of each direction: both directions are one family of tests."""
PRINTED = ("edges", "sets", "direct", "transfer", "positions", "sufficient", "sites")  # in this order
CELLS = ["label", "k", "n", "share", "share_ci_low", "share_ci_high", "median", "p_corrected"]


@dataclass(frozen=True, eq=False, repr=False)
class Circuit(Result):
    """What `trace_circuit` found of `heads`, part by part; None for a part that is in `left_out` with the reason.

    `edges` are needed (denoising), `sufficient` ones bring their part back alone (noising). `together`: of needed edges whose
    inputs act only together, all inputs one by one and two by two. `located`: what named the heads, if they were not given.
    """

    heads: tuple[Head, ...]
    problem_ids: tuple[str, ...]
    located: LocatedHeads | None = None
    direct: DirectEffects | None = None
    edges: PathEffects | None = None
    sufficient: PathEffects | None = None
    together: PathEffects | None = None
    sites: SitePatches | None = None
    positions: PositionMap | None = None
    writes: HeadWrites | None = None
    sets: MinimalSets | None = None
    transfer: Transfer | None = None
    left_out: dict[str, str] = field(default_factory=dict)

    columns = (
        columns_of("""
        part | part | | which of its results
    """)
        + Parts.columns
    )

    def parts(self) -> dict[str, Any]:
        """Return the results of the parts that were measured, by name."""
        return {name: part for name in HEADINGS if (part := getattr(self, name)) is not None}

    def _of_cells(self) -> dict[str, CellEffects[Any]]:
        return {name: part for name, part in self.parts().items() if isinstance(part, CellEffects)}

    def table(self) -> pd.DataFrame:
        """Return one row per cell (of heads' ways, edges, sites, positions) that most problems show."""
        parts = self._of_cells().items()
        found = [part.table().query("p_corrected < @part.level")[CELLS].assign(part=name) for name, part in parts]
        return pd.concat(found or [pd.DataFrame(columns=["part", *CELLS])], ignore_index=True)[["part", *CELLS]]

    def to_frame(self) -> pd.DataFrame:
        """Return one tidy row per part, problem and cell."""
        tables = [part.to_frame().assign(part=name) for name, part in self._of_cells().items()]
        return pd.concat(tables or [pd.DataFrame(columns=["part", "problem"])], ignore_index=True)

    def headline(self) -> str:
        if not self.heads:
            why = "" if self.located is None else f"{self.located.headline()[:-1]}; "
            return f"{why}no head, no circuit: nothing was measured."
        part, alone = self.edges or self.direct, self.sufficient
        both_ways = bool(self.edges and alone and alone.established and not alone.n_needed)
        removed = "removed, " * both_ways
        told = f": {removed}{part.claim().replace(' of it', ' of the effect')}" if part is not None else ""
        ends = {end for edge in (self.edges.found if self.edges else ()) for end in (edge.sender, edge.receiver)}
        told += ", none of them at these heads" * bool(ends and not ends & set(self.heads))
        if both_ways and alone:
            n = int((alone.sense[alone.p_corrected < alone.level] > 0).sum())
            told += f"; added, {n or 'none'} {'carries' if n < 2 else 'carry'} it"
        given = " (given, not located)" * (self.located is None)
        # of needed edges whose inputs act only together, or in each other's place
        inputs = [] if self.edges is None else (self.together or self.edges).together_words()
        return " ".join([f"The circuit of {listed(self.heads)}{given}, measured on {self.counted}{told}.", *inputs])

    def details(self) -> list[str]:
        return [
            *(f"{HEADINGS[name]}: {part.headline()}" for name, part in self.parts().items()),
            *(f"Left out, {name}: {why}." for name, why in self.left_out.items() if why != "not asked for"),
        ]

    def caveats(self) -> list[str]:
        found: list[str] = []
        if (where := self.located) is not None:
            if lost := [head for head in self.heads if head not in where.sure]:
                found.append(f"Not confirmed on fresh problems: {listed(lost)}.")
            if more := [head for head in where.sure if head not in self.heads]:
                found.append(f"Beyond most_heads, and left out: {listed(more)}.")
            if special := [head for head in self.heads if head in where.specialists]:
                by = where.settings.get("by")
                acts = "acts" if len(special) == 1 else "act"
                found.append(f"{listed(special)} {acts} in some strata of {by} only: pass the pairs of one stratum.")
        return [*found, *super().caveats()]

    @property
    def interval_words(self) -> str:
        whole, edges = super().interval_words, self.edges
        return whole if edges is None or edges.interval_words == whole else f"{whole}, edges {edges.interval_words}"

    def printed(self) -> pd.DataFrame:
        found = [self.table()]
        if self.sets is not None:
            sets = self.sets.table().query("n > 0")
            fresh = {f"fresh_share{end}": f"share{end}" for end in ("", "_ci_low", "_ci_high")}
            sets = sets.drop(columns=list(fresh.values())).rename(columns=fresh)
            found.append(sets.assign(part="sets", label=sets["side"] + ": " + sets["heads"]))
        if self.transfer is not None:
            found.append(self.transfer.table().head(1).assign(part="transfer"))
        table = largest_first(pd.concat(found), "share")
        part, rank = table["part"], table.groupby("part").cumcount()  # of each part the largest first, sites last
        order = np.lexsort((part.map(list(PRINTED).index), rank, part.eq("sites")))
        return table.iloc[order][["part", *CELLS]].drop(columns="median").rename(columns={"label": "which"})


@checked
def trace_circuit(
    model: Model,
    pairs: Iterable[PromptPair],
    heads: Asked,
    *,
    fresh: Iterable[PromptPair] | None = None,
    parts: Iterable[str] = PARTS,
    contrast: str = "content",
    outcome: str = "answer_logprob",
    mlps: str = "all",
    n_rows: int = N_ROWS,
    most_heads: int = 8,
    checkpoint: str | Path | None = None,
    progress: bool = True,
    seed: int = 0,
) -> Circuit:
    """Measure how some heads act: directly or through which others, at which tokens, and which sets of them suffice.

    Parameters
    ----------
    pairs, fresh : the problems that named the heads, and others on which everything is measured (default: the same ones).
    heads : heads, or what `locate_heads` gave: its named heads (with `confirm`, where any is confirmed), the `most_heads` of
        the largest effects. Without any the circuit is empty.
    parts : of `PARTS`. Those that the weights, the contrast or too few problems do not allow are left out, with the reason.
    contrast : "content"; or "computed", "inside", "replaced" (then without writes and transfer).
    mlps : MLPs as nodes of the edges: "all", or "none": fewer edges are corrected for, and fewer problems show them.
    n_rows : tokens from each end of the question at which sites and heads are patched.
    checkpoint : a folder, as in `patch_heads`.

    Raises `ValueError` where no part can be measured.
    """
    several_of(tuple(parts), PARTS, "part of a circuit")
    one_of(contrast, OF_CIRCUITS, "contrast of a circuit")
    one_of(mlps, ("all", "none"), "mlps")
    named_on, others = tuple(pairs), None if fresh is None else tuple(fresh)
    measured = others or named_on
    located = heads if isinstance(heads, LocatedHeads) else None
    if located is not None and located.found:
        check_question(located, contrast=contrast, outcome=outcome)
    what = REPLACED if contrast == "replaced" and measured[0].given else measured[0].insertion
    chosen = heads_of(model, heads, "trace") if located is None else largest_heads(located, most_heads)
    ids = tuple(pair.id for pair in measured)
    settings: Settings = {"contrast": contrast, "outcome": outcome, "insertion": what.label}
    if not chosen:
        return Circuit(chosen, ids, located, settings=settings)
    nodes = () if mlps == "none" or not has_mlps(model) else tuple(range(model.info.n_layers))
    why_not = _why_not(named_on, others, contrast)
    if len(chosen) == 1 and not nodes:
        more = ' (mlps="all" adds the MLPs)' * has_mlps(model)
        why_not["edges"] = f"an edge needs two nodes, and {chosen[0]} is the only one{more}"

    def run(file: str) -> Arguments:
        return {"checkpoint": None if checkpoint is None else Path(checkpoint) / file, "progress": progress}

    def common(file: str) -> Arguments:
        return {**run(file), "outcome": outcome}

    def edges(file: str, **more: Any) -> PathEffects:
        options = common(f"edges-{file}.jsonl") | more
        return replace(trace_paths(model, measured, contrast=contrast, **options), confidence=OF_EDGES)

    def needed_and_sufficient() -> dict[str, PathEffects]:
        ways = {"edges": "denoising", "sufficient": "noising"}
        found = {name: edges(way, direction=way, heads=chosen, mlps=nodes) for name, way in ways.items()}
        table = found["edges"].together().query("how == 'together'")
        both = zip(table["sender"], table["receiver"], strict=True)
        joint = [Edge(*ends, part) for ends in both for part in (*PARTS_OF_A_HEAD, *PAIRS_OF_INPUTS)]
        return found | ({"together": edges("together", edges=joint)} if joint else {})

    of: Arguments = {"contrast": contrast}
    rows = of | {"n_rows": n_rows}
    calls: dict[str, Callable[[], Result | dict[str, PathEffects]]] = {
        "direct": lambda: direct_effects(model, measured, chosen, **of, **common("direct.jsonl")),
        "edges": needed_and_sufficient,
        "sites": lambda: patch_sites(model, measured, **rows, **common("sites.jsonl")),
        "positions": lambda: map_positions(model, measured, chosen, **rows, **common("positions.jsonl")),
        "writes": lambda: what_it_writes(model, measured, chosen, **run("writes.jsonl")),
        "sets": lambda: minimal_sets(model, named_on, fresh=others, **of, **common("sets"), seed=seed),
        "transfer": lambda: transfer(model, named_on, chosen, fresh=others, **common("transfer"), seed=seed),
    }
    results: dict[str, Any] = {}
    left_out: dict[str, str] = {}
    for name in PARTS:
        if why := why_not.get(name, "") if name in parts else "not asked for":
            left_out[name] = why
            continue
        try:
            found = calls[name]()
            results |= found if isinstance(found, dict) else {name: found}
        except ModelError as error:
            left_out[name] = str(error)
    if not results:
        whole = "; ".join(f"{name}: {why}" for name, why in left_out.items() if why != "not asked for")
        raise ValueError(f"no part of the circuit of {', '.join(map(str, chosen))} can be measured: {whole}")
    return Circuit(chosen, ids, located, **results, left_out=left_out, settings=settings)


def largest_heads(found: LocatedHeads, at_most: int) -> tuple[Head, ...]:
    """Return the named heads, the largest effects first; none where fresh problems confirm none of them."""
    by_size = map(Head.parse, found.table()["label"][: len(found.found)])  # the named ones stand first
    return tuple(by_size)[:at_most] if found.sure else ()  # the fresh problems test them, and choose none


def _why_not(named_on: Sequence[PromptPair], fresh: Sequence[PromptPair] | None, contrast: str) -> dict[str, str]:
    """Return what speaks against measuring parts; "" where nothing does."""
    n, test = (len({pair.problem.group or pair.id for pair in pairs}) for pairs in (named_on, fresh or ()))
    search, test = ((n + 1) // 2, n // 2) if fresh is None else (n, test)

    def too_few(to_test: int) -> str:
        few = f"what is found on some problems is tested on others: at least 6 and {to_test} are needed, there"
        return "" if search >= 6 and test >= to_test else f"{few} {'is' if search == 1 else 'are'} {search} and {test}"

    blocks = max(len(pair.spans) for pair in (*named_on, *(fresh or ())))
    several = "" if blocks == 1 else f"defined for an insertion in one place only, and this one has {blocks} blocks"
    content = "" if contrast == "content" else "defined for the content contrast only"
    return {"writes": content, "sets": too_few(7), "transfer": content or several or too_few(8)}
