"""Rows and sentences of circuits' results that `kept_results.txt` does not hold: other cases of the same small results."""

from dataclasses import fields, is_dataclass, replace
from typing import Any

import numpy as np
import pytest
from circuits_under_test import by_site
from small_results import confirmed, directed, located, placed, read_apart, sets_found, spots, traced, transferred

import mless_interp as mi
from mless_interp.circuits.site_patches import Site
from mless_interp.patching.effect import WHOLE
from mless_interp.statistics import detectable_prevalence

N = 12


@pytest.mark.parametrize("made", [directed, traced, placed, spots, transferred])
def test_every_cell_has_its_own_rows(made: Any) -> None:
    found = made()
    table, frame, (shown,) = found.table(), found.to_frame(), found.shown().tables
    n, cells = found.per_cell.shape
    np.testing.assert_array_equal(frame["effect"].to_numpy().reshape(n, cells), found.per_cell)
    assert frame["problem"].tolist() == np.repeat(found.problem_ids, cells).tolist()
    parts = [each.name for each in fields(found.cells[0])] if is_dataclass(found.cells[0]) else []
    for name in ("label", *parts):
        assert frame[name].tolist() == table[name].tolist() * n
    assert list(map(str, found.found)) == table["label"][table["p_corrected"] < found.level].tolist()
    assert shown.frame.iloc[:, 0].is_unique and shown.frame["median"].abs().is_monotonic_decreasing


def test_where_no_edge_is_shown_the_sentence_says_so() -> None:
    few = replace(traced(), values=0 * traced().values)
    assert few.found == () and "no edge of 7 is shown" in few.headline()


def test_ways_of_heads_are_every_second_cell() -> None:
    found = directed()
    means = [found.direct.mean(0), found.indirect.mean(0), found.effect.mean(0)]
    np.testing.assert_allclose(means, [[0, 0.4, 0], [0.5, -0.1, 0], [0.5, 0.3, 0]], atol=1e-12)
    assert len(replace(found, cells=found.cells * 3, values=np.tile(found.values, 3)).printed()) == 16


def test_sites_and_places_by_hand() -> None:
    sites, where = placed(), spots()
    assert by_site(sites).shape == (16, 2, 3, 3) and sites.sites == ("resid_pre", "attn_out")
    beside = replace(where, settings=where.settings | {"beside": "Mless ' ,'", "named_on_these": 3})
    assert [each for each in beside.details() if each not in where.details()] == [
        "Effects are those beside another insertion of as many tokens: Mless ' ,'.",
        "The heads were named on 3 of these problems: whether they act was asked there, how is asked here.",
    ]
    assert (sites.layers, sites.positions, where.heads) == ((0, 1, 2), ("0", "-1", "all"), (mi.Head(0, 1),))
    labels = {"span -1": "token -1 of the span", "span all": "all tokens of the span", "position 3": "position 3"}
    assert all(str(Site("mlp_out", 1, at)) == f"Layer 1 mlp_out, {label}" for at, label in labels.items())
    many = replace(sites, cells=sites.cells * 6, values=np.tile(sites.values, 6))
    assert len(many.shown().tables[0].frame) == 100 and "first, a hundred at most." in many.shown().tables[0].caption


def test_other_cases_of_located_heads_by_hand() -> None:
    """L0H1 reads 0.6 and 0.5, L1H0 passes on 0.4 and 0.3, L0H0 goes either way, of 1."""
    found = located()
    share, median = found.quantity("removed_share"), found.quantity("removed_median")
    assert share.p == median.p == "p_either" and share.level == pytest.approx(0.04)
    assert (share.unit, median.unit) == (WHOLE, "nats") and "> 5 % in most problems" in share.claim
    power = 100 * detectable_prevalence(N, 12, alpha=0.04)
    assert any(f"where it acts in {power:.0f} % of all problems" in each for each in found.details())
    assert "4 problems are too few to name any of 3 heads" in located(1.0, 4).caveats()[0]
    some = replace(found, settings=found.settings | {"screened": ["L0H1"], "n_candidates": 10})
    assert any("7 heads that ranked lower" in each for each in some.details())
    one_way = {name: each * (name in ("knockout", "mediated_removed")) for name, each in found.values.items()}
    needed = replace(found, values=one_way)
    differs = replace(needed, settings=found.settings | {"outcome": "logit_diff"})
    assert [any("saturate" in each for each in made.details()) for made in (needed, found, differs)] == [
        True,
        False,
        False,
    ]


def test_other_headlines_of_located_heads(monkeypatch: pytest.MonkeyPatch) -> None:
    found = located()
    whole, _, named = found.headline().partition("; ")

    def told(values: Any = 1, total: Any = 1, **settings: Any) -> mi.LocatedHeads:
        measures = {name: each * values for name, each in found.values.items()}
        return replace(found, values=measures, total=found.total * total, settings=found.settings | settings)

    assert told(contrast="replaced").headline() == f"{whole} (replaced); {named}"
    assert told(contrast="total").headline() == told(n_fresh=8).headline() == found.headline()
    none, flat = told(0, n_fresh=8), told(0, 0, n_fresh=8)
    unused = ", and the 8 fresh problems were not used."
    assert (
        none.headline()
        == f"{whole}; none of 3 heads is shown to carry more than 5 % of this effect in most problems{unused}"
    )
    assert none.rest() == "Not named: 3 negligible, 0 undecided." and len(none.printed()) == 3 and not none.caveats()
    assert flat.headline().endswith(f"so no head is named{unused}") and flat.rest() == "" and flat.printed().empty
    assert len(flat.details()) == len(none.details()) - 1
    assert (
        "; 1 of 3 heads carries more than 5 % of this effect in most problems: L0H1 (reader); not yet"
        in told([1, 0, 0]).headline()
    )
    both = replace(found, values={name: each[:, [0, 1, 0]] for name, each in found.values.items()})
    assert (
        "; 3 of 3 heads carry more than 5 % of this effect in most problems: L0H1, L0H0 (reader); L1H0 (mediator); "
        in both.headline()
    )
    for most, words in ((1, "1 undecided (L0H0)."), (0, "1 undecided.")):
        monkeypatch.setattr("mless_interp.circuits.located.NAMED_AT_MOST", most)
        assert found.rest() == f"Not named: 0 negligible, {words}"


def test_fresh_problems_are_told_with_the_heads_that_they_confirm() -> None:
    again = replace(confirmed(), reads=read_apart(n=10))
    found = replace(located(), confirmation=again)
    assert again.reads.headline() in again.details() and again.reads.headline() in found.details()
    assert found.confirmed == {mi.Head(0, 1): "reader", mi.Head(1, 0): "mediator"} == found.sure
    assert [found.confirmed_or_unknown(head) for head in ("L0H1", "L0H0", "L1H1")] == [True, False, None]
    assert "on 10 fresh problems L0H1, L1H0 are confirmed, and specific to this insertion" in found.headline()
    assert again.specific == (mi.Head(0, 1), mi.Head(1, 0)) and found.read is again.reads
    assert found.printed()["confirmed"].tolist() == [True, True, False] and len(found.shown().tables) == 4
    untested = replace(again, controls={})
    assert "L0H1, L1H0 are confirmed, specificity not tested" in replace(found, confirmation=untested).headline()
    held = found.table()
    assert held["random_effect"].isna().all() and found.control_table().equals(again.control_table())
    first, none, every = (
        {name: each * acting for name, each in again.values.items()} for acting in ([1, 0, 0], 0, [1, 1, 0])
    )
    every["edge_noise"] = every["edge_noise"] - np.array([0, 0, 0.5])
    nothing = replace(untested, values=none)
    assert nothing.in_short() == "on 10 fresh problems none is confirmed"
    assert nothing.headline().endswith("; confirmed: none; not confirmed: L0H1, L1H0, L0H0.")
    assert replace(untested, values=every).headline().endswith("; confirmed: L0H1, L1H0, L0H0.")
    one = "on 10 fresh problems L0H1 is confirmed, and specific to this insertion"
    assert replace(again, values=first).in_short() == one
    for larger, specific in (([0, 1, 0], "L0H1"), ([1, 1, 0], "none")):
        beside = again.controls | {"random_size_removed": again.controls["random_size_removed"] + np.array(larger)}
        told = replace(again, controls=beside).in_short()
        assert told == f"on 10 fresh problems L0H1, L1H0 are confirmed, {specific} specific to this insertion"
    other = replace(again, total=-again.total)
    assert (
        other.headline().endswith(", in the direction claimed, so no head is confirmed.") and len(other.details()) == 1
    )


def test_a_circuit_puts_its_parts_together() -> None:
    named, left_out = replace(located(), confirmation=confirmed()), {"together": "not asked for", "writes": "quantised"}
    parts: dict[str, Any] = {"direct": directed(), "edges": traced(), "sufficient": traced(), "sites": placed(N)}
    parts |= {"positions": spots(), "sets": sets_found(), "transfer": transferred()}
    found = mi.Circuit((mi.Head(0, 1), mi.Head(0, 0)), traced().problem_ids, named, **parts, left_out=left_out)
    told = [*(part.headline() for part in parts.values()), "Left out, writes: quantised."]
    assert found.details() == told and found.caveats() == ["Not confirmed on fresh problems: L0H0."]
    assert found.headline().startswith("The circuit of L0H1, L0H0, measured on 12 problems: 6 of 7 edges carry")
    assert list(found.parts()) == ["direct", "edges", "sufficient", "sites", "positions", "sets", "transfer"]
    assert found.to_frame().groupby("part").size().to_dict() == {
        "direct": 72, "edges": 84, "sufficient": 84, "sites": 216, "positions": 84
    }  # fmt: skip
    assert found.table().groupby("part").size().to_dict() == {
        "direct": 3, "edges": 6, "sufficient": 6, "sites": 7, "positions": 5
    }  # fmt: skip
    printed = found.printed()
    assert printed["part"].tolist()[:4] == ["edges", "sets", "direct", "transfer"]
    assert printed["part"].tolist()[-7:] == ["sites"] * 7 and printed["which"].iloc[1] == "sufficient: L0H1 L1H0"
    given = replace(found, located=None)
    assert "L0H1, L0H0 (given, not located), measured on 12 problems: 6 of 7 edges" in given.headline()
    assert given.caveats() == []
    empty, why = mi.Circuit((), (), located(0.0)), "no head, no circuit: nothing was measured."
    assert empty.headline() == f"{located(0.0).headline()[:-1]}; {why}" and empty.table().empty
    assert replace(empty, located=None).headline() == why and empty.to_frame().empty
    assert replace(found, edges=replace(found.edges, confidence=0.975)).interval_words == "95 %, edges 97.5 %"
