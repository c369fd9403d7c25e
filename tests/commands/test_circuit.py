"""`mless-interp circuit`: the planted circuit comes back, a run that names nothing says so, a stopped one goes on."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from browser import browser
from scripts_under_test import Done, run_command
from small_results import confirmed, directed, located, placed, sets_found, spots, traced, transferred, written

import mless_interp as mi
from mless_interp.commands.circuit import NAMED_HERE, PARTS
from mless_interp.commands.circuit_sections import NOISING, SECTIONS, answer_of
from mless_interp.ground_truth.planted import planted_model

SMALL = ["--n-tokens", 6, "--n-rows", 2, "--no-progress", "--backend", "bridge"]
HEADS = ["--heads", "L0H2,L1H4", "--limit", 12]


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("planted") / "model"
    made = planted_model(readers=[mi.Head(0, 2)], mediators=[mi.Head(1, 4)], n_heads=8, n_key_value_heads=2, seed=5)
    made.save(folder, n_problems=28)
    return folder


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, planted: Path) -> Any:
    def call(*arguments: Any, model: Any = planted) -> Done:
        return run_command("circuit", model, *arguments, cwd=tmp_path, capsys=capsys, monkeypatch=monkeypatch)

    return call


def sections(page: str) -> list[tuple[str, str]]:
    """Each heading with the bold sentence under it."""
    return re.findall(r'<h2 id="section-\d+">([^<]*)</h2>\s*<p class="found"><strong>([^<]*)</strong></p>', page)


@pytest.mark.slow
def test_the_planted_circuit_is_told_in_order(run: Any, tmp_path: Path) -> None:
    assert tuple(SECTIONS) == PARTS
    done = run(*SMALL, "--limit", 14, "--confirm", 14, "--report", "--out", "x")
    assert done.returncode == 0, done.stderr
    assert " (named and measured): " in done.stdout.splitlines()[0], "the answer comes first"
    out, kept = tmp_path / "x", mi.load(tmp_path / "x" / "results")
    facts = json.loads((out / "run.json").read_text())
    assert facts["heads"] == ["L0H2", "L1H4"] and facts["left_out"] == {} and facts["n_fresh"] == 14
    edges = kept["PathEffects"]
    shown = {str(edge) for edge in edges.found if "MLP" not in str(edge)}
    assert "L0H2 -> L1H4 v" in shown and "L0H2 -> logits" not in shown and "L0H2 -> L1H4 q" not in shown
    page = (out / "report.html").read_text()
    told = sections(page)
    assert [heading for heading, _ in told] == ["Which heads", *(section.heading for section in SECTIONS.values())]
    by_heading = {heading: answer.replace("&gt;", ">") for heading, answer in told}
    assert "L0H2 -> L1H4 v (" in by_heading[SECTIONS["edges"].heading]
    assert "Straight to the logits: none" in by_heading[SECTIONS["direct"].heading]
    assert (
        page.count("The picture shows means; the sentence above and &#39;median share&#39; medians.</figcaption>") == 3
    )
    assert page.count("The picture shows median shares.</figcaption>") == 2, "the numbers on the edges of a graph"
    assert "(heads named on 14 problems, all else measured on 14 others)?" in page
    in_the_open = re.sub(r"(?s)<details.*?</details>", "", page)
    for _, answer in told:
        assert f"<strong>{answer}</strong>" in in_the_open and f"<p>{answer}</p>" not in in_the_open, "said once"
    edge = next(line for line in page.splitlines() if line.startswith('<tr><th scope="row">L0H2 -&gt; L1H4 v</th>'))
    assert edge.count('class="limits"') == 5, "median and mean, the share of each, and that of the problems"
    assert ">95 % interval</button>" not in page, "no interval stands alone"
    assert "looks at &#39; /&#39; (inserted)" in by_heading[SECTIONS["writes"].heading]
    for name in SECTIONS:
        assert len(pd.read_csv(out / f"{name}.csv")) and (out / f"{name}.png").is_file()
    assert set(edges.problem_ids).isdisjoint(kept["LocatedHeads"].problem_ids), "measured where nothing was named"


@pytest.mark.parametrize("n", [1, 2, 16])
def test_every_part_has_an_answer_also_where_nothing_is_shown(n: int) -> None:
    made = {"DirectEffects": directed, "SitePatches": placed, "PositionMap": spots, "HeadWrites": written}
    results: dict[str, Any] = {key: make(n) for key, make in made.items()}
    results |= {"MinimalSets": sets_found(n), "Transfer": transferred(n)}
    results |= {"PathEffects": traced(n), "PathEffects, noising": traced(n)}
    for section in SECTIONS.values():
        answer = section.answer(results)
        assert answer.endswith(".") and "nan" not in answer and answer.count(".") < 6
        assert (
            n == 16
            or section.key == "HeadWrites"
            or any(words in answer for words in ("Nothing is claimed", "No ", "not confirmed"))
        )
    assert answer_of(results, [mi.Head(0, 1)], False).startswith("L0H1 (named and measured): ")


def both_ways(needed: mi.PathEffects, enough: mi.PathEffects) -> dict[str, Any]:
    return {"PathEffects": needed, NOISING: enough}


def test_what_acts_against_the_effect_is_not_said_to_carry_it() -> None:
    found = traced(16)
    said = SECTIONS["edges"].answer(both_ways(found, found))
    assert "4 edges carry more than 5 % of the effect in most of 16 problems, 1 edge takes back as much" in said
    assert "L0H0 -> L1H0 qkv (-20 %, against it)" in said and "MLP1 -> logits (90 %)" in said
    alone = replace(found, edges=found.edges[3:4], values=found.values[:, 3:4])
    assert (
        SECTIONS["edges"].answer(both_ways(alone, alone)).startswith("1 edge takes back more than 5 % of the effect in")
    )
    split = directed(16)
    turned = replace(split, effect=-split.effect, direct=-split.direct)
    assert "L1H0 (-40 %, against it)" in SECTIONS["direct"].answer({"DirectEffects": turned})
    places = spots(16)
    said = SECTIONS["positions"].answer({"PositionMap": replace(places, values=-places.values)})
    assert "token -1 (against the effect)" in said
    moved = transferred(16)
    assert "brings back 90 % of the effect (medians over problems)" in SECTIONS["transfer"].answer({"Transfer": moved})
    said = SECTIONS["transfer"].answer({"Transfer": replace(moved, given=-moved.given)})
    assert "does the opposite of the effect, by 90 % of it" in said and "brings back" not in said


def test_what_is_shown_to_be_needed_is_not_said_to_be_sufficient_alone() -> None:
    """Needed by `v` and by all three together; in noising only the latter is shown."""
    needed = traced(16)
    values = needed.values.copy()
    values[:, 1] = 0
    enough = replace(needed, values=values)
    assert {"L0H1 -> L1H0 v", "L0H1 -> L1H0 qkv"} <= set(map(str, needed.found))
    assert "ufficient" not in SECTIONS["edges"].answer(both_ways(needed, enough))
    fewer = replace(needed, values=np.where(np.arange(7) == 5, 0, needed.values))
    said = SECTIONS["edges"].answer(both_ways(fewer, needed))
    assert said.endswith("Sufficient, and not shown to be needed: L1H0 -> MLP1 (50 %).")
    assert "L0H0" not in SECTIONS["edges"].answer(
        both_ways(replace(needed, values=np.where(np.arange(7) == 3, 0, needed.values)), needed)
    )  # against the effect: it suffices for nothing


def test_a_graph_without_edges_says_so_on_the_page() -> None:
    found = traced(16)
    captions = list(SECTIONS["edges"].pictures(both_ways(found, replace(found, values=0 * found.values))))
    assert captions[0].startswith("Edges that are needed (denoising).") and "No edge" not in captions[0]
    assert captions[1].startswith("Edges that suffice (noising): none. No edge is shown to do more than 5 % of")


def test_mlps_that_too_few_problems_leave_out_are_said(run: Any, tmp_path: Path) -> None:
    asked = [
        "--heads",
        "L0H2,L1H4",
        "--limit",
        4,
        "--without",
        ",".join(each for each in PARTS if each != "edges"),
        "--report",
    ]
    done = run(*SMALL, *asked, "--out", "x")
    assert done.returncode == 0, done.stderr
    said = (
        r"Edges are traced without MLPs: with them up to \d+ edges would be tested, which takes at least (\d+) problems"
    )
    assert len(found := re.findall(said, done.stdout)) == 1 and int(found[0]) > 4
    page = (tmp_path / "x" / "report.html").read_text()
    assert len(re.findall(said, page)) == 1
    assert re.search(said, json.loads((tmp_path / "x" / "run.json").read_text())["without_mlps"])
    assert "among 2 heads and no MLPs" in " ".join(done.stdout.split())
    alone = run(
        *SMALL, "--heads", "L0H2", "--limit", 4, "--without", "direct,writes,positions", "--report", "--out", "y"
    )
    assert "L0H2 is alone without MLPs: with them up to" in alone.stdout and not re.search(said, alone.stdout)
    assert "are needed, there are 2 and 2" in alone.stdout
    page = (tmp_path / "y" / "report.html").read_text()
    assert "The picture shows means.</figcaption>" in page and "&#39;median share&#39; medians" not in page
    assert ">median</button>" in page and ">median [95 % interval]</button>" not in page, "of 4 problems it has none"
    one = run(*SMALL, "--heads", "L0H2,L1H4", "--limit", 1, "--without", "sites,writes", "--out", "z").stdout
    assert "L0H2, L1H4 (given): Nothing is claimed: one problem cannot establish that most show an effect" in one
    assert re.search(
        r"L0H2 blind to the whole span takes [+-][\d.]+ nats away on average; blind to its blocks one by one", one
    )
    for mlps, words in (("none", "among 2 heads and no MLPs"), ("all", "among 2 heads and 2 MLPs")):
        done = run(*SMALL, *asked, "--mlps", mlps, "--out", mlps)
        assert words in " ".join(done.stdout.split()) and not re.search(said, done.stdout), done.stderr


def test_the_size_of_what_is_promoted_is_not_that_of_what_is_suppressed() -> None:
    found = written(6)
    values = found.values.copy()
    values[:, 0, :2, -1] = -7.0
    said = SECTIONS["writes"].answer({"HeadWrites": replace(found, values=values)})
    assert "L0H1 promotes ' a', ' c' (by 0.5 logits at most)" in said


def test_what_is_tested_on_fresh_problems_is_not_chosen_there(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two named heads fresh problems confirm the first, or none; or there are no fresh ones."""

    def facts(acting: list[int] | None, out: str, *more: Any) -> tuple[dict[str, Any], str, str]:
        made = None if acting is None else confirmed()
        if made is not None:
            made = replace(made, values={name: values * acting for name, values in made.values.items()})
        found = replace(located(), confirmation=made)
        monkeypatch.setattr("mless_interp.locating.locate.locate_heads", lambda *_, **__: found)
        asked = ["--limit", 6, "--confirm", 0 if made is None else 6, "--without", ",".join(PARTS[1:]), "--report"]
        done = run(*SMALL, *asked, *more, "--out", out)
        assert done.returncode == 0, done.stderr
        page = (tmp_path / out / "report.html").read_text()
        return json.loads((tmp_path / out / "run.json").read_text()), " ".join(done.stdout.split()), page

    one, told, page = facts([1, 0, 0], "one")
    assert one["heads"] == ["L0H1", "L1H0"]
    assert one["conclusion"].startswith("L0H1, L1H0 (named and measured; not confirmed: L1H0): ")
    assert NAMED_HERE not in told and NAMED_HERE not in page
    both, *_ = facts([1, 1, 0], "both")
    assert both["conclusion"].startswith("L0H1, L1H0 (named and measured): ")
    first, *_ = facts([1, 1, 0], "first", "--most-heads", 1)
    assert first["conclusion"].startswith("L0H1 (named and measured, the largest of 2): ")
    none, *_ = facts([0, 0, 0], "none")
    assert none["heads"] == [] and none["conclusion"].endswith("So there is no circuit to take apart.")
    here, told, page = facts(None, "here")
    assert here["heads"] == ["L0H1", "L1H0"] and NAMED_HERE in told and NAMED_HERE in page


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (["--insertion", "ids", "--unit", "5,6,7"], {}),
        (["--n-tokens", 6, "--place", "before-question,after-question"], {"transfer": "this one has 2 blocks"}),
        (
            ["--n-tokens", 6, "--place", "after-question", "--contrast", "computed"],
            {"transfer": "known of the content contrast alone"},
        ),
    ],
)
def test_a_page_is_made_also_of_what_does_nothing_or_stands_in_several_places(
    asked: list[Any], words: dict[str, str], run: Any, tmp_path: Path
) -> None:
    small = ["--heads", "L0H2,L1H4", "--limit", 14, "--mlps", "none", "--no-progress", "--backend", "bridge"]
    done = run(*small, *asked, "--without", "direct,edges,sites,positions,writes", "--report", "--out", "x")
    assert done.returncode == 0, done.stderr
    left = json.loads((tmp_path / "x" / "run.json").read_text())["left_out"]
    assert all(words[name] in left[name] for name in words) and "sets" not in left
    assert (tmp_path / "x" / "sets.png").is_file() and len(pd.read_csv(tmp_path / "x" / "sets.csv")) == 2


def test_where_no_part_can_be_measured_it_says_why(run: Any, tmp_path: Path) -> None:
    done = run(
        *SMALL,
        "--heads",
        "L0H2",
        "--limit",
        4,
        "--mlps",
        "none",
        "--without",
        "direct,sites,positions,writes",
        "--out",
        "x",
    )
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert "no part of the circuit of L0H2 can be measured: edges: an edge needs two parts" in done.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_given_heads_are_not_located(run: Any, tmp_path: Path) -> None:
    done = run(*SMALL, *HEADS, "--without", "sites,positions", "--mlps", "none", "--report", "--out", "x")
    assert done.returncode == 0, done.stderr
    facts = json.loads((tmp_path / "x" / "run.json").read_text())
    assert facts["heads_given"] and facts["left_out"]["sites"] == "not asked for"
    assert "LocatedHeads" not in mi.load(tmp_path / "x" / "results") and not (tmp_path / "x" / "sites.csv").exists()
    page = (tmp_path / "x" / "report.html").read_text()
    assert SECTIONS["sites"].heading not in page and "given" in page


@pytest.mark.slow
def test_one_head_has_no_edges_and_the_page_says_why(run: Any, tmp_path: Path) -> None:
    asked = ["--heads", "L0H2", "--limit", 12, "--mlps", "none", "--without", "sites", "--report", "--out", "x"]
    assert run(*SMALL, *asked).returncode == 0
    answers = dict(sections((tmp_path / "x" / "report.html").read_text()))
    assert answers[SECTIONS["edges"].heading].startswith("Not measured: an edge needs two parts, and L0H2 is alone")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:2 problems are too few")
def test_where_nothing_is_named_it_says_so_and_ends(run: Any, tmp_path: Path) -> None:
    done = run(*SMALL, "--limit", 2, "--confirm", 2, "--report", "--out", "x")
    assert done.returncode == 0, done.stderr
    kept = mi.load(tmp_path / "x" / "results")
    assert set(kept) - {"provenance"} == {"LocatedHeads"}
    page = (tmp_path / "x" / "report.html").read_text()
    assert "No head, no circuit" in page and [heading for heading, _ in sections(page)] == ["Which heads"]


@pytest.mark.slow
def test_a_stopped_run_goes_on(run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from mless_interp.running.checkpoint import Checkpoint

    put, seen = Checkpoint.put, []

    def watch(self: Checkpoint, values: dict[str, Any]) -> None:
        put(self, values)
        seen.append(self.path.stem if self.path is not None else "")
        if stop and seen[-1] == "edges-noising":
            raise KeyboardInterrupt

    stop = True
    monkeypatch.setattr(Checkpoint, "put", watch)
    asked = [*SMALL, *HEADS, "--without", "sites,positions"]
    stopped = run(*asked, "--out", "x")
    assert stopped.returncode == 130 and "kept in .x.partial" in stopped.stderr
    stop, before = False, len(seen)
    assert run(*asked, "--out", "x").returncode == 0
    resumed = seen[before:]
    assert "direct" not in resumed and "edges-denoising" not in resumed and "writes" in resumed
    assert run(*asked, "--out", "y").returncode == 0
    for name in ("direct.csv", "edges.csv", "writes.csv", "edges.png"):
        assert (tmp_path / "x" / name).read_bytes() == (tmp_path / "y" / name).read_bytes()


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (
            ["--heads", "L0H2", "--confirm", 4],
            "--confirm takes 2 or more problems, or 0, and only goes without --heads",
        ),
        (["--contrast", "shift"], "contrast of a circuit"),
        (["--without", "egdes"], "part to leave out"),
        (["--limit", 1], "--limit 1: heads are named by 2 or more problems: give more, or --heads"),
        (["--limit", 20, "--confirm", 20], "need 40 problems, there are 28"),
        (["--heads", "L7H2", "--limit", 2], "L7H2"),
        (["--heads", "L0H2", "--without", ",".join(PARTS)], "--without leaves out every part"),
    ],
)
def test_wrong_input_is_one_line(asked: list[Any], words: str, run: Any, tmp_path: Path) -> None:
    done = run(*SMALL, *asked, "--out", "x")
    assert done.returncode == 2 and words in done.stderr and done.stderr.count("\n") == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_the_page_fits_a_phone(run: Any, tmp_path: Path) -> None:
    assert run(*SMALL, *HEADS, "--report", "--out", "x").returncode == 0
    with browser(tmp_path / "profile") as running:
        for width in (1400, 390):
            page = running.open(tmp_path / "x" / "report.html", width=width)
            assert page.run("document.documentElement.scrollWidth") <= width
            tables = page.run(
                "[...document.querySelectorAll('.part.table')].map(part => [...part.querySelectorAll('thead th')]"
                ".filter(each => getComputedStyle(each).display != 'none').length)"
            )
            assert tables and max(tables) <= 6
            defined = page.run("[...document.querySelectorAll('thead th')].every(each => each.title)")
            assert defined and not page.errors and all(url.startswith(("file:", "data:")) for url in page.requests)
