"""`mless-interp plan`: a run's seconds and memory on this machine or another, before it is started."""

import dataclasses
import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any

from typer import Argument, Option

from .command_line import (
    ATTENTIONS,
    BACKENDS,
    DTYPES,
    Inserting,
    OutcomeOption,
    Saving,
    between,
    chosen_insertion,
    is_model,
    listed,
    one_of_names,
    tell,
)

LIMITS = {"sweep": 32, "locate": 64, "profiles": 32, "mechanism": 32, "accuracy": 500, "circuit": 64}
"""How many problems each analysis takes where nothing else is asked for."""
TREATMENTS = {"meaningless": "mless", "meaningful": "mful", "random_sentence": "random_sentence"}
"""Kinds of insertion -> treatments of `mless-interp accuracy`."""
NOT_ASKED = {field.name for field in dataclasses.fields(Saving)} - {"seed"} | {
    *("tf32", "device_map", "max_memory", "offload_folder", "quantization_config")
}
"""Options of other commands that make no difference to a plan."""


@dataclass(frozen=True, kw_only=True)
class Options(Inserting):
    """What can be asked."""

    model: Annotated[
        str,
        Argument(
            callback=is_model, help="'demo', a directory with config.json and tokenizer, weights or not; a hub id."
        ),
    ]
    what: Annotated[str, Argument(metavar="[WHAT]", callback=one_of_names(*LIMITS), help=f"{', '.join(LIMITS)}.")] = (
        "locate"
    )
    limit: Annotated[int | None, Option(min=1, help="How many problems. [default: the analysis' own]")] = None  # type: ignore[assignment]
    outcome: OutcomeOption = "answer_logprob"
    backend: Annotated[
        str | None,
        Option(callback=one_of_names(*BACKENDS), help=f"{listed(BACKENDS)}. [default: what suits the size]"),
    ] = None  # type: ignore[assignment]
    dtype: Annotated[
        str | None, Option(callback=one_of_names(*DTYPES), help=f"{listed(DTYPES)}. [default: float32 if it fits]")
    ] = None  # type: ignore[assignment]
    attention: Annotated[
        str | None,
        Option(callback=one_of_names(*ATTENTIONS), help="eager or sdpa (nnsight). [default: what suits the size]"),
    ] = None  # type: ignore[assignment]
    memory: Annotated[str | None, Option(help="Of a GPU that is not here, with --tflops: 80GB.")] = None
    tflops: Annotated[
        float | None, Option(callback=between(0.0), help="Of a GPU that is not here: 10^12 operations a second.")
    ] = None
    max_new_tokens: Annotated[
        int | None, Option(min=1, help="accuracy: longest answer. [default: longest solution]")
    ] = None
    as_json: Annotated[bool, Option("--json", help="Print everything as JSON.")] = False


def plan(options: Options) -> None:
    """Estimate a run's time and memory before it is started, and print the command that starts it.

    Where the weights are here, a few problems are run and timed; elsewhere operations are counted from config.json.
    """
    what, memory = options.what, options.memory
    wanted = (options.limit or LIMITS[what]) * (2 if what == "circuit" else 1)
    questions = replace(options, limit=wanted).questions()
    from accelerate.utils import convert_file_size_to_int

    from .planned import plan_run

    chosen = {name: getattr(options, name) for name in ("backend", "dtype", "device", "attention", "tflops")}
    chosen["memory"] = None if memory is None else convert_file_size_to_int(memory)
    given: dict[str, Any] = {"n_tokens": options.n_tokens, "seed": options.seed, "place": options.place}
    filler = chosen_insertion(options.insertion, options.unit, **given, pool=options.pool)
    asked = {name: getattr(options, name) for name in ("template", "outcome", "max_new_tokens")}
    found = plan_run(options.model, questions, filler, what=what, **asked, **chosen)
    found = replace(found, command=_command(options, found.chosen))
    tell(json.dumps(found.to_dict(), indent=1) if options.as_json else repr(found))


def _command(options: Options, chosen: Mapping[str, str]) -> str:
    """Return the command of these options, as it is to be typed, with all that was chosen."""
    apart = ("model", "what", "memory", "tflops", "as_json")
    fields = [field for field in dataclasses.fields(options) if field.name not in apart]
    given = {each.name: value for each in fields if (value := getattr(options, each.name)) != each.default}
    what, model = options.what, options.model
    begin = {"sweep": ["locate", "--mode", "sweep"], "circuit": ["circuit", model]}
    words = begin.get(what, [what]) + ([] if what == "circuit" else ["--model", model])
    if what == "accuracy":
        kind = given.pop("insertion", "meaningless")
        if kind not in TREATMENTS:
            raise ValueError(f"accuracy answers under {', '.join(TREATMENTS)}, not {kind!r}")
        given["treatments"] = f"none,{TREATMENTS[kind]}"
        if kind == "meaningful" and "unit" in given:
            given["word"] = given.pop("unit")
    if what == "circuit" and "limit" in given:
        given["confirm"] = given["limit"]
    if what == "profiles" and "unit" in given:
        given["insertion"] = f"{given.get('insertion', 'meaningless')}={given.pop('unit')}"
    if what == "profiles":
        given["twins"] = "0"  # the plan is of the model alone
    given |= {name: value for name, value in chosen.items() if (name, value) != ("device", "GPU elsewhere")}
    return shlex.join(
        ["mless-interp", *words, *(f"--{name.replace('_', '-')}={value}" for name, value in given.items())]
    )
