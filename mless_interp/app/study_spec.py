"""Read a study from one file: a model, problems, insertions with their places, contrasts, outcomes, seeds."""

import dataclasses
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..circuits.locate import LOCATED
from ..core.arguments import check_count, checked
from ..patching.outcomes import OUTCOMES, outcome_named
from ..prompts.conditions import CONTRASTS, one_of, several_of
from ..prompts.insertions import KINDS, Insertion
from ..prompts.problems import Problem
from ..prompts.prompt import template_named
from ..scores.catalogue import metric_named
from .included_studies import INCLUDED

ANY_PROBLEMS = (Problem("a", "one", "1"), Problem("b", "two", "2"))
"""Where problems are not known yet and an insertion that draws from them is to be checked."""
SPAN_MASS = "span_mass"
"""The measure of attention that every study reports: the later rows' share on the inserted tokens."""
FEWEST = 2
"""Problems, the unit of replication."""


@checked
@dataclass(frozen=True, kw_only=True)
class InsertionAsked:
    """One row of a study: an insertion by its kind's name, as `Insertion.named` takes it, at a place (`before`, `after`, `at`).

    `unit`: the unit, word or text; the key of `from_key`, the ids of `ids`, how many times `repeat_question` repeats.
    `n_tokens`: 55 unless given. What means nothing to a kind is refused.
    """

    name: str
    kind: str
    unit: str | None = None
    n_tokens: int | None = None
    before: str | tuple[str, ...] | None = None
    after: str | tuple[str, ...] | None = None
    at: int | tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        one_of(self.kind, KINDS, "insertion")
        if not slug(self.name):
            raise ValueError(f"name must hold a letter or a digit, got {self.name!r}")
        self.made(0, ANY_PROBLEMS)

    def made(self, seed: int, problems: Iterable[Problem]) -> Insertion:
        """The insertion; `problems` are those that `other_questions` draws from."""
        place = {name: getattr(self, name) for name in ("before", "after", "at") if getattr(self, name) is not None}
        options: dict[str, Any] = place or {"before": "question"}
        return Insertion.named(
            self.kind, unit=self.unit, n_tokens=self.n_tokens, seed=seed, problems=problems, **options
        )


@checked
@dataclass(frozen=True, kw_only=True)
class Study:
    """Everything that a study asks; made of a file by `read_study`.

    `limit` problems are measured; `metrics` of attention, `span_mass` first (none: it is left out); `heads` "all": heads are
    named on them by `locate_heads` (`locate_by`: the contrast) and tested on `confirm` fresh ones after them (0: not); the
    first `answers` problems are answered (0: none). The first of `seeds` is that of all that is drawn; insertions that are
    drawn have a row for each. `source` and `claims`: where the question comes from, and what is claimed there.
    """

    title: str
    insertions: tuple[InsertionAsked, ...]
    source: str = ""
    claims: str = ""
    model: str = "demo"
    problems: str | None = None
    template: str = "raw"
    limit: int = 32
    contrasts: tuple[str, ...] = ("content", "shift")
    outcomes: tuple[str, ...] = ("answer_logprob",)
    seeds: tuple[int, ...] = (0,)
    metrics: tuple[str, ...] = (SPAN_MASS,)
    heads: str = "none"
    locate_by: str = "content"
    confirm: int = 0
    answers: int = 0
    max_new_tokens: int | None = None

    def __post_init__(self) -> None:
        several_of(self.contrasts, CONTRASTS, "contrast")
        for outcome in several_of(self.outcomes, OUTCOMES, "outcome"):
            outcome_named(outcome, signed_for="a study")
        if not self.seeds or min(self.seeds) < 0:
            raise ValueError(f"seeds must be one or more numbers, 0 or more, got {list(self.seeds)}")
        one_of(self.heads, dict.fromkeys(("none", "all")), "choice of heads")
        one_of(self.locate_by, dict.fromkeys(LOCATED), "contrast to locate heads by")
        template_named(self.template)
        for metric in self.metrics:
            metric_named(metric)
        if self.metrics and (self.metrics[0] != SPAN_MASS or len(set(self.metrics)) < len(self.metrics)):
            raise ValueError(
                f"metrics must be none, or {SPAN_MASS} and then different others, got {list(self.metrics)}"
            )
        check_count(self.limit, name="limit", at_least=FEWEST)
        for name in ("confirm", "answers"):
            if (count := getattr(self, name)) < 0 or count == 1:
                raise ValueError(f"{name} takes {FEWEST} or more problems, or 0, got {count}")
        if self.confirm and self.heads == "none":
            raise ValueError('confirm tests named heads on fresh problems, so it needs heads = "all"')
        if not self.insertions:
            raise ValueError("a study needs insertions: write [[insertions]] with a name and a kind")
        slugs = [slug(name) for name, *_ in self.rows(ANY_PROBLEMS)]
        if NONE in slugs:
            raise ValueError(f"no insertion may be named {NONE!r}, which is what answers are compared with")
        if twice := [each for each in slugs if slugs.count(each) > 1]:
            raise ValueError(f"two insertions are named {twice[0]!r}")

    @property
    def n_problems(self) -> int:
        """Count the problems that the study takes."""
        return max(self.limit + self.confirm, self.answers)

    @property
    def draws_questions(self) -> bool:
        """Return True where all problems are read, so that draws from them do not depend on how many are measured."""
        return any(each.kind == "other_questions" for each in self.insertions)

    def rows(self, problems: Iterable[Problem]) -> list[tuple[str, Insertion]]:
        """Every row's name and insertion: one for each seed where it is drawn."""
        problems, found = tuple(problems), []
        for asked in self.insertions:
            seeds = self.seeds if KINDS[asked.kind].drawn else self.seeds[:1]
            for seed in seeds:
                name = asked.name if len(seeds) == 1 else f"{asked.name}, seed {seed}"
                found.append((name, asked.made(seed, problems)))
        return found

    def with_changes(self, *, n_tokens: int | None = None, **changes: Any) -> "Study":
        """The same study with what is not None put in place of its own; `n_tokens` in place of every counted insertion's."""
        given = {name: value for name, value in changes.items() if value is not None}
        if n_tokens is not None:
            given["insertions"] = tuple(
                dataclasses.replace(each, n_tokens=n_tokens) if KINDS[each.kind].counted else each
                for each in self.insertions
            )
        return dataclasses.replace(self, **given)


NONE = "none"
"""The treatment that answers under insertions are compared with."""


def slug(name: str) -> str:
    """A row's name as that of a file.

    >>> slug("random words, seed 1")
    'random-words-seed-1'
    """
    return re.sub(r"\W+", "-", name).strip("-").lower()


@checked
def read_study(study: str | Path | Mapping[str, Any] | Study) -> Study:
    """Read a study: an included one by its name (`mless-interp study` lists them), a .toml file, or a mapping of what such a
    file holds.

    Raises `ValueError` or `TypeError`, one line that names the file, for unknown keys (with the known ones), missing ones and
    values that make no sense; `FileNotFoundError` where there is no such file. Nothing is loaded for it.
    """
    if isinstance(study, Study):
        return study
    if isinstance(study, Mapping):
        return _study(study)
    path = INCLUDED.get(str(study), Path(study))
    if not path.is_file():
        raise FileNotFoundError(f"no study at {str(path)!r}: give a .toml file, or one of {', '.join(INCLUDED)}")
    try:
        return _study(tomllib.loads(path.read_text(encoding="utf-8")))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path.name} is no TOML: {error}") from error
    except (ValueError, TypeError) as error:
        raise type(error)(f"{path.name}: {error}") from error


def _study(told: Mapping[str, Any]) -> Study:
    rows = told.get("insertions", ())
    if not isinstance(rows, Sequence) or isinstance(rows, str) or not all(isinstance(each, Mapping) for each in rows):
        raise TypeError("insertions must be tables: write [[insertions]] with a name and a kind for each")
    made = []
    for number, row in enumerate(rows):
        try:
            made.append(InsertionAsked(**row))
        except (ValueError, TypeError) as error:
            raise type(error)(f"insertion {row.get('name', number)!r}: {error}") from error
    return Study(**{**told, "insertions": tuple(made)})
