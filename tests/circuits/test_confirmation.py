"""Named heads on fresh problems: confirmed where they act again, refused where problems or prompts are not fresh or alike."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import small_results as results
from conftest import needs_hooked_transformer
from located_under_test import SLASHES, located, pairs_of
from models_under_test import hooked, planted_here, planted_problems

import mless_interp as mi
from mless_interp.circuits import locate
from mless_interp.circuits.locate import locate_heads
from mless_interp.circuits.located import Confirmation
from mless_interp.prompts.insertions import Insertion
from mless_interp.prompts.pairs import make_pairs
from mless_interp.statistics import fewest_problems


def made(**changed: Any) -> Confirmation:
    """Without what is not tested here."""
    return replace(results.confirmed(), controls={}, joint=None, **changed)


def test_who_is_confirmed_by_hand() -> None:
    found = results.confirmed()
    table = found.table().set_index("label")
    assert table.loc["L0H1", "removed_p"] == 6 / 2**10, "Holm over the three claims and both sides, one sense"
    assert found.p[0] == 3 / 2**10, "Holm over the three claims, each by all its sides"
    assert table.loc["L0H0", "added_k"] == 5, "in the sense that was claimed: against"
    assert "4 problems are too few to confirm any of 3 heads" in results.confirmed(1.0, 4).caveats()[0]


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
    other_way = made(values=turned, total=-made().total)
    assert not other_way.confirmed.any() and not other_way.established


@pytest.fixture
def nothing_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever sweeps is an error."""

    def sweeps(*arguments: Any, **options: Any) -> Any:
        raise AssertionError("a sweep began")

    monkeypatch.setattr(locate, "measure", sweeps)


def refused(words: str, used: Any, fresh: Any, insertion: Insertion = SLASHES) -> None:
    model = planted_here()[1]
    pairs, confirm = make_pairs(model, used, SLASHES), make_pairs(model, fresh, insertion)
    with pytest.raises(ValueError, match=words):
        locate_heads(model, pairs, confirm=confirm, progress=False)


@pytest.mark.usefixtures("nothing_runs")
def test_problems_that_named_the_heads_and_other_prompts_are_refused() -> None:
    planted, model = planted_here()
    problems = planted_problems(planted, 8)
    renamed = [replace(problem, id=f"other {problem.id}") for problem in problems[1:3]]
    rephrased = [replace(problem, question=problems[5].question) for problem in problems[:1]]
    for again, first in ((problems[2:6], problems[2].id), (renamed, renamed[0].id), (rephrased, rephrased[0].id)):
        words = f"among those that name the heads.*give others .first: '{first}'"
        refused(words, problems[:4], again)
    for other, has, had in (
        (Insertion.meaningless(" /", 19), "n_tokens=19", "n_tokens=20"),
        (Insertion.meaningless(" /", 20, before="system"), "before='system'", "before='question'"),
    ):
        words = f"have another insertion .*{has}.* than those .*{had}.*: make both with the same one"
        refused(words, problems[:4], problems[4:], other)
    with pytest.raises(ValueError, match="there are no prompt pairs"):
        locate_heads(model, make_pairs(model, problems[:4], SLASHES), confirm=[], progress=False)


@pytest.mark.usefixtures("nothing_runs")
@needs_hooked_transformer
def test_the_same_tokens_beside_other_clean_ones_are_refused() -> None:
    used, fresh = (mi.pairs_from_ids([[1, 2, 3], [2, 3, 4]], [1, 2], clean=[[at, 2, 3], [at, 3, 4]]) for at in (0, 5))
    with pytest.raises(ValueError, match="2 of 2 problems to confirm on are among those"):
        locate_heads(hooked(), used, confirm=fresh, contrast="replaced", progress=False)


@pytest.mark.usefixtures("nothing_runs")
@pytest.mark.parametrize("grouped", [True, False])
def test_variants_of_problems_that_named_the_heads_are_refused(grouped: bool) -> None:
    """48 variants of three stories name heads that are their own, and 24 further variants confirm them."""
    problems = planted_problems(planted_here()[0], 8, n_clauses=(3, 3))
    said = problems[0].question.split()
    at = next(place for place, word in enumerate(said) if word.isdigit())
    also = replace(problems[0], id="also", question=" ".join([*said[:at], "3", *said[at + 1 :]]), answer="3")
    fresh = (*problems[4:], replace(also, group=problems[0].id if grouped else None))
    alike = f"some of 5 problems to confirm .*'{problems[0].id}' and 'also' share"
    words = "1 of 5 problems .*first: 'also'" if grouped else alike
    refused(words, problems[:4], fresh)


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
