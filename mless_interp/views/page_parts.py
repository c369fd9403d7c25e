"""Turn a table with a row per head into a map of colours and words. No HTML here."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import pandas as pd

from ..runtime.columns import DECLARED, Column, TextTable, column_of

BLUE_TO_RED = "053061 2166ac 4393c3 92c5de d1e5f0 f7f7f7 fddbc7 f4a582 d6604d b2182b 67001f".split()
"""ColorBrewer's RdBu, reversed, as in the still pictures: told apart by colour-blind readers, 0 in the middle."""


@dataclass(frozen=True)
class Square:
    """One head's place, colour, value and everything known of it in words; `marked` ones are outlined."""

    layer: int
    head: int
    colour: str
    words: str
    marked: bool


@dataclass(frozen=True)
class HeadMap:
    """Layer × head map, zero-based, with all numbers of a head on hover, tap or arrow key."""

    kind: ClassVar[str] = "head_map"
    caption: str
    value: str
    limit: str
    signed: bool
    undefined: bool
    n_layers: int
    n_heads: int
    squares: tuple[Square, ...]
    marked_means: str = ""
    note: str = ""

    @classmethod
    def of(
        cls,
        frame: pd.DataFrame,
        caption: str,
        *,
        value: str,
        columns: Sequence[str] | None = None,
        marked: Sequence[bool] | None = None,
        marked_means: str = "",
        known: Mapping[str, Column] = DECLARED,
        interval: str = "95 %",
    ) -> "HeadMap":
        """A map of one column of a table with columns layer and head; `columns` are told on hover; `known`: what they mean;
        `interval`: the confidence of intervals."""
        for name in ("layer", "head", value):
            if name not in frame.columns:
                raise ValueError(f"no column {name!r} to draw; there are {', '.join(map(str, frame.columns))}")
        layers, heads = frame["layer"].tolist(), frame["head"].tolist()
        if len(set(zip(layers, heads, strict=True))) != len(layers):
            raise ValueError("a head map needs one row per head; this table has several rows of the same head")
        table = TextTable.of(frame, "", columns=columns, known=known, interval=interval)
        numbers = [float("nan") if pd.isna(number) else float(number) for number in frame[value].tolist()]
        finite = [abs(number) for number in numbers if math.isfinite(number)]
        limit = max(finite, default=0.0) or 1.0
        shown = [False] * len(numbers) if marked is None else list(marked)
        squares = tuple(
            Square(layer, head, colour(number / limit), table.sentence(row), bool(shown[row]))
            for row, (layer, head, number) in enumerate(zip(layers, heads, numbers, strict=True))
        )
        return cls(
            caption=caption,
            value=column_of(value, known).heading,
            limit=f"{limit:.3g}",
            signed=any(number < 0 for number in numbers),
            undefined=any(math.isnan(number) for number in numbers),
            n_layers=max(layers) + 1,
            n_heads=max(heads) + 1,
            squares=squares,
            marked_means=marked_means if any(shown) else "",
            note=column_of(value, known).note,
        )


def colour(share: float) -> str:
    """Colour of a number in -1..1 (beyond is clipped): blue below 0, red above, grey where undefined.

    >>> colour(0.0), colour(1.0), colour(float("nan"))
    ('#f7f7f7', '#67001f', '#bbbbbb')
    """
    if math.isnan(share):
        return "#bbbbbb"
    place = (min(1.0, max(-1.0, share)) + 1) / 2 * (len(BLUE_TO_RED) - 1)
    low = min(int(place), len(BLUE_TO_RED) - 2)
    ends = [[int(stop[i : i + 2], 16) for i in (0, 2, 4)] for stop in BLUE_TO_RED[low : low + 2]]
    mixed = [round(a + (b - a) * (place - low)) for a, b in zip(*ends, strict=True)]
    return "#" + "".join(f"{part:02x}" for part in mixed)
