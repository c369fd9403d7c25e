"""On a real GPU the numbers are the CPU's. Skipped where there is none."""

from dataclasses import replace
from functools import cache

import pandas as pd
import pytest
import torch
from analyses_under_test import ANALYSES, asked, frames, long

import mless_interp as mi
from mless_interp.models.base import Model

GPU = "cuda" if torch.cuda.is_available() else "cpu"
FEW = ("scores", "patches", "attribution", "paths", "answers")
"""Analyses that together ask a model everything."""
pytestmark = [pytest.mark.slow, pytest.mark.skipif(GPU == "cpu", reason="there is no GPU here")]


@cache
def on(device: str, backend: str, dtype: str) -> Model:
    made = mi.planted_model(n_heads=8, n_key_value_heads=2, seed=1)  # that of `asked`
    return mi.load_model(made, backend=backend, device=device, dtype=dtype, tf32=False)


def agree(name: str, backend: str, dtype: str, allowed: float) -> None:
    cpu, gpu = (
        frames(ANALYSES[name](replace(asked(), model=on(device, backend, dtype)), **long(name)))
        for device in ("cpu", GPU)
    )
    for table, expected in cpu.items():
        pd.testing.assert_frame_equal(gpu[table], expected, check_exact=False, rtol=allowed, atol=allowed)


@pytest.mark.parametrize("name", ANALYSES)
def test_a_gpu_gives_the_numbers_of_the_cpu(name: str) -> None:
    agree(name, "nnsight", "float64", 1e-8)


@pytest.mark.parametrize("name", FEW)
@pytest.mark.parametrize("backend", ["hooked_transformer", "bridge"])
def test_so_does_every_backend(backend: str, name: str) -> None:
    agree(name, backend, "float64", 1e-8)


@pytest.mark.parametrize("name", FEW)
def test_float32_gives_them_to_its_precision(name: str) -> None:
    agree(name, "nnsight", "float32", 1e-3)
