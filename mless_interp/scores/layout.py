"""Where everything stands in one prompt: span, question, sink, the rows that count, the tokens that both runs have."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from ..metrics.segments import RowChoice, flanks, row_mask
from ..prompts.conditions import CONDITIONS
from ..prompts.pairs import PromptPair
from ..prompts.prompt import Prompt

Reference = Literal["prefix", "flanks"]


@dataclass(frozen=True)
class Thresholds:
    """The project's own numbers behind the metrics (methods section 4), all of them open to change.

    `min_rows`: tokens read by fewer rows are undefined. `collapsed`: a span token below this relative attention is
    collapsed. `width`: tokens of the windows of onset, flanks and latency. `recovered`: share of the reference at which
    attention counts as back. `sink`: a token above this mean attention is a sink. `step`: smallest relative drop that
    there is anything to recover from. `reference`: what the span is compared with, the prefix without its sink or the
    tokens on both sides.
    """

    min_rows: int = 3
    collapsed: float = 0.25
    width: int = 5
    recovered: float = 0.5
    sink: float = 0.3
    step: float = 0.05
    reference: Reference = "prefix"

    def __post_init__(self) -> None:
        for name in ("min_rows", "width"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be 1 or more, got {getattr(self, name)}")
        if self.reference not in ("prefix", "flanks"):
            raise ValueError(f'reference must be "prefix" or "flanks", got {self.reference!r}')


@dataclass(frozen=True, eq=False)
class Layout:
    """Masks over the tokens of one prompt, all boolean `[token]`, and the positions of the shared tokens `[shared]`.

    `span` is None in a prompt without insertion. `question` holds all tokens after the insertion point (its first block), less
    the span's, `before` those before it without the `sink`; `rows` are the rows that a mean over rows takes.
    """

    n_tokens: int
    span: Tensor | None
    question: Tensor
    before: Tensor
    sink: Tensor
    rows: Tensor
    shared: Tensor
    one_block: bool = True

    def reference(self, thresholds: Thresholds) -> Tensor:
        """The tokens whose level the span is compared with."""
        if thresholds.reference == "prefix":
            return self.before
        assert self.span is not None
        return flanks(self.span, width=thresholds.width, exclude=self.sink)


def pair_layout(pair: PromptPair, condition: str, *, rows: RowChoice) -> Layout:
    """The layout of a pair's prompt in one condition.

    Raises `ValueError` where nothing follows the insertion.
    """
    start, stop = pair.spans[0]
    kept = [token for token, position in enumerate(pair.alignment) if position >= 0]
    if not CONDITIONS[condition].has_span:
        after = [token for token in kept if pair.alignment[token] >= stop]
        if not after:
            raise _nothing_after(pair.id)
        first = min(after)
        return _layout(len(pair.base), None, start, first, torch.tensor(kept), rows, n_blocks=len(pair.spans))
    if not pair.n_after:
        raise _nothing_after(pair.id)
    return _layout(len(pair.inserted), pair.span_mask, start, stop, pair.shared, rows, n_blocks=len(pair.spans))


def prompt_layout(prompt: Prompt, *, rows: RowChoice) -> Layout:
    """The layout of one prompt from its segment names; without inserted tokens the question begins at its segment."""
    inserted = prompt.indices("inserted")
    if inserted:
        start, stop = prompt.blocks("inserted")[0]
        span = prompt.mask("inserted")
        if bool(span.all()):
            raise ValueError("the inserted span covers the whole prompt: there is nothing left to compare it with")
    else:
        found = prompt.indices("question")
        if not found:
            raise ValueError("the prompt has neither inserted nor question tokens: nothing says where its question is")
        start = stop = found[0]
        span = None
    if stop >= len(prompt) or len(prompt) - 1 in inserted:
        raise _nothing_after("(this prompt)")
    others = torch.arange(len(prompt)) if span is None else torch.arange(len(prompt))[~span]
    return _layout(len(prompt), span, start, stop, others, rows, n_blocks=len(prompt.blocks("inserted")))


def _layout(
    n: int, span: Tensor | None, start: int, stop: int, shared: Tensor, rows: RowChoice, *, n_blocks: int
) -> Layout:
    position = torch.arange(n)
    question = (position >= stop) if span is None else (position >= stop) & ~span
    sink = position == (stop if span is not None and start == 0 else 0)
    return Layout(
        n_tokens=n,
        span=span,
        question=question,
        before=(position < start) & ~sink,
        sink=sink,
        rows=row_mask(rows, question=question, span=span),
        shared=shared,
        one_block=n_blocks < 2,
    )


def _nothing_after(problem: str) -> ValueError:
    return ValueError(
        f"problem {problem!r}: no tokens follow the insertion, so there is no question whose attention could be "
        'described: give the pair with its answer (`pair.answered()`), or insert before="question"'
    )
