"""Patterns of chosen heads on one prompt pair, with their tokens: what pictures and pages of attention draw."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ..heads import Head, as_head
from ..models.base import Model
from ..models.sites import site
from ..prompts.conditions import CONDITIONS
from ..prompts.pairs import PromptPair
from ..running.registry import savable

MARK = "▌"
"""Stands before the text of an inserted token."""


@savable
@dataclass(frozen=True, eq=False)
class Patterns:
    """Attention of chosen heads in one condition: `values` `[head, dest, src]`, one text per token.

    `base[token]` is the token's index in the prompt without insertion, -1 for inserted tokens (and tokens without a
    match); `inserted[token]` whether it belongs to the span. A pooled token stands for `sizes[token]` of them.
    """

    condition: str
    values: np.ndarray
    texts: tuple[str, ...]
    base: np.ndarray
    inserted: np.ndarray
    sizes: np.ndarray

    @property
    def title(self) -> str:
        """The condition in words, with its name."""
        return f"{CONDITIONS[self.condition].title} ({self.condition})"

    @property
    def visible(self) -> np.ndarray:
        """All values on and below the diagonal, `[head, cell]`, row by row."""
        rows, columns = np.tril_indices(len(self.texts))
        return self.values[:, rows, columns]

    def pooled(self, groups: Sequence[Sequence[int]]) -> "Patterns":
        """Neighbouring tokens drawn as one: each cell is the mean over the visible cells it stands for.

        Means, not sums, so that a pooled cell has the colour that its tokens have on average.
        """
        n = len(self.texts)
        member = np.zeros((len(groups), n))
        for row, group in enumerate(groups):
            member[row, list(group)] = 1.0
        cells = member @ np.tril(np.ones((n, n))) @ member.T
        sums = member @ np.tril(self.values) @ member.T
        texts = []
        for group in groups:
            first, last = self.texts[group[0]], self.texts[group[-1]]
            several = first if first == last else f"{first}…{last}"
            texts.append(first if len(group) == 1 else f"{several} ×{int(self.sizes[list(group)].sum())}")
        return Patterns(
            self.condition,
            np.divide(sums, cells, where=cells > 0, out=np.zeros_like(sums)),
            tuple(texts),
            np.array([self.base[group[0]] for group in groups]),
            np.array([bool(self.inserted[group[0]]) for group in groups]),
            np.array([int(self.sizes[list(group)].sum()) for group in groups]),
        )

    def with_short_span(self, max_span: int | None) -> "Patterns":
        """The inserted tokens pooled into at most `max_span` (None: as they are)."""
        inside = np.flatnonzero(self.inserted)
        if max_span is None or len(inside) <= max_span:
            return self
        pools = [part.tolist() for part in np.array_split(inside, max_span)]
        return self.pooled(
            [[i] for i in range(inside[0])] + pools + [[i] for i in range(inside[-1] + 1, len(self.texts))]
        )

    def in_blocks(self, block_of: np.ndarray) -> "Patterns":
        """Tokens of the same block of base tokens drawn as one; `base` then counts blocks."""
        groups: list[list[int]] = []
        named = [(-1, i) if base < 0 else (int(block_of[base]), -1) for i, base in enumerate(self.base)]
        for i, name in enumerate(named):
            if groups and name == named[i - 1]:
                groups[-1].append(i)
            else:
                groups.append([i])
        found = self.pooled(groups)
        return Patterns(
            found.condition,
            found.values,
            found.texts,
            np.array([-1 if base < 0 else int(block_of[base]) for base in found.base]),
            found.inserted,
            found.sizes,
        )


@savable
@dataclass(frozen=True, eq=False)
class PairAttention:
    """Attention of chosen heads on one pair, a panel per condition: all that a view of it needs, so that it can be saved
    and drawn without the model. `n_base` and `n_inserted` count tokens of the prompt without insertion, and of the span."""

    id: str
    insertion: str
    n_base: int
    n_inserted: int
    heads: tuple[Head, ...]
    panels: tuple[Patterns, ...]


def read_attention(
    model: Model, pair: PromptPair, heads: Iterable[Head | str], *, conditions: Sequence[str] = ("base", "inserted")
) -> PairAttention:
    """The attention of chosen heads in these conditions of a pair."""
    chosen = model.info.chosen(heads, what="show")
    if not conditions:
        raise ValueError("no conditions to show; give at least one, such as 'base'")
    if len(set(conditions)) != len(conditions):
        raise ValueError(f"a condition is given twice: {', '.join(conditions)}")
    panels = tuple(read_patterns(model, pair, name, chosen) for name in conditions)
    return PairAttention(pair.id, pair.insertion.label, len(pair.base), pair.n_inserted, chosen, panels)


def read_patterns(model: Model, pair: PromptPair, condition: str, heads: Iterable[Head | str]) -> Patterns:
    """The patterns of chosen heads in one condition of a pair, with texts and the map to the base prompt's tokens."""
    chosen = model.info.chosen(heads, what="show")
    values = patterns_of(model, pair, condition, chosen).double().numpy()
    short = values.shape[-1] == len(pair.base)
    ids = pair.base.ids if short else pair.inserted.ids
    base = np.arange(len(ids)) if short else np.full(len(ids), -1)
    if not short:
        for token, position in enumerate(pair.alignment):
            if position >= 0:
                base[position] = token
    inserted = np.zeros(len(ids), dtype=bool) if short else pair.span_mask.numpy()
    texts = tuple(readable(model.tokenizer.decode([i])) for i in ids)
    return Patterns(condition, values, texts, base, inserted, np.ones(len(ids), dtype=int))


def patterns_of(model: Model, pair: PromptPair, condition: str, heads: Sequence[Head]) -> Tensor:
    """Patterns `[head, dest, src]` of chosen heads in one condition; only these leave their layer."""
    inputs = pair.condition(condition)
    wanted = {
        site(layer, "attn.hook_pattern"): (
            lambda pattern, layer=layer: pattern[0, _in_layer(heads, layer)].float().cpu()
        )
        for layer in {head.layer for head in heads}
    }
    captured = model.run(
        inputs,
        capture=wanted,
        logits_at="none",
    ).captured
    rows = []
    for head in heads:
        place = _in_layer(heads, head.layer).index(head.head)
        rows.append(captured[site(head.layer, "attn.hook_pattern")][place])
    return torch.stack(rows)


def _in_layer(heads: Sequence[Head], layer: int) -> list[int]:
    return [head.head for head in heads if head.layer == layer]


def readable(text: str) -> str:
    """A token's text with line breaks and tabs made visible."""
    return text.replace("\r", "␍").replace("\n", "↵").replace("\t", "⇥")


def both_names(head: Head | str) -> str:
    """A head in both ways of counting.

    >>> both_names(Head(0, 13))
    'L0H13 (paper: layer 1, head 14)'
    """
    head = as_head(head)
    return f"{head} (paper: {head.paper_label.replace(' head', ', head')})"


def seams(panels: Sequence[Patterns], n_base: int) -> list[int]:
    """Base tokens that begin something new: before them a panel has inserted tokens, or one of the two has no match."""
    found: set[int] = set()
    for panel in panels:
        at = {int(base): token for token, base in enumerate(panel.base) if base >= 0}
        found |= {
            t for t in range(1, n_base) if (t in at) != (t - 1 in at) or at.get(t, 0) != at.get(t - 1, 0) + (t in at)
        }
    return sorted(found)
