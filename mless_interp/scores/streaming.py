"""Patterns reduced inside the layer that made them, a block of rows at a time; and where everything stands in a prompt.

A block comes from the layer's own pattern where the model makes one (eager attention), else from its rotated queries
and keys, so that no layer ever holds heads x tokens^2. Keys that no row of a block can see are left out: half the work.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, partial
from typing import Any, Literal

import torch
from torch import Tensor

from ..core.arguments import Arguments
from ..metrics.patterns import RowChoice, computed_once, uniform_pattern, widened, with_sink_key
from ..metrics.received import received_attention, received_sums
from ..models.attention_math import masked_scores, softmax, values_of_heads, with_extra, with_sinks
from ..models.base import Model
from ..models.info import AttentionRule, Inputs, Reducer
from ..models.sites import Held, site
from ..prompts.conditions import CONDITIONS
from ..prompts.pairs import PromptPair

Source = Literal["auto", "pattern", "recomputed"]
Need = Literal["span", "scores", "sink_levels", "values", "residual", "output_weights", "first_rows"]
"""What a metric can need: an inserted span; scores before the softmax; what each token gives itself and gets of all later
ones; value vectors; the residual stream before the layer; W_O; the first condition's rows."""
BLOCK_ELEMENTS = 2**20
"""Largest heads x rows x keys of a block: 4 MB in float32, times the few copies that a formula makes."""


@dataclass(frozen=True, eq=False)
class Layout:
    """Masks over the tokens of one prompt, all boolean `[token]`, and the positions of the shared tokens `[shared]`.

    `span` is empty in a prompt without insertion. `question` holds all tokens after the insertion point (its first block), less
    the span's, `before` those before it without the `sink`; `rows` are the rows that a mean over rows takes.
    """

    span: Tensor
    question: Tensor
    before: Tensor
    sink: Tensor
    rows: Tensor
    shared: Tensor
    one_block: bool = True

    @property
    def shared_question(self) -> Tensor:
        """Which of the shared tokens are the question's."""
        return self.question[self.shared]


def pair_layout(pair: PromptPair, condition: str, *, rows: RowChoice) -> Layout:
    """Return the layout of a pair's prompt in one condition; `ValueError` where nothing follows the insertion."""
    start, stop = pair.spans[0]
    prompt, shared = pair.inserted, pair.shared
    if not CONDITIONS[condition].has_span:
        kept = [token for token, position in enumerate(pair.alignment) if position >= 0]
        prompt, shared = pair.base, torch.tensor(kept)
        stop = next((token for token in kept if pair.alignment[token] >= stop), len(prompt))
    position, spans = torch.arange(len(prompt)), prompt.blocks("inserted")
    if stop >= len(prompt) or (spans and spans[-1][1] == len(prompt)):
        raise ValueError(
            f"problem {pair.id!r}: no tokens follow the insertion, so there is no question whose attention could be "
            'described: give the pair with its answer (`pair.answered()`), or insert before="question"'
        )
    span = prompt.mask("inserted")
    question = (position >= stop) & ~span
    sink = position == (stop if spans and start == 0 else 0)
    return Layout(
        span=span,
        question=question,
        before=(position < start) & ~sink,
        sink=sink,
        rows={"all": torch.ones_like(span), "shared": ~span, "question": question}[rows],
        shared=shared,
        one_block=len(pair.spans) < 2,
    )


@dataclass(frozen=True, eq=False)
class Block:
    """Some rows of a layer's pattern `[head, dest, src]`, `visible` `[1|head, dest, src]`, `positions` `[dest]`.

    `src` runs from the first token to the last one that any of these rows can see; `n_extra` keys follow that are no tokens:
    one where heads have learned sinks (`metrics.patterns.with_sink_key`). `scores` `[head, dest, src]` are those before the
    softmax, None where they are not known.
    """

    pattern: Tensor
    visible: Tensor
    positions: Tensor
    first: int
    n_extra: int = 0
    scores: Tensor | None = None

    @property
    def n_src(self) -> int:
        """How many tokens these rows see."""
        return self.pattern.shape[-1] - self.n_extra

    def mask(self, mask: Tensor, *, extra: bool = False) -> Tensor:
        """Return a mask over all tokens, cut to the block's keys; `extra` at those that are no tokens."""
        return torch.nn.functional.pad(mask[: self.n_src].to(self.pattern.device), (0, self.n_extra), value=extra)

    def only(self, wanted: Tensor) -> "Block":
        """Return the rows where `wanted` `[token]`, which lies in memory, is True."""
        (kept,) = wanted[self.first : self.first + len(self.positions)].nonzero(as_tuple=True)
        a, b = (int(kept[0]), int(kept[-1]) + 1) if len(kept) else (0, 0)
        if len(kept) == len(self.positions):
            return self
        at = slice(a, b) if b - a == len(kept) else kept.to(self.pattern.device)  # one piece needs no copy
        scores = None if self.scores is None else self.scores[:, at]
        return Block(self.pattern[:, at], self.visible[:, at], self.positions[at], self.first + a, self.n_extra, scores)


def row_ranges(n_tokens: int, n_heads: int, first: int = 0) -> Iterator[tuple[int, int]]:
    """Yield the first row and one past the last row of each block, from the row `first` on."""
    rows = max(1, BLOCK_ELEMENTS // (n_heads * n_tokens))
    return ((start, min(start + rows, n_tokens)) for start in range(first, n_tokens, rows))


def pattern_blocks(
    pattern: Tensor, visible: Tensor, *, n_extra: int = 0, scores: Tensor | None = None
) -> Iterator[Block]:
    """Yield blocks of a pattern `[head, token, token]` that exists as a whole; `visible` `[1|head, token, token]`.

    `n_extra` is 1 where its rows sum to less than 1, as learned sinks leave them. `scores` are those of the pattern's tokens.
    """
    n_heads, n_tokens = pattern.shape[:2]
    for a, b in row_ranges(n_tokens, n_heads):
        rows, seen, positions = pattern[:, a:b, :b], visible[:, a:b, :b], torch.arange(a, b, device=pattern.device)
        if n_extra:
            rows, seen = with_sink_key(rows, visible=seen)
        given = None if scores is None else torch.nn.functional.pad(scores[:, a:b, :b], (0, n_extra))
        yield Block(rows, seen, positions, a, n_extra, given)


def recomputed_blocks(q: Tensor, k: Tensor, visible: Tensor, rule: AttentionRule, first: int = 0) -> Iterator[Block]:
    """Yield the same blocks from rotated queries `[1, token, head, d]` and keys `[1, token, kv_head, d]`, never half, from the
    row `first` on."""
    q, k = map(widened, (q, k))
    for a, b in row_ranges(q.shape[1], q.shape[2], first):
        scores = with_sinks(masked_scores(q[:, a:b], k[:, :b], visible[None, :, a:b, :b], rule), rule.column)
        seen, positions = with_extra(visible[:, a:b, :b], rule, value=True), torch.arange(a, b, device=q.device)
        yield Block(softmax(scores)[0], seen, positions, a, rule.n_extra, scores[0])


def uniform_blocks(visible: Tensor, dtype: torch.dtype, *, n_extra: int = 0) -> Iterator[Block]:
    """Yield the blocks of attention that prefers nothing: the null of everything that a pattern's blocks are reduced to."""
    for a, b in row_ranges(visible.shape[1], visible.shape[0]):
        seen = torch.nn.functional.pad(visible[:, a:b, :b], (0, n_extra), value=True)
        yield Block(uniform_pattern(seen, dtype=dtype), seen, torch.arange(a, b, device=visible.device), a, n_extra)


@dataclass(frozen=True, eq=False)
class Other:
    """Queries, keys, visibility and layout of the same layer in the run that a condition is compared with."""

    q: Tensor
    k: Tensor
    visible: Tensor
    rule: AttentionRule
    layout: Layout

    def rows(self, own: Layout, positions: Tensor, n_src: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return (its pattern at the rows that match `positions`, its keys, the own keys that match them).

        Keys are those of the shared tokens before `n_src`, and behind them what learned sinks take; the pattern is
        `[head, dest, key]` of the other prompt.
        """
        place = torch.searchsorted(own.shared.to(positions.device), positions)
        there = self.layout.shared.to(positions.device)[place]
        seen = int((own.shared < n_src).sum())
        scores = masked_scores(self.q[:, there], self.k, self.visible[None, :, there], self.rule)
        extra = torch.arange(self.rule.n_extra)
        theirs = torch.cat([self.layout.shared[:seen], self.k.shape[1] + extra])
        return softmax(with_sinks(scores, self.rule.column))[0], theirs, torch.cat([own.shared[:seen], n_src + extra])


@dataclass(frozen=True, eq=False)
class Rows:
    """What a metric of question rows sees: a block of them, masks up to its last key, and by name what metrics need beside
    ("values", "output_weights", and the "other" run's queries and keys)."""

    block: Block
    layout: Layout
    beside: dict[str, Any]

    @cached_property
    def span(self) -> Tensor:
        return self.block.mask(self.layout.span)

    @cached_property
    def sink(self) -> Tensor:
        """The first token, and learned sinks."""
        return self.block.mask(self.layout.sink, extra=True)


RowFormula = Callable[[Rows], Tensor]
Vectors = dict[Need, Tensor]
"""Of a layer's tokens, where a metric needs them: the "residual" stream before it `[token, d_model]` and its "values" `[head,
token, d_head]`."""


@dataclass(frozen=True, eq=False)
class Plan:
    """What to reduce to: sums of received attention (with or without the sink's), numbers per question row and of the layer's
    `states`, and their `needs`."""

    received: bool = True
    exclude_sink: bool = True
    rows: dict[str, RowFormula] = field(default_factory=dict)
    null_rows: tuple[str, ...] = ()
    states: dict[str, Callable[[Vectors, Layout, int], Tensor]] = field(default_factory=dict)
    needs: frozenset[Need] = frozenset()

    def of_uniform(self) -> "Plan":
        """Return what uniform attention is reduced to: all that follows from a pattern alone (`null_rows`)."""
        return replace(self, rows={name: self.rows[name] for name in self.null_rows}, states={})


@dataclass(frozen=True, eq=False)
class Reduced:
    """What is left of a layer, by kind and name: "sum" and "count" `[head, token]` of "received" and "alpha"; "rows"
    `[head, question row]`; "states" `[head]`."""

    numbers: dict[tuple[str, str], Tensor]

    def of(self, kind: str) -> dict[str, Tensor]:
        return {name: tensor for (each, name), tensor in self.numbers.items() if each == kind}

    def mean(self, kind: str, min_rows: int) -> Tensor:
        """Return each token's mean attention `[head, token]`: from later tokens ("received"), or from itself too ("alpha")."""
        return received_attention(self.numbers[kind, "sum"], self.numbers[kind, "count"], min_rows=min_rows)


def reduce_blocks(blocks: Iterator[Block], layout: Layout, plan: Plan, **beside: Any) -> Reduced:
    """Return all blocks of one layer, in order; sums of blocks add, numbers per row stand side by side."""
    totals: dict[tuple[str, str], Tensor] = {}
    rows: dict[str, list[Tensor]] = {name: [] for name in plan.rows}

    def add(kind: str, n_src: int, part: tuple[Tensor, Tensor]) -> None:
        for what, new in zip(("sum", "count"), part, strict=True):
            if (kind, what) not in totals:
                totals[kind, what] = new.new_zeros((*new.shape[:-1], len(layout.span)))
            totals[kind, what][..., :n_src] += new[..., :n_src]

    for block in blocks:
        with computed_once():
            seen: Arguments = {"visible": block.visible, "first": block.first}
            if plan.received:
                sink = block.mask(layout.sink, extra=True) if plan.exclude_sink else None
                received = received_sums(block.pattern, rows=block.mask(layout.rows), sink=sink, **seen)
                add("received", block.n_src, received)
            if "sink_levels" in plan.needs:
                add("alpha", block.n_src, received_sums(block.pattern, diag=True, **seen))
            question = block.only(layout.question)
            if plan.rows and len(question.positions):
                context = Rows(question, layout, beside)
                for name, formula in plan.rows.items():
                    rows[name].append(formula(context))
    return Reduced(totals | {("rows", name): torch.cat(parts, -1) for name, parts in rows.items()})


def brought_in(layers: dict[int, Reduced]) -> dict[int, Reduced]:
    """Return the same in memory; of each device all numbers of a kind come at once, so that it is waited for once."""
    found = {(layer, key): tensor for layer, reduced in layers.items() for key, tensor in reduced.numbers.items()}
    for kind in {(tensor.device, tensor.dtype) for tensor in found.values() if tensor.device.type != "cpu"}:
        several = {key: tensor for key, tensor in found.items() if (tensor.device, tensor.dtype) == kind}
        whole = torch.cat([tensor.flatten() for tensor in several.values()]).cpu()
        parts = whole.split([tensor.numel() for tensor in several.values()])
        found |= {key: part.view(tensor.shape) for (key, tensor), part in zip(several.items(), parts, strict=True)}
    return {layer: Reduced({key: found[layer, key] for key in reduced.numbers}) for layer, reduced in layers.items()}


Reductions = tuple[dict[int, Reduced], dict[int, Reduced], dict[int, Other]]


def reduce_prompt(
    model: Model,
    inputs: Inputs,
    layout: Layout,
    plan: Plan,
    *,
    layers: Sequence[int],
    source: Source,
    keep: bool = False,
    compare: dict[int, Other] | None = None,
) -> Reductions:
    """Return one prompt's forward pass with its reducers: no logits, no pattern outlives its layer.
    By layer: its own attention, uniform attention in its place, and, with `keep`, what another condition is compared with."""
    recompute = source == "recomputed" or (source == "auto" and model.info.attention != "eager")
    masks = list(model.visible(inputs.to("cpu")))
    first = [next(at for at, other in enumerate(masks) if other is mask) for mask in masks]  # one window, one mask
    held, needs = Held(), plan.needs
    parts = ["hook_resid_pre"] * ("residual" in needs) + ["attn.hook_v"] * ("values" in needs)
    parts += ["attn.hook_rot_q", "attn.hook_rot_k"] * (recompute or keep)
    if not recompute:
        parts += ["attn.hook_attn_scores"] * ("scores" in needs) + ["attn.hook_pattern"]
    found: dict[int, Reduced] = {}
    kept: dict[int, Other] = {}

    @cache
    def seen(mask: int, device: torch.device) -> Tensor:
        return masks[mask][0].to(device)

    def reduce(layer: int, z: Tensor) -> None:  # by then all else of the layer has come, in whatever order
        rule, visible = model.attention_rule(layer), seen(first[layer], z.device)
        got = dict(zip(parts, held.take(*(site(layer, part) for part in parts)), strict=True))
        vectors: Vectors = {}
        context: dict[str, Any] = {"other": (compare or {}).get(layer)}
        if "residual" in needs:
            vectors["residual"] = got["hook_resid_pre"][0]
        if "values" in needs:
            vectors["values"] = context["values"] = values_of_heads(got["attn.hook_v"][0], model.info.n_heads)
        if "output_weights" in needs:
            context["output_weights"] = model.attention_output(layer).weights.to(z.device)  # they may lie elsewhere
        if keep:
            q, k = (widened(got[f"attn.hook_rot_{which}"]).clone() for which in "qk")
            kept[layer] = Other(q, k, visible, rule, layout)
        if recompute:
            blocks = recomputed_blocks(got["attn.hook_rot_q"], got["attn.hook_rot_k"], visible, rule)
        else:
            scores = got["attn.hook_attn_scores"][0] if "scores" in needs else None
            blocks = pattern_blocks(got["attn.hook_pattern"][0], visible, n_extra=rule.n_extra, scores=scores)
        reduced, n_heads = reduce_blocks(blocks, layout, plan, **context), model.info.n_heads
        of_states = {("states", name): formula(vectors, layout, n_heads) for name, formula in plan.states.items()}
        found[layer] = Reduced(reduced.numbers | of_states)

    capture: dict[str, Reducer] = {}
    for layer in layers:
        names = [site(layer, part) for part in parts]
        capture |= {**held.captures(*names), site(layer, "attn.hook_z"): partial(reduce, layer)}
    model.run(inputs, capture=capture, logits_at="none")
    even = {}
    for mask in {first[layer] for layer in layers}:  # uniform attention reduced in the same way
        blocks = uniform_blocks(masks[mask][0], torch.float32, n_extra=model.attention_rule(mask).n_extra)
        even[mask] = reduce_blocks(blocks, layout, plan.of_uniform())
    return brought_in(found), {layer: even[first[layer]] for layer in layers}, kept
