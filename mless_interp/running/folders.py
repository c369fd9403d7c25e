"""Folders of results: written whole or not at all, with a manifest by which they are known and checked; one run on each.

Beside a folder `name` stand, only while a run lasts or after it was killed: `.name.new` (what is being written),
`.name.old` (what is being replaced), `.name.partial` (what an unfinished run keeps), `.name.lock` and `.name.owner`. The
next run with that name finishes or removes what a dead one has left.
"""

import contextlib
import datetime
import errno
import hashlib
import json
import os
import re
import shutil
import uuid
import warnings
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path, PurePosixPath
from typing import Any

from ..given import checked
from .checkpoint import key_of
from .locks import Lock, held_briefly, owner, refuse_in_use
from .work import Shard, part_names

MANIFEST = "manifest.json"
"""Lists every file of a folder with its size and SHA-256; a folder without one is nobody's to replace."""
ANALYSIS = "analysis.json"
"""Says of which analysis a `.partial` folder is."""
COMPUTED = "computed"
"""In a `.partial` folder: results that are whole, until they stand under the run's name."""
RUN = "run.json"
"""Where results come from, beside them; every run has its own."""
TOOLKIT = "mless_interp"
KINDS = frozenset({".csv", ".html", ".json", ".jsonl", ".npz", ".parquet", ".png"})
"""What this toolkit writes into folders. A file of another kind is never removed, whatever a manifest says of it."""
PASSING = frozenset({".lock", ".new", ".owner"})
"""Kinds of files that stand only where something is being written."""
NAMED = 5
"""Files that a message names."""
ROOM = 8 << 20
"""Bytes that must be free where a run begins."""
UNWRITABLE = {getattr(errno, name, None) for name in ("ENOSPC", "EDQUOT", "EROFS", "EIO")} - {None}
"""Errors of a disk that is full, or gone."""


# ------------------------------------------------------------------------------------------------------- the manifest


def manifest_of(folder: Path) -> dict[str, Any] | None:
    """The manifest of a folder that this toolkit has written, else None; `ValueError` where it is damaged."""
    file = folder / MANIFEST
    if file.is_symlink() or not file.is_file():
        return None
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
        ours = found["made_by"] == TOOLKIT and found["digest"] == _digest(found) and isinstance(found["files"], dict)
        ours = ours and all(map(_inside, found["files"]))
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{str(file)!r} is damaged ({type(error).__name__}); move the folder away") from error
    if not ours:
        raise ValueError(f"{str(file)!r} is damaged, or no manifest of this toolkit; move the folder away")
    return found


def _inside(name: str) -> bool:
    """Whether a manifest's name is that of a file in its folder, as this toolkit writes it.

    >>> [_inside(name) for name in ("results/arrays.npz", "../x.csv", "/x.csv", "a/./x.csv", "")]
    [True, False, False, False, False]
    """
    path = PurePosixPath(name)
    return bool(path.parts) and not path.is_absolute() and ".." not in path.parts and path.as_posix() == name


def write_manifest(
    folder: Path, *, complete: bool = True, overwrite: bool = False, only: Collection[str] | None = None
) -> None:
    """List every file in a folder (or `only` these), each flushed to the disk; `complete=False` marks one that is still
    being written."""
    files = {}
    for path in sorted(folder.rglob("*")) if complete else ():
        asked = only is None or path.relative_to(folder).as_posix() in only
        if asked and path.is_file() and path != folder / MANIFEST:
            files[path.relative_to(folder).as_posix()] = {"bytes": path.stat().st_size, "sha256": _sha256(path)}
    made = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    facts = {"made_by": TOOLKIT, "version": version(TOOLKIT), "made": made, "complete": complete}
    facts |= {"overwrite": overwrite, "files": files}
    _write_whole(folder / MANIFEST, facts | {"digest": _digest(facts)})


def damaged_files(folder: Path, names: Iterable[str] | None = None) -> dict[str, str]:
    """What is wrong with the files of a folder (or these of them), by name; nothing for one without a manifest."""
    manifest = manifest_of(folder)
    files = {} if manifest is None else manifest["files"]
    found = {}
    for name in files if names is None else [name for name in names if name in files]:
        path = folder / name
        if not path.is_file():
            found[name] = "is missing"
        elif path.stat().st_size != files[name]["bytes"]:
            found[name] = f"has {path.stat().st_size} bytes of {files[name]['bytes']}"
        elif _sha256(path) != files[name]["sha256"]:
            found[name] = "has other contents than when it was written"
    return found


def foreign_in(folder: Path) -> list[str]:
    """What stands in a folder and is not in its manifest, or is of no kind that this toolkit writes (links are of none); all of
    it where there is no manifest. A manifest can be forged, so it does not decide alone."""
    manifest = manifest_of(folder)
    files = set() if manifest is None else {MANIFEST, *manifest["files"]}
    return [name for name in _names_in(folder) if name not in files or not _written(folder / name)]


def refuse_strange(folder: Path) -> None:
    """`FileExistsError` if a hidden folder holds what no run of this toolkit leaves there, whoever it says it is of."""
    strange = [folder.name] * folder.is_symlink() or [
        name for name in _names_in(folder) if not _written(folder / name, passing=True)
    ]
    if strange:
        raise FileExistsError(
            f"{str(folder)!r} is in the way and not of this toolkit ({_few(strange)}); move it away, or choose another name"
        )


def _names_in(folder: Path) -> list[str]:
    """Every file and link in a folder, sorted; never through links."""
    found = []
    for root, folders, names in os.walk(folder):
        links = [name for name in folders if os.path.islink(os.path.join(root, name))]
        found += [Path(root, name).relative_to(folder).as_posix() for name in (*names, *links)]
    return sorted(found)


def _written(path: Path, *, passing: bool = False) -> bool:
    """Whether this toolkit writes such files (`passing`: or has them where it is writing)."""
    return (path.suffix in KINDS or (passing and path.suffix in PASSING)) and not path.is_symlink()


def _few(names: Sequence[str]) -> str:
    return ", ".join(names[:NAMED]) + f" and {len(names) - NAMED} more" * (len(names) > NAMED)


def _remove_own(folder: Path) -> None:
    """Remove a folder that holds nothing foreign, the manifest last, so that the rest is known until it is gone."""
    if foreign := foreign_in(folder):
        raise FileExistsError(f"{str(folder)!r} holds foreign files ({_few(foreign)}); move it away")
    for root, _, names in os.walk(folder, topdown=False):
        inner = Path(root) != folder
        for name in names:
            if inner or name != MANIFEST:
                Path(root, name).unlink()
        if inner:
            Path(root).rmdir()
    (folder / MANIFEST).unlink(missing_ok=True)
    folder.rmdir()


def _digest(manifest: dict[str, Any]) -> str:
    facts = {key: value for key, value in manifest.items() if key != "digest"}
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        with contextlib.suppress(OSError):  # on the disk before the folder gets its name, where the system can
            os.fsync(file.fileno())
        return hashlib.file_digest(file, "sha256").hexdigest()


def _write_whole(path: Path, facts: dict[str, Any]) -> None:
    """Whole or not at all, killed at any moment, also where others (shards that begin together) write the same file."""
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
    """A folder that appears under its name only when everything in it is written; it gets a manifest of its files.

    Refuses an existing one unless `overwrite`; then too where it holds anything that this toolkit did not write. The old
    one is replaced only when the new one is whole, and stays if anything fails. Killed at any moment, the next run with
    this name (or `load`) finishes the replacement or finds the old folder.
    """
    target = _named(path).resolve()  # a link to a folder stays a link
    with _locked(target, path):
        recover(target)
        refuse_existing(path, overwrite=overwrite)
        making = _beside(target, "new")
        try:
            making.mkdir()
            write_manifest(making, complete=False)
            yield making
            write_manifest(making, overwrite=overwrite)
        except BaseException as error:
            shutil.rmtree(making, ignore_errors=True)
            if isinstance(error, OSError) and (error.errno in UNWRITABLE or "No space left" in str(error)):
                kept = _beside(Path(path), "partial")
                more = f"; what had finished is kept in {str(kept)!r}" if kept.is_dir() else ""
                raise OSError(
                    error.errno,
                    f"cannot write the folder {str(path)!r} ({error.strerror or error}), nothing was replaced{more}: make "
                    "room, then start again",
                ) from error
            raise
        _put_in_place(making, target, overwrite=overwrite)


@contextmanager
def renewed(path: str | Path) -> Iterator[Path]:
    """Files of a folder that are made again: each takes the place of its former one, once all of them are there.

    What else stands in the folder stays, also what is not ours. Killed in between, every file is whole, old or new.
    """
    target = _named(path).resolve()
    with _locked(target, path):
        recover(target)
        making = _beside(target, "new")
        try:
            making.mkdir()
            write_manifest(making, complete=False)
            yield making
            (making / MANIFEST).unlink()
            made = [file.relative_to(making) for file in sorted(making.rglob("*")) if file.is_file()]
            for file in made:
                if any((target / above).is_symlink() for above in file.parents):
                    raise FileExistsError(
                        f"{str(target / file.parent)!r} is a link, and nothing is written through it; move it"
                    )
            own = {*((manifest_of(target) or {}).get("files", ())), *(file.as_posix() for file in made)}
            for file in made:
                (target / file.parent).mkdir(parents=True, exist_ok=True)
                os.replace(making / file, target / file)
            write_manifest(target, only=own)
        finally:
            shutil.rmtree(making, ignore_errors=True)


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
    whole = target.resolve()
    with contextlib.suppress(ValueError):  # somebody else's manifest.json
        around = manifest_of(whole.parent)
        if around is not None and any(name.startswith(f"{whole.name}/") for name in around["files"]):
            raise FileExistsError(
                f"the folder {str(target)!r} is a part of the results in {str(whole.parent)!r} and is not replaced; choose "
                "another name"
            )
    foreign = foreign_in(target)
    if foreign:
        raise FileExistsError(
            f"the folder {str(target)!r} holds what this toolkit did not write there ({_few(foreign)}) and is not replaced; "
            "move that away, or choose another name"
        )


def recover(target: Path) -> None:
    """Finish or remove what a run that died while it wrote this folder has left; call it with the folder locked."""
    new, old = (_beside(target, kind) for kind in ("new", "old"))
    for each in (new, old):
        if each.is_symlink():
            refuse_strange(each)
    if new.is_dir():
        manifest = manifest_of(new)
        if manifest is None and not all(each.name.startswith(f".{MANIFEST}.") for each in new.iterdir()):
            raise FileExistsError(f"{str(new)!r} is in the way and not of this toolkit; move it away")
        refuse_strange(new)
        if manifest is None or not manifest["complete"] or damaged_files(new) or foreign_in(new):
            shutil.rmtree(new)
        else:
            _put_in_place(new, target, overwrite=manifest["overwrite"])
            warnings.warn(f"{str(target)!r}: finished what an earlier run was about to put there", stacklevel=3)
    if old.is_dir():
        if not target.exists():
            os.replace(old, target)
        else:
            _remove_own(old)


def _put_in_place(new: Path, target: Path, *, overwrite: bool) -> None:
    """Two renames; killed between them, both folders are whole and `recover` goes on from there."""
    old = _beside(target, "old")
    try:
        if target.exists():
            refuse_existing(target, overwrite=overwrite)
            if any(target.iterdir()):
                if old.is_dir():
                    _remove_own(old)
                os.replace(target, old)
            else:
                target.rmdir()
        try:
            os.replace(new, target)
        except BaseException:
            if old.is_dir():
                os.replace(old, target)
            raise
    except OSError as error:
        raise type(error)(f"{error}; the new results are whole and kept in {str(new)!r}") from error
    if old.is_dir():
        _remove_own(old)


def finish_replacement(path: Path) -> None:
    """What a reader does who finds no folder: look whether a dead run has left it half replaced."""
    target = path.resolve()
    if any(_beside(target, kind).is_dir() for kind in ("new", "old")):
        with _locked(target, path):
            recover(target)


# ---------------------------------------------------------------------------------------------------------- a whole run


@contextmanager
def claimed(path: str | Path, *, overwrite: bool, analysis: str, shard: Shard | None = None) -> Iterator[Path]:
    """The folder `path` for one run of an analysis, from its beginning; gives its `.partial` folder for what it keeps.

    Said before any work: a folder that may not be replaced, a name or place that cannot be written, a full disk, another run
    on the same folder (who, since when), and the unfinished work of another analysis. What a dead run has left is finished
    or removed, its partial work taken over. The partial folder goes when nothing is in it; whoever saves removes it.
    Shards of one analysis share the partial folder, each with a lock of its own, and leave it where it is.
    """
    target, partial = _named(path).resolve(), _beside(Path(path), "partial")
    own = target if shard is None else shard.file(target)
    with _locked(own, path) as lock:
        for other in shards_of(target) if shard is None else ():
            refuse_in_use(other)
        if shard is None:
            recover(target)
        with contextlib.nullcontext() if shard is None else held_briefly(target, patience=3.0):  # shards begin in turn
            _remove_finished(partial, target)
            refuse_existing(path, overwrite=overwrite)
            _check_room(target.parent)
            try:
                partial.mkdir(exist_ok=True)
                _claim_for(partial, analysis)
            except OSError as error:
                raise error if isinstance(error, FileExistsError) else _cannot_write(path, error) from error
        if lock.before is not None and shard is None:
            warnings.warn(f"{str(path)!r}: going on from a run that ended without saying so", stacklevel=3)
        try:
            yield partial
        except KeyboardInterrupt as error:
            if error.args or not partial.is_dir() or not _keeps_something(partial):
                raise
            raise KeyboardInterrupt(
                f"what had finished is kept in {str(partial)!r}: start again with the same settings to go on"
            ) from error
        finally:
            if shard is None and partial.is_dir() and not _keeps_something(partial):
                shutil.rmtree(partial)


def shards_of(target: Path) -> list[Path]:
    """What shards that run on a folder, or were killed there, have locked."""
    names = [each.name.removeprefix(".").removesuffix(".lock") for each in target.parent.glob(".*.lock")]
    return [target.with_name(name) for name in names if part_names(target).fullmatch(name)]


def keep_begun(file: Path, options: dict[str, Any], *, command: str = "") -> None:
    """Write down the options and the command that a run was begun with, whole or not at all, with a digest of the options."""
    _write_whole(file, {"options": options, "digest": key_of(options), "command": command})


def read_begun(file: Path) -> dict[str, Any] | None:
    """What `keep_begun` wrote; None where it is damaged."""
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
        return dict(found["options"]) if found["digest"] == key_of(found["options"]) else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _keeps_something(partial: Path) -> bool:
    begun = re.compile(rf"{re.escape(ANALYSIS)}|\.{re.escape(ANALYSIS)}\..*\.new")
    return partial.is_symlink() or not all(begun.fullmatch(each.name) for each in partial.iterdir())


def remove_partial(partial: Path) -> None:
    """What a run kept whose results are in place; last the `run.json` that says so to the next run if this one is killed."""
    computed = partial / COMPUTED
    with contextlib.suppress(OSError):  # hidden: no reason to fail after all is done
        for each in (*partial.iterdir(), *(computed.iterdir() if computed.is_dir() else ())):
            if each in (computed, computed / RUN):
                continue
            if each.is_dir() and not each.is_symlink():
                shutil.rmtree(each)
            else:
                each.unlink()
        (computed / RUN).unlink(missing_ok=True)
        shutil.rmtree(partial)


def _remove_finished(partial: Path, target: Path) -> None:
    """What a run has left that was killed between putting its results in place and removing what it had kept of them."""
    runs = partial / COMPUTED / RUN, target / RUN
    finished = all(run.is_file() for run in runs) and runs[0].read_bytes() == runs[1].read_bytes()
    nothing = partial.is_dir() and not any(each.is_symlink() or not each.is_dir() for each in partial.rglob("*"))
    if not partial.is_symlink() and (finished or nothing):
        remove_partial(partial)


def _claim_for(partial: Path, analysis: str) -> None:
    """Write down whose unfinished work is kept here; another analysis' is refused."""
    file = partial / ANALYSIS
    if partial.is_symlink() or not partial.is_dir():
        raise FileExistsError(f"{str(partial)!r} is in the way (no folder of this toolkit); move it away")
    if file.is_symlink() or (not file.exists() and _keeps_something(partial)):
        raise FileExistsError(
            f"{str(partial)!r}, where the run would keep what has finished, holds what this toolkit did not write there; move "
            "it away, or choose another name"
        )
    try:
        facts = json.loads(file.read_text(encoding="utf-8"))
        other = facts["analysis"]
    except FileNotFoundError:
        _write_whole(file, {"analysis": analysis, **owner()})
        return
    except (ValueError, KeyError, TypeError):
        other, facts = analysis, {}
        _write_whole(file, {"analysis": analysis, **owner()})
    if other != analysis:
        raise FileExistsError(
            f"{str(partial)!r} keeps the unfinished work of another analysis, {other} (begun {facts.get('since', '?')}: "
            f"{facts.get('command', '?')}); finish that, choose another folder, or delete it"
        )


@contextmanager
def _locked(target: Path, path: str | Path) -> Iterator[Lock]:
    """The lock of a folder, made where its parents are made too."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        lock = Lock(target)
    except BlockingIOError:
        raise
    except OSError as error:
        raise _cannot_write(path, error) from error
    with lock:
        yield lock


def _named(path: str | Path) -> Path:
    """A path that can name a folder; errors for one that cannot, whatever stands there."""
    found = Path(path)
    try:
        str(found).encode()
        file = found.exists() and not found.is_dir()
        whole = found.resolve()
    except RuntimeError as error:  # of a loop of links; from Python 3.13 on an OSError
        raise FileExistsError(f"{str(found)!r} is a link that leads to itself; choose another name") from error
    except UnicodeEncodeError as error:
        raise ValueError(f"the name {str(path)!r} cannot be written; choose another") from error
    except OSError as error:
        raise _cannot_write(path, error) from error
    if file:
        raise FileExistsError(f"{str(found)!r} is a file, not a folder; choose another name")
    if Path.cwd().resolve().is_relative_to(whole):
        raise FileExistsError(f"{str(found)!r} holds the current directory and is never replaced; choose another name")
    above = next(folder for folder in (found, *found.absolute().parents) if folder.exists())
    if above != found and not above.is_dir():
        raise NotADirectoryError(
            f"cannot make the folder {str(path)!r}: {str(above)!r} is a file; choose another place"
        )
    return found


def _cannot_write(path: str | Path, error: OSError) -> OSError:
    text = str(path) if len(str(path)) < 200 else f"{str(path)[:150]}..."
    return OSError(error.errno, f"cannot write the folder {text!r} ({error.strerror}); choose another name or place")


def _check_room(parent: Path) -> None:
    if (free := shutil.disk_usage(parent).free) < ROOM:
        few = f"{str(parent)!r} has {free >> 10} KiB left, a run needs {ROOM >> 10} at the very least"
        raise OSError(errno.ENOSPC, f"{few}: make room, or choose another place")


def _beside(path: Path, kind: str) -> Path:
    return path.with_name(f".{path.name}.{kind}")
