"""The calibration benchmark: strengths are what they are called, rates are counted right, the page is written."""

import bench_calibration as bench
import numpy as np
import pytest

import mless_interp as mi
from mless_interp.statistics import detectable_prevalence

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")  # too few problems: what is measured here


def test_a_planted_strength_is_about_the_share_that_is_removed() -> None:
    planted, wanted = bench.with_strengths(3, (0.05, 0.1, 0.3))
    found = bench.located(mi.load_model(planted, backend="bridge"), planted.problems(6), 5)
    shares = {strength: bench.shares_of_total(found, head) for head, strength in wanted.items()}
    assert sum(wanted.values()) == pytest.approx(1)
    assert all(0.75 * strength < share < 1.35 * strength for strength, share in shares.items()), shares


@pytest.mark.slow
def test_rates_of_a_tiny_run_are_as_they_must_be() -> None:
    shared = bench.share_part(2, (16,), (0.0, 1.0))
    assert shared[1.0, 16].right == bench.Tally(2, 2) and shared[0.0, 16].named == bench.Tally(0, 2)
    rates, again = bench.strength_part(2, (8, 16), (0.02, 0.3))
    assert rates[0.3, 16].right == bench.Tally(2, 2) and rates[0.02, 16].named == bench.Tally(0, 2)
    assert rates[0.3, 8].named == bench.Tally(0, 2), "8 problems can name nobody"
    assert rates.others == {8: bench.Tally(0, 2), 16: bench.Tally(0, 2)}
    assert again[0.0, 0].right == bench.Tally(64, 64) and max(again.measured[0.0]) < 1e-3


def test_stored_effects_are_judged_as_the_analysis_judges() -> None:
    planted, _ = bench.with_strengths(0, (0.2, 0.3))
    found = bench.located(mi.load_model(planted, backend="bridge"), planted.problems(16), 5)
    assert bench.judged_on(found, np.arange(16)).kinds == found.judged.kinds
    made = bench.resampled(found, 16, 5)
    assert made.passes.shape == made.prevalence.shape == (32,)
    assert made.passes[made.prevalence == 1].mean() > 0.9 and made.passes[made.prevalence < 0.5].max() == 0
    assert made.false == bench.Tally(0, 5)
    assert sum(cells for _, cells, _, _ in made.rows((0, 0.5, 1))) == made.prevalence.size
    # the promise is the inverse of the detectable prevalence
    assert bench.promised(64, 112, detectable_prevalence(64, 2 * 2 * 112, alpha=0.04)) == pytest.approx(0.8)
