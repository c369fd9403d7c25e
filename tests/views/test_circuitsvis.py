"""CircuitsVis pages: small, offline, exact to the precision they state, and no text becomes code."""

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from browser import Browser, Page, browser
from conftest import BACKENDS, WORDS, qwen2_tokenizer
from models_under_test import loaded, pairs_for, problems

import mless_interp as mi
from mless_interp.views import circuitsvis as circuits
from mless_interp.views import pooling
from mless_interp.views.pooling import Patterns, mean_patterns, patterns_of, read_patterns, seams

# What React gave to the CircuitsVis element behind a canvas: the numbers that are really drawn.
PROPS = """
window.drawn = (where) => [...document.querySelectorAll(where)].map((canvas) => {
  let fiber = canvas[Object.keys(canvas).find((key) => key.startsWith("__reactFiber$"))];
  while (!(fiber.memoizedProps && fiber.memoizedProps.attention)) fiber = fiber.return;
  const { attention, ...rest } = fiber.memoizedProps;
  return { attention: attention.map((row) => Array.from(row, (x) => (x === undefined ? null : x))), ...rest };
}); true
"""
INK = """[...document.querySelectorAll('.mless-chart canvas')].map((canvas) => {
  const pixels = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;
  let ink = 0;
  for (let i = 0; i < pixels.length; i += 4) ink += pixels[i + 3] > 0 && pixels[i] + pixels[i + 1] + pixels[i + 2] < 700;
  return ink;
})"""
NUMBERS = r"\d+\.?\d*(?:e-\d+)?(?= of the true| above)"
BAD = "</script><script>document.title='broken'</script><img src=x onerror=\"document.title='broken'\">"


@pytest.fixture(scope="module")
def chrome(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browser(tmp_path_factory.mktemp("browser")) as running:
        yield running


def opened(chrome: Browser, path: Path, n_views: int = 1) -> Page:
    """The page with all of its views drawn, nothing complained about and nothing asked for but the page itself."""
    page = chrome.open(path)
    page.until(
        f"document.querySelectorAll('[data-drawn=yes]').length + document.querySelectorAll('.mless-failed').length >= {n_views}"
    )
    assert page.run("[...document.querySelectorAll('.mless-failed')].map((p) => p.textContent)") == []
    page.until(
        "[...document.querySelectorAll('.mless-chart, .mless-thumb')].every((place) => place.querySelector('canvas'))"
    )
    page.run("new Promise((done) => setTimeout(() => requestAnimationFrame(done), 200))")
    assert page.errors == []
    assert [url for url in page.requests if not url.startswith(("data:", "blob:"))] == [path.resolve().as_uri()]
    page.run(PROPS)
    return page


def panels_of(page: Page, where: str = ".mless-chart canvas") -> list[dict[str, Any]]:
    return page.run(f"drawn({json.dumps(where)})")


def lower(panel: dict[str, Any]) -> np.ndarray:
    """The drawn numbers on and below the diagonal, 0 elsewhere."""
    rows = [[x or 0.0 for x in row] for row in panel["attention"]]
    return np.tril(np.array(rows))


# ------------------------------------------------------------------------------------------------------- in a browser


@pytest.mark.slow
@pytest.mark.parametrize("backend", BACKENDS)
def test_what_is_drawn_is_the_pattern_without_with_and_their_difference(
    backend: str, tiny_model_dir: Any, chrome: Browser, tmp_path: Path
) -> None:
    model = loaded(tiny_model_dir("llama"), backend)
    pair = pairs_for(model, n_tokens=21, count=1)[0]
    heads = [mi.Head(0, 3), mi.Head(2, 1)]
    view = mi.views.attention(model, pair, heads, max_span=7)
    page = opened(chrome, view.save(tmp_path / "page.html"))
    for number, head in enumerate(heads):
        page.run(f"document.querySelectorAll('.mless-heads button')[{number}].click()")
        page.run("new Promise((done) => setTimeout(done, 300))")
        without, with_it, difference = panels_of(page)
        assert page.run("document.querySelector('.mless-head-name').textContent").startswith(f"{head} (paper: layer")
        before, after = (patterns_of(model, pair, name, [head])[0].numpy() for name in ("base", "inserted"))
        worst = 0.004  # 256 steps of probabilities up to 1, and three digits
        assert np.allclose(lower(without), before, atol=worst)
        assert len(with_it["tokens"]) == len(pair.base) + 7, "21 inserted tokens are pooled into 7"
        start, stop = pair.span
        assert np.allclose(lower(with_it)[:start, :start], after[:start, :start], atol=worst)
        question = lower(with_it)[start + 7 :]
        assert np.allclose(question[:, start], after[stop:, start : start + 3].sum(1), atol=worst), "a block is a sum"
        assert np.allclose(lower(with_it).sum(1), 1.0, atol=len(with_it["tokens"]) * worst), "every row sums to 1"
        shared = pair.shared.numpy()
        assert np.allclose(lower(difference), after[shared][:, shared] - before, atol=2 * worst)
        assert np.abs(lower(difference)).max() > 5 * worst, "there is a difference to see"
        assert len({(panel["minValue"], panel["maxValue"]) for panel in (without, with_it, difference)}) == 1
        marked = [token.startswith("▌") for token in with_it["tokens"]]
        assert sum(marked) == 7 and marked[start] and not any(token.startswith("▌") for token in without["tokens"])
        band = with_it["attention"][0]
        assert [x is not None for x in band[1:]] == marked[1:], "above the diagonal only the span's columns are painted"
    assert min(page.run(INK)) > 300, "every chart has ink"
    thumbs = panels_of(page, ".mless-thumb canvas")
    assert len(thumbs) == len(heads) and all(len(thumb["tokens"]) <= 40 for thumb in thumbs)


def test_two_views_share_one_script_and_hostile_texts_stay_texts(
    tiny_model_dir: Any, chrome: Browser, tmp_path: Path
) -> None:
    model = loaded(tiny_model_dir("qwen2"), "bridge")
    pair = pairs_for(model, count=1)[0]
    hostile = mi.make_pairs(model, [replace(pair.problem, id=BAD, question=f"{BAD} 3 &lt; ?")], pair.insertion)[0]
    heads = [mi.Head(0, 0), mi.Head(1, 1)]
    profile = mi.attention_profile(model, [hostile], heads=heads, progress=False)
    one_token = replace(
        profile,
        base_texts=((BAD, *profile.base_texts[0][1:]),),
        inserted_texts=((BAD, *profile.inserted_texts[0][1:]),),
    )
    views = [
        mi.views.attention(model, hostile, heads),
        mi.views.tokens(one_token),
        mi.views.tokens(profile, relative=True),
    ]
    path = tmp_path / "page.html"
    fragments = "".join(view.fragment() for view in views)
    text = f"<!doctype html><meta charset='utf-8'><title>whole</title>{fragments}{circuits.shared_script()}"
    assert text.count('class="mless-circuitsvis"') == 1
    path.write_text(text, encoding="utf-8")
    page = opened(chrome, path, n_views=3)
    assert page.run("document.title") == "whole"
    assert page.run("document.images.length") == 0
    words = page.run("document.body.innerText.replaceAll('\\u2060', '')")
    assert words.count(BAD[:30]) >= 3, "in the titles, and as a token"
    assert page.run("document.querySelectorAll('.colored-tokens').length") == 8, "2 views, 2 heads, 2 conditions"
    tokens = page.run("document.querySelectorAll('.colored-tokens')[0].innerText.replaceAll('\\u2060', '')")
    assert tokens.replace("\u00a0", " ").startswith(BAD)


def test_the_same_view_twice_in_a_notebook_is_drawn_twice(tiny_model_dir: Any, chrome: Browser, tmp_path: Path) -> None:
    model = loaded(tiny_model_dir("qwen2"), "bridge")
    view = mi.views.attention(model, pairs_for(model, count=1)[0], [mi.Head(0, 0)], conditions=("inserted",))
    path = tmp_path / "cells.html"
    path.write_text(f"<!doctype html><meta charset='utf-8'>{view._repr_html_()}{view._repr_html_()}", encoding="utf-8")
    assert len(panels_of(opened(chrome, path, n_views=2))) == 2


@pytest.mark.slow
def test_charts_keep_the_width_of_their_panel_in_other_windows_in_screenshots_and_in_print(
    tiny_model_dir: Any, chrome: Browser, tmp_path: Path
) -> None:
    model = loaded(tiny_model_dir("qwen2"), "bridge")
    view = mi.views.attention(model, pairs_for(model, count=1)[0], [mi.Head(0, 0)])
    page = opened(chrome, view.save(tmp_path / "page.html"))
    sizes = """[...document.querySelectorAll('.mless-chart canvas')].map((canvas) => {
      const box = canvas.getBoundingClientRect();
      return [box.width / canvas.closest('.mless-chart').clientWidth, box.height / box.width];
    })"""

    def check(when: str) -> None:
        page.run("new Promise((done) => setTimeout(() => requestAnimationFrame(done), 300))")
        for width, shape in page.run(sizes):
            assert 0.9 < width < 1.1 and 0.9 < shape < 1.1, (
                f"{when}: {width:.2f} of the panel, height/width {shape:.2f}"
            )

    check("as opened")
    for width in (700, 390, 1400):
        page.resize(width)
        check(f"{width} pixels wide")
    page.call("Page.captureScreenshot", format="png", captureBeyondViewport=True)
    check("after a picture of the whole page")
    page.call("Emulation.setEmulatedMedia", media="print")
    page.resize(720)
    check("in print")
    assert page.run("getComputedStyle(document.querySelector('.mless-controls label')).display") == "none"
    page.call("Emulation.setEmulatedMedia", media="")
    page.call("Page.printToPDF", printBackground=True)
    check("after printing")


LABELS = """[...document.querySelectorAll('.mless-chart canvas')].map((canvas) => canvas.mlessChart.data.datasets[0].data
  .filter((cell) => cell.x === cell.y).map((cell) => cell.x))"""
DARK = """[...document.querySelectorAll('.mless-chart')].map((place) => {
  const canvas = place.querySelector('canvas'), frame = place.querySelector('.mless-frame');
  if (!frame) return null;
  const box = canvas.getBoundingClientRect(), mark = frame.getBoundingClientRect(), scale = canvas.width / box.width;
  const x = (mark.left + mark.width / 2 - box.left) * scale;
  return [0.1, 0.95].map((share) => Array.from(canvas.getContext('2d').getImageData(
    Math.round(x + 1), Math.round((mark.top + share * mark.height - box.top) * scale), 1, 1).data).slice(0, 3));
})"""


@pytest.fixture(scope="module")
def read_span() -> tuple[mi.Model, tuple[mi.PromptPair, ...]]:
    """A planted reader that gives 90 % of its attention to 55 slashes."""
    planted = mi.planted_model(readers=[mi.Head(0, 1)], mediators=[], n_heads=4, n_key_value_heads=2, seed=0)
    model = mi.load_model(planted)
    slashes = mi.Insertion.meaningless(" /", 55)
    return model, mi.make_pairs(model, mi.load_problems(planted, limit=4), slashes)


@pytest.mark.slow
@pytest.mark.parametrize("width", [1400, 390])
@pytest.mark.parametrize("several", [False, True])
def test_the_column_of_a_span_that_is_read_is_dark_and_framed_at_its_true_position(
    several: bool, width: int, read_span: Any, chrome: Browser, tmp_path: Path
) -> None:
    model, pairs = read_span
    view = mi.views.attention(model, pairs if several else pairs[0], [mi.Head(0, 1)])
    page = opened(chrome, view.save(tmp_path / "page.html"))
    page.resize(width)
    page.run("new Promise((done) => setTimeout(done, 700))")
    without, with_it, difference = page.run(DARK)
    assert without is None and difference is None, "only where the span is"
    band, read = with_it
    assert np.abs(np.array(band) - [0xF4, 0xE9, 0xA0]).max() < 12, "the column above the diagonal is the span's"
    assert np.abs(np.array(read) - [0xB2, 0x18, 0x2B]).max() < 40, "and dark below it"
    assert page.run("document.documentElement.scrollWidth") <= width
    base, inserted, both = page.run(LABELS)
    assert all(len(set(labels)) == len(labels) for labels in (base, inserted, both))
    start, stop = pairs[0].span
    if not several:
        assert inserted[start] == f"▌/ ×55 ({start}–{stop - 1})"
        assert [label.split(" (")[-1] for label in base] == [f"{i})" for i in range(len(pairs[0].base))]
        assert inserted[start + 1].endswith(f" ({stop})") and inserted[-1].endswith(f" ({len(pairs[0].inserted) - 1})")
        assert both[0].endswith(" (0)") and both[start].endswith(f" ({start}→{stop})")


def test_a_mean_over_problems_is_the_mean_on_what_their_prompts_share(read_span: Any) -> None:
    model, pairs = read_span
    heads = [mi.Head(0, 1), mi.Head(0, 2)]
    found = mean_patterns(model, pairs, "inserted", heads).with_short_span(1)
    assert np.allclose(found.values.sum(-1), 1.0, atol=1e-5), "every row sums to 1"
    each = [patterns_of(model, pair, "inserted", heads).double().numpy() for pair in pairs]
    span = int(np.flatnonzero(found.inserted)[0])
    last = np.mean([a[:, -1, pair.span[0] : pair.span[1]].sum(-1) for a, pair in zip(each, pairs, strict=True)], 0)
    assert np.allclose(found.values[:, -1, span], last), "the last token's attention to the span"
    assert np.allclose(found.values[:, -1, 0], np.mean([a[:, -1, 0] for a in each], 0))
    assert len({len(pair.base) for pair in pairs}) > 1 and int(found.sizes[span]) == 55
    alike = mean_patterns(model, [pairs[0], pairs[0]], "base", heads)
    assert (
        np.allclose(alike.values, each_base := patterns_of(model, pairs[0], "base", heads).numpy()) and each_base.size
    )
    assert alike.places.tolist() == list(range(len(pairs[0].base)))
    view = mi.views.attention(model, pairs, heads)
    assert view.title.startswith(f"Attention, mean over {len(pairs)} problems: ")
    one = mi.views.attention(model, pairs, heads, problem=pairs[1].id)
    assert (
        one.data
        == mi.views.attention(model, pairs[1], heads).data
        == mi.views.attention(model, pairs, heads, problem=1).data
    )
    with pytest.raises(ValueError, match="problem 9 is out of range: there are 4"):
        mi.views.attention(model, pairs, heads, problem=9)
    with pytest.raises(ValueError, match="no pairs to show"):
        mi.views.attention(model, (), heads)
    other = mi.make_pairs(model, [pairs[0].problem], mi.Insertion.meaningless(" /", 3))
    with pytest.raises(ValueError, match="pairs of several insertions have no mean"):
        mi.views.attention(model, [*pairs, *other], heads)


@pytest.fixture(scope="module")
def long_prompt(tmp_path_factory: pytest.TempPathFactory) -> tuple[mi.Model, mi.PromptPair]:
    """A random Qwen2 with 28 heads and a prompt of 512 tokens, 55 of them inserted."""
    import transformers

    tokenizer, folder = qwen2_tokenizer(), tmp_path_factory.mktemp("tiny-28")
    config = transformers.Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=224,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=28,
        num_key_value_heads=4,
        max_position_embeddings=1024,
        tie_word_embeddings=True,
    )
    model = transformers.Qwen2ForCausalLM(config).eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            weight.normal_(1.0 if "norm" in name else 0.0, 0.1, generator=generator)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    loaded_model = mi.load_model(folder, backend="bridge")
    words = np.random.default_rng(0).permutation(WORDS * 8)
    insertion = mi.Insertion.meaningless(" /", 55)
    question = ""
    for word in words:
        question += f" {word}"
        pair = mi.make_pairs(loaded_model, [replace(problems()[0], question=question.strip())], insertion)[0]
        if len(pair.inserted) >= 512:
            return loaded_model, pair
    raise AssertionError("the words do not reach 512 tokens")


@pytest.mark.slow
def test_28_heads_and_512_tokens_fit_into_3_megabytes(
    long_prompt: tuple[mi.Model, mi.PromptPair], chrome: Browser, tmp_path: Path
) -> None:
    model, pair = long_prompt
    heads = [mi.Head(0, head) for head in range(28)]
    view = mi.views.attention(model, pair, heads)
    path = view.save(tmp_path / "long.html")
    assert path.stat().st_size < 3_000_000
    page = opened(chrome, path)
    base = patterns_of(model, pair, "base", heads[:1])[0].double().numpy()
    blocks = panels_of(page)[0]
    assert len(blocks["tokens"]) <= 165 < len(pair.base), "a chart draws blocks of a long prompt"
    rows = page.run("document.querySelectorAll('.mless-window option').length")
    assert rows == 1 + -(-len(pair.base) // 64)
    page.run("const s = document.querySelector('.mless-window'); s.value = '64-128'; s.onchange(); true")
    page.run("new Promise((done) => setTimeout(done, 500))")
    shown = panels_of(page)[0]
    first = next(i for i, token in enumerate(shown["tokens"]) if token.endswith(" (64)"))
    inside = lower(shown)[first : first + 64, first : first + 64]
    stated = [float(x) for x in re.findall(NUMBERS, view.precision)]
    assert np.abs(inside - base[64:128, 64:128]).max() <= max(stated) + 5e-4


def decoded(view: Any) -> list[np.ndarray]:
    """Every panel's numbers `[head, cell]` as the page decodes them."""
    import base64
    import zlib

    steps = np.frombuffer(zlib.decompress(base64.b64decode(view.data["values"])), dtype=np.uint8)
    numbers, found, at = np.array(view.data["table"])[steps], [], 0
    for panel in view.data["panels"]:
        n, heads = len(panel["tokens"]), len(view.data["heads"])
        size = heads * n * (n + 1) // 2
        found.append(numbers[at : at + size].reshape(heads, -1))
        at += size
    assert at == len(numbers)
    return found


def noise(n: int, heads: int, spread: float, seed: int) -> np.ndarray:
    """Softmax rows of normal logits: the patterns that compress worst."""
    generator = np.random.default_rng(seed)
    logits = np.where(np.tri(n, dtype=bool), generator.normal(0, spread, (heads, n, n)), -np.inf)
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


@pytest.mark.slow
@pytest.mark.parametrize("spread", [0.5, 1.0, 3.0])
def test_random_rows_fit_too_and_are_as_exact_as_the_page_says(
    spread: float, long_prompt: tuple[mi.Model, mi.PromptPair], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, pair = long_prompt
    heads = [mi.Head(0, head) for head in range(28)]
    made = {}

    def random_patterns(*given: Any) -> Patterns:
        real = read_patterns(*given)
        made[given[2]] = replace(real, values=noise(len(real.texts), 28, spread, seed=len(made)))
        return made[given[2]]

    monkeypatch.setattr(pooling, "read_patterns", random_patterns)
    view = circuits.attention(model, pair, heads, max_span=None)
    assert len(view.page().encode()) < 3_000_000
    low, high = (float(x) for x in [*re.findall(NUMBERS, view.precision), "0"][:2])
    for shown, real in zip(decoded(view), made.values(), strict=True):
        if shown.shape != real.visible.shape:
            assert "neighbouring tokens are pooled" in view.precision
            continue
        error, below = np.abs(shown - real.visible), real.visible <= view.data["scale"] * 0.999
        assert error[below].max() <= 1.06 * low, "two digits are stated"
        assert error.max() <= 1.06 * max(low, high)


# ---------------------------------------------------------------------------------------------------- without a browser


@pytest.mark.slow
def test_pages_grow_coarser_and_then_pooled_before_they_grow_large(long_prompt: tuple[mi.Model, mi.PromptPair]) -> None:
    model, pair = long_prompt
    heads = [mi.Head(0, head) for head in range(4)]
    script = len(circuits.shared_script())
    sizes = [script + 230_000, script + 90_000]
    views = [mi.views.attention(model, pair, heads, max_bytes=size) for size in sizes]
    assert all(len(view.page()) < size for view, size in zip(views, sizes, strict=True))
    assert "neighbouring tokens are pooled into one" in views[1].precision and views[1].precision in views[1].body
    with pytest.raises(ValueError, match="do not fit into max_bytes=.*choose fewer heads or raise max_bytes"):
        mi.views.attention(model, pair, heads, max_bytes=script)


def test_the_precision_is_a_share_of_the_colour_scale(tiny_model_dir: Any) -> None:
    model = loaded(tiny_model_dir("qwen2"), "bridge")
    pair = pairs_for(model, count=1)[0]
    view = mi.views.attention(model, pair, [mi.Head(0, 0)], scale=0.2)
    table = view.data["table"]
    assert view.data["scale"] == 0.2 and len(table) == 256 and table[191] == pytest.approx(0.2)
    assert np.diff(table)[:191].max() == pytest.approx(0.2 / 191, rel=1e-3), "an error of at most 1/382 of the scale"
    assert f"within {0.1 / 191:.2g} of the true ones" in view.body
    assert "attention: 0<" in view.body and "0.2 and more" in view.body and "difference: −0.2<" in view.body


def test_equal_lengths_are_compared_on_all_tokens(tiny_model_dir: Any) -> None:
    model = loaded(tiny_model_dir("qwen2"), "bridge")
    pair = pairs_for(model, count=1)[0]
    view = mi.views.attention(model, pair, [mi.Head(0, 0)], conditions=("masked", "inserted"))
    assert view.data["difference"]["all"] and "difference: inserted − masked on all tokens" in view.body
    alone = mi.views.attention(model, pair, [mi.Head(0, 0)], conditions=("held",))
    assert alone.data["difference"] is None and len(alone.data["panels"]) == 1


def test_a_pooled_cell_is_the_sum_over_its_columns_and_the_mean_over_its_rows() -> None:
    values = np.array([[[1.0, 0, 0], [0.7, 0.3, 0], [0.6, 0.3, 0.1]]])
    plain = Patterns(
        "inserted",
        values,
        ("a", "b", "b"),
        np.array([0, -1, -1]),
        np.array([False, True, True]),
        np.ones(3, int),
        np.arange(3),
    )
    pooled = plain.with_short_span(1)
    assert pooled.texts == ("a", "b ×2") and pooled.sizes.tolist() == [1, 2] and pooled.places.tolist() == [0, 1]
    by_hand = [[1.0, 0.0], [(0.7 + 0.6) / 2, (0.3 + 0.3 + 0.1) / 2]]
    assert np.allclose(pooled.values[0], by_hand)
    assert plain.with_short_span(None) is plain and plain.with_short_span(2) is plain
    assert seams([plain], 1) == []


def test_seams_are_where_tokens_are_inserted() -> None:
    n = 6
    base = np.array([0, 1, -1, -1, 2, 3])
    panel = Patterns("inserted", np.zeros((1, n, n)), ("x",) * n, base, base < 0, np.ones(n, int), np.arange(n))
    assert seams([panel], 4) == [2]


def test_wrong_arguments_say_what_to_do(tiny_model_dir: Any) -> None:
    model = loaded(tiny_model_dir("qwen2"), "bridge")
    pair = pairs_for(model, count=1)[0]
    heads = [mi.Head(0, 0)]
    with pytest.raises(ValueError, match="no heads to show"):
        mi.views.attention(model, pair, [])
    with pytest.raises(ValueError, match=r"head 99 is out of range \(zero-based\)"):
        mi.views.attention(model, pair, [mi.Head(0, 99)])
    with pytest.raises(ValueError, match="no conditions to show"):
        mi.views.attention(model, pair, heads, conditions=())
    with pytest.raises(ValueError, match="a condition is given twice: base, base"):
        mi.views.attention(model, pair, heads, conditions=("base", "base"))
    with pytest.raises(ValueError, match="max_span must be 1 or more, or None, got 0"):
        mi.views.attention(model, pair, heads, max_span=0)
    with pytest.raises(ValueError, match="scale must be a positive"):
        mi.views.attention(model, pair, heads, scale=-1.0)
    profile = mi.attention_profile(model, [pair], heads=heads, progress=False)
    with pytest.raises(ValueError, match="problem 'zz' is not among these; there are p0"):
        mi.views.tokens(profile, problem="zz")
    with pytest.raises(ValueError, match=r"problem 3 is out of range: there are 1"):
        mi.views.tokens(profile, problem=3)


def test_token_views_hold_the_profile_s_numbers(tiny_model_dir: Any) -> None:
    model = loaded(tiny_model_dir("qwen2"), "bridge")
    pair = pairs_for(model, count=1)[0]
    profile = mi.attention_profile(model, [pair], heads=[mi.Head(1, 2)], progress=False)
    without, with_it = mi.views.tokens(profile, max_span=4).data["elements"]
    start, stop = pair.span
    received = profile.received["inserted"][0][0]
    first = slice(start, start + 6)
    assert with_it["values"][start] == pytest.approx(received[first].mean(), rel=1e-3)
    assert with_it["tokens"][start] == "▌ /×6" and with_it["values"][0] == pytest.approx(received[0], rel=1e-3)
    assert len(with_it["tokens"]) == len(pair.inserted) - (stop - start) + 4
    assert without["values"][-1] is None and without["tokens"][-1].startswith("⟨")
    assert without["maxValue"] == with_it["maxValue"]
    relative = mi.views.tokens(profile, relative=True).data["elements"][0]
    expected = np.log2(np.clip(profile.whole("base", relative=True)[0][0], 1 / 8, 8))
    assert relative["values"][3] == pytest.approx(expected[3], rel=1e-3) and relative["maxValue"] == 3
