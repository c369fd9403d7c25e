"""analyses/accuracy.py from end to end: what it writes, what it says to wrong input, and that killing it loses nothing."""

import html
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from conftest import ROOT
from scripts_under_test import Done, run_script

SCRIPT = ROOT / "analyses" / "accuracy.py"
FILES = {"accuracy.csv", "comparisons.csv", "completions.jsonl", "accuracy.png", "results", "run.json", "manifest.json"}
QUICK = ["--limit", 6, "--max-new-tokens", 8, "--no-progress"]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """The script in this process, as its command line would run it, in the temporary folder."""

    def call(*arguments: Any) -> Done:
        return run_script(SCRIPT, arguments, cwd=tmp_path, capsys=capsys, monkeypatch=monkeypatch)

    return call


def test_it_answers_under_every_treatment_and_writes_everything(run: Any, tmp_path: Path) -> None:
    done = run(*QUICK, "--knockout", "0:1,0:2", "--published", "qwen2.5-math-7b", "--out", "found", "--report")
    assert done.returncode == 0, done.stderr
    out = tmp_path / "found"
    assert {path.name for path in out.iterdir()} == FILES | {"report.html"}
    assert [path.name for path in tmp_path.iterdir()] == ["found"], "no partial files stay"
    table = pd.read_csv(out / "accuracy.csv").set_index("treatment")
    assert list(table.index) == ["none", "mless", "mful", "random_sentence", "arm", "knockout"]
    assert (table["n"] == 6).all() and table.loc["none", "accuracy"] == 1.0
    assert (table["low"] <= table["accuracy"]).all() and (table["accuracy"] <= table["high"]).all()
    compared = pd.read_csv(out / "comparisons.csv")
    assert list(compared["second"]) == list(table.index)[1:] and set(compared["first"]) == {"none"}
    answers = [json.loads(line) for line in (out / "completions.jsonl").read_text().splitlines()]
    assert len(answers) == 6 * 6
    assert {"problem", "treatment", "sample", "strict", "lenient", "paper", "completion", "gold"} <= set(answers[0])
    for answer in answers:
        assert (answer["completion"] == f"Answer : \\boxed{{ {answer['gold']} }}") == (answer["strict"] == 1.0)
    kept = json.loads((out / "run.json").read_text())
    assert kept["settings"]["treatments"]["knockout"]["knockout"] == ["L0H1", "L0H2"]
    assert kept["settings"]["engine"] == "hugging_face" and kept["n_problems"] == 6 and len(kept["comparisons"]) == 5
    assert (out / "accuracy.png").stat().st_size > 10_000
    assert "none    1.0000 0.6097 1.0000" in done.stdout
    assert "The paper prints: none 72.3 % (Table 1), mless 74.6 % (Table 1)" in done.stdout
    assert "'mless' against 'none'" in done.stdout and "found/accuracy.csv" in done.stdout
    page = html.unescape((out / "report.html").read_text(encoding="utf-8"))
    answer = page[page.index("<strong>") : page.index("</strong>")]
    assert answer.startswith("<strong>No treatment is shown to differ from 'none' (100.0 % of 6 problems right)")
    assert "'mless' against 'none'" in page and page.count("<table") == 3 and page.count("<img") == 1
    assert answers[0]["completion"] in page and "--knockout 0:1,0:2" in page


@pytest.mark.slow
def test_same_seed_same_answers_and_one_treatment_has_nothing_to_compare(run: Any, tmp_path: Path) -> None:
    sampled = [*QUICK, "--treatments", "random_sentence", "--temperature", "2", "--top-p", "0.95", "--n-samples", "2"]
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        done = run(*sampled, "--seed", seed, "--out", name)
        assert done.returncode == 0, done.stderr
    assert {path.name for path in (tmp_path / "a").iterdir()} == FILES - {"comparisons.csv"}
    first, again, other = ((tmp_path / name / "completions.jsonl").read_text() for name in "abc")
    assert first == again != other
    assert len(first.splitlines()) == 12


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--treatments", "none,slashes"], "unknown treatment 'slashes'; choose any of none, mless, mful"),
        (["--conditions", "none,none"], "the treatment 'none' is named twice"),
        (["--treatments", ","], "there are no treatments"),
        (["--knockout", "0:28"], "head 28 is out of range (zero-based)"),
        (["--published", "gpt-2"], "the paper prints nothing for 'gpt-2' on 'MATH-500'"),
        (["--max-new-tokens", "500"], "leave no room for a question in demo's context of 512"),
        (["--n-samples", "3"], "needs a temperature above 0"),
        (["--engine", "vllm"], "It needs an environment of its own"),
        (["--arm-p1", "101"], "Invalid value for '--arm-p1': Input should be less than or equal to 100, got '101'"),
        (["--unit", "zzqx"], "becomes the unknown token"),
        (["--attention", "sdpa"], "attn_implementation need backend='nnsight'"),
        (["--model", "/no/such"], "unknown model '/no/such'"),
    ],
)
def test_wrong_input_is_one_line_and_exit_code_two(
    arguments: list[str], message: str, run: Any, tmp_path: Path
) -> None:
    problems = ["--problems", "demo"] if "--model" in arguments else []
    done = run(*QUICK, *problems, *arguments, "--out", "out")
    assert done.returncode == 2, done.stderr
    errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1 and message in errors[0]
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_killed_in_the_middle_and_started_again_it_gives_the_same(tmp_path: Path) -> None:
    program = [
        sys.executable,
        str(SCRIPT),
        "--limit",
        "60",
        "--max-new-tokens",
        "8",
        "--no-progress",
        "--batch-size",
        "4",
    ]
    log = tmp_path / "log.txt"
    answers = tmp_path / ".killed.partial" / "answers.jsonl"

    def start(out: str) -> "subprocess.Popen[bytes]":
        with log.open("ab") as shown:
            return subprocess.Popen([*program, "--out", out], cwd=tmp_path, stdout=shown, stderr=shown)

    started, kept = start("killed"), []
    try:
        for at_least in (40, 170):
            deadline = time.monotonic() + 240
            while not (answers.exists() and answers.read_bytes().count(b"\n") > at_least):
                assert started.poll() is None, log.read_text()
                assert time.monotonic() < deadline
                time.sleep(0.02)
            os.kill(started.pid, signal.SIGKILL)
            started.wait()
            kept.append(answers.read_bytes())
            started = start("killed")
        assert started.wait(timeout=300) == 0, log.read_text()
    finally:
        started.kill()
        started.wait()
    assert all(text.count(b"\n") < 301 for text in kept), "each time it was killed before the end"
    assert start("whole").wait(timeout=300) == 0, log.read_text()
    for name in ("completions.jsonl", "accuracy.csv", "comparisons.csv"):
        assert (tmp_path / "killed" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
