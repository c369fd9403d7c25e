"""Collapse inside the span and recovery after it."""

import math

import torch
from formulas_under_test import NAN, QUESTION, SPAN, mask, same

from mless_interp.metrics.patterns import flanks
from mless_interp.metrics.recovery import (
    aligned_recovery,
    collapsed_share,
    onset_step,
    recovery_fraction,
    recovery_latency,
    recovery_ratio,
    recovery_time_constant,
    span_collapse,
    span_variation,
)

# methods 13, shared rows: base tokens [P Q Q], inserted tokens [P I I Q Q]
INSERTED = torch.tensor([0.365, 0.175, 0.175, 0.15, NAN], dtype=torch.float64)
PREFIX = torch.tensor([True, False, False, False, False])


def test_collapse_takes_a_level_or_flanks_as_its_reference():
    profile = torch.tensor([[0.9, 0.4, 0.1, 0.1, 0.2], [0.9, 0.2, 0.2, 0.2, 0.2]])
    span = mask(2, 3, n=5)
    same(span_collapse(profile, span=span, reference=flanks(span, width=1)), [1 - 0.1 / 0.3, 0.0])
    same(span_collapse(profile, span=span, reference=torch.tensor([0.2, 0.1])), [0.5, -1.0])


def test_a_flat_profile_neither_collapses_nor_recovers():
    flat = torch.ones(2, 5)
    same(span_collapse(flat, span=SPAN, reference=PREFIX), [0, 0])
    same(onset_step(flat, span=SPAN), [0, 0])
    same(span_variation(flat, span=SPAN), [0, 0])
    same(recovery_ratio(flat, before=PREFIX, after=QUESTION), [1, 1])
    same(recovery_fraction(flat, before=PREFIX, span=SPAN, after=QUESTION), [NAN, NAN])


def test_collapsed_share_counts_defined_span_tokens():
    relative = torch.tensor([1.0, 0.05, 0.2, 0.4, NAN, 1.0])
    span = mask(1, 2, 3, 4, n=6)
    shares = [collapsed_share(relative, span=span, threshold=theta) for theta in (0.1, 0.25, 0.5)]
    same(torch.stack(shares), [1 / 3, 2 / 3, 1])


def test_onset_step_compares_equal_windows_around_the_start():
    relative = torch.tensor([9.0, 1.0, 1.2, 0.2, 0.4, 0.9, 1.0])
    span = mask(3, 4, 5, n=7)
    same(onset_step(relative, span=span, width=2), 0.3 - 1.1)
    same(
        onset_step(relative, span=span, width=5), 0.5 - 11.2 / 3
    )  # the windows stop at the span's end and at the start
    sinkless = torch.cat([torch.tensor([NAN]), relative[1:]])
    same(onset_step(sinkless, span=span, width=5), 0.5 - 1.1)
    same(onset_step(relative, span=mask(0, 1, n=7)), NAN)


def test_recovery_fraction_needs_a_step():
    profile = torch.tensor([[1.0, 0.96, 1.0], [1.0, 0.94, 1.0], [0.0, 0.0, 0.0]])
    segments = {"before": mask(0, n=3), "span": mask(1, n=3), "after": mask(2, n=3)}
    same(recovery_fraction(profile, **segments), [NAN, 1, NAN])
    same(recovery_fraction(profile, **segments, tolerance=0.01), [1, 1, NAN])


def test_aligned_recovery_drops_tokens_undefined_in_either_run():
    base = torch.tensor([0.4, 0.2, 0.2, 0.0])
    inserted = torch.tensor([NAN, 0.1, 0.2, 0.1])
    same(aligned_recovery(base, inserted, tokens=mask(0, 1, 2, n=4)), 0.75)
    same(aligned_recovery(base, inserted, tokens=mask(3, n=4)), NAN)
    same(aligned_recovery(base, inserted, tokens=mask(0, n=4)), NAN)


def test_latency_is_the_first_window_back_at_its_share():
    after = torch.tensor([[0.1, 0.2, 0.6, 0.8], [1.0, 1.0, 1.0, 1.0], [0.1, 0.1, 0.1, 0.1]])
    # windows of 2 against .5: .15 .4 .7; at once; never
    same(recovery_latency(after, torch.ones(3, 1), width=2), [2, 0, math.inf])


def test_latency_skips_windows_that_are_not_defined():
    reference = torch.ones(1)
    same(recovery_latency(torch.tensor([NAN, 1.0, 1.0, 1.0]), reference, width=2), 1)
    same(recovery_latency(torch.tensor([0.1, NAN, 0.1]), reference, width=2), NAN)
    same(recovery_latency(torch.tensor([1.0, 1.0]), reference, width=5), NAN)
    same(recovery_latency(torch.tensor([1.0, 1.0]), torch.zeros(1), width=2), NAN)


def test_time_constant_is_fitted_per_head_with_gaps():
    t = torch.arange(30, dtype=torch.float64)
    series = 1 - torch.exp(-t / torch.tensor([[1.0], [4.0], [8.0]]))
    series[1, 3:8] = NAN
    same(recovery_time_constant(series), [1.0, 4.0, 8.0], rtol=1e-3, atol=0)


def test_time_constant_needs_a_curve():
    noise = torch.rand(200, generator=torch.Generator().manual_seed(3))
    series = torch.stack([torch.full((200,), 0.3), noise, torch.full((200,), NAN)])
    same(recovery_time_constant(series), [NAN, NAN, NAN])
