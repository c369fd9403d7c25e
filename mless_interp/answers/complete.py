"""Completions of many prompts, batched, greedy or sampled, with heads knocked out or activations redistributed.

Prompts are token ids. A row's completion does not depend on the rows beside it (beyond rounding): padding is masked, and
rows draw by themselves (`decoding.py`). The engines (`engines.py`) drive the model.
"""

from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..models.base import Model
from ..models.info import ModelInfo
from ..models.memory import halved, smallest_gpu
from ..runtime.engines import Tick, Unit, shard_of
from .decoding import Completion, CompletionEngine, Decoding, Request, Row, decoding_for
from .engines import engine_for
from .vllm import Vllm


def generate_completions(
    model: Model,
    requests: Iterable[Request],
    *,
    batch_size: int | None = None,
    engine: str | Vllm = "auto",
    on_finished: Callable[[dict[str, Completion]], None] | None = None,
    **decoding: Any,
) -> dict[str, Completion]:
    """Complete every request, by key.

    Parameters
    ----------
    batch_size : rows at once (default: sized to memory); halved when memory runs out, rows that had ended are kept.
    engine : as in `evaluate_accuracy`.
    on_finished : called with the completions that have just ended, as soon as they have.
    decoding : the fields of `Decoding`; `max_new_tokens` must be given.
    """
    asked, how = tuple(requests), decoding_for(model, **decoding)
    check_requests(model, asked, how)
    chosen = engine_for(model, engine)
    chosen.check(model, how)
    return complete_all(model, asked, how, chosen, batch_size=batch_size, on_finished=on_finished or (lambda _: None))


def check_requests(model: Model, requests: Iterable[Request], decoding: Decoding) -> None:
    """Raise `ValueError` naming the first request that cannot be completed."""
    seen: set[str] = set()
    for request in requests:
        if request.key in seen:
            raise ValueError(f"the key {request.key!r} is given twice; each completion needs its own")
        seen.add(request.key)
        if len(request.prompt) + decoding.max_new_tokens > model.info.context_length:
            raise ValueError(
                f"{request.key!r}: a prompt of {len(request.prompt)} tokens and {decoding.max_new_tokens} new ones do not "
                f"fit {model.info.name}'s context of {model.info.context_length}"
            )


def complete_all(
    model: Model,
    requests: Sequence[Request],
    decoding: Decoding,
    engine: CompletionEngine,
    *,
    batch_size: int | None,
    on_finished: Callable[[dict[str, Completion]], None],
    skip: Container[str] = frozenset(),
) -> dict[str, Completion]:
    """`generate_completions` for what has been checked; keys of `skip` are not made again, batches are cut as if they were."""
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
        closing: dict[int, bool] = {}
        found: dict[str, Completion] = {}

        def finished(rows: list[Row]) -> None:
            new = {row.request.key: row.completion() for row in rows}
            found.update(new)
            tick(new)

        asked = [self.requests[at] for at in batch]
        limit = len(asked)
        while waiting := [request for request in asked if request.key not in found]:
            rows = [Row(request, self.decoding, self.model.tokenizer, closing) for request in waiting[:limit]]
            try:
                with self.model.turn(), torch.no_grad():  # its hooks stay on from the first token to the last
                    self.engine.run(rows, self.decoding, finished)
            except (MemoryError, RuntimeError) as error:
                limit = halved(sum(row.stop is None for row in rows), error)
        return [found[request.key] for request in asked]


def rows_at_once(info: ModelInfo, gpu: int | None, *, longest: int, max_new_tokens: int) -> int:
    """Rows that fit about 2 GB on a CPU (None), or a quarter of the bytes of a GPU; `longest` prompt in tokens.

    A first guess, always the same; halved if wrong.
    """
    cache = info.n_layers * info.n_cached * (longest + max_new_tokens)
    prefill = longest * (8 * info.d_model + 4 * (info.d_mlp or 4 * info.d_model) + 3 * info.n_heads * longest)
    bytes_each = {"float64": 8, "float32": 4}.get(info.dtype, 2)
    per_row = (cache + prefill) * bytes_each + 16 * info.d_vocab
    most, budget = (64, 2e9) if gpu is None else (256, gpu / 4)
    return max(1, min(most, int(budget / per_row)))
