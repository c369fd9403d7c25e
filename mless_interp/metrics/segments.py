"""Segments of a prompt as boolean masks over its tokens, and means over them."""

from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mless_interp.core.shapes import PerColumn, PerHead, Segment

RowChoice = Literal["all", "shared", "question", "last"]


def widened(values: Float[Tensor, "*any"]) -> Float[Tensor, "*any"]:
    """The values in at least float32: half precision is only a way to store them.

    >>> widened(torch.ones(2, dtype=torch.bfloat16)).dtype, widened(torch.ones(2, dtype=torch.float64)).dtype
    (torch.float32, torch.float64)
    """
    return values.float() if values.dtype in (torch.float16, torch.bfloat16) else values


def check_segment(segment: Tensor, *, name: str, n_tokens: int) -> None:
    """Raise ValueError unless `segment` is a boolean mask over `n_tokens` tokens."""
    if segment.dtype != torch.bool:
        raise ValueError(
            f"{name} must be a boolean mask over the tokens, got {segment.dtype}; turn positions into a mask first"
        )
    if segment.ndim == 0 or segment.shape[-1] != n_tokens:
        raise ValueError(
            f"{name} must have one entry for each of the {n_tokens} tokens, got shape {tuple(segment.shape)}; "
            "a mask counts every token of the (padded) prompt, also where only a block of rows is given"
        )


def check_span(span: Tensor, *, n_tokens: int, may_cover_all: bool = False) -> None:
    """Raise ValueError unless `span` is a mask that holds some tokens, and leaves some out, in every prompt.

    With `may_cover_all` it need not leave any out.
    """
    check_segment(span, name="span", n_tokens=n_tokens)
    empty, full = ~span.any(-1), span.all(-1) & (not may_cover_all)
    if (empty | full).any():
        what = "is empty" if empty.any() else "covers all tokens: there is nothing left to compare it with"
        raise ValueError(f"the span {what}; mark only the inserted tokens")


def span_bounds(span: Segment) -> tuple[Int[Tensor, "*lead"], Int[Tensor, "*lead"]]:
    """First position of a one-piece span, and the first position after it.

    >>> span_bounds(torch.tensor([False, True, True, False]))
    (tensor(1), tensor(3))
    """
    check_span(span, n_tokens=span.shape[-1])
    start = span.int().argmax(-1)
    stop = span.shape[-1] - span.flip(-1).int().argmax(-1)
    if (stop - start != span.sum(-1)).any():
        raise ValueError(
            "the span must be one unbroken block of tokens here, but it has several pieces; "
            "onset and latency are only defined for one block: use span_collapse or collapsed_share"
        )
    return start, stop


def row_mask(rows: RowChoice, *, question: Segment, span: Segment | None = None) -> Segment:
    """The destination tokens that take part in a mean over rows.

    `"all"` is every token; `"shared"` leaves out the span (the choice for comparing a prompt with and without it, since span
    rows exist in one of them only); `"question"` is the question; `"last"` its last token. Padding needs no entry: padded rows
    see no key and drop out wherever `visible` is given.

    >>> row_mask("shared", question=torch.tensor([False, False, True]), span=torch.tensor([False, True, False]))
    tensor([ True, False,  True])
    >>> row_mask("last", question=torch.tensor([False, True, True]))
    tensor([False, False,  True])
    """
    n_tokens = question.shape[-1]
    check_segment(question, name="question", n_tokens=n_tokens)
    if span is not None:
        check_segment(span, name="span", n_tokens=n_tokens)
    if rows == "all":
        return torch.ones_like(question)
    if rows == "shared":
        return torch.ones_like(question) if span is None else ~span
    if rows == "question":
        return question.clone()
    if rows == "last":
        return question & (question.flip(-1).cumsum(-1).flip(-1) == 1)
    raise ValueError(f'rows must be "all", "shared", "question" or "last", got {rows!r}')


def flanks(span: Segment, *, width: int = 5, exclude: Segment | None = None) -> Segment:
    """The tokens within `width` positions of the span on either side, without those in `exclude` (sink, padding).

    >>> flanks(torch.tensor([False, False, True, False, False]), width=1)
    tensor([False,  True, False,  True, False])
    """
    check_span(span, n_tokens=span.shape[-1])
    pieces = span.reshape(-1, 1, span.shape[-1]).float()
    near = torch.nn.functional.max_pool1d(pieces, 2 * width + 1, stride=1, padding=width).reshape(span.shape) > 0
    near = near & ~span
    return near if exclude is None else near & ~exclude


def segment_mean(values: PerColumn, segment: Segment) -> PerHead:
    r"""Mean of a per-token (or per-row) quantity over a segment, in the quantity's own unit.

    $$ \bar x_S = \frac{1}{|S'|} \sum_{j \in S'} x_j, \qquad S' = \{j \in S : x_j \text{ defined}\} $$

    NaN entries leave the mean; NaN where nothing is left.

    >>> segment_mean(torch.tensor([1.0, 2.0, 4.0, float("nan")]), torch.tensor([False, True, True, True]))
    tensor(3.)
    """
    check_segment(segment, name="segment", n_tokens=values.shape[-1])
    values = widened(values)
    keep = segment & ~values.isnan()
    count = keep.sum(-1)
    mean = torch.where(keep, values, 0).sum(-1) / count
    return torch.where(count > 0, mean, torch.nan)
