"""Run a shared model one pass at a time, and in the same way whatever the process is set to."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from threading import Lock, RLock
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn

from ..arguments import outside_autocast

_LOCKS: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()
_ENTERING = Lock()
_PRODUCTS = RLock()
"""Held while the process multiplies as one model wants it."""
LIBRARIES = ("accelerate", "bitsandbytes", "nnsight", "torch", "transformer_lens.model_bridge", "transformers")
"""Packages whose hooks are part of how they run a model."""


def lock_of(thing: Any) -> Any:
    """Return the lock of a library's object, re-entrant: the same for every `Model` around it."""
    with _ENTERING:
        return _LOCKS.setdefault(thing, RLock())


@contextmanager
def at_most(threads: int) -> Iterator[None]:
    """Compute with at most so many CPU threads."""
    had = torch.get_num_threads()
    try:
        if threads < had:
            torch.set_num_threads(threads)
        yield
    finally:
        if threads < had:
            torch.set_num_threads(had)


@contextmanager
def turn(thing: Any, modules: Sequence[nn.Module], *, threads: int, tf32: bool | None = None) -> Iterator[None]:
    """Let no other thread pass through a library's object, and run its `modules` alike at all times; re-entrant.

    Meanwhile they are in evaluation mode, autocast is off, and at most `threads` CPU threads compute. `tf32`: products of
    float32 are made in TF32 on a GPU (True) or in full (False); None leaves that to the process. All is put back afterwards.
    """
    with lock_of(thing), nullcontext() if tf32 is None else _PRODUCTS, outside_autocast(), at_most(threads):
        training = [part for _, part in parts_of(modules) if part.training]
        precision = torch.get_float32_matmul_precision()
        try:
            if tf32 is not None:
                torch.set_float32_matmul_precision("high" if tf32 else "highest")
            for part in training:
                part.training = False
            yield
        finally:
            for part in training:
                part.training = True
            if tf32 is not None:
                torch.set_float32_matmul_precision(precision)


def parts_of(modules: Sequence[nn.Module]) -> Iterator[tuple[str, nn.Module]]:
    """Yield every module inside these with its path, each once."""
    seen: set[nn.Module] = set()
    for module in modules:
        yield from module.named_modules(seen)


def added_hooks(modules: Sequence[nn.Module]) -> tuple[str, ...]:
    """Return the forward hooks, pre-hooks and replaced forwards that no library put there, each as its path and its kind."""
    found = []
    for path, part in parts_of(modules):
        for kind, hooks in (("hook", part._forward_hooks), ("pre-hook", part._forward_pre_hooks)):
            found += [f"{path} {kind}" for hook in hooks.values() if not _is_a_librarys(hook)]
        forward = vars(part).get("forward")
        if forward is not None and not _is_a_librarys(forward, type(part).forward.__module__):
            found.append(f"{path} forward")
    return tuple(sorted(found))


def _is_a_librarys(function: Any, *known: str) -> bool:
    origin = getattr(function, "__module__", None) or type(function).__module__
    return any(f"{origin}.".startswith(f"{library}.") for library in (*LIBRARIES, *known))
