"""Locating heads: exactly the planted ones, honest negatives, the four measures, screening, and what is said about it."""

import json
import re
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import small_results as results
import torch
from located_under_test import N, located, located_here, mediators, pairs_of, planted_kinds, readers
from models_under_test import loaded, pairs_for, planted_here, planted_pairs, planted_problems, without_stepper
from results_under_test import same

from mless_interp.circuits import measure as measuring
from mless_interp.circuits.locate import locate_heads
from mless_interp.circuits.located import LocatedHeads
from mless_interp.circuits.measure import N_SCREENED, extrapolated
from mless_interp.core.heads import Head
from mless_interp.models.info import ModelError
from mless_interp.patching.sweep import patch_heads


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


def test_a_span_that_lowers_the_answer_is_carried_by_the_same_heads() -> None:
    made, model = planted_here(4, sign=-1)
    result = located(made, model)
    assert float(np.median(result.total)) < 0 and result.judged.effect.direction == -1
    assert result.found == planted_kinds(made), "a head that reads and mediates nothing is neither, however strong"
    assert set(result.judged.sense[result.judged.named]) == {1}, "with the effect, whatever its sign"
    for head in made.readers:
        assert np.median(result.values["knockout"][:, result.heads.index(head)]) < 0


# ------------------------------------------------------------------------------------------------------------ negatives


def test_where_the_span_does_nothing_no_head_is_named_and_nothing_is_divided() -> None:
    made, model = planted_here(null=True, noise=0.0)
    result = located(made, model)
    assert not result.found and not result.established
    table = result.table()
    assert (
        table["removed_share"].isna().all() and table["p_either"].isna().all() and np.isnan(result.judged.effect.delta)
    )


def test_where_effects_have_no_tendency_no_head_is_named() -> None:
    made, model = planted_here()
    pairs = planted_pairs(made, model, 12, swap=True)
    result = locate_heads(model, pairs, outcome="logit_diff", mode="exact", controls=False, progress=False)
    assert not result.found and np.abs(result.total).min() > 0.1
    assert "has no established effect on logit_diff" in result.headline() and result.headline().endswith(
        "so no head is named."
    )


def test_significance_alone_names_nobody(found: LocatedHeads) -> None:
    """An effect that is the same in every problem but small beside the total is left out by the smallest effect."""
    smallest = replace(found, smallest_effect=0.0)
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
    whole, part = found.table().set_index("label"), result.table().set_index("label")
    for head in chosen:
        for column in ("effect_fraction", "knockout_median", "mediated_added_median", "removed_share", "removed_k"):
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
    result = located(made, model, 26, mode="auto", budget_seconds=0.0)
    assert result.settings["estimated_seconds"] > 0 and 84 > N_SCREENED >= len(result.heads)
    assert result.found == planted_kinds(made)
    assert len(result.problem_ids) == 13 and result.problem_ids == tuple(
        problem.id for problem in planted_problems(made, 26)[1::2]
    )
    assert result.settings["screened"] == [str(head) for head in result.heads]


def test_auto_sweeps_exactly_where_it_is_cheap() -> None:
    made, model = planted_here(n_layers=3, n_heads=28, n_key_value_heads=4)
    few = located(made, model, 9, heads=[*made.readers, Head(2, 5)], mode="auto", budget_seconds=0.0)
    assert few.settings["screened"] is None and readers(few) == set(made.readers)
    small, model = planted_here()
    assert located(small, model, 11, mode="auto").settings["swept"] == "all heads on all problems, exactly"


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


def test_the_smallest_effect_of_interest_is_a_share_of_an_effect_that_is_there() -> None:
    """The second largest of 12 totals is the upper 99 % limit of their median: P(Bin(12, 1/2) < 2) = 0.003."""
    made = results.located()
    assert made.judged.effect.delta == pytest.approx(0.05 * (1 + 0.15 * 9 / 11))
    assert np.isnan(replace(made, total=made.total - made.total.mean()).judged.effect.delta)


def test_fresh_problems_that_nothing_was_tested_on_are_told_in_the_answer() -> None:
    made = results.located()
    some = {"settings": made.settings | {"n_fresh": 50}}
    none = replace(made, values={name: 0 * each for name, each in made.values.items()}, **some)
    unknown = replace(made, total=made.total - made.total.mean(), **some)
    for found in (none, unknown):
        assert found.headline().endswith(", and the 50 fresh problems were not used.")
    assert "not used" not in replace(none, settings=made.settings).headline() + replace(made, **some).headline()


# ----------------------------------------------------------------------------------------------- seeds, stops, and files


def stage_of(path: Path) -> str:
    """A checkpoint's name, without the key of the heads that it is of."""
    return re.sub("-[0-9a-f]{8}$", "", str(path.with_suffix("")))


@pytest.mark.slow
@pytest.mark.parametrize("stage", ["mless", "random-1", "confirm/mless", "confirm/matched-mass"])
def test_a_run_that_was_stopped_goes_on_and_gives_the_same(stage: str, tmp_path: Any, monkeypatch: Any) -> None:
    from mless_interp.runtime.checkpoint import Checkpoint

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
    assert resumed.found == straight.found
    for table in ("summary", "control_table"):
        one, other = (getattr(result, table)().select_dtypes("number") for result in (resumed, straight))
        assert one.to_numpy() == pytest.approx(other.to_numpy(), abs=1e-4, nan_ok=True)


# ---------------------------------------------------------------------------------------------------------- wrong input


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mode": "fast"}, "unknown mode 'fast'; choose one of auto, exact, screen"),
        ({"outcome": "accuracy"}, "unknown outcome 'accuracy'; choose one of answer_logprob"),
        ({"smallest_effect": 1.0}, "a share of the median total effect, from 0 to below 1, got 1.0"),
        ({"heads": [Head(0, 1), Head(0, 1)]}, "L0H1 is given twice"),
        ({"heads": []}, "no heads to locate"),
        ({"n_random_sets": -1}, "n_random_sets must be 0 or more, got -1"),
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
    assert not noise.established


def test_what_counts_as_rounding_follows_the_precision() -> None:
    made, model = planted_here(dtype=torch.float64)
    result = located(made, model, heads=[*made.readers, *made.mediators, Head(0, 0)])
    assert 1e-9 <= result.resolution < 1e-6 and set(result.found) == {*made.readers, *made.mediators}


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
    less = locate_heads(model, pairs, checkpoint=tmp_path, **options | {"budget_seconds": 48.0})
    assert less.settings["screened"] and less.settings["estimated_seconds"] == 49.0
    other = locate_heads(model, pairs, checkpoint=tmp_path / "screened", **options)
    assert other.settings["screened"] and other.settings["estimated_seconds"] == 51.0
    monkeypatch.setattr("mless_interp.patching.attribution._gate_ig", lambda *_: pytest.fail("estimated again"))
    monkeypatch.setattr(measuring, "estimated_seconds", lambda *_: 49.0)
    assert same(other, locate_heads(model, pairs, checkpoint=tmp_path / "screened", **options))


@pytest.mark.parametrize(
    ("once", "each", "first", "sizes"), [(0.5, 0.01, 0.2, [1, 1, 2, 4, 8, 16, 32, 64]), (2.0, 3.0, 0.0, [1, 2])]
)
def test_an_estimate_is_the_line_through_runs_of_some_units(
    once: float, each: float, first: float, sizes: list[int], monkeypatch: Any
) -> None:
    """By a clock that the runs move on; what a first call loads does not count."""
    clock, ran = [0.0], []

    def run(units: int) -> None:
        clock[0] += once + each * units + (0 if ran else first)
        ran.append(units)

    monkeypatch.setattr(time, "perf_counter", lambda: clock[0])
    assert extrapolated(run, 1000, sizes=2) == pytest.approx(once + 1000 * each)
    assert ran == sizes
    assert extrapolated(run, 1) == pytest.approx(once + each)
    if once + each > 1:
        assert extrapolated(run, 1000) == pytest.approx(1000 * (once + each)), "one long run is enough"
