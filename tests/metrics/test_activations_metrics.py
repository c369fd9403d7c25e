"""Distributions of MLP activations."""

import torch
from formulas_under_test import NAN, same

from mless_interp.metrics.activations import arm_threshold, gini, histogram_gini, near_zero_fraction

ARM = torch.tensor([-0.2, -0.05, 0, 0.01, 0.02, 0.1, 0.5, 1], dtype=torch.float64)  # methods 13


def test_arm_threshold_of_the_worked_example():
    # |a| sorted 0 .01 .02 .05 | .1 .2 .5 1: lower median .05; deviations sorted .03 .04 .05 .05 ...: lower median .05
    same(arm_threshold(ARM, c=0.13), 1.4826 * 0.05 * 0.13)
    same(arm_threshold(ARM, c=0.13), 0.0096369, atol=1e-8, rtol=0)
    same(near_zero_fraction(ARM, threshold=arm_threshold(ARM, c=0.13)), 0.125)  # the 0 alone


def test_arm_threshold_uses_the_lower_median():
    # upper or averaged medians would give another MAD: |a| = 1 2 3 10, median 2, deviations 1 0 1 8, median 1
    same(arm_threshold(torch.tensor([1.0, -2.0, 3.0, 10.0]), c=1.0), 1.4826)


def test_arm_threshold_of_constant_activations_is_tiny_not_zero():
    same(arm_threshold(torch.ones(4, dtype=torch.float64), c=1.0), 1.4826e-12)


def test_near_zero_fraction_is_strict_and_takes_a_threshold_per_head():
    values = torch.tensor([[0.0, 0.1, -0.2, 0.4], [0.0, 0.1, -0.2, 0.4]])
    same(near_zero_fraction(values, threshold=torch.tensor([0.2, 0.3])), [0.5, 0.75])
    same(near_zero_fraction(values, threshold=0.0), [0.0, 0.0])


def test_gini_of_the_worked_vectors():
    same(gini(torch.tensor([[0.0, 0, 0, 1], [1, 2, 3, 4], [1, 1, 1, 1], [0, 0, 0, 0]])), [0.75, 0.25, 0, NAN])


def test_histogram_gini_runs_from_even_to_one_bin():
    edges = torch.tensor([0.0, 1.0, 2.0, 3.0, 4.0])
    same(histogram_gini(torch.tensor([0.5, 1.5, 2.5, 3.5]), edges=edges), 0.0)
    same(histogram_gini(torch.tensor([0.5, 0.5, 0.1]), edges=edges), 0.75)
    same(
        histogram_gini(torch.tensor([-9.0, 9.0]), edges=torch.tensor([0.0, 1.0, 2.0])), 0.0
    )  # outer bins take the rest


def test_arm_threshold_of_signed_activations():
    # signed: lower median -3, deviations 1 0 6 7, lower median 1; absolute: 4 3 3 4, median 3, deviations 1 0 0 1, median 0
    values = torch.tensor([-4.0, -3.0, 3.0, 4.0])
    same(arm_threshold(values, c=1.0, absolute=False), 1.4826)
    same(arm_threshold(values, c=1.0), 1.4826e-12)
