"""Types checked by beartype: the check of a nested function, which is made at every call of the outer one, is made once."""

from collections.abc import Callable, Hashable
from typing import Any

from beartype import beartype

_nested: dict[Hashable, Callable[..., Any]] = {}


def checked(signature: Callable[..., Any]) -> Callable[..., Any]:
    """`beartype` of what jaxtyping gives it: a function that has the signature and does nothing.

    Equal code, annotations and names of defaults make equal checks, and making one takes longer than most calls.
    """
    annotations = tuple(signature.__annotations__.items())
    if "<locals>" not in signature.__qualname__ or not all(isinstance(kind, Hashable) for _, kind in annotations):
        return beartype(signature)
    defaults = len(signature.__defaults__ or ()), *(signature.__kwdefaults__ or ())
    key = signature.__module__, signature.__qualname__, signature.__code__, defaults, annotations
    if key not in _nested:
        _nested[key] = beartype(signature)
    return _nested[key]
