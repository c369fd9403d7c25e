"""How far a long run is: one progress bar, easily switched off."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tqdm import tqdm

from .text_safety import one_line


@contextmanager
def progress_bar(total: int, label: str, *, enabled: bool = True) -> Iterator[Any]:
    """A bar that counts to `total`; call `.update(n)` on what it gives. Silent if `enabled` is False.

    On the error stream, as usual, so that output can be piped; in a notebook, which colours that stream red, on the other.
    """
    file = sys.stdout if type(sys.stdout).__module__.startswith("ipykernel") else sys.stderr
    options: dict[str, Any] = {"leave": False, "dynamic_ncols": True, "miniters": 1, "file": file}
    with _Bar(total=total, desc=one_line(label), disable=not enabled, **options) as bar:
        yield bar


class _Bar(tqdm):
    monitor_interval = 0  # tqdm's thread, which redraws bars that skip updates, would outlive the run
