"""`mless-interp compare`, and what is told of answers under cut-off heads: made from results of a few numbers."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_results import answered, doses, located, patched
from typer.testing import CliRunner

import mless_interp as mi
from mless_interp.__main__ import app
from mless_interp.app.patch_heads import answers_come_back


def test_runs_that_cannot_be_compared_are_told_apart() -> None:
    for runs, words in (
        ({"a": located(), "b": answered()}, "they differ in analysis: a has LocatedHeads, b has AccuracyResults"),
        ({"a": doses(), "b": doses()}, "a: expected a run of locate, sweep or accuracy, got DoseResponse"),
        ({"a": patched(), "b": patched(direction="noising")}, "they differ in direction: a has None, b has noising"),
    ):
        with pytest.raises(ValueError, match=words):
            mi.compare_runs(runs)


def saved(folder: Path, result: Any) -> None:
    mi.save(folder / "results", **{type(result).__name__: result})
    (folder / "run.json").write_text(json.dumps({"analysis": "patch_heads"}))


def compare(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["compare", *arguments])


def test_the_command_prints_the_heads_of_all_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names, more = {"one", "a\n\u202eb"}, [f"{'a' * 30}{at}" for at in range(4)]
    for name in (*names, *more):
        saved(tmp_path / name, located())
    monkeypatch.chdir(tmp_path)
    done = compare("one", "a\n\u202eb")
    assert done.exit_code == 0 and done.stdout.startswith("L0H1, L1H0 are named in both runs"), done.stderr
    assert [line.split()[0] for line in done.stdout.splitlines()[-3:]] == ["head", "L0H1", "L1H0"]
    assert "\u202e" not in done.stdout and r"a\n\u202eb" in done.stdout
    assert {path.name for path in tmp_path.iterdir()} == {*names, *more}
    assert compare(*more).stdout.splitlines()[-3].split() == ["head", *more, "named", "in"]
    for arguments, words in ((("one", "./one"), "two or more folders"), (("one", "none"), "is no folder of a run")):
        done = compare(*arguments)
        assert done.exit_code == 2 and words in done.stderr and done.stderr.count("\n") == 1


def under_four(*right: int, n: int = 40) -> mi.AccuracyResults:
    """So many of n problems right without insertion, with it, and with heads cut off: chosen ones, and random ones."""
    names = ("none", "insertion", "named set cut off", "random set 1 cut off", "random set 2 cut off")[: len(right)]
    graded = np.stack([np.arange(n) < count for count in right], 1)[..., None].astype(float)
    one, texts = np.ones_like(graded), tuple(tuple(("x",) for _ in right) for _ in range(n))
    ids, decided = tuple(f"p{i}" for i in range(n)), np.full(graded.shape, "text")
    return mi.AccuracyResults(
        ids, names, {"strict": graded}, one, 0 * one, one, texts, decided, settings={"reference": "insertion"}
    )


def test_whether_answers_come_back_is_told_against_the_insertion_and_random_sets() -> None:
    told = "Right answers of 40: no insertion 100.0 %, with it 50.0 %, named set cut off {:.1f} %{}."
    for right, shares, sets in (
        ((40, 20, 38, 22), (95, ", one random set 55.0 %"), "(p = 0.5, the least that so few sets allow)."),
        ((40, 20, 38, 37, 38), (95, ", random 92.5 to 95.0 %"), "with 1 of 2 random sets (p = 0.67)."),
        ((40, 20, 22), (55, ""), "not shown."),
    ):
        first, second = answers_come_back(under_four(*right))
        assert first == told.format(*shares)
        assert second.endswith(sets) and ("; more of the change is undone than with " in second) == (len(right) > 3)
        assert f"compared with the insertion {100 * (right[2] - 20) / 40:+.1f} points" in second
    assert answers_come_back(under_four(40, 20))[0].startswith("No head that reads is named, so none is cut off")
