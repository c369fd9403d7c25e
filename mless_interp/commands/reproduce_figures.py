"""`mless-interp figures`: do the paper's attention figures, and what they claim, hold on a model."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from typer import Option

from ..command_line import (
    Loading,
    NTokensOption,
    ProblemOption,
    Saving,
    TemplateOption,
    chosen_problems,
    fewer_than,
    place_of_problem,
)
from ..given import count_of
from .kept import Computed, Kept, Presented, program, shown_attention

Profiles = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Options(Loading, Saving):
    """What can be asked."""

    figure: Annotated[str, Option(help="The paper's number: 13 (000), 11 (001), 9 (002), 18 (003) or 10 (004).")]
    model: Annotated[
        list[str] | None,
        Option(
            help="A directory or hub id in place of the paper's model; for figure 001, which has three, "
            "NAME=DIRECTORY, repeatable (names: Qwen2.5-Math-7B, Llama3.1-8B-Instruct, Gemma3-4b-it)."
        ),
    ] = None
    tiny: Annotated[bool, Option("--tiny", help="Small random stand-ins of the models: to try this command.")] = False
    problems: Annotated[
        str | None,
        Option(help="'demo', 'math500' (from the hub), or a .jsonl file. [default: the model's own, else math500]"),
    ] = None
    limit: Annotated[int, Option(min=1, help="How many problems; the paper's figures probably show one.")] = 32
    template: TemplateOption = "raw"
    n_tokens: NTokensOption = 55
    rows: Annotated[str, Option(help="Rows averaged over: shared, or all (probably the paper's).")] = "shared"
    answers: Annotated[
        bool | None,
        Option(
            "--answers/--no-answers",
            help="Figure 10: also answer the problems, for bars of one's own beside the published. [default: with --model]",
        ),
    ] = None
    max_new_tokens: Annotated[
        int | None, Option(min=1, help="Figure 10: longest answer. [default: 2048, or what the context leaves]")
    ] = None
    problem: ProblemOption = None
    draws: Annotated[int, Option(min=1, help="Draws of random words per problem, averaged.")] = 3
    out: Annotated[Path | None, Option(help="Folder for the results. [default: results/figure_<figure>]")] = None  # type: ignore[assignment]

    @property
    def folder(self) -> Path:
        """Where the results go."""
        return self.out or Path(f"results/figure_{''.join(filter(str.isalnum, self.figure.removeprefix('Figure')))}")


def compute(options: Options) -> Computed:
    """Draw one of the paper's figures and check its claims.

    Writes figure.png, figure.csv (the curves and bars behind it), claims.csv (claim, measured with interval, null,
    agrees / disagrees / cannot tell), the results themselves in results/ (mi.load) and run.json; with --report also
    report.html. A run that is stopped goes on from where it was when it is started again with the same settings.
    """
    from ..models.load import BACKENDS, tokenizer_of_model
    from ..paper.figures import figure_named, title_of
    from ..prompts.prompt import template_named
    from ..scores.layout import Thresholds
    from ..scores.score import check_rows
    from .answers import of_claims

    shown, tiny = figure_named(options.figure), options.tiny
    given = _directories(shown, options.model)
    template_named(options.template)
    check_rows(options.rows, min_rows=Thresholds().min_rows)
    options.loading()
    if options.backend not in BACKENDS:
        raise ValueError(f"unknown backend {options.backend!r}; choose one of {', '.join(BACKENDS)}")
    if len(shown.models) == 1 and not tiny:  # of several, one that fails keeps the others
        for directory in given.values():
            tokenizer_of_model(directory)
    questions = {key: _questions(options, given.get(key)) for key in shown.models}
    fewest = min(map(len, questions.values()))
    few = fewer_than(options.limit, fewest)
    if few:
        sys.stderr.write(f"{few}\n")
    results: dict[str, Any] = {}
    beside: dict[str, Any] = {}
    models, told, failed, checks = {}, [], {}, {}
    for key in shown.models:
        try:
            found, around, models[key] = _of_one_model(shown, key, given.get(key), questions[key], options)
        except Exception as error:
            if len(shown.models) == 1 or (key == shown.models[-1] and not models):
                raise
            failed[title_of(key)] = " ".join(str(error).split()) or type(error).__name__
            options.say(f"{title_of(key)} failed ({failed[title_of(key)]}); the others go on ...")
            continue
        checks[models[key]["name"]] = found[f"{key} claims"]
        told.append(f"{found[f'{key} claims']!r}\n")
        results |= found
        beside |= around
    told = [of_claims(checks, shown.number), *told, f"{shown.number}: {shown.caption} {shown.doubt}".rstrip()]
    told += [f"{name} failed: {why}" for name, why in failed.items()]
    if tiny:
        told.append("The models are random stand-ins: what holds here holds without any training.")
    facts = {
        "settings": {name: getattr(options, name) for name in ("template", "n_tokens", "rows", "draws")}
        | {"n_problems": max(map(len, questions.values()))},
        "problems": {key: [question.id for question in questions[key]] for key in models},
        "figure": shown.number,
        "caption": shown.caption,
        "doubt": shown.doubt,
        "tiny": tiny,
        "models": models,
    }
    return Computed(results, "\n".join(told), None, beside, facts, failed, notes=[few] * bool(few))


def _questions(options: Options, directory: str | None) -> Any:
    """The problems of one model: those that were asked for, else its own, else MATH-500."""
    from .. import paper

    if options.problems is None and options.tiny:
        return paper.stand_in_problems(options.limit, seed=options.seed)
    own = directory is not None and (directory == "demo" or (Path(directory) / "problems.jsonl").is_file())
    asked = options.problems or (None if own else "math500")
    return chosen_problems(asked, directory or "", limit=options.limit)


def _of_one_model(
    figure: Any, key: str, directory: str | None, questions: Any, options: Options
) -> tuple[dict[str, Any], dict[str, Any], Any]:
    """Results, what is shown beside them, and provenance of one model of a figure."""
    from .. import paper
    from ..paper.figures import title_of
    from ..prompts.insertions import Insertion
    from ..prompts.pairs import make_pairs
    from ..running.store import provenance
    from ..views.report import ShownPrompt

    problem = place_of_problem(options.problem, questions)
    loading = options.loading()
    if options.tiny:
        loading = {name: loading[name] for name in ("backend", "attn_implementation")}
    options.say(f"loading {directory or title_of(key)} ...")
    model = paper.load_panel_model(key, tiny=options.tiny, directory=directory, **loading)
    made = _profiles(model, figure, key, questions, options)
    heads = figure.heads(key)
    checks = paper.check_claims(
        made["Mless"],
        heads=[head for head in heads if head.layer == 0],
        random_sentence=made.pop("draws"),
        meaningful=made.get("Mful"),
        claims=[claim.key for claim in paper.CLAIMS.values() if figure.key in claim.figures],
        seed=options.seed,
    )
    results = {f"{key} claims": checks} | {f"{key} {name}": profile for name, profile in made.items()}
    answers = options.answers if options.answers is not None else directory is not None
    if figure.kind == "bars_and_head" and answers:
        results[f"{key} answers"] = _answered(model, key, questions, options)
    filler = Insertion.meaningless(n_tokens=options.n_tokens)
    pairs = make_pairs(model, questions, filler, template=options.template)
    beside: dict[str, Any] = {f"{key} prompt": ShownPrompt.of(model, pairs[0])}
    if model.info.attention == "eager":
        beside[f"{key} attention"] = shown_attention(model, pairs, heads[:3], problem)
    return results, beside, provenance(model)["model"]


def _answered(model: Any, key: str, questions: Any, options: Options) -> Any:
    """The problems answered without insertion and under both of the figure's."""
    from ..accuracy import Treatment, evaluate_accuracy
    from ..prompts.insertions import Insertion

    n = options.n_tokens
    treatments = [
        Treatment(name="none"),
        Treatment(Insertion.meaningless(n_tokens=n), name="mless"),
        Treatment(Insertion.meaningful(n_tokens=n), name="mful"),
    ]
    return evaluate_accuracy(
        model,
        questions,
        treatments,
        max_new_tokens=options.max_new_tokens,
        template=options.template,
        checkpoint=options.partial / key / "answers.jsonl",
        progress=options.progress,
        seed=options.seed,
    )


def present(kept: Kept) -> Presented:
    """The figure in the paper's arrangement, its numbers, the claims, and the page."""
    import pandas as pd

    from ..paper.figures import figure_named, title_of
    from ..views.circuitsvis import attention_view
    from ..views.report import Report
    from .answers import model_name, of_accuracy, of_claims

    shown, run = figure_named(kept.options["figure"]), kept.run
    keys = [key for key in shown.models if key in run["models"]]
    names = {key: model_name(run["models"][key]["name"]) for key in keys}
    found: dict[str, Profiles] = {key: {} for key in keys}
    checks, answered = {}, {}
    for name, result in kept.results.items():
        key, _, series = name.partition(" ")
        if series == "claims":
            checks[key] = result
        elif series == "answers":
            answered[key] = result
        else:
            found[key][series] = result
    checked = [checks[key].to_frame().assign(model=names[key]) for key in keys]
    curves = [
        profile.curves(heads=shown.heads(key)).assign(series=series, model=names[key])
        for key in keys
        for series, profile in found[key].items()
    ]
    bars = _bars({names[key]: result for key, result in answered.items()}) if shown.kind == "bars_and_head" else None
    picture = _draw(shown, found, names, bars)
    failed = run.get("failed") or {}

    def page() -> Report:
        stand_ins = " What holds of these random stand-ins of the models holds without any training." * run["tiny"]
        own = [name for key, name in names.items() if name != title_of(key)]
        instead = f" Here with {', '.join(own)} in {'its' if len(own) == 1 else 'their'} place." if own else ""
        question = (
            f"Does what {shown.number} claims of {', '.join(map(title_of, shown.models))} hold on "
            f"{count_of(run['settings']['n_problems'], 'problem')}?{instead}{stand_ins}"
        )
        answer = of_claims({names[key]: checks[key] for key in keys}, shown.number)
        made = Report(f"{shown.number} of arXiv 2510.01032 and its claims", question=question, answer=answer)
        made = made.sentence(*(f"{name} failed and is left out: {why}" for name, why in failed.items()))
        made = made.heading("The figure").figure(picture, shown.caption)
        made = made.sentence(*[run["doubt"]] * bool(run["doubt"]))
        for key in keys:
            made = made.result(checks[key], heading=names[key])
            if key in answered:
                made = made.sentence(of_accuracy(answered[key])).result(answered[key], heading=None)
            if f"{key} attention" in kept.shown:
                made = made.view(attention_view(kept.shown[f"{key} attention"]))
            made = made.shown_prompt(kept.shown[f"{key} prompt"])
        return made

    files = {
        "figure.png": picture,
        "figure.csv": pd.concat(curves),
        **({} if bars is None else {"bars.csv": bars}),
        "claims.csv": pd.concat(checked),
    }
    return Presented(files, page)


def _directories(figure: Any, given: list[str] | None) -> dict[str, str]:
    """Model key -> what to load in its place."""
    from ..paper.figures import key_of, title_of

    found: dict[str, str] = {}
    titles = ", ".join(map(title_of, figure.models))
    for text in given or []:
        name, equals, directory = text.partition("=")
        if not equals and len(figure.models) == 1:
            name, directory = figure.models[0], text
        elif not equals:
            raise ValueError(
                f"{figure.number} shows {len(figure.models)} models: write --model NAME=DIRECTORY for each ({titles})"
            )
        if key_of(name) not in figure.models:
            raise ValueError(f"{figure.number} does not show {name!r}, but {titles}")
        found[key_of(name)] = directory
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


def _bars(answered: dict[str, Any]) -> Any:
    """The paper's bars, and behind them those of one's own models with their intervals."""
    import pandas as pd

    from ..paper import published
    from ..paper.figures import title_of

    printed = published(source="Figure 10 (read off the bars)")
    parts = [printed.assign(model=printed["model"].map(title_of), low=float("nan"), high=float("nan"), n=float("nan"))]
    for name, found in answered.items():
        table = found.summary()
        own = 100 * table[["accuracy", "low", "high"]]
        parts.append(
            table[["treatment", "n"]].assign(
                model=f"{name} (measured)", percent=own["accuracy"], low=own["low"], high=own["high"], source="measured"
            )
        )
    return pd.concat(parts, ignore_index=True)


def _draw(figure: Any, found: dict[str, Profiles], names: dict[str, str], bars: Any) -> Any:
    """The figure in the paper's arrangement, of the models that there are."""
    from .. import views

    made = next(iter(found.values()))
    if figure.kind == "with_and_without":
        return views.profiles(made["Mless"], conditions=("base", "inserted"))
    if figure.kind == "layers":
        shown = {"base": "None", "inserted": "Mless"}
        return views.profiles(made["Mless"], conditions=("base", "inserted"), whole=False, names=shown)
    if figure.kind == "against_random_sentence":
        series = ("Mless", "random words")
        panels = [
            (names[panel.model], panel.head, {name: found[panel.model][name] for name in series})
            for panel in figure.panels
            if panel.model in found
        ]
        return views.compare_profiles(panels)
    named = {name: made[name] for name in ("Mless", "Mful")}
    title = "accuracy (%): MATH-500 as published (read off the paper's bars)"
    measured = bars.loc[bars["source"] == "measured", "n"]
    if len(measured):
        title += f",\nand measured on {count_of(int(measured.max()), 'problem')} (95 % intervals)"
    return views.bars_and_profiles(bars, named, figure.panels[0].head, bars_title=title)


app = program("reproduce_figures", compute, present)
