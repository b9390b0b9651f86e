"""`spillway doctor`: says what database, object store and broker do not agree on, and mends it on request.

Exit codes: 0 nothing is wrong (or all of it was mended), 1 differences are left, 3 a server cannot be asked.
"""

import asyncio
import json
from collections import Counter
from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.console import Console

from stack.cli_tokens import DataOption, settings_of
from stack.doctor import Finding, Order, examine
from stack.doctor_finds import EXPLANATIONS, Difference, Kind

app = typer.Typer()

#: Subjects of one kind that are shown to people; `--json` has all.
SUBJECTS_MAX = 10

EXIT_NOT_SO = 1


@app.command()
def doctor(
    *,
    data: DataOption = None,
    mend: Annotated[bool, typer.Option("--mend", help="Mend what is found; without it nothing is changed.")] = False,
    older_than_s: Annotated[
        float | None,
        typer.Option(
            "--older-than-s",
            min=1,
            help="Judge only objects at least this old (never younger than a lease), and look again at once instead "
            "of a lease later.",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print an object on standard output.")] = False,
) -> None:
    """Find what database, object store and broker do not agree on, explain it, and mend it with --mend."""
    console = Console(stderr=True)
    order = Order(mend=mend, older_than_s=older_than_s)
    settings = settings_of(data)
    with console.status("looking") as line:
        finding = asyncio.run(examine(settings, order, tell=line.update))
    if as_json:
        typer.echo(json.dumps(_as_dict(finding)))
    else:
        _show(console, finding)
    raise typer.Exit(EXIT_NOT_SO if finding.left else 0)


def _show(console: Console, finding: Finding) -> None:
    for kind, count in Counter(found.kind for found in finding.differences).items():
        _show_kind(console, kind, count, finding)
    tally = finding.tally
    console.print(
        f"looked at {tally.objects} objects, {tally.multiparts} unfinished uploads and {tally.rows} rows; left alone: "
        f"{tally.young} too young to be judged, {tally.foreign} foreign",
        highlight=False,
    )
    for remark in _remarks(finding):
        console.print(remark, highlight=False)
    mended = f", {len(finding.mended)} mended" if finding.mended else ""
    console.print(f"{len(finding.differences) or 'no'} differences{mended}", highlight=False)


def _show_kind(console: Console, kind: Kind, count: int, finding: Finding) -> None:
    explained = EXPLANATIONS[kind]
    of_kind = [found for found in finding.differences if found.kind is kind]
    console.print(f"[bold]{count} × {explained.what}[/bold]", highlight=False)
    for found in of_kind[:SUBJECTS_MAX]:
        console.print(_line(found, finding), highlight=False, markup=False, soft_wrap=True)
    if count > SUBJECTS_MAX:
        console.print(f"  … and {count - SUBJECTS_MAX} more", highlight=False)
    console.print(f"  most likely: {explained.cause}", highlight=False, markup=False)
    console.print(f"  --mend:      {explained.remedy}\n", highlight=False, markup=False)


def _line(found: Difference, finding: Finding) -> str:
    since = f", since {found.since:%Y-%m-%d %H:%M:%S %Z}" if found.since else ""
    return f"  {found.subject}: {found.detail}{since}{' (mended)' if found in finding.mended else ''}"


def _remarks(finding: Finding) -> list[str]:
    remarks = []
    if not finding.janitors:
        remarks.append("No janitor is alive: what it puts right by itself waits for one too.")
    if finding.doubted:
        remarks.append(
            "Most objects have no row here, so none of them was deleted: is this the right database for this bucket "
            "(SPILLWAY_DATABASE_URL, SPILLWAY_S3_BUCKET)?"
        )
    if finding.cut_short:
        remarks.append("There were more differences than are kept of one look: mend these, and look again.")
    return remarks


def _as_dict(finding: Finding) -> dict[str, Any]:
    return {
        "differences": [
            {
                "kind": found.kind.value,
                "subject": found.subject,
                "detail": found.detail,
                "since": found.since.isoformat() if found.since else None,
                **asdict(EXPLANATIONS[found.kind]),
                "mended": found in finding.mended,
            }
            for found in finding.differences
        ],
        "left": len(finding.left),
        "looked_at": asdict(finding.tally),
        "remarks": _remarks(finding),
    }
