"""Do given heads rank higher than random ones of their layers? By hand, with ties, with limits over problems."""

from typing import Any

import numpy as np
import pytest
from scipy import stats
from small_results import located

from mless_interp.core.heads import Head
from mless_interp.paper import enrichment
from mless_interp.patching.sweep import PatchScores


def swept(effects: Any, first: int | None = None) -> PatchScores:
    """A sweep with these effects `[problem, layer, head]`, of the first heads, all of them unless said."""
    effects = np.array(effects, dtype=float)
    n, layers, heads = effects.shape
    members = tuple(Head(layer, head) for layer in range(layers) for head in range(heads))[:first]
    return PatchScores(tuple(f"p{i}" for i in range(n)), effects, np.zeros(n), np.ones(n), members, "nats")


def test_ranks_by_hand() -> None:
    made = swept([[[0.1, -0.9, 0.5, 0.3]]] * 2)
    best = enrichment(made, [Head(0, 1), Head(0, 2)])
    assert best.ranks == {"L0H1": 1, "L0H2": 2} and best.mean_rank == 1.5 and best.expected_rank == 2.5
    assert best.p == pytest.approx(1 / 6, abs=0.015)  # one of the six pairs is as good
    worst = enrichment(made, [Head(0, 0), Head(0, 3)])
    assert worst.mean_rank == 3.5 and worst.p == 1.0
    ragged = swept([[[0.1, -0.9, 0.5, 0.3, 0.2], [1, 2, 3, np.nan, np.nan]]] * 2, 8)
    two = enrichment(ragged, ["L0H1", "L1H1"])
    assert (two.ranks, two.mean_rank, two.expected_rank) == ({"L0H1": 1, "L1H1": 2}, 1.5, 2.5)
    assert two.p == pytest.approx(3 / 15, abs=0.015)  # (1, 1), (1, 2) and (2, 1) of five heads and three
    assert np.isnan(enrichment(swept([[[0.1, -0.9, 0.5, 0.3]]]), [Head(0, 1)]).limits["L0H1"]).all()


def test_equal_heads_are_not_special() -> None:
    """Three of 28 heads that all do the same: by places in the table they would be the first three, p = 0.0003."""
    same = enrichment(swept(np.ones((4, 1, 28))), [Head(0, 0), Head(0, 1), Head(0, 2)])
    assert same.p == 1.0 and set(same.ranks.values()) == {14.5} and same.mean_rank == same.expected_rank


def test_located_heads_are_ranked_by_their_knockout_and_wrong_ones_are_refused() -> None:
    found = located()
    assert enrichment(found, [Head(0, 1)]).ranks == {"L0H1": 1}
    assert enrichment(found, [Head(0, 0)]).ranks == {"L0H0": 2}
    for heads, words in (([Head(0, 0), Head(9, 9)], "not tested: L9H9"), ([Head(0, 1)] * 2, "L0H1 is given twice")):
        with pytest.raises(ValueError, match=words):
            enrichment(found, heads)


def test_the_p_value_is_that_of_the_exact_rank_sum_test_and_limits_those_of_the_resamples() -> None:
    effects = np.random.default_rng(2).normal(size=(12, 1, 9)) + np.r_[np.zeros(6), 0.6, 0.3, 0.9]
    made, chosen = swept(effects), [Head(0, head) for head in (6, 7, 8)]
    found = enrichment(made, chosen, n_draws=20_000)
    size = np.abs(effects.mean((0, 1)))
    exact = stats.mannwhitneyu(size[6:], size[:6], alternative="greater", method="exact").pvalue
    assert found.p == pytest.approx(exact, abs=0.01)
    drawn = np.random.default_rng(5).integers(0, 12, (20_000, 12))
    ranks = stats.rankdata(-np.abs(effects[drawn, 0].mean(1)), axis=1)[:, 6:]
    limits = np.quantile(ranks, [0.025, 0.975], axis=0)
    np.testing.assert_allclose(np.array(list(found.limits.values())).T, limits, atol=1)
    assert enrichment(made, chosen, n_draws=1).p in (0.5, 1.0), "(1 + hits) / (1 + draws)"
