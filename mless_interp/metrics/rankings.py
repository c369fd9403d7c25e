"""How well scores find known heads, and how fast a ranking of heads restores an effect."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mless_interp.metrics.segments import widened

Ranked = Float[Tensor, "*lead head"]
Truth = Bool[Tensor, "*#lead head"]
Summary = Float[Tensor, "*lead"]


def auroc(scores: Ranked, truth: Truth) -> Summary:
    r"""Probability that a true head scores above a false one, in [0, 1], ties counted half.

    $$ P(s^+ > s^-) + \tfrac12 P(s^+ = s^-) $$

    1: all true heads on top; 0.5: chance; 0: all at the bottom. Heads with a NaN score are left out; NaN where a class
    is empty.

    >>> auroc(torch.tensor([0.9, 0.8, 0.4, 0.4, 0.1]), torch.tensor([True, False, True, False, False]))
    tensor(0.7500)
    """
    scores, positive, negative = _split(scores, truth)
    wins = (scores[..., :, None] > scores[..., None, :]).to(scores.dtype)
    ties = (scores[..., :, None] == scores[..., None, :]).to(scores.dtype)
    pairs = (positive[..., :, None] & negative[..., None, :]).to(scores.dtype)
    total = pairs.sum((-2, -1))
    return torch.where(total > 0, ((wins + ties / 2) * pairs).sum((-2, -1)) / total, torch.nan)


def average_precision(scores: Ranked, truth: Truth) -> Summary:
    r"""Mean over the true heads of the precision at their score, in (0, 1].

    $$ \frac{1}{|P|} \sum_{p \in P} \frac{|\{q \in P : s_q \ge s_p\}|}{|\{h : s_h \ge s_p\}|} $$

    1: all true heads on top; a random order gives about the share of true heads. Ties enter together, against the
    scores. NaN where no head is true.

    >>> average_precision(torch.tensor([0.9, 0.8, 0.4]), torch.tensor([True, False, True]))
    tensor(0.8333)
    """
    scores, positive, negative = _split(scores, truth)
    at_least = scores[..., None, :] >= scores[..., :, None]
    hits = (at_least & positive[..., None, :]).sum(-1)
    found = (at_least & (positive | negative)[..., None, :]).sum(-1)
    precision = torch.where(positive, hits.to(scores.dtype) / found.clamp(min=1), 0).sum(-1)
    count = positive.sum(-1)
    return torch.where(count > 0, precision / count, torch.nan)


def recall_at_k(scores: Ranked, truth: Truth, *, k: int | None = None) -> Summary:
    r"""Share of the true heads among the k best scores, in [0, 1]; k is the number of true heads by default.

    $$ |P \cap \text{top}_k| / |P| $$

    Where scores tie across the k-th place it is the expectation over random orders. NaN where no head is true.

    >>> recall_at_k(torch.tensor([0.9, 0.8, 0.4]), torch.tensor([True, False, True]))
    tensor(0.5000)
    """
    scores, positive, _ = _split(scores, truth)
    count = positive.sum(-1)
    hits = _hits(scores, truth, size=count if k is None else _checked_k(k, scores))
    return torch.where(count > 0, hits / count, torch.nan)


def circuit_performance(fractions: Float[Tensor, " size"], faithfulness: Float[Tensor, "*lead size"]) -> Summary:
    r"""Area under the faithfulness curve of growing circuits: CPR, higher is better.

    $$ \mathrm{CPR} = \int_0^1 f(k)\, dk $$

    1: the first heads restore everything; above 1: they overshoot. It rewards heads that push the effect up. By the
    trapezoid rule over the given fractions of heads, linear in the fraction.

    Source: MIB, Mueller et al. 2025 (arXiv 2504.13151).

    >>> circuit_performance(torch.tensor([0.0, 1.0]), torch.tensor([0.0, 1.0]))
    tensor(0.5000)
    """
    _check_fractions(fractions)
    return torch.trapezoid(widened(faithfulness), fractions, dim=-1)


def circuit_distance(fractions: Float[Tensor, " size"], faithfulness: Float[Tensor, "*lead size"]) -> Summary:
    r"""Area between the faithfulness curve of growing circuits and 1: CMD, lower is better.

    $$ \mathrm{CMD} = \int_0^1 |1 - f(k)|\, dk $$

    0: every circuit behaves like the whole model. It counts heads of both signs.

    Source: MIB, Mueller et al. 2025 (arXiv 2504.13151).

    >>> circuit_distance(torch.tensor([0.0, 1.0]), torch.tensor([0.0, 1.0]))
    tensor(0.5000)
    """
    _check_fractions(fractions)
    return torch.trapezoid((1 - widened(faithfulness)).abs(), fractions, dim=-1)


def _split(scores: Tensor, truth: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Scores with NaN at the bottom, and the scored heads that are true and false."""
    if scores.shape[-1] != truth.shape[-1]:
        raise ValueError(f"scores and truth must name the same heads, got {scores.shape[-1]} and {truth.shape[-1]}")
    scores = widened(scores)
    scored = ~scores.isnan()
    return scores.nan_to_num(nan=-torch.inf), scored & truth, scored & ~truth


def _hits(scores: Tensor, truth: Tensor, *, size: Tensor | int) -> Tensor:
    """Expected number of true heads among the `size` best, over random orders of tied scores."""
    above = (scores[..., None, :] > scores[..., :, None]).sum(-1)
    tied = (scores[..., None, :] == scores[..., :, None]).sum(-1)
    places = torch.as_tensor(size, device=scores.device)[..., None]
    chance = ((places - above).to(scores.dtype) / tied).clamp(0, 1)
    return torch.where(truth & (scores > -torch.inf), chance, 0).sum(-1)


def _checked_k(k: int, scores: Tensor) -> int:
    if not 1 <= k <= scores.shape[-1]:
        raise ValueError(f"k must be between 1 and the number of heads ({scores.shape[-1]}), got {k}")
    return k


def _check_fractions(fractions: Tensor) -> None:
    if len(fractions) < 2 or (fractions.diff() <= 0).any():
        raise ValueError(
            f"fractions must be at least two strictly increasing sizes, got {fractions.tolist()}; small fractions of "
            "few heads round to the same number of heads: drop the duplicates"
        )
