"""`mless-interp report`: pictures, tables and page of a run's saved results, without model or computing."""

from pathlib import Path
from typing import Annotated

from typer import Argument

from ..command_line import plain_warnings
from .kept import present_again


def report(
    folder: Annotated[Path, Argument(metavar="DIR", help="The --out of a run, finished or not.")],
) -> None:
    """Make pictures, tables and report.html again from what a run computed and kept.

    Nothing is computed and no model is loaded. DIR is the --out of a run; where its pictures could not be made (an error in
    one, a full disk), they are made now, and DIR appears.
    """
    with plain_warnings():
        present_again(folder)
