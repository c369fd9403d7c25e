"""One pass at a time through what several threads share: hooks of one would be seen by the passes of the other."""

from threading import Lock, RLock
from typing import Any
from weakref import WeakKeyDictionary

_LOCKS: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()
_ENTERING = Lock()


def lock_of(thing: Any) -> Any:
    """The lock of a library's object, re-entrant: the same for every `Model` around it."""
    with _ENTERING:
        return _LOCKS.setdefault(thing, RLock())
