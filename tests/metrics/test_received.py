"""Received attention, its null, sinks and kurtosis."""

import torch
from formulas_under_test import A0, A1, NAN, QUESTION, SINK, SPAN, same

from mless_interp.metrics.received import received_attention, received_sums, sink_rate
from mless_interp.metrics.segments import row_mask


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
