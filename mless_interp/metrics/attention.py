"""Metrics of attention rows: mass on a segment, entropy, and distances between the rows of two runs.

Every metric works row by row (`[*lead, dest, src]` in, `[*lead, dest]` out), so blocks of rows of one prompt, given with the
keys that they see (`visible`), concatenate; average over a question with `segment_mean`. Rows that see no key (padding) are
NaN. Compare prompts of different lengths by `normalised_entropy` or the chain rule, and the rows of two runs over the same
tokens (`renormalised_rows`).
"""

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..core.shapes import Pattern, PerRow, Segment, Visible
from . import patterns

LEAST_MASS = 1e-8  # a part of a row with less attention has no shares of its own


def span_mass(pattern: Pattern, *, span: Segment, visible: Visible | None = None) -> PerRow:
    r"""Return the share of each row's attention that goes to the span: $1 - \lambda$, the *drop*, a probability.

    $m_i = \sum_{k \in I} A_{ik} = 1 - \lambda_i$. 0: it ignores the span; 1: it reads nothing else. Source: arXiv 2510.01032,
    Eq. 1-2, whose text calls lambda, which is what is *kept* (`retained_mass`), the drop.

    >>> span_mass(torch.tensor([[1.0, 0.0], [0.75, 0.25]]), span=torch.tensor([False, True]))
    tensor([0.0000, 0.2500])
    """
    patterns.check_span(span, n_tokens=pattern.shape[-1])
    pattern, visible = patterns.prepared(pattern, visible)
    return torch.where(visible.any(-1), patterns.row_sums(pattern, span), torch.nan)


def retained_mass(pattern: Pattern, *, span: Segment, visible: Visible | None = None) -> PerRow:
    r"""Return the share of each row's attention that stays outside the span: lambda, a probability.

    $\lambda_i = \sum_{j \notin I} A_{ij} = 1 - m_i$, summed over the other keys, so that a tiny lambda keeps its digits. 1:
    the row ignores the span. Source: arXiv 2510.01032, Eq. 1-2, per query and head instead of one number.

    >>> retained_mass(torch.tensor([[1.0, 0.0], [0.75, 0.25]]), span=torch.tensor([False, True]))
    tensor([1.0000, 0.7500])
    """
    patterns.check_span(span, n_tokens=pattern.shape[-1])
    return span_mass(pattern, span=~span, visible=visible)


def span_log_odds(scores: Float[Tensor, "*lead dest src"], *, span: Segment, visible: Visible | None = None) -> PerRow:
    r"""Return the log odds of reading the span against anything else, from attention scores before the softmax, in nats.

    $\operatorname{logit}(1 - \lambda_i) = \operatorname{LSE}_{k \in I} s_{ik} - \operatorname{LSE}_{j \notin I} s_{ij}$. 0:
    as much on the span as elsewhere. Exact where the probabilities have underflowed; -inf where the row sees no span key.
    For N identical tokens at held positions it is $\log N$ plus a constant (methods I12): slope 1 in $\log N$.

    >>> span_log_odds(torch.zeros(3, 3), span=torch.tensor([True, False, False]))
    tensor([    inf,  0.0000, -0.6931])
    """
    patterns.check_span(span, n_tokens=scores.shape[-1])
    visible = patterns.resolved_visible(scores, visible)
    scores = torch.where(visible, patterns.widened(scores), -torch.inf)
    inside = torch.where(span[..., None, :], scores, -torch.inf).logsumexp(-1)
    outside = torch.where(span[..., None, :], -torch.inf, scores).logsumexp(-1)
    return torch.where(visible.any(-1), inside - outside, torch.nan)


def non_sink_span_mass(pattern: Pattern, *, span: Segment, sink: Segment, visible: Visible | None = None) -> PerRow:
    r"""Return the share of the span in the attention that does not go to the sink, a probability.

    $m_i / (1 - A_{i,K_0})$. 1: all that is not parked on the sink goes to the span. NaN where that is less than 1e-8.

    >>> non_sink_span_mass(torch.tensor([[1.0, 0.0], [0.75, 0.25]]), span=torch.tensor([False, True]),
    ...                    sink=torch.tensor([True, False]))
    tensor([nan, 1.])
    """
    _check_sink(sink, span)
    patterns.check_span(span, n_tokens=pattern.shape[-1])
    pattern, _ = patterns.prepared(pattern, visible)
    rest = patterns.row_sums(pattern, ~sink)
    return torch.where(rest >= LEAST_MASS, patterns.row_sums(pattern, span) / rest, torch.nan)


def log_density_ratio(
    pattern: Pattern,
    *,
    span: Segment,
    sink: Segment | None = None,
    visible: Visible | None = None,
    scores: Float[Tensor, "*lead dest src"] | None = None,
) -> PerRow:
    r"""Return how much more attention a span token gets than another visible token, as a log ratio in nats.

    $\mathrm{LD}_i = \ln \frac{m_i / n_i}{(1 - m_i - s_i) / (c_i - n_i - k_i)}$, with $c_i$ visible keys, $n_i$ of them in the
    span, $k_i$ in the sink, and sink mass $s_i$ (`sink=None`: both 0). Below 0: the span is avoided token by token; 0:
    uniform. NaN without a visible span key or other key; infinite where probabilities underflow, unless attention scores before
    the softmax are given: `scores` are read in the pattern's place, and may hold anything at keys that are not visible. Source:
    project's own (methods 4.3).

    >>> log_density_ratio(torch.tensor([[1.0, 0.0, 0.0], [0.5, 0.5, 0.0], [0.4, 0.4, 0.2]]),
    ...                   span=torch.tensor([False, False, True])).exp()
    tensor([   nan,    nan, 0.5000])
    """
    if scores is None:
        pattern, visible = patterns.prepared(pattern, visible)
        scores = pattern.log()
    patterns.check_span(span, n_tokens=scores.shape[-1])
    if sink is not None:
        _check_sink(sink, span)
    visible = patterns.resolved_visible(scores, visible)
    inside, others = (visible & segment[..., None, :] for segment in (span, ~span if sink is None else ~span & ~sink))
    wide = patterns.widened(scores)
    levels = [
        torch.where(seen, wide, -torch.inf).logsumexp(-1) - seen.sum(-1).to(wide.dtype).log()
        for seen in (inside, others)
    ]
    ratio = (levels[0] - levels[1]).masked_fill(levels[0].isneginf(), -torch.inf)  # also where both are: 0 / 0
    return torch.where(inside.any(-1) & others.any(-1), ratio, torch.nan)


def _check_sink(sink: Tensor, span: Tensor) -> None:
    patterns.check_segment(sink, name="sink", n_tokens=span.shape[-1])
    if (sink & span).any():
        raise ValueError("the sink and the span share a token: take the first token outside the span as the sink")


def attention_entropy(pattern: Pattern, *, visible: Visible | None = None) -> PerRow:
    r"""Return the Shannon entropy of each attention row, in nats.

    $H_i = -\sum_j A_{ij} \ln A_{ij}$, $0 \ln 0 = 0$. 0: it reads a single token; $\ln c_i$: its $c_i$ visible tokens evenly.

    >>> attention_entropy(torch.tensor([[1.0, 0.0], [0.5, 0.5]]))
    tensor([0.0000, 0.6931])
    """
    pattern, visible = patterns.prepared(pattern, visible)
    return torch.where(visible.any(-1), _entropy(pattern), torch.nan)


def normalised_entropy(pattern: Pattern, *, visible: Visible | None = None) -> PerRow:
    r"""Return the entropy of each attention row as a share of the most that its visible keys allow, in [0, 1].

    $H_i / \ln c_i$. 0: one token; 1: uniform. NaN where the row sees a single key.

    >>> normalised_entropy(torch.tensor([[1.0, 0.0], [0.5, 0.5]]))
    tensor([nan, 1.])
    """
    pattern, visible = patterns.prepared(pattern, visible)
    n_keys = visible.sum(-1)
    return torch.where(n_keys > 1, _entropy(pattern) / n_keys.to(pattern.dtype).log(), torch.nan)


def effective_tokens(pattern: Pattern, *, visible: Visible | None = None) -> PerRow:
    r"""Return the number of tokens that each row reads as if evenly (Hill number of order 1).

    $\exp(H_i)$. 1: a single token; $c_i$: all visible tokens evenly.

    >>> effective_tokens(torch.tensor([[1.0, 0.0], [0.5, 0.5]]))
    tensor([1., 2.])
    """
    return attention_entropy(pattern, visible=visible).exp()


def participation(pattern: Pattern, *, visible: Visible | None = None) -> PerRow:
    r"""Return the participation ratio of each row, in tokens (Hill number of order 2, never above `effective_tokens`).

    $1 / \textstyle\sum_j A_{ij}^2$. 1: a single token; $c_i$: all visible tokens evenly.

    >>> participation(torch.tensor([[1.0, 0.0], [0.5, 0.5]]))
    tensor([1., 2.])
    """
    pattern, visible = patterns.prepared(pattern, visible)
    return torch.where(visible.any(-1), 1 / pattern.square().sum(-1), torch.nan)


@patterns.once
def entropy_chain(pattern: Pattern, *, span: Segment, visible: Visible | None = None) -> tuple[PerRow, PerRow, PerRow]:
    r"""Return each row's entropy as the sum of three terms, in nats: (which side, where outside the span, where inside it).

    $H(A_i) = h_2(\lambda_i) + \lambda_i H(A_{i,\bar I} / \lambda_i) + (1 - \lambda_i) H(A_{i,I} / (1 - \lambda_i))$. A side
    without mass contributes 0; the second term over lambda is what a prompt without the span has. Source: Shannon's grouping
    axiom (methods I11).

    >>> entropy_chain(torch.tensor([[1.0, 0.0], [0.5, 0.5]]), span=torch.tensor([False, True]))
    (tensor([0.0000, 0.6931]), tensor([0., 0.]), tensor([0., 0.]))
    """
    patterns.check_span(span, n_tokens=pattern.shape[-1])
    pattern, visible = patterns.prepared(pattern, visible)
    information = _information(pattern)
    masses = [patterns.row_sums(pattern, side) for side in (~span, span)]
    outer = [torch.xlogy(mass, mass) for mass in masses]
    parts = [whole - patterns.row_sums(information, side) for whole, side in zip(outer, (~span, span), strict=True)]
    terms = (torch.where(visible.any(-1), term.clamp(min=0), torch.nan) for term in (0 - outer[0] - outer[1], *parts))
    between, outside, inside = terms
    return between, outside, inside


def within_span_entropy(pattern: Pattern, *, span: Segment, visible: Visible | None = None) -> PerRow:
    r"""Return how evenly each row spreads its span attention over the span tokens that it sees, in [0, 1].

    $H(A_{i,I} / m_i) / \ln |I \cap V_i|$. 1: all alike (the paper's claim for meaningless tokens); 0: a single span token.
    NaN where fewer than two are seen or they get less than 1e-8.

    >>> within_span_entropy(torch.tensor([[1.0, 0.0, 0.0], [0.5, 0.5, 0.0], [0.5, 0.25, 0.25]]),
    ...                     span=torch.tensor([False, True, True]))
    tensor([nan, nan, 1.])
    """
    patterns.check_span(span, n_tokens=pattern.shape[-1])
    pattern, visible = patterns.prepared(pattern, visible)
    n_keys = (visible & span[..., None, :]).sum(-1)
    entropy, mass = _entropy_within(pattern, span)
    defined = (n_keys > 1) & (mass >= LEAST_MASS)
    return torch.where(defined, entropy / n_keys.to(pattern.dtype).log(), torch.nan)


def entropy_without_sink(pattern: Pattern, *, sink: Segment, visible: Visible | None = None) -> PerRow:
    r"""Return the entropy of each row after the sink's share is removed and the rest renormalised, in nats.

    $H(A_{i,\bar K_0} / (1 - A_{i,K_0}))$. Tells a head that reads one token from one that parks its mass on the sink. NaN
    where less than 1e-6 escapes it.

    >>> entropy_without_sink(torch.tensor([[1.0, 0.0, 0.0], [0.5, 0.5, 0.0], [0.8, 0.1, 0.1]]),
    ...                      sink=torch.tensor([True, False, False]))
    tensor([   nan, 0.0000, 0.6931])
    """
    patterns.check_segment(sink, name="sink", n_tokens=pattern.shape[-1])
    pattern, _ = patterns.prepared(pattern, visible)
    entropy, mass = _entropy_within(pattern, ~sink)
    return torch.where(mass >= 1e-6, entropy, torch.nan)


@patterns.once
def _information(pattern: Pattern) -> Pattern:
    return torch.xlogy(pattern, pattern)


@patterns.once
def _entropy(pattern: Pattern) -> PerRow:
    return 0 - _information(pattern).sum(-1)


def _entropy_within(pattern: Pattern, segment: Segment) -> tuple[PerRow, PerRow]:
    """Return the entropy of the renormalised part of each row inside a segment, and the mass of that part."""
    mass = patterns.row_sums(pattern, segment)
    entropy = mass.log() - patterns.row_sums(_information(pattern), segment) / mass
    return entropy.clamp(min=0), mass


Distribution = Float[Tensor, "*lead outcome"]
Distance = Float[Tensor, "*lead"]
Alignment = Int[Tensor, " base_src"]
"""Where each token of the base prompt stands in the inserted one: strictly increasing."""


def renormalised_rows(
    pattern: Float[Tensor, "*lead dest src"], *, alignment: Alignment
) -> Float[Tensor, "*lead dest base_src"]:
    r"""Rescale rows of the inserted run over the shared tokens to sum to 1.

    $q_{ij} = A'_{i,\pi(j)} / \lambda_i$ of the rows given. NaN where less than 1e-8 lies outside the span.

    >>> renormalised_rows(torch.tensor([[0.25, 0.5, 0.25]]), alignment=torch.tensor([0, 2]))
    tensor([[0.5000, 0.5000]])
    """
    if (alignment.diff() <= 0).any() or (alignment < 0).any() or (alignment >= pattern.shape[-1]).any():
        last, got = pattern.shape[-1] - 1, alignment.tolist()
        raise ValueError(f"the alignment must be strictly increasing positions in 0 to {last}, got {got}")
    shared = patterns.widened(pattern)[..., alignment]
    mass = shared.sum(-1, keepdim=True)
    return torch.where(mass >= LEAST_MASS, shared / mass, torch.nan)


def jensen_shannon_divergence(p: Distribution, q: Distribution) -> Distance:
    r"""Return the Jensen-Shannon divergence of two rows, in bits, in [0, 1].

    $\tfrac12 \sum_j p_j \log_2 \frac{p_j}{m_j} + \tfrac12 \sum_j q_j \log_2 \frac{q_j}{m_j}, \quad m = (p + q) / 2$. 0:
    equal; 1: disjoint. Its square root is a metric, the Jensen-Shannon distance.

    >>> jensen_shannon_divergence(torch.tensor([1.0, 0.0]), torch.tensor([0.0, 1.0]))
    tensor(1.)
    """
    p, q = _checked(p, q)
    middle = (p + q) / 2
    # p = middle (1 + lean): near rows do not cancel; of the smallest numbers a half is rounded, so that lean passes 1
    lean = torch.where(middle > 0, (p - middle) / middle, 0).clamp(-1, 1)
    nats = middle * (torch.special.xlog1py(1 + lean, lean) + torch.special.xlog1py(1 - lean, -lean)) / 2
    return (nats.sum(-1) / math.log(2)).clamp(0, 1)


def hellinger(p: Distribution, q: Distribution) -> Distance:
    r"""Return the Hellinger distance of two rows, in [0, 1].

    $\tfrac{1}{\sqrt 2} \lVert \sqrt p - \sqrt q \rVert_2$. 0: equal; 1: disjoint. Small probabilities count more than in total
    variation.

    >>> hellinger(torch.tensor([1.0, 0.0]), torch.tensor([0.0, 1.0]))
    tensor(1.)
    """
    p, q = _checked(p, q)
    return ((p.sqrt() - q.sqrt()).square().sum(-1) / 2).sqrt()


def total_variation(p: Distribution, q: Distribution) -> Distance:
    r"""Return the total variation distance of two rows, in [0, 1]: the attention that moved.

    $\tfrac12 \lVert p - q \rVert_1$. 0: equal; 1: disjoint.

    >>> total_variation(torch.tensor([0.5, 0.5]), torch.tensor([0.75, 0.25]))
    tensor(0.2500)
    """
    p, q = _checked(p, q)
    return (p - q).abs().sum(-1) / 2


def _checked(p: Tensor, q: Tensor) -> list[Tensor]:
    """Return both rows as `prepared` returns them, or NaN where all of a row is; ValueError for rows that are none."""
    if p.shape[-1] != q.shape[-1]:
        raise ValueError(
            f"rows must be over the same tokens, got {p.shape[-1]} and {q.shape[-1]}; align them first with "
            "renormalised_rows"
        )
    checked = []
    for rows in (p, q):
        known = ~rows.isnan().all(-1, keepdim=True).expand(rows.shape)
        wide, _ = patterns.prepared(rows[..., None, :], known[..., None, :])
        checked.append(torch.where(known, wide[..., 0, :], torch.nan))
    return checked
