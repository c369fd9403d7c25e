"""Metrics by hand: worked examples, defaults, thresholds exactly at their border, and what is undefined."""

import math

import numpy as np
import pytest
import torch
from formulas_under_test import A0, A1, NAN, QUESTION, SINK, SPAN, mask, random, random_pattern, same, visible_keys

from mless_interp.metrics import activations, attention, collapse, outputs, patterns, received

T, F = True, False


def marks(*values: bool) -> torch.Tensor:
    return torch.tensor(values)


HALF = torch.tensor([[1.0, 0.0, 0.0], [0.5, 0.5, 0.0], [0.5, 0.25, 0.25]], dtype=torch.float64)
# methods 13: base prompt [P Q Q]; inserted prompt [P I I Q Q], positions held; values 1; -1, -1; 2, 4
V1 = torch.tensor([[1], [-1], [-1], [2], [4]], dtype=torch.float64)


def test_the_worked_example() -> None:
    lam, sigma = attention.retained_mass(A1, span=SPAN), outputs.span_output(A1, V1, span=SPAN)[3:]
    same(attention.span_mass(A1, span=SPAN)[3:], [0.2, 0.5])  # .1 + .1, .25 + .25
    same(lam[3:], [0.8, 0.5])
    same(patterns.segment_mean(lam, QUESTION), 0.65)
    same(sigma, [[-0.2], [-0.5]])  # (1 - lambda) times -1, as the span is one repeated token
    same(lam[3:, None] * (A0 @ V1[[0, 3, 4]])[1:] + sigma, (A1 @ V1)[3:])
    same((A1 @ V1)[3:], [[0.92], [0.45]])
    parts = outputs.affine_parts((A1 @ V1)[3:], (A0 @ V1[[0, 3, 4]])[1:], lam=lam[3:], sigma=sigma)
    same(parts["bias"], sigma)
    torch.testing.assert_close(parts["scale"] + sigma, parts["change"])  # in the first layer there is no rest
    # row 3: |-.2| and |.48 + .64|; row 4: |-.5| and |.25 + .3 + .4|
    same(outputs.span_output_weight(A1, V1, span=SPAN)[3:], [0.2 / 1.32, 0.5 / 1.45])
    sums = received.received_sums(A1, sink=SINK)
    same(received.received_attention(*sums, min_rows=1), [NAN, 0.55 / 3, 0.175, 0.15, NAN])


def test_the_threshold_of_arm() -> None:
    # upper or averaged medians would give another MAD: |a| = 1 2 3 10, median 2, deviations 1 0 1 8, median 1
    same(activations.arm_threshold(torch.tensor([1.0, -2.0, 3.0, 10.0]), c=1.0), 1.4826)
    same(activations.arm_threshold(torch.ones(4, dtype=torch.float64), c=1.0), 1.4826e-12)


def test_lambda_from_scores_is_lambda_of_the_softmax_also_where_it_underflows() -> None:
    scores, visible = 3 * random(4, 2, 9, 9), visible_keys(9, window=5)
    span = (torch.arange(9) > 2) & (torch.arange(9) < 5)
    pattern = torch.where(visible, scores, -torch.inf).softmax(-1)
    odds = attention.span_log_odds(scores, span=span, visible=visible)
    same((-odds).sigmoid(), attention.retained_mass(pattern, span=span, visible=visible))
    scores = torch.tensor([[0.0, 0.0], [0.0, -200.0]])
    same(attention.span_log_odds(scores, span=marks(F, T)), [-math.inf, -200.0])
    same(attention.span_mass(torch.tensor([[1.0, 0.0], [1.0, math.exp(-200)]]), span=marks(F, T)), 0.0)
    same(attention.log_density_ratio(A1, span=SPAN)[0], NAN)
    ignoring = torch.tensor([[1.0, 0, 0], [1, 0, 0], [0.5, 0, 0.5]])
    same(attention.log_density_ratio(ignoring, span=marks(F, T, F)), [NAN, -math.inf, -math.inf])


def test_nearly_equal_rows_in_float32_have_no_negative_divergence() -> None:
    p = (3 * random(100, 500)).softmax(-1).float()
    q = p * (1 + 1e-6 * random(100, 500, seed=1).float())
    distance = attention.jensen_shannon_divergence(p, q / q.sum(-1, keepdim=True)).sqrt()
    assert distance.max() < 1e-5 and not distance.isnan().any()


def test_output_weight_reads_what_the_output_projection_keeps() -> None:
    pattern = random_pattern(3, visible=visible_keys(6))
    values, weights = random(3, 6, 4, seed=1), random(3, 4, 7, seed=2)
    span = torch.isin(torch.arange(6), torch.tensor([2, 3]))
    inside, outside = (
        torch.einsum("hqk,hkd,hde->hqe", pattern * side, values, weights).norm(dim=-1) for side in (span, ~span)
    )
    same(outputs.span_output_weight(pattern, values, span=span, output_weights=weights), inside / (inside + outside))
    silent = weights.clone()
    silent[0] = 0
    assert outputs.span_output_weight(pattern, values, span=span, output_weights=silent)[0].isnan().all()


def test_constant_or_missing_profiles_have_no_timing_and_nothing_has_no_slope() -> None:
    x = torch.tensor([[0.1, 0.1, 0.1], [0.1, 0.2, 0.3], [NAN, NAN, NAN], [NAN, 1.0, NAN]])
    for timing in (collapse.timing_pearson, collapse.timing_spearman):
        same(timing(x, torch.tensor([0.3, 0.1, 0.2]).expand(4, 3)), [NAN, -0.5, NAN, NAN])
    zero, some = torch.zeros(3), torch.tensor([0.1, 0.2, 0.3])
    for slope, given, expected in (("slope", zero, NAN), ("r_squared", zero, NAN), ("slope", some, 0.0)):
        same(getattr(collapse, f"attenuation_{slope}")(given, some if given is zero else zero), expected)
    same(collapse.attenuation_r_squared(some, zero), NAN)


def test_peaks_that_match_are_shared() -> None:
    x, y = mask(1, 3, n=6), mask(2, 3, n=6)
    same(collapse.matched_peaks_f1(x, y), 0.5)
    same(collapse.matched_peaks_f1(x, x), 1.0)
    same(collapse.matched_peaks_f1(x ^ x, y ^ y), NAN)
    same(collapse.matched_peaks_f1(x, x ^ x), 0.0)


def test_rows_are_renormalised_in_float32_and_padded_ones_may_hold_anything() -> None:
    pattern = random_pattern(2, visible=visible_keys(50)).bfloat16()
    assert (pattern.float().sum(-1) - 1).abs().max() > 1e-4
    row = patterns.prepared(pattern, visible=None)[0]
    assert row.dtype == torch.float32
    same(row.sum(-1), torch.ones(2, 50))
    visible = visible_keys(3, real=mask(1, 2, n=3))
    pattern = torch.tensor([[NAN, NAN, NAN], [0.0, 1.0, 0.0], [0.0, 0.5, 0.5]])
    same(patterns.prepared(pattern, visible=visible)[0], [[0, 0, 0], [0, 1, 0], [0, 0.5, 0.5]])


def test_collapse_and_onset() -> None:
    profile = torch.tensor([[0.9, 0.4, 0.1, 0.1, 0.2], [0.9, 0.2, 0.2, 0.2, 0.2]])
    span = mask(2, 3, n=5)
    same(collapse.span_collapse(profile, span=span, reference=mask(1, 4, n=5)), [1 - 0.1 / 0.3, 0.0])
    same(collapse.span_collapse(profile, span=span, reference=mask(n=5)), NAN)
    relative, span = torch.tensor([1.0, 0.05, 0.2, 0.4, NAN, 1.0]), mask(1, 2, 3, 4, n=6)
    shares = [collapse.collapsed_share(relative, span=span, threshold=theta) for theta in (0.1, 0.25, 0.5)]
    same(torch.stack(shares), [1 / 3, 2 / 3, 1])
    relative, span = torch.tensor([9.0, 1.0, 1.2, 0.2, 0.4, 0.9, 1.0]), mask(3, 4, 5, n=7)
    same(collapse.onset_step(relative, span=span, width=2), 0.3 - 1.1)
    same(collapse.onset_step(relative, span=span, width=5), 0.5 - 11.2 / 3)  # within the span, and from the start on
    sinkless = torch.cat([torch.tensor([NAN]), relative[1:]])
    same(collapse.onset_step(sinkless, span=span, width=5), 0.5 - 1.1)
    same(collapse.onset_step(relative, span=mask(0, 1, n=7)), NAN)


def test_latency_is_the_first_defined_window_back_at_its_share() -> None:
    after = torch.tensor([[0.1, 0.2, 0.6, 0.8], [1.0, 1.0, 1.0, 1.0], [0.1, 0.1, 0.1, 0.1]])
    # windows of 2 against .5: .15 .4 .7; at once; never
    same(collapse.recovery_latency(after, torch.ones(3, 1), width=2), [2, 0, math.inf])
    one = torch.ones(1)
    for series, reference, width, expected in (
        ([NAN, 1.0, 1.0, 1.0], one, 2, 1),
        ([0.1, NAN, 0.1], one, 2, NAN),
        ([1.0, 1.0], one, 5, NAN),
        ([1.0, 1.0], 0 * one, 2, NAN),
        ([1.0], one, 1, 0.0),
        ([1.0], one, 2, NAN),
        ([NAN, 0.1], one, 1, math.inf),
        ([0.1, 0.2], 0 * one, 1, NAN),
    ):
        same(collapse.recovery_latency(torch.tensor(series), reference, width=width), expected)
    short = collapse.recovery_latency(torch.ones(2, 3, 4), one)
    assert short.shape == (2, 3) and short.isnan().all()


def test_a_time_constant_is_fitted_to_curves_alone() -> None:
    t = torch.arange(12, dtype=torch.float64)
    noise = torch.rand(200, generator=torch.Generator().manual_seed(3))
    series = torch.stack([torch.full((200,), 0.3), noise, torch.full((200,), NAN)])
    same(collapse.recovery_time_constant(series), NAN)
    for tau, found in ((36.0, 12.0), (0.02, 0.2), (6.0, 6.0)):  # beyond the grid: its ends
        fit = collapse.recovery_time_constant(0.3 - 0.2 * torch.exp(-t / tau))
        assert fit.item() == pytest.approx(found, rel=10 if tau < 0.2 else 1e-3)
    flat = torch.tensor([1e8, 1e8 + 2**-26] * 6, dtype=torch.float64)
    assert collapse.recovery_time_constant(flat, min_r_squared=0.0).isnan(), "rounding is no recovery"
    assert collapse.recovery_time_constant(1e-8 * random(12).abs(), min_r_squared=0.0).isfinite()


X = torch.tensor([[0.0, 60.0], [0.0, 30.0], [3.0, 0.0], [3.0, 4.0], [0.0, 1.0]])  # norms 60 30 3 5 1
FIRST, TWO = marks(T, F, F, F, F), marks(F, T, T, F, F)
OTHERS = torch.tensor([False, False, False, True, True])  # median norm 3


def test_norms_are_over_the_median_of_the_others_and_cosines_those_of_directions() -> None:
    heads = received.relative_norms(torch.stack([X, 2 * X, 0 * X]), others=OTHERS)
    same(heads, torch.tensor([[20, 10, 1, 5 / 3, 1 / 3]] * 2 + [[NAN] * 5]))
    same(received.relative_norms(X, others=0 * OTHERS > 1), NAN)
    same(received.cosines_to_sink(X * torch.rand(5, 1).add(0.1), sink=FIRST), [1, 1, 0, 0.8, 1])
    same(received.cosines_to_sink(-X[[0, 1]] * torch.tensor([[-1.0], [1.0]]), sink=FIRST[:2]), [1, -1])
    same(received.cosines_to_sink(torch.zeros(2, 3), sink=FIRST[:2]), NAN)


def test_the_first_inserted_token_is_held_against_the_rest() -> None:
    values, span = torch.tensor([9.0, 6.0, 1.0, 3.0, 7.0]), marks(F, T, T, T, F)
    same(received.first_of(values, TWO), 6.0)
    same(received.first_against_rest(torch.stack([values, -values]), span), [3.0, 3.0])
    same(received.first_against_rest(values, OTHERS & (values == 3)), NAN)  # a span of one token has no rest


def test_the_dual_is_the_primal_and_its_penalty_leaves_one_out() -> None:
    labels, train, test = np.arange(20) % 3, np.arange(14), np.arange(14, 20)
    y = np.eye(3)[labels]

    def primal(rows: np.ndarray, read: np.ndarray, penalty: float, x: np.ndarray) -> np.ndarray:
        centre, mean = x[rows].mean(0), y[rows].mean(0)
        centred = x[rows] - centre
        weights = np.linalg.solve(centred.T @ centred + penalty * np.eye(6), centred.T @ (y[rows] - mean))
        return (x[read] - centre) @ weights + mean

    taken = set()
    for seed in range(20):
        x = np.random.default_rng(seed).normal(size=(20, 6)) + 2
        x[:, 0] += labels
        centred = x[train] - x[train].mean(0)
        choices = np.array(activations.PENALTIES) * np.trace(centred @ centred.T) / len(train)
        # a row that is left out changes the others' mean and products; PRESS says by how much without fitting again
        errors = [
            sum(((y[out] - primal(np.delete(train, out), np.array([out]), each, x)) ** 2).sum() for out in train)
            for each in choices
        ]
        taken.add(int(np.argmin(errors)))
        expected = primal(train, test, float(choices[int(np.argmin(errors))]), x)
        np.testing.assert_allclose(activations.ridge_scores(x @ x.T, labels, train, test), expected, atol=1e-9)
    assert taken > {2, 3}, "choices that are not at an end"
    tiny = 1e-6 * x + np.ones(6)
    blunt = activations.ridge_scores(tiny @ tiny.T, labels, train, test, least=0.01)
    floor = 0.01**2 * np.trace(tiny[train] @ tiny[train].T)
    np.testing.assert_allclose(blunt, primal(train, test, floor, tiny), rtol=1e-6)
    unseen = activations.ridge_scores(x @ x.T, np.where(np.arange(20) == 19, 3, labels), train, test)
    assert np.isnan(unseen[:, 3]).all() and np.isfinite(unseen[:, :3]).all()
    np.testing.assert_allclose(unseen[:, :3].sum(1), 1)


def test_what_is_exactly_at_its_limit() -> None:
    places = {"before": marks(T, F, F), "span": marks(F, T, F), "after": marks(F, F, T)}
    fallen, risen = torch.tensor([0.5, 0.125, 0.25]), torch.tensor([0.125, 0.5, 0.25])
    for profile, tolerance, found in ((fallen, 0.75, 1 / 3), (risen, 0.75, 2 / 3), (risen, 0.76, NAN)):
        same(collapse.recovery_fraction(profile, **places, tolerance=tolerance), found)
    same(collapse.recovery_fraction(torch.full((3,), 0.5), **places, tolerance=0.0), NAN)
    relative = torch.tensor([1.0, 0.25, 0.125])
    same(collapse.collapsed_share(relative, span=marks(F, T, T)), 0.5)  # .25 is not less than .25
    same(received.sink_rate(torch.tensor([0.5, 0.25]), marks(T, T), threshold=0.25), 0.5)  # .25 is not above .25
    same(activations.near_zero_fraction(torch.tensor([0.25, -0.25, 0.1]), threshold=0.25), 1 / 3)
    same(collapse.recovery_latency(torch.tensor([0.25, 0.5]), torch.tensor([1.0]), width=1), 1.0)  # .5 is half of 1


def test_what_is_just_allowed_and_just_not() -> None:
    edges = torch.tensor([0.0, 0.5, 1.0])  # a bin begins at its lower edge; the last one ends with its upper
    for value, place in ((0.0, 0), (0.5, 1), (1.0, 1)):
        same(activations.histogram(torch.tensor([value]), edges=edges), [float(place == 0), float(place == 1)])
    third = torch.tensor(10 * (1 / 3), dtype=torch.float64).reshape(1, 1, 1)
    same(outputs.affine_residual(third, third, rounding=1 / 3), 1.0)
    hidden = torch.tensor([NAN, 2.0, 2.0, NAN])
    same(received.kurtosis(hidden), NAN)
    same(received.kurtosis(torch.full((7,), 0.1)), NAN)  # a mean that rounds is no spread
    same(outputs.value_cosine(torch.tensor([[1.0, 0.0], [2.0, 0.0], [0.0, 1.0]]), span=marks(T, T, T)), 1 / 3)
    same(outputs.logit_difference(torch.tensor([[[9.0, 0.0], [1.0, 3.0]]]), 1, 0), 2.0)
    same(received.kurtosis(torch.tensor([NAN, 0.0, 0.0, 1.0, 1.0])), -2.0)
    for size in (1e-8, 1.0, 1e8):  # what differs is judged against the size of what does
        rows = size * (1 + random(1, 9, 2))
        slope, _, r2 = outputs.affine_fit(rows, size * (1 + random(1, 9, 2, seed=1)))
        assert slope.isfinite().all() and r2.isfinite().all(), size
        flat = size * torch.full((1, 9, 2), 0.1, dtype=torch.float64)
        assert outputs.affine_fit(rows, flat)[2].isnan().all() and outputs.affine_fit(flat, rows)[0].isnan().all()
    same(attention.log_density_ratio(HALF, span=marks(F, F, T)), [NAN, NAN, math.log(0.25 / 0.375)])
    same(attention.log_density_ratio(HALF, span=marks(F, F, T), sink=marks(T, F, F)), [NAN, NAN, 0.0])
    same(attention.normalised_entropy(torch.tensor([[1 - 5e-5]])), NAN)  # one key, whose row is off by rounding
    rows = torch.rand(99, 3, generator=torch.Generator().manual_seed(0))
    rows, seen = rows / rows.sum(-1, keepdim=True), torch.ones(99, 3, dtype=torch.bool)
    same(attention.within_span_entropy(rows, span=marks(F, F, T), visible=seen), NAN)


def test_what_is_undefined_in_a_row_decides_nothing_of_the_rest() -> None:
    same(outputs.residual_share(torch.zeros(1, 1, 1), torch.zeros(1, 1), output_weights=torch.ones(1, 1, 1)), NAN)
    same(received.kurtosis(torch.tensor([[1.0, 1.0, NAN], [0.0, 1.0, NAN]])), [NAN, -2.0])
    p, q = torch.tensor([[NAN, NAN], [0.5, 0.5]]), torch.tensor([[0.5, 0.5], [1.0, 0.0]])
    same(attention.total_variation(p, q), [NAN, 0.5])


def test_each_prompt_has_its_own_span() -> None:
    values, spans = random(2, 3, 4, 5, seed=1), torch.tensor([[T, T, F, F], [F, T, T, T]])
    for formula in (outputs.value_spectral_share, outputs.value_effective_rank):
        together = formula(values, span=spans[:, None])
        for row, span in enumerate(spans):
            same(together[row], formula(values[row], span=span))
    profiles, later = random(2, 4), torch.stack([mask(1, 2, n=4), mask(3, n=4)])
    alone = [collapse.onset_step(profile, span=span) for profile, span in zip(profiles, later, strict=True)]
    same(collapse.onset_step(profiles, span=later), torch.stack(alone))
