"""Commands that leave no run of their own: `check` and `plan` of a model, `compare` of finished runs."""

import dataclasses
import os
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import typer
from typer import Argument

from ..prompts.problems import load_problems
from . import command_line as line
from .circuit import N_CONFIRM
from .run_folder import check_run, read

NOT_PLANNED = set("tf32 device_map max_memory offload_folder quantization_config".split())
NOT_PLANNED |= {field.name for field in dataclasses.fields(line.Saving)} - {"seed"}
"""Options of other commands that make no difference to a plan."""
PLANNED = tuple("sweep locate profiles mechanism accuracy circuit".split())


@dataclass(frozen=True, kw_only=True)
class Checking(line.Loading):
    """The options of `check`."""

    model: str = line.argument(line.REQUIRED, line.MODEL_HELP, callback=line.is_model, metavar="MODEL")
    problems: str | None = line.option(None, "A .jsonl file of problems. [default: small sums]", callback=line.is_file)
    n_prompts: int = line.option(3, "Number of prompts: the shortest, one also with the span after it.", min=1)
    no_progress: bool = line.option(False, "No progress bars.", "--no-progress")


def check(options: Checking) -> None:
    """Check a model on a backend: the self-check at loading and the exact identities, on a few short prompts.

    Prints the number of passed lines and the first lines, failed ones before the others: the largest error, the
    tolerance, what holds, and why lines failed or do not apply. Exit code 0 if all is well, 1 if anything fails, 2 for wrong
    input.
    """
    from ..ground_truth.certificate import certify_model, short_pairs
    from ..models.checks import FailedCheck
    from ..models.load import load_model

    given = options.problems
    asked = None if given is None else sorted(load_problems(given), key=lambda problem: len(problem.question))
    try:
        model = load_model(options.model, **options.loading())
        pairs = short_pairs(model, asked, options.n_prompts)
        certificate = certify_model(model, pairs, progress=not options.no_progress)
        line.tell("\n".join([*certificate.lines(), *certificate.reasons()]))
        passed = certificate.passed
    except FailedCheck as error:
        line.tell(f"{error}\n1 failed: the self-check at loading. Do not trust results of this model on this backend")
        passed = False
    raise typer.Exit(0 if passed else 1)


@dataclass(frozen=True, kw_only=True)
class Planning(line.Inserting):
    """The options of `plan`."""

    model: str = line.argument("demo", line.MODEL_HELP, callback=line.is_model, metavar="MODEL")
    what: str = line.argument(
        "locate",
        f"{', '.join(PLANNED)}, or a study (its name or .toml file).",
        metavar="WHAT",
        callback=lambda what: line.is_study(what, or_of=PLANNED),
    )
    limit: int | None = line.option(None, "Number of problems. [default: the analysis' own]", min=1)  # type: ignore[assignment]
    confirm: int | None = line.option(None, "locate, circuit: fresh problems. [default: the analysis' own]", min=0)
    answers: int | None = line.option(None, "A study: problems to answer; 0: none. [default: the file's]", min=0)
    template: str | None = line.option(None, "How prompts are made. [default: raw, or the study's]", of="templates")  # type: ignore[assignment]
    seed: int | None = line.option(None, "Of insertions that are drawn. [default: 0, or the study's]", min=0)  # type: ignore[assignment]
    outcome: str = "answer_logprob"
    backend: str | None = line.option(None, "[default: what suits the size]", of="backends")  # type: ignore[assignment]
    dtype: line.Dtype | None = line.option(None, "[default: float32 if it fits]")  # type: ignore[assignment]
    attention: line.Attention | None = line.option(None, "[default: what suits the size]")  # type: ignore[assignment]
    memory: str | None = line.option(None, "Memory of a GPU that is not here (with --tflops): 80GB.")
    tflops: float | None = line.option(None, "Speed of that GPU, in 10^12 operations a second.", min=1e-9)
    max_new_tokens: int | None = line.option(None, "accuracy: longest answer. [default: longest solution]", min=1)


def plan(options: Planning) -> None:
    """Estimate a run's time and memory before it is started, and print the options that loading takes.

    Where the weights are here, a few problems are run and timed; elsewhere operations are counted from config.json.
    """
    how: line.Arguments = options.chosen(*"max_new_tokens backend dtype device attention tflops".split())
    if options.what in PLANNED:
        wanted = options.limit or line.LIMITS.get(options.what, line.Asking.limit)
        fresh = N_CONFIRM * (options.what == "circuit") if options.confirm is None else options.confirm
        if options.answers is not None:
            raise ValueError(f"--answers goes with a study, not with {options.what}")
        if fresh and options.what not in ("locate", "circuit"):
            raise ValueError(f"--confirm goes with locate and circuit, not with {options.what}")
        unused = {"accuracy": "outcome", "profiles": "outcome max_new_tokens"}.get(options.what, "max_new_tokens")
        options.only_defaults(unused, f"no effect on {options.what}")
        questions = replace(options, limit=wanted + fresh).questions()
        insertion = options.filler(seed=options.seed or 0)
        how |= options.chosen("what", "outcome") | {"insertion": insertion, "n_fresh": fresh}
        how["template"] = options.template or "raw"
    else:
        options.only_defaults("insertion unit place outcome max_new_tokens", "the study's file says it")
        from .study_runner import read_study

        changes = options.chosen(*"problems limit confirm n_tokens template answers".split())
        seeds = None if options.seed is None else (options.seed,)
        study = read_study(options.what).with_changes(**changes, seeds=seeds)
        questions = line.problems_of(options.model, study.problems, limit=study.n_read)
        how["what"] = study
    from accelerate.utils import convert_file_size_to_int

    from .estimates import plan_run

    memory = None if options.memory is None else convert_file_size_to_int(options.memory)
    found = plan_run(options.model, questions, memory=memory, **how)
    line.tell(repr(found))


def compare(
    folders: Annotated[list[Path], Argument(metavar="DIR DIR ...", help="The --out of two or more finished runs.")],
) -> None:
    """Compare finished runs of one analysis: of several models, insertions or lengths.

    Runs of locate (or sweeps): the total effect, and every head that a run names, with its verdict and its number of
    problems. Runs of accuracy: the share of right answers under each treatment. Nothing is computed again and no model is
    loaded; each run is judged by its own problems, and no test is made between runs. In Python, `mi.compare_runs` returns
    what is printed: `.table().to_csv(...)`, `.heads()`, `.plot()`.
    """
    if len({os.path.realpath(folder) for folder in folders}) < len(folders) or len(folders) < 2:
        raise ValueError("compare takes two or more folders of finished runs, each once")
    for folder in folders:
        check_run(folder)  # before pandas and torch are imported
    from ..runtime.columns import TextTable
    from .runs_compared import compare_runs

    with line.plain_warnings():
        found = compare_runs({str(folder): read(folder).results for folder in folders})
        said, heads = found.lines(), found.heads()
        if len(heads):
            said += TextTable.of(heads, "").lines(width=sys.maxsize)  # every run, every head
        line.tell("\n".join(said))
