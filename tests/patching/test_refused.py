"""Requests that analyses of patches and of the mechanism refuse, each in a sentence that names what is wrong."""

from typing import Any

import pytest
from models_under_test import pairs_for, problems

import mless_interp as mi
from mless_interp.core.heads import Head
from mless_interp.models.base import Model
from mless_interp.prompts.insertions import Insertion

L0H1 = [Head(0, 1)]


def doses(model: Model, pairs: Any, **given: Any) -> Any:
    return mi.dose_response(model, problems()[:1], Insertion.meaningless(" /", 55), **{"doses": (1, 4), **given})


@pytest.mark.parametrize(
    ("analysis", "options", "message"),
    [
        (mi.attribute_heads, {"method": "eap"}, "unknown method 'eap'; choose one of gate_ig, atp"),
        (mi.attribute_heads, {"outcome": "kl", "method": "atp"}, "atp from a divergence is 0 by construction"),
        (mi.attribute_heads, {"contrast": "shift", "method": "gate_ig"}, "gate_ig does not know contrast 'shift'"),
        (mi.attribute_heads, {"steps": 0}, "steps must be 1 or more, got 0"),
        (doses, {"doses": (5,)}, r"doses must be at least two increasing numbers of tokens from 1 up, got \[5\]"),
        (doses, {"outcome": "x"}, "unknown outcome 'x'"),
        (mi.read_effects, {"heads": []}, "no heads to take apart"),
        (mi.read_effects, {"heads": L0H1, "outcome": "kl"}, r"needs a signed outcome \(answer_logprob"),
        (mi.read_effects, {"heads": L0H1, "smallest_effect": 1.0}, "smallest_effect"),
        (mi.mediate, {"heads": [Head(1, 0)]}, r"L1H0 is not in layer 0 \(zero-based\)"),
        (mi.mediate, {"q": 2.0}, "q must lie between 0 and 1, got 2.0"),
        (mi.mediate, {"blocks": 2}, "pair 'p0': mediation, .* not defined for an insertion in 2 blocks"),
        (mi.activation_shift, {"c": float("inf")}, "c is the width of near zero"),
        (mi.decompose_attention, {"layers": [3]}, r"layer 3 is out of range \(zero-based\): 0 to 2"),
        (mi.decompose_attention, {"n_control_draws": -1}, "n_control_draws must be 0 or more, got -1"),
    ],
)
def test_what_is_wrong_is_named(analysis: Any, options: dict[str, Any], message: str, model: Model) -> None:
    place = {"before": ("question",), "at": (2,)} if options.get("blocks") else {}
    given = {name: each for name, each in options.items() if name != "blocks"}
    with pytest.raises(ValueError, match=message):
        analysis(model, pairs_for(model, n_tokens=8, count=1, **place), progress=False, **given)
