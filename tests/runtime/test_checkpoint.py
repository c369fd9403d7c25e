"""Checkpoints: nothing finished is lost, nothing damaged is used, what differs is told."""

import errno
import json
import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from files_under_test import everything_in
from results_under_test import same

from mless_interp.runtime.checkpoint import Checkpoint, CheckpointError, key_of, plain
from mless_interp.runtime.folders import Lock
from mless_interp.runtime.workers import Shard

SETTINGS: dict[str, Any] = {"edit": "z", "heads": ("L0H0", "L0H1"), "seed": 0, "run": {"dtype": "float32"}}
ODD = "b\u2028"
"""An id with a line separator, which ends no line of a file."""
VALUES: dict[str, Any] = {"a": [1.0, float("nan"), -0.0], ODD: {"x": 0.1, "y": float("-inf")}, "c": [0.25]}


def lines_of(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text().split("\n")[:-1]]


def kept_in(path: Path, settings: dict[str, Any] = SETTINGS) -> dict[str, Any]:
    """What can be gone on from."""
    with Checkpoint(path, settings) as found:
        return {name: found.get(name) for name in VALUES if found.get(name) is not None}


@pytest.fixture
def begun(tmp_path: Path) -> Path:
    """A checkpoint with three finished problems."""
    path = tmp_path / "runs" / "new" / "c.jsonl"
    with Checkpoint(path, SETTINGS) as checkpoint:
        checkpoint.put({"a": VALUES["a"]})
        checkpoint.put({name: VALUES[name] for name in (ODD, "c")})
    return path


def test_a_run_goes_on_from_what_is_finished_to_the_last_bit(begun: Path) -> None:
    first, *rest = lines_of(begun)
    assert [record["id"] for record in rest] == list(VALUES)
    assert first["settings"]["edit"] == "z" and first["settings"]["toolkit"] and set(first) == {"settings"}
    assert all(set(record) == {"id", "key", "value", "digest"} for record in rest)
    with Checkpoint(begun, SETTINGS | {"model": "its folder is called otherwise"}) as again:
        assert len(again._done) == 3 and again.get("d") is None
        assert all(same(again.get(name), value) for name, value in VALUES.items())
        assert np.signbit(again.get("a")[2])
        again.put({"d": np.float32(1 / 3)})
        assert len(again._done) == 4 and again.get("d") == np.float32(1 / 3)
    with Checkpoint(begun, SETTINGS) as once_more:
        assert once_more.get("d") == float(np.float32(1 / 3))
    with Checkpoint(None, SETTINGS) as nowhere:
        nowhere.put({"d": 1.0})
        assert nowhere.path is None and nowhere.get("d") is None


def test_keys_do_not_depend_on_order_and_values_become_plain() -> None:
    nan = float("nan")
    assert key_of({"a": 1, "b": nan}) == key_of({"b": nan, "a": 1}) != key_of({"a": 1.0, "b": nan})
    assert key_of([]) == "4f53cda18c2baa0c", "kept files name it"
    odd = {1: (np.float32(0.5), {2, 10, 1}, Path("x"), None, True), "a": np.eye(2, dtype=int), "n": np.int64(3)}
    assert json.dumps(plain(odd)) == '{"1": [0.5, [1, 10, 2], "x", null, true], "a": [[1, 0], [0, 1]], "n": 3}'


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"edit": "knockout"}, "edit was 'z', now 'knockout'; use the old settings, another checkpoint .--out., or"),
        ({"run": "x"}, "run was {'dtype': 'float32'}, now 'x'; use"),
        ({"model": "x", "computed_on": "elsewhere"}, "model was None, now 'x', computed_on was None"),
        ({"run": {"dtype": "float16"}}, "run.dtype was 'float32', now 'float16'; use"),
        (dict.fromkeys("pqrst", 1), "p was None, now 1, q was None, now 1, r was None, now 1 and 2 more; use"),
    ],
)
def test_other_settings_are_refused_with_the_differences(begun: Path, changes: dict[str, Any], message: str) -> None:
    before = begun.read_bytes()
    with pytest.raises(ValueError, match=f"c.jsonl was made with other settings: {message}"):
        Checkpoint(begun, SETTINGS | changes)
    assert begun.read_bytes() == before and everything_in(begun.parent) == ["c.jsonl"]


def test_a_run_cut_off_at_any_byte_of_its_last_line_goes_on_and_says_so(begun: Path) -> None:
    bytes_ = begun.read_bytes()
    for cut in (1, 2, 5, 20):
        begun.write_bytes(bytes_[:-cut])
        with pytest.warns(UserWarning, match=r"c.jsonl: the last line was cut off and is computed again") as said:
            again = Checkpoint(begun, SETTINGS)
        assert Path(said[0].filename).name != "checkpoint.py", "it names who asked"
        with again:
            assert len(again._done) == 2
            again.put({"d": 3})
        with Checkpoint(begun, SETTINGS) as whole:
            assert whole.get("d") == 3 and len(whole._done) == 3
    assert everything_in(begun.parent) == ["c.jsonl"]


def test_a_run_cut_off_in_its_first_line_begins(begun: Path) -> None:
    begun.write_bytes(begun.read_bytes()[:20])
    with Checkpoint(begun, SETTINGS) as again:
        assert len(again._done) == 0
        again.put({"c": VALUES["c"]})
    assert kept_in(begun) == {"c": VALUES["c"]}


def edited(old: bytes, new: bytes) -> Any:
    return lambda lines: [line.replace(old, new) for line in lines]


DAMAGE: dict[str, tuple[Any, int]] = {
    "a sign": (edited(b"0.25", b"-0.25"), 4),
    "a key": (edited(b'"c", "key": ""', b'"c", "key": "x"'), 4),
    "an id": (edited(b'"id": "c"', b'"id": "d"'), 4),
    "cut in the middle": (lambda lines: [lines[0], lines[1][:20], *lines[2:]], 2),
    "no digest": (lambda lines: [*lines[:3], b'{"id": "c", "value": [0.25]}'], 4),
}


@pytest.mark.parametrize("what", DAMAGE)
def test_a_damaged_file_is_refused_by_name_and_line_and_stays(begun: Path, what: str) -> None:
    damage, line = DAMAGE[what]
    begun.write_bytes(b"\n".join(damage(begun.read_bytes().split(b"\n")[:-1])) + b"\n")
    before = begun.read_bytes()
    with pytest.raises(CheckpointError, match=rf"c.jsonl, line {line} is damaged .*: delete this line to compute"):
        kept_in(begun)
    assert begun.read_bytes() == before
    rest = before.split(b"\n")
    begun.write_bytes(b"\n".join([*rest[: line - 1], *rest[line:]]))
    assert all(same(value, VALUES[name]) for name, value in kept_in(begun).items()), "as it says"


def test_a_file_that_is_no_checkpoint_is_refused_and_kept(tmp_path: Path) -> None:
    path = tmp_path / "mine.jsonl"
    for text in ("my notes", '{"accuracy": 0.9}', "[]\n", '{"id": "a"}\n', "[" * 10**5 + "\n"):
        path.write_text(text)
        with pytest.raises(
            ValueError, match="mine.jsonl is no checkpoint of this toolkit, or its first line is damaged"
        ):
            Checkpoint(path, SETTINGS)
        assert path.read_text() == text


def test_a_full_disk_is_told_and_costs_no_line_before(begun: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with Checkpoint(begun, SETTINGS) as found, monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space left on device"):
            found.put({"d": 1.0})
        assert found.get("d") is None
    begun.write_bytes(begun.read_bytes()[:-1])  # half of what it was writing
    with pytest.warns(UserWarning, match="cut off"):
        assert same(kept_in(begun), VALUES)


@pytest.mark.parametrize(("held", "shard"), [("c.jsonl", None), ("c.1-of-2.jsonl", None), ("c.jsonl", Shard(0, 2))])
def test_a_file_that_is_in_use_is_refused_to_a_second_run_and_to_its_parts(
    tmp_path: Path, held: str, shard: Shard | None
) -> None:
    (tmp_path / "c.1-of-2.jsonl").touch()
    with ThreadPoolExecutor(1) as other:
        lock = other.submit(Lock, tmp_path / held).result()
        with pytest.raises(BlockingIOError, match=f"'.*{held}' is in use by another run; wait"):
            Checkpoint(tmp_path / "c.jsonl", {}, shard=shard)
        other.submit(lock.release).result()
    with Checkpoint(tmp_path / "c.jsonl", {}, shard=shard) as found:
        found.put({"a": 1})
    assert everything_in(tmp_path) == sorted({"c.1-of-2.jsonl", "c.jsonl" if shard is None else "c.0-of-2.jsonl"})


def test_a_part_waits_for_a_whole_run_that_is_just_ending(tmp_path: Path) -> None:
    with ThreadPoolExecutor(1) as other:
        lock = other.submit(Lock, tmp_path / "c.jsonl").result()
        other.submit(lambda: (time.sleep(0.2), lock.release()))
        Checkpoint(tmp_path / "c.jsonl", {}, shard=Shard(0, 2)).close()


def part_of(path: Path, keys: dict[str, str] | None = None, **changes: Any) -> Path:
    """What the first of two shards has kept: the problems a and c."""
    with Checkpoint(path, SETTINGS | changes, keys, shard=Shard(0, 2)) as own:
        own.put({"a": [1.0], "c": 2})
    return path.with_name("c.0-of-2.jsonl")


def test_a_run_takes_what_its_parts_have_kept_and_writes_nothing_into_them(tmp_path: Path) -> None:
    path, keys = tmp_path / "c.jsonl", {"a": "u", "c": "v"}
    part = part_of(path, keys)
    before = part.read_bytes()
    assert not path.exists() and len(lines_of(part)) == 3
    for shard in (Shard(1, 2), None):
        with Checkpoint(path, SETTINGS, keys, shard=shard) as found:
            assert (found.get("a"), found.get("c"), len(found._done)) == ([1.0], 2, 2 if shard else 3)
            assert found.get("b") == (None if shard else 3), "the other part's"
            assert found.path == (path if shard is None else shard.file(path))
            found.put({"b": 3})
    with Checkpoint(path, SETTINGS, keys, shard=Shard(0, 2)) as found:
        assert (found.get("a"), found.get("b"), len(found._done)) == ([1.0], 3, 3)
    assert part.read_bytes() == before
    with Checkpoint(path, SETTINGS, {"a": "other"}) as found:
        assert found.get("a") is None, "computed together with others"


def test_a_part_of_another_run_is_refused_by_its_name(tmp_path: Path) -> None:
    part_of(tmp_path / "c.jsonl", seed=1)
    with pytest.raises(CheckpointError, match="0-of-2.jsonl was made with other settings: seed was 1, now 0; use the"):
        Checkpoint(tmp_path / "c.jsonl", SETTINGS)
    with pytest.raises(ValueError, match=r"Shard 1/2 of a run needs a checkpoint= in which it keeps its part"):
        Checkpoint(None, SETTINGS, shard=Shard(1, 2))
