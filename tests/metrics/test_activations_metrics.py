"""Distributions of MLP activations."""

import torch
from formulas_under_test import same

from mless_interp.metrics.activations import arm_threshold, near_zero_fraction

ARM = torch.tensor([-0.2, -0.05, 0, 0.01, 0.02, 0.1, 0.5, 1], dtype=torch.float64)  # methods 13


def test_arm_threshold_uses_the_lower_median():
    # upper or averaged medians would give another MAD: |a| = 1 2 3 10, median 2, deviations 1 0 1 8, median 1
    same(arm_threshold(torch.tensor([1.0, -2.0, 3.0, 10.0]), c=1.0), 1.4826)


def test_arm_threshold_of_constant_activations_is_tiny_not_zero():
    same(arm_threshold(torch.ones(4, dtype=torch.float64), c=1.0), 1.4826e-12)


def test_near_zero_fraction_is_strict_and_takes_a_threshold_per_head():
    values = torch.tensor([[0.0, 0.1, -0.2, 0.4], [0.0, 0.1, -0.2, 0.4]])
    same(near_zero_fraction(values, threshold=torch.tensor([0.2, 0.3])), [0.5, 0.75])
    same(near_zero_fraction(values, threshold=0.0), [0.0, 0.0])
