"""What the bridge and nnsight share: loading Hugging Face models, their geometry, their masks."""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from .info import AttentionOutput, GatedMlp, ModelError, ModelInfo


def unwrapped(module: Any) -> Any:
    """The Hugging Face module inside a TransformerBridge component (itself if it is none)."""
    while getattr(module, "original_component", None) is not None:
        module = module.original_component
    return module


def decoder_of(hf_model: nn.Module) -> Any:
    """The text decoder of a causal language model: the module that holds the decoder layers."""
    decoder = unwrapped(hf_model)
    for name in ("model", "language_model", "model"):
        inner = unwrapped(getattr(decoder, name, None))
        if inner is not None and not hasattr(decoder, "layers"):
            decoder = inner
    return decoder


def hugging_face_info(
    hf_model: Any, *, name: str, backend: str, attention: str, versions: Mapping[str, str]
) -> ModelInfo:
    """Geometry from the Hugging Face config (its text part for multimodal models)."""
    config = hf_model.config.get_text_config()
    n_layers, n_heads = config.num_hidden_layers, config.num_attention_heads
    kinds = getattr(config, "layer_types", None)
    width = getattr(config, "sliding_window", None)
    if kinds is not None:
        windows = tuple(width if kind == "sliding_attention" else None for kind in kinds[:n_layers])
    else:
        slides = width is not None and getattr(config, "use_sliding_window", True)
        windows = (width if slides else None,) * n_layers
    parameter = next(hf_model.parameters())
    return ModelInfo(
        name=name,
        backend=backend,
        architecture=(getattr(hf_model.config, "architectures", None) or [type(hf_model).__name__])[0],
        n_layers=n_layers,
        n_heads=n_heads,
        n_key_value_heads=getattr(config, "num_key_value_heads", None) or n_heads,
        d_head=getattr(config, "head_dim", None) or config.hidden_size // n_heads,
        d_model=config.hidden_size,
        d_mlp=getattr(config, "intermediate_size", None),
        d_vocab=config.vocab_size,
        context_length=config.max_position_embeddings,
        windows=windows,
        dtype=str(parameter.dtype).removeprefix("torch."),
        device=str(parameter.device),
        attention=attention,
        versions=versions,
    )


def load_hugging_face(
    name: str, *, dtype: torch.dtype, device: str, device_map: Any, attention: str, trust_remote_code: bool
) -> tuple[Any, Any]:
    """(model, tokenizer) from a directory, without the network, or from the hub; weights as safetensors only."""
    from transformers import AutoModelForCausalLM

    local = Path(name).is_dir()
    options = {"local_files_only": local, "trust_remote_code": trust_remote_code}
    try:
        tokenizer = load_tokenizer(name, **options)
        placed = {"device_map": device_map} if device_map is not None else {}
        with _quiet_loading():
            hf_model = AutoModelForCausalLM.from_pretrained(
                name, dtype=dtype, attn_implementation=attention, use_safetensors=True, **placed, **options
            )
    except (OSError, ValueError, KeyError) as error:
        where = "this directory" if local else "a local directory, 'demo', or a hub id that could be reached"
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ModelError(f"cannot load model {name!r} from {where}: {first}") from error
    if getattr(hf_model.config, "architectures", None) is None:
        hf_model.config.architectures = [type(hf_model).__name__]
    if device_map is None:
        hf_model.to(device)  # type: ignore[arg-type]  # transformers' own annotation is wrong
    return hf_model.eval(), tokenizer


@contextmanager
def _quiet_loading() -> Iterator[None]:
    """No bar for every weight; as it was afterwards."""
    from transformers.utils import logging

    before = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if before:
            logging.enable_progress_bar()


def load_tokenizer(name: str, **options: Any) -> Any:
    """The tokenizer of a directory or hub id.

    For some model types (Qwen2 among them) transformers 5 ignores the class that a saved tokenizer names and rebuilds a
    byte-level one, silently wrong for any other kind. A directory that says "a plain fast tokenizer" is taken at its word.
    """
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    config = Path(name) / "tokenizer_config.json"
    if config.is_file():
        named = json.loads(config.read_text(encoding="utf-8")).get("tokenizer_class")
        if named in ("PreTrainedTokenizerFast", "TokenizersBackend"):
            return PreTrainedTokenizerFast.from_pretrained(name, **options)
    return AutoTokenizer.from_pretrained(name, **options)


@torch.no_grad()
def reference_logits(hf_model: Any, tokens: Tensor) -> Tensor:
    """Logits of the plain Hugging Face forward pass, `[batch, token, vocab]`."""
    tokens = tokens.to(next(hf_model.parameters()).device)
    return hf_model(input_ids=tokens, attention_mask=torch.ones_like(tokens), use_cache=False).logits


def additive_mask(visible: Tensor, dtype: torch.dtype) -> Tensor:
    """0 where visible, the dtype's lowest number elsewhere: what Hugging Face's eager and sdpa attention add."""
    return torch.zeros(visible.shape, dtype=dtype, device=visible.device).masked_fill(~visible, torch.finfo(dtype).min)


def gated_mlp_of(hf_model: nn.Module, layer: int) -> GatedMlp | None:
    """The gate of a decoder layer whose MLP is down_proj(act_fn(gate_proj(x)) * up_proj(x)); None for any other."""
    layers = getattr(decoder_of(hf_model), "layers", None)
    mlp: Any = None if layers is None else unwrapped(getattr(unwrapped(layers[layer]), "mlp", None))
    if not all(hasattr(mlp, name) for name in ("gate_proj", "up_proj", "down_proj", "act_fn")):
        return None
    return GatedMlp(unwrapped(mlp.act_fn))


def attention_output_of(hf_model: nn.Module, layer: int, *, d_head: int) -> AttentionOutput | None:
    """The output projection of a decoder layer whose attention ends in `o_proj`; None for any other."""
    layers = getattr(decoder_of(hf_model), "layers", None)
    block = None if layers is None else unwrapped(layers[layer])
    projection = unwrapped(getattr(unwrapped(getattr(block, "self_attn", None)), "o_proj", None))
    weight = getattr(projection, "weight", None)
    if not isinstance(weight, Tensor) or weight.dim() != 2 or weight.shape[1] % d_head:
        return None
    norm = getattr(block, "post_self_attn_layernorm", None)  # GLM 4
    if norm is None and hasattr(block, "post_feedforward_layernorm"):  # Gemma 2 and 3, OLMo 2 and 3
        norm = getattr(block, "post_attention_layernorm", None)
    bias = getattr(projection, "bias", None)
    return AttentionOutput(
        weight.detach().T.unflatten(0, (-1, d_head)),
        None if bias is None else bias.detach(),
        None if norm is None else unwrapped(norm).forward,  # not its hooks: it is asked in the middle of a run
    )


@contextmanager
def layer_masks(attentions: list[Any], masks: tuple[Tensor, ...] | None) -> Iterator[None]:
    """Give each attention module its own 4D mask in place of the one its model made; gone again afterwards."""
    handles = []

    def override(visible: Tensor) -> Callable[..., Any]:
        def hook(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            hidden = kwargs.get("hidden_states", args[0] if args else None)
            if "attention_mask" not in kwargs or not isinstance(hidden, Tensor):
                raise ModelError(
                    f"{type(unwrapped(module)).__name__} takes no attention_mask by name: conditions with masks or "
                    "position ids cannot be run on this architecture here"
                )
            mask = additive_mask(visible.to(hidden.device), hidden.dtype)
            return args, {**kwargs, "attention_mask": mask}

        return hook

    try:
        for attention, visible in zip(attentions, masks or (), strict=False):
            handles.append(attention.register_forward_pre_hook(override(visible), with_kwargs=True))
        yield
    finally:
        for handle in handles:
            handle.remove()
