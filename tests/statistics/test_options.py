"""What an option changes, what is refused by name, how results print, and the smallest inputs that are allowed."""

from collections.abc import Callable
from itertools import combinations
from math import comb

import numpy as np
import pytest
from scipy import stats

from mless_interp import statistics as st
from mless_interp.statistics import bootstrap

VALUES = np.random.default_rng(0).normal(0.5, 1, (24, 3))
OTHERS = np.random.default_rng(1).normal(4, 1, (24, 3))
FEW = VALUES[:6]
GROUP = np.arange(24) < 9
DRAWN = {
    "groups": 0.907,
    "resamples": -0.11183825504533673,
}
FIELDS = ("estimate", "low", "high", "standard_error", "n", "flag")


def equal(found: st.Interval, expected: st.Interval) -> None:
    for field in FIELDS:
        np.testing.assert_array_equal(getattr(found, field), getattr(expected, field), err_msg=field)
    assert (found.confidence, found.method) == (expected.confidence, expected.method)


def differs(found: st.Interval, other: st.Interval) -> None:
    assert (found.low != other.low).all() and (found.high != other.high).all()
    np.testing.assert_array_equal(found.estimate, other.estimate)


# ------------------------------------------------------------------------------------------------------------- options


def test_intervals_of_means_hand_their_options_on() -> None:
    options = {"confidence": 0.7, "n_resamples": 150, "seed": 5}
    plain = st.bootstrap_interval(VALUES, **options)
    equal(st.mean_interval(VALUES, **options), plain)
    percentile = {**options, "method": "percentile"}
    assert (st.bootstrap_interval(VALUES, **percentile).method, plain.method, plain.confidence) == (
        "percentile",
        "bca",
        0.7,
    )
    for name, value in (("confidence", 0.95), ("n_resamples", 151), ("seed", 6), ("method", "percentile")):
        differs(st.bootstrap_interval(VALUES, **{**options, name: value}), plain)
    assert (st.bootstrap_interval(VALUES, n_resamples=150).high > plain.high).all()
    equal(st.bootstrap_interval(VALUES), st.bootstrap_interval(VALUES, n_resamples=10_000, seed=0, confidence=0.95))


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
    for found in (
        st.mean_interval(VALUES[:1], confidence=0.7),
        st.one_problem(VALUES[0], confidence=0.7),
    ):
        np.testing.assert_array_equal(found.estimate, VALUES[0])
        assert np.isnan([found.low, found.high, found.standard_error]).all()
        assert (found.n.tolist(), found.flag.tolist()) == ([1, 1, 1], ["fewer than 2 problems"] * 3)
        assert (found.confidence, found.method) == (0.7, "none")
    assert st.one_problem(np.array([1.0, np.nan])).n.tolist() == [1, 0]


def test_few_problems_with_gaps_are_those_without_them() -> None:
    x = VALUES[:8].copy()
    x[2, 0] = np.nan
    x[1:, 1] = np.nan
    x[:, 2] = np.nan
    found, alone = st.mean_interval(x), st.mean_interval(np.delete(x[:, 0], 2))
    for field in FIELDS:
        expected = getattr(alone, field)
        if field == "flag":
            assert found.flag[0] == str(expected)
        else:
            np.testing.assert_allclose(getattr(found, field)[0], expected, rtol=1e-12)
    assert found.flag.tolist()[1:] == ["fewer than 2 problems"] * 2
    assert found.n.tolist()[1:] == [1, 0] and np.isnan([found.low[1:], found.high[1:]]).all()
    flat = st.mean_interval(np.array([[0.1, 1.0]] * 3))
    assert flat.low.tolist() == flat.high.tolist() == flat.estimate.tolist() == [0.1, 1.0]
    assert flat.standard_error.tolist() == [0, 0] and flat.flag.tolist() == ["all values equal"] * 2


def test_two_groups_with_gaps_are_counted_over_the_problems_that_a_cell_has() -> None:
    """Every division by hand; one that leaves a cell fewer than two problems on a side is no more extreme than any."""
    for seed in range(12):
        rng = np.random.default_rng(seed)
        group = rng.permutation(9) < 4
        x = rng.normal(1, 1, (9, 3)) + np.where(group, 0.7, 0.0)[:, None]
        x[rng.permutation(9)[: 1 + seed % 4], 0] = np.nan
        x[:, 1] = 0.3
        sides = [~np.isnan(x[side]) for side in (group, ~group)]
        found = st.two_groups(x, group)
        assert np.isnan([found.p[1], found.p_corrected[1]]).all(), "no spread"
        assert (found.n_in.tolist(), found.n_out.tolist()) == tuple(side.sum(0).tolist() for side in sides)
        np.testing.assert_allclose(
            [found.mean_in, found.mean_out], [np.nanmean(x[side], 0) for side in (group, ~group)]
        )
        if sides[0][:, 0].sum() < 2 or sides[1][:, 0].sum() < 2:
            assert np.isnan(found.p[0])
            continue

        def t(members: np.ndarray, x: np.ndarray = x) -> list[float]:
            parts = [[x[side & ~np.isnan(x[:, cell]), cell] for side in (members, ~members)] for cell in (0, 2)]
            return [
                abs(stats.ttest_ind(a, b, equal_var=False).statistic) if min(len(a), len(b)) > 1 else 0.0
                for a, b in parts
            ]

        null = np.array([t(np.isin(np.arange(9), chosen)) for chosen in combinations(range(9), 4)])
        observed = np.array(t(group)) * (1 - 1e-9)
        np.testing.assert_allclose(found.p[[0, 2]], (1 + (null >= observed).sum(0)) / (1 + len(null)))
        joint = (1 + (null.max(1)[:, None] >= observed).sum(0)) / (1 + len(null))
        np.testing.assert_allclose(found.p_corrected[[0, 2]], joint)
        again = st.two_groups(x.reshape(9, 3, 1), group)
        np.testing.assert_array_equal([again.p[:, 0], again.high[:, 0]], [found.p, found.high])


def test_groups_without_spread_of_their_own_are_told_apart_by_their_means() -> None:
    found = st.two_groups(np.array([[0.1] * 3 + [0.3] * 12, [0.1] * 5 + [0.3] * 10]).T, np.arange(15) < 3)
    np.testing.assert_allclose(found.p, [2 / 456, (1 + comb(5, 3)) / 456])


def test_a_seed_draws_what_it_always_drew() -> None:
    """Results of a seed stay comparable between versions: every stream is keyed by its purpose and its size."""
    drawn = {
        "groups": float(st.two_groups(VALUES[:, 0], GROUP).p),
        "resamples": float(st.bootstrap_interval(VALUES[:, 0], n_resamples=200).low),
    }
    assert drawn == pytest.approx(DRAWN, abs=1e-12)


def test_t_intervals_of_few_problems_are_scipys() -> None:
    """Of 2 to 5 problems, with gaps, cell by cell."""
    rng = np.random.default_rng(3)
    for n in range(2, 6):
        x = rng.normal(0.4, 1, (6, 4))
        for cell in range(4):
            x[rng.permutation(6)[n:], cell] = np.nan
        interval = st.mean_interval(x, confidence=0.9)
        for cell in range(4):
            own = x[~np.isnan(x[:, cell]), cell]
            limits = stats.ttest_1samp(own, 0.0).confidence_interval(0.9)
            found = [interval.estimate[cell], interval.low[cell], interval.high[cell], interval.standard_error[cell]]
            np.testing.assert_allclose(found, [own.mean(), *limits, stats.sem(own)])


# ------------------------------------------------------------------------------------------------------------- borders


def test_the_smallest_inputs_are_allowed() -> None:
    assert st.prevalence_test(np.array([2.0]), 0.0).p.tolist() == [0.5, 1.0]
    assert st.within_test(np.array([0.5]), 1.0)[0] == 0.5
    assert st.median_interval(np.array([2.0])).estimate == 2.0
    assert st.sign_test(np.array([2.0])) == 1.0 and np.isnan(st.sign_test(np.array([np.nan])))
    assert st.concentration(np.array([3.0])).problems == (0,)
    for pair, flag, width in (([3.0, 3.0], "all values equal", 0.0), ([3.0, 4.0], "few problems", 12.7062047)):
        found = st.mean_interval(np.array(pair))
        assert (str(found.flag), int(found.n)) == (flag, 2) and found.high - found.low == pytest.approx(width)
        fallen = st.bootstrap_interval(np.array(pair), n_resamples=50)
        assert (str(fallen.flag) == flag) is (width == 0) and fallen.high - fallen.low <= 1
    assert np.isnan(st.exact_limits(np.array(0), np.array(0))).all()
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
    assert st.mcnemar(0, 2) == 0.5  # not below: the interval holds 0
    assert float(st.paired_difference(0, 2, 200, confidence=0.5).low) <= 0.0
    assert (found.method, found.confidence, str(found.flag)) == ("tango", 0.95, "")
    narrow = st.paired_difference(2, 13, 50, confidence=0.5)
    assert float(narrow.low) > float(st.paired_difference(2, 13, 50).low) and narrow.confidence == 0.5


def test_ties_at_the_border_go_to_the_earlier_cell() -> None:
    assert st.concentration(np.ones(60), largest=0.1).problems == (0, 1, 2, 3, 4, 5)
    assert st.concentration(np.r_[np.nan, 1.0, -3.0, 2.0], largest=0.4).problems == (2, 3)


# -------------------------------------------------------------------------------------------------------- what is said


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: st.bootstrap_interval(VALUES, method="normal"),
            "^method must be one of 'bca', 'percentile', got 'normal'",
        ),
        (lambda: st.bootstrap_interval(VALUES, n_resamples=1), "^n_resamples must be 2 or more"),
        (lambda: st.share_of_total(VALUES, VALUES[:, 0], confidence=1.0), "^confidence must lie between 0 and 1"),
        (lambda: st.bootstrap_interval(VALUES[:1]), "values needs at least 2 problems"),
        (lambda: st.mean_interval(np.array([1.0, np.inf])), "values holds 1 infinite values"),
        (lambda: st.bootstrap_interval(VALUES, confidence=0.0), "confidence must lie between 0 and 1"),
        (lambda: st.share_of_total(VALUES, VALUES), r"total must be \[problem\] = \[24\] as part has, got \[24, 3\]"),
        (lambda: st.share_of_total(VALUES, np.full(24, np.inf)), "total holds 24 infinite values"),
        (lambda: st.median_interval(VALUES, confidence=1.0), "confidence must lie between 0 and 1"),
        (lambda: st.median_interval(np.array([np.inf])), "values holds 1 infinite values"),
        (lambda: st.sign_test(np.array([np.inf])), "values holds 1 infinite values"),
        (lambda: st.concentration(np.array([np.inf])), "values holds 1 infinite values"),
        (lambda: st.concentration(np.ones(3), largest=1.0), "largest must lie between 0 and 1"),
        (lambda: st.concentration(VALUES), r"concentration is of one number per problem, got shape \(24, 3\)"),
        (lambda: st.concentration(np.array([np.nan])), "no value is defined"),
        (lambda: st.exact_limits(np.array(1), np.array(2), confidence=1.0), "confidence must lie between 0 and 1"),
        (lambda: st.fewest_problems(0), "n_tests must be 1 or more, got 0"),
        (lambda: st.fewest_problems(5, alpha=0.0), "alpha must lie between 0 and 1"),
        (lambda: st.detectable_prevalence(64, 5, power=0.0), "power must lie between 0 and 1"),
        (lambda: st.prevalence_test(np.array([np.inf]), 0.0), "effects holds 1 infinite values"),
        (lambda: st.wilson(1, 2, confidence=1.0), "confidence must lie between 0 and 1"),
        (lambda: st.wilson(1, np.array([2.0])), "n must be whole numbers, got float64"),
        (lambda: st.wilson(-1, 2), "successes must not be negative, got -1"),
        (lambda: st.paired_difference(1, 1, 4, confidence=1.0), "confidence must lie between 0 and 1"),
        (lambda: st.paired_difference(-1, 1, 4), "only_first must be 0 or more"),
        (lambda: st.paired_difference(1, -1, 4), "only_second must be 0 or more"),
        (lambda: st.paired_difference(0, 0, -1), "n must be 0 or more"),
        (lambda: st.paired_difference(0, 0, 0), "0 \\+ 0 problems changed, but there are 0 in all"),
        (lambda: st.paired_difference(3, 2, 4), "3 \\+ 2 problems changed, but there are 4 in all"),
        (lambda: st.mcnemar(-1, 2), "only_first must be 0 or more"),
        (lambda: st.pass_at_k(1, 4, k=0), "k must be 1 or more, got 0"),
        (lambda: st.pass_at_k(1, -4, k=1), "n_samples must not be negative"),
        (lambda: st.derive_generator(1.5), "seed must be a whole number, got 1.5"),
    ],
)
@pytest.mark.usefixtures("untyped")
def test_what_is_wrong_is_named(call: Callable[[], object], message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        call()


def test_results_print_what_they_found() -> None:
    d = VALUES + np.array([3.0, 0.0, 0.0])
    assert repr(st.prevalence_test(d, 1.0)).startswith(
        "6 tests of more than 1 in most problems (n = 24 to 24): 1 at corrected p < 0.05"
    )
    assert repr(st.concentration(np.array([9.0] + [1.0] * 19))) == (
        "32% of the effect lies in 1 problem; mean +1.4, without them +1 to +1.4"
    )
    gaps = np.array([[1.0, 1.0, 2.0], [1.0, np.nan, 3.0], [1.0, np.nan, 5.0]])
    assert repr(st.bootstrap_interval(gaps, n_resamples=50, confidence=0.9)) == (
        "3 intervals (90 % bca, n = 1 to 3, 1 undefined; 1 × all values equal, 1 × fewer than 2 problems)"
    )
    assert repr(st.wilson(np.array([1, 2]), 4)) == "2 intervals (95 % wilson, n = 4 to 4, 0 undefined)"
    assert bootstrap.TOO_FEW in repr(st.one_problem(np.array(2.0)))
