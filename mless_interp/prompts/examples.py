"""Worked examples before the question (few-shot): a segment of the prompt of its own."""

import hashlib
import random
from collections.abc import Iterable
from dataclasses import replace

from ..core.arguments import check_count, checked
from .problems import Problem, distinct
from .prompt import ANSWER_PREFIX


@checked
def with_examples(
    problems: Iterable[Problem],
    examples: str | Iterable[Problem],
    *,
    n: int | None = None,
    seed: int = 0,
    form: str | None = None,
) -> tuple[Problem, ...]:
    """The problems with worked examples between system prompt and question, as plain text: the segment `examples`.

    `examples` is a text, the same for all, or problems whose questions and answers become one: all of them in their order, or
    `n` drawn for each problem by seed and problem id, never one that asks the same as the problem.
    `form` writes one example, with the fields {question}, {answer} and {solution}; default: the question, the text before its
    answer (the paper's, or its own), the answer, an empty line.

    >>> asked, shown = Problem("a", "2+2?", "4"), Problem("b", "1+1?", "2")
    >>> with_examples([asked], [shown], form="Q: {question} A: {answer}. ")[0].examples
    'Q: 1+1? A: 2. '

    Raises `ValueError` for no text, a problem's own question among the examples, too few others, and unknown fields.
    """
    asked = tuple(problems)
    if isinstance(examples, str):
        if n is not None or form is not None:
            raise ValueError(
                "n and form write examples that are given as problems; these are a text already: leave them out"
            )
        if not examples.strip():
            raise ValueError("the text of the examples is empty")
        for problem in asked:
            if problem.asked[1] in " ".join(examples.split()).casefold():
                raise ValueError(f"problem {problem.id!r}: the examples hold its own question: give others")
        return tuple(replace(problem, examples=examples) for problem in asked)
    try:
        pool = distinct(examples)
    except ValueError as error:
        raise ValueError(f"among the examples, {error}") from error
    if n is not None:
        check_count(n, name="n")
    made = []
    for problem in asked:
        others = [other for other in pool if other.id != problem.id and other.asked[1] != problem.asked[1]]
        if len(others) < (len(pool) or 1 if n is None else n):
            raise ValueError(
                f"problem {problem.id!r}: only {len(others)} of the {len(pool)} examples ask another question: give others, "
                "fewer, or n= to draw from the others for each"
            )
        if n is not None:
            key = hashlib.sha256(f"examples|{seed}|{problem.id}".encode()).digest()[:8]
            others = random.Random(int.from_bytes(key, "big")).sample(others, n)
        made.append(replace(problem, examples="".join(_written(other, form) for other in others)))
    return tuple(made)


def _written(problem: Problem, form: str | None) -> str:
    if form is None:
        prefix = f"\n{ANSWER_PREFIX}" if problem.answer_prefix is None else problem.answer_prefix
        return f"{problem.question}{prefix}{problem.answer}{'}' if prefix.endswith('{') else ''}\n\n"
    try:
        return form.format(question=problem.question, answer=problem.answer, solution=problem.solution or "")
    except (KeyError, IndexError, ValueError, AttributeError) as error:
        raise ValueError(
            f"cannot fill the form {form!r} ({error}): its fields are {{question}}, {{answer}} and {{solution}}"
        ) from error
