"""Rankings of heads against the truth, and circuit curves."""

import pytest
import torch

from mless_interp.metrics.rankings import (
    auroc,
    average_precision,
    circuit_distance,
    circuit_performance,
    recall_at_k,
)

NAN = float("nan")
SCORES = torch.tensor([0.9, 0.8, 0.4, 0.4, 0.1])
TRUTH = torch.tensor([True, False, True, False, False])


def same(actual: torch.Tensor, expected: list | float | torch.Tensor, **tolerance: float) -> None:
    torch.testing.assert_close(
        actual, torch.as_tensor(expected, dtype=actual.dtype).expand(actual.shape), equal_nan=True, **tolerance
    )


def test_auroc_of_the_worked_example():
    # .9 beats .8 .4 .1; .4 ties with .4 and beats .1: (3 + 1.5) / 6
    same(auroc(SCORES, TRUTH), 0.75)


def test_perfect_reversed_and_constant_scores():
    scores = torch.stack([TRUTH.float(), -TRUTH.float(), torch.zeros(5)])
    same(auroc(scores, TRUTH), [1, 0, 0.5])
    same(average_precision(scores, TRUTH), [1, 2 / 5, 2 / 5])
    same(recall_at_k(scores, TRUTH), [1, 0, 2 / 5])


def test_a_class_without_heads_is_undefined():
    none, every = torch.zeros(5, dtype=torch.bool), torch.ones(5, dtype=torch.bool)
    same(auroc(SCORES, none), NAN)
    same(auroc(SCORES, every), NAN)
    same(average_precision(SCORES, none), NAN)
    same(recall_at_k(SCORES, none), NAN)


def test_average_precision_by_hand():
    # the true heads enter at ranks 1 and (tied) 4: (1/1 + 2/4) / 2
    same(average_precision(SCORES, TRUTH), 0.75)
    # ranks 1, 3, 4: (1 + 2/3 + 3/4) / 3
    scores, truth = torch.tensor([4.0, 3.0, 2.0, 1.0]), torch.tensor([True, False, True, True])
    same(average_precision(scores, truth), (1 + 2 / 3 + 3 / 4) / 3)


def test_recall_shares_a_tied_place():
    # two places: .9 is in, .8 is in; three places: the third is .4 or .4
    same(recall_at_k(SCORES, TRUTH), 0.5)
    same(recall_at_k(SCORES, TRUTH, k=3), 0.75)
    same(recall_at_k(SCORES, TRUTH, k=4), 1.0)


def test_heads_without_a_score_are_left_out():
    scores = torch.tensor([0.9, NAN, 0.4, 0.4, 0.1])
    same(auroc(scores, TRUTH), auroc(SCORES[[0, 2, 3, 4]], TRUTH[[0, 2, 3, 4]]))
    same(average_precision(scores, TRUTH), (1 + 2 / 3) / 2)
    same(auroc(torch.full((5,), NAN), TRUTH), NAN)


def test_infinite_scores_are_scores():
    same(auroc(torch.tensor([torch.inf, -torch.inf]), torch.tensor([True, False])), 1.0)
    same(recall_at_k(torch.tensor([-torch.inf, 0.0]), torch.tensor([True, False]), k=2), 1.0)


def test_random_scores_recall_by_chance():
    scores = torch.rand(4000, 20, generator=torch.Generator().manual_seed(0))
    truth = torch.arange(20) < 4
    assert abs(recall_at_k(scores, truth).mean() - 0.2) < 0.01
    assert abs(auroc(scores, truth).mean() - 0.5) < 0.01


def test_k_must_fit():
    for k in (0, 6):
        with pytest.raises(ValueError, match=rf"k must be between 1 and the number of heads \(5\), got {k}"):
            recall_at_k(SCORES, TRUTH, k=k)
    with pytest.raises((TypeError, ValueError)):
        auroc(SCORES, TRUTH[:4])


def test_circuit_curve_of_the_worked_example():
    # trapezoids of .8: .2 + .45; of |1 - f| = 1, .2, 0: .3 + .05
    fractions, f = torch.tensor([0.0, 0.5, 1.0]), torch.tensor([0.0, 0.8, 1.0])
    same(circuit_performance(fractions, f), 0.65)
    same(circuit_distance(fractions, f), 0.35)


def test_overshoot_is_rewarded_by_performance_and_charged_by_distance():
    fractions, f = torch.tensor([0.0, 1.0]), torch.tensor([[1.0, 1.0], [2.0, 2.0], [0.0, 0.0]])
    same(circuit_performance(fractions, f), [1, 2, 0])
    same(circuit_distance(fractions, f), [0, 1, 1])


def test_an_undefined_point_leaves_the_curve_undefined():
    same(circuit_performance(torch.tensor([0.0, 0.5, 1.0]), torch.tensor([0.0, NAN, 1.0])), NAN)


def test_repeated_sizes_are_refused():
    with pytest.raises(ValueError, match="strictly increasing sizes.*drop the duplicates"):
        circuit_performance(torch.tensor([0.0, 0.0, 1.0]), torch.zeros(3))
