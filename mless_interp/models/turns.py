"""One pass at a time through what several threads share: hooks of one would be seen by the passes of the other."""

from threading import Lock, RLock
from typing import Any
from weakref import WeakKeyDictionary

import torch

_LOCKS: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()
_ENTERING = Lock()
_PRODUCTS = RLock()
"""Held while the process multiplies as one model wants it."""


def lock_of(thing: Any) -> Any:
    """The lock of a library's object, re-entrant: the same for every `Model` around it."""
    with _ENTERING:
        return _LOCKS.setdefault(thing, RLock())


class Turn:
    """`with` it, no other thread passes through a library's object; re-entrant.

    `tf32`: products of float32 are meanwhile made in TF32 on a GPU (True) or in full (False), as the process had it after it;
    None leaves that to the process.
    """

    def __init__(self, thing: Any, tf32: bool | None = None) -> None:
        self._lock, self._tf32 = lock_of(thing), tf32
        self._before: list[str] = []

    def __enter__(self) -> None:
        if self._tf32 is not None:
            _PRODUCTS.acquire()
            self._before.append(torch.get_float32_matmul_precision())
            torch.set_float32_matmul_precision("high" if self._tf32 else "highest")
        self._lock.acquire()

    def __exit__(self, *error: object) -> None:
        self._lock.release()
        if self._tf32 is not None:
            torch.set_float32_matmul_precision(self._before.pop())
            _PRODUCTS.release()
