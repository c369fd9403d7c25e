"""Distributions of MLP activations."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mless_interp.metrics.activations import (
    arm_threshold,
    gini,
    histogram,
    histogram_gini,
    kolmogorov_smirnov,
    l1_norm,
    l2_norm,
    mean_absolute,
    median_variance,
    near_zero_fraction,
    quantile,
    quantile_threshold,
    relative_sparsity,
    root_mean_square,
    tails,
    wasserstein,
)

NAN = float("nan")
ARM = torch.tensor([-0.2, -0.05, 0, 0.01, 0.02, 0.1, 0.5, 1], dtype=torch.float64)  # methods 13


def same(actual: torch.Tensor, expected: list | float | torch.Tensor, **tolerance: float) -> None:
    torch.testing.assert_close(
        actual, torch.as_tensor(expected, dtype=actual.dtype).expand(actual.shape), equal_nan=True, **tolerance
    )


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


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


def test_upper_range_of_the_worked_example():
    same(tails(ARM).q95, 0.825)  # methods 13: Q95 = .5 + .65 * .5


def test_quantile_must_be_a_share():
    with pytest.raises(ValueError, match=r"a quantile must lie between 0 and 1, got 95.0; 95 per cent is 0.95"):
        quantile_threshold(ARM, q=95.0)


def test_near_zero_fraction_is_strict_and_takes_a_threshold_per_head():
    values = torch.tensor([[0.0, 0.1, -0.2, 0.4], [0.0, 0.1, -0.2, 0.4]])
    same(near_zero_fraction(values, threshold=torch.tensor([0.2, 0.3])), [0.5, 0.75])
    same(near_zero_fraction(values, threshold=0.0), [0.0, 0.0])


def test_relative_sparsity_keeps_the_base_threshold():
    base = random(2, 500)
    own = near_zero_fraction(base, threshold=arm_threshold(base, c=0.3))
    same(relative_sparsity(base, base=base, c=0.3), own)
    assert (relative_sparsity(2 * base, base=base, c=0.3) < own).all()
    # as if its own threshold were used, scaling would go unseen
    same(near_zero_fraction(2 * base, threshold=arm_threshold(2 * base, c=0.3)), own)


def test_norms_and_their_per_element_forms():
    values = torch.tensor([3.0, -4.0, 0.0, 0.0])
    same(l1_norm(values), 7)
    same(mean_absolute(values), 7 / 4)
    same(l2_norm(values), 5)
    same(root_mean_square(values), 5 / 2)


def test_gini_of_the_worked_vectors():
    same(gini(torch.tensor([[0.0, 0, 0, 1], [1, 2, 3, 4], [1, 1, 1, 1], [0, 0, 0, 0]])), [0.75, 0.25, 0, NAN])


@given(seed=st.integers(0, 10**6), scale=st.floats(0.01, 100))
@settings(max_examples=25, deadline=None)
def test_gini_is_the_mean_absolute_difference_over_twice_the_mean(seed, scale):
    values = random(12, seed=seed)
    size = values.abs()
    expected = (size[:, None] - size).abs().mean() / (2 * size.mean())
    same(gini(scale * values), expected)
    same(gini(-values[torch.randperm(12)]), expected)


def test_histogram_gini_is_the_gini_of_counts():
    values = random(3, 1000)
    edges = torch.linspace(-4, 4, 21, dtype=torch.float64)
    counts = np.stack([np.histogram(row, bins=edges.numpy())[0] for row in values.clamp(-4, 4).numpy()])
    same(histogram_gini(values, edges=edges), gini(torch.from_numpy(counts).double()))


def test_histogram_gini_runs_from_even_to_one_bin():
    edges = torch.tensor([0.0, 1.0, 2.0, 3.0, 4.0])
    same(histogram_gini(torch.tensor([0.5, 1.5, 2.5, 3.5]), edges=edges), 0.0)
    same(histogram_gini(torch.tensor([0.5, 0.5, 0.1]), edges=edges), 0.75)
    same(
        histogram_gini(torch.tensor([-9.0, 9.0]), edges=torch.tensor([0.0, 1.0, 2.0])), 0.0
    )  # outer bins take the rest
    with pytest.raises(ValueError, match="at least two strictly increasing numbers"):
        histogram_gini(torch.tensor([0.5]), edges=torch.tensor([1.0, 0.0]))


def test_shifts_are_per_row_and_zero_for_reordered_values():
    values = random(3, 50)
    same(wasserstein(values, values.flip(-1)), 0.0)
    same(wasserstein(values, values + 2), 2.0)
    same(kolmogorov_smirnov(values, values.flip(-1)), 0.0)
    same(kolmogorov_smirnov(values, values + 100), 1.0)


def test_wasserstein_needs_equal_samples():
    with pytest.raises(ValueError, match="same number of elements, got 3 and 2; take the shared tokens of both runs"):
        wasserstein(torch.ones(3), torch.ones(2))


def test_median_variance_is_across_tokens():
    values = random(2, 10, 7)
    same(median_variance(values), torch.from_numpy(np.median(values.numpy().var(axis=1, ddof=1), axis=-1)))
    same(median_variance(values[:, :1]), [NAN, NAN])


def test_no_activations_are_refused():
    with pytest.raises(ValueError, match="there are no activations: the selection of tokens is empty"):
        near_zero_fraction(torch.ones(2, 0), threshold=0.1)


def test_inputs_are_not_edited():
    values = ARM.clone()
    gini(values)
    arm_threshold(values, c=0.1)
    kolmogorov_smirnov(values, values)
    assert values.equal(ARM)


def test_arm_threshold_of_signed_activations():
    # signed: lower median -3, deviations 1 0 6 7, lower median 1; absolute: 4 3 3 4, median 3, deviations 1 0 0 1, median 0
    values = torch.tensor([-4.0, -3.0, 3.0, 4.0])
    same(arm_threshold(values, c=1.0, absolute=False), 1.4826)
    same(arm_threshold(values, c=1.0), 1.4826e-12)


def test_quantile_agrees_with_numpy_and_checks_its_range():
    values = random(4, 57)
    for q in (0.0, 0.013, 0.5, 0.999, 1.0):
        same(quantile(values, q=q), np.quantile(values.numpy(), q, axis=-1))
    same(quantile(torch.tensor([3.0]), q=0.7), 3.0)
    with pytest.raises(ValueError, match="95 per cent is 0.95"):
        quantile(values, q=95.0)


def test_histogram_counts_everything_once_and_its_gini_is_histogram_gini():
    values, edges = random(3, 500), torch.linspace(-1, 1, 11, dtype=torch.float64)
    counts = histogram(values, edges=edges)
    expected = [np.histogram(np.clip(row, -1, 1 - 1e-12), edges)[0] for row in values.numpy()]
    same(counts, np.stack(expected))
    same(counts.sum(-1), 500.0)
    same(histogram_gini(values, edges=edges), gini(counts))
    with pytest.raises(ValueError, match="strictly increasing"):
        histogram(values, edges=torch.tensor([0.0, 0.0]))
