"""What every metric obeys: leading axes, half precision, devices, blocks of rows, probabilities only, masks named."""

import inspect
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch
from formulas_under_test import NAN, mask, random, random_pattern, same, visible_keys

from mless_interp.metrics import activations, attention, collapse, outputs, patterns, received

N = 12
SPAN, BEFORE, AFTER = mask(4, 5, 6, 7, n=N), mask(0, 1, 2, 3, n=N), mask(8, 9, 10, 11, n=N)
FIRST_TOKEN = mask(0, n=N)
FRACTIONS = torch.linspace(0, 1, N, dtype=torch.float64)
EDGES = torch.linspace(-3, 3, 7, dtype=torch.float64)
ANSWER = torch.tensor([0, 1])

Tensors = dict[str, torch.Tensor]


def public(*modules: ModuleType) -> list[Callable]:
    """The metrics of modules, without what mutation testing adds."""
    return [
        each
        for module in modules
        for name, each in inspect.getmembers(module, inspect.isfunction)
        if each.__module__ == module.__name__ and not name.startswith(("_", "x_"))
    ]


def parameters(metric: Callable) -> list[inspect.Parameter]:
    return list(inspect.signature(metric).parameters.values())


GIVEN: dict[str, Any] = {"span": SPAN, "tokens": AFTER, "before": BEFORE, "after": AFTER, "reference": BEFORE}
GIVEN |= {"others": AFTER, "sink": FIRST_TOKEN, "c": 0.3, "q": 0.3, "edges": EDGES}
OF_VECTORS = {
    *("median_variance", "relative_norms", "cosines_to_sink", "affine_residual"),
    *("value_cosine", "value_spectral_share", "value_effective_rank"),
}


def of_profiles(metric: Callable) -> Callable[..., torch.Tensor]:
    """The metric of profiles or vectors, with the masks and numbers that it needs."""
    options = {
        each.name: GIVEN[each.name]
        for each in parameters(metric)
        if each.kind is each.KEYWORD_ONLY and each.default is each.empty
    }
    names = [each.name for each in parameters(metric) if each.kind is not each.KEYWORD_ONLY]
    masks = [SPAN for name in names if name in ("span", "tokens", "segment")]

    def compute(x: torch.Tensor, y: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        given = (v, v.flip(-1)) if metric.__name__ in OF_VECTORS else (x, y)
        return metric(*given[: len(names) - len(masks)], *masks, **options)

    return compute


SPECIAL: dict[str, Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "recovery_latency": lambda x, y, v: collapse.recovery_latency(x, y, width=2),
    "recovery_time_constant": lambda x, y, v: collapse.recovery_time_constant(x, min_r_squared=0.0),
    "spike_peaks": lambda x, y, v: collapse.spike_peaks(x).to(patterns.widened(x).dtype),
    "matched_peaks_f1": lambda x, y, v: collapse.matched_peaks_f1(x > 1, y > 1).to(x),
    "peak_attenuation": lambda x, y, v: collapse.peak_attenuation(x, y, peaks=collapse.spike_peaks(x)),
    "circuit_performance": lambda x, y, v: outputs.circuit_performance(FRACTIONS.to(patterns.widened(x)), x),
    "circuit_distance": lambda x, y, v: outputs.circuit_distance(FRACTIONS.to(patterns.widened(x)), x),
    "arm_threshold_signed": lambda x, y, v: activations.arm_threshold(x, c=0.3, absolute=False),
    "near_zero_fraction": lambda x, y, v: activations.near_zero_fraction(x, threshold=activations.quantile(y, q=0.4)),
    "direction_coherence": lambda x, y, v: outputs.direction_coherence(v),
    "affine_fit": lambda x, y, v: outputs.affine_fit(v, v.flip(-2))[2],
    "affine_parts": lambda x, y, v: outputs.affine_parts(v, v + 1, lam=x, sigma=v.flip(-1), matched=2 * v)["rest"],
}
OF_OTHERS = {"pattern", "logits", "gram", "sums", "parts"}
OF_PROFILES = {
    each.__name__: of_profiles(each)
    for each in [*public(activations, outputs, received, collapse), patterns.segment_mean]
    if each.__name__ not in SPECIAL and parameters(each)[0].name not in OF_OTHERS
} | SPECIAL
"""Metrics of profiles `x`, `y` `[*lead, token]` and vectors `v` `[*lead, token, d]`."""


def takes(parameter: str) -> list[Callable]:
    """The metrics whose first parameter has this name."""
    every = public(activations, attention, outputs, patterns, received, collapse)
    return [each for each in every if parameter in [first.name for first in parameters(each)[:1]]]


NO_PROBABILITIES_NEEDED = {"renormalised_rows", "prepared", "with_sink_key"}
OF_A_PATTERN = [each for each in takes("pattern") if each.__name__ not in NO_PROBABILITIES_NEEDED]


def asked(metric: Callable, given: Tensors) -> Tensors:
    """What a metric needs beside the pattern."""
    needed = [each.name for each in parameters(metric)[1:] if each.default is each.empty]
    return {name: given[name] for name in needed if name in given}


OF_PATTERNS: dict[str, Callable[..., torch.Tensor]] = {
    each.__name__: lambda p, v, m, each=each: each(p, **asked(each, m), **v)
    for each in OF_A_PATTERN
    if each.__module__ == attention.__name__
} | {
    "entropy_chain": lambda p, v, m: torch.stack(attention.entropy_chain(p, span=m["span"], **v), -2),
    "span_log_odds": lambda p, v, m: attention.span_log_odds(p, span=m["span"], **v),
    "log_density_ratio_no_sink": lambda p, v, m: attention.log_density_ratio(p, span=m["span"], sink=m["sink"], **v),
    "span_output": lambda p, v, m: outputs.span_output(p, m["values"], span=m["span"], **v).movedim(-1, -2),
    "span_output_weight": lambda p, v, m: outputs.span_output_weight(
        p, m["values"], span=m["span"], output_weights=m["weights"], **v
    ),
}
"""Metrics of each row of a pattern `p`, with its visible keys `v` and masks, values and output weights `m`; rows last."""

OF_COLUMNS: dict[str, Callable[..., torch.Tensor]] = {
    "received": lambda p, v, m: received.received_attention(
        *received.received_sums(p, rows=m["rows"], **v), min_rows=1
    ),
    "received_no_sink": lambda p, v, m: received.received_attention(
        *received.received_sums(p, sink=m["sink"], **v), min_rows=1
    ),
}

PROFILE, OTHER, VECTORS = random(2, 3, N).abs(), random(2, 3, N, seed=1).abs(), random(2, 3, N, 4)

REAL = torch.arange(9) >= torch.tensor([[0], [2]])
VISIBLE = visible_keys(9, window=5, real=REAL)[:, None]
PATTERN = random_pattern(2, 3, visible=VISIBLE)
MASKS = {
    "span": ((torch.arange(9) >= 3) & (torch.arange(9) < torch.tensor([[6], [7]])))[:, None],
    "sink": (torch.arange(9) == torch.tensor([[0], [2]]))[:, None],
    "rows": (torch.arange(9) >= torch.tensor([[6], [7]]))[:, None],
    "values": random(2, 3, 9, 4, seed=1),
    "weights": random(2, 3, 4, 5, seed=2),
}


def made_elsewhere_by_default(expected: torch.Tensor, compute: Callable[[], torch.Tensor]) -> None:
    """What a metric makes on the way lies where its inputs lie, whatever the default device: it gives the same here."""
    with torch.device("meta"):
        found = compute()
    torch.testing.assert_close(found, expected, equal_nan=True, rtol=0, atol=0)


@pytest.mark.parametrize("name", OF_PROFILES)
def test_metrics_of_profiles_reduce_their_own_axis_edit_nothing_and_widen_half_precision(name: str) -> None:
    metric, given = OF_PROFILES[name], (PROFILE.clone(), OTHER.clone(), VECTORS.clone())
    together = metric(*given)
    assert together.dtype == torch.float64 and together.shape[:2] == (2, 3)
    assert all(x.equal(kept) for x, kept in zip(given, (PROFILE, OTHER, VECTORS), strict=True))
    made_elsewhere_by_default(together, lambda: metric(*given))
    for i in range(2):
        for j in range(3):
            same(together[i, j], metric(PROFILE[i, j], OTHER[i, j], VECTORS[i, j]))
    for dtype in (torch.float16, torch.bfloat16):
        halves = [x.to(dtype) for x in given]
        if name != "matched_peaks_f1":
            assert metric(*halves).dtype == torch.float32
            same(metric(*halves), metric(*[x.float() for x in halves]))


@pytest.mark.parametrize("name", OF_PATTERNS | OF_COLUMNS)
def test_metrics_of_patterns_give_each_prompt_what_it_has_alone(name: str) -> None:
    """Padding, a window and a span differ between the prompts; rows that see nothing are undefined."""
    metric, kept = (OF_PATTERNS | OF_COLUMNS)[name], PATTERN.clone()
    together = metric(PATTERN, {"visible": VISIBLE}, MASKS)
    assert kept.equal(PATTERN) and together[1, :, ..., :2].isnan().all()
    made_elsewhere_by_default(together, lambda: metric(PATTERN, {"visible": VISIBLE}, MASKS))
    for i in range(2):
        for j in range(3):
            alone = {key: x[i, j if x.shape[1] == 3 else 0] for key, x in MASKS.items()}
            same(together[i, j], metric(PATTERN[i, j], {"visible": VISIBLE[i, 0]}, alone))


@pytest.mark.parametrize("name", OF_PATTERNS)
def test_blocks_of_rows_concatenate_to_the_whole(name: str) -> None:
    metric, masks = OF_PATTERNS[name], {key: x[0, :1] for key, x in MASKS.items()}
    pattern, visible = PATTERN[0, :1], VISIBLE[0]
    blocks = [
        metric(pattern[..., rows, :], {"visible": visible[..., rows, :]}, masks) for rows in torch.arange(9).split(4)
    ]
    same(torch.cat(blocks, -1), metric(pattern, {"visible": visible}, masks))
    causal, visible = random_pattern(1, visible=visible_keys(9)), visible_keys(9)
    blocks = [metric(causal[..., rows, :], {"visible": visible[rows]}, masks) for rows in torch.arange(9).split(2)]
    same(torch.cat(blocks, -1), metric(causal, {}, masks))


@pytest.mark.parametrize(("window", "padding"), [(None, 0), (4, 0), (None, 2), (4, 2)])
def test_uniform_attention_prefers_nothing(window: int | None, padding: int) -> None:
    at = torch.arange(14)
    visible = visible_keys(14, window=window, real=at >= padding)
    pattern = patterns.uniform_pattern(visible, dtype=torch.float64)
    span, sink = (at >= 5) & (at < 8), at == padding
    density = attention.log_density_ratio(pattern, span=span, sink=sink, visible=visible)
    assert (~density.isnan()).sum() >= 5
    same(density[~density.isnan()], 0.0)
    keys = torch.where(visible.any(-1), visible.sum(-1).double(), NAN)
    same(attention.span_mass(pattern, span=span, visible=visible), (visible & span).sum(-1) / keys)
    for metric in (attention.effective_tokens, attention.participation):
        same(metric(pattern, visible=visible), keys)
    full = attention.normalised_entropy(pattern, visible=visible)
    same(full, torch.where(keys > 1, 1.0, NAN))
    for rows, left_out in ((at >= 0, None), (~span, sink), (at >= 8, sink)):
        options = {"rows": rows, "sink": left_out}
        sums, counts = received.received_sums(pattern, visible=visible, **options)
        parts = [
            received.received_sums(pattern[part], visible=visible[part], first=int(part[0]), **options)
            for part in torch.arange(14).split(5)
        ]
        same(sum(part[0] for part in parts), sums)
        assert sum(part[1] for part in parts).equal(counts)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_outcomes_and_shares_of_half_precision_are_computed_in_float32(dtype: torch.dtype) -> None:
    found, rows = random(2, 2, 5).to(dtype), VECTORS[0, 0].to(dtype)
    for value in (
        outputs.answer_logprob(found, ANSWER),
        outputs.mean_logprob(found, ANSWER),
        outputs.answer_probability(found, ANSWER),
        outputs.logit_difference(found, 1, 2),
        outputs.kl_divergence(found, found.flip(0)),
        outputs.residual_share(rows[None], rows, output_weights=torch.ones(1, 4, 4, dtype=dtype)),
        attention.span_log_odds(torch.zeros(4, 4, dtype=dtype), span=mask(1, n=4)),
    ):
        assert value.dtype == torch.float32
    same(outputs.answer_logprob(torch.full((1, 1, 2), 6e4, dtype=torch.float16), ANSWER[:1]), -0.6931472)
    p, q = (3 * random(2, 40)).softmax(-1).to(dtype)
    for distance in (attention.total_variation, attention.hellinger, attention.jensen_shannon_divergence):
        exact = distance(p.double() / p.double().sum(), q.double() / q.double().sum())
        same(distance(p, q), exact.float(), atol=1e-6, rtol=0)


GOOD = torch.tensor([[1.0, 0.0, 0.0], [0.6, 0.4, 0.0], [0.5, 0.3, 0.2]])
WRONG = {
    "negative": [0.9, -0.3, 0.4],
    "too little": [0.5, 0.3, 0.1],
    "too much": [0.5, 0.5, 0.5],
    "one NaN": [NAN, 0.5, 0.5],
    "infinite": [float("inf"), 0.5, 0.5],
}
NEEDED = {"span": mask(1, n=3), "sink": mask(0, n=3), "values": torch.eye(3)}


def test_every_row_that_is_no_probability_is_refused_by_every_metric() -> None:
    assert len(OF_A_PATTERN) >= 12 and len(takes("p")) == 3
    for kind, row in WRONG.items():
        for metric in OF_A_PATTERN:
            metric(GOOD, **asked(metric, NEEDED))
            with pytest.raises(ValueError, match=r"sum to 1 .* row \[2\]"):
                metric(torch.cat([GOOD[:2], torch.tensor([row])]), **asked(metric, NEEDED))
        for distance in takes("p"):
            for pair in ((GOOD[2], torch.tensor(row)), (torch.tensor(row), GOOD[2])):
                with pytest.raises(ValueError, match="must hold probabilities and sum to 1"):
                    distance(*pair)
        if kind != "too little":
            with pytest.raises(ValueError, match=r"sum to 1 at most .* row \[2\]"):
                patterns.with_sink_key(torch.cat([GOOD[:2], torch.tensor([row])]))
    assert patterns.with_sink_key(GOOD / 2)[0][:, -1].tolist() == [0.5] * 3


def test_rounding_is_allowed_up_to_its_limit() -> None:
    for dtype, tolerance in patterns.ROW_SUM_TOLERANCE.items():
        wide = dtype if dtype in (torch.float32, torch.float64) else torch.float32
        entry = torch.tensor(-tolerance, dtype=dtype).to(wide).item()
        if entry < -tolerance:  # the nearest number beyond it
            entry = torch.nextafter(torch.tensor(-tolerance, dtype=dtype), torch.tensor(0.0, dtype=dtype)).item()
        seen = {"visible": torch.ones(1, 2, dtype=torch.bool)}
        allowed = patterns.prepared(torch.tensor([[1 - entry, entry]], dtype=dtype), **seen)[0]
        assert allowed[0, 1] == 0, dtype
        with pytest.raises(ValueError, match=r"row \[0\] sums to .* with a least entry of -"):
            patterns.prepared(torch.tensor([[1 - 1.1 * entry, 1.1 * entry]], dtype=dtype), **seen)
    ends = torch.tensor([1 + 9e-6, 0.0], dtype=torch.float64)  # rows may be so much too large, a distance may not
    assert attention.jensen_shannon_divergence(ends, ends.flip(0)) == 1.0
    nothing_left = attention.renormalised_rows(torch.tensor([[0.0, 1.0, 0.0]]), alignment=torch.tensor([0, 2]))
    for metric in takes("p"):
        assert metric(nothing_left, torch.tensor([[0.5, 0.5]])).isnan().all()
