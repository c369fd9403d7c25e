"""The parts of a circuit's page: how each is measured, and what it says, draws and lists, in the order of the story."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from ..given import count_of
from ..running.results import Shown, ShownTable, largest_first
from .answers import listed

Results = Mapping[str, Any]
NOISING = "PathEffects, noising"


@dataclass(frozen=True)
class Section:
    """A part of the story: `key` is its result's name, `measure` gives it (and others that go with it) by name.

    `why_not` says what speaks against measuring it, "" where nothing does; `answer` is its first sentence, `pictures` stand
    under it by caption, `columns` are those of its table, in order, old name to new.
    """

    key: str
    heading: str
    measure: Callable[[Any], dict[str, Any]]
    answer: Callable[[Results], str]
    pictures: Callable[[Results], dict[str, Any]]
    columns: Mapping[str, str]
    caption: str = ""
    why_not: Callable[[Any], str] = lambda asking: ""


# ----------------------------------------------------------------------------------------------------------- measuring


def _direct(asking: Any) -> dict[str, Any]:
    from ..circuits.direct import direct_effects

    common = {**asking.common, "contrast": asking.options.contrast}
    checkpoint = asking.checkpoint("direct.jsonl")
    return {"DirectEffects": direct_effects(asking.model, asking.pairs, asking.heads, checkpoint=checkpoint, **common)}


def _edges(asking: Any) -> dict[str, Any]:
    from ..circuits.paths import trace_paths

    common = {**asking.common, "contrast": asking.options.contrast, "mlps": asking.mlps}
    return {
        key: trace_paths(
            asking.model,
            asking.pairs,
            asking.heads,
            direction=direction,
            checkpoint=asking.checkpoint(f"edges-{direction}.jsonl"),
            **common,
        )
        for key, direction in (("PathEffects", "denoising"), (NOISING, "noising"))
    }


def _one_alone(asking: Any) -> str:
    if len(asking.heads) > 1 or asking.mlps:
        return ""
    why = f" without MLPs: {asking.without_mlps}" if asking.without_mlps else " (--mlps all adds the MLPs)"
    return f"an edge needs two parts, and {asking.heads[0]} is alone{why}"


def _sites(asking: Any) -> dict[str, Any]:
    from ..circuits.site_patches import patch_sites

    common = {**asking.common, "contrast": asking.options.contrast, "n_rows": asking.options.n_rows}
    return {
        "SitePatches": patch_sites(asking.model, asking.pairs, checkpoint=asking.checkpoint("sites.jsonl"), **common)
    }


def _positions(asking: Any) -> dict[str, Any]:
    from ..circuits.site_patches import map_positions

    common = {**asking.common, "n_rows": asking.options.n_rows}
    checkpoint = asking.checkpoint("positions.jsonl")
    return {"PositionMap": map_positions(asking.model, asking.pairs, asking.heads, checkpoint=checkpoint, **common)}


def _writes(asking: Any) -> dict[str, Any]:
    from ..circuits.head_writes import what_it_writes

    options = {"checkpoint": asking.checkpoint("writes.jsonl"), "progress": asking.common["progress"]}
    return {"HeadWrites": what_it_writes(asking.model, asking.pairs, asking.heads, **options)}


def _sets(asking: Any) -> dict[str, Any]:
    from ..circuits.minimal_sets import minimal_sets

    options = {**asking.common, "contrast": asking.options.contrast, "fresh": asking.fresh}
    return {"MinimalSets": minimal_sets(asking.model, asking.named_on, checkpoint=asking.checkpoint("sets"), **options)}


def _transfer(asking: Any) -> dict[str, Any]:
    from ..circuits.transfer import transfer

    options = {**asking.common, "fresh": asking.fresh, "checkpoint": asking.checkpoint("transfer")}
    return {"Transfer": transfer(asking.model, asking.named_on, asking.heads, **options)}


def _too_few(asking: Any) -> str:
    """Sets and means are found on some problems and tested on others."""
    n = len(asking.named_on)
    search, test = ((n + 1) // 2, n // 2) if asking.fresh is None else (n, len(asking.fresh))
    if search >= 6 and test >= 7:
        return ""
    return (
        "what is found on some problems is tested on others: at least 6 and 7 are needed, "
        f"there {'is' if search == 1 else 'are'} {search} and {test}"
    )


def _no_one_place(asking: Any) -> str:
    n = max(len(pair.spans) for pair in (*asking.named_on, *asking.pairs))
    return "" if n == 1 else f"known of an insertion in one place alone, and this one has {n} blocks"


def _content_alone(asking: Any) -> str:
    return "" if asking.options.contrast == "content" else "known of the content contrast alone"


# -------------------------------------------------------------------------------------------------------------- saying


def _passed(found: Any) -> pd.DataFrame:
    """Cells that most problems show, the largest median first."""
    table = found.summary()
    table = table[table["p_prevalence"] < found.alpha]
    return largest_first(table, "median_fraction")


def _share(row: Mapping[str, Any]) -> str:
    against = ", against it" if row["sense"] < 0 else ""
    return f"{row['label']} ({100 * row['median_fraction']:z.0f} %{against})"


def _shares(table: pd.DataFrame) -> str:
    return listed(_share(row) for row in table.to_dict("records"))


def _nothing(n: int) -> str:
    if n == 1:
        return "Nothing is claimed: one problem cannot establish that most show an effect of one sign."
    return f"Nothing is claimed: that most of {n} problems show an effect of one sign is not established."


def _of_parts(found: Any, table: pd.DataFrame) -> str:
    """Which of a result's cells are shown, of those in the table, with their median shares of the median effect."""
    one, several = found.what
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
    return f"{first} more than {share} of the effect in most of {n} problems{also} (median share): {_shares(table)}."


def _of_direct(results: Results) -> str:
    found = results["DirectEffects"]
    table = _passed(found)
    if table.empty:
        return _of_parts(found, table)
    ways = {way: _shares(rows.assign(label=rows["of"])) for way, rows in table.groupby("way")}
    direct, indirect = (ways.get(way, "none") for way in ("direct", "indirect"))
    return (
        f"Straight to the logits: {direct}; through later parts of the model: {indirect} (median shares of the effect)."
    )


def _entries(found: Any) -> pd.DataFrame:
    """Edges that most problems show; into a head by the single inputs where one is shown, else by all three together."""
    table = _passed(found)
    single = {(row["sender"], row["receiver"]) for row in table.to_dict("records") if row["part"] in ("q", "k", "v")}
    double = [(row["sender"], row["receiver"]) in single and row["part"] == "qkv" for row in table.to_dict("records")]
    return table[~np.array(double, dtype=bool)]


def _of_edges(results: Results) -> str:
    needed, enough = results["PathEffects"], results[NOISING]
    said, others = _of_parts(needed, _entries(needed)), _entries(enough)
    others = others[~others["label"].isin(set(_passed(needed)["label"])) & (others["sense"] > 0)]
    return said if others.empty else f"{said} Sufficient, and not shown to be needed: {_shares(others)}."


def _of_sites(results: Results) -> str:
    return _of_parts(results["SitePatches"], _passed(results["SitePatches"]))


def _of_positions(results: Results) -> str:
    found = results["PositionMap"]
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
        words.append(f"{head} through {listed(places, 4)}" if places else f"{head} through no single token")
    return f"In most of {count_of(len(found.problem_ids), 'problem')}: {'; '.join(words)}."


def _of_writes(results: Results) -> str:
    from ..circuits.head_writes import KINDS, LOOKS, quoted

    found, words = results["HeadWrites"], []
    for head in found.heads[:3]:
        up, looks = found.of(head, "change")[0], found.of(head, LOOKS)[0]
        size = np.nanmax(found.means[found.heads.index(head), KINDS.index("change")])
        wrote = (
            f"promotes {', '.join(map(quoted, up[:3]))} (by {size:.1g} logits at most)" if up else "promotes nothing"
        )
        words.append(f"{head} {wrote} and looks at {', '.join(map(quoted, looks[:2])) or 'nothing'}")
    more = f"; {len(found.heads) - 3} more below" if len(found.heads) > 3 else ""
    return f"A description, not evidence: {'; '.join(words)}{more}."


def _first(key: str) -> Callable[[Results], str]:
    return lambda results: str(results[key].sentences()[0])


def _of_transfer(results: Results) -> str:
    found = results["Transfer"]
    moved, *others = found.summary().to_dict("records")
    n, share = len(found.problem_ids), f"{100 * found.smallest_effect:.3g} %"
    if not found.established:
        return _nothing(n)
    if not moved["p_prevalence"] < found.alpha:
        return f"No more than {share} of the effect is shown to come back without the tokens in most of {n} problems."
    beside = listed(f"{100 * each['median_fraction']:z.0f} % from {each['label'].lower()}" for each in others)
    held = f" (controls: {beside})" if others else ""
    does, size = ("brings back", 100) if moved["sense"] > 0 else ("does the opposite of the effect, by", -100)
    back = f"{size * moved['median_fraction']:z.0f} % of {'the effect' if size > 0 else 'it'}"
    return f"Without the tokens, what they do to these heads on average {does} {back} (medians over problems){held}."


# ------------------------------------------------------------------------------------------------------------- showing


def _means(found: Any) -> str:
    """What a picture of cells shows; where nothing is established there are no median shares beside it."""
    return "The picture shows means" + (
        "; the sentence above and 'median share' medians." if found.established else "."
    )


COUNTED = "Tokens are counted from both ends: 0 comes first after the insertion, -1 predicts the answer."


def _drawn(
    name: str, key: str, caption: str, means: bool = False, **options: Any
) -> Callable[[Results], dict[str, Any]]:
    def made(results: Results) -> dict[str, Any]:
        from .. import views

        found = results[key]
        return {f"{caption} {_means(found)}" if means else caption: getattr(views, name)(found, **options)}

    return made


def _graphs(results: Results) -> dict[str, Any]:
    from .. import views

    words = {
        "PathEffects": ("Edges that are needed (denoising)", ""),
        NOISING: ("Edges that suffice (noising)", ": alone they bring their part back"),
    }
    return {
        f"{name}: none. {why}"
        if (why := results[key].why_none())
        else f"{name}{does}. The picture shows median shares.": views.path_graph(results[key])
        for key, (name, does) in words.items()
    }


CLAIMS = {
    "median_fraction": "",
    "k": "",
    "p_prevalence": "",
    "effect": "mean effect",
    "effect_fraction": "share of the mean effect",
    "n": "",
    "prevalence": "",
    "sense": "",
    "median": "",
}
"""Columns that results of parts have, those that matter first."""

SECTIONS: dict[str, Section] = {
    "direct": Section(
        "DirectEffects",
        "Straight to the answer, or through others",
        _direct,
        _of_direct,
        _drawn(
            "direct_bars",
            "DirectEffects",
            "What each head writes straight to the logits, and what goes through later parts.",
            means=True,
        ),
        {"of": "label", "way": "", **CLAIMS},
        "Both ways of every head.",
    ),
    "edges": Section(
        "PathEffects",
        "Who reads whom",
        _edges,
        _of_edges,
        _graphs,
        {"label": "edge", **CLAIMS},
        "Edges that are needed, the largest first; q: what the receiver looks for, k: where it finds it, v: what it takes.",
        _one_alone,
    ),
    "sites": Section(
        "SitePatches",
        "At which site and token",
        _sites,
        _of_sites,
        _drawn(
            "site_map",
            "SitePatches",
            f"Layers and tokens where the effect passes; resid_pre is the stream before a layer. {COUNTED}",
            means=True,
        ),
        {"label": "site and token", **CLAIMS},
        "Sites, the largest first, a hundred at most.",
    ),
    "positions": Section(
        "PositionMap",
        "Through which tokens heads act",
        _positions,
        _of_positions,
        _drawn(
            "site_map",
            "PositionMap",
            f"Tokens of the question through which a head acts, and parts of the span that it reads. {COUNTED}",
            means=True,
        ),
        {"label": "head and place", **CLAIMS},
        "Places, the largest first.",
        _content_alone,
    ),
    "writes": Section(
        "HeadWrites",
        "What they write, and where they look",
        _writes,
        _of_writes,
        _drawn(
            "token_bars",
            "HeadWrites",
            "Tokens promoted and suppressed, and those whose keys are preferred and avoided.",
        ),
        {},
        why_not=_content_alone,
    ),
    "sets": Section(
        "MinimalSets",
        "Which heads suffice, and which are needed",
        _sets,
        _first("MinimalSets"),
        _drawn("set_growth", "MinimalSets", "Sets of heads that see the span alone, or alone do not, head by head."),
        {},
        why_not=_too_few,
    ),
    "transfer": Section(
        "Transfer",
        "The effect without the tokens",
        _transfer,
        _of_transfer,
        _drawn("transfer_bars", "Transfer", "Prompts without the insertion whose heads are moved as it moves them."),
        {},
        why_not=lambda asking: _content_alone(asking) or _no_one_place(asking) or _too_few(asking),
    ),
}
"""The parts of a circuit, in the order of the story."""


def _of_named(results: Results, heads: Sequence[Any]) -> str:
    """How many of the named heads these are, and which of them fresh problems do not confirm."""
    found = results.get("LocatedHeads")
    if found is None:
        return ""
    of = f", the largest of {len(found.found)}" if len(heads) < len(found.found) else ""
    unsure = [head for head in heads if found.confirmation is not None and head not in found.confirmed]
    return of + (f"; not confirmed: {listed(unsure)}" if unsure else "")


def answer_of(results: Results, heads: Sequence[Any], given: bool) -> str:
    """The whole in one sentence: which heads, and what passes between them."""
    from .answers import of_located

    if not heads:
        return str(of_located(results["LocatedHeads"])) + " So there is no circuit to take apart."
    which = f"{listed(heads)} ({'given' if given else f'named and measured{_of_named(results, heads)}'})"
    if "PathEffects" in results:
        return f"{which}: {_of_edges(results)}"
    if "DirectEffects" in results:
        return f"{which}: {_of_direct(results)}"
    return f"{which}."


MOST_ROWS = 100
ENDS = ("", "_ci_low", "_ci_high")


def shown_section(page: Any, section: Section, results: Results, pictures: Mapping[str, Any]) -> Any:
    """The page with this part: its answer, its pictures, its table; what it says besides is folded."""
    from ..views.report import Report

    found = results[section.key]
    shown = Shown((_table(section, found),)) if section.columns else found.shown()
    answer = section.answer(results)
    page = page.heading(section.heading).answered(answer)
    first = tuple(words for words in found.told()[:2] if words != answer)[:1]
    page = page.result(found, heading=None, pictures=pictures, shown=shown, first=first)
    if section.key != "PathEffects":
        return page
    table = _table(section, results[NOISING])
    enough = Report("", question="").table(table.frame, table.caption.replace("are needed", "suffice"))
    return page.folded("Edges that suffice", enough.sentence(*results[NOISING].told()))


def _table(section: Section, found: Any) -> ShownTable:
    """A part's cells, the largest median first, under its own column names."""
    table = largest_first(found.summary(), "median").head(MOST_ROWS)
    table = table.rename(columns={end: f"effect_fraction_{end}" for end in ("ci_low", "ci_high")})
    columns = [f"{name}{end}" for name in section.columns for end in ENDS]
    columns = [name for name in columns if name in table]
    names = {f"{old}{end}": f"{new}{end}" for old, new in section.columns.items() if new for end in ENDS}
    caption = f"{section.caption} Effects are parts of the insertion's, in {found.unit}."
    return ShownTable(table[columns].rename(columns=names), caption)
