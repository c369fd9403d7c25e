"""Values and outputs of the span; rollout and rank collapse."""

import torch
from formulas_under_test import A0, A1, SPAN, random, random_pattern, same, visible_keys

from mless_interp.metrics.attention import retained_mass
from mless_interp.metrics.outputs import span_output, span_output_weight

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
