"""Sets that suffice and sets that are needed: planted truth, by hand, split runs, what is not found, refusals."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from models_under_test import QUIET, Gated, planted_here, planted_pairs
from small_results import attributed, located, sets_found

import mless_interp as mi
from mless_interp.circuits.head_sets import _by_gradient, _Measured, _Search, rank_among
from mless_interp.core.heads import Head
from mless_interp.patching.effect import Effect

A, B, C = Head(0, 2), Head(0, 5), Head(1, 3)
EITHER: dict[str, Any] = {"readers": (A, B), "mediators": (), "combine": "any"}
BOTH: dict[str, Any] = {"readers": (A, B), "mediators": (), "combine": "all"}
SUM: dict[str, Any] = {"readers": (A, B), "mediators": ()}


def sought(settings: dict[str, Any], seed: int, n: int = 12, **options: Any) -> mi.MinimalSets:
    made, model = planted_here(seed, **settings)
    return mi.minimal_sets(model, planted_pairs(made, model, n, n_tokens=12), **{**QUIET, **options})


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 6))
@pytest.mark.parametrize("circuit", ["any", "all", "sum"])
def test_the_planted_sets_and_no_others_are_found(circuit: str, seed: int) -> None:
    found = sought({"any": EITHER, "all": BOTH, "sum": SUM}[circuit], seed)
    one, other = found.sufficient, found.necessary
    assert found.confirmed == {"sufficient": True, "necessary": True}
    if circuit == "sum":
        assert set(one.heads) == set(other.heads) == {A, B} and not one.swaps and not other.swaps
        return
    single, pair = (one, other) if circuit == "any" else (other, one)
    assert set(pair.heads) == {A, B} and not pair.swaps
    (head,) = single.heads
    assert single.stand_ins == {head: tuple({A, B} - {head})}
    assert min(np.median(each.own / found.fresh_total) for each in found.both) > 0.9


def by_hand(gated: Gated, side: str, heads: tuple[Head, ...]) -> float:
    every, nobody = gated.open(), torch.zeros_like(gated.open())
    gates = (nobody if side == "sufficient" else every).clone()
    for head in heads:
        gates[:, head.layer, head.head] = float(side == "sufficient")
    with torch.no_grad():
        return float(gated(gates) - gated(nobody) if side == "sufficient" else gated(every) - gated(gates))


def test_either_half_is_measured_as_by_whole_passes() -> None:
    """Of an OR of two readers one head suffices and both are needed; every effect is that of the gates set by hand."""
    made, model = planted_here(1, **EITHER)
    pairs = planted_pairs(made, model, 12, n_tokens=12)
    found = mi.minimal_sets(model, pairs, [C, A, B], n_random_sets=3, **QUIET)
    search, fresh = ([Gated(model, pair) for pair in some] for some in (pairs[:4:2], pairs[1:4:2]))
    assert found.problem_ids == tuple(pair.id for pair in pairs[::2])
    assert found.fresh_ids == tuple(pair.id for pair in pairs[1::2]) and found.settings["n_fresh"] == 6
    assert set(found.candidates) == {A, B, C} and found.candidates[-1] == C
    assert set(found.necessary.heads) == {A, B} and not found.necessary.swaps
    (head,) = found.sufficient.heads
    assert found.sufficient.stand_ins == {head: tuple({A, B} - {head})} and found.confirmed["sufficient"]
    assert len(found.sufficient.sets) == 3 and {len(each) for each in found.sufficient.sets} == {1}
    whole = [by_hand(one, "sufficient", model.info.heads) for one in search]
    np.testing.assert_allclose(found.total[:2], whole, atol=2e-5)
    for each in found.both:
        tried = (each.heads, *each.swaps)
        measured = (tried, search, each.effects), (tried, fresh, each.fresh), (each.sets, fresh, each.random)
        for sets, problems, effects in measured:
            expected = [by_hand(problems[0], each.side, heads) for heads in sets]
            np.testing.assert_allclose(effects[0], expected, atol=2e-5)


def test_the_candidates_alone_can_be_in_a_set_and_what_is_not_reached_is_said() -> None:
    found = sought(BOTH, 1, heads=[A, "L0H0", "L1H3"])
    one = found.sufficient
    assert one.heads == () and found.confirmed["sufficient"] is False and np.isnan(one.own).all()
    assert found.necessary.heads == (A,)


class Told(_Measured):
    """What sets do is given: of each `[problem]`, or the same in all three."""

    def __init__(self, does: dict[tuple[Head, ...], Any]) -> None:
        self.does = does

    def effects(self, side: str, sets: Any) -> np.ndarray:
        found = np.stack([-np.ones(3) * self.does.get(tuple(sorted(each)), 0.0) for each in sets], 1)
        return found * (1 if side == "sufficient" else 2)


def test_a_set_is_grown_pruned_and_its_members_are_swapped() -> None:
    """L0H1 does most alone; L1H0 and L1H1 do all without it; L1H2 does as well as L1H1 beside L1H0. The effect lowers."""
    a, b, c, d = Head(0, 1), Head(1, 0), Head(1, 1), Head(1, 2)
    does = {(a,): 5, (b,): 4, (c,): 4, (d,): 0.4, (a, b): 6, (a, c): 6, (b, c): 9, (a, b, c): 10}
    does |= {(b, d): 8, (c, d): 7.9}
    whole = Effect(np.full(3, -10.0), rounding=0.0)
    way = _Search(Told(does), whole, target=8.0, little=0.5)
    chosen = way.found("sufficient", (a, b, c, d), 4)
    assert chosen == (b, c), "a, then b, then c come, then a goes"
    assert way.swaps("sufficient", chosen, (a, b, c, d)) == ((b, d),)
    assert way.found("sufficient", (a, b, c, d), 2) == (), "no more heads than that"
    assert way.in_doubt((d, c, a, b)) == (a, c, b, d), "0.4 is little on one side, 0.8 not on the other"
    alone = _Search(Told({(b,): 0.1, (a, c): 0.2, (a, b, c): 9}), whole, target=8.0, little=0.5)
    assert alone.found("sufficient", (a, b, c), 4) == (a, b, c), "in order, as no head adds"
    assert alone.in_doubt((c, a, b)) == (c, a, b)
    # two of three problems are one group: the median over problems would be 0, over groups it is 2
    grouped = Effect(np.full(3, -4.0), rounding=0.0, groups=("x", "x", "y"))
    one = _Search(Told({(a,): np.array([0, 0, 4])}), grouped, target=2.0, little=0.5)
    assert one.found("sufficient", (a,), 1) == (a,)


def test_candidates_come_by_the_largest_median_of_any_estimate() -> None:
    scores = np.array([[[0.1, -0.5, 0.2]], [[0.1, -0.5, 0.2]], [[9.0, -0.5, 0.2]]])
    heads = tuple(Head(0, at) for at in range(3))
    made = replace(attributed(3), scores=scores, knockout=None, edge_noise=None)
    assert _by_gradient(made, heads) == (heads[1], heads[2], heads[0])
    noise = np.zeros_like(scores) + np.array([0.0, 0.0, -0.6])
    assert _by_gradient(replace(made, edge_noise=noise), heads) == (heads[2], heads[1], heads[0])


def test_too_few_used_and_bare_problems_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    made, model = planted_here(1, **EITHER)
    pairs = planted_pairs(made, model, 14)
    nobody = replace(located(0.0), total=0 * located().total)
    monkeypatch.setattr(type(model), "_forward", lambda *a, **k: pytest.fail("it ran"))
    for given, options, words in (
        (pairs[:10], {}, "at least 6 problems .or groups. are needed to find sets, got 5"),
        (pairs[:8], {"fresh": pairs[8:10]}, "at least 6 problems .or groups. are needed to confirm them, got 2"),
        (pairs[:8], {"fresh": pairs[6:]}, "are among those"),
        (pairs, {"heads": nobody}, "locating named no head"),
        (pairs, {"heads": ["L0H2", "L0H2"]}, "L0H2"),
        (pairs, {"share": 1.5}, "share is a part of the median effect"),
        (pairs, {"outcome": "kl"}, "needs a signed outcome"),
    ):
        with pytest.raises(ValueError, match=words):
            mi.minimal_sets(model, given, **options, **QUIET)  # type: ignore[arg-type]


def test_numbers_of_sets_by_hand() -> None:
    """L0H1 and L1H0 bring 0.95 of the effect, 0.92 on 12 fresh problems; random sets 0.85, 0.1 and 0."""
    found = sets_found()
    np.testing.assert_allclose(found.table()[["share", "fresh_share"]], [[0.95, 0.92], [np.nan] * 2])
    kinds = found.to_frame().groupby(["half", "set"])["effect"].median()
    np.testing.assert_allclose(kinds[[("search", "swap"), ("fresh", "swap")]], [0.9, 0.85])
    better = replace(found.sufficient, random=found.sufficient.random + np.array([0.0, 1.0, 0.0]))
    assert replace(found, sufficient=better).table()["p_random"][0] == 2 / 4


def test_a_set_that_just_reaches_its_share_is_not_confirmed() -> None:
    found = sets_found()
    just = replace(found.sufficient, fresh=0.8 * found.fresh_total[:, None] * np.ones(2))
    edge = replace(found, sufficient=just)
    assert edge.table()["k"][0] == 0 and not edge.confirmed["sufficient"]
    without = np.where(np.arange(12) < 2, -0.01, found.fresh_total)  # problems without an effect of their own
    assert replace(found, fresh_total=without).table()["k"][0] == 10
    other = replace(found, fresh_total=-found.fresh_total)
    assert np.isnan(other.p).all() and other.table()["fresh_share"].isna().all()


def test_small_parts_of_sets_by_hand() -> None:
    whole = Effect(-np.ones(4), rounding=0.01)
    random = -np.array([0.5, 0.495, 0.4, 0.6]) * np.ones((4, 1))
    assert rank_among(whole, -0.5 * np.ones(4), random) == 4 / 5, "as large, up to rounding"
    assert np.isnan(rank_among(whole, -np.ones(4), np.zeros((4, 0))))
