"""Values and outputs of the span; rollout and rank collapse."""

import math

import torch
from formulas_under_test import A0, A1, NAN, SPAN, random, random_pattern, same, visible_keys

from mless_interp.metrics.attention import retained_mass
from mless_interp.metrics.outputs import (
    direction_coherence,
    span_output,
    span_output_weight,
    value_cosine,
    value_effective_rank,
    value_spectral_share,
)

# methods 13: base prompt [P Q Q]; inserted prompt [P I I Q Q], positions held; values 1; -1, -1; 2, 4
V1 = torch.tensor([[1], [-1], [-1], [2], [4]], dtype=torch.float64)


def test_head_output_of_the_worked_example_is_lambda_z_plus_sigma():
    base = (A0 @ V1[[0, 3, 4]])[1:]
    inserted = (A1 @ V1)[3:]
    sigma, lam = span_output(A1, V1, span=SPAN)[3:], retained_mass(A1, span=SPAN)[3:, None]
    same(base, [[1.4], [1.9]])
    same(inserted, [[0.92], [0.45]])
    same(sigma, [[-0.2], [-0.5]])  # (1 - lambda) times -1, as the span is one repeated token
    same(lam * base + sigma, inserted)


def test_output_weight_compares_norms_of_the_two_sides():
    # row 3: |-.2| and |.48 + .64|; row 4: |-.5| and |.25 + .3 + .4|
    same(span_output_weight(A1, V1, span=SPAN)[3:], [0.2 / 1.32, 0.5 / 1.45])


def test_output_weight_reads_what_the_output_projection_keeps():
    pattern = random_pattern(3, visible=visible_keys(6))
    values, weights = random(3, 6, 4, seed=1), random(3, 4, 7, seed=2)
    span = torch.isin(torch.arange(6), torch.tensor([2, 3]))
    inside = torch.einsum("hqk,hkd,hde->hqe", pattern * span, values, weights).norm(dim=-1)
    outside = torch.einsum("hqk,hkd,hde->hqe", pattern * ~span, values, weights).norm(dim=-1)
    same(span_output_weight(pattern, values, span=span, output_weights=weights), inside / (inside + outside))
    silent = weights.clone()
    silent[0] = 0
    assert span_output_weight(pattern, values, span=span, output_weights=silent)[0].isnan().all()


def test_identical_values_are_fully_coherent():
    values = random(2, 1, 5).expand(2, 6, 5)
    span = torch.isin(torch.arange(6), torch.tensor([1, 2, 3]))
    same(value_cosine(values, span=span), 1.0)
    same(value_spectral_share(values, span=span), 1.0)
    same(value_effective_rank(values, span=span), 1.0, atol=1e-6, rtol=0)


def test_orthogonal_values_are_not():
    span = torch.tensor([True, True, True, False])
    values = torch.diag(torch.tensor([2.0, 2.0, 2.0, 9.0]))
    same(value_cosine(values, span=span), 0.0)
    same(value_spectral_share(values, span=span), 1 / 3)
    same(value_effective_rank(values, span=span), 3.0)
    # singular values 3, 1: energy 9/10; exp H(3/4, 1/4)
    uneven = torch.diag(torch.tensor([3.0, 1.0]))
    everything = torch.ones(2, dtype=torch.bool)
    same(value_spectral_share(uneven, span=everything), 0.9)
    same(value_effective_rank(uneven, span=everything), math.exp(-0.75 * math.log(0.75) - 0.25 * math.log(0.25)))


def test_direction_coherence_ignores_lengths_and_undefined_rows():
    vectors = torch.tensor([[NAN, NAN], [1.0, 0.0], [5.0, 0.0], [0.0, 0.0], [0.0, 2.0]])
    same(direction_coherence(vectors), math.hypot(2, 1) / 3)
    same(direction_coherence(vectors, rows=torch.tensor([True, True, True, True, False])), 1.0)
    same(direction_coherence(torch.zeros(2, 2)), NAN)
