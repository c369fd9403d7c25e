"""Folders of results: written whole or not at all, with a manifest by which they are known and checked; one run on each.

Beside a folder `name` stand, only while a run lasts or after it was killed: `.name.new` (what is being written), `.name.old`
(what is being replaced), `.name.partial` (what an unfinished run keeps) and `.name.lock`. The next run with that name goes on
from what a dead one has left, or removes it.
"""

import contextlib
import datetime
import hashlib
import json
import os
import shutil
import uuid
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

from ..core.arguments import checked
from .engines import Shard
from .locks import Lock

MANIFEST = "manifest.json"
"""Lists every file of a folder with its size and SHA-256; a folder without one is nobody's to replace."""
ANALYSIS = "analysis.json"
"""Says of which analysis a `.partial` folder is."""
COMPUTED = "computed"
"""In a `.partial` folder: results that are whole, until they stand under the run's name."""
RUN = "run.json"
"""Where results come from, beside them; every run has its own."""
RESULTS = "results"
"""In a run's folder: what it found."""
TOOLKIT = "mless_interp"


# ------------------------------------------------------------------------------------------------------- the manifest


def manifest_of(folder: Path) -> dict[str, Any] | None:
    """Return the manifest of a folder that this toolkit has written, else None; `ValueError` where it is damaged."""
    file = folder / MANIFEST
    if not file.is_file():
        return None
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
        if found["made_by"] == TOOLKIT and isinstance(found["files"], dict):
            return dict(found)
    except (ValueError, KeyError, TypeError):
        pass
    raise ValueError(f"{str(file)!r} is damaged, or no manifest of this toolkit; move the folder away")


def write_manifest(folder: Path, *, only: Collection[str] | None = None) -> None:
    """List every file in a folder (or `only` these), each flushed to the disk."""
    files = {}
    for path in sorted(each for each in folder.rglob("*") if each.is_file() and each != folder / MANIFEST):
        name = path.relative_to(folder).as_posix()
        if only is None or name in only:
            files[name] = {"bytes": path.stat().st_size, "sha256": _sha256(path)}
    made = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    _write_whole(folder / MANIFEST, {"made_by": TOOLKIT, "version": version(TOOLKIT), "made": made, "files": files})


def damaged_files(folder: Path, names: Iterable[str] | None = None) -> dict[str, str]:
    """Return what is wrong with the files of a folder (or these of them), by name; nothing for one without a manifest."""
    files = (manifest_of(folder) or {"files": {}})["files"]
    found = {}
    for name in files if names is None else [name for name in names if name in files]:
        path = folder / name
        if not path.is_file():
            found[name] = "is missing"
        elif _sha256(path) != files[name]["sha256"]:
            found[name] = "has other contents than when it was written"
    return found


def foreign_in(folder: Path) -> list[str]:
    """Return every file and link in a folder that its manifest does not list; all of them where there is no manifest."""
    manifest = manifest_of(folder)
    ours = set() if manifest is None else {MANIFEST, *manifest["files"]}
    found = []
    for root, folders, names in os.walk(folder):
        links = [name for name in folders if os.path.islink(os.path.join(root, name))]
        found += [Path(root, name).relative_to(folder).as_posix() for name in (*names, *links)]
    return sorted(set(found) - ours)


def _few(names: Sequence[str], most: int = 5) -> str:
    return ", ".join(names[:most]) + f" and {len(names) - most} more" * (len(names) > most)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        with contextlib.suppress(OSError):  # on the disk before the folder gets its name, where the system can
            os.fsync(file.fileno())
        return hashlib.file_digest(file, "sha256").hexdigest()


def _write_whole(path: Path, facts: dict[str, Any]) -> None:
    """Write whole or not at all, also where another process (a shard) writes the same file."""
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.new")
    with temporary.open("w", encoding="utf-8") as file:
        json.dump(facts, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


# --------------------------------------------------------------------------------------------------------- a new folder


@checked
@contextmanager
def new_folder(path: str | Path, *, overwrite: bool = False) -> Iterator[Path]:
    """Make a folder that appears under its name only when everything in it is written; it gets a manifest of its files.

    Refuses an existing one unless `overwrite`; then too where it holds anything that this toolkit did not write. The old
    one is replaced only when the new one is whole, and stays if anything fails. Killed at any moment, the next run with
    this name (or `load`) finds the old folder or the new one.
    """
    target = _named(path).resolve()  # a link to a folder stays a link
    target.parent.mkdir(parents=True, exist_ok=True)
    with Lock(target):
        recover(target)
        refuse_existing(path, overwrite=overwrite)
        with _making(target) as making:
            yield making
            write_manifest(making)
            if target.exists():
                refuse_existing(path, overwrite=overwrite)
                os.replace(target, _beside(target, "old"))
            try:
                os.replace(making, target)
            finally:
                recover(target, new=False)


@contextmanager
def renewed(path: str | Path) -> Iterator[Path]:
    """Make files of a folder again: each takes the place of its former one, once all of them are there.

    What else stands in the folder stays, also what is not ours. Killed in between, every file is whole, old or new.
    """
    target = _named(path).resolve()
    with Lock(target):
        recover(target)
        with _making(target) as making:
            yield making
            files = (file for file in sorted(making.rglob("*")) if file.is_file() and file != making / MANIFEST)
            made = [file.relative_to(making) for file in files]
            own = {*(manifest_of(target) or {}).get("files", ()), *(file.as_posix() for file in made)}
            for file in made:
                (target / file.parent).mkdir(parents=True, exist_ok=True)
                os.replace(making / file, target / file)
            write_manifest(target, only=own)


@contextmanager
def _making(target: Path) -> Iterator[Path]:
    """Give the hidden folder in which `target` is written, known by a manifest from its beginning; gone afterwards."""
    making = _beside(target, "new")
    try:
        making.mkdir()
        (making / MANIFEST).touch()
        yield making
    finally:
        if making.exists():
            _remove(making)


@checked
def refuse_existing(path: str | Path, *, overwrite: bool) -> None:
    """Raise `FileExistsError` if `path` exists and may not be replaced (call it before anything long).

    With `overwrite` only a folder is replaced that this toolkit has written, and holds nothing else.
    """
    target = _named(path)
    if not target.exists() or not any(target.iterdir()):
        return
    if not overwrite:
        raise FileExistsError(
            f"the folder {str(target)!r} exists; choose another, or allow overwriting it (--overwrite)"
        )
    if foreign := foreign_in(target):
        raise FileExistsError(
            f"the folder {str(target)!r} holds what this toolkit did not write there ({_few(foreign)}) and is not replaced; "
            "move that away, or choose another name"
        )


def recover(target: Path, *, new: bool = True) -> None:
    """Bring back or remove what a run that died while it wrote this folder has left; call it with the folder locked."""
    made, old = _beside(target, "new"), _beside(target, "old")
    if new and made.exists():
        _remove(made)
    if old.exists():
        if target.exists() or not (old / MANIFEST).exists():
            _remove(old)
        else:
            os.replace(old, target)


def _remove(folder: Path) -> None:
    """Remove a hidden folder of this toolkit, what it is known by last; `FileExistsError` for any other."""
    names = [] if folder.is_symlink() else sorted(os.listdir(folder), key=(MANIFEST, ANALYSIS).__contains__)
    if folder.is_symlink() or (names and names[-1] not in (MANIFEST, ANALYSIS)):
        raise FileExistsError(f"{str(folder)!r} is in the way and not of this toolkit; move it away")
    for each in (folder / name for name in names):
        if each.is_dir() and not each.is_symlink():
            shutil.rmtree(each)
        else:
            each.unlink()
    folder.rmdir()


# ---------------------------------------------------------------------------------------------------------- a whole run


@contextmanager
def claimed(path: str | Path, *, overwrite: bool, analysis: str, shard: Shard | None = None) -> Iterator[Path]:
    """Claim the folder `path` for one run of an analysis, from its beginning; give its `.partial` folder for what it keeps.

    Refuses before any work: a folder that may not be replaced, a place that cannot be written, another run on the same
    folder, and the unfinished work of another analysis. A partial folder that keeps nothing goes; whoever saves removes it.
    Shards of one analysis share the partial folder (their checkpoints have locks of their own) and leave it where it is.
    """
    target, partial = _named(path).resolve(), _beside(Path(path), "partial")
    target.parent.mkdir(parents=True, exist_ok=True)
    with Lock(target, patience=0.0 if shard is None else 3.0) as lock:  # shards begin in turn
        recover(target)
        runs = partial / COMPUTED / RUN, target / RUN
        if all(run.is_file() for run in runs) and runs[0].read_bytes() == runs[1].read_bytes():
            remove_partial(partial)  # killed when its results were in place
        refuse_existing(path, overwrite=overwrite)
        _claim_for(partial, analysis)
        if shard is not None:
            lock.release()
        try:
            yield partial
        finally:
            if shard is None and partial.is_dir() and not _keeps_something(partial):
                shutil.rmtree(partial)


def _keeps_something(partial: Path) -> bool:
    return any(each.name != ANALYSIS and not each.name.startswith(f".{ANALYSIS}.") for each in partial.iterdir())


def remove_partial(partial: Path) -> None:
    """Remove what a run kept whose results are in place: under another name first, which the next run removes for it."""
    old = partial.with_name(f"{partial.name.removesuffix('partial')}old")
    with contextlib.suppress(OSError):  # hidden: no reason to fail after all is done
        os.replace(partial, old)
        _remove(old)


def _claim_for(partial: Path, analysis: str) -> None:
    """Write down whose unfinished work is kept here; another analysis' is refused."""
    partial.mkdir(exist_ok=True)
    file, own = partial / ANALYSIS, {"analysis": analysis}
    if partial.is_symlink() or (not file.exists() and _keeps_something(partial)):
        raise FileExistsError(f"{str(partial)!r} is in the way and not of this toolkit; move it away")
    if not file.exists():
        _write_whole(file, own)
    if (other := file.read_text(encoding="utf-8")) != json.dumps(own, indent=1):
        raise FileExistsError(
            f"{str(partial)!r} keeps the unfinished work of another analysis ({' '.join(other.split())}); finish that, choose "
            "another folder, or delete it"
        )


def _named(path: str | Path) -> Path:
    """Return a path that can name a folder; errors for one that cannot, whatever stands there."""
    found = Path(path)
    if found.exists() and not found.is_dir():
        raise FileExistsError(f"{str(found)!r} is a file, not a folder; choose another name")
    if Path.cwd().resolve().is_relative_to(found.resolve()):
        raise FileExistsError(f"{str(found)!r} holds the current directory and is never replaced; choose another name")
    return found


def _beside(path: Path, kind: str) -> Path:
    return path.with_name(f".{path.name}.{kind}")
