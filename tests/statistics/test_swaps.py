"""Labels exchanged between problems in pairs, and readers that learn from earlier pairs alone."""

import numpy as np

from mless_interp.statistics import forward_folds, swap_margins, swap_partners


def test_partners_differ_in_token_and_group_and_are_as_many_as_can_be() -> None:
    for seed in range(20):
        draw = np.random.default_rng(seed)
        labels = draw.choice(4, 31, p=[0.55, 0.25, 0.1, 0.1])
        groups = [str(each) for each in draw.permutation(31)]
        partners = swap_partners(labels, [1] * 31, groups, seed=seed)
        paired = np.flatnonzero(partners >= 0)
        assert (partners[partners[paired]] == paired).all() and (labels[paired] != labels[partners[paired]]).all()
        assert len(paired) == 2 * min(31 - np.bincount(labels).max(), 15)
    kinds = [1, 2, 1, 2]
    assert swap_partners(np.array([0, 1, 2, 3]), kinds, "abcd", seed=0).tolist() == [2, 3, 0, 1]
    together = swap_partners(np.array([0, 1, 2, 3]), [1] * 4, "aabb", seed=0)
    assert together.tolist() == [2, 3, 0, 1], "variants are no partners of one another"


def test_exchanging_two_problems_turns_their_margin_and_token_priors_cancel() -> None:
    draw = np.random.default_rng(0)
    values, labels, partners = draw.normal(size=(4, 3, 2)), np.array([0, 1, 2, 0]), np.array([1, 0, 3, 2])
    margins = swap_margins(values, labels, partners)
    np.testing.assert_allclose(swap_margins(values[[1, 0, 3, 2]], labels, partners), -margins)
    moved = values + draw.normal(size=(1, 3, 2)) + draw.normal(size=(4, 1, 2))
    np.testing.assert_allclose(swap_margins(moved, labels, partners), margins)
    assert np.isnan(swap_margins(values, labels, np.array([1, 0, -1, -1]))[2:]).all()


def test_probes_learn_from_earlier_pairs_alone() -> None:
    units = [f"u{at // 2}" for at in range(40)] + ["", ""]
    groups = [str(at) for at in range(42)]
    steps = forward_folds(units, groups, seed=0)
    seen: set[int] = set()
    for train, test in steps:
        assert not set(train) & set(test) and {40, 41} <= set(train) and seen <= set(train)
        assert {units[at] for at in train}.isdisjoint(units[at] for at in test)
        seen |= set(test.tolist())
    assert len(steps) == 4 and len(seen) == 32, "the first fold only teaches"
