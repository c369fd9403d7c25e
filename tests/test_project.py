"""What belongs to the project but is no code (pins, citation, links, commands), and what the tests share."""

import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import browser
import jaxtyping
import pytest
import torch
import yaml
from checked_types import checked
from conftest import ARCHITECTURES, ROOT
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from transformers import AutoModelForCausalLM, AutoTokenizer

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
    import mless_interp

    first, second = (pins(name) for name in CONSTRAINTS)
    assert (first.pop("transformer-lens"), second.pop("transformer-lens")) == tuple(CONSTRAINTS.values())
    assert first == second
    assert mless_interp.__version__ == version("mless_interp") == PROJECT["version"]
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


def broken_links(folder: Path) -> list[str]:
    """The links that `make check` would refuse, by the project's settings."""
    program = Path(sys.executable).with_name("rumdl")
    command = [program, "check", "--no-cache", "--config", ROOT / "pyproject.toml", "--output-format", "json", "."]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    return [f"{found['file']}: {found['message']}" for found in json.loads(done.stdout)]


def test_all_links_lead_somewhere() -> None:
    assert broken_links(ROOT) == []


def test_broken_links_are_found(tmp_path: Path) -> None:
    (tmp_path / "b.md").write_text("# One `two`, three!\n")
    (tmp_path / "a.md").write_text(
        "[ok](b.md#one-two-three) [1](none.md) [2](b.md#nowhere) [3](#none) ![4](none.png)\n"
    )
    assert len(broken_links(tmp_path)) == 4


def test_make_alone_prints_every_target_and_documents_name_no_others() -> None:
    outside = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}  # of `make test`
    printed = subprocess.run(["make"], cwd=ROOT, env=outside, capture_output=True, text=True, check=True).stdout
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = re.search(r"^\.PHONY: (.+)$", text, re.MULTILINE)[1].split()
    assert [line.split()[1] for line in printed.splitlines()] == targets
    for document in ("README.md", "CONTRIBUTING.md", "AGENTS.md", ".ci/run"):
        named = re.findall(r"(?:`|^\s*|\$ )make ([a-z][a-z0-9-]*)", (ROOT / document).read_text(encoding="utf-8"), re.M)
        assert set(named) <= set(targets), document


def test_shapes_are_checked_in_every_test() -> None:
    from mless_interp.metrics.attention import span_mass

    with pytest.raises(jaxtyping.TypeCheckError, match="checking the parameters"):
        span_mass("no tensor", span=None)


def test_a_nested_function_is_checked_by_its_own_types_whenever_it_is_made() -> None:
    """The check of one that was made before serves again, unless a type differs."""

    def made(kind: type) -> Any:
        def same(value: kind) -> kind:
            return value

        return jaxtyping.jaxtyped(typechecker=checked)(same)

    for kind, right, wrong in 2 * ((int, 1, "1"), (str, "1", 1)):
        assert made(kind)(right) == right
        with pytest.raises(jaxtyping.TypeCheckError, match="checking the parameters"):
            made(kind)(wrong)


def test_without_a_browser_a_test_is_skipped_or_where_one_is_required_fails(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("MLESS_BROWSER", raising=False)
    with pytest.raises(pytest.skip.Exception, match="no headless browser here .* `make browser` installs one"):
        browser.chromium()
    monkeypatch.setenv("MLESS_BROWSER", "required")
    with pytest.raises(pytest.fail.Exception, match="no headless browser here"):
        browser.chromium()


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_tiny_model_is_small_loads_and_attends_unevenly(
    architecture: str, tiny_model_dir: Callable[[str], Path]
) -> None:
    folder = tiny_model_dir(architecture)
    assert sum(file.stat().st_size for file in folder.iterdir()) < 1e6
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager", dtype=torch.float32)
    text = "You are a helpful assistant. Anna has 12 apples / / ?"
    ids = tokenizer(text)["input_ids"]
    assert (tokenizer.bos_token_id is None) == (architecture == "qwen2")
    assert (ids[0] == tokenizer.bos_token_id) == (architecture != "qwen2")
    assert len(tokenizer(" /", add_special_tokens=False)["input_ids"]) == 1
    with torch.no_grad():
        out = model(torch.tensor([ids]), output_attentions=True)
    entropy = torch.stack([-(a[0, :, -1] * a[0, :, -1].clamp_min(1e-9).log()).sum(-1) for a in out.attentions])
    n_visible = torch.tensor([a[0, 0, -1].count_nonzero() for a in out.attentions])
    assert (entropy.mean(-1) < 0.95 * n_visible.log()).all()
    assert 0.5 < out.logits[0, -1].std() < 5


def test_a_notebook_offers_what_a_researcher_uses_and_the_rest_is_there_all_the_same() -> None:
    import mless_interp as mi

    offered = set(dir(mi))
    assert {"load_model", "locate_heads", "save", "views", "metrics"} <= offered
    assert not {"commands", "running", "models", "LocatedHeads"} & offered
    assert mi.models.__name__ == "mless_interp.models" and isinstance(mi.LocatedHeads, type)
