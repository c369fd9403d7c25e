"""Circuit curves: ends, sizes, random orders, areas by hand, messages."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from models_under_test import loaded, pairs_for
from small_results import curve as curve_by_hand

from mless_interp.circuits.head_sets import CircuitCurve, circuit_curve, same_layers
from mless_interp.core.heads import Head
from mless_interp.patching.sweep import patch_heads


def test_no_head_one_and_all_are_as_in_a_sweep_of_knockouts(tiny_model_dir: Any) -> None:
    model, head = loaded(tiny_model_dir("qwen2"), "bridge"), Head(1, 2)
    made = circuit_curve(model, pairs := pairs_for(model, count=2), [head], n_random=0, progress=False)
    exact = patch_heads(model, pairs, heads=[head], edit="knockout", direction="noising", progress=False)
    assert made.sizes.tolist()[:2] == [0, 1] and made.sizes[-1] == len(model.info.heads)
    for at, expected in ((0, exact.receiving), (1, exact.patched[:, 1, 2]), (-1, exact.donor)):
        assert made.values[:, 0, at] == pytest.approx(expected, abs=1e-4)


def with_orders(*orders: Sequence[float]) -> CircuitCurve:
    """Of 16 heads 1, 2, 4 or all restore so much of an effect of 1 in each of 6 problems."""
    names = ("ranking", "reversed", *(f"random {at}" for at in range(len(orders) - 2)))
    return replace(curve_by_hand(), orders=names, values=np.tile(orders, (6, 1, 1)) + 3.0)


def test_areas_by_hand() -> None:
    """Sizes 0, 1/16, 2/16, 4/16 and all: trapezoids of 1, 1, 2 and 12 sixteenths."""
    found = with_orders([0, 0.25, 0.75, 1, 1], [0, 0, 0, 0, 1], [0, 0.5, 0.5, 0.5, 1], [0, 1, 1, 1.5, 1])
    cpr = np.array([0.125 + 0.5 + 1.75 + 12, 12 * 0.5, 0.25 + 0.5 + 1 + 9, 0.5 + 1 + 2.5 + 15]) / 16
    np.testing.assert_allclose(found.cpr, cpr)
    np.testing.assert_allclose(found.cmd, [1 - cpr[0], 1 - cpr[1], 1 - cpr[2], (0.5 + 0 + 2 * 0.25 + 12 * 0.25) / 16])
    assert np.isnan(found.p_random) and replace(found, chosen_elsewhere=True).p_random == 1 / 3
    two = replace(found, chosen_elsewhere=True, settings=found.settings | {"n_ranked": 2})
    assert two.alone.tolist() == pytest.approx([0.75, 0, 0.5, 1]) and two.p_random == 2 / 3
    assert replace(with_orders(*[[0, 0, 0, 0.25, 1]] * 3), chosen_elsewhere=True).p_random == 1
    np.testing.assert_allclose(found.table().iloc[3, 2:], [1, 0, 1, 0.5, 1.5])


def test_random_orders_keep_the_layer_of_every_place() -> None:
    order = [Head(layer, head) for head in range(4) for layer in (1, 0)]
    first, second = (same_layers(order, seed=0, draw=draw) for draw in (0, 1))
    assert [head.layer for head in first] == [head.layer for head in order] and set(first) == set(order)
    assert first != second and first == same_layers(order, seed=0, draw=0)


def test_wrong_requests_are_named(model: Any) -> None:
    for options, message in (
        ({"ranking": []}, "no heads to rank"),
        ({"outcome": "kl"}, "a circuit curve needs a signed outcome"),
        ({"n_random": -1}, "n_random must be 0 or more, got -1"),
    ):
        with pytest.raises(ValueError, match=message):
            circuit_curve(model, pairs_for(model, count=1), **{"ranking": ["L0H1"], "progress": False, **options})
