"""`mless-interp figures`: do the paper's attention figures, and what they claim, hold on a model."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..core.arguments import Arguments, count_of
from ..prompts.problems import Problem
from .command_line import REQUIRED, Loading, Rows, Saving, is_file, is_model, option, problems_of
from .run_folder import Computed, Kept, Presented, Report, program, shown_attention

if TYPE_CHECKING:
    import pandas as pd

    from ..paper import Figure


@dataclass(frozen=True, kw_only=True)
class Options(Loading, Saving):
    figure: str = option(REQUIRED, "The paper's number: 13 (000), 11 (001), 9 (002), 18 (003) or 10 (004).")
    model: list[str] | None = option(
        None,
        "A directory or hub id in place of the paper's model; of figure 11's three models NAME=DIRECTORY, repeatable.",
        callback=lambda given: given and [text for text in given if is_model(text.rpartition("=")[2])],
    )
    tiny: bool = option(False, "Small random stand-ins of the models, without twins: to try this command.", "--tiny")
    problems: str | None = option(
        None,
        "'demo', 'math500' (from the hub), or a .jsonl file. [default: the model's own, else math500]",
        callback=is_file,
    )
    limit: int = option(32, "Number of problems; the paper's figures probably show one.", min=1)
    template: str = "raw"
    n_tokens: int = option(55, "Length of the insertion in tokens.", min=1)
    rows: Rows = option("shared", "Rows averaged over: shared, or all (probably the paper's).")
    answers: bool | None = option(
        None,
        "Figure 10: also answer the problems, for bars of the model. [default: with --model]",
        "--answers/--no-answers",
    )
    max_new_tokens: int | None = None
    twins: int = 3
    out: Path = Path("results/figure")


def compute(options: Options) -> Computed:
    """Draw one of the paper's figures and check its claims.

    Writes figure.png, figure.csv (the curves behind it), claims.csv (claim, measured with interval, null, agrees / disagrees /
    cannot tell); of figure 10 also bars.png and bars.csv.
    """
    from ..paper.figures import figure_named, title_of

    figure = figure_named(options.figure)
    directories = _directories(figure, options.model)
    loading, engine = options.loading(), options.computing()
    questions = {key: _questions(options, directory) for key, directory in directories.items()}
    from .. import paper
    from ..answers import Treatment, evaluate_accuracy
    from ..ground_truth.stand_ins import stand_in
    from ..models.load import load_model
    from ..prompts.insertions import Insertion
    from ..prompts.pairs import make_pairs
    from ..runtime.store import provenance
    from ..views.report import ShownPrompt

    results: dict[str, Any] = {}
    shown: dict[str, object] = {}
    models: dict[str, object] = {}
    filler, mful = Insertion.meaningless(n_tokens=options.n_tokens), Insertion.meaningful(n_tokens=options.n_tokens)
    common = options.chosen("template") | options.common
    how = options.chosen("n_tokens", "rows", "twins") | common
    if options.tiny:
        loading = {name: loading[name] for name in ("backend", "attn_implementation")}
        how["twins"] = 0  # of what was never trained
    for key, directory in directories.items():
        options.say(f"{'making a stand-in for' if options.tiny else 'loading'} {directory or title_of(key)} ...")
        real = paper.MODELS[key]
        if options.tiny:
            sizes: Arguments = {"n_heads": real.n_heads, "n_key_value_heads": real.n_key_value_heads}
            model = stand_in(real.architecture, name=real.title, **sizes, **loading).on(engine)
        else:
            model = load_model(directory or real.hub_id, **loading).on(engine)
        heads, folder = figure.heads(key), options.partial / key
        found = paper.reproduce_figure(model, figure.key, questions[key], heads=heads, checkpoint=folder, **how)
        if figure.kind == "bars_and_head" and (directory is not None if options.answers is None else options.answers):
            treatments = [Treatment(name="none"), Treatment(filler, name="mless"), Treatment(mful, name="mful")]
            kept = {"checkpoint": folder / "answers.jsonl", "max_new_tokens": options.max_new_tokens} | common
            found["answers"] = evaluate_accuracy(model, questions[key], treatments, **kept)
        pairs = make_pairs(model, questions[key], filler, template=options.template)
        shown[f"{key} prompt"] = ShownPrompt.of(model, pairs[0])
        shown |= shown_attention(model, pairs, heads[:3], f"{key} attention")
        results |= {f"{key} {series}": each for series, each in found.items()}
        models[key] = provenance(model)["model"]
    said = [f"{figure.number}: {figure.caption}", *[figure.doubt] * bool(figure.doubt)]
    said += ["The models are random stand-ins: what holds here holds without any training."] * options.tiny
    results = dict(sorted(results.items(), key=lambda each: not each[0].endswith("claims")))
    facts: Arguments = {"n_problems": max(map(len, questions.values())), "tiny": options.tiny, "models": models}
    facts["problems"] = {key: [question.id for question in questions[key]] for key in models}
    return Computed(results, shown=shown, facts=facts, notes=said)


def _directories(figure: "Figure", given: list[str] | None) -> dict[str, str | None]:
    """Return what to load in place of each of the figure's models, by its key; None for the paper's own."""
    from ..paper.figures import key_of, title_of

    found: dict[str, str | None] = dict.fromkeys(figure.models)
    for text in given or []:
        name, equals, directory = text.partition("=")
        if not equals and len(figure.models) == 1:
            name, directory = figure.models[0], text
        if not directory or found.get(key_of(name), "") is not None:
            titles = ", ".join(map(title_of, figure.models))
            how = "write --model NAME=DIRECTORY for each once"
            raise ValueError(f"{figure.number} shows {titles}: {how}, got {text!r}")
        found[key_of(name)] = directory
    return found


def _questions(options: Options, directory: str | None) -> tuple[Problem, ...]:
    """Return the problems of one model: those that were asked for, else its own, else MATH-500."""
    if options.problems is None and options.tiny:
        from ..ground_truth.stand_ins import stand_in_problems

        return stand_in_problems(options.limit, seed=options.seed)
    own = directory is not None and (directory == "demo" or (Path(directory) / "problems.jsonl").is_file())
    return problems_of(directory or "", options.problems or (None if own else "math500"), limit=options.limit)


def present(kept: Kept) -> Presented:
    import pandas as pd

    from .. import views
    from ..paper.figures import figure_named, title_of
    from ..views.report import Report as Page

    figure, run = figure_named(kept.run["options"]["figure"]), kept.run
    names = {key: title_of(made["name"]) for key, made in run["models"].items()}
    found: dict[str, dict[str, Any]] = {key: {} for key in names}
    for name, result in kept.results.items():
        key, _, series = name.partition(" ")
        found[key][series] = result
    checks = {key: each.pop("claims") for key, each in found.items()}
    answered = {key: each.pop("answers") for key, each in found.items() if "answers" in each}
    if figure.kind == "against_random_sentence":
        panels = [(names[key], head, each) for key, each in found.items() for head in figure.heads(key)]
        picture = views.compare_profiles(panels)
    else:
        shown = [each[name] for each in found.values() for name in ("Mless", "Mful") if name in each]
        picture = views.profiles(shown, conditions=("base", "inserted"), whole=figure.kind != "layers")
    curves = [
        profile.curves(heads=figure.heads(key)).assign(series=series, model=names[key])
        for key in names
        for series, profile in found[key].items()
    ]
    claims = [check.to_frame().assign(model=names[key]) for key, check in checks.items()]
    files = {"figure.png": picture, "figure.csv": pd.concat(curves), "claims.csv": pd.concat(claims)}
    if figure.kind == "bars_and_head":
        bars = _bars({names[key]: result for key, result in answered.items()})
        files |= {"bars.csv": bars, "bars.png": views.bars_of_models(bars, BARS)}

    def page() -> Report:
        asked = ", ".join(f"{title_of(key)} (here {names[key]})" for key in names)
        question = f"Does what {figure.number} claims of {asked} hold on {count_of(run['n_problems'], 'problem')}?"
        answer = " ".join(each.headline() for each in checks.values())
        made = Page(f"{figure.number} of arXiv 2510.01032 and its claims", question, answer)
        made = made.heading("The figure").figure(picture, figure.caption)
        if "bars.png" in files:
            made = made.figure(files["bars.png"], BARS)
        for key, name in names.items():
            made = made.result(checks[key], heading=name)
            if key in answered:
                made = made.result(answered[key], heading=None)
            heading = f"Attention of the figure's heads, {name}"
            made = kept.view(made, f"{key} attention", heading=heading).prompt(kept.shown[f"{key} prompt"])
        return made

    return Presented(files, page)


BARS = "MATH-500 as published (read off the paper's bars), and measured where n is given (95 % intervals)."


def _bars(answered: dict[str, Any]) -> "pd.DataFrame":
    import pandas as pd

    from ..paper.figures import published, title_of

    printed = published().query("source == 'Figure 10 (read off the bars)'")
    parts = [printed.assign(model=printed["model"].map(title_of), low=float("nan"), high=float("nan"), n=float("nan"))]
    ends = {"accuracy": "percent", "accuracy_ci_low": "low", "accuracy_ci_high": "high"}
    for name, found in answered.items():
        table = found.table()[["treatment", "n", *ends]].rename(columns=ends)
        table[list(ends.values())] *= 100
        parts.append(table.assign(model=f"{name} (measured)", source="measured"))
    return pd.concat(parts, ignore_index=True)


app = program("reproduce_figures", compute, present)
