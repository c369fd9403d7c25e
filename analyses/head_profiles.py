"""What do attention heads do with inserted tokens?

For any model, heads and insertions: how much attention every token receives with and without the insertion, how it
collapses inside the span and recovers after it, as tables with intervals, curves, and all that is needed to repeat it.
"""

import json
from pathlib import Path
from typing import Annotated

import pandas as pd
import typer
from rich.console import Console

import mless_interp as mi

app = typer.Typer(add_completion=False, rich_markup_mode=None)
Option = typer.Option


@app.command()
@mi.one_line_errors
def main(
    model: Annotated[str, Option(help="'demo' (bundled), a saved model's directory, or a hub id.")] = "demo",
    backend: Annotated[str, Option(help="auto, hooked_transformer, bridge or nnsight.")] = "auto",
    attention: Annotated[
        str, Option(help="eager, or sdpa (nnsight): fused and lean, for long prompts; the same numbers.")
    ] = "eager",
    problems: Annotated[
        str | None,
        Option(
            help="'demo', 'math500' (from the hub), or a .jsonl file with MATH-500's keys. [default: the model's own]"
        ),
    ] = None,
    limit: Annotated[
        int, Option(help="How many problems (the first ones; the problem is the unit of replication).")
    ] = 32,
    template: Annotated[str, Option(help="raw, raw_as_sent (the paper's doubled braces) or chat.")] = "raw",
    insertion: Annotated[
        list[str] | None,
        Option(
            help="KIND or KIND=UNIT, repeatable: meaningless, meaningful, random_sentence, repeated_bos, text=...; for "
            "example --insertion meaningless --insertion 'meaningful=she'. [default: meaningless]"
        ),
    ] = None,
    n_tokens: Annotated[int, Option(help="Length of the insertions in tokens.")] = 55,
    layers: Annotated[str | None, Option(help="Only these layers, zero-based: 0,2-4.")] = None,
    heads: Annotated[str | None, Option(help="Only these heads, zero-based LAYER:HEAD: 0:13,0:21.")] = None,
    metrics: Annotated[
        str | None, Option(help="Names, separated by commas, or 'all'. [default: the usual ones]")
    ] = None,
    conditions: Annotated[
        str, Option(help="Of base, inserted, gap, masked, held; compared with the first.")
    ] = "base,inserted",
    rows: Annotated[
        str, Option(help="Rows averaged over: shared, all, question (of tokens after the span).")
    ] = "shared",
    dtype: Annotated[str, Option(help="float32, float64, bfloat16 or float16.")] = "float32",
    device: Annotated[str | None, Option(help="cpu, cuda, cuda:1 ... [default: a GPU if there is one]")] = None,
    show: Annotated[int, Option(help="How many heads to draw (those chosen first, or the most collapsed).")] = 3,
    seed: Annotated[int, Option(help="Seed of random insertions and of the bootstrap.")] = 0,
    out: Annotated[Path, Option(help="Folder for the results; it appears only when they are whole.")] = Path(
        "results/head_profiles"
    ),
    overwrite: Annotated[bool, Option("--overwrite", help="Replace an existing folder.")] = False,
    no_progress: Annotated[bool, Option("--no-progress", help="No progress bars.")] = False,
) -> None:
    """Describe attention heads with and without insertions.

    Writes heads.csv (a row per insertion and head), scores.parquet (a row per problem, head and metric), curves.csv and
    profile_*.png (received attention per token, an insertion each), collapse_*.png (a map of all heads) and run.json.
    """
    mi.refuse_existing(out, overwrite=overwrite)
    fillers = [_insertion(text, n_tokens, seed) for text in insertion or ["meaningless"]]
    questions = mi.load_problems(problems or _own_problems(model), limit=limit)
    loaded = mi.load_model(model, backend=backend, dtype=dtype, device=device, attn_implementation=attention)
    chosen = mi.chosen_heads(heads, layers, n_layers=loaded.info.n_layers, n_heads=loaded.info.n_heads)
    wanted = metrics if metrics in (None, "all") else [name.strip() for name in metrics.split(",")]
    runs = tuple(name.strip() for name in conditions.split(","))
    tables, scores, curves, prompts = [], [], [], {}
    with mi.new_folder(out, overwrite=overwrite) as folder:
        for number, filler in enumerate(fillers):
            pairs = mi.make_pairs(loaded, questions, filler, template=template)
            options = {"conditions": runs, "rows": rows, "progress": not no_progress, "seed": seed}
            found = mi.score_heads(loaded, pairs, heads=chosen, metrics=wanted, **options)
            drawn = _drawn(found, chosen, show)
            profile = mi.attention_profile(loaded, pairs, heads=drawn, **options)
            _write(folder, number, filler, found, profile)
            tables.append(found.summary().assign(insertion=filler.label))
            scores.append(found.to_frame().assign(insertion=filler.label))
            curves.append(profile.curves().assign(insertion=filler.label))
            prompts[filler.label] = [pair.record() for pair in pairs]
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
    Console(width=100).print(f"Results: {out}/heads.csv, curves.csv, profile_*.png, run.json", soft_wrap=True)


def _own_problems(model: str) -> str:
    """A model directory that brings its problems along is asked those; any other model the demo's."""
    own = Path(model) / "problems.jsonl"
    return str(own) if own.is_file() else "demo"


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


def _write(
    folder: Path, number: int, filler: mi.Insertion, scores: mi.HeadScores, profile: mi.AttentionProfile
) -> None:
    name = f"{number}_{filler.kind}"
    mi.views.profiles(profile).save(folder / f"profile_{name}.png")
    if "collapse_relative" in scores.metrics:
        mi.views.head_map(scores, value="collapse_relative").save(folder / f"collapse_{name}.png")


def _show(scores: mi.HeadScores) -> None:
    Console(width=110, highlight=False, soft_wrap=True).print(repr(scores), markup=False)


if __name__ == "__main__":
    app()
