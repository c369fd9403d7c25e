"""Every statistic, every metric that others compute too, and the sweeps, against peers: SciPy, statsmodels, pandas, NumPy,
TransformerLens' own patching. Each formula meets at least 50 inputs: few values and many, ties,
skew, extremes."""

import gc
from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from conftest import needs_hooked_transformer
from formulas_under_test import visible_keys
from models_under_test import loaded, pairs_for
from scipy import integrate, linalg, ndimage, optimize, signal, spatial, special, stats
from statsmodels.stats import contingency_tables, descriptivestats, multitest, proportion, weightstats

from mless_interp import statistics as st
from mless_interp.metrics import activations, attention, collapse, outputs, received
from mless_interp.patching.sweep import patch_heads

SIZES = (2, 3, 5, 9, 21, 64, 150)
KINDS = ("normal", "ties", "skewed", "mostly zero", "huge", "tiny", "far from 0", "one outlier")


def of_every_size(test: Callable[[str, int], None]) -> Callable[[str], None]:
    """A test per kind of numbers, of 2 to 150 of them: 56 inputs."""

    @pytest.mark.parametrize("kind", KINDS)
    def every(kind: str) -> None:
        for n in SIZES:
            test(kind, n)

    return every


def made(kind: str, n: int, *cells: int, seed: int = 0) -> np.ndarray:
    """`n` numbers (per cell) of a kind, never all equal."""
    rng = np.random.default_rng([seed, KINDS.index(kind), n])
    x = rng.normal(size=(n, *cells))
    match kind:
        case "ties":
            x = rng.integers(-2, 4, size=x.shape).astype(float)
        case "skewed":
            x = np.exp(2.5 * x)
        case "mostly zero":
            x = np.where(rng.random(x.shape) < 0.8, 0.0, x)
        case "huge":
            x = x * 1e12
        case "tiny":
            x = x * 1e-12
        case "far from 0":
            x = x + 1e3
        case "one outlier":
            x[0] = 1e4
    x[0] += np.where(np.ptp(x, axis=0) == 0, 1.0, 0.0)
    return x


def draws(n: int = 50) -> Iterator[tuple[int, np.random.Generator]]:
    return ((seed, np.random.default_rng(seed)) for seed in range(n))


def adjusted(p: np.ndarray, method: str) -> np.ndarray:
    """statsmodels' correction, without the garbage collection that it begins with (25 s over this module)."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gc, "collect", lambda *_: 0)
        return np.asarray(multitest.multipletests(p, method=method)[1])


def close(actual: Any, expected: Any, *, rtol: float = 1e-9, atol: float = 0.0, case: object = "") -> None:
    np.testing.assert_allclose(np.asarray(actual), np.asarray(expected), rtol=rtol, atol=atol, err_msg=str(case))


def test_mcnemar_is_that_of_statsmodels() -> None:
    counts = [(b, c) for b in range(9) for c in range(9) if b + c] + [(500, 430), (0, 1000), (33, 20), (1, 300)]
    for b, c in counts:
        peer = contingency_tables.mcnemar([[7, b], [c, 3]], exact=True).pvalue
        close(st.mcnemar(b, c), peer, case=(b, c))


@pytest.mark.parametrize("confidence", [0.5, 0.95, 0.999])
def test_intervals_of_shares_are_those_of_statsmodels(confidence: float) -> None:
    pairs = np.array([(k, n) for n in (1, 2, 5, 20, 500) for k in {0, 1, n // 3, n // 2, n - 1, n}])
    more = np.array([(k, 61) for k in range(0, 62, 2)])
    k, n = np.concatenate([pairs, more]).T
    assert len(k) >= 50
    exact = st.exact_limits(k, n, confidence=confidence)
    score = st.wilson(k, n, confidence=confidence)
    for found, method in ((exact, "beta"), ((score.low, score.high), "wilson")):
        peer = proportion.proportion_confint(k, n, alpha=1 - confidence, method=method)
        close(found, peer, atol=1e-12, case=method)
    close(score.standard_error, stats.bernoulli(k / n).std() / np.sqrt(n), atol=1e-15)


def tango(b: int, c: int, n: int, delta: float) -> float:
    """The score statistic from its definition: the nuisance parameter by numerical maximum likelihood."""

    def loss(q: float) -> float:
        terms = [(b, q), (c, q + delta), (n - b - c, 1 - 2 * q - delta)]
        return -sum(count * np.log(share) for count, share in terms if count)

    bounds = (max(0.0, -delta) + 1e-12, (1 - delta) / 2 - 1e-12)
    q = optimize.minimize_scalar(loss, bounds=bounds, method="bounded", options={"xatol": 1e-12}).x
    return (c - b - n * delta) / np.sqrt(n * (2 * q + delta - delta**2))


def test_paired_differences_have_tango_s_score_interval() -> None:
    rng = np.random.default_rng(0)
    counts = [(2, 12, 50), (3, 0, 30), (7, 3, 40), (1, 1, 10), (20, 33, 500), (0, 0, 8), (0, 4, 60), (0, 49, 60)]
    for n in (6, 15, 60, 300) * 11:
        b = int(rng.integers(0, n // 2))
        counts.append((b, int(rng.integers(0, n - b - 1)), n))
    assert len(counts) > 50
    for b, c, n in counts:
        found = st.paired_difference(b, c, n)
        score = partial(tango, b, c, n)
        ends = [
            optimize.brentq(lambda d, z=z, f=score: f(d) - z, -0.999, 0.999) for z in stats.norm.isf((0.025, 0.975))
        ]
        if contingency_tables.mcnemar([[0, b], [c, 0]], exact=True).pvalue >= 0.05:
            ends = [min(*ends, 0.0), max(*ends, 0.0)]
        close((found.low, found.high), sorted(ends), rtol=0, atol=1e-6, case=(b, c, n))
        d = np.repeat([-1.0, 1.0, 0.0], [b, c, n - b - c])
        close((found.estimate, found.standard_error), (d.mean(), d.std() / n**0.5), atol=1e-15)


def test_pass_at_k_is_the_hypergeometric_chance_of_one_right_draw() -> None:
    for n, k in ((1, 1), (2, 1), (2, 2), (7, 1), (7, 3), (7, 7), (40, 2), (40, 20), (40, 40)):
        c = np.arange(n + 1)
        close(st.pass_at_k(c, n, k=k), stats.hypergeom.sf(0, n, c, k), atol=1e-14, case=(n, k))


def test_corrections_are_those_of_statsmodels() -> None:
    rng = np.random.default_rng(1)
    families = [rng.random(m) ** power for m in (1, 2, 3, 10, 112) for power in (0.2, 1, 4, 30)]
    families += [rng.integers(0, 4, m) / 3 for m in (1, 2, 5, 20, 60)] * 6 + [np.zeros(4), np.ones(7)]
    assert len(families) >= 50
    for p in families:
        close(st.holm(p), adjusted(p, "holm"), atol=1e-15, case=p)
        close(st.benjamini_hochberg(p), adjusted(p, "fdr_bh"), atol=1e-15, case=p)
        holes = np.insert(p, 0, np.nan)
        for adjust in (st.holm, st.benjamini_hochberg):
            close(adjust(holes), np.r_[np.nan, adjust(p)])


@of_every_size
def test_sign_test_is_that_of_statsmodels_where_nothing_is_0_and_keeps_what_is(kind: str, n: int) -> None:
    x = made(kind, n, 3)
    for cell in range(3):
        values = x[:, cell]
        some = values[values != 0]
        if some.size:
            peer = descriptivestats.sign_test(some)[1]
            close(st.sign_test(some), min(1.0, peer))
        most = max((values > 0).sum(), (values < 0).sum())
        kept = stats.binomtest(int(most), n, alternative="greater").pvalue
        close(st.sign_test(values), min(1.0, 2 * kept))


@of_every_size
def test_prevalence_is_a_binomial_test_of_each_cell_and_sense_under_holm(kind: str, n: int) -> None:
    x = made(kind, n, 4)
    delta = float(np.median(np.abs(x)))
    x[-1, 2] = np.nan if n > 2 else x[-1, 2]
    found = st.prevalence_test(x, delta, confidence=0.9)
    p, within = np.empty((2, 4)), np.empty(4)
    for cell in range(4):
        values = x[~np.isnan(x[:, cell]), cell]
        for row, sense in enumerate((1, -1)):
            test = stats.binomtest(int((sense * values > delta).sum()), len(values), alternative="greater")
            p[row, cell] = test.pvalue
            limits = stats.binomtest(test.k, len(values)).proportion_ci(0.9, "exact")
            close((found.low[row, cell], found.high[row, cell]), limits, atol=1e-12)
        if delta > 0:
            inside = int((np.abs(values) < delta).sum())
            within[cell] = stats.binomtest(inside, len(values), alternative="greater").pvalue
    close(found.p, p, rtol=1e-9)
    close(found.p_corrected.ravel(), adjusted(p.ravel(), "holm"))
    if delta > 0:
        found = st.prevalence_test(delta - np.abs(x), 0.0, senses=(1,))
        close(found.p[0], within)
        close(found.p_corrected[0], adjusted(within, "holm"))


@of_every_size
def test_median_intervals_are_those_of_scipy_s_quantile_test(kind: str, n: int) -> None:
    x = made(kind, n, 2)
    for confidence in (0.6, 0.95):
        found = st.median_interval(x, confidence=confidence)
        for cell in range(2):
            peer = stats.quantile_test(x[:, cell], p=0.5).confidence_interval(confidence)
            close((found.low[cell], found.high[cell]), peer)
            close(found.estimate[cell], pd.Series(x[:, cell]).median())


@of_every_size
def test_means_are_those_of_scipy_and_statsmodels(kind: str, n: int) -> None:
    x = made(kind, n)
    peer = weightstats.DescrStatsW(x)
    close(st.defined_mean(np.r_[x, np.nan]), np.nanmean(np.r_[x, np.nan]), rtol=1e-7, atol=1e-25)
    if n < st.FEW_PROBLEMS:
        found = st.mean_interval(x, confidence=0.9)
        close((found.low, found.high), peer.tconfint_mean(alpha=0.1), rtol=1e-7)
        close(found.standard_error, stats.sem(x), rtol=1e-7)


def test_bootstrap_intervals_are_scipy_s_on_the_same_resamples() -> None:
    """Of whole numbers too, whose means are exact where there are 4, 8 or 16: every tie counts as SciPy counts it."""
    kinds = [kind for kind in KINDS if kind not in ("ties", "mostly zero", "one outlier")]
    samples = [made(kind, n) for kind in kinds for n in SIZES if n > 9]
    samples += [rng.integers(-3, 4, (4, 8, 16)[seed % 3]).astype(float) for seed, rng in draws()]
    for x in samples:
        x[0] += np.ptp(x) == 0
        n, options = len(x), {"n_resamples": 300, "seed": len(x), "confidence": 0.8}
        found, rng = st.bootstrap_interval(x, **options), st.derive_generator(n, "bootstrap", n)
        peer = stats.bootstrap((x,), np.mean, n_resamples=300, confidence_level=0.8, method="BCa", rng=rng)
        close((found.low, found.high), peer.confidence_interval, rtol=1e-8, atol=1e-12 * np.abs(x).max())
        close(found.standard_error, stats.sem(x), rtol=1e-6)


@cache
def sign_p(k: int, n: int) -> float:
    return stats.binomtest(k, n).pvalue


def test_a_share_s_limits_end_where_the_sign_test_of_part_minus_share_of_total_just_rejects() -> None:
    for seed, rng in draws(60):
        n = 8 + seed % 30
        size, sign = rng.exponential(size=n) + 0.1, np.where(rng.random(n) < 0.1, -1, 1)
        total = size * sign * float(rng.choice([-1, 1, 1e-6]))
        part = rng.normal() * total + np.abs(total) * rng.normal(size=n)
        found = st.share_of_total(part, total)

        def rejects(share: float, part: np.ndarray = part, total: np.ndarray = total) -> bool:
            above, below = ((sign * (part - share * total) > 0).sum() for sign in (1, -1))
            return sign_p(int(max(above, below)), len(part)) < 0.05

        if np.isnan(found.estimate):
            assert sign_p(int(max((total > 0).sum(), (total < 0).sum())), n) >= 0.05
            continue
        low, high, wide = float(found.low), float(found.high), 1e-9 * float(found.high - found.low)
        assert rejects(low - wide) and rejects(high + wide) and not rejects(low + wide) and not rejects(high - wide)
        outside = np.r_[low - np.logspace(-6, 3, 40), high + np.logspace(-6, 3, 40)]
        assert all(map(rejects, outside)) and not rejects(float(found.estimate)), seed


def test_areas_of_curves_are_those_of_scipy() -> None:
    for _, rng in draws():
        n = int(rng.integers(2, 40))
        sizes, f = np.sort(rng.random(n)), rng.normal(1, 1, (3, n))
        given = torch.tensor(sizes), torch.tensor(f)
        close(outputs.circuit_performance(*given), integrate.trapezoid(f, sizes))
        close(outputs.circuit_distance(*given), integrate.trapezoid(np.abs(1 - f), sizes))


def patterns(count: int = 50) -> Iterator[tuple[int, torch.Tensor, torch.Tensor]]:
    """Causal patterns `[head, dest, src]`, peaked to nearly even, and a span of each."""
    for seed in range(count):
        generator = torch.Generator().manual_seed(seed)
        n = 4 + seed % 13
        scores = torch.randn(2, n, n, generator=generator, dtype=torch.float64) * (0.01, 1, 5, 30)[seed % 4]
        pattern = torch.where(visible_keys(n), scores, -torch.inf).softmax(-1)
        start = 1 + seed % (n - 2)
        yield seed, pattern, (torch.arange(n) >= start) & (torch.arange(n) < start + 1 + seed % 3)


def test_entropies_are_scipy_s() -> None:
    for _, pattern, span in patterns():
        p, n = pattern.numpy(), pattern.shape[-1]
        nats, keys = stats.entropy(p, axis=-1), np.arange(1, n + 1)
        close(attention.attention_entropy(pattern), nats, atol=1e-12)
        close(attention.effective_tokens(pattern), np.exp(nats), rtol=1e-12)
        close(attention.participation(pattern), 1 / (p**2).sum(-1))
        close(attention.normalised_entropy(pattern)[..., 1:], (nats / np.log(keys).clip(1e-9))[..., 1:], atol=1e-12)
        between, beside, within_it = attention.entropy_chain(pattern, span=span)
        inside, outside = p[..., span.numpy()], p[..., ~span.numpy()]
        mass = inside.sum(-1)
        close(between, stats.entropy(np.stack([mass, 1 - mass]).clip(0), axis=0), atol=1e-12)
        rest = (1 - mass) * stats.entropy(outside, axis=-1)
        close(beside, rest, atol=1e-12)
        with np.errstate(invalid="ignore"):
            within = stats.entropy(inside, axis=-1)
            close(within_it, np.where(mass > 0, mass * within, 0), atol=1e-12)
            seen = (np.tril(np.ones((n, n)))[:, span.numpy()]).sum(-1)
            even = np.where((seen > 1) & (mass >= 1e-8), within / np.log(seen.clip(2)), np.nan)
        close(attention.within_span_entropy(pattern, span=span), even, atol=1e-9)
        free = np.delete(p, 0, axis=-1)
        with np.errstate(invalid="ignore"):
            unsunk = np.where(free.sum(-1) >= 1e-6, stats.entropy(free, axis=-1), np.nan)
        close(attention.entropy_without_sink(pattern, sink=torch.arange(n) == 0), unsunk, atol=1e-9)


def test_distances_are_scipy_s() -> None:
    for seed, pattern, span in patterns():
        p, q = pattern[0], pattern[1]
        if seed % 3 == 0:  # one outcome apart
            q = torch.eye(len(q), dtype=q.dtype)
        a, b = p.numpy(), q.numpy()
        jensen = spatial.distance.jensenshannon(a, b, base=2, axis=-1)
        close(attention.jensen_shannon_divergence(p, q).sqrt(), np.nan_to_num(jensen), atol=1e-7)
        close(attention.jensen_shannon_divergence(p, q), np.nan_to_num(jensen) ** 2, atol=1e-12)
        moved = [spatial.distance.cityblock(x, y) / 2 for x, y in zip(a, b, strict=True)]
        close(attention.total_variation(p, q), moved, atol=1e-15)
        close(attention.hellinger(p, q), np.linalg.norm(np.sqrt(a) - np.sqrt(b), axis=-1) / np.sqrt(2), atol=1e-12)
        shared = torch.nonzero(~span)[:, 0]
        kept = a[:, shared.numpy()]
        with np.errstate(invalid="ignore"):
            expected = np.where(kept.sum(-1, keepdims=True) >= 1e-8, kept / kept.sum(-1, keepdims=True), np.nan)
        close(attention.renormalised_rows(p, alignment=shared), expected, rtol=1e-12)


def test_received_attention_is_a_mean_of_columns() -> None:
    for _, pattern, _ in patterns():
        p, n = pattern.numpy(), pattern.shape[-1]
        later, all_rows = (received.received_sums(pattern, diag=diag) for diag in (False, True))
        below = np.where(np.tril(np.ones((n, n)), -1) > 0, p, np.nan)[..., :-1]
        close(received.received_attention(*later, min_rows=1)[..., :-1], np.nanmean(below, axis=-2), atol=1e-15)
        onwards = np.where(np.tril(np.ones((n, n))) > 0, p, np.nan)
        close(received.received_attention(*all_rows, min_rows=1), np.nanmean(onwards, axis=-2), atol=1e-15)


def test_values_of_a_span_are_compared_as_scipy_compares_vectors() -> None:
    for seed, rng in draws():
        n, d = 3 + seed % 9, 1 + seed % 7
        vectors = rng.normal(size=(n, d)) * 10.0 ** rng.integers(-6, 6) + (seed % 2)
        span = np.arange(n) < max(2, n - 2)
        v, inside = torch.tensor(vectors), vectors[span]
        values = linalg.svdvals(inside)
        units = inside / linalg.norm(inside, axis=1, keepdims=True)
        options = {"span": torch.tensor(span)}
        close(outputs.value_cosine(v, **options), 1 - spatial.distance.pdist(inside, "cosine").mean(), atol=1e-9)
        close(outputs.value_spectral_share(v, **options), values[0] ** 2 / (values**2).sum())
        close(outputs.value_effective_rank(v, **options), np.exp(stats.entropy(values)))
        close(outputs.direction_coherence(v[span]), linalg.norm(units.mean(0)), atol=1e-12)


def with_holes(x: np.ndarray, seed: int) -> np.ndarray:
    holes = np.random.default_rng(seed).random(x.shape) < 0.2
    holes[..., :3] = False
    return np.where(holes, np.nan, x)


@pytest.mark.parametrize("kind", KINDS)
def test_spikes_are_those_of_scipy(kind: str) -> None:
    for n in (5, 9, 21, 64, 100, 150, 31):
        base, after = np.abs(made(kind, n, 2)).T
        after = base + after * (0.5 if n % 2 else 3)
        x, y = with_holes(base, n), with_holes(after, n + 1)
        both = ~np.isnan(x) & ~np.isnan(y)
        a, b = x[both], y[both]
        if np.ptp(a) > 0 and np.ptp(b) > 0:
            found = [f(torch.tensor(x), torch.tensor(y)) for f in (collapse.timing_pearson, collapse.timing_spearman)]
            close(found, (stats.pearsonr(a, b).statistic, stats.spearmanr(a, b).statistic), rtol=1e-6, atol=1e-9)
        if a.any():
            (slope,), *_ = np.linalg.lstsq(a[:, None], b, rcond=None)
            close(collapse.attenuation_slope(torch.tensor(x), torch.tensor(y)), slope)
            explained = 1 - ((b - slope * a) ** 2).sum() / (b**2).sum()
            close(collapse.attenuation_r_squared(torch.tensor(x), torch.tensor(y)), explained, rtol=1e-6, atol=1e-9)
        known = np.flatnonzero(~np.isnan(x))
        bar = 1.4826 * stats.median_abs_deviation(x[known])
        _, peaks = signal.find_peaks(x[known], prominence=bar, plateau_size=1)
        marked = collapse.spike_peaks(torch.tensor(x))
        assert marked.nonzero()[:, 0].tolist() == known[peaks["left_edges"]].tolist()
        at = known[peaks["left_edges"]]
        left = (y / np.where(x > 0, x, np.nan))[at]
        if (~np.isnan(left)).any():
            close(collapse.peak_attenuation(torch.tensor(x), torch.tensor(y), peaks=marked), np.nanmean(left))


@pytest.mark.parametrize("kind", KINDS)
def test_levels_of_profiles_are_those_of_scipy_and_pandas(kind: str) -> None:
    for n in (9, 21, 64, 100, 150, 31, 12):
        x = with_holes(np.abs(made(kind, n)), n)
        rolled = pd.Series(x).rolling(5, center=True, min_periods=1).median().to_numpy()
        found = collapse.running_median(torch.tensor(x)).numpy()
        close(found[2:-2], rolled[2:-2])
        close(found[[0, -1]], x[[0, -1]])
        whole = collapse.running_median(torch.tensor(np.nan_to_num(x)), width=3)
        close(whole[1:-1], ndimage.median_filter(np.nan_to_num(x), 3)[1:-1])
        span = np.arange(n) % 3 != 0
        inside = x[span & ~np.isnan(x)]
        if inside.mean() > 1e-12:
            close(collapse.span_variation(torch.tensor(x), span=torch.tensor(span)), stats.variation(inside), rtol=1e-7)
        known = x[~np.isnan(x)]
        if np.ptp(known) > 0:
            close(received.kurtosis(torch.tensor(x)), stats.kurtosis(known), rtol=1e-6, atol=1e-9)


def test_time_constants_are_those_of_scipy_s_least_squares() -> None:
    curve = lambda t, end, drop, tau: end - drop * np.exp(-t / tau)  # noqa: E731
    for seed, rng in draws():
        n, tau = int(rng.integers(12, 60)), float(rng.uniform(1, 5))
        t = np.arange(n)
        y = curve(t, 0.3, 0.2, tau) + 0.002 * rng.normal(size=n)
        found = collapse.recovery_time_constant(torch.tensor(y))
        fitted, _ = optimize.curve_fit(curve, t, y, p0=(0.3, 0.2, tau))
        close(found, fitted[2], rtol=2e-3, case=seed)


@of_every_size
def test_distributions_of_activations_are_those_of_scipy_and_numpy(kind: str, n: int) -> None:
    a, b = made(kind, n, 2).T
    x, y = torch.tensor(a), torch.tensor(b)
    close((activations.l1_norm(x), activations.l2_norm(x)), (linalg.norm(a, 1), linalg.norm(a)))
    close((activations.mean_absolute(x), activations.root_mean_square(x)), (np.abs(a).mean(), np.sqrt((a**2).mean())))
    for q in (0.0, 0.013, 0.5, 0.95, 1.0):
        close(activations.quantile(x, q=q), np.quantile(a, q), rtol=1e-9, atol=1e-18)
    size = np.abs(a)
    differences = np.abs(size[:, None] - size).mean()
    close(activations.gini(x), differences / (2 * size.mean()), rtol=1e-9, atol=1e-12)
    close(activations.wasserstein(x, y), stats.wasserstein_distance(a, b), rtol=1e-7)
    shorter = b[: max(1, n - 3)]
    peer = stats.ks_2samp(a, shorter, method="asymp").statistic
    close(activations.kolmogorov_smirnov(x, torch.tensor(shorter)), peer, atol=1e-12)
    edges = np.linspace(a.min(), a.max() + 1e-15 + abs(a.max()) * 1e-9, 8)
    counts = np.histogram(a, edges)[0]
    close(activations.histogram(x, edges=torch.tensor(edges)), counts)
    share = np.abs(counts[:, None] - counts).mean() / (2 * counts.mean())
    close(activations.gini(activations.histogram(x, edges=torch.tensor(edges))), share, atol=1e-12)
    close(received.kurtosis(x), stats.kurtosis(a), rtol=1e-6, atol=1e-9)
    several = made(kind, n, 5)
    close(activations.median_variance(torch.tensor(several)), np.median(several.var(0, ddof=1)), rtol=1e-7)
    if n % 2:  # both medians are middle values
        width = np.maximum(stats.median_abs_deviation(size), 1e-12) * 1.4826 * 0.2
        close(activations.arm_threshold(x, c=0.2), width)
        signed = np.maximum(stats.median_abs_deviation(a), 1e-12) * 1.4826 * 0.2
        close(activations.arm_threshold(x, c=0.2, absolute=False), signed)
        close(activations.near_zero_fraction(y, threshold=float(width)), (np.abs(b) < width).mean())


def test_outcomes_are_those_of_scipy() -> None:
    for seed, rng in draws():
        batch, read, vocabulary = 1 + seed % 3, 1 + seed % 4, 2 + seed % 30
        a, b = rng.normal(size=(2, batch, read, vocabulary)) * (0.1, 1, 10, 300)[seed % 4]
        answer = rng.integers(0, vocabulary, read)
        log_p, log_q = special.log_softmax(a, axis=-1), special.log_softmax(b, axis=-1)
        picked = log_p[:, np.arange(read), answer]
        given = (torch.tensor(a), torch.tensor(answer))
        close(outputs.answer_logprob(*given), picked.sum(-1), atol=1e-12)
        close(outputs.mean_logprob(*given), picked.mean(-1), atol=1e-12)
        close(outputs.answer_probability(*given), np.exp(picked.mean(-1)))
        right, wrong = rng.integers(0, vocabulary, 2).tolist()
        close(outputs.logit_difference(given[0], right, wrong), a[:, -1, right] - a[:, -1, wrong])
        with np.errstate(divide="ignore", invalid="ignore"):
            kl = stats.entropy(np.exp(log_q), np.exp(log_p), axis=-1).mean(-1)
        finite = np.isfinite(kl)
        close(outputs.kl_divergence(given[0], torch.tensor(b))[finite], kl[finite], rtol=1e-6, atol=1e-12)


def test_affine_maps_are_numpy_s_least_squares() -> None:
    for seed, rng in draws():
        rows, d = 2 + seed % 8, 1 + seed % 5
        z, noise = rng.normal(size=(2, rows, d)) * 10.0 ** rng.integers(-5, 5)
        after = rng.normal() * z + rng.normal(size=d) + (seed % 3) * noise
        slope, offset, r2 = outputs.affine_fit(torch.tensor(z), torch.tensor(after))
        design = np.concatenate([z.reshape(-1, 1), np.tile(np.eye(d), (rows, 1))], 1)  # one slope, an offset each
        best, *_ = np.linalg.lstsq(design, after.ravel(), rcond=None)
        wrong = ((after.ravel() - design @ best) ** 2).sum() / ((after - after.mean(0)) ** 2).sum()
        scale = np.abs(after).max()
        close(slope, best[0], rtol=1e-6, atol=1e-9)
        close(offset, best[1:], rtol=1e-6, atol=1e-8 * scale)
        close(r2, 1 - wrong, rtol=1e-6, atol=1e-8)


def test_residual_shares_are_those_of_numpy() -> None:
    for seed, rng in draws():
        heads, rows, d, width = 1 + seed % 4, 1 + seed % 5, 3, 6
        parts, weights = rng.normal(size=(heads, rows, d)), rng.normal(size=(heads, d, width))
        wrote = parts @ weights
        change = wrote.sum(0)
        shares = [np.vdot(part, change) / np.vdot(change, change) for part in wrote]
        given = {"output_weights": torch.tensor(weights)}
        close(outputs.residual_share(torch.tensor(parts), torch.tensor(change), **given), shares)
        rest, size = wrote[0], np.linalg.norm(change)
        close(outputs.affine_residual(torch.tensor(rest), torch.tensor(change)), np.linalg.norm(rest) / size)


@needs_hooked_transformer
@pytest.mark.parametrize("architecture", ["qwen2", "gemma3"])
def test_z_sweeps_are_transformer_lens_patching(architecture: str, tiny_model_dir: Any) -> None:
    from transformer_lens import patching

    model = loaded(tiny_model_dir(architecture), "hooked_transformer")
    bare = pairs_for(model, count=1)
    pair, hooked = bare[0].answered(), model.underlying
    masked, inserted = pair.condition("masked"), pair.condition("inserted")
    masks = model.position_hooks(masked, model.visible(masked))
    read, answer = len(pair.inserted) - 2, pair.answer_ids[0]
    metric = lambda found: torch.log_softmax(found[0, read].float(), -1)[answer]  # noqa: E731
    sweep = patching.get_act_patch_attn_head_out_all_pos
    with torch.no_grad():
        _, corrupted = hooked.run_with_cache(inserted.tokens)
        with hooked.hooks(fwd_hooks=masks):
            _, clean = hooked.run_with_cache(masked.tokens)
            noised = sweep(hooked, masked.tokens, corrupted, metric)
    theirs = {"denoising": sweep(hooked, inserted.tokens, clean, metric), "noising": noised}
    for direction, found in theirs.items():
        ours = patch_heads(model, bare, direction=direction, progress=False).patched[0]
        close(ours, found.detach(), rtol=0, atol=1e-5)
