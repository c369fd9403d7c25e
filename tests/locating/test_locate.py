"""Locating heads: exactly the planted ones, honest negatives, the four measures, screening, and what is said about it."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import small_results as results
import torch
from located_under_test import SLASHES, N, located, located_here, mediators, pairs_of, planted_kinds, readers
from models_under_test import loaded, pairs_for, planted_here, planted_pairs, planted_problems, without_stepper
from results_under_test import same

from mless_interp.heads import Head
from mless_interp.locating import measure as measuring
from mless_interp.locating.judge import KINDS
from mless_interp.locating.locate import locate_heads
from mless_interp.locating.located import SATURATES, LocatedHeads, cannot_say
from mless_interp.locating.measure import MEASURES, N_SCREENED, estimated_seconds
from mless_interp.models.info import ModelError
from mless_interp.patching.prepared import prepare
from mless_interp.patching.scores import PatchScores
from mless_interp.patching.sweep import patch_heads
from mless_interp.prompts.insertions import Insertion
from mless_interp.prompts.pairs import make_pairs
from mless_interp.running.store import load, save


@pytest.fixture(scope="module")
def found() -> LocatedHeads:
    """The default planted model, with controls."""
    return located_here()


# ---------------------------------------------------------------------------------------------------- planted circuits


def test_exactly_the_planted_readers_and_mediators_are_named(found: LocatedHeads) -> None:
    made, _ = planted_here()
    assert found.found == planted_kinds(made) and set(found.judged.sense[found.judged.named]) == {1}
    decoys = {head for heads in made.decoys.values() for head in heads} | {made.copier}
    assert decoys and not decoys & set(found.found)


@pytest.mark.parametrize("seed", [3, 7, 36])
def test_random_planted_circuits_are_recovered(seed: int) -> None:
    made, model = planted_here(seed, random=True)
    result = located(made, model, 14)
    assert readers(result) == set(made.readers) and mediators(result) == set(made.mediators)
    assert set(result.found) == set(planted_kinds(made))


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 15, 39])
def test_more_random_planted_circuits_are_recovered(seed: int) -> None:
    made, model = planted_here(seed, random=True)
    result = located(made, model, 14)
    assert readers(result) == set(made.readers) and mediators(result) == set(made.mediators)
    assert set(result.found) == set(planted_kinds(made))


def test_a_span_that_lowers_the_answer_is_carried_by_the_same_heads() -> None:
    made, model = planted_here(4, sign=-1)
    result = located(made, model)
    assert float(np.median(result.total)) < 0 and result.judged.direction == -1
    assert "of this sign in 12 of 12 problems" in result.describe()
    assert result.found == planted_kinds(made), "a head that reads and mediates nothing is neither, however strong"
    assert set(result.judged.sense[result.judged.named]) == {1}, "with the effect, whatever its sign"
    for head in made.readers:
        assert np.median(result.values["knockout"][:, result.heads.index(head)]) < 0


# ------------------------------------------------------------------------------------------------------------ negatives


def test_where_the_span_does_nothing_no_head_is_named_and_nothing_is_divided() -> None:
    made, model = planted_here(null=True, noise=0.0)
    result = located(made, model)
    assert not result.found and not result.established
    assert "That is no change at all" in result.describe() and "no head is named" in result.describe()
    table = result.summary()
    assert table["removed_share"].isna().all() and table["p_either"].isna().all() and np.isnan(result.smallest_effect)


def test_where_effects_have_no_tendency_no_head_is_named() -> None:
    made, model = planted_here()
    pairs = planted_pairs(made, model, 12, swap=True)
    result = locate_heads(model, pairs, outcome="logit_diff", mode="exact", controls=False, progress=False)
    assert not result.found and np.abs(result.total).min() > 0.1
    assert "That most problems show an effect of one sign is not established, so no head is named." in repr(result)


def test_swapping_gold_and_distractor_turns_every_measure_around() -> None:
    """So that fair coins over the problems of a pool are a null that keeps every effect's size."""
    made, model = planted_here()
    problems = planted_problems(made, 10)
    swapped = [replace(problem, answer=problem.distractor, distractor=problem.answer) for problem in problems]
    options = {"outcome": "logit_diff", "mode": "exact", "controls": False, "progress": False}
    plain, turned = (locate_heads(model, make_pairs(model, some, SLASHES), **options) for some in (problems, swapped))
    assert plain.total == pytest.approx(-turned.total, abs=1e-4)
    assert plain.found and turned.found == plain.found and turned.judged.direction == -plain.judged.direction
    for measure in MEASURES:
        assert np.abs(turned.values[measure] + plain.values[measure]).max() < 1e-4


def test_significance_alone_names_nobody(found: LocatedHeads) -> None:
    """An effect that is the same in every problem but small beside the total is left out by the smallest effect."""
    smallest = replace(found, settings={**found.settings, "smallest_effect": 0.0})
    assert set(found.found) < set(smallest.found)


def test_a_family_in_layer_zero_only_has_no_mediators_to_test() -> None:
    made, model = planted_here()
    result = located(made, model, heads=[*made.readers, Head(0, 0)])
    assert result.found == dict.fromkeys(made.readers, "reader")
    assert np.isnan(result.judged.parts["mediated_removed"]).all() and len(result.heads) == 3


def test_heads_may_be_given_in_any_order(found: LocatedHeads) -> None:
    """Every row of the summary is of the head that it names."""
    chosen = [found.heads[at] for at in (9, 3, 12, 6)]
    result = located(*planted_here(), heads=chosen)
    assert result.heads == tuple(chosen)
    whole, part = found.summary().set_index("label"), result.summary().set_index("label")
    for head in chosen:
        for column in ("effect_fraction", "knockout_median", "mediated_added_median", "removed_share", "removed_count"):
            assert part.loc[str(head), column] == pytest.approx(whole.loc[str(head), column], abs=1e-4)


def test_layer_zero_mediates_exactly_nothing(found: LocatedHeads) -> None:
    first = [i for i, head in enumerate(found.heads) if head.layer == 0]
    assert not found.values["mediated_removed"][:, first].any() and not found.values["mediated_added"][:, first].any()
    assert np.isnan(found.judged.parts["mediated_removed"][first]).all()


def test_in_layer_zero_a_z_patch_is_the_knockout_and_is_not_swept_again(found: LocatedHeads) -> None:
    """The patches' own sweep of all heads gives the same numbers up to rounding."""
    made, model = planted_here()
    alone = patch_heads(model, pairs_of(made, model, len(found.problem_ids)), progress=False)
    first = [i for i, head in enumerate(found.heads) if head.layer == 0]
    assert (found.patches.per_head[:, first] == found.values["knockout"][:, first]).all()
    assert found.patches.per_head == pytest.approx(alone.per_head, abs=1e-5)


# ------------------------------------------------------------------------------------------------- the measures by hand


def test_measures_are_parts_of_the_effect_from_the_four_sweeps(found: LocatedHeads) -> None:
    made, model = planted_here()
    pairs = pairs_of(made, model, N)
    run = {
        (edit, direction): patch_heads(model, pairs, edit=edit, direction=direction, progress=False).effect
        for edit in ("knockout", "z")
        for direction in ("denoising", "noising")
    }
    head = made.mediators[0]
    at = (slice(None), head.layer, head.head)
    i = found.heads.index(head)
    expected = {
        "knockout": run["knockout", "denoising"][at],
        "edge_noise": run["knockout", "noising"][at],
        "mediated_removed": run["z", "denoising"][at] - run["knockout", "denoising"][at],
        "mediated_added": run["z", "noising"][at] - run["knockout", "noising"][at],
    }
    for measure, values in expected.items():
        assert found.values[measure][:, i] == pytest.approx(values, abs=1e-6)
    assert found.total == pytest.approx(found.patches.receiving - found.patches.donor, abs=1e-6)


# -------------------------------------------------------------------------------------------------- screening, auto mode


@pytest.mark.slow
def test_screening_finds_the_planted_heads_of_a_model_with_more_heads_than_it_tests() -> None:
    made, model = planted_here(n_layers=3, n_heads=28, n_key_value_heads=4)
    result = located(made, model, 24, mode="auto", budget_seconds=0.0)
    assert result.settings["estimated_seconds"] > 0 and 84 > N_SCREENED >= len(result.heads)
    assert result.found == planted_kinds(made)
    assert len(result.problem_ids) == 12 and result.problem_ids == tuple(
        problem.id for problem in planted_problems(made, 24)[1::2]
    )
    assert result.settings["screened"] == [str(head) for head in result.heads]
    assert "heads screened on the other half of the problems" in result.describe()


@pytest.mark.filterwarnings("ignore:8 problems are too few:UserWarning")
def test_auto_sweeps_exactly_where_it_is_cheap() -> None:
    made, model = planted_here(n_layers=3, n_heads=28, n_key_value_heads=4)
    few = located(made, model, 8, heads=[*made.readers, Head(2, 5)], mode="auto", budget_seconds=0.0)
    assert few.settings["screened"] is None and readers(few) == set(made.readers)
    small, model = planted_here()
    assert located(small, model, 8, mode="auto").settings["swept"] == "all heads on all problems, exactly"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:8 problems are too few:UserWarning")
def test_the_result_says_which_sweep_was_chosen_and_why(found: LocatedHeads) -> None:
    made, model = planted_here(n_layers=3, n_heads=28, n_key_value_heads=4)
    free = located(made, model, 8, mode="auto", budget_seconds=float("inf"))
    assert len(free.heads) == 84 and free.settings["screened"] is None
    assert "Swept exactly: the four exact sweeps are estimated to stay" in free.describe()
    assert "within the budget of any length." in free.describe()
    none = located(made, model, 16, mode="auto", budget_seconds=0.0)
    assert "Screened by gradients: the four exact sweeps are estimated to" in none.describe()
    left = 84 - len(none.heads)
    assert f"exceed the budget of 0 s. {left} heads ranked below and were not tested: nothing is known of them." in (
        none.describe()
    )
    assert "Swept exactly: as asked for." in found.describe()
    few = located(made, model, 8, mode="auto", heads=[*made.readers, *made.mediators], budget_seconds=0.0)
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
    of_layers = 2 * 1.5 + 4 * 1 + 4 * 0.5  # z patches of layer 0 are its knockouts; a row goes through 3, 2 or 1 layers
    assert seconds == pytest.approx(5 * (1 + 0.1 * 28 * of_layers))
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
    asked = prepare(model, pairs)
    rows = [pair.n_after for pair in asked.pairs]  # with the answer, whose rows are replayed as well
    seconds = estimated_seconds(asked, model.info.heads, clock=lambda: clock[0])
    assert seconds == pytest.approx(8 * (2 * 2 + 4 * 1) / 1.5 * sum(rows) / rows[0])  # two layers of 8 heads


def test_a_model_without_gradients_is_not_screened_and_that_is_said_before_anything_long(monkeypatch: Any) -> None:
    made, model = planted_here(n_layers=3, n_heads=28, n_key_value_heads=4)
    closed = without_stepper(model)
    pairs = planted_pairs(made, model, 8)
    monkeypatch.setattr(measuring, "estimated_seconds", lambda *args: 7200.0)
    with pytest.raises(
        ModelError,
        match=r"heads cannot be screened: .* layer by layer.* estimated to exceed the budget of 60 min, at 2 h; ",
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
    assert f"{first}: reader; removes more than 5 % of the effect in 12 of 12 problems, adds it in 12; median " in words
    assert "Mless ' /' x20, 12 problems, 16 heads tested (all heads on all problems, exactly)" in words
    assert "Total content effect: median +" in words and "of this sign in 12 of 12 problems" in words
    assert "Smallest effect of interest" in words and "(5 % of the median total)" in words
    assert "12 problems name one of 16 heads with 80 % power where it acts in" in words
    assert (
        "Of the other 13 heads" in words and words.endswith(cannot_say("content")[-1]) and "contrast='shift'" in words
    )
    assert str(first) in repr(found) and "removed_share" in repr(found)


@pytest.mark.filterwarnings("ignore:3 problems are too few:UserWarning")
def test_too_few_problems_name_nobody_and_say_how_many_would_do() -> None:
    made, model = planted_here()
    result = located(made, model, 3)
    assert not result.found and not result.established
    assert "3 problems are too few to name any of 16 heads at alpha = 0.05" in result.describe()
    assert "10 problems are needed" in result.describe() and cannot_say("content")[0] in result.describe()
    few = located(made, model, 9, heads=[*made.readers, *made.mediators])
    assert few.established and few.found


def test_where_nobody_is_named_the_print_says_so_and_stands() -> None:
    made = results.located()
    nobody = replace(made, values={name: 0 * array for name, array in made.values.items()}, controls={})
    assert not nobody.found and nobody.control_table().empty
    assert (
        "No head is shown to carry more than the smallest effect of interest in most problems, so none is named."
        in repr(nobody)
    )
    assert "Of the 3 heads 3 are shown to do less than that in most problems, 0 are undecided." in repr(nobody)
    assert len(nobody.shown().tables) == 1 and len(nobody.printed()) == 3


def test_a_few_problems_that_carry_the_mean_are_named() -> None:
    made = results.located(n=20)
    total = np.r_[np.full(19, 0.1), 9.0]
    words = replace(made, total=total, settings={**made.settings, "left_out": {}}).describe()
    assert "A few problems carry most of it: 83 % of all that happens lies in 1 of 20 problems (p19);" in words
    assert "as they are left out, its mean lies between +0.1000 and +0.5450 nats." in words
    assert "The bounded outcome answer_prob has no such tails." in words
    bounded = replace(made, total=total, settings={**made.settings, "outcome": "answer_prob"}).describe()
    assert "(p19)" in bounded and "has no such tails" not in bounded
    assert "A few problems" not in made.describe()


def test_heads_named_on_one_side_come_with_the_other_outcome_s_advice() -> None:
    made = results.located()
    one_sided = {name: array * (name != "edge_noise") for name, array in made.values.items()}
    told = replace(made, values=one_sided)
    assert told.found[Head(0, 1)] == "necessary reader" and SATURATES in told.sentences()
    assert SATURATES not in made.sentences()
    other = replace(told, settings={**made.settings, "outcome": "logit_diff"})
    assert SATURATES not in other.sentences()


def test_a_head_against_the_effect_is_told_as_that() -> None:
    made = results.located()
    turned = replace(made, values={name: -array for name, array in made.values.items()})
    assert (
        "L0H1: reader; against the effect: taking it out raises it by more than 5 % in 12 of 12 problems, putting it in lowers "
        "it in 12; median -60 %"
    ) in turned.describe()
    assert turned.summary().set_index("label").loc["L0H1", "sense"] == "against"


def test_without_controls_specificity_is_unknown() -> None:
    made, model = planted_here()
    result = located(made, model, heads=list(made.readers))
    assert not result.controls and result.control_table()["p_specific"].isna().all()
    assert "Controls were not run, so whether they are specific is unknown." in result.describe()


def test_summary_has_a_row_per_head_named_ones_first(found: LocatedHeads) -> None:
    table = found.summary()
    assert len(table) == 16 and set(table.loc[: len(found.found) - 1, "label"]) == {str(head) for head in found.found}
    columns = {"kind", "sense", "confirmed", "effect_fraction", "paper_label", "p_either"}
    columns |= {
        f"{side}_{what}" for side in ("removed", "added") for what in ("count", "prevalence", "p", "median", "share")
    }
    columns |= {f"{measure}_{what}" for measure in MEASURES for what in ("count", "median", "effect")}
    assert columns <= set(table.columns) and set(table["kind"]) <= set(KINDS)
    row = table.set_index("label").loc[str(next(iter(found.found)))]
    assert row["knockout_effect_ci_low"] < row["knockout_effect"] < row["knockout_effect_ci_high"]
    assert row["removed_share"] == pytest.approx(row["removed_median"] / np.median(found.total))
    assert (row["removed_count"], row["removed_prevalence"], row["n"]) == (N, 1.0, N)
    assert row["removed_p"] == pytest.approx(32 / 2**N)
    tidy = found.to_frame()
    assert len(tidy) == N * 16 and set(MEASURES) <= set(tidy.columns)


def test_a_map_marks_heads_that_pass_on_either_side() -> None:
    made = results.located()
    table = made.summary().set_index("label")
    assert table.index[:2].tolist() == ["L0H1", "L1H0"]
    assert table["p_either"].tolist() == np.minimum(1, 2 * np.fmin(table["removed_p"], table["added_p"])).tolist()
    assert table.loc[["L0H1", "L1H0"], "p_either"].tolist() == [12 / 2**12] * 2 and table.loc["L0H0", "p_either"] == 1
    assert made.quantity("removed_share").p == made.quantity("removed_median").p == "p_either"
    one_side = replace(made, values={name: array * (name != "knockout") for name, array in made.values.items()})
    sides = one_side.summary().set_index("label").loc["L0H1", ["removed_p", "added_p", "p_either"]]
    assert sides.tolist() == [1.0, 6 / 2**12, 12 / 2**12]


def test_the_smallest_effect_of_interest_is_a_share_of_an_effect_that_is_there() -> None:
    made = results.located()
    assert made.smallest_effect == pytest.approx(0.05)
    assert "Smallest effect of interest: 0.05 nats (5 % of the median total)." in made.sentences()
    assert np.isnan(replace(made, total=made.total - made.total.mean()).smallest_effect)


def test_the_sweep_inside_is_told_by_the_same_smallest_effect() -> None:
    made, model = planted_here()
    result = located(made, model, heads=list(made.readers), smallest_effect=0.6)
    assert result.patches.smallest_effect == 0.6 and "> 60 %" in result.quantity("removed_median").claim
    counts = result.summary().sort_values(["layer", "head"])["removed_count"]
    assert not result.found and result.patches.summary()["k"].tolist() == counts.tolist()


# ----------------------------------------------------------------------------------------------- seeds, stops, and files


def test_same_seed_same_result_and_nothing_that_names_heads_is_drawn() -> None:
    made, model = planted_here()
    heads = [*made.readers, *made.mediators]
    first, second, other = (located(made, model, heads=heads, seed=seed) for seed in (3, 3, 4))
    assert first.summary().equals(second.summary()) and first.describe() == second.describe()
    told = ["label", "kind", "removed_p", "added_p", "removed_median_ci_low", "mediated_added_count"]
    assert first.summary()[told].equals(other.summary()[told]), "exact tests and order statistics"


def stage_of(path: Path) -> str:
    """A checkpoint's name, without the key of the heads that it is of."""
    return re.sub("-[0-9a-f]{8}$", "", str(path.with_suffix("")))


@pytest.mark.slow
def test_more_problems_are_added_to_a_finished_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where other heads are named then, and other questions are drawn: nothing that is shared is computed again."""
    from mless_interp.running.checkpoint import Checkpoint

    made, model = planted_here()
    options: dict[str, Any] = {"controls": True, "n_control_draws": 1, "n_random_sets": 2}
    options |= {"heads": [*made.readers, *made.mediators], "confirm": pairs_of(made, model, 10, skip=16)}
    first = located(made, model, 10, **options, smallest_effect=0.468, checkpoint=tmp_path / "partial")
    computed: dict[str, set[str]] = {}
    put = Checkpoint.put

    def watch(self: Checkpoint, values: dict[str, Any]) -> None:
        assert self.path is not None
        computed.setdefault(stage_of(self.path.relative_to(tmp_path / "partial")), set()).update(values)
        put(self, values)

    monkeypatch.setattr(Checkpoint, "put", watch)
    more = located(made, model, 16, **options, checkpoint=tmp_path / "partial")
    monkeypatch.setattr(Checkpoint, "put", put)
    assert 0 < len(first.found) < len(more.found), "or the test tests nothing"
    assert len(computed["mless"]) < 16 and set(more.problem_ids) - set(first.problem_ids) <= computed["mless"]
    straight = located(made, model, 16, **options)
    assert more.summary().equals(straight.summary()) and more.describe() == straight.describe()
    computed.clear()
    monkeypatch.setattr(Checkpoint, "put", watch)
    assert located(made, model, 16, **options, checkpoint=tmp_path / "partial").describe() == straight.describe()
    assert computed == {}, "all of it is kept"


@pytest.mark.slow
@pytest.mark.parametrize("stage", ["mless", "random-1", "confirm/mless", "confirm/matched-mass", "confirm/curve"])
def test_a_run_that_was_stopped_goes_on_and_gives_the_same(stage: str, tmp_path: Any, monkeypatch: Any) -> None:
    from mless_interp.running.checkpoint import Checkpoint

    made, model = planted_here()
    heads = [*made.readers, *made.mediators]
    options = {
        "controls": True,
        "n_control_draws": 2,
        "n_random_sets": 2,
        "heads": heads,
        "checkpoint": tmp_path / "partial",
    }
    if stage.startswith("confirm"):
        options["confirm"] = pairs_of(made, model, 10, skip=10)
    put, done = Checkpoint.put, 0

    def name_of(self: Checkpoint) -> str:
        return "" if self.path is None else stage_of(self.path.relative_to(tmp_path / "partial"))

    def stop_later(self: Checkpoint, values: dict[str, Any]) -> None:
        nonlocal done
        done += name_of(self) == stage
        if done == 2:
            raise KeyboardInterrupt
        put(self, values)

    monkeypatch.setattr(Checkpoint, "put", stop_later)
    with pytest.raises(KeyboardInterrupt):
        located(made, model, 10, **options)
    (file,) = (
        path
        for path in (tmp_path / "partial").rglob("*.jsonl")
        if stage_of(path.relative_to(tmp_path / "partial")) == stage
    )
    kept = {json.loads(line)["id"] for line in file.read_text().splitlines()[1:]}
    assert 0 < len(kept) < 10
    computed: dict[str, set[str]] = {}

    def watch(self: Checkpoint, values: dict[str, Any]) -> None:
        computed.setdefault(name_of(self), set()).update(values)
        put(self, values)

    monkeypatch.setattr(Checkpoint, "put", watch)
    resumed = located(made, model, 10, **options)
    monkeypatch.setattr(Checkpoint, "put", put)
    assert computed[stage] and not computed[stage] & kept
    assert stage == "mless" or "mless" not in computed, "what was finished is not computed again"
    straight = located(made, model, 10, **{**options, "checkpoint": None})
    assert resumed.found == straight.found and resumed.describe() == straight.describe()
    for table in ("summary", "control_table"):
        one, other = (getattr(result, table)().select_dtypes("number") for result in (resumed, straight))
        assert one.to_numpy() == pytest.approx(other.to_numpy(), abs=1e-4, nan_ok=True)


def test_saving_and_loading_keeps_everything(found: LocatedHeads, tmp_path: Any) -> None:
    kept = load(save(tmp_path / "located", found))["LocatedHeads"]
    assert kept.found == found.found and kept.describe() == found.describe()
    assert kept.summary().equals(found.summary()) and isinstance(kept.patches, PatchScores)
    assert kept.settings == found.settings and set(kept.controls) == set(found.controls)


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
        ({"smallest_effect": 1.0}, r"a share of the total effect, in \[0, 1\), got 0.05 and 1.0"),
        ({"smallest_effect": -0.1}, "a share of the total effect, in .0, 1."),
        ({"heads": [Head(0, 1), Head(0, 1)]}, "L0H1 is given twice"),
        ({"heads": [Head(5, 1)]}, r"layer 5 is out of range \(zero-based\)"),
        ({"heads": []}, "no heads to locate"),
        (
            {"mode": "screen"},
            "^screening splits the problems in two .* at least 8, got 3: give more problems. Choose mode='exact'",
        ),
        ({"n_random_sets": -1}, "n_random_sets must be 0 or more, got -1"),
        ({"budget_seconds": float("nan")}, "budget_seconds must be a number, got nan"),
        ({"n_control_draws": 0, "controls": True}, r"leaves controls out\) must be 1 or more, got 0"),
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


def test_replacing_the_total_by_noise_takes_the_names_away(found: LocatedHeads) -> None:
    noise = replace(found, total=np.random.default_rng(0).normal(size=N))
    assert not noise.established and "no head is named" in noise.describe()


def test_what_counts_as_rounding_follows_the_precision() -> None:
    made, model = planted_here(dtype=torch.float64)
    result = located(made, model, heads=[*made.readers, *made.mediators, Head(0, 0)])
    assert 1e-9 <= result.settings["resolution"] < 1e-6 and set(result.found) == {*made.readers, *made.mediators}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*problems are too few")
def test_a_run_started_again_goes_the_way_of_its_first_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made, model = planted_here(n_layers=2, n_heads=40, n_key_value_heads=8, readers=(Head(0, 2),))
    pairs = planted_pairs(made, model, 9, n_tokens=5)
    options: dict[str, Any] = {"controls": False, "progress": False, "budget_seconds": 50.0}
    monkeypatch.setattr(measuring, "estimated_seconds", lambda *_: 49.0)
    first = locate_heads(model, pairs, checkpoint=tmp_path, **options)
    monkeypatch.setattr(measuring, "estimated_seconds", lambda *_: 51.0)
    again = locate_heads(model, pairs, checkpoint=tmp_path, **options)
    assert again.settings == first.settings and again.settings["estimated_seconds"] == 49.0
    assert same(first, again)
    other = locate_heads(model, pairs, checkpoint=tmp_path / "screened", **options)
    assert other.settings["screened"] and other.settings["estimated_seconds"] == 51.0
    monkeypatch.setattr("mless_interp.patching.attribution._gate_ig", lambda *_: pytest.fail("estimated again"))
    monkeypatch.setattr(measuring, "estimated_seconds", lambda *_: 49.0)
    assert same(other, locate_heads(model, pairs, checkpoint=tmp_path / "screened", **options))
    with pytest.raises(ValueError, match="budget_seconds was 50.0, now 49.0"):
        locate_heads(model, pairs, checkpoint=tmp_path, **options | {"budget_seconds": 49.0})
