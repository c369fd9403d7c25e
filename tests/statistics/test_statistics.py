"""Statistics: hand-checked vectors, laws, oracles (brute force, SciPy, TransformerLens 4), error rates and messages."""

import numpy as np
import pytest

from mless_interp import statistics as st
from mless_interp.statistics import intervals


def normal(*shape: int, seed: int = 0, shift: float | list[float] = 0.0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape) + np.asarray(shift)


def test_bad_effects_are_refused():
    test = st.bootstrap_interval
    with pytest.raises(ValueError, match=r"at least 2 problems on its first axis, got 1 \(shape \(1, 3\)\)"):
        test(np.ones((1, 3)))
    with pytest.raises(ValueError, match="holds 1 infinite values; use NaN"):
        test(np.array([1.0, np.inf, 2.0]))


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
    assert np.isnan(adjust(np.array([np.nan, np.nan]))).all()


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


def test_bootstrap_chunks_do_not_change_the_result(monkeypatch):
    x = normal(33, 9, seed=4)
    weights = intervals.resample_weights(33, 700, 0)
    one = st.bootstrap_interval(x, n_resamples=700)
    monkeypatch.setattr(intervals, "_CHUNK_VALUES", 1_500)
    np.testing.assert_array_equal(weights, intervals.resample_weights(33, 700, 0))
    two = st.bootstrap_interval(x, n_resamples=700)
    np.testing.assert_allclose([one.low, one.high], [two.low, two.high], rtol=1e-12)


def test_every_resample_draws_n_problems():
    weights = intervals.resample_weights(17, 300, 5)
    assert (weights.sum(axis=1) == 17).all()
    assert abs(weights.mean() - 1) < 1e-12 and abs(weights.var() - 16 / 17) < 0.05


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


def test_a_mean_is_resampled_ten_thousand_times_unless_told_otherwise():
    values = normal(40)
    usual, told, other = (st.mean_interval(values, **n) for n in ({}, {"n_resamples": 10_000}, {"n_resamples": 9_999}))
    assert (usual.low, usual.high) == (told.low, told.high) != (other.low, other.high)


@pytest.mark.filterwarnings("error")
def test_shares_of_no_problems_are_undefined_without_a_warning():
    found = st.wilson(np.array([0, 1]), np.array([0, 2]))
    assert np.isnan([found.estimate[0], found.low[0], found.high[0]]).all() and found.flag.tolist() == [
        "no problems",
        "",
    ]
