"""doctor: check the installation and say what to do."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer
from rich.console import Console
from rich.text import Text

from relayq.command import screen
from relayq.command.connection import DEFAULT_URL, Url
from relayq.command.exit_code import ExitCode, leave

if TYPE_CHECKING:
    from relayq.doctor import Finding

MARKS: Final = {"ok": ("ok      ", "green"), "warning": ("warning ", "yellow"), "problem": ("problem ", "red")}


def doctor(
    data: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Examine the `relayq dev` that keeps its data there, not the environment's."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One finding a line.")] = False,
    url: Url = DEFAULT_URL,
) -> None:
    """Check Redis, store, encryption, models, queues, gateway and reaper, with the services' own environment.

    Exit code 1 when there is a problem; a warning is none.
    """
    from relayq.dev.plan import ENVIRONMENT_FILE, read_environment  # noqa: PLC0415  costs the others a second

    environ = dict(os.environ)
    if data is not None:
        try:
            chosen = read_environment(data)
        except OSError as error:
            leave(ExitCode.USAGE, f"{data / ENVIRONMENT_FILE}: {error.strerror}; does `relayq dev --data {data}` run?")
        environ |= chosen
        url = chosen.get("RELAYQ_URL", url) if url == DEFAULT_URL else url
    raise typer.Exit(asyncio.run(_doctor(environ, url, as_json)))


async def _doctor(environ: dict[str, str], url: str, as_json: bool) -> int:
    from relayq.doctor import examine  # noqa: PLC0415  as above

    console = Console()
    problems = 0
    async for finding in examine(environ, url):
        problems += finding.level == "problem"
        if as_json:
            screen.print_json(finding._asdict())
        else:
            console.print(_line(finding), soft_wrap=True)
    if not as_json:
        console.print("no problem found" if not problems else f"{problems} to mend", soft_wrap=True)
    return int(ExitCode.BAD_VERDICT if problems else ExitCode.DONE)


def _line(finding: Finding) -> Text:
    mark, colour = MARKS[finding.level]
    line = Text.assemble((mark, colour), f"{finding.check:<12}", finding.text)
    if finding.next and finding.level != "ok":
        _ = line.append(f"\n{'':20}next: {finding.next}", style="bold")
    return line
