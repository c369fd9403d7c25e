"""AccuracyResults: numbers worked out by hand, laws of intervals and tests, planted heads, messages, saving."""

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose
from small_results import asked_twice

import mless_interp as mi
from mless_interp import statistics
from mless_interp.answers import GRADERS, grade

graded = lru_cache(grade)
TREATMENTS = ("none", "mless", "mful")


def answer(text: str, gold: str, problem: str, treatment: str = "none", sample: int = 0) -> dict[str, Any]:
    found = graded(text, gold)
    row = {name: getattr(found, name) for name in (*GRADERS, "boxed", "decided")} | {"cut_off": False, "n_tokens": 3}
    return row | {"problem": problem, "treatment": treatment, "sample": sample, "completion": text}


def rows(right: np.ndarray, treatments: tuple[str, ...] = TREATMENTS, **more: Any) -> Iterator[dict[str, Any]]:
    """One finished answer per cell of `right` `[problem, treatment, sample]`, really graded."""
    for i, c, s in np.ndindex(right.shape):
        text = r"so \boxed{ 7 } <eos>" if right[i, c, s] else r"so \boxed{ 8 } <eos>"
        yield answer(text, "7", f"p{i}", treatments[c], s) | {"cut_off": i == 0, "n_tokens": 5 + c} | more


def results(right: np.ndarray, treatments: tuple[str, ...] = TREATMENTS, **more: Any) -> mi.AccuracyResults:
    return mi.AccuracyResults.from_rows(
        rows(right, treatments),
        problem_ids=[f"p{i}" for i in range(len(right))],
        treatments=treatments,
        n_samples=right.shape[2],
        golds=("7",) * len(right),
        settings={"model": "toy"},
        **more,
    )


def one_sample(n: int, *shares: float, seed: int = 0) -> np.ndarray:
    draws = np.random.default_rng(seed).random((n, len(shares), 1))
    return (draws < np.array(shares)[:, None]).astype(float)


@pytest.fixture
def by_hand() -> mi.AccuracyResults:
    """500 problems, 362 right without; with slashes 33 more and 20 fewer; with words the same."""
    right = np.zeros((500, 3, 1))
    right[:362, 0] = 1
    right[:, 1] = right[:, 0]
    right[:20, 1] = 0
    right[400:433, 1] = 1
    right[:, 2] = right[:, 0]
    return results(right)


# ------------------------------------------------------------------------------------------------------------- summary


def test_accuracy_and_wilsons_interval_by_hand(by_hand: mi.AccuracyResults) -> None:
    table = by_hand.table()
    assert_allclose(table["accuracy"], [0.724, 0.75, 0.724])
    assert_allclose(table.loc[0, ["accuracy_ci_low", "accuracy_ci_high"]].astype(float), [0.68322, 0.76136], atol=5e-6)
    assert list(table["n"]) == [500, 500, 500]
    assert list(table["n_tokens"]) == [5, 6, 7] and list(table["boxed"]) == [1, 1, 1]
    assert_allclose(table["cut_off"], [1 / 500] * 3)
    assert list(table["gave_up"]) == [0, 0, 0]


def test_graders_stand_side_by_side() -> None:
    answers = [(r"\boxed{}", "12"), ("the answer is 12", "12"), (r"\boxed{12}", "12"), (r"\boxed{1}", "12")]
    made = [answer(text, gold, f"p{i}") for i, (text, gold) in enumerate(answers)]
    found = mi.AccuracyResults.from_rows(made, problem_ids=[f"p{i}" for i in range(4)], treatments=["none"])
    (row,) = found.table().to_dict("records")
    assert (row["accuracy"], row["paper"], row["boxed"]) == (0.25, 0.75, 0.5)
    assert list(found.to_frame()["decided"]) == ["empty box", "no box", "text", "number"]


def test_pass_at_k_is_the_unbiased_one() -> None:
    right = np.array([[0, 0, 0, 0], [1, 0, 0, 0], [1, 1, 1, 0]], dtype=float)[:, None]
    found = results(right, ("none",))
    assert_allclose(found.pass_at(2), [(0 + 0.5 + 1) / 3])
    assert found.pass_at(1).item() == found.table()["accuracy"].item() == pytest.approx(1 / 3)
    assert found.table()["pass_at_4"].item() == pytest.approx(2 / 3)
    with pytest.raises(ValueError, match="pass@5 needs at least 5 samples of every problem, got 4"):
        found.pass_at(5)


def test_where_all_are_right_the_interval_is_wilsons_and_the_level_is_that_of_the_confidence() -> None:
    compared = replace(asked_twice(2), confidence=0.8).compare("none", "Mless")
    sure = replace(results(np.ones((25, 1, 4)), ("a",)), confidence=0.8).accuracy()
    bound = statistics.wilson(np.array([25]), np.array([25]), confidence=0.8)
    assert (sure.low, sure.high, sure.flag) == (bound.low, 1, "all problems equal: Wilson")
    assert np.isnan(results(np.ones((1, 1, 4)), ("none",)).table()["accuracy_ci_low"].item())
    assert replace(compared, p_corrected=0.19).sure and not replace(compared, p_corrected=0.2 + 1e-9).sure


def test_what_does_not_change_has_an_exact_bound_and_one_problem_no_limits() -> None:
    for n in (2, 40):
        same, bound = results(np.ones((n, 2, 4)), ("a", "b")).compare("a", "b"), 1 - 0.025 ** (1 / n)
        assert (float(same.difference.low), float(same.difference.high)) == pytest.approx((-bound, bound))
        assert same.p == 1
    alone = results(np.array([[[0, 1], [1, 1]]]), ("a", "b")).compare("a", "b")
    assert (alone.n, len(alone.gained)) == (1, 1) and np.isnan(float(alone.difference.low))
    assert float(alone.difference.estimate) == 0.5


def test_a_missing_answer_is_refused() -> None:
    with pytest.raises(ValueError, match="1 of 6 answers are missing: leave out the problems that lack one"):
        mi.AccuracyResults.from_rows(
            list(rows(np.ones((2, 3, 1))))[1:], problem_ids=["p0", "p1"], treatments=TREATMENTS
        )


# ------------------------------------------------------------------------------------------------------------- compare


def test_a_paired_comparison_by_hand(by_hand: mi.AccuracyResults) -> None:
    found = by_hand.compare("none", "mless")
    assert (len(found.gained), len(found.lost), found.n) == (33, 20, 500)
    assert found.gained[0] == "p400" and found.lost[0] == "p0"
    assert found.p == pytest.approx(0.098, abs=5e-4)  # methods §9
    assert float(found.difference.estimate) == pytest.approx(13 / 500)
    sd = np.std([1] * 33 + [-1] * 20 + [0] * 447, ddof=1)
    assert float(found.difference.standard_error) == pytest.approx(sd * (499 / 500) ** 0.5 / 500**0.5)
    assert float(found.difference.low) == pytest.approx(0.026 - 1.96 * sd / 500**0.5, abs=0.004)
    back = by_hand.compare("mless", "none")
    assert (back.p, back.gained, float(back.difference.estimate)) == (found.p, found.lost, -13 / 500)


def test_where_nothing_changes_the_interval_is_tangos(by_hand: mi.AccuracyResults) -> None:
    found = by_hand.compare("none", "mful")
    assert found.p == 1 and found.accuracy_first == found.accuracy_second == 362 / 500
    bound = 1.959964**2 / (500 + 1.959964**2)
    assert (float(found.difference.low), float(found.difference.high)) == pytest.approx((-bound, bound))


def test_holm_is_over_the_comparisons_made() -> None:
    found = results(one_sample(300, 0.5, 0.58, 0.62), TREATMENTS).compare_all("none")
    p = np.array([one.p for one in found.comparisons])
    corrected = [one.p_corrected for one in found.comparisons]
    assert_allclose(np.sort(corrected), np.maximum.accumulate(np.minimum(1, np.sort(p) * [2, 1])))
    with pytest.raises(ValueError, match="there is only one treatment, 'none': nothing to compare"):
        results(one_sample(3, 0.5), ("none",)).compare_all()


@pytest.mark.parametrize("n", range(1, 13))
def test_interval_and_test_never_contradict_each_other(n: int) -> None:
    """Every table of up to 12 problems: 0 lies outside the interval exactly where McNemar's test rejects."""
    for lost in range(n + 1):
        for gained in range(n + 1 - lost):
            right = np.zeros((n, 2, 1))
            right[:lost, 0] = right[lost : lost + gained, 1] = 1
            found = results(right, ("a", "b")).compare("a", "b")
            low, high = float(found.difference.low), float(found.difference.high)
            assert (low * high > 0) == (found.p < 0.05), (n, lost, gained)
            assert low <= (gained - lost) / n <= high and low < high


def test_with_several_samples_the_interval_holds_0_where_the_test_does_not_reject() -> None:
    rejected = []
    for seed in range(60):
        right = np.random.default_rng(seed).random((6, 2, 4)) < np.array([0.4, 0.75])[:, None]
        found = results(right.astype(float), ("a", "b")).compare("a", "b")
        rejected.append(found.p < 0.05)
        assert rejected[-1] or not float(found.difference.low) * float(found.difference.high) > 0, seed
        assert found.difference.method in ("t", "exact bound") and "few problems" in str(found.difference.flag)
    assert any(rejected) and not all(rejected)


@pytest.mark.parametrize("n_samples", [1, 3])
def test_variants_of_a_problem_count_as_several_answers_to_one(n_samples: int) -> None:
    right = (np.random.default_rng(3).random((12, 3, n_samples)) < 0.6).astype(float)
    groups = tuple("abcd"[at % 4] for at in range(12))
    found = results(right, groups=groups)
    pooled = right.reshape(3, 4, 3, n_samples).transpose(1, 2, 0, 3).reshape(4, 3, 3 * n_samples)
    again = results(pooled)
    for column in ("accuracy", "accuracy_ci_low", "accuracy_ci_high", "n", "boxed"):
        assert_allclose(found.table()[column], again.table()[column], rtol=1e-12)
    for ours, theirs in zip(found.compare_all().comparisons, again.compare_all().comparisons, strict=True):
        assert (ours.n, ours.p, ours.test) == (theirs.n, theirs.p, theirs.test)
        assert float(ours.difference.low) == pytest.approx(float(theirs.difference.low))
        assert ours.gained == tuple("abcd"[int(name[1:])] for name in theirs.gained)
