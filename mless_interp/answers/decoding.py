"""What one completion is, draws and stops at; how a model is driven to make it is an engine's business.

Every row draws from generators of its own, made from the run's seed and the row's key, so that its completion does not
depend on the rows beside it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from ..core.heads import Head
from ..statistics import derive_generator

NOT_NUMBERS = "the model gave logits that are no numbers (NaN): load it in float32 or bfloat16"


@runtime_checkable
class Redistribution(Protocol):
    """What ARM is here: the layers whose MLP activations are redrawn, and how, at the prompt and at each later token."""

    @property
    def layers(self) -> Sequence[int]: ...

    @property
    def prefill_only(self) -> bool: ...

    def generator(self, key: object, *, layer: int = 0, step: int = 0) -> torch.Generator:
        """What a row draws from in a layer at a step (0: the prompt)."""

    def redistribute(self, activations: Tensor, *, generator: torch.Generator) -> Tensor:
        """The activations `[token, d_mlp]` of one row (no padding) that take the given ones' place."""


@runtime_checkable
class Movement(Protocol):
    """What a transfer of heads is here: the layers whose heads' outputs are moved, and how, from a row's `start` on."""

    @property
    def layers(self) -> Sequence[int]: ...

    def moved(self, z: Tensor, layer: int) -> Tensor:
        """The head outputs `[..., token, head, d_head]` that take the given ones' place."""


@dataclass(frozen=True)
class Request:
    """One completion to make: the prompt's ids, a unique key, which names its random numbers, the inserted span, and from which
    token on heads are moved (`start`)."""

    prompt: tuple[int, ...]
    key: str
    span: tuple[int, int] | None = None
    start: int | None = None


@dataclass(frozen=True, eq=False)
class Completion:
    """What a row gave: its new tokens (with the end-of-sequence token), why it stopped ("eos", "box", "length": cut off at
    max_new_tokens), and `logits` `[token, vocab]`, float32, if they were asked for."""

    tokens: tuple[int, ...]
    stop: str
    logits: Tensor | None = None

    def text(self, tokenizer: Any) -> str:
        """The completion as text, without its end-of-sequence token and other special tokens."""
        ids = self.tokens[:-1] if self.stop == "eos" else self.tokens
        return tokenizer.decode(list(ids), skip_special_tokens=True)


@dataclass(frozen=True, eq=False)
class Decoding:
    """How every row of a run is decoded and edited; made by `decoding_for`, which checks it."""

    max_new_tokens: int
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int = 0
    stop_ids: frozenset[int] = frozenset()
    complete: Callable[[str], bool] | None = None
    knockout: tuple[Head, ...] = ()
    redistribution: Redistribution | None = None
    keep_logits: bool = False
    movement: Movement | None = None


class Row:
    """One completion in the making; short-lived, made anew where a batch has to be repeated."""

    def __init__(self, request: Request, decoding: Decoding, tokenizer: Any, closing: dict[int, bool]) -> None:
        self.request, self.decoding, self.tokenizer = request, decoding, tokenizer
        self.tokens: list[int] = []
        self.stop: str | None = None
        self.logits: list[Tensor] = []
        self.kept: dict[int, Tensor] = {}  # redistributed activations of earlier positions, for an engine without cache
        self._closing = closing
        self._sampling = derive_generator(decoding.seed, "sampling", request.key)

    @property
    def ids(self) -> tuple[int, ...]:
        return self.request.prompt + tuple(self.tokens)

    def uniform(self) -> float:
        return float(self._sampling.random())

    def redrawn(self, activations: Tensor, layer: int) -> Tensor:
        """The redistribution of this step's activations `[token, d_mlp]`: the prompt's, or one token's."""
        redistribution = self.decoding.redistribution
        assert redistribution is not None
        step = len(self.tokens)
        if step and redistribution.prefill_only:
            return activations
        generator = redistribution.generator(self.request.key, layer=layer, step=step)
        return redistribution.redistribute(activations, generator=generator).to(activations.dtype)

    def accept(self, token: int) -> None:
        """Append a token and see whether the row ends with it."""
        self.tokens.append(token)
        if token in self.decoding.stop_ids:
            self.stop = "eos"
        elif self._completes(token):
            self.stop = "box"
        elif len(self.tokens) == self.decoding.max_new_tokens:
            self.stop = "length"

    def _completes(self, token: int) -> bool:
        if self.decoding.complete is None:
            return False
        if token not in self._closing:  # only a token with a closing brace can complete a box: all others cost nothing
            self._closing[token] = "}" in self.tokenizer.decode([token])
        return self._closing[token] and self.decoding.complete(
            self.tokenizer.decode(self.tokens, skip_special_tokens=True)
        )

    def completion(self) -> Completion:
        assert self.stop is not None
        return Completion(tuple(self.tokens), self.stop, torch.stack(self.logits) if self.logits else None)


Finished = Callable[[list[Row]], None]


@runtime_checkable
class CompletionEngine(Protocol):
    """Drives a model, and declares what it can do beside completing prompts; what it lacks is refused before it runs."""

    name: str
    rows_at_once: int | None  # None: as many as memory holds
    hides_under: tuple[str, ...]  # kinds of attention under which heads can be kept from seeing a span
    redraws: bool  # MLP activations (ARM)
    moves: bool  # outputs of heads (a transfer)
    shows_logits: bool

    def run(self, rows: list[Row], decoding: Decoding, finished: Finished) -> None:
        """Run the rows of one batch to their ends, telling `finished` of each as soon as it has stopped."""


def sampled(logits: Tensor, uniform: Tensor, *, temperature: float, top_p: float = 1.0) -> Tensor:
    r"""One token per row, by inverting the distribution function at one uniform number per row.

    $$ p = \operatorname{softmax}(\text{logits} / \text{temperature}), \qquad
       t = \min \{ i : \textstyle\sum_{j \le i} p_j > u \sum_j p_j \} $$

    With `top_p < 1`, p is first set to 0 outside the nucleus: the most probable tokens, as few as hold at least `top_p`.
    One number per row, whatever the vocabulary, so that a row's draws do not depend on the rows beside it.

    Source: nucleus sampling, Holtzman et al. (1904.09751).

    >>> sampled(torch.tensor([[0.0, 0.0]] * 2), torch.tensor([0.4, 0.6]), temperature=1.0)
    tensor([0, 1])
    """
    exact = torch.float32 if logits.device.type == "mps" else torch.float64
    probabilities = torch.softmax(logits.to(exact) / temperature, -1)
    if top_p < 1:
        ordered, order = probabilities.sort(descending=True, stable=True)
        beyond = ordered.cumsum(-1) - ordered >= top_p
        probabilities = probabilities.masked_fill(torch.zeros_like(beyond).scatter(-1, order, beyond), 0.0)
    edges = probabilities.cumsum(-1)
    total = edges[:, -1:]
    if not bool(torch.isfinite(total).all()):
        raise ValueError(NOT_NUMBERS)
    wanted = torch.minimum(uniform.to(edges)[:, None] * total, torch.nextafter(total, torch.zeros_like(total)))
    return torch.searchsorted(edges, wanted, right=True)[:, 0]


def check_finite(rows: Sequence[Row], logits: Tensor) -> None:
    """Raise `ValueError` where a row that goes on has NaN logits, of which a greedy choice would be token 0."""
    broken = torch.isnan(logits.amax(-1)).tolist()
    named = [row.request.key for row, nan in zip(rows, broken, strict=True) if nan and row.stop is None]
    if named:
        raise ValueError(f"{named[0]!r}: {NOT_NUMBERS}")


def next_tokens(rows: Sequence[Row], logits: Tensor, decoding: Decoding) -> Tensor:
    """The next token of every row `[row]` from its logits `[row, vocab]`; rows that have stopped draw nothing."""
    if decoding.keep_logits:
        for row, values in zip(rows, logits, strict=True):
            if row.stop is None:
                row.logits.append(values.detach().float().cpu())
    check_finite(rows, logits)
    if decoding.temperature == 0:
        return logits.argmax(-1)
    uniform = torch.tensor([row.uniform() if row.stop is None else 0.0 for row in rows], dtype=torch.float64)
    return sampled(logits, uniform.to(logits.device), temperature=decoding.temperature, top_p=decoding.top_p)


def accept_all(rows: Sequence[Row], tokens: Tensor, finished: Finished) -> None:
    """Give every row that goes on its token; report those that end with it."""
    going = [(row, token) for row, token in zip(rows, tokens.tolist(), strict=True) if row.stop is None]
    for row, token in going:
        row.accept(token)
    ended = [row for row, _ in going if row.stop is not None]
    if ended:
        finished(ended)
