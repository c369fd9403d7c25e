"""The documentation: the site builds strictly and needs no network, names what exists, and quotes what the code says."""

import ast
import importlib.util
import os
import re
import shlex
import subprocess
import sys
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import typer
from conftest import ROOT
from refresh_docs import NAMES, TABLES, blocks, names, with_tables
from typer.main import get_command

import mless_interp as mi
from mless_interp.__main__ import app

DOCS = ROOT / "docs"
PACKAGE = ROOT / "mless_interp"
UNREADABLE: Any = typer.BadParameter.__base__  # what Typer raises; it has no public name


@cache
def module_of(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def test_every_public_name_is_on_an_api_page() -> None:
    """A new public name needs a line `::: mless_interp.module.Name` in the page of its area, docs/api/*.md."""
    pages = "".join(path.read_text(encoding="utf-8") for path in (DOCS / "api").glob("*.md"))
    documented = set(re.findall(r"^::: (\S+)", pages, re.MULTILINE))
    tables, missing = [*mi.PUBLIC.items(), *mi.RESULTS.items()], []
    home = {name: module for module, names in tables for name in names}
    for name in {*mi.__all__, *home} - {"__version__"}:
        own = getattr(mi, name)
        if isinstance(own, ModuleType):  # itself, or something in it
            shown = any(f"{block}.".startswith(f"{own.__name__}.") for block in documented)
        else:
            defined = f"mless_interp.{home.get(name, 'runtime.store')}.{name}"
            shown = bool({defined, f"{own.__module__}.{name}", own.__module__} & documented)
        missing += [] if shown else [name]
    assert missing == []
    views = {f"mless_interp.views.{module}.{name}" for module, names in mi.views.PUBLIC.items() for name in names}
    folders = ("metrics", "statistics")
    modules = {f"mless_interp.{name}.{path.stem}" for name in folders for path in (PACKAGE / name).glob("[a-z]*.py")}
    assert (views | modules) - documented == set()


def test_methods_defines_every_metric_outcome_edit_and_measure_by_name() -> None:
    from mless_interp.circuits.judge import MEASURES
    from mless_interp.ground_truth.identities import IDENTITIES
    from mless_interp.patching.interventions import INTERVENTIONS
    from mless_interp.patching.outcomes import OUTCOMES
    from mless_interp.prompts.conditions import CONDITIONS
    from mless_interp.scores import METRICS

    text = (DOCS / "methods.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`([a-z_0-9]+)`", text))
    for listed in (METRICS, OUTCOMES, INTERVENTIONS, MEASURES, CONDITIONS):
        assert set(listed) <= named, set(listed) - named
    assert re.findall(r"^\| (I\d+) \|", text, re.MULTILINE) == [identity.name for identity in IDENTITIES]


def test_tables_of_conditions_and_contrasts_are_what_the_code_says() -> None:
    """Where one is out of date: python tools/refresh_docs.py tables."""
    pages = {path: path.read_text(encoding="utf-8") for path in DOCS.rglob("*.md")}
    assert [path.name for path, text in pages.items() if with_tables(text) != text] == []
    assert NAMES.read_text(encoding="utf-8") == names()
    assert sorted(re.findall(r"<!-- table ([\w ]+) -->", "".join(pages.values()))) == sorted(TABLES)


def test_sections_that_docstrings_cite_exist() -> None:
    text = (DOCS / "methods.md").read_text(encoding="utf-8")
    sections = set(re.findall(r"^#{2,3} (\d+(?:\.\d+)?)", text, re.MULTILINE))
    code = "".join(path.read_text(encoding="utf-8") for path in PACKAGE.rglob("*.py"))
    cited = set(re.findall(r"methods (?:§|section )(\d+(?:\.\d+)?)", code))
    assert {"3", "8"} <= cited and cited <= sections, cited - sections


def messages(package: Path) -> list[str]:
    """Every text in the code, with … for what is filled in."""
    found = []
    for path in package.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.JoinedStr):
                parts = (part.value if isinstance(part, ast.Constant) else "…" for part in node.values)
                found.append("".join(map(str, parts)))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(node.value)
    return [re.sub(r"\s+", " ", text) for text in found]


def test_every_message_of_the_troubleshooting_page_is_in_the_code() -> None:
    known = messages(PACKAGE)
    page = (DOCS / "troubleshooting.md").read_text(encoding="utf-8")
    quoted = re.findall(r"^- `([^`]+)`: ", page, re.MULTILINE)
    assert len(quoted) > 20
    assert [heading for heading in quoted if not any(heading in text for text in known)] == []


def commands(text: str) -> list[str]:
    """Every command line of the toolkit's own programs in a text: up to a back quote or the end of its line."""
    lines = re.sub(r"\\\n\s*", "", text)
    return re.findall(r"(?:mless-interp|python -m mless_interp|python [\w/]+\.py)(?= |`|$)[^`\n]*", lines, re.MULTILINE)


program_of = cache(get_command)


def refused(command: str) -> str:
    """Why a command line cannot be read as it is written; "" where it can. MODEL, FILE and the like are not looked for."""
    words = shlex.split(command, comments=True)
    if (own := words[0] == "mless-interp") or words[1] == "-m":
        name, *words = words[1 if own else 3 :] or ["--help"]
        program = program_of(app).commands.get(name)
        if program is None:
            return "" if name.startswith("--") else f"no command {name}"
    else:
        script, words = ROOT / words[1], words[2:]
        if not script.is_file():
            return "no such script"
        if "app()" not in script.read_text(encoding="utf-8"):
            return ""
        program = program_of(module_of(script).app)
    try:
        program.make_context("command", words or ["--help"])  # a bare name needs no arguments
    except typer.Exit:  # of --help
        return ""
    except UNREADABLE as error:
        said = str(error.format_message())
        return "" if "there is no " in said else said
    return ""


def test_every_command_that_is_written_down_can_be_read_as_it_is_written() -> None:
    pages = [ROOT / name for name in ("README.md", "AGENTS.md", "Makefile", "CONTRIBUTING.md", "analyses/README.md")]
    pages += [*DOCS.rglob("*.md"), *(ROOT / "tutorials").glob("*.py")]
    written = [(path.name, each) for path in pages for each in commands(path.read_text("utf-8"))]
    assert len(written) > 60
    assert {(at, each): why for at, each in written if (why := refused(each))} == {}
    assert "No such option: --confirmed" in refused("mless-interp locate --confirmed 64")


@pytest.mark.slow
def test_the_first_page_shows_what_its_example_prints(capsys: pytest.CaptureFixture[str]) -> None:
    """The rows of tables: another backend or processor may round their numbers otherwise."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    (code,), (shown,) = blocks(text, "python"), blocks(text, "text")
    exec(compile(code, "README.md", "exec"), {})
    row = re.compile(r"\s*L\d+H\d+ .*(\d\.\d{4}|\d+/\d+)")
    words, printed = (
        [word for line in output.splitlines() if row.match(line) for word in line.split()]
        for output in (shown, capsys.readouterr().out)
    )
    assert words and len(words) == len(printed)
    for a, b in zip(words, printed, strict=True):
        assert a == b or abs(float(a) - float(b)) < 2e-3, (words, printed)


@pytest.mark.slow
def test_the_example_for_agents_runs() -> None:
    (code,) = blocks((ROOT / "AGENTS.md").read_text(encoding="utf-8"), "python")
    exec(compile(code, "AGENTS.md", "exec"), {})


def test_names_that_pages_call_exist() -> None:
    pages = [ROOT / "README.md", ROOT / "AGENTS.md", *DOCS.rglob("*.md")]
    texts = {path.name: path.read_text(encoding="utf-8") for path in pages}
    named, wrong = {(page, name) for page, text in texts.items() for name in re.findall(r"\bmi\.([\w.]+\w)", text)}, []
    for page, name in sorted(named):
        found: Any = mi
        for part in name.split("."):
            found = getattr(found, part, None)
            if found is None and part != "NAME":
                wrong.append(f"{page}: mi.{name}")
                break
            if not isinstance(found, ModuleType | type):
                break
    assert len(named) > 60 and wrong == []


def test_llms_txt_lists_every_page_once_with_what_is_in_it() -> None:
    """Form: llmstxt.org. A new page needs a line there."""
    lines = [line for line in (ROOT / "llms.txt").read_text(encoding="utf-8").splitlines() if line.startswith("- ")]
    links = [re.fullmatch(r"- \[[^\]]+\]\(([\w./-]+)\): \S.+", line) for line in lines]
    assert all(links), [line for line, link in zip(lines, links, strict=True) if link is None]
    known = [path.relative_to(ROOT).as_posix() for path in DOCS.rglob("*.md")] + ["tutorials/README.md"]
    known += [f"tutorials/{path.name}" for path in (ROOT / "tutorials").glob("*.ipynb")]
    assert sorted(link[1] for link in links) == sorted(known)


ASSET = re.compile(
    r"<(?:script|img|iframe|link rel=.?(?:stylesheet|icon|preconnect))\b[^>]*?(?:src|href)=.?(?:https?:)?//"
)
"""Scripts, pictures, styles and frames that lie on another machine."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site as `make docs` builds it, by a Python that has no network."""
    folder = tmp_path_factory.mktemp("docs")
    (folder / "sitecustomize.py").write_text(
        "import socket\n"
        "def refuse(*a, **k): raise OSError('the documentation must build without a network')\n"
        "socket.socket.connect = socket.create_connection = socket.getaddrinfo = refuse\n",
        encoding="utf-8",
    )
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder / "site")]
    paths = os.pathsep.join([str(folder), str(ROOT)])
    environment = {**os.environ, "PYTHONPATH": paths, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "site"


@pytest.mark.slow
def test_the_site_builds_strictly_and_without_a_network(site: Path) -> None:
    texts = {path.relative_to(site).as_posix(): path.read_text(encoding="utf-8") for path in site.rglob("*.html")}
    assert [name for name, text in texts.items() if ASSET.search(text)] == []
    assert [name for name, text in texts.items() if "arithmatex" in text] == [], "every formula is drawn"
    assert texts["methods.html"].count("<math") > 90 and "<math" in texts["api/metrics.html"]
    assert 'href="01_insertions_and_alignment.html"' in texts["tutorials/index.html"], "a notebook is a page here"
    assert "Activation Redistribution Module" in re.search(r'<abbr title="([^"]+)">ARM<', texts["methods.html"])[1]
    links = re.findall(r"\]\(([^)]+)\)", (site / "llms.txt").read_text(encoding="utf-8"))
    assert len(links) > 30 and [link for link in links if not (site / link).is_file()] == []
