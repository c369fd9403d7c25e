"""Sets that suffice and sets that are needed: planted truth, by hand, split runs, what is not found, refusals."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from models_under_test import Gated, planted_here, planted_pairs
from small_results import head_set, located

import mless_interp as mi
from mless_interp.circuits.minimal_sets import _Measured, _Way
from mless_interp.core.heads import Head

A, B = Head(0, 2), Head(0, 5)
EITHER: dict[str, Any] = {"readers": (A, B), "mediators": (), "combine": "any"}
BOTH: dict[str, Any] = {"readers": (A, B), "mediators": (), "combine": "all"}
SUM: dict[str, Any] = {"readers": (A, B), "mediators": ()}
QUIET: dict[str, Any] = {"progress": False}


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
    assert min(np.median(each.fresh[:, -1] / each.fresh_total) for each in found.both) > 0.9


@pytest.mark.slow
def test_either_half_is_measured_alike() -> None:
    made, model = planted_here(1, **SUM)
    pairs = planted_pairs(made, model, 12, n_tokens=12)
    found = mi.minimal_sets(model, pairs, n_random_sets=3, **QUIET)
    hand = [Gated(model, pair) for pair in pairs]
    search, fresh = hand[::2], hand[1::2]
    assert found.problem_ids == tuple(pair.id for pair in pairs[::2])
    assert found.sufficient.fresh_ids == tuple(pair.id for pair in pairs[1::2])
    for each in found.both:
        assert each.steps
        for sets, problems, effects in (
            (each.steps, search, each.effects),
            (each.steps, fresh, each.fresh),
            (each.sets, fresh, each.random),
            (each.swaps, fresh, each.swap_fresh),
        ):
            for at, heads in enumerate(sets):
                expected = [_by_hand(one, each.side, heads) for one in problems]
                np.testing.assert_allclose(effects[:, at], expected, atol=2e-5)


def _by_hand(gated: Gated, side: str, heads: tuple[Head, ...]) -> float:
    every, nobody = gated.open(), torch.zeros_like(gated.open())
    gates = (nobody if side == "sufficient" else every).clone()
    for head in heads:
        gates[:, head.layer, head.head] = float(side == "sufficient")
    with torch.no_grad():
        return float(gated(gates) - gated(nobody) if side == "sufficient" else gated(every) - gated(gates))


def test_the_candidates_alone_can_be_in_a_set_and_what_is_not_reached_is_said() -> None:
    found = sought(BOTH, 1, heads=[A, "L0H0", "L1H3"])
    one = found.sufficient
    assert one.heads == () and not one.found and found.confirmed["sufficient"] is False
    assert len(one.steps[-1]) == 3 and one.sets == ()
    row = found.table().set_index("side").loc["sufficient"]
    assert np.isnan(row["share"]) and np.isnan(row["p_corrected"]) and row["heads"] == ""
    assert found.necessary.heads == (A,)


def test_pruning_leaves_out_what_a_later_head_makes_superfluous() -> None:
    """L0H1 does most alone; L1H0 and L1H1 do all without it."""
    a, b, c = Head(0, 1), Head(1, 0), Head(1, 1)
    does = {(a,): 5, (b,): 4, (c,): 4, (a, b): 6, (a, c): 6, (b, c): 9, (a, b, c): 10}

    class Told(_Measured):
        def __init__(self) -> None: ...

        def effects(self, side: str, sets: Any) -> np.ndarray:
            return np.array([[float(does[tuple(sorted(each))]) for each in sets]] * 3)

    way = _Way(direction=1.0, target=8.0, little=0.5)
    steps, chosen = way.found(Told(), "sufficient", (a, b, c), 3)
    assert steps == [(a,), (a, b), (a, b, c), (b, c)] and chosen == (b, c)
    assert way.swaps(Told(), "sufficient", chosen, (a, b, c)) == []


def test_too_few_used_and_bare_problems_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    made, model = planted_here(1, **EITHER)
    pairs = planted_pairs(made, model, 14)
    nobody = replace(located(0.0), total=0 * located().total)
    monkeypatch.setattr(type(model), "_forward", lambda *a, **k: pytest.fail("it ran"))
    for given, options, words in (
        (pairs[:10], {}, "at least 6 problems are needed to find sets, got 5"),
        (pairs[:8], {"fresh": pairs[8:10]}, "at least 6 problems are needed to confirm them, got 2"),
        (pairs[:1], {}, "one half of the problems is kept"),
        (pairs[:8], {"fresh": pairs[6:]}, "are among those"),
        (pairs, {"heads": nobody}, "locating named no head"),
        (pairs, {"heads": ["L0H2", "L0H2"]}, "L0H2"),
        (pairs, {"share": 1.5}, "share is a part of the median effect"),
        (pairs, {"outcome": "kl"}, "needs a signed outcome"),
    ):
        with pytest.raises(ValueError, match=words):
            mi.minimal_sets(model, given, **options, **QUIET)  # type: ignore[arg-type]


def test_a_set_that_just_reaches_its_share_is_not_confirmed() -> None:
    assert head_set().p == pytest.approx(2.0**-12)
    edge = replace(head_set(), fresh=0.8 * head_set().fresh_total[:, None] * np.ones((1, 2)))
    assert int(edge.test.count[0, 0]) == 0  # exactly its share is not more than its share
    other = replace(head_set(), fresh_total=-head_set().fresh_total)
    assert np.isnan(other.p)


def test_problems_without_an_effect_of_their_own_do_not_speak_for_a_set() -> None:
    made = head_set()
    total = made.fresh_total.copy()
    total[:2] = -0.01
    assert int(replace(made, fresh_total=total).test.count[0, 0]) == 10


def test_signs_are_turned_where_the_span_lowers_the_outcome() -> None:
    made = head_set()
    flipped = replace(
        made,
        **{
            name: -getattr(made, name)
            for name in ("effects", "fresh", "total", "fresh_total", "swap_effects", "swap_fresh", "random")
        },
    )
    assert flipped.p == made.p and flipped.p_random == made.p_random
    np.testing.assert_allclose(flipped.table()["fresh_share"], made.table()["fresh_share"])
