"""Edges: against the same by hand on every build of layers, on planted truth, their identities and their refusals."""

from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from architectures_under_test import folder_of
from circuits_under_test import ByHand
from conftest import needs_hooked_transformer
from models_under_test import (
    hooked,
    loaded,
    pairs_for,
    planted_pairs,
    problems,
    without_stepper,
)

import mless_interp as mi
from mless_interp.circuits.paths import Edge, Mlp, trace_paths
from mless_interp.core.heads import Head
from mless_interp.ground_truth.planted import planted_model
from mless_interp.models.transformer_lens import bridge_from, has_hooked_transformer
from mless_interp.prompts.conditions import CONTRASTS
from mless_interp.prompts.insertions import Insertion
from mless_interp.prompts.pairs import make_pairs

EDGES = (
    *("L0H1 -> L1H2 q", "L0H1 -> L1H2 k", "L0H1 -> L1H2 v", "L0H1 -> L2H7", "L0H6 -> L2H3", "L1H5 -> L2H3"),
    *(
        "L0H1 -> MLP1",
        "L1H2 -> MLP2",
        "MLP0 -> L1H2",
        "MLP0 -> L2H3 k",
        "MLP0 -> MLP1",
        "MLP1 -> logits",
        "L2H3 -> logits",
    ),
)
PARALLEL = ("GPT-NeoX (Pythia)", "Falcon 7B", "Falcon 40B")
BOTH = ("bridge", "hooked_transformer")
BUILDS = [
    *(("Llama", backend) for backend in (*BOTH, "nnsight")),
    *((name, backend) for name in ("GPT-2", "GPT-NeoX (Pythia)", "Gemma 2") for backend in BOTH),
    *((name, "bridge") for name in ("OPT", "Qwen2", "Mixtral", "OLMo 2")),
    *((name, "nnsight") for name in ("Falcon 40B", "Falcon 7B", "GPT-OSS")),
]
PLACES: dict[str, dict[str, Any]] = {
    "after": {"after": "question"},
    "index": {"at": 14},
    "blocks": {"before": "question", "after": "question", "at": 12},
}


@pytest.mark.slow
@pytest.mark.parametrize(("name", "backend"), BUILDS)
def test_edges_are_those_of_two_whole_passes_each(name: str, backend: str) -> None:
    if backend == "hooked_transformer" and not has_hooked_transformer():
        pytest.skip("this TransformerLens has no HookedTransformer")
    model = loaded(folder_of(name), backend)
    pairs = pairs_for(model, count=2)
    parallel = name in PARALLEL
    edges = [*EDGES, *([] if parallel else ["L1H2 -> MLP1"])]
    found = trace_paths(model, pairs, edges=edges, progress=False)
    assert list(map(str, found.edges)) == [str(Edge.parse(edge)) for edge in edges]
    for row, pair in enumerate(pairs):
        hand = ByHand(model, pair)
        expected = np.array([hand.edge(edge, parallel=parallel) for edge in found.edges])
        np.testing.assert_allclose(found.values[row], expected, atol=1e-5)
        np.testing.assert_allclose(found.total[row], hand.total, atol=1e-5)
        assert (np.abs(expected) > 1e-5).sum() > len(edges) // 2  # it is no comparison of zeros


@pytest.mark.slow
@pytest.mark.parametrize("contrast", ["content", "computed", "presence"])
@pytest.mark.parametrize("place", PLACES)
def test_edges_of_spans_anywhere_are_those_of_two_whole_passes_each(place: str, contrast: str) -> None:
    model = loaded(folder_of("Llama"), "bridge")
    (pair,) = make_pairs(model, problems()[:1], Insertion.meaningless(" /", 12, **PLACES[place]))
    edges = ["L0H1 -> L1H2 q", "L0H1 -> L1H2 k", "L0H1 -> L2H7", "L0H6 -> MLP1", "MLP0 -> L2H3 v", "MLP1 -> logits"]
    for direction in ("denoising", "noising"):
        found = trace_paths(model, [pair], edges=edges, contrast=contrast, direction=direction, progress=False)
        clean, corrupted = (condition.name for condition in CONTRASTS[contrast].conditions)
        donor, receiving = (clean, corrupted) if direction == "denoising" else (corrupted, clean)
        start = pair.spans[0][0] if contrast == "computed" else pair.spans[0][1]
        kept = None if contrast == "computed" else pair.span_mask  # later blocks too
        hand = ByHand(model, pair, donor=donor, receiving=receiving, start=start, kept=kept)
        sign = 1 if direction == "denoising" else -1
        expected = [sign * hand.edge(edge, parallel=False) for edge in found.edges]
        np.testing.assert_allclose(found.values[0], expected, atol=1e-5)
        np.testing.assert_allclose(found.total[0], sign * hand.total, atol=1e-5)
        assert (np.abs(expected) > 1e-4).sum() > 3


def test_the_parts_of_one_pass_do_not_change_the_numbers() -> None:
    model = loaded(folder_of("Llama"), "bridge")
    pairs = pairs_for(model)
    one, all_at_once = (
        trace_paths(model, pairs, ["L0H1", "L1H2", "L2H3"], mlps=[1], max_rows=rows, progress=False) for rows in (1, 64)
    )
    np.testing.assert_allclose(one.values, all_at_once.values, atol=2e-6)


def test_a_run_goes_on_from_its_checkpoint_with_the_same_bits(tmp_path: Any) -> None:
    model = loaded(folder_of("Llama"), "bridge")
    pairs = pairs_for(model)
    path, heads = tmp_path / "run.jsonl", ["L0H1", "L1H2"]
    whole = trace_paths(model, pairs, heads, progress=False)
    for part in (0, 1):
        with suppress(mi.ShardDone):
            trace_paths(model.on(mi.Shard(part, 2)), pairs, heads, checkpoint=path, progress=False)
    merged = trace_paths(model, pairs, heads, checkpoint=path, progress=False)
    assert np.array_equal(merged.values, whole.values) and np.array_equal(merged.total, whole.total)


CHAIN = {"n_layers": 3, "readers": (Head(0, 2),), "mediators": (Head(1, 1), Head(1, 4))}
NUMBERS = tuple(map(str, range(2, 14)))
CONDITIONAL = {"n_layers": 3, "readers": (Head(0, 2),), "mediators": (), "conditional": {Head(1, 4): Head(0, 5)}}
READERS = {"readers": (Head(0, 2), Head(0, 5)), "mediators": ()}
BOTH_WAYS = ("denoising", "noising")
PLANTED: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "hurts": ({"seed": 2, "sign": -1}, BOTH_WAYS),
    "AND of attention": ({"seed": 3, **CONDITIONAL}, ("denoising",)),
    "against": ({"seed": 4, "readers": (Head(0, 2), Head(0, 3)), "against": (Head(0, 6),)}, BOTH_WAYS),
    "OR of readers": ({"seed": 5, **READERS, "combine": "any"}, ("noising",)),
    "AND of mediators": ({"seed": 8, **CHAIN, "combine": "all", "reads_from": {Head(0, 2): NUMBERS}}, ("denoising",)),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", PLANTED)
def test_exactly_the_planted_edges_come_back(name: str) -> None:
    settings, directions = PLANTED[name]
    made = planted_model(**{"n_heads": 8, "n_key_value_heads": 2, **settings})
    model = bridge_from(made.hf_model, made.tokenizer, name="planted")
    pairs = planted_pairs(made, model, 16)
    for direction in ("denoising", "noising"):
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
        ({"edges": ["MLP1 -> MLP1"]}, "a sender stands before its receiver"),
        ({"edges": ["L0H0 -> MLP9"]}, "out of range"),
        ({"edges": ["L0H0 -> L1H0 x"]}, "must be q, k, v, qkv"),
        ({"edges": ["L0H0 to L1H0"]}, "cannot read"),
        ({"edges": ["logits -> L1H0"]}, "send nothing"),
        ({"edges": ["L0H0 -> L1H0", "L0H0 -> L1H0"]}, "given twice"),
        ({"edges": ["L0H0 -> L1H0"], "heads": ["L0H0"]}, "not both"),
        ({}, "needs heads"),
        ({"heads": ["L0H0"]}, "a path needs two parts"),
        ({"heads": ["L0H0", "L0H1"], "logits": False}, "lie in one layer"),
        ({"heads": ["L0H0", "L1H1"], "inputs": ["o"]}, "unknown input"),
        ({"heads": ["L0H0", "L1H1"], "mlps": "some"}, "mlps must be"),
        ({"heads": ["L0H0", "L1H1"], "mlps": [0], "edit": "knockout"}, "needs edit='z'"),
    ],
)
def test_wrong_edges_are_refused_before_anything_runs(options: dict[str, Any], words: str) -> None:
    model = loaded(folder_of("Llama"), "bridge")
    with pytest.raises(ValueError, match=words):
        trace_paths(model, pairs_for(model, count=1), **options)


def test_an_edge_reads_itself() -> None:
    assert Edge.parse(" 0:13 → mlp1") == Edge(Head(0, 13), Mlp(1)) and Edge("L0H1", "L1H2").part == "qkv"
    assert [Edge.parse(str(edge)) for edge in (Edge("MLP0", "L1H2", "k"), Edge("L0H1", "logits"))] == [
        Edge("MLP0", "L1H2", "k"),
        Edge("L0H1", "logits"),
    ]


@pytest.mark.parametrize(
    ("values", "words"),  # of q, k, v, qk, kv, qkv
    [
        ((0, 0.01, 0.01, 0.01, 0.9, 0.9), "k and v act together, 90 % at once (interaction +0.8800 nats, in 16 of 16"),
        ((0, 0.8, 0.9, 0.8, 0.9, 0.9), "k or v act in each other's place, 90 % at once (interaction -0.8000"),
        ((0, 0.4, 0.5, 0.4, 0.9, 0.9), ""),
        ((0, 0.0, 0.9, 0.0, 0.9, 0.9), ""),
        ((0, 0.0, 0.01, 0.0, 0.02, 0.9), "q, k and v act together"),
        ((0, 0.0, -0.01, 0.0, -0.9, -0.9), "k and v act together, -90 % at once"),
    ],
)
def test_inputs_that_act_together_or_in_each_others_place(values: tuple[float, ...], words: str) -> None:
    n, edges = 16, tuple(Edge("L0H0", "L1H0", part) for part in ("q", "k", "v", "qk", "kv", "qkv"))
    every = np.tile(values, (n, 1)) + np.linspace(-1e-4, 1e-4, n)[:, None]
    found = mi.PathEffects(tuple(map(str, range(n))), edges, every, np.ones(n), "nats", {"contrast": "replaced"})
    told = found.together_words()
    assert bool(told) == bool(words) and (told or ["L0H0 -> L1H0: "])[0].startswith(f"L0H0 -> L1H0: {words}")
    assert len(found.together()) == 3
    texts = [text.get_text() for text in mi.views.path_graph(found).axes[0].texts]
    assert bool(words) == any(mark in text for mark in "+|" for text in texts)


@needs_hooked_transformer
def test_a_model_without_mlps_has_no_cells_of_them() -> None:
    model, ids = hooked(), np.random.default_rng(0).integers(0, 8, (8, 5))
    clean = np.concatenate([ids[:, :2], ids[:, 2:3] + 1, ids[:, 3:]], 1)
    pairs, options = mi.pairs_from_ids(ids, [1] * 8, clean=clean), {"contrast": "replaced", "progress": False}
    edges = mi.trace_paths(model, pairs, ["L0H0", "L1H1"], mlps="all", **options)
    assert not any("MLP" in str(edge) for edge in edges.edges)
    assert mi.patch_sites(model, pairs, n_rows=1, **options).sites == ("resid_pre", "attn_out")
    for asked in ({"edges": ["L0H0 -> MLP0"]}, {"heads": ["L0H0", "L1H1"], "mlps": [0]}):
        with pytest.raises(ValueError, match="this model has no MLPs"):
            mi.trace_paths(model, pairs, **asked, **options)


def test_models_whose_parts_cannot_be_read_are_refused() -> None:
    model = loaded(folder_of("Llama"), "bridge")
    pairs = pairs_for(model, count=1)
    with pytest.raises(mi.ModelError, match="layer by layer"):
        trace_paths(without_stepper(model), pairs, ["L0H0", "L1H1"])
    quantised = model.checked(model.checks)
    quantised.quantised = "8bit"
    for analysis in (trace_paths, mi.direct_effects, mi.map_positions):
        with pytest.raises(mi.ModelError, match=r"quantised \(8bit\)"):
            analysis(quantised, pairs, ["L0H0", "L1H1"])
    with pytest.raises(ValueError, match="the two are parallel"):
        trace_paths(loaded(folder_of("GPT-NeoX (Pythia)"), "bridge"), pairs, edges=["L1H0 -> MLP1"])
