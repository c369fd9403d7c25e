"""Problems made ready by hand: units, halves, runs that are made once."""

from dataclasses import replace
from typing import Any

import pytest
from models_under_test import planted_here, planted_pairs

from mless_interp.patching.prepared import PER_UNIT, fit_pairs, prepare
from mless_interp.prompts.conditions import CONTRASTS
from mless_interp.prompts.own_ids import pairs_from_ids
from mless_interp.prompts.pairs import REPLACED, PromptPair


@pytest.fixture(scope="module")
def pairs() -> tuple[PromptPair, ...]:
    return tuple(planted_pairs(*planted_here(), 2 * PER_UNIT + 3))


def test_problems_of_one_geometry_share_a_batch_and_halves_keep_groups(pairs: Any) -> None:
    model = planted_here()[1]
    ready = prepare(model, pairs)
    assert [len(unit) for unit in ready.units] == [PER_UNIT, PER_UNIT, 3]
    assert sorted(at for unit in ready.units for at in unit) == list(range(len(pairs)))
    some = ready.only([4, 2])
    assert some.ids == (pairs[4].id, pairs[2].id) and some.units == ((0, 1),) and some.pairs[0] is ready.pairs[4]
    here, there = ready.halves()
    assert here.ids == ready.ids[::2] and there.ids == ready.ids[1::2]
    variants = [replace(pair, problem=replace(pair.problem, group=f"g{at // 3}")) for at, pair in enumerate(pairs[:9])]
    grouped = prepare(model, variants)
    assert grouped.n_groups == 3 and ready.n_groups == len(pairs) and len(set(grouped.groups)) == 3
    assert [half.ids for half in grouped.halves()] == [grouped.ids[:3] + grouped.ids[6:], grouped.ids[3:6]]
    assert prepare(model, ready) is ready and ready.settings["outcome"] == "answer_logprob"
    assert ready.settings["insertion"] == ready.insertion and "beside" not in ready.settings
    assert replace(ready, beside="dots").settings["beside"] == "dots"
    given = prepare(model, pairs_from_ids([[5, 6, 7]], [1], span=(1, 2), clean=[[5, 8, 7]]))
    beside, exchanged = replace(given, beside="dots"), CONTRASTS["replaced"]
    assert given.under(exchanged).bare[0].insertion is REPLACED is not given.under(CONTRASTS["shift"]).bare[0].insertion
    assert beside.under(exchanged) is beside and ready.under(CONTRASTS["content"]) is ready


def test_pairs_that_cannot_be_compared_are_counted_and_named(pairs: Any) -> None:
    model = planted_here()[1]
    with pytest.raises(ValueError, match="2 of 19 pairs merged tokens at the border of a text-level insertion"):
        fit_pairs([*(replace(pair, boundary_merge=True) for pair in pairs[:2]), *pairs[2:]])
    half = replace(pairs[1], solution_ids=(model.tokenizer.unk_token_id, pairs[1].answer_ids[0]))
    with pytest.raises(ValueError, match=f"problem '{half.id}': 50 % of its solution's tokens are the unknown token"):
        prepare(model, [pairs[0], half], "solution_logprob")
    assert prepare(model, [half]).ids == (half.id,), "no other outcome reads the solution"
