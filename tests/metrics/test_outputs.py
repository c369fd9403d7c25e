"""Values and outputs of the span; rollout and rank collapse."""

import math

import pytest
import torch

from mless_interp.metrics.attention import retained_mass
from mless_interp.metrics.flow import rollout, rollout_span_share
from mless_interp.metrics.outputs import (
    direction_coherence,
    span_output,
    span_output_weight,
    value_cosine,
    value_effective_rank,
    value_spectral_share,
)
from mless_interp.metrics.patterns import uniform_pattern, visible_keys

NAN = float("nan")

# methods 13: base prompt [P Q Q]; inserted prompt [P I I Q Q], positions held; values 1; -1, -1; 2, 4
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
V1 = torch.tensor([[1], [-1], [-1], [2], [4]], dtype=torch.float64)
SPAN = torch.tensor([False, True, True, False, False])


def same(actual: torch.Tensor, expected: list | float | torch.Tensor, **tolerance: float) -> None:
    torch.testing.assert_close(
        actual, torch.as_tensor(expected, dtype=actual.dtype).expand(actual.shape), equal_nan=True, **tolerance
    )


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def random_pattern(*lead: int, visible: torch.Tensor, seed: int = 0) -> torch.Tensor:
    scores = random(*lead, *visible.shape[-2:], seed=seed)
    return torch.where(visible, scores, -torch.inf).softmax(-1).nan_to_num()


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


def test_little_attention_can_carry_a_large_output():
    values = torch.tensor([[0.01], [100.0]], dtype=torch.float64)
    pattern = torch.tensor([[1.0, 0.0], [0.99, 0.01]], dtype=torch.float64)
    assert span_output_weight(pattern, values, span=torch.tensor([False, True]))[1] > 0.98


def test_outputs_of_blocks_of_rows_concatenate():
    visible = visible_keys(8, window=4, real=torch.arange(8) >= 1)
    pattern, values = random_pattern(2, visible=visible), random(2, 8, 3)
    span = torch.isin(torch.arange(8), torch.tensor([3, 4]))
    for metric, axis in ((span_output, -2), (span_output_weight, -1)):
        whole = metric(pattern, values, span=span, visible=visible)
        blocks = [
            metric(pattern[:, rows], values, span=span, visible=visible[rows], dest_positions=rows)
            for rows in torch.arange(8).split(3)
        ]
        same(torch.cat(blocks, axis), whole)
        assert whole.select(axis, 0).isnan().all()


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


def test_cosine_is_the_mean_over_distinct_pairs():
    values = random(3, 7, 5)
    span = torch.stack([torch.arange(7) < 4, torch.arange(7) > 2, torch.arange(7) == 1])
    expected = []
    for vectors, keep in zip(values, span, strict=True):
        units = torch.nn.functional.normalize(vectors[keep], dim=-1)
        cosines = (units @ units.mT)[~torch.eye(len(units), dtype=torch.bool)]
        expected.append(cosines.mean().item())  # nan for a single token
    same(value_cosine(values, span=span), expected)
    singular = [torch.linalg.svdvals(vectors[keep]) for vectors, keep in zip(values, span, strict=True)]
    same(value_spectral_share(values, span=span), [(s[0] ** 2 / (s**2).sum()).item() for s in singular])


def test_coherence_of_nothing_is_undefined():
    zeros, span = torch.zeros(3, 2), torch.tensor([True, True, False])
    for metric in (value_cosine, value_spectral_share, value_effective_rank):
        same(metric(zeros, span=span), NAN)
        with pytest.raises(ValueError, match="the span is empty"):
            metric(zeros, span=torch.zeros(3, dtype=torch.bool))


def test_direction_coherence_ignores_lengths_and_undefined_rows():
    vectors = torch.tensor([[NAN, NAN], [1.0, 0.0], [5.0, 0.0], [0.0, 0.0], [0.0, 2.0]])
    same(direction_coherence(vectors), math.hypot(2, 1) / 3)
    same(direction_coherence(vectors, rows=torch.tensor([True, True, True, True, False])), 1.0)
    same(direction_coherence(torch.zeros(2, 2)), NAN)


def test_sigma_of_a_repeated_token_has_one_direction():
    # methods I3: Sigma_i = (1 - lambda_i) v
    pattern = random_pattern(4, visible=visible_keys(9))
    span = torch.isin(torch.arange(9), torch.tensor([2, 3, 4]))
    values = torch.where(span[:, None], random(1, 3, seed=3), random(9, 3, seed=4))
    sigma = span_output(pattern, values, span=span)
    same(direction_coherence(sigma, rows=torch.arange(9) > 4), 1.0)
    same(sigma[:, 5:], (1 - retained_mass(pattern, span=span)[:, 5:, None]) * values[2])


def test_rollout_of_the_worked_example():
    # .5 A + .5 I: [[1, 0], [.2, .8]] then [[1, 0], [.1, .9]]; product row 1: .1 + .9 * .2, .9 * .8
    patterns = torch.tensor([[[1.0, 0.0], [0.4, 0.6]], [[1.0, 0.0], [0.2, 0.8]]])
    same(rollout(patterns), [[1, 0], [0.28, 0.72]])
    same(rollout_span_share(patterns, span=torch.tensor([True, False])), [1, 0.28])


def test_rollout_rows_sum_to_one_and_span_shares_to_all():
    patterns = random_pattern(4, 2, visible=visible_keys(7))
    same(rollout(patterns).sum(-1), 1.0)
    span = torch.isin(torch.arange(7), torch.tensor([2, 3]))
    same(rollout_span_share(patterns, span=span) + rollout_span_share(patterns, span=~span), 1.0)


def test_rollout_reaches_beyond_a_window_and_skips_padding():
    visible = visible_keys(6, window=2, real=torch.arange(6) >= 1)
    patterns = uniform_pattern(visible).expand(3, 6, 6)
    flow = rollout(patterns, visible=visible)
    assert flow[0].isnan().all() and flow[4, 1] > 0 and (flow[1:, 0] == 0).all()
    same(flow[1:].sum(-1), 1.0)
    span = torch.tensor([False, False, True, False, False, False])
    same(rollout_span_share(patterns, span=span, visible=visible), flow[:, 2])


def test_rollout_needs_whole_patterns():
    with pytest.raises(ValueError, match="at least one layer"):
        rollout(torch.ones(0, 2, 2))
