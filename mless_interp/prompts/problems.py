"""Problems: a question with its answer, read from a file in MATH-500's form."""

import json
import math
import re
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from decimal import Decimal
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from ..core.arguments import Arguments, beside, check_count, checked, listed, nearest, shown
from ..runtime.text_safety import one_line

T = TypeVar("T")
DEMO_PROBLEMS = Path(__file__).parents[1] / "data" / "demo" / "problems.jsonl"
MATH500_HUB_ID = "HuggingFaceH4/MATH-500"
REQUIRED_KEYS = ("problem", "answer", "unique_id")


@checked
@dataclass(frozen=True)
class Problem:
    """One question.

    `system` and `answer_prefix` (after which the answer is teacher-forced) override the template's own; `distractor` is a
    plausible wrong answer. `examples`: worked examples before the question, as text (`with_examples` writes them). `extra`:
    other texts that belong to it, by key, for `Insertion.from_key`. `group`: a name that variants of one problem share.
    """

    id: str
    question: str
    answer: str
    system: str | None = None
    solution: str | None = None
    distractor: str | None = None
    answer_prefix: str | None = None
    subject: str | None = None
    level: str | None = None
    examples: str | None = None
    extra: Mapping[str, str] | tuple[tuple[str, str], ...] = ()
    group: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "extra", tuple(sorted(dict(self.extra).items())))
        for what in ("question", "id"):
            if not getattr(self, what).strip():
                raise ValueError(f"problem {self.id!r}: its {what} is empty")
        if re.search("[\ud800-\udfff]", "".join(self.texts.values())):
            raise ValueError(f"problem {self.id!r} holds half of a character, which no file takes: write it whole")

    @property
    def asked(self) -> tuple[str, str]:
        """What the problem asks, system prompt and question, however they are spaced and written."""
        first, second = (" ".join(text.split()).casefold() for text in (self.system or "", self.question))
        return first, second

    @property
    def tags(self) -> dict[str, str]:
        """What is known of the problem beyond its fields, by key (`extra`)."""
        return dict(self.extra)

    @property
    def texts(self) -> dict[str, str]:
        """Every text of this problem by its key, a field's name or one of `extra`."""
        return {key: text for key in FIELDS if (text := getattr(self, key))} | self.tags

    @classmethod
    def from_dict(cls, record: Mapping[str, object]) -> "Problem":
        """Return a problem from MATH-500's keys (problem, answer, unique_id; solution, subject, level) and our optional ones
        (system, distractor, answer_prefix, examples, group); other keys that hold a text or a number are kept as `extra`."""
        if missing := [key for key in REQUIRED_KEYS if record.get(key) is None]:
            raise ValueError(f"missing {', '.join(missing)}; a problem needs the keys {', '.join(REQUIRED_KEYS)}")
        reserved = {*KEYS, *KEYS.values()}
        texts = {key: f"{Decimal(str(each)):f}" if _is_number(each) else each for key, each in record.items()}
        extra = {key: text for key, text in texts.items() if isinstance(text, str) and key not in reserved}
        given: Arguments = {
            name: (texts if name in ("id", "answer", "distractor", "level", "group") else record).get(key)
            for name, key in KEYS.items()
        }
        return cls(**given, extra=extra)


def _is_number(given: object) -> bool:
    return type(given) is int or (type(given) is float and math.isfinite(given))


FIELDS = tuple(field.name for field in fields(Problem) if field.name != "extra")
KEYS = {name: name for name in FIELDS} | {"id": "unique_id", "question": "problem"}
"""The key of a file in which each part of a problem stands."""
RUN, LEAST = 5, 10  # words in a run, and how many shared runs are the fewest that say anything: `overlap`


class Several(tuple[Any, ...]):
    """A tuple of problems or pairs that a notebook echoes in one line."""

    def __repr__(self) -> str:
        first = next(iter(self), None)
        ids = listed((each.id for each in self), 3)
        what = getattr(first, "insertion", None)
        return one_line(f"<{len(self)} x {type(first).__name__}{f', {what.label}' if what else ''}: {ids}>")


@checked
def load_problems(source: object = "demo", *, limit: int | None = None) -> tuple[Problem, ...]:
    """Load the first `limit` problems of "demo" (bundled), "math500" (from the hub), or a .jsonl file with MATH-500's keys.

    A directory stands for the `problems.jsonl` in it; a `PlantedModel` draws its own (`limit` of them, default 64). Raises
    `ValueError` with the line number for malformed lines, missing keys, empty questions and repeated ids.
    """
    if limit is not None:
        check_count(limit, name="limit")
    if callable(draw := getattr(source, "problems", None)):
        drawn: tuple[Problem, ...] = draw(limit or 64)
        return drawn
    if not isinstance(source, str | Path):
        raise TypeError(f'source must be "demo", "math500", a path or a PlantedModel, got {shown(source)}')
    if source == "math500":
        return Several(islice(_from_hub(), limit))
    path = DEMO_PROBLEMS if source == "demo" else Path(source)
    path = path / "problems.jsonl" if path.is_dir() else path
    if not path.is_file():
        meant = nearest(path.name, ["demo", "math500", *beside(path)])
        raise FileNotFoundError(f'no problem file at {str(path)!r}{meant}; give a .jsonl file, "demo" or "math500"')
    ids: set[str] = set()

    odd: dict[str, str] = {}

    def problem(record: dict[str, Any]) -> Problem:
        keys = set(KEYS.values())
        odd.update({key: nearest(key, keys - {*record}) for key in record.keys() - odd.keys() - keys})
        made = Problem.from_dict(record)
        if made.id in ids:
            raise ValueError(f"id {made.id!r} was already used")
        ids.add(made.id)
        return made

    problems = Several(islice(of_lines(path, problem), limit))
    if not problems:
        raise ValueError(f"{path.name} holds no problems")
    if told := ", ".join(f"{key!r}{near}" for key, near in sorted(odd.items()) if near):
        warnings.warn(f"{path.name}: taken for keys of your own: {told}", stacklevel=3)
    return problems


def of_lines(path: Path, make: Callable[[dict[str, Any]], T]) -> Iterator[T]:
    """Make something of each JSON object of a file, one a line, as far as asked for; `ValueError` with the line."""
    with path.open("rb") as lines:  # lines end at \n alone: JSON strings may hold other line ends
        for number, line in enumerate(lines, start=1):
            try:
                text = line.decode("utf-8-sig" if number == 1 else "utf-8")
                if not text.strip():
                    continue
                record = json.loads(text)
                if not isinstance(record, dict):
                    raise TypeError(f"expected a JSON object, got {type(record).__name__}")
                made = make(record)
            except (TypeError, ValueError) as error:
                what = str(error)
                if isinstance(error, json.JSONDecodeError):
                    why = f"{error.msg} at column {error.colno}"
                    what = f"expected a whole JSON object on each line (.jsonl), got {shown(text)}: {why}"
                raise ValueError(f"{path.name}, line {number}: {what}") from error
            yield made


def distinct(problems: Iterable[Problem]) -> tuple[Problem, ...]:
    """Return the problems, none of them twice: the problem is the unit of replication, so each may count once only.
    `ValueError` where an id is given twice, or the same is asked, with the same answer, under several ids."""
    found = tuple(problems)
    ids: set[str] = set()
    seen: dict[tuple[str, str, str], str] = {}
    for problem in found:
        first = seen.setdefault((*problem.asked, problem.answer), problem.id)
        what = f"the problem id {problem.id!r} is given twice" if problem.id in ids else ""
        what = what or (f"problem {problem.id!r} asks the same as {first!r}" if first != problem.id else "")
        if what:
            raise ValueError(f"{what}: the problem is the unit of replication, so give each once")
        ids.add(problem.id)
    return found


def groups_of(problems: Iterable[Problem]) -> tuple[str, ...]:
    """Return each problem's group, its id where it has none; () where no two problems share one."""
    found = tuple(problem.group or problem.id for problem in problems)
    return found if len(set(found)) < len(found) else ()


def whole_groups(problems: Iterable[Problem], *counts: int) -> tuple[Problem, ...]:
    """Return the problems in an order of which the first `counts[0]`, the next `counts[1]`, ... share no group.
    Groups stand together, in order of first appearance. Where a count ends within a group, its other problems are left out."""
    found = tuple(problems)
    first: dict[str, int] = {}
    waiting = sorted(found, key=lambda each: first.setdefault(each.group or each.id, len(first)))
    if len(first) == len(found):
        return found
    parts: list[Problem] = []
    for count in counts:
        used = {each.group or each.id for each in parts}
        parts += [each for each in waiting if (each.group or each.id) not in used][:count]
    return tuple(parts)


def overlap(problems: Sequence[Problem], used: Sequence[Problem] = ()) -> str:
    """Return, in words, which two questions are so alike that they look like variants of one problem; "" where none are.

    They share at least ten runs of five words, and more than half of those of the shorter question. Where both have a `group`,
    the groups say whether they are. With `used`, each of `problems` is compared with those alone.
    """
    every = (*used, *problems)
    holding: dict[tuple[str, ...], list[int]] = defaultdict(list)
    sizes: list[int] = []
    for at, problem in enumerate(every):
        words = problem.asked[1].split()
        runs = {tuple(words[start : start + RUN]) for start in range(len(words) - RUN + 1)}
        sizes.append(len(runs))
        if at >= len(used):
            shared = Counter(first for run in runs for first in holding.get(run, ()) if every[first].id != problem.id)
            for first in sorted(at for at in shared if not (every[at].group and problem.group)):
                n, most = shared[first], min(len(runs), sizes[first])
                if n >= LEAST and 2 * n > most:
                    return (
                        f"the questions of problems {every[first].id!r} and {problem.id!r} share {n} of {most} runs of {RUN} "
                        "words, so they look like variants of one problem. Give variants the same `group` (a key of a "
                        ".jsonl problem file): they then count once. If they are independent, give each its own `group`"
                    )
        if at < len(used) or not used:
            for run in runs:
                holding[run].append(at)
    return ""


def _from_hub() -> Iterator[Problem]:
    from datasets import load_dataset

    try:
        rows = load_dataset(MATH500_HUB_ID, split="test")
    except Exception as error:
        raise ConnectionError(
            f"{MATH500_HUB_ID} could not be loaded from the hub ({type(error).__name__}); give a .jsonl file instead"
        ) from error
    return (Problem.from_dict(dict(row)) for row in rows)
