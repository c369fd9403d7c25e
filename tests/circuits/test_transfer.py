"""The effect without the tokens: by hand, planted truth, controls, answers, refusals."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from models_under_test import QUIET, planted_here, planted_pairs, planted_problems
from small_results import HEADS, transferred
from torch import Tensor

import mless_interp as mi
from mless_interp.circuits.transfer import _controls
from mless_interp.core.heads import Head
from mless_interp.models.sites import attention_sites, site
from mless_interp.patching.outcomes import OUTCOMES
from mless_interp.patching.prepared import prepare

A, B = Head(0, 2), Head(0, 5)
READERS: dict[str, Any] = {"readers": (A, B), "mediators": ()}


def means_by_hand(model: mi.Model, pairs: Any, heads: Iterable[Head]) -> dict[Head, tuple[float, Tensor]]:
    """Retained mass and what is read of the span, means over the rows after it with the answer's, then over problems."""
    lam: dict[Head, list[Tensor]] = {head: [] for head in heads}
    sigma: dict[Head, list[Tensor]] = {head: [] for head in lam}
    sites = {head: attention_sites(head.layer, "pattern", "v") for head in lam}
    for pair in pairs:
        answered = pair.answered()
        captured = dict.fromkeys(name for names in sites.values() for name in names)
        seen = model.run(answered.condition("inserted"), capture=captured, logits_at="none").captured
        for head, (pattern, v) in sites.items():
            group = head.head // (model.info.n_heads // model.info.n_key_value_heads)
            read = seen[pattern][0, head.head, answered.span[1] :, slice(*answered.span)]
            lam[head].append(1 - read.sum(-1).mean())
            sigma[head].append((read @ seen[v][0, slice(*answered.span), group]).mean(0))
    return {head: (float(torch.stack(lam[head]).mean()), torch.stack(sigma[head]).mean(0)) for head in lam}


def brought_by_hand(model: mi.Model, pair: Any, means: dict[Head, tuple[float, Tensor]]) -> float:
    """What the heads' means do to the plain prompt, by whole passes."""
    outcome = OUTCOMES["answer_logprob"]
    asked = outcome.asked(pair, model.info)
    inputs, start = asked.condition("base"), asked.span[0]
    read = [len(asked.base) - back for back in outcome.reads(asked)]

    def edit(layer: int) -> Any:
        def moved(z: Tensor) -> Tensor:
            new = z.clone()
            for head, (lam, sigma) in means.items():
                if head.layer == layer:
                    new[:, start:, head.head] = lam * z[:, start:, head.head] + sigma
            return new

        return moved

    edits = {site(head.layer, "attn.hook_z"): edit(head.layer) for head in means}
    there, here = (model.run(inputs, edits=put, logits_at=read).logits for put in (edits, {}))
    assert there is not None and here is not None
    return float(outcome.value(there, asked, None)[0] - outcome.value(here, asked, None)[0])


def test_what_comes_back_is_that_of_whole_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Heads of two layers, random heads of the same layers, and the same heads' means under another insertion."""
    made, model = planted_here(1, **READERS)
    pairs = planted_pairs(made, model, 16, n_tokens=12)
    search, fresh = pairs[::2], pairs[1::2]
    heads = [A, Head(1, 3)]
    commas = mi.Insertion.meaningless(" ,", 12)
    other = mi.make_pairs(model, [pair.problem for pair in search], commas)
    found = mi.transfer(model, pairs, heads, control=commas, n_random_sets=2, **QUIET)
    assert found.measured_ids == tuple(pair.id for pair in search) and found.problem_ids == tuple(p.id for p in fresh)
    assert found.cells == ("Transfer", "Random heads", "Other insertion") and len(found.sets) == 2
    assert [[head.layer for head in each] for each in found.sets] == [[0, 1]] * 2
    every = means_by_hand(model, search, {*heads, *found.sets[0], *found.sets[1]})
    beside = means_by_hand(model, other, heads)
    np.testing.assert_allclose(found.edit_lam, [every[head][0] for head in heads], atol=1e-6)
    np.testing.assert_allclose(found.edit_sigma, np.stack([every[head][1].numpy() for head in heads]), atol=1e-5)
    sets = {head: every[head] for head in heads}, *({head: every[head] for head in each} for each in found.sets), beside
    brought = np.c_[found.given, found.random, found.other]
    for at, pair in enumerate(fresh[:2]):
        expected = [brought_by_hand(model, pair, means) for means in sets]
        np.testing.assert_allclose(brought[at], expected, atol=2e-5)
    swept = mi.patch_heads(model, fresh, contrast="total", heads=heads, **QUIET)
    np.testing.assert_allclose(found.total_effect, swept.total_effect, atol=1e-4)
    monkeypatch.setattr("mless_interp.circuits.transfer.rows_per_pass", lambda *_, **__: 2)
    parts = mi.transfer(model, pairs, heads, control=commas, n_random_sets=2, **QUIET)
    for name in ("given", "random", "other", "base", "inserted"):
        np.testing.assert_allclose(getattr(parts, name), getattr(found, name), atol=2e-5)


def test_numbers_of_a_transfer_by_hand() -> None:
    """Two heads bring back 0.9 of the effect, random sets 0.2 and nothing, another insertion 0.4 and 0.2."""
    found = transferred()
    apart = replace(found, sets=((HEADS[2], Head(1, 1)), found.sets[1]))
    assert apart.table()["share"][1] == pytest.approx(0.2), "the set without any of the heads alone"


def test_the_control_is_never_the_insertion_under_study_and_few_problems_are_refused() -> None:
    made, model = planted_here(1, **READERS)
    problems, own = planted_problems(made, 16), mi.Insertion.meaningless(" /", 12)
    blocks = mi.Insertion.meaningless(" /", 2, before="question", after="question")
    variants = [replace(each, group=str(at // 2)) for at, each in enumerate(problems)]
    pairs = mi.make_pairs(model, problems, own)
    for given, options, words in (
        (pairs, {"control": own}, "is the insertion under study"),
        (pairs[:15], {}, "2 problems .or groups. or more and tested on 8 others, got 8 and 7"),
        (mi.make_pairs(model, variants, own), {}, "got 4 and 4"),
        (pairs, {"control": "words"}, "unknown control"),
        (mi.make_pairs(model, problems, blocks), {}, "block"),
    ):
        with pytest.raises(ValueError, match=words):
            mi.transfer(model, given, [A], **options, **QUIET)  # type: ignore[arg-type]
    prepared = prepare(model, mi.make_pairs(model, problems, mi.Insertion.random_sentence(12, seed=3, draw=1)))
    drawn = [each.bare[0].insertion for each in _controls(prepared, "random_sentence", 3, seed=3)]
    assert [each.draw for each in drawn] == [0, 2, 3] and {each.seed for each in drawn} == {3}
    assert _controls(prepared, None, 3, seed=3) == []
    (other,) = _controls(prepared, own, 3, seed=3)
    assert other.bare[0].insertion.unit == own.unit and other.ids == prepared.ids
