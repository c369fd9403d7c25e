"""HookedTransformer (TransformerLens 3.9) and TransformerBridge (3.9 and 4.x) behind the seam.

The only file that imports transformer_lens.
"""

import warnings
from collections.abc import Callable
from functools import cached_property
from importlib.metadata import version
from typing import Any

import torch
from torch import Tensor

from .attention import masked_scores
from .base import Model
from .hooked import HookedTransformerStepper, hooked_rule, hooked_unembed, rotary_tables, turned
from .hugging_face import attention_output_of, gated_mlp_of, hugging_face_info, layer_masks, unwrapped
from .info import AttentionOutput, AttentionRule, GatedMlp, ModelError, ModelInfo
from .inputs import Edit, Inputs
from .replay import HuggingFaceStepper
from .sites import site

Taps = dict[str, tuple[Edit | None, Callable[[Tensor], None] | None]]


def has_hooked_transformer() -> bool:
    """Whether the installed TransformerLens still has HookedTransformer (it was removed in 4.0)."""
    return int(version("transformer-lens").split(".")[0]) < 4


def _versions() -> dict[str, str]:
    return {name: version(name) for name in ("transformer-lens", "transformers", "torch")}


def _as_hook(edit: Edit | None, tap: Callable[[Tensor], None] | None) -> Callable[..., Tensor | None]:
    def hook(value: Tensor, hook: Any = None) -> Tensor | None:
        new = value if edit is None else edit(value)
        if tap is not None:
            tap(new)
        return None if edit is None else new

    return hook


class HookedTransformerModel(Model):
    """A HookedTransformer. It takes neither 4D masks nor position ids: they are realised at its hooks."""

    def __init__(self, hooked: Any, *, name: str, tokenizer: Any = None) -> None:
        cfg = hooked.cfg
        self.underlying = hooked.eval()
        self.tokenizer = tokenizer if tokenizer is not None else hooked.tokenizer
        local = [kind == "local" for kind in (cfg.attn_types or ["global"] * cfg.n_layers)]
        self.info = ModelInfo(
            name=name,
            backend="hooked_transformer",
            architecture=cfg.original_architecture or "HookedTransformer",
            n_layers=cfg.n_layers,
            n_heads=cfg.n_heads,
            n_key_value_heads=cfg.n_key_value_heads or cfg.n_heads,
            d_head=cfg.d_head,
            d_model=cfg.d_model,
            d_mlp=cfg.d_mlp,
            d_vocab=cfg.d_vocab,
            context_length=cfg.n_ctx,
            windows=tuple(cfg.window_size if is_local else None for is_local in local),
            dtype=str(cfg.dtype).removeprefix("torch."),
            device=str(cfg.device),
            attention="eager",
            versions=_versions(),
        )
        try:
            self.stepper = HookedTransformerStepper(hooked)
        except TypeError:
            self.stepper = None

    def attention_rule(self, layer: int) -> AttentionRule:
        return hooked_rule(self.underlying, layer)

    def _gated_mlp(self, layer: int) -> GatedMlp | None:
        mlp: Any = getattr(self.underlying.blocks[layer], "mlp", None)
        return GatedMlp(mlp.act_fn, mlp.b_in) if hasattr(mlp, "W_gate") and hasattr(mlp, "hook_pre_linear") else None

    def _attention_output(self, layer: int) -> AttentionOutput | None:
        block = self.underlying.blocks[layer]
        attn, norms = block.attn, self.underlying.cfg.use_normalization_before_and_after
        return AttentionOutput(attn.W_O.detach(), attn.b_O.detach(), block.ln1_post.forward if norms else None)

    def _forward(self, inputs: Inputs, masks: tuple[Tensor, ...] | None, taps: Taps, read: Tensor | None) -> Any:
        hooked = self.underlying
        hooks = [(name, _as_hook(*tap)) for name, tap in taps.items()]
        if masks is not None:
            hooks = self._position_hooks(inputs, masks) + hooks
        whole = torch.ones_like(inputs.tokens)  # else a left-padding tokenizer would have its pad tokens masked
        with hooked.hooks(fwd_hooks=hooks):
            resid = hooked(inputs.tokens, attention_mask=whole, stop_at_layer=hooked.cfg.n_layers)
            return None if read is None else hooked_unembed(hooked, resid[:, read])

    def _position_hooks(self, inputs: Inputs, masks: tuple[Tensor, ...]) -> list[tuple[str, Callable[..., Any]]]:
        hooks: list[tuple[str, Callable[..., Any]]] = []
        if inputs.position_ids is not None:
            hooks += self._positions_as_hooks(inputs.position_ids)
        for layer, mask in enumerate(masks):
            if inputs.position_ids is not None and self.info.windows[layer] is not None:
                hooks += self._rebuilt_scores(layer, mask)  # the layer's own window counts indices: too narrow here
            else:
                fill = lambda scores, hook, mask=mask: scores.masked_fill(~mask, -torch.inf)  # noqa: E731
                hooks.append((site(layer, "attn.hook_attn_scores"), fill))
        return hooks

    def _positions_as_hooks(self, positions: Tensor) -> list[tuple[str, Callable[..., Any]]]:
        cfg = self.underlying.cfg
        kind = cfg.positional_embedding_type
        if kind == "standard":
            if positions.is_floating_point() and not bool((positions == positions.round()).all()):
                raise ValueError("learned absolute positions have no fractional position ids; use whole numbers")
            table = self.underlying.pos_embed.W_pos
            return [("hook_pos_embed", lambda value, hook: table[positions.long()].to(value.dtype))]
        if kind != "rotary":
            raise ValueError(f"position_ids are not supported for {kind!r} positions; supported: rotary, standard")
        # RoPE composes: turn what has been turned for its index on to its new position
        delta = positions - torch.arange(positions.shape[1], device=positions.device)
        delta = delta if delta.is_floating_point() else delta.to(torch.float64)

        def turn(layer: int) -> Callable[..., Tensor]:
            attn = self.underlying.blocks[layer].attn

            def hook(value: Tensor, hook: Any) -> Tensor:
                cos, sin = rotary_tables(attn, delta)
                size = torch.hypot(attn.rotary_sin[1].double(), attn.rotary_cos[1].double()).to(cos)
                return turned(attn, value, cos / size, sin / size)

            return hook

        names = ("attn.hook_rot_q", "attn.hook_rot_k")
        return [(site(layer, name), turn(layer)) for layer in range(cfg.n_layers) for name in names]

    def _rebuilt_scores(self, layer: int, mask: Tensor) -> list[tuple[str, Callable[..., Any]]]:
        held: dict[str, Tensor] = {}

        def hold(key: str) -> Callable[..., None]:
            def hook(value: Tensor, hook: Any) -> None:
                held[key] = value

            return hook

        def rebuild(scores: Tensor, hook: Any) -> Tensor:
            return masked_scores(held.pop("q"), held.pop("k"), mask, self.attention_rule(layer))

        return [
            (site(layer, "attn.hook_rot_q"), hold("q")),
            (site(layer, "attn.hook_rot_k"), hold("k")),
            (site(layer, "attn.hook_attn_scores"), rebuild),
        ]


class BridgeModel(Model):
    """A TransformerBridge: Hugging Face's own modules with TransformerLens' hook names, always eager attention."""

    def __init__(self, bridge: Any, *, name: str, tokenizer: Any = None) -> None:
        self.underlying = bridge.eval()
        self.tokenizer = tokenizer if tokenizer is not None else bridge.tokenizer
        hf_model = self.hf_model = bridge.original_model
        self.info = hugging_face_info(hf_model, name=name, backend="bridge", attention="eager", versions=_versions())
        try:
            self.stepper = HuggingFaceStepper(hf_model)
        except TypeError:
            self.stepper = None

    def attention_rule(self, layer: int) -> AttentionRule:
        if self.stepper is not None:
            return self.stepper.rule(layer)
        attn = unwrapped(self.underlying.blocks[layer].attn)
        scale = getattr(attn, "scaling", None) or getattr(attn, "scale", None) or self.info.d_head**-0.5
        return AttentionRule(float(scale), getattr(attn, "attn_logit_softcapping", None))

    def _gated_mlp(self, layer: int) -> GatedMlp | None:
        return gated_mlp_of(self.underlying.original_model, layer)

    def _attention_output(self, layer: int) -> AttentionOutput | None:
        found = attention_output_of(self.underlying.original_model, layer, d_head=self.info.d_head)
        if found is not None:
            return found
        attn = getattr(self.underlying.blocks[layer], "attn", None)  # other names than Llama's: the bridge knows them
        weights, bias = getattr(attn, "W_O", None), getattr(attn, "b_O", None)
        if not isinstance(weights, Tensor):
            return None
        return AttentionOutput(weights.detach(), bias.detach() if isinstance(bias, Tensor) else None)

    @cached_property
    def _points(self) -> dict[str, Any]:
        """Hook name -> hook point. The bridge builds this anew for every hook of a run, which takes longer than the run."""
        return self.underlying.hook_dict

    def _forward(self, inputs: Inputs, masks: tuple[Tensor, ...] | None, taps: Taps, read: Tensor | None) -> Any:
        bridge = self.underlying
        hooks = [(self._points[name], _as_hook(*tap)) for name, tap in taps.items() if name in self._points]
        options: dict[str, Any] = {"attention_mask": torch.ones_like(inputs.tokens), "use_cache": False}
        if inputs.position_ids is not None:
            options["position_ids"] = inputs.position_ids
        last = inputs.n_tokens - 1
        options["logits_to_keep"] = read if read is not None else torch.tensor([last], device=inputs.tokens.device)
        level = bridge.context_level + 1  # as `run_with_hooks` does: the caller's own hooks are left alone
        try:
            bridge.context_level = level
            for point, hook in hooks:
                point.add_hook(hook, level=level)
            with layer_masks([block.attn for block in bridge.blocks], masks):
                logits = bridge(inputs.tokens, **options)
        finally:
            for point, _ in hooks:
                point.remove_hooks(level=level)
            bridge.context_level = level - 1
        return logits if read is not None else None


def bridge_from(hf_model: Any, tokenizer: Any, *, name: str, dtype: torch.dtype, device: str) -> BridgeModel:
    """A TransformerBridge around a loaded Hugging Face model (which it rebuilds in place)."""
    from transformer_lens.model_bridge import TransformerBridge

    try:
        bridge = TransformerBridge.boot_transformers(
            hf_model.config.name_or_path or name, hf_model=hf_model, tokenizer=tokenizer, device=device, dtype=dtype
        )
    except (ValueError, KeyError, RuntimeError, NotImplementedError) as error:
        raise ModelError(
            f"TransformerBridge cannot take {name!r} ({type(hf_model).__name__}): {str(error).splitlines()[0]}; try "
            'backend="nnsight"'
        ) from error
    return BridgeModel(bridge, name=name, tokenizer=tokenizer)


def hooked_transformer_from(
    hf_model: Any, tokenizer: Any, *, name: str, dtype: torch.dtype, device: str
) -> HookedTransformerModel:
    """A HookedTransformer with a loaded Hugging Face model's weights, unprocessed (no folding, no centring).

    TransformerLens 3.9 only knows published names; here its own weight converters are given a config made from the
    Hugging Face one, so a local directory works too. Raises `ModelError` for architectures without a converter.
    """
    if not has_hooked_transformer():
        raise ModelError(
            f"HookedTransformer was removed in TransformerLens 4.0 and {version('transformer-lens')} is installed: "
            'pip install "transformer-lens>=3.9,<4", or use backend="bridge"'
        )
    from transformer_lens import HookedTransformer, HookedTransformerConfig
    from transformer_lens.pretrained import weight_conversions as convert

    converters = {
        "Qwen2ForCausalLM": convert.convert_qwen2_weights,
        "Qwen3ForCausalLM": convert.convert_qwen3_weights,
        "LlamaForCausalLM": convert.convert_llama_weights,
        "MistralForCausalLM": convert.convert_mistral_weights,
        "Gemma2ForCausalLM": convert.convert_gemma_weights,
        "Gemma3ForCausalLM": convert.convert_gemma_weights,
        "Gemma3ForConditionalGeneration": convert.convert_gemma_weights,
    }
    architecture = type(hf_model).__name__
    if architecture not in converters:
        raise ModelError(
            f"{architecture} cannot be converted to a HookedTransformer here (convertible: {', '.join(converters)}); "
            'use backend="bridge"'
        )
    cfg = HookedTransformerConfig(**_hooked_config(hf_model.config.get_text_config(), architecture, dtype, device))
    with warnings.catch_warnings():  # that it goes in 4.0 is known here
        warnings.filterwarnings("ignore", "HookedTransformer is deprecated", DeprecationWarning)
        hooked = HookedTransformer(cfg, tokenizer=None, move_to_device=False)
    with torch.no_grad():
        state = converters[architecture](hf_model, cfg)
    state = {key: value.detach().clone().to(dtype) for key, value in state.items()}
    missing, unexpected = hooked.load_state_dict(state, strict=False)
    buffers = ("mask", "IGNORE", "rotary_sin", "rotary_cos")
    missing = [key for key in missing if not key.endswith(buffers)]
    if missing or unexpected:
        raise ModelError(
            f"{name!r}: converting {architecture} left {len(missing)} weights without a value and {len(unexpected)} "
            f'without a place, first {(missing + unexpected)[0]}; use backend="bridge"'
        )
    hooked.tokenizer = tokenizer  # kept with the object, for whoever takes it out and wraps it again
    return HookedTransformerModel(hooked.to(device, print_details=False), name=name, tokenizer=tokenizer)


def _hooked_config(config: Any, architecture: str, dtype: torch.dtype, device: str) -> dict[str, Any]:
    d_head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    made: dict[str, Any] = {
        "original_architecture": architecture,
        "d_model": config.hidden_size,
        "d_head": d_head,
        "n_heads": config.num_attention_heads,
        "n_key_value_heads": config.num_key_value_heads,
        "d_mlp": config.intermediate_size,
        "n_layers": config.num_hidden_layers,
        "n_ctx": config.max_position_embeddings,
        "eps": config.rms_norm_eps,
        "d_vocab": config.vocab_size,
        "act_fn": getattr(config, "hidden_act", None) or config.hidden_activation,
        "normalization_type": "RMS",
        "positional_embedding_type": "rotary",
        "rotary_adjacent_pairs": False,
        "rotary_dim": d_head,
        "final_rms": True,
        "gated_mlp": True,
        "use_qk_norm": architecture.startswith(("Gemma3", "Qwen3")),
        "dtype": dtype,
        "device": device,
        "init_weights": False,
    }
    ropes = config.rope_parameters
    per_kind = "full_attention" in ropes
    rope = ropes["full_attention"] if per_kind else ropes
    made["rotary_base"] = rope["rope_theta"]
    if per_kind and "sliding_attention" in ropes:
        made["rotary_base_local"] = ropes["sliding_attention"]["rope_theta"]
    kind = rope.get("rope_type", "default")
    if kind == "llama3":
        made |= {
            "use_NTK_by_parts_rope": True,
            "NTK_by_parts_factor": rope["factor"],
            "NTK_by_parts_low_freq_factor": rope["low_freq_factor"],
            "NTK_by_parts_high_freq_factor": rope["high_freq_factor"],
            "NTK_original_ctx_len": rope["original_max_position_embeddings"],
        }
    elif kind == "linear":
        made["rotary_scaling_factor"] = rope["factor"]
    elif kind != "default":
        raise ModelError(f'rotary scaling {kind!r} is not converted to HookedTransformer; use backend="bridge"')
    kinds = getattr(config, "layer_types", None) or []
    if "sliding_attention" in kinds:
        made |= {
            "use_local_attn": True,
            "window_size": config.sliding_window,
            "attn_types": ["local" if kind == "sliding_attention" else "global" for kind in kinds],
        }
    elif architecture == "MistralForCausalLM" and getattr(config, "sliding_window", None):
        window = {"use_local_attn": True, "window_size": config.sliding_window}
        made |= {**window, "attn_types": ["local"] * config.num_hidden_layers}
    if architecture.startswith("Gemma"):
        made |= {
            "use_normalization_before_and_after": True,
            "use_attn_scale": True,
            "attn_scale": config.query_pre_attn_scalar**0.5,
            "attn_scores_soft_cap": getattr(config, "attn_logit_softcapping", None) or -1.0,
            "output_logits_soft_cap": getattr(config, "final_logit_softcapping", None) or -1.0,
        }
    return made


def model_around(thing: Any, *, name: str, tokenizer: Any) -> Model | None:
    """The seam around a user's own HookedTransformer or TransformerBridge; None for anything else."""
    kinds = {base.__name__ for base in type(thing).__mro__}
    if "HookedTransformer" in kinds:
        return HookedTransformerModel(thing, name=name, tokenizer=tokenizer)
    if "TransformerBridge" in kinds:
        return BridgeModel(thing, name=name, tokenizer=tokenizer)
    return None
