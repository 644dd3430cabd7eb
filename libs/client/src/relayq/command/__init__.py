"""The ``relayq`` command. Exit codes: ``relayq.command.exit_code``."""

from __future__ import annotations

import sys
from importlib.metadata import version
from typing import Annotated

import typer

from relayq.command import autoscale, job, queue, stack, watch
from relayq.command.completion import completion
from relayq.command.doctor import doctor
from relayq.command.exit_code import ExitCode, explain, say
from relayq.command.keygen import keygen
from relayq.errors import RelayqError

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="A durable asynchronous inference queue. First time here: `relayq demo`, then `relayq dev`.",
    epilog="Exit codes: 0 done, 1 another verdict or a finding, 2 usage, 3 not reachable, 4 refused, "
    "5 broken on the way (outcome unknown), 6 no verdict yet, 130 Ctrl-C.",
)
JOBS, QUEUES, HERE = "Jobs", "Queues (admin port)", "On this machine"

for command in (job.submit, job.status, job.result, job.cancel, job.jobs, watch.watch, watch.events, job.models):
    _ = app.command(rich_help_panel=JOBS)(command)
for command in (queue.queues, queue.pause, queue.resume, queue.purge, autoscale.autoscale_plan):
    _ = app.command(rich_help_panel=QUEUES)(command)
app.add_typer(queue.deadletter, name="deadletter", rich_help_panel=QUEUES)
app.add_typer(queue.cache, name="cache", rich_help_panel=QUEUES)
for command in (stack.dev, stack.demo, stack.supervise, doctor, completion):
    _ = app.command(rich_help_panel=HERE)(command)
app.add_typer(keygen, name="keygen", rich_help_panel=HERE)


def _show_version(wanted: bool) -> None:
    if wanted:
        print(version("relayq"))
        raise typer.Exit


@app.callback()
def options(
    show_version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Hold the options of the command itself."""


def main() -> None:
    """Run the command and end with its exit code."""
    try:
        app()
    except RelayqError as error:
        code, text = explain(error)
        say(text)
        sys.exit(int(code))
    except KeyboardInterrupt:
        sys.exit(int(ExitCode.INTERRUPTED))
