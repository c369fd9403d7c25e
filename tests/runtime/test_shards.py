"""A run in parts: each does its own, one has them all, and what comes out is what one run would have given."""

import json
import shlex
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from test_loop import IDS, UNITS, Batched, run
from typer.testing import CliRunner

import mless_interp as mi
from mless_interp.__main__ import app
from mless_interp.runtime.engines import Shard, ShardDone, parts_of


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "c.v1.jsonl"


def part(file: Path, index: int, count: int = 2, **options: Any) -> Batched:
    """A shard that ends with its part done; what it computed."""
    compute = Batched()
    with pytest.raises(ShardDone, match=rf"Shard {index}/{count} is done, \d of 5 problems"):
        run(file, compute, engine=Shard(index, count), **options)
    return compute


# ------------------------------------------------------------------------------------------------------------ in parts


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
    assert part(file, 1).done == ["b", "d"]
    whole = Batched()
    assert repr(run(file, whole)) == repr(run()) and whole.done == ["a", "c", "e"]
    assert [each.name for each in parts_of(file)] == ["c.v1.1-of-2.jsonl"]


@pytest.mark.parametrize(("index", "count"), [(2, 2), (-1, 2), (0, 0)])
def test_shards_count_from_zero(index: int, count: int) -> None:
    with pytest.raises(ValueError, match="shards are numbered 0/"):
        Shard(index, count)


@pytest.mark.slow
def test_shards_that_wait_all_have_the_whole(file: Path) -> None:
    """Two at once, as threads: what each gives is the whole."""
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(lambda index: run(file, engine=Shard(index, 2, wait=30)), range(2)))
    assert [repr(each) for each in found] == [repr(run())] * 2
    with pytest.raises(ShardDone):
        run(file.with_name("alone.jsonl"), engine=Shard(0, 2, wait=0.5))


# ---------------------------------------------------------------------------------------------------------- as commands


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
