"""Problems from plain text: a context and the words that follow it, for models that know no task."""

import re
import warnings
from collections.abc import Iterable
from itertools import pairwise
from typing import Any

from ..given import checked
from .problems import Problem
from .prompt import check_known, encode, tokenizer_of


@checked
def problems_from_texts(
    model: Any, texts: Iterable[str], *, n_context: int = 64, n_before: int = 16, n_answer: int = 1
) -> tuple[Problem, ...]:
    """A problem per text: the model is to go on with its next words. Any base model can be studied so.

    The first `n_before` tokens stand before an insertion (`before="question"`), the others of the `n_context` after it;
    the answer is what follows, at least `n_answer` tokens. Cuts are made between words, at the first place where the parts,
    encoded one by one, have the same ids as the text in one piece. Use `template="text"`, which adds nothing but the
    beginning-of-sequence token that base models expect.

    `model` is a `Model` or a Hugging Face tokenizer. Texts that are too short are left out with a warning that counts them;
    `ValueError` where all are, where the tokenizer does not know their words, or numbers make no sense.
    """
    tokenizer = tokenizer_of(model)
    if not 0 < n_before < n_context or n_answer < 1:
        raise ValueError(
            f"n_before must lie in 1 to n_context - 1 and n_answer be 1 or more, got {n_before}, {n_context}, {n_answer}"
        )
    made, short = [], 0
    for number, text in enumerate(texts):
        parts = _cut(tokenizer, text, (n_before, n_context, n_context + n_answer))
        if parts is None:
            short += 1
            continue
        before, question, answer = parts
        made.append(Problem(f"text-{number}", question, answer, system=before, answer_prefix=""))
    if not made:
        raise ValueError(
            f"none of the {short} texts has {n_context + n_answer} tokens that can be cut between words: give longer texts "
            "or fewer tokens"
        )
    check_known(tokenizer, made)
    if short:
        warnings.warn(f"{short} of {short + len(made)} texts are too short and left out", stacklevel=3)
    return tuple(made)


def _cut(tokenizer: Any, text: str, sizes: tuple[int, int, int]) -> tuple[str, str, str] | None:
    """The three parts of a text, each ending at the first word's end at which it has its size in tokens."""
    ends = [found.end() for found in re.finditer(r"\S+", text)]
    places = [0]
    for size in sizes:
        reached = (end for end in ends if end > places[-1] and len(encode(tokenizer, text[:end])) >= size)
        for end in reached:
            if _joins(tokenizer, text, [*places, end]):
                places.append(end)
                break
        else:
            return None
    before, question, answer = _pieces(tokenizer, text, places)
    return before, question, answer


def _pieces(tokenizer: Any, text: str, places: list[int]) -> list[str]:
    """The pieces between these places: with the space in front, or without where the tokenizer adds it by itself."""
    whole = encode(tokenizer, text[: places[-1]])
    kept = [text[a:b] for a, b in pairwise(places)]
    for pieces in (kept, [piece.lstrip() if at else piece for at, piece in enumerate(kept)]):
        if sum((encode(tokenizer, piece) for piece in pieces), ()) == whole:
            return pieces
    return []


def _joins(tokenizer: Any, text: str, places: list[int]) -> bool:
    return bool(_pieces(tokenizer, text, places))
