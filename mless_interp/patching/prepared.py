"""Problems made ready once for everything that edits or reads their runs: checked, answered, grouped, run on demand."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..core.arguments import Arguments
from ..models.base import Model
from ..models.info import Inputs, Recording
from ..prompts.conditions import CONDITIONS, Contrast, Hidden, span_from_span
from ..prompts.pairs import REPLACED, PromptPair, digest_of, over_pairs, own_pairs
from ..prompts.problems import distinct, groups_of
from ..prompts.prompt import MAX_UNKNOWN
from ..runtime.base_result import Result
from ..runtime.code_digests import codes_of
from ..runtime.loop import RunOptions
from ..runtime.workers import Compute, Unit
from ..statistics import CONFIDENCE
from .outcomes import Outcome, outcome_named

Settings = dict[str, Any]  # what a result or a checkpoint was made with, by name
PER_UNIT = 8  # problems of equal geometry that share a batch, at most


@dataclass(frozen=True, eq=False, repr=False)
class Measured(Result):
    """What results of problems have in common; up to differences of `resolution` the model resolves nothing."""

    problem_ids: tuple[str, ...]
    seed: int = field(default=0, kw_only=True)
    confidence: float = field(default=CONFIDENCE, kw_only=True)
    resolution: float = field(default=0.0, kw_only=True)

    @property
    def level(self) -> float:
        return 1 - self.confidence


@dataclass(frozen=True, eq=False)
class Prepared:
    """Problems ready for a model and an outcome: `bare` pairs, and `pairs` with what the outcome appends. `units` of equal
    geometry share a batch; planned from the whole list, so that nothing else decides numbers. `beside`: the insertion whose
    tokens are the clean ones, in words."""

    model: Model
    outcome: Outcome
    bare: tuple[PromptPair, ...]
    pairs: tuple[PromptPair, ...]
    units: tuple[Unit, ...]
    beside: str = ""

    @property
    def ids(self) -> tuple[str, ...]:
        return tuple(pair.id for pair in self.bare)

    @property
    def groups(self) -> tuple[str, ...]:
        return groups_of(pair.problem for pair in self.bare)

    @property
    def n_groups(self) -> int:
        """How many problems there are, variants of one another counted once."""
        return len(set(self.groups)) or len(self.ids)

    @property
    def insertion(self) -> str:
        return self.bare[0].insertion.label

    @property
    def settings(self) -> Settings:
        made: Settings = {"outcome": self.outcome.name, "insertion": self.insertion}
        if self.beside:
            made["beside"] = self.beside
        return made | codes_of(self.outcome) | self.model.identity | {"prompts": digest_of(self.pairs)}

    def fields(self, settings: Settings) -> Arguments:
        """Make the fields that every result of these problems has, made with these settings."""
        found = {"problem_ids": self.ids, "groups": self.groups, "unit": self.outcome.unit}
        return {**found, "settings": {**settings, **self.settings}, "resolution": self.model.resolution}

    def under(self, contrast: Contrast) -> "Prepared":
        """Take the problems as a contrast compares them; `ValueError` for those that it cannot compare."""
        for pair in self.bare:
            contrast.start(pair, contrast.conditions[1])
        for pair in self.pairs if contrast.changes_from == "after" else ():
            if len(pair.inserted) - min(self.outcome.reads(pair)) < pair.spans[-1][1]:
                why = f"contrast {contrast.name!r} compares what follows the span, and {pair.id!r} is read at an inserted token"
                raise ValueError(f'{why}: insert before="question", or give an answer_prefix')
        narrow = min((window for window in self.model.info.windows if window is not None), default=math.inf)
        for pair in self.bare if contrast.conditions[0].hides is span_from_span else ():
            if (longest := max(stop - first for first, stop in pair.spans)) >= narrow:
                why = f"the last of {longest} inserted tokens of problem {pair.id!r} would see nothing in a window of {narrow}"
                raise ValueError(f"contrast {contrast.name!r} hides the span from itself, and {why}: insert fewer")
        if contrast.changes_from != "tokens" or self.beside or not all(pair.given for pair in self.bare):
            return self
        return replace(self, bare=tuple(replace(pair, insertion=REPLACED) for pair in self.bare))

    def halves(self) -> "tuple[Prepared, Prepared]":
        """Take every second problem and the others; groups stay whole."""
        names = self.groups or self.ids
        second = np.isin(names, list(dict.fromkeys(names))[1::2])
        return self.only(np.flatnonzero(~second).tolist()), self.only(np.flatnonzero(second).tolist())

    def only(self, places: Sequence[int]) -> "Prepared":
        bare, pairs = (tuple(each[at] for at in places) for each in (self.bare, self.pairs))
        return replace(self, bare=bare, pairs=pairs, units=units_of(pairs, self.outcome))

    def runs(self, unit: Unit) -> "Runs":
        return Runs(self.model, self.outcome, [self.pairs[at] for at in unit])

    def each(
        self,
        compute: Compute,
        *,
        label: str,
        settings: Settings,
        steps: int = 1,
        alone: bool = False,
        options: RunOptions = RunOptions(),
    ) -> list[Any]:
        """Call `over_pairs` for these: in their units, or every problem `alone`."""
        how: Arguments = {"label": label, "settings": {**settings, **self.settings}, "options": options}
        return over_pairs(self.model, self.pairs, compute, units=None if alone else self.units, steps=steps, **how)


def prepare(
    model: Model,
    pairs: "Iterable[PromptPair] | Prepared",
    outcome: str | Outcome = "answer_logprob",
    *,
    signed_for: str = "",
) -> Prepared:
    """Check the pairs and append their answers. `signed_for` names what needs an outcome with a sign."""
    read = outcome_named(outcome, signed_for=signed_for)
    if isinstance(pairs, Prepared):
        if pairs.model is not model or pairs.outcome != read:
            here, there = f"{read.name!r} on {model.info.name}", f"{pairs.outcome.name!r} on {pairs.model.info.name}"
            raise ValueError(f"these problems were prepared for outcome {there}, not for {here}: prepare them anew")
        return pairs
    bare = own_pairs(model, fit_pairs(pairs))
    unknown = getattr(model.tokenizer, "unk_token_id", None)
    for pair in bare if read.appended == "solution" else ():
        if (share := pair.solution_ids.count(unknown) / max(len(pair.solution_ids), 1)) > MAX_UNKNOWN:
            raise ValueError(
                f"problem {pair.id!r}: {100 * share:.3g} % of its solution's tokens are the unknown token of this "
                "tokenizer: leave it out, or use outcome='answer_logprob'"
            )
    read.check(bare)
    answered = tuple(read.asked(pair, model.info) for pair in bare)
    model.reach(max(len(pair.inserted) for pair in answered))
    return Prepared(model, read, bare, answered, units_of(answered, read))


def fit_pairs(pairs: Iterable[PromptPair], *, what: str = "patch") -> tuple[PromptPair, ...]:
    """Check that pairs are fit for comparing runs with and without the span; `ValueError` with the reason and the count."""
    found = tuple(pairs)
    if not found:
        raise ValueError(f"there are no prompt pairs to {what}")
    if merged := sum(pair.boundary_merge for pair in found):
        why = "merged tokens at the border of a text-level insertion, so their positions cannot be aligned"
        raise ValueError(f'{merged} of {len(found)} pairs {why}: make them with template="raw" for patching')
    # what follows the insertion: the prompt's tokens and, where it is bare, the answer's
    if empty := [pair.id for pair in found if not (pair.n_after or pair.answer_prefix_ids or pair.answer_ids)]:
        why = f"have no tokens after the insertion, nor an answer (first: {empty[0]!r}), so nothing can change there"
        raise ValueError(f'{len(empty)} of {len(found)} pairs {why}: insert before="question"')
    distinct(pair.problem for pair in found)
    return found


def units_of(pairs: Sequence[PromptPair], outcome: Outcome) -> tuple[Unit, ...]:
    """Put problems of the same geometry that are read at the same places together, at most `PER_UNIT`, in order."""
    alike: dict[tuple[object, ...], list[int]] = {}
    for at, pair in enumerate(pairs):
        change = None if pair.clean is None else pair.first_change
        key = (len(pair.base), pair.spans, pair.n_answer, tuple(outcome.reads(pair)), change)
        alike.setdefault(key, []).append(at)
    every = ((members, first) for members in alike.values() for first in range(0, len(members), PER_UNIT))
    return tuple(tuple(members[first : first + PER_UNIT]) for members, first in every)


class Runs:
    """The runs of problems of equal geometry: each condition is run once, when first asked for. Short-lived."""

    def __init__(self, model: Model, outcome: Outcome, pairs: Sequence[PromptPair]) -> None:
        self.model, self.outcome, self.pairs = model, outcome, list(pairs)
        self.first = self.pairs[0]  # as good as any: all have the same geometry
        self._recorded: dict[tuple[str, int], Recording] = {}

    def length(self, condition: str) -> int:
        return len(self.first.inserted if CONDITIONS[condition].has_span else self.first.base)

    def inputs(self, condition: str) -> Inputs:
        return Inputs.stacked([pair.condition(condition) for pair in self.pairs])

    def read(self, condition: str) -> list[int]:
        return [self.length(condition) - back for back in self.outcome.reads(self.first)]

    def cut(self, contrast: Contrast) -> Hidden:
        """Find from which rows a knockout cuts off which keys, `[b, token]` each; nothing where the contrast cuts nothing."""
        if not contrast.cuts:
            nothing = torch.zeros(len(self.pairs), self.length(contrast.corrupted), dtype=torch.bool)
            return Hidden(nothing, nothing)
        found = [contrast.cut(pair.inserted) for pair in self.pairs]
        return Hidden(*(torch.stack(parts) for parts in zip(*found, strict=True)))

    def start(self, contrast: Contrast, condition: str) -> int:
        """Find the first row of a condition's run that can differ in a contrast, or that the outcome reads."""
        return min(contrast.start(self.first, CONDITIONS[condition]), *self.read(condition))

    def recording(self, condition: str, start: int) -> Recording:
        """Record the condition's run: what a replay of its rows from `start` on needs, and the outcome's logits."""
        if (key := (condition, start)) not in self._recorded:
            inputs, read = self.inputs(condition), self.read(condition)
            self._recorded[key] = self.model.record(inputs, start=start, logits_at=read)
        return self._recorded[key]

    def outcomes(self, logits: Tensor | None, *, clean: Tensor | None = None) -> np.ndarray:
        """Read outcomes `[problem, row]` of logits `[problem x row, read, vocab]`; `clean`: those of the clean runs."""
        assert logits is not None
        return self.values(logits, clean).double().cpu().numpy()

    def values(self, logits: Tensor, clean: Tensor | None) -> Tensor:
        """Read the same with their graph."""
        rows, found = logits.unflatten(0, (len(self.pairs), -1)), []
        for at, pair in enumerate(self.pairs):
            reference = clean[at : at + 1].to(logits.device) if self.outcome.needs_clean and clean is not None else None
            found.append(self.outcome.read(rows[at], pair, reference))
        return torch.stack(found)


class Gated:
    """The corrupted run of a contrast, continued under gates on what its heads may see; short-lived."""

    def __init__(self, runs: Runs, contrast: Contrast) -> None:
        self.runs, self.model, self.contrast = runs, runs.model, contrast
        run, start = contrast.corrupted, runs.start(contrast, contrast.corrupted)
        read, length = runs.read(run), runs.length(run)
        self.recording = self.model.record(runs.inputs(run), start=start)
        device = self.recording.z[0].device
        self.rows, self.span = (each.to(device) for each in runs.cut(contrast))
        self.sizes = {"changed": length - start, "length": length, "read": len(read)}
        assert self.model.stepper is not None  # asked for before anything ran
        self.tail = partial(self.model.stepper.tail, self.recording, torch.tensor(read, device=device) - start)


def single(compute: Callable[[int], object]) -> Compute:
    """Make a computation of one problem at a time, as the loop wants it."""
    return lambda unit, tick: [compute(at) for at in unit]
