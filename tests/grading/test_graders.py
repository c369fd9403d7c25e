"""Graders: boxes, what counts as the same answer, MATH-500's golds, malformed LaTeX, threads, processes and time."""

import multiprocessing
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as texts

import mless_interp as mi
from mless_interp.grading import equivalence, grade, graders, has_closed_box, last_box
from mless_interp.grading import worker as grading_worker
from mless_interp.grading.compare import compare, number
from mless_interp.grading.graders import found_answer
from mless_interp.grading.paper_grader import stripped

pytestmark = pytest.mark.usefixtures("nothing_is_remembered")

# --------------------------------------------------------------------------------------------------------------- boxes


@pytest.mark.parametrize(
    ("text", "inside"),
    [
        (r"\boxed{7}", "7"),
        (r"\boxed{ 7 } <eos>", "7"),
        (r"\boxed {7}", "7"),
        (r"\boxed{1} no \boxed{2}.", "2"),
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
        (r"\boxed{\left\{ x \right.}", r"\left\{ x \right."),
        (r"\boxed{a \\{b}}", r"a \\{b}"),
        (r"\boxed{\boxed{7}}", "7"),
        (r"\boxed{x = \boxed{7}}", "x = 7"),
        (r"\boxed{7} and \boxed{8", "7"),
        (r"\boxed{8 and \boxed{7}", "7"),
        (r"{ \boxed{7}", "7"),
        (r"} } \boxed{7}", "7"),
        (r"\boxed{7} \boxed{}", ""),
        (r"put it within \boxed{}", ""),
        (r"\boxed{7", None),
        (r"\boxed 7", None),
        (r"\boxed{\}", None),
        (r"\\boxed{7}", None),
        (r"\fbox{7}", None),
        (r"boxed{7}", None),
        ("7", None),
        ("", None),
    ],
)
def test_the_last_balanced_box_is_found(text: str, inside: str | None) -> None:
    assert last_box(text) == inside


balanced = texts.recursive(
    texts.text(texts.characters(exclude_characters="\\{}", exclude_categories=("Cs",)), max_size=6),
    lambda inner: texts.lists(inner, min_size=1, max_size=3).map(lambda parts: "{" + "}{".join(parts) + "}"),
    max_leaves=6,
)
noise = texts.lists(texts.sampled_from(["{", "}", r"\{", r"\}", "\\", r"\boxed{", r"\boxed", "7", " "])).map("".join)


@given(before=noise, inside=balanced)
@settings(max_examples=300, deadline=None)
def test_a_balanced_box_is_found_whole_after_anything(before: str, inside: str) -> None:
    before = before.rstrip("\\")  # a backslash at the end would belong to the box's own
    assert last_box(before + "\\boxed{" + inside + "}") == inside.strip()


@given(inside=balanced, after=balanced)
@settings(max_examples=200, deadline=None)
def test_braces_after_a_box_do_not_reach_into_it(inside: str, after: str) -> None:
    assert last_box("x \\boxed{" + inside + "} " + after + " \\boxed{never closed") == inside.strip()


@given(noise)
@example("\\boxed{" * 50)
@settings(max_examples=300, deadline=None)
def test_any_text_can_be_searched(text: str) -> None:
    found = last_box(text)
    depth = 0
    for c in (found or "").replace("\\\\", "").replace("\\{", "").replace("\\}", ""):
        depth += (c == "{") - (c == "}")
        assert depth >= 0
    assert depth == 0
    assert has_closed_box(text) >= bool(found)


def test_searching_takes_time_in_proportion() -> None:
    started = time.perf_counter()
    assert last_box("\\boxed{" * 50_000) is None
    assert last_box("\\boxed" + " " * 50_000) is None
    assert last_box("\\boxed{" * 20_000 + "}" * 20_000) == ""
    assert time.perf_counter() - started < 60  # it ends; how fast is no matter


# ------------------------------------------------------------------------------------------------ what counts as equal

SAME = [
    # numbers
    (r"\dfrac{1}{2}", ".5"),
    (r"\frac12", "1/2"),
    ("7.0", "7"),
    ("+7", "07"),
    ("$7$", "7"),
    (r"\(7\).", "7"),
    (r"\text{7}", "7"),
    ("9/5", r"1\frac{4}{5}"),
    ("137.5", r"137 \frac{1}{2}"),
    ("10080", r"10,\!080"),
    ("11111111100", r"11,\! 111,\! 111,\! 100"),
    ("10\\,080", "10,080"),
    ("10^6", "1,000,000"),
    (r"6.72 \times 10^{-5}", ".0000672"),
    (r"-\frac{35}{9}", r"\frac{-35}{9}"),
    ("−7", "-7"),
    ("2 + 5 = 7", "7"),
    ("2516_{8}", "2516_8"),
    # degrees, currency, percent, units
    (r"90^\circ", "90"),
    ("90 degrees", r"90^{\circ}"),
    (r"\frac{270}{7}", r"\frac{270}7\text{ degrees}"),
    ("32348.00", r"\$32,\!348"),
    (r"50\%", "50"),
    ("50 percent", "50%"),
    ("864 square inches", r"864 \mbox{ inches}^2"),
    (r"864\,\text{in}^{2}", r"864 \mbox{ inches}^2"),
    ("77 cups", "77"),
    (r"\text{77 cups}", "77 cup"),
    ("15 cm^2", r"15\mbox{ cm}^2"),
    # expressions
    (r"\sqrt{52}", r"2\sqrt{13}"),
    (r"\frac{1}{\sqrt3}", r"\frac{\sqrt{3}}{3}"),
    ("x^4(x-1)+x^2(x-1)+x-1", "x^5 - x^4 + x^3 - x^2 + x - 1"),
    (r"\frac{\cos x}{\sin x}", r"\cot x"),
    ("-5i+6", "6 - 5i"),
    (r"\frac{9a}{20}+0.55", r"\frac{11+9a}{20}"),
    ("12pi", r"12\pi"),
    ("sqrt(51)", r"\sqrt{51}"),
    ("3ba", "3ab"),
    (r"\log_2 8", "3"),
    # equations
    ("x = 5", "5"),
    ("5", "x=5"),
    ("5 = x", "5"),
    ("2x+3", "y = 2x + 3"),
    ("y = 3+2x", "y = 2x + 3"),
    ("10x-14y+22z+8=0", "5x - 7y + 11z + 4 = 0"),
    # tuples, intervals, sets, lists, matrices
    (r"(3, \pi/2)", r"\left( 3, \frac{\pi}{2} \right)"),
    (r"(2, +\infty)", r"(2,\infty)"),
    ("x > 2", r"(2,\infty)"),
    (r"-2 \le x \le 7", r"x \in [-2,7]"),
    (r"(3,\infty) \cup (-\infty,2)", r"(-\infty, 2) \cup (3, \infty)"),
    ("-2,1", "1,-2"),
    ("x=1 or x=-2", "1,-2"),
    (r"3, 5, \text{ and } 7", r"\{7, 5, 3\}"),
    (r"1-\sqrt{19}, 1+\sqrt{19}", r"1 \pm \sqrt{19}"),
    (r"\{-2,1\pm\sqrt{5}\}", r"\{1\pm\sqrt{5},-2\}"),
    (r"\{5\}", "5"),
    (r"\begin{bmatrix} -\frac13 \\ \frac23 \end{bmatrix}", r"\begin{pmatrix} -1/3 \\ 2/3 \end{pmatrix}"),
    # words
    ("evelyn", r"\text{Evelyn}"),
    (r"\textbf{(E)}", r"\text{(E)}"),
    ("C", r"\text{(C)}"),
    # word-level tokens with spaces between
    (r"\frac { 1 } { 2 }", r"\frac{1}{2}"),
    # mixed numbers with a slash, repeating decimals, roots and currency signs as typed, times of day
    ("1 1/2", "3/2"),
    ("-2 3/4", "-2.75"),
    (r"0.\overline{3}", r"\frac{1}{3}"),
    (r"-0.1\overline{6}", r"-\frac{1}{6}"),
    ("√12", r"2\sqrt{3}"),
    ("3√(x+1)", r"3\sqrt{x + 1}"),
    ("€12.50", "12.5"),
    (r"3:30\text{ p.m.}", "3:30 PM"),
    # sets, named tuples and matrices, lists of a number and a number of three digits
    (r"\mathbb{R}", r"(-\infty,\infty)"),
    (r"x \in \mathbb{R}", r"(-\infty,+\infty)"),
    (r"\emptyset", r"\{ \}"),
    (r"\varnothing", r"\emptyset"),
    ("(x,y)=(1,2)", "(1,2)"),
    ("D = [0, 1)", "[0,1)"),
    (r"A = \begin{pmatrix}1&2\\3&4\end{pmatrix}", r"\begin{pmatrix}1&2\\3&4\end{pmatrix}"),
    (r"\left[\begin{array}{cc} 1 & 2 \\ 3 & 4 \end{array}\right]", r"\begin{pmatrix}1&2\\3&4\end{pmatrix}"),
    ("2, 100", "100, 2"),
]
OTHER = [
    ("7 7", "77"),
    ("7 8", "15"),  # math-verify reads 7 + 8
    ("0.333333", r"\frac13"),
    ("1.414214", r"\sqrt2"),
    ("3.14", r"\pi"),
    ("0.5", r"50\%"),
    ("0.0", "10^{-8}"),
    ("100000000000000000001", "100000000000000000000"),
    ("2516", "2516_8"),
    ("2516_7", "2516_8"),
    ("5 cm", r"5\text{ m}"),
    ("5 cm^2", "5 cm^3"),
    ("3ab", "3"),  # math-verify takes ab for a unit
    ("3", "3m"),
    ("2x", "2y"),
    ("y=5", "x=5"),
    ("x^2=4", "4"),
    ("(1,2)", "[1,2]"),
    ("(1,2]", "(1,2)"),
    ("1,2", "(1,2)"),
    ("(2,1)", "(1,2)"),
    (r"\{1,2\}", "(1,2)"),
    ("1,1", "1"),
    ("1,2,2", "1,1,2"),
    (r"1\pm2", "3"),
    (r"\begin{pmatrix}1&2\end{pmatrix}", r"\begin{pmatrix}1\\2\end{pmatrix}"),
    (r"\begin{vmatrix}1&2\\3&4\end{vmatrix}", r"\begin{pmatrix}1&2\\3&4\end{pmatrix}"),
    ("no", "on"),
    ("seat", r"\text{east}"),  # the same letters multiplied
    (r"\text{Navin Evelyn}", r"\text{Evelyn}"),
    ("A", r"\text{(B)}"),
    (r"\infty", r"-\infty"),
    ("1 1/2", "11/2"),
    (r"0.\overline{3}", "0.3"),
    ("1, 234", "1234"),
    (r"3:30\text{ a.m.}", r"3:30\text{ p.m.}"),
    (r"\mathbb{R}", r"(0,\infty)"),
    (r"\mathbb{Z}", r"\mathbb{R}"),
    ("(a,b)=(1,2)", "(x,y)=(1,2)"),
    ("(x,y)=(1,2)", "(2,1)"),
    (r"\left|\begin{array}{cc}1&2\\3&4\end{array}\right|", r"\begin{pmatrix}1&2\\3&4\end{pmatrix}"),
    ("", "1"),
    ("1", ""),
]


@pytest.mark.parametrize(("answer", "gold"), SAME)
def test_the_same_answer_is_right(answer: str, gold: str) -> None:
    assert compare(answer, gold).equal
    assert compare(gold, answer).equal


@pytest.mark.parametrize(("answer", "gold"), OTHER)
def test_another_answer_is_wrong(answer: str, gold: str) -> None:
    assert not compare(answer, gold).equal
    assert not compare(gold, answer).equal


@given(texts.integers(-(10**9), 10**9), texts.integers(1, 10**6))
@settings(max_examples=100, deadline=None)
def test_fractions_are_read_exactly_however_written(above: int, below: int) -> None:
    sign = "-" if above < 0 else ""
    value = number(f"{above}/{below}")
    assert (
        value
        == number(rf"{sign}\frac{{{abs(above)}}}{{{below}}}")
        == number(rf"\dfrac{{{above}}}{{{below}}}".replace("d", ""))
    )
    assert number(f"{above:,}") == above
    assert value is not None and compare(str(above), f"{above + 1}").equal is False


# ------------------------------------------------------------------------------------------------- lenient, paper, all


@pytest.mark.parametrize(
    ("completion", "gold"),
    [
        ("The answer is 7.", "7"),
        ("the final answer is $\\frac12$. Thanks", "0.5"),
        ("Answer: 7 <eos>", "7"),
        (r"\boxed 7", "7"),
        (r"\fbox{7}", "7"),
        (r"\boxed{\frac{1}{2} <eos>", "0.5"),
        ("so $x = 5$ and so on", "5"),
        ("we get 5 and 7", "7"),
        (r"\boxed{0.667}", r"\frac23"),
        (r"\boxed{1.732}", r"\sqrt3"),
        (r"\boxed{0.5}", r"50\%"),
        (r"\boxed{1,2}", "(1,2)"),
        (r"\boxed{52}", "52_8"),
        (r"\boxed{5 km}", "5 cm"),
    ],
)
def test_the_lenient_grader_forgives_place_and_form(completion: str, gold: str) -> None:
    assert mi.grade_lenient(completion, gold)
    assert not mi.grade_strict(completion, gold)


@pytest.mark.parametrize(
    ("completion", "gold"),
    [
        (r"\boxed{}", "7"),
        ("", "7"),
        ("The answer is 8, not 7.", "7"),
        (r"\boxed{1}", r"\frac{14}{3}"),
        (r"\boxed{0.6}", r"\frac23"),
        (r"\boxed{0.668}", r"\frac23"),
        (r"\boxed{8} so 7", "7"),
        (r"\boxed{0}", "5x + 4 = 0"),
    ],
)
def test_the_lenient_grader_does_not_forgive_another_answer(completion: str, gold: str) -> None:
    assert not mi.grade_lenient(completion, gold)


def test_the_papers_grader_is_the_papers() -> None:
    assert mi.grade_paper(r"\boxed{1}", r"\frac{14}{3}")
    assert not mi.grade_paper(r"\boxed{1+x}", "x+1")
    assert not mi.grade_paper("7", "7")
    assert not mi.grade_paper(r"\boxed{{}}", "7")  # the doubled braces that the released code really sends
    assert mi.grade_paper(r"\boxed{\frac}", r"\frac") and not mi.grade_paper(r"\boxed{\frac}", r"\frac{1}{2}")
    assert stripped(r"\tfrac12") == r"\frac{1}{2}" == stripped("0.5") == stripped("1/2")
    assert stripped(r"x=\sqrt3\text{ cm}") == r"\sqrt{3}"
    with pytest.raises(IndexError, match="string index out of range"):
        stripped(r"\frac")
    assert "UNSOUND" in (mi.grade_paper.__doc__ or "") and '"1" 200' in (mi.grade_paper.__doc__ or "")


def test_all_grades_at_once_with_what_decided() -> None:
    found = grade(r"so \boxed{ 7 } <eos>", "7")
    assert (found.strict, found.lenient, found.paper, found.boxed, found.answer, found.decided) == (
        True, True, True, True, "7", "text",
    )  # fmt: skip
    assert grade("7", "7").decided == "no box" and grade(r"\boxed{ }", "7").decided == "empty box"
    assert grade(r"\boxed{14/2}", "7").decided == "number"
    assert grade(r"\boxed{\sqrt{49}}", "7").decided == "math-verify"
    assert grade(r"\boxed{1,7}", "7").decided == "parts"
    assert found_answer("nothing") is None


# -------------------------------------------------------------------------------------------- time, threads, processes


@pytest.mark.parametrize("answer", ["9^{9^{9^9}}", "10^{10^{10}}"])
def test_what_would_never_end_is_given_up(answer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    compare(r"\sqrt{7}", r"\sqrt{11}")  # the process is there
    monkeypatch.setattr(equivalence, "CPU_SECONDS", 0)
    started = time.perf_counter()
    found = grade(f"\\boxed{{{answer}+0}}", "1")
    assert (found.strict, found.lenient, found.decided) == (False, False, "gave up")
    monkeypatch.setattr(equivalence, "CPU_SECONDS", 3)
    assert compare(r"\sqrt{28}", r"2\sqrt{7}").equal  # and the next question has an answer
    assert time.perf_counter() - started < 60


def test_a_silent_process_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    worker = equivalence._Worker()
    assert worker.ask(answer="x", gold="x", decimals=None)[0] is True
    first = worker.process
    monkeypatch.setattr(equivalence, "WALL_SECONDS", 0.0)
    with pytest.raises(equivalence._Ended):
        worker.ask(answer=r"\sqrt{4}", gold="2", decimals=None)
    assert first is not None and first.poll() is not None
    monkeypatch.setattr(equivalence, "WALL_SECONDS", 60.0)
    assert worker.ask(answer=r"\sqrt{4}", gold="2", decimals=None)[0] is True
    assert worker.process is not None
    worker.process.kill()
    worker.process.wait()
    assert worker.ask(answer=r"\sqrt{9}", gold="3", decimals=None)[0] is True
    worker.close()


def test_the_process_is_this_python_s_and_quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its path holds no folder of ours, and its thread keeps no program from ending."""
    begun: list[tuple[object, dict[str, object]]] = []
    start = subprocess.Popen.__init__

    def seen(process: subprocess.Popen[str], command: object, **how: object) -> None:
        begun.append((command, how))
        start(process, command, **how)  # type: ignore[arg-type]

    monkeypatch.setattr(subprocess.Popen, "__init__", seen)
    worker, before = equivalence._Worker(), set(threading.enumerate())
    found, seconds = worker.ask(answer=r"\sqrt{4}é", gold=r"2é", decimals=None)
    assert found is not None and 0 <= seconds < 60
    script = str(Path(equivalence.__file__).with_name("worker.py"))
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    assert begun == [([sys.executable, "-P", script], pipes | {"text": True, "encoding": "utf-8"})]
    (reader,) = set(threading.enumerate()) - before
    assert reader.daemon and worker.worked
    assert worker.ask(answer="x", gold="x", decimals=None)[0] is True and len(begun) == 1, (
        "asked again, not begun again"
    )
    process = worker.process
    assert process is not None and worker.close() == -signal.SIGKILL and worker.close() is None
    assert process.stdin is not None and process.stdin.closed and worker.process is None
    worker.process, worker.pid = process, -1  # another's, by way of a fork: nobody's to end
    assert worker.close() is None and worker.process is None


def test_grading_works_in_threads() -> None:
    equivalence._asked.cache_clear()
    found: dict[int, bool] = {}

    def one(n: int) -> None:
        found[n] = mi.grade_strict(rf"\boxed{{\sqrt{{{n * n}}} + x}}", f"x + {n}")
        found[-n] = mi.grade_strict(rf"\boxed{{\sqrt{{{n * n}}} + x}}", f"x + {n + 1}")

    threads = [threading.Thread(target=one, args=(n,)) for n in range(2, 10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {n: n > 0 for n in [*range(2, 10), *range(-9, -1)]}


def _graded(n: int) -> tuple[int, bool, bool]:
    return (
        os.getpid(),
        mi.grade_strict(rf"\boxed{{\sqrt{{{n}}}}}", rf"{n}^{{\frac12}}"),
        mi.grade_strict(r"\boxed{9-x}", "x"),
    )


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
    fake.write_text('#!/bin/sh\necho \'{"error": "ModuleNotFoundError: No module named math_verify"}\'\n')
    fake.chmod(0o755)
    monkeypatch.setattr("sys.executable", str(fake))
    with pytest.raises(equivalence.EquivalenceError, match="could not be started .*No module named math_verify"):
        equivalence._Worker().ask(answer="x", gold="y", decimals=None)
    worked = equivalence._Worker()
    worked.worked = True  # gone since: said as well, it is no process that somebody ended
    with pytest.raises(equivalence.EquivalenceError, match="could not be started .*No module named math_verify"):
        worked.ask(answer="x", gold="y", decimals=None)
    fake.write_text("#!/bin/sh\n")  # says nothing at all
    with pytest.raises(equivalence.EquivalenceError, match="^math-verify could not be started; see what"):
        equivalence._Worker().ask(answer="x", gold="y", decimals=None)
    monkeypatch.setattr("sys.executable", "")
    with pytest.raises(equivalence.EquivalenceError, match="sys.executable is not set"):
        equivalence._Worker().ask(answer="x", gold="y", decimals=None)


def test_formulas_are_found_as_a_plain_search_finds_them() -> None:
    search = re.compile(r"\$\$?([^$]+)\$\$?|\\\((.+?)\\\)|\\\[(.+?)\\\]", re.DOTALL)

    @given(texts.lists(texts.sampled_from(["$", "$$", r"\(", r"\)", r"\[", r"\]", "x", "7\n", "\\", " "])).map("".join))
    @settings(max_examples=500, deadline=None)
    def same(text: str) -> None:
        wanted = [next(group for group in found.groups() if group) for found in search.finditer(text)]
        assert list(graders._formulas(text)) == wanted

    same()


def test_all_comparisons_of_one_grade_share_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def slow(answer: str, gold: str, decimals: int | None) -> tuple[bool, float]:
        asked.append(answer)
        return False, 2.0

    monkeypatch.setattr(equivalence, "_asked", slow)
    parts = [rf"\sqrt{{{n}}}+x" for n in range(2, 26)]
    found = grade(rf"\boxed{{\{{{','.join(parts)}\}}}}", r"\{" + ",".join(f"{part}+y" for part in parts) + r"\}")
    assert (found.strict, found.lenient, found.decided) == (False, False, "gave up")
    assert len(asked) == 6, "10 seconds are over after the sixth"


def test_a_process_killed_by_the_system_is_asked_once_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """A right answer stays right; killed every time it is undecided, which is not remembered."""
    assert mi.grade_strict(r"\boxed{\sqrt{44}}", r"2\sqrt{11}")
    ask, kills = equivalence._Worker._ask, [1]

    def killed(worker: equivalence._Worker, question: dict[str, object]) -> tuple[bool | None, float]:
        if kills[0]:
            kills[0] -= 1
            assert worker.process is not None or worker._start()
            worker.process.kill()  # as the system does it when memory is short
            monkeypatch.setattr(worker.process, "poll", lambda: None)  # not noticed yet
        return ask(worker, question)

    monkeypatch.setattr(equivalence._Worker, "_ask", killed)
    assert grade(r"\boxed{\sqrt{63}}", r"3\sqrt{7}").decided == "math-verify"
    kills[0] = 2
    found = grade(r"\boxed{\sqrt{68}}", r"2\sqrt{17}")
    assert (found.strict, found.lenient, found.decided) == (False, False, "undecided")
    assert grade(r"\boxed{\sqrt{68}}", r"2\sqrt{17}").strict, "asked again, it is decided"


def test_a_process_that_takes_no_question_any_more_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    worker = equivalence._Worker()
    assert worker.ask(answer="x", gold="x", decimals=None)[0] is True
    ended = worker.process
    assert ended is not None
    ended.kill()
    ended.wait()
    monkeypatch.setattr(ended, "poll", lambda: None)  # not noticed before the question is written
    assert worker.ask(answer=r"\sqrt{4}", gold="2", decimals=None)[0] is True and worker.process is not ended
    worker.close()


def test_a_process_that_cannot_be_started_again_does_not_end_a_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert mi.grade_strict(r"\boxed{\sqrt{45}}", r"3\sqrt{5}")
    equivalence._worker.close()
    monkeypatch.setattr("sys.executable", str(tmp_path / "gone"))
    assert grade(r"\boxed{\sqrt{76}}", r"2\sqrt{19}").decided == "undecided"
    monkeypatch.undo()
    assert mi.grade_strict(r"\boxed{\sqrt{76}}", r"2\sqrt{19}")


@pytest.mark.parametrize(
    ("error", "answer"), [(MemoryError, None), (RecursionError, None), (ValueError, False), (SyntaxError, False)]
)
def test_a_comparison_short_of_memory_has_no_answer(error: type[Exception], answer: bool | None) -> None:
    def compared(*_: object) -> bool:
        raise error

    assert grading_worker.answered(compared, "x", "y", None) is answer
    assert grading_worker.answered(lambda *_: 1, "x", "y", None) is True
