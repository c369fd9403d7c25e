"""Every analysis that runs long, asked of one small planted model: what holds of all of them is tested on this table."""

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from located_under_test import SLASHES, N, pairs_of
from models_under_test import planted_here, planted_problems

import mless_interp as mi
from mless_interp.models.base import Model
from mless_interp.prompts.pairs import PromptPair
from mless_interp.runtime.results import Result


@dataclass(frozen=True)
class Asked:
    """What analyses are asked about."""

    model: Model
    pairs: tuple[PromptPair, ...]
    fresh: tuple[PromptPair, ...]
    problems: tuple[mi.Problem, ...]
    heads: tuple[mi.Head, ...]
    insertion: mi.Insertion

    @cached_property
    def some(self) -> tuple[PromptPair, ...]:
        return self.pairs[:4]


ANALYSES: dict[str, Callable[..., Result]] = {
    "scores": lambda on, **long: mi.score_heads(on.model, on.some, metrics="all", **long),
    "segments": lambda on, **long: mi.attention_between_segments(on.model, on.some, **long),
    "profile": lambda on, **long: mi.attention_profile(on.model, on.some, heads=on.heads, **long),
    "patches": lambda on, **long: mi.patch_heads(on.model, on.some, **long),
    "patches of knockouts, noising": lambda on, **long: mi.patch_heads(
        on.model, on.some, edit="knockout", direction="noising", contrast="content", **long
    ),
    "attribution": lambda on, **long: mi.attribute_heads(on.model, on.some, steps=4, verify=3, **long),
    "doses": lambda on, **long: mi.dose_response(on.model, on.problems[:3], on.insertion, doses=(2, 5, 9), **long),
    "joint": lambda on, **long: mi.joint_knockout(on.model, on.some, on.heads[:2], n_random_sets=5, **long),
    "reads": lambda on, **long: mi.read_effects(on.model, on.pairs, on.heads[:2], **long),
    "transplant": lambda on, **long: mi.transplant_span(on.model, on.pairs, n_partners=2, **long),
    "shift": lambda on, **long: mi.activation_shift(on.model, on.some, **long),
    "decomposition": lambda on, **long: mi.decompose_attention(on.model, on.some, heads=on.heads, **long),
    "mediation": lambda on, **long: mi.mediate(on.model, on.pairs, heads=on.heads[:2], **long),
    "span": lambda on, **long: mi.read_span(on.model, on.pairs, n_blocks=3, **long),
    "curve": lambda on, **long: mi.circuit_curve(on.model, on.pairs, on.heads, n_random=3, **long),
    "located": lambda on, **long: mi.locate_heads(
        on.model, on.pairs, confirm=on.fresh, mode="exact", n_control_draws=2, n_random_sets=5, **long
    ),
    "located, screened": lambda on, **long: mi.locate_heads(
        on.model, on.pairs + on.fresh, mode="screen", controls=False, **long
    ),
    "direct": lambda on, **long: mi.direct_effects(on.model, on.pairs, on.heads, **long),
    "paths": lambda on, **long: mi.trace_paths(on.model, on.pairs, on.heads, mlps=(0,), **long),
    "sites": lambda on, **long: mi.patch_sites(on.model, on.some, n_rows=2, **long),
    "positions": lambda on, **long: mi.map_positions(on.model, on.some, on.heads[:2], n_rows=2, n_blocks=2, **long),
    "sets": lambda on, **long: mi.minimal_sets(
        on.model, on.pairs, on.heads, fresh=on.fresh, n_random_sets=5, max_heads=3, **long
    ),
    "transfer": lambda on, **long: mi.transfer(
        on.model, on.pairs, on.heads[:2], fresh=on.fresh, n_control_draws=2, n_random_sets=3, **long
    ),
    "writes": lambda on, **long: mi.what_it_writes(
        on.model, on.some, on.heads[:2], top=3, **{name: each for name, each in long.items() if name != "seed"}
    ),
    "answers": lambda on, **long: mi.evaluate_accuracy(
        on.model, on.problems[:4], [None, on.insertion], max_new_tokens=4, n_samples=2, temperature=0.7, **long
    ),
}
"""name -> the analysis, given what it is asked about and the options of long runs (checkpoint, seed, progress)."""
FRUGAL = {"attribution", "segments", "reads", "writes"}
"""Analyses that draw nothing at random: they take no seed."""


def long(name: str, **options: Any) -> dict[str, Any]:
    """Options of a long run that this analysis has."""
    asked = {"progress": False, "seed": 0, **options}
    return {key: each for key, each in asked.items() if key != "seed" or name not in FRUGAL}


@cache
def asked() -> Asked:
    """The default planted model: a reader and a mediator among heads that do nothing."""
    made, model = planted_here()
    heads = (*made.readers, *made.mediators, *(mi.Head(layer, 7) for layer in range(2)))
    problems = tuple(planted_problems(made, 2 * N))
    return Asked(
        model,
        pairs_of(made, model, N),
        pairs_of(made, model, N, skip=N),
        problems,
        tuple(dict.fromkeys(heads)),
        SLASHES,
    )


@cache
def _folder() -> TemporaryDirectory[str]:
    return TemporaryDirectory()


def checkpoint_of(name: str) -> Path:
    """Where the finished problems of an undisturbed run lie as long as the process lives."""
    return Path(_folder().name, str(os.getpid()), name, "kept")


@cache
def whole(name: str) -> Any:
    """What an undisturbed run gives, made once per process."""
    checkpoint_of(name).parent.mkdir(parents=True)
    return ANALYSES[name](asked(), **long(name, checkpoint=checkpoint_of(name)))


os.register_at_fork(
    after_in_child=whole.cache_clear
)  # mutmut forks to run a fault: what right code gives is not its result


def frames(result: Result) -> dict[str, Any]:
    """The numbers of a result: its table and its tidy rows."""
    return {"table": result.table(), "rows": result.to_frame()}


def kept_numbers(result: Result) -> dict[str, dict[str, float]]:
    """A number for each column of a result's tables, which any change of a cell or of their order changes."""
    made: dict[str, dict[str, float]] = {}
    for name, frame in frames(result).items():
        weights = 1 + np.cos(np.arange(len(frame)))
        columns = {column: values.to_numpy(float) for column, values in frame.items() if values.dtype.kind in "fiu"}
        made[name] = {
            column: float((np.nan_to_num(values, posinf=1e3) * weights).sum()) for column, values in columns.items()
        }
        made[name] |= {f"{column}, undefined": float(np.isnan(values).sum()) for column, values in columns.items()}
    return made


KEPT = Path(__file__).with_name("kept_numbers.json")
"""What the analyses gave when this file was written; `python tests/analyses_under_test.py` writes it anew."""

if __name__ == "__main__":
    found = {name: kept_numbers(whole(name)) for name in ANALYSES}
    KEPT.write_text(json.dumps(found, indent=1) + "\n")
