"""How passes share a process and a device: turns, threads and settings; how much fits in one pass."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from threading import RLock

import torch
from torch import nn

from ..core.arguments import outside_autocast
from ..runtime.loop import out_of_memory
from .info import ModelInfo

TURN = RLock()  # held by the one thread whose model computes: threads, TF32 and modes are those of the whole process
LIBRARIES = ("accelerate", "bitsandbytes", "nnsight", "torch", "transformer_lens.model_bridge", "transformers")
"""Packages whose hooks are part of how they run a model."""


@contextmanager
def turn(modules: Sequence[nn.Module], *, threads: int, tf32: bool | None = None) -> Iterator[None]:
    """Let no other thread compute meanwhile, and run `modules` in evaluation mode, without autocast, on at most `threads` CPU
    threads; re-entrant. `tf32`: products of float32 are made in TF32 on a GPU (True) or in full (False); None leaves that to
    the process. All is put back afterwards."""
    with TURN, outside_autocast(), ExitStack() as back:
        if threads < (had := torch.get_num_threads()):
            back.callback(torch.set_num_threads, had)
            torch.set_num_threads(threads)
        if tf32 is not None:
            back.callback(torch.set_float32_matmul_precision, torch.get_float32_matmul_precision())
            torch.set_float32_matmul_precision("high" if tf32 else "highest")
        for _, part in parts_of(modules):
            if part.training:
                back.callback(setattr, part, "training", True)
                part.training = False
        yield


def parts_of(modules: Sequence[nn.Module]) -> Iterator[tuple[str, nn.Module]]:
    """Yield every module inside these with its path, each once."""
    seen: set[nn.Module] = set()
    for module in modules:
        yield from module.named_modules(seen)


def added_hooks(modules: Sequence[nn.Module]) -> tuple[str, ...]:
    """Return the forward hooks, pre-hooks and replaced forwards that no library put there, each as its path and its kind."""
    found = []
    for path, part in parts_of(modules):
        for kind, hooks in (("hook", part._forward_hooks), ("pre-hook", part._forward_pre_hooks)):
            found += [f"{path} {kind}" for hook in hooks.values() if not _is_a_librarys(hook)]
        forward = vars(part).get("forward")
        if forward is not None and not _is_a_librarys(forward, type(part).forward.__module__):
            found.append(f"{path} forward")
    return tuple(sorted(found))


def _is_a_librarys(function: object, *known: str) -> bool:
    origin = getattr(function, "__module__", None) or type(function).__module__
    return any(f"{origin}.".startswith(f"{library}.") for library in (*LIBRARIES, *known))


TOKENS_PER_PASS = {"cpu": 1024, "cuda": 16_384}
"""Enough tokens in one pass for full matrix products; more would only leave the caches."""
PER_THREAD = 2**28
"""Multiplications of one product that are worth a CPU thread: threads wait for each other after every product."""
GRAPH_BYTES = 2e9  # what the graph of one pass with gradients may take on a CPU; on a GPU a quarter of its memory
REQUEST_BYTES, REQUEST_TOKENS = 750_000, 32_768
"""Of head outputs that one request to a server carries, and of tokens in its pass, at most."""


def threads_for(info: ModelInfo) -> int:
    """Return how many CPU threads the products of a pass of this model are worth, at most as many as the process has."""
    product = TOKENS_PER_PASS["cpu"] * info.d_model * (info.d_mlp or 4 * info.d_model)
    return max(1, min(torch.get_num_threads(), product // PER_THREAD))


def rows_per_pass(info: ModelInfo, *, batch: int, changed: int, length: int, read: int, devices: Sequence[str]) -> int:
    """Count rows per problem of one pass: full matrix products, within 1 GB or a sixth of the smallest GPU's memory
    (`devices`, as `Model.devices`). The same on every day, as rows decide the last bits."""
    widest = 8 * info.d_model + 4 * (info.d_mlp or 4 * info.d_model)
    per_row = changed * (widest + 4 * info.n_heads * length) + 3 * read * info.d_vocab
    gpu = smallest_gpu(devices)
    kind, budget = ("cpu", 1e9) if gpu is None else ("cuda", gpu / 6)
    bytes_each = 8 if info.dtype == "float64" else 4
    fitting = int(budget / (per_row * bytes_each * batch))
    return max(1, min(-(-TOKENS_PER_PASS[kind] // (changed * batch)), fitting))


def rows_per_request(info: ModelInfo, *, batch: int, changed: int, length: int) -> int:
    """Count rows per problem of one pass elsewhere, whose new head outputs fit one request, and the pass a server's memory."""
    sent = batch * changed * info.d_head * (8 if info.dtype == "float64" else 4)
    return max(1, min(REQUEST_BYTES // sent, REQUEST_TOKENS // (batch * length)))


def rows_per_graph(
    info: ModelInfo, *, changed: int, length: int, read: int, bytes_each: int, devices: Sequence[str]
) -> int:
    """Count rows of one pass whose graph over all layers fits the memory: the smallest GPU's, wherever the layers lie."""
    width = 10 * info.d_model + 4 * (info.d_mlp or 4 * info.d_model) + 3 * info.n_heads * length
    numbers = info.n_layers * changed * width + 3 * read * info.d_vocab
    gpu = smallest_gpu(devices)
    return max(1, int((GRAPH_BYTES if gpu is None else gpu / 4) / (numbers * bytes_each)))


def smallest_gpu(devices: Sequence[str]) -> int | None:
    """Return the bytes of the smallest GPU's memory among these devices; None where there is none."""
    gpus = [torch.cuda.get_device_properties(device) for device in devices if "cuda" in device]
    return min((int(gpu.total_memory) for gpu in gpus), default=None)


def computed_on(devices: Sequence[str], *, threads: int, tf32: bool | None = None) -> dict[str, object]:
    """Name what decides the last bits of a product, beside its numbers: kinds of machine, library and their settings."""
    gpus = sorted({torch.cuda.get_device_name(device) for device in devices if "cuda" in device})
    kind = " and ".join(gpus) or f"{devices[0]} {torch.backends.cpu.get_cpu_capability()}"
    products = torch.get_float32_matmul_precision() if tf32 is None else "tf32" if tf32 else "highest"
    return {"device": kind, "torch": torch.__version__, "products": products} | ({} if gpus else {"threads": threads})


def halved(size: int, error: BaseException) -> int:
    """Halve a batch for which memory ran out; raise `error` again if it says something else or one is left already."""
    if size <= 1 or not out_of_memory(error):
        raise error
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    return size // 2
