"""Defaults, thresholds exactly at their border, half precision, leading axes, and the names in messages, of every metric."""

import math
from collections.abc import Callable

import pytest
import torch

from mless_interp.metrics import (
    activations,
    affine,
    attention,
    distances,
    entropy,
    flow,
    logits,
    outputs,
    patterns,
    rankings,
    received,
    recovery,
    segments,
    spikes,
)

NAN = float("nan")
T, F = True, False


def same(actual: torch.Tensor, expected: list | float | torch.Tensor, **tolerance: float) -> None:
    torch.testing.assert_close(
        actual, torch.as_tensor(expected, dtype=actual.dtype).expand(actual.shape), equal_nan=True, **tolerance
    )


def mask(*values: bool) -> torch.Tensor:
    return torch.tensor(values)


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


# -------------------------------------------------------------------------------------------------------- borders

HALF = torch.tensor([[1.0, 0.0, 0.0], [0.5, 0.5, 0.0], [0.5, 0.25, 0.25]], dtype=torch.float64)


def test_a_mass_or_level_exactly_at_its_limit_is_enough() -> None:
    first, rest, last = mask(T, F, F), mask(F, T, T), mask(F, F, T)
    same(received.received_sums(HALF, sink=first, renorm=True, min_mass=0.5)[1], [0, 1, 0])
    same(attention.non_sink_span_mass(HALF, span=last, sink=first, min_mass=0.5), [NAN, 0.0, 0.5])
    same(entropy.within_span_entropy(HALF, span=rest, min_mass=0.5), [NAN, NAN, 1.0])
    same(entropy.entropy_without_sink(HALF, sink=first, min_mass=0.5), [NAN, 0.0, math.log(2)])
    whole = torch.tensor([[0.25, 0.5, 0.25]])
    same(distances.renormalised_rows(whole, alignment=torch.tensor([0, 2]), min_mass=0.5), [[0.5, 0.5]])
    profile = torch.tensor([0.5, 0.125, 0.25])
    options = {"before": first, "after": last}
    same(recovery.recovery_ratio(profile, **options, min_level=0.5), 0.5)
    same(recovery.span_collapse(profile, span=mask(F, T, F), reference=first, min_reference=0.5), 0.75)
    same(recovery.span_variation(torch.tensor([9.0, 1.0, 3.0]), span=rest, min_mean=2.0), 0.5)
    same(recovery.aligned_ratio(torch.tensor([0.5, 0.25]), torch.tensor([0.25, 0.25]), min_base=0.5), [0.5, NAN])
    same(recovery.recovery_fraction(profile, before=first, span=mask(F, T, F), after=last, tolerance=0.75), 1 / 3)
    risen = torch.tensor([0.125, 0.5, 0.25])
    same(recovery.recovery_fraction(risen, before=first, span=mask(F, T, F), after=last, tolerance=0.75), 2 / 3)
    same(recovery.recovery_fraction(risen, before=first, span=mask(F, T, F), after=last, tolerance=0.76), NAN)
    level = torch.tensor([0.5, 0.5])
    same(recovery.recovery_fraction(level[[0, 0, 1]], before=first, span=mask(F, T, F), after=last, tolerance=0.0), NAN)
    same(recovery.collapsed_share(torch.tensor([1.0, 0.25, 0.125]), span=rest), 0.5)  # .25 is not less than .25
    same(received.sink_rate(torch.tensor([0.5, 0.25]), mask(T, T), threshold=0.25), 0.5)  # .25 is not above .25
    same(activations.near_zero_fraction(torch.tensor([0.25, -0.25, 0.1]), threshold=0.25), 1 / 3)
    same(recovery.recovery_latency(torch.tensor([0.25, 0.5]), torch.tensor([1.0]), width=1), 1.0)  # .5 is half of 1


def test_what_is_just_allowed_and_just_not() -> None:
    for dtype, tolerance in patterns.ROW_SUM_TOLERANCE.items():
        wide = dtype if dtype in (torch.float32, torch.float64) else torch.float32
        entry = torch.tensor(-tolerance, dtype=dtype).to(wide).item()
        if entry < -tolerance:  # the nearest number beyond it
            entry = torch.nextafter(torch.tensor(-tolerance, dtype=dtype), torch.tensor(0.0, dtype=dtype)).item()
        row = torch.tensor([[1 - entry, entry]], dtype=dtype)
        allowed = patterns.prepared(row, visible=mask(T, T)[None], dest_positions=None)[0]
        assert allowed[0, 1] == 0, dtype
        with pytest.raises(ValueError, match=r"row \[0\] has a negative entry"):
            patterns.prepared(
                torch.tensor([[1 - 1.1 * entry, 1.1 * entry]], dtype=dtype),
                visible=mask(T, T)[None],
                dest_positions=None,
            )
    edges = torch.tensor([0.0, 0.5, 1.0])  # a bin begins at its lower edge; the last one ends with its upper
    for value, place in ((0.0, 0), (0.5, 1), (1.0, 1)):
        same(activations.histogram(torch.tensor([value]), edges=edges), [float(place == 0), float(place == 1)])
    ends = torch.tensor([1 + 9e-6, 0.0], dtype=torch.float64)  # rows may be so much too large, a distance may not
    assert distances.jensen_shannon_divergence(ends, ends.flip(0)) == 1.0
    third = torch.tensor(10 * (1 / 3), dtype=torch.float64).reshape(1, 1, 1)
    same(affine.affine_residual(third, third, rounding=1 / 3), 1.0)
    hidden = torch.tensor([NAN, 2.0, 2.0, NAN])
    same(received.kurtosis(hidden), NAN)
    same(received.kurtosis(torch.tensor([NAN, 0.0, 0.0, 1.0, 1.0])), -2.0)
    for size in (1e-8, 1.0, 1e8):  # what differs is judged against the size of what does
        rows = size * (1 + random(1, 9, 2))
        fit = affine.affine_fit(rows, size * (1 + random(1, 9, 2, seed=1)))
        assert fit.slope.isfinite().all() and fit.r2.isfinite().all(), size
        assert affine.affine_fit(rows, size * torch.full((1, 9, 2), 0.1, dtype=torch.float64)).r2.isnan().all()
        assert affine.affine_fit(size * torch.full((1, 9, 2), 0.1, dtype=torch.float64), rows).slope.isnan().all()
    same(attention.log_density_ratio(HALF, span=mask(F, F, T)), [NAN, NAN, math.log(0.25 / 0.375)])


def test_defaults_are_the_documented_ones() -> None:
    span = torch.arange(30) >= 20
    steps = torch.arange(30.0)
    same(recovery.onset_step(steps, span=span), 5.0)  # 20 .. 24 against 15 .. 19
    same(
        recovery.recovery_latency(torch.arange(20.0), torch.tensor([13.0])), 5.0
    )  # the mean of 5 .. 9 is more than half of 13
    same(recovery.running_median(torch.tensor([0.0, 0, 0, 9, 9, 0, 0, 0])), 0.0)
    same(recovery.running_median(torch.tensor([0.0, 0, 9, 9, 9, 0, 0, 0]))[3], 9.0)
    assert segments.flanks(span).sum() == 5
    assert segments.flanks(torch.arange(30) == 15).nonzero()[:, 0].tolist() == [10, 11, 12, 13, 14, 16, 17, 18, 19, 20]
    same(received.sink_rate(torch.tensor([0.31, 0.29]), mask(T, T)), 0.5)
    counts = torch.tensor([4, 3, 2])
    same(received.received_from_sums(torch.tensor([1.0, 1.0, 1.0]), counts), [0.25, 1 / 3, NAN])
    for metric in (received.received_attention, received.uniform_received):
        given = HALF if metric is received.received_attention else patterns.visible_keys(3)
        assert metric(given).isnan().all(), "no column has 3 rows below it"
    ratio = 0.3 - 0.2 * torch.exp(-torch.arange(8.0) / 2)
    assert (
        recovery.recovery_time_constant(ratio[:7]).tau.isnan()
        and not recovery.recovery_time_constant(ratio).tau.isnan()
    )
    assert recovery.recovery_time_constant(ratio[:7], min_points=7).tau.isfinite()
    tiny = torch.tensor([1e-9, 1.0], dtype=torch.float64)
    same(recovery.aligned_ratio(tiny, tiny), 1.0)
    same(recovery.aligned_ratio(tiny * 1e-4, tiny), [NAN, 1e4])
    same(recovery.recovery_ratio(tiny, before=mask(T, F), after=mask(F, T)), 1e9)
    same(recovery.recovery_ratio(tiny * 1e-4, before=mask(T, F), after=mask(F, T)), NAN)
    same(recovery.span_collapse(tiny, span=mask(F, T), reference=mask(T, F)), 1 - 1e9)
    same(recovery.span_collapse(tiny * 1e-4, span=mask(F, T), reference=mask(T, F)), NAN)
    nearly = torch.tensor([0.96, 0.93, 1.0], dtype=torch.float64)
    segment = {"before": mask(F, F, T), "span": mask(F, T, F), "after": mask(T, F, F)}
    same(recovery.recovery_fraction(nearly, **segment), 3 / 7)
    same(recovery.recovery_fraction(nearly + 0.5, **segment), NAN)  # a step of .07 in 1.5


def test_limits_of_mass_by_default() -> None:
    for mass, sinkless, inside in ((2e-6, T, T), (5e-7, F, T), (2e-8, F, T), (5e-9, F, F)):
        row = torch.tensor([[1 - mass, mass / 2, mass / 2]], dtype=torch.float64)
        block = {"dest_positions": torch.tensor([2])}
        first, rest = mask(T, F, F), mask(F, T, T)
        assert entropy.entropy_without_sink(row, sink=first, **block).isfinite().item() is sinkless
        assert entropy.within_span_entropy(row, span=rest, **block).isfinite().item() is inside
        assert attention.non_sink_span_mass(row, span=mask(F, F, T), sink=first, **block).isfinite().item() is inside
        assert distances.renormalised_rows(row, alignment=torch.tensor([1, 2])).isfinite().all().item() is inside
        assert bool(received.received_sums(row, sink=first, renorm=True, **block)[1].any()) is inside


def test_width_and_place_of_one_token_are_allowed() -> None:
    same(recovery.onset_step(torch.tensor([1.0, 0.25, 1.0]), span=mask(F, T, F), width=1), -0.75)
    same(recovery.running_median(torch.tensor([1.0, NAN, 3.0]), width=1), [1.0, NAN, 3.0])
    same(recovery.recovery_latency(torch.tensor([1.0]), torch.tensor([1.0]), width=1), 0.0)
    same(recovery.recovery_latency(torch.tensor([1.0]), torch.tensor([1.0]), width=2), NAN)
    same(recovery.recovery_latency(torch.tensor([NAN, 0.1]), torch.tensor([1.0]), width=1), math.inf)
    same(recovery.recovery_latency(torch.tensor([0.1, 0.2]), torch.tensor([0.0]), width=1), NAN)
    same(received.received_from_sums(torch.tensor([0.5]), torch.tensor([1]), min_rows=1), 0.5)
    assert patterns.visible_keys(3, window=1).equal(torch.eye(3, dtype=torch.bool))
    same(activations.quantile(torch.tensor([2.0, 1.0]), q=1.0), 2.0)
    same(rankings.circuit_performance(torch.tensor([0.0, 1.0]), torch.tensor([0.0, 1.0])), 0.5)
    same(activations.median_variance(torch.tensor([[1.0], [3.0]])), 2.0)
    same(activations.histogram(torch.tensor([0.5, 2.0]), edges=torch.tensor([0.0, 1.0])), [2.0])
    same(distances.renormalised_rows(torch.tensor([[0.5, 0.5]]), alignment=torch.tensor([0, 1])), [[0.5, 0.5]])


def test_zero_and_undefined_are_told_apart() -> None:
    zero, some = torch.zeros(3), torch.tensor([0.0, 2.0, 4.0])
    same(spikes.peak_attenuation(some, torch.tensor([1.0, 1.0, 2.0]), peaks=mask(T, T, T)), 0.5)  # no share of nothing
    same(recovery.aligned_recovery(zero, some, tokens=mask(T, T, T)), NAN)
    same(recovery.aligned_recovery(some, zero, tokens=mask(T, T, T)), 0.0)
    same(recovery.aligned_recovery(some, torch.tensor([NAN, 1.0, NAN]), tokens=mask(T, T, T)), 0.5)
    same(outputs.value_cosine(torch.tensor([[1.0, 0.0], [0.0, 0.0]]), span=mask(T, T)), NAN)
    same(outputs.value_spectral_share(torch.zeros(2, 2), span=mask(T, T)), NAN)
    same(outputs.value_effective_rank(torch.zeros(2, 2), span=mask(T, T)), NAN)
    same(outputs.direction_coherence(torch.zeros(2, 2)), NAN)
    same(outputs.direction_coherence(torch.tensor([[0.0, 0.0], [3.0, 4.0]])), 1.0)
    same(outputs.span_output_weight(HALF, torch.zeros(3, 1, dtype=torch.float64), span=mask(F, F, T)), NAN)
    same(activations.gini(zero), NAN)
    same(received.relative_received(torch.tensor([0.5]), torch.tensor([0.0])), NAN)
    same(segments.segment_mean(some, mask(F, F, F)), NAN)


# ------------------------------------------------------------------------------------------------------- affine

ROWS = random(2, 4, 3)
AFTER, SIGMA, MATCHED = random(2, 4, 3, seed=1), random(2, 4, 3, seed=2), random(2, 4, 3, seed=3)
LAM = random(2, 4, seed=4).sigmoid()


def test_the_parts_of_a_change_add_up_with_and_without_a_shift() -> None:
    for matched in (None, MATCHED):
        parts = affine.affine_parts(AFTER, ROWS, lam=LAM, sigma=SIGMA, matched=matched)
        same(parts.change, AFTER - ROWS)
        same(parts.scale, (LAM[..., None] - 1) * ROWS)
        same(parts.bias, SIGMA)
        added = parts.scale + parts.bias + parts.rest
        if matched is None:
            assert parts.shift is None
        else:
            same(parts.shift, LAM[..., None] * (MATCHED - ROWS))
            added = added + parts.shift
        same(added, parts.change)
    exact = affine.affine_parts(LAM[..., None] * MATCHED + SIGMA, ROWS, lam=LAM, sigma=SIGMA, matched=MATCHED)
    same(exact.rest, 0.0, atol=1e-14, rtol=0)


def test_what_the_form_leaves_open_is_a_ratio_over_all_rows_of_a_head() -> None:
    rest, change = random(2, 4, 3), random(2, 4, 3, seed=1)
    expected = rest.flatten(1).norm(dim=1) / change.flatten(1).norm(dim=1)
    same(affine.affine_residual(rest, change), expected)
    same(affine.affine_residual(torch.zeros(1, 1, 1), torch.full((1, 1, 1), 0.5)), 0.0)
    same(affine.affine_residual(torch.ones(1, 1, 1), torch.zeros(1, 1, 1)), NAN)
    ten = torch.tensor([[[10.0]]])
    same(affine.affine_residual(ten, ten, rounding=1.0), 1.0)  # ten times the rounding is resolved
    same(affine.affine_residual(ten, ten, rounding=1.01), NAN)
    same(
        affine.affine_residual(torch.ones(2, 1, 1), torch.full((2, 1, 1), 10.0), rounding=torch.tensor([0.5, 2.0])),
        [0.1, NAN],
    )


def test_best_maps_are_of_each_head_and_undefined_where_nothing_varies() -> None:
    fit = affine.affine_fit(ROWS, AFTER)
    for head in range(2):
        alone = affine.affine_fit(ROWS[head], AFTER[head])
        for name in ("slope", "offset", "r2"):
            same(getattr(fit, name)[head], getattr(alone, name))
    flat = affine.affine_fit(torch.ones(2, 3, 1), random(2, 3, 1).float())
    assert flat.slope.isnan().all() and flat.offset.isnan().all() and flat.r2.isnan().all()
    still = affine.affine_fit(ROWS, torch.full((2, 4, 3), 0.1, dtype=torch.float64))
    same(still.slope, 0.0, atol=1e-12, rtol=0)
    assert still.r2.isnan().all()
    noise = affine.affine_fit(torch.full((1, 50, 1), 0.1), random(1, 50, 1).float())
    assert noise.slope.isnan().all(), "rounding is no variation"
    small = affine.affine_fit(1e-6 * random(1, 9, 1) + 1, random(1, 9, 1, seed=1))
    assert small.slope.isfinite().all()


def test_a_gain_is_undefined_in_the_rows_where_the_norm_is_no_product() -> None:
    wrote = random(3, 6)
    wrote[1] += 40.0
    layer_norm = lambda x: torch.nn.functional.layer_norm(x, x.shape[-1:])  # noqa: E731
    bent = lambda x: torch.where(x.mean(-1, keepdim=True) > 20, layer_norm(x), 3 * x)  # noqa: E731
    same(affine.frozen_gain(bent, wrote).isnan().any(-1).double(), [0.0, 1.0, 0.0])
    same(affine.frozen_gain(bent, wrote)[0], 3.0)
    off = lambda x: 2 * x + 0.1 * x.flip(-1) * (len(x) > 1)  # noqa: E731
    found = [affine.frozen_gain(off, wrote[[0, 2]], tolerance=tolerance) for tolerance in (0.01, 0.2)]
    assert found[0].isnan().all() and found[1].isfinite().all()
    assert (
        affine.frozen_gain(off, 1e4 * wrote[[0, 2]]).isnan().all()
        and affine.frozen_gain(off, 1e-4 * wrote[[0, 2]]).isnan().all()
    )
    slightly = lambda x: 2 * x + 0.01 * x.flip(-1) * (len(x) > 1)  # noqa: E731
    assert affine.frozen_gain(slightly, wrote[[0, 2]]).isfinite().all(), "half a per cent is within the default"
    same(affine.residual_share(torch.zeros(1, 1, 1), torch.zeros(1, 1), output_weights=torch.ones(1, 1, 1)), NAN)


# ------------------------------------------------------------------------- half precision, leading axes, where it lies


def made_elsewhere_by_default(expected: torch.Tensor, compute: Callable[[], torch.Tensor]) -> None:
    """What a metric makes on the way lies where its inputs lie, whatever the default device: it gives the same here."""
    with torch.device("meta"):
        found = compute()
    torch.testing.assert_close(found, expected, equal_nan=True, rtol=0, atol=0)


def test_metrics_make_their_tensors_where_their_inputs_lie() -> None:
    x, y, rows = random(2, 9).abs(), random(2, 9, seed=1).abs(), random(2, 9, 4)
    pattern = torch.where(torch.ones(9, 9).tril() > 0, random(2, 9, 9), -torch.inf).softmax(-1)
    span, real, positions = mask(*[F] * 3, *[T] * 3, *[F] * 3), mask(F, *[T] * 8), torch.arange(9)[None] + 3
    last = torch.tensor([7, 8])
    metrics: list[Callable[[], torch.Tensor]] = [
        lambda: attention.span_mass(pattern, span=span),
        lambda: attention.span_mass(pattern[:, 7:], span=span, dest_positions=last),
        lambda: attention.span_log_odds(pattern, span=span),
        lambda: attention.log_density_ratio(pattern, span=span),
        lambda: entropy.normalised_entropy(pattern),
        lambda: entropy.participation(pattern),
        lambda: received.received_attention(pattern),
        lambda: received.received_attention(pattern, diag=True),
        lambda: received.sink_alpha(pattern),
        lambda: flow.rollout(pattern),
        lambda: flow.rollout_span_share(pattern, span=span),
        lambda: distances.renormalised_rows(pattern, alignment=last),
        lambda: outputs.direction_coherence(rows),
        lambda: outputs.span_output(pattern, rows, span=span),
        lambda: affine.affine_residual(rows, rows + 1, rounding=0.01),
        lambda: affine.frozen_gain(lambda z: 2 * z, rows[0]),
        lambda: activations.near_zero_fraction(x, threshold=0.3),
        lambda: activations.gini(x),
        lambda: recovery.running_median(x),
        lambda: recovery.onset_step(x, span=span),
        lambda: recovery.recovery_time_constant(x, min_r_squared=0.0).tau,
        lambda: patterns.visible_keys(9, real=real),
        lambda: patterns.visible_keys(9, window=3, position_ids=positions),
        lambda: patterns.visible_keys(9, dest_positions=last),
        lambda: patterns.uniform_pattern(real[None]),
        lambda: spikes.spike_peaks(x),
        lambda: spikes.timing_spearman(x, y),
    ]
    for metric in metrics:
        made_elsewhere_by_default(metric(), metric)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_computed_in_float32(dtype: torch.dtype) -> None:
    rows, after, sigma, lam = (x.to(dtype) for x in (ROWS, AFTER, SIGMA, LAM))
    span, wide = mask(F, T, T, F), torch.rand(4, generator=torch.Generator().manual_seed(0))
    profile, twice = wide.to(dtype), (wide / 2).to(dtype)
    parts = affine.affine_parts(after, rows, lam=lam, sigma=sigma, matched=rows)
    answer, half_logits = torch.tensor([0, 1]), random(2, 2, 5).to(dtype)
    weights = torch.ones(2, 3, 6, dtype=dtype)
    found = {
        "parts": parts.scale + parts.bias + parts.shift + parts.rest,
        "residual": affine.affine_residual(after, rows),
        "fit": affine.affine_fit(rows, after).r2,
        "share": affine.residual_share(rows[:, 0:1], after[0, :1].repeat(1, 2), output_weights=weights),
        "gain": affine.frozen_gain(lambda x: 2 * x, rows[0]),
        "answer": logits.answer_logprob(half_logits, answer),
        "mean": logits.mean_logprob(half_logits, answer),
        "probability": logits.answer_probability(half_logits, answer),
        "difference": logits.logit_difference(half_logits, 1, 2),
        "kl": logits.kl_divergence(half_logits, half_logits.flip(0)),
        "collapse": recovery.span_collapse(profile, span=span, reference=mask(T, F, F, F)),
        "level": recovery.span_collapse(profile, span=span, reference=torch.tensor(0.5, dtype=dtype)),
        "collapsed": recovery.collapsed_share(profile, span=span),
        "onset": recovery.onset_step(profile, span=span),
        "variation": recovery.span_variation(profile, span=span),
        "ratio": recovery.recovery_ratio(profile, before=mask(T, F, F, F), after=mask(F, F, F, T)),
        "fraction": recovery.recovery_fraction(profile, before=mask(T, F, F, F), span=span, after=mask(F, F, F, T)),
        "aligned": recovery.aligned_recovery(profile, twice, tokens=span),
        "each": recovery.aligned_ratio(profile, twice),
        "latency": recovery.recovery_latency(profile, twice[:1], width=1),
        "median": recovery.running_median(profile),
        "tau": recovery.recovery_time_constant(profile, min_points=3).tau,
        "slope": spikes.attenuation_slope(profile, twice),
        "r2": spikes.attenuation_r_squared(profile, twice),
        "pearson": spikes.timing_pearson(profile, twice),
        "spearman": spikes.timing_spearman(profile, twice),
        "height": spikes.peak_attenuation(profile, twice, peaks=span),
        "relative": received.relative_received(profile, twice),
        "kurtosis": received.kurtosis(profile),
        "sink": received.sink_rate(profile, span),
        "cosine": outputs.value_cosine(rows[0], span=span),
        "energy": outputs.value_spectral_share(rows[0], span=span),
        "rank": outputs.value_effective_rank(rows[0], span=span),
        "direction": outputs.direction_coherence(rows[0], rows=span),
        "curve": rankings.circuit_performance(wide.cumsum(0), profile),
        "distance": rankings.circuit_distance(wide.cumsum(0), profile),
        "rms": activations.root_mean_square(profile),
        "absolute": activations.mean_absolute(profile),
        "sparsity": activations.relative_sparsity(profile, base=twice, c=0.3),
        "odds": attention.span_log_odds(torch.zeros(4, 4, dtype=dtype), span=span),
    }
    for name, value in found.items():
        assert value.dtype == torch.float32, name
    large = torch.full((1, 1, 2), 6e4, dtype=torch.float16)
    same(logits.answer_logprob(large, torch.tensor([0])), -math.log(2))


def test_two_prompts_give_what_each_gives_alone() -> None:
    """Every metric of profiles and vectors reduces its own axis only."""
    profile, other = random(2, 3, 12).abs(), random(2, 3, 12, seed=1).abs()
    vectors = random(2, 3, 12, 4)
    span = (torch.arange(12) >= 4) & (torch.arange(12) < 8)
    before, after = torch.arange(12) < 4, torch.arange(12) >= 8
    edges, fractions = torch.linspace(-3, 3, 7, dtype=torch.float64), torch.linspace(0, 1, 12, dtype=torch.float64)
    metrics: list[Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]] = [
        lambda x, y, v: recovery.span_collapse(x, span=span, reference=before),
        lambda x, y, v: recovery.collapsed_share(x, span=span),
        lambda x, y, v: recovery.onset_step(x, span=span),
        lambda x, y, v: recovery.span_variation(x, span=span),
        lambda x, y, v: recovery.recovery_ratio(x, before=before, after=after),
        lambda x, y, v: recovery.recovery_fraction(x, before=before, span=span, after=after),
        lambda x, y, v: recovery.aligned_recovery(x, y, tokens=after),
        lambda x, y, v: recovery.aligned_ratio(x, y),
        lambda x, y, v: recovery.recovery_latency(x, y, width=2),
        lambda x, y, v: recovery.running_median(x),
        lambda x, y, v: recovery.recovery_time_constant(x, min_r_squared=0.0).tau,
        lambda x, y, v: recovery.recovery_time_constant(x, min_r_squared=0.0).at_grid_edge.double(),
        lambda x, y, v: spikes.timing_pearson(x, y),
        lambda x, y, v: spikes.timing_spearman(x, y),
        lambda x, y, v: spikes.attenuation_slope(x, y),
        lambda x, y, v: spikes.attenuation_r_squared(x, y),
        lambda x, y, v: spikes.spike_peaks(x).double(),
        lambda x, y, v: spikes.matched_peaks_f1(x > 1, y > 1, tolerance=1),
        lambda x, y, v: spikes.peak_attenuation(x, y, peaks=spikes.spike_peaks(x)),
        lambda x, y, v: received.kurtosis(x),
        lambda x, y, v: received.sink_rate(x, span),
        lambda x, y, v: received.relative_received(x, y),
        lambda x, y, v: rankings.circuit_performance(fractions, x),
        lambda x, y, v: rankings.circuit_distance(fractions, x),
        lambda x, y, v: activations.arm_threshold(x, c=0.3),
        lambda x, y, v: activations.arm_threshold(x, c=0.3, absolute=False),
        lambda x, y, v: activations.quantile(x, q=0.3),
        lambda x, y, v: activations.quantile_threshold(-x, q=0.3),
        lambda x, y, v: activations.near_zero_fraction(x, threshold=activations.quantile(y, q=0.4)),
        lambda x, y, v: activations.relative_sparsity(x, base=y, c=0.9),
        lambda x, y, v: activations.l1_norm(x),
        lambda x, y, v: activations.l2_norm(x),
        lambda x, y, v: activations.mean_absolute(x),
        lambda x, y, v: activations.root_mean_square(x),
        lambda x, y, v: activations.gini(x),
        lambda x, y, v: activations.histogram(x, edges=edges),
        lambda x, y, v: activations.histogram_gini(x, edges=edges),
        lambda x, y, v: activations.tails(x).kurtosis,
        lambda x, y, v: activations.tails(x).minimum,
        lambda x, y, v: activations.wasserstein(x, y),
        lambda x, y, v: activations.kolmogorov_smirnov(x, y),
        lambda x, y, v: activations.median_variance(v),
        lambda x, y, v: outputs.value_cosine(v, span=span),
        lambda x, y, v: outputs.value_spectral_share(v, span=span),
        lambda x, y, v: outputs.value_effective_rank(v, span=span),
        lambda x, y, v: outputs.direction_coherence(v, rows=span),
        lambda x, y, v: segments.segment_mean(x, span),
        lambda x, y, v: affine.affine_fit(v, v.flip(-2)).r2,
        lambda x, y, v: affine.affine_residual(v, v.flip(-1) + 1),
    ]
    for number, metric in enumerate(metrics):
        together = metric(profile, other, vectors)
        assert together.shape[:2] == (2, 3), number
        made_elsewhere_by_default(together, lambda metric=metric: metric(profile, other, vectors))
        for i in range(2):
            for j in range(3):
                torch.testing.assert_close(
                    together[i, j],
                    metric(profile[i, j], other[i, j], vectors[i, j]),
                    equal_nan=True,
                    msg=lambda m, k=number: f"{k}: {m}",
                )


def test_patterns_of_a_batch_give_what_each_gives_alone() -> None:
    """Masks of their own: padding, a window and a span differ between the prompts."""
    real = torch.arange(9) >= torch.tensor([[0], [2]])
    visible = patterns.visible_keys(9, window=5, real=real)[:, None]
    pattern = torch.where(visible, 3 * random(2, 3, 9, 9), -torch.inf).softmax(-1).nan_to_num()
    span = ((torch.arange(9) >= 3) & (torch.arange(9) < torch.tensor([[6], [7]])))[:, None]
    sink = (torch.arange(9) == torch.tensor([[0], [2]]))[:, None]
    rows = (torch.arange(9) >= torch.tensor([[6], [7]]))[:, None]
    values, weights = random(2, 3, 9, 4, seed=1), random(3, 4, 5, seed=2)
    metrics: list[Callable[..., torch.Tensor]] = [
        lambda p, v, s, k, r, x, w: attention.span_mass(p, span=s, visible=v),
        lambda p, v, s, k, r, x, w: attention.retained_mass(p, span=s, visible=v),
        lambda p, v, s, k, r, x, w: attention.span_log_odds(p, span=s, visible=v),
        lambda p, v, s, k, r, x, w: attention.non_sink_span_mass(p, span=s, sink=k, visible=v),
        lambda p, v, s, k, r, x, w: attention.log_density_ratio(p, span=s, visible=v),
        lambda p, v, s, k, r, x, w: attention.log_density_ratio(p, span=s, sink=k, visible=v),
        lambda p, v, s, k, r, x, w: entropy.attention_entropy(p, visible=v),
        lambda p, v, s, k, r, x, w: entropy.normalised_entropy(p, visible=v),
        lambda p, v, s, k, r, x, w: entropy.effective_tokens(p, visible=v),
        lambda p, v, s, k, r, x, w: entropy.participation(p, visible=v),
        lambda p, v, s, k, r, x, w: entropy.entropy_chain(p, span=s, visible=v).between,
        lambda p, v, s, k, r, x, w: entropy.entropy_chain(p, span=s, visible=v).outside,
        lambda p, v, s, k, r, x, w: entropy.entropy_chain(p, span=s, visible=v).inside,
        lambda p, v, s, k, r, x, w: entropy.within_span_entropy(p, span=s, visible=v),
        lambda p, v, s, k, r, x, w: entropy.entropy_without_sink(p, sink=k, visible=v),
        lambda p, v, s, k, r, x, w: received.received_attention(p, rows=r, visible=v, min_rows=1),
        lambda p, v, s, k, r, x, w: received.received_attention(p, sink=k, renorm=True, visible=v, min_rows=1),
        lambda p, v, s, k, r, x, w: received.sink_alpha(p, visible=v),
        lambda p, v, s, k, r, x, w: outputs.span_output(p, x, span=s, visible=v),
        lambda p, v, s, k, r, x, w: outputs.span_output_weight(p, x, span=s, visible=v),
        lambda p, v, s, k, r, x, w: outputs.span_output_weight(p, x, span=s, visible=v, output_weights=w),
        lambda p, v, s, k, r, x, w: flow.rollout(p[None].repeat(2, *[1] * p.ndim), visible=v),
        lambda p, v, s, k, r, x, w: flow.rollout_span_share(p[None].repeat(2, *[1] * p.ndim), span=s, visible=v),
        lambda p, v, s, k, r, x, w: outputs.value_cosine(x, span=s),
        lambda p, v, s, k, r, x, w: outputs.value_spectral_share(x, span=s),
        lambda p, v, s, k, r, x, w: outputs.value_effective_rank(x, span=s),
        lambda p, v, s, k, r, x, w: outputs.direction_coherence(x, rows=s),
    ]
    for number, metric in enumerate(metrics):
        together = metric(pattern, visible, span, sink, rows, values, weights)
        for i in range(2):
            for j in range(3):
                alone = metric(
                    pattern[i, j], visible[i, 0], span[i, 0], sink[i, 0], rows[i, 0], values[i, j], weights[j]
                )
                torch.testing.assert_close(together[i, j], alone, equal_nan=True, msg=lambda m, k=number: f"{k}: {m}")


def test_time_constants_beyond_the_grid_are_at_its_edge() -> None:
    times = torch.arange(12, dtype=torch.float64)
    for tau, edge in ((36.0, 12.0), (0.02, 0.2)):
        found = recovery.recovery_time_constant(0.3 - 0.2 * torch.exp(-times / tau))
        assert found.at_grid_edge and found.tau == pytest.approx(edge, rel=1e-9 if edge > 1 else 10)
    inside = recovery.recovery_time_constant(0.3 - 0.2 * torch.exp(-times / 6.0))
    assert not inside.at_grid_edge and inside.tau == pytest.approx(6.0, rel=1e-3)


def test_rounding_is_no_recovery_and_half_precision_rows_are_rescaled() -> None:
    flat = torch.tensor([1e8, 1e8 + 2**-26] * 6, dtype=torch.float64)
    assert recovery.recovery_time_constant(flat, min_r_squared=0.0).r_squared.isnan()
    assert recovery.recovery_time_constant(1e-8 * random(12).abs(), min_r_squared=0.0).r_squared.isfinite()
    short = recovery.recovery_latency(torch.ones(2, 3, 4), torch.ones(1))
    assert short.shape == (2, 3) and short.isnan().all()
    p, q = (3 * random(2, 40)).softmax(-1).bfloat16()
    for distance in (distances.total_variation, distances.hellinger, distances.jensen_shannon_distance):
        exact = distance(p.double() / p.double().sum(), q.double() / q.double().sum())
        same(distance(p, q), exact.float(), atol=1e-6, rtol=0)


# ------------------------------------------------------------------------------------------------------------- messages

SHORT, INTEGERS = mask(T, F), torch.tensor([0, 1, 1])
SPAN, SINK = mask(F, F, T), mask(T, F, F)
PROFILE = torch.tensor([0.5, 0.25, 0.125])


@pytest.mark.usefixtures("untyped")
@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda s: attention.span_mass(HALF, span=s), "span"),
        (lambda s: attention.retained_mass(HALF, span=s), "span"),
        (lambda s: attention.span_log_odds(HALF, span=s), "span"),
        (lambda s: attention.non_sink_span_mass(HALF, span=SPAN, sink=s), "sink"),
        (lambda s: attention.log_density_ratio(HALF, span=s), "span"),
        (lambda s: attention.log_density_ratio(HALF, span=SPAN, sink=s), "sink"),
        (lambda s: entropy.entropy_chain(HALF, span=s), "span"),
        (lambda s: entropy.within_span_entropy(HALF, span=s), "span"),
        (lambda s: entropy.entropy_without_sink(HALF, sink=s), "sink"),
        (lambda s: received.received_sums(HALF, rows=s), "rows"),
        (lambda s: received.received_sums(HALF, sink=s), "sink"),
        (lambda s: recovery.span_collapse(PROFILE, span=s, reference=SINK), "span"),
        (lambda s: recovery.collapsed_share(PROFILE, span=s), "span"),
        (lambda s: recovery.onset_step(PROFILE, span=s), "span"),
        (lambda s: recovery.span_variation(PROFILE, span=s), "span"),
        (lambda s: recovery.recovery_fraction(PROFILE, before=SINK, span=s, after=SPAN), "span"),
        (lambda s: recovery.aligned_recovery(PROFILE, PROFILE, tokens=s), "tokens"),
        (lambda s: outputs.span_output(HALF, HALF, span=s), "span"),
        (lambda s: outputs.span_output_weight(HALF, HALF, span=s), "span"),
        (lambda s: outputs.value_cosine(HALF, span=s), "span"),
        (lambda s: outputs.value_effective_rank(HALF, span=s), "span"),
        (lambda s: outputs.direction_coherence(HALF, rows=s), "rows"),
        (lambda s: flow.rollout_span_share(HALF[None], span=s), "span"),
        (lambda s: patterns.visible_keys(3, real=s), "real"),
        (lambda s: segments.row_mask("all", question=SINK, span=s), "span"),
        (lambda s: segments.segment_mean(PROFILE, s), "segment"),
    ],
)
def test_a_wrong_mask_is_named(call: Callable[[torch.Tensor], object], name: str) -> None:
    with pytest.raises(ValueError, match=rf"^{name} must be a boolean mask over the tokens, got torch.int64"):
        call(INTEGERS)
    with pytest.raises(ValueError, match=rf"^{name} must have one entry for each of the 3 tokens, got shape \(2,\)"):
        call(SHORT)


@pytest.mark.usefixtures("untyped")
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: recovery.onset_step(PROFILE, span=SPAN, width=0), "width must be 1 token or more, got 0"),
        (lambda: recovery.recovery_latency(PROFILE, PROFILE, width=0), "width must be 1 token or more, got 0"),
        (lambda: recovery.running_median(PROFILE, width=0), "odd number of tokens, got 0"),
        (lambda: recovery.running_median(PROFILE, width=-1), "odd number of tokens, got -1"),
        (lambda: segments.flanks(SPAN, width=0), "width must be 1 token or more, got 0"),
        (lambda: segments.row_mask("some", question=SPAN), '"all", "shared", "question" or "last", got \'some\''),
        (lambda: patterns.visible_keys(3, window=0), "window must be 1 key or more"),
        (lambda: patterns.visible_keys(3, window=2, position_ids=torch.arange(2)), r"3 entries, got shape \(2,\)"),
        (lambda: activations.quantile(PROFILE, q=-0.1), "between 0 and 1, got -0.1"),
        (lambda: activations.wasserstein(PROFILE, PROFILE[:2]), "same number of elements, got 3 and 2"),
        (
            lambda: activations.histogram(PROFILE, edges=torch.tensor([1.0])),
            r"strictly increasing numbers, got \[1.0\]",
        ),
        (
            lambda: rankings.circuit_performance(torch.tensor([0.5]), torch.tensor([0.5])),
            r"strictly increasing sizes, got \[0.5\]",
        ),
        (lambda: rankings.circuit_distance(torch.tensor([0.5, 0.5]), torch.ones(2)), "strictly increasing sizes"),
        (lambda: distances.total_variation(HALF[0], HALF[0, :2]), "over the same tokens, got 3 and 2"),
        (lambda: distances.hellinger(HALF[1] / 2, HALF[1]), "the first rows must sum to 1, but one sums to 0.5"),
        (lambda: distances.renormalised_rows(HALF, alignment=torch.tensor([-1, 1])), r"in 0 to 2, got \[-1, 1\]"),
        (lambda: distances.renormalised_rows(HALF, alignment=torch.tensor([1, 3])), r"in 0 to 2, got \[1, 3\]"),
        (lambda: distances.renormalised_rows(HALF, alignment=torch.tensor([1, 1])), r"strictly increasing"),
        (lambda: flow.rollout(HALF[None, :2]), r"whole square patterns, not a block of rows, got \(1, 2, 3\)"),
        (lambda: flow.rollout(HALF[:0][:, None].expand(0, 3, 3)), "at least one layer"),
        (lambda: spikes.matched_peaks_f1(SPAN, SPAN, tolerance=-1), "tolerance must be 0 tokens or more"),
        (lambda: received.received_sums(HALF, renorm=True), "say which tokens are the `sink`"),
        (lambda: attention.span_mass(HALF, span=mask(F, F, F)), "the span is empty"),
        (lambda: attention.span_mass(HALF, span=mask(T, T, T)), "covers all tokens"),
    ],
)
def test_wrong_numbers_are_named(call: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()
