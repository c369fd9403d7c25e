"""`mless-interp read-span`: whether the answer, or something on the way to it, can be read at the inserted positions."""

from dataclasses import dataclass
from pathlib import Path

from .command_line import Inserting, check_key, option
from .run_folder import Computed, Kept, Presented, program


@dataclass(frozen=True, kw_only=True)
class Options(Inserting):
    what: str = option("answer", "'answer' (its first token), or a key of the problems with a text of one token.")
    limit: int = 64
    place: str = "after-question"
    out: Path = Path("results/read_span")


def compute(options: Options) -> Computed:
    """Read the answer at the inserted positions, layer by layer, with the unembedding and with linear probes.

    Writes readings.csv (a row per reader, layer and block of tokens), readings.parquet (a row per problem, layer, position and
    measure), span_map.png.
    """
    questions = options.questions()
    check_key(questions, "--what", options.what)
    from ..mechanism import read_span

    model, (pairs,) = options.begin(questions)
    found = read_span(model, pairs, what=options.what, checkpoint=options.partial / "readings.jsonl", **options.common)
    return Computed({"SpanReadings": found}, model, pairs)


def present(kept: Kept) -> Presented:
    found = kept.results["SpanReadings"]
    asked, picture = f"Can the {found.what} be read at the inserted positions?", found.plot()
    caption = "Share of pairs of problems whose own tokens are read better than exchanged ones; half is chance."
    page = kept.page("What the inserted positions hold", asked, found)
    files = {"readings.csv": found.table(), "readings.parquet": found.to_frame(), "span_map.png": picture}
    return Presented(files, lambda: page.result(found, pictures={caption: picture}))


app = program("read_span", compute, present)
