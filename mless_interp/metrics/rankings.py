"""How fast a ranking of heads restores an effect."""

import torch
from jaxtyping import Float
from torch import Tensor

from mless_interp.metrics.segments import widened

Summary = Float[Tensor, "*lead"]


def circuit_performance(fractions: Float[Tensor, " size"], faithfulness: Float[Tensor, "*lead size"]) -> Summary:
    r"""Area under the faithfulness curve of growing circuits: CPR, higher is better.

    $$ \mathrm{CPR} = \int_0^1 f(k)\, dk $$

    1: the first heads restore everything; above 1: they overshoot. It rewards heads that push the effect up. By the trapezoid
    rule over the given fractions of heads, linear in the fraction. Source: MIB, Mueller et al. 2025 (arXiv 2504.13151).

    >>> circuit_performance(torch.tensor([0.0, 1.0]), torch.tensor([0.0, 1.0]))
    tensor(0.5000)
    """
    _check_fractions(fractions)
    return torch.trapezoid(widened(faithfulness), fractions, dim=-1)


def circuit_distance(fractions: Float[Tensor, " size"], faithfulness: Float[Tensor, "*lead size"]) -> Summary:
    r"""Area between the faithfulness curve of growing circuits and 1: CMD, lower is better.

    $$ \mathrm{CMD} = \int_0^1 |1 - f(k)|\, dk $$

    0: every circuit behaves like the whole model. It counts heads of both signs. Source: MIB, Mueller et al. 2025 (arXiv
    2504.13151).

    >>> circuit_distance(torch.tensor([0.0, 1.0]), torch.tensor([0.0, 1.0]))
    tensor(0.5000)
    """
    _check_fractions(fractions)
    return torch.trapezoid((1 - widened(faithfulness)).abs(), fractions, dim=-1)


def _check_fractions(fractions: Tensor) -> None:
    if len(fractions) < 2 or (fractions.diff() <= 0).any():
        raise ValueError(
            f"fractions must be at least two strictly increasing sizes, got {fractions.tolist()}; small fractions of "
            "few heads round to the same number of heads: drop the duplicates"
        )
