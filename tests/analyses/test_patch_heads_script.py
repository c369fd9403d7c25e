"""analyses/patch_heads.py from end to end, and what it says to wrong input."""

import html
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from conftest import BACKENDS, ROOT
from scripts_under_test import Done, run_script

from mless_interp.commands.kept import read
from mless_interp.ground_truth.planted import planted_model
from mless_interp.heads import Head

SCRIPT = ROOT / "analyses" / "patch_heads.py"
FILES = {
    "heads.csv",
    "heads.parquet",
    "patches.parquet",
    "head_map.png",
    "attention.html",
    "results",
    "shown",
    "run.json",
    "manifest.json",
}


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("planted") / "model"
    planted_model(readers=[Head(0, 13), Head(0, 21)], mediators=[Head(1, 4)], seed=5).save(folder, n_problems=28)
    return folder


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Any:
    """The script in this process, as its command line would run it."""

    def call(*arguments: Any, cwd: Path) -> Done:
        return run_script(SCRIPT, arguments, cwd=cwd, capsys=capsys, monkeypatch=monkeypatch)

    return call


@pytest.mark.slow
@pytest.mark.parametrize("backend", BACKENDS)
def test_it_finds_the_planted_heads_and_writes_everything(
    backend: str, planted: Path, tmp_path: Path, run: Any
) -> None:
    asked = ["--model", planted, "--backend", backend, "--limit", 14, "--out", "found", "--no-progress"]
    done = run(*asked, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "L0H13: reader" in done.stdout and "layer 1 head 14" in done.stdout and "found/heads.csv" in done.stdout
    out = tmp_path / "found"
    assert {path.name for path in out.iterdir()} == FILES
    assert [path.name for path in tmp_path.iterdir()] == ["found"], "no partial files stay"
    heads = pd.read_csv(out / "heads.csv")
    columns = [
        "layer",
        "head",
        "label",
        "paper_label",
        "removed_median",
        "effect_fraction",
        "recovered",
        "ci_low",
        "ci_high",
        "n",
    ]
    assert set(columns) <= set(heads.columns) and len(heads) == 2 * 28
    best = set(heads.loc[heads["effect_fraction"].abs().nlargest(3).index, "label"])
    assert best == {"L0H13", "L0H21", "L1H4"}
    assert len(pd.read_parquet(out / "patches.parquet")) == 14 * 2 * 28
    kept = json.loads((out / "run.json").read_text())
    assert kept["checks"]["replay_difference"] < 1e-3 and kept["model"]["backend"] == backend
    assert kept["seed"] == 0 and kept["versions"]["torch"] and kept["n_problems"] == 14
    first = kept["prompts"][0]
    start, stop = first["span"]
    assert stop - start == 55 and len(set(first["inserted_ids"][start:stop])) == 1
    page = (out / "attention.html").read_text()
    assert page.count("default-src 'none'") == 1 and page.count('mlessViews||[]).push("view-') == 1


@pytest.mark.slow
def test_as_a_program_it_explains_itself_and_writes_of_the_chosen_heads_what_it_writes_here(
    planted: Path, tmp_path: Path, run: Any
) -> None:
    program = [sys.executable, str(SCRIPT)]
    common = {"cwd": tmp_path, "capture_output": True, "text": True, "timeout": 300}
    shown = subprocess.run([*program, "--help"], **common)
    assert shown.returncode == 0 and "--direction" in shown.stdout and "denoising" in shown.stdout
    options = ["--model", str(planted), "--backend", "bridge", "--limit", "8", "--heads", "0:13,0:2"]
    done = subprocess.run([*program, *options, "--out", "out", "--report"], **common)
    assert done.returncode == 0 and (tmp_path / "out" / "heads.csv").exists(), done.stderr
    page = html.unescape((tmp_path / "out" / "report.html").read_text(encoding="utf-8"))
    kept = json.loads((tmp_path / "out" / "run.json").read_text())
    assert page.count("<h1>") == 1 and "Which of 2 heads of" in page and kept["repeat"] in page
    assert "L0H13: reader; removes more than 5 % of the effect in 8 of 8 problems" in page, "in the result's own words"
    assert "head L0H13; verdict reader; " in page and "in the paper's counting layer 1 head 14" in page, "on the map"
    assert page.count('class="mless-view"') == 1 and page.count('class="mless-circuitsvis"') == 1
    assert str(kept["checks"]["replay"]) in page and kept["versions"]["torch"] in page
    wrong = subprocess.run([*program, "--limit", "0", "--out", "other"], **common)
    assert wrong.returncode == 2 and wrong.stderr.startswith("error: Invalid value for '--limit'")
    assert run(*options, "--out", "here", "--no-progress", cwd=tmp_path).returncode == 0
    assert (tmp_path / "out" / "heads.csv").read_text() == (tmp_path / "here" / "heads.csv").read_text(), "same seed"
    assert set(pd.read_csv(tmp_path / "out" / "heads.csv")["label"]) == {"L0H13", "L0H2"}


@pytest.mark.slow
def test_a_single_sweep_in_the_other_direction(planted: Path, tmp_path: Path, run: Any) -> None:
    options = [
        "--mode",
        "sweep",
        "--direction",
        "noising",
        "--contrast",
        "total",
        "--outcome",
        "logit_diff",
        "--report",
    ]
    done = run("--model", planted, "--backend", "bridge", *options, "--out", "s", "--no-progress", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert {path.name for path in (tmp_path / "s").iterdir()} == FILES | {"report.html"}
    kept = json.loads((tmp_path / "s" / "run.json").read_text())
    assert kept["settings"]["direction"] == "noising" and kept["mode"] == "sweep"
    page = (tmp_path / "s" / "report.html").read_text(encoding="utf-8")
    assert (
        "on logit_diff" in page
        and "corrected for testing many heads" in page
        and "report.html, results, run.json" in done.stdout
    )


CHOSEN = ["--backend", "bridge", "--heads", "0:13,0:21,1:4,0:2", "--no-progress"]


@pytest.mark.slow
def test_the_named_heads_are_confirmed_on_the_problems_after_the_first(planted: Path, tmp_path: Path, run: Any) -> None:
    asked = ["--limit", 12, "--confirm", 10, "--answers", 6, "--report", "--out", "c"]
    done = run("--model", planted, *CHOSEN, *asked, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "Confirmation: 10 fresh problems, none of them used to name the heads; 3 heads tested again." in done.stdout
    kept = json.loads((tmp_path / "c" / "run.json").read_text())
    ids = [json.loads(line)["unique_id"] for line in (planted / "problems.jsonl").read_text().splitlines()]
    assert (kept["n_problems"], kept["n_fresh"]) == (12, 10)
    assert [prompt["problem"] for prompt in kept["prompts"]] == ids[:22], "the first 12, then 10 others"
    assert len(pd.read_parquet(tmp_path / "c" / "patches.parquet")) == 12 * 4
    heads = pd.read_csv(tmp_path / "c" / "heads.csv").set_index("label")
    assert heads.loc[["L0H13", "L0H21", "L1H4"], "confirmed"].astype(bool).all() and pd.isna(
        heads.loc["L0H2", "confirmed"]
    )
    drawn = [str(head) for head in read(tmp_path / "c").shown["attention"].heads]
    assert drawn == list(heads.index[heads["confirmed"] == True]), "the largest first, as the table has them"  # noqa: E712
    page = html.unescape((tmp_path / "c" / "report.html").read_text(encoding="utf-8"))
    assert "Named heads on fresh problems" in page and "Confirmed: L0H13, L0H21, L1H4." in page
    answers = pd.read_csv(tmp_path / "c" / "answers.csv").set_index("treatment")
    sets = [f"random set {number} cut off" for number in range(1, 6)]
    assert list(answers.index) == ["none", "insertion", "named set cut off", *sets]
    assert answers.loc["named set cut off", "heads"] == "L0H13, L0H21" and (answers["n"] == 6).all()
    drawn = [set(heads.split(", ")) for heads in answers.loc[sets, "heads"]]
    assert all(len(heads) == 2 and heads.isdisjoint({"L0H13", "L0H21"}) for heads in drawn)
    assert len(set(map(frozenset, drawn))) == 5, "each once"
    told = " ".join(run("--help", cwd=tmp_path).stdout.split())
    assert "each of 5 random sets like them, cut off from it: so many times 8 answers at most" in told, "its cost"
    answered = pd.read_json(tmp_path / "c" / "completions.jsonl", lines=True)
    assert list(dict.fromkeys(answered["problem"])) == ids[22:], "the 6 after all others"
    told = next(line for line in done.stdout.splitlines() if line.startswith("Of 6 other problems "))
    assert f"{100 * answers.loc['none', 'accuracy']:.1f} % are answered right without the insertion" in told
    assert told in page and "Do the answers come back?" in page
    assert done.stdout.count("random set 3 cut off") == 1


@pytest.mark.slow
def test_a_run_stopped_while_it_confirms_and_while_it_answers_goes_on_there(
    planted: Path, tmp_path: Path, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mless_interp.running.checkpoint import Checkpoint

    asked = ["--model", planted, *CHOSEN, "--limit", 12, "--confirm", 10, "--answers", 6]
    put, done = Checkpoint.put, 0
    seen: list[str] = []

    def watch(self: Checkpoint, values: dict[str, Any]) -> None:
        nonlocal done
        stage = "" if self.path is None else f"{self.path.parent.name}/{re.sub('-[0-9a-f]{8}$', '', self.path.stem)}"
        done += stage == "confirm/matched-mass"
        if done == 2:
            raise KeyboardInterrupt
        seen.append(stage)
        put(self, values)
        if stopping and seen.count(answers) == 1:
            raise KeyboardInterrupt

    monkeypatch.setattr(Checkpoint, "put", watch)
    stopping, answers = True, ".stopped.partial/answers"
    stopped = run(*asked, "--out", "stopped", cwd=tmp_path)
    assert stopped.returncode != 0 and "confirm/mless" in seen and not (tmp_path / "stopped").exists()
    assert list((tmp_path / ".stopped.partial" / "confirm").glob("matched-mass-*.jsonl"))
    seen.clear()
    assert run(*asked, "--out", "stopped", cwd=tmp_path).returncode == 130
    assert seen.pop() == answers and seen and "confirm/mless" not in seen
    after = (".stopped.partial/sinks", "confirm/")  # whether the span is a sink is looked at last
    assert not [stage for stage in seen if not stage.startswith(after)]
    seen.clear()
    stopping = False
    ended = run(*asked, "--out", "stopped", cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert seen and set(seen) == {answers}, "nothing else is computed again"
    assert not (tmp_path / ".stopped.partial").exists()
    assert run(*asked, "--out", "straight", cwd=tmp_path).returncode == 0
    first, second = (pd.read_csv(tmp_path / name / "heads.csv") for name in ("stopped", "straight"))
    pd.testing.assert_frame_equal(first, second, check_exact=False, atol=1e-4)
    told = [json.loads((tmp_path / name / "run.json").read_text())["conclusion"] for name in ("stopped", "straight")]
    assert told[0] == told[1]
    first, second = ((tmp_path / name / "answers.csv").read_text() for name in ("stopped", "straight"))
    assert first == second


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--confirm", 1], "--confirm takes 2 or more problems, or 0, and only goes with --mode locate, got 1"),
        (["--limit", 1], "--limit 1: heads are named by 2 or more problems: give more"),
        (["--confirm", 4, "--mode", "sweep"], "only goes with --mode locate, got 4"),
        (["--confirm", 9, "--limit", 20], "--limit 20 and --confirm 9 need 29 problems, there are 28"),
        (["--confirm", 8], "--limit 64 and --confirm 8 need 72 problems, there are 28"),
        (["--answers", 1], "--answers takes 2 or more problems, or 0, and only goes with --mode locate, got 1"),
        (
            ["--answers", 9, "--mode", "sweep"],
            "--answers takes 2 or more problems, or 0, and only goes with --mode locate",
        ),
        (["--answers", 9, "--limit", 20], "--limit 20 and --answers 9 need 29 problems, there are 28: give smaller"),
        (
            ["--answers", 9, "--confirm", 9, "--limit", 20],
            "--limit 20 and --confirm 9 and --answers 9 need 38 problems",
        ),
    ],
)
def test_wrong_numbers_are_told_before_the_model_is_loaded(
    arguments: list[Any], message: str, planted: Path, tmp_path: Path, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def loaded(*given: Any, **options: Any) -> Any:
        raise AssertionError("the model was loaded")

    monkeypatch.setattr("mless_interp.models.load.load_model", loaded)
    done = run("--model", planted, *arguments, "--out", "out", cwd=tmp_path)
    assert done.returncode == 2 and message in done.stderr and not (tmp_path / "out").exists()
    with pytest.raises(AssertionError, match="the model was loaded"):
        run("--model", planted, "--confirm", 8, "--limit", 20, "--out", "out", cwd=tmp_path)


def test_problems_that_cannot_be_graded_are_told_before_the_model_is_loaded(
    planted: Path, tmp_path: Path, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mless_interp.models.load.load_model", lambda *_, **__: pytest.fail("the model was loaded"))
    records = [json.loads(line) for line in (planted / "problems.jsonl").read_text().splitlines()][:8]
    records[6]["answer"] = " "
    (tmp_path / "p.jsonl").write_text(lines(records))
    done = run("--problems", "p.jsonl", "--limit", 4, "--answers", 4, "--out", "out", cwd=tmp_path)
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    said = "--answers 4: 1 of these problems have no answer to grade against"
    assert said in done.stderr and records[6]["unique_id"] in done.stderr


@pytest.mark.slow
def test_an_existing_folder_is_kept_unless_overwriting_is_allowed(planted: Path, tmp_path: Path, run: Any) -> None:
    out = tmp_path / "results"
    out.mkdir()
    (out / "precious.txt").write_text("mine")
    refused = run("--model", planted, "--out", out, cwd=tmp_path)
    assert refused.returncode == 2 and "exists; choose another, or allow overwriting it (--overwrite)" in refused.stderr
    wrong = run("--model", planted, "--out", out, "--overwrite", "--heads", "9:9", cwd=tmp_path)
    assert wrong.returncode == 2 and (out / "precious.txt").exists(), (
        "nothing is replaced before the new result is whole"
    )
    common = [
        "--model",
        planted,
        "--backend",
        "bridge",
        "--limit",
        2,
        "--layers",
        "0",
        "--no-progress",
        "--mode",
        "sweep",
    ]
    foreign = run(*common, "--out", out, "--overwrite", cwd=tmp_path)
    assert foreign.returncode == 2 and "precious.txt" in foreign.stderr and (out / "precious.txt").exists()
    (out / "precious.txt").unlink()
    assert run(*common, "--out", out, cwd=tmp_path).returncode == 0
    assert run(*common, "--out", out, cwd=tmp_path).returncode == 2, "what exists is not replaced unasked"
    assert run(*common, "--out", out, "--overwrite", cwd=tmp_path).returncode == 0
    assert {path.name for path in out.iterdir()} == FILES


def lines(records: list[dict[str, Any]]) -> str:
    return "\n".join(json.dumps(record) for record in records)


GOOD = {"problem": "Sam has 3 books ?", "answer": "3", "unique_id": "a"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "file", "message"),
    [
        (["--model", "/no/such"], None, "unknown model '/no/such'"),
        (["--backend", "jax"], None, "unknown backend 'jax'"),
        (["--insertion", "mless"], None, "unknown insertion 'mless'"),
        (["--n-tokens", "5000"], None, "leave no room for a question"),
        (["--unit", "zzqx"], None, "becomes the unknown token"),
        (["--heads", "2:0"], None, "layer 2 is out of range (zero-based)"),
        (["--heads", "0:28"], None, "head 28 is out of range (zero-based)"),
        (["--heads", "x"], None, "cannot read 'x' as a head"),
        (["--layers", "7"], None, "layer 7 is out of range (zero-based)"),
        (["--mode", "sweep", "--contrast", "all"], None, "unknown contrast 'all'"),
        (["--mode", "find"], None, "unknown mode 'find'; choose locate or sweep"),
        (["--contrast", "shift", "--edit", "z"], None, "--edit only goes with --mode sweep"),
        (
            ["--contrast", "held"],
            None,
            "unknown contrast to locate heads by 'held'; choose one of content, computed, shift, total",
        ),
        (["--contrast", "computed", "--answers", "2"], None, "so it goes with --contrast content, not computed"),
        (["--place", "behind-question"], None, "--place: 'behind-question' is no place; write before-question"),
        (["--place", "at-x"], None, "--place: 'at-x' is no place"),
        (["--place", ","], None, "--place is empty"),
        (["--outcome", "accuracy"], None, "unknown outcome 'accuracy'"),
        (["--template", "chat"], None, "this tokenizer has no chat template"),
        (["--template", "latex"], None, "unknown template 'latex'"),
        (["--dtype", "int3"], None, "unknown dtype 'int3'"),
        ([], "", "holds no problems"),
        ([], "{broken", "line 1: not valid JSON"),
        ([], lines([GOOD, {"problem": "x ?", "unique_id": "b"}]), "line 2: missing answer"),
        ([], lines([{**GOOD, "problem": "  "}]), "line 1: problem 'a': its question is empty"),
        ([], lines([GOOD, GOOD]), "line 2: id 'a' was already used in line 1"),
        (["--mode", "sweep"], lines([{**GOOD, "answer": ""}]), "its answer encodes to no tokens"),
        ([], lines([{**GOOD, "problem": "Sam has 3 books . " * 900}]), "has a context of"),
    ],
)
def test_wrong_input_is_one_line_and_exit_code_two(
    arguments: list[str], file: str | None, message: str, planted: Path, tmp_path: Path, run: Any
) -> None:
    base = [] if "--model" in arguments else ["--model", planted]
    base += [] if "--backend" in arguments else ["--backend", "bridge"]
    base += ["--problems", planted / "problems.jsonl"] if "/no/such" in arguments else []
    if file is not None:
        (tmp_path / "p.jsonl").write_text(file)
        base += ["--problems", tmp_path / "p.jsonl"]
    done = run(*base, *arguments, "--out", tmp_path / "out", "--no-progress", cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1 and message in errors[0]
    assert "Traceback" not in done.stderr and not (tmp_path / "out").exists()
