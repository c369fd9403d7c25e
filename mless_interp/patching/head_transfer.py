"""Apply the effect of a span on heads to prompts without the span: z <- lambda z + Sigma."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..core.arguments import listed
from ..core.heads import Head
from ..metrics.patterns import widened
from ..models.base import Model
from ..prompts.insertions import Insertion
from ..prompts.prompt import Prompt

AT = "before", "after", "at"
"""The arguments of an insertion that give its place."""


@dataclass(frozen=True, eq=False)
class HeadTransfer:
    r"""Outputs of heads moved as a span would move them, in prompts without it.

    $$ z_i \leftarrow \lambda z_i + \Sigma $$

    for every token from the place of the insertion (`place`: its `before`, `after`, `at`) on. `lam` `[head, row]` and `sigma`
    `[head, row, d_head]`: one row for every token (means), or one for each of the tokens that are moved.
    """

    heads: tuple[Head, ...]
    lam: np.ndarray
    sigma: np.ndarray
    insertion: str = ""
    place: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        n = len(set(self.heads))
        if self.lam.shape[:1] != (n,) or self.sigma.shape[:2] != self.lam.shape or self.sigma.ndim != 3:
            raise ValueError(
                f"lam must be [head, row] and sigma [head, row, d_head] of {n} heads, got {list(self.lam.shape)} and "
                f"{list(self.sigma.shape)}"
            )

    @property
    def layers(self) -> tuple[int, ...]:
        """The layers in which heads are moved."""
        return tuple(sorted({head.layer for head in self.heads}))

    @property
    def label(self) -> str:
        """A short name: `L0H2, L0H5 moved as by Mless ' /' x20`."""
        return f"{listed(self.heads, 4) or 'no head'} moved as by {self.insertion or 'an insertion'}"

    def moved(self, z: Tensor, layer: int) -> Tensor:
        """Head outputs `[..., token, head, d_head]` of a layer, those of these heads moved; not computed in half precision."""
        at = [number for number, head in enumerate(self.heads) if head.layer == layer]
        if not at:
            return z
        numbers, wide = [self.heads[number].head for number in at], widened(z)
        lam, sigma = (torch.from_numpy(each[at]).to(wide).movedim(0, 1) for each in (self.lam, self.sigma))
        new = z.clone()
        new[..., numbers, :] = (lam[..., None] * wide[..., numbers, :] + sigma).to(z.dtype)
        return new

    def start(self, prompt: Prompt) -> int:
        """From which token of a prompt without the insertion on heads are moved; its length: only what is answered is."""
        return Insertion.meaningless(**self.place).places(prompt)[0]

    def check(self, model: Model) -> None:
        """`ValueError` unless this model has these heads and any token can be moved alike."""
        model.info.chosen(self.heads, what="move")
        if self.lam.shape[1] != 1:
            raise ValueError(
                f"lam and sigma have {self.lam.shape[1]} rows, one for each token of one prompt; what is answered has "
                "more: give one row, their mean"
            )
        if self.sigma.shape[-1] != model.info.d_head:
            raise ValueError(
                f"the transfer is of heads of width {self.sigma.shape[-1]}, those of {model.info.name} have "
                f"{model.info.d_head}: measure it on this model"
            )

    def record(self) -> dict[str, Any]:
        """Everything that identifies it, ready for JSON."""
        digest = hashlib.sha256(self.lam.tobytes() + self.sigma.tobytes()).hexdigest()[:16]
        place = {name: self.place.get(name) for name in AT}
        return {"heads": [str(head) for head in self.heads], "insertion": self.insertion, "digest": digest, **place}
