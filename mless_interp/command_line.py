"""What every analysis script shares: its options, one line for wrong input, lists of heads, a command to repeat.

An option that several scripts take is an annotation here, so that it has one name and one explanation everywhere:
`def main(model: mi.command_line.ModelOption = "demo")`; the default stands in the script.
"""

import functools
import os
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

from typer import Option

from .heads import Head
from .prompts.problems import Problem, load_problems

ModelOption = Annotated[str, Option(help="'demo' (bundled), a saved model's directory, or a hub id.")]
BackendOption = Annotated[str, Option(help="auto, hooked_transformer, bridge or nnsight.")]
DtypeOption = Annotated[str, Option(help="float32, float64, bfloat16 or float16.")]
DeviceOption = Annotated[str | None, Option(help="cpu, cuda, cuda:1 ... [default: a GPU if there is one]")]
ProblemsOption = Annotated[
    str | None,
    Option(help="'demo', 'math500' (from the hub), or a .jsonl file with MATH-500's keys. [default: the model's own]"),
]
LimitOption = Annotated[int, Option(help="How many problems, from the first (the unit of replication is the problem).")]
TemplateOption = Annotated[str, Option(help="raw, raw_as_sent (the paper's doubled braces) or chat.")]
InsertionOption = Annotated[str, Option(help="meaningless, meaningful, random_sentence, repeated_bos or text.")]
UnitOption = Annotated[str | None, Option(help="The repeated unit, word, or the text. [default: ' /' or 'he']")]
NTokensOption = Annotated[int, Option(help="Length of the insertion in tokens.")]
LayersOption = Annotated[str | None, Option(help="Only these layers, zero-based: 0,2-4.")]
HeadsOption = Annotated[str | None, Option(help="Only these heads, zero-based LAYER:HEAD: 0:13,0:21.")]
SeedOption = Annotated[int, Option(help="Seed of all that is drawn: random insertions, permutations, the bootstrap.")]
OutOption = Annotated[Path, Option(help="Folder for the results; it appears only when they are whole.")]
OverwriteOption = Annotated[bool, Option("--overwrite", help="Replace an existing folder.")]
NoProgressOption = Annotated[bool, Option("--no-progress", help="No progress bars.")]
ReportOption = Annotated[
    bool,
    Option(
        "--report",
        help="Also write report.html: findings, tables that sort, pictures, provenance; opens without network.",
    ),
]


def one_line_errors(command: Callable[..., Any]) -> Callable[..., Any]:
    """Wrong input ends the program with one line on standard error and exit code 2.

    Set MLESS_TRACEBACK=1 to see where it came from.
    """

    @functools.wraps(command)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        try:
            return command(*args, **kwargs)
        except (ValueError, TypeError, OSError) as error:
            if os.environ.get("MLESS_TRACEBACK"):
                raise
            text = " ".join(str(error).split()) or type(error).__name__
            sys.stderr.write(f"error: {text}\n")
            raise SystemExit(2) from error

    return wrapped


def chosen_heads(heads: str | None, layers: str | None, *, n_layers: int, n_heads: int) -> tuple[Head, ...] | None:
    """Heads from `--heads 0:13,0:21` and/or `--layers 0,2-4` (zero-based); None means all.

    >>> chosen_heads("0:1", None, n_layers=2, n_heads=2)
    (L0H1,)
    >>> chosen_heads(None, "0-1", n_layers=4, n_heads=1)
    (L0H0, L1H0)
    """
    if heads is not None and layers is not None:
        raise ValueError("give --heads or --layers, not both")
    if heads is not None:
        return tuple(Head.parse(part) for part in heads.split(",") if part.strip())
    if layers is None:
        return None
    found: list[int] = []
    for part in layers.split(","):
        first, dash, last = part.strip().partition("-")
        last = last if dash else first
        if not (first.isdecimal() and last.isdecimal()) or int(first) > int(last):
            raise ValueError(f"cannot read {part!r} as layers: write 0,2-4 (zero-based)")
        found += range(int(first), int(last) + 1)
    for layer in found:
        if layer >= n_layers:
            raise ValueError(f"layer {layer} is out of range (zero-based): the model has layers 0 to {n_layers - 1}")
    return tuple(Head(layer, head) for layer in sorted(set(found)) for head in range(n_heads))


def chosen_numbers(text: str, *, name: str) -> tuple[int, ...]:
    """Whole numbers from an option such as `--doses 1,2,4`.

    >>> chosen_numbers("1,2,4", name="--doses")
    (1, 2, 4)
    """
    parts = [part.strip() for part in text.split(",")]
    wrong = [part for part in parts if not part.isdecimal()]
    if wrong:
        raise ValueError(f"{name}: cannot read {wrong[0]!r} as a number of tokens: write 1,2,4")
    return tuple(int(part) for part in parts)


def chosen_problems(problems: str | None, model: str, *, limit: int) -> tuple[Problem, ...]:
    """The first `limit` problems of `--problems`; without it those that a model's directory brings along, or the demo's."""
    own = Path(model) / "problems.jsonl"
    return load_problems(problems or (str(own) if own.is_file() else "demo"), limit=limit)


def repeat_command() -> str:
    """The command that started this program, ready to paste."""
    return shlex.join(["python", *sys.argv])
