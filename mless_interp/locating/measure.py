"""What is measured of every head: its direct read of the span, and the part that earlier heads cause, both ways."""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..given import count_of
from ..heads import Head
from ..models.gradients import no_gradients_because, refuse_without_gradients
from ..models.info import ModelError
from ..patching.attribution import attribute_heads
from ..patching.prepared import Prepared
from ..patching.scores import PatchScores
from ..patching.sweep import Sweep, patch_heads, sweep_heads
from ..prompts.conditions import CONDITIONS, CONTRASTS, DIRECTIONS, Contrast
from ..running.checkpoint import Checkpoint, key_of
from ..running.loop import OF_THE_LIST
from ..running.work import shard_of

MEASURES = ("knockout", "edge_noise", "mediated_removed", "mediated_added")
N_SCREENED = 64
FEWEST_TO_SPLIT = 8


@dataclass(frozen=True, eq=False)
class Measured:
    """The four measures `[problem, head]`, parts of the insertion's effect, and that effect, the total `[problem]`.

    Of a contrast in which nothing can be cut off, the two z patches (`judge.SIDES`) in their place.

    `noise` is the largest that rounding did to any of the sweeps (`PatchScores.noise_floor`).
    """

    values: dict[str, np.ndarray]
    total: np.ndarray
    patches: PatchScores
    noise: float = float("nan")


def measure(
    prepared: Prepared,
    heads: Sequence[Head],
    *,
    contrast: Contrast = CONTRASTS["content"],
    checkpoint: Path | None,
    progress: bool,
    seed: int,
) -> Measured:
    """Four exact sweeps over runs that are made once; layer 0, which mediates nothing, is swept by knockouts alone (methods
    §3, I7 and I14).

    `knockout`: what cutting a head's sight of the span removes; `edge_noise`: what its sight alone adds to a run that cannot
    see the span; `mediated_removed`, `mediated_added`: z patch minus direct read, denoising and noising. Under "computed" it is
    the span's rows whose sight of the question is cut. Where nothing can be cut: the z patches alone.
    """
    sweeps = {
        f"{edit}-{direction}": Sweep.named(contrast.name, edit=edit, direction=direction)
        for edit in (("knockout", "z") if contrast.cuts else ("z",))
        for direction in DIRECTIONS
    }
    options = {"checkpoint": checkpoint, "progress": progress, "seed": seed}
    runs = sweep_heads(prepared, sweeps, heads, **options)  # type: ignore[arg-type]
    effect = {name: run.per_head for name, run in runs.items()}
    if not contrast.cuts:
        values = {"z_removed": effect["z-denoising"], "z_added": effect["z-noising"]}
    else:
        mediated = {d: effect[f"z-{d}"] - effect[f"knockout-{d}"] for d in DIRECTIONS}
        values = {
            "knockout": effect["knockout-denoising"],
            "edge_noise": effect["knockout-noising"],
            "mediated_removed": mediated["denoising"],
            "mediated_added": mediated["noising"],
        }
    return Measured(
        values,
        runs["z-noising"].total_effect,
        runs["z-denoising"],
        float(np.fmax.reduce([run.noise_floor for run in runs.values()])),
    )


def kept_file(folder: Path | None, name: str, *of: Any) -> Path | None:
    """The checkpoint of one sweep of an experiment, by the heads (and prompts) that it is of.

    With more problems other heads can be named: what was swept of others stays beside, and is not gone on from.
    """
    return None if folder is None else folder / f"{name}-{key_of(of)[:8]}.jsonl"


@dataclass(frozen=True)
class Way:
    """How the family of heads is measured: all of them exactly, or the best of a screening; and why."""

    exact: bool
    why: str
    estimated_seconds: float | None = None


def screening(contrast: Contrast) -> tuple[str, ...]:
    """The estimates by which heads can be screened: gates need something to open, patches runs of equal length."""
    return (*(("gate_ig",) if contrast.cuts else ()), *(("atp",) if contrast.equal_length else ()))


def chosen_way(
    prepared: Prepared, heads: Sequence[Head], contrast: Contrast, *, mode: str, budget_seconds: float
) -> Way:
    """Exact where that was asked for, or is cheap; raises where heads would have to be screened and cannot be."""
    joins = (
        "" if screening(contrast) else f"contrast {contrast.name!r} joins runs of two lengths, which no gradient does"
    )
    model, seconds = prepared.model, None
    if mode == "exact":
        return Way(True, "as asked for")
    if mode == "auto":
        if len(heads) <= N_SCREENED:
            return Way(True, f"{count_of(len(heads), 'head')}, no more than screening would keep ({N_SCREENED})")
        if shard_of(model.engine) is not None:
            return Way(True, "shards sweep exactly, as no clock of one is that of all")
        seconds = estimated_seconds(prepared, heads, contrast)
        estimate = f"the {'four' if contrast.cuts else 'two'} exact sweeps are estimated"
        if seconds <= budget_seconds:
            return Way(True, f"{estimate} to stay within the budget of {_duration(budget_seconds)}", seconds)
        why = f"{estimate} to exceed the budget of {_duration(budget_seconds)}"
        ways = (
            f"{why}, at {_duration(seconds)}; raise budget_seconds, or choose mode='exact' to sweep whatever it takes"
        )
        obstacle = joins or no_gradients_because(model)
        if obstacle is not None:
            raise ModelError(f"heads cannot be screened: {obstacle}. But {ways}")
    else:
        if joins:
            raise ValueError(f"heads cannot be screened: {joins}; choose mode='exact'")
        refuse_without_gradients(model, 'locate_heads(mode="screen")')
        why, ways = "as asked for", "choose mode='exact'"
    if len(prepared.ids) < FEWEST_TO_SPLIT:
        raise ValueError(
            f"screening splits the problems in two halves and needs at least {FEWEST_TO_SPLIT}, got {len(prepared.ids)}: "
            f"give more problems. {ways[0].upper()}{ways[1:]}"
        )
    return Way(False, why, seconds)


def kept_way(
    prepared: Prepared,
    heads: Sequence[Head],
    contrast: Contrast,
    *,
    mode: str,
    budget_seconds: float,
    folder: Path | None,
) -> Way:
    """`chosen_way`, asked once: a run that is started again goes the way of its first start, whatever its clock says."""
    asked = {"contrast": contrast.name, "mode": mode, "budget_seconds": budget_seconds}
    settings = {"heads": list(map(str, heads)), **asked, **prepared.settings}
    fixed = {name: value for name, value in settings.items() if name not in OF_THE_LIST}
    shard = shard_of(prepared.model.engine)
    with Checkpoint(None if folder is None else folder / "way.jsonl", fixed, shard=shard) as saved:
        way = saved.get("way")
        if way is None:
            way = vars(chosen_way(prepared, heads, contrast, mode=mode, budget_seconds=budget_seconds))
            saved.put({"way": way})
    return Way(**way)


def estimated_seconds(
    prepared: Prepared,
    heads: Sequence[Head],
    contrast: Contrast = CONTRASTS["content"],
    *,
    clock: Callable[[], float] | None = None,
) -> float:
    """Seconds that the four exact sweeps (two where nothing can be cut) over all problems would take, from small sweeps of the
    first problem.

    The sweeps' arithmetic is rows times the layers that remain, so the sample has the same number of heads in each layer
    (first one, then four): the line through the two times has the cost of the two runs, which all four share, as its
    intercept and that of a head in a middle layer as its slope. Problems count by their rows that can change.
    """
    now = clock or time.perf_counter
    first = prepared.only([0])
    layers: dict[int, list[Head]] = {}
    for head in heads:
        layers.setdefault(head.layer, []).append(head)

    def timed(per_layer: int) -> tuple[int, float]:
        sample = [head for members in layers.values() for head in members[:per_layer]]
        began = now()
        options: dict[str, Any] = {"edit": "knockout" if contrast.cuts else "z", "contrast": contrast.name}
        patch_heads(prepared.model, first, heads=sample, outcome=prepared.outcome, progress=False, **options)
        return len(sample), now() - began

    timed(1)  # first calls are slow
    (few, short), (many, long) = timed(1), timed(4)
    each = max(long - short, 0.0) / (many - few) if many > few else short / few
    remaining = {layer: prepared.model.info.n_layers - layer for layer in layers}
    middle = sum(remaining.values()) / len(remaining)
    sweeps = [4 if contrast.cuts and head.layer else 2 for head in heads]  # in layer 0 z patches are knockouts
    rows_by_layers = sum(n * remaining[head.layer] for n, head in zip(sweeps, heads, strict=True)) / middle
    one = max(short - each * few, 0.0) + each * rows_by_layers  # with a single head in all there is no line
    rows = [len(pair.inserted) - contrast.start(pair, CONDITIONS["inserted"]) for pair in prepared.pairs]
    return one * sum(rows) / rows[0]


def _duration(seconds: float) -> str:
    if not math.isfinite(seconds):
        return "any length"
    if seconds < 120:
        return f"{seconds:.3g} s"
    return f"{seconds / 60:.3g} min" if seconds < 7200 else f"{seconds / 3600:.3g} h"


def screened(
    prepared: Prepared,
    heads: Sequence[Head],
    contrast: Contrast = CONTRASTS["content"],
    *,
    folder: Path | None = None,
    progress: bool,
) -> tuple[Head, ...]:
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
            checkpoint=None if folder is None else folder / f"screen-{method}.jsonl",
            progress=progress,
        )
        chosen |= set([head for head in estimates.ranking() if head in heads][: N_SCREENED // len(methods)])
    return tuple(sorted(chosen))
