"""The mean over what is defined: the one place that says how undefined numbers are left out of it."""

import numpy as np
from jaxtyping import Shaped

Numbers = Shaped[np.ndarray, "..."]


def defined_mean(values: Numbers, axis: int = 0) -> Numbers:
    """Mean over one axis (the problems, unless named) of what is finite; NaN where nothing is.

    >>> defined_mean(np.array([[1.0, np.nan], [3.0, np.nan]]))
    array([ 2., nan])
    """
    finite = np.isfinite(values)
    if values.ndim == 1:  # summed without gaps, so that a gap does not change which numbers are added first
        values, finite = values[finite], finite[finite]
    count = finite.sum(axis)
    return np.where(count > 0, np.where(finite, values, 0.0).sum(axis) / np.maximum(count, 1), np.nan)
