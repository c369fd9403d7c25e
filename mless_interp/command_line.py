"""What every analysis script shares: one clear line for wrong input, lists of layers and heads, a command to repeat."""

import functools
import os
import shlex
import sys
from collections.abc import Callable
from typing import Any

from .heads import Head


def one_line_errors(command: Callable[..., Any]) -> Callable[..., Any]:
    """Wrong input ends the program with one line on standard error and exit code 2.

    Set MLESS_TRACEBACK=1 to see where it came from.
    """

    @functools.wraps(command)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        try:
            return command(*args, **kwargs)
        except (ValueError, TypeError, OSError) as error:
            if os.environ.get("MLESS_TRACEBACK"):
                raise
            text = " ".join(str(error).split()) or type(error).__name__
            sys.stderr.write(f"error: {text}\n")
            raise SystemExit(2) from error

    return wrapped


def chosen_heads(heads: str | None, layers: str | None, *, n_layers: int, n_heads: int) -> tuple[Head, ...] | None:
    """Heads from `--heads 0:13,0:21` and/or `--layers 0,2-4` (zero-based); None means all.

    >>> chosen_heads("0:1", None, n_layers=2, n_heads=2)
    (L0H1,)
    >>> chosen_heads(None, "0-1", n_layers=4, n_heads=1)
    (L0H0, L1H0)
    """
    if heads is not None and layers is not None:
        raise ValueError("give --heads or --layers, not both")
    if heads is not None:
        return tuple(Head.parse(part) for part in heads.split(",") if part.strip())
    if layers is None:
        return None
    found: list[int] = []
    for part in layers.split(","):
        first, dash, last = part.strip().partition("-")
        last = last if dash else first
        if not (first.isdecimal() and last.isdecimal()) or int(first) > int(last):
            raise ValueError(f"cannot read {part!r} as layers: write 0,2-4 (zero-based)")
        found += range(int(first), int(last) + 1)
    for layer in found:
        if layer >= n_layers:
            raise ValueError(f"layer {layer} is out of range (zero-based): the model has layers 0 to {n_layers - 1}")
    return tuple(Head(layer, head) for layer in sorted(set(found)) for head in range(n_heads))


def chosen_numbers(text: str, *, name: str) -> tuple[int, ...]:
    """Whole numbers from an option such as `--doses 1,2,4`.

    >>> chosen_numbers("1,2,4", name="--doses")
    (1, 2, 4)
    """
    parts = [part.strip() for part in text.split(",")]
    wrong = [part for part in parts if not part.isdecimal()]
    if wrong:
        raise ValueError(f"{name}: cannot read {wrong[0]!r} as a number of tokens: write 1,2,4")
    return tuple(int(part) for part in parts)


def repeat_command() -> str:
    """The command that started this program, ready to paste."""
    return shlex.join(["python", *sys.argv])
