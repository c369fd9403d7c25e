"""One run at a time: a lock beside what a run writes, which the system frees when the process ends."""

import contextlib
import os
import sys
from pathlib import Path

from filelock import FileLock, Timeout


class Lock:
    """Holds `path` for this process until `release`, by a hidden file beside it.

    Within one thread the same path may be held again (a notebook's next call). Raises `BlockingIOError` where another run
    holds it for longer than `patience` seconds, `OSError` where nothing can be written there.
    """

    def __init__(self, path: Path, *, patience: float = 0.0) -> None:
        self._file = path.with_name(f".{path.name}.lock")
        self._lock = FileLock(self._file, is_singleton=True)
        self._process: int | None = None
        try:
            self._lock.acquire(timeout=patience)
        except Timeout:
            self._file.open("a").close()  # where none can be made at all, that is what is wrong
            raise BlockingIOError(
                f"{str(path)!r} is in use by another run; wait until it has ended, or choose another name (if no other "
                f"process runs, delete {str(self._file)!r})"
            ) from None
        self._process = os.getpid()

    def release(self) -> None:
        """Release the lock; a second call does nothing."""
        if self._process == os.getpid():  # what a forked process has inherited is not its own
            self._process = None
            if self._lock.lock_counter == 1:
                with contextlib.suppress(OSError):
                    self._file.unlink()
            self._lock.release()

    def __enter__(self) -> "Lock":
        return self

    def __exit__(self, *error: object) -> None:
        self.release()

    def __del__(self) -> None:
        if not sys.is_finalizing():
            self.release()
