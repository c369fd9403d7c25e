"""Defaults, and thresholds exactly at their border, of every metric."""

import math

import pytest
import torch
from formulas_under_test import NAN, random, same

from mless_interp.metrics import activations, attention, logits, outputs, patterns, received, recovery

T, F = True, False


def marks(*values: bool) -> torch.Tensor:
    return torch.tensor(values)


HALF = torch.tensor([[1.0, 0.0, 0.0], [0.5, 0.5, 0.0], [0.5, 0.25, 0.25]], dtype=torch.float64)


def test_a_mass_or_level_exactly_at_its_limit_is_enough() -> None:
    first, rest, last = marks(T, F, F), marks(F, T, T), marks(F, F, T)
    same(received.received_sums(HALF, sink=first, renorm=True, min_mass=0.5)[1], [0, 1, 0])
    same(attention.non_sink_span_mass(HALF, span=last, sink=first, min_mass=0.5), [NAN, 0.0, 0.5])
    same(attention.within_span_entropy(HALF, span=rest, min_mass=0.5), [NAN, NAN, 1.0])
    same(attention.entropy_without_sink(HALF, sink=first, min_mass=0.5), [NAN, 0.0, math.log(2)])
    whole = torch.tensor([[0.25, 0.5, 0.25]])
    same(attention.renormalised_rows(whole, alignment=torch.tensor([0, 2]), min_mass=0.5), [[0.5, 0.5]])
    profile = torch.tensor([0.5, 0.125, 0.25])
    options = {"before": first, "after": last}
    same(recovery.recovery_ratio(profile, **options, min_level=0.5), 0.5)
    same(recovery.span_collapse(profile, span=marks(F, T, F), reference=first, min_reference=0.5), 0.75)
    same(recovery.span_variation(torch.tensor([9.0, 1.0, 3.0]), span=rest, min_mean=2.0), 0.5)
    same(recovery.aligned_ratio(torch.tensor([0.5, 0.25]), torch.tensor([0.25, 0.25]), min_base=0.5), [0.5, NAN])
    same(recovery.recovery_fraction(profile, before=first, span=marks(F, T, F), after=last, tolerance=0.75), 1 / 3)
    risen = torch.tensor([0.125, 0.5, 0.25])
    same(recovery.recovery_fraction(risen, before=first, span=marks(F, T, F), after=last, tolerance=0.75), 2 / 3)
    same(recovery.recovery_fraction(risen, before=first, span=marks(F, T, F), after=last, tolerance=0.76), NAN)
    level = torch.tensor([0.5, 0.5])
    same(
        recovery.recovery_fraction(level[[0, 0, 1]], before=first, span=marks(F, T, F), after=last, tolerance=0.0), NAN
    )
    same(recovery.collapsed_share(torch.tensor([1.0, 0.25, 0.125]), span=rest), 0.5)  # .25 is not less than .25
    same(received.sink_rate(torch.tensor([0.5, 0.25]), marks(T, T), threshold=0.25), 0.5)  # .25 is not above .25
    same(activations.near_zero_fraction(torch.tensor([0.25, -0.25, 0.1]), threshold=0.25), 1 / 3)
    same(recovery.recovery_latency(torch.tensor([0.25, 0.5]), torch.tensor([1.0]), width=1), 1.0)  # .5 is half of 1


def test_what_is_just_allowed_and_just_not() -> None:
    edges = torch.tensor([0.0, 0.5, 1.0])  # a bin begins at its lower edge; the last one ends with its upper
    for value, place in ((0.0, 0), (0.5, 1), (1.0, 1)):
        same(activations.histogram(torch.tensor([value]), edges=edges), [float(place == 0), float(place == 1)])
    third = torch.tensor(10 * (1 / 3), dtype=torch.float64).reshape(1, 1, 1)
    same(outputs.affine_residual(third, third, rounding=1 / 3), 1.0)
    hidden = torch.tensor([NAN, 2.0, 2.0, NAN])
    same(received.kurtosis(hidden), NAN)
    same(received.kurtosis(torch.tensor([NAN, 0.0, 0.0, 1.0, 1.0])), -2.0)
    for size in (1e-8, 1.0, 1e8):  # what differs is judged against the size of what does
        rows = size * (1 + random(1, 9, 2))
        fit = outputs.affine_fit(rows, size * (1 + random(1, 9, 2, seed=1)))
        assert fit.slope.isfinite().all() and fit.r2.isfinite().all(), size
        assert outputs.affine_fit(rows, size * torch.full((1, 9, 2), 0.1, dtype=torch.float64)).r2.isnan().all()
        assert outputs.affine_fit(size * torch.full((1, 9, 2), 0.1, dtype=torch.float64), rows).slope.isnan().all()
    same(attention.log_density_ratio(HALF, span=marks(F, F, T)), [NAN, NAN, math.log(0.25 / 0.375)])


def test_defaults_are_the_documented_ones() -> None:
    span = torch.arange(30) >= 20
    steps = torch.arange(30.0)
    same(recovery.onset_step(steps, span=span), 5.0)  # 20 .. 24 against 15 .. 19
    same(
        recovery.recovery_latency(torch.arange(20.0), torch.tensor([13.0])), 5.0
    )  # the mean of 5 .. 9 is more than half of 13
    same(recovery.running_median(torch.tensor([0.0, 0, 0, 9, 9, 0, 0, 0])), 0.0)
    same(recovery.running_median(torch.tensor([0.0, 0, 9, 9, 9, 0, 0, 0]))[3], 9.0)
    assert patterns.flanks(span).sum() == 5
    assert patterns.flanks(torch.arange(30) == 15).nonzero()[:, 0].tolist() == [10, 11, 12, 13, 14, 16, 17, 18, 19, 20]
    same(received.sink_rate(torch.tensor([0.31, 0.29]), marks(T, T)), 0.5)
    counts = torch.tensor([4, 3, 2])
    same(received.received_from_sums(torch.tensor([1.0, 1.0, 1.0]), counts), [0.25, 1 / 3, NAN])
    assert received.received_attention(HALF).isnan().all(), "no column has 3 rows below it"
    ratio = 0.3 - 0.2 * torch.exp(-torch.arange(8.0) / 2)
    known = [recovery.recovery_time_constant(x).isfinite().item() for x in (ratio[:7], ratio)]
    assert known == [False, True] and recovery.recovery_time_constant(ratio[:7], min_points=7).isfinite()
    tiny = torch.tensor([1e-9, 1.0], dtype=torch.float64)
    same(recovery.aligned_ratio(tiny, tiny), 1.0)
    same(recovery.aligned_ratio(tiny * 1e-4, tiny), [NAN, 1e4])
    same(recovery.recovery_ratio(tiny, before=marks(T, F), after=marks(F, T)), 1e9)
    same(recovery.recovery_ratio(tiny * 1e-4, before=marks(T, F), after=marks(F, T)), NAN)
    same(recovery.span_collapse(tiny, span=marks(F, T), reference=marks(T, F)), 1 - 1e9)
    same(recovery.span_collapse(tiny * 1e-4, span=marks(F, T), reference=marks(T, F)), NAN)
    nearly = torch.tensor([0.96, 0.93, 1.0], dtype=torch.float64)
    segment = {"before": marks(F, F, T), "span": marks(F, T, F), "after": marks(T, F, F)}
    same(recovery.recovery_fraction(nearly, **segment), 3 / 7)
    same(recovery.recovery_fraction(nearly + 0.5, **segment), NAN)  # a step of .07 in 1.5


def test_limits_of_mass_by_default() -> None:
    for mass, sinkless, inside in ((2e-6, T, T), (5e-7, F, T), (2e-8, F, T), (5e-9, F, F)):
        row = torch.tensor([[1 - mass, mass / 2, mass / 2]], dtype=torch.float64)
        block = {"dest_positions": torch.tensor([2])}
        first, rest = marks(T, F, F), marks(F, T, T)
        assert attention.entropy_without_sink(row, sink=first, **block).isfinite().item() is sinkless
        assert attention.within_span_entropy(row, span=rest, **block).isfinite().item() is inside
        assert attention.non_sink_span_mass(row, span=marks(F, F, T), sink=first, **block).isfinite().item() is inside
        assert attention.renormalised_rows(row, alignment=torch.tensor([1, 2])).isfinite().all().item() is inside
        assert bool(received.received_sums(row, sink=first, renorm=True, **block)[1].any()) is inside


def test_width_and_place_of_one_token_are_allowed() -> None:
    same(recovery.onset_step(torch.tensor([1.0, 0.25, 1.0]), span=marks(F, T, F), width=1), -0.75)
    same(recovery.running_median(torch.tensor([1.0, NAN, 3.0]), width=1), [1.0, NAN, 3.0])
    same(recovery.recovery_latency(torch.tensor([1.0]), torch.tensor([1.0]), width=1), 0.0)
    same(recovery.recovery_latency(torch.tensor([1.0]), torch.tensor([1.0]), width=2), NAN)
    same(recovery.recovery_latency(torch.tensor([NAN, 0.1]), torch.tensor([1.0]), width=1), math.inf)
    same(recovery.recovery_latency(torch.tensor([0.1, 0.2]), torch.tensor([0.0]), width=1), NAN)
    same(received.received_from_sums(torch.tensor([0.5]), torch.tensor([1]), min_rows=1), 0.5)
    same(activations.quantile(torch.tensor([2.0, 1.0]), q=1.0), 2.0)
    same(logits.circuit_performance(torch.tensor([0.0, 1.0]), torch.tensor([0.0, 1.0])), 0.5)
    same(activations.median_variance(torch.tensor([[1.0], [3.0]])), 2.0)
    same(activations.histogram(torch.tensor([0.5, 2.0]), edges=torch.tensor([0.0, 1.0])), [2.0])
    same(attention.renormalised_rows(torch.tensor([[0.5, 0.5]]), alignment=torch.tensor([0, 1])), [[0.5, 0.5]])


def test_zero_and_undefined_are_told_apart() -> None:
    zero, some = torch.zeros(3), torch.tensor([0.0, 2.0, 4.0])
    same(
        recovery.peak_attenuation(some, torch.tensor([1.0, 1.0, 2.0]), peaks=marks(T, T, T)), 0.5
    )  # no share of nothing
    same(recovery.aligned_recovery(zero, some, tokens=marks(T, T, T)), NAN)
    same(recovery.aligned_recovery(some, zero, tokens=marks(T, T, T)), 0.0)
    same(recovery.aligned_recovery(some, torch.tensor([NAN, 1.0, NAN]), tokens=marks(T, T, T)), 0.5)
    same(outputs.value_cosine(torch.tensor([[1.0, 0.0], [0.0, 0.0]]), span=marks(T, T)), NAN)
    same(outputs.value_spectral_share(torch.zeros(2, 2), span=marks(T, T)), NAN)
    same(outputs.value_effective_rank(torch.zeros(2, 2), span=marks(T, T)), NAN)
    same(outputs.direction_coherence(torch.zeros(2, 2)), NAN)
    same(outputs.direction_coherence(torch.tensor([[0.0, 0.0], [3.0, 4.0]])), 1.0)
    same(outputs.span_output_weight(HALF, torch.zeros(3, 1, dtype=torch.float64), span=marks(F, F, T)), NAN)
    same(activations.gini(zero), NAN)
    same(received.relative_received(torch.tensor([0.5]), torch.tensor([0.0])), NAN)
    same(patterns.segment_mean(some, marks(F, F, F)), NAN)


ROWS = random(2, 4, 3)
AFTER = random(2, 4, 3, seed=1)


def test_a_gain_is_undefined_in_the_rows_where_the_norm_is_no_product() -> None:
    wrote = random(3, 6)
    wrote[1] += 40.0
    layer_norm = lambda x: torch.nn.functional.layer_norm(x, x.shape[-1:])  # noqa: E731
    bent = lambda x: torch.where(x.mean(-1, keepdim=True) > 20, layer_norm(x), 3 * x)  # noqa: E731
    same(outputs.frozen_gain(bent, wrote).isnan().any(-1).double(), [0.0, 1.0, 0.0])
    same(outputs.frozen_gain(bent, wrote)[0], 3.0)
    off = lambda x: 2 * x + 0.1 * x.flip(-1) * (len(x) > 1)  # noqa: E731
    found = [outputs.frozen_gain(off, wrote[[0, 2]], tolerance=tolerance) for tolerance in (0.01, 0.2)]
    assert found[0].isnan().all() and found[1].isfinite().all()
    assert (
        outputs.frozen_gain(off, 1e4 * wrote[[0, 2]]).isnan().all()
        and outputs.frozen_gain(off, 1e-4 * wrote[[0, 2]]).isnan().all()
    )
    slightly = lambda x: 2 * x + 0.01 * x.flip(-1) * (len(x) > 1)  # noqa: E731
    assert outputs.frozen_gain(slightly, wrote[[0, 2]]).isfinite().all(), "half a per cent is within the default"
    same(outputs.residual_share(torch.zeros(1, 1, 1), torch.zeros(1, 1), output_weights=torch.ones(1, 1, 1)), NAN)


def test_time_constants_beyond_the_grid_are_its_ends() -> None:
    times = torch.arange(12, dtype=torch.float64)
    for tau, found in ((36.0, 12.0), (0.02, 0.2), (6.0, 6.0)):
        fit = recovery.recovery_time_constant(0.3 - 0.2 * torch.exp(-times / tau))
        assert fit.item() == pytest.approx(found, rel=10 if tau < 0.2 else 1e-3)


def test_rounding_is_no_recovery() -> None:
    flat = torch.tensor([1e8, 1e8 + 2**-26] * 6, dtype=torch.float64)
    assert recovery.recovery_time_constant(flat, min_r_squared=0.0).isnan()
    assert recovery.recovery_time_constant(1e-8 * random(12).abs(), min_r_squared=0.0).isfinite()
    short = recovery.recovery_latency(torch.ones(2, 3, 4), torch.ones(1))
    assert short.shape == (2, 3) and short.isnan().all()


def test_what_is_undefined_in_a_row_decides_nothing_of_the_rest() -> None:
    same(received.kurtosis(torch.tensor([[1.0, 1.0, NAN], [0.0, 1.0, NAN]])), [NAN, -2.0])
    p, q = torch.tensor([[NAN, NAN], [0.5, 0.5]]), torch.tensor([[0.5, 0.5], [1.0, 0.0]])
    same(attention.total_variation(p, q), [NAN, 0.5])


def test_each_prompt_has_its_own_span() -> None:
    values, spans = random(2, 3, 4, 5, seed=1), torch.tensor([[T, T, F, F], [F, T, T, T]])
    for formula in (outputs.value_spectral_share, outputs.value_effective_rank):
        together = formula(values, span=spans[:, None])
        for row, span in enumerate(spans):
            same(together[row], formula(values[row], span=span))
