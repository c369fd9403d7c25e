"""Still pictures: they hold the numbers, mark what is significant, tell things apart without colour, and leave no traces."""

import base64
import io
import sys
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import matplotlib
import numpy as np
import pandas as pd
import pytest
from pictures_under_test import KEPT, PAGES, PICTURES, drawn
from PIL import Image
from small_results import activations, answered, checked, patched, placed, profiled

import mless_interp as mi
from mless_interp.runtime.base_result import ShownMap
from mless_interp.runtime.columns import TextTable
from mless_interp.views.report import map_of


@pytest.mark.parametrize("name", PICTURES | PAGES)
def test_it_draws_what_it_drew(name: str) -> None:
    """After an intended change: `python tests/pictures_under_test.py`, and read the diff."""
    _, _, kept = KEPT.read_text(encoding="utf-8").partition(f"=== {name}\n")
    assert drawn(name) == f"=== {name}\n" + kept.partition("\n=== ")[0].removesuffix("\n") + "\n"


def test_what_is_asked_for_in_vain_is_named() -> None:
    for draw, message in (
        (lambda: mi.views.head_map(patched(), value="effects"), "no column 'effects' here"),
        (lambda: mi.views.forest(patched(), heads=["L5H0"]), r"no head \(zero-based\) .L5H0. here"),
        (
            lambda: mi.views.activation_histograms(activations(), contrast="shift"),
            "no contrast 'shift' here; there are",
        ),
        (lambda: mi.views.site_map(placed(), value="nothing"), "no column"),
        (lambda: mi.views.head_map(checked()), "needs a row per head; this table has claim, measured"),
        (lambda: TextTable.of(patched().table(), "", columns=["effects"]), "no column 'effects' to show; there are"),
    ):
        with pytest.raises(ValueError, match=message):
            draw()


def test_of_many_heads_a_few_are_drawn_and_the_title_says_so() -> None:
    sizes, made = np.linspace(0.2, 1, 8)[:, None], {"heads": tuple(mi.Head(1, at) for at in range(8))}
    for name, size in (("received", sizes), ("uniform", 0 * sizes + 1)):
        made[name] = {run: tuple(size * each for each in of) for run, of in getattr(profiled(), name).items()}
    found = replace(profiled(), **made)
    picture = mi.views.profiles(found)
    assert picture.get_suptitle() == "6 of 8 heads, the largest ratios to uniform attention; choose with heads="
    assert [axes.get_title()[-4:] for axes in picture.axes[:6]] == [f"L1H{at}" for at in (7, 6, 5, 4, 3, 2)]
    assert len(mi.views.profiles(found, found.heads).axes) == 16


def test_drawing_touches_nothing_global(tmp_path: Any) -> None:
    from matplotlib import _pylab_helpers

    before = dict(matplotlib.rcParams)
    picture = mi.views.head_map(patched())
    with matplotlib.rc_context({"savefig.format": "svg"}):
        assert picture.save(tmp_path / "map.png").read_bytes()[:4] == picture._repr_png_()[:4] == b"\x89PNG"
        (part,) = mi.Report("T", question="Q?").figure(picture, "words").parts
    mi.views.accuracy_bars(answered())._repr_png_()
    assert picture.seen == {"saved"} and mi.views.head_map(patched()).seen == set()
    small, large = (
        Image.open(io.BytesIO(each)).size for each in (picture._repr_png_(), (tmp_path / "map.png").read_bytes())
    )
    assert np.array(large) / small == pytest.approx(150 / 110, rel=0.01)
    assert (part.kind, part.text, part.width) == ("picture", "words", large[0])
    assert Image.open(io.BytesIO(base64.b64decode(part.source))).size == large
    assert dict(matplotlib.rcParams) == before and not _pylab_helpers.Gcf.figs


def test_what_is_made_in_a_notebook_shows_itself_after_its_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    after: list[Any] = []
    shown: list[Any] = []
    register, unregister = (lambda *of: after.append(of)), (lambda *of: after.remove(of))
    events = SimpleNamespace(register=register, unregister=unregister)
    shell = SimpleNamespace(kernel="a notebook's", events=events)
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    monkeypatch.setitem(sys.modules, "IPython.display", SimpleNamespace(display=shown.append))
    for ends_well, seen in ((True, set()), (True, {"saved"}), (False, set())):
        picture = mi.views.head_map(patched())
        picture.seen |= seen
        after[0][1](SimpleNamespace(success=ends_well))
        assert shown.pop(0) is picture if ends_well and not seen else not (shown or after)
    del shell.kernel
    assert mi.views.head_map(patched()) and not after, "in a terminal's IPython it does not"


def test_one_head_far_from_the_others_does_not_pale_them_unless_it_is_named() -> None:
    frame = pd.DataFrame({"layer": np.arange(60) // 30, "head": np.arange(60) % 30, "effect": 0.1})
    frame.loc[7, "effect"] = 0.25
    for marked, expected in ((None, ("0.1", True, "#67001f")), ([False] * 60, ("0.25", False, "#f4a582"))):
        drawn = ShownMap(frame, "effect", ["effect"], marked)
        found = map_of(drawn, known={}, interval="95 %", below="").shown
        assert (found["limit"], found["clipped"], found["squares"][0]["colour"]) == expected
