r"""Graders: is the answer in a completion the gold one? Three of them, to report side by side.

All take `(completion, gold)`: what the model wrote after the prompt, never the prompt itself (it holds `\boxed{}`), and
the answer key's entry. All give a truth value for any text: malformed LaTeX is wrong, a completion is searched in time in
proportion to its length, an answer of more than `compare.LONGEST` characters is compared as text, and math-verify has limits
of time and memory (`equivalence.py`).
"""

import re
from dataclasses import dataclass
from fractions import Fraction

from ..arguments import checked
from . import latex
from .boxes import last_box, unboxed
from .compare import GAVE_UP, LONGEST, NAME, Equality, compare, number
from .equivalence import Questions
from .paper_grader import grade_paper
from .units import without_unit

GRADERS = ("strict", "lenient", "paper")
"""Who grades every completion, each a truth value of `Grade`; the first is the one to conclude from."""
OPEN = (GAVE_UP, "undecided")  # as older results say it
"""What `Grade.decided` says of a strict grade that nothing settled: it counts as wrong, and is to be counted."""


@dataclass(frozen=True)
class Grade:
    r"""What all graders say of one completion.

    `answer` is what the last box holds (None without a box) and `boxed` whether it holds something. `decided` says what
    settled the strict grade: "no box", "empty box", "text", "number", "parts", "math-verify"; or "gave up", where the
    comparison took more time or memory than its limits, and the answer counts as wrong.
    """

    strict: bool
    lenient: bool
    paper: bool
    boxed: bool
    answer: str | None
    decided: str


@checked
def grade(completion: str, gold: str) -> Grade:
    r"""Return all three grades at once, with what decided the strict one.

    >>> grade(r"so \boxed{ 7 } <eos>", "7")
    Grade(strict=True, lenient=True, paper=True, boxed=True, answer='7', decided='text')
    """
    answer = last_box(completion)
    ask = Questions()
    equality = compare(answer, gold, ask) if answer else Equality(False, "no box" if answer is None else "empty box")
    return Grade(
        strict=equality.equal,
        lenient=equality.equal or _lenient(completion, gold, ask),
        paper=grade_paper(completion, gold),
        boxed=bool(answer),
        answer=answer,
        decided=equality.by,
    )


@checked
def grade_strict(completion: str, gold: str) -> bool:
    r"""Return whether the last balanced `\boxed{...}` of the completion holds an answer equal to the gold one.

    No box or an empty one is wrong. `compare.py` says what counts as equal (exact numbers, ordered tuples, kinds of
    brackets, unordered lists, units, words); what it cannot tell apart is math-verify's to decide, within a limit of
    time. On MATH-500, gold against gold is right 500 of 500 times, an empty box never, the constant answer "1" 12 times
    (the golds that are 1).

    Source: methods §11 | differs in: numbers and parts are compared by us, so that math-verify's readings of `7 8` (15),
    `52_8` (52) and `(1,2)` (an interval, a point or a set) do not count.

    >>> grade_strict(r"thus \boxed{\frac{1}{2}}", "0.5"), grade_strict("thus 0.5", "0.5")
    (True, False)
    """
    answer = last_box(completion)
    return bool(answer) and compare(answer or "", gold).equal


@checked
def grade_lenient(completion: str, gold: str) -> bool:
    r"""Return whether the answer is right, however it is written: `grade_strict`, and forgiving about place and form.

    Without a non-empty box the answer is looked for after `\boxed` without braces, in an `\fbox`, after "answer is" or
    "answer:", in the last formula, in the last number. Brackets, units and bases may be left out, variables renamed, and a
    decimal of three or more digits may be rounded; 0.5 is 50 %. Sound: another answer is not right because it is part of
    the gold one. Still a guess at what was meant: report it beside the strict grade.

    >>> grade_lenient("The answer is 0.333.", r"\frac{1}{3}"), grade_lenient("The answer is 3.", r"\frac{1}{3}")
    (True, False)
    """
    answer = last_box(completion)
    ask = Questions()
    return (bool(answer) and compare(answer or "", gold, ask).equal) or _lenient(completion, gold, ask)


_ANSWER_IS = re.compile(r"(?i)answer\s*(?:is|:|=)\s*:?\s*")
_FORMULA = re.compile(r"\$\$?([^$]+)\$\$?|\\\((.+?)\\\)|\\\[(.+?)\\\]", re.DOTALL)
_SPECIAL = re.compile(r"<\|?[a-zA-Z_/]+\|?>")
_LAST_NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?(?:/\d+)?")


def found_answer(completion: str) -> str | None:
    """Return the answer of a completion wherever it stands, or None; what `grade_lenient` grades."""
    boxed = last_box(completion, commands=("boxed", "fbox"))
    if boxed:
        return boxed
    text = _SPECIAL.sub(" ", unboxed(completion))
    started = re.findall(r"\\boxed\s*(?:\{([^\n]*)|([^\s{}$.,;]+))", text)
    if started:
        return next(group for group in started[-1] if group).strip(" .$") if any(started[-1]) else None
    said = _ANSWER_IS.split(text)
    tail = said[-1].split("\n")[0].strip() if len(said) > 1 else ""
    if tail and len(tail) <= 100:
        formula = _FORMULA.search(tail)
        if formula:
            return formula[formula.lastindex or 0]
        return re.sub(r"\.\s.*$", "", tail).strip(" .*") or None
    formulas = ["".join(groups) for groups in _FORMULA.findall(text)]
    if formulas:
        return formulas[-1]
    numbers = _LAST_NUMBER.findall(text)
    return numbers[-1].rstrip(",") if numbers else None


def _lenient(completion: str, gold: str, ask: Questions) -> bool:
    answer = found_answer(completion)
    if answer is None or ask.gave_up:
        return False
    if compare(answer, gold, ask).equal:
        return True
    if max(len(answer), len(gold)) > LONGEST:
        return False
    first, second = (_loose(text) for text in (answer, gold))
    if not first or not second:
        return False
    if compare(first, second, ask).equal:
        return True
    left, right = number(first), number(second)
    decimals = _decimals(first)
    if left is not None and right is not None:
        if ("%" in answer) != ("%" in gold) and (left == 100 * right if "%" in answer else right == 100 * left):
            return True
        return decimals is not None and abs(left - right) <= Fraction(1, 2 * 10**decimals)
    if latex.holds_words(first) or latex.holds_words(second) or max(len(first), len(second)) > 300:
        return False
    return bool(ask.equal(first, second, decimals=decimals or 6))


def _loose(text: str) -> str:
    """Return an answer without unit, base, left side of an equation and outer brackets."""
    value, _ = without_unit(latex.plain(text))
    sides = value.split("=")
    value = sides[1].strip() if len(sides) == 2 and NAME.fullmatch(latex.compact(sides[0])) else value
    value = re.sub(r"(?<=[0-9])_\{?\d+\}?$", "", value)
    return re.sub(r"^(?:\\\{|[(\[])([^()\[\]]*)(?:\\\}|[)\]])$", r"\1", value).strip()


def _decimals(text: str) -> int | None:
    """Return the decimals of a decimal number with at least three significant digits."""
    found = re.fullmatch(r"-?(\d*)\.(\d+)", text)
    if found is None or len((found[1] + found[2]).lstrip("0")) < 3:
        return None
    return len(found[2])
