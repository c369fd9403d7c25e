"""A command's run and its folder: results are on the disk before anything is drawn of them, and can be drawn again."""

import dataclasses
import inspect
import json
import shutil
import sys
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, get_type_hints

import typer
from typer import Argument

from ..core.arguments import Arguments, beside, count_of, nearest
from ..core.heads import Head
from ..runtime import folders
from ..runtime.folders import RESULTS, RUN
from ..runtime.text_safety import WIDTH, one_line, visible
from ..runtime.workers import ShardDone
from . import COMMANDS
from . import command_line as line

if TYPE_CHECKING:
    from ..models.base import Model
    from ..prompts.pairs import PromptPair
    from ..runtime.base_result import Result
    from ..views.report import Report
else:
    Report = Any  # a command that only computes imports no page

PAGE = "report.html"
SHOWN = "shown"  # in a run's folder: what its page shows beside results (attention, prompts)
MOST_LINES = 14  # that headlines of a command's other results may fill
ALWAYS = (
    "Every run also writes results/ (for mi.load) and run.json, with --report report.html. A stopped run resumes when you "
    "start it again with the same settings."
)
"""What the help of every command ends with."""


@dataclass(frozen=True, eq=False)
class Computed:
    """Store what a command computed: `results` by name, the `pairs` (their prompts are recorded, the first is shown), what else
    the page has `shown`, `facts` for run.json beside the first result's settings, `notes` for screen, run.json and page."""

    results: "Mapping[str, Result]"
    model: "Model | None" = None
    pairs: "Sequence[PromptPair]" = ()
    shown: Mapping[str, object] = field(default_factory=dict)
    facts: Arguments = field(default_factory=dict)
    notes: Sequence[str] = ()


class Presented(NamedTuple):
    """Files by name (tables: .csv, .parquet, .jsonl; pictures and views: .png, .html), and what makes the page when asked."""

    files: dict[str, Any]
    page: Callable[[], Any]


@dataclass(frozen=True, eq=False)
class Kept:
    """Hold what lies on the disk of it; `run` is run.json."""

    results: dict[str, Any]
    shown: dict[str, Any]
    run: dict[str, Any]

    def page(self, title: str, question: str, found: "Result") -> Report:
        """Begin the page: what was asked, of which model and how many problems, and what was found."""
        from ..paper.figures import title_of
        from ..views.report import Report

        n, n_fresh = count_of(self.run["n_problems"], "problem"), self.run.get("n_fresh")
        n += f" + {n_fresh} fresh" if n_fresh else ""
        asked = [title_of(self.run["model"]["name"]), found.settings.get("insertion"), n]
        return Report(title, f"{question} {', '.join(str(each) for each in asked if each)}.", found.headline())

    def view(self, page: Report, name: str = "attention", *, heading: str) -> Report:
        """Return the page with the attention that is shown under this name, if any is, folded."""
        if name not in self.shown:
            return page
        from ..views.circuitsvis import attention_view

        return page.folded(heading, page.blank().view(attention_view(self.shown[name])))


def program(name: str, compute: Callable[[Any], Computed], present: Callable[[Kept], Presented]) -> typer.Typer:
    """Return the command that computes, keeps, tells and presents, explained by the docstring of `compute`.
    A folder that may not be replaced is refused before anything begins. A run that is stopped says what it kept."""

    def command(asked: line.Saving) -> None:
        claimed = folders.claimed(asked.out, overwrite=asked.overwrite, analysis=name, shard=asked.part)
        try:
            with line.plain_warnings(), claimed:
                if done := folders.finished_steps(asked.partial):
                    asked.say(f"going on from {count_of(done, 'finished step')}, kept in {asked.partial} ...")
                _keep_and_show(asked, name, compute(asked), present)
        except ShardDone as ended:
            line.tell(f"{visible(str(ended))}: {line.repeat_command()}")
        except KeyboardInterrupt:
            if (asked.kept / RUN).is_file():
                raise  # what is kept was told
            told = "nothing had finished yet; the same command starts again"
            if done := folders.finished_steps(asked.partial):
                told = f"{count_of(done, 'finished step')} kept in {asked.partial}; the same command goes on from there"
            sys.stderr.write(f"Stopped: {told}\n")
            raise SystemExit(130) from None

    command.__doc__ = f"{inspect.cleandoc(compute.__doc__ or '')}\n\n{ALWAYS}"
    options, app = get_type_hints(compute)["options"], typer.Typer(add_completion=False, rich_markup_mode=None)
    app.command(cls=line.Command)(line.one_line_errors(line.of_options(command, options)))
    return app


def _keep_and_show(asked: line.Saving, name: str, computed: Computed, present: Callable[[Kept], Presented]) -> None:
    if asked.part is not None:
        raise ShardDone("every part is computed; nothing is written by a shard")
    _keep(asked, name, computed)
    try:
        first, *others = computed.results.values()
        notes = [words for note in computed.notes for words in textwrap.wrap(one_line(note), WIDTH)]
        more = [textwrap.shorten(one_line(each.headline()), WIDTH, placeholder=" ...") for each in others]
        told = [*first.lines(), *notes]  # a sentence cut off may turn what the rest says
        line.tell("\n".join([*told, *more[: max(0, MOST_LINES - len(told))]]))
        del computed  # the model goes before pictures are drawn
        asked.say("drawing pictures and writing tables ...")
        _finish(asked, present, report=asked.report)
    except BaseException:
        again = f"draw and write what follows from them with: mless-interp report {asked.out}"
        sys.stderr.write(f"The results are computed and kept in {asked.kept}; {again}\n")
        raise


def _keep(options: line.Saving, name: str, computed: Computed) -> None:
    """Write what was computed into the run's hidden folder, from which it is presented."""
    from ..runtime.store import provenance, save
    from ..views.report import ShownPrompt

    shown, first = dict(computed.shown), next(iter(computed.results.values()))
    facts: Arguments = {"analysis": name, "seed": options.seed, "options": dataclasses.asdict(options)}
    facts |= {"settings": first.settings, "n_problems": len(computed.pairs)} | computed.facts
    facts |= {"notes": list(computed.notes)} if computed.notes else {}
    if computed.pairs and computed.model is not None:
        shown.setdefault("prompt", ShownPrompt.of(computed.model, computed.pairs[0]))
        facts["prompts"] = [pair.record() for pair in computed.pairs]
    run = provenance(computed.model, repeat=line.repeat_command(), **facts)
    with folders.new_folder(options.kept, overwrite=True) as folder:
        for where, what in ((RESULTS, computed.results), (SHOWN, shown)):
            if what:
                save(folder / where, model=computed.model, **what)
        (folder / RUN).write_text(json.dumps(run, indent=1), encoding="utf-8")


def shown_attention(
    model: "Model", pairs: "Sequence[PromptPair]", heads: Sequence[Head | str], name: str = "attention"
) -> dict[str, object]:
    """Return the attention that a page shows, on the first problem; nothing where the model has no patterns."""
    from ..views.circuitsvis import read_attention

    return {name: read_attention(model, pairs[0], heads)} if model.info.attention == "eager" else {}


def check_run(folder: Path) -> None:
    """Raise `FileNotFoundError` for what is no folder of a run."""
    if not (folder / RUN).is_file():
        near = nearest(folder.name, {*beside(folder)} - {folder.name})
        raise FileNotFoundError(f"{str(folder.absolute())!r} is no folder of a run (it has no {RUN}){near}")


def read(folder: Path) -> Kept:
    """Return what a run kept; an error where a folder holds no such thing, or another than it wrote."""
    check_run(folder)
    from ..runtime.store import load
    from ..views import circuitsvis, report  # noqa: F401 - their classes are saved under `shown`

    asked = [name for name in folders.listed_in(folder) if name.partition("/")[0] in (RESULTS, SHOWN, RUN)]
    for name, why in folders.damaged_files(folder, asked).items():
        raise ValueError(f"{str(folder / name)!r} {why}: take a copy that is whole, or start the analysis again")
    run = json.loads((folder / RUN).read_text(encoding="utf-8"))
    if "analysis" not in run or not (folder / RESULTS).is_dir():
        raise ValueError(f"{str(folder)!r} holds no results to show again: start the analysis again")
    parts = (load(folder / part) if (folder / part).is_dir() else {} for part in (RESULTS, SHOWN))
    results, shown = ({name: kept for name, kept in part.items() if name != "provenance"} for part in parts)
    return Kept(results, shown, run)


@line.plain_warnings()
def report(folder: Annotated[Path, Argument(metavar="DIR", help="The --out of a run, finished or not.")]) -> None:
    """Make pictures, tables and report.html again from what a run computed and kept.

    Loads no model and computes nothing. DIR is the --out of a run. If its pictures failed (an error, a full disk), DIR does
    not exist yet: this command makes the pictures and DIR.
    """
    asked = line.Saving(out=folder.absolute())  # "." has no name
    waiting, shown = ((place / RUN).read_bytes() if (place / RUN).is_file() else b"" for place in (asked.kept, folder))
    whole = waiting in (b"", shown)  # else a newer run waits, beside the one that it replaces
    found = read(folder if whole else asked.kept)
    if (name := found.run["analysis"]) not in COMMANDS.values():
        raise ValueError(f"{str(folder)!r} was written by {name!r}, which is no command: start that again")
    present = import_module(f".{name}", __package__).present
    if not whole:
        return _finish(dataclasses.replace(asked, overwrite=found.run["options"]["overwrite"]), present, report=True)
    ours, presented = folders.listed_in(folder), present(found)
    there = [file for file in (*presented.files, PAGE) if (folder / file).exists()]
    for file in (*(set(there) - set(ours)), *folders.damaged_files(folder, there)):
        raise FileExistsError(f"{str(folder / file)!r} is not as the run wrote it: move it away, then report again")
    written = write(folder, found, presented, report=True)
    folders.write_manifest(folder, only={*ours, *written})
    _tell(folder, found, written)


def _finish(asked: line.Saving, present: Callable[[Kept], Presented], *, report: bool) -> None:
    with folders.new_folder(asked.out, overwrite=asked.overwrite) as made:
        shutil.copytree(asked.kept, made, dirs_exist_ok=True)
        (made / folders.MANIFEST).unlink()
        found = read(asked.kept)
        written = write(made, found, present(found), report=report)
    shutil.rmtree(asked.partial)
    _tell(asked.out, found, [*written, RESULTS, RUN])


def write(folder: Path, kept: Kept, presented: Presented, *, report: bool) -> list[str]:
    """Write tables, pictures and page into a folder; return their names."""
    from ..runtime.columns import Table

    for name, content in presented.files.items():
        match Path(name).suffix:
            case ".csv":
                Table(content).to_csv(folder / name, index=False)
            case ".parquet":
                content.to_parquet(folder / name, index=False)
            case ".jsonl":
                content.to_json(folder / name, orient="records", lines=True, force_ascii=False)
            case _:
                content.save(folder / name)
    if report:
        page = presented.page()
        noted = page.blank().sentence(*kept.run.get("notes", ()))
        page = dataclasses.replace(page, parts=(*noted.parts, *page.parts))  # right under the answer
        if "prompt" in kept.shown:
            page = page.folded("What the model reads", page.blank().prompt(kept.shown["prompt"]))
        page.provenance(kept.run).save(folder / PAGE)
    return [*presented.files, *[PAGE] * report]


def _tell(folder: Path, kept: Kept, written: list[str]) -> None:
    again = f"mi.load({str(folder)!r})[{next(iter(kept.results))!r}]"
    page = [f"Report: {folder}/{PAGE}."] * (PAGE in written)
    line.tell(one_line(" ".join([*page, f"{len(written)} files in {folder}; reload: {again}"])))
