"""Runs the shipped studies and writes docs/studies.md from their results.

    python tools/run_studies.py
    python tools/run_studies.py --stories STORIES260K --problems stories.jsonl

The second runs them on stories260K as well (made by tools/convert_llama2c.py; its problems by tools/text_problems.py), without
answers, which it cannot give. What lies in --out already is not run again; a run that is stopped goes on.
"""

from pathlib import Path
from typing import Annotated, Any

import typer

import mless_interp as mi

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "studies.md"
ORDER = (
    "paper",
    "filler_after_question",
    "repeated_question",
    "distractors",
    "counting",
    "length_alone",
    "repeated_tokens_and_sinks",
)
TEXTS: dict[str, Any] = {"template": "text", "heads": "none", "confirm": 0, "answers": 0}
"""What texts without questions and keys allow."""
TWO_TOKENS = 110
"""On stories260K a slash is two tokens: so many hold 55 of them."""
BEGIN = """# Studies

A study is one file: a model, problems, insertions with their places, contrasts, outcomes and seeds. `mless-interp study
studies/paper.toml --report` (or `mi.run_study`) makes one page of it with a row per insertion: effects, attention, heads,
answers, side by side. Wrong keys and values are refused in one line before anything is loaded; `--model`, `--problems` and
others take the place of what the file says; `--engine ray`, `--shard` and a run that is stopped and started again work as
everywhere.

```toml
title = "Slashes against words"
limit = 32                            # problems that are measured
contrasts = ["content", "computed"]
outcomes = ["answer_logprob"]
seeds = [0, 1]                        # the first of all that is drawn; drawn insertions have a row for each
heads = "all"                         # name heads too, "none" by default
confirm = 32                          # and test them on so many fresh problems
answers = 64                          # answer so many problems; 0: none

[[insertions]]
name = "slashes after the question"
kind = "meaningless"                  # as --insertion
unit = " /"
n_tokens = 55
after = "question"                    # or before, or at; one place or several

[[insertions]]
name = "random words"
kind = "random_sentence"
```

The tables below are written by `python tools/run_studies.py` from results, never by hand. Effects are medians over problems of
the answer's log-probability in nats, with the number of problems of that sign; an asterisk: p < 0.05, sign test after Holm over
the study. `attention`: mean share over heads of what the rows after the inserted tokens pay to them, beside that of uniform
attention. The models are small, and none is one of those that the sources speak of: agreement here establishes nothing about
those, nor does disagreement.
"""

app = typer.Typer(add_completion=False)


@app.command()
@mi.command_line.one_line_errors
def main(
    out: Annotated[Path, typer.Option(help="Where results are kept.")] = Path("results/studies"),
    stories: Annotated[str | None, typer.Option(help="The directory of stories260K.")] = None,
    problems: Annotated[str | None, typer.Option(help="Its problems.")] = None,
    finished: Annotated[bool, typer.Option("--finished", help="Run nothing: write what lies in --out.")] = False,
) -> None:
    """Run what is missing and write the page."""
    if (stories is None) != (problems is None):
        raise typer.BadParameter("--stories and --problems go together")
    parts = [BEGIN]
    for name in ORDER:
        study = mi.read_study(ROOT / "studies" / f"{name}.toml")
        parts.append(
            f"## {study.title}\n\n`studies/{name}.toml`, after {study.source}. Claimed there: {study.claims}.\n"
        )
        if not finished or (out / "demo" / name).exists():
            parts.append(section("demo", result(study, out / "demo" / name)))
        if stories is not None and (not finished or (out / "stories260K" / name).exists()):
            odd = any(each.kind == "meaningless" and each.n_tokens % 2 for each in study.insertions)
            texts = study.with_changes(**TEXTS, model=stories, problems=problems, n_tokens=TWO_TOKENS if odd else None)
            parts.append(section("stories260K", result(texts, out / "stories260K" / name)))
    PAGE.write_text("\n".join(parts), encoding="utf-8")
    typer.echo(f"written: {PAGE}")


def result(study: Any, folder: Path) -> Any:
    """A study's result, from its folder where it was run before."""
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        partial = folder.with_name(f".{folder.name}.partial")
        mi.save(folder, mi.run_study(study, checkpoint=partial))
    return mi.load(folder)["StudyResult"]


def section(model: str, found: Any) -> str:
    """One model's table and what it comes to."""
    table = found.summary()
    heads = bool(found.located)
    metrics = next(iter(found.attention.values())).metrics[1:] if found.attention else ()
    columns = [
        "insertion",
        *found.contrasts,
        "attention",
        *metrics,
        *["heads"] * heads,
        *["answers"] * (found.answers is not None),
    ]
    rows = [[cell(row, name, found) for name in columns] for row in table.to_dict("records")]
    lines = [f"| {' | '.join(cells)} |" for cells in (columns, ["---"] * len(columns), *rows)]
    base = ""
    if found.answers is not None:
        first = found.answers.summary().iloc[0]
        base = f" Without insertion {100 * first['accuracy']:.0f} % of {int(first['n'])} problems are right."
    return f"**{model}**, {len(found.problem_ids)} problems.{base}\n\n" + "\n".join(lines) + "\n"


def cell(row: dict[str, Any], name: str, found: Any) -> str:
    """One cell in words."""
    if name in found.contrasts:
        sure = "*" if row[f"{name}_p"] < 0.05 else ""
        if not row[name] and not row[f"{name}_k"]:
            return "0 exactly"
        return f"{row[name]:+.2f}{sure and chr(92) + sure} ({row[f'{name}_k']} of {row[f'{name}_n']})"
    if name == "attention":
        return f"{100 * row['span_mass']:.0f} % (uniform {100 * row['span_mass_null']:.0f} %)"
    if name == "heads":
        return (f"{row['confirmed']} (confirmed)" if row["confirmed"] else "") or row["heads"] or "none"
    if name == "answers":
        sure = "\\*" if row["difference_p"] < 0.05 else ""
        return f"{100 * row['accuracy']:.0f} % ({100 * row['difference']:+.0f} points{sure})"
    if name in row and name != "insertion":
        return f"{row[name]:.2f}"
    return f"{row['insertion']} ({row['inserts']})"


if __name__ == "__main__":
    app()
