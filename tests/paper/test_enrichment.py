"""Do given heads rank higher than random ones of their layers? By hand, with ties, with limits over problems."""

from typing import Any

import numpy as np
import pytest

from mless_interp.heads import Head
from mless_interp.paper import enrichment
from mless_interp.patching.scores import PatchScores
from mless_interp.statistics import rank_enrichment


def swept(effects: Any) -> PatchScores:
    """A sweep with these effects `[problem, layer, head]`."""
    effects = np.array(effects, dtype=float)
    n, layers, heads = effects.shape
    members = tuple(Head(layer, head) for layer in range(layers) for head in range(heads))
    return PatchScores(tuple(f"p{i}" for i in range(n)), effects, np.zeros(n), np.ones(n), members, "nats")


def test_ranks_by_hand() -> None:
    made = swept([[[0.1, -0.9, 0.5, 0.3]]] * 2)
    best = enrichment(made, [Head(0, 1), Head(0, 2)])
    assert best.ranks == {"L0H1": 1, "L0H2": 2} and best.mean_rank == 1.5 and best.expected_rank == 2.5
    assert best.p == pytest.approx(1 / 6, abs=0.015)  # one of the six pairs is as good
    worst = enrichment(made, [Head(0, 0), Head(0, 3)])
    assert worst.mean_rank == 3.5 and worst.p == 1.0
    assert repr(worst) == "Mean rank 3.5 (random heads: 2.5), p = 1.0000. Ranks: L0H0 4 [4, 4], L0H3 3 [3, 3]."


def test_equal_heads_are_not_special() -> None:
    """Three of 28 heads that all do the same: by places in the table they would be the first three, p = 0.0003."""
    same = enrichment(swept(np.ones((4, 1, 28))), [Head(0, 0), Head(0, 1), Head(0, 2)])
    assert same.p == 1.0 and set(same.ranks.values()) == {14.5} and same.mean_rank == same.expected_rank
    first = np.zeros((4, 1, 28))
    first[:, 0, :3] = 1.0
    assert enrichment(swept(first), [Head(0, 0), Head(0, 1), Head(0, 2)]).p == pytest.approx(1 / 3276, abs=4e-4)


def test_the_figure_heads_14_and_22_have_limits_over_problems() -> None:
    effects = np.random.default_rng(0).normal(size=(40, 1, 28))
    effects[:, 0, 13] += 8.0  # head 14: the largest in every resample
    shown = [Head.from_paper(layer=1, head=head) for head in (14, 22)]
    found = enrichment(swept(effects), shown)
    table = found.to_frame().set_index("label")
    assert table.loc["L0H13", ["rank", "rank_ci_low", "rank_ci_high"]].tolist() == [1, 1, 1]
    low, rank, high = table.loc["L0H21", ["rank_ci_low", "rank", "rank_ci_high"]]
    assert low < rank < high and high - low > 5, "a head like the others has no firm rank"
    again = enrichment(swept(effects), shown)
    assert again.limits == found.limits and again.p == found.p
    alone = enrichment(swept(effects[:1]), shown)
    assert np.isnan(alone.limits["L0H13"]).all() and "[" not in alone.describe(), "one problem has no limits"


def test_random_heads_come_from_the_layers_of_the_given_ones() -> None:
    made = swept([[[0.1, 0.9], [5.0, 4.0]]] * 2)
    both = enrichment(made, [Head(0, 1), Head(1, 0)])
    assert both.mean_rank == 1.0 and both.p == pytest.approx(1 / 4, abs=0.02)
    everything = enrichment(made, made.heads)
    assert everything.mean_rank == everything.expected_rank == 1.5 and everything.p == 1.0


def test_located_heads_are_ranked_by_their_knockout() -> None:
    from small_results import located

    found = located()
    assert enrichment(found, [Head(0, 1)]).ranks == {"L0H1": 1}
    assert enrichment(found, [Head(0, 0)]).ranks == {"L0H0": 2}


def test_heads_that_were_not_tested_or_come_twice_are_refused() -> None:
    made = swept(np.ones((2, 1, 3)))
    with pytest.raises(ValueError, match=r"these heads were not tested: L9H9"):
        enrichment(made, [Head(0, 0), Head(9, 9)])
    with pytest.raises(ValueError, match="none given"):
        enrichment(made, [])
    with pytest.raises(ValueError, match="L0H1 is given twice"):
        enrichment(made, [Head(0, 1), Head(0, 1)])


@pytest.mark.parametrize(
    ("effects", "chosen", "options", "message"),
    [
        (np.ones((2, 2, 2)), [0], {}, r"effects must be \[problem, cell\], got shape \(2, 2, 2\)"),
        (np.ones((2, 3)), [3], {}, r"chosen must be numbers of cells from 0 to 2, got \[3\]"),
        (np.ones((2, 3)), [1, 1], {}, r"every cell is chosen once, got \[1, 1\]"),
        (np.ones((2, 3)), [1], {"strata": np.zeros(2)}, "one label per cell"),
        (np.array([[1.0, np.nan], [1.0, 2.0]]), [0], {}, r"1 cells are undefined \(NaN\) on some problem"),
    ],
)
def test_wrong_input_to_the_formula(effects: Any, chosen: Any, options: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        rank_enrichment(effects, np.array(chosen), **options)
