"""math-verify, asked from any thread or process, with a limit that holds.

math-verify's own timeout is an alarm signal: it fails outside the main thread, and is not heard while C code runs
(`9^{9^{9^9}}`). So it runs in a process of its own (`worker.py`), one for each process that asks, started at the first
question and replaced when it has to be ended.
"""

import atexit
import json
import os
import queue
import subprocess
import sys
import threading
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

CPU_SECONDS = 3
"""What one comparison may compute; CPU time, so that a busy machine does not change a grade."""
WALL_SECONDS = 60.0
"""What one comparison may take at all, where the system knows no limit of CPU time."""
START_SECONDS = 300.0


class EquivalenceError(RuntimeError):
    """math-verify could not be started."""


class _Worker:
    """One process that compares; mutable, behind a lock."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.pid = os.getpid()
        self.process: subprocess.Popen[str] | None = None
        self.replies: queue.SimpleQueue[str] = queue.SimpleQueue()

    def ask(self, **question: Any) -> bool | None:
        """Whether the two are equal; None if that took too long (or too much memory)."""
        with self.lock:
            process = self.process if self.process is not None and self.process.poll() is None else self._start()
            assert process.stdin is not None
            try:
                process.stdin.write(json.dumps(question | {"cpu_seconds": CPU_SECONDS}) + "\n")
                process.stdin.flush()
                reply = self._reply(WALL_SECONDS)
            except BrokenPipeError:
                reply = None
            except BaseException:
                self.close()  # interrupted: the answer still to come must not be taken for the next one
                raise
            if reply is None:
                self.close()
                return None
            return bool(reply["equal"])

    def _start(self) -> "subprocess.Popen[str]":
        self.close()
        if not sys.executable:
            raise EquivalenceError("math-verify runs in a Python process of its own, and sys.executable is not set")
        self.process = subprocess.Popen(
            [sys.executable, "-P", str(Path(__file__).with_name("worker.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            encoding="utf-8",
        )
        self.replies = queue.SimpleQueue()
        threading.Thread(target=_pass_on, args=(self.process.stdout, self.replies), daemon=True).start()
        ready = self._reply(START_SECONDS)
        if ready is None or "error" in ready:
            self.close()
            reason = "" if ready is None else f" ({ready['error']})"
            raise EquivalenceError(
                f"math-verify could not be started{reason}; see what `{sys.executable} -c 'import math_verify'` says"
            )
        return self.process

    def _reply(self, seconds: float) -> dict[str, Any] | None:
        try:
            line = self.replies.get(timeout=seconds)
        except queue.Empty:
            return None
        return json.loads(line) if line else None

    def close(self) -> None:
        """End the process, if there is one of ours."""
        process, self.process = self.process, None
        if process is None or self.pid != os.getpid():
            return
        process.kill()
        process.wait()
        assert process.stdin is not None
        with suppress(BrokenPipeError):
            process.stdin.close()


def _pass_on(lines: Any, replies: "queue.SimpleQueue[str]") -> None:
    """Every line, then an empty one when the process has ended."""
    with lines:
        for line in lines:
            replies.put(line)
    replies.put("")


_worker = _Worker()
atexit.register(lambda: _worker.close())


def _after_fork() -> None:
    """A forked process has neither the thread nor the right to the parent's worker."""
    global _worker
    _forked.append(_worker)  # kept: its pipes belong to the parent
    _worker = _Worker()


_forked: list[_Worker] = []
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


@lru_cache(maxsize=2**14)
def equal_by_math_verify(answer: str, gold: str, *, decimals: int | None = None) -> bool | None:
    """Whether math-verify finds two LaTeX expressions equal; None where it had to be stopped.

    `decimals`: floats are compared after rounding to that many decimals, and variables by position (lenient).
    """
    return _worker.ask(answer=answer, gold=gold, decimals=decimals)
