"""Texts from outside never act: not on a terminal, not in a spreadsheet, not in a notebook's page."""

import csv
import io
from copy import copy
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as texts
from small_results import RESULTS

from mless_interp.runtime.columns import Table, TextTable, neutral
from mless_interp.runtime.text_safety import one_line, visible

ACTS = "\x1b[31m\x1b]0;title\x07\b\r\x00\x7f\x9b31m\u202e\u2066\u2028\ud800\ufeff"
FORMULAS = ("=1+1", "+1+1", "-1+1", "@SUM(A1)", "\t=1", "\r=1", "\n=1", "'=1", "＝1")
EVERY = pytest.mark.parametrize("name", RESULTS)


@EVERY
def test_nothing_that_acts_is_printed(name: str) -> None:
    result = copy(RESULTS[name]())
    outside = dict.fromkeys(("model", "insertion", "outcome"), ACTS + "<b>")
    object.__setattr__(result, "settings", dict(result.settings) | outside)
    page = result._repr_html_()
    for said in (repr(result), result.explain(), repr(result.table()), page):
        assert not set(said) & set(ACTS) - set("[]0;1m3tile"), said
    assert "<b>" not in page


def test_texts_are_shown_by_their_codes() -> None:
    assert visible("a\x1b\x9b\u202e\n\tb") == "a\\x1b\\x9b\\u202e\n\tb"
    assert one_line("a\n\tb") == "a\\n\\tb" and visible(visible(ACTS)) == visible(ACTS)
    table = pd.DataFrame({"a\x1b": ["x\x1b[2J\ny", None], "n": [1.5, np.nan], "b": [True, False]})
    shown = TextTable.of(table, "")
    assert "\x1b" not in "".join(shown.lines()) and len(shown.lines()) == 3 and "x\\x1b[2J\\ny" in shown.lines()[1]
    assert "<i>" not in TextTable.of(pd.DataFrame({"<i>": ["<i>"]}), "").html()


@given(texts.text(max_size=12) | texts.sampled_from(FORMULAS) | texts.text("'=+-@\t\r\n1e.", max_size=5))
@settings(max_examples=150, deadline=None)
def test_no_text_is_a_formula_and_every_other_stays(text: str) -> None:
    cell = neutral(text)
    assert cell in (text, f"'{text}")
    assert cell[:1] not in ("=", "@", "\t", "\r", "\n") and (cell[:1] not in ("+", "-") or float(cell) == float(text))


def test_a_table_s_file_holds_no_formula(tmp_path: Path) -> None:
    problems = [*FORMULAS, "plain", "-0.5", 'q"uote, and comma', "a\r=b", "line\n=break", "NA", "null"]
    table = Table({"problem": problems, "=head": range(len(problems)), "effect": np.linspace(-1, 1, len(problems))})
    table.loc[2, "effect"] = np.nan
    table.query("problem == problem").to_csv(tmp_path / "t.csv", index=False)
    raw = (tmp_path / "t.csv").read_bytes().decode()
    for row in csv.reader(io.StringIO(raw, newline="")):
        for cell in row:
            assert not cell.startswith(("=", "@", "\t", "\r", "\n", "+")) and (cell[:1] != "-" or float(cell) < 0)
    found = pd.read_csv(tmp_path / "t.csv", keep_default_na=False, na_values=[""])
    assert found["problem"].tolist() == list(map(neutral, problems)) and list(found) == ["problem", "'=head", "effect"]
    assert np.array_equal(found["effect"], table["effect"], equal_nan=True)
    assert table.set_index("problem").to_csv().count("'=") == 3, "=1+1, '=1 and the heading; in the index too"


@EVERY
def test_a_table_without_formulas_is_written_as_pandas_does(name: str) -> None:
    result = RESULTS[name]()
    assert result.to_frame().to_csv() == pd.DataFrame(result.to_frame()).to_csv()
