"""Scale only, bias only, both: what each does to activations and outcome, against whole runs edited by interventions."""

import numpy as np
import pytest
import torch
from conftest import ONE_OF_EACH
from models_under_test import pairs_for, planted_here, planted_pairs
from test_decompose import layer_of

from mless_interp.core.heads import Head
from mless_interp.mechanism import Mediation, mediate
from mless_interp.mechanism.mediation import ARMS, EFFECTS
from mless_interp.metrics.activations import mean_absolute, median_variance
from mless_interp.models.base import Model
from mless_interp.models.sites import site
from mless_interp.patching.outcomes import OUTCOMES
from mless_interp.prompts.pairs import PromptPair

ACTIVATIONS = ("near_zero_arm", "near_zero_quantile", "mean", "mean_absolute", "variance")


@pytest.mark.parametrize(("architecture", "backend"), ONE_OF_EACH)
def test_in_the_first_layer_both_is_the_whole_change(backend: str, model: Model) -> None:
    found = mediate(model, pairs_for(model, n_tokens=9, count=2), progress=False)
    loose = {"near_zero_arm": 2e-4, "near_zero_quantile": 2e-4}  # one activation of 5000 may cross the threshold
    for reading in ACTIVATIONS:
        off = loose.get(reading, 1e-5)
        assert found.effect(reading, "both") == pytest.approx(found.effect(reading, "total"), abs=off)
        assert np.abs(found.effect(reading, "scale")).max() > 1e-4, "the parts are not nothing"
    apart = found.effect("outcome", "both") - found.effect("outcome", "total")
    assert np.abs(apart).max() > 1e-4, "later layers read too"
    assert found.of("outcome", "reference") == pytest.approx(found.of("outcome", "without"), abs=1e-5)


def parts_by_hand(model: Model, pair: PromptPair, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
    """lambda `[row, head, 1]` and Sigma `[row, head, d_head]` after the span, from the model's own pattern and values."""
    inputs, rows = pair.condition("inserted"), slice(pair.span[1], None)
    pattern = layer_of(model, inputs, layer, "attn.hook_pattern")[0][:, rows]
    values = layer_of(model, inputs, layer, "attn.hook_v")[0].repeat_interleave(
        model.info.n_heads // model.info.n_key_value_heads, 1
    )
    kept = torch.where(pair.span_mask, 0, pattern).sum(-1) / pattern.sum(-1)
    return kept.T[..., None], torch.einsum("hij,jhd->ihd", torch.where(pair.span_mask, pattern, 0), values)


@pytest.mark.parametrize(("architecture", "layer"), [("qwen2", 0), ("gemma3", 0), ("llama", 1)])
def test_arms_are_the_formulas_of_methods_5(model: Model, layer: int) -> None:
    bare = pairs_for(model, n_tokens=9)[0]
    heads = [1, 2, 6]
    found = mediate(model, [bare], layer=layer, heads=[Head(layer, head) for head in heads], progress=False)
    gate, outcome = model.gated_mlp(layer).activation, OUTCOMES["answer_logprob"]
    pair = bare.answered("answer")
    lam, sigma = parts_by_hand(model, pair, layer)
    pre, read = site(layer, "mlp.hook_pre"), [len(pair.inserted) - back for back in outcome.reads(pair)]
    for arm, keeps, adds in (("reference", 0, 0), ("scale", 1, 0), ("bias", 0, 1), ("both", 1, 1)):

        def edit(z: torch.Tensor, keeps: int = keeps, adds: int = adds) -> torch.Tensor:
            z, after = z.clone(), z[0, pair.span[1] :]
            new = after * torch.where(torch.tensor(bool(keeps)), lam, 1.0) + adds * sigma
            z[0, pair.span[1] :, heads] = new[:, heads]
            return z

        edits = {site(layer, "attn.hook_z"): edit}
        run = model.run(pair.condition("masked"), edits=edits, capture={pre: None}, logits_at=read)
        assert found.of("outcome", arm)[0] == pytest.approx(float(outcome.value(run.logits, pair, None)[0]), abs=1e-4)
        activations = gate(run.captured[pre][0][bare.shared])
        assert found.of("mean_absolute", arm)[0] == pytest.approx(float(mean_absolute(activations.flatten())), abs=1e-5)
        assert found.of("variance", arm)[0] == pytest.approx(float(median_variance(activations)), abs=1e-5)
    assert np.abs(found.effect("outcome", "scale")).max() > 1e-4 < np.abs(found.effect("outcome", "bias")).max()


def test_a_planted_reader_acts_by_its_bias() -> None:
    """Its z without the span is about nothing it needs: what it writes is Sigma, and scale alone does nothing."""
    made, model = planted_here()
    readers = [head for head in made.roles.readers if head.layer == 0]
    pairs = planted_pairs(made, model, 8)
    found = mediate(model, pairs, heads=readers, progress=False)
    bias, both, scale = (found.effect("outcome", name) for name in ("bias", "both", "scale"))
    total = found.effect("outcome", "total")
    assert np.abs(total).mean() > 0.1
    small = 0.05 * np.abs(both).max()
    assert bias == pytest.approx(both, abs=small) and np.abs(scale).max() < small
    assert both == pytest.approx(total, abs=0.1 * np.abs(total).max()), "the readers carry all of it"
    silent = [head for head in made.roles.decoys["silent"] if head.layer == 0]
    nothing = mediate(model, pairs, heads=silent, progress=False)
    assert np.abs(nothing.effect("outcome", "both")).max() < 1e-5


def test_effects_by_hand() -> None:
    # reference 1, scale 1.5, bias 0.5, both 2: scale +0.5, bias -0.5, both +1, interaction 1
    row = [1.0, 4.0, 1.0, 1.5, 0.5, 2.0]
    found = Mediation(
        ("a", "b"), ("mean", "outcome"), np.array([[row, row], [row, row]]), "nats", settings={"layer": 1}
    )
    effects = {name: float(found.effect("mean", name)[0]) for name in EFFECTS}
    assert effects == {"scale": 0.5, "bias": -0.5, "both": 1.0, "interaction": 1.0, "total": 3.0}
    with pytest.raises(ValueError, match="no effect 'all' here; there are scale, bias"):
        found.effect("mean", "all")


def test_changes_within_rounding_are_none_and_most_problems_decide() -> None:
    values = np.ones((8, 1, len(ARMS)))
    values[:, 0, ARMS.index("bias")] += 0.5
    values[:, 0, ARMS.index("both")] += 0.5
    values[:, 0, ARMS.index("scale")] += 1e-6  # of 1: rounding
    settings = {"layer": 1, "outcome": "o", "insertion": "x"}
    found = Mediation(tuple("abcdefgh"), ("outcome",), values, "nats", settings=settings)
    rows = found.table().set_index("effect")
    assert rows["n_up"].to_dict() == {"scale": 0, "bias": 8, "both": 8, "interaction": 0, "total": 0}
    assert rows["p_corrected"].isna().to_dict()["scale"]
    assert rows.loc["bias", "p_corrected"] == pytest.approx(2 * 2**-7), "exact, two-sided, Holm over the two that move"
