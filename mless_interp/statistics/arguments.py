"""What every statistic shares: array shapes, checks of the caller's input, and random numbers from a seed."""

import hashlib
import json

import numpy as np
from jaxtyping import Float64, Shaped

from ..core.arguments import as_annotated, count_of
from ..core.arguments import check_count as check_count
from ..core.arguments import check_share as check_share

Effects = Shaped[np.ndarray, "problem *cells"]
"""Input: one number (or truth value) per problem and cell; read as float64."""
Groups = Shaped[np.ndarray, "group *cells"]
"""Output: one number per group of problems and cell."""
PValues = Shaped[np.ndarray, "*cells"]
AnyArray = Shaped[np.ndarray, "..."]
Cells = Float64[np.ndarray, "*cells"]
"""Output: one number per cell."""
CellCounts = Shaped[np.ndarray, "*cells"]


def derive_generator(seed: int, *labels: object) -> np.random.Generator:
    """A NumPy generator keyed by a seed and any labels, the same in every process.

    The key is the SHA-256 digest of the seed and the labels' text, so streams with different labels are independent. Source:
    the convention of TransformerLens 4.x `derive_generator` | differs in: a NumPy generator, the whole digest, and labels that
    cannot run into each other.

    >>> derive_generator(0, "flips").random() == derive_generator(0, "flips").random()
    True
    """
    key = json.dumps([str(as_annotated(seed, int, "seed")), *(str(label) for label in labels)]).encode()
    return np.random.default_rng(int.from_bytes(hashlib.sha256(key).digest(), "little"))


def check_effects(
    values: object, *, name: str = "effects", min_problems: int = 2, infinite: bool = False
) -> np.ndarray:
    """The values as float64 `[problem, *cells]`, finite (or `infinite`) or NaN, with enough problems and at least one cell."""
    array = np.asarray(values, dtype=np.float64)
    if array.ndim == 0:
        raise ValueError(f"{name} must be [problem, *cells], got a single number")
    if array.shape[0] < min_problems:
        raise ValueError(
            f"{name} needs at least {count_of(min_problems, 'problem')} on its first axis, got {array.shape[0]} (shape "
            f"{array.shape})"
        )
    if array.size == 0:
        raise ValueError(f"{name} holds no cells (shape {array.shape}): the family is empty")
    if not infinite and np.isinf(array).any():
        raise ValueError(
            f"{name} holds {int(np.isinf(array).sum())} infinite values; use NaN where a value is undefined"
        )
    return array


def defined_mean(values: AnyArray, axis: int = 0) -> AnyArray:
    """Mean over one axis (the problems, unless named) of what is not NaN; NaN where nothing is. An infinite value is defined.

    >>> defined_mean(np.array([[1.0, np.nan], [3.0, np.nan]]))
    array([ 2., nan])
    >>> defined_mean(np.array([1.0, -np.inf, np.nan]))
    array(-inf)
    """
    defined = ~np.isnan(values)
    if values.ndim == 1:  # summed without gaps, so that a gap does not change which numbers are added first
        values, defined = values[defined], defined[defined]
    count = defined.sum(axis)
    with np.errstate(invalid="ignore"):  # both infinities together have no mean
        return np.where(count > 0, np.where(defined, values, 0.0).sum(axis) / np.maximum(count, 1), np.nan)
