"""Span mass, lambda and density, row by row."""

import math

import pytest
import torch
from formulas_under_test import A1, NAN, QUESTION, SPAN, random, same, visible_keys

from mless_interp.metrics.attention import log_density_ratio, retained_mass, span_log_odds, span_mass
from mless_interp.metrics.segments import segment_mean


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
