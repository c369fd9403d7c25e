"""One sign everywhere: the effect of the insertion, and of a head the part of it that the head carries."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from models_under_test import planted_here, planted_pairs, planted_problems

import mless_interp as mi
from mless_interp.prompts.conditions import DIRECTIONS

N = 22
QUIET: dict[str, Any] = {"progress": False}
NAMING: dict[str, Any] = {"mode": "exact", "n_control_draws": 1, "n_random_sets": 2}


@pytest.fixture(scope="module", params=[1, -1], ids=["helps", "hurts"])
def every(request: pytest.FixtureRequest) -> SimpleNamespace:
    """Every result that has a total effect, of the same problems of a model whose reader is known."""
    made, model = planted_here(sign=request.param)
    pairs = planted_pairs(made, model, N)
    reader, heads = made.readers[0], model.info.heads
    sweeps = {
        f"{edit}, {direction}": mi.patch_heads(model, pairs, edit=edit, direction=direction, heads=[reader], **QUIET)
        for edit in ("z", "knockout")
        for direction in DIRECTIONS
    }
    return SimpleNamespace(
        reader=reader,
        sweeps=sweeps,
        located=mi.locate_heads(model, pairs[: N // 2], confirm=pairs[N // 2 :], **NAMING, **QUIET),
        joint=mi.joint_knockout(model, pairs, heads, n_random_sets=0, **QUIET),
        reads=mi.read_effects(model, pairs, [reader], **QUIET),
        curve=mi.circuit_curve(model, pairs, [reader], n_random=0, **QUIET),
        gates=mi.attribute_heads(model, pairs, verify=1, **QUIET),
        mediated=mi.mediate(model, pairs, direction="denoising", **QUIET),
        doses=mi.dose_response(
            model, planted_problems(made, N), pairs[0].insertion, doses=(1, pairs[0].n_inserted), **QUIET
        ),
    )


def located_on_all(found: mi.LocatedHeads, take: Any) -> np.ndarray:
    """Numbers of the problems that named the heads, then of those that confirm them."""
    assert found.confirmation is not None
    return np.concatenate([take(found), take(found.confirmation)])


@pytest.mark.slow
def test_every_total_is_the_outcome_with_the_insertion_minus_that_without(every: SimpleNamespace) -> None:
    doses = every.doses.outcomes
    total = doses["inserted"][:, -1] - doses["masked"][:, -1]
    assert np.abs(total).min() > 0.1 and abs(np.sign(total).sum()) == N
    totals = {name: sweep.total_effect for name, sweep in every.sweeps.items()} | {
        "LocatedHeads and Confirmation": located_on_all(every.located, lambda found: found.total),
        "JointKnockout of all heads": every.joint.effect,
        "ReadEffects": every.reads.total,
        "CircuitCurve": every.curve.total,
        "HeadAttribution": every.gates.inserted - every.gates.masked,
        "HeadAttribution, all heads": every.gates.scores.sum((1, 2)),
        "Mediation": every.mediated.effect("outcome", "total"),
    }
    for name, found in totals.items():
        assert found == pytest.approx(total, abs=1e-3), name
    assert every.doses.outcome_table()["content"].iloc[-1] == pytest.approx(np.median(total), abs=1e-3)
