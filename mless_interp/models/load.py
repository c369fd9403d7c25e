"""`load_model`, `wrap_model` and `untrained_twin`: from a name or an object to a checked `Model`."""

import copy
import functools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from ..core.arguments import beside, checked, nearest
from .base import Model
from .checks import check_model, probe_tokens
from .info import ModelError
from .loaded_weights import WeightsHash, config_hash, refuse_not_finite
from .model_folder import ADAPTER, document, first_line

if TYPE_CHECKING:  # importing transformers takes seconds
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

BACKENDS = ("auto", "hooked_transformer", "bridge", "nnsight")
CONVERTED_AT_MOST = 2e9
"""Bytes of weights that "auto" still converts to a HookedTransformer: three times as many are held meanwhile."""
DEMO_DIRECTORY = Path(__file__).parents[1] / "data" / "demo"


@runtime_checkable
class InMemory(Protocol):
    """A model that is already here: whatever has these three can be loaded, and is left as it is (a `PlantedModel` has)."""

    @property
    def name(self) -> str:
        """What results will call it."""

    @property
    def hf_model(self) -> "PreTrainedModel":
        """Its weights and config, which are copied; its hooks and replaced modules are not."""

    @property
    def tokenizer(self) -> "PreTrainedTokenizerBase":
        """Its tokenizer, which is copied."""


def _loaded_again_by(load: Callable[..., Model]) -> Callable[..., Model]:
    """What it loads knows how to be loaded again in another process: by the same call, on the backend that it found."""

    @functools.wraps(load)
    def wrapped(name: Any, **options: Any) -> Model:
        model = load(name, **options)
        there = Path(name).absolute() if isinstance(name, str | Path) and Path(name).is_dir() else name
        return model.loaded_by(functools.partial(load_model, there, **options | {"backend": model.info.backend}))

    return wrapped


@checked
@_loaded_again_by
def load_model(
    name: str | Path | InMemory,
    *,
    backend: str = "auto",
    dtype: str | torch.dtype = "float32",
    device: str | None = None,
    device_map: Any = None,
    max_memory: dict[int | str, int | str] | None = None,
    offload_folder: str | Path | None = None,
    quantization_config: Any = None,
    attn_implementation: str = "eager",
    tf32: bool = True,
    trust_remote_code: bool = False,
    remote: bool | str = False,
    remote_timeout: float = 600.0,
) -> Model:
    """Load a causal language model behind one of the backends and check it.

    Parameters
    ----------
    name : "demo" (bundled), a local directory (nothing is fetched), or a hub id where there is a network. Weights are
        read from safetensors only. A directory may hold a HookedTransformer: its config's fields as config.json, its state as
        model.safetensors. Or a model in memory: a `PlantedModel`, or anything with `name`, `hf_model` and
        `tokenizer` (`models.load.InMemory`), which is copied.
    backend : "hooked_transformer" (TransformerLens 3.9), "bridge" (3.9 and 4.x), "nnsight"; "auto" takes
        HookedTransformer where it is installed and reproduces the model, else the bridge, else nnsight. It begins with the
        bridge for weights of more than `CONVERTED_AT_MOST` bytes, since a conversion holds three times as many, and for
        quantised ones; with nnsight if `device_map`, `remote` or another attention than eager is given.
    dtype : "float32" (default), "float64", "bfloat16" or "float16".
    device : default: the first GPU if there is one, else the CPU.
    device_map : spreads a model over devices (nnsight, bridge): "auto", "balanced", "sequential", or module -> device,
        "cpu" and "disk" among them (nnsight). `max_memory` (device -> bytes or "20GiB") bounds what "auto" puts where;
        `offload_folder` takes what it leaves on the disk.
    quantization_config : quantises while loading (nnsight, bridge): a config of transformers, or a dict with its
        "quant_method". A directory that is quantised says so itself.
    attn_implementation : nnsight only. "eager" shows patterns; "sdpa" is faster and lean and has none.
    tf32 : on a GPU, products of float32 are made in TF32 (factors of 10 bits, sums of float32), several times as fast; False:
        in full. Set for this model's own passes alone, and part of what results were `computed_on`.
    trust_remote_code : off; running code from a model's repository is your decision.
    remote : nnsight only. True: on NDIF, a hub id that it hosts; no weight is read here ([how](../larger-models.md)). "local":
        each request is written down as for NDIF, and answered here.
    remote_timeout : seconds to wait for NDIF's answer to one request.

    Raises `ModelError` with what to do if the model is unknown, cannot be taken by the backend, or fails its check.
    """
    if backend not in BACKENDS:
        raise ValueError(f"unknown backend {backend!r}; choose one of {', '.join(BACKENDS)}")
    wanted = _dtype(dtype)
    if backend == "auto" and (device_map is not None or remote or attn_implementation != "eager"):
        backend = "nnsight"
    if backend != "nnsight" and (remote or attn_implementation != "eager"):
        raise ValueError(
            f"remote and attn_implementation need backend='nnsight', got {backend!r}: TransformerLens runs eager attention here"
        )
    if backend == "hooked_transformer" and (device_map is not None or quantization_config is not None):
        raise ValueError(
            "device_map and quantization_config need backend='nnsight' or 'bridge', got 'hooked_transformer': it converts the "
            "weights, on one device"
        )
    if device_map is None and (max_memory is not None or offload_folder is not None):
        raise ValueError("max_memory and offload_folder say how a device_map is to be made: give device_map='auto' too")
    if isinstance(device_map, dict) and "disk" in device_map.values() and backend == "bridge":
        raise ValueError("a TransformerBridge reads weights itself, so none may lie on the disk: use backend='nnsight'")
    if device is not None and device_map is not None:
        raise ValueError(f"give device or device_map, not both (got {device!r} and {device_map!r})")
    if remote not in (False, True, "local"):
        raise ValueError(f'remote must be False, True or "local", got {remote!r}')
    if not remote_timeout > 0:
        raise ValueError(f"remote_timeout must be above 0 seconds, got {remote_timeout}")
    if remote is True:
        placed_here = {"device": device, "device_map": device_map, "quantization_config": quantization_config}
        given = [what for what, value in placed_here.items() if value is not None]
        if given or not isinstance(name, str):
            what = f"{' and '.join(given)} cannot be given" if given else f"{type(name).__name__} {name} is not one"
            raise ValueError(f"remote=True takes a hub id, whose weights lie elsewhere: {what}")
        from .nnsight import hosted

        made = hosted(name, attention=attn_implementation, trust_remote_code=trust_remote_code, timeout=remote_timeout)
        return _checked(made, None, made.underlying._module.config, name)
    device = _device(device)
    if isinstance(name, str | Path) and (saved := hooked_folder(name)) is not None:
        if backend not in ("auto", "hooked_transformer") or device_map is not None or quantization_config is not None:
            raise ValueError(
                f"{str(name)!r} holds a HookedTransformer: backend must be 'hooked_transformer', on one device"
            )
        from .transformer_lens import hooked_from_folder

        found = hooked_from_folder(saved, name=str(name), dtype=wanted, device=device)
        return _checked(found, config=found.underlying.cfg, loaded_from=str(name), tf32=tf32)
    from .hugging_face import Placement, copied, load_hugging_face, quantisation_of, reference_logits

    folder = None if offload_folder is None else str(offload_folder)
    placed = Placement(wanted, device, device_map, attn_implementation, max_memory, folder, quantization_config)
    if isinstance(name, InMemory):
        label, source = name.name, None
        hf_model, tokenizer = copied(name.hf_model, placed, name=label), copy.deepcopy(name.tokenizer)
    else:
        label = source = str(name)
        hf_model, tokenizer = load_hugging_face(source_of(label), placed, trust_remote_code=trust_remote_code)
    origin = hf_model.config, source, WeightsHash().of(hf_model)
    vocabulary = hf_model.config.get_text_config().vocab_size
    try:
        reference = reference_logits(hf_model, probe_tokens(vocabulary)).cpu()
    except (RuntimeError, ValueError, AttributeError, TypeError) as error:
        # a kernel that does not do this dtype, device or attention; a config that changes what a pass gives
        raise ModelError(
            f"{label!r} ({type(hf_model).__name__}) does not run as plain Hugging Face model in {str(wanted)[6:]} on {device}: "
            f"{first_line(error)}; use another dtype, device or attn_implementation"
        ) from error
    if backend == "nnsight":
        from .nnsight import NnsightModel, wrapped

        traced = wrapped(hf_model, tokenizer)
        return _checked(
            NnsightModel(traced, name=label, tokenizer=tokenizer, remote=remote), reference, *origin, tf32=tf32
        )
    from .transformer_lens import bridge_from, has_hooked_transformer, hooked_transformer_from

    quantised = quantisation_of(hf_model)
    if backend == "hooked_transformer" and quantised:
        raise ModelError(
            f"{label!r} is quantised ({quantised}), and HookedTransformer converts whole weights: use the bridge"
        )
    small = sum(weight.nbytes for weight in hf_model.parameters()) <= CONVERTED_AT_MOST
    if backend == "hooked_transformer" or (backend == "auto" and has_hooked_transformer() and small and not quantised):
        try:
            return _checked(hooked_transformer_from(hf_model, tokenizer, name=label), reference, *origin, tf32=tf32)
        except ModelError:
            if backend == "hooked_transformer":
                raise
    try:
        return _checked(bridge_from(hf_model, tokenizer, name=label), reference, *origin, tf32=tf32)
    except ModelError:
        if backend != "auto":
            raise
        del hf_model  # a bridge has rebuilt it
        options: dict[str, Any] = {"dtype": wanted, "device": device, "trust_remote_code": trust_remote_code}
        options |= {"quantization_config": quantization_config, "tf32": tf32}
        try:
            return load_model(name, backend="nnsight", **options)
        except ModelError:
            pass  # re-raise the first failure
        raise


@checked
def wrap_model(thing: Any, *, name: str | None = None, tokenizer: Any = None) -> Model:
    """The seam around a model you already have: a HookedTransformer, a TransformerBridge or an nnsight model.

    The object stays yours: no weight is changed and no hook is left behind. `tokenizer` defaults to the object's own; give
    it for a bridge of TransformerLens 4, which loads its own anew with a beginning-of-sequence token in front.
    Raises `TypeError` for anything else, `ModelError` if the model fails its check.
    """
    from .transformer_lens import model_around

    label = name or f"wrapped {type(thing).__name__}"
    if isinstance(thing, str | Path):
        raise TypeError(f"wrap_model takes a model that is here already, got the name {str(thing)!r}: use load_model")
    if isinstance(thing, Model):
        raise TypeError(f"wrap_model takes a library's own model, got {type(thing).__name__}: it is wrapped already")
    model = model_around(thing, name=label, tokenizer=tokenizer)
    if model is None and any(kind.__module__.split(".")[0] == "nnsight" for kind in type(thing).__mro__):
        from .nnsight import NnsightModel

        model = NnsightModel(thing, name=label, tokenizer=tokenizer)
    if model is None:
        raise TypeError(
            f"wrap_model takes a HookedTransformer, a TransformerBridge or an nnsight model, got {type(thing).__name__}; "
            "for a plain Hugging Face model use nnsight.TransformersModel(model, tokenizer=...) or load_model(directory)"
        )
    if model.weights is not None:
        refuse_not_finite(model.weights, name=label)
    return _checked(model, config=getattr(model.hf_model, "config", None) or getattr(thing, "cfg", None))


@checked
def untrained_twin(model: Model, seed: int = 0) -> Model:
    """A model of the same configuration and tokenizer whose weights are drawn anew: what it shows holds without training.

    The architecture's own initialisation draws the weights, from `seed` alone: Hugging Face's for a model of `load_model`,
    TransformerLens' for a wrapped HookedTransformer. The twin is as large as the model and runs where it does (a quantised
    model's twin is not quantised). Raises `ModelError` for a model that runs elsewhere.
    """
    info, label = model.info, f"untrained twin of {model.info.name} (seed {seed})"
    if model.remote is True or model.config is None:
        raise ModelError(
            f"{info.name} runs elsewhere, and its untrained twin would have to be made here: load it here, or leave twins out"
        )
    from transformers import AutoModelForCausalLM, PreTrainedConfig

    with torch.random.fork_rng():
        torch.manual_seed(seed)
        if not isinstance(model.config, PreTrainedConfig):
            from .transformer_lens import untrained_hooked

            return wrap_model(untrained_hooked(model.config), name=label, tokenizer=model.tokenizer).on(model.engine)
        config = copy.deepcopy(model.config)
        config.__dict__.pop("quantization_config", None)
        make: Any = AutoModelForCausalLM.from_config if model.hf_model is None else type(model.hf_model)._from_config
        drawn = make(config, dtype=getattr(torch, info.dtype))
    placed: dict[str, Any] = {"device": info.device} if len(model.devices) == 1 else {"device_map": "auto"}
    twin = load_model(
        SimpleNamespace(name=label, hf_model=drawn, tokenizer=model.tokenizer),
        backend=info.backend,
        dtype=info.dtype,
        attn_implementation=info.attention,
        **placed,
    )
    return twin.on(model.engine)


def _checked(
    model: Model,
    reference: Tensor | None = None,
    config: Any = None,
    loaded_from: str | None = None,
    weights_hash: str | None = None,
    *,
    tf32: bool | None = None,
) -> Model:
    model = model.known_by(weights_hash)
    model = model if tf32 is None else model.multiplying(tf32=tf32)
    model.info = replace(model.info, loaded_from=loaded_from, config_hash=config_hash(config))
    model.config = config
    return model.checked(check_model(model, reference))


def tokenizer_of_model(name: str) -> Any:
    """The tokenizer of the model that `load_model` would load by this name, alone; `ModelError` where there is none."""
    from .hugging_face import load_tokenizer, only_here

    source = source_of(name)
    try:
        return load_tokenizer(source, local_files_only=only_here(source))
    except Exception as error:  # of a dozen kinds, as where models are loaded
        raise ModelError(f"cannot load the tokenizer of {name!r}: {first_line(error)}") from error


def hooked_folder(label: str | Path) -> Path | None:
    """The directory behind a model's name where it holds a HookedTransformer, whose config is not Hugging Face's; else None."""
    directory = Path(label)
    if not (directory / "config.json").is_file():
        return None
    config = document(directory, "config.json")
    return directory if {"d_head", "n_ctx"} <= config.keys() and "model_type" not in config else None


def shape_of(label: str) -> tuple[int, int] | None:
    """Layers and heads that the config.json behind a model's name says; None where it is not here or says them otherwise."""
    directory = DEMO_DIRECTORY if label == "demo" else Path(label)
    if not (directory / "config.json").is_file():
        return None
    said = document(directory, "config.json")
    n_layers, n_heads = said.get("num_hidden_layers"), said.get("num_attention_heads")
    return (n_layers, n_heads) if isinstance(n_layers, int) and isinstance(n_heads, int) else None


def source_of(label: str) -> str:
    """The directory or hub id behind a model's name; `ModelError` for a directory that is not there or holds no model."""
    directory = DEMO_DIRECTORY if label == "demo" else Path(label)
    if not directory.is_dir():
        if _looks_like_path(label):
            raise ModelError(
                f"unknown model {label!r}: there is no such directory{nearest(directory.name, beside(directory))}; give a "
                "directory, a hub id, or 'demo'"
            )
        return label
    if not (directory / "config.json").exists() and (directory / ADAPTER).exists():
        raise ModelError(
            f"{label!r} holds an adapter without its model: copy the model's files into the folder, or save the merged model "
            "(merge_and_unload())"
        )
    if not (directory / "config.json").exists():
        raise ModelError(f"{label!r} holds no config.json: it is not a saved Hugging Face model")
    return str(directory)


def _device(device: str | None) -> str:
    """The device asked for, or the first GPU if there is one, else the CPU; `ModelError` for one that is not here."""
    if device is None:
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        if torch.empty(0, device=device).is_meta:
            raise RuntimeError("it holds no numbers")
    except (RuntimeError, AssertionError, ImportError) as error:
        first = first_line(error).partition(". ")[0]
        raise ModelError(
            f"there is no device {device!r} here ({first}); choose {_devices()} (or None: the first GPU, else the CPU)"
        ) from error
    return device


def _devices() -> str:
    return " or ".join(["cpu", *(f"cuda:{gpu}" for gpu in range(torch.cuda.device_count()))])


def _dtype(dtype: str | torch.dtype) -> torch.dtype:
    known = {"float32": torch.float32, "float64": torch.float64, "bfloat16": torch.bfloat16, "float16": torch.float16}
    found = known.get(str(dtype).removeprefix("torch."))
    if found is None:
        raise ValueError(f"unknown dtype {dtype!r}; choose one of {', '.join(known)}")
    return found


def _looks_like_path(name: str) -> bool:
    return name.startswith((".", "/", "~")) or name.count("/") > 1 or not name.strip() or "\\" in name
