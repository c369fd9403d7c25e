"""Pictures of circuits: what is drawn is what the tables say, and is told apart without colour."""

from dataclasses import replace

import numpy as np
import pytest
from matplotlib.patches import FancyArrowPatch
from small_results import directed, placed, spots, traced
from small_results import written as written_tokens

import mless_interp as mi


def arrows(picture: object) -> list[FancyArrowPatch]:
    return [text.arrow_patch for text in picture.axes[0].texts if getattr(text, "arrow_patch", None) is not None]  # type: ignore[attr-defined]


def written(picture: object) -> list[str]:
    return [text.get_text() for text in picture.axes[0].texts if text.get_text()]  # type: ignore[attr-defined]


def test_bars_add_up_to_the_head() -> None:
    found = directed()
    picture = mi.views.direct_bars(found)
    axes = picture.axes[0]
    heights = {bar.get_label(): [patch.get_height() for patch in bar] for bar in axes.containers}
    direct, indirect = (next(v for k, v in heights.items() if k.startswith(way)) for way in ("direct", "indirect"))
    names = [tick.get_text() for tick in axes.get_xticklabels()]
    assert names[0] == "L0H1"  # the largest first
    whole = dict(zip(map(str, found.heads), found.effect.mean(0) / found.total.mean(), strict=True))
    np.testing.assert_allclose(np.add(direct, indirect), [whole[name] for name in names], atol=1e-9)
    hatches = {patch.get_hatch() for bar in axes.containers for patch in bar}
    assert len(hatches) == 2  # the ways, without colour


def test_the_graph_shows_the_edges_that_most_problems_show() -> None:
    found = traced()
    picture = mi.views.path_graph(found)
    drawn = [edge for edge in found.found if edge.part in ("", "qkv")]
    lines = arrows(picture)
    assert len(lines) == len(drawn) == 5
    assert sum(line.get_linestyle() not in ("-", "solid") for line in lines) == 1  # L0H0, against the effect
    widths = sorted(line.get_linewidth() for line in lines)
    assert widths[-1] == pytest.approx(6.0) and widths[0] == pytest.approx(6 * 0.2 / 0.9, rel=1e-3)
    assert {"L0H1", "L1H0", "L0H0", "MLP1", "logits"} <= set(written(picture))
    assert "0.40 v" in written(picture)  # the part by which it enters
    few = replace(found, values=found.values[:2], problem_ids=("a", "b"), total=found.total[:2])
    assert len(arrows(mi.views.path_graph(few, only_found=False))) == 5


def test_the_graph_draws_what_is_claimed_however_skewed() -> None:
    """An effect of -1 in most problems and +90 in one has a positive mean; what is claimed of edges is not of means."""
    total = np.array([-1.0] * 15 + [90.0])
    edges = tuple(map(mi.Edge.parse, ("L0H1 -> MLP1", "L0H0 -> MLP1", "MLP1 -> logits")))
    values = np.array([0.4, -0.2, 0.9]) * np.where(total < 0, total, 90)[:, None]
    found = replace(traced(16), cells=edges, total=total, values=values)
    assert found.established and found.table()["effect_fraction"].isna().all()
    lines, words = arrows(mi.views.path_graph(found)), written(mi.views.path_graph(found))
    against = [line.get_linestyle() not in ("-", "solid") for line in lines]
    assert against == [False, False, True]
    assert {"0.90", "0.40", "-0.20"} <= set(words)


def test_an_edge_that_is_shown_by_one_input_alone_is_drawn() -> None:
    found = traced()
    values = found.values.copy()
    values[:, 2] = 0  # L0H1 -> L1H0: by v, and not by all three together
    names = written(mi.views.path_graph(replace(found, values=values)))
    assert "0.40 v" in names
    by_value = replace(found, cells=found.edges[1:2], values=found.values[:, 1:2])
    assert len(arrows(mi.views.path_graph(by_value))) == 1


def test_a_graph_without_edges_says_so_and_why() -> None:
    """Too few problems, an effect that is not established, edges that do nothing."""

    def said(found: mi.PathEffects, **options: object) -> str:
        picture = mi.views.path_graph(found, **options)
        assert not arrows(picture)
        (legend,) = picture.legends
        return " ".join(" ".join(text.get_text().split()) for text in legend.get_texts())

    found = traced(16)
    nothing = replace(found, values=0 * found.values)
    assert said(nothing).startswith("No edge is shown to do more than 5 % of the effect in most problems")
    assert "against the effect" not in said(nothing), "no key to lines that are not there"
    assert said(traced(8)).startswith("No edge can pass with 8 problems")
    unsure = replace(found, total=np.tile([1.0, -1.0], 8))
    assert "is not established, so no edge is tested" in said(unsure)
    assert said(nothing, only_found=False) == "No edge has a share of 0.01 or more."


def test_a_map_of_sites_has_a_panel_each_and_grey_where_nothing_is() -> None:
    found = placed()
    picture = mi.views.site_map(found)
    panels = [axes for axes in picture.axes if axes.get_title() in found.sites]
    assert [axes.get_title() for axes in panels] == ["resid_pre", "attn_out"]
    drawn = np.asarray(panels[0].images[0].get_array()).astype(float)
    shares = found.table()["share"].to_numpy().reshape(2, 3, 3)
    np.testing.assert_allclose(drawn, shares[0], atol=1e-9)
    assert [tick.get_text() for tick in panels[0].get_xticklabels()] == ["0", "-1", "all"]
    assert "against" not in panels[0].get_xlabel() and panels[0].get_ylabel() == "layer (zero-based)"
    heads = mi.views.site_map(spots())
    assert [tick.get_text() for tick in heads.axes[0].get_yticklabels()] == ["L0H1"]
    with pytest.raises(ValueError, match="no column"):
        mi.views.site_map(found, value="nothing")


def test_tokens_stand_at_their_bars_and_rounding_is_left_out() -> None:
    found = written_tokens()
    picture = mi.views.token_bars(found)
    assert len(picture.axes) == 6
    sigma, _, query = picture.axes[:3]
    assert [tick.get_text() for tick in sigma.get_yticklabels()] == ["' a'", "' c'", "' d'", "' b'"]
    widths = [patch.get_width() for patch in sigma.patches]
    np.testing.assert_allclose(widths, [0.5, 0.1, -0.1, -0.4], atol=1e-9)
    assert len({patch.get_hatch() for patch in sigma.patches}) == 2  # the ends, without colour
    assert [tick.get_text() for tick in query.get_yticklabels()] == ["' /' (inserted)", "' a'"]
    assert not picture.axes[3].patches and "nothing above rounding" in [t.get_text() for t in picture.axes[3].texts]
