"""`load_model`, `wrap_model` and `untrained_twin`: from a name or an object to a checked `Model`."""

import copy
import functools
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from ..core.arguments import beside, checked, nearest
from .base import Model
from .checks import check_model, probe_tokens
from .info import Foreign, ModelError
from .load_options import ADAPTER, HOSTED, Loading, document, first_line
from .weights import WeightsHash, config_hash, refuse_not_finite

CONVERTED_AT_MOST = 2e9
"""Bytes of weights that "auto" still converts to a HookedTransformer: three times as many are held meanwhile."""
DEMO_DIRECTORY = Path(__file__).parents[1] / "data" / "demo"


@runtime_checkable
class InMemory(Protocol):
    """A model that is already here: weights, config and tokenizer of whatever has these three are copied, no hooks."""

    @property
    def name(self) -> str: ...

    @property
    def hf_model(self) -> Foreign: ...

    @property
    def tokenizer(self) -> Foreign: ...


@checked
def load_model(
    name: str | Path | InMemory,
    *,
    backend: str = "auto",
    dtype: str | torch.dtype = "float32",
    device: str | None = None,
    device_map: Foreign = None,
    max_memory: dict[int | str, int | str] | None = None,
    offload_folder: str | Path | None = None,
    quantization_config: Foreign = None,
    attn_implementation: str = "eager",
    tf32: bool = True,
    trust_remote_code: bool = False,
    remote: bool | str = False,
) -> Model:
    """Load a causal language model behind one of the backends and check it.

    Parameters
    ----------
    name : "demo" (bundled), a local directory (nothing is fetched), or a hub id; weights are read from safetensors only. A
        directory may hold a HookedTransformer: its config's fields as config.json, its state as model.safetensors. Or a model
        in memory: anything with `name`, `hf_model` and `tokenizer` (a `PlantedModel`), which is copied.
    backend : "hooked_transformer" (TransformerLens 3.9), "bridge" (3.9 and 4.x), "nnsight"; "auto" takes the first that is
        installed and reproduces the model, from the bridge on for quantised weights and those of more than
        `CONVERTED_AT_MOST` bytes, nnsight if `device_map`, `remote` or another attention than eager is given.
    dtype, device : "float32", "float64", "bfloat16" or "float16"; None: the first GPU if there is one, else the CPU.
    device_map : spreads a model over devices (nnsight, bridge): "auto", "balanced", "sequential", or module -> device,
        "cpu" and "disk" among them (nnsight). `max_memory` (device -> bytes or "20GiB") bounds what "auto" puts where;
        `offload_folder` takes what it leaves on the disk.
    quantization_config : quantises while loading (nnsight, bridge): a config of transformers, or a dict with its
        "quant_method". A directory that is quantised says so itself.
    attn_implementation : nnsight only. "eager" shows patterns; "sdpa" is faster and lean and has none.
    tf32 : on a GPU, products of float32 are made in TF32 (factors of 10 bits, sums of float32), in this model's passes alone.
    trust_remote_code : off; running code from a model's repository is your decision.
    remote : nnsight only. True: on NDIF, a hub id that it hosts; no weight is read here ([how](../larger-models.md)). "local":
        written down as for NDIF, and answered here.

    Raises `ModelError` with what to do if the model is unknown, cannot be taken by the backend, or fails its check.
    """
    options = {key: value for key, value in locals().items() if key != "name"}
    loading = Loading(**options)
    if remote is True:
        from .nnsight import hosted

        if not isinstance(name, str):
            raise ValueError(f"{HOSTED}: {type(name).__name__} {name} is not one")
        made = hosted(name, loading)
        model = _finished(made, config=made.underlying._module.config, loaded_from=name)
    elif not isinstance(name, InMemory) and {"d_head", "model_type"} & config_of(name).keys() == {"d_head"}:
        from .transformer_lens import hooked_from_folder

        if loading.asked not in ("auto", "hooked_transformer") or loading.splits:
            raise ValueError(f"{name} holds a HookedTransformer: backend must be 'hooked_transformer', on one device")
        hooked = hooked_from_folder(Path(name), loading, name=str(name))
        model = _finished(hooked, config=hooked.underlying.cfg, loaded_from=str(name), tf32=tf32)
    else:
        model = _loaded(name, loading, loading.asked)
    there = Path(name).absolute() if isinstance(name, str | Path) and Path(name).is_dir() else name
    model.how = functools.partial(load_model, there, **options | {"backend": model.info.backend})
    return model


def _loaded(name: str | Path | InMemory, loading: Loading, backend: str) -> Model:
    from .hugging_face import copied, load_hugging_face, quantisation_of, reference_logits

    if isinstance(name, InMemory):
        label, source = name.name, None
        hf_model, tokenizer = copied(name.hf_model, loading, name=label), copy.deepcopy(name.tokenizer)
    else:
        label = source = str(name)
        hf_model, tokenizer = load_hugging_face(source_of(label), loading)
    quantised, hashed = quantisation_of(hf_model), WeightsHash().of(hf_model)
    try:
        reference = reference_logits(hf_model, probe_tokens(hf_model.config.get_text_config().vocab_size)).cpu()
    except (RuntimeError, ValueError, AttributeError, TypeError) as error:
        # a kernel that does not do this dtype, device or attention; a config that changes what a pass gives
        how = f"{type(hf_model).__name__} in {loading.dtype} on {loading.place}"
        raise ModelError(f"{label!r} does not run as a plain {how}: {first_line(error)}") from error
    finished = functools.partial(
        _finished,
        reference=reference,
        config=hf_model.config,
        loaded_from=source,
        weights_hash=hashed,
        tf32=loading.tf32,
    )
    if backend == "nnsight":
        from .nnsight import NnsightModel, wrapped

        traced = wrapped(hf_model, tokenizer)
        return finished(NnsightModel(traced, name=label, tokenizer=tokenizer, remote=loading.remote))
    from .transformer_lens import bridge_from, has_hooked_transformer, hooked_transformer_from

    if backend == "hooked_transformer" and quantised:
        raise ModelError(f"{label!r} is quantised ({quantised}), and cannot be converted: use the bridge")
    small = sum(weight.nbytes for weight in hf_model.parameters()) <= CONVERTED_AT_MOST
    if backend == "hooked_transformer" or (backend == "auto" and has_hooked_transformer() and small and not quantised):
        try:
            return finished(hooked_transformer_from(hf_model, tokenizer, name=label))
        except ModelError:
            if backend == "hooked_transformer":
                raise
    try:
        return finished(bridge_from(hf_model, tokenizer, name=label))
    except ModelError as error:
        if backend != "auto":
            raise
        del hf_model  # a bridge has rebuilt it
        try:
            return _loaded(name, loading, "nnsight")
        except ModelError as other:
            both = f"{first_line(error).partition('; try ')[0].rstrip('.')}. {first_line(other).partition('; use backend')[0]}"
            raise type(error)(f"no backend takes {label!r}. {both}") from error


@checked
def wrap_model(thing: Foreign, *, name: str | None = None, tokenizer: Foreign = None) -> Model:
    """Wrap a model that you already have: a HookedTransformer, a TransformerBridge or an nnsight model.

    The object stays yours: no weight is changed and no hook is left behind. `tokenizer` defaults to the object's own; give
    it for a bridge of TransformerLens 4, which loads its own anew with a beginning-of-sequence token in front.
    Raises `TypeError` for anything else, `ModelError` if the model fails its check.
    """
    label, mro = name or f"wrapped {type(thing).__name__}", type(thing).__mro__
    kinds = {word for kind in mro for word in (kind.__name__, kind.__module__.split(".")[0])}
    wrapper: Foreign
    if "HookedTransformer" in kinds:
        from .transformer_lens import HookedTransformerModel as wrapper
    elif "TransformerBridge" in kinds:
        from .transformer_lens import BridgeModel as wrapper
    elif "nnsight" in kinds:
        from .nnsight import NnsightModel as wrapper
    else:
        raise TypeError(
            f"wrap_model takes a HookedTransformer, a TransformerBridge or an nnsight model, got {type(thing).__name__}; load "
            "a plain Hugging Face model by load_model(SimpleNamespace(name=..., hf_model=..., tokenizer=...))"
        )
    model: Model = wrapper(thing, name=label, tokenizer=tokenizer)
    if model.weights is not None:
        refuse_not_finite(model.weights, name=label)
    return _finished(model, config=getattr(model.hf_model, "config", None) or getattr(thing, "cfg", None))


@checked
def untrained_twin(model: Model, seed: int = 0) -> Model:
    """Make a model of the same configuration and tokenizer, on the same device, whose weights the architecture's own
    initialisation draws anew, from `seed` alone: what it shows holds without training. `ModelError` for a model that runs
    elsewhere."""
    info, label = model.info, f"untrained twin of {model.info.name} (seed {seed})"
    if model.remote is True or model.config is None:
        raise ModelError(f"{info.name} runs elsewhere, and its untrained twin would have to be made here")
    from transformers import AutoModelForCausalLM, PreTrainedConfig

    config = copy.deepcopy(model.config)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        if not isinstance(config, PreTrainedConfig):
            from .transformer_lens import _hooked

            hooked = _hooked(config)
            hooked.init_weights()
            hooked = hooked.to(hooked.cfg.device)
            return wrap_model(hooked, name=label, tokenizer=model.tokenizer).on(model.engine)
        config.__dict__.pop("quantization_config", None)
        hf_model: Foreign = model.hf_model
        make = AutoModelForCausalLM.from_config if hf_model is None else type(hf_model)._from_config
        drawn = make(config, dtype=getattr(torch, info.dtype))
    twin = SimpleNamespace(name=label, hf_model=drawn, tokenizer=model.tokenizer)
    placed: dict[str, Foreign] = {"device": info.device} if len(model.devices) == 1 else {"device_map": "auto"}
    made = load_model(twin, backend=info.backend, dtype=info.dtype, attn_implementation=info.attention, **placed)
    return made.on(model.engine)


def _finished(
    model: Model,
    *,
    reference: Tensor | None = None,
    config: object = None,
    loaded_from: str | None = None,
    weights_hash: str | None = None,
    tf32: bool | None = None,
) -> Model:
    """Know the weights of a model, just made, by their hash (None: that of what it holds), and find its figures."""
    model._hashing, model.config = WeightsHash(), config
    model._held = None if model.weights is None else model._hashing.of(model.weights)
    libraries = ("nnsight" if model.info.backend == "nnsight" else "transformer-lens", "transformers", "torch")
    model.info = replace(
        model.info,
        versions={library: version(library) for library in libraries},
        loaded_from=loaded_from,
        weights_hash=weights_hash or model._held,
        config_hash=config_hash(config),
    )
    if model.info.dtype == "float32" and not all(device.startswith(("cpu", "meta")) for device in model.devices):
        model.tf32 = tf32
    model.checks = check_model(model, reference)
    return model


def tokenizer_of_model(name: str) -> Foreign:
    """Load the tokenizer of the model that `load_model` would load by this name, alone; `ModelError` where there is none."""
    from .hugging_face import load_tokenizer, only_here

    source = source_of(name)
    try:
        return load_tokenizer(source, local_files_only=only_here(source))
    except Exception as error:  # of a dozen kinds, as where models are loaded
        raise ModelError(f"cannot load the tokenizer of {name!r}: {first_line(error)}") from error


def config_of(label: str | Path) -> dict[str, Foreign]:
    """Return what the config.json behind a model's name says; nothing where it is not here."""
    directory = DEMO_DIRECTORY if label == "demo" else Path(label)
    return document(directory, "config.json") if (directory / "config.json").is_file() else {}


def source_of(label: str) -> str:
    """Return the directory or hub id behind a model's name; `ModelError` for a directory without a model."""
    directory = DEMO_DIRECTORY if label == "demo" else Path(label)
    if not directory.is_dir():
        if label.strip() and not label.startswith((".", "/", "~")) and label.count("/") < 2 and "\\" not in label:
            return label
        near = nearest(directory.name, beside(directory))
        raise ModelError(f"unknown model {label!r}: there is no such directory{near}; or give a hub id, or 'demo'")
    if not (directory / "config.json").exists():
        reason = "holds no config.json: it is not a saved Hugging Face model"
        if (directory / ADAPTER).exists():
            reason = "holds an adapter without its model: save the merged model (merge_and_unload())"
        raise ModelError(f"{label!r} {reason}")
    return str(directory)
