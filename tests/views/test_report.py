"""The report page: what it says, and, in a headless browser, that it loads, sorts, draws and asks nobody."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from browser import Browser, Page
from models_under_test import loaded, pairs_for
from small_results import located, patched

import mless_interp as mi
from mless_interp.runtime.base_result import ShownMap
from mless_interp.runtime.store import provenance
from mless_interp.views.report import ShownPrompt, map_of

NAN, INF = float("nan"), float("inf")
BAD = '</script><script>window.hacked=1</script><img src="x:y" onerror="window.hacked=2">"\'&{{ 7*7 }}'
"""A text that would become code anywhere on a page that forgets to escape it."""


def heads_table() -> pd.DataFrame:
    effect = np.array([0.0, -0.5, 0.25, NAN, 0.5, 0.1])
    ends = {"effect_ci_low": effect - 0.1, "effect_ci_high": effect + 0.1}
    labels = [f"L{layer}H{head}" for layer in range(2) for head in range(3)]
    places = {"layer": np.arange(6) // 3, "head": np.arange(6) % 3, "label": labels}
    return pd.DataFrame(places | {"effect": effect} | ends)


def test_a_page_begins_with_its_answer_then_the_picture_then_six_columns(chrome: Browser, tmp_path: Path) -> None:
    page = mi.Report("T", question="Q?", answer=f"One head. {BAD}").result(located())
    assert [part.kind for part in page.parts][:4] == ["heading", "head_map", "table", "folded"]
    opened = chrome.open(page.save(tmp_path / "page.html"))
    first = "document.querySelector('h1').nextElementSibling.querySelector('strong').textContent"
    assert opened.run(first).endswith(BAD)
    assert opened.run("window.hacked") is None
    seen = "[...document.querySelectorAll('table')[0].tHead.rows[0].cells].filter((c) => c.offsetWidth > 0).length"
    assert opened.run(seen) == 6
    opened.run("document.querySelector('input.all').click()")
    assert opened.run(seen) > 6
    assert opened.run("[...document.querySelectorAll('thead th')].every((th) => th.title)")
    assert "outlined: named" in opened.run("document.querySelector('.legend').textContent")


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
    drawn = map_of(ShownMap(frame, "effect", ["label", BAD], [True] * 6, BAD), known={}, interval="95 %", below="")
    page = replace(page, parts=(*page.parts, drawn)).figure(mi.views.head_map(patched()), BAD).heading("Two")
    page = page.view(mi.views.attention(model, bad, [mi.Head(0, 0), mi.Head(1, 2)]))
    page = page.view(mi.views.attention(model, bad, [mi.Head(2, 1)])).prompt(ShownPrompt.of(model, bad))
    run = provenance(model, repeat=BAD, seed=0, settings={BAD: BAD}, **{BAD: [BAD]})
    return page.provenance(run).save(tmp_path_factory.mktemp("pages") / "report.html")


@pytest.fixture(scope="module")
def page(chrome: Browser, hostile: Path) -> Page:
    return chrome.open(hostile)


@pytest.mark.slow
def test_the_page_loads_complains_of_nothing_and_asks_nobody(page: Page, hostile: Path) -> None:
    page.until("document.querySelectorAll('.mless-view canvas').length >= 6")
    page.run("new Promise((done) => setTimeout(done, 300))")
    assert page.errors == []
    assert [url for url in page.requests if not url.startswith(("data:", "blob:"))] == [hostile.resolve().as_uri()]


def test_no_text_became_code_and_all_of_them_can_be_read(page: Page) -> None:
    assert page.run("window.hacked") is None
    assert page.run("document.querySelectorAll('img[src=\"x:y\"], [onerror]').length") == 0
    assert page.run("document.title") == page.run("document.querySelector('h1').textContent") == BAD
    seen = f"(place) => [...document.querySelectorAll(place)].some((e) => e.textContent.includes({json.dumps(BAD)}))"
    places = ["h2", "main > p", "figcaption", "td", "th button", "pre.command", "rect title", ".means"]
    assert [place for place in places if not page.run(f"({seen})({json.dumps(place)})")] == [], "not as it is"
    assert json.loads(page.run("document.querySelector('details pre').textContent"))["settings"] == {BAD: BAD}
    assert page.run(f"[...document.querySelectorAll('img')].some((e) => e.alt === {json.dumps(BAD)})")
    assert page.run("document.querySelector('.part > pre').textContent").count("<script>window.hacked=1") == 1
    assert page.run("document.querySelector('.part > pre mark').textContent").count("/") == 21


def test_pictures_after_the_second_are_folded() -> None:
    pictures = {f"{name}.": mi.views.forest(patched(12)) for name in "abc"}
    kinds = [part.kind for part in mi.Report("T", question="Q?").result(patched(12), pictures=pictures).parts]
    assert kinds[:5] == ["heading", "head_map", "picture", "folded", "folded"]


def test_numbers_sort_as_numbers_both_ways_and_undefined_stays_last(chrome: Browser, tmp_path: Path) -> None:
    numbers = [9.0, 10.0, NAN, -2.5, INF, 1e-7, *np.linspace(3, 4, 10)]
    frame = pd.DataFrame({"label": [f"L0H{i}" for i in range(16)], "x": numbers, "n": range(16)})
    page = chrome.open(mi.Report("T", question="Q?").table(frame, "c").save(tmp_path / "t.html"))
    order = "[...document.querySelectorAll('thead th')].map((th) => th.getAttribute('aria-sort'))"
    column = "[...document.querySelectorAll('tbody tr')].map((row) => row.cells[1].textContent)"
    assert page.run(order) == ["none"] * 3
    page.run("document.querySelectorAll('thead button')[1].click()")
    up = page.run(column)
    assert up[:2] == ["-2.5000", "+1e-07"] and up[-4:] == ["+9.0000", "+10.0000", "∞", "–"]
    assert page.run(order) == ["none", "ascending", "none"]
    page.run("document.querySelectorAll('thead button')[1].click()")
    assert page.run(column) == [*up[-2::-1], "–"] and page.run(order) == ["none", "descending", "none"]


def test_the_policy_lets_no_request_out(chrome: Browser, hostile: Path, tmp_path: Path) -> None:
    asks = "<img src='http://127.0.0.1:9/x.png'><script src='http://127.0.0.1:9/x.js'></script></main>"
    (tmp_path / "x.html").write_text(hostile.read_text(encoding="utf-8").replace("</main>", asks), encoding="utf-8")
    page = chrome.open(tmp_path / "x.html")
    assert page.run("fetch('http://127.0.0.1:9/x.json').then(() => 'sent', () => 'refused')") == "refused"
    assert sum("Content Security Policy" in error for error in page.errors) >= 3


def test_in_a_page_without_views_even_an_injected_script_does_not_run(chrome: Browser, tmp_path: Path) -> None:
    text = mi.Report("T", question="Q?").sentence("harmless").page()
    (tmp_path / "x.html").write_text(text.replace("harmless", "<script>window.hacked=1</script>"), encoding="utf-8")
    page = chrome.open(tmp_path / "x.html")
    assert page.run("window.hacked") is None and len(page.errors) == 1 and len(text) < 40_000
