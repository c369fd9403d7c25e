"""What an attention pattern is: rows that sum to 1 over the keys that they see, and the uniform null."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mless_interp.core.once import once
from mless_interp.core.shapes import DestPositions, Pattern, PerRow, Segment, Visible
from mless_interp.metrics.segments import widened

ROW_SUM_TOLERANCE = {torch.float64: 1e-5, torch.float32: 1e-4, torch.float16: 5e-3, torch.bfloat16: 2e-2}
"""How far a row may be from 1. Eager attention computes its softmax in float32 even in a float64 model."""


@once
def prepared(
    pattern: Pattern, *, visible: Visible | None, dest_positions: DestPositions | None
) -> tuple[Pattern, Visible]:
    """The pattern in at least float32 with zeros outside the visible keys, and these keys (causal where none are given).

    Rows may be off by `ROW_SUM_TOLERANCE` of their dtype; ValueError names one that does not sum to 1 or has a negative entry
    (a tiny one is rounding, and 0). Half-precision rows are renormalised in float32 (bfloat16 rows are off by up to 2e-3, which
    an entropy would show); others stay as they are. Rows that see no key (padding) may hold anything and come back as zeros.
    """
    visible = resolved_visible(pattern, visible=visible, dest_positions=dest_positions)
    cleaned = torch.where(visible, widened(pattern), 0)
    sums = cleaned.sum(-1)
    sighted = visible.any(-1)
    tolerance = ROW_SUM_TOLERANCE[pattern.dtype]
    bad = sighted & ~((sums - 1).abs() <= tolerance)
    below = sighted & (cleaned.amin(-1) < -tolerance) & ~bad
    if (below | bad).any():
        if below.any():
            where = tuple(below.nonzero()[0].tolist())
            raise ValueError(
                f"attention is a probability, but row {list(where)} has a negative entry ({cleaned[where].min().item():.6g}): "
                "pass probabilities after the softmax, not scores, differences or edited patterns"
            )
        where = tuple(bad.nonzero()[0].tolist())
        raise ValueError(
            f"every attention row must sum to 1 over the keys that it can see, but row {list(where)} sums to "
            f"{sums[where].item():.6g} (tolerance {tolerance:g} for {pattern.dtype}). Pass probabilities after the "
            "softmax; for padding or sliding windows pass `visible=`; renormalise an edited pattern first; of a model with "
            "learned sinks (GPT-OSS) take `with_sink_key`"
        )
    if pattern.dtype in (torch.float16, torch.bfloat16):
        cleaned = cleaned / torch.where(sighted, sums, 1)[..., None]
    return cleaned.clamp(min=0), visible


def with_sink_key(
    pattern: Pattern, *, visible: Visible | None = None, dest_positions: DestPositions | None = None
) -> tuple[Float[Tensor, "*lead dest src+1"], Bool[Tensor, "*#lead dest src+1"]]:
    r"""A pattern whose rows sum to less than 1, as learned sinks leave it, with what they lack as one more key: the last one.

    $$ A_{i,T} = 1 - \textstyle\sum_{j < T} A_{ij}, \qquad V_{i,T} = \text{true} $$

    So a learned sink is a key outside every span, seen by every row, with value 0 and no token, and what is defined for rows
    that sum to 1 is defined here. Masks over the tokens get one more entry (False for a span, True for a sink), and a block its
    `dest_positions`. Source: GPT-OSS (arXiv 2508.10925), whose heads each learn a logit that joins the softmax and is dropped.

    >>> with_sink_key(torch.tensor([[0.5, 0.0], [0.25, 0.25]]))[0]
    tensor([[0.5000, 0.0000, 0.5000],
            [0.2500, 0.2500, 0.5000]])
    """
    visible = resolved_visible(pattern, visible=visible, dest_positions=dest_positions)
    cleaned, sighted = torch.where(visible, widened(pattern), 0), visible.any(-1)
    sums, tolerance = cleaned.sum(-1), ROW_SUM_TOLERANCE[pattern.dtype]
    wrong = sighted & ~((sums <= 1 + tolerance) & (cleaned.amin(-1) >= -tolerance))
    if wrong.any():
        where = tuple(wrong.nonzero()[0].tolist())
        raise ValueError(
            f"beside a learned sink an attention row holds shares of at most 1 together, but row {list(where)} sums to "
            f"{sums[where].item():.6g}, its least entry being {cleaned[where].min().item():.6g}: pass probabilities after the "
            "softmax"
        )
    lacks = (1 - sums[..., None]).clamp(min=0).to(pattern.dtype)
    lacks = torch.where(sighted[..., None], lacks, 0)  # a row that sees nothing (padding) stays undefined
    seen = torch.cat([visible, visible.any(-1, keepdim=True)], -1)
    return torch.cat([pattern, lacks], -1), seen


def resolved_visible(
    scores: Float[Tensor, "*lead dest src"], *, visible: Visible | None, dest_positions: DestPositions | None
) -> Visible:
    """`visible` checked against a block of rows, or the causal triangle of these rows."""
    if visible is None:
        queries = row_positions(scores, dest_positions)
        return torch.arange(scores.shape[-1], device=scores.device) <= queries[:, None]
    fits = visible.ndim >= 2 and visible.shape[-2:] == scores.shape[-2:] and visible.ndim <= scores.ndim
    fits = fits and all(v in (1, s) for v, s in zip(visible.shape[-3::-1], scores.shape[-3::-1], strict=False))
    if visible.dtype != torch.bool or not fits:
        raise ValueError(
            f"visible must be boolean and fit a pattern of shape {tuple(scores.shape)}, got {visible.dtype} "
            f"{tuple(visible.shape)}; give each prompt's mask a head axis of 1, and a block of rows the mask of its "
            "rows"
        )
    return visible


def row_sums(values: Pattern, segment: Segment) -> PerRow:
    """Each row's sum over the columns of a segment; no matrix product, whose precision a caller may have lowered."""
    return torch.where(segment[..., None, :], values, 0).sum(-1)


def uniform_pattern(visible: Visible, *, dtype: torch.dtype = torch.float32) -> Pattern:
    r"""Attention that prefers nothing: each row spreads 1 evenly over the keys that it can see.

    $$ A_{ij} = V_{ij} / c_i, \qquad c_i = \textstyle\sum_j V_{ij} $$

    The null of every pattern metric: put it in the pattern's place. Rows that see no key are zero.

    >>> uniform_pattern(torch.ones(2, 2).tril().bool())
    tensor([[1.0000, 0.0000],
            [0.5000, 0.5000]])
    """
    return visible.to(dtype) / visible.sum(-1, keepdim=True).clamp(min=1)


def row_positions(pattern: Pattern, dest_positions: DestPositions | None) -> DestPositions:
    """Which token each row of a block belongs to; all tokens in order by default."""
    n_rows, n_tokens = pattern.shape[-2:]
    if dest_positions is None:
        if n_rows != n_tokens:
            raise ValueError(
                f"a block of {n_rows} rows over {n_tokens} keys needs dest_positions: the position of each row's token"
            )
        return torch.arange(n_tokens, device=pattern.device)
    if dest_positions.shape != (n_rows,):
        raise ValueError(
            f"dest_positions must be a list of one position per row ({n_rows} rows), got shape "
            f"{tuple(dest_positions.shape)}"
        )
    if ((dest_positions < 0) | (dest_positions >= n_tokens)).any():
        raise ValueError(
            f"dest_positions must lie in 0 to {n_tokens - 1}, got {int(dest_positions.min())} to "
            f"{int(dest_positions.max())}; they count from the start of the whole (padded) prompt"
        )
    return dest_positions
