"""`mless-interp check`: a certificate for a model on a backend."""

import json
import sys
from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from ..command_line import (
    AttentionOption,
    BackendOption,
    DeviceMapOption,
    DeviceOption,
    DtypeOption,
    MaxMemoryOption,
    NoProgressOption,
    OffloadFolderOption,
    QuantizationOption,
    placement,
)


def check(
    model: Annotated[str, Argument(metavar="MODEL", help="'demo' (bundled), a saved model's directory, or a hub id.")],
    backend: BackendOption = "auto",
    dtype: DtypeOption = "float32",
    device: DeviceOption = None,
    device_map: DeviceMapOption = None,
    max_memory: MaxMemoryOption = None,
    offload_folder: OffloadFolderOption = None,
    quantization_config: QuantizationOption = None,
    attention: AttentionOption = "eager",
    problems: Annotated[
        str | None,
        Option(help="A .jsonl file with MATH-500's keys to take the prompts from. [default: three small sums]"),
    ] = None,
    n_prompts: Annotated[
        int, Option(help="How many prompts: the shortest of the problems, one of them also with the span after it.")
    ] = 3,
    json_file: Annotated[Path | None, Option("--json", help="Also write the certificate to this file.")] = None,
    no_progress: NoProgressOption = False,
) -> None:
    """Check a model on a backend: the self-check at loading and the exact identities, on a few short prompts.

    Prints a certificate: what each line says, the largest error, the tolerance for this dtype and backend, pass or FAIL, or
    why it does not apply. Exit code 0 if all is well, 1 if anything fails, 2 for wrong input.
    """
    from ..identities.certificate import as_json, certify_model, short_pairs
    from ..models.checks import FailedCheck
    from ..models.load import load_model
    from ..prompts.problems import load_problems

    if json_file is not None and not json_file.resolve().parent.is_dir():
        raise FileNotFoundError(f"--json {json_file}: there is no folder {str(json_file.resolve().parent)!r}")
    if n_prompts < 1:
        raise ValueError(f"--n-prompts must be 1 or more, got {n_prompts}")
    asked = None
    if problems is not None:
        asked = sorted(load_problems(problems), key=lambda problem: len(problem.question))[:n_prompts]
    try:
        placed = placement(
            device,
            device_map,
            attention,
            max_memory=max_memory,
            offload_folder=offload_folder,
            quantization_config=quantization_config,
        )
        loaded = load_model(model, backend=backend, dtype=dtype, **placed)
    except FailedCheck as error:
        if json_file is not None:
            json_file.write_text(json.dumps({"passed": False, "error": str(error)}, indent=1), encoding="utf-8")
        sys.stdout.write(
            f"{error}\n1 failed: the self-check at loading. Do not trust results of this model on this backend\n"
        )
        raise typer.Exit(1) from error
    certificate = certify_model(loaded, short_pairs(loaded, asked, n_prompts), progress=not no_progress)
    sys.stdout.write(f"{certificate!r}\n")
    if json_file is not None:
        json_file.write_text(as_json(certificate), encoding="utf-8")
    raise typer.Exit(0 if certificate.passed else 1)
