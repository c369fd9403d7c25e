"""Do the paper's attention figures, and what they claim, hold on a model?

Draws one of five figures of arXiv 2510.01032 in the paper's arrangement from a model's own attention, with intervals
over problems, and checks each of the figure's claims against its null.
"""

import json
from pathlib import Path
from typing import Annotated, Any

import pandas as pd
import typer
from rich.console import Console
from rich.table import Table

import mless_interp as mi

app = typer.Typer(add_completion=False, rich_markup_mode=None)
Option = typer.Option
Profiles = dict[str, Any]


@app.command()
@mi.one_line_errors
def main(
    figure: Annotated[str, Option(help="000 (Fig. 13), 001 (Fig. 11), 002 (Fig. 9), 003 (Fig. 18) or 004 (Fig. 10).")],
    model: Annotated[
        list[str] | None,
        Option(
            help="A directory or hub id in place of the paper's model; for figure 001, which has three, "
            "KEY=DIRECTORY, repeatable (keys: qwen2.5-math-7b, llama-3.1-8b-instruct, gemma-3-4b-it)."
        ),
    ] = None,
    tiny: Annotated[bool, Option("--tiny", help="Small random stand-ins of the models: to try this script.")] = False,
    problems: Annotated[
        str | None,
        Option(help="'demo', 'math500' (from the hub), or a .jsonl file. [default: math500; with --tiny its own]"),
    ] = None,
    limit: Annotated[int, Option(help="How many problems; the paper's figures probably show one.")] = 32,
    template: mi.command_line.TemplateOption = "raw",
    n_tokens: mi.command_line.NTokensOption = 55,
    rows: Annotated[str, Option(help="Rows averaged over: shared, or all (probably the paper's).")] = "shared",
    draws: Annotated[int, Option(help="Random sentences per problem, averaged.")] = 3,
    backend: mi.command_line.BackendOption = "auto",
    dtype: mi.command_line.DtypeOption = "float32",
    device: mi.command_line.DeviceOption = None,
    seed: mi.command_line.SeedOption = 0,
    out: Annotated[Path | None, Option(help="Folder for the results. [default: results/figure_<figure>]")] = None,
    report: mi.command_line.ReportOption = False,
    overwrite: mi.command_line.OverwriteOption = False,
    no_progress: mi.command_line.NoProgressOption = False,
) -> None:
    """Draw one of the paper's figures and check its claims.

    Writes figure.png, figure.csv (the curves and bars behind it), claims.csv (claim, measured with interval, null,
    agrees / disagrees / cannot tell) and run.json; with --report also report.html.
    """
    if figure not in mi.paper.FIGURES:
        raise ValueError(f"unknown figure {figure!r}; choose one of {', '.join(mi.paper.FIGURES)}")
    shown = mi.paper.FIGURES[figure]
    out = out or Path(f"results/figure_{figure}")
    mi.refuse_existing(out, overwrite=overwrite)
    given = _directories(shown, model)
    if draws < 1:
        raise ValueError(f"--draws must be 1 or more, got {draws}")
    if problems is None and tiny:
        questions = mi.paper.stand_in_problems(limit, seed=seed)
    else:
        questions = mi.load_problems(problems or "math500", limit=limit)
    found: dict[str, Profiles] = {}
    checked, curves, models = [], [], {}
    page = mi.Report(f"{shown.number} of arXiv 2510.01032 and its claims", question=_question(shown, questions, tiny))
    for key in shown.models:
        options = {} if tiny else {"dtype": dtype, "device": device}
        loaded = mi.paper.load_panel_model(key, tiny=tiny, directory=given.get(key), backend=backend, **options)
        made = _profiles(loaded, shown, key, questions, template, n_tokens, rows, draws, seed, not no_progress)
        claims = [claim.key for claim in mi.paper.CLAIMS.values() if figure in claim.figures]
        heads = shown.heads(key)
        first_layer = [head for head in heads if head.layer == 0]
        checks = mi.paper.check_claims(
            made["Mless"],
            heads=first_layer,
            random_sentence=made["draws"],
            meaningful=made.get("Mful"),
            claims=claims,
            seed=seed,
        )
        _show(checks, loaded)
        checked.append(checks.to_frame().assign(model=loaded.info.name))
        for name, profile in made.items():
            if name != "draws":
                curves.append(profile.curves(heads=heads).assign(series=name, model=loaded.info.name))
        models[key] = mi.provenance(loaded)["model"]
        if report:
            filler = mi.Insertion.meaningless(n_tokens=n_tokens)
            (pair,) = mi.make_pairs(loaded, questions[:1], filler, template=template)
            page = page.result(checks, heading=loaded.info.name).view(mi.views.attention(loaded, pair, heads[:3]))
            page = page.prompt(loaded, pair)
        found[key] = made
        del loaded
    with mi.new_folder(out, overwrite=overwrite) as folder:
        picture = _draw(shown, found)
        picture.save(folder / "figure.png")
        pd.concat(curves).to_csv(folder / "figure.csv", index=False)
        if shown.kind == "bars_and_head":
            _bars().to_csv(folder / "bars.csv", index=False)
        pd.concat(checked).to_csv(folder / "claims.csv", index=False)
        facts = {"figure": shown.number, "caption": shown.caption, "doubt": shown.doubt, "tiny": tiny, "models": models}
        settings = {
            "template": template,
            "n_tokens": n_tokens,
            "rows": rows,
            "draws": draws,
            "n_problems": len(questions),
        }
        ids = [question.id for question in questions]
        run = mi.provenance(repeat=mi.repeat_command(), seed=seed, settings=settings, problems=ids, **facts)
        (folder / "run.json").write_text(json.dumps(run, indent=1), encoding="utf-8")
        if report:
            page = page.heading("The figure").figure(picture, shown.caption).sentence(f"What is open: {shown.doubt}")
            page.provenance(run).save(folder / "report.html")
    console = Console(width=100, highlight=False)
    console.print(f"{shown.number}: {shown.caption} What is open: {shown.doubt}", markup=False)
    if tiny:
        console.print("The models are random stand-ins: what holds here holds without any training.")
    files = f"figure.png, figure.csv, claims.csv, run.json{', report.html' if report else ''}"
    console.print(f"Results: {out}/{files}", soft_wrap=True)


def _question(figure: mi.paper.Figure, questions: tuple[mi.Problem, ...], tiny: bool) -> str:
    models = ", ".join(figure.models)
    stand_ins = "What holds of these random stand-ins of the models holds without any training."
    return f"Does what {figure.number} claims of {models} hold on {len(questions)} problems?{f' {stand_ins}' * tiny}"


def _directories(figure: mi.paper.Figure, given: list[str] | None) -> dict[str, str]:
    """Model key -> what to load in its place."""
    found: dict[str, str] = {}
    for text in given or []:
        key, equals, directory = text.partition("=")
        if not equals and len(figure.models) == 1:
            key, directory = figure.models[0], text
        elif not equals:
            raise ValueError(f"{figure.number} shows {len(figure.models)} models: write --model KEY=DIRECTORY for each")
        if key not in figure.models:
            raise ValueError(f"{figure.number} does not show {key!r}, but {', '.join(figure.models)}")
        found[key] = directory
    return found


def _profiles(
    model: mi.Model,
    figure: mi.paper.Figure,
    key: str,
    questions: tuple[mi.Problem, ...],
    template: str,
    n_tokens: int,
    rows: str,
    draws: int,
    seed: int,
    progress: bool,
) -> Profiles:
    """The profiles that a figure and its claims need, by series; `draws` holds every random sentence's."""
    options = {"heads": figure.heads(key), "rows": rows, "progress": progress, "seed": seed}

    def profile(filler: mi.Insertion, *conditions: str) -> mi.AttentionProfile:
        pairs = mi.make_pairs(model, questions, filler, template=template)
        return mi.attention_profile(model, pairs, conditions=("base", "inserted", *conditions), **options)

    made: Profiles = {"Mless": profile(mi.Insertion.meaningless(n_tokens=n_tokens), "gap"), "draws": []}
    if figure.kind in ("against_random_sentence", "bars_and_head"):
        sentences = [mi.Insertion.random_sentence(n_tokens, seed=seed, draw=draw) for draw in range(draws)]
        made["draws"] = [profile(sentence) for sentence in sentences]
    if figure.kind == "against_random_sentence":
        made["random sentence"] = made["draws"][0]
    if figure.kind == "bars_and_head":
        made["Mful"] = profile(mi.Insertion.meaningful(n_tokens=n_tokens))
    return made


def _bars() -> pd.DataFrame:
    return mi.paper.published(source="Figure 10 (read off the bars)")


def _draw(figure: mi.paper.Figure, found: dict[str, Profiles]) -> Any:
    """The figure in the paper's arrangement."""
    made = found[figure.models[0]]
    if figure.kind == "with_and_without":
        return mi.views.profiles(made["Mless"], conditions=("base", "inserted"))
    if figure.kind == "layers":
        names = {"base": "None", "inserted": "Mless"}
        return mi.views.profiles(made["Mless"], conditions=("base", "inserted"), whole=False, names=names)
    if figure.kind == "against_random_sentence":
        series = ("Mless", "random sentence")
        panels = [
            (
                found[panel.model]["Mless"].settings["model"],
                panel.head,
                {name: found[panel.model][name] for name in series},
            )
            for panel in figure.panels
        ]
        return mi.views.compare_profiles(panels)
    named = {name: made[name] for name in ("Mless", "Mful")}
    title = "MATH-500 as published (read off the paper's bars)"
    return mi.views.bars_and_profiles(_bars(), named, figure.panels[0].head, bars_title=title)


def _show(checks: mi.paper.ClaimChecks, model: mi.Model) -> None:
    console = Console(width=120, highlight=False)
    table = Table("claim", "measured", "95 % interval", "null", "the null is", "n", "verdict")
    for row in checks.to_frame().itertuples():
        interval = f"{row.ci_low:.3f} to {row.ci_high:.3f}"
        verdict = row.verdict + (f" ({row.reason})" if row.reason else "")
        table.add_row(row.claim, f"{row.measured:.3f}", interval, f"{row.null:.3f}", row.null_is, str(row.n), verdict)
    heads = checks.settings["heads"]
    console.print(f"{model.info.name}, heads {heads} (zero-based), {checks.settings['insertion']}", markup=False)
    console.print(table)


if __name__ == "__main__":
    app()
