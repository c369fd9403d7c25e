"""Scale only, bias only, both: what each does to activations and outcome, against whole runs edited by interventions."""

import numpy as np
import pytest
import torch
from conftest import ONE_OF_EACH
from models_under_test import pairs_for, planted_here, planted_pairs

from mless_interp.core.heads import Head
from mless_interp.mechanism import Mediation, mediate
from mless_interp.mechanism.mediation import ARMS, EFFECTS
from mless_interp.metrics.activations import mean_absolute, median_variance
from mless_interp.models.base import Model
from mless_interp.models.sites import site
from mless_interp.patching.interventions import Intervention, Knockout, KnockoutZero, PatchZ, RestoreScale, run_edits
from mless_interp.patching.outcomes import OUTCOMES
from mless_interp.prompts.pairs import PromptPair

ACTIVATIONS = ("near_zero_arm", "near_zero_quantile", "mean", "mean_absolute", "variance")


@pytest.mark.parametrize("contrast", ["content", "held"])
@pytest.mark.parametrize(("architecture", "backend"), ONE_OF_EACH)
def test_in_the_first_layer_both_is_the_whole_change(backend: str, model: Model, contrast: str) -> None:
    found = mediate(model, pairs_for(model, n_tokens=9, count=2), contrast=contrast, progress=False)
    loose = {"near_zero_arm": 2e-4, "near_zero_quantile": 2e-4}  # one activation of 5000 may cross the threshold
    for reading in ACTIVATIONS:
        off = loose.get(reading, 1e-5)
        assert found.effect(reading, "both") == pytest.approx(found.effect(reading, "total"), abs=off)
        assert found.effect(reading, "rest") == pytest.approx(0, abs=off)
        assert np.abs(found.effect(reading, "scale")).max() > 1e-4, "the parts are not nothing"
    assert found.effect("outcome", "rest") == pytest.approx(0, abs=1e-4)
    apart = found.effect("outcome", "both") - found.effect("outcome", "total")
    assert np.abs(apart).max() > 1e-4, "later layers read too"
    assert found.of("outcome", "reference") == pytest.approx(found.of("outcome", "without"), abs=1e-5)


def outcome_under(
    model: Model, pair: PromptPair, intervention: Intervention, heads: list[Head], receiving: str, donor: str
) -> tuple[float, torch.Tensor]:
    """Outcome and gate pre-activations of a whole run with one intervention on these heads."""
    inputs = pair.condition(receiving)
    start = pair.span[1]
    given = model.record(pair.condition(donor), start=start)
    edits = run_edits(model, inputs, intervention, heads, span=pair.span_mask[None], start=start, donor=given)
    name = site(heads[0].layer, "mlp.hook_pre")
    outcome = OUTCOMES["answer_logprob"]
    read = [len(pair.inserted) - back for back in outcome.reads(pair)]
    result = model.run(inputs, edits=edits, capture={name: None}, logits_at=read)
    return float(outcome.value(result.logits, pair, None)[0]), result.captured[name][0]


@pytest.mark.parametrize(("architecture", "layer"), [("qwen2", 0), ("gemma3", 0), ("llama", 1)])
def test_arms_are_the_interventions_of_methods_6(model: Model, layer: int) -> None:
    """restore_scale leaves the bias; in layer 0 knockout_zero leaves the scale and knockout nothing; a z patch is a z patch."""
    bare = pairs_for(model, n_tokens=9)[0]
    heads = [Head(layer, head) for head in (1, 2, 6)]
    taken = mediate(model, [bare], layer=layer, heads=heads, direction="denoising", progress=False)
    added = mediate(model, [bare], layer=layer, heads=heads, direction="noising", progress=False)
    cases: list[tuple[Mediation, str, Intervention]] = [
        *((taken, "bias", RestoreScale()), (taken, "reference", PatchZ()), (added, "patched", PatchZ())),
        *([(taken, "scale", KnockoutZero()), (taken, "reference", Knockout())] if layer == 0 else []),
    ]
    gate = model.gated_mlp(layer).activation
    pair = bare.answered("answer")
    for found, arm, intervention in cases:
        ends = ("inserted", "masked") if found is taken else ("masked", "inserted")
        outcome, pre = outcome_under(model, pair, intervention, heads, *ends)
        assert found.of("outcome", arm)[0] == pytest.approx(outcome, abs=1e-4), arm
        activations = gate(pre[bare.shared])
        assert found.of("mean_absolute", arm)[0] == pytest.approx(float(mean_absolute(activations.flatten())), abs=1e-5)
        assert found.of("variance", arm)[0] == pytest.approx(float(median_variance(activations)), abs=1e-5)
    if layer:
        assert np.abs(added.effect("mean_absolute", "rest")).max() > 1e-5, "upstream changes are not lambda and Sigma"


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
    row = [1.0, 4.0, 1.0, 1.5, 0.5, 2.0, 2.5]
    found = Mediation(
        ("a", "b"), ("mean", "outcome"), ARMS, np.array([[row, row], [row, row]]), "nats", settings={"layer": 1}
    )
    effects = {name: float(found.effect("mean", name)[0]) for name in EFFECTS}
    assert effects == {"scale": 0.5, "bias": -0.5, "both": 1.0, "interaction": 1.0, "rest": 0.5, "total": 3.0}
    with pytest.raises(ValueError, match="no effect 'all' here; there are scale, bias"):
        found.effect("mean", "all")


def test_changes_within_rounding_are_none_and_most_problems_decide() -> None:
    values = np.ones((8, 1, len(ARMS)))
    values[:, 0, ARMS.index("bias")] += 0.5
    values[:, 0, ARMS.index("both")] += 0.5
    values[:, 0, ARMS.index("scale")] += 1e-6  # of 1: rounding
    settings = {"layer": 1, "outcome": "o", "insertion": "x"}
    found = Mediation(tuple("abcdefgh"), ("outcome",), ARMS, values, "nats", settings=settings)
    rows = found.table().set_index("effect")
    assert rows["n_up"].to_dict() == {"scale": 0, "bias": 8, "both": 8, "interaction": 0, "rest": 0, "total": 0}
    assert rows.loc["rest", "n_down"] == 8 and rows["p_corrected"].isna().to_dict()["scale"]
    assert rows.loc["bias", "p_corrected"] == pytest.approx(3 * 2**-7), (
        "exact, two-sided, Holm over the three that move"
    )
