"""Still pictures: they hold the numbers, mark what is significant, tell things apart without colour, and leave no traces."""

from types import SimpleNamespace
from typing import Any

import matplotlib
import numpy as np
import pandas as pd
import pytest
from models_under_test import loaded, pairs_for

import mless_interp as mi
from mless_interp.patching.scores import PatchScores
from mless_interp.views.pooling import head_patterns


def scores(n_problems: int = 4) -> PatchScores:
    patched = np.zeros((n_problems, 2, 3))
    patched[:, 1, 2] = np.linspace(0.4, 0.6, n_problems)
    heads = tuple(mi.Head(layer, head) for layer in range(2) for head in range(3))
    ids = tuple(f"p{i}" for i in range(n_problems))
    settings = {"model": "tiny", "edit": "z"}
    return PatchScores(ids, patched, np.zeros(n_problems), np.ones(n_problems), heads, "nats", settings)


def located(scale: float = 1.0) -> Any:
    """What a map and a forest read of `LocatedHeads`: a reader, a mediator and a head that is neither."""
    heads = [mi.Head(0, 1), mi.Head(1, 0), mi.Head(0, 0)]
    table = pd.DataFrame(
        {
            "layer": [h.layer for h in heads],
            "head": [h.head for h in heads],
            "kind": ["reader", "mediator", "neither"],
            "p_reader": [0.01, 0.9, 0.02],
            "p_mediator": [1.0, 0.03, 1.0],
            "knockout_fraction": np.array([0.6, 0.0, -0.1]) * scale,
        }
    )
    for name, values in {
        "knockout": [0.6, 0.0, -0.1],
        "edge_noise": [0.5, 0.0, -0.05],
        "mediated_removed": [0.0, 0.4, 0.0],
        "mediated_added": [0.0, 0.3, 0.0],
        "random": [0.1, 0.05, np.nan],
    }.items():
        table[f"{name}_effect"] = np.array(values) * scale
        table[f"{name}_effect_ci_low"] = table[f"{name}_effect"] - 0.05
        table[f"{name}_effect_ci_high"] = table[f"{name}_effect"] + 0.1
    return SimpleNamespace(
        summary=lambda: table,
        settings={"model": "tiny", "insertion": "Mless ' /' x55", "smallest_effect": 0.05},
        established=True,
        total_interval=SimpleNamespace(estimate=1.0),
        unit="nats",
    )


def words_of(picture: Any) -> list[str]:
    return [text.get_text() for legend in picture.legends for text in legend.get_texts()]


# ------------------------------------------------------------------------------------------------------------ head maps


def test_the_head_map_shows_the_fractions_and_names_the_largest(tmp_path: Any) -> None:
    picture = mi.views.head_map(scores(), top=1)
    axes = picture.axes[0]
    image = axes.images[0]
    grid = image.get_array()
    assert grid.shape == (2, 3) and grid[1, 2] == pytest.approx(0.5) and grid[0, 0] == 0
    assert image.norm.vmin == -image.norm.vmax == pytest.approx(-0.5), "0 in the middle of the colours"
    assert [text.get_text() for text in axes.texts] == ["2"]
    assert axes.get_xlabel() == "head (zero-based)"
    assert picture.save(tmp_path / "map.png").stat().st_size > 1000
    assert picture._repr_png_()[:4] == b"\x89PNG"
    with pytest.raises(ValueError, match="no column 'effects' to draw"):
        mi.views.head_map(scores(), value="effects")


def test_both_ways_of_counting_are_on_the_axes() -> None:
    axes = mi.views.head_map(scores()).axes[0]
    above, right = axes.child_axes
    assert [int(x) for x in axes.get_xticks()] == [0, 1, 2] and [int(x) for x in above.get_xticks()] == [1, 2, 3]
    assert [int(y) for y in axes.get_yticks()] == [0, 1] and [int(y) for y in right.get_yticks()] == [1, 2]
    assert "paper" in above.get_xlabel()


def test_strokes_mark_heads_below_the_corrected_level_and_no_others() -> None:
    few, many = (mi.views.head_map(scores(n)) for n in (4, 12))
    assert not [patch for patch in few.axes[0].patches if patch.get_hatch()], "4 problems cannot reach 0.05: 2^-3"
    (stroked,) = [patch for patch in many.axes[0].patches if patch.get_hatch()]
    assert (stroked.get_x(), stroked.get_y()) == (1.5, 0.5), "layer 1, head 2"
    assert words_of(many) == ["corrected p < 0.05 (max-T over 6 heads)"] and words_of(few) == []


def test_named_heads_are_framed_with_their_kind_and_what_was_not_tested_is_grey() -> None:
    picture = mi.views.head_map(located(), top=0)
    axes = picture.axes[0]
    frames = {p.get_linestyle(): (p.get_x(), p.get_y()) for p in axes.patches if not p.get_hatch()}
    assert frames == {"-": (0.55, -0.45), "--": (-0.45, 0.55)}
    assert sorted(text.get_text() for text in axes.texts) == ["0M", "1R"]
    strokes = {(p.get_x(), p.get_y()) for p in axes.patches if p.get_hatch()}
    assert strokes == {(0.5, -0.5), (-0.5, 0.5), (-0.5, -0.5)}, "significant, named or not"
    assert np.isnan(np.ma.filled(axes.images[0].get_array().astype(float), np.nan)[1, 1])
    assert words_of(picture)[1:] == ["R: reader", "M: mediator", "negative", "undefined or not tested"]


def test_negative_cells_carry_a_minus_that_grey_print_shows() -> None:
    table = pd.DataFrame({"layer": [0, 0, 1, 1], "head": [0, 1, 0, 1], "effect": [1.0, -0.9, -0.05, np.nan]})
    picture = mi.views.head_map(SimpleNamespace(summary=lambda: table), value="effect")
    minus = [line for line in picture.axes[0].lines if line.get_marker() == "_"]
    assert [round(float(line.get_xdata()[0])) for line in minus] == [1], "the one that is clearly below 0"
    assert [int(line.get_ydata()[0]) for line in minus] == [0]
    assert "negative" in words_of(picture)


def test_numbers_without_a_sign_get_a_scale_from_0() -> None:
    table = pd.DataFrame({"layer": [0, 0], "head": [0, 1], "span_mass": [0.2, 0.4]})
    image = mi.views.head_map(SimpleNamespace(summary=lambda: table), value="span_mass").axes[0].images[0]
    assert (image.norm.vmin, image.norm.vmax) == (0.0, 0.4)


def test_a_map_of_a_model_s_scores_and_lambda_can_be_drawn(tiny_model_dir: Any) -> None:
    model = loaded(tiny_model_dir("qwen2"), "bridge")
    pairs = pairs_for(model)
    found = mi.score_heads(model, pairs, progress=False)
    assert mi.views.head_map(found).axes[0].images[0].get_array().shape == (3, 8)
    table = pd.DataFrame(
        {"layer": [0, 0], "head": [0, 1], "lam": [0.7, 0.9], "lam_null": [0.5, 0.95], "lam_p": [0.01, 0.2]}
    )
    picture = mi.views.lambda_map(SimpleNamespace(summary=lambda: table, settings={}))
    maps = [axes for axes in picture.axes if axes.images]
    assert maps[0].images[0].norm.vmax == 1.0
    assert np.allclose(maps[1].images[0].get_array(), [[0.2, -0.05]])
    assert [p.get_x() for p in maps[1].patches if p.get_hatch()] == [-0.5]
    wide = pd.DataFrame({"layer": 0, "head": range(28), "lam": 0.7, "lam_null": 0.5})
    for many, places in ((table, {0.0}), (wide, {0.0, 1.0})):
        drawn = mi.views.lambda_map(SimpleNamespace(summary=lambda many=many: many, settings={}))
        rows = {float(axes.get_subplotspec().rowspan.start) for axes in drawn.axes if axes.images}
        assert rows == places, "wide maps stand one below the other"
    with pytest.raises(ValueError, match="no column 'lam' to draw"):
        mi.views.lambda_map(SimpleNamespace(summary=lambda: table.drop(columns="lam"), settings={}))


# -------------------------------------------------------------------------------------------------------------- forests


def test_the_forest_has_a_row_per_head_in_both_countings_with_every_measure_s_interval() -> None:
    picture = mi.views.forest(located())
    axes = picture.axes[0]
    rows = [text.get_text() for text in axes.get_yticklabels()]
    assert rows[:2] == ["L0H1 (paper: layer 1, head 2)\nreader", "L1H0 (paper: layer 2, head 1)\nmediator"]
    assert len(axes.containers) == 5
    points, _, (bars,) = axes.containers[0].lines
    assert points.get_xdata().tolist() == pytest.approx([0.6, 0.0, -0.1])
    ends = [segment[:, 0].tolist() for segment in bars.get_segments()]
    assert ends[0] == pytest.approx([0.55, 0.7])
    smallest = [line.get_xdata()[0] for line in axes.lines if line.get_linestyle() == "--"]
    assert sorted(smallest) == pytest.approx([-0.05, 0.05])
    markers = {(c.lines[0].get_marker(), c.lines[0].get_markerfacecolor()) for c in axes.containers}
    assert len(markers) == 5, "told apart without colour"
    assert words_of(picture).count("smallest effect of interest, 0.05") == 1
    picture.canvas.draw()
    (legend,) = picture.legends
    below = legend.get_window_extent()
    assert not [words for words in picture.texts if words.get_window_extent().overlaps(below)]


def test_a_forest_of_chosen_heads_and_of_other_results() -> None:
    picture = mi.views.forest(scores(), heads=[mi.Head(1, 2), mi.Head(0, 0)])
    assert [text.get_text()[:4] for text in picture.axes[0].get_yticklabels()] == ["L1H2", "L0H0"]
    assert picture.axes[0].get_xlabel() == "effect fraction (1: everything)"
    with pytest.raises(ValueError, match=r"L5H0 \(zero-based\) not in this result, which has 6 heads"):
        mi.views.forest(scores(), heads=[mi.Head(5, 0)])


# ------------------------------------------------------------------------------------------------------------- patterns


def test_before_and_after_share_one_scale_and_the_difference_is_on_shared_tokens(tiny_model_dir: Any) -> None:
    model = loaded(tiny_model_dir("llama"), "bridge")
    pair = pairs_for(model, count=1)[0]
    heads = [mi.Head(0, 3), mi.Head(2, 1)]
    picture = mi.views.head_patterns(model, pair, heads)
    axes = [a for a in picture.axes if a.images]
    assert len(axes) == 6 and axes[0].get_title().startswith("L0H3 (paper: layer 1, head 4)")
    assert len({(a.images[0].norm.vmin, a.images[0].norm.vmax) for a in axes}) == 1
    before, after = (head_patterns(model, pair, name, heads)[1].double().numpy() for name in ("base", "inserted"))
    shared = pair.shared.numpy()
    drawn = np.ma.filled(axes[5].images[0].get_array(), 0.0)
    assert np.allclose(drawn, np.tril(after[shared][:, shared] - before), atol=1e-6)
    edges = sorted({float(line.get_xdata()[0]) for line in axes[1].lines if line.get_xdata()[0] == line.get_xdata()[1]})
    assert edges == [pair.span[0] - 0.5, pair.span[1] - 0.5], "the inserted tokens are bounded"
    assert not axes[0].lines


# -------------------------------------------------------------------------------------------- accuracy and activations


def accuracy(first: float = 0.72) -> Any:
    table = pd.DataFrame(
        {
            "treatment": ["none", "Mless", "Mful"],
            "accuracy": [first, 0.75, np.nan],
            "low": [first - 0.04, 0.71, np.nan],
            "high": [first + 0.04, 0.79, np.nan],
            "n": [500, 500, 0],
        }
    )
    return SimpleNamespace(summary=lambda: table, settings={"model": "tiny"})


def test_bars_are_percent_with_intervals_and_published_numbers_are_marks() -> None:
    published = pd.DataFrame(
        {"treatment": ["none", "Mless", "ARM"], "percent": [72.4, 75.0, 73.4], "source": ["Table 3a"] * 3}
    )
    axes = mi.views.accuracy_bars(accuracy(), published).axes[0]
    bars = [p for p in axes.patches if p.get_hatch() is not None or p.get_height() > 0]
    assert bars[0].get_height() == pytest.approx(72.0) and bars[1].get_hatch() != bars[0].get_hatch()
    assert [text.get_text() for text in axes.get_xticklabels()] == ["none", "Mless", "Mful", "ARM"]
    assert [text.get_text() for text in axes.texts][2].startswith("undefined")
    marks = next(line for line in axes.lines if line.get_label() == "published: Table 3a")
    assert marks.get_ydata().tolist() == pytest.approx([72.4, 75.0, 73.4])
    assert "%" in axes.get_ylabel()
    plain = mi.views.accuracy_bars(accuracy(), {"none": 0.724}).axes[0]
    (mark,) = [line for line in plain.lines if line.get_label().startswith("published")]
    assert mark.get_ydata().tolist() == pytest.approx([72.4])
    with pytest.raises(ValueError, match="published must map treatments to shares"):
        mi.views.accuracy_bars(accuracy(), published.rename(columns={"percent": "points"}))


def activations(moved: int = 30) -> Any:
    histograms = pd.DataFrame(
        {
            "contrast": "content",
            "token_class": "all",
            "bin_low": [-0.3, 0.0, 0.3],
            "bin_high": [0.0, 0.3, 0.9],
            "before": [100, 50, 10],
            "after": [100 - moved, 50 + moved, 10],
        }
    )
    classes = pd.DataFrame(
        {
            "contrast": "content",
            "token_class": ["all", "digit"],
            "metric": "near_zero_arm",
            "unit": "share",
            "difference": [-0.01, 0.02],
            "ci_low": [-0.02, 0.01],
            "ci_high": [0.005, 0.03],
            "n": [8, 8],
        }
    )
    return SimpleNamespace(histograms=lambda: histograms, by_class=lambda: classes, settings={"model": "tiny"}, layer=0)


def test_histograms_are_densities_and_their_difference_adds_up_to_0() -> None:
    picture = mi.views.activation_histograms(activations())
    above, below, classes = picture.axes
    density, edges, _ = above.patches[0].get_data()
    assert np.allclose(density, np.array([100, 50, 10]) / 160 / np.array([0.3, 0.3, 0.6]))
    change, edges, _ = below.patches[0].get_data()
    assert (change * np.diff(edges)).sum() == pytest.approx(0) and change[1] == pytest.approx(30 / 160 / 0.3)
    assert "MLP of layer 0 (paper: layer 1)" in above.get_title()
    assert [text.get_text() for text in classes.get_yticklabels()] == ["all (n = 8)", "digit (n = 8)"]
    with pytest.raises(ValueError, match="no histogram of contrast 'shift', token class 'all'; there are content/all"):
        mi.views.activation_histograms(activations(), contrast="shift")
    with pytest.raises(ValueError, match="no metric 'gini' by token class"):
        mi.views.activation_histograms(activations(), metric="gini")


def test_an_undefined_curve_says_why_it_is_empty() -> None:
    columns = ("faithfulness", "reversed", "random_low", "random_high", "ci_low", "ci_high")
    table = pd.DataFrame({"n_heads": [0, 1, 6]} | {name: [np.nan] * 3 for name in columns})
    found = SimpleNamespace(summary=lambda: table, ranking=tuple(range(6)), settings={"model": "tiny"})
    assert "the whole effect is not established" in mi.views.circuit_curve(found).axes[0].texts[0].get_text()


# --------------------------------------------------------------------------------------------------------------- traces


def test_drawing_touches_nothing_global() -> None:
    from matplotlib import _pylab_helpers

    before = dict(matplotlib.rcParams)
    mi.views.head_map(scores())._repr_png_()
    mi.views.accuracy_bars(accuracy())._repr_png_()
    assert dict(matplotlib.rcParams) == before and not _pylab_helpers.Gcf.figs
