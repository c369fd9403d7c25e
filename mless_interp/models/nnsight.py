"""nnsight 0.8 (local, several devices by device_map, NDIF by `remote`) behind the seam.

The only file that imports nnsight. Attention internals are operations inside the module's source; their labels depend
on library versions, so they are found by what they carry (shapes, row sums, an edit that the heads' outputs obey).
"""

import copy
from collections.abc import Callable
from functools import partial
from operator import attrgetter
from typing import Any, NamedTuple

import nnsight
import torch
from torch import Tensor

from .arithmetic import values_of_heads
from .decoder import DecoderLayer, Geometry, Mlp, layer_modules
from .entering import mixed_taps
from .hugging_face import HuggingFaceModel, additive_mask, has_own_window, own_windows_lifted
from .info import ModelError
from .inputs import Inputs, Taps
from .loaded_weights import device_of
from .sites import SITES, site
from .unembedding import unembedded

_PROBE = 7  # tokens of the prompt on which the operations are found


def wrapped(hf_model: Any, tokenizer: Any) -> Any:
    """An nnsight model around a loaded Hugging Face model, with a tokenizer of its own: it sets the side of its padding."""
    places = getattr(hf_model, "hf_device_map", None)
    if places:  # a pipeline takes the first for a device, which the disk is not
        hf_model.hf_device_map = dict(sorted(places.items(), key=lambda place: place[1] == "disk"))
    device = {} if places else {"device": hf_model.device}  # else it is moved to a GPU
    kind = _Brought if hf_model.device.type == "meta" else nnsight.TransformersModel
    return kind(hf_model, tokenizer=copy.deepcopy(tokenizer), task="text-generation", **device)


class _Brought(nnsight.TransformersModel):
    """A model whose embedding is brought for each pass: nnsight would send its tokens to where its first weight waits."""

    @property
    def device(self) -> torch.device:
        return device_of(self._module)


class NnsightModel(HuggingFaceModel):
    """A causal language model traced with nnsight."""

    def __init__(self, traced: Any, *, name: str, tokenizer: Any = None, remote: bool | str = False) -> None:
        hf_model = traced._module
        super().__init__(
            traced,
            hf_model,
            name=name,
            tokenizer=tokenizer if tokenizer is not None else traced.tokenizer,
            backend="nnsight",
            library="nnsight",
            attention=hf_model.config.get_text_config()._attn_implementation or "eager",
            remote=remote,
        )
        info = self.info
        if getattr(traced.device, "type", "") == "meta":
            raise ModelError(
                f"{info.name}: its embedding is offloaded, and nnsight would send tokens to where it waits: load it with "
                "load_model(device_map=...), or leave the embedding in memory"
            )
        unknown = [part.unknown for part in self.parts if part.unknown not in (None, "MLP")]
        lacks = next(iter(unknown), None) if self.parts else "decoder layers"
        if lacks is not None:
            raise ModelError(
                f"{info.architecture}: its {lacks} go by names that are not known here (`models/decoder.py` has the known "
                'ones), so nothing in it can be found; use backend="bridge"'
            )
        self.traced_layers = [_find_envoy(traced, module) for module in layer_modules(hf_model)]
        self.unembed = _find_envoy(traced, hf_model.get_output_embeddings())
        self.attentions = [
            attrgetter(part.attention_path)(at) for at, part in zip(self.traced_layers, self.parts, strict=True)
        ]
        for attention in self.attentions:  # instrumented now: inside a trace it would come after the layer began
            _ = attention.source
        self.operations = _find_attention_ops(
            traced,
            self.traced_layers[0],
            self.parts[0],
            heads=Geometry.of(info),
            eager=info.attention == "eager" and not self.has_sinks,  # no operation gives rows that sum to 1
        )
        self.places = [_places(self.operations, part, d_head=info.d_head) for part in self.parts]

    def _forward(
        self, inputs: Inputs, masks: tuple[Tensor, ...] | None, taps: Taps, read: Tensor | None
    ) -> Tensor | None:
        traced, head, info = self.underlying, self.unembed, self.info
        if self.has_sinks:
            taps = mixed_taps(taps, lambda: masks or self.visible(inputs), self.attention_rule)
        if self.operations.call is None:
            taps = self._turned(taps, inputs)
        kept = [inputs.n_tokens - 1] if read is None else read.tolist()  # a tensor would lie on one of several devices
        options: dict[str, Any] = {"use_cache": False, "logits_to_keep": kept}
        if inputs.position_ids is not None:
            options["position_ids"] = inputs.position_ids
        if self.remote:
            options["remote"] = self.remote
        prompt = {"input_ids": inputs.tokens, "attention_mask": torch.ones_like(inputs.tokens)}
        wanted = [_layer_taps(taps, layer) for layer in range(info.n_layers)]
        dtype = getattr(torch, info.dtype)
        shown: dict[str, Tensor] = {}
        own = [self._attention(layer) for layer in range(info.n_layers)]
        if self.remote is True and inputs.position_ids is not None and any(map(has_own_window, own)):
            raise ModelError(
                f"{info.architecture} counts its windows by index, which cannot be lifted remotely: run it here"
            )
        with own_windows_lifted(own, masks), traced.trace(prompt, **options):
            for layer in range(info.n_layers):
                at, attention = self.traced_layers[layer], self.attentions[layer]
                for name in _order(wanted[layer], masks is not None):
                    if name == "mask":
                        args, kwargs = attention.inputs
                        assert masks is not None
                        hidden = kwargs["hidden_states"] if "hidden_states" in kwargs else args[0]
                        mask = additive_mask(masks[layer].to(hidden.device), dtype)
                        attention.inputs = (args, {**kwargs, "attention_mask": mask})
                        continue
                    place, tap = self._place(layer, name), wanted[layer][name]
                    whole = place.read(at)
                    value = tap(place.part.get(whole))
                    if tap.edit is not None:
                        place.write(at, place.part.put(whole, value))
            logits = None if read is None else unembedded(head._module, head.input)
            if logits is not None:
                head.output = logits
            shown["logits"] = head.output if read is None else traced.output.logits
            nnsight.save(shown)
        return None if read is None else shown["logits"]

    def _place(self, layer: int, name: str) -> "Place":
        if name not in self.places[layer]:
            raise ModelError(
                f"nnsight has no site {name} in layer {layer} of {self.info.architecture}: use another backend"
            )
        return self.places[layer][name]


class Part(NamedTuple):
    """An activation in what a module is given or gives: how to get it out, and how to put another in its place."""

    get: Callable[[Any], Tensor]
    put: Callable[[Any, Tensor], Any]


class Place(NamedTuple):
    """Where a site is: the input or the output of what `owner` finds in a traced layer, and which part of it."""

    owner: Callable[[Any], Any]
    side: str
    part: Part = Part(lambda whole: whole, lambda whole, new: new)

    def read(self, layer: Any) -> Any:
        return getattr(self.owner(layer), self.side)

    def write(self, layer: Any, whole: Any) -> None:
        setattr(self.owner(layer), self.side, whole)


class Operations(NamedTuple):
    """The attention call (None: it has none, all is done in its forward), and the ways from the attention module to the
    softmax and the pattern (empty: fused attention)."""

    call: str | None
    scores: tuple[str, ...] = ()
    pattern: tuple[str, ...] = ()


def _places(found: Operations, part: DecoderLayer, *, d_head: int) -> dict[str, Place]:
    """Where the sites of a layer are; those it has not are left out."""
    inside = lambda path: lambda layer: _operation(attrgetter(part.attention_path)(layer), path)  # noqa: E731
    heads = Part(lambda flat: flat.view(*flat.shape[:-1], -1, d_head), lambda flat, new: new.flatten(-2))
    first = Part(
        lambda made: made[0] if isinstance(made, tuple) else made,
        lambda made, new: (new, *made[1:]) if isinstance(made, tuple) else new,
    )
    inputs, norms = part.inputs, part.norms
    assert inputs is not None and norms is not None
    made = {
        "hook_resid_pre": Place(lambda layer: layer, "input"),
        "hook_resid_post": Place(lambda layer: layer, "output", first),
    }
    for which, name in enumerate("qkv"):
        made[f"attn.hook_{name}"] = Place(attrgetter(inputs.path(which)), "output", Part(*inputs.part(which)))
    if found.call is not None:
        made["attn.hook_rot_q"] = Place(inside((found.call,)), "inputs", _argument(0))
        made["attn.hook_rot_k"] = Place(inside((found.call,)), "inputs", _argument(1))
    if found.pattern:
        made["attn.hook_attn_scores"] = Place(inside(found.scores), "input")
        made["attn.hook_pattern"] = Place(inside(found.pattern), "output")
    made["attn.hook_z"] = Place(attrgetter(part.output_path), "input", heads)
    made["hook_attn_out"] = (
        Place(attrgetter(norms.after_attention), "output")
        if norms.after_attention
        else Place(attrgetter(part.attention_path), "output", first)
    )
    if not part.mlp_path:
        return made  # its own layer's, of batch times token rows: none that the sites promise
    made["hook_mlp_out"] = Place(attrgetter(norms.after_mlp or part.mlp_path), "output", first)
    if norms.before_mlp is not None and not part.parallel:
        made["hook_resid_mid"] = Place(attrgetter(norms.before_mlp), "input", Part(lambda whole: whole, _refused))
    return made | _mlp_places(part.mlp)


def _mlp_places(mlp: Mlp | None) -> dict[str, Place]:
    if mlp is None:
        return {}
    gate, up, down, _ = mlp.paths
    made = {"mlp.hook_post": Place(attrgetter(down), "input")}
    if mlp.fused:
        made["mlp.hook_pre"] = Place(attrgetter(up), "output", _half(0))
        made["mlp.hook_pre_linear"] = Place(attrgetter(up), "output", _half(1))
    elif gate is None:
        made["mlp.hook_pre"] = Place(attrgetter(up), "output")
    else:
        made["mlp.hook_pre"] = Place(attrgetter(gate), "output")
        made["mlp.hook_pre_linear"] = Place(attrgetter(up), "output")
    return made


def _half(which: int) -> Part:
    """One half of what a projection gives that makes two things at once."""

    def put(both: Tensor, new: Tensor) -> Tensor:
        halves = list(both.chunk(2, -1))
        halves[which] = new
        return torch.cat(halves, -1)

    return Part(lambda both: both.chunk(2, -1)[which], put)


def _argument(which: int) -> Part:
    """The queries (0) or keys (1) of the attention call, `[batch, head, token, d_head]` there."""

    def at(args: tuple[Any, ...]) -> int:
        return which + next(i for i, arg in enumerate(args) if isinstance(arg, Tensor) and arg.dim() == 4)

    def get(inputs: Any) -> Tensor:
        args, _ = inputs
        return args[at(args)].transpose(1, 2)

    def put(inputs: Any, new: Tensor) -> Any:
        args, kwargs = inputs
        return (*args[: at(args)], new.transpose(1, 2), *args[at(args) + 1 :]), kwargs

    return Part(get, put)


def _refused(whole: Any, new: Tensor) -> Any:
    raise ModelError("hook_resid_mid can be captured but not edited in nnsight: edit hook_attn_out instead")


def _layer_taps(taps: Taps, layer: int) -> Taps:
    return {name: taps[site(layer, name)] for name in SITES if site(layer, name) in taps}


def _order(wanted: Taps, mask: bool) -> list[str]:
    """Sites of a layer in the order of the forward pass, with the layer's mask right after its input."""
    names = [name for name in SITES if name in wanted]
    if mask:
        names.insert(1 if "hook_resid_pre" in wanted else 0, "mask")
    return names


def _find_envoy(traced: Any, module: Any) -> Any:
    """The envoy of a submodule, whatever its path is."""
    path = next((name for name, child in traced._module.named_modules() if child is module), None)
    if path is None:
        raise ModelError(f"{type(traced._module).__name__}: no decoder layers found where they are expected")
    envoy = traced
    for part in path.split(".") if path else ():
        envoy = getattr(envoy, part)
    return envoy


def _operation(attn: Any, path: tuple[str, ...]) -> Any:
    """The operation at a path of labels, each inside the function that the one before it calls."""
    found = attn
    for label in path:
        found = getattr(found.source, label)
    return found


def _find_attention_ops(traced: Any, layer: Any, part: DecoderLayer, *, heads: Geometry, eager: bool) -> Operations:
    """Where the attention call is, if there is one, and inside it the softmax and the pattern that multiplies the values.

    The attention call is the operation that is handed queries, keys and values; the pattern is the last operation inside
    whose output has rows that sum to 1 and which, made to look at each token alone, gives each head its own values (random
    ones here, as a model's may be 0); the scores enter the first such operation.
    Another library may have wrapped the attention function (TransformerBridge does for Gemma): then one level deeper.
    """
    tokens = torch.arange(_PROBE)[None].to(device_of(traced._module))
    attn = attrgetter(part.attention_path)(layer)
    shape = (1, heads.n_heads, _PROBE, _PROBE)

    def probe(visit: Callable[[], Any]) -> Any:
        shown: dict[str, Any] = {}
        with torch.no_grad(), traced.trace({"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}):
            shown["value"] = visit()
            nnsight.save(shown)
        return shown["value"]

    def is_call(args: Any) -> bool:
        tensors = [arg for arg in args if isinstance(arg, Tensor) and arg.dim() == 4][:3]
        queries, others = (heads.n_heads, _PROBE), (heads.n_kv, _PROBE)
        return [(t.shape[1], t.shape[2]) for t in tensors] == [queries, others, others]

    call = None
    for label in attn.source.compiled.names:
        try:
            args, _ = probe(partial(lambda at: getattr(attn.source, at).inputs, label))
        except Exception:  # noqa: BLE001 - an operation that this forward pass does not reach cannot be the one
            continue
        if is_call(args):
            call = label
    if not eager:
        return Operations(call)

    def is_pattern(value: Any) -> bool:
        if not isinstance(value, Tensor) or value.shape != shape:
            return False
        return bool(((value.float().sum(-1) - 1).abs() < 1e-2).all() and (value >= 0).all())

    def normalised(path: tuple[str, ...]) -> list[tuple[str, ...]]:
        """Paths of all operations inside the one at `path` whose output is a pattern."""
        names: list[str] = []
        probe(lambda: names.__iadd__(_operation(attn, path).source.compiled.names))
        found: list[tuple[str, ...]] = []
        for label in names:
            try:
                value = probe(partial(lambda at: _operation(attn, at).output, (*path, label)))
            except Exception:  # noqa: BLE001 - as above
                continue
            if is_pattern(value):
                found.append((*path, label))
            elif isinstance(value, tuple) and any(map(is_pattern, value)) and len(path) < 3:
                try:
                    found += normalised((*path, label))
                except Exception:  # noqa: BLE001 - a function without source
                    continue
        return found

    patterns = normalised(() if call is None else (call,))
    places = _places(Operations(call), part, d_head=heads.d_head)
    values, mixed = places["attn.hook_v"], places["attn.hook_z"]
    for path in reversed(patterns):

        def look_at_self(path: tuple[str, ...] = path) -> tuple[Tensor, Tensor]:
            made = values.read(layer)
            own = values.part.get(made)
            own = torch.randn(own.shape, generator=torch.Generator().manual_seed(0)).to(own)
            values.write(layer, values.part.put(made, own))
            pattern = _operation(attn, path)  # looked up when the call has begun
            shown = pattern.output
            pattern.output = torch.eye(_PROBE).expand(shape).to(shown)
            return own, mixed.part.get(mixed.read(layer))

        own, z = probe(look_at_self)
        expected = values_of_heads(own[0], heads.n_heads).transpose(0, 1)
        if z.shape == (1, *expected.shape) and bool(((z[0] - expected).abs() <= 1e-2).all()):
            first = next(other for other in patterns if other[:-1] == path[:-1])
            return Operations(call, first, path)
    raise ModelError(
        "found no attention pattern which, made to look at each token alone, gives the heads their own values: its attention "
        "is built in a way that is not known here, so it is not taken"
    )
