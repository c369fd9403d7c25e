"""`mless-interp read-span`: whether the answer, or something on the way to it, can be read at the inserted positions."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from typer import Option

from ..core.arguments import count_of
from .command_line import Inserting, LimitOption, OutOption, PlaceOption
from .run_folder import Computed, Kept, Presented, program


@dataclass(frozen=True, kw_only=True)
class Options(Inserting):
    """What can be asked."""

    what: Annotated[
        str,
        Option(help="Target token: 'answer' (its first token), or a key of the problems with a text of one token."),
    ] = "answer"
    limit: LimitOption = 64
    place: PlaceOption = "after-question"
    out: OutOption = Path("results/read_span")


def compute(options: Options) -> Computed:
    """Read the answer at the inserted positions, layer by layer, with the unembedding and with linear probes.

    Writes readings.csv (a row per reader, layer and block of tokens), readings.parquet (a row per problem, layer, position and
    measure), span_map.png, the results themselves in results/ (mi.load) and run.json; with --report also report.html.
    A stopped run resumes when you start it again with the same settings.
    """
    questions = options.questions()
    from ..mechanism import read_span

    model, (pairs,) = options.begin(questions)
    file = options.partial / "readings.jsonl"
    found = read_span(model, pairs, what=options.what, checkpoint=file, **options.common)
    facts = {"settings": found.settings, "n_problems": len(pairs)}
    return Computed({"SpanReadings": found}, model, pairs, {}, facts)


def present(kept: Kept) -> Presented:
    """The table, the map, and the page."""
    from .. import views
    from ..views.report import Report

    found = kept.results["SpanReadings"]
    picture = views.span_map(found)

    def page() -> Report:
        question = (
            f"Can the {found.what} be read at the positions of {found.settings['insertion']} in "
            f"{kept.model_name}, over {count_of(kept.run['n_problems'], 'problem')}?"
        )
        made = Report("What the inserted positions hold", question=question, answer=found.headline())
        caption = "Share of pairs of problems whose own tokens are read better than exchanged ones; half is chance."
        return made.result(found, pictures={caption: picture})

    return Presented(
        {"readings.csv": found.table(), "readings.parquet": found.to_frame(), "span_map.png": picture}, page
    )


app = program("read_span", compute, present)
