"""Entropy of attention rows and its chain rule."""

import math

import torch
from formulas_under_test import NAN, SPAN, random_pattern, same, visible_keys
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import entropy as scipy_entropy

from mless_interp.metrics.entropy import (
    attention_entropy,
    effective_tokens,
    entropy_chain,
    entropy_without_sink,
    normalised_entropy,
    participation,
    within_span_entropy,
)

ROW_4 = torch.tensor([[0.25, 0.25, 0.25, 0.15, 0.10]], dtype=torch.float64)  # methods 13, inserted row 4
BASE_2 = torch.tensor([[0.5, 0.3, 0.2]], dtype=torch.float64)  # methods 13, base row 2
LAST = {"dest_positions": torch.tensor([4])}


def test_entropies_of_the_worked_row():
    tight = {"atol": 1e-6, "rtol": 0}
    same(attention_entropy(ROW_4, **LAST), [1.554547], **tight)
    same(normalised_entropy(ROW_4, **LAST), [0.965895], **tight)
    same(effective_tokens(ROW_4, **LAST), [4.732943], **tight)
    same(participation(ROW_4, **LAST), [4.545455], **tight)  # 1 / (3/16 + .0225 + .01)
    block = {"dest_positions": torch.tensor([2])}
    same(attention_entropy(BASE_2, **block), [1.029653], **tight)
    same(effective_tokens(BASE_2, **block), [2.800094], **tight)


def test_chain_of_the_worked_row():
    # lambda = .5: ln 2 + .5 * H(.5, .3, .2) + .5 * ln 2
    chain = entropy_chain(ROW_4, span=SPAN, **LAST)
    tight = {"atol": 1e-6, "rtol": 0}
    same(chain.between, [math.log(2)])
    same(chain.outside, [0.5 * 1.029653], **tight)
    same(chain.inside, [0.5 * math.log(2)])
    same(chain.total, [1.554547], **tight)


@given(seed=st.integers(0, 10**6), start=st.integers(0, 7), size=st.integers(1, 4), window=st.sampled_from([None, 3]))
@settings(max_examples=40, deadline=None)
def test_chain_rule_holds_for_every_row(seed, start, size, window):
    position = torch.arange(8)
    span = (position >= start) & (position < start + size)
    visible = visible_keys(8, window=window)
    pattern = random_pattern(2, 2, visible=visible, seed=seed)
    chain = entropy_chain(pattern, span=span, visible=visible)
    same(chain.total, attention_entropy(pattern, visible=visible), atol=1e-12, rtol=0)
    assert min(chain.between.min(), chain.outside.min(), chain.inside.min()) >= 0


def test_chain_without_mass_on_a_side_is_the_other_side():
    pattern = torch.tensor([[1.0, 0.0, 0.0], [0.5, 0.5, 0.0], [0.5, 0.5, 0.0]])
    chain = entropy_chain(pattern, span=torch.tensor([False, False, True]))
    same(chain.between, [0, 0, 0])
    same(chain.outside, [0, math.log(2), math.log(2)])
    same(chain.inside, [0, 0, 0])


def test_within_span_entropy_is_one_for_even_and_zero_for_single():
    rows = torch.tensor([[0.5, 0.25, 0.25, 0.0], [0.5, 0.5, 0.0, 0.0], [1.0, 0.0, 0.0, 0.0]])
    span = torch.tensor([False, True, True, False])
    same(within_span_entropy(rows, span=span, dest_positions=torch.tensor([3, 3, 3])), [1.0, 0.0, NAN])
    # .2 and .1 of .3: H(2/3, 1/3) / ln 2
    row = torch.tensor([[0.7, 0.2, 0.1]], dtype=torch.float64)
    expected = scipy_entropy([2 / 3, 1 / 3]) / math.log(2)
    same(within_span_entropy(row, span=torch.tensor([False, True, True]), dest_positions=torch.tensor([2])), [expected])


def test_sink_removed_entropy_separates_parking_from_focus():
    sink = torch.tensor([True, False, False])
    block = {"dest_positions": torch.tensor([2, 2, 2])}
    rows = torch.tensor([[0.9, 0.05, 0.05], [0.9, 0.1, 0.0], [1.0, 0.0, 0.0]])
    same(entropy_without_sink(rows, sink=sink, **block), [math.log(2), 0.0, NAN], atol=1e-6, rtol=0)
