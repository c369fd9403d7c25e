"""Distances between aligned attention rows."""

import math

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mless_interp.metrics.distances import (
    hellinger,
    jensen_shannon_distance,
    jensen_shannon_divergence,
    renormalised_rows,
    total_variation,
)

NAN = float("nan")
DISTANCES = (jensen_shannon_divergence, jensen_shannon_distance, hellinger, total_variation)

# methods 13: base prompt [P Q Q]; inserted prompt [P I I Q Q], positions held
A0 = torch.tensor([[1, 0, 0], [0.6, 0.4, 0], [0.5, 0.3, 0.2]], dtype=torch.float64)
A1 = torch.tensor(
    [
        [1, 0, 0, 0, 0],
        [0.7, 0.3, 0, 0, 0],
        [0.6, 0.2, 0.2, 0, 0],
        [0.48, 0.1, 0.1, 0.32, 0],
        [0.25, 0.25, 0.25, 0.15, 0.10],
    ],
    dtype=torch.float64,
)
PI = torch.tensor([0, 3, 4])
SPAN = torch.tensor([False, True, True, False, False])


def same(actual: torch.Tensor, expected: list | float | torch.Tensor, **tolerance: float) -> None:
    torch.testing.assert_close(
        actual, torch.as_tensor(expected, dtype=actual.dtype).expand(actual.shape), equal_nan=True, **tolerance
    )


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


@given(lam=st.floats(0, 1), seed=st.integers(0, 10**6))
@settings(max_examples=40, deadline=None)
def test_first_layer_closed_forms_hold_for_any_lambda(lam, seed):
    base, inside = rows(6, seed=seed), rows(3, seed=seed + 1)
    alignment = torch.tensor([0, 1, 5, 6, 7, 8])
    padded = torch.zeros(9, dtype=base.dtype).index_copy(-1, alignment, base)
    full = lam * padded
    full[2:5] = (1 - lam) * inside
    lam = torch.tensor(lam, dtype=torch.float64)
    loose = {"atol": 1e-7, "rtol": 0}
    kept = torch.special.xlogy(lam, 2 * lam / (1 + lam)) / math.log(2)
    same(total_variation(padded, full), 1 - lam, **loose)
    same(hellinger(padded, full), (1 - lam.sqrt()).sqrt(), **loose)
    same(jensen_shannon_divergence(padded, full), ((2 / (1 + lam)).log2() + kept + 1 - lam) / 2, **loose)


@given(seed=st.integers(0, 10**6))
@settings(max_examples=30, deadline=None)
def test_distances_are_symmetric_bounded_and_ordered(seed):
    p, q = rows(2, 5, 8, seed=seed)
    for distance in DISTANCES:
        same(distance(p, q), distance(q, p))
        assert (distance(p, q) >= 0).all() and (distance(p, q) <= 1).all()
    # Hellinger^2 <= total variation <= sqrt(2) Hellinger; divergence <= total variation
    h, tv = hellinger(p, q), total_variation(p, q)
    assert (h**2 <= tv + 1e-12).all() and (tv <= 2**0.5 * h + 1e-12).all()
    assert (jensen_shannon_divergence(p, q) <= tv + 1e-12).all()


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


def test_inputs_are_not_edited():
    before = A1.clone()
    renormalised_rows(A1, alignment=PI)
    hellinger(A1, A1)
    assert A1.equal(before)
