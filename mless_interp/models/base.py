"""The seam: `Model.run` and `Model.replay`, and nothing else, know which library runs the model."""

import copy
import hashlib
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from importlib.metadata import version
from typing import TYPE_CHECKING, Any
from uuid import uuid4
from weakref import WeakValueDictionary

import torch
from torch import Tensor, nn

from ..core.arguments import count_of
from ..runtime.engines import Engine, here
from .arithmetic import visibility
from .info import AttentionOutput, AttentionRule, GatedMlp, LeanAttentionError, ModelChecks, ModelError, ModelInfo
from .inputs import Edit, Inputs, LogitsAt, Recording, Reducer, Run, Tap, Taps
from .loaded_weights import WeightsHash
from .memory import added_hooks, computed_on, lock_of, threads_for, turn
from .replay import Layers, Stepper
from .sites import EAGER_SITES, SITES, parsed, site
from .traced_ops import can_be_sent, replaced, tail

if TYPE_CHECKING:  # importing transformers takes seconds, and whoever loads a model does
    from transformers import PreTrainedModel


class Model(ABC):
    """One language model behind one of the backends; made by `load_model` or `wrap_model`.

    `info` holds geometry and origin, `tokenizer` the Hugging Face tokenizer, `checks` the figures of the self-check at
    loading, `underlying` the library's own object. Subclasses implement `_forward` and declare what else they can do.

    Several threads may use one model: its passes, replays and completions take turns.
    """

    info: ModelInfo
    tokenizer: Any
    underlying: Any
    hf_model: "PreTrainedModel | None" = None
    """The Hugging Face module that runs underneath, here; None for HookedTransformer and for models run elsewhere."""
    config: Any = None
    """What it was made from: the Hugging Face config, or the HookedTransformerConfig of a model that was wrapped."""
    remote: bool | str = False
    """Whether it runs elsewhere, and how (nnsight)."""
    float32_softmax: bool = False
    """Whether attention's softmax is float32 even in a float64 model, as in Hugging Face's eager attention."""
    whole_positions: bool = False
    """Whether positions are looked up in a table, so that position ids must be whole numbers."""
    tf32: bool | None = None
    """Whether its passes make products of float32 in TF32; None where that is left to the process, or does not arise."""
    windows_by_index: bool = False
    """Whether an attention hides what is outside its window by itself, by index (GPT-Neo)."""
    why_not_by_layers: str = ""
    """What of its layers is not known, where `layers` is None."""
    learned_positions: bool = False
    """Whether positions are learned vectors, so that the same token is another one elsewhere even in the first layer."""
    quantised: str = ""
    """How the weights are quantised, in a word; empty where they are not."""
    checks: ModelChecks | None = None
    engine: Engine = here
    """Who computes the problems of a long analysis of this model (`on`)."""
    how: "Callable[[], Model] | None" = None
    """Loads it once more, as another process does; None for a model that was given."""
    _hashing: WeightsHash | None = None
    _held: str | None = None
    """The hash of what the library's own object held when the model was loaded."""
    layers: Layers | None = None
    """How the library computes one layer after the other; None where this architecture's are built in a way not known."""

    @abstractmethod
    def _forward(
        self, inputs: Inputs, masks: tuple[Tensor, ...] | None, taps: Taps, read: Tensor | None
    ) -> Tensor | None:
        """Run once, with what `taps` does at each hook name; logits at the positions `read` (None: none).

        `masks` (one `[b, 1|H, T, T]` per layer) is given if the input says more than plain causal attention does.
        """

    def checked(self, checks: ModelChecks | None) -> "Model":
        """This model with these figures, able to do what they say; None is the model as it was before any check."""
        return self._with(checks=checks)

    def _with(self, **changes: Any) -> "Model":
        """This model with other attributes."""
        model = copy.copy(self)
        vars(model).update(changes)
        return model

    def known_by(self, weights_hash: str | None = None) -> "Model":
        """This model, its weights known by this hash (None: by that of what it holds)."""
        hashing = WeightsHash()
        held = None if self.weights is None else hashing.of(self.weights)
        return self._with(_hashing=hashing, _held=held, info=replace(self.info, weights_hash=weights_hash or held))

    def multiplying(self, *, tf32: bool) -> "Model":
        """Return this model with TF32 or full float32 products; the model itself where no GPU computes them."""
        if self.info.dtype != "float32" or all(device.startswith(("cpu", "meta")) for device in self.devices):
            return self
        return self._with(tf32=tf32)

    def loaded_by(self, how: "Callable[[], Model]") -> "Model":
        """This model, which other processes can load by calling `how`."""
        return self._with(how=how)

    def on(self, engine: Engine) -> "Model":
        """This model, whose long analyses are computed by an engine: `RayWorkers(...)`, a `Shard(...)`, or `here`."""
        return self._with(engine=engine)

    def sent(self) -> tuple[Callable[..., "Model"], tuple[Any, ...]]:
        """What another process gets instead of a model: the way to load it, and the weights that it must then have."""
        if self.how is None:
            raise ModelError(
                f"{self.info.name} was given as an object, which other processes cannot load: load it with load_model"
            )
        hooks = self.hooks
        if hooks:
            raise ModelError(
                f"{self.info.name} has hooks that other processes would not have, first {hooks[0]}: remove them, or compute "
                "here"
            )
        return _here, (self.how, self.info.name, self.identity, self.checks)

    @property
    def weights_hash(self) -> str | None:
        """The hash of the weights as they are now: `info.weights_hash`, or another one if they were changed since.

        None for a model run elsewhere (`remote=True`), whose weights cannot be read. See `models.loaded_weights.WeightsHash`.
        """
        if self._hashing is None or self.weights is None:
            return self.info.weights_hash
        now = self._hashing.of(self.weights)
        return self.info.weights_hash if now == self._held else now

    def turn(self, *, of_passes: bool = True) -> AbstractContextManager[None]:
        """Keep other threads out, and run the model alike whatever the process is set to (see `models.memory.turn`).

        `of_passes=False`: around passes and what is made of them, whose products are the process's own, not TF32.
        """
        tf32 = self.tf32 if of_passes else None
        return turn(self.underlying, self._modules, threads=threads_for(self.info), tf32=tf32)

    @property
    def _modules(self) -> list[nn.Module]:
        """The modules that run, here."""
        return [each for each in (self.underlying, self.hf_model) if isinstance(each, nn.Module)]

    @property
    def hooks(self) -> tuple[str, ...]:
        """Forward hooks, pre-hooks and replaced forwards that are on the model now, by path and kind; none by which a library
        runs it."""
        with lock_of(self.underlying):
            return added_hooks(self._modules)

    @property
    def stepper(self) -> Stepper | None:
        """Continues a run layer by layer; None where only whole passes are right (`why_whole_passes`)."""
        if self.layers is None or self.why_whole_passes:
            return None
        return Stepper(self.layers, self.turn)

    @property
    def why_whole_passes(self) -> str:
        """Why runs cannot be continued layer by layer; empty where they can."""
        if self.remote:
            return "it runs elsewhere"
        if self.layers is None:
            return self.why_not_by_layers or "this architecture cannot be continued layer by layer"
        hooks = self.hooks
        if hooks:
            return f"hooks were added to it, which only whole passes obey: {count_of(len(hooks), 'hook')}, first {hooks[0]}"
        return "" if self.checks is None or self.checks.by_layers else "the self-check found that it disagrees"

    def need_layers(self, what: str) -> Stepper:
        """What continues a run layer by layer; `ModelError` with the reason where nothing can."""
        found = self.stepper
        if found is None:
            raise ModelError(
                f"{what} continues runs layer by layer, which {self.info.name} ({self.info.architecture}) on backend "
                f"{self.info.backend!r} cannot ({self.why_whole_passes}): use another backend, or patch_heads"
            )
        return found

    @property
    def shows_rotated(self) -> bool:
        """Whether queries and keys can be had as they enter the scores (found out by the self-check)."""
        return self.checks is None or self.checks.shows_rotated

    @property
    def resolution(self) -> float:
        """Differences of a log-probability (in nats) up to this are rounding: measured by the self-check, never less than
        1e-5 (1e-9 in float64); without its figure 0.01 in half precision and TF32."""
        least = 0.0 if self.tf32 else {"float64": 1e-9, "float32": 1e-5}.get(self.info.dtype, 0.0)
        measured = None if self.checks is None else self.checks.resolution
        return max(least, measured) if measured is not None else least or 1e-2

    @property
    def has_rotated_sites(self) -> bool:
        """Whether there is anything at the sites of queries and keys as they enter the scores, right or wrong."""
        return self.shows_rotated or (self.checks is not None and self.checks.entering_error is not None)

    @property
    def weights(self) -> nn.Module | None:
        """The module that holds the weights, here; None for models run elsewhere."""
        return self.hf_model

    @property
    def devices(self) -> tuple[str, ...]:
        """Where tokens go in, and wherever else weights lie; those brought for each pass lie nowhere."""
        weights = () if self.weights is None else self.weights.parameters()
        others = {str(weight.device) for weight in weights if not weight.is_meta} - {self.info.device}
        return self.info.device, *sorted(others)

    @property
    def identity(self) -> dict[str, Any]:
        """What numbers from this model depend on, beside the prompts: part of every checkpoint and every result."""
        info = self.info
        return {
            "model": info.name,
            "backend": info.backend,
            "dtype": info.dtype,
            "attention": info.attention,
            "weights": self.weights_hash or "not read here, as the model runs elsewhere",
            "config": info.config_hash,
            "toolkit": version("mless_interp"),
            "computed_on": "elsewhere"
            if self.remote is True
            else computed_on(self.devices, threads=threads_for(info), tf32=self.tf32),
            "largest_logit": None if self.checks is None else round(self.checks.largest_logit, 3),
        } | ({"hooks": [*hooks, self._what_hooks_do()]} if (hooks := self.hooks) else {})

    def _what_hooks_do(self) -> str:
        """Return a digest of a fixed prompt's logits: two hooks at one place can do different things."""
        tokens = torch.arange(min(64, self.info.context_length or 64))[None] % self.info.d_vocab
        try:
            logits = self.run(tokens).logits
        except (
            RuntimeError,
            ValueError,
            IndexError,
            TypeError,
        ):  # a hook that is written for other prompts: nothing is known of it, so it equals no other
            return uuid4().hex
        assert logits is not None
        return hashlib.sha256(logits.cpu().numpy().tobytes()).hexdigest()[:16]

    @abstractmethod
    def attention_rule(self, layer: int) -> AttentionRule:
        """Scale and soft-cap of a layer's attention scores."""

    def gated_mlp(self, layer: int) -> GatedMlp:
        """How a layer's MLP makes its activations of `hook_pre`, and whether they are a gate's.

        Raises `ModelError` for experts, which share no activation, and for MLPs of a build that is not known.
        """
        self.info.check_layer(layer)
        found = self._gated_mlp(layer)
        if found is None:
            raise ModelError(
                f"{self.info.name} ({self.info.architecture}): layer {layer} has no activation act(gate(x)) or act(up(x)) "
                "that is known here (experts share none), so every activation metric and ARM are undefined for it"
            )
        return found

    def _gated_mlp(self, layer: int) -> GatedMlp | None:
        """The layer's activation, or None where this backend knows of none."""
        return None

    def output_weights(self, layer: int) -> Tensor:
        """W_O of a layer per query head, `[head, d_head, d_model]`: what turns a head's output into what it writes."""
        return self.attention_output(layer).weights

    def attention_output(self, layer: int) -> AttentionOutput:
        """How a layer turns head outputs into what it adds to the residual stream.

        Raises `ModelError` where this architecture's output projection is not one matrix per head.
        """
        self.info.check_layer(layer)
        found = self._attention_output(layer)
        expected = (self.info.n_heads, self.info.d_head, self.info.d_model)
        if found is None or not found.weights.is_floating_point() or tuple(found.weights.shape) != expected:
            came = "none" if found is None else f"{found.weights.dtype} {list(found.weights.shape)}"
            raise ModelError(
                f"{self.info.name} ({self.info.architecture}): layer {layer} has no output weights of shape "
                f"{list(expected)} [head, d_head, d_model] that can be read here (found: {came}), so what single heads "
                "write into the residual stream is not known"
            )
        checks = self.checks
        if checks is not None and checks.output_error is not None and not checks.output_error <= checks.tolerance:
            raise ModelError(
                f"{self.info.name} ({self.info.architecture}): what attention adds is not z W_O + b (off by "
                f"{checks.output_error:.3g} of the largest value), so what single heads write into the residual stream is not "
                "known"
            )
        return found

    def _attention_output(self, layer: int) -> AttentionOutput | None:
        """The layer's output projection, or None where this backend knows of none."""
        return None

    @property
    def norms_attention(self) -> bool:
        """Whether what attention writes is normed before it is added, so that its heads do not add up (Gemma 2 and 3)."""
        found = self._attention_output(0)
        return found is not None and found.norm is not None

    def need_tokenizer(self, what: str) -> None:
        """`ModelError` if there is no tokenizer, which `what` needs."""
        if self.tokenizer is None:
            raise ModelError(
                f"{self.info.name} has no tokenizer, which {what} needs: give one, wrap_model(..., tokenizer=...)"
            )

    def text_of(self, ids: Sequence[int]) -> str:
        """Return the text of token ids, as they are; the ids themselves where there is no tokenizer."""
        return " ".join(map(str, ids)) if self.tokenizer is None else str(self.tokenizer.decode(ids))

    def need_rotated(self, what: str) -> None:
        """`ModelError` if the queries and keys that enter the scores cannot be had, which `what` is computed from."""
        if not self.shows_rotated:
            info, why = self.info, self.checks.entering if self.checks is not None else ""
            raise ModelError(
                f"{info.name} ({info.architecture}) shows no queries and keys as they enter the scores on backend "
                f"{info.backend!r}, which {what} need{f' ({why})' if why else ''}: use another backend"
            )

    def visible(self, inputs: Inputs, places: Sequence[torch.device] = ()) -> tuple[Tensor, ...]:
        """Each layer's visibility `[b, 1|H, T, T]` for this input (equal windows on one device share one tensor).

        `places`: the device of each layer; without, all are where the input is.
        """
        made: dict[int | None, Tensor] = {}
        for window in set(self.info.windows):
            made[window] = visibility(
                inputs.n_tokens,
                window=window,
                position_ids=inputs.position_ids,
                attention_mask=inputs.attention_mask,
                device=inputs.tokens.device,
            )
        here = inputs.tokens.device
        moved = {key: made[key[0]].to(key[1]) for key in zip(self.info.windows, places, strict=False) if key[1] != here}
        wanted = zip(self.info.windows, places or [here] * len(self.info.windows), strict=True)
        return tuple(moved.get(key, made[key[0]]) for key in wanted)

    def run(
        self,
        inputs: Inputs | Tensor,
        *,
        position_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        capture: Mapping[str, Reducer] | None = None,
        edits: Mapping[str, Edit] | None = None,
        logits_at: LogitsAt = "all",
        grad: bool = False,
    ) -> Run:
        """One forward pass.

        Parameters
        ----------
        inputs : what goes in (`PromptPair.condition` makes one), or token ids `[batch, token]` alone (a 1D tensor is one
            prompt). No token is added.
        position_ids, attention_mask : of token ids alone: `[batch, token]`, whole or fractional, None counts from 0;
            boolean `[batch, 1 or n_heads, dest, src]`, True = visible, ANDed with causality and with each layer's window,
            which is counted on position ids.
        capture : hook name -> reducer, applied inside the forward pass after any edit of the same site, so that nothing
            large outlives its layer; None as a reducer keeps the whole activation, as a copy (with `grad` itself).
        edits : hook name -> pure function from the activation to its replacement (same shape).
        logits_at : "all", "last", "none", or positions; only these are unembedded.
        grad : keep the autograd graph (off by default).

        Raises `ValueError` for unknown hook names, positions outside the prompt, wrong shapes, prompts beyond the
        context length; `LeanAttentionError` where a pattern is asked of fused attention.
        """
        if isinstance(inputs, Tensor):
            inputs = Inputs(inputs, position_ids, attention_mask)
        elif position_ids is not None or attention_mask is not None:
            raise ValueError("position_ids and attention_mask are part of Inputs: give them there, or tokens alone")
        inputs = self._checked(inputs)
        capture, edits = dict(capture or {}), dict(edits or {})
        for name in (*capture, *edits):
            self._check_name(name)
        read = self._read_positions(logits_at, inputs.n_tokens)
        captured: dict[str, Any] = {}
        edited: set[str] = set()
        taps: dict[str, Tap] = {}
        for name in {**capture, **edits}:
            edit, reducer = edits.get(name), capture.get(name)
            if edit is not None and not self.remote:
                edit = _checked_edit(name, edit, edited)
            there = reducer if self.remote and reducer is not None and can_be_sent(reducer) else None
            kept = _keeper(captured, name, None if there else reducer, grad) if name in capture else None
            taps[name] = Tap(edit, kept, there)
        masks = None if inputs.plain else self.visible(inputs)
        with self.turn(), torch.set_grad_enabled(grad):
            logits = self._forward(inputs, masks, taps, read)
        missing = [name for name in capture if name not in captured]
        missing += [name for name in edits if name not in edited and not self.remote]
        if missing:
            raise ModelError(f"{self.info.backend}: no activation ever came for {missing}; this model has no such site")
        return Run(logits, {name: captured[name] for name in capture})

    def record(self, inputs: Inputs, *, start: int, logits_at: LogitsAt = "none") -> Recording:
        """Run once and keep what `replay` needs for the positions from `start` on (per layer, nothing else)."""
        given, inputs = inputs, self._checked(inputs)
        if not 0 <= start < inputs.n_tokens:
            raise ValueError(f"start must be a position of the prompt, 0 to {inputs.n_tokens - 1}, got {start}")
        later = partial(tail, start=start)
        kept: dict[str, Reducer] = {"attn.hook_z": later}
        if self.shows_rotated:
            kept |= {"hook_resid_pre": later, "attn.hook_rot_q": later}
            kept |= {"attn.hook_rot_k": torch.clone, "attn.hook_v": torch.clone}
        layers = range(self.info.n_layers)
        reducers = {site(layer, name): reducer for layer in layers for name, reducer in kept.items()}
        result = self.run(given, capture=reducers, logits_at=logits_at)
        per_layer = lambda name: tuple(  # noqa: E731
            result.captured[site(layer, name)] for layer in layers if name in kept
        )
        z = per_layer("attn.hook_z")
        places = [each.device for each in z]  # what enters a layer still lies where the layer before it does
        return Recording(
            inputs=inputs,
            start=start,
            logits=result.logits,
            resid_pre=tuple(x.to(place) for x, place in zip(per_layer("hook_resid_pre"), places, strict=False)),
            q=per_layer("attn.hook_rot_q"),
            k=per_layer("attn.hook_rot_k"),
            v=per_layer("attn.hook_v"),
            z=z,
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
        """Continue the receiving run from edited head outputs of one layer, or of one layer per row.

        `z` is `[batch x row, changed, head, d_head]`: for each prompt of the recording `row` alternative outputs of all
        heads at the positions from `receiving.start` on (rows of one prompt together). `layer` is where they are put:
        one number, or one per row in rising order, and a row joins the pass when its layer is reached, so that every
        layer's weights are read once. Only these positions and the layers from the first edited one on are computed;
        everything before them is read from the receiving run's own keys and values, under its own mask and position ids.
        Returns logits `[batch x row, read, vocab]`; `logits_at` takes positions from `start` on, "last" or "all" (all of
        these).

        `exact_forward=True` instead runs the whole model once per row, which is the slow definition of the same numbers.
        """
        batch = receiving.inputs.batch
        n_changed = receiving.n_tokens - receiving.start
        expected = (n_changed, self.info.n_heads, self.info.d_head)
        if z.dim() != 4 or tuple(z.shape[1:]) != expected or z.shape[0] % batch or not len(z):
            raise ValueError(
                f"z must be [{batch} prompts x rows, changed positions, heads, d_head] = [k*{batch}, "
                f"{', '.join(map(str, expected))}], got {list(z.shape)}"
            )
        rows = len(z) // batch
        layers = [layer] * rows if isinstance(layer, int) else list(layer)
        if len(layers) != rows or layers != sorted(layers):
            raise ValueError(f"layers must be one per row ({rows}) in rising order, got {layers}")
        if not 0 <= layers[0] <= layers[-1] < self.info.n_layers:
            raise ValueError(f"layer {layer} is out of range (zero-based): 0 to {self.info.n_layers - 1}")
        if isinstance(logits_at, str) and logits_at == "all":
            logits_at = list(range(receiving.start, receiving.n_tokens))
        read = self._read_positions(logits_at, receiving.n_tokens)
        if read is None or int(read.min()) < receiving.start:
            raise ValueError(
                f"a replay from position {receiving.start} on has no logits before it; asked for {logits_at!r}"
            )
        with torch.no_grad():
            stepper = None if exact_forward else self.stepper
            if stepper is None:
                if self.hooks and not exact_forward:
                    warnings.warn(f"{self.info.name} is slow: {self.why_whole_passes}", stacklevel=1)  # once
                return self._replay_by_forward(receiving, layers, z, read)
            return stepper.replay(receiving, layers, z, read - receiving.start)

    def _replay_by_forward(self, receiving: Recording, layers: list[int], z: Tensor, read: Tensor) -> Tensor:
        batch, start = receiving.inputs.batch, receiving.start
        by_prompt, edits = z.unflatten(0, (batch, len(layers))), {}
        for layer in sorted(set(layers)):
            rows = torch.tensor([row for row, at in enumerate(layers) if at == layer])
            old = receiving.z[layer]
            new = by_prompt[:, rows.to(z.device)].to(old)
            differ = (
                (new != old[:, None]).any(4).any(2).nonzero().cpu()
            )  # [cell, (prompt, row, head)]: all else is its own
            prompt, row, head = differ.unbind(1)
            if len(differ):
                edits[site(layer, "attn.hook_z")] = partial(
                    replaced,
                    start=start,
                    rows=(prompt * len(layers) + rows[row]).tolist(),
                    heads=head.tolist(),
                    new=new.transpose(2, 3)[tuple(at.to(new.device) for at in (prompt, row, head))],
                )
        logits = self.run(receiving.inputs.repeated(len(layers)), edits=edits, logits_at=read).logits
        assert logits is not None
        return logits

    def _checked(self, inputs: Inputs) -> Inputs:
        """The input on the model's device with its axes in order, or a clear error."""
        tokens, positions, mask = inputs.tokens, inputs.position_ids, inputs.attention_mask
        if tokens.dim() == 1:
            tokens = tokens[None]
        if tokens.dim() != 2 or tokens.is_floating_point() or not tokens.numel():
            raise ValueError(f"tokens must be whole numbers [batch, token], got {tokens.dtype} {list(tokens.shape)}")
        batch, n_tokens = tokens.shape
        lowest, highest = int(tokens.min()), int(tokens.max())
        if lowest < 0 or highest >= self.info.d_vocab:
            raise ValueError(
                f"token ids must lie in 0 to {self.info.d_vocab - 1} ({self.info.name}'s vocabulary), got {lowest} to "
                f"{highest}; was the text encoded with another model's tokenizer?"
            )
        if positions is not None:
            if positions.dim() == 1:
                positions = positions[None]
            if positions.shape not in ((batch, n_tokens), (1, n_tokens)):
                raise ValueError(f"position_ids must be [{batch}, {n_tokens}], got {list(positions.shape)}")
            positions = positions.expand(batch, n_tokens)
            if self.whole_positions and positions.is_floating_point():
                if not bool((positions == positions.round()).all()):
                    raise ValueError(
                        f"{self.info.name} looks positions up in a table, so position_ids must be whole numbers"
                    )
                positions = positions.long()
        longest = n_tokens if positions is None else float(positions.max()) + 1
        if longest > self.info.context_length:
            raise ValueError(
                f"the prompt needs {longest:g} positions but {self.info.name} has a context of "
                f"{self.info.context_length}: insert fewer tokens or leave this problem out"
            )
        if mask is not None:
            ok = mask.dtype == torch.bool and mask.dim() == 4 and mask.shape[2:] == (n_tokens, n_tokens)
            if not ok or mask.shape[0] not in (1, batch) or mask.shape[1] not in (1, self.info.n_heads):
                raise ValueError(
                    f"attention_mask must be boolean [{batch}, 1 or {self.info.n_heads}, {n_tokens}, {n_tokens}] "
                    f"(True = visible), got {mask.dtype} {list(mask.shape)}"
                )
        return Inputs(tokens, positions, mask).to(self.info.device)

    def _check_name(self, name: str) -> None:
        found = parsed(name)
        if found is None:
            known = ", ".join(f"blocks.{{l}}.{s}" for s in SITES)
            raise ValueError(f"unknown hook name {name!r}; known names: {known}")
        layer, what = found
        if layer >= self.info.n_layers:
            raise ValueError(f"{name}: layer {layer} is out of range (zero-based): 0 to {self.info.n_layers - 1}")
        if what in EAGER_SITES and self.info.attention != "eager":
            raise LeanAttentionError(
                f"{name} does not exist under {self.info.attention!r} attention, which never makes a pattern: load the "
                'model with attn_implementation="eager"'
            )

    def _read_positions(self, logits_at: LogitsAt, n_tokens: int) -> Tensor | None:
        """The positions asked for, in memory: what is looked up there nobody waits for."""
        if isinstance(logits_at, str):
            if logits_at == "none":
                return None
            if logits_at not in ("all", "last"):
                raise ValueError(f'logits_at must be "all", "last", "none" or positions, got {logits_at!r}')
            return torch.arange(0 if logits_at == "all" else n_tokens - 1, n_tokens)
        read = torch.as_tensor(logits_at, dtype=torch.long).cpu()
        if read.dim() != 1 or not read.numel() or int(read.min()) < 0 or int(read.max()) >= n_tokens:
            raise ValueError(f"logits_at must be positions 0 to {n_tokens - 1}, got {logits_at!r}")
        return read

    def __repr__(self) -> str:
        i = self.info
        return (
            f"{type(self).__name__}({i.name!r}, {i.n_layers} layers x {i.n_heads} heads ({i.n_key_value_heads} kv), "
            f"d_model {i.d_model}, {i.dtype} on {i.device}, {i.attention} attention)"
        )


def _checked_edit(name: str, edit: Edit, edited: set[str]) -> Edit:
    def apply(value: Tensor) -> Tensor:
        edited.add(name)
        new = edit(value)
        if not isinstance(new, Tensor) or new.shape != value.shape:
            came = list(new.shape) if isinstance(new, Tensor) else type(new).__name__
            raise ValueError(f"the edit of {name} must return a tensor of shape {list(value.shape)}, got {came}")
        return new.to(value.dtype)

    return apply


def _keeper(captured: dict[str, Any], name: str, reducer: Reducer, grad: bool) -> Callable[[Tensor], None]:
    def keep(value: Tensor) -> None:
        value = value if grad else value.detach()
        kept = value if reducer is None else reducer(value)
        if not grad and isinstance(kept, Tensor) and (kept is value or kept._is_view()):
            kept = kept.clone()  # a library may add to its activations in place (Falcon: attention to the MLP's)
        captured[name] = kept

    return keep


_HERE: "WeakValueDictionary[tuple[str, ...], Model]" = WeakValueDictionary()
"""Models that this process was sent, as long as anything uses them."""


def _here(how: "Callable[[], Model]", name: str, identity: Mapping[str, Any], checks: ModelChecks | None) -> Model:
    """The model that another process means: loaded when it is first named here, the same in all that numbers depend on."""
    known = name, str(identity["weights"]), repr(sorted(getattr(how, "keywords", {}).items()))
    model = _HERE.get(known) or how()
    found = model.checked(checks).identity
    differ = [
        f"{key} {found[key]} (not {identity[key]})"
        for key in identity
        if key != "model" and found[key] != identity[key]
    ]
    if differ:
        raise ModelError(
            f"{name} is another model where it was loaded again: {'; '.join(differ)}. The folder or the weights in memory were "
            "changed, or the workers are on other hardware: save the model and load that, on equal machines"
        )
    _HERE[known] = model
    return model.checked(checks)


INSTEAD = "use exact sweeps, which need none: patch_heads, or locate_heads(mode='exact')"


def no_gradients_because(model: Model) -> str | None:
    """Why no gradients can be had from this model here and now; None where nothing speaks against them.

    Weights below 16 bits are refused even where a library offers some backward pass: what would be differentiated is a
    dequantised approximation, and its error is not known.
    """
    if torch.is_inference_mode_enabled():
        return "inside torch.inference_mode() nothing has a gradient: leave it first (torch.no_grad() is no obstacle)"
    name = model.info.name
    if model.remote:
        return f"{name} runs remotely, where its gradients cannot be fetched: load it here, or {INSTEAD}"
    if model.quantised:
        return (
            f"{name} is quantised ({model.quantised}); gradients need weights of 16 bits or more: load it in bfloat16 or "
            f"float32, or {INSTEAD}"
        )
    if model.weights is not None and any(weight.is_inference() for weight in model.weights.parameters()):
        return (
            f"{name} was made inside torch.inference_mode(), so its weights can never enter a gradient: load it "
            f"outside, or {INSTEAD}"
        )
    if model.stepper is None:
        return f"{name} cannot be continued layer by layer, which gradients need ({model.why_whole_passes}): {INSTEAD}"
    return None


def refuse_without_gradients(model: Model, what: str) -> None:
    """`ModelError` that names what needs gradients, what stands in the way and what to do instead."""
    reason = no_gradients_because(model)
    if reason is not None:
        raise ModelError(f"{what} needs gradients, but {reason}")
