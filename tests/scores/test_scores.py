"""Head scores: test vectors by hand, formulas on whole patterns as oracle, laws, planted heads, messages."""

from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import BACKENDS, ONE_OF_EACH
from formulas_under_test import A0, A1
from models_under_test import loaded, pairs_for
from small_results import scored
from transformers import AutoModelForCausalLM, AutoTokenizer

import mless_interp as mi
from mless_interp.core.heads import Head
from mless_interp.metrics import attention, outputs, patterns, received
from mless_interp.metrics import collapse as profiles
from mless_interp.models.base import Model
from mless_interp.models.sites import site
from mless_interp.prompts.pairs import PromptPair
from mless_interp.runtime.base_result import of_heads
from mless_interp.scores import HeadScores, score_cache, score_heads, streaming

NAME = site(0, "attn.hook_pattern")
LEAN = {"recovery_tau": 0.05} | dict.fromkeys(
    ("effective_tokens", "participation", "kurtosis", "recovery_fraction"), 1e-3
)
"""Tolerances of numbers that are tens of tokens, fourth powers or quotients of differences; 1e-5 for the rest."""


def hand_pair() -> PromptPair:
    """Methods section 13: P = {0}, Q = {1, 2}; the span is {1, 2} of five tokens."""
    return mi.pairs_from_ids([[5, 9, 9, 6, 7]], [1], span=(1, 3))[0]


def cache_of(pattern: torch.Tensor) -> dict[str, torch.Tensor]:
    return {NAME: pattern[None, None]}


def close(one: HeadScores, other: HeadScores) -> None:
    """The same metrics, conditions, undefined cells and, to 1e-5 or `LEAN`, values."""
    assert one.values.keys() == other.values.keys()
    for metric, found in one.values.items():
        assert found.keys() == other.values[metric].keys()
        for condition, values in found.items():
            tolerance = LEAN.get(metric.removesuffix("_last"), 1e-5)
            np.testing.assert_allclose(
                values, other.values[metric][condition], rtol=tolerance, atol=tolerance, err_msg=f"{metric} {condition}"
            )


def captured(model: Model, pair: PromptPair, condition: str, part: str) -> list[torch.Tensor]:
    """What a hook holds in every layer, of one prompt."""
    names = [site(layer, part) for layer in range(model.info.n_layers)]
    run = model.run(pair.condition(condition), capture=dict.fromkeys(names), logits_at="none")
    return [run.captured[name][0] for name in names]


def test_the_methods_vectors_come_out_of_a_cache() -> None:
    expected = {
        "span_mass": (0.2 + 0.5) / 2,
        "lam": 0.65,
        "span_mass_last": 0.5,
        "lam_last": 0.5,
        "log_density_ratio_last": np.log(0.25 / 0.125),  # without the sink: tokens 3 and 4 get .15 and .10
        "entropy_last": 1.554547,
        "effective_tokens_last": 4.732943,
        "participation_last": 4.545455,
        "normalised_entropy_last": 0.965895,
        "retention": (0.365 + 0.15) / (0.55 + 0.3),
        "recovery_aligned": 0.15 / 0.3,
        "spike_slope": 0.626115,
        "sink_alpha": (1 + 0.7 + 0.6 + 0.48 + 0.25) / 5,
        "span_received": 0.175,
    }
    options: dict[str, Any] = {"base": cache_of(A0), "metrics": list(expected), "exclude_sink": False, "min_rows": 1}
    scores = score_cache(cache_of(A1), hand_pair(), **options)
    for metric, value in expected.items():
        assert scores.of(metric, "inserted")[0, 0, 0] == pytest.approx(value, abs=1e-6), metric
    assert scores.of("sink_alpha", "base")[0, 0, 0] == pytest.approx(0.7)
    assert scores.of("entropy_last", "base")[0, 0, 0] == pytest.approx(1.029653, abs=1e-6)
    assert scores.null["span_mass"]["inserted"][0, 0] == pytest.approx((2 / 4 + 2 / 5) / 2)
    lean = score_cache(cache_of(A1 * 0.5), hand_pair(), sinks=True, metrics="span_mass_last")
    assert lean.of("span_mass_last").item() == pytest.approx(0.25), "a learned sink has the rest"
    assert lean.null["span_mass_last"]["inserted"].item() == pytest.approx(2 / 6)
    assert list(scores.values["span_mass"]) == ["inserted"], "there is no span to have a mass without the insertion"


@pytest.mark.parametrize(("architecture", "backend"), ONE_OF_EACH)
def test_streamed_metrics_equal_the_formulas_on_whole_patterns(backend: str, model: Model) -> None:
    (pair,) = pairs_for(model, count=1)
    span, n = pair.span_mask, len(pair.inserted)
    question, sink = torch.arange(n) >= pair.span[1], torch.arange(n) == 0
    before = (torch.arange(n) < pair.span[0]) & ~sink
    mean = lambda values: patterns.segment_mean(values, question)  # noqa: E731
    runs = ("inserted", "base")
    visible = {name: [mask[0] for mask in model.visible(pair.condition(name).to("cpu"))] for name in runs}
    whole, base = (captured(model, pair, name, "attn.hook_pattern") for name in runs)
    group = model.info.n_heads // model.info.n_key_value_heads
    expected: dict[str, list[torch.Tensor]] = defaultdict(list)
    for layer, (pattern, values) in enumerate(
        zip(whole, captured(model, pair, "inserted", "attn.hook_v"), strict=True)
    ):
        seen = {"visible": visible["inserted"][layer]}
        found = {
            "span_mass": mean(attention.span_mass(pattern, span=span, **seen)),
            "lam_last": attention.retained_mass(pattern, span=span, **seen)[:, -1],
            "within_span_entropy": mean(attention.within_span_entropy(pattern, span=span, **seen)),
            "entropy": mean(attention.attention_entropy(pattern, **seen)),
        }
        of_group = values.repeat_interleave(group, 1).transpose(0, 1)
        weights = model.attention_output(layer).weights
        found["span_output_weight"] = mean(
            outputs.span_output_weight(pattern, of_group, span=span, output_weights=weights)
        )
        r = received.received_attention(*received.received_sums(pattern, rows=~span, sink=sink, **seen))
        uniform = patterns.uniform_pattern(seen["visible"])
        null = received.received_attention(*received.received_sums(uniform, rows=~span, sink=sink, **seen))
        rho = received.relative_received(r, null.expand_as(r))
        found["collapse_relative"] = profiles.span_collapse(rho, span=span, reference=before)
        found["onset_step"] = profiles.onset_step(rho, span=span)
        seen = {"visible": visible["base"][layer], "sink": sink[: len(pair.base)]}
        r0 = received.received_attention(*received.received_sums(base[layer], **seen))
        tokens = torch.ones(len(pair.base), dtype=torch.bool)
        found["retention"] = profiles.aligned_recovery(r0, r[:, pair.shared], tokens=tokens)
        for name, values_ in found.items():
            expected[name].append(values_)
    scores = score_heads(model, [pair], metrics="all", progress=False)
    for name, layers in expected.items():
        near = 1e-4 if name in ("collapse_relative", "onset_step") else 1e-5
        np.testing.assert_allclose(scores.of(name)[0], torch.stack(layers), rtol=near, atol=near, err_msg=name)
    close(score_heads(model, [pair], metrics="all", source="recomputed", progress=False), scores)


@pytest.mark.parametrize("backend", BACKENDS[:2])
def test_a_users_cache_gives_what_the_model_gives(backend: str, tiny_model_dir: Any) -> None:
    model = loaded(tiny_model_dir("gemma3"), backend)
    (pair,) = pairs_for(model, count=1)
    run = model.underlying.run_with_cache
    wanted = {"names_filter": lambda name: name.endswith("hook_pattern")}
    caches = [run(prompt.tokens, **wanted)[1] for prompt in (pair.inserted, pair.base)]
    mine = score_cache(caches[0], pair, base=caches[1], windows=model.info.windows)
    close(mine, score_heads(model, [pair], progress=False))
    assert mine.problem_ids == (pair.id,) and mine.heads == model.info.heads


@pytest.mark.parametrize("source", ["pattern", "recomputed"])
def test_the_size_of_blocks_does_not_matter(source: Any, tiny_model_dir: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    model = loaded(tiny_model_dir("gemma3"), "bridge")
    pairs = pairs_for(model, count=1)
    whole = score_heads(model, pairs, metrics="all", source=source, progress=False)
    monkeypatch.setattr(streaming, "BLOCK_ELEMENTS", 2000)
    monkeypatch.setattr(streaming, "recomputed_blocks" if source == "pattern" else "pattern_blocks", None)  # the other
    close(score_heads(model, pairs, metrics="all", source=source, progress=False), whole)


DENSITIES = ["log_density_ratio", "log_density_ratio_last"]


@pytest.fixture(scope="session")
def steep_model_dir(tiny_model_dir: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose keys with large scores leave others a probability of 0 in float32."""
    folder = tmp_path_factory.mktemp("steep")
    model = AutoModelForCausalLM.from_pretrained(tiny_model_dir("llama"))
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "q_proj" in name:
                weight.mul_(60)
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(tiny_model_dir("llama")).save_pretrained(folder)
    return folder


@pytest.mark.parametrize(("backend", "source"), [("bridge", "pattern"), ("nnsight", "recomputed")])
def test_densities_are_finite_where_probabilities_underflow(backend: str, source: Any, steep_model_dir: Path) -> None:
    model, wide = loaded(steep_model_dir, backend), loaded(steep_model_dir, "nnsight", "float64", "sdpa")
    pairs, names = pairs_for(model), DENSITIES
    exact = score_heads(wide, pairs, metrics=names, progress=False)
    lowest = exact.of(names[1]).min()
    assert -700 < lowest < -110, "float64 holds what float32 does not"
    mine = score_heads(model, pairs, metrics=names, source=source, progress=False)
    for name in names:
        np.testing.assert_allclose(mine.of(name), exact.of(name), rtol=1e-3, atol=1e-2)
    coarse = loaded(steep_model_dir, backend, "bfloat16")
    half = score_heads(coarse, pairs, metrics=names, source=source, progress=False)
    assert np.isfinite(half.of(names[1])).all()
    np.testing.assert_allclose(half.of(names[1])[:, 0], exact.of(names[1])[:, 0], rtol=0.05, atol=3)


def test_gap_and_masked_conditions_are_one(tiny_model_dir: Any) -> None:
    model = loaded(tiny_model_dir("gemma3"), "bridge")
    names = ["retention", "spike_slope", "js_distance", "total_variation"]
    scores = score_heads(model, pairs_for(model, count=1), metrics=names, conditions=("gap", "masked"), progress=False)
    for name, same in zip(names, (1, 1, 0, 0), strict=True):
        np.testing.assert_allclose(scores.of(name), same, atol=2e-3 if name == "js_distance" else 1e-4)


def test_a_function_of_ones_own_is_a_row_metric(model: Model, tmp_path: Path) -> None:
    def own(pattern: torch.Tensor, span: torch.Tensor) -> torch.Tensor:
        return (pattern * span).sum(-1)

    mi.save(
        tmp_path / "kept", score_heads(model, pairs_for(model, count=2), metrics=[own, "span_mass"], progress=False)
    )
    scores = mi.load(tmp_path / "kept")["HeadScores"]
    for found in (scores.values, scores.null):
        np.testing.assert_allclose(found["own"]["inserted"], found["span_mass"]["inserted"], atol=1e-7)
    assert scores.metrics == ("own", "span_mass") and len(scores.top("own", 3)) == 3
    nothing = replace(scores, values=scores.values | {"own": {"inserted": scores.of("own") * np.nan}})
    with pytest.raises(ValueError, match="own is undefined in every problem"):
        nothing.top("own")
    names: list[Any] = [lambda pattern, span: pattern.mul_(span.logical_not_()).sum(-1), "span_mass"]
    beside = score_heads(model, pairs_for(model, count=2), metrics=names, progress=False)
    assert np.array_equal(beside.of("span_mass"), scores.of("span_mass")), "it has copies of what others read"


def test_chosen_heads_are_scored_and_the_rest_is_undefined(model: Model) -> None:
    pairs = pairs_for(model, count=2)
    heads = [Head(0, 3), Head(2, 7)]
    some = score_heads(model, pairs, heads=heads, metrics="span_mass", progress=False)
    every = score_heads(model, pairs, metrics="span_mass", progress=False)
    assert np.isfinite(some.of("span_mass")).sum() == len(pairs) * len(heads)
    np.testing.assert_allclose(*(of_heads(each.of("span_mass"), heads) for each in (some, every)))


def test_a_mean_of_what_is_infinite_once_is_infinite_and_has_no_interval() -> None:
    values = {"entropy": scored().values["recovery_latency"]}
    made = HeadScores(scored().problem_ids, ("inserted",), scored().heads, values, {})
    table = made.table().set_index("label")
    assert np.isinf(made.mean("entropy")).tolist() == [[False] * 3, [False, True, True]]
    assert np.isinf(table.loc["L1H1", "entropy"]) and np.isnan(table.loc["L1H1", "entropy_ci_low"])


def test_a_span_at_the_start_moves_the_sink_and_says_so(model: Model) -> None:
    (pair,) = pairs_for(model, count=1, before="system")
    assert pair.span[0] == 0
    scores = score_heads(model, [pair], metrics=["sink_alpha", "collapse_relative", "retention"], progress=False)
    whole = captured(model, pair, "inserted", "attn.hook_pattern")[0]
    alpha = received.received_attention(*received.received_sums(whole, diag=True), min_rows=1)[:, pair.span[1]]
    np.testing.assert_allclose(scores.of("sink_alpha")[0, 0], alpha, atol=1e-6)
    assert np.isnan(scores.of("collapse_relative")).all(), "there is no prefix to compare with"
    assert np.isfinite(scores.of("retention")).all()


def test_untrained_twins_stand_beside_the_model() -> None:
    plain = scored()
    more = {name: {"inserted": found["inserted"] + 0.2} for name, found in plain.values.items()}
    found = replace(plain, twins=(plain, replace(plain, values=more)))
    table = found.table().set_index("label")
    assert table.loc["L0H1", "span_mass_untrained"] == pytest.approx(table.loc["L0H1", "span_mass"] + 0.1)
    assert "untrained twins" in found.headline() and "untrained" not in plain.headline()
    top = found.top("collapse_relative", 2)
    assert top["label"].tolist() == ["L0H0", "L0H1"] and set(plain.summary()) <= set(top) and len(top.columns) == 12


def test_what_is_counted_from_the_span_s_end_needs_one_block_in_conditions_without_it_too(model: Model) -> None:
    counted = ["recovery_latency", "recovered", "recovery_tau", "onset_step", "retention"]
    for place, blocks in (({}, 1), ({"before": ("question",), "at": (2,)}, 2)):
        pairs = pairs_for(model, count=1, **place)
        assert len(pairs[0].spans) == blocks
        scores = score_heads(model, pairs, metrics=counted, conditions=("base", "inserted", "gap"), progress=False)
        for condition in ("inserted", "gap"):
            for name in ("recovery_latency", "recovered"):
                assert np.isnan(scores.of(name, condition)).all() == (blocks == 2), condition
            assert np.isfinite(scores.of("retention", condition)).all(), condition
        missing = np.isnan(scores.of("onset_step")).all() and np.isnan(scores.of("recovery_tau", "gap")).all()
        assert blocks == 1 or missing


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"heads": [Head(0, 8)]}, r"L0H8: query head 8 is out of range \(zero-based\)"),
        ({"heads": []}, "no heads to describe"),
        ({"metrics": ["span_mas"]}, r"unknown metric 'span_mas' \(did you mean span_mass\?\); choose of span_mass"),
        ({"metrics": ["lam", "lam"]}, "a metric is given twice"),
        ({"metrics": [lambda pattern, span: pattern]}, "metric '<lambda>' must give a number per head and row"),
        ({"conditions": ("base", "other")}, "unknown condition 'other'; choose one of base, inserted"),
        ({"source": "pattern"}, 'load the model with attn_implementation="eager"'),
    ],
)
@pytest.mark.usefixtures("untyped")
def test_wrong_options_are_named(options: dict[str, Any], message: str, tiny_model_dir: Any) -> None:
    model = loaded(tiny_model_dir("qwen2"), "nnsight", attention="sdpa")
    with pytest.raises(ValueError, match=message):
        score_heads(model, pairs_for(model, count=1), progress=False, **options)
