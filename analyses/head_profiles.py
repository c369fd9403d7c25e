"""What do attention heads do with inserted tokens?

For any model, heads and insertions: how much attention every token receives with and without the insertion, how it
collapses inside the span and recovers after it, as tables with intervals, curves, and all that is needed to repeat it.
"""

import json
from pathlib import Path
from typing import Annotated, Any

import pandas as pd
import typer
from rich.console import Console

import mless_interp as mi

app = typer.Typer(add_completion=False, rich_markup_mode=None)
Option = typer.Option


@app.command()
@mi.one_line_errors
def main(
    model: mi.command_line.ModelOption = "demo",
    backend: mi.command_line.BackendOption = "auto",
    attention: Annotated[
        str, Option(help="eager, or sdpa (nnsight): fused and lean, for long prompts; the same numbers.")
    ] = "eager",
    problems: mi.command_line.ProblemsOption = None,
    limit: mi.command_line.LimitOption = 32,
    template: mi.command_line.TemplateOption = "raw",
    insertion: Annotated[
        list[str] | None,
        Option(
            help="KIND or KIND=UNIT, repeatable: meaningless, meaningful, random_sentence, repeated_bos, text=...; for "
            "example --insertion meaningless --insertion 'meaningful=she'. [default: meaningless]"
        ),
    ] = None,
    n_tokens: mi.command_line.NTokensOption = 55,
    layers: mi.command_line.LayersOption = None,
    heads: mi.command_line.HeadsOption = None,
    metrics: Annotated[
        str | None, Option(help="Names, separated by commas, or 'all'. [default: the usual ones]")
    ] = None,
    conditions: Annotated[
        str, Option(help="Of base, inserted, gap, masked, held; compared with the first.")
    ] = "base,inserted",
    rows: Annotated[
        str, Option(help="Rows averaged over: shared, all, question (of tokens after the span).")
    ] = "shared",
    dtype: mi.command_line.DtypeOption = "float32",
    device: mi.command_line.DeviceOption = None,
    show: Annotated[int, Option(help="How many heads to draw (those chosen first, or the most collapsed).")] = 3,
    seed: mi.command_line.SeedOption = 0,
    out: mi.command_line.OutOption = Path("results/head_profiles"),
    report: mi.command_line.ReportOption = False,
    overwrite: mi.command_line.OverwriteOption = False,
    no_progress: mi.command_line.NoProgressOption = False,
) -> None:
    """Describe attention heads with and without insertions.

    Writes heads.csv (a row per insertion and head), scores.parquet (a row per problem, head and metric), curves.csv and
    profile_*.png (received attention per token, an insertion each), collapse_*.png (a map of all heads) and run.json;
    with --report also report.html.
    """
    mi.refuse_existing(out, overwrite=overwrite)
    fillers = [_insertion(text, n_tokens, seed) for text in insertion or ["meaningless"]]
    questions = mi.chosen_problems(problems, model, limit=limit)
    loaded = mi.load_model(model, backend=backend, dtype=dtype, device=device, attn_implementation=attention)
    chosen = mi.chosen_heads(heads, layers, n_layers=loaded.info.n_layers, n_heads=loaded.info.n_heads)
    wanted = metrics if metrics in (None, "all") else [name.strip() for name in metrics.split(",")]
    runs = tuple(name.strip() for name in conditions.split(","))
    tables, scores, curves, prompts = [], [], [], {}
    question = (
        f"How much attention does each token of {len(questions)} problems receive from the heads of {loaded.info.name}, "
        f"conditions {', '.join(runs)}, for {', '.join(filler.label for filler in fillers)} (template {template})?"
    )
    page = mi.Report("What attention heads do with inserted tokens", question=question)
    with mi.new_folder(out, overwrite=overwrite) as folder:
        for number, filler in enumerate(fillers):
            pairs = mi.make_pairs(loaded, questions, filler, template=template)
            options = {"conditions": runs, "rows": rows, "progress": not no_progress, "seed": seed}
            found = mi.score_heads(loaded, pairs, heads=chosen, metrics=wanted, **options)
            drawn = _drawn(found, chosen, show)
            profile = mi.attention_profile(loaded, pairs, heads=drawn, **options)
            picture = _write(folder, number, filler, found, profile)
            tables.append(found.summary().assign(insertion=filler.label))
            scores.append(found.to_frame().assign(insertion=filler.label))
            curves.append(profile.curves().assign(insertion=filler.label))
            prompts[filler.label] = [pair.record() for pair in pairs]
            if report:
                caption = "Attention received per token; grey: uniform attention, shaded: inserted tokens."
                page = page.result(found, heading=filler.label).figure(picture, caption)
                if attention == "eager":
                    page = page.view(mi.views.attention(loaded, pairs[0], drawn))
                page = page.prompt(loaded, pairs[0])
            _show(found)
        pd.concat(tables).to_csv(folder / "heads.csv", index=False)
        pd.concat(scores).to_parquet(folder / "scores.parquet", index=False)
        pd.concat(curves).to_csv(folder / "curves.csv", index=False)
        run = mi.provenance(
            loaded,
            repeat=mi.repeat_command(),
            seed=seed,
            settings=found.settings,
            n_problems=len(questions),
            prompts=prompts,
        )
        (folder / "run.json").write_text(json.dumps(run, indent=1), encoding="utf-8")
        if report:
            page.provenance(run).save(folder / "report.html")
    files = f"heads.csv, curves.csv, profile_*.png, run.json{', report.html' if report else ''}"
    Console(width=100).print(f"Results: {out}/{files}", soft_wrap=True)


def _insertion(text: str, n_tokens: int, seed: int) -> mi.Insertion:
    kind, _, unit = text.partition("=")
    return mi.Insertion.named(kind, unit=unit or None, n_tokens=n_tokens, seed=seed)


def _drawn(scores: mi.HeadScores, chosen: tuple[mi.Head, ...] | None, show: int) -> list[mi.Head]:
    """The heads that were asked for by name, else those whose span is most collapsed (or most spiky)."""
    if show < 1:
        raise ValueError(f"--show must be 1 or more, got {show}")
    if chosen is not None and len(chosen) <= show:
        return list(chosen)
    metric = "collapse_relative" if "collapse_relative" in scores.metrics else scores.metrics[0]
    return [mi.Head.parse(label) for label in scores.top(metric, show)["label"]]


def _write(folder: Path, number: int, filler: mi.Insertion, scores: mi.HeadScores, profile: mi.AttentionProfile) -> Any:
    name = f"{number}_{filler.kind}"
    picture = mi.views.profiles(profile)
    picture.save(folder / f"profile_{name}.png")
    if "collapse_relative" in scores.metrics:
        mi.views.head_map(scores, value="collapse_relative").save(folder / f"collapse_{name}.png")
    return picture


def _show(scores: mi.HeadScores) -> None:
    Console(width=110, highlight=False, soft_wrap=True).print(repr(scores), markup=False)


if __name__ == "__main__":
    app()
