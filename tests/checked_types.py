"""Checks the types of every function of a module or class while tests run: beartype, and jaxtyping where a shape is told.

jaxtyping's own hook puts its checks around all functions, which is ten times as slow where there is no shape to remember, and
makes them anew for each function inside a function whenever the outer one is called: these are left to mypy.
"""

import functools
import inspect
from collections.abc import Callable
from dataclasses import is_dataclass
from importlib.machinery import SourceFileLoader
from typing import Any, ForwardRef, get_args
from unittest.mock import patch

import jaxtyping
from beartype import beartype
from jaxtyping import _import_hook

with_shapes = jaxtyping.jaxtyped


def tells_a_shape(annotation: Any) -> bool:
    """Whether there is an array's shape in it, or a name that is only known later."""
    if isinstance(annotation, list | tuple):
        return any(map(tells_a_shape, annotation))
    is_array = inspect.isclass(annotation) and issubclass(annotation, jaxtyping.AbstractArray)
    return is_array or isinstance(annotation, str | ForwardRef) or tells_a_shape(get_args(annotation))


def checked(*, typechecker: Any) -> Callable[[Any], Any]:
    """Stands for `jaxtyping.jaxtyped` where the hook puts it."""

    def of(thing: Any) -> Any:
        if inspect.isclass(thing):
            init = vars(thing).get("__init__")
            if is_dataclass(thing) and init is not None and not hasattr(init, "__wrapped__"):  # that checks by itself
                thing.__init__ = of(init)
            return thing
        if "<locals>" in thing.__qualname__:
            return thing
        if hasattr(thing, "__wrapped__") or tells_a_shape(list(thing.__annotations__.values())):
            return with_shapes(thing, typechecker=typechecker)
        strict = beartype(thing)

        @functools.wraps(thing)
        def call(*args: Any, **kwargs: Any) -> Any:
            return (thing if jaxtyping.config.jaxtyping_disable else strict)(*args, **kwargs)

        return call

    return of


def code_of(loader: Any, name: str) -> Any:
    """The module's code, from a cache beside Python's. jaxtyping's loader keeps to that cache while the module runs: what it
    imports (all of torch) is compiled anew in each process."""
    other = functools.partial(_import_hook._optimized_cache_from_source, loader._typechecker.get_hash())
    with patch("importlib._bootstrap_external.cache_from_source", other):
        return SourceFileLoader.get_code(loader, name)


def install(package: str) -> None:
    """Check what is imported of the package from now on."""
    jaxtyping.jaxtyped = checked
    _import_hook._JaxtypingLoader.get_code = code_of
    _import_hook._JaxtypingLoader.exec_module = SourceFileLoader.exec_module
    jaxtyping.install_import_hook(package, "beartype.beartype")
