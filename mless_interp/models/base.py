"""The seam: analyses reach a model by `Model.run` and `Model.replay` alone, whichever library runs it."""

import copy
import hashlib
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from importlib.metadata import version
from typing import TYPE_CHECKING
from uuid import uuid4
from weakref import WeakValueDictionary

import torch
from torch import Tensor, nn

from ..core.arguments import count_of
from ..runtime.workers import Engine, Processes, here
from .attention_math import visibility
from .info import (
    AttentionOutput,
    AttentionRule,
    Edit,
    Foreign,
    GatedMlp,
    Inputs,
    LogitsAt,
    Masks,
    ModelChecks,
    ModelError,
    ModelInfo,
    Recording,
    Reducer,
    Run,
    Tap,
    Taps,
)
from .memory import TURN, added_hooks, computed_on, threads_for, turn
from .replay import Layers, Stepper
from .sites import EAGER_SITES, SITES, parsed, site
from .traced_ops import can_be_sent, replaced, tail
from .weights import WeightsHash

if TYPE_CHECKING:  # importing transformers takes seconds, and whoever loads a model does
    from transformers import PreTrainedModel


class Model(ABC):
    """One language model behind one of the backends; made by `load_model` or `wrap_model`.

    `info` holds geometry and origin, `checks` the figures of the self-check at loading, `underlying` the library's own
    object, `config` what it was made from, `hf_model` the Hugging Face module underneath (None for HookedTransformer and
    for models run elsewhere). Several threads may use models: what they compute takes turns.
    """

    info: ModelInfo
    tokenizer: Foreign
    underlying: Foreign
    hf_model: "PreTrainedModel | None" = None
    config: object = None
    checks: ModelChecks | None = None
    remote: bool | str = False
    # what callers ask instead of the backend's name
    float32_softmax: bool = False  # also in a float64 model, as in Hugging Face's eager attention
    whole_positions: bool = False  # positions are looked up in a table
    learned_positions: bool = False  # positions are learned vectors: the same token is another one elsewhere
    windows_by_index: bool = False  # an attention hides what is outside its window by itself (GPT-Neo)
    quantised: str = ""  # how the weights are quantised, in a word
    tf32: bool | None = None  # its products of float32 are in TF32; None: left to the process, or none arise
    layers: Layers | None = None  # how the library computes one layer after the other; None where that is not known
    why_not_by_layers: str = "this architecture cannot be continued layer by layer"
    engine: Engine = staticmethod(here)  # computes the problems of a long analysis (`on`)
    how: "partial[Model] | None" = None  # loads it once more, in another process; None for a model that was given
    _hashing: WeightsHash | None = None
    _held: str | None = None  # the hash of what the library's own object held when the model was loaded

    @abstractmethod
    def _forward(self, inputs: Inputs, masks: Masks, taps: Taps, read: Tensor | None) -> Tensor | None:
        """Run once, with what `taps` does at each hook name; logits at the positions `read` (None: none).
        `masks` (one `[b, 1|H, T, T]` per layer) is given if the input says more than plain causal attention does."""

    @abstractmethod
    def attention_rule(self, layer: int) -> AttentionRule:
        """Return scale and soft-cap of a layer's attention scores, and its learned sinks."""

    @abstractmethod
    def _gated_mlp(self, layer: int) -> GatedMlp | None:
        """Return the layer's activation, or None where it is not known."""

    @abstractmethod
    def _attention_output(self, layer: int) -> AttentionOutput | None:
        """Return the layer's output projection, or None where it is not known."""

    def checked(self, checks: ModelChecks | None) -> "Model":
        """Return this model with these figures, able to do what they say; None: as it was before any check."""
        model = copy.copy(self)
        model.checks = checks
        return model

    def on(self, engine: Engine) -> "Model":
        """Return this model, whose long analyses an engine computes: `Processes(...)`, `RayWorkers(...)`, a `Shard(...)`, or
        `here`."""
        of_a_shard = getattr(engine, "engine", engine)
        if isinstance(of_a_shard, Processes) and (set(self.devices) != {"cpu"} or threads_for(self.info) > 1):
            raise ValueError(
                f"Processes are for models whose passes are worth one thread of the CPU, and {self.info.name} on "
                f"{self.info.device} is none: load it with device='cpu' if it is small; else compute here, or on RayWorkers"
            )
        model = copy.copy(self)
        model.engine = engine
        return model

    def sent(self) -> tuple[Callable[..., "Model"], tuple[object, ...]]:
        """Return what another process gets for a model: the way to load it, and the weights that it must then have."""
        hooks = self.hooks
        if self.how is None or hooks:
            reason = f"has hooks, first {hooks[0]}," if hooks and self.how else "was given as an object"
            raise ModelError(f"{self.info.name} {reason} which other processes have not: compute here")
        return _here, (self.how, self.info.name, self.identity, self.checks)

    def __repr__(self) -> str:
        i = self.info
        return (
            f"{type(self).__name__}({i.name!r}, {i.n_layers} layers x {i.n_heads} heads ({i.n_key_value_heads} kv), "
            f"d_model {i.d_model}, {i.dtype} on {i.device}, {i.attention} attention)"
        )

    @property
    def _called(self) -> str:
        return f"{self.info.name} ({self.info.architecture})"

    @property
    def _modules(self) -> list[nn.Module]:
        return [each for each in (self.underlying, self.hf_model) if isinstance(each, nn.Module)]

    @property
    def weights(self) -> nn.Module | None:
        """The module that holds the weights, here; None for models run elsewhere."""
        return self.hf_model

    @property
    def weights_hash(self) -> str | None:
        """The hash of the weights as they are now (see `WeightsHash`); None for a model run elsewhere."""
        if self._hashing is None or self.weights is None:
            return self.info.weights_hash
        now = self._hashing.of(self.weights)
        return self.info.weights_hash if now == self._held else now

    @property
    def devices(self) -> tuple[str, ...]:
        """Where tokens go in, and wherever else weights lie; those brought for each pass lie nowhere."""
        weights = () if self.weights is None else self.weights.parameters()
        others = {str(weight.device) for weight in weights if not weight.is_meta} - {self.info.device}
        return self.info.device, *sorted(others)

    @property
    def hooks(self) -> tuple[str, ...]:
        """What was hooked to the model or replaced in it, by path and kind; nothing by which a library runs it."""
        with TURN:
            return added_hooks(self._modules)

    @property
    def identity(self) -> dict[str, Foreign]:
        """What numbers from this model depend on, beside the prompts: part of every checkpoint and every result."""
        info, hooks = self.info, self.hooks
        place: object = "elsewhere"
        if self.remote is not True:
            place = computed_on(self.devices, threads=threads_for(info), tf32=self.tf32)
        of_hooks = {"hooks": [*hooks, self._what_hooks_do()]} if hooks else {}
        return of_hooks | {
            "model": info.name,
            **{name: getattr(info, name) for name in ("backend", "dtype", "attention")},
            "weights": self.weights_hash or "not read here, as the model runs elsewhere",
            "config": info.config_hash,
            "toolkit": version("mless_interp"),
            "computed_on": place,
            "largest_logit": None if self.checks is None else round(self.checks.largest_logit, 3),
        }

    def _what_hooks_do(self) -> str:
        """Digest a fixed prompt's logits: two hooks at one place can do different things."""
        tokens = torch.arange(min(64, self.info.context_length))[None] % self.info.d_vocab
        try:
            logits = self.run(tokens).logits
        except (RuntimeError, ValueError, IndexError, TypeError):  # a hook for other prompts: it equals no other
            return uuid4().hex
        assert logits is not None
        return hashlib.sha256(logits.cpu().numpy().tobytes()).hexdigest()[:16]

    @property
    def stepper(self) -> Stepper | None:
        """Continues a run layer by layer; None where only whole passes are right (`why_whole_passes`)."""
        return None if self.layers is None or self.why_whole_passes else Stepper(self.layers, self.turn)

    @property
    def why_whole_passes(self) -> str:
        """Why runs cannot be continued layer by layer; empty where they can."""
        if self.remote:
            return "it runs elsewhere"
        if self.layers is None:
            return self.why_not_by_layers
        if hooks := self.hooks:
            return f"hooks were added to it, which only whole passes obey: {count_of(len(hooks), 'hook')}, first {hooks[0]}"
        return "" if self.checks is None or self.checks.by_layers else "the self-check found that it disagrees"

    def need_layers(self, what: str) -> Stepper:
        """Return what continues a run layer by layer; `ModelError` with the reason where nothing can."""
        if found := self.stepper:
            return found
        raise ModelError(
            f"{what} continues runs layer by layer, which {self._called} on backend {self.info.backend!r} cannot "
            f"({self.why_whole_passes}): use another backend, or patch_heads"
        )

    @property
    def shows_rotated(self) -> bool:
        """True where queries and keys can be had as they enter the scores (found out by the self-check)."""
        return self.checks is None or self.checks.shows_rotated

    @property
    def has_rotated_sites(self) -> bool:
        """True where there is anything at the sites of queries and keys as they enter the scores, right or wrong."""
        return self.shows_rotated or (self.checks is not None and self.checks.entering_error is not None)

    def need_rotated(self, what: str) -> None:
        """Raise `ModelError` if the queries and keys that enter the scores, which `what` needs, cannot be had."""
        if self.checks is not None and not self.shows_rotated:
            raise ModelError(
                f"{self._called} shows no queries and keys as they enter the scores on backend {self.info.backend!r}, "
                f"which {what} need ({self.checks.entering}): use another backend"
            )

    @property
    def resolution(self) -> float:
        """Differences of a log-probability (in nats) up to this are rounding: measured by the self-check, at least 1e-5
        (1e-9 in float64); without its figure 0.01 in half precision and TF32."""
        least = 0.0 if self.tf32 else {"float64": 1e-9, "float32": 1e-5}.get(self.info.dtype, 0.0)
        measured = None if self.checks is None else self.checks.resolution
        return max(least, measured) if measured is not None else least or 1e-2

    def gated_mlp(self, layer: int) -> GatedMlp:
        """Return how a layer's MLP makes its activations of `hook_pre`; `ModelError` for experts and unknown builds."""
        if found := self._gated_mlp(self.info.check_layer(layer)):
            return found
        raise ModelError(
            f"{self._called}: layer {layer} has no activation act(gate(x)) or act(up(x)) that is known here (experts share "
            "none, attention alone has none), so activation metrics and ARM are undefined for it"
        )

    def attention_output(self, layer: int) -> AttentionOutput:
        """Return how a layer turns head outputs into what it adds to the stream; `ModelError` if not by a matrix per head."""
        found, checks = self._attention_output(self.info.check_layer(layer)), self.checks
        expected = [self.info.n_heads, self.info.d_head, self.info.d_model]
        if found is None or list(found.weights.shape) != expected:
            reason = f"layer {layer} has no output weights of shape {expected} [head, d_head, d_model]"
        elif checks is not None and checks.output_error is not None and not checks.output_error <= checks.tolerance:
            reason = f"what attention adds is not z W_O + b (off by {checks.output_error:.3g} of the largest value)"
        else:
            return found
        raise ModelError(f"{self._called}: {reason}, so what single heads write into the stream is not known")

    def need_tokenizer(self, what: str) -> None:
        """Raise `ModelError` if there is no tokenizer, which `what` needs."""
        if self.tokenizer is None:
            raise ModelError(
                f"{self.info.name} has no tokenizer, which {what} needs: give one, wrap_model(..., tokenizer=...)"
            )

    def text_of(self, ids: Sequence[int]) -> str:
        """Return the text of token ids, as they are; the ids themselves where there is no tokenizer."""
        return " ".join(map(str, ids)) if self.tokenizer is None else str(self.tokenizer.decode(ids))

    def turn(self, *, of_passes: bool = True) -> AbstractContextManager[None]:
        """Run alone, and alike whatever the process is set to (see `memory.turn`); `of_passes=False`: with its own products."""
        tf32 = self.tf32 if of_passes else None
        return turn(self._modules, threads=threads_for(self.info), tf32=tf32)

    def run(
        self,
        inputs: Inputs | Tensor,
        *,
        capture: Mapping[str, Reducer] | None = None,
        edits: Mapping[str, Edit] | None = None,
        logits_at: LogitsAt = "all",
    ) -> Run:
        """Run one forward pass.

        Parameters
        ----------
        inputs : what goes in (`PromptPair.condition` makes one), or token ids `[batch, token]` alone (1D: one prompt).
        capture : hook name -> reducer, applied inside the pass after any edit of the site; None keeps a copy of the whole.
        edits : hook name -> pure function from the activation to its replacement (same shape).
        logits_at : "all", "last", "none", or positions; only these are unembedded.

        Raises `ValueError` for unknown hook names, positions outside the prompt, wrong shapes, prompts beyond the
        context length; `ModelError` where a pattern is asked of fused attention.
        """
        inputs = self._checked(Inputs(inputs) if isinstance(inputs, Tensor) else inputs)
        capture, edits = capture or {}, edits or {}
        read = self._read_positions(logits_at, inputs.n_tokens)
        captured: dict[str, Foreign] = {}
        edited = {*edits} if self.remote else set()
        taps: dict[str, Tap] = {}
        for name in {**capture, **edits}:
            self._check_name(name)
            edit, reducer = edits.get(name), capture.get(name)
            if edit is not None and not self.remote:
                edit = partial(_edited, name, edit, edited)
            there = reducer if self.remote and reducer is not None and can_be_sent(reducer) else None
            kept = partial(_keep, captured, name, None if there else reducer) if name in capture else None
            taps[name] = Tap(edit, kept, there)
        masks = None if inputs.plain else self.visible(inputs)
        with self.turn(), torch.no_grad():
            logits = self._forward(inputs, masks, taps, read)
        missing = [name for name in capture if name not in captured] + [name for name in edits if name not in edited]
        if missing:
            raise ModelError(f"{self.info.backend}: no activation ever came for {missing}; this model has no such site")
        return Run(logits, {name: captured[name] for name in capture})

    def reach(self, n_tokens: int) -> None:
        """Check masks and replay on so many tokens, unless they were on as many; `ModelError` for masks that are others."""
        if self.checks is not None and n_tokens > self.checks.reach:
            self.checks = self.checks.on_longer(self, n_tokens)

    def visible(self, inputs: Inputs, places: Sequence[torch.device] = ()) -> tuple[Tensor, ...]:
        """Return each layer's visibility `[b, 1|H, T, T]` for this input, where the input is or at the layers' `places`."""
        self.reach(inputs.n_tokens)
        own = {window: visibility(inputs, window) for window in set(self.info.windows)}
        wanted = list(zip(self.info.windows, places or [inputs.tokens.device] * self.info.n_layers, strict=True))
        made = {(window, place): own[window].to(place) for window, place in set(wanted)}
        return tuple(made[key] for key in wanted)

    def record(self, inputs: Inputs, *, start: int, logits_at: LogitsAt = "none") -> Recording:
        """Run once and keep what `replay` needs for the positions from `start` on (per layer, nothing else)."""
        later = partial(tail, start=start)
        kept: dict[str, Reducer] = {"attn.hook_z": later}
        if self.shows_rotated:
            kept |= {"hook_resid_pre": later, "attn.hook_rot_q": later}
            kept |= {"attn.hook_rot_k": torch.clone, "attn.hook_v": torch.clone}
        layers = range(self.info.n_layers)
        reducers = {site(layer, name): reducer for layer in layers for name, reducer in kept.items()}
        result, inputs = self.run(inputs, capture=reducers, logits_at=logits_at), self._checked(inputs)
        found = {name: tuple(result.captured[site(layer, name)] for layer in layers) for name in kept}
        places = [each.device for each in found["attn.hook_z"]]
        return Recording(
            inputs=inputs,
            start=start,
            logits=result.logits,
            # each still lies where the layer before it does
            resid_pre=tuple(map(Tensor.to, found.get("hook_resid_pre", ()), places)),
            q=found.get("attn.hook_rot_q", ()),
            k=found.get("attn.hook_rot_k", ()),
            v=found.get("attn.hook_v", ()),
            z=found["attn.hook_z"],
            masks=tuple(mask[:, :, start:] for mask in self.visible(inputs, places)),
        )

    def replay(
        self,
        receiving: Recording,
        layer: int | Sequence[int],
        z: Tensor,
        *,
        logits_at: LogitsAt = "last",
        exact_forward: bool = False,
    ) -> Tensor:
        """Continue the receiving run from edited head outputs of one layer, or of one layer per row (in rising order).

        `z` `[batch x row, changed, head, d_head]`: for each prompt of the recording `row` alternative outputs of all heads at
        the positions from `receiving.start` on (rows of one prompt together). Only these positions and the layers from the
        first edited one on are computed. Returns logits `[batch x row, read, vocab]`; `logits_at`: positions from `start` on,
        "last" or "all". `exact_forward=True` runs the whole model once per row: the slow definition of the same numbers.
        """
        batch, n_changed = receiving.inputs.batch, receiving.n_tokens - receiving.start
        expected = (n_changed, self.info.n_heads, self.info.d_head)
        if tuple(z.shape[1:]) != expected or z.shape[0] % batch or not len(z):
            raise ValueError(f"z must be [k * {batch} prompts, {', '.join(map(str, expected))}], got {list(z.shape)}")
        rows, last = len(z) // batch, self.info.n_layers - 1
        layers = [layer] * rows if isinstance(layer, int) else list(layer)
        if len(layers) != rows or layers != sorted(layers) or not 0 <= layers[0] <= layers[-1] <= last:
            raise ValueError(f"layers must be one per row ({rows}) in rising order, 0 to {last}, got {layers}")
        if isinstance(logits_at, str) and logits_at == "all":
            logits_at = list(range(receiving.start, receiving.n_tokens))
        read = self._read_positions(logits_at, receiving.n_tokens)
        if read is None or int(read.min()) < receiving.start:
            raise ValueError(f"a replay from position {receiving.start} on has no logits before it: {logits_at!r}")
        with torch.no_grad():
            stepper = None if exact_forward else self.stepper
            if stepper is not None:
                return stepper.replay(receiving, layers, z, read - receiving.start)
            if self.hooks and not exact_forward:
                warnings.warn(f"{self.info.name} is slow: {self.why_whole_passes}", stacklevel=1)  # once
            return self._replay_by_forward(receiving, layers, z, read)

    def _replay_by_forward(self, receiving: Recording, layers: list[int], z: Tensor, read: Tensor) -> Tensor:
        by_prompt, edits = z.unflatten(0, (receiving.inputs.batch, len(layers))), {}
        for layer in sorted(set(layers)):
            rows = torch.tensor([row for row, at in enumerate(layers) if at == layer])
            old = receiving.z[layer]
            new = by_prompt[:, rows.to(z.device)].to(old)
            cells = (new != old[:, None]).any(4).any(2).nonzero()  # all else is its own
            prompt, row, head = cells.cpu().unbind(1)
            if len(cells):
                edits[site(layer, "attn.hook_z")] = partial(
                    replaced,
                    start=receiving.start,
                    rows=(prompt * len(layers) + rows[row]).tolist(),
                    heads=head.tolist(),
                    new=new.transpose(2, 3)[tuple(cells.unbind(1))],
                )
        logits = self.run(receiving.inputs.repeated(len(layers)), edits=edits, logits_at=read).logits
        assert logits is not None
        return logits

    def _checked(self, inputs: object) -> Inputs:
        if not isinstance(inputs, Inputs):
            wanted = "token ids [batch, token] (pair.inserted.tokens) or Inputs (pair.condition('inserted'))"
            raise TypeError(f"a run takes {wanted}, got {type(inputs).__name__}")
        tokens, positions, mask = inputs.tokens, inputs.position_ids, inputs.attention_mask
        tokens = tokens[None] if tokens.dim() == 1 else tokens
        info, (batch, n_tokens) = self.info, tokens.shape
        lowest, highest = int(tokens.min()), int(tokens.max())
        if lowest < 0 or highest >= info.d_vocab:
            raise ValueError(
                f"token ids must lie in 0 to {info.d_vocab - 1} ({info.name}'s vocabulary), got {lowest} to {highest}; was "
                "the text encoded with another model's tokenizer?"
            )
        positions = None if positions is None else positions.expand(batch, n_tokens)
        longest = n_tokens if positions is None else float(positions.max()) + 1
        if positions is not None and self.whole_positions:
            if bool((positions != positions.round()).any()):
                raise ValueError(f"{info.name} looks positions up in a table: position_ids must be whole numbers")
            positions = positions.long()
        if longest > info.context_length:
            raise ValueError(
                f"the prompt needs {longest:g} positions but {info.name} has a context of {info.context_length}: insert "
                "fewer tokens or leave this problem out"
            )
        shapes = [(b, h, n_tokens, n_tokens) for b in (1, batch) for h in (1, info.n_heads)]
        if mask is not None and (mask.dtype != torch.bool or tuple(mask.shape) not in shapes):
            raise ValueError(
                f"attention_mask must be boolean [{batch}, 1 or {info.n_heads}, {n_tokens}, {n_tokens}] (True = visible), "
                f"got {mask.dtype} {list(mask.shape)}"
            )
        return Inputs(tokens, positions, mask).to(info.device)

    def _check_name(self, name: str) -> None:
        found = parsed(name)
        if found is None:
            raise ValueError(f"unknown hook name {name!r}; known: {', '.join(site(0, known) for known in SITES)}")
        self.info.check_layer(found[0])
        if found[1] in EAGER_SITES and self.info.attention != "eager":
            lean = f"{name} does not exist under {self.info.attention!r} attention"
            raise ModelError(f'{lean}, which makes no pattern: load the model with attn_implementation="eager"')

    def _read_positions(self, logits_at: LogitsAt, n_tokens: int) -> Tensor | None:
        """Return the positions asked for, in memory: what is looked up there nobody waits for."""
        if isinstance(logits_at, str):
            return {"none": None, "all": torch.arange(n_tokens), "last": torch.tensor([n_tokens - 1])}[logits_at]
        read = torch.as_tensor(logits_at, dtype=torch.long).cpu()
        if read.dim() != 1 or not read.numel() or int(read.min()) < 0 or int(read.max()) >= n_tokens:
            raise ValueError(f"logits_at must be positions 0 to {n_tokens - 1}, got {logits_at!r}")
        return read


def _edited(name: str, edit: Edit, edited: set[str], value: Tensor) -> Tensor:
    """Edit an activation and check what comes; its name is then among those that were `edited`."""
    edited.add(name)
    new = edit(value)
    if not isinstance(new, Tensor) or new.shape != value.shape:
        came = list(new.shape) if isinstance(new, Tensor) else type(new).__name__
        raise ValueError(f"the edit of {name} must return a tensor of shape {list(value.shape)}, got {came}")
    return new.to(value.dtype)


def _keep(captured: dict[str, Foreign], name: str, reducer: Reducer, value: Tensor) -> None:
    value = value.detach()
    kept = value if reducer is None else reducer(value)
    if isinstance(kept, Tensor) and (kept is value or kept._is_view()):
        kept = kept.clone()  # a library may add to its activations in place (Falcon: attention to the MLP's)
    captured[name] = kept


_HERE: WeakValueDictionary[tuple[str, ...], Model] = WeakValueDictionary()
"""Models that this process was sent, as long as anything uses them."""


def _here(how: partial[Model], name: str, identity: Mapping[str, object], checks: ModelChecks | None) -> Model:
    """Load the model that another process means when it is first named here, the same in all that numbers depend on."""
    known = name, str(identity["weights"]), repr(sorted(how.keywords.items()))
    model = (_HERE.get(known) or how()).checked(checks)
    found = model.identity
    keys = [key for key in identity if key != "model" and found[key] != identity[key]]
    differ = "; ".join(f"{key} {found[key]} (not {identity[key]})" for key in keys)
    if differ:
        raise ModelError(
            f"{name} is another model where it was loaded again: {differ}. Its weights were changed, or the workers are on "
            "other hardware: save the model and load that, on equal machines"
        )
    _HERE[known] = model
    return model


INSTEAD = "use exact sweeps, which need none: patch_heads, or locate_heads"


def refuse_without_gradients(model: Model, what: str) -> None:
    """Raise `ModelError` that names what needs gradients, what stands in the way here and now, and what to do instead."""
    weights = () if model.weights is None else model.weights.parameters()
    if torch.is_inference_mode_enabled():
        reason = "has none inside torch.inference_mode(): leave it first (torch.no_grad() is no obstacle)"
    elif model.remote:
        reason = "runs remotely, where its gradients cannot be fetched: load it here"
    elif model.quantised:  # even where a library differentiates a dequantised approximation: its error is not known
        reason = f"is quantised ({model.quantised}); gradients need weights of 16 bits or more: load it in bfloat16 or float32"
    elif any(weight.is_inference() for weight in weights):
        reason = "was made inside torch.inference_mode(), so its weights can never enter a gradient: load it outside"
    elif model.stepper is None:
        reason = f"cannot be continued layer by layer, which gradients need ({model.why_whole_passes})"
    else:
        return
    raise ModelError(f"{what} needs gradients, but {model.info.name} {reason}, or {INSTEAD}")
