"""Distances between attention rows of two runs, aligned first.

Rows are probability vectors on the last axis. Bring the inserted run's rows to the base run's tokens with `renormalised_rows`,
then compare. NaN rows (padding, or nothing left outside the span) give NaN.
"""

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mless_interp.metrics.patterns import ROW_SUM_TOLERANCE
from mless_interp.metrics.segments import widened

Distribution = Float[Tensor, "*lead outcome"]
Distance = Float[Tensor, "*lead"]
Alignment = Int[Tensor, " base_src"]
"""Where each token of the base prompt stands in the inserted one: strictly increasing."""


def renormalised_rows(
    pattern: Float[Tensor, "*lead dest src"], *, alignment: Alignment, min_mass: float = 1e-8
) -> Float[Tensor, "*lead dest base_src"]:
    r"""Rows of the inserted run over the shared tokens only, rescaled to sum to 1.

    $$ q_{ij} = A'_{i,\pi(j)} / \lambda_i $$

    NaN where less than `min_mass` lies outside the span. Choose the rows yourself: `pattern[..., pi, :]`.

    >>> renormalised_rows(torch.tensor([[0.25, 0.5, 0.25]]), alignment=torch.tensor([0, 2]))
    tensor([[0.5000, 0.5000]])
    """
    _check_alignment(alignment, n_tokens=pattern.shape[-1])
    shared = widened(pattern)[..., alignment]
    mass = shared.sum(-1, keepdim=True)
    return torch.where(mass >= min_mass, shared / mass, torch.nan)


def jensen_shannon_divergence(p: Distribution, q: Distribution) -> Distance:
    r"""Jensen-Shannon divergence of two rows, in bits, in [0, 1].

    $$ \tfrac12 \sum_j p_j \log_2 \frac{p_j}{m_j} + \tfrac12 \sum_j q_j \log_2 \frac{q_j}{m_j}, \quad m = (p + q) / 2 $$

    0: equal; 1: disjoint.

    >>> jensen_shannon_divergence(torch.tensor([1.0, 0.0]), torch.tensor([0.0, 1.0]))
    tensor(1.)
    """
    p, q = _checked(p, q)
    middle = (p + q) / 2
    lean = torch.where(middle > 0, (p - middle) / middle, 0)  # p = middle (1 + lean): near rows do not cancel
    nats = middle * (torch.special.xlog1py(1 + lean, lean) + torch.special.xlog1py(1 - lean, -lean)) / 2
    return (nats.sum(-1) / math.log(2)).clamp(0, 1)


def jensen_shannon_distance(p: Distribution, q: Distribution) -> Distance:
    r"""Square root of the Jensen-Shannon divergence in bits: a metric, in [0, 1].

    >>> jensen_shannon_distance(torch.tensor([1.0, 0.0]), torch.tensor([0.0, 1.0]))
    tensor(1.)
    """
    return jensen_shannon_divergence(p, q).sqrt()


def hellinger(p: Distribution, q: Distribution) -> Distance:
    r"""Hellinger distance of two rows, in [0, 1].

    $$ \tfrac{1}{\sqrt 2} \lVert \sqrt p - \sqrt q \rVert_2 $$

    0: equal; 1: disjoint. Weighs changes at small probabilities more than total variation does.

    >>> hellinger(torch.tensor([1.0, 0.0]), torch.tensor([0.0, 1.0]))
    tensor(1.)
    """
    p, q = _checked(p, q)
    return ((p.sqrt() - q.sqrt()).square().sum(-1) / 2).sqrt()


def total_variation(p: Distribution, q: Distribution) -> Distance:
    r"""Total variation distance of two rows, in [0, 1]: the attention that moved.

    $$ \tfrac12 \lVert p - q \rVert_1 $$

    0: equal; 1: disjoint.

    >>> total_variation(torch.tensor([0.5, 0.5]), torch.tensor([0.75, 0.25]))
    tensor(0.2500)
    """
    p, q = _checked(p, q)
    return (p - q).abs().sum(-1) / 2


def _checked(p: Tensor, q: Tensor) -> tuple[Tensor, Tensor]:
    """Both rows in at least float32, tiny negatives at 0, rescaled if half precision; ValueError for others."""
    if p.shape[-1] != q.shape[-1]:
        raise ValueError(
            f"rows must be over the same tokens, got {p.shape[-1]} and {q.shape[-1]}; align them first with "
            "renormalised_rows"
        )
    checked = []
    for name, rows in (("first", p), ("second", q)):
        wide = widened(rows)
        tolerance = ROW_SUM_TOLERANCE[rows.dtype]
        if (wide < -tolerance).any():
            raise ValueError(
                f"the {name} rows must be probabilities, but one has a negative entry ({wide.min().item():.6g}): pass "
                "patterns after the softmax, not scores or differences"
            )
        wide = wide.clamp(min=0)
        sums = wide.sum(-1, keepdim=True)
        bad = ~((sums - 1).abs() <= tolerance) & ~wide.isnan().all(-1, keepdim=True)  # a row of NaN is undefined
        if bad.any():
            raise ValueError(
                f"the {name} rows must sum to 1, but one sums to {sums[bad][0].item():.6g}; after dropping the span's "
                "keys use renormalised_rows"
            )
        checked.append(wide / sums if rows.dtype in (torch.float16, torch.bfloat16) else wide)
    return checked[0], checked[1]


def _check_alignment(alignment: Tensor, *, n_tokens: int) -> None:
    if (alignment.diff() <= 0).any() or (len(alignment) and (alignment[0] < 0 or alignment[-1] >= n_tokens)):
        raise ValueError(
            f"the alignment must be strictly increasing positions in 0 to {n_tokens - 1}, got {alignment.tolist()}"
        )
