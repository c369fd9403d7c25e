"""`mless-interp`, which is `python -m mless_interp`: every analysis, a certificate for a model, a run's page made again."""

from importlib import import_module

import typer

from .app import COMMANDS, check_plan_compare, run_folder
from .app.command_line import Command, of_options, one_line_errors

app = typer.Typer(add_completion=False, rich_markup_mode=None, no_args_is_help=True)


@app.callback()
def about() -> None:
    """What meaningless tokens do inside language models, and through which attention heads."""


for _name, _file in COMMANDS.items():
    (_command,) = import_module(f"mless_interp.app.{_file}").app.registered_commands
    app.command(_name, cls=Command)(_command.callback)
for _single in (
    of_options(check_plan_compare.check, check_plan_compare.Checking),
    of_options(check_plan_compare.plan, check_plan_compare.Planning, without=check_plan_compare.NOT_PLANNED),
    run_folder.report,
    check_plan_compare.compare,
):
    app.command(cls=Command)(one_line_errors(_single))


if __name__ == "__main__":
    app()
