"""Entropy of attention rows and its chain rule."""

import math

import pytest
import torch
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
from mless_interp.metrics.patterns import uniform_pattern, visible_keys

NAN = float("nan")
ROW_4 = torch.tensor([[0.25, 0.25, 0.25, 0.15, 0.10]], dtype=torch.float64)  # methods 13, inserted row 4
BASE_2 = torch.tensor([[0.5, 0.3, 0.2]], dtype=torch.float64)  # methods 13, base row 2
SPAN = torch.tensor([False, True, True, False, False])
LAST = {"dest_positions": torch.tensor([4])}


def same(actual: torch.Tensor, expected: list | float | torch.Tensor, **tolerance: float) -> None:
    torch.testing.assert_close(
        actual, torch.as_tensor(expected, dtype=actual.dtype).expand(actual.shape), equal_nan=True, **tolerance
    )


def random_pattern(*lead: int, visible: torch.Tensor, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    scores = 3 * torch.randn(*lead, *visible.shape[-2:], generator=generator, dtype=torch.float64)
    return torch.where(visible, scores, -torch.inf).softmax(-1).nan_to_num()


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


@pytest.mark.parametrize("window", [None, 3])
@pytest.mark.parametrize("padding", [0, 2])
def test_uniform_attention_has_full_entropy_over_visible_keys(window, padding):
    visible = visible_keys(8, window=window, real=torch.arange(8) >= padding)
    pattern = uniform_pattern(visible, dtype=torch.float64)
    n_keys = visible.sum(-1).double()
    n_keys[:padding] = NAN
    same(effective_tokens(pattern, visible=visible), n_keys)
    same(participation(pattern, visible=visible), n_keys)
    expected = torch.ones(8).double()
    expected[: padding + 1] = NAN  # padding, and the first token with its single key
    same(normalised_entropy(pattern, visible=visible), expected)


@given(seed=st.integers(0, 10**6))
@settings(max_examples=25, deadline=None)
def test_order_two_never_exceeds_order_one(seed):
    pattern = random_pattern(4, visible=visible_keys(10), seed=seed)
    one, two = effective_tokens(pattern), participation(pattern)
    assert (two <= one + 1e-12).all()
    assert (one <= torch.arange(1, 11) + 1e-12).all()


def test_within_span_entropy_is_one_for_even_and_zero_for_single():
    rows = torch.tensor([[0.5, 0.25, 0.25, 0.0], [0.5, 0.5, 0.0, 0.0], [1.0, 0.0, 0.0, 0.0]])
    span = torch.tensor([False, True, True, False])
    same(within_span_entropy(rows, span=span, dest_positions=torch.tensor([3, 3, 3])), [1.0, 0.0, NAN])
    # .2 and .1 of .3: H(2/3, 1/3) / ln 2
    row = torch.tensor([[0.7, 0.2, 0.1]], dtype=torch.float64)
    expected = scipy_entropy([2 / 3, 1 / 3]) / math.log(2)
    same(within_span_entropy(row, span=torch.tensor([False, True, True]), dest_positions=torch.tensor([2])), [expected])


def test_within_span_entropy_needs_two_visible_span_tokens():
    pattern = uniform_pattern(visible_keys(4))
    same(within_span_entropy(pattern, span=torch.tensor([False, True, True, False])), [NAN, NAN, 1, 1])
    same(within_span_entropy(pattern, span=torch.tensor([False, True, False, False])), [NAN] * 4)


def test_sink_removed_entropy_separates_parking_from_focus():
    sink = torch.tensor([True, False, False])
    block = {"dest_positions": torch.tensor([2, 2, 2])}
    rows = torch.tensor([[0.9, 0.05, 0.05], [0.9, 0.1, 0.0], [1.0, 0.0, 0.0]])
    same(entropy_without_sink(rows, sink=sink, **block), [math.log(2), 0.0, NAN], atol=1e-6, rtol=0)


def test_rows_without_keys_are_undefined_in_every_entropy():
    visible = visible_keys(3, real=torch.tensor([False, True, True]))
    pattern = uniform_pattern(visible)
    mask = torch.tensor([False, True, False])
    for values in (
        attention_entropy(pattern, visible=visible),
        normalised_entropy(pattern, visible=visible),
        effective_tokens(pattern, visible=visible),
        participation(pattern, visible=visible),
        entropy_chain(pattern, span=mask, visible=visible).total,
        within_span_entropy(pattern, span=mask, visible=visible),
        entropy_without_sink(pattern, sink=mask, visible=visible),
    ):
        assert values[0].isnan()


def test_blocks_of_rows_concatenate_to_the_whole():
    visible = visible_keys(9, window=5)
    pattern = random_pattern(2, 3, visible=visible)
    span, sink = torch.isin(torch.arange(9), torch.tensor([3, 4, 5])), torch.arange(9) == 0
    for metric in (
        attention_entropy,
        normalised_entropy,
        participation,
        lambda p, **kw: entropy_chain(p, span=span, **kw).between,
        lambda p, **kw: within_span_entropy(p, span=span, **kw),
        lambda p, **kw: entropy_without_sink(p, sink=sink, **kw),
    ):
        blocks = [
            metric(pattern[..., rows, :], visible=visible[rows], dest_positions=rows)
            for rows in torch.arange(9).split(4)
        ]
        same(torch.cat(blocks, -1), metric(pattern, visible=visible))
