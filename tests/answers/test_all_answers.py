"""Graders on all of MATH-500, on malformed LaTeX, and on texts of any length and depth: right, never an error, bounded."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as texts

import mless_interp as mi
from mless_interp.answers import equivalence, grade
from mless_interp.answers.compare import compare

pytestmark = pytest.mark.usefixtures("nothing_is_remembered")


@pytest.fixture(scope="session")
def golds(math500_path: Path) -> list[str]:
    return [json.loads(line)["answer"] for line in math500_path.read_text(encoding="utf-8").splitlines()]


def right(grader: Callable[[str, str], bool], answer: str, golds: list[str]) -> int:
    return sum(grader(f"so \\boxed{{{answer}}}.", gold) for gold in golds)


@pytest.mark.slow
def test_no_comparison_of_500_answers_is_given_up(golds: list[str]) -> None:
    grades = [grade(f"\\boxed{{{golds[i - 3]}}}", gold) for i, gold in enumerate(golds)]
    assert [each.answer for each in grades if each.decided == "gave up"] == []


# ------------------------------------------------------------------------------------------------------------ MATH-500


def test_gold_against_gold_is_right_500_of_500_times(golds: list[str]) -> None:
    grades = [grade(f"so \\boxed{{{gold}}}.", gold) for gold in golds]
    assert sum(each.strict for each in grades) == sum(each.paper for each in grades) == 500


def test_the_solutions_of_the_data_set_are_right(math500_path: Path) -> None:
    records = [json.loads(line) for line in math500_path.read_text(encoding="utf-8").splitlines()]
    assert [r["unique_id"] for r in records if not mi.grade_strict(r["solution"], r["answer"])] == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("answer", "strict", "paper"), [("", 0, 500), ("1", 12, 200), ("2", 18, 165), ("3", 19, 110), ("0", 7, 103)]
)
def test_constant_answers_score_what_the_docstrings_say(answer: str, strict: int, paper: int, golds: list[str]) -> None:
    assert right(mi.grade_strict, answer, golds) == strict
    assert right(mi.grade_paper, answer, golds) == paper


def test_another_problems_answer_is_wrong(golds: list[str]) -> None:
    """Against the next problem's: only 3 neighbours of the 500 have the same answer, and the text says so."""
    found = [(golds[i - 1], gold) for i, gold in enumerate(golds) if compare(golds[i - 1], gold).equal]
    assert sorted(found) == [("3", "3"), ("5", "x=5"), ("7", "7")]


# ----------------------------------------------------------------------------------------------------- malformed LaTeX

MALFORMED = [
    r"\frac{14", r"\frac{}{}", r"\frac", r"\sqrt", r"\sqrt[", "}{", "{", "1}", r"\left(", r"\begin{pmatrix}1", r"\text{",
    "^", "_", "\\", r"1\frac{1}{0}", "1/0", "(" * 200 + "8" + ")" * 200, r"\sqrt{" * 60 + "8" + "}" * 60,
    "1+" * 200 + "8", "8," * 200, r"8\pm2," * 30, "8" + "a" * 400 + "!", "1 " + "ab " * 150 + "!", "\\\\" * 200,
    "8" * 5000, "\x00", "\ud800", "😀", "١", "nan", "1e400",
]  # fmt: skip


@pytest.mark.parametrize("answer", MALFORMED, ids=range(len(MALFORMED)))
def test_malformed_latex_is_wrong_and_never_an_error(answer: str) -> None:
    assert not mi.grade_strict(f"\\boxed{{{answer}}}", "7")
    assert type(mi.grade_paper(f"\\boxed{{{answer}}}", "7")) is bool
    assert not mi.grade_strict(r"\boxed{7}", answer)


@given(texts.text(max_size=30) | texts.text("\\{}()[],.^_=+-/$%&19x ", max_size=40), texts.sampled_from(["7", "(1,2)"]))
@settings(max_examples=100, deadline=None)
def test_any_text_is_graded(answer: str, gold: str) -> None:
    found = grade(f"\\boxed{{{answer}}}", gold)
    assert found.boxed >= found.strict


HUGE = {
    "roots nested": "\\boxed{" + r"\sqrt{" * 1_000 + "8" + "}" * 1_000 + "}",
    "brackets nested": "\\boxed{" + "([" * 20_000 + "8" + "])" * 20_000 + "}",
    "boxes never closed": r"\boxed{" * 40_000,
    "a megabyte of digits": "\\boxed{" + "9" * 1_000_000 + "}",
    "a megabyte of words": "\\boxed{" + "ab " * 333_333 + "}",
    "a megabyte of spaces": "\\boxed{8" + " " * 1_000_000 + "}",
    "rows": "\\boxed{" + "\\\\" * 100_000 + "}",
}


@pytest.mark.parametrize("name", HUGE)
def test_the_longest_and_deepest_texts_are_graded(name: str) -> None:
    assert not grade(HUGE[name], "7").strict and not mi.grade_strict(r"\boxed{7}", HUGE[name])


@pytest.mark.slow
@pytest.mark.parametrize("answer", ["9**9**9", "1e9999", "10^{99999999}", r"\sqrt{9^{9^{9^9}}}", "8!!!!!!!!"])
def test_giant_numbers_are_wrong_and_the_next_answer_is_right(answer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(equivalence, "CPU_SECONDS", 1)
    assert not grade(f"\\boxed{{{answer}}}", "x + 1").strict
    assert mi.grade_strict(r"\boxed{1 + x}", "x + 1")
