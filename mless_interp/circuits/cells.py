"""Effects cell by cell: what a part of a model changes in the residual stream, and what those that may see it make of it."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Generic, TypeVar

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from ..core.arguments import count_of
from ..core.heads import Head
from ..models.attention_math import mix_values, pattern_of
from ..models.base import Model
from ..models.info import ModelError, Recording
from ..models.replay import Layers
from ..patching.effect import SMALLEST_EFFECT, Parts
from ..patching.outcomes import Outcome
from ..patching.prepared import Prepared, Runs, prepare
from ..patching.sweep import Engine, Sweep
from ..prompts.conditions import DIRECTIONS
from ..prompts.pairs import PromptPair
from ..runtime.base_result import Shown, ShownTable, largest_first
from ..runtime.columns import columns_of
from ..runtime.loop import RunOptions
from ..runtime.workers import Tick, Unit
from .located import LocatedHeads

Asked = LocatedHeads | Iterable[Head | str]
"""Heads as they are asked for: what `locate_heads` gave (its named heads), or a list."""
Cell = TypeVar("Cell")  # what effects are split into: an edge, a way, a site, a place, or a name


class Cells(Parts, Generic[Cell]):
    """Tables and sentences of effects `per_cell` `[problem, cell]` of a result's `cells`."""

    cells: tuple[Cell, ...]

    @property
    def found(self) -> tuple[Cell, ...]:
        """The cells that carry more than the smallest effect in most problems."""
        return tuple(cell for cell, p in zip(self.cells, self.p_corrected, strict=True) if p < self.level)

    def _named(self) -> dict[str, list[str | int]]:
        """Return the columns that name cells: the label, then what the label consists of."""
        rows = pd.DataFrame([{"label": cell} | getattr(cell, "__dict__", {}) for cell in self.cells])
        return rows.map(lambda part: part if isinstance(part, int) else str(part)).to_dict("list")

    def table(self) -> pd.DataFrame:
        """Return a row per cell: `k` of `n` problems with more than the smallest effect in `sense`, `prevalence`, `p_corrected`
        (Holm over cells and senses), `median` and `share` of the total; means describe."""
        return pd.DataFrame({**self._named(), **self.claim_columns()})

    def to_frame(self) -> pd.DataFrame:
        named = {name: each * len(self.problem_ids) for name, each in self._named().items()}
        problems = np.repeat(self.problem_ids, len(self.cells))
        return pd.DataFrame({"problem": problems, **named, "effect": self.per_cell.ravel()})

    def details(self) -> list[str]:
        s = self.settings
        how = [f"{name} {s[name]}" for name in ("edit", "contrast", "direction", "outcome") if name in s]
        cells = count_of(len(self.cells), *self.what)
        return [f"{cells}, {self.counted}: {', '.join(how)}.", *self._claim_words(), *named_words(s)]

    def printed(self) -> pd.DataFrame:
        columns = "label k n share share_ci_low share_ci_high median effect".split()
        return largest_first(self.table(), "median")[columns].rename(columns={"label": self.what[0]})

    def shown(self) -> Shown:
        table = largest_first(self.table().drop(columns=list(self._named())[1:]), "median")
        some = ", a hundred at most" if len(table) > 100 else ""
        caption = f"{self.what[1].capitalize()}, the largest first{some}. Effects are parts of the insertion's, in {self.unit}."
        return Shown((ShownTable(table.rename(columns={"label": self.what[0]}).head(100), caption),))


@dataclass(frozen=True, eq=False, repr=False)
class CellEffects(Cells[Cell]):
    """What each cell carries: `values` `[problem, cell]`, parts of the insertion's effect `total` `[problem]`; NaN where a
    problem has no such cell. `dataclasses.replace(found, smallest_effect=0.1)` tests against another effect of interest."""

    cells: tuple[Cell, ...]
    values: np.ndarray
    total: np.ndarray
    unit: str
    smallest_effect: float = SMALLEST_EFFECT

    columns = columns_of("""
        of | of | | the head whose output acts
    """)


def of_cells(name: str) -> property:
    """Return a property: what the cells of a result have under this name, each once, in their order."""
    return property(lambda self: tuple(dict.fromkeys(getattr(cell, name) for cell in self.cells)))


def need_weights(model: Model, layers: Iterable[int], what: str) -> None:
    """Raise `ModelError` unless the weights tell what single heads of these layers write, before anything runs."""
    model.need_layers(what)
    if model.quantised:
        raise ModelError(f"{what} reads weights, which are quantised ({model.quantised}): load bfloat16 or float32")
    for layer in set(layers):
        model.attention_output(layer)


def heads_of(model: Model, heads: Asked | None, what: str, **asked: str | Outcome) -> tuple[Head, ...]:
    """Return the heads asked for (None: all), or those that locating named under the contrast and outcome that are `asked`."""
    if isinstance(heads, LocatedHeads):
        if not heads.found:
            raise ValueError(f"locating named no head, so there is none to {what}: give heads=[...]")
        check_question(heads, **asked)
        heads = tuple(heads.found)
    return model.info.chosen(heads, what=what)


def check_question(located: LocatedHeads, **asked: str | Outcome) -> None:
    """Raise `ValueError` where heads were located under another contrast or outcome than they are asked about."""
    for name, value in asked.items():
        here = getattr(value, "name", value)
        if (there := ({"contrast": "content"} | located.settings).get(name, here)) != here:
            where = f"these heads were located with {name}={there!r}, and {here!r} is asked"
            raise ValueError(f"{where}: if that is meant, give them as heads=list(found.found)")


def has_mlps(model: Model) -> bool:
    return not getattr(model.config, "attn_only", False)


def named_on(heads: object, problem_ids: Sequence[str]) -> dict[str, int]:
    """Return, for settings, how many of these problems the heads were named on."""
    if not isinstance(heads, LocatedHeads):
        return {}
    return {"named_on_these": len(set(problem_ids) & set(heads.problem_ids))}


def named_words(settings: Mapping[str, object]) -> list[str]:
    """Say beside which control the insertion stood, and that the heads were named on the same problems."""
    words = {
        "beside": "Effects are those beside another insertion of as many tokens: {}.",
        "named_on_these": "The heads were named on {} of these problems: whether they act was asked there, how is asked here.",
    }
    return [text.format(settings[name]) for name, text in words.items() if settings.get(name)]


class Flow(Engine):
    """The receiving run continued from changes of its stream, and what parts of the model make of such changes."""

    of_heads = False

    def __init__(self, runs: Runs, sweep: Sweep) -> None:
        super().__init__(runs, sweep)
        self.stepper = runs.model.need_layers("this")
        self.layers = self.stepper.layers
        self.output = cache(self.model.attention_output)  # how a layer writes what its heads give

    # Each of these is a change of the receiving run's stream, `[problem, changed, d_model]`.

    def head_writes(self, head: Head) -> Tensor:
        """Return what the sweep's edit of one head adds where the head writes."""
        z = self.receiving.z[head.layer]
        change = self._put(z[:, :, head.head], self.new_z(head.layer)[:, :, head.head])
        return self.output(head.layer).change(z, head.head, change)

    def part_writes(self, layer: int, part: str) -> Tensor:
        """Return what the donor has more than the receiving run: in a layer's input or output, or of what a part of it adds."""
        there, here = (self._part(run, layer, part) for run in (self.donor, self.receiving))
        return self._put(here, there[:, self.there.to(there.device)])

    def _put(self, old: Tensor, new: Tensor) -> Tensor:
        """Return what changes where `new` takes its place among the receiving run's rows; 0 in rows that the donor lacks."""
        change, at = torch.zeros_like(old), self.here.to(old.device)
        change[:, at] = new.to(old) - old[:, at]
        return change

    def _part(self, run: Recording, layer: int, part: str) -> Tensor:
        if part in ("input", "output"):
            return self.stepper.stream(run, 2 * layer + 2 * (part == "output"))
        if part == "attention":
            return self.layers.attention_out(layer, run.z[layer])
        return self._mlp(layer, self.stepper.stream(run, mlp_reads(self.layers, layer)))

    def _mlp(self, layer: int, resid: Tensor) -> Tensor:
        """Return what a layer's MLP adds, of a stream that may be finer than what it reads."""
        return self.layers.mlp_out(layer, resid.to(self.receiving.z[layer].dtype))

    def mlp_answers(self, layer: int, change: Tensor) -> Tensor:
        """Return what a layer's MLP adds more where `change` is added to its input alone."""
        base = self.kept("mlp input", layer, lambda: self.stepper.stream(self.receiving, mlp_reads(self.layers, layer)))
        old = self.kept("mlp", layer, lambda: self._mlp(layer, base))
        change = change.to(base)
        return torch.where(_touched(change), self._mlp(layer, base + change) - old, 0)

    def head_answers(self, head: Head, change: Tensor, inputs: str, *, sender: object) -> Tensor:
        """Return what a head writes more where `change` is added to what its own q, k or v (`inputs`) is made of; `sender`
        names the change, of which the projections are kept."""
        layer, at = head.layer, head.head
        q, k, v = self.kept("projected", (layer, sender), lambda: self._projected(layer, change))
        run, rule = self.receiving, self.layers.rule(layer).of(at)
        group = at // (self.model.info.n_heads // self.model.info.n_key_value_heads)
        own, shared = slice(at, at + 1), slice(group, group + 1)
        old = run.q[layer][:, :, own], run.k[layer][:, :, shared], run.v[layer][:, :, shared]
        new = q[:, :, own], k[:, :, shared], v[:, :, shared]
        mixed = [fresh if name in inputs else was for name, fresh, was in zip("qkv", new, old, strict=True)]
        mask = run.masks[layer].to(q.device)
        mask = mask if mask.shape[1] == 1 else mask[:, own]

        def attended(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return mix_values(pattern_of(q, k, mask, rule), v)

        before = self.kept("attended", head, lambda: attended(*old))
        return self.output(layer).change(run.z[layer], at, (attended(*mixed) - before)[:, :, 0])

    def _projected(self, layer: int, change: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return q of the changed rows, k and v of all, where `change` is added to the layer's input."""
        run, start = self.receiving, self.receiving.start
        resid, positions = run.resid_pre[layer], run.inputs.positions[:, start:]
        project = lambda x: self.layers.project(layer, x, positions)  # noqa: E731
        old = self.kept("unchanged", layer, lambda: project(resid))
        new = project(resid + change.to(resid))
        touched = _touched(change)[..., None].to(resid.device)
        q, *more = (torch.where(touched, after - before, 0) for after, before in zip(new, old, strict=True))
        k, v = (
            torch.cat([x[:, :start], x[:, start:] + change], 1)
            for x, change in zip((run.k[layer], run.v[layer]), more, strict=True)
        )
        return run.q[layer] + q, k, v


def mlp_reads(layers: Layers, layer: int) -> int:
    """Return the stage of the stream that a layer's MLP reads: before its attention if the two are parallel, else after."""
    return 2 * layer + (0 if layers.parallel(layer) else 1)


def _touched(change: Tensor) -> Tensor:
    return change.ne(0).any(-1, keepdim=True)


def compared(
    model: Model,
    pairs: Iterable[PromptPair] | Prepared,
    contrast: str,
    direction: str,
    outcome: str | Outcome,
    control: Iterable[PromptPair] | None,
) -> tuple[Prepared, Sweep]:
    """Return problems and a sweep of z; the tokens of a `control`, the same problems' pairs, are the clean ones."""
    prepared = prepare(model, pairs, outcome)
    if control is None:
        return prepared, Sweep.named(contrast, direction)
    if contrast != "content":
        raise ValueError("control=... is a contrast of its own: leave contrast out")
    beside = prepare(model, control, outcome)
    given = all(pair.given for pair in (*prepared.bare, *beside.bare))  # their ids are made of their tokens
    if len(beside.ids) != len(prepared.ids) or (beside.ids != prepared.ids and not given):
        raise ValueError("control must hold the same problems in the same order: make both of one list of problems")
    for pair, other in zip(prepared.pairs, beside.pairs, strict=True):
        here, there = ((each.spans, each.base.ids, each.answer_ids) for each in (pair, other))
        if here != there or pair.inserted.ids == other.inserted.ids:
            why = "has the very same tokens" if here == there else f"has spans {other.spans} for {pair.spans}"
            raise ValueError(f"{pair.id!r}: a control inserts as many other tokens at the same places; it {why}")
    both = zip(prepared.bare, beside.bare, strict=True)
    changed = prepare(model, [replace(pair, clean=other.inserted) for pair, other in both], prepared.outcome)
    return replace(changed, beside=beside.insertion), Sweep.named("replaced", direction)


Made = TypeVar("Made", bound=CellEffects)


def measure_cells(
    kind: type[Made],
    cells: Sequence[Cell],
    changes: Callable[[Flow], Iterable[tuple[int, int, Tensor]]],
    problems: tuple[Prepared, Sweep],
    options: RunOptions,
    *,
    label: str,
    heads: object = None,
) -> Made:
    """Measure what each cell carries: a row of the receiving run for every change of its stream. `changes` yields the place of
    a cell, the stage at which its change enters the stream (none falling) and the change; a cell without any is NaN."""
    prepared, sweep = problems
    prepared = prepared.under(sweep.contrast)

    def of_unit(unit: Unit, tick: Tick) -> list[dict[str, np.ndarray]]:
        flow, places = Flow(prepared.runs(unit), sweep), []  # type: tuple[Flow, list[int]]

        def rows() -> Iterator[tuple[int, Tensor]]:
            for place, at, change in changes(flow):
                places.append(place)
                yield at, change

        found, _ = flow.outcomes(rows(), tick)
        values = np.full((len(unit), len(cells)), np.nan)
        values[:, places] = found
        return [{"patched": patched, "ends": ends} for patched, ends in zip(values, flow.ends, strict=True)]

    settings = {**sweep.settings, label: list(map(str, cells))}
    found = prepared.each(of_unit, label=label, settings=settings, options=options, steps=len(cells))
    patched, ends = (np.array([each[name] for each in found], dtype=float) for name in ("patched", "ends"))
    sign = DIRECTIONS[sweep.direction]
    made = prepared.fields({**sweep.settings, **named_on(heads, prepared.ids)})
    made |= {"values": sign * (patched - ends[:, :1]) + 0.0, "total": sign * (ends[:, 1] - ends[:, 0]) + 0.0}  # no -0
    return kind(cells=tuple(cells), **made)
