"""`mless-interp circuit`: the planted circuit comes back, a run that names nothing says so, a stopped one goes on."""

import json
import re
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from browser import browser
from scripts_under_test import Done, run_command

import mless_interp as mi
from mless_interp.commands.circuit import PARTS
from mless_interp.commands.circuit_sections import SECTIONS, answer_of
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
        page.count("The picture shows means; the sentence above and &#39;median share&#39; medians.</figcaption>") == 5
    )
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
    from small_results import directed, placed, sets_found, spots, traced, transferred, written

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
        (["--limit", 20, "--confirm", 20], "need 40 problems, there are 28"),
        (["--heads", "L7H2", "--limit", 2], "L7H2"),
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
