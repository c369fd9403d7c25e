"""Still pictures: they hold the numbers, mark what is significant, tell things apart without colour, and leave no traces."""

from dataclasses import replace
from typing import Any

import matplotlib
import numpy as np
import pandas as pd
import pytest
from small_results import (
    activations,
    answered,
    attributed,
    checked,
    decomposed,
    doses,
    located,
    mediated,
    patched,
    read_apart,
    scored,
)

import mless_interp as mi
from mless_interp.runtime.results import turned


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


def test_the_head_map_shows_the_fractions_and_names_the_largest(tmp_path: Any) -> None:
    picture = mi.views.head_map(patched(12), top=1)
    axes = picture.axes[0]
    grid, norm = grid_of(axes), axes.images[0].norm
    assert grid.shape == (2, 3) and grid[1, 2] == pytest.approx(0.5) and grid[0, 0] == 0
    assert norm.vmin == -norm.vmax == pytest.approx(-0.5), "0 in the middle of the colours"
    assert [text.get_text() for text in axes.texts] == ["2"]
    assert axes.get_xlabel() == "head (zero-based)"
    assert picture.save(tmp_path / "map.png").read_bytes()[:4] == picture._repr_png_()[:4] == b"\x89PNG"
    with pytest.raises(ValueError, match="no column 'effects' here"):
        mi.views.head_map(patched(), value="effects")


def test_named_heads_are_framed_with_their_kind_and_what_was_not_tested_is_grey() -> None:
    picture = mi.views.head_map(located(), top=0)
    axes = picture.axes[0]
    assert [(p.get_x(), p.get_y()) for p in axes.patches if not p.get_hatch()] == [(0.55, -0.45), (-0.45, 0.55)]
    assert sorted(text.get_text() for text in axes.texts) == ["0M", "1R"]
    assert strokes(axes) == {(0, 1), (1, 0)}, "those that pass on a side"
    assert np.isnan(grid_of(axes)[1, 1])
    passed = "p < 0.04, corrected: > 5 % in most problems"
    assert words_of(picture) == [passed, "R: reader", "M: mediator", "undefined or not tested"]


@pytest.mark.parametrize(
    ("value", "lowest", "label"),
    [("span_mass", 0.0, "span mass (share)"), ("collapse_relative", -0.3, "collapse relative (share)")],
)
def test_colours_begin_at_0_or_have_it_in_the_middle_as_the_metric_says(value: str, lowest: float, label: str) -> None:
    axes = mi.views.head_map(scored(), value=value).axes
    norm = axes[0].images[0].norm
    assert norm.vmin == pytest.approx(lowest) and norm.vmax > 0
    assert axes[1].get_ylabel() == label


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


def test_results_of_other_heads_are_drawn_too_and_those_without_heads_are_refused() -> None:
    axes = mi.views.head_map(attributed()).axes
    assert axes[1].get_ylabel() == "estimate (nats)" and axes[0].images[0].norm.vmin < 0
    assert grid_of(mi.views.head_map(doses()).axes[0]).shape == (1, 4)
    for draw in (mi.views.head_map, mi.views.forest):
        with pytest.raises(ValueError, match="a picture of heads needs a row per head; this table has claim, measured"):
            draw(checked())


def test_the_forest_has_a_row_per_head_in_both_countings_with_every_measure_s_interval() -> None:
    picture = mi.views.forest(located())
    axes = picture.axes[0]
    rows = [text.get_text() for text in axes.get_yticklabels()]
    assert rows[:2] == ["L0H1 (paper: layer 1, head 2)\nreader", "L1H0 (paper: layer 2, head 1)\nmediator"]
    assert len(axes.containers) == 5
    points, ends = points_of(axes.containers[0])
    assert points.tolist() == pytest.approx([0.6, 0.4, -0.2])
    limits = located().table()[["removed_median_ci_low", "removed_median_ci_high"]]
    assert ends == pytest.approx(limits.to_numpy()) and ends[0][0] < 0.6 < ends[0][1]
    smallest = [line.get_xdata()[0] for line in axes.lines if line.get_linestyle() == "--"]
    delta = located().judged.effect.delta
    assert sorted(smallest) == pytest.approx([-delta, delta]) and 0.05 < delta < 0.06
    markers = {(c.lines[0].get_marker(), c.lines[0].get_markerfacecolor()) for c in axes.containers}
    assert len(markers) == 5, "told apart without colour"
    assert words_of(picture).count("smallest effect of interest, 0.0561") == 1


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


def test_a_forest_of_chosen_heads_and_of_other_results() -> None:
    picture = mi.views.forest(patched(12), heads=[mi.Head(1, 2), mi.Head(0, 0)])
    assert [text.get_text()[:4] for text in picture.axes[0].get_yticklabels()] == ["L1H2", "L0H0"]
    assert picture.axes[0].get_xlabel() == "share (1: the whole effect)"
    with pytest.raises(ValueError, match=r"no head \(zero-based\) .L5H0. here"):
        mi.views.forest(patched(), heads=[mi.Head(5, 0)])


@pytest.mark.parametrize("value", ["median", "share", "prevalence"])
def test_every_column_has_its_own_interval(value: str) -> None:
    found = patched(12)
    points, (ends,) = points_of(mi.views.forest(found, heads=[mi.Head(1, 2)], value=value).axes[0].containers[0])
    row = turned(found, found.table()).set_index("label").loc["L1H2"]
    assert ends == pytest.approx([row[f"{value}_ci_low"], row[f"{value}_ci_high"]])
    assert ends[0] <= points[0] <= ends[1]


def test_bars_are_percent_with_intervals() -> None:
    axes = mi.views.accuracy_bars(answered()).axes[0]
    bars = [p for p in axes.patches if p.get_hatch() is not None or p.get_height() > 0]
    assert bars[0].get_height() == pytest.approx(72.0) and bars[1].get_hatch() != bars[0].get_hatch()
    assert [text.get_text() for text in axes.get_xticklabels()] == ["none", "Mless", "Mful"]
    assert [text.get_text() for text in axes.texts][2].startswith("undefined") and "%" in axes.get_ylabel()


def test_bars_of_several_models_are_alike_by_treatment() -> None:
    bars = pd.DataFrame({"model": list("bbaa"), "treatment": ["none", "mless"] * 2, "percent": [64.0, 66, 73, 76]})
    bars = bars.assign(low=[np.nan, np.nan, 70, 70], high=[np.nan, np.nan, 80, 80], n=[np.nan, np.nan, 50, 50])
    axes = mi.views.bars_of_models(bars, "printed").axes[0]
    assert [bar.get_height() for bar in axes.patches] == [64.0, 66.0, 73.0, 76.0]
    first, second, third, _ = (bar.get_hatch() for bar in axes.patches)
    assert first == third != second
    assert [text.get_text() for text in axes.get_xticklabels()][:2] == ["none\nb", "mless\nb"]
    assert [text.get_text() for text in axes.texts][1:3] == ["66.0 %", "73.0 %\nn = 50"]


def test_histograms_are_densities_and_their_difference_adds_up_to_0() -> None:
    above, below = mi.views.activation_histograms(activations()).axes
    density, edges, _ = above.patches[0].get_data()
    assert np.allclose(density, np.array([100, 50, 10]) / 160 / np.array([0.3, 0.3, 0.6]))
    change, edges, _ = below.patches[0].get_data()
    assert (change * np.diff(edges)).sum() == pytest.approx(0) and change[1] == pytest.approx(30 / 160 / 0.3)
    assert "MLP of layer 0 (paper: layer 1)" in above.get_title()
    with pytest.raises(ValueError, match="no contrast 'shift' here; there are "):
        mi.views.activation_histograms(activations(), contrast="shift")


def test_effects_that_are_sure_are_filled() -> None:
    last = mi.views.mediation(mediated(9)).axes[5]
    table = mediated(9).table().query("reading == 'outcome'").set_index("effect").loc[["bias", "both", "total"]]
    (sure,) = [line for line in last.lines if line.get_zorder() == 5]
    assert sorted(sure.get_xdata()) == pytest.approx(sorted(table["mean"]))
    assert (table["p_corrected"] < 0.05).all() and last.get_title() == "answer_logprob (nats)"


def test_edits_of_a_read_are_marked_by_what_is_shown_of_them() -> None:
    found = read_apart()
    picture = mi.views.read_effects(found)
    table = found.table()
    for axes, label in zip(picture.axes, ("L0H1", "L1H2"), strict=True):
        here = table[table["label"] == label]
        drawn = {line.get_marker(): sorted(line.get_xdata()) for line in axes.lines if line.get_zorder() == 5}
        for shown, marker in {"more": "o", "less": "s", "against": "v"}.items():
            assert drawn[marker] == pytest.approx(sorted(here.loc[here["shown"] == shown, "share"]))
        assert axes.get_title() == f"{label} (paper: {here['paper_label'].iloc[0]})"
        size = abs(float(found.whole.median.estimate))
        assert axes.patches[0].get_width() == pytest.approx(2 * found.whole.delta / size), "the smallest effect"
    assert words_of(picture) == ["more, in most problems", "less, in most problems", "smallest effect of interest"]
    assert picture.axes[0].get_xlabel() == "removed (1: the whole effect)"

    few = read_apart(n=3)  # no total effect is established: in the outcome's unit
    few.values[:, 1, 3] = np.nan
    picture = mi.views.read_effects(few)
    assert picture.axes[0].get_xlabel() == "removed (nats)" and words_of(picture) == ["neither is shown"]


def test_doses_are_drawn_with_the_line_of_slope_1_and_each_head() -> None:
    found = doses(slope=1.0)
    left, middle, right = mi.views.dose_response(found).axes
    drawn = {line.get_label(): line.get_ydata() for line in left.lines}
    table = found.reading_table("held")
    assert drawn["slope 1"] == pytest.approx(table["slope_1"].to_numpy())
    assert drawn["4 heads"] == pytest.approx(table["L0H0"].to_numpy())
    assert drawn["mean: slope 1.000 [1.000, 1.000]"] == pytest.approx(table["mean"].to_numpy())
    assert "mean: slope 1.100 [1.100, 1.100]" in {line.get_label() for line in middle.lines}
    assert right.lines[0].get_ydata() == pytest.approx(found.outcome_table()["total"].to_numpy())


def test_drawing_touches_nothing_global() -> None:
    from matplotlib import _pylab_helpers

    before = dict(matplotlib.rcParams)
    mi.views.head_map(patched())._repr_png_()
    mi.views.accuracy_bars(answered())._repr_png_()
    assert dict(matplotlib.rcParams) == before and not _pylab_helpers.Gcf.figs
