"""The one loop over problems of every long analysis: units of work, what has finished, how far it is, what went wrong."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from .checkpoint import Checkpoint
from .progress import progress_bar

Unit = tuple[int, ...]
"""Problems, by their place in the list, that are computed in one go; planned from the whole list, never from what waits."""
Tick = Callable[[int], None]
"""Says that so many steps more are done."""
Compute = Callable[[Unit, Tick], Sequence[Any]]
"""What a unit gives: one value per problem, of arrays, numbers, lists and dicts of them."""


@runtime_checkable
class Engine(Protocol):
    """Who computes the units that wait, and hands each one over as it ends, in any order."""

    def __call__(
        self, compute: Callable[[Unit], Sequence[Any]], units: Sequence[Unit]
    ) -> Iterator[tuple[Unit, Any]]: ...


def here(compute: Callable[[Unit], Sequence[Any]], units: Sequence[Unit]) -> Iterator[tuple[Unit, Any]]:
    """In this process, one unit after the other."""
    for unit in units:
        yield unit, compute(unit)


def over_problems(
    ids: Sequence[str],
    compute: Compute,
    *,
    label: str,
    settings: Mapping[str, Any],
    units: Sequence[Unit] | None = None,
    checkpoint: str | Path | None = None,
    steps: int = 1,
    progress: bool = True,
    engine: Engine = here,
) -> list[Any]:
    """What `compute` gives for every problem, in the order of `ids`.

    Parameters
    ----------
    units : default: every problem alone. A unit is kept, and done again, as a whole.
    settings : everything that the numbers depend on; a checkpoint made with others is refused, the difference named.
    checkpoint : a file that receives each finished unit; a run started again goes on from there. Without one nothing is
        kept. Values read back from it are lists where they were arrays.
    steps : of the progress bar for each problem; `compute` may tick them as they are done.

    An error of the caller's input says which problems it came from.
    """
    planned = [(at,) for at in range(len(ids))] if units is None else list(units)
    saved = Checkpoint(checkpoint, dict(settings))
    found: dict[int, Any] = {at: saved.get(ids[at]) for unit in planned for at in unit if _kept(saved, ids, unit)}
    with progress_bar(len(ids) * steps, label, enabled=progress) as bar:
        bar.update(len(found) * steps)

        def of_unit(unit: Unit) -> Sequence[Any]:
            ticked = 0

            def tick(n: int) -> None:
                nonlocal ticked
                ticked += n
                bar.update(n)

            try:
                values = compute(unit, tick)
            except ValueError as error:
                mine = [ids[at] for at in unit]
                raise (
                    error if any(repr(each) in str(error) for each in mine) else in_context(error, of_problems(mine))
                ) from error
            bar.update(len(unit) * steps - ticked)
            return values

        for unit, values in engine(of_unit, [unit for unit in planned if unit[0] not in found]):
            found |= dict(zip(unit, values, strict=True))
            saved.put({ids[at]: value for at, value in zip(unit, values, strict=True)})
    return [found[at] for at in range(len(ids))]


def _kept(saved: Checkpoint, ids: Sequence[str], unit: Unit) -> bool:
    return all(saved.get(ids[at]) is not None for at in unit)


def of_problems(ids: Sequence[str]) -> str:
    return f"problem {ids[0]!r}" if len(ids) == 1 else f"problems {', '.join(map(repr, ids))}"


def in_context(error: ValueError, where: str) -> ValueError:
    """The same error, with where it came from in front."""
    try:
        return type(error)(f"{where}: {error}")
    except TypeError:  # an error with more than a text of its own
        return ValueError(f"{where}: {error}")
