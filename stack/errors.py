"""The one error of the local stack that a person is meant to read. Invariant: it always says what to do next."""


class EnvironmentUnfitError(Exception):
    """What the stack needs cannot be had here; the command line shows the message and exits with 3."""
