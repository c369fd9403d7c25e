"""Make the notebooks in tutorials/ from their percent-format sources: run every cell, keep the outputs.

    python tools/build_notebooks.py            # all
    python tools/build_notebooks.py 01 03      # those whose name starts so

A cell tagged `skip-execution` (`# %% tags=["skip-execution"]`) is shown and not run.
"""

import sys
import time
from pathlib import Path

import jupytext
import nbformat
from nbclient import NotebookClient

TUTORIALS = Path(__file__).parent.parent / "tutorials"
SECONDS_PER_NOTEBOOK = 120


def sources() -> list[Path]:
    """The tutorials' sources in order."""
    return sorted(TUTORIALS.glob("[0-9][0-9]_*.py"))


def executed(source: Path, folder: Path, *, timeout: float = 3 * SECONDS_PER_NOTEBOOK) -> nbformat.NotebookNode:
    """The notebook of a source with its outputs; raises `nbclient.exceptions.CellExecutionError` where a cell fails.

    Without what changes from run to run or names this machine (times, cell ids, kernel versions), and without stderr:
    progress and warnings of a run say nothing to a reader.
    """
    notebook = jupytext.read(source)
    NotebookClient(
        notebook,
        timeout=timeout,
        kernel_name="python3",
        record_timing=False,
        coalesce_streams=True,
        resources={"metadata": {"path": folder}},
    ).execute()
    notebook.metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    for number, cell in enumerate(notebook.cells):
        cell.id = f"cell-{number}"
        cell.metadata.pop("lines_to_next_cell", None)
        if cell.cell_type == "code":
            cell.outputs = [out for out in cell.outputs if out.get("name") != "stderr"]
    return notebook


def main(names: list[str]) -> None:
    """Build what was asked for."""
    chosen = [path for path in sources() if path.name.startswith(tuple(names or [""]))]
    if not chosen:
        sys.exit(f"no tutorial of {[path.name for path in sources()]} begins with any of {names}")
    for source in chosen:
        began = time.perf_counter()
        target = source.with_suffix(".ipynb")
        nbformat.write(executed(source, TUTORIALS), target)
        print(f"{target.name}: {time.perf_counter() - began:.0f} s, {target.stat().st_size / 1e6:.2f} MB", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
