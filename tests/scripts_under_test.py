"""Analyses and commands run as their command line would run them, in the process of the tests."""

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest


class Done(NamedTuple):
    """How a script ended and what it showed."""

    returncode: int
    stdout: str
    stderr: str


def run_script(
    path: Path, arguments: Any, *, cwd: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Done:
    """The script at `path` with these arguments, in the folder `cwd`."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return _run(module.app, [str(path), *map(str, arguments)], cwd, capsys, monkeypatch)


def run_command(
    *arguments: Any, cwd: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Done:
    """`mless-interp` with these arguments, in the folder `cwd`."""
    from mless_interp.__main__ import main

    return _run(main, ["mless-interp", *map(str, arguments)], cwd, capsys, monkeypatch)


def _run(
    program: Callable[[], Any],
    argv: list[str],
    cwd: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> Done:
    monkeypatch.chdir(cwd)
    monkeypatch.setattr(sys, "argv", argv)
    capsys.readouterr()
    try:
        program()
        code = 0
    except SystemExit as stop:
        code = int(stop.code or 0)
    shown = capsys.readouterr()
    return Done(code, shown.out, shown.err)
