"""Metrics by hand: what the oracles and laws do not say."""

import math

import pytest
import torch
from formulas_under_test import A0, A1, NAN, QUESTION, SINK, SPAN, random, random_pattern, same, visible_keys

from mless_interp.metrics.activations import arm_threshold, near_zero_fraction
from mless_interp.metrics.attention import (
    jensen_shannon_distance,
    log_density_ratio,
    retained_mass,
    span_log_odds,
    span_mass,
)
from mless_interp.metrics.outputs import span_output, span_output_weight
from mless_interp.metrics.patterns import row_mask, segment_mean
from mless_interp.metrics.received import received_attention, received_sums, sink_rate
from mless_interp.metrics.recovery import (
    attenuation_r_squared,
    attenuation_slope,
    matched_peaks_f1,
    spike_peaks,
    timing_pearson,
    timing_spearman,
)


def test_arm_threshold_uses_the_lower_median():
    # upper or averaged medians would give another MAD: |a| = 1 2 3 10, median 2, deviations 1 0 1 8, median 1
    same(arm_threshold(torch.tensor([1.0, -2.0, 3.0, 10.0]), c=1.0), 1.4826)


def test_arm_threshold_of_constant_activations_is_tiny_not_zero():
    same(arm_threshold(torch.ones(4, dtype=torch.float64), c=1.0), 1.4826e-12)


def test_near_zero_fraction_is_strict_and_takes_a_threshold_per_head():
    values = torch.tensor([[0.0, 0.1, -0.2, 0.4], [0.0, 0.1, -0.2, 0.4]])
    same(near_zero_fraction(values, threshold=torch.tensor([0.2, 0.3])), [0.5, 0.75])
    same(near_zero_fraction(values, threshold=0.0), [0.0, 0.0])


def test_span_mass_and_lambda_of_the_worked_example():
    same(span_mass(A1, span=SPAN)[3:], [0.2, 0.5])  # .1 + .1, .25 + .25
    same(retained_mass(A1, span=SPAN)[3:], [0.8, 0.5])
    same(segment_mean(retained_mass(A1, span=SPAN), QUESTION), 0.65)


def test_density_ratio_is_undefined_before_the_span_and_minus_infinity_where_it_gets_nothing():
    same(log_density_ratio(A1, span=SPAN)[0], NAN)
    ignoring = torch.tensor([[1.0, 0, 0], [1, 0, 0], [0.5, 0, 0.5]])
    same(log_density_ratio(ignoring, span=torch.tensor([False, True, False])), [NAN, -math.inf, -math.inf])


def test_lambda_from_scores_is_lambda_of_the_softmax():
    scores, visible = 3 * random(4, 2, 9, 9), visible_keys(9, window=5)
    span = (torch.arange(9) > 2) & (torch.arange(9) < 5)
    pattern = torch.where(visible, scores, -torch.inf).softmax(-1)
    same(
        (-span_log_odds(scores, span=span, visible=visible)).sigmoid(),
        retained_mass(pattern, span=span, visible=visible),
    )


def test_log_odds_survive_where_probabilities_underflow():
    scores = torch.tensor([[0.0, 0.0], [0.0, -200.0]])
    span = torch.tensor([False, True])
    assert span_mass(scores.softmax(-1).tril().clamp(max=1) + torch.tensor([[0.5, 0], [0, 0]]), span=span)[1] == 0
    same(span_log_odds(scores, span=span), [-math.inf, -200.0])


@pytest.mark.parametrize("n", [1, 2, 8, 55])
def test_log_odds_of_n_identical_tokens_grow_with_slope_one(n):
    # methods I12: logit(1 - lambda) = log N + const
    scores = torch.cat([torch.tensor([0.3, -0.2]), torch.full((n,), -1.7), torch.tensor([0.5])]).double()[None]
    position = torch.arange(n + 3)
    span = (position >= 2) & (position < n + 2)
    odds = span_log_odds(scores, span=span, dest_positions=torch.tensor([n + 2]))
    constant = -1.7 - math.log(math.exp(0.3) + math.exp(-0.2) + math.exp(0.5))
    same(odds, [math.log(n) + constant])


def rows(*shape: int, seed: int) -> torch.Tensor:
    scores = 3 * torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return scores.softmax(-1)


def test_nearly_equal_rows_in_float32_have_no_negative_divergence():
    p = rows(100, 500, seed=0).float()
    q = p * (1 + 1e-6 * torch.randn(100, 500, generator=torch.Generator().manual_seed(1)))
    q = q / q.sum(-1, keepdim=True)
    assert jensen_shannon_distance(p, q).max() < 1e-5 and not jensen_shannon_distance(p, q).isnan().any()


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


def test_which_rows_count_decides_the_apparent_attenuation():
    # methods 4.1: .923 with all rows, .664 with shared rows
    base = received_attention(A0, min_rows=1)[0]
    ratios = [
        received_attention(A1, rows=row_mask(rows, question=QUESTION, span=SPAN), min_rows=1)[0] / base
        for rows in ("all", "shared")
    ]
    same(torch.stack(ratios), [0.923, 0.664], atol=5e-4, rtol=0)


def test_sink_columns_are_dropped_and_rows_renormalised_on_request():
    same(received_attention(A1, sink=SINK, min_rows=1), [NAN, 0.55 / 3, 0.175, 0.15, NAN])
    # rows 2-4 without the sink: .2/.4; .1/.52, .32/.52; .25/.75, .15/.75
    expected = [NAN, (0.2 / 0.4 + 0.1 / 0.52 + 0.25 / 0.75) / 3, (0.1 / 0.52 + 0.25 / 0.75) / 2, 0.15 / 0.75, NAN]
    same(received_attention(A1, sink=SINK, renorm=True, min_rows=1), expected)


def test_rows_with_everything_on_the_sink_leave_the_renormalised_mean():
    pattern = torch.tensor([[1.0, 0, 0, 0], [0.5, 0.5, 0, 0], [1.0, 0, 0, 0], [0.5, 0.2, 0.2, 0.1]])
    sink = torch.tensor([True, False, False, False])
    sums, counts = received_sums(pattern, sink=sink, renorm=True)
    same(sums, [0, 0.4, 0.4, 0])
    assert counts.tolist() == [0, 1, 1, 0]


def test_sink_rate_is_the_share_of_tokens_over_the_threshold():
    alpha = torch.tensor([[0.7, 0.35, 0.2, NAN], [0.1, 0.1, 0.1, 0.1]])
    first = torch.tensor([True, False, False, False])
    same(sink_rate(alpha, first), [1, 0])
    same(sink_rate(alpha, ~first), [0.5, 0])
    same(sink_rate(alpha, ~first, threshold=0.05), [1, 1])
    same(sink_rate(alpha[:1], torch.tensor([False, False, False, True])), [NAN])


def test_constant_or_missing_profiles_have_no_timing():
    x = torch.tensor([[0.1, 0.1, 0.1], [0.1, 0.2, 0.3], [NAN, NAN, NAN], [NAN, 1.0, NAN]])
    y = torch.tensor([0.3, 0.1, 0.2]).expand(4, 3)
    expected = [NAN, -0.5, NAN, NAN]
    same(timing_pearson(x, y), expected)
    same(timing_spearman(x, y), expected)


def test_slope_of_nothing_is_undefined():
    zero, some = torch.zeros(3), torch.tensor([0.1, 0.2, 0.3])
    same(attenuation_slope(zero, some), NAN)
    same(attenuation_r_squared(zero, some), NAN)
    same(attenuation_slope(some, zero), 0.0)
    same(attenuation_r_squared(some, zero), NAN)


def test_peaks_take_the_left_of_a_plateau_and_never_the_ends():
    profile = torch.tensor([5.0, 0.0, 3.0, 3.0, 3.0, 0.0, 1.0, 0.0, 9.0])
    assert spike_peaks(profile, min_prominence=2.0).nonzero()[:, 0].tolist() == [2]
    assert spike_peaks(profile, min_prominence=0.0).nonzero()[:, 0].tolist() == [2, 6]


def test_matched_peaks_use_each_peak_once():
    x = torch.tensor([False, True, False, True, False, False])
    y = torch.tensor([False, False, True, False, False, False])
    same(matched_peaks_f1(x, y), 0.0)
    same(matched_peaks_f1(x, y, tolerance=1), 2 / 3)  # one pair of 2 + 1 peaks
    same(matched_peaks_f1(x, x), 1.0)
    same(matched_peaks_f1(x & y, x & y), NAN)
    same(matched_peaks_f1(x, x & y), 0.0)
