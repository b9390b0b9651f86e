"""Options that belong together and come as one value, so that several commands share them and none has too many.

Invariant: names, types and help are written once; the defaults are those of the value's class.
"""

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields
from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from app.core.registry import FailedFilter
from contracts.errors import FailureCode

#: What the database's integers hold.
VERSION_MAX = 2**31 - 1

Command = Callable[..., None]


def grouped(parameter: str, kind: type[Any], options: Mapping[str, Any]) -> Callable[[Command], Command]:
    """Return a decorator: a command's parameter becomes options, one for each field of the dataclass `kind`."""
    defaults = {field.name: field.default for field in fields(kind) if field.default is not MISSING}

    def decorate(command: Command) -> Command:
        @functools.wraps(command)
        def run(**values: Any) -> None:
            value = kind(**{name: values.pop(name) for name in options})
            command(**values, **{parameter: value})

        own = [known for known in inspect.signature(command).parameters.values() if known.name != parameter]
        more = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=defaults[name], annotation=annotation)
            for name, annotation in options.items()
        ]
        # What the command-line library reads: it knows no other way to share options between commands.
        vars(run)["__signature__"] = inspect.Signature([*own, *more])
        return run

    return decorate


def moment_of(text: str) -> datetime:
    """Return a moment as it is written: ISO 8601, in UTC unless it says otherwise.

    Raises:
        typer.BadParameter: it is none.
    """
    try:
        moment = datetime.fromisoformat(text)
        return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    except (ValueError, OverflowError) as error:
        raise typer.BadParameter("write it like 2026-01-31 or 2026-01-31T12:00:00 (UTC)") from error


#: Which failed jobs are meant: the parameter `wanted`.
filtered = grouped(
    "wanted",
    FailedFilter,
    {
        "owner": Annotated[str | None, typer.Option("--owner", help="Only jobs of this owner.")],
        "code": Annotated[FailureCode | None, typer.Option("--code", help="Only jobs that failed with this code.")],
        "since": Annotated[
            datetime | None,
            typer.Option("--since", parser=moment_of, metavar="TIME", help="Only jobs that failed then or later."),
        ],
        "until": Annotated[
            datetime | None,
            typer.Option("--until", parser=moment_of, metavar="TIME", help="Only jobs that failed before then."),
        ],
        "pipeline_version": Annotated[
            int | None,
            typer.Option("--pipeline-version", min=1, max=VERSION_MAX, help="Only jobs made for this version."),
        ],
    },
)
