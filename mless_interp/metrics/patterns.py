"""Attention patterns, segments of a prompt as masks, means over them, and uniform attention as the null."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from typing import Literal, ParamSpec, TypeVar, cast

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ..core.shapes import Pattern, PerColumn, PerHead, PerRow, Segment, Visible

RowChoice = Literal["all", "shared", "question"]
P = ParamSpec("P")
R = TypeVar("R")
_KNOWN: ContextVar[dict[tuple[object, ...], tuple[object, object]] | None] = ContextVar("_KNOWN", default=None)


@contextmanager
def computed_once() -> Iterator[None]:
    """Let a function marked `once` be computed once for the same arguments (the very same tensors, left as they are)."""
    before = _KNOWN.set({})
    try:
        yield
    finally:
        _KNOWN.reset(before)


def once(function: Callable[P, R]) -> Callable[P, R]:
    """Return the same function, whose numbers are kept as long as `computed_once` says; elsewhere nothing is kept."""

    @wraps(function)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        known = _KNOWN.get()
        if known is None:
            return function(*args, **kwargs)
        given = (*args, *kwargs.values())
        key = function, tuple(kwargs), tuple(map(id, given))
        if key not in known:
            known[key] = given, function(*args, **kwargs)  # what was given stays alive, so that its id is nobody else's
        return cast(R, known[key][1])

    return wrapped


def widened(values: Float[Tensor, "*any"]) -> Float[Tensor, "*any"]:
    """Return the values in at least float32: half precision is only a way to store them.

    >>> widened(torch.ones(2, dtype=torch.bfloat16)).dtype, widened(torch.ones(2, dtype=torch.float64)).dtype
    (torch.float32, torch.float64)
    """
    return values.float() if values.dtype in (torch.float16, torch.bfloat16) else values


def check_segment(segment: Tensor, *, name: str, n_tokens: int) -> None:
    """Raise ValueError unless `segment` is a boolean mask over `n_tokens` tokens."""
    if segment.dtype != torch.bool or segment.ndim == 0 or segment.shape[-1] != n_tokens:
        raise ValueError(
            f"{name} must be a boolean mask with one entry for each of the {n_tokens} tokens of the (padded) prompt, "
            f"also where only a block of rows is given; got {segment.dtype} of shape {tuple(segment.shape)}"
        )


def check_span(span: Tensor, *, n_tokens: int, may_cover_all: bool = False) -> None:
    """Raise ValueError unless `span` is a mask that holds some tokens, and leaves some out (or `may_cover_all`)."""
    check_segment(span, name="span", n_tokens=n_tokens)
    empty, full = ~span.any(-1), span.all(-1) & (not may_cover_all)
    if (empty | full).any():
        what = "is empty" if empty.any() else "covers all tokens: there is nothing left to compare it with"
        raise ValueError(f"the span {what}; mark only the inserted tokens")


def segment_mean(values: PerColumn, segment: Segment) -> PerHead:
    r"""Return the mean of a per-token (or per-row) quantity over a segment, in the quantity's own unit.

    $\bar x_S = \frac{1}{|S'|} \sum_{j \in S'} x_j$ over the defined $S' = \{j \in S : x_j \text{ defined}\}$; NaN where
    nothing is left.

    >>> segment_mean(torch.tensor([1.0, 2.0, 4.0, float("nan")]), torch.tensor([False, True, True, True]))
    tensor(3.)
    """
    check_segment(segment, name="segment", n_tokens=values.shape[-1])
    values = widened(values)
    keep = segment & ~values.isnan()
    return torch.where(keep, values, 0).sum(-1) / keep.sum(-1)  # 0 / 0 is NaN


ROW_SUM_TOLERANCE = {torch.float64: 1e-5, torch.float32: 1e-4, torch.float16: 5e-3, torch.bfloat16: 2e-2}
"""How far a row may be from 1. Eager attention computes its softmax in float32 even in a float64 model."""


@once
def prepared(pattern: Pattern, visible: Visible | None) -> tuple[Pattern, Visible]:
    """Return the pattern in at least float32 with zeros outside the visible keys, and these keys (causal where none are given).

    Rows may be off by `ROW_SUM_TOLERANCE`; ValueError names one that does not sum to 1 or has a negative entry. Half-precision
    rows are renormalised (bfloat16 rows are off by up to 2e-3, which an entropy shows). Rows that see no key become zeros.
    """
    cleaned, sums, visible = _seen(pattern, visible, least=1.0)
    if pattern.dtype in (torch.float16, torch.bfloat16):
        cleaned = cleaned / torch.where(visible.any(-1), sums, 1)[..., None]
    return cleaned.clamp(min=0), visible


def _seen(pattern: Pattern, visible: Visible | None, *, least: float) -> tuple[Pattern, PerRow, Visible]:
    """Return what rows give to the keys that they see, its sums, these keys; ValueError where a sum is not in [`least`, 1]."""
    visible = resolved_visible(pattern, visible)
    cleaned, tolerance = torch.where(visible, widened(pattern), 0), ROW_SUM_TOLERANCE[pattern.dtype]
    sums = cleaned.sum(-1)
    fine = (sums - 1 <= tolerance) & (sums - least >= -tolerance) & (cleaned.amin(-1) >= -tolerance)
    wrong = visible.any(-1) & ~fine
    if wrong.any():
        where = tuple(wrong.nonzero()[0].tolist())
        raise ValueError(
            f"every attention row must hold probabilities and sum to {'1' if least else '1 at most'} over the keys that it can "
            f"see, but row {list(where)} sums to {sums[where].item():.6g} with a least entry of "
            f"{cleaned[where].min().item():.6g} (tolerance {tolerance:g} for {pattern.dtype}). Pass probabilities after the "
            "softmax; for padding or sliding windows pass `visible=`; renormalise an edited pattern first; of a model with "
            "learned sinks (GPT-OSS) take `with_sink_key`"
        )
    return cleaned, sums, visible


def with_sink_key(
    pattern: Pattern, *, visible: Visible | None = None
) -> tuple[Float[Tensor, "*lead dest src+1"], Bool[Tensor, "*#lead dest src+1"]]:
    r"""Return a pattern whose rows sum to less than 1, as learned sinks leave it, with what they lack as one last key.

    $A_{i,T} = 1 - \textstyle\sum_{j < T} A_{ij}$, $V_{i,T} = \text{true}$: a learned sink is a key outside every span, seen by
    every row, with value 0 and no token. Masks over the tokens get one more entry (False for a span, True for a sink). Source:
    GPT-OSS (arXiv 2508.10925), whose heads each learn a logit that joins the softmax.

    >>> with_sink_key(torch.tensor([[0.5, 0.0], [0.25, 0.25]]))[0]
    tensor([[0.5000, 0.0000, 0.5000],
            [0.2500, 0.2500, 0.5000]])
    """
    _, sums, visible = _seen(pattern, visible, least=0.0)
    sighted = visible.any(-1, keepdim=True)  # a row that sees nothing (padding) stays undefined
    lacks = torch.where(sighted, (1 - sums[..., None]).clamp(min=0).to(pattern.dtype), 0)
    return torch.cat([pattern, lacks], -1), torch.cat([visible, sighted], -1)


def resolved_visible(scores: Float[Tensor, "*lead dest src"], visible: Visible | None) -> Visible:
    """Return `visible`, checked against a block of rows, or the causal triangle of a whole pattern."""
    if visible is None:
        n_rows, n_src = scores.shape[-2:]
        if n_rows != n_src:
            raise ValueError(f"a block of {n_rows} rows over {n_src} keys needs `visible`, the keys that each row sees")
        return torch.ones(n_rows, n_src, dtype=torch.bool, device=scores.device).tril()
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
    """Return each row's sum over the columns of a segment; no matrix product, whose precision a caller may have lowered."""
    return torch.where(segment[..., None, :], values, 0).sum(-1)


def uniform_pattern(visible: Visible, *, dtype: torch.dtype = torch.float32) -> Pattern:
    r"""Return attention that prefers nothing: each row spreads 1 evenly over the keys that it can see.

    $A_{ij} = V_{ij} / \textstyle\sum_j V_{ij}$: the null of every pattern metric, put in the pattern's place. Rows without
    keys are zero.

    >>> uniform_pattern(torch.ones(2, 2).tril().bool())
    tensor([[1.0000, 0.0000],
            [0.5000, 0.5000]])
    """
    return visible.to(dtype) / visible.sum(-1, keepdim=True).clamp(min=1)
