"""Pairs of token ids that a caller has already: no text, no template, no tokenizer."""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from numbers import Integral
from pathlib import Path
from typing import Any

from ..core.arguments import checked, shown
from .pairs import REPLACED, Given, PromptPair
from .problems import Problem, Several
from .prompt import Prompt, Template

IDS = Template("ids", system="", answer_prefix="")
"""The template of prompts that were not built of one."""
OF_PROBLEMS = ("group", "subject", "level")
"""Tags that are fields of a problem."""


@checked
def pairs_from_ids(
    ids: Iterable[Any],
    answers: Iterable[Any],
    *,
    span: Any = None,
    clean: Iterable[Any] | None = None,
    distractors: Iterable[Any] | None = None,
    tags: Any = None,
    names: Any = None,
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
    prompts of two lengths, a clean prompt that is the same, ids below 0, and lists of different lengths. Whether a model has
    these ids and classes is checked when they meet the model, before anything runs.

    >>> pair, = pairs_from_ids([[5, 1, 2, 6]], [3], span=(1, 3))
    >>> pair.base.ids, pair.inserted.ids, pair.answer_ids
    ((5, 6), (5, 1, 2, 6), (3,))
    """
    prompts = [_ids(each, f"ids of problem {at}") for at, each in enumerate(ids)]
    if not prompts:
        raise ValueError("there are no ids to make pairs of")
    n = len(prompts)
    known = {int(key): str(name) for key, name in names.items()} if isinstance(names, Mapping) else {}
    given = {
        "answers": _of_each(answers, n, "answers"),
        "distractors": _of_each(distractors, n, "distractors"),
        "clean": _of_each(clean, n, "clean"),
        "names": [None] * n if isinstance(names, Mapping) else _of_each(names, n, "names"),
        "span": [span] * n if span is None or _is_range(span) else _of_each(span, n, "span"),
    }
    told = _tags(tags, n)
    made = []
    for at, prompt in enumerate(prompts):
        of = {name: values[at] for name, values in given.items()}
        try:
            made.append(_pair(prompt, told[at], known, **of))
        except (TypeError, ValueError) as error:
            raise ValueError(f"problem {at} (zero-based): {error}") from None
    return Several(made)


def _pair(
    ids: tuple[int, ...],
    tags: Mapping[str, str],
    known: Mapping[int, str],
    *,
    answers: Any,
    distractors: Any,
    clean: Any,
    names: Any,
    span: Any,
) -> PromptPair:
    answer = _ids(answers, "the answer")
    distractor = () if distractors is None else _ids(distractors, "the distractor")
    other = None if clean is None else _ids(clean, "clean")
    if span is None and other is None:
        raise ValueError("give a span whose effect is asked for, or a clean prompt of the same length")
    if other is not None and len(other) != len(ids):
        raise ValueError(f"clean must have as many tokens as ids, {len(ids)}, got {len(other)}")
    if other == ids:
        raise ValueError("clean holds the same tokens as ids, so nothing can differ")
    if span is not None:
        if not _is_range(span):
            raise ValueError(f"span must be (first, one past the last) position, got {span!r}")
        start, stop = (span.start, span.stop) if isinstance(span, range) else (int(span[0]), int(span[1]))
        if not 0 <= start < stop <= len(ids):
            raise ValueError(f"the span {start, stop} is empty or outside the prompt, which has {len(ids)} tokens")
        if stop == len(ids):
            raise ValueError(
                f"the span {start, stop} holds the last position, where the answer is read: let it end before"
            )
    else:
        assert other is not None
        start = stop = next(at for at, (here, there) in enumerate(zip(ids, other, strict=True)) if here != there)
    words = lambda some: " ".join(known.get(token, str(token)) for token in some)  # noqa: E731
    fields = {key: value for key, value in tags.items() if key in OF_PROBLEMS}
    digest = _digest([ids, other, answer, distractor, start, stop])
    problem = Problem(
        id=digest if names is None else str(names),
        question=",".join(
            map(str, [*ids, *([] if other is None else ["clean", *other])])
        ),  # one word: no runs of words
        answer=words(answer),
        distractor=words(distractor) or None,
        extra={key: value for key, value in tags.items() if key not in fields},
        **{"group": f"ids {_digest([ids])}", **fields},  # with another clean prompt it is the same problem
    )
    segments = tuple("inserted" if start <= at < stop else "question" for at in range(len(ids)))
    kept = tuple(at for at in range(len(ids)) if not start <= at < stop)
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


def _digest(parts: list[Any]) -> str:
    """A short name of token ids, the same in every process."""
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:10]


def _ids(given: Any, what: str) -> tuple[int, ...]:
    """Token ids as a tuple, one alone too; `ValueError` for what is none."""
    values = given.tolist() if hasattr(given, "tolist") else given
    several = [values] if isinstance(values, int) else values
    if isinstance(several, str | Mapping) or not isinstance(several, Iterable):
        raise ValueError(f"{what} must be token ids, got {shown(given)}")
    found = tuple(each.item() if hasattr(each, "item") else each for each in several)
    wrong = next((each for each in found if isinstance(each, bool) or not isinstance(each, int) or each < 0), None)
    if wrong is not None or not found:
        came = "none" if wrong is None else shown(wrong)
        raise ValueError(f"{what} must be token ids, whole numbers of 0 or more, got {came}")
    return found


def _is_range(span: Any) -> bool:
    """Whether it is one range of positions, not one for each problem."""
    if isinstance(span, range):
        return span.step == 1
    found = span.tolist() if hasattr(span, "tolist") else span
    return isinstance(found, Sequence) and len(found) == 2 and all(map(_is_whole, found))


def _is_whole(number: Any) -> bool:
    """Whether it is a whole number, also one of NumPy's; a truth value is none."""
    return isinstance(number, Integral) and not isinstance(number, bool)


def _of_each(given: Any, n: int, what: str) -> list[Any]:
    """What was given for each of n problems; None each where nothing was."""
    if given is None:
        return [None] * n
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise TypeError(f"{what} must hold one entry for each of {n} problems, got {shown(given)}")
    found = list(given)
    if len(found) != n:
        raise ValueError(f"{what} must hold one entry for each of {n} problems, got {len(found)}")
    return found


def _tags(tags: Any, n: int) -> list[dict[str, str]]:
    """The tags of each problem, by key; None, NaN and pandas' NA are no tag."""
    tags = tags.to_dict("list") if hasattr(tags, "to_dict") else tags  # of a DataFrame
    if isinstance(tags, Mapping):
        columns = {str(key): _of_each(values, n, f"tag {key!r}") for key, values in tags.items()}
        return [
            {key: str(values[at]) for key, values in columns.items() if not _is_missing(values[at])} for at in range(n)
        ]
    rows = _of_each(tags, n, "tags")
    if not all(row is None or isinstance(row, Mapping) for row in rows):
        raise TypeError("tags must be a mapping of lists, or a mapping for each problem")
    return [{str(key): str(value) for key, value in (row or {}).items() if not _is_missing(value)} for row in rows]


def _is_missing(value: Any) -> bool:
    """Whether a table says so that it has no value: None, NaN, NaT, NA."""
    return value is None or type(value).__name__ == "NAType" or value != value


KEYS = ("ids", "answer", "distractor", "clean", "span", "tags", "id")
"""What a line of a file of pairs may hold."""
OF_A_PAIR = {"answers": "answer", "distractors": "distractor", "clean": "clean", "names": "id", "span": "span"}
"""What `pairs_from_ids` calls these."""


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
                (tags,) = _tags([row.get("tags")], 1)
                of = {name: row.get(key) for name, key in OF_A_PAIR.items()}
                made.append(_pair(_ids(row["ids"], "ids"), tags, {}, **of))
            except (TypeError, ValueError) as error:
                raise ValueError(f"{source.name}, line {number}: {error}") from None
    if not made:
        raise ValueError(f"{source.name} holds no pairs")
    return Several(made)
