"""What heads write and where they look: planted truth, and the logits of whole passes."""

import copy
from typing import Any

import numpy as np
import pytest
import torch
from architectures_under_test import folder_of
from circuits_under_test import ByHand
from conftest import BACKENDS
from models_under_test import loaded, pairs_for, planted_here, planted_pairs

import mless_interp as mi
from mless_interp.circuits.head_writes import INSERTED, KINDS
from mless_interp.models.sites import site

HEADS = ["L0H1", "L1H2", "L2H6"]


def rewired(made: Any, head: mi.Head, token: str, *, against: str) -> mi.Model:
    """The planted model, where this reader also writes one number's unembedding, less another's."""
    from mless_interp.models.transformer_lens import bridge_from

    hf = copy.deepcopy(made.hf_model)
    d, rows = hf.config.head_dim, hf.lm_head.weight
    wanted = rows[made.vocabulary.tokens.index(token)] - rows[made.vocabulary.tokens.index(against)]
    weights = hf.model.layers[head.layer].self_attn.o_proj.weight
    old = weights[:, head.head * d : (head.head + 1) * d]
    writes = torch.linalg.svd(old, full_matrices=False)
    with torch.no_grad():  # along what it reads of the unit: its only strong direction
        old += 20 * torch.outer(wanted / wanted.norm(), writes.Vh[0]) * torch.sign(writes.Vh[0].sum())
    return bridge_from(hf, made.tokenizer, name="rewired")


def test_a_reader_writes_the_token_that_it_was_planted_to_write() -> None:
    made, _ = planted_here(1)
    head = made.readers[0]
    model = rewired(made, head, "7", against="12")
    found = mi.what_it_writes(model, planted_pairs(made, model, 6), [head, made.readers[1]], progress=False)
    for kind in ("Sigma", "change"):
        up, down = found.of(head, kind)
        ends = {up[0].strip(), down[0].strip()}
        assert ends == {"7", "12"}, (kind, ends)
        other = found.of(made.readers[1], kind)
        assert {other[0][0].strip(), other[1][0].strip()} != ends
    at = found.tokens[0][1].index(found.of(head)[0][0])
    assert (found.values[:, 0, 1, at] > 0.1).all()  # in every problem


def test_readers_look_at_the_unit_and_mediators_at_numbers() -> None:
    made, model = planted_here(1)
    pairs = planted_pairs(made, model, 12)
    found = mi.what_it_writes(model, pairs, [*made.readers, *made.mediators], progress=False)
    for head in made.readers:
        assert found.of(head, "query")[0][0] == f" /{INSERTED}"
    for head in made.mediators:
        prefers, avoids = found.of(head, "query")
        assert all(token.strip().isdecimal() for token in prefers[:3]), prefers
        assert f" /{INSERTED}" in avoids[:2]


@pytest.mark.slow
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", ["Llama", "GPT-2", "Gemma 2"])
def test_logits_are_those_of_whole_passes(name: str, backend: str) -> None:
    """At the last row alone: the change of each logit where the last stream loses what the head writes there."""
    model = loaded(folder_of(name), backend)
    pairs = pairs_for(model, count=2)
    found = mi.what_it_writes(model, pairs, HEADS, positions="last", top=3, progress=False)
    texts = {model.tokenizer.decode([token]).strip(): token for token in range(len(model.tokenizer))}
    largest = 0.0
    for row, pair in enumerate(pairs):
        hand = ByHand(model, pair)
        last = site(model.info.n_layers - 1, "hook_resid_post")
        x = hand.tail(last)
        before = model.run(hand.inputs, logits_at=[hand.read[0]]).logits
        for at, label in enumerate(HEADS):
            new = hand.seen(last)
            new[:, hand.start :] = x + hand.head_writes(mi.Head.parse(label))
            after = model.run(hand.inputs, edits={last: lambda _, new=new: new}, logits_at=[hand.read[0]]).logits
            assert before is not None and after is not None
            change = (before - after)[0, 0, : len(model.tokenizer)].double()
            change = (change - change.mean()).numpy()
            tokens = [texts[token.strip()] for token in found.tokens[at][1]]
            np.testing.assert_allclose(found.values[row, at, 1], change[tokens], atol=2e-4)
            largest = max(largest, np.abs(change).max())
    assert largest > 1e-3


def test_few_tokens_rounding_and_wrong_input() -> None:
    made, model = planted_here(1)
    pairs = planted_pairs(made, model, 2)
    silent = next(head for head, kind in made.truth.items() if kind == "silent")
    found = mi.what_it_writes(model, pairs, [silent], top=2, progress=False)
    assert found.of(silent, "Sigma") == ([], [])
    assert not (found.table()["of"] == "Sigma").any() and np.isnan(found.alike[:, 0, 0]).all()
    assert found.values.shape == (2, 1, len(KINDS), 4)
    with pytest.raises(ValueError, match="positions"):
        mi.what_it_writes(model, pairs, [silent], positions="first")
    with pytest.raises(ValueError, match="top"):
        mi.what_it_writes(model, pairs, [silent], top=0)
