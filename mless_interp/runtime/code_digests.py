"""Digests of the code that users write: what was kept of a metric, outcome or edit is refused once the code is another."""

import dis
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

READS = ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_DEREF", "LOAD_CLASSDEREF")  # and not attributes, which may be called alike


def codes_of(*given: Any) -> dict[str, str]:
    """Return a digest of the code of each metric, outcome or edit that a user wrote, by its name; nothing of the toolkit's own.

    Told are its functions and classes, their defaults, what they enclose, and the functions, constants and arrays of the
    user's modules that they name, libraries' by name alone. Lists, dicts and objects of modules are left out: runs may
    change them.
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
    module = (value.__name__ if isinstance(value, ModuleType) else of.__module__ or "").partition(".")[0]
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
        case ModuleType():
            return value.__name__
        case CodeType():
            parts = [value.co_code.hex(), value.co_names, value.co_consts]
        case _ if id(value) in seen or not _is_own(value):
            return plain(value)
        case FunctionType():
            enclosed = [cell.cell_contents for cell in value.__closure__ or ()]
            around = value.__globals__ | dict(zip(value.__code__.co_freevars, enclosed, strict=True))
            constants = [each for each in _named(around, value.__code__) if isinstance(each, CONSTANTS)]
            parts = [value.__code__, value.__defaults__, value.__kwdefaults__, enclosed, constants]
        case type():
            own = {name: part for name, part in vars(value).items() if isinstance(part, FunctionType) or name[0] != "_"}
            parts = [own, value.__bases__]
        case _:
            parts = [type(value), getattr(value, "__dict__", {})]
    seen.add(id(value))
    return [_told(part, seen) for part in parts]


def _codes(code: CodeType) -> list[CodeType]:
    return sum([_codes(each) for each in code.co_consts if isinstance(each, CodeType)], [code])


def _named(scope: dict[str, Any], code: CodeType) -> list[Any]:
    """Return what a function's names stand for: in its own module, and as attributes in the user's modules among that."""
    codes = _codes(code)
    read = [each.argval for of in codes for each in dis.get_instructions(of) if each.opname in READS]
    found, seen = [scope[name] for name in read if name in scope], set()
    for each in found:  # which grows: a package's module is found in the package
        if isinstance(each, ModuleType) and _is_own(each) and each.__name__ not in seen:
            seen.add(each.__name__)
            found += [vars(each)[name] for of in codes for name in of.co_names if name in vars(each)]
    return found
