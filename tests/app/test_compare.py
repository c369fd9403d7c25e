"""`mless-interp compare`, and what is told of answers under cut-off heads: made from results of a few numbers."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from small_results import answered, doses, located, patched
from typer.testing import CliRunner

import mless_interp as mi
from mless_interp.__main__ import app
from mless_interp.app.patch_heads import answers_come_back
from mless_interp.runtime import folders


def test_runs_that_cannot_be_compared_are_told_apart() -> None:
    for runs, words in (
        ({"a": located(), "b": answered()}, "they differ in analysis: a has LocatedHeads, b has AccuracyResults"),
        ({"a": doses(), "b": doses()}, "a: expected a run of locate, sweep or accuracy, got DoseResponse"),
        ({"a": patched(), "b": patched(direction="noising")}, "they differ in direction: a has None, b has noising"),
    ):
        with pytest.raises(ValueError, match=words):
            mi.compare_runs(runs)


def saved(folder: Path, result: Any, **options: Any) -> None:
    mi.save(folder / "results", **{type(result).__name__: result})
    run = {"analysis": "patch_heads", "model": {"name": "tiny"}, "options": {"outcome": "answer_logprob"} | options}
    (folder / "run.json").write_text(json.dumps(run))


def compare(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["compare", *arguments])


def test_the_command_writes_tables_and_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved(tmp_path / "head", located(), out="head", limit=64)
    saved(tmp_path / "a\n\u202eb", located(), out="b", limit=32)
    monkeypatch.chdir(tmp_path)
    done = compare("head", "a\n\u202eb", "--out", "c", "--report")
    assert done.exit_code == 0, done.stderr
    files = "compare.csv heads.csv report.html manifest.json"
    assert {path.name for path in (tmp_path / "c").iterdir()} == set(files.split())
    assert pd.read_csv(tmp_path / "c" / "heads.csv")["head"].tolist() == ["L0H1", "L1H0"]
    assert "\u202e" not in done.stdout and r"a\n\u202eb" in done.stdout
    assert "--limit" in done.stdout and "--out" not in done.stdout, "options in which numbers may differ"
    page = (tmp_path / "c" / "report.html").read_text(encoding="utf-8")
    assert "<strong>L0H1, L1H0 are named in both runs" in page and page.count("<table") == 3
    for arguments, words in (
        (("head", "head"), "two or more folders of finished runs, each once"),
        (("head", "none"), "is no folder of a run"),
        (("head", "a\n\u202eb", "--report"), "--report needs --out"),
    ):
        done = compare(*arguments)
        assert done.exit_code == 2 and words in done.stderr and done.stderr.count("\n") == 1


def test_a_compared_run_is_never_replaced_by_the_comparison(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    saved(tmp_path / "a", located())
    with folders.new_folder(tmp_path / "b") as made:
        saved(made, located())
    (tmp_path / "link").symlink_to(tmp_path / "b")
    before = sorted((tmp_path / "b").rglob("*"))
    for out in ("b", "link", "b/inner"):
        done = compare("a", "b", "--out", out, "--overwrite")
        assert done.exit_code == 2 and "is one of the compared runs, or inside one" in done.stderr, out
    assert not folders.damaged_files(tmp_path / "b") and sorted((tmp_path / "b").rglob("*")) == before


def under_four(*right: int, n: int = 40) -> mi.AccuracyResults:
    """So many of n problems right without insertion, with it, and with heads cut off: chosen ones, and random ones."""
    names = ("none", "insertion", "named set cut off", "random set 1 cut off")[: len(right)]
    graded = np.stack([np.arange(n) < count for count in right], 1)[..., None].astype(float)
    one, texts = np.ones_like(graded), tuple(tuple(("x",) for _ in right) for _ in range(n))
    ids, decided = tuple(f"p{i}" for i in range(n)), np.full(graded.shape, "text")
    return mi.AccuracyResults(
        ids, names, {"strict": graded}, one, 0 * one, one, texts, decided, settings={"reference": "insertion"}
    )


def test_whether_answers_come_back_is_told_against_the_insertion_and_random_sets() -> None:
    told = "Right answers of 40: no insertion 100.0 %, with it 50.0 %, named set cut off {:.1f} %{}."
    for right, shares, shown in (
        ((40, 20, 38, 22), (95, ", one random set 55.0 %"), [True, True]),
        ((40, 20, 38, 37), (95, ", one random set 92.5 %"), [True, False]),
        ((40, 20, 22), (55, ""), [False]),
    ):
        first, second = answers_come_back(under_four(*right))
        assert first == told.format(*shares)
        assert ["not shown" not in each for each in second.split("; ")] == shown, second
        assert f"against the insertion {100 * (right[2] - 20) / 40:+.1f} points" in second
    assert answers_come_back(under_four(40, 20)) == [
        "No head that reads is named, so none is cut off from the insertion."
    ]
