"""math-verify, asked from any thread or process, with limits that hold.

math-verify's own timeout is an alarm signal: it fails outside the main thread, and is not heard while C code runs
(`9^{9^{9^9}}`). So it runs in a process of its own (`worker.py`), one for each process that asks, started at the first
question and replaced when it has ended. One comparison may compute for `CPU_SECONDS`, all of one grade for
`GRADE_SECONDS`, in `worker.MEMORY_BYTES`: beyond that it is given up. A process that somebody else ended (the system, short of
memory) says nothing about the answer: a fresh one is asked once more.
"""

import atexit
import json
import os
import signal
import subprocess
import sys
import threading
from functools import lru_cache
from pathlib import Path

CPU_SECONDS = 3
"""What one comparison may compute; CPU time, so that a busy machine does not change a grade."""
GRADE_SECONDS = 10.0
"""What all comparisons of one grade may compute together, such as those of two lists in any order."""


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

    def ask(self, answer: str, gold: str, decimals: int | None) -> tuple[bool | None, float]:
        """Return whether the two are equal, None if that took too much time or memory; and the CPU seconds that it took."""
        question = {"answer": answer, "gold": gold, "decimals": decimals, "cpu_seconds": CPU_SECONDS}
        with self._lock:
            for _ in range(2):
                process = self.process or _started()
                self.process = None  # unless it answers
                reply = _reply(process, json.dumps(question))
                if reply:
                    self.process = process
                    equal, seconds = json.loads(reply)
                    return equal, seconds
                process.communicate()
                if process.returncode == -getattr(signal, "SIGXCPU", 0):
                    break
            return None, float(CPU_SECONDS)


def _started() -> "subprocess.Popen[str]":
    process = subprocess.Popen(
        [sys.executable, "-P", str(Path(__file__).with_name("worker.py"))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        encoding="utf-8",
        env=os.environ | {"PYTHONHASHSEED": "0"},  # SymPy orders by hashes: which variable is which, by position
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
        process.kill()  # interrupted: nobody waits for this answer
        process.communicate()
        raise


@lru_cache
def _worker_of(pid: int) -> _Worker:
    """Return a process's own worker: a forked process must not read the answers to its parent's questions."""
    return _Worker()


@lru_cache(maxsize=2**14)
def _asked(answer: str, gold: str, decimals: int | None) -> tuple[bool | None, float]:
    return _worker_of(os.getpid()).ask(answer, gold, decimals)


class Questions:
    """What one grade asks math-verify, within `GRADE_SECONDS`.

    Once a question has no answer (`gave_up`) nothing more is asked: what cannot be decided in part is not decided.
    """

    def __init__(self) -> None:
        self.gave_up = False
        self._spent = 0.0

    def equal(self, answer: str, gold: str, *, decimals: int | None = None) -> bool | None:
        """Return whether math-verify finds two LaTeX expressions equal; None where it had to be stopped.

        `decimals`: floats are compared after rounding to that many decimals, and variables by position (lenient).
        """
        if not self.gave_up:
            found, seconds = _asked(answer, gold, decimals)
            self._spent += seconds  # of remembered answers too, so that a grade does not depend on those before it
            self.gave_up = found is None or self._spent > GRADE_SECONDS
        return None if self.gave_up else found
