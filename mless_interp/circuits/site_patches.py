"""Where it happens: what enters a layer, what its attention and MLP add, token by token; through which tokens heads act."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..core.arguments import check_count, checked, count_of
from ..core.heads import Head
from ..models.base import Model
from ..patching.effect import SMALLEST_EFFECT
from ..patching.interventions import Knockout, LayerState
from ..patching.outcomes import Outcome
from ..patching.prepared import Prepared
from ..patching.sweep import Sweep
from ..prompts.conditions import several_of
from ..prompts.pairs import PromptPair
from ..runtime.results import Result
from .cells import POSITION, CellEffects, Made, Place, Site, measured
from .controls import prepared_with, sweep_of
from .located import LocatedHeads
from .stream_changes import Flow, check_options, has_mlps, heads_of, need_weights, writes

SITES_OF_A_LAYER = {
    "resid_pre": "the residual stream before the layer",
    "attn_out": "what its attention adds",
    "mlp_out": "what its MLP adds",
    "resid_post": "the residual stream after the layer",
}
"""What `patch_sites` patches, by TransformerLens' names."""
PART = {"resid_pre": "input", "attn_out": "attention", "mlp_out": "mlp", "resid_post": "output"}
ALL = "all"
"""The name of all rows at once: every token that can change, those of the answer too; of a span, all of it."""
SPAN = "span "
"""What labels of the span's own tokens begin with."""
N_ROWS = 8
"""Tokens from each end of the question, unless told otherwise."""
N_BLOCKS = 8
"""Blocks of the span, unless told otherwise."""


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

    The donor's activation replaces the receiving run's at that layer and token. Questions differ in length, so their tokens
    are counted from both ends: 0, 1, ... from the first token after the insertion (its first block), ..., -2, -1 up to the one
    that predicts the first token of the answer; inserted tokens do not count, and a token of a question that is too short for
    all these names has one, counted from its nearer end. "all" is every token that can change at once,
    with those of the answer. Where the span's own rows change (contrast "computed"), its tokens are counted likewise: "span 0",
    ..., "span -1", "span all". After an insertion that stands behind the question come only the tokens that lead to the answer.
    Where nothing is inserted (pairs without a span, contrast "replaced"), tokens are named by their absolute position in the
    prompt: "position 0", ...; where prompts differ in length from their ends too, "position -1", .... Before a problem's
    first replaced token the effect is 0.

    Two exact identities: resid_pre of layer 0 carries nothing where both runs hold the same tokens at the same positions (no
    head has read yet), and resid_post of the last layer, all rows, carries everything, unless the answer is read at an inserted
    token of one of the runs alone. resid_pre of the last layer carries everything only where no head of that layer reads
    the span.

    Parameters
    ----------
    sites : of "resid_pre", "attn_out", "mlp_out" (left out where a model has no MLPs), "resid_post".
    n_rows : how many tokens from each end; names that a shorter question has no token for are NaN there and leave those cells'
        n, and those that none has are left out.
    contrast, direction, outcome, checkpoint, max_rows, smallest_effect : as in `patch_heads`.
    control : as in `direct_effects`.

    Returns `SitePatches` with values `[problem, site, layer, position]`. Raises `ModelError` before anything runs for models
    whose layers are not known one by one, or that run elsewhere; quantised ones are taken.

    Source: Meng et al. (2202.05262), Heimersheim & Nanda (2404.15255), methods §8.1.
    """
    check_options(smallest_effect, max_rows)
    check_count(n_rows, name="n_rows")
    model.need_layers("patch_sites")
    chosen = several_of(tuple(sites), SITES_OF_A_LAYER, "site")
    chosen = chosen if has_mlps(model) else tuple(site for site in chosen if site != "mlp_out")
    if not chosen:
        raise ValueError("this model has no MLPs, so mlp_out holds nothing to patch: choose other sites")
    sweep, prepared = sweep_of(contrast, direction, "z", control), prepared_with(model, pairs, outcome, control)
    positions, n_layers = _labels_of(prepared, sweep, n_rows), model.info.n_layers
    cells = [Site(*each) for each in product(chosen, range(n_layers), positions)]
    starts = range(0, len(cells), len(positions))  # of each site and layer

    def changes(flow: Flow) -> Iterator[tuple[int, int, Tensor]]:
        rows = [_rows(flow, label) for label in positions]
        joins = {first: writes(flow.layers, cells[first].of_layer, PART[cells[first].site]) for first in starts}
        for first in sorted(starts, key=joins.__getitem__):
            change = flow.part_writes(cells[first].of_layer, PART[cells[first].site])
            yield from (
                (first + at, joins[first], _only(change, row)) for at, row in enumerate(rows) if row is not None
            )

    found = measured(
        SitePatches,
        prepared,
        sweep,
        cells,
        changes,
        label="patching sites",
        checkpoint=checkpoint,
        max_rows=max_rows,
        smallest_effect=smallest_effect,
        progress=progress,
        seed=seed,
    )
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

    Rows: the head's output is patched at one token of the question alone, named as in `patch_sites`. Span:
    the head cannot see one part of the span, at all tokens: its first token, each of `n_blocks` blocks of equal size, all of
    it; the rest is renormalised,

    $$ A'_j = \frac{A_j\,[j \notin B]}{\sum_i A_i\,[i \notin B]} $$

    so that blocks do not add up to the whole: where each is dispensable, none removes anything.

    Parameters
    ----------
    heads : zero-based heads, or what `locate_heads` gave (its named heads).
    n_rows, n_blocks : tokens from each end of the question; blocks of the span (as many as it has tokens, at most).
    contrast, outcome, checkpoint, max_rows, smallest_effect : as in `patch_heads`. Where nothing can be cut off ("replaced") or
        the span's own rows change, places are rows alone, the span's among them ("row span 0", ..., "row span all").
    control : as in `trace_paths`; places are then rows alone, too.

    Returns `PositionMap` with values `[problem, head, place]`. Raises `ModelError` as `direct_effects` does.

    Source: methods §8.1.
    """
    check_options(smallest_effect, max_rows)
    check_count(n_rows, name="n_rows")
    check_count(n_blocks, name="n_blocks")
    chosen = heads_of(model, heads, "map")
    need_weights(model, [head.layer for head in chosen], "map_positions")
    model.need_rotated("knockouts of a part of the span")
    sweep, prepared = sweep_of(contrast, "denoising", "z", control), prepared_with(model, pairs, outcome, control)
    labels = _labels_of(prepared, sweep, n_rows)
    blocks = _blocks(n_blocks) if sweep.contrast.cuts and sweep.contrast.changes_from == "after" else ()
    rows_of = (label if label.startswith(POSITION) else f"row {label}" for label in labels)
    places = (*rows_of, *(f"span {label}" for label in blocks))
    cells = [Place(*each) for each in product(chosen, places)]

    def changes(flow: Flow) -> Iterator[tuple[int, int, Tensor]]:
        rows = [_rows(flow, label) for label in labels]
        span = flow.runs.cut(sweep.contrast).keys
        masks = [_block(span, at, n_blocks) for at in range(-1, n_blocks + 1)] if blocks else []
        for head in sorted(chosen):
            whole, joins = flow.head_writes(head), writes(flow.layers, head.layer, "attention")
            first = chosen.index(head) * len(places)
            for at, part in enumerate((*rows, *masks)):
                if part is not None:
                    yield first + at, joins, _only(whole, part) if at < len(rows) else _blinded(flow, head, part)

    found = measured(
        PositionMap,
        prepared,
        sweep,
        cells,
        changes,
        label="mapping positions",
        heads=heads,
        checkpoint=checkpoint,
        max_rows=max_rows,
        smallest_effect=smallest_effect,
        progress=progress,
        seed=seed,
    )
    return _counted(found, "place", n_rows)


def _counted(found: Made, name: str, n_rows: int) -> Made:
    """The result without the rows (of cells, by this name) that stand for a token of no problem; parts of the span stay."""
    some = ~np.isnan(found.values).all(0)
    known = {getattr(cell, name) for cell, here in zip(found.cells, some, strict=True) if here}
    kept = [
        at
        for at, cell in enumerate(found.cells)
        if getattr(cell, name) in known or (name == "place" and cell.place.startswith(SPAN))
    ]
    cells, settings = tuple(found.cells[at] for at in kept), {**found.settings, "n_rows": n_rows}
    return replace(found, cells=cells, values=found.values[:, kept], settings=settings)


def _row_words(labels: Sequence[str], values: np.ndarray, settings: Any) -> list[str]:
    """Return what to say where questions are too short for the tokens asked for; values `[problem, ..., label]`."""
    if any(label.startswith(POSITION) for label in labels):
        ends = any(label.startswith(f"{POSITION}-") for label in labels)
        return [f"Position 0 is the prompt's first token{', -1 the last before the answer' * ends}."]
    asked, at = settings.get("n_rows"), [place for place, label in enumerate(labels) if label.lstrip("-").isdecimal()]
    undefined = np.isnan(values[..., at]).any(tuple(range(1, values.ndim)))
    short = len(values) if asked is not None and len(at) < 2 * asked else int(undefined.sum())
    if asked is None or not short:
        return []
    where = "no question has" if short == len(values) else f"{short} of {len(values)} questions do not have"
    return [
        f"{asked} from each end were asked for, and {where} {2 * asked} tokens after the insertion: "
        f"each is counted once, from its nearer end, "
        f"{count_of(len(at), 'place')} in all."
    ]


def _labels_of(prepared: Prepared, sweep: Sweep, n_rows: int) -> tuple[str, ...]:
    """The names of tokens: of the question, and of the span where its rows change; positions where some have no span."""
    if all(pair.spans for pair in prepared.bare):
        return _labels(n_rows, span=sweep.contrast.changes_from != "after")
    return _positions(n_rows, {len(pair.inserted) for pair in prepared.bare})


def _positions(n_rows: int, lengths: set[int]) -> tuple[str, ...]:
    """Positions from both ends, each by one name where all prompts have one length, and all.

    >>> _positions(2, {3}), _positions(1, {3, 4})
    (('position 0', 'position 1', 'position 2', 'all'), ('position 0', 'position -1', 'all'))
    """
    n = min(n_rows, max(lengths))
    ends = [*range(n), *range(-n, 0)]
    if len(lengths) == 1:
        ends = sorted({at % max(lengths) for at in ends})
    return (*(f"{POSITION}{at}" for at in ends), ALL)


def _labels(n_rows: int, *, span: bool = False) -> tuple[str, ...]:
    """Tokens of the question from both ends, and all; of the span likewise.

    >>> _labels(2), _labels(1, span=True)
    (('0', '1', '-2', '-1', 'all'), ('0', '-1', 'all', 'span 0', 'span -1', 'span all'))
    """
    found = (*map(str, range(n_rows)), *map(str, range(-n_rows, 0)), ALL)
    return (*found, *(SPAN + label for label in found)) if span else found


def _rows(flow: Flow, label: str) -> Tensor | None:
    """The changed rows that a label means, boolean `[changed]`; None where there are too few tokens for it.

    Every token has one label: where there are too few for all, each is counted from its nearer end (the middle one from the
    last). A position is the same place in every prompt, so a token of a short one may have two.
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


def _blocks(n_blocks: int) -> tuple[str, ...]:
    """The parts of the span.

    >>> _blocks(2)
    ('first token', 'block 0', 'block 1', 'all')
    """
    return ("first token", *(f"block {at}" for at in range(n_blocks)), ALL)


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
    return replace(
        state,
        q=state.q[:, :, own],
        z=state.z[:, :, own],
        k=state.k[:, :, shared],
        v=state.v[:, :, shared],
        visible=state.visible if state.visible.shape[1] == 1 else state.visible[:, own],
        unmasked=state.unmasked if state.unmasked.shape[1] == 1 else state.unmasked[:, own],
        rule=state.rule.of(head),
    )


def _only(change: Tensor, rows: Tensor) -> Tensor:
    """A change at some rows alone."""
    return torch.where(rows.to(change.device)[:, None], change, 0)


@dataclass(frozen=True, eq=False, repr=False)
class SitePatches(CellEffects, Result):
    """What each site carries: `values` `[problem, cell]`, of which the cells are `Site`s (`CellEffects`).

    By site, layer and position, in this order; NaN where a problem's question has no such token.
    """

    picture = "site_map"
    what = ("cell", "cells")

    @property
    def sites(self) -> tuple[str, ...]:
        """The kinds of sites."""
        return self.every("site")

    @property
    def layers(self) -> tuple[int, ...]:
        """The layers, zero-based."""
        return self.every("of_layer")

    @property
    def positions(self) -> tuple[str, ...]:
        """The tokens' labels."""
        return self.every("position")

    @property
    def by_site(self) -> np.ndarray:
        """`values` as `[problem, site, layer, position]`."""
        return self.values.reshape(len(self.values), len(self.sites), len(self.layers), len(self.positions))

    def _what_words(self) -> str:
        n, absolute = self.positions.index(ALL), self.positions[0].startswith(POSITION)
        where = f"{count_of(n, 'position')} of the prompt"
        where = where if absolute else f"{count_of(n, 'token')} of the question (from both ends)"
        layers = count_of(len(self.layers), "layer")
        return f"Patched {', '.join(self.sites)} in {layers} at {where} and at all{self._span_words()}"

    def _row_words(self) -> list[str]:
        return _row_words(self.positions, self.by_site, self.settings)

    def _span_words(self) -> str:
        return ", and likewise in the span's own rows" if SPAN + ALL in self.positions else ""


@dataclass(frozen=True, eq=False, repr=False)
class PositionMap(CellEffects, Result):
    """Through which tokens heads act: `values` `[problem, cell]`, of which the cells are `Place`s (`CellEffects`).

    By head and place, in this order. A place is a token of the question at which alone the head's output is patched ("row 0",
    "row -1", "row all"; "position 0" where nothing is inserted), or a part of the span that the head cannot see ("span first
    token", "span block 0", "span all"). NaN where a problem has no such token.
    """

    picture = "site_map"
    what = ("place", "places")

    @property
    def heads(self) -> tuple[Head, ...]:
        """The heads, in the order in which they were asked for."""
        return self.every("of")

    @property
    def places(self) -> tuple[str, ...]:
        """The places of a head."""
        return self.every("place")

    @property
    def by_head(self) -> np.ndarray:
        """`values` as `[problem, head, place]`."""
        return self.values.reshape(len(self.values), -1, len(self.places))

    def _what_words(self) -> str:
        who = f"{len(self.heads)} heads act" if len(self.heads) > 1 else f"{self.heads[0]} acts"
        return f"Where {who}: patched at single tokens{self._place_words()}"

    def _row_words(self) -> list[str]:
        return _row_words([place.removeprefix("row ") for place in self.places], self.by_head, self.settings)

    def _place_words(self) -> str:
        if self.places[0].startswith(POSITION):
            return " of the prompt"
        blind = f"span {ALL}" in self.places
        return " of the question, and blind to parts of the span" if blind else " of the question and of the span"

    def _sum_words(self) -> list[str]:
        """How far the blocks of the span are from adding up to the whole, head by head."""
        if f"span {ALL}" not in self.places:
            return []
        blocks = [at for at, place in enumerate(self.places) if place.startswith("span block")]
        values, total = self.whole.turned(self.by_head), float(self.whole.turned(self.total).mean())
        whole = values[:, :, self.places.index(f"span {ALL}")].mean(0)
        summed = np.nansum(values[:, :, blocks], 2).mean(0)
        return [
            f"Hiding the whole span from {head} removes {every:z.2f} of the {total:z.2f} {self.unit} on average; hiding its "
            f"blocks one at a time removes {each:z.2f} in sum."
            for head, every, each in zip(self.heads, whole, summed, strict=True)
        ]
