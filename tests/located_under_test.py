"""Pairs of the default planted model, and its heads located."""

from typing import Any

from models_under_test import planted_problems

from mless_interp.circuits.locate import locate_heads
from mless_interp.circuits.located import LocatedHeads
from mless_interp.core.heads import Head
from mless_interp.ground_truth.planted import PlantedModel
from mless_interp.prompts.insertions import Insertion
from mless_interp.prompts.pairs import PromptPair, make_pairs

N = 12
"""Problems to name heads on, and as many to confirm on: with fewer than 11 none of 16 heads can be named."""
SLASHES = Insertion.meaningless(" /", 20)


def pairs_of(made: PlantedModel, model: Any, count: int, *, skip: int = 0) -> tuple[PromptPair, ...]:
    """Pairs of short problems, those after the first `skip`."""
    return make_pairs(model, planted_problems(made, skip + count)[skip:], SLASHES)


def located(made: PlantedModel, model: Any, count: int = N, **options: Any) -> LocatedHeads:
    options = {"progress": False, "controls": False, **options}
    return locate_heads(model, pairs_of(made, model, count), **options)


def planted_kinds(made: PlantedModel) -> dict[Head, str]:
    """What has to be found."""
    return dict.fromkeys(made.roles.readers, "reader") | dict.fromkeys(made.roles.mediators, "mediator")
