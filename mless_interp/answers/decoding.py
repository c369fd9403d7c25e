"""Completions of many prompts, batched, greedy or sampled: what one is, draws and stops at (`engines.py` drive the model).

Every row draws from generators of its own, made from the run's seed and the row's key, and padding is masked, so that its
completion does not depend on the rows beside it (beyond rounding).
"""

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from ..core.arguments import check_count
from ..core.heads import Head, check_heads
from ..mechanism.arm import ARM
from ..models.base import Model
from ..models.info import ModelError, ModelInfo
from ..models.memory import halved, smallest_gpu
from ..prompts.prompt import Tokenizer
from ..runtime.workers import Tick, Unit, shard_of
from ..statistics import derive_generator

NOT_NUMBERS = "the model gave logits that are no numbers (NaN): load it in float32 or bfloat16"


@dataclass(frozen=True)
class Request:
    """One completion to make: the prompt's ids, a unique key, which names its random numbers, and the inserted span."""

    prompt: tuple[int, ...]
    key: str
    span: tuple[int, int] | None = None


@dataclass(frozen=True)
class Completion:
    """What a row gave: its new tokens (with the end-of-sequence token) and why it stopped ("eos", "box", "length": cut off at
    max_new_tokens)."""

    tokens: tuple[int, ...]
    stop: str

    def text(self, tokenizer: Tokenizer) -> str:
        """Return the completion as text, without its end-of-sequence token and other special tokens."""
        ids = self.tokens[:-1] if self.stop == "eos" else self.tokens
        return str(tokenizer.decode(list(ids), skip_special_tokens=True))


@dataclass(frozen=True, eq=False)
class Decoding:
    """How every row of a run is decoded and edited; made by `decoding_for`, which checks it.

    `temperature` 0 is greedy. Of the model's own generation config only the end-of-sequence ids (`stop_ids`) are used.
    `complete`: whether a completion's text so far is whole, asked after every token with a closing brace. `knockout`: heads
    (zero-based) that cannot see a row's span from any position after it, their attention renormalised, at the prompt and at
    every generated token (methods §6). `arm`: activations of MLPs redrawn.
    """

    max_new_tokens: int
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int = 0
    stop_ids: frozenset[int] = frozenset()
    complete: Callable[[str], bool] | None = None
    knockout: tuple[Head, ...] = ()
    arm: ARM | None = None

    def __post_init__(self) -> None:
        check_count(self.max_new_tokens, name="max_new_tokens")
        if not 0 <= self.temperature < torch.inf:
            raise ValueError(f"temperature must be 0 (greedy) or more, got {self.temperature}")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p must lie above 0 and at most at 1, got {self.top_p}")


def decoding_for(model: Model, *, knockout: Iterable[Head | str] = (), **options: Any) -> Decoding:
    """Return `Decoding` for this model, its stop ids found and everything checked."""
    knocked = check_heads(knockout, n_layers=model.info.n_layers, n_heads=model.info.n_heads)
    decoding = Decoding(stop_ids=stop_ids_of(model), knockout=knocked, **options)
    model.need_tokenizer("generating text")
    if model.info.n_classes is not None:
        raise ModelError(f"{model.info.name} gives {model.info.n_classes} classes, not tokens, so it completes no text")
    if not decoding.stop_ids and decoding.complete is None:
        raise ModelError(
            f"{model.info.name} names no end-of-sequence token (generation config, config and tokenizer have none), so "
            "nothing could stop it: set tokenizer.eos_token, or stop after a box"
        )
    for layer in decoding.arm.layers if decoding.arm else ():
        model.gated_mlp(layer)
    return decoding


def stop_ids_of(model: Model) -> frozenset[int]:
    """Return every end-of-sequence id that the generation config, the model's config or the tokenizer names."""
    named = [getattr(model.tokenizer, "eos_token_id", None)]
    if (module := model.hf_model) is not None:
        configs = (getattr(module, "generation_config", None), module.config.get_text_config())
        named += [getattr(config, "eos_token_id", None) for config in configs]
    several = [ids if isinstance(ids, list | tuple | set) else [ids] for ids in named]
    return frozenset(int(token) for ids in several for token in ids if token is not None)


class Row:
    """One completion in the making; made anew where a batch has to be repeated."""

    def __init__(self, request: Request, decoding: Decoding, tokenizer: Tokenizer) -> None:
        self.request, self.decoding, self.tokenizer = request, decoding, tokenizer
        self.tokens: list[int] = []
        self.stop: str | None = None
        self._kept: dict[int, Tensor] = {}  # redrawn activations of earlier positions, for an engine without cache
        self._sampling = derive_generator(decoding.seed, "sampling", request.key)

    @property
    def ids(self) -> tuple[int, ...]:
        return self.request.prompt + tuple(self.tokens)

    @property
    def span(self) -> tuple[int, int]:
        assert self.request.span is not None
        return self.request.span

    def uniform(self) -> float:
        return float(self._sampling.random())

    def redrawn(self, activations: Tensor, layer: int) -> Tensor:
        """Return the redistribution of this step's activations `[token, d_mlp]`: the prompt's, or one token's."""
        arm, step = self.decoding.arm, len(self.tokens)
        assert arm is not None
        if step and arm.prefill_only:
            return activations
        generator = arm.generator(self.request.key, layer=layer, step=step)
        return arm.redistribute(activations, generator=generator).to(activations.dtype)

    def all_redrawn(self, activations: Tensor, layer: int) -> Tensor:
        """Return the same of all tokens so far, where no cache keeps what was drawn for earlier ones."""
        kept = self._kept.get(layer, activations[:0])
        self._kept[layer] = torch.cat([kept, self.redrawn(activations[len(kept) :], layer)])
        return self._kept[layer]

    def accept(self, token: int) -> None:
        self.tokens.append(token)
        if token in self.decoding.stop_ids:
            self.stop = "eos"
        elif self._completes(token):
            self.stop = "box"
        elif len(self.tokens) == self.decoding.max_new_tokens:
            self.stop = "length"

    def _completes(self, token: int) -> bool:
        # only a closing brace ends a box
        if self.decoding.complete is None or "}" not in self.tokenizer.decode([token]):
            return False
        return self.decoding.complete(str(self.tokenizer.decode(self.tokens, skip_special_tokens=True)))

    def completion(self) -> Completion:
        assert self.stop is not None
        return Completion(tuple(self.tokens), self.stop)


Finished = Callable[[list[Row]], None]


class CompletionEngine:
    """Drives a model, and declares what it can do beside completing prompts; what it lacks is refused before it runs."""

    name: str
    rows_at_once: int | None = None  # None: as many as memory holds
    hides_under: tuple[str, ...] = ()  # kinds of attention under which heads can be kept from seeing a span
    redraws = True  # MLP activations (ARM)
    settings: Mapping[str, object] = MappingProxyType({})  # what its answers depend on, beside the model

    def run(self, rows: list[Row], decoding: Decoding, finished: Finished) -> None:
        """Run the rows of one batch to their ends, telling `finished` of each as soon as it has stopped."""
        raise NotImplementedError

    def check(self, model: Model, decoding: Decoding) -> None:
        """Raise `ModelError` if it cannot decode this model in this way."""
        lacks = ["heads"] * bool(decoding.knockout and not self.hides_under)
        lacks += ["activations"] * bool(decoding.arm and not self.redraws)
        if lacks:
            others = [f"engine={name!r}" for name in ("hugging_face", "forward") if name != self.name]
            raise ModelError(
                f"engine={self.name!r} shows no {' and no '.join(lacks)} of {model.info.name}, which this asks for; use "
                f"{' or '.join(others)}"
            )
        if decoding.knockout and model.info.attention not in self.hides_under:
            raise ModelError(
                f"{model.info.name} runs {model.info.attention!r} attention, under which engine={self.name!r} cannot keep "
                f"heads from seeing a span: load it with attn_implementation={' or '.join(map(repr, self.hides_under))} to "
                "knock heads out"
            )


def sampled(logits: Tensor, uniform: Tensor, *, temperature: float, top_p: float) -> Tensor:
    r"""Return one token per row, by inverting the distribution function at one uniform number per row.

    $$ p = \operatorname{softmax}(\text{logits} / \text{temperature}), \qquad
       t = \min \{ i : \textstyle\sum_{j \le i} p_j > u \sum_j p_j \} $$

    With `top_p < 1`, p is first set to 0 outside the nucleus: the most probable tokens, as few as hold at least `top_p`.
    One number per row, whatever the vocabulary, so that a row's draws do not depend on the rows beside it.

    Source: nucleus sampling, Holtzman et al. (1904.09751).

    >>> sampled(torch.tensor([[0.0, 0.0]] * 2), torch.tensor([0.4, 0.6]), temperature=1.0, top_p=1.0)
    tensor([0, 1])
    """
    exact = torch.float32 if logits.device.type == "mps" else torch.float64
    probabilities = torch.softmax(logits.to(exact) / temperature, 1)
    if top_p < 1:
        ordered, order = probabilities.sort(descending=True, stable=True)
        beyond = ordered.cumsum(1) - ordered >= top_p
        probabilities = probabilities.masked_fill(torch.zeros_like(beyond).scatter(1, order, beyond), 0.0)
    edges = probabilities.cumsum(1)
    total = edges[:, -1:]
    if not bool(torch.isfinite(total).all()):
        raise ValueError(NOT_NUMBERS)
    wanted = torch.minimum(uniform.to(edges)[:, None] * total, torch.nextafter(total, torch.zeros_like(total)))
    return torch.searchsorted(edges, wanted, right=True)[:, 0]


def check_finite(rows: Sequence[Row], logits: Tensor) -> None:
    """Raise `ValueError` where a row that goes on has NaN logits, of which a greedy choice would be token 0."""
    broken = torch.isnan(logits.amax(1)).tolist()
    named = [row.request.key for row, nan in zip(rows, broken, strict=True) if nan and row.stop is None]
    if named:
        raise ValueError(f"{named[0]!r}: {NOT_NUMBERS}")


def next_tokens(rows: Sequence[Row], logits: Tensor, decoding: Decoding) -> Tensor:
    """Return the next token of every row `[row]` from its logits `[row, vocab]`; rows that have stopped draw nothing."""
    check_finite(rows, logits)
    if decoding.temperature == 0:
        return logits.argmax(1)
    uniform = torch.tensor([row.uniform() if row.stop is None else 0.0 for row in rows], dtype=torch.float64)
    stopped = torch.tensor([[row.stop is not None] for row in rows], device=logits.device)
    logits = logits.masked_fill(stopped, 0.0)  # nobody reads these rows: no NaN of theirs ends the others
    return sampled(logits, uniform.to(logits.device), temperature=decoding.temperature, top_p=decoding.top_p)


def accept_all(rows: Sequence[Row], tokens: Tensor, finished: Finished) -> None:
    """Give every row that goes on its token; report those that end with it."""
    going = [(row, token) for row, token in zip(rows, tokens.tolist(), strict=True) if row.stop is None]
    for row, token in going:
        row.accept(token)
    if ended := [row for row, _ in going if row.stop is not None]:
        finished(ended)


def check_requests(model: Model, requests: Iterable[Request], decoding: Decoding) -> None:
    """Raise `ValueError` naming the first request that cannot be completed."""
    seen: set[str] = set()
    for request in requests:
        if request.key in seen:
            raise ValueError(f"the key {request.key!r} is given twice; each completion needs its own")
        seen.add(request.key)
        length, context = len(request.prompt), model.info.context_length
        if length + decoding.max_new_tokens > context:
            told = f"a prompt of {length} tokens and {decoding.max_new_tokens} new ones do not fit"
            raise ValueError(f"{request.key!r}: {told} {model.info.name}'s context of {context}")


def complete_all(
    model: Model,
    requests: Sequence[Request],
    decoding: Decoding,
    engine: CompletionEngine,
    *,
    batch_size: int | None = None,
    on_finished: Callable[[dict[str, Completion]], None] = lambda _: None,
    skip: Container[str] = frozenset(),
) -> dict[str, Completion]:
    """Complete checked requests, by key; keys of `skip` are not made again, batches are cut as if they were.

    `batch_size`: rows at once (default: sized to memory), halved when memory runs out. `on_finished` is called with the
    completions that have just ended.
    """
    ordered = sorted(requests, key=lambda request: len(request.prompt))
    size = batch_size or engine.rows_at_once
    if size is None:
        longest = max((len(request.prompt) for request in ordered), default=1)
        gpu = smallest_gpu(model.devices)
        size = rows_at_once(model.info, gpu, longest=longest, max_new_tokens=decoding.max_new_tokens)
    batches = [tuple(range(at, min(at + size, len(ordered)))) for at in range(0, len(ordered), size)]
    shard = shard_of(model.engine)
    batches = batches if shard is None else shard.units(batches)
    waiting = [left for batch in batches if (left := tuple(at for at in batch if ordered[at].key not in skip))]
    found: dict[str, Completion] = {}

    def take(new: dict[str, Completion]) -> None:
        found.update(new)
        on_finished(new)

    for batch, made in model.engine(_Batches(model, ordered, decoding, engine), waiting, take):
        ended = {ordered[at].key: each for at, each in zip(batch, made, strict=True)}
        if new := {key: each for key, each in ended.items() if key not in found}:  # what the engine did not tick
            take(new)
    return found


@dataclass(frozen=True, eq=False)
class _Batches:
    """What is computed of a batch, wherever it is: the completion of each of its requests; `tick` takes them as they end."""

    model: Model
    requests: Sequence[Request]
    decoding: Decoding
    engine: CompletionEngine

    def __call__(self, batch: Unit, tick: Tick) -> list[Completion]:
        found: dict[str, Completion] = {}

        def finished(rows: list[Row]) -> None:
            new = {row.request.key: row.completion() for row in rows}
            found.update(new)
            tick(new)

        asked = [self.requests[at] for at in batch]
        limit = len(asked)
        while waiting := [request for request in asked if request.key not in found]:
            rows = [Row(request, self.decoding, self.model.tokenizer) for request in waiting[:limit]]
            try:
                with self.model.turn(), torch.no_grad():  # its hooks stay on from the first token to the last
                    self.engine.run(rows, self.decoding, finished)
            except (MemoryError, RuntimeError) as error:
                limit = halved(sum(row.stop is None for row in rows), error)
        return [found[request.key] for request in asked]


def rows_at_once(info: ModelInfo, gpu: int | None, *, longest: int, max_new_tokens: int) -> int:
    """Guess how many rows fit about 2 GB on a CPU (None), or a quarter of the bytes of a GPU; `longest` prompt in tokens."""
    cache = info.n_layers * info.n_cached * (longest + max_new_tokens)
    prefill = longest * (8 * info.d_model + 4 * (info.d_mlp or 4 * info.d_model) + 3 * info.n_heads * longest)
    bytes_each = {"float64": 8, "float32": 4}.get(info.dtype, 2)
    per_row = (cache + prefill) * bytes_each + 16 * info.d_vocab
    most, budget = (64, 2e9) if gpu is None else (256, gpu / 4)
    return max(1, min(most, int(budget / per_row)))
