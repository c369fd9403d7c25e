"""What do attention heads do with inserted tokens?

For any model, heads and insertions: how much attention every token receives with and without the insertion, how it
collapses inside the span and recovers after it, as tables with intervals, curves, and all that is needed to repeat it.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import pandas as pd
from typer import Option

import mless_interp as mi


@dataclass(frozen=True, kw_only=True)
class Options(mi.command_line.Asking):
    """What can be asked of this script."""

    attention: mi.command_line.AttentionOption = "eager"
    insertion: Annotated[
        list[str] | None,
        Option(
            help=f"KIND or KIND=UNIT, repeatable; a KIND is one of {mi.command_line.KINDS}; for "
            "example --insertion meaningless --insertion 'meaningful=she'. [default: meaningless]"
        ),
    ] = None
    n_tokens: mi.command_line.NTokensOption = 55
    layers: mi.command_line.LayersOption = None
    heads: mi.command_line.HeadsOption = None
    metrics: Annotated[str | None, Option(help="Names, separated by commas, or 'all'. [default: the usual ones]")] = (
        None
    )
    conditions: mi.command_line.ConditionsOption = "base,inserted"
    rows: Annotated[str, Option(help="Rows averaged over: shared, all, question (of tokens after the span).")] = (
        "shared"
    )
    show: Annotated[int, Option(help="How many heads to draw (those chosen first, or the most collapsed).")] = 3
    out: mi.command_line.OutOption = Path("results/head_profiles")


def main(options: Options) -> None:
    """Describe attention heads with and without insertions.

    Writes heads.csv (a row per insertion and head), scores.parquet (a row per problem, head and metric), curves.csv and
    profile_*.png (received attention per token, an insertion each), collapse_*.png (a map of all heads) and run.json;
    with --report also report.html.
    """
    fillers = [_insertion(text, options) for text in options.insertion or ["meaningless"]]
    questions = options.questions()
    model = options.load(attn_implementation=options.attention)
    heads = mi.chosen_heads(options.heads, options.layers, n_layers=model.info.n_layers, n_heads=model.info.n_heads)
    metrics = options.metrics if options.metrics in (None, "all") else mi.chosen_names(options.metrics)
    conditions = mi.chosen_names(options.conditions)
    common = {"conditions": conditions, "rows": options.rows, "progress": options.progress, "seed": options.seed}
    parts, pictures = [], {}
    for number, filler in enumerate(fillers):
        pairs = mi.make_pairs(model, questions, filler, template=options.template)
        found = mi.score_heads(model, pairs, heads=heads, metrics=metrics, **common)
        drawn = _drawn(found, heads, options.show)
        profile = mi.attention_profile(model, pairs, heads=drawn, **common)
        pictures[f"profile_{number}_{filler.kind}.png"] = picture = mi.views.profiles(profile)
        if "collapse_relative" in found.metrics:
            pictures[f"collapse_{number}_{filler.kind}.png"] = mi.views.head_map(found, value="collapse_relative")
        parts.append((filler.label, pairs, found, profile, picture))
        print(found)

    def page() -> mi.Report:
        question = (
            f"How much attention does each token of {len(questions)} problems receive from the heads of "
            f"{model.info.name}, conditions {', '.join(conditions)}, for {', '.join(filler.label for filler in fillers)} "
            f"(template {options.template})?"
        )
        made = mi.Report("What attention heads do with inserted tokens", question=question)
        for label, pairs, found, profile, picture in parts:
            caption = "Attention received per token; grey: uniform attention, shaded: inserted tokens."
            made = made.result(found, heading=label).figure(picture, caption)
            if options.attention == "eager":
                made = made.view(mi.views.attention(model, pairs[0], profile.heads))
            made = made.prompt(model, pairs[0])
        return made

    options.save(
        {
            "heads.csv": pd.concat(found.summary().assign(insertion=label) for label, _, found, _, _ in parts),
            "scores.parquet": pd.concat(found.to_frame().assign(insertion=label) for label, _, found, _, _ in parts),
            "curves.csv": pd.concat(profile.curves().assign(insertion=label) for label, _, _, profile, _ in parts),
            **pictures,
        },
        model=model,
        page=page,
        settings=found.settings,
        n_problems=len(questions),
        prompts={label: [pair.record() for pair in pairs] for label, pairs, *_ in parts},
    )


def _insertion(text: str, options: Options) -> "mi.Insertion":
    kind, _, unit = text.partition("=")
    return mi.Insertion.named(
        kind, unit=unit or None, n_tokens=options.n_tokens, seed=options.seed, problems=options.questions()
    )


def _drawn(scores: "mi.HeadScores", chosen: Any, show: int) -> "list[mi.Head]":
    """The heads that were asked for by name, else those whose span is most collapsed (or most spiky)."""
    if show < 1:
        raise ValueError(f"--show must be 1 or more, got {show}")
    if chosen is not None and len(chosen) <= show:
        return list(chosen)
    metric = "collapse_relative" if "collapse_relative" in scores.metrics else scores.metrics[0]
    return [mi.Head.parse(label) for label in scores.top(metric, show)["label"]]


app = mi.command_line.analysis(main)

if __name__ == "__main__":
    app()
