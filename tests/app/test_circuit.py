"""A circuit as one result, and its page: the planted circuit comes back, and what cannot be measured says why."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from small_results import confirmed, directed, located, placed, sets_found, spots, traced, transferred, written
from typer.testing import CliRunner

import mless_interp as mi
from mless_interp.__main__ import app
from mless_interp.circuits.circuit import HEADINGS, OF_EDGES, largest_heads

FILLER = mi.Insertion.meaningless(n_tokens=6)
QUIET: dict[str, Any] = {"n_rows": 2, "progress": False}


@pytest.fixture(scope="module")
def model(planted_dir: Path) -> Any:
    return mi.load_model(str(planted_dir), backend="bridge")


@pytest.fixture(scope="module")
def pairs(planted_dir: Path, model: Any) -> Any:
    return mi.make_pairs(model, mi.load_problems(planted_dir / "problems.jsonl"), FILLER)


def small(n: int = 16, **parts: Any) -> mi.Circuit:
    """A circuit of small results."""
    made = {"direct": directed(n), "edges": traced(n), "sufficient": traced(n), "sites": placed(n)}
    made |= {"positions": spots(n), "writes": written(n), "sets": sets_found(n), "transfer": transferred(n)}
    heads = parts.pop("heads", (mi.Head(0, 1),))
    return mi.Circuit(heads, directed(n).problem_ids, settings={"insertion": "Mless"}, **(made | parts))


@pytest.mark.slow
def test_the_planted_circuit_is_told_in_order(planted_dir: Path, tmp_path: Path) -> None:
    asked = "--n-tokens 6 --n-rows 2 --no-progress --backend bridge --limit 14 --confirm 14 --report --out".split()
    done = CliRunner().invoke(app, ["circuit", str(planted_dir), *asked, str(tmp_path / "x")])
    assert done.exit_code == 0, done.stderr
    assert done.stdout.startswith("The circuit of L0H2, L1H4, measured on 14 problems: ")
    circuit = mi.load(tmp_path / "x")["Circuit"]
    assert list(map(str, circuit.heads)) == ["L0H2", "L1H4"] and circuit.left_out == {}
    shown = {str(edge) for edge in circuit.edges.found if "MLP" not in str(edge)}
    assert "L0H2 -> L1H4 v" in shown and "L0H2 -> logits" not in shown and "L0H2 -> L1H4 q" not in shown
    assert set(circuit.problem_ids).isdisjoint(circuit.located.problem_ids), "measured where nothing was named"
    assert "L0H2 -> L1H4 v" in circuit.table().query("part == 'edges'")["label"].tolist()
    page = (tmp_path / "x" / "report.html").read_text()
    told = re.findall(r'<h2 id="section-\d+">([^<]*)</h2>\s*<p class="found"><strong>(.*?)</strong></p>', page)
    assert [heading for heading, _ in told] == ["Which heads", *HEADINGS.values()]


def test_parts_are_those_that_were_asked_for_and_what_is_left_out_has_its_reason(model: Any, pairs: Any) -> None:
    found = mi.trace_circuit(model, pairs[:4], ["L0H2", "L1H4"], parts=["direct", "edges", "sets", "transfer"], **QUIET)
    assert list(found.parts()) == ["direct", "edges", "sufficient"] and found.edges.confidence == OF_EDGES
    assert found.left_out["sites"] == "not asked for" and found.left_out["sets"].endswith("there are 2 and 2")
    assert set(found.to_frame()["part"]) == {"direct", "edges", "sufficient"}
    for parts, words in (
        (["edges", "sets"], "no part .* can be measured: edges: an edge needs two"),
        (["edge"], "unknown"),
    ):
        with pytest.raises(ValueError, match=words):
            mi.trace_circuit(model, pairs[:4], ["L0H2"], parts=parts, mlps="none", **QUIET)
    for n, fresh, part, words in (
        (13, None, "sets", "at least 6 and 7 are needed, there are 7 and 6"),
        (5, 14, "sets", "there are 5 and 14"),
    ):
        others = fresh and pairs[n : n + fresh]
        with pytest.raises(ValueError, match=words):
            mi.trace_circuit(model, pairs[:n], ["L0H2"], fresh=others, parts=[part], **QUIET)
    computed = {"contrast": "computed", "parts": ["sites", "positions", "transfer"]}
    found = mi.trace_circuit(model, pairs[:2], ["L0H2"], **computed, **QUIET)
    assert list(found.parts()) == ["sites", "positions"] and "content contrast only" in found.left_out["transfer"]
    blocks = mi.Insertion.meaningless(n_tokens=6, before="question", after="question")
    several = mi.make_pairs(model, [pair.problem for pair in pairs[:14]], blocks)
    found = mi.trace_circuit(model, several, ["L0H2"], parts=["sets", "transfer"], **QUIET)
    assert list(found.parts()) == ["sets"] and "this one has 2 blocks" in found.left_out["transfer"]


def test_what_is_tested_on_fresh_problems_is_not_chosen_there() -> None:
    """Of two named heads fresh problems confirm the first, or none; or there are no fresh ones."""

    def found(acting: list[int] | None) -> mi.LocatedHeads:
        made = None if acting is None else confirmed()
        if made is not None:
            made = replace(made, values={name: values * acting for name, values in made.values.items()})
        return replace(located(), confirmation=made)

    both = (mi.Head(0, 1), mi.Head(1, 0))
    for acting in ([1, 0, 0], None):
        assert largest_heads(found(acting), 8) == both
        lost = small(heads=both, located=found(acting)).caveats()
        assert lost == (["Not confirmed on fresh problems: L1H0."] if acting == [1, 0, 0] else [])
    assert largest_heads(found([0, 0, 0]), 8) == ()
    assert largest_heads(found([1, 1, 0]), 1) == both[:1]
    none = mi.Circuit((), ("p0",), located=found([0, 0, 0]))
    assert none.headline().endswith("no head, no circuit: nothing was measured.") and none.table().empty


def test_edges_of_both_directions_are_one_family() -> None:
    """2^-14 x 4 edges x 2 senses x 2 directions; each direction is held against half of the level."""
    assert replace(traced(16), confidence=OF_EDGES).level == pytest.approx(0.02)
