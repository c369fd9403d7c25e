"""The weights that a model holds: whether all of them are numbers, and the hash by which they are known again."""

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
import xxhash
from torch import Tensor, nn

from .info import ModelError

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
"""What a config of transformers, or of HookedTransformer, holds beside that."""


def held_tensors(module: nn.Module) -> Iterator[tuple[str, Tensor, bool]]:
    """(name, tensor, whether it is saved with the model) of every parameter and buffer, module by module.

    Offloaded weights are brought for as long as they are looked at. Names are those without a TransformerBridge around.
    """
    for path, part in module.named_modules():
        with brought(part):
            named = {**part._parameters, **part._buffers}
            for name, tensor in named.items():
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
    """A module's own weights are here for as long as this lasts; whether they had to be brought (offloaded by accelerate)."""
    if (
        part is None
        or not hasattr(part, "_hf_hook")
        or not any(each.is_meta for each in part.parameters(recurse=False))
    ):
        yield False
        return
    from accelerate.utils import align_module_device  # only it offloads

    with align_module_device(part, execution_device="cpu"):
        yield True


def device_of(module: Any) -> torch.device:
    """Where a Hugging Face model takes its tokens: the device of its embedding, or on which that is computed if its weights
    are not here but brought for each pass."""
    embedding = module.get_input_embeddings()
    weight = next(embedding.parameters(), None)
    if weight is None:
        weight = next(module.parameters())
    if not weight.is_meta:
        return weight.device
    hook = getattr(embedding, "_hf_hook", None)
    found = [getattr(each, "execution_device", None) for each in getattr(hook, "hooks", (hook,))]
    return torch.device(next((place for place in found if place is not None), "cpu"))


def refuse_not_finite(module: nn.Module, *, name: str) -> None:
    """`ModelError` naming the first weight that holds NaN or infinity, with how many there are; masks may hold infinities."""
    bad = {label: count for label, tensor, _ in held_tensors(module) if (count := _not_finite(label, tensor))}
    if bad:
        first, (n_nan, n_inf) = next(iter(bad.items()))
        others = f", and {len(bad) - 1} more weights have such" if len(bad) > 1 else ""
        raise ModelError(
            f"the weights of {name!r} are damaged: {first} holds NaN {n_nan} times and infinity {n_inf} times (as "
            f"{_dtype_of(module)}){others}; get the files again or, if they were finite in their own dtype, load with a "
            "wider one (float32)"
        )


def _not_finite(label: str, tensor: Tensor) -> tuple[int, int] | None:
    """How many NaN and infinities; None where there are none (one pass, no copy)."""
    if not tensor.is_floating_point() or tensor.is_meta or not tensor.numel():
        return None
    wide = tensor.float() if tensor.element_size() < 2 else tensor
    if all(bool(torch.isfinite(end)) for end in wide.aminmax()):
        return None
    n_nan, n_inf = int(wide.isnan().sum()), int(wide.isinf().sum())
    return None if not n_nan and _MASKS.search(label) else (n_nan, n_inf)


def _dtype_of(module: nn.Module) -> str:
    return str(next(module.parameters()).dtype).removeprefix("torch.")


class WeightsHash:
    """The hash of a module's weights, as they are when it is asked: name, dtype, shape and bytes of all that is saved.

    It depends neither on where they were read from nor on how they were split over files; where adapters are not merged, on
    which of them act. Weights on the CPU are read each time (several GB/s); what lies elsewhere only if PyTorch counted a
    write to it since, so a write to a GPU's weights through `.data`, which is not counted, is not seen.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[Any, ...], tuple[int, str]] = {}

    def of(self, module: nn.Module) -> str:
        """128 bits, as `xxh3:` and hexadecimal digits."""
        lines, seen = [], {}
        for name, tensor, saved in held_tensors(module):
            if saved:
                key = (tensor.device, tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride())
                if key not in seen:  # tied weights are read once
                    seen[key] = self._digest(key, tensor)
                lines.append(f"{name} {tensor.dtype} {list(tensor.shape)} {seen[key]}\n")
        lines += [f"{path} {acting}\n" for path, acting in adapters(module)]
        return f"xxh3:{xxhash.xxh3_128_hexdigest(''.join(sorted(lines)).encode())}"

    def _digest(self, key: tuple[Any, ...], tensor: Tensor) -> str:
        if tensor.is_cpu or tensor.is_inference():
            return _digest(tensor)
        if self._known.get(key, (-1, ""))[0] != tensor._version:
            self._known[key] = (tensor._version, _digest(tensor))
        return self._known[key][1]


def config_hash(config: Any) -> str | None:
    """The hash of all that a config says of how weights are run, by whichever library it is; None where there is none.

    Names, versions and places say nothing of that, and the precision is known from the weights.
    """
    if not hasattr(config, "to_dict"):
        return None
    said = {key: value for key, value in config.to_dict().items() if key not in _NOT_RUN}
    text = json.dumps(said, sort_keys=True, default=str)
    return f"xxh3:{xxhash.xxh3_128_hexdigest(text.encode())}"


def _digest(tensor: Tensor) -> str:
    made = xxhash.xxh3_128()
    for part in tensor.contiguous().view(-1).view(torch.uint8).split(STEP):
        made.update(part.cpu().numpy())
    return str(made.hexdigest())


def refuse_strange_keys(loading: Mapping[str, Any], *, name: str, architecture: str) -> None:
    """`ModelError` where weights were missing (and filled with random numbers), left over, or of another shape.

    `loading` is what transformers says of a loading, tied weights and those that a class declares as dispensable taken out.
    """
    missing, unexpected = sorted(loading["missing_keys"]), sorted(loading["unexpected_keys"])
    unexpected = [key for key in unexpected if not _OLD_BUFFERS.search(key)]
    shapes = [f"{key} is {list(got)} for {list(wanted)}" for key, got, wanted in sorted(loading["mismatched_keys"])]
    found = {"missing": missing, "unexpected": unexpected, "of another shape": shapes}
    if any(found.values()):
        said = ", ".join(f"{len(keys)} {kind} ({_first(keys)})" for kind, keys in found.items() if keys)
        raise ModelError(
            f"the weights of {name!r} are not those of the {architecture} in its config: {said}; random numbers would "
            "take their place: give the config.json and all files of one model, as save_pretrained wrote them"
        )


def _first(keys: list[str], most: int = 2) -> str:
    return ", ".join(keys[:most]) + (", ..." if len(keys) > most else "")
