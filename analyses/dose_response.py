"""How do attention to the inserted tokens, and the answer, depend on how many of them there are?

Inserts 1, 2, 4 ... tokens; measures each head's log odds of reading them, once at held positions (where the slope in log N
is exactly 1 in the first layer) and once as inserted, and what each number does to the outcome.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from typer import Option

import mless_interp as mi


@dataclass(frozen=True, kw_only=True)
class Options(mi.command_line.Asking):
    """What can be asked of this script."""

    insertion: mi.command_line.InsertionOption = "meaningless"
    unit: Annotated[str | None, Option(help="The repeated unit or word. [default: ' /' or 'he']")] = None
    doses: Annotated[str, Option(help="Numbers of inserted tokens, increasing.")] = "1,2,4,8,16,32,55,70,110"
    layer: Annotated[int, Option(help="The layer whose heads are read, zero-based.")] = 0
    outcome: mi.command_line.OutcomeOption = "answer_logprob"
    out: mi.command_line.OutOption = Path("results/dose_response")


def main(options: Options) -> None:
    """Measure how attention to the inserted tokens and the outcome grow with the number of inserted tokens.

    Writes slopes.csv (a row per head), outcomes.csv (a row per number of tokens), doses.parquet (a row per problem, number
    and head), dose_response.png and run.json; with --report also report.html.
    """
    doses, layer, outcome = mi.chosen_numbers(options.doses, name="--doses"), options.layer, options.outcome
    questions = options.questions()
    filler = mi.Insertion.named(
        options.insertion, unit=options.unit, n_tokens=doses[-1], seed=options.seed, problems=questions
    )
    model = options.load()
    found = mi.dose_response(
        model,
        questions,
        filler,
        doses=doses,
        layer=layer,
        outcome=outcome,
        template=options.template,
        progress=options.progress,
        seed=options.seed,
    )
    picture = mi.views.dose_response(found)

    def page() -> mi.Report:
        question = (
            f"How do attention to {filler.kind} inserted tokens in layer {layer} (zero-based) of {model.info.name}, and "
            f"{outcome}, depend on how many there are ({options.doses}), over {len(questions)} problems?"
        )
        (pair,) = mi.make_pairs(model, questions[:1], filler, template=options.template)
        most = map(mi.Head.parse, found.summary().nlargest(3, f"log_odds_at_{doses[-1]}")["label"])
        made = mi.Report("Dose and response", question=question).result(found)
        made = made.figure(picture, "Left and middle: each head of the layer. Right: what it does to the outcome.")
        made = made.heading("Attention of the heads that read the span most")
        made = made.view(mi.views.attention(model, pair, most))
        return made.heading("What the model reads").prompt(model, pair)

    print(found)
    options.save(
        {
            "slopes.csv": found.summary(),
            "outcomes.csv": found.outcome_table(),
            "doses.parquet": found.to_frame(),
            "dose_response.png": picture,
        },
        model=model,
        page=page,
        settings=found.settings | {"doses": doses, "layer": layer},
        conclusion=found.describe(),
        n_problems=len(questions),
        problems=found.problem_ids,
    )


app = mi.command_line.analysis(main)

if __name__ == "__main__":
    app()
