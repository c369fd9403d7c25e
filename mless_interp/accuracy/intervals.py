"""The interval of an accuracy."""

from dataclasses import replace

import numpy as np

from ..statistics import Interval, defined_mean, mean_interval, wilson

ALL_EQUAL = "all problems equal: Wilson"


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
    found = replace(found, estimate=defined_mean(shares))  # also where a single problem was run
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
