"""What named heads are held against: specificity by hand, controls of a planted model, and insertions that are controls."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from analyses_under_test import asked, whole
from located_under_test import pairs_of, planted_kinds
from models_under_test import planted_here, planted_problems

from mless_interp.circuits.judge import KINDS, LEAST_MATCHED, MEASURES, Claims, beside_controls, specificity
from mless_interp.circuits.locate import Controls, locate_heads
from mless_interp.core.heads import Head
from mless_interp.patching.effect import Effect
from mless_interp.patching.interventions import MatchedMassKnockout
from mless_interp.patching.prepared import prepare
from mless_interp.patching.sweep import Sweep, patch_heads, sweep_heads
from mless_interp.prompts.conditions import CONTRASTS
from mless_interp.prompts.insertions import Insertion
from mless_interp.prompts.pairs import make_pairs
from mless_interp.runtime.loop import RunOptions

NAN = float("nan")
QUIET = RunOptions(progress=False)


def measured(own: Any, kind: str) -> dict[str, np.ndarray]:
    """One head's measures `[problem, 1]`: all of it read, or all of it mediated, on both sides."""
    column = np.asarray(own, dtype=float)[:, None]
    parts = ("knockout", "edge_noise") if KINDS[kind].reads else ("mediated_removed", "mediated_added")
    return {name: column if name in parts else 0 * column for name in MEASURES}


def held(random: Any, matched: Any) -> dict[str, np.ndarray]:
    sizes, mass = (np.asarray(each, dtype=float)[:, None] for each in (random, matched))
    both = {f"random_size_{side}": sizes for side in ("removed", "added")}
    return both | {"matched_mass": mass, "matched_mass_size": np.abs(mass)}


def one(own: Any, random: Any, matched: Any, kind: str = "reader", *, sense: int = 1) -> Any:
    """Of a total effect of 1 in every problem: more is by more than 0.05."""
    said = Claims(1.0, (Head(1, 0),), (kind,), np.array([sense]))
    return specificity(Effect(np.ones(len(own))), said, measured(own, kind), held(random, matched))


@pytest.mark.parametrize(
    ("own", "random", "matched", "kind", "sense", "specific"),
    [
        (1.0, 0.1, 0.1, "reader", 1, True),
        (-1.0, 0.1, 0.1, "reader", -1, True),  # in its own sense
        (-1.0, 0.1, 0.1, "reader", 1, False),  # the other way than claimed
        (1.0, 1.4, 0.1, "reader", 1, False),  # random words do as much
        (1.0, 0.1, 1.4, "reader", 1, False),  # any attention taken does as much
        (1.0, 0.1, 1.4, "mediator", 1, True),  # a mediator reads nothing that could be matched
        (1.0, 0.1, 1.4, "redundant reader", 1, True),  # not needed: its knockout claims nothing
        (1.0, 0.1, NAN, "reader", 1, True),  # not enough other attention: random words decide
        (1.0, 1.4, NAN, "reader", 1, False),
    ],
)
def test_what_specific_means_by_hand(
    own: float, random: float, matched: float, kind: str, sense: int, specific: bool
) -> None:
    shape = np.array([0.9, 1.0, 1.1, 1.05, 0.95, 1.02, 0.97])
    found = one(own * shape, random * (shape if random > 0.9 else shape[::-1]), matched * shape, kind, sense=sense)
    assert bool(found["p_specific"][0] < 0.04) == specific
    if specific:
        assert found["p_specific"][0] == 1 / 2**7, "one-sided, 7 problems that all agree"
        assert (found["exceeds_random"][0], found["exceeds_random_n"][0]) == (7, 7)
    needed = KINDS[kind].reads and KINDS[kind].side != "added" and not np.isnan(matched)
    assert found["exceeds_mass_n"][0] == (7 if needed else 0)


def test_few_problems_still_meet_the_matched_knockout() -> None:
    """All 7 of 7 problems are enough; 5 of 20 are not, 9 of 20 or 19 neither, 10 are."""
    many = np.tile([1.0, 1.1, 0.9, 1.05, 0.95], 4)
    assert one(many[:7], 0.1 * many[:7], 2 * many[:7])["p_specific"][0] == 1.0
    assert LEAST_MATCHED == 8
    for n, defined, decides in ((20, 5, False), (20, 9, False), (19, 9, False), (20, 10, True), (19, 10, True)):
        some = np.where(np.arange(n) < defined, 2 * many[:n], NAN)
        found = one(many[:n], 0.1 * many[:n][::-1], some)
        assert (found["p_specific"][0] == 1.0) == decides and found["exceeds_mass_n"][0] == defined


def test_holm_is_over_the_named_heads_and_their_p_comes_from_fresh_problems_only() -> None:
    said = Claims(1.0, (Head(1, 0), Head(1, 1)), ("mediator", "mediator"), np.array([1, 1]))
    both = {name: np.repeat(array, 2, 1) for name, array in measured(np.ones(9), "mediator").items()}
    controls = {name: np.repeat(array, 2, 1) for name, array in held(np.full(9, 0.1), np.full(9, NAN)).items()}
    for fresh, p in ((True, [2 / 2**9] * 2), (False, [NAN] * 2)):
        table = beside_controls(Effect(np.ones(9)), said, both, controls, fresh=fresh)
        np.testing.assert_array_equal(table["p_specific"], p)
    # where nothing can be cut off, z patches alone
    uncut = replace(said, kinds=("carrier", "sufficient only"))
    z = {name: np.full((9, 2), each) for name, each in (("z_removed", 0.5), ("z_added", 0.3))}
    beside = {f"random_{name}": each / 10 for name, each in z.items()}
    table = beside_controls(Effect(np.ones(9)), uncut, z, beside, fresh=True)
    np.testing.assert_allclose(table[["effect", "random_effect"]], [[0.5, 0.05], [0.3, 0.03]])


def test_the_gap_alone_is_the_shift_contrast() -> None:
    found, on = whole("located").confirmation, asked()
    for side, direction in (("removed", "denoising"), ("added", "noising")):
        options: dict[str, Any] = {"contrast": "shift", "direction": direction, "heads": found.heads}
        run = patch_heads(on.model, on.fresh, **options, progress=False)
        assert found.controls[f"shift_z_{side}"] == pytest.approx(run.per_head, abs=1e-6)
        assert found.controls["shift_total"] == pytest.approx(run.total_effect, abs=1e-6)
    assert np.abs(found.controls["shift_total"]).mean() < 0.1 * np.abs(found.total).mean(), "readers do not see a gap"
    edits = [Sweep.named("content", edit=MatchedMassKnockout(seed=3, draw=draw)) for draw in range(2)]
    runs = sweep_heads(prepare(on.model, on.fresh), dict(zip("ab", edits, strict=True)), found.heads, options=QUIET)
    drawn = np.stack([run.per_head for run in runs.values()])
    np.testing.assert_allclose(found.controls["matched_mass"], drawn.mean(0), atol=1e-6)
    np.testing.assert_allclose(found.controls["matched_mass_size"], np.abs(drawn).mean(0), atol=1e-6)


def test_the_readers_are_knocked_out_together_against_random_sets() -> None:
    made, found = planted_here()[0], whole("located")
    told = found.confirmation
    assert found.found == found.confirmed == planted_kinds(made) and told.heads == tuple(found.found)
    joint = told.joint
    assert set(joint.heads) == set(made.roles.readers) == set(told.reads.heads) and found.joint is None
    assert joint.effect == pytest.approx(told.total, rel=0.05), "together they are the whole effect"
    reads = [told.heads.index(head) for head in joint.heads]
    assert joint.singles == pytest.approx(told.values["knockout"][:, reads]) and joint.p == pytest.approx(1 / 6)


def test_without_fresh_problems_the_same_ones_hold_the_named_heads() -> None:
    made, model = planted_here()
    options: dict[str, Any] = {"heads": list(planted_kinds(made)), "n_control_draws": 1, "n_random_sets": 2}
    options |= {"confidence": 0.9, "smallest_effect": 0.1}
    found = locate_heads(model, pairs_of(made, model, 9), **options, progress=False)
    assert found.found == planted_kinds(made) and found.joint is not None and found.reads is not None
    assert not found.joint.chosen_elsewhere and not found.reads.chosen_elsewhere and len(found.joint.sets) == 2
    assert (found.reads.confidence, found.reads.smallest_effect) == (0.9, 0.1)
    assert found.settings["left_out"] == {}
    assert found.control_table()["random_effect"].notna().all() and found.control_table()["p_specific"].isna().all()


def test_controls_need_one_insertion() -> None:
    made, model = planted_here()
    pairs = [
        *pairs_of(made, model, 2),
        *make_pairs(model, planted_problems(made, 4)[2:], Insertion.random_sentence(20)),
    ]
    with pytest.raises(ValueError, match=r"the pairs have 2 insertions \(.*, .*\): .* leave controls out"):
        locate_heads(model, pairs, progress=False)


def test_every_draw_of_random_words_is_measured_and_they_are_averaged() -> None:
    words = ("door", "snow", "quiet", "together", "dog", "sister", "bread", "green", "often", "sugar")
    made, model = planted_here(reads=("/", *words))  # else random words do nothing
    own, heads = pairs_of(made, model, 3), (*made.roles.readers, *made.roles.mediators)
    controls = Controls(2, 0, CONTRASTS["content"], RunOptions(progress=False), 0.95, 0.05)
    found = controls._other_insertions(prepare(model, own), heads, {})
    known, mediated = (found[f"random_{name}"] for name in ("knockout", "mediated_removed"))
    for edit, held in (("knockout", known), ("z", known + mediated)):
        each = []
        for draw in range(2):
            drawn = Insertion.random_sentence(own[0].n_inserted, seed=0, draw=draw)
            under = make_pairs(model, [pair.problem for pair in own], drawn, template=own[0].template)
            each.append(patch_heads(model, under, heads=heads, edit=edit, progress=False).per_head)
        assert np.abs(each[0] - each[1]).max() > 0.01, "else an average shows nothing"
        assert np.allclose(held, np.mean(each, axis=0), atol=1e-5)
    assert np.allclose(found["random_size_removed"], np.mean(np.abs(each), axis=0), atol=1e-5)
    repeated = make_pairs(model, [pair.problem for pair in own], Insertion.meaningful("he", own[0].n_inserted))
    left_out: dict[str, str] = {}
    again = controls._other_insertions(prepare(model, repeated), heads[:1], left_out)
    assert left_out == {"mful": "it is the insertion under study"} and "mful_knockout" not in again
