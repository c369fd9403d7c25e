"""Where it happens: what enters a layer, what its attention and MLP add, token by token; through which tokens heads act."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ..core.arguments import check_count, checked, count_of
from ..core.heads import Head
from ..models.base import Model
from ..models.replay import stage
from ..patching.effect import SMALLEST_EFFECT
from ..patching.interventions import Knockout, LayerState
from ..patching.outcomes import Outcome
from ..patching.prepared import Prepared
from ..patching.sweep import Sweep
from ..prompts.conditions import several_of
from ..prompts.pairs import PromptPair
from ..runtime.columns import columns_of
from ..runtime.results import Result
from .cells import (
    POSITION,
    CellEffects,
    Flow,
    How,
    Made,
    Place,
    Site,
    compared,
    has_mlps,
    heads_of,
    measured,
    need_weights,
    of_cells,
)
from .located import LocatedHeads

PARTS = {"resid_pre": "input", "attn_out": "attention", "mlp_out": "mlp", "resid_post": "output"}
"""What `patch_sites` patches, by TransformerLens' names, and which part of a layer that is."""
ALL = "all"
"""The name of all rows at once: every token that can change, those of the answer too; of a span, all of it."""
SPAN = "span "
"""What labels of the span's own tokens begin with."""
N_ROWS = N_BLOCKS = 8
"""Tokens from each end of the question, blocks of the span, unless told otherwise."""


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
    max_rows: int | None = None,
    smallest_effect: float = SMALLEST_EFFECT,
    progress: bool = True,
    seed: int = 0,
) -> "SitePatches":
    """Patch one site at one token, every layer and token, exactly: the picture of activation patching.

    The donor's activation replaces the receiving run's at that layer and token. Tokens of the question are counted from both
    ends: 0, 1, ... from the first token after the insertion (its first block), ..., -2, -1 up to the one that predicts the
    first token of the answer; one of a short question is counted once, from its nearer end. "all" is every token that can
    change, with those of the answer. Where the span's own rows change (contrast "computed"), its tokens are counted likewise:
    "span 0", ..., "span -1", "span all". Where nothing is inserted (contrast "replaced"), tokens are named by their absolute
    position in the prompt: "position 0", ...; where prompts differ in length from their ends too, "position -1", ....

    Two exact identities: resid_pre of layer 0 carries nothing where both runs hold the same tokens at the same positions, and
    resid_post of the last layer, all rows, carries everything, unless the answer is read at an inserted token of one run alone.

    Parameters
    ----------
    sites : of "resid_pre", "attn_out", "mlp_out" (left out where a model has no MLPs), "resid_post".
    n_rows : how many tokens from each end; NaN, and not counted in n, where a question has no such token.
    contrast, direction, outcome, checkpoint, max_rows, smallest_effect : as in `patch_heads`.
    control : as in `direct_effects`.

    Returns `SitePatches` with values `[problem, site, layer, position]`. Raises `ModelError` before anything runs for models
    whose layers are not known one by one, or that run elsewhere; quantised ones are taken.

    Source: Meng et al. (2202.05262), Heimersheim & Nanda (2404.15255), methods §8.1.
    """
    how = How(checkpoint, max_rows, smallest_effect, progress, seed)
    check_count(n_rows, name="n_rows")
    model.need_layers("patch_sites")
    chosen = several_of(tuple(sites), PARTS, "site")
    chosen = chosen if has_mlps(model) else tuple(site for site in chosen if site != "mlp_out")
    if not chosen:
        raise ValueError("this model has no MLPs, so mlp_out holds nothing to patch: choose other sites")
    sweep, prepared = compared(model, pairs, contrast, direction, "z", outcome, control)
    positions, n_layers = _labels_of(prepared, sweep, n_rows), model.info.n_layers
    cells = [Site(*each) for each in product(chosen, range(n_layers), positions)]
    starts = range(0, len(cells), len(positions))  # of each site and layer

    def changes(flow: Flow) -> Iterator[tuple[int, int, Tensor]]:
        rows = [_rows(flow, label) for label in positions]
        joins = {first: stage(flow.layers, cells[first].of_layer, PARTS[cells[first].site]) for first in starts}
        for first in sorted(starts, key=joins.__getitem__):
            change = flow.part_writes(cells[first].of_layer, PARTS[cells[first].site])
            for at, row in enumerate(rows):
                if row is not None:
                    yield first + at, joins[first], _only(change, row)

    found = measured(SitePatches, prepared, sweep, cells, changes, how=how, label="patching sites")
    return _counted(found, "position", n_rows)


@checked
def map_positions(
    model: Model,
    pairs: Iterable[PromptPair] | Prepared,
    heads: LocatedHeads | Iterable[Head | str],
    *,
    n_rows: int = N_ROWS,
    n_blocks: int = N_BLOCKS,
    contrast: str = "content",
    outcome: str | Outcome = "answer_logprob",
    control: Iterable[PromptPair] | None = None,
    checkpoint: str | Path | None = None,
    max_rows: int | None = None,
    smallest_effect: float = SMALLEST_EFFECT,
    progress: bool = True,
    seed: int = 0,
) -> "PositionMap":
    r"""Through which tokens of the question each head acts, and which part of the span it reads, exactly (denoising).

    Rows: the head's output is patched at one token of the question alone, named as in `patch_sites`. Span: the head cannot see
    one part of the span, at all tokens: its first token, each of `n_blocks` blocks of equal size, all of it; the rest is
    renormalised, so that blocks need not add up to the whole:

    $$ A'_j = \frac{A_j\,[j \notin B]}{\sum_i A_i\,[i \notin B]} $$

    Parameters
    ----------
    heads : zero-based heads, or what `locate_heads` gave (its named heads).
    n_rows, n_blocks : tokens from each end of the question; blocks of the span.
    contrast, outcome, checkpoint, max_rows, smallest_effect : as in `patch_heads`. Where nothing can be cut off or the span's
        own rows change, places are rows alone, the span's among them ("row span 0", ..., "row span all").
    control : as in `trace_paths`; places are then rows alone, too.

    Returns `PositionMap` with values `[problem, head, place]`. Raises `ModelError` as `direct_effects` does.

    Source: methods §8.1.
    """
    how = How(checkpoint, max_rows, smallest_effect, progress, seed)
    check_count(n_rows, name="n_rows")
    check_count(n_blocks, name="n_blocks")
    chosen = heads_of(model, heads, "map")
    need_weights(model, [head.layer for head in chosen], "map_positions")
    model.need_rotated("knockouts of a part of the span")
    sweep, prepared = compared(model, pairs, contrast, "denoising", "z", outcome, control)
    labels = _labels_of(prepared, sweep, n_rows)
    cuts = sweep.contrast.cuts and sweep.contrast.changes_from == "after"
    blocks = ("first token", *(f"block {at}" for at in range(n_blocks)), ALL) if cuts else ()
    rows_of = (label if label.startswith(POSITION) else f"row {label}" for label in labels)
    places = (*rows_of, *(f"span {label}" for label in blocks))
    cells = [Place(*each) for each in product(chosen, places)]

    def changes(flow: Flow) -> Iterator[tuple[int, int, Tensor]]:
        rows = [_rows(flow, label) for label in labels]
        span = flow.runs.cut(sweep.contrast).keys
        masks = [_block(span, at, n_blocks) for at in range(-1, n_blocks + 1)] if blocks else []
        for head in sorted(chosen):
            whole, joins = flow.head_writes(head), stage(flow.layers, head.layer, "attention")
            first = chosen.index(head) * len(places)
            for at, part in enumerate((*rows, *masks)):
                if part is not None:
                    yield first + at, joins, _only(whole, part) if at < len(rows) else _blinded(flow, head, part)

    found = measured(PositionMap, prepared, sweep, cells, changes, how=how, label="mapping positions", heads=heads)
    return _counted(found, "place", n_rows)


def _counted(found: Made, name: str, n_rows: int) -> Made:
    """The result without rows (of cells, by this name) that stand for a token of no problem; parts of the span stay."""
    some = ~np.isnan(found.values).all(0)
    known = {getattr(cell, name) for cell, here in zip(found.cells, some, strict=True) if here}
    known |= {cell.place for cell in found.cells if name == "place" and cell.place.startswith(SPAN)}
    kept = [at for at, cell in enumerate(found.cells) if getattr(cell, name) in known]
    settings = {**found.settings, "n_rows": n_rows}
    return replace(found, cells=tuple(found.cells[at] for at in kept), values=found.values[:, kept], settings=settings)


def _labels_of(prepared: Prepared, sweep: Sweep, n_rows: int) -> tuple[str, ...]:
    """The names of tokens: of the question, and of the span where its rows change; positions where some have no span."""
    if not all(pair.spans for pair in prepared.bare):
        return _positions(n_rows, {len(pair.inserted) for pair in prepared.bare})
    labels = (*map(str, range(n_rows)), *map(str, range(-n_rows, 0)), ALL)
    return labels if sweep.contrast.changes_from == "after" else (*labels, *(SPAN + label for label in labels))


def _positions(n_rows: int, lengths: set[int]) -> tuple[str, ...]:
    """Positions from both ends, each by one name where all prompts have one length, and all.

    >>> _positions(2, {3}), _positions(1, {3, 4})
    (('position 0', 'position 1', 'position 2', 'all'), ('position 0', 'position -1', 'all'))
    """
    n = min(n_rows, max(lengths))
    ends = [*range(n), *range(-n, 0)]
    ends = sorted({at % max(lengths) for at in ends}) if len(lengths) == 1 else ends
    return (*(f"{POSITION}{at}" for at in ends), ALL)


def _rows(flow: Flow, label: str) -> Tensor | None:
    """The changed rows that a label means, boolean `[changed]`; None where there are too few tokens for it.

    A token of a short question has one label, from its nearer end (the middle one from the last); of positions it may have two.
    """
    pair, start = flow.runs.first, flow.receiving.start
    if label == ALL:
        return torch.ones(flow.n_changed, dtype=torch.bool)
    at = torch.arange(flow.n_changed)
    if label.startswith(POSITION):
        place, n = int(label.removeprefix(POSITION)), len(pair.inserted) - pair.n_answer
        return at == place % n - start if -n <= place < n else None
    if label.startswith(SPAN):
        places = pair.span_mask.nonzero()[:, 0]
    else:
        places = pair.shared if flow.receiving.n_tokens == len(pair.inserted) else torch.arange(len(pair.base))
        places = places[: len(places) - pair.n_answer]
    places, label = (places - start)[places >= start], label.removeprefix(SPAN)
    if label == ALL:
        return torch.isin(at, places)
    first, n = int(label), len(places)
    return at == places[first] if -((n + 1) // 2) <= first < n // 2 else None


def _block(span: Tensor, block: int, n_blocks: int) -> Tensor | None:
    """A part of the span, boolean `[problem, token]`: its first token (-1), a block, all of it (`n_blocks`)."""
    place, n = span.long().cumsum(-1) - 1, int(span[0].sum())
    if block == n_blocks:
        return span
    if block == -1:
        return span & (place == 0)
    first, end = block * n // n_blocks, (block + 1) * n // n_blocks
    return span & (place >= first) & (place < end) if end > first else None


def _blinded(flow: Flow, head: Head, part: Tensor) -> Tensor:
    """What the head writes more where it cannot see a part of the span."""
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
    """A layer's state of one head alone."""
    group = head // (n_heads // state.k.shape[2])
    own, shared = slice(head, head + 1), slice(group, group + 1)
    seen = {name: getattr(state, name) for name in ("visible", "unmasked")}
    seen = {name: each if each.shape[1] == 1 else each[:, own] for name, each in seen.items()}
    q, z, k, v = state.q[:, :, own], state.z[:, :, own], state.k[:, :, shared], state.v[:, :, shared]
    return replace(state, q=q, z=z, k=k, v=v, rule=state.rule.of(head), **seen)


def _only(change: Tensor, rows: Tensor) -> Tensor:
    return torch.where(rows.to(change.device)[:, None], change, 0)


@dataclass(frozen=True, eq=False, repr=False)
class SitePatches(CellEffects, Result):
    """What each site carries: `values` `[problem, cell]`, of which the cells are `Site`s (`CellEffects`).

    By site, layer and position, in this order; NaN where a problem's question has no such token.
    """

    picture = "site_map"
    columns = columns_of("""
        site | site | | of the layer, by TransformerLens' name
        of_layer | layer | | zero-based
        position | token | | counted from both ends of the question; all: every token that can change
    """)
    what = ("cell", "cells")

    sites, layers, positions = of_cells("site"), of_cells("of_layer"), of_cells("position")
    """The kinds of sites, the layers (zero-based), the tokens' labels."""

    @property
    def by_site(self) -> np.ndarray:
        """`values` as `[problem, site, layer, position]`."""
        return self.values.reshape(len(self.values), len(self.sites), len(self.layers), len(self.positions))

    def _what_words(self) -> str:
        n, span = self.positions.index(ALL), ", and likewise in the span's own rows" * (SPAN + ALL in self.positions)
        absolute = self.positions[0].startswith(POSITION)
        where = f"{count_of(n, 'position')} of the prompt" if absolute else f"{count_of(n, 'token')} of the question"
        layers = count_of(len(self.layers), "layer")
        return f"Patched {', '.join(self.sites)} in {layers} at {where} and at all{span}"


@dataclass(frozen=True, eq=False, repr=False)
class PositionMap(CellEffects, Result):
    """Through which tokens heads act: `values` `[problem, cell]`, of which the cells are `Place`s (`CellEffects`).

    A place is a token of the question at which alone the head's output is patched ("row 0", "row -1", "row all"; "position 0"
    where nothing is inserted), or a part of the span that the head cannot see ("span first token", "span block 0", "span all").
    NaN where a problem has no such token.
    """

    picture = "site_map"
    what = ("place", "places")

    heads, places = of_cells("of"), of_cells("place")
    """The heads, in the order in which they were asked for; the places of a head."""

    @property
    def by_head(self) -> np.ndarray:
        """`values` as `[problem, head, place]`."""
        return self.values.reshape(len(self.values), -1, len(self.places))

    def _what_words(self) -> str:
        who = f"{len(self.heads)} heads act" if len(self.heads) > 1 else f"{self.heads[0]} acts"
        where = "prompt" if self.places[0].startswith(POSITION) else "question"
        blind = ", and blind to parts of the span" * (f"span {ALL}" in self.places)
        return f"Where {who}: patched at single tokens of the {where}{blind}"
