"""`mless-interp plan`: what a run takes on this machine or another, before any weight is here."""

import json
import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Argument, Option

from ..command_line import (
    BACKENDS,
    DeviceOption,
    InsertionOption,
    LengthOption,
    NAnswerOption,
    NBeforeOption,
    NContextOption,
    OutcomeOption,
    PlaceOption,
    ProblemsOption,
    SeedOption,
    TemplateOption,
    UnitOption,
    between,
    chosen_insertion,
    chosen_problems,
    fewer_than,
)

LIMITS = {"sweep": 32, "locate": 64, "profiles": 32, "mechanism": 32, "accuracy": 500}
"""How many problems each analysis takes where nothing else is asked for."""
PLANNED = ", ".join(LIMITS)


def plan(
    model: Annotated[
        str,
        Argument(
            metavar="MODEL", help="'demo', a directory with config.json and tokenizer (weights or not), a hub id."
        ),
    ],
    what: Annotated[str, Argument(metavar="[WHAT]", help=f"{PLANNED}.")] = "locate",
    problems: ProblemsOption = None,
    limit: Annotated[
        int | None, Option(min=1, help="How many problems, from the first. [default: the analysis' own]")
    ] = None,
    n_before: NBeforeOption = None,
    n_context: NContextOption = None,
    n_answer: NAnswerOption = None,
    template: TemplateOption = "raw",
    insertion: InsertionOption = "meaningless",
    unit: UnitOption = None,
    n_tokens: LengthOption = None,
    place: PlaceOption = "before-question",
    outcome: OutcomeOption = "answer_logprob",
    backend: Annotated[str | None, Option(help=f"{BACKENDS}. [default: what suits the size]")] = None,
    dtype: Annotated[
        str | None, Option(help="float32, float64, bfloat16 or float16. [default: float32 where it fits]")
    ] = None,
    device: DeviceOption = None,
    attention: Annotated[str | None, Option(help="eager or sdpa (nnsight). [default: what suits the size]")] = None,
    memory: Annotated[str | None, Option(help="Of a GPU that is not here, with --tflops: 80GB.")] = None,
    tflops: Annotated[
        float | None,
        Option(
            callback=between(0.0), help="Of a GPU that is not here: 10^12 operations a second in the chosen precision."
        ),
    ] = None,
    treatments: Annotated[
        int | None, Option(min=1, help="accuracy: how often the problems are answered. [default: 2]")
    ] = None,
    max_new_tokens: Annotated[int | None, Option(min=1, help="accuracy: longest answer.")] = None,
    named: Annotated[
        int | None,
        Option(min=1, help="locate: heads that are supposed to be named, which controls are of. [default: 5]"),
    ] = None,
    price: Annotated[
        float | None, Option(callback=between(0.0), help="Of an hour on the machine, to say what the run costs.")
    ] = None,
    seconds: Annotated[float, Option(callback=between(0.0), help="How long real code may be timed, about.")] = 20.0,
    seed: SeedOption = 0,
    json_file: Annotated[
        Path | None, Option("--json", help="Also write everything to this file ('-': only that, here).")
    ] = None,
) -> None:
    """Say what a run takes before it is started: memory, time, what fits where, the command. Needs no weights.

    Parameters are counted from config.json, tokens with the tokenizer, operations from both; times come from the real code
    on a few random layers of the same geometry, on this machine. What is an estimate is called one.
    """
    from ..planning import plan_run
    from ..planning.needed import parsed_bytes
    from ..planning.planned import N_NAMED

    if what not in LIMITS:
        raise ValueError(f"unknown analysis {what!r}; choose one of {PLANNED}")
    printed = json_file is not None and str(json_file) == "-"
    if json_file is not None and not printed:
        _check_writable(json_file)
    of_one = {"treatments": ("accuracy", treatments), "max-new-tokens": ("accuracy", max_new_tokens)}
    for option, (analysis, given) in (of_one | {"named": ("locate", named)}).items():
        if given is not None and what != analysis:
            raise ValueError(f"--{option} is for {analysis}, and {what} has no use for it: leave it out")
    sizes = {"n_before": n_before, "n_context": n_context, "n_answer": n_answer}
    wanted = LIMITS[what] if limit is None else limit
    questions = chosen_problems(problems, model, limit=wanted, **sizes)
    if few := fewer_than(wanted, len(questions)):
        sys.stderr.write(f"{few}\n")
    filler = chosen_insertion(insertion, unit, n_tokens=n_tokens, seed=seed, problems=questions, place=place)
    options: dict[str, Any] = {"backend": backend, "dtype": dtype, "device": device, "attention": attention}
    found = plan_run(
        model,
        questions,
        filler,
        what=what,
        template=template,
        outcome=outcome,
        memory=None if memory is None else parsed_bytes(memory),
        tflops=tflops,
        n_treatments=2 if treatments is None else treatments,
        max_new_tokens=max_new_tokens,
        n_named=N_NAMED if named is None else named,
        price=price,
        seconds=seconds,
        source={"problems": problems, **sizes},
        **options,
    )
    as_json = json.dumps(found.to_dict(), indent=1)
    if printed:
        sys.stdout.write(f"{as_json}\n")
        return
    first, _, rest = repr(found).partition("\n")
    typer.secho(first, bold=True)
    typer.echo(rest)
    if json_file is not None:
        json_file.write_text(as_json, encoding="utf-8")


def _check_writable(file: Path) -> None:
    """`OSError` where a file of that name could not be written, before anything is timed."""
    folder = file.resolve().parent
    if not folder.is_dir():
        raise FileNotFoundError(f"--json {file}: there is no folder {str(folder)!r}")
    if file.is_dir():
        raise IsADirectoryError(f"--json {file}: it is a folder; name a file")
    if not os.access(file if file.exists() else folder, os.W_OK):
        raise PermissionError(f"--json {file}: it may not be written there; name another file")
