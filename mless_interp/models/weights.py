"""A loaded model's weights: finite, complete, known by a hash, and where they lie."""

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
import xxhash
from torch import Tensor, nn

from .info import Foreign, ModelError

CACHE_LINE = 64  # bytes; what PyTorch allocates lies on one
STEP = 2**26  # bytes that are copied at a time from weights that lie on another device
_MASKS = re.compile(r"(^|[._])(mask|IGNORE|masked_bias)$")  # buffers that are meant to hold infinities
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
    return f"xxh3:{xxhash.xxh3_128_hexdigest(json.dumps(said, sort_keys=True, default=str).encode())}"
