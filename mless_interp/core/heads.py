"""One attention head, named once and for all with zero-based numbers."""

import operator
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import SupportsIndex

from .arguments import checked

_LABEL = re.compile(r"^\s*L?(\d+)\s*(?:H|:|\.|,)\s*(\d+)\s*$", re.IGNORECASE)


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
            if isinstance(value, bool) or not isinstance(value, SupportsIndex):
                raise TypeError(f"{name} must be a whole number (zero-based), got {value!r} ({type(value).__name__})")
            object.__setattr__(self, name, operator.index(value))  # numpy's whole numbers too
            if value < 0:
                raise ValueError(
                    f"{name} must be 0 or more (zero-based), got {value}; for the paper's one-based numbers use "
                    "Head.from_paper(layer=..., head=...)"
                )

    @classmethod
    @checked
    def from_paper(cls, *, layer: int, head: int) -> "Head":
        """The head that the paper calls "Layer `layer` Head `head`" (both one-based)."""
        if layer < 1 or head < 1:
            raise ValueError(f"the paper's numbers are one-based: layer {layer}, head {head} do not exist there")
        return cls(layer - 1, head - 1)

    @classmethod
    @checked
    def parse(cls, text: str) -> "Head":
        """Read `0:13` or `L0H13` (zero-based).

        >>> Head.parse("0:13"), Head.parse("L2H5")
        (L0H13, L2H5)
        """
        match = _LABEL.match(text)
        if not match:
            raise ValueError(
                f"cannot read {text!r} as a head: write LAYER:HEAD, for example 0:13, or L0H13 (both zero-based)"
            )
        return cls(int(match.group(1)), int(match.group(2)))

    @property
    def paper_label(self) -> str:
        """The one-based name used in the paper's figure titles."""
        return f"layer {self.layer + 1} head {self.head + 1}"

    def __str__(self) -> str:
        return f"L{self.layer}H{self.head}"

    __repr__ = __str__


def as_head(head: "Head | str") -> Head:
    """A head, or the one that a label names, `"L0H13"` or `"0:13"` (zero-based).

    >>> as_head("L0H13"), as_head(Head(0, 13))
    (L0H13, L0H13)
    """
    if isinstance(head, str):
        return Head.parse(head)
    if not isinstance(head, Head):
        raise TypeError(f'expected a Head, got {head!r}; write Head(layer, head) or "L0H13" (zero-based)')
    return head


def as_heads(heads: "Iterable[Head | str]") -> tuple[Head, ...]:
    """Heads and labels of heads as heads, in their order.

    >>> as_heads(["L0H13", Head(1, 4)])
    (L0H13, L1H4)
    """
    if isinstance(heads, Head | str):
        raise TypeError(f'heads are several: write heads=["{heads}"], got {heads!r}')
    return tuple(map(as_head, heads))


def check_heads(heads: Iterable[Head | str], *, n_layers: int, n_heads: int) -> tuple[Head, ...]:
    """The heads as a tuple, each inside the model and none twice; errors name the offender (zero-based).

    Labels of heads are taken for heads.
    """
    checked: list[Head] = []
    for head in as_heads(heads):
        if head.layer >= n_layers:
            raise ValueError(
                f"{head}: layer {head.layer} is out of range (zero-based): the model has layers 0 to {n_layers - 1}"
            )
        if head.head >= n_heads:
            raise ValueError(
                f"{head}: head {head.head} is out of range (zero-based): the model has query heads 0 to {n_heads - 1}"
            )
        if head in checked:
            raise ValueError(f"{head} is given twice")
        checked.append(head)
    return tuple(checked)
