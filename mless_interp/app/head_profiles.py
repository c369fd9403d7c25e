"""`mless-interp profiles`: how much attention every token receives with and without insertions, head by head."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from ..core.arguments import Arguments, one_of, several_of
from ..core.heads import Head
from ..prompts.conditions import CONDITIONS, as_words
from .command_line import METRICS, Asking, Kind, Rows, chosen_insertion, chosen_names, option
from .run_folder import Computed, Kept, Presented, Report, program, shown_attention

if TYPE_CHECKING:
    from ..prompts.insertions import Insertion
    from ..scores import HeadScores


@dataclass(frozen=True, kw_only=True)
class Options(Asking):
    insertion: list[str] | None = option(
        None,
        f"KIND or KIND=UNIT ('meaningful=she'), repeatable; of {', '.join(get_args(Kind))}. [default: meaningless]",
    )
    n_tokens: int | None = None
    place: str = "before-question"
    layers: str | None = None
    heads: str | None = None
    metrics: str | None = option(None, "Names, separated by commas, 'all', or 'sinks'. [default: the usual ones]")
    conditions: str = option("base,inserted", f"{as_words(CONDITIONS)}. All are compared with the first.")
    rows: Rows = option("shared", "Rows averaged over: shared, all, question (of tokens after the span).")
    show: int = option(3, "Number of heads to draw (the chosen, or the most collapsed and the best reader).", min=1)
    twins: int = 3
    out: Path = Path("results/head_profiles")


def compute(options: Options) -> Computed:
    """Describe attention heads with and without insertions.

    Writes heads.csv (a row per insertion and head), scores.parquet (a row per problem, head and metric), curves.csv and
    profile_*.png (received attention per token, an insertion each), collapse_*.png (a map of all heads).
    """
    conditions = chosen_names(options.conditions)
    several_of(conditions, CONDITIONS, "condition")
    for asked in options.insertion or ():
        one_of(asked.partition("=")[0], get_args(Kind), "insertion")
    metrics = options.metrics if options.metrics in (None, "all", "sinks") else chosen_names(options.metrics or "")
    for metric in metrics if isinstance(metrics, tuple) else ():
        one_of(metric.removesuffix("_last"), METRICS, "metric")
    questions = options.questions()
    fillers = _insertions(options)
    from ..models.load import untrained_twin
    from ..prompts.pairs import make_pairs
    from ..scores import attention_profile, score_heads
    from ..scores.catalogue import chosen_metrics
    from ..views.report import ShownPrompt

    chosen_metrics(metrics)
    model = options.load(*fillers)
    heads = options.heads_of((model.info.n_layers, model.info.n_heads))
    common = options.common | {"conditions": conditions, "rows": options.rows}
    pairs = [make_pairs(model, questions, filler, template=options.template) for filler in fillers]
    results: dict[str, Any] = {}
    shown: dict[str, Any] = {}

    def scored(of: Any, number: int, name: str) -> "HeadScores":
        file = options.partial / f"scores-{number}{name}.jsonl"
        return score_heads(of, pairs[number], heads=heads, metrics=metrics, checkpoint=file, **common)

    for number, some in enumerate(pairs):
        found = scored(model, number, "")
        drawn, file = _to_draw(found, options.show), options.partial / f"profile-{number}.jsonl"
        profile = attention_profile(model, some, heads=drawn, checkpoint=file, **common)
        results |= {f"scores_{number}": found, f"profile_{number}": profile}
        shown[f"prompt_{number}"] = ShownPrompt.of(model, some[0])
        shown |= shown_attention(model, some, drawn, f"attention_{number}")
    for seed in range(options.twins):
        options.say(f"untrained twin {seed + 1} of {options.twins} ...")
        twin = untrained_twin(model, seed)
        for number in range(len(pairs)):
            found = results[f"scores_{number}"]
            twins = (*found.twins, scored(twin, number, f"-twin-{seed}"))
            results[f"scores_{number}"] = replace(found, twins=twins)
    prompts = {filler.label: [pair.record() for pair in some] for filler, some in zip(fillers, pairs, strict=True)}
    insertions = [{"kind": filler.kind, "label": filler.label} for filler in fillers]
    facts = {"n_problems": len(questions), "prompts": prompts, "insertions": insertions}
    return Computed(results, model, shown=shown, facts=facts)


def _insertions(options: Options) -> "list[Insertion]":
    """Return those asked for; `--n-tokens` is the length of those that are counted, and of the others where none is."""
    from ..prompts.insertions import KINDS

    asked = [text.partition("=") for text in options.insertion or ["meaningless"]]
    given: Arguments = {"seed": options.seed, "pool": lambda: options.first(None), "place": options.place}
    any_counted, made = any(KINDS[kind].counted for kind, _, _ in asked), []
    for kind, equals, unit in asked:
        n_tokens = options.n_tokens if KINDS[kind].counted or not any_counted else None
        made.append(chosen_insertion(kind, unit if equals else None, n_tokens=n_tokens, **given))
    return made


def _to_draw(found: "HeadScores", show: int) -> list[Head]:
    """Return the heads to draw: the most collapsed and, if more than one may be, the one that reads the span most; those that
    were asked for, where they are no more."""
    if len(found.heads) <= show:
        return list(found.heads)
    metric = "collapse_relative" if "collapse_relative" in found.metrics else found.metrics[0]
    drawn = list(found.top(metric, show)["label"])
    if "span_mass" in found.metrics and show > 1:
        reader = found.top("span_mass", 1)["label"].iloc[0]
        drawn = drawn if reader in drawn else [*drawn[:-1], reader]
    return [Head.parse(label) for label in drawn]


def present(kept: Kept) -> Presented:
    """Make tables over all insertions, a profile and a map of each, and the page."""
    import pandas as pd

    from .. import views

    fillers = kept.run["insertions"]
    scores, profiles = ([kept.results[f"{name}_{at}"] for at in range(len(fillers))] for name in ("scores", "profile"))
    pictures: dict[str, object] = {}
    for number, (filler, found) in enumerate(zip(fillers, scores, strict=True)):
        pictures[f"profile_{number}_{filler['kind']}.png"] = views.profiles(profiles[number])
        if "collapse_relative" in found.metrics:
            pictures[f"collapse_{number}_{filler['kind']}.png"] = views.head_map(found, value="collapse_relative")

    def page() -> Report:
        question = f"How much attention does each token receive, conditions {', '.join(scores[0].conditions)}?"
        made = kept.page("What attention heads do with inserted tokens", question, scores[0])
        made = replace(made, answer=" ".join(found.headline() for found in scores))
        caption = "Attention received per token; grey: uniform attention, shaded: inserted tokens."
        for number, (filler, found) in enumerate(zip(fillers, scores, strict=True)):
            picture = pictures[f"profile_{number}_{filler['kind']}.png"]
            made = made.result(found, heading=filler["label"], pictures={caption: picture})
            made = kept.view(made, f"attention_{number}").prompt(kept.shown[f"prompt_{number}"])
        return made

    def joined(tables: list[pd.DataFrame]) -> pd.DataFrame:
        return pd.concat(table.assign(insertion=of["label"]) for of, table in zip(fillers, tables, strict=True))

    files = {"heads.csv": joined([found.table() for found in scores]), **pictures}
    files |= {"scores.parquet": joined([found.to_frame() for found in scores])}
    return Presented(files | {"curves.csv": joined([profile.curves() for profile in profiles])}, page)


app = program("head_profiles", compute, present)
