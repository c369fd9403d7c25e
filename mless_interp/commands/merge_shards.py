"""`mless-interp merge`: what the shards of an analysis have kept, made into its results."""

import dataclasses
import json
import os
import shutil
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option

from ..command_line import BEGUN, Saving, in_place_of, of_numbers
from ..running.folders import ANALYSIS, read_begun, shards_of
from ..running.locks import refuse_in_use
from . import COMMANDS


def merge(
    folder: Annotated[Path, Argument(metavar="OUT", help="The --out of the shards.")],
    others: Annotated[
        list[Path] | None,
        Option("--from", help="The --out of shards that ran where OUT is not: their hidden folders are copied here."),
    ] = None,
) -> None:
    """Go on with an analysis whose shards have ended: take what they kept, compute what is missing, write the results.

    The results are those, bit for bit, of a run that was never split (on equal hardware). An analysis of several steps can be
    merged after any of them: the steps that follow are then computed here. OUT and every --from must be of the same command.
    """
    partial = Saving(out=folder).partial
    elsewhere = [Saving(out=other).partial for other in others or ()]
    _check_of_one_command([*[partial] * partial.is_dir(), *elsewhere])  # before anything is copied
    for source in elsewhere:
        _copy_parts(source, partial)
    name, given = _begun(partial)
    options: Any = import_module(f".{name}", __package__).Options
    known = {field.name for field in dataclasses.fields(options)}
    if not set(given) <= known:
        raise ValueError(
            f"{str(partial)!r} was begun by another version (options {sorted(set(given) - known)}); start again"
        )
    (command,) = import_module(f".{name}", __package__).app.registered_commands
    defaults = {each.name: each.default for each in dataclasses.fields(options)}
    with in_place_of(json.loads((partial / BEGUN).read_text(encoding="utf-8")).get("command", "")):
        command.callback(**defaults | given | {"out": folder, "shard": None, "wait": 0.0})


def _begun(partial: Path) -> tuple[str, dict[str, Any]]:
    """Of which analysis a hidden folder is, and with which options it was begun."""
    if not (partial / ANALYSIS).is_file():
        raise FileNotFoundError(
            f"{str(partial)!r} holds no shards: give the --out with which they ran (a run that is finished needs no merging)"
        )
    try:
        name = str(json.loads((partial / ANALYSIS).read_text(encoding="utf-8"))["analysis"])
        damaged = BEGUN if (given := read_begun(partial / BEGUN)) is None else None
    except (OSError, ValueError, KeyError, TypeError):
        damaged = ANALYSIS
    if damaged is not None:
        raise ValueError(
            f"{str(partial / damaged)!r} is missing or damaged: start the command of the shards without --shard, which takes "
            "what they kept"
        )
    if name not in COMMANDS.values():
        raise ValueError(f"{str(partial)!r} is of an analysis {name!r} that this version does not know")
    assert given is not None
    return name, given


def _check_of_one_command(partials: Sequence[Path]) -> None:
    """`ValueError` where hidden folders were not begun by one command."""
    begun = [(analysis, of_numbers(given)) for analysis, given in map(_begun, partials)]
    for source, each in zip(partials, begun, strict=True):
        if each != begun[0]:
            raise ValueError(
                f"{str(source)!r} was begun by another command than {str(partials[0])!r}: merge shards of one command only"
            )


def _copy_parts(source: Path, target: Path) -> None:
    """Copy what shards have kept elsewhere; `FileExistsError` where something else has that name here."""
    for shard in shards_of(source.with_name(source.name.removeprefix(".").removesuffix(".partial"))):
        refuse_in_use(shard)
    for file in sorted(each for each in source.rglob("*") if each.is_file()):
        place = target / file.relative_to(source)
        if place.is_file() and (place.suffix != ".jsonl" or place.read_bytes() == file.read_bytes()):
            continue
        if place.is_file() and not file.read_bytes().startswith(
            place.read_bytes()
        ):  # a copy that was cut off is made again
            raise FileExistsError(f"{str(place)!r} is there already, and other than {str(file)!r}: which is right?")
        place.parent.mkdir(parents=True, exist_ok=True)
        temporary = place.with_name(f".{place.name}.new")
        shutil.copy2(file, temporary)
        os.replace(temporary, place)
