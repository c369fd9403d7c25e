"""The attention that every token receives, head by head, and that the segments of a prompt give each other."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from ..core.arguments import checked, count_of, listed
from ..core.heads import Head, as_head, as_heads
from ..metrics.patterns import RowChoice, segment_mean
from ..models.base import Model
from ..prompts.conditions import CONDITIONS
from ..prompts.pairs import PromptPair
from ..prompts.prompt import SEGMENTS, Prompt
from ..runtime import base_result as results
from ..runtime.columns import columns_of
from ..runtime.loop import RunOptions
from ..runtime.workers import Tick
from ..statistics import CONFIDENCE, defined_mean, mean_interval
from .score import Described, HeadScores
from .streaming import Layout, Plan, RowFormula, Source, pair_layout


@checked
def attention_profile(
    model: Model,
    pairs: Iterable[PromptPair],
    *,
    rows: RowChoice = "shared",
    heads: Iterable[Head | str] | None = None,
    conditions: Sequence[str] = ("base", "inserted"),
    exclude_sink: bool | None = None,
    min_rows: int = 3,
    source: Source = "auto",
    checkpoint: str | Path | None = None,
    progress: bool = True,
    seed: int = 0,
) -> "AttentionProfile":
    """Measure the attention that each token receives from the tokens after it, per head, in each condition.

    exclude_sink : leave the first token out. None: where the tokenizer put a beginning-of-sequence token there, as the paper
        does for Llama and Gemma but not for Qwen.
    min_rows : tokens read by fewer rows are undefined (NaN).

    Everything else is as in `score_heads` (rows "all" are probably the paper's); the formula is `received_attention`.
    """
    described = Described.of(model, pairs, heads, conditions, source, rows)
    found = described.pairs
    described.settings.update(template=found[0].base.template, exclude_sink=exclude_sink, min_rows=min_rows)

    def profiled(pair: PromptPair, tick: Tick) -> dict[str, dict[str, np.ndarray]]:
        plan = Plan(exclude_sink="bos" in pair.base.segments[:1] if exclude_sink is None else exclude_sink)
        made: dict[str, dict[str, np.ndarray]] = {}
        for condition in conditions:
            run = described.reduced(pair, condition, pair_layout(pair, condition, rows=rows), plan)
            real, null = ({at: one.mean("received", min_rows).cpu() for at, one in each.items()} for each in run[:2])
            made[condition] = {
                "received": torch.stack([real[h.layer][h.head] for h in described.heads]).double().numpy(),
                "uniform": torch.stack([null[h.layer][0] for h in described.heads]).double().numpy(),
            }
            tick(1)
        return made

    done = described.each(profiled, "profiling attention", RunOptions(checkpoint, progress))

    def per_problem(what: str) -> dict[str, tuple[np.ndarray, ...]]:
        return {name: tuple(np.asarray(each[name][what], dtype=float) for each in done) for name in conditions}

    return AttentionProfile(
        **described.fields,
        conditions=tuple(conditions),
        received=per_problem("received"),
        uniform=per_problem("uniform"),
        alignment=tuple(np.array(pair.alignment) for pair in found),
        spans=tuple(pair.span for pair in found),
        base_texts=tuple(tuple(pair.text_of(model, i) for i in pair.base.ids) for pair in found),
        inserted_texts=tuple(tuple(pair.text_of(model, i) for i in pair.inserted.ids) for pair in found),
        seed=seed,
    )


@dataclass(frozen=True, eq=False, repr=False)
class AttentionProfile(results.Result):
    """Received attention, a probability: `received[condition][problem]` is `[head, token]` over the whole sequence.

    `uniform` is its null, uniform attention's. NaN where undefined: the tail, an excluded sink. `alignment[problem]` maps base
    tokens to the inserted prompt (-1: none).
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
    seed: int = 0
    confidence: float = CONFIDENCE

    picture = "profiles"
    caption = "Attention that a token receives, by segment of the prompt, and its ratio to uniform attention's."
    drawn = ("inserted_relative", "question_relative")
    columns = columns_of("""
        before_received | before the span | | attention that a token before the span receives, mean
        inserted_received | in the span | | attention that an inserted token receives, mean
        question_received | in the question | | attention that a token of the question receives, mean
        before_relative | before the span, relative | | the same / uniform attention's
        inserted_relative | in the span, relative | | the same / uniform attention's
        question_relative | in the question, relative | | the same / uniform attention's
    """)

    def whole(self, condition: str, *, relative: bool = False) -> tuple[np.ndarray, ...]:
        """Return every problem's profile `[head, token]` over its whole sequence; `relative` to uniform attention."""
        results.place_of(condition, self.conditions, "condition")
        found = self.received[condition]
        if not relative:
            return found
        both = zip(found, self.uniform[condition], strict=True)
        return tuple(np.divide(r, u, where=u > 0, out=np.full_like(r, np.nan)) for r, u in both)

    def aligned(self, condition: str, *, relative: bool = False) -> tuple[np.ndarray, ...]:
        """Return every problem's profile at its base prompt's tokens `[head, base token]`, NaN where there is no match."""
        found = self.whole(condition, relative=relative)
        if not CONDITIONS[condition].has_span:
            return found
        both = zip(found, self.alignment, strict=True)
        return tuple(np.where(at >= 0, values[:, at.clip(0)], np.nan) for values, at in both)

    def of(self, head: Head | str) -> int:
        """Return where a head stands on the head axis."""
        return results.place_of(str(as_head(head)), map(str, self.heads), "profiled head (zero-based)")

    def curve(
        self, head: Head | str, condition: str, *, aligned: bool = False, relative: bool = False, null: bool = False
    ) -> pd.DataFrame:
        """Return one head's mean profile over problems (`null`: uniform attention's) with its interval, a row per
        position: position, mean, low, high, n. Insertion points lie on top of each other; tokens that fewer than half of the
        problems have are NaN."""
        row, source = self.of(head), replace(self, received=self.uniform) if null else self
        found = [values[row] for values in (source.aligned if aligned else source.whole)(condition, relative=relative)]
        grid = self.by_group(self._on_insertion_points(found))
        n, mean = np.isfinite(grid).sum(0), defined_mean(grid)
        low, high = np.full(len(mean), np.nan), np.full(len(mean), np.nan)
        if len(grid) > 1:
            interval = mean_interval(grid, confidence=self.confidence, seed=self.seed, n_resamples=1000)
            low, high = interval.low, interval.high
        shown = n >= max(1.0, 0.5 * len(grid))
        mean, low, high = (np.where(shown, values, np.nan) for values in (mean, low, high))
        return pd.DataFrame({"position": np.arange(len(mean)), "mean": mean, "low": low, "high": high, "n": n})

    def _on_insertion_points(self, found: Sequence[np.ndarray]) -> np.ndarray:
        """Return one array per problem `[token]` as `[problem, token]`, NaN where a problem has no token."""
        first = max(start for start, _ in self.spans)
        shifts = [first - start for start, _ in self.spans]
        grid = np.full((len(found), max(shift + len(v) for shift, v in zip(shifts, found, strict=True))), np.nan)
        for line, values, shift in zip(grid, found, shifts, strict=True):
            line[shift : shift + len(values)] = values
        return grid

    def curves(self, *, heads: Iterable[Head | str] | None = None) -> pd.DataFrame:
        """Return every curve as numbers, one row per head, condition, tokens ("shared" or "whole") and position."""
        parts = []
        chosen = self.heads if heads is None else as_heads(heads)
        for head, condition, tokens in product(chosen, self.conditions, ("shared", "whole")):
            both = (self.curve(head, condition, aligned=tokens == "shared", null=null) for null in (False, True))
            curve, uniform = both
            fixed = {"label": str(head), "paper_label": head.paper_label, "condition": condition, "tokens": tokens}
            parts.append(pd.DataFrame({**fixed, **curve, "uniform": uniform["mean"]}))
        return pd.concat(parts, ignore_index=True)

    def shaded(self, condition: str) -> tuple[tuple[int, int], ...]:
        """Return where on a curve's axis at least half of the problems have inserted tokens: (first, one past the last)s."""
        if not CONDITIONS[condition].has_span:
            return ()
        inside = self._on_insertion_points([self.is_inserted(at) for at in range(len(self.problem_ids))])
        often = np.nansum(inside, axis=0) * 2 >= len(self.spans)
        edges = np.flatnonzero(np.diff(often, prepend=False, append=False)).tolist()
        return tuple(zip(edges[::2], edges[1::2], strict=True))

    def to_frame(self) -> pd.DataFrame:
        """Return one tidy row per problem, condition, head and token; base_position is -1 inside the span."""
        parts = []
        heads = pd.DataFrame(results.head_columns(self.heads)).drop(columns="paper_label")
        for condition, index in product(self.conditions, range(len(self.problem_ids))):
            base, segment, text = self._tokens(condition, index)
            here = pd.DataFrame({"problem": self.problem_ids[index], "condition": condition}, index=[0])
            at = {"position": np.arange(len(text)), "base_position": base, "segment": segment, "text": text}
            rows = here.merge(heads, how="cross").merge(pd.DataFrame(at), how="cross")
            whole = {"received": self.received[condition], "uniform": self.uniform[condition]}
            whole["relative"] = self.whole(condition, relative=True)
            parts.append(rows.assign(**{name: values[index].ravel() for name, values in whole.items()}))
        return pd.concat(parts, ignore_index=True)

    def _tokens(self, condition: str, index: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
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
        """Tell which tokens of one problem's inserted prompt were inserted, boolean `[token]`."""
        return self._tokens("inserted", index)[1] == "inserted"

    def level(self, condition: str, segment: str, *, relative: bool = False) -> np.ndarray:
        """Return the mean over a segment ("before", "inserted" or "question"), `[problem, head]`; NaN if it has none."""
        found = enumerate(self.whole(condition, relative=relative))
        inside = (values[:, self._tokens(condition, index)[1] == segment] for index, values in found)
        return np.stack([defined_mean(values, axis=1) for values in inside])

    def table(self) -> pd.DataFrame:
        """Return one row per head and condition: mean received attention and its ratio to uniform, by segment."""
        parts = []
        for condition in self.conditions:
            columns: dict[str, object] = {**results.head_columns(self.heads), "condition": condition}
            for segment, name in product(("before", "inserted", "question"), ("received", "relative")):
                level = self.level(condition, segment, relative=name == "relative")
                columns[f"{segment}_{name}"] = defined_mean(self.by_group(level))
            parts.append(pd.DataFrame(columns))
        return pd.concat(parts, ignore_index=True)

    def printed(self) -> pd.DataFrame:
        table = super().printed()  # first what the headline is about
        return table.iloc[np.roll(range(len(table)), len(self.heads))][sorted(table, key=lambda name: "before" in name)]

    def headline(self) -> str:
        last = self.conditions[-1]
        rows = self.table().query("condition == @last")
        of = "inserted" if rows["inserted_relative"].notna().any() else "question"
        level = float(defined_mean(rows[f"{of}_relative"].to_numpy()))
        if np.isnan(level):
            return f"Nothing follows the inserted tokens that could attend to them (condition {last})."
        what = "An inserted token" if of == "inserted" else "A token of the question"
        return (
            f"{what} receives {level:.2f} times uniform attention ({listed(self.heads, 3)}, condition {last}, mean over "
            f"{self.counted})."
        )

    def details(self) -> list[str]:
        s = self.settings
        lengths = [len(texts) for texts in self.inserted_texts]
        return [
            f"Attention received per token: {count_of(len(self.heads), 'head')} of {s.get('model')}, "
            f"{self.counted} of {min(lengths)} to {max(lengths)} tokens, {s.get('insertion')}, "
            f"conditions {', '.join(self.conditions)}, rows {s.get('rows')!r}."
        ]


@checked
def attention_between_segments(
    model: Model,
    pairs: Iterable[PromptPair],
    *,
    conditions: Sequence[str] = ("base", "inserted"),
    heads: Iterable[Head | str] | None = None,
    source: Source = "auto",
    checkpoint: str | Path | None = None,
    progress: bool = True,
) -> HeadScores:
    r"""Measure how much attention the rows of each segment put on the keys of each, per head: shares such as
    `question_to_inserted`.

    $$ M_{AB} = \frac{1}{|A|} \sum_{i \in A} \sum_{j \in B} A_{ij} $$

    0 where a prompt does not have the segment that is read, NaN where it does not have the one that reads. Segments are those
    of `Prompt.segments`; they part the prompt, so that what one reads sums to 1, but for the share of learned sinks. The
    arguments are those of `score_heads`.
    """
    described = Described.of(model, pairs, heads, conditions, source, "all")
    there = {segment for pair in described.pairs for name in conditions for segment in _prompt(pair, name).segments}
    segments = tuple(segment for segment in SEGMENTS if segment in there)
    described.settings["segments"] = list(segments)
    asked = model.info.mask_of(described.heads)
    reading = sorted(segments, key=lambda name: name != "question")  # prints begin with the first
    read = sorted(segments, key=lambda name: name != "inserted")

    def of_problem(pair: PromptPair, tick: Tick) -> results.Found:
        found: results.Found = {}
        for name in conditions:
            masses = np.where(asked[..., None, None], _masses(described, pair, name, segments), np.nan)
            for dest, src in product(reading, read):
                if dest != "inserted" or CONDITIONS[name].has_span:
                    cells = masses[..., segments.index(dest), segments.index(src)]
                    found.setdefault(f"{dest}_to_{src}", {})[name] = cells
            tick(1)
        return found

    done = described.each(of_problem, "attention between segments", RunOptions(checkpoint, progress))
    return HeadScores(**described.fields, conditions=tuple(conditions), values=results.stacked(done), null={})


def _prompt(pair: PromptPair, condition: str) -> Prompt:
    return pair.inserted if CONDITIONS[condition].has_span else pair.base


def _masses(described: Described, pair: PromptPair, condition: str, segments: Sequence[str]) -> np.ndarray:
    """Return `[layer, head, dest, src]`; a segment that the prompt does not have is NaN as a row, and 0 as a column."""
    prompt = _prompt(pair, condition)
    every = torch.ones(len(prompt), dtype=torch.bool)
    masks = {segment: prompt.mask(segment) for segment in segments if segment in prompt.segments}
    # all rows are "question" rows here: those that are reduced
    layout = Layout(~every, every, before=~every, sink=~every, rows=every, shared=torch.arange(len(prompt)))

    def mass_on(mask: Tensor) -> RowFormula:
        return lambda rows: rows.block.pattern[..., rows.block.mask(mask)].double().sum(-1)

    plan = Plan(received=False, rows={segment: mass_on(mask) for segment, mask in masks.items()})
    run, *_ = described.reduced(pair, condition, layout, plan)
    info = described.model.info
    found = np.full((info.n_layers, info.n_heads, len(segments), len(segments)), np.nan)
    found[:, :, [segments.index(dest) for dest in masks]] = 0.0  # nobody reads a segment that is not there
    for layer, (dest, mask) in product(described.layers, masks.items()):
        for src, rows in run[layer].of("rows").items():
            found[layer, :, segments.index(dest), segments.index(src)] = segment_mean(rows.cpu(), mask).numpy()
    return found
