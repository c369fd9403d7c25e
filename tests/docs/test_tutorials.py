"""The tutorials run, and the published notebooks are what their sources say."""

import json
from pathlib import Path
from typing import Any

import jupytext
import nbformat
import pytest
from build_notebooks import SECONDS_PER_NOTEBOOK, executed, sources

SOURCES = sources()
LARGEST = 3_000_000
"""Bytes of a published notebook."""


def code(notebook) -> list[tuple[str, str]]:
    return [(cell.cell_type, cell.source.strip()) for cell in notebook.cells]


@pytest.mark.slow
@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.stem)
def test_a_tutorial_runs_from_its_source(source: Path, tmp_path: Path, request: Any, monkeypatch: Any) -> None:
    if source.stem.startswith("08"):  # its weights are not part of the project
        folder = request.getfixturevalue("shared_dir") / "models" / "published" / "palindromes"
        if not folder.is_dir():
            pytest.skip(f"{folder} is absent")
        monkeypatch.setenv("PALINDROMES", str(folder))
    notebook = executed(source, tmp_path, timeout=4 * SECONDS_PER_NOTEBOOK)  # two processes share the cores here
    ran = [cell for cell in notebook.cells if cell.cell_type == "code" and cell.execution_count]
    assert len(ran) >= 4 and any(cell.outputs for cell in ran)


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.stem)
def test_the_published_notebook_is_the_source_with_outputs(source: Path) -> None:
    target = source.with_suffix(".ipynb")
    assert target.exists(), f"make it with: python tools/build_notebooks.py {source.stem[:2]}"
    published = nbformat.read(target, as_version=4)
    assert code(published) == code(jupytext.read(source)), "the source has changed: build the notebook again"
    for cell in published.cells:
        if cell.cell_type == "code" and "skip-execution" not in cell.metadata.get("tags", ()):
            assert cell.execution_count, f"not executed: {cell.source[:60]}"
            assert not [out for out in cell.outputs if out.output_type == "error"]
    assert target.stat().st_size < LARGEST
    text = json.dumps(published)
    assert "/home/" not in text and "/work/" not in text and "/tmp/" not in text, (
        "an output names a path of one machine"
    )
