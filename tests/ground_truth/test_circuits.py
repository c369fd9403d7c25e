"""Planted circuits: exact sweeps and the rule of verdicts find of every head what its model declares, and nothing else."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from models_under_test import planted_pairs, planted_problems
from random_circuits import CIRCUITS, Expected, expected_of, planted_examples

from mless_interp.circuits.judge import Judged, judge, measured
from mless_interp.core.heads import Head
from mless_interp.ground_truth.planted import PlantedModel, planted_model
from mless_interp.ground_truth.stand_ins import Architecture, _random_model, stand_in_problems
from mless_interp.ground_truth.tokenizer import build_tokenizer, draw_vocabulary
from mless_interp.models.base import Model
from mless_interp.models.transformer_lens import bridge_from
from mless_interp.patching.prepared import prepare
from mless_interp.patching.sweep import PatchScores, Sweep, sweep_heads
from mless_interp.runtime.loop import RunOptions

# Heads with a role in the small models below; what it is differs.
A, B, C, D, E = Head(0, 1), Head(0, 4), Head(1, 2), Head(1, 5), Head(2, 3)
NUMBERS = [str(value) for value in range(2, 14)]
ANSWER = "\\boxed{"


MEASURES = {
    "knockout": Sweep.named(edit="knockout", direction="denoising"),
    "edge_noise": Sweep.named(edit="knockout", direction="noising"),
    "z_removed": Sweep.named(edit="z", direction="denoising"),
    "z_added": Sweep.named(edit="z", direction="noising"),
}


def behind_bridge(made: PlantedModel) -> Model:
    return bridge_from(made.hf_model, made.tokenizer, name=made.name)


def swept(model: Model, pairs: Any, outcome: str = "answer_logprob") -> dict[str, PatchScores]:
    """The four exact sweeps of all heads."""
    heads = model.info.chosen(None, what="patch")
    return sweep_heads(prepare(model, pairs, outcome), MEASURES, heads, options=RunOptions(progress=False))


def judged(
    made: PlantedModel, count: int, *, n_tokens: int = 20, outcome: str = "answer_logprob", **options: Any
) -> Judged:
    """The verdicts on all heads of a planted model, from the four exact sweeps over `count` problems."""
    model = behind_bridge(made)
    runs = swept(model, planted_pairs(made, model, count, n_tokens, **options), outcome)
    heads, values = runs["z_added"].heads, {name: run.per_head for name, run in runs.items()}
    first = np.array([head.layer == 0 for head in heads])
    values["mediated_removed"] = np.where(first, 0.0, values["z_removed"] - values["knockout"])
    values["mediated_added"] = np.where(first, 0.0, values["z_added"] - values["edge_noise"])
    return judge(values, runs["z_added"].total_effect, heads, rounding=1e-5)


def differing(expected: Mapping[Head, Expected], found: Judged) -> dict[Head, tuple[str, int]]:
    """The heads whose verdict or sense is not the expected one, with what was found."""
    got = zip(found.heads, found.kinds, found.sense, strict=True)
    assert set(expected) == set(found.heads)
    return {
        head: (kind, int(sense))
        for head, kind, sense in got
        if (expected[head].verdict, expected[head].sense) != (kind, sense)
    }


SMALL: dict[str, dict[str, Any]] = {
    "plain": {"readers": [A, B], "mediators": [C]},
    "switched": {"readers": [], "conditional": {C: A, E: A}},
    "any": {"readers": [A, B], "combine": "any"},
    "any of three": {"readers": [A, D, E], "combine": "any"},
    "all": {"readers": [A, D], "combine": "all"},
    "any mediators": {"readers": [A], "mediators": [C, D], "reads_from": {A: NUMBERS}, "combine": "any"},
    "all mediators": {"readers": [A], "mediators": [C, D], "reads_from": {A: NUMBERS}, "combine": "all"},
    "against": {"readers": [A, B], "mediators": [], "against": [D]},
    "rows": {"readers": [A, B, C], "mediators": [E], "reads_from": {A: [ANSWER], B: NUMBERS}},
    "relayed": {"readers": [], "relayed": {E: B}},
}


CASES: dict[str, dict[str, Any]] = SMALL | {
    "default": {},
    "null": {"null": True, "decoys": {"silent": [A]}, "noise": 1e-3},
    "thinks": {"readers": [A], "mediators": [], "recalls": {C: B}},
    "mixed": {"readers": [A], "mediators": [], "conditional": {C: B}, "against": [D], "decoys": {}},
    "rare": {"readers": [A, B, C], "mediators": [E], "reads_from": {A: ["13"], B: NUMBERS[:9]}},
}


def all_planted() -> dict[str, PlantedModel]:
    shape: dict[str, Any] = {"n_heads": 8, "n_key_value_heads": 2, "n_layers": 3}
    return {name: planted_model(sign=1 if len(name) % 2 else -1, **shape, **roles) for name, roles in CASES.items()}


@pytest.fixture(scope="module")
def planted() -> dict[str, PlantedModel]:
    """Made in the session that asks, so that a mutant's models are its own."""
    return all_planted()


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALL)
def test_every_head_gets_the_declared_verdict(name: str, planted: dict[str, PlantedModel]) -> None:
    made = planted[name]
    found = judged(made, 16)
    assert found.effect.established and found.effect.direction == made.settings["sign"]
    assert differing(expected_of(made), found) == {}


def number(weight: torch.Tensor) -> float:
    """A number that any change of a weight, or of their order, changes."""
    return float(weight.double().flatten() @ torch.arange(weight.numel(), dtype=torch.float64).cos())


def told(made: PlantedModel) -> dict[str, Any]:
    """All that a planted model declares, its problems, and a number for each of its weights."""
    return {
        "model": repr(made),
        "settings": {name: str(each) for name, each in made.settings.items()},
        "edges": [" ".join((*ends, part)) for ends, part in made.edges.items()],
        "expected": {
            str(head): [each.verdict, each.sense]
            for head, each in expected_of(made).items()
            if each != Expected("negligible", 0)
        },
        "problems": [repr(vars(each)) for each in made.problems(3, seed=2, n_clauses=(1, 2), swap=True)],
        "numbers": {str(head): share for head, share in made.shares.items()}
        | {name: number(weight) for name, weight in made.hf_model.state_dict().items()},
    }  # fmt: skip


def stand_in_told(architecture: Architecture) -> dict[str, Any]:
    tokenizer = build_tokenizer(draw_vocabulary(0).tokens, model_max_length=64)
    made = _random_model(architecture, tokenizer, 6, 3, 2, 1)
    numbers = {name: number(weight) for name, weight in made.state_dict().items()}
    return {"problems": [repr(vars(each)) for each in stand_in_problems(2, seed=1)], "numbers": numbers}


KEPT = Path(__file__).with_name("kept_models.json")
"""What the models were; `PYTHONPATH=tests:benchmarks python tests/ground_truth/test_circuits.py` writes it anew."""
STAND_INS: tuple[Architecture, ...] = ("qwen2", "llama", "gemma3")


@pytest.mark.parametrize("name", [*CASES, *STAND_INS])
def test_seeds_give_the_models_that_they_gave(name: Any, planted: dict[str, PlantedModel]) -> None:
    found, kept = told(planted[name]) if name in CASES else stand_in_told(name), json.loads(KEPT.read_text())[name]
    assert found.pop("numbers") == pytest.approx(kept.pop("numbers"), rel=1e-4, abs=1e-4)
    assert found == kept


def test_prevalence_names_what_is_in_most_problems_and_not_what_is_in_a_few() -> None:
    """A rare reader's effect is as large as the whole usual one, in the problems that name its number."""
    settings = {"n_heads": 8, "n_key_value_heads": 2, "n_layers": 3}
    made = planted_model([A, B, C], [E], reads_from={A: ["13"], B: NUMBERS[:9]}, **settings)
    found = judged(made, 32)
    expected = expected_of(made)
    assert differing(expected, found) == {}
    assert (expected[A].verdict, expected[B].verdict) == ("negligible", "reader") and made.roles.rare == (A,)
    named = np.array(["13" in problem.question.split() for problem in planted_problems(made, 32)])
    effect = found.effect.turned(measured(found.values, "z_removed"))[:, found.heads.index(A)] / np.abs(
        np.median(found.effect.total)
    )
    assert effect[named].min() > 0.25 and np.abs(effect[~named]).max() < 0.05


def test_where_nothing_is_planted_no_head_is_named() -> None:
    silent = planted_model(null=True, noise=0.0, n_heads=8)
    assert {each.verdict for each in expected_of(silent).values()} == {"undecided"}
    assert differing(expected_of(silent), judged(silent, 16)) == {}
    for made in (planted_model(null=True, n_heads=8), planted_model(**{"n_heads": 8, **SMALL["switched"]})):
        # 5 % of the seeds have a tendency by chance
        swapped = judged(made, 24, outcome="logit_diff", swap=True, seed=1)
        assert not swapped.effect.established and set(swapped.kinds) == {"undecided"}


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(len(CIRCUITS)))
def test_every_head_of_random_models_gets_the_declared_verdict(seed: int) -> None:
    (made,) = planted_examples(1, seed=seed)
    found = judged(made, 48, n_tokens=int(np.random.default_rng(seed).integers(8, 111)))
    assert differing(expected_of(made), found) == {}


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: planted_model([], conditional={A: B}), r"L0H1 needs L0H4.*earlier layer \(zero-based\)"),
        (lambda: planted_model([A, B], [C], combine="any"), "combine='any' needs two or more readers and no mediators"),
        (lambda: planted_model([A], reads_from={A: ["has"]}), r"L0H1 must be a reader, and look from rows of .*Got has"),
        (lambda: planted_model([A, B], [C], reads_from={A: NUMBERS[:4]}), "of 8 or more, of which nearly all .*Got 2"),
        (lambda: planted_model([Head(0, 28)]), r"L0H28: query head 28 is out of range \(zero-based\)"),
        (lambda: planted_model([A], decoys={"silent": [A]}), "L0H1 is given twice"),
        *((lambda also=also: planted_model([A, B], [], combine="any", **also), "combine='any' needs two or more readers")
          for also in ({"conditional": {E: D}}, {"against": [D]}, {"relayed": {E: D}}, {"recalls": {E: D}})),
        (lambda: planted_model([A], reads_from={A: []}), "must be a reader, and look from .*Got no token"),
        (lambda: planted_model([A], [], reads_from={A: NUMBERS}), "L0H1 must be .* with a mediator in a later layer"),
        (lambda: planted_model([A], reads_from={B: ["4"]}), "L0H4 must be a reader"),
        (lambda: planted_model([C], [D]), "mediator L1H5 has nothing to carry.*in most problems: L1H2"),
        *((lambda given=given: planted_model(null=True, **given), "name at least one reader, or ask for null=True")
          for given in ({"readers": [A]}, {"mediators": [C]}, {"against": [D]}, {"relayed": {E: D}})),
        (lambda: planted_model(reads=(".",)), r"reads: '\.' is part of the prompts or unknown"),
        (lambda: planted_model([]), "name at least one reader, or ask for null=True"),
        (lambda: planted_model(n_heads=10, n_key_value_heads=4), "multiple of n_key_value_heads, got 10 and 4"),
        (lambda: planted_model(reads=("unheard",)), "'unheard' is part of the prompts or unknown"),
        (lambda: planted_model([Head(0, i) for i in range(12)], []), "carry only 0.083 of the span's effect each"),
        (lambda: planted_model(n_heads=1, n_key_value_heads=1, n_layers=2), "no head is free for the default"),
    ],
)  # fmt: skip
def test_wrong_circuits_are_refused(call: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


if __name__ == "__main__":
    every = {name: told(made) for name, made in all_planted().items()}
    KEPT.write_text(json.dumps(every | {name: stand_in_told(name) for name in STAND_INS}, indent=1) + "\n")
