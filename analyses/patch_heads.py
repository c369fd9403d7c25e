"""Which attention heads carry the effect of inserted meaningless tokens?

Patches every head of a model, one at a time and exactly, on prompts with and without the insertion; names readers and
mediators with corrected p-values and controls (`--mode locate`), or makes one sweep (`--mode sweep`). Writes a table of
heads with intervals, a map, a page of attention patterns and everything needed to repeat the run.
"""

import json
import shutil
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

import mless_interp as mi

app = typer.Typer(add_completion=False, rich_markup_mode=None)
Option = typer.Option


@app.command()
@mi.one_line_errors
def main(
    model: mi.command_line.ModelOption = "demo",
    mode: Annotated[
        str,
        Option(help="locate: both directions, controls, corrected p-values, heads named. sweep: one sweep."),
    ] = "locate",
    backend: mi.command_line.BackendOption = "auto",
    problems: mi.command_line.ProblemsOption = None,
    limit: Annotated[
        int | None, Option(help="How many problems, from the first. [default: 64 to locate, 32 to sweep]")
    ] = None,
    template: mi.command_line.TemplateOption = "raw",
    insertion: mi.command_line.InsertionOption = "meaningless",
    unit: mi.command_line.UnitOption = None,
    n_tokens: mi.command_line.NTokensOption = 55,
    layers: mi.command_line.LayersOption = None,
    heads: mi.command_line.HeadsOption = None,
    contrast: Annotated[
        str | None,
        Option(help="sweep: content (masked/inserted), shift (base/gap) or total (base/inserted). [default: content]"),
    ] = None,
    direction: Annotated[
        str | None, Option(help="sweep: denoising (clean into corrupted) or noising. [default: denoising]")
    ] = None,
    edit: Annotated[
        str | None,
        Option(help="sweep: z, knockout, knockout_zero, reroute_to_sink, matched_mass, q, k, v ... [default: z]"),
    ] = None,
    outcome: Annotated[
        str, Option(help="answer_logprob, solution_logprob, logit_diff; to sweep also kl or kl_last.")
    ] = "answer_logprob",
    dtype: mi.command_line.DtypeOption = "float32",
    device: mi.command_line.DeviceOption = None,
    seed: mi.command_line.SeedOption = 0,
    out: mi.command_line.OutOption = Path("results/patch_heads"),
    report: mi.command_line.ReportOption = False,
    overwrite: mi.command_line.OverwriteOption = False,
    no_progress: mi.command_line.NoProgressOption = False,
) -> None:
    """Patch attention heads, one at a time and exactly, and rank them by the share of the insertion's effect they carry.

    Writes heads.csv and heads.parquet (a row per head), patches.parquet (a row per problem and head), head_map.png,
    attention.html (offline; the top heads with and without the insertion) and run.json; with --report also report.html. A
    run that is stopped goes on from where it was when it is started again with the same settings.
    """
    only_sweep = {"--contrast": contrast, "--direction": direction, "--edit": edit}
    given = [name for name, value in only_sweep.items() if value is not None]
    if mode not in ("locate", "sweep"):
        raise ValueError(f"unknown mode {mode!r}; choose locate or sweep")
    if mode == "locate" and given:
        raise ValueError(f"{', '.join(given)} only goes with --mode sweep; locating runs both directions of both edits")
    mi.refuse_existing(out, overwrite=overwrite)
    filler = mi.Insertion.named(insertion, unit=unit, n_tokens=n_tokens, seed=seed)
    number = limit if limit is not None else {"locate": 64, "sweep": 32}[mode]
    questions = mi.chosen_problems(problems, model, limit=number)
    loaded = mi.load_model(model, backend=backend, dtype=dtype, device=device)
    chosen = mi.chosen_heads(heads, layers, n_layers=loaded.info.n_layers, n_heads=loaded.info.n_heads)
    pairs = mi.make_pairs(loaded, questions, filler, template=template)
    partial = out.with_name(f".{out.name}.partial")
    common = {"heads": chosen, "outcome": outcome, "progress": not no_progress, "seed": seed}
    if mode == "locate":
        found = mi.locate_heads(loaded, pairs, checkpoint=partial, **common)
        patches, settings = found.patches, found.settings
    else:
        found = patches = mi.patch_heads(
            loaded,
            pairs,
            contrast=contrast or "content",
            direction=direction or "denoising",
            edit=edit or "z",
            checkpoint=partial / "sweep.jsonl",
            **common,
        )
        settings = patches.settings
    with mi.new_folder(out, overwrite=overwrite) as folder:
        table = found.summary()
        table.to_csv(folder / "heads.csv", index=False)
        table.to_parquet(folder / "heads.parquet", index=False)
        patches.to_frame().to_parquet(folder / "patches.parquet", index=False)
        mi.views.head_map(patches).save(folder / "head_map.png")
        best = [mi.Head.parse(label) for label in patches.top(4)["label"]]
        attention = mi.views.attention(loaded, pairs[0], best)
        attention.save(folder / "attention.html")
        prompts = [pair.record() for pair in pairs]
        run = mi.provenance(
            loaded,
            repeat=mi.repeat_command(),
            seed=seed,
            mode=mode,
            settings=settings,
            conclusion=found.describe(),
            n_problems=len(pairs),
            prompts=prompts,
        )
        (folder / "run.json").write_text(json.dumps(run, indent=1), encoding="utf-8")
        if report:
            question = (
                f"Which of {len(patches.heads)} heads of {loaded.info.name} carry the effect of {filler.label} on {outcome}, "
                f"patched one at a time on {len(pairs)} problems (template {template}, mode {mode})?"
            )
            page = mi.Report("Heads that carry the insertion's effect", question=question).result(found)
            page = page.figure(mi.views.forest(found), "Effects with 95 % intervals over problems, the largest heads.")
            page = page.heading("Attention of the largest heads").view(attention)
            page = page.heading("What the model reads").prompt(loaded, pairs[0])
            page.provenance(run).save(folder / "report.html")
    shutil.rmtree(partial, ignore_errors=True)
    _show(found, out, report)


def _show(found: mi.LocatedHeads | mi.PatchScores, out: Path, report: bool) -> None:
    console = Console(width=130, highlight=False, markup=False)
    console.print(found.describe())
    located = isinstance(found, mi.LocatedHeads)
    columns = ["head", "paper's counting", "effect", "fraction", "95 % interval"]
    table = Table(*columns, *(["kind", "specific", "p reader", "p mediator"] if located else ["n"]))
    for column in table.columns:
        column.no_wrap = True
    rows = found.summary().head(10) if located else found.top(10)
    for row in rows.itertuples():
        cells = [row.label, row.paper_label, f"{row.effect:+.4f}", f"{row.effect_fraction:+.3f}"]
        cells.append(f"[{row.ci_low:+.3f}, {row.ci_high:+.3f}]")
        if located:
            specific = {True: "yes", False: "no"}.get(row.specific, "")
            tested = ("-" if p != p else f"{p:.4f}" for p in (row.p_reader, row.p_mediator))
            cells += [row.kind, specific, *tested]
        else:
            cells.append(str(row.n))
        table.add_row(*cells)
    console.print(table)
    page = ", report.html" if report else ""
    console.print(f"Results: {out}/heads.csv, head_map.png, attention.html, run.json{page}", soft_wrap=True)


if __name__ == "__main__":
    app()
