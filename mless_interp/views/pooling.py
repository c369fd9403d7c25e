"""Patterns of chosen heads on one prompt pair, with their tokens: what attention views draw."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from ..core.arguments import count_of
from ..core.heads import Head
from ..models.base import Model
from ..models.sites import site
from ..prompts.conditions import CONDITIONS
from ..prompts.pairs import PromptPair
from ..runtime.folders import savable
from ..runtime.text_safety import visible

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

    def pooled(self, begins: np.ndarray) -> "Patterns":
        """Neighbouring tokens drawn as one, from each that `begins` a block: a column is the sum of their attention, a row the
        mean of their rows. So a row still sums to 1, and a span that gets 93 % has a cell of 0.93, however long it is."""
        first = np.flatnonzero(begins)
        member = np.cumsum(begins) - 1 == np.arange(len(first))[:, None]
        weights = member * self.sizes
        sizes = weights.sum(1)
        texts = []
        for start, stop, size in zip(first, [*first[1:], len(begins)], sizes, strict=True):
            ends = "…".join(dict.fromkeys((self.texts[start], self.texts[stop - 1])))
            texts.append(self.texts[start] if stop - start == 1 else f"{ends} ×{size}")
        values = (weights / sizes[:, None]) @ np.tril(self.values) @ member.T
        return Patterns(self.condition, values, tuple(texts), self.base[first], self.inserted[first], sizes)

    def with_short_span(self, max_span: int | None) -> "Patterns":
        """The inserted tokens pooled into about `max_span` blocks (None: as they are)."""
        inside = np.flatnonzero(self.inserted)
        if max_span is None or len(inside) <= max_span:
            return self
        begins = ~self.inserted | ~np.append(False, self.inserted[:-1])
        begins[[part[0] for part in np.array_split(inside, max_span)]] = True
        return self.pooled(begins)

    def in_blocks(self, block_of: np.ndarray) -> "Patterns":
        """Tokens of the same block of base tokens drawn as one; `base` then counts blocks."""
        own = np.where(self.base >= 0, block_of[self.base], -1)
        begins = (own < 0) | (np.diff(own, prepend=-2) != 0)
        return replace(self.pooled(begins), base=own[begins])


def with_few_tokens(panels: Sequence[Patterns], most: int) -> tuple[list[Patterns], int]:
    """Panels of about `most` tokens, and how many neighbouring ones stand in a block: none across an insertion's place."""
    size = -(-max(len(panel.texts) for panel in panels) // most)
    if size == 1:
        return list(panels), 1
    n_base = 1 + max(int(panel.base.max()) for panel in panels)
    begins = np.zeros(n_base, dtype=bool)
    for start, stop in pairwise([0, *seams(panels, n_base), n_base]):
        begins[start:stop:size] = True
    return [panel.in_blocks(np.cumsum(begins) - 1) for panel in panels], size


def seams(panels: Sequence[Patterns], n_base: int) -> list[int]:
    """Base tokens that begin something new: before them a panel has inserted tokens, or one of the two has no match."""
    found: set[int] = set()
    for panel in panels:
        at = {int(base): token for token, base in enumerate(panel.base) if base >= 0}
        found |= {
            t for t in range(1, n_base) if (t in at) != (t - 1 in at) or at.get(t, 0) != at.get(t - 1, 0) + (t in at)
        }
    return sorted(found)


def difference_of(first: Patterns, last: Patterns) -> tuple[tuple[str, ...], np.ndarray, str]:
    """(texts, values `[head, dest, src]`, "all" or "shared") of the last panel minus the first, on tokens that both have."""
    if np.array_equal(first.base, last.base):
        return first.texts, last.values - first.values, "all"
    both = sorted(set(first.base[first.base >= 0]) & set(last.base[last.base >= 0]))
    before, after = ([int(np.flatnonzero(panel.base == token)[0]) for token in both] for panel in (first, last))
    values = last.values[:, after][:, :, after] - first.values[:, before][:, :, before]
    return tuple(first.texts[at] for at in before), values, "shared"


def scale_of(panels: Sequence[Patterns]) -> float:
    """The colour scale's end: the 99th percentile of all cells on and below the diagonal."""
    cells = np.concatenate([panel.values[:, *np.tril_indices(len(panel.texts))].ravel() for panel in panels])
    return float(np.quantile(cells, 0.99)) or float(cells.max()) or 1.0


def mean_patterns(model: Model, pairs: Sequence[PromptPair], condition: str, heads: Sequence[Head]) -> Patterns:
    """The mean over problems of the patterns of chosen heads, on what all problems' prompts have; each problem counts once.

    Prompts are cut into their segments, and where the span stands. Where a segment has several lengths, its first and last
    tokens stay, counted from its two ends, and what lies between them is drawn as one (its attention summed).
    """
    runs = [_runs(pair) for pair in pairs]
    for pair, each in zip(pairs, runs, strict=True):
        if [name for name, _ in each] != [name for name, _ in runs[0]]:
            raise ValueError(
                f"problems {pairs[0].id!r} and {pair.id!r} have other segments, so there is no mean of their attention; "
                "choose pairs of one template and one insertion, or show one problem (problem=...)"
            )
    segments = [name for name, _ in runs[0]]
    lengths = np.array([[length for _, length in each] for each in runs])
    found = []
    for pair, own in zip(pairs, lengths, strict=True):
        parts = zip(segments, own.tolist(), lengths.min(0).tolist(), lengths.max(0).tolist(), strict=True)
        names, sizes = zip(*(block for part in parts for block in _blocks(*part)), strict=True)
        found.append(read_patterns(model, pair, condition, heads).in_blocks(np.repeat(np.arange(len(sizes)), sizes)))
    if len({len(panel.texts) for panel in found}) > 1:  # spans of several lengths
        found = [panel.with_short_span(1) for panel in found]
    first, texts = found[0], []
    for token, text in enumerate(first.texts):
        name = "span" if first.inserted[token] else names[first.base[token]]
        texts.append(text if all(panel.texts[token] == text for panel in found) else name)
    return replace(first, values=np.mean([panel.values for panel in found], axis=0), texts=tuple(texts))


def _runs(pair: PromptPair) -> list[tuple[str, int]]:
    """The base prompt's runs of one segment with their lengths, cut also where the span stands."""
    segments, cuts = pair.base.segments, [0]
    cuts += [t for t in range(1, len(segments)) if segments[t] != segments[t - 1] or t == pair.span[0]]
    return [(segments[start], stop - start) for start, stop in pairwise([*cuts, len(segments)])]


def _blocks(segment: str, length: int, shortest: int, longest: int) -> list[tuple[str, int]]:
    """A segment's blocks, which are alike for all its lengths: their names, counted from its ends, and numbers of tokens.

    >>> _blocks("q", 9, 6, 9)
    [('q +1', 1), ('q +2', 1), ('q …', 5), ('q −2', 1), ('q −1', 1)]
    """
    if shortest == longest:
        return [(f"{segment} +{place}", 1) for place in range(1, length + 1)]
    aside = range(1, (shortest - 1) // 2 + 1)
    ends = [(f"{segment} +{place}", 1) for place in aside], [(f"{segment} −{place}", 1) for place in reversed(aside)]
    return [*ends[0], (f"{segment} …", length - 2 * len(aside)), *ends[1]]


@savable
@dataclass(frozen=True, eq=False)
class PairAttention:
    """Attention of chosen heads on one problem, or its mean `of` several, a panel per condition: what a view needs to be drawn
    without the model. `n_base` counts tokens (blocks, in a mean) of the prompt without insertion, `n_inserted` the span's."""

    of: str
    insertion: str
    n_problems: int
    n_base: int
    n_inserted: int
    heads: tuple[Head, ...]
    panels: tuple[Patterns, ...]


def read_attention(
    model: Model,
    pair: PromptPair | Sequence[PromptPair],
    heads: Iterable[Head | str],
    *,
    problem: str | int | None = None,
    conditions: Sequence[str] | None = None,
) -> PairAttention:
    """The attention of chosen heads in these conditions of a pair, or its mean over the problems of several pairs."""
    chosen = model.info.chosen(heads, what="show")
    pairs = (pair,) if isinstance(pair, PromptPair) else tuple(pair)
    if not pairs:
        raise ValueError("no pairs to show; give at least one")
    if len({each.insertion.label for each in pairs}) > 1:
        raise ValueError("pairs of several insertions have no mean; give those of one")
    if problem is not None:
        pairs = (pairs[problem_index([each.id for each in pairs], problem)],)
    if conditions is None:
        conditions = ("base" if pairs[0].n_inserted else "clean", "inserted")
    if not conditions or len(set(conditions)) != len(conditions):
        raise ValueError(f"conditions to show: at least one, each once; got {', '.join(conditions) or 'none'}")
    if len(pairs) == 1:
        of, panels = f"problem {pairs[0].id}", [read_patterns(model, pairs[0], name, chosen) for name in conditions]
    else:
        of = f"mean over {count_of(len(pairs), 'problem')}"
        panels = [mean_patterns(model, pairs, name, chosen) for name in conditions]
    n_base = 1 + max(int(panel.base.max()) for panel in panels)
    return PairAttention(of, pairs[0].insertion.label, len(pairs), n_base, pairs[0].n_inserted, chosen, tuple(panels))


def problem_index(ids: Sequence[str], problem: str | int) -> int:
    """The place of a problem, by its id or its place."""
    if isinstance(problem, str) and problem not in ids:
        raise ValueError(f"problem {problem!r} is not among these; there are {', '.join(ids[:8])}")
    at = ids.index(problem) if isinstance(problem, str) else problem
    if not 0 <= at < len(ids):
        raise ValueError(f"problem {at} is out of range: there are {len(ids)} (0 to {len(ids) - 1}), or give an id")
    return at


def read_patterns(model: Model, pair: PromptPair, condition: str, heads: Sequence[Head]) -> Patterns:
    """The patterns of chosen heads in one condition of a pair, with texts and the map to the base prompt's tokens."""
    values = patterns_of(model, pair, condition, heads).double().numpy()
    ids = pair.condition(condition).tokens[0].tolist()
    n, short = len(ids), len(ids) == len(pair.base)
    base = np.arange(n) if short else np.full(n, -1)
    for token, position in enumerate(() if short else pair.alignment):
        if position >= 0:
            base[position] = token
    inserted = np.zeros(n, dtype=bool) if short else pair.span_mask.numpy()
    texts = tuple(readable(pair.text_of(model, i)) for i in ids)
    return Patterns(condition, values, texts, base, inserted, np.ones(n, dtype=int))


def patterns_of(model: Model, pair: PromptPair, condition: str, heads: Sequence[Head]) -> Tensor:
    """Patterns `[head, dest, src]` of chosen heads in one condition; only these leave their layer."""
    wanted = {layer: [head.head for head in heads if head.layer == layer] for layer in {head.layer for head in heads}}
    capture = {
        site(layer, "attn.hook_pattern"): (lambda pattern, here=here: pattern[0, here].float().cpu())
        for layer, here in wanted.items()
    }
    found = model.run(pair.condition(condition), capture=capture, logits_at="none").captured
    rows = (found[site(head.layer, "attn.hook_pattern")][wanted[head.layer].index(head.head)] for head in heads)
    return torch.stack(list(rows))


def readable(text: str) -> str:
    """A token's text with line breaks and tabs made visible, and whatever else would act and not show."""
    return visible(text.replace("\r", "␍").replace("\n", "↵").replace("\t", "⇥"))
