"""What every backend takes from Hugging Face: models by name or from memory, their geometry and weights, their masks."""

import copy
import inspect
import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from logging import Filter, LogRecord
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import constants, get_session
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerFast
from transformers.utils import cached_file, logging

from ..core.arguments import nearest
from .base import Model
from .decoder import (
    PAIRED,
    Geometry,
    HuggingFaceLayers,
    LatentInputs,
    Positions,
    attention_rule_of,
    decoder_layers,
    decoder_of,
    unwrapped,
)
from .derived_sites import turned_taps
from .info import AttentionOutput, AttentionRule, GatedMlp, ModelError, ModelInfo, versions_of
from .inputs import Inputs, Masks, Taps
from .loaded_weights import adapters, device_of, refuse_not_finite, refuse_strange_keys
from .model_folder import ADAPTER, INDEX, Loading, check_index, check_tokenizer, document, first_line, must_move
from .traced_ops import additive_mask, unembedded

_SHAPE = ("num_hidden_layers", "num_attention_heads", "hidden_size", "max_position_embeddings", "vocab_size")


def hugging_face_info(
    hf_model: Any, *, name: str, backend: str, attention: str, versions: Mapping[str, str]
) -> ModelInfo:
    """Geometry from the Hugging Face config (its text part for multimodal models).

    Raises `ModelError` for models whose conditions are undefined, or whose attention is of another form.
    """
    config = hf_model.config.get_text_config()
    reason = _not_taken(hf_model, config)
    if reason is not None:
        raise ModelError(f"{name} ({type(hf_model).__name__}) {reason}: it is not taken")
    n_layers, n_heads = config.num_hidden_layers, config.num_attention_heads
    latent = any(hasattr(each, "kv_a_proj_with_mqa") for each in hf_model.modules())
    # a key that a config's class has not, as a field or a property, its model does not read
    known = {*inspect.signature(type(config).__init__).parameters, *dir(type(config))}
    kinds, width = (getattr(config, key, None) if key in known else None for key in ("layer_types", "sliding_window"))
    if kinds is None and hasattr(config, "attention_layers"):  # GPT-Neo
        kinds, width = config.attention_layers, config.window_size
    if kinds is None:
        kinds = ["local" if getattr(config, "use_sliding_window", True) else "full"] * n_layers
    windows = tuple(width if kind in ("sliding_attention", "local") else None for kind in kinds[:n_layers])
    parameter = next(hf_model.parameters())
    return ModelInfo(
        name=name,
        backend=backend,
        architecture=(getattr(hf_model.config, "architectures", None) or [type(hf_model).__name__])[0],
        n_layers=n_layers,
        n_heads=n_heads,
        n_key_value_heads=_n_key_value_heads(config),
        d_head=config.v_head_dim if latent else getattr(config, "head_dim", None) or config.hidden_size // n_heads,
        d_model=config.hidden_size,
        d_mlp=_d_mlp(config),
        d_vocab=config.vocab_size,
        context_length=_one_rotation(config),
        windows=windows,
        dtype=str(parameter.dtype).removeprefix("torch."),
        device=str(device_of(hf_model)),
        attention=attention,
        versions=versions,
        d_key=config.qk_nope_head_dim + config.qk_rope_head_dim if latent else None,
        d_cached=config.kv_lora_rank + config.qk_rope_head_dim if latent else None,
    )


def _not_taken(hf_model: Any, config: Any) -> str | None:
    """Why no backend takes a model, from its config and the names of its modules; None for one that may be taken."""
    lacks = next((what for what in _SHAPE if not isinstance(getattr(config, what, None), int)), None)
    if getattr(config, "alibi", config.model_type in ("bloom", "mpt")):
        return "tells tokens apart by ALiBi, which has no position ids, so conditions that set them (gap, masked) are undefined"
    if lacks is not None:
        return f"has no {lacks} in its config, so it is no decoder whose layers are all attention over positions"
    # GPT-NeoX never asks its config
    if not getattr(config, "is_decoder", True) and not config.model_type.startswith("gpt_neox"):
        return "is an encoder (is_decoder=False), whose tokens see later ones, so conditions are undefined"
    if getattr(config, "is_heterogeneous", False) or len(_key_widths(hf_model)) > 1:
        return "has layers whose heads differ in number or width, and only layers of one shape are taken"
    if getattr(config, "clip_qkv", None) or getattr(getattr(config, "attn_config", None), "clip_qkv", None):
        return "clips its queries, keys and values (clip_qkv), and no backend shows values as they are mixed then"
    narrow = getattr(config, "word_embed_proj_dim", None)
    if narrow not in (None, config.hidden_size):
        return f"embeds its tokens in {narrow} dimensions and projects them to {config.hidden_size} and back (OPT-350m does)"
    strange = set(getattr(config, "layer_types", None) or ()) - {"full_attention", "sliding_attention"}
    if strange:
        return (
            f"has layers of {', '.join(sorted(strange))}, and only those that attend to all tokens before or to a sliding "
            "window of them are taken"
        )
    latent = {type(unwrapped(each)).__name__ for each in hf_model.modules() if hasattr(each, "kv_a_proj_with_mqa")}
    if latent - PAIRED.keys():
        names = ", ".join(sorted(latent - PAIRED.keys()))
        return f"makes its keys and values of a latent vector by {names}, which is not known here"
    if any(path.endswith("attn_sub_norm") for path, _ in hf_model.named_modules()):
        return "norms the outputs of all heads together before they are projected, so that no head writes by itself"
    return None


def _key_widths(hf_model: Any) -> set[int]:
    """All widths of the decoder's key projections (Gemma 4 and MiMo have several)."""
    modules = decoder_of(hf_model).named_modules()
    return {getattr(part, "out_features", 0) for path, part in modules if path.endswith("self_attn.k_proj")}


def _one_rotation(config: Any) -> int:
    """The context length up to which tokens are rotated by their positions alone: longrope's frequencies are others where
    the longest position of a whole batch lies beyond the length it was trained on."""
    ropes = getattr(config, "rope_parameters", None) or {}
    kinds = [rope for rope in (ropes, *ropes.values()) if isinstance(rope, dict)]
    lengths = [rope["original_max_position_embeddings"] for rope in kinds if rope.get("rope_type") == "longrope"]
    return min([config.max_position_embeddings, *lengths])


def _any_of(config: object, *names: str) -> Any:
    """The first of these that a config says."""
    return next((found for name in names if (found := getattr(config, name, None))), None)


def _n_key_value_heads(config: Any) -> int:
    if config.model_type == "falcon" and not config.new_decoder_architecture:
        return 1 if config.multi_query else config.num_attention_heads
    return _any_of(config, "num_key_value_heads", "num_kv_heads") or config.num_attention_heads


def _d_mlp(config: Any) -> int | None:
    """Width of a layer's MLP, by whatever name; None for experts, which share no `hook_post`."""
    if _any_of(config, "num_local_experts", "num_experts", "n_routed_experts"):
        return None
    found: int | None = _any_of(config, "intermediate_size", "ffn_hidden_size", "ffn_dim", "n_inner")
    return found or (4 * config.hidden_size if config.model_type in ("gpt2", "gptj", "gpt_neo") else None)


class HuggingFaceModel(Model):
    """A model whose layers are those of a Hugging Face decoder, whatever runs them."""

    def __init__(
        self,
        underlying: Any,
        hf_model: Any,
        *,
        name: str,
        tokenizer: Any,
        backend: str,
        library: str,
        attention: str,
        remote: bool | str = False,
    ) -> None:
        self.underlying, self.tokenizer, self.remote = underlying, tokenizer, remote
        versions = versions_of(library, "transformers", "torch")
        self.info = hugging_face_info(hf_model, name=name, backend=backend, attention=attention, versions=versions)
        self.quantised = quantisation_of(hf_model)
        self.parts = decoder_layers(hf_model, Geometry.of(self.info))
        self.has_sinks = any(hasattr(part.attention, "sinks") for part in self.parts)
        self.windows_by_index = any(has_own_window(part.attention) for part in self.parts if part.attention is not None)
        self.float32_softmax = attention == "eager" and not self.has_sinks
        self.latent = any(isinstance(part.inputs, LatentInputs) for part in self.parts)
        self.positions = Positions.of(hf_model, self.parts)
        if self.positions is not None:
            self.whole_positions, self.learned_positions = self.positions.whole_only, self.positions.learned
        lacks = next((part.unknown for part in self.parts if part.unknown), None)
        if lacks:
            self.why_not_by_layers = f"its {lacks} go by names that are not known here"
        if not remote:
            self.hf_model = hf_model
            self.layers = HuggingFaceLayers.of(hf_model, self.parts, d_head=self.info.d_head)

    def _attention(self, layer: int) -> nn.Module:
        found = self.parts[layer].attention
        assert found is not None
        return found

    def _turned(self, taps: Taps, inputs: Inputs) -> Taps:
        """These taps where the library shows queries and keys only before it turns them, or only after that (latent ones)."""
        known, positions = self.positions, inputs.positions
        if known is None or any(part.inputs is None or part.inputs.norms is not None for part in self.parts):
            return taps  # a norm comes between, and has no way back

        def turn(layer: int, which: int, value: Tensor, *, back: bool) -> Tensor:
            none = value[..., :0, :]
            q, k = (none, value) if which else (value, none)
            return known.enter(layer, q, k, positions, back=back)[which]

        return turned_taps(taps, turn, shown="entering" if self.latent else "before")

    def attention_rule(self, layer: int) -> AttentionRule:
        return attention_rule_of(self._attention(layer), d_head=self.info.d_head)

    def _gated_mlp(self, layer: int) -> GatedMlp | None:
        return self.parts[layer].gated_mlp if self.parts else None

    def _attention_output(self, layer: int) -> AttentionOutput | None:
        if self.remote:
            raise ModelError(f"{self.info.name} runs remotely, so its output weights are not here: load it here")
        return self.parts[layer].attention_output(Geometry.of(self.info)) if self.parts else None


def _weights(kind: Any, source: str | None, loading: Loading, *, name: str, **options: Any) -> PreTrainedModel:
    """The model that `kind.from_pretrained` makes of `source`, in evaluation mode.

    `ModelError` if a weight was missing, left over, of another shape, or is not finite.
    """
    places = loading.device_map
    if places is None and (loading.quantization_config or _says_quantised(source, options.get("config"))):
        places = {"": loading.place}  # quantised where they lie, never whole elsewhere
    given: dict[str, Any] = {"device_map": places, "max_memory": loading.max_memory}
    given["quantization_config"] = loading.quantization_config
    options |= {name: value for name, value in given.items() if value is not None}
    adapted = source is not None and (Path(source) / ADAPTER).is_file()
    if adapted:  # loaded by itself below: together, transformers would not say which weights the model lacks
        options["adapter_kwargs"] = {"subfolder": "none"}
    with _own_folder(loading.offload_folder) as own, _quiet_loading():
        model, found = kind.from_pretrained(
            source,
            dtype=loading.precision,
            attn_implementation=loading.attn_implementation,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # they are told in `found`, by name
            **options | ({} if own is None else {"offload_folder": own}),
        )
        if set(getattr(model, "hf_device_map", {}).values()) == {"disk"}:
            raise ModelError(
                f"all weights of {name!r} would lie on the disk, and no device is left that computes: give some module a "
                "device in device_map, or max_memory room for one"
            )
        refuse_strange_keys(found, name=name, architecture=type(model).__name__)
        if adapted:
            found = model.load_adapter(source).to_dict()
            refuse_strange_keys(found, name=f"{name}, its adapter", architecture=type(model).__name__)
    if own is not None:
        weakref.finalize(model, shutil.rmtree, own, ignore_errors=True)
    # left where a file has them, products of these would round by the length of its header; read before this, all files
    # would stay in memory beside the copies, now one at a time does
    for weight in model.parameters():
        if must_move(weight.dtype, weight.dim(), weight.data_ptr()):
            weight.data = weight.data.clone()
    refuse_not_finite(model, name=name)
    if loading.precision == torch.float64 and model._can_set_experts_implementation():
        model.set_experts_implementation("eager")  # grouped products have no float64
    if model.config.architectures is None:
        model.config.architectures = [type(model).__name__]
    return (model if places is not None else model.to(loading.place)).eval()


def load_hugging_face(name: str, loading: Loading) -> tuple[PreTrainedModel, Any]:
    """(model, tokenizer) from a directory, without the network, or from the hub; weights as safetensors only."""
    local = Path(name).is_dir()
    options = {"local_files_only": only_here(name), "trust_remote_code": loading.trust_remote_code}
    what = "the tokenizer of" if local else "model"
    try:
        if local:
            check_tokenizer(Path(name))
        tokenizer = load_tokenizer(name, **options)
        what = "model"
        quiet = {"_raise_exceptions_for_missing_entries": False, "_raise_exceptions_for_connection_errors": False}
        index = cached_file(name, INDEX, local_files_only=options["local_files_only"], **quiet)
        if index is not None:  # weights in one file have none
            check_index(Path(index))
        return _weights(AutoModelForCausalLM, name, loading, name=name, use_safetensors=True, **options), tokenizer
    except ModelError:
        raise
    except Exception as error:  # what transformers and its libraries raise on damaged files is of a dozen kinds
        where = "this directory" if local else "a local directory, 'demo', or a hub id that could be reached"
        meant = nearest(name, ["demo"])
        raise ModelError(f"cannot load {what} {name!r} from {where}{meant}: {first_line(error)}") from error


def copied(hf_model: Any, loading: Loading, *, name: str) -> PreTrainedModel:
    """A model's weights under its config, as if it had been saved and loaded; nothing is shared with it."""
    if any(adapters(hf_model)):
        raise ModelError(
            f"{name!r} has an adapter that is not merged, which a copy of its config and weights has not: merge it "
            "(merge_and_unload()), or use wrap_model with an nnsight model of it"
        )
    config, weights = copy.deepcopy(hf_model.config), copy.deepcopy(hf_model.state_dict())
    made = _weights(type(hf_model), None, loading, name=name, config=config, state_dict=weights)
    made.generation_config = copy.deepcopy(hf_model.generation_config)
    return made


@contextmanager
def _own_folder(parent: str | Path | None) -> Iterator[str | None]:
    """A new folder in `parent` for what one loading leaves on the disk; gone where that fails. transformers names what it
    writes by the weight alone: in a shared one, another model's would take its place."""
    if parent is None:
        yield None
        return
    Path(parent).mkdir(parents=True, exist_ok=True)
    own = tempfile.mkdtemp(prefix="weights-", dir=Path(parent).absolute())
    try:
        yield own
    except BaseException:
        shutil.rmtree(own, ignore_errors=True)
        raise


def _says_quantised(source: str | None, config: object) -> bool:
    """Whether a saved model's own config says that its weights are quantised."""
    if config is None and source is not None and (Path(source) / "config.json").is_file():
        return "quantization_config" in document(Path(source), "config.json")
    return getattr(config, "quantization_config", None) is not None


def only_here(source: str) -> bool:
    """Whether a model can be read from this machine alone: a directory, or a hub id where the hub does not answer one request.

    Without it, a machine that has no network tries every file five times, with pauses.
    """
    if Path(source).is_dir():
        return True
    try:
        get_session().head(constants.ENDPOINT, timeout=constants.HF_HUB_ETAG_TIMEOUT)
    except Exception:  # noqa: BLE001 - of its client's kinds, offline mode's among them
        return True
    return False


class _NoReport(Filter):
    def filter(self, record: LogRecord) -> bool:
        return "LOAD REPORT" not in record.getMessage()


@contextmanager
def _quiet_loading() -> Iterator[None]:
    """No bar for every weight and no table of strange ones, which are refused by name; as it was afterwards."""
    before, told = logging.is_progress_bar_enabled(), logging.get_logger("transformers.modeling_utils")
    no_report = _NoReport()

    logging.disable_progress_bar()
    told.addFilter(no_report)
    try:
        yield
    finally:
        told.removeFilter(no_report)
        if before:
            logging.enable_progress_bar()


def load_tokenizer(name: str, **options: Any) -> Any:
    """The tokenizer of a directory or hub id.

    For some model types (Qwen2 among them) transformers 5 ignores the class that a saved tokenizer names and rebuilds a
    byte-level one, silently wrong for any other kind. A directory that says "a plain fast tokenizer" is taken at its word.
    """
    if (Path(name) / "tokenizer_config.json").is_file():
        named = document(Path(name), "tokenizer_config.json").get("tokenizer_class")
        if named in ("PreTrainedTokenizerFast", "TokenizersBackend"):
            return PreTrainedTokenizerFast.from_pretrained(name, **options)
    return AutoTokenizer.from_pretrained(name, **options)


def quantisation_of(module: nn.Module) -> str:
    """How the weights are quantised, in a word; empty where they are not."""
    for bits in ("8bit", "4bit"):
        if getattr(module, f"is_loaded_in_{bits}", False):
            return bits
    config = getattr(getattr(module, "config", None), "quantization_config", None)
    if config is not None:
        method = config.get("quant_method") if isinstance(config, dict) else getattr(config, "quant_method", None)
        return str(getattr(method, "value", method) or "quantization_config in its config")
    for label, parameter in module.named_parameters():
        if not parameter.is_floating_point() or parameter.element_size() < 2:  # whole numbers, float8
            return f"{label} is {str(parameter.dtype).removeprefix('torch.')}"
    for part in module.modules():
        library = type(part).__module__.partition(".")[0]
        if library in ("bitsandbytes", "auto_gptq", "gptqmodel", "awq", "hqq") or ".quantized" in type(part).__module__:
            return type(part).__name__
    return ""


@torch.no_grad()
def reference_logits(hf_model: nn.Module, tokens: Tensor) -> Tensor:
    """Logits of the plain Hugging Face forward pass, `[batch, token, vocab]`."""
    tokens = tokens.to(device_of(hf_model))
    return hf_model(input_ids=tokens, attention_mask=torch.ones_like(tokens), use_cache=False).logits


@contextmanager
def float32_unembedding(module: nn.Module) -> Iterator[None]:
    """This output layer gives float32 where its weights are in half precision: a soft-cap after it then is float32 too."""
    handle = module.register_forward_hook(lambda module, given, made: unembedded(module, given[0]))
    try:
        yield
    finally:
        handle.remove()


def has_own_window(attention: nn.Module) -> bool:
    """Whether an attention hides what is outside its window by itself, by index, whatever mask it is given (GPT-Neo)."""
    return getattr(attention, "attention_type", None) == "local" and isinstance(attention.bias, Tensor)


@contextmanager
def own_windows_lifted(attentions: Sequence[nn.Module], masks: Masks) -> Iterator[None]:
    """Where masks are given, windows are in them: where positions are set, one by index would be another."""
    own: list[Any] = [each for each in attentions if masks is not None and has_own_window(each)]
    before = [each.bias for each in own]
    try:
        for attention in own:
            attention.bias = torch.ones_like(attention.bias[:1, :1, :1, :1]).expand_as(attention.bias)
        yield
    finally:
        for attention, bias in zip(own, before, strict=True):
            attention.bias = bias


@contextmanager
def layer_masks(attentions: list[Any], masks: Masks) -> Iterator[None]:
    """Give each attention module its own 4D mask in place of the one its model made; gone again afterwards."""

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

    with ExitStack() as stack:
        for attention, visible in zip(attentions, masks or (), strict=False):
            stack.enter_context(attention.register_forward_pre_hook(override(visible), with_kwargs=True))
        yield
