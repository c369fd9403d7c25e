"""The parts of a circuit's page: what each says, draws and lists, in the order of the story."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..circuits.circuit import PARTS, Circuit
from ..runtime.results import Shown, ShownTable, largest_first

FAMILIES = {
    "located": "heads (removed and added)",
    "direct": "ways of heads",
    "edges": "edges (both directions)",
    "sites": "sites",
    "positions": "places of heads",
    "sets": "sets",
    "transfer": "what comes back without the tokens",
}
"""Of what each family of tests on a circuit's page is, by its result."""


@dataclass(frozen=True)
class Section:
    """How a part is shown: the caption of its picture, its table's columns (old name to new) and caption."""

    words: str
    columns: Mapping[str, str]
    caption: str = ""


COUNTED = "Tokens are counted from both ends: 0 comes first after the insertion, -1 predicts the answer."


def pictures_of(circuit: Circuit, name: str) -> dict[str, Any]:
    """Return the pictures of a part by caption; of edges one of each direction, None where there are no edges."""
    section = SECTIONS[name]
    if name != "edges":
        return {section.words: getattr(circuit, name).plot()}
    words = {
        "edges": ("Edges that are needed (denoising)", ""),
        "sufficient": ("Edges that suffice (noising)", ": alone they bring their part back"),
    }
    return {
        f"{which}: none. {why}"
        if (why := getattr(circuit, key).why_none())
        else f"{which}{does}. The picture shows shares.": None if why else getattr(circuit, key).plot()
        for key, (which, does) in words.items()
    }


CLAIMS = dict.fromkeys(("share", "k", "p_corrected", "n", "prevalence", "sense", "median"), "") | {
    "effect": "mean effect"
}
"""Columns that results of parts have, those that matter first."""

SECTIONS: dict[str, Section] = {
    "direct": Section(
        "What each head writes straight to the logits, and what goes through later parts: means, which add up.",
        {"of": "label", "way": "", **CLAIMS},
        "Both ways of every head.",
    ),
    "edges": Section(
        "",
        {"label": "edge", **CLAIMS},
        "Edges that are needed, the largest first; "
        "q: what the receiver looks for, k: where it finds it, v: what it takes.",
    ),
    "sites": Section(
        f"Layers and tokens where the effect passes; resid_pre is the stream before a layer. {COUNTED}",
        {"label": "site and token", **CLAIMS},
        "Sites, the largest first, a hundred at most.",
    ),
    "positions": Section(
        f"Tokens of the question through which a head acts, and parts of the span that it reads. {COUNTED}",
        {"label": "head and place", **CLAIMS},
        "Places, the largest first.",
    ),
    "writes": Section("Tokens promoted and suppressed, and those whose keys are preferred and avoided.", {}),
    "sets": Section("Sets of heads that see the span alone, or alone do not, head by head.", {}),
    "transfer": Section("Prompts without the insertion whose heads are moved as it moves them.", {}),
}
"""The parts of a circuit, in the order of the story."""


def family_words(circuit: Circuit) -> str:
    """How many families of tests the page has, of what, and that each is corrected by itself."""
    names = [name for key, name in FAMILIES.items() if getattr(circuit, key) is not None]
    return (
        f"Corrected p-values hold within a family of tests, of which this page has {len(names)}: {'; '.join(names)}. "
        "Nothing is corrected across families."
    )


MOST_ROWS = 100
ENDS = ("", "_ci_low", "_ci_high")


def shown_section(page: Any, name: str, circuit: Circuit) -> Any:
    """The page with this part: its answer, its pictures, its table; what it says besides is folded."""
    from ..views.report import Report

    section, found = SECTIONS[name], getattr(circuit, name)
    shown = Shown((_table(section, found),)) if section.columns else found.shown()
    page = page.heading(PARTS[name]).answered(found.headline())
    pictures = pictures_of(circuit, name)
    drawn = {caption: picture for caption, picture in pictures.items() if picture is not None}
    page = page.result(found, heading=None, pictures=drawn, shown=shown, first=found.caveats())
    page = page.sentence(*(caption for caption in pictures if caption not in drawn))
    enough = circuit.sufficient
    if enough is None or name != "edges" or enough.why_none():
        return page
    table = _table(section, enough)
    shown = Shown((ShownTable(table.frame, table.caption.replace("are needed", "suffice")),))
    told = Report("", question="").result(enough, heading=None, shown=shown, first=enough.explain().splitlines())
    return page.folded("Edges that suffice", told)


def _table(section: Section, found: Any) -> ShownTable:
    """A part's cells, the largest median first, under its own column names."""
    table = largest_first(found.table(), "median").head(MOST_ROWS)
    columns = [f"{name}{end}" for name in section.columns for end in ENDS]
    columns = [name for name in columns if name in table]
    names = {f"{old}{end}": f"{new}{end}" for old, new in section.columns.items() if new for end in ENDS}
    caption = f"{section.caption} Effects are parts of the insertion's, in {found.unit}, above 0 with it."
    return ShownTable(table[columns].rename(columns=names), caption)
