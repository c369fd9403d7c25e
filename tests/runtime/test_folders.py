"""Folders of results: whole or not at all, killed at any moment; nothing foreign is ever removed; one run on each."""

import json
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from conftest import ROOT
from files_under_test import contents, everything_in

from mless_interp.runtime.engines import Shard
from mless_interp.runtime.folders import (
    ANALYSIS,
    COMPUTED,
    MANIFEST,
    RUN,
    claimed,
    damaged_files,
    foreign_in,
    manifest_of,
    new_folder,
    recover,
    refuse_existing,
    remove_partial,
    renewed,
)


def written(folder: Path, **files: str) -> Path:
    """Return a folder that this toolkit has written."""
    with new_folder(folder, overwrite=True) as making:
        for name, text in files.items():
            (making / name).write_text(text)
    return folder


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """A folder with an old result, alone in its parent."""
    return written(tmp_path / "out", old="old")


# ------------------------------------------------------------------------------------------------------- whole or not


def test_a_folder_appears_only_when_it_is_whole_and_replaces_all_of_the_old(tmp_path: Path) -> None:
    target = tmp_path / "deep" / "out"
    for text in ("1", "2"):
        with new_folder(target, overwrite=True) as folder:
            assert folder.parent == target.parent  # the same disk, so that the last step is one rename
            (folder / "a").mkdir()
            (folder / "a" / text).write_text(text)
            assert contents(target) == ({} if text == "1" else {"a/1": "1"})
        assert target.stat().st_mode & 0o777 == 0o755
    assert contents(tmp_path) == {"deep/out/a/2": "2"} and everything_in(target.parent) == ["out"]
    (tmp_path / "empty").mkdir()
    with new_folder(tmp_path / "empty"):
        pass
    assert foreign_in(tmp_path / "empty") == []


def test_a_failure_leaves_the_old_folder_as_it_was(old: Path) -> None:
    with pytest.raises(ZeroDivisionError), new_folder(old, overwrite=True) as folder:
        (folder / "new").write_text(str(1 / 0))
    assert contents(old.parent) == {"out/old": "old"} and everything_in(old.parent) == ["out"]


def test_a_failure_of_the_last_step_brings_the_old_folder_back(old: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.replace

    def replace(source: Path, target: Path) -> None:
        if Path(target) == old and (Path(source) / "new").exists():
            raise OSError("disk gone")
        real(source, target)

    monkeypatch.setattr(os, "replace", replace)
    with pytest.raises(OSError, match="disk gone"):
        written(old, new="new")
    assert contents(old.parent) == {"out/old": "old"} and everything_in(old.parent) == ["out"]


def test_an_existing_folder_needs_overwrite_and_a_link_stays_a_link(old: Path) -> None:
    message = r"the folder '.*out' exists; choose another, .*--overwrite"
    with pytest.raises(FileExistsError, match=message), new_folder(old):
        pytest.fail("the body ran")
    link = old.parent / "link"
    link.symlink_to(old)
    written(link, new="new")
    assert link.is_symlink() and contents(old) == {"new": "new"} and everything_in(old.parent) == ["link", "out"]


@pytest.mark.parametrize("name", [".", ".."])
def test_the_current_directory_and_those_above_are_never_replaced(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FileExistsError, match="holds the current directory and is never replaced; choose another name"):
        refuse_existing(name, overwrite=True)


KILLED = """
import os, shutil, sys, warnings
from pathlib import Path
from mless_interp.runtime import folders

warnings.simplefilter("ignore")
base = Path(sys.argv[1])
out = base / "out"
CALLS = ("replace", "unlink", "rmdir", "mkdir", "fsync")
seen = set()

def write(**files):
    with folders.new_folder(out, overwrite=True) as making:
        for name, text in files.items():
            (making / name).mkdir()
            (making / name / "a").write_text(text)
            (making / f"{name}.txt").write_text(text)

def killed_at(step, work):
    'Whether `work` was killed before its step-th call that changes the disk, in a process of its own.'
    child = os.fork()
    if child == 0:
        left = [step]
        for name in CALLS:
            def call(*args, real=getattr(os, name), **more):
                if left[0] == 0:
                    os._exit(9)
                left[0] -= 1
                return real(*args, **more)
            setattr(os, name, call)
        work()
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9

def start():
    'What the next run does first.'
    with folders.claimed(out, overwrite=True, analysis="own"):
        pass

for depth in (1, 2):
    for step in range(0, 1000, depth):
        for again in range(0, 1000 if depth == 2 else 1, 4):
            shutil.rmtree(base)
            base.mkdir()
            write(old="old", other="old")
            more = killed_at(step, lambda: write(new="new"))
            twice = depth == 2 and more and killed_at(again, start)
            start()
            names = sorted(path.name for path in base.iterdir())
            assert names == ["out"], (depth, step, again, names)
            assert folders.damaged_files(out) == {} and folders.foreign_in(out) == [], (depth, step, again)
            found = tuple(sorted(path.name for path in out.iterdir() if path.is_dir()))
            assert found in (("old", "other"), ("new",)), (depth, step, again, found)
            seen.add((depth, found))
            if not twice:
                break
        if not more:
            break
    print(step)
print(len(seen))

def whole_run():
    'A run that keeps its computed results while they are put in place.'
    with folders.claimed(out, overwrite=False, analysis="own") as partial:
        kept = partial / folders.COMPUTED
        (kept / "results").mkdir(parents=True)
        (kept / "results" / "a").write_text("a")
        (partial / "sweep.jsonl").write_text("steps")
        (kept / folders.RUN).write_text("this run")
        with folders.new_folder(out) as making:
            (making / folders.RUN).write_text("this run")
        folders.remove_partial(partial)

ended = set()
for step in range(1000):
    shutil.rmtree(base)
    base.mkdir()
    more = killed_at(step, whole_run)
    try:
        with folders.claimed(out, overwrite=False, analysis="own") as partial:
            left = {path.name for path in partial.rglob("*") if path.is_file()}
    except FileExistsError as error:
        assert "exists; choose another" in str(error), (step, error)
        names = sorted(path.name for path in base.iterdir())
        assert names == ["out"], (step, names)
        ended.add("whole")
    else:
        assert not out.exists(), step
        ended.add("kept" if left > {folders.ANALYSIS} else "nothing")
    if not more:
        break
print(len(ended))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="kills forked processes")
def test_killed_at_any_step_the_old_or_the_new_folder_is_there_whole(tmp_path: Path) -> None:
    """At every call that changes the disk, and once more at every step of the recovery that follows."""
    (tmp_path / "base").mkdir()
    command = [sys.executable, "-c", KILLED, str(tmp_path / "base")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    once, twice, outcomes, ends = map(int, done.stdout.split())
    assert 15 < once <= twice and outcomes == 4, "each ended with the old in some cases and with the new in others"
    assert ends >= 2, "a whole run ended with its results in place in some cases, with what it kept in others"


def test_what_a_killed_run_has_left_is_removed_or_brought_back(old: Path) -> None:
    new, before = old.with_name(".out.new"), old.with_name(".out.old")
    shutil.copytree(old, new)  # made from a copy of another, so with that one's manifest
    (new / "more").write_text("half")
    before.mkdir()
    with claimed(old, overwrite=True, analysis="own"):
        assert contents(old) == {"old": "old"} and not new.exists() and not before.exists()
    os.replace(old, before)
    recover(old)
    assert contents(old.parent) == {"out/old": "old"}


# --------------------------------------------------------------------------------------------------- nothing foreign goes


@pytest.mark.parametrize("name", ["notes", "deep/notes", "link", "linked"])
def test_a_foreign_file_or_link_is_named_and_stays(
    old: Path, tmp_path_factory: pytest.TempPathFactory, name: str
) -> None:
    mine = tmp_path_factory.mktemp("mine")
    (mine / "file").write_text("mine")
    (old / name).parent.mkdir(exist_ok=True)
    match name:
        case "link":
            (old / name).symlink_to(mine / "file")
        case "linked":
            (old / name).symlink_to(mine)
        case _:
            (old / name).write_text("mine")
    before = contents(old)
    with pytest.raises(FileExistsError, match=f"holds what this toolkit did not write there \\({name}\\) and is not"):
        written(old, new="new")
    assert contents(old) == before and contents(mine) == {"file": "mine"}


@pytest.mark.parametrize("kind", ["new", "old", "partial"])
@pytest.mark.parametrize("link", [False, True])
def test_a_hidden_folder_that_is_not_ours_is_never_touched(tmp_path: Path, kind: str, link: bool) -> None:
    mine = tmp_path / "mine" if link else tmp_path / f".out.{kind}"
    mine.mkdir()
    (mine / "notes").write_text("mine")
    if link:
        (tmp_path / f".out.{kind}").symlink_to(mine)
    message = rf"\.out\.{kind}' is in the way and not of this toolkit; move it"
    with pytest.raises(FileExistsError, match=message), claimed(tmp_path / "out", overwrite=True, analysis="own"):
        pytest.fail("the work began")
    assert contents(mine) == {"notes": "mine"}


def test_a_folder_without_our_manifest_is_never_replaced(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis").write_text("mine")
    for manifest in (None, '{"made_by": "another"}'):
        if manifest is not None:
            (tmp_path / "out" / MANIFEST).write_text(manifest)
        with pytest.raises(
            (FileExistsError, ValueError), match=r"not write there \(thesis\)|manifest.json' is damaged"
        ):
            refuse_existing(tmp_path / "out", overwrite=True)
    assert contents(tmp_path) == {"out/thesis": "mine"}


def test_a_file_that_came_while_the_new_one_was_made_stays(old: Path) -> None:
    with pytest.raises(FileExistsError, match="notes"), new_folder(old, overwrite=True):
        (old / "notes").write_text("mine")
    assert contents(old.parent) == {"out/old": "old", "out/notes": "mine"}


# ------------------------------------------------------------------------------------------------------- the manifest


def test_the_manifest_lists_every_file_and_every_kind_of_damage_is_named(tmp_path: Path) -> None:
    with new_folder(tmp_path / "out") as making:
        for name in ("cut", "flipped", "gone", "whole"):
            (making / name).write_text("abc")
        written(making / "inner", b="b")
    out, manifest = tmp_path / "out", manifest_of(tmp_path / "out")
    assert manifest is not None and manifest["files"]["whole"] == {
        "bytes": 3,
        "sha256": "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad",
    }
    assert sorted(manifest["files"]) == ["cut", "flipped", "gone", "inner/b", f"inner/{MANIFEST}", "whole"]
    assert damaged_files(out) == {} == damaged_files(out / "inner")
    (out / "cut").write_text("ab")
    (out / "flipped").write_text("abd")
    (out / "gone").unlink()
    assert damaged_files(out) == {
        "cut": "has other contents than when it was written",
        "flipped": "has other contents than when it was written",
        "gone": "is missing",
    }
    assert damaged_files(out, ["whole", "unknown"]) == {}


def test_files_made_again_take_their_places_and_all_else_stays(old: Path) -> None:
    (old / "foreign").write_text("mine")
    with renewed(old) as making:
        (making / "deep").mkdir()
        (making / "deep" / "page").write_text("1")
        (making / "old").write_text("new")
        assert contents(old) == {"old": "old", "foreign": "mine"}
    assert contents(old.parent) == {"out/old": "new", "out/foreign": "mine", "out/deep/page": "1"}
    assert damaged_files(old) == {} and foreign_in(old) == ["foreign"]


# ---------------------------------------------------------------------------------------------------- said before the work


# --------------------------------------------------------------------------------------------------------- one run on each


def test_what_a_run_keeps_stays_until_somebody_removes_it(tmp_path: Path) -> None:
    def stopped(*, keep: bool) -> None:
        with claimed(tmp_path / "out", overwrite=False, analysis="own") as partial:
            assert partial == tmp_path / ".out.partial" and everything_in(partial) == [ANALYSIS]
            if keep:
                (partial / "sweep.jsonl").write_text("kept")
            raise KeyboardInterrupt

    for keep in (False, True):
        with pytest.raises(KeyboardInterrupt):
            stopped(keep=keep)
        assert everything_in(tmp_path) == [".out.partial"] * keep
    partial = tmp_path / ".out.partial"
    message = r"keeps the unfinished work of another analysis .*own.*; finish that, choose another"
    with pytest.raises(FileExistsError, match=message), claimed(tmp_path / "out", overwrite=True, analysis="other"):
        pytest.fail("the work began")
    with claimed(tmp_path / "out", overwrite=False, analysis="own"):
        assert (partial / "sweep.jsonl").read_text() == "kept"
        remove_partial(partial)
    assert everything_in(tmp_path) == []


def test_what_a_run_kept_goes_once_its_results_are_in_place(tmp_path: Path) -> None:
    """Known by the `run.json` that both hold; another's stays."""
    out, partial = tmp_path / "out", tmp_path / ".out.partial"
    for of_results, kept in (("{1}", "{1}"), ("{1}", "{2}"), ("{1}", None)):
        written(out, **{RUN: of_results})
        (partial / COMPUTED).mkdir(parents=True)
        (partial / "sweep.jsonl").write_text("kept")
        (partial / ANALYSIS).write_text('{\n "analysis": "own"\n}')
        if kept is not None:
            (partial / COMPUTED / RUN).write_text(kept)
        with claimed(out, overwrite=True, analysis="own"):
            assert (partial / "sweep.jsonl").exists() is (of_results != kept)
        shutil.rmtree(partial, ignore_errors=True)


HOLDING = """
import sys, time
from pathlib import Path
from mless_interp.runtime.folders import claimed
with claimed(sys.argv[1], overwrite=True, analysis="own") as partial:
    (partial / "kept").write_text("kept")
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_second_run_is_refused_and_what_a_killed_one_held_is_taken_over(tmp_path: Path) -> None:
    out = tmp_path / "out"
    command = [sys.executable, "-c", HOLDING, str(out)]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as first:
        assert first.stdout is not None and first.stdout.readline() == "held\n"
        message = r"'.*out' is in use by another run; wait until it has ended"
        with pytest.raises(BlockingIOError, match=message), claimed(out, overwrite=True, analysis="own"):
            pytest.fail("the work began")
        with pytest.raises(BlockingIOError, match=message):
            written(out, a="a")
        first.kill()
    assert everything_in(tmp_path) == [".out.lock", ".out.partial"]
    with claimed(out, overwrite=False, analysis="own") as partial:
        assert (partial / "kept").read_text() == "kept"
        written(out, a="a")
        assert (tmp_path / ".out.lock").exists(), "still held"
    assert everything_in(tmp_path) == [".out.partial", "out"]


def test_shards_share_what_is_kept_and_leave_it_there(tmp_path: Path) -> None:
    out = tmp_path / "out"
    for index in range(2):
        with claimed(out, overwrite=False, analysis="own", shard=Shard(index, 2)) as partial:
            assert everything_in(tmp_path) == [".out.partial"]
        assert everything_in(tmp_path) == [".out.partial"] and everything_in(partial) == [ANALYSIS]
    with claimed(out, overwrite=False, analysis="own"):
        pass
    assert not partial.exists(), "the whole run removes what holds nothing"


def test_shards_that_begin_at_the_same_moment_do_not_trip_over_each_other(tmp_path: Path) -> None:
    """All write down whose work the folder keeps."""

    def begin(index: int) -> None:
        for round_ in range(10):
            with claimed(tmp_path / f"run{round_}", overwrite=False, analysis="own", shard=Shard(index, 6)):
                pass

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(begin, range(6)))
    for round_ in range(10):
        partial = tmp_path / f".run{round_}.partial"
        assert json.loads((partial / ANALYSIS).read_text())["analysis"] == "own"
        assert everything_in(partial) == [ANALYSIS]
