"""Every analysis that runs long, asked of one small planted model: what holds of all of them is tested on this table."""

import json
import os
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import cache, cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from zlib import crc32

import numpy as np
from located_under_test import SLASHES, N, pairs_of
from models_under_test import planted_here, planted_problems, without_stepper
from small_results import tables_of

import mless_interp as mi
from mless_interp.models.base import Model
from mless_interp.prompts.pairs import PromptPair, make_pairs
from mless_interp.runtime.base_result import Result


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
    def exchanged(self) -> tuple[PromptPair, ...]:
        beside = make_pairs(self.model, self.problems[:4], COMMAS)
        return tuple(replace(pair, clean=other.inserted) for pair, other in zip(self.some, beside, strict=True))

    @cached_property
    def some(self) -> tuple[PromptPair, ...]:
        return self.pairs[:4]


def asking(analysis: Callable[..., Result], of: str = "some", which: str = "", **options: Any) -> Callable[..., Result]:
    """The analysis of these pairs, by name; `which` heads, where it takes them without a name."""
    given = (which.split(),) if which else ()
    return lambda on, **long: analysis(on.model, getattr(on, of), *given, **options, **long)


def at_smallest_effect(smallest_effect: float, made: Callable[..., Any]) -> Callable[..., Result]:
    """The same, held against another smallest effect of interest."""
    return lambda on, **long: replace(made(on, **long), smallest_effect=smallest_effect)


def behind(analysis: Callable[..., Result], which: str = "", **options: Any) -> Callable[..., Result]:
    """The analysis of a model that computes in the span, which stands behind the question."""
    return lambda _, **long: asking(analysis, "pairs", which, **options)(computing(), **long)


FIVE = "L0H3 L0H6 L1H1 L0H7 L1H7"
ANALYSES: dict[str, Callable[..., Result]] = {
    "scores": asking(mi.score_heads, metrics="all"),
    "segments": asking(mi.attention_between_segments),
    "profile": asking(mi.attention_profile, heads=FIVE.split()),
    "patches": asking(mi.patch_heads),
    "patches of knockouts, noising": asking(mi.patch_heads, edit="knockout", direction="noising", contrast="content"),
    "attribution": asking(mi.attribute_heads, steps=4, verify=3),
    "doses": lambda on, **long: mi.dose_response(on.model, on.problems[:3], on.insertion, doses=(2, 5, 9), **long),
    "joint": asking(mi.joint_knockout, "some", "L0H3 L0H6", n_random_sets=5),
    "reads": asking(mi.read_effects, "pairs", "L0H3 L0H6"),
    "transplant": asking(mi.transplant_span, "pairs", n_partners=2),
    "shift": asking(mi.activation_shift),
    "decomposition": asking(mi.decompose_attention, heads=FIVE.split()),
    "mediation": asking(mi.mediate, "pairs", heads=["L0H3", "L0H6"]),
    "span": asking(mi.read_span, "pairs", n_blocks=3),
    "curve": asking(mi.circuit_curve, "pairs", FIVE, n_random=3),
    "located": lambda on, **long: mi.locate_heads(
        on.model, on.pairs, confirm=on.fresh, n_control_draws=2, n_random_sets=5, **long
    ),
    "direct": asking(mi.direct_effects, "pairs", FIVE),
    "paths": asking(mi.trace_paths, "pairs", FIVE, mlps=(0,)),
    "sites": asking(mi.patch_sites, n_rows=2),
    "positions": asking(mi.map_positions, "some", "L0H3 L0H6", n_rows=2, n_blocks=2),
    "sets": lambda on, **long: mi.minimal_sets(
        on.model, on.pairs, on.heads, fresh=on.fresh, n_random_sets=5, max_heads=3, share=0.6, **DIFFERENCE, **long
    ),
    "transfer": lambda on, **long: mi.transfer(
        on.model, on.pairs, on.heads[:2], fresh=on.fresh, n_control_draws=2, n_random_sets=3, **long
    ),
    "writes": asking(mi.what_it_writes, "some", "L0H3 L0H6", top=3),
    "answers": lambda on, **long: mi.evaluate_accuracy(
        on.model, on.problems[:4], [None, on.insertion], max_new_tokens=4, n_samples=2, temperature=0.7, **long
    ),
}
"""name -> the analysis, given what it is asked about and the options of long runs (checkpoint, seed, progress)."""


COMMAS = mi.Insertion.meaningless(" ,", 20)
NOISING: dict[str, Any] = {"direction": "noising", "outcome": "logit_diff"}
COMPUTED: dict[str, Any] = {"contrast": "computed", "outcome": "answer_prob"}
PROBABLE, DIFFERENCE = {"outcome": "answer_prob"}, {"outcome": "logit_diff"}
SPREAD: dict[str, Any] = {"held_positions": "spread", "n_control_draws": 2}
STRICT: dict[str, Any] = {"confidence": 0.9, "smallest_effect": 0.1, "n_control_draws": 1, **DIFFERENCE}
MASKED: dict[str, Any] = {"contrast": "content", "control": COMMAS, "n_random_sets": 1, **DIFFERENCE}
ARM, SHORT = mi.ARM(0.5, 99.0, layers=(1,)), {"max_new_tokens": 3, "template": "paper"}
OF_CIRCUITS = ("direct", "edges", "sites", "positions", "writes")
OTHERWISE: dict[str, Callable[..., Result]] = {
    "answers_otherwise": lambda on, **long: mi.evaluate_accuracy(
        on.model,
        on.problems[:3],
        mi.Treatment(on.insertion, ARM, ["L0H3"], "cut"),
        stop_after_box=False,
        **SHORT,
        **long,
    ),
    "patches_of_spans": behind(mi.patch_heads, max_rows=3, **COMPUTED),
    "patches_everywhere": asking(mi.patch_heads, contrast="shift", edit="k", positions="all", outcome="kl"),
    "patches_last": asking(mi.patch_heads, contrast="total", positions="last", smallest_effect=0.2, **NOISING),
    "attribution_by_atp": behind(mi.attribute_heads, method="atp", verify=2, **COMPUTED),
    "attribution_of_spans": behind(mi.attribute_heads, steps=1, verify=0, **COMPUTED),
    "doses_deeper": lambda on, **long: mi.dose_response(
        on.model, on.problems[:2], on.insertion, doses=(3, 4), layer=1, **DIFFERENCE, **long
    ),
    "joint_of_spans": behind(mi.joint_knockout, "L0H6 L1H5 L0H7", n_random_sets=3, chosen_elsewhere=True, **COMPUTED),
    "joint_by_whole_passes": lambda _, **long: mi.joint_knockout(
        without_stepper(computing().model), computing().pairs, ["L0H6"], singles=np.zeros((6, 1)), **COMPUTED, **long
    ),
    "joint_of_exchanged": asking(mi.joint_knockout, "exchanged", "L0H3 L1H1", n_random_sets=2, contrast="replaced"),
    "reads_otherwise": asking(
        mi.read_effects, "some", "L0H3 L1H1", smallest_effect=0.2, confidence=0.8, max_rows=5, **PROBABLE
    ),
    "transplant_behind": behind(mi.transplant_span, n_partners=2, **PROBABLE),
    "shift_otherwise": asking(mi.activation_shift, layer=1, contrasts=("held", "total"), c=0.3, q=0.2, bins=7),
    "decomposition_beside_words": asking(mi.decompose_attention, layers=[1], contrasts=("held",), **SPREAD),
    "mediation_deeper": asking(mi.mediate, layer=1, c=0.3, q=0.3, **PROBABLE),
    "span_behind": behind(mi.read_span, n_blocks=4, smallest_margin=0.5),
    "curve_of_spans": behind(mi.circuit_curve, "L1H5 L0H6", n_random=2, chosen_elsewhere=True, **COMPUTED),
    "curve_of_exchanged": asking(mi.circuit_curve, "exchanged", "L1H1", n_random=1, contrast="replaced"),
    "located_by_total": asking(mi.locate_heads, "pairs", heads=["L0H3"], contrast="total", n_random_sets=2, **STRICT),
    "direct_noising": at_smallest_effect(
        0.2, asking(mi.direct_effects, "some", "L0H3 L0H6 L1H1", contrast="total", **NOISING)
    ),
    "paths_noising": at_smallest_effect(
        0.2, asking(mi.trace_paths, "some", "L0H6 L1H1", mlps="all", inputs=("v", "qk"), **NOISING)
    ),
    "circuit": asking(mi.trace_circuit, "some", "L0H3 L1H1", parts=OF_CIRCUITS, mlps="none", n_rows=1, **DIFFERENCE),
    "sites_of_spans": at_smallest_effect(
        0.2, behind(mi.patch_sites, sites=("resid_post",), n_rows=3, contrast="computed", **NOISING)
    ),
    "positions_of_spans": at_smallest_effect(0.2, behind(mi.map_positions, "L1H5 L0H6", n_rows=1, **COMPUTED)),
    "transfer_to_masked": lambda on, **long: mi.transfer(
        on.model, on.pairs, on.heads[1:3], fresh=on.fresh, **MASKED, **long
    ),
    "writes_of_all": behind(mi.what_it_writes, top=2),
}
"""The same asked in other ways: what they give is kept, no more."""
FRUGAL = {
    "attribution",
    "segments",
    "reads",
    "writes",
    "attribution_by_atp",
    "attribution_of_spans",
    "reads_otherwise",
    "writes_of_all",
    *("direct", "paths", "sites", "positions"),
    *("direct_noising", "paths_noising", "sites_of_spans", "positions_of_spans"),
}
"""Analyses that draw nothing at random: they take no seed."""


def long(name: str, **options: Any) -> dict[str, Any]:
    """Options of a long run that this analysis has."""
    asked = {"progress": False, "seed": 3, **options}
    return {key: each for key, each in asked.items() if key != "seed" or name not in FRUGAL}


@cache
def asked() -> Asked:
    """The default planted model: a reader and a mediator among heads that do nothing."""
    made, model = planted_here()
    heads = (*made.roles.readers, *made.roles.mediators, *(mi.Head(layer, 7) for layer in range(2)))
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
def computing() -> Asked:
    """Its span, behind the question, computes the largest number, which is read of it."""
    made, model = planted_here(readers=(mi.Head(0, 3),), recalls=((mi.Head(1, 5), mi.Head(0, 6)),))
    pairs = make_pairs(model, planted_problems(made, 6), mi.Insertion.meaningless(" /", 12, after="question"))
    return Asked(model, pairs, (), (), (), SLASHES)


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
    return (ANALYSES | OTHERWISE)[name](asked(), **long(name, checkpoint=checkpoint_of(name)))


os.register_at_fork(
    after_in_child=whole.cache_clear
)  # mutmut forks to run a fault: what right code gives is not its result


SORTED = ("printed", "summary", "in_order")  # of what others hold, in an order that rounding may decide


def held(result: Result, name: str = "") -> dict[str, Result]:
    """A result and those that it holds."""
    made = {name: result}
    for field in fields(result):
        if isinstance(part := getattr(result, field.name), Result):
            made |= held(part, f"{name}{field.name}: ")
    return made


def frames(result: Result) -> dict[str, Any]:
    """The tables of a result and of those that it holds."""
    of = {(name, method): part for name, part in held(result).items() for method in tables_of(type(part))}
    return {f"{name}{method}": getattr(part, method)() for (name, method), part in of.items() if method not in SORTED}


def kept_numbers(result: Result) -> dict[str, dict[str, Any]]:
    """A number for each column of a result's tables, which any change of a cell or of their order changes; its settings."""
    told = {(name, key): each for name, part in held(result).items() for key, each in part.settings.items()}
    settings = {"".join(key): str(each) for key, each in told.items() if key[1] not in ("computed_on", "toolkit")}
    made: dict[str, dict[str, Any]] = {"settings": settings}
    for name, frame in frames(result).items():
        weights = 1 + np.cos(np.arange(len(frame)))
        made[name] = {}
        for column, values in frame.items():
            if values.dtype.kind not in "fiub":
                made[name][column] = crc32("|".join(map(str, values)).encode())
                continue
            numbers = values.to_numpy(float, na_value=np.nan)
            made[name][column] = float((np.nan_to_num(numbers, posinf=1e3) * weights).sum())
            made[name][f"{column}, undefined"] = float(np.isnan(numbers).sum())
    return made


def kept_files(name: str) -> dict[str, int]:
    """A number for the settings of each file of finished problems, without numbers that may be measured, and the machine's."""
    folder, made = checkpoint_of(name).parent, {}
    here = lambda told: {key: each for key, each in told.items() if key not in ("computed_on", "toolkit")}  # noqa: E731
    for file in sorted(each for each in folder.rglob("*") if each.is_file() and each.suffix != ".lock"):
        told = json.loads(file.read_text().splitlines()[0], parse_float=lambda number: "", object_hook=here)["settings"]
        made[str(file.relative_to(folder))] = crc32(json.dumps(told).encode())
    return made


def all_kept(name: str) -> dict[str, dict[str, Any]]:
    """What is kept of an analysis."""
    return kept_numbers(whole(name)) | {"files": kept_files(name)}


KEPT = Path(__file__).with_name("kept_numbers.json")
"""What the analyses gave when this file was written. `python tests/analyses_under_test.py` writes it anew; run once more with
ATEN_CPU_CAPABILITY=default in the surroundings, it empties what another processor's rounding changes."""


def as_kept(number: Any, kept: Any) -> bool:
    close = isinstance(number, float) and isinstance(kept, float) and abs(number - kept) <= 1e-5 + 1e-4 * abs(kept)
    return bool(number == kept or close)


if __name__ == "__main__":
    found = {name: all_kept(name) for name in ANALYSES | OTHERWISE}
    known = json.loads(KEPT.read_text()) if "ATEN_CPU_CAPABILITY" in os.environ else found
    for name, table in ((name, table) for name, tables in found.items() for table in tables):
        kept = known[name][table]
        found[name][table] = {
            key: kept[key] if as_kept(each, kept[key]) else None for key, each in found[name][table].items()
        }
    KEPT.write_text(json.dumps(found, indent=0) + "\n")
