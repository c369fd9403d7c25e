"""`mless-interp dose`: how attention to the inserted tokens, and the answer, depend on how many there are."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from typer import Option

from ..command_line import (
    Asking,
    InsertionOption,
    OutcomeOption,
    OutOption,
    PlaceOption,
    chosen_insertion,
    chosen_numbers,
)
from ..given import count_of
from .kept import Computed, Kept, Presented, program


@dataclass(frozen=True, kw_only=True)
class Options(Asking):
    """What can be asked."""

    insertion: InsertionOption = "meaningless"
    unit: Annotated[str | None, Option(help="The repeated unit or word. [default: ' /' or 'he']")] = None
    place: PlaceOption = "before-question"
    doses: Annotated[str, Option(help="Numbers of inserted tokens, increasing.")] = "1,2,4,8,16,32,55,70,110"
    layer: Annotated[int, Option(min=0, help="The layer whose heads are read, zero-based.")] = 0
    outcome: OutcomeOption = "answer_logprob"
    out: OutOption = Path("results/dose_response")


def compute(options: Options) -> Computed:
    """Measure how attention to the inserted tokens and the outcome grow with the number of inserted tokens.

    Writes slopes.csv (a row per head), outcomes.csv (a row per number of tokens), doses.parquet (a row per problem, number
    and head), dose_response.png, the results themselves in results/ (mi.load) and run.json; with --report also report.html.
    A run that is stopped goes on from where it was when it is started again with the same settings.
    """
    from ..heads import Head
    from ..patching.dose import check_has_doses, checked_doses, dose_response
    from ..patching.outcomes import outcome_named
    from ..prompts.pairs import make_pairs
    from ..views.pooling import read_attention
    from ..views.report import ShownPrompt

    doses = checked_doses(chosen_numbers(options.doses, name="--doses"))
    check_has_doses(options.insertion)
    outcome_named(options.outcome, signed_for="dose-response")
    questions = options.questions()
    filler = chosen_insertion(
        options.insertion, options.unit, n_tokens=doses[-1], seed=options.seed, problems=questions, place=options.place
    )
    model = options.load(at_least=doses[-1])
    found = dose_response(
        model,
        questions,
        filler,
        doses=doses,
        layer=options.layer,
        outcome=options.outcome,
        template=options.template,
        checkpoint=options.partial / "doses.jsonl",
        progress=options.progress,
        seed=options.seed,
    )
    (pair,) = make_pairs(model, questions[:1], filler, template=options.template)
    shown: dict[str, Any] = {"prompt": ShownPrompt.of(model, pair)}
    if options.attention == "eager":
        most = [Head.parse(label) for label in found.summary().nlargest(3, f"log_odds_at_{doses[-1]}")["label"]]
        shown["attention"] = read_attention(model, pair, most)
    return Computed(
        results={"DoseResponse": found},
        told=repr(found),
        model=model,
        shown=shown,
        facts={
            "settings": found.settings | {"doses": doses, "layer": options.layer},
            "conclusion": found.describe(),
            "n_problems": len(questions),
            "problems": found.problem_ids,
            "kind": filler.kind,
        },
    )


def present(kept: Kept) -> Presented:
    """The tables, the picture, and the page."""
    from .. import views
    from ..views.circuitsvis import attention_view
    from ..views.report import Report
    from .answers import model_name, of_doses

    found = kept.results["DoseResponse"]
    picture = views.dose_response(found)

    def page() -> Report:
        question = (
            f"How do attention to {kept.run['kind']} inserted tokens in layer {found.layer} (zero-based) of "
            f"{model_name(kept.run['model']['name'])}, and {kept.options['outcome']}, depend on how many there are "
            f"({kept.options['doses']}), over {count_of(kept.run['n_problems'], 'problem')}?"
        )
        made = Report("Dose and response", question=question, answer=of_doses(found))
        caption = "Left and middle: each head of the layer. Right: what it does to the outcome."
        made = made.result(found, pictures={caption: picture})
        if "attention" in kept.shown:
            made = made.heading("Attention of the heads that read the span most")
            made = made.view(attention_view(kept.shown["attention"]))
        return made.heading("What the model reads").shown_prompt(kept.shown["prompt"])

    files = {
        "slopes.csv": found.summary(),
        "outcomes.csv": found.outcome_table(),
        "doses.parquet": found.to_frame(),
        "dose_response.png": picture,
    }
    return Presented(files, page)


app = program("dose_response", compute, present)
