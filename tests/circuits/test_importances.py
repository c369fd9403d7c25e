"""MIB's format: what is written is read again, in its names."""

import json
from pathlib import Path
from typing import Any

import pytest
from conftest import needs_hooked_transformer
from models_under_test import four_specialists, loaded, of_classes
from small_results import SIX, patched, traced

import mless_interp as mi


def test_scores_come_back_from_the_format(tmp_path: Path, tiny_model_dir: Any) -> None:
    model, edges, path = loaded(tiny_model_dir("qwen2"), "bridge"), traced(), tmp_path / "importances.json"
    with pytest.warns(UserWarning, match="several inputs at once alone, .* left out: L0H0 -> L1H0 qkv$"):
        mi.save_importances(path, model, heads=patched(16), edges=edges)
    raw = json.loads(path.read_text())
    assert raw["cfg"]["n_layers"] == model.info.n_layers and raw["nodes"]["a1.h2"]["in_graph"]
    assert raw["nodes"]["a1.h2"]["score"] == pytest.approx(-0.5) and raw["nodes"]["logits"] == {"in_graph": True}
    assert set(raw["edges"]) == {
        "a0.h1->a1.h0<q>", "a0.h1->a1.h0<v>", "a0.h1->m1", "a1.h0->m1", "m1->logits"
    }  # fmt: skip
    nodes, links = mi.load_importances(path)
    scores = dict(zip(nodes["label"], nodes["score"], strict=True))
    assert [round(scores[str(head)], 6) for head in SIX] == [0, 0, 0, 0, 0, -0.5]
    single = {str(edge): mean for edge, mean in zip(edges.edges, edges.mean_effect, strict=True) if edge.part != "qkv"}
    read = [str(mi.Edge(*each)) for each in links[["sender", "receiver", "part"]].itertuples(index=False)]
    assert dict(zip(read, links["score"], strict=True)) == pytest.approx(single)
    inside = {edge for edge, shown in zip(read, links["in_graph"], strict=True) if shown}
    assert inside == {str(edge) for edge in edges.found if edge.part != "qkv"}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ('{"nodes": {}}', "lacks 'edges'"),
        ('{"cfg": {}, "nodes": {}, "edges": {"m0=>m1": {"score": 1, "in_graph": true}}}', "'m0=>m1' is no node"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, content: str, words: str) -> None:
    (tmp_path / "x.json").write_text(content)
    with pytest.raises(ValueError, match=words):
        mi.load_importances(tmp_path / "x.json")


@needs_hooked_transformer
def test_only_confirmed_heads_are_in_the_circuit_where_fresh_problems_were_given(tmp_path: Path) -> None:
    model, path = four_specialists(), tmp_path / "importances.json"
    options: dict[str, Any] = {"contrast": "replaced", "controls": False, "progress": False}
    for confirm, inside in ((None, True), (of_classes(24, 1, (1,)), True), (of_classes(24, 0, (2,)), False)):
        found = mi.locate_heads(model, of_classes(24, 0, (1,)), confirm=confirm, **options)
        mi.save_importances(path, model, heads=found)
        assert list(found.found) == [mi.Head(0, 1)]
        assert json.loads(path.read_text())["nodes"]["a0.h1"]["in_graph"] is inside
