"""How a batch of completions is driven: by Hugging Face's `generate`, or by whole forward passes."""

import warnings
from contextlib import ExitStack
from functools import partial

import torch
from torch import Tensor

from ..core.arguments import n_alike, one_of
from ..models.architectures import unwrapped
from ..models.base import Model
from ..models.checks import TOLERANCE, probe_tokens
from ..models.hugging_face import reference_logits
from ..models.info import Edit, Foreign, ModelError
from ..models.sites import gate_edits, site
from ..models.traced_ops import additive_mask
from .decoding import (
    CompletionEngine,
    Decoding,
    Finished,
    Row,
    accept_all,
    check_finite,
    next_tokens,
)
from .vllm import Vllm, VllmEngine

ENGINES = ("auto", "hugging_face", "forward", "vllm")


def engine_for(model: Model, name: str | Vllm) -> CompletionEngine:
    """Return the engine of that name; "auto" takes Hugging Face's where the model has one that agrees with it."""
    if isinstance(name, Vllm) or one_of(name, ENGINES, "engine") == "vllm":
        return VllmEngine(model, name if isinstance(name, Vllm) else None)
    if name == "forward" or (name == "auto" and model.hf_model is None):
        return ForwardEngine(model)
    if model.hf_model is None:
        raise ModelError(
            f"{model.info.name} on backend {model.info.backend!r} has no Hugging Face module to generate with: load it "
            'with backend="bridge" or "nnsight", or use engine="forward"'
        )
    return HuggingFaceEngine(model)


class HuggingFaceEngine(CompletionEngine):
    """`generate` with a key-value cache, padded batches that share their first tokens, and this toolkit's choice of tokens."""

    name = "hugging_face"

    def __init__(self, model: Model) -> None:
        self.model = model
        assert model.hf_model is not None  # engines for models without one are others
        self.module: Foreign = model.hf_model
        tokens = probe_tokens(model.info.d_vocab).to(model.info.device)
        ours = model.run(tokens).logits
        assert ours is not None
        with model.turn():
            theirs = reference_logits(self.module, tokens).to(ours)
        difference = float((ours - theirs).abs().max() / ours.abs().max().clamp(min=1e-30))
        if not difference <= TOLERANCE.get(model.info.dtype, 1e-3):
            raise ModelError(
                f"{model.info.name} on backend {model.info.backend!r}: the Hugging Face module underneath gives other "
                f'logits (off by {difference:.1e} of the largest); use engine="forward", which runs the model itself'
            )
        self.hides_under = ("eager", "sdpa") if len(attentions_of(model)) == model.info.n_layers else ()

    def run(self, rows: list[Row], decoding: Decoding, finished: Finished) -> None:
        from transformers import GenerationConfig

        shared = shared_prefix(self.model, rows, decoding)
        prompts = [row.request.prompt for row in rows]
        pads = [max(map(len, prompts)) - len(prompt) for prompt in prompts]
        pad = 0  # any id, as padding is masked
        both = list(zip(prompts, pads, strict=True))
        padded = [(*ids[:shared], *[pad] * n, *ids[shared:]) for ids, n in both]  # behind what all rows share
        real = [[1] * shared + [0] * n + [1] * (len(ids) - shared) for ids, n in both]
        length = decoding.max_new_tokens
        config = GenerationConfig(max_new_tokens=length, do_sample=False, pad_token_id=pad, use_cache=True)

        def choose(_: Tensor, scores: Tensor) -> Tensor:
            if decoding.temperature == 0:
                check_finite(rows, scores)
                return scores
            return torch.full_like(scores, -torch.inf).scatter(1, next_tokens(rows, scores, decoding)[:, None], 0.0)

        device = self.model.info.device
        options = {"past_key_values": self._prefix_cache(rows, shared, decoding)} if shared else {}
        with ExitStack() as stack:
            # its own would mix its penalties in
            stack.callback(setattr, self.module, "generation_config", getattr(self.module, "generation_config", None))
            self.module.generation_config = config
            if any(pads):
                _keep_finite(stack, self.model)
            if decoding.knockout:
                spans = [_span_of(row, shared, n) for row, n in zip(rows, pads, strict=True)]
                _hide_spans(stack, self.model, decoding, torch.tensor(spans, device=device))
            _redraw(stack, self.model, decoding, rows, pads)
            stack.enter_context(warnings.catch_warnings())
            if self.module.device.type == "meta":  # an offloaded embedding takes its tokens where they are
                warnings.filterwarnings("ignore", r"You are calling \.generate\(\) with the `input_ids` being on")
            self.module.generate(
                input_ids=torch.tensor(padded, device=device),
                attention_mask=torch.tensor(real, device=device),
                generation_config=config,
                logits_processor=[choose],
                stopping_criteria=[_Stops(rows, finished)],
                **options,
            )

    def _prefix_cache(self, rows: list[Row], shared: int, decoding: Decoding) -> object:
        """Return keys and values of the tokens that all rows begin with, computed once and repeated for each row."""
        from transformers import DynamicCache

        cache = DynamicCache(config=self.module.config.get_text_config())
        tokens = torch.tensor([rows[0].request.prompt[:shared]], device=self.model.info.device)
        with ExitStack() as stack:
            if decoding.knockout:  # where spans differ between rows, none begins inside the prefix
                _hide_spans(stack, self.model, decoding, torch.tensor([rows[0].span], device=tokens.device))
            self.module(
                input_ids=tokens,
                attention_mask=torch.ones_like(tokens),
                past_key_values=cache,
                use_cache=True,
                logits_to_keep=1,
            )
        cache.batch_repeat_interleave(len(rows))
        return cache


LEAST_SHARED = 8  # tokens; a shorter common beginning is not worth a pass of its own


def shared_prefix(model: Model, rows: list[Row], decoding: Decoding) -> int:
    """Return how many first tokens the rows of a batch have in common and may compute together (0: too few to be worth it).

    Padding then stands behind the prefix, so layers with a sliding window, which count by index, rule it out; so does ARM,
    whose statistics are over the whole prompt.
    """
    if len(rows) < 2 or decoding.arm is not None or any(window is not None for window in model.info.windows):
        return 0
    prompts = [row.request.prompt for row in rows]
    alike = n_alike(min(prompts), max(prompts))  # all others lie between them, so they begin alike
    common = min(alike, min(map(len, prompts)) - 1)  # a token of each prompt is left
    if decoding.knockout and len(spans := {row.span for row in rows}) > 1:
        common = min(common, *(start for start, _ in spans))
    return common if common >= LEAST_SHARED else 0


class _Stops:
    eos_token_id = -1  # makes `generate` pad the rows that have stopped

    def __init__(self, rows: list[Row], finished: Finished) -> None:
        self.rows, self.finished = rows, finished

    def __call__(self, input_ids: Tensor, scores: object, **_: object) -> Tensor:
        accept_all(self.rows, input_ids[:, -1], self.finished)
        return torch.tensor([row.stop is not None for row in self.rows], device=input_ids.device)


def _span_of(row: Row, shared: int, pad: int) -> tuple[int, int]:
    """Return the span in a padded row, whose padding stands behind the shared prefix."""
    start, last = row.span[0], row.span[1] - 1
    return start + pad * (start >= shared), last + pad * (last >= shared) + 1


def attentions_of(model: Model) -> dict[int, Foreign]:
    """Return the attention module of each decoder layer whose name is known: where masks are put."""
    parts = enumerate(getattr(model, "parts", ()))
    return {at: part.module.get_submodule(part.attention_path) for at, part in parts if part.attention is not None}


def _keep_finite(stack: ExitStack, model: Model) -> None:
    """Keep rows that see nothing (padding's own) finite in eager attention, whose softmax is float32 in every dtype."""

    def clamp(module: object, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
        mask = kwargs.get("attention_mask")
        if not isinstance(mask, Tensor) or not mask.is_floating_point():
            return None
        # lower ones are -inf in float32 (made in float64) or once a score is added (float16), and a row of -inf is NaN
        lowest = max(torch.finfo(mask.dtype).min, torch.finfo(torch.float32).min) / 2
        return args, {**kwargs, "attention_mask": mask.clamp(min=lowest)}

    if model.info.attention == "eager" and model.info.dtype in ("float64", "float16"):
        for module in attentions_of(model).values():
            stack.enter_context(module.register_forward_pre_hook(clamp, with_kwargs=True))


def _hide_spans(stack: ExitStack, model: Model, decoding: Decoding, spans: Tensor) -> None:
    """Knock heads out while generating: no position after `spans` `[row, (first, one past)]` sees their keys in these heads."""

    def hide(layer: int, module: object, args: tuple[object, ...], kwargs: dict[str, Foreign]) -> object:
        hidden = kwargs.get("hidden_states", args[0] if args else None)
        if not isinstance(hidden, Tensor) or "attention_mask" not in kwargs:
            raise ModelError(
                f"{type(unwrapped(module)).__name__} takes no attention_mask by name: heads cannot be knocked out "
                "while generating on this architecture"
            )
        caches = (kwargs.get(name) for name in ("past_key_values", "layer_past"))  # its name, by architecture
        cache = next((each for each in caches if each is not None), None)
        n_queries = hidden.shape[1]
        before, (n_keys, first) = 0, (n_queries, 0)
        if cache is not None:  # which holds only the last keys in a layer with a sliding window
            before, (n_keys, first) = int(cache.get_seq_length(layer)), cache.get_mask_sizes(n_queries, layer)
        keys = torch.arange(first, first + n_keys, device=hidden.device)
        queries = torch.arange(before, before + n_queries, device=hidden.device)
        start, stop = spans.to(hidden.device).unsqueeze(-1).unbind(1)  # [row, 1]
        inside, after = (keys >= start) & (keys < stop), queries >= stop
        knocked = torch.zeros(model.info.n_heads, dtype=torch.bool, device=hidden.device)
        knocked[[head.head for head in decoding.knockout if head.layer == layer]] = True
        unseen = inside[:, None, None, :] & after[:, None, :, None] & knocked[None, :, None, None]
        mask = kwargs["attention_mask"]  # the model's, else causality and the layer's window: less the span
        if mask is None:
            visible, window = keys <= queries[:, None], model.info.windows[layer]
            if window is not None:
                visible = visible & (queries[:, None] - keys < window)
            mask = additive_mask(visible[None, None] & ~unseen, hidden.dtype)
        elif mask.dtype == torch.bool:
            mask = mask & ~unseen
        else:
            mask = mask.masked_fill(unseen, torch.finfo(mask.dtype).min)
        return args, {**kwargs, "attention_mask": mask}

    for layer in sorted({head.layer for head in decoding.knockout}):
        module = attentions_of(model)[layer]
        stack.enter_context(module.register_forward_pre_hook(partial(hide, layer), with_kwargs=True))


def _redraw(stack: ExitStack, model: Model, decoding: Decoding, rows: list[Row], pads: list[int]) -> None:
    """Redraw activations of MLPs (ARM), row by row, on each row's own tokens, which begin behind its padding."""

    def redraw(layer: int, module: object, args: object, output: Tensor) -> Tensor:
        new = output.clone().reshape(len(rows), -1, output.shape[-1])  # OPT's has rows of batch times token
        for row, pad, values in zip(rows, pads, new, strict=True):
            if row.stop is None:
                own = values if row.tokens else values[pad:]
                own[:] = row.redrawn(own, layer)
        return new.reshape(output.shape)

    parts = getattr(model, "parts", ())
    for layer in set(decoding.arm.layers) if decoding.arm else ():
        stack.enter_context(parts[layer].mlp.act.register_forward_hook(partial(redraw, layer)))


class ForwardEngine(CompletionEngine):
    """One whole `Model.run` per token, for rows of equal length: the slow definition, on every backend."""

    name = "forward"
    hides_under = ("eager",)  # where there are scores to edit

    def __init__(self, model: Model) -> None:
        self.model = model

    def run(self, rows: list[Row], decoding: Decoding, finished: Finished) -> None:
        for length in sorted({len(row.request.prompt) for row in rows}):
            going = [row for row in rows if len(row.request.prompt) == length]
            while going:
                tokens = torch.tensor([row.ids for row in going])
                logits = self.model.run(tokens, edits=self._edits(going, decoding), logits_at="last").logits
                assert logits is not None
                accept_all(going, next_tokens(going, logits[:, -1].float(), decoding), finished)
                going = [row for row in going if row.stop is None]

    def _edits(self, rows: list[Row], decoding: Decoding) -> dict[str, Edit]:
        def hide(heads: list[int], scores: Tensor) -> Tensor:
            new = scores.clone()
            for at, row in enumerate(rows):
                start, stop = row.span
                new[at, heads, stop:, start:stop] = torch.finfo(scores.dtype).min
            return new

        def redraw(layer: int, values: Tensor) -> Tensor:
            return torch.stack([row.all_redrawn(own, layer) for row, own in zip(rows, values, strict=True)])

        edits: dict[str, Edit] = {}
        for layer in {head.layer for head in decoding.knockout}:
            heads = [head.head for head in decoding.knockout if head.layer == layer]
            edits[site(layer, "attn.hook_attn_scores")] = partial(hide, heads)
        for layer in set(decoding.arm.layers) if decoding.arm else ():
            edits |= gate_edits(layer, self.model.gated_mlp(layer), partial(redraw, layer))
        return edits
