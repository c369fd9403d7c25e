"""Weights that stay in their memory-mapped files: which do, that no bit depends on where, and what a changed file does."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from files_under_test import save_at
from safetensors.torch import load_file
from torch import Tensor, nn

import mless_interp as mi
from mless_interp.models.traced_ops import unembedded
from mless_interp.models.weights import ANYWHERE, CACHE_LINE

TOKENS = torch.tensor([[5, 9, 7, 12, 6, 20, 11]])
MAPS = Path("/proc/self/maps")
linux = pytest.mark.skipif(not MAPS.is_file(), reason="what is mapped is told by Linux alone")
half = pytest.mark.parametrize("dtype", sorted(ANYWHERE, key=str), ids=str)


def lies_in(file: Path, tensor: Tensor) -> bool:
    """Whether a tensor lies in a mapped file."""
    form = re.compile(r"^([0-9a-f]+)-([0-9a-f]+) \S+ [0-9a-f]+ \S+ \S+ +(.*\.safetensors)$", re.MULTILINE)
    mapped = [
        (int(first, 16), int(last, 16))
        for first, last, name in form.findall(MAPS.read_text())
        if Path(name) == file.resolve()
    ]
    return any(first <= tensor.data_ptr() < last for first, last in mapped)


def at(weight: Tensor, offset: int) -> Tensor:
    """The same weight, so many bytes behind a cache line."""
    room = torch.empty(weight.numel() + CACHE_LINE, dtype=weight.dtype)
    begin = (offset - room.data_ptr()) % CACHE_LINE // weight.element_size()
    placed = room[begin : begin + weight.numel()].view(weight.shape).copy_(weight)
    assert placed.data_ptr() % CACHE_LINE == offset
    return placed


def products(x: Tensor, weight: Tensor, bias: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Every form in which models here multiply by a weight."""
    back = x[:, :1] * bias
    yield "linear", nn.functional.linear(x, weight)
    yield "of a batch", nn.functional.linear(x[None], weight, bias)
    yield "its gradient, Conv1D", back @ weight
    yield "einsum", torch.einsum("ti,oi->to", x, weight)
    yield "columns of a head", nn.functional.linear(x[:, : x.shape[1] // 2], weight[:, : x.shape[1] // 2])
    yield "rows of a block", nn.functional.linear(x, weight[weight.shape[0] // 3 :])
    if len(weight) % 2 == 0:
        yield "of groups", torch.bmm(torch.stack([x, x.flip(0)]), weight.view(2, -1, x.shape[1]).transpose(1, 2))
    yield "norm", nn.functional.layer_norm(x, x.shape[1:], weight[0], weight[-1])
    yield "embedding", nn.functional.embedding(torch.tensor([0, len(weight) - 1]), weight)
    head = nn.Linear(x.shape[1], len(weight), bias=False)
    head.weight = nn.Parameter(weight, requires_grad=False)
    yield "logits", unembedded(head, x[None])


@half
@pytest.mark.parametrize("n_threads", [1, 2])
@pytest.mark.parametrize(
    ("shape", "rows"),
    [
        *[(shape, (1, 2, 47)) for shape in [(64, 128), (7, 13), (1, 64), (127, 1001)]],
        pytest.param((512, 3584), (1, 3, 47), marks=pytest.mark.slow),
    ],
)
def test_products_in_half_precision_have_the_same_bits_wherever_a_weight_lies(
    dtype: torch.dtype, n_threads: int, shape: tuple[int, int], rows: tuple[int, ...]
) -> None:
    """What lets such weights stay in their files; where another torch or processor fails it, they must be copied there."""
    random = torch.Generator().manual_seed(0)
    weight, bias = (torch.randn(size, generator=random).to(dtype) for size in (shape, shape[:1]))
    given = {n: torch.randn(n, shape[1], generator=random).to(dtype) for n in rows}
    before = torch.get_num_threads()
    torch.set_num_threads(n_threads)
    try:
        first = {(n, name): made for n, x in given.items() for name, made in products(x, weight, bias)}
        for offset in range(2, CACHE_LINE, 2 if weight.numel() < 10_000 else 14):
            for n, x in given.items():
                for name, made in products(x, at(weight, offset), at(bias, offset)):
                    assert torch.equal(made, first[n, name]), f"{name}, {n} rows, {offset} bytes behind a cache line"
    finally:
        torch.set_num_threads(before)


@linux
@half
@pytest.mark.parametrize("backend", ["bridge", "nnsight"])
def test_edits_never_reach_the_file(backend: str, dtype: torch.dtype, tmp_path: Path) -> None:
    folder = mi.planted_model(n_heads=8, n_key_value_heads=4).save(tmp_path / "planted", n_problems=1)
    file = folder / "model.safetensors"
    save_at({name: weight.to(dtype) for name, weight in load_file(file).items()}, file, 8)
    before = file.read_bytes()
    model = mi.load_model(folder, backend=backend, dtype=dtype)
    mapped = [weight for weight in model.weights.parameters() if lies_in(file, weight)]  # type: ignore[union-attr]
    assert mapped and (backend == "bridge" or len(mapped) == len(list(model.weights.parameters())))  # type: ignore[union-attr]
    known, logits = model.weights_hash, model.run(TOKENS).logits
    with torch.no_grad():
        for weight in mapped:
            weight.mul_(2)
    assert model.weights_hash != known and not torch.equal(model.run(TOKENS).logits, logits)
    assert file.read_bytes() == before
    again = mi.load_model(folder, backend=backend, dtype=dtype)
    assert again.weights_hash == known
