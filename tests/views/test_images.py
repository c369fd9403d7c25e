"""Pictures look as they did: each is drawn from fixed numbers and compared with a kept one, by RMS over its pixels.

After a change that is meant, look at the new pictures and keep them: `MLESS_NEW_IMAGES=1 pytest tests/views/test_images.py`.
"""

import io
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from small_results import (
    activations,
    answered,
    curve,
    decomposed,
    doses,
    located,
    mediated,
    patched,
    profiled,
    read_apart,
    readable,
)

import mless_interp as mi

FOLDER = Path(__file__).parent / "images"
TOLERANCE = 3.0
"""Of 255: other fonts' smoothing stays below, a changed number does not (shown below)."""


DRAWN: dict[str, tuple[Callable[[Any], Any], Any, Any]] = {
    "head_map": (lambda scale: mi.views.head_map(located(scale), limit=1.0), 1.0, -1.0),
    "head_map_patch": (lambda n: mi.views.head_map(patched(n), limit=1.0), 12, 4),
    "lambda_map": (lambda first: mi.views.lambda_map(decomposed(first)), 0.8, 0.2),
    "lambda_heads": (lambda first: mi.views.lambda_heads(decomposed(first)), 0.8, 0.2),
    "forest": (lambda scale: mi.views.forest(located(scale)), 1.0, -1.0),
    "profile": (lambda level: mi.views.profile(profiled(level), mi.Head(0, 13)), 0.02, 0.2),
    "circuit_curve": (lambda top: mi.views.circuit_curve(curve(top)), 0.95, 0.2),
    "dose_response": (lambda slope: mi.views.dose_response(doses(slope)), 1.0, 2.0),
    "accuracy_bars": (lambda first: mi.views.accuracy_bars(answered(first), {"none": 0.724, "ARM": 0.734}), 0.72, 0.3),
    "activation_histograms": (lambda moved: mi.views.activation_histograms(activations(moved)), 30, 60),
    "mediation": (lambda n: mi.views.mediation(mediated(n)), 8, 2),
    "read_effects": (lambda bias: mi.views.read_effects(read_apart(bias)), 0.4, 0.0),
    "span_map": (lambda known: mi.views.span_map(readable(known)), 1.0, -1.0),
    "near_zero": (lambda n: mi.views.near_zero(activations(n=n)), 8, 2),
}
"""Name: (what draws it from one number, the number, another that must show)."""


def pixels(picture: Any) -> np.ndarray:
    buffer = io.BytesIO()
    picture.savefig(buffer, format="png", dpi=50)
    return np.asarray(Image.open(buffer).convert("RGB"))


def difference(one: np.ndarray, other: np.ndarray) -> float:
    """Root mean square over pixels and channels, 0 to 255; infinite for other sizes."""
    if one.shape != other.shape:
        return np.inf
    return float(np.sqrt(np.mean((one.astype(float) - other) ** 2)))


@pytest.mark.slow
@pytest.mark.parametrize("name", DRAWN)
def test_a_picture_looks_as_it_did_and_another_number_shows(name: str) -> None:
    draw, number, other = DRAWN[name]
    path, made = FOLDER / f"{name}.png", pixels(draw(number))
    if os.environ.get("MLESS_NEW_IMAGES"):
        FOLDER.mkdir(exist_ok=True)
        Image.fromarray(made).save(path, optimize=True)
    kept = np.asarray(Image.open(path).convert("RGB"))
    assert difference(made, kept) < TOLERANCE, f"{path} shows another picture; see the top of this file"
    assert difference(pixels(draw(other)), kept) > TOLERANCE, "the comparison would not notice another number"
