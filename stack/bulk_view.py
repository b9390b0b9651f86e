"""What is shown of many things done one after the other: a bar, the counts, and how to go on after a stop.

Invariant: the hint of a stopped run names only what is left: things by name, or the moment that leaves out the others.
"""

from collections.abc import Collection, Mapping, Sequence
from uuid import UUID

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, TextColumn, TimeElapsedColumn

from stack.bulk import Ending


def bar_on(console: Console, *first: ProgressColumn) -> Progress:
    """Return a bar, behind other columns if need be, that is gone when it has ended."""
    return Progress(
        *first,
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        # Where nothing can be rubbed out, all that would be left of it is an empty line.
        disable=not console.is_terminal,
    )


def tell_counts(console: Console, counts: Mapping[str, int], *, dry_run: bool) -> None:
    """Print how many came to what, a line each."""
    would = "would be " if dry_run else ""
    for outcome, count in sorted(counts.items()):
        console.print(f"{count:6}  {would}{outcome}", highlight=False)


def tell_ending(console: Console, ending: Ending, *, rest: str) -> None:
    """Print why a run ended early, if it did, and what `rest` a repeat is given."""
    if ending is not Ending.DONE:
        why = "stopped" if ending is Ending.STOPPED else "no place came free in time"
        console.print(f"{why}; the rest: {rest}", highlight=False)


def rest_of(named: Sequence[UUID], done: Collection[UUID], *, moment: str) -> str:
    """Return what a repeat is given: the ids that are left of the named ones, or else the option `moment`."""
    left = " ".join(str(one) for one in named if one not in done)
    return left or f"{moment} in place of --all, or with the same filter"
