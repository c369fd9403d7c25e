"""Which classes may be written to a folder and made again from it: by their public name, wherever they are defined."""

from typing import TypeVar

SAVED: dict[str, type] = {}
"""Frozen dataclasses by name, as folders written by `store.save` name them."""

Class = TypeVar("Class", bound=type)


def savable(kind: Class) -> Class:
    """A class decorator: instances of this dataclass can be saved and loaded unchanged."""
    SAVED[kind.__name__] = kind
    return kind
