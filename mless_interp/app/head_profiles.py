"""`mless-interp profiles`: how much attention every token receives with and without an insertion, head by head."""

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from ..core.arguments import one_of, several_of
from ..prompts.conditions import CONDITIONS, as_words
from .command_line import NAMES, Inserting, Rows, chosen_names, option
from .run_folder import Computed, Kept, Presented, program, shown_attention

N_DRAWN = 3  # the most collapsed heads, whose attention is drawn


@dataclass(frozen=True, kw_only=True)
class Options(Inserting):
    layers: str | None = None
    heads: str | None = None
    metrics: str | None = option(None, "Names, separated by commas, 'all', or 'sinks'. [default: the usual ones]")
    conditions: str = option("base,inserted", f"{as_words(CONDITIONS)}. All are compared with the first.")
    rows: Rows = option("shared", "Rows averaged over: shared, all, question (of tokens after the span).")
    twins: int = 3
    out: Path = Path("results/head_profiles")


def compute(options: Options) -> Computed:
    """Describe attention heads with and without an insertion.

    Writes heads.csv (a row per head), scores.parquet (a row per problem, head and metric), curves.csv and profile.png (received
    attention per token), collapse.png (a map of all heads).
    """
    conditions = several_of(chosen_names(options.conditions), CONDITIONS, "condition")
    asked: Any = options.metrics if options.metrics in (None, "all", "sinks") else chosen_names(options.metrics or "")
    for metric in asked if isinstance(asked, tuple) else ():
        one_of(metric.removesuffix("_last"), NAMES["metrics"], "metric")
    questions = options.questions()
    from ..models.load import untrained_twin
    from ..scores import attention_profile, score_heads
    from ..scores.catalogue import chosen_metrics

    chosen_metrics(asked)
    model, (pairs,) = options.begin(questions)
    heads = options.heads_of((model.info.n_layers, model.info.n_heads))
    common = options.common | {"conditions": conditions, "rows": options.rows}
    scored: Any = partial(score_heads, heads=heads, metrics=asked, **common)
    found = scored(model, pairs, checkpoint=options.partial / "scores.jsonl")
    by = "collapse_relative" if "collapse_relative" in found.defined else [*found.defined, *found.metrics][0]
    drawn = found.top(by, N_DRAWN)["label"].tolist()
    profile = attention_profile(model, pairs, heads=drawn, checkpoint=options.partial / "profile.jsonl", **common)
    for seed in range(options.twins):
        options.say(f"untrained twin {seed + 1} of {options.twins} ...")
        twin = scored(untrained_twin(model, seed), pairs, checkpoint=options.partial / f"scores-twin-{seed}.jsonl")
        found = replace(found, twins=(*found.twins, twin))
    results = {"HeadScores": found, "AttentionProfile": profile}
    return Computed(results, model, pairs, shown_attention(model, pairs, drawn))


def present(kept: Kept) -> Presented:
    from .. import views

    found, profile = kept.results["HeadScores"], kept.results["AttentionProfile"]
    picture = views.profiles(profile)
    files = {"heads.csv": found.table(), "scores.parquet": found.to_frame(), "curves.csv": profile.curves()}
    files["profile.png"] = picture
    if "collapse_relative" in found.defined:
        files["collapse.png"] = views.head_map(found, value="collapse_relative")
    question = f"How much attention does each token receive, conditions {', '.join(found.conditions)}?"
    page = kept.page("What attention heads do with inserted tokens", question, found)
    caption = "Attention received per token; bands: 95 % intervals, grey: uniform attention, shaded: inserted tokens."
    view = "Attention of the largest heads"
    return Presented(files, lambda: kept.view(page.result(found, pictures={caption: picture}), heading=view))


app = program("head_profiles", compute, present)
