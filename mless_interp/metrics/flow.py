"""How attention mixes tokens over layers: rollout."""

import torch
from jaxtyping import Float
from torch import Tensor

from mless_interp.metrics.attention import span_mass
from mless_interp.metrics.patterns import prepared
from mless_interp.shapes import Pattern, PerRow, Segment, Visible


def rollout(patterns: Float[Tensor, "layer *lead dest src"], *, visible: Visible | None = None) -> Pattern:
    r"""Share of each token's residual that comes from each token, if attention alone moved it: attention rollout.

    $$ R_L = \bar A_L \cdots \bar A_1, \qquad \bar A_l = \tfrac12 A_l + \tfrac12 𝟙 $$

    Rows sum to 1. `patterns` are means over heads, one per layer, the first layer first. Ignores values, MLPs and
    norms: descriptive only. Padded rows are NaN.

    Source: Abnar & Zuidema 2020 (arXiv 2005.00928).

    >>> rollout(torch.tensor([[[1.0, 0.0], [0.4, 0.6]], [[1.0, 0.0], [0.2, 0.8]]]))
    tensor([[1.0000, 0.0000],
            [0.2800, 0.7200]])
    """
    if patterns.shape[-2] != patterns.shape[-1]:
        raise ValueError(f"rollout needs whole square patterns, not a block of rows, got {tuple(patterns.shape)}")
    if not len(patterns):
        raise ValueError("rollout needs the pattern of at least one layer")
    patterns, visible = prepared(patterns, visible=visible, dest_positions=None)
    identity = torch.eye(patterns.shape[-1], dtype=patterns.dtype, device=patterns.device)
    flow = identity.expand(patterns.shape[1:])
    for pattern in patterns:
        flow = 0.5 * pattern @ flow + 0.5 * flow
    return torch.where(visible.any(-1, keepdim=True), flow, torch.nan)


def rollout_span_share(
    patterns: Float[Tensor, "layer *lead dest src"], *, span: Segment, visible: Visible | None = None
) -> PerRow:
    r"""Share of each token's residual that comes from the span by attention rollout, in [0, 1].

    $$ \textstyle\sum_{k \in I} R_{ik} $$

    0: nothing from the span has reached the token; 1: nothing else has.

    >>> rollout_span_share(torch.tensor([[[1.0, 0.0], [0.4, 0.6]]]), span=torch.tensor([True, False]))
    tensor([1.0000, 0.2000])
    """
    return span_mass(rollout(patterns, visible=visible), span=span, visible=_closure(patterns, visible))


def _closure(patterns: Tensor, visible: Tensor | None) -> Tensor | None:
    """What a token can see over several layers, however short the window: all before it; nothing, if padding."""
    if visible is None:
        return None
    real = visible.any(-1)
    causal = torch.ones(patterns.shape[-2:], dtype=torch.bool, device=patterns.device).tril()
    return causal & real[..., :, None]
