r"""Graders: is the answer in a completion the gold one? Ours, and the paper's to compare with its numbers.

Both take `(completion, gold)`: what the model wrote after the prompt, never the prompt itself (it holds `\boxed{}`), and
the answer key's entry. Both give a truth value for any text: malformed LaTeX is wrong, a completion is searched in time in
proportion to its length, an answer of more than `compare.LONGEST` characters is compared as text, and math-verify has limits
of time and memory (`equivalence.py`).
"""

from dataclasses import dataclass

from ..core.arguments import checked
from .boxes import last_box
from .compare import GAVE_UP, Equality, compare
from .paper_grader import grade_paper

GRADERS = ("strict", "paper")
"""Who grades every completion, each a truth value of `Grade`; the first is the one to conclude from."""
OPEN = (GAVE_UP, "undecided")  # as older results say it
"""What `Grade.decided` says of a strict grade that nothing settled: it counts as wrong, and is to be counted."""


@dataclass(frozen=True)
class Grade:
    r"""What both graders say of one completion.

    `answer` is what the last box holds (None without a box) and `boxed` whether it holds something. `decided` says what
    settled the strict grade: "no box", "empty box", "text", "number", "parts", "math-verify"; or "gave up", where the
    comparison took more time or memory than its limits, and the answer counts as wrong.
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
    return Grade(
        strict=equality.equal,
        paper=grade_paper(completion, gold),
        boxed=bool(answer),
        answer=answer,
        decided=equality.by,
    )


@checked
def grade_strict(completion: str, gold: str) -> bool:
    r"""Return whether the last balanced `\boxed{...}` of the completion holds an answer equal to the gold one.

    No box or an empty one is wrong. `compare.py` says what counts as equal; what it cannot tell apart is math-verify's to
    decide, within a limit of time. On MATH-500, gold against gold is right 500 of 500 times, an empty box never, the constant
    answer "1" 12 times (the golds that are 1).

    Source: methods §11 | differs in: numbers and parts are compared by us, so that math-verify's readings of `7 8` (15),
    `52_8` (52) and `(1,2)` (an interval, a point or a set) do not count.

    >>> grade_strict(r"thus \boxed{\frac{1}{2}}", "0.5"), grade_strict("thus 0.5", "0.5")
    (True, False)
    """
    return grade(completion, gold).strict
