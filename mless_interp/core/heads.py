"""One attention head, named once and for all with zero-based numbers."""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from .arguments import as_annotated, checked


@dataclass(frozen=True, order=True)
class Head:
    """A query head of one layer, both numbers zero-based.

    The paper (arXiv 2510.01032) counts from one: its "Layer 1 Head 14" is `Head(0, 13)`. Only `Head.from_paper` and
    columns named `paper_*` ever hold one-based numbers.

    >>> Head(0, 13)
    L0H13
    >>> Head.from_paper(layer=1, head=14) == Head(0, 13)
    True
    >>> sorted([Head(1, 0), Head(0, 21)])
    [L0H21, L1H0]
    """

    layer: int
    head: int

    def __post_init__(self) -> None:
        for name, value in (("layer", self.layer), ("head", self.head)):
            whole = as_annotated(value, int, name)  # numpy's too
            if whole < 0:
                raise ValueError(
                    f"{name} must be 0 or more (zero-based), got {whole}; for the paper's one-based numbers use "
                    "Head.from_paper(layer=..., head=...)"
                )
            object.__setattr__(self, name, whole)

    @classmethod
    @checked
    def from_paper(cls, *, layer: int, head: int) -> "Head":
        """Return the head that the paper calls "Layer `layer` Head `head`" (both one-based)."""
        if layer < 1 or head < 1:
            raise ValueError(f"the paper's numbers are one-based: layer {layer}, head {head} do not exist there")
        return cls(layer - 1, head - 1)

    @classmethod
    @checked
    def parse(cls, text: str) -> "Head":
        """Read `0:13` or `L0H13` (zero-based)."""
        match = re.match(r"^\s*L?(\d+)\s*[H:.,]\s*(\d+)\s*$", text, re.IGNORECASE)
        if not match:
            meant = "write LAYER:HEAD, for example 0:13, or L0H13 (both zero-based)"
            raise ValueError(f"cannot read {text!r} as a head: {meant}")
        return cls(int(match[1]), int(match[2]))

    @property
    def paper_label(self) -> str:
        """The one-based name used in the paper's figure titles."""
        return f"layer {self.layer + 1} head {self.head + 1}"

    def __str__(self) -> str:
        return f"L{self.layer}H{self.head}"

    __repr__ = __str__


def as_head(head: Head | str) -> Head:
    """Return a head, or the one that a label names, `"L0H13"` or `"0:13"` (zero-based)."""
    return head if isinstance(head, Head) else Head.parse(head)


def as_heads(heads: Iterable[Head | str]) -> tuple[Head, ...]:
    """Return heads and labels of heads as heads, in their order."""
    return tuple(map(as_head, heads))


def check_heads(heads: Iterable[Head | str], *, n_layers: int, n_heads: int) -> tuple[Head, ...]:
    """Return heads (or their labels) as a tuple, each inside the model and none twice; errors name the offender."""
    found = as_heads(heads)
    for at, head in enumerate(found):
        for what, n, k in (("layer", n_layers, head.layer), ("query head", n_heads, head.head)):
            if k >= n:
                raise ValueError(f"{head}: {what} {k} is out of range (zero-based): the model has {what}s 0 to {n - 1}")
        if head in found[:at]:
            raise ValueError(f"{head} is given twice")
    return found
