"""One run of each command: what it computes is that of the library, is on the disk before pictures, and is shown again."""

import json
import os
import runpy
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from conftest import ROOT
from matplotlib.image import imsave
from typer.testing import CliRunner

import mless_interp as mi
from mless_interp.__main__ import app
from mless_interp.app import COMMANDS
from mless_interp.views.draw import Picture

QUICK = ["--n-tokens", 4, "--limit", 2, "--no-progress", "--backend", "bridge", "--report"]
RUNS: dict[str, list[Any]] = {
    "locate": [*QUICK, "--mode", "sweep", "--layers", "0", "--contrast", "total", "--direction", "noising"],
    "profiles": [*QUICK, "--heads", "0:2,1:4", "--metrics", "collapse_relative,span_mass", "--twins", 1],
    "mechanism": [*QUICK, "--no-control", "--layers", "0"],
    "accuracy": [*QUICK, "--treatments", "none,mless,mless@before-answer", "--knockout", "0:2", "--max-new-tokens", 2],
    "figures": ["--figure", "10", "--tiny", "--limit", 2, "--n-tokens", 4, "--twins", 1, "--no-progress", "--report"],
    "dose": ["--doses", "1,2", "--limit", 2, "--no-progress", "--backend", "bridge", "--report"],
    "circuit": [*QUICK, "--heads", "0:2,1:4", "--n-rows", 1, "--mlps", "none"],
    "read-span": QUICK,
    "study": ["length_alone", *QUICK, "--confirm", 0, "--answers", 0],
}
FILES = {
    "locate": "heads.csv patches.parquet head_map.png attention.html",
    "profiles": "heads.csv scores.parquet curves.csv profile.png collapse.png",
    "mechanism": "heads.csv heads_total.csv activations.csv claims.csv mediation.csv decomposition.parquet "
    "lambda.png activations.png mediation.png",
    "accuracy": "accuracy.csv comparisons.csv completions.jsonl accuracy.png",
    "figures": "figure.png figure.csv bars.png bars.csv claims.csv",
    "dose": "slopes.csv outcomes.csv doses.parquet dose_response.png",
    "circuit": "direct.csv direct.png edges.csv edges.parquet sufficient.csv sites.csv sites.png positions.csv "
    "positions.png writes.csv writes.png",
    "read-span": "readings.csv readings.parquet span_map.png",
    "study": "study.csv effects.csv study.parquet study.png",
}
DRAWN = ("locate", "accuracy", "dose")
"""The runs whose pictures are drawn."""
ALWAYS = {"results", "shown", "run.json", "manifest.json", "report.html"}


def dot(picture: Picture, file: Any, **_: Any) -> None:
    """Write a dot in place of a picture, which takes seconds to draw and is tested elsewhere."""
    imsave(file, np.zeros((1, 1, 3)), format="png")


def call(*words: Any) -> Any:
    return CliRunner().invoke(app, list(map(str, words)), prog_name="mless-interp")


def start(model: Path, name: str, out: Path, *more: Any) -> Any:
    """A command on the planted model, as `RUNS` has it (without `more`), into a folder."""
    where = [model] if name == "circuit" else [] if name == "figures" else ["--model", model]
    return call(name, *where, *(more or RUNS[name]), "--out", out)


@pytest.fixture(scope="module")
def ran(planted_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Path, str]]:
    """The folder and the print of each command, which runs once."""
    folder, done = tmp_path_factory.mktemp("runs"), {}

    def of(name: str) -> tuple[Path, str]:
        if name not in done:
            with pytest.MonkeyPatch.context() as patched:
                if name not in DRAWN:
                    patched.setattr(Picture, "savefig", dot)
                ended = start(planted_dir, name, folder / name)
            assert ended.exit_code == 0, ended.stderr
            done[name] = folder / name, ended.stdout
        return done[name]

    return of


def written(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def no_model(monkeypatch: pytest.MonkeyPatch) -> None:
    from mless_interp.models.base import Model

    monkeypatch.setattr("mless_interp.models.load.load_model", lambda *_, **__: pytest.fail("a model was loaded"))
    monkeypatch.setattr(Model, "run", lambda *_, **__: pytest.fail("a model ran"))


@pytest.mark.parametrize("name", list(COMMANDS))
def test_a_run_writes_everything_and_says_what_it_found(name: str, ran: Any) -> None:
    folder, told = ran(name)
    assert not folder.with_name(f".{name}.partial").exists(), "no hidden folder stays"
    never = {"shown"} if name == "accuracy" else set()
    assert {path.name for path in folder.iterdir()} == (ALWAYS | set(FILES[name].split())) - never
    lines = told.rstrip().splitlines()
    assert len(lines) <= 15 and max(map(len, lines[:-1])) <= 110 and "reload: mi.load(" in lines[-1]
    kept = mi.load(folder)
    assert len(kept) > 1 and all(hasattr(result, "headline") for key, result in kept.items() if key != "provenance")
    assert json.loads((folder / "run.json").read_text())["analysis"] == COMMANDS[name]
    assert (folder / "report.html").read_text().count("<h1>") == 1


@pytest.mark.parametrize("name", DRAWN)
def test_a_report_made_again_is_the_same(
    name: str, ran: Any, planted_dir: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    shutil.copytree(ran(name)[0], out := tmp_path / "x")
    before = written(out)
    for path in out.iterdir():
        if path.is_file() and path.name not in ("run.json", "manifest.json"):
            path.unlink()
    (out / "mine.txt").write_text("kept")
    no_model(monkeypatch)
    again = call("report", out)
    assert again.exit_code == 0, again.stderr
    after = written(out)
    assert after.pop("mine.txt") == b"kept"
    assert before.pop("manifest.json") and after.pop("manifest.json"), "it says when it was made"
    assert {key: after.get(key) == before[key] for key in before} == dict.fromkeys(before, True)
    (out / "report.html").write_text("my own")
    refused, own = start(planted_dir, name, out, *RUNS[name], "--overwrite"), call("report", out)
    assert refused.exit_code == 2 and "mine.txt" in refused.stderr, "what is not ours is never replaced"
    assert own.exit_code == 2 and "report.html" in own.stderr and (out / "report.html").read_text() == "my own"


def test_its_numbers_are_those_of_the_functions_that_it_calls(ran: Any, planted_dir: Path) -> None:
    model = mi.load_model(str(planted_dir), backend="bridge")
    problems, filler = mi.load_problems(planted_dir / "problems.jsonl", limit=2), mi.Insertion.meaningless(n_tokens=4)
    pairs = mi.make_pairs(model, problems, filler)
    how: dict[str, Any] = {"contrast": "total", "direction": "noising", "progress": False}
    swept = mi.patch_heads(model, pairs, heads=[mi.Head(0, head) for head in range(8)], **how)
    assert np.array_equal(mi.load(ran("locate")[0])["PatchScores"].effect, swept.effect, equal_nan=True)
    treatments = [mi.Treatment(name="none"), mi.Treatment(filler, name="mless")]
    treatments.append(mi.Treatment(replace(filler, before="answer"), name="mless@before-answer"))
    treatments.append(mi.Treatment(filler, knockout=["L0H2"], name="knockout"))
    answered = mi.evaluate_accuracy(model, problems, treatments, max_new_tokens=2, progress=False)
    kept = mi.load(ran("accuracy")[0])["AccuracyResults"]
    pd.testing.assert_frame_equal(kept.to_frame(), answered.to_frame())
    circuit = mi.load(ran("circuit")[0])["Circuit"]
    direct = mi.circuits.paths.direct_effects(model, pairs, ["L0H2", "L1H4"], progress=False)
    assert np.array_equal(circuit.direct.direct, direct.direct) and circuit.located is None


def test_named_heads_are_confirmed_and_cut_off_on_other_problems(
    planted_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fewer = partial(mi.locate_heads, n_control_draws=1, n_random_sets=5)
    monkeypatch.setattr("mless_interp.circuits.locate.locate_heads", fewer)
    monkeypatch.setattr(Picture, "savefig", dot)
    asked = ["--heads", "0:2,1:4", "--n-tokens", "4", "--backend", "bridge", "--no-progress", "--report"]
    done = start(planted_dir, "locate", tmp_path / "c", *asked, "--limit", 8, "--confirm", 7, "--answers", 2)
    assert done.exit_code == 0, done.stderr
    ids = [json.loads(line)["unique_id"] for line in (planted_dir / "problems.jsonl").read_text().splitlines()]
    kept, found = json.loads((tmp_path / "c" / "run.json").read_text()), mi.load(tmp_path / "c")
    assert (kept["n_problems"], kept["n_fresh"]) == (8, 7)
    assert [prompt["problem"] for prompt in kept["prompts"]] == ids[:15], "the first 8, then 7 others"
    located, answered = found["LocatedHeads"], found["AccuracyResults"]
    assert [str(head) for head in located.confirmed] == ["L0H2", "L1H4"]
    assert list(answered.problem_ids) == ids[15:17], "the 2 after all others"
    answers = pd.read_csv(tmp_path / "c" / "answers.csv").set_index("treatment")
    sets = [f"random set {number} cut off" for number in range(1, 6)]
    assert list(answers.index) == ["none", "insertion", "named set cut off", *sets]
    assert answers.loc["named set cut off", "heads"] == "L0H2" and (answers["n"] == 2).all()
    drawn = answers.loc[sets, "heads"].tolist()
    assert len(set(drawn)) == 5 and "L0H2" not in drawn, "each once, the named one in none"
    page = (tmp_path / "c" / "report.html").read_text()
    assert len(kept["notes"]) == 2 and all(note in page for note in kept["notes"])


def test_a_result_that_cannot_be_drawn_is_kept_and_drawn_later(
    planted_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any, **__: Any) -> Any:
        raise ValueError("ParseException: Expected end of text, found '$'")

    with monkeypatch.context() as patched:
        patched.setattr("mless_interp.views.dose_response", broken)
        done = start(planted_dir, "dose", tmp_path / "x")
    assert done.exit_code == 2 and "mless-interp report" in done.stderr and "found '$'" in done.stderr
    assert "attending to the span (layer 0, as inserted, mean of" in " ".join(done.stdout.split()), (
        "what was found is told before it is drawn"
    )
    assert [path.name for path in tmp_path.iterdir()] == [".x.partial"]
    with monkeypatch.context() as patched:
        no_model(patched)
        assert call("report", tmp_path / "x").exit_code == 0
    assert [path.name for path in tmp_path.iterdir()] == ["x"] and (tmp_path / "x" / "slopes.csv").is_file()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "stage"), [("profiles", "profile"), ("circuit", "edges-noising"), ("study", "content")]
)
def test_a_stopped_run_goes_on_and_ends_with_the_same_bits(
    name: str, stage: str, ran: Any, planted_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mless_interp.runtime.checkpoint import Checkpoint

    put, seen, straight = Checkpoint.put, [], written(ran(name)[0])

    def watch(stop: bool, self: Checkpoint, values: dict[str, Any]) -> None:
        put(self, values)
        assert self.path is not None
        seen.append((self.path, *values))
        if stop and self.path.stem == stage:
            raise KeyboardInterrupt

    for stop in (True, False):
        monkeypatch.setattr(Checkpoint, "put", lambda self, values, stop=stop: watch(stop, self, values))
        done = start(planted_dir, name, tmp_path / name)
        assert done.exit_code == (130 if stop else 0), done.stderr
    assert len(seen) == len(set(seen)), "nothing is computed twice"
    ended = written(tmp_path / name)
    tables = {key for key in straight if key.endswith((".csv", ".parquet"))}
    assert tables and all(ended[key] == straight[key] for key in tables)


def test_a_report_is_never_made_of_another_runs_results(ran: Any, tmp_path: Path) -> None:
    dose, sweep = ran("dose")[0], ran("locate")[0]
    for words in ("results/", "run.json"):
        shutil.copytree(sweep, folder := tmp_path / words.strip("/"))
        if words == "results/":
            shutil.rmtree(folder / "results")
            shutil.copytree(dose / "results", folder / "results")
        else:
            text = (folder / "run.json").read_text()
            (folder / "run.json").write_text(text.replace('"answer_logprob"', '"answer_logprop"'))
        before = written(folder)
        done = call("report", folder)
        assert done.exit_code == 2 and words in done.stderr and "take a copy that is whole" in done.stderr
        assert done.stderr.count("\n") == 1 and written(folder) == before, "nothing is written"
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "run.json").write_text("{}")
    for folder, words in ((tmp_path / "none", "is no folder of a run"), (tmp_path / "old", "holds no results")):
        done = call("report", folder)
        assert done.exit_code == 2 and words in done.stderr and done.stderr.count("\n") == 1


def test_a_reader_that_goes_away_ends_nothing_and_studies_are_listed(tmp_path: Path) -> None:
    read, write = os.pipe()
    os.close(read)
    command = partial(subprocess.run, [sys.executable, "-m", "mless_interp", "study"], cwd=tmp_path, text=True)
    done = command(stdout=write, stderr=subprocess.PIPE)
    os.close(write)
    assert (done.returncode, done.stderr) == (0, "")
    assert len(call("study").stdout.splitlines()) == 8


def test_a_script_is_the_command() -> None:
    for name in COMMANDS.values():
        script = runpy.run_path(str(ROOT / "analyses" / f"{name}.py"))
        assert script["app"] is getattr(mi.app, name).app
