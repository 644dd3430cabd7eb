"""dev, demo, supervise: commands that run processes here."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Annotated, Final

import typer

from relayq.command.exit_code import ExitCode, leave
from relayq.supervise import MAX_FAILURES, become_supervisor

DEFAULT_DATA: Final = Path(".relayq")
PORT_HELP: Final = "0 = a free one"


def dev(
    *,
    gateway_port: Annotated[
        int | None, typer.Option(min=0, max=65_535, help=f"Public port; GATEWAY_PORT or 8080; {PORT_HELP}.")
    ] = None,
    admin_port: Annotated[
        int | None, typer.Option(min=0, max=65_535, help=f"Admin port; GATEWAY_ADMIN_PORT or 8081; {PORT_HELP}.")
    ] = None,
    redis_port: Annotated[
        int | None, typer.Option(min=0, max=65_535, help="Port of the embedded Redis; a free one by default.")
    ] = None,
    data: Annotated[
        Path, typer.Option(metavar="DIR", help="Everything the stack keeps: queue, files, logs, models.yaml.")
    ] = DEFAULT_DATA,
    max_relays: Annotated[int, typer.Option(min=0, help="Relays at once, over all models; 0 = start none.")] = 4,
    redis_url: Annotated[
        str | None, typer.Option(help="Another Redis; REDIS_URL does the same. Default: the embedded one.")
    ] = None,
    blobs_url: Annotated[
        str | None, typer.Option(help="Another store; BLOBS_URL does the same. Default: file:// in --data.")
    ] = None,
) -> None:
    """Run the whole product here: gateway, reaper, mock inference, embedded Redis, and a relay for each open job.

    The services' environment applies (GATEWAY_…, RELAY_…, MODELS_FILE …). Ctrl-C or SIGTERM ends everything; a second
    one at once. Jobs and results stay in --data for the next start.
    """
    from relayq.dev import foreground  # noqa: PLC0415  these imports cost the other commands a second
    from relayq.dev.plan import Options, StackError  # noqa: PLC0415

    options = Options(
        data=data,
        gateway_port=gateway_port,
        admin_port=admin_port,
        redis_port=redis_port,
        redis_url=redis_url,
        blobs_url=blobs_url,
        max_relays=max_relays,
    )
    try:
        asyncio.run(foreground.run(options, os.environ))
    except StackError as error:
        leave(ExitCode.BAD_VERDICT, str(error))


def demo(
    data: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Keep everything there; a temporary directory by default.")
    ] = None,
) -> None:
    """Show the point of it all: a relay is killed in the middle of its job, and the job still ends well.

    Exit code 0 only when every step was seen to happen.
    """
    from relayq.demo import run_demo  # noqa: PLC0415  as above

    raise typer.Exit(run_demo(data, os.environ))


def supervise(
    command: Annotated[list[str], typer.Argument(metavar="COMMAND...", help="The relay's command, after `--`.")],
    max_failures: Annotated[
        int, typer.Option("--max-failures", min=1, help="Give up after so many failures in a row.")
    ] = MAX_FAILURES,
) -> None:
    """Run the one-job relay again and again in one container: `relayq supervise -- python -m relay`.

    A fresh process for each job, beside a warm model, without kubelet's crash back-off. SIGTERM is passed on and its
    end waited for. After failures it waits 1, 2, 4 … 30 s and in the end gives up with the command's exit code.
    """
    become_supervisor(command, max_failures, os.environ)
