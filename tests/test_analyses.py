"""Every analysis resumes, runs in shards, is saved and loaded, and gives the numbers that it gave: laws over one table."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from analyses_under_test import ANALYSES, KEPT, OTHERWISE, all_kept, as_kept, asked, checkpoint_of, frames, long, whole
from results_under_test import same

import mless_interp as mi
from mless_interp.runtime.workers import ShardDone

EVERY = pytest.mark.parametrize("name", ANALYSES)
LONG = {"located", "sets"}
"""Analyses that take seconds: cut off and resumed among the slow tests."""


@pytest.mark.parametrize("name", [*ANALYSES, *OTHERWISE])
def test_it_gives_the_numbers_that_it_gave(name: str) -> None:
    kept = json.loads(KEPT.read_text())[name]
    found = all_kept(name)
    for table, numbers in kept.items():
        assert found[table].keys() == numbers.keys(), table
        for column, number in numbers.items():
            assert number is None or as_kept(found[table][column], number), (table, column)


@EVERY
def test_it_is_saved_and_loaded(name: str, tmp_path: Path) -> None:
    mi.save(tmp_path / "kept", whole(name))
    loaded = mi.load(tmp_path / "kept")[type(whole(name)).__name__]
    assert loaded.explain() == whole(name).explain()
    for table, frame in frames(loaded).items():
        assert frame.equals(frames(whole(name))[table]), table


@pytest.mark.filterwarnings("ignore:.*the last line was cut off")
@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] * (name in LONG)) for name in ANALYSES])
def test_what_was_cut_off_goes_on_with_the_same_bits(name: str, tmp_path: Path) -> None:
    """Of every file of finished problems half the lines are lost, and the last one that stays is torn."""
    undisturbed = whole(name)
    shutil.copytree(checkpoint_of(name).parent, tmp_path, dirs_exist_ok=True)
    files = [each for each in tmp_path.rglob("*") if each.is_file() and each.suffix != ".lock"]
    assert files
    for file in files:
        lines = file.read_bytes().splitlines(keepends=True)
        some = lines[: max(2, len(lines) // 2 + 1)]
        file.write_bytes(b"".join(some[:-1]) + some[-1][: len(some[-1]) // 2])
    again = ANALYSES[name](asked(), **long(name, checkpoint=tmp_path / "kept"))
    assert same(again, undisturbed)


@pytest.mark.slow
@pytest.mark.parametrize("name", ANALYSES)
def test_shards_together_are_the_whole(name: str, tmp_path: Path) -> None:
    on, parts = asked(), 2
    for turn in range(40):
        try:
            found = ANALYSES[name](
                replace(on, model=on.model.on(mi.Shard(turn % parts, parts))),
                **long(name, checkpoint=tmp_path / "kept"),
            )
        except ShardDone:
            continue
        assert same(found, whole(name))
        return
    pytest.fail("the shards never end")


@EVERY
def test_no_problems_are_refused_in_one_line(name: str) -> None:
    with pytest.raises(ValueError, match="^.+$") as refused:
        ANALYSES[name](replace(asked(), pairs=(), fresh=(), problems=()), **long(name))
    assert "\n" not in str(refused.value) and len(str(refused.value)) < 300
