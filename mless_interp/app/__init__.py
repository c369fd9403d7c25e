"""The commands of `mless-interp`, one in each file: its options, what is computed, how the kept results are shown.

`compute` gives results, `present` makes files and a page of what was kept of them and nothing else, so that a finished (or
half finished) folder can be shown again without model. Each is found under its name when it is first asked for.
"""

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
}
"""What follows `mless-interp` -> the file of this folder, and the script of `analyses/`, that holds it."""

__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    [*COMMANDS.values(), "certify", "command_line", "compare_runs", "endings", "plan", "planned", "run_folder"],
)
