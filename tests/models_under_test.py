"""Loaded tiny models and prompt pairs, made once per process and shared by the tests that compare backends."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mless_interp.ground_truth.planted import PlantedModel, planted_model
from mless_interp.models.base import Model
from mless_interp.models.info import Inputs
from mless_interp.models.load import load_model, wrap_model
from mless_interp.patching.outcomes import OUTCOMES
from mless_interp.prompts.insertions import Insertion
from mless_interp.prompts.own_ids import pairs_from_ids
from mless_interp.prompts.pairs import PromptPair, make_pairs
from mless_interp.prompts.problems import Problem

QUIET: dict[str, Any] = {"progress": False}
QUESTIONS = (
    "Anna has 3 red apples and Ben has 5 green pears . How many apples does Anna have ?",
    "Cleo has 7 blue books and Dan has 4 cards . How many cards does Dan have ?",
    "Ben gets 2 plums and Anna loses 6 coins . How many plums does Ben have ?",
)


@cache
def loaded(directory: Path, backend: str, dtype: str = "float32", attention: str = "eager") -> Model:
    """One model per process; tests must not change it."""
    return load_model(directory, backend=backend, dtype=dtype, attn_implementation=attention)


def hooked(**given: Any) -> Model:
    """A small attention-only HookedTransformer without layer norm, drawn at random."""
    from mless_interp.models.transformer_lens import _hooked

    made = {"n_layers": 2, "n_heads": 2, "d_model": 8, "d_head": 4, "n_ctx": 5, "d_vocab": 9, "act_fn": "relu"}
    made |= {"attn_only": True, "normalization_type": None, "seed": 3, **given}
    drawn = _hooked(made)
    with torch.no_grad():
        for weight in drawn.parameters():
            weight.normal_(generator=torch.Generator().manual_seed(weight.numel()), std=0.6)
    return wrap_model(drawn.eval(), name="small")


def four_specialists() -> Model:
    """Four heads; each copies one of four classes of tokens to its logit: 0 and 1 are class 0, ...; 8 and 9 are none."""
    model = hooked(n_layers=1, n_heads=4, d_model=24, d_head=2, d_vocab=10, d_vocab_out=4, n_ctx=6)
    own = model.underlying
    with torch.no_grad():
        for weight in own.parameters():
            weight.zero_()
        own.embed.W_E[:, :10] = torch.eye(10)
        for head in range(4):
            own.blocks[0].attn.W_V[head, 2 * head : 2 * head + 2, 0] = 1.0
            own.blocks[0].attn.W_O[head, 0, 12 + head] = 8.0
            own.unembed.W_U[12 + head, head] = 3.0
    return wrap_model(own, name="four specialists")


def of_classes(n: int, seed: int, classes: tuple[int, ...] = (0, 1, 2, 3)) -> Any:
    """The first of six tokens is of the answer's class, in the clean prompt of none."""
    every = [(first, *rest) for first in range(8) for rest in np.ndindex(2, 2, 2, 2, 2) if first // 2 in classes]
    rows = [every[at] for at in np.random.default_rng(0).permutation(len(every))[seed * n : (seed + 1) * n]]
    ids = [[first, *(8 + each for each in rest)] for first, *rest in rows]
    return pairs_from_ids(ids, [first // 2 for first, *_ in rows], clean=[[8, *row[1:]] for row in ids])


def without_stepper(model: Model) -> Model:
    """The same model, as if it could not be continued layer by layer; the original is not changed."""
    closed = object.__new__(type(model))
    closed.__dict__ = {**model.__dict__, "layers": None}
    return closed


def lying(model: Any, lie: Callable[..., Any]) -> Any:
    """The same model, but `run` goes through `lie(run, inputs, options)`."""

    class Liar(type(model)):  # type: ignore[misc]
        def run(self, inputs: Any, **options: Any) -> Any:
            return lie(super().run, inputs if isinstance(inputs, Inputs) else Inputs(inputs), options)

    liar = object.__new__(Liar)
    liar.__dict__.update(model.__dict__)
    return liar


def ignores_positions(run: Any, inputs: Inputs, options: dict[str, Any]) -> Any:
    return run(replace(inputs, position_ids=None), **options)


def problems() -> list[Problem]:
    """Three small problems of words that the tiny tokenizers know."""
    answers = ("3", "4", "2")
    return [
        Problem(
            id=f"p{i}", question=q, answer=a, system="Please reason step by step .", distractor="9", solution=q[:30]
        )
        for i, (q, a) in enumerate(zip(QUESTIONS, answers, strict=True))
    ]


def pairs_for(model: Model, n_tokens: int = 21, count: int = 3, **place: object) -> tuple[PromptPair, ...]:
    """Pairs whose span is longer than Gemma's window of 16, so that windows matter."""
    return make_pairs(model, problems()[:count], Insertion.meaningless(" /", n_tokens, **place))


def logits_of(model: Model, inputs: Inputs) -> torch.Tensor:
    logits = model.run(inputs).logits
    assert logits is not None
    return logits


@lru_cache(maxsize=16)
def planted_here(seed: int = 1, **settings: Any) -> tuple[PlantedModel, Model]:
    """A small planted model (2 layers of 8 heads unless told otherwise) behind the bridge; `random` draws its geometry."""
    from mless_interp.models.transformer_lens import bridge_from

    if "recalls" in settings:
        settings["recalls"] = dict(settings["recalls"])
    if settings.pop("random", False):
        from random_circuits import random_planted  # of benchmarks/, which scripts do not see

        made = random_planted(seed, **settings)
    else:
        made = planted_model(**{"n_heads": 8, "n_key_value_heads": 2, "seed": seed, **settings})
    return made, bridge_from(made.hf_model, made.tokenizer, name=f"planted {seed}")


def planted_problems(made: PlantedModel, count: int, **options: Any) -> list[Problem]:
    """Short problems of a planted model, all of one length, so that they share a batch."""
    drawn = made.problems(12 * count, **{"n_clauses": (0, 0), **options})
    lengths = [(len((problem.system or "").split()), len(problem.question.split())) for problem in drawn]
    usual = Counter(lengths).most_common(1)[0][0]
    chosen = [problem for problem, length in zip(drawn, lengths, strict=True) if length == usual]
    assert len(chosen) >= count
    return chosen[:count]


def planted_pairs(made: PlantedModel, model: Model, count: int, n_tokens: int = 20, **options: Any) -> Any:
    """Pairs of short problems of a planted model, slashes inserted."""
    return make_pairs(model, planted_problems(made, count, **options), Insertion.meaningless(" /", n_tokens))


class Gated:
    """One problem's outcome as a function of all gates `[row, layer, head]`, by the differentiable pass."""

    def __init__(self, model: Model, bare: Any, outcome: str = "answer_logprob") -> None:
        self.model, self.outcome = model, OUTCOMES[outcome]
        self.pair = bare.answered(self.outcome.appended)
        length = len(self.pair.inserted)
        start = length - self.pair.n_after
        self.recording = model.record(self.pair.condition("inserted"), start=start)
        self.read = torch.tensor([length - back for back in self.outcome.reads(self.pair)]) - start
        self.span = self.pair.span_mask[None]

    def __call__(self, gates: torch.Tensor) -> torch.Tensor:
        logits = self.model.stepper.tail(self.recording, self.read, gates=gates, span=self.span)
        return self.outcome.value(logits, self.pair, None)

    def open(self, rows: int = 1) -> torch.Tensor:
        return torch.ones(rows, self.model.info.n_layers, self.model.info.n_heads, dtype=self.recording.z[0].dtype)
