"""Problems from plain text, for models that know no task, and worked examples before a question (few-shot)."""

import hashlib
import random
import re
import warnings
from collections.abc import Iterable
from dataclasses import replace
from itertools import islice, pairwise
from pathlib import Path

from ..core.arguments import check_count, checked, listed
from .problems import Problem, distinct
from .prompt import ANSWER_PREFIX, Tokenizer, check_known, encode, tokenizer_of


@checked
def problems_from_texts(
    model: object,
    texts: Iterable[str] | Path,
    *,
    limit: int | None = None,
    n_context: int = 64,
    n_before: int = 16,
    n_answer: int = 1,
) -> tuple[Problem, ...]:
    """Make a problem of each text: the model continues the text with its next words. This works for any base model.

    `texts` may be the `Path` of a file, whose texts are separated by blank lines; the first `limit` are taken.

    The first `n_before` tokens come before an insertion (`before="question"`), the others of the `n_context` after it;
    the answer is what follows, at least `n_answer` tokens. Cuts are made between words, at the first place where the parts,
    encoded one by one, have the same ids as the text in one piece. Use `template="text"`, which adds nothing but the
    beginning-of-sequence token that base models expect.

    `model` is a `Model` or a Hugging Face tokenizer. A problem is named after its text's place, `text-0`, whatever is left out.
    Texts that are too short are left out with a warning that counts them; `ValueError` where all are, where the tokenizer does
    not know their words, or numbers make no sense.
    """
    if not 0 < n_before < n_context or n_answer < 1:
        raise ValueError(
            f"n_before must lie in 1 to n_context - 1 and n_answer be 1 or more, got {n_before}, {n_context}, {n_answer}"
        )
    if limit is not None:
        check_count(limit, name="limit")
    if isinstance(texts, Path):
        try:
            whole = texts.read_text(encoding="utf-8-sig")
        except UnicodeDecodeError as error:
            raise ValueError(f"{texts.name}: {error}") from error
        texts = [text.strip() for text in re.split(r"\n\s*\n", whole) if text.strip()]
    tokenizer, sizes = tokenizer_of(model), (n_before, n_context, n_context + n_answer)
    found = [_problem(tokenizer, number, text, sizes) for number, text in enumerate(islice(texts, limit))]
    made = tuple(problem for problem in found if problem is not None)
    if not made:
        has = f"none of {len(found)} texts has {sizes[2]} tokens"
        raise ValueError(f"{has} that can be cut between words: give longer ones")
    check_known(tokenizer, made)
    if short := [str(number) for number, problem in enumerate(found) if problem is None]:
        which = listed(short, 5)
        warnings.warn(f"{len(short)} of {len(found)} texts are too short and left out (number {which})", stacklevel=3)
    return made


def _problem(tokenizer: Tokenizer, number: int, text: str, sizes: tuple[int, int, int]) -> Problem | None:
    """Return the problem of a text, each part ending at the first word's end with its size in tokens; None: too short."""
    ends = [found.end() for found in re.finditer(r"\S+", text)]
    places = [0]
    for size in sizes:
        reached = (end for end in ends if end > places[-1] and len(encode(tokenizer, text[:end])) >= size)
        end = next((end for end in reached if _pieces(tokenizer, text, [*places, end])), None)
        if end is None:
            return None
        places.append(end)
    before, question, answer = _pieces(tokenizer, text, places)
    return Problem(f"text-{number}", question, answer, system=before, answer_prefix="")


def _pieces(tokenizer: Tokenizer, text: str, places: list[int]) -> list[str]:
    """Return the pieces between these places: with the space in front, or without where the tokenizer adds it by itself."""
    whole = encode(tokenizer, text[: places[-1]])
    kept = [text[a:b] for a, b in pairwise(places)]
    for pieces in (kept, [piece.lstrip() if at else piece for at, piece in enumerate(kept)]):
        if sum((encode(tokenizer, piece) for piece in pieces), ()) == whole:
            return pieces
    return []


@checked
def with_examples(
    problems: Iterable[Problem],
    examples: Iterable[Problem],
    *,
    n: int | None = None,
    seed: int = 0,
    form: str | None = None,
) -> tuple[Problem, ...]:
    """Put worked examples between system prompt and question, as plain text: the segment `examples`.

    They are the questions and answers of all `examples` in their order, or of `n` drawn for each problem by seed and problem
    id, never of one that asks the same as the problem. `form` writes one, with the fields {question}, {answer} and {solution};
    default: the question, the text before its answer (the paper's, or its own), the answer, an empty line.

    >>> asked, shown = Problem("a", "2+2?", "4"), Problem("b", "1+1?", "2")
    >>> with_examples([asked], [shown], form="Q: {question} A: {answer}. ")[0].examples
    'Q: 1+1? A: 2. '

    Raises `ValueError` where too few examples ask another question.
    """
    pool = distinct(examples)
    if n is not None:
        check_count(n, name="n")
    made = []
    for problem in problems:
        others = [other for other in pool if other.id != problem.id and other.asked[1] != problem.asked[1]]
        if len(others) < (len(pool) or 1 if n is None else n):
            what = f"only {len(others)} of the {len(pool)} examples ask another question"
            raise ValueError(f"problem {problem.id!r}: {what}: give others, or n= to draw from the others for each")
        if n is not None:
            key = hashlib.sha256(f"examples|{seed}|{problem.id}".encode()).digest()[:8]
            others = random.Random(int.from_bytes(key, "big")).sample(others, n)
        made.append(replace(problem, examples="".join(_written(other, form) for other in others)))
    return tuple(made)


def _written(problem: Problem, form: str | None) -> str:
    if form is None:
        prefix = f"\n{ANSWER_PREFIX}" if problem.answer_prefix is None else problem.answer_prefix
        return f"{problem.question}{prefix}{problem.answer}{'}' if prefix.endswith('{') else ''}\n\n"
    return form.format(question=problem.question, answer=problem.answer, solution=problem.solution or "")
