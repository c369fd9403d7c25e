"""Effects cell by cell: what edges, ways of heads, sites and places of heads carry of an insertion's effect."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import numpy as np
import pandas as pd
from torch import Tensor

from ..core.arguments import check_count, count_of
from ..core.heads import Head
from ..models.base import Model
from ..patching.effect import SMALLEST_EFFECT, check_smallest_effect
from ..patching.interventions import Intervention, edit_named
from ..patching.outcomes import Outcome
from ..patching.parts import Parts
from ..patching.prepared import Prepared, prepare
from ..patching.sweep import Sweep
from ..prompts.conditions import CONTRASTS, DIRECTIONS, one_of
from ..prompts.pairs import PromptPair
from ..runtime.engines import Tick, Unit
from ..runtime.registry import savable
from ..runtime.results import Grouped, Shown, ShownTable, largest_first, tidy
from ..runtime.tables import Table
from ..statistics import CONFIDENCE
from .stream_changes import Flow, named_on, named_words

PRINTED = ("label", "k", "n", "share", "share_ci_low", "share_ci_high", "median", "effect")
"""Columns of a printed table."""
POSITION = "position "
"""What labels of positions begin with, where nothing is inserted."""
Made = TypeVar("Made", bound="CellEffects")


def of_cells(name: str) -> Any:
    """A property: what the cells of a result have under this name, each once, in their order."""
    return property(lambda self: tuple(dict.fromkeys(getattr(cell, name) for cell in self.cells)))


@savable
@dataclass(frozen=True)
class Way:
    """A way of a head's effect: `way` "direct" (straight to the logits) or "indirect" (through later parts)."""

    of: Head
    way: str

    def __str__(self) -> str:
        return f"{self.of} {self.way}"


@savable
@dataclass(frozen=True)
class Site:
    """A site of a layer at one token, or at `position` "all"; "span ..." counts the span's own tokens, "position ..." all."""

    site: str
    of_layer: int
    position: str

    def __str__(self) -> str:
        where, label = (" of the span", self.position[5:]) if self.position.startswith("span ") else ("", self.position)
        token = f"all tokens{where}" if label == "all" else f"token {label}{where}"
        token = label if label.startswith(POSITION) else token
        return f"Layer {self.of_layer} {self.site}, {token}"


@savable
@dataclass(frozen=True)
class Place:
    """A token at which a head's output is patched ("row 0"), or a part of the span that it cannot see ("span block 0")."""

    of: Head
    place: str

    def __str__(self) -> str:
        return f"{self.of} {self.place}"


@dataclass(frozen=True, eq=False, repr=False)
class CellEffects(Parts, Grouped):
    """What each cell carries: `values` `[problem, cell]`, parts of the insertion's effect `total` `[problem]`.

    Positive is with the effect; NaN where a problem has no such cell. What is claimed of a cell is in how many problems it
    carries more than the smallest effect of interest (prevalence test, Holm over all cells and both senses); means describe.
    """

    problem_ids: tuple[str, ...]
    cells: tuple[Any, ...]
    values: np.ndarray
    total: np.ndarray
    unit: str
    settings: dict[str, Any] = field(default_factory=dict)
    seed: int = 0
    confidence: float = CONFIDENCE
    smallest_effect: float = SMALLEST_EFFECT
    resolution: float = 0.0

    axes: ClassVar[tuple[tuple[str, str], ...]] = (("values", "problem cell"), ("total", "problem"))

    @property
    def per_cell(self) -> np.ndarray:
        """`values`."""
        return self.values

    @property
    def total_effect(self) -> np.ndarray:
        """`total`."""
        return self.total

    @property
    def found(self) -> tuple[Any, ...]:
        """The cells that carry more than the smallest effect in most problems."""
        return tuple(cell for cell, p in zip(self.cells, self.p_corrected, strict=True) if p < self.level)

    def _named(self) -> dict[str, list[Any]]:
        """The columns that name cells."""
        names = [each.name for each in fields(self.cells[0])]
        known = {name: [getattr(cell, name) for cell in self.cells] for name in names}
        texts = {name: [each if isinstance(each, int) else str(each) for each in known[name]] for name in names}
        return {"label": list(map(str, self.cells)), **texts}

    def table(self) -> pd.DataFrame:
        """One row per cell, in their order: label, `k` of `n` problems with more than the smallest effect in `sense`,
        `prevalence` with exact limits, `p_corrected` (Holm over cells and senses), `median` and `share` of the total with
        limits; mean `effect` and `effect_fraction`, its share of the mean total."""
        return Table({**self._named(), **self.claim_columns()})

    def to_frame(self) -> pd.DataFrame:
        """One tidy row per problem and cell."""
        named = self._named()
        table = tidy({"problem": self.problem_ids, "label": named.pop("label")}, effect=self.values)
        for at, (name, values) in enumerate(named.items(), start=2):
            table.insert(at, name, values * len(self.problem_ids))
        return Table(table)

    def details(self) -> list[str]:
        """What was measured, and which cells are shown in most problems."""
        s = self.settings
        how = [f"{s['edit']} patch"] if "edit" in s else []
        how += [f"contrast {s.get('contrast')}", str(s.get("direction")), f"outcome {s.get('outcome')}"]
        return [
            f"{self._what_words()}: {', '.join(how)}, {count_of(len(self.problem_ids), 'problem')}.",
            *self._claim_words(),
            *self._sum_words(),
            *named_words(s),
        ]

    def _what_words(self) -> str:
        raise NotImplementedError

    def _sum_words(self) -> list[str]:
        return []

    def printed(self) -> pd.DataFrame:
        """Return the cells, the largest median first."""
        return Table(largest_first(self.table(), "median")[list(PRINTED)].rename(columns={"label": self.what[0]}))

    def shown(self) -> Shown:
        """The hundred cells of the largest median."""
        table = largest_first(self.table().drop(columns=list(self._named())[1:]), "median")
        some = ", a hundred at most" if len(table) > 100 else ""
        caption = f"{self.what[1].capitalize()}, the largest first{some}. Effects are parts of the insertion's, in {self.unit}."
        return Shown((ShownTable(table.rename(columns={"label": self.what[0]}).head(100), caption),))


@dataclass(frozen=True)
class How:
    """What every analysis of cells is told about its run; `ValueError` for a wrong number."""

    checkpoint: str | Path | None
    max_rows: int | None
    smallest_effect: float
    progress: bool
    seed: int

    def __post_init__(self) -> None:
        check_smallest_effect(self.smallest_effect)
        if self.max_rows is not None:
            check_count(self.max_rows, name="max_rows")


def compared(
    model: Model,
    pairs: Iterable[PromptPair] | Prepared,
    contrast: str,
    direction: str,
    edit: str | Intervention,
    outcome: str | Outcome,
    control: Iterable[PromptPair] | None,
) -> tuple[Sweep, Prepared]:
    """The sweep of these names and its problems; with a `control`, the same problems' pairs, its tokens are the clean ones.

    `ValueError` for what does not go together.
    """
    if control is None:
        return Sweep.named(contrast, direction, edit), prepare(model, pairs, outcome)
    one_of(direction, DIRECTIONS, "direction")
    intervention = edit_named(edit, direction)
    if contrast != "content" or intervention.name != "z":
        raise ValueError("control=... is a contrast of its own and patches z: leave contrast and edit out")
    prepared, beside = (prepare(model, each, outcome) for each in (pairs, control))
    given = all(pair.given for pair in (*prepared.bare, *beside.bare))  # their ids are made of their tokens
    if len(beside.ids) != len(prepared.ids) or (beside.ids != prepared.ids and not given):
        raise ValueError(
            "control must hold the same problems in the same order: make both pairs of one list of problems"
        )
    for pair, other in zip(prepared.pairs, beside.pairs, strict=True):
        here, there = ((each.spans, each.base.ids, each.answer_ids) for each in (pair, other))
        if here != there or pair.inserted.ids == other.inserted.ids:
            why = "has the very same tokens" if here == there else f"has spans {other.spans} for {pair.spans}"
            raise ValueError(
                f"problem {pair.id!r}: a control inserts as many other tokens at the same places; it {why}"
            )
    both = zip(prepared.bare, beside.bare, strict=True)
    changed = prepare(model, [replace(pair, clean=other.inserted) for pair, other in both], prepared.outcome)
    return Sweep(CONTRASTS["replaced"], direction, intervention), replace(changed, beside=beside.insertion)


def measured(
    kind: type[Made],
    prepared: Prepared,
    sweep: Sweep,
    cells: Sequence[Any],
    changes: Callable[[Flow], Iterable[tuple[int, int, Tensor]]],
    *,
    how: How,
    label: str,
    heads: Any = None,
) -> Made:
    """Measure what each cell carries: a row of the receiving run for every change of its stream.

    `changes` of a unit's runs: the place of a cell, the stage at which its change enters the stream (none falling) and the
    change; a cell without any is NaN. `heads`: as they were asked for, to tell where they were named.
    """
    prepared = prepared.under(sweep.contrast)

    def of_unit(unit: Unit, tick: Tick) -> list[Any]:
        flow, places = Flow(prepared.runs(unit), sweep, how.max_rows), []  # type: tuple[Flow, list[int]]

        def rows() -> Iterator[tuple[int, Tensor]]:
            for place, at, change in changes(flow):
                places.append(place)
                yield at, change

        found, _ = flow.outcomes(rows(), tick)
        values = np.full((len(unit), len(cells)), np.nan)
        values[:, places] = found
        return [{"patched": patched, "ends": ends} for patched, ends in zip(values, flow.ends, strict=True)]

    found = prepared.each(
        of_unit,
        label=label,
        settings={**sweep.settings, label: list(map(str, cells))},
        checkpoint=how.checkpoint,
        progress=how.progress,
        steps=len(cells),
    )
    patched, ends = (np.array([each[name] for each in found], dtype=float) for name in ("patched", "ends"))
    sign = DIRECTIONS[sweep.direction]
    return kind(
        problem_ids=prepared.ids,
        groups=prepared.groups,
        cells=tuple(cells),
        values=sign * (patched - ends[:, :1]) + 0.0,  # no -0
        total=sign * (ends[:, 1] - ends[:, 0]) + 0.0,
        unit=prepared.outcome.unit,
        settings=made_with(prepared, sweep, heads),
        seed=how.seed,
        smallest_effect=how.smallest_effect,
        resolution=prepared.model.resolution,
    )


def made_with(prepared: Prepared, sweep: Sweep, heads: Any = None) -> dict[str, Any]:
    """The settings of a result: how runs were patched, on which problems and model, and where the heads were named."""
    return {**sweep.settings, **prepared.settings, **named_on(heads, prepared.ids)}
