"""Files damaged anywhere: what is read is what was written, or the file is refused by name; never another number."""

import json
import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
import torch
from fuzzing import fuzz
from hypothesis import strategies as st
from results_under_test import same
from small_results import scored

import mless_interp as mi
from mless_interp.models.load import load_model
from mless_interp.prompts.problems import load_problems
from mless_interp.runtime.loop import RunOptions, over_problems

damages = {
    "which": st.integers(0, 2**31),
    "where": st.floats(0, 1),
    "how": st.sampled_from(("flip", "cut", "gone", "twice", "junk")),
}


def damage(data: bytes, where: float, how: str, which: int) -> bytes:
    """`data` with one thing wrong, about the share `where` into it."""
    draw = random.Random(which)
    at = min(int(where * len(data)), len(data) - 1)
    size = draw.choice((1, 1, 2, 8, 64))
    match how:
        case "flip":
            return data[:at] + bytes([data[at] ^ (1 << draw.randrange(8))]) + data[at + 1 :]
        case "cut":
            return data[:at]
        case "gone":
            return data[:at] + data[at + size :]
        case "twice":
            return data[: at + size] + data[at:]
        case _:
            return data[:at] + draw.randbytes(size) + data[at + size :]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return mi.save(tmp_path_factory.mktemp("saved") / "results", scored(), others=scored(5))


@contextmanager
def refused_by_name(*names: object) -> Iterator[None]:
    """What is inside may be refused, if the error names a file or folder."""
    try:
        yield
    except (ValueError, OSError) as error:
        assert any(str(name) in str(error) for name in names), f"the file is not named: {error!r}"


@fuzz(few=40, share=2, **damages)
def test_saved_results_are_right_or_refused(saved: Path, which: int, where: float, how: str) -> None:
    whole = mi.load(saved)
    with TemporaryDirectory() as empty:
        folder = Path(shutil.copytree(saved, Path(empty) / "results"))
        files = sorted(path for path in folder.rglob("*") if path.is_file())
        path = files[which % len(files)]
        path.write_bytes(damage(path.read_bytes(), where, how, which))
        with refused_by_name(path.name, folder):
            found = mi.load(folder)
            assert all(same(found[name], whole[name]) for name in whole.keys() - {"provenance"})


IDS = tuple(f"problem {number}" for number in range(6))


def numbers(at: int) -> dict[str, Any]:
    draw = np.random.default_rng(at)
    return {"values": draw.normal(size=(2, 3)).tolist(), "undefined": float("nan"), "n": at, "name": f"{at}"}


def run(checkpoint: Path) -> list[Any]:
    options = RunOptions(checkpoint, progress=False)
    return over_problems(IDS, lambda unit, _: list(map(numbers, unit)), label="", settings={"seed": 1}, options=options)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("checkpoint") / "whole.jsonl"
    run(path)
    return path.read_bytes()


@pytest.mark.filterwarnings("ignore:.*the last line was cut off and is computed again")
@fuzz(few=60, share=10, **damages)
def test_a_damaged_checkpoint_never_changes_a_number(checkpoint: bytes, which: int, where: float, how: str) -> None:
    with TemporaryDirectory() as folder, refused_by_name("run.jsonl"):
        path = Path(folder) / "run.jsonl"
        path.write_bytes(damage(checkpoint, where, how, which))
        assert json.dumps(run(path)) == json.dumps([numbers(at) for at in range(len(IDS))])


@pytest.mark.slow
@fuzz(few=25, share=1, **damages)
def test_a_damaged_model_is_refused_or_is_another_model(
    tiny_model_dir: Callable[[str], Path], which: int, where: float, how: str
) -> None:
    whole = load_model(tiny_model_dir("llama"), backend="nnsight")
    with TemporaryDirectory() as empty:
        folder = Path(shutil.copytree(tiny_model_dir("llama"), Path(empty) / "model"))
        path = random.Random(which).choice(sorted(folder.iterdir()))
        path.write_bytes(damage(path.read_bytes(), where, how, which))
        with refused_by_name(path.name, folder):
            found = load_model(folder, backend="nnsight")
            tokens = torch.arange(8)[None] % min(whole.info.d_vocab, found.info.d_vocab)
            logits = [model.run(tokens).logits for model in (whole, found)]
            if whole.info.weights_hash == found.info.weights_hash and path.suffix == ".safetensors":
                assert torch.equal(*logits), "other numbers under the same hash"


RECORDS = [{"unique_id": f"p{at}", "problem": f"What is {at} + 1?", "answer": str(at + 1)} for at in range(5)]
PROBLEMS = "\n".join(map(json.dumps, RECORDS)).encode()


@fuzz(few=60, share=10, **damages)
def test_a_damaged_problem_file_is_read_as_it_is_or_refused(which: int, where: float, how: str) -> None:
    with TemporaryDirectory() as folder, refused_by_name("problems.jsonl"):
        path = Path(folder) / "problems.jsonl"
        path.write_bytes(damage(PROBLEMS, where, how, which))
        found = load_problems(path)
        assert len({problem.id for problem in found}) == len(found)
        assert all(isinstance(problem.question, str) and problem.question.strip() for problem in found)
