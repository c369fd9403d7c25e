"""CircuitsVis pages: small, offline, exact, and no text becomes code."""

import base64
import json
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from browser import Browser, Page
from conftest import BACKENDS
from models_under_test import loaded, pairs_for

import mless_interp as mi
from mless_interp.views import circuitsvis as circuits
from mless_interp.views.circuitsvis import read_patterns
from mless_interp.views.report import ShownPrompt

# What React gave to the CircuitsVis element behind a canvas: the numbers that are really drawn.
PROPS = """
window.drawn = () => [...document.querySelectorAll(".mless-chart > div:not([hidden]) canvas")].map((canvas) => {
  let fiber = canvas[Object.keys(canvas).find((key) => key.startsWith("__reactFiber$"))];
  while (!(fiber.memoizedProps && fiber.memoizedProps.attention)) fiber = fiber.return;
  const { attention, ...rest } = fiber.memoizedProps;
  return { attention: attention.map((row) => Array.from(row, (x) => (x === undefined ? null : x))), ...rest };
}); true
"""
EXACT = 1e-4
"""Numbers travel with four decimals."""


def opened(chrome: Browser, path: Path) -> Page:
    """The page with its view drawn, nothing complained about and nothing asked for but the page itself."""
    page = chrome.open(path)
    page.until("document.querySelector('[data-drawn=yes], .mless-failed') !== null")
    assert page.run("[...document.querySelectorAll('.mless-failed')].map((p) => p.textContent)") == []
    page.until("[...document.querySelectorAll('.mless-chart')].every((place) => place.querySelector('canvas'))")
    page.run("new Promise((done) => setTimeout(() => requestAnimationFrame(done), 200))")
    assert page.errors == []
    assert [url for url in page.requests if not url.startswith(("data:", "blob:"))] == [path.resolve().as_uri()]
    page.run(PROPS)
    return page


def lower(panel: dict[str, Any]) -> np.ndarray:
    """The drawn numbers on and below the diagonal, 0 elsewhere."""
    return np.tril(np.array([[x or 0.0 for x in row] for row in panel["attention"]]))


def charts_of(view: Any) -> list[dict[str, Any]]:
    """What a view sends to the page."""
    return json.loads(zlib.decompress(base64.b64decode(view.data["charts"])))


@pytest.mark.slow
@pytest.mark.parametrize("backend", BACKENDS)
def test_what_is_drawn_is_the_pattern_without_with_and_their_difference(
    backend: str, tiny_model_dir: Any, chrome: Browser, tmp_path: Path
) -> None:
    model = loaded(tiny_model_dir("llama"), backend)
    pair = pairs_for(model, n_tokens=21, count=1)[0]
    heads = [mi.Head(0, 3), mi.Head(2, 1)]
    page = opened(chrome, mi.views.attention(model, pair, heads, max_span=7).save(tmp_path / "page.html"))
    for number, head in enumerate(heads):
        page.run(f"document.querySelectorAll('.mless-heads button')[{number}].click()")
        page.until("document.querySelectorAll('.mless-chart > div:not([hidden]) canvas').length === 3")
        without, with_it, difference = page.run("drawn()")
        assert page.run("document.querySelector('.mless-head-name').textContent") == str(head)
        before, after = (read_patterns(model, pair, name, [head]).values[0] for name in ("base", "inserted"))
        assert np.allclose(lower(without), before, atol=EXACT)
        assert len(with_it["tokens"]) == len(pair.base) + 7, "21 inserted tokens are pooled into 7"
        start, stop = pair.span
        assert np.allclose(lower(with_it)[:start, :start], after[:start, :start], atol=EXACT)
        question = lower(with_it)[start + 7 :]
        assert np.allclose(question[:, start], after[stop:, start : start + 3].sum(1), atol=EXACT), "a block is a sum"
        shared = pair.shared.numpy()
        assert np.allclose(lower(difference), after[shared][:, shared] - before, atol=2 * EXACT)
        assert len({(panel["minValue"], panel["maxValue"]) for panel in (without, with_it, difference)}) == 1
        marked = [token.startswith("▌") for token in with_it["tokens"]]
        assert sum(marked) == 7 and marked[start] and not any(token.startswith("▌") for token in without["tokens"])
        band = with_it["attention"][0]
        assert [x is not None for x in band[1:]] == marked[1:], "above the diagonal only the span's columns are painted"


def test_of_many_heads_of_a_long_prompt_the_first_are_drawn_and_the_page_says_so(
    model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair, heads = pairs_for(model, n_tokens=55, count=1)[0], [mi.Head(0, head) for head in range(4)]
    charts = charts_of(mi.views.attention(model, pair, heads))
    assert [len(chart["values"]) for chart in charts] == [4, 4, 4] and sum(charts[1]["marked"]) == 1
    assert sum(charts_of(mi.views.attention(model, pair, heads, max_span=5))[1]["marked"]) == 5
    monkeypatch.setattr(circuits, "MOST_CELLS", 3 * sum(len(chart["values"][0]) for chart in charts))
    view = mi.views.attention(model, pair, heads)
    assert "the first 3 of 4 heads are drawn" in view.body and len(view.data["heads"]) == 3
    assert [chart["values"] for chart in charts_of(view)] == [chart["values"][:3] for chart in charts]
    monkeypatch.setattr(circuits, "MOST_CELLS", 1)
    assert len(mi.views.attention(model, pair, heads).data["heads"]) == 1


def test_what_is_read_is_the_pattern_with_its_texts_and_places(model: Any) -> None:
    pair, heads = pairs_for(model, count=1)[0], ("L1H2", "L0H3", "L1H0")
    read = circuits.read_attention(model, pair, heads)
    assert (read.problem_id, read.insertion, read.n_inserted) == (pair.id, pair.insertion.label, pair.n_inserted)
    assert (tuple(map(str, read.heads)), [panel.condition for panel in read.panels]) == (heads, ["base", "inserted"])
    drawn = circuits.read_attention(model, *mi.pairs_from_ids([[5, 6, 7]], [8], clean=[[5, 9, 7]]), heads).panels
    assert [panel.condition for panel in drawn] == ["clean", "inserted"]
    names = ["blocks.0.attn.hook_pattern", "blocks.1.attn.hook_pattern"]
    for panel, prompt in zip(read.panels, (pair.base, pair.inserted), strict=True):
        run = model.run(pair.condition(panel.condition), capture=dict.fromkeys(names), logits_at="none").captured
        expected = [run[names[head.layer]][0, head.head] for head in read.heads]
        np.testing.assert_allclose(panel.values, np.stack(expected))
        assert panel.texts == tuple(circuits.readable(model.text_of([i])) for i in prompt.ids)
    before, after = read.panels
    assert before.base.tolist() == list(range(len(pair.base))) and not before.inserted.any()
    assert after.base[list(pair.alignment)].tolist() == before.base.tolist()
    assert after.inserted.tolist() == pair.span_mask.tolist() and circuits.readable("a\r\n\t") == "a␍↵⇥"
    shown = ShownPrompt.of(model, pair)
    (start, stop), ids = pair.span, list(pair.inserted.ids)
    cut = [model.text_of(part) for part in (ids[:start], ids[start:stop], ids[stop:])]
    assert [shown.before, shown.inserted, shown.after] == cut
    words = f"Problem {pair.id} as asked, {pair.n_inserted} inserted tokens"
    assert shown.caption == f"{words} marked ({pair.insertion.label})."
    (parted,) = pairs_for(model, 8, before=("question",), at=(2,), count=1)
    assert " in 2 blocks, with what stands between, marked (" in ShownPrompt.of(model, parted).caption
