"""Timing and magnitude of attention spikes."""

import torch
from formulas_under_test import NAN, same

from mless_interp.metrics.spikes import (
    attenuation_r_squared,
    attenuation_slope,
    matched_peaks_f1,
    spike_peaks,
    timing_pearson,
    timing_spearman,
)


def test_constant_or_missing_profiles_have_no_timing():
    x = torch.tensor([[0.1, 0.1, 0.1], [0.1, 0.2, 0.3], [NAN, NAN, NAN], [NAN, 1.0, NAN]])
    y = torch.tensor([0.3, 0.1, 0.2]).expand(4, 3)
    expected = [NAN, -0.5, NAN, NAN]
    same(timing_pearson(x, y), expected)
    same(timing_spearman(x, y), expected)


def test_slope_of_nothing_is_undefined():
    zero, some = torch.zeros(3), torch.tensor([0.1, 0.2, 0.3])
    same(attenuation_slope(zero, some), NAN)
    same(attenuation_r_squared(zero, some), NAN)
    same(attenuation_slope(some, zero), 0.0)
    same(attenuation_r_squared(some, zero), NAN)


def test_peaks_take_the_left_of_a_plateau_and_never_the_ends():
    profile = torch.tensor([5.0, 0.0, 3.0, 3.0, 3.0, 0.0, 1.0, 0.0, 9.0])
    assert spike_peaks(profile, min_prominence=2.0).nonzero()[:, 0].tolist() == [2]
    assert spike_peaks(profile, min_prominence=0.0).nonzero()[:, 0].tolist() == [2, 6]


def test_matched_peaks_use_each_peak_once():
    x = torch.tensor([False, True, False, True, False, False])
    y = torch.tensor([False, False, True, False, False, False])
    same(matched_peaks_f1(x, y), 0.0)
    same(matched_peaks_f1(x, y, tolerance=1), 2 / 3)  # one pair of 2 + 1 peaks
    same(matched_peaks_f1(x, x), 1.0)
    same(matched_peaks_f1(x & y, x & y), NAN)
    same(matched_peaks_f1(x, x & y), 0.0)
