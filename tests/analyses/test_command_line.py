"""What every analysis script shares: options, beginning and ending, one line for wrong input, a command to repeat."""

import json
import shlex
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pandas as pd
import pytest
from conftest import ROOT
from results_under_test import same
from typer import Option
from typer.testing import CliRunner

import mless_interp as mi
from mless_interp.command_line import (
    Asking,
    Inserting,
    LimitOption,
    OutOption,
    Saving,
    analysis,
    chosen_heads,
    contrasts,
    one_line_errors,
    repeat_command,
)
from mless_interp.heads import Head
from mless_interp.paper.figures import FIGURES
from mless_interp.prompts.conditions import CONDITIONS, CONTRASTS

# -------------------------------------------------------------------------------------------------------------- options


@dataclass(frozen=True, kw_only=True)
class Options(Asking):
    """Of a script of one's own."""

    question: Annotated[str, Option(help="What is asked.")]
    limit: LimitOption = 7
    out: OutOption = Path("results/own")


def run(main: Callable[[Any], None], *arguments: str) -> Any:
    return CliRunner().invoke(analysis(main), arguments)


def test_every_field_is_an_option_with_its_default_and_its_explanation() -> None:
    asked: list[Options] = []

    def main(options: Options) -> None:
        """What it does."""
        asked.append(options)

    done = run(main, "--question", "why", "--seed", "3", "--report", "--device", "cpu")
    assert done.exit_code == 0, done.output
    assert asked == [Options(question="why", seed=3, report=True, device="cpu")]
    assert (asked[0].limit, asked[0].backend, asked[0].out) == (7, "auto", Path("results/own"))
    text = " ".join(run(main, "--help").output.split())
    assert "What it does." in text and "What is asked." in text and "[default: 7]" in text
    names = [word for word in text.split() if word.startswith("--")]
    assert names[-6:] == ["--seed", "--out", "--report", "--overwrite", "--no-progress", "--help"], "how it ends, last"


def test_a_field_without_default_has_to_be_given() -> None:
    def main(options: Options) -> None:
        pytest.fail("it began")

    done = run(main)
    assert done.exit_code == 2 and "Missing option '--question'" in done.output


def test_a_folder_that_is_there_is_refused_before_anything_begins(tmp_path: Path) -> None:
    (tmp_path / "precious.txt").write_text("mine")

    def main(options: Saving) -> None:
        pytest.fail("it began")

    done = run(main, "--out", str(tmp_path))
    assert done.exit_code == 2 and done.output.startswith("error: the folder") and "--overwrite" in done.output


def explained(script: str) -> list[str]:
    """The lines that a script's `--help` prints in a process of its own, and last what heavy modules that has loaded."""
    code = (
        "import runpy, sys; sys.argv = [sys.argv[1], '--help']\n"
        "try: runpy.run_path(sys.argv[0], run_name='__main__')\n"
        "except SystemExit as end: print(end.code, [m for m in ('torch', 'pandas', 'matplotlib') if m in sys.modules])"
    )
    command = [sys.executable, "-c", code, str(ROOT / "analyses" / script)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("accuracy.py", ["--treatments,--conditions"]),
        ("dose_response.py", ["results/dose_response"]),
        ("head_profiles.py", [f"{each.name} ({each.code}): {each.says}" for each in CONDITIONS.values()]),
        ("mechanism.py", [contrasts("content", "held")]),
        ("patch_heads.py", [contrasts()]),
        ("reproduce_figures.py", [f"{each.key} ({each.number.replace('ure', '.')})" for each in FIGURES.values()]),
    ],
)
def test_a_script_explains_itself_by_the_tables_without_loading_what_is_heavy(script: str, words: list[str]) -> None:
    *shown, loaded = explained(script)
    assert shown[0] == f"Usage: {script} [OPTIONS]"
    text = "".join("".join(shown).split())
    assert all("".join(each.split()) in text for each in words)
    assert loaded == ("0 []" if script not in ("head_profiles.py", "reproduce_figures.py") else "0 ['pandas']")


def test_what_help_texts_list_are_the_tables() -> None:
    from mless_interp.models.load import BACKENDS
    from mless_interp.patching.interventions import INTERVENTIONS
    from mless_interp.patching.outcomes import OUTCOMES
    from mless_interp.prompts.insertions import KINDS

    def listed(text: str) -> list[str]:
        return text.replace(" or ", ", ").split(", ")

    line = mi.command_line
    shown = {line.BACKENDS: BACKENDS, line.OUTCOMES: OUTCOMES, line.EDITS: INTERVENTIONS, line.KINDS: KINDS}
    assert [listed(text) for text in shown] == [list(table) for table in shown.values()]
    assert all(hasattr(mi.Insertion, kind) for kind in KINDS), "each kind has a constructor"


def test_contrasts_in_words() -> None:
    assert contrasts() == "; ".join(f"{each.name} ({each.clean} -> {each.corrupted})" for each in CONTRASTS.values())
    assert contrasts("held") == "held (base -> held)"


# ------------------------------------------------------------------------------------------------- beginning and ending


def test_it_begins_with_a_model_and_its_pairs() -> None:
    options = Inserting(limit=2, n_tokens=5, backend="bridge", template="raw_as_sent", unit=" ?")
    model, pairs = options.begin()
    assert model.info.name == "demo" and model.info.backend == "bridge"
    assert [pair.id for pair in pairs] == [problem.id for problem in mi.load_problems("demo", limit=2)]
    assert {pair.insertion.label for pair in pairs} == {"Mless ' ?' x5"} and pairs[0].template.name == "raw_as_sent"


def test_what_is_wrong_is_told_before_a_model_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Asking, "load", lambda *_, **__: pytest.fail("a model was loaded"))
    with pytest.raises(ValueError, match="unknown insertion 'mless'"):
        Inserting(insertion="mless").begin()
    with pytest.raises(ValueError, match="limit must be 1 or more, got 0"):
        Inserting(limit=0).begin()


class Drawn:
    """What is written by its own `save`: a picture, a view."""

    def __init__(self, text: str) -> None:
        self.text = text

    def save(self, path: Path) -> None:
        path.write_text(self.text)


TABLE = pd.DataFrame({"head": ["L0H0", "L0H1"], "effect": [0.1, np.nan]}, index=[7, 3])


def page() -> Any:
    return mi.Report("A title", question="Why?").sentence("Because.")


def test_everything_is_written_and_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["own.py", "--unit", " /"])
    options = Saving(out=Path("found"), seed=4, report=True)
    assert options.progress and options.partial == Path(".found.partial")
    options.partial.mkdir()
    (options.partial / "sweep.jsonl").write_text("{}")
    kept = mi.load(ROOT / "tests" / "running" / "data" / "saved-0.1")["DoseResponse"]
    files = {"a.csv": TABLE, "b.parquet": TABLE, "c.jsonl": TABLE, "d.png": Drawn("png"), "e.html": Drawn("html")}
    options.save(files | {"results": (kept,)}, page=page, conclusion="it does", n_problems=2)
    assert [path.name for path in tmp_path.iterdir()] == ["found"], "what was left of a stopped run is gone"
    out = tmp_path / "found"
    assert {path.name for path in out.iterdir()} == {*files, "results", "manifest.json", "run.json", "report.html"}
    for table in (pd.read_csv(out / "a.csv"), pd.read_parquet(out / "b.parquet")):
        pd.testing.assert_frame_equal(table, TABLE.reset_index(drop=True))
    assert [json.loads(line)["head"] for line in (out / "c.jsonl").read_text().splitlines()] == ["L0H0", "L0H1"]
    assert ((out / "d.png").read_text(), (out / "e.html").read_text()) == ("png", "html")
    assert same(mi.load(out / "results")["DoseResponse"], kept)
    record = json.loads((out / "run.json").read_text())
    assert (record["seed"], record["repeat"], record["conclusion"], record["n_problems"]) == (
        *(4, "python own.py --unit ' /'", "it does", 2),
    )
    assert record["versions"]["torch"] and "model" not in record
    shown = (out / "report.html").read_text(encoding="utf-8")
    assert "Because." in shown and "python own.py --unit" in shown
    assert capsys.readouterr().out == (
        "Results: found/a.csv, b.parquet, c.jsonl, d.png, e.html, results, run.json, report.html\n"
    )


def test_without_report_no_page_is_made(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = Saving(out=tmp_path / "found")
    options.save({"a.csv": TABLE}, page=lambda: pytest.fail("a page was made"))
    assert sorted(path.name for path in options.folder.iterdir()) == ["a.csv", "manifest.json", "run.json"]
    assert capsys.readouterr().out.endswith("found/a.csv, run.json\n")


def test_what_cannot_be_written_leaves_no_folder_and_keeps_what_had_finished(tmp_path: Path) -> None:
    options = Saving(out=tmp_path / "found")
    options.partial.mkdir()
    with pytest.raises(ValueError, match=r"a.xlsx: an analysis writes no .xlsx files"):
        options.save({"a.csv": TABLE, "a.xlsx": TABLE}, page=page)
    assert [path.name for path in tmp_path.iterdir()] == [".found.partial"]


# -------------------------------------------------------------------------------------------------------- heads, layers


def heads(heads: str | None = None, layers: str | None = None) -> tuple[Head, ...] | None:
    """`chosen_heads` in a model of 4 layers and 2 heads."""
    return chosen_heads(heads, layers, n_layers=4, n_heads=2)


def test_no_list_means_every_head() -> None:
    assert heads() is None


def test_listed_heads_keep_their_order() -> None:
    assert heads("2:1,0:0, L1H1 ,") == (Head(2, 1), Head(0, 0), Head(1, 1))


@pytest.mark.parametrize(
    ("text", "layers"),
    [("0", [0]), ("3", [3]), ("0,2-3", [0, 2, 3]), ("1-1", [1]), (" 2 , 0-1 ", [0, 1, 2]), ("1,0-2,1", [0, 1, 2])],
)
def test_layers_are_single_numbers_and_ranges_with_both_ends(text: str, layers: list[int]) -> None:
    assert heads(layers=text) == tuple(Head(layer, head) for layer in layers for head in range(2))


@pytest.mark.parametrize("text", ["", "a", "0,", "0-", "-1", "3-1", "1-2-3", "0;1", "²"])
def test_text_that_names_no_layers_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"cannot read '.*' as layers: write 0,2-4 \(zero-based\)"):
        heads(layers=text)


def test_a_layer_beyond_the_model_is_refused() -> None:
    with pytest.raises(ValueError, match=r"layer 4 is out of range \(zero-based\): the model has layers 0 to 3"):
        heads(layers="2-4")


def test_heads_and_layers_together_are_refused() -> None:
    with pytest.raises(ValueError, match="give --heads or --layers, not both"):
        heads("0:0", "0")


def test_a_head_that_cannot_be_read_is_refused() -> None:
    with pytest.raises(ValueError, match="cannot read 'x' as a head"):
        heads("0:0,x")


@pytest.mark.parametrize("error", [ValueError, TypeError, FileNotFoundError, FileExistsError, ConnectionError])
def test_wrong_input_ends_with_one_line_and_exit_code_2(
    error: type[Exception], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("MLESS_TRACEBACK", raising=False)

    @one_line_errors
    def command() -> None:
        raise error("a message\n  over two lines")

    with pytest.raises(SystemExit) as ended:
        command()
    assert ended.value.code == 2
    shown = capsys.readouterr()
    assert shown.err == "error: a message over two lines\n"
    assert shown.out == ""


def test_an_error_without_a_message_shows_its_kind(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("MLESS_TRACEBACK", raising=False)

    @one_line_errors
    def command() -> None:
        raise ValueError

    with pytest.raises(SystemExit):
        command()
    assert capsys.readouterr().err == "error: ValueError\n"


def test_the_traceback_is_there_for_who_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLESS_TRACEBACK", "1")

    @one_line_errors
    def command() -> None:
        raise ValueError("the real one")

    with pytest.raises(ValueError, match="the real one"):
        command()


def test_our_own_faults_are_not_dressed_as_wrong_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLESS_TRACEBACK", raising=False)

    @one_line_errors
    def command() -> None:
        raise AssertionError("a bug")

    with pytest.raises(AssertionError, match="a bug"):
        command()


def test_a_command_keeps_its_name_arguments_and_result() -> None:
    @one_line_errors
    def command(a: int, *, b: int) -> int:
        """What it does."""
        return a + b

    assert command(1, b=2) == 3
    assert (command.__name__, command.__doc__) == ("command", "What it does.")


def test_the_command_to_repeat_survives_a_shell(monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = ["analyses/patch_heads.py", "--unit", " /", "--out", "a 'b' $c"]
    monkeypatch.setattr(sys, "argv", arguments)
    assert shlex.split(repeat_command()) == ["python", *arguments]
