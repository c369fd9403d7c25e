"""On a real GPU the numbers are the CPU's: `CUDA_VISIBLE_DEVICES=0 pytest -m slow tests/models/test_gpu.py`."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from analyses_under_test import ANALYSES, asked, frames, long

import mless_interp as mi
from mless_interp.models.base import Model

GPU = "cuda" if torch.cuda.is_available() else ""
FEW = ("scores", "patches", "attribution", "paths", "answers")  # together they ask a model everything
pytestmark = [pytest.mark.slow, pytest.mark.skipif(not GPU, reason="no GPU is shown to the tests")]


@cache
def on(device: str, backend: str, dtype: str) -> Model:
    made = mi.planted_model(n_heads=8, n_key_value_heads=2, seed=1)  # that of `asked`
    return mi.load_model(made, backend=backend, device=device, dtype=dtype, tf32=False)


def agree(name: str, backend: str, dtype: str) -> None:
    """Every column but ranks' in four cells of five: rounding turns the order of near ties, and moves a fit to a flat curve."""
    cpu, gpu = (
        frames(ANALYSES[name](replace(asked(), model=on(device, backend, dtype)), **long(name)))
        for device in ("cpu", GPU)
    )
    for table, expected in cpu.items():
        assert gpu[table].shape == expected.shape
        for column in expected.select_dtypes("float").columns.drop("spearman", errors="ignore"):
            close = np.isclose(gpu[table][column], expected[column], rtol=1e-2, atol=1e-4, equal_nan=True)
            assert close.mean() > 0.8, (table, column)


@pytest.mark.parametrize("name", ANALYSES)
def test_a_gpu_gives_the_numbers_of_the_cpu(name: str) -> None:
    agree(name, "nnsight", "float64")


@pytest.mark.parametrize("name", FEW)
@pytest.mark.parametrize("backend", ["hooked_transformer", "bridge"])
def test_so_does_every_backend(backend: str, name: str) -> None:
    agree(name, backend, "float32")
