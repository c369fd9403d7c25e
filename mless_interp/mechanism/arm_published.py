"""ARM's published settings per model and benchmark: Table 9 of arXiv 2510.01032 beside the values in its code."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..core.arguments import check_choice
from ..data import paper_table

CODE_OPTIONS: Mapping[str, Mapping[str, Any]] = {
    "qwen": {"p_min": 0.02},
    "llama": {"p_min": 0.2},
    "gemma": {"fraction": "direct", "selection": "quantile", "upper": "absolute"},
}
"""What the code sets for a family of models beside c and p1."""


@dataclass(frozen=True)
class PublishedArm:
    """One setting: `table` and `code` are (c, p1) as Table 9 prints them and as the code sets them; p1 as a percentile.

    For Gemma the first number is the share p itself. None: not known. `code_options`: what else the code sets for this
    model.
    """

    model: str
    benchmark: str
    table: tuple[float, float | None] | None
    code: tuple[float, float | None] | None
    code_options: Mapping[str, Any] = field(default_factory=dict)
    note: str = ""

    def values(self, source: str) -> tuple[float, float | None]:
        """(c, p1) by "table" or "code"."""
        check_choice(source, name="source", choices=("table", "code"))
        found, other = (self.table, "code") if source == "table" else (self.code, "table")
        if found is None:
            raise ValueError(
                f"the {source} has no ARM setting for {self.model} on {self.benchmark} ({self.note}); the {other} has: "
                f'source="{other}"'
            )
        return found


def _pair(c: str, p1: str) -> tuple[float, float | None] | None:
    return (float(c), float(p1) if p1 else None) if c else None


PUBLISHED_ARM: tuple[PublishedArm, ...] = tuple(
    PublishedArm(
        row["model"],
        row["benchmark"],
        _pair(row["c"], row["p1"]),
        _pair(row["c_code"], row["p1_code"]),
        CODE_OPTIONS[row["family"]],
        row["note"],
    )
    for row in paper_table("arm")
)
"""Table 9 and released code. They differ per model and benchmark; no held-out selection is described."""


def published_arm(model: str, benchmark: str) -> PublishedArm:
    """The setting of a model (its key, or a hub id such as "Qwen/Qwen2.5-Math-7B") on a benchmark, upper or lower case.

    Raises `ValueError` that names what there is.
    """
    key = model.rpartition("/")[2].lower()
    models = tuple(dict.fromkeys(found.model for found in PUBLISHED_ARM))
    if key not in models:
        raise ValueError(f"the paper gives no ARM setting for model {model!r}; it does for {', '.join(models)}")
    of_model = {found.benchmark.lower(): found for found in PUBLISHED_ARM if found.model == key}
    wanted = benchmark.lower()
    if wanted not in of_model:
        known = ", ".join(found.benchmark for found in of_model.values())
        raise ValueError(f"the paper gives no ARM setting for {key} on {benchmark!r}; it does for {known}")
    return of_model[wanted]
