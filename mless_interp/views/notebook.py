"""Pictures and views in the middle of a notebook's cell: shown when the cell has run, unless they were shown or saved."""

import sys
from typing import Any


def show_after_cell(made: Any) -> None:
    """Outside a notebook nothing. In one, `made` shows itself after its cell if that ended well and `made.seen` is still empty.

    As matplotlib's own figures do; a cell shows its last line's value anyway, and nothing twice.
    """
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    if shell is None or not hasattr(shell, "kernel"):
        return

    def show(result: Any) -> None:
        shell.events.unregister("post_run_cell", show)
        if not made.seen and result.success:
            from IPython.display import display

            display(made)

    shell.events.register("post_run_cell", show)
