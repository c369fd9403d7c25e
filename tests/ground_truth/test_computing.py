"""A planted model whose span really computes: its truth, found by the contrast `computed` and by no other head's fault."""

from functools import lru_cache
from typing import Any

import pytest
from models_under_test import QUIET, planted_problems
from random_circuits import expected_of

import mless_interp as mi
from mless_interp.core.heads import Head
from mless_interp.ground_truth.planted import planted_model
from mless_interp.models.transformer_lens import bridge_from
from mless_interp.prompts.insertions import Insertion
from mless_interp.prompts.pairs import make_pairs

THINKER, RECALLER, READER = Head(0, 6), Head(1, 5), Head(0, 3)
COMPUTED = {THINKER: "reader", RECALLER: "mediator"}
"""What a span that has read the question must show beside a blind one: of all other heads, nothing."""


@lru_cache(maxsize=4)
def computing(sign: int = 1, n: int = 16) -> tuple[Any, Any, Any]:
    made = planted_model([READER], [], recalls={RECALLER: THINKER}, n_heads=8, n_key_value_heads=2, seed=1, sign=sign)
    return made, bridge_from(made.hf_model, made.tokenizer, name="thinks"), tuple(planted_problems(made, n))


@pytest.mark.slow
@pytest.mark.parametrize(("contrast", "sign"), [("content", 1), ("computed", 1), ("computed", -1)])
def test_locating_gives_every_head_the_verdict_that_it_declares(contrast: str, sign: int) -> None:
    made, model, asked = computing(sign)
    pairs = make_pairs(model, asked, Insertion.meaningless(" /", 20, after="question"))
    found = mi.locate_heads(
        model, pairs, contrast=contrast, outcome="logit_diff", n_control_draws=2, n_random_sets=5, **QUIET
    )
    wanted = {head: each.verdict for head, each in expected_of(made).items()}
    if contrast == "computed":
        wanted = dict.fromkeys(wanted, "negligible") | COMPUTED
    assert dict(zip(found.heads, found.judged.kinds, strict=True)) == wanted
    assert found.joint is not None and set(found.joint.heads) == (
        {THINKER} if contrast == "computed" else {READER, RECALLER}
    )


def test_shift_and_total_name_carriers_alone() -> None:
    _, model, asked = computing()
    pairs = make_pairs(model, asked, Insertion.meaningless(" /", 20, after="question"))
    options: dict[str, Any] = {"outcome": "logit_diff", "n_control_draws": 1, **QUIET}
    total = mi.locate_heads(model, pairs, contrast="total", **options)
    assert total.found == {READER: "carrier", RECALLER: "carrier"} and set(total.values) == {"z_removed", "z_added"}
    shift = mi.locate_heads(model, pairs, contrast="shift", **options)
    assert not shift.found
