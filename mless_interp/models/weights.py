"""How a model is loaded, what its folder must hold, and the weights that it then has: finite, complete, known by a hash."""

import functools
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
import xxhash
from torch import Tensor, nn

from .info import Foreign, ModelError

BACKENDS = ("auto", "hooked_transformer", "bridge", "nnsight")
DTYPES = ("float32", "float64", "bfloat16", "float16")
HOSTED = "remote=True takes a hub id, whose weights lie elsewhere"


@dataclass(frozen=True)
class Loading:
    """The options of `load_model`, checked; `ValueError` for those that do not go together."""

    backend: str = "auto"
    dtype: str | torch.dtype = "float32"
    device: str | None = None
    device_map: Foreign = None
    max_memory: dict[int | str, int | str] | None = None
    offload_folder: str | Path | None = None
    quantization_config: object = None
    attn_implementation: str = "eager"
    tf32: bool = True
    trust_remote_code: bool = False
    remote: bool | str = False

    def __post_init__(self) -> None:
        backend, spread, split = self.asked, self.device_map, self.splits
        bounded = self.max_memory is not None or self.offload_folder is not None
        on_disk = isinstance(spread, dict) and "disk" in spread.values()
        placed = split or self.device is not None
        wrong = {
            f"unknown backend {backend!r}; choose one of {', '.join(BACKENDS)}": backend not in BACKENDS,
            f"unknown dtype {self.dtype!r}; choose one of {', '.join(DTYPES)}": self._dtype not in DTYPES,
            'remote must be False, True or "local"': self.remote not in (False, True, "local"),
            "remote and attn_implementation need backend='nnsight'": self._traced and backend != "nnsight",
            "device_map and quantization_config need backend='nnsight' or 'bridge'": (
                split and backend == "hooked_transformer"
            ),
            "max_memory and offload_folder bound a map: give device_map='auto' too": bounded and spread is None,
            "a bridge reads weights itself, so none may lie on the disk": on_disk and backend == "bridge",
            "give device or device_map, not both": None not in (self.device, spread),
            f"{HOSTED}: it takes no device, device_map or quantisation": self.remote is True and placed,
        }
        for reason, holds in wrong.items():
            if holds:
                raise ValueError(reason)

    @property
    def asked(self) -> str:
        """The backend asked for; nnsight for "auto" where only it will do."""
        return "nnsight" if self.backend == "auto" and (self.device_map is not None or self._traced) else self.backend

    @property
    def splits(self) -> bool:
        """True where weights are spread or quantised."""
        return self.device_map is not None or self.quantization_config is not None

    @property
    def _traced(self) -> bool:
        return bool(self.remote) or self.attn_implementation != "eager"

    @property
    def _dtype(self) -> str:
        return str(self.dtype).removeprefix("torch.")

    @property
    def precision(self) -> Foreign:
        return getattr(torch, self._dtype)

    @functools.cached_property
    def place(self) -> str:
        """The device asked for, or the first GPU if there is one, else the CPU; `ModelError` for one that is not here."""
        if self.device is None:
            return "cuda" if torch.cuda.is_available() else "cpu"
        try:
            torch.empty(1, device=self.device).tolist()
        except (RuntimeError, AssertionError, ImportError) as error:
            there = " or ".join(["cpu", *(f"cuda:{gpu}" for gpu in range(torch.cuda.device_count()))])
            raise ModelError(
                f"there is no device {self.device!r} here ({first_line(error)}); choose {there}"
            ) from error
        return self.device


# --------------------------------------------------------------------------------------------------------- a model's folder

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
ADAPTER = "adapter_config.json"
"""What PEFT saves; in the folder of a model its adapter is loaded with it."""
TOKENIZERS = (
    "tokenizer.json tokenizer.model vocab.json vocab.txt spiece.model sentencepiece.bpe.model tekken.json".split()
)
"""Any of these holds a vocabulary."""


def document(folder: Path, name: str) -> dict[str, Foreign]:
    """Read a JSON object of the folder."""
    path = folder / name
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(f"{path} is missing or damaged, it holds no JSON ({error}): get the file again") from error
    if not isinstance(found, dict):
        raise ModelError(f"{path} is damaged: expected a JSON object, got a {type(found).__name__}; get the file again")
    return found


def check_index(index: Path) -> None:
    """Raise `ModelError` where an index of split weights names a file that is no safetensors, which would be unpickled."""
    named = document(index.parent, index.name).get("weight_map", {}).values()
    others = [file for file in named if not str(file).endswith(".safetensors")]
    if others:
        raise ModelError(f"{index} names {others[0]!r}: weights are read from safetensors only, as others can run code")


def check_tokenizer(folder: Path) -> None:
    """Raise `ModelError` for a folder that holds no vocabulary: some tokenizers would be made up without one."""
    if not any((folder / name).exists() for name in TOKENIZERS) and not any(folder.glob("*.tiktoken")):
        raise ModelError(
            f"{str(folder)!r} holds no tokenizer (none of {', '.join(TOKENIZERS)}): put the files there that "
            "tokenizer.save_pretrained writes"
        )


def first_line(error: BaseException) -> str:
    """Say on one line what an error of another library says."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    said = next((at for at, line in enumerate(lines) if not line.endswith(":")), len(lines) - 1)  # "x failed:", and why
    return " ".join(lines[: said + 1]) or type(error).__name__


# ------------------------------------------------------------------------------------------------------ the weights it has

CACHE_LINE = 64
"""Bytes; what PyTorch allocates lies on one."""
ANYWHERE = frozenset((torch.bfloat16, torch.float16))
"""Dtypes whose products on a CPU have the same bits wherever a weight lies. Those of float32 with a single row, and many of
float64, have not (MKL)."""
STEP = 2**26
"""Bytes that are copied at a time from weights that lie on another device."""
_MASKS = re.compile(r"(^|[._])(mask|IGNORE|masked_bias)$")
"""Buffers that are meant to hold infinities."""
_OLD_BUFFERS = re.compile(
    r"(^|\.)((attn|attention)\.(masked_)?bias|rotary_emb\.(inv_freq|cos_cached|sin_cached)|position_ids)$"
)
"""Masks, angles and positions that older versions of transformers saved: no weights, and made anew by today's."""
_NOT_RUN = frozenset(
    """
    _name_or_path architectures auto_map transformers_version dtype torch_dtype use_cache _attn_implementation_autoset
    device n_devices seed init_weights model_name tokenizer_name
    """.split()
)
"""What a config of transformers, or of HookedTransformer, holds beside how its weights are run."""


def must_move(dtype: torch.dtype | None, n_axes: int, address: int) -> bool:
    """Ask whether a weight at this address is to be copied, so that last bits do not depend on where a file has it (stacked
    experts, of three axes, always: transformers chooses their kernel by the address where torch is older than 2.11)."""
    return (dtype not in ANYWHERE or n_axes > 2) and address % CACHE_LINE != 0


def held_tensors(module: nn.Module) -> Iterator[tuple[str, Tensor, bool]]:
    """Yield (name without a bridge around, tensor, whether it is saved) of every parameter and buffer, brought meanwhile."""
    for path, part in module.named_modules():
        with brought(part):
            for name, tensor in {**part._parameters, **part._buffers}.items():
                if tensor is not None:
                    label = f"{path}.{name}".removeprefix(".").replace("_original_component.", "")
                    yield label, tensor.detach(), name not in part._non_persistent_buffers_set


def adapters(module: nn.Module) -> Iterator[tuple[str, str]]:
    """Yield the path of every layer that PEFT adapts, and which of its adapters act, with what scale, or are merged."""
    for path, part in module.named_modules():
        if hasattr(part, "merged_adapters"):
            acting = [] if part.disable_adapters else part.active_adapters
            scales = {name: getattr(part, "scaling", {}).get(name) for name in acting}
            yield path.replace("_original_component.", ""), f"adapters {scales}, merged {part.merged_adapters}"


@contextmanager
def brought(part: nn.Module | None) -> Iterator[bool]:
    """Bring a module's own weights here for as long as this lasts; True where they had been offloaded by accelerate."""
    own = () if part is None else part.parameters(recurse=False)
    if part is None or not hasattr(part, "_hf_hook") or not any(each.is_meta for each in own):
        yield False
        return
    from accelerate.utils import align_module_device  # only it offloads

    with align_module_device(part, execution_device="cpu"):
        yield True


def device_of(module: Foreign) -> torch.device:
    """Return where a Hugging Face model takes its tokens: where its embedding is, or is computed if it is brought."""
    embedding = module.get_input_embeddings()
    weight = next(embedding.parameters(), None)
    weight = next(module.parameters()) if weight is None else weight
    if not weight.is_meta:
        return weight.device
    hook = getattr(embedding, "_hf_hook", None)
    places = (getattr(each, "execution_device", None) for each in getattr(hook, "hooks", (hook,)))
    return torch.device(next((place for place in places if place is not None), "cpu"))


def refuse_not_finite(module: nn.Module, *, name: str) -> None:
    """Raise `ModelError` naming the first weight that holds NaN or infinity; masks may hold infinities."""
    for label, tensor, _ in held_tensors(module):
        if not tensor.is_floating_point() or tensor.is_meta or not tensor.numel():
            continue
        wide = tensor.float() if tensor.element_size() < 2 else tensor
        if all(bool(torch.isfinite(end)) for end in wide.aminmax()):  # makes no copy
            continue
        n_nan, n_inf = int(wide.isnan().sum()), int(wide.isinf().sum())
        if n_nan or not _MASKS.search(label):
            dtype = str(next(module.parameters()).dtype).removeprefix("torch.")
            raise ModelError(
                f"the weights of {name!r} are damaged: {label} holds NaN {n_nan} times and infinity {n_inf} times (as "
                f"{dtype}); get the files again or, if they were finite in their own dtype, load with a wider one (float32)"
            )


def refuse_strange_keys(loading: Mapping[str, Foreign], *, name: str, architecture: str) -> None:
    """Raise `ModelError` where transformers says that weights were missing, left over, or of another shape."""
    shapes = sorted(loading["mismatched_keys"])
    found = {
        "missing": sorted(loading["missing_keys"]),
        "unexpected": sorted(key for key in loading["unexpected_keys"] if not _OLD_BUFFERS.search(key)),
        "of another shape": [f"{key} is {[*got]} for {[*need]}" for key, got, need in shapes],
    }
    said = ", ".join(f"{len(keys)} {kind} ({', '.join(keys[:2])})" for kind, keys in found.items() if keys)
    if said:
        raise ModelError(
            f"the weights of {name!r} are not those of the {architecture} in its config: {said}; give the config.json and "
            "all files of one model, as save_pretrained wrote them"
        )


class WeightsHash:
    """The hash of a module's weights, as they are when it is asked: name, dtype, shape and bytes of all that is saved, and
    which adapters act. Weights on the CPU are read each time (several GB/s); what lies elsewhere only if PyTorch counted a
    write to it since, so a write to a GPU's weights through `.data`, which is not counted, is not seen."""

    def __init__(self) -> None:
        self._known: dict[tuple[object, ...], tuple[int, str]] = {}

    def of(self, module: nn.Module) -> str:
        held = ((name, tensor) for name, tensor, saved in held_tensors(module) if saved)
        lines = [f"{name} {tensor.dtype} {list(tensor.shape)} {self._digest(tensor)}\n" for name, tensor in held]
        lines += [f"{path} {acting}\n" for path, acting in adapters(module)]
        return f"xxh3:{xxhash.xxh3_128_hexdigest(''.join(sorted(lines)).encode())}"

    def _digest(self, tensor: Tensor) -> str:
        if tensor.is_cpu or tensor.is_inference():  # not by address: one brought before may have had the same
            return _digest(tensor)
        key = (tensor.device, tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride())
        if self._known.get(key, (-1, ""))[0] != tensor._version:
            self._known[key] = (tensor._version, _digest(tensor))
        return self._known[key][1]


def _digest(tensor: Tensor) -> str:
    made = xxhash.xxh3_128()
    for part in tensor.contiguous().view(-1).view(torch.uint8).split(STEP):
        made.update(part.cpu().numpy())
    return str(made.hexdigest())


def config_hash(config: object) -> str | None:
    """Hash all that a config says of how weights are run, by whichever library it is; None where there is none."""
    if not hasattr(config, "to_dict"):
        return None
    said = {key: value for key, value in config.to_dict().items() if key not in _NOT_RUN}
    text = json.dumps(said, sort_keys=True, default=str)
    return f"xxh3:{xxhash.xxh3_128_hexdigest(text.encode())}"
