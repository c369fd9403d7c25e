"""Completions of many prompts, batched, greedy or sampled, with heads knocked out or activations redistributed.

Prompts are token ids. A row's completion does not depend on the rows beside it (beyond rounding): padding is masked, and
rows draw by themselves (`decoding.py`). The engines (`engines.py`) drive the model.
"""

from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..core.heads import Head, as_heads, check_heads
from ..models.base import Model
from ..models.info import ModelError, ModelInfo
from ..models.memory import halved, smallest_gpu
from ..runtime.engines import Tick, Unit, shard_of
from .decoding import Completion, CompletionEngine, Decoding, Movement, Redistribution, Request, Row
from .engines import engine_for
from .vllm import Vllm


def generate_completions(
    model: Model,
    requests: Iterable[Request],
    *,
    max_new_tokens: int,
    temperature: float = 0.0,
    top_p: float = 1.0,
    seed: int = 0,
    complete: Callable[[str], bool] | None = None,
    knockout: Iterable[Head | str] = (),
    redistribution: Redistribution | None = None,
    movement: Movement | None = None,
    batch_size: int | None = None,
    engine: str | Vllm = "auto",
    skip: Container[str] = frozenset(),
    on_finished: Callable[[dict[str, Completion]], None] | None = None,
    keep_logits: bool = False,
) -> dict[str, Completion]:
    """Complete every request, by key.

    Parameters
    ----------
    temperature, top_p : 0 is greedy; above it the model's distribution at that temperature, cut to its nucleus. Of the
        model's own generation config only the end-of-sequence ids are used.
    complete : whether a completion's text so far is whole, asked after every token with a closing brace.
    knockout : heads (zero-based) that cannot see a row's span from any position after it, their attention renormalised,
        at the prompt and at every generated token (methods §6).
    redistribution, movement : activations of MLPs redrawn (ARM), outputs of heads moved (a transfer).
    batch_size : rows at once (default: sized to memory); halved when memory runs out, rows that had ended are kept.
    engine : as in `evaluate_accuracy`.
    skip : keys that are not made again; the batches are cut as if they were.
    on_finished : called with the completions that have just ended, as soon as they have.
    keep_logits : keep every step's logits (large; for checks).
    """
    asked = tuple(requests)
    decoding = decoding_for(
        model,
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        top_p=top_p,
        seed=seed,
        complete=complete,
        knockout=as_heads(knockout),
        redistribution=redistribution,
        movement=movement,
        keep_logits=keep_logits,
    )
    check_requests(model, asked, decoding)
    chosen = engine_for(model, engine)
    check_engine(chosen, model, decoding)
    return complete_all(
        model, asked, decoding, chosen, batch_size=batch_size, skip=skip, on_finished=on_finished or (lambda _: None)
    )


def complete_all(
    model: Model,
    requests: Sequence[Request],
    decoding: Decoding,
    engine: CompletionEngine,
    *,
    batch_size: int | None,
    skip: Container[str],
    on_finished: Callable[[dict[str, Completion]], None],
) -> dict[str, Completion]:
    """`generate_completions` for what has been checked, on an engine that is there already."""
    ordered = sorted(requests, key=lambda request: len(request.prompt))
    size = batch_size or engine.rows_at_once or default_batch_size(model, ordered, decoding.max_new_tokens)
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


def decoding_for(model: Model, **options: Any) -> Decoding:
    """`Decoding` for this model, its stop ids found and everything checked."""
    knockout = check_heads(options.pop("knockout", ()), n_layers=model.info.n_layers, n_heads=model.info.n_heads)
    decoding = Decoding(stop_ids=stop_ids_of(model), knockout=knockout, **options)
    check_numbers(decoding.max_new_tokens, decoding.temperature, decoding.top_p)
    model.need_tokenizer("generating text")
    if model.info.n_classes is not None:
        raise ModelError(f"{model.info.name} gives {model.info.n_classes} classes, not tokens, so it completes no text")
    if not decoding.stop_ids and decoding.complete is None:
        raise ModelError(
            f"{model.info.name} names no end-of-sequence token (generation config, config and tokenizer have none), so "
            "nothing could stop it: set tokenizer.eos_token, or stop after a box"
        )
    if decoding.redistribution is not None:
        for layer in decoding.redistribution.layers:
            model.gated_mlp(layer)
    return decoding


def check_numbers(max_new_tokens: int | None, temperature: float, top_p: float) -> None:
    """`ValueError` for numbers of a decoding that make no sense with any model (None: as many as there is room for)."""
    if max_new_tokens is not None and max_new_tokens <= 0:
        raise ValueError(f"max_new_tokens must be 1 or more, got {max_new_tokens}")
    if not 0 <= temperature < float("inf"):
        raise ValueError(f"temperature must be 0 (greedy) or more, got {temperature}")
    if not 0 < top_p <= 1:
        raise ValueError(f"top_p must lie above 0 and at most at 1, got {top_p}")


def check_engine(engine: CompletionEngine, model: Model, decoding: Decoding) -> None:
    """Raise `ModelError` if the engine cannot decode this model in this way."""
    asked = {
        "heads": (bool(decoding.knockout), bool(engine.hides_under)),
        "outputs of heads": (decoding.movement is not None, engine.moves),
        "activations": (decoding.redistribution is not None, engine.redraws),
        "logits": (decoding.keep_logits, engine.shows_logits),
    }
    lacks = [what for what, (wanted, able) in asked.items() if wanted and not able]
    if lacks:
        others = [f"engine={name!r}" for name in ("hugging_face", "forward") if name != engine.name]
        raise ModelError(
            f"engine={engine.name!r} shows no {' and no '.join(lacks)} of {model.info.name}, which this asks for; use "
            f"{' or '.join(others)}"
        )
    if decoding.knockout and model.info.attention not in engine.hides_under:
        raise ModelError(
            f"{model.info.name} runs {model.info.attention!r} attention, under which engine={engine.name!r} cannot keep "
            f"heads from seeing a span: load it with attn_implementation={' or '.join(map(repr, engine.hides_under))} to "
            "knock heads out"
        )


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


def stop_ids_of(model: Model) -> frozenset[int]:
    """Every end-of-sequence id that the generation config, the model's config or the tokenizer names."""
    module = model.hf_model
    named = [getattr(model.tokenizer, "eos_token_id", None)]
    if module is not None:
        config = module.config.get_text_config()
        named += [getattr(getattr(module, "generation_config", None), "eos_token_id", None)]
        named += [getattr(config, "eos_token_id", None)]
    found: set[int] = set()
    for ids in named:
        found |= set(ids) if isinstance(ids, list | tuple | set) else ({ids} if ids is not None else set())
    return frozenset(int(token) for token in found)


def default_batch_size(model: Model, requests: Sequence[Request], max_new_tokens: int) -> int:
    """Rows that fit about 2 GB on a CPU, or a quarter of the smallest GPU's memory.

    A first guess, always the same; halved if wrong.
    """
    longest = max((len(request.prompt) for request in requests), default=1)
    return rows_at_once(model.info, smallest_gpu(model.devices), longest=longest, max_new_tokens=max_new_tokens)


def rows_at_once(info: ModelInfo, gpu: int | None, *, longest: int, max_new_tokens: int) -> int:
    """The same of a model's geometry and the bytes of a GPU, None for a CPU; `longest` prompt in tokens."""
    cache = info.n_layers * info.n_cached * (longest + max_new_tokens)
    prefill = longest * (8 * info.d_model + 4 * (info.d_mlp or 4 * info.d_model) + 3 * info.n_heads * longest)
    bytes_each = {"float64": 8, "float32": 4}.get(info.dtype, 2)
    per_row = (cache + prefill) * bytes_each + 16 * info.d_vocab
    most, budget = (64, 2e9) if gpu is None else (256, gpu / 4)
    return max(1, min(most, int(budget / per_row)))
