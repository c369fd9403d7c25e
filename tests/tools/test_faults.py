"""The faults that are tried: whom they meet, and what counts as equal."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from faults import ANALYSES, left

from mless_interp.app import COMMANDS
from mless_interp.runtime.folders import new_folder


def test_every_command_is_disturbed() -> None:
    assert {command for command, _ in ANALYSES.values()} == set(COMMANDS.values())


def a_run(folder: Path, *, made: str = "2026-01-01", **changed: bytes) -> Path:
    """What a run leaves, as `left` reads it, some files with other contents."""
    out = folder / "out"
    run: dict[str, Any] = {"made": made, "command": [made], "repeat": made, "commit": made, "heads": ["L0H1"]}
    run["options"] = {"out": str(out), "limit": 8}
    with new_folder(out) as new:
        np.savez(new / "arrays.npz", a=np.arange(2.0))
        (new / "results.json").write_text(json.dumps({"results": {"a": 1}, "provenance": {"made": made}}))
        (new / "run.json").write_text(json.dumps(run))
        for name in ("heads.csv", "map.png", "report.html"):
            (new / name).write_bytes(b"as it is")
        for name, content in changed.items():
            (new / name.replace("_", ".")).write_bytes(content)
    return out


def test_equal_is_every_file_but_for_when_and_where_it_ran(tmp_path: Path) -> None:
    changes = {"results_json": b'{"results": {"a": 2}}', "heads_csv": b"other", "more_txt": b""}
    changes["run_json"] = b'{"options": {"out": "", "limit": 8}, "heads": ["L0H2"]}'
    folders = [tmp_path / each for each in ("first", "again", *changes)]
    for each in folders:
        each.mkdir()
    first = left(a_run(folders[0]))
    assert left(a_run(folders[1], made="2026-02-02")) == first
    for folder, (name, content) in zip(folders[2:], changes.items(), strict=True):
        other = left(a_run(folder, **{name: content}))
        assert [key for key in {**first, **other} if first.get(key, 0) != other.get(key, 0)] == [name.replace("_", ".")]
    (folders[1] / ".out.new").mkdir()
    (folders[1] / "out" / "map.png").write_bytes(b"is as it")  # of the same size
    found = left(folders[1] / "out")
    wrong = {"map.png": "has other contents than when it was written"}
    assert found["beside it"] == [".out.new"] and found["manifest.json"] == wrong
