"""Where everything stands in one prompt: span, question, sink, the rows that count, the tokens that both runs have."""

from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from ..core.arguments import check_count
from ..metrics.patterns import RowChoice, flanks, row_mask
from ..prompts.conditions import CONDITIONS, one_of
from ..prompts.pairs import PromptPair

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
        check_count(self.min_rows, name="min_rows")
        check_count(self.width, name="width")
        one_of(self.reference, dict.fromkeys(get_args(Reference)), "reference")


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

    @property
    def inside(self) -> Tensor:
        """The span, of a prompt that has one."""
        assert self.span is not None
        return self.span

    def reference(self, thresholds: Thresholds) -> Tensor:
        """The tokens whose level the span is compared with."""
        if thresholds.reference == "prefix":
            return self.before
        return flanks(self.inside, width=thresholds.width, exclude=self.sink)


def pair_layout(pair: PromptPair, condition: str, *, rows: RowChoice) -> Layout:
    """The layout of a pair's prompt in one condition; `ValueError` where nothing follows the insertion."""
    start, stop = pair.spans[0]
    prompt, shared = pair.inserted, pair.shared
    if not CONDITIONS[condition].has_span:
        kept = [token for token, position in enumerate(pair.alignment) if position >= 0]
        prompt, shared = pair.base, torch.tensor(kept)
        stop = next((token for token in kept if pair.alignment[token] >= stop), len(prompt))
    position, spans = torch.arange(len(prompt)), prompt.blocks("inserted")
    if stop >= len(prompt) or (spans and spans[-1][1] == len(prompt)):
        raise ValueError(
            f"problem {pair.id!r}: no tokens follow the insertion, so there is no question whose attention could be "
            'described: give the pair with its answer (`pair.answered()`), or insert before="question"'
        )
    span = prompt.mask("inserted") if spans else None
    question = (position >= stop) & ~prompt.mask("inserted")
    sink = position == (stop if spans and start == 0 else 0)
    return Layout(
        n_tokens=len(prompt),
        span=span,
        question=question,
        before=(position < start) & ~sink,
        sink=sink,
        rows=row_mask(rows, question=question, span=span),
        shared=shared,
        one_block=len(pair.spans) < 2,
    )
