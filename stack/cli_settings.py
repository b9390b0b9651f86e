"""What the command line says of its variables: what is wrong with a setting, and names that nobody reads.

Invariant: one line for each variable, under the name that was set, and never its value: it may be a password.
"""

import os
import re
from collections.abc import Collection, Iterable, Mapping, MutableMapping
from typing import Any

from app.core.settings import PREFIX

TOKEN_VARIABLE = "SPILLWAY_TOKEN"  # noqa: S105 - the name of the variable
URL_VARIABLE = "SPILLWAY_URL"

#: Of a container's file, read by nothing of ours.
_COMPOSE_PREFIX = f"{PREFIX}COMPOSE_"
#: No settings of a role: what the client is told, and the mark that a stack gives its children.
_KNOWN = frozenset({TOKEN_VARIABLE, URL_VARIABLE, f"{PREFIX}STACK_ID"})
#: How the library begins what it says of a value.
_SUBJECT = re.compile(r"^(?:Input|String|Value) should ")


def own_environment() -> MutableMapping[str, str]:
    """Return the environment of this process, for the composition root of a command."""
    return os.environ  # noqa: TID251 - from here on it is passed


def wrong_settings(details: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return one line for each wrong variable, and one for each contradiction between some, from pydantic's details."""
    lines: dict[str, str] = {}
    for detail in details:
        text = _SUBJECT.sub("must ", str(detail["msg"]).removeprefix("Value error, "))
        if not detail["loc"]:  # it names the variables itself
            lines.setdefault(text, text)
            continue
        variable = f"{PREFIX}{detail['loc'][0]}".upper()
        lines.setdefault(variable, f"{variable}: {text.removeprefix(f'{variable} ')}")
    return list(lines.values())


def unknown_variables(names: Iterable[str], *, settings: Collection[str]) -> list[str]:
    """Return those of the environment's names that look like ours and that nobody reads; `settings`: fields."""
    known = {f"{PREFIX}{field}".upper() for field in settings} | _KNOWN
    return sorted(
        name
        for name in names
        if (upper := name.upper()).startswith(PREFIX) and not upper.startswith(_COMPOSE_PREFIX) and upper not in known
    )
