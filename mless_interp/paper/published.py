"""Accuracies that the paper prints, each with the table that prints it. Where tables differ, see `CONTRADICTIONS`."""

from dataclasses import dataclass

import pandas as pd

TREATMENTS = ("none", "mless", "mful", "arm", "question_mark")


@dataclass(frozen=True)
class Published:
    """One printed accuracy in percent. `treatment`: none, mless (slashes), mful ("he"), arm, question_mark."""

    source: str
    model: str
    benchmark: str
    treatment: str
    percent: float
    approximate: bool = False


def _rows(
    source: str, benchmark: str, treatments: tuple[str, ...], table: dict[str, tuple[float, ...]]
) -> list[Published]:
    return [
        Published(source, model, benchmark, treatment, value)
        for model, values in table.items()
        for treatment, value in zip(treatments, values, strict=True)
    ]


_TABLE_1 = {
    "qwen2.5-math-1.5b": (63.9, 65.9, 14.4, 17.5),
    "qwen2.5-math-7b": (72.3, 74.6, 23.1, 23.3),
    "deepseek-r1-qwen-7b": (52.7, 53.1, 3.2, 4.4),
    "deepseek-math-7b-instruct": (39.5, 42.1, 7.8, 12.3),
    "llama-3.1-8b-instruct": (41.8, 42.1, 7.9, 9.9),
    "qwen2.5-32b-instruct": (81.3, 81.7, 17.6, 22.8),
}
_FIGURE_10 = {
    "qwen2.5-math-1.5b": (64.0, 66.0, 66.0),
    "qwen2.5-math-7b": (73.0, 76.0, 74.0),
    "llama-3.1-8b-instruct": (44.0, 46.0, 48.0),
}

PUBLISHED: tuple[Published, ...] = (
    *_rows("Table 1", "MATH-500", ("none", "mless"), {m: v[:2] for m, v in _TABLE_1.items()}),
    *_rows("Table 1", "AIME24", ("none", "mless"), {m: v[2:] for m, v in _TABLE_1.items()}),
    *_rows(
        "Table 3a",
        "MATH-500",
        ("none", "mless", "arm"),
        {"qwen2.5-math-7b": (72.4, 75.0, 73.4), "llama-3.1-8b-instruct": (43.0, 44.9, 45.8)},
    ),
    *_rows(
        "Table 3a",
        "AIME24",
        ("none", "mless", "arm"),
        {"qwen2.5-math-7b": (23.3, 24.4, 25.6), "llama-3.1-8b-instruct": (11.1, 13.3, 13.3)},
    ),
    *_rows(
        "Table 2",
        "MATH-500",
        ("none", "arm"),
        {
            "qwen2.5-math-1.5b": (63.8, 67.0),
            "qwen2.5-math-7b": (72.4, 73.4),
            "qwen2.5-7b-instruct": (61.4, 62.4),
            "qwen2.5-32b-instruct": (82.6, 82.6),
            "llama-3.1-8b-instruct": (43.0, 45.8),
            "gemma-3-4b-it": (72.6, 74.0),
            "gemma-3-27b-it": (85.4, 86.2),
        },
    ),
    *_rows(
        "Table 5",
        "MATH-500",
        ("none", "mless", "question_mark"),
        {
            "qwen2.5-math-1.5b": (63.6, 66.8, 58.2),
            "qwen2.5-math-7b": (72.4, 75.0, 69.6),
            "deepseek-r1-qwen-7b": (52.0, 55.0, 53.6),
            "deepseek-math-7b-instruct": (39.6, 41.4, 43.4),
            "llama-3.1-8b-instruct": (35.4, 36.6, 34.2),
            "qwen2.5-32b-instruct": (80.8, 81.0, 81.6),
        },
    ),
    *(
        Published("Figure 10 (read off the bars)", model, "MATH-500", treatment, value, approximate=True)
        for model, values in _FIGURE_10.items()
        for treatment, value in zip(("none", "mless", "mful"), values, strict=True)
    ),
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
