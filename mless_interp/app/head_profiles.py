"""`mless-interp profiles`: how much attention every token receives with and without insertions, head by head."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

from typer import Option

from ..core.arguments import count_of
from ..prompts.conditions import CONDITIONS, as_words, one_of, several_of
from .command_line import (
    Asking,
    HeadsOption,
    Kind,
    LayersOption,
    LengthOption,
    OutOption,
    PlaceOption,
    Rows,
    TwinsOption,
    chosen_heads,
    chosen_insertion,
    chosen_names,
)
from .run_folder import Computed, Kept, Presented, program, shown_attention

if TYPE_CHECKING:
    from ..prompts.insertions import Insertion


@dataclass(frozen=True, kw_only=True)
class Options(Asking):
    """What can be asked."""

    insertion: Annotated[
        list[str] | None,
        Option(
            help=f"KIND or KIND=UNIT, repeatable; a KIND is one of {', '.join(get_args(Kind))}; for example --insertion "
            "meaningless --insertion 'meaningful=she'. [default: meaningless]"
        ),
    ] = None
    n_tokens: LengthOption = None
    place: PlaceOption = "before-question"
    layers: LayersOption = None
    heads: HeadsOption = None
    metrics: Annotated[
        str | None, Option(help="Names, separated by commas, 'all', or 'sinks'. [default: the usual ones]")
    ] = None
    conditions: Annotated[str, Option(help=f"{as_words(CONDITIONS)}. All are compared with the first.")] = (
        "base,inserted"
    )
    rows: Annotated[Rows, Option(help="Rows averaged over: shared, all, question (of tokens after the span).")] = (
        "shared"
    )
    show: Annotated[
        int,
        Option(
            min=1, help="Number of heads to draw (the chosen ones, or the most collapsed and the one that reads most)."
        ),
    ] = 3
    twins: TwinsOption = 3
    out: OutOption = Path("results/head_profiles")


def compute(options: Options) -> Computed:
    """Describe attention heads with and without insertions.

    Writes heads.csv (a row per insertion and head), scores.parquet (a row per problem, head and metric), curves.csv and
    profile_*.png (received attention per token, an insertion each), collapse_*.png (a map of all heads), the results
    themselves in results/ (mi.load) and run.json; with --report also report.html.
    A stopped run resumes when you start it again with the same settings.
    """
    chosen_heads(options.heads, options.layers)
    conditions = chosen_names(options.conditions)
    several_of(conditions, CONDITIONS, "condition")
    questions = options.questions()
    fillers = _insertions(options)
    from ..models.load import untrained_twin
    from ..prompts.pairs import make_pairs
    from ..scores import attention_profile, score_heads
    from ..scores.catalogue import chosen_metrics
    from ..views.report import ShownPrompt
    from .endings import told_heads

    metrics = options.metrics if options.metrics in (None, "all", "sinks") else chosen_names(options.metrics or "")
    chosen_metrics(metrics)
    model = options.load()
    heads = chosen_heads(options.heads, options.layers, (model.info.n_layers, model.info.n_heads))
    common: dict[str, Any] = {"conditions": conditions, "rows": options.rows, **options.common}
    results: dict[str, Any] = {}
    shown: dict[str, Any] = {}
    prompts = {}
    for number, filler in enumerate(fillers):
        pairs = make_pairs(model, questions, filler, template=options.template)
        kept = {what: options.partial / f"{what}-{number}.jsonl" for what in ("scores", "profile")}
        found = score_heads(model, pairs, heads=heads, metrics=metrics, checkpoint=kept["scores"], **common)
        drawn = told_heads(found, options.show)
        profile = attention_profile(model, pairs, heads=drawn, checkpoint=kept["profile"], **common)
        results |= {f"scores_{number}": found, f"profile_{number}": profile}
        shown[f"prompt_{number}"] = ShownPrompt.of(model, pairs[0])
        if options.attention == "eager":
            shown[f"attention_{number}"] = shown_attention(model, pairs, drawn)
        prompts[filler.label] = [pair.record() for pair in pairs]
    for seed in range(options.twins):
        options.say(f"untrained twin {seed + 1} of {options.twins} ...")
        twin = untrained_twin(model, seed)
        for number, filler in enumerate(fillers):
            pairs = make_pairs(twin, questions, filler, template=options.template)
            name = f"scores_{number}"
            file = options.partial / f"scores-{number}-twin-{seed}.jsonl"
            made = score_heads(twin, pairs, heads=heads, metrics=metrics, checkpoint=file, **common)
            results[name] = replace(results[name], twins=(*results[name].twins, made))
    scores = [results[f"scores_{number}"] for number in range(len(fillers))]
    facts = {
        "settings": scores[-1].settings,
        "n_problems": len(questions),
        "insertions": [{"kind": filler.kind, "label": filler.label} for filler in fillers],
        "prompts": prompts,
    }
    return Computed(results, model, (), shown, facts)


def present(kept: Kept) -> Presented:
    """Tables over all insertions, a profile and a map of each, and the page."""
    import pandas as pd

    from .. import views
    from ..views.report import Report

    results, fillers = kept.results, kept.run["insertions"]
    scores = [results[f"scores_{number}"] for number in range(len(fillers))]
    profiles = [results[f"profile_{number}"] for number in range(len(fillers))]
    labels = [filler["label"] for filler in fillers]
    pictures: dict[str, Any] = {}
    for number, (filler, found) in enumerate(zip(fillers, scores, strict=True)):
        pictures[f"profile_{number}_{filler['kind']}.png"] = views.profiles(profiles[number])
        if "collapse_relative" in found.metrics:
            pictures[f"collapse_{number}_{filler['kind']}.png"] = views.head_map(found, value="collapse_relative")

    def page() -> Report:
        question = (
            f"How much attention does each token of {count_of(kept.run['n_problems'], 'problem')} receive from the heads of "
            f"{kept.model_name}, conditions {', '.join(scores[0].conditions)}, for {', '.join(labels)} "
            f"(template {kept.options['template']})?"
        )
        answers = [found.headline() for found in scores]
        made = Report("What attention heads do with inserted tokens", question=question, answer=" ".join(answers))
        for number, (filler, found) in enumerate(zip(fillers, scores, strict=True)):
            caption = "Attention received per token; grey: uniform attention, shaded: inserted tokens."
            picture = pictures[f"profile_{number}_{filler['kind']}.png"]
            made = made.result(found, heading=filler["label"], pictures={caption: picture})
            made = kept.view(made, f"attention_{number}").shown_prompt(kept.shown[f"prompt_{number}"])
        return made

    def joined(tables: list[Any]) -> pd.DataFrame:
        return pd.concat(table.assign(insertion=label) for label, table in zip(labels, tables, strict=True))

    files = {
        "heads.csv": joined([found.table() for found in scores]),
        "scores.parquet": joined([found.to_frame() for found in scores]),
        "curves.csv": joined([profile.curves() for profile in profiles]),
        **pictures,
    }
    return Presented(files, page)


def _insertions(options: Options) -> "list[Insertion]":
    """Those asked for; `--n-tokens` is the length of those that are counted, and of the others where none is."""
    asked = [text.partition("=") for text in options.insertion or ["meaningless"]]
    for kind, _, _ in asked:
        one_of(kind, dict.fromkeys(get_args(Kind)), "insertion")
    from ..prompts.insertions import KINDS as BY_NAME

    given: dict[str, Any] = {"seed": options.seed, "pool": lambda: options.first(None), "place": options.place}
    any_counted, made = any(BY_NAME[kind].counted for kind, _, _ in asked), []
    for kind, equals, unit in asked:
        n_tokens = options.n_tokens if BY_NAME[kind].counted or not any_counted else None
        made.append(chosen_insertion(kind, unit if equals else None, n_tokens=n_tokens, **given))
    return made


app = program("head_profiles", compute, present)
