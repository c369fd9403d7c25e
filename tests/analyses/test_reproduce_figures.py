"""analyses/reproduce_figures.py and head_profiles.py from end to end on tiny models, and what they say to wrong input."""

import html
import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from conftest import ROOT
from scripts_under_test import Done, run_script

from mless_interp import paper
from mless_interp.ground_truth.planted import planted_model
from mless_interp.heads import Head


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """A script in this process, as its command line would run it, in an empty folder."""

    def call(script: str, *arguments: Any) -> Done:
        path = ROOT / "analyses" / script
        return run_script(path, arguments, cwd=tmp_path, capsys=capsys, monkeypatch=monkeypatch)

    return call


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("planted") / "model"
    planted_model(readers=[Head(0, 2)], mediators=[Head(1, 4)], n_heads=8, n_key_value_heads=2, seed=5).save(
        folder, n_problems=4
    )
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("figure", list(paper.FIGURES))
def test_every_figure_is_drawn_and_its_claims_are_checked(figure: str, run: Any, tmp_path: Path) -> None:
    done = run(
        "reproduce_figures.py",
        "--figure",
        figure,
        "--tiny",
        "--limit",
        3,
        "--draws",
        2,
        "--out",
        "out",
        "--no-progress",
        "--report",
    )
    assert done.returncode == 0, done.stderr
    files = {path.name for path in (tmp_path / "out").iterdir()}
    assert files == {
        "figure.png",
        "figure.csv",
        "claims.csv",
        "results",
        "shown",
        "run.json",
        "manifest.json",
        "report.html",
    } | ({"bars.csv"} if figure == "004" else set())
    shown = paper.FIGURES[figure]
    claims = pd.read_csv(tmp_path / "out" / "claims.csv")
    expected = [claim.key for claim in paper.CLAIMS.values() if figure in claim.figures]
    assert claims["key"].tolist() == expected * len(shown.models)
    assert set(claims["verdict"]) <= {"agrees", "disagrees", "cannot tell"} and (claims["n"] == 3).all()
    curves = pd.read_csv(tmp_path / "out" / "figure.csv")
    assert set(curves["label"]) == {str(panel.head) for panel in shown.panels}
    assert {"mean", "low", "high", "n", "uniform", "series", "paper_label"} <= set(curves)
    facts = json.loads((tmp_path / "out" / "run.json").read_text())
    assert facts["figure"] == shown.number and facts["tiny"] is True and set(facts["models"]) == set(shown.models)
    assert shown.number in done.stdout and "random stand-ins" in done.stdout and "verdict" in done.stdout
    page = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert page.count("<table") == page.count('class="mless-view"') == len(shown.models)
    assert page.count('class="mless-circuitsvis"') == 1 and "random stand-ins" in page and page.count("<img") == 1


def test_another_model_can_take_the_papers_place(run: Any, planted: Path, tmp_path: Path) -> None:
    done = run(
        "reproduce_figures.py",
        "--figure",
        "000",
        "--model",
        planted,
        "--problems",
        planted,
        "--out",
        "out",
        "--no-progress",
    )
    assert done.returncode == 0, done.stderr
    assert (pd.read_csv(tmp_path / "out" / "claims.csv")["model"] == planted.name).all()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--figure", "005"], "error: unknown figure '005'; choose one of the paper's 13 (000), 11 (001), 9 (002),"),
        (
            ["--figure", "001", "--model", "x"],
            "Figure 11 shows 3 models: write --model NAME=DIRECTORY for each (Qwen2.5-Math-7B",
        ),
        (["--figure", "000", "--model", "gemma-3-4b-it=x"], "Figure 13 does not show 'gemma-3-4b-it'"),
        (["--figure", "000", "--tiny", "--draws", "0"], "--draws must be 1 or more, got 0"),
        (["--figure", "000", "--tiny", "--problems", "none.jsonl"], "no problem file at 'none.jsonl'"),
        (["--figure", "000", "--tiny", "--rows", "last", "--limit", "2"], "rows 'last' is one row"),
    ],
)
def test_wrong_input_is_one_line(arguments: list[str], message: str, run: Any) -> None:
    done = run("reproduce_figures.py", *arguments, "--no-progress")
    assert done.returncode == 2 and message in done.stderr and done.stderr.strip().count("\n") == 0


def test_the_papers_number_names_its_figure_and_the_page_begins_with_the_answer_and_the_figure(
    run: Any, planted: Path, tmp_path: Path
) -> None:
    done = run("reproduce_figures.py", "--figure", "13", "--model", planted, "--limit", 3, "--no-progress", "--report")
    assert done.returncode == 0, done.stderr
    facts = json.loads((tmp_path / "results" / "figure_13" / "run.json").read_text())
    assert facts["figure"] == "Figure 13"
    own = [json.loads(line)["unique_id"] for line in (planted / "problems.jsonl").read_text().splitlines()][:3]
    assert facts["problems"] == {"qwen2.5-math-7b": own}, "a model's own problems"
    page = html.unescape((tmp_path / "results" / "figure_13" / "report.html").read_text(encoding="utf-8"))
    assert page.index("<strong>Figure 13 (3 problems): on model, ") < page.index("<img") < page.index("<table")
    assert "claims of Qwen2.5-Math-7B hold" in page and "What is open" not in page
    assert "mean over 3 problems" in page, "the attention of all of them"


def test_one_model_that_fails_keeps_the_others(run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load = paper.load_panel_model

    def broken(key: str, **options: Any) -> Any:
        if key == failing or failing == "all":
            raise ValueError("its weights are truncated")
        return load(key, **options)

    monkeypatch.setattr(paper, "load_panel_model", broken)
    quick = [
        "reproduce_figures.py",
        "--figure",
        "001",
        "--tiny",
        "--limit",
        2,
        "--draws",
        1,
        "--no-progress",
        "--report",
    ]
    failing = "llama-3.1-8b-instruct"
    done = run(*quick, "--out", "out")
    assert done.returncode == 1 and "error: Llama3.1-8B-Instruct: its weights are truncated" in done.stderr
    facts = json.loads((tmp_path / "out" / "run.json").read_text())
    assert set(facts["models"]) == {"qwen2.5-math-7b", "gemma-3-4b-it"}
    assert facts["failed"] == {"Llama3.1-8B-Instruct": "its weights are truncated"}
    page = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert (
        "Llama3.1-8B-Instruct failed and is left out: its weights are truncated" in page and page.count("<table") == 2
    )
    failing = "all"
    done = run(*quick, "--out", "none")
    assert done.returncode == 2 and not (tmp_path / "none").exists()


def test_ones_own_bars_stand_beside_the_published_ones(run: Any, tmp_path: Path) -> None:
    quick = ["reproduce_figures.py", "--figure", "10", "--model", "demo", "--limit", 2, "--draws", 1, "--no-progress"]
    done = run(*quick, "--max-new-tokens", 8, "--out", "out")
    assert done.returncode == 0, done.stderr
    bars = pd.read_csv(tmp_path / "out" / "bars.csv")
    own = bars[bars["source"] == "measured"]
    assert own["treatment"].tolist() == ["none", "mless", "mful"] and set(own["model"]) == {"demo (measured)"}
    assert (own["n"] == 2).all() and (own["low"] <= own["percent"]).all() and (own["percent"] <= own["high"]).all()
    assert {"Qwen2.5-Math-1.5B", "Qwen2.5-Math-7B", "Llama3.1-8B-Instruct"} <= set(bars["model"])
    facts = json.loads((tmp_path / "out" / "run.json").read_text())
    assert all(name.startswith("demo/") for name in facts["problems"]["qwen2.5-math-7b"]), "the demo's problems"


def test_heads_the_model_lacks_are_named(run: Any, planted: Path) -> None:
    done = run("reproduce_figures.py", "--figure", "002", "--model", planted, "--problems", planted, "--no-progress")
    assert done.returncode == 2 and "head 21 is out of range (zero-based)" in done.stderr


@pytest.mark.slow
def test_head_profiles_writes_tables_curves_and_pictures(run: Any, planted: Path, tmp_path: Path) -> None:
    done = run(
        "head_profiles.py",
        *("--model", planted, "--n-tokens", 20, "--heads", "0:2,0:3,1:4", "--out", "out", "--no-progress"),
        *("--insertion", "meaningless", "--insertion", "meaningful=she", "--report", "--problem", "1"),
    )
    assert done.returncode == 0, done.stderr
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names == {
        *("heads.csv", "scores.parquet", "curves.csv", "results", "shown", "run.json", "manifest.json", "report.html"),
        *("profile_0_meaningless.png", "profile_1_meaningful.png"),
        *("collapse_0_meaningless.png", "collapse_1_meaningful.png"),
    }
    table = pd.read_csv(tmp_path / "out" / "heads.csv")
    assert table["label"].tolist() == ["L0H2", "L0H3", "L1H4"] * 2
    assert set(table["insertion"]) == {"Mless ' /' x20", "Mful ' she' x20"}
    mless = table[table["insertion"].str.startswith("Mless")].set_index("label")["log_density_ratio"]
    assert mless["L0H2"] > max(mless["L0H3"], mless["L1H4"]), "the planted reader reads the slashes"
    assert json.loads((tmp_path / "out" / "run.json").read_text())["n_problems"] == 4
    page = html.unescape((tmp_path / "out" / "report.html").read_text(encoding="utf-8"))
    assert "Mless ' /' x20</h2>" in page and "Mful ' she' x20</h2>" in page and page.count('class="mless-view"') == 2
    again = run("head_profiles.py", "--model", planted, "--out", "out")
    assert again.returncode == 2 and "exists" in again.stderr


def test_head_profiles_runs_fused_attention(run: Any, planted: Path, tmp_path: Path) -> None:
    common = ["head_profiles.py", "--model", planted, "--limit", 2, "--n-tokens", 10, "--layers", 0, "--no-progress"]
    common += ["--metrics", "span_mass,entropy", "--show", 1]
    fused = run(*common, "--backend", "nnsight", "--attention", "sdpa", "--out", "fused", "--report")
    eager = run(*common, "--backend", "bridge", "--out", "eager")
    assert fused.returncode == eager.returncode == 0, fused.stderr + eager.stderr
    one, other = (pd.read_csv(tmp_path / name / "heads.csv")["span_mass"] for name in ("fused", "eager"))
    assert one.tolist() == pytest.approx(other.tolist(), abs=1e-5)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--heads", "0:99"], "head 99 is out of range (zero-based)"),
        (["--layers", "9"], "layer 9 is out of range (zero-based)"),
        (["--insertion", "nonsense"], "unknown insertion 'nonsense'"),
        (["--metrics", "span"], "unknown metric 'span'"),
        (["--conditions", "base,what"], "unknown condition 'what'"),
        (["--show", "0"], "--show must be 1 or more"),
        (["--problem", "7"], "problem 7 is out of range"),
        (["--problem", "x"], "problem 'x' is not among these"),
        (["--attention", "sdpa", "--backend", "bridge"], "attn_implementation"),
        (["--n-tokens", "0"], "n_tokens must be 1 or more"),
    ],
)
def test_wrong_input_to_head_profiles_is_one_line(arguments: list[str], message: str, run: Any, planted: Path) -> None:
    done = run("head_profiles.py", "--model", planted, "--limit", 2, *arguments, "--no-progress")
    assert done.returncode == 2 and message in done.stderr, done.stderr
    assert done.stderr.strip().count("\n") == 0
