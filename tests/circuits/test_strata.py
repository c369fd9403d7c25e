"""Specialists: heads that act in some strata of the problems, and never where strata mean nothing."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from conftest import needs_hooked_transformer
from models_under_test import four_specialists, of_classes
from small_results import in_strata

import mless_interp as mi
from mless_interp.circuits.judge import Judged, judge
from mless_interp.circuits.located import strata_of
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
    ways = {
        name: each @ np.array([[1, 0, 0, 0], [0, 1, 0, 0], [0, 1, 1, 0], [0, 0, 0, 1]]) for name, each in values.items()
    }
    turning = judged(ways, total, strata)  # with the effect in a, against it in b
    assert turning.kinds[1] == "specialist" and turning.sense[1] == 0 and turning.found.senses[1] == 1
    for added, sides in ((-1, []), (0, ["removed"])):  # each way, on one side
        other = judged({**values, "z_added": values["z_added"] * [1, added, 1, 1]}, total, strata)
        assert [each.side for each in other.in_strata if each.head == HEADS[1]] == sides


def test_one_family_over_all_problems_and_strata_that_are_large_enough() -> None:
    values, total, strata = drawn(np.random.default_rng(1), 84)
    strata[:3], strata[3:9] = "rare", "few"
    found = judged(values, total, strata)
    assert set(found.large) == set("abcd")
    alone = judge(values, total, HEADS)
    ratio = found.sides["removed"].p_corrected[0, 0] / alone.sides["removed"].p_corrected[0, 0]
    assert ratio == pytest.approx(5, rel=0.2)  # four strata beside all problems


@pytest.mark.parametrize(("sizes", "large"), [((9, 9), "ab"), ((8, 9), "b"), ((8, 8), "a"), ((8,), "a"), ((7,), "")])
def test_strata_are_tested_where_they_can_still_pass(sizes: tuple[int, ...], large: str) -> None:
    """Of one head 4 tests over all problems and 4 in each stratum: 8 of 2^-8 are below 0.04, 12 of 2^-9, not of 2^-8."""
    strata = "".join(name * size for name, size in zip("ab", sizes, strict=False))
    values = {name: np.ones((len(strata), 1)) for name in ("z_removed", "z_added")}
    groups = tuple(map(str, range(len(strata))))
    for more in ({}, {"groups": groups}):
        assert judge(values, values["z_added"][:, 0], HEADS[:1], strata=tuple(strata), **more).large == tuple(large)
    one = judge(values, values["z_added"][:, 0], HEADS[:1], strata=tuple(strata), groups=("0",) * len(strata))
    assert one.large == (), "variants of a problem count once"


@pytest.mark.parametrize("seed", range(3))
def test_shuffled_strata_name_no_specialist(seed: int) -> None:
    generator = np.random.default_rng(seed)
    values, total, strata = drawn(generator, 240)
    shuffled = [judged(values, total, generator.permutation(strata)).kinds for _ in range(40)]
    assert sum("specialist" in kinds for kinds in shuffled) <= 2  # 5 % of 40


def test_a_specialist_by_hand() -> None:
    """2 of 36 tests are smaller than those of 20 problems."""
    found = in_strata()
    again = found.confirmation
    assert found.specialists == {mi.Head(1, 0): ("a",)} and found.judged.large == ("a", "b")
    inside = found.by_stratum().set_index(["label", "stratum"])
    assert set(inside.index[inside["passes"]]) == {("L0H1", "a"), ("L0H1", "b"), ("L1H0", "a")}
    a, b = inside.loc[("L1H0", "a")], inside.loc[("L1H0", "b")]
    assert a[["n", "removed_k", "added_k"]].tolist() == [20, 20, 20] and b[["n", "removed_k"]].tolist() == [20, 0]
    assert a[["removed_p", "added_p"]].tolist() == [34 * 2.0**-20] * 2
    assert again.p[1] == 4 * 2.0**-20 and again.kinds_again[1] == "specialist"
    assert strata_of(again.confirmed_within, mi.Head(1, 0)) == ("a",)
    assert found.by_stratum()["confirmed"].dropna().tolist() == [True] * 3
    lost, elsewhere = (replace(again, strata=tuple(names * 20)) for names in ("ba", "cc"))
    assert not lost.confirmed[1] and lost.kinds_again[1] == "undecided" and np.isnan(elsewhere.p[1])


def test_a_key_that_some_problems_lack_is_named(model: Any) -> None:
    pairs = mi.pairs_from_ids([[1, 2, 3], [4, 5, 6]], [1, 2], span=(0, 1), tags=[{"kind": "a"}, {"sort": "b"}])
    with pytest.raises(
        ValueError, match=r"by='kind': 1 of 2 problems have nothing under that key .*all have answer, group$"
    ):
        mi.locate_heads(model, pairs, by="kind", progress=False)


@needs_hooked_transformer
def test_fresh_problems_keep_a_specialists_verdict_and_say_which_strata_confirm_it(tmp_path: Any) -> None:
    model, options = four_specialists(), {"contrast": "replaced", "by": "answer", "progress": False}
    found = mi.locate_heads(model, of_classes(64, 0), **options, confirm=of_classes(64, 1))
    served = {Head(0, at): (str(at),) for at in range(4)}
    made = found.confirmation
    assert found.specialists == served == {head: strata_of(made.confirmed_within, head) for head in served}
    assert made.confirmed.all() and made.kinds_again == made.kinds
    why = "pairs of token ids have no text to draw others from"
    assert made.settings["left_out"] == {"random": why, "mful": why} and "left_out" not in found.settings
    circuit = mi.trace_circuit(model, of_classes(32, 2), found, parts=["direct"], contrast="replaced", progress=False)
    assert "L0H0, L0H1, L0H2, L0H3 act in some strata of answer only" in circuit.caveats()[0]
    mi.save(tmp_path / "kept", found=found)
    assert mi.load(tmp_path / "kept")["found"].confirmation.confirmed_within == made.confirmed_within
