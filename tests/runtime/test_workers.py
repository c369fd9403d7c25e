"""Several processes: the same bits, errors as here, and a worker that dies costs nothing but its unit's time."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import mless_interp as mi
from mless_interp.models.info import ModelError
from mless_interp.runtime.loop import RunOptions, over_problems

pytest.importorskip("ray", reason="needs the extra mless_interp[ray]")
pytestmark = pytest.mark.slow  # Ray and two models take half a minute to begin

IDS = tuple(f"p{at}" for at in range(6))


@pytest.fixture(scope="module")
def workers() -> Iterator[Any]:
    with mi.RayWorkers(2) as workers:
        yield workers


def run(workers: Any, compute: Any, file: Path | None = None) -> list[Any]:
    options = RunOptions(file, progress=False)
    return over_problems(IDS, compute, label="trying", settings={}, options=options, engine=workers)


ANALYSES = """
import sys
from pathlib import Path
import numpy as np
import mless_interp as mi

file = Path(sys.argv[1])
planted = mi.planted_model(readers=[mi.Head(0, 1)], n_heads=4, n_layers=2, seed=0)
filler = mi.Insertion.meaningless(" /", n_tokens=6)
quiet = {"progress": False}
with mi.RayWorkers(2) as workers:
    model, problems = mi.load_model("demo", dtype="bfloat16"), mi.load_problems("demo", limit=20)
    pairs = mi.make_pairs(model, problems, filler)
    for analysis in (
        lambda m: mi.score_heads(m, pairs, **quiet),
        lambda m: mi.evaluate_accuracy(m, problems, [None, filler], max_new_tokens=3, batch_size=7, **quiet),
    ):
        here, there = analysis(model), analysis(model.on(workers))
        assert here.to_frame().equals(there.to_frame()) and here.settings == there.settings, type(here).__name__
        print(type(here).__name__)
    swept = mi.patch_heads(model.on(workers), pairs, heads=["L0H13"], checkpoint=file, **quiet)
    resumed = mi.patch_heads(model, pairs, heads=["L0H13"], checkpoint=file, **quiet)  # all kept: nothing is computed
    assert np.array_equal(swept.patched, resumed.patched, equal_nan=True)
    model = mi.load_model(planted)
    pairs = mi.make_pairs(model, planted.problems(6), filler)
    here = mi.patch_heads(model, pairs, progress=False)
    assert (here.patched == mi.patch_heads(model.on(workers), pairs, progress=False).patched).all()
"""


def test_analyses_have_the_bits_of_one_process(tmp_path: Path) -> None:
    """In a process of its own: the types that tests check make functions that cannot be sent."""
    done = subprocess.run(
        [sys.executable, "-c", ANALYSES, str(tmp_path / "run.jsonl")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.split("\n")) == 2 + 1


def test_a_worker_that_is_killed_is_replaced(workers: Any, tmp_path: Path) -> None:
    def dies_once(unit: tuple[int, ...], tick: Any) -> list[Any]:
        marker = tmp_path / f"begun-{unit[0]}"
        if unit[0] in (1, 4) and not marker.exists():
            marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return [{"value": at * 0.1} for at in unit]

    found = run(workers, dies_once, tmp_path / "run.jsonl")
    assert found == [{"value": at * 0.1} for at in range(6)]
    assert len(list(tmp_path.glob("begun-*"))) == 2


def test_a_unit_that_ends_every_worker_ends_the_run_and_loses_nothing(workers: Any, tmp_path: Path) -> None:
    def dies(unit: tuple[int, ...], tick: Any) -> list[Any]:
        if unit == (3,):
            with (tmp_path / "tries").open("a") as file:
                file.write("x")
            time.sleep(1)
            os.kill(os.getpid(), signal.SIGKILL)
        return [{"value": at} for at in unit]

    with pytest.raises(
        MemoryError, match=r"3 workers ended in the middle of the same unit \(place 3 in the list"
    ) as told:
        run(workers, dies, tmp_path / "run.jsonl")
    assert any("completed, kept in" in note for note in told.value.__notes__)
    assert (tmp_path / "tries").read_text() == "xxx"
    healthy: list[Any] = []

    def counted(unit: tuple[int, ...], tick: Any) -> list[Any]:
        healthy.append(unit)
        return [{"value": at} for at in unit]

    assert run(mi.runtime.workers.here, counted, tmp_path / "run.jsonl") == [{"value": at} for at in range(6)]
    assert (3,) in healthy and len(healthy) < 6


def layers_of(model: mi.Model) -> Any:
    """A computation that takes a model with it; those of analyses cannot be sent where their types are checked."""
    return lambda unit, tick: [{"value": float(model.info.n_layers)} for _ in unit]


def test_a_model_that_cannot_be_loaded_again_is_refused(workers: Any) -> None:
    model = mi.load_model("demo")
    wrapped = mi.wrap_model(model.underlying, tokenizer=model.tokenizer)
    with pytest.raises(ModelError, match="was given as an object"):
        run(workers, layers_of(wrapped))
    with torch.no_grad():
        next(model.underlying.parameters()).add_(1e-3)
    with pytest.raises(ModelError, match="is another model where it was loaded again: weights "):
        run(workers, layers_of(model))


def test_workers_that_would_never_start_are_refused() -> None:
    with pytest.raises(ValueError, match="3 workers with 1000 CPU each ask for 3000, and there are"):
        list(mi.RayWorkers(3, cpus=1000)(lambda unit, tick: [0.0], [(0,)], lambda n: None))


@pytest.mark.parametrize("address", ["nowhere", "127.0.0.1:1", "ray://127.0.0.1:1"])
def test_an_address_where_nothing_is_is_refused(address: str) -> None:
    with pytest.raises(ValueError, match=f"no Ray cluster answers at '{address}'"):
        mi.RayWorkers(2, address=address)
