"""The documentation: the site builds strictly and needs no network, names what exists, and quotes what the code says."""

import ast
import base64
import functools
import importlib.util
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import docs_hooks
import pytest
import yaml
from browser import browser
from conftest import ROOT
from mkdocs.exceptions import PluginError
from refresh_docs import TABLES, blocks, with_tables

import mless_interp as mi

DOCS = ROOT / "docs"
PACKAGE = ROOT / "mless_interp"


def module_of(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


# ----------------------------------------------------------------------------------------------------------- formulas


@pytest.mark.parametrize(
    ("tex", "inside"),
    [
        ("x_1^2", "<msubsup><mi>x</mi><mn>1</mn><mn>2</mn></msubsup>"),
        ("a < b", "<mo>&#x0003C;</mo>"),
        (r"\text{a\_b}", "<mtext>a_b</mtext>"),
        (r"\operatorname{logit}(x)", "<mo>logit</mo>"),
        (r"\begin{cases} a & b \\ c & d \end{cases}", '<mtr><mtd columnalign="left"><mi>c</mi></mtd>'),
        (r"\mathbb{R}", "&#x0211D;"),
    ],
)
def test_tex_becomes_mathml(tex: str, inside: str) -> None:
    assert inside in docs_hooks.drawn(tex, display=False)
    assert inside in docs_hooks.drawn(tex, display=True).removeprefix('<div class="formula">')


@pytest.mark.parametrize("tex", [r"\unknown x", r"\mathbf{1}", r"\Bigl\lVert x"])
def test_a_formula_that_would_be_half_right_is_refused(tex: str) -> None:
    with pytest.raises(PluginError, match=re.escape(f"formula {tex!r}: latex2mathml makes")):
        docs_hooks.drawn(tex, display=True)


def formulas() -> Iterator[tuple[str, str, bool]]:
    """(where, TeX, whether it is a display) in the pages and in every docstring."""
    texts = [(path, path.read_text(encoding="utf-8")) for path in sorted(DOCS.rglob("*.md"))]
    for path in sorted(PACKAGE.rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        kinds = (ast.Module, ast.ClassDef, ast.FunctionDef)
        texts += [(path, ast.get_docstring(node) or "") for node in ast.walk(tree) if isinstance(node, kinds)]
    for path, text in texts:
        text = re.sub(r"```.*?```|`[^`\n]*`", "", text, flags=re.DOTALL)
        for found in re.finditer(r"\$\$(.*?)\$\$|(?<![\w\\$])\$([^$\n]+?(?:\n[^$\n]+?)?)\$", text, re.DOTALL):
            yield str(path.relative_to(ROOT)), found.group(1) or found.group(2), bool(found.group(1))


def test_every_formula_of_pages_and_docstrings_can_be_drawn() -> None:
    seen = list(formulas())
    assert len(seen) > 200
    wrong = []
    for where, tex, display in seen:
        try:
            docs_hooks.drawn(tex, display=display)
        except PluginError as error:
            wrong.append(f"{where}: {error}")
    assert wrong == []


# ---------------------------------------------------------------------------------------------------------- tutorials


PIXEL = base64.b64encode(b"\x89PNG not really").decode()


def test_a_notebook_becomes_a_page_with_its_outputs(tmp_path: Path) -> None:
    shown = {"metadata": {}, "output_type": "display_data"}
    outputs = [
        {"output_type": "stream", "name": "stdout", "text": ["two\n", "lines\n"]},
        {**shown, "data": {"image/png": PIXEL, "text/plain": ["<Figure>"]}},
        {**shown, "data": {"text/html": ["<table>\n<tr></tr></table>"], "text/plain": ["t"]}},
        {**shown, "data": {"text/html": "<script>// a remark\nalert(1)</script>"}},
        {**shown, "data": {"text/plain": ["42"]}},
    ]
    cells = [
        {"id": "a", "metadata": {}, "cell_type": "markdown", "source": ["# A title\n", "\n", "[next](02_next.ipynb)"]},
        {
            "id": "b",
            "metadata": {},
            "cell_type": "code",
            "source": ["print(1)"],
            "outputs": outputs,
            "execution_count": 1,
        },
    ]
    metadata = {"language_info": {"name": "python"}}
    path = tmp_path / "01_first.ipynb"
    path.write_text(json.dumps({"cells": cells, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}))
    text, pictures = docs_hooks.as_page(path)
    assert text.startswith("# A title\n\n[next](02_next.ipynb)\n")
    assert "```python\nprint(1)\n```" in text
    assert "    two\n    lines\n" in text and "    42\n" in text
    assert "![Output of the cell above](01_first_1_1.png)" in text
    assert pictures == {"01_first_1_1.png": b"\x89PNG not really"}
    assert '<div class="output"><table> <tr></tr></table></div>' in text
    assert 'srcdoc="&lt;script&gt;// a remark&#10;alert(1)&lt;/script&gt;"' in text, "the remark ends before the code"
    assert "<script>" not in text


# ---------------------------------------------------------------------------------------------------------------- API


def api_blocks() -> set[str]:
    """Every dotted name that an API page documents."""
    found: set[str] = set()
    for path in (DOCS / "api").glob("*.md"):
        found |= set(re.findall(r"^::: (\S+)", path.read_text(encoding="utf-8"), re.MULTILINE))
    return found


def test_every_public_name_is_on_an_api_page() -> None:
    """A new public name needs a line `::: mless_interp.module.Name` in the page of its area, docs/api/*.md."""
    documented = api_blocks()
    module_of = {name: module for module, names in mi.PUBLIC.items() for name in names}
    missing = []
    for name in mi.__all__:
        if name == "__version__":
            continue
        own = getattr(mi, name)
        if isinstance(own, ModuleType):  # itself, or something in it
            defined = own.__name__
            shown = any(block == defined or block.startswith(defined + ".") for block in documented)
        else:
            defined = f"mless_interp.{module_of.get(name, 'running.store')}.{name}"
            shown = bool({defined, f"{own.__module__}.{name}", own.__module__} & documented)
        if not shown:
            missing.append(defined)
    assert missing == []


def test_every_public_name_of_every_room_is_on_an_api_page() -> None:
    documented = api_blocks()
    whole = [importlib.import_module(block) for block in documented if is_module(block)]
    missing = []
    for room in mi.ROOMS:
        module = importlib.import_module(f"mless_interp.{room}")
        for name in getattr(module, "__all__", ()):
            own = getattr(module, name)
            module_of = own.__name__ if isinstance(own, ModuleType) else str(getattr(own, "__module__", None))
            if module_of.startswith("mless_interp"):
                home = module_of if isinstance(own, ModuleType) else f"{module_of}.{name}"
                shown = module_of in documented or any(f"{block}.".startswith(f"{home}.") for block in documented)
                shown = shown or f"mless_interp.{room}.{name}" in documented
            else:  # a constant does not know where it is defined
                shown = any(block.endswith(f".{name}") and room in block for block in documented)
                shown = shown or any(getattr(other, name, None) is own for other in whole)
            if not shown:
                missing.append(f"{room}.{name}")
    assert missing == []


def is_module(dotted: str) -> bool:
    return (ROOT / Path(*dotted.split("."))).is_dir() or (ROOT / Path(*dotted.split("."))).with_suffix(".py").is_file()


def test_every_view_metric_and_statistic_is_on_an_api_page() -> None:
    documented = api_blocks()
    views = {f"mless_interp.views.{module}.{name}" for module, names in mi.views.PUBLIC.items() for name in names}
    modules = {
        f"mless_interp.{folder}.{path.stem}"
        for folder in ("metrics", "statistics")
        for path in (PACKAGE / folder).glob("[a-z]*.py")
    }
    assert (views | modules) - documented == set()


def test_every_block_of_the_api_pages_exists() -> None:
    for block in sorted(api_blocks()):
        found: Any = mi
        for part in block.split(".")[1:]:
            found = getattr(found, part, None) or importlib.import_module(f"{found.__name__}.{part}")
        assert found is not None, block


# -------------------------------------------------------------------------------------------- methods, troubleshooting


def test_methods_defines_every_metric_outcome_edit_and_measure_by_name() -> None:
    from mless_interp.locating.located import MEASURES
    from mless_interp.patching.interventions import INTERVENTIONS
    from mless_interp.patching.outcomes import OUTCOMES
    from mless_interp.prompts.conditions import CONDITIONS
    from mless_interp.scores import METRICS

    text = (DOCS / "methods.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`([a-z_0-9]+)`", text))
    for names in (METRICS, OUTCOMES, INTERVENTIONS, MEASURES, CONDITIONS):
        assert set(names) <= named, set(names) - named


def test_tables_of_conditions_and_contrasts_are_what_the_code_says() -> None:
    """Where one is out of date: python tools/refresh_docs.py tables."""
    pages = {path: path.read_text(encoding="utf-8") for path in DOCS.rglob("*.md")}
    assert [path.name for path, text in pages.items() if with_tables(text) != text] == []
    assert sorted(re.findall(r"<!-- table ([\w ]+) -->", "".join(pages.values()))) == sorted(TABLES)


def test_a_table_that_is_out_of_date_is_written_anew() -> None:
    old = "a\n\n<!-- table contrasts -->\n\n| old |\n\n<!-- end -->\n\nb"
    new = with_tables(old)
    assert new.startswith("a\n\n<!-- table contrasts -->\n\n| contrast | clean run") and new.endswith(
        "\n\n<!-- end -->\n\nb"
    )
    assert "| `content` | `masked` | `inserted` |" in new and "old" not in new


def test_methods_shows_every_identity() -> None:
    from mless_interp.identities import IDENTITIES

    text = (DOCS / "methods.md").read_text(encoding="utf-8")
    assert re.findall(r"^\| (I\d+) \|", text, re.MULTILINE) == [identity.name for identity in IDENTITIES]


def test_sections_that_docstrings_cite_exist() -> None:
    text = (DOCS / "methods.md").read_text(encoding="utf-8")
    sections = set(re.findall(r"^#{2,3} (\d+(?:\.\d+)?)", text, re.MULTILINE))
    first = text.split("## 0. ")[1].split("\n## ")[0]
    sections |= {f"0.{number}" for number in re.findall(r"^(\d+)\. ", first, re.MULTILINE)}
    cited = set()
    for path in PACKAGE.rglob("*.py"):
        cited |= set(re.findall(r"methods (?:§|section )(\d+(?:\.\d+)?)", path.read_text(encoding="utf-8")))
    assert {"3", "8"} <= cited
    assert cited <= sections, cited - sections


def messages(package: Path) -> list[str]:
    """Every text that the code can say, with … for what is filled in."""
    found = []
    for path in package.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.JoinedStr):
                parts = (part.value if isinstance(part, ast.Constant) else "…" for part in node.values)
                found.append("".join(map(str, parts)))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(node.value)
    return [re.sub(r"\s+", " ", text) for text in found]


def quoted() -> list[str]:
    text = (DOCS / "troubleshooting.md").read_text(encoding="utf-8")
    return re.findall(r"^### `(.+)`$", text, re.MULTILINE)


def test_every_message_of_the_troubleshooting_page_is_in_the_code() -> None:
    said = messages(PACKAGE)
    headings = quoted()
    assert len(headings) > 30
    assert [heading for heading in headings if not any(heading in text for text in said)] == []


def test_a_message_that_nobody_says_would_be_found(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text('x = 1\nraise ValueError(f"got {x} and "\n  f"not {x}")\n', encoding="utf-8")
    assert "got … and not …" in messages(tmp_path)
    assert not any("got … or" in text for text in messages(tmp_path))


# --------------------------------------------------------------------------------------------------- commands, outputs


def commands() -> list[tuple[str, str, list[str]]]:
    """(page, script or module, its options) of every command line in the pages and the README."""
    found = []
    for path in [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]:
        for line in path.read_text(encoding="utf-8").splitlines():
            for program, rest in re.findall(r"python (analyses/\w+\.py|-m mless_interp check)((?: [^`#|]*)?)", line):
                found.append((path.name, program, re.findall(r"(?<!\S)--[\w-]+", rest)))
    return found


def test_commands_use_options_that_exist() -> None:
    from typer.main import get_command

    from mless_interp.__main__ import app

    known = {"-m mless_interp check": get_command(app).commands["check"]}
    for path in sorted((ROOT / "analyses").glob("*.py")):
        known[f"analyses/{path.name}"] = get_command(module_of(path).app)
    seen = commands()
    assert {program for _, program, _ in seen} == set(known)
    wrong = []
    for page, program, used in seen:
        options = {name for parameter in known[program].params for name in [*parameter.opts, *parameter.secondary_opts]}
        wrong += [f"{page}: {program} has no {option}" for option in used if option not in options]
    assert wrong == []


@pytest.mark.slow
def test_the_first_page_shows_what_its_example_prints(capsys: pytest.CaptureFixture[str]) -> None:
    text = (DOCS / "index.md").read_text(encoding="utf-8")
    (code,), (shown,) = blocks(text, "python"), blocks(text, "text")
    assert len([line for line in code.splitlines() if line.strip()]) <= 15
    exec(compile(code, "index.md", "exec"), {})
    rows, printed = (table_rows(text) for text in (shown, capsys.readouterr().out))
    assert len(rows) > 10
    assert [row for row in rows if not any(alike(row, other) for other in printed)] == []


def table_rows(text: str) -> list[list[str]]:
    """The words of every line that begins with a head and has numbers of four decimals: wrapped sentences have none."""
    row = re.compile(r"\s*L\d+H\d+ .*\d\.\d{4}")
    return [line.split() for line in text.splitlines() if row.match(line)]


def alike(first: list[str], second: list[str]) -> bool:
    """The same words, and numbers that differ by rounding only (another backend or processor)."""
    number = re.compile(r"[+-]?\d+\.\d+(?:e[+-]\d+)?")

    def close(a: str, b: str) -> bool:
        return a == b or bool(number.fullmatch(a) and number.fullmatch(b) and abs(float(a) - float(b)) < 2e-3)

    return len(first) == len(second) and all(map(close, first, second))


def test_rows_that_differ_would_be_noticed() -> None:
    (row,) = table_rows("text\n L0H2 layer 1 -0.1082 n 16\n")
    assert alike(row, "L0H2 layer 1 -0.1083 n 16".split())
    assert alike(["L0H2", "-4.2e-06"], ["L0H2", "-4.1e-06"])
    others = ("L0H2 layer 1 -0.2 n 16", "L0H3 layer 1 -0.1082 n 16", "L0H2 layer 1 - n 16", "L0H2 layer 1 -0.1082 n")
    assert not any(alike(row, other.split()) for other in others)


@pytest.mark.slow
def test_the_certificate_shown_is_the_one_that_is_printed() -> None:
    pattern = r"^([SI]\d+) +(pass|FAIL|-) +(?:\S+ / \S+)? +(.+)$"
    text = (DOCS / "how-to" / "check-your-model.md").read_text(encoding="utf-8")
    shown, lie = (re.findall(pattern, block, re.MULTILINE) for block in blocks(text, "text"))
    model = mi.load_model("demo")
    certificate = mi.certify_model(model, progress=False)
    if model.info.backend == "hooked_transformer":
        assert re.findall(pattern, repr(certificate), re.MULTILINE) == shown
    assert {name for name, _, _ in lie} == {name for name, _, _ in shown}
    assert {name for name, status, _ in lie if status == "FAIL"} >= {"I0", "I1", "I7", "I8"}


@pytest.mark.slow
def test_the_example_for_agents_runs() -> None:
    (code,) = blocks((ROOT / "AGENTS.md").read_text(encoding="utf-8"), "python")
    exec(compile(code, "AGENTS.md", "exec"), {})


def test_what_agents_are_told_exists() -> None:
    text = (ROOT / "AGENTS.md").read_text(encoding="utf-8")
    names = set(re.findall(r"`mi\.(\w+)", text)) | set(re.findall(r"\bmi\.(\w+)", "".join(blocks(text, "python"))))
    assert len(names) > 15
    assert [name for name in sorted(names - {"NAME"}) if not hasattr(mi, name)] == []
    assert hasattr(mi.statistics, "fewest_problems") and hasattr(mi.statistics, "detectable_prevalence")
    assert [
        path for path in re.findall(r"`((?:analyses|tests|docs)/[\w./]*)", text) if not (ROOT / path).exists()
    ] == []


# ---------------------------------------------------------------------------------------------------- for machines


def test_llms_txt_lists_every_page_once_with_what_is_in_it() -> None:
    """Form: llmstxt.org. A new page needs a line there."""
    text = (ROOT / "llms.txt").read_text(encoding="utf-8")
    assert re.match(r"# mless_interp\n\n> \S", text)
    lines = [line for line in text.splitlines() if line.startswith("- ")]
    links = [re.fullmatch(r"- \[[^\]]+\]\(([\w./-]+)\): \S.+", line) for line in lines]
    assert all(links), [line for line, link in zip(lines, links, strict=True) if link is None]
    pages = [link[1] for link in links]
    assert [page for page in pages if not (ROOT / page).is_file()] == []
    known = [path.relative_to(ROOT).as_posix() for path in DOCS.rglob("*.md")] + ["tutorials/README.md"]
    assert sorted(pages) == sorted(known + [f"tutorials/{path.name}" for path in (ROOT / "tutorials").glob("*.ipynb")])


def test_bibtex_says_what_the_citation_file_says() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    toolkit, paper = blocks((DOCS / "citing.md").read_text(encoding="utf-8"), "bibtex")[0].split("\n\n")
    stated = {name: value.strip("{}") for name, value in re.findall(r"(\w+) += (\{.*\})", toolkit)}
    wanted = citation["preferred-citation"]
    assert stated["title"].replace("\\", "") == wanted["title"]
    assert (stated["version"], stated["year"]) == (wanted["version"], str(wanted["year"]))
    (source,) = citation["references"]
    authors = " and ".join(f"{one['family-names']}, {one['given-names']}" for one in source["authors"])
    for value in (source["title"], authors, str(source["year"]), source["url"], "2510.01032"):
        assert f"{{{value}}}" in paper


# ----------------------------------------------------------------------------------------------------------- the site


@functools.lru_cache(maxsize=1)
def configured() -> str:
    return (ROOT / "mkdocs.yml").read_text(encoding="utf-8")


def test_every_page_has_its_place_in_the_navigation() -> None:
    pages = {path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")} | {"tutorials/README.md"}
    pages |= {f"tutorials/{path.name}" for path in (ROOT / "tutorials").glob("*.ipynb")}
    named = set(re.findall(r"[\w/-]+\.(?:md|ipynb)", configured().split("\nnav:")[1]))
    assert pages == named


def test_the_site_asks_for_nothing_from_elsewhere() -> None:
    settings = yaml.safe_load(configured())
    assert settings["theme"]["font"] is False
    assert not any("repo_url" in key or "analytics" in str(settings.get(key)) for key in settings)
    for name in ("extra_javascript", "extra_css"):
        assert not any("//" in str(entry) for entry in settings.get(name, []))


ASSET = re.compile(
    r"""<(?:script|img|iframe|source|video|audio|embed|object)\b[^>]*?\b(?:src|data|srcset)\s*=\s*["']?((?:https?:)?//[^"'\s>]+)"""
    r"""|<link\b(?=[^>]*\brel\s*=\s*["']?(?:stylesheet|icon|preconnect|preload|prefetch|manifest|modulepreload))"""
    r"""[^>]*?\bhref\s*=\s*["']?((?:https?:)?//[^"'\s>]+)|@import\s+(?:url\()?["']?((?:https?:)?//[^"'\s)]+)""",
    re.IGNORECASE,
)


def fetched_from_elsewhere(site: Path) -> list[str]:
    """Scripts, pictures, styles and frames of a built site that lie on another machine."""
    wrong = []
    for path in [*site.rglob("*.html"), *site.rglob("*.css")]:
        for found in ASSET.finditer(path.read_text(encoding="utf-8")):
            wrong.append(f"{path.relative_to(site)}: {next(group for group in found.groups() if group)}")
    return wrong


def test_an_asset_from_elsewhere_would_be_found(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text(
        '<a href="https://a.org">fine</a><link rel="canonical" href="https://b.org"><img src="c.png">'
        '<script src="https://1.org/x.js"></script><link href="//2.org/x.css" rel="stylesheet">'
        "<style>@import url(https://3.org/f.css)</style><img alt=x src='http://4.org/p.png'>",
        encoding="utf-8",
    )
    assert [line.split(": ")[1] for line in fetched_from_elsewhere(tmp_path)] == [
        "https://1.org/x.js",
        "//2.org/x.css",
        "https://3.org/f.css",
        "http://4.org/p.png",
    ]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built strictly by a Python that has no network."""
    folder = tmp_path_factory.mktemp("docs")
    (folder / "sitecustomize.py").write_text(
        "import socket\n"
        "def refuse(*a, **k): raise OSError('the documentation must build without a network')\n"
        "socket.socket.connect = socket.create_connection = socket.getaddrinfo = refuse\n",
        encoding="utf-8",
    )
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder / "site")]
    environment = {**os.environ, "PYTHONPATH": str(folder), "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "site"


@pytest.mark.slow
def test_the_site_builds_strictly_and_without_a_network(site: Path) -> None:
    assert fetched_from_elsewhere(site) == []
    texts = {path.relative_to(site).as_posix(): path.read_text(encoding="utf-8") for path in site.rglob("*.html")}
    assert [name for name, text in texts.items() if "arithmatex" in text] == [], "every formula is drawn"
    assert texts["methods.html"].count("<math") > 90 and "<math" in texts["api/metrics.html"]
    assert 'href="01_insertions_and_alignment.html"' in texts["tutorials/index.html"], "a notebook is a page here"
    assert (site / "search" / "search_index.js").is_file()


@pytest.mark.slow
def test_llms_txt_of_the_site_links_its_pages(site: Path) -> None:
    links = re.findall(r"\]\(([^)]+)\)", (site / "llms.txt").read_text(encoding="utf-8"))
    assert len(links) > 30 and all(link.endswith(".html") for link in links)
    assert [link for link in links if not (site / link).is_file()] == []


@pytest.mark.slow
def test_letters_are_explained_where_they_stand(site: Path) -> None:
    for page in ("how-to/accuracy.html", "methods.html", "tutorials/04_the_mechanism.html"):
        found = re.search(r'<abbr title="([^"]+)">ARM<', (site / page).read_text(encoding="utf-8"))
        assert found and "Activation Redistribution Module" in found[1], page


FOUND = (
    "[...document.querySelectorAll('.md-search-result__item > a')].map(a => a.href.split('/site/')[1].split(/[?#]/)[0])"
)
INTERNALS = {"architecture.html", "hook-sites.html", "benchmarks.html"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("query", "wanted"),
    [
        ("patch heads", {"how-to/locate-heads.html", "api/patching.html"}),
        ("accuracy", {"how-to/accuracy.html", "api/mechanism.html"}),
        ("load model", {"api/models.html"}),
        ("save", {"api/saving.html"}),
        ("knockout", {"api/patching.html"}),
        ("ARM", {"how-to/the-mechanism.html"}),
    ],
)
def test_search_finds_how_tos_and_api_before_internals(
    site: Path, tmp_path: Path, query: str, wanted: set[str]
) -> None:
    with browser(tmp_path) as running:
        page = running.open(site / "index.html", width=1400)
        page.call("Emulation.setFocusEmulationEnabled", enabled=True)
        page.run("document.querySelector('.md-search__input').focus()")
        page.call("Input.insertText", text=query)
        page.press("ArrowRight")
        page.until(f"{FOUND}.length")
        found = page.run(FOUND)
    assert wanted <= set(found[:3]), found
    assert not INTERNALS & set(found[:5]), found


@pytest.mark.slow
@pytest.mark.parametrize("width", [1400, 390])
def test_every_page_fits_its_window_and_api_pages_are_short(site: Path, tmp_path: Path, width: int) -> None:
    """What is wider than the page scrolls in a box that ends within it."""
    outside = """[...document.querySelectorAll('.md-content :is(p, li, img, pre, .formula, table, h1, h2)')].filter(part => {
        const box = part.closest('.md-typeset__scrollwrap, .output, pre, details:not([open])') ?? part;
        return box.getBoundingClientRect().right > innerWidth + 1;
    }).map(part => part.tagName + ' ' + part.textContent.slice(0, 30))"""
    wrong, long = [], []
    with browser(tmp_path) as running:
        for path in sorted(set(site.rglob("*.html")) - {site / "404.html"}):
            page = running.open(path, width=width)
            name = path.relative_to(site).as_posix()
            if page.run("document.documentElement.scrollWidth") > width or page.run(f"{outside}.length"):
                wrong.append((name, page.run(outside)[:3]))
            if name.startswith("api/") and page.run("document.documentElement.scrollHeight") > 12 * 900 * 1400 / width:
                long.append(name)
            page.call("Page.close")
    assert wrong == [] and long == []


@pytest.mark.slow
def test_an_address_of_a_member_opens_it(site: Path, tmp_path: Path) -> None:
    name = "mless_interp.locating.located.LocatedHeads.summary"
    with browser(tmp_path) as running:
        page = running.open(site / "api" / "locating.html")
        heading = f"document.getElementById('{name}')"
        seen = f"{heading}.parentElement.querySelector('.doc-signature').checkVisibility()"
        assert page.run(seen) is False
        page.run(f"location.hash = '{name}'")
        page.until(seen)
        page.run(f"{heading}.querySelector('.doc-object-name').click()")
        assert page.run(seen) is False


def test_every_word_of_the_flow_picture_lies_in_its_box(tmp_path: Path) -> None:
    over = """[...document.querySelectorAll('text')].filter(text => { const t = text.getBBox();
        return ![...document.querySelectorAll('rect:not(.paper)')].some(rect => { const r = rect.getBBox();
            return t.x > r.x + 1 && t.x + t.width < r.x + r.width - 1
                && t.y > r.y && t.y + t.height < r.y + r.height; });
    }).map(text => text.textContent)"""
    with browser(tmp_path) as running:
        page = running.open(DOCS / "images" / "flow.svg")
        assert page.run("document.querySelectorAll('text').length") > 10
        assert page.run(over) == []


@pytest.mark.slow
def test_a_browser_opens_every_page_shows_every_formula_and_asks_nobody(site: Path, tmp_path: Path) -> None:
    shown = "[...document.querySelectorAll('math')].map(math => math.getBoundingClientRect())"
    with browser(tmp_path) as running:
        for path in sorted(set(site.rglob("*.html")) - {site / "404.html"}):  # that one is for servers only
            page = running.open(path)
            assert page.run(f"{shown}.filter(box => !(box.width && box.height)).length") == 0, path.name
            assert page.errors == [], path.name
            assert [url for url in page.requests if not url.startswith(("file:", "data:", "blob:", "about:"))] == []
            page.call("Page.close")
