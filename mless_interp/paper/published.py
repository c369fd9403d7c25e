"""Accuracies that the paper prints, each with the table that prints it. Where tables differ, see `CONTRADICTIONS`."""

from dataclasses import dataclass

import pandas as pd

from ..data import paper_table
from .figures import IN_WORDS, Contradiction, title_of


@dataclass(frozen=True)
class Published:
    """One printed accuracy in percent. `treatment`: none, mless (slashes), mful ("he"), arm, question_mark."""

    source: str
    model: str
    benchmark: str
    treatment: str
    percent: float
    approximate: bool = False


PUBLISHED: tuple[Published, ...] = tuple(
    Published(**row | {"percent": float(row["percent"]), "approximate": row["approximate"] == "yes"})  # type: ignore[arg-type]
    for row in paper_table("published")
)
"""Means of five runs where the paper says so (Table 1); no intervals are published."""


HOW = {
    "none": "without insertion",
    "mless": "with meaningless tokens",
    "mful": "with repeated words",
    "arm": "with ARM",
    "question_mark": "with question marks",
}
"""What the accuracies are of, in words."""


def _printed_differently() -> tuple[Contradiction, ...]:
    """Accuracies for which tables print different numbers, with everything that is printed of them."""
    readings: dict[tuple[str, str, str], list[Published]] = {}
    for one in PUBLISHED:
        readings.setdefault((one.benchmark, one.model, one.treatment), []).append(one)
    return tuple(
        Contradiction(
            f"{benchmark} accuracy of {title_of(model)} {HOW[treatment]}",
            tuple((one.source, f"{'about ' * one.approximate}{one.percent:g}") for one in found),
        )
        for (benchmark, model, treatment), found in readings.items()
        if len({one.percent for one in found if not one.approximate}) > 1
    )


CONTRADICTIONS = (*_printed_differently(), *IN_WORDS)
"""Where the paper (or a description of its figures) says different things: every accuracy that its tables print differently,
and what is no number."""


def published(**wanted: str) -> pd.DataFrame:
    """The printed numbers as a table; `published(benchmark="MATH-500", model="llama-3.1-8b-instruct")` filters."""
    table = pd.DataFrame([vars(number) for number in PUBLISHED])
    for column, value in wanted.items():
        if column not in table:
            raise ValueError(f"no column {column!r}; there are {', '.join(table.columns)}")
        table = table[table[column] == value]
    return table.reset_index(drop=True)
