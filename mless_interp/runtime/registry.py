"""Which classes may be written to a folder and made again from it: by their public name, wherever they are defined."""

from collections.abc import Mapping
from typing import TypeVar

SAVED: dict[str, type] = {}
"""Frozen dataclasses by name, as folders written by `store.save` name them."""
RENAMED: dict[str, dict[str, str | None]] = {}
"""By class, the fields that older folders know otherwise: what they were called, and what they are called now (None: what
they held follows from the others, and is made from them)."""

Class = TypeVar("Class", bound=type)


def savable(kind: Class, *, renamed: Mapping[str, str | None] | None = None) -> Class:
    """A class decorator: instances of this dataclass can be saved and loaded unchanged."""
    SAVED[kind.__name__] = kind
    RENAMED[kind.__name__] = dict(renamed or {})
    return kind
