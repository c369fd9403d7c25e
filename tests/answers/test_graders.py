"""Graders: boxes, what counts as the same answer, all of MATH-500, malformed LaTeX, threads, processes and time."""

import json
import multiprocessing
import os
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import mless_interp as mi
from mless_interp.answers import grade, has_closed_box, last_box, math_verify_process
from mless_interp.answers.same_answer import compare

pytestmark = pytest.mark.usefixtures("nothing_is_remembered")

BOXES = {
    r"\boxed{7}": "7", r"\boxed{ 7 } <eos>": "7", r"\boxed {7}": "7", r"\boxed{1} no \boxed{2}.": "2",
    r"\boxed{\frac{1}{2}}": r"\frac{1}{2}", r"\boxed{\{1, 2\}}": r"\{1, 2\}",
    r"\boxed{\left\{ x \right.}": r"\left\{ x \right.", r"\boxed{a \\{b}}": r"a \\{b}",
    r"\boxed{x = \boxed{7}}": r"x = \boxed{7}", r"a\boxed{b\boxed {c}d}e{f}\fbox{g}": r"b\boxed {c}d",
    r"\boxed{7} and \boxed{8": "7", r"\boxed{8 and \boxed{7}": "7", r"{ \boxed{7}": "7", r"} } \boxed{7}": "7",
    r"\boxed{7} \boxed{}": "", r"put it within \boxed{}": "", r"\boxed{7": None, r"\boxed 7": None, r"\boxed{\}": None,
    r"\\boxed{7}": None, r"\fbox{7}": None, r"boxed{7}": None, "7": None, "": None,
    "\\boxed{" * 50_000: None, "\\boxed" + " " * 50_000: None,
    "\\boxed{" * 20_000 + "}" * 20_000: "\\boxed{" * 19_999 + "}" * 19_999,
}  # fmt: skip


def test_the_last_balanced_box_is_found() -> None:
    found = {text: last_box(text) for text in BOXES}
    assert found == BOXES
    assert [text for text in BOXES if has_closed_box(text) and not BOXES[text]] == [r"\boxed{7} \boxed{}"]
    assert all(map(has_closed_box, filter(BOXES.get, BOXES)))


SAME = [
    (r"\dfrac{1}{2}", ".5"), ("137.5", r"137 \frac{1}{2}"), ("11111111100", r"11,\! 111,\! 111,\! 100"),
    (r"6.72 \times 10^{-5}", ".0000672"), ("2 + 5 = 7", "7"), ("2516_{8}", "2516_8"), (r"90^\circ", "90"),
    (r"\frac{270}{7}", r"\frac{270}7\text{ degrees}"), ("32348.00", r"\$32,\!348"),
    ("864 square inches", r"864 \mbox{ inches}^2"), (r"864\,\text{in}^{2}", r"864 \mbox{ inches}^2"),
    (r"\text{77 cups}", "77 cup"), (r"\sqrt{52}", r"2\sqrt{13}"), (r"\frac{1}{\sqrt3}", r"\frac{\sqrt{3}}{3}"),
    ("x^4(x-1)+x^2(x-1)+x-1", "x^5 - x^4 + x^3 - x^2 + x - 1"), (r"\frac{\cos x}{\sin x}", r"\cot x"),
    ("-5i+6", "6 - 5i"), (r"\frac{9a}{20}+0.55", r"\frac{11+9a}{20}"), ("3ba", "3ab"), (r"\log_2 8", "3"), ("x = 5", "5"),
    ("2x+3", "y = 2x + 3"), ("y = 3+2x", "y = 2x + 3"), ("10x-14y+22z+8=0", "5x - 7y + 11z + 4 = 0"),
    (r"(3, \pi/2)", r"\left( 3, \frac{\pi}{2} \right)"), (r"(2, +\infty)", r"(2,\infty)"), ("x > 2", r"(2,\infty)"),
    (r"-2 \le x \le 7", r"x \in [-2,7]"), (r"(3,\infty) \cup (-\infty,2)", r"(-\infty, 2) \cup (3, \infty)"),
    ("-2,1", "1,-2"), ("x=1 or x=-2", "1,-2"), (r"3, 5, \text{ and } 7", r"\{7, 5, 3\}"),
    (r"1-\sqrt{19}, 1+\sqrt{19}", r"1 \pm \sqrt{19}"), (r"\{-2,1\pm\sqrt{5}\}", r"\{1\pm\sqrt{5},-2\}"), (r"\{5\}", "5"),
    (r"\begin{bmatrix} -\frac13 \\ \frac23 \end{bmatrix}", r"\begin{pmatrix} -1/3 \\ 2/3 \end{pmatrix}"),
    (r"\textbf{(E)}", r"\text{(E)}"), ("√12", r"2\sqrt{3}"), ("3√(x+1)", r"3\sqrt{x + 1}"),
    (r"3:30\text{ p.m.}", "3:30 PM"), (r"\mathbb{R}", r"(-\infty,\infty)"), (r"x \in \mathbb{R}", r"(-\infty,+\infty)"),
    (r"\emptyset", r"\{ \}"), ("(x,y)=(1,2)", "(1,2)"), ("D = [0, 1)", "[0,1)"),
    (r"A = \begin{pmatrix}1&2\\3&4\end{pmatrix}", r"\begin{pmatrix}1&2\\3&4\end{pmatrix}"),
    (r"\left[\begin{array}{cc} 1 & 2 \\ 3 & 4 \end{array}\right]", r"\begin{pmatrix}1&2\\3&4\end{pmatrix}"),
    (r"30^\circ,150^\circ", r"30^\circ, 150^\circ"), ("x=30°,150°", "150, 30"), (r"\$100,\$200", r"\$200, \$100"),
    ("58, 500", "58,500"), ("-1,100", "-1, 100"), (r"1,440 \text{ cm}", "1440"), ("1,000,000 people", "1000000"),
    (r"2,000\pi", r"2,\!000\pi"), (r"100,200 \text{ and } 300", "100, 200, 300"), ("100,200 or 300", "100, 200, 300"),
    ("5!=120", "120"), (r"\text{Evelyn.}", r"\text{Evelyn}"), ("C)", r"\text{(C)}"), (r"\text{C)}", "C"), ("5\\ ", "5"),
    ("(2, infinity)", r"(2,\infty)"), ("137½", "137.5"), ("∅", r"\emptyset"), (r"15 \text{ cm²}", r"15\mbox{ cm}^2"),
    (r"(r,\theta) = (3, \frac{\pi}{2})", r"\left(3, \frac{\pi}{2}\right)"),
    ("2, 100", "100, 2"), ("f(x)=2", "2"), (r"\theta=2", "2"), ("5 = x", "5"), (r"\boxed{(1,2)}", "(1,2)"),
    ("y-2x=3", "y=2x+3"), (r"x = 58,\!500", "58,500"), (r"\frac{\sqrt3}2", r"\frac{\sqrt{3}}{2}"), ("2 million", "2000000"),
    ("1 000", "1,000"), (r"0.\overline{3}", "1/3"), ("x_{12}=2", "2"), ("((5))", "5"), (r"\text{5 cm}", "5 cm"),
    ("3:4", r"\frac{3}{4}"), ("3:15", r"3:15\text{ PM}"), ("3 : 2 : 1", "3:2:1"), ("4:1", "4"), ("3:4", "0.75"),
    (r"\pi:4", r"\frac{\pi}{4}"), (r"\sqrt{3}:2", r"\frac{\sqrt3}2"), ("{x: x>2}", r"\{x : x>2\}"),
    ("1:2, 3:4", "3:4, 1:2"), ("xy", "yx"), (r"\text{iv}", "IV"), ("A B", "AB"), ("25 inches squared", "25"),
]  # fmt: skip
OTHER = [
    ("7 7", "77"), ("7 8", "15"), ("0.333333", r"\frac13"), ("1.414214", r"\sqrt2"), ("3.14", r"\pi"), ("0.5", r"50\%"),
    ("0.0", "10^{-8}"), ("100000000000000000001", "100000000000000000000"), ("2516_7", "2516_8"), ("5 cm", r"5\text{ m}"),
    ("3ab", "3"), ("3", "3m"), ("2x", "2y"), ("x^2=4", "4"), ("(1,2]", "(1,2)"), ("1,2", "(1,2)"), ("(2,1)", "(1,2)"),
    (r"\{1,2\}", "(1,2)"), ("1,1", "1"), (r"1\pm2", "3"),
    (r"\begin{pmatrix}1&2\end{pmatrix}", r"\begin{pmatrix}1\\2\end{pmatrix}"),
    (r"\begin{vmatrix}1&2\\3&4\end{vmatrix}", r"\begin{pmatrix}1&2\\3&4\end{pmatrix}"), ("seat", r"\text{east}"),
    (r"\text{Navin Evelyn}", r"\text{Evelyn}"), (r"\infty", r"-\infty"), (r"3:30\text{ a.m.}", r"3:30\text{ p.m.}"),
    (r"\mathbb{R}", r"(0,\infty)"), (r"\mathbb{Z}", r"\mathbb{R}"), ("(a,b)=(1,2)", "(x,y)=(1,2)"),
    ("(x,y)=(1,2)", "(2,1)"), ("2x=4", "4"), ("x<=5", "5"), (r"\sin x=1", "1"), ("5", "y=6"),
    ("15 cm^3", "15 cm^2"), (r"5\text{ cm}^2 + 3", "5"), ("5 cents", "5 dollars"), (r"5\text{ cm} = 50\text{ mm}", "50"),
    ("3, 5, 7, ...", "3, 5, 7"), ("0.333...", "0.333"), (r"30^\circ,150^\circ", "30150"), ("1, 234", "1234"),
    (r"15 \text{ cm^2}", r"15\text{ cm}^3"), ("XI", "IX"), (r"\text{iv}", r"\text{vi}"), (r"\text{A2}", "2A"), ("2 dozen", "2"),
    ("(C]", "(C)"), ("1,2", r"1 \cup 2"), ("y=5", r"\boxed{x=5}"), ("on", "no"), ("2 ab", "2"),
    (r"\{\{1,2\}\}", r"\{1,2\}"), (r"\{(1,2)\}", "(1,2)"),
    ("5:25", "10:50"), (r"3:15 p.m.", "9:45 p.m."), ("1:6", "1:2:3"), ("1:2:3", r"\frac16"), ("2:1", "1:2"),
    (r"\left|\begin{array}{cc}1&2\\3&4\end{array}\right|", r"\begin{pmatrix}1&2\\3&4\end{pmatrix}"),
]  # fmt: skip


@pytest.mark.parametrize(("pairs", "equal"), [(SAME, True), (OTHER, False)], ids=["same", "other"])
def test_the_same_answer_is_right_and_another_one_wrong(pairs: list[tuple[str, str]], equal: bool) -> None:
    both = [*pairs, *((gold, answer) for answer, gold in pairs)]
    assert [each for each in both if compare(*each).equal is not equal] == []


# ------------------------------------------------------------------------------------------------------------ MATH-500


@pytest.fixture(scope="session")
def records(math500_path: Path) -> list[dict[str, str]]:
    return [json.loads(line) for line in math500_path.read_text(encoding="utf-8").splitlines()]


@pytest.fixture(scope="session")
def golds(records: list[dict[str, str]]) -> list[str]:
    return [record["answer"] for record in records]


def test_gold_against_gold_and_the_data_sets_own_solutions_are_right(
    golds: list[str], records: list[dict[str, str]]
) -> None:
    grades = [grade(f"so \\boxed{{{gold}}}.", gold) for gold in golds]
    assert sum(each.strict for each in grades) == sum(each.paper for each in grades) == 500
    assert [r["unique_id"] for r in records if not mi.grade_strict(r["solution"], r["answer"])] == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("answer", "strict", "paper"), [("", 0, 500), ("1", 12, 200), ("2", 18, 165), ("3", 19, 110), ("0", 7, 103)]
)
def test_constant_answers_score_what_the_docstrings_say(answer: str, strict: int, paper: int, golds: list[str]) -> None:
    grades = [grade(f"so \\boxed{{{answer}}}.", gold) for gold in golds]
    assert (sum(each.strict for each in grades), sum(each.paper for each in grades)) == (strict, paper)


def test_another_problems_answer_is_wrong_and_nothing_is_given_up(golds: list[str]) -> None:
    """Against the next problem's: only 3 neighbours of the 500 have the same answer, and the text says so."""
    found = [(golds[i - 1], gold, compare(golds[i - 1], gold)) for i, gold in enumerate(golds)]
    assert sorted(each[:2] for each in found if each[2].equal) == [("3", "3"), ("5", "x=5"), ("7", "7")]
    assert "gave up" not in {each.by for *_, each in found}


# ----------------------------------------------------------------------------------------------------- malformed LaTeX

MALFORMED = [
    r"\frac{14", r"\frac{}{}", r"\frac", r"\sqrt", r"\sqrt[", "}{", "{", "1}", r"\left(", r"\begin{pmatrix}1", r"\text{",
    "^", "_", "\\", r"1\frac{1}{0}", "1/0", "(" * 200 + "8" + ")" * 200, r"\sqrt{" * 60 + "8" + "}" * 60,
    "1+" * 200 + "8", "8," * 200, r"8\pm2," * 30, "8" + "a" * 400 + "!", "1 " + "ab " * 150 + "!", "\\\\" * 200,
    "8" * 5000, "\x00", "\ud800", "😀", "١", "nan", "1e400",
    r"\sqrt{" * 1_000 + "8" + "}" * 1_000, "([" * 20_000 + "8" + "])" * 20_000, r"\boxed{" * 40_000, "9" * 1_000_000,
    "ab " * 333_333, "8" + " " * 1_000_000, "\\\\" * 100_000,
]  # fmt: skip


@pytest.mark.parametrize("answer", MALFORMED, ids=range(len(MALFORMED)))
def test_malformed_latex_is_wrong_and_never_an_error(answer: str) -> None:
    assert not mi.grade_strict(f"\\boxed{{{answer}}}", "7")
    assert type(mi.grade_paper(f"\\boxed{{{answer}}}", "7")) is bool
    assert not mi.grade_strict(r"\boxed{7}", answer)


# -------------------------------------------------------------------------------------------- time, threads, processes


@pytest.mark.parametrize("answer", ["9^{9^{9^9}}+0", "10^{10^{10}}+0", r"\{1,9^{9^{9^8}}+0\}", r"\sqrt{9^{9^{9^9}}}"])
def test_what_would_never_end_is_given_up(answer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    compare(r"\sqrt{7}", r"\sqrt{11}")  # the process is there
    monkeypatch.setattr(math_verify_process, "CPU_SECONDS", 0)
    found = grade(f"\\boxed{{{answer}}}", r"\{3,1\}" if "," in answer else "1")
    assert (found.strict, found.decided) == (False, "gave up")
    monkeypatch.setattr(math_verify_process, "CPU_SECONDS", 3)
    assert compare(r"\sqrt{28}", r"2\sqrt{7}").equal  # and the next question has an answer


def test_the_process_is_this_python_s_and_ends_with_it() -> None:
    worker = math_verify_process._Worker()
    assert worker.ask(answer=r"\sqrt{4}é", gold=r"2é") is not None
    assert worker.ask(answer="x", gold="x") is True
    process = worker.process
    assert process is not None and process.args == [sys.executable, "-P", math_verify_process.__file__]
    worker.close()
    assert process.returncode == 0 and worker.process is None
    assert worker.ask("x", "x+1") is False, "a next question starts another"
    worker.close()


def test_grading_works_in_threads() -> None:
    with ThreadPoolExecutor(8) as pool:
        asked = [(rf"\boxed{{\sqrt{{{n * n}}} + x}}", f"x + {n + more}") for n in range(2, 10) for more in (0, 1)]
        assert list(pool.map(lambda each: mi.grade_strict(*each), asked)) == [True, False] * 8


def _graded(n: int) -> tuple[int, bool, bool]:
    right = mi.grade_strict(rf"\boxed{{\sqrt{{{n}}}}}", rf"{n}^{{\frac12}}")
    return os.getpid(), right, mi.grade_strict(r"\boxed{9-x}", "x")


@pytest.mark.parametrize("method", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_grading_works_in_worker_processes(method: str) -> None:
    """Also after the parent has graded: a forked process must not read the answers to the parent's questions."""
    assert mi.grade_strict(r"\boxed{\sqrt{13}}", r"13^{\frac12}")
    if method not in multiprocessing.get_all_start_methods():
        pytest.skip(f"no {method} here")
    with multiprocessing.get_context(method).Pool(2) as pool:
        found = pool.map(_graded, [17, 19, 23])
    assert all(yes and not no for _, yes, no in found)
    assert os.getpid() not in {pid for pid, _, _ in found}
    assert mi.grade_strict(r"\boxed{\sqrt{29}}", r"29^{\frac12}")


def test_a_missing_math_verify_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake = tmp_path / "python"
    fake.write_text("#!/bin/sh\n")
    fake.chmod(0o755)
    monkeypatch.setattr("sys.executable", str(fake))
    with pytest.raises(RuntimeError, match="^math-verify did not start; see what .* -c 'import math_verify'. says"):
        math_verify_process._Worker().ask(answer="x", gold="y")


def test_an_interrupted_question_leaves_no_answer_for_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    worker = math_verify_process._Worker()
    worker.ask("x", "x")
    process = worker.process

    def interrupted(*said: object, file: Any, **_: object) -> None:
        file.write(f"{said[0]}\n")
        raise KeyboardInterrupt

    monkeypatch.setattr(math_verify_process, "print", interrupted, raising=False)
    with pytest.raises(KeyboardInterrupt):
        worker.ask("y", "y")
    monkeypatch.undo()
    assert process is not None and process.returncode == -signal.SIGKILL
    assert worker.ask("x", "x+1") is False
    worker.close()


@pytest.mark.parametrize(
    ("error", "answer"), [(MemoryError, None), (RecursionError, None), (ValueError, False), (SyntaxError, False)]
)
def test_a_comparison_short_of_memory_has_no_answer(
    error: type[Exception], answer: bool | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(_: str) -> list[object]:
        raise error

    monkeypatch.setattr(math_verify_process, "_read", read)
    assert math_verify_process.compared("x", "y") is answer
