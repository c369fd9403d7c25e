"""`attention_profile`: the attention that every token receives, head by head, with and without an insertion."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from ..core.arguments import checked, count_of
from ..core.heads import Head, as_head, as_heads
from ..metrics.patterns import RowChoice
from ..models.base import Model
from ..prompts.conditions import CONDITIONS
from ..prompts.pairs import PromptPair, digest_of, own_pairs
from ..prompts.problems import groups_of
from ..runtime.columns import columns_of
from ..runtime.engines import Tick
from ..runtime.loop import RunOptions, in_context
from ..runtime.results import Result, Shown, ShownTable, head_columns, head_map, place_of
from ..statistics import CONFIDENCE, bootstrap_interval, defined_mean
from .layout import pair_layout
from .score import described_pairs, over_described
from .streaming import Plan, PromptReduction, Source


@checked
def attention_profile(
    model: Model,
    pairs: Iterable[PromptPair],
    *,
    rows: RowChoice = "shared",
    heads: Iterable[Head | str] | None = None,
    conditions: Sequence[str] = ("base", "inserted"),
    exclude_sink: bool | None = None,
    renorm: bool = False,
    diag: bool = False,
    min_rows: int = 3,
    source: Source = "auto",
    checkpoint: str | Path | None = None,
    progress: bool = True,
    seed: int = 0,
) -> "AttentionProfile":
    """Mean attention that each token receives from the tokens after it, per head, in each condition.

    Parameters
    ----------
    rows : which rows are averaged over: "shared" (all but the span's: comparable between conditions), "all" (probably
        the paper's figures), "question", "last" (with `min_rows=1`).
    exclude_sink : leave the first token out. None: where the tokenizer put a beginning-of-sequence token there, which
        is what the paper does for Llama and Gemma but not for Qwen. `renorm` divides rows by their mass elsewhere.
    diag : count each token's attention to itself as well. `min_rows` : tokens read by fewer rows are undefined (NaN).
    source : see `score_heads`.
    checkpoint : a file that receives each finished problem; a run started again with the same settings goes on there.

    Everything else is as in `score_heads`; the formula is `metrics.received.received_attention`, its null
    that of uniform attention.
    """
    found = own_pairs(model, described_pairs(pairs, conditions, source, rows, min_rows=min_rows))
    chosen = model.info.chosen(heads, what="describe")
    layers = sorted({head.layer for head in chosen})
    settings = {
        **model.identity,
        "prompts": digest_of(found),
        "insertion": found[0].insertion.label,
        "template": found[0].base.template,
        "rows": rows,
        "exclude_sink": exclude_sink,
        "renorm": renorm,
        "diag": diag,
        "min_rows": min_rows,
    }

    def profiled(pair: PromptPair, tick: Tick) -> dict[str, dict[str, np.ndarray]]:
        drop = "bos" in pair.base.segments[:1] if exclude_sink is None else exclude_sink
        plan = Plan(exclude_sink=drop, renorm=renorm, diag=diag)
        made: dict[str, dict[str, np.ndarray]] = {}
        for condition in conditions:
            try:
                layout = pair_layout(pair, condition, rows=rows)
                inputs = pair.condition(condition)
                run = PromptReduction(model, inputs, layout, plan, layers=layers, source=source).run()
                real = {layer: run.layers[layer].mean("received", min_rows).cpu() for layer in layers}
                null = {layer: run.nulls[layer].mean("received", min_rows).cpu() for layer in layers}
            except ValueError as error:
                raise in_context(error, f"condition {condition}") from error
            made[condition] = {
                "received": torch.stack([real[h.layer][h.head] for h in chosen]).double().numpy(),
                "uniform": torch.stack([null[h.layer][0] for h in chosen]).double().numpy(),
            }
            tick(1)
        return made

    asked = {**settings, "conditions": list(conditions), "heads": list(map(str, chosen)), "source": source}
    options = {"label": "profiling attention", "options": RunOptions(checkpoint, progress)}
    done = over_described(model, found, profiled, conditions, asked, **options)

    def per_problem(what: str) -> dict[str, tuple[np.ndarray, ...]]:
        return {name: tuple(np.asarray(each[name][what], dtype=float) for each in done) for name in conditions}

    return AttentionProfile(
        problem_ids=tuple(pair.id for pair in found),
        groups=groups_of(pair.problem for pair in found),
        conditions=tuple(conditions),
        heads=chosen,
        received=per_problem("received"),
        uniform=per_problem("uniform"),
        alignment=tuple(np.array(pair.alignment) for pair in found),
        spans=tuple(pair.span for pair in found),
        base_texts=tuple(tuple(pair.text_of(model, i) for i in pair.base.ids) for pair in found),
        inserted_texts=tuple(tuple(pair.text_of(model, i) for i in pair.inserted.ids) for pair in found),
        settings=settings,
        seed=seed,
    )


SEGMENTS = ("before", "inserted", "question")
"""Of a prompt, by where they stand to the insertion."""


@dataclass(frozen=True, eq=False)
class Curve:
    """A mean over problems, token by token, with the interval over problems: every array is `[token]`.

    `position` counts tokens so that the insertion points of all problems coincide; `n` counts the problems.
    """

    position: np.ndarray
    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray
    n: np.ndarray


@dataclass(frozen=True, eq=False, repr=False)
class AttentionProfile(Result):
    """Received attention, a probability, per condition and problem `[head, token]` (heads in the order of `heads`).

    Prompts differ in length, so there is one array per problem. `received[condition][problem]` is the whole sequence,
    `uniform` its null: what it would be if every row spread its attention evenly over the keys that it sees. NaN where
    undefined: the tail, an excluded sink. `alignment[problem]` maps base tokens to the inserted prompt (-1: none).
    """

    problem_ids: tuple[str, ...]
    conditions: tuple[str, ...]
    heads: tuple[Head, ...]
    received: dict[str, tuple[np.ndarray, ...]]
    uniform: dict[str, tuple[np.ndarray, ...]]
    alignment: tuple[np.ndarray, ...]
    spans: tuple[tuple[int, int], ...]
    base_texts: tuple[tuple[str, ...], ...]
    inserted_texts: tuple[tuple[str, ...], ...]
    settings: dict[str, Any] = field(default_factory=dict)
    seed: int = 0
    confidence: float = CONFIDENCE

    picture = "profiles"
    columns = columns_of("""
        before_received | before the span | | attention that a token before the span receives, mean
        inserted_received | in the span | | attention that an inserted token receives, mean
        question_received | in the question | | attention that a token of the question receives, mean
        before_relative | before the span, relative | | the same / uniform attention's
        inserted_relative | in the span, relative | | the same / uniform attention's
        question_relative | in the question, relative | | the same / uniform attention's
    """)

    def whole(self, condition: str, *, relative: bool = False) -> tuple[np.ndarray, ...]:
        """Every problem's profile `[head, token]` over its whole sequence; `relative` to uniform attention."""
        place_of(condition, self.conditions, "condition")
        found = self.received[condition]
        if not relative:
            return found
        return tuple(
            np.divide(r, u, where=u > 0, out=np.full_like(r, np.nan))
            for r, u in zip(found, self.uniform[condition], strict=True)
        )

    def aligned(self, condition: str, *, relative: bool = False) -> tuple[np.ndarray, ...]:
        """Every problem's profile at its base prompt's tokens `[head, base token]`, NaN where there is no match."""
        found = self.whole(condition, relative=relative)
        if not CONDITIONS[condition].has_span:
            return found
        return tuple(
            np.where(at >= 0, values[:, at.clip(0)], np.nan) for values, at in zip(found, self.alignment, strict=True)
        )

    def of(self, head: Head | str) -> int:
        """Where a head stands on the head axis."""
        head = as_head(head)
        if head not in self.heads:
            raise ValueError(
                f"{head} (zero-based) was not profiled; there are {', '.join(map(str, self.heads[:12]))} ..."
            )
        return self.heads.index(head)

    def curve(
        self,
        head: Head | str,
        condition: str,
        *,
        aligned: bool = False,
        relative: bool = False,
        null: bool = False,
        min_share: float = 0.5,
        n_resamples: int = 1000,
    ) -> Curve:
        """One head's mean profile over problems with its bootstrap interval, insertion points on top of each other.

        Tokens that fewer than `min_share` of the problems have are left out. `null` gives uniform attention's instead.
        """
        row = self.of(head)
        if null:
            source = AttentionProfile(**{**vars(self), "received": self.uniform})
            return source.curve(head, condition, aligned=aligned, min_share=min_share, n_resamples=n_resamples)
        found = [values[row] for values in (self.aligned if aligned else self.whole)(condition, relative=relative)]
        starts = [start for start, _ in self.spans]
        first = max(starts)
        grid = np.full((len(found), max(first - s + len(v) for s, v in zip(starts, found, strict=True))), np.nan)
        for line, values, start in zip(grid, found, starts, strict=True):
            line[first - start : first - start + len(values)] = values
        grid = self.by_group(grid)
        n, mean = np.isfinite(grid).sum(0), defined_mean(grid)
        low, high = np.full(len(mean), np.nan), np.full(len(mean), np.nan)
        if len(grid) > 1:
            interval = bootstrap_interval(grid, confidence=self.confidence, seed=self.seed, n_resamples=n_resamples)
            low, high = interval.low, interval.high
        shown = n >= max(1.0, min_share * len(grid))
        mean, low, high = (np.where(shown, values, np.nan) for values in (mean, low, high))
        return Curve(np.arange(len(mean)), mean, low, high, n)

    def curves(self, *, heads: Iterable[Head | str] | None = None) -> pd.DataFrame:
        """Every curve as numbers, one row per head, condition, tokens ("shared" or "whole") and position."""
        parts = []
        chosen = self.heads if heads is None else as_heads(heads)
        for head, condition, tokens in product(chosen, self.conditions, ("shared", "whole")):
            aligned = tokens == "shared"
            curve = self.curve(head, condition, aligned=aligned)
            null = self.curve(head, condition, aligned=aligned, null=True)
            fixed = {"label": str(head), "paper_label": head.paper_label, "condition": condition, "tokens": tokens}
            parts.append(pd.DataFrame({**fixed, **vars(curve), "uniform": null.mean}))
        return pd.concat(parts, ignore_index=True)

    def shaded(self, condition: str) -> tuple[tuple[int, int], ...]:
        """Where on a curve's axis at least half of the problems have inserted tokens: (first, one past the last) of each
        block; none in a condition without them."""
        if not CONDITIONS[condition].has_span:
            return ()
        first = max(start for start, _ in self.spans)
        counts = np.zeros(max(first - s + len(t) for (s, _), t in zip(self.spans, self.inserted_texts, strict=True)))
        for index, (start, _) in enumerate(self.spans):
            inside = self.is_inserted(index)
            counts[first - start :][: len(inside)] += inside
        edges = np.flatnonzero(np.diff(counts * 2 >= len(self.spans), prepend=False, append=False)).tolist()
        return tuple(zip(edges[::2], edges[1::2], strict=True))

    def to_frame(self) -> pd.DataFrame:
        """One tidy row per problem, condition, head and token: position, base_position (-1 inside the span), segment,
        text, received, uniform, relative."""
        places = head_columns(self.heads)
        parts = []
        for condition in self.conditions:
            relative = self.whole(condition, relative=True)
            for index, problem in enumerate(self.problem_ids):
                n_heads, n_tokens = self.received[condition][index].shape
                base, segments, texts = self._tokens(condition, index)
                of_tokens = {"position": np.arange(n_tokens), "base_position": base, "segment": segments, "text": texts}
                columns: dict[str, Any] = {"problem": problem, "condition": condition}
                columns |= {name: np.repeat(places[name], n_tokens) for name in ("layer", "head", "label")}
                columns |= {name: np.tile(each, n_heads) for name, each in of_tokens.items()}
                columns["received"] = self.received[condition][index].ravel()
                columns["uniform"] = self.uniform[condition][index].ravel()
                parts.append(pd.DataFrame({**columns, "relative": relative[index].ravel()}))
        return pd.concat(parts, ignore_index=True)

    def _tokens(self, condition: str, index: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(base position, segment, text) of each token of one problem's prompt in a condition."""
        start, stop = self.spans[index]
        inside = CONDITIONS[condition].has_span
        texts = (self.inserted_texts if inside else self.base_texts)[index]
        at = base = np.arange(len(texts))
        if inside:
            alignment = self.alignment[index]
            base = np.full(len(texts), -1)
            base[alignment[alignment >= 0]] = np.flatnonzero(alignment >= 0)
        segments = np.where(at < start, "before", np.where((at < stop) & (base < 0), "inserted", "question"))
        return base, segments, np.array(texts, dtype=object)

    def is_inserted(self, index: int) -> np.ndarray:
        """Which tokens of one problem's inserted prompt were inserted, boolean `[token]`."""
        return self._tokens("inserted", index)[1] == "inserted"

    def level(self, condition: str, segment: str, *, relative: bool = False) -> np.ndarray:
        """Mean over a segment's tokens ("before", "inserted" or "question"), `[problem, head]`; NaN if it has none."""
        found = [
            defined_mean(values[:, self._tokens(condition, index)[1] == segment], axis=1)
            for index, values in enumerate(self.whole(condition, relative=relative))
        ]
        return np.stack(found)

    def table(self) -> pd.DataFrame:
        """One row per head and condition: mean received attention and its ratio to uniform, by segment."""
        parts = []
        for condition in self.conditions:
            columns: dict[str, Any] = {**head_columns(self.heads), "condition": condition}
            for segment, (name, relative) in product(SEGMENTS, (("received", False), ("relative", True))):
                level = self.level(condition, segment, relative=relative)
                columns[f"{segment}_{name}"] = defined_mean(self.by_group(level))
            parts.append(pd.DataFrame(columns))
        return pd.concat(parts, ignore_index=True)

    def headline(self) -> str:
        """Return how much attention an inserted token receives beside uniform attention."""
        last = self.conditions[-1]
        rows = self.table().query("condition == @last")
        of = "inserted" if rows["inserted_relative"].notna().any() else "question"
        level = float(defined_mean(rows[f"{of}_relative"].to_numpy()))
        what = "An inserted token" if of == "inserted" else "A token of the question"
        return (
            f"{what} receives {level:.2f} times uniform attention ({count_of(len(self.heads), 'head')}, condition {last}, mean "
            f"over {count_of(len(self.problem_ids), 'problem')})."
        )

    def details(self) -> list[str]:
        """Return what was profiled."""
        s = self.settings
        lengths = [len(texts) for texts in self.inserted_texts]
        return [
            f"Attention received per token: {count_of(len(self.heads), 'head')} of {s.get('model')}, "
            f"{count_of(len(self.problem_ids), 'problem')} of {min(lengths)} to {max(lengths)} tokens, {s.get('insertion')}, "
            f"conditions {', '.join(self.conditions)}, rows {s.get('rows')!r}."
        ]

    def shown(self) -> Shown:
        """Levels by segment; the curves are a picture (`mi.views.profiles`)."""
        caption = "Attention that a token receives, by segment of the prompt, and its ratio to uniform attention's."
        table = self.table()
        columns = [name for name in table if name not in ("layer", "head")]
        drawn = head_map(table, ["inserted_relative", "question_relative"], columns)
        return Shown((ShownTable(table, caption, columns),), drawn)
