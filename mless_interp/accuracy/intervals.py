"""Means over what was run, and the interval of an accuracy."""

from dataclasses import replace

import numpy as np

from ..statistics import Interval, mean_interval, wilson

ALL_EQUAL = "all problems equal: Wilson"


def mean_run(values: np.ndarray, *, axis: int) -> np.ndarray:
    """Mean over one axis of what was run (is not NaN); NaN where nothing was.

    >>> mean_run(np.array([[1.0, np.nan], [np.nan, np.nan]]), axis=1)
    array([ 1., nan])
    """
    done = ~np.isnan(values)
    n = done.sum(axis)
    return np.where(n > 0, np.where(done, values, 0.0).sum(axis) / np.maximum(n, 1), np.nan)


def accuracy_interval(shares: np.ndarray, *, sampled: bool, confidence: float, seed: int) -> Interval:
    """Accuracy of each treatment from the problems' shares of right samples `[problem, treatment]`, with its interval.

    One sample per problem: Wilson's. Several (`sampled`): of the mean over problems (`mean_interval`), and Wilson's over
    problems where all of them are always right, or never, because any other would give a point there.
    """
    done = ~np.isnan(shares)
    n, right = done.sum(0), np.where(done, shares, 0.0).sum(0)
    by_wilson = wilson(np.round(right).astype(int), n, confidence=confidence)
    if not sampled:
        return by_wilson
    found = mean_interval(shares, confidence=confidence, seed=seed)
    found = replace(found, estimate=mean_run(shares, axis=0))  # also where a single problem was run
    if len(shares) < 2:
        return found
    certain = (n > 0) & ((right == 0) | (right == n))
    return replace(
        found,
        low=np.where(certain, by_wilson.low, found.low),
        high=np.where(certain, by_wilson.high, found.high),
        flag=np.where(certain, ALL_EQUAL, found.flag.astype("<U40")),
        method=f"{found.method} over problems",
    )
