"""Copies of this process: every analysis has the bits of one process, and what goes wrong is told as it is here."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from analyses_under_test import ANALYSES, asked, frames, long

import mless_interp as mi
from mless_interp.runtime.engines import _tried
from mless_interp.runtime.loop import RunOptions, over_problems

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="forks are for Linux")
IDS = tuple(f"p{at}" for at in range(6))


class Unsendable(Exception):
    def __init__(self, one: int, two: int) -> None:
        super().__init__(f"{one} {two}")


def run(compute: Any, file: Path | None = None) -> list[Any]:
    options = RunOptions(file, progress=False)
    return over_problems(IDS, compute, label="trying", settings={}, options=options, engine=mi.Processes(2))


def test_a_copy_gives_values_or_an_error_that_can_be_sent() -> None:
    def of(error: Exception | None) -> Any:
        def compute(unit: tuple[int, ...], tick: Any) -> list[Any]:
            tick(1)
            if error is not None:
                raise error
            return [*unit]

        return _tried(compute, (3, 5))

    assert of(None) == ([3, 5], None)
    assert [repr(of(each)[1]) for each in (ValueError("a"), Unsendable(1, 2))] == [
        "ValueError('a')",
        "RuntimeError('Unsendable: 1 2')",
    ]


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


@pytest.mark.parametrize("name", ["patches", "scores", "joint", "answers"])
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
    for engine in (mi.Processes(2), mi.Shard(0, 2, mi.Processes(2))):
        with pytest.raises(ValueError, match="are worth one thread"):
            asked().model.on(engine)


def test_copies_end_with_the_process_that_was_killed() -> None:
    script = """
import os, time
from mless_interp.runtime.engines import Processes

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


class Ray:
    """What is asked of Ray, done here: a unit is computed when it is fetched, the one that was begun last ends first."""

    class RayActorError(Exception):
        pass

    def __init__(self) -> None:
        self.asked: list[Any] = []
        self.on = False
        self.exceptions, self.cloudpickle = self, pytest.importorskip("ray").cloudpickle
        self.put = lambda sent: sent
        self.get = lambda thing: thing() if callable(thing) else thing
        self.wait = lambda running, num_returns: ([running[-1]], running[:-1])
        self.kill = lambda worker: self.asked.append("kill")
        self.is_initialized = lambda: self.on
        self.cluster_resources = lambda: {"CPU": 4.0, "GPU": 1.0}

    def init(self, **how: Any) -> None:
        self.asked.append(how)
        self.on = True

    def shutdown(self) -> None:
        self.asked.append("shutdown")
        self.on = False

    def remote(self, **how: Any) -> Any:
        def begun(kind: Any, *given: Any) -> Any:
            self.asked.append(how)
            worker = kind(*given)
            return SimpleNamespace(do=SimpleNamespace(remote=lambda work, unit: partial(worker.do, work, unit)))

        return lambda kind: SimpleNamespace(remote=partial(begun, kind))


def test_workers_are_asked_for_what_was_said_and_ended_when_a_run_ends_early(monkeypatch: pytest.MonkeyPatch) -> None:
    ray = Ray()
    monkeypatch.setitem(sys.modules, "ray", ray)
    how = {"num_cpus": 2, "num_gpus": 0.5, "max_restarts": -1, "max_task_retries": 2}
    start = {"address": None, "include_dashboard": False, "log_to_driver": False, "logging_level": "error"}

    def compute(unit: tuple[int, ...], tick: Any) -> list[Any]:
        if unit == (7,):
            raise Unsendable(1, 2)
        return [at / 2 for at in unit]

    with mi.RayWorkers(2, cpus=2, gpus=0.5) as workers:
        assert list(workers(compute, [], lambda n: None)) == [] == ray.asked
        assert list(workers(compute, [(4,)], lambda n: None)) == [((4,), [2.0])]
        assert ray.asked == [start, how]
        ended = list(workers(compute, [(0,), (1,), (2, 3)], lambda n: None))
        assert sorted(ended) == [((0,), [0.0]), ((1,), [0.5]), ((2, 3), [1.0, 1.5])] and ray.asked == [start, how, how]
        with pytest.raises(RuntimeError, match="Unsendable: 1 2"):
            list(workers(compute, [(0,), (7,), (1,)], lambda n: None))
        assert ray.asked[3:] == ["kill", "kill", "shutdown"], "one was still at work"
        monkeypatch.setattr(ray, "get", lambda thing: (_ for _ in ()).throw(ray.RayActorError()))
        with pytest.raises(
            MemoryError, match=r"3 workers ended in the middle of the same unit \(place 2, 3 in the list"
        ):
            list(workers(compute, [(2, 3)], lambda n: None))
        ray.asked.clear()
    assert ray.asked == ["kill", "shutdown"] and repr(workers) == "RayWorkers(2)"
    for each, words in (
        ({"cpus": 2}, "3 workers with 2 CPU each ask for 6, and there are 4"),
        ({"gpus": 1}, "1 GPU each ask"),
    ):
        with pytest.raises(ValueError, match=words):
            list(mi.RayWorkers(3, **each)(compute, [(0,)], lambda n: None))
        assert not ray.on
