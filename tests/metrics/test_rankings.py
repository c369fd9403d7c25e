"""Circuit curves."""

import pytest
import torch

from mless_interp.metrics.rankings import (
    circuit_distance,
    circuit_performance,
)

NAN = float("nan")


def same(actual: torch.Tensor, expected: list | float | torch.Tensor, **tolerance: float) -> None:
    torch.testing.assert_close(
        actual, torch.as_tensor(expected, dtype=actual.dtype).expand(actual.shape), equal_nan=True, **tolerance
    )


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
