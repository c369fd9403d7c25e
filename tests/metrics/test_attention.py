"""Span mass, lambda and density, row by row."""

import math

import pytest
import torch
from formulas_under_test import A1, NAN, QUESTION, SINK, SPAN, random, same, visible_keys

from mless_interp.metrics.attention import (
    log_density_ratio,
    non_sink_span_mass,
    retained_mass,
    span_log_odds,
    span_mass,
    span_mass_null,
)
from mless_interp.metrics.segments import segment_mean


def test_span_mass_and_lambda_of_the_worked_example():
    same(span_mass(A1, span=SPAN)[3:], [0.2, 0.5])  # .1 + .1, .25 + .25
    same(retained_mass(A1, span=SPAN)[3:], [0.8, 0.5])
    same(segment_mean(retained_mass(A1, span=SPAN), QUESTION), 0.65)


def test_density_ratio_of_the_worked_example():
    # row 3: (.2 / 2) / (.8 / 2) = .25; row 4: (.5 / 2) / (.5 / 3) = 1.5
    same(log_density_ratio(A1, span=SPAN)[3:].exp(), [0.25, 1.5])
    # without the sink: row 3: .1 / (.32 / 1) = .3125; row 4: .25 / (.25 / 2) = 2
    same(log_density_ratio(A1, span=SPAN, sink=SINK)[3:].exp(), [0.3125, 2.0])


def test_density_ratio_is_undefined_before_the_span_and_minus_infinity_where_it_gets_nothing():
    same(log_density_ratio(A1, span=SPAN)[0], NAN)
    ignoring = torch.tensor([[1.0, 0, 0], [1, 0, 0], [0.5, 0, 0.5]])
    same(log_density_ratio(ignoring, span=torch.tensor([False, True, False])), [NAN, -math.inf, -math.inf])


def test_non_sink_span_mass_of_the_worked_example():
    # row 3: .2 / .52; row 4: .5 / .75; row 0: everything is on the sink
    same(non_sink_span_mass(A1, span=SPAN, sink=SINK)[[0, 3, 4]], [NAN, 0.2 / 0.52, 0.5 / 0.75])


def test_span_mass_null_counts_visible_keys():
    same(span_mass_null(visible_keys(5), span=SPAN, dtype=torch.float64), [0, 1 / 2, 2 / 3, 2 / 4, 2 / 5])
    same(span_mass_null(visible_keys(5, window=2), span=SPAN), [0, 1 / 2, 1, 1 / 2, 0])


def test_span_mass_null_at_the_papers_geometry():
    # methods 4.2: 115 tokens, span 18-72 (55 tokens): mean over the question .592, lambda .408
    position = torch.arange(115)
    null = span_mass_null(visible_keys(115), span=(position >= 18) & (position < 73), dtype=torch.float64)
    assert abs(segment_mean(null, position >= 73).item() - 0.592) < 5e-4


@pytest.mark.parametrize(
    ("per_token", "mass", "density"),
    [(0.002, 0.11, 0.09), (0.005, 0.275, 0.27), (0.008, 0.44, 0.56), (0.01, 0.55, 0.88)],
)
def test_reading_of_per_token_weights_at_the_papers_scale(per_token, mass, density):
    # methods 4.3, averaged in the middle of the question: 94 visible keys, 55 of them in the span
    n, position = 94, torch.arange(94)
    span = (position >= 18) & (position < 73)
    row = torch.where(span, per_token, (1 - 55 * per_token) / 39)[None].double()
    block = {"dest_positions": torch.tensor([n - 1])}
    same(span_mass(row, span=span, **block), [mass])
    assert abs(log_density_ratio(row, span=span, **block).exp().item() - density) < 0.02


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
