"""`spillway demo`: watch the line lose a process or a server, and come back.

Exit codes: 0 all was as told, 1 something was not, 2 wrong use, 3 the environment is unfit.
"""

import os
import time
from typing import Annotated

import typer
from rich.console import Console

from stack.demo_stage import NotSoError, Stage
from stack.demos import DEMOS

app = typer.Typer()

ALL = "all"
EXIT_NOT_SO = 1


@app.command(help=f"Show one of {', '.join(DEMOS)}, or {ALL} of them, on servers of its own in a temporary folder.")
def demo(name: Annotated[str, typer.Argument(help=f"One of: {', '.join(DEMOS)}, {ALL}.")] = ALL) -> None:
    """Play one demonstration or all of them, and exit with 1 when something was not as told."""
    if name not in (*DEMOS, ALL):
        raise typer.BadParameter(f"there is no demonstration {name}; there are: {', '.join(DEMOS)}")
    console = Console(stderr=True)
    names = list(DEMOS) if name == ALL else [name]
    failed = [chosen for chosen in names if not _play(console, chosen)]
    if failed:
        console.print(f"not as told: {', '.join(failed)}", highlight=False)
    raise typer.Exit(EXIT_NOT_SO if failed else 0)


def _play(console: Console, name: str) -> bool:
    chosen, begin_s = DEMOS[name], time.monotonic()
    console.print(f"[bold]{name}[/bold]: {chosen.title}", highlight=False)
    environment = dict(os.environ)  # noqa: TID251 - the composition root of this command
    try:
        with Stage(console, environment) as stage:
            chosen.play(stage)
    except NotSoError as error:
        console.print(f"  [red]✗ not so:[/red] {error}\n", highlight=False)
        return False
    console.print(f"  done in {time.monotonic() - begin_s:.0f} s, nothing is left of it\n", highlight=False)
    return True
