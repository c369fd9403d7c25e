"""`mless-interp plan`: a run's seconds and memory on this machine or another, before it is started."""

import dataclasses
import json
import shlex
from dataclasses import dataclass, replace
from typing import Annotated, Literal

from typer import Argument, Option

from .command_line import Attention, Backend, Dtype, Inserting, ModelArgument, OutcomeOption, Saving, tell

LIMITS = {"sweep": 32, "locate": 64, "profiles": 32, "mechanism": 32, "accuracy": 500, "circuit": 64}
"""How many problems each analysis takes where nothing else is asked for."""
NOT_ASKED = {field.name for field in dataclasses.fields(Saving)} - {"seed"} | {
    *("tf32", "device_map", "max_memory", "offload_folder", "quantization_config")
}
"""Options of other commands that make no difference to a plan."""


@dataclass(frozen=True, kw_only=True)
class Options(Inserting):
    """What can be asked."""

    model: ModelArgument
    what: Annotated[
        Literal["sweep", "locate", "profiles", "mechanism", "accuracy", "circuit"],
        Argument(metavar="WHAT", help="sweep, locate, profiles, mechanism, accuracy or circuit."),
    ] = "locate"
    limit: Annotated[int | None, Option(min=1, help="Number of problems. [default: the analysis' own]")] = None  # type: ignore[assignment]
    outcome: OutcomeOption = "answer_logprob"
    backend: Annotated[Backend | None, Option(help="[default: what suits the size]")] = None  # type: ignore[assignment]
    dtype: Annotated[Dtype | None, Option(help="[default: float32 if it fits]")] = None  # type: ignore[assignment]
    attention: Annotated[Attention | None, Option(help="[default: what suits the size]")] = None  # type: ignore[assignment]
    memory: Annotated[str | None, Option(help="Of a GPU that is not here, with --tflops: 80GB.")] = None
    tflops: Annotated[float | None, Option(min=1e-9, help="Of a GPU that is not here: 10^12 operations a second.")] = (
        None
    )
    max_new_tokens: Annotated[
        int | None, Option(min=1, help="accuracy: longest answer. [default: longest solution]")
    ] = None
    as_json: Annotated[bool, Option("--json", help="Print everything as JSON.")] = False


def plan(options: Options) -> None:
    """Estimate a run's time and memory before it is started, and print the options that loading takes.

    Where the weights are here, a few problems are run and timed; elsewhere operations are counted from config.json.
    """
    what, memory = options.what, options.memory
    wanted = (options.limit or LIMITS[what]) * (2 if what == "circuit" else 1)
    questions = replace(options, limit=wanted).questions()
    from accelerate.utils import convert_file_size_to_int

    from .planned import plan_run

    asked = "template outcome max_new_tokens backend dtype device attention tflops".split()
    found = plan_run(
        options.model,
        questions,
        options.filler(),
        what=what,
        memory=None if memory is None else convert_file_size_to_int(memory),
        **{name: getattr(options, name) for name in asked},
    )
    chosen = {name: value for name, value in found.chosen.items() if value != "GPU elsewhere"}
    found = replace(found, command=shlex.join(f"--{name}={value}" for name, value in chosen.items()))
    tell(json.dumps(found.to_dict(), indent=1) if options.as_json else repr(found))
