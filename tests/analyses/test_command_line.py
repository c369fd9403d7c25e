"""What every analysis script shares: options, beginning and ending, one line for wrong input, a command to repeat."""

import dataclasses
import inspect
import json
import re
import shlex
import subprocess
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, get_args

import pytest
from conftest import ROOT
from scripts_under_test import run_command, run_script
from typer import Option
from typer.testing import CliRunner

import mless_interp as mi
from mless_interp.__main__ import app
from mless_interp.command_line import (
    Asking,
    Inserting,
    LimitOption,
    Loading,
    NTokensOption,
    OutOption,
    Saving,
    analysis,
    chosen_heads,
    chosen_problems,
    context_of,
    contrasts,
    one_line_errors,
    plain_warnings,
    repeat_command,
)
from mless_interp.heads import Head
from mless_interp.paper.figures import FIGURES
from mless_interp.prompts.conditions import CONDITIONS, CONTRASTS
from mless_interp.prompts.problems import DEMO_PROBLEMS

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
    assert "What it does." in text and "What is asked." in text and "[default: 7" in text
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
        ("reproduce_figures.py", [f"{each.number.removeprefix('Figure ')} ({each.key})" for each in FIGURES.values()]),
    ],
)
def test_a_script_explains_itself_by_the_tables_without_loading_what_is_heavy(script: str, words: list[str]) -> None:
    *shown, loaded = explained(script)
    assert shown[0] == f"Usage: {script} [OPTIONS]"
    text = "".join("".join(shown).split())
    assert all("".join(each.split()) in text for each in words)
    assert loaded == "0 []"


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


def test_what_no_context_holds_is_told_before_a_model_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mless_interp.commands import accuracy, dose_response
    from mless_interp.models import load

    monkeypatch.setattr(load, "load_model", lambda *_, **__: pytest.fail("a model was loaded"))
    with pytest.raises(
        ValueError, match="512 tokens to insert and to answer with leave no room .* context of 512: ask for"
    ):
        Inserting(n_tokens=512).begin()
    with pytest.raises(ValueError, match="555 tokens to insert and to answer with leave no room"):
        accuracy.compute(accuracy.Options(max_new_tokens=500, limit=2))
    with pytest.raises(ValueError, match="513 tokens to insert and to answer with leave no room"):
        dose_response.compute(dose_response.Options(doses="1,513", limit=2))
    for config in ("{", "[]", '{"a":' * 99_999, '{"max_position_embeddings": "many"}', '{"text_config": 3}', "{}"):
        (tmp_path / "config.json").write_text(config)
        assert context_of(str(tmp_path)) is None, config
    (tmp_path / "config.json").write_text('{"n_positions": 9, "text_config": {"max_position_embeddings": 7}}')
    assert (context_of(str(tmp_path)), context_of("somebody/model")) == (7, None)


def test_the_program_of_options_that_are_given_beside_the_function(tmp_path: Path) -> None:
    asked: list[Any] = []
    done = CliRunner().invoke(analysis(asked.append, options=Saving), ["--out", str(tmp_path / "x"), "--seed", "4"])
    assert done.exit_code == 0, done.output
    assert asked == [Saving(out=tmp_path / "x", seed=4)]


def finished(options: Saving, n: int = 2) -> None:
    """What a run leaves that kept `n` steps."""
    options.partial.mkdir(parents=True, exist_ok=True)
    (options.partial / "sweep.jsonl").write_text('{"settings": {}}\n' + '{"id": "a", "value": 1}\n' * n)


@pytest.mark.parametrize(("n", "steps"), [(1, "1 finished step is"), (2, "2 finished steps are")])
def test_a_stopped_run_says_what_it_kept_and_how_to_go_on(n: int, steps: str, tmp_path: Path) -> None:
    def main(options: Saving) -> None:
        finished(options, n)
        raise KeyboardInterrupt

    done = run(main, "--out", str(tmp_path / "x"))
    assert done.exit_code == 130
    assert done.stderr == (
        f"stopped: {steps} kept in {tmp_path}/.x.partial; the same command, started again, goes on from there\n"
    )


def test_a_run_that_ends_before_anything_finished_leaves_no_hidden_folder(tmp_path: Path) -> None:
    def stopped(options: Saving) -> None:
        finished(options, 0)
        raise KeyboardInterrupt

    def wrong(options: Saving) -> None:
        raise ValueError("no")

    done = run(stopped, "--out", str(tmp_path / "x"))
    assert (done.exit_code, done.stderr) == (
        130,
        "stopped: nothing had finished yet; the same command starts again\n",
    )
    assert run(wrong, "--out", str(tmp_path / "x")).exit_code == 2
    assert list(tmp_path.iterdir()) == []


def test_overwriting_clears_what_other_options_left_and_keeps_its_own(tmp_path: Path) -> None:
    found: list[bool] = []

    def main(options: Saving) -> None:
        found.append((options.partial / "sweep.jsonl").exists())
        finished(options)
        raise KeyboardInterrupt

    out = ["--out", str(tmp_path / "x")]
    for more in ([], ["--seed", "1"], ["--overwrite"], ["--overwrite"], ["--overwrite", "--seed", "2"]):
        assert run(main, *out, *more).exit_code == 130
    assert found == [False, True, False, True, False]


def test_warnings_are_one_line_without_their_place_and_only_inside(tmp_path: Path) -> None:
    before = warnings.showwarning

    def main(options: Saving) -> None:
        warnings.warn("two\nlines", stacklevel=1)

    with warnings.catch_warnings():
        warnings.simplefilter("always")
        shown = warnings.showwarning
        done = run(main, "--out", str(tmp_path / "x"))
        assert warnings.showwarning is shown
    assert done.stderr == "warning: two lines\n"
    assert warnings.showwarning is before


def test_how_a_model_is_to_be_loaded() -> None:
    usual = {"backend": "auto", "dtype": "float32", "tf32": True, "device": None, "device_map": None}
    assert Loading().loading() == {**usual, "attn_implementation": "eager"}
    assert Loading(device_map='{"": "cpu"}').loading()["device_map"] == {"": "cpu"}
    more = {
        "max_memory": '{"0": "1GiB", "cpu": 5}',
        "offload_folder": "x",
        "quantization_config": '{"load_in_4bit": true}',
    }
    assert Loading(device_map="auto", attention="sdpa", tf32=False, **more).loading() == usual | {
        "tf32": False,
        "device_map": "auto",
        "attn_implementation": "sdpa",
        "max_memory": {0: "1GiB", "cpu": 5},
        "offload_folder": "x",
        "quantization_config": {"load_in_4bit": True},
    }
    for option in ("device_map", "max_memory", "quantization_config"):
        with pytest.raises(ValueError, match=f"--{option.replace('_', '-')}: no valid JSON"):
            Loading(**{option: "{x"}).loading()
    for option in ("max_memory", "quantization_config"):
        with pytest.raises(ValueError, match=f"--{option.replace('_', '-')}: expected a JSON object"):
            Loading(**{option: "[1]"}).loading()
    with pytest.raises(ValueError, match="--device-map is empty"):
        Loading(device_map=" ").loading()
    with pytest.raises(ValueError, match="unknown attention 'fused'; choose one of eager, sdpa"):
        Loading(attention="fused").loading()


def parameters() -> dict[str, dict[str, inspect.Parameter]]:
    """Of every command its options and arguments, by name."""
    commands = {each.name or each.callback.__name__: each.callback for each in app.registered_commands if each.callback}
    return {name: dict(inspect.signature(callback).parameters) for name, callback in commands.items()}


LOAD_NOTHING = {"report", "compare", "merge", "plan"}
"""Commands that show what is kept; `plan` times random layers and takes a part of these options."""


def test_every_command_that_loads_a_model_takes_all_that_loading_takes() -> None:
    how = {field.name for field in dataclasses.fields(Loading)}
    found = parameters()
    assert {"check", "figures", "locate"} <= set(found) - LOAD_NOTHING and set(found) > LOAD_NOTHING
    assert {
        name: how - set(taken) for name, taken in found.items() if name not in LOAD_NOTHING and how - set(taken)
    } == {}
    elsewhere = {"name", "trust_remote_code", "remote", "remote_timeout"}
    assert set(Loading(max_memory="{}", offload_folder="x", quantization_config="{}").loading()) == (
        set(inspect.signature(mi.load_model).parameters) - elsewhere
    )


@pytest.mark.parametrize("command", ["check demo", "figures --figure 13 --model demo --problems demo"])
def test_products_in_full_are_asked_for_everywhere(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[dict[str, Any]] = []

    def load(name: Any, **options: Any) -> None:
        asked.append(options)
        raise ValueError("as far as this")

    monkeypatch.setattr("mless_interp.models.load.load_model", load)
    monkeypatch.setattr("mless_interp.paper.figures.load_model", load)
    done = run_command(*command.split(), "--no-tf32", cwd=tmp_path, capsys=capsys, monkeypatch=monkeypatch)
    assert done.stderr.endswith("error: as far as this\n") and [each["tf32"] for each in asked] == [False], done.stderr


def whole_numbers() -> list[tuple[str, str, int]]:
    """Every option of a whole number: its command, its name, and the least that it takes."""
    found = []
    for command, taken in parameters().items():
        for name, each in taken.items():
            kind, *rest = get_args(each.annotation) or (each.annotation,)
            if int in (kind, *get_args(kind)):
                (option,) = rest
                found.append((command, f"--{name.replace('_', '-')}", option.min))
    return found


def test_every_number_says_what_is_the_least() -> None:
    found = whole_numbers()
    assert len(found) > 60 and {least for *_, least in found} == {0, 1, 2}
    assert {option for _, option, least in found if least == 0} == {"--seed", "--layer", "--confirm", "--answers"}


@pytest.mark.parametrize(("command", "option", "least"), whole_numbers())
def test_a_number_that_is_too_small_is_told_by_its_option(
    command: str,
    option: str,
    least: int,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    needed = {"check": ["demo"], "plan": ["demo"], "figures": ["--figure", "13"], "circuit": ["demo"]}.get(command, [])
    for wrong in {least - 1, -1}:
        words = [command, *needed, option, str(wrong)]
        done = run_command(*words, cwd=tmp_path, capsys=capsys, monkeypatch=monkeypatch)
        assert done.returncode == 2 and done.stderr.startswith(f"error: Invalid value for '{option}': "), done.stderr
        assert f"got '{wrong}'; mless-interp {command} --help" in done.stderr and done.stderr.count("\n") == 1


ABOVE_ZERO = {
    "plan demo": ("--price", "--seconds", "--tflops"),
    "accuracy": ("--arm-c", "--top-p"),
    "mechanism": ("--c",),
}


@pytest.mark.parametrize(("line", "option"), [(line, each) for line, options in ABOVE_ZERO.items() for each in options])
@pytest.mark.parametrize("wrong", ["0", "-1", "nan", "inf"])
def test_a_number_that_must_be_above_zero_is_told_by_its_option(
    line: str,
    option: str,
    wrong: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    done = run_command(*line.split(), option, wrong, cwd=tmp_path, capsys=capsys, monkeypatch=monkeypatch)
    said = rf"error: Invalid value for '{option}': must be greater than 0( and at most 1)?, got '{wrong}'; mless-interp"
    assert done.returncode == 2 and re.match(said, done.stderr) and done.stderr.count("\n") == 1, done.stderr


def test_a_share_that_is_too_large_and_a_percentile_that_is_none_are_told_by_their_option(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for option, wrong in (("--top-p", "1.5"), ("--arm-p1", "101"), ("--arm-p1", "-1")):
        done = run_command("accuracy", option, wrong, cwd=tmp_path, capsys=capsys, monkeypatch=monkeypatch)
        assert done.returncode == 2 and done.stderr.startswith(f"error: Invalid value for '{option}': "), done.stderr


TAKES_TEXTS = [name for name, taken in parameters().items() if "n_before" in taken]


@pytest.mark.parametrize("command", TAKES_TEXTS)
def test_sizes_of_texts_are_refused_where_there_are_no_texts(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mless_interp.models.load.load_model", lambda *_, **__: pytest.fail("a model was loaded"))
    study = next((ROOT / "studies").glob("*.toml"))
    needed = {"plan": ["demo"], "circuit": ["demo"], "study": [str(study)]}.get(command, [])
    for given, what in (
        (["--n-before", "9"], "--n-before"),
        (["--n-answer=1", "--n-context=64"], "--n-context, --n-answer"),
    ):
        words = [command, *needed, "--problems", "demo", *given]
        done = run_command(*words, cwd=tmp_path, capsys=capsys, monkeypatch=monkeypatch)
        said = f"error: {what}: only the texts of a .txt file are cut to size, not the problems of demo: leave it out"
        assert done.returncode == 2 and done.stderr.startswith(said) and done.stderr.count("\n") == 1, done.stderr
    assert list(tmp_path.iterdir()) == []


def test_commands_that_ask_one_model_about_problems_take_texts() -> None:
    assert set(TAKES_TEXTS) == {*mi.commands.COMMANDS, "plan"} - {"figures"}


def test_what_another_run_kept_is_told_by_the_options_that_differ(tmp_path: Path) -> None:
    """A user knows options; the settings of the file that they came to are told behind them."""
    from mless_interp.running.checkpoint import Checkpoint

    @dataclass(frozen=True, kw_only=True)
    class Options(Saving):
        n_tokens: NTokensOption = 55

    def main(options: Options) -> None:
        with Checkpoint(options.partial / "answers.jsonl", {"treatments.mless.n_tokens": options.n_tokens}) as saved:
            saved.put({"p1": 1})
        raise KeyboardInterrupt

    def run(*given: str) -> Any:
        words = ["--out", str(tmp_path / "x"), *given]
        return CliRunner().invoke(analysis(main, options=Options, name="own"), words)

    assert run().exit_code == 130
    for _ in range(2):  # the second time too
        done = run("--n-tokens", "54", "--report")
        said = (
            f"error: '{tmp_path}/.x.partial' keeps what a run with other options had finished: --n-tokens was 55, now 54. Give "
            "those again to go on, choose another --out, or clear it with --overwrite (treatments.mless.n_tokens was 55, now "
            "54)\n"
        )
        assert done.exit_code == 2 and done.stderr == said
    assert run().exit_code == 130, "its own options go on"
    assert run("--n-tokens", "54", "--overwrite").exit_code == 130, "what it says to do helps"


def test_with_overwrite_nothing_is_cleared_that_no_run_leaves(tmp_path: Path) -> None:
    partial = tmp_path / ".x.partial"

    def main(options: Saving) -> None:
        (options.partial / "a.jsonl").write_text("1\n2\n")
        raise KeyboardInterrupt

    def run(*given: str) -> Any:
        return CliRunner().invoke(analysis(main, options=Saving, name="own"), ["--out", str(tmp_path / "x"), *given])

    assert run().exit_code == 130
    (partial / "deep").mkdir()
    (partial / "deep" / "notes.txt").write_text("mine")
    done = run("--seed", "4", "--overwrite")
    assert done.exit_code == 2 and "is in the way and not of this toolkit (deep/notes.txt); move it away" in done.stderr
    assert (partial / "deep" / "notes.txt").read_text() == "mine" and (partial / "a.jsonl").exists()


def test_fewer_problems_than_asked_for_are_said_and_noted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "few.jsonl").write_text("".join(DEMO_PROBLEMS.read_text().splitlines(keepends=True)[:3]))
    asked = [
        "mechanism",
        "--problems",
        "few.jsonl",
        "--n-tokens",
        "6",
        "--layers",
        "0",
        "--no-control",
        "--no-progress",
    ]
    said = "--limit 9: there are 3 problems, all are taken."
    done = run_command(
        *asked, "--limit", "9", "--report", "--out", "x", cwd=tmp_path, capsys=capsys, monkeypatch=monkeypatch
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines().count(said) == 1 and said in done.stdout
    assert json.loads((tmp_path / "x" / "run.json").read_text())["notes"] == [said]
    assert (tmp_path / "x" / "report.html").read_text().count(said) == 1
    done = run_command(
        "plan",
        "demo",
        "sweep",
        "--limit",
        "9999",
        "--memory",
        "80GB",
        "--tflops",
        "400",
        cwd=tmp_path,
        capsys=capsys,
        monkeypatch=monkeypatch,
    )
    assert "--limit 9999: there are 564 problems, all are taken." in done.stderr.splitlines()


@pytest.mark.parametrize("line", ["locate --mode sweep", "circuit demo --heads L0H18", "profiles", "accuracy", "dose"])
def test_every_command_knows_how_many_problems_it_was_asked_for(
    line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(*_: Any, **__: Any) -> None:
        raise ValueError("as far as this")

    monkeypatch.setattr("mless_interp.models.load.load_model", load)
    for n, few in ((9999, True), (564, False)):
        words = [*line.split(), "--limit", str(n), "--no-progress"]
        done = run_command(*words, cwd=tmp_path, capsys=capsys, monkeypatch=monkeypatch)
        assert done.stderr.endswith("error: as far as this\n"), done.stderr
        assert ("--limit 9999: there are 564 problems, all are taken." in done.stderr) == few


# -------------------------------------------------------------------------------------- command lines that are not read

WRONG = {
    "locate --n-tokens abc": "Invalid value for '--n-tokens': .* integer, got 'abc'; mless-interp locate --help",
    "locate --n-tokens 3 --n-tokens=0": "Invalid value for '--n-tokens': .* equal to 1, got '0'; mless-interp locate",
    "locate --layers 0-999999999999": "layer 999999999999 is out of range: no model has 100000 layers",
    "locate --seed=x": "Invalid value for '--seed': .*, got 'x'; mless-interp locate --help",
    "accuracy --temperature hot": "Invalid value for '--temperature': .* number, got 'hot'; mless-interp accuracy --help",
    "locate --alpha 2": "No such option: --alpha",
    "locate --limt 2": "No such option: --limt .*--limit",
    "locate extra": "Got unexpected extra argument",
    "locate --out": "Option '--out' requires an argument",
    "figures": "Missing option '--figure'; mless-interp figures --help",
    "check": "Missing argument 'MODEL'; mless-interp check --help",
    "check demo --n-prompts x": "Invalid value for '--n-prompts': .*, got 'x'",
    "compare": "Missing argument 'DIR DIR ...'",
    "report": "Missing argument 'DIR'",
    "merge": "Missing argument 'OUT'",
    "nonsense": "No such command 'nonsense'; mless-interp --help",
    "--nonsense": "No such option: --nonsense; mless-interp --help",
    "locate --insertion repeat_question --n-tokens 9": "insertion 'repeat_question' is as long as .*, got 9: leave it out",
    "profiles --insertion from_key=hint --n-tokens 9": "insertion 'from_key' is as long as .*, got 9: leave it out",
    "locate --insertion counting --unit x": "insertion 'counting' has no unit, got 'x': leave it out",
    "dose --insertion repeat_question": "an insertion of kind 'repeat_question' has one length only",
    "locate --place at-4,at-4": "a place is given twice .at 4 and at 4.: give each once",
    "figures --figure 13 --model nope": "cannot load the tokenizer of 'nope'",
    "figures --figure 13 --model ./nope": "unknown model './nope': there is no such directory",
    "figures --figure 13 --model nope --backend x": "unknown backend 'x'",
    "locate --place at-x": "--place: 'at-x' is no place",
}


@pytest.mark.parametrize("line", WRONG)
def test_a_command_line_that_cannot_be_read_is_one_plain_line(
    line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    done = run_command(*line.split(), cwd=tmp_path, capsys=capsys, monkeypatch=monkeypatch)
    assert (done.returncode, done.stdout) == (2, "")
    assert re.match(f"error: {WRONG[line]}", done.stderr) and done.stderr.count("\n") == 1, done.stderr
    assert "\x1b" not in done.stderr and not list(tmp_path.iterdir())


def test_an_option_that_is_empty_is_not_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """As that of a variable that was never set: what it would stand for is none of its owner's problems."""
    for empty in ("", " "):
        with pytest.raises(ValueError, match="--problems is empty: give 'demo', 'math500' or a file, or leave it out"):
            chosen_problems(empty, "demo", limit=2)


def test_a_long_error_keeps_its_beginning_and_its_end(capsys: pytest.CaptureFixture[str]) -> None:
    @one_line_errors
    def fails() -> None:
        raise ValueError("the answer " + "7" * 10**6 + " is too long: shorten it")

    with pytest.raises(SystemExit):
        fails()
    said = capsys.readouterr().err
    assert said.startswith("error: the answer 777") and said.endswith("777 is too long: shorten it\n")
    assert " [...] " in said and len(said) < 3100


def test_a_script_says_it_in_one_line_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    script = ROOT / "analyses" / "dose_response.py"
    done = run_script(script, ["--seed", "x"], cwd=tmp_path, capsys=capsys, monkeypatch=monkeypatch)
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert done.stderr.startswith(
        "error: Invalid value for '--seed'"
    ) and "dose_response --help" in done.stderr.replace(".py", "")


def test_without_a_command_the_program_explains_itself(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    done = run_command(cwd=tmp_path, capsys=capsys, monkeypatch=monkeypatch)
    assert done.returncode == 2 and "Commands:" in done.stdout + done.stderr


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


def test_an_empty_list_of_heads_is_refused() -> None:
    with pytest.raises(ValueError, match="--heads names none"):
        heads(" , ")


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
        raise error("a message\n  over two lines\x1b[31m")

    with pytest.raises(SystemExit) as ended:
        command()
    assert ended.value.code == 2
    shown = capsys.readouterr()
    assert shown.err == "error: a message over two lines\\x1b[31m\n"
    assert shown.out == ""


@pytest.mark.parametrize(
    "error",
    [
        MemoryError("memory ran out"),
        RuntimeError("[enforce fail at alloc_cpu.cpp:118] DefaultCPUAllocator: can't allocate memory"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        RuntimeError("std::bad_alloc"),
        RuntimeError("could not create a primitive"),
        ImportError("/lib/x.so: failed to map segment from shared object"),
    ],
)
def test_memory_that_ran_out_is_told_in_one_line(
    error: Exception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("MLESS_TRACEBACK", raising=False)

    @one_line_errors
    def command() -> None:
        raise error

    with pytest.raises(SystemExit) as ended:
        command()
    assert ended.value.code == 2 and capsys.readouterr().err == f"error: {error}\n"


def test_what_acts_on_a_terminal_is_shown_as_its_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("MLESS_TRACEBACK", raising=False)

    @one_line_errors
    def command() -> None:
        with plain_warnings():
            warnings.simplefilter("always")
            warnings.warn("red\x1b[31m", stacklevel=1)
        raise ValueError("no model '\x1b[2J\u202e'")

    with pytest.raises(SystemExit):
        command()
    assert capsys.readouterr().err == "warning: red\\x1b[31m\nerror: no model '\\x1b[2J\\u202e'\n"


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


def test_the_command_to_repeat_is_the_one_that_was_typed(monkeypatch: pytest.MonkeyPatch) -> None:
    for program, typed in (
        ("/env/bin/mless-interp", "mless-interp"),
        ("/env/mless_interp/__main__.py", "python -m mless_interp"),
    ):
        monkeypatch.setattr(sys, "argv", [program, "locate", "--seed", "3"])
        assert repeat_command() == f"{typed} locate --seed 3"
