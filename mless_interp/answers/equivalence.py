"""math-verify, asked from any thread or process, within a limit that holds.

math-verify's own timeout is an alarm signal: it fails outside the main thread, and is not heard while C code runs
(`9^{9^{9^9}}`). So it runs in a process of its own (`worker.py`), one for each process that asks, started at the first
question and replaced when it has ended. One comparison may compute for `CPU_SECONDS`, in `worker.MEMORY_BYTES`.
"""

import atexit
import json
import os
import subprocess
import sys
import threading
from functools import lru_cache
from pathlib import Path

CPU_SECONDS = 3
"""What one comparison may compute; CPU time, so that a busy machine does not change a grade."""


class GaveUp(Exception):
    """A comparison took more time or memory than its limits."""


class _Worker:
    """One process that compares, one question at a time."""

    def __init__(self) -> None:
        self._lock, self._pid = threading.Lock(), os.getpid()
        self.process: subprocess.Popen[str] | None = None
        atexit.register(self.close)

    def close(self) -> None:
        """End the process; a next question starts another."""
        process, self.process = self.process, None
        if process is not None and os.getpid() == self._pid:  # a forked process has inherited what is not its own
            process.communicate()

    def ask(self, answer: str, gold: str) -> bool | None:
        """Return whether the two are equal, None if that took too much time or memory."""
        question = {"answer": answer, "gold": gold, "cpu_seconds": CPU_SECONDS}
        with self._lock:
            process = self.process or _started()
            self.process = None  # unless it answers
            reply = _reply(process, json.dumps(question))
            if not reply:
                process.communicate()
                return None
            self.process = process
            equal: bool | None = json.loads(reply)
            return equal


def _started() -> "subprocess.Popen[str]":
    process = subprocess.Popen(
        [sys.executable, "-P", str(Path(__file__).with_name("worker.py"))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        encoding="utf-8",
        env=os.environ | {"PYTHONHASHSEED": "0"},  # SymPy orders by hashes
    )
    assert process.stdout is not None
    if not process.stdout.readline():
        process.communicate()
        raise RuntimeError(f"math-verify did not start; see what `{sys.executable} -c 'import math_verify'` says")
    return process


def _reply(process: "subprocess.Popen[str]", question: str) -> str:
    """Return the process's answer; "" where it ended instead."""
    assert process.stdin is not None and process.stdout is not None
    try:
        print(question, file=process.stdin, flush=True)
        return process.stdout.readline()
    except BrokenPipeError:
        return ""
    except BaseException:
        process.kill()  # interrupted: the next question must not read this answer
        process.communicate()
        raise


@lru_cache
def _worker_of(pid: int) -> _Worker:
    """A process's own worker: a forked process must not read the answers to its parent's questions."""
    return _Worker()


@lru_cache(maxsize=2**14)
def _asked(answer: str, gold: str) -> bool | None:
    return _worker_of(os.getpid()).ask(answer, gold)


def asked(answer: str, gold: str) -> bool:
    """Return whether math-verify finds two LaTeX expressions equal; `GaveUp` where it had to be stopped."""
    equal = _asked(answer, gold)
    if equal is None:
        raise GaveUp
    return equal
