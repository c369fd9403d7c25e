"""One run at a time: a lock beside what a run writes, with who holds it; the system frees it when the process ends."""

import contextlib
import datetime
import json
import os
import shlex
import socket
import sys
import time
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout


class Lock:
    """Holds `path` for this process until `release`, by two hidden files beside it: the lock, and who holds it.

    A process that was killed holds nothing any more: `before` is what it had left of itself, else None. Within one thread
    the same path may be held again (a notebook's next call). Raises `BlockingIOError` with the owner where another run
    holds it, `OSError` where nothing can be written there.
    """

    def __init__(self, path: Path) -> None:
        self._file, self._owner = (path.with_name(f".{path.name}.{kind}") for kind in ("lock", "owner"))
        self._lock = FileLock(self._file, is_singleton=True)
        self._process: int | None = None
        self.before: dict[str, Any] | None = None
        try:
            self._lock.acquire(blocking=False)
        except Timeout:
            self._file.open("a").close()  # where none can be made at all, that is what is wrong
            raise BlockingIOError(
                f"{str(path)!r} is in use by {_words(_read(self._owner))}; wait until it has ended, or choose another name (if "
                f"that process is gone, delete {str(self._file)!r})"
            ) from None
        try:
            if self._lock.lock_counter == 1:
                self.before = _read(self._owner)
                with self._owner.open("w", encoding="utf-8") as file:
                    json.dump(owner(), file)
                    file.flush()
                    os.fsync(file.fileno())
        except OSError:
            self._lock.release()
            raise
        self._process = os.getpid()

    def release(self) -> None:
        """Let others have it; more than once does no harm."""
        if self._process == os.getpid():  # what a forked process has inherited is not its own
            self._process = None
            if self._lock.lock_counter == 1:
                for file in (self._owner, self._file):
                    with contextlib.suppress(OSError):
                        file.unlink()
            self._lock.release()

    def __enter__(self) -> "Lock":
        return self

    def __exit__(self, *error: object) -> None:
        self.release()

    def __del__(self) -> None:
        if not sys.is_finalizing():
            self.release()


def refuse_in_use(path: Path) -> None:
    """`BlockingIOError` where another run holds `path`; nothing is held afterwards. Others who only ask are waited for."""
    held_briefly(path).release()


def held_briefly(path: Path, patience: float = 1.0) -> Lock:
    """The lock of `path`, for less than a moment; others who have it as shortly are waited for, `BlockingIOError` for a run."""
    until = time.monotonic() + patience
    while True:
        try:
            return Lock(path)
        except BlockingIOError:
            if time.monotonic() > until:
                raise
            time.sleep(0.05)


def owner() -> dict[str, Any]:
    """Who runs here: process, machine, since when, by which command."""
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    return {"pid": os.getpid(), "host": socket.gethostname(), "since": now, "command": shlex.join(sys.argv)}


def _read(file: Path) -> dict[str, Any] | None:
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def _words(found: dict[str, Any] | None, now: datetime.datetime | None = None) -> str:
    """An owner in words, with how long ago it began: the system frees the lock of a dead process, but not every network
    file system does.

    >>> noon = datetime.datetime(2026, 1, 1, 12, tzinfo=datetime.UTC)
    >>> _words({"pid": 7, "host": "a", "since": "2026-01-01T00:00:00+00:00", "command": "own.py"}, noon)
    'process 7 on a since 2026-01-01T00:00:00+00:00, 12 hours ago (own.py)'
    """
    if found is None:
        return "another run"
    pid, host, since, command = (found.get(name, "?") for name in ("pid", "host", "since", "command"))
    return f"process {pid} on {host} since {since}{_age(since, now or datetime.datetime.now(datetime.UTC))} ({command})"


def _age(since: Any, now: datetime.datetime) -> str:
    """How long ago a moment was, rounded down; nothing for what is none.

    >>> noon = datetime.datetime(2026, 1, 1, 12, tzinfo=datetime.UTC)
    >>> _age("2026-01-01T11:58:30+00:00", noon), _age("2025-12-27T00:00:00+00:00", noon), _age("?", noon)
    (', 1 minute ago', ', 5 days ago', '')
    """
    try:
        seconds = int((now - datetime.datetime.fromisoformat(since)).total_seconds())
    except (TypeError, ValueError):
        return ""
    sizes = {"day": 86400, "hour": 3600, "minute": 60, "second": 1}
    name, size = next(((name, size) for name, size in sizes.items() if seconds >= size), ("second", 1))
    return f", {seconds // size} {name}{'s' * (seconds // size != 1)} ago"
