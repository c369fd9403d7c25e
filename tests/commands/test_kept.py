"""Computing apart from showing: what a command computed is on the disk before pictures, and is shown again without model."""

import json
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from conftest import ROOT
from scripts_under_test import Done, run_command

import mless_interp as mi
from mless_interp.commands import COMMANDS
from mless_interp.commands.kept import _write, commit
from mless_interp.ground_truth.planted import planted_model
from mless_interp.heads import Head

QUICK = ["--n-tokens", 6, "--limit", 3, "--no-progress", "--backend", "bridge"]
SMALL_STUDY = ROOT / "studies" / "length_alone.toml"
RUNS: dict[str, list[Any]] = {
    "locate": [*QUICK, "--mode", "sweep", "--layers", "0", "--report"],
    "profiles": [*QUICK, "--heads", "0:2,1:4", "--metrics", "collapse_relative,span_mass", "--report"],
    "mechanism": [*QUICK, "--no-control", "--layers", "0", "--report"],
    "accuracy": [*QUICK, "--treatments", "none,mless", "--max-new-tokens", 2, "--report"],
    "figures": ["--figure", "000", "--tiny", "--limit", 2, "--no-progress", "--report"],
    "dose": ["--doses", "1,4", "--limit", 3, "--no-progress", "--backend", "bridge", "--report"],
    "circuit": [*QUICK, "--heads", "0:2,1:4", "--n-rows", 1, "--mlps", "none", "--report"],
    "study": [SMALL_STUDY, "--limit", 3, "--n-tokens", 6, "--confirm", 0, "--answers", 0, "--no-progress", "--report"],
}


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("planted") / "model"
    made = planted_model(readers=[Head(0, 2)], mediators=[Head(1, 4)], n_heads=8, n_key_value_heads=2, seed=5)
    made.save(folder, n_problems=6)
    return folder


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, planted: Path) -> Any:
    """`mless-interp` in this process, in an empty folder, on the planted model."""

    def call(name: str, *arguments: Any) -> Done:
        model = (
            [planted] if name == "circuit" else ["--model", planted] if name in COMMANDS and name != "figures" else []
        )
        return run_command(name, *model, *arguments, cwd=tmp_path, capsys=capsys, monkeypatch=monkeypatch)

    return call


def written(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def no_model(monkeypatch: pytest.MonkeyPatch) -> None:
    from mless_interp.models.base import Model

    monkeypatch.setattr("mless_interp.models.load.load_model", lambda *_, **__: pytest.fail("a model was loaded"))
    monkeypatch.setattr(Model, "run", lambda *_, **__: pytest.fail("a model ran"))


@pytest.mark.slow
@pytest.mark.parametrize("name", list(COMMANDS))
def test_a_report_made_again_is_what_the_run_wrote(
    name: str, run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = run(name, *RUNS[name], "--out", "x")
    assert done.returncode == 0, done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["x"], "no hidden folder stays"
    out = tmp_path / "x"
    before = written(out)
    kept = mi.load(out / "results")
    assert len(kept) > 1 and all(hasattr(result, "sentences") for key, result in kept.items() if key != "provenance")
    facts = json.loads(before["run.json"])
    assert facts["analysis"] == COMMANDS[name] and facts["options"]["out"] == "x"
    shown = [path for path in out.iterdir() if path.is_file() and path.name != "run.json"]
    for path in shown:
        path.unlink()
    (out / "mine.txt").write_text("kept")
    no_model(monkeypatch)
    again = run("report", "x")
    assert again.returncode == 0, again.stderr
    after = written(out)
    assert after.pop("mine.txt") == b"kept"
    assert before.pop("manifest.json") and after.pop("manifest.json"), "it says when it was made"
    assert {key: after[key] == before[key] for key in before} == dict.fromkeys(before, True) and len(shown) >= 4
    assert after.keys() == before.keys() and again.stdout.startswith("Results: x/")
    refused = run(name, *RUNS[name], "--out", "x", "--overwrite")
    assert refused.returncode == 2 and "mine.txt" in refused.stderr, "what is not ours is never replaced"


@pytest.mark.slow
def test_an_error_in_a_picture_loses_nothing(run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any, **__: Any) -> Any:
        raise ValueError("ParseException: Expected end of text, found '$'")

    arguments = [*RUNS["dose"], "--out", "x"]
    with monkeypatch.context() as patched:
        patched.setattr("mless_interp.views.dose_response", broken)
        done = run("dose", *arguments)
    assert done.returncode == 2 and "mless-interp report x" in done.stderr and "found '$'" in done.stderr
    assert "Slope of logit" in done.stdout, "what was found is told before it is drawn"
    assert [path.name for path in tmp_path.iterdir()] == [".x.partial"]
    with monkeypatch.context() as patched:
        no_model(patched)
        again = run("report", "x")
    assert again.returncode == 0, again.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["x"]
    first = written(tmp_path / "x")
    shutil.rmtree(tmp_path / "x")
    assert run("dose", *arguments).returncode == 0
    second = written(tmp_path / "x")
    assert first.keys() == second.keys()
    differ = {key for key in first if first[key] != second[key]}
    assert differ <= {"run.json", "report.html", "results/results.json", "shown/results.json", *dated(first)}


def dated(files: dict[str, bytes]) -> set[str]:
    """Files that hold dates: archives and what tells their digests."""
    return {name for name in files if name.endswith(".npz") or "manifest" in name.lower()}


def test_a_full_disk_at_the_end_loses_nothing(run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import pandas as pd

    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(pd.DataFrame, "to_csv", full)
        done = run("dose", *RUNS["dose"], "--out", "x")
    assert done.returncode == 2 and "No space left" in done.stderr and not (tmp_path / "x").exists()
    assert run("report", "x").returncode == 0 and (tmp_path / "x" / "slopes.csv").is_file()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "stage"),
    [("profiles", "scores-0"), ("profiles", "profile-0"), ("dose", "doses"), ("figures", "mless")],
)
def test_a_stopped_run_goes_on_and_ends_with_the_same_bits(
    name: str, stage: str, run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mless_interp.running.checkpoint import Checkpoint

    put, seen = Checkpoint.put, []

    def watch(self: Checkpoint, values: dict[str, Any]) -> None:
        put(self, values)
        assert self.path is not None
        seen.append(self.path.stem)
        if stop and self.path.stem == stage:
            raise KeyboardInterrupt

    stop = True
    monkeypatch.setattr(Checkpoint, "put", watch)
    stopped = run(name, *RUNS[name], "--out", "x")
    assert stopped.returncode == 130 and "kept in .x.partial; the same command" in stopped.stderr
    stop, before = False, len(seen)
    assert run(name, *RUNS[name], "--out", "x").returncode == 0
    resumed = len(seen) - before
    assert run(name, *RUNS[name], "--out", "y").returncode == 0
    whole = len(seen) - before - resumed
    assert resumed == whole - before, "nothing is computed twice"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["x", "y"]
    one, other = (written(tmp_path / out) for out in "xy")
    same = {key for key in one if one[key] == other[key]}
    tables = {key for key in one if key.endswith((".csv", ".parquet", ".png", ".html"))} - {"report.html"}
    assert tables <= same and tables


def test_what_cannot_be_shown_again_is_one_line(run: Any, tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "run.json").write_text("{}")
    (tmp_path / "other" / "results").mkdir(parents=True)
    (tmp_path / "other" / "run.json").write_text('{"analysis": "os"}')
    for folder, words in (
        ("none", "neither 'none' nor '.none.partial/computed' holds computed results"),
        ("old", "holds no results to show again"),
    ):
        done = run("report", folder)
        assert done.returncode == 2 and words in done.stderr and done.stderr.count("\n") == 1
    done = run("report", "other")
    assert done.returncode == 2 and done.stderr.count("\n") == 1


@pytest.mark.slow
def test_a_report_is_never_made_of_another_runs_results(run: Any, tmp_path: Path) -> None:
    for name, direction in (("one", "denoising"), ("two", "noising")):
        assert run("locate", *RUNS["locate"], "--direction", direction, "--out", name).returncode == 0
    assert run("dose", *RUNS["dose"], "--out", "dose").returncode == 0
    one, two, dose = (tmp_path / name for name in ("one", "two", "dose"))

    def swap(what: str, other: Path) -> Any:
        def spoil(folder: Path) -> None:
            (shutil.rmtree if what != "run.json" else Path.unlink)(folder / what)
            (shutil.copytree if what != "run.json" else shutil.copy)(other / what, folder / what)

        return spoil

    def edit(folder: Path) -> None:
        text = (folder / "run.json").read_text()
        (folder / "run.json").write_text(text.replace('"answer_logprob"', '"answer_logprop"'))

    spoils = [
        ("results/", swap("results", two)),
        ("results/", swap("results", dose)),
        ("shown/", swap("shown", dose)),
        ("shown/", lambda folder: shutil.rmtree(folder / "shown")),
        ("run.json", swap("run.json", two)),
        ("run.json", edit),
    ]
    for words, spoil in spoils:
        folder = tmp_path / "copy"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(one, folder)
        spoil(folder)
        before = written(folder)
        done = run("report", "copy")
        assert done.returncode == 2 and f"copy/{words}" in done.stderr and "what the run kept is damaged" in done.stderr
        assert done.stderr.count("\n") == 1 and written(folder) == before, "nothing is written, nor listed as whole"
        (folder / "manifest.json").unlink()  # where there is nothing to check by, what does not fit is one line
        done = run("report", "copy")
        assert done.returncode in (0, 2) and done.stderr.count("\n") <= 1


WRONG = [
    ("locate", ["--edit", "x", "--mode", "sweep"], "unknown edit 'x'"),
    ("locate", ["--outcome", "x"], "unknown outcome 'x'"),
    ("locate", ["--outcome", "kl"], "locating heads needs a signed outcome"),
    ("locate", ["--contrast", "x", "--mode", "sweep"], "unknown contrast 'x'"),
    ("locate", ["--direction", "x", "--mode", "sweep"], "unknown direction 'x'"),
    ("locate", ["--heads", "x"], "cannot read 'x' as a head"),
    ("locate", ["--layers", "a"], "cannot read 'a' as layers"),
    ("locate", ["--unit", ""], "--unit is empty"),
    ("locate", ["--backend", "x"], "unknown backend 'x'"),
    ("locate", ["--dtype", "x"], "unknown dtype 'x'"),
    ("locate", ["--device-map", "{x"], "--device-map: no valid JSON"),
    ("locate", ["--attention", "x"], "unknown attention 'x'"),
    ("locate", ["--attention", "sdpa"], "need backend='nnsight'"),
    ("locate", ["--template", "x"], "unknown template 'x'"),
    ("profiles", ["--metrics", "x"], "unknown metric 'x'"),
    ("profiles", ["--conditions", "x"], "unknown condition 'x'"),
    ("profiles", ["--rows", "x"], "unknown rows 'x'"),
    ("profiles", ["--insertion", "meaningful="], "nothing stands after '='"),
    ("mechanism", ["--contrast", "x"], "unknown contrast 'x'"),
    ("mechanism", ["--outcome", "kl"], "mediation needs a signed outcome"),
    ("mechanism", ["--direction", "x"], "unknown direction 'x'"),
    ("mechanism", ["--layers", "a"], "cannot read 'a' as layers"),
    ("accuracy", ["--knockout", "x"], "cannot read 'x' as a head"),
    ("accuracy", ["--unit", ""], "--unit is empty"),
    ("accuracy", ["--treatments", "none,none"], "the treatment 'none' is named twice"),
    ("accuracy", ["--n-samples", "2"], "needs a temperature above 0"),
    ("accuracy", ["--temperature", "nan"], "Invalid value for '--temperature'"),
    ("accuracy", ["--temperature", "-1"], "Invalid value for '--temperature'"),
    ("accuracy", ["--top-p", "0"], "'--top-p': must be greater than 0 and at most 1, got '0'"),
    ("accuracy", ["--engine", "x"], "unknown engine 'x'"),
    ("locate", ["--insertion", "x"], "unknown insertion 'x'"),
    ("dose", ["--doses", "4,1"], "doses must be at least two increasing"),
    ("dose", ["--outcome", "x"], "unknown outcome 'x'"),
    ("dose", ["--unit", ""], "--unit is empty"),
    ("figures", ["--figure", "000", "--tiny", "--rows", "x"], "unknown rows 'x'"),
    ("figures", ["--figure", "000", "--tiny", "--template", "x"], "unknown template 'x'"),
]


@pytest.mark.parametrize(("name", "arguments", "words"), WRONG)
def test_what_is_wrong_is_told_before_a_model_is_read(
    name: str, arguments: list[str], words: str, run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    no = lambda *_, **__: pytest.fail("weights were read")  # noqa: E731
    monkeypatch.setattr("mless_interp.models.hugging_face.load_hugging_face", no)
    monkeypatch.setattr("mless_interp.paper.load_panel_model", no)
    done = run(
        name, *arguments, *([] if name == "figures" else ["--backend", "bridge"][: 2 * ("--backend" not in arguments)])
    )
    assert done.returncode == 2, done.stderr
    (line,) = (line for line in done.stderr.splitlines() if not line.startswith(("loading ", "--limit ")))
    assert line.startswith("error: ") and words in line
    assert list(tmp_path.iterdir()) == []


def test_the_commands_explain_themselves_at_once() -> None:
    began = time.monotonic()
    code = "import sys; from mless_interp.__main__ import main; sys.argv = ['mless-interp', '--help']\n"
    code += "try: main()\nexcept SystemExit: print([m for m in ('torch', 'pandas', 'matplotlib') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert time.monotonic() - began < 5, "about a third of a second where nothing else runs"
    assert done.stdout.startswith("Usage: mless-interp [OPTIONS] COMMAND") and done.stdout.endswith("[]\n")
    assert all(f"  {name} " in done.stdout for name in (*COMMANDS, "check", "report"))


def test_the_commit_of_a_source_tree(tmp_path: Path) -> None:
    assert commit(tmp_path) is None
    git = tmp_path / ".git"
    (git / "refs" / "heads").mkdir(parents=True)
    (git / "HEAD").write_text("ref: refs/heads/main\n")
    assert commit(tmp_path) is None, "a branch without commit"
    (git / "packed-refs").write_text("# pack-refs\naaaa refs/heads/other\nbbbb refs/heads/main\n")
    assert commit(tmp_path) == "bbbb"
    (git / "refs" / "heads" / "main").write_text("cccc\n")
    assert commit(tmp_path) == "cccc"
    (git / "HEAD").write_text("dddd\n")
    assert commit(tmp_path) == "dddd"
    tree, own = tmp_path / "tree", git / "worktrees" / "tree"
    own.mkdir(parents=True)
    tree.mkdir()
    (tree / ".git").write_text(f"gitdir: {own}\n")
    (own / "HEAD").write_text("ref: refs/heads/main\n")
    (own / "commondir").write_text("../..\n")
    assert commit(tree) == "cccc"


def test_no_text_in_a_table_that_is_written_is_a_formula(tmp_path: Path) -> None:
    _write(tmp_path / "t.csv", pd.DataFrame({"text": ["=1+1", "plain"], "x": [-1.0, 2.0]}))
    assert (tmp_path / "t.csv").read_text() == "text,x\n'=1+1,-1.0\nplain,2.0\n"
