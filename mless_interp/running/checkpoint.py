"""Nothing finished is lost, nothing damaged is used: one line of a .jsonl file per finished problem, with its digest."""

import contextlib
import hashlib
import json
import os
import re
import warnings
from collections.abc import Callable, Iterable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from .locks import Lock, refuse_in_use
from .work import Shard, parts_of

SHOWN = 3
"""Differences or damaged lines that a message names."""
WAYS_ON = "use the old settings, choose another file, or delete this one to start again"


class CheckpointError(ValueError):
    """A checkpoint that cannot be gone on from."""


class Origin(NamedTuple):
    """Where a problem's value comes from, as keys: what was asked, and what it was computed together with."""

    prompt: str = ""
    unit: str = ""


class Checkpoint:
    """Finished problems of a long run, by id; `Checkpoint(None, ...)` keeps nothing at all.

    The first line holds the run's settings and the toolkit's version. A file made with others is refused with the
    differences named. Every line carries a digest of all it says and of the settings: a line that was damaged, or comes
    from another run, is named in a warning and its problem done again; a last line that was cut off is dropped
    (`repaired`). NaN and infinity are kept as they are.

    `origins` say what else a problem's numbers come from: a kept problem with another prompt is refused; one file may hold a
    problem in several units, so that a run of a longer list finds what it shares with a shorter one.

    The file is locked until `close` (or the end of a `with`): a second run on it is refused with the first one's owner.

    A `shard` writes a file of its own beside `path`; what the other shards have kept is read along, there and by a run
    without a shard, for which they must have ended.

    `problem_of` gives the problem's id of a name under which a value is kept, for messages, where that is more than the id.
    """

    def __init__(
        self,
        path: str | Path | None,
        settings: Mapping[str, Any],
        origins: Mapping[str, Origin] | None = None,
        *,
        shard: Shard | None = None,
        problem_of: Callable[[str], str] = str,
    ) -> None:
        whole = None if path is None else _checked(path)
        if shard is not None and whole is None:
            raise ValueError(f"{shard!r} of a run needs a checkpoint= in which it keeps its part: give one")
        self.path = whole if whole is None or shard is None else shard.file(whole)
        self.repaired = False
        self._problem_of = problem_of
        self._done: dict[tuple[str, ...], Any] = {}
        self._origins = dict(origins or {})
        self._lock: Lock | None = None
        if self.path is None:
            return
        self._settings = json.loads(json.dumps(plain({"toolkit": version("mless_interp"), **settings})))
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._lock = Lock(self.path)
        except BlockingIOError:
            raise
        except OSError as error:
            raise _unwritable(self.path, error, "choose another place") from error
        try:
            assert whole is not None
            self._whole = whole
            for other in parts_of(whole) if shard is None else [whole]:
                refuse_in_use(other)  # no shard beside the whole run
            begun = self.path.exists() and self.path.stat().st_size
            if begun:
                self._read(self.path.read_bytes())
            self.join()  # what does not belong together is refused before anything is written
            if not begun:
                self._replace([])  # whole or not at all: a run can be stopped at any moment
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Let other runs have the file."""
        if self._lock is not None:
            self._lock.release()

    def __enter__(self) -> "Checkpoint":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __len__(self) -> int:
        return len(self._done)

    def get(self, problem_id: str) -> Any:
        """What was kept for this problem, asked and computed as it is now, or None."""
        return self._done.get((problem_id, *self._of(problem_id)))

    def put(self, values: Mapping[str, Any]) -> None:
        """Keep the problems that have finished at the same moment, a line each, on disk before this returns.

        Raises `OSError` if it cannot be written (a full disk); the lines before stay whole.
        """
        if self.path is not None and values:
            self._append([self._signed(problem_id, value) for problem_id, value in values.items()])
            self._done |= {(problem_id, *self._of(problem_id)): value for problem_id, value in values.items()}

    def _of(self, problem_id: str) -> Origin:
        return self._origins.get(problem_id, Origin())

    def _refuse_other_prompts(self, prompts: Mapping[str, str], path: Path | None = None) -> None:
        """Problems that were asked otherwise than now, by the keys of what was asked then."""
        kept = [each for each, now in self._origins.items() if prompts.get(each, now.prompt) != now.prompt]
        changed = list(dict.fromkeys(map(self._problem_of, kept)))
        if changed:
            words = "s {} have other prompts" if len(changed) > 1 else " {} has another prompt"
            raise CheckpointError(
                f"{path or self.path} was made with other problems: problem{words.format(_few(map(repr, changed)))} "
                f"(or another answer) now; {WAYS_ON}"
            )

    def _signed(self, problem_id: str, value: Any) -> dict[str, Any]:
        """A line as it is written."""
        record = {"id": problem_id, **self._of(problem_id)._asdict(), "value": plain(value)}
        return {name: each for name, each in record.items() if each != ""} | {"digest": self._digest(record)}

    def _digest(self, record: Mapping[str, Any]) -> str:
        return key_of([self._settings, *(record.get(name, "") for name in ("id", *Origin._fields, "value"))])

    def _read(self, text: bytes) -> None:
        *lines, cut = text.split(b"\n")
        self.repaired = bool(cut)  # the next record would join the last line
        first, *rest = [_parsed(line) for line in [*lines, *([cut] if cut else [])]]
        intact = _settings_of(first)
        sound = [record for record in rest if self._is_sound(record)]
        if intact is None and not sound:
            raise CheckpointError(self._why_unreadable(first, rest))
        if intact is not None and (changed := _differences(intact, self._settings)):
            raise CheckpointError(f"{self.path} was made with other settings: {_few(changed, '; ')}; {WAYS_ON}")
        self._refuse_other_prompts({record["id"]: record.get("prompt", "") for record in sound})
        damaged = ["line 1 (the settings, which are those of now)"] if intact is None else []
        for number, record in enumerate(rest, start=2):
            if not self._is_sound(record):
                if number <= len(lines):  # a last line that was cut off is no damage: the run was stopped
                    damaged.append(f"line {number}{_named(record, lines[number - 1], self._problem_of)}")
                continue
            self._done[record["id"], *(record.get(name, "") for name in Origin._fields)] = record["value"]
        if damaged:
            warnings.warn(
                f"{self.path}: {_few(damaged)} cannot be read or does not fit its digest: damaged, taken out, and what it held "
                "is done again",
                stacklevel=4,
            )
        if damaged or self.repaired:
            self._replace(sound)

    def join(self) -> None:
        """Take what the other shards of this run, and the whole run, have kept by now."""
        for other in [self._whole, *parts_of(self._whole)]:
            if other != self.path:
                self._join(other)

    def _join(self, path: Path) -> None:
        """Take what another run of the same settings has kept; its file, which it may be writing, stays as it is."""
        lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
        if not lines:
            return
        settings, records = _settings_of(_parsed(lines[0])), [_parsed(line) for line in lines[1:]]
        if settings is not None and (changed := _differences(settings, self._settings)):
            raise CheckpointError(f"{path} was made with other settings: {_few(changed, '; ')}; {WAYS_ON}")
        sound = [record for record in records if self._is_sound(record)]
        self._refuse_other_prompts({record["id"]: record.get("prompt", "") for record in sound}, path)
        for record in sound:
            self._done[record["id"], *(record.get(name, "") for name in Origin._fields)] = record["value"]
        if len(sound) < len(records):
            warnings.warn(f"{path}: {len(records) - len(sound)} lines are damaged and not used", stacklevel=5)

    def _is_sound(self, record: Any) -> bool:
        whole = isinstance(record, dict) and {"id", "value", "digest"} <= set(record)
        return whole and isinstance(record["id"], str) and record["digest"] == self._digest(record)

    def _why_unreadable(self, first: Any, rest: list[Any]) -> str:
        settings = isinstance(first, dict) and isinstance(first.get("settings"), dict)
        ours = [isinstance(record, dict) and {"id", "value"} <= set(record) for record in rest]
        if settings and "digest" not in first and all(ours):
            return (
                f"{self.path} was written by an older version of the toolkit, whose lines carry no digest and cannot be "
                "checked; choose another file, or delete this one to start again"
            )
        if (settings and "digest" in first) or any(
            "digest" in record for record, our in zip(rest, ours, strict=True) if our
        ):
            return (
                f"{self.path}, line 1: the settings are damaged, so that nothing in it can be trusted; choose another file, or "
                "delete this one to start again"
            )
        return f"{self.path} is no checkpoint of this toolkit; choose another file"

    def _append(self, records: list[dict[str, Any]]) -> None:
        assert self.path is not None
        size = None
        try:
            size = self.path.stat().st_size
            with self.path.open("a", encoding="utf-8") as file:
                file.write(_lines(records))
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            if size is not None:
                with contextlib.suppress(OSError):  # take back what was half written
                    os.truncate(self.path, size)
            raise _unwritable(self.path, error) from error

    def _replace(self, records: list[dict[str, Any]]) -> None:
        assert self.path is not None
        temporary = self.path.with_name(f".{self.path.name}.new")
        try:
            with temporary.open("w", encoding="utf-8") as file:
                file.write(_lines([{"settings": self._settings, "digest": key_of(self._settings)}, *records]))
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, self.path)
        except OSError as error:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise _unwritable(self.path, error) from error


def key_of(value: Any) -> str:
    """A short SHA-256 of anything JSON can hold, the same in every process.

    >>> key_of([1.0, float("nan")]) == key_of([1.0, float("nan")]) != key_of([1, float("nan")])
    True
    """
    return hashlib.sha256(json.dumps(plain(value), sort_keys=True).encode()).hexdigest()[:16]


def _checked(path: str | Path) -> Path:
    """The file that a path means (a link's target); errors for what can be none."""
    if not isinstance(path, str | os.PathLike):
        raise TypeError(f"checkpoint must be the path of a file, or None, got {type(path).__name__}")
    if "\0" in str(path):
        raise ValueError(f"checkpoint {str(path)!r} is no name that can be written; choose another")
    try:
        found = Path(path).resolve()
        above = next(folder for folder in found.parents if folder.exists())
        folder, other = found.is_dir(), found.exists() and not found.is_file()
    except UnicodeEncodeError as error:
        raise ValueError(f"checkpoint {path!r} is no name that can be written; choose another") from error
    except RuntimeError as error:  # from Python 3.13 on an OSError
        raise ValueError(f"checkpoint {str(path)!r} is a link that leads to itself; choose another") from error
    except OSError as error:
        raise _unwritable(Path(path), error, "choose another name") from error
    if not above.is_dir():
        raise NotADirectoryError(
            f"checkpoint {str(path)!r}: {str(above)!r} is a file, not a folder; choose another place"
        )
    if folder:
        raise IsADirectoryError(
            f"checkpoint {str(path)!r} is a folder: name a file in it, {str(found / 'run.jsonl')!r}, say"
        )
    if other:
        raise OSError(f"checkpoint {str(path)!r} is no regular file; choose another")
    return found


def _unwritable(path: Path, error: OSError, remedy: str = "") -> OSError:
    remedy = remedy or "all that was finished before is kept there: make room, then start again to go on"
    return OSError(error.errno, f"cannot write {path} ({error.strerror}); {remedy}")


def _parsed(line: bytes) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


def _settings_of(first: Any) -> dict[str, Any] | None:
    """The settings of a first line that is as it was written, else None."""
    if isinstance(first, dict) and isinstance(settings := first.get("settings"), dict):
        return settings if first.get("digest") == key_of(settings) else None
    return None


def _named(record: Any, line: bytes, problem_of: Callable[[str], str] = str) -> str:
    """The problem of a damaged line, as far as it can be read."""
    name = record["id"] if isinstance(record, dict) and isinstance(record.get("id"), str) else None
    if name is None and (found := re.match(rb'\{"id": ("(?:[^"\\]|\\.)*")', line)):
        name = _parsed(found.group(1))
    return "" if name is None else f" (problem {problem_of(name)!r})"


def _few(words: Iterable[str], between: str = ", ") -> str:
    """The first few, and how many more there are."""
    every = list(words)
    return between.join(every[:SHOWN]) + f" and {len(every) - SHOWN} more" * (len(every) > SHOWN)


def _lines(records: list[dict[str, Any]]) -> str:
    return "".join(json.dumps(plain(record)) + "\n" for record in records)


def plain(value: Any) -> Any:
    """JSON's own types: arrays as lists, numbers of any library as numbers, all else as text."""
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, Mapping):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(inner) for inner in value]
    if isinstance(value, np.generic):
        return value.item()
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


def _differences(was: Any, now: Any, name: str = "") -> list[str]:
    """Every setting that differs in words, those inside others by their path; NaN is NaN.

    >>> _differences({"a": {"b": [1, 2]}, "c": "x", "d": 0}, {"a": {"b": [1, 3]}, "c": "y", "d": 0})
    ['a.b[1] was 2, now 3', "c was 'x', now 'y'"]
    >>> _differences({"heads": ["L0H0", "L0H1"]}, {"heads": ["L0H0"]})
    ['heads had 2 entries, now 1: from [1] on they differ']
    """
    if isinstance(was, dict) and isinstance(now, dict):
        path = {key: f"{name}.{key}" if name else str(key) for key in {**was, **now}}
        return [found for key in path for found in _differences(was.get(key), now.get(key), path[key])]
    if isinstance(was, list) and isinstance(now, list) and was and now:
        inner = [_differences(*both, f"{name}[{at}]") for at, both in enumerate(zip(was, now, strict=False))]
        if len(was) == len(now):
            return [found for each in inner for found in each]
        at = next((at for at, each in enumerate(inner) if each), len(inner))
        return [f"{name} had {len(was)} entries, now {len(now)}: from [{at}] on they differ"]
    if json.dumps(was) == json.dumps(now):
        return []
    return ["{} was {}, now {}".format(name, *_shown(repr(was), repr(now)))]


def _shown(was: str, now: str, most: int = 60) -> tuple[str, str]:
    """Two texts that differ, each cut to where they do."""
    alike = next((at for at, both in enumerate(zip(was, now, strict=False)) if both[0] != both[1]), 0)
    start = max(0, alike - 10)

    def cut(text: str) -> str:
        if len(text) <= most:
            return text
        return "..." * (start > 0) + text[start : start + most] + "..." * (len(text) > start + most)

    return cut(was), cut(now)
