"""Timing and magnitude of attention spikes."""

import torch
from formulas_under_test import NAN, same

from mless_interp.metrics.spikes import (
    attenuation_r_squared,
    attenuation_slope,
    matched_peaks_f1,
    peak_attenuation,
    spike_peaks,
    timing_pearson,
    timing_spearman,
)


def test_attenuation_of_the_worked_example():
    # (.55 * .365 + .3 * .15) / (.55^2 + .3^2) = .24575 / .3925
    base = torch.tensor([0.55, 0.3, NAN], dtype=torch.float64)
    inserted = torch.tensor([0.365, 0.15, NAN], dtype=torch.float64)
    same(attenuation_slope(base, inserted), 0.24575 / 0.3925)
    same(attenuation_slope(base, inserted), 0.626115, atol=1e-6, rtol=0)
    residual = inserted[:2] - 0.24575 / 0.3925 * base[:2]
    same(attenuation_r_squared(base, inserted), 1 - residual.square().sum() / inserted[:2].square().sum())


def test_a_scaled_profile_keeps_its_timing():
    x = torch.rand(3, 40, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    same(timing_spearman(x, 0.4 * x), 1.0)
    same(timing_pearson(x, 0.4 * x + 0.1), 1.0)
    same(attenuation_slope(x, 0.4 * x), 0.4)
    same(attenuation_r_squared(x, 0.4 * x), 1.0)


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


def test_peaks_pass_over_undefined_tokens():
    profile = torch.tensor([NAN, 0.0, 1.0, NAN, 0.0, 0.1, NAN])
    assert spike_peaks(profile, min_prominence=0.5).nonzero()[:, 0].tolist() == [2]
    assert not spike_peaks(torch.full((2, 4), NAN)).any()
    assert not spike_peaks(torch.tensor([0.0, 1.0])).any()


def test_matched_peaks_use_each_peak_once():
    x = torch.tensor([False, True, False, True, False, False])
    y = torch.tensor([False, False, True, False, False, False])
    same(matched_peaks_f1(x, y), 0.0)
    same(matched_peaks_f1(x, y, tolerance=1), 2 / 3)  # one pair of 2 + 1 peaks
    same(matched_peaks_f1(x, x), 1.0)
    same(matched_peaks_f1(x & y, x & y), NAN)
    same(matched_peaks_f1(x, x & y), 0.0)


def test_peak_attenuation_averages_ratios_at_base_peaks():
    base, inserted = torch.tensor([0.4, 0.1, 0.2, NAN]), torch.tensor([0.2, 0.1, 0.05, 0.1])
    same(peak_attenuation(base, inserted, peaks=torch.tensor([True, False, True, True])), (0.5 + 0.25) / 2)
    same(peak_attenuation(base, inserted, peaks=torch.zeros(4, dtype=torch.bool)), NAN)
