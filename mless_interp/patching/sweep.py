"""Exact sweeps: patch one head at a time, every head, and see what the outcome does."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import chain, islice
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from ..core.arguments import Arguments, checked, count_of, one_of
from ..core.heads import Head
from ..models.base import Model
from ..models.info import Recording
from ..models.memory import halved, rows_per_pass, rows_per_request
from ..models.traced_ops import is_half
from ..prompts.conditions import CONTRASTS, DIRECTIONS, Contrast
from ..prompts.pairs import PromptPair
from ..runtime import base_result as results
from ..runtime.base_result import Quantity, Shown, ShownTable, head_columns, of_heads, rows_per_head
from ..runtime.code_digests import codes_of
from ..runtime.columns import columns_of
from ..runtime.loop import RunOptions
from ..runtime.workers import Tick, Unit
from ..statistics import defined_mean
from .effect import SMALLEST_EFFECT, WHOLE, Parts, check_smallest_effect
from .interventions import INTERVENTIONS, KNOCKOUTS, Intervention, LayerState, MatchedMassKnockout, PatchZ
from .outcomes import Outcome
from .prepared import Prepared, Runs, Settings, prepare

Kept = TypeVar("Kept")
POSITIONS = ("question", "last", "all")
Row = tuple[int, Tensor | None]
"""Where a row joins a pass (the layer of head outputs, the stage of a change of the stream), and what is put there; None:
nothing is edited."""


@checked
def patch_heads(
    model: Model,
    pairs: Iterable[PromptPair] | Prepared,
    *,
    contrast: str = "content",
    direction: str = "denoising",
    edit: str | Intervention = "z",
    outcome: str | Outcome = "answer_logprob",
    heads: Iterable[Head | str] | None = None,
    positions: str = "question",
    checkpoint: str | Path | None = None,
    max_rows: int | None = None,
    smallest_effect: float = SMALLEST_EFFECT,
    progress: bool = True,
    seed: int = 0,
) -> "PatchScores":
    """Patch every head (or `heads`), one at a time, exactly.

    contrast : a clean and a corrupted run (`CONTRASTS`): "content" (masked C3 -> inserted C1), "shift" (base C0 -> gap C2),
        "total" (base C0 -> inserted C1), "held" (base C0 -> held C4), "presence" (masked C3 -> blind C5), "computed" (blind C5
        -> inserted C1: what the span has read of the question), ...
    direction : "denoising" patches the clean run's activation into the corrupted run, "noising" the reverse.
    edit : "z" (the donor's head output), "knockout" (denoising: the head cannot see the span, renormalised; noising: this head
        alone sees it; under "computed" the question is cut from the span's rows), another of `INTERVENTIONS`, or an object.
    outcome : "answer_logprob", "answer_prob" (bounded: no tails), "solution_logprob", "logit_diff", "kl" (from the clean run,
        over the question), "kl_last".
    heads : zero-based `Head`s; default all.
    positions : where z is edited: "question" (everything after the insertion point but inserted tokens, under "computed" these
        too), "last" (from the position that predicts the answer on), or "all" (of equal length).
    checkpoint : a file that keeps each finished problem; started again with the same settings the run goes on there.
    max_rows : rows of one batch at most (default: sized to memory).
    smallest_effect : as a share of the median total effect's upper limit.
    Source: Heimersheim & Nanda (2404.15255), methods §6; each value equals one whole forward pass with that edit.
    """
    options = RunOptions(checkpoint, progress, seed, max_rows)
    check_smallest_effect(smallest_effect)
    edit = MatchedMassKnockout(seed) if edit == "matched_mass" else edit
    sweep, prepared = Sweep.named(contrast, direction, edit, positions), prepare(model, pairs, outcome)
    found = sweep_heads(prepared, {"patch": sweep}, model.info.chosen(heads, what="patch"), options=options)
    return replace(found["patch"], smallest_effect=smallest_effect)


@dataclass(frozen=True)
class Sweep:
    """What is swept: two conditions, a direction, an edit, positions."""

    contrast: Contrast
    direction: str
    intervention: Intervention
    positions: str = "question"

    @classmethod
    def named(
        cls,
        contrast: str = "content",
        direction: str = "denoising",
        edit: str | Intervention = "z",
        positions: str = "question",
    ) -> "Sweep":
        found = one_of(contrast, CONTRASTS, "contrast")
        one_of(direction, DIRECTIONS, "direction")
        one_of(positions, POSITIONS, "positions")
        known = INTERVENTIONS | {"knockout": KNOCKOUTS[direction]}
        intervention = one_of(edit, known, "edit") if isinstance(edit, str) else edit
        if intervention.needs_span and not found.cuts:
            why = "changes which tokens a head sees, so it needs contrast='content', 'computed' or 'inside'"
            raise ValueError(f"edit {getattr(edit, 'name', edit)!r} {why}, got {contrast!r}")
        if intervention.acts_in not in ("", direction):
            other = f"use direction={intervention.acts_in!r}"
            raise ValueError(f"edit {intervention.name!r} changes nothing with direction={direction!r}: {other}")
        if (intervention.needs_equal_length or positions == "all") and not found.equal_length:
            why = "joins two lengths, so q, k or v cannot be patched, nor all positions"
            raise ValueError(f"contrast {contrast!r} {why}: use 'content', 'shift' or 'replaced'")
        return cls(found, direction, intervention, positions)

    @property
    def conditions(self) -> tuple[str, str]:
        """The condition that gives the activations, and the one that is patched."""
        clean, corrupted = self.contrast.clean, self.contrast.corrupted
        return (clean, corrupted) if self.direction == "denoising" else (corrupted, clean)

    def start(self, runs: Runs, condition: str) -> int:
        if self.positions == "question":
            return runs.start(self.contrast, condition)
        # from the row that predicts the answer on; an outcome may read earlier rows, or later ones alone
        back = max(runs.first.n_answer + 1, *runs.outcome.reads(runs.first))
        return runs.length(condition) - back if self.positions == "last" else 0

    def edited(self, runs: Runs, donor: Recording, receiving: Recording) -> tuple[Tensor, Tensor]:
        """Find where activations are replaced, and by which of the donor's, among the rows that were recorded of each run."""
        pair, device = runs.first, receiving.z[0].device
        start = receiving.n_tokens - pair.n_answer - 1 if self.positions == "last" else receiving.start
        if not self.contrast.equal_length:  # only what both prompts have crosses
            base = torch.arange(len(pair.base))
            here, there = (pair.shared, base) if self.direction == "denoising" else (base, pair.shared)
            both = (here >= start) & (there >= donor.start)
            return (here[both] - receiving.start).to(device), (there[both] - donor.start).to(device)
        rows = torch.arange(start, receiving.n_tokens)
        has_span = self.contrast.conditions[0].has_span
        if self.positions == "question" and self.contrast.changes_from == "after" and has_span:
            # later blocks keep what they hold: the donor's may have read what it should not
            rows = rows[~pair.span_mask[rows]]
        at = (rows - receiving.start).to(device)
        return at, at

    def enters_as(self, other: "Sweep") -> bool:
        """Tell whether its edits in layer 0 are those of the other, of knockouts (methods §3, I7 and I14)."""
        knockouts = replace(self, intervention=KNOCKOUTS[self.direction])
        return bool(self.contrast.cuts) and self.intervention == PatchZ() and other == knockouts

    @property
    def settings(self) -> Settings:
        named = {"contrast": self.contrast.name, "direction": self.direction, "edit": self.intervention.label}
        return {**named, "positions": self.positions} | codes_of(self.intervention)


def sweep_heads(
    prepared: Prepared, sweeps: Mapping[str, Sweep], heads: Sequence[Head], *, options: RunOptions = RunOptions()
) -> "dict[str, PatchScores]":
    """Make several sweeps of the same heads and problems, by name; what they share is made once."""
    chosen, labels = tuple(heads), list(map(str, heads))
    for sweep in sweeps.values():
        prepared = prepared.under(sweep.contrast)
    knockouts = {name: other for name in sweeps for other in sweeps if sweeps[name].enters_as(sweeps[other])}

    def of_unit(unit: Unit, tick: Tick) -> list[dict[str, dict[str, np.ndarray]]]:
        runs = prepared.runs(unit)
        done: dict[str, dict[str, np.ndarray]] = {}
        for name in sorted(sweeps, key=knockouts.__contains__):  # what others enter as comes first
            first = done[knockouts[name]] if name in knockouts else None
            done[name] = _swept(Engine(runs, sweeps[name], options.max_rows), chosen, tick, first=first)
        return [
            {name: {key: values[place] for key, values in arrays.items()} for name, arrays in done.items()}
            for place in range(len(unit))
        ]

    settings: Settings = {"sweeps": {name: sweep.settings for name, sweep in sweeps.items()}, "heads": labels}
    settings |= {"noise": "one unedited row per layer", "layer 0 by": knockouts}
    label = f"patching {count_of(len(chosen), 'head')} ({prepared.insertion})"
    found = prepared.each(of_unit, label=label, settings=settings, options=options, steps=len(chosen) * len(sweeps))
    made = {}
    for name, arrays in results.stacked(found, sweeps).items():
        swept: Arguments = {**arrays, "heads": chosen, "seed": options.seed, "direction": sweeps[name].direction}
        made[name] = PatchScores(**swept, **prepared.fields({**sweeps[name].settings, "heads": labels}))
    return made


class Engine:
    """Two runs of one unit, and the receiving one continued from edits of heads or of its stream. Short-lived."""

    of_heads = True
    """Whether edits are head outputs of a layer; else changes of the stream."""

    def __init__(self, runs: Runs, sweep: Sweep, max_rows: int | None = None) -> None:
        self.runs, self.sweep, self.model = runs, sweep, runs.model
        clean = sweep.contrast.clean
        self.donor, run = (runs.recording(name, sweep.start(runs, name)) for name in sweep.conditions)
        self.receiving, self._clean = run, (self.donor if sweep.conditions[0] == clean else run).logits
        self.here, self.there = sweep.edited(runs, self.donor, run)
        self.read, self.n_changed = runs.read(sweep.conditions[1]), run.n_tokens - run.start
        sizes = {"batch": len(runs.pairs), "changed": self.n_changed, "length": run.n_tokens}
        if self.model.remote:
            most = rows_per_request(self.model.info, **sizes)
        else:
            most = rows_per_pass(self.model.info, **sizes, read=len(self.read), devices=self.model.devices)
        self.rows = max_rows or most
        self._kept: dict[str, tuple[object, Any]] = {}

    @cached_property
    def ends(self) -> np.ndarray:
        """Outcomes `[problem, (receiving, donor)]`."""
        both = (self.receiving, self.donor)
        return np.stack([self.runs.outcomes(run.logits, clean=self._clean)[:, 0] for run in both], -1)

    def kept(self, what: str, key: object, make: Callable[[], Kept]) -> Kept:
        """Make once what is asked for several times in a row with one key."""
        if what not in self._kept or self._kept[what][0] != key:
            self._kept[what] = (key, make())
        return self._kept[what][1]

    def new_z(self, layer: int) -> Tensor:
        """Make a layer's new z at the edited rows, `[problem, edited, head, d_head]`, each head as if the only one edited."""
        intervention = self.sweep.intervention

        @torch.no_grad()
        def made() -> Tensor:
            z = self.donor.z[layer]
            if intervention == PatchZ():  # also where a backend shows no queries and keys
                return z[:, self.there.to(z.device)]
            rows, keys = self.runs.cut(self.sweep.contrast)
            state_of = partial(LayerState.of, self.model, layer=layer, span=keys, rows=rows)
            source = state_of(self.donor) if intervention.needs_donor else None
            state = replace(state_of(self.receiving), donor=source, names=tuple(pair.id for pair in self.runs.pairs))
            return intervention.edited(state)[:, self.here.to(z.device)]

        return self.kept("z", layer, made)

    def head_edit(self, head: Head) -> Row:
        """Make the edit of one head: its layer, and the receiving run's z there with the head's own replaced."""
        z = self.receiving.z[head.layer].clone()
        z[:, self.here.to(z.device), head.head] = self.new_z(head.layer)[:, :, head.head].to(z.dtype)
        return head.layer, z

    def outcomes(self, edits: Iterable[Row], tick: Tick) -> tuple[np.ndarray, dict[int, np.ndarray]]:
        """Read outcomes `[problem, edit]`, and how far a row is off that joins at the same place unedited, `[problem]`.

        Edits come by where they join, none falling; one that changes nothing has the receiving run's outcome exactly. In half
        precision rounding that is common to the rows that join at one place is taken off.
        """
        base, half, made = self.ends[:, 0], is_half(self.receiving.z[0]), [np.empty((len(self.ends), 0))]
        noise: dict[int, np.ndarray] = {}
        rows = _with_unedited(edits) if self.of_heads or half else iter(edits)
        with torch.no_grad():  # the edits are made here too
            while part := list(islice(rows, self.rows)):
                values, acts = self._passed(part)
                for (at, edited), value, does in zip(part, values.T, acts.T, strict=True):
                    if edited is None:
                        noise[at] = value - base
                    else:
                        made.append(np.where(does, value - noise[at] if half else value, base)[:, None])
                tick(len(base) * sum(edited is not None for _, edited in part))
        return np.concatenate(made, 1), noise

    def _passed(self, edits: list[Row]) -> tuple[np.ndarray, np.ndarray]:
        """Read outcomes of a pass (halved where memory runs out), and where an edit acts, `[problem, edit]` each."""
        try:
            acts = self._acting(edits)
            run = [at for at, (_, edited) in enumerate(edits) if edited is None or acts[:, at].any()]
            values = np.repeat(self.ends[:, :1], len(edits), 1)
            if run:
                values[:, run] = self._continued([edits[at] for at in run])
            return values, acts
        except (MemoryError, RuntimeError) as error:
            self.rows = halved(len(edits), error)
            first, second = (self._passed(part) for part in (edits[: self.rows], edits[self.rows :]))
            return np.concatenate([first[0], second[0]], 1), np.concatenate([first[1], second[1]], 1)

    def _acting(self, edits: list[Row]) -> np.ndarray:
        """Find where an edit changes anything that is read, `[problem, edit]`."""
        same = torch.zeros(len(self.runs.pairs), dtype=torch.bool)
        read, last = torch.tensor(self.read) - self.receiving.start, 2 * self.model.info.n_layers
        found: list[Tensor] = []
        for at, edited in edits:
            if edited is None:
                found.append(same)
            elif self.of_heads:
                found.append((edited != self.receiving.z[at]).flatten(1).any(1))
            else:
                found.append((edited[:, read.to(edited.device)] if at == last else edited).ne(0).flatten(1).any(1))
        # all are brought from the device together: nobody waits for each
        place = next((each.device for each in found if each is not same), same.device)
        return torch.stack([each.to(place) for each in found], 1).cpu().numpy()

    def _continued(self, edits: list[Row]) -> np.ndarray:
        run, joins = self.receiving, [at for at, _ in edits]
        unedited = (lambda at: run.z[at]) if self.of_heads else (lambda at: torch.zeros_like(run.resid_pre[0]))
        values = [unedited(at) if edited is None else edited for at, edited in edits]
        rows = torch.stack([value.to(values[0].device) for value in values], 1).flatten(0, 1)
        if self.of_heads:
            logits = self.model.replay(run, joins, rows, logits_at=self.read)
        else:
            assert self.model.stepper is not None  # asked for before anything ran
            logits = self.model.stepper.replay(run, joins, rows, torch.tensor(self.read) - run.start)
        return self.runs.outcomes(logits, clean=self._clean)


def _with_unedited(edits: Iterable[Row]) -> Iterator[Row]:
    """Put before the first edit of each place one that changes nothing."""
    known: set[int] = set()
    for at, edited in edits:
        if edited is not None and at not in known:
            yield at, None
        known.add(at)
        yield at, edited


def _swept(
    engine: Engine, heads: Sequence[Head], tick: Tick, *, first: dict[str, np.ndarray] | None = None
) -> dict[str, np.ndarray]:
    """Make the arrays of `PatchScores`. `first`: of a sweep whose edits in layer 0 are the same."""
    info, n = engine.model.info, len(engine.runs.pairs)
    patched, noise = np.full((n, info.n_layers, info.n_heads), np.nan), np.full((n, info.n_layers), np.nan)
    asked = sorted(head for head in heads if first is None or head.layer)
    if len(asked) < len(heads):
        tick((len(heads) - len(asked)) * n)
    edits = chain([(0, None)], map(engine.head_edit, asked))  # layer 0's noise is measured in any case
    values, unedited = engine.outcomes(edits, tick)
    patched[:, [head.layer for head in asked], [head.head for head in asked]] = values
    noise[:, list(unedited)] = np.stack(list(unedited.values()), 1)
    if first is not None:
        patched[:, 0] = first["patched"][:, 0]
    receiving, donor = engine.ends.T
    return {"patched": patched, "receiving": receiving, "donor": donor, "noise": noise}


@dataclass(frozen=True, eq=False, repr=False)
class PatchScores(Parts):
    """Patched outcomes of an exact sweep, `[problem, layer, head]`; NaN for heads that were not patched.

    `noise` `[problem, layer]`: how far the outcome of a row was off that went on from that layer unedited (None: not measured).
    """

    patched: np.ndarray
    receiving: np.ndarray
    donor: np.ndarray
    heads: tuple[Head, ...]
    unit: str
    smallest_effect: float = SMALLEST_EFFECT
    noise: np.ndarray | None = None
    direction: str = "denoising"

    columns = columns_of("""
        recovered | recovered | later | (patched - corrupted) / (clean - corrupted)
        noise | noise | | change of the outcome in a row of the head's layer without an edit: rounding
    """)
    picture = "forest"
    reported = (
        *("label", "layer", "head", "sense", "k", "n", "prevalence", "p_corrected"),
        *("median", "share", "effect", "effect_fraction", "rank"),
    )

    @property
    def sign(self) -> int:
        return DIRECTIONS[self.direction]

    @property
    def effect(self) -> np.ndarray:
        """What denoising each head takes out of the insertion's effect, or noising brings in, `[problem, layer, head]`."""
        return self.sign * (self.patched - self.receiving[:, None, None]) + 0.0  # no -0

    @property
    def per_head(self) -> np.ndarray:
        """`effect` of the patched heads, `[problem, head]` in the order of `heads`."""
        return of_heads(self.effect, self.heads)

    per_cell = per_head

    @property
    def total_effect(self) -> np.ndarray:
        """The insertion's effect on the outcome (corrupted - clean), `[problem]`, in `unit`."""
        return self.sign * (self.donor - self.receiving) + 0.0

    @cached_property
    def noise_floor(self) -> float:
        """The mean over problems of the largest |noise|, in `unit`: a mean effect that does not exceed it has no rank."""
        # of any layer, as a row that joins late has hardly rounded anew, but the run that it continues has
        return float("nan") if self.noise is None else float(defined_mean(np.fmax.reduce(np.abs(self.noise), axis=1)))

    @property
    def rounding(self) -> float:
        """Effects up to this are taken for rounding, in `unit`: what the model resolves, or the sweep's own noise."""
        return float(np.fmax(super().rounding, self.noise_floor))

    @cached_property
    def rank(self) -> np.ndarray:
        """Rank of each head by |mean effect|, 1 the largest; NaN where undefined or within the noise."""
        size = np.abs(self.mean_effect)
        return pd.Series(np.where(self.within_noise, np.nan, size)).rank(ascending=False, method="min").to_numpy()

    @property
    def within_noise(self) -> np.ndarray:
        return np.abs(self.mean_effect) <= self.noise_floor

    def table(self) -> pd.DataFrame:
        """Return one row per head: `sense` (+1 with the total effect, -1 against it), `k` of `n` problems with more than the
        smallest effect in it, `p_corrected` (Holm over heads and senses), `median`, `share`. Means and `rank` describe."""
        fraction, table = self.effect_fraction, pd.DataFrame(head_columns(self.heads) | self.claim_columns())
        recovered = 1 - fraction if self.sign > 0 else fraction
        return table.assign(recovered=recovered, noise=self.noise_floor, rank=self.rank)

    def quantity(self, column: str) -> Quantity:
        if column in ("noise", "rank"):
            return Quantity(self.unit if column == "noise" else "")
        made = super().quantity(column)
        return replace(made, unit=WHOLE, below="") if column == "recovered" else made

    def to_frame(self) -> pd.DataFrame:
        """Return one tidy row per measure (`receiving`, `donor`, `patched`, `effect`), problem and head."""
        ends = {"receiving": self.receiving, "donor": self.donor}
        measures = {name: np.repeat(values[:, None], len(self.heads), 1) for name, values in ends.items()}
        measures |= {"patched": of_heads(self.patched, self.heads), "effect": self.per_head}
        return rows_per_head(self.problem_ids, self.heads, measures)

    def details(self) -> list[str]:
        found = self._claim_words()
        if within := int(self.within_noise.sum()):
            floor = f"{self.noise_floor:.1e} {self.unit}, what rounding does to rows that are not edited"
            found.append(f"Not ranked: {count_of(within, 'head')} with a mean effect within {floor}.")
        return found

    def in_order(self) -> pd.DataFrame:
        """Return the rows of `table`, the surest first, of equally sure ones the largest median."""
        largest = results.largest_first(self.table(), "median")
        return largest.sort_values("p_corrected", kind="stable", ignore_index=True)

    def printed(self) -> pd.DataFrame:
        columns = ["label", "share", "share_ci_low", "share_ci_high", "k", "n", "p_corrected", "median", "effect"]
        return self.in_order().dropna(subset="rank")[columns]

    def shown(self) -> Shown:
        columns = ["label", "paper_label", "share", "share_ci_low", "prevalence", "prevalence_ci_low", "k", "n"]
        columns += ["p_corrected", "median", "effect", "effect_fraction", "recovered"]
        table = self.table()
        marked = ((table["p_corrected"] < self.level) & table["rank"].notna()).tolist()
        means = f"outlined: {self._claim()}, p < {self.level:.3g} corrected for testing many heads"
        caption = f"Patched heads, the surest first. Effects are the parts of the insertion's, in {self.unit}."
        return Shown(
            (ShownTable(self.in_order(), caption, columns),),
            results.head_map(table, [self.default_column(table)], columns, marked=marked, means=means),
        )
