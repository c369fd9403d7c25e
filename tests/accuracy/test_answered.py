"""AccuracyResults: numbers worked out by hand, laws of intervals and tests, planted heads, messages, saving."""

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.stats import binom

import mless_interp as mi
from mless_interp.accuracy import Comparison, Comparisons
from mless_interp.grading import GRADERS, grade
from mless_interp.patching.attribution import HeadAttribution
from mless_interp.patching.scores import PatchScores
from mless_interp.scores import HeadScores
from mless_interp.statistics import mcnemar, two_groups

graded = lru_cache(grade)
TREATMENTS = ("none", "mless", "mful")


def rows(right: np.ndarray, treatments: tuple[str, ...] = TREATMENTS, **more: Any) -> Iterator[dict[str, Any]]:
    """One finished answer per cell of `right` `[problem, treatment, sample]` that is not NaN, really graded."""
    for i, c, s in np.ndindex(right.shape):
        if np.isnan(right[i, c, s]):
            continue
        text = r"so \boxed{ 7 } <eos>" if right[i, c, s] else r"so \boxed{ 8 } <eos>"
        found = graded(text, "7")
        row = {name: getattr(found, name) for name in (*GRADERS, "boxed", "decided")}
        yield (
            row
            | {
                "problem": f"p{i}",
                "treatment": treatments[c],
                "sample": s,
                "completion": text,
                "cut_off": i == 0,
                "n_tokens": 5 + c,
            }
            | more
        )


def results(right: np.ndarray, treatments: tuple[str, ...] = TREATMENTS, **more: Any) -> mi.AccuracyResults:
    return mi.AccuracyResults.from_rows(
        rows(right, treatments),
        problem_ids=[f"p{i}" for i in range(len(right))],
        treatments=treatments,
        n_samples=right.shape[2],
        golds=["7"] * len(right),
        settings={"model": "toy"},
        **more,
    )


def one_sample(n: int, *shares: float, seed: int = 0) -> np.ndarray:
    draws = np.random.default_rng(seed).random((n, len(shares), 1))
    return (draws < np.array(shares)[:, None]).astype(float)


@pytest.fixture
def by_hand() -> mi.AccuracyResults:
    """500 problems, 362 right without; with slashes 33 more and 20 fewer; with words not run on the last 100."""
    right = np.zeros((500, 3, 1))
    right[:362, 0] = 1
    right[:, 1] = right[:, 0]
    right[:20, 1] = 0
    right[400:433, 1] = 1
    right[:, 2] = right[:, 0]
    right[400:, 2] = np.nan
    return results(right)


# ------------------------------------------------------------------------------------------------------------- summary


def test_accuracy_and_wilsons_interval_by_hand(by_hand: mi.AccuracyResults) -> None:
    table = by_hand.summary()
    assert list(table.columns[:5]) == ["treatment", "accuracy", "low", "high", "n"]
    assert list(table["treatment"]) == list(TREATMENTS)
    np.testing.assert_allclose(table["accuracy"], [0.724, 0.75, 362 / 400])
    np.testing.assert_allclose(table.loc[0, ["low", "high"]].astype(float), [0.68322, 0.76136], atol=5e-6)
    assert list(table["n"]) == [500, 500, 400] and list(table["n_missing"]) == [0, 0, 100]
    assert list(table["n_tokens"]) == [5, 6, 7] and list(table["boxed"]) == [1, 1, 1]
    np.testing.assert_allclose(table["cut_off"], [1 / 500, 1 / 500, 1 / 400])
    assert list(table["gave_up"]) == [0, 0, 0]


def test_graders_stand_side_by_side() -> None:
    answers = [(r"\boxed{}", "12"), ("the answer is 12", "12"), (r"\boxed{12}", "12"), (r"\boxed{1}", "12")]
    made = []
    for i, (text, gold) in enumerate(answers):
        found = grade(text, gold)
        made.append(
            {name: getattr(found, name) for name in (*GRADERS, "boxed", "decided")}
            | {
                "problem": f"p{i}",
                "treatment": "none",
                "sample": 0,
                "completion": text,
                "cut_off": False,
                "n_tokens": 3,
            }
        )
    found = mi.AccuracyResults.from_rows(made, problem_ids=[f"p{i}" for i in range(4)], treatments=["none"])
    (row,) = found.summary().to_dict("records")
    assert (row["accuracy"], row["lenient"], row["paper"], row["boxed"]) == (0.25, 0.5, 0.75, 0.5)
    assert list(found.to_frame()["decided"]) == ["empty box", "no box", "text", "number"]


def test_pass_at_k_is_the_unbiased_one() -> None:
    right = np.array([[0, 0, 0, 0], [1, 0, 0, 0], [1, 1, 1, 0]], dtype=float)[:, None]
    found = results(right, ("none",))
    np.testing.assert_allclose(found.pass_at(2), [(0 + 0.5 + 1) / 3])
    np.testing.assert_allclose(found.pass_at(1), [4 / 12])
    table = found.summary(pass_at=(1, 2))
    assert table["pass_at_1"].item() == table["accuracy"].item() == pytest.approx(1 / 3)
    assert found.summary()["pass_at_4"].item() == pytest.approx(2 / 3)
    right[2, 0, 1:] = np.nan
    np.testing.assert_allclose(results(right, ("none",)).pass_at(2), [0.25])  # the problem with one sample is left out
    with pytest.raises(ValueError, match="pass@5 needs k from 1 to the 4 samples"):
        found.pass_at(5)


def test_repeated_samples_of_a_problem_are_no_new_problems() -> None:
    once = one_sample(200, 0.5, 0.5)
    assert np.allclose(
        results(np.repeat(once, 8, axis=2), ("a", "b")).summary()[["low", "high"]],
        results(once, ("a", "b")).summary()[["low", "high"]],
        atol=0.01,
    )


def test_an_interval_over_samples_covers_and_is_never_a_point_at_the_ends() -> None:
    table = results(np.ones((40, 1, 4)), ("none",)).summary()
    assert table["accuracy"].item() == 1 and 0.85 < table["low"].item() < 0.95 and table["high"].item() == 1
    assert table["flag"].item() == "all problems equal: Wilson"
    assert np.isnan(results(np.ones((1, 1, 4)), ("none",)).summary()["low"].item())


def test_a_treatment_of_a_single_problem_has_an_accuracy_without_an_interval() -> None:
    right = np.array([[[1, 0], [1, 0]], [[0, 0], [np.nan, np.nan]], [[1, 1], [np.nan, np.nan]]])
    table = results(right, ("a", "b")).summary()
    assert table["accuracy"].tolist() == [0.5, 0.5] and table["n"].tolist() == [3, 1]
    assert np.isfinite(table["low"][0]) and np.isnan(table["low"][1]) and np.isnan(table["high"][1])


def test_nothing_run_is_nan_and_counted() -> None:
    right = one_sample(10, 0.5, 0.5)
    right[:, 1] = np.nan
    table = results(right, ("a", "b")).summary()
    assert np.isnan(table["accuracy"][1]) and np.isnan(table["n_tokens"][1]) and table["n"][1] == 0
    assert table["n_missing"][1] == 10
    assert "Left out, as not run: 10 answers." in results(right, ("a", "b")).describe()


def test_cut_off_answers_and_grades_given_up_are_said() -> None:
    right = one_sample(10, 0.5)
    why = ("gave up", "undecided")
    made = [row | {"cut_off": True, "decided": why[i % 2]} for i, row in enumerate(rows(right, ("none",)))]
    found = mi.AccuracyResults.from_rows(made, problem_ids=[f"p{i}" for i in range(10)], treatments=["none"])
    assert "none 100 %; raise the number of new tokens" in repr(found)
    assert "10 grades were not decided (out of time or memory) and count as wrong" in repr(found)
    assert found.summary()["gave_up"].item() == 1


def test_bars_carry_the_published_numbers_beside_the_measured(by_hand: mi.AccuracyResults) -> None:
    assert set(by_hand.bars()["source"]) == {"measured"}
    bars = by_hand.bars(mi.paper.published(model="llama-3.1-8b-instruct", benchmark="MATH-500"))
    printed = bars[bars["source"] != "measured"]
    assert {0.418, 0.43, 0.354, 0.44} <= set(printed.loc[printed["treatment"] == "none", "accuracy"].round(3))
    assert printed["low"].isna().all()


# ------------------------------------------------------------------------------------------------------------- compare


def test_a_paired_comparison_by_hand(by_hand: mi.AccuracyResults) -> None:
    found = by_hand.compare("none", "mless")
    assert (len(found.gained), len(found.lost), found.n, found.n_left_out) == (33, 20, 500, 0)
    assert found.gained[0] == "p400" and found.lost[0] == "p0"
    assert found.p == pytest.approx(0.098, abs=5e-4)  # methods §9
    assert float(found.difference.estimate) == pytest.approx(13 / 500)
    sd = np.std([1] * 33 + [-1] * 20 + [0] * 447, ddof=1)
    assert float(found.difference.standard_error) == pytest.approx(sd * (499 / 500) ** 0.5 / 500**0.5)
    assert float(found.difference.low) == pytest.approx(0.026 - 1.96 * sd / 500**0.5, abs=0.004)
    # McNemar's test rejects from 6 changes of one direction on (2 / 2^6 < .05), which come in 80 % of samples at this rate
    assert binom.sf(5, 500, found.detectable) == pytest.approx(0.8) and mcnemar(0, 6) < 0.05 < mcnemar(0, 5)
    assert "no difference is established" in repr(found) and "would be needed" not in repr(found)
    back = by_hand.compare("mless", "none")
    assert (back.p, back.gained, float(back.difference.estimate)) == (found.p, found.lost, -13 / 500)


def test_only_problems_answered_under_both_are_compared(by_hand: mi.AccuracyResults) -> None:
    found = by_hand.compare("none", "mful")
    assert (found.n, found.n_left_out, found.p) == (400, 100, 1.0)
    assert found.accuracy_first == found.accuracy_second == 362 / 400
    bound = 1.959964**2 / (400 + 1.959964**2)  # Tango's where nothing changed
    assert (float(found.difference.low), float(found.difference.high)) == pytest.approx((-bound, bound))
    assert f"a true difference of up to {100 * bound:.1f} points fits too" in repr(found)


def test_holm_is_over_the_comparisons_made() -> None:
    found = results(one_sample(300, 0.5, 0.58, 0.62), TREATMENTS).compare_all("none")
    p = np.array([one.p for one in found.comparisons])
    np.testing.assert_allclose(np.sort(found.p_holm), np.maximum.accumulate(np.minimum(1, np.sort(p) * [2, 1])))
    table = found.to_frame()
    assert list(table["second"]) == ["mless", "mful"] and list(table["p_holm"]) == list(found.p_holm)
    assert "after Holm's correction" in repr(found)
    single = results(one_sample(300, 0.5, 0.58, 0.62), TREATMENTS).compare("none", "mful")
    assert found.comparisons[1].detectable > single.detectable  # corrected tests need more


def test_what_is_established_is_judged_after_the_correction(by_hand: mi.AccuracyResults) -> None:
    found = by_hand.compare("none", "mless")
    found = replace(found, p=0.03, difference=replace(found.difference, low=np.asarray(0.001)))
    assert "no difference is established" not in found.describe()
    corrected = found.sentences(p_corrected=0.06)
    assert "p = 0.03 (exact McNemar test), 0.06 after Holm's correction: no difference is established." in corrected[0]
    both = Comparisons("none", "strict", (found, found), np.array([0.06, 0.06]))
    assert both.sentences() == corrected * 2 and repr(both).splitlines()[:2] == [" ".join(corrected)] * 2
    assert both.shown().tables[0].caption.startswith("Each treatment against 'none' on the same problems")


def test_the_level_of_a_test_is_that_of_its_interval(by_hand: mi.AccuracyResults) -> None:
    loose = replace(by_hand, confidence=0.9).compare("none", "mless")  # p = 0.098
    assert "no difference is established" not in loose.describe() and float(loose.difference.low) > 0
    assert "no difference is established" in by_hand.compare("none", "mless").describe()


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
    rejected = 0
    for seed in range(60):
        draws = np.random.default_rng(seed)
        right = (draws.random((6, 2, 4)) < np.array([0.4, 0.75])[:, None]).astype(float)
        found = results(right, ("a", "b")).compare("a", "b")
        if found.p >= 0.05:
            assert not float(found.difference.low) * float(found.difference.high) > 0, seed
            assert "no difference is established" in found.describe()
        else:
            rejected += 1
        assert found.difference.method in ("t", "exact bound") and "few problems" in str(found.difference.flag)
    assert 0 < rejected < 60


@pytest.mark.parametrize("samples", [1, 4])
def test_where_no_answer_changes_the_interval_is_the_exact_bound_on_both_sides(samples: int) -> None:
    found = results(np.ones((8, 2, samples)), ("a", "b")).compare("a", "b")
    assert float(found.difference.estimate) == 0
    if samples == 4:
        assert float(found.difference.high) == -float(found.difference.low) == pytest.approx(1 - 0.025 ** (1 / 8))
    assert "no difference is established" in found.describe()


def test_several_samples_are_compared_by_problem() -> None:
    right = np.repeat(one_sample(12, 0.3, 0.6, seed=3), 50, axis=2)
    found = results(right, ("a", "b")).compare("a", "b")
    once = results(right[:, :, :1], ("a", "b")).compare("a", "b")
    assert found.test.startswith("exact sign test") and once.test.startswith("exact McNemar")
    assert found.p == once.p  # both ask whether more problems gain than lose
    assert results(right[:1], ("a", "b")).compare("a", "b").n == 1


def test_a_few_large_gains_do_not_outweigh_many_small_losses() -> None:
    """What is claimed is claimed of problems; the mean difference describes, and may have the other sign."""
    right = np.zeros((20, 2, 10))
    right[:3, 1] = right[3:15, 0, 0] = 1
    found = results(right, ("a", "b")).compare("a", "b")
    assert (len(found.gained), len(found.lost), found.p) == (3, 12, mcnemar(3, 12))
    assert float(found.difference.estimate) == pytest.approx((3 - 1.2) / 20)
    assert found.describe().endswith(
        "3 gained, 12 lost, p = 0.0352 (exact sign test of the problems that differ): more problems lose than gain."
    )


@pytest.mark.parametrize("n_samples", [1, 3])
def test_variants_of_a_problem_count_as_several_answers_to_one(n_samples: int) -> None:
    right = (np.random.default_rng(3).random((12, 3, n_samples)) < 0.6).astype(float)
    groups = tuple("abcd"[at % 4] for at in range(12))
    found = results(right, groups=groups)
    pooled = right.reshape(3, 4, 3, n_samples).transpose(1, 2, 0, 3).reshape(4, 3, 3 * n_samples)
    again = results(pooled)
    for column in ("accuracy", "low", "high", "n", "boxed"):
        np.testing.assert_allclose(found.summary()[column], again.summary()[column], rtol=1e-12)
    for ours, theirs in zip(found.compare_all().comparisons, again.compare_all().comparisons, strict=True):
        assert (ours.n, ours.p, ours.test) == (theirs.n, theirs.p, theirs.test)
        assert float(ours.difference.low) == pytest.approx(float(theirs.difference.low))
        assert ours.gained == tuple("abcd"[int(name[1:])] for name in theirs.gained)


def test_equal_treatments_are_called_different_at_the_stated_rate() -> None:
    hits = 0
    for seed in range(200):
        draws = np.random.default_rng(seed)
        ease = draws.random((40, 1, 1))
        hits += results((draws.random((40, 2, 3)) < ease).astype(float), ("a", "b")).compare("a", "b").p <= 0.05
    assert hits / 200 <= 0.05 + 2 * (0.05 * 0.95 / 200) ** 0.5


# -------------------------------------------------------------------------------------------------------------- linked

HEADS = tuple(mi.Head(layer, head) for layer in range(2) for head in range(6))


def head_scores(values: np.ndarray, ids: list[str]) -> HeadScores:
    return HeadScores(
        problem_ids=tuple(ids),
        conditions=("base", "inserted"),
        heads=HEADS,
        values={"span_mass": {"inserted": values}, "entropy": {"base": values + 1, "inserted": values}},
        null={},
    )


@pytest.fixture
def flips() -> tuple[mi.AccuracyResults, np.ndarray, np.ndarray]:
    """Results where 60 problems are always right, 30 are lost, 20 gained and 40 always wrong; noise; the change."""
    right = np.zeros((150, 2, 1))
    right[:90, 0] = 1
    right[:60, 1] = 1
    right[90:110, 1] = 1
    noise = np.random.default_rng(0).normal(size=(150, 2, 6))
    return results(right, ("none", "mless")), noise, (right[:, 1] - right[:, 0])[:, 0]


def test_the_planted_head_is_the_only_one_that_goes_with_flips(
    flips: tuple[mi.AccuracyResults, np.ndarray, np.ndarray],
) -> None:
    found, values, change = flips
    values = values.copy()
    values[:, 1, 4] += 1.5 * np.abs(change)
    linked = found.linked(head_scores(values, list(found.problem_ids)))
    table = linked.summary()
    below = table[table["p_corrected"] < 0.01]
    assert list(below["label"]) == ["L1H4"]
    row = below.iloc[0]
    moved = change != 0
    assert row["mean_changed"] == pytest.approx(values[moved, 1, 4].mean())
    assert row["mean_same"] == pytest.approx(values[~moved, 1, 4].mean())
    assert row["low"] < row["difference"] < row["high"] and row["low"] > 0
    assert (row["n_changed"], row["n_same"]) == (50, 100)
    assert "L1H4" in repr(linked) and "20 gained, 30 lost" in repr(linked)


def test_lost_and_gained_are_compared_with_those_that_could_have(
    flips: tuple[mi.AccuracyResults, np.ndarray, np.ndarray],
) -> None:
    found, values, change = flips
    values = values.copy()
    values[:, 0, 2] += 2 * (change < 0)
    linked = found.linked(head_scores(values, list(found.problem_ids)))
    lost, gained = (linked.summary(change=word) for word in ("lost", "gained"))
    assert list(lost.loc[lost["p_corrected"] < 0.002, "label"]) == ["L0H2"]
    assert not (gained["p_corrected"] < 0.002).any()
    assert (lost["n_changed"][0], lost["n_same"][0]) == (30, 60)
    assert (gained["n_changed"][0], gained["n_same"][0]) == (20, 40)
    with pytest.raises(ValueError, match="change must be one of 'any', 'lost', 'gained', got 'flipped'"):
        linked.summary(change="flipped")


def test_no_head_is_named_on_noise_more_often_than_stated() -> None:
    hits = 0
    for seed in range(100):
        draws = np.random.default_rng(seed)
        values, group = draws.standard_t(3, size=(60, 20)), draws.random(60) < 0.2
        hits += bool((two_groups(values, group, seed=seed).p_corrected <= 0.05).any())
    assert hits / 100 <= 0.05 + 2 * (0.05 * 0.95 / 100) ** 0.5


def test_every_kind_of_head_score_can_be_linked(flips: tuple[mi.AccuracyResults, np.ndarray, np.ndarray]) -> None:
    found, values, _ = flips
    ids = found.problem_ids
    patches = PatchScores(
        problem_ids=ids,
        patched=values + 3,
        receiving=np.full(150, 3.0),
        donor=np.zeros(150),
        heads=HEADS,
        unit="nats",
        settings={"contrast": "content", "direction": "denoising", "edit": "knockout"},
    )
    estimates = HeadAttribution(
        problem_ids=ids,
        scores=values,
        masked=np.zeros(150),
        inserted=np.ones(150),
        unit="nats",
        settings={"method": "atp"},
    )
    for scores, metric, sign in ((patches, "content denoising knockout effect", -1), (estimates, "atp", 1)):
        linked = found.linked(scores)
        assert linked.heads == HEADS and list(linked.scores) == [metric]
        np.testing.assert_allclose(linked.scores[metric], (sign * values).reshape(150, 12))
    both = found.linked(head_scores(values, list(ids)), metrics=["entropy", "span_mass"])
    assert set(both.summary()["metric"]) == {"entropy", "span_mass"}
    with pytest.raises(ValueError, match="no metric 'lambda'; there are span_mass, entropy"):
        found.linked(head_scores(values, list(ids)), metrics=["lambda"])
    with pytest.raises(TypeError, match="linked takes HeadScores, PatchScores, .* got DataFrame"):
        found.linked(pd.DataFrame())


def test_problems_are_joined_by_id_and_those_left_out_are_counted(
    flips: tuple[mi.AccuracyResults, np.ndarray, np.ndarray],
) -> None:
    found, values, _ = flips
    order = np.random.default_rng(1).permutation(150)[:100]
    linked = found.linked(head_scores(values[order], [f"p{i}" for i in order]))
    assert len(linked.problem_ids) == 100 and linked.left_out == 50 and "graded only: 50 problems." in repr(linked)
    at = linked.problem_ids.index(f"p{order[0]}")
    np.testing.assert_array_equal(linked.scores["span_mass"][at], values[order[0]].ravel())
    with pytest.raises(ValueError, match="share no problem: scored are q0"):
        found.linked(head_scores(values, [f"q{i}" for i in range(150)]))


def test_too_few_flips_are_undefined_and_said() -> None:
    right = np.ones((30, 2, 1))
    right[0, 1] = 0
    linked = results(right, ("none", "mless")).linked(
        head_scores(np.random.default_rng(0).normal(size=(30, 2, 6)), [f"p{i}" for i in range(30)])
    )
    for change in ("any", "lost", "gained"):
        assert linked.summary(change=change)["p"].isna().all()
    assert "too few to compare heads" in repr(linked)
    assert repr(linked) == linked.describe() == " ".join(linked.sentences()), "no table where there is nothing to show"


# ------------------------------------------------------------------------------------------------------ saved, messages


def test_everything_is_saved_and_loaded_unchanged(
    flips: tuple[mi.AccuracyResults, np.ndarray, np.ndarray], tmp_path: Path
) -> None:
    found, values, _ = flips
    linked = found.linked(head_scores(values, list(found.problem_ids)))
    mi.save(tmp_path / "out", found, linked, one=found.compare("none", "mless"), every=found.compare_all())
    loaded = mi.load(tmp_path / "out")
    pd.testing.assert_frame_equal(loaded["AccuracyResults"].to_frame(), found.to_frame())
    pd.testing.assert_frame_equal(loaded["LinkedAccuracy"].summary(), linked.summary())
    assert isinstance(loaded["one"], Comparison) and repr(loaded["one"]) == repr(found.compare("none", "mless"))
    assert isinstance(loaded["every"], Comparisons) and repr(loaded["every"]) == repr(found.compare_all())
    assert loaded["AccuracyResults"].settings == {"model": "toy"}


def test_the_same_seed_gives_the_same_result_and_nothing_global_is_touched(by_hand: mi.AccuracyResults) -> None:
    np.random.seed(3)
    state = np.random.get_state()[1].copy()
    assert repr(by_hand) == repr(by_hand)
    np.testing.assert_array_equal(np.random.get_state()[1], state)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"problem_ids": ["p0", "p0"]}, "every problem id is named once, but 'p0' came twice"),
        ({"treatments": ["a", "b", "a"]}, "every treatment is named once, but 'a' came twice"),
        ({"treatments": []}, "at least one treatment is needed"),
        ({"problem_ids": ["p1", "p2"]}, "answer 0 .'p0', 'a', sample 0. belongs to none of these problems"),
        ({"n_samples": 1}, "answer 1 .'p0', 'a', sample 1.: samples are counted from 0 to 0"),
        ({"golds": ["7"]}, "2 problems but 1 gold answers"),
    ],
)
def test_bad_input_is_named(change: dict[str, Any], message: str) -> None:
    given = {"problem_ids": ["p0", "p1"], "treatments": ["a", "b"], "n_samples": 2} | change
    with pytest.raises(ValueError, match=message):
        mi.AccuracyResults.from_rows(rows(np.ones((2, 2, 2)), ("a", "b")), **given)


def test_bad_rows_are_named() -> None:
    made = list(rows(np.ones((2, 1, 1)), ("a",)))
    with pytest.raises(ValueError, match="answer 2 .'p0', 'a', sample 0. is there twice"):
        mi.AccuracyResults.from_rows([*made, made[0]], problem_ids=["p0", "p1"], treatments=["a"])
    del made[1]["boxed"]
    with pytest.raises(ValueError, match="answer 1 lacks boxed; an answer has the keys problem, treatment"):
        mi.AccuracyResults.from_rows(made, problem_ids=["p0", "p1"], treatments=["a"])


def test_a_folder_from_before_a_grader_came_is_read_and_shown_without_it(tmp_path: Path) -> None:
    found = results(one_sample(6, 0.5, 0.5))
    older = replace(found, correct={name: found.correct[name] for name in ("strict", "paper")})
    mi.save(tmp_path / "older", older)
    back = mi.load(tmp_path / "older")["AccuracyResults"]
    assert back.graders == ("strict", "paper") and repr(back) == repr(older)
    assert "paper_low" in back.summary() and "lenient" not in {*back.summary(), *back.to_frame(), *back.printed()}
    for correct in ({"paper": found.correct["paper"]}, found.correct | {"kind": found.correct["strict"]}):
        with pytest.raises(
            ValueError, match="correct needs grader strict and may have others of strict, lenient, paper, got"
        ):
            replace(found, correct=correct)
