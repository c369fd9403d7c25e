"""What attention to the span carries: its values, and the share of a head's output that comes from it.

Values are per *query* head (`[*lead, src, d_head]`, the leading axes of the pattern): with grouped-query attention repeat the
key-value heads with `repeat_interleave`, never `repeat`.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from mless_interp.core.shapes import DestPositions, Pattern, PerHead, PerRow, Segment, Vectors, Visible
from mless_interp.metrics.patterns import prepared
from mless_interp.metrics.segments import check_segment, check_span, widened

RowVectors = Float[Tensor, "*lead dest d"]


def span_output(
    pattern: Pattern,
    values: Float[Tensor, "*#lead src d"],
    *,
    span: Segment,
    visible: Visible | None = None,
    dest_positions: DestPositions | None = None,
) -> RowVectors:
    r"""The part of each row's head output that comes from the span: the additive term Sigma, in units of the values.

    $$ \Sigma_i = \sum_{k \in I} A_{ik} v_k $$

    Zero where the span is ignored or its values are zero. With `retained_mass`, in the first layer and at held positions, $z'_i
    = \lambda_i z_i + \Sigma_i$ exactly. Source: arXiv 2510.01032, Eq. 1-2.

    >>> span_output(torch.tensor([[1.0, 0.0], [0.75, 0.25]]), torch.tensor([[5.0], [4.0]]),
    ...             span=torch.tensor([False, True]))
    tensor([[0.],
            [1.]])
    """
    check_span(span, n_tokens=pattern.shape[-1])
    pattern, visible = prepared(pattern, visible=visible, dest_positions=dest_positions)
    part = _weighted(pattern, values, span)
    return torch.where(visible.any(-1)[..., None], part, torch.nan)


def span_output_weight(
    pattern: Pattern,
    values: Float[Tensor, "*#lead src d"],
    *,
    span: Segment,
    output_weights: Float[Tensor, "*#lead d d_model"] | None = None,
    visible: Visible | None = None,
    dest_positions: DestPositions | None = None,
) -> PerRow:
    r"""Share of the span in a head's output by norm instead of attention, in [0, 1].

    $$ n_i = \frac{\lVert \sum_{k \in I} A_{ik} v_k W_O \rVert}
                  {\lVert \sum_{k \in I} A_{ik} v_k W_O \rVert + \lVert \sum_{j \notin I} A_{ij} v_j W_O \rVert} $$

    0: the span writes nothing (however much attention it gets); 1: nothing else does. NaN where the output is zero. Without
    `output_weights` norms are taken before $W_O$. Source: norms of weighted vectors after Kobayashi et al. 2020 (arXiv
    2004.10102), summed over each side first.

    >>> span_output_weight(torch.tensor([[1.0, 0.0], [0.75, 0.25]]), torch.tensor([[1.0], [9.0]]),
    ...                    span=torch.tensor([False, True]))
    tensor([0.0000, 0.7500])
    """
    check_span(span, n_tokens=pattern.shape[-1])
    pattern, _ = prepared(pattern, visible=visible, dest_positions=dest_positions)
    norms = []
    for side in (span, ~span):
        part = _weighted(pattern, values, side)
        norms.append((part if output_weights is None else part @ output_weights.to(part.dtype)).norm(dim=-1))
    total = norms[0] + norms[1]
    return torch.where(total > 0, norms[0] / total, torch.nan)


def value_cosine(values: Vectors, *, span: Segment) -> PerHead:
    r"""Mean cosine of all pairs of value vectors in the span, in [-1, 1].

    $$ \frac{1}{N(N-1)} \sum_{k \ne l \in I} \cos(v_k, v_l) $$

    1: all point the same way, so attention to the span adds one direction whatever its spread; about 0: unrelated. Exactly 1
    for identical tokens in the first layer of a model with rotary positions. Zero vectors leave the mean; NaN with fewer than
    two others.

    >>> value_cosine(torch.tensor([[1.0, 0.0], [2.0, 0.0], [0.0, 1.0]]), span=torch.tensor([True, False, True]))
    tensor(0.)
    """
    check_span(span, n_tokens=values.shape[-2], may_cover_all=True)
    units, count = _units(values, span)
    pairs = units.sum(-2).square().sum(-1) - count
    return torch.where(count > 1, pairs / (count * (count - 1)), torch.nan)


def value_spectral_share(values: Vectors, *, span: Segment) -> PerHead:
    r"""Share of the span's value energy on one direction, in [1/rank, 1].

    $$ \sigma_1^2 / \textstyle\sum_r \sigma_r^2, \qquad \sigma = \text{singular values of } V_I \text{ (uncentred)} $$

    1: rank one, a pure bias; small: many directions. NaN where all values are zero.

    >>> value_spectral_share(torch.tensor([[3.0, 0.0], [0.0, 3.0], [5.0, 5.0]]), span=torch.tensor([True, True, False]))
    tensor(0.5000)
    """
    energy = _singular_values(values, span).square()
    total = energy.sum(-1)
    return torch.where(total > 0, energy.amax(-1) / total, torch.nan)


def value_effective_rank(values: Vectors, *, span: Segment) -> PerHead:
    r"""Number of directions that the span's values fill as if evenly.

    $$ \exp H\bigl(\sigma / \textstyle\sum_r \sigma_r\bigr) $$

    1: a single direction; N: all orthogonal and equally long. NaN where all values are zero. Source: effective rank of Roy &
    Vetterli 2007, uncentred.

    >>> value_effective_rank(torch.tensor([[3.0, 0.0], [0.0, 3.0], [5.0, 5.0]]), span=torch.tensor([True, True, False]))
    tensor(2.)
    """
    singular = _singular_values(values, span)
    total = singular.sum(-1, keepdim=True)
    rank = torch.special.entr(singular / total.clamp(min=torch.finfo(total.dtype).tiny)).sum(-1).exp()
    return torch.where(total[..., 0] > 0, rank, torch.nan)


def direction_coherence(vectors: Vectors, *, rows: Segment | None = None) -> PerHead:
    r"""How far vectors at different rows point the same way, whatever their lengths, in [0, 1].

    $$ R = \left\lVert \frac{1}{|Q|} \sum_{i \in Q} \frac{\Sigma_i}{\lVert \Sigma_i \rVert} \right\rVert $$

    1: the span pushes every question token in one direction; 0: the pushes cancel. `vectors` are usually `span_output` rows.
    Zero and undefined vectors leave the mean; NaN where none is left.

    >>> direction_coherence(torch.tensor([[2.0, 0.0], [5.0, 0.0]])), direction_coherence(torch.tensor([[1.0], [-3.0]]))
    (tensor(1.), tensor(0.))
    """
    if rows is None:
        rows = torch.ones(vectors.shape[-2], dtype=torch.bool, device=vectors.device)
    check_segment(rows, name="rows", n_tokens=vectors.shape[-2])
    units, count = _units(vectors, rows)
    return torch.where(count > 0, units.sum(-2).norm(dim=-1) / count, torch.nan)


def _weighted(pattern: Pattern, values: Tensor, segment: Segment) -> Tensor:
    return torch.where(segment[..., None, :], pattern, 0) @ values.to(pattern.dtype)


def _units(vectors: Tensor, keep: Tensor) -> tuple[Tensor, Tensor]:
    """Unit vectors of the kept tokens, zero elsewhere, and how many there are."""
    vectors = widened(vectors)
    norms = vectors.norm(dim=-1, keepdim=True)
    keep = keep[..., None] & (norms > 0)
    return torch.where(keep, vectors / norms, 0), keep.sum((-2, -1))


def _singular_values(values: Tensor, span: Tensor) -> Tensor:
    check_span(span, n_tokens=values.shape[-2], may_cover_all=True)
    used = span.flatten(end_dim=-2).any(0) if span.ndim > 1 else span
    return torch.linalg.svdvals(torch.where(span[..., used, None], widened(values)[..., used, :], 0))
