"""What belongs to the project but is no code (pins, citation, links, commands), and what the tests share."""

import os
import re
import subprocess
import tomllib
from importlib.metadata import version

import jaxtyping
import pytest
import yaml
from beartype.roar import BeartypeCallHintViolation
from conftest import ROOT
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import mless_interp as mi
from mless_interp.core.arguments import count_of
from mless_interp.metrics.attention import span_mass

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
CONSTRAINTS = {"constraints.txt": "3.9.0", "constraints-tl4.txt": "4.3.0"}


def pins(name: str) -> dict[str, str]:
    lines = (ROOT / name).read_text(encoding="utf-8").splitlines()
    found = {}
    for line in lines:
        if line and not line.startswith("#"):
            matched = re.fullmatch(r"([\w.-]+)==([\w.]+)", line)
            assert matched, f"{name}: {line!r} is not name==version (no local versions, paths or addresses)"
            found[canonicalize_name(matched[1])] = matched[2]
    return found


def test_the_two_environments_and_all_papers_state_one_version() -> None:
    first, second = (pins(name) for name in CONSTRAINTS)
    assert (first.pop("transformer-lens"), second.pop("transformer-lens")) == tuple(CONSTRAINTS.values())
    assert first == second
    assert mi.__version__ == version("mless_interp") == PROJECT["version"]
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert PROJECT["version"] in re.findall(r"^## (.+)$", changes, re.MULTILINE)[0]


@pytest.mark.parametrize("name", CONSTRAINTS)
def test_constraints_pin_every_dependency_within_its_range(name: str) -> None:
    pinned = pins(name)
    for line in PROJECT["dependencies"] + PROJECT["optional-dependencies"]["dev"]:
        needed = Requirement(line)
        assert canonicalize_name(needed.name) in pinned
        assert needed.specifier.contains(pinned[canonicalize_name(needed.name)])


def test_citation_names_this_toolkit_and_the_paper() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["cff-version"] == "1.2.0"
    assert citation["title"] == citation["preferred-citation"]["title"]
    assert citation["version"] == citation["preferred-citation"]["version"] == PROJECT["version"]
    (paper,) = citation["references"]
    assert paper["identifiers"] == [{"type": "other", "value": "arXiv:2510.01032"}]


def test_make_alone_prints_every_target_and_documents_name_no_others() -> None:
    outside = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}  # of `make test`
    printed = subprocess.run(["make"], cwd=ROOT, env=outside, capture_output=True, text=True, check=True).stdout
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = re.search(r"^\.PHONY: (.+)$", text, re.MULTILINE)[1].split()
    assert [line.split()[1] for line in printed.splitlines()] == targets
    for document in ("README.md", "CONTRIBUTING.md", "AGENTS.md", ".ci/run"):
        named = re.findall(r"(?:`|^\s*|\$ )make ([a-z][a-z0-9-]*)", (ROOT / document).read_text(encoding="utf-8"), re.M)
        assert set(named) <= set(targets), document


def test_types_and_shapes_are_checked_in_every_test() -> None:
    with pytest.raises(BeartypeCallHintViolation):
        count_of("no number", "head")
    with pytest.raises(jaxtyping.TypeCheckError, match="checking the parameters"):
        span_mass("no tensor", span=None)
