"""Distances between aligned attention rows."""

import torch
from formulas_under_test import A0, A1, NAN, PI, same

from mless_interp.metrics.distances import (
    hellinger,
    jensen_shannon_distance,
    jensen_shannon_divergence,
    renormalised_rows,
    total_variation,
)

DISTANCES = (jensen_shannon_divergence, jensen_shannon_distance, hellinger, total_variation)


def rows(*shape: int, seed: int) -> torch.Tensor:
    scores = 3 * torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return scores.softmax(-1)


def test_distances_of_the_worked_rows():
    p = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
    q = torch.tensor([0.4, 0.4, 0.2], dtype=torch.float64)
    tight = {"atol": 1e-7, "rtol": 0}
    same(jensen_shannon_divergence(p, q), 0.00918593, **tight)
    same(jensen_shannon_distance(p, q), 0.0958432, **tight)
    same(hellinger(p, q), 0.0798514, **tight)
    same(total_variation(p, q), 0.1)


def test_disjoint_rows_are_at_distance_one_and_equal_rows_at_zero():
    p, q = torch.tensor([0.5, 0.5, 0.0]), torch.tensor([0.0, 0.0, 1.0])
    for distance in DISTANCES:
        same(distance(p, q), 1.0)
        same(distance(p, p), 0.0)


def test_aligned_rows_of_the_worked_example():
    # rows 3, 4 over the shared keys: (.48, .32, 0) / .8 and (.25, .15, .1) / .5 are the base rows
    inserted = renormalised_rows(A1[PI], alignment=PI)
    same(inserted, A0)
    same(jensen_shannon_divergence(A0, inserted), 0.0)
    padded = torch.zeros(3, 5, dtype=A0.dtype).index_copy(-1, PI, A0)
    same(total_variation(padded, A1[PI])[1:], [0.2, 0.5])


def test_nearly_equal_rows_in_float32_have_no_negative_divergence():
    p = rows(100, 500, seed=0).float()
    q = p * (1 + 1e-6 * torch.randn(100, 500, generator=torch.Generator().manual_seed(1)))
    q = q / q.sum(-1, keepdim=True)
    assert jensen_shannon_distance(p, q).max() < 1e-5 and not jensen_shannon_distance(p, q).isnan().any()


def test_rows_that_read_only_the_span_have_no_aligned_distance():
    pattern = torch.tensor([[0.0, 1.0, 0.0], [0.5, 0.0, 0.5]])
    inserted = renormalised_rows(pattern, alignment=torch.tensor([0, 2]))
    same(inserted, [[NAN, NAN], [0.5, 0.5]])
    base = torch.tensor([[1.0, 0.0], [0.5, 0.5]])
    for distance in DISTANCES:
        same(distance(base, inserted), [NAN, 0.0])
        same(distance(inserted, base), [NAN, 0.0])
