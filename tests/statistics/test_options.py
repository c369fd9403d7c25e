"""What an option changes, what is refused by name, how results print, and the smallest inputs that are allowed."""

from collections.abc import Callable

import numpy as np
import pytest

from mless_interp import statistics as st

VALUES = np.random.default_rng(0).normal(0.5, 1, (24, 3))
OTHERS = np.random.default_rng(1).normal(4, 1, (24, 3))
FEW = VALUES[:6]
DRAWN = {"resamples": -0.11183825504533673}
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
    for found in (st.mean_interval(VALUES[:1], confidence=0.7), st.one_problem(VALUES[0], confidence=0.7)):
        np.testing.assert_array_equal(found.estimate, VALUES[0])
        assert np.isnan([found.low, found.high, found.standard_error]).all()
        assert (found.n.tolist(), found.flag.tolist()) == ([1, 1, 1], ["fewer than 2 problems"] * 3)
        assert (found.confidence, found.method) == (0.7, "none")
    assert st.one_problem(np.array([1.0, np.nan])).n.tolist() == [1, 0]


def test_a_seed_draws_what_it_always_drew() -> None:
    """Results of a seed stay comparable between versions: every stream is keyed by its purpose and its size."""
    drawn = {"resamples": float(st.bootstrap_interval(VALUES[:, 0], n_resamples=200).low)}
    assert drawn == pytest.approx(DRAWN, abs=1e-12)


def test_the_smallest_inputs_are_allowed() -> None:
    assert st.prevalence_test(np.array([2.0]), 0.0).p.tolist() == [0.5, 1.0]
    assert st.within_test(np.array([0.5]), 1.0)[0] == 0.5
    assert st.median_interval(np.array([2.0])).estimate == 2.0
    assert st.sign_test(np.array([2.0])) == 1.0 and np.isnan(st.sign_test(np.array([np.nan])))
    assert st.concentration(np.array([3.0])).problems == (0,)
    for pair, flag, width in (([3.0, 3.0], "all values equal", 0.0), ([3.0, 4.0], "few problems", 12.7062047)):
        found = st.mean_interval(np.array(pair))
        assert (str(found.flag), int(found.n)) == (flag, 2) and found.high - found.low == pytest.approx(width)
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


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: st.bootstrap_interval(VALUES, n_resamples=1), "^n_resamples must be 2 or more"),
        (lambda: st.bootstrap_interval(VALUES, confidence=95.0), "confidence must lie between 0 and 1, got 95.0"),
        (lambda: st.bootstrap_interval(VALUES[:1]), "values needs at least 2 problems"),
        (lambda: st.mean_interval(np.array([1.0, np.inf])), "values holds 1 infinite values"),
        (lambda: st.share_of_total(VALUES, VALUES), r"total must be \[problem\] = \[24\] as part has, got \[24, 3\]"),
        (lambda: st.concentration(VALUES), r"concentration is of one number per problem, got shape \(24, 3\)"),
        (lambda: st.concentration(np.array([np.nan])), "no value is defined"),
        (lambda: st.prevalence_test(np.ones(5), -1.0), "finite number, 0 or more"),
        (lambda: st.within_test(np.ones(5), 0.0), "above 0"),
        (lambda: st.fewest_problems(0), "n_tests must be 1 or more, got 0"),
        (lambda: st.detectable_prevalence(64, 5, power=0.0), "power must lie between 0 and 1"),
        (lambda: st.wilson(6, 5), "successes must not exceed n"),
        (lambda: st.paired_difference(3, 2, 4), "3 \\+ 2 problems changed, but there are 4 in all"),
        (lambda: st.pass_at_k(1, 2, k=3), "pass@3 needs at least 3 samples of every problem, got 2"),
        (lambda: st.derive_generator(1.5), "seed must be a whole number, got 1.5"),
    ],
)
@pytest.mark.usefixtures("untyped")
def test_what_is_wrong_is_named(call: Callable[[], object], message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        call()
