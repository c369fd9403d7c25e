"""Locating heads: exactly the planted ones, their kinds, specificity, honest negatives, and what is said about it."""

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import small_results as results
import torch
from models_under_test import loaded, pairs_for, planted_here, planted_pairs, planted_problems, without_stepper

from mless_interp.ground_truth.planted import PlantedModel
from mless_interp.heads import Head
from mless_interp.locating import control
from mless_interp.locating import measure as measuring
from mless_interp.locating.control import specificity
from mless_interp.locating.judge import judge
from mless_interp.locating.locate import locate_heads
from mless_interp.locating.located import CANNOT_SAY, MEASURES, LocatedHeads, enrichment
from mless_interp.locating.measure import N_SCREENED, estimated_seconds
from mless_interp.models.info import ModelError
from mless_interp.patching.prepared import prepare
from mless_interp.patching.scores import PatchScores
from mless_interp.patching.sweep import patch_heads
from mless_interp.prompts.insertions import Insertion
from mless_interp.prompts.pairs import make_pairs
from mless_interp.running.store import load, save


def kinds(found: LocatedHeads, kind: str) -> set[Head]:
    return {head for head, named in found.found.items() if kind in named.split("+")}


def located(made: PlantedModel, model: Any, count: int = 10, **options: Any) -> LocatedHeads:
    options = {"progress": False, "controls": False, "mode": "exact", "n_permutations": 2000, **options}
    return locate_heads(model, planted_pairs(made, model, count), **options)


@pytest.fixture(scope="module")
def found() -> LocatedHeads:
    """The default planted model, with controls."""
    made, model = planted_here()
    return located(made, model, controls=True, n_control_draws=2)


# ---------------------------------------------------------------------------------------------------- planted circuits


def test_exactly_the_planted_readers_and_mediators_are_named(found: LocatedHeads) -> None:
    made, _ = planted_here()
    assert kinds(found, "reader") == set(made.readers) and kinds(found, "mediator") == set(made.mediators)
    decoys = {head for heads in made.decoys.values() for head in heads} | {made.copier}
    assert decoys and not decoys & set(found.found)


@pytest.mark.parametrize("seed", [3, 7, 36])
def test_random_planted_circuits_are_recovered(seed: int) -> None:
    made, model = planted_here(seed, random=True)
    result = located(made, model, 12)
    assert kinds(result, "reader") == set(made.readers) and kinds(result, "mediator") == set(made.mediators)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 15, 39])
def test_more_random_planted_circuits_are_recovered(seed: int) -> None:
    made, model = planted_here(seed, random=True)
    result = located(made, model, 12)
    assert kinds(result, "reader") == set(made.readers) and kinds(result, "mediator") == set(made.mediators)


def test_a_head_that_reads_and_mediates_nothing_is_neither_however_strong_its_output() -> None:
    made, model = planted_here(4, sign=-1)
    result = located(made, model)
    assert float(result.total.mean()) < 0, "the span lowers the answer"
    assert kinds(result, "reader") == set(made.readers) and kinds(result, "mediator") == set(made.mediators)
    for head in result.found:
        assert np.sign(result.values["knockout"][:, result.heads.index(head)].mean()) <= 0 or head in made.mediators


def test_specific_where_only_slashes_are_read(found: LocatedHeads) -> None:
    flags = dict(zip(found.heads, found.specific, strict=True))
    assert all(flags[head] == 1 for head in found.found)
    assert all(np.isnan(flag) for head, flag in flags.items() if head not in found.found)
    assert {f"random_{measure}" for measure in MEASURES} <= set(found.controls)


def test_not_specific_where_any_inserted_text_is_read() -> None:
    made, _ = planted_here()
    words = [token for token in made.vocabulary.tokens if not made.vocabulary.in_prompts(token)]
    any_text, model = planted_here(reads=(*((word, 1.0) for word in words if word != "/"), ("/", 0.4)))
    result = located(any_text, model, controls=True, n_control_draws=2)
    assert kinds(result, "reader") == set(any_text.readers) and kinds(result, "mediator") == set(any_text.mediators)
    assert set(result.specific[~np.isnan(result.specific)]) == {0.0}
    assert "Specific (more than random sentences of the same length): none." in result.describe()


# ------------------------------------------------------------------------------------------------------------- controls


def test_the_gap_alone_is_the_shift_contrast(found: LocatedHeads) -> None:
    made, model = planted_here()
    pairs = planted_pairs(made, model, 10)
    named = list(found.found)
    at = (slice(None), [head.layer for head in named], [head.head for head in named])
    runs = {
        direction: patch_heads(model, pairs, contrast="shift", direction=direction, heads=named, progress=False)
        for direction in ("denoising", "noising")
    }
    assert found.controls["shift_total"] == pytest.approx(runs["noising"].total_effect, abs=1e-6)
    assert found.controls["shift_removed"] == pytest.approx(-runs["denoising"].effect[at], abs=1e-6)
    assert found.controls["shift_added"] == pytest.approx(runs["noising"].effect[at], abs=1e-6)
    assert np.abs(found.controls["shift_total"]).mean() < 0.1 * np.abs(found.total).mean(), "readers do not see a gap"
    assert f"nothing inserted): {found.controls['shift_total'].mean():+.4f} nats [" in found.describe()


def test_the_readers_are_knocked_out_together_against_random_sets(found: LocatedHeads) -> None:
    made, _ = planted_here()
    joint = found.joint
    assert joint is not None and set(joint.heads) == set(made.readers)
    assert joint.effect == pytest.approx(found.total, rel=0.05), "together they are the whole effect"
    assert joint.singles == pytest.approx(found.values["knockout"][:, found.readers])
    assert joint.n_possible == len(joint.sets) == 15 and joint.exact  # 2 of the 6 other heads of layer 0
    assert joint.p == pytest.approx(1 / 16)
    assert "Readers as a set: Knocking out L0H3, L0H6 together removes" in found.describe()
    assert "All 15 other sets of the same layers and size" in found.describe()


def test_controls_stand_beside_the_named_heads(found: LocatedHeads) -> None:
    table = found.control_table().set_index("label")
    assert list(table.index) == [str(head) for head in found.found]
    named = list(found.found)
    for at, head in enumerate(named):
        row, i = table.loc[str(head)], found.heads.index(head)
        measure = "knockout" if head in kinds(found, "reader") else "mediated_removed"
        assert row["effect"] == pytest.approx(found.values[measure][:, i].mean())
        assert row["random_effect"] == pytest.approx(found.controls[f"random_{measure}"][:, at].mean())
        assert row["mful_effect"] == pytest.approx(found.controls[f"mful_{measure}"][:, at].mean())
        assert row["shift_effect_ci_low"] <= row["shift_effect"] <= row["shift_effect_ci_high"]
        assert row["p_specific"] == found.p_specific[i] < 0.05
        assert abs(row["random_effect"]) < 0.5 * abs(row["effect"])
        matched = found.controls["matched_mass"][:, at]
        reads = head in kinds(found, "reader")
        assert row["matched_mass_n"] == (np.isfinite(matched).sum() if reads else 0)
    summary = found.summary().set_index("label")
    first = str(named[0])
    for column in ("random_effect", "mful_effect_ci_low", "matched_mass_n", "shift_effect", "p_specific"):
        assert summary.loc[first, column] == pytest.approx(table.loc[first, column], nan_ok=True)
    others = [str(head) for head in found.heads if head not in found.found]
    assert summary.loc[others, "random_effect"].isna().all()
    assert "The named heads' effect beside the same under each control (nats):" in repr(found)


def test_without_an_effect_the_gap_is_still_told() -> None:
    made, model = planted_here(null=True, noise=0.0)
    result = located(made, model, controls=True)
    assert set(result.controls) == {"shift_total"} and result.joint is None
    assert "Gap only (positions shifted as by the insertion, nothing inserted)" in result.describe()
    assert result.control_table().empty and "matched_mass_effect" in result.summary()


def test_mful_is_left_out_where_it_is_the_insertion_itself() -> None:
    made, model = planted_here(reads=(("he", 1.0),))
    pairs = make_pairs(model, planted_problems(made, 8), Insertion.meaningful("he", 20))
    result = locate_heads(model, pairs, mode="exact", n_control_draws=1, n_random_sets=0, progress=False)
    assert kinds(result, "reader") == set(made.readers)
    assert "mful_knockout" not in result.controls
    assert "Mful was left out: it is the insertion under study." in result.describe()
    assert result.joint is not None and not result.joint.sets and "random set" not in result.joint.describe()


def one_named(own: Any, random: Any, matched: Any, *, reader: bool = True) -> tuple[float, float]:
    """(flag, p) of one named head from its effects and controls, by `specificity`."""
    measure = "knockout" if reader else "mediated_removed"
    values = {name: np.array(own if name == measure else np.zeros(len(own)))[:, None] for name in MEASURES}
    controls = {f"random_{name}": np.zeros((len(own), 1)) for name in MEASURES}
    controls |= {f"random_{measure}": np.array(random)[:, None], "matched_mass": np.array(matched)[:, None]}
    flags, p = specificity(values, HEAD, HEAD, np.array([reader]), controls, alpha=0.05, n_permutations=2000, seed=0)
    return float(flags[0]), float(p[0])


NAN = float("nan")


@pytest.mark.parametrize(
    ("own", "random", "matched", "reader", "flag"),
    [
        (1.0, 0.1, 0.1, True, 1),
        (-1.0, 0.1, 0.1, True, 1),  # |effect| counts
        (1.0, -0.5, 0.1, True, 1),
        (1.0, -1.4, 0.1, True, 0),  # random sentences do as much, the other way
        (1.0, 0.1, 1.4, True, 0),  # any attention taken does as much
        (1.0, 0.1, 1.4, False, 1),  # a mediator reads nothing that could be matched
        (1.0, 0.1, NAN, True, 1),  # not enough other attention: the sentences decide
        (1.0, 1.4, NAN, True, 0),
    ],
)
def test_what_specific_means_by_hand(own: float, random: float, matched: float, reader: bool, flag: int) -> None:
    shape = np.array([0.9, 1.0, 1.1, 1.05, 0.95, 1.02, 0.97])
    found = one_named(own * shape, random * shape[::-1], matched * shape, reader=reader)
    assert found[0] == flag
    if flag:
        assert found[1] == 1 / 2**7, "one-sided, 7 problems that all agree"


def test_few_problems_still_meet_the_matched_knockout() -> None:
    """All 5 of 5 problems are enough; 5 of 20 are not."""
    five = np.array([1.0, 1.1, 0.9, 1.05, 0.95])
    assert one_named(five, 0 * five + np.array([0.1, 0.2, 0.1, 0, 0.1]), 2 * five)[0] == 0
    many = np.tile(five, 4)
    some = np.where(np.arange(20) < 5, 2 * many, np.nan)
    assert one_named(many, 0.1 * many[::-1], some)[0] == 1


@pytest.mark.parametrize(
    ("second", "message"),
    [
        (Insertion.meaningless(" /", 7), "the pairs have 2 insertions"),
        (Insertion.random_sentence(6), "the pairs have 2 insertions"),
    ],
)
def test_controls_need_one_insertion(second: Insertion, message: str) -> None:
    made, model = planted_here()
    problems = planted_problems(made, 4)
    pairs = [
        *make_pairs(model, problems[:2], Insertion.meaningless(" /", 6)),
        *make_pairs(model, problems[2:], second),
    ]
    with pytest.raises(ValueError, match=f"{message}.* leave controls out"):
        locate_heads(model, pairs, mode="exact", progress=False)


# ------------------------------------------------------------------------------------------------------------ negatives


def test_where_the_span_does_nothing_no_head_is_named_and_nothing_is_divided() -> None:
    made, model = planted_here(null=True, noise=0.0)
    result = located(made, model)
    assert not result.found and not result.established
    assert "That is no change at all" in result.describe() and "no head is named" in result.describe()
    assert result.summary()["knockout_fraction"].isna().all()


def test_where_effects_have_no_tendency_no_head_is_named() -> None:
    made, model = planted_here()
    pairs = planted_pairs(made, model, 12, swap=True)
    result = locate_heads(model, pairs, outcome="logit_diff", mode="exact", controls=False, progress=False)
    assert not result.found and np.abs(result.total).min() > 0.1
    assert "interval holds 0: the insertion's content has no established effect here, so no head is named" in repr(
        result
    )


def test_swapping_gold_and_distractor_turns_every_measure_around() -> None:
    """So that fair coins over the problems of a pool are a null that keeps every effect's size."""
    made, model = planted_here()
    problems = planted_problems(made, 6)
    swapped = [replace(problem, answer=problem.distractor, distractor=problem.answer) for problem in problems]
    options = {"outcome": "logit_diff", "mode": "exact", "controls": False, "progress": False, "n_permutations": 2000}
    filler = Insertion.meaningless(" /", 20)
    plain, turned = (locate_heads(model, make_pairs(model, some, filler), **options) for some in (problems, swapped))
    assert plain.total == pytest.approx(-turned.total, abs=1e-4)
    for measure in MEASURES:
        assert np.abs(turned.values[measure] + plain.values[measure]).max() < 1e-4


def test_significance_alone_names_nobody() -> None:
    """An effect that is the same in every problem but small beside the total is left out by the smallest effect."""
    made, model = planted_here()
    smallest = located(made, model, smallest_effect=0.0)
    usual = located(made, model)
    assert set(usual.found) < set(smallest.found)
    extra = [smallest.heads.index(head) for head in set(smallest.found) - set(usual.found)]
    assert (np.minimum(smallest.p_reader, np.nan_to_num(smallest.p_mediator, nan=1))[extra] < 0.05).all()


def test_a_family_in_layer_zero_only_has_no_mediators_to_test() -> None:
    made, model = planted_here()
    result = located(made, model, heads=[*made.readers, Head(0, 0)])
    assert kinds(result, "reader") == set(made.readers) and not result.mediators.any()
    assert np.isnan(result.p_mediator).all() and len(result.heads) == 3


def test_layer_zero_mediates_exactly_nothing(found: LocatedHeads) -> None:
    first = [i for i, head in enumerate(found.heads) if head.layer == 0]
    assert not found.values["mediated_removed"][:, first].any() and np.isnan(found.p_mediator[first]).all()


# ------------------------------------------------------------------------------------------------- the measures by hand


def test_measures_are_the_four_sweeps_in_the_sign_of_the_insertion(found: LocatedHeads) -> None:
    made, model = planted_here()
    pairs = planted_pairs(made, model, 10)
    run = {
        (edit, direction): patch_heads(model, pairs, edit=edit, direction=direction, progress=False).effect
        for edit in ("knockout", "z")
        for direction in ("denoising", "noising")
    }
    head = made.mediators[0]
    at = (slice(None), head.layer, head.head)
    i = found.heads.index(head)
    expected = {
        "knockout": -run["knockout", "denoising"][at],
        "edge_noise": run["knockout", "noising"][at],
        "mediated_removed": -run["z", "denoising"][at] + run["knockout", "denoising"][at],
        "mediated_added": run["z", "noising"][at] - run["knockout", "noising"][at],
    }
    for measure, values in expected.items():
        assert found.values[measure][:, i] == pytest.approx(values, abs=1e-6)
    assert found.total == pytest.approx(found.patches.receiving - found.patches.donor, abs=1e-6)


def made_up(**columns: list[float]) -> dict[str, np.ndarray]:
    return {name: np.array(columns.get(name, [0.0] * 8))[:, None] for name in MEASURES}


HEAD = [Head(1, 0)]
STEADY = [1.0, 1.1, 0.9, 1.2, 1.0, 1.1, 0.9, 1.0]


@pytest.mark.parametrize(
    ("values", "smallest", "reader", "mediator"),
    [
        (made_up(knockout=STEADY, edge_noise=STEADY), 0.5, True, False),
        (made_up(mediated_removed=STEADY, mediated_added=STEADY), 0.5, False, True),
        (made_up(knockout=STEADY), 0.5, False, False),  # one direction only
        (made_up(knockout=STEADY, edge_noise=[-v for v in STEADY]), 0.5, False, False),  # signs disagree
        (made_up(knockout=STEADY, edge_noise=STEADY), 2.0, False, False),  # too small
        (made_up(knockout=[-v for v in STEADY], edge_noise=[-v for v in STEADY]), 0.5, True, False),  # works against it
        (made_up(knockout=[1, -1] * 4, edge_noise=STEADY), 0.0, False, False),  # not significant
        (made_up(knockout=[np.nan, *STEADY[1:]], edge_noise=STEADY), 0.0, False, False),  # undefined somewhere
    ],
)
def test_the_definitions_by_hand(values: Any, smallest: float, reader: bool, mediator: bool) -> None:
    verdict = judge(values, HEAD, smallest=smallest)
    assert (bool(verdict.readers[0]), bool(verdict.mediators[0])) == (reader, mediator)
    if reader:
        assert verdict.p["knockout"][0] == 2 / 2**8  # all 8 problems agree: only the identity and its mirror reach it


# -------------------------------------------------------------------------------------------------- screening, auto mode


def test_screening_finds_the_planted_heads_of_a_model_with_more_heads_than_it_tests() -> None:
    made, model = planted_here(n_layers=3, n_heads=28, n_key_value_heads=4)
    result = located(made, model, 16, mode="auto", budget_seconds=0.0)
    assert result.settings["estimated_seconds"] > 0 and 84 > N_SCREENED >= len(result.heads)
    assert kinds(result, "reader") == set(made.readers) and kinds(result, "mediator") == set(made.mediators)
    assert len(result.problem_ids) == 8 and result.problem_ids == tuple(
        problem.id for problem in planted_problems(made, 16)[1::2]
    )
    assert result.settings["screened"] == [str(head) for head in result.heads]
    assert "heads screened on the other half of the problems" in result.describe()


def test_auto_sweeps_exactly_where_it_is_cheap() -> None:
    made, model = planted_here(n_layers=3, n_heads=28, n_key_value_heads=4)
    few = located(made, model, 8, heads=[*made.readers, Head(2, 5)], mode="auto", budget_seconds=0.0)
    assert few.settings["screened"] is None and kinds(few, "reader") == set(made.readers)
    small, model = planted_here()
    assert located(small, model, 8, mode="auto").settings["swept"] == "all heads on all problems, exactly"


@pytest.mark.slow
def test_the_result_says_which_sweep_was_chosen_and_why(found: LocatedHeads) -> None:
    made, model = planted_here(n_layers=3, n_heads=28, n_key_value_heads=4)
    options = {"smallest_effect": 0.05, "n_permutations": 200}
    free = located(made, model, 8, mode="auto", budget_seconds=float("inf"), **options)
    assert len(free.heads) == 84 and free.settings["screened"] is None
    assert "Swept exactly: the four exact sweeps are estimated at" in free.describe()
    assert "within the budget of any length." in free.describe()
    none = located(made, model, 16, mode="auto", budget_seconds=0.0, **options)
    assert "Screened by gradients: the four exact sweeps are estimated at" in none.describe()
    left = 84 - len(none.heads)
    assert f"above the budget of 0 s. {left} heads ranked below and were not tested: nothing is known of them." in (
        none.describe()
    )
    assert "Swept exactly: as asked for." in found.describe()
    few = located(made, model, 8, mode="auto", heads=[*made.readers, *made.mediators], budget_seconds=0.0, **options)
    assert "Swept exactly: 3 heads, no more than screening would keep (64)." in few.describe()


def test_the_estimate_is_a_line_through_two_small_sweeps(monkeypatch: Any) -> None:
    """1 s for the two runs and 0.1 s a head, by a clock that the sweeps themselves move on."""
    made, model = planted_here(n_layers=3, n_heads=28, n_key_value_heads=4)
    pairs = planted_pairs(made, model, 5)
    clock, swept = [0.0], []

    def sweep(model: Any, pairs: Any, *, heads: Any, **options: Any) -> None:
        swept.append((len(pairs.ids), sorted(heads)))
        clock[0] += 1 + 0.1 * len(heads)

    monkeypatch.setattr(measuring, "patch_heads", sweep)
    seconds = estimated_seconds(prepare(model, pairs), model.info.heads, clock=lambda: clock[0])
    assert seconds == pytest.approx(5 * (1 + 4 * 0.1 * 84))
    assert all(count == 1 for count, _ in swept)
    assert [len(heads) for _, heads in swept] == [3, 3, 12]
    assert {head.layer for head in swept[0][1]} == {0, 1, 2}
    one_layer = [Head(1, head) for head in range(3)]
    seconds = estimated_seconds(prepare(model, pairs), one_layer, clock=lambda: clock[0])
    assert seconds == pytest.approx(5 * (1 + 4 * 0.1 * 3))
    single = estimated_seconds(prepare(model, pairs), [Head(1, 2)], clock=lambda: clock[0])
    assert single == pytest.approx(5 * 4 * 1.1)


def test_longer_problems_count_for_more_in_the_estimate(monkeypatch: Any) -> None:
    made, model = planted_here()
    problems = made.problems(12, n_clauses=(0, 3))
    pairs = make_pairs(model, problems, Insertion.meaningless(" /", 20))
    assert len({pair.n_after for pair in pairs}) > 1
    clock = [0.0]

    def sweep(model: Any, pairs: Any, *, heads: Any, **options: Any) -> None:
        clock[0] += len(heads)

    monkeypatch.setattr(measuring, "patch_heads", sweep)
    seconds = estimated_seconds(prepare(model, pairs), model.info.heads, clock=lambda: clock[0])
    assert seconds == pytest.approx(4 * 16 * sum(pair.n_after for pair in pairs) / pairs[0].n_after)


def test_a_model_without_gradients_is_not_screened_and_that_is_said_before_anything_long(monkeypatch: Any) -> None:
    made, model = planted_here(n_layers=3, n_heads=28, n_key_value_heads=4)
    closed = without_stepper(model)
    pairs = planted_pairs(made, model, 8)
    monkeypatch.setattr(measuring, "estimated_seconds", lambda *args: 7200.0)
    with pytest.raises(
        ModelError,
        match=r"heads cannot be screened: .* layer by layer.* estimated at 2 h, above the budget of 60 min; ",
    ):
        locate_heads(closed, pairs, progress=False)
    with pytest.raises(ModelError, match=r'locate_heads\(mode="screen"\) needs gradients, but .* layer by layer'):
        locate_heads(closed, pairs, mode="screen", progress=False)
    with pytest.raises(ValueError, match=r"needs at least 8, got 7: give more problems. The four exact sweeps are est"):
        locate_heads(model, pairs[:7], progress=False)


# --------------------------------------------------------------------------------------------------------- what it says


def test_the_description_says_what_was_found_and_what_it_cannot_say(found: LocatedHeads) -> None:
    words = found.describe()
    first = next(iter(found.found))
    assert f"{first} ({first.paper_label} in the paper's counting): reader" in words
    assert "Mless ' /' x20, 10 problems, 16 heads tested (all heads on all problems, exactly)" in words
    assert "Smallest effect of interest" in words and "(5% of the total)" in words
    assert words.endswith(CANNOT_SAY[-1]) and "contrast='shift'" in words
    assert str(first) in repr(found) and "knockout_fraction" in repr(found)


@pytest.mark.filterwarnings("ignore:no p-value below 0.05 can be reached:UserWarning")
def test_too_few_problems_name_nobody_and_say_how_many_would_do() -> None:
    made, model = planted_here()
    result = located(made, model, 3)
    assert not result.found and result.established
    assert "No head reaches significance and the smallest effect of interest in both directions." in result.describe()
    assert "effects are large enough on average but not established in both directions; about" in result.describe()
    assert "problems would tell with 80 % power" in result.describe() and CANNOT_SAY[0] in result.describe()


def test_a_threshold_out_of_reach_is_warned_about() -> None:
    made, model = planted_here()
    with pytest.warns(UserWarning, match="no p-value below 0.05 can be reached with 3 problems"):
        located(made, model, 3)


def test_without_controls_specificity_is_unknown() -> None:
    made, model = planted_here()
    result = located(made, model)
    assert np.isnan(result.specific).all() and not result.controls
    assert "Controls were not run, so whether they are specific is unknown." in result.describe()


def test_summary_has_a_row_per_head_named_ones_first(found: LocatedHeads) -> None:
    table = found.summary()
    assert len(table) == 16 and set(table.loc[: len(found.found) - 1, "label"]) == {str(head) for head in found.found}
    columns = {
        "knockout_effect",
        "tested",
        "kind",
        "specific",
        "p_reader",
        "p_mediator",
        "effect_fraction",
        "paper_label",
    }
    assert columns <= set(table.columns)
    row = table.set_index("label").loc[str(next(iter(found.found)))]
    assert row["knockout_effect_ci_low"] < row["knockout_effect"] < row["knockout_effect_ci_high"]
    assert row["knockout_fraction"] == pytest.approx(row["knockout_effect"] / found.total.mean())
    tidy = found.to_frame()
    assert len(tidy) == 10 * 16 and set(MEASURES) <= set(tidy.columns)


# ----------------------------------------------------------------------------------------------- seeds, stops, and files


def test_same_seed_same_result() -> None:
    made, model = planted_here()
    first, second, other = (located(made, model, 14, seed=seed) for seed in (3, 3, 4))
    assert np.array_equal(first.p_reader, second.p_reader, equal_nan=True)
    assert first.summary().equals(second.summary())
    assert not np.array_equal(first.p_reader, other.p_reader, equal_nan=True), "14 problems: random flips"


def test_control_sentences_depend_on_the_seed(found: LocatedHeads) -> None:
    made, model = planted_here()
    other = located(made, model, controls=True, n_control_draws=2, seed=1)
    assert other.found == found.found
    assert not np.array_equal(other.controls["random_knockout"], found.controls["random_knockout"])


def test_a_run_that_was_stopped_goes_on_and_gives_the_same(
    tmp_path: Any, monkeypatch: Any, found: LocatedHeads
) -> None:
    made, model = planted_here()
    options = {"controls": True, "n_control_draws": 2, "checkpoint": tmp_path / "partial"}
    from mless_interp.running.checkpoint import Checkpoint

    put, done = Checkpoint.put, 0

    def stop_later(self: Checkpoint, values: dict[str, Any]) -> None:
        nonlocal done
        done += 1
        if done == 2:
            raise KeyboardInterrupt
        put(self, values)

    monkeypatch.setattr(Checkpoint, "put", stop_later)
    with pytest.raises(KeyboardInterrupt):
        located(made, model, **options)
    (file,) = (tmp_path / "partial").iterdir()
    kept = {json.loads(line)["id"] for line in file.read_text().splitlines()[1:]}
    assert file.name == "mless.jsonl" and 0 < len(kept) < 10
    computed: list[tuple[str, set[str]]] = []

    def watch(self: Checkpoint, values: dict[str, Any]) -> None:
        computed.append((self.path.name, set(values)))
        put(self, values)

    monkeypatch.setattr(Checkpoint, "put", watch)
    resumed = located(made, model, **options)
    again = set().union(*(ids for name, ids in computed if name == "mless.jsonl"))
    assert again and not again & kept
    assert resumed.found == found.found and np.array_equal(resumed.specific, found.specific, equal_nan=True)
    for measure in MEASURES:
        assert np.abs(resumed.values[measure] - found.values[measure]).max() < 1e-4


def test_saving_and_loading_keeps_everything(found: LocatedHeads, tmp_path: Any) -> None:
    kept = load(save(tmp_path / "located", found))["LocatedHeads"]
    assert kept.found == found.found and kept.describe() == found.describe()
    assert kept.summary().equals(found.summary()) and isinstance(kept.patches, PatchScores)
    assert kept.settings == found.settings and set(kept.controls) == set(found.controls)


def test_a_map_marks_heads_that_are_significant_either_way() -> None:
    made = results.located()
    table = made.summary().set_index("label")
    assert table["p_either"].to_dict() == {"L0H1": 0.01, "L1H0": 0.03, "L0H0": 0.02}
    assert made.quantity("knockout_fraction").p == "p_either"
    unknown = replace(made, p_reader=np.array([np.nan, 0.9, np.nan]), p_mediator=np.array([np.nan, 0.03, 0.5]))
    assert unknown.summary().set_index("label")["p_either"].to_dict() == pytest.approx(
        {"L0H1": np.nan, "L1H0": 0.03, "L0H0": 0.5}, nan_ok=True
    )


def test_the_smallest_effect_of_interest_is_a_share_of_an_effect_that_is_there() -> None:
    made = results.located()
    assert made.smallest_effect == pytest.approx(0.05)
    assert "Smallest effect of interest: 0.0500 nats (5% of the total)." in made.sentences()
    assert np.isnan(replace(made, total=made.total - made.total.mean()).smallest_effect)


# ----------------------------------------------------------------------------------------------------------- enrichment


def ranked(sizes: list[list[float]]) -> LocatedHeads:
    """Heads with these |knockout effects| by layer, the same in each of two problems."""
    heads = tuple(Head(layer, head) for layer, row in enumerate(sizes) for head in range(len(row)))
    flat = np.array([size for row in sizes for size in row])
    values = {name: np.stack([flat, flat]) for name in MEASURES}
    nothing = np.full(len(heads), np.nan)
    none = np.zeros(len(heads), bool)
    patches = PatchScores(("a", "b"), np.zeros((2, len(sizes), len(sizes[0]))), np.zeros(2), np.ones(2), heads, "nats")
    return LocatedHeads(("a", "b"), heads, values, np.ones(2), none, none, nothing, nothing, ~none, nothing, patches)


def test_enrichment_by_hand() -> None:
    made = ranked([[0.1, -0.9, 0.5, 0.3]])
    best = enrichment(made, [Head(0, 1), Head(0, 2)])
    assert best.ranks == {"L0H1": 1, "L0H2": 2} and best.mean_rank == 1.5
    assert best.expected_rank == pytest.approx(2.5, abs=0.02)
    assert best.p == pytest.approx(1 / 6, abs=0.015)  # one of the six pairs is as good
    worst = enrichment(made, [Head(0, 0), Head(0, 3)])
    assert worst.mean_rank == 3.5 and worst.p == 1.0
    assert repr(worst) == "Mean rank 3.5 (random heads: 2.5), p = 1.0000. Ranks: L0H0 4, L0H3 3."
    assert worst.to_frame()[["label", "rank"]].to_dict("list") == {"label": ["L0H0", "L0H3"], "rank": [4, 3]}
    assert worst.summary().to_dict("list") == {
        "mean_rank": [3.5],
        "expected_rank": [worst.expected_rank],
        "p": [1.0],
        "n_heads": [2],
    }


def test_enrichment_draws_from_the_layers_of_the_given_heads() -> None:
    made = ranked([[0.1, 0.9], [5.0, 4.0]])
    both = enrichment(made, [Head(0, 1), Head(1, 0)])
    assert both.mean_rank == 1.0 and both.p == pytest.approx(1 / 4, abs=0.02)
    everything = enrichment(made, made.heads)
    assert everything.mean_rank == everything.expected_rank == 1.5 and everything.p == 1.0


def test_enrichment_of_planted_readers_is_strong_and_of_others_is_not(found: LocatedHeads) -> None:
    made, _ = planted_here()
    assert enrichment(found, made.readers).p < 0.06  # 1 of the 28 pairs of 8 heads
    assert enrichment(found, [Head(0, 0), Head(0, 7)]).p > 0.5


def test_enrichment_of_heads_that_were_not_tested_is_refused(found: LocatedHeads) -> None:
    with pytest.raises(ValueError, match=r"these heads were not tested: L9H9"):
        enrichment(found, [Head(0, 0), Head(9, 9)])
    with pytest.raises(ValueError, match="none given"):
        enrichment(found, [])
    with pytest.raises(ValueError, match="L0H1 is given twice"):
        enrichment(found, [Head(0, 1), Head(0, 1)])


# ---------------------------------------------------------------------------------------------------------- wrong input


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mode": "fast"}, "unknown mode 'fast'; choose one of auto, exact, screen"),
        (
            {"outcome": "kl"},
            "locating heads needs a signed outcome \\(answer_logprob",
        ),
        ({"outcome": "accuracy"}, "unknown outcome 'accuracy'; choose one of answer_logprob"),
        ({"alpha": 0.0}, r"alpha must lie in \(0, 1\)"),
        ({"smallest_effect": -0.1}, "smallest_effect be 0 or more"),
        ({"heads": [Head(0, 1), Head(0, 1)]}, "L0H1 is given twice"),
        ({"heads": [Head(5, 1)]}, r"layer 5 is out of range \(zero-based\)"),
        ({"heads": []}, "no heads to locate"),
        ({"mode": "screen"}, "needs at least 8, got 3: give more problems. Choose mode='exact'"),
        ({"n_random_sets": -1}, "n_random_sets must be 0 or more, got -1"),
        ({"budget_seconds": float("nan")}, "budget_seconds must be 0 or more, got nan"),
        ({"n_control_draws": 0, "controls": True}, "n_control_draws must be 1 or more"),
    ],
)
def test_wrong_requests_are_named(options: dict[str, Any], message: str, tiny_model_dir: Any) -> None:
    model = loaded(tiny_model_dir("qwen2"), "bridge")
    with pytest.raises(ValueError, match=message):
        locate_heads(model, pairs_for(model), progress=False, **options)


def test_one_problem_is_no_experiment(tiny_model_dir: Any) -> None:
    model = loaded(tiny_model_dir("qwen2"), "bridge")
    with pytest.raises(ValueError, match="needs at least 2 problems"):
        locate_heads(model, pairs_for(model, count=1), progress=False)
    with pytest.raises(ValueError, match="there are no prompt pairs"):
        locate_heads(model, [], progress=False)


def test_controls_keep_place_and_length(monkeypatch: Any) -> None:
    made, model = planted_here()
    problems = planted_problems(made, 8)
    pairs = make_pairs(model, problems, Insertion.meaningless(" /", 12, at=1))
    seen = []

    def spy(model: Any, problems: Any, insertion: Insertion, **options: Any) -> Any:
        made_pairs = make_pairs(model, problems, insertion, **options)
        seen.append((insertion.kind, {pair.span for pair in made_pairs}))
        return made_pairs

    monkeypatch.setattr(control, "make_pairs", spy)
    locate_heads(model, pairs, mode="exact", n_control_draws=2, n_permutations=2000, progress=False)
    assert [kind for kind, _ in seen] == ["random_sentence"] * 2 + ["meaningful"]
    assert all(spans == {(1, 13)} for _, spans in seen)


def test_replacing_the_total_by_noise_takes_the_names_away(found: LocatedHeads) -> None:
    noise = replace(found, total=np.random.default_rng(0).normal(size=10) - 0.0)
    assert not noise.established and "no head is named" in noise.describe()


def test_half_precision_counts_more_as_rounding() -> None:
    made, model = planted_here(dtype=torch.float64)
    result = located(made, model, 8)
    assert result.settings["resolution"] == 1e-9 and set(result.found) == {*made.readers, *made.mediators}
