"""math-verify, asked from any thread or process, within a limit that holds.

math-verify's own timeout is an alarm signal: it fails outside the main thread, and is not heard while C code runs
(`9^{9^{9^9}}`). So it runs in a process of its own, which is this file as a script: one for each process that asks. One JSON
object per line goes in, one truth value comes out. Whatever hangs ends by the kernel's limit of CPU seconds.
"""

import atexit
import json
import logging
import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from functools import lru_cache

CPU_SECONDS = 3  # what one comparison may compute; CPU time, so that a busy machine does not change a grade
MEMORY_BYTES = 4 * 2**30  # of addresses; a comparison that needs more has no answer


class GaveUp(Exception):
    """A comparison took more time or memory than its limits."""


class _Worker:
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
        question = json.dumps({"answer": answer, "gold": gold, "cpu_seconds": CPU_SECONDS})
        with self._lock:
            process, self.process = self.process or _started(), None  # kept for the next question if it answers
            assert process.stdin is not None and process.stdout is not None
            try:
                print(question, file=process.stdin, flush=True)
                reply = process.stdout.readline()
            except BrokenPipeError:
                reply = ""
            except BaseException:
                process.kill()  # interrupted: the next question must not read this answer
                process.communicate()
                raise
            if reply:
                self.process = process
            else:
                process.communicate()
        equal: bool | None = json.loads(reply or "null")
        return equal


def _started() -> "subprocess.Popen[str]":
    process = subprocess.Popen(
        [sys.executable, "-P", __file__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        encoding="utf-8",
        env=os.environ | {"PYTHONHASHSEED": "0"},  # SymPy orders by hashes
    )
    assert process.stdout is not None
    if not process.stdout.readline():
        process.communicate()
        raise RuntimeError(f"math-verify did not start; see what `{sys.executable} -c 'import math_verify'` says")
    return process


@lru_cache
def _worker_of(pid: int) -> _Worker:
    """Return a process's own worker: a forked process must not read the answers to its parent's questions."""
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


# ------------------------------------------------------------------------------------------------ in the other process


def main() -> None:
    """Answer until the input ends."""
    import math_verify  # noqa: F401  before it is said to be ready

    answers, sys.stdout = sys.stdout, sys.stderr  # what a library prints must not stand between the answers
    logging.disable(logging.CRITICAL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupt is the parent's to handle
    _limit("RLIMIT_CORE", 0)
    _limit("RLIMIT_AS", MEMORY_BYTES)
    print("ready", file=answers, flush=True)
    for line in sys.stdin:
        question = json.loads(line)
        _limit("RLIMIT_CPU", int(sum(os.times()[:2])) + 1 + question["cpu_seconds"])
        print(json.dumps(compared(question["answer"], question["gold"])), file=answers, flush=True)


def compared(answer: str, gold: str) -> bool | None:
    """Return whether the two are equal; None where the comparison needs more memory or depth than there is."""
    from math_verify import verify

    try:
        first, second = _read(gold), _read(answer)
        return bool(first and second and verify(first, second, timeout_seconds=None))
    except (RecursionError, MemoryError):
        return None
    except Exception:  # noqa: BLE001  what cannot be read is not equal
        return False


@lru_cache(maxsize=256)
def _read(latex: str) -> list[object]:
    from latex2sympy2_extended import NormalizationConfig
    from math_verify import LatexExtractionConfig, parse

    # math-verify's own rewriting takes letters for units: to it, 3ab is 3
    as_it_is = NormalizationConfig(
        basic_latex=False, units=False, malformed_operators=False, nits=False, boxed="none", equations=False
    )
    found = parse(f"${latex}$", [LatexExtractionConfig(normalization_config=as_it_is)], parsing_timeout=None)
    return [expression for expression in found if not isinstance(expression, str)]


def _limit(name: str, soft: int) -> None:
    with suppress(ImportError, AttributeError, ValueError, OSError):
        import resource

        kind = getattr(resource, name)
        resource.setrlimit(kind, (soft, resource.getrlimit(kind)[1]))


if __name__ == "__main__":
    main()
