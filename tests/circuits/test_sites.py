"""Sites and positions: against whole passes with hooks, their identities, questions of different length."""

from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from architectures_under_test import folder_of
from circuits_under_test import ByHand, by_site
from conftest import needs_hooked_transformer
from models_under_test import hooked, loaded, pairs_for

import mless_interp as mi
from mless_interp.models.sites import site

SITES = ("resid_pre", "attn_out", "mlp_out", "resid_post")
model = pytest.fixture(lambda: loaded(folder_of("Llama"), "bridge"))


def by_hand(hand: ByHand, kind: str, layer: int, rows: list[int]) -> float:
    """What the donor's activation at these of the changed rows takes from the outcome."""
    where = site(layer, f"hook_{kind}")
    new = hand.tail(where).clone()
    new[:, rows] = hand.tail(where, donor=True)[:, rows]
    return hand.value() - hand.value(**{where: new})


@pytest.mark.parametrize("name", ["Llama", "GPT-NeoX (Pythia)", "Gemma 2"])
def test_a_site_is_that_of_a_whole_pass(name: str) -> None:
    model = loaded(folder_of(name), "bridge")
    (pair,) = pairs_for(model, count=1)
    found = mi.patch_sites(model, [pair], sites=SITES, n_rows=2, progress=False)
    hand = ByHand(model, pair)
    first, last = 0, hand.pair.n_after - hand.pair.n_answer - 1
    for kind, layer, (label, row) in product(SITES, (0, 2), (("0", first), ("-1", last))):
        at = by_site(found)[0, SITES.index(kind), layer, found.positions.index(label)]
        assert at == pytest.approx(by_hand(hand, kind, layer, [row]), abs=1e-5), (kind, layer, label)
    assert np.nanmax(np.abs(by_site(found)[0, 1:3])) > 1e-3


@pytest.mark.parametrize("direction", ["denoising", "noising"])
@pytest.mark.parametrize("contrast", ["content", "total"])
def test_the_first_stream_carries_nothing_and_the_last_one_everything(
    direction: str, contrast: str, model: mi.Model
) -> None:
    options = {"sites": SITES, "n_rows": 2, "contrast": contrast, "direction": direction, "progress": False}
    found = mi.patch_sites(model, pairs_for(model), **options)
    whole = found.positions.index("all")
    assert not by_site(found)[:, 0, 0].any() and not np.signbit(by_site(found)[:, 0, 0]).any(), "no -0"
    np.testing.assert_allclose(by_site(found)[:, 3, -1, whole], found.total, atol=1e-6)
    between = by_site(found)[:, 0, 1:], by_site(found)[:, 3, :-1]  # before a layer, after the one before it
    np.testing.assert_allclose(*between, atol=1e-6)
    assert np.abs(found.total).min() > 1e-3


@pytest.mark.parametrize("direction", ["denoising", pytest.param("noising", marks=pytest.mark.slow)])
def test_a_span_that_computes_has_sites_of_its_own(direction: str, model: mi.Model) -> None:
    (pair,) = pairs_for(model, 5, 1, before="question", after="question", at=12)
    options = {"sites": SITES, "n_rows": 3, "contrast": "computed", "direction": direction, "progress": False}
    found = mi.patch_sites(model, [pair], **options)
    assert found.positions[7:] == ("span 0", "span 1", "span -3", "span -2", "span -1", "span all"), "of five tokens"
    (donor, receiving), sign = (("blind", "inserted"), 1) if direction == "denoising" else (("inserted", "blind"), -1)
    start = pair.spans[0][0]
    hand = ByHand(model, pair, donor=donor, receiving=receiving, start=start)
    places = {"span -1": [pair.spans[-1][1] - 1], "span all": pair.span_mask.nonzero()[:, 0].tolist()}
    places |= {"all": range(start, len(hand.pair.inserted)), "1": [pair.shared[pair.shared >= start][1].item()]}
    for kind, layer, label in product(SITES, (0, 2), places):
        expected = sign * by_hand(hand, kind, layer, [at - start for at in places[label]])
        at = by_site(found)[0, SITES.index(kind), layer, found.positions.index(label)]
        assert at == pytest.approx(expected, abs=1e-5), (kind, layer, label)
    np.testing.assert_allclose(by_site(found)[:, 3, -1, found.positions.index("all")], found.total, atol=1e-6)
    assert np.abs(found.total).min() > 1e-3


def test_questions_of_different_length_are_aligned_from_both_ends(model: mi.Model) -> None:
    pairs, options = pairs_for(model), {"sites": ["resid_post"], "progress": False}
    lengths = [pair.answered("answer").n_after - len(pair.answer_ids) for pair in pairs]
    n_rows = min(lengths) // 2 + 1
    found = mi.patch_sites(model, pairs, n_rows=n_rows, **options)
    for row, (pair, n) in enumerate(zip(pairs, lengths, strict=True)):
        alone = mi.patch_sites(model, [pair], n_rows=n_rows, **options)
        here = [found.positions.index(name) for name in alone.positions]
        np.testing.assert_allclose(by_site(found)[row][..., here], by_site(alone)[0], atol=1e-6)
        missing = np.isnan(by_site(found)[row, 0, 0])
        assert (~missing).sum() == min(n, 2 * n_rows) + 1, "every token once, and all"
        assert missing.sum() == len(found.positions) - len(alone.positions)
    counts = found.table().set_index(["of_layer", "position"])["n"]
    assert counts[0, str(n_rows - 1)] == sum(n >= 2 * n_rows for n in lengths) and counts[0, "all"] == len(pairs)
    assert 0 < sum(n < 2 * n_rows for n in lengths) < len(pairs)


@pytest.mark.parametrize(
    ("name", "backend"), [("Llama", "bridge"), ("Gemma 2", "bridge"), ("GPT-2", "nnsight"), ("GPT-OSS", "nnsight")]
)
def test_all_rows_are_the_sweep_and_the_whole_span_is_the_knockout(name: str, backend: str) -> None:
    model = loaded(folder_of(name), backend)
    place: dict[str, Any] = {"before": "question", "after": "question"} if name == "Llama" else {}
    pairs, heads = pairs_for(model, count=2, **place), ["L1H2", "L0H5"]
    found = mi.map_positions(model, pairs, heads, n_rows=2, n_blocks=4, progress=False)
    at_place = {name: found.values[:, at :: len(found.places)] for at, name in enumerate(found.places)}
    for name_of_place, edit in (("row all", "z"), ("span all", "knockout")):
        swept = mi.patch_heads(model, pairs, heads=heads, edit=edit, progress=False)
        expected = swept.per_head[:, [swept.heads.index(head) for head in found.heads]]
        np.testing.assert_allclose(at_place[name_of_place], expected, atol=1e-5)
    assert np.abs(at_place["span block 1"] - at_place["span block 2"]).max() > 1e-5


def test_blocks_are_parts_of_the_span(model: mi.Model) -> None:
    (pair,) = pairs_for(model, count=1, n_tokens=3)
    found = mi.map_positions(model, [pair], ["L0H1"], n_rows=1, n_blocks=5, progress=False)
    values = dict(zip(found.places, found.values[0], strict=True))
    assert [np.isnan(values[f"span block {at}"]) for at in range(5)] == [True, False, True, False, False]
    assert values["span first token"] == pytest.approx(values["span block 1"], abs=1e-6), "two of five are empty"


@needs_hooked_transformer
def test_where_nothing_is_inserted_a_token_is_named_by_its_position() -> None:
    """By hand at every position, also before a problem's first replaced token, where nothing can change."""
    model, draw = hooked(n_ctx=8), np.random.default_rng(0)
    ids = draw.integers(0, 9, (6, 8))
    clean, changed = ids.copy(), np.arange(6)
    clean[changed, changed] = (ids[changed, changed] + 3) % 9
    pairs = mi.pairs_from_ids(ids, draw.integers(0, 9, 6), clean=clean)
    options: dict[str, Any] = {"contrast": "replaced", "progress": False}
    found = mi.patch_sites(model, pairs, sites=["resid_pre"], n_rows=3, **options)
    assert found.positions == (*(f"position {at}" for at in (0, 1, 2, 5, 6, 7)), "all")
    name = site(1, "hook_resid_pre")
    for row, (tokens, others) in enumerate(zip(ids, clean, strict=True)):
        here, there = (torch.tensor([each.tolist()]) for each in (tokens, others))
        old, put = (model.run(each, capture={name: None}).captured[name] for each in (here, there))
        for label in found.positions[:-1]:
            at = int(label.split()[1])
            new = torch.where(torch.arange(8)[:, None] == at, put, old)
            runs = (model.run(here, edits=edits).logits for edits in ({}, {name: lambda _, new=new: new}))
            before, after = (float(logits[0, -1].log_softmax(-1)[pairs[row].answer_ids[0]]) for logits in runs)
            value = by_site(found)[row, 0, 1, found.positions.index(label)]
            assert value == pytest.approx(before - after, abs=1e-3), "logits of about 100"
            assert value == 0 or at >= changed[row]
    short = mi.pairs_from_ids([[1, 2, 3], [1, 2, 3, 4]], [1, 2], clean=[[1, 5, 3], [1, 2, 5, 4]])
    both = mi.patch_sites(model, short, n_rows=2, **options)
    assert both.positions == ("position 0", "position 1", "position -2", "position -1", "all")


def test_wrong_sites_are_refused(model: mi.Model) -> None:
    pairs = pairs_for(model, count=1)
    for analysis, options, words in (
        (mi.patch_sites, {"sites": ["resid_mid"]}, "resid_mid"),
        (mi.map_positions, {"heads": ["L0H0"], "n_blocks": 0}, "n_blocks must be 1 or more"),
    ):
        with pytest.raises(ValueError, match=words):
            analysis(model, pairs, **options)
