"""How do inserted tokens act on attention and on MLP activations: by scaling what was there, or by adding something?

Splits every head's output into lambda z + Sigma (exact in the first layer, with a residual in deeper ones), compares the
gate activations of one MLP with and without the insertion, and gives the layer's heads only the scale or only the bias.
"""

import json
import shutil
from pathlib import Path
from typing import Annotated

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
    insertion: mi.command_line.InsertionOption = "meaningless",
    unit: mi.command_line.UnitOption = None,
    n_tokens: mi.command_line.NTokensOption = 55,
    layers: mi.command_line.LayersOption = None,
    layer: Annotated[
        int, Option(help="The layer of MLP and mediation, zero-based (the paper speaks of the first).")
    ] = 0,
    contrast: Annotated[
        str, Option(help="content or held (for the MLP: content): what is drawn and said.")
    ] = "content",
    control: Annotated[
        bool, Option("--control/--no-control", help="Compare lambda with random sentences of the same length.")
    ] = True,
    direction: Annotated[
        str, Option(help="Mediation: noising (add the parts without the span) or denoising (take them away).")
    ] = "noising",
    outcome: Annotated[
        str, Option(help="Mediation: answer_logprob, solution_logprob or logit_diff.")
    ] = "answer_logprob",
    c: Annotated[float, Option(help="Near zero: |a| < 1.4826 MAD c. There is no rule for c; vary it.")] = 0.13,
    dtype: mi.command_line.DtypeOption = "float32",
    device: mi.command_line.DeviceOption = None,
    seed: mi.command_line.SeedOption = 0,
    out: mi.command_line.OutOption = Path("results/mechanism"),
    report: mi.command_line.ReportOption = False,
    overwrite: mi.command_line.OverwriteOption = False,
    no_progress: mi.command_line.NoProgressOption = False,
) -> None:
    """Measure the mechanism on a model: attention as lambda z + Sigma, MLP activations, scale against bias.

    Writes heads.csv and heads_total.csv (a row per head), layers.csv, activations.csv (a row per token class and metric),
    claims.csv (the paper's three), mediation.csv, decomposition.parquet (a row per problem, head and metric), all with
    intervals; lambda.png, lambda_map.png, shares.png, layers.png, activations.png, near_zero.png, mediation.png; the results
    themselves in results/ (mi.load) and run.json; with --report also report.html. A run that is stopped goes on from where it
    was when it is started again with the same settings.
    """
    if contrast not in ("content", "held"):
        raise ValueError(f"unknown contrast {contrast!r}; choose content or held (heads_total.csv has the total one)")
    mi.refuse_existing(out, overwrite=overwrite)
    filler = mi.Insertion.named(insertion, unit=unit, n_tokens=n_tokens, seed=seed)
    questions = mi.chosen_problems(problems, model, limit=limit)
    loaded = mi.load_model(model, backend=backend, dtype=dtype, device=device, attn_implementation=attention)
    n_layers, n_heads = loaded.info.n_layers, loaded.info.n_heads
    chosen = mi.chosen_heads(None, layers, n_layers=n_layers, n_heads=n_heads)
    pairs = mi.make_pairs(loaded, questions, filler, template=template)
    partial = out.with_name(f".{out.name}.partial")
    common = {"progress": not no_progress, "seed": seed}
    mediated = mi.mediate(
        loaded,
        pairs,
        layer=layer,
        contrast=contrast,
        direction=direction,
        outcome=outcome,
        c=c,
        checkpoint=partial / "mediation.jsonl",
        **common,
    )
    shift = mi.activation_shift(loaded, pairs, layer=layer, c=c, checkpoint=partial / "activations.jsonl", **common)
    parts = mi.decompose_attention(
        loaded,
        pairs,
        heads=chosen,
        contrasts=(contrast, "total", "held" if contrast == "content" else "content"),
        control="random_sentence" if control and filler.kind != "random_sentence" else None,
        checkpoint=partial / "decomposition.jsonl",
        **common,
    )
    drawn = layer if layer in parts.layers else parts.layers[0]
    pictures = {
        "lambda": mi.views.lambda_heads(parts, layer=drawn),
        "lambda_map": mi.views.lambda_map(parts),
        "shares": mi.views.shares(parts, layer=drawn),
        "layers": mi.views.affine_layers(parts),
        "activations": mi.views.activation_histograms(shift),
        "near_zero": mi.views.near_zero(shift),
        "mediation": mi.views.mediation(mediated),
    }
    tables = {
        "heads": parts.summary(),
        "heads_total": parts.summary("total"),
        "layers": parts.layer_table(),
        "activations": shift.by_class(),
        "claims": shift.claims(),
        "mediation": mediated.summary(),
    }
    with mi.new_folder(out, overwrite=overwrite) as folder:
        for name, table in tables.items():
            table.to_csv(folder / f"{name}.csv", index=False)
        for name, picture in pictures.items():
            picture.save(folder / f"{name}.png")
        parts.to_frame().to_parquet(folder / "decomposition.parquet", index=False)
        mi.save(folder / "results", parts, shift, mediated, model=loaded)
        run = mi.provenance(
            loaded,
            repeat=mi.repeat_command(),
            seed=seed,
            settings={"attention": parts.settings, "activations": shift.settings, "mediation": mediated.settings},
            conclusion=[parts.describe(), shift.describe(), mediated.describe()],
            n_problems=len(pairs),
            prompts=[pair.record() for pair in pairs],
        )
        (folder / "run.json").write_text(json.dumps(run, indent=1), encoding="utf-8")
        if report:
            page = _page(loaded, pairs, parts, shift, mediated, pictures)
            if attention == "eager":
                least = map(mi.Head.parse, parts.summary().nsmallest(3, "lam")["label"])
                page = page.heading("Heads with the smallest lambda").view(mi.views.attention(loaded, pairs[0], least))
            page.provenance(run).save(folder / "report.html")
    shutil.rmtree(partial, ignore_errors=True)
    console = Console(width=130, highlight=False, markup=False)
    for found in (parts, shift, mediated):
        console.print(repr(found), soft_wrap=True)
        console.print()
    files = ", ".join([f"{name}.csv" for name in tables] + [f"{name}.png" for name in pictures])
    console.print(f"Results: {out}/{files}, run.json{', report.html' if report else ''}", soft_wrap=True)


def _page(
    model: mi.Model,
    pairs: tuple[mi.PromptPair, ...],
    parts: mi.AttentionDecomposition,
    shift: mi.ActivationShift,
    mediated: mi.Mediation,
    pictures: dict[str, object],
) -> mi.Report:
    question = (
        f"Does {pairs[0].insertion.label} act on {model.info.name} by scaling what attention wrote, or by adding to it, over "
        f"{len(pairs)} problems?"
    )
    page = mi.Report("The mechanism", question=question).result(parts, heading="Attention")
    page = page.figure(pictures["lambda"], "Lambda per head, its null, and the slope of the best fit, another number.")
    page = page.figure(pictures["shares"], "Shares of the heads in the residual change, by part.")
    page = page.figure(pictures["layers"], "What the affine form leaves open in each layer.")
    page = page.result(shift, heading="Activations")
    page = page.figure(pictures["activations"], "Gate activations before and after.")
    page = page.figure(pictures["near_zero"], "Near zero by token class.")
    page = page.result(mediated, heading="Scale or bias")
    page = page.figure(pictures["mediation"], "Scale only, bias only, both.")
    return page.heading("What the model reads").prompt(model, pairs[0])


if __name__ == "__main__":
    app()
