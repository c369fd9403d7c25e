# ruff: noqa: F401
"""Expressions and what they give, in `kept_expressions.txt`: every public formula on small awkward numbers, messages too.

`python tests/expressions_under_test.py` writes the values anew (a new expression is a line of its own), and the diff is what
callers will see differently.
"""

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import fields, is_dataclass, replace
from functools import lru_cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import numpy as np
import pandas as pd
import torch
from architecture_features import model_of, pairs_of
from conftest import qwen2_tokenizer, word_tokenizer
from jaxtyping import config
from small_results import OTHERS, RESULTS, answered, asked_twice, certified, doses, patched, rated, scored, uneven

import mless_interp as mi
from mless_interp import statistics as st
from mless_interp.answers import graders, same_answer, treatments
from mless_interp.circuits import cells, circuit, head_sets, head_writes, judge, locate, paths, site_patches, transfer
from mless_interp.core import arguments, heads
from mless_interp.ground_truth import compare_hook, roles, weights
from mless_interp.ground_truth import tokenizer as planted_words
from mless_interp.mechanism import activations as shifts
from mless_interp.mechanism import decompose, mediation, span_reading
from mless_interp.metrics import activations, attention, collapse, outputs, patterns, received
from mless_interp.models import architectures, checks, info, load_options, memory, replay, sites, traced_ops
from mless_interp.models import transformer_lens as converted
from mless_interp.models import weights as held_weights
from mless_interp.models.info import AttentionRule
from mless_interp.patching import dose, effect, interventions, knockouts, outcomes, prepared, sweep, transplant
from mless_interp.prompts import conditions, insertions, own_ids, pairs, problems, prompt, texts, token_classes
from mless_interp.runtime import base_result, columns, loop, text_safety, workers
from mless_interp.scores import catalogue, score, streaming
from mless_interp.statistics import intervals, prevalence
from mless_interp.views import draw
from mless_interp.views.circuitsvis import View
from mless_interp.views.report import Block, Report

KEPT = Path(__file__).with_name("kept_expressions.txt")
nan, inf = float("nan"), float("inf")
AT = np.arange(23.0)
X = np.stack(
    [np.sin(AT), AT % 4, np.where(AT < 7, np.cos(AT), nan), 0 * AT + 0.1, np.where(AT == 3, AT, nan), nan * AT], 1
)
X[5, 0] = nan
"""Problems and cells: one gap, ties, few, all equal, one, none."""
P = torch.tensor(
    [[1, 0, 0, 0, 0], [0.9, 0.1, 0, 0, 0], [0.3, 0.6, 0.1, 0, 0], [0, 0, 1, 0, 0], [0.1, 0.2, 0.3, 0.4, 0]],
    dtype=torch.float64,
)
"""A pattern of five tokens."""
V = torch.tensor([[3.0, 0, 1], [0, 0, 0], [1, -2, 2], [-1, 1, 0.5], [2, 2, 2]], dtype=torch.float64)
R = torch.tensor([nan, 0.5, 0.2, 0.25, 0.4, 0.1, 0.3], dtype=torch.float64)
S = torch.tensor([0.7, 0.1, 0.6, 0.1, nan, 0.9, 0.2], dtype=torch.float64)
"""Two profiles."""
PAIR = mi.pairs_from_ids([[5, 9, 9, 6, 7]], [1], span=(1, 3))[0]
CACHE = {
    f"blocks.{layer}.attn.hook_pattern": torch.stack([P, P.softmax(-1).tril() + 0.2 * P])[None] for layer in (0, 3)
}
CACHE = {name: x / x.sum(-1, keepdim=True) for name, x in CACHE.items()}
BASE = {
    name: torch.stack([P[:3, :3], x[0, 1, 2:, 2:] / x[0, 1, 2:, 2:].sum(-1, keepdim=True)])[None]
    for name, x in CACHE.items()
}
"""A prompt of five tokens, two of them inserted, and patterns of two heads in two layers, with and without them."""
words, bytewise = lru_cache(word_tokenizer), lru_cache(qwen2_tokenizer)
ASKED = mi.Problem(
    "p", "How many apples ?", "3", system="reason .", distractor="5", solution="Anna has 3 apples .", extra={"a": "one"}
)
CLEAN = mi.pairs_from_ids([[5, 9, 9, 6, 7]], [[1, 2]], clean=[[5, 8, 9, 6, 8]])[0]
INFO = certified().info
POOL = [mi.Problem(f"q{at}", f"{'apples ' * at}are {at} + 2 ?", f"{at + 2}") for at in range(5)]
STATE = interventions.LayerState(
    *(torch.arange(12.0).sin().view(1, 3, 2, 2), torch.arange(10.0).cos().view(1, 5, 1, 2)),
    *(torch.arange(10.0).view(1, 5, 1, 2), torch.arange(12.0).view(1, 3, 2, 2)),
    *[torch.ones(5, 5).tril()[2:].bool()[None, None]] * 2,
    *(AttentionRule(0.5), torch.tensor([[False, True, False, True, False]])),
)
"""The last three of five tokens, two heads that share keys, two inserted tokens."""
T, H6 = 1 + AT / 50, tuple(mi.Head(layer, head) for layer in range(2) for head in range(3))
JUDGED = {
    name: T[:, None] * parts
    for name, parts in zip(
        judge.MEASURES,
        np.array(
            [[0.5, 0, 0.5, -0.3, 0, 0.02], [0.5, 0, 0, -0.3, 0.5, 0], [0, 0.4, 0, 0, 0, 0], [0, 0.4, 0.4, 0, 0, 0]]
        ),
        strict=True,
    )
}
"""A total effect, and six heads' parts of it."""


def pair(insertion: mi.Insertion | None = None, template: Any = "raw", **changes: Any) -> mi.PromptPair:
    """A pair of words; `model`: whose."""
    model, asked = changes.pop("model", None) or words(), replace(ASKED, **changes)
    return pairs.make_pairs(model, [asked], insertion or mi.Insertion.meaningless(" /", 4), template=template)[0]


def a(*values: object) -> np.ndarray:
    return np.array(values)


def t(*values: object) -> torch.Tensor:
    return torch.as_tensor(np.array(values))


def m(marks: str) -> torch.Tensor:
    """A mask: `m("011")`."""
    return torch.tensor([mark == "1" for mark in marks])


def cast(**asked: Any) -> list[Any]:
    """Who plays what in a planted model, and its share and gain."""
    left_out = "readers mediators decoys copier n_layers conditional relayed recalls reads_from".split()
    given: Any = {**dict.fromkeys(left_out), "n_heads": 8, "null": False, "against": (), "combine": "sum", **asked}
    made = roles.Roles.fill(**given)
    return [made.kinds, made.n_layers, made.edges(), made.threshold, *roles.shares_and_gains(made, 1)]


def told(value: Any) -> str:
    match value:
        case float():
            return f"{0.0 if abs(value) < 1e-14 else value:.6g}"
        case np.ndarray() | torch.Tensor():
            return f"{str(value.dtype).removeprefix('torch.')} {told(value.tolist())}"
        case pd.DataFrame():
            return value.to_csv(float_format="%.6g").replace(",", " ").replace("\n", " ; ")
        case list() | tuple():
            return f"[ {' '.join(map(told, value))} ]"
        case dict():
            return " ".join(f"{name}: {told(each)}" for name, each in value.items())
        case _ if hasattr(value, "vocab_size"):
            return "a tokenizer"
        case _ if callable(value):
            return str(value.__name__)
        case _ if is_dataclass(value):
            return told({each.name: getattr(value, each.name) for each in fields(value)})
    return repr(value)


def value_of(expression: str) -> str:
    with warnings.catch_warnings():
        for category in (RuntimeWarning, UserWarning):
            warnings.filterwarnings("error", category=category, module=r"mless_interp|__main__|expressions|<string>")
        try:
            return told(eval(expression, dict(globals())))
        except (ValueError, TypeError, FileNotFoundError, Warning) as error:
            return f"{type(error).__name__}: {error}".replace("\n", " ")


def expressions() -> dict[str, str]:
    """Each with the value that was kept."""
    lines = KEPT.read_text(encoding="utf-8").splitlines()
    return {
        line: after.strip() for line, after in zip(lines, [*lines[1:], ""], strict=True) if not line.startswith(" ")
    }


if __name__ == "__main__":
    config.jaxtyping_disable = True  # as users call the package
    KEPT.write_text("".join(f"{each}\n  {value_of(each)}\n" for each in expressions()), encoding="utf-8")
