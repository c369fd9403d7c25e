"""Received attention, its null, sinks and kurtosis."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mless_interp.metrics.patterns import uniform_pattern, visible_keys
from mless_interp.metrics.received import (
    kurtosis,
    received_attention,
    received_from_sums,
    received_sums,
    relative_received,
    sink_alpha,
    sink_rate,
    uniform_received,
)
from mless_interp.metrics.segments import row_mask

NAN = float("nan")

# methods 13: base prompt [P Q Q]; inserted prompt [P I I Q Q], positions held
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
SPAN = torch.tensor([False, True, True, False, False])
SINK = torch.tensor([True, False, False, False, False])
QUESTION = torch.tensor([False, False, False, True, True])


def same(actual: torch.Tensor, expected: list | float | torch.Tensor, **tolerance: float) -> None:
    torch.testing.assert_close(
        actual, torch.as_tensor(expected, dtype=actual.dtype).expand(actual.shape), equal_nan=True, **tolerance
    )


def random_pattern(*lead: int, visible: torch.Tensor, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    scores = 3 * torch.randn(*lead, *visible.shape[-2:], generator=generator, dtype=torch.float64)
    return torch.where(visible, scores, -torch.inf).softmax(-1).nan_to_num()


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


def test_question_and_last_rows():
    same(
        received_attention(A1, rows=row_mask("question", question=QUESTION), min_rows=1),
        [0.365, 0.175, 0.175, 0.15, NAN],
    )
    same(received_attention(A1, rows=row_mask("last", question=QUESTION), min_rows=1), [0.25, 0.25, 0.25, 0.15, NAN])


def test_diagonal_is_counted_only_on_request():
    same(received_attention(A0, diag=True, min_rows=1), [0.7, 0.35, 0.2])
    same(sink_alpha(A0), [0.7, 0.35, 0.2])


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


def test_uniform_null_of_the_worked_example():
    same(uniform_received(visible_keys(3), min_rows=1, dtype=torch.float64), [5 / 12, 1 / 3, NAN])
    expected = [0.320833, 0.261111, 0.225, 0.2, NAN]
    same(uniform_received(visible_keys(5), min_rows=1), expected, atol=1e-6, rtol=0)


def test_uniform_null_is_the_harmonic_closed_form():
    n = 30
    harmonic = torch.cat([torch.zeros(1), (1 / torch.arange(1, n + 1).double()).cumsum(0)])
    j = torch.arange(n - 1)
    same(
        uniform_received(visible_keys(n), min_rows=1, dtype=torch.float64)[:-1],
        (harmonic[n] - harmonic[j + 1]) / (n - 1 - j),
    )


def test_uniform_null_under_a_window_averages_over_rows_that_see_the_token():
    # w = 2, T = 5: every later row that sees a token is the next one, with two keys
    same(uniform_received(visible_keys(5, window=2), min_rows=1), [0.5, 0.5, 0.5, 0.5, NAN])
    # w = 3, T = 5: column 0 is seen by rows 1 and 2 (2 and 3 keys), columns 1, 2 by two rows of 3 keys, column 3 by one
    same(uniform_received(visible_keys(5, window=3), min_rows=1), [5 / 12, 1 / 3, 1 / 3, 1 / 3, NAN])


def test_uniform_null_at_the_papers_length():
    # methods 0: with 55 of 115 tokens inserted the uniform column mean over the span is .0108
    position = torch.arange(115)
    null = uniform_received(visible_keys(115), rows=(position < 18) | (position >= 73), dtype=torch.float64)
    assert abs(null[18:73].mean() - 0.0108) < 5e-5


@pytest.mark.parametrize("window", [None, 4])
@pytest.mark.parametrize("padding", [0, 3])
@pytest.mark.parametrize(("sink", "renorm"), [(False, False), (True, False), (True, True)])
@pytest.mark.parametrize("rows", ["all", "shared", "question"])
def test_uniform_attention_has_a_relative_profile_of_one(window, padding, sink, renorm, rows):
    position = torch.arange(14)
    visible = visible_keys(14, window=window, real=position >= padding)
    options = {
        "rows": row_mask(rows, question=position >= 8, span=(position >= 5) & (position < 8)),
        "sink": position == padding if sink else None,
        "renorm": renorm,
        "min_rows": 2,
    }
    received = received_attention(uniform_pattern(visible, dtype=torch.float64), visible=visible, **options)
    relative = relative_received(received, uniform_received(visible, dtype=torch.float64, **options))
    defined = ~relative.isnan()
    assert defined.sum() >= 3 and not defined[:padding].any()
    same(relative[defined], 1.0)


def test_padding_changes_nothing_for_the_real_tokens():
    visible = visible_keys(8, real=torch.arange(8) >= 3)
    padded = torch.full((8, 8), NAN, dtype=torch.float64)
    padded[3:] = 0
    padded[3:, 3:] = A1
    same(
        received_attention(padded, min_rows=1, visible=visible),
        torch.cat([torch.full((3,), NAN, dtype=torch.float64), received_attention(A1, min_rows=1)]),
    )


@given(
    seed=st.integers(0, 10**6),
    block=st.integers(1, 12),
    window=st.sampled_from([None, 5]),
    padding=st.integers(0, 3),
    renorm=st.booleans(),
    diag=st.booleans(),
)
@settings(max_examples=40, deadline=None)
def test_blocks_of_rows_add_up_to_the_whole(seed, block, window, padding, renorm, diag):
    position = torch.arange(12)
    visible = visible_keys(12, window=window, real=position >= padding)
    pattern = random_pattern(2, 3, visible=visible, seed=seed)
    options = {"rows": position != 6, "sink": position == padding, "renorm": renorm, "diag": diag}
    sums, counts = 0, 0
    for rows in position.split(block):
        part = received_sums(pattern[..., rows, :], visible=visible[rows], dest_positions=rows, **options)
        sums, counts = sums + part[0], counts + part[1]
    same(
        received_from_sums(sums, counts, min_rows=2),
        received_attention(pattern, visible=visible, min_rows=2, **options),
    )


def test_causal_blocks_need_no_mask():
    pattern = random_pattern(2, visible=visible_keys(7))
    parts = [received_sums(pattern[:, rows], dest_positions=rows) for rows in torch.arange(7).split(3)]
    sums, counts = (sum(part) for part in zip(*parts, strict=True))
    same(received_from_sums(sums, counts), received_attention(pattern))


def test_received_mass_of_all_columns_is_all_that_leaves_the_diagonal():
    pattern = random_pattern(visible=visible_keys(9))
    sums, _ = received_sums(pattern)
    same(sums.sum(), 9 - pattern.diagonal().sum())


def test_renormalising_needs_a_sink():
    with pytest.raises(ValueError, match="say which tokens are the `sink`"):
        received_sums(A1, renorm=True)


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
