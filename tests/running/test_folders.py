"""Folders of results: whole or not at all, killed at any moment; nothing foreign is ever removed; one run on each."""

import contextlib
import datetime
import errno
import hashlib
import inspect
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from conftest import ROOT
from files_under_test import contents, everything_in

from mless_interp.running import folders
from mless_interp.running.checkpoint import Checkpoint
from mless_interp.running.folders import (
    ANALYSIS,
    COMPUTED,
    MANIFEST,
    RUN,
    claimed,
    damaged_files,
    finish_replacement,
    foreign_in,
    keep_begun,
    manifest_of,
    new_folder,
    read_begun,
    recover,
    refuse_existing,
    remove_partial,
    renewed,
    write_manifest,
)
from mless_interp.running.store import load
from mless_interp.running.work import Shard


def written(folder: Path, **files: str) -> Path:
    """A folder that this toolkit has written."""
    with new_folder(folder, overwrite=True) as making:
        for name, text in files.items():
            (making / name).write_text(text)
    return folder


@pytest.fixture(autouse=True)
def _kinds(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Here names without a suffix are of a kind that this toolkit writes, but in the tests of kinds."""
    if "forged" not in request.fixturenames:
        monkeypatch.setattr(folders, "KINDS", folders.KINDS | {"", ".txt"})


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """A folder with an old result, alone in its parent."""
    return written(tmp_path / "out", old="old")


# ------------------------------------------------------------------------------------------------------- whole or not


def test_a_folder_appears_only_when_it_is_whole(tmp_path: Path) -> None:
    target = tmp_path / "deep" / "out"
    with new_folder(target) as folder:
        (folder / "a.txt").write_text("a")
        assert not target.exists()
        assert folder.parent == target.parent  # the same disk, so that the last step is one rename
    assert contents(tmp_path) == {"deep/out/a.txt": "a"}


def test_a_new_folder_is_readable_by_others(tmp_path: Path) -> None:
    with new_folder(tmp_path / "out"):
        pass
    assert (tmp_path / "out").stat().st_mode & 0o777 == 0o755


def fail_half_way(target: Path, failure: BaseException) -> None:
    with new_folder(target, overwrite=True) as folder:
        (folder / "new.txt").write_text("new")
        raise failure


def test_a_failure_leaves_nothing_behind(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="half way"):
        fail_half_way(tmp_path / "out", RuntimeError("half way"))
    assert everything_in(tmp_path) == []


@pytest.mark.parametrize("failure", [RuntimeError, KeyboardInterrupt, SystemExit])
def test_a_failure_leaves_the_old_folder_as_it_was(old: Path, failure: type[BaseException]) -> None:
    with pytest.raises(failure):
        fail_half_way(old, failure())
    assert contents(old.parent) == {"out/old": "old"}
    assert everything_in(old.parent) == ["out"]


def test_a_failure_of_the_last_step_brings_the_old_folder_back_and_keeps_the_new(
    old: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.replace

    def replace(source: Path, target: Path) -> None:
        if Path(target) == old and (Path(source) / "new.txt").exists():
            raise OSError("disk gone")
        real(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", replace)
        with pytest.raises(OSError, match=r"disk gone; the new results are whole and kept in"):
            written(old, **{"new.txt": "new"})
    assert contents(old.parent) == {"out/old": "old", ".out.new/new.txt": "new"}
    with (
        pytest.warns(UserWarning, match="finished what an earlier run was about to put there"),
        pytest.raises(FileExistsError, match="exists; choose another"),
        new_folder(old),
    ):
        pytest.fail("the body ran")
    assert contents(old.parent) == {"out/new.txt": "new"} and everything_in(old.parent) == ["out"]


def test_overwriting_replaces_the_whole_folder(old: Path) -> None:
    with new_folder(old, overwrite=True) as folder:
        (folder / "new.txt").write_text("new")
        assert contents(old) == {"old": "old"}
    assert contents(old.parent) == {"out/new.txt": "new"}
    assert everything_in(old.parent) == ["out"]


def test_an_existing_folder_is_refused_before_anything_is_made(old: Path) -> None:
    with (
        pytest.raises(FileExistsError, match=r"the folder '.*out' exists; choose another, .*--overwrite"),
        new_folder(old),
    ):
        pytest.fail("the body ran")
    assert everything_in(old.parent) == ["out"]
    with pytest.raises(FileExistsError, match="exists; choose another"):
        refuse_existing(old, overwrite=False)
    refuse_existing(old, overwrite=True)


def test_an_empty_folder_may_be_filled(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    with new_folder(tmp_path / "out") as folder:
        (folder / "a.txt").write_text("a")
    assert contents(tmp_path) == {"out/a.txt": "a"}


def test_a_link_to_a_folder_stays_a_link(old: Path) -> None:
    link = old.parent / "link"
    link.symlink_to(old)
    written(link, new="new")
    assert link.is_symlink() and contents(old) == {"new": "new"}
    assert everything_in(old.parent) == ["link", "out"]


def test_a_part_of_other_results_is_not_replaced(tmp_path: Path) -> None:
    with new_folder(tmp_path / "run") as made:
        written(made / "results", inner="inner")
    whole = contents(tmp_path)
    with pytest.raises(FileExistsError, match=r"'.*results' is a part of the results in '.*run' and is not replaced"):
        refuse_existing(tmp_path / "run" / "results", overwrite=True)
    assert contents(tmp_path) == whole
    refuse_existing(tmp_path / "run", overwrite=True)
    written(tmp_path / "other" / "results", inner="inner")
    (tmp_path / "other" / MANIFEST).write_text("somebody else's")
    refuse_existing(tmp_path / "other" / "results", overwrite=True)


def test_a_link_that_leads_to_itself_is_named(tmp_path: Path) -> None:
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    with pytest.raises(OSError, match=r"loop' (is a link that leads to itself|.*symbolic links)"), new_folder(loop):
        pytest.fail("the body ran")
    with pytest.raises((OSError, ValueError), match=r"loop.*(leads to itself|symbolic links)"):
        Checkpoint(loop, {})
    with pytest.raises(FileNotFoundError, match=r"loop' holds no saved results"):
        load(loop)


@pytest.mark.parametrize("name", [".", "..", "../.."])
def test_the_current_directory_and_those_above_are_never_replaced(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = tmp_path / "a" / "b"
    here.mkdir(parents=True)
    monkeypatch.chdir(here)
    with pytest.raises(FileExistsError, match="holds the current directory and is never replaced; choose another name"):
        refuse_existing(name, overwrite=True)


KILLED = """
import os, shutil, sys, warnings
from pathlib import Path
from mless_interp.running import folders

warnings.simplefilter("ignore")
folders.KINDS |= {"", ".txt"}
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


def test_what_a_killed_run_has_left_is_removed_by_the_next(tmp_path: Path) -> None:
    new = tmp_path / ".out.new"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shutil, "rmtree", lambda *_, **__: None)
        with pytest.raises(RuntimeError):
            fail_half_way(tmp_path / "out", RuntimeError("killed"))
    assert everything_in(new) == [MANIFEST, "new.txt"]
    with claimed(tmp_path / "out", overwrite=False, analysis="own"):
        assert not new.exists()
    assert everything_in(tmp_path) == []


def test_what_a_killed_run_had_copied_there_does_not_count_as_whole(old: Path) -> None:
    """A folder that is made from another begins with a copy of that one's manifest."""
    new = old.with_name(".out.new")
    shutil.copytree(old, new)
    (new / "more").write_text("half")
    with claimed(old, overwrite=True, analysis="own"):
        assert contents(old) == {"old": "old"} and not new.exists()


def test_what_a_run_had_only_begun_to_write_is_removed(tmp_path: Path) -> None:
    """Killed before its manifest had a name: an empty folder, or one with the manifest's beginning alone."""
    new = tmp_path / ".out.new"
    for begun in ((), (f".{MANIFEST}.new",)):
        new.mkdir()
        for name in begun:
            (new / name).write_text("{")
        recover(tmp_path / "out")
        assert everything_in(tmp_path) == []


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_whole_new_folder_is_put_in_place_as_its_run_was_about_to(overwrite: bool, old: Path) -> None:
    new, put = old.with_name(".out.new"), old.with_name("other")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(folders, "_put_in_place", lambda *_, **__: None)  # killed there
        with new_folder(put, overwrite=overwrite) as making:
            (making / "new").write_text("new")
    os.replace(put.with_name(".other.new"), new)
    if overwrite:
        with pytest.warns(UserWarning, match="'.*out': finished what an earlier run was about to put there"):
            recover(old)
        assert contents(old.parent) == {"out/new": "new"}
    else:
        with pytest.raises(FileExistsError, match="the new results are whole and kept in '.*.out.new'"):
            recover(old)
        assert contents(old.parent) == {"out/old": "old", ".out.new/new": "new"}


@pytest.mark.parametrize("gone", [False, True])
def test_an_old_folder_comes_back_where_no_other_stands_and_goes_where_one_does(gone: bool, old: Path) -> None:
    shutil.copytree(old, old.with_name(".out.old"))
    if gone:
        shutil.rmtree(old)
    recover(old)
    assert contents(old.parent) == {"out/old": "old"}
    shutil.copytree(old, old.with_name(".out.old"))
    (old.with_name(".out.old") / "mine").write_text("mine")
    with pytest.raises(FileExistsError, match=r"'.*\.out\.old' holds foreign files \(mine\); move it away"):
        recover(old)
    assert len(contents(old.parent)) == 3


def test_a_hidden_folder_that_is_not_ours_is_never_removed(tmp_path: Path) -> None:
    (tmp_path / ".out.new").mkdir()
    (tmp_path / ".out.new" / "notes").write_text("mine")
    with pytest.raises(FileExistsError, match=r"'.*\.out\.new' is in the way and not of this toolkit; move it away"):
        written(tmp_path / "out", a="a")
    assert contents(tmp_path) == {".out.new/notes": "mine"}


# --------------------------------------------------------------------------------------------- nothing foreign is removed


def test_a_folder_without_our_manifest_is_never_replaced(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    for name in "abcdefg":
        (tmp_path / "out" / name).write_text("mine")
    message = (
        r"holds what this toolkit did not write there \(a, b, c, d, e and 2 more\) and is not replaced; move that away"
    )
    with pytest.raises(FileExistsError, match=message):
        refuse_existing(tmp_path / "out", overwrite=True)
    with pytest.raises(FileExistsError, match=message):
        written(tmp_path / "out", a="a")
    assert len(contents(tmp_path)) == 7


@pytest.mark.parametrize("name", ["notes.txt", "deep/notes.txt", ".hidden"])
def test_a_foreign_file_is_named_and_stays(old: Path, name: str) -> None:
    (old / name).parent.mkdir(exist_ok=True)
    (old / name).write_text("mine")
    with pytest.raises(FileExistsError, match=rf"did not write there \({name}\) and is not replaced"):
        written(old, new="new")
    assert contents(old.parent) == {"out/old": "old", f"out/{name}": "mine"}


@pytest.mark.parametrize("name", ["link", "old"])
def test_links_are_foreign_and_never_followed(old: Path, tmp_path_factory: pytest.TempPathFactory, name: str) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (elsewhere / "old").write_text("mine")
    (old / name).unlink(missing_ok=True)
    (old / name).symlink_to(elsewhere if name == "link" else elsewhere / "old")
    assert foreign_in(old) == [name]
    with pytest.raises(FileExistsError, match=rf"did not write there \({name}\)"):
        written(old, new="new")
    assert contents(elsewhere) == {"old": "mine"}


@pytest.fixture
def forged(tmp_path: Path) -> Callable[..., Path]:
    """A folder with these files under a manifest that lists them, and whatever else it is told, with a right digest."""

    def made(*listed: str, name: str = "out", files: Sequence[str] = ("heads.csv",), complete: bool = True) -> Path:
        folder = tmp_path / name
        with new_folder(folder):
            pass
        for each in files:
            (folder / each).parent.mkdir(parents=True, exist_ok=True)
            (folder / each).write_text("mine")
        write_manifest(folder, complete=complete, overwrite=True)
        facts = json.loads((folder / MANIFEST).read_text())
        facts["files"] |= {name: {"bytes": 4, "sha256": hashlib.sha256(b"mine").hexdigest()} for name in listed}
        (folder / MANIFEST).write_text(json.dumps(facts | {"digest": folders._digest(facts)}))
        assert json.loads((folder / MANIFEST).read_text())["digest"] == folders._digest(facts)
        return folder

    return made


@pytest.mark.parametrize("name", ["../precious.csv", "{tmp}/precious.csv", "a/../../precious.csv", "./heads.csv", ""])
def test_a_manifest_that_names_files_outside_is_no_manifest(
    name: str, forged: Callable[..., Path], tmp_path: Path
) -> None:
    """Also where its digest is right: whoever wrote it, nothing is read or removed by it."""
    (tmp_path / "precious.csv").write_text("mine")
    out = forged(name.format(tmp=tmp_path))
    before = contents(tmp_path)
    with pytest.raises(ValueError, match=r"manifest.json' is damaged, or no manifest of this toolkit; move the folder"):
        written(out, **{"new.csv": "new"})
    with pytest.raises(ValueError, match="no manifest of this toolkit"):
        damaged_files(out)
    assert contents(tmp_path) == before


@pytest.mark.parametrize("name", ["notes.txt", "notes", "deep/thesis.docx", ".hidden", "model.safetensors"])
def test_a_file_of_no_kind_that_is_written_here_stays_whatever_a_manifest_says(
    name: str, forged: Callable[..., Path], tmp_path: Path
) -> None:
    out = forged(files=["heads.csv", name])
    before = contents(tmp_path)
    assert foreign_in(out) == [name] and damaged_files(out) == {}
    with pytest.raises(FileExistsError, match=rf"did not write there \({name}\) and is not replaced"):
        written(out, **{"new.csv": "new"})
    assert contents(tmp_path) == before
    for hidden in ("old", "new"):  # what a dead run is said to have left
        away = out.with_name(f".run.{hidden}")
        os.replace(out, away)
        (tmp_path / "run").mkdir(exist_ok=True)
        with pytest.raises(FileExistsError, match=r"move it away"):
            written(tmp_path / "run", **{"new.csv": "new"})
        assert (away / name).read_text() == "mine"
        os.replace(away, out)


@pytest.mark.parametrize("complete", [True, False])
def test_an_unfinished_folder_with_foreign_files_is_not_removed(
    complete: bool, forged: Callable[..., Path], tmp_path: Path
) -> None:
    away = forged(name=".out.new", files=["heads.csv", "notes.txt"], complete=complete)
    with pytest.raises(FileExistsError, match=r"'.*\.out\.new' is in the way and not of this toolkit \(notes.txt\)"):
        written(tmp_path / "out", **{"new.csv": "new"})
    assert (away / "notes.txt").read_text() == "mine"


@pytest.mark.parametrize("hidden", ["new", "old"])
def test_a_hidden_folder_that_is_a_link_is_not_followed(
    hidden: str, forged: Callable[..., Path], tmp_path: Path
) -> None:
    elsewhere = forged(name="elsewhere", files=["heads.csv"])
    (tmp_path / f".out.{hidden}").symlink_to(elsewhere)
    (tmp_path / "out").mkdir()
    with pytest.raises(FileExistsError, match="in the way and not of this toolkit"):
        written(tmp_path / "out", **{"new.csv": "new"})
    assert (elsewhere / "heads.csv").read_text() == "mine"


def test_a_linked_folder_within_is_neither_emptied_nor_written_through(
    forged: Callable[..., Path], tmp_path: Path
) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "a.csv").write_text("mine")
    out = forged("results/a.csv")
    (out / "results").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(FileExistsError, match=r"did not write there \(results\)"):
        written(out, **{"new.csv": "new"})

    def made_again() -> None:
        with renewed(out) as making:
            (making / "results").mkdir()
            (making / "results" / "a.csv").write_text("new")

    with pytest.raises(FileExistsError, match=r"results' is a link, and nothing is written through it"):
        made_again()
    assert (tmp_path / "elsewhere" / "a.csv").read_text() == "mine"


def test_what_this_toolkit_writes_is_of_its_kinds(forged: Callable[..., Path], tmp_path: Path) -> None:
    """Else its own folders could not be replaced."""
    from mless_interp.commands import kept
    from mless_interp.running import store

    cases = re.findall(r'case ((?:"\.\w+"(?: \| )?)+):', inspect.getsource(kept._write))
    written_there = {name for case in cases for name in re.findall(r'"(\.\w+)"', case)}
    assert len(written_there) == 5
    assert (
        written_there | {Path(name).suffix for name in (store.ARRAYS, store.DOCUMENT, MANIFEST, RUN)} == folders.KINDS
    )


def test_a_file_that_came_while_the_new_one_was_made_keeps_both(old: Path) -> None:
    def meanwhile() -> None:
        with new_folder(old, overwrite=True) as making:
            (making / "new").write_text("new")
            (old / "notes").write_text("mine")

    with pytest.raises(FileExistsError, match=r"\(notes\) and is not replaced.*the new results are whole and kept in"):
        meanwhile()
    assert contents(old.parent) == {"out/old": "old", "out/notes": "mine", ".out.new/new": "new"}
    (old / "notes").unlink()
    with pytest.warns(UserWarning, match="finished what"), claimed(old, overwrite=True, analysis="own"):
        assert contents(old) == {"new": "new"}


def test_a_folder_that_came_while_the_new_one_was_made_is_kept_without_overwrite(tmp_path: Path) -> None:
    def meanwhile() -> None:
        with new_folder(tmp_path / "out") as making:
            (making / "new").write_text("new")
            (tmp_path / "out").mkdir()
            (tmp_path / "out" / "theirs").write_text("theirs")

    with pytest.raises(FileExistsError, match=r"exists; choose another.*the new results are whole and kept in"):
        meanwhile()
    assert contents(tmp_path) == {"out/theirs": "theirs", ".out.new/new": "new"}


# --------------------------------------------------------------------------------------------------------- the manifest


def test_the_manifest_lists_every_file_with_its_checksum(tmp_path: Path) -> None:
    with new_folder(tmp_path / "out") as making:
        (making / "a").write_text("abc")
        written(making / "inner", b="")
    manifest = manifest_of(tmp_path / "out")
    assert (
        manifest is not None and manifest["made_by"] == "mless_interp" and manifest["version"] and manifest["complete"]
    )
    assert manifest["files"]["a"] == {
        "bytes": 3,
        "sha256": "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad",
    }
    assert sorted(manifest["files"]) == ["a", "inner/b", f"inner/{MANIFEST}"]
    assert damaged_files(tmp_path / "out") == {} == damaged_files(tmp_path / "out" / "inner")


def test_every_kind_of_damage_is_named(tmp_path: Path) -> None:
    out = written(tmp_path / "out", cut="abc", flipped="abc", gone="abc", whole="abc")
    (out / "cut").write_text("ab")
    (out / "flipped").write_text("abd")
    (out / "gone").unlink()
    assert damaged_files(out) == {
        "cut": "has 2 bytes of 3",
        "flipped": "has other contents than when it was written",
        "gone": "is missing",
    }
    assert damaged_files(out, ["whole", "unknown"]) == {}


def test_a_damaged_manifest_is_named_and_its_folder_stays(old: Path) -> None:
    whole = (old / MANIFEST).read_text()
    for text in (
        "",
        "[]",
        "{}",
        whole[:-9],
        whole.replace("old", "odd"),
        whole.replace('"complete": true', '"complete": 1'),
    ):
        (old / MANIFEST).write_text(text)
        with pytest.raises(ValueError, match=r"manifest.json' is damaged.*move the folder away"):
            refuse_existing(old, overwrite=True)
        assert contents(old) == {"old": "old"}


# ---------------------------------------------------------------------------------------------------- said before the work


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        ("file", FileExistsError, "'.*file' is a file, not a folder; choose another name"),
        (
            "file/out",
            NotADirectoryError,
            "cannot make the folder '.*file/out': '.*file' is a file; choose another place",
        ),
        ("x" * 250, OSError, r"cannot write the folder '.*x\.\.\.' \(File name too long\); choose another name"),
        ("ü" * 125, OSError, r"\(File name too long\)"),
        ("x" * 300, OSError, r"\(File name too long\)"),
        ("\ud800", ValueError, r"the name '.*\\ud800' cannot be written; choose another"),
        ("\udcff", ValueError, r"the name '.*\\udcff' cannot be written; choose another"),
        ("\0", ValueError, "null"),
    ],
)
@pytest.mark.parametrize("overwrite", [False, True])
def test_a_name_that_cannot_be_written_is_told_first(
    tmp_path: Path, name: str, error: type[Exception], message: str, overwrite: bool
) -> None:
    (tmp_path / "file").write_text("mine")
    for begin in (
        lambda: claimed(tmp_path / name, overwrite=overwrite, analysis="own"),
        lambda: new_folder(tmp_path / name, overwrite=overwrite),
    ):
        with pytest.raises(error, match=message), begin():
            pytest.fail("the work began")
    assert contents(tmp_path) == {"file": "mine"}


def test_a_place_that_cannot_be_written_is_told_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a read-only disk; whoever tests as root may write everywhere."""

    def refuse(path: object, *_: object, **__: object) -> int:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))

    monkeypatch.setattr(os, "open", refuse)
    monkeypatch.setattr(os, "mkdir", refuse)
    with (
        pytest.raises(OSError, match=r"cannot write the folder '.*out' \(Read-only file system\); choose another"),
        claimed(tmp_path / "deep" / "out", overwrite=False, analysis="own"),
    ):
        pytest.fail("the work began")


def test_a_full_disk_is_told_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10**9, 10**9, 2048))
    with (
        pytest.raises(OSError, match=r"has 2 KiB left, a run needs 8192 at the very least: make room"),
        claimed(tmp_path / "out", overwrite=False, analysis="own"),
    ):
        pytest.fail("the work began")
    assert everything_in(tmp_path) == []


def test_a_disk_that_fills_at_the_end_replaces_nothing_and_says_what_is_kept(old: Path) -> None:
    def fill() -> None:
        with new_folder(old, overwrite=True) as making:
            (making / "new").write_text("new")
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "new")

    with pytest.raises(
        OSError, match=r"\(No space left on device\), nothing was replaced: make room, then start again"
    ):
        fill()
    with claimed(old, overwrite=True, analysis="own") as partial:
        (partial / "sweep.jsonl").write_text("kept")
        with pytest.raises(OSError, match=r"nothing was replaced; what had finished is kept in '.*\.out\.partial'"):
            fill()
    assert contents(old) == {"old": "old"} and (old.parent / ".out.partial" / "sweep.jsonl").read_text() == "kept"


# --------------------------------------------------------------------------------------------------------- one run on each


def test_what_a_run_keeps_stays_until_somebody_removes_it(tmp_path: Path) -> None:
    with claimed(tmp_path / "out", overwrite=False, analysis="own") as partial:
        assert partial == tmp_path / ".out.partial" and everything_in(partial) == [ANALYSIS]
        (partial / "sweep.jsonl").write_text("kept")
    assert everything_in(tmp_path) == [".out.partial"]
    with claimed(tmp_path / "out", overwrite=False, analysis="own"):
        assert (partial / "sweep.jsonl").read_text() == "kept"
        shutil.rmtree(partial)
    with claimed(tmp_path / "out", overwrite=False, analysis="own"):
        pass
    assert everything_in(tmp_path) == []


def test_a_run_that_is_stopped_says_what_is_kept(tmp_path: Path) -> None:
    def stopped(keep: bool, *words: str) -> None:
        with claimed(tmp_path / "out", overwrite=False, analysis="own") as partial:
            if keep:
                (partial / "answers.jsonl").write_text("kept")
            raise KeyboardInterrupt(*words)

    with pytest.raises(KeyboardInterrupt, match="^$"):
        stopped(False)
    with pytest.raises(
        KeyboardInterrupt, match="what had finished is kept in '.*.out.partial': start again with the same"
    ):
        stopped(True)
    with pytest.raises(KeyboardInterrupt, match="^said already$"):
        stopped(True, "said already")
    assert everything_in(tmp_path) == [".out.partial"]


def test_what_a_run_kept_goes_once_its_results_are_in_place(tmp_path: Path) -> None:
    """Known by the `run.json` that both hold; another's stays. What holds no file at all goes too."""
    out, partial = tmp_path / "out", tmp_path / ".out.partial"
    for of_results, kept in (("{1}", "{1}"), ("{1}", "{2}"), (None, "{1}"), ("{1}", None)):
        shutil.rmtree(out, ignore_errors=True)
        written(out, a="a")
        (partial / COMPUTED).mkdir(parents=True)
        (partial / "sweep.jsonl").write_text("kept")
        (partial / ANALYSIS).write_text('{"analysis": "own"}')
        if of_results is not None:
            (out / RUN).write_text(of_results)
            write_manifest(out)
        if kept is not None:
            (partial / COMPUTED / RUN).write_text(kept)
        with claimed(out, overwrite=True, analysis="own"):
            assert (partial / "sweep.jsonl").exists() is (of_results != kept)
        shutil.rmtree(partial, ignore_errors=True)
    (partial / "deep" / "deeper").mkdir(parents=True)
    with claimed(out, overwrite=True, analysis="own"):
        assert everything_in(partial) == [ANALYSIS]
    assert not partial.exists()


def test_all_that_a_run_kept_is_removed_and_nothing_that_it_links_to(tmp_path: Path) -> None:
    partial, mine = tmp_path / ".out.partial", tmp_path / "mine"
    for folder in (mine, partial / COMPUTED / "deep", partial / "pictures"):
        folder.mkdir(parents=True)
        (folder / "file").write_text("x")
    (partial / COMPUTED / RUN).write_text("{}")
    (partial / "link").symlink_to(mine)
    remove_partial(partial)
    assert everything_in(tmp_path) == ["mine"] and contents(mine) == {"file": "x"}
    remove_partial(partial)  # gone already


def test_files_made_again_take_their_places_and_all_else_stays(old: Path) -> None:
    (old / "foreign").write_text("mine")
    (old / "deep").mkdir()
    with renewed(old) as making:
        assert making == old.with_name(".out.new")
        (making / "deep").mkdir()
        (making / "deep" / "page").write_text("1")
        (making / "old").write_text("new")
        assert contents(old) == {"old": "old", "foreign": "mine"}
    assert contents(old) == {"old": "new", "foreign": "mine", "deep/page": "1"}
    manifest = manifest_of(old)
    assert manifest is not None and set(manifest["files"]) == {"old", "deep/page"} and manifest["complete"]
    assert damaged_files(old) == {} and foreign_in(old) == ["foreign"]
    (old / "foreign").unlink()

    def fail() -> None:
        with renewed(old) as making:
            (making / "old").write_text("half")
            raise RuntimeError("half way")

    with pytest.raises(RuntimeError, match="half way"):
        fail()
    assert contents(old.parent) == {"out/old": "new", "out/deep/page": "1"}


def test_another_analysis_never_touches_what_one_has_kept(tmp_path: Path) -> None:
    with claimed(tmp_path / "out", overwrite=False, analysis="accuracy") as partial:
        (partial / "answers.jsonl").write_text("kept")
    message = r"'.*\.out\.partial' keeps the unfinished work of another analysis, accuracy \(begun 20.*\); finish that"
    with pytest.raises(FileExistsError, match=message), claimed(tmp_path / "out", overwrite=True, analysis="mechanism"):
        pytest.fail("the work began")
    assert (partial / "answers.jsonl").read_text() == "kept"


@pytest.mark.parametrize("as_link", [False, True])
@pytest.mark.parametrize("overwrite", [False, True])
def test_a_foreign_folder_in_the_place_of_what_is_kept_is_never_touched(
    as_link: bool, overwrite: bool, tmp_path: Path
) -> None:
    where, partial = tmp_path / "precious", tmp_path / ".out.partial"
    where.mkdir()
    (where / "mine.txt").write_text("mine")
    if as_link:  # a link is foreign even where it points at what a run has kept
        (where / ANALYSIS).write_text('{"analysis": "own"}')
        partial.symlink_to(where)
    else:
        where = where.rename(partial)
    before = contents(where)
    refused = pytest.raises(FileExistsError, match=r"out.partial'.*move it away")
    with refused, claimed(tmp_path / "out", overwrite=overwrite, analysis="own"):
        pytest.fail("the work began")
    assert contents(where) == before


HOLDING = """
import sys, time
from pathlib import Path
from mless_interp.running.folders import claimed
with claimed(sys.argv[1], overwrite=True, analysis="own") as partial:
    (partial / "kept").write_text("kept")
    print("held", flush=True)
    sys.stdin.read()
"""


def holder(out: Path) -> subprocess.Popen:
    command = [sys.executable, "-c", HOLDING, str(out)]
    process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "held\n"
    return process


def test_a_second_run_on_the_same_folder_is_refused_with_its_owner(tmp_path: Path) -> None:
    with holder(tmp_path / "out") as first:
        since = rf"by process {first.pid} on .* since 20.*, \d+ (second|minute)s? ago \(-c .*out\)"
        message = rf"'.*out' is in use {since}; wait until it has ended"
        with pytest.raises(BlockingIOError, match=message), claimed(tmp_path / "out", overwrite=True, analysis="own"):
            pytest.fail("the work began")
        with pytest.raises(BlockingIOError, match=message):
            written(tmp_path / "out", a="a")
        first.communicate("")
    written(tmp_path / "out", a="a")


def test_what_a_killed_run_held_is_taken_over_and_said(tmp_path: Path) -> None:
    with holder(tmp_path / "out") as first:
        first.kill()
        first.communicate()
    assert everything_in(tmp_path) == [".out.lock", ".out.owner", ".out.partial"]
    with (
        pytest.warns(UserWarning, match="'.*out': going on from a run that ended without saying so"),
        claimed(tmp_path / "out", overwrite=False, analysis="own") as partial,
    ):
        assert (partial / "kept").read_text() == "kept"
    assert everything_in(tmp_path) == [".out.partial"]


def test_a_folder_may_be_written_within_its_own_run(tmp_path: Path) -> None:
    with claimed(tmp_path / "out", overwrite=False, analysis="own"):
        written(tmp_path / "out", a="a")
        assert (tmp_path / ".out.lock").exists(), "still held"
    assert everything_in(tmp_path) == ["out"]


# ------------------------------------------------------------------------------------------------- rules, one at a time


def test_what_a_reader_finds_half_replaced_is_finished(tmp_path: Path) -> None:
    out, new = tmp_path / "out", tmp_path / ".out.new"
    finish_replacement(out)
    assert everything_in(tmp_path) == []
    os.replace(written(tmp_path / "other", a="a"), new)
    with pytest.warns(UserWarning, match="'.*out': finished what an earlier run was about to put there"):
        finish_replacement(out)
    assert contents(tmp_path) == {"out/a": "a"} and everything_in(tmp_path) == ["out"]


def test_a_new_folder_that_is_damaged_is_not_put_in_place(old: Path) -> None:
    new = old.with_name(".out.new")
    shutil.copytree(old, new)
    (new / "old").write_text("odd")
    recover(old)
    assert contents(old.parent) == {"out/old": "old"}


def test_an_empty_old_folder_goes(old: Path) -> None:
    old.with_name(".out.old").mkdir()
    recover(old)
    assert everything_in(old.parent) == ["out"]


def test_folders_within_folders_are_replaced_too(tmp_path: Path) -> None:
    out = tmp_path / "out"
    for text in ("1", "2"):
        with new_folder(out, overwrite=True) as making:
            (making / "a" / "b" / "c").mkdir(parents=True)
            (making / "a" / "b" / "c" / "file").write_text(text)
    assert contents(tmp_path) == {"out/a/b/c/file": "2"}


def test_what_a_manifest_says(old: Path) -> None:
    manifest = manifest_of(old)
    assert manifest is not None and set(manifest) == {
        "made_by", "version", "made", "complete", "overwrite", "files", "digest",
    }  # fmt: skip
    made = datetime.datetime.fromisoformat(manifest["made"])
    assert made.utcoffset() == datetime.timedelta() and not made.microsecond and manifest["overwrite"] is True
    write_manifest(old, complete=False)
    manifest = manifest_of(old)
    assert manifest is not None and (manifest["complete"], manifest["overwrite"], manifest["files"]) == (
        False,
        False,
        {},
    )


def test_the_room_that_is_needed_is_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for free in (folders.ROOM, folders.ROOM - 1):
        monkeypatch.setattr(shutil, "disk_usage", lambda _, free=free: shutil._ntuple_diskusage(10**9, 10**9, free))
        if free == folders.ROOM:
            folders._check_room(tmp_path)
        else:
            with pytest.raises(OSError, match="has 8191 KiB left, a run needs 8192") as error:
                folders._check_room(tmp_path)
            assert error.value.errno == errno.ENOSPC


def test_a_note_of_whose_work_is_kept_that_is_damaged_is_written_anew(tmp_path: Path) -> None:
    partial = tmp_path / ".out.partial"
    partial.mkdir()
    for text in ("{", "[]", "{}", "3"):
        (partial / ANALYSIS).write_text(text)
        (partial / "kept").write_text("kept")
        with claimed(tmp_path / "out", overwrite=False, analysis="own"):
            found = json.loads((partial / ANALYSIS).read_text())
            assert found["analysis"] == "own" and found["pid"] == os.getpid()
    (partial / ANALYSIS).write_text('{"analysis": "theirs"}')
    message = r"keeps the unfinished work of another analysis, theirs \(begun \?: \?\); finish that, choose another"
    with pytest.raises(FileExistsError, match=message), claimed(tmp_path / "out", overwrite=False, analysis="own"):
        pytest.fail("the work began")


def test_shards_share_what_is_kept_and_leave_it_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each with a lock of its own; none beside the whole run."""
    out, asked = tmp_path / "out", []
    monkeypatch.setattr(folders, "refuse_in_use", asked.append)
    monkeypatch.setattr(folders, "held_briefly", lambda path, **_: asked.append(path) or contextlib.nullcontext())
    for index in range(2):
        with claimed(out, overwrite=False, analysis="own", shard=Shard(index, 2)) as partial:
            assert everything_in(tmp_path) == [f".out.{index}-of-2.lock", f".out.{index}-of-2.owner", ".out.partial"]
            assert asked == [out]
            asked.clear()
        assert everything_in(tmp_path) == [".out.partial"] and everything_in(partial) == [ANALYSIS]
    for name in (".out.0-of-2.lock", ".out.1-of-2.lock", ".other.0-of-2.lock", ".out.lock.lock", "out.0-of-3.lock"):
        (tmp_path / name).touch()
    with claimed(out, overwrite=False, analysis="own"):
        assert sorted(asked) == [tmp_path / "out.0-of-2", tmp_path / "out.1-of-2"]
    assert not partial.exists(), "the whole run removes what holds nothing"


def test_a_disk_error_says_where_also_of_a_long_name() -> None:
    error = OSError(errno.EIO, "gone")
    for length, shown in ((199, "x" * 199), (200, "x" * 150 + "...")):
        found = folders._cannot_write("x" * length, error)
        assert found.errno == errno.EIO
        assert str(found).endswith(f"cannot write the folder {shown!r} (gone); choose another name or place")


def test_shards_that_begin_at_the_same_moment_do_not_trip_over_each_other(tmp_path: Path) -> None:
    """All write down whose work the folder keeps, and with which options it was begun."""

    def begin(index: int) -> None:
        for round_ in range(20):
            with claimed(tmp_path / f"run{round_}", overwrite=False, analysis="own", shard=Shard(index, 6)) as partial:
                keep_begun(partial / "options.json", {"a": 1}, command="own " * index)

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(begin, range(6)))
    for round_ in range(20):
        partial = tmp_path / f".run{round_}.partial"
        assert json.loads((partial / ANALYSIS).read_text())["analysis"] == "own"
        assert read_begun(partial / "options.json") == {"a": 1}
        assert sorted(each.name for each in partial.iterdir()) == [ANALYSIS, "options.json"]


def test_what_a_run_was_killed_over_before_it_kept_anything_is_in_nobodys_way(tmp_path: Path) -> None:
    partial = tmp_path / ".run.partial"
    partial.mkdir()
    (partial / f".{ANALYSIS}.1.new").write_text("{")
    with claimed(tmp_path / "run", overwrite=False, analysis="own"):
        assert (partial / ANALYSIS).is_file()
    assert everything_in(tmp_path) == []


def test_what_shards_keep_is_not_taken_for_the_rest_of_a_run_that_was_finished(tmp_path: Path) -> None:
    """One that was killed between putting its results in place and removing what it had kept of them."""
    run, partial = written(tmp_path / "run", run="one"), tmp_path / ".run.partial"
    (run / RUN).write_text("one")
    write_manifest(run)
    (partial / COMPUTED).mkdir(parents=True)
    (partial / COMPUTED / RUN).write_text("one")
    (partial / ANALYSIS).write_text('{"analysis": "own"}')
    with claimed(run, overwrite=True, analysis="own", shard=Shard(0, 2)):
        assert [each.name for each in partial.iterdir()] == [ANALYSIS]
        (partial / "c.0-of-2.jsonl").write_text("kept")
    with claimed(run, overwrite=True, analysis="own"):
        assert (partial / "c.0-of-2.jsonl").read_text() == "kept"
