"""Every kind of result tells, prints, shows and keeps itself: laws that hold of all of them, and the shared tables."""

import importlib
import pkgutil
import re
import subprocess
import sys
from dataclasses import fields, replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from conftest import ROOT
from small_results import KEPT, OTHERS, RESULTS, told

import mless_interp as mi
from mless_interp.runtime.base_result import Result
from mless_interp.runtime.columns import ENDS, WIDTH, Table

EVERY = pytest.mark.parametrize("name", RESULTS)


def kinds(root: type) -> set[type]:
    """All classes below one, that of this package only."""
    below = {kind for child in root.__subclasses__() for kind in {child, *kinds(child)}}
    return {kind for kind in below if kind.__module__.startswith("mless_interp.")}


def test_every_kind_of_result_is_under_test_public_and_frozen() -> None:
    for module in pkgutil.walk_packages(mi.__path__, "mless_interp."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    assert {kind.__name__ for kind in kinds(Result) if not kind.__subclasses__()} == set(RESULTS)
    assert {type(make()).__name__ for make in RESULTS.values()} == set(RESULTS) == {*chain(*mi.RESULTS.values())}
    for name in RESULTS:
        settings = getattr(mi, name).__dataclass_params__
        assert settings.frozen and not settings.repr and not settings.eq, name


@pytest.mark.parametrize("name", [*RESULTS, *OTHERS])
def test_it_tells_what_it_told(name: str) -> None:
    """After an intended change: `python tests/small_results.py`, and read the diff."""
    _, _, kept = KEPT.read_text(encoding="utf-8").partition(f"=== {name}\n")
    assert told(name) == f"=== {name}\n" + kept.partition("\n=== ")[0].removesuffix("\n") + "\n"


@EVERY
def test_it_tells_what_it_found_in_few_short_lines(name: str) -> None:
    result = RESULTS[name]()
    printed, headline, explained = repr(result), result.headline(), result.explain().splitlines()
    lines, caveats = printed.splitlines(), result.caveats()
    assert len(lines) <= 12 and max(map(len, lines)) <= WIDTH == 110
    assert lines[-1] == "More: .summary() .to_frame() .explain() .plot()"
    assert " ".join(lines).startswith(headline[:200])
    assert "nan" not in printed.lower().split() and "dtype" not in printed and "array(" not in printed
    assert not re.search(r"[.!?] [A-Z]", headline) and headline[0] not in " ;,"
    assert len(caveats) <= 3 and explained[0] == headline and {*result.details(), *caveats} <= set(explained)
    assert all(each == each.strip() and each.endswith(".") for each in explained)


@EVERY
def test_one_name_is_declared_once(name: str) -> None:
    """By each class that a result is made of; another class may mean something else by it."""
    for own in (vars(kind).get("columns", ()) for kind in type(RESULTS[name]()).__mro__):
        assert len({column.name for column in own}) == len(own) and all(column.heading for column in own)


@EVERY
def test_its_page_and_its_notebook_show_all_that_it_says(name: str) -> None:
    result = RESULTS[name]()
    every = mi.Report("T", question="Q?").result(result, heading=None).parts
    parts = [inner for part in every for inner in (part.parts if part.kind == "folded" else (part,))]
    explained, html = result.explain().splitlines(), result._repr_html_()
    assert [part.text for part in parts if part.kind == "text"] == explained
    assert html.count("<p>") == len(explained) and html.count("<tr>") == 1 + min(len(result.printed()), 5)
    for table in (part for part in parts if part.kind == "table"):
        told, rows, n = [column.heading for column in table.columns], table.rows, table.at_once
        assert len({*told}) == len(told) and len({x[:n] for x in rows}) == len(rows)
        assert not ("p" in told[:n] and "p, corrected" in told[n:])


@EVERY
def test_its_tables_are_tidy_and_its_summary_is_what_a_researcher_reports(name: str) -> None:
    """At most 20 columns of the table, none of them empty, every interval right after its number; all columns declared."""
    result = RESULTS[name]()
    table, summary = result.table(), result.summary()
    for each in (table, summary, result.to_frame()):
        assert isinstance(each, Table) and isinstance(each.head(1), Table) and len(each)
        assert [*each.index] == [*range(len(each))]
        assert not each.columns.duplicated().any() and all(isinstance(column, str) for column in each.columns)
        assert not [c for c in each if each[c].map(lambda cell: isinstance(cell, list | dict | np.ndarray)).any()]
    names = list(summary)
    assert 0 < len(names) <= 20 and not summary.replace("", None).isna().all().any()
    pd.testing.assert_frame_equal(summary, table[names])
    for at, column in enumerate(names):
        if column.endswith("_ci_low"):
            of = column.removesuffix("_ci_low")
            assert names[at - 1 : at + 2] == [of, column, f"{of}_ci_high"]
    known, endings = result.declared(), (*ENDS, "_ci_low", "_ci_high")
    unknown = {c for c in table if c not in known and not any(c.removesuffix(end) in known for end in endings)}
    assert unknown <= {"log_odds_at_8"}, "the page and the documentation say what a column is from its declaration"


@EVERY
def test_pictures_find_what_they_ask_of_its_columns(name: str) -> None:
    """The p-values that a quantity names are columns of the table, wherever the column is drawn by default."""
    result = RESULTS[name]()
    table = result.table()
    drawn = [column for column in result.drawn if column in table]
    assert bool(drawn) == bool(result.drawn)
    assert {result.quantity(column).p for column in drawn} <= {None, *table}
    if {"layer", "head"} <= set(table):
        assert result.default_column(table) in table


BY_GROUP = """
    ActivationShift AttentionDecomposition Circuit CircuitCurve Confirmation DirectEffects DoseResponse HeadAttribution
    HeadScores HeadWrites JointKnockout LocatedHeads Mediation PathEffects PositionMap ReadEffects SitePatches
    SpanReadings StudyResult Transfer Transplant
""".split()


@pytest.mark.parametrize("name", BY_GROUP)
def test_a_problem_given_thrice_as_a_group_counts_once(name: str) -> None:
    """Of every array whose first axis is as long as there are problems; no other axis comes first with that length."""
    result = RESULTS[name]()
    n = len(result.problem_ids)
    times = np.where((np.arange(n) == 1) | (name == "Transplant"), 3, 1)  # all thrice would leave means alone

    def thrice(values: Any) -> Any:
        if isinstance(values, dict):
            return {key: thrice(inner) for key, inner in values.items()}
        return np.repeat(values, times, 0) if isinstance(values, np.ndarray) and len(values) == n else values

    arrays = {field.name: thrice(getattr(result, field.name)) for field in fields(result)}
    ids = np.repeat(result.problem_ids, times)
    more: dict[str, Any] = {
        "problem_ids": tuple(f"{each}/{at % 3}" for at, each in enumerate(ids)),
        "groups": tuple(ids),
    }
    if name == "Transplant":
        more["partners"] = tuple(tuple(f"{name}/{at}" for name in each) for each in result.partners for at in range(3))
    if name == "SpanReadings":
        more["units"] = tuple(np.repeat(result.units, times))
    again = replace(result, **arrays | more)
    pd.testing.assert_frame_equal(again.table(), result.table())
    for table in {"ActivationShift": ["by_class"], "DoseResponse": ["outcome_table", "reading_table"]}.get(name, []):
        pd.testing.assert_frame_equal(getattr(again, table)(), getattr(result, table)())
    assert f"These {len(ids)} problems are variants in {n} groups; each group counts once." in again.explain()


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("kept")
    return mi.save(folder / "all", **{name: make() for name, make in RESULTS.items()})


@EVERY
def test_it_is_the_same_after_saving(name: str, kept: Path) -> None:
    result, back = RESULTS[name](), mi.load(kept)[name]
    assert type(back) is type(result) and repr(back) == repr(result)
    pd.testing.assert_frame_equal(back.to_frame(), result.to_frame())


@pytest.mark.slow
def test_a_fresh_process_reads_all_of_them(kept: Path) -> None:
    """A class is found by its public name, whatever has been imported before."""
    code = f"import mless_interp as mi; print(*(type(made).__name__ for made in mi.load({str(kept)!r}).values()))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.split() == [*RESULTS, "dict"]
