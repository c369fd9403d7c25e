"""Named heads on fresh problems: confirmed where they act again, refused where problems or prompts are not fresh or alike."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import small_results as results
from located_under_test import SLASHES, located, pairs_of
from models_under_test import planted_here, planted_problems

from mless_interp.circuits import locate
from mless_interp.circuits.locate import locate_heads
from mless_interp.circuits.located import Confirmation
from mless_interp.prompts.insertions import Insertion
from mless_interp.prompts.pairs import make_pairs
from mless_interp.statistics import fewest_problems


def made(**changed: Any) -> Confirmation:
    """Without what is not tested here."""
    return replace(results.confirmed(), controls={}, joint=None, **changed)


def test_named_heads_stand_first_however_large_the_median_of_others() -> None:
    found = results.located()
    values = {name: each.copy() for name, each in found.values.items()}
    values["knockout"][:, 2] = np.where(np.arange(len(found.total)) < 7, 2.0, -2.0)  # 7 of 12: not most problems
    table = replace(found, values=values).table()
    assert table["label"].tolist() == ["L0H1", "L1H0", "L0H0"] and table["removed_median"].idxmax() == 2


def test_claims_have_to_pass_on_their_sides_and_in_their_sense() -> None:
    values = made().values
    one_sided = {name: array * (name in ("knockout", "mediated_removed")) for name, array in values.items()}
    assert made(values=one_sided).confirmed.tolist() == [False, False, False]
    claimed = made(values=one_sided, kinds=("necessary reader", "carrier", "redundant reader"))
    assert claimed.confirmed.tolist() == [True, False, False]
    turned = {name: -array for name, array in values.items()}
    assert made(values=turned, senses=np.array([-1, -1, 1])).confirmed.tolist() == [True, True, False]
    assert not made(values=turned).confirmed.any()
    assert not made(values=turned, total=-made().total).confirmed.any()


@pytest.fixture
def nothing_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever sweeps is an error."""

    def sweeps(*arguments: Any, **options: Any) -> Any:
        raise AssertionError("a sweep began")

    monkeypatch.setattr(locate, "measure", sweeps)


@pytest.mark.usefixtures("nothing_runs")
def test_problems_that_named_the_heads_their_variants_and_other_prompts_are_refused() -> None:
    planted, model = planted_here()
    problems = planted_problems(planted, 8, n_clauses=(3, 3))
    said = problems[0].question.split()
    at = next(place for place, word in enumerate(said) if word.isdigit())
    also = replace(problems[0], id="also", question=" ".join([*said[:at], "3", *said[at + 1 :]]), answer="3")
    same = "among those that name the heads.*give others .first: "
    for fresh, insertion, words in (
        (problems[2:6], SLASHES, f"{same}'{problems[2].id}'"),
        ([replace(problems[1], id="renamed")], SLASHES, f"{same}'renamed'"),
        ((*problems[4:], replace(also, group=problems[0].id)), SLASHES, "1 of 5 problems .*first: 'also'"),
        ((*problems[4:], also), SLASHES, f"some of 5 problems to confirm .*'{problems[0].id}' and 'also' share"),
        (problems[4:], Insertion.meaningless(" /", 19), "another insertion .*n_tokens=19.* than those .*n_tokens=20"),
        ([], SLASHES, "there are no prompt pairs"),
    ):
        confirm = make_pairs(model, fresh, insertion) if fresh else []
        with pytest.raises(ValueError, match=words):
            locate_heads(model, make_pairs(model, problems[:4], SLASHES), confirm=confirm, progress=False)


@pytest.mark.usefixtures("nothing_runs")
def test_too_few_problems_are_warned_about_before_anything_runs() -> None:
    planted, model = planted_here()
    needed = fewest_problems(4 * 16, alpha=0.04)
    fresh = pairs_of(planted, model, 7, skip=needed)
    few = f"{needed - 1} problems are too few to name any of 16 heads .* at least {needed} are needed"
    few_fresh = "6 problems are too few to confirm a head"
    for count, confirm, words in ((needed - 1, fresh, few), (needed, fresh[:6], few_fresh)):
        with pytest.raises(AssertionError, match="a sweep began"), pytest.warns(UserWarning, match=words):
            located(planted, model, count, confirm=confirm)
    with pytest.raises(AssertionError, match="a sweep began"):  # and no warning, which would be an error
        located(planted, model, needed, confirm=fresh)
