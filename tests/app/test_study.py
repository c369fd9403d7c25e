"""A study is one file: what it asks is checked first, what it measures is what each function says, a stopped run goes on."""

import tomllib
from dataclasses import replace
from typing import Any

import jaxtyping
import numpy as np
import pandas as pd
import pytest
from models_under_test import planted_problems
from small_results import studied

import mless_interp as mi
from mless_interp.app import INCLUDED
from mless_interp.app.study_runner import Study, pairs_of, read_study
from mless_interp.core.heads import Head
from mless_interp.models.transformer_lens import bridge_from
from mless_interp.statistics import mean_interval

TWO = """
title = "Two insertions"
source = "nowhere"
claims = "`nothing`"
limit = 6
contrasts = ["content", "shift"]
answers = 3
max_new_tokens = 4

[[insertions]]
name = "slashes"
kind = "meaningless"
n_tokens = 5

[[insertions]]
name = "random words, behind"
kind = "random_sentence"
n_tokens = 4
after = "question"
"""


def told(**changes: Any) -> dict[str, Any]:
    return {**tomllib.loads(TWO), **changes}


@pytest.fixture(scope="module")
def whole(demo: Any) -> mi.StudyResult:
    return mi.run_study(told(), model=demo, progress=False)


@pytest.mark.slow
def test_every_number_is_that_of_the_function_that_measures_it(demo: Any, whole: mi.StudyResult) -> None:
    problems = mi.load_problems("demo", limit=6)
    pairs = mi.make_pairs(demo, problems, mi.Insertion.random_sentence(4, after="question"))
    name = "random words, behind"
    patches = mi.patch_heads(demo, pairs, contrast="shift", progress=False)
    scores = mi.score_heads(demo, pairs, metrics=["span_mass"], conditions=["inserted"], progress=False)
    row = whole.table().set_index("insertion").loc[name]
    middle = patches.whole.median
    ends = [row[f"shift_median{end}"] for end in ("", "_ci_low", "_ci_high")]
    assert ends == pytest.approx([float(x) for x in (middle.estimate, middle.low, middle.high)], abs=1e-6)
    assert row["shift_k"] == np.sum(patches.whole.direction * patches.total_effect > demo.resolution)
    per_problem = scores.of("span_mass").mean((1, 2))
    mass = mean_interval(per_problem)
    ends = [row[f"span_mass{end}"] for end in ("", "_ci_low", "_ci_high")]
    assert ends == pytest.approx([float(x) for x in (mass.estimate, mass.low, mass.high)], abs=1e-6)
    assert row["span_mass_null"] == pytest.approx(float(scores.null["span_mass"]["inserted"].mean()), abs=1e-6)
    treatments = [mi.Treatment(), mi.Treatment(mi.Insertion.meaningless(n_tokens=5)), mi.Treatment(pairs[0].insertion)]
    answers = mi.evaluate_accuracy(demo, problems[:3], treatments, max_new_tokens=4, progress=False)
    compared = answers.compare_all().table().iloc[1]
    shown = {"accuracy": "accuracy_second", "difference": "difference", "answers_n": "n", "difference_p": "p_corrected"}
    np.testing.assert_equal([row[here] for here in shown], [compared[there] for there in shown.values()])
    assert whole.insertions == ("slashes", name) and len(whole.effect_table()) == 4
    tidy = whole.to_frame().groupby(["insertion", "measure"]).size()
    assert tidy[name].to_dict() == {"content": 6, "right": 3, "shift": 6, "span_mass": 6} and tidy["none"].sum() == 3


def test_drawn_insertions_have_a_row_for_each_seed() -> None:
    rows = {row.name: row.insertion for row in read_study(told(seeds=[3, 4])).rows(mi.load_problems("demo", limit=2))}
    assert list(rows) == ["slashes", "random words, behind, seed 3", "random words, behind, seed 4"]
    assert [made.seed for name, made in rows.items() if "seed" in name] == [3, 4]


# --------------------------------------------------------------------------------------------------------- wrong input

ROW = {"name": "slashes", "kind": "meaningless"}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"contrasts": ["contents"]}, "unknown contrast 'contents'; choose one of content, shift"),
        ({"heads": "some"}, "unknown choice of heads 'some'; choose one of none, all"),
        ({"confirm": 4}, 'confirm tests named heads on fresh problems, so it needs heads = "all"'),
        ({"metrics": ["entropy"]}, "metrics must be none, or span_mass and then others"),
        ({"insertions": []}, r"a study needs insertions: write \[\[insertions\]\]"),
        ({"insertions": [{**ROW, "name": "none"}]}, "two treatments are named 'none'"),
        ({"insertions": [{**ROW, "before": "end"}]}, "insertion 'slashes': unknown place before end"),
    ],
)
def test_what_makes_no_sense_is_refused_in_a_line_before_anything_is_loaded(
    changes: Any, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # as users run it
    with pytest.raises((ValueError, TypeError), match=words) as caught:
        read_study(told(**changes))
    assert "\n" not in str(caught.value)


def test_what_is_drawn_from_other_questions_does_not_depend_on_how_many_are_measured(demo: Any) -> None:
    asked, name = mi.read_study("distractors").with_changes(answers=0), "other questions, seed 1"
    few, more = (pairs_of(asked.with_changes(limit=n), demo, mi.load_problems("demo"))[name] for n in (2, 4))
    assert [pair.inserted for pair in few] == [pair.inserted for pair in more[:2]]


def test_problems_and_insertions_that_do_not_fit_are_told_of_before_anything_runs(
    demo: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ValueError, match="limit 6, confirm 0 and answers 3 need 6 problems, there are 2"):
        mi.run_study(told(), model=demo, problems=mi.load_problems("demo", limit=2))
    monkeypatch.setattr(type(demo), "run", lambda *_, **__: pytest.fail("a model ran"))
    for row in ({"kind": "from_key", "unit": "no such key"}, {"kind": "meaningless", "n_tokens": 600}):
        with pytest.raises(ValueError, match="insertion 'x': .*(no such|600|512)"):
            mi.run_study(told(insertions=[{"name": "x", **row}]), model=demo)
    bare = [replace(each, distractor=None) for each in mi.load_problems("demo", limit=6)]
    with pytest.raises(ValueError, match="'slashes': .*distractor"):
        mi.run_study(told(outcome="logit_diff"), model=demo, problems=bare)


@pytest.mark.parametrize("included", INCLUDED)
def test_included_studies_say_whom_they_follow_and_can_be_made(included: str, demo: Any) -> None:
    study: Study = mi.read_study(included)
    assert study.source and study.claims
    problems = mi.load_problems("demo", limit=study.n_problems)
    for row in study.rows(problems):
        assert mi.make_pairs(demo, problems[:2], row.insertion, template=study.template)[0].n_inserted > 0, row.name


def test_too_few_problems_to_establish_anything_are_told() -> None:
    """2 effects, both signs: 2^-n x 4 < 0.05 from 7 problems on."""
    assert studied(6).caveats() == ["6 problems are too few to establish any of 2 effects; 7 problems are needed."]
    assert not studied(7).caveats()


@pytest.mark.slow
def test_heads_are_those_that_locating_names() -> None:
    readers = [Head(0, 2)]
    made = mi.planted_model(readers, [], n_heads=8, n_key_value_heads=2, seed=5)
    model = bridge_from(made.hf_model, made.tokenizer, name="planted")
    problems = planted_problems(made, 24)
    asked = {"name": "slashes", "kind": "meaningless", "n_tokens": 6}
    more = asked | {"name": "more", "n_tokens": 8}
    study = told(limit=16, heads="all", confirm=8, answers=0, contrasts=["content"], insertions=[asked, more])
    found = mi.run_study(study, model=model, problems=problems, progress=False)
    row = found.table().iloc[0]
    assert row["heads"] == row["shown_again"] == "L0H2 (reader)"
    pairs = mi.make_pairs(model, problems, mi.Insertion.meaningless(" /", 6))
    direct = mi.locate_heads(model, pairs[:16], confirm=pairs[16:], confidence=0.975, progress=False)
    pd.testing.assert_frame_equal(found.located["slashes"].table(), direct.table())
    assert direct.judged.effect.level == pytest.approx(0.02), "one of two insertions: half of alpha"
    assert len(found.located["slashes"].confirmation.problem_ids) == 8  # type: ignore[union-attr]
