"""Specialists: heads that act in some strata of the problems, and never where strata mean nothing."""

from typing import Any

import numpy as np
import pytest
from models_under_test import loaded

import mless_interp as mi
from mless_interp.circuits.judge import Judged, judge
from mless_interp.core.heads import Head

HEADS = (Head(0, 0), Head(0, 1), Head(1, 0), Head(1, 1))


def drawn(generator: np.random.Generator, n: int = 160) -> tuple[dict[str, np.ndarray], np.ndarray, np.ndarray]:
    """Skewed effects: a head that acts everywhere, one in stratum a alone, one against the effect in b, one nowhere."""
    strata = np.array([f"{'abcd'[at % 4]}" for at in range(n)])
    total = np.exp(generator.normal(0, 1, n)) + 1
    acts = np.stack([np.ones(n), strata == "a", -1.0 * (strata == "b"), np.zeros(n)], 1)
    share = acts * generator.uniform(0.6, 1.0, acts.shape) * np.exp(generator.normal(0, 0.3, acts.shape))
    noise = generator.normal(0, 0.003, acts.shape) * total[:, None]
    z = share * total[:, None] + noise
    return {"z_removed": z, "z_added": z + 0.0}, total, strata


def judged(values: dict[str, np.ndarray], total: np.ndarray, strata: Any, **options: Any) -> Judged:
    return judge(values, total, HEADS, strata=tuple(strata), **options)


def test_specialists_are_named_in_their_strata() -> None:
    values, total, strata = drawn(np.random.default_rng(0))
    found = judged(values, total, strata)
    assert found.kinds[0] == "carrier" and found.kinds[1:3] == ("specialist",) * 2 and found.kinds[3] != "specialist"
    inside = [(str(each.head), each.stratum, each.side, each.sense) for each in found.in_strata]
    assert [each for each in inside if each[0] != "L0H0"] == [("L0H1", "a", "both", 1), ("L1H0", "b", "both", -1)]
    assert sum(each[0] == "L0H0" for each in inside) == 4
    assert judge(values, total, HEADS).kinds[1:3] != ("specialist",) * 2  # without strata nothing is searched for


def test_one_family_over_all_problems_and_strata_that_are_large_enough() -> None:
    values, total, strata = drawn(np.random.default_rng(1), 84)
    strata[:3], strata[3:9] = "rare", "few"
    found = judged(values, total, strata)
    assert set(found.large) == set("abcd")
    alone = judge(values, total, HEADS)
    ratio = found.sides["removed"].p_corrected[0, 0] / alone.sides["removed"].p_corrected[0, 0]
    assert ratio == pytest.approx(5, rel=0.2)  # four strata beside all problems


@pytest.mark.parametrize("seed", range(3))
def test_shuffled_strata_name_no_specialist(seed: int) -> None:
    generator = np.random.default_rng(seed)
    values, total, strata = drawn(generator, 240)
    shuffled = [judged(values, total, generator.permutation(strata)).kinds for _ in range(40)]
    assert sum("specialist" in kinds for kinds in shuffled) <= 2  # 5 % of 40


def test_a_key_that_some_problems_lack_is_named(tiny_model_dir: Any) -> None:
    model = loaded(tiny_model_dir("qwen2"), "bridge")
    pairs = mi.pairs_from_ids([[1, 2, 3], [4, 5, 6]], [1, 2], span=(0, 1), tags=[{"kind": "a"}, {"sort": "b"}])
    with pytest.raises(ValueError, match=r"by='kind': 1 of 2 problems have nothing under that key .*all have answer"):
        mi.locate_heads(model, pairs, by="kind", progress=False)
