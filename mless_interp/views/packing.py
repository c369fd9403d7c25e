"""Patterns made small enough for a page: numbers rounded to steps, compressed, and where that is not enough pooled."""

import base64
import json
import zlib
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from .pooling import Patterns

LEVELS = (256, 128, 64, 32)
"""Steps that numbers may be rounded to, finest first."""
BLOCKS = (1, 2, 4, 8)
"""How many neighbouring tokens are pooled into one where no number of steps is small enough."""


@dataclass(frozen=True, eq=False)
class Packed:
    """Panels whose cells on and below the diagonal are steps of a table, in one compressed text.

    `values` is base64 of deflated bytes, panel by panel, head by head, row by row; `table[step]` is the number. `below` and
    `above` are the largest errors of numbers up to the colour scale and beyond it. `seams` counts in pooled tokens.
    """

    panels: tuple[Patterns, ...]
    seams: tuple[int, ...]
    n_base: int
    block: int
    values: str
    table: tuple[float, ...]
    below: float
    above: float

    @property
    def precision(self) -> str:
        """How exact the numbers are, in words."""
        words = f"Numbers are rounded: within {self.below:.2g} of the true ones"
        words += f" up to the darkest colour, {self.above:.2g} above it" if self.above else ""
        words += "; the difference within twice that."
        if self.block > 1:
            words += f" To keep the page small, {self.block} neighbouring tokens are pooled into one (their attention summed)."
        return words


def packed(panels: list[Patterns], seams: list[int], n_base: int, *, scale: float, room: int) -> Packed | None:
    """The finest form of the panels whose numbers and texts fit into `room` bytes; None if none does."""
    for block in BLOCKS:
        shown, starts = (panels, seams) if block == 1 else _in_blocks(panels, seams, n_base, block)
        numbers = np.concatenate([panel.visible.ravel() for panel in shown])
        texts = sum(len(json.dumps(panel.texts)) + 8 * len(panel.texts) for panel in shown)
        made = _rounded(numbers, scale, room - texts)
        if made:
            found = max(int(panel.base.max()) for panel in shown) + 1
            return Packed(tuple(shown), tuple(starts), n_base if block == 1 else found, block, *made)
    return None


def scale_of(panels: list[Patterns], scale: float | None) -> float:
    """The colour scale's end: the one asked for, or the 99th percentile of all cells."""
    cells = np.concatenate([panel.visible.ravel() for panel in panels])
    if scale is None:
        scale = float(np.quantile(cells, 0.99)) or float(cells.max()) or 1.0
    if not (np.isfinite(scale) and scale > 0):
        raise ValueError(f"scale must be a positive attention probability, got {scale}")
    return float(scale)


def _in_blocks(panels: list[Patterns], breaks: list[int], n_base: int, size: int) -> tuple[list[Patterns], list[int]]:
    """Panels with `size` neighbouring base tokens pooled into one, never across a seam, and the seams among the blocks."""
    block_of = np.zeros(n_base, dtype=int)
    block = -1
    for start, stop in pairwise([0, *breaks, n_base]):
        for token in range(start, stop):
            block += (token - start) % size == 0
            block_of[token] = block
    return [panel.in_blocks(block_of) for panel in panels], [int(block_of[token]) for token in breaks]


def _rounded(numbers: np.ndarray, scale: float, room: int) -> tuple[str, tuple[float, ...], float, float] | None:
    """(values, table, errors below and above the scale), three quarters of the steps up to the scale, or None."""
    top = max(float(numbers.max()), scale)
    for levels in LEVELS:
        below = levels - 1 if top <= scale else levels * 3 // 4 - 1
        low = scale / below
        high = (top - scale) / (levels - 1 - below) if top > scale else 0.0
        steps = np.where(
            numbers <= scale, np.rint(numbers / low), below + np.rint((numbers - scale) / (high or 1.0))
        ).astype(np.uint8)
        values = base64.b64encode(_deflated(steps.tobytes())).decode()
        if len(values) <= room:
            table = [low * i for i in range(below + 1)] + [scale + high * i for i in range(1, levels - below)]
            return values, tuple(float(f"{x:.6g}") for x in table), low / 2, high / 2
    return None


def _deflated(steps: bytes) -> bytes:
    """The smaller of two compressions: repeats found (patterns with structure), or only frequencies (noise; faster too)."""
    found = []
    for level, strategy in ((6, zlib.Z_DEFAULT_STRATEGY), (9, zlib.Z_HUFFMAN_ONLY)):
        packer = zlib.compressobj(level, zlib.DEFLATED, zlib.MAX_WBITS, zlib.DEF_MEM_LEVEL, strategy)
        found.append(packer.compress(steps) + packer.flush())
    return min(found, key=len)
