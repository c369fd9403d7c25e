"""The one loop: the same numbers however a run is cut up, resumed or damaged; what ends it says what is kept."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from results_under_test import same

from mless_interp.runtime.checkpoint import plain
from mless_interp.runtime.loop import RunOptions, over_problems

IDS = tuple("abcde")
UNITS = ((0, 2), (1, 3), (4,))


class Batched:
    """Numbers whose last bits depend on what they are computed beside, and a count of what is computed."""

    def __init__(self, ids: Sequence[str] = IDS, *, heads: int = 3) -> None:
        self.ids, self.heads, self.done = ids, heads, []

    def __call__(self, unit: tuple[int, ...], tick: Any) -> list[Any]:
        members = [self.ids[at] for at in unit]
        self.done += members
        beside = 1 + 1e-15 * sum(map(ord, members))
        row = lambda each: np.array([ord(each) / 3 * beside * (k + 1) for k in range(self.heads)])  # noqa: E731
        return [{"patched": np.stack([row(each), row(each) * np.nan]), "end": -0.0} for each in members]


def run(
    file: Path | None = None,
    compute: Any = None,
    ids: Sequence[str] = IDS,
    units: Sequence[tuple[int, ...]] = UNITS,
    **options: Any,
) -> list[Any]:
    """The values of all problems, as a file keeps them."""
    options = {"prompts": [f"prompt {each}" for each in ids], "settings": {"edit": "z"}} | options
    found = over_problems(
        ids, compute or Batched(ids), label="trying", units=units, options=RunOptions(file, progress=False), **options
    )
    return plain(found)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "c.jsonl"


# ------------------------------------------------------------------------------------------------------- the same numbers


def test_a_run_that_was_stopped_after_any_unit_gives_the_same(file: Path) -> None:
    for n in range(len(UNITS) + 1):
        file.unlink(missing_ok=True)
        compute = Batched()

        def stopping(unit: Any, tick: Any, n: int = n, compute: Any = compute) -> Any:
            if len(compute.done) >= sum(map(len, UNITS[:n])):
                raise KeyboardInterrupt
            return compute(unit, tick)

        if n < len(UNITS):
            with pytest.raises(KeyboardInterrupt):
                run(file, stopping)
        else:
            run(file, stopping)
        rest = Batched()
        assert same(run(file, rest), run()) and sorted(compute.done + rest.done) == list(IDS)


def test_a_longer_list_reuses_the_units_that_are_the_same(file: Path) -> None:
    run(file)
    longer, grown = (*IDS, "f", "g"), ((0, 2), (1, 3, 5), (4,), (6,))
    compute = Batched(longer)
    assert same(run(file, compute, longer, grown), run(None, Batched(longer), longer, grown))
    assert compute.done == ["b", "d", "f", "g"], "b and d stand beside another problem now"
    compute = Batched()
    assert same(run(file, compute), run()) and compute.done == [], "and the shorter list is still there"


def test_another_order_or_a_part_reuses_what_is_the_same(file: Path) -> None:
    run(file)
    part = ("e", "d", "b", "z")
    compute = Batched(part)
    assert same(run(file, compute, part, ((0,), (2, 1), (3,))), run(None, None, part, ((0,), (2, 1), (3,))))
    assert compute.done == ["z"]
    compute = Batched(part)
    run(file, compute, part, ((0,), (1, 2), (3,)))
    assert compute.done == ["d", "b"], "another order in a batch is another batch"


# --------------------------------------------------------------------------------------------------- what ends it tells


def failing(error: BaseException) -> Any:
    compute = Batched()

    def fail(unit: Any, tick: Any) -> Any:
        if unit == UNITS[1]:
            raise error
        return compute(unit, tick)

    return fail


def told(error: BaseException) -> str:
    return " ".join([str(error), *getattr(error, "__notes__", ())])


def test_a_run_that_is_stopped_says_what_is_kept_and_how_to_go_on(file: Path) -> None:
    message = "trying: 2 of 5 problems completed, kept in .*c.jsonl: rerun with the same settings"
    with pytest.raises(KeyboardInterrupt, match=message):
        run(file, failing(KeyboardInterrupt()))
    with pytest.raises(
        KeyboardInterrupt, match="2 of 5 problems completed, and none is kept: checkpoint= names a file"
    ):
        run(None, failing(KeyboardInterrupt()))
    assert same(run(file), run())


@pytest.mark.parametrize("error", [ValueError("odd"), RuntimeError("odd"), OSError("odd"), ZeroDivisionError("odd")])
def test_an_error_says_which_problems_and_what_is_kept(file: Path, error: Exception) -> None:
    with pytest.raises(type(error)) as caught:
        run(file, failing(error))
    assert "odd" in told(caught.value) and "problems 'b', 'd'" in told(caught.value)
    assert "2 of 5 problems completed, kept in" in told(caught.value)
    assert same(run(file), run())


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        MemoryError("5 GB"),
        RuntimeError("CUDA out of memory. Tried\nmore"),
        RuntimeError("can't allocate"),
    ],
)
def test_memory_that_runs_out_says_where_and_what_to_do(file: Path, error: Exception) -> None:
    with pytest.raises(
        MemoryError, match=r"problems 'b', 'd': memory ran out \(.+\): free some, .*max_rows="
    ) as caught:
        run(file, failing(error))
    assert caught.value.__cause__ is error and "2 of 5 problems" in told(caught.value) and "\n" not in str(caught.value)


def test_an_id_that_is_given_twice_is_told_first() -> None:
    with pytest.raises(ValueError, match="the problem id 'a' is given twice; the problem is the unit of replication"):
        over_problems("aba", lambda *_: pytest.fail("it began"), label="trying", settings={})
