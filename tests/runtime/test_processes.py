"""Copies of this process: every analysis has the bits of one process, and what goes wrong is told as it is here."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from analyses_under_test import ANALYSES, asked, frames, long

import mless_interp as mi
from mless_interp.runtime.loop import RunOptions, over_problems

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="forks are for Linux")
IDS = tuple(f"p{at}" for at in range(6))


class Unsendable(Exception):
    def __init__(self, one: int, two: int) -> None:
        super().__init__(f"{one} {two}")


def run(compute: Any, file: Path | None = None) -> list[Any]:
    options = RunOptions(file, progress=False)
    return over_problems(IDS, compute, label="trying", settings={}, options=options, engine=mi.Processes(2))


def test_after_an_error_what_was_not_begun_is_not_computed(tmp_path: Path) -> None:
    def wrong(unit: tuple[int, ...], tick: Any) -> list[Any]:
        (tmp_path / str(unit[0])).touch()
        if unit == (0,):
            raise Unsendable(1, 2)
        time.sleep(0.05)
        return [0.0]

    with pytest.raises(RuntimeError, match="Unsendable"):
        list(mi.Processes(2)(wrong, [(at,) for at in range(40)], lambda n: None))
    assert len(list(tmp_path.iterdir())) < 20


@pytest.mark.parametrize("name", ["patches", "answers"])
def test_analyses_have_the_bits_of_one_process(name: str) -> None:
    on = asked()
    here, there = (
        ANALYSES[name](replace(on, model=model), **long(name)) for model in (on.model, on.model.on(mi.Processes(2)))
    )
    for frame, made in frames(here).items():
        assert made.equals(frames(there)[frame]), frame


def test_errors_come_as_they_are_here_and_what_had_ended_is_kept(tmp_path: Path) -> None:
    def wrong(unit: tuple[int, ...], tick: Any) -> list[Any]:
        if unit == (5,):
            raise ValueError("the sum is 7")
        return [{"value": os.getpid()} for _ in unit]

    with pytest.raises(ValueError, match="problem 'p5': the sum is 7") as told:
        run(wrong, tmp_path / "run.jsonl")
    assert any("of 6 problems completed, kept in" in note for note in told.value.__notes__)
    found = run(lambda unit, tick: [{"value": 0}], tmp_path / "run.jsonl")
    assert {each["value"] for each in found} - {0} and os.getpid() not in {each["value"] for each in found}


def test_a_copy_that_is_killed_ends_the_run() -> None:
    def dies(unit: tuple[int, ...], tick: Any) -> list[Any]:
        if unit == (3,):
            os.kill(os.getpid(), signal.SIGKILL)
        return [{"value": 1.0} for _ in unit]

    with pytest.raises(MemoryError, match="a process was killed while it computed"):
        run(dies)


def test_a_model_whose_passes_are_worth_more_threads_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mless_interp.models.base.threads_for", lambda info: 2)
    with pytest.raises(ValueError, match="^count must be 1 or more, got 0"):
        mi.Processes(0)
    for engine in (mi.Processes(2), mi.Shard(0, 2, mi.Processes(2))):
        with pytest.raises(ValueError, match="are worth one thread"):
            asked().model.on(engine)


def test_copies_end_with_the_process_that_was_killed() -> None:
    script = """
import os, time
from mless_interp.runtime.workers import Processes

def compute(unit, tick):
    print(os.getpid(), flush=True)
    time.sleep(60)

list(Processes(2)(compute, [(0,), (1,)], lambda n: None))
"""
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None
        assert run.stdout.readline() != run.stdout.readline()  # two copies are at work
        run.kill()
        assert run.stdout.read() == ""  # it ends only when no copy holds it
