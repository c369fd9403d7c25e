"""`mless-interp dose`: how attention to the inserted tokens, and the answer, depend on how many there are."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from typer import Option

from ..core.arguments import count_of
from .command_line import Inserting, OutcomeOption, OutOption
from .run_folder import Computed, Kept, Presented, program, shown_attention


@dataclass(frozen=True, kw_only=True)
class Options(Inserting):
    """What can be asked."""

    doses: Annotated[str, Option(help="Numbers of inserted tokens, increasing.")] = "1,2,4,8,16,32,55,70,110"
    layer: Annotated[int, Option(min=0, help="The layer whose heads are read, zero-based.")] = 0
    outcome: OutcomeOption = "answer_logprob"
    out: OutOption = Path("results/dose_response")


def compute(options: Options) -> Computed:
    """Measure how attention to the inserted tokens and the outcome grow with the number of inserted tokens.

    Writes slopes.csv (a row per head), outcomes.csv (a row per number of tokens), doses.parquet (a row per problem, number
    and head), dose_response.png, the results themselves in results/ (mi.load) and run.json; with --report also report.html.
    A stopped run resumes when you start it again with the same settings.
    """
    try:
        numbers = tuple(map(int, options.doses.split(",")))
    except ValueError:
        raise ValueError(f"--doses: cannot read {options.doses!r} as numbers of tokens: write 1,2,4") from None
    if options.n_tokens is not None:
        raise ValueError("--n-tokens: the lengths of the insertion are --doses here")
    questions = options.questions()
    from ..core.heads import Head
    from ..patching.dose import check_has_doses, checked_doses, dose_response
    from ..prompts.pairs import make_pairs

    doses = checked_doses(numbers)
    check_has_doses(options.insertion)
    filler = options.filler(n_tokens=doses[-1])
    model = options.load()
    found = dose_response(
        model,
        questions,
        filler,
        doses=doses,
        layer=options.layer,
        outcome=options.outcome,
        template=options.template,
        checkpoint=options.partial / "doses.jsonl",
        **options.common,
    )
    pairs = make_pairs(model, questions[:1], filler, template=options.template)
    shown = {}
    if options.attention == "eager":
        most = [Head.parse(label) for label in found.table().nlargest(3, f"log_odds_at_{doses[-1]}")["label"]]
        shown["attention"] = shown_attention(model, pairs, most)
    facts = {"settings": found.settings | {"doses": doses, "layer": options.layer}, "n_problems": len(questions)}
    return Computed({"DoseResponse": found}, model, pairs, shown, facts | {"kind": filler.kind})


def present(kept: Kept) -> Presented:
    """The tables, the picture, and the page."""
    from .. import views
    from ..views.report import Report

    found = kept.results["DoseResponse"]
    picture = views.dose_response(found)

    def page() -> Report:
        question = (
            f"How do attention to {kept.run['kind']} inserted tokens in layer {found.layer} (zero-based) of "
            f"{kept.model_name}, and {kept.options['outcome']}, depend on how many there are "
            f"({kept.options['doses']}), over {count_of(kept.run['n_problems'], 'problem')}?"
        )
        made = Report("Dose and response", question=question, answer=found.headline())
        caption = "Left and middle: each head of the layer. Right: what it does to the outcome."
        made = made.result(found, pictures={caption: picture})
        return kept.view(made, heading="Attention of the heads that read the span most")

    files = {
        "slopes.csv": found.table(),
        "outcomes.csv": found.outcome_table(),
        "doses.parquet": found.to_frame(),
        "dose_response.png": picture,
    }
    return Presented(files, page)


app = program("dose_response", compute, present)
