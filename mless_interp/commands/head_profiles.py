"""`mless-interp profiles`: how much attention every token receives with and without insertions, head by head."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from typer import Option

from ..command_line import (
    KINDS,
    Asking,
    ConditionsOption,
    HeadsOption,
    LayersOption,
    NTokensOption,
    OutOption,
    chosen_heads,
    chosen_insertion,
    chosen_names,
    read_heads,
)
from .kept import Computed, Kept, Presented, program


@dataclass(frozen=True, kw_only=True)
class Options(Asking):
    """What can be asked."""

    insertion: Annotated[
        list[str] | None,
        Option(
            help=f"KIND or KIND=UNIT, repeatable; a KIND is one of {KINDS}; for example --insertion meaningless "
            "--insertion 'meaningful=she'. [default: meaningless]"
        ),
    ] = None
    n_tokens: NTokensOption = 55
    layers: LayersOption = None
    heads: HeadsOption = None
    metrics: Annotated[str | None, Option(help="Names, separated by commas, or 'all'. [default: the usual ones]")] = (
        None
    )
    conditions: ConditionsOption = "base,inserted"
    rows: Annotated[str, Option(help="Rows averaged over: shared, all, question (of tokens after the span).")] = (
        "shared"
    )
    show: Annotated[int, Option(help="How many heads to draw (those chosen first, or the most collapsed).")] = 3
    out: OutOption = Path("results/head_profiles")


def compute(options: Options) -> Computed:
    """Describe attention heads with and without insertions.

    Writes heads.csv (a row per insertion and head), scores.parquet (a row per problem, head and metric), curves.csv and
    profile_*.png (received attention per token, an insertion each), collapse_*.png (a map of all heads), the results
    themselves in results/ (mi.load) and run.json; with --report also report.html. A run that is stopped goes on from where
    it was when it is started again with the same settings.
    """
    from ..prompts.conditions import CONDITIONS, several_of
    from ..prompts.pairs import make_pairs
    from ..scores import attention_profile, score_heads
    from ..scores.catalogue import chosen_metrics
    from ..scores.score import check_rows
    from ..views.pooling import read_attention
    from ..views.report import ShownPrompt

    questions = options.questions()
    fillers = [_insertion(text, options, questions) for text in options.insertion or ["meaningless"]]
    metrics = options.metrics if options.metrics in (None, "all") else chosen_names(options.metrics or "")
    conditions = chosen_names(options.conditions)
    chosen_metrics(metrics)
    several_of(conditions, CONDITIONS, "condition")
    check_rows(options.rows)
    read_heads(options.heads, options.layers)
    if options.show < 1:
        raise ValueError(f"--show must be 1 or more, got {options.show}")
    model = options.load()
    heads = chosen_heads(options.heads, options.layers, n_layers=model.info.n_layers, n_heads=model.info.n_heads)
    common: dict[str, Any] = {"conditions": conditions, "rows": options.rows, "seed": options.seed}
    common["progress"] = options.progress
    results: dict[str, Any] = {}
    shown: dict[str, Any] = {}
    prompts, told, found = {}, [], None
    for number, filler in enumerate(fillers):
        pairs = make_pairs(model, questions, filler, template=options.template)
        kept = {what: options.partial / f"{what}-{number}.jsonl" for what in ("scores", "profile")}
        found = score_heads(model, pairs, heads=heads, metrics=metrics, checkpoint=kept["scores"], **common)
        drawn = _drawn(found, heads, options.show)
        profile = attention_profile(model, pairs, heads=drawn, checkpoint=kept["profile"], **common)
        results |= {f"scores_{number}": found, f"profile_{number}": profile}
        shown[f"prompt_{number}"] = ShownPrompt.of(model, pairs[0])
        if options.attention == "eager":
            shown[f"attention_{number}"] = read_attention(model, pairs[0], drawn)
        prompts[filler.label] = [pair.record() for pair in pairs]
        told.append(repr(found))
    assert found is not None
    facts = {
        "settings": found.settings,
        "n_problems": len(questions),
        "insertions": [{"kind": filler.kind, "label": filler.label} for filler in fillers],
        "prompts": prompts,
    }
    return Computed(results, "\n".join(told), model, shown, facts)


def present(kept: Kept) -> Presented:
    """Tables over all insertions, a profile and a map of each, and the page."""
    import pandas as pd

    from .. import views
    from ..views.circuitsvis import attention_view
    from ..views.report import Report

    results, shown, fillers = kept.results, kept.shown, kept.run["insertions"]
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
            f"How much attention does each token of {kept.run['n_problems']} problems receive from the heads of "
            f"{kept.run['model']['name']}, conditions {', '.join(scores[0].conditions)}, for {', '.join(labels)} "
            f"(template {kept.options['template']})?"
        )
        made = Report("What attention heads do with inserted tokens", question=question)
        for number, (filler, found) in enumerate(zip(fillers, scores, strict=True)):
            caption = "Attention received per token; grey: uniform attention, shaded: inserted tokens."
            made = made.result(found, heading=filler["label"])
            made = made.figure(pictures[f"profile_{number}_{filler['kind']}.png"], caption)
            if f"attention_{number}" in shown:
                made = made.view(attention_view(shown[f"attention_{number}"]))
            made = made.shown_prompt(shown[f"prompt_{number}"])
        return made

    def joined(tables: list[Any]) -> pd.DataFrame:
        return pd.concat(table.assign(insertion=label) for label, table in zip(labels, tables, strict=True))

    files = {
        "heads.csv": joined([found.summary() for found in scores]),
        "scores.parquet": joined([found.to_frame() for found in scores]),
        "curves.csv": joined([profile.curves() for profile in profiles]),
        **pictures,
    }
    return Presented(files, page)


def _insertion(text: str, options: Options, questions: Any) -> Any:
    kind, equals, unit = text.partition("=")
    if equals and not unit:
        raise ValueError(f"--insertion {text}: nothing stands after '='; give a unit, or leave the '=' out")
    given = {"n_tokens": options.n_tokens, "seed": options.seed, "problems": questions}
    return chosen_insertion(kind, unit or None, **given)


def _drawn(scores: Any, chosen: Any, show: int) -> list[Any]:
    """The heads that were asked for by name, else those whose span is most collapsed (or most spiky)."""
    from ..heads import Head

    if chosen is not None and len(chosen) <= show:
        return list(chosen)
    metric = "collapse_relative" if "collapse_relative" in scores.metrics else scores.metrics[0]
    return [Head.parse(label) for label in scores.top(metric, show)["label"]]


app = program("head_profiles", compute, present)
