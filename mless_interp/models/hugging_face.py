"""What every backend takes from Hugging Face: models by name or from memory, their geometry and weights, their masks."""

import copy
import inspect
import shutil
import tempfile
import weakref
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import ClassVar

import torch
from huggingface_hub import constants, get_session
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerFast
from transformers.utils import cached_file, logging

from ..core.arguments import nearest
from . import architectures, load_options, weights
from .base import Model
from .info import AttentionOutput, AttentionRule, Foreign, GatedMlp, Inputs, Masks, ModelError, ModelInfo, Taps
from .sites import turned_taps
from .traced_ops import additive_mask, is_half, unembedded

_SHAPE = ("num_hidden_layers", "num_attention_heads", "hidden_size", "max_position_embeddings", "vocab_size")


def hugging_face_info(hf_model: Foreign, *, name: str = "", backend: str = "", attention: str = "eager") -> ModelInfo:
    """Return the geometry that a Hugging Face config gives (its text part for multimodal models); `ModelError` for models whose
    conditions are undefined, or whose attention is of another form."""
    config = hf_model.config.get_text_config()
    if reason := _not_taken(hf_model, config):
        raise ModelError(f"{name} ({type(hf_model).__name__}) {reason}: it is not taken")
    n_layers, n_heads, kind = config.num_hidden_layers, config.num_attention_heads, config.model_type

    def said(*names: str) -> int | None:
        """Return the first of these that the config says."""
        return next((found for name in names if (found := getattr(config, name, None))), None)

    n_key_value_heads = said("num_key_value_heads", "num_kv_heads") or n_heads
    if kind == "falcon" and not config.new_decoder_architecture:
        n_key_value_heads = 1 if config.multi_query else n_heads
    d_mlp = said("intermediate_size", "ffn_hidden_size", "ffn_dim", "n_inner")
    d_mlp = d_mlp or (4 * config.hidden_size if kind in ("gpt2", "gptj", "gpt_neo") else None)
    experts = said("num_local_experts", "num_experts", "n_routed_experts")  # which share no `hook_post`
    # up to these lengths tokens are rotated by their positions alone: longrope's frequencies change beyond
    ropes = getattr(config, "rope_parameters", None) or {}
    ropes = [rope for rope in (ropes, *ropes.values()) if isinstance(rope, dict)]
    lengths = [rope["original_max_position_embeddings"] for rope in ropes if rope.get("rope_type") == "longrope"]
    latent = any(hasattr(each, "kv_a_proj_with_mqa") for each in hf_model.modules())
    # a key that neither a config's class (as a field or a property) nor a module has, its model does not read
    known = {*inspect.signature(type(config).__init__).parameters, *dir(type(config))}
    known |= {"sliding_window"} if any(hasattr(each, "sliding_window") for each in hf_model.modules()) else set()
    kinds, width = (getattr(config, key, None) if key in known else None for key in ("layer_types", "sliding_window"))
    if kinds is None and hasattr(config, "attention_layers"):  # GPT-Neo
        kinds, width = config.attention_layers, config.window_size
    if kinds is None:
        kinds = ["local" if getattr(config, "use_sliding_window", True) else "full"] * n_layers
    return ModelInfo(
        name=name,
        backend=backend,
        architecture=(getattr(hf_model.config, "architectures", None) or [type(hf_model).__name__])[0],
        n_layers=n_layers,
        n_heads=n_heads,
        n_key_value_heads=n_key_value_heads,
        d_head=config.v_head_dim if latent else getattr(config, "head_dim", None) or config.hidden_size // n_heads,
        d_model=config.hidden_size,
        d_mlp=None if experts else d_mlp,
        d_vocab=config.vocab_size,
        context_length=min([config.max_position_embeddings, *lengths]),
        windows=tuple(width if kind in ("sliding_attention", "local") else None for kind in kinds[:n_layers]),
        dtype=str(next(hf_model.parameters()).dtype).removeprefix("torch."),
        device=str(weights.device_of(hf_model)),
        attention=attention,
        d_key=config.qk_nope_head_dim + config.qk_rope_head_dim if latent else None,
        d_cached=config.kv_lora_rank + config.qk_rope_head_dim if latent else None,
    )


def _not_taken(hf_model: Foreign, config: Foreign) -> str | None:
    """Say why no backend takes a model, from its config and the names of its modules; None for one that may be taken."""

    def said(name: str, otherwise: object = None) -> Foreign:
        return getattr(config, name, otherwise)

    lacks = next((what for what in _SHAPE if not isinstance(said(what), int)), None)
    modules = list(hf_model.named_modules())
    latent = {
        type(architectures.unwrapped(each)).__name__ for _, each in modules if hasattr(each, "kv_a_proj_with_mqa")
    }
    unknown = ", ".join(sorted(latent - architectures.PAIRED.keys()))
    strange = ", ".join(sorted({*(said("layer_types") or ())} - {"full_attention", "sliding_attention"}))
    keys = architectures.decoder_of(hf_model).named_modules()
    widths = {getattr(part, "out_features", 0) for path, part in keys if path.endswith("self_attn.k_proj")}
    encoder = not said("is_decoder", True) and config.model_type[:8] != "gpt_neox"  # which never asks its config
    clips = said("clip_qkv") or getattr(said("attn_config"), "clip_qkv", None)
    narrow = said("word_embed_proj_dim") or said("hidden_size")
    reasons = {
        "tells tokens apart by ALiBi, which has no position ids": said("alibi", config.model_type in ("bloom", "mpt")),
        f"has no {lacks} in its config, so its layers are not all attention over positions": lacks,
        "is an encoder (is_decoder=False), whose tokens see later ones": encoder,
        "has layers whose heads differ in number or width": said("is_heterogeneous") or len(widths) > 1,
        "has layers of several widths (intermediate_size is a list)": isinstance(said("intermediate_size"), list),
        "clips its queries, keys and values (clip_qkv)": clips,
        f"embeds its tokens in {narrow} dimensions, other than those of its stream": narrow != said("hidden_size"),
        f"has layers of {strange}, neither full attention nor a sliding window": strange,
        f"makes its keys and values of a latent vector by {unknown}, which is not known here": unknown,
        "norms the outputs of all heads together": any(path.endswith("attn_sub_norm") for path, _ in modules),
    }
    return next((reason for reason, holds in reasons.items() if holds), None)


class HuggingFaceModel(Model):
    """A model whose layers are those of a Hugging Face decoder, whatever runs them."""

    backend: ClassVar[str]

    def __init__(
        self,
        underlying: Foreign,
        hf_model: Foreign,
        *,
        name: str,
        tokenizer: Foreign,
        attention: str = "eager",
        remote: bool | str = False,
    ) -> None:
        self.underlying, self.remote = underlying, remote
        self.tokenizer = underlying.tokenizer if tokenizer is None else tokenizer
        self.info = hugging_face_info(hf_model, name=name, backend=self.backend, attention=attention)
        self.quantised = quantisation_of(hf_model)
        self.parts = architectures.decoder_layers(hf_model, self.info)
        self.has_sinks = any(hasattr(part.attention, "sinks") for part in self.parts)
        self.windows_by_index = any(has_own_window(part.attention) for part in self.parts)
        self.float32_softmax = attention == "eager" and not self.has_sinks
        self.latent = any(isinstance(part.inputs, architectures.LatentInputs) for part in self.parts)
        self.positions = architectures.Positions.of(hf_model, self.parts)
        if self.positions is not None:
            self.whole_positions, self.learned_positions = self.positions.whole_only, self.positions.learned
        lacks = next((part.unknown for part in self.parts if part.unknown), None)
        if lacks:
            self.why_not_by_layers = f"its {lacks} go by names that are not known here"
        if not remote:
            self.hf_model = hf_model
            self.layers = architectures.HuggingFaceLayers.of(
                hf_model, self.parts, self.positions, d_head=self.info.d_head
            )

    def _attention(self, layer: int) -> nn.Module:
        found = self.parts[layer].attention
        assert found is not None
        return found

    def _turned(self, taps: Taps, inputs: Inputs) -> Taps:
        """Return these taps where queries and keys are shown only before they are turned, or only after that (latent ones)."""
        known, positions = self.positions, inputs.positions
        if known is None or any(part.inputs is None or part.inputs.norms is not None for part in self.parts):
            return taps  # a norm comes between, and has no way back

        def turn(layer: int, which: int, value: Tensor, *, back: bool) -> Tensor:
            none = value[..., :0, :]
            q, k = (none, value) if which else (value, none)
            return known.enter(layer, q, k, positions, back=back)[which]

        return turned_taps(taps, turn, shown="entering" if self.latent else "before")

    def attention_rule(self, layer: int) -> AttentionRule:
        return architectures.attention_rule_of(self._attention(layer), d_head=self.info.d_head)

    def _gated_mlp(self, layer: int) -> GatedMlp | None:
        mlp = self.parts[layer].mlp if self.parts else None  # of its activation not the hooks: it is asked in a run
        return None if mlp is None else GatedMlp(mlp.act.forward, gated=mlp.gate is not None)

    def _attention_output(self, layer: int) -> AttentionOutput | None:
        if self.remote:
            raise ModelError(f"{self.info.name} runs remotely, so its output weights are not here: load it here")
        return self.parts[layer].attention_output(self.info) if self.parts else None


def _from_pretrained(
    kind: Foreign, source: str | None, loading: load_options.Loading, *, name: str, **options: object
) -> PreTrainedModel:
    """Make the model that `kind.from_pretrained` makes; `ModelError` for weights that do not fit or are not finite."""
    places = loading.device_map
    said = getattr(options.get("config"), "quantization_config", None)
    if source is not None and (Path(source) / "config.json").is_file():
        said = load_options.document(Path(source), "config.json").get("quantization_config")
    if places is None and (loading.quantization_config or said is not None):
        places = {"": loading.place}  # quantised where they lie, never whole elsewhere
    given = {"device_map": places, "max_memory": loading.max_memory, "quantization_config": loading.quantization_config}
    options |= {option: value for option, value in given.items() if value is not None}
    adapted = source is not None and (Path(source) / load_options.ADAPTER).is_file()
    if adapted:  # loaded by itself below: together, transformers would not say which weights the model lacks
        options["adapter_kwargs"] = {"subfolder": "none"}
    with ExitStack() as left, _quiet_loading():
        if loading.offload_folder is not None:
            # a folder of its own, gone with the model: transformers names what it writes by the weight alone
            Path(loading.offload_folder).mkdir(parents=True, exist_ok=True)
            own = tempfile.mkdtemp(prefix="weights-", dir=Path(loading.offload_folder).absolute())
            left.callback(shutil.rmtree, own, ignore_errors=True)
            options["offload_folder"] = own
        model, found = kind.from_pretrained(
            source,
            dtype=loading.precision,
            attn_implementation=loading.attn_implementation,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # they are told in `found`, by name
            **options,
        )
        if set(getattr(model, "hf_device_map", {}).values()) == {"disk"}:
            raise ModelError(f"all weights of {name!r} would lie on the disk: give some module a device in device_map")
        weights.refuse_strange_keys(found, name=name, architecture=type(model).__name__)
        if adapted:
            found = model.load_adapter(source).to_dict()
            weights.refuse_strange_keys(found, name=f"{name}, its adapter", architecture=type(model).__name__)
        weakref.finalize(model, left.pop_all().close)
    # on a CPU, bits of products (MKL; not those of half precision) and, before torch 2.11, the kernel of stacked experts depend
    # on where a file has a weight; read before this, all files would stay in memory beside the copies, now one at a time does
    for weight in model.parameters():
        if weight.data_ptr() % weights.CACHE_LINE and (not is_half(weight) or weight.dim() > 2):
            weight.data = weight.data.clone()
    weights.refuse_not_finite(model, name=name)
    if loading.precision == torch.float64 and model._can_set_experts_implementation():
        model.set_experts_implementation("eager")  # grouped products have no float64
    if model.config.architectures is None:
        model.config.architectures = [type(model).__name__]
    return (model if places is not None else model.to(loading.place)).eval()


def load_hugging_face(name: str, loading: load_options.Loading) -> tuple[PreTrainedModel, Foreign]:
    """Load (model, tokenizer) from a directory, without the network, or from the hub; weights as safetensors only."""
    local = Path(name).is_dir()
    options = {"local_files_only": only_here(name), "trust_remote_code": loading.trust_remote_code}
    what = "the tokenizer of" if local else "model"
    try:
        tokenizer = load_tokenizer(name, **options)
        what = "model"
        quiet = {"_raise_exceptions_for_missing_entries": False, "_raise_exceptions_for_connection_errors": False}
        index = cached_file(name, load_options.INDEX, local_files_only=options["local_files_only"], **quiet)
        if index is not None:  # weights in one file have none
            load_options.check_index(Path(index))
        model = _from_pretrained(AutoModelForCausalLM, name, loading, name=name, use_safetensors=True, **options)
        return model, tokenizer
    except ModelError:
        raise
    except Exception as error:  # what transformers and its libraries raise on damaged files is of a dozen kinds
        where = "this directory" if local else "a local directory, 'demo', or a hub id that could be reached"
        meant = nearest(name, ["demo"])
        same = "kimi_k2" in str(error)  # Kimi-K2's layers are DeepSeek-V3's
        remedy = ' (in a copy of its folder write "model_type": "deepseek_v3" into config.json)' if same else ""
        reason = load_options.first_line(error)
        raise ModelError(f"cannot load {what} {name!r} from {where}{meant}: {reason}{remedy}") from error


def copied(hf_model: Foreign, loading: load_options.Loading, *, name: str) -> PreTrainedModel:
    """Copy a model's weights under its config, as if it had been saved and loaded; nothing is shared with it."""
    if any(weights.adapters(hf_model)):
        raise ModelError(
            f"{name!r} has an adapter that is not merged: merge it (merge_and_unload()), or wrap_model an nnsight model of it"
        )
    config, state = copy.deepcopy(hf_model.config), copy.deepcopy(hf_model.state_dict())
    made = _from_pretrained(type(hf_model), None, loading, name=name, config=config, state_dict=state)
    made.generation_config = copy.deepcopy(hf_model.generation_config)
    return made


def only_here(source: str) -> bool:
    """Ask whether to read a model from this machine alone: a directory, or a hub id where the hub does not answer (with no
    network every file would be tried five times, with pauses)."""
    if Path(source).is_dir():
        return True
    try:
        get_session().head(constants.ENDPOINT, timeout=constants.HF_HUB_ETAG_TIMEOUT)
    except Exception:  # noqa: BLE001 - of its client's kinds, offline mode's among them
        return True
    return False


@contextmanager
def _quiet_loading() -> Iterator[None]:
    """Show no bar for every weight and no table of strange ones, which are refused by name; as it was afterwards."""
    bars, told = logging.is_progress_bar_enabled(), logging.get_logger("transformers.modeling_utils")
    no_report: Foreign = lambda record: "LOAD REPORT" not in record.getMessage()  # noqa: E731
    logging.disable_progress_bar()
    told.addFilter(no_report)
    try:
        yield
    finally:
        told.removeFilter(no_report)
        if bars:
            logging.enable_progress_bar()


def load_tokenizer(name: str, **options: Foreign) -> Foreign:
    """Load the tokenizer of a directory or hub id; `ModelError` for a directory that holds none."""
    kind: Foreign = AutoTokenizer
    if Path(name).is_dir():
        load_options.check_tokenizer(Path(name))
    if (Path(name) / "tokenizer_config.json").is_file():
        # for some model types (Qwen2) transformers 5 rebuilds a byte-level tokenizer whatever was saved, silently wrong
        named = load_options.document(Path(name), "tokenizer_config.json").get("tokenizer_class")
        kind = PreTrainedTokenizerFast if named in ("PreTrainedTokenizerFast", "TokenizersBackend") else kind
    return kind.from_pretrained(name, **options)


def quantisation_of(module: nn.Module) -> str:
    """Say in a word how the weights are quantised; empty where they are not."""
    config = getattr(getattr(module, "config", None), "quantization_config", None)
    if config is not None:
        method = config.get("quant_method") if isinstance(config, dict) else getattr(config, "quant_method", None)
        return str(getattr(method, "value", method) or "quantization_config in its config")
    for label, weight in module.named_parameters():
        if not weight.is_floating_point() or weight.element_size() < 2:  # whole numbers, float8
            return f"{label} is {str(weight.dtype).removeprefix('torch.')}"
    libraries = ("bitsandbytes", "auto_gptq", "gptqmodel", "awq", "hqq", "torch.ao.nn.quantized")
    return next((type(part).__name__ for part in module.modules() if type(part).__module__.startswith(libraries)), "")


@torch.no_grad()
def reference_logits(hf_model: nn.Module, tokens: Tensor) -> Tensor:
    """Compute the logits of the plain Hugging Face forward pass, `[batch, token, vocab]`."""
    tokens = tokens.to(weights.device_of(hf_model))
    return hf_model(input_ids=tokens, attention_mask=torch.ones_like(tokens), use_cache=False).logits


def has_own_window(attention: nn.Module | None) -> bool:
    """Ask whether an attention hides what is outside its window by itself, by index, whatever mask it is given (GPT-Neo)."""
    return getattr(attention, "attention_type", None) == "local" and isinstance(attention.bias, Tensor)  # type: ignore[union-attr]


@contextmanager
def own_windows_lifted(attentions: Sequence[nn.Module], masks: Masks) -> Iterator[None]:
    """Lift the windows by index where masks are given, which have them by position."""
    own: list[Foreign] = [each for each in attentions if masks is not None and has_own_window(each)]
    before = [each.bias for each in own]
    try:
        for attention in own:
            attention.bias = torch.ones_like(attention.bias[:1, :1, :1, :1]).expand_as(attention.bias)
        yield
    finally:
        for attention, bias in zip(own, before, strict=True):
            attention.bias = bias


@contextmanager
def hooked_for_run(attentions: Sequence[nn.Module], masks: Masks, unembedding: nn.Module) -> Iterator[None]:
    """Give each attention its own 4D mask in place of its model's, and logits in float32 where the output layer's weights are
    in half precision (so that a soft-cap after it is float32 too); gone again afterwards."""

    def masked(visible: Tensor, module: nn.Module, args: tuple[Foreign, ...], kwargs: dict[str, Foreign]) -> object:
        hidden: Foreign = kwargs.get("hidden_states", args[0] if args else None)
        return args, {**kwargs, "attention_mask": additive_mask(visible.to(hidden.device), hidden.dtype)}

    with (
        ExitStack() as hooks,
        unembedding.register_forward_hook(lambda module, given, made: unembedded(module, given[0])),
    ):
        for attention, visible in zip(attentions, masks or (), strict=False):
            hooks.enter_context(attention.register_forward_pre_hook(partial(masked, visible), with_kwargs=True))
        yield
