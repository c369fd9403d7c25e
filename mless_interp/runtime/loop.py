"""The one loop over problems of every long analysis: units of work, what has finished, how far it is, what went wrong."""

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from itertools import count, repeat
from pathlib import Path

from tqdm import tqdm

from ..core.arguments import check_count, count_of
from .checkpoint import Checkpoint, key_of
from .text_safety import one_line
from .workers import Compute, Engine, Tick, Unit, here, shard_of

OF_THE_LIST = frozenset({"prompts", "control_prompts"})
"""Settings that tell of all problems together; a unit is told by its own prompts."""
POLL = 2.0  # seconds between two looks at what other shards have kept


@dataclass(frozen=True)
class RunOptions:
    """How a long analysis runs: what its public function was told goes down as one.

    checkpoint : a file (of an analysis in several parts: a folder) that keeps each finished problem; a run started again with
        the same settings goes on there.
    progress : show bars.
    seed : of everything that is drawn at random.
    max_rows : rows of one batch at most; None: sized to memory.
    """

    checkpoint: str | Path | None = None
    progress: bool = True
    seed: int = 0
    max_rows: int | None = None

    def __post_init__(self) -> None:
        if self.max_rows is not None:
            check_count(self.max_rows, name="max_rows")

    def part(self, name: str, *of: object) -> "RunOptions":
        """Return the same for one part of an analysis, with a file of its own in the folder: by what it is made of, if that
        can be another when the analysis is started again (with more problems other heads are named)."""
        if self.checkpoint is None:
            return self
        key = f"-{key_of(of)[:8]}" if of else ""
        return replace(self, checkpoint=Path(self.checkpoint) / f"{name}{key}.jsonl")

    def beside(self, name: str, *of: object) -> "RunOptions":
        """Return the same for a next step of an analysis that keeps one file, in another beside it."""
        if self.checkpoint is None:
            return self
        file = Path(self.checkpoint)
        return replace(self, checkpoint=file.with_name(f"{file.stem}-{name}-{key_of(of)[:8]}{file.suffix}"))


def over_problems(
    ids: Sequence[str],
    compute: Compute,
    *,
    label: str,
    settings: Mapping[str, object],
    prompts: Sequence[object] | None = None,
    units: Sequence[Unit] | None = None,
    steps: int = 1,
    options: RunOptions = RunOptions(),
    engine: Engine = here,
) -> list[object]:
    """Return what `compute` gives for every problem, in the order of `ids`.

    Parameters
    ----------
    prompts : what tells each problem's prompts and answers from any others, beside its id; never what the list says of it.
    units : default: every problem alone. A unit is kept, and done again, as a whole.
    settings : everything else that the numbers depend on (`OF_THE_LIST` is left out).
    steps : of the progress bar for each problem; `compute` may tick them as they are done.
    options : values read back from a checkpoint are lists where they were arrays.
    engine : who computes the units; a `Shard` does its part, and ends with `ShardDone` while other parts are missing.

    A kept problem is taken only if its unit has the same members with the same prompts in the same order, because a batch
    can decide the last bits. So another list of problems reuses the units that are the same, and gives the same bits as one
    without a checkpoint. An error of the caller's input says which problems it came from; what ended the run what is kept.
    """
    if len(set(ids)) < len(ids):
        twice = next(each for each in ids if list(ids).count(each) > 1)
        raise ValueError(f"the problem id {twice!r} is given twice; the problem is the unit of replication")
    planned = [(at,) for at in range(len(ids))] if units is None else list(units)
    asked = [""] * len(ids) if prompts is None else [key_of(each) for each in prompts]
    members = {unit: key_of([[ids[at], asked[at]] for at in unit]) for unit in planned}
    keys = {ids[at]: key for unit, key in members.items() for at in unit}
    fixed = {name: value for name, value in settings.items() if name not in OF_THE_LIST}
    shard = shard_of(engine)
    with Checkpoint(options.checkpoint, fixed, keys, shard=shard) as saved:

        def kept() -> dict[int, object]:
            values = [saved.get(each) for each in ids]
            return {at: values[at] for unit in planned if all(values[at] is not None for at in unit) for at in unit}

        found = kept()
        asked_for = planned if shard is None else shard.units(planned)
        waiting = [unit for unit in asked_for if unit[0] not in found]  # a unit is found whole or not at all
        with progress_bar((len(found) + sum(map(len, waiting))) * steps, label, enabled=options.progress) as bar:
            bar.update(len(found) * steps)
            ticked = 0

            def tick(n: int) -> None:
                nonlocal ticked
                ticked += n
                bar.update(n)

            try:
                for unit, values in engine(_Work(compute, tuple(ids)), waiting, tick):
                    saved.put({ids[at]: value for at, value in zip(unit, values, strict=True)})
                    found |= dict(zip(unit, values, strict=True))
                    bar.update(len(unit) * steps - ticked)  # what `compute` has not ticked itself
                    ticked = 0
            except (Exception, KeyboardInterrupt) as error:
                said = f"{label}: {len(found)} of {count_of(len(ids), 'problem')} completed" + (
                    ", and none is kept: checkpoint= names a file that keeps them"
                    if saved.path is None
                    else f", kept in {saved.path}: rerun with the same settings to resume"
                )
                if isinstance(error, KeyboardInterrupt):
                    raise KeyboardInterrupt(said) from error
                error.add_note(f"({said})")
                raise
        if shard is not None:
            since, seen = time.monotonic(), -1
            while True:  # until all is there, or nothing new came for `wait` seconds
                saved.join()
                if len(found := kept()) > seen:
                    since, seen = time.monotonic(), len(found)
                if len(found) == len(ids):
                    break
                if (left := since + shard.wait - time.monotonic()) <= 0:
                    raise shard.done(label, f"{len(found)} of {len(ids)} problems", saved.path)
                time.sleep(min(POLL, left))
    return [found[at] for at in range(len(ids))]


@dataclass(frozen=True)
class _Work:
    """What an engine is given to compute, wherever it does; errors say which problems they came from."""

    compute: Compute
    ids: tuple[str, ...]

    def __call__(self, unit: Unit, tick: Tick) -> Sequence[object]:
        ids = [self.ids[at] for at in unit]
        try:
            return self.compute(unit, tick)
        except Exception as error:
            where = f"problem {ids[0]!r}" if len(ids) == 1 else f"problems {', '.join(map(repr, ids))}"
            if out_of_memory(error):
                first = (str(error).strip() or type(error).__name__).splitlines()[0]
                raise MemoryError(
                    f"{where}: memory ran out ({first}): free some, choose shorter prompts or insertions, fewer rows at once "
                    "(max_rows=) or a smaller dtype"
                ) from error
            told = any(repr(each) in str(error) for each in ids)
            if isinstance(error, ValueError) and not told:
                raise in_context(error, where) from error
            if not told:
                error.add_note(f"(in {where})")
            raise


OUT_OF_MEMORY = (
    "out of memory",
    "can't allocate",
    "cannot allocate memory",
    "failed to map segment",
    "alloc_failed",
    "bad_alloc",
    "could not create a primitive",
)
"""Texts that mark out-of-memory errors which torch, the system, the loader, CUDA's, C++ and oneDNN raise as generic ones."""


def out_of_memory(error: BaseException) -> bool:
    """Return True where an error says that memory ran out, on whichever device."""
    known = isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"  # torch's, not loaded here
    return known or any(words in str(error).lower() for words in OUT_OF_MEMORY)


def in_context(error: ValueError, where: str) -> ValueError:
    """Return the same error, with where it came from in front."""
    try:
        return type(error)(f"{where}: {error}")
    except TypeError:  # an error with more than a text of its own
        return ValueError(f"{where}: {error}")


# ------------------------------------------------------------------------------------------------------------- progress

_STAGE: ContextVar[Iterator[str] | None] = ContextVar("stage", default=None)
_PLAN: ContextVar[list[int] | None] = ContextVar("plan", default=None)


@contextmanager
def stages(total: int) -> Iterator[None]:
    """Count the stages of a command: those inside are shown as `[1/3] naming heads`."""
    token = _PLAN.set([0, total])
    try:
        yield
    finally:
        _PLAN.reset(token)


@contextmanager
def stage(name: str) -> Iterator[None]:
    """Name a part of a long run: the lines inside say so and are counted, whatever is computed."""
    if (plan := _PLAN.get()) is not None:
        plan[0] += 1
        name = f"[{plan[0]}/{plan[1]}] {name}"
    token = _STAGE.set(f"{name}, part {part}" if part > 1 else name for part in count(1))
    try:
        yield
    finally:
        _STAGE.reset(token)


class Bar(tqdm):
    monitor_interval = 0  # tqdm's thread, which redraws bars that skip updates, would outlive the run


def progress_bar(total: int, label: str, *, enabled: bool) -> Bar:
    """Show `label 41 % 0:12 left` in one line, overwritten; a context whose `.update(n)` moves it. Silent unless `enabled`.
    On the error stream, as usual, so that output can be piped; in a notebook, which colours that stream red, on the other."""
    file = sys.stdout if type(sys.stdout).__module__.startswith("ipykernel") else sys.stderr
    return Bar(
        total=total,
        desc=one_line(next(_STAGE.get() or repeat(label))),
        disable=not enabled,
        file=file,
        leave=False,
        dynamic_ncols=True,
        miniters=1,
        mininterval=0.1 if file.isatty() else 2.0,
        position=0,  # a bar inside another writes over its line
        bar_format="{desc} {percentage:.0f} % {remaining} left",
    )
