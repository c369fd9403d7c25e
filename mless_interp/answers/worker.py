"""The process in which math-verify compares two answers; run as a script by `equivalence.py`, which may lose it.

One JSON object per line in, one truth value out. Whatever hangs in C code, where no Python timeout is heard, ends by the
kernel's limit of CPU seconds, which does not depend on how busy the machine is.
"""

import json
import logging
import os
import signal
import sys
from contextlib import suppress
from functools import lru_cache
from typing import Any

from latex2sympy2_extended import NormalizationConfig
from math_verify import LatexExtractionConfig, parse, verify

MEMORY_BYTES = 4 * 2**30
"""Of addresses; a comparison that needs more has no answer."""

# math-verify's own rewriting takes letters for units: to it, 3ab is 3
_AS_IT_IS = NormalizationConfig(
    basic_latex=False, units=False, malformed_operators=False, nits=False, boxed="none", equations=False
)


def main() -> None:
    """Answer until the input ends."""
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
    try:
        first, second = _read(gold), _read(answer)
        return bool(first and second and verify(first, second, timeout_seconds=None))
    except (RecursionError, MemoryError):
        return None
    except Exception:  # noqa: BLE001  what cannot be read is not equal
        return False


@lru_cache(maxsize=256)
def _read(latex: str) -> list[Any]:
    found = parse(f"${latex}$", [LatexExtractionConfig(normalization_config=_AS_IT_IS)], parsing_timeout=None)
    return [expression for expression in found if not isinstance(expression, str)]


def _limit(name: str, soft: int) -> None:
    """Set a limit of this process, where the system has it."""
    with suppress(ImportError, AttributeError, ValueError, OSError):
        import resource

        kind = getattr(resource, name)
        resource.setrlimit(kind, (soft, resource.getrlimit(kind)[1]))


if __name__ == "__main__":
    main()
