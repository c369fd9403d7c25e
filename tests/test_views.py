"""Pictures and pages: they say what the numbers say, make no request, and let no text become code."""

import json
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from conftest import BACKENDS
from models_under_test import loaded, pairs_for

import mless_interp as mi
from mless_interp.patch_scores import PatchScores
from mless_interp.views.circuits import head_patterns


def page_panels(page: str) -> list[dict[str, Any]]:
    """The properties of every CircuitsVis call of a page."""
    return [json.loads(found) for found in re.findall(r"CircuitsVis\.AttentionHeads, (\{.*?\})\)</script>", page)]


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_page_of_attention_holds_without_with_and_difference(backend: str, tiny_model_dir: Any) -> None:
    model = loaded(tiny_model_dir("llama"), backend)
    pair = pairs_for(model, n_tokens=21, count=1)[0]
    heads = [mi.Head(0, 3), mi.Head(2, 1)]
    page = mi.views.attention(model, pair, heads, max_span=7).page()
    without, with_it, difference = page_panels(page)
    assert page.count("var CircuitsVis=") == 1, "the script stands once, however many views there are"
    assert without["attentionHeadNames"] == ["L0H3", "L2H1"]
    assert len(without["tokens"]) == len(difference["tokens"]) == len(pair.base)
    assert len(with_it["tokens"]) == len(pair.base) + 7, "21 inserted tokens are pooled into 7 columns"
    assert sum(token.startswith("|") for token in with_it["tokens"]) == 7
    pattern = head_patterns(model, pair, "base", heads)
    assert np.allclose(without["attention"], pattern.tril().numpy(), atol=6e-4)
    rows = np.array(with_it["attention"]).sum(-1)
    assert np.allclose(rows, 1, atol=2e-2), "pooling keeps every row's sum"
    scales = {(panel["minValue"], panel["maxValue"]) for panel in (without, with_it, difference)}
    assert len(scales) == 1, "one colour scale for all panels"


def test_a_page_asks_nobody_and_no_text_becomes_code(tiny_model_dir: Any, tmp_path: Any) -> None:
    model = loaded(tiny_model_dir("qwen2"), "bridge")
    bad = "</script><script>alert(1)</script>"
    pair = pairs_for(model, count=1)[0]
    hostile = mi.make_pairs(model, [replace(pair.problem, id=bad, question=f"{bad} What is 3 ?")], pair.insertion)[0]
    path = mi.views.attention(model, hostile, [mi.Head(0, 0)]).save(tmp_path / "page.html")
    own = path.read_text(encoding="utf-8")
    script_end = own.index("</script>")  # the end of CircuitsVis' own script
    rest = own[script_end:]
    assert "<script>alert" not in own and "&lt;script&gt;alert(1)" in own[: own.index("<style>")]
    assert rest.count("</script>") == 4, "the library's script and one call for each of three views"
    assert not re.search(r"""(src|href)\s*=\s*["']?https?:""", own)


def test_heads_that_do_not_exist_are_named(tiny_model_dir: Any) -> None:
    model = loaded(tiny_model_dir("qwen2"), "bridge")
    pair = pairs_for(model, count=1)[0]
    with pytest.raises(ValueError, match="no heads to show"):
        mi.views.attention(model, pair, [])
    with pytest.raises(ValueError, match=r"head 99 is out of range \(zero-based\)"):
        mi.views.attention(model, pair, [mi.Head(0, 99)])


def scores() -> PatchScores:
    patched = np.zeros((4, 2, 3))
    patched[:, 1, 2] = [0.5, 0.6, 0.4, 0.5]
    heads = tuple(mi.Head(layer, head) for layer in range(2) for head in range(3))
    return PatchScores(("a", "b", "c", "d"), patched, np.zeros(4), np.ones(4), heads, "nats")


def test_the_head_map_shows_the_fractions_and_names_the_largest(tmp_path: Any) -> None:
    picture = mi.views.head_map(scores(), top=1)
    axes = picture.axes[0]
    grid = axes.images[0].get_array()
    assert grid.shape == (2, 3) and grid[1, 2] == pytest.approx(0.5) and grid[0, 0] == 0
    assert [text.get_text() for text in axes.texts] == ["2"]
    assert axes.get_xlabel() == "head (zero-based)"
    assert picture.save(tmp_path / "map.png").stat().st_size > 1000
    assert picture._repr_png_()[:4] == b"\x89PNG"
    with pytest.raises(ValueError, match="no column 'effects' to draw"):
        mi.views.head_map(scores(), value="effects")
