"""Pictures look as they did: each is drawn from fixed numbers and compared with a kept one, by RMS over its pixels.

After a change that is meant, look at the new pictures and keep them: `MLESS_NEW_IMAGES=1 pytest tests/views/test_images.py`.
"""

import io
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from PIL import Image
from test_views import accuracy, activations, located, scores

import mless_interp as mi
from mless_interp.patching.dose import DoseResponse
from mless_interp.scores import AttentionProfile

FOLDER = Path(__file__).parent / "images"
TOLERANCE = 3.0
"""Of 255: other fonts' smoothing stays below, a changed number does not (shown below)."""


def curve(top: float) -> Any:
    sizes = np.array([0, 1, 2, 4, 16])
    rise = np.array([0.0, 0.5, 0.8, top, 1.0])
    table = pd.DataFrame(
        {
            "n_heads": sizes,
            "faithfulness": rise,
            "reversed": rise**4,
            "random_low": sizes / 16 - 0.05,
            "random_high": sizes / 16 + 0.2,
            "ci_low": rise - 0.1,
            "ci_high": rise + 0.1,
        }
    )
    return SimpleNamespace(summary=lambda: table, ranking=tuple(range(16)), settings={"model": "tiny"})


def dose(slope: float) -> DoseResponse:
    doses, problems = np.array([1, 2, 4, 8]), np.linspace(-0.1, 0.1, 5)
    heads = np.linspace(-4, -1, 4)
    held = slope * np.log(doses)[None, :, None] + heads + problems[:, None, None]
    effect = problems[:, None] + 0.1 * np.log(doses)
    return DoseResponse(
        problem_ids=tuple("abcde"),
        doses=doses,
        layer=0,
        log_odds={"held": held, "inserted": 1.1 * held},
        outcomes={"inserted": 2 * effect, "held": effect, "masked": effect / 2},
        base=np.zeros(5),
        unit="nats",
        settings={"model": "tiny", "outcome": "answer_logprob", "insertion": "Mless ' /' x8"},
    )


def profile(level: float) -> AttentionProfile:
    base = [np.array([[0.3, 0.1 + 0.01 * i, 0.2, 0.05, 0.02, np.nan]]) for i in range(3)]
    grown = [np.concatenate([b[:, :3], np.full((1, 4), level), 0.7 * b[:, 3:]], 1) for b in base]
    return AttentionProfile(
        problem_ids=("a", "b", "c"),
        conditions=("base", "inserted"),
        heads=(mi.Head(0, 13),),
        received={"base": tuple(base), "inserted": tuple(grown)},
        uniform={"base": tuple(0.1 + 0 * b for b in base), "inserted": tuple(0.08 + 0 * g for g in grown)},
        alignment=(np.array([0, 1, 2, 7, 8, 9]),) * 3,
        spans=((3, 7),) * 3,
        base_texts=(tuple("abcdef"),) * 3,
        inserted_texts=(tuple("abc////def"),) * 3,
        settings={"model": "tiny"},
    )


def lam(first: float) -> Any:
    table = pd.DataFrame(
        {"layer": [0, 0, 1], "head": [0, 1, 0], "lam": [first, 0.9, 0.4], "lam_null": 0.5, "lam_p": [0.01, 0.2, 0.9]}
    )
    return SimpleNamespace(summary=lambda: table, settings={"model": "tiny"})


DRAWN: dict[str, tuple[Callable[[Any], Any], Any, Any]] = {
    "head_map": (lambda scale: mi.views.head_map(located(scale), limit=1.0), 1.0, -1.0),
    "head_map_patch": (lambda n: mi.views.head_map(scores(n), limit=1.0), 12, 4),
    "lambda_map": (lambda first: mi.views.lambda_map(lam(first)), 0.8, 0.2),
    "forest": (lambda scale: mi.views.forest(located(scale)), 1.0, -1.0),
    "profile": (lambda level: mi.views.profile(profile(level), mi.Head(0, 13)), 0.02, 0.2),
    "circuit_curve": (lambda top: mi.views.circuit_curve(curve(top)), 0.95, 0.2),
    "dose_response": (lambda slope: mi.views.dose_response(dose(slope)), 1.0, 2.0),
    "accuracy_bars": (lambda first: mi.views.accuracy_bars(accuracy(first), {"none": 0.724, "ARM": 0.734}), 0.72, 0.3),
    "activation_histograms": (lambda moved: mi.views.activation_histograms(activations(moved)), 30, 60),
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
