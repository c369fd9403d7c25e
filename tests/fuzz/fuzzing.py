"""Random cases: few and the same ones in `make test`, new ones and many in `make fuzz`.

`MLESS_FUZZ=500` asks for 500 cases of every test (times its share); a failure prints what it takes to see it again.
"""

import os
from collections.abc import Callable
from typing import Any

from hypothesis import HealthCheck, Phase, given, settings

CASES = int(os.environ.get("MLESS_FUZZ", "0"))


def fuzz(*, few: int = 15, share: float = 1.0, **strategies: Any) -> Callable[[Callable], Callable]:
    """A test of random cases, drawn from `strategies` by name: `few` of them, or `share` of what MLESS_FUZZ asks for."""

    asked = settings(
        max_examples=max(few, round(CASES * share)),
        derandomize=not CASES,
        database=None,
        deadline=None,
        phases=(Phase.explicit, Phase.generate, *([Phase.shrink] if CASES else [])),
        print_blob=True,
        suppress_health_check=list(HealthCheck),
    )
    return lambda test: asked(given(**strategies)(test))
