"""A study is one file: what it asks is checked first, what it measures is what each function says, a stopped run goes on."""

import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import jaxtyping
import numpy as np
import pandas as pd
import pytest
from models_under_test import planted_problems
from small_results import studied
from typer.testing import CliRunner

import mless_interp as mi
from mless_interp.__main__ import app
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
def demo() -> Any:
    return mi.load_model("demo", backend="bridge")


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


@pytest.mark.slow
def test_a_stopped_study_goes_on_and_ends_with_the_same_bits(
    demo: Any, whole: mi.StudyResult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured: list[str] = []
    from mless_interp.app import study_runner as runner

    real = runner.patch_heads

    def stops(model: Any, pairs: Any, **options: Any) -> Any:
        if len(measured) == 3:
            raise KeyboardInterrupt
        measured.append(Path(options["checkpoint"]).parent.name)
        return real(model, pairs, **options)

    with monkeypatch.context() as patched:
        patched.setattr(runner, "patch_heads", stops)
        with pytest.raises(KeyboardInterrupt):
            mi.run_study(told(), model=demo, checkpoint=tmp_path, progress=False)
    finished = {path: path.read_bytes() for path in tmp_path.rglob("*.jsonl")}
    assert len(finished) == 4, "three sweeps, and the first insertion's attention"
    again = mi.run_study(told(), model=demo, checkpoint=tmp_path, progress=False)
    pd.testing.assert_frame_equal(again.table(), whole.table())
    pd.testing.assert_frame_equal(again.to_frame(), whole.to_frame())
    assert {path: path.read_bytes() for path in finished} == finished, "what is done is not computed again"


# --------------------------------------------------------------------------------------------------------- wrong input

ROW = {"name": "slashes", "kind": "meaningless"}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"modell": "demo"}, "unexpected keyword argument 'modell'"),
        ({"contrasts": ["contents"]}, "unknown contrast 'contents'; choose one of content, shift"),
        ({"outcome": "kl"}, "kl"),
        ({"limit": 1}, "^limit must be"),
        ({"heads": "some"}, "unknown choice of heads 'some'; choose one of none, all"),
        ({"confirm": 4}, 'confirm tests named heads on fresh problems, so it needs heads = "all"'),
        ({"metrics": ["entropy"]}, "metrics must be none, or span_mass and then others"),
        ({"insertions": []}, r"a study needs insertions: write \[\[insertions\]\]"),
        ({"insertions": [ROW, ROW]}, "two treatments are named 'slashes'"),
        ({"insertions": [{**ROW, "name": "none"}]}, "two treatments are named 'none'"),
        ({"insertions": [{**ROW, "length": 3}]}, "insertion 'slashes': .*unexpected keyword argument 'length'"),
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


@pytest.mark.slow
def test_options_take_the_place_of_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "two.toml").write_text(TWO)
    monkeypatch.chdir(tmp_path)
    given = "--limit 3 --answers 0 --n-tokens 3 --no-progress --report --out x".split()
    done = CliRunner().invoke(app, ["study", "two.toml", *given])
    assert done.exit_code == 0, done.stderr
    assert done.stdout.startswith("0 of 2 insertions have an established content effect")
    found = mi.load(tmp_path / "x")["StudyResult"]
    assert len(found.problem_ids) == 3 and found.answers is None
    assert found.settings["insertions"]["slashes"] == "Mless ' /' x3"
    page = (tmp_path / "x" / "report.html").read_text()
    assert "Two insertions" in page and "slashes" in page
    assert "After nowhere, which claims: &#39;nothing&#39;." in page, "no code marks: the question is no Markdown"


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


def test_what_is_within_rounding_has_no_sign() -> None:
    """-1 and about it on 8 problems, where unedited rows move by 1.01: of this sign beyond rounding is only what is more."""
    made = studied(8)
    for_one = made.effects["slashes"]["content"]
    rough = replace(for_one, noise=np.full(for_one.patched.shape[:2], 1.01))
    coarse = replace(made, effects={**made.effects, "slashes": {"content": rough}}).effect_table()
    row, fine = coarse.set_index("insertion").loc["slashes"], made.effect_table().set_index("insertion").loc["slashes"]
    beyond = int((np.abs(for_one.total_effect) > 1.01).sum())
    assert 0 < beyond < 8 and (row["k"], fine["k"]) == (beyond, 8)
    assert row["p"] > fine["p"]


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
