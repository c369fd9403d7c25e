"""How far a long run is: one line that is overwritten, easily switched off."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from tqdm import tqdm

from .text_safety import one_line

_STAGE: ContextVar[str] = ContextVar("stage", default="")
_PLAN: ContextVar[list[int] | None] = ContextVar("plan", default=None)


@contextmanager
def stages(total: int) -> Iterator[None]:
    """Count the stages of a command: those inside are shown as `[1/3] naming heads`."""
    token = _PLAN.set([0, total])
    try:
        yield
    finally:
        _PLAN.reset(token)


@contextmanager
def stage(name: str) -> Iterator[None]:
    """Name a part of a long run: the lines inside say so, whatever is computed."""
    if (plan := _PLAN.get()) is not None:
        plan[0] += 1
        name = f"[{plan[0]}/{plan[1]}] {name}"
    token = _STAGE.set(name)
    try:
        yield
    finally:
        _STAGE.reset(token)


@contextmanager
def progress_bar(total: int, label: str, *, enabled: bool = True) -> Iterator["_Bar"]:
    """Show `label 41 % 0:12 left` in one line, overwritten; call `.update(n)` on what it gives. Silent unless `enabled`.

    On the error stream, as usual, so that output can be piped; in a notebook, which colours that stream red, on the other.
    """
    file = sys.stdout if type(sys.stdout).__module__.startswith("ipykernel") else sys.stderr
    options: dict[str, object] = {"leave": False, "dynamic_ncols": True, "miniters": 1, "file": file}
    options["mininterval"] = 0.1 if file.isatty() else 2.0
    options["position"] = 0  # a bar inside another writes over its line
    options["bar_format"] = "{desc} {percentage:.0f} % {remaining} left"
    with _Bar(total=total, desc=one_line(_STAGE.get() or label), disable=not enabled, **options) as bar:
        yield bar


class _Bar(tqdm):
    monitor_interval = 0  # tqdm's thread, which redraws bars that skip updates, would outlive the run
