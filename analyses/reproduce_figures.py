"""Do the paper's attention figures, and what they claim, hold on a model?

Draws one of five figures of arXiv 2510.01032 in the paper's arrangement from a model's own attention, with intervals
over problems, and checks each of the figure's claims against its null.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import pandas as pd
from typer import Option

import mless_interp as mi

Profiles = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Options(mi.command_line.Saving):
    """What can be asked of this script."""

    figure: Annotated[str, Option(help="000 (Fig. 13), 001 (Fig. 11), 002 (Fig. 9), 003 (Fig. 18) or 004 (Fig. 10).")]
    model: Annotated[
        list[str] | None,
        Option(
            help="A directory or hub id in place of the paper's model; for figure 001, which has three, "
            "KEY=DIRECTORY, repeatable (keys: qwen2.5-math-7b, llama-3.1-8b-instruct, gemma-3-4b-it)."
        ),
    ] = None
    tiny: Annotated[bool, Option("--tiny", help="Small random stand-ins of the models: to try this script.")] = False
    problems: Annotated[
        str | None,
        Option(help="'demo', 'math500' (from the hub), or a .jsonl file. [default: math500; with --tiny its own]"),
    ] = None
    limit: Annotated[int, Option(help="How many problems; the paper's figures probably show one.")] = 32
    template: mi.command_line.TemplateOption = "raw"
    n_tokens: mi.command_line.NTokensOption = 55
    rows: Annotated[str, Option(help="Rows averaged over: shared, or all (probably the paper's).")] = "shared"
    draws: Annotated[int, Option(help="Draws of random words per problem, averaged.")] = 3
    backend: mi.command_line.BackendOption = "auto"
    dtype: mi.command_line.DtypeOption = "float32"
    device: mi.command_line.DeviceOption = None
    out: Annotated[Path | None, Option(help="Folder for the results. [default: results/figure_<figure>]")] = None

    @property
    def folder(self) -> Path:
        """Where the results go."""
        return self.out or Path(f"results/figure_{self.figure}")


def main(options: Options) -> None:
    """Draw one of the paper's figures and check its claims.

    Writes figure.png, figure.csv (the curves and bars behind it), claims.csv (claim, measured with interval, null,
    agrees / disagrees / cannot tell) and run.json; with --report also report.html.
    """
    figure, tiny = options.figure, options.tiny
    if figure not in mi.paper.FIGURES:
        raise ValueError(f"unknown figure {figure!r}; choose one of {', '.join(mi.paper.FIGURES)}")
    shown = mi.paper.FIGURES[figure]
    given = _directories(shown, options.model)
    if options.draws < 1:
        raise ValueError(f"--draws must be 1 or more, got {options.draws}")
    if options.problems is None and tiny:
        questions = mi.paper.stand_in_problems(options.limit, seed=options.seed)
    else:
        questions = mi.load_problems(options.problems or "math500", limit=options.limit)
    found: dict[str, Profiles] = {}
    checked, curves, models = [], [], {}
    page = mi.Report(f"{shown.number} of arXiv 2510.01032 and its claims", question=_question(shown, questions, tiny))
    for key in shown.models:
        placed = {} if tiny else {"dtype": options.dtype, "device": options.device}
        model = mi.paper.load_panel_model(key, tiny=tiny, directory=given.get(key), backend=options.backend, **placed)
        found[key] = made = _profiles(model, shown, key, questions, options)
        heads = shown.heads(key)
        checks = mi.paper.check_claims(
            made["Mless"],
            heads=[head for head in heads if head.layer == 0],
            random_sentence=made["draws"],
            meaningful=made.get("Mful"),
            claims=[claim.key for claim in mi.paper.CLAIMS.values() if figure in claim.figures],
            seed=options.seed,
        )
        print(checks, end="\n\n")
        checked.append(checks.to_frame().assign(model=model.info.name))
        for name, profile in made.items():
            if name != "draws":
                curves.append(profile.curves(heads=heads).assign(series=name, model=model.info.name))
        models[key] = mi.provenance(model)["model"]
        if options.report:
            filler = mi.Insertion.meaningless(n_tokens=options.n_tokens)
            (pair,) = mi.make_pairs(model, questions[:1], filler, template=options.template)
            page = page.result(checks, heading=model.info.name).view(mi.views.attention(model, pair, heads[:3]))
            page = page.prompt(model, pair)
        del model
    picture = _draw(shown, found)
    doubt = f"What is open: {shown.doubt}"
    print(f"{shown.number}: {shown.caption} {doubt}")
    if tiny:
        print("The models are random stand-ins: what holds here holds without any training.")
    options.save(
        {
            "figure.png": picture,
            "figure.csv": pd.concat(curves),
            **({"bars.csv": _bars()} if shown.kind == "bars_and_head" else {}),
            "claims.csv": pd.concat(checked),
        },
        page=lambda: page.heading("The figure").figure(picture, shown.caption).sentence(doubt),
        settings={name: getattr(options, name) for name in ("template", "n_tokens", "rows", "draws")}
        | {"n_problems": len(questions)},
        problems=[question.id for question in questions],
        figure=shown.number,
        caption=shown.caption,
        doubt=shown.doubt,
        tiny=tiny,
        models=models,
    )


def _question(figure: "mi.paper.Figure", questions: "tuple[mi.Problem, ...]", tiny: bool) -> str:
    models = ", ".join(figure.models)
    stand_ins = "What holds of these random stand-ins of the models holds without any training."
    return f"Does what {figure.number} claims of {models} hold on {len(questions)} problems?{f' {stand_ins}' * tiny}"


def _directories(figure: "mi.paper.Figure", given: list[str] | None) -> dict[str, str]:
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
    model: "mi.Model", figure: "mi.paper.Figure", key: str, questions: "tuple[mi.Problem, ...]", options: Options
) -> Profiles:
    """The profiles that a figure and its claims need, by series; `draws` holds every draw of random words."""
    n_tokens, seed = options.n_tokens, options.seed
    common = {"heads": figure.heads(key), "rows": options.rows, "progress": options.progress, "seed": seed}

    def profile(filler: mi.Insertion, *conditions: str) -> mi.AttentionProfile:
        pairs = mi.make_pairs(model, questions, filler, template=options.template)
        return mi.attention_profile(model, pairs, conditions=("base", "inserted", *conditions), **common)

    made: Profiles = {"Mless": profile(mi.Insertion.meaningless(n_tokens=n_tokens), "gap"), "draws": []}
    if figure.kind in ("against_random_sentence", "bars_and_head"):
        words = [mi.Insertion.random_sentence(n_tokens, seed=seed, draw=draw) for draw in range(options.draws)]
        made["draws"] = [profile(drawn) for drawn in words]
    if figure.kind == "against_random_sentence":
        made["random words"] = made["draws"][0]
    if figure.kind == "bars_and_head":
        made["Mful"] = profile(mi.Insertion.meaningful(n_tokens=n_tokens))
    return made


def _bars() -> pd.DataFrame:
    return mi.paper.published(source="Figure 10 (read off the bars)")


def _draw(figure: "mi.paper.Figure", found: dict[str, Profiles]) -> Any:
    """The figure in the paper's arrangement."""
    made = found[figure.models[0]]
    if figure.kind == "with_and_without":
        return mi.views.profiles(made["Mless"], conditions=("base", "inserted"))
    if figure.kind == "layers":
        names = {"base": "None", "inserted": "Mless"}
        return mi.views.profiles(made["Mless"], conditions=("base", "inserted"), whole=False, names=names)
    if figure.kind == "against_random_sentence":
        series = ("Mless", "random words")
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


app = mi.command_line.analysis(main)

if __name__ == "__main__":
    app()
