r"""What the graders read, piece by piece: spellings, units, numbers, parts, places of an answer; MATH's own rules as oracle."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction

import pytest

import mless_interp as mi
from mless_interp.answers import math_verify_process, same_answer
from mless_interp.answers.graders import stripped
from mless_interp.answers.same_answer import Equality, number, plain

pytestmark = pytest.mark.usefixtures("nothing_is_remembered")

F = Fraction

PLAIN = {
    r"$\dfrac12\,x$": r"\frac{1}{2}x", r"\tfrac ab": r"\frac{a}{b}", r"\frac12\frac34": r"\frac{1}{2}\frac{3}{4}",
    r"\frac1{23}": r"\frac{1}{23}", r"\frac\pi2": r"\frac{\pi}{2}", r"\frac{\sqrt2}3": r"\frac{\sqrt{2}}{3}",
    r"\frac{ 1 } { 2 }": r"\frac{1}{2}", r"\frac": r"\frac", r"\frac1": r"\frac{1}", r"\frac{": r"\frac{",
    r"\fracture1": r"\fracture1", r"\sqrt{\sqrt2}\sqrt3": r"\sqrt{\sqrt{2}}\sqrt{3}", "√2x": r"\sqrt{2}x",
    "√ 12": r"\sqrt{12}", "x√(x+1)": r"x\sqrt{x+1}", "sqrt(5)+sqrt (x)": r"\sqrt{5}+\sqrt{x}", "asqrt2": "asqrt2",
    r"\sqrt[3]2": r"\sqrt[3]{2}",
    r"90^\circA": r"90^\circA", r"90\degreeA": r"90\degreeA", "x^2_1": "x^{2}_{1}", "x ^ 10": "x^{1}0", "x_{12}": "x_{12}",
    r"\$32,\!348.": "32348", r"1,\! 234": "1234", "1{,}234": "1234", r"1,\! 23": "1,23", "1, 234": "1;234", "1, 2": "1,2",
    "$1 $ 2": "1 2", r"100\%": "100", "100%": "100", r"\quad 5\;6\:7\>8\ 9~1": "5 6 7 8 9 1", r"x\,.": "x",
    "  a   b ": "a b", "a\u00a0b": "a b", "7,.": "7", "7.5 .": "7.5", "$7.$": "7", "$$7$$": "7", r"\[7\]": "7",
    r"\(7\),": "7", "$": "", r"\mathbf{x}\operatorname*{lcm}": "xlcm", r"\bigl(2\bigr)": "(2)", r"\left\{x\right.": r"\{x",
    r"a \le b \geqslant c \ne d": r"a\leq b\geq c\neq d", r"\varnothing": r"\emptyset", r"\{ \}": r"\emptyset",
    "€5 £6": "5 6", r"90^\circ": "90", r"90^{ \circ }": "90", r"90 \degree": "90", "90°": "90", "−3×4": r"-3\cdot4",
    "2pi": r"2\pi", "spin": "spin", r"(2,+ \infty)": r"(2,\infty)", r"x \in \mathbb{R}": r"(-\infty,\infty)",
    r"\text{all real numbers}": r"(-\infty,\infty)", "x²": "x^{2}", r"1\\[2pt]2": "1\x012", "1\x01\x022": "1 2",
    r"3, 5, \text{ and } 7": "3,5,;7", "1 or 2": "1;2", "candy": "candy", r"\text{a b}": "a b",
    "5 cm": "5\x02centimeter", "5cm": "5\x02centimeter", "5 m": "5m", r"5\text{ m}": "5\x02m",
    r"5-\text{inch}": "5\x02inch", "(5 sq ft, 6)": "(5\x02foot2,6)", "5 cubic feet": "5\x02foot3",
    "5 square cm^3": "5\x02centimeter3", r"864 \mbox{ inches}^2": "864\x02inch2", "5 cm^1": "5\x02centimeter",
    "5 hr.": "5\x02hour", "5 min": "5\x02minute", "5 miles per hour": "5\x02mileperhour", "5 mph": "5\x02mileperhour",
    r"2 billion people\}": "2\\cdot10^9\x02people\\}", "5 square units": "5", r"5\text{ units}^2": "5",
    r"\pi \text{ cm}": "\\pi\x02centimeter", r"\frac{1}{2} cm": "\\frac{1}{2}\x02centimeter", r"x\text{ cm}": "x cm",
    r"5\text{ cm}^2 + 1": "5cm^{2}+1", "3ab": "3ab", "3 sin": "3sin", "5 log cm": "5log cm", r"5\cm": r"5\cm",
    "12 fox": "12\x02fox", "12fox": "12fox", "12 xyz": "12xyz", "3:30 P. M.": "3:30\x02pm", r"\text{77 cups}": "77\x02cup",
}  # fmt: skip
NUMBERS = {
    "7": F(7), "-7": F(-7), "+7": F(7), "07": F(7), "-0": F(0), ".5": F(1, 2), "5.": F(5), "1,000": F(1000),
    "1,000.5": F(2001, 2),
    "1,00": None, "10,00": None, "1 000": F(1000), "12 345 678.9": F(123456789, 10), "7 7": None, "1, 234": None,
    "1/2": F(1, 2), "-1/2": F(-1, 2), "1/-2": F(-1, 2), "1/0": None, "1/2/3": None, "a/2": None, "2/a": None,
    "1 1/2": F(3, 2), "-1 1/2": F(-3, 2), "+2 3/4": F(11, 4), "1 1/0": None,
    r"1\frac{1}{2}": F(3, 2), r"-1\frac{1}{2}": F(-3, 2), r"\frac{-1}{2}": F(-1, 2), r"\frac{1}{-2}": F(-1, 2),
    r"-\frac{1}{2}": F(-1, 2), r"1\frac{-1}{2}": None, r"1\frac{1}{-2}": None, r"1\frac{0}{2}": F(1), r"\frac{1}{0}": None,
    r"\frac{1.5}{2}": F(3, 4), r"\frac{1,000}{2}": F(500), r"\frac{}{2}": None, r"\frac{1}{,}": None,
    r"0.\overline{3}": F(1, 3), r"-0.1\overline{6}": F(-1, 6), r".\overline{09}": F(1, 11), r"2.\bar{3}": F(7, 3),
    r"12.34\overline{567}": F(1234567 - 1234, 99900),
    "10^6": F(10**6), "10^{6}": F(10**6), "10^{-3}": F(1, 1000), "10^{+3}": F(1000), "10^{1000}": None,
    r"3\cdot10^2": F(300), r"3.5\cdot10^{-2}": F(7, 200), r"-2\cdot10^3": F(-2000), r"x\cdot10^2": None,
    "": None, "-": None, ".": None, "+": None, "1e5": F(10**5), "--1": None, "½": None, "8" * 500: F(int("8" * 500)),
}  # fmt: skip


@pytest.mark.parametrize(("read", "table"), [(plain, PLAIN), (number, NUMBERS)], ids=["plain", "numbers"])
def test_every_spelling_is_read_as_it_is_meant(read: Callable[[object], object], table: dict[object, object]) -> None:
    found = {text: read(text) for text in table}
    assert found == table


@pytest.mark.parametrize(
    ("answer", "gold", "equal", "by"),
    [
        ("", "1", False, "text"), (r"\,", "1", False, "text"), ("5 cm", "5", True, "text"),
        ("5 cm", "5 meters", False, "text"), ("1 cm", "2", False, "number"), ("0.5", r"\frac12", True, "number"),
        ("12_8", "12", False, "text"), (r"\text{Evelyn}", "evelyn", True, "text"),
        (r"\text{Evelyn}", "Navin", False, "text"), ("5", r"\text{five}", False, "text"),
        ("8" * 500, "8" * 500, True, "text"), ("8" * 501, "8" * 501 + " ", True, "text"),
        ("8" * 501, "8" * 502, False, "text"), (" " * 501 + "14/2", "7", True, "number"),
        ("0" * 499 + "7", "7", True, "number"), ("0" * 500 + "7", "7", False, "text"), (r"\{5\}", "5", True, "text"),
        (r"\{1\}", "(1,2)", False, "parts"), ("(1,2)", "1", False, "parts"), ("1", "(1,2)", False, "parts"),
        ("(1,2)", "(1,2,3)", False, "parts"), (r"\{1,1\}", r"\{1,2\}", False, "parts"),
        (r"\{1,\{2,3\}\}", r"\{\{3,2\},1\}", True, "parts"), ("1,2,(3,4)", "(4,3),2,1", False, "parts"),
        (",".join(map(str, range(40))), ",".join(map(str, reversed(range(40)))), True, "parts"),
        (",".join(map(str, range(41))), ",".join(map(str, reversed(range(41)))), False, "parts"),
        ("(" * 8 + "1/2" + ")" * 8, "(" * 8 + "0.5" + ")" * 8, True, "number"),
        ("(" * 9 + "1/2" + ")" * 9, "(" * 9 + "0.5" + ")" * 9, False, "text"),
        (r"\{0," * 7 + r"\{1,2\}" + r"\}" * 7, r"\{0," * 7 + r"\{2,1\}" + r"\}" * 7, True, "parts"),
        (r"\{0," * 8 + r"\{1,2\}" + r"\}" * 8, r"\{0," * 8 + r"\{2,1\}" + r"\}" * 8, False, "parts"),
        ("x=5", "x<=5", False, "math-verify"), ("x=5", "x+1<=5", False, "math-verify"),
        ("x>2", r"(2,\infty)", True, "math-verify"), (r"(2,\infty)", "x>2", True, "math-verify"),
        ("x+1", "1+x", True, "math-verify"), ("x+1", "x+2", False, "math-verify"),
    ],
)  # fmt: skip
def test_what_decides_between_two_answers(answer: str, gold: str, equal: bool, by: str) -> None:
    assert same_answer.compare(answer, gold) == Equality(equal, by)
    assert same_answer.compare(gold, answer).equal is equal


# ------------------------------------------------------------------------------------------------ the paper's own rules


STRIPPED = {
    "\n\\dfrac .": r"\frac{0}{.}", "=1/2": r"\frac{1}{2}", r".\sqrtab=": r"0.\sqrt{a}b=",
    r" \tfrac%-{.5}": r"\frac{-}{0.5}", r"^\circ\!\%.5": r"\frac{1}{2}", r"ab=\tfrac{\ \$": "\\frac{\\",
    r"\sqrt{\text{ cm}": r"\sqrt{", r"^{\circ}1/2\left(\frac\right)": r"1/2(\frac)", "-xx=": "-xx=",
    r"\sqrt/{": r"\sqrt{/}{", r"\sqrt2\sqrt0.5": r"\sqrt{2}\sqrt{0}.5", r"\%\tfrac}\sqrt": None,
    r"\sqrt\dfrac^{\circ} .2": r"\sqrt{\}frac0.2", "\\left(\n{.5}}%": "({0.5}}", "\\%\n12\\dfrac": None,
    r"\sqrt{.5}=ab=": r"\sqrt{0.5}=ab=", r"=\left(\text{ m}1/2": "(", r"\text{ cm}0.50.5": "",
    r"\left(1/2^\circ.5": "(1/2.5", r"\text{ cm}1": "", r"\text{ m}\frac=": "", r"\frac}%.5": r"\frac{}}{.}5",
    "0.5x=1{": "0.5x=1{", r"\sqrt12\%": r"\sqrt{1}2", r"x12\text{ cm}\!^\circ": "x12",
}  # fmt: skip
"""Texts as `_strip_string` of hendrycks/math leaves them, with `%` alone removed too; None where it has an error."""


def test_the_papers_rules_are_those_of_math() -> None:
    def read(text: str) -> str | None:
        try:
            return stripped(text)
        except (ValueError, IndexError):
            return None

    assert {text: read(text) for text in STRIPPED} == STRIPPED


@pytest.mark.parametrize(
    ("completion", "gold", "right"),
    [
        (r"\boxed{7}", "7", True), (r"\boxed{1} \boxed{7}", "7", True), (r"\boxed{7} \boxed{1}", "7", False),
        (r"\fbox{7}", "7", True), (r"\fbox{7} \boxed{1}", "7", False), (r"\boxed{7} \fbox{1}", "7", True),
        (r"\boxed {7}", "7", False), (r"x\boxed{{7}}", "7", False), (r"\boxed{\frac{1}{2}} }", "0.5", True),
        (r"\boxed{7", "7", False), (r"\boxed", "7", False), (r"}\boxed{7}", "7", True), (r"boxed{7}", "7", False),
        (r"\boxed{\frac}", r"\frac", True), (r"\boxed{\frac}", r"\frac{1}{2}", False), (r"\boxed{{}}", "7", False),
        (r"\boxed{1}", r"\frac{14}{3}", True), (r"\boxed{1+x}", "x+1", False), ("7", "7", False),
    ],
)  # fmt: skip
def test_the_papers_box_is_the_last_one_with_balanced_braces(completion: str, gold: str, right: bool) -> None:
    assert mi.grade_paper(completion, gold) is right


# ------------------------------------------------------------------------------------------------------------ the process


def test_the_worker_compares_as_it_is_asked() -> None:
    """In this process, where it can be looked at, outside the main thread: an alarm, which it must not set, is not heard."""
    asked = {
        (r"\sqrt{25}", "5"): True, ("x+1", "1+x"): True, ("x+1", "x+2"): False, ("1.732", r"\sqrt{3}"): False,
        ("a+b", "x+y"): False, ("3ab", "3"): False, ("", "1"): False, ("1", ""): False, ("", ""): False,
        (r"\boxed{5}", "5"): True, (r"\boxed{5}+1", "5"): False, ("sqrt(4)", "2"): False, ("(7)_{2}", "42"): False,
        ("x>2", r"(2,\infty)"): False, (r"(2,\infty)", "x>2"): True,
    }  # fmt: skip
    with ThreadPoolExecutor(1) as pool:
        assert {each: pool.submit(math_verify_process.compared, *each).result() for each in asked} == asked
