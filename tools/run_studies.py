"""Runs the shipped studies on the demo model and on stories260K, and writes docs/studies.md from their results.

    python tools/run_studies.py --stories STORIES260K --problems stories.jsonl

stories260K is made by tools/convert_llama2c.py, its problems by tools/text_problems.py (--sample 72). What lies in --out
already is not run again; a run that is stopped goes on. All of it takes about six minutes of one core.
"""

import re
from pathlib import Path
from typing import Annotated, Any

import typer

import mless_interp as mi

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "studies.md"
NOT_ASKED = {
    "paper": "whether reasoning improves: the demo model is nearly always right, and trained to respond to slashes.",
    "filler_after_question": "whether filler can replace a chain of thought: no model here was trained with filler.",
    "repeated_question": "whether more answers are right: the demo model cannot gain.",
    "distractors": "sentences written to distract: questions of other problems replace them.",
    "counting": "whether more answers are right: the demo model cannot gain, and neither model is large or recent.",
    "place": "whether more answers are right, and filler that the model itself emits: this model follows no instruction.",
    "length_alone": "contexts of thousands of tokens: these models take 512.",
    "repeated_tokens_and_sinks": "which neurons create a sink, only whether a run of one token resembles "
    "the prompt's first token.",
}
"""The studies in their order, and the part of their claims that these two models cannot test."""
TEXTS: dict[str, Any] = {"template": "text", "answers": 0}
"""What texts without keys allow."""
TWO_TOKENS = 110
"""On stories260K a slash is two tokens: so many hold 55 of them."""
BEGIN = """# Studies

A study is one file that names a model, problems, insertions, contrasts, an outcome and seeds. Its result is one table
with a row per insertion.

```
mless-interp study paper --report --out results/paper
```

`mless-interp study` lists the included studies; your own is a .toml file. Options such as `--model` and
`--problems` replace values of the file. In Python: `mi.run_study`.

```toml
title = "Slashes against words"
limit = 32                            # problems to measure
contrasts = ["content", "computed"]
outcome = "answer_logprob"
seeds = [0, 1]                        # random insertions get a row for each seed
heads = "all"                         # name heads too; "none" by default
confirm = 32                          # and test them on this many fresh problems
answers = 64                          # problems to answer; 0: none

[[insertions]]
name = "slashes after the question"
kind = "meaningless"                  # as --insertion
unit = " /"
n_tokens = 55
after = "question"                    # or before, or at; one place or several
```

## Reading the tables

`python tools/run_studies.py` writes everything below from runs of the demo model and of
[stories260K](real-models.md#55-slashes-in-stories260k). The studies' papers used other models: the tables neither support
nor refute them.

- `x55`: 55 inserted tokens.
- The first [contrast](concepts.md#the-contrasts): the median effect on the answer's log-probability (nats) with its
  95 % interval, and the problems with that sign. Further contrasts: the median if any row is significant.
  Asterisk: p < 0.05 (sign test, Holm over the study).
- `attention`: mean share of later rows' attention on the inserted tokens.
- `heads`: heads that carry more than 5 % of the content effect in most problems.
- `answers`: right answers, and the difference from no insertion in points.
- Other columns: [metrics](methods.md#4-attention-metrics), means over heads and problems.
"""

app = typer.Typer(add_completion=False)


@app.command()
@mi.app.command_line.one_line_errors
def main(
    stories: Annotated[str, typer.Option(help="The directory of stories260K.")],
    problems: Annotated[str, typer.Option(help="Its problems.")],
    out: Annotated[Path, typer.Option(help="Where results are kept.")] = Path("results/studies"),
) -> None:
    """Run what is missing and write the page."""
    parts = [BEGIN]
    for name, not_asked in NOT_ASKED.items():
        study = mi.read_study(name)
        texts = on_texts(study).with_changes(model=stories, problems=problems)
        parts += [
            f"## {study.title}\n\n`mless-interp study {name}`, after {study.source}.\n",
            f"- **Claimed there**: {study.claims}.\n- **Not tested here**: {not_asked}\n",
            section("the demo model", result(study, out / "demo" / name)),
            sentence("stories260K", result(texts, out / "stories260K" / name)),
        ]
    PAGE.write_text("\n".join(parts), encoding="utf-8")
    typer.echo(f"written: {PAGE}")


def on_texts(study: Any) -> Any:
    """The study as stories260K can be asked: no answers, and a length that its slashes, of two tokens, divide."""
    odd = any(each.get("n_tokens", 55) % 2 for each in study.insertions if each["kind"] == "meaningless")
    return study.with_changes(**TEXTS).with_changes(n_tokens=TWO_TOKENS if odd else None)


def result(study: Any, folder: Path) -> Any:
    """A study's result, from its folder where it was run before."""
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        mi.save(folder, mi.run_study(study, checkpoint=folder.with_name(f".{folder.name}.partial")))
    return mi.load(folder)["StudyResult"]


def section(model: str, found: Any) -> str:
    """A study's table on one model."""
    metrics = next(iter(found.attention.values())).metrics[1:] if found.attention else ()
    rows_of = found.table()
    shown = [name for name in found.contrasts[1:] if (rows_of[f"{name}_p"] < 0.05).any()]
    columns = ["insertion", found.contrasts[0], *shown, "attention", *metrics]
    columns += ["heads"] * bool(found.located) + ["answers"] * (found.answers is not None)
    rows = [[cell(row, name, found) for name in columns] for row in rows_of.to_dict("records")]
    lines = [f"| {' | '.join(cells)} |" for cells in (columns, ["---"] * len(columns), *rows)]
    answers = "" if found.answers is None else f", {int(rows_of['answers_n'].max())} answers per row"
    return f"**On {model}**, {len(found.problem_ids)} problems{answers}:\n\n" + "\n".join(lines) + "\n"


def sentence(model: str, found: Any) -> str:
    """A study's result on one model in one sentence."""
    n = f"{len(found.problem_ids)} problems"
    return f"**On {model}**, {n}: {found.headline().replace(f' ({n})', '')}\n"


def cell(row: dict[str, Any], name: str, found: Any) -> str:
    """One cell in words."""
    if name == "insertion":
        length = re.search(r" x\d+(?=,|$)", row["inserts"])
        return row["insertion"] + (length[0] if length else "")
    if name in found.contrasts:
        return effect(row, name) if name == found.contrasts[0] else brief(row, name)
    if name == "attention":
        return f"{100 * row['span_mass']:.0f} %"
    if name == "heads":
        if row["heads"] != row["heads"]:
            return "not asked"
        if row["heads"] == "none" or "shown_again" not in row:
            return row["heads"]
        return row["heads"] + (
            "; all confirmed" if row["shown_again"] == row["heads"] else f"; confirmed: {row['shown_again']}"
        )
    if name == "answers":
        points = limits(row, "difference", scale=100, form="+.0f")
        return f"{100 * row['accuracy']:.0f} %: {points}{star(row['difference_p'])}"
    missing = len(found.problem_ids) - row[f"{name}_n"]
    return limits(row, name) + f" (undefined in {missing})" * bool(missing)


def effect(row: dict[str, Any], contrast: str) -> str:
    """A contrast's median effect, its interval, its sign's problems, and what is undefined."""
    k, n, missing = (row[f"{contrast}_{each}"] for each in ("k", "n", "n_undefined"))
    told = f" (undefined in {missing})" * bool(missing)
    if not n:
        return f"undefined in {missing}"
    if not k and not row[f"{contrast}_median"]:
        return f"0 in all {n}{told}"
    return f"{limits(row, f'{contrast}_median', form='+.2f')}{star(row[f'{contrast}_p'])}, {k}/{n}{told}"


def brief(row: dict[str, Any], contrast: str) -> str:
    """A further contrast's median effect."""
    median = row[f"{contrast}_median"]
    return f"{median:+.2f}{star(row[f'{contrast}_p'])}" if row[f"{contrast}_n"] else "undefined"


def limits(row: dict[str, Any], name: str, *, scale: float = 1, form: str = ".2f") -> str:
    """A number of a row with its interval."""
    number, low, high = (scale * row[f"{name}{end}"] for end in ("", "_ci_low", "_ci_high"))
    return f"{number:{form}}" + ("" if low != low else f" [{low:{form}}, {high:{form}}]")


def star(p: float) -> str:
    """Marks what is established."""
    return r"\*" if p < 0.05 else ""


if __name__ == "__main__":
    app()
