"""A circuit as one result, and its page: the planted circuit comes back, and what cannot be measured says why."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from browser import browser
from small_results import confirmed, directed, located, placed, sets_found, spots, traced, transferred, written
from typer.testing import CliRunner

import mless_interp as mi
from mless_interp.__main__ import app
from mless_interp.circuits.circuit import OF_EDGES, PARTS, largest_heads
from mless_interp.commands.circuit_sections import SECTIONS, answer_of, family_words, pictures_of
from mless_interp.ground_truth.planted import planted_model

FILLER = mi.Insertion.meaningless(n_tokens=6)
QUIET: dict[str, Any] = {"n_rows": 2, "progress": False}


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("planted") / "model"
    made = planted_model(readers=[mi.Head(0, 2)], mediators=[mi.Head(1, 4)], n_heads=8, n_key_value_heads=2, seed=5)
    made.save(folder, n_problems=28)
    return folder


@pytest.fixture(scope="module")
def model(planted: Path) -> Any:
    return mi.load_model(str(planted), backend="bridge")


@pytest.fixture(scope="module")
def pairs(planted: Path, model: Any) -> Any:
    return mi.make_pairs(model, mi.load_problems(planted / "problems.jsonl"), FILLER)


def small(n: int = 16, **parts: Any) -> mi.Circuit:
    """A circuit of small results."""
    made = {"direct": directed(n), "edges": traced(n), "sufficient": traced(n), "sites": placed(n)}
    made |= {"positions": spots(n), "writes": written(n), "sets": sets_found(n), "transfer": transferred(n)}
    heads = parts.pop("heads", (mi.Head(0, 1),))
    return mi.Circuit(heads, directed(n).problem_ids, settings={"insertion": "Mless"}, **(made | parts))


@pytest.mark.slow
def test_the_planted_circuit_is_told_in_order(planted: Path, tmp_path: Path) -> None:
    assert tuple(SECTIONS) == tuple(PARTS)
    asked = [
        "--n-tokens",
        "6",
        "--n-rows",
        "2",
        "--no-progress",
        "--backend",
        "bridge",
        "--limit",
        "14",
        "--confirm",
        "14",
    ]
    done = CliRunner().invoke(app, ["circuit", str(planted), *asked, "--report", "--out", str(tmp_path / "x")])
    assert done.exit_code == 0, done.stderr
    assert " (named and measured): " in done.stdout.splitlines()[0], "the answer comes first"
    circuit = mi.load(tmp_path / "x")["Circuit"]
    assert list(map(str, circuit.heads)) == ["L0H2", "L1H4"] and circuit.left_out == {}
    shown = {str(edge) for edge in circuit.edges.found if "MLP" not in str(edge)}
    assert "L0H2 -> L1H4 v" in shown and "L0H2 -> logits" not in shown and "L0H2 -> L1H4 q" not in shown
    assert set(circuit.problem_ids).isdisjoint(circuit.located.problem_ids), "measured where nothing was named"
    assert "L0H2 -> L1H4 v" in circuit.summary().query("part == 'edges'")["label"].tolist()
    page = (tmp_path / "x" / "report.html").read_text()
    told = re.findall(r'<h2 id="section-\d+">([^<]*)</h2>\s*<p class="found"><strong>([^<]*)</strong></p>', page)
    assert [heading for heading, _ in told] == ["Which heads", *PARTS.values()]
    for name in SECTIONS:
        assert len(pd.read_csv(tmp_path / "x" / f"{name}.csv")) and (tmp_path / "x" / f"{name}.png").is_file()
    with browser(tmp_path / "profile") as running:
        shown = running.open(tmp_path / "x" / "report.html", width=390)
        assert shown.run("document.documentElement.scrollWidth") <= 390 and not shown.errors


def test_parts_are_those_that_were_asked_for_and_what_is_left_out_has_its_reason(model: Any, pairs: Any) -> None:
    found = mi.trace_circuit(model, pairs[:4], ["L0H2", "L1H4"], parts=["direct", "edges", "sets", "transfer"], **QUIET)
    assert list(found.parts()) == ["direct", "edges", "sufficient"] and found.edges.confidence == OF_EDGES
    assert found.left_out["sites"] == "not asked for" and found.left_out["sets"].endswith("there are 2 and 2")
    needed = re.search(r"up to \d+ edges would be tested, which takes at least (\d+) problems", found.left_out["MLPs"])
    assert needed is not None and int(needed[1]) > 4 and "and no MLPs" in found.edges.describe()
    direct = mi.circuits.direct.direct_effects(model, pairs[:4], ["L0H2", "L1H4"], progress=False)
    assert np.array_equal(found.direct.direct, direct.direct)
    assert set(found.to_frame()["part"]) == {"direct", "edges", "sufficient"}
    with pytest.raises(
        ValueError, match="no part of the circuit of L0H2 can be measured: edges: an edge needs two nodes"
    ):
        mi.trace_circuit(model, pairs[:4], ["L0H2"], parts=["edges", "sets"], mlps="none", **QUIET)
    with pytest.raises(ValueError, match="unknown part of a circuit 'edge'"):
        mi.trace_circuit(model, pairs[:4], ["L0H2"], parts=["edge"], **QUIET)
    computed = {"contrast": "computed", "parts": ["sites", "positions", "transfer"]}
    found = mi.trace_circuit(model, pairs[:2], ["L0H2"], **computed, **QUIET)
    assert list(found.parts()) == ["sites"] and "content contrast only" in found.left_out["positions"]
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
    for acting, words in (([1, 0, 0], "; not confirmed: L1H0"), ([1, 1, 0], ""), (None, "")):
        assert largest_heads(found(acting), 8) == both
        circuit = small(heads=both, located=found(acting))
        assert answer_of(circuit).startswith(f"L0H1, L1H0 (named and measured{words}): ")
    assert largest_heads(found([0, 0, 0]), 8) == ()
    one = small(heads=largest_heads(found([1, 1, 0]), 1), located=found([1, 1, 0]))
    assert answer_of(one).startswith("L0H1 (named and measured, the largest of 2): ")
    none = mi.Circuit((), ("p0",), located=found([0, 0, 0]))
    assert answer_of(none).endswith(" So there is no circuit to take apart.") and none.summary().empty
    assert none.sentences() == ["No head, no circuit: nothing was measured."]


@pytest.mark.parametrize("n", [1, 2, 16])
def test_every_part_has_an_answer_also_where_nothing_is_shown(n: int) -> None:
    circuit = small(n)
    for name, section in SECTIONS.items():
        answer = section.answer(circuit)
        assert answer.endswith(".") and "nan" not in answer and answer.count(".") < 6
        assert (
            n == 16
            or name == "writes"
            or any(words in answer for words in ("Nothing is claimed", "No ", "not confirmed"))
        )
    assert answer_of(circuit).startswith("L0H1 (given): ")


def test_what_acts_against_the_effect_is_not_said_to_carry_it() -> None:
    found = traced(16)
    said = SECTIONS["edges"].answer(small())
    assert "4 edges carry more than 5 % of the effect in most of 16 problems, 1 edge takes back as much" in said
    assert "L0H0 -> L1H0 qkv (-20 %, against it)" in said and "MLP1 -> logits (90 %)" in said
    alone = replace(found, cells=found.edges[3:4], values=found.values[:, 3:4])
    said = SECTIONS["edges"].answer(small(edges=alone, sufficient=alone))
    assert said.startswith("1 edge takes back more than 5 % of the effect in")
    split, places, moved = directed(16), spots(16), transferred(16)
    turned = replace(split, values=-split.values)
    assert "L1H0 (-40 %, against it)" in SECTIONS["direct"].answer(small(direct=turned))
    turned_places = replace(places, values=-places.values)
    assert "token -1 (against the effect)" in SECTIONS["positions"].answer(small(positions=turned_places))
    assert "brings back 90 % of the effect (controls: 10 %" in SECTIONS["transfer"].answer(small())
    said = SECTIONS["transfer"].answer(small(transfer=replace(moved, given=-moved.given)))
    assert "does the opposite of the effect, by 90 % of it" in said and "brings back" not in said


def test_edges_of_both_directions_are_one_family_and_the_page_counts_families() -> None:
    """2^-14 x 4 edges x 2 senses x 2 directions; each direction is held against half of the level."""
    each = replace(traced(16), confidence=OF_EDGES)
    assert each.level == pytest.approx(0.02) and "p < 0.02 after Holm" in each.describe()
    bare = mi.Circuit((mi.Head(0, 1),), each.problem_ids, located(), edges=each, sufficient=each, writes=written(6))
    assert "of which this page has 2: heads (removed and added); edges (both directions)." in family_words(bare)


def test_what_is_shown_to_be_needed_is_not_said_to_be_sufficient_alone() -> None:
    """Needed by `v` and by all three together; in noising only the latter is shown."""
    needed = traced(16)
    values = needed.values.copy()
    values[:, 1] = 0
    enough = replace(needed, values=values)
    assert {"L0H1 -> L1H0 v", "L0H1 -> L1H0 qkv"} <= set(map(str, needed.found))
    assert "ufficient" not in SECTIONS["edges"].answer(small(edges=needed, sufficient=enough))
    fewer = replace(needed, values=np.where(np.arange(7) == 5, 0, needed.values))
    said = SECTIONS["edges"].answer(small(edges=fewer, sufficient=needed))
    assert said.endswith("Sufficient, and not shown to be needed: L1H0 -> MLP1 (50 %).")


def test_a_sentence_says_no_more_than_was_shown() -> None:
    """The closest token with its figures; the edges of the heads alone; a share below what was asked; no upper bound."""
    found = spots(16)
    most = np.where(np.arange(16) < 11, 0.35, 0.0)[:, None]
    places = replace(found, values=np.where(np.arange(7) == 1, most, 0.0) + (np.arange(7) == 2))
    said = SECTIONS["positions"].answer(small(positions=places))
    assert "L0H1: no single token is significant; the closest is token -1 (" in said
    assert ", 11 of 16 problems, p = " in said
    assert answer_of(small()).startswith("L0H1 (given): 2 edges of L0H1 carry more than 5 % of the effect")
    assert "MLP1 -> logits" not in answer_of(small())
    assert "No edge of L3H0 is shown to carry" in answer_of(small(heads=(mi.Head(3, 0),)))
    moved = transferred(16)
    said = SECTIONS["transfer"].answer(small(transfer=replace(moved, given=0.01 * (moved.inserted - moved.base))))
    assert said.startswith("Not shown that more than 5 % of the effect returns") and said.endswith(
        "(share 1 % [1, 1])."
    )
    values = written(16).values.copy()
    values[:, 0, :2, -1] = -7.0
    said = SECTIONS["writes"].answer(small(writes=replace(written(16), values=values)))
    assert "L0H1 promotes ' a', ' c' (by 0.5 logits at most)" in said


def test_a_graph_without_edges_says_so_on_the_page() -> None:
    found = traced(16)
    captions = list(pictures_of(small(sufficient=replace(found, values=0 * found.values)), "edges"))
    assert captions[0].startswith("Edges that are needed (denoising).") and "No edge" not in captions[0]
    assert captions[1].startswith("Edges that suffice (noising): none. No edge is shown to do more than 5 % of")
