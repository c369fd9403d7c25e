"""`mless-interp study`: several insertions side by side, as one file asks for them."""

import tomllib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Argument, Option

from ..core.arguments import count_of, nearest
from .command_line import Asking, Backend, OutOption, is_file, is_model, tell
from .included_studies import INCLUDED
from .run_folder import Computed, Kept, Presented, program


def _listed(study: str | None) -> str:
    """The study that was asked for; without one, list those that are included."""
    if study is not None and study not in INCLUDED and not Path(study).is_file():
        raise typer.BadParameter(
            f"there is no file {str(Path(study).absolute())!r}, and no included study of that name"
            f"{nearest(study, INCLUDED)}; there are {', '.join(INCLUDED)}"
        )
    if study is None:
        tell("\n".join(f"{name:28}{tomllib.loads(path.read_text())['title']}" for name, path in INCLUDED.items()))
        raise typer.Exit
    return study


@dataclass(frozen=True, kw_only=True)
class Options(Asking):
    """What can be asked beside the file; what is given here takes the place of what the file says."""

    file: Annotated[
        str,
        Argument(
            metavar="STUDY",
            callback=_listed,
            help=f"A .toml file, or an included study: {', '.join(INCLUDED)}. Without it, these are listed.",
        ),
    ] = None  # type: ignore[assignment]
    backend: Annotated[Backend, Option(help="bridge or nnsight (answers with a cache), hooked_transformer, auto.")] = (
        "bridge"
    )
    model: Annotated[
        str | None, Option(callback=is_model, help="'demo' (bundled), a directory, or a hub id. [default: the file's]")
    ] = None  # type: ignore[assignment]
    problems: Annotated[
        str | None, Option(callback=is_file, help="'demo', 'math500', a .jsonl or .txt file. [default: the file's]")
    ] = None
    limit: Annotated[
        int | None, Option(min=2, help="Number of problems to measure, from the first one. [default: the file's]")
    ] = None  # type: ignore[assignment]
    template: Annotated[str | None, Option(help="raw, raw_as_sent, text or chat. [default: the file's]")] = None  # type: ignore[assignment]
    confirm: Annotated[
        int | None, Option(min=0, help="Fresh problems that named heads are tested on. [default: the file's]")
    ] = None
    answers: Annotated[
        int | None, Option(min=0, help="Number of problems to answer; 0: none. [default: the file's]")
    ] = None
    n_tokens: Annotated[
        int | None,
        Option(
            min=1,
            help="Length of every insertion that is counted in tokens, where a unit is several. [default: the file's]",
        ),
    ] = None
    seed: Annotated[int | None, Option(min=0, help="In place of the seeds of the file.")] = None  # type: ignore[assignment]
    out: OutOption = Path("results/study")


def compute(options: Options) -> Computed:
    """Measure every insertion of a study alike, and put the results into one table.

    STUDY names a model, problems, insertions with their places, contrasts, outcomes and seeds. Writes study.csv (a row per
    insertion), effects.csv (a row per effect), study.parquet (a row per problem and measure), study.png, the results
    themselves in results/ (mi.load) and run.json; with answers also completions.jsonl, with --report also report.html.
    A stopped run resumes when you start it again with the same settings.
    """
    from ..views.report import ShownPrompt
    from .study_runner import check_enough, pairs_of, run_study
    from .study_spec import read_study

    study = read_study(options.file).with_changes(
        model=options.model,
        problems=options.problems,
        limit=options.limit,
        template=options.template,
        confirm=options.confirm,
        answers=options.answers,
        n_tokens=options.n_tokens,
        seeds=None if options.seed is None else (options.seed,),
    )
    whole = replace(
        options, model=study.model, problems=study.problems, limit=study.n_problems, template=study.template
    )
    questions = whole.first(None if study.draws_questions else study.n_problems)
    check_enough(study, questions)
    model = whole.load()
    found = run_study(study, model=model, problems=questions, checkpoint=options.partial, progress=options.progress)
    first = pairs_of(study, model, questions)
    shown = {f"prompt_{at}": ShownPrompt.of(model, pairs[0]) for at, pairs in enumerate(first.values())}
    facts = {
        "settings": found.settings,
        "study": study.title,
        "source": study.source,
        "n_problems": len(found.problem_ids),
    }
    return Computed({"StudyResult": found}, model, (), shown, facts)


def present(kept: Kept) -> Presented:
    """The tables, the picture, and the page."""
    from .. import views
    from ..views.report import Report

    found = kept.results["StudyResult"]
    picture = views.study_effects(found)

    def page() -> Report:
        question = (
            f"What {'does' if len(found.insertions) == 1 else 'do'} {count_of(len(found.insertions), 'insertion')} do in "
            f"{kept.model_name}, over "
            f"{count_of(len(found.problem_ids), 'problem')}?"
        )
        if found.source:
            question += f" After {found.source}" + (
                f", which claims: {found.claims.rstrip('.')}.".replace("`", "'") if found.claims else "."
            )
        made = Report(found.title, question=question, answer=found.headline())
        caption = "Median effect of each insertion over problems, with 95 % intervals."
        made = made.result(found, pictures={caption: picture})
        for name, located in found.located.items():
            words = Report("", question="").sentence(*located.explain().splitlines())
            made = made.folded(f"Heads, {name}: {', '.join(map(str, located.found)) or 'none named'}", words)
        made = made.heading("What the model reads")
        for at, name in enumerate(found.insertions):
            made = made.folded(name, Report("", question="").shown_prompt(kept.shown[f"prompt_{at}"]))
        return made

    files: dict[str, Any] = {
        "study.csv": found.table(),
        "effects.csv": found.effect_table(),
        "study.parquet": found.to_frame(),
        "study.png": picture,
    }
    if found.answers is not None:
        files["completions.jsonl"] = found.answers.to_frame()
    return Presented(files, page)


app = program("study", compute, present)
