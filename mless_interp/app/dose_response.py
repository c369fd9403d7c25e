"""`mless-interp dose`: how attention to the inserted tokens, and the answer, depend on how many there are."""

from dataclasses import dataclass
from pathlib import Path

from .command_line import Inserting, option
from .run_folder import Computed, Kept, Presented, program, shown_attention


@dataclass(frozen=True, kw_only=True)
class Options(Inserting):
    doses: str = option("1,2,4,8,16,32,55,70,110", "Numbers of inserted tokens, increasing.")
    layer: int = option(0, "The layer whose heads are read, zero-based.", min=0)
    outcome: str = "answer_logprob"
    out: Path = Path("results/dose_response")


def compute(options: Options) -> Computed:
    """Measure how attention to the inserted tokens and the outcome grow with the number of inserted tokens.

    Writes slopes.csv (a row per head), outcomes.csv (a row per number of tokens), doses.parquet (a row per problem, number
    and head), dose_response.png.
    """
    try:
        numbers = tuple(map(int, options.doses.split(",")))
    except ValueError:
        raise ValueError(f"--doses: cannot read {options.doses!r} as numbers of tokens: write 1,2,4") from None
    if options.n_tokens is not None:
        raise ValueError("--n-tokens: the lengths of the insertion are --doses here")
    questions = options.questions()
    from ..patching.dose import checked_doses, dose_response
    from ..prompts.pairs import make_pairs

    doses = checked_doses(numbers, options.insertion)
    filler = options.filler(n_tokens=doses[-1])
    model = options.load(filler)
    how = options.chosen("layer", "outcome", "template") | options.common
    found = dose_response(model, questions, filler, doses=doses, checkpoint=options.partial / "doses.jsonl", **how)
    pairs = make_pairs(model, questions[:1], filler, template=options.template)
    most = found.table().nlargest(3, f"log_odds_at_{doses[-1]}")["label"].tolist()
    facts = {"settings": found.settings | {"doses": doses, "layer": options.layer}, "n_problems": len(questions)}
    return Computed({"DoseResponse": found}, model, pairs, shown_attention(model, pairs, most), facts)


def present(kept: Kept) -> Presented:
    found = kept.results["DoseResponse"]
    what = f"attention in layer {found.layer} (zero-based) and {kept.run['options']['outcome']}"
    asked = f"How do {what} depend on how many tokens are inserted ({kept.run['options']['doses']})?"
    page, picture = kept.page("Dose and response", asked, found), found.plot()
    caption = "Left and middle: each head of the layer. Right: what it does to the outcome."
    view = "Attention of the heads that read the span most"
    files = {"slopes.csv": found.table(), "outcomes.csv": found.outcome_table(), "doses.parquet": found.to_frame()}
    files |= {"dose_response.png": picture}
    return Presented(files, lambda: kept.view(page.result(found, pictures={caption: picture}), heading=view))


app = program("dose_response", compute, present)
