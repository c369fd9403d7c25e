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
    model: Annotated[str, Option(help="'demo' (bundled), a saved model's directory, or a hub id.")] = "demo",
    backend: Annotated[str, Option(help="auto, hooked_transformer, bridge or nnsight.")] = "auto",
    problems: Annotated[
        str | None,
        Option(
            help="'demo', 'math500' (from the hub), or a .jsonl file with MATH-500's keys. [default: the model's own]"
        ),
    ] = None,
    limit: Annotated[int, Option(help="How many problems, from the first.")] = 32,
    template: Annotated[str, Option(help="raw, raw_as_sent (the paper's doubled braces) or chat.")] = "raw",
    insertion: Annotated[str, Option(help="meaningless, meaningful, random_sentence or repeated_bos.")] = "meaningless",
    unit: Annotated[str | None, Option(help="The repeated unit or word. [default: ' /' or 'he']")] = None,
    doses: Annotated[str, Option(help="Numbers of inserted tokens, increasing.")] = "1,2,4,8,16,32,55,70,110",
    layer: Annotated[int, Option(help="The layer whose heads are read, zero-based.")] = 0,
    outcome: Annotated[str, Option(help="answer_logprob, solution_logprob or logit_diff.")] = "answer_logprob",
    dtype: Annotated[str, Option(help="float32, float64, bfloat16 or float16.")] = "float32",
    device: Annotated[str | None, Option(help="cpu, cuda, cuda:1 ... [default: a GPU if there is one]")] = None,
    seed: Annotated[int, Option(help="Seed of random insertions and of the bootstrap.")] = 0,
    out: Annotated[Path, Option(help="Folder for the results; it appears only when they are whole.")] = Path(
        "results/dose_response"
    ),
    overwrite: Annotated[bool, Option("--overwrite", help="Replace an existing folder.")] = False,
    no_progress: Annotated[bool, Option("--no-progress", help="No progress bars.")] = False,
) -> None:
    """Measure how attention to the inserted tokens and the outcome grow with the number of inserted tokens.

    Writes slopes.csv (a row per head), outcomes.csv (a row per number of tokens), doses.parquet (a row per problem, number
    and head), dose_response.png and run.json.
    """
    mi.refuse_existing(out, overwrite=overwrite)
    numbers = mi.chosen_numbers(doses, name="--doses")
    filler = mi.Insertion.named(insertion, unit=unit, n_tokens=numbers[-1], seed=seed)
    own = Path(model) / "problems.jsonl"
    questions = mi.load_problems(problems or (str(own) if own.is_file() else "demo"), limit=limit)
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
        mi.views.dose_response(found).save(folder / "dose_response.png")
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
    console = Console(width=110, highlight=False, markup=False)
    console.print(str(found))
    console.print(
        f"Results: {out}/slopes.csv, outcomes.csv, doses.parquet, dose_response.png, run.json", soft_wrap=True
    )


if __name__ == "__main__":
    app()
