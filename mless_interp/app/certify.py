"""`mless-interp check`: a certificate for a model on a backend."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from typer import Option

from .command_line import Loading, ModelArgument, is_file, tell


@dataclass(frozen=True, kw_only=True)
class Options(Loading):
    """What can be asked."""

    model: ModelArgument
    problems: Annotated[
        str | None,
        Option(
            callback=is_file,
            help="A .jsonl file with MATH-500's keys to take the prompts from. [default: three small sums]",
        ),
    ] = None
    n_prompts: Annotated[
        int,
        Option(min=1, help="Number of prompts: the shortest problems, one of them also with the span after it."),
    ] = 3
    json_file: Annotated[Path | None, Option("--json", help="Also write the certificate to this file.")] = None
    no_progress: Annotated[bool, Option("--no-progress", help="No progress bars.")] = False


def check(options: Options) -> None:
    """Check a model on a backend: the self-check at loading and the exact identities, on a few short prompts.

    Prints the number of passed lines and the first lines, failed ones before the others: the largest error, the
    tolerance for this dtype and backend, what holds; and why lines failed or do not apply. --json writes all. Exit code 0
    if all is well, 1 if anything fails, 2 for wrong input.
    """
    from ..ground_truth.certificate import as_json, certify_model, short_pairs
    from ..models.checks import FailedCheck
    from ..models.load import load_model
    from ..prompts.problems import load_problems

    json_file, n_prompts = options.json_file, options.n_prompts
    if json_file is not None and not json_file.resolve().parent.is_dir():
        raise FileNotFoundError(f"--json {json_file}: there is no folder {str(json_file.resolve().parent)!r}")
    asked = None
    if options.problems is not None:
        asked = sorted(load_problems(options.problems), key=lambda problem: len(problem.question))[:n_prompts]
    try:
        loaded = load_model(options.model, **options.loading())
    except FailedCheck as error:
        if json_file is not None:
            json_file.write_text(json.dumps({"passed": False, "error": str(error)}, indent=1), encoding="utf-8")
        tell(f"{error}\n1 failed: the self-check at loading. Do not trust results of this model on this backend")
        raise typer.Exit(1) from error
    certificate = certify_model(loaded, short_pairs(loaded, asked, n_prompts), progress=not options.no_progress)
    tell("\n".join([*certificate.lines(), *certificate.reasons()]))
    if json_file is not None:
        json_file.write_text(as_json(certificate), encoding="utf-8")
    raise typer.Exit(0 if certificate.passed else 1)
