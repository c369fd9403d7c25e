"""Dose-response: a slope of exactly 1 where it must be, the outcome per dose, the script from end to end."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from conftest import ARCHITECTURES, BACKENDS
from models_under_test import problems
from small_results import doses

from mless_interp.core.heads import Head
from mless_interp.models.sites import site
from mless_interp.patching.dose import dose_response
from mless_interp.patching.sweep import patch_heads
from mless_interp.prompts.insertions import Insertion
from mless_interp.prompts.pairs import make_pairs

DOSES = (1, 4, 16, 40)
SLASHES = Insertion.meaningless(" /", 55)


@pytest.mark.parametrize("architecture", ["qwen2", "llama", "gemma3"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_held_slope_is_exactly_one_in_the_first_layer(backend: str, model: Any) -> None:
    """I12, for every head and problem, on every backend; under Gemma's window of 16 rows count that see every dose."""
    found = dose_response(model, problems()[:2], SLASHES, doses=DOSES, progress=False)
    assert found.slopes("held") == pytest.approx(1, abs=1e-5)
    assert np.isfinite(found.slopes("inserted")).all()
    assert np.abs(found.slopes("inserted") - 1).max() > 1e-3, "where positions move as well it is not exact"
    constant = found.log_odds["held"] - np.log(DOSES)[None, :, None]
    assert np.abs(constant - constant[:, :1]).max() < 1e-5, "log N plus a constant, not only on average"


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_log_odds_are_those_of_the_model_s_own_pattern(model: Any) -> None:
    found = dose_response(model, problems()[:1], SLASHES, doses=(2, 8), layer=1, progress=False)
    (pair,) = make_pairs(model, problems()[:1], Insertion.meaningless(" /", 8))
    pair = pair.answered()
    name = site(1, "attn.hook_pattern")
    pattern = model.run(pair.inserted.tokens, capture={name: None}, logits_at="none").captured[name][0]
    mass = pattern[:, pair.span[1] :, pair.span_mask].sum(-1).double()
    assert found.log_odds["inserted"][0, 1] == pytest.approx(np.asarray(mass.logit().mean(-1)), abs=1e-4)


def test_outcomes_are_those_of_the_conditions(model: Any) -> None:
    found = dose_response(model, problems(), SLASHES, doses=(3, 9), progress=False)
    pairs = make_pairs(model, problems(), Insertion.meaningless(" /", 9))
    content, total = (
        patch_heads(model, pairs, contrast=contrast, heads=[Head(0, 0)], progress=False)
        for contrast in ("content", "total")
    )
    assert found.outcomes["inserted"][:, 1] == pytest.approx(content.receiving, abs=1e-4)
    assert found.outcomes["masked"][:, 1] == pytest.approx(content.donor, abs=1e-4)
    assert found.base == pytest.approx(total.donor, abs=1e-4)


def test_slopes_by_hand() -> None:
    held = np.tile(np.log2([1.0, 2.0, 4.0, 8.0])[:, None], (2, 1, 4))
    held[1, 0, 0] = np.nan
    slopes = replace(doses(n=2), log_odds={"held": held}).slopes()
    assert slopes[0] == pytest.approx(1 / np.log(2)) and np.isnan(slopes[1]).tolist() == [True, False, False, False]
