"""Identities I1 to I12 of methods §3 on every backend: exact to 1e-10 where attention is float64, 1e-5 where it is eager."""

import math
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from conftest import ARCHITECTURES, needs_hooked_transformer
from models_under_test import loaded, logits_of, pairs_for, problems

from mless_interp.insertions import Insertion, PromptPair, make_pairs
from mless_interp.interventions import Knockout, KnockoutZero, LayerState, PatchZ
from mless_interp.metrics.attention import retained_mass
from mless_interp.metrics.distances import jensen_shannon_divergence, renormalised_rows
from mless_interp.metrics.entropy import attention_entropy, entropy_chain
from mless_interp.metrics.outputs import span_output
from mless_interp.models.base import Inputs, Model, site
from mless_interp.models.replay import masked_scores, softmax

SETTINGS = [
    pytest.param(("hooked_transformer", "eager", 1e-10), marks=needs_hooked_transformer, id="hooked_transformer"),
    pytest.param(("bridge", "eager", 1e-5), id="bridge"),
    pytest.param(("nnsight", "eager", 1e-5), id="nnsight-eager"),
    pytest.param(("nnsight", "sdpa", 1e-10), id="nnsight-sdpa"),
]


@dataclass(frozen=True)
class Layer:
    """Pattern `[H, T, T]`, values per query head `[H, T, d]`, head outputs `[H, T, d]` of one layer and condition."""

    pattern: torch.Tensor
    v: torch.Tensor
    z: torch.Tensor


@dataclass(frozen=True)
class Case:
    model: Model
    pair: PromptPair
    tolerance: float

    def layer(self, condition: str, layer: int = 0) -> Layer:
        return layer_of(self.model, self.pair.condition(condition), layer)


def layer_of(model: Model, inputs: Inputs, layer: int) -> Layer:
    names = {part: site(layer, f"attn.hook_{part}") for part in ("rot_q", "rot_k", "v", "z")}
    got = model.run(
        inputs.tokens,
        position_ids=inputs.position_ids,
        attention_mask=inputs.attention_mask,
        capture=dict.fromkeys(names.values()),
        logits_at="none",
    ).captured
    q, k, v, z = (got[names[part]] for part in ("rot_q", "rot_k", "v", "z"))
    pattern = softmax(masked_scores(q, k, model.visible(inputs)[layer], model.attention_rule(layer)))
    group = model.info.n_heads // model.info.n_key_value_heads
    return Layer(pattern[0], v[0].repeat_interleave(group, 1).transpose(0, 1), z[0].transpose(0, 1))


@pytest.fixture(params=SETTINGS)
def setting(request: pytest.FixtureRequest) -> tuple[str, str, float]:
    return request.param


@pytest.fixture(params=ARCHITECTURES)
def case(setting: tuple[str, str, float], request: pytest.FixtureRequest, tiny_model_dir: Any) -> Case:
    return made(setting, tiny_model_dir(request.param))


def made(setting: tuple[str, str, float], directory: Any) -> Case:
    backend, attention, tolerance = setting
    model = loaded(directory, backend, "float64", attention)
    return Case(model, pairs_for(model, n_tokens=9)[0], tolerance)


def off(a: torch.Tensor, b: torch.Tensor) -> float:
    return float((a - b).abs().max())


def parts(case: Case, layer: Layer) -> tuple[torch.Tensor, torch.Tensor]:
    """lambda `[H, shared]` and Sigma `[H, shared, d]` of an inserted run."""
    span, shared = case.pair.span_mask, case.pair.shared
    lam = retained_mass(layer.pattern, span=span)[:, shared]
    return lam, span_output(layer.pattern, layer.v, span=span)[:, shared]


def test_the_library_s_own_pattern_is_the_one_rebuilt_from_q_and_k(case: Case) -> None:
    if case.model.info.attention != "eager":
        pytest.skip("fused attention makes no pattern to compare with")
    for layer in range(3):
        inputs = case.pair.condition("inserted")
        name = site(layer, "attn.hook_pattern")
        own = case.model.run(inputs.tokens, capture={name: None}).captured[name][0]
        assert off(own, layer_of(case.model, inputs, layer).pattern) < 1e-6


def test_i1_scale_and_bias_against_the_position_matched_run(case: Case) -> None:
    for new, reference in (("inserted", "gap"), ("held", "base")):
        after, before = case.layer(new), case.layer(reference)
        lam, sigma = parts(case, after)
        assert off(after.z[:, case.pair.shared], lam[..., None] * before.z + sigma) < case.tolerance


def test_i2_the_plain_run_needs_a_third_term_for_the_shift(case: Case) -> None:
    after, gap, base = case.layer("inserted"), case.layer("gap"), case.layer("base")
    lam, sigma = parts(case, after)
    change = after.z[:, case.pair.shared] - base.z
    shift = lam[..., None] * (gap.z - base.z)
    naive = (lam - 1)[..., None] * base.z + sigma
    assert off(change, naive + shift) < case.tolerance
    assert off(change, naive) > 1e-3, "the shift term is not negligible"


def test_i3_identical_tokens_interpolate_towards_one_vector(case: Case) -> None:
    after, gap = case.layer("inserted"), case.layer("gap")
    lam, sigma = parts(case, after)
    v = after.v[:, case.pair.span[0]][:, None]
    assert off(sigma, (1 - lam)[..., None] * v) < case.tolerance
    assert off(after.z[:, case.pair.shared], lam[..., None] * gap.z + (1 - lam)[..., None] * v) < case.tolerance


def test_i3_fails_for_a_random_sentence(case: Case) -> None:
    pair = make_pairs(case.model, problems()[:1], Insertion.random_sentence(9))[0]
    other = Case(case.model, pair, case.tolerance)
    after = other.layer("inserted")
    lam, sigma = parts(other, after)
    assert off(sigma, (1 - lam)[..., None] * after.v[:, pair.span[0]][:, None]) > 1e-3


def test_i4_renormalised_shared_pattern_is_the_reference_pattern(case: Case) -> None:
    after, gap = case.layer("inserted"), case.layer("gap")
    rows = renormalised_rows(after.pattern[:, case.pair.shared], alignment=case.pair.shared)
    assert off(rows, gap.pattern) < case.tolerance
    assert float(jensen_shannon_divergence(gap.pattern, rows).abs().max()) < case.tolerance


def test_i5_the_prefix_never_changes(case: Case) -> None:
    m = case.pair.span[0]
    for layer in range(3):
        name = site(layer, "hook_resid_post")
        runs = [case.pair.condition(c) for c in ("base", "inserted")]
        a, b = (case.model.run(run.tokens, capture={name: None}).captured[name][:, :m] for run in runs)
        assert off(a, b) < 1e-12


def test_i6_gap_equals_masked_at_every_layer(case: Case) -> None:
    gap, masked = case.pair.condition("gap"), case.pair.condition("masked")
    assert off(logits_of(case.model, masked)[:, case.pair.shared], logits_of(case.model, gap)) < 10 * case.tolerance
    for layer in range(3):
        assert off(case.layer("masked", layer).z[:, case.pair.shared], case.layer("gap", layer).z) < case.tolerance


def states(case: Case, layer: int, donor: str = "masked") -> LayerState:
    start = len(case.pair.inserted) - case.pair.n_after
    receiving = case.model.record(case.pair.condition("inserted"), start=start)
    inputs = case.pair.condition(donor)
    given = case.model.record(inputs, start=inputs.tokens.shape[1] - case.pair.n_after)
    span = case.pair.span_mask[None]
    nowhere = torch.zeros(1, inputs.tokens.shape[1], dtype=torch.bool)
    source = LayerState.of(case.model, given, layer, span=span if donor == "masked" else nowhere)
    return LayerState.of(case.model, receiving, layer, span=span, donor=source)


def test_i7_knockout_is_the_z_patch_in_the_first_layer_and_only_there(case: Case) -> None:
    for donor in ("masked", "gap"):
        assert off(Knockout()(states(case, 0, donor)), PatchZ()(states(case, 0, donor))) < case.tolerance
    assert off(Knockout()(states(case, 1)), PatchZ()(states(case, 1))) > 1e-3


def test_i8_zeroing_without_renormalising_leaves_lambda_times_the_reference(case: Case) -> None:
    lam, _ = parts(case, case.layer("inserted"))
    zeroed = KnockoutZero()(states(case, 0))[0].transpose(0, 1)
    n = case.pair.n_after
    assert off(zeroed, lam[:, -n:, None] * case.layer("gap").z[:, -n:]) < case.tolerance


def test_i9_and_i10_the_residual_change_is_the_sum_over_heads_of_scale_and_bias(case: Case) -> None:
    """On attention's output before Gemma 3's norm of it; `s_h` sum to 1."""
    if case.model.info.architecture.startswith("Gemma"):
        pytest.skip("Gemma 3 norms the attention output before it is added, so heads do not add up there")
    name = site(0, "hook_resid_mid")
    after, masked = (case.pair.condition(c) for c in ("inserted", "masked"))
    run = lambda inputs: case.model.run(inputs.tokens, attention_mask=inputs.attention_mask, capture={name: None})  # noqa: E731
    change = (run(after).captured[name] - run(masked).captured[name])[0, case.pair.shared]
    out = output_weights(case.model)
    new, reference = case.layer("inserted"), case.layer("masked")
    per_head = (new.z - reference.z)[:, case.pair.shared] @ out
    assert off(per_head.sum(0), change) < case.tolerance
    shares = (per_head * change).sum((1, 2)) / (change * change).sum()
    assert abs(float(shares.sum()) - 1) < case.tolerance
    lam, sigma = parts(case, new)
    scale_and_bias = ((lam - 1)[..., None] * reference.z[:, case.pair.shared] + sigma) @ out
    assert off(per_head, scale_and_bias) < case.tolerance


def output_weights(model: Model) -> torch.Tensor:
    """W_O of the first layer, `[H, d_head, d_model]`."""
    if model.info.backend == "hooked_transformer":
        return model.underlying.blocks[0].attn.W_O.detach()
    weight = model.stepper.layers[0].self_attn.o_proj
    weight = getattr(weight, "original_component", weight).weight.detach()
    return weight.T.reshape(model.info.n_heads, model.info.d_head, model.info.d_model)


@pytest.mark.parametrize("layer", [0, 1, 2])
def test_i11_entropy_splits_into_between_outside_and_inside(case: Case, layer: int) -> None:
    pattern = case.layer("inserted", layer).pattern
    whole = attention_entropy(pattern)[:, case.pair.span[1] :]
    chain = entropy_chain(pattern, span=case.pair.span_mask).total[:, case.pair.span[1] :]
    assert bool(torch.isnan(chain).logical_not().all()) or case.model.info.windows[layer] is not None
    assert float((whole - chain).nan_to_num().abs().max()) < 1e-6


def test_i12_log_odds_of_the_span_grow_with_slope_one_in_log_n(case: Case) -> None:
    """Position-preserving, identical tokens: logit(1 - lambda) = log N + const, per head and query."""
    if case.model.info.windows[0] is not None:
        pytest.skip("a sliding window cuts the span off, so its mass cannot grow")
    sizes, odds = (4, 16), []
    for n in sizes:
        pair = pairs_for(case.model, n_tokens=n)[0]
        mass = 1 - retained_mass(layer_of(case.model, pair.condition("held"), 0).pattern, span=pair.span_mask)
        odds.append(torch.logit(mass[:, pair.shared][:, pair.span[0] :]))
    slope = (odds[1] - odds[0]) / math.log(sizes[1] / sizes[0])
    assert off(slope, torch.ones_like(slope)) < 100 * case.tolerance
