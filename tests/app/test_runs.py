"""One run of each command: what it computes is that of the library, is on the disk before pictures, and is shown again."""

import html
import json
import os
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
from typer.testing import CliRunner

import mless_interp as mi
from mless_interp.__main__ import app
from mless_interp.app import COMMANDS
from mless_interp.ground_truth.planted import planted_model

QUICK = ["--n-tokens", 6, "--limit", 3, "--no-progress", "--backend", "bridge", "--report"]
RUNS: dict[str, list[Any]] = {
    "locate": [*QUICK, "--mode", "sweep", "--layers", "0", "--contrast", "total", "--direction", "noising"],
    "profiles": [*QUICK, "--heads", "0:2,1:4", "--metrics", "collapse_relative,span_mass", "--twins", 1],
    "mechanism": [*QUICK, "--no-control", "--layers", "0"],
    "accuracy": [*QUICK, "--treatments", "none,mless,mless@before-answer", "--knockout", "0:2", "--max-new-tokens", 2],
    "figures": ["--figure", "10", "--tiny", "--limit", 2, "--twins", 1, "--no-progress", "--report"],
    "dose": ["--doses", "1,4", "--limit", 3, "--no-progress", "--backend", "bridge", "--report"],
    "circuit": [*QUICK, "--heads", "0:2,1:4", "--n-rows", 1, "--mlps", "none"],
    "read-span": QUICK,
    "study": [
        *("length_alone", "--limit", 3, "--n-tokens", 6, "--confirm", 0, "--answers", 0, "--no-progress", "--report"),
    ],
}
FILES = {
    "locate": "heads.csv patches.parquet head_map.png attention.html",
    "profiles": "heads.csv scores.parquet curves.csv profile_0_meaningless.png collapse_0_meaningless.png",
    "mechanism": "heads.csv heads_total.csv layers.csv activations.csv claims.csv mediation.csv decomposition.parquet "
    "lambda.png lambda_map.png residual.png activations.png mediation.png",
    "accuracy": "accuracy.csv comparisons.csv completions.jsonl accuracy.png",
    "figures": "figure.png figure.csv bars.png bars.csv claims.csv",
    "dose": "slopes.csv outcomes.csv doses.parquet dose_response.png",
    "circuit": "direct.csv direct.png edges.csv edges.parquet sites.csv sites.png positions.csv "
    "positions.png writes.csv writes.png",
    "read-span": "readings.csv readings.parquet span_map.png",
    "study": "study.csv effects.csv study.parquet study.png",
}
ALWAYS = {"results", "shown", "run.json", "manifest.json", "report.html"}


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("planted") / "model"
    made = planted_model(readers=[mi.Head(0, 2)], mediators=[mi.Head(1, 4)], n_heads=8, n_key_value_heads=2, seed=5)
    made.save(folder, n_problems=28)
    return folder


def call(*words: Any) -> Any:
    return CliRunner().invoke(app, list(map(str, words)), prog_name="mless-interp")


def start(model: Path, name: str, out: Path, *more: Any) -> Any:
    """A command on the planted model, as `RUNS` has it (without `more`), into a folder."""
    where = [model] if name == "circuit" else [] if name == "figures" else ["--model", model]
    return call(name, *where, *(more or RUNS[name]), "--out", out)


@pytest.fixture(scope="module")
def ran(planted: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Path, str]]:
    """The folder and the print of each command, which runs once."""
    folder, done = tmp_path_factory.mktemp("runs"), {}

    def of(name: str) -> tuple[Path, str]:
        if name not in done:
            ended = start(planted, name, folder / name)
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
def test_a_run_writes_everything_and_a_report_made_again_is_the_same(
    name: str, ran: Any, planted: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    whole, told = ran(name)
    assert not whole.with_name(f".{name}.partial").exists(), "no hidden folder stays"
    assert {path.name for path in whole.iterdir()} == (ALWAYS | set(FILES[name].split())) - (
        {"shown"} if name == "accuracy" else set()
    )
    lines = told.rstrip().splitlines()
    assert len(lines) <= 15 and max(map(len, lines[:-1])) <= 110 and "reload: mi.load(" in lines[-1]
    shutil.copytree(whole, out := tmp_path / "x")
    before, kept = written(out), mi.load(out)
    assert len(kept) > 1 and all(hasattr(result, "headline") for key, result in kept.items() if key != "provenance")
    assert json.loads(before["run.json"])["analysis"] == COMMANDS[name]
    page = html.unescape(before["report.html"].decode())
    assert page.count("<h1>") == 1
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
    refused = start(planted, name, out, *RUNS[name], "--overwrite")
    assert refused.exit_code == 2 and "mine.txt" in refused.stderr, "what is not ours is never replaced"


def test_its_numbers_are_those_of_the_functions_that_it_calls(ran: Any, planted: Path) -> None:
    model = mi.load_model(str(planted), backend="bridge")
    problems, filler = mi.load_problems(planted / "problems.jsonl", limit=3), mi.Insertion.meaningless(n_tokens=6)
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


def test_named_heads_are_confirmed_and_cut_off_on_other_problems(planted: Path, tmp_path: Path) -> None:
    asked = ["--heads", "0:2,1:4,0:1", "--backend", "bridge", "--no-progress", "--report"]
    done = start(planted, "locate", tmp_path / "c", *asked, "--limit", 12, "--confirm", 10, "--answers", 6)
    assert done.exit_code == 0, done.stderr
    ids = [json.loads(line)["unique_id"] for line in (planted / "problems.jsonl").read_text().splitlines()]
    kept, found = json.loads((tmp_path / "c" / "run.json").read_text()), mi.load(tmp_path / "c")
    assert (kept["n_problems"], kept["n_fresh"]) == (12, 10)
    assert [prompt["problem"] for prompt in kept["prompts"]] == ids[:22], "the first 12, then 10 others"
    located, answered = found["LocatedHeads"], found["AccuracyResults"]
    assert [str(head) for head in located.confirmed] == ["L0H2", "L1H4"]
    assert list(answered.problem_ids) == ids[22:], "the 6 after all others"
    answers = pd.read_csv(tmp_path / "c" / "answers.csv").set_index("treatment")
    sets = [f"random set {number} cut off" for number in range(1, 6)]
    assert list(answers.index) == ["none", "insertion", "named set cut off", *sets]
    assert answers.loc["named set cut off", "heads"] == "L0H2" and (answers["n"] == 6).all()
    drawn = answers.loc[sets, "heads"].tolist()
    assert len(set(drawn)) == 5 and "L0H2" not in drawn, "each once, the named one in none"


def test_a_result_that_cannot_be_drawn_is_kept_and_drawn_later(
    planted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any, **__: Any) -> Any:
        raise ValueError("ParseException: Expected end of text, found '$'")

    with monkeypatch.context() as patched:
        patched.setattr("mless_interp.views.dose_response", broken)
        done = start(planted, "dose", tmp_path / "x")
    assert done.exit_code == 2 and "mless-interp report" in done.stderr and "found '$'" in done.stderr
    assert "attention to the span grows with slope" in " ".join(done.stdout.split()), (
        "what was found is told before it is drawn"
    )
    assert [path.name for path in tmp_path.iterdir()] == [".x.partial"]
    no_model(monkeypatch)
    assert call("report", tmp_path / "x").exit_code == 0
    assert [path.name for path in tmp_path.iterdir()] == ["x"] and (tmp_path / "x" / "slopes.csv").is_file()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "stage"), [("profiles", "profile-0"), ("circuit", "edges-noising"), ("dose", "doses")]
)
def test_a_stopped_run_goes_on_and_ends_with_the_same_bits(
    name: str, stage: str, ran: Any, planted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mless_interp.runtime.checkpoint import Checkpoint

    put, seen, straight = Checkpoint.put, [], written(ran(name)[0])

    def watch(stop: bool, self: Checkpoint, values: dict[str, Any]) -> None:
        put(self, values)
        assert self.path is not None
        seen.append((self.path.stem, *values))
        if stop and self.path.stem == stage:
            raise KeyboardInterrupt

    for stop in (True, False):
        monkeypatch.setattr(Checkpoint, "put", lambda self, values, stop=stop: watch(stop, self, values))
        done = start(planted, name, tmp_path / name)
        assert done.exit_code == (130 if stop else 0), done.stderr
    assert len(seen) == len(set(seen)), "nothing is computed twice"
    ended = written(tmp_path / name)
    tables = {key for key in straight if key.endswith((".csv", ".parquet", ".png"))}
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


@pytest.mark.parametrize(
    "script", sorted((Path(__file__).parents[2] / "analyses").glob("*.py"), key=lambda path: path.stem)
)
def test_a_script_is_the_command(script: Path) -> None:
    done = subprocess.run([sys.executable, script, "--seed", "x"], capture_output=True, text=True)
    assert done.returncode == 2 and "Error: Invalid value for '--seed'" in done.stderr
