"""The effect without the tokens: the identity per query, planted truth, controls, answers, refusals."""

from typing import Any

import numpy as np
import pytest
import torch
from architectures_under_test import folder_of
from models_under_test import loaded, pairs_for, planted_here, planted_pairs, planted_problems

import mless_interp as mi
from mless_interp.answers.complete import generate_completions
from mless_interp.answers.decoding import Request
from mless_interp.circuits.transfer import _controls
from mless_interp.core.heads import Head
from mless_interp.mechanism.runs import span_reads
from mless_interp.models.sites import site
from mless_interp.patching.head_transfer import HeadTransfer
from mless_interp.patching.prepared import prepare

A, B = Head(0, 2), Head(0, 5)
READERS: dict[str, Any] = {"readers": (A, B), "mediators": ()}
QUIET: dict[str, Any] = {"progress": False}
NOTHING = HeadTransfer((), np.zeros((0, 1)), np.zeros((0, 1, 4)))


@pytest.mark.parametrize("name", ["Llama", "GPT-2", "GPT-NeoX (Pythia)", "Gemma 2"])
def test_a_problems_own_rows_give_its_patched_output(name: str) -> None:
    """Layer 0 of the run that cannot see the span, moved row by row, is the run with it (methods, I1)."""
    model = loaded(folder_of(name), "bridge")
    for pair in pairs_for(model, 9):
        answered = pair.answered()
        heads, start = (Head(0, 1), Head(0, 6)), answered.span[1]
        own = span_reads(model, answered, [0], rows=True)
        edit = HeadTransfer(heads, own["lam"][0, [1, 6]], own["sigma"][0, [1, 6]])
        z = {
            run: model.run(answered.condition(run), capture={site(0, "attn.hook_z"): None}, logits_at="none").captured[
                site(0, "attn.hook_z")
            ][0]
            for run in ("masked", "inserted")
        }
        moved = edit.moved(z["masked"][start:], 0)
        torch.testing.assert_close(moved[:, [1, 6]], z["inserted"][start:, [1, 6]], atol=2e-6, rtol=1e-5)
        assert torch.equal(moved[:, [0, 2, 7]], z["masked"][start:, [0, 2, 7]])
        assert (z["masked"] - z["inserted"])[start:, [1, 6]].abs().max() > 1e-3
        means = span_reads(model, answered, [0])
        np.testing.assert_allclose(means["lam"], own["lam"].mean(-1), atol=1e-6)
        np.testing.assert_allclose(means["sigma"], own["sigma"].mean(-2), atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 6))
def test_planted_readers_bring_the_whole_effect_back(seed: int) -> None:
    made, model = planted_here(seed, **READERS)
    found = mi.transfer(model, planted_pairs(made, model, 16, n_tokens=12), [A, B], n_control_draws=2, **QUIET)
    share = np.median(found.given) / np.median(found.total_effect)
    assert 0.85 < share < 1.15
    table = found.table().set_index("label")
    assert table.loc["Transfer", "p_corrected"] < found.level
    without = [at for at, heads in enumerate(found.sets) if not {A, B} & set(heads)]
    assert np.abs(np.median(found.random[:, without], axis=0)).max() < 0.05 * abs(np.median(found.total_effect))
    assert 0 < len(without) < len(found.sets)
    assert abs(table.loc["Random heads", "share"]) < 0.05
    assert abs(table.loc["Other insertion", "share"]) < 0.1  # what the readers read is the slash
    assert (table["p_exceeded"].dropna() < 0.05).all()
    assert found.p_random == pytest.approx(1 / (1 + len(found.sets)))


def test_a_reader_alone_brings_its_part_and_idle_heads_nothing() -> None:
    made, model = planted_here(1, **READERS)
    pairs = planted_pairs(made, model, 16, n_tokens=12)
    options: dict[str, Any] = {"control": None, "n_random_sets": 0, **QUIET}
    one, idle = (mi.transfer(model, pairs, [head], **options) for head in (A, Head(1, 3)))
    assert one.cells == ("Transfer",)
    assert 0.2 < np.median(one.given) / np.median(one.total_effect) < 0.8
    assert abs(np.median(idle.given)) < 0.02 * abs(np.median(idle.total_effect))
    content = mi.transfer(model, pairs, [A], contrast="content", **options)
    assert content.settings["contrast"] == "content"
    np.testing.assert_allclose(content.given.mean(), one.given.mean(), rtol=0.15)


def test_the_means_are_those_of_the_rows_that_are_edited() -> None:
    made, model = planted_here(1, **READERS)
    pairs = planted_pairs(made, model, 16, n_tokens=12)
    found = mi.transfer(model, pairs, [A], control=None, n_random_sets=0, **QUIET)
    measured = [pair for pair in pairs if pair.id in found.measured_ids]
    own = {
        name: np.mean([span_reads(model, pair, [A.layer])["lam"][0, A.head] for pair in rows])
        for name, rows in {"answered": [pair.answered() for pair in measured], "bare": measured}.items()
    }
    assert found.edit_lam == pytest.approx(own["answered"], abs=1e-7)
    of_prompts = mi.decompose_attention(model, measured, heads=[A], control=None, **QUIET).mean("lam")[A.layer, A.head]
    assert of_prompts == pytest.approx(own["bare"], abs=1e-6) and abs(of_prompts - own["answered"]) > 1e-3


def edit_for(model: Any, layer: int = 0, size: float = 3.0) -> HeadTransfer:
    generator = np.random.default_rng(0)
    sigma = size * generator.standard_normal((2, 1, model.info.d_head))
    return HeadTransfer((Head(layer, 1), Head(layer, 6)), np.full((2, 1), 0.3), sigma, "test", {"before": "question"})


@pytest.mark.parametrize(
    ("name", "backend"), [("Llama", "bridge"), ("GPT-2", "bridge"), ("Gemma 2", "bridge"), ("Llama", "nnsight")]
)
def test_every_engine_moves_the_same_heads_at_the_same_tokens(name: str, backend: str) -> None:
    model = loaded(folder_of(name), backend)
    prompts = [pair.base.ids for pair in pairs_for(model)]
    starts = (4, 9, len(prompts[2]))  # the last: what is generated alone
    requests = [
        Request(ids, f"r{at}", start=start) for at, (ids, start) in enumerate(zip(prompts, starts, strict=True))
    ]
    for edit in (edit_for(model), edit_for(model, 2)):
        made = {
            engine: generate_completions(
                model, requests, max_new_tokens=4, movement=edit, engine=engine, keep_logits=True, batch_size=size
            )
            for engine, size in (("hugging_face", 3), ("forward", 1))
        }
        plain = generate_completions(model, requests, max_new_tokens=4, keep_logits=True, engine="forward")
        for request in requests:
            one, other = (found[request.key] for found in made.values())
            assert one.tokens == other.tokens
            torch.testing.assert_close(one.logits, other.logits, atol=2e-4, rtol=1e-3)
            untouched = plain[request.key].logits
            assert torch.allclose(untouched[0], other.logits[0], atol=1e-6) == (request.start == len(request.prompt))  # type: ignore[index]


def test_the_control_is_never_the_insertion_under_study() -> None:
    made, model = planted_here(1, **READERS)
    problems = planted_problems(made, 16)
    own = mi.Insertion.meaningless(" /", 12)
    with pytest.raises(ValueError, match="is the insertion under study"):
        mi.transfer(model, mi.make_pairs(model, problems, own), [A], control=own, **QUIET)
    prepared = prepare(model, mi.make_pairs(model, problems, mi.Insertion.random_sentence(12, seed=3, draw=1)))
    draws = [each.bare[0].insertion.draw for each in _controls(prepared, "random_sentence", 3, seed=3)]
    assert draws == [0, 2, 3]
