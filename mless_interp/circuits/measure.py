"""What is measured of every head: its direct read of the span, and the part that earlier heads cause, both ways."""

import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from ..core.arguments import count_of
from ..core.heads import Head
from ..models.base import no_gradients_because, refuse_without_gradients
from ..models.info import ModelError
from ..patching.attribution import attribute_heads
from ..patching.prepared import Prepared
from ..patching.sweep import PatchScores, Sweep, sweep_heads
from ..prompts.conditions import CONTRASTS, DIRECTIONS, Contrast
from ..runtime.checkpoint import Checkpoint
from ..runtime.engines import shard_of
from ..runtime.loop import OF_THE_LIST, RunOptions

MEASURES = ("knockout", "edge_noise", "mediated_removed", "mediated_added")
N_SCREENED = 64
FEWEST_TO_SPLIT = 8
ENOUGH = 1.0
"""Seconds of a run that is long enough to be timed."""


@dataclass(frozen=True, eq=False)
class Measured:
    """The four measures `[problem, head]`, parts of the insertion's effect, and that effect, the total `[problem]`.

    Of a contrast in which nothing can be cut off, the two z patches (`judge.SIDES`) in their place. `resolution`: what is
    rounding: the precision's own size, or what it did to rows that were not edited, if that is more.
    """

    values: dict[str, np.ndarray]
    total: np.ndarray
    patches: PatchScores
    resolution: float


def measure(
    prepared: Prepared,
    heads: Sequence[Head],
    *,
    contrast: Contrast = CONTRASTS["content"],
    options: RunOptions,
) -> Measured:
    """Sweep exactly, four times over runs that are made once (methods §3, I7 and I14).

    `knockout`: what cutting a head's sight of the span removes; `edge_noise`: what its sight alone adds to a run that cannot
    see the span; `mediated_removed`, `mediated_added`: z patch minus direct read, denoising and noising. Under "computed" it is
    the span's rows whose sight of the question is cut. Where nothing can be cut: the z patches alone.
    """
    sweeps = sweeps_of(contrast)
    runs = sweep_heads(prepared, sweeps, heads, options=options)
    sides = {"removed": "denoising", "added": "noising"}
    values = {f"z_{side}": runs[f"z-{direction}"].per_head for side, direction in sides.items()}
    if contrast.cuts:
        own = {side: runs[f"knockout-{direction}"].per_head for side, direction in sides.items()}
        mediated = {f"mediated_{side}": values[f"z_{side}"] - own[side] for side in sides}
        values = {"knockout": own["removed"], "edge_noise": own["added"], **mediated}
    floor = np.fmax.reduce([prepared.model.resolution, *(run.noise_floor for run in runs.values())])
    return Measured(values, runs["z-noising"].total_effect, runs["z-denoising"], float(floor))


def sweeps_of(contrast: Contrast) -> dict[str, Sweep]:
    """Return the exact sweeps that `measure` takes, by name: four, or two of a contrast in which nothing can be cut off."""
    return {
        f"{edit}-{direction}": Sweep.named(contrast.name, edit=edit, direction=direction)
        for edit in (("knockout", "z") if contrast.cuts else ("z",))
        for direction in DIRECTIONS
    }


def screening(contrast: Contrast) -> tuple[str, ...]:
    """The estimates by which heads can be screened: gates need something to open, patches runs of equal length."""
    return (*(("gate_ig",) if contrast.cuts else ()), *(("atp",) if contrast.equal_length else ()))


def chosen_way(
    prepared: Prepared,
    heads: Sequence[Head],
    contrast: Contrast,
    *,
    mode: str,
    budget_seconds: float,
    options: RunOptions,
) -> tuple[bool, str, float | None]:
    """Return whether heads are measured exactly, which is cheap or was asked for, why, and the estimated seconds; raise where
    they would have to be screened and cannot be."""
    seconds, why, ways = None, "as asked for", "choose mode='exact'"
    joins = f"contrast {contrast.name!r} joins runs of two lengths, which no gradient does" * (not screening(contrast))
    if mode == "exact":
        return True, why, None
    if mode == "auto":
        if len(heads) <= N_SCREENED:
            return True, f"{count_of(len(heads), 'head')}, no more than screening would keep ({N_SCREENED})", None
        seconds = _kept_seconds(prepared, heads, contrast, options)
        if seconds is None:
            return True, "shards sweep exactly, as no clock of one is that of all", None
        why = f"the {'four' if contrast.cuts else 'two'} exact sweeps are estimated"
        if seconds <= budget_seconds:
            return True, f"{why} to stay within the budget of {duration(budget_seconds)}", seconds
        why += f" to exceed the budget of {duration(budget_seconds)}"
        ways = f"{why}, at {duration(seconds)}; raise budget_seconds, or choose mode='exact' to sweep whatever it takes"
        if obstacle := joins or no_gradients_because(prepared.model):
            raise ModelError(f"heads cannot be screened: {obstacle}. But {ways}")
    elif joins:
        raise ValueError(f"heads cannot be screened: {joins}; {ways}")
    refuse_without_gradients(prepared.model, 'locate_heads(mode="screen")')
    if len(prepared.ids) < FEWEST_TO_SPLIT:
        got = f"needs at least {FEWEST_TO_SPLIT}, got {len(prepared.ids)}"
        raise ValueError(
            f"screening splits the problems in two halves and {got}: give more problems. {ways[0].upper()}{ways[1:]}"
        )
    return False, why, seconds


def _kept_seconds(prepared: Prepared, heads: Sequence[Head], contrast: Contrast, options: RunOptions) -> float | None:
    """Return the estimate that the run's first start kept, so that a run started again goes the same way; None of shards."""
    settings = {"heads": list(map(str, heads)), "contrast": contrast.name, **prepared.settings}
    fixed = {name: value for name, value in settings.items() if name not in OF_THE_LIST}
    shard = shard_of(prepared.model.engine)
    with Checkpoint(options.part("estimate").checkpoint, fixed, shard=shard) as saved:
        kept = saved.get("estimate")
        if kept is None:
            sweeps = sweeps_of(contrast).values()
            kept = {"seconds": None if shard is not None else estimated_seconds(prepared, heads, sweeps)}
            saved.put({"estimate": kept})
    return kept["seconds"]


def estimated_seconds(prepared: Prepared, heads: Sequence[Head], sweeps: Iterable[Sweep]) -> float:
    """Return the seconds of these sweeps over all problems, from some heads of each layer on a problem of usual length."""
    rows = np.array([len(pair.inserted) - pair.spans[0][1] for pair in prepared.pairs])
    usual = prepared.only([int(np.argmin(np.abs(rows - rows.mean())))])
    named = {str(at): sweep for at, sweep in enumerate(sweeps)}
    layers = [[head for head in heads if head.layer == layer] for layer in {head.layer for head in heads}]

    def run(per_layer: int) -> None:
        some = [head for members in layers for head in members[:per_layer]]
        sweep_heads(usual, named, some, options=RunOptions(progress=False))

    return len(rows) * extrapolated(run, max(map(len, layers)))


def extrapolated(run: Callable[[int], object], total: float | int, *, sizes: int = 1) -> float:
    """Return the seconds of `run(total)`, by the line through runs of 1, 2, 4 ... units up to the first that takes `ENOUGH`, of
    `sizes` at least; what loads at the first call does not count."""

    def timed(units: int) -> float:
        began = time.perf_counter()
        run(units)
        return time.perf_counter() - began

    size, spent = 1, timed(1)
    if spent < ENOUGH:
        spent = timed(1)
    each = spent
    while 2 * size <= total and (spent < ENOUGH or size < sizes):
        before, size = spent, 2 * size
        spent = timed(size)
        each = max(0.0, spent - before) / (size - size // 2)
    return spent + each * (total - size)


def duration(seconds: float) -> str:
    """Return seconds in words: s, min or h.

    >>> duration(3.14159), duration(600.0), duration(9000.0)
    ('3.14 s', '10 min', '2.5 h')
    """
    if not math.isfinite(seconds):
        return "any length"
    if seconds < 120:
        return f"{seconds:.3g} s"
    return f"{seconds / 60:.3g} min" if seconds < 7200 else f"{seconds / 3600:.3g} h"


def screened(prepared: Prepared, heads: Sequence[Head], contrast: Contrast, *, options: RunOptions) -> tuple[Head, ...]:
    """The union of the best by gate gradients (readers) and by attribution patching (mediators too), in order."""
    chosen: set[Head] = set()
    methods = screening(contrast)
    for method in methods:
        estimates = attribute_heads(
            prepared.model,
            prepared,
            method=method,
            contrast=contrast.name,
            outcome=prepared.outcome,
            verify=0,
            checkpoint=options.part(f"screen-{method}").checkpoint,
            progress=options.progress,
        )
        chosen |= set([head for head in estimates.ranking() if head in heads][: N_SCREENED // len(methods)])
    return tuple(sorted(chosen))
