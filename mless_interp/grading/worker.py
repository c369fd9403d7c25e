"""The process in which math-verify compares two answers; run as a script by `equivalence.py`, which may lose it.

One JSON object per line in, one out. Whatever hangs in C code, where no Python timeout is heard, ends by the kernel's
limit of CPU seconds, which does not depend on how busy the machine is; where there is none, by a watchdog.
"""

import faulthandler
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
WALL_SECONDS = 60.0
"""What one comparison may take at all."""

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
        asked = json.loads(line)
        begun = sum(os.times()[:2])
        _limit("RLIMIT_CPU", int(begun) + 1 + asked.pop("cpu_seconds"))
        faulthandler.dump_traceback_later(WALL_SECONDS, exit=True)
        equal = compared(**asked)
        faulthandler.cancel_dump_traceback_later()
        print(json.dumps([equal, sum(os.times()[:2]) - begun]), file=answers, flush=True)


def compared(answer: str, gold: str, decimals: int | None) -> bool | None:
    """Return whether the two are equal; None where the comparison needs more memory or depth than there is."""
    options: dict[str, Any] = {}
    if decimals is not None:
        options = {"float_rounding": decimals, "strict": False, "allow_set_relation_comp": True}
    try:
        first, second = _read(gold), _read(answer)
        return bool(first and second and verify(first, second, timeout_seconds=None, **options))
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
