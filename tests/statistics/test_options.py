"""What an option changes, what is refused by name, how results print, and the smallest inputs that are allowed."""

from collections.abc import Callable
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from scipy import stats

from mless_interp import statistics as st
from mless_interp.statistics import bootstrap, groups

VALUES = np.random.default_rng(0).normal(0.5, 1, (24, 3))
OTHERS = np.random.default_rng(1).normal(4, 1, (24, 3))
FEW = VALUES[:6]
GROUP = np.arange(24) < 9
DRAWN = {
    "flips": 0.057971014492753624,
    "groups": 0.9155422288855573,
    "halves": 0.25,
    "resamples": -0.11183825504533673,
    "enrichment": 0.18640679660169915,
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
    equal(
        st.paired_bootstrap_difference(OTHERS, VALUES + OTHERS, **options),
        st.bootstrap_interval(VALUES + OTHERS - OTHERS, **options),
    )
    percentile = {**options, "method": "percentile"}
    equal(
        st.paired_bootstrap_difference(np.zeros_like(VALUES), VALUES, **percentile),
        st.bootstrap_interval(VALUES, **percentile),
    )
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


def test_ratios_hand_their_options_on() -> None:
    options = {"confidence": 0.7, "seed": 5}
    equal(st.share_interval(VALUES, OTHERS, **options), st.ratio_interval(VALUES, OTHERS, **options))
    plain = st.ratio_interval(VALUES, OTHERS, n_resamples=150, **options)
    for name, value in (("confidence", 0.95), ("n_resamples", 151), ("seed", 6), ("method", "percentile")):
        differs(st.ratio_interval(VALUES, OTHERS, **{**options, "n_resamples": 150, name: value}), plain)
    equal(
        st.ratio_interval(VALUES, OTHERS),
        st.ratio_interval(VALUES, OTHERS, n_resamples=10_000, seed=0, confidence=0.95),
    )
    few = [st.share_interval(FEW, OTHERS[:6, 0], confidence=c) for c in (0.7, 0.95)]
    assert (few[0].low > few[1].low).all() and (few[0].high < few[1].high).all()
    each = st.share_interval(FEW, np.repeat(OTHERS[:6, :1], 3, 1), confidence=0.7)
    equal(few[0], each)
    assert (each.method, each.confidence, each.flag.tolist()) == ("fieller", 0.7, ["few problems"] * 3)


def test_one_problem_has_an_estimate_without_limits() -> None:
    for found in (
        st.mean_interval(VALUES[:1], confidence=0.7),
        st.share_interval(VALUES[:1], np.array([1.0]), confidence=0.7),
        st.share_interval(VALUES[:1], np.ones((1, 3)), confidence=0.7),
        st.one_problem(VALUES[0], confidence=0.7),
    ):
        np.testing.assert_array_equal(found.estimate, VALUES[0])
        assert np.isnan([found.low, found.high, found.standard_error]).all()
        assert (found.n.tolist(), found.flag.tolist()) == ([1, 1, 1], ["fewer than 2 problems"] * 3)
        assert (found.confidence, found.method) == (0.7, "none")
    assert st.one_problem(np.array([1.0, np.nan])).n.tolist() == [1, 0]
    none = st.share_interval(VALUES[:1], np.array([[0.0, -2.0, 4.0]]))
    np.testing.assert_array_equal(none.estimate, [np.nan, -VALUES[0, 1] / 2, VALUES[0, 2] / 4])


def test_few_problems_with_gaps_are_those_without_them() -> None:
    x, y = VALUES[:8].copy(), OTHERS[:8].copy()
    x[2, 0] = y[5, 0] = np.nan
    x[1:, 1] = np.nan
    x[:, 2] = np.nan
    keep = [0, 1, 3, 4, 6, 7]
    for found, alone in (
        (st.mean_interval(x), st.mean_interval(np.delete(x[:, 0], 2))),
        (st.share_interval(x, y), st.share_interval(x[keep, 0], y[keep, 0])),
    ):
        for field in FIELDS:
            expected = getattr(alone, field)
            if field == "flag":
                assert found.flag[0] == str(expected)
            else:
                np.testing.assert_allclose(getattr(found, field)[0], expected, rtol=1e-12)
        assert found.flag.tolist()[1:] == ["fewer than 2 problems"] * 2
        assert found.n.tolist()[1:] == [1, 0] and np.isnan([found.low[1:], found.high[1:]]).all()
    held = st.share_interval(FEW, OTHERS[:6] - OTHERS[:6].mean(0))
    assert held.flag.tolist() == ["denominator interval holds 0"] * 3
    assert np.isnan([held.estimate, held.low, held.high, held.standard_error]).all() and held.n.tolist() == [6] * 3
    none = st.share_interval(np.ones(4), np.array([1.0, -1.0, 2.0, -2.0]))
    assert str(none.flag) == "denominator interval holds 0" and np.isnan(none.estimate)
    flat = st.mean_interval(np.array([[0.1, 1.0]] * 3))
    assert flat.low.tolist() == flat.high.tolist() == flat.estimate.tolist() == [0.1, 1.0]
    assert flat.standard_error.tolist() == [0, 0] and flat.flag.tolist() == ["all values equal"] * 2


def test_options_of_ranks_are_used_and_limits_of_chosen_cells_are_those_of_their_stratum() -> None:
    strata = np.array([0, 0, 0, 1, 1, 1, 1])
    d = np.random.default_rng(2).normal(size=(12, 7))
    d[0, 0] = np.nan  # in a stratum that is not asked about
    options: dict[str, Any] = {"by": "value", "confidence": 0.6, "n_resamples": 70, "seed": 3}
    found = st.rank_enrichment(d, np.array([5, 3]), strata=strata, n_draws=500, **options)
    alone = st.rank_intervals(d[:, 3:], top_k=1, **options)
    np.testing.assert_array_equal(
        [found.rank, found.low, found.high], [r[[2, 0]] for r in (alone.rank, alone.low, alone.high)]
    )
    assert (found.expected, found.n_draws, found.confidence) == (2.5, 500, 0.6)
    other = st.rank_enrichment(d, np.array([5, 3]), strata=strata, n_draws=500, **{**options, "by": "abs"})
    assert other.rank.tolist() != found.rank.tolist()
    both = st.rank_enrichment(d[1:], np.array([1, 3, 4]), strata=strata, n_draws=500)
    assert both.expected == (2 + 2 * 2.5) / 3
    everything = st.rank_enrichment(d[1:], np.arange(7), n_draws=10)
    assert everything.p == 1.0 and everything.mean_rank == everything.expected == 4.0
    assert np.isnan(st.rank_enrichment(d[1:2], np.array([0])).low).all(), "one problem has no limits"
    again = st.rank_enrichment(d[1:], np.array([1, 3]), n_draws=500, seed=1)
    assert again.p == st.rank_enrichment(d[1:], np.array([1, 3]), n_draws=500, seed=1).p
    assert round(again.p * 501, 9) == round(again.p * 501)


def test_splits_and_resamples_are_as_many_as_asked_for() -> None:
    found = [st.split_half_spearman(VALUES, n_splits=n, seed=seed) for n, seed in ((30, 0), (31, 0), (30, 1))]
    assert len({one.mean for one in found}) == 3 and [one.n_splits for one in found] == [30, 31, 30]
    assert found[0] == st.split_half_spearman(VALUES, n_splits=30) and found[0].n_cells == 3
    with_ties = st.split_half_spearman(np.array([[1.0, 1.0], [1.0, 2.0]] * 2), n_splits=50)
    assert 0 < with_ties.n_undefined < 50 and with_ties.mean == 1.0
    assert st.split_half_spearman(np.array([[1.0, 2.0], [2.0, 1.0]]), n_splits=4).spearman_brown == float("-inf")
    ranks = st.rank_intervals(VALUES, top_k=1, n_resamples=50, confidence=0.5, by="value", seed=1)
    assert (ranks.confidence, ranks.by, ranks.top_k, ranks.n.tolist()) == (0.5, "value", 1, [24, 24, 24])
    assert np.round(ranks.p_top_k * 50, 9).tolist() == np.round(ranks.p_top_k * 50).tolist()
    assert (st.rank_intervals(VALUES, top_k=1).p_top_k != ranks.p_top_k).any()


def test_two_groups_use_their_options_and_count_what_each_side_has() -> None:
    x = VALUES.copy()
    x[0, 0] = x[20, 0] = x[21, 0] = np.nan
    x[:, 1] = 0.3
    x[1:9, 2] = np.nan  # one problem in the group
    found = st.max_t_two_groups(x, GROUP, n_permutations=40, seed=1, confidence=0.7)
    assert (found.n_in.tolist(), found.n_out.tolist()) == ([8, 9, 1], [13, 15, 15])
    assert np.isnan(found.p).tolist() == np.isnan(found.p_corrected).tolist() == [False, True, True]
    assert (found.exact, found.n_permutations, found.smallest_p, found.confidence) == (False, 40, 1 / 41, 0.7)
    np.testing.assert_allclose(found.mean_in - found.mean_out, found.difference)
    np.testing.assert_allclose(
        [found.mean_in[0], found.mean_out[0]], [np.nanmean(x[GROUP, 0]), np.nanmean(x[~GROUP, 0])]
    )
    wide = st.max_t_two_groups(x, GROUP, n_permutations=40, seed=1)
    assert wide.low[0] < found.low[0] < found.difference[0] < found.high[0] < wide.high[0] and wide.confidence == 0.95
    assert round(found.p[0] * 41, 9) == round(found.p[0] * 41) and found.p[0] == wide.p[0]
    many = [st.max_t_two_groups(VALUES, GROUP, n_permutations=400, seed=seed).p for seed in (1, 1, 2)]
    assert (many[0] == many[1]).all() and (many[0] != many[2]).any()
    shaped = st.max_t_two_groups(VALUES.reshape(24, 3, 1), GROUP, n_permutations=400, seed=1)
    assert shaped.p.shape == shaped.low.shape == shaped.n_in.shape == shaped.p_corrected.shape == (3, 1)
    np.testing.assert_array_equal(shaped.p[:, 0], many[0])
    two = st.max_t_two_groups(np.array([0.0, 1, 5, 6, 7]), np.array([True, True, False, False, False]))
    assert two.exact and two.n_permutations == 10 and two.smallest_p == 0.1 and not np.isnan(two.p)
    three = st.max_t_two_groups(VALUES[:9], np.arange(9) < 3)
    assert three.exact and three.smallest_p == 1 / 84
    four = st.max_t_two_groups(VALUES[:8], np.arange(8) < 4)
    assert four.smallest_p == 2 / 70 and (np.round(four.p * 35) == np.round(four.p * 35, 9)).all()
    assert np.isnan(st.max_t_two_groups(np.array([0.0, 1, 5]), np.array([True, False, False])).p)


def test_divisions_are_fair_and_do_not_depend_on_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = np.concatenate(list(groups._divisions(12, 5, 3_000, 1, exact=False, seed=0)))
    assert rows.shape == (3_000, 12) and (rows.sum(1) == 5).all() and set(np.unique(rows)) == {0.0, 1.0}
    assert np.abs(rows.mean(0) - 5 / 12).max() < 5 * 0.5 / 3_000**0.5
    exact = np.concatenate(list(groups._divisions(7, 3, 35, 1, exact=True, seed=0)))
    assert len(np.unique(exact, axis=0)) == len(exact) == 35 and (exact.sum(1) == 3).all()
    whole = [
        st.max_t_two_groups(VALUES[:n], GROUP[-n:] if n < 12 else GROUP[:n], n_permutations=1_000) for n in (11, 24)
    ]
    monkeypatch.setattr(groups, "_CHUNK_VALUES", 1)
    for one, n in zip(whole, (11, 24), strict=True):
        parts = st.max_t_two_groups(VALUES[:n], GROUP[-n:] if n < 12 else GROUP[:n], n_permutations=1_000)
        np.testing.assert_array_equal([one.p, one.p_corrected], [parts.p, parts.p_corrected])


def test_two_groups_with_gaps_are_counted_over_the_problems_that_a_cell_has() -> None:
    """Every division by hand; one that leaves a cell fewer than two problems on a side is no more extreme than any."""
    for seed in range(12):
        rng = np.random.default_rng(seed)
        group = rng.permutation(9) < 4
        x = rng.normal(1, 1, (9, 3)) + np.where(group, 0.7, 0.0)[:, None]
        x[rng.permutation(9)[: 1 + seed % 4], 0] = np.nan
        sides = [~np.isnan(x[side]) for side in (group, ~group)]
        found = st.max_t_two_groups(x, group)
        limits = stats.ttest_ind(x[group], x[~group], equal_var=False, nan_policy="omit").confidence_interval()
        if sides[0][:, 0].sum() < 2 or sides[1][:, 0].sum() < 2:
            assert np.isnan(found.p[0])
            continue
        np.testing.assert_allclose([found.low, found.high], limits)

        def t(members: np.ndarray, x: np.ndarray = x) -> list[float]:
            parts = [[x[side & ~np.isnan(x[:, cell]), cell] for side in (members, ~members)] for cell in range(3)]
            return [
                abs(stats.ttest_ind(a, b, equal_var=False).statistic) if min(len(a), len(b)) > 1 else 0.0
                for a, b in parts
            ]

        null = np.array([t(np.isin(np.arange(9), chosen)) for chosen in combinations(range(9), 4)])
        observed = np.array(t(group)) * (1 - 1e-9)
        np.testing.assert_allclose(found.p, (null >= observed).mean(0))
        np.testing.assert_allclose(found.p_corrected, (null.max(1)[:, None] >= observed).mean(0))


def test_a_seed_draws_what_it_always_drew() -> None:
    """Results of a seed stay comparable between versions: every stream is keyed by its purpose and its size."""
    drawn = {
        "flips": float(st.sign_flip(VALUES[:20, 0], n_permutations=2000)),
        "groups": float(st.max_t_two_groups(VALUES[:, 0], GROUP, n_permutations=2000).p),
        "halves": st.split_half_spearman(VALUES, n_splits=100).mean,
        "resamples": float(st.bootstrap_interval(VALUES[:, 0], n_resamples=200).low),
        "enrichment": st.rank_enrichment(np.arange(40.0)[None], np.array([35, 20]), n_draws=2000).p,
    }
    assert drawn == pytest.approx(DRAWN, abs=1e-12)


def test_tests_of_means_at_any_small_number_are_scipys() -> None:
    """Means, t intervals, equivalence and effect sizes of 2 to 5 problems, with gaps, against SciPy cell by cell."""
    rng = np.random.default_rng(3)
    for n in range(2, 6):
        x = rng.normal(0.4, 1, (6, 4))
        for cell in range(4):
            x[rng.permutation(6)[n:], cell] = np.nan
        interval, within, size = st.mean_interval(x, confidence=0.9), st.tost(x, 0.8, alpha=0.1), st.cohen_dz(x)
        for cell in range(4):
            own = x[~np.isnan(x[:, cell]), cell]
            one = stats.ttest_1samp(own, 0.0)
            limits = one.confidence_interval(0.9)
            upper = stats.ttest_1samp(own, -0.8, alternative="greater").pvalue
            lower = stats.ttest_1samp(own, 0.8, alternative="less").pvalue
            narrow = one.confidence_interval(0.8)
            found = [interval.estimate[cell], interval.low[cell], interval.high[cell], interval.standard_error[cell]]
            np.testing.assert_allclose(found, [own.mean(), *limits, stats.sem(own)])
            found = [within.estimate[cell], within.low[cell], within.high[cell], within.p[cell], within.n[cell]]
            np.testing.assert_allclose(found, [own.mean(), *narrow, max(upper, lower), n])
            assert within.equivalent[cell] == (max(upper, lower) < 0.1)
            np.testing.assert_allclose(size[cell], one.statistic / np.sqrt(n))


@pytest.mark.parametrize("d_z", [0.3, -0.5, 1.2, 4.0])
def test_a_sample_of_the_exact_size_has_the_power_and_one_less_has_not(d_z: float) -> None:
    for n_tests, power, alpha in ((1, 0.8, 0.05), (28, 0.9, 0.01)):
        n = st.sample_size(d_z, n_tests=n_tests, power=power, alpha=alpha, method="t")

        def reached(n: int, level: float = alpha / n_tests) -> float:
            critical = stats.t.isf(level / 2, n - 1)
            both = stats.nct.sf(critical, n - 1, abs(d_z) * n**0.5) + stats.nct.sf(critical, n - 1, -abs(d_z) * n**0.5)
            return float(both)

        assert reached(n) >= power and (n == 2 or reached(n - 1) < power)
        normal = (stats.norm.isf(alpha / n_tests / 2) + stats.norm.ppf(power)) / abs(d_z)
        assert st.sample_size(d_z, n_tests=n_tests, power=power, alpha=alpha) == max(2, int(np.ceil(normal**2)))


# ------------------------------------------------------------------------------------------------------------- borders


def test_the_smallest_inputs_are_allowed() -> None:
    assert st.prevalence_test(np.array([2.0]), 0.0).p.tolist() == [0.5, 1.0]
    assert st.within_test(np.array([0.5]), 1.0)[0] == 0.5
    assert st.median_interval(np.array([2.0])).estimate == 2.0
    assert st.sign_test(np.array([2.0])) == 1.0 and np.isnan(st.sign_test(np.array([np.nan])))
    assert st.average_within_problem(np.array([3.0]), ["a"]).values.tolist() == [3.0]
    assert st.concentration(np.array([3.0])).problems == (0,)
    assert st.corrected_p(np.array([[1.0], [2.0]]))[0] == 0.5
    gaps = np.array([[1.0, 1.0], [2.0, np.nan], [3.0, 3.0]])
    assert st.corrected_p(gaps, tested=np.array([True, True])).tolist() == pytest.approx([0.25, np.nan], nan_ok=True)
    with pytest.warns(UserWarning, match="no p-value below 0.05"):
        assert st.sign_flip(np.array([[1.0, 1.0], [2.0, np.nan], [np.nan, np.nan]])).tolist() == pytest.approx(
            [0.5, np.nan], nan_ok=True
        )
    for pair, flag, width in (([3.0, 3.0], "all values equal", 0.0), ([3.0, 4.0], "few problems", 12.7062047)):
        found = st.mean_interval(np.array(pair))
        assert (str(found.flag), int(found.n)) == (flag, 2) and found.high - found.low == pytest.approx(width)
        fallen = st.bootstrap_interval(np.array(pair), n_resamples=50)
        assert (str(fallen.flag) == flag) is (width == 0) and fallen.high - fallen.low <= 1
    one = st.tost(np.array([[3.0], [np.nan]]), 1.0)
    assert one.estimate == 3.0 and one.n == 1 and np.isnan([one.p, one.low, one.high]).all()
    assert np.isnan(st.exact_limits(np.array(0), np.array(0))).all()
    with pytest.warns(UserWarning, match="no p-value below 0.05"):
        assert st.max_t_sign_flip(np.array([[1.0], [3.0]])).statistic == pytest.approx(2.0)
    assert st.tost(np.array([0.1, -0.2]), 1.0).n == 2 and np.isfinite(st.tost(np.array([0.1, -0.2]), 1.0).p)
    assert st.cohen_dz(np.array([1.0, 3.0])) == pytest.approx(2 / 2**0.5)
    assert st.bootstrap_interval(np.array([1.0, 3.0]), n_resamples=2).n == 2
    assert st.rank_enrichment(np.array([[1.0, 2.0]]), np.array([1]), n_draws=1).mean_rank == 1.0
    assert st.pass_at_k(1, 1, k=1) == 1.0 and st.wilson(0, 1).low == 0.0 and st.wilson(1, 1).high == 1.0
    assert st.sample_size(50.0) == st.sample_size(50.0, method="t") == 2
    assert np.isnan(st.cohen_dz(np.full((3, 1), np.nan))) and st.tost(np.full((3, 1), np.nan), 1.0).n == 0
    even = st.median_interval(np.array([1.0, 2.0]), confidence=0.5)  # covers exactly one half
    assert (float(even.low), float(even.high)) == (1.0, 2.0)
    assert (st.fewest_problems(1, alpha=0.5, n_senses=1), st.fewest_problems(1, alpha=0.6, n_senses=1)) == (2, 1)
    assert np.isfinite(st.detectable_prevalence(6, 1)) and np.isnan(st.detectable_prevalence(5, 1))


def test_resamples_whose_denominator_is_0_make_no_noise() -> None:
    y = np.array([1.0] * 19 + [-4.0])  # every 65th resample sums to 0, and the interval does not hold it
    found = st.ratio_interval(np.stack([np.ones(20), y - 1], 1), y, method="percentile")
    assert np.isfinite(found.low).all() and found.flag.tolist() == ["", ""]
    flat = st.ratio_interval(np.ones((20, 2)), np.array([[2.0, 0.0]] * 20), n_resamples=50)
    assert flat.flag.tolist() == ["all values equal", "denominator interval holds 0"]


def test_up_to_thirteen_problems_every_pattern_is_counted() -> None:
    d = np.random.default_rng(4).normal(0.4, 1, (14, 5))
    for n, exact in ((13, True), (14, False)):
        found = st.max_t_sign_flip(d[:n], n_permutations=999)
        assert (found.exact, found.n_flips) == (exact, 2**13 if exact else 999)
        whole = 2**13 if exact else 1000
        for p in (found.p, found.p_corrected, st.sign_flip(d[:n], n_permutations=999)):
            np.testing.assert_allclose(p * whole, np.round(p * whole), atol=1e-9)
    assert st.max_t_sign_flip(d, n_permutations=999, alternative="greater").smallest_p == 1 / 1000
    assert st.max_t_sign_flip(d[:8], alternative="greater").smallest_p == 2.0**-8


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
    many = np.repeat([1.0, 2.0], 20)
    assert st.jaccard_at_k(many, np.arange(40.0)[::-1], k=5) == 0.0
    assert st.jaccard_at_k(many, np.r_[np.zeros(20), np.arange(20.0)[::-1]], k=5) == 1.0
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
        (lambda: st.ratio_interval(VALUES, OTHERS, confidence=1.0), "^confidence must lie between 0 and 1"),
        (lambda: st.sample_size(0.5, power=1.0), "power must lie between 0 and 1, got 1.0"),
        (lambda: st.sample_size(0.5, alpha=0.0), "alpha must lie between 0 and 1, got 0.0"),
        (lambda: st.sample_size(0.5, method="exact"), "method must be one of 'normal', 't', got 'exact'"),
        (lambda: st.sample_size(0.5, n_tests=0), "n_tests must be 1 or more, got 0"),
        (lambda: st.sample_size(float("inf")), "d_z must be a finite number other than 0"),
        (lambda: st.tost(VALUES, 1.0, alpha=1.0), "alpha must lie between 0 and 1"),
        (lambda: st.tost(VALUES, float("inf")), "delta must be a finite number above 0"),
        (lambda: st.tost(VALUES[:1], 1.0), "effects needs at least 2 problems"),
        (lambda: st.average_within_problem(np.array([np.inf]), ["a"]), "values holds 1 infinite values"),
        (lambda: st.average_within_problem(np.zeros((0, 2)), []), "values needs at least 1 problem on"),
        (lambda: st.bootstrap_interval(VALUES[:1]), "values needs at least 2 problems"),
        (lambda: st.mean_interval(np.array([1.0, np.inf])), "values holds 1 infinite values"),
        (lambda: st.bootstrap_interval(VALUES, confidence=0.0), "confidence must lie between 0 and 1"),
        (lambda: st.ratio_interval(VALUES[:1], OTHERS[:1]), "numerator needs at least 2 problems"),
        (lambda: st.ratio_interval(VALUES, np.full(24, np.inf)), "denominator holds 24 infinite values"),
        (lambda: st.ratio_interval(VALUES, OTHERS, n_resamples=1), "n_resamples must be 2 or more"),
        (lambda: st.share_interval(np.full(3, np.inf), np.ones(3)), "numerator holds 3 infinite values"),
        (lambda: st.share_interval(np.ones(3), np.full(3, np.inf)), "denominator holds 3 infinite values"),
        (lambda: st.paired_bootstrap_difference(VALUES[:1], VALUES[:1]), "first needs at least 2 problems"),
        (lambda: st.paired_bootstrap_difference(VALUES, VALUES * np.inf), "second holds 72 infinite values"),
        (lambda: st.max_t_two_groups(VALUES, GROUP, n_permutations=0), "n_permutations must be 1 or more"),
        (lambda: st.max_t_two_groups(VALUES, GROUP, confidence=1.0), "confidence must lie between 0 and 1"),
        (lambda: st.max_t_two_groups(VALUES[:1], GROUP[:1]), "values needs at least 2 problems"),
        (
            lambda: st.max_t_two_groups(VALUES, GROUP.astype(int)),
            r"one truth value per problem, \(24,\), got int64 \(24,\)",
        ),
        (lambda: st.max_t_two_groups(VALUES, GROUP[:5]), r"one truth value per problem, \(24,\), got bool \(5,\)"),
        (lambda: st.median_interval(VALUES, confidence=1.0), "confidence must lie between 0 and 1"),
        (lambda: st.median_interval(np.array([np.inf])), "values holds 1 infinite values"),
        (lambda: st.sign_test(np.array([np.inf])), "values holds 1 infinite values"),
        (lambda: st.concentration(np.array([np.inf])), "values holds 1 infinite values"),
        (lambda: st.concentration(np.ones(3), largest=1.0), "largest must lie between 0 and 1"),
        (lambda: st.concentration(VALUES), r"concentration is of one number per problem, got shape \(24, 3\)"),
        (lambda: st.concentration(np.array([np.nan])), "no value is defined"),
        (lambda: st.exact_limits(np.array(1), np.array(2), confidence=1.0), "confidence must lie between 0 and 1"),
        (lambda: st.fewest_problems(0), "n_cells must be 1 or more, got 0"),
        (lambda: st.fewest_problems(5, alpha=0.0), "alpha must lie between 0 and 1"),
        (lambda: st.detectable_prevalence(64, 5, power=0.0), "power must lie between 0 and 1"),
        (lambda: st.prevalence_test(np.array([np.inf]), 0.0), "effects holds 1 infinite values"),
        (
            lambda: st.max_t_sign_flip(VALUES, statistic="median"),
            "statistic must be one of 't', 'mean', got 'median'",
        ),
        (
            lambda: st.max_t_sign_flip(VALUES, alternative="both"),
            "alternative must be one of 'two-sided', 'greater', 'less'",
        ),
        (
            lambda: st.sign_flip(VALUES, alternative="both"),
            "alternative must be one of 'two-sided', 'greater', 'less'",
        ),
        (lambda: st.max_t_sign_flip(VALUES, tested=np.ones(3)), r"cells' shape \(3,\), got float64 of shape \(3,\)"),
        (lambda: st.max_t_sign_flip(VALUES, tested=np.ones(2, bool)), r"cells' shape \(3,\), got bool of shape \(2,\)"),
        (lambda: st.sign_flip(VALUES, n_permutations=0), "n_permutations must be 1 or more"),
        (lambda: st.max_t_sign_flip(VALUES, alpha=0.0), "alpha must lie between 0 and 1"),
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
        (lambda: st.rank_intervals(VALUES, by="rank"), "by must be one of 'abs', 'value', got 'rank'"),
        (lambda: st.rank_intervals(VALUES, top_k=0), "top_k must be 1 or more"),
        (lambda: st.rank_intervals(VALUES, top_k=1, confidence=1.0), "confidence must lie between 0 and 1"),
        (lambda: st.rank_intervals(VALUES, top_k=1, n_resamples=1), "n_resamples must be 2 or more"),
        (lambda: st.split_half_spearman(VALUES, by="rank"), "by must be one of 'abs', 'value', got 'rank'"),
        (lambda: st.split_half_spearman(VALUES, n_splits=0), "n_splits must be 1 or more"),
        (lambda: st.jaccard_at_k(np.ones(3), np.ones(3), k=1, by="rank"), "by must be one of 'abs', 'value'"),
        (lambda: st.jaccard_at_k(np.ones(3), np.ones(3), k=0), "k must be 1 or more"),
        (
            lambda: st.rank_enrichment(VALUES, np.array([0]), by="rank"),
            "by must be one of 'abs', 'value', got 'rank'",
        ),
        (lambda: st.rank_enrichment(VALUES, np.array([0]), n_draws=0), "n_draws must be 1 or more"),
        (lambda: st.rank_enrichment(VALUES[0], np.array([0])), r"effects must be \[problem, cell\], got shape \(3,\)"),
        (
            lambda: st.rank_enrichment(VALUES, np.array([], dtype=int)),
            "chosen must be numbers of cells from 0 to 2, got \\[\\]",
        ),
        (
            lambda: st.rank_enrichment(VALUES, np.array([0.0])),
            r"chosen must be numbers of cells from 0 to 2, got \[0.0\]",
        ),
        (
            lambda: st.rank_enrichment(VALUES, np.array([-1])),
            r"chosen must be numbers of cells from 0 to 2, got \[-1\]",
        ),
        (lambda: st.rank_enrichment(VALUES, np.array([3])), r"chosen must be numbers of cells from 0 to 2, got \[3\]"),
        (lambda: st.rank_enrichment(VALUES, np.array([1, 1])), r"every cell is chosen once, got \[1, 1\]"),
        (
            lambda: st.rank_enrichment(VALUES, np.array([1]), strata=np.zeros(2)),
            r"one label per cell, \(3,\), got \(2,\)",
        ),
        (lambda: st.rank_enrichment(VALUES * np.nan, np.array([1])), "3 cells are undefined .NaN. on some problem"),
        (lambda: st.derive_generator(1.5), "seed must be a whole number, got 1.5"),
    ],
)
@pytest.mark.usefixtures("untyped")
def test_what_is_wrong_is_named(call: Callable[[], object], message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        call()


def test_results_print_what_they_found() -> None:
    d = VALUES + np.array([3.0, 0.0, 0.0])
    flips = st.max_t_sign_flip(d, n_permutations=999, step_down=True, alternative="greater", alpha=0.01)
    assert repr(flips) == (
        "max-t sign flip (greater, step-down): 3 of 3 cells tested on 24 problems, 999 random sign flips; "
        f"{int((flips.p_corrected < 0.01).sum())} with corrected p < 0.01; smallest reachable p 0.001"
    )
    assert "max-mean sign flip (two-sided): 3 of 3 cells tested on 8 problems, all 256 sign patterns" in repr(
        st.max_t_sign_flip(d[:8], statistic="mean")
    )
    parted = d + np.where(GROUP, 9.0, 0.0)[:, None] * [1, 0, 1]
    assert repr(st.max_t_two_groups(parted, GROUP, n_permutations=999)) == (
        "two groups of problems: 3 of 3 cells tested, 999 random divisions; 2 with corrected p < 0.05; "
        "smallest reachable p 0.001"
    )
    assert "2 of 2 cells tested, all 20 divisions" in repr(st.max_t_two_groups(d[6:12, :2], GROUP[6:12]))
    assert repr(st.prevalence_test(d, 1.0)).startswith(
        "6 tests of more than 1 in most problems (n = 24 to 24): 1 at corrected p < 0.05"
    )
    half = st.split_half_spearman(d, n_splits=20)
    assert repr(half) == (
        f"split-half Spearman {half.mean:.3f} (splits {half.low:.3f} to {half.high:.3f}; all problems, by Spearman-Brown: "
        f"{half.spearman_brown:.3f}; 3 cells, 20 splits)"
    )
    ranks = st.rank_intervals(d, top_k=1, n_resamples=50, by="value")
    assert repr(ranks) == "ranks of 3 cells by mean: 1 in the top 1 in at least 95 % of the resamples"
    best = st.rank_enrichment(d, np.array([0, 1]), n_draws=99)
    assert repr(best) == f"mean rank {best.mean_rank:.2f} of 2 cells (random ones: 2.00), p = {best.p:.3g}"
    assert repr(st.concentration(np.array([9.0] + [1.0] * 19))) == (
        "32% of the effect lies in 1 problem; mean +1.4, without them +1 to +1.4"
    )
    assert repr(st.tost(np.array([[0.1, 1.0], [-0.1, 1.0], [0.2, 1.0]]), 1.0, alpha=0.1)) == (
        "equivalence to 0 within ±1: 1 of 2 cells at p < 0.1, 1 undefined (uncorrected)"
    )
    gaps = np.array([[1.0, 1.0, 2.0], [1.0, np.nan, 3.0], [1.0, np.nan, 5.0]])
    assert repr(st.bootstrap_interval(gaps, n_resamples=50, confidence=0.9)) == (
        "3 intervals (90 % bca, n = 1 to 3, 1 undefined; 1 × all values equal, 1 × fewer than 2 problems)"
    )
    assert repr(st.wilson(np.array([1, 2]), 4)) == "2 intervals (95 % wilson, n = 4 to 4, 0 undefined)"
    assert bootstrap.TOO_FEW in repr(st.one_problem(np.array(2.0)))
