"""Names from outside are drawn letter by letter in every picture: no formulas, no control characters, no missing glyphs."""

import io
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pandas as pd
import pytest
from matplotlib.text import Text
from matplotlib.ticker import LogLocator
from PIL import Image
from small_results import (
    activations,
    answered,
    attributed,
    curve,
    decomposed,
    directed,
    doses,
    located,
    mediated,
    patched,
    placed,
    profiled,
    read_apart,
    readable,
    scored,
    sets_found,
    studied,
    traced,
    transferred,
    written,
)

import mless_interp as mi
from mless_interp.views import PUBLIC
from mless_interp.views.plots import drawable, shortened

BAD = "$\\frac{a}{$ \\q_^%#{}~ ﷽ 你好 🦜\n\x1b[31m\x07\u202e $x_" + "long_name$" * 100
SETTINGS = ("model", "insertion", "contrast", "direction", "edit", "outcome", "benchmark", "problems", "control")


def named(result: Any) -> Any:
    object.__setattr__(result, "settings", dict(result.settings) | dict.fromkeys({*SETTINGS} - {"direction"}, BAD))
    return result


def right() -> Any:
    found = answered()
    return named(replace(found, treatments=tuple(f"{name}{BAD}" for name in found.treatments)))


def asked() -> Any:
    found = studied()
    bad = {name: f"{name}{BAD}" for name in found.insertions}
    effects = {bad[name]: made for name, made in found.effects.items()}
    return named(replace(found, insertions=tuple(effects), effects=effects, attention={}, located={}))


PUBLISHED = pd.DataFrame({"treatment": [BAD], "accuracy": [0.5], "source": [BAD]})
BARS = pd.DataFrame({"model": [BAD, "b"], "treatment": [BAD, BAD], "percent": [50.0, 60.0]})
SEEN = mi.Head(0, 13)
PICTURES: dict[str, Callable[[], Any]] = {
    "head_map": lambda: mi.views.head_map(named(located())),
    "head_map of a patch": lambda: mi.views.head_map(named(patched(12))),
    "head_map of scores": lambda: mi.views.head_map(named(scored())),
    "head_map of an attribution": lambda: mi.views.head_map(named(attributed())),
    "forest": lambda: mi.views.forest(named(located())),
    "summary_plot": lambda: mi.views.summary_plot(named(located())),
    "lambda_map": lambda: mi.views.lambda_map(named(decomposed())),
    "profiles": lambda: mi.views.profiles(named(profiled()), [SEEN]),
    "compare_profiles": lambda: mi.views.compare_profiles([(BAD, SEEN, {BAD: profiled()})]),
    "circuit_curve": lambda: mi.views.circuit_curve(named(curve())),
    "dose_response": lambda: mi.views.dose_response(named(doses())),
    "accuracy_bars": lambda: mi.views.accuracy_bars(right(), PUBLISHED),
    "activation_histograms": lambda: mi.views.activation_histograms(named(activations())),
    "bars_and_profiles": lambda: mi.views.bars_and_profiles(BARS, {BAD: profiled()}, SEEN, bars_title=BAD),
    "affine_layers": lambda: mi.views.affine_layers(named(decomposed())),
    "lambda_heads": lambda: mi.views.lambda_heads(named(decomposed())),
    "mediation": lambda: mi.views.mediation(named(mediated())),
    "read_effects": lambda: mi.views.read_effects(named(read_apart())),
    "span_map": lambda: mi.views.span_map(named(readable())),
    "shares": lambda: mi.views.shares(named(decomposed())),
    "direct_bars": lambda: mi.views.direct_bars(named(directed())),
    "path_graph": lambda: mi.views.path_graph(named(traced())),
    "site_map": lambda: mi.views.site_map(named(placed())),
    "token_bars": lambda: mi.views.token_bars(named(written())),
    "set_growth": lambda: mi.views.set_growth(named(sets_found())),
    "transfer_bars": lambda: mi.views.transfer_bars(named(transferred())),
    "study_effects": lambda: mi.views.study_effects(asked()),
}


def checked(picture: Any) -> list[str]:
    """The texts of a picture as it was drawn, warnings being errors: letter by letter, on a canvas of a usual size."""
    buffer = io.BytesIO()
    picture.savefig(buffer, format="png", dpi=50, bbox_inches="tight")
    with Image.open(buffer) as drawn:
        assert max(drawn.size) < 3000
    texts = picture.findobj(Text)
    words = [text.get_text() for text in texts]
    assert not [text.get_text() for text in texts if text.get_parse_math() and "$" in text.get_text()]
    assert not [text for text in words if set(text) & set("\x1b\x07\u202e你🦜") or "mathdefault" in text]
    return words


@pytest.mark.parametrize("name", PICTURES)
def test_a_name_is_drawn_as_it_is_written(name: str) -> None:
    words = checked(PICTURES[name]())
    assert any(r"$\frac{a}{$ \q_^%#{}~" in text for text in words) or name == "circuit_curve"


def test_every_picture_is_under_test() -> None:
    drawn = {name for file, names in PUBLIC.items() if file != "circuitsvis" for name in names}
    assert drawn == {name.split()[0] for name in PICTURES}


def test_what_can_be_drawn_stays_as_it_is() -> None:
    assert drawable("λ − ▌ é $x$\n2") == "λ − ▌ é $x$\n2"
    assert drawable("你\u2028") == r"\u4f60\u2028" and len(drawable("x" * 10_000)) == 160
    assert shortened("x" * 60) == "x" * 60 and len(shortened("x" * 61)) == 60


def test_logarithmic_axes_have_plain_numbers() -> None:
    picture = mi.views.activation_histograms(activations())
    checked(picture)
    axis = picture.axes[0].yaxis
    assert isinstance(axis.get_major_locator(), LogLocator) and axis.get_major_formatter()(0.001, 0) == "0.001"
