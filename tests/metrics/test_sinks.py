"""Sizes and directions of a span's tokens, by hand and by their laws."""

import numpy as np
import pytest
import torch

from mless_interp.metrics.received import cosines_to_sink, first_against_rest, first_of, relative_norms

X = torch.tensor([[0.0, 60.0], [0.0, 30.0], [3.0, 0.0], [3.0, 4.0], [0.0, 1.0]])  # norms 60 30 3 5 1
FIRST = torch.tensor([True, False, False, False, False])
SPAN = torch.tensor([False, True, True, False, False])
OTHERS = torch.tensor([False, False, False, True, True])  # median norm 3


def test_norms_are_over_the_median_of_the_others_alone() -> None:
    assert relative_norms(X, others=OTHERS).tolist() == pytest.approx([20, 10, 1, 5 / 3, 1 / 3])
    heads = torch.stack([X, 2 * X, 0 * X])
    found = relative_norms(heads, others=OTHERS)
    torch.testing.assert_close(found[0], found[1])
    assert found[2].isnan().all() and relative_norms(X, others=0 * OTHERS > 1).isnan().all()


def test_cosines_are_those_of_directions() -> None:
    assert cosines_to_sink(X, sink=FIRST).tolist() == pytest.approx([1, 1, 0, 0.8, 1])
    torch.testing.assert_close(
        cosines_to_sink(X * torch.rand(5, 1).add(0.1), sink=FIRST), cosines_to_sink(X, sink=FIRST)
    )
    assert cosines_to_sink(-X[[0, 1]] * torch.tensor([[-1.0], [1.0]]), sink=FIRST[:2]).tolist() == [1, -1]
    assert cosines_to_sink(torch.zeros(2, 3), sink=FIRST[:2]).isnan().all()
    with pytest.raises(ValueError, match="the sink is one token, got a mask of 2"):
        cosines_to_sink(X, sink=SPAN)


def test_the_first_inserted_token_is_held_against_the_rest() -> None:
    values = torch.tensor([9.0, 6.0, 1.0, 3.0, 7.0])
    span = torch.tensor([False, True, True, True, False])
    assert first_of(values, span) == 6 and first_against_rest(values, span) == 3
    assert first_of(values, SPAN) == 6 and first_against_rest(values, SPAN) == 6
    assert first_against_rest(values, OTHERS & (values == 3)).isnan(), "a span of one token has no rest"
    np.testing.assert_allclose(first_against_rest(torch.stack([values, -values]), span), [3, 3])
