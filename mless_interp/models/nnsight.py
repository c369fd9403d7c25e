"""nnsight 0.8 (local, several devices by device_map, NDIF by `remote`) behind the seam; the only file that imports it.

Attention internals are operations inside the module's source, found by what they carry, as labels depend on versions.
"""

import copy
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import nnsight
import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM

from . import traced_ops
from .architectures import DecoderLayer, LatentInputs
from .hugging_face import HuggingFaceModel, load_tokenizer, own_windows_lifted
from .info import Foreign, Inputs, Masks, ModelError, ModelInfo, Taps
from .load_options import Loading, first_line
from .sites import SITES, mixed_taps, site
from .traced_ops import Part, Step, walked
from .weights import device_of

nnsight.register(traced_ops)
_PROBE = 7  # tokens of the prompt on which the operations are found
Said = dict[str, Foreign]


def wrapped(hf_model: Foreign, tokenizer: Foreign) -> Foreign:
    """Make an nnsight model around a Hugging Face model, with a tokenizer of its own: it sets the side of its padding."""
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


def hosted(name: str, loading: Loading) -> "NnsightModel":
    """Take a model that NDIF hosts, by its hub id. Its config and tokenizer are fetched; no weight is read or made here."""
    if not nnsight.CONFIG.API.APIKEY:
        raise ModelError(f"{name!r} with remote=True needs an API key of NDIF, https://login.ndif.us: set NDIF_API_KEY")
    options = {"task": "text-generation", "attn_implementation": loading.attn_implementation}
    try:
        tokenizer = load_tokenizer(name)
        traced = nnsight.TransformersModel(name, tokenizer=copy.deepcopy(tokenizer), **options)
        repository = json.loads(traced.to_model_key().partition(":")[2])["repo_id"]
    except Exception as error:  # of a dozen kinds, as where models are loaded
        raise ModelError(f"cannot look up {name!r}: remote=True takes a model's id: {first_line(error)}") from error
    deployed = nnsight.ndif.status(raw=True).get("deployments", {}).items()  # nothing where it cannot be reached
    running = {str(at.get("repo_id", of)) for of, at in deployed if at.get("application_state") == "RUNNING"}
    if repository not in running:
        raise ModelError(f"NDIF does not run {repository} now; it runs {', '.join(sorted(running)) or 'nothing'}")
    operations = _operations_of_its_kind(traced, tokenizer)
    made = NnsightModel(traced, name=name, tokenizer=tokenizer, remote=True, operations=operations)
    made.positions = None  # tables of numbers, which are not here
    first = site(0, "hook_resid_pre")
    seen = made.run(torch.arange(_PROBE)[None], capture={first: None}, logits_at="none").captured[first]
    made.info = replace(made.info, dtype=str(seen.dtype).removeprefix("torch."))  # what the server computes in
    return made


def _operations_of_its_kind(traced: Foreign, tokenizer: Foreign) -> "Operations":
    """Find the attention operations of a model without weights on one of its kind, with a single small random layer."""
    small = copy.deepcopy(traced._module.config)
    text = small.get_text_config()
    least = {"num_hidden_layers": 1, "vocab_size": 32, "intermediate_size": 64, "pad_token_id": None}
    for name in least.keys() & {*dir(text)}:
        setattr(text, name, least[name])
    if getattr(text, "layer_types", None):
        text.layer_types = list(text.layer_types[:1])
    attention = traced.attn_implementation
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        kind = AutoModelForCausalLM.from_config(small, dtype=torch.float32, attn_implementation=attention).eval()
    return NnsightModel(wrapped(kind, tokenizer), name="one of its kind", tokenizer=tokenizer).operations


class NnsightModel(HuggingFaceModel):
    """A causal language model traced with nnsight; `remote`: False, True (NDIF), or "local" (written for NDIF, run here)."""

    backend = "nnsight"

    def __init__(
        self,
        traced: Foreign,
        *,
        name: str,
        tokenizer: Foreign = None,
        remote: bool | str = False,
        operations: "Operations | None" = None,
    ) -> None:
        hf_model = traced._module
        attention = hf_model.config.get_text_config()._attn_implementation or "eager"
        super().__init__(traced, hf_model, name=name, tokenizer=tokenizer, attention=attention, remote=remote)
        info = self.info
        if remote is True:
            self.info = info = replace(info, device="cpu")  # where tokens are given and numbers come back
        unknown = [part.unknown for part in self.parts if part.unknown not in (None, "MLP")]
        if unknown or not self.parts:
            what = (*unknown, "decoder layers")[0]
            raise ModelError(f'{info.name}: its {what} go by names that are not known here; use backend="bridge"')
        if remote and self.has_sinks:
            raise ModelError(f"{info.architecture} has learned sinks, so it cannot be run remotely: load it here")
        paths = {module: path for path, module in hf_model.named_modules()}
        self.paths = [paths[part.module] for part in self.parts]
        self.head = paths[hf_model.get_output_embeddings()]
        self.attentions = [f"{at}.{part.attention_path}" for at, part in zip(self.paths, self.parts, strict=True)]
        for attention in self.attentions if remote is not True else ():
            _ = traced_ops.found(traced, attention).source  # instrumented now: in a trace the layer would have begun
        eager = info.attention == "eager" and not self.has_sinks  # with sinks no operation gives rows that sum to 1
        with self.turn():
            self.operations = operations or _operations(traced, self.attentions[0], heads=info, eager=eager)
        self.places = [_places(self.operations, part, d_head=info.d_head) for part in self.parts]

    @property
    def _modules(self) -> list[nn.Module]:
        return [self.underlying._module]

    @property
    def hooks(self) -> tuple[str, ...]:
        return (*super().hooks, *["edit(inplace=True)" for _ in self.underlying._edits])

    def _forward(self, inputs: Inputs, masks: Masks, taps: Taps, read: Tensor | None) -> Tensor | None:
        info = self.info
        if self.remote and masks is not None and self.windows_by_index:
            raise ModelError(f"{self._called} counts its windows by index, which no trace can lift: run it here")
        if self.has_sinks:
            taps = mixed_taps(taps, lambda: masks or self.visible(inputs), self.attention_rule)
        if (self.latent or self.operations.call is None) and self.remote is not True:  # there its tables are not here
            taps = self._turned(taps, inputs)
        kept = [inputs.n_tokens - 1] if read is None else read.tolist()  # a tensor would lie on one of several devices
        options: Said = {"use_cache": False, "logits_to_keep": kept} | ({"remote": self.remote} if self.remote else {})
        if inputs.position_ids is not None:
            options["position_ids"] = inputs.position_ids
        prompt = {"input_ids": inputs.tokens, "attention_mask": torch.ones_like(inputs.tokens)}
        shown = {id(mask): mask for mask in masks or ()}  # layers share one
        places = list(shown)
        which = [places.index(id(mask)) if masks else None for mask in masks or range(info.n_layers)]
        steps = [step for layer, at in enumerate(which) for step in self._steps(layer, taps, at)]
        plan = {
            "instrumented": sorted({path for _, path, labels, *_ in steps if labels}),
            "masks": list(shown.values()),
            "head": self.head,
            "logits": read is not None,
            "brought": bool(self.remote),
        }
        own = [] if self.remote else [self._attention(layer) for layer in range(info.n_layers)]
        with own_windows_lifted(own, masks):
            found = _walked(self.underlying, prompt, options, steps, plan)
        logits = found.pop("logits", None)
        for name, kept_there in found.items() if self.remote else ():  # in the order of the pass, as reducers expect
            taps[name].keep(kept_there)  # type: ignore[misc]
        return logits

    def _steps(self, layer: int, taps: Taps, mask: int | None) -> Iterator[Step]:
        """Yield what `traced_ops.walked` does in a layer, in the order of the forward pass; its mask right after its input."""
        for number, name in enumerate(SITES):
            if number == 1 and mask is not None:
                yield None, self.attentions[layer], (), "mask", mask, None, None
            full = site(layer, name)
            if full not in taps:
                continue
            if name not in self.places[layer]:
                raise ModelError(f"nnsight has no site {name} in layer {layer} of {self._called}: use another backend")
            place, tap = self.places[layer][name], taps[full]
            keep: Callable[[Tensor], object] | None = tap.keep
            if self.remote:
                keep = None if keep is None else tap.reduce or torch.clone
                if not traced_ops.can_be_sent(tap.edit):
                    raise ModelError(
                        f"the edit of {full} is a function of this process, which cannot be sent to where {self.info.name} "
                        "runs: sweeps of heads can (patch_heads, Model.replay); for all else load it here"
                    )
            if tap.edit is not None and place.part == traced_ops.REFUSED:
                raise ModelError("hook_resid_mid can be captured but not edited in nnsight: edit hook_attn_out instead")
            path = ".".join(filter(None, (self.paths[layer], place.path)))
            yield full, path, place.labels, place.side, place.part, tap.edit, keep


def _walked(traced: Foreign, prompt: Said, options: Said, steps: list[Step], plan: Said) -> Said:
    with traced.trace(prompt, **options):
        found = walked(traced, steps, **plan)  # the function: a module would be sent whole
        nnsight.save(found)
    return found


class Place(NamedTuple):
    """Where a site is: `side` of the module at a path, or of the operation at these labels in it, and which part of it."""

    path: str
    side: str
    part: Part = traced_ops.WHOLE
    labels: tuple[str, ...] = ()


class Operations(NamedTuple):
    """The attention call (None: there is none), and the ways from the attention to the softmax and the pattern."""

    call: str | None
    scores: tuple[str, ...] = ()
    pattern: tuple[str, ...] = ()


def _places(found: Operations, part: DecoderLayer, *, d_head: int) -> dict[str, Place]:
    inputs, norms, attention = part.inputs, part.norms, part.attention_path
    assert inputs is not None and norms is not None
    made = {"hook_resid_pre": Place("", "input"), "hook_resid_post": Place("", "output", traced_ops.FIRST)}
    if not isinstance(inputs, LatentInputs):
        for which, name in enumerate("qkv"):
            made[f"attn.hook_{name}"] = Place(inputs.path(which), "output", inputs.part(which))
    if found.call is not None:
        made["attn.hook_rot_q"] = Place(attention, "inputs", ("argument", 0), (found.call,))
        made["attn.hook_rot_k"] = Place(attention, "inputs", ("argument", 1), (found.call,))
        made.setdefault("attn.hook_v", Place(attention, "inputs", ("argument", 2), (found.call,)))
    if found.pattern:
        made["attn.hook_attn_scores"] = Place(attention, "input", labels=found.scores)
        made["attn.hook_pattern"] = Place(attention, "output", labels=found.pattern)
    made["attn.hook_z"] = Place(part.output_path, "input", ("heads", d_head))
    added = traced_ops.FIRST if part.share == 1.0 else ("times", part.share)
    made["hook_attn_out"] = Place(norms.after_attention or attention, "output", added)
    if not part.mlp_path:
        return made  # its own layer's, of batch times token rows: none that the sites promise
    made["hook_mlp_out"] = Place(norms.after_mlp or part.mlp_path, "output", added)
    if norms.before_mlp is not None and not part.parallel:
        made["hook_resid_mid"] = Place(norms.before_mlp, "input", traced_ops.REFUSED)
    if part.mlp is None:
        return made
    gate, up, down, _ = part.mlp.paths
    halves = (("half", 0), ("half", 1)) if gate == up else (traced_ops.WHOLE, traced_ops.WHOLE)
    made |= {"mlp.hook_pre": Place(gate or up, "output", halves[0]), "mlp.hook_post": Place(down, "input")}
    return made | ({"mlp.hook_pre_linear": Place(up, "output", halves[1])} if gate else {})


def _operations(traced: Foreign, attention: str, *, heads: ModelInfo, eager: bool) -> Operations:
    """Find the attention call, if there is one, and inside it the softmax and the pattern that multiplies the values: the first
    and the last operation whose output has rows that sum to 1. One level deeper where a library wraps the function."""
    tokens = torch.arange(_PROBE)[None].to(device_of(traced._module))
    attn = traced_ops.found(traced, attention)

    def probe(visit: Callable[[], Foreign]) -> Foreign:
        """Look inside a pass; None for an operation that this pass does not reach, or that has no source."""
        shown: Said = {}
        try:
            with torch.no_grad(), traced.trace({"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}):
                shown["value"] = visit()
                nnsight.save(shown)
        except Exception:  # noqa: BLE001 - of many kinds
            return None
        return shown["value"]

    def is_call(label: str) -> bool:
        args, _ = probe(lambda: getattr(attn.source, label).inputs) or ((), {})
        tensors = [arg for arg in args if isinstance(arg, Tensor) and arg.dim() == 4][:3]
        wanted = [(heads.n_heads, _PROBE), *[(heads.n_key_value_heads, _PROBE)] * 2]
        return [(*t.shape[1:3],) for t in tensors] == wanted

    def is_pattern(value: object) -> bool:
        if not isinstance(value, Tensor) or value.shape != (1, heads.n_heads, _PROBE, _PROBE):
            return False
        return bool(((value.float().sum(-1) - 1).abs() < 1e-2).all() and (value >= 0).all())

    def patterns(path: tuple[str, ...]) -> list[tuple[str, ...]]:
        """List paths of all operations inside the one at `path` whose output is a pattern."""
        found: list[tuple[str, ...]] = []
        for label in probe(lambda: list(traced_ops.found(attn, "", path).source.compiled.names)) or ():
            value = probe(partial(lambda at: traced_ops.found(attn, "", at).output, (*path, label)))
            if is_pattern(value):
                found.append((*path, label))
            elif isinstance(value, tuple) and any(map(is_pattern, value)) and len(path) < 3:
                found += patterns((*path, label))
        return found

    call = next(filter(is_call, reversed(attn.source.compiled.names)), None)
    if not eager:
        return Operations(call)
    found = patterns(() if call is None else (call,))
    if not found:
        raise ModelError("found no attention pattern: its attention is built in a way that is not known here")
    return Operations(call, next(each for each in found if each[:-1] == found[-1][:-1]), found[-1])
