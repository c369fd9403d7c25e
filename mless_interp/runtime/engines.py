"""Units of work: what is computed in one go, planned from the whole list; who computes them, and which of them."""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

Unit = tuple[int, ...]
"""Problems, by their place in the list, that are computed in one go; planned from the whole list, never from what waits."""
Tick = Callable[[Any], None]
"""Says that so many steps more are done, or what has just been."""
Compute = Callable[[Unit, Tick], Sequence[Any]]
"""What a unit gives: one value per problem, of arrays, numbers, lists and dicts of them."""


@runtime_checkable
class Engine(Protocol):
    """Who computes the units that wait, and hands each one over as it ends, in any order.

    An engine in other processes sends `compute` there (it can be pickled) and need not tick.
    """

    def __call__(self, compute: Compute, units: Sequence[Unit], tick: Tick) -> Iterator[tuple[Unit, Sequence[Any]]]: ...


class Here:
    """In this process, one unit after the other."""

    def __call__(self, compute: Compute, units: Sequence[Unit], tick: Tick) -> Iterator[tuple[Unit, Sequence[Any]]]:
        for unit in units:
            yield unit, compute(unit, tick)

    def __repr__(self) -> str:
        return "here"


here = Here()


class ShardDone(Exception):
    """A shard's part of an analysis is computed and kept, and others' parts are missing: no error, but no result either."""


@dataclass(frozen=True)
class Shard:
    """Every `count`-th unit of every long analysis, from the zero-based `index`: one of several runs that share a folder.

    Each run does and keeps its own part (`run.jsonl` becomes `run.0-of-4.jsonl`), then ends with `ShardDone`. The same
    analysis without a shard takes what all of them kept, computes what is missing, and has the same bits as one that was
    never split. Before a next step (locating has several) a shard `wait`s for the others' parts as many seconds as nothing
    new comes, or is started again. `engine` computes the shard's units, here by default.

    >>> Shard(1, 4), Shard.parse("1/4") == Shard(1, 4), Shard(1, 4).units([(0, 1), (2,), (3,), (4,), (5,), (6,)])
    (Shard 1/4, True, [(2,), (6,)])
    """

    index: int
    count: int
    engine: Engine = here
    wait: int | float = 0

    def __post_init__(self) -> None:
        if not 0 <= self.wait < float("inf"):
            raise ValueError(f"a shard waits 0 seconds or more, got {self.wait}")
        if not 0 <= self.index < self.count:
            known = f"0/{self.count} to {self.count - 1}/{self.count}" if self.count > 0 else "0/1"
            raise ValueError(f"invalid shard {self.index}/{self.count}: shards are numbered {known}")

    @classmethod
    def parse(cls, text: str) -> "Shard":
        """Return the shard of a text such as "1/4" (zero-based)."""
        found = re.fullmatch(r"\s*(\d+)\s*/\s*(\d+)\s*", text)
        if found is None:
            raise ValueError(f"cannot read {text!r} as a shard: write 0/4 to 3/4, say (zero-based)")
        return cls(int(found[1]), int(found[2]))

    def units(self, planned: Sequence[Unit]) -> list[Unit]:
        """Return those of all planned units that are this shard's."""
        return list(planned[self.index :: self.count])

    def done(self, label: str, kept: str, path: Path | None) -> ShardDone:
        """Say that this part is computed, while others' are missing; `kept`: how much there is beside `path`."""
        return ShardDone(
            f"{label}: {self!r} is done, {kept} are kept beside {path}; when the other shards have ended too, the same "
            "analysis without a shard goes on from all of them"
        )

    def file(self, path: Path) -> Path:
        """Return the file in which this shard keeps its part of a checkpoint."""
        return path.with_name(f"{path.stem}.{self.index}-of-{self.count}{path.suffix}")

    def __call__(self, compute: Compute, units: Sequence[Unit], tick: Tick) -> Iterator[tuple[Unit, Sequence[Any]]]:
        return self.engine(compute, units, tick)

    def __repr__(self) -> str:
        return f"Shard {self.index}/{self.count}"


def shard_of(engine: Engine) -> Shard | None:
    """Return the part of the work that an engine does; None for all of it."""
    return engine if isinstance(engine, Shard) else None


def parts_of(path: Path) -> list[Path]:
    """Return the files in which shards keep their parts of a checkpoint, whatever their count."""
    name = re.compile(rf"{re.escape(path.stem)}\.\d+-of-\d+{re.escape(path.suffix)}")
    return sorted(each for each in path.parent.glob("*") if name.fullmatch(each.name))
