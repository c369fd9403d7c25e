"""Attention from segment to segment: how much each part of a prompt reads each other part, in every head."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from ..core.arguments import checked, count_of
from ..core.heads import Head
from ..metrics.patterns import segment_mean
from ..models.base import Model
from ..prompts.conditions import CONDITIONS
from ..prompts.pairs import PromptPair
from ..prompts.problems import groups_of
from ..prompts.prompt import SEGMENTS, Prompt
from ..runtime.columns import columns_of
from ..runtime.loop import RunOptions, Tick
from ..runtime.results import (
    Quantity,
    Result,
    Shown,
    ShownTable,
    head_columns,
    interval_columns,
    of_heads,
    place_of,
    tidy,
)
from ..statistics import defined_mean, mean_interval
from .score import described, over_described
from .streaming import Layout, Plan, RowFormula, Source, reduce_prompt


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
) -> "SegmentAttention":
    r"""Measure how much attention the rows of each segment put on the keys of each: mean over rows, per head and over heads.

    $$ M_{AB} = \frac{1}{|A|} \sum_{i \in A} \sum_{j \in B} A_{ij} $$

    Segments are those of `Prompt.segments`: bos, template, system, examples, inserted, question, answer; they part the prompt,
    so that the shares of a segment's rows sum to 1. The arguments are those of `score_heads`.
    """
    found, chosen, settings = described(model, pairs, heads, conditions, source, "all")
    there = {segment for pair in found for name in conditions for segment in _prompt(pair, name).segments}
    segments = tuple(segment for segment in SEGMENTS if segment in there)
    settings["segments"] = list(segments)
    asked = model.info.mask_of(chosen)
    layers = np.flatnonzero(asked.any(1)).tolist()

    def of_problem(pair: PromptPair, tick: Tick) -> dict[str, np.ndarray]:
        tables = {}
        for name in conditions:
            tables[name] = np.full((*asked.shape, len(segments), len(segments)), np.nan)
            for layer, masses in _masses(model, pair, name, segments, layers, source).items():
                tables[name][layer] = np.where(asked[layer][:, None, None], masses, np.nan)
            tick(1)
        return tables

    settings_of_run, options = settings | {"source": source}, RunOptions(checkpoint, progress)
    done = over_described(model, found, of_problem, conditions, settings_of_run, "attention between segments", options)
    return SegmentAttention(
        problem_ids=tuple(pair.id for pair in found),
        groups=groups_of(pair.problem for pair in found),
        heads=chosen,
        segments=segments,
        values={name: np.stack([np.asarray(each[name], dtype=float) for each in done]) for name in conditions},
        settings=settings,
    )


def _prompt(pair: PromptPair, condition: str) -> Prompt:
    return pair.inserted if CONDITIONS[condition].has_span else pair.base


def _masses(
    model: Model, pair: PromptPair, condition: str, segments: Sequence[str], layers: Sequence[int], source: Source
) -> dict[int, np.ndarray]:
    """layer -> `[head, dest, src]`; a segment that the prompt does not have is NaN as a row, and 0 as a column."""
    prompt = _prompt(pair, condition)
    n, every = len(prompt), torch.ones(len(prompt), dtype=torch.bool)
    masks = {segment: prompt.mask(segment) for segment in segments if segment in prompt.segments}
    # all rows are "question" rows here: those that are reduced
    layout = Layout(
        n, span=None, shared=torch.arange(n), question=every, before=~every, sink=torch.arange(n) == 0, rows=every
    )

    def mass_on(mask: Tensor) -> RowFormula:
        return lambda rows: rows.block.pattern[..., rows.block.mask(mask)].double().sum(-1)

    plan = Plan(received=False, rows={segment: mass_on(mask) for segment, mask in masks.items()})
    run = reduce_prompt(model, pair.condition(condition), layout, plan, layers=layers, source=source)
    found = {}
    for layer in layers:
        table = np.full((model.info.n_heads, len(segments), len(segments)), np.nan)
        table[:, [segments.index(dest) for dest in masks]] = 0.0  # nobody reads a segment that is not there
        for src, rows in run.layers[layer].of("rows").items():
            for dest, mask in masks.items():
                table[:, segments.index(dest), segments.index(src)] = segment_mean(rows.cpu(), mask).numpy()
        found[layer] = table
    return found


@dataclass(frozen=True, eq=False, repr=False)
class SegmentAttention(Result):
    """Attention from segment to segment, shares.

    `values[condition]` is `[problem, layer, head, dest segment, src segment]`: the mean over the rows of a segment of what they
    put on the keys of another, 0 where a problem's prompt does not have these. NaN where it does not have the reading
    segment, or a head was not asked for. So what a segment reads sums to 1, but for the share of learned sinks.
    """

    problem_ids: tuple[str, ...]
    heads: tuple[Head, ...]
    segments: tuple[str, ...]
    values: dict[str, np.ndarray]
    settings: dict[str, object] = field(default_factory=dict)
    seed: int = 0

    columns = columns_of("""
        dest | from | | segment whose tokens attend
        src | to | | segment whose tokens are attended to
    """)
    axes = (("values", "problem layer head_of_layer dest src"),)

    @property
    def conditions(self) -> tuple[str, ...]:
        return tuple(self.values)

    def of(self, dest: str, src: str, condition: str | None = None) -> np.ndarray:
        """Return what the rows of `dest` put on the keys of `src`, `[problem, layer, head]`; default: in the last condition."""
        at = [place_of(name, self.segments, "segment") for name in (dest, src)]
        return self.values[self._condition(condition)][..., at[0], at[1]]

    def over_heads(self, condition: str | None = None) -> pd.DataFrame:
        """Return the mean over heads, then over the problems that have the segment that reads (a row); a column per segment
        that is read."""
        table = defined_mean(self.by_group(self._cells(condition).mean(1)))
        return pd.DataFrame(table, columns=list(self.segments)).assign(reads=self.segments)[["reads", *self.segments]]

    def table(self, condition: str | None = None) -> pd.DataFrame:
        """Return one row per head and two segments: `dest` (reads), `src` (is read), the mean `share` over problems with its
        interval, and the number of problems `n`."""
        cells = self.by_group(self._cells(condition))
        flat = cells.reshape(len(cells), -1)
        shares = interval_columns("share", mean_interval(flat, seed=self.seed))
        both = pd.MultiIndex.from_product([self.segments, self.segments], names=["dest", "src"]).to_frame(index=False)
        return (
            pd.DataFrame(head_columns(self.heads)).merge(both, how="cross").assign(**shares, n=np.isfinite(flat).sum(0))
        )

    def to_frame(self) -> pd.DataFrame:
        """Return one tidy row per problem, condition, head and two segments, with its `share`."""
        labels = [str(head) for head in self.heads]
        axes = {"problem": self.problem_ids, "label": labels, "dest": self.segments, "src": self.segments}
        parts = [tidy(axes, share=self._cells(name)).assign(condition=name) for name in self.conditions]
        return pd.concat(parts, ignore_index=True)

    def headline(self) -> str:
        table, n = self.over_heads().set_index("reads"), count_of(len(self.problem_ids), "problem")
        if "question" not in table:
            return f"No prompt of {n} has a question to attend from."
        shares = table.loc["question"].dropna().sort_values(ascending=False, kind="stable")
        said = ", ".join(f"{100 * share:.0f} % {name}" for name, share in shares.items() if share >= 0.005)
        return f"The question's rows attend to {said} (condition {self.conditions[-1]}, mean over heads and {n})."

    def details(self) -> list[str]:
        return [
            f"Attention between {count_of(len(self.segments), 'segment')} in {count_of(len(self.heads), 'head')} on "
            f"{count_of(len(self.problem_ids), 'problem')}, "
            f"{self.settings.get('insertion', 'no insertion')}, conditions {', '.join(self.conditions)}."
        ]

    def printed(self) -> pd.DataFrame:
        return self.over_heads()

    def quantity(self, column: str) -> Quantity:
        return replace(super().quantity(column), unit="share" if column in ("share", *self.segments) else "")

    def shown(self) -> Shown:
        over = "mean share of attention from the rows of a segment (left) to the keys of another"
        tables = [ShownTable(self.over_heads(name), f"Condition {name!r}: {over}.") for name in self.conditions]
        each = f"The same per head, condition {self.conditions[-1]!r}; n: problems that have the segment that reads."
        return Shown((*tables, ShownTable(self.table(), each)))

    def _condition(self, condition: str | None) -> str:
        return self.conditions[place_of(condition or self.conditions[-1], self.conditions, "condition")]

    def _cells(self, condition: str | None) -> np.ndarray:
        """`[problem, head, dest, src]`."""
        values = np.moveaxis(self.values[self._condition(condition)], (3, 4), (1, 2))
        return np.moveaxis(of_heads(values, self.heads), 3, 1)
