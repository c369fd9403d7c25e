"""Make the notebooks in tutorials/ from their percent-format sources: run every cell, keep the outputs.

    python tools/build_notebooks.py            # all
    python tools/build_notebooks.py 01 03      # those whose name starts so
    python tools/build_notebooks.py --into DIR # elsewhere (the tests do this)

A cell tagged `not-executed` (`# %% tags=["not-executed"]`) is shown and not run.
"""

import argparse
import sys
import time
from pathlib import Path
from typing import Any

import jupytext
import nbformat
from nbclient import NotebookClient

TUTORIALS = Path(__file__).parent.parent / "tutorials"
NOT_EXECUTED = "not-executed"
SECONDS_PER_NOTEBOOK = 120


def sources() -> list[Path]:
    """The tutorials' sources in order."""
    return sorted(TUTORIALS.glob("[0-9][0-9]_*.py"))


def executed(source: Path, folder: Path, *, timeout: float = 3 * SECONDS_PER_NOTEBOOK) -> Any:
    """The notebook of a source with its outputs; raises `nbclient.exceptions.CellExecutionError` where a cell fails."""
    notebook = jupytext.read(source)
    whole = list(notebook.cells)
    notebook.cells = [cell for cell in whole if NOT_EXECUTED not in cell.metadata.get("tags", ())]
    client = NotebookClient(notebook, timeout=timeout, kernel_name="python3", resources={"metadata": {"path": folder}})
    client.execute()
    notebook.cells = whole
    return _plain(notebook)


def _plain(notebook: Any) -> Any:
    """Without what changes from run to run or names this machine: times, cell ids, kernel versions."""
    notebook.metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    for number, cell in enumerate(notebook.cells):
        cell.id = f"cell-{number}"
        cell.metadata = {key: cell.metadata[key] for key in ("tags",) if key in cell.metadata}
        # progress and warnings of a run say nothing to a reader
        if cell.cell_type == "code":
            cell.outputs = [out for out in cell.outputs if out.get("name") != "stderr"]
    return notebook


def main() -> int:
    """Build what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="beginnings of names; default all")
    parser.add_argument("--into", type=Path, default=TUTORIALS, help="folder of the notebooks (default tutorials/)")
    options = parser.parse_args()
    chosen = [path for path in sources() if not options.names or path.name.startswith(tuple(options.names))]
    if not chosen:
        print(f"no tutorial of {[path.name for path in sources()]} begins with any of {options.names}")
        return 2
    options.into.mkdir(parents=True, exist_ok=True)
    for source in chosen:
        began = time.perf_counter()
        notebook = executed(source, options.into)
        target = options.into / f"{source.stem}.ipynb"
        nbformat.write(notebook, target)
        print(f"{target.name}: {time.perf_counter() - began:.0f} s, {target.stat().st_size / 1e6:.2f} MB", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
