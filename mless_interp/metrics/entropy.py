"""Entropy of attention rows: how many tokens a head reads, and how that splits between the span and the rest.

Row by row (`[*lead, dest, src]` in, `[*lead, dest]` out); rows that see no key are NaN. Entropies of prompts of different
lengths are not comparable as they stand: use `normalised_entropy` or the chain rule.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from mless_interp.core.once import once
from mless_interp.core.shapes import DestPositions, Pattern, PerRow, Segment, Visible
from mless_interp.metrics.patterns import prepared, row_sums
from mless_interp.metrics.segments import check_segment, check_span


def attention_entropy(
    pattern: Pattern, *, visible: Visible | None = None, dest_positions: DestPositions | None = None
) -> PerRow:
    r"""Shannon entropy of each attention row, in nats.

    $$ H_i = -\sum_j A_{ij} \ln A_{ij}, \qquad 0 \ln 0 = 0 $$

    0: the row reads a single token; $\ln c_i$: it reads its $c_i$ visible tokens evenly.

    >>> attention_entropy(torch.tensor([[1.0, 0.0], [0.5, 0.5]]))
    tensor([0.0000, 0.6931])
    """
    pattern, visible = prepared(pattern, visible=visible, dest_positions=dest_positions)
    return torch.where(visible.any(-1), _entropy(pattern), torch.nan)


def normalised_entropy(
    pattern: Pattern, *, visible: Visible | None = None, dest_positions: DestPositions | None = None
) -> PerRow:
    r"""Entropy of each attention row as a share of the most that its visible keys allow, in [0, 1].

    $$ H_i / \ln c_i $$

    0: one token; 1: uniform. NaN where the row sees a single key.

    >>> normalised_entropy(torch.tensor([[1.0, 0.0], [0.5, 0.5]]))
    tensor([nan, 1.])
    """
    pattern, visible = prepared(pattern, visible=visible, dest_positions=dest_positions)
    n_keys = visible.sum(-1)
    return torch.where(n_keys > 1, _entropy(pattern) / n_keys.to(pattern.dtype).log(), torch.nan)


def effective_tokens(
    pattern: Pattern, *, visible: Visible | None = None, dest_positions: DestPositions | None = None
) -> PerRow:
    r"""Number of tokens that each row reads as if evenly (Hill number of order 1).

    $$ \exp(H_i) $$

    1: a single token; $c_i$: all visible tokens evenly.

    >>> effective_tokens(torch.tensor([[1.0, 0.0], [0.5, 0.5]]))
    tensor([1., 2.])
    """
    return attention_entropy(pattern, visible=visible, dest_positions=dest_positions).exp()


def participation(
    pattern: Pattern, *, visible: Visible | None = None, dest_positions: DestPositions | None = None
) -> PerRow:
    r"""Participation ratio of each row, in tokens (Hill number of order 2, never above `effective_tokens`).

    $$ 1 / \textstyle\sum_j A_{ij}^2 $$

    1: a single token; $c_i$: all visible tokens evenly. Less moved by many small weights than order 1.

    >>> participation(torch.tensor([[1.0, 0.0], [0.5, 0.5]]))
    tensor([1., 2.])
    """
    pattern, visible = prepared(pattern, visible=visible, dest_positions=dest_positions)
    return torch.where(visible.any(-1), 1 / pattern.square().sum(-1), torch.nan)


@dataclass(frozen=True, eq=False)
class EntropyChain:
    """A row's entropy in nats as the sum of three terms: which side, where outside the span, where inside it."""

    between: Float[Tensor, "*lead dest"]
    outside: Float[Tensor, "*lead dest"]
    inside: Float[Tensor, "*lead dest"]

    @property
    def total(self) -> PerRow:
        return self.between + self.outside + self.inside


@once
def entropy_chain(
    pattern: Pattern, *, span: Segment, visible: Visible | None = None, dest_positions: DestPositions | None = None
) -> EntropyChain:
    r"""Entropy of each row split by the chain rule over span and rest, in nats.

    $$ H(A_i) = h_2(\lambda_i) + \lambda_i H(A_{i,\bar I} / \lambda_i) + (1 - \lambda_i) H(A_{i,I} / (1 - \lambda_i)) $$

    `between` is the first term (0 when all mass is on one side), `outside` the second: the only one that a prompt without the
    span has too, after division by lambda. A side without mass contributes 0. Source: Shannon's grouping axiom (methods I11).

    >>> chain = entropy_chain(torch.tensor([[1.0, 0.0], [0.5, 0.5]]), span=torch.tensor([False, True]))
    >>> chain.between, chain.outside
    (tensor([0.0000, 0.6931]), tensor([0., 0.]))
    """
    check_span(span, n_tokens=pattern.shape[-1])
    pattern, visible = prepared(pattern, visible=visible, dest_positions=dest_positions)
    information = _information(pattern)
    masses = [row_sums(pattern, side) for side in (~span, span)]
    outer = [torch.xlogy(mass, mass) for mass in masses]
    outside, inside = (
        (whole - row_sums(information, side)).clamp(min=0) for whole, side in zip(outer, (~span, span), strict=True)
    )
    between = (0 - outer[0] - outer[1]).clamp(min=0)
    return EntropyChain(*(torch.where(visible.any(-1), term, torch.nan) for term in (between, outside, inside)))


def within_span_entropy(
    pattern: Pattern,
    *,
    span: Segment,
    visible: Visible | None = None,
    dest_positions: DestPositions | None = None,
    min_mass: float = 1e-8,
) -> PerRow:
    r"""How evenly each row spreads its span attention over the span tokens that it sees, in [0, 1].

    $$ H(A_{i,I} / m_i) / \ln |I \cap V_i| $$

    1: all alike (the paper's claim for meaningless tokens); 0: a single span token. NaN where the row sees fewer than two span
    tokens or gives them less than `min_mass`.

    >>> within_span_entropy(torch.tensor([[1.0, 0.0, 0.0], [0.5, 0.5, 0.0], [0.5, 0.25, 0.25]]),
    ...                     span=torch.tensor([False, True, True]))
    tensor([nan, nan, 1.])
    """
    check_span(span, n_tokens=pattern.shape[-1])
    pattern, visible = prepared(pattern, visible=visible, dest_positions=dest_positions)
    n_keys = (visible & span[..., None, :]).sum(-1)
    entropy, mass = _entropy_within(pattern, span)
    defined = (n_keys > 1) & (mass >= min_mass)
    return torch.where(defined, entropy / n_keys.to(pattern.dtype).log(), torch.nan)


def entropy_without_sink(
    pattern: Pattern,
    *,
    sink: Segment,
    visible: Visible | None = None,
    dest_positions: DestPositions | None = None,
    min_mass: float = 1e-6,
) -> PerRow:
    r"""Entropy of each row after the sink's share is removed and the rest renormalised, in nats.

    $$ H(A_{i,\bar K_0} / (1 - A_{i,K_0})) $$

    Tells a head that reads one token from a head that parks its mass on the sink and spreads the rest. NaN where less than
    `min_mass` escapes the sink.

    >>> entropy_without_sink(torch.tensor([[1.0, 0.0, 0.0], [0.5, 0.5, 0.0], [0.8, 0.1, 0.1]]),
    ...                      sink=torch.tensor([True, False, False]))
    tensor([   nan, 0.0000, 0.6931])
    """
    check_segment(sink, name="sink", n_tokens=pattern.shape[-1])
    pattern, _ = prepared(pattern, visible=visible, dest_positions=dest_positions)
    entropy, mass = _entropy_within(pattern, ~sink)
    return torch.where(mass >= min_mass, entropy, torch.nan)


@once
def _information(pattern: Pattern) -> Pattern:
    """A ln A of each cell, 0 where A is."""
    return torch.xlogy(pattern, pattern)


@once
def _entropy(pattern: Pattern) -> PerRow:
    return 0 - _information(pattern).sum(-1)


def _entropy_within(pattern: Pattern, segment: Segment) -> tuple[PerRow, PerRow]:
    """Entropy of the renormalised part of each row inside a segment, and the mass of that part."""
    mass = row_sums(pattern, segment)
    entropy = mass.log() - row_sums(_information(pattern), segment) / mass
    return entropy.clamp(min=0), mass
