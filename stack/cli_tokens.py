"""`spillway token`: bearer tokens of a stack's database, or of the one that SPILLWAY_DATABASE_URL names.

Invariant: a token's secret is printed once, when it is made, and kept nowhere.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated
from uuid import UUID

import typer

from app.core.postgres import Database, DatabaseUnavailableError, open_database, pool_settings
from app.core.settings import Settings
from app.core.telemetry import configure_logs
from app.core.tokens import Scope, TokenEntry, TokenStore
from stack.cli_roles import checked_settings
from stack.cli_settings import own_environment
from stack.errors import EnvironmentUnfitError
from stack.state import StateFile

app = typer.Typer()
token = typer.Typer(no_args_is_help=True, help="Make, list and revoke bearer tokens.")
app.add_typer(token, name="token")

DATA_DEFAULT = Path("data")
DATABASE_VARIABLE = "SPILLWAY_DATABASE_URL"

_CONNECTIONS = 2

#: As the database has it.
OWNER_CHARACTERS_MAX = 200


def _owner(name: str) -> str:
    if not 1 <= len(name) <= OWNER_CHARACTERS_MAX or not name.isprintable():
        raise typer.BadParameter(f"an owner's name has 1 to {OWNER_CHARACTERS_MAX} printable characters")
    return name


DataOption = Annotated[
    Path | None,
    typer.Option(
        "--data", file_okay=False, help=f"Folder of the stack; without it {DATABASE_VARIABLE} or ./{DATA_DEFAULT}."
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON on standard output.")]
OwnerOption = Annotated[str, typer.Option("--owner", callback=_owner, help="Whose uploads it stands for.")]
ScopeOption = Annotated[
    list[Scope] | None, typer.Option("--scope", help="What it may be used for; give it again for more. Default: user.")
]


@token.command()
def create(
    *, owner: OwnerOption, scope: ScopeOption = None, data: DataOption = None, as_json: JsonOption = False
) -> None:
    """Make a token and print it; it cannot be shown again."""
    scopes = scope or [Scope.USER]
    token_id, secret = asyncio.run(_create(settings_of(data), owner, scopes))
    shown = {"id": str(token_id), "owner": owner, "scopes": [found.value for found in scopes], "token": secret}
    typer.echo(json.dumps(shown) if as_json else secret)


@token.command(name="list")
def list_tokens(*, data: DataOption = None, as_json: JsonOption = False) -> None:
    """List all tokens, without their secrets."""
    entries = asyncio.run(_entries(settings_of(data)))
    if as_json:
        typer.echo(json.dumps([_as_dict(entry) for entry in entries]))
        return
    for entry in entries:
        revoked = f"revoked {entry.revoked_at:%Y-%m-%d %H:%M}" if entry.revoked_at else "live"
        scopes = ",".join(entry.scopes)
        typer.echo(
            f"{entry.id}  {entry.created_at:%Y-%m-%d %H:%M}  {revoked:<24}  {scopes:<18}  {entry.owner}", err=True
        )


@token.command()
def revoke(token_id: UUID, *, data: DataOption = None) -> None:
    """Revoke a token by its id; exit code 1 when there is no live one."""
    if not asyncio.run(_revoke(settings_of(data), token_id)):
        typer.echo(f"there is no live token {token_id}", err=True)
        raise typer.Exit(1)


def settings_of(data: Path | None) -> Settings:
    """Return the settings that reach a stack's servers.

    The folder that is named wins, then the environment, then the folder `data` of the present directory.

    Raises:
        EnvironmentUnfitError: there is no stack in the folder.
    """
    environment = own_environment()
    if data is not None or DATABASE_VARIABLE not in environment:
        state = StateFile((data or DATA_DEFAULT).absolute()).read()
        if state is None or not state.env:
            raise EnvironmentUnfitError(
                f"There is no stack in {data or DATA_DEFAULT}: `spillway up` first, or set {DATABASE_VARIABLE}."
            )
        environment.update(state.env)
    settings = checked_settings()
    # What a command has to say it says itself; unconfigured, the library would write into its output.
    configure_logs(role="cli", level="error")
    return settings


@asynccontextmanager
async def lent_database(settings: Settings) -> AsyncIterator[Database]:
    """Lend the database that the settings name.

    Raises:
        EnvironmentUnfitError: it does not answer.
    """
    database = await open_database(pool_settings(settings, role="cli", connections_max=_CONNECTIONS))
    try:
        yield database
    except DatabaseUnavailableError as error:
        raise EnvironmentUnfitError(f"The database cannot be reached: {error}. Is the stack up?") from error
    finally:
        await database.close()


async def _create(settings: Settings, owner: str, scopes: Iterable[Scope]) -> tuple[UUID, str]:
    async with lent_database(settings) as database:
        return await TokenStore(database).create(owner=owner, scopes=scopes)


async def _entries(settings: Settings) -> list[TokenEntry]:
    async with lent_database(settings) as database:
        return await TokenStore(database).entries()


async def _revoke(settings: Settings, token_id: UUID) -> bool:
    async with lent_database(settings) as database:
        return await TokenStore(database).revoke(token_id)


def _as_dict(entry: TokenEntry) -> dict[str, str | list[str] | None]:
    return {
        "id": str(entry.id),
        "owner": entry.owner,
        "scopes": [scope.value for scope in entry.scopes],
        "created_at": entry.created_at.isoformat(),
        "revoked_at": entry.revoked_at.isoformat() if entry.revoked_at else None,
    }
