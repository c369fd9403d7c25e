"""Spans transplanted between problems: planted, by hand on every backend, and the identity before the question."""

from collections import Counter
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from conftest import BACKENDS
from models_under_test import QUIET, loaded, planted_here, planted_problems, problems

from mless_interp.core.heads import Head
from mless_interp.patching.transplant import Transplant, partners_of, transplant_span
from mless_interp.prompts.insertions import Insertion
from mless_interp.prompts.pairs import make_pairs

COMPUTES: dict[str, Any] = {"readers": (Head(0, 3),), "recalls": ((Head(1, 5), Head(0, 6)),)}
ONLY_READ: dict[str, Any] = {"readers": (Head(0, 3),), "mediators": ()}


def planted(n: int, of: dict[str, Any] = COMPUTES, **place: Any) -> Any:
    made, model = planted_here(**of)
    asked = [replace(problem, system=planted_problems(made, n)[0].system) for problem in planted_problems(made, n)]
    return model, make_pairs(model, asked, Insertion.meaningless(" /", 12, **place))


def test_a_span_that_computes_carries_its_problem_s_answer() -> None:
    model, pairs = planted(12, after="question")
    found = transplant_span(model, pairs, n_partners=2, **QUIET)
    assert (found.carried > 0.2).all() and found.headline().startswith("The transplanted span raises")
    assert found.settings["n_prompts"] == 1 and not found.details()


def test_before_the_question_it_is_exactly_nothing_and_a_span_that_is_only_read_carries_nothing(tmp_path: Any) -> None:
    found = transplant_span(*planted(6), n_partners=2, **QUIET)
    assert not found.carried.any() and found.headline().startswith("Nothing changes")
    model, pairs = planted(6, ONLY_READ, after="question")
    prefixed = [replace(pair, answer_prefix_ids=pair.span_ids[:1]) for pair in pairs]  # not what the checkpoint kept
    kept = partial(transplant_span, model, n_partners=2, checkpoint=tmp_path / "kept.jsonl", **QUIET)
    assert np.abs(kept(pairs).carried).max() < 0.02 and (kept(pairs).values != kept(prefixed).values).all()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("architecture", ["qwen2", "gemma3"])
def test_it_is_the_donor_s_rotated_keys_and_values_at_the_receiver_s_positions(
    backend: str, architecture: str, tiny_model_dir: Any
) -> None:
    """At equal positions a donor's rotated keys can be put in as they are: the same numbers."""

    def transplanted(old: torch.Tensor, *, given: torch.Tensor, span: tuple[int, int]) -> torch.Tensor:
        return torch.cat([old[:, : span[0]], given[:, slice(*span)], old[:, span[1] :]], 1)

    model = loaded(tiny_model_dir(architecture), backend, "float64")
    asked = [
        replace(problems()[0], id=name, question=f"Anna has 3 red {name}", answer=str(at))
        for at, name in enumerate(("apples", "pears", "plums", "books"))
    ]
    pairs = make_pairs(model, asked, Insertion.meaningless(" /", 6, after="question"))
    found = transplant_span(model, pairs, n_partners=2, **QUIET)
    sites = [f"blocks.{layer}.attn.hook_{part}" for layer in range(3) for part in ("rot_k", "v")]
    for at, pair in enumerate(pairs):
        for column, partner in enumerate(found.partners[at], start=1):
            donor = next(each for each in pairs if each.id == partner)
            given = model.run(donor.condition("inserted"), capture=dict.fromkeys(sites)).captured
            edits = {name: partial(transplanted, given=given[name], span=pair.span) for name in sites}
            answered = pair.answered()
            logits = model.run(answered.condition("inserted"), edits=edits).logits
            n = len(answered.answer_ids)
            by_hand = logits[0, -n - 1 : -1].log_softmax(-1)[torch.arange(n), list(answered.answer_ids)].sum()
            assert found.values[at, 0, column] == pytest.approx(float(by_hand), abs=1e-5)
    assert np.abs(found.carried).max() > 1e-4


def test_partners_are_whole_pairs_of_other_groups_behind_the_same_tokens_and_every_pair_is_held() -> None:
    _, pairs = planted(20, {}, after="question")
    partners = partners_of(pairs, 4, seed=1)
    assert partners == partners_of(pairs, 4, seed=1) != partners_of(pairs, 4, seed=2)
    held = Counter(two for chosen in partners for two in (chosen[:2], chosen[2:]))
    assert len({place for two in held for place in two}) == 2 * len(held) >= 18 and min(held.values()) >= 2
    assert all(pairs[one].answer_ids != pairs[other].answer_ids for one, other in held)
    assert all(len({at, *chosen}) == 5 for at, chosen in enumerate(partners))
    group = [f"{at % 8}" for at in range(20)]
    grouped = [
        replace(pair, problem=replace(pair.problem, group=name)) for pair, name in zip(pairs, group, strict=True)
    ]
    assert all(group[at] not in [group[k] for k in chosen] for at, chosen in enumerate(partners_of(grouped, 2, seed=1)))
    other = make_pairs(
        planted_here()[1], [pair.problem for pair in pairs[10:]], Insertion.meaningless(" /", 9, after="question")
    )
    mixed = partners_of([*pairs[:10], *other], 2, seed=1)
    assert all(set(chosen) <= set(range(10) if at < 10 else range(10, 20)) for at, chosen in enumerate(mixed))


def test_exchanging_the_spans_of_a_pair_changes_the_sign_of_its_number_alone() -> None:
    """Why the sign test is exact where spans say nothing: whatever the outcomes are, each pair's sign is a fair coin."""
    _, pairs = planted(13, {}, after="question")
    partners = tuple(tuple(pairs[k].id for k in chosen) for chosen in partners_of(pairs, 4, seed=0))
    values = np.random.default_rng(0).exponential(size=(13, 5, 5))
    made = Transplant(tuple(pair.id for pair in pairs), partners, values, "nats")
    for at, (one, _) in enumerate(made.exchanged):
        again = values.copy()
        for row, ids in enumerate(partners):
            if one in ids:
                k = ids.index(one) + 1
                again[row][:, [k, k + 1]] = again[row][:, [k + 1, k]]
        signs = np.where(np.arange(len(made.carried)) == at, -1, 1)
        np.testing.assert_allclose(replace(made, values=again).carried, signs * made.carried, rtol=1e-12)


def test_wrong_requests_are_named_before_anything_runs() -> None:
    model, pairs = planted(6, after="question")
    with pytest.raises(
        ValueError, match="has 2 pairs of partners among 6 problems: a transplant needs 15 of other gro"
    ):
        transplant_span(model, pairs, n_partners=30, **QUIET)
    for odd in (1, 3):
        with pytest.raises(ValueError, match="n_partners must be"):
            transplant_span(model, pairs, n_partners=odd, **QUIET)
    with pytest.raises(ValueError, match="outcome 'logit_diff' has none; use .*answer_logprob"):
        transplant_span(model, pairs, outcome="logit_diff", **QUIET)
