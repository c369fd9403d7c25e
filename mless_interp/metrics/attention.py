"""What each attention row gives to a segment: span mass, lambda, density, and their nulls.

Every function works row by row (`[*lead, dest, src]` in, `[*lead, dest]` out), so blocks of rows of one prompt concatenate;
average over a question with `segment_mean`. Rows that see no key (padding) are NaN.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from mless_interp.core.shapes import DestPositions, Pattern, PerRow, Segment, Visible
from mless_interp.metrics.patterns import prepared, resolved_visible, row_sums, uniform_pattern
from mless_interp.metrics.segments import check_segment, check_span, widened


def span_mass(
    pattern: Pattern, *, span: Segment, visible: Visible | None = None, dest_positions: DestPositions | None = None
) -> PerRow:
    r"""Share of each row's attention that goes to the span: $1 - \lambda$, the *drop*, a probability.

    $$ m_i = \sum_{k \in I} A_{ik} = 1 - \lambda_i $$

    0: the row ignores the span; 1: it reads nothing else. The masses of segments that partition the prompt sum to 1. Source:
    arXiv 2510.01032, Eq. 1-2, whose text calls lambda "the drop percentage" although it multiplies what is *kept*; here
    `retained_mass` is lambda and the drop is this function.

    >>> span_mass(torch.tensor([[1.0, 0.0], [0.75, 0.25]]), span=torch.tensor([False, True]))
    tensor([0.0000, 0.2500])
    """
    check_span(span, n_tokens=pattern.shape[-1])
    pattern, visible = prepared(pattern, visible=visible, dest_positions=dest_positions)
    return torch.where(visible.any(-1), row_sums(pattern, span), torch.nan)


def retained_mass(
    pattern: Pattern, *, span: Segment, visible: Visible | None = None, dest_positions: DestPositions | None = None
) -> PerRow:
    r"""Share of each row's attention that stays outside the span: lambda, a probability.

    $$ \lambda_i = \sum_{j \notin I} A_{ij} = 1 - m_i $$

    1: the row ignores the span; 0: it reads nothing else. Summed over the other keys rather than taken from 1, so that a tiny
    lambda keeps its digits; where the *drop* is tiny use `span_mass`. Source: arXiv 2510.01032, Eq. 1-2, per query and per head
    instead of one number.

    >>> retained_mass(torch.tensor([[1.0, 0.0], [0.75, 0.25]]), span=torch.tensor([False, True]))
    tensor([1.0000, 0.7500])
    """
    check_span(span, n_tokens=pattern.shape[-1])
    pattern, visible = prepared(pattern, visible=visible, dest_positions=dest_positions)
    return torch.where(visible.any(-1), row_sums(pattern, ~span), torch.nan)


def span_log_odds(
    scores: Float[Tensor, "*lead dest src"],
    *,
    span: Segment,
    visible: Visible | None = None,
    dest_positions: DestPositions | None = None,
) -> PerRow:
    r"""Log odds of reading the span against reading anything else, from attention scores before the softmax, in nats.

    $$ \operatorname{logit}(1 - \lambda_i)
       = \operatorname{LSE}_{k \in I} s_{ik} - \operatorname{LSE}_{j \notin I} s_{ij} $$

    0: as much on the span as elsewhere. Exact where the probabilities have underflowed; -inf where the row sees no span key.
    For N identical tokens at held positions it is $\log N$ plus a constant (methods I12): slope 1 in $\log N$.

    >>> span_log_odds(torch.zeros(3, 3), span=torch.tensor([True, False, False]))
    tensor([    inf,  0.0000, -0.6931])
    """
    check_span(span, n_tokens=scores.shape[-1])
    visible = resolved_visible(scores, visible=visible, dest_positions=dest_positions)
    scores = torch.where(visible, widened(scores), -torch.inf)
    inside = torch.where(span[..., None, :], scores, -torch.inf).logsumexp(-1)
    outside = torch.where(span[..., None, :], -torch.inf, scores).logsumexp(-1)
    return torch.where(visible.any(-1), inside - outside, torch.nan)


def non_sink_span_mass(
    pattern: Pattern,
    *,
    span: Segment,
    sink: Segment,
    visible: Visible | None = None,
    dest_positions: DestPositions | None = None,
    min_mass: float = 1e-8,
) -> PerRow:
    r"""Share of the span in the attention that does not go to the sink, a probability.

    $$ \frac{m_i}{1 - A_{i,K_0}} $$

    0: what is not parked on the sink ignores the span; 1: all of it goes to the span. NaN where less than `min_mass` escapes
    the sink.

    >>> non_sink_span_mass(torch.tensor([[1.0, 0.0], [0.75, 0.25]]), span=torch.tensor([False, True]),
    ...                    sink=torch.tensor([True, False]))
    tensor([nan, 1.])
    """
    _check_sink(sink, span)
    check_span(span, n_tokens=pattern.shape[-1])
    pattern, _ = prepared(pattern, visible=visible, dest_positions=dest_positions)
    rest = row_sums(pattern, ~sink)
    return torch.where(rest >= min_mass, row_sums(pattern, span) / rest, torch.nan)


def span_mass_null(visible: Visible, *, span: Segment, dtype: torch.dtype = torch.float32) -> PerRow:
    r"""Span mass of a row that spreads its attention evenly over the keys that it sees, a probability.

    $$ m_i^{\text{unif}} = |I \cap V_i| / |V_i| $$

    Source: project's own (methods 4.2). With 55 of 115 tokens inserted at 18 it averages 0.59 over the question: a large span
    mass is no preference for the span. Any other metric's null is that metric of `uniform_pattern(visible)`.

    >>> span_mass_null(torch.tensor([[True, False], [True, True]]), span=torch.tensor([False, True]))
    tensor([0.0000, 0.5000])
    """
    return span_mass(uniform_pattern(visible, dtype=dtype), span=span, visible=visible)


def log_density_ratio(
    pattern: Pattern,
    *,
    span: Segment,
    sink: Segment | None = None,
    visible: Visible | None = None,
    dest_positions: DestPositions | None = None,
) -> PerRow:
    r"""How much more attention a span token gets than another visible token, as a log ratio in nats.

    $$ \mathrm{LD}_i = \ln \frac{m_i / n_i}{(1 - m_i - s_i) / (c_i - n_i - k_i)} $$

    with $c_i$ visible keys, $n_i$ of them in the span, $k_i$ in the sink, and sink mass $s_i$ (`sink=None` keeps the sink among
    the others). Below 0 the span is avoided token by token, 0 is uniform, above 0 preferred. NaN where the row sees no span key
    or no other key. Infinite where the probabilities of either have underflowed: take `log_density_ratio_from_scores`. Source:
    project's own (methods 4.3), with the row's visible span instead of the whole: the same for question rows without a sliding
    window.

    >>> log_density_ratio(torch.tensor([[1.0, 0.0, 0.0], [0.5, 0.5, 0.0], [0.4, 0.4, 0.2]]),
    ...                   span=torch.tensor([False, False, True])).exp()
    tensor([   nan,    nan, 0.5000])
    """
    pattern, visible = prepared(pattern, visible=visible, dest_positions=dest_positions)
    return log_density_ratio_from_scores(pattern.log(), span=span, sink=sink, visible=visible)


def log_density_ratio_from_scores(
    scores: Float[Tensor, "*lead dest src"],
    *,
    span: Segment,
    sink: Segment | None = None,
    visible: Visible | None = None,
    dest_positions: DestPositions | None = None,
) -> PerRow:
    r"""`log_density_ratio` from attention scores before the softmax, in nats: finite where probabilities underflow.

    $$ \mathrm{LD}_i = \operatorname{LSE}_{k \in I} s_{ik} - \ln n_i
       - \operatorname{LSE}_{j \notin I \cup K_0} s_{ij} + \ln (c_i - n_i - k_i) $$

    Scores of keys that are not visible may hold anything.

    >>> log_density_ratio_from_scores(torch.tensor([[0.0, 0.0, -200.0]]), span=torch.tensor([False, False, True]),
    ...                               dest_positions=torch.tensor([2]))
    tensor([-200.])
    """
    check_span(span, n_tokens=scores.shape[-1])
    if sink is not None:
        _check_sink(sink, span)
    visible = resolved_visible(scores, visible=visible, dest_positions=dest_positions)
    inside, others = (visible & segment[..., None, :] for segment in (span, ~span if sink is None else ~span & ~sink))
    wide = widened(scores)
    levels = [
        torch.where(seen, wide, -torch.inf).logsumexp(-1) - seen.sum(-1).to(wide.dtype).log()
        for seen in (inside, others)
    ]
    ratio = (levels[0] - levels[1]).masked_fill(levels[0].isneginf(), -torch.inf)  # also where both are: 0 / 0
    return torch.where(inside.any(-1) & others.any(-1), ratio, torch.nan)


def _check_sink(sink: Tensor, span: Tensor) -> None:
    check_segment(sink, name="sink", n_tokens=span.shape[-1])
    if (sink & span).any():
        raise ValueError(
            "the sink and the span share a token; where the span holds the first token, take the first token outside "
            "it as the sink"
        )
