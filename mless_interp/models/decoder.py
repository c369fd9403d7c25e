"""How Hugging Face decoders are built: looked up once in a model's modules, described by role, and stepped through.

The one place that asks the modules of another library what they have.
"""

import inspect
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from .info import AttentionOutput, AttentionRule, GatedMlp
from .unembedding import unembedded

# ------------------------------------------------------------------------------------------------- what its layers have


@dataclass(frozen=True)
class Norms:
    """The names of a layer's norms by their place; None where it has none there."""

    before_attention: str | None = None
    after_attention: str | None = None
    before_mlp: str | None = None
    after_mlp: str | None = None

    @property
    def names(self) -> set[str]:
        return {name for name in vars(self).values() if name is not None}


NORMS = {
    "Llama, Qwen2, Qwen3, Mistral, Gemma": Norms("input_layernorm", before_mlp="post_attention_layernorm"),
    "Gemma 2, Gemma 3": Norms(
        "input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm"
    ),
    "GLM 4": Norms("input_layernorm", "post_self_attn_layernorm", "post_attention_layernorm", "post_mlp_layernorm"),
    "OLMo 2, OLMo 3": Norms(after_attention="post_attention_layernorm", after_mlp="post_feedforward_layernorm"),
    "Cohere": Norms("input_layernorm"),
}
"""Known layouts. One name is different places in different ones, so a layer has a layout if it has exactly its norms."""


@dataclass(frozen=True, eq=False)
class QueriesKeysValues:
    """How Llama makes queries, keys and values: a projection each, a norm per head where there is one, a rotation."""

    q: nn.Module
    k: nn.Module
    v: nn.Module
    norms: tuple[nn.Module, nn.Module] | None
    rotate: Callable[..., tuple[Tensor, Tensor]]


@dataclass(frozen=True, eq=False)
class GatedLinears:
    """Llama's MLP: down(act(gate(x)) * up(x))."""

    gate: nn.Module
    up: nn.Module
    down: nn.Module
    act: nn.Module

    def __call__(self, x: Tensor) -> Tensor:
        return linear(self.down, self.act(linear(self.gate, x)) * linear(self.up, x))


@dataclass(frozen=True, eq=False)
class DecoderLayer:
    """One layer's parts by role; None for what it has not, or has in a build that is not known here."""

    module: nn.Module
    norms: Norms | None
    attention: nn.Module | None
    inputs: QueriesKeysValues | None
    output: nn.Module | None
    mlp: GatedLinears | None

    def norm(self, name: str | None) -> nn.Module:
        """The norm of that name; the identity for None."""
        return nn.Identity() if name is None else unwrapped(getattr(self.module, name))

    @property
    def gated_mlp(self) -> GatedMlp | None:
        """The gate of its MLP."""
        return None if self.mlp is None else GatedMlp(self.mlp.act.forward)  # not its hooks, as below

    def attention_output(self, *, d_head: int) -> AttentionOutput | None:
        """The output projection of its attention, where that is one matrix per head."""
        weight, bias = (getattr(self.output, name, None) for name in ("weight", "bias"))
        if self.norms is None or not isinstance(weight, Tensor) or weight.dim() != 2 or weight.shape[1] % d_head:
            return None
        after = self.norms.after_attention
        return AttentionOutput(
            weight.detach().T.unflatten(0, (-1, d_head)),
            None if bias is None else bias.detach(),
            None if after is None else self.norm(after).forward,  # not its hooks: it is asked in the middle of a run
        )


def unwrapped(module: Any) -> Any:
    """The Hugging Face module inside a TransformerBridge component (itself if it is none)."""
    while getattr(module, "original_component", None) is not None:
        module = module.original_component
    return module


def decoder_of(hf_model: nn.Module | None) -> Any:
    """The text decoder of a causal language model: the module that holds the decoder layers (None: there is no model)."""
    decoder = unwrapped(hf_model)
    for name in ("model", "language_model", "model"):
        inner = unwrapped(getattr(decoder, name, None))
        if inner is not None and not hasattr(decoder, "layers"):
            decoder = inner
    return decoder


def decoder_layers(hf_model: nn.Module) -> tuple[DecoderLayer, ...]:
    """The layers of a causal language model's decoder; none where it keeps them in another place."""
    return tuple(_described(unwrapped(layer)) for layer in getattr(decoder_of(hf_model), "layers", ()))


def attention_rule_of(attention: nn.Module, *, d_head: int) -> AttentionRule:
    """Scale and soft-cap of a Hugging Face attention module; the usual scale where it names none."""
    scale = getattr(attention, "scaling", None) or getattr(attention, "scale", None) or d_head**-0.5
    return AttentionRule(float(scale), getattr(attention, "attn_logit_softcapping", None))


def _described(module: nn.Module) -> DecoderLayer:
    norms = {name for name, _ in module.named_children() if "norm" in name}
    (attention,) = _parts(module, "self_attn") or (None,)
    (output,) = _parts(attention, "o_proj") or (None,)
    (mlp,) = _parts(module, "mlp") or (None,)
    linears = _parts(mlp, "gate_proj", "up_proj", "down_proj", "act_fn")
    return DecoderLayer(
        module,
        next((known for known in NORMS.values() if known.names == norms), None),
        attention,
        _inputs(attention),
        output,
        None if linears is None else GatedLinears(*linears),
    )


def _inputs(attention: nn.Module | None) -> QueriesKeysValues | None:
    projections = _parts(attention, "q_proj", "k_proj", "v_proj")
    rotate = getattr(sys.modules[type(attention).__module__], "apply_rotary_pos_emb", None)
    if projections is None or rotate is None:
        return None
    q, k, v = projections
    norms = _parts(attention, "q_norm", "k_norm")
    return QueriesKeysValues(q, k, v, None if norms is None else (norms[0], norms[1]), rotate)


def _parts(module: nn.Module | None, *names: str) -> tuple[nn.Module, ...] | None:
    """The submodules of these names; None where one is missing."""
    found = tuple(unwrapped(getattr(module, name, None)) for name in names)
    return None if any(part is None for part in found) else found


# ---------------------------------------------------------------------------------------------------- stepping through

_ONEDNN: Any = getattr(torch.ops.mkldnn, "_linear_pointwise", None)
"""oneDNN's float32 linear: up to twice as fast as the default one for the few hundred tokens of a pass."""


def linear(module: Any, x: Tensor) -> Tensor:
    """`module(x)`, for a plain linear layer in float32 on a CPU (without gradients) by oneDNN's product."""
    plain = type(module) is nn.Linear and not module._forward_hooks and not module._forward_pre_hooks
    on_cpu = x.device.type == "cpu" and x.dtype == torch.float32
    if _ONEDNN is None or not (plain and on_cpu) or torch.is_grad_enabled() or not torch.backends.mkldnn.is_available():
        return module(x)
    return _ONEDNN(x, module.weight, module.bias, "none", [], "")


@dataclass(frozen=True, eq=False)
class LlamaLayer:
    """A layer all of whose parts are known: what `HuggingFaceLayers` steps through."""

    inputs: QueriesKeysValues
    output: nn.Module
    mlp: GatedLinears
    before_attention: nn.Module
    after_attention: nn.Module
    before_mlp: nn.Module
    after_mlp: nn.Module
    rule: AttentionRule

    @classmethod
    def of(cls, layer: DecoderLayer, *, d_head: int) -> "LlamaLayer | None":
        """The layer, or None where a part is missing or is built otherwise."""
        norms = layer.norms
        if layer.attention is None or layer.inputs is None or layer.output is None or layer.mlp is None:
            return None
        if norms is None or norms.before_attention is None or norms.before_mlp is None:
            return None
        return cls(
            inputs=layer.inputs,
            output=layer.output,
            mlp=layer.mlp,
            before_attention=layer.norm(norms.before_attention),
            after_attention=layer.norm(norms.after_attention),
            before_mlp=layer.norm(norms.before_mlp),
            after_mlp=layer.norm(norms.after_mlp),
            rule=attention_rule_of(layer.attention, d_head=d_head),
        )


class HuggingFaceLayers:
    """Llama-style decoders (Llama, Qwen2, Qwen3, Mistral, Gemma 1 to 3), plain or inside a TransformerBridge."""

    def __init__(self, hf_model: nn.Module, layers: Sequence[LlamaLayer], *, d_head: int) -> None:
        self.n_layers = len(layers)
        self._layers, self._d_head = layers, d_head
        decoder = decoder_of(hf_model)
        self._config, self._norm, self._rotary = decoder.config, unwrapped(decoder.norm), unwrapped(decoder.rotary_emb)
        self._unembed = unwrapped(unwrapped(hf_model).lm_head)
        self._softcap = getattr(decoder.config, "final_logit_softcapping", None)
        self._by_type = "layer_type" in inspect.signature(type(self._rotary).forward).parameters

    @classmethod
    def of(cls, hf_model: nn.Module, parts: tuple[DecoderLayer, ...], *, d_head: int) -> "HuggingFaceLayers | None":
        """The decoder of a model; None for one of another build, which is then replayed by whole forward passes."""
        known = [layer for layer in (LlamaLayer.of(part, d_head=d_head) for part in parts) if layer is not None]
        ends = _parts(decoder_of(hf_model), "norm", "rotary_emb"), _parts(unwrapped(hf_model), "lm_head")
        return cls(hf_model, known, d_head=d_head) if parts and len(known) == len(parts) and all(ends) else None

    def project(self, layer: int, resid: Tensor, positions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values; see `Layers`."""
        at = self._layers[layer]
        h = at.before_attention(resid)
        q, k, v = (
            linear(each, h).view(*h.shape[:-1], -1, self._d_head) for each in (at.inputs.q, at.inputs.k, at.inputs.v)
        )
        if at.inputs.norms is not None:
            q, k = at.inputs.norms[0](q), at.inputs.norms[1](k)
        kind = (self._config.layer_types[layer],) if self._by_type else ()
        cos, sin = self._rotary(resid, positions, *kind)
        q, k = at.inputs.rotate(q.transpose(1, 2), k.transpose(1, 2), cos, sin)
        return q.transpose(1, 2), k.transpose(1, 2), v

    def rule(self, layer: int) -> AttentionRule:
        """Scale and soft-cap; see `Layers`."""
        return self._layers[layer].rule

    def finish(self, layer: int, resid: Tensor, z: Tensor) -> Tensor:
        """The residual stream after the layer; see `Layers`."""
        at = self._layers[layer]
        resid = resid + at.after_attention(linear(at.output, z.flatten(-2)))
        return resid + at.after_mlp(at.mlp(at.before_mlp(resid)))

    def unembed(self, resid: Tensor) -> Tensor:
        """Logits; see `Layers`."""
        normed = self._norm(resid)
        logits = unembedded(self._unembed, normed)
        logits = linear(self._unembed, normed) if logits is None else logits
        return logits if self._softcap is None else torch.tanh(logits / self._softcap) * self._softcap
