"""Whether the tokens of a span are what attention sinks are: their size and direction in the residual stream, their values.

A sink token has a residual stream many times longer than others', in the direction of the first token's, and a value vector
that is nearly nothing, so that attention on it does little. All functions take one vector per token.
"""

import torch
from jaxtyping import Float

from mless_interp.core.shapes import PerColumn, PerHead, Segment, Vectors
from mless_interp.metrics.segments import check_segment, segment_mean, widened


def relative_norms(vectors: Vectors, *, others: Segment) -> PerColumn:
    r"""Each token's norm over the median norm of `others`, a ratio.

    $$ \frac{\lVert x_j \rVert}{\operatorname{med}_{k \in S} \lVert x_k \rVert} $$

    1: as long as usual; tens and more: a massive activation; near 0, of values: attention there moves nothing. `others` are the
    tokens that make up "usual": without the span, which may be most of the prompt, and without the first token. Of an even
    number the median is the mean of the middle two; NaN where there are no others, or their median is 0. Source: Sun et al.
    2024 (arXiv 2402.17762), who compare entries, not norms, with the median.

    >>> x = torch.tensor([[30.0, 40.0], [3.0, 4.0], [0.0, 5.0], [0.0, 0.0]])
    >>> relative_norms(x, others=torch.tensor([False, True, True, False]))
    tensor([10.,  1.,  1.,  0.])
    """
    norms = widened(vectors).norm(dim=-1)
    check_segment(others, name="others", n_tokens=norms.shape[-1])
    usual = torch.where(others, norms, torch.nan).nanquantile(0.5, -1, keepdim=True)
    return torch.where(usual > 0, norms / usual, torch.nan)


def cosines_to_sink(vectors: Vectors, *, sink: Segment) -> PerColumn:
    r"""Cosine of each token's vector with that of the sink, in [-1, 1].

    $$ \frac{x_j \cdot x_0}{\lVert x_j \rVert \lVert x_0 \rVert} $$

    1: it points where the first token's does, as secondary sinks and long runs of one token do. NaN for a vector of zeros.
    Source: secondary attention sinks, arXiv 2512.22213; repeated tokens, arXiv 2503.08908.

    >>> cosines_to_sink(torch.tensor([[2.0, 0.0], [1.0, 0.0], [0.0, 3.0]]), sink=torch.tensor([True, False, False]))
    tensor([1., 1., 0.])
    """
    x = widened(vectors)
    check_segment(sink, name="sink", n_tokens=x.shape[-2])
    if (sink.sum(-1) != 1).any():
        raise ValueError(f"the sink is one token, got a mask of {sink.sum(-1).tolist()}")
    first = (x * sink[..., None]).sum(-2, keepdim=True)
    length = x.norm(dim=-1) * first.norm(dim=-1)
    return torch.where(length > 0, (x * first).sum(-1) / length, torch.nan)


def first_of(values: PerColumn, span: Segment) -> PerHead:
    """A per-token quantity at the first token of a span, in its own unit.

    >>> first_of(torch.tensor([1.0, 5.0, 2.0]), torch.tensor([False, True, True]))
    tensor(5.)
    """
    return segment_mean(values, _first(span))


def first_against_rest(values: PerColumn, span: Segment) -> Float[torch.Tensor, "*lead"]:
    r"""A per-token quantity at the first inserted token over its mean at the others, a ratio.

    $$ \frac{x_a}{\frac{1}{|S| - 1} \sum_{j \in S, j > a} x_j} $$

    1: the span's tokens are alike; far above: the first stands for the sink, the others do not. NaN where the span is a single
    token, or the mean of the others is 0.

    >>> first_against_rest(torch.tensor([9.0, 6.0, 1.0, 3.0]), torch.tensor([False, True, True, True]))
    tensor(3.)
    """
    rest = segment_mean(values, span & ~_first(span))
    return torch.where(rest != 0, first_of(values, span) / rest, torch.nan)


def _first(span: Segment) -> Segment:
    return span & (span.cumsum(-1) == 1)
