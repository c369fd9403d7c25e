"""Checkpoints of long runs: one line of a .jsonl file per finished problem, with its digest."""

import contextlib
import hashlib
import json
import os
import re
import warnings
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from ..core.arguments import listed
from .folders import Lock
from .workers import Shard, parts_of

WAYS_ON = (
    "use the old settings, another checkpoint (--out), or delete this file (a stopped command's: its whole folder)"
)


class CheckpointError(ValueError):
    """A checkpoint that cannot be gone on from."""


class Checkpoint(contextlib.AbstractContextManager["Checkpoint"]):
    """Finished problems of a long run, by id; `Checkpoint(None, ...)` keeps nothing.

    The first line holds the run's settings and the toolkit's version; a file made with others is refused, the differences
    named. Every other line is a problem with a digest: a damaged one is refused by its number; a last line that was cut off is
    dropped, with a warning. `keys` say what else a problem's numbers come from: under another key it is computed again. The
    file is locked until `close`. A `shard` writes a file of its own beside `path` and reads those of the others.
    """

    def __init__(
        self,
        path: str | Path | None,
        settings: Mapping[str, object],
        keys: Mapping[str, str] | None = None,
        *,
        shard: Shard | None = None,
    ) -> None:
        self.path: Path | None = None
        self._done: dict[tuple[str, str], object] = {}
        self._keys = dict(keys or {})
        if path is None:
            if shard is not None:
                raise ValueError(f"{shard!r} of a run needs a checkpoint= in which it keeps its part: give one")
            return
        self._whole = Path(path).resolve()
        self.path = self._whole if shard is None else shard.file(self._whole)
        told = {"toolkit": version("mless_interp"), **settings}
        if told.get("computed_on") != "elsewhere":  # a model that is here is its weights, whatever its folder is called
            told.pop("model", None)
        self._settings = json.loads(json.dumps(plain(told)))
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._lock = Lock(self.path)
        try:
            for other in parts_of(self._whole) if shard is None else [self._whole]:
                Lock(other, patience=1.0).release()  # no shard beside the whole run
            sound, size = self._read(self.path)
            self.join()  # what does not belong together is refused before anything is written
            if sound < size:
                os.truncate(self.path, sound)
                if sound:
                    warnings.warn(f"{self.path}: the last line was cut off and is computed again", stacklevel=2)
            if not sound:
                self._append([{"settings": self._settings}])
        except BaseException:
            self.close()
            raise

    def close(self, *error: object) -> None:
        """Let other runs have the file."""
        if self.path is not None:
            self._lock.release()

    __exit__ = close

    def get(self, problem_id: str) -> Any:
        """Return what was kept for this problem, asked and computed as it is now, or None."""
        return self._done.get((problem_id, self._keys.get(problem_id, "")))

    def put(self, values: Mapping[str, object]) -> None:
        """Keep the problems that have finished at the same moment, a line each, on disk before this returns."""
        if self.path is None:
            return
        lines = []
        for name, value in values.items():
            line = {"id": name, "key": self._keys.get(name, ""), "value": plain(value)}
            lines.append(line | {"digest": self._digest(line)})
        self._append(lines)
        self._done |= {(name, self._keys.get(name, "")): value for name, value in values.items()}

    def join(self) -> None:
        """Take what the other shards of this run, and the whole run, have kept by now; they may be writing."""
        for other in [self._whole, *parts_of(self._whole)]:
            if other != self.path:
                self._read(other)

    def _digest(self, line: Mapping[str, object]) -> str:
        return key_of([self._settings, line.get("id"), line.get("key"), line.get("value")])

    def _read(self, path: Path) -> tuple[int, int]:
        """Take what a file has kept; the bytes of its whole lines, and all its bytes."""
        text = path.read_bytes() if path.exists() else b""
        *lines, cut = text.split(b"\n")
        begins = json.dumps({"settings": self._settings}).encode()
        if not lines and begins.startswith(text):  # new, or killed while its first line was written
            return 0, len(text)
        first, *kept = map(_parsed, lines or [cut])
        if not isinstance(first.get("settings"), dict):
            raise CheckpointError(f"{path} is no checkpoint of this toolkit, or its first line is damaged; {WAYS_ON}")
        if changed := _differences(first["settings"], self._settings):
            raise CheckpointError(f"{path} was made with other settings: {listed(changed, 3)}; {WAYS_ON}")
        for number, line in enumerate(kept, start=2):
            if line.get("digest") != self._digest(line):
                raise CheckpointError(
                    f"{path}, line {number} is damaged (it does not fit its digest): delete this line to compute its problem "
                    "again, or the file to start again"
                )
        self._done |= {(line["id"], line["key"]): line["value"] for line in kept}
        return len(text) - len(cut), len(text)

    def _append(self, lines: list[dict[str, object]]) -> None:
        assert self.path is not None
        with self.path.open("ab") as file:
            file.write("".join(json.dumps(line) + "\n" for line in lines).encode())
            file.flush()
            os.fsync(file.fileno())


def key_of(value: object) -> str:
    """Return a short SHA-256 of anything JSON can hold, the same in every process."""
    return hashlib.sha256(json.dumps(plain(value), sort_keys=True).encode()).hexdigest()[:16]


JSON_TYPES = frozenset({type(None), bool, int, float, str})  # what JSON writes as it is


def plain(value: object) -> Any:
    """Return JSON's own types: arrays as lists, sets in an order of their own, numbers of any library as numbers, else text."""
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, Mapping):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, set | frozenset):
        return sorted(map(plain, value), key=json.dumps)
    if isinstance(value, list | tuple):  # of many numbers and token ids, which need no look at each
        return list(value) if JSON_TYPES.issuperset(map(type, value)) else [plain(inner) for inner in value]
    return (
        value if isinstance(value, tuple(JSON_TYPES)) else re.sub(" at 0x[0-9a-f]+", "", str(value))
    )  # an address is another in every process


def _parsed(line: bytes) -> dict[str, Any]:
    with contextlib.suppress(ValueError, RecursionError):
        found = json.loads(line)
        return found if isinstance(found, dict) else {}
    return {}


def _differences(was: object, now: object, name: str = "") -> list[str]:
    """Return every setting that differs in words, those inside others by their path; NaN is NaN."""
    if isinstance(was, dict) and isinstance(now, dict):
        path = {key: f"{name}.{key}" if name else str(key) for key in {**was, **now}}
        return [found for key in path for found in _differences(was.get(key), now.get(key), path[key])]
    return [] if json.dumps(was) == json.dumps(now) else [f"{name} was {was!r:.80}, now {now!r:.80}"]
