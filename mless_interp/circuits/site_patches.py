"""Where it happens: what enters a layer, what its attention and MLP add, token by token; through which tokens heads act."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from ..given import check_count, checked, count_of
from ..heads import Head
from ..locating.located import LocatedHeads
from ..models.base import Model
from ..patching.interventions import Knockout, LayerState
from ..patching.outcomes import Outcome
from ..patching.parts import SMALLEST_EFFECT
from ..patching.prepared import Prepared
from ..prompts.conditions import several_of
from ..prompts.pairs import PromptPair
from ..running.results import Result, Shown, ShownTable, largest_first, tidy
from ..running.work import Tick, Unit
from ..statistics import CONFIDENCE
from .cells import PRINTED, Cells, effects_of, made_with
from .controls import prepared_with, sweep_of
from .stream_changes import Flow, check_options, heads_of, named_words, need_layers, need_weights, writes

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

    Two exact identities: resid_pre of layer 0 carries nothing where both runs hold the same tokens at the same positions (no
    head has read yet), and resid_post of the last layer, all rows, carries everything, unless the answer is read at an inserted
    token of one of the runs alone. resid_pre of the last layer carries everything only where no head of that layer reads
    the span.

    Parameters
    ----------
    sites : of "resid_pre", "attn_out", "mlp_out", "resid_post".
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
    need_layers(model, "patch_sites")
    chosen = several_of(tuple(sites), SITES_OF_A_LAYER, "site")
    sweep, prepared = sweep_of(contrast, direction, "z", control), prepared_with(model, pairs, outcome, control)
    positions, n_layers = _labels(n_rows, span=sweep.contrast.changes_from == "span"), model.info.n_layers

    def of_unit(unit: Unit, tick: Tick) -> list[Any]:
        flow = Flow(prepared.runs(unit), sweep, max_rows)
        rows = [_rows(flow, label) for label in positions]
        known = [at for at, row in enumerate(rows) if row is not None]
        order = sorted(
            ((site, layer) for site in range(len(chosen)) for layer in range(n_layers)),
            key=lambda cell: _joins(flow, chosen[cell[0]], cell[1]),
        )

        def cells() -> Iterator[tuple[int, Tensor]]:
            for site, layer in order:
                name = chosen[site]
                change = flow.part_writes(layer, PART[name])
                yield from ((_joins(flow, name, layer), _only(change, rows[at])) for at in known)

        values = np.full((len(unit), len(chosen), n_layers, len(positions)), np.nan)
        found = flow.outcomes(cells(), tick).reshape(len(unit), len(order), len(known))
        for place, (site, layer) in enumerate(order):
            values[:, site, layer, known] = found[:, place]
        return [{"patched": values[at], "ends": flow.ends[at]} for at in range(len(unit))]

    found = prepared.each(
        of_unit,
        label="patching sites",
        settings={**sweep.settings, "sites": list(chosen), "n_rows": n_rows},
        checkpoint=checkpoint,
        progress=progress,
        steps=len(chosen) * n_layers * len(positions),
    )
    values, total = effects_of(found, direction)
    positions, values = _counted(positions, values)
    return SitePatches(
        problem_ids=prepared.ids,
        sites=chosen,
        positions=positions,
        values=values,
        total=total,
        unit=prepared.outcome.unit,
        settings={**made_with(prepared, sweep), "n_rows": n_rows},
        seed=seed,
        smallest_effect=smallest_effect,
    )


@checked
def map_positions(
    model: Model,
    pairs: Iterable[PromptPair] | Prepared,
    heads: LocatedHeads | Iterable[Head | str],
    *,
    n_rows: int = N_ROWS,
    n_blocks: int = N_BLOCKS,
    outcome: str | Outcome = "answer_logprob",
    control: Iterable[PromptPair] | None = None,
    checkpoint: str | Path | None = None,
    max_rows: int | None = None,
    smallest_effect: float = SMALLEST_EFFECT,
    progress: bool = True,
    seed: int = 0,
) -> "PositionMap":
    r"""Through which tokens of the question each head acts, and which part of the span it reads, exactly (denoising).

    Rows: the head's output is patched at one token of the question alone, counted from both ends as in `patch_sites`. Span:
    the head cannot see one part of the span, at all tokens: its first token, each of `n_blocks` blocks of equal size, all of
    it; the rest is renormalised,

    $$ A'_j = \frac{A_j\,[j \notin B]}{\sum_i A_i\,[i \notin B]} $$

    so that blocks do not add up to the whole: where each is dispensable, none removes anything.

    Parameters
    ----------
    heads : zero-based heads, or what `locate_heads` gave (its named heads).
    n_rows, n_blocks : tokens from each end of the question; blocks of the span (as many as it has tokens, at most).
    outcome, checkpoint, max_rows, smallest_effect : as in `patch_heads`.
    control : as in `trace_paths`; places are then rows alone, the span's own among them ("row span 0", ..., "row span all").

    Returns `PositionMap` with values `[problem, head, place]`. Raises `ModelError` as `direct_effects` does.

    Source: methods §8.1.
    """
    check_options(smallest_effect, max_rows)
    check_count(n_rows, name="n_rows")
    check_count(n_blocks, name="n_blocks")
    chosen = heads_of(model, heads, "map")
    need_weights(model, [head.layer for head in chosen], "map_positions")
    model.need_rotated("knockouts of a part of the span")
    sweep, prepared = sweep_of("content", "denoising", "z", control), prepared_with(model, pairs, outcome, control)
    labels, ordered = _labels(n_rows, span=control is not None), sorted(chosen)
    blocks = tuple(f"span {label}" for label in _blocks(n_blocks)) if control is None else ()
    places = tuple(f"row {label}" for label in labels) + blocks

    def of_unit(unit: Unit, tick: Tick) -> list[Any]:
        flow = Flow(prepared.runs(unit), sweep, max_rows)
        rows = [_rows(flow, label) for label in labels]
        span = flow.runs.cut(sweep.contrast).keys
        masks = [_block(span, at, n_blocks) for at in range(-1, n_blocks + 1)] if blocks else []
        parts = [*rows, *masks]
        known = [at for at, part in enumerate(parts) if part is not None]

        def cells() -> Iterator[tuple[int, Tensor]]:
            for head in ordered:
                whole = flow.head_writes(head)
                for at in known:
                    change = _only(whole, rows[at]) if at < len(rows) else _blinded(flow, head, masks[at - len(rows)])
                    yield writes(flow.layers, head.layer, "attention"), change

        values = np.full((len(unit), len(chosen), len(places)), np.nan)
        found = flow.outcomes(cells(), tick).reshape(len(unit), len(ordered), len(known))
        for place, head in enumerate(ordered):
            values[:, chosen.index(head), known] = found[:, place]
        return [{"patched": values[at], "ends": flow.ends[at]} for at in range(len(unit))]

    found = prepared.each(
        of_unit,
        label="mapping positions",
        settings={**sweep.settings, "positions of": list(map(str, chosen)), "n_rows": n_rows, "n_blocks": n_blocks},
        checkpoint=checkpoint,
        progress=progress,
        steps=len(chosen) * len(places),
    )
    values, total = effects_of(found, "denoising")
    labels, values = _counted(labels, values)
    places = tuple(f"row {label}" for label in labels) + blocks
    return PositionMap(
        problem_ids=prepared.ids,
        heads=chosen,
        places=places,
        values=values,
        total=total,
        unit=prepared.outcome.unit,
        settings={**made_with(prepared, sweep, heads), "n_rows": n_rows},
        seed=seed,
        smallest_effect=smallest_effect,
    )


def _counted(labels: tuple[str, ...], values: np.ndarray) -> tuple[tuple[str, ...], np.ndarray]:
    """The labels that stand for a token of some problem, and values `[problem, ..., label (or place)]` of these alone."""
    some = ~np.isnan(values).all(tuple(range(values.ndim - 1)))
    some[len(labels) :] = True
    return tuple(label for label, here in zip(labels, some, strict=False) if here), values[..., some]


def _row_words(labels: Sequence[str], values: np.ndarray, asked: int | None) -> list[str]:
    """What is said of `asked` tokens from each end where questions are too short for them; values `[problem, ..., label]`."""
    at = [place for place, label in enumerate(labels) if label.lstrip("-").isdecimal()]
    undefined = np.isnan(values[..., at]).reshape(len(values), -1, len(at)).any((1, 2))
    short = len(values) if asked is not None and len(at) < 2 * asked else int(undefined.sum())
    if asked is None or not short:
        return []
    where = "no question has" if short == len(values) else f"{short} of {len(values)} questions do not have"
    return [
        f"{asked} from each end were asked for, and {where} {2 * asked} tokens: each is counted once, from its nearer end, "
        f"{count_of(len(at), 'place')} in all."
    ]


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
    last).
    """
    pair, start = flow.runs.first, flow.receiving.start
    if label == ALL:
        return torch.ones(flow.n_changed, dtype=torch.bool)
    if label.startswith(SPAN):
        places = pair.span_mask.nonzero()[:, 0]
    else:
        places = pair.shared if flow.receiving.n_tokens == len(pair.inserted) else torch.arange(len(pair.base))
        places = places[: len(places) - pair.n_answer]
    places, label = (places - start)[places >= start], label.removeprefix(SPAN)
    at = torch.arange(flow.n_changed)
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


def _blinded(flow: Flow, head: Head, part: Tensor | None) -> Tensor:
    """What the head writes more where it cannot see a part of the span."""
    assert part is not None
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


def _joins(flow: Flow, site: str, layer: int) -> int:
    """The stage at which a site's change enters the stream."""
    return writes(flow.layers, layer, PART[site])


def _only(change: Tensor, rows: Tensor | None) -> Tensor:
    """A change at some rows alone."""
    assert rows is not None
    return torch.where(rows.to(change.device)[:, None], change, 0)


@dataclass(frozen=True, eq=False, repr=False)
class SitePatches(Cells, Result):
    """What each site carries: `values` `[problem, site, layer, position]`, parts of the insertion's effect `total`.

    NaN where a problem's question has no such token. What is claimed of a cell is in how many problems it carries more than
    the smallest effect of interest (prevalence test, Holm over all cells and both senses); means describe.
    """

    problem_ids: tuple[str, ...]
    sites: tuple[str, ...]
    positions: tuple[str, ...]
    values: np.ndarray
    total: np.ndarray
    unit: str
    settings: dict[str, Any] = field(default_factory=dict)
    seed: int = 0
    confidence: float = CONFIDENCE
    smallest_effect: float = SMALLEST_EFFECT

    what = ("cell", "cells")
    axes = (("values", "problem site layer_of_model position"), ("total", "problem"))

    def _cells(self) -> dict[str, Any]:
        return {"site": self.sites, "layer": range(self.values.shape[2]), "position": self.positions}

    def summary(self) -> pd.DataFrame:
        """One row per site, layer and position: `k` of `n` problems that have that token, all else as in `PathEffects`."""
        cells = pd.DataFrame(product(*self._cells().values()), columns=["site", "of_layer", "position"])
        labels = [f"Layer {row.of_layer} {row.site}, {_token(row.position)}" for row in cells.itertuples()]
        return pd.DataFrame({"label": labels, **cells, **self.claim_columns(), **self.share_columns()})

    def to_frame(self) -> pd.DataFrame:
        """One tidy row per problem, site, layer and position."""
        return tidy({"problem": self.problem_ids, **self._cells()}, effect=self.values)

    def sentences(self) -> list[str]:
        """What was patched, and which cells are shown in most problems."""
        s = self.settings
        return [
            f"Patched {', '.join(self.sites)} in {count_of(self.values.shape[2], 'layer')} at "
            f"{count_of(self.positions.index(ALL), 'token')} of the question (from both ends) and at all{self._span_words()}, "
            f"contrast {s.get('contrast')}, {s.get('direction')}, outcome {s.get('outcome')}, "
            f"{count_of(len(self.problem_ids), 'problem')}.",
            *_row_words(self.positions, self.values, s.get("n_rows")),
            *self._total_words(),
            *self._claim_words(),
            *named_words(s),
        ]

    def _span_words(self) -> str:
        return ", and likewise in the span's own rows" if SPAN + ALL in self.positions else ""

    def shown(self) -> Shown:
        """The hundred cells of the largest median."""
        caption = (
            f"Sites, the largest first, a hundred at most. Effects are the parts of the insertion's, in {self.unit}."
        )
        return Shown((ShownTable(largest_first(self.summary(), "median")[list(PRINTED)].head(100), caption),))


def _token(position: str) -> str:
    where, label = (" of the span", position.removeprefix(SPAN)) if position.startswith(SPAN) else ("", position)
    return f"all tokens{where}" if label == ALL else f"token {label}{where}"


@dataclass(frozen=True, eq=False, repr=False)
class PositionMap(Cells, Result):
    """Through which tokens heads act: `values` `[problem, head, place]`, parts of the insertion's effect `total`.

    A place is a token of the question at which alone the head's output is patched ("row 0", "row -1", "row all"), or a part of
    the span that the head cannot see ("span first token", "span block 0", "span all"). NaN where a problem has no such
    token. Tested as in `PathEffects`, Holm over heads, places and both senses.
    """

    problem_ids: tuple[str, ...]
    heads: tuple[Head, ...]
    places: tuple[str, ...]
    values: np.ndarray
    total: np.ndarray
    unit: str
    settings: dict[str, Any] = field(default_factory=dict)
    seed: int = 0
    confidence: float = CONFIDENCE
    smallest_effect: float = SMALLEST_EFFECT

    what = ("place", "places")
    axes = (("values", "problem head place"), ("total", "problem"))

    def summary(self) -> pd.DataFrame:
        """One row per head and place; `k` of `n` problems that have it, and the rest as in `PathEffects`."""
        of = [(str(head), place) for head in self.heads for place in self.places]
        return pd.DataFrame(
            {
                "label": [f"{head} {place}" for head, place in of],
                "of": [head for head, _ in of],
                "place": [place for _, place in of],
                **self.claim_columns(),
                **self.share_columns(),
            }
        )

    def to_frame(self) -> pd.DataFrame:
        """One tidy row per problem, head and place."""
        axes = {"problem": self.problem_ids, "label": list(map(str, self.heads)), "place": self.places}
        return tidy(axes, effect=self.values)

    def sentences(self) -> list[str]:
        """Of which heads, which places are shown in most problems, and that they do not add up."""
        who = f"{len(self.heads)} heads act" if len(self.heads) > 1 else f"{self.heads[0]} acts"
        return [
            f"Where {who}: patched at single tokens{self._place_words()}; "
            f"outcome {self.settings.get('outcome')}, {count_of(len(self.problem_ids), 'problem')}.",
            *_row_words(
                [place.removeprefix("row ") for place in self.places], self.values, self.settings.get("n_rows")
            ),
            *self._total_words(),
            *self._claim_words(),
            *self._sum_words(),
            *named_words(self.settings),
        ]

    def _place_words(self) -> str:
        blind = f"span {ALL}" in self.places
        return " of the question, and blind to parts of the span" if blind else " of the question and of the span"

    def _sum_words(self) -> list[str]:
        """How far the blocks of the span are from adding up to the whole, head by head."""
        if f"span {ALL}" not in self.places:
            return []
        blocks = [at for at, place in enumerate(self.places) if place.startswith("span block")]
        whole = self.values[:, :, self.places.index(f"span {ALL}")].mean(0)
        summed = np.nansum(self.values[:, :, blocks], 2).mean(0)
        return [
            f"Of the effect, {head} blind to the whole span takes {every:+.4f} {self.unit} away on average; blind to its "
            f"blocks one by one, {each:+.4f} in sum."
            for head, every, each in zip(self.heads, whole, summed, strict=True)
        ]

    def shown(self) -> Shown:
        """Every place, the largest median first."""
        caption = f"Places, the largest first. Effects are the parts of the insertion's, in {self.unit}."
        return Shown((ShownTable(largest_first(self.summary(), "median")[list(PRINTED)], caption),))
