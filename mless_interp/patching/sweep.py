"""Exact sweeps: patch one head at a time, every head, and see what the outcome does."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..given import check_count, checked, count_of
from ..heads import Head
from ..models.base import Model
from ..models.inputs import Recording
from ..models.memory import halved, rows_per_pass, rows_per_request
from ..models.sent import is_half
from ..prompts.conditions import CONTRASTS, DIRECTIONS, Contrast, one_of
from ..prompts.pairs import PromptPair
from ..running.work import Tick, Unit
from .interventions import KNOCKOUTS, Intervention, LayerState, PatchZ, edit_named
from .outcomes import Outcome
from .parts import SMALLEST_EFFECT, check_smallest_effect
from .prepared import Prepared, Runs, prepare
from .scores import PatchScores

POSITIONS = ("question", "last", "prefix", "span", "all")
"""Where heads are edited; see `patch_heads`."""
UNEDITED = -1
"""In the place of a head: none is edited."""


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

    Parameters
    ----------
    contrast : "content" (masked C3 -> inserted C1), "shift" (base C0 -> gap C2), "total" (base C0 -> inserted C1,
        through the alignment), "held" (base C0 -> held C4, likewise), "presence" (masked C3 -> blind C5) and "computed" (blind
        C5 -> inserted C1: what the span has read of the question; rows change from the span's first on). The first is the clean
        run, the second the corrupted one.
    direction : "denoising" patches the clean run's activation into the corrupted run, "noising" the reverse.
    edit : "z" (the donor's head output), "knockout" (denoising: the head cannot see the span, renormalised; noising: in
        the run that cannot see the span this head alone sees it), another name of `INTERVENTIONS`, or an object. Under
        "computed" what is cut is the question from the span's rows: this head's reading of the question there.
    outcome : "answer_logprob", "answer_prob" (bounded: no tails), "solution_logprob", "logit_diff", "kl" (from the clean run,
        over the question), "kl_last".
    heads : zero-based `Head`s; default all.
    positions : where z is edited: "question" (everything after the insertion point but inserted tokens; under "computed" the
        span's own rows too: all that can change), "last" (from the position that predicts the answer on), or "prefix", "span",
        "all" (equal-length contrasts; prefix is a no-op, and so is the span of one block, for checking).
    checkpoint : a file that receives each finished problem at once; a run started again with the same settings goes on
        from there. `max_rows` limits the rows of one batch (default: sized to memory, halved when memory runs out).
    smallest_effect : the smallest effect of interest as a share of the median total effect; heads are told by the number of
        problems in which they do more.

    Returns `PatchScores` with per-problem values `[problem, layer, head]`, and the sweep's own noise: one row of each layer
    goes through the same passes unedited. Heads whose mean effect is within it are not ranked.

    Source: activation patching as in Heimersheim & Nanda (2404.15255), methods §6; each value equals one whole forward
    pass with that edit, at a fraction of the cost (`Model.replay`).
    """
    check_smallest_effect(smallest_effect)
    sweep = Sweep.named(contrast, direction, edit, positions)
    prepared = prepare(model, pairs, outcome)
    chosen = model.info.chosen(heads, what="patch")
    options: dict[str, Any] = {"checkpoint": checkpoint, "max_rows": max_rows, "progress": progress, "seed": seed}
    return replace(sweep_heads(prepared, {"patch": sweep}, chosen, **options)["patch"], smallest_effect=smallest_effect)


class Places:
    """Rows of a run, sent once to each device where they are used."""

    def __init__(self, rows: Tensor) -> None:
        self._rows = rows
        self._sent: dict[torch.device, Tensor] = {}

    def on(self, z: Tensor) -> Tensor:
        """Where z lies."""
        if z.device not in self._sent:
            self._sent[z.device] = self._rows.to(z.device)
        return self._sent[z.device]


@dataclass(frozen=True)
class Sweep:
    """What is patched: between which two conditions, which way, by which edit, at which positions."""

    contrast: Contrast
    direction: str
    intervention: Intervention
    positions: str = "question"

    @classmethod
    def named(
        cls, contrast: str = "content", direction: str = "denoising", edit: Any = "z", positions: str = "question"
    ) -> "Sweep":
        """The sweep of these names; `ValueError` for what is unknown or does not go together."""
        found = one_of(contrast, CONTRASTS, "contrast")
        one_of(direction, DIRECTIONS, "direction")
        one_of(positions, dict.fromkeys(POSITIONS), "positions")
        intervention = edit_named(edit, direction)
        if intervention.needs_span and not found.cuts:
            raise ValueError(
                f"edit {intervention.name!r} acts on attention to the inserted span, or from it to the question, so it needs "
                f"contrast='content' or 'computed', got {contrast!r}"
            )
        if not found.equal_length and positions not in ("question", "last"):
            raise ValueError(
                f"contrast {contrast!r} joins prompts of two lengths: positions must be 'question' or 'last'"
            )
        return cls(found, direction, intervention, positions)

    @property
    def donor(self) -> str:
        """The condition that gives the activations."""
        return self.contrast.clean if self.direction == "denoising" else self.contrast.corrupted

    @property
    def receiving(self) -> str:
        """The condition that is patched."""
        return self.contrast.corrupted if self.direction == "denoising" else self.contrast.clean

    def start(self, runs: Runs, condition: str) -> int:
        """The first row of a condition's run that is recorded."""
        if self.positions == "question":
            return runs.start(self.contrast, condition)
        return runs.length(condition) - runs.outcome.reads(runs.first)[0] if self.positions == "last" else 0

    def recordings(self, runs: Runs) -> tuple[Recording, Recording]:
        """Of the donor run and the receiving one."""
        donor, receiving = (runs.recording(run, self.start(runs, run)) for run in (self.donor, self.receiving))
        return donor, receiving

    def edited(self, runs: Runs) -> "tuple[Places, Places]":
        """Where activations are replaced, and by which of the donor's: places among the rows that were recorded of each run."""
        pair, (donor, receiving) = runs.first, self.recordings(runs)
        if not self.contrast.equal_length:  # only what both prompts have crosses
            base = torch.arange(len(pair.base))
            inserted = self.receiving == self.contrast.corrupted
            places = (pair.shared, base) if inserted else (base, pair.shared)
            here, there = (at - run.start for at, run in zip(places, (receiving, donor), strict=True))
            both = (here >= 0) & (there >= 0)
            return Places(here[both]), Places(there[both])
        every = torch.arange(receiving.start, receiving.n_tokens)
        chosen = torch.ones(len(every), dtype=torch.bool)
        if (
            self.positions == "question"
            and self.contrast.changes_from == "after"
            and self.contrast.conditions[0].has_span
        ):
            # later blocks keep what they hold: the donor's may have read what it should not
            chosen = ~pair.span_mask[every]
        if self.positions == "prefix":
            chosen = every < pair.span[0]
        if self.positions == "span":
            chosen = pair.span_mask if self.contrast.conditions[0].has_span else torch.zeros_like(chosen)
        at = Places(every[chosen] - receiving.start)
        return at, at

    def new_z(self, runs: Runs, layer: int, here: "Places", there: "Places") -> Tensor:
        """What takes the place of a layer's z at `edited`, `[problem, edited, head, d_head]`, each head as if it alone were."""
        donor, receiving = self.recordings(runs)
        if not self.intervention.needs_attention:
            return donor.z[layer][:, there.on(donor.z[layer])]
        (rows, keys), source = runs.cut(self.contrast), None
        if self.intervention.needs_donor:
            source = LayerState.of(runs.model, donor, layer, span=keys, rows=rows)
        names = [pair.id for pair in runs.pairs]
        state = LayerState.of(runs.model, receiving, layer, span=keys, rows=rows, donor=source, names=names)
        with torch.no_grad():
            new = self.intervention.edited(state)
            return new[:, here.on(new)]

    def enters_as(self, other: "Sweep") -> bool:
        """Whether this sweep's edits in layer 0 are those of the other, a sweep of knockouts: nothing comes before that layer,
        so all that a head answers to the contrast there is its own read (methods §3, I7 and I14)."""
        knockouts = replace(self, intervention=KNOCKOUTS[self.direction])
        return bool(self.contrast.cuts) and self.intervention == PatchZ() and other == knockouts

    @property
    def settings(self) -> dict[str, Any]:
        """What tells this sweep from others."""
        return {
            "contrast": self.contrast.name,
            "direction": self.direction,
            "edit": self.intervention.label,
            "positions": self.positions,
        }


def sweep_heads(
    prepared: Prepared,
    sweeps: Mapping[str, Sweep],
    heads: Sequence[Head],
    *,
    checkpoint: str | Path | None = None,
    max_rows: int | None = None,
    progress: bool = True,
    seed: int = 0,
) -> dict[str, PatchScores]:
    """Several sweeps of the same heads and problems, by name: every run that they share is made once, and what is one edit
    in two of them (`Sweep.enters_as`)."""
    chosen = tuple(heads)
    knockouts = {name: other for name in sweeps for other in sweeps if sweeps[name].enters_as(sweeps[other])}
    if max_rows is not None:
        check_count(max_rows, name="max_rows")

    def of_unit(unit: Unit, tick: Tick) -> list[Any]:
        runs, done = prepared.runs(unit), {}  # type: tuple[Runs, dict[str, dict[str, np.ndarray]]]
        for name in sorted(sweeps, key=knockouts.__contains__):  # what others enter as comes first
            first = done[knockouts[name]] if name in knockouts else None
            done[name] = _Swept(runs, sweeps[name], max_rows).all_heads(chosen, tick, first=first)
        return [
            {name: {key: values[place] for key, values in arrays.items()} for name, arrays in done.items()}
            for place in range(len(unit))
        ]

    found = prepared.each(
        of_unit,
        label=f"patching {count_of(len(chosen), 'head')} ({prepared.insertion})",
        settings={
            "sweeps": {name: sweep.settings for name, sweep in sweeps.items()},
            "heads": list(map(str, chosen)),
            "noise": "one unedited row per layer",
            **({"layer 0 by": knockouts} if knockouts else {}),
        },
        checkpoint=checkpoint,
        progress=progress,
        steps=len(chosen) * len(sweeps),
    )

    def scores(name: str, sweep: Sweep) -> PatchScores:
        ends = np.array([each[name]["ends"] for each in found], dtype=float)
        noise = np.array([each[name]["noise"] for each in found], dtype=float)
        return PatchScores(
            problem_ids=prepared.ids,
            patched=np.array([each[name]["patched"] for each in found], dtype=float),
            receiving=ends[:, 0],
            donor=ends[:, 1],
            heads=chosen,
            unit=prepared.outcome.unit,
            settings={
                **sweep.settings,
                "heads": list(map(str, chosen)),
                **prepared.settings,
                "resolution": prepared.model.resolution,
            },
            seed=seed,
            noise=noise,
        )

    return {name: scores(name, sweep) for name, sweep in sweeps.items()}


class _Swept:
    """One sweep of one unit; short-lived."""

    def __init__(self, runs: Runs, sweep: Sweep, max_rows: int | None) -> None:
        self.runs, self.model = runs, runs.model
        self.sweep = sweep
        length = runs.length(sweep.receiving)
        self.donor, self.receiving = sweep.recordings(runs)
        clean = sweep.contrast.clean
        self.clean_logits = runs.recording(clean, sweep.start(runs, clean)).logits
        self.read = runs.read(sweep.receiving)
        self.edited, self.given = sweep.edited(runs)
        changed = length - self.receiving.start
        sizes = {"batch": len(runs.pairs), "changed": changed, "length": length}
        if self.model.remote:
            self.rows = max_rows or rows_per_request(self.model.info, **sizes)
        else:
            devices = self.model.devices
            self.rows = max_rows or rows_per_pass(self.model.info, **sizes, read=len(self.read), devices=devices)
        self._newest: tuple[int, Tensor] | None = None

    def all_heads(
        self, heads: Sequence[Head], tick: Tick, *, first: "dict[str, np.ndarray] | None" = None
    ) -> dict[str, np.ndarray]:
        """`patched` `[problem, layer, head]` (NaN where not asked), `ends` `[problem, (receiving, donor)]`, and `noise`
        `[problem, layer]`: how far the outcome of a row is off that joins the same passes there unedited.

        `first`: what a sweep gave whose edits in layer 0 are the same ones; they are not made again.
        """
        info, n = self.model.info, len(self.runs.pairs)
        values = np.full((n, info.n_layers, info.n_heads + 1), np.nan)  # the last cell of a layer is the unedited one
        same = np.zeros(values.shape, dtype=bool)
        ends = np.stack([self._outcomes(run.logits) for run in (self.receiving, self.donor)], -1)[:, 0]
        cells = {(head.layer, head.head) for head in heads if first is None or head.layer}
        if len(cells) < len(heads):
            tick((len(heads) - len(cells)) * n)
        ordered, at = sorted(cells | {(layer, UNEDITED) for layer in {0, *(layer for layer, _ in cells)}}), 0
        while at < len(ordered):
            some = ordered[at : at + self.rows]
            try:
                found = self._patched(some)
            except (MemoryError, RuntimeError) as error:
                self.rows = halved(self.rows, error)
                continue
            place = (slice(None), [layer for layer, _ in some], [head for _, head in some])
            values[place], same[place] = found
            at += len(some)
            tick(sum(head != UNEDITED for _, head in some) * n)
        receiving = ends[:, 0, None]
        noise = values[..., UNEDITED] - receiving
        if is_half(self.receiving.z[0]):  # much of the rounding is common to the rows of a layer
            values -= noise[..., None]
        patched = np.where(same, receiving[..., None], values)[..., :UNEDITED]
        if first is not None:
            patched[:, 0] = first["patched"][:, 0]
        return {"patched": patched, "ends": ends, "noise": noise}

    def _new_z(self, layer: int) -> Tensor:
        if self._newest is None or self._newest[0] != layer:  # heads come in layer order: the last one is enough
            self._newest = (layer, self.sweep.new_z(self.runs, layer, self.edited, self.given))
        return self._newest[1]

    def _patched(self, cells: list[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray]:
        """Of one pass, `[problem, cell]`: outcomes, and where an edit changes nothing, so that its effect is exactly 0."""
        rows: list[Tensor] = []
        same: list[Tensor] = []
        for layer, head in cells:
            old = self.receiving.z[layer]
            z = old.clone()
            if head != UNEDITED:
                z[:, self.edited.on(z), head] = self._new_z(layer)[:, :, head].to(z.dtype)
            unchanged = (z == old).flatten(1).all(1)
            rows.append(z.to(rows[0].device) if rows else z)
            same.append(unchanged.to(rows[0].device))  # all are looked at together: nobody waits for each
        joins = [layer for layer, _ in cells]
        logits = self.model.replay(self.receiving, joins, torch.stack(rows, 1).flatten(0, 1), logits_at=self.read)
        return self._outcomes(logits), torch.stack(same, 1).cpu().numpy()

    def _outcomes(self, logits: Tensor | None) -> np.ndarray:
        """Outcomes `[problem, row]`."""
        return self.runs.outcomes(logits, clean=self.clean_logits)
