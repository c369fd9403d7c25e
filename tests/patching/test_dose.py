"""Dose-response: a slope of exactly 1 where it must be, the outcome per dose, the script from end to end."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from conftest import ARCHITECTURES, BACKENDS
from models_under_test import loaded, problems
from small_results import doses

from mless_interp.core.heads import Head
from mless_interp.models.sites import site
from mless_interp.patching.dose import checked_doses, dose_response
from mless_interp.patching.sweep import patch_heads
from mless_interp.prompts.insertions import Insertion
from mless_interp.prompts.pairs import make_pairs
from mless_interp.statistics import median_interval

DOSES = (1, 4, 16, 40)
SLASHES = Insertion.meaningless(" /", 55)


@pytest.mark.parametrize("architecture", ["qwen2", "llama", "gemma3"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_held_slope_is_exactly_one_in_the_first_layer(architecture: str, backend: str, tiny_model_dir: Any) -> None:
    """I12, for every head and problem, on every backend; under Gemma's window of 16 rows count that see every dose."""
    model = loaded(tiny_model_dir(architecture), backend)
    found = dose_response(model, problems()[:2], SLASHES, doses=DOSES, progress=False)
    assert found.slopes("held") == pytest.approx(1, abs=1e-5)
    assert np.isfinite(found.slopes("inserted")).all()
    assert np.abs(found.slopes("inserted") - 1).max() > 1e-3, "where positions move as well it is not exact"
    constant = found.log_odds["held"] - np.log(DOSES)[None, :, None]
    assert np.abs(constant - constant[:, :1]).max() < 1e-5, "log N plus a constant, not only on average"


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_log_odds_are_those_of_the_model_s_own_pattern(architecture: str, tiny_model_dir: Any) -> None:
    model = loaded(tiny_model_dir(architecture), "bridge")
    found = dose_response(model, problems()[:1], SLASHES, doses=(2, 8), layer=1, progress=False)
    (pair,) = make_pairs(model, problems()[:1], Insertion.meaningless(" /", 8))
    pair = pair.answered()
    name = site(1, "attn.hook_pattern")
    pattern = model.run(pair.inserted.tokens, capture={name: None}, logits_at="none").captured[name][0]
    mass = pattern[:, pair.span[1] :, pair.span_mask].sum(-1).double()
    assert found.log_odds["inserted"][0, 1] == pytest.approx(np.asarray(mass.logit().mean(-1)), abs=1e-4)


def test_outcomes_are_those_of_the_conditions(tiny_model_dir: Any) -> None:
    model = loaded(tiny_model_dir("qwen2"), "bridge")
    found = dose_response(model, problems(), SLASHES, doses=(3, 9), progress=False)
    pairs = make_pairs(model, problems(), Insertion.meaningless(" /", 9))
    content, total = (
        patch_heads(model, pairs, contrast=contrast, heads=[Head(0, 0)], progress=False)
        for contrast in ("content", "total")
    )
    assert found.outcomes["inserted"][:, 1] == pytest.approx(content.receiving, abs=1e-4)
    assert found.outcomes["masked"][:, 1] == pytest.approx(content.donor, abs=1e-4)
    assert found.base == pytest.approx(total.donor, abs=1e-4)
    table = found.outcome_table().set_index("n_tokens")
    assert table.loc[9, "content"] == pytest.approx(np.median(content.total_effect), abs=1e-4)
    assert table.loc[9, "total"] == pytest.approx(np.median(content.receiving - total.donor), abs=1e-4)
    assert table.loc[9, "shift"] == pytest.approx(np.median(content.donor - total.donor), abs=1e-4)


def test_slopes_by_hand() -> None:
    held = np.tile(np.log2([1.0, 2.0, 4.0, 8.0])[:, None], (2, 1, 4))
    held[1, 0, 0] = np.nan
    slopes = replace(doses(n=2), log_odds={"held": held}).slopes()
    assert slopes[0] == pytest.approx(1 / np.log(2)) and np.isnan(slopes[1]).tolist() == [True, False, False, False]
    with pytest.raises(ValueError, match="at least two increasing numbers"):
        checked_doses([5], "meaningless")


def test_the_dose_picked_by_its_effect_has_an_interval_for_all_doses_together() -> None:
    made = doses(n=16)
    alone, together = made.effects(), made.effects(together=True)
    assert (together.high - together.low > alone.high - alone.low).all()
    both = median_interval(made.outcomes["inserted"] - made.base[:, None], confidence=1 - 0.05 / 4)
    assert together.high.tolist() == both.high.tolist(), "Bonferroni over 4 doses"
    table = made.outcome_table()
    assert table["total_together_ci_low"].to_numpy() == pytest.approx(together.low)
    assert f"[{together.low[3]:+.4f}, {together.high[3]:+.4f}] (interval for all 4 doses at once" in made.headline()


def test_what_is_drawn_of_the_heads_stands_in_one_table() -> None:
    found = doses(slope=2.0)
    table, heads = found.reading_table("held"), ["L0H0", "L0H1", "L0H2", "L0H3"]
    assert table["mean"].to_numpy() == pytest.approx(2 * np.log([1, 2, 4, 8]) - 2.5)
    assert (table["mean_ci_low"] < table["mean"]).all() and (table["mean"] < table["mean_ci_high"]).all()
    assert np.diff(table["slope_1"]) == pytest.approx(np.log(2)), "one unit per unit of log N"
    assert np.median(table[heads].to_numpy() - table[["slope_1"]].to_numpy()) == pytest.approx(0), "through the middle"
    slope = found.mean_slope("inserted")
    assert float(slope.estimate) == pytest.approx(2.2) and float(slope.low) <= 2.2 + 1e-9
