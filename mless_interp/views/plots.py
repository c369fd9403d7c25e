"""Still pictures with matplotlib. The only file that imports matplotlib; nothing here touches pyplot's global state."""

import io
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.colors import TwoSlopeNorm
from matplotlib.figure import Figure

COLOURS = "RdBu_r"
"""A diverging map that stays readable in print and for colour-blind people; white is 0, grey is undefined."""


class Picture(Figure):
    """A matplotlib figure that shows itself in a notebook and saves itself as a file."""

    def _repr_png_(self) -> bytes:
        buffer = io.BytesIO()
        self.savefig(buffer, format="png", dpi=110, bbox_inches="tight")
        return buffer.getvalue()

    def save(self, path: str | Path, *, dpi: int = 150) -> Path:
        """Write the picture (the suffix says the format) and return its path."""
        self.savefig(path, dpi=dpi, bbox_inches="tight")
        return Path(path)


def head_map(scores: Any, *, value: str | None = None, top: int = 3) -> Picture:
    """Layer × head map of a result's summary (`PatchScores` or anything with `.summary()`), 0 in the middle.

    `value` is the column to show: by default effect_fraction, or the raw effect where fractions are undefined. The `top`
    heads of largest magnitude are named. Both ways of counting are on the axes: zero-based left and below, the
    paper's one-based right and above.
    """
    table = scores.summary()
    if value is None:
        value = "effect_fraction" if table["effect_fraction"].notna().any() else "effect"
    if value not in table:
        raise ValueError(f"no column {value!r} to draw; there are {', '.join(table.columns)}")
    n_layers, n_heads = int(table["layer"].max()) + 1, int(table["head"].max()) + 1
    grid = np.full((n_layers, n_heads), np.nan)
    grid[table["layer"], table["head"]] = table[value]
    picture = Picture(figsize=(max(4.0, 0.32 * n_heads + 1.8), max(2.4, 0.32 * n_layers + 1.6)), layout="constrained")
    axes = picture.add_subplot()
    limit = float(np.nanmax(np.abs(grid))) if np.isfinite(grid).any() else 1.0
    limit = limit or 1.0
    axes.set_facecolor("0.8")
    image = axes.imshow(grid, cmap=COLOURS, norm=TwoSlopeNorm(0.0, -limit, limit), aspect="auto")
    ranked = table.loc[table[value].abs().sort_values(ascending=False, kind="stable").index].head(top)
    for layer, head in zip(ranked["layer"], ranked["head"], strict=True):
        dark = abs(grid[layer, head]) > 0.6 * limit
        axes.text(head, layer, str(head), ha="center", va="center", fontsize=8, color="white" if dark else "black")
    _count_axes(axes, n_layers, n_heads)
    unit = "" if value == "effect_fraction" else f" ({getattr(scores, 'unit', '')})"
    picture.colorbar(image, ax=axes, label=value.replace("_", " ") + unit, shrink=0.9)
    settings = getattr(scores, "settings", {})
    words = [str(settings[key]) for key in ("model", "contrast", "direction", "edit", "outcome") if key in settings]
    axes.set_title(", ".join(words), fontsize=9)
    return picture


def _count_axes(axes: Any, n_layers: int, n_heads: int) -> None:
    step = max(1, n_heads // 14)
    axes.set_xticks(range(0, n_heads, step))
    axes.set_yticks(range(0, n_layers, max(1, n_layers // 14)))
    axes.set_xlabel("head (zero-based)")
    axes.set_ylabel("layer (zero-based)")
    one_based = (lambda x: x + 1, lambda x: x - 1)
    above, right = axes.secondary_xaxis("top", functions=one_based), axes.secondary_yaxis("right", functions=one_based)
    above.set_xticks(range(1, n_heads + 1, step))
    right.set_yticks(range(1, n_layers + 1, max(1, n_layers // 14)))
    for axis in (above, right):
        axis.tick_params(labelsize=7, colors="0.4")
    above.set_xlabel("head in the paper's counting", fontsize=8, color="0.4")
