"""How do attention to the inserted tokens, and the answer, depend on how many of them there are?

Inserts 1, 2, 4 ... tokens; measures each head's log odds of reading them, once at held positions (where the slope in log N
is exactly 1 in the first layer) and once as inserted, and what each number does to the outcome.
"""

import json
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
    problems: mi.command_line.ProblemsOption = None,
    limit: mi.command_line.LimitOption = 32,
    template: mi.command_line.TemplateOption = "raw",
    insertion: Annotated[str, Option(help="meaningless, meaningful, random_sentence or repeated_bos.")] = "meaningless",
    unit: Annotated[str | None, Option(help="The repeated unit or word. [default: ' /' or 'he']")] = None,
    doses: Annotated[str, Option(help="Numbers of inserted tokens, increasing.")] = "1,2,4,8,16,32,55,70,110",
    layer: Annotated[int, Option(help="The layer whose heads are read, zero-based.")] = 0,
    outcome: Annotated[str, Option(help="answer_logprob, solution_logprob or logit_diff.")] = "answer_logprob",
    dtype: mi.command_line.DtypeOption = "float32",
    device: mi.command_line.DeviceOption = None,
    seed: mi.command_line.SeedOption = 0,
    out: mi.command_line.OutOption = Path("results/dose_response"),
    report: mi.command_line.ReportOption = False,
    overwrite: mi.command_line.OverwriteOption = False,
    no_progress: mi.command_line.NoProgressOption = False,
) -> None:
    """Measure how attention to the inserted tokens and the outcome grow with the number of inserted tokens.

    Writes slopes.csv (a row per head), outcomes.csv (a row per number of tokens), doses.parquet (a row per problem, number
    and head), dose_response.png and run.json; with --report also report.html.
    """
    mi.refuse_existing(out, overwrite=overwrite)
    numbers = mi.chosen_numbers(doses, name="--doses")
    filler = mi.Insertion.named(insertion, unit=unit, n_tokens=numbers[-1], seed=seed)
    questions = mi.chosen_problems(problems, model, limit=limit)
    loaded = mi.load_model(model, backend=backend, dtype=dtype, device=device)
    found = mi.dose_response(
        loaded,
        questions,
        filler,
        doses=numbers,
        layer=layer,
        outcome=outcome,
        template=template,
        progress=not no_progress,
        seed=seed,
    )
    with mi.new_folder(out, overwrite=overwrite) as folder:
        found.summary().to_csv(folder / "slopes.csv", index=False)
        found.outcome_table().to_csv(folder / "outcomes.csv", index=False)
        found.to_frame().to_parquet(folder / "doses.parquet", index=False)
        picture = mi.views.dose_response(found)
        picture.save(folder / "dose_response.png")
        run = mi.provenance(
            loaded,
            repeat=mi.repeat_command(),
            seed=seed,
            settings=found.settings | {"doses": numbers, "layer": layer},
            conclusion=found.describe(),
            n_problems=len(questions),
            problems=found.problem_ids,
        )
        (folder / "run.json").write_text(json.dumps(run, indent=1), encoding="utf-8")
        if report:
            question = (
                f"How do attention to {filler.kind} inserted tokens in layer {layer} (zero-based) of {loaded.info.name}, and "
                f"{outcome}, depend on how many there are ({doses}), over {len(questions)} problems?"
            )
            pair = mi.make_pairs(loaded, questions[:1], filler, template=template)[0]
            most = found.summary().nlargest(3, f"log_odds_at_{numbers[-1]}")["label"]
            page = mi.Report("Dose and response", question=question).result(found)
            page = page.figure(picture, "Left and middle: each head of the layer. Right: what it does to the outcome.")
            page = page.heading("Attention of the heads that read the span most")
            page = page.view(mi.views.attention(loaded, pair, map(mi.Head.parse, most)))
            page = page.heading("What the model reads").prompt(loaded, pair)
            page.provenance(run).save(folder / "report.html")
    console = Console(width=110, highlight=False, markup=False)
    console.print(str(found))
    console.print(
        f"Results: {out}/slopes.csv, outcomes.csv, doses.parquet, dose_response.png, run.json"
        f"{', report.html' if report else ''}",
        soft_wrap=True,
    )


if __name__ == "__main__":
    app()
