"""The report page: what it says, and, in a headless browser, that it loads, sorts, draws, asks nobody and fits a phone."""

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pandas as pd
import pytest
from browser import Browser, Page, browser
from models_under_test import loaded, pairs_for
from small_results import (
    activations,
    answered,
    certified,
    checked,
    confirmed,
    curve,
    decomposed,
    doses,
    enriched,
    knocked_out,
    located,
    mediated,
    patched,
    profiled,
    read_apart,
    scored,
)

import mless_interp as mi
from mless_interp.runtime.columns import TextTable
from mless_interp.views.page_parts import HeadMap, colour

NAN, INF = float("nan"), float("inf")
BAD = '</script><script>window.hacked=1</script><img src="x:y" onerror="window.hacked=2">"\'&{{ 7*7 }}'
"""A text that would become code anywhere on a page that forgets to escape it."""


def texts(table: TextTable, column: int) -> list[str]:
    return [row[column].text for row in table.rows]


def keys(table: TextTable, column: int) -> list[str]:
    return [row[column].key for row in table.rows]


# ------------------------------------------------------------------------------------------------- tables, by hand


def test_a_column_has_one_number_of_decimals_and_signs_where_one_is_negative() -> None:
    table = TextTable.of(pd.DataFrame({"a": [0.5, -0.25, 0.0], "b": [12.3456, 1.0, 1e-05], "c": [1, 20, 3]}), "")
    assert texts(table, 0) == ["+0.5000", "-0.2500", "0.0000"]
    assert texts(table, 1) == ["12.3456", "1.0000", "1e-05"], (
        "as a print shows them; what would round to nothing in full"
    )
    assert texts(table, 2) == ["1", "20", "3"]
    assert texts(TextTable.of(pd.DataFrame({"x": [123.456, 1.0]}), ""), 0) == ["123.5", "1.0"], (
        "large ones in four digits"
    )
    assert keys(table, 1) == ["12.3456", "1", "1e-05"], "sorting uses the numbers, not what is shown"


def test_undefined_is_no_number_and_never_is_infinite() -> None:
    frame = pd.DataFrame({"x": [NAN, INF, -INF, 2.0], "yes": pd.array([None, True, False, True], dtype="boolean")})
    table = TextTable.of(frame, "")
    assert texts(table, 0) == ["–", "∞", "-∞", "+2.0000"] and keys(table, 0) == ["", "Infinity", "-Infinity", "2"]
    assert texts(table, 1) == ["–", "yes", "no", "yes"] and keys(table, 1)[0] == ""


def test_an_interval_stands_in_its_estimates_cell_under_a_heading_that_names_both() -> None:
    frame = pd.DataFrame({"x_ci_low": [-0.5, NAN], "x": [0.1, 0.2], "x_ci_high": [0.7, NAN], "ci_low": [1.0, 2.0]})
    frame["ci_high"] = [3.0, 4.0]
    table = TextTable.of(frame, "")
    assert labels(table) == ["x [95 %]", "95 % interval"]
    assert [str(row[0]) for row in table.rows] == ["+0.1000 [-0.5000, +0.7000]", "+0.2000"]
    assert keys(table, 0) == ["0.1", "0.2"], "sorted by the estimate"
    assert texts(table, 1) == ["[1.0000, 3.0000]", "[2.0000, 4.0000]"] and keys(table, 1) == ["1", "2"]
    bare = TextTable.of(
        pd.DataFrame({"low": [1.0], "high": [2.0], "y_ci_low": [3.0], "z": 4, "z_low": 2, "z_high": 8}), ""
    )
    assert [(column.heading, cell.text) for column, cell in zip(bare.columns, bare.rows[0], strict=True)] == [
        ("95 % interval", "[1.0000, 2.0000]"),
        ("y ci low", "3.0000"),
        ("z [from, to]", "4.0000"),
    ], "a lower end without an upper one is a column like any other"
    chosen = TextTable.of(frame, "", columns={"ci_low": "range", "x": "my x"})
    assert labels(chosen) == ["range", "my x [95 %]"]


def test_a_column_that_is_not_there_is_named() -> None:
    with pytest.raises(ValueError, match="no column 'effects' to show; there are effect, n"):
        TextTable.of(pd.DataFrame({"effect": [1.0], "n": [2]}), "", columns=["effects"])


# ----------------------------------------------------------------------------------------------------- maps, by hand


def heads_table() -> pd.DataFrame:
    places = [(layer, head) for layer in range(2) for head in range(3)]
    return pd.DataFrame(
        {
            "layer": [layer for layer, _ in places],
            "head": [head for _, head in places],
            "label": [f"L{layer}H{head}" for layer, head in places],
            "effect": [0.0, -0.5, 0.25, NAN, 0.5, 0.1],
            "effect_ci_low": [-0.1, -0.6, 0.2, NAN, 0.4, 0.0],
            "effect_ci_high": [0.1, -0.4, 0.3, NAN, 0.6, 0.2],
        }
    )


def test_a_map_has_a_square_per_head_with_its_interval_in_words() -> None:
    made = HeadMap.of(
        heads_table(), "", value="effect", columns=["label", "effect"], marked=[False] * 5 + [True], marked_means="m"
    )
    assert (made.n_layers, made.n_heads, made.limit, made.marked_means) == (2, 3, "0.5", "m")
    by_place = {(square.layer, square.head): square for square in made.squares}
    assert by_place[0, 1].words == "head L0H1; mean effect [95 %] -0.5000 [-0.6000, -0.4000]"
    assert (made.signed, made.undefined) == (True, True)
    assert by_place[0, 1].colour == colour(-1.0) == "#053061" and by_place[1, 1].colour == colour(1.0) == "#67001f"
    assert by_place[0, 0].colour == colour(0.0) and by_place[1, 0].colour == "#bbbbbb", "grey: undefined, not 0"
    assert [place for place, square in by_place.items() if square.marked] == [(1, 2)]


def test_a_map_refuses_two_rows_of_one_head() -> None:
    twice = pd.concat([heads_table(), heads_table()])
    with pytest.raises(ValueError, match="several rows of the same head"):
        HeadMap.of(twice, "", value="effect")
    with pytest.raises(ValueError, match="no column 'share' to draw"):
        HeadMap.of(heads_table(), "", value="share")


# ------------------------------------------------------------------------------------------- what results say of themselves


def shown(result: Any) -> tuple[list[str], HeadMap | None, list[TextTable]]:
    """What a page tells and shows of a result, folded or not: sentences, head map, tables."""
    made = mi.Report("T", question="Q?").result(result, heading=None).parts
    parts = [each for part in made for each in (part.parts if part.kind == "folded" else (part,))]
    maps = [part for part in parts if part.kind == "head_map"]
    assert len(maps) <= 1
    texts_ = [part.text for part in parts if part.kind == "text"]
    return texts_, maps[0] if maps else None, [part for part in parts if part.kind == "table"]


def labels(table: TextTable) -> list[str]:
    return [column.heading for column in table.columns]


def marked(head_map: HeadMap | None) -> list[tuple[int, int]]:
    assert head_map is not None
    return [(square.layer, square.head) for square in head_map.squares if square.marked]


def test_a_sweep_becomes_sentences_a_map_and_a_table_with_the_largest_share_first() -> None:
    sentences, head_map, (table,) = shown(patched(12))
    assert sentences[0] == patched(12).headline()
    assert texts(table, 0)[0] == "L1H2" and len(table.rows) == 6
    assert head_map is not None and head_map.value == "share" and marked(head_map) == [(1, 2)]
    assert "more than 5 % of the effect in most problems, p < 0.04 corrected" in head_map.marked_means
    assert {"share of problems [95 %]", "recovered"} <= set(labels(table))
    assert labels(table)[: table.at_once] == [
        *("head", "share [95 %]", "problems", "p, corrected", "median [95 %]", "mean effect"),
    ]
    assert texts(table, 2)[0] == "12/12"
    assert marked(shown(patched(4))[1]) == [], "4 problems name no head"


def test_where_shares_are_undefined_the_map_shows_effects() -> None:
    sentences, head_map, _ = shown(patched(donor=np.array([1.0, -1.0, 1.0, -1.0])))
    assert head_map is not None and head_map.value == "median" and marked(head_map) == []
    assert any("effect_fraction is NaN" in sentence for sentence in sentences)


def test_located_heads_are_outlined_and_come_first() -> None:
    sentences, head_map, (table, controls) = shown(located())
    assert marked(head_map) == [(0, 1), (1, 0)] and head_map is not None and head_map.value == "undone"
    assert texts(table, 0)[:2] == ["L0H1", "L1H0"] and texts(table, 1) == ["reader", "mediator", "undecided"]
    assert texts(controls, 0) == ["L0H1", "L1H0"]
    assert any(sentence.startswith("Controls: `control_table()` (chosen on these problems") for sentence in sentences)
    _, _, (_, fresh, again) = shown(replace(located(), confirmation=confirmed()))
    assert "on fresh problems" in fresh.caption
    assert labels(again)[:4] == ["head", "claimed", "confirmed", "verdict"] and texts(again, 2) == ["yes", "yes", "no"]
    assert texts(again, 1) == ["reader", "mediator", "sufficient only"]


def test_scores_have_intervals_of_the_usual_metrics_and_the_means_of_all() -> None:
    _, head_map, (first, all_means) = shown(scored())
    assert head_map is not None and head_map.value == "collapse relative" and marked(head_map) == []
    assert labels(first)[: first.at_once] == ["head", "collapse relative [95 %]", "span mass [95 %]"]
    assert set(labels(first)[3:]) == {"in the paper's counting", "collapse relative n", "span mass null", "span mass n"}
    assert labels(all_means)[2:] == ["span mass", "collapse relative", "recovery latency"]
    assert "∞" in texts(all_means, 4), "a latency that is never reached"


def test_doses_have_a_table_per_number_of_tokens_and_one_per_head() -> None:
    _, head_map, (by_dose, by_head) = shown(doses())
    assert [len(by_dose.rows), len(by_head.rows)] == [4, 4] and head_map is None
    assert texts(by_head, 2) == ["1.0000"] * 4 and labels(by_dose)[0] == "inserted tokens"


def test_answers_and_their_comparisons_say_what_they_found() -> None:
    sentences, _, (table,) = shown(answered(n=20))
    assert texts(table, 0) == ["none", "Mless", "Mful"] and texts(table, 1) == ["70 %", "75 %", "–"]
    assert table.columns[1].heading == "right [95 %]" and sentences[1].startswith("Accuracy of")
    sentences, _, (table,) = shown(answered(n=20).compare_all())
    assert len(table.rows) == 2 and "under 'none'" in sentences[0]


def test_claims_are_counted_and_listed_with_their_nulls() -> None:
    sentences, _, (table,) = shown(checked())
    assert sentences[0].endswith("1 agree, 1 cannot tell; 1 of those that agree holds without training.")
    assert labels(table)[:5] == ["claim", "verdict", "untrained twins", "measured [95 %]", "null"]
    assert "above the null [95 %]" in labels(table)
    assert texts(table, labels(table).index("reason")) == ["", "no profile with random words"]


def test_activations_have_their_claims_and_every_metric_by_class() -> None:
    _, _, (claims, by_class) = shown(activations())
    assert len(claims.rows) == 3 and len(by_class.rows) == 8
    assert {"before", "after", "change [95 %]"} <= set(labels(by_class)), "intervals of what is tested"


def test_a_decomposition_and_a_mediation_have_a_topic_a_sentence_and_tables_that_name_their_columns() -> None:
    parts = decomposed()
    sentences, head_map, (first, further) = shown(parts)
    assert any(sentence.startswith("Lambda runs from") for sentence in sentences)
    assert max(len(sentence) for sentence in sentences) < 350, "no sentence hides others"
    assert head_map is not None and head_map.value == "lambda minus uniform" and marked(head_map) == [(0, 0), (1, 0)]
    words = {(square.layer, square.head): square.words for square in head_map.squares}[0, 1]
    assert "lambda minus uniform +0.0500" in words
    assert labels(first)[1] == "lambda [95 %]" and "uniform attention's" in labels(first)
    assert len(first.rows) == len(further.rows) == 3 and "sigma norm [95 %]" in labels(further)
    _, _, (table,) = shown(mediated())
    assert labels(table)[:4] == ["reading", "part", "without the span", "change [95 %]"]
    assert "interaction is both minus their sum" in table.caption


def every_small_result() -> list[Any]:
    whole = replace(located(), confirmation=confirmed())
    made = [
        patched(12),
        whole,
        confirmed(),
        scored(),
        doses(),
        decomposed(),
        mediated(),
        activations(),
        checked(),
        profiled(),
    ]
    made += [
        answered(n=20),
        answered(n=20).compare_all(),
        read_apart(),
        knocked_out(),
        certified(),
        enriched(),
        curve(),
    ]
    return made


@pytest.mark.parametrize("result", every_small_result(), ids=lambda result: type(result).__name__)
def test_every_heading_has_a_definition_of_its_own_and_six_stand_at_once(result: Any) -> None:
    for table in shown(result)[2]:
        assert table.at_once <= 6 and len(set(labels(table))) == len(labels(table)), "no two columns share a heading"
        assert [column.heading for column in table.columns if not column.note] == []


def test_a_page_begins_with_its_answer_then_the_picture_then_six_columns(chrome: Browser, tmp_path: Path) -> None:
    page = mi.Report("T", question="Q?", answer=f"One head. {BAD}").result(located())
    assert [part.kind for part in page.parts][:4] == ["heading", "head_map", "table", "table"]
    opened = chrome.open(page.save(tmp_path / "page.html"))
    assert opened.run("document.querySelector('h1').nextElementSibling.querySelector('strong').textContent").endswith(
        BAD
    )
    assert opened.run("window.hacked") is None
    seen = "[...document.querySelectorAll('table')[0].tHead.rows[0].cells].filter((c) => c.offsetWidth > 0).length"
    assert opened.run(seen) == 6
    opened.run("document.querySelector('input.all').click()")
    assert opened.run(seen) > 6
    assert opened.run("[...document.querySelectorAll('thead th')].every((th) => th.title)")
    legend = opened.run("document.querySelector('.legend').textContent")
    assert "outlined: named" in legend and "the head whose numbers are shown" in legend


def test_of_many_sentences_and_tables_the_first_stand_open(chrome: Browser, tmp_path: Path) -> None:
    made = replace(located(), confirmation=confirmed())
    told, tables = made.explain().splitlines(), made.shown().tables
    assert len(told) > 6 and len(tables) > 2
    page = mi.Report("T", question="Q?").result(made)
    folds = [part for part in page.parts if part.kind == "folded"]
    assert [part.text for part in page.parts if part.kind == "text"] == told[:2]
    assert [part.kind for part in page.parts].count("table") == 1
    assert folds[-1].summary == f"All else in words: {len(told) - 2} sentences"
    assert [part.text for part in folds[-1].parts] == told[2:], "nothing is lost"
    assert [fold.parts[0].caption for fold in folds[:-1]] == [table.caption for table in tables[1:]]
    chosen = mi.Report("T", question="Q?").result(made, first=told[3:5])
    assert [part.text for part in chosen.parts if part.kind == "text"] == told[3:5]
    assert not [part for part in mi.Report("T", question="Q?").result(patched()).parts if part.kind == "folded"]

    shown = chrome.open(page.save(tmp_path / "page.html"))
    height = (
        f"[...document.querySelectorAll('p')].find((p) => p.textContent === {json.dumps(told[-1])}).checkVisibility()"
    )
    assert shown.run(height) is False
    shown.run(
        "[...document.querySelectorAll('main > details > summary')].find((s) => s.textContent.includes('words')).click()"
    )
    assert shown.run(height) is True and shown.errors == []
    shown.run("document.querySelector('main > details').open = true")
    shown.run("document.querySelector('main > details thead button').click()")
    assert shown.run("document.querySelector('main > details th').getAttribute('aria-sort')") == "ascending"


def test_headings_and_views_are_not_folded() -> None:
    inner = mi.Report("", question="")
    with pytest.raises(ValueError, match="a heading part cannot be folded"):
        inner.folded("more", inner.heading("H"))
    assert inner.folded("more", inner).parts == (), "nothing folds to nothing"


def test_what_is_no_result_is_refused() -> None:
    with pytest.raises(TypeError, match="a result of this toolkit expected, got dict"):
        mi.Report("T", question="Q?").result({})


# --------------------------------------------------------------------------------------------------- the page's making


def test_every_method_makes_a_new_page() -> None:
    empty = mi.Report("T", question="Q?")
    first, second = empty.sentence("a sentence"), empty.sentence("another one")
    assert empty.parts == () and len(first.parts) == len(second.parts) == 1
    assert "a sentence" in first.page() and "another one" not in first.page()


def test_what_is_no_picture_and_no_view_is_refused(tmp_path: Path) -> None:
    page = mi.Report("T", question="Q?")
    with pytest.raises(TypeError, match=r"a matplotlib figure or the path of a .png expected, got int"):
        page.figure(3, "c")
    (tmp_path / "x.png").write_text("no picture")
    with pytest.raises(ValueError, match="is no PNG picture"):
        page.figure(tmp_path / "x.png", "c")
    with pytest.raises(TypeError, match=r"view: a view such as mi.views.attention gives expected, got str"):
        page.view("<script>")


def test_provenance_tells_the_command_and_counts_what_is_long() -> None:
    run = {"repeat": "python a.py --unit ' /'", "seed": 3, "prompts": [{"a": 1}] * 20, "model": {"name": "m", "d": {}}}
    page = mi.Report("T", question="Q?").provenance(run | {"checks": {"row_sum_error": 1e-7, "replay": None}}).page()
    shown = re.sub(r"\s+", " ", page)
    assert "python a.py --unit &#39; /&#39;</pre>" in shown and "<dt>seed</dt><dd>3</dd>" in shown
    assert "<dt>prompts</dt><dd>20 entries, in run.json</dd>" in shown and "<dt>name</dt><dd>m</dd>" in shown
    assert "<dt>row sum error</dt><dd>1e-07</dd>" in shown and "<dt>replay</dt><dd>none</dd>" in shown


def test_a_page_without_views_runs_only_its_own_script_and_carries_no_library() -> None:
    page = mi.Report("T", question="Q?").result(patched()).page()
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', page)
    assert policy is not None and "unsafe-inline" not in policy.group(1).partition("script-src")[2].partition(";")[0]
    assert "default-src &#39;none&#39;" in policy.group(1)
    assert len(page) < 40_000


# ----------------------------------------------------------------------------------------------------- in a browser


@pytest.fixture(scope="module")
def chrome(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browser(tmp_path_factory.mktemp("profile")) as running:
        yield running


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory, tiny_model_dir: Any) -> Path:
    """A page with everything on it, and a text that would be code in every place a text can come from."""
    model = loaded(tiny_model_dir("qwen2"), "bridge")
    pair = pairs_for(model, count=1)[0]
    (bad,) = mi.make_pairs(model, [replace(pair.problem, id=BAD, question=f"{BAD} What is 3 ?")], pair.insertion)
    frame = heads_table().assign(**{BAD: BAD, "kind": [BAD, "a", "b10", "b9", None, "c"]})
    scores = mi.score_heads(
        model, [bad, *pairs_for(model)[1:]], metrics=["span_mass", "collapse_relative"], progress=False
    )
    page = mi.Report(BAD, question=BAD).result(scores, heading=BAD).sentence(BAD).table(frame, BAD)
    page = page.head_map(frame, BAD, value="effect", columns=["label", BAD], marked=[True] * 6, marked_means=BAD)
    page = page.figure(mi.views.head_map(patched()), BAD, alt=BAD).heading("Two")
    page = page.view(mi.views.attention(model, bad, [mi.Head(0, 0), mi.Head(1, 2)]), BAD)
    page = page.view(mi.views.attention(model, bad, [mi.Head(2, 1)])).prompt(model, bad)
    run = mi.provenance(model, repeat=BAD, seed=0, settings={BAD: BAD}, **{BAD: [BAD]})
    return page.provenance(run).save(tmp_path_factory.mktemp("pages") / "report.html")


@pytest.fixture(scope="module")
def page(chrome: Browser, hostile: Path) -> Page:
    return chrome.open(hostile)


def own(requests: list[str]) -> list[str]:
    """Requests that are not for something that stands in the page itself."""
    return [url for url in requests if not url.startswith(("data:", "blob:"))]


@pytest.mark.slow
def test_the_page_loads_complains_of_nothing_and_asks_nobody(page: Page, hostile: Path) -> None:
    page.until("document.querySelectorAll('.mless-view canvas').length >= 6")
    page.run("new Promise((done) => setTimeout(done, 300))")
    assert page.errors == []
    assert own(page.requests) == [hostile.resolve().as_uri()]


def test_no_text_became_code_and_all_of_them_can_be_read(page: Page) -> None:
    assert page.run("window.hacked") is None
    assert page.run("document.querySelectorAll('img[src=\"x:y\"], [onerror]').length") == 0
    assert page.run("document.title") == page.run("document.querySelector('h1').textContent") == BAD
    places = ["h2", "main > p", "figcaption", "td", "th button", "pre.command", "dd", "dt", "rect title", ".means"]
    for place in places:
        found = page.run(
            f"[...document.querySelectorAll({json.dumps(place)})].some((e) => e.textContent.includes({json.dumps(BAD)}))"
        )
        assert found, f"{place} does not show the text as it is"
    assert page.run(f"[...document.querySelectorAll('img')].some((e) => e.alt === {json.dumps(BAD)})")
    assert page.run("document.querySelector('.part > pre').textContent").count("<script>window.hacked=1") == 1
    assert page.run("document.querySelector('.part > pre mark').textContent").count("/") == 21


def test_views_are_drawn(page: Page) -> None:
    page.until("document.querySelectorAll('.mless-view canvas').length >= 6")
    painted = """[...document.querySelectorAll('.mless-panels canvas')].map((c) => {
      const data = c.getContext('2d').getImageData(0, 0, c.width, c.height).data;
      return new Set(Array.from({length: data.length / 4}, (_, i) => data.slice(4 * i, 4 * i + 4).join())).size;
    })"""
    page.until(f"{painted}.length === 6 && {painted}.every((n) => n > 5)")
    assert page.run("document.querySelectorAll('script.mless-circuitsvis').length") == 1, "the library stands once"


COLUMN = "[...document.querySelectorAll('#{table} tbody tr')].map((row) => row.cells[{at}].textContent)"


@pytest.fixture(scope="module")
def tables(chrome: Browser, tmp_path_factory: pytest.TempPathFactory) -> Page:
    frame = pd.DataFrame(
        {
            "label": [f"L0H{i}" for i in (2, 10, 1, 9)] + [f"L1H{i}" for i in range(12)],
            "x": [9.0, 10.0, NAN, -2.5, INF, 1e-7, *np.linspace(3, 4, 10)],
            "n": range(16),
        }
    )
    path = tmp_path_factory.mktemp("tables") / "t.html"
    return chrome.open(mi.Report("T", question="Q?").table(frame, "c").save(path))


def click(page: Page, at: int) -> None:
    page.run(f"document.querySelectorAll('thead button')[{at}].click()")


def column(page: Page, at: int) -> list[str]:
    (table,) = page.run("[...document.querySelectorAll('table')].map((t) => t.id)")
    return page.run(COLUMN.format(table=table, at=at))


def sorting(page: Page) -> list[str]:
    return page.run("[...document.querySelectorAll('thead th')].map((th) => th.getAttribute('aria-sort'))")


def test_numbers_sort_as_numbers_both_ways_and_undefined_stays_last(tables: Page) -> None:
    assert sorting(tables) == ["none"] * 3
    click(tables, 1)
    up = column(tables, 1)
    assert up[:2] == ["-2.5000", "+1e-07"] and up[-4:] == ["+9.0000", "+10.0000", "∞", "–"]
    assert sorting(tables) == ["none", "ascending", "none"]
    click(tables, 1)
    assert column(tables, 1) == [*up[-2::-1], "–"]
    assert sorting(tables) == ["none", "descending", "none"]


def test_texts_sort_as_people_count_and_ties_keep_their_order(tables: Page) -> None:
    click(tables, 0)
    assert column(tables, 0)[:6] == ["L0H1", "L0H2", "L0H9", "L0H10", "L1H0", "L1H1"]
    assert sorting(tables) == ["ascending", "none", "none"]


def test_the_keyboard_sorts_too(tables: Page) -> None:
    tables.run("document.querySelectorAll('thead button')[2].focus()")
    tables.press("Enter")
    assert column(tables, 2) == [str(i) for i in range(16)] and sorting(tables)[2] == "ascending"
    tables.press("Enter")
    assert column(tables, 2)[0] == "15" and sorting(tables)[2] == "descending"


def test_rows_can_be_filtered(tables: Page) -> None:
    tables.run("{const i = document.querySelector('input'); i.value = 'l0h'; i.dispatchEvent(new Event('input')); 0}")
    assert tables.run("[...document.querySelectorAll('tbody tr')].filter((r) => r.offsetHeight > 0).length") == 4
    assert tables.run("document.querySelector('.filter [role=status]').textContent") == "4 of 16 rows"
    tables.run("{const i = document.querySelector('input'); i.value = ''; i.dispatchEvent(new Event('input')); 0}")
    assert tables.run("[...document.querySelectorAll('tbody tr')].filter((r) => r.offsetHeight > 0).length") == 16


def test_the_map_tells_a_heads_numbers_on_hover_and_by_arrow_keys(chrome: Browser, tmp_path: Path) -> None:
    made = mi.Report("T", question="Q?").head_map(heads_table(), "c", value="effect", columns=["label", "effect"])
    page = chrome.open(made.save(tmp_path / "map.html"))
    told, height = "document.querySelector('output').textContent", "document.documentElement.scrollHeight"
    before = page.run(height)
    map_right = page.run("document.querySelector('.map').getBoundingClientRect().right")
    assert page.run("document.querySelector('output').getBoundingClientRect().left") >= map_right, "beside the map"
    at = page.run(
        "(({ x, y }) => [x + 9, y + 9])(document.querySelector('rect[data-at=\"0 1\"]').getBoundingClientRect())"
    )
    page.call("Input.dispatchMouseEvent", type="mouseMoved", x=at[0], y=at[1])
    assert page.run(told) == "head L0H1\nmean effect [95 %] -0.5000 [-0.6000, -0.4000]"
    assert page.run(height) == before, "what is told moves nothing"
    page.run("document.querySelector('svg.heads').focus()")
    page.press("ArrowDown")
    assert page.run(told).startswith("head L1H1\nmean effect [95 %] +0.5000")
    page.press("ArrowLeft")
    assert page.run(told) == "head L1H0\nmean effect [95 %] –"
    page.press("ArrowLeft")
    assert page.run(told).startswith("head L1H0"), "the edge holds"
    assert page.errors == []


def test_a_maps_layers_stay_in_sight_where_its_heads_scroll(chrome: Browser, tmp_path: Path) -> None:
    rows = [{"layer": layer, "head": head, "effect": layer - head / 28} for layer in range(3) for head in range(28)]
    made = mi.Report("T", question="Q?").head_map(pd.DataFrame(rows), "c", value="effect")
    page = chrome.open(made.save(tmp_path / "map.html"), width=390)
    page.run("(document.querySelector('.rows').scrollLeft = 400)")
    box, label, square = (
        page.run(f"(({{ left, right, top, bottom }}) => [left, right, top, bottom])({what}.getBoundingClientRect())")
        for what in (
            "document.querySelector('.rows')",
            "[...document.querySelectorAll('.layers text')].find((text) => text.textContent === '2')",
            "document.querySelector('rect[data-at=\"2 20\"]')",
        )
    )
    assert page.run("document.querySelector('.rows').scrollLeft") > 0, "it is wider than the window"
    assert box[0] <= label[0] < label[1] < square[0] < box[1], "left of what is in sight"
    assert square[2] < label[2] and label[3] < square[3] + 2, "in its row"
    at = f"document.elementFromPoint({box[0] + 30}, {(square[2] + square[3]) / 2}).closest('svg').classList.contains('layers')"
    assert page.run(at), "squares go under the labels"
    assert page.run("parseFloat(getComputedStyle(document.querySelector('.layers text')).fontSize)") >= 12


def test_a_wide_picture_keeps_its_size_on_a_phone_and_scrolls_in_its_box(chrome: Browser, tmp_path: Path) -> None:
    import matplotlib.pyplot as plt

    made = mi.Report("Wide", question="")
    for inches in (8, 16):
        picture, axes = plt.subplots(figsize=(inches, 2))
        axes.plot([1, 2])
        made = made.figure(picture, "wide")
        plt.close(picture)
    page = chrome.open(made.save(tmp_path / "wide.html"), width=390)
    shown = page.run(
        "[...document.querySelectorAll('.picture img')].map(i => [i.clientWidth, Number(i.getAttribute('width'))])"
    )
    assert len(shown) == 2 and all(is_wide == drawn > 390 for is_wide, drawn in shown)
    assert page.run("document.documentElement.scrollWidth") == 390
    assert hinted(page) == [(True, True)] * 2
    page.resize(1000)
    assert hinted(page) == [(False, False)] * 2


def hinted(page: Page) -> list[tuple[bool, bool]]:
    """Whether each picture scrolls in its box, and whether a word beside it says so."""
    boxes = "[...document.querySelectorAll('div.picture, .box.rows')]"
    told = "b.closest('figure').querySelector('.scrolls').offsetWidth > 20"
    return [
        (scrolls, says) for scrolls, says in page.run(f"{boxes}.map((b) => [b.scrollWidth > b.clientWidth, {told}])")
    ]


@pytest.mark.parametrize(
    ("n_heads", "width", "scrolls"), [(28, 390, True), (8, 390, False), (28, 1200, False), (64, 1200, True)]
)
def test_a_map_that_scrolls_says_so(n_heads: int, width: int, scrolls: bool, chrome: Browser, tmp_path: Path) -> None:
    frame = pd.DataFrame({"layer": 0, "head": range(n_heads), "effect": np.linspace(-1, 1, n_heads)})
    page = chrome.open(
        mi.Report("M", question="").head_map(frame, "", value="effect").save(tmp_path / "m.html"), width=width
    )
    assert hinted(page) == [(scrolls, scrolls)]


@pytest.mark.slow
@pytest.mark.parametrize("width", [360, 1200])
def test_nothing_sticks_out_of_the_window(width: int, chrome: Browser, hostile: Path) -> None:
    page = chrome.open(hostile, width=width)
    page.until("document.querySelectorAll('.mless-view canvas').length >= 6")
    assert page.run("window.innerWidth") == width
    assert page.run("document.documentElement.scrollWidth") == width
    box = "(b) => [b.scrollWidth > b.clientWidth, b.getBoundingClientRect().right]"
    for all_columns in (False, True)[: 1 + (width == 360)]:
        if all_columns:
            assert page.run("[...document.querySelectorAll('input.all')].map((box) => box.click()).length") > 0
        found = page.run(f"[...document.querySelectorAll('.table .box')].map({box})")
        assert found and not any(scrolls for scrolls, _ in found), "no column out of reach"
        assert all(right <= width for _, right in found)
    assert page.errors == []


def test_a_dark_screen_and_paper_have_their_own_colours(chrome: Browser, hostile: Path) -> None:
    ground = "getComputedStyle(document.body).backgroundColor"
    page = chrome.open(hostile, dark=True)
    assert page.run(ground) == "rgb(21, 24, 28)"
    page.call("Emulation.setEmulatedMedia", media="print", features=[{"name": "prefers-color-scheme", "value": "dark"}])
    assert page.run(ground) == "rgb(255, 255, 255)"
    assert page.run("getComputedStyle(document.querySelector('.box')).overflowX") == "visible"
    assert page.run("document.querySelector('nav').offsetHeight") == 0


class Listener(ThreadingHTTPServer):
    """A server on this machine that notes who asks for what."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        asked = self.asked

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                asked.append(self.path)
                self.send_error(404)

            def log_message(self, *_: Any) -> None:
                pass

        super().__init__(("127.0.0.1", 0), Handler)


def test_the_policy_lets_no_request_out(chrome: Browser, hostile: Path, tmp_path: Path) -> None:
    """Under the page's own policy nothing reaches a server; without the policy the same page does ask it."""
    server = Listener()
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        address = f"http://127.0.0.1:{server.server_port}"
        asks = f"<img src='{address}/picture.png'><script src='{address}/script.js'></script></main>"
        text = hostile.read_text(encoding="utf-8").replace("</main>", asks)
        (tmp_path / "stopped.html").write_text(text, encoding="utf-8")
        page = chrome.open(tmp_path / "stopped.html")
        refused = page.run(f"fetch('{address}/data.json').then(() => 'sent', () => 'refused')")
        assert refused == "refused" and server.asked == []
        assert sum("Content Security Policy" in error for error in page.errors) >= 3
        free = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", text)
        (tmp_path / "free.html").write_text(free, encoding="utf-8")
        page = chrome.open(tmp_path / "free.html")
        assert set(server.asked) == {"/picture.png", "/script.js"}
        assert set(own(page.requests)) >= {f"{address}/picture.png", f"{address}/script.js"}, "requests are noted"
    finally:
        server.shutdown()
        server.server_close()


def test_in_a_page_without_views_even_an_injected_script_does_not_run(chrome: Browser, tmp_path: Path) -> None:
    text = mi.Report("T", question="Q?").sentence("harmless").page()
    (tmp_path / "x.html").write_text(text.replace("harmless", "<script>window.hacked=1</script>"), encoding="utf-8")
    page = chrome.open(tmp_path / "x.html")
    assert page.run("window.hacked") is None and len(page.errors) == 1


def test_a_map_of_an_attention_metric_says_what_the_metric_is() -> None:
    table = pd.DataFrame({"layer": [0], "head": [0], "collapse_relative": [0.5]})
    assert HeadMap.of(table, "", value="collapse_relative").note.startswith("drop of the span below its reference")
