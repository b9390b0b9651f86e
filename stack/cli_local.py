"""The commands that start, stop and show the local stack."""

import json
import os
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from stack.cli_roles import checked_settings
from stack.detach import up_detached
from stack.launcher import API_PORT_DEFAULT, Launcher, UpOptions
from stack.launcher import down as bring_down
from stack.roles import Roles
from stack.servers import Servers
from stack.status import StackStatus, stack_status
from stack.up_view import UpView, show_ready

app = typer.Typer()

DATA_DEFAULT = Path("data")

_MIB = 1024 * 1024

DataOption = Annotated[
    Path, typer.Option("--data", file_okay=False, help="Folder of the stack's data, logs and state.")
]


@app.command()
def up(
    *,
    detach: Annotated[bool, typer.Option("--detach", help="Return when everything is ready.")] = False,
    data: DataOption = DATA_DEFAULT,
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port of the API.")] = API_PORT_DEFAULT,
    api_processes: Annotated[int, typer.Option(min=1, max=64, help="Processes of the API.")] = 1,
    workers: Annotated[int, typer.Option(min=0, max=64, help="Worker processes.")] = 1,
) -> None:
    """Start servers and roles, and keep them running until Ctrl-C or `spillway down`."""
    console = Console(stderr=True)
    checked_settings()  # before any server is started for roles that would refuse them
    options = UpOptions(folder=data, port=port, api_processes=api_processes, workers=workers)
    if detach:
        with console.status("starting") as line:
            state = up_detached(options, progress=lambda text: line.update(text or "starting"))
        console.print(f"ready: {state.url} (`spillway status` shows more)", highlight=False)
        if not state.url.endswith(f":{port}"):
            console.print(f"It ran already, so port {port} is not used: `spillway down` it first.", highlight=False)
        return
    _run(console, options)


@app.command()
def down(*, data: DataOption = DATA_DEFAULT) -> None:
    """Stop the stack; its data stay. Nothing happens when it does not run."""
    ended = bring_down(data)
    text = f"down ({ended} processes that a crash had left were ended)" if ended else "down"
    Console(stderr=True).print(text, highlight=False)


@app.command()
def status(
    *,
    data: DataOption = DATA_DEFAULT,
    as_json: Annotated[bool, typer.Option("--json", help="Print an object on standard output.")] = False,
) -> None:
    """Show what runs; exit code 1 unless everything does."""
    found = stack_status(data)
    if as_json:
        typer.echo(json.dumps(found.as_dict()))
    else:
        _show(Console(stderr=True), found)
    raise typer.Exit(0 if found.running else 1)


def _run(console: Console, options: UpOptions) -> None:
    environment = dict(os.environ)  # noqa: TID251 - the composition root: from here on it is passed
    with UpView(console) as view:

        def on_ready(servers: Servers, roles: Roles) -> None:
            view.close()
            show_ready(console, servers, roles)

        Launcher(options, environment, progress=view).run(on_ready)


def _show(console: Console, found: StackStatus) -> None:
    table = Table(box=None)
    for heading, justify in (("process", "left"), ("pid", "right"), ("port", "right"), ("MiB", "right")):
        table.add_column(heading, justify="right" if justify == "right" else "left")
    table.add_column("alive")
    for process in found.processes:
        mib = f"{process.rss_bytes / _MIB:.0f}"
        table.add_row(process.name, str(process.pid), str(process.port or ""), mib, "yes" if process.alive else "NO")
    console.print(table, highlight=False)
    console.print(f"{'running' if found.running else 'not running'}: {found.data} {found.url}", highlight=False)
