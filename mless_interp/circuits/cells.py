"""What the results of this room share: parts of an insertion's effect, cell by cell, each with both ends of its problem."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from ..patching.parts import Parts
from ..patching.prepared import Prepared
from ..patching.sweep import Sweep
from ..prompts.conditions import DIRECTIONS
from ..running.results import largest_first
from .stream_changes import named_on

PRINTED = ("label", "k", "n", "median_fraction", "effect", "effect_fraction", "ci_low", "ci_high")
"""Columns of a printed table."""


class Cells(Parts):
    """Parts `values` `[problem, ...]` of the effect `total` `[problem]`; every entry of a problem's is a cell."""

    values: np.ndarray
    total: np.ndarray

    @property
    def per_cell(self) -> np.ndarray:
        """`[problem, cell]`."""
        return self.values.reshape(len(self.values), -1)

    @property
    def total_effect(self) -> np.ndarray:
        return self.total

    def printed(self) -> pd.DataFrame:
        """The ten cells of the largest median."""
        return largest_first(self.summary(), "median")[list(PRINTED)].head(10)  # type: ignore[attr-defined]


def effects_of(found: Sequence[Any], direction: str, name: str = "patched") -> tuple[np.ndarray, np.ndarray]:
    """Parts of the insertion's effect `[problem, ...]` of outcomes under this name, and all of it `[problem]`.

    `found`: of each problem the outcomes of its cells, and of its `ends` (receiving, donor).
    """
    sign, ends = DIRECTIONS[direction], np.array([each["ends"] for each in found], dtype=float)
    patched = np.array([each[name] for each in found], dtype=float)
    receiving = ends[:, 0].reshape(-1, *[1] * (patched.ndim - 1))
    return sign * (patched - receiving) + 0.0, sign * (ends[:, 1] - ends[:, 0]) + 0.0  # no -0


def made_with(prepared: Prepared, sweep: Sweep, heads: Any = None) -> dict[str, Any]:
    """The settings of a result: how runs were patched, on which problems and model, and where the heads were named."""
    named = named_on(heads, prepared.ids)
    return {**sweep.settings, **prepared.settings, **named, "resolution": prepared.model.resolution}
