"""Edges and direct effects: by hand on every build of layers, on planted truth, beside a control, and what is refused."""

from typing import Any

import numpy as np
import pytest
from architectures_under_test import folder_of
from circuits_under_test import ByHand, by_site
from conftest import needs_hooked_transformer
from models_under_test import hooked, loaded, pairs_for, planted_pairs, planted_problems, problems, without_stepper

import mless_interp as mi
from mless_interp.circuits.paths import Edge, Mlp, trace_paths
from mless_interp.core.heads import Head
from mless_interp.ground_truth.planted import planted_model
from mless_interp.models.transformer_lens import bridge_from, has_hooked_transformer
from mless_interp.prompts.conditions import CONTRASTS
from mless_interp.prompts.insertions import Insertion
from mless_interp.prompts.pairs import PromptPair, make_pairs

EDGES = (
    "L0H1 -> L1H2 q|L0H1 -> L1H2 k|L0H1 -> L1H2 v|L0H1 -> L2H7|L0H6 -> L2H3|L1H5 -> L2H3|L0H1 -> MLP1|L1H2 -> MLP2|"
    "MLP0 -> L1H2|MLP0 -> L2H3 k|MLP0 -> MLP1|MLP1 -> logits|L2H3 -> logits"
).split("|")
PARALLEL = ("GPT-NeoX (Pythia)", "Falcon 7B", "Falcon 40B")
FAST = (("Llama", "bridge"), ("GPT-NeoX (Pythia)", "bridge"))
SLOW = [("GPT-2", "hooked_transformer"), ("Gemma 2", "bridge"), ("Falcon 40B", "nnsight"), ("GPT-OSS", "nnsight")]
model = pytest.fixture(lambda: loaded(folder_of("Llama"), "bridge"))


def as_by_hand(found: mi.PathEffects, row: int, hand: ByHand, *, sign: int = 1, parallel: bool = False) -> None:
    """A problem's edges are those of two whole passes each, and most of them are something."""
    expected = np.array([sign * hand.edge(edge, parallel=parallel) for edge in found.edges])
    np.testing.assert_allclose(found.values[row], expected, atol=1e-5)
    np.testing.assert_allclose(found.total[row], sign * hand.total, atol=1e-5)
    assert (np.abs(expected) > 1e-5).sum() > len(expected) // 2


@pytest.mark.parametrize(("name", "backend"), [*FAST, *(pytest.param(*each, marks=pytest.mark.slow) for each in SLOW)])
def test_edges_are_those_of_two_whole_passes_each(name: str, backend: str) -> None:
    if backend == "hooked_transformer" and not has_hooked_transformer():
        pytest.skip("this TransformerLens has no HookedTransformer")
    model, parallel = loaded(folder_of(name), backend), name in PARALLEL
    pairs = pairs_for(model, count=2 if name == "Llama" else 1)
    edges = [*EDGES, *([] if parallel else ["L1H2 -> MLP1"])]
    found = trace_paths(model, pairs, edges=edges, progress=False)
    assert list(map(str, found.edges)) == [str(Edge.parse(edge)) for edge in edges]
    for row, pair in enumerate(pairs):
        as_by_hand(found, row, ByHand(model, pair), parallel=parallel)


@pytest.mark.parametrize(
    "contrast", ["computed", *(pytest.param(c, marks=pytest.mark.slow) for c in ("content", "presence"))]
)
def test_edges_of_spans_anywhere_are_those_of_two_whole_passes_each(contrast: str, model: mi.Model) -> None:
    insertion = Insertion.meaningless(" /", 12, before="question", after="question", at=12)
    (pair,) = make_pairs(model, problems()[:1], insertion)
    edges = ["L0H1 -> L1H2 q", "L0H1 -> L1H2 k", "L0H1 -> L2H7", "L0H6 -> MLP1", "MLP0 -> L2H3 v", "MLP1 -> logits"]
    for sign, direction in ((1, "denoising"), (-1, "noising")):
        found = trace_paths(model, [pair], edges=edges, contrast=contrast, direction=direction, progress=False)
        donor, receiving = (condition.name for condition in CONTRASTS[contrast].conditions[::sign])
        start = pair.spans[0][0] if contrast == "computed" else pair.spans[0][1]
        kept = None if contrast == "computed" else pair.span_mask  # later blocks too
        as_by_hand(found, 0, ByHand(model, pair, donor=donor, receiving=receiving, start=start, kept=kept), sign=sign)


HEADS = ["L0H1", "L1H2", "L2H3", "L2H6"]
BOTH_WAYS = ("denoising", "noising")


@pytest.mark.parametrize("name", ["Llama", pytest.param(PARALLEL[0], marks=pytest.mark.slow)])
def test_both_ways_of_a_head_are_those_of_whole_passes(name: str) -> None:
    model = loaded(folder_of(name), "bridge")
    pairs = pairs_for(model, count=2)
    found = mi.direct_effects(model, pairs, HEADS[::-1], progress=False)
    swept = mi.patch_heads(model, pairs, heads=HEADS, progress=False)
    assert list(map(str, found.heads)) == HEADS[::-1]
    np.testing.assert_allclose(found.effect[:, ::-1], swept.per_head, atol=1e-5)
    np.testing.assert_allclose(found.total, swept.total_effect, atol=1e-6)
    for row, pair in enumerate(pairs):
        hand = ByHand(model, pair)
        direct = [hand.edge(Edge(head, "logits"), parallel=False) for head in HEADS]
        np.testing.assert_allclose(found.direct[row, ::-1], direct, atol=1e-5)
        assert np.abs(direct).max() > 1e-4
    last = np.abs(found.indirect[:, :2]).max()
    assert (last < 1e-5) == (name == PARALLEL[0])  # else the layer's own MLP still reads it


def test_edges_among_parts_are_all_that_can_be(model: mi.Model) -> None:
    pairs, heads = pairs_for(model, count=1), ["L0H1", "L1H2"]

    def among(**options: Any) -> list[str]:
        return list(map(str, trace_paths(model, pairs, heads, **options, progress=False).edges))

    parts = [f"L0H1 -> L1H2 {part}" for part in ("q", "k", "v", "qkv")]
    assert among() == among(mlps="none") == [*parts, "L0H1 -> logits", "L1H2 -> logits"]
    between = ("L0H1 -> L1H2 v", "L0H1 -> MLP0", "L0H1 -> MLP1", "L1H2 -> MLP1", "MLP0 -> L1H2 v", "MLP0 -> MLP1")
    into = {f"{sender} -> logits" for sender in (*heads, "MLP0", "MLP1")}
    assert set(among(mlps=[0, 1], inputs=["v"])) == {*between, *into}
    assert len(among(mlps="all", inputs=["v"])) == 15


CONDITIONAL = {"n_layers": 3, "readers": (Head(0, 2),), "mediators": (), "conditional": {Head(1, 4): Head(0, 5)}}
READERS = {"readers": (Head(0, 2), Head(0, 5)), "mediators": ()}
PLANTED: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "hurts": ({"seed": 2, "sign": -1}, BOTH_WAYS),
    "AND of attention": ({"seed": 3, **CONDITIONAL}, ("denoising",)),
    "against": ({"seed": 4, "readers": (Head(0, 2), Head(0, 3)), "against": (Head(0, 6),)}, BOTH_WAYS),
    "OR of readers": ({"seed": 5, **READERS, "combine": "any"}, ("noising",)),
}


@pytest.mark.parametrize("name", PLANTED)
def test_exactly_the_planted_edges_come_back(name: str) -> None:
    settings, directions = PLANTED[name]
    made = planted_model(**{"n_heads": 8, "n_key_value_heads": 2, **settings})
    model = bridge_from(made.hf_model, made.tokenizer, name="planted")
    pairs = planted_pairs(made, model, 16)
    for direction in BOTH_WAYS:
        found = trace_paths(model, pairs, list(made.truth), mlps="all", direction=direction, progress=False)
        came = {(str(edge.sender), str(edge.receiver), edge.part) for edge in found.found}
        truth = {(*nodes, part) for nodes, part in made.edges.items()}
        truth |= {(*nodes, "qkv") for nodes, part in made.edges.items() if part}  # all three together, of course
        assert (came == truth) == (direction in directions), came ^ truth
        if direction not in directions:
            assert came < truth
        summary = found.table().set_index("label")
        for head in made.roles.against:
            assert summary.loc[f"{head} -> MLP{made.roles.n_layers - 1}", "sense"] == -1


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"edges": ["L1H0 -> L0H1"]}, "a sender stands before its receiver"),
        ({"edges": ["L0H0 -> MLP9"]}, "out of range"),
        ({"edges": ["L0H0 -> L1H0 x"]}, "must be q, k, v, qkv, qk, qv, kv, got 'x'"),
        ({"edges": ["L0H0 to L1H0"]}, "cannot read"),
        ({"edges": ["L0H0 -> L1H0"], "heads": ["L0H0"]}, "not both"),
        ({}, "needs heads"),
        ({"heads": ["L0H0", "L1H1"], "mlps": "some"}, "unknown mlps"),
    ],
)
def test_wrong_edges_are_refused_before_anything_runs(options: dict[str, Any], words: str, model: mi.Model) -> None:
    with pytest.raises(ValueError, match=words):
        trace_paths(model, pairs_for(model, count=1), **options)


def test_an_edge_reads_itself() -> None:
    assert Edge.parse(" 0:13 → mlp1") == Edge(Head(0, 13), Mlp(1)) and Edge("L0H1", "L1H2").part == "qkv"
    for edge in (Edge("MLP0", "L1H2", "k"), Edge("L0H1", "logits")):
        assert Edge.parse(str(edge)) == edge


@pytest.mark.parametrize(
    ("values", "how", "words"),  # of q, k, v, qk, kv, qv, qkv; how each of the last four acts
    [
        (
            (0, 0.01, 0.01, 0.01, 0.9, 0.01, 0.9),
            " t t",
            "k and v act together, 90 % at once (interaction +0.8800 nats, in 16",
        ),
        (
            (0.01, 0, 0.01, 0.01, 0.01, 0.9, 0.9),
            "  tt",
            "q and v act together, 90 % at once (interaction +0.8800 nats, in 16",
        ),
        (
            (0, 0.8, 0.9, 0.8, 0.9, 0.9, 0.9),
            " e e",
            "k or v act in each other's place, 90 % at once (interaction -0.8000",
        ),
        ((0, 0.4, 0.5, 0.4, 0.9, 0.5, 0.9), "", ""),
        ((0, 0.8, 0.04, 0.7, 0.84, 0.04, 0.84), "", ""),
        ((0, 0.0, 0.01, 0.0, 0.02, 0.01, 0.9), "   t", "q, k and v act together"),
    ],
)
def test_inputs_that_act_together_or_in_each_others_place(values: tuple[float, ...], how: str, words: str) -> None:
    n, edges = 16, tuple(Edge("L0H0", "L1H0", part) for part in ("q", "k", "v", "qk", "kv", "qv", "qkv"))
    every = np.tile(values, (n, 1)) + np.linspace(-1e-4, 1e-4, n)[:, None]
    found = mi.PathEffects(
        tuple(map(str, range(n))), edges, every, np.ones(n), "nats", settings={"contrast": "replaced"}
    )
    told = found.together_words()
    assert bool(told) == bool(words) and (told or ["L0H0 -> L1H0: "])[0].startswith(f"L0H0 -> L1H0: {words}")
    q, k, v, qk, kv, qv, qkv = values
    between = [qk - q - k, kv - k - v, qv - q - v, qkv - q - k - v]
    table = found.together()
    assert table["how"].tolist() == [{" ": "", "t": "together", "e": "either"}[each] for each in f"{how:4}"]
    assert table["interaction"].tolist() == pytest.approx(between, abs=1e-3) and set(table["n"]) == {n}
    assert table["share"].tolist() == pytest.approx([qk, kv, qv, qkv], abs=1e-3)
    acts = np.abs(between) > 0.05
    assert table["k"].tolist() == list(n * acts) and table["p"][acts].tolist() == [8 * 2.0**-n] * acts.sum()


@needs_hooked_transformer
def test_a_model_without_mlps_has_no_cells_of_them() -> None:
    model, ids = hooked(), np.random.default_rng(0).integers(0, 8, (8, 5))
    clean = np.concatenate([ids[:, :2], ids[:, 2:3] + 1, ids[:, 3:]], 1)
    pairs, options = mi.pairs_from_ids(ids, [1] * 8, clean=clean), {"contrast": "replaced", "progress": False}
    edges = mi.trace_paths(model, pairs, ["L0H0", "L1H1"], mlps="all", **options)
    assert not any("MLP" in str(edge) for edge in edges.edges)
    assert mi.patch_sites(model, pairs, n_rows=1, **options).sites == ("resid_pre", "attn_out")
    with pytest.raises(ValueError, match="this model has no MLPs"):
        mi.trace_paths(model, pairs, edges=["L0H0 -> MLP0"], **options)


def test_models_whose_parts_cannot_be_read_are_refused(model: mi.Model) -> None:
    pairs = pairs_for(model, count=1)
    with pytest.raises(mi.ModelError, match="layer by layer"):
        trace_paths(without_stepper(model), pairs, ["L0H0", "L1H1"])
    quantised = model.checked(model.checks)
    quantised.quantised = "8bit"
    with pytest.raises(mi.ModelError, match=r"quantised \(8bit\)"):
        trace_paths(quantised, pairs, ["L0H0", "L1H1"])
    with pytest.raises(ValueError, match="the two are parallel"):
        trace_paths(loaded(folder_of("GPT-NeoX (Pythia)"), "bridge"), pairs, edges=["L1H0 -> MLP1"])


BESIDE_EDGES = [*EDGES[:3], EDGES[4], *EDGES[7:9], EDGES[-1]]


def with_controls(model: mi.Model, **place: Any) -> tuple[tuple[PromptPair, ...], tuple[PromptPair, ...]]:
    both = (Insertion.meaningless(text, 12, **place) for text in (" /", " ,"))
    one, other = (make_pairs(model, problems()[:2], each) for each in both)
    return one, other


def test_edges_beside_a_control_are_those_of_two_whole_passes_each(model: mi.Model) -> None:
    pairs, controls = with_controls(model, after="question")
    found = mi.trace_paths(model, pairs, edges=BESIDE_EDGES, control=controls, progress=False)
    back = mi.trace_paths(model, controls, edges=BESIDE_EDGES, control=pairs, direction="noising", progress=False)
    as_by_hand(found, 0, ByHand(model, pairs[0], control=controls[0]))
    np.testing.assert_allclose(back.values, -found.values, atol=1e-5)  # the same runs, the other way round
    split = mi.direct_effects(model, pairs, ["L2H3"], control=controls, progress=False)
    np.testing.assert_allclose(split.direct[:, 0], found.values[:, -1], atol=1e-5)
    assert found.settings["beside"] == controls[0].insertion.label != back.settings["beside"]


@pytest.mark.parametrize("direction", BOTH_WAYS)
def test_the_tokens_themselves_carry_everything_and_the_question_nothing(direction: str, model: mi.Model) -> None:
    pairs, controls = with_controls(model)
    options: dict[str, Any] = {"sites": ("resid_pre", "resid_post"), "n_rows": 2, "direction": direction}
    found = mi.patch_sites(model, pairs, control=controls, **options, progress=False)
    at = {name: by_site(found)[:, :, :, place] for place, name in enumerate(found.positions)}
    np.testing.assert_allclose(at["span all"][:, 0, 0], found.total, atol=1e-5)
    np.testing.assert_allclose(at["all"][:, 1, -1], found.total, atol=1e-5)
    assert not any(at[name][:, 0, 0].any() for name in ("0", "1", "-2", "-1"))
    assert np.abs(found.total).min() > 1e-3 and found.settings["contrast"] == "replaced"


def test_a_writer_in_the_rows_of_the_span_is_found() -> None:
    writer, relay, idle = mi.Head(0, 5), mi.Head(1, 2), mi.Head(0, 7)
    made = planted_model([], [], relayed={relay: writer}, n_heads=8, n_key_value_heads=2, seed=1)
    model = bridge_from(made.hf_model, made.tokenizer, name="writes in the span")
    some = planted_problems(made, 16)
    pairs, controls = (make_pairs(model, some, Insertion.meaningless(text, 20)) for text in (" /", " ,"))
    options: dict[str, Any] = {"outcome": "logit_diff", "progress": False}
    where = mi.map_positions(model, pairs, [writer, relay, idle], n_rows=1, control=controls, **options)
    table = where.table().set_index("label")
    shown = set(table.index[table["p_corrected"] < where.level])
    assert {f"{writer} row span all", f"{relay} row all"} <= shown and f"{relay} row span all" not in shown
    assert not any(name.startswith((str(idle), f"{writer} row -1", f"{writer} row 0")) for name in shown)
    edges = [f"{sender} -> {relay} {part}" for sender in (writer, idle) for part in "qkv"]
    beside = mi.trace_paths(model, pairs, edges=edges, control=controls, **options)
    assert list(map(str, beside.found)) == [f"{writer} -> {relay} v"]
    assert not mi.trace_paths(model, pairs, edges=edges, **options).found  # of the question's rows nothing is seen


@needs_hooked_transformer
def test_pairs_of_token_ids_stand_beside_others_of_the_same_tokens() -> None:
    """Their ids are made of their tokens, and say nothing."""
    own, other = ([[token, 4, 5, 6], [token, 5, 4, 7]] for token in (1, 2))
    pairs, controls = (mi.pairs_from_ids(ids, [1, 2], span=(0, 1)) for ids in (own, other))
    options: dict[str, Any] = {"heads": ["L0H0", "L1H1"], "progress": False}
    found = mi.direct_effects(hooked(), pairs, control=controls, **options)
    swept = mi.patch_heads(hooked(), mi.pairs_from_ids(own, [1, 2], clean=other), contrast="replaced", **options)
    np.testing.assert_allclose(found.effect, swept.per_head, atol=1e-4)
    assert np.abs(found.total).min() > 1e-3 and not np.signbit(found.values[found.values == 0]).any()
    wrong = mi.pairs_from_ids(other, [2, 1], span=(0, 1))
    with pytest.raises(ValueError, match="as many other tokens at the same places; it has spans"):
        mi.direct_effects(hooked(), pairs, control=wrong, **options)


def test_controls_that_are_none_are_refused(model: mi.Model) -> None:
    pairs, controls = with_controls(model)
    heads = ["L0H1", "L1H2"]
    for options, words in (
        ({"control": controls[::-1]}, "the same problems in the same order"),
        ({"control": pairs}, "the very same tokens"),
        ({"control": pairs_for(model, 13, 2)}, "as many other tokens at the same places"),
        ({"control": controls, "contrast": "total"}, "a contrast of its own"),
    ):
        with pytest.raises(ValueError, match=words):
            mi.trace_paths(model, pairs, heads, **options)
