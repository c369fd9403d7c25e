"""The parts of a circuit's page: what each says, draws and lists, in the order of the story."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from ..arguments import count_of
from ..circuits.circuit import OF_EDGES, PARTS, Circuit
from ..patching.parts import share_words
from ..running.results import Shown, ShownTable, largest_first
from .answers import listed

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
    """How a part is shown: its first sentence, the picture that draws it with its caption, its table's columns (old name to
    new, in order) and caption."""

    answer: Callable[[Circuit], str]
    picture: str
    words: str
    columns: Mapping[str, str]
    caption: str = ""


# -------------------------------------------------------------------------------------------------------------- saying


def _passed(found: Any) -> pd.DataFrame:
    """Cells that most problems show, the largest median first."""
    table = found.summary()
    table = table[table["p_prevalence"] < found.level]
    return largest_first(table, "share")


def _share(row: Mapping[str, Any]) -> str:
    against = ", against it" if row["sense"] < 0 else ""
    return f"{row['label']} ({100 * row['share']:z.0f} %{against})"


def _shares(table: pd.DataFrame) -> str:
    return listed(_share(row) for row in table.to_dict("records"))


def _nothing(n: int) -> str:
    if n == 1:
        return "Nothing is claimed: one problem cannot establish that most show an effect of one sign."
    return f"Nothing is claimed: that most of {n} problems show an effect of one sign is not established."


def _of_parts(found: Any, table: pd.DataFrame, of: str = "") -> str:
    """Which of a result's cells are shown, of those in the table (those `of` some heads), with their shares of the effect."""
    one, several = (f"{word}{of}" for word in found.what)
    n, share = len(found.problem_ids), f"{100 * found.smallest_effect:.3g} %"
    if not found.established:
        return _nothing(n)
    if table.empty:
        return f"No {one} is shown to carry more than {share} of the effect in most of {count_of(n, 'problem')}."
    counts = int((table["sense"] > 0).sum()), int((table["sense"] < 0).sum())
    first, *others = (
        f"{count} {one if count == 1 else several} {does[count > 1]}"
        for count, does in zip(counts, (("carries", "carry"), ("takes back", "take back")), strict=True)
        if count
    )
    also = "".join(f", {words} as much" for words in others)
    return f"{first} more than {share} of the effect in most of {n} problems{also} (share): {_shares(table)}."


def _of_direct(circuit: Circuit) -> str:
    found: Any = circuit.direct
    table = _passed(found)
    if table.empty:
        return _of_parts(found, table)
    ways = {way: _shares(rows.assign(label=rows["of"])) for way, rows in table.groupby("way")}
    direct, indirect = (ways.get(way, "none") for way in ("direct", "indirect"))
    return f"Straight to the logits: {direct}; through later parts of the model: {indirect} (shares of the effect)."


def _entries(found: Any) -> pd.DataFrame:
    """Edges that most problems show; into a head by the single inputs where one is shown, else by all three together."""
    table = _passed(found)
    single = {(row["sender"], row["receiver"]) for row in table.to_dict("records") if row["part"] in ("q", "k", "v")}
    double = [(row["sender"], row["receiver"]) in single and row["part"] == "qkv" for row in table.to_dict("records")]
    return table[~np.array(double, dtype=bool)]


def _of_edges(circuit: Circuit, heads: Sequence[Any] = ()) -> str:
    """Which edges are shown, of all or of these heads."""
    needed: Any = circuit.edges
    enough: Any = circuit.sufficient

    def entries(found: Any) -> pd.DataFrame:
        table, names = _entries(found), list(map(str, heads))
        return table[table["sender"].isin(names) | table["receiver"].isin(names)] if heads else table

    said, others = _of_parts(needed, entries(needed), f" of {listed(heads)}" if heads else ""), entries(enough)
    others = others[~others["label"].isin(set(_passed(needed)["label"])) & (others["sense"] > 0)]
    return said if others.empty else f"{said} Sufficient, and not shown to be needed: {_shares(others)}."


def _of_sites(circuit: Circuit) -> str:
    found: Any = circuit.sites
    return _of_parts(found, _passed(found))


def _of_positions(circuit: Circuit) -> str:
    found: Any = circuit.positions
    table = _passed(found)
    if table.empty:
        return _of_parts(found, table)
    words = []
    for head, rows in table.groupby("of", sort=False):
        places = [
            place.replace("row", "token") + " (against the effect)" * (sense < 0)
            for place, sense in zip(rows["place"], rows["sense"], strict=True)
            if not place.endswith("all")
        ]
        words.append(f"{head} through {listed(places, 4)}" if places else f"{head}: {_closest(found, head)}")
    return f"In most of {count_of(len(found.problem_ids), 'problem')}: {'; '.join(words)}."


def _closest(found: Any, head: str) -> str:
    """The single token of a head's that comes closest to passing, with its figures."""
    table = found.summary()
    single = table[(table["of"] == head) & table["place"].str.fullmatch(r"row (span )?-?\d+") & (table["n"] > 0)]
    words = "no single token is significant"
    if single.empty:
        return words
    row = largest_first(single, "share").sort_values("p_prevalence", kind="stable").iloc[0].to_dict()
    token = _share(row | {"label": row["place"].replace("row", "token")})
    return (
        f"{words}; the closest is {token}, {row['k']} of {count_of(row['n'], 'problem')}, p = {row['p_prevalence']:.2g}"
    )


def _of_writes(circuit: Circuit) -> str:
    from ..circuits.head_writes import KINDS, LOOKS, quoted

    found: Any = circuit.writes
    words = []
    for head in found.heads[:3]:
        up, looks = found.of(head, "change")[0], found.of(head, LOOKS)[0]
        size = np.nanmax(found.means[found.heads.index(head), KINDS.index("change")])
        wrote = (
            f"promotes {', '.join(map(quoted, up[:3]))} (by {size:.1g} logits at most)" if up else "promotes nothing"
        )
        words.append(f"{head} {wrote} and looks at {', '.join(map(quoted, looks[:2])) or 'nothing'}")
    more = f"; {len(found.heads) - 3} more below" if len(found.heads) > 3 else ""
    return f"A description, not evidence: {'; '.join(words)}{more}."


def _of_transfer(circuit: Circuit) -> str:
    found: Any = circuit.transfer
    moved, *others = found.summary().to_dict("records")
    n, share = len(found.problem_ids), f"{100 * found.smallest_effect:.3g} %"
    if not found.established:
        return _nothing(n)
    if not moved["p_prevalence"] < found.level:
        return (
            f"Not shown that more than {share} of the effect returns without the tokens in most of {n} problems (share "
            f"{share_words(moved)})."
        )
    beside = listed(f"{100 * each['share']:z.0f} % from {each['label'].lower()}" for each in others)
    held = f" (controls: {beside})" if others else ""
    does, size = ("brings back", 100) if moved["sense"] > 0 else ("does the opposite of the effect, by", -100)
    back = f"{size * moved['share']:z.0f} % of {'the effect' if size > 0 else 'it'}"
    return f"Without the tokens, what they do to these heads on average {does} {back}{held}."


# ------------------------------------------------------------------------------------------------------------- showing


COUNTED = "Tokens are counted from both ends: 0 comes first after the insertion, -1 predicts the answer."


def pictures_of(circuit: Circuit, name: str) -> dict[str, Any]:
    """Return the pictures of a part by caption; of edges one of each direction."""
    from .. import views

    section = SECTIONS[name]
    if name != "edges":
        return {section.words: getattr(views, section.picture)(getattr(circuit, name))}
    words = {
        "edges": ("Edges that are needed (denoising)", ""),
        "sufficient": ("Edges that suffice (noising)", ": alone they bring their part back"),
    }
    return {
        f"{which}: none. {why}"
        if (why := getattr(circuit, key).why_none())
        else f"{which}{does}. The picture shows shares.": views.path_graph(getattr(circuit, key))
        for key, (which, does) in words.items()
    }


CLAIMS = {
    "share": "",
    "k": "",
    "p_prevalence": "",
    "n": "",
    "prevalence": "",
    "sense": "",
    "median": "",
    "effect": "mean effect",
}
"""Columns that results of parts have, those that matter first."""

SECTIONS: dict[str, Section] = {
    "direct": Section(
        _of_direct,
        "direct_bars",
        "What each head writes straight to the logits, and what goes through later parts: means, which add up.",
        {"of": "label", "way": "", **CLAIMS},
        "Both ways of every head.",
    ),
    "edges": Section(
        _of_edges,
        "path_graph",
        "",
        {"label": "edge", **CLAIMS},
        f"Edges that are needed, the largest first, with {100 * OF_EDGES:g} % intervals; "
        "q: what the receiver looks for, k: where it finds it, v: what it takes.",
    ),
    "sites": Section(
        _of_sites,
        "site_map",
        f"Layers and tokens where the effect passes; resid_pre is the stream before a layer. {COUNTED}",
        {"label": "site and token", **CLAIMS},
        "Sites, the largest first, a hundred at most.",
    ),
    "positions": Section(
        _of_positions,
        "site_map",
        f"Tokens of the question through which a head acts, and parts of the span that it reads. {COUNTED}",
        {"label": "head and place", **CLAIMS},
        "Places, the largest first.",
    ),
    "writes": Section(
        _of_writes,
        "token_bars",
        "Tokens promoted and suppressed, and those whose keys are preferred and avoided.",
        {},
    ),
    "sets": Section(
        lambda circuit: circuit.sets.sentences()[0],  # type: ignore[union-attr]
        "set_growth",
        "Sets of heads that see the span alone, or alone do not, head by head.",
        {},
    ),
    "transfer": Section(
        _of_transfer,
        "transfer_bars",
        "Prompts without the insertion whose heads are moved as it moves them.",
        {},
    ),
}
"""The parts of a circuit, in the order of the story."""


def _of_named(circuit: Circuit) -> str:
    """How many of the named heads these are, and which of them fresh problems do not confirm."""
    found, heads = circuit.located, circuit.heads
    if found is None:
        return "given"
    of = f", the largest of {len(found.found)}" if len(heads) < len(found.found) else ""
    unsure = [head for head in heads if found.confirmation is not None and head not in found.confirmed]
    return f"named and measured{of}" + (f"; not confirmed: {listed(unsure)}" if unsure else "")


def answer_of(circuit: Circuit) -> str:
    """The whole in one sentence: which heads, and what passes between them."""
    from .answers import of_located

    if not circuit.heads:
        return str(of_located(circuit.located)) + " So there is no circuit to take apart."
    which = f"{listed(circuit.heads)} ({_of_named(circuit)})"
    if circuit.edges is not None:
        return f"{which}: {_of_edges(circuit, circuit.heads)}"
    return f"{which}." if circuit.direct is None else f"{which}: {_of_direct(circuit)}"


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
    answer = section.answer(circuit)
    page = page.heading(PARTS[name]).answered(answer)
    first = tuple(words for words in found.told()[:2] if words != answer)[:1]
    page = page.result(found, heading=None, pictures=pictures_of(circuit, name), shown=shown, first=first)
    if circuit.sufficient is None or name != "edges":
        return page
    table = _table(section, circuit.sufficient)
    enough = Report("", question="").table(table.frame, table.caption.replace("are needed", "suffice"))
    return page.folded("Edges that suffice", enough.sentence(*circuit.sufficient.told()))


def _table(section: Section, found: Any) -> ShownTable:
    """A part's cells, the largest median first, under its own column names."""
    table = largest_first(found.summary(), "median").head(MOST_ROWS)
    columns = [f"{name}{end}" for name in section.columns for end in ENDS]
    columns = [name for name in columns if name in table]
    names = {f"{old}{end}": f"{new}{end}" for old, new in section.columns.items() if new for end in ENDS}
    caption = f"{section.caption} Effects are parts of the insertion's, in {found.unit}."
    return ShownTable(table[columns].rename(columns=names), caption)
