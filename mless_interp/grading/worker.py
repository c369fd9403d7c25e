"""The process in which math-verify compares two answers; run as a script by `equivalence.py`, which may kill it.

One JSON object per line in, one out. Whatever hangs in C code, where no Python timeout is heard, ends by the kernel's
limit of CPU seconds, which does not depend on how busy the machine is.
"""

import json
import os
import signal
import sys
from functools import lru_cache
from typing import Any, TextIO

MEMORY_BYTES = 4 * 2**30
"""Of addresses; a comparison that needs more has no answer."""


def main() -> None:
    """Answer until the input ends."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what a library prints must not stand between the answers
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupt is the parent's to handle
    _limit("RLIMIT_CORE", 0)
    _limit("RLIMIT_AS", MEMORY_BYTES)
    try:
        compare = _comparison()
    except ImportError as error:
        _reply(answers, error=f"{type(error).__name__}: {error}")
        return
    _reply(answers, ready=True)
    for line in sys.stdin:
        asked = json.loads(line)
        begun = sum(os.times()[:2])
        _limit("RLIMIT_CPU", int(begun) + 1 + asked["cpu_seconds"])
        equal = answered(compare, asked["answer"], asked["gold"], asked["decimals"])
        _reply(answers, equal=equal, seconds=sum(os.times()[:2]) - begun)


def answered(compare: Any, answer: str, gold: str, decimals: int | None) -> bool | None:
    """Whether the two are equal; None where the comparison needs more memory or depth than there is."""
    try:
        return bool(compare(answer, gold, decimals))
    except (RecursionError, MemoryError):
        return None
    except Exception:  # noqa: BLE001  what cannot be read is not equal
        return False


def _reply(answers: TextIO, **reply: Any) -> None:
    answers.write(json.dumps(reply) + "\n")
    answers.flush()


def _limit(name: str, soft: int) -> None:
    """A limit of this process, where the system has it."""
    try:
        import resource

        kind = getattr(resource, name)
        resource.setrlimit(kind, (soft, resource.getrlimit(kind)[1]))
    except (ImportError, AttributeError, ValueError, OSError):
        pass


def _comparison() -> Any:
    import logging

    from latex2sympy2_extended import NormalizationConfig
    from math_verify import LatexExtractionConfig, parse, verify

    logging.disable(logging.CRITICAL)
    # math-verify's own rewriting takes letters for units: to it, 3ab is 3
    as_it_is = NormalizationConfig(
        basic_latex=False, units=False, malformed_operators=False, nits=False, boxed="none", equations=False
    )
    reading = [LatexExtractionConfig(normalization_config=as_it_is)]

    @lru_cache(maxsize=256)
    def read(latex: str) -> list[Any]:
        found = parse(f"${latex}$", reading, parsing_timeout=None)
        return [expression for expression in found if not isinstance(expression, str)]

    def compare(answer: str, gold: str, decimals: int | None) -> bool:
        first, second = read(gold), read(answer)
        if not first or not second:
            return False
        if decimals is None:
            return verify(first, second, timeout_seconds=None)
        return verify(
            first, second, float_rounding=decimals, strict=False, allow_set_relation_comp=True, timeout_seconds=None
        )

    return compare


if __name__ == "__main__":
    main()
