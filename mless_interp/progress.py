"""How far a long run is: one progress bar, easily switched off."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tqdm import tqdm


@contextmanager
def progress_bar(total: int, label: str, *, enabled: bool = True) -> Iterator[Any]:
    """A bar that counts to `total`; call `.update(n)` on what it gives. Silent if `enabled` is False."""
    with tqdm(total=total, desc=label, disable=not enabled, leave=False, dynamic_ncols=True) as bar:
        yield bar
