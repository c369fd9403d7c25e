"""`mless-interp figures`: do the paper's attention figures, and what they claim, hold on a model."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from typer import Option

from ..command_line import (
    AttentionOption,
    BackendOption,
    DeviceMapOption,
    DeviceOption,
    DtypeOption,
    NTokensOption,
    Saving,
    TemplateOption,
    placement,
)
from .kept import Computed, Kept, Presented, program

Profiles = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Options(Saving):
    """What can be asked."""

    figure: Annotated[str, Option(help="000 (Fig. 13), 001 (Fig. 11), 002 (Fig. 9), 003 (Fig. 18) or 004 (Fig. 10).")]
    model: Annotated[
        list[str] | None,
        Option(
            help="A directory or hub id in place of the paper's model; for figure 001, which has three, "
            "KEY=DIRECTORY, repeatable (keys: qwen2.5-math-7b, llama-3.1-8b-instruct, gemma-3-4b-it)."
        ),
    ] = None
    tiny: Annotated[bool, Option("--tiny", help="Small random stand-ins of the models: to try this command.")] = False
    problems: Annotated[
        str | None,
        Option(help="'demo', 'math500' (from the hub), or a .jsonl file. [default: math500; with --tiny its own]"),
    ] = None
    limit: Annotated[int, Option(help="How many problems; the paper's figures probably show one.")] = 32
    template: TemplateOption = "raw"
    n_tokens: NTokensOption = 55
    rows: Annotated[str, Option(help="Rows averaged over: shared, or all (probably the paper's).")] = "shared"
    draws: Annotated[int, Option(help="Draws of random words per problem, averaged.")] = 3
    backend: BackendOption = "auto"
    dtype: DtypeOption = "float32"
    device: DeviceOption = None
    device_map: DeviceMapOption = None
    attention: AttentionOption = "eager"
    out: Annotated[Path | None, Option(help="Folder for the results. [default: results/figure_<figure>]")] = None  # type: ignore[assignment]

    @property
    def folder(self) -> Path:
        """Where the results go."""
        return self.out or Path(f"results/figure_{self.figure}")


def compute(options: Options) -> Computed:
    """Draw one of the paper's figures and check its claims.

    Writes figure.png, figure.csv (the curves and bars behind it), claims.csv (claim, measured with interval, null,
    agrees / disagrees / cannot tell), the results themselves in results/ (mi.load) and run.json; with --report also
    report.html. A run that is stopped goes on from where it was when it is started again with the same settings.
    """
    from .. import paper
    from ..prompts.insertions import Insertion
    from ..prompts.pairs import make_pairs
    from ..prompts.problems import load_problems
    from ..prompts.prompt import template_named
    from ..running.store import provenance
    from ..scores.score import check_rows
    from ..views.pooling import read_attention
    from ..views.report import ShownPrompt

    figure, tiny = options.figure, options.tiny
    if figure not in paper.FIGURES:
        raise ValueError(f"unknown figure {figure!r}; choose one of {', '.join(paper.FIGURES)}")
    shown = paper.FIGURES[figure]
    given = _directories(shown, options.model)
    if options.draws < 1:
        raise ValueError(f"--draws must be 1 or more, got {options.draws}")
    template_named(options.template)
    check_rows(options.rows)
    filler = Insertion.meaningless(n_tokens=options.n_tokens)
    placed = placement(options.device, options.device_map, options.attention)
    if tiny:
        placed = {"attn_implementation": options.attention}
    else:
        placed["dtype"] = options.dtype
    if options.problems is None and tiny:
        questions = paper.stand_in_problems(options.limit, seed=options.seed)
    else:
        questions = load_problems(options.problems or "math500", limit=options.limit)
    results: dict[str, Any] = {}
    beside: dict[str, Any] = {}
    models, told = {}, []
    for key in shown.models:
        options.say(f"loading {given.get(key, key)} ...")
        model = paper.load_panel_model(key, tiny=tiny, directory=given.get(key), backend=options.backend, **placed)
        made = _profiles(model, shown, key, questions, options)
        heads = shown.heads(key)
        checks = paper.check_claims(
            made["Mless"],
            heads=[head for head in heads if head.layer == 0],
            random_sentence=made.pop("draws"),
            meaningful=made.get("Mful"),
            claims=[claim.key for claim in paper.CLAIMS.values() if figure in claim.figures],
            seed=options.seed,
        )
        told.append(f"{checks!r}\n")
        results |= {f"{key} claims": checks} | {f"{key} {name}": profile for name, profile in made.items()}
        models[key] = provenance(model)["model"]
        (pair,) = make_pairs(model, questions[:1], filler, template=options.template)
        beside[f"{key} prompt"] = ShownPrompt.of(model, pair)
        if model.info.attention == "eager":
            beside[f"{key} attention"] = read_attention(model, pair, heads[:3])
        del model
    doubt = f"What is open: {shown.doubt}"
    told.append(f"{shown.number}: {shown.caption} {doubt}")
    if tiny:
        told.append("The models are random stand-ins: what holds here holds without any training.")
    facts = {
        "settings": {name: getattr(options, name) for name in ("template", "n_tokens", "rows", "draws")}
        | {"n_problems": len(questions)},
        "problems": [question.id for question in questions],
        "figure": shown.number,
        "caption": shown.caption,
        "doubt": shown.doubt,
        "tiny": tiny,
        "models": models,
    }
    return Computed(results, "\n".join(told), None, beside, facts)


def present(kept: Kept) -> Presented:
    """The figure in the paper's arrangement, its numbers, the claims, and the page."""
    import pandas as pd

    from .. import paper
    from ..views.circuitsvis import attention_view
    from ..views.report import Report

    shown, run = paper.FIGURES[kept.options["figure"]], kept.run
    names = {key: run["models"][key]["name"] for key in shown.models}
    found: dict[str, Profiles] = {key: {} for key in shown.models}
    checks = {}
    for name, result in kept.results.items():
        key, _, series = name.partition(" ")
        if series == "claims":
            checks[key] = result
        else:
            found[key][series] = result
    checked = [checks[key].to_frame().assign(model=names[key]) for key in shown.models]
    curves = [
        profile.curves(heads=shown.heads(key)).assign(series=series, model=names[key])
        for key in shown.models
        for series, profile in found[key].items()
    ]
    picture = _draw(shown, found)
    doubt = f"What is open: {run['doubt']}"

    def page() -> Report:
        stand_ins = " What holds of these random stand-ins of the models holds without any training." * run["tiny"]
        question = (
            f"Does what {shown.number} claims of {', '.join(shown.models)} hold on {len(run['problems'])} problems?"
            f"{stand_ins}"
        )
        made = Report(f"{shown.number} of arXiv 2510.01032 and its claims", question=question)
        for key in shown.models:
            made = made.result(checks[key], heading=names[key])
            if f"{key} attention" in kept.shown:
                made = made.view(attention_view(kept.shown[f"{key} attention"]))
            made = made.shown_prompt(kept.shown[f"{key} prompt"])
        return made.heading("The figure").figure(picture, shown.caption).sentence(doubt)

    files = {
        "figure.png": picture,
        "figure.csv": pd.concat(curves),
        **({"bars.csv": _bars()} if shown.kind == "bars_and_head" else {}),
        "claims.csv": pd.concat(checked),
    }
    return Presented(files, page)


def _directories(figure: Any, given: list[str] | None) -> dict[str, str]:
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


def _profiles(model: Any, figure: Any, key: str, questions: Any, options: Options) -> Profiles:
    """The profiles that a figure and its claims need, by series; `draws` holds every draw of random words."""
    from ..prompts.insertions import Insertion
    from ..prompts.pairs import make_pairs
    from ..scores import attention_profile

    n_tokens, seed = options.n_tokens, options.seed
    common: dict[str, Any] = {"heads": figure.heads(key), "rows": options.rows, "seed": seed}
    common["progress"] = options.progress

    def profile(name: str, filler: Insertion, *conditions: str) -> Any:
        pairs = make_pairs(model, questions, filler, template=options.template)
        kept = options.partial / key / f"{name}.jsonl"
        return attention_profile(model, pairs, conditions=("base", "inserted", *conditions), checkpoint=kept, **common)

    made: Profiles = {"Mless": profile("mless", Insertion.meaningless(n_tokens=n_tokens), "gap"), "draws": []}
    if figure.kind in ("against_random_sentence", "bars_and_head"):
        for draw in range(options.draws):
            words = Insertion.random_sentence(n_tokens, seed=seed, draw=draw)
            made["draws"].append(profile(f"random-{draw}", words))
    if figure.kind == "against_random_sentence":
        made["random words"] = made["draws"][0]
    if figure.kind == "bars_and_head":
        made["Mful"] = profile("mful", Insertion.meaningful(n_tokens=n_tokens))
    return made


def _bars() -> Any:
    from ..paper import published

    return published(source="Figure 10 (read off the bars)")


def _draw(figure: Any, found: dict[str, Profiles]) -> Any:
    """The figure in the paper's arrangement."""
    from .. import views

    made = found[figure.models[0]]
    if figure.kind == "with_and_without":
        return views.profiles(made["Mless"], conditions=("base", "inserted"))
    if figure.kind == "layers":
        names = {"base": "None", "inserted": "Mless"}
        return views.profiles(made["Mless"], conditions=("base", "inserted"), whole=False, names=names)
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
        return views.compare_profiles(panels)
    named = {name: made[name] for name in ("Mless", "Mful")}
    title = "MATH-500 as published (read off the paper's bars)"
    return views.bars_and_profiles(_bars(), named, figure.panels[0].head, bars_title=title)


app = program("reproduce_figures", compute, present)
