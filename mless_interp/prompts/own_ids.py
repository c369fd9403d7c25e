"""Pairs of token ids that a caller has already: no text, no template, no tokenizer."""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from numbers import Integral
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ..core.arguments import checked, shown
from .pairs import REPLACED, Given, PromptPair
from .problems import Problem, Several
from .prompt import Prompt, Template

IDS = Template("ids", system="", answer_prefix="")
"""The template of prompts that were not built of one."""


@checked
def pairs_from_ids(
    ids: Iterable[object],
    answers: Iterable[object],
    *,
    span: object = None,
    clean: Iterable[object] | None = None,
    distractors: Iterable[object] | None = None,
    tags: object = None,
    names: object = None,
) -> tuple[PromptPair, ...]:
    """Make pairs of token ids as the model reads them; everything that takes pairs takes these.

    Logits are read at the last position of `ids`. Of an answer of several tokens all but the last are appended, of one token
    none, so a prompt may fill the model's context exactly.

    Parameters
    ----------
    ids : `[problem][token]`, the prompts under study; lists, arrays or tensors, lengths may differ.
    answers, distractors : for each problem a token id, several in order, or a class where the model gives classes.
    span : (first, one past the last) position whose effect is asked for, one range for all problems or one for each. The
        contrasts are those of an insertion: the prompt without these tokens is the base.
    clean : `[problem][token]`, other prompts of the same lengths, for contrast "replaced" (clean -> ids).
    tags : what is known of each problem, for `by=`: a mapping of lists (`{"kind": ["a", "b"]}`), a table or a list of mappings.
        The tag "group" names problems that are variants of one another; else those of the same `ids` are (another `clean` or
        answer makes no other problem), so that they count once.
    names : a mapping from token ids to what views call them; or one name for each problem (default: a digest of its ids).

    Raises `ValueError` for a problem without span and clean, a span outside the prompt or one that holds the last position,
    prompts of two lengths, a clean prompt that is the same, ids below 0, and lists of different lengths. An analysis checks
    that its model has these ids and classes.

    >>> pair, = pairs_from_ids([[5, 1, 2, 6]], [3], span=(1, 3))
    >>> pair.base.ids, pair.inserted.ids, pair.answer_ids
    ((5, 6), (5, 1, 2, 6), (3,))
    """
    prompts = [_ids(each, f"ids of problem {at}") for at, each in enumerate(ids)]
    if not prompts:
        raise ValueError("there are no ids to make pairs of")
    n = len(prompts)
    known = {int(key): str(name) for key, name in names.items()} if isinstance(names, Mapping) else {}
    told = _tags(tags, n)
    given = [
        [span] * n if _range(span) else _of_each(span, n, "span"),
        _of_each(clean, n, "clean"),
        _of_each(answers, n, "answers"),
        _of_each(distractors, n, "distractors"),
        [None] * n if isinstance(names, Mapping) else _of_each(names, n, "names"),
    ]
    made = []
    for at, (prompt, *parts) in enumerate(zip(prompts, *given, strict=True)):
        try:
            made.append(_pair(prompt, parts, told[at], known))
        except ValueError as error:
            raise ValueError(f"problem {at} (zero-based): {error}") from None
    return Several(made)


def _pair(ids: tuple[int, ...], parts: Sequence[object], tags: dict[str, str], known: dict[int, str]) -> PromptPair:
    """The pair of a prompt with its (span, clean, answer, distractor, name)."""
    span, clean, answers, distractors, name = parts
    answer = _ids(answers, "the answer")
    distractor = () if distractors is None else _ids(distractors, "the distractor")
    other = None if clean is None else _ids(clean, "clean")
    if other is not None and len(other) != len(ids):
        raise ValueError(f"clean must have as many tokens as ids, {len(ids)}, got {len(other)}")
    if other == ids:
        raise ValueError("clean holds the same tokens as ids, so nothing can differ")
    if span is not None:
        start, stop = _range(span) or (0, 0)
        if not 0 <= start < stop < len(ids):
            raise ValueError(
                f"span must be (first, one past the last) position, before the last of {len(ids)} tokens, where the answer is "
                f"read, got {span!r}"
            )
    elif other is not None:
        start = stop = next(at for at, (here, there) in enumerate(zip(ids, other, strict=True)) if here != there)
    else:
        raise ValueError("give a span whose effect is asked for, or a clean prompt of the same length")
    words = lambda some: " ".join(known.get(token, str(token)) for token in some)  # noqa: E731
    fields = {key: value for key, value in tags.items() if key in ("group", "subject", "level")}
    shown_ids = [*ids, *([] if other is None else ["clean", *other])]
    problem = Problem(
        id=_digest([ids, other, answer, distractor, start, stop]) if name is None else str(name),
        question=",".join(map(str, shown_ids)),  # one word: no runs of words
        answer=words(answer),
        distractor=words(distractor) or None,
        extra={key: value for key, value in tags.items() if key not in fields},
        **{"group": f"ids {_digest([ids])}", **fields},  # with another clean prompt it is the same problem
    )
    segments = tuple("inserted" if start <= at < stop else "question" for at in range(len(ids)))
    kept = tuple(at for at, segment in enumerate(segments) if segment == "question")
    return PromptPair(
        problem=problem,
        base=Prompt(tuple(ids[at] for at in kept), ("question",) * len(kept), IDS.name),
        inserted=Prompt(ids, segments, IDS.name),
        insertion=Given("given span") if span is not None else REPLACED,
        span=(start, stop),
        alignment=kept,
        span_source="ids",
        answer_ids=answer,
        distractor_ids=distractor,
        template=IDS,
        clean=None if other is None else Prompt(other, segments, IDS.name),
        names=tuple(known.items()),
    )


def _digest(parts: list[object]) -> str:
    """A short name of token ids, the same in every process."""
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:10]


def _ids(given: object, what: str) -> tuple[int, ...]:
    """Token ids as a tuple, one alone too; `ValueError` for what is none."""
    values: Any = given.tolist() if hasattr(given, "tolist") else given
    found = np.atleast_1d(values)
    if found.dtype.kind not in "iu" or found.ndim != 1 or not found.size or found.min() < 0:
        raise ValueError(f"{what} must be token ids, whole numbers of 0 or more, got {shown(given)}")
    return tuple(found.tolist())


def _range(span: object) -> tuple[int, int] | None:
    """(first, one past the last) position; None where it is not one range of positions."""
    found = span.tolist() if hasattr(span, "tolist") else (span.start, span.stop) if isinstance(span, range) else span
    if isinstance(found, Sequence) and len(found) == 2 and all(isinstance(end, Integral) for end in found):
        return int(found[0]), int(found[1])
    return None


def _of_each(given: object, n: int, what: str) -> list[object]:
    """What was given for each of n problems; None each where nothing was."""
    if given is None:
        return [None] * n
    found = None if isinstance(given, str) or not isinstance(given, Iterable) else list(given)
    if found is None or len(found) != n:
        came = shown(given) if found is None else len(found)
        raise ValueError(f"{what} must hold one entry for each of {n} problems, got {came}")
    return found


def _tags(tags: Any, n: int) -> list[dict[str, str]]:
    """The tags of each problem, by key; what a table says it has no value for (None, NaN, NA) is no tag."""
    if tags is None:
        return [{}] * n
    rows = tags if isinstance(tags, Mapping | pd.DataFrame) else [each or {} for each in tags]
    table = pd.DataFrame(rows, dtype=object)
    if len(table) != n:
        raise ValueError(f"tags must hold one entry for each of {n} problems, got {len(table)}")
    return [
        {str(key): str(value) for key, value in row.items() if not pd.isna(value)} for row in table.to_dict("records")
    ]


KEYS = ("ids", "answer", "distractor", "clean", "span", "tags", "id")
"""What a line of a file of pairs may hold."""


def pairs_from_file(path: str | Path, *, limit: int | None = None) -> tuple[PromptPair, ...]:
    """Read pairs from a file of one JSON object a line: ids, answer, clean or span, and maybe distractor, tags, id.

    Raises `ValueError` with the line for what cannot be read, `FileNotFoundError` where there is no such file.
    """
    source = Path(path)
    made: list[PromptPair] = []
    with source.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            if len(made) == limit:
                break
            if not line.strip():
                continue
            try:
                row = json.loads(line)
                if not isinstance(row, dict) or not {"ids", "answer"} <= row.keys() <= set(KEYS):
                    raise ValueError(f"a pair is an object with ids and answer, and of {', '.join(KEYS[2:])}")
                parts = [row.get(key) for key in ("span", "clean", "answer", "distractor", "id")]
                made.append(_pair(_ids(row["ids"], "ids"), parts, _tags([row.get("tags")], 1)[0], {}))
            except (TypeError, ValueError) as error:
                raise ValueError(f"{source.name}, line {number}: {error}") from None
    if not made:
        raise ValueError(f"{source.name} holds no pairs")
    return Several(made)
