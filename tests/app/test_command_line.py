"""What every command shares: options, beginning and ending, one line for wrong input, a command to repeat."""

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
from typing import Any, get_args

import pytest
from typer import Exit
from typer.testing import CliRunner

import mless_interp as mi
from mless_interp.__main__ import app
from mless_interp.app import COMMANDS
from mless_interp.app.command_line import (
    REQUIRED,
    Asking,
    Loading,
    Saving,
    chosen_heads,
    one_line_errors,
    option,
    plain_warnings,
    repeat_command,
)
from mless_interp.app.run_folder import program
from mless_interp.core.heads import Head
from mless_interp.prompts.problems import DEMO_PROBLEMS


@dataclass(frozen=True, kw_only=True)
class Options(Asking):
    """Of a script of one's own."""

    question: str = option(REQUIRED, "What is asked.")
    limit: int = 7
    out: Path = Path("results/own")


def run(main: Callable[[Any], None], *arguments: str, options: type[Saving] = Saving) -> Any:
    """A command that computes nothing and ends as `main` does."""

    def compute(options: Any) -> Any:
        main(options)
        raise Exit

    compute.__doc__, compute.__annotations__ = main.__doc__, {"options": options}
    return CliRunner().invoke(program("patch_heads", compute, lambda _: pytest.fail("shown")), arguments)


def call(line: str) -> Any:
    return CliRunner().invoke(app, shlex.split(line), prog_name="mless-interp")


def test_every_field_is_an_option_with_its_default_and_its_explanation() -> None:
    asked: list[Options] = []

    def main(options: Options) -> None:
        """What it does."""
        asked.append(options)

    done = run(main, "--question", "why", "--seed", "3", "--report", "--device", "cpu", options=Options)
    assert done.exit_code == 0, done.output
    assert asked == [Options(question="why", seed=3, report=True, device="cpu")]
    text = run(main, "--help", options=Options).output
    assert "What it does." in text and "What is asked." in text and "[default: 7" in " ".join(text.split())
    assert re.findall(r"(?m)^(\w[\w ]*):$", text) == ["Options", "How many", "Output", "Advanced"]
    assert text.index("--question") < text.index("--limit") < text.index("--out") < text.index("--shard")
    missing = run(main, options=Options)
    assert missing.exit_code == 2 and "Missing option '--question'" in missing.output


def test_nothing_heavy_is_loaded_for_help_or_refusal(tmp_path: Path) -> None:
    helps = [f"{name} --help" for name in (*COMMANDS, "check", "plan", "compare", "report")]
    code = (
        "import shlex, sys\nfrom mless_interp.__main__ import app\n"
        f"for line in {[*helps, *EARLY]!r}:\n    sys.argv = ['mless-interp', *shlex.split(line)]\n"
        "    try: app()\n    except SystemExit as end: print('ended', end.code)\n"
        "print([m for m in ('torch', 'pandas', 'matplotlib') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.endswith("[]\n")
    assert re.findall(r"(?m)^ended (\d)", done.stdout) == ["0"] * len(helps) + ["2"] * len(EARLY)


def test_how_a_model_is_to_be_loaded() -> None:
    usual = {"backend": "auto", "dtype": "float32", "tf32": True, "device": None, "device_map": None}
    assert Loading().loading() == usual | {"offload_folder": None, "attn_implementation": "eager"}
    more = {"max_memory": '{"0": "1GiB", "cpu": 5}', "quantization_config": '{"load_in_4bit": true}'}
    made = Loading(device_map='{"": "cpu"}', **more).loading()
    assert made["device_map"] == {"": "cpu"} and made["max_memory"] == {0: "1GiB", "cpu": 5}
    assert made["quantization_config"] == {"load_in_4bit": True}
    elsewhere = {"name", "trust_remote_code", "remote"}
    assert set(Loading(**more).loading()) == set(inspect.signature(mi.load_model).parameters) - elsewhere


def test_every_command_takes_all_that_loading_takes_and_every_number_says_its_least() -> None:
    commands = {each.name or each.callback.__name__: each.callback for each in app.registered_commands if each.callback}
    found = {name: inspect.signature(callback).parameters for name, callback in commands.items()}
    how = {field.name for field in dataclasses.fields(Loading)}
    assert set(found) == {*COMMANDS, "check", "plan", "report", "compare"}
    assert all(how <= set(found[name]) for name in (*COMMANDS, "check"))
    annotated = [get_args(each.annotation) for taken in found.values() for each in taken.values()]
    whole = [option.min for kind, option in filter(None, annotated) if int in (kind, *get_args(kind))]
    assert len(whole) > 50 and set(whole) == {0, 1, 2}


def finished(options: Saving, n: int = 2) -> None:
    """What a run leaves that kept `n` steps."""
    options.partial.mkdir(parents=True, exist_ok=True)
    (options.partial / "sweep.jsonl").write_text('{"settings": {}}\n' + '{"id": "a", "value": 1}\n' * n)


def test_a_stopped_run_says_what_it_kept_how_to_go_on_and_that_it_goes_on(tmp_path: Path) -> None:
    def main(options: Saving) -> None:
        finished(options)
        raise KeyboardInterrupt

    done = run(main, "--out", str(tmp_path / "x"))
    assert done.exit_code == 130
    assert done.stderr == (
        f"Stopped: 2 finished steps kept in {tmp_path}/.x.partial; the same command goes on from there\n"
    )
    again = run(main, "--out", str(tmp_path / "x")).stderr
    assert again.startswith(f"going on from 2 finished steps, kept in {tmp_path}/.x.partial ...\n")


def test_a_run_that_ends_before_anything_finished_leaves_no_hidden_folder(tmp_path: Path) -> None:
    def stopped(options: Saving) -> None:
        finished(options, 0)
        raise KeyboardInterrupt

    done = run(stopped, "--out", str(tmp_path / "deep" / "x"))
    assert done.stderr == "Stopped: nothing had finished yet; the same command starts again\n"
    assert [*tmp_path.rglob("*")] == [tmp_path / "deep"]
    (tmp_path / "precious.txt").write_text("mine")
    done = run(lambda options: pytest.fail("it began"), "--out", str(tmp_path))
    assert done.exit_code == 2 and done.output.startswith("Error: the folder") and "--overwrite" in done.output


# -------------------------------------------------------------------------------------- command lines that are not read

EARLY = {
    "locat": "No such command 'locat'.*locate",
    "locate --limt 2": "No such option: --limt .*--limit",
    "figures": "Missing option '--figure'",
    "locate --n-tokens 0": "Invalid value for '--n-tokens'",
    "profiles --insertion meaningles": "Invalid value for '--insertion'.*'meaningles' is not one of 'meaningless', '",
    "locate --model ./nope": "Invalid value for '--model': there is no directory",
    "accuracy --problems math50": "Invalid value for '--problems': there is no file .*did you mean math500",
    "locate --contrast held": "unknown contrast to locate heads by 'held'; choose one of content, computed",
    "locate --contrast computed --answers 2": "--answers grades texts and cuts heads off from the span: --contrast content",
    "locate --edit z": "--direction and --edit go with --mode sweep",
    "locate --mode sweep --confirm 4": "--by, --confirm and --answers are about named heads",
    "locate --confirm 1": "--confirm takes 2 or more problems, got 1",
    "locate --limit 500 --confirm 60 --answers 9": "--limit 500 and --confirm 60 and --answers 9 need 569 problems",
    "locate --place before-qestion": "--place: 'before-qestion' is no place .did you mean before-question",
    "locate --by level2": "--by level2: problem '.*' has nothing under that key; it has .*level",
    "locate --device cud": "--device: 'cud' is no device",
    "locate --device-map {x": "--device-map: expected JSON as --help shows, got",
    "locate --wait 3": "--wait: no effect without --shard; leave it out",
    "mechanism --layers x": "cannot read 'x' as layers",
    "circuit demo --heads L0H2 --confirm 4": "--confirm must be 0 with --heads, got 4",
    "circuit demo --without egdes": "unknown part to leave out 'egdes'; .*did you mean edges",
    "circuit demo --heads 0:1 --without direct,edges,sites,positions,writes,sets,transfer": "--without leaves out every",
    "profiles --conditions insertd": "unknown condition 'insertd'; .*did you mean inserted",
    "accuracy --treatments none@after-question": ".*none inserts nothing, so it has no place",
}
"""What is refused before torch is imported."""
WRONG = EARLY | {
    "locate --heads 0:99": "L0H99: query head 99 is out of range",
    "dose --layer 50": "--layer 50 is out of range .zero-based.: the model has layers 0 to 3",
    "locate --attention sdpa --backend bridge": "attn_implementation needs backend='nnsight', got 'bridge'",
    "profiles --insertion meaningful --unit ''": "meaningful needs the word to insert, which is empty",
    "accuracy --treatments none,none": "the treatment 'none' is named twice",
    "locate --unit zzqx": "the insertion 'zzqx' becomes the unknown token",
    "profiles --n-tokens 5000": "5000 tokens to insert do not fit demo, which has a context of 512",
    "figures --figure 000 --model gemma-3-4b-it=demo": "Figure 13 shows Qwen2.5-Math-7B: write --model NAME=DIRECTORY",
}


@pytest.mark.parametrize("line", WRONG)
def test_wrong_input_is_one_plain_line_before_weights_are_read(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setattr(
        "mless_interp.models.hugging_face.load_hugging_face", lambda *_, **__: pytest.fail("weights were read")
    )
    done = call(line)
    said = done.stderr.splitlines()
    assert done.exit_code == 2 and re.match(f"(?i:error): ({WRONG[line]})", said[-1]), done.stderr
    assert "\x1b" not in done.stderr and not any(tmp_path.glob("*/*"))


def test_problems_that_are_wrong_are_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    wrong = json.loads(DEMO_PROBLEMS.read_text().splitlines()[0]) | {"answer": " "}
    (tmp_path / "p.jsonl").write_text("\n".join(json.dumps(wrong | {"unique_id": each}) for each in "abcd"))
    done = call("locate --backend bridge --problems p.jsonl --limit 2 --answers 2 --out out --no-progress")
    assert done.exit_code == 2 and "no answer to grade" in done.stderr and done.stderr.count("Error: ") == 1, (
        done.stderr
    )
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ValueError("a message\n  over two lines\x1b[31m\u202e"), "a message over two lines\\x1b[31m\\u202e"),
        (ValueError(), "ValueError"),
        (MemoryError("memory ran out"), "memory ran out"),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling"), "CUDA error: CUBLAS_STATUS_ALLOC_FAILED"),
    ],
)
def test_wrong_input_and_full_memory_end_with_one_line_and_warnings_are_one_line(
    error: Exception, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    @one_line_errors
    def command() -> None:
        with plain_warnings():
            warnings.simplefilter("always")
            warnings.warn("red\x1b[31m\nlines", stacklevel=1)
            raise error

    monkeypatch.delenv("MLESS_TRACEBACK", raising=False)
    shown = warnings.showwarning
    with pytest.raises(SystemExit) as ended:
        command()
    warned, told = capsys.readouterr().err.splitlines()
    assert warned == "warning: red\\x1b[31m lines" and warnings.showwarning is shown
    assert ended.value.code == 2 and told.startswith(f"Error: {said}")


def test_the_command_to_repeat_is_the_one_that_was_typed_and_that_of_a_shard_the_whole_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    arguments = ["analyses/patch_heads.py", "--unit", " /", "--out", "a 'b' $c"]
    monkeypatch.setattr(sys, "argv", arguments)
    assert shlex.split(repeat_command()) == ["python", *arguments]
    for path, typed in (
        ("/env/bin/mless-interp", "mless-interp"),
        ("/env/mless_interp/__main__.py", "python -m mless_interp"),
    ):
        monkeypatch.setattr(sys, "argv", [path, "locate", "--shard", "0/2", "--wait=9", "--seed", "3"])
        assert repeat_command() == f"{typed} locate --seed 3"


def test_heads_and_layers() -> None:
    info = (4, 2)
    assert chosen_heads(None, None, info) is None
    assert chosen_heads("2:1,0:0, L1H1") == (Head(2, 1), Head(0, 0), Head(1, 1))
    for text, layers in {"0": [0], "0,2-3": [0, 2, 3], "1-1": [1], " 2 , 0-1 ": [0, 1, 2]}.items():
        assert chosen_heads(None, text, info) == tuple(Head(layer, head) for layer in layers for head in range(2))
    for text in ("", "0,", "3-1"):
        with pytest.raises(ValueError, match=r"cannot read '.*' as layers: write 0,2-4 \(zero-based\)"):
            chosen_heads(None, text)
    for given in (("0:0", "0"), (" ", None), ("0:0,x", None), (None, "2-4")):
        with pytest.raises(ValueError, match="give --heads or --layers, not both|cannot read|layer 4 is out of range"):
            chosen_heads(*given, info)
