"""The commands of `mless-interp`, an analysis in each file: its options, what is computed, how the kept results are shown.

`compute` gives results, `present` makes files and a page of what was kept of them and nothing else, so that a finished (or
half finished) folder can be shown again without model. Each is found under its name when it is first asked for.
"""

from pathlib import Path

import lazy_loader

COMMANDS = {
    "locate": "patch_heads",
    "profiles": "head_profiles",
    "mechanism": "mechanism",
    "accuracy": "accuracy",
    "figures": "reproduce_figures",
    "dose": "dose_response",
    "study": "study",
    "circuit": "circuit",
    "read-span": "read_span",
}
"""What follows `mless-interp` -> the file of this folder, and the script of `analyses/`, that holds it."""
INCLUDED = {path.stem: path for path in sorted((Path(__file__).parent / "included").glob("*.toml"))}
"""The studies that the package includes, by name."""

__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__, [*COMMANDS.values(), "check_plan_compare", "command_line", "estimates", "run_folder"]
)
