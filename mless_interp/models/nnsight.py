"""nnsight 0.8 (local, several devices by device_map, NDIF by `remote`) behind the seam.

The only file that imports nnsight. Attention internals are operations inside the module's source; their labels depend
on library versions, so they are found by what they carry (shapes, row sums, an edit that changes the logits).
"""

from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from typing import Any

import nnsight
import torch
from torch import Tensor

from .base import Model
from .hugging_face import additive_mask, attention_output_of, decoder_of, gated_mlp_of, hugging_face_info
from .info import AttentionOutput, AttentionRule, GatedMlp, ModelError
from .inputs import Edit, Inputs
from .replay import HuggingFaceStepper
from .sites import SITES, site

_PROBE = 7  # tokens of the prompt on which the operations are found
Taps = dict[str, tuple[Edit | None, Callable[[Tensor], None] | None]]


def wrapped(hf_model: Any, tokenizer: Any) -> Any:
    """An nnsight model around a loaded Hugging Face model."""
    return nnsight.TransformersModel(hf_model, tokenizer=tokenizer, task="text-generation")


class NnsightModel(Model):
    """A causal language model traced with nnsight."""

    def __init__(self, traced: Any, *, name: str, tokenizer: Any = None, remote: bool | str = False) -> None:
        self.underlying = traced
        self.remote = remote
        self.tokenizer = tokenizer if tokenizer is not None else traced.tokenizer
        hf_model = traced._module
        self.hf_model = None if remote else hf_model
        attention = getattr(hf_model.config.get_text_config(), "_attn_implementation", None) or "eager"
        packages = ("nnsight", "transformers", "torch")
        self.info = hugging_face_info(
            hf_model,
            name=name,
            backend="nnsight",
            attention=attention,
            versions={package: version(package) for package in packages},
        )
        self.decoder = _find_envoy(traced, decoder_of(hf_model))
        for layer in range(self.info.n_layers):  # instrumented now: inside a trace it would come after the layer began
            _ = self.decoder.layers[layer].self_attn.source
        self.attention_op, self.scores_op, self.pattern_op = _find_attention_ops(
            traced,
            self.decoder,
            n_heads=self.info.n_heads,
            n_kv=self.info.n_key_value_heads,
            eager=attention == "eager",
        )
        try:
            self.stepper = None if remote else HuggingFaceStepper(hf_model)
        except TypeError:
            self.stepper = None

    def attention_rule(self, layer: int) -> AttentionRule:
        attn = decoder_of(self.underlying._module).layers[layer].self_attn
        return AttentionRule(float(attn.scaling), getattr(attn, "attn_logit_softcapping", None))

    def _gated_mlp(self, layer: int) -> GatedMlp | None:
        return gated_mlp_of(self.underlying._module, layer)

    def _attention_output(self, layer: int) -> AttentionOutput | None:
        return attention_output_of(self.underlying._module, layer, d_head=self.info.d_head)

    def _forward(self, inputs: Inputs, masks: tuple[Tensor, ...] | None, taps: Taps, read: Tensor | None) -> Any:
        traced, decoder, info = self.underlying, self.decoder, self.info
        last = torch.tensor([inputs.n_tokens - 1], device=inputs.tokens.device)
        options: dict[str, Any] = {"use_cache": False, "logits_to_keep": last if read is None else read}
        if inputs.position_ids is not None:
            options["position_ids"] = inputs.position_ids
        if self.remote:
            options["remote"] = self.remote
        prompt = {"input_ids": inputs.tokens, "attention_mask": torch.ones_like(inputs.tokens)}
        wanted = [_layer_taps(taps, layer) for layer in range(info.n_layers)]
        dtype = getattr(torch, info.dtype)
        shown: dict[str, Tensor] = {}
        with traced.trace(prompt, **options):
            for layer in range(info.n_layers):
                at = decoder.layers[layer]
                for name in _order(wanted[layer], masks is not None):
                    if name == "mask":
                        args, kwargs = at.self_attn.inputs
                        assert masks is not None
                        mask = additive_mask(masks[layer].to(kwargs["hidden_states"].device), dtype)
                        at.self_attn.inputs = (args, {**kwargs, "attention_mask": mask})
                        continue
                    value = self._read(at, name)
                    edit, tap = wanted[layer][name]
                    if edit is not None:
                        value = edit(value)
                        self._write(at, name, value)
                    if tap is not None:
                        tap(value)
            shown["logits"] = traced.lm_head.output if read is None else traced.output.logits
            nnsight.save(shown)
        return None if read is None else shown["logits"]

    def _inside(self, attn: Any, path: tuple[str, ...]) -> Any:
        return _operation(attn, (self.attention_op, *path))

    def _heads(self, flat: Tensor) -> Tensor:
        return flat.view(*flat.shape[:-1], -1, self.info.d_head)

    def _read(self, at: Any, name: str) -> Tensor:
        attn, mlp = at.self_attn, at.mlp
        match name:
            case "hook_resid_pre":
                return at.input
            case "attn.hook_q":
                return self._heads(attn.q_proj.output)
            case "attn.hook_k":
                return self._heads(attn.k_proj.output)
            case "attn.hook_v":
                return self._heads(attn.v_proj.output)
            case "attn.hook_rot_q" | "attn.hook_rot_k":
                args, _ = getattr(attn.source, self.attention_op).inputs
                return args[_first_query(args) + name.endswith("k")].transpose(1, 2)
            case "attn.hook_attn_scores":
                return self._inside(attn, self.scores_op).input
            case "attn.hook_pattern":
                return self._inside(attn, self.pattern_op).output
            case "attn.hook_z":
                return self._heads(attn.o_proj.input)
            case "hook_attn_out":
                return at.post_attention_layernorm.output if _norms_its_outputs(at) else attn.output[0]
            case "hook_resid_mid":
                return (at.pre_feedforward_layernorm if _norms_its_outputs(at) else at.post_attention_layernorm).input
            case "mlp.hook_pre":
                return mlp.gate_proj.output
            case "mlp.hook_pre_linear":
                return mlp.up_proj.output
            case "mlp.hook_post":
                return mlp.down_proj.input
            case "hook_mlp_out":
                return at.post_feedforward_layernorm.output if _norms_its_outputs(at) else mlp.output
            case "hook_resid_post":
                return at.output
        raise ModelError(f"nnsight has no site {name}")

    def _write(self, at: Any, name: str, value: Tensor) -> None:
        attn, mlp = at.self_attn, at.mlp
        match name:
            case "hook_resid_pre":
                at.input = value
            case "attn.hook_q":
                attn.q_proj.output = value.flatten(-2)
            case "attn.hook_k":
                attn.k_proj.output = value.flatten(-2)
            case "attn.hook_v":
                attn.v_proj.output = value.flatten(-2)
            case "attn.hook_rot_q" | "attn.hook_rot_k":
                op = getattr(attn.source, self.attention_op)
                args, kwargs = op.inputs
                which = _first_query(args) + name.endswith("k")
                op.inputs = ((*args[:which], value.transpose(1, 2), *args[which + 1 :]), kwargs)
            case "attn.hook_attn_scores":
                self._inside(attn, self.scores_op).input = value
            case "attn.hook_pattern":
                self._inside(attn, self.pattern_op).output = value
            case "attn.hook_z":
                attn.o_proj.input = value.flatten(-2)
            case "hook_attn_out":
                if _norms_its_outputs(at):
                    at.post_attention_layernorm.output = value
                else:
                    attn.output = (value, *attn.output[1:])
            case "hook_resid_mid":
                raise ModelError("hook_resid_mid can be captured but not edited in nnsight: edit hook_attn_out instead")
            case "mlp.hook_pre":
                mlp.gate_proj.output = value
            case "mlp.hook_pre_linear":
                mlp.up_proj.output = value
            case "mlp.hook_post":
                mlp.down_proj.input = value
            case "hook_mlp_out":
                if _norms_its_outputs(at):
                    at.post_feedforward_layernorm.output = value
                else:
                    mlp.output = value
            case "hook_resid_post":
                at.output = value


def _layer_taps(taps: Taps, layer: int) -> Taps:
    return {name: taps[site(layer, name)] for name in SITES if site(layer, name) in taps}


def _order(wanted: Taps, mask: bool) -> list[str]:
    """Sites of a layer in the order of the forward pass, with the layer's mask right after its input."""
    names = [name for name in SITES if name in wanted]
    if mask:
        names.insert(1 if "hook_resid_pre" in wanted else 0, "mask")
    return names


def _norms_its_outputs(at: Any) -> bool:
    return hasattr(at._module, "pre_feedforward_layernorm")


def _first_query(args: tuple[Any, ...]) -> int:
    return next(i for i, arg in enumerate(args) if isinstance(arg, Tensor) and arg.dim() == 4)


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
    found = getattr(attn.source, path[0])
    for label in path[1:]:
        found = getattr(found.source, label)
    return found


def _find_attention_ops(
    traced: Any, decoder: Any, *, n_heads: int, n_kv: int, eager: bool
) -> tuple[str, tuple[str, ...], tuple[str, ...]]:
    """Where the attention call is, and inside it the softmax and the pattern that multiplies the values.

    The attention call is the operation that is handed queries, keys and values; the pattern is the last operation inside
    whose output has rows that sum to 1 and whose edit changes the logits; the scores enter the first such operation.
    Another library may have wrapped the attention function (TransformerBridge does for Gemma): then one level deeper.
    """
    tokens = torch.arange(_PROBE)[None].to(next(traced._module.parameters()).device)
    attn = decoder.layers[0].self_attn
    shape = (1, n_heads, _PROBE, _PROBE)

    def probe(visit: Callable[[], Any]) -> tuple[Any, Tensor]:
        shown: dict[str, Any] = {}
        with torch.no_grad(), traced.trace({"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}):
            shown["value"] = visit()
            shown["logits"] = traced.output.logits
            nnsight.save(shown)
        return shown["value"], shown["logits"]

    def is_call(args: Any) -> bool:
        tensors = [arg for arg in args if isinstance(arg, Tensor) and arg.dim() == 4][:3]
        return [(t.shape[1], t.shape[2]) for t in tensors] == [(n_heads, _PROBE), (n_kv, _PROBE), (n_kv, _PROBE)]

    call = None
    for label in attn.source.compiled.names:
        try:
            (args, _), _ = probe(partial(lambda at: getattr(attn.source, at).inputs, label))
        except Exception:  # noqa: BLE001 - an operation that this forward pass does not reach cannot be the one
            continue
        if is_call(args):
            call = label
    if call is None:
        raise ModelError(
            f"{type(attn._module).__name__}: found no operation that takes queries, keys and values; this architecture "
            'needs another backend ("bridge")'
        )
    if not eager:
        return call, (), ()

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
                value, _ = probe(partial(lambda at: _operation(attn, at).output, (*path, label)))
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

    patterns = normalised((call,))
    _, plain = probe(lambda: 0)
    for path in reversed(patterns):

        def look_at_self(path: tuple[str, ...] = path) -> int:
            op = _operation(attn, path)
            op.output = torch.eye(_PROBE, device=tokens.device).expand(shape).to(op.output.dtype)
            return 0

        _, edited = probe(look_at_self)
        if not torch.equal(edited, plain):
            first = next(other for other in patterns if other[:-1] == path[:-1])
            return call, first[1:], path[1:]
    raise ModelError("found no attention pattern whose edit changes the logits; load with attn_implementation='eager'")
