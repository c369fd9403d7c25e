"""Screening by gradients: completeness, finite differences, exact knockouts at the ends, planted heads first."""

from typing import Any

import numpy as np
import pytest
import torch
from conftest import ARCHITECTURES, BACKENDS, ONE_OF_EACH
from models_under_test import Gated, loaded, pairs_for, planted_here, planted_pairs, without_stepper
from small_results import attributed

from mless_interp.core.heads import Head
from mless_interp.models import memory
from mless_interp.models.base import Model
from mless_interp.models.info import ModelError, Recording
from mless_interp.patching.attribution import attribute_heads
from mless_interp.patching.interventions import EdgeNoise, Gate, Knockout, LayerState
from mless_interp.patching.outcomes import OUTCOMES
from mless_interp.patching.sweep import patch_heads
from mless_interp.prompts.pairs import PromptPair


@pytest.mark.parametrize(("architecture", "backend"), ONE_OF_EACH)
@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-3), ("float64", 1e-5)])
def test_gate_gradients_add_up_to_the_total_effect(tolerance: float, backend: str, model: Model) -> None:
    found = attribute_heads(model, pairs_for(model, count=1), steps=48, progress=False)
    total = found.inserted - found.masked
    assert np.abs(total).max() > 0.01
    assert np.abs(found.completeness).max() < tolerance * np.abs(total).max()
    assert f"{np.abs(found.completeness).max():.1e}" in found.explain()


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_closed_gate_is_the_exact_knockout_and_all_closed_the_masked_run(backend: str, model: Model) -> None:
    bare = pairs_for(model, count=1)
    gated = Gated(model, bare[0])
    heads = [Head(0, 1), Head(1, 0), Head(2, 7)]
    gates = gated.open(2 + 2 * len(heads))
    gates[0] = 0
    for row, head in enumerate(heads):
        gates[2 + row, head.layer, head.head] = 0
        gates[2 + len(heads) + row, head.layer, head.head] = 0.3
    values = gated(gates).detach().double().numpy()
    exact = patch_heads(model, bare, heads=heads, edit="knockout", progress=False)
    partly = patch_heads(model, bare, heads=heads, edit=Gate(0.3), progress=False)
    assert values[0] == pytest.approx(exact.donor[0], abs=1e-4)
    assert values[1] == pytest.approx(exact.receiving[0], abs=1e-4)
    for row, head in enumerate(heads):
        at = (0, head.layer, head.head)
        assert values[2 + row] == pytest.approx(exact.patched[at], abs=1e-4)
        assert values[2 + len(heads) + row] == pytest.approx(partly.patched[at], abs=1e-4)


def slope(model: Model, run: Recording, head: Head, way: torch.Tensor, read: Any, pair: PromptPair) -> float:
    """How the outcome changes as a head's z goes that way, by central differences."""
    z, part = run.z[head.layer].repeat(2, 1, 1, 1), 3e-3
    z[0, :, head.head] += part * way
    z[1, :, head.head] -= part * way
    up, down = OUTCOMES["answer_logprob"].value(model.replay(run, head.layer, z, logits_at=read), pair, None)
    return float(up - down) / (2 * part)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_estimate_is_the_first_order_of_its_exact_edit(architecture: str, tiny_model_dir: Any) -> None:
    """A small part of the way to the patched z, or to that of a knockout, moves the outcome by that part of the estimate."""
    model = loaded(tiny_model_dir(architecture), "bridge", "float64")
    bare = pairs_for(model, 22, count=1, before=("system", "question"))  # whose later block stays as it is
    by_gate = attribute_heads(model, bare, verify=0, steps=4, progress=False)
    by_z = attribute_heads(model, bare, method="atp", progress=False)
    pair = bare[0].answered("answer")
    start, outside = pair.spans[0][1], ~pair.span_mask
    read = [len(pair.inserted) - back for back in OUTCOMES["answer_logprob"].reads(pair)]
    seen, hidden = (model.record(pair.condition(name), start=start) for name in ("inserted", "masked"))
    for head in (Head(0, 2), Head(1, 5), Head(2, 0)):

        def changed(run: Recording, edit: Any, head: Head = head) -> torch.Tensor:
            state = LayerState.of(model, run, head.layer, span=pair.span_mask[None], rows=outside[None])
            return (edit(state) - run.z[head.layer])[0, :, head.head]

        patched = (seen.z[head.layer] - hidden.z[head.layer])[0, :, head.head] * outside[start:, None]
        for values, run, way, sign in (
            (by_z.scores, seen, patched, 1),
            (by_gate.knockout, seen, changed(seen, Knockout()), -1),
            (by_gate.edge_noise, hidden, changed(hidden, EdgeNoise()), 1),
        ):
            assert values is not None
            moved = sign * slope(model, run, head, way, read, pair)
            assert values[0, head.layer, head.head] == pytest.approx(moved, rel=3e-3, abs=2e-4)


def test_planted_heads_come_first_and_the_best_are_verified() -> None:
    made, model = planted_here()
    pairs = planted_pairs(made, model, 4)
    readers, mediators = set(made.roles.readers), set(made.roles.mediators)
    ask: dict[str, Any] = {"steps": 8, "progress": False}
    by_z = attribute_heads(model, pairs, method="atp", **ask)
    assert set(by_z.ranking()[: len(readers | mediators)]) == readers | mediators
    assert by_z.knockout is None and by_z.exact is None and np.array_equal(by_z.best, by_z.scores)
    plain, found = (attribute_heads(model, pairs, verify=n, **ask) for n in (0, 3))
    assert set(plain.ranking()[: len(readers)]) == readers and len(set(plain.ranking())) == by_z.scores[0].size
    exact = patch_heads(model, pairs, edit="knockout", progress=False).effect
    verified = np.isfinite(found.exact).all(0)
    assert {Head(*map(int, at)) for at in np.argwhere(verified)} == set(plain.ranking()[:3])
    assert found.exact[:, verified] == pytest.approx(exact[:, verified], abs=1e-5)
    assert np.array_equal(found.best[:, ~verified], plain.knockout[:, ~verified])
    both = attribute_heads(model, pairs, method="atp", verify=2, **ask).exact
    z = patch_heads(model, pairs, progress=False).effect
    assert np.isfinite(both[0]).sum() == 2 and np.nanmax(np.abs(both - z)) < 1e-5


def test_estimates_never_stand_before_heads_that_were_verified() -> None:
    """An estimate that is far off, of a head that was not verified, does not pass for the largest effect."""
    made = attributed()
    made.exact[:, 0, 0] = 0.1
    made.knockout[:, 0, 1] = 9.0
    labels = list(map(str, made.ranking()))
    assert labels[:3] == ["L1H2", "L0H0", "L0H1"], "verified by their exact value (0.4, 0.1), then the rest by estimate"
    table = made.table()
    assert table["label"].tolist() == labels and table["ranked_by"].tolist() == ["exact"] * 2 + ["estimate"] * 4
    made.exact[0, 0, 0] = np.nan
    assert np.array_equal(made.best[:, 0, 0], made.knockout[:, 0, 0]), "not verified on every problem"


def test_problems_in_one_batch_are_attributed_as_alone(monkeypatch: Any) -> None:
    made, model = planted_here()
    pairs = planted_pairs(made, model, 5)
    together = attribute_heads(model, pairs, method="atp", progress=False)
    for index in (0, 4):
        alone = attribute_heads(model, pairs[index : index + 1], method="atp", progress=False)
        for name in ("scores", "inserted", "masked"):
            assert getattr(together, name)[index] == pytest.approx(getattr(alone, name)[0], abs=1e-5)
    whole = attribute_heads(model, pairs[:2], verify=0, progress=False)
    sizes, tail = [], type(model.stepper).tail

    def small(self: Any, *args: Any, **options: Any) -> Any:
        sizes.append(len(options["gates"]))
        if sizes[-1] > 4:
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory")
        return tail(self, *args, **options)

    with monkeypatch.context() as short:
        short.setattr(type(model.stepper), "tail", small)
        halved = attribute_heads(model, pairs[:2], verify=0, progress=False)
    monkeypatch.setattr(memory, "GRAPH_BYTES", 1.0)
    parts = attribute_heads(model, pairs[:2], verify=0, progress=False)
    for name in ("scores", "knockout", "edge_noise", "inserted", "masked"):
        for less in (halved, parts):
            assert getattr(less, name) == pytest.approx(getattr(whole, name), abs=1e-5)
    by_z = attribute_heads(model, pairs, method="atp", progress=False)
    assert sizes[:3] == [16, 8, 4] and by_z.scores == pytest.approx(together.scores, abs=1e-5)


def test_a_model_or_a_place_without_gradients_is_refused(model: Model) -> None:
    pairs = pairs_for(model, count=1)
    with pytest.raises(ModelError, match=r"cannot be continued layer by layer, which gradients need"):
        attribute_heads(without_stepper(model), pairs)
    with (
        torch.inference_mode(),
        pytest.raises(ModelError, match=r"has none inside torch.inference_mode\(\): leave it first"),
    ):
        attribute_heads(model, pairs)
    with torch.no_grad():
        assert np.isfinite(attribute_heads(model, pairs, progress=False).scores).all()
