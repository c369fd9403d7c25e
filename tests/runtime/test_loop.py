"""The one loop: the same numbers however a run is cut up, resumed, damaged or split; what ends it says what is kept."""

import io
import json
import shlex
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import pytest
from results_under_test import same
from typer.testing import CliRunner

import mless_interp as mi
from mless_interp.__main__ import app
from mless_interp.runtime import loop
from mless_interp.runtime.checkpoint import plain
from mless_interp.runtime.loop import RunOptions, over_problems, progress_bar
from mless_interp.runtime.workers import Shard, ShardDone, parts_of

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
    return tmp_path / "c.v1.jsonl"


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


def test_another_list_reuses_the_units_that_are_the_same(file: Path) -> None:
    run(file)
    longer, grown = (*IDS, "f", "g"), ((0, 2), (1, 3, 5), (4,), (6,))
    part, other = ("e", "d", "b", "z"), ((0,), (2, 1), (3,))
    for ids, units, computed in (
        (longer, grown, ["b", "d", "f", "g"]),  # b and d stand beside another problem now
        (IDS, UNITS, []),  # and the shorter list is still there
        (part, other, ["z"]),
        (part, ((0,), (1, 2), (3,)), ["d", "b"]),  # another order in a batch is another batch
    ):
        compute = Batched(ids)
        assert same(run(file, compute, ids, units), run(None, None, ids, units)) and compute.done == computed


def test_the_bar_ends_where_it_should_whoever_ticks(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three steps of each problem, of which the computation ticks some."""
    moved: list[int] = []

    @contextmanager
    def bar(total: int, label: str, *, enabled: bool) -> Iterator[Any]:
        moved.append(-total)
        yield SimpleNamespace(update=moved.append)

    def compute(unit: tuple[int, ...], tick: Any) -> list[Any]:
        tick(2)
        return Batched()(unit, tick)

    with pytest.raises(KeyboardInterrupt):
        run(file, failing(KeyboardInterrupt()))
    monkeypatch.setattr(loop, "progress_bar", bar)
    run(file, compute, steps=3)
    assert moved == [-15, 6, 2, 4, 2, 1]
    run(file, ids="x", units=[(0,)])
    assert moved[6:] == [-1, 0, 1], "one step of each unless said"


def failing(error: BaseException) -> Any:
    compute = Batched()

    def fail(unit: Any, tick: Any) -> Any:
        if unit == UNITS[1]:
            raise error
        return compute(unit, tick)

    return fail


def told(error: BaseException) -> str:
    return " ".join([str(error), *getattr(error, "__notes__", ())])


def test_an_error_says_which_problems_and_what_is_kept(file: Path) -> None:
    with pytest.raises(
        KeyboardInterrupt, match="2 of 5 problems completed, and none is kept: checkpoint= names a file"
    ):
        run(None, failing(KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt, match="2 of 5 problems completed, kept in .*c.v1.jsonl: rerun with the same"):
        run(file, failing(KeyboardInterrupt()))
    for error, said in (
        (ValueError("odd"), "problems 'b', 'd': odd (trying"),
        (OSError("odd"), "odd (in problems 'b', 'd') (trying"),
        (ValueError("odd: 'd'"), "odd: 'd' (trying"),
    ):
        file.unlink(missing_ok=True)
        with pytest.raises(type(error)) as caught:
            run(file, failing(error))
        assert told(caught.value).startswith(f"{said}: 2 of 5 problems completed, kept in")
        assert same(run(file), run())


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        RuntimeError("CUDA out of memory. Tried\nmore"),
        RuntimeError("can't allocate"),
        type("OutOfMemoryError", (RuntimeError,), {})("odd"),
    ],
)
def test_memory_that_runs_out_says_where_and_what_to_do(file: Path, error: Exception) -> None:
    message = r"problems 'b', 'd': memory ran out \(.+\): free some, .*max_rows="
    with pytest.raises(MemoryError, match=message) as caught:
        run(file, failing(error))
    assert caught.value.__cause__ is error and "2 of 5 problems" in told(caught.value) and "\n" not in str(caught.value)


def test_values_of_other_problems_are_never_taken() -> None:
    with pytest.raises(ValueError, match="zip"):
        run(None, lambda unit, tick: [0.0])


def test_an_id_that_is_given_twice_is_told_first() -> None:
    with pytest.raises(ValueError, match="the problem id 'a' is given twice; the problem is the unit of replication"):
        over_problems("baa", lambda *_: pytest.fail("it began"), label="trying", settings={})


@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_shards_share_the_units_and_together_are_the_whole(file: Path, count: int) -> None:
    done = []
    for index in range(count):
        compute = Batched()
        try:
            found = run(file, compute, engine=Shard(index, count))
        except ShardDone:
            assert index < count - 1
        else:
            assert index >= len(UNITS) - 1 or index == count - 1
            assert repr(found) == repr(run())
        assert compute.done == [IDS[at] for unit in UNITS[index::count] for at in unit]
        done += compute.done
    assert sorted(done) == sorted(IDS)
    merged = Batched()
    assert repr(run(file, merged)) == repr(run()) and merged.done == []


def test_what_is_missing_is_computed_by_the_whole_run(file: Path) -> None:
    compute, whole = Batched(), Batched()
    with pytest.raises(ShardDone, match=r"Shard 1/2 is done, \d of 5 problems"):
        run(file, compute, engine=Shard(1, 2))
    assert repr(run(file, whole)) == repr(run()) and (compute.done, whole.done) == (["b", "d"], ["a", "c", "e"])
    assert [each.name for each in parts_of(file)] == ["c.v1.1-of-2.jsonl"]


def test_shards_that_wait_all_have_the_whole(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two at once, as threads: what each gives is the whole."""
    monkeypatch.setattr(loop, "POLL", 0.05)
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(lambda index: run(file, engine=Shard(index, 2, wait=30)), range(2)))
    assert [repr(each) for each in found] == [repr(run())] * 2
    with pytest.raises(ShardDone):
        run(file.with_name("alone.jsonl"), engine=Shard(0, 2, wait=0.5))


def command(*arguments: str, code: int = 0) -> str:
    with mock.patch.object(sys, "argv", ["mless-interp", *arguments]):
        done = CliRunner().invoke(app, [*arguments])
    assert done.exit_code == code, (done.output, done.stderr)
    return done.output + done.stderr


ASKED = ["locate", "--mode", "sweep", "--limit", "6", "--n-tokens", "4", "--layers", "1", "--no-progress"]


def results_of(folder: Path) -> Any:
    """What a run found, without when and by which command."""
    found = mi.load(folder / "results")
    return {name: each.to_frame() for name, each in found.items() if name != "provenance"}


@pytest.mark.slow
def test_a_command_in_parts_ends_with_what_the_whole_one_writes(tmp_path: Path) -> None:
    whole, here = (str(tmp_path / name) for name in ("whole", "here"))
    command(*ASKED, "--out", whole)
    for index in range(2):
        said = command(*ASKED, "--out", here, "--shard", f"{index}/2")
        repeat = shlex.join(["mless-interp", *ASKED, "--out", here])
        assert repeat in said and "--shard" not in said.rpartition("mless-interp")[2] and not Path(here).exists()
    command(*ASKED, "--out", here)
    ours, theirs = results_of(Path(here)), results_of(Path(whole))
    assert ours.keys() == theirs.keys()
    assert all(ours[name].equals(theirs[name]) for name in ours)
    assert not (tmp_path / ".here.partial").exists()
    assert json.loads((Path(here) / "run.json").read_text())["repeat"] == repeat


def test_a_bar_says_in_one_line_how_far_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    notebook = type("Stream", (io.StringIO,), {"__module__": "ipykernel.iostream", "isatty": lambda self: True})()
    monkeypatch.setattr(sys, "stderr", file := io.StringIO())
    for seconds in (2.0, 0.1):
        with progress_bar(4, "a\nb", enabled=True) as bar:
            bar.update(1)
            assert (bar.mininterval, bar.miniters, bar.dynamic_ncols is not None, bar.pos) == (seconds, 1, True, 0)
            assert str(bar).startswith(r"a\nb 25 % ") and str(bar).endswith(" left")
        assert bar.fp.getvalue().endswith("\r") and r"a\nb 0 % ? left" in bar.fp.getvalue()
        monkeypatch.setattr(sys, "stdout", notebook)
    assert r"a\nb" in file.getvalue() and progress_bar(4, "a", enabled=False).disable
