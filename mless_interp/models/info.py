"""What is known of a loaded model: its geometry and origin, and how its layers make what no hook shows."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from torch import Tensor

from ..heads import Head


class ModelError(ValueError):
    """A model cannot be loaded, or does not do what its backend promises."""


class LeanAttentionError(ModelError):
    """Patterns or scores were asked of a model that runs fused attention, which never makes them."""


@dataclass(frozen=True)
class ModelInfo:
    """The geometry and origin of a loaded model; `windows[l]` is layer `l`'s sliding window in tokens, or None."""

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

    @property
    def heads(self) -> tuple[Head, ...]:
        """Every query head, layer by layer."""
        return tuple(Head(layer, head) for layer in range(self.n_layers) for head in range(self.n_heads))


@dataclass(frozen=True)
class AttentionRule:
    """How a layer makes a pattern from rotated q and k: softmax(softcap(q k^T * scale))."""

    scale: float
    softcap: float | None = None


@dataclass(frozen=True, eq=False)
class GatedMlp:
    """How a layer's gated MLP makes `hook_post`: activation(hook_pre) * hook_pre_linear + bias."""

    activation: Callable[[Tensor], Tensor]
    bias: Tensor | None = None


@dataclass(frozen=True, eq=False)
class AttentionOutput:
    """How a layer makes `hook_attn_out` of its head outputs: norm(sum over heads of z W_O + bias).

    `weights` is W_O per query head, `[head, d_head, d_model]`; `norm` is None but where the layer norms what attention
    writes before it is added (Gemma 2 and 3): heads add up before it, not after it.
    """

    weights: Tensor
    bias: Tensor | None = None
    norm: Callable[[Tensor], Tensor] | None = None

    def before_norm(self, z: Tensor) -> Tensor:
        """What all heads write together, `[..., d_model]`, of head outputs `[..., head, d_head]`."""
        wrote = z.flatten(-2) @ self.weights.to(z).flatten(0, 1)
        return wrote if self.bias is None else wrote + self.bias.to(z)
