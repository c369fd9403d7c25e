"""Tables, rows and sentences of circuits' results: numbers worked out by hand on small results, and what holds of all cells."""

from dataclasses import fields, is_dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from circuits_under_test import by_site
from small_results import circuit, confirmed, directed, located, placed, sets_found, spots, traced, transferred

import mless_interp as mi
from mless_interp.circuits.site_patches import Site
from mless_interp.patching.effect import WHOLE
from mless_interp.statistics import detectable_prevalence

N = 12
P = 2.0**-N
"""All of 12 problems, one test."""


def by_label(table: pd.DataFrame) -> pd.DataFrame:
    return table.set_index("label")


# ------------------------------------------------------------------------------------------------------- effects of cells


@pytest.mark.parametrize("made", [directed, traced, placed, spots, transferred])
def test_every_cell_has_its_own_row_in_each_table(made: Any) -> None:
    found = made()
    table, frame, labels = found.table(), found.to_frame(), list(map(str, found.cells))
    n, cells = found.per_cell.shape
    assert table["label"].tolist() == labels and table["n"].tolist() == (~np.isnan(found.per_cell)).sum(0).tolist()
    np.testing.assert_allclose(table["effect"], np.nanmean(found.per_cell, 0))
    np.testing.assert_allclose(table["median"], np.nanmedian(found.per_cell, 0))
    np.testing.assert_allclose(table["effect_fraction"], np.nanmean(found.per_cell, 0) / found.total_effect.mean())
    np.testing.assert_array_equal(frame["effect"].to_numpy().reshape(n, cells), found.per_cell)
    assert frame["problem"].tolist() == np.repeat(found.problem_ids, cells).tolist()
    assert frame["label"].tolist() == labels * n
    for name in (each.name for each in fields(found.cells[0])) if is_dataclass(found.cells[0]) else ():
        own = [getattr(cell, name) if name == "of_layer" else str(getattr(cell, name)) for cell in found.cells]
        assert table[name].tolist() == own and frame[name].tolist() == own * n
    assert set(map(str, found.found)) == set(table.loc[table["p_corrected"] < found.level, "label"])
    (shown,) = found.shown().tables
    first = shown.frame.columns[0]
    assert first == found.what[0] and shown.frame["median"].abs().is_monotonic_decreasing
    for short in (shown.frame.rename(columns={first: "label"}), found.printed()):
        short = short.rename(columns={short.columns[0]: "label"})
        pd.testing.assert_frame_equal(
            short.set_index("label").astype(float), by_label(table).loc[short["label"], list(short)[1:]].astype(float),
            check_names=False,
        )  # fmt: skip


def test_edges_by_hand() -> None:
    """Sizes 0, 0.4, 0.4, -0.2, 0.3, 0.5 and 0.9 of 1, each a little different from problem to problem."""
    found = traced()
    table = found.table()
    assert table["label"].tolist()[2:4] == ["L0H1 -> L1H0 qkv", "L0H0 -> L1H0 qkv"]
    assert table["k"].tolist() == [0, 12, 12, 12, 12, 12, 12] and table["sense"].tolist() == [1, 1, 1, -1, 1, 1, 1]
    np.testing.assert_allclose(table["median"], [0, 0.4, 0.4, -0.2, 0.3, 0.5, 0.9], atol=1e-12)
    np.testing.assert_allclose(table["share"], [0, 0.4, 0.4, -0.2, 0.3, 0.5, 0.9], atol=0.02)
    assert table["p_corrected"].tolist() == [1.0, *[14 * P] * 6], "seven edges, both senses"
    assert found.printed()["edge"].tolist()[:2] == ["MLP1 -> logits", "L1H0 -> MLP1"]
    assert found.found == found.edges[1:]
    assert "6 of 7 edges carry more than 5 % of it in most problems: MLP1 -> logits 90 %" in found.headline()
    few = replace(found, values=0 * found.values)
    assert few.found == () and "no edge of 7 is shown" in few.headline()
    named = replace(found, settings=found.settings | {"beside": "commas", "named_on_these": 3})
    beside, here = [each for each in named.details() if each not in found.details()]
    assert "commas" in beside and "named on 3 of these" in here
    assert found.together().empty, "k was not traced alone"


def test_ways_of_heads_by_hand() -> None:
    """L0H1 acts by 0.5 through others, L1H0 by 0.4 straight and -0.1 through others."""
    found = directed()
    np.testing.assert_allclose(
        [found.direct.mean(0), found.indirect.mean(0)], [[0, 0.4, 0], [0.5, -0.1, 0]], atol=1e-12
    )
    np.testing.assert_array_equal(found.effect, found.direct + found.indirect)
    label = ["L0H1 direct", "L0H1 indirect", "L1H0 direct", "L1H0 indirect", "L0H0 direct", "L0H0 indirect"]
    assert found.printed()["label"].tolist() == label, "heads by their whole effect, ways together"
    table = by_label(found.table())
    assert table["k"].tolist() == [0, 12, 12, 12, 0, 0] and table.loc["L1H0 indirect", "sense"] == -1


def test_sites_and_places_by_hand() -> None:
    sites = placed()
    assert by_site(sites).shape == (16, 2, 3, 3) and sites.sites == ("resid_pre", "attn_out")
    assert (sites.layers, sites.positions) == ((0, 1, 2), ("0", "-1", "all"))
    np.testing.assert_array_equal(by_site(sites)[:, 1, 2, 0], sites.values[:, 15])
    rows = by_label(sites.table())
    assert rows.loc["Layer 2 resid_pre, token -1", "median"] == pytest.approx(0.9)
    assert rows.loc["Layer 0 attn_out, all tokens", ["median", "sense", "n"]].tolist() == pytest.approx([-0.3, -1, 16])
    assert rows.loc["Layer 1 resid_pre, token 0", "n"] == 15
    where = spots()
    assert where.values.shape == (12, 7) and where.heads == (mi.Head(0, 1),)
    assert by_label(where.table())["k"].tolist() == [0, 12, 12, 12, 12, 0, 12]
    labels = {"span -1": "token -1 of the span", "span all": "all tokens of the span", "position 3": "position 3"}
    assert all(str(Site("mlp_out", 1, at)) == f"Layer 1 mlp_out, {label}" for at, label in labels.items())
    many = replace(sites, cells=sites.cells * 6, values=np.tile(sites.values, 6))
    assert len(many.shown().tables[0].frame) == 100 and "a hundred at most" in many.shown().tables[0].caption


# ------------------------------------------------------------------------------------------------- named heads, and again


def test_numbers_of_located_heads_by_hand() -> None:
    """L0H1 reads 0.6 and 0.5, L1H0 passes on 0.4 and 0.3, L0H0 goes either way, of 1."""
    found = located()
    table = by_label(found.table())
    assert table.index.tolist() == ["L0H1", "L1H0", "L0H0"]
    assert table["kind"].tolist() == ["reader", "mediator", "undecided"]
    medians = ("removed", "added", "knockout", "edge_noise", "mediated_removed", "mediated_added")
    expected = [[0.6, 0.5, 0.6, 0.5, 0, 0], [0.4, 0.3, 0, 0, 0.4, 0.3], [-0.2, -0.1, -0.2, -0.1, 0, 0]]
    np.testing.assert_allclose(table[[f"{name}_median" for name in medians]], expected, atol=1e-9)
    np.testing.assert_allclose(table[["removed_share", "added_share"]].iloc[:2], [[0.6, 0.5], [0.4, 0.3]], atol=0.02)
    for name in ("removed_p", "added_p", "p_either"):
        assert table[name].tolist()[:2] == [12 * P] * 2, "three heads, both sides, both senses"
    assert (table[["removed_k", "added_k"]].iloc[:2] == 12).all(axis=None)
    assert table["sense"].tolist() == ["with", "with", ""] and table["confirmed"].isna().all()
    assert "2 of 3 heads carry more than 5 % of it in most: L0H1 (reader); L1H0 (mediator); not yet" in found.headline()
    assert found.rest() == "Not named: 0 negligible, 1 undecided (L0H0)."
    assert found.printed()["label"].tolist() == ["L0H1", "L1H0"] and "removed_p" in found.printed()
    drawn = found.shown().head_map
    assert drawn is not None and list(drawn.marked or ()) == [True, True, False]
    share = found.quantity("removed_share")
    assert share.p == "p_either"
    assert (
        share.level == pytest.approx(0.04) and share.unit == WHOLE and found.quantity("removed_median").unit == "nats"
    )
    told, power = found.details(), 100 * detectable_prevalence(N, 12, alpha=0.04)
    assert any("p < 0.04 after Holm over 12 tests (heads, sides, senses)." in each for each in told)
    assert any(f"where it acts in {power:.0f} % of all problems" in each for each in told)
    assert "4 problems are too few to name any of 3 heads" in located(1.0, 4).caveats()[0]
    some = replace(found, settings=found.settings | {"screened": ["L0H1"], "n_candidates": 10})
    assert any("of 7 heads that ranked below" in each for each in some.details())
    one_way = {name: each * (name in ("knockout", "mediated_removed")) for name, each in found.values.items()}
    needed = replace(found, values=one_way)
    assert [any("logit_diff" in each for each in made.details()) for made in (needed, found)] == [True, False]


def test_controls_beside_named_heads_by_hand() -> None:
    """Random words do 0.1 where the insertion does 0.6 and 0.4; as much attention elsewhere does 0.1, of the reader alone."""
    found = located()
    table = by_label(found.control_table())
    assert table["effect"].tolist() == pytest.approx([0.6, 0.4])
    assert table["random_effect"].tolist() == pytest.approx([0.1, 0.1]) == table["mful_effect"].tolist()
    assert table["shift_effect"].tolist() == pytest.approx([0.01, 0.01])
    np.testing.assert_allclose(table["matched_mass_effect"], [0.1, np.nan])
    np.testing.assert_allclose(table["random_words_share"], [0.1 / 0.6, 0.1 / 0.4], atol=0.02)
    assert (table["random_words_share_ci_low"] < 0.25).all() and (table["random_words_share_ci_high"] > 1 / 6).all()
    assert table["exceeds_random"].tolist() == [12, 12] == table["exceeds_random_n"].tolist()
    assert table["exceeds_mass_n"].tolist() == [12, 0] and table["exceeds_mass"].iloc[0] == 12
    assert table["p_specific"].isna().all(), "the heads were chosen on these problems"


def test_fresh_problems_are_told_with_the_heads_that_they_confirm() -> None:
    again = confirmed()
    found = replace(located(), confirmation=again)
    assert found.confirmed == {mi.Head(0, 1): "reader", mi.Head(1, 0): "mediator"} == found.sure
    assert [found.confirmed_or_unknown(head) for head in ("L0H1", "L0H0", "L1H1")] == [True, False, None]
    assert "on 10 fresh problems L0H1, L1H0 are confirmed, and specific to this insertion" in found.headline()
    assert again.specific[:2] == (mi.Head(0, 1), mi.Head(1, 0))
    table = by_label(again.table())
    assert table["claimed"].tolist() == ["reader", "mediator", "sufficient only"]
    assert table["exceeds_random"].tolist()[:2] == [10, 10] and table["p_specific"].iloc[0] < 0.04
    assert found.printed()["confirmed"].tolist() == [True, True, False] and len(found.shown().tables) == 3
    untested = replace(again, controls={})
    assert "L0H1, L1H0 are confirmed, specificity not tested" in replace(found, confirmation=untested).headline()
    nothing = replace(untested, values={name: 0 * each for name, each in again.values.items()})
    assert nothing.in_short() == "on 10 fresh problems none is confirmed"


# ------------------------------------------------------------------------------------------------------ the whole circuit


def test_a_circuit_puts_its_parts_together() -> None:
    found = replace(circuit(), sets=sets_found(), transfer=transferred(), sites=placed(12))
    assert list(found.parts()) == ["direct", "edges", "sufficient", "sites", "sets", "transfer"]
    table = found.table()
    assert table["part"].value_counts().to_dict() == {"direct": 3, "edges": 6, "sufficient": 6, "sites": 7}
    edges = by_label(table.query("part == 'edges'"))
    assert edges.loc["MLP1 -> logits", ["k", "n", "p_corrected"]].tolist() == [12, 12, 14 * P]
    frame = found.to_frame()
    assert frame.groupby("part").size().to_dict() == {"direct": 72, "edges": 84, "sufficient": 84, "sites": 216}
    printed = found.printed()
    assert printed["part"].tolist()[:4] == ["edges", "sets", "direct", "transfer"]
    assert printed["part"].iloc[-1] == "sites"
    assert printed["which"].tolist()[:2] == ["MLP1 -> logits", "sufficient: L0H1 L1H0"]
    assert printed["share"].tolist()[1:4] == pytest.approx([0.92, 0.5, 0.9], abs=0.02)
    assert "Left out, writes: its weights are quantised." in found.details()
    assert "L0H1 (given, not located), measured on 12 problems: 6 of 7 edges carry" in found.headline()
    by = replace(found, located=replace(located(), confirmation=confirmed()), heads=(mi.Head(0, 1), mi.Head(0, 0)))
    assert by.caveats()[0] == "Not confirmed on fresh problems: L0H0." and "(given" not in by.headline()
    empty = mi.Circuit((), (), located(0.0))
    assert empty.headline().endswith("no head, no circuit: nothing was measured.") and empty.table().empty
    assert replace(found, edges=replace(found.edges, confidence=0.975)).interval_words == "95 %, edges 97.5 %"
