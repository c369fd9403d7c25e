"""Problems: a question with its answer, read from a file in MATH-500's form."""

import json
import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

DEMO_PROBLEMS = Path(__file__).parents[1] / "data" / "demo" / "problems.jsonl"
MATH500_HUB_ID = "HuggingFaceH4/MATH-500"
REQUIRED_KEYS = ("problem", "answer", "unique_id")


@dataclass(frozen=True)
class Problem:
    """One question. `system`, `answer_prefix` override the template's own; `distractor` is a plausible wrong answer.

    `answer_prefix` is the text after which the answer is teacher-forced, for example `The final answer is \\boxed{`.
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

    def __post_init__(self) -> None:
        for name in ("id", "question", "answer"):
            if not isinstance(getattr(self, name), str):
                raise TypeError(f"problem {self.id!r}: {name} must be text, got {getattr(self, name)!r}")
        if not self.question.strip():
            raise ValueError(f"problem {self.id!r}: its question is empty")

    @classmethod
    def from_dict(cls, record: dict[str, Any]) -> "Problem":
        """A problem from MATH-500's keys (problem, answer, unique_id; solution, subject, level) and our optional ones
        (system, distractor, answer_prefix)."""
        missing = [key for key in REQUIRED_KEYS if record.get(key) is None]
        if missing:
            raise ValueError(f"missing {', '.join(missing)}; a problem needs the keys {', '.join(REQUIRED_KEYS)}")
        text = lambda key: None if record.get(key) is None else str(record[key])  # noqa: E731
        return cls(
            id=str(record["unique_id"]),
            question=str(record["problem"]),
            answer=str(record["answer"]),
            system=text("system"),
            solution=text("solution"),
            distractor=text("distractor"),
            answer_prefix=text("answer_prefix"),
            subject=text("subject"),
            level=text("level"),
        )


@runtime_checkable
class DrawsProblems(Protocol):
    """What has problems of its own, as many as are asked for (a `PlantedModel`)."""

    def problems(self, n: int, *, seed: int = 0) -> tuple[Problem, ...]:
        """`n` problems."""


def load_problems(source: Any = "demo", *, limit: int | None = None, seed: int | None = None) -> tuple[Problem, ...]:
    """Problems from "demo" (bundled), a .jsonl file with MATH-500's keys, or "math500" (from the hub, needs a network).

    A directory stands for the `problems.jsonl` in it; a `PlantedModel` draws its own (`limit` of them, default 64).

    `limit` keeps the first `limit` problems; with a `seed` it draws that many, the levels in proportion, the same for
    the same seed. Raises `ValueError` with the line number for malformed lines, missing keys, empty questions and
    repeated ids; `FileNotFoundError` for a missing file.
    """
    if limit is not None and limit <= 0:
        raise ValueError(f"limit must be 1 or more, got {limit}")
    if isinstance(source, DrawsProblems):
        return source.problems(limit or 64, seed=seed or 0)
    label = str(source)
    if label == "math500":
        problems = _from_hub()
    else:
        path = DEMO_PROBLEMS if label == "demo" else Path(source)
        if path.is_dir():
            path = path / "problems.jsonl"
        if not path.is_file():
            raise FileNotFoundError(f'no problem file at {str(path)!r}; give a .jsonl file, "demo" or "math500"')
        problems = _read(path)
    if limit is None or limit >= len(problems):
        return problems
    return problems[:limit] if seed is None else _stratified(problems, limit, seed)


def _read(path: Path) -> tuple[Problem, ...]:
    problems: list[Problem] = []
    first_line: dict[str, int] = {}
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path.name} is not UTF-8 text ({error.reason} at byte {error.start})") from error
    for number, line in enumerate(text.split("\n"), start=1):  # not splitlines: JSON strings may hold other line ends
        if not line.strip():
            continue
        where = f"{path.name}, line {number}"
        try:
            record = json.loads(line)
        except json.JSONDecodeError as error:
            raise ValueError(f"{where}: not valid JSON ({error.msg} at column {error.colno})") from error
        if not isinstance(record, dict):
            raise ValueError(f"{where}: expected a JSON object, got {type(record).__name__}")
        try:
            problem = Problem.from_dict(record)
        except (TypeError, ValueError) as error:
            raise ValueError(f"{where}: {error}") from error
        if problem.id in first_line:
            raise ValueError(f"{where}: id {problem.id!r} was already used in line {first_line[problem.id]}")
        first_line[problem.id] = number
        problems.append(problem)
    if not problems:
        raise ValueError(f"{path.name} holds no problems")
    return tuple(problems)


def _from_hub() -> tuple[Problem, ...]:
    from datasets import load_dataset

    try:
        rows = load_dataset(MATH500_HUB_ID, split="test")
    except Exception as error:
        raise ConnectionError(
            f"{MATH500_HUB_ID} could not be loaded from the hub ({type(error).__name__}); give a .jsonl file instead"
        ) from error
    return tuple(Problem.from_dict(dict(row)) for row in rows)


def _stratified(problems: Sequence[Problem], limit: int, seed: int) -> tuple[Problem, ...]:
    """`limit` problems, each level in proportion (largest remainders first), in file order."""
    draw = random.Random(seed)
    by_level: dict[str, list[int]] = defaultdict(list)
    for index, problem in enumerate(problems):
        by_level[problem.level or ""].append(index)
    shares = {level: limit * len(members) / len(problems) for level, members in by_level.items()}
    counts = {level: int(share) for level, share in shares.items()}
    by_remainder = sorted(shares, key=lambda level: (counts[level] - shares[level], level))
    for level in by_remainder[: limit - sum(counts.values())]:
        counts[level] += 1
    chosen = [index for level in sorted(by_level) for index in draw.sample(by_level[level], counts[level])]
    return tuple(problems[index] for index in sorted(chosen))
