"""Pictures of what heads write: tokens promoted and suppressed, and whose keys they prefer."""

from collections.abc import Iterable

import numpy as np
import pandas as pd

from ..circuits.head_writes import KINDS, LOOKS, SIDES, UNITS, HeadWrites
from ..core.heads import Head
from .plots import HATCHES, LINES, MADE_WITH, Axes, Picture, Style, key, key_below, name_axes, words_of

MOST_HEADS = 6
TITLES = {"Sigma": "takes from the span", "change": "writes more with the span", LOOKS: "looks at"}


def token_bars(found: HeadWrites, *, heads: Iterable[Head | str] | None = None, top: int = 5) -> Picture:
    """A row of panels per head: the tokens that its Sigma and its change promote and suppress, and those whose keys its query
    prefers and avoids, at most `top` each; lines are standard deviations over problems. A description, not evidence.

    Panels of one column share no scale: what a head writes may be small. Means within rounding are left out.

    Parameters
    ----------
    heads : which, of the result's; default its first six.
    """
    chosen = list(found.heads[:MOST_HEADS]) if heads is None else [Head.parse(str(head)) for head in heads]
    unknown = [str(head) for head in chosen if head not in found.heads]
    if unknown or not chosen:
        raise ValueError(
            f"no head {unknown[0] if unknown else ''!r} here; there are {', '.join(map(str, found.heads))}"
        )
    table = found.table()
    most = max(2, *((table["label"] == str(head)).groupby(table["of"]).sum().max() for head in chosen))
    picture = Picture(figsize=(9.0, len(chosen) * (0.17 * min(most, 2 * top) + 0.75) + 0.6), layout="constrained")
    axes = picture.subplots(len(chosen), len(KINDS), squeeze=False)
    for row, head in enumerate(chosen):
        for column, kind in enumerate(KINDS):
            rows = table[(table["label"] == str(head)) & (table["of"] == kind)]
            parts = [rows[rows["side"] == side] for side in SIDES[kind]]
            _panel(axes[row, column], parts[0].head(top), parts[1].tail(top))
            name_axes(axes[row, column], x=UNITS[kind] if row == len(chosen) - 1 else None)
            axes[row, column].set_title(f"{head} {TITLES[kind]}", fontsize=8)
    picture.suptitle(words_of(found, *MADE_WITH), fontsize=9)
    words = ("promoted, preferred", "suppressed, avoided")
    key_below(picture, handles=key([(each, _style(at)) for at, each in enumerate(words)]))
    return picture


def _style(side: int) -> Style:
    return {"facecolor": LINES[side][0], "hatch": HATCHES[2 * side], "edgecolor": "white", "linewidth": 0}


def _panel(axes: Axes, up: pd.DataFrame, down: pd.DataFrame) -> None:
    tokens = [*up["token"], *down["token"]]
    amounts, spread = (np.array([*up[name], *down[name]], dtype=float) for name in ("amount", "spread"))
    places = np.arange(len(tokens))[::-1]
    for side, part in enumerate((slice(0, len(up)), slice(len(up), None))):
        axes.barh(places[part], amounts[part], 0.75, **_style(side))
    axes.errorbar(amounts, places, xerr=spread, linestyle="none", color="black", linewidth=0.8, capsize=1.5)
    axes.axvline(0, color="0.4", linewidth=0.8)
    axes.set_yticks(places, tokens)
    axes.set_ylim(-0.7, max(len(tokens), 1) - 0.3)
    axes.locator_params(axis="x", nbins=3)
    if not tokens:
        axes.set_xticks([])
        axes.text(0.5, 0.5, "nothing above rounding", transform=axes.transAxes, ha="center", va="center", fontsize=8)
