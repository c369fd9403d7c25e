"""Random cases: few and the same ones in `make test`, new ones and many in `make fuzz`, counted either way.

`MLESS_FUZZ=500` asks for 500 cases of every test (times its share); a failure prints what it takes to see it again.
"""

import functools
import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, given, settings

CASES = int(os.environ.get("MLESS_FUZZ", "0"))
PASSED: Counter[str] = Counter()
"""How many cases of each kind have passed in this process."""
START, END = "<!-- fuzz -->\n", "<!-- end -->"


def fuzz(kind: str, *, few: int = 15, share: float = 1.0, **strategies: Any) -> Callable[[Callable], Callable]:
    """A test of random cases, drawn from `strategies` by name: `few` of them, or `share` of what MLESS_FUZZ asks for."""

    def decorate(test: Callable) -> Callable:
        @functools.wraps(test)
        def counted(*args: Any, **kwargs: Any) -> None:
            test(*args, **kwargs)
            PASSED[kind] += 1

        return settings(
            max_examples=max(few, round(CASES * share)),
            derandomize=not CASES,
            database=None,
            deadline=None,
            phases=(Phase.explicit, Phase.generate, *([Phase.shrink] if CASES else [])),
            print_blob=True,
            suppress_health_check=list(HealthCheck),
        )(given(**strategies)(counted))

    return decorate


def write_counts(page: Path) -> None:
    """The counts of this process into their table on a page."""
    before, _, rest = page.read_text(encoding="utf-8").partition(START)
    _, closed, after = rest.partition(END)
    if not closed:
        raise ValueError(f"{page} has no table between {START.strip()!r} and {END!r}")
    rows = [f"| {kind} | {n:,} |" for kind, n in sorted(PASSED.items())]
    table = "\n".join(["| random cases | passed |", "| --- | ---: |", *rows, f"| all | {PASSED.total():,} |"])
    page.write_text(f"{before}{START}{table}\n{END}{after}", encoding="utf-8")
