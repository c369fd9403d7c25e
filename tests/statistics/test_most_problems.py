"""Claims about most problems: by hand, against scipy, and at the stated rate on skewed data where tests of means fail."""

import numpy as np
import pytest
from scipy import stats

from mless_interp.statistics import (
    by_group,
    concentration,
    mean_interval,
    median_interval,
    prevalence_test,
    share_of_total,
    sign_test,
)


def skewed(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Most values small, a few enormous, of one sign."""
    return np.exp(2.5 * rng.normal(size=shape))


def test_counts_and_p_by_hand() -> None:
    d = np.array([[2.0, -2.0], [3.0, 0.0], [1.0, -3.0], [np.nan, -9.0]])
    found = prevalence_test(d, 1.0)
    assert found.count.tolist() == [[2, 0], [0, 3]]  # 1.0 is no more than delta
    assert found.n.tolist() == [3, 4]
    assert found.p == pytest.approx(np.array([[4 / 8, 1.0], [1.0, 5 / 16]]))
    assert found.p_corrected == pytest.approx(np.array([[1.0, 1.0], [1.0, 1.0]]))
    assert found.share == pytest.approx(np.array([[2 / 3, 0], [0, 3 / 4]]))
    assert found.in_sense(-1, found.count).tolist() == [0, 3]


def test_holm_is_over_all_cells_and_both_senses() -> None:
    d = np.full((16, 3), 2.0)
    d[:, 2] = 0.0
    found = prevalence_test(d, 1.0)
    assert found.p_corrected[0, 0] == pytest.approx(6 * 2.0**-16)
    fewer = prevalence_test(d, 1.0, senses=(1,), tested=np.array([True, True, False]))
    assert fewer.p_corrected[0, 0] == pytest.approx(2 * 2.0**-16) and np.isnan(fewer.p_corrected[0, 2])


@pytest.mark.parametrize("n", [32])
def test_no_more_false_names_than_stated_where_the_test_of_the_mean_rejects_almost_always(n: int) -> None:
    """Every head exceeds delta in just half of the problems: a true null, far from symmetric."""
    rng = np.random.default_rng(n)
    heads, sets = 40, 200
    prevalence = mean = 0
    for _ in range(sets):
        d = skewed(rng, (n, heads)) - 1.0  # median 0
        prevalence += bool((prevalence_test(d, 0.0).p_corrected < 0.05).any())
        centred = d - np.exp(2.5**2 / 2) + 1.0  # true mean 0
        mean += bool((stats.ttest_1samp(centred, 0).pvalue < 0.05 / heads).any())
    assert prevalence / sets <= 0.05 + 2 * np.sqrt(0.05 * 0.95 / sets)
    assert mean / sets > 0.5


def test_beside_an_unknown_smallest_effect_nothing_is_counted() -> None:
    found = prevalence_test(np.ones((9, 2)), float("nan"))
    assert np.isnan([found.count, found.share, found.low, found.high, found.p, found.p_corrected]).all()


def test_shares_by_hand() -> None:
    """9 problems, k = 2: the second and the eighth of the ratios; one problem's total has the other sign, and turns it."""
    total = np.array([1.0, 2, 1, 4, 1, 1, 2, 1, 1])
    ratios = np.arange(1.0, 10) / 10
    found = share_of_total(np.stack([ratios * total, -ratios * total], 1), total)
    assert found.estimate == pytest.approx(np.array([0.5, -0.5]))
    assert found.low == pytest.approx(np.array([0.2, -0.8])) and found.high == pytest.approx(np.array([0.8, -0.2]))
    turned = share_of_total(
        np.r_[ratios[:8], 0.9], np.r_[np.ones(8), -1.0]
    )  # 0.9 + x lies above 0 for all x above -0.9
    assert (float(turned.low), float(turned.estimate), float(turned.high)) == (0.2, 0.5, 0.8)
    unknown = share_of_total(np.ones(9), np.r_[np.ones(7), -1.0, -1.0])
    assert np.isnan([unknown.estimate, unknown.low, unknown.high]).all()
    assert str(unknown.flag) == "the total effect is not established"


@pytest.mark.parametrize(("n_groups", "n_each"), [(8, 8)])
def test_effects_that_variants_share_name_heads_at_the_stated_rate_by_groups_alone(n_groups: int, n_each: int) -> None:
    rng = np.random.default_rng(5)
    named = np.zeros(2)
    for _ in range(200):
        shared = 1 + rng.choice((-1, 1), (n_groups, 40)) * skewed(rng, (n_groups, 40))
        values = np.repeat(shared, n_each, axis=0)
        units = by_group(values, tuple(str(at // n_each) for at in range(len(values))))
        named += [(prevalence_test(x, 1.0).p_corrected < 0.05).any() for x in (values, units)]
    assert named[0] / 200 > 0.1 and named[1] / 200 <= 0.05 + 2 * (0.05 * 0.95 / 200) ** 0.5


def test_the_median_s_interval_is_made_of_the_values_and_knows_when_there_are_too_few() -> None:
    values = np.array([[5.0, 1.0], [1.0, np.nan], [2.0, 2.0], [9.0, 3.0], [4.0, np.nan], [3.0, 4.0]])
    made = median_interval(values)
    assert made.estimate.tolist() == [3.5, 2.5] and made.n.tolist() == [6, 4]
    assert (made.low[0], made.high[0]) == (1.0, 9.0)
    assert np.isnan(made.low[1]) and made.flag.tolist() == ["", "too few problems for a median's interval"]


def test_a_group_counts_once_with_the_median_of_its_members() -> None:
    values = np.array([[1.0, np.nan], [4.0, np.nan], [3.0, 7.0], [2.0, np.nan], [9.0, -1.0]])
    found = by_group(values, ("a", "b", "a", "b", "c"))
    np.testing.assert_array_equal(found, [[2.0, 7.0], [3.0, np.nan], [9.0, -1.0]])
    assert by_group(values, ()) is values and by_group(values, tuple("vwxyz")) is values
    with pytest.raises(ValueError, match="one group per problem: got 2 for 5 problems"):
        by_group(values, ("a", "b"))


def test_the_sign_test_keeps_problems_without_an_effect() -> None:
    assert float(sign_test(np.array([1.0] * 6))) == pytest.approx(2 / 64)
    assert float(sign_test(np.array([1.0] * 6 + [0.0] * 6))) == 1.0
    assert float(sign_test(np.array([1.0] * 6 + [1e-6] * 2), rounding=1e-3)) == pytest.approx(
        2 * stats.binom.sf(5, 8, 0.5)
    )


def test_concentration_names_who_carries_the_mean() -> None:
    x = np.r_[np.full(38, 0.01), [-4.0, -3.0]]
    found = concentration(x)
    assert found.problems == (38, 39) and found.concentrated
    assert found.share == pytest.approx(7 / 7.38)
    assert found.mean == pytest.approx(x.mean()) and found.high == pytest.approx(0.01)
    assert found.low == pytest.approx(x.mean())
    even = concentration(np.ones(40))
    assert even.share == pytest.approx(0.05) and not even.concentrated and even.low == even.high == 1.0
    assert np.isnan(concentration(np.zeros(5)).share) and not concentration(np.zeros(5)).concentrated


def test_means_of_few_problems_get_student_s_interval_and_a_flag() -> None:
    x = np.array([1.0, 2.0, 4.0, 7.0])
    made = mean_interval(x)
    expected = stats.ttest_1samp(x, 0).confidence_interval(0.95)
    assert (float(made.low), float(made.high)) == pytest.approx((expected.low, expected.high))
    assert str(made.flag) == "few problems" and made.method == "t"
    many = mean_interval(np.arange(20.0))
    assert many.method == "bca" and str(many.flag) == ""
    mixed = np.stack([np.arange(20.0), np.r_[np.arange(4.0), np.full(16, np.nan)]], 1)
    both = mean_interval(mixed)
    assert both.flag.tolist() == ["", "few problems"] and both.low[0] == float(many.low)
    assert float(mean_interval(np.full(3, 2.0)).high) == 2.0
