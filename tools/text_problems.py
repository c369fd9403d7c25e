"""Problems for models that know no task: contexts and their continuations, from texts or from the model's own samples.

    python tools/text_problems.py --model MODEL --sample 160 --out stories.jsonl
    python tools/text_problems.py --model MODEL --texts texts.txt --out stories.jsonl     (texts parted by blank lines)

The model is to go on with each text's next words; `--template text` of the analyses adds nothing but the token that the
model's texts begin with.
"""

import json
import warnings
from pathlib import Path
from typing import Annotated, Any

import typer

import mless_interp as mi
from mless_interp.answers.decoding import Request, complete_all, decoding_for
from mless_interp.answers.engines import engine_for

app = typer.Typer(add_completion=False)


@app.command()
@mi.app.command_line.one_line_errors
def main(
    model: Annotated[str, typer.Option(help="A directory or hub id.")],
    out: Annotated[Path, typer.Option(help="The file to write; an existing one is refused.")],
    texts: Annotated[Path | None, typer.Option(help="A file of texts, parted by blank lines.")] = None,
    sample: Annotated[int, typer.Option(help="Or: how many texts to draw from the model itself.")] = 0,
    n_before: Annotated[int, typer.Option(help="Tokens before the place of insertion.")] = 16,
    n_context: Annotated[int, typer.Option(help="Tokens of the context in all.")] = 64,
    n_answer: Annotated[int, typer.Option(help="Tokens of the continuation, at least.")] = 4,
    temperature: Annotated[float, typer.Option(help="Of the samples.")] = 1.0,
    seed: Annotated[int, typer.Option(help="Of the samples.")] = 0,
) -> None:
    """Write problems in MATH-500's form."""
    if (texts is None) == (sample <= 0):
        raise typer.BadParameter("give one of --texts FILE and --sample N")
    if not 0 < n_before < n_context or n_answer < 1:
        raise typer.BadParameter("--n-before must lie in 1 to --n-context - 1, and --n-answer be 1 or more")
    if out.exists():
        raise typer.BadParameter(f"{out} exists: choose another name")
    loaded = mi.load_model(model, backend="bridge")  # answers with a cache of keys and values
    if texts is None:
        found = samples(loaded, sample, n_context + 4 * n_answer + 16, temperature=temperature, seed=seed)
    else:
        found = [part.strip() for part in texts.read_text(encoding="utf-8").split("\n\n") if part.strip()]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        sizes = {"n_before": n_before, "n_context": n_context, "n_answer": n_answer}
        problems = mi.problems_from_texts(loaded, found, **sizes)
    for one in caught:
        typer.echo(str(one.message), err=True)
    lines = [
        {
            "problem": problem.question,
            "answer": problem.answer,
            "unique_id": problem.id,
            "system": problem.system,
            "answer_prefix": problem.answer_prefix,
        }
        for problem in problems
    ]
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    typer.echo(f"{len(lines)} problems in {out}")


def samples(model: Any, count: int, n_tokens: int, *, temperature: float, seed: int) -> list[str]:
    """Texts that the model itself writes, each drawn with numbers of its own; those that end before are short."""
    begin = model.tokenizer.bos_token_id
    if begin is None:
        raise typer.BadParameter("this tokenizer has no beginning-of-sequence token to sample from: give --texts")
    requests = [Request((begin,), f"text-{at}") for at in range(count)]
    decoding = decoding_for(model, max_new_tokens=n_tokens, temperature=temperature, seed=seed)
    made = complete_all(model, requests, decoding, engine_for(model, "auto"))
    return [model.tokenizer.decode(made[request.key].tokens, skip_special_tokens=True).strip() for request in requests]


if __name__ == "__main__":
    app()
