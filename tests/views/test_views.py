"""Still pictures: they hold the numbers, mark what is significant, tell things apart without colour, and leave no traces."""

from dataclasses import replace
from typing import Any

import matplotlib
import numpy as np
import pytest
from pictures_under_test import KEPT, PAGES, PICTURES, drawn
from small_results import activations, answered, checked, decomposed, located, patched, placed

import mless_interp as mi


def words_of(picture: Any) -> list[str]:
    return [text.get_text() for legend in picture.legends for text in legend.get_texts()]


def grid_of(axes: Any) -> np.ndarray:
    return np.ma.filled(axes.images[0].get_array().astype(float), np.nan)


def strokes(axes: Any) -> set[tuple[float, float]]:
    """(row, column) of cells with strokes."""
    return {(patch.get_y() + 0.5, patch.get_x() + 0.5) for patch in axes.patches if patch.get_hatch()}


def points_of(container: Any) -> tuple[np.ndarray, np.ndarray]:
    """(estimates, limits `[row, 2]`) of one series of a forest."""
    points, _, (bars,) = container.lines
    return points.get_xdata(), np.array([segment[:, 0] for segment in bars.get_segments()])


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
            "no contrast 'shift' here; there are ",
        ),
        (lambda: mi.views.site_map(placed(), value="nothing"), "no column"),
        (lambda: mi.views.head_map(checked()), "needs a row per head; this table has claim, measured"),
        (lambda: mi.views.forest(checked()), "needs a row per head; this table has claim, measured"),
    ):
        with pytest.raises(ValueError, match=message):
            draw()


def test_what_is_drawn_stands_in_the_table() -> None:
    """Colours are the column, strokes the p-values below the level: nothing is computed for the picture."""
    few, many = (mi.views.head_map(patched(n)) for n in (4, 12))
    number = "number alone: the head, of the 3 largest"
    assert words_of(many) == ["p < 0.04, corrected: more than 5 % of the effect in most problems", number]
    assert words_of(few) == [number] and not strokes(few.axes[0]), "4 problems cannot reach 0.05"
    for found, value, p in (
        (patched(12), "recovered", "p_corrected"),
        (located(), "removed_share", "p_either"),
        (decomposed(n=9), "lam", "lam_p"),
        (decomposed(n=9), "lam_minus_uniform", "lam_p"),
    ):
        table = found.table()
        axes = mi.views.head_map(found, value=value).axes[0]
        assert grid_of(axes)[table["layer"], table["head"]] == pytest.approx(table[value].to_numpy(), nan_ok=True)
        below = table[table[p] < found.quantity(value).level]
        assert strokes(axes) == set(zip(below["layer"], below["head"], strict=True)) and 0 < len(below) < len(table)


def test_a_map_and_a_forest_of_one_result_agree_in_sign() -> None:
    """Above 0: part of the effect, also where the insertion lowers the outcome."""
    raises = located()
    lowers = replace(
        raises,
        values={name: -values for name, values in raises.values.items()},
        total=-raises.total,
        patches=replace(raises.patches, patched=-raises.patches.patched, donor=-raises.patches.donor),
    )
    for found in (raises, lowers):
        labels = found.table()["label"]
        drawn = points_of(mi.views.forest(found).axes[0].containers[0])[0]
        shares = grid_of(mi.views.head_map(found).axes[0])
        for head, value in zip(map(mi.Head.parse, labels), drawn, strict=True):
            assert np.sign(shares[head.layer, head.head]) == np.sign(value)
        assert drawn[0] == pytest.approx(0.6)


def test_drawing_touches_nothing_global(tmp_path: Any) -> None:
    from matplotlib import _pylab_helpers

    before = dict(matplotlib.rcParams)
    picture = mi.views.head_map(patched())
    assert picture.save(tmp_path / "map.png").read_bytes()[:4] == picture._repr_png_()[:4] == b"\x89PNG"
    mi.views.accuracy_bars(answered())._repr_png_()
    assert dict(matplotlib.rcParams) == before and not _pylab_helpers.Gcf.figs
