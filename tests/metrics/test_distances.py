"""Distances between aligned attention rows."""

import torch

from mless_interp.metrics.distances import (
    hellinger,
    jensen_shannon_distance,
    jensen_shannon_divergence,
    total_variation,
)

DISTANCES = (jensen_shannon_divergence, jensen_shannon_distance, hellinger, total_variation)


def rows(*shape: int, seed: int) -> torch.Tensor:
    scores = 3 * torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return scores.softmax(-1)


def test_nearly_equal_rows_in_float32_have_no_negative_divergence():
    p = rows(100, 500, seed=0).float()
    q = p * (1 + 1e-6 * torch.randn(100, 500, generator=torch.Generator().manual_seed(1)))
    q = q / q.sum(-1, keepdim=True)
    assert jensen_shannon_distance(p, q).max() < 1e-5 and not jensen_shannon_distance(p, q).isnan().any()
