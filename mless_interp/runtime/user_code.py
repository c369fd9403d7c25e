"""Digests of the code that users write: what was kept of a metric, outcome or edit is refused once the code is another."""

import inspect
import sys
from functools import partial
from types import CodeType, FunctionType, ModuleType
from typing import Any

import numpy as np
from torch import Tensor

from .checkpoint import key_of, plain

CONSTANTS = (
    FunctionType | type | partial | bool | int | float | complex | str | bytes | tuple | frozenset | Tensor | np.ndarray
)


def codes_of(*given: Any) -> dict[str, str]:
    """Return a digest of the code of each metric, outcome or edit that a user wrote, by its name; nothing of the toolkit's own.

    Told are its functions and classes, their defaults, what they enclose, and the functions, constants and tensors of their
    own modules that they name, libraries' by name alone. Lists, dicts and objects of modules are left out: runs may change
    them.
    """
    found: dict[str, str] = {}
    for each in given:
        told = [_told(part, set()) for part in (*vars(each).values(), type(each)) if _is_own(part)]
        found |= {f"code of {each.name!r}": key_of(told)} if told else {}
    return found


def _is_own(value: Any) -> bool:
    if isinstance(value, partial):
        return any(map(_is_own, (value.func, *value.args, *value.keywords.values())))
    of = value if isinstance(value, FunctionType | type) else type(value)
    module = (value.__name__ if isinstance(value, ModuleType) else of.__module__).partition(".")[0]
    installed = "site-packages" in str(getattr(sys.modules.get(module), "__file__", ""))
    return not installed and module not in (*sys.stdlib_module_names, "mless_interp")


def _told(value: Any, seen: set[int]) -> object:
    # as JSON; `seen`: what is told already, since functions may name each other
    value = inspect.unwrap(getattr(value, "__func__", value))
    match value:
        case list() | tuple():
            parts = value
        case dict():
            parts = [*value, *value.values()]
        case partial():
            parts = [value.func, value.args, value.keywords]
        case CodeType():
            parts = [value.co_code.hex(), value.co_names, value.co_consts]
        case _ if id(value) in seen or not _is_own(value):
            return plain(value)
        case FunctionType():
            enclosed = [cell.cell_contents for cell in value.__closure__ or ()]
            named = _named(value.__globals__, _names(value.__code__), set())
            constants = [each for each in named if isinstance(each, CONSTANTS)]
            parts = [value.__code__, value.__defaults__, value.__kwdefaults__, enclosed, constants]
        case type():
            own = {name: part for name, part in vars(value).items() if isinstance(part, FunctionType) or name[0] != "_"}
            parts = [own, value.__bases__]
        case _:
            parts = [type(value), getattr(value, "__dict__", {})]
    seen.add(id(value))
    return [_told(part, seen) for part in parts]


def _names(code: CodeType) -> list[str]:
    return sum([_names(each) for each in code.co_consts if isinstance(each, CodeType)], list(code.co_names))


def _named(scope: dict[str, Any], names: list[str], seen: set[int]) -> list[Any]:
    """Return what names stand for in a module, and in each of the user's modules that one of them stands for."""
    found = [scope[name] for name in names if name in scope]
    seen.add(id(scope))
    inner = [
        vars(each) for each in found if isinstance(each, ModuleType) and _is_own(each) and id(vars(each)) not in seen
    ]
    return sum([_named(each, names, seen) for each in inner], found)
