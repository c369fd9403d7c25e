"""Statistics: hand-checked vectors, laws, oracles (brute force, SciPy, TransformerLens 4), error rates and messages."""

import itertools
from math import comb

import numpy as np
import pytest
from scipy import stats

from mless_interp import statistics as st
from mless_interp.statistics import arguments as checks
from mless_interp.statistics import bootstrap, permutation, ranking


def normal(*shape: int, seed: int = 0, shift: float | list[float] = 0.0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape) + np.asarray(shift)


def t_statistic(d: np.ndarray) -> np.ndarray:
    n = (~np.isnan(d)).sum(axis=0)
    return np.nanmean(d, axis=0) / (np.nanstd(d, axis=0, ddof=1) / np.sqrt(n))


def brute_force(d: np.ndarray, statistic, *, alternative: str = "two-sided") -> tuple[np.ndarray, np.ndarray]:
    """Uncorrected and max-corrected p-values from a loop over all sign patterns, as the definition reads."""
    side = {"two-sided": np.abs, "greater": lambda t: t, "less": lambda t: -t}[alternative]
    observed = side(statistic(d))
    patterns = list(itertools.product((1.0, -1.0), repeat=len(d)))
    null = np.array([side(statistic(d * np.array(s)[:, None])) for s in patterns])
    slack = 1e-9 * np.abs(observed)
    own = (null >= observed - slack).mean(axis=0)
    joint = (null.max(axis=1, keepdims=True) >= observed - slack).mean(axis=0)
    return own, joint


# ------------------------------------------------------------------------------------------ the sign-flip test


def test_p_values_of_a_table_are_those_of_the_test_and_undefined_where_there_is_none():
    d = normal(6, 4, shift=0.5)
    d[2, 1] = np.nan
    d[:, 2] = 0.25
    d[0, 3] = np.inf
    found = st.corrected_p(d)
    assert np.isnan(found).tolist() == [False, True, True, True]
    assert found[0] == st.max_t_sign_flip(d[:, :1]).p_corrected[0]
    both = normal(12, 2, shift=0.5)
    np.testing.assert_array_equal(st.corrected_p(both), st.max_t_sign_flip(both).p_corrected)
    alone = st.corrected_p(both, tested=np.array([True, False]))
    assert alone[0] == st.max_t_sign_flip(both[:, :1]).p_corrected[0] and np.isnan(alone[1])
    assert np.isnan(st.corrected_p(both[:1])).all() and np.isnan(st.corrected_p(np.zeros((5, 2)))).all()
    assert st.corrected_p(normal(3, 1, shift=5.0))[0] == 0.25, "few problems: no small p, and no warning"


def test_max_mean_sign_flip_of_the_hand_checked_vector():
    d = np.array([[1.0, 2.0, 3.0], [1.0, -1.0, 2.0]]).T
    found = st.max_t_sign_flip(d, statistic="mean", alpha=0.3)
    np.testing.assert_allclose(found.p_corrected, [0.25, 1.0])
    np.testing.assert_allclose(found.statistic, [2.0, 2 / 3])
    assert (found.n_flips, found.exact, found.n_tests, found.n_problems) == (8, True, 2, 3)
    assert found.smallest_p == 0.25


@pytest.mark.parametrize("alternative", ["two-sided", "greater", "less"])
@pytest.mark.parametrize("statistic", ["t", "mean"])
def test_exact_p_values_equal_a_brute_force_loop(statistic, alternative):
    d = normal(7, 5, shift=0.4) * [1.0, 3.0, 0.1, 1.0, 10.0]
    reference = t_statistic if statistic == "t" else lambda x: x.mean(axis=0)
    own, joint = brute_force(d, reference, alternative=alternative)
    found = st.max_t_sign_flip(d, statistic=statistic, alternative=alternative)
    np.testing.assert_allclose(found.p, own, rtol=0, atol=1e-15)
    np.testing.assert_allclose(found.p_corrected, joint, rtol=0, atol=1e-15)
    np.testing.assert_allclose(found.statistic, reference(d))


@pytest.mark.parametrize("unit", [1e-9, 0.1, 1e9 / 3])
def test_exact_p_values_with_ties_equal_a_brute_force_loop(unit):
    d = np.random.default_rng(3).integers(-2, 4, size=(8, 6)).astype(float) * unit
    own, joint = brute_force(d, lambda x: x.mean(axis=0))
    found = st.max_t_sign_flip(d, statistic="mean")
    np.testing.assert_allclose(found.p, own, rtol=0, atol=1e-15)
    np.testing.assert_allclose(found.p_corrected, joint, rtol=0, atol=1e-15)


def test_cells_with_undefined_problems_are_tested_on_the_problems_they_have():
    d = normal(8, 4, shift=0.5)
    d[0, 0] = d[3, 2] = d[4, 2] = np.nan
    own, joint = brute_force(d, t_statistic)
    found = st.max_t_sign_flip(d, min_problems=6)
    np.testing.assert_allclose(found.p, own, rtol=0, atol=1e-15)
    np.testing.assert_allclose(found.p_corrected, joint, rtol=0, atol=1e-15)
    np.testing.assert_allclose(found.statistic, t_statistic(d))
    assert found.n.tolist() == [7, 8, 6, 8]


def test_step_down_equals_its_definition_and_is_never_larger_than_single_step():
    d = normal(8, 6, seed=5) + np.array([2.0, 1.5, 0.7, 0.2, 0.0, 0.0])
    single, step = (st.max_t_sign_flip(d, step_down=on) for on in (False, True))
    assert (step.p_corrected <= single.p_corrected).all() and (step.p_corrected < single.p_corrected).any()
    assert (step.p_corrected >= step.p).all()
    order, running, expected = np.argsort(-np.abs(t_statistic(d))), 0.0, np.empty(6)
    for k, cell in enumerate(order):
        running = max(running, brute_force(d[:, order[k:]], t_statistic)[1][0])
        expected[cell] = running
    np.testing.assert_allclose(step.p_corrected, expected, rtol=0, atol=1e-15)


@pytest.mark.parametrize("step_down", [False, True])
def test_corrected_p_values_are_monotone_and_never_below_the_uncorrected(step_down):
    d = normal(30, 4, 5, seed=2, shift=0.3)
    found = st.max_t_sign_flip(d, n_permutations=999, step_down=step_down)
    assert found.p.shape == found.p_corrected.shape == found.statistic.shape == (4, 5)
    assert (found.p_corrected >= found.p).all()
    order = np.argsort(-np.abs(found.statistic), axis=None)
    assert (np.diff(found.p_corrected.ravel()[order]) >= 0).all()
    assert (found.p_corrected >= 1 / 1000).all()


def test_the_identity_always_counts_despite_rounding():
    d = normal(13, 40, seed=1, shift=3.0) * np.geomspace(1e-8, 1e8, 40)
    found = st.max_t_sign_flip(d)
    assert found.n_flips == 2**13 and found.smallest_p == 2.0**-12
    assert (found.p >= 2.0**-12).all() and np.nanmin(found.p_corrected) == 2.0**-12


def test_p_values_do_not_depend_on_a_cells_unit_or_sign():
    d = normal(20, 3, seed=4, shift=0.3)
    one, other = (st.max_t_sign_flip(x, n_permutations=999) for x in (d, d * [1e-200, -1.0, 1e150]))
    np.testing.assert_array_equal(one.p, other.p)
    np.testing.assert_array_equal(one.p_corrected, other.p_corrected)


def test_the_smallest_random_p_value_is_1_over_b_plus_1_and_never_0():
    found = st.max_t_sign_flip(normal(40, 3, shift=[9.0, 0.0, 0.0]), n_permutations=999)
    assert found.p[0] == found.p_corrected[0] == found.smallest_p == 1 / 1000
    assert found.p.max() <= 1 and found.p_corrected.max() <= 1


def test_a_family_of_one_needs_no_correction():
    d = normal(25, 1, shift=0.5)
    found = st.max_t_sign_flip(d, n_permutations=999)
    np.testing.assert_array_equal(found.p_corrected, found.p)
    np.testing.assert_array_equal(found.p, st.sign_flip(d, n_permutations=999))


def test_random_flips_approach_the_exact_p_values(monkeypatch):
    d = normal(12, 6, seed=8, shift=0.4)
    exact = st.max_t_sign_flip(d)
    monkeypatch.setattr(permutation, "EXACT_UP_TO", 1)
    drawn = st.max_t_sign_flip(d, n_permutations=20_000)
    assert exact.exact and not drawn.exact
    np.testing.assert_allclose(drawn.p, exact.p, atol=0.015)
    np.testing.assert_allclose(drawn.p_corrected, exact.p_corrected, atol=0.015)


@pytest.mark.parametrize("step_down", [False, True])
@pytest.mark.parametrize("n", [10, 70])
def test_chunks_do_not_change_the_result(monkeypatch, n, step_down):
    d = normal(n, 7, seed=6, shift=0.2)
    whole = st.max_t_sign_flip(d, n_permutations=1_000, step_down=step_down)
    monkeypatch.setattr(permutation, "_CHUNK_VALUES", 1)
    parts = st.max_t_sign_flip(d, n_permutations=1_000, step_down=step_down)
    np.testing.assert_array_equal(whole.p, parts.p)
    np.testing.assert_array_equal(whole.p_corrected, parts.p_corrected)


def test_random_signs_are_fair_independent_and_whole_problem():
    signs = np.concatenate(list(permutation._sign_chunks(130, n_cells=1, n_permutations=4_000, seed=0)))
    assert signs.shape == (4_000, 130) and set(np.unique(signs)) == {-1.0, 1.0}
    assert np.abs(signs.mean(axis=0)).max() < 5 / np.sqrt(4_000)
    assert np.abs(np.corrcoef(signs.T) - np.eye(130)).max() < 6 / np.sqrt(4_000)
    patterns = np.concatenate(list(permutation._sign_chunks(5, n_cells=1, n_permutations=1, seed=0)))
    assert len(np.unique(patterns, axis=0)) == 32 and (patterns[0] == 1).all()


def test_same_seed_same_result_and_no_global_random_state():
    d = normal(20, 5, shift=0.2)
    np.random.seed(1)
    before = np.random.get_state()[1].copy()
    one = st.max_t_sign_flip(d, n_permutations=500, seed=3)
    np.random.seed(2)
    np.testing.assert_array_equal(one.p_corrected, st.max_t_sign_flip(d, n_permutations=500, seed=3).p_corrected)
    assert (one.p != st.max_t_sign_flip(d, n_permutations=500, seed=4).p).any()
    np.random.seed(1)
    np.testing.assert_array_equal(before, np.random.get_state()[1])


def test_cells_without_spread_or_with_undefined_problems_leave_the_family():
    d = normal(9, 6, seed=7, shift=0.5)
    d[:, 1], d[:, 2], d[4, 3] = 0.0, 0.1, np.nan
    found = st.max_t_sign_flip(d)
    assert found.tested.tolist() == [True, False, False, False, True, True]
    assert np.isnan(found.p[1:4]).all() and np.isnan(found.p_corrected[1:4]).all()
    assert found.n.tolist() == [9, 9, 9, 8, 9, 9]
    assert np.isnan(found.statistic[[1, 2]]).all() and np.isfinite(found.statistic[3])
    alone = st.max_t_sign_flip(d[:, [0, 4, 5]])
    np.testing.assert_array_equal(found.p_corrected[[0, 4, 5]], alone.p_corrected)


def test_tested_restricts_the_family_and_its_correction():
    d = normal(10, 2, 3, seed=9, shift=0.4)
    mask = np.array([[True, False, True], [False, False, True]])
    found = st.max_t_sign_flip(d, tested=mask)
    np.testing.assert_array_equal(np.isnan(found.p_corrected), ~mask)
    np.testing.assert_array_equal(found.p_corrected[mask], st.max_t_sign_flip(d[:, mask]).p_corrected)
    assert np.isfinite(found.statistic).all()
    assert (found.p_corrected[mask] <= st.max_t_sign_flip(d).p_corrected[mask]).all()


def test_sign_flip_uses_each_cells_own_problems():
    d = normal(9, 3, seed=11, shift=0.6)
    d[0, 1] = d[5, 1] = np.nan
    d[1:, 2] = np.nan
    p = st.sign_flip(d)
    assert p[1] == st.sign_flip(d[~np.isnan(d[:, 1]), 1]).item()
    assert np.isnan(p[2])
    assert st.sign_flip(np.zeros((8, 1))).item() == 1.0


def null_data(seed: int, *, n: int, n_cells: int) -> np.ndarray:
    """No effect anywhere; cells depend on each other, differ in spread, and have heavy tails."""
    rng = np.random.default_rng(seed)
    shared = rng.normal(size=(n, 1))
    return (0.7 * shared + rng.standard_t(3, size=(n, n_cells))) * np.geomspace(0.1, 10, n_cells)


@pytest.mark.parametrize(("statistic", "step_down", "n"), [("t", False, 10), ("t", True, 16), ("mean", False, 10)])
def test_family_wise_error_on_null_data_is_the_stated_one(statistic, step_down, n):
    n_sets, alpha = 400, 0.05
    false_alarms = np.zeros(2)
    for seed in range(n_sets):
        found = st.max_t_sign_flip(
            null_data(seed, n=n, n_cells=25), statistic=statistic, step_down=step_down, n_permutations=499, seed=seed
        )
        false_alarms += [found.p_corrected.min() <= alpha, found.p.min() <= alpha]
    corrected, uncorrected = false_alarms / n_sets
    allowed = 2 * np.sqrt(alpha * (1 - alpha) / n_sets)
    assert corrected <= alpha + allowed
    assert corrected >= alpha - 2 * allowed, "far below the stated rate: the test wastes power"
    assert uncorrected > 5 * alpha, "without the correction this test must see too many false alarms"


def test_a_strong_head_among_784_is_found_alone():
    d = normal(128, 28, 28, seed=14)
    d[:, 0, 13] += 0.8
    found = st.max_t_sign_flip(d, n_permutations=2_000)
    assert np.argwhere(found.p_corrected < 0.05).tolist() == [[0, 13]]
    assert "1 with corrected p < 0.05" in repr(found) and "784 of 784 cells tested on 128 problems" in repr(found)


def test_a_warning_when_the_threshold_is_out_of_reach():
    with pytest.warns(
        UserWarning, match="no p-value below 0.05 can be reached with 5 problems.*more problems are needed"
    ):
        st.max_t_sign_flip(normal(5, 3))
    with pytest.warns(UserWarning, match="no p-value below 0.05 can be reached with 20 problems and 19 sign flips"):
        st.max_t_sign_flip(normal(20, 3), n_permutations=19)
    with pytest.warns(UserWarning, match="100 sign flips are few for a threshold of 0.05.*at least 200"):
        st.sign_flip(normal(20, 3), n_permutations=100)
    with pytest.warns(UserWarning, match="no p-value below 6.4e-05"):
        st.sign_flip(normal(20, 3), alpha=0.05 / 784)


@pytest.mark.parametrize(
    "test", [st.max_t_sign_flip, st.sign_flip, st.bootstrap_interval, st.rank_intervals, st.cohen_dz]
)
def test_bad_effects_are_refused(test):
    with pytest.raises(ValueError, match=r"at least 2 problems on its first axis, got 1 \(shape \(1, 3\)\)"):
        test(np.ones((1, 3)))
    with pytest.raises(ValueError, match="the family is empty"):
        test(np.ones((5, 0)))
    with pytest.raises(ValueError, match="holds 1 infinite values; use NaN"):
        test(np.array([1.0, np.inf, 2.0]))


def test_a_single_number_is_not_effects():
    with pytest.raises(ValueError, match=r"must be \[problem, \*cells\], got a single number"):
        checks.check_effects(1.0)


def test_an_empty_family_says_why():
    d = normal(8, 3)
    d[2] = np.nan
    with pytest.raises(ValueError, match=r"the family is empty: of 3 cells 0 .* 3 are undefined .*needed: 8 of 8"):
        st.max_t_sign_flip(d)
    with pytest.raises(ValueError, match="2 have the same value in every problem"):
        st.max_t_sign_flip(np.ones((8, 2)))
    with pytest.raises(ValueError, match="3 are excluded by `tested`"):
        st.max_t_sign_flip(normal(8, 3), tested=np.zeros(3, dtype=bool))
    with pytest.raises(ValueError, match="no cell is defined in at least 2 problems"):
        st.sign_flip(np.full((8, 3), np.nan))
    with pytest.raises(ValueError, match=r"tested must be a boolean array of the cells' shape \(3,\), got float64"):
        st.max_t_sign_flip(normal(8, 3), tested=np.ones((3, 1)))


def test_options_are_checked():
    with pytest.raises(ValueError, match="statistic must be one of 't', 'mean', got 'median'"):
        checks.check_choice("median", name="statistic", choices=("t", "mean"))
    with pytest.raises(ValueError, match="n_permutations must be 1 or more, got 0"):
        st.max_t_sign_flip(normal(8, 3), n_permutations=0)
    with pytest.raises(ValueError, match="alpha must lie between 0 and 1, got 5.0"):
        st.sign_flip(normal(8, 3), alpha=5.0)
    with pytest.raises(TypeError, match="n_permutations must be a whole number, got True"):
        st.sign_flip(normal(8, 3), n_permutations=True)
    with pytest.raises(ValueError, match="min_problems must be 2 or more"):
        st.max_t_sign_flip(normal(8, 3), min_problems=1)


# ------------------------------------------------------------------------------------------ many p-values


def test_benjamini_hochberg_of_the_hand_checked_vector():
    adjusted = st.benjamini_hochberg(np.array([0.01, 0.04, 0.03, 0.5]))
    np.testing.assert_allclose(adjusted, [0.04, 0.16 / 3, 0.16 / 3, 0.5])


def test_holm_by_hand_and_between_bonferroni_and_nothing():
    np.testing.assert_allclose(st.holm(np.array([0.01, 0.04, 0.03, 0.5])), [0.04, 0.09, 0.09, 0.5])
    p = np.random.default_rng(1).random(30) ** 3
    holm = st.holm(p)
    assert (holm >= p).all() and (holm <= np.minimum(1, 30 * p)).all()
    assert (np.diff(holm[np.argsort(p)]) >= 0).all()
    assert (st.benjamini_hochberg(p) <= holm).all()


@pytest.mark.parametrize("adjust", [st.holm, st.benjamini_hochberg])
def test_untested_cells_leave_the_family(adjust):
    p = np.array([[0.01, np.nan], [0.04, 0.03]])
    adjusted = adjust(p)
    assert np.isnan(adjusted[0, 1])
    np.testing.assert_array_equal(adjusted[~np.isnan(p)], adjust(np.array([0.01, 0.04, 0.03])))
    with pytest.raises(ValueError, match="no p-value is defined .* the family is empty"):
        adjust(np.array([np.nan, np.nan]))
    with pytest.raises(ValueError, match=r"p-values must lie in \[0, 1\], got values from 0.5 to 2"):
        adjust(np.array([0.5, 2.0]))


# ------------------------------------------------------------------------------------------ bootstrap intervals


def test_ties_with_the_observed_mean_count_half():
    x = np.array([0.0, 0.0, 1.0, 1.0]) * 0.1
    ours = st.bootstrap_interval(x, n_resamples=4_000)
    theirs = stats.bootstrap(
        (x * 10,), np.mean, n_resamples=4_000, method="BCa", rng=st.derive_generator(0, "bootstrap", 4)
    )
    np.testing.assert_allclose([ours.low, ours.high], 0.1 * np.array(theirs.confidence_interval), atol=1e-12)


@pytest.mark.parametrize("method", ["bca", "percentile"])
def test_interval_coverage_on_skewed_data(method):
    x = np.random.default_rng(2).exponential(size=(40, 1_500))
    found = st.bootstrap_interval(x, n_resamples=1_000, method=method)
    coverage = ((found.low <= 1) & (found.high >= 1)).mean()
    assert 0.90 < coverage < 0.965
    narrow = st.bootstrap_interval(x, n_resamples=1_000, method=method, confidence=0.5)
    assert 0.45 < ((narrow.low <= 1) & (narrow.high >= 1)).mean() < 0.55


def test_equal_values_give_a_flagged_point_and_no_rounding():
    found = st.bootstrap_interval(np.full((7, 2), [0.1, 0.0]), n_resamples=100)
    assert found.estimate.tolist() == found.low.tolist() == found.high.tolist() == [0.1, 0.0]
    assert found.flag.tolist() == ["all values equal"] * 2 and found.standard_error.tolist() == [0.0, 0.0]


def test_infinite_z0_falls_back_to_percentile_and_says_so(monkeypatch):
    draws = np.array([[1.0, 2.0, 3.0, 4.0, 5.0]])
    low, high, fell_back = bootstrap._limits(
        draws.copy(), np.array([0.5]), tie=np.array([0.0]), skew=np.array([0.1]), confidence=0.5, method="bca"
    )
    assert fell_back.tolist() == [True] and (low.item(), high.item()) == (2.0, 4.0)
    monkeypatch.setattr(
        bootstrap, "resample_weights", lambda n, b, seed: np.array([[2, 1, 0], [1, 1, 1], [3, 0, 0]] * 5)
    )
    x = np.array([0.0, 1.0, 5.0])  # every resampled mean is at most the mean, two in three below it
    assert st.bootstrap_interval(x, n_resamples=15).flag.item() == ""
    monkeypatch.setattr(bootstrap, "resample_weights", lambda n, b, seed: np.array([[2, 1, 0], [3, 0, 0]] * 5))
    found = st.bootstrap_interval(x, n_resamples=10)
    assert found.flag.item() == "BCa undefined: percentile" and "BCa undefined" in repr(found)
    plain = st.bootstrap_interval(x, n_resamples=10, method="percentile")
    assert (found.low, found.high) == (plain.low, plain.high) and plain.flag.item() == ""


def test_a_cell_with_undefined_problems_equals_the_cell_without_them():
    x = normal(20, 3, seed=3)
    x[[2, 5], 1] = np.nan
    x[1:, 2] = np.nan
    found = st.bootstrap_interval(x, n_resamples=500)
    alone = st.bootstrap_interval(x[~np.isnan(x[:, 1]), 1], n_resamples=500)
    np.testing.assert_allclose([found.low[1], found.high[1]], [alone.low, alone.high], rtol=1e-12)
    assert found.n.tolist() == [20, 18, 1]
    assert np.isnan([found.estimate[2], found.low[2], found.high[2]]).all() and found.flag[2] == "fewer than 2 problems"
    assert "1 undefined; 1 × fewer than 2 problems" in repr(found)


def test_bootstrap_chunks_do_not_change_the_result(monkeypatch):
    x = normal(33, 9, seed=4)
    weights = bootstrap.resample_weights(33, 700, 0)
    one = st.bootstrap_interval(x, n_resamples=700)
    ratio = st.ratio_interval(x, 5 + x[:, 0], n_resamples=700)
    monkeypatch.setattr(bootstrap, "_CHUNK_VALUES", 1_500)
    np.testing.assert_array_equal(weights, bootstrap.resample_weights(33, 700, 0))
    two = st.bootstrap_interval(x, n_resamples=700)
    np.testing.assert_allclose([one.low, one.high], [two.low, two.high], rtol=1e-12)
    again = st.ratio_interval(x, 5 + x[:, 0], n_resamples=700)
    np.testing.assert_allclose([ratio.low, ratio.high], [again.low, again.high], rtol=1e-12)


def test_every_resample_draws_n_problems():
    weights = bootstrap.resample_weights(17, 300, 5)
    assert (weights.sum(axis=1) == 17).all()
    assert abs(weights.mean() - 1) < 1e-12 and abs(weights.var() - 16 / 17) < 0.05


def test_paired_difference_pairs_and_its_standard_error_is_the_paired_one():
    before, after = np.array([1, 0, 0, 1, 0, 0]), np.array([1, 1, 1, 0, 0, 1])
    found = st.paired_bootstrap_difference(before, after, n_resamples=2_000)
    d = after - before
    assert found.estimate.item() == pytest.approx(2 / 6)
    assert found.standard_error.item() == pytest.approx(d.std(ddof=1) / 6**0.5)
    truth = st.paired_bootstrap_difference(before.astype(bool), after.astype(bool), n_resamples=2_000)
    assert (truth.low, truth.high) == (found.low, found.high)
    shared = normal(50, seed=5) * 10
    assert st.paired_bootstrap_difference(shared, shared + normal(50, seed=6) * 0.1).standard_error < 0.02
    with pytest.raises(ValueError, match=r"paired values need one shape, got first \(5,\) and second \(6,\)"):
        st.paired_bootstrap_difference(np.ones(5), np.ones(6))


def test_ratio_is_of_means_and_resampled_together():
    rng = np.random.default_rng(6)
    y = rng.normal(2.0, 1.0, size=60)
    x = 0.3 * y[:, None] + 0.01 * rng.normal(size=(60, 2))
    found = st.ratio_interval(x, y)
    np.testing.assert_allclose(found.estimate, x.mean(axis=0) / y.mean())
    assert (found.high - found.low < 0.01).all(), "drawn apart, the spread of y alone would give about 0.08"
    oracle = stats.bootstrap(
        (x[:, 0], y),
        lambda a, b, axis=-1: a.mean(axis=axis) / b.mean(axis=axis),
        paired=True,
        vectorized=True,
        n_resamples=10_000,
        method="BCa",
        rng=st.derive_generator(0, "bootstrap", 60),
    )
    np.testing.assert_allclose([found.low[0], found.high[0]], list(oracle.confidence_interval), rtol=1e-9)
    np.testing.assert_allclose(found.standard_error[0], oracle.standard_error, rtol=1e-6)


def test_ratio_with_one_denominator_equals_the_same_denominator_per_cell():
    x, y = normal(30, 2, 3, seed=7), normal(30, seed=8, shift=3.0)
    one = st.ratio_interval(x, y, n_resamples=500)
    each = st.ratio_interval(x, np.broadcast_to(y[:, None, None], x.shape).copy(), n_resamples=500)
    np.testing.assert_array_equal([one.low, one.high], [each.low, each.high])
    assert one.estimate.shape == (2, 3)


def test_ratio_is_undefined_where_the_denominators_interval_holds_0():
    y = np.stack([normal(30, seed=9), normal(30, seed=9, shift=2.0), np.zeros(30), np.full(30, 2.0)], axis=1)
    x = np.repeat(normal(30, 1, seed=10, shift=1.0), 4, axis=1)
    found = st.ratio_interval(x, y, n_resamples=500)
    held = "denominator interval holds 0"
    assert found.flag.tolist() == [held, "", held, ""]
    assert np.isnan(found.estimate).tolist() == np.isnan(found.low).tolist() == [True, False, True, False]
    plain = st.bootstrap_interval(x[:, 3], n_resamples=500)
    np.testing.assert_allclose([found.low[3], found.high[3]], [plain.low / 2, plain.high / 2], rtol=1e-12)


def test_an_exact_fraction_is_a_point():
    y = normal(30, seed=11, shift=3.0)
    found = st.ratio_interval(0.1 * y, y, n_resamples=500)
    assert found.low == found.high == found.estimate and found.estimate == pytest.approx(0.1)
    assert found.flag.item() == "all values equal"


def test_ratio_leaves_out_problems_undefined_in_either():
    x, y = normal(20, 2, seed=12), normal(20, seed=13, shift=4.0)
    x[3, 0] = y[7] = np.nan
    found = st.ratio_interval(x, y, n_resamples=300)
    keep = ~(np.isnan(x[:, 0]) | np.isnan(y))
    assert found.n.tolist() == [18, 19]
    assert found.estimate[0] == pytest.approx(x[keep, 0].mean() / y[keep].mean())
    with pytest.raises(ValueError, match=r"denominator must be \[problem\] = \(20,\) or have the numerator's shape"):
        st.ratio_interval(x, y[:5])


def test_ratio_coverage():
    rng = np.random.default_rng(14)
    y = rng.exponential(size=(50, 1_000)) + 0.5
    x = 0.4 * y + rng.normal(size=y.shape)
    found = st.ratio_interval(x, y, n_resamples=800)
    assert 0.91 < ((found.low <= 0.4) & (found.high >= 0.4)).mean() < 0.975


def test_bootstrap_options_are_checked():
    with pytest.raises(ValueError, match="confidence must lie between 0 and 1, got 95.0"):
        st.bootstrap_interval(normal(5), confidence=95.0)
    with pytest.raises(ValueError, match="n_resamples must be 2 or more, got 1"):
        st.bootstrap_interval(normal(5), n_resamples=1)


# ------------------------------------------------------------------------------------------ rankings


def test_clear_ranks_have_point_intervals_and_ties_share_places():
    d = np.array([5.0, -9.0, 1.0, 1.0]) + 0.01 * normal(30, 4)
    d[:, 3] = d[:, 2]
    found = st.rank_intervals(d, top_k=3, n_resamples=300)
    assert found.rank.tolist() == found.low.tolist() == found.high.tolist() == [2.0, 1.0, 3.5, 3.5]
    assert found.p_top_k.tolist() == [1.0, 1.0, 0.5, 0.5]
    assert st.rank_intervals(d, top_k=1, by="value", n_resamples=300).rank.tolist() == [1.0, 4.0, 2.5, 2.5]


def test_rank_laws():
    d = normal(25, 3, 4, seed=1)
    d[0, 1, 1] = np.nan
    found = st.rank_intervals(d, top_k=4, n_resamples=400)
    assert found.p_top_k[~np.isnan(found.p_top_k)].sum() == pytest.approx(4)
    assert np.isnan(found.rank[1, 1]) and np.isnan(found.p_top_k[1, 1]) and found.n[1, 1] == 24
    ranked = ~np.isnan(found.rank)
    assert (found.low[ranked] <= found.high[ranked]).all() and found.rank[ranked].sum() == 11 * 12 / 2
    order = np.argsort(-np.abs(d.mean(axis=0))[ranked])
    assert found.rank[ranked][order].tolist() == list(range(1, 12))
    assert "ranks of 11 cells by |mean|" in repr(found)


def test_ranking_chunks_do_not_change_the_result(monkeypatch):
    d = normal(21, 30, seed=2, shift=0.1)
    one, split = st.rank_intervals(d, n_resamples=333), st.split_half_spearman(d, n_splits=97)
    monkeypatch.setattr(ranking, "_CHUNK_VALUES", 100)
    two, again = st.rank_intervals(d, n_resamples=333), st.split_half_spearman(d, n_splits=97)
    np.testing.assert_array_equal([one.low, one.high, one.p_top_k], [two.low, two.high, two.p_top_k])
    assert split == again


def test_split_half_spearman_is_1_for_a_fixed_order_and_0_for_noise():
    steady = np.arange(10.0) + 0.01 * normal(20, 10)
    assert st.split_half_spearman(steady).mean == 1.0
    noise = normal(40, 300, seed=3) * np.geomspace(0.01, 1, 300)
    by_value = st.split_half_spearman(noise, n_splits=200)
    assert abs(by_value.mean) < 0.2 and by_value.low < 0 < by_value.high
    assert st.split_half_spearman(noise, n_splits=200, by="abs").mean > 0.5, "magnitudes agree on noise"
    assert by_value.spearman_brown == pytest.approx(2 * by_value.mean / (1 + by_value.mean))


def test_rankings_refuse_what_cannot_be_ranked():
    with pytest.raises(ValueError, match="top_k is 10, but only 3 cells are defined"):
        st.rank_intervals(normal(5, 3))
    with pytest.raises(ValueError, match="none of the 2 cells is defined in all 5 problems"):
        st.rank_intervals(np.full((5, 2), np.nan), top_k=1)
    with pytest.raises(ValueError, match="at least 2 cells"):
        st.split_half_spearman(normal(5, 1))
    with pytest.raises(ValueError, match="no ranking to compare"):
        st.split_half_spearman(np.ones((6, 3)))


def test_jaccard_at_k_by_hand():
    a, b = np.array([[4.0, -5.0], [1.0, np.nan]]), np.array([[4.0, 1.0], [5.0, 9.0]])
    assert st.jaccard_at_k(a, b, k=2) == 1 / 3  # {-5, 4} and {5, 4}
    assert st.jaccard_at_k(a, b, k=2, by="value") == 1.0
    assert st.jaccard_at_k(a, a, k=3) == 1.0
    with pytest.raises(ValueError, match="k is 4, but only 3 cells are defined in both"):
        st.jaccard_at_k(a, b, k=4)
    with pytest.raises(ValueError, match=r"over the same cells, got shapes \(2, 2\) and \(3,\)"):
        st.jaccard_at_k(a, np.ones(3), k=1)


# ------------------------------------------------------------------------------------------ accuracy


@pytest.mark.parametrize(
    ("only_first", "only_second", "p"),
    [(5, 1, 0.21875), (0, 0, 1.0), (3, 3, 1.0), (23, 10, 0.035), (33, 20, 0.098), (43, 30, 0.160)],
)
def test_mcnemar_of_the_hand_checked_counts(only_first, only_second, p):
    assert st.mcnemar(only_first, only_second) == pytest.approx(p, abs=5e-4)
    assert st.mcnemar(only_first, only_second) == st.mcnemar(only_second, only_first)


def test_mcnemar_equals_its_formula_and_the_exact_sign_flip_test():
    for b, c in itertools.product(range(8), range(5)):
        n = b + c
        formula = min(1.0, 2 * sum(comb(n, i) for i in range(min(b, c) + 1)) / 2**n)
        assert st.mcnemar(b, c) == pytest.approx(formula, abs=1e-14)
        if n >= 6:
            flips = np.array([1.0] * b + [-1.0] * c)
            assert st.sign_flip(flips).item() == pytest.approx(formula, abs=1e-14)
    with pytest.raises(ValueError, match="only_second must be 0 or more, got -1"):
        st.mcnemar(3, -1)


def test_wilson_of_the_hand_checked_share():
    found = st.wilson(362, 500)
    assert found.low.item() == pytest.approx(0.68322, abs=5e-6) and found.high.item() == pytest.approx(
        0.76136, abs=5e-6
    )
    assert found.standard_error.item() == pytest.approx(0.02, abs=5e-5)


def test_wilson_covers_and_is_undefined_without_problems():
    k = np.arange(21)
    found = st.wilson(k, 20, confidence=0.9)
    chance = stats.binom.pmf(k, 20, 0.3)
    assert 0.85 < chance[(found.low <= 0.3) & (found.high >= 0.3)].sum() < 0.97
    none = st.wilson(np.array([0, 0, 5]), np.array([0, 5, 5]))
    assert np.isnan(none.low[0]) and np.isnan(none.high[0]) and none.flag[0] == "no problems"
    assert none.low[1] == 0.0 and none.high[1] < 1 and none.high[2] == 1.0


def test_counts_are_checked():
    with pytest.raises(ValueError, match="successes must not exceed n"):
        st.wilson(6, 5)
    with pytest.raises(TypeError, match="successes must be whole numbers, got float64"):
        st.wilson(np.array([0.5]), 5)
    with pytest.raises(ValueError, match="n_correct must not be negative, got -1"):
        st.pass_at_k(np.array([-1]), 5, k=1)
    with pytest.raises(ValueError, match="pass@3 needs at least 3 samples of every problem, got 2"):
        st.pass_at_k(1, 2, k=3)
    with pytest.raises(ValueError, match="n_correct must not exceed n_samples"):
        st.pass_at_k(3, 2, k=1)


def test_pass_at_k_equals_drawing_all_subsets():
    n, k = 6, 3
    for c in range(n + 1):
        hit = [any(i < c for i in subset) for subset in itertools.combinations(range(n), k)]
        assert st.pass_at_k(c, n, k=k).item() == pytest.approx(np.mean(hit))
    np.testing.assert_allclose(st.pass_at_k(np.arange(6), 5, k=1), np.arange(6) / 5)


# ------------------------------------------------------------------------------------------ size, power, equivalence


@pytest.mark.parametrize(("n_tests", "sizes"), [(28, [175, 99, 63]), (784, [261, 147, 94]), (1024, [268, 151, 97])])
def test_sample_sizes_of_the_methods(n_tests, sizes):
    assert [st.sample_size(d, n_tests=n_tests) for d in (0.3, 0.4, 0.5)] == sizes
    assert [st.sample_size(-d, n_tests=n_tests) for d in (0.3, 0.4, 0.5)] == sizes


def test_the_exact_sample_size_reaches_the_power_and_one_less_does_not():
    n = st.sample_size(0.5, n_tests=28, method="t")
    assert n == 68

    def power(n: int) -> float:
        critical = stats.t.isf(0.025 / 28, n - 1)
        return float(stats.nct.sf(critical, n - 1, 0.5 * n**0.5) + stats.nct.cdf(-critical, n - 1, 0.5 * n**0.5))

    assert power(n) >= 0.8 > power(n - 1)
    assert st.sample_size(5.0, method="t") >= 2
    with pytest.raises(ValueError, match="no sample shows an effect of 0"):
        st.sample_size(0.0)


def test_cohen_dz_by_hand():
    d = np.array([[1.0, 2.0, np.nan], [2.0, 2.0, 1.0], [3.0, 2.0, np.nan]])
    np.testing.assert_array_equal(st.cohen_dz(d), [2.0, np.nan, np.nan])
    np.testing.assert_allclose(st.cohen_dz(normal(20, 2, 3)) * 20**0.5, t_statistic(normal(20, 2, 3)))


def test_tost_compares_the_interval_with_delta_and_leaves_gaps_out():
    d = normal(25, 4, seed=1) * 0.5 + [0.0, 0.3, -0.3, 2.0]
    d[3, 0] = np.nan
    found = st.tost(d, 0.4)
    np.testing.assert_array_equal(found.equivalent, (found.low > -0.4) & (found.high < 0.4))
    assert found.p[0] == pytest.approx(st.tost(np.delete(d[:, 0], 3), 0.4).p.item())
    assert found.equivalent[0] and not found.equivalent[3] and found.n.tolist() == [24, 25, 25, 25]
    assert "equivalence to 0 within ±0.4" in repr(found)


def test_tost_keeps_its_level_at_the_border_and_has_no_p_without_spread():
    at_border = st.tost(normal(30, 3_000, seed=2, shift=1.0), 1.0)
    assert 0.035 < at_border.equivalent.mean() < 0.065
    flat = st.tost(np.zeros((10, 1)), 0.5)
    assert np.isnan(flat.p).all() and not flat.equivalent.any()
    with pytest.raises(ValueError, match="delta must be a finite number above 0, in the unit of the effects"):
        st.tost(normal(5), 0.0)


def test_the_mean_of_what_is_defined_by_hand():
    values = np.array([[1.0, np.nan, np.inf], [3.0, np.nan, 5.0], [np.nan, np.nan, 7.0]])
    np.testing.assert_array_equal(st.defined_mean(values), [2.0, np.nan, np.inf])  # infinite is defined
    np.testing.assert_array_equal(st.defined_mean(values, axis=1), [np.inf, 4.0, 7.0])
    assert np.isnan(st.defined_mean(np.array([np.inf, -np.inf])))
    assert st.defined_mean(values[:, 0]) == 2.0 and np.isnan(st.defined_mean(np.array([])))


def test_gaps_do_not_change_the_last_digit_of_a_mean():
    values = normal(1000)
    gaps = np.insert(values, np.arange(0, 1000, 3), np.nan)
    assert st.defined_mean(gaps) == values.mean()
    columns = np.stack([gaps, gaps], 1)
    assert st.defined_mean(columns)[0] == np.add.accumulate(values)[-1] / 1000, "row by row, as NumPy adds a first axis"


def test_average_within_problem_makes_the_problem_the_unit():
    values = np.array([[1.0, 4.0], [3.0, np.nan], [5.0, np.nan], [7.0, 2.0]])
    found = st.average_within_problem(values, ["b", "b", "a", "b"])
    assert found.problems == ("b", "a")
    np.testing.assert_array_equal(found.values, [[11 / 3, 3.0], [5.0, np.nan]])
    assert found.n.tolist() == [[3, 2], [1, 0]]
    with pytest.raises(ValueError, match="one problem label per row: got 2 labels for 4 rows"):
        st.average_within_problem(values, np.array([0, 1]))


def test_repeated_samples_would_make_the_interval_too_narrow():
    problem = np.repeat(np.arange(30), 20)
    values = normal(30, seed=3)[problem] + 0.1 * normal(600, seed=4)
    naive = st.bootstrap_interval(values, n_resamples=500)
    right = st.bootstrap_interval(st.average_within_problem(values, problem).values, n_resamples=500)
    assert right.estimate == pytest.approx(naive.estimate)
    assert right.standard_error > 3 * naive.standard_error


# ------------------------------------------------------------------------------------------ random numbers


def test_generators_are_keyed_by_every_label_and_stable_between_processes():
    def first(*key) -> int:
        return int(st.derive_generator(*key).integers(2**32))

    assert first(0, "sign flip", 14) == 881186233
    assert len({first(0), first(1), first(0, "a", "b"), first(0, "a:b"), first(0, "b", "a"), first(0, "ab")}) == 6
    with pytest.raises(TypeError, match="seed must be a whole number, got True"):
        st.derive_generator(True)
