"""What several formulas have in common, computed once while one block of rows is reduced, and forgotten after it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from typing import ParamSpec, TypeVar, cast

P = ParamSpec("P")
R = TypeVar("R")
_KNOWN: ContextVar[dict[tuple[object, ...], tuple[object, object]] | None] = ContextVar("_KNOWN", default=None)


@contextmanager
def computed_once() -> Iterator[None]:
    """Inside, a function marked `once` is computed once for the same arguments (the very same tensors, left as they are)."""
    before = _KNOWN.set({})
    try:
        yield
    finally:
        _KNOWN.reset(before)


def once(function: Callable[P, R]) -> Callable[P, R]:
    """The same function, whose numbers are kept as long as `computed_once` says; elsewhere nothing is kept."""

    @wraps(function)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        known = _KNOWN.get()
        if known is None:
            return function(*args, **kwargs)
        given = (*args, *kwargs.values())
        key = function, tuple(kwargs), tuple(map(id, given))
        if key not in known:
            known[key] = given, function(*args, **kwargs)  # what was given stays alive, so that its id is nobody else's
        return cast(R, known[key][1])

    return wrapped
