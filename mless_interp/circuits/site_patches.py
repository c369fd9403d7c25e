"""Where it happens: what enters a layer, what its attention and MLP add, token by token; through which tokens heads act."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import compress, product
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from ..core.arguments import Arguments, check_count, checked, several_of
from ..core.heads import Head
from ..models.base import Model
from ..models.replay import stage
from ..patching.interventions import Knockout, LayerState
from ..patching.outcomes import Outcome
from ..patching.prepared import Prepared
from ..patching.sweep import Sweep
from ..prompts.pairs import PromptPair
from ..runtime.columns import columns_of
from ..runtime.folders import savable
from ..runtime.loop import RunOptions
from .cells import Asked, CellEffects, Flow, Made, compared, has_mlps, heads_of, measure_cells, need_weights, of_cells

PARTS = {"resid_pre": "input", "attn_out": "attention", "mlp_out": "mlp", "resid_post": "output"}
"""What `patch_sites` patches, by TransformerLens' names, and which part of a layer that is."""
POSITION, SPAN = "position ", "span "
"""What labels begin with of positions, where nothing is inserted, and of the span's own tokens."""
ALL = "all"  # all rows at once: every token that can change, those of the answer too; of a span, all of it
N_ROWS = N_BLOCKS = 8  # tokens from each end of the question, blocks of the span, unless told otherwise
Token = tuple[str, int | None]
"""Among which tokens (`SPAN`, `POSITION`: of the prompt, "": of the question, `ALL`), and which of them; None: all."""


@savable
@dataclass(frozen=True)
class Site:
    """A site of a layer at one token, or at `position` "all"; "span ..." counts the span's own tokens, "position ..." all."""

    site: str
    of_layer: int
    position: str

    def __str__(self) -> str:
        label = self.position.removeprefix("span ")
        token = "all tokens" if label == "all" else label if label.startswith(POSITION) else f"token {label}"
        return f"Layer {self.of_layer} {self.site}, {token}{' of the span' * (label != self.position)}"


@savable
@dataclass(frozen=True)
class Place:
    """A token at which a head's output is patched ("row 0"), or a part of the span that it cannot see ("span block 0")."""

    of: Head
    place: str

    def __str__(self) -> str:
        return f"{self.of} {self.place}"


@checked
def patch_sites(
    model: Model,
    pairs: Iterable[PromptPair] | Prepared,
    *,
    sites: Sequence[str] = ("resid_pre", "attn_out", "mlp_out"),
    n_rows: int = N_ROWS,
    contrast: str = "content",
    direction: str = "denoising",
    outcome: str | Outcome = "answer_logprob",
    control: Iterable[PromptPair] | None = None,
    checkpoint: str | Path | None = None,
    progress: bool = True,
) -> "SitePatches":
    """Patch one site at one token, every layer and token, exactly: the picture of activation patching.

    The donor's activation replaces the receiving run's. Tokens of the question are counted from both ends: 0, 1, ... from the
    first token after the insertion (its first block), ..., -2, -1 up to the one that predicts the first token of the answer;
    one of a short question is counted once, from its nearer end. "all" is every token that can change, with the answer's. Where
    the span's own rows change ("computed"): "span 0", ..., "span -1", "span all". Where nothing is inserted ("replaced"), they
    are named by their position in the prompt: "position 0", ..., where prompts differ in length "position -1", ....

    Parameters
    ----------
    sites : of "resid_pre", "attn_out", "mlp_out" (left out where a model has no MLPs), "resid_post".
    n_rows : how many tokens from each end; NaN, and not counted in n, where a question has no such token.
    contrast, direction, outcome, checkpoint : as in `patch_heads`; control : as in `direct_effects`.

    Raises `ModelError` before anything runs for models whose layers are not known one by one, or that run elsewhere.

    Source: Meng et al. (2202.05262), Heimersheim & Nanda (2404.15255), methods §8.1.
    """
    options = RunOptions(checkpoint, progress)
    check_count(n_rows, name="n_rows")
    model.need_layers("patch_sites")
    chosen = several_of(tuple(sites), PARTS, "site")
    chosen = chosen if has_mlps(model) else tuple(site for site in chosen if site != "mlp_out")
    if not chosen:
        raise ValueError("this model has no MLPs, so mlp_out holds nothing to patch: choose other sites")
    problems = compared(model, pairs, contrast, direction, outcome, control)
    tokens, layers = _tokens(*problems, n_rows), range(model.info.n_layers)
    cells = [Site(*each) for each in product(chosen, layers, tokens)]

    def changes(flow: Flow) -> Iterator[tuple[int, int, Tensor]]:
        rows = [_rows(flow, *token) for token in tokens.values()]
        joins = [(stage(flow.layers, layer, PARTS[kind]), kind, layer) for kind, layer in product(chosen, layers)]
        for first in sorted(range(len(joins)), key=lambda at: joins[at][0]):
            at, kind, layer = joins[first]
            change = flow.part_writes(layer, PARTS[kind])
            for place, row in enumerate(rows, start=first * len(rows)):
                if row is not None:
                    yield place, at, _only(change, row)

    found = measure_cells(SitePatches, cells, changes, problems, options, label="patching sites")
    return _counted(found, "position", n_rows)


@checked
def map_positions(
    model: Model,
    pairs: Iterable[PromptPair] | Prepared,
    heads: Asked,
    *,
    n_rows: int = N_ROWS,
    n_blocks: int = N_BLOCKS,
    contrast: str = "content",
    outcome: str | Outcome = "answer_logprob",
    control: Iterable[PromptPair] | None = None,
    checkpoint: str | Path | None = None,
    progress: bool = True,
) -> "PositionMap":
    """Find the tokens of the question through which each head acts, and the part of the span that it reads (denoising).

    Rows: the head's output is patched at one token of the question alone, named as in `patch_sites`. Span: the head cannot see
    one part of the span, at all tokens: its first token, each of `n_blocks` blocks of equal size, all of it; the rest is
    renormalised, so that blocks need not add up to the whole.

    Parameters
    ----------
    n_rows, n_blocks : tokens from each end of the question; blocks of the span.
    contrast, outcome, checkpoint : as in `patch_heads`; control : as in `direct_effects`. Where nothing can be
        cut off or the span's own rows change, places are rows alone, the span's among them ("row span 0", ..., "row span all").

    Raises `ModelError` as `direct_effects` does.

    Source: methods §8.1.
    """
    options = RunOptions(checkpoint, progress)
    check_count(n_rows, name="n_rows")
    check_count(n_blocks, name="n_blocks")
    chosen = heads_of(model, heads, "map", contrast=contrast, outcome=outcome)
    need_weights(model, [head.layer for head in chosen], "map_positions")
    model.need_rotated("knockouts of a part of the span")
    prepared, sweep = problems = compared(model, pairs, contrast, "denoising", outcome, control)
    tokens = _tokens(prepared, sweep, n_rows)
    cuts = sweep.contrast.cuts and sweep.contrast.changes_from == "after"
    blocks = ("first token", *(f"block {at}" for at in range(n_blocks)), ALL) if cuts else ()
    rows_of = (label if label.startswith(POSITION) else f"row {label}" for label in tokens)
    places = (*rows_of, *(SPAN + label for label in blocks))
    cells = [Place(*each) for each in product(chosen, places)]

    def changes(flow: Flow) -> Iterator[tuple[int, int, Tensor]]:
        rows = [_rows(flow, *token) for token in tokens.values()]
        span = flow.runs.cut(sweep.contrast).keys
        masks = [_block(span, at, n_blocks) for at in range(-1, n_blocks + 1)] if blocks else []
        for head in sorted(chosen):
            whole, joins = flow.head_writes(head), stage(flow.layers, head.layer, "attention")
            first = chosen.index(head) * len(places)
            for at, part in enumerate((*rows, *masks)):
                if part is not None:
                    yield first + at, joins, _only(whole, part) if at < len(rows) else _blinded(flow, head, part)

    how: Arguments = {"label": "mapping positions", "heads": heads}
    return _counted(measure_cells(PositionMap, cells, changes, problems, options, **how), "place", n_rows)


def _counted(found: Made, name: str, n_rows: int) -> Made:
    """Leave out rows (of cells, by this name) that stand for a token of no problem; parts of the span stay."""
    labels = np.array([getattr(cell, name) for cell in found.cells])
    known = np.isin(labels, labels[~np.isnan(found.values).all(0)])
    known |= np.char.startswith(labels, SPAN) & (name == "place") | ~known.any()
    cells, settings = tuple(compress(found.cells, known)), {**found.settings, "n_rows": n_rows}
    return replace(found, cells=cells, values=found.values[:, known], settings=settings)


def _tokens(prepared: Prepared, sweep: Sweep, n_rows: int) -> dict[str, Token]:
    """Return tokens by name: of the question, and of the span where its rows change; positions where some have no span."""
    ends = [*range(n_rows), *range(-n_rows, 0)]
    if not all(pair.spans for pair in prepared.bare):
        lengths = {len(pair.inserted) for pair in prepared.bare}
        if len(lengths) == 1:  # each position has one name, from the beginning
            ends = sorted({at % max(lengths) for at in ends})
        return {**{f"{POSITION}{at}": (POSITION, at) for at in ends}, ALL: (ALL, None)}
    found: dict[str, Token] = {**{str(at): ("", at) for at in ends}, ALL: (ALL, None)}
    if sweep.contrast.changes_from == "after":
        return found
    return found | {f"{SPAN}{at}": (SPAN, at) for at in ends} | {SPAN + ALL: (SPAN, None)}


def _rows(flow: Flow, among: str, which: int | None) -> Tensor | None:
    """Return the changed rows of a token, boolean `[changed]`; None where there are too few tokens for it. A token of a short
    question has one name, from its nearer end (the middle one from the last); of positions it may have two."""
    pair, start, at = flow.runs.first, flow.receiving.start, torch.arange(flow.n_changed)
    if among == ALL:
        return torch.ones(flow.n_changed, dtype=torch.bool)
    if among == POSITION:
        n = len(pair.inserted) - pair.n_answer
        return at == which % n - start if which is not None and -n <= which < n else None
    if among == SPAN:
        places = pair.span_mask.nonzero()[:, 0]
    else:
        places = pair.shared if flow.receiving.n_tokens == len(pair.inserted) else torch.arange(len(pair.base))
        places = places[: len(places) - pair.n_answer]
    places = (places - start)[places >= start]
    if which is None:
        return torch.isin(at, places)
    n = len(places)
    return at == places[which] if -((n + 1) // 2) <= which < n // 2 else None


def _block(span: Tensor, block: int, n_blocks: int) -> Tensor | None:
    """Return a part of the span, boolean `[problem, token]`: its first token (-1), a block, all of it (`n_blocks`)."""
    place, n = span.long().cumsum(-1) - 1, int(span[0].sum())
    if block == n_blocks:
        return span
    first, end = (0, 1) if block == -1 else (block * n // n_blocks, (block + 1) * n // n_blocks)
    return span & (place >= first) & (place < end) if end > first else None


def _blinded(flow: Flow, head: Head, part: Tensor) -> Tensor:
    """Return what the head writes more where it cannot see a part of the span."""
    cut = flow.runs.cut(flow.sweep.contrast).rows
    state = LayerState.of(flow.model, flow.receiving, head.layer, span=part, rows=cut)
    one = _of_one(state, head.head, flow.model.info.n_heads)
    z = flow.receiving.z[head.layer]
    with torch.no_grad():
        change = (Knockout()(one) - one.mixed(one.pattern()))[..., 0, :]
        assert state.rows is not None
        change = torch.where(state.rows[..., None], change, 0)
    return flow.output(head.layer).change(z, head.head, change.to(z))


def _of_one(state: LayerState, head: int, n_heads: int) -> LayerState:
    group = head // (n_heads // state.k.shape[2])
    own, shared = slice(head, head + 1), slice(group, group + 1)
    visible, unmasked = (x if x.shape[1] == 1 else x[:, own] for x in (state.visible, state.unmasked))
    q, z, k, v = state.q[:, :, own], state.z[:, :, own], state.k[:, :, shared], state.v[:, :, shared]
    return replace(state, q=q, z=z, k=k, v=v, rule=state.rule.of(head), visible=visible, unmasked=unmasked)


def _only(change: Tensor, rows: Tensor) -> Tensor:
    return torch.where(rows.to(change.device)[:, None], change, 0)


@dataclass(frozen=True, eq=False, repr=False)
class SitePatches(CellEffects[Site]):
    """What each site carries: `values` `[problem, cell]`, by site, layer and position; NaN where a question lacks the token."""

    picture = "site_map"
    columns = columns_of("""
        site | site | | of the layer, by TransformerLens' name
        of_layer | layer | | zero-based
        position | token | | counted from both ends of the question; all: every token that can change
    """)
    what = ("cell", "cells")

    def _by_construction(self, table: pd.DataFrame) -> np.ndarray:
        return ((table["site"] == "resid_pre") & (table["position"] == ALL)).to_numpy()

    sites, layers, positions = of_cells("site"), of_cells("of_layer"), of_cells("position")
    """The kinds of sites, the layers, the tokens' labels; cells are in this order: `[problem, site, layer, position]`."""


@dataclass(frozen=True, eq=False, repr=False)
class PositionMap(CellEffects[Place]):
    """Through which tokens heads act: `values` `[problem, cell]`, by head and place ("row 0", "row all", "span block 0",
    "span all"; "position 0" where nothing is inserted); NaN where a problem has no such token."""

    picture = "site_map"
    columns = columns_of("""
        place | place | | where its output is patched, or what part of the span it cannot see
    """)
    what = ("place", "places")

    heads, places = of_cells("of"), of_cells("place")
    """The heads as asked for, the places of each; cells are in this order: `[problem, head, place]`."""
