"""How much fits in one pass; when memory runs out all the same, whoever batches halves the batch and goes on."""

from collections.abc import Sequence
from typing import Any

import torch

from ..running import loop
from .info import ModelInfo

TOKENS_PER_PASS = {"cpu": 1024, "cuda": 16_384}
"""Enough tokens in one pass for full matrix products; more would only leave the caches."""
PER_THREAD = 2**28
"""Multiplications of one product that are worth a CPU thread: threads wait for each other after every product."""
GRAPH_BYTES = 2e9
"""What the graph of one pass with gradients may take on a CPU; on a GPU a quarter of its memory."""


REQUEST_BYTES, REQUEST_TOKENS = 750_000, 32_768
"""Of head outputs that one request to a server carries, and of tokens in its pass, at most."""


def threads_for(info: ModelInfo) -> int:
    """Return how many CPU threads the products of a pass of this model are worth, at most as many as the process has."""
    product = TOKENS_PER_PASS["cpu"] * info.d_model * (info.d_mlp or 4 * info.d_model)
    return max(1, min(torch.get_num_threads(), product // PER_THREAD))


def rows_per_pass(
    info: ModelInfo, *, batch: int, changed: int, length: int, read: int, devices: Sequence[str] = ()
) -> int:
    """Rows per problem of one pass: full matrix products, within 1 GB or a sixth of a GPU's memory.

    Of several GPUs (`devices`, as `Model.devices`) the smallest decides, as every row passes each of them. A first guess,
    the same on every day, as rows decide the last bits: halved whenever memory runs out.
    """
    widest = 8 * info.d_model + 4 * (info.d_mlp or 4 * info.d_model)
    per_row = changed * (widest + 4 * info.n_heads * length) + 3 * read * info.d_vocab
    gpu = smallest_gpu(devices or (info.device,))
    kind, budget = ("cpu", 1e9) if gpu is None else ("cuda", gpu / 6)
    bytes_each = 8 if info.dtype == "float64" else 4
    fitting = int(budget / (per_row * bytes_each * batch))
    return max(1, min(-(-TOKENS_PER_PASS[kind] // (changed * batch)), fitting))


def rows_per_request(info: ModelInfo, *, batch: int, changed: int, length: int) -> int:
    """Rows per problem of one pass elsewhere: a head's new outputs for each fit one request, and the pass a server's memory."""
    sent = batch * changed * info.d_head * (8 if info.dtype == "float64" else 4)
    return max(1, min(REQUEST_BYTES // sent, REQUEST_TOKENS // (batch * length)))


def rows_per_graph(
    info: ModelInfo, *, changed: int, length: int, read: int, bytes_each: int, devices: Sequence[str] = ()
) -> int:
    """Rows of one pass whose graph over all layers fits the memory: the smallest GPU's, wherever the layers lie."""
    width = 10 * info.d_model + 4 * (info.d_mlp or 4 * info.d_model) + 3 * info.n_heads * length
    numbers = info.n_layers * changed * width + 3 * read * info.d_vocab
    gpu = smallest_gpu(devices or (info.device,))
    budget = GRAPH_BYTES if gpu is None else gpu / 4
    return max(1, int(budget / (numbers * bytes_each)))


def gpu_memory(device: str) -> int:
    """Bytes of a GPU's memory, whoever uses it now."""
    return int(torch.cuda.get_device_properties(device).total_memory)


def smallest_gpu(devices: Sequence[str]) -> int | None:
    """Bytes of the smallest GPU's memory among these devices; None where there is none."""
    return min((gpu_memory(device) for device in devices if "cuda" in device), default=None)


def computed_on(devices: Sequence[str], *, threads: int, tf32: bool | None = None) -> dict[str, Any]:
    """What decides the last bits of a product, beside its numbers: machine, library and their settings (`Model.tf32`).

    Which GPUs a model lies on says nothing, of which kinds they are does.
    """
    gpus = sorted({torch.cuda.get_device_name(device) for device in devices if "cuda" in device})
    kind = " and ".join(gpus) or f"{devices[0]} {torch.backends.cpu.get_cpu_capability()}"
    products = torch.get_float32_matmul_precision() if tf32 is None else "tf32" if tf32 else "highest"
    return {"device": kind, "torch": torch.__version__, "products": products} | ({} if gpus else {"threads": threads})


def out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory ran out, on whichever device."""
    return isinstance(error, torch.OutOfMemoryError) or loop.out_of_memory(error)


def halved(size: int, error: BaseException) -> int:
    """Half of a batch for which memory ran out; raises `error` again if it says something else or one is left already."""
    if size <= 1 or not out_of_memory(error):
        raise error
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    return size // 2
