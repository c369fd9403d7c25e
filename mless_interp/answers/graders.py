r"""Graders: is the answer in a completion the gold one? Ours, and the paper's to compare with its numbers.

Both take `(completion, gold)`: what the model wrote after the prompt, never the prompt itself (it holds `\boxed{}`), and
the answer key's entry. Both give a truth value for any text: malformed LaTeX is wrong.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from ..core.arguments import checked
from .same_answer import Equality, compare

GRADERS = ("strict", "paper")
"""Who grades every completion, each a truth value of `Grade`; the first is the one to conclude from."""
_BOX_OR_BRACE = re.compile(r"\\(boxed)\s*\{|\\.|[{}]", re.DOTALL)


def balanced_boxes(text: str) -> Iterator[tuple[int, int, int]]:
    r"""Yield start, start of content and end of content of every balanced box, in the order in which they close;
    a backslash and the character after it belong together (`\{` is no brace, `\\{` a line break and a brace)."""
    opened: list[tuple[int, int] | None] = []
    for token in _BOX_OR_BRACE.finditer(text):
        if token[0].endswith("{") and token[0] != r"\{":
            opened.append(token.span() if token[1] else None)
        elif token[0] == "}" and opened and (box := opened.pop()) is not None:
            yield *box, token.start()


def last_box(text: str) -> str | None:
    r"""Return what stands in the last balanced `\boxed{...}`, the outer one where they are nested, stripped; None without one.

    >>> last_box(r"\boxed{1}, no: \boxed{ \frac{1}{2} }. And \boxed{3")
    '\\frac{1}{2}'
    """
    *_, box = [None, *balanced_boxes(text)]  # the last to close is not inside another balanced one
    return None if box is None else text[box[1] : box[2]].strip()


def has_closed_box(text: str) -> bool:
    r"""Return whether the text holds a balanced `\boxed{...}` that is not empty: the sign to stop generating.

    >>> has_closed_box(r"\boxed{ 7 }"), has_closed_box(r"\boxed{"), has_closed_box(r"\boxed{}")
    (True, False, False)
    """
    return any(text[start:end].strip() for _, start, end in balanced_boxes(text))


@dataclass(frozen=True)
class Grade:
    r"""What both graders say of one completion.

    `answer` is what the last box holds (None without a box) and `boxed` whether it holds something. `decided` says what
    settled the strict grade: "no box", "empty box", or as in `Equality`.
    """

    strict: bool
    paper: bool
    boxed: bool
    answer: str | None
    decided: str


@checked
def grade(completion: str, gold: str) -> Grade:
    r"""Return both grades at once, with what decided the strict one.

    >>> grade(r"so \boxed{ 7 } <eos>", "7")
    Grade(strict=True, paper=True, boxed=True, answer='7', decided='text')
    """
    answer = last_box(completion)
    equality = compare(answer, gold) if answer else Equality(False, "no box" if answer is None else "empty box")
    return Grade(equality.equal, grade_paper(completion, gold), bool(answer), answer, equality.by)


@checked
def grade_strict(completion: str, gold: str) -> bool:
    r"""Return whether the last balanced `\boxed{...}` of the completion holds an answer equal to the gold one.

    No box or an empty one is wrong. `same_answer.py` says what counts as equal; what it cannot tell apart is math-verify's to
    decide, within a limit of time. On MATH-500, gold against gold is right 500 of 500 times, "1" 12 times (golds that are 1).

    Source: methods §11 | differs in: numbers and parts are compared by us, so that math-verify's readings of `7 8` (15),
    `52_8` (52) and `(1,2)` (an interval, a point or a set) do not count.

    >>> grade_strict(r"thus \boxed{\frac{1}{2}}", "0.5"), grade_strict("thus 0.5", "0.5")
    (True, False)
    """
    return grade(completion, gold).strict


@checked
def grade_paper(completion: str, gold: str) -> bool:
    r"""UNSOUND: the paper's own rule, which calls an answer right when it is a *substring* of the gold one.

    The last `\boxed{...}` (else `\fbox{...}`) and the gold answer are stripped by MATH's rules, then `str1 in str2`.
    Constant answers score on MATH-500, of 500 (strictly graded in brackets): an empty box 500 (0), "1" 200 (12), "2" 165
    (18), "3" 110 (19), "0" 103 (7). It also calls right answers wrong: x + 1 is not 1 + x. Only for comparing with the
    paper's numbers, beside `grade_strict`.

    Source: methods §11; the paper's released code, and the rules of hendrycks/math | differs in: only the completion
    is graded (the released code grades prompt and completion, so that with single braces a completion without a box is
    right: the prompt's own empty box); text on which the released rules raise an error is compared as it is.

    >>> grade_paper(r"\boxed{1}", r"\frac{14}{3}"), grade_paper(r"\boxed{}", "7"), grade_paper("7", "7")
    (True, True, False)
    """
    answer = _papers_box(completion)
    if answer is None:
        return False
    try:
        return stripped(answer) in stripped(gold)
    except (IndexError, ValueError):
        return answer == gold


def _papers_box(text: str) -> str | None:
    """Apply MATH's rule: from the last `\\boxed`, braces are counted up to the first balance, escaped ones too."""
    opening = "\\boxed{" if "\\boxed" in text else "\\fbox{"
    box, depth = text[text.rfind(opening[:-1]) :] if opening[:-1] in text else "", 0
    for brace in re.finditer("[{}]", box):
        depth += 1 if brace[0] == "{" else -1
        if depth == 0:
            return box[len(opening) : brace.start()] if box.startswith(opening) else None
    return None


def stripped(answer: str) -> str:
    """Return an answer by the rules of MATH's `_strip_string`, in their order; IndexError or ValueError where they have one."""
    s = answer
    for old, new in (
        ("\n", ""), ("\\!", ""), ("\\\\", "\\"), ("tfrac", "frac"), ("dfrac", "frac"), ("\\left", ""), ("\\right", ""),
        ("^{\\circ}", ""), ("^\\circ", ""), ("\\$", ""),
    ):  # fmt: skip
        s = s.replace(old, new)
    if "\\text{ " in s:
        s, _ = s.split("\\text{ ")
    for old, new in (("\\%", ""), ("%", ""), (" .", " 0."), ("{.", "{0.")):
        s = s.replace(old, new)
    if not s:
        return s
    s = "0" + s if s[0] == "." else s
    sides = s.split("=")
    if len(sides) == 2 and len(sides[0]) <= 2:
        s = sides[1]
    head, *roots = s.split("\\sqrt")
    s = head + "".join("\\sqrt" + (root if root[0] == "{" else f"{{{root[0]}}}{root[1:]}") for root in roots)
    s = _fractions(s.replace(" ", ""))
    if s == "0.5":
        return "\\frac{1}{2}"
    slash = re.fullmatch("(0|-?[1-9][0-9]*)/(0|-?[1-9][0-9]*)", s)
    return f"\\frac{{{slash[1]}}}{{{slash[2]}}}" if slash else s


def _fractions(s: str) -> str:
    head, *rest = s.split("\\frac")
    found = head
    for part in rest:
        if part[0] == "{":
            found += "\\frac" + part
        elif len(part) < 2:
            return s
        else:
            below = part[1] if part[1] == "{" else f"{{{part[1]}}}"
            found += f"\\frac{{{part[0]}}}{below}{part[2:]}"
    return found
