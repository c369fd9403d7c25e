"""Steps timed on a few random layers of the same geometry, and what they say of all layers and all problems."""

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import nn

from ..generation.complete import generate_completions
from ..generation.decoding import Request
from ..models.base import Model
from ..models.info import ModelError
from ..models.load import load_model
from ..models.products import product
from ..models.sent import unembedded
from ..prompts.pairs import PromptPair
from ..prompts.prompt import Prompt
from .free import available_memory
from .operations import Arithmetic, Number
from .shape import Shape
from .steps import Step

FEWEST_LAYERS = 3
"""First, middle and last of a sweep's passes do different things."""
MOST_BYTES = 1.6e9
"""What the timed layers may weigh."""
LOADED_AT_ONCE, SHARE_WHILE_TIMED = 3, 0.5
"""Loading holds so many times what layers weigh for a moment, in so much of the memory that is free."""
OFTEN, LONG = 3, 1.0
"""What takes less than so many seconds is timed so often; the median counts."""
MOST_POSITIONS = 1024
"""Logits are timed at so many positions at once, at most: a product of more is no faster."""
FEWEST_WORDS = 256
N_DECODED = 4


@dataclass(frozen=True)
class Chosen:
    """How a model is to be run."""

    backend: str
    dtype: str
    device: str
    attention: str

    @property
    def torch_dtype(self) -> torch.dtype:
        return getattr(torch, self.dtype)

    @property
    def bytes_each(self) -> int:
        return self.torch_dtype.itemsize


def own_ids(pairs: Sequence[PromptPair]) -> tuple[PromptPair, ...]:
    """The pairs in a small vocabulary of their own: as many different tokens, at the same places."""
    number: dict[int, int] = {}

    def small(ids: Sequence[int]) -> tuple[int, ...]:
        return tuple(number.setdefault(one, len(number)) for one in ids)

    def prompt(given: Prompt) -> Prompt:
        return replace(given, ids=small(given.ids))

    return tuple(
        replace(
            pair,
            base=prompt(pair.base),
            inserted=prompt(pair.inserted),
            answer_prefix_ids=small(pair.answer_prefix_ids),
            answer_ids=small(pair.answer_ids),
            distractor_ids=small(pair.distractor_ids),
            solution_ids=small(pair.solution_ids),
            tokenizer=None,
        )
        for pair in pairs
    )


def n_different(pairs: Sequence[PromptPair]) -> int:
    """How many different tokens these pairs have."""
    ids = ("answer_prefix_ids", "answer_ids", "distractor_ids", "solution_ids")
    return len(
        {one for p in pairs for own in (p.base.ids, p.inserted.ids, *(getattr(p, n) for n in ids)) for one in own}
    )


def seconds_of(run: Callable[[], Any], *, most: float = LONG) -> float:
    """The median of a few runs that take no more than `most` seconds together, or one long one."""
    spent: list[float] = []
    while not spent or (len(spent) < OFTEN and sum(spent) < most):
        spent.append(once_of(run))
    return statistics.median(spent)


def begun_and_again(run: Callable[[], Any], *, most: float) -> tuple[float, float]:
    """Seconds that a first call takes more than later ones, as it loads what it needs, and those of a later one; a first call
    of more than `most` seconds is the only one."""
    first = once_of(run)
    again = first if first >= most else seconds_of(run, most=most - first)
    return max(0.0, first - again), again


def once_of(run: Callable[[], Any]) -> float:
    """Seconds of one call."""
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


@torch.no_grad()
def product_speed(shape: Shape, chosen: Chosen, *, rows: int = 512) -> float:
    """Operations per second of one product of the model's width on this device, in its precision."""
    width = shape.info.d_model
    wide = min(4 * width, max(width, 2**24 // width))
    x, weight = (
        torch.randn(size, device=chosen.device).to(chosen.torch_dtype) for size in ((rows, width), (wide, width))
    )

    def run() -> None:
        product(x, weight)
        if "cuda" in chosen.device:
            torch.cuda.synchronize(chosen.device)

    run()
    return 2.0 * rows * width * wide / seconds_of(run)


@dataclass(frozen=True, eq=False)
class Timed:
    """A few layers of a geometry, loaded as the model would be; `load_seconds` is what that took."""

    shape: Shape
    chosen: Chosen
    model: Model
    n_layers: int
    load_seconds: float

    @classmethod
    def of(cls, shape: Shape, chosen: Chosen, *, n_layers: int, n_words: int) -> "Timed":
        options: dict[str, Any] = {"dtype": chosen.torch_dtype, "attention": chosen.attention}
        made = shape.layers_like(n_layers, n_words=max(FEWEST_WORDS, n_words), **options)
        began = time.perf_counter()
        model = load_model(
            made,
            backend=chosen.backend,
            dtype=chosen.dtype,
            device=chosen.device,
            attn_implementation=chosen.attention,
        )
        return cls(shape, chosen, model, n_layers, time.perf_counter() - began)

    @property
    def few(self) -> Arithmetic:
        return Arithmetic(self.shape, self.n_layers)

    @cached_property
    def all(self) -> Arithmetic:
        return Arithmetic(self.shape, self.shape.info.n_layers)

    def step(self, step: Step, units: Sequence[Sequence[PromptPair]], *, seconds: float) -> float:
        """Seconds of a step for all units, without logits, from what it takes for one of them and for some.

        Where all layers are here the line through both times has what is done once and what grows with the operations; where
        they are not, everything is taken to grow. About `seconds` are spent on it, at least one call.
        """
        by_size = sorted(units, key=lambda unit: step.operations(self.few, unit))
        whole = self.n_layers == self.shape.info.n_layers
        one = by_size[len(units) // 2][: None if whole else 1]

        def work(some: Sequence[Sequence[PromptPair]]) -> tuple[float, Callable[[], Any]]:
            pairs = own_ids([pair for unit in some for pair in unit])
            counted = sum((step.sampled or step.operations)(self.few, unit) for unit in some)
            return counted, lambda: step.run(self.model, pairs)

        few, run = work([one])
        begun, short = begun_and_again(run, most=seconds)
        each, once = short / few, 0.0
        n = min(len(units), int(seconds / short))
        if whole and n > 1:
            many, run = work(by_size[:: -(-len(units) // n)])
            long = seconds_of(run, most=seconds)
            if many > few and long > short:
                each = min(long / many, (long - short) / (many - few))
                once = max(0.0, long - each * many)
        return begun + step.times * once + each * self.counted(step, units)

    def counted(self, step: Step, units: Sequence[Sequence[PromptPair]]) -> float:
        """Operations of a step for all units through all layers."""
        return step.times * sum(step.operations(self.all, unit) for unit in units)

    @torch.no_grad()
    def logits(self, positions: Number, *, per_pass: Number) -> float:
        """Seconds for logits at so many positions, `per_pass` of them at a time, from a part of the vocabulary."""
        if not positions:
            return 0.0
        info, device = self.shape.info, self.chosen.device
        rows = max(1, min(round(per_pass), MOST_POSITIONS))
        words = min(info.d_vocab, max(1024, 2**25 // info.d_model))
        linear = nn.Linear(info.d_model, words, bias=False).to(device, self.chosen.torch_dtype)
        x = torch.randn(rows, info.d_model).to(device, self.chosen.torch_dtype)

        def run() -> None:
            made = unembedded(linear, x)
            made = product(x, linear.weight) if made is None else made
            torch.log_softmax(made.float(), -1).sum().item()

        run()
        return seconds_of(run) * info.d_vocab / words * positions / rows

    def decoding(self, pairs: Sequence[PromptPair], *, seconds: float) -> tuple[float, float, float]:
        """Seconds of these prompts as one batch and of one new token of each, with all layers, without logits; and of what a
        first call loads. About `seconds` are spent on it, at least two calls."""
        requests = [Request(pair.inserted.ids, f"{at}") for at, pair in enumerate(own_ids(pairs))]

        def answer(new: int) -> Callable[[], Any]:
            return lambda: generate_completions(self.model, requests, max_new_tokens=new)

        begun, short = begun_and_again(answer(N_DECODED), most=seconds / 2)
        long = seconds_of(answer(3 * N_DECODED), most=seconds / 2)
        each = max(0.0, long - short) / (2 * N_DECODED)
        deeper = self.shape.info.n_layers / self.n_layers
        return deeper * max(0.0, short - N_DECODED * each), deeper * each, begun


def layers_to_time(shape: Shape, chosen: Chosen, operations: Callable[[Arithmetic], float], *, seconds: float) -> int:
    """As many layers as take no longer and weigh no more than they may; all where they are few.

    Raises `ModelError` where this machine has not the memory for one.
    """
    heaviest = SHARE_WHILE_TIMED * available_memory() / (LOADED_AT_ONCE * shape.per_layer * chosen.bytes_each)
    if heaviest < 1:
        raise ModelError(
            f"one layer of {shape.info.name!r} weighs {shape.per_layer * chosen.bytes_each / 1e9:.3g} GB, too much to be timed "
            "in the memory that is free here: say what a GPU has that is not here (memory, tflops)"
        )
    speed, n = product_speed(shape, chosen), shape.info.n_layers
    for layers in range(n, FEWEST_LAYERS, -1):
        light = layers * shape.per_layer * chosen.bytes_each <= MOST_BYTES and layers <= heaviest
        if light and operations(Arithmetic(shape, layers)) <= seconds * speed / 2:
            return layers
    return min(n, FEWEST_LAYERS, int(heaviest))
