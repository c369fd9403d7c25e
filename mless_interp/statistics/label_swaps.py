"""Is a label read from the problem that it belongs to? Problems in pairs, whose labels are exchanged; exact for any reader."""

from collections import Counter
from collections.abc import Sequence

import numpy as np
from jaxtyping import Int, Shaped

from .intervals import derive_generator

N_FOLDS = 5
Labels = Int[np.ndarray, " problem"]
Values = Shaped[np.ndarray, "problem label *cells"]
Margins = Shaped[np.ndarray, "problem *cells"]


def swap_partners(labels: Labels, kinds: Sequence[int], groups: Sequence[str], *, seed: int) -> Labels:
    """Return each problem's partner, in another group and with another label of the same kind; -1: it has none.

    Groups are paired by the label of their first problem, as many as can be, and their problems in order: first with first.
    Labels of different `kinds` are never compared (answers of different length).

    >>> swap_partners(np.array([7, 7, 7, 9]), [1] * 4, "abcd", seed=0)
    array([-1, -1,  3,  2])
    """
    members: dict[str, list[int]] = {}
    for place, name in enumerate(groups):
        members.setdefault(name, []).append(place)
    every = list(members.values())
    every = [every[at] for at in derive_generator(seed, "swap partners").permutation(len(every))]
    partners = np.full(len(labels), -1)
    for kind in sorted(set(kinds)):
        alike = [places for places in every if kinds[places[0]] == kind]
        counts = Counter(int(labels[places[0]]) for places in alike)
        # the commonest first: half of the list further on the label is another, wherever that is possible
        alike.sort(key=lambda places: (-counts[int(labels[places[0]])], int(labels[places[0]])))
        half = (len(alike) + 1) // 2
        for here, there in zip(alike, alike[half:], strict=False):
            for one, other in zip(here, there, strict=False):
                if labels[one] != labels[other] and kinds[one] == kinds[other]:
                    partners[one], partners[other] = other, one
    return partners


def swap_margins(values: Values, labels: Labels, partners: Labels) -> Margins:
    r"""Return by how much the own labels of a problem and its partner are read better than the exchanged ones.

    $$ m_p = V_{p, t_p} - V_{q, t_p} + V_{q, t_q} - V_{p, t_q} $$

    `[problem, *cells]`, the same for both partners, NaN without one. Where labels say nothing of what is read, exchanging the
    two problems changes the sign alone: a sign test of pairs is exact, however labels are distributed.

    >>> swap_margins(np.array([[-1.0, -4], [-2, -3]]), np.array([0, 1]), np.array([1, 0]))
    array([2., 2.])
    """
    own = values[np.arange(len(values)), labels]
    theirs = values[np.arange(len(values)), labels[partners]]
    margins = own - theirs[partners] + (own[partners] - theirs)
    return np.where((partners >= 0).reshape(len(partners), *[1] * (values.ndim - 2)), margins, np.nan)


def forward_folds(units: Sequence[str], groups: Sequence[str], *, seed: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return (training problems, tested problems) of each step forward: a fold's pairs are read by what earlier folds taught.

    `units` name the pair of groups that a problem belongs to ("": none). Pairs are shuffled into five folds, of which the first
    only teaches; groups without a pair teach from the beginning. Readers never learn from later folds, or the signs of two
    pairs would not be independent.
    """
    named = sorted(set(units) - {""})
    order = derive_generator(seed, "forward folds").permutation(len(named))
    fold_of = {named[at]: fold for fold, part in enumerate(np.array_split(order, N_FOLDS)) for at in part}
    unit_of = {group: unit for group, unit in zip(groups, units, strict=True) if unit}
    fold = np.array([fold_of.get(unit_of.get(group, ""), -1) for group in groups])
    tested = np.array([bool(unit) for unit in units])
    steps = [(np.flatnonzero(fold < at), np.flatnonzero((fold == at) & tested)) for at in range(1, N_FOLDS)]
    return [(train, test) for train, test in steps if len(train) and len(test)]
