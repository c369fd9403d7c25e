"""Folders of results: written whole or not at all, with a manifest by which they are checked; one run on each.

Beside a folder `name` stand, only while a run lasts or after it was killed: `.name.new` (what is being written), `.name.old`
(what is being replaced), `.name.partial` (what an unfinished run keeps) and `.name.lock`. The next run with that name resumes
from them, or removes them.
"""

import contextlib
import hashlib
import json
import os
import shutil
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import TypeVar

from filelock import FileLock, Timeout

from .workers import Shard

MANIFEST = "manifest.json"  # lists every file of a folder with its SHA-256; a folder without one is nobody's to replace
COMPUTED = "computed"  # in a `.partial` folder: results that are whole, until they stand under the run's name
RUN = "run.json"  # where results come from, beside them; every run has its own
RESULTS = "results"  # in a run's folder: what it found
TOOLKIT = "mless_interp"

SAVED: dict[str, type] = {}
"""The dataclasses that may be saved and made again, by the name under which folders keep them."""
Class = TypeVar("Class", bound=type)


def savable(kind: Class) -> Class:
    """Let instances of this frozen dataclass be saved and loaded: a class decorator."""
    SAVED[kind.__name__] = kind
    return kind


class Lock(contextlib.AbstractContextManager["Lock"]):
    """Holds `path` until `release`, by a hidden file beside it that the system frees when the process ends; the same thread may
    hold it again. `BlockingIOError` where another run holds it for longer than `patience` seconds."""

    def __init__(self, path: Path, *, patience: float = 0.0) -> None:
        self._file = path.with_name(f".{path.name}.lock")
        self._lock = FileLock(self._file, is_singleton=True)
        try:
            self._lock.acquire(timeout=patience)
        except Timeout:
            self._file.touch()  # an error of its own where no file can be made
            raise BlockingIOError(
                f"{str(path)!r} is in use by another run; wait until it has ended, or choose another name (if no other "
                f"process runs, delete {str(self._file)!r})"
            ) from None

    def release(self, *error: object) -> None:
        """Release the lock; a second call does nothing."""
        if self._lock.lock_counter == 1:
            with contextlib.suppress(OSError):
                self._file.unlink()
        self._lock.release()

    __exit__ = release


def listed_in(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of each file in a folder's manifest; nothing without one, `ValueError` for a damaged one."""
    file = folder / MANIFEST
    if not file.is_file():
        return {}
    try:
        found = json.loads(file.read_bytes())
        if found["made_by"] == TOOLKIT:
            return {name: each["sha256"] for name, each in found["files"].items()}
    except (ValueError, KeyError, TypeError, AttributeError):
        pass
    raise ValueError(f"{str(file)!r} is damaged, or no manifest of this toolkit; move the folder away")


def write_manifest(folder: Path, *, only: Collection[str] | None = None) -> None:
    """List every file in a folder (or `only` these)."""
    names = sorted(each.relative_to(folder).as_posix() for each in folder.rglob("*") if each.is_file())
    kept = [name for name in names if name != MANIFEST and (only is None or name in only)]
    files = {name: {"sha256": _sha256(folder / name)} for name in kept}
    temporary = folder / f".{MANIFEST}"
    temporary.write_text(json.dumps({"made_by": TOOLKIT, "files": files}, indent=1))
    os.replace(temporary, folder / MANIFEST)


def damaged_files(folder: Path, names: Iterable[str] | None = None) -> dict[str, str]:
    """Return what is wrong with the files of a folder (or these of them), by name; nothing for one without a manifest."""
    files, found = listed_in(folder), {}
    for name in files if names is None else [name for name in names if name in files]:
        if not (folder / name).is_file():
            found[name] = "is missing"
        elif _sha256(folder / name) != files[name]:
            found[name] = "has other contents than when it was written"
    return found


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextlib.contextmanager
def new_folder(path: str | Path, *, overwrite: bool = False) -> Iterator[Path]:
    """Make a folder that appears under its name, with a manifest of its files, only when everything in it is written.

    Refuses an existing one unless `overwrite`, and then too where it holds anything that this toolkit did not write. The old
    one stays if anything fails.
    """
    target = Path(path).resolve()  # a link to a folder stays a link
    making = _beside(target, "new")
    target.parent.mkdir(parents=True, exist_ok=True)
    with Lock(target):
        recover(target)
        refuse_existing(path, overwrite=overwrite)
        try:
            making.mkdir()
            yield making
            write_manifest(making)
            if target.exists():
                refuse_existing(path, overwrite=overwrite)  # what came meanwhile is never replaced
                os.replace(target, _beside(target, "old"))
            os.replace(making, target)
        finally:
            recover(target)


def recover(target: Path) -> None:
    """Bring back or remove what a run that died while it wrote this folder has left; call it with the folder locked."""
    made, old = _beside(target, "new"), _beside(target, "old")
    if made.exists():
        shutil.rmtree(made)
    if old.exists() and target.exists():
        shutil.rmtree(old)
    elif old.exists():
        os.replace(old, target)


def refuse_existing(path: str | Path, *, overwrite: bool) -> None:
    """Raise `FileExistsError` if `path` exists and may not be replaced: with `overwrite` only a folder that holds nothing but
    what this toolkit has written, by its manifest."""
    target, why = Path(path), ""
    if target.is_file():
        why = "is a file, not a folder; choose another name"
    elif Path.cwd().is_relative_to(target.resolve()):
        why = "holds the current directory and is never replaced; choose another name"
    elif target.exists() and any(target.iterdir()) and not overwrite:
        why = "exists; choose another, or allow overwriting it (overwrite=True, --overwrite)"
    elif target.exists():
        files = (each for each in target.rglob("*") if each.is_symlink() or each.is_file())
        if foreign := sorted({each.relative_to(target).as_posix() for each in files} - {MANIFEST, *listed_in(target)}):
            first = ", ".join(foreign[:5])
            why = f"holds what this toolkit did not write there ({first}); move that away, or choose another name"
    if why:
        raise FileExistsError(f"the folder {str(target)!r} {why}")


@contextlib.contextmanager
def claimed(path: str | Path, *, overwrite: bool, analysis: str, shard: Shard | None = None) -> Iterator[Path]:
    """Claim the folder `path` for one run of an analysis, from its beginning; give its `.partial` folder for what it keeps.

    Refuses before any work: a folder that may not be replaced, a place that cannot be written, another run on the same folder,
    and the unfinished work of another analysis. A partial folder without a finished step goes; whoever saves removes it. Shards
    share it (their checkpoints have locks of their own) and leave it.
    """
    target = Path(path).resolve()
    target.parent.mkdir(parents=True, exist_ok=True)
    patience = 0.0 if shard is None else 3.0  # shards begin in turn
    with Lock(target, patience=patience) as lock:
        recover(target)
        refuse_existing(path, overwrite=overwrite)
        partial = _beside(Path(path), "partial")
        partial.mkdir(exist_ok=True)
        own = partial / f"{analysis}.analysis"
        if others := [each.stem for each in partial.glob("*.analysis") if each != own]:
            raise FileExistsError(
                f"{str(partial)!r} keeps the unfinished work of another analysis ({others[0]}); finish that, choose another "
                "folder, or delete it"
            )
        own.touch()  # says whose work this is, for the next run
        if shard is not None:
            lock.release()
        try:
            yield partial
        finally:
            if shard is None and not finished_steps(partial) and not (partial / COMPUTED / RUN).is_file():
                shutil.rmtree(partial, ignore_errors=True)  # whoever saved has removed it


def finished_steps(partial: Path) -> int:
    """Count what a `.partial` folder holds: the lines of its checkpoints after the first, their settings."""
    files = [file for file in partial.rglob("*.jsonl") if file.is_file()]
    return sum(max(file.read_bytes().count(b"\n") - 1, 0) for file in files)


def _beside(path: Path, kind: str) -> Path:
    return path.with_name(f".{path.name}.{kind}")
