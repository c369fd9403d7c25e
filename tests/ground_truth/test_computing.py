"""A planted model whose span really computes: its truth, found by the contrast `computed` and by no other head's fault."""

from functools import lru_cache
from typing import Any

import numpy as np
import pytest
from models_under_test import planted_problems

import mless_interp as mi
from mless_interp.core.heads import Head
from mless_interp.ground_truth.planted import planted_model
from mless_interp.models.transformer_lens import bridge_from
from mless_interp.prompts.insertions import Insertion
from mless_interp.prompts.pairs import make_pairs

THINKER, RECALLER, READER = Head(0, 6), Head(1, 5), Head(0, 3)
QUIET: dict[str, Any] = {"progress": False}


@lru_cache(maxsize=4)
def computing(sign: int = 1, n: int = 16) -> tuple[Any, Any, Any]:
    made = planted_model([READER], [], recalls={RECALLER: THINKER}, n_heads=8, n_key_value_heads=2, seed=1, sign=sign)
    return made, bridge_from(made.hf_model, made.tokenizer, name="thinks"), tuple(planted_problems(made, n))


def carrying(model: Any, pairs: Any, **options: Any) -> set[Head]:
    """Heads that carry more than 5 % of the effect in the median problem."""
    found = mi.patch_heads(model, pairs, outcome="logit_diff", **options, **QUIET)
    shares = np.median(found.per_head, 0) / np.median(found.total_effect)
    return {head for head, share in zip(found.heads, shares, strict=True) if abs(share) > 0.05}


@pytest.mark.slow
@pytest.mark.parametrize("sign", [1, -1])
def test_the_planted_heads_and_no_others_compute_behind_the_question(sign: int) -> None:
    made, model, asked = computing(sign)
    assert made.truth[THINKER] == "thinker" and made.truth[RECALLER] == "recaller"
    pairs = make_pairs(model, asked, Insertion.meaningless(" /", 20, after="question"))
    for direction in ("denoising", "noising"):
        options: dict[str, Any] = {"direction": direction}
        assert carrying(model, pairs, contrast="computed", **options) == {THINKER, RECALLER}
        assert carrying(model, pairs, contrast="computed", edit="knockout", **options) == {THINKER}
        assert carrying(model, pairs, contrast="content", **options) == {READER, RECALLER}
        assert carrying(model, pairs, contrast="presence", **options) == {READER}
    effects = [
        mi.patch_heads(model, each, contrast="computed", outcome="logit_diff", **QUIET)
        for each in (pairs, make_pairs(model, asked, Insertion.meaningless(" /", 20)))
    ]
    assert (sign * effects[0].total_effect > 0.1).all()
    assert not effects[1].total_effect.any() and not effects[1].effect.any(), "before the question there is nothing"


@pytest.mark.slow
@pytest.mark.parametrize("contrast", ["content", "computed"])
def test_locating_gives_every_head_the_verdict_that_it_declares(contrast: str) -> None:
    made, model, asked = computing()
    pairs = make_pairs(model, asked, Insertion.meaningless(" /", 20, after="question"))
    found = mi.locate_heads(
        model, pairs, contrast=contrast, outcome="logit_diff", n_control_draws=2, n_random_sets=5, **QUIET
    )
    wanted = {head: made.roles.expected(head, contrast).verdict for head in made.expected}
    assert dict(zip(found.heads, found.judged.kinds, strict=True)) == wanted
    assert found.joint is not None and set(found.joint.heads) == (
        {THINKER} if contrast == "computed" else {READER, RECALLER}
    )


@pytest.mark.slow
def test_shift_and_total_name_carriers_alone() -> None:
    _, model, asked = computing()
    pairs = make_pairs(model, asked, Insertion.meaningless(" /", 20, after="question"))
    options: dict[str, Any] = {"outcome": "logit_diff", "n_control_draws": 1, **QUIET}
    total = mi.locate_heads(model, pairs, contrast="total", **options)
    assert total.found == {READER: "carrier", RECALLER: "carrier"} and set(total.values) == {"z_removed", "z_added"}
    assert total.joint is None and "knockout_median" not in total.table() and total.shown().tables
    shift = mi.locate_heads(model, pairs, contrast="shift", **options)
    assert not shift.found
    with pytest.raises(ValueError, match="contrast to locate heads by 'held'; choose one of content, computed, inside"):
        mi.locate_heads(model, pairs, contrast="held", **options)
    with pytest.raises(ValueError, match="contrast 'total' joins runs of two lengths.*choose mode='exact'"):
        mi.locate_heads(model, pairs, contrast="total", mode="screen", **options)
