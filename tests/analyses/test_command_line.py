"""What every analysis script shares: one line and exit code 2 for wrong input, lists of layers, a command to repeat."""

import shlex
import sys

import pytest

from mless_interp.command_line import chosen_heads, one_line_errors, repeat_command
from mless_interp.heads import Head


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
