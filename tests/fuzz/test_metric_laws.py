"""What every attention metric obeys, whatever the pattern: symmetry of heads, limits, exactness, no edits."""

import numpy as np
import torch
from fuzzing import fuzz
from hypothesis import strategies as st

from mless_interp.prompts.own_ids import pairs_from_ids
from mless_interp.prompts.pairs import PromptPair
from mless_interp.scores import METRICS, HeadScores, score_cache

SIZES = {"n_before": st.integers(1, 8), "n_span": st.integers(1, 9), "n_after": st.integers(4, 10)}


def pair_of(n_before: int, n_span: int, n_after: int) -> PromptPair:
    ids = [*range(n_before), *[99] * n_span, *range(50, 50 + n_after)]
    return pairs_from_ids([ids], [1], span=(n_before, n_before + n_span))[0]


def pattern_of(n: int, n_heads: int, seed: int, heat: float) -> torch.Tensor:
    """`[1, head, token, token]`: softmax of noise, `heat` 0 uniform, large one-hot; float64."""
    noise = torch.randn(1, n_heads, n, n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return (heat * noise).masked_fill(~torch.ones(n, n, dtype=torch.bool).tril(), -torch.inf).softmax(-1)


def scored(pair: PromptPair, pattern: torch.Tensor, base: torch.Tensor) -> HeadScores:
    name = "blocks.0.attn.hook_pattern"
    return score_cache({name: pattern}, pair, base={name: base}, metrics="all")


@fuzz(few=6, share=1.0, seed=st.integers(0, 2**31), heat=st.sampled_from((0.0, 0.1, 1.0, 5.0, 100.0)), **SIZES)
def test_every_metric_obeys_its_laws(seed: int, heat: float, n_before: int, n_span: int, n_after: int) -> None:
    pair, n_heads = pair_of(n_before, n_span, n_after), 3
    pattern = pattern_of(len(pair.inserted), n_heads, seed, heat)
    base = pattern_of(len(pair.base), n_heads, seed + 1, heat)
    kept = pattern.clone(), base.clone()
    found = scored(pair, pattern, base)
    assert torch.equal(pattern, kept[0]) and torch.equal(base, kept[1]), "somebody's tensors were edited"

    order = [2, 0, 1, 0]  # permuted, and one head twice
    again = scored(pair, pattern[:, order], base[:, order])
    for name, conditions in found.values.items():
        for condition, values in conditions.items():
            one, other = values[0, 0], again.values[name][condition][0, 0]
            same = np.allclose(one[order], other, rtol=1e-12, atol=1e-12, equal_nan=True)
            assert same, (name, "depends on its neighbours")
            check_limits(name, one, len(pair.inserted))
    together = found.values["span_mass"]["inserted"] + found.values["lam"]["inserted"]
    assert np.allclose(together, 1, atol=1e-9)
    if heat == 0:
        for name, conditions in found.null.items():
            for condition, null in conditions.items():
                value = found.values[name][condition][0, 0]
                same = np.isclose(value, null[0, 0], rtol=1e-3, atol=1e-4, equal_nan=True)  # made in single precision
                assert same.all(), (name, "uniform attention is its own null")


def check_limits(name: str, values: np.ndarray, n: int) -> None:
    metric = METRICS.get(name) or METRICS[name.removesuffix("_last")]
    assert metric.censored or not np.isinf(values).any(), (name, "is infinite and not said to be")
    defined = values[np.isfinite(values)]
    low, high = {"nats": (0, np.log(n)), "tokens": (0, n)}.get(metric.unit, (-np.inf, np.inf))
    if metric.unit == "share":
        low, high = 0, 1
    if not metric.signed:
        assert ((defined >= low - 1e-9) & (defined <= high + 1e-9)).all(), (name, defined, low, high)
