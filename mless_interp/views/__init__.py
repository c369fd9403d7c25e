"""Pictures and pages of results; each is made when asked for, so that importing this loads no plotting library."""

import sys
from typing import Any

import lazy_loader

from ..core.arguments import checked

PUBLIC = {
    "maps": ["head_map", "path_graph", "site_map", "span_map"],
    "forests": ["forest", "study_effects", "summary_plot"],
    "lines": ["circuit_curve", "compare_profiles", "dose_response", "profiles"],
    "bars": ["accuracy_bars", "activation_histograms", "bars_of_models", "direct_bars"],
    "circuitsvis": ["attention"],
}
_loaded, __dir__, __all__ = lazy_loader.attach(__name__, ["draw"], PUBLIC)


def __getattr__(name: str) -> Any:
    """Return a module of this room, or a view that refuses results of another kind."""
    found = _loaded(name)
    if callable(found):
        found = checked(found)
        setattr(sys.modules[found.__module__], name, found)  # pickle looks for it where it was made
    globals()[name] = found  # in place of what lazy_loader keeps there
    return found


def show_after_cell(made: Any) -> None:
    """In a notebook, let `made` show itself after its cell if that ended well and `made.seen` is still empty."""
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
