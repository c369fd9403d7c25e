"""Received attention, its null, sinks and kurtosis."""

import torch
from formulas_under_test import A0, A1, NAN, QUESTION, SINK, SPAN, same, visible_keys

from mless_interp.metrics.patterns import uniform_pattern
from mless_interp.metrics.received import kurtosis, received_attention, received_sums, relative_received, sink_rate
from mless_interp.metrics.segments import row_mask


def test_received_of_the_worked_example():
    same(received_attention(A0, min_rows=1), [0.55, 0.3, NAN])
    shared = row_mask("shared", question=QUESTION, span=SPAN)
    # all: column 0 is (.7 + .6 + .48 + .25) / 4; shared rows are 3 and 4 only: (.48 + .25) / 2
    same(received_attention(A1, min_rows=1), [0.5075, 0.55 / 3, 0.175, 0.15, NAN])
    same(received_attention(A1, rows=shared, min_rows=1), [0.365, 0.175, 0.175, 0.15, NAN])


def test_which_rows_count_decides_the_apparent_attenuation():
    # methods 4.1: .923 with all rows, .664 with shared rows
    base = received_attention(A0, min_rows=1)[0]
    ratios = [
        received_attention(A1, rows=row_mask(rows, question=QUESTION, span=SPAN), min_rows=1)[0] / base
        for rows in ("all", "shared")
    ]
    same(torch.stack(ratios), [0.923, 0.664], atol=5e-4, rtol=0)


def test_diagonal_is_counted_only_on_request():
    same(received_attention(A0, diag=True, min_rows=1), [0.7, 0.35, 0.2])


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


def test_uniform_attention_is_received_as_its_visible_rows_share_it():
    def null(visible: torch.Tensor, **options: object) -> torch.Tensor:
        return received_attention(uniform_pattern(visible, dtype=torch.float64), visible=visible, **options)

    same(null(visible_keys(3), min_rows=1), [5 / 12, 1 / 3, NAN])
    # w = 3, T = 5: column 0 is seen by rows 1 and 2 (2 and 3 keys), columns 1, 2 by two rows of 3 keys, column 3 by one
    same(null(visible_keys(5, window=3), min_rows=1), [5 / 12, 1 / 3, 1 / 3, 1 / 3, NAN])
    # methods 0: with 55 of 115 tokens inserted the uniform column mean over the span is .0108
    position = torch.arange(115)
    assert abs(null(visible_keys(115), rows=(position < 18) | (position >= 73))[18:73].mean() - 0.0108) < 5e-5
    same(relative_received(torch.tensor([0.5, 0.1]), torch.tensor([0.25, 0.0])), [2, NAN])


def test_a_spiky_profile_has_a_higher_kurtosis_than_a_diffuse_one():
    diffuse = torch.linspace(0, 1, 30)
    spiky = torch.where(torch.arange(30) % 15 == 3, 1.0, 0.02 * diffuse)
    assert kurtosis(spiky) > 3 > 0 > kurtosis(diffuse)


def test_sink_rate_is_the_share_of_tokens_over_the_threshold():
    alpha = torch.tensor([[0.7, 0.35, 0.2, NAN], [0.1, 0.1, 0.1, 0.1]])
    first = torch.tensor([True, False, False, False])
    same(sink_rate(alpha, first), [1, 0])
    same(sink_rate(alpha, ~first), [0.5, 0])
    same(sink_rate(alpha, ~first, threshold=0.05), [1, 1])
    same(sink_rate(alpha[:1], torch.tensor([False, False, False, True])), [NAN])
