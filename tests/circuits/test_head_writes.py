"""What heads write and where they look: planted truth, by hand, and the logits of whole passes."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch
from architectures_under_test import folder_of
from circuits_under_test import ByHand
from conftest import needs_hooked_transformer
from models_under_test import hooked, loaded, pairs_for, planted_here, planted_pairs
from small_results import written

import mless_interp as mi
from mless_interp.circuits.head_writes import INSERTED, KINDS, _looked_at, _places, _text
from mless_interp.models.sites import attention_sites, site

HEADS = ["L0H1", "L1H2", "L2H6"]


def taken(hand: ByHand, head: mi.Head) -> torch.Tensor:
    """What the stream gets from what a head reads of the span, row by row, from its pattern."""
    pattern, v, z_site = attention_sites(head.layer, "pattern", "v", "z")
    group = head.head // (hand.model.info.n_heads // hand.model.info.n_key_value_heads)
    lo, hi = hand.pair.span
    z = hand.tail(z_site).clone()
    z[:, :, head.head] -= hand.seen(pattern)[:, head.head, hi:, lo:hi] @ hand.seen(v)[:, lo:hi, group]
    out = site(head.layer, "hook_attn_out")
    return hand.tail(out, **{z_site: z}) - hand.tail(out)


@pytest.mark.parametrize(
    ("name", "backend"),
    [("Llama", "bridge"), *(pytest.param(name, "nnsight", marks=pytest.mark.slow) for name in ("GPT-2", "Gemma 2"))],
)
def test_logits_are_those_of_whole_passes(name: str, backend: str) -> None:
    """The change of each logit where the last stream loses the mean of what the head takes, or writes more."""
    model = loaded(folder_of(name), backend)
    pairs, heads = pairs_for(model, count=2), tuple(map(mi.Head.parse, HEADS))
    texts = {model.tokenizer.decode([token]).strip(): token for token in range(len(model.tokenizer))}
    found, largest = mi.what_it_writes(model, pairs, heads, top=3, progress=False), np.zeros(2)
    for row, pair in enumerate(pairs):
        hand = ByHand(model, pair)
        last = site(model.info.n_layers - 1, "hook_resid_post")
        x, reads = hand.seen(last), [hand.read[0]]
        before = model.run(hand.inputs, logits_at=reads).logits
        for (at, head), which in product(enumerate(heads), (0, 1)):
            change, new = hand.head_writes(head) if which else taken(hand, head), x.clone()
            new[:, reads] += change.mean(1)
            after = model.run(hand.inputs, edits={last: lambda _, new=new: new}, logits_at=reads).logits
            assert before is not None and after is not None
            told = (before - after)[0, 0, : len(model.tokenizer)].double()
            told = (told - told.mean()).numpy()
            tokens = [texts[token.strip()] for token in found.tokens[at][which]]
            np.testing.assert_allclose(found.values[row, at, which], told[tokens], atol=2e-4)
            largest[which] = max(largest[which], np.abs(told).max())
    assert largest.min() > 1e-3 and found.top == 3


def test_queries_by_hand() -> None:
    """A head's scores less their mean outside the span, by the token of the key."""
    model = loaded(folder_of("Llama"), "bridge")
    pairs, heads = pairs_for(model, count=3), (mi.Head(0, 1), mi.Head(1, 2))
    found = mi.what_it_writes(model, pairs, heads, top=40, progress=False)
    for (row, pair), (at, head) in product(enumerate(pairs), enumerate(heads)):
        hand, (lo, hi) = ByHand(model, pair), pair.span
        q, k = (hand.seen(name)[0] for name in attention_sites(head.layer, "rot_q", "rot_k"))
        group = head.head // (model.info.n_heads // model.info.n_key_value_heads)
        scores = q[hi:, head.head] @ k[:, group].T * model.attention_rule(head.layer).scale
        told: dict[str, list[float]] = {}
        ids = hand.pair.inserted.ids
        sums, counts = np.zeros(len(ids)), np.zeros(len(ids))
        for i, own in enumerate(scores):
            visible = range(hi + i + 1)
            mean = float(torch.stack([own[j] for j in visible if not lo <= j < hi]).mean())
            for j in visible:
                sums[j], counts[j] = sums[j] + float(own[j]) - mean, counts[j] + 1
        for j, token in enumerate(ids):
            told.setdefault(_text(model, token) + INSERTED * (lo <= j < hi), []).append(sums[j] / counts[j])
        shared = [place for place, token in enumerate(found.tokens[at][2]) if token in told]
        expected = [np.mean(told[found.tokens[at][2][place]]) for place in shared]
        np.testing.assert_allclose(found.values[row, at, 2, shared], expected, atol=1e-4)
        assert len(shared) > 4


def test_keys_are_ranked_over_problems_that_have_them() -> None:
    """Token 4 is inserted; 5 stands in two of four problems, which are too few."""
    ids = [[0, 1, 4, 5, 0], [0, 1, 4, 5, 1], [0, 1, 4, 0, 1], [1, 0, 4, 1, 0]]
    pairs = mi.pairs_from_ids(ids, [1] * 4, span=(2, 3))
    assert _places(pairs[0]) == {(0, 0): [0, 4], (1, 0): [1], (4, 1): [2], (5, 0): [3]}
    of_key = {0: (1.0, -1.0), 1: (-2.0, 2.0), 4: (3.0, 0.5), 5: (9.0, 9.0)}
    scores = [np.array([of_key[token] for token, _ in _places(pair)]).T for pair in pairs]
    keys, values = _looked_at(pairs, scores, 2)
    assert keys == [[(4, 1), (-1, 0), (-1, 0), (1, 0)], [(1, 0), (-1, 0), (-1, 0), (0, 0)]]
    np.testing.assert_array_equal(values[3], [[3, np.nan, np.nan, -2], [2, np.nan, np.nan, -1]])
    for n_have, enough in ((3, False), (4, True)):  # of 40 problems, a tenth has to have a token
        ids = [[0, 1, 4, 5 if at < n_have else 2] for at in range(40)]
        pairs = mi.pairs_from_ids(ids, range(40), span=(2, 3))
        scores = [np.array([[float(token) for token, _ in _places(pair)]]) for pair in pairs]
        assert (_looked_at(pairs, scores, 1)[0][0][0] == (5, 0)) == enough


def test_numbers_of_what_is_written_by_hand() -> None:
    found = written()
    some = replace(found, values=np.where(np.arange(6)[:, None, None, None] < 2, -found.values, found.values))
    assert some.table().query("label == 'L0H1'")["k"].iloc[0] == 4


@needs_hooked_transformer
def test_without_a_tokenizer_tokens_are_their_ids() -> None:
    pairs = mi.pairs_from_ids([[1, 2, 3], [4, 2, 5]], [1, 2], span=(0, 1))
    found = mi.what_it_writes(hooked(), pairs, ["L0H0"], top=1, progress=False)
    assert all(token.isdecimal() for token in found.tokens[0][1])


def test_few_tokens_rounding_and_wrong_input() -> None:
    made, model = planted_here(1)
    pairs = planted_pairs(made, model, 2)
    silent = next(head for head, kind in made.truth.items() if kind == "silent")
    found = mi.what_it_writes(model, pairs, [silent], top=2, progress=False)
    assert found.of(silent, "Sigma") == ([], [])
    assert not (found.table()["of"] == "Sigma").any()
    assert found.values.shape == (2, 1, len(KINDS), 4)
    with pytest.raises(ValueError, match="top"):
        mi.what_it_writes(model, pairs, [silent], top=0)
