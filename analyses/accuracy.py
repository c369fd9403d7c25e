"""Does an insertion change the answers?

The same problems answered without anything, with meaningless tokens, with a repeated word, with a random sentence, with the
paper's ARM, and with heads that cannot see the insertion; graded strictly (and, beside it, as the paper does), compared in
pairs. Answers are kept as they finish: a run that is stopped goes on from where it was.
"""

import json
import shutil
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

import mless_interp as mi

app = typer.Typer(add_completion=False, rich_markup_mode=None)
Option = typer.Option
CONDITIONS = "none,mless,mful,random_sentence,arm"


@app.command()
@mi.one_line_errors
def main(
    model: mi.command_line.ModelOption = "demo",
    backend: Annotated[
        str, Option(help="bridge or nnsight (answers with a cache), hooked_transformer (much slower), auto.")
    ] = "bridge",
    attention: Annotated[
        str, Option(help="eager, or (nnsight only) sdpa: faster, and knockouts work with it too.")
    ] = "eager",
    problems: mi.command_line.ProblemsOption = None,
    limit: mi.command_line.LimitOption = 500,
    template: Annotated[
        str, Option(help="raw, raw_as_sent, paper (text-level insertion, as its code) or chat.")
    ] = "raw",
    conditions: Annotated[
        str, Option(help="Any of none, mless, mful, random_sentence, arm; the first is what others are compared with.")
    ] = CONDITIONS,
    unit: Annotated[str, Option(help="The meaningless unit of mless.")] = " /",
    word: Annotated[str, Option(help="The repeated word of mful.")] = "he",
    n_tokens: mi.command_line.NTokensOption = 55,
    knockout: Annotated[
        str | None,
        Option(
            help="Heads that cannot see the meaningless tokens, zero-based: 0:13,0:21. Adds the condition knockout."
        ),
    ] = None,
    arm_c: Annotated[float, Option(help="ARM's c; the paper tunes it per model and benchmark.")] = 0.13,
    arm_p1: Annotated[float, Option(help="ARM's p1, a percentile.")] = 99.5,
    arm_reading: Annotated[str, Option(help="paper_add or code_replace.")] = "paper_add",
    n_samples: Annotated[int, Option(help="Answers to each problem; above 1 with a temperature.")] = 1,
    temperature: Annotated[float, Option(help="0 is greedy.")] = 0.0,
    top_p: Annotated[float, Option(help="Nucleus of the sampling.")] = 1.0,
    max_new_tokens: Annotated[
        int | None, Option(help="Longest answer. [default: 2048, or what the context leaves]")
    ] = None,
    batch_size: Annotated[int | None, Option(help="Prompts at once. [default: sized to memory]")] = None,
    engine: Annotated[str, Option(help="auto, hugging_face, forward or vllm (an extra; insertions only).")] = "auto",
    published: Annotated[
        str | None, Option(help="A model of the paper's tables, whose bars stand beside yours: qwen2.5-math-7b.")
    ] = None,
    benchmark: Annotated[str, Option(help="The benchmark of --published.")] = "MATH-500",
    dtype: mi.command_line.DtypeOption = "float32",
    device: mi.command_line.DeviceOption = None,
    seed: mi.command_line.SeedOption = 0,
    out: mi.command_line.OutOption = Path("results/accuracy"),
    report: mi.command_line.ReportOption = False,
    overwrite: mi.command_line.OverwriteOption = False,
    no_progress: mi.command_line.NoProgressOption = False,
) -> None:
    """Answer problems under several conditions and compare them.

    Writes accuracy.csv (a row per condition), comparisons.csv (each condition against the first), completions.jsonl (a row
    per answer, with its grades), accuracy.png and run.json; with --report also report.html. A run that is stopped goes on
    when it is started again with the same settings.
    """
    mi.refuse_existing(out, overwrite=overwrite)
    mless = mi.Insertion.meaningless(unit, n_tokens)
    known: dict[str, Any] = {
        "none": dict,
        "mless": lambda: {"insertion": mless},
        "mful": lambda: {"insertion": mi.Insertion.meaningful(word, n_tokens)},
        "random_sentence": lambda: {"insertion": mi.Insertion.random_sentence(n_tokens, seed=seed)},
        "arm": lambda: {"arm": mi.ARM(arm_c, arm_p1, reading=arm_reading, seed=seed)},
    }
    names = [name.strip() for name in conditions.split(",") if name.strip()]
    unknown = [name for name in names if name not in known]
    if unknown:
        raise ValueError(
            f"unknown condition {unknown[0]!r}; choose any of {', '.join(known)} (and --knockout 0:13,0:21)"
        )
    chosen = [mi.Condition(name=name, **known[name]()) for name in names]
    bars = None if published is None else mi.paper.published(model=published, benchmark=benchmark)
    if bars is not None and bars.empty:
        raise ValueError(f"the paper prints nothing for {published!r} on {benchmark!r}; see mi.paper.published()")
    questions = mi.chosen_problems(problems, model, limit=limit)
    options = {"attn_implementation": attention} if attention != "eager" else {}
    loaded = mi.load_model(model, backend=backend, dtype=dtype, device=device, **options)
    if knockout is not None:
        info = loaded.info
        heads = mi.chosen_heads(knockout, None, n_layers=info.n_layers, n_heads=info.n_heads) or ()
        chosen.append(mi.Condition(insertion=mless, knockout=heads, name="knockout"))
    partial = out.with_name(f".{out.name}.partial")
    found = mi.evaluate_accuracy(
        loaded,
        questions,
        chosen,
        n_samples=n_samples,
        temperature=temperature,
        top_p=top_p,
        max_new_tokens=max_new_tokens,
        batch_size=batch_size,
        template=template,
        checkpoint=partial / "answers.jsonl",
        progress=not no_progress,
        seed=seed,
        engine=engine,
    )
    compared = found.compare_all() if len(chosen) > 1 else None
    with mi.new_folder(out, overwrite=overwrite) as folder:
        found.summary().to_csv(folder / "accuracy.csv", index=False)
        if compared is not None:
            compared.to_frame().to_csv(folder / "comparisons.csv", index=False)
        answers = found.to_frame()
        answers.to_json(folder / "completions.jsonl", orient="records", lines=True, force_ascii=False)
        picture = mi.views.accuracy_bars(found, published=bars)
        picture.save(folder / "accuracy.png")
        run = mi.provenance(
            loaded,
            repeat=mi.repeat_command(),
            seed=seed,
            settings=found.settings,
            conclusion=found.describe(),
            comparisons=[str(one) for one in compared.comparisons] if compared is not None else [],
            n_problems=len(questions),
            problems=found.problem_ids,
        )
        (folder / "run.json").write_text(json.dumps(run, indent=1), encoding="utf-8")
        if report:
            _page(loaded, questions, found, compared, picture).provenance(run).save(folder / "report.html")
    shutil.rmtree(partial, ignore_errors=True)
    _show(found, compared, bars, out, report)


def _page(
    model: mi.Model, questions: tuple[mi.Problem, ...], found: mi.AccuracyResults, compared: Any, picture: Any
) -> mi.Report:
    question = (
        f"How does {model.info.name} answer {len(questions)} problems under {', '.join(found.conditions)}, and does any of "
        f"these differ from {found.conditions[0]}?"
    )
    page = mi.Report("Accuracy under insertions", question=question).result(found)
    page = page.figure(picture, "Share of right answers by condition, with 95 % intervals over problems.")
    if compared is not None:
        page = page.result(compared, heading="Against the first condition")
    answers, few = found.to_frame(), questions[:3]
    answers = answers[answers["problem"].isin([question.id for question in few])]
    answers = answers.assign(completion=answers["completion"].str[-400:])
    columns = {"problem": "problem", "condition": "condition", "completion": "answer (its last 400 characters)"}
    columns |= {"gold": "key", "strict": "right", "decided": "decided by", "n_tokens": "tokens"}
    page = page.heading("The first problems and their answers")
    page = page.sentence(*(f"{question.id}: {question.question}" for question in few))
    return page.table(answers, "Answers as they came.", columns=columns)


def _show(found: mi.AccuracyResults, compared: Any, bars: Any, out: Path, report: bool) -> None:
    console = Console(width=150, highlight=False, markup=False)
    console.print(found.describe(), soft_wrap=True)
    table = Table("condition", "right", "95 % interval", "lenient", "paper's", "boxed", "cut off", "tokens")
    for row in found.summary().itertuples():
        shares = [row.lenient, row.paper, row.boxed, row.cut_off]
        cells = [row.condition, f"{row.accuracy:.1%}", f"[{row.low:.1%}, {row.high:.1%}]"]
        table.add_row(*cells, *(f"{share:.1%}" for share in shares), f"{row.n_tokens:.1f}")
    console.print(table)
    if compared is not None:
        console.print(str(compared), soft_wrap=True)
    if bars is not None:
        printed = ", ".join(f"{row.condition} {row.percent:g} % ({row.source})" for row in bars.itertuples())
        console.print(f"The paper prints: {printed}.", soft_wrap=True)
    more = "" if compared is None else "comparisons.csv, "
    files = f"accuracy.csv, {more}completions.jsonl, accuracy.png, run.json{', report.html' if report else ''}"
    console.print(f"Results: {out}/{files}", soft_wrap=True)


if __name__ == "__main__":
    app()
