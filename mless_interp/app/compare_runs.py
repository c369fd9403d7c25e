"""`mless-interp compare`: finished runs of one analysis side by side: other models, insertions, lengths."""

import os
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option

from ..runtime.text_safety import WIDTH, one_line
from .command_line import WHERE, plain_warnings, repeat_command, tell


def compare(
    folders: Annotated[list[Path], Argument(metavar="DIR DIR ...", help="The --out of two or more finished runs.")],
    out: Annotated[Path | None, Option(help="Folder for compare.csv and heads.csv; without it only text.")] = None,
    report: Annotated[bool, Option("--report", help="With --out: also write report.html.")] = False,
    overwrite: Annotated[bool, Option("--overwrite", help="Replace an existing folder.")] = False,
) -> None:
    """Compare finished runs of one analysis: of several models, insertions or lengths.

    Runs of locate (or sweeps): the total effect, and every head that a run names, with its verdict and its number of
    problems. Runs of accuracy: the share of right answers under each treatment. Nothing is computed again and no model is
    loaded; each run is judged by its own problems, and no test is made between runs.
    """
    there = [Path(os.path.realpath(folder)) for folder in folders]
    if len(set(there)) < len(folders) or len(folders) < 2:
        raise ValueError("compare takes two or more folders of finished runs, each once")
    if out is not None and any(Path(os.path.realpath(out)).is_relative_to(folder) for folder in there):
        raise ValueError(f"--out {str(out)!r} is one of the compared runs, or inside one: choose another folder")
    if report and out is None:
        raise ValueError("--report needs --out, the folder where the page goes")
    from ..runtime.columns import TextTable
    from ..runtime.results import ROWS
    from ..runtime.store import new_folder, provenance
    from ..runtime.tables import Table
    from .run_folder import MOST_LINES, read
    from .runs_compared import compare_runs

    with plain_warnings():
        runs = dict(zip(_names(there), map(read, folders), strict=True))
        found = compare_runs({name: kept.results for name, kept in runs.items()})
        differ = _differing({name: kept.options for name, kept in runs.items()})
        heads = found.heads()
        said = found.lines() if heads.empty else textwrap.wrap(one_line(found.headline()), WIDTH)
        for table in (heads.head(ROWS), differ.head(ROWS)):
            said += TextTable.of(table, "").lines() if len(table) else []
        tell("\n".join(said[:MOST_LINES]))
        if out is None:
            return
        files = {"compare.csv": found.table(), **({} if heads.empty else {"heads.csv": heads})}
        with new_folder(out, overwrite=overwrite) as made:
            for name, table in files.items():
                Table(table).to_csv(made / name, index=False)
            if report:
                facts = provenance(None, repeat=repeat_command(), analysis="compare", folders=list(map(str, folders)))
                _page(found, folders, differ).provenance(facts).save(made / "report.html")
        tell(one_line(f"Results: {out}/{', '.join([*files, *['report.html'] * report])}"))


def _differing(options: dict[str, dict[str, Any]]) -> Any:
    """The options on which numbers depend and that are not the same in all runs: a row each, a column per run."""
    import pandas as pd

    names = [name for name in dict.fromkeys(each for own in options.values() for each in own) if name not in WHERE]
    differing = [name for name in names if len({str(own.get(name)) for own in options.values()}) > 1]
    columns = {run: [str(own.get(name)) for name in differing] for run, own in options.items()}
    return pd.DataFrame({"option": [f"--{name.replace('_', '-')}" for name in differing], **columns}, dtype=object)


def _names(folders: Sequence[Path]) -> list[str]:
    """What runs are called: the last part of their folders' names that tells all of them, and tables' own columns, apart."""
    for length in range(1, 1 + max(len(folder.parts) for folder in folders)):
        names = [Path(*folder.parts[-length:]).as_posix() for folder in folders]
        if len({*names, "head", "named in", "option"}) == len(names) + 3:
            break
    return names


def _page(found: Any, folders: Sequence[Path], differ: Any) -> Any:
    from ..views.report import Report

    question = f"What do the runs in {', '.join(map(str, folders))} say side by side?"
    page = Report("Runs compared", question=question, answer=found.headline()).result(found, heading="Side by side")
    own = {name: "" if name == "option" else name for name in differ.columns}  # a run's name as it is
    return page if differ.empty else page.table(differ, "Options in which the runs differ.", columns=own)
