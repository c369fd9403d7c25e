"""Texts from outside never act: not on a terminal, not in a spreadsheet, not in a notebook's page."""

import csv
import io
from copy import copy
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as texts
from small_results import RESULTS

from mless_interp.runtime.columns import Column, Table, TextTable, neutral

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


NAN, INF = np.nan, np.inf


@pytest.mark.parametrize(
    ("role", "values", "ends", "shown"),
    [
        ("share", [0.5, -0.25, NAN, INF, 0.004], (), "50 %|-25 %|–|∞ %|0 %"),
        ("points", [0.0123, 0.5, 0.0, 1.234e-5], (), "+1.2|+50.0|0.0|+0.00123"),
        ("points", [0.5, 0.25], ([0.4, 0.1], [0.6, 0.3]), "+50.0 [+40.0, +60.0]|+25.0 [+10.0, +30.0]"),
        ("count", [1.0, 2.5, 100.0], (), "1.0|2.5|100.0"),
        ("p", [0.01234, 1e-9], (), "0.012|1e-09"),
        ("level", [-0.5, 0.25], (), "-0.5000|0.2500"),
        ("", [-0.5, 0.25, 0.0, 1e-13, 1e-12, -INF], (), "-0.5000|+0.2500|0.0000|0.0000|+1e-12|-∞"),
        ("", [0.0, 0.25, 5e-5, 4e-5], (), "0.0000|0.2500|0.0001|4e-05"),
        ("", [100.0, 12.345678, 1.5, 0.5, 12345.678, NAN, INF], (), "100.0|12.35|1.500|0.500|12346|–|∞"),
        ("", [99.9999999999, 0.5], (), "100.0|0.500"),
        ("", [0.5, NAN, 0.25], ([0.4, 0.1, NAN], [0.6, 0.2, 0.3]), "0.5000 [0.4000, 0.6000]|– [0.1000, 0.2000]|0.2500"),
        ("", [0.0512, -3.0], ([-10.0, -1000.0], [30.0, 5.0]), "+0.0512 [-10.00, +30.00]|-3 [-1000, +5]"),
        ("", [100.0, 0.00412], ([0.0, 0.0], [200.0, 2.0]), "100.0 [0.0, 200.0]|0.004 [0.000, 2.000]"),
        ("of n", [1, 2, 3, 0], (), "1/4|2/4|3/4|–"),
        ("text", [True, False, "a", None], (), "yes|no|a|–"),
    ],
)
def test_cells_show_a_number_by_its_role_and_its_neighbours(role: str, values: Any, ends: Any, shown: str) -> None:
    frame = pd.DataFrame(dict(zip(("x", "x_ci_low", "x_ci_high"), (values, *ends), strict=False)))
    frame["n"] = [4] * (len(frame) - 1) + [0]
    table = TextTable.of(frame, "", columns=["x"], known={"x": Column("x", "X", role=role)}, interval="90 %")
    cells = [row[0] for row in table.rows]
    assert "|".join(map(str, cells)) == shown and table.columns[0].heading == ("X [90 %]" if ends else "X")
    assert [cell.key == "" for cell in cells] == [cell.text == "–" for cell in cells]


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
