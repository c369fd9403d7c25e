"""Verdicts from measures by hand: every kind, both senses, ties, undefined values, Holm's families, claims, skewed nulls."""

from itertools import product
from typing import Any

import numpy as np
import pytest
from scipy import stats

from mless_interp.circuits.judge import MEASURES, Claims, Judged, judge
from mless_interp.core.heads import Head

N = 16
HEAD = (Head(1, 0),)
HALF = np.where(np.arange(N) % 2, 0.3, 0.0)


def values(n: int = N, **columns: Any) -> dict[str, np.ndarray]:
    """One head's measures; those not given are 0."""
    return {name: (np.zeros(n) + np.asarray(columns.get(name, 0.0)))[:, None] for name in MEASURES}


def several(*heads: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Heads side by side."""
    return {name: np.concatenate([one[name] for one in heads], 1) for name in MEASURES}


def judged(made: dict[str, np.ndarray], heads: Any = HEAD, total: Any = 1.0, **options: Any) -> Judged:
    n = len(made["knockout"])
    return judge(made, np.zeros(n) + total, heads, **options)


BY_HAND: list[tuple[str, str, dict[str, Any]]] = [
    ("reader", "both", {"knockout": 0.3, "edge_noise": 0.3}),
    ("conditional reader", "both", {"knockout": 0.3, "mediated_added": 0.3}),
    ("mediator", "both", {"mediated_removed": 0.3, "mediated_added": 0.3}),
    ("reader+mediator", "both", dict.fromkeys(MEASURES, 0.3)),
    ("carrier", "both", dict.fromkeys(MEASURES, 0.03)),  # each part is less than 0.05, both together are more
    ("carrier", "both", {"mediated_removed": 0.3, "edge_noise": 0.3}),
    ("necessary reader", "removed", {"knockout": 0.3}),
    ("necessary mediator", "removed", {"mediated_removed": 0.3}),
    ("necessary only", "removed", {"knockout": 0.03, "mediated_removed": 0.03}),
    ("redundant reader", "added", {"edge_noise": 0.3}),
    ("redundant mediator", "added", {"mediated_added": 0.3}),
    ("sufficient only", "added", {"edge_noise": 0.03, "mediated_added": 0.03}),
    ("negligible", "", {"knockout": 0.04, "edge_noise": -0.04}),
    ("undecided", "", {"knockout": HALF, "edge_noise": HALF}),
    ("undecided", "", {"knockout": 0.3, "edge_noise": -0.3}),  # each way
]


@pytest.mark.parametrize(("kind", "side", "columns"), BY_HAND)
def test_every_kind_by_hand(kind: str, side: str, columns: dict[str, Any]) -> None:
    """With an effect that raises or lowers the outcome, and against it."""
    for total, sign in product((1.0, -1.0), (1, -1)):
        found = judged(values(**{name: sign * np.asarray(column) for name, column in columns.items()}), total=total)
        assert found.kinds == (kind,) and found.side.tolist() == [side] and found.effect.direction == total
        assert found.sense.tolist() == [sign * total if side else 0] and found.named.tolist() == [bool(side)]
        assert found.found.heads == (HEAD if side else ())
        # heads against the effect are not knocked out with those that carry it
        assert found.found.together.tolist() == [each and sign * total > 0 for each in found.found.reads]


def test_the_direction_and_the_smallest_effect_follow_the_median() -> None:
    """One problem carries the mean; most problems are told by."""
    total = np.r_[np.ones(N - 1), -100.0]
    found = judged(values(knockout=0.3, edge_noise=0.3), total=total)
    assert total.mean() < 0 and found.effect.direction == 1 and found.effect.delta == pytest.approx(0.05)
    assert found.effect.p == pytest.approx(2 * stats.binom.sf(N - 2, N, 0.5)) and found.kinds == ("reader",)


def test_ties_with_the_smallest_effect_do_not_count() -> None:
    """delta is 0.25, exactly: 0.25 is no more than that, and no less."""
    column = np.where(np.arange(N) < 4, 0.25, 0.5)
    test = judged(values(knockout=column), smallest_effect=0.25).sides["removed"]
    assert test.delta == 0.25 and test.count[:, 0].tolist() == [12, 0]
    assert judged(values(knockout=np.full(N, 0.25)), smallest_effect=0.25).kinds == ("undecided",)
    assert judged(values(knockout=np.full(N, 0.2499)), smallest_effect=0.25).kinds == ("negligible",)


def test_problems_where_a_measure_is_undefined_leave_its_n() -> None:
    column = np.where(np.arange(N) < 2, np.nan, 0.3)
    found = judged(values(knockout=column, edge_noise=0.3))
    removed, added = found.sides["removed"], found.sides["added"]
    in_holms_second_step = 3 * 2.0**-14
    assert (removed.n[0], removed.count[0, 0], removed.p_corrected[0, 0]) == (14, 14, in_holms_second_step)
    assert added.n[0] == N and found.kinds == ("reader",)
    nowhere = judged(several(values(knockout=np.nan), values(knockout=0.3)), (Head(0, 0), Head(0, 1)))
    assert nowhere.kinds == ("undecided", "necessary reader") and np.isnan(nowhere.sides["removed"].p[:, 0]).all()
    assert nowhere.sides["removed"].p_corrected[0, 1] == 6 * 2.0**-N, "what is not defined leaves the family"


def test_nothing_is_mediated_in_layer_zero() -> None:
    found = judged(values(mediated_removed=0.3, mediated_added=0.3), (Head(0, 0),))
    assert found.kinds == ("carrier",) and found.parts["knockout"].tolist() == [1.0]
    assert np.isnan([found.parts["mediated_removed"], found.parts["mediated_added"]]).all()


@pytest.mark.parametrize(("within", "kind"), [(13, "negligible"), (11, "undecided")])
def test_negligible_is_shown_and_not_what_is_left(within: int, kind: str) -> None:
    """13 of 16 problems below delta: P(Bin(16, 1/2) >= 13) = 0.011; 11 of 16: 0.105."""
    column = np.where(np.arange(N) < within, 0.0, 5.0)
    for name in ("knockout", "edge_noise"):  # both sides have to be small
        assert judged(values(**{name: column})).kinds == (kind,)


def test_rounding_is_no_effect() -> None:
    assert judged(values(knockout=1e-7, edge_noise=1e-7), smallest_effect=0.0).kinds == ("reader",)
    assert judged(values(knockout=1e-7, edge_noise=1e-7), smallest_effect=0.0, rounding=1e-6).named.sum() == 0


@pytest.mark.parametrize("total", [0.0, 1e-7, np.where(np.arange(N) < 10, 1.0, -1.0)])
def test_where_no_effect_is_established_nobody_is_anything(total: Any) -> None:
    found = judged(values(knockout=0.3, edge_noise=0.3), total=total, rounding=1e-6)
    assert not found.effect.established and found.kinds == ("undecided",)
    assert not found.passed["removed"].any()
    assert judged(values(), total=total, rounding=1e-6).kinds == ("undecided",), "less than a share of nothing"


def test_both_sides_are_one_family_with_all_heads_and_both_senses_and_kinds_one_of_the_named_heads() -> None:
    reader = values(knockout=0.3, edge_noise=0.3)
    found = judged(several(reader, reader, values()), (Head(0, 0), Head(1, 0), Head(1, 1)))
    assert found.sides["removed"].p_corrected[0].tolist() == [12 * 2.0**-N, 12 * 2.0**-N, 1.0]
    assert found.parts["knockout"][:2].tolist() == [2 * 2.0**-N] * 2 and np.isnan(found.parts["knockout"][2])
    assert found.parts["mediated_removed"][1] == 1.0 and np.isnan(found.parts["mediated_removed"][[0, 2]]).all()


def claims(*kinds: str, sense: Any = 1, direction: float = 1.0) -> Claims:
    heads = tuple(Head(1, at) for at in range(len(kinds)))
    return Claims(direction, heads, kinds, np.zeros(len(kinds), int) + sense)


def test_claims_are_tested_among_themselves_and_in_their_own_sense() -> None:
    reader, against = values(knockout=0.3, edge_noise=0.3), values(knockout=-0.3, edge_noise=-0.3)
    said = claims("reader", "reader", sense=[1, -1])
    found = judged(several(reader, against), said.heads, claims=said)
    for side in ("removed", "added"):
        assert found.sides[side].p_corrected.tolist() == [[4 * 2.0**-N] * 2]
        assert found.passed[side].tolist() == [1, -1]
    assert found.kinds == ("reader", "reader") and found.sense.tolist() == [1, -1]
    wrong = claims("reader", "reader", sense=[-1, 1])
    found = judged(several(reader, against), said.heads, claims=wrong)
    assert not found.named.any() and found.counted("knockout").count.tolist() == [[0, 0]]


def test_a_claim_on_an_effect_of_the_other_sign_is_not_kept() -> None:
    for size in (0.3, -0.3):
        found = judged(values(knockout=size, edge_noise=size), HEAD, total=-1.0, claims=claims("reader"))
        assert found.effect.direction == 1 and not found.effect.established and not found.named.any()


def test_heads_are_compared_by_the_side_that_they_are_named_for() -> None:
    said = claims("reader", "redundant reader", "necessary mediator", "sufficient only")
    assert said.adds.tolist() == [False, True, False, True]
    assert said.reads.tolist() == [True, True, False, False]
    own = claims("reader", sense=-1, direction=-1.0).own(values(knockout=0.3, mediated_removed=0.1), "z_removed")
    assert own == pytest.approx(np.full((N, 1), 0.4))


def test_a_false_name_has_the_stated_probability_whichever_side_gives_it() -> None:
    """Exact, by all counts: a head whose effect is a coin's in each problem, on both sides; corrected side by side 9.6 %."""
    n = 17
    weights = stats.binom.pmf(np.arange(n + 1), n, 0.5)
    coins = [np.where(np.arange(n) < k, 1.0, -1.0) for k in range(n + 1)]
    rate = apart = 0.0
    for removed, added in product(range(n // 2 + 1), range(n + 1)):  # the others are these with all signs turned
        found = judged(values(n, knockout=coins[removed], edge_noise=coins[added]))
        weight = 2 * weights[removed] * weights[added]
        rate += weight * bool(found.passed["removed"].any() or found.passed["added"].any())
        apart += weight * any(2 * stats.binom.sf(max(k, n - k) - 1, n, 0.5) < 0.05 for k in (removed, added))
    assert apart > 0.09 and 0.02 < rate <= 0.04


def test_negligible_is_what_is_small_beside_the_least_that_the_total_may_be() -> None:
    """The median total is 1, and may be as small as 0.3 or as large as 3: 0.03 is neither more nor less than 5 % of it."""
    total = np.repeat([0.3, 1.0, 3.0], [6, 5, 6])
    for size, kind in ((0.014, "negligible"), (0.03, "undecided"), (0.1, "undecided"), (0.16, "reader")):
        assert judged(values(17, knockout=size, edge_noise=size), total=total).kinds == (kind,), size


def test_variants_of_one_problem_count_once() -> None:
    """16 problems of 4 stories: no head can be named; each its own group: as without groups."""
    made = values(knockout=0.3, edge_noise=0.3)
    assert judged(made, groups=tuple("abcd" * 4)).kinds == ("undecided",)
    assert judged(made, groups=tuple(map(str, range(N)))).kinds == ("reader",)
