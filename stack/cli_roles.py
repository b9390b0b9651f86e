"""The commands that are the product's processes: each runs in the foreground until SIGTERM or SIGINT.

Invariant: only the role asked for is imported; a worker loads no web framework and the API no image library.
"""

from collections.abc import Callable
from importlib import import_module
from typing import Any

import typer
from pydantic import ValidationError

from app.core.settings import Settings, load_settings
from stack.cli_settings import own_environment, unknown_variables, wrong_settings
from stack.errors import EnvironmentUnfitError

app = typer.Typer()

EXIT_WRONG_USE = 2


@app.command()
def api() -> None:
    """Serve HTTP (SPILLWAY_API_HOST, _PORT, _PROCESSES)."""
    _run("app.main", "run_api")


@app.command()
def relay() -> None:
    """Carry accepted jobs from the outbox to the broker."""
    _run("worker.main", "run_relay")


@app.command()
def worker() -> None:
    """Work jobs off (SPILLWAY_WORKER_CONCURRENCY, _PREFETCH)."""
    _run("worker.main", "run_worker")


@app.command()
def janitor() -> None:
    """Rescue expired leases and lost messages, and clean up."""
    _run("worker.main", "run_janitor")


@app.command()
def migrate() -> None:
    """Bring the database (SPILLWAY_DATABASE_URL) to the newest schema."""
    _call("app.core.migrate", "migrate", lambda settings: settings.database_url.get_secret_value())


def checked_settings() -> Settings:
    """Return the settings of the environment, or end with exit code 2 and a line for each variable that is wrong."""
    if unknown := unknown_variables(own_environment(), settings=Settings.model_fields):
        typer.echo(f"spillway: nobody reads {', '.join(unknown)} (.env.example has all names)", err=True)
    try:
        return load_settings()
    except ValidationError as error:
        lines = wrong_settings(error.errors(include_url=False, include_input=False))
        typer.echo("\n  ".join(["spillway: wrong settings", *lines]), err=True)
        raise typer.Exit(EXIT_WRONG_USE) from None


def _run(module: str, function: str) -> None:
    raise typer.Exit(_call(module, function, lambda settings: settings) or 0)


def _call(module: str, function: str, argument: Callable[[Any], object]) -> Any:
    settings = checked_settings()
    try:
        return getattr(import_module(module), function)(argument(settings))
    except OSError as error:
        raise EnvironmentUnfitError(f"a server cannot be reached: {error}") from error
