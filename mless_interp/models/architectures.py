"""How Hugging Face decoders are built: looked up once in a model's modules, described by role, and stepped through."""

import inspect
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from .attention_math import fused, is_hooked, product
from .info import AttentionOutput, AttentionRule, Foreign, ModelInfo
from .traced_ops import Part, got, is_half, unembedded
from .weights import brought

ATTENTIONS = ("self_attn", "attn.attention", "attn", "attention", "self_attention")
MLP_PATHS = ("mlp", "block_sparse_moe")
INPUTS = {
    ("q_proj", "k_proj", "v_proj"): "apart",
    ("qkv_proj",): "in a row",
    ("c_attn",): "in a row",
    ("query_key_value",): "by group",
    ("q_proj", "kv_a_proj_with_mqa", "kv_a_layernorm", "kv_b_proj"): "latent",
    ("q_a_proj", "q_a_layernorm", "q_b_proj", "kv_a_proj_with_mqa", "kv_a_layernorm", "kv_b_proj"): "latent",
}
"""Projections to queries, keys and values, and how one that makes all three has them: all queries, then all keys, then all
values; or group by group its queries, its key, its value. "latent": see `LatentInputs`."""
INPUT_NORMS = {
    ("q_norm", "k_norm"): "before",
    ("q_layernorm", "k_layernorm"): "before",
    ("query_layernorm", "key_layernorm"): "after",
}
"""Norms of queries and keys, and whether they come before the rotation or after it (HunYuan)."""
OUTPUTS = ("o_proj", "out_proj", "c_proj", "dense")
MLPS = (
    ("gate_proj", "up_proj", "down_proj", "act_fn"),
    ("gate_up_proj", "gate_up_proj", "down_proj", "activation_fn"),
    (None, "c_fc", "c_proj", "act"),
    (None, "fc_in", "fc_out", "act"),
    (None, "dense_h_to_4h", "dense_4h_to_h", "act"),
    (None, "fc1", "fc2", "activation_fn"),
    (None, "up_proj", "down_proj", "act_fn"),
)
"""Gate (None: it has none), up, down and activation of an MLP; the same name twice makes both, the gate first."""
DECODERS = ("model", "transformer", "gpt_neox", "language_model", "decoder")
LAYERS, FINAL_NORMS = ("layers", "h"), ("norm", "ln_f", "final_layer_norm", "final_layernorm")
UNSCALED, SCALED_QUERIES = ("GPTNeoSelfAttention",), ("OPTAttention",)
"""Attention that scales no score, or scales its queries before they are asked for."""
ROTATED: dict[str, Callable[[Foreign], bool]] = {
    "SmolLM3Attention": lambda attention: bool(attention.use_rope),
    "Cohere2Attention": lambda attention: attention.sliding_window is not None,
    "Exaone4Attention": lambda attention: attention.sliding_window is None or attention.is_sliding,
}
"""Attention that rotates in some layers only, and whether it is one of these; every other rotates in all."""
PAIRED: dict[str, Callable[[Foreign], tuple[bool, bool]]] = {
    "DeepseekV2Attention": lambda attention: (True, True),
    **dict.fromkeys(
        ("DeepseekV3Attention", "Glm4MoeLiteAttention", "YoutuAttention"),
        lambda attention: (bool(attention.config.rope_interleave), False),
    ),
}
"""Latent attention that is known: whether what it turns together lies side by side, before it is turned and after it; else
half a width apart."""


@dataclass(frozen=True)
class Norms:
    """The names of a layer's norms by their place; None where it has none there.
    `parallel`: the MLP reads the layer's input, not what attention made of it."""

    before_attention: str | None = None
    after_attention: str | None = None
    before_mlp: str | None = None
    after_mlp: str | None = None
    parallel: bool = False

    @property
    def names(self) -> set[str]:
        return {name for name in vars(self).values() if isinstance(name, str)}


NORMS = (
    Norms("input_layernorm", before_mlp="post_attention_layernorm"),  # Llama, Qwen, Mistral, Phi-3, GPT-NeoX ...
    # Gemma 2 and 3
    Norms("input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm"),
    Norms("input_layernorm", before_mlp="pre_feedforward_layernorm"),  # VaultGemma
    Norms("attention_layernorm", before_mlp="feedforward_layernorm"),  # Apertus
    Norms("input_layernorm", "post_self_attn_layernorm", "post_attention_layernorm", "post_mlp_layernorm"),  # GLM 4
    Norms(after_attention="post_attention_layernorm", after_mlp="post_feedforward_layernorm"),  # OLMo 2 and 3
    Norms("input_layernorm", parallel=True),  # Cohere, Phi-2, Falcon 7B
    Norms("ln_1", before_mlp="ln_2"),  # GPT-2, GPT-Neo
    Norms("ln_1", parallel=True),  # GPT-J
    Norms("ln_attn", before_mlp="ln_mlp", parallel=True),  # Falcon 40B
    Norms("self_attn_layer_norm", before_mlp="final_layer_norm"),  # OPT
)
"""Known layouts; a layer has the one that has exactly its norms, as one name is different places in different layouts."""


@dataclass(frozen=True, eq=False)
class QueriesKeysValues:
    """How queries, keys and values are made: a projection each or one for all; norms before the rotation or `norms_last`."""

    paths: tuple[str, ...]
    projections: tuple[nn.Module, ...]
    layout: str
    norms: tuple[nn.Module, ...] | None
    norms_last: bool
    heads: ModelInfo

    def __call__(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return q `[..., H, d]`, k and v `[..., KV, d]` of a normed stream `[..., d_model]`, not rotated."""
        made = [linear(each, x) for each in self.projections]
        q, k, v = (got(self.part(which), made[which % len(made)]) for which in range(3))
        return *self.normed(q, k, last=False), v

    def normed(self, q: Tensor, k: Tensor, *, last: bool) -> tuple[Tensor, Tensor]:
        if self.norms is None or self.norms_last != last:
            return q, k
        return _normed(self.norms[0], q), _normed(self.norms[1], k)

    def path(self, which: int) -> str:
        """Return the path in the layer of what makes queries (0), keys (1) or values (2)."""
        return self.paths[which % len(self.paths)]

    def part(self, which: int) -> Part:
        """Return which part of what that gives they are."""
        h = self.heads
        if self.layout == "apart":
            return "heads", h.d_head
        group, n_kv = h.n_heads // h.n_key_value_heads, h.n_key_value_heads
        start, stop = ((0, group), (group, group + 1), (group + 1, group + 2))[which]
        if self.layout == "in a row":
            return "columns", start * n_kv * h.d_head, stop * n_kv * h.d_head, h.d_head
        return "grouped", n_kv, group + 2, h.d_head, start, stop


class LatentInputs(QueriesKeysValues):
    r"""Multi-head latent attention (DeepSeek-V2, arXiv:2405.04434): a latent vector c makes keys and values, n are norms.

    $$ (c, r) = W_{DKV}\, x, \qquad k_h = [W_{UK}^h\, n(c),\ R_p r], \qquad v_h = W_{UV}^h\, n(c) $$

    The end r of a key is every head's, and it alone is rotated, as is the end of a query. No module gives keys.
    """

    def __call__(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        *queries, down, norm, up = self.projections
        n_heads, q = self.heads.n_heads, x
        for each in queries:
            q = linear(each, q)
        latent, shared = linear(down, x).tensor_split([next(norm.parameters()).shape[0]], -1)
        own = linear(up, norm(latent)).unflatten(-1, (n_heads, -1))
        k, v = own[..., : -self.heads.d_head], own[..., -self.heads.d_head :]
        shared = shared[..., None, :].expand(*k.shape[:-1], -1)
        return q.unflatten(-1, (n_heads, -1)), torch.cat([k, shared], -1), v


def _normed(norm: nn.Module, x: Tensor) -> Tensor:
    if isinstance(getattr(norm, "norms", None), nn.ModuleList):  # StableLM: one per head, heads before tokens
        return norm(x.transpose(-3, -2)).transpose(-3, -2)
    if getattr(norm, "weight", x).shape[0] == x.shape[-2] * x.shape[-1]:  # OLMo 2: all heads together
        return norm(x.flatten(-2)).view_as(x)
    return norm(x)


@dataclass(frozen=True, eq=False)
class Mlp:
    """down(act(gate(x)) * up(x)), or down(act(up(x))) without a gate. Where one projection makes both, `gate` is `up`."""

    paths: tuple[str | None, str, str, str]
    gate: nn.Module | None
    up: nn.Module
    down: nn.Module
    act: nn.Module

    def __call__(self, x: Tensor) -> Tensor:
        act = self.act if is_hooked(self.act) else fused(self.act)
        up = linear(self.up, x)
        if self.gate is None:
            return linear(self.down, act(up))
        gate, up = up.chunk(2, -1) if self.gate is self.up else (linear(self.gate, x), up)
        return linear(self.down, act(gate) * up)


@dataclass(frozen=True, eq=False)
class DecoderLayer:
    """One layer's parts by role and path; None for what it has not, or under a name that is not known here. `mlp_path` is empty
    where the layer holds the parts of its MLP itself (OPT)."""

    module: nn.Module
    norms: Norms | None
    attention_path: str
    attention: nn.Module | None
    inputs: QueriesKeysValues | None
    output_path: str
    output: nn.Module | None
    mlp_path: str
    mlp: Mlp | None

    def norm(self, name: str | None) -> nn.Module:
        """Return the norm of that name; the identity for None."""
        return nn.Identity() if name is None else unwrapped(getattr(self.module, name))

    def norms_by_place(self) -> list[nn.Module]:
        """Return its norms before and after attention, before and after the MLP (in parallel without one, attention's)."""
        n = self.norms or Norms()
        before_mlp = n.before_mlp or (n.before_attention if self.parallel else None)
        return [self.norm(name) for name in (n.before_attention, n.after_attention, before_mlp, n.after_mlp)]

    @property
    def unknown(self) -> str | None:
        """What of it is not known here, if anything."""
        known = {
            "attention": self.attention,
            "projections to queries, keys and values": self.inputs,
            "output projection": self.output,
            "norms": self.norms,
            "MLP": self.mlp or self.mlp_path or None,
        }
        return next((what for what, part in known.items() if part is None), None)

    @property
    def parallel(self) -> bool:
        n = self.norms
        return n is not None and (n.parallel or bool(getattr(self.module, "use_parallel_residual", False)))

    @property
    def share(self) -> float:
        """What the layer multiplies all that it adds to the stream by (Granite)."""
        return float(getattr(self.module, "residual_multiplier", 1.0))

    def attention_output(self, heads: ModelInfo) -> AttentionOutput | None:
        """Return the output projection of its attention, where that is one matrix per head."""
        if self.norms is None or self.output is None:
            return None
        weight, bias = _matrix(self.output, heads.n_heads * heads.d_head)
        if weight.dim() != 2 or weight.shape[0] % heads.d_head:
            return None
        after = self.norms.after_attention  # not its hooks: it is asked in the middle of a run
        norm = None if after is None else self.norm(after).forward
        bias = None if bias is None else shared(bias, self.share)
        return AttentionOutput(shared(weight, self.share).unflatten(0, (-1, heads.d_head)), bias, norm)


def shared(x: Tensor, share: float) -> Tensor:
    """Multiply what a layer adds (see `DecoderLayer.share`)."""
    return x if share == 1.0 else x * share


def _matrix(module: Foreign, width: int) -> tuple[Tensor, Tensor | None]:
    """Return weights `[in, out]` and bias of a module that multiplies `width` numbers by a matrix, without its hooks."""
    with brought(module) as offloaded, torch.no_grad():
        if type(module) in (nn.Linear, Conv1D):
            kept = torch.clone if offloaded else Tensor.detach
            weight, bias = kept(module.weight), None if module.bias is None else kept(module.bias)
            return weight if type(module) is Conv1D else weight.T, bias
        # of an adapter that is not merged, or quantised, `weight` is a part or a code: what it makes of the identity
        held = [*module.parameters(), *module.buffers()]
        dtypes = [each.dtype for each in held if each.is_floating_point() and each.element_size() > 1]
        dtype = getattr(module, "compute_dtype", None) or next(iter(dtypes), torch.float32)
        device = next((each.device for each in held if not each.is_meta), "cpu")
        rows = torch.eye(1 + width, width, device=device, dtype=dtype).roll(1, 0)  # nothing, then the identity
        made = type(module).forward(module, rows)
        return made[1:] - made[0], made[0]


def unwrapped(module: Foreign) -> Foreign:
    """Return the Hugging Face module inside a TransformerBridge component (itself if it is none)."""
    while getattr(module, "original_component", None) is not None:
        module = module.original_component
    return module


def decoder_of(hf_model: nn.Module | None) -> Foreign:
    """Return the text decoder of a causal language model: the module that holds the decoder layers."""
    decoder = unwrapped(hf_model)
    while not any(hasattr(decoder, name) for name in LAYERS):
        inner = _first(decoder, DECODERS)[1]
        if inner is None:
            break
        decoder = inner
    return decoder


def decoder_layers(hf_model: nn.Module, heads: ModelInfo) -> tuple[DecoderLayer, ...]:
    """Describe the layers of a causal language model's decoder; none where it keeps them in another place."""
    made, decoder = [], decoder_of(hf_model)
    modules: Sequence[nn.Module] = next((getattr(decoder, name) for name in LAYERS if hasattr(decoder, name)), ())
    for module in map(unwrapped, modules):
        norms = {name for name, _ in module.named_children() if "norm" in name or name.startswith("ln_")}
        layout = next((known for known in NORMS if known.names == norms), None)
        if not getattr(module, "do_layer_norm_before", True):  # the smallest OPT norms after each part
            layout = None
        at, attention = _first(module, ATTENTIONS)
        output = _first(module, [f"{at}.{name}" for name in OUTPUTS])
        mlp_at, _ = _first(module, MLP_PATHS)
        inputs, mlp = _inputs(attention, at, heads), _mlp(module, f"{mlp_at}." if mlp_at else "")
        made.append(DecoderLayer(module, layout, at, attention, inputs, *output, mlp_at, mlp))
    return tuple(made)


def attention_rule_of(attention: nn.Module, *, d_head: int) -> AttentionRule:
    """Return scale, soft-cap and learned sinks of a Hugging Face attention module; the usual scale where it names none."""
    if type(attention).__name__ in (*UNSCALED, *SCALED_QUERIES):
        return AttentionRule(1.0)
    scale = getattr(attention, "scaling", None) or getattr(attention, "scale", None) or d_head**-0.5
    if hasattr(attention, "scale_attn"):  # GPT-J divides by it
        scale = 1 / float(attention.scale_attn)  # type: ignore[arg-type]
    with brought(attention) as offloaded:
        sinks = getattr(attention, "sinks", None)
        sinks = None if sinks is None else sinks.detach().clone() if offloaded else sinks.detach()
    return AttentionRule(float(scale), getattr(attention, "attn_logit_softcapping", None), sinks)


def _inputs(attention: nn.Module | None, path: str, heads: ModelInfo) -> QueriesKeysValues | None:
    for names, layout in INPUTS.items():
        projections = _parts(attention, *names)
        if projections is not None:
            norms = {kind: found for pair, kind in INPUT_NORMS.items() if (found := _parts(attention, *pair))}
            last, pair = next(iter(norms.items()), ("", None))
            made = LatentInputs if layout == "latent" else QueriesKeysValues
            return made(tuple(f"{path}.{name}" for name in names), projections, layout, pair, last == "after", heads)
    return None


def _mlp(layer: nn.Module, before: str) -> Mlp | None:
    for names in MLPS:
        paths: Foreign = tuple(name and before + name for name in names)
        found = _parts(layer, *filter(None, paths))
        if found is not None:
            return Mlp(paths, None if paths[0] is None else found[0], *found[-3:])
    return None


def _first(module: nn.Module, paths: Sequence[str]) -> tuple[str, nn.Module | None]:
    return next(((path, found) for path in paths if (found := _at(module, path)) is not None), ("", None))


def _at(module: Foreign, path: str) -> Foreign:
    for name in path.split("."):
        module = unwrapped(getattr(module, name, None))
    return module


def _parts(module: nn.Module | None, *names: str) -> tuple[nn.Module, ...] | None:
    found = tuple(_at(module, name) for name in names)
    return None if any(part is None for part in found) else found


class Positions:
    """How a decoder tells queries and keys where they are: rotated in each layer, or not at all (learned positions)."""

    def __init__(self, decoder: Foreign, attentions: Sequence[nn.Module]) -> None:
        self._rotary, self._attentions = unwrapped(getattr(decoder, "rotary_emb", None)), attentions
        self._config = decoder.config
        self.learned = any(hasattr(decoder, name) for name in ("wpe", "embed_positions"))
        first: Foreign = attentions[0]
        kind = type(first).__name__
        self._rotated = [ROTATED.get(type(each).__name__, lambda each: True)(each) for each in attentions]
        self._apply: Foreign = getattr(sys.modules[type(first).__module__], "apply_rotary_pos_emb", None)
        self._table = getattr(first, "embed_positions", None)  # GPT-J's, of whole positions
        self.adjacent = self._table is not None  # what is turned together lies side by side
        self.whole_only = self.learned or self._table is not None
        self._paired = PAIRED[kind](first) if kind in PAIRED else None
        widths = ("qk_rope_head_dim",) if self._paired else ("rotary_ndims", "rotary_dim")
        self.width: int | None = next((found for name in widths if (found := getattr(first, name, None))), None)
        self.prescaled = float(first.scaling) if kind in SCALED_QUERIES else 1.0
        self._by_type = "layer_type" in inspect.signature(type(self._rotary or nn.Module()).forward).parameters

    @classmethod
    def of(cls, hf_model: nn.Module | None, layers: Sequence[DecoderLayer]) -> "Positions | None":
        attentions: Foreign = [layer.attention for layer in layers]
        if not layers or None in attentions:
            return None
        found = cls(decoder_of(hf_model), attentions)
        rotated = (found._apply or found._paired) and (found._rotary is not None or found._table is not None)
        return found if rotated or found.learned else None

    def enter(
        self, layer: int, q: Tensor, k: Tensor, positions: Tensor, *, back: bool = False
    ) -> tuple[Tensor, Tensor]:
        """Return queries and keys `[rows, token, heads, d]` as they enter the scores; `back`: from there to before."""
        if self.prescaled != 1.0:
            q = q / self.prescaled if back else q * self.prescaled
        if self.learned or not self._rotated[layer]:
            return q, k
        cos, sin = self._tables(layer, q, positions)
        if back:
            size = cos * cos + sin * sin  # 1, but where a rule of scaling lengthens what it turns
            cos, sin = cos / size, -sin / size
        width = self.width or q.shape[-1]
        if self._paired:
            paired = self._paired[:: -1 if back else 1]
            q, k = (torch.cat([x[..., :-width], _turned(x[..., -width:], cos, sin, *paired)], -1) for x in (q, k))
            return q, k
        rests = [x[..., width:] for x in (q, k)]
        q, k = q[..., :width], k[..., :width]
        if self._table is not None:
            q, k = self._apply(q, sin, cos), self._apply(k, sin, cos)
        else:
            q, k = (x.transpose(1, 2) for x in self._apply(q.transpose(1, 2), k.transpose(1, 2), cos, sin))
        if rests[0].shape[-1]:
            q, k = (torch.cat(parts, -1) for parts in zip((q, k), rests, strict=True))
        return q, k

    def _tables(self, layer: int, like: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        if self._table is not None:
            of_layer: Foreign = self._attentions[layer]
            table = of_layer.embed_positions.to(like.device)[positions.to(like.device).long()]
            sin, cos = table.to(like.dtype).chunk(2, -1)
            return cos, sin
        kind = (self._config.layer_types[layer],) if self._by_type else ()
        shown = torch.empty(0, dtype=like.dtype, device=positions.device)  # it reads dtype and device
        tables = self._rotary(shown, positions, *kind)
        if isinstance(tables, Tensor):  # DeepSeek-V2's are complex
            tables = (torch.cat([part, part], -1) for part in (tables.real, tables.imag))
        cos, sin = tables
        return cos.to(like.device), sin.to(like.device)


def _turned(x: Tensor, cos: Tensor, sin: Tensor, before: bool, after: bool) -> Tensor:
    """Turn queries or keys `[rows, token, heads, d]`; whether what turns together lies side by side `before` and `after`."""
    x = x.unflatten(-1, (-1, 2)).transpose(-1, -2) if before else x.unflatten(-1, (2, -1))
    dtype = x.dtype
    first, second = x.to(cos.dtype).unbind(-2)  # DeepSeek-V2 turns in float32
    cos, sin = (table[..., None, : first.shape[-1]] for table in (cos, sin))
    made = torch.stack([first * cos - second * sin, second * cos + first * sin], -1 if after else -2)
    return made.flatten(-2).to(dtype)


def linear(module: Foreign, x: Tensor) -> Tensor:
    """Compute `module(x)`; of a plain linear layer, and of GPT-2's `Conv1D`, whose weight is transposed, by `product`."""
    turned = type(module) is Conv1D
    brings = "forward" in vars(module)  # accelerate's, where the weights are not here
    if brings or is_hooked(module) or torch.is_grad_enabled() or not (turned or type(module) is nn.Linear):
        return module(x.contiguous())  # Conv1D takes no other
    return product(x, module.weight.T if turned else module.weight, module.bias)


class HuggingFaceLayers:
    """Decoders whose layers are known part by part, plain or inside a TransformerBridge; each method: see `Layers`."""

    def __init__(self, hf_model: Foreign, layers: Sequence[DecoderLayer], positions: Positions, d_head: int) -> None:
        decoder = decoder_of(hf_model)
        self.n_layers = len(layers)
        self._layers, self._positions = layers, positions
        self._mlps = [layer.mlp or _at(layer.module, layer.mlp_path) for layer in layers]
        self._norms = [layer.norms_by_place() for layer in layers]
        self._rules = [attention_rule_of(layer.attention, d_head=d_head) for layer in layers if layer.attention]
        self._norm = _first(decoder, FINAL_NORMS)[1]
        self._unembed = unwrapped(hf_model.get_output_embeddings())
        self._softcap = getattr(decoder.config, "final_logit_softcapping", None)
        self._scale = getattr(hf_model, "logit_scale", None)
        if getattr(decoder.config, "logits_scaling", None):  # Granite divides by it
            self._scale = 1 / decoder.config.logits_scaling

    @classmethod
    def of(
        cls, hf_model: Foreign, layers: tuple[DecoderLayer, ...], positions: Positions | None, *, d_head: int
    ) -> "HuggingFaceLayers | None":
        """Take the decoder of a model; None for one of another build, which is then replayed by whole forward passes."""
        hf_model = unwrapped(hf_model)
        ends = _first(decoder_of(hf_model), FINAL_NORMS)[1], hf_model.get_output_embeddings()
        if None in ends or positions is None or any(layer.unknown for layer in layers):
            return None
        return cls(hf_model, layers, positions, d_head)

    def project(self, layer: int, resid: Tensor, positions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        inputs = self._layers[layer].inputs
        assert inputs is not None
        q, k, v = inputs(self._norms[layer][0](resid))
        return *inputs.normed(*self._positions.enter(layer, q, k, positions), last=True), v

    def rule(self, layer: int) -> AttentionRule:
        return self._rules[layer]

    def parallel(self, layer: int) -> bool:
        return self._layers[layer].parallel

    def attention_out(self, layer: int, z: Tensor) -> Tensor:
        wrote = self._norms[layer][1](linear(self._layers[layer].output, z.flatten(-2)))
        return shared(wrote, self._layers[layer].share)

    def mlp_out(self, layer: int, resid: Tensor) -> Tensor:
        _, _, before, after = self._norms[layer]
        wrote = self._mlps[layer](before(resid))
        wrote = wrote[0] if isinstance(wrote, tuple) else wrote  # experts give their router's scores too
        return shared(after(wrote), self._layers[layer].share)

    def unembed(self, resid: Tensor) -> Tensor:
        assert self._norm is not None
        if resid.dtype == torch.float32 and any(map(is_half, self._norm.parameters())):
            with brought(self._norm):  # its weights in the stream's precision
                wide = {name: weight.float() for name, weight in self._norm.named_parameters()}
            normed = torch.func.functional_call(self._norm, wide, (resid,))
        else:
            normed = self._norm(resid)
        logits = unembedded(self._unembed, normed)
        logits = linear(self._unembed, normed) if logits is None else logits
        logits = logits if self._scale is None else logits * self._scale
        return logits if self._softcap is None else torch.tanh(logits / self._softcap) * self._softcap
