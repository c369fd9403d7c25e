"""What goes into a model and what comes out: inputs, runs, recordings."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from .info import Foreign

Reducer = Callable[[Tensor], Foreign] | None
"""What to keep of an activation, computed inside the forward pass; None keeps all of it."""
Edit = Callable[[Tensor], Tensor]
"""A pure function from an activation to the one that takes its place."""
LogitsAt = Literal["all", "last", "none"] | Sequence[int] | Tensor


@dataclass(frozen=True, eq=False)
class Tap:
    """What a run does at one site: the edit, then `keep` is shown what came of it, or what `reduce` (there) makes of that."""

    edit: Edit | None = None
    keep: Callable[[Tensor], None] | None = None
    reduce: Callable[[Tensor], Tensor] | None = None

    def __call__(self, value: Tensor) -> Tensor:
        value = value if self.edit is None else self.edit(value)
        self.show(value)
        return value

    def show(self, value: Tensor) -> None:
        """Show `keep` an activation, or what `reduce` makes of it."""
        if self.keep is not None:
            self.keep(value if self.reduce is None else self.reduce(value))

    @classmethod
    def both(cls, first: "Tap", then: "Tap") -> "Tap":
        """Return two taps of one activation as one, in this order."""

        def show(value: Tensor) -> None:
            first.show(value)
            then.show(value)

        looks = first.edit is None and then.edit is None
        return cls(keep=show) if looks else cls(lambda value: then(first(value)))


Taps = Mapping[str, Tap]
"""What a run does, by hook name."""
Masks = tuple[Tensor, ...] | None
"""Each layer's visibility `[b, 1|H, T, T]`; None for plain causal attention."""


@dataclass(frozen=True, eq=False)
class Inputs:
    """One model input: token ids with the positions and visibility that a condition gives them.

    `tokens` `[batch, token]`; `position_ids` `[batch, token]` (None: 0, 1, 2, ...); `attention_mask` boolean
    `[batch, 1 or head, dest, src]`, True = visible (None: causal only).
    """

    tokens: Tensor
    position_ids: Tensor | None = None
    attention_mask: Tensor | None = None

    @classmethod
    def stacked(cls, inputs: Sequence["Inputs"]) -> "Inputs":
        """Inputs of equal length and kind as one batch."""
        parts = zip(*((each.tokens, each.position_ids, each.attention_mask) for each in inputs), strict=True)
        return cls(*(None if part[0] is None else torch.cat(part) for part in parts))  # type: ignore[arg-type]

    @property
    def batch(self) -> int:
        return self.tokens.shape[0]

    @property
    def n_tokens(self) -> int:
        return self.tokens.shape[-1]

    @property
    def plain(self) -> bool:
        """Nothing but causal attention at positions 0, 1, 2, ..."""
        return self.position_ids is None and self.attention_mask is None

    @property
    def positions(self) -> Tensor:
        """Position ids `[batch, token]` as numbers."""
        if self.position_ids is not None:
            return self.position_ids
        return torch.arange(self.n_tokens, device=self.tokens.device).expand(self.tokens.shape)

    @property
    def unmasked(self) -> "Inputs":
        """The same tokens at the same positions, without the mask."""
        return Inputs(self.tokens, self.position_ids)

    def to(self, device: torch.device | str) -> "Inputs":
        """Return the same input on another device."""
        return self._each(lambda x: x.to(device))

    def repeated(self, rows: int) -> "Inputs":
        """Return every prompt of the batch `rows` times, one beside the other."""
        return self._each(lambda x: x.repeat_interleave(rows, 0) if len(x) == self.batch else x)

    def _each(self, change: Callable[[Tensor], Tensor]) -> "Inputs":
        known = lambda x: None if x is None else change(x)  # noqa: E731
        return Inputs(change(self.tokens), known(self.position_ids), known(self.attention_mask))


@dataclass(frozen=True, eq=False)
class Run:
    """What a forward pass gave: `logits` `[batch, read, vocab]` (None if not asked for) and `captured[hook name]`."""

    logits: Tensor | None
    captured: dict[str, Foreign]


@dataclass(frozen=True, eq=False)
class Recording:
    """Everything of a run that a replay from position `start` on needs, per layer.

    `resid_pre`, `q`, `z` hold the positions from `start` on: `[batch, changed, ...]`; `k` (rotated) and `v` every position:
    `[batch, token, kv_head, d_head]`; `masks` the boolean visibility `[batch, 1|head, changed, token]`. Where the backend does
    not show rotated queries and keys, `resid_pre`, `q`, `k` and `v` are empty and a replay runs whole forward passes.
    """

    inputs: Inputs
    start: int
    logits: Tensor | None
    resid_pre: tuple[Tensor, ...]
    q: tuple[Tensor, ...]
    k: tuple[Tensor, ...]
    v: tuple[Tensor, ...]
    z: tuple[Tensor, ...]
    masks: tuple[Tensor, ...]

    @property
    def n_tokens(self) -> int:
        return self.inputs.n_tokens
