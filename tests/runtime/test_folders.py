"""Folders of results: whole or not at all, killed at any moment; nothing foreign is ever removed; one run on each."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT
from files_under_test import contents, everything_in

from mless_interp.runtime.folders import (
    COMPUTED,
    MANIFEST,
    RUN,
    claimed,
    damaged_files,
    listed_in,
    new_folder,
    refuse_existing,
    write_manifest,
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


def test_a_folder_appears_only_when_it_is_whole_and_replaces_all_of_the_old(tmp_path: Path) -> None:
    target = tmp_path / "very" / "deep" / "out"
    for text in ("1", "2"):
        with new_folder(target, overwrite=True) as folder:
            (folder / "a").mkdir()
            (folder / "a" / text).write_text(text)
            assert contents(target) == ({} if text == "1" else {"a/1": "1"})
    assert contents(tmp_path) == {"very/deep/out/a/2": "2"} and everything_in(target.parent) == ["out"]


def test_a_failure_of_any_step_leaves_the_old_folder_as_it_was(old: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ZeroDivisionError), new_folder(old, overwrite=True) as folder:
        (folder / "new").write_text(str(1 / 0))
    real = os.replace

    def replace(source: Path, target: Path) -> None:
        if Path(target) == old and (Path(source) / "new").exists():
            raise OSError("disk gone")
        real(source, target)

    monkeypatch.setattr(os, "replace", replace)
    with pytest.raises(OSError, match="disk gone"):
        written(old, new="new")
    assert contents(old.parent) == {"out/old": "old"} and everything_in(old.parent) == ["out"]


def test_an_existing_folder_needs_overwrite_and_a_link_stays_a_link(old: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    message = r"the folder '.*out' exists; choose another, .*--overwrite"
    with pytest.raises(FileExistsError, match=message), new_folder(old):
        pytest.fail("the body ran")
    with pytest.raises(FileExistsError, match="'.*out/old' is a file, not a folder; choose another name"):
        refuse_existing(old / "old", overwrite=True)
    link = old.parent / "link"
    link.symlink_to(old)
    written(link, new="new")
    assert link.is_symlink() and contents(old) == {"new": "new"} and everything_in(old.parent) == ["link", "out"]
    monkeypatch.chdir(old)
    for name in (".", ".."):
        with pytest.raises(FileExistsError, match="holds the current directory and is never replaced"):
            refuse_existing(name, overwrite=True)


KILLED = """
import os, shutil, sys, warnings
from pathlib import Path
from mless_interp.runtime import folders

warnings.simplefilter("ignore")
base = Path(sys.argv[1])
out = base / "out"
CALLS = ("replace", "unlink", "rmdir", "mkdir")
seen = set()

def write(**files):
    with folders.new_folder(out, overwrite=True) as making:
        for name, text in files.items():
            (making / name).mkdir()
            (making / name / "a").write_text(text)

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

for step in range(1000):
    for again in range(6):
        shutil.rmtree(base)
        base.mkdir()
        write(old="old", other="old")
        more = killed_at(step, lambda: write(new="new"))
        twice = more and killed_at(again, start)
        start()
        names = sorted(path.name for path in base.iterdir())
        assert names == ["out"], (step, again, names)
        assert folders.damaged_files(out) == {}, (step, again)
        folders.refuse_existing(out, overwrite=True)  # nothing foreign is in it
        found = tuple(sorted(path.name for path in out.iterdir() if path.is_dir()))
        assert found in (("old", "other"), ("new",)), (step, again, found)
        seen.add(found)
        if not twice:
            break
    if not more:
        break
print(step, len(seen))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="kills forked processes")
def test_killed_at_any_step_the_old_or_the_new_folder_is_there_whole(tmp_path: Path) -> None:
    """At every call that changes the disk, and once more in the recovery that follows."""
    (tmp_path / "base").mkdir()
    command = [sys.executable, "-c", KILLED, str(tmp_path / "base")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    steps, outcomes = map(int, done.stdout.split())
    assert steps > 8 and outcomes == 2, "ended with the old in some cases and with the new in others"


@pytest.mark.parametrize("name", ["notes", "deep/notes", "link"])
def test_a_foreign_file_or_link_is_named_and_stays(old: Path, name: str) -> None:
    (old / name).parent.mkdir(exist_ok=True)
    if name == "link":
        (old / name).symlink_to(old.parent)
    else:
        (old / name).write_text("mine")
    with pytest.raises(FileExistsError, match=f"holds what this toolkit did not write there \\({name}\\); move"):
        written(old, new="new")
    assert (old / "old").read_text() == "old"


def test_a_folder_without_our_manifest_and_what_came_meanwhile_are_never_replaced(old: Path) -> None:
    with pytest.raises(FileExistsError, match="notes"), new_folder(old, overwrite=True):
        (old / "notes").write_text("mine")
    assert contents(old.parent) == {"out/old": "old", "out/notes": "mine"}
    (old / MANIFEST).unlink()
    for name in "vwxyz":
        (old / name).touch()
    with pytest.raises(FileExistsError, match=r"not write there \(notes, old, v, w, x\); move"):
        refuse_existing(old, overwrite=True)
    (old / MANIFEST).write_text('{"made_by": "another"}')
    with pytest.raises(ValueError, match=r"manifest.json' is damaged"):
        refuse_existing(old, overwrite=True)


def test_the_manifest_lists_every_file_and_every_kind_of_damage_is_named(tmp_path: Path) -> None:
    with new_folder(tmp_path / "out") as making:
        for name in ("flipped", "gone", "whole"):
            (making / name).write_text("abc")
        written(making / "inner", b="b")
    out = tmp_path / "out"
    assert sorted(listed_in(out)) == ["flipped", "gone", "inner/b", f"inner/{MANIFEST}", "whole"]
    assert listed_in(out)["whole"] == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    facts = json.loads(text := (out / MANIFEST).read_text())
    assert list(facts) == ["made_by", "files"] and text.startswith('{\n "made_by": ')
    assert damaged_files(out) == {} == damaged_files(out / "inner")
    (out / "flipped").write_text("abd")
    (out / "gone").unlink()
    wrong = {"flipped": "has other contents than when it was written", "gone": "is missing"}
    assert damaged_files(out) == wrong and damaged_files(out, ["whole", "unknown"]) == {}
    write_manifest(out, only=["flipped", MANIFEST, "other"])
    assert list(listed_in(out)) == ["flipped"] and damaged_files(out) == {}


def test_what_a_run_keeps_stays_until_somebody_removes_it(tmp_path: Path) -> None:
    out, partial = tmp_path / "a" / "b" / "out", tmp_path / "a" / "b" / ".out.partial"
    for keep in (False, True):
        with claimed(out, overwrite=False, analysis="own"):
            (partial / "sweep.jsonl").write_text("settings\n" + "kept\n" * keep)
        assert everything_in(out.parent) == [".out.partial"] * keep
    message = r"keeps the unfinished work of another analysis \(own\); finish that, choose another"
    with pytest.raises(FileExistsError, match=message), claimed(out, overwrite=True, analysis="other"):
        pytest.fail("the work began")
    with claimed(out, overwrite=False, analysis="own"):
        assert "kept" in (partial / "sweep.jsonl").read_text()
        (partial / "sweep.jsonl").unlink()
        (partial / COMPUTED).mkdir()
        (partial / COMPUTED / RUN).write_text("{}")
    assert partial.exists(), "computed, and not yet presented"


HOLDING = """
import sys, time
from pathlib import Path
from mless_interp.runtime.folders import claimed
with claimed(sys.argv[1], overwrite=True, analysis="own") as partial:
    (partial / "kept.jsonl").write_text("{}\\nkept\\n")
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
        first.kill()
    with claimed(out, overwrite=False, analysis="own") as partial:
        assert (partial / "kept.jsonl").is_file()
        written(out, a="a")
        assert (tmp_path / ".out.lock").exists(), "still held"
    assert everything_in(tmp_path) == [".out.partial", "out"]
