"""Computing apart from showing: results are on the disk before anything is drawn of them, and can be drawn again."""

import dataclasses
import json
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, get_type_hints

import typer

from ..command_line import Saving, analysis, repeat_command
from ..running.folders import RUN, remove_partial
from ..running.visible import one_line
from ..running.work import ShardDone
from . import COMMANDS

RESULTS, SHOWN = "results", "shown"
"""In a run's folder, beside `RUN`: its results (for `mi.load`), what its page shows beside them (attention, prompts)."""


@dataclass(frozen=True, eq=False)
class Computed:
    """What a command computed: `results` and what is `shown` beside them, by name, both as `mi.save` takes them; what is
    `told` on the screen; the `model`; and `facts` for run.json. Everything that `present` needs is in one of them. `failed`:
    what could not be computed, and why; the rest is kept and shown, and the command ends with exit code 1. `notes`: what its
    settings came to where that is not what was asked for, in sentences, for the screen, run.json and the page."""

    results: Mapping[str, Any]
    told: str
    model: Any = None
    shown: Mapping[str, Any] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)
    failed: Mapping[str, str] = field(default_factory=dict)
    notes: Sequence[str] = ()


@dataclass(frozen=True, eq=False)
class Kept:
    """What lies on the disk of it; `run` is run.json, with the options of the run under "options"."""

    results: dict[str, Any]
    shown: dict[str, Any]
    run: dict[str, Any]

    @property
    def options(self) -> dict[str, Any]:
        return self.run["options"]


@dataclass(frozen=True, eq=False)
class Presented:
    """Files by name: tables (.csv, .parquet, .jsonl), pictures and views (.png, .html); and the `page`, made when asked for."""

    files: Mapping[str, Any]
    page: Callable[[], Any]


def program(name: str, compute: Callable[[Any], Computed], present: Callable[[Kept], Presented]) -> typer.Typer:
    """The command that computes, keeps, tells and presents; `name` is its file's. The docstring of `compute` explains it."""
    options = get_type_hints(compute)["options"]

    def main(asked: Saving) -> None:
        few = _shortage(asked)
        computed = compute(asked)
        computed = dataclasses.replace(computed, notes=[*[few] * bool(few), *computed.notes])
        if asked.part is not None:
            raise ShardDone("every part is computed; nothing is written by a shard")
        keep(asked, name, computed)
        typer.echo("\n".join([computed.told, *computed.notes]))
        failed = dict(computed.failed)
        del computed  # the model goes before pictures are drawn
        asked.say("drawing pictures and writing tables ...")
        try:
            written = write(asked.kept, asked.folder, present, report=asked.report, overwrite=asked.overwrite)
        except BaseException:
            sys.stderr.write(
                f"The results are computed and kept in {asked.kept}; draw and write what follows from them with: "
                f"mless-interp report {asked.folder}\n"
            )
            raise
        remove_partial(asked.partial)
        _tell(asked.folder, written)
        for what, why in failed.items():
            sys.stderr.write(f"error: {what}: {why}\n")
        if failed:
            raise SystemExit(1)

    main.__doc__ = compute.__doc__
    return analysis(main, options=options, name=name)


def _shortage(asked: Saving) -> str:
    """That there are fewer problems than were asked for; wrong input is told by the analysis."""
    try:
        return asked.shortage()
    except (ValueError, TypeError, OSError):
        return ""


def keep(options: Saving, name: str, computed: Computed) -> None:
    """Write what was computed into the run's hidden folder, from which it is presented, now or later."""
    from ..running.folders import write_manifest
    from ..running.store import provenance, save

    folder = options.kept
    (folder / RUN).unlink(missing_ok=True)  # first, and written last: what has it is whole
    shutil.rmtree(folder, ignore_errors=True)
    told = {"failed": dict(computed.failed), "notes": list(computed.notes)}
    facts: dict[str, Any] = {what: each for what, each in told.items() if each}
    run = provenance(
        computed.model,
        repeat=repeat_command(),
        commit=commit(),
        analysis=name,
        seed=options.seed,
        options=dataclasses.asdict(options),
        **computed.facts,
        **facts,
    )
    folder.mkdir(parents=True)
    for where, what in ((RESULTS, computed.results), (SHOWN, computed.shown)):
        if what:
            save(folder / where, model=computed.model, **what)
    (folder / RUN).write_text(json.dumps(run, indent=1), encoding="utf-8")  # what has it is whole
    write_manifest(folder)


N_SHOWN_PROBLEMS = 32
"""Problems over which shown attention is averaged, at most."""


def shown_attention(model: Any, pairs: Sequence[Any], heads: Sequence[Any], problem: str | int | None) -> Any:
    """The attention that a page shows: of one problem where one is asked for, else the mean over the first; where their
    prompts have no mean, of the first."""
    from ..views.pooling import read_attention

    if problem is not None:
        return read_attention(model, pairs, heads, problem=problem)
    try:
        return read_attention(model, pairs[:N_SHOWN_PROBLEMS], heads)
    except ValueError:
        return read_attention(model, pairs[0], heads)


def read(folder: Path) -> Kept:
    """What `keep` wrote; `ValueError` or `FileNotFoundError` where a folder holds no such thing, or another than it wrote."""
    from ..running.folders import damaged_files, manifest_of
    from ..running.store import load
    from ..views import pooling, report  # their classes are saved under `shown`

    assert pooling and report
    if not (folder / RUN).is_file():
        raise FileNotFoundError(f"{str(folder)!r} is no folder of a run (it has no {RUN})")
    listed = (manifest_of(folder) or {}).get("files", ())
    asked = [name for name in listed if name.partition("/")[0] in (RESULTS, SHOWN, RUN)]
    for name, why in damaged_files(folder, asked).items():
        raise ValueError(
            f"{str(folder / name)!r} {why}: what the run kept is damaged, or another's; take a copy that is whole, or start "
            "the analysis again"
        )
    try:
        run = json.loads((folder / RUN).read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{str(folder / RUN)!r} is damaged ({error}); start the analysis again") from error
    if not isinstance(run, dict) or "analysis" not in run or not (folder / RESULTS).is_dir():
        raise ValueError(
            f"{str(folder)!r} holds no results to show again (a run of an earlier version keeps tables and pictures only): "
            "start the analysis again"
        )
    results, shown = (load(folder / part) if (folder / part).is_dir() else {} for part in (RESULTS, SHOWN))
    for part in (results, shown):
        part.pop("provenance", None)
    return Kept(results, shown, run)


def write(
    kept: Path, folder: Path, present: Callable[[Kept], Presented], *, report: bool, overwrite: bool
) -> list[str]:
    """Everything that follows from the folder `kept`, beside copies of what is in it, into `folder`; the names written."""
    from ..running.folders import MANIFEST, new_folder

    with new_folder(folder, overwrite=overwrite) as made:
        shutil.copytree(
            kept, made, symlinks=True, dirs_exist_ok=True, ignore=lambda at, _: [MANIFEST] if Path(at) == kept else []
        )
        return [*_draw(kept, made, present, report=report), RESULTS, RUN]


def _draw(kept: Path, into: Path, present: Callable[[Kept], Presented], *, report: bool) -> list[str]:
    """What follows from the folder `kept`, drawn and written into another; the names written."""
    from ..views.report import Text

    found = read(kept)
    try:
        presented = present(found)
        page = presented.page() if report else None
    except KeyError as error:
        raise ValueError(f"{str(kept)!r} is not whole: it lacks {error}; start the analysis again") from error
    for name, content in presented.files.items():
        _write(into / name, content)
    if page is not None:
        said = {part.text for part in page.parts if isinstance(part, Text)}
        notes = [note for note in found.run.get("notes", ()) if note not in said]
        page.sentence(*notes).provenance(found.run).save(into / "report.html")
    return [*presented.files, *["report.html"] * report]


def present_again(folder: Path) -> None:
    """Pictures, tables and page of a finished run, or of one whose results were computed and could not be shown."""
    from ..running.folders import renewed

    asked = Saving(out=folder)
    whole = (folder / RUN).is_file()
    if not whole and not (asked.kept / RUN).is_file():
        raise FileNotFoundError(
            f"neither {str(folder)!r} nor {str(asked.kept)!r} holds computed results: give the --out of a run"
        )
    kept = folder if whole else asked.kept
    name = read(kept).run["analysis"]
    if name not in COMMANDS.values():
        raise ValueError(f"{str(folder)!r} was written by an analysis {name!r} that this version does not know")
    present = import_module(f".{name}", __package__).present
    if whole:
        with renewed(folder) as made:
            written = _draw(folder, made, present, report=True)
    else:
        written = write(kept, folder, present, report=True, overwrite=False)
        remove_partial(asked.partial)
    _tell(folder, written)


def _tell(folder: Path, written: list[str]) -> None:
    typer.echo(one_line(f"Results: {folder}/{', '.join(written)}"))


def _write(path: Path, content: Any) -> None:
    from ..running.tables import Table

    match path.suffix:
        case ".csv":
            Table(content).to_csv(path, index=False)
        case ".parquet":
            content.to_parquet(path, index=False)
        case ".jsonl":
            content.to_json(path, orient="records", lines=True, force_ascii=False)
        case ".png" | ".html":
            content.save(path)
        case other:
            raise ValueError(f"{path.name}: an analysis writes no {other or 'nameless'} files")


def commit(root: Path = Path(__file__).parents[2]) -> str | None:
    """The commit that a source tree has checked out, read without git; None for an installed package."""
    try:
        git = root / ".git"
        if git.is_file():  # a worktree
            git = (root / git.read_text(encoding="utf-8").removeprefix("gitdir:").strip()).resolve()
        head = (git / "HEAD").read_text(encoding="utf-8").strip()
        if not head.startswith("ref:"):
            return head
        name = head.removeprefix("ref:").strip()
        shared = (git / "commondir").read_text(encoding="utf-8").strip() if (git / "commondir").is_file() else "."
        for place in (git, git / shared):
            if (place / name).is_file():
                return (place / name).read_text(encoding="utf-8").strip()
        packed = (git / shared / "packed-refs").read_text(encoding="utf-8").splitlines()
        return next((line.split()[0] for line in packed if line.endswith(f" {name}")), None)
    except (OSError, UnicodeDecodeError):
        return None
