"""Checkpoints: nothing finished is lost, nothing damaged is used, what differs is told."""

import errno
import inspect
import json
import os
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import ROOT
from files_under_test import everything_in
from results_under_test import same

from mless_interp.running import checkpoint
from mless_interp.running.checkpoint import Checkpoint, CheckpointError, Origin, _checked, key_of
from mless_interp.running.work import Shard

SETTINGS: dict[str, Any] = {"edit": "z", "heads": ("L0H0", "L0H1"), "seed": 0}
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
    path = tmp_path / "runs" / "c.jsonl"
    with Checkpoint(path, SETTINGS) as checkpoint:
        checkpoint.put({"a": VALUES["a"]})
        checkpoint.put({name: VALUES[name] for name in (ODD, "c")})
    return path


# ------------------------------------------------------------------------------------------------ what is kept comes back


def test_a_finished_problem_is_on_disk_at_once(begun: Path) -> None:
    first, *rest = lines_of(begun)
    assert [record["id"] for record in rest] == list(VALUES)
    assert first["settings"]["edit"] == "z" and first["settings"]["toolkit"]
    assert all(len(record["digest"]) == 16 for record in (first, *rest))
    assert set(first) == {"settings", "digest"} and all(set(record) == {"id", "value", "digest"} for record in rest)


def test_a_run_goes_on_from_what_is_finished_to_the_last_bit(begun: Path) -> None:
    with Checkpoint(begun, SETTINGS) as again:
        assert len(again) == 3 and not again.repaired and again.get("d") is None
        assert all(same(again.get(name), value) for name, value in VALUES.items())
        assert np.signbit(again.get("a")[2])
        again.put({"d": np.float32(1 / 3)})
    with Checkpoint(begun, SETTINGS) as once_more:
        assert once_more.get("d") == float(np.float32(1 / 3))


def test_resuming_alone_changes_nothing_on_disk(begun: Path) -> None:
    before = begun.read_bytes()
    assert len(kept_in(begun)) == 3
    assert begun.read_bytes() == before and everything_in(begun.parent) == ["c.jsonl"]


def test_no_path_keeps_nothing_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    checkpoint = Checkpoint(None, SETTINGS)
    checkpoint.put({"a": 1})
    assert checkpoint.get("a") is None and len(checkpoint) == 0 and everything_in(tmp_path) == []


def test_settings_that_are_not_a_number_are_the_same_again(tmp_path: Path) -> None:
    settings = {"resolution": float("nan"), "limit": float("inf")}
    for _ in range(2):
        with Checkpoint(tmp_path / "c.jsonl", settings) as found:
            found.put({"a": 1})
    assert len(lines_of(tmp_path / "c.jsonl")) == 3


# ------------------------------------------------------------------------------------------------------- other settings


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"edit": "knockout"}, "edit was 'z', now 'knockout'; use the old settings, choose another file, or delete"),
        ({"seed": 1, "edit": "q"}, "edit was 'z', now 'q'; seed was 0, now 1; use"),
        ({"new": 5}, "new was None, now 5; use"),
        ({"heads": ["L0H0", "L9H9"]}, r"heads\[1\] was 'L0H1', now 'L9H9'; use"),
        ({"heads": ["L0H0"]}, r"heads had 2 entries, now 1: from \[1\] on they differ; use"),
        (dict.fromkeys("pqrst", 1), "p was None, now 1; q was None, now 1; r was None, now 1 and 2 more; use"),
    ],
)
def test_other_settings_are_refused_with_the_differences(begun: Path, changes: dict[str, Any], message: str) -> None:
    before = begun.read_bytes()
    with pytest.raises(ValueError, match=f"c.jsonl was made with other settings: {message}"):
        Checkpoint(begun, SETTINGS | changes)
    assert begun.read_bytes() == before and everything_in(begun.parent) == ["c.jsonl"]


def test_a_setting_that_is_gone_is_a_difference(begun: Path) -> None:
    with pytest.raises(ValueError, match="seed was 0, now None"):
        Checkpoint(begun, {"edit": "z", "heads": ["L0H0", "L0H1"]})


def test_problems_are_named_by_their_id_however_values_are_kept(tmp_path: Path) -> None:
    """Of several values of a problem each is kept under a name of its own; a message names the problem, once."""
    names = [json.dumps([way, "p1", 0]) for way in ("none", "mless")]
    options: dict[str, Any] = {"problem_of": lambda name: json.loads(name)[1]}
    path = tmp_path / "c.jsonl"
    with Checkpoint(path, SETTINGS, dict.fromkeys(names, Origin("old")), **options) as begun:
        begun.put(dict.fromkeys(names, 1))
    with pytest.raises(
        CheckpointError, match=r"other problems: problem 'p1' has another prompt \(or another answer\) now"
    ):
        Checkpoint(path, SETTINGS, dict.fromkeys(names, Origin("new")), **options)
    path.write_text(path.read_text().replace('"value": 1', '"value": 2'))
    with pytest.warns(UserWarning, match=r"line 2 \(problem 'p1'\), line 3 \(problem 'p1'\) cannot be read"):
        Checkpoint(path, SETTINGS, dict.fromkeys(names, Origin("old")), **options).close()


def test_long_texts_are_shown_where_they_differ(tmp_path: Path) -> None:
    long = "the same beginning " * 20
    Checkpoint(tmp_path / "c.jsonl", {"text": long + "one end"}).close()
    with pytest.raises(
        ValueError, match=r"text was '?\.\.\.beginning one end', now '?\.\.\.beginning another end'; use"
    ):
        Checkpoint(tmp_path / "c.jsonl", {"text": long + "another end"})


def test_another_version_of_the_toolkit_is_another_setting(begun: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mless_interp.running.checkpoint.version", lambda _: "9.9")
    with pytest.raises(ValueError, match="toolkit was '.*', now '9.9'"):
        Checkpoint(begun, SETTINGS)


def test_another_prompt_of_a_kept_problem_is_refused_by_its_id(tmp_path: Path) -> None:
    path = tmp_path / "c.jsonl"
    origins = {name: Origin(prompt=key_of(name)) for name in "abcde"}
    with Checkpoint(path, SETTINGS, origins) as found:
        found.put(dict.fromkeys("abcde", 1.0))
    other = {name: Origin(prompt=key_of("other")) for name in "abcde"}
    with pytest.raises(
        CheckpointError, match="was made with other problems: problem 'b' has another prompt .* now; use the"
    ):
        Checkpoint(path, SETTINGS, origins | {"b": other["b"]})
    with pytest.raises(CheckpointError, match="problems 'a', 'b', 'c' and 2 more have other prompts"):
        Checkpoint(path, SETTINGS, other)
    with Checkpoint(path, SETTINGS, {"a": origins["a"], "z": Origin("new")}) as found:
        assert found.get("a") == 1.0 and found.get("z") is None


def test_one_file_holds_a_problem_in_several_units(tmp_path: Path) -> None:
    path = tmp_path / "c.jsonl"
    for unit, value in (("few", 1.0), ("many", 2.0)):
        with Checkpoint(path, SETTINGS, {"a": Origin("same", unit)}) as found:
            assert found.get("a") is None
            found.put({"a": value})
    for unit, value in (("few", 1.0), ("many", 2.0)):
        with Checkpoint(path, SETTINGS, {"a": Origin("same", unit)}) as found:
            assert found.get("a") == value


# -------------------------------------------------------------------------------------------------------------- damage


@pytest.mark.parametrize("cut", [1, 2, 5, 20])
def test_a_run_cut_off_at_any_byte_of_its_last_line_goes_on_without_a_word(begun: Path, cut: int) -> None:
    begun.write_bytes(begun.read_bytes()[:-cut])
    with Checkpoint(begun, SETTINGS) as again:
        assert again.repaired
        assert len(again) == (3 if cut == 1 else 2)  # with one byte only the line's end was lost
        again.put({"d": 3})
    with Checkpoint(begun, SETTINGS) as whole:
        assert not whole.repaired and whole.get("d") == 3 and len(whole) == len(again)
    assert everything_in(begun.parent) == ["c.jsonl"]


def edited(old: bytes, new: bytes) -> Any:
    def edit(lines: list[bytes]) -> list[bytes]:
        assert sum(old in line for line in lines) == 1
        return [line.replace(old, new) for line in lines]

    return edit


def swapped_ids(lines: list[bytes]) -> list[bytes]:
    return [lines[0], lines[1].replace(b'"a"', b'"c"'), lines[2], lines[3].replace(b'"c"', b'"a"')]


DAMAGE: dict[str, tuple[Any, str, set[str]]] = {
    "a digit": (edited(b"0.25", b"0.35"), r"line 4 \(problem 'c'\)", {"c"}),
    "a sign": (edited(b"0.25", b"-0.25"), r"line 4 \(problem 'c'\)", {"c"}),
    "the sign of zero": (edited(b"-0.0", b"0.0"), r"line 2 \(problem 'a'\)", {"a"}),
    "not a number": (edited(b"0.25", b"NaN"), r"line 4 \(problem 'c'\)", {"c"}),
    "a number": (edited(b"NaN", b"0.0"), r"line 2 \(problem 'a'\)", {"a"}),
    "an integer": (edited(b"[1.0,", b"[1,"), r"line 2 \(problem 'a'\)", {"a"}),
    "another shape": (edited(b"[0.25]", b"[0.25, 1.0]"), r"line 4 \(problem 'c'\)", {"c"}),
    "an id": (edited(b'"id": "c"', b'"id": "d"'), r"line 4 \(problem 'd'\)", {"c"}),
    "an id doubled": (edited(b'"id": "c"', b'"id": "a"'), r"line 4 \(problem 'a'\)", {"c"}),
    "ids swapped": (swapped_ids, r"line 2 \(problem 'c'\), line 4 \(problem 'a'\)", {"a", "c"}),
    "cut in the middle": (lambda lines: [lines[0], lines[1][:20], *lines[2:]], r"line 2 \(problem 'a'\)", {"a"}),
    "not text": (lambda lines: [*lines[:3], b"\xff\xfe"], "line 4 cannot", {"c"}),
    "an empty line": (lambda lines: [lines[0], b"", *lines[1:]], "line 2 cannot", set()),
    "two lines joined": (lambda lines: [*lines[:2], lines[2] + lines[3]], "line 3", {ODD, "c"}),
    "another digest": (
        lambda lines: [*lines[:3], lines[3][:-3] + (b'1"}' if lines[3][-3:-2] != b"1" else b'2"}')],
        r"line 4 \(problem 'c'\)",
        {"c"},
    ),
    "no digest": (lambda lines: [*lines[:3], b'{"id": "c", "value": [0.25]}'], r"line 4 \(problem 'c'\)", {"c"}),
    "the settings": (edited(b'"seed": 0', b'"seed": 1'), r"line 1 \(the settings, which are those of now\)", set()),
    "the settings cut": (lambda lines: [lines[0][:-20], *lines[1:]], "line 1", set()),
}


@pytest.mark.parametrize("what", DAMAGE)
def test_what_is_damaged_is_named_and_gone_and_nothing_else_is(begun: Path, what: str) -> None:
    damage, named, lost = DAMAGE[what]
    begun.write_bytes(b"\n".join(damage(begun.read_bytes().split(b"\n")[:-1])) + b"\n")
    with pytest.warns(UserWarning, match=rf"c.jsonl: {named}.*damaged, taken out, and what it held is done again"):
        kept = kept_in(begun)
    assert set(kept) == set(VALUES) - lost and all(same(value, VALUES[name]) for name, value in kept.items())
    assert same(kept_in(begun), kept), "and the file is whole again"


def test_lines_in_another_order_and_twice_are_no_damage(begun: Path) -> None:
    first, *rest = begun.read_bytes().splitlines(keepends=True)
    begun.write_bytes(b"".join([first, *rest[::-1], *rest]))
    assert same(kept_in(begun), VALUES)


def test_lines_of_another_run_are_not_taken(begun: Path, tmp_path: Path) -> None:
    """A line's digest covers the settings too."""
    with Checkpoint(tmp_path / "other.jsonl", SETTINGS | {"seed": 1}) as other:
        other.put({"d": 5.0})
    with begun.open("ab") as file:
        file.write((tmp_path / "other.jsonl").read_bytes().splitlines(keepends=True)[1])
    with pytest.warns(UserWarning, match=r"line 5 \(problem 'd'\)"), Checkpoint(begun, SETTINGS) as found:
        assert len(found) == 3 and found.get("d") is None


def test_many_damaged_lines_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "c.jsonl"
    with Checkpoint(path, SETTINGS) as found:
        found.put({str(at): at for at in range(10)})
    path.write_bytes(path.read_bytes().replace(b'"value": ', b'"value": 7'))
    with pytest.warns(UserWarning, match=r"line 2 \(.*\), line 3 \(.*\), line 4 \(.*\) and 7 more cannot be read"):
        Checkpoint(path, SETTINGS).close()


def test_damaged_settings_with_nothing_else_that_is_sound_are_refused_with_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "c.jsonl"
    Checkpoint(path, SETTINGS).close()
    damaged = path.read_bytes().replace(b'"seed": 0', b'"seed": 1')
    path.write_bytes(damaged)
    with pytest.raises(
        CheckpointError, match="c.jsonl, line 1: the settings are damaged, .*; choose another file, or delete"
    ):
        Checkpoint(path, SETTINGS)
    assert path.read_bytes() == damaged


def test_other_settings_never_repair_anothers_file(begun: Path) -> None:
    begun.write_bytes(begun.read_bytes()[:-5])
    before = begun.read_bytes()
    with pytest.raises(ValueError, match="other settings"):
        Checkpoint(begun, SETTINGS | {"edit": "q"})
    assert begun.read_bytes() == before


def test_a_file_of_an_older_version_is_refused_as_such(tmp_path: Path) -> None:
    path = tmp_path / "c.jsonl"
    path.write_text('{"settings": {"edit": "z"}}\n{"id": "a", "value": 1.0}\n')
    with pytest.raises(
        CheckpointError, match="c.jsonl was written by an older version of the toolkit, whose lines carry no"
    ):
        Checkpoint(path, {"edit": "z"})


@pytest.mark.parametrize(
    "text", ["my notes\n", "[1]\n", "3\n", '{"id": "a"}\n', '{"settings": 3}\n', '{"settings": {}}\n{"a": 1}\n', "\n"]
)
def test_a_file_that_is_no_checkpoint_is_refused_and_kept(tmp_path: Path, text: str) -> None:
    path = tmp_path / "mine.jsonl"
    path.write_text(text)
    with pytest.raises(ValueError, match="mine.jsonl is no checkpoint of this toolkit; choose another file"):
        Checkpoint(path, SETTINGS)
    assert path.read_text() == text


def test_an_empty_file_becomes_a_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "c.jsonl").touch()
    Checkpoint(tmp_path / "c.jsonl", SETTINGS).close()
    assert len(lines_of(tmp_path / "c.jsonl")) == 1


# --------------------------------------------------------------------------------------------- where it cannot be written


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        (
            "folder",
            IsADirectoryError,
            r"checkpoint '.*folder' is a folder: name a file in it, '.*folder/run.jsonl', say",
        ),
        (
            "file/c.jsonl",
            NotADirectoryError,
            r"checkpoint '.*': '.*file' is a file, not a folder; choose another place",
        ),
        ("file/deep/c.jsonl", NotADirectoryError, r"'.*file' is a file, not a folder"),
        ("x" * 300, OSError, r"cannot write .* \(File name too long\); choose another"),
        ("x" * 252, OSError, r"cannot write .* \(File name too long\); choose another"),
        ("\ud800", ValueError, r"is no name that can be written; choose another"),
        ("nul\0", ValueError, r"is no name that can be written; choose another"),
        ("pipe", OSError, r"checkpoint '.*pipe' is no regular file; choose another"),
    ],
)
def test_a_path_that_can_be_no_checkpoint_is_told(
    tmp_path: Path, name: str, error: type[Exception], message: str
) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(error, match=message):
        Checkpoint(tmp_path / name, SETTINGS)
    assert everything_in(tmp_path) == ["file", "folder", "pipe"]


@pytest.mark.skipif(not Path("/proc/self").is_dir(), reason="needs a place where not even root can write")
def test_a_place_that_cannot_be_written_is_not_said_to_be_in_use() -> None:
    with pytest.raises(OSError, match=r"cannot write /proc/x.jsonl \(.*\); choose another place") as caught:
        Checkpoint("/proc/x.jsonl", SETTINGS)
    assert "in use" not in str(caught.value)


@pytest.mark.parametrize("path", [3, b"x", ["a"], True])
def test_what_is_no_path_is_told(path: Any) -> None:
    with pytest.raises(TypeError, match="checkpoint must be the path of a file, or None, got"):
        inspect.unwrap(_checked)(path)  # as without the type checks of tests


def test_a_link_to_a_checkpoint_stays_a_link(begun: Path) -> None:
    link = begun.with_name("link.jsonl")
    link.symlink_to(begun)
    begun.write_bytes(begun.read_bytes()[:-5])
    assert len(kept_in(link)) == 2
    assert link.is_symlink() and len(lines_of(begun)) == 3


def test_a_place_that_cannot_be_written_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: object, *_: object, **__: object) -> int:
        raise OSError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    monkeypatch.setattr(os, "open", refuse)
    monkeypatch.setattr(os, "mkdir", refuse)
    with pytest.raises(OSError, match=r"cannot write .*c.jsonl \(Permission denied\); choose another place"):
        Checkpoint(tmp_path / "runs" / "c.jsonl", SETTINGS)


def test_a_full_disk_leaves_no_half_of_a_new_file_or_of_a_repaired_one(
    begun: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = begun.read_bytes()[:-5]
    begun.write_bytes(before)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    message = r"cannot write .*{} \(No space left on device\); {}"
    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", full)
        for path in (begun, begun.with_name("new.jsonl")):
            remedy = "all that was finished before is kept there: make room"
            with pytest.raises(OSError, match=message.format(path.name, remedy)) as error:
                Checkpoint(path, SETTINGS)
            assert error.value.errno == errno.ENOSPC
    assert begun.read_bytes() == before and everything_in(begun.parent) == [begun.name]
    assert len(kept_in(begun)) == 2


def test_a_full_disk_takes_back_what_was_half_written(begun: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = begun.read_bytes()

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with Checkpoint(begun, SETTINGS) as found, monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(
            OSError, match=r"cannot write .*c.jsonl \(No space left on device\); all that was finished before"
        ):
            found.put({"d": 1.0})
        assert found.get("d") is None
    assert begun.read_bytes() == before


# ---------------------------------------------------------------------------------------------------------- two at once

HOLDING = """
import sys
from mless_interp.running.checkpoint import Checkpoint
kept = Checkpoint(sys.argv[1], {})
print("held", flush=True)
sys.stdin.read()
"""


def test_a_second_run_on_a_file_is_refused_with_its_owner_until_the_first_has_ended(tmp_path: Path) -> None:
    path = tmp_path / "c.jsonl"
    command = [sys.executable, "-c", HOLDING, str(path)]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as first:
        assert first.stdout is not None and first.stdout.readline() == "held\n"
        with pytest.raises(
            BlockingIOError, match=rf"'.*c.jsonl' is in use by process {first.pid} on .* since 20.*; wait"
        ):
            Checkpoint(path, {})
        first.kill()
    with warnings.catch_warnings(), Checkpoint(path, {}) as found:
        warnings.simplefilter("error")
        found.put({"a": 1})
    assert everything_in(tmp_path) == ["c.jsonl"]


def test_the_next_call_of_a_notebook_is_not_locked_out_by_the_last(tmp_path: Path) -> None:
    """A traceback may keep the last one alive."""
    last = Checkpoint(tmp_path / "c.jsonl", {})
    with Checkpoint(tmp_path / "c.jsonl", {}) as found:
        del last
        found.put({"a": 1})
        assert (tmp_path / ".c.jsonl.lock").exists()
    assert everything_in(tmp_path) == ["c.jsonl"]


# ------------------------------------------------------------------------------------------------------- parts of a run


def part_of(path: Path, index: int = 0, origins: dict[str, Origin] | None = None, **changes: Any) -> Path:
    """What one of two shards has kept: the problems a and c."""
    with Checkpoint(path, SETTINGS | changes, origins, shard=Shard(index, 2)) as own:
        own.put({"a": [1.0], "c": 2})
    return path.with_name(f"{path.stem}.{index}-of-2{path.suffix}")


def test_a_run_takes_what_its_parts_have_kept_and_writes_nothing_into_them(tmp_path: Path) -> None:
    path = tmp_path / "c.jsonl"
    origins = {"a": Origin("asked", "u"), "c": Origin("", "v"), "b": Origin()}
    part = part_of(path, 0, origins)
    before = part.read_bytes()
    assert not path.exists() and len(lines_of(part)) == 3
    for shard in (Shard(1, 2), None):
        with Checkpoint(path, SETTINGS, origins, shard=shard) as found:
            assert (found.get("a"), found.get("c"), len(found)) == ([1.0], 2, 2 if shard else 3)
            assert found.get("b") == (None if shard else 3), "the other part's"
            assert (found.path, found.repaired) == (path if shard is None else shard.file(path), False)
            found.put({"b": 3})
    with Checkpoint(path, SETTINGS, origins, shard=Shard(0, 2)) as found:
        assert (found.get("a"), found.get("b"), len(found)) == ([1.0], 3, 3)
    assert part.read_bytes() == before
    with Checkpoint(path, SETTINGS, {"a": Origin("asked", "other")}) as found:
        assert found.get("a") is None, "computed together with others"


def test_a_line_that_a_part_has_not_ended_is_no_damage_and_any_other_is_counted(tmp_path: Path) -> None:
    path = tmp_path / "c.jsonl"
    part = part_of(path)
    whole = part.read_bytes()
    part.write_bytes(whole[:-1])
    with warnings.catch_warnings(), Checkpoint(path, SETTINGS) as found:
        warnings.simplefilter("error")
        assert (found.get("a"), found.get("c")) == ([1.0], None)
    part.write_bytes(whole.replace(b'"value": 2', b'"value": 3'))
    with pytest.warns(UserWarning, match=r"0-of-2.jsonl: 1 lines are damaged and not used"):
        found = Checkpoint(path, SETTINGS)
    assert found.get("a") == [1.0] and found.get("c") is None
    found.close()
    part.write_bytes(whole.replace(b'"seed": 0', b'"seed": 1'))  # its own digest does not fit: its lines still do
    with Checkpoint(path, SETTINGS) as found:
        assert (found.get("a"), found.get("c")) == ([1.0], 2)
    part.write_bytes(b"")
    with Checkpoint(path, SETTINGS) as found:
        assert len(found) == 0


def test_a_part_of_another_run_is_refused_by_its_name(tmp_path: Path) -> None:
    path = tmp_path / "c.jsonl"
    part = part_of(path, seed=1)
    with pytest.raises(CheckpointError, match="0-of-2.jsonl was made with other settings: seed was 1, now 0; use the"):
        Checkpoint(path, SETTINGS)
    part.unlink()
    part_of(path, 0, {"a": Origin("first"), "c": Origin("second")})
    with pytest.raises(CheckpointError, match="0-of-2.jsonl was made with other problems: problem 'c' has another"):
        Checkpoint(path, SETTINGS, {"a": Origin("first"), "c": Origin("third")})
    with pytest.raises(ValueError, match=r"Shard 1/2 of a run needs a checkpoint= in which it keeps its part"):
        Checkpoint(None, SETTINGS, shard=Shard(1, 2))


# ------------------------------------------------------------------------------------------------------------ its words


def test_a_key_does_not_depend_on_the_order_of_names() -> None:
    assert key_of({"a": 1, "b": {"c": 2, "d": 3}}) == key_of({"b": {"d": 3, "c": 2}, "a": 1}) != key_of({"a": 1})
    assert len(key_of(None)) == 16


def test_a_file_in_folders_that_are_not_there_yet(tmp_path: Path) -> None:
    Checkpoint(tmp_path / "some" / "deep" / "c.jsonl", SETTINGS).close()
    assert len(lines_of(tmp_path / "some" / "deep" / "c.jsonl")) == 1


def test_a_file_that_is_gone_while_its_run_lasts_is_told(begun: Path) -> None:
    with Checkpoint(begun, SETTINGS) as found:
        begun.unlink()
        with pytest.raises(OSError, match=r"cannot write .*c.jsonl \(No such file or directory\); all that was"):
            found.put({"d": 1.0})
        assert found.get("d") is None and not begun.exists()


def test_problems_of_one_unit_need_no_prompts(tmp_path: Path) -> None:
    for _ in range(2):
        with Checkpoint(tmp_path / "c.jsonl", SETTINGS, {"a": Origin(unit="u")}) as found:
            found.put({"a": 1})
    with Checkpoint(tmp_path / "c.jsonl", SETTINGS, {"a": Origin(unit="u")}) as found:
        assert found.get("a") == 1


@pytest.mark.parametrize(
    ("was", "now", "shown"),
    [
        ("ab", "ac", ("ab", "ac")),
        ("x" * 60, "y" * 60, ("x" * 60, "y" * 60)),
        ("x" * 20 + "a" * 40, "x" * 20 + "b" * 40, ("x" * 20 + "a" * 40, "x" * 20 + "b" * 40)),
        ("x" * 61, "y", ("x" * 60 + "...", "y")),
        ("x" * 10 + "a" * 60, "x" * 10 + "b" * 50, ("x" * 10 + "a" * 50 + "...", "x" * 10 + "b" * 50)),
        ("w" + "x" * 10 + "a" * 50, "w" + "x" * 10 + "b", ("..." + "x" * 10 + "a" * 50, "w" + "x" * 10 + "b")),
        ("w" + "x" * 10 + "a" * 51, "w" + "x" * 10, ("w" + "x" * 10 + "a" * 49 + "...", "w" + "x" * 10)),
        ("w" * 40 + "a" * 90, "w" * 40 + "b", ("..." + "w" * 10 + "a" * 50 + "...", "w" * 40 + "b")),
    ],
)
def test_long_texts_are_cut_to_where_they_differ(was: str, now: str, shown: tuple[str, str]) -> None:
    assert checkpoint._shown(was, now) == shown and checkpoint._shown(now, was) == shown[::-1]


def test_words_of_a_damaged_line_and_of_many() -> None:
    named = checkpoint._named
    assert named({"id": "a"}, b"") == " (problem 'a')" and named({"id": 3}, b"x") == named([], b'["id"]') == ""
    assert named(None, b'{"id": "a\\"b", "val') == " (problem 'a\"b')" and named(None, b'{"id": "a') == ""
    assert named(None, b'{"id": "\\x"}') == "", "no text of JSON"
    assert checkpoint._few("abc") == "a, b, c" and checkpoint._few("abcd", "; ") == "a; b; c and 1 more"
    values = [None, True, 2, 0.5, "x", Path("p"), np.float32(0.5), np.arange(2), (1, {2}), {1: np.int64(3)}]
    assert checkpoint.plain(values) == [None, True, 2, 0.5, "x", "p", 0.5, [0, 1], [1, [2]], {"1": 3}]
