"""Nothing finished is lost: one line of a .jsonl file per finished problem, flushed at once."""

import contextlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np


class Checkpoint:
    """Finished problems of a long run, by id; `Checkpoint(None, ...)` keeps nothing at all.

    The first line holds the run's settings. A file made with other settings is refused with the difference named; a
    last line that was cut off is dropped and its problem done again.
    """

    def __init__(self, path: str | Path | None, settings: dict[str, Any]) -> None:
        self.path = None if path is None else Path(path)
        self.repaired = False
        self._done: dict[str, Any] = {}
        if self.path is None:
            return
        settings = json.loads(json.dumps(plain(settings)))
        if self.path.exists() and self.path.stat().st_size:
            self._read(settings)
        else:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._replace([{"settings": settings}])  # whole or not at all: a run can be stopped at any moment

    def _read(self, settings: dict[str, Any]) -> None:
        assert self.path is not None
        text = self.path.read_bytes()
        self.repaired = not text.endswith(b"\n")  # the next record would join the last line
        lines = text.splitlines()
        records = []
        for number, line in enumerate(lines, start=1):
            try:
                records.append(json.loads(line))
            except (json.JSONDecodeError, UnicodeDecodeError) as error:
                if number < len(lines):
                    raise ValueError(
                        f"{self.path}, line {number}: not valid JSON; delete the line (what it held is done again) to go "
                        "on, or the file to start again"
                    ) from error
                self.repaired = True
        ours = bool(records) and all(isinstance(record, dict) for record in records)
        ours = ours and isinstance(records[0].get("settings"), dict)
        if not ours or not all(record.keys() >= {"id", "value"} for record in records[1:]):
            raise ValueError(f"{self.path} is no checkpoint of this toolkit; choose another file")
        before = records[0]["settings"]
        changed = _differences(before, settings)
        if changed:
            (first, was, now), *more = changed
            others = f" (and {len(more)} more)" if more else ""
            raise ValueError(
                f"{self.path} was made with other settings: {first} was {_short(was)}, now {_short(now)}{others}; use the "
                "old settings, choose another file, or delete this one to start again"
            )
        self._done = {record["id"]: record["value"] for record in records[1:]}
        if self.repaired:
            self._replace(records)

    def __len__(self) -> int:
        return len(self._done)

    def get(self, problem_id: str) -> Any:
        """What was kept for this problem, or None."""
        return self._done.get(problem_id)

    def put(self, values: dict[str, Any]) -> None:
        """Keep the problems that have finished at the same moment, a line each, on disk before this returns.

        Raises `OSError` if it cannot be written (a full disk); the lines before stay whole.
        """
        if self.path is not None and values:
            self._done.update(values)
            self._append([{"id": problem_id, "value": value} for problem_id, value in values.items()])

    def _append(self, records: list[dict[str, Any]]) -> None:
        assert self.path is not None
        size = self.path.stat().st_size
        try:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(_lines(records))
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            with contextlib.suppress(OSError):  # take back what was half written
                os.truncate(self.path, size)
            raise self._unwritable(error) from error

    def _replace(self, records: list[dict[str, Any]]) -> None:
        assert self.path is not None
        temporary = self.path.with_suffix(".repair")
        try:
            with temporary.open("w", encoding="utf-8") as file:
                file.write(_lines(records))
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, self.path)
        except OSError as error:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise self._unwritable(error) from error

    def _unwritable(self, error: OSError) -> OSError:
        return OSError(
            error.errno,
            f"cannot write {self.path} ({error.strerror}); all that was finished before is kept there: make room, then "
            "start again to go on",
        )


def _lines(records: list[dict[str, Any]]) -> str:
    return "".join(json.dumps(plain(record)) + "\n" for record in records)


def plain(value: Any) -> Any:
    """JSON's own types: arrays as lists, numbers of any library as numbers, all else as text."""
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, Mapping):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(inner) for inner in value]
    if isinstance(value, np.generic):
        return value.item()
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


def _differences(before: Any, now: Any, name: str = "") -> list[tuple[str, Any, Any]]:
    """(where, what it was, what it is) of every setting that differs, those inside others by their path."""
    if isinstance(before, dict) and isinstance(now, dict):
        inner = {**before, **now}
        path = {key: f"{name}.{key}" if name else str(key) for key in inner}
        return [found for key in inner for found in _differences(before.get(key), now.get(key), path[key])]
    return [] if before == now else [(name, before, now)]


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
