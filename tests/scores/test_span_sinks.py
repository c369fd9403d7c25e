"""Is the span a sink: against naive sums on every backend, in a model where it was made one."""

from dataclasses import replace
from functools import lru_cache
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from conftest import tiny_model, word_tokenizer
from models_under_test import loaded, pairs_for
from small_results import scored

import mless_interp as mi
from mless_interp.models.load import load_model
from mless_interp.models.sites import site
from mless_interp.scores import SINKS
from mless_interp.scores.score import MASSIVE, OF_SINKS

BEFORE = "inserted"


def test_sink_metrics_are_what_naive_sums_give(tiny_model_dir: Any) -> None:
    model = loaded(tiny_model_dir("llama"), "nnsight")
    pairs = pairs_for(model, n_tokens=7, count=2)
    scores = mi.score_heads(model, pairs, metrics="sinks", progress=False)
    assert scores.metrics and set(scores.metrics) == set(SINKS)
    for at, pair in enumerate(pairs):
        for layer in range(model.info.n_layers):
            names = [site(layer, part) for part in ("hook_resid_pre", "attn.hook_v", "attn.hook_pattern")]
            run = model.run(pair.condition(BEFORE), capture=dict.fromkeys(names), logits_at="none").captured
            residual, values, pattern = (run[name][0].double().numpy() for name in names)
            a, b = pair.span
            inside, outside = range(a, b), [*range(1, a), *range(b, len(pair.inserted))]
            norms = np.array([np.sqrt((row**2).sum()) for row in residual])
            usual = np.median([norms[t] for t in outside])
            cosine = [residual[t] @ residual[0] / norms[t] / norms[0] for t in range(len(norms))]
            expected: dict[str, Any] = {
                "span_residual_norm": np.mean([norms[t] for t in inside]) / usual,
                "span_first_residual_norm": norms[a] / usual,
                "sink_residual_norm": norms[0] / usual,
                "span_sink_cosine": np.mean([cosine[t] for t in inside]),
                "span_first_sink_cosine": cosine[a],
            }
            for name, value in expected.items():
                np.testing.assert_allclose(scores.of(name)[at, layer], value, rtol=1e-4, err_msg=name)
            group = model.info.n_heads // values.shape[1]
            for head in range(model.info.n_heads):
                sizes = np.sqrt((values[:, head // group] ** 2).sum(-1))
                middle = np.median(sizes[outside])
                alpha = [pattern[head, t:, t].mean() for t in range(len(sizes))]
                own = {
                    "span_value_norm": sizes[a:b].mean() / middle,
                    "span_first_value_norm": sizes[a] / middle,
                    "sink_value_norm": sizes[0] / middle,
                    "span_first_alpha": alpha[a],
                    "span_first_alpha_ratio": alpha[a] / np.mean(alpha[a + 1 : b]),
                }
                for name, value in own.items():
                    np.testing.assert_allclose(scores.of(name)[at, layer, head], value, rtol=1e-4, err_msg=name)


@lru_cache
def with_a_sink(scale: float) -> Any:
    """The tiny model, with a slash whose embedding is the first token's, `scale` times as long."""
    tokenizer = word_tokenizer()
    hf_model = tiny_model("llama", tokenizer)
    slash, first = (tokenizer.convert_tokens_to_ids(token) for token in ("/", "<bos>"))
    with torch.no_grad():
        weight = hf_model.get_input_embeddings().weight
        weight[slash] = scale * weight[first]
    return load_model(SimpleNamespace(name="sunk", hf_model=hf_model, tokenizer=tokenizer), backend="bridge")


@pytest.mark.parametrize(("scale", "sunk"), [(30.0, True), (1.0, False)])
def test_a_span_that_was_made_a_sink_is_found_to_be_one(scale: float, sunk: bool) -> None:
    model = with_a_sink(scale)
    scores = mi.score_heads(
        model, pairs_for(model), metrics="sinks", conditions=("inserted",), heads=["L0H1"], progress=False
    )
    np.testing.assert_allclose(scores.of("span_sink_cosine")[:, 0, 1], 1, atol=1e-6)
    counts, known = scores.sinks()
    assert (counts == known * sunk).all() and (scores.of("span_first_residual_norm")[:, 0, 1] >= MASSIVE).all() == sunk


def test_what_is_unknown_of_a_sink_is_not_counted() -> None:
    """A kept explanation has the other cases."""
    plain = scored(12)
    rates = np.zeros((12, 2, 3))
    rates[:9, 1, 0], rates[6:, 1, 0] = 0.2, np.nan
    some = {name: {"inserted": np.full((12, 2, 3), 1.0)} for name in OF_SINKS} | {"span_sink_rate": {"inserted": rates}}
    found = replace(plain, values=some)
    assert "In most problems to 1 of 6 heads." in found.explain()
    assert [each[3] for each in found.sinks()] == [6, 6], "of L1H0"
    nothing = {name: {"inserted": np.full((12, 2, 3), np.nan)} for name in OF_SINKS}
    assert "Undefined for every head." in replace(plain, values=nothing).explain()
