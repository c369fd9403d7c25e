"""Sets of heads knocked out together: the definition, random sets of the same layers, interactions, what is said."""

import itertools
from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from conftest import ARCHITECTURES
from models_under_test import pairs_for, planted_here, planted_pairs
from small_results import knocked_out

from mless_interp.core.heads import Head
from mless_interp.models.info import ModelInfo
from mless_interp.patching.interventions import Knockout, run_edits
from mless_interp.patching.knockouts import joint_knockout, random_sets
from mless_interp.patching.outcomes import OUTCOMES
from mless_interp.patching.sweep import patch_heads


def geometry(n_layers: int, n_heads: int) -> ModelInfo:
    model = planted_here()[1]
    return replace(model.info, n_layers=n_layers, n_heads=n_heads)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_it_is_one_forward_pass_with_the_knockout_in_all_these_heads(model: Any) -> None:
    pairs = pairs_for(model, count=2)
    heads = (Head(0, 1), Head(0, 6), Head(2, 3))
    made = joint_knockout(model, pairs, heads, n_random_sets=2, progress=False)
    outcome = OUTCOMES["answer_logprob"]
    for index, bare in enumerate(pairs):
        pair = bare.answered("answer")
        inputs, start = pair.condition("inserted"), len(pair.inserted) - pair.n_after
        read = [len(pair.inserted) - back for back in outcome.reads(pair)]
        plain = outcome.value(model.run(inputs.tokens, logits_at=read).logits, pair, None)
        for members, effect in ((heads, made.effect), *zip(made.sets, made.random.T, strict=True)):
            edits = run_edits(model, inputs, Knockout(), members, span=pair.span_mask[None], start=start)
            shut = outcome.value(model.run(inputs.tokens, edits=edits, logits_at=read).logits, pair, None)
            assert effect[index] == pytest.approx(float(plain - shut), abs=1e-4)
    assert np.abs(made.effect).max() > 0.01


def test_planted_readers_do_what_random_sets_do_not() -> None:
    made, model = planted_here()
    pairs = planted_pairs(made, model, 6)
    options: dict[str, Any] = {"chosen_elsewhere": True, "progress": False}
    readers = joint_knockout(model, pairs, made.roles.readers, n_random_sets=12, **options)
    total = patch_heads(model, pairs, heads=made.roles.readers, progress=False).total_effect
    assert readers.effect == pytest.approx(total, rel=0.05), "together they are the whole effect"
    assert len(readers.sets) == 12 and readers.p == pytest.approx(1 / 13)
    shared = np.array([bool(set(members) & set(made.roles.readers)) for members in readers.sets])
    assert np.abs(readers.random.mean(0))[~shared].max() < 0.05 * readers.effect.mean()
    assert shared.any() and np.abs(readers.random.mean(0))[shared].min() > 0.2 * readers.effect.mean()
    others = joint_knockout(model, pairs, [Head(0, 0), Head(0, 2)], n_random_sets=14, **options)
    assert others.p > 0.1, "a silent decoy and an idle head are nothing special"


def test_random_sets_keep_the_layers_and_are_drawn_as_the_given_one_could_be() -> None:
    given = (Head(0, 1), Head(0, 2), Head(2, 0))
    sets = random_sets(given, geometry(3, 8), 40, seed=0)
    assert len(set(sets)) == 40
    for members in sets:
        assert Counter(head.layer for head in members) == {0: 2, 2: 1} and len(set(members)) == 3
        assert set(members) != set(given)
    assert sets == random_sets(given, geometry(3, 8), 40, seed=0) != random_sets(given, geometry(3, 8), 40, seed=1)
    every = random_sets(given, geometry(3, 8), 28 * 8 - 1, seed=0)  # 8 choose 2, times 8, but for the set itself
    assert len(set(every)) == 28 * 8 - 1 == len(random_sets(given, geometry(3, 8), 999, seed=0))
    assert any(set(members) & set(given) for members in sets), "only so is the rank of the given set a p-value"
    few, info = (Head(0, 0), Head(1, 0)), geometry(2, 3)
    all_pairs = set(itertools.product(*([Head(layer, h) for h in range(3)] for layer in range(2))))
    assert set(random_sets(few, info, 100, seed=0)) == all_pairs - {few}
    assert random_sets(info.heads, info, 100, seed=0) == (), "there is no other"


def test_ranks_and_interactions_by_hand() -> None:
    arrays = {
        "effect": [1.0, 3.0],
        "singles": [[0.5, 0.25], [0.5, 0.75]],
        "random": [[0.0, -2.5, 2.0], [0.5, -2.0, 2.0]],
    }
    made = replace(knocked_out(2), **{name: np.array(each) for name, each in arrays.items()}, chosen_elsewhere=True)
    # |medians|: 2 of the set; 0.25, 2.25 and 2 of the random ones, of which two reach it
    assert made.n_as_large == 2 and made.p == pytest.approx(3 / 4)
    assert made.interaction.tolist() == [0.25, 1.75]
    against = replace(made, effect=-made.effect, random=np.array([[0.5], [0.5]]), sets=made.sets[:1])
    assert against.p == pytest.approx(1 / 2)
    assert np.isnan(replace(made, chosen_elsewhere=False).p), "chosen on these problems"
