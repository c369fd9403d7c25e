"""What is readable in a span: planted layer and position, the lens by hand, the probe in the primal, errors before any run."""

from dataclasses import replace
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from conftest import BACKENDS
from models_under_test import QUIET, loaded, pairs_for, planted_problems, without_stepper

import mless_interp as mi
from mless_interp.core.heads import Head
from mless_interp.ground_truth.planted import planted_model
from mless_interp.models.transformer_lens import bridge_from
from mless_interp.prompts.insertions import Insertion
from mless_interp.prompts.pairs import make_pairs

THINKER, RECALLER = Head(1, 6), Head(2, 5)
ONE_SLASH = Insertion.text("he he he / he he", after="question")


@cache
def planted() -> tuple[Any, Any, tuple[Any, ...]]:
    """A model whose thinker writes the largest number where the slash stands; a copier of the last layer does anywhere."""
    shape: dict[str, Any] = {"n_layers": 3, "n_heads": 8, "n_key_value_heads": 2, "seed": 1}
    made = planted_model([Head(0, 3)], [], recalls={RECALLER: THINKER}, copier=Head(2, 1), **shape)
    system = planted_problems(made, 1)[0].system
    asked = tuple(replace(problem, system=system) for problem in made.problems(40))
    return made, bridge_from(made.hf_model, made.tokenizer, name="thinks"), asked


def cells(found: mi.SpanReadings, reader: str) -> set[tuple[int, int]]:
    """(layer, block) where it is readable."""
    at = ["lens", "probe"].index(reader)
    return {(found.layers[layer], int(block)) for layer, block in zip(*np.nonzero(found.found[at]), strict=True)}


def test_a_planted_intermediate_is_found_at_its_layer_and_position() -> None:
    _, model, asked = planted()
    found = mi.read_span(model, make_pairs(model, asked, ONE_SLASH), **QUIET)
    everywhere = {(2, block) for block in range(6)}
    assert cells(found, "probe") == everywhere | {(1, 3)}, "the thinker's row; then what the copier writes in every row"
    assert cells(found, "lens") == everywhere, "only then it is written as outputs are"
    last = found.summary().query("reader == 'lens' and stream == 'layer 2'")
    assert (last["own_rank"] == 1).all() and (last["pairs_k"] == last["pairs_n"]).all()


def test_the_edges_inside_the_span_are_those_of_the_heads_that_write_and_read_it() -> None:
    _, model, asked = planted()
    pairs = make_pairs(model, asked[:16], ONE_SLASH)
    options: dict[str, Any] = {"contrast": "computed", "outcome": "logit_diff", "mlps": "all", **QUIET}
    found = mi.trace_paths(model, pairs, [THINKER, RECALLER, Head(0, 3), Head(2, 1)], **options)
    ends = {(str(edge.sender), str(edge.receiver)) for edge in found.found}
    assert ends == {(str(THINKER), str(RECALLER)), (str(RECALLER), "MLP2"), ("MLP2", "logits")}


def test_before_the_question_there_is_nothing_to_test() -> None:
    _, model, asked = planted()
    found = mi.read_span(model, make_pairs(model, asked[:24], Insertion.meaningless(" /", 6)), **QUIET)
    assert not np.isfinite(found.tested.p).any() and np.abs(np.nan_to_num(found.margin)).max() < 1e-3
    assert found.headline().startswith("The answer was not tested: the span's rows are equal in all problems")
    assert any("before the question" in each for each in found.caveats())


def test_a_tag_drawn_without_looking_is_not_readable() -> None:
    _, model, asked = planted()
    draw = np.random.default_rng(3)
    tagged = [replace(problem, extra={"drawn": str(draw.choice(("he", "he", "he", "she")))}) for problem in asked]
    found = mi.read_span(model, make_pairs(model, tagged, ONE_SLASH), what="drawn", **QUIET)
    assert not found.found.any() and "drawn is not shown to be readable" in found.headline()


def test_an_intermediate_that_is_no_answer_is_read_by_its_tag_or_a_function() -> None:
    made, model, _ = planted()
    asked = made.problems(40, swap=True)
    largest = [str(max(int(problem.answer), int(problem.distractor))) for problem in asked]
    system = asked[0].system
    tagged = [replace(each, system=system, extra={"most": most}) for each, most in zip(asked, largest, strict=True)]
    pairs = make_pairs(model, tagged, ONE_SLASH)
    assert (1, 3) in cells(mi.read_span(model, pairs, what="most", **QUIET), "probe")
    ids = {most: model.tokenizer.convert_tokens_to_ids(most) for most in largest}
    asked_for = (
        "most",
        lambda pair: [ids[pair.problem.tags["most"]]],
        lambda pair: np.int64(ids[pair.problem.tags["most"]]),
    )
    by_tag, by_function, by_number = (mi.read_span(model, pairs[:6], what=what, **QUIET) for what in asked_for)
    np.testing.assert_array_equal(by_tag.margin, by_function.margin)
    np.testing.assert_array_equal(by_tag.margin, by_number.margin)
    assert by_function.headline().startswith("The token that the function gives is")


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("architecture", ["qwen2", "gemma3"])
def test_after_the_last_layer_the_lens_is_the_model(backend: str, model: Any) -> None:
    pairs = pairs_for(model, 13, after="question")
    found = mi.read_span(model, pairs, n_blocks=4, **QUIET)
    for at, pair in enumerate(pairs):
        logits = model.run(pair.condition("inserted")).logits[0, pair.span_mask].double()
        own = pair.answer_ids[0]
        np.testing.assert_allclose(found.logprob[at, -1], logits.log_softmax(-1)[:, own].cpu(), atol=2e-4)
        rank = (logits > logits[:, [own]]).sum(-1) + 1
        assert np.abs(found.rank[at, -1] - rank.cpu().numpy()).max() <= 1, "ties of rounding aside"
        blocks = [found.logprob[at, -1, start:stop].mean() for start, stop in pairwise([0, 3, 6, 9, 13])]
        np.testing.assert_allclose(found.own[at, 0, -1], blocks, atol=1e-9)
    assert found.own.shape == (3, 2, model.info.n_layers + 1, 4)


def test_what_cannot_be_read_is_told_before_anything_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    _, model, asked = planted()
    pairs = make_pairs(model, asked[:4], ONE_SLASH)
    monkeypatch.setattr(type(model), "run", lambda *_, **__: pytest.fail("a model ran"))
    for options, message in (
        ({"what": "carry"}, r"has no tag 'carry'; it has id, question, answer"),
        ({"what": "question"}, r"its question .* is \d+ tokens, and one is read"),
        *(({"what": given}, "must be a token id, 0 to") for given in (lambda _: 10**6, lambda _: "he", lambda _: [])),
        ({"what": lambda _: 5}, "no two of these 4 problems"),
        ({"n_blocks": 11}, "n_blocks must be 10"),
        ({"smallest_margin": 0.0}, "must be above 0"),
    ):
        with pytest.raises(ValueError, match=message):
            mi.read_span(model, pairs, **options, **QUIET)
    with pytest.raises(mi.ModelError, match="read_span continues runs layer by layer"):
        mi.read_span(without_stepper(model), pairs, **QUIET)


def test_tags_of_token_ids_are_ids(model: Any) -> None:
    ids = [[5, 6, at + 3, 9, 9, 7] for at in range(4)]
    pairs = mi.pairs_from_ids(ids, [3, 4, 5, 6], span=(3, 5), tags={"carry": [8, 9, 8, 9]})
    found = mi.read_span(model, pairs, what="carry", **QUIET)
    assert found.settings["tokens"] == [8, 9]
    logits = model.run(pairs[1].inserted.tokens).logits[0, 3:5].double().log_softmax(-1)
    np.testing.assert_allclose(found.logprob[1, -1], logits[:, 9].cpu(), atol=2e-4)


def test_spans_of_different_length_are_cut_into_the_same_shares(tiny_model_dir: Any) -> None:
    model, draw = loaded(tiny_model_dir("qwen2"), "bridge"), np.random.default_rng(0)
    lengths, answers = [3, 5, 8] * 8, [1, 2, 3, 4] * 6
    ids = [[5, 6, *draw.integers(10, 40, length + 1).tolist()] for length in lengths]
    pairs = mi.pairs_from_ids(ids, answers, span=[(2, 2 + length) for length in lengths])
    found = mi.read_span(model, pairs, n_blocks=3, **QUIET)
    assert found.places == ("0-1", "2-4", "5-7") and "Spans differ in length" in " ".join(found.details())
    ends = [[length * block // 3 for block in range(4)] for length in lengths]
    of = lambda b: [np.median(found.rank[at, 0, e[b] : e[b + 1]]) for at, e in enumerate(ends)]  # noqa: E731
    medians = [np.median(of(block)) for block in range(3)]
    table = found.table().query("reader == 'lens' and stream == 'embedding'")
    np.testing.assert_array_equal(table["own_rank"], medians)


def test_groups_count_once_and_never_teach_about_themselves() -> None:
    _, model, asked = planted()
    variants = [replace(problem, group=f"g{at // 2}") for at, problem in enumerate(asked[:24])]
    found = mi.read_span(model, make_pairs(model, variants, ONE_SLASH), **QUIET)
    assert found.n_groups == 12 and len(found.margins) <= 6 and found.tested.n.max() <= 6
