"""math-verify, asked from any thread or process, with limits that hold.

math-verify's own timeout is an alarm signal: it fails outside the main thread, and is not heard while C code runs
(`9^{9^{9^9}}`). So it runs in a process of its own (`worker.py`), one for each process that asks, started at the first
question and replaced when it has to be ended. One comparison may compute for `CPU_SECONDS`, all of one grade for
`GRADE_SECONDS`, in `worker.MEMORY_BYTES`: beyond that it is given up. A process that somebody else ended (the system, short of
memory) says nothing about the answer: the question is asked once more of a fresh one, and then it stays undecided.
"""

import atexit
import json
import os
import queue
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

CPU_SECONDS = 3
"""What one comparison may compute; CPU time, so that a busy machine does not change a grade."""
GRADE_SECONDS = 10.0
"""What all comparisons of one grade may compute together, such as those of two lists in any order."""
WALL_SECONDS = 60.0
"""What one comparison may take at all, where the system knows no limit of CPU time."""
START_SECONDS = 300.0


GAVE_UP, UNDECIDED = "gave up", "undecided"
"""Why a question has no answer: it took more than its limits; the process that had it was ended from outside, twice."""


class EquivalenceError(RuntimeError):
    """math-verify could not be started."""


class _Ended(Exception):
    """The process that compares was ended by somebody else, or could not be started again."""


class _Worker:
    """One process that compares; mutable, behind a lock."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.worked = False
        self.pid = os.getpid()
        self.process: subprocess.Popen[str] | None = None
        self.replies: queue.SimpleQueue[str] = queue.SimpleQueue()

    def ask(self, **question: Any) -> tuple[bool | None, float]:
        """Whether the two are equal, None if that took too much time or memory; and the CPU seconds that it took.

        `_Ended` where the process is ended from outside, and the fresh one that is asked next as well.
        """
        with self.lock:
            try:
                return self._ask(question)
            except _Ended:
                return self._ask(question)

    def _ask(self, question: dict[str, Any]) -> tuple[bool | None, float]:
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
        if reply is not None:
            return reply["equal"], reply["seconds"]
        with suppress(subprocess.TimeoutExpired):
            process.wait(1.0)  # what says nothing more may be ending: for a reason of its own, not by our hand
        if self.close() in _OUT_OF_TIME:
            return None, float(CPU_SECONDS)
        raise _Ended

    def _start(self) -> "subprocess.Popen[str]":
        self.close()
        if not sys.executable:
            raise EquivalenceError("math-verify runs in a Python process of its own, and sys.executable is not set")
        try:
            self.process = subprocess.Popen(
                [sys.executable, "-P", str(Path(__file__).with_name("worker.py"))],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                encoding="utf-8",
            )
        except OSError as error:  # no memory, no more processes
            if self.worked:
                raise _Ended from error
            raise EquivalenceError(f"math-verify could not be started ({error})") from error
        self.replies = queue.SimpleQueue()
        threading.Thread(target=_pass_on, args=(self.process.stdout, self.replies), daemon=True).start()
        ready = self._reply(START_SECONDS)
        if ready is None or "error" in ready:
            self.close()
            if ready is None and self.worked:
                raise _Ended
            reason = "" if ready is None else f" ({ready['error']})"
            raise EquivalenceError(
                f"math-verify could not be started{reason}; see what `{sys.executable} -c 'import math_verify'` says"
            )
        self.worked = True
        return self.process

    def _reply(self, seconds: float) -> dict[str, Any] | None:
        try:
            line = self.replies.get(timeout=seconds)
        except queue.Empty:
            return None
        return json.loads(line) if line else None

    def close(self) -> int | None:
        """End the process, if there is one of ours; how it ended."""
        process, self.process = self.process, None
        if process is None or self.pid != os.getpid():
            return None
        process.kill()
        ended = process.wait()
        assert process.stdin is not None
        with suppress(BrokenPipeError):
            process.stdin.close()
        return ended


_OUT_OF_TIME = (-signal.SIGXCPU,) if hasattr(signal, "SIGXCPU") else ()
"""How a process ends that computes longer than it may."""


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
def _asked(answer: str, gold: str, decimals: int | None) -> tuple[bool | None, float]:
    return _worker.ask(answer=answer, gold=gold, decimals=decimals)


@dataclass
class Questions:
    """What one grade asks math-verify, within `GRADE_SECONDS`; short-lived.

    `open` is why a question had no answer, or "". After the first one nothing more is asked: what cannot be decided in part
    is not decided.
    """

    open: str = field(default="", init=False)
    _spent: float = field(default=0.0, init=False)

    def equal(self, answer: str, gold: str, *, decimals: int | None = None) -> bool | None:
        """Whether math-verify finds two LaTeX expressions equal; None where it had to be stopped.

        `decimals`: floats are compared after rounding to that many decimals, and variables by position (lenient).
        """
        if self.open:
            return None
        try:
            found, seconds = _asked(answer, gold, decimals)
        except _Ended:
            self.open = UNDECIDED
            return None
        self._spent += seconds  # of remembered answers too, so that a grade does not depend on those before it
        if found is None or not self._spent <= GRADE_SECONDS:
            self.open = GAVE_UP
            return None
        return found
