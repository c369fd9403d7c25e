"""`mless-interp study`: several insertions side by side, as one file asks for them."""

import tomllib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import typer

from . import INCLUDED
from .command_line import MODEL_HELP, Asking, argument, is_file, is_model, is_study, option, tell
from .run_folder import Computed, Kept, Presented, Report, program


def _listed(study: str | None) -> str | None:
    """Return the study that was asked for; without one, list those that are included."""
    if study is None:
        tell("\n".join(f"{name:28}{tomllib.loads(path.read_text())['title']}" for name, path in INCLUDED.items()))
        raise typer.Exit
    return is_study(study)


@dataclass(frozen=True, kw_only=True)
class Options(Asking):
    """What can be asked beside the file; what is given here takes the place of what the file says."""

    file: str = argument(
        None,
        f"A .toml file, or an included study: {', '.join(INCLUDED)}. Without it, these are listed.",
        metavar="STUDY",
        callback=_listed,
    )
    backend: str = option(
        "bridge", "bridge or nnsight (answers with a cache), hooked_transformer, auto.", of="backends"
    )
    model: str | None = option(None, f"{MODEL_HELP} [default: the file's]", callback=is_model)  # type: ignore[assignment]
    problems: str | None = option(None, "'demo', 'math500', .jsonl or .txt. [default: the file's]", callback=is_file)
    limit: int | None = option(None, "Number of problems to measure, from the first one. [default: the file's]", min=2)  # type: ignore[assignment]
    template: str | None = option(None, "How prompts are made. [default: the file's]", of="templates")  # type: ignore[assignment]
    confirm: int | None = option(None, "Fresh problems that named heads are tested on. [default: the file's]", min=0)
    answers: int | None = option(None, "Number of problems to answer; 0: none. [default: the file's]", min=0)
    n_tokens: int | None = option(None, "Length of insertions that are counted in tokens. [default: the file's]", min=1)
    seed: int | None = option(None, "In place of the seeds of the file.", min=0)  # type: ignore[assignment]
    out: Path = Path("results/study")


def compute(options: Options) -> Computed:
    """Measure every insertion of a study alike, and put the results into one table.

    STUDY names a model, problems, insertions with their places, contrasts, an outcome and seeds. Writes study.csv (a row per
    insertion), effects.csv (a row per effect), study.parquet (a row per problem and measure), study.png; with
    answers also completions.jsonl.
    """
    from .study_runner import pairs_of, read_study, run_study

    changes = options.chosen(*"model problems limit template confirm answers n_tokens".split())
    study = read_study(options.file).with_changes(**changes, seeds=None if options.seed is None else (options.seed,))
    whole = replace(options, model=study.model, problems=study.problems)
    questions = whole.first(study.n_read)
    study.in_order(questions)  # too few are refused before the model is loaded
    model = whole.load()
    progress = not options.no_progress
    found = run_study(study, model=model, problems=questions, checkpoint=options.partial, progress=progress)
    first = next(iter(pairs_of(study, model, questions).values()))
    facts = {"study": study.title, "source": study.source, "n_problems": len(found.problem_ids)}
    return Computed({"StudyResult": found}, model, first, facts=facts)


def present(kept: Kept) -> Presented:
    found = kept.results["StudyResult"]
    picture = found.plot()

    def page() -> Report:
        claims = f", which claims: {found.claims.rstrip('.')}".replace("`", "'") if found.claims else ""
        after = f" After {found.source}{claims}. Here:" if found.source else ""
        made = kept.page(found.title, f"What does each of {', '.join(found.insertions)} do?{after}", found)
        caption = "Median effect of each insertion over problems, with 95 % intervals."
        made = made.result(found, pictures={caption: picture})
        for name, located in found.located.items():
            told, heads = located.explain().splitlines(), ", ".join(map(str, located.found)) or "none named"
            made = made.folded(f"Heads, {name}: {heads}", made.blank().sentence(*told))
        return made

    files: dict[str, Any] = {"study.csv": found.table(), "effects.csv": found.effect_table()}
    files |= {"study.parquet": found.to_frame(), "study.png": picture}
    if found.answers is not None:
        files["completions.jsonl"] = found.answers.to_frame()
    return Presented(files, page)


app = program("study", compute, present)
