"""What goes into a model and what comes out, and what is known of one: its geometry, its checks, its layers' rules."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from ..core.heads import Head, check_heads
from ..runtime.folders import savable

Foreign = Any  # an object of a library that ships no types: TransformerLens', nnsight's, Hugging Face's


class ModelError(ValueError):
    """A model cannot be loaded, or does not do what its backend promises."""


@savable
@dataclass(frozen=True)
class ModelInfo:
    """The geometry and origin of a loaded model; `windows[l]` is layer `l`'s sliding window in tokens, or None.

    `loaded_from`: the name by which the weights can be loaded again, if any. `weights_hash`, `config_hash`: of when they were
    loaded, the weights as Hugging Face has them in this dtype; None where they are not here. `n_classes`: how many classes it
    gives, where these are no tokens; answers are then classes. `d_key`, `d_cached`: as `n_cached`, of latent attention alone.
    """

    name: str
    backend: str
    architecture: str
    n_layers: int
    n_heads: int
    n_key_value_heads: int
    d_head: int
    d_model: int
    d_mlp: int | None
    d_vocab: int
    context_length: int
    windows: tuple[int | None, ...]
    dtype: str
    device: str
    attention: str
    versions: Mapping[str, str] = field(default_factory=dict)
    loaded_from: str | None = None
    weights_hash: str | None = None
    config_hash: str | None = None
    n_classes: int | None = None
    d_key: int | None = None
    d_cached: int | None = None

    @property
    def n_cached(self) -> int:
        """Numbers that a cache holds of a token in a layer (`d_key`: the width of queries and keys)."""
        return self.d_cached or 2 * self.n_key_value_heads * self.d_head

    @property
    def heads(self) -> tuple[Head, ...]:
        """Every query head, layer by layer."""
        return tuple(Head(layer, head) for layer in range(self.n_layers) for head in range(self.n_heads))

    def chosen(
        self, heads: Iterable[Head | str] | None = None, layers: Iterable[int] | None = None, *, what: str
    ) -> tuple[Head, ...]:
        """Return the heads asked for, by themselves or by layer (zero-based), in range and none twice; all for neither.
        `what` is done with them, for the error where there are none."""
        if heads is not None and layers is not None:
            raise ValueError("give heads or layers, not both")
        if layers is not None:
            of = {self.check_layer(layer) for layer in layers}
            heads = [head for head in self.heads if head.layer in of]
        chosen = check_heads(self.heads if heads is None else heads, n_layers=self.n_layers, n_heads=self.n_heads)
        if not chosen:
            raise ValueError(f"no {'heads' if layers is None else 'layers'} to {what}: name at least one")
        return chosen

    def mask_of(self, heads: Iterable[Head]) -> np.ndarray:
        """Return which heads these are, boolean `[layer, head]`."""
        mask = np.zeros((self.n_layers, self.n_heads), dtype=bool)
        for head in heads:
            mask[head.layer, head.head] = True
        return mask

    def check_layer(self, layer: int) -> int:
        """Return a layer of this model (zero-based); `ValueError` for one that is not there."""
        if not 0 <= layer < self.n_layers:
            raise ValueError(f"layer {layer} is out of range (zero-based): 0 to {self.n_layers - 1}")
        return layer


BY_LAYERS = "layer by layer"


@savable
@dataclass(frozen=True, repr=False)
class ModelChecks:
    """The figures of the self-check at loading, and what it found the model able to do; they travel with every saved result.

    Largest differences: of a row's sum from 1 (`row_sum_error`); of logits from the plain Hugging Face pass; of the gap from
    the masked condition; of a replay from a whole pass; of heads' outputs from those of entering queries and keys
    (`entering_error`; `entering` says why these cannot be had); of what attention adds from z W_O + b (`output_error`).
    `resolution`: twice the root mean square of what rounding did to a token's log-probability, in nats. None: does not apply,
    or was not measured. `reach`: tokens of the longest prompt that was checked.
    """

    largest_logit: float
    row_sum_error: float | None
    logits_difference: float | None
    gap_difference: float | None
    replay_difference: float | None
    tolerance: float
    replay: str
    shows_rotated: bool = True
    entering_error: float | None = None
    entering: str = ""
    resolution: float | None = None
    output_error: float | None = None
    reach: int = 12

    @property
    def by_layers(self) -> bool:
        """Whether runs may be continued layer by layer."""
        return self.replay == BY_LAYERS

    def on_longer(self, model: Foreign, n_tokens: int) -> "ModelChecks":
        """Return the figures of a model once its masks and its replay were checked on so many tokens."""
        raise NotImplementedError

    def __repr__(self) -> str:
        found = {name: getattr(self, f"{name}_difference") for name in ("logits", "gap", "replay")}
        known = ", ".join(f"{name} difference {value:.1e}" for name, value in found.items() if value is not None)
        return f"ModelChecks({known}; tolerance {self.tolerance:.1e}, {self.replay})"


@dataclass(frozen=True)
class AttentionRule:
    """How a layer makes a pattern from rotated q and k: softmax(softcap(q k^T * scale)).
    `sinks` `[head]`: learned logits that join each head's softmax and are dropped (GPT-OSS), as one more key of value 0."""

    scale: float
    softcap: float | None = None
    sinks: Tensor | None = field(default=None, compare=False)

    def of(self, head: int) -> "AttentionRule":
        """Return the rule of one head alone."""
        return self if self.sinks is None else replace(self, sinks=self.sinks[head : head + 1])

    @property
    def n_extra(self) -> int:
        """How many keys there are beside the tokens."""
        return 0 if self.sinks is None else 1

    @property
    def column(self) -> Tensor | None:
        """The sinks' logits as a column beside scores `[..., head, dest, src]`."""
        return None if self.sinks is None else self.sinks[:, None, None]


@dataclass(frozen=True, eq=False)
class GatedMlp:
    """How a layer's MLP makes `hook_post`: activation(hook_pre) * hook_pre_linear + bias; without a gate activation(hook_pre)
    (our extension of the paper's form)."""

    activation: Callable[[Tensor], Tensor]
    bias: Tensor | None = None
    gated: bool = True


@dataclass(frozen=True, eq=False)
class AttentionOutput:
    """How a layer makes `hook_attn_out` of its head outputs: norm(sum over heads of z W_O + bias); most have no norm.
    `weights` is W_O per query head, `[head, d_head, d_model]`, times what the layer multiplies it by (Granite)."""

    weights: Tensor
    bias: Tensor | None = None
    norm: Callable[[Tensor], Tensor] | None = None

    def change(self, z: Tensor, head: int, change: Tensor) -> Tensor:
        r"""Return by how much what is added to the stream changes, `[..., d_model]`, as one head's output `[..., d_head]` does.

        $$ \Delta_h = \Delta z_h W_O^h, \qquad \text{with a norm } n: \quad
           \Delta_h = n\Big(\sum_i z_i W_O^i + b_O + \Delta z_h W_O^h\Big) - n\Big(\sum_i z_i W_O^i + b_O\Big) $$
        """
        wrote = change @ self.weights[head].to(change)
        if self.norm is None:
            return wrote
        before = self.before_norm(z)
        return self.norm(before + wrote) - self.norm(before)

    def before_norm(self, z: Tensor) -> Tensor:
        """Return what all heads write together, `[..., d_model]`, of head outputs `[..., head, d_head]`."""
        wrote = z.flatten(-2) @ self.weights.to(z).flatten(0, 1)
        return wrote if self.bias is None else wrote + self.bias.to(z)


Reducer = Callable[[Tensor], Foreign] | None
"""What to keep of an activation, computed inside the forward pass; None keeps all of it."""
Edit = Callable[[Tensor], Tensor]  # a pure function from an activation to the one that takes its place
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
        if self.keep is not None:
            self.keep(value if self.reduce is None else self.reduce(value))

    @classmethod
    def both(cls, first: "Tap", then: "Tap") -> "Tap":
        """Return two taps of one activation as one, in this order."""

        def show(value: Tensor) -> None:
            first.show(value)
            then.show(value)

        return cls(keep=show) if first.edit is None and then.edit is None else cls(lambda value: then(first(value)))


Taps = Mapping[str, Tap]  # what a run does, by hook name
Masks = tuple[Tensor, ...] | None  # each layer's visibility `[b, 1|H, T, T]`; None for plain causal attention


@dataclass(frozen=True, eq=False)
class Inputs:
    """One model input: token ids with the positions and visibility that a condition gives them.

    `tokens` `[batch, token]`; `position_ids` `[batch, token]` (None: 0, 1, 2, ...); `attention_mask` boolean `[batch, 1 or
    head, dest, src]`, True = visible, ANDed with causality and each layer's window (None: these alone).
    """

    tokens: Tensor
    position_ids: Tensor | None = None
    attention_mask: Tensor | None = None

    @classmethod
    def stacked(cls, inputs: Sequence["Inputs"]) -> "Inputs":
        """Put inputs of equal length and kind into one batch."""
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

    def to(self, device: torch.device | str) -> "Inputs":
        return self._each(lambda x: x.to(device))

    def repeated(self, rows: int) -> "Inputs":
        """Return every prompt of the batch `rows` times, one beside the other."""
        return self._each(lambda x: x.repeat_interleave(rows, 0) if len(x) == self.batch else x)

    def _each(self, change: Callable[[Tensor], Tensor]) -> "Inputs":
        return replace(self, **{name: change(value) for name, value in vars(self).items() if value is not None})


@dataclass(frozen=True, eq=False)
class Run:
    """What a forward pass gave: `logits` `[batch, read, vocab]` (None if not asked for) and `captured[hook name]`."""

    logits: Tensor | None
    captured: dict[str, Foreign]


@dataclass(frozen=True, eq=False)
class Recording:
    """Everything of a run that a replay from position `start` on needs, per layer.

    `resid_pre`, `q`, `z` hold the positions from `start` on: `[batch, changed, ...]`; `k` (rotated) and `v` every position:
    `[batch, token, kv_head, d_head]`; `masks` the boolean visibility `[batch, 1|head, changed, token]`. All but z and masks are
    empty where the backend does not show rotated queries and keys.
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
