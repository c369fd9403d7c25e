"""Statistics by hand and by law: what most problems show, intervals, options, borders, labels exchanged, and messages."""

import numpy as np
import pytest
from scipy import stats

from mless_interp import statistics as st
from mless_interp.statistics import intervals


def normal(*shape: int, seed: int = 0, shift: float | list[float] = 0.0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape) + np.asarray(shift)


def test_infinite_z0_falls_back_to_percentile_and_says_so(monkeypatch):
    draws = np.array([[1.0, 2.0, 3.0, 4.0, 5.0]])
    options = {"tie": np.array([0.0]), "skew": np.array([0.1]), "confidence": 0.5}
    low, high, fell_back = intervals._limits(draws.copy(), np.array([0.5]), **options)
    assert fell_back.tolist() == [True] and (low.item(), high.item()) == (2.0, 4.0)
    monkeypatch.setattr(intervals, "resample_weights", lambda n, b, seed: np.array([[2, 1, 0], [3, 0, 0]] * 5))
    found = st.bootstrap_interval(np.array([0.0, 1.0, 5.0]), n_resamples=10)
    assert found.flag.item() == "BCa undefined: percentile" and "BCa undefined" in repr(found)


def test_equal_values_give_a_flagged_point_and_no_rounding():
    found = st.bootstrap_interval(np.full((7, 2), [0.1, 0.0]), n_resamples=100)
    assert found.estimate.tolist() == found.low.tolist() == found.high.tolist() == [0.1, 0.0]
    assert found.flag.tolist() == ["all values equal"] * 2 and found.standard_error.tolist() == [0.0, 0.0]


def test_a_cell_with_undefined_problems_equals_the_cell_without_them():
    x = normal(20, 3, seed=3)
    x[[2, 5], 1] = np.nan
    x[1:, 2] = np.nan
    found = st.bootstrap_interval(x, n_resamples=500)
    alone = st.bootstrap_interval(x[~np.isnan(x[:, 1]), 1], n_resamples=500)
    np.testing.assert_allclose([found.low[1], found.high[1]], [alone.low, alone.high], rtol=1e-12)
    assert found.n.tolist() == [20, 18, 1]
    assert np.isnan([found.estimate[2], found.low[2], found.high[2]]).all() and found.flag[2] == "fewer than 2 problems"
    assert "n = 1 to 20, 1 undefined, 1 flagged" in repr(found)


def test_bootstrap_chunks_do_not_change_the_result_and_each_is_drawn_once(monkeypatch):
    limits, sizes = intervals._limits, []
    monkeypatch.setattr(intervals, "_limits", lambda draws, *a, **k: sizes.append(len(draws)) or limits(draws, *a, **k))
    x = normal(33, 9, seed=4)
    weights = intervals.resample_weights(33, 700, 0)
    one = st.bootstrap_interval(x, n_resamples=700)
    monkeypatch.setattr(intervals, "_CHUNK_VALUES", 1_500)
    np.testing.assert_array_equal(weights, intervals.resample_weights(33, 700, 0))
    two = st.bootstrap_interval(x, n_resamples=700)
    assert sizes == [9, 2, 2, 2, 2, 1] and weights.dtype == np.uint16, "memory is bounded"
    np.testing.assert_allclose([one.low, one.high], [two.low, two.high], rtol=1e-12)


def test_the_mean_of_what_is_defined_by_hand():
    values = np.array([[1.0, np.nan, np.inf], [3.0, np.nan, 5.0], [np.nan, np.nan, 7.0]])
    np.testing.assert_array_equal(st.defined_mean(values), [2.0, np.nan, np.inf])  # infinite is defined
    np.testing.assert_array_equal(st.defined_mean(values, axis=1), [np.inf, 4.0, 7.0])
    assert np.isnan(st.defined_mean(np.array([np.inf, -np.inf])))
    assert st.defined_mean(values[:, 0]) == 2.0 and np.isnan(st.defined_mean(np.array([])))


def test_generators_are_keyed_by_every_label_and_stable_between_processes():
    def first(*key) -> int:
        return int(st.derive_generator(*key).integers(2**32))

    assert first(0, "sign flip", 14) == 881186233
    assert len({first(0), first(1), first(0, "a", "b"), first(0, "a:b"), first(0, "b", "a"), first(0, "ab")}) == 6
    with pytest.raises(TypeError, match="seed must be a whole number, got True"):
        st.derive_generator(True)


def test_infinite_values_rank_as_the_most_extreme_of_a_median():
    found = st.median_interval(np.array([1.0, 2, 3, 4, 5, 6, np.inf]))
    assert (found.estimate, found.low, found.high) == (4, 1, np.inf)


@pytest.mark.filterwarnings("error")
def test_shares_of_no_problems_are_undefined_without_a_warning():
    found = st.wilson(np.array([0, 1]), np.array([0, 2]))
    assert np.isnan([found.estimate[0], found.low[0], found.high[0]]).all()
    assert found.flag.tolist() == ["no problems", ""]


VALUES = np.random.default_rng(0).normal(0.5, 1, (24, 3))
FEW = VALUES[:6]
FIELDS = ("estimate", "low", "high", "standard_error", "n", "flag")


def test_a_table_of_few_and_many_problems_has_each_cell_s_own_interval() -> None:
    mixed = VALUES.copy()
    mixed[6:, 1] = np.nan
    options = {"confidence": 0.7, "n_resamples": 150, "seed": 5}
    found = st.mean_interval(mixed, **options)
    many, few = st.bootstrap_interval(VALUES, **options), st.mean_interval(FEW, confidence=0.7)
    for field in FIELDS:
        expected = [getattr(many, field)[0], getattr(few, field)[1], getattr(many, field)[2]]
        if field == "flag":
            assert found.flag.tolist() == expected == ["", "few problems", ""]
        else:
            np.testing.assert_allclose(getattr(found, field), expected, rtol=1e-12)
    assert (found.method, found.confidence) == ("t below 20 problems, else bca", 0.7)
    assert (few.method, few.confidence, few.n.tolist()) == ("t", 0.7, [6, 6, 6])


def test_one_problem_has_an_estimate_without_limits() -> None:
    found = st.mean_interval(VALUES[:1], confidence=0.7)
    np.testing.assert_array_equal(found.estimate, VALUES[0])
    assert np.isnan([found.low, found.high, found.standard_error]).all()
    assert (found.n.tolist(), found.flag.tolist()) == ([1, 1, 1], ["fewer than 2 problems"] * 3)
    assert (found.confidence, found.method) == (0.7, "none")
    assert st.mean_interval(np.array([[1.0, np.nan]])).n.tolist() == [1, 0]


def test_the_smallest_inputs_are_allowed() -> None:
    assert st.prevalence_test(np.array([2.0]), 0.0).p.tolist() == [0.5, 1.0]
    alone = st.median_interval(np.array([2.0]))
    assert (alone.estimate, str(alone.flag)) == (2.0, "too few problems for a median's interval")
    assert st.sign_test(np.array([1.0] * 6 + [1e-6] * 2), rounding=1e-3) == pytest.approx(2 * stats.binom.sf(5, 8, 0.5))
    assert st.sign_test(np.array([2.0])) == 1.0 and np.isnan(st.sign_test(np.array([np.nan])))
    assert st.concentration(np.array([3.0])).problems == (0,)
    for pair, flag, width in (([3.0, 3.0], "all values equal", 0.0), ([3.0, 4.0], "few problems", 12.7062047)):
        found = st.mean_interval(np.array(pair))
        assert (str(found.flag), int(found.n)) == (flag, 2) and found.high - found.low == pytest.approx(width)
    assert np.isnan(st.exact_limits(np.array(0), np.array(0))).all()
    assert all(np.isnan(adjust(np.full((2, 2), np.nan))).all() for adjust in (st.holm, st.benjamini_hochberg))
    assert st.bootstrap_interval(np.array([1.0, 3.0]), n_resamples=2).n == 2
    assert st.pass_at_k(1, 1, k=1) == 1.0 and st.wilson(0, 1).low == 0.0 and st.wilson(1, 1).high == 1.0
    even = st.median_interval(np.array([1.0, 2.0]), confidence=0.5)  # covers exactly one half
    assert (float(even.low), float(even.high)) == (1.0, 2.0)
    assert (st.fewest_problems(1, alpha=0.5), st.fewest_problems(1, alpha=0.6)) == (2, 1)
    assert np.isfinite(st.detectable_prevalence(6, 2)) and np.isnan(st.detectable_prevalence(5, 2))


def test_all_problems_may_change_and_the_exact_test_decides_at_its_border() -> None:
    found = st.paired_difference(2, 3, 5)
    assert found.n == 5 and found.estimate == pytest.approx(0.2)
    assert float(st.paired_difference(0, 5, 5).high) == 1.0 and float(st.paired_difference(5, 0, 5).low) == -1.0
    assert st.mcnemar(0, 0) == 1.0
    assert st.mcnemar(0, 2) == 0.5  # not below: the interval holds 0
    assert float(st.paired_difference(0, 2, 200, confidence=0.5).low) <= 0.0
    assert (found.method, found.confidence, str(found.flag)) == ("tango", 0.95, "")
    narrow = st.paired_difference(2, 13, 50, confidence=0.5)
    assert float(narrow.low) > float(st.paired_difference(2, 13, 50).low) and narrow.confidence == 0.5


def test_beside_an_unknown_smallest_effect_nothing_is_counted() -> None:
    found = st.prevalence_test(np.ones((9, 2)), float("nan"))
    assert np.isnan([found.count, found.share, found.low, found.high, found.p, found.p_corrected]).all()


def test_what_is_not_tested_leaves_the_family_and_senses_and_cells_can_be_taken_alone() -> None:
    asked, some = np.array([True, False, True]), [0, 2]
    found, alone = st.prevalence_test(VALUES, 0.3, tested=asked), st.prevalence_test(VALUES[:, some], 0.3)
    for mine, other in ((found.p, alone.p), (found.p_corrected, alone.p_corrected)):
        np.testing.assert_array_equal(mine[..., some], other)
        assert np.isnan(mine[..., 1]).all() and (mine[..., some] < 1).any()
    against = st.prevalence_test(VALUES, 0.3, senses=(-1,))
    np.testing.assert_array_equal(against.p[0], st.prevalence_test(VALUES, 0.3).p[1])
    np.testing.assert_array_equal(against.share, (VALUES < -0.3).mean(0, keepdims=True))
    part = found.of(2)
    assert (part.n, part.delta, part.senses) == (24, 0.3, (1, -1))
    for name in ("count", "low", "high", "p", "p_corrected"):
        np.testing.assert_array_equal(getattr(part, name), getattr(found, name)[:, 2])


def test_shares_by_hand() -> None:
    """9 problems, k = 2: the second and the eighth of the ratios; one problem's total has the other sign, and turns it."""
    total = np.array([1.0, 2, 1, 4, 1, 1, 2, 1, 1])
    ratios = np.arange(1.0, 10) / 10
    found = st.share_of_total(np.stack([ratios * total, -ratios * total], 1), total)
    assert found.estimate == pytest.approx(np.array([0.5, -0.5]))
    assert found.low == pytest.approx(np.array([0.2, -0.8])) and found.high == pytest.approx(np.array([0.8, -0.2]))
    turned = st.share_of_total(np.r_[ratios[:8], 0.9], np.r_[np.ones(8), -1.0])  # 0.9 + x > 0 for all x above -0.9
    assert (float(turned.low), float(turned.estimate), float(turned.high)) == (0.2, 0.5, 0.8)
    unknown = st.share_of_total(np.ones(9), np.r_[np.ones(7), -1.0, -1.0])
    assert np.isnan([unknown.estimate, unknown.low, unknown.high]).all()
    assert str(unknown.flag) == "the total effect is not established"


def test_a_group_counts_once_with_the_median_of_its_members() -> None:
    values = np.array([[1.0, np.nan], [4.0, np.nan], [3.0, 7.0], [2.0, np.nan], [9.0, -1.0]])
    found = st.by_group(values, ("a", "b", "a", "b", "c"))
    np.testing.assert_array_equal(found, [[2.0, 7.0], [3.0, np.nan], [9.0, -1.0]])
    assert st.by_group(values, ()) is values and st.by_group(values, tuple("vwxyz")) is values
    with pytest.raises(ValueError, match="one group per problem: got 2 for 5 problems"):
        st.by_group(values, ("a", "b"))


def test_concentration_names_who_carries_the_mean() -> None:
    x = np.r_[np.full(38, 0.01), [-4.0, -3.0]]
    found = st.concentration(x)
    assert found.problems == (38, 39) and found.share == pytest.approx(7 / 7.38)
    assert found.low == pytest.approx(x.mean()) and found.high == pytest.approx(0.01)
    even = st.concentration(np.ones(40))
    assert even.share == pytest.approx(0.05) and even.low == even.high == 1.0
    assert np.isnan(st.concentration(np.zeros(5)).share)


def test_partners_differ_in_token_and_group_and_are_as_many_as_can_be() -> None:
    for seed in range(20):
        draw = np.random.default_rng(seed)
        labels = draw.choice(4, 31, p=[0.55, 0.25, 0.1, 0.1])
        groups = [str(each) for each in draw.permutation(31)]
        partners = st.swap_partners(labels, [1] * 31, groups, seed=seed)
        paired = np.flatnonzero(partners >= 0)
        assert (partners[partners[paired]] == paired).all() and (labels[paired] != labels[partners[paired]]).all()
        assert len(paired) == 2 * min(31 - np.bincount(labels).max(), 15)
    kinds = [1, 2, 1, 2]
    assert st.swap_partners(np.array([0, 1, 2, 3]), kinds, "abcd", seed=0).tolist() == [2, 3, 0, 1]
    together = st.swap_partners(np.array([0, 1, 2, 3]), [1] * 4, "aabb", seed=0)
    assert together.tolist() == [2, 3, 0, 1], "variants are no partners of one another"


def test_exchanging_two_problems_turns_their_margin_and_token_priors_cancel() -> None:
    draw = np.random.default_rng(0)
    values, labels, partners = draw.normal(size=(4, 3, 2)), np.array([0, 1, 2, 0]), np.array([1, 0, 3, 2])
    margins = st.swap_margins(values, labels, partners)
    np.testing.assert_allclose(st.swap_margins(values[[1, 0, 3, 2]], labels, partners), -margins)
    moved = values + draw.normal(size=(1, 3, 2)) + draw.normal(size=(4, 1, 2))
    np.testing.assert_allclose(st.swap_margins(moved, labels, partners), margins)
    alone = st.swap_margins(values, labels, np.array([1, 0, -1, -1]))
    np.testing.assert_array_equal(np.isnan(alone).reshape(4, -1).all(1), [False, False, True, True])


def test_probes_learn_from_earlier_pairs_alone() -> None:
    units = [f"u{at // 2}" for at in range(40)] + ["", ""]
    groups = [str(at) for at in range(42)]
    steps = st.forward_folds(units, groups, seed=0)
    seen: set[int] = set()
    for train, test in steps:
        assert not set(train) & set(test) and {40, 41} <= set(train) and seen <= set(train)
        assert {units[at] for at in train}.isdisjoint(units[at] for at in test)
        seen |= set(test.tolist())
    assert len(steps) == 4 and len(seen) == 32, "the first fold only teaches"
