"""Accuracies that the paper prints, each with the table that prints it. Where tables differ, see `CONTRADICTIONS`."""

from dataclasses import dataclass

import pandas as pd

from ..data import paper_table


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


def published(**wanted: str) -> pd.DataFrame:
    """The printed numbers as a table; `published(benchmark="MATH-500", model="llama-3.1-8b-instruct")` filters."""
    table = pd.DataFrame([vars(number) for number in PUBLISHED])
    for column, value in wanted.items():
        if column not in table:
            raise ValueError(f"no column {column!r}; there are {', '.join(table.columns)}")
        table = table[table[column] == value]
    return table.reset_index(drop=True)
