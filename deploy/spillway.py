#!/usr/bin/env python
"""The command `spillway` of the container image, as an installed package would have it.

Invariant: a variable that `.env` leaves empty counts as not set; Compose hands it on as an empty one.
"""

import os

PREFIX = "SPILLWAY_"


def drop_empty_variables() -> None:
    """Take the settings without a value out of the environment, for this process and its children."""
    environment = os.environ  # noqa: TID251 - before settings are parsed, and children inherit it
    for name in [name for name, value in environment.items() if name.startswith(PREFIX) and not value]:
        del environment[name]


if __name__ == "__main__":
    drop_empty_variables()
    from stack.cli import main

    main()
