"""The command `spillway`. Invariant: a command loads only what it needs, so that roles start fast.

Exit codes: 0 done, 1 the thing asked about is not so, 2 wrong use, 3 the environment is unfit. Machine-readable
output goes to standard output with `--json`, everything else to standard error.
"""

import sys
from importlib import import_module
from typing import Any

import typer
from typer.core import TyperGroup

from stack.errors import EnvironmentUnfitError

EXIT_NOT_SO = 1
EXIT_UNFIT = 3

#: Command -> the module whose `app` defines it, in the order of the help.
COMMANDS: dict[str, str] = {
    "up": "stack.cli_local",
    "down": "stack.cli_local",
    "status": "stack.cli_local",
    "api": "stack.cli_roles",
    "relay": "stack.cli_roles",
    "worker": "stack.cli_roles",
    "janitor": "stack.cli_roles",
    "migrate": "stack.cli_roles",
    "token": "stack.cli_tokens",
    "submit": "stack.cli_submit",
    "jobs": "stack.cli_versions",
    "bench": "stack.cli_bench",
    "chaos": "stack.cli_chaos",
    "doctor": "stack.cli_doctor",
    "demo": "stack.cli_demo",
}


class LazyCommands(TyperGroup):
    """Finds a command in its module when it is asked for."""

    def list_commands(self, _context: Any) -> list[str]:
        """Return the names for the help."""
        return list(COMMANDS)

    def get_command(self, _context: Any, name: str) -> Any:
        """Return the command, or None when there is none of this name."""
        if name not in COMMANDS:
            return None
        group: Any = typer.main.get_group(import_module(COMMANDS[name]).app)
        return group.commands[name]


app = typer.Typer(
    cls=LazyCommands,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
def spillway() -> None:
    """Image uploads accepted only when durably kept, refused honestly under overload, processed once in effect."""


def main() -> None:
    """Run one command and exit with its code."""
    try:
        app()
    except EnvironmentUnfitError as error:
        sys.stderr.write(f"spillway: {error}\n")
        sys.exit(EXIT_UNFIT)


if __name__ == "__main__":
    main()
