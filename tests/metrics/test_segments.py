"""Segments and patterns: masks, visible keys, and the check that rows sum to 1."""

import pytest
import torch
from formulas_under_test import NAN, mask, same, visible_keys

from mless_interp.metrics.patterns import check_span, flanks, prepared, row_mask, segment_mean, span_bounds


def checked(pattern: torch.Tensor, visible: torch.Tensor | None = None) -> torch.Tensor:
    return prepared(pattern, visible=visible, dest_positions=None)[0]


def test_row_masks_are_what_their_names_say():
    question, span = mask(3, 4, n=5), mask(1, 2, n=5)
    assert row_mask("all", question=question, span=span).tolist() == [True] * 5
    assert row_mask("shared", question=question, span=span).tolist() == [True, False, False, True, True]
    assert row_mask("question", question=question).tolist() == question.tolist()
    assert row_mask("last", question=question).tolist() == mask(4, n=5).tolist()
    assert row_mask("shared", question=question).all()


def test_last_row_is_found_per_prompt():
    question = torch.stack([mask(1, 2, n=4), mask(2, 3, n=4)])
    assert row_mask("last", question=question).tolist() == [[False, False, True, False], [False, False, False, True]]


def test_flanks_stop_at_the_edges_and_leave_out_the_excluded():
    span = mask(2, 3, n=7)
    assert flanks(span, width=2).tolist() == mask(0, 1, 4, 5, n=7).tolist()
    assert flanks(span, width=5, exclude=mask(0, n=7)).tolist() == mask(1, 4, 5, 6, n=7).tolist()
    assert flanks(torch.stack([span, mask(6, n=7)]), width=1).tolist() == [
        mask(1, 4, n=7).tolist(),
        mask(5, n=7).tolist(),
    ]


def test_segment_mean_leaves_out_the_undefined_and_never_invents_zero():
    values = torch.tensor([[1.0, 2.0, NAN], [NAN, NAN, NAN]])
    same(segment_mean(values, mask(1, 2, n=3)), [2.0, NAN])
    same(segment_mean(values, torch.zeros(3, dtype=torch.bool)), [NAN, NAN])


def test_bfloat16_rows_are_renormalised_in_float32():
    pattern = torch.rand(2, 50, 50).tril().softmax(-1).tril()
    pattern = (pattern / pattern.sum(-1, keepdim=True)).bfloat16()
    assert (pattern.float().sum(-1) - 1).abs().max() > 1e-4
    row = checked(pattern)
    assert row.dtype == torch.float32
    same(row.sum(-1), torch.ones(2, 50))


def test_padded_rows_may_hold_anything():
    visible = visible_keys(3, real=mask(1, 2, n=3))
    pattern = torch.tensor([[NAN, NAN, NAN], [0.0, 1.0, 0.0], [0.0, 0.5, 0.5]])
    same(checked(pattern, visible), [[0, 0, 0], [0, 1, 0], [0, 0.5, 0.5]])


def test_rows_that_do_not_sum_to_one_are_named():
    with pytest.raises(ValueError, match=r"row \[1, 2\] sums to 0.5.*after the softmax.*visible="):
        checked(torch.tensor([[[1.0, 0, 0], [1, 0, 0], [1, 0, 0]], [[1, 0, 0], [1, 0, 0], [0.25, 0.25, 0]]]))
    with pytest.raises(ValueError, match="sums to nan"):
        checked(torch.tensor([[1.0, 0.0], [NAN, 0.5]]))
    with pytest.raises(ValueError, match="tolerance 0.02 for torch.bfloat16"):
        checked(torch.tensor([[0.9, 0.0], [0.5, 0.5]], dtype=torch.bfloat16))


def test_spans_must_hold_some_tokens_and_not_all():
    with pytest.raises(ValueError, match="the span is empty; mark only"):
        check_span(mask(n=3), n_tokens=3)
    with pytest.raises(ValueError, match="the span covers all tokens"):
        check_span(torch.tensor([[True, False], [True, True]]), n_tokens=2)
    check_span(torch.ones(2, dtype=torch.bool), n_tokens=2, may_cover_all=True)


def test_bounds_of_one_block_only():
    start, stop = span_bounds(torch.stack([mask(1, 2, n=5), mask(4, n=5)]))
    assert (start.tolist(), stop.tolist()) == ([1, 4], [3, 5])
    with pytest.raises(ValueError, match="one unbroken block of tokens here, but it has several pieces"):
        span_bounds(mask(1, 3, n=5))
