"""The mean over what is defined: the one place that says how undefined numbers are left out of it."""

import numpy as np
from jaxtyping import Shaped

Numbers = Shaped[np.ndarray, "..."]


def defined_mean(values: Numbers, axis: int = 0) -> Numbers:
    """Mean over one axis (the problems, unless named) of what is not NaN; NaN where nothing is.

    An infinite value is defined and makes the mean infinite: where it means something ("never",
    "nothing at all"), use a median.

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
