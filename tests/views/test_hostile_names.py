"""Names from outside are drawn letter by letter in every picture: no formulas, no control characters, no missing glyphs."""

import io
from dataclasses import replace
from typing import Any

import pytest
import small_results as small
from matplotlib.text import Text
from pictures_under_test import PICTURES
from PIL import Image

from mless_interp.views import PUBLIC
from mless_interp.views.draw import drawable, shortened

BAD = "$\\frac{a}{$ \\q_^%#{}~ ﷽ 你好 🦜\n\x1b[31m\x07\u202e $x_" + "long_name$" * 100
SETTINGS = ("model", "insertion", "contrast", "edit", "outcome", "benchmark", "problems", "control")
UNNAMED = {"Circuit", "Comparison", "Comparisons", "ClaimChecks", "Enrichment", "HookComparison", "RunsCompared"}
"""Results whose pictures show no setting."""


def named(result: Any) -> Any:
    object.__setattr__(result, "settings", dict(result.settings) | dict.fromkeys(SETTINGS, BAD))
    return result


def right() -> Any:
    found = small.answered()
    return replace(found, treatments=tuple(f"{name}{BAD}" for name in found.treatments))


def asked() -> Any:
    found = small.studied()
    effects = {f"{name}{BAD}": made for name, made in found.effects.items()}
    return replace(found, insertions=tuple(effects), effects=effects, attention={}, located={})


NAMED = small.RESULTS | {"AccuracyResults": right, "StudyResult": asked}


@pytest.mark.parametrize("name", NAMED)
def test_every_result_draws_itself_and_a_name_is_drawn_as_it_is_written(name: str) -> None:
    """Warnings being errors: letter by letter, on a canvas of a usual size."""
    picture, buffer = named(NAMED[name]()).plot(), io.BytesIO()
    picture.savefig(buffer, format="png", dpi=50, bbox_inches="tight")
    with Image.open(buffer) as drawn:
        assert max(drawn.size) < 3000
    texts = picture.findobj(Text)
    words = [text.get_text() for text in texts]
    assert not [text.get_text() for text in texts if text.get_parse_math() and "$" in text.get_text()]
    assert not [text for text in words if set(text) & set("\x1b\x07\u202e你🦜") or "mathdefault" in text]
    assert name in UNNAMED or any(r"$\frac{a}{$ \q_^%#{}~" in text for text in words)


def test_every_picture_is_under_test() -> None:
    drawn = {name for file, names in PUBLIC.items() if file != "circuitsvis" for name in names}
    assert drawn == {
        small.RESULTS[name]().picture if name in small.RESULTS else name.split(",")[0] for name in PICTURES
    }


def test_what_can_be_drawn_stays_as_it_is() -> None:
    assert drawable("λ − ▌ é $x$\n2") == "λ − ▌ é $x$\n2"
    assert drawable("你\u2028") == r"\u4f60\u2028" and len(drawable("x" * 10_000)) == 160
    assert shortened("x" * 60) == "x" * 60 and len(shortened("x" * 61)) == 60
