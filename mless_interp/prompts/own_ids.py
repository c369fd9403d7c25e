"""Pairs of token ids that a caller has already: no text, no template, no tokenizer."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from numbers import Integral
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ..core.arguments import checked, shown
from ..runtime.checkpoint import key_of
from .pairs import REPLACED, Given, PromptPair
from .problems import Problem, Several, of_lines
from .prompt import Prompt, Template

IDS = Template("ids", system="", answer_prefix="")
KEYS = ("ids", "answer", "distractor", "clean", "span", "tags", "id")


@checked
def pairs_from_ids(
    ids: Iterable[object],
    answers: Iterable[object],
    *,
    span: object = None,
    clean: Iterable[object] | None = None,
    distractors: Iterable[object] | None = None,
    tags: object = None,
    names: Mapping[int, str] | None = None,
) -> tuple[PromptPair, ...]:
    """Make pairs of token ids as the model reads them; everything that takes pairs takes these.

    Logits are read at the last position of `ids`. Of an answer of several tokens all but the last are appended, of one token
    none, so a prompt may fill the model's context exactly.

    Parameters
    ----------
    ids : `[problem][token]`, the prompts under study; lists, arrays or tensors, lengths may differ.
    answers, distractors : for each problem a token id, several in order, or a class where the model gives classes.
    span : (first, one past the last) position of the tokens to study, one range for all problems or one for each. The
        contrasts are those of an insertion: the prompt without these tokens is the base.
    clean : `[problem][token]`, other prompts of the same lengths, for contrast "replaced" (clean -> ids).
    tags : what is known of each problem, for `by=`: a mapping of lists (`{"kind": ["a", "b"]}`), a table or a list of mappings.
        The tag "group" names problems that are variants of one another; else those of the same `ids` are, and count once.
    names : what views call token ids.

    >>> pair, = pairs_from_ids([[5, 1, 2, 6]], [3], span=(1, 3))
    >>> pair.base.ids, pair.inserted.ids, pair.answer_ids
    ((5, 6), (5, 1, 2, 6), (3,))
    """
    prompts = list(ids)
    if not prompts:
        raise ValueError("there are no ids to make pairs of")
    n = len(prompts)
    given = {"ids": prompts, "tags": _tags(tags, n)}
    given["span"] = [span] * n if _range(span) else _of_each(span, "span", n)
    given |= {"answer": _of_each(answers, "answers", n), "clean": _of_each(clean, "clean", n)}
    given["distractor"] = _of_each(distractors, "distractors", n)
    made = []
    for at in range(n):
        try:
            made.append(_pair({key: values[at] for key, values in given.items()}, names or {}))
        except ValueError as error:
            raise ValueError(f"problem {at} (zero-based): {error}") from None
    first: dict[str, int] = {}
    for at, pair in enumerate(made):
        if (same := first.setdefault(pair.id, at)) != at:
            raise ValueError(f"problem {at} has the ids and the answer of problem {same} (zero-based): give each once")
    return Several(made)


def _pair(given: Mapping[str, Any], known: Mapping[int, str]) -> PromptPair:
    ids, answer = _ids(given, "ids"), _ids(given, "answer")
    distractor, other = _ids(given, "distractor"), _ids(given, "clean")
    if other and (len(other) != len(ids) or other == ids):
        came = "the same" if other == ids else len(other)
        raise ValueError(f"clean must be as many tokens as ids, {len(ids)}, and other ones, got {came}")
    if (span := given.get("span")) is not None:
        start, stop = _range(span) or (0, 0)
        if not 0 <= start < stop < len(ids):
            raise ValueError(
                f"span must be (first, one past the last) position, before the last of {len(ids)} tokens, where the answer is "
                f"read, got {span!r}"
            )
    elif other:
        start = stop = next(at for at in range(len(ids)) if ids[at] != other[at])
    else:
        raise ValueError("give a span whose effect is asked for, or a clean prompt of the same length")
    words = lambda some: " ".join(known.get(token, str(token)) for token in some)  # noqa: E731
    tags = dict(given["tags"])
    fields = {key: tags.pop(key) for key in ("group", "subject", "level") if key in tags}
    digest = key_of([ids, other or None, answer, distractor, start, stop])[:10]
    problem = Problem(
        id=digest if given.get("id") is None else str(given["id"]),
        question=",".join(map(str, [*ids, *(["clean", *other] if other else [])])),  # one word: no runs of words
        answer=words(answer),
        distractor=words(distractor) or None,
        extra=tags,
        **{"group": f"ids {key_of([ids])[:10]}", **fields},  # with another clean prompt it is the same problem
    )
    segments = tuple("inserted" if start <= at < stop else "question" for at in range(len(ids)))
    base = (*ids[:start], *ids[stop:])
    return PromptPair(
        problem=problem,
        base=Prompt(base, ("question",) * len(base), IDS.name),
        inserted=Prompt(ids, segments, IDS.name),
        insertion=REPLACED if span is None else Given("given span"),
        answer_ids=answer,
        distractor_ids=distractor,
        template=IDS,
        clean=Prompt(other, segments, IDS.name) if other else None,
        names=tuple(known.items()),
    )


def _ids(given: Mapping[str, Any], key: str) -> tuple[int, ...]:
    """Return token ids as a tuple, one alone too; () where a distractor or a clean prompt was not given."""
    if given.get(key) is None and key in ("distractor", "clean"):
        return ()
    found = np.atleast_1d(given[key].tolist() if hasattr(given[key], "tolist") else given[key])
    if found.dtype.kind not in "iu" or found.ndim != 1 or not found.size or found.min() < 0:
        raise ValueError(f"{key} must be token ids, whole numbers of 0 or more, got {shown(given[key])}")
    return tuple(found.tolist())


def _range(span: Any) -> tuple[int, int] | None:
    """Return (first, one past the last) position; None where it is not one range of positions."""
    span = (span.start, span.stop) if isinstance(span, range) else span
    found = span.tolist() if hasattr(span, "tolist") else span
    if isinstance(found, Sequence) and len(found) == 2 and all(isinstance(end, Integral) for end in found):
        return int(found[0]), int(found[1])
    return None


def _of_each(given: Any, what: str, n: int) -> list[Any]:
    """Return what was given for each of n problems; None each where nothing was."""
    found = [None] * n if given is None else list(given) if isinstance(given, Iterable) else []
    if isinstance(given, str) or len(found) != n:
        raise ValueError(f"{what} must hold one entry for each of {n} problems, got {len(found) or shown(given)}")
    return found


def _tags(tags: Any, n: int) -> list[object]:
    """Return the tags of each problem, by key; what a table says it has no value for (None, NaN, NA) is no tag."""
    rows = tags if isinstance(tags, Mapping | pd.DataFrame) else [each or {} for each in _of_each(tags, "tags", n)]
    table = [row for _, row in pd.DataFrame(rows, dtype=object).iterrows()]
    return [{str(key): str(value) for key, value in row.dropna().items()} for row in _of_each(table, "tags", n)]


def pairs_from_file(path: str | Path, *, limit: int | None = None) -> tuple[PromptPair, ...]:
    """Read pairs from a file of one JSON object a line: ids, answer, clean or span, and maybe distractor, tags, id.
    Raises `ValueError` with the line for what cannot be read, `FileNotFoundError` where there is no such file."""

    def pair(row: dict[str, Any]) -> PromptPair:
        if not {"ids", "answer"} <= row.keys() <= set(KEYS):
            raise ValueError(f"expected keys ids, answer and any of {', '.join(KEYS[2:])}; got {', '.join(row)}")
        if not isinstance(row.get("tags") or {}, Mapping):
            raise ValueError(f'tags must be an object such as {{"kind": "a"}}, got {shown(row["tags"])}')
        return _pair(row | {"tags": _tags([row.get("tags")], 1)[0]}, {})

    made = Several(islice(of_lines(Path(path), pair), limit))
    if not made:
        raise ValueError(f"{Path(path).name} holds no pairs")
    return made
