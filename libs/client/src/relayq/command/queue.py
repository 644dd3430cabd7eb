"""queues, pause, resume, purge and dead letters, on the admin port."""

from __future__ import annotations

from typing import Annotated, Any, Final, TypeAlias

import typer

from relayq.command import screen
from relayq.command.connection import DEFAULT_ADMIN_URL, AdminToken, AdminUrl, AsJson, open_admin
from relayq.command.exit_code import ExitCode, leave, say

COLUMNS: Final = (
    "model", "pending", "processing", "delayed", "held", "ordered", "deadletter", "oldest_pending_seconds", "paused"
)  # fmt: skip
LETTER_COLUMNS: Final = ("job_id", "attempts", "reaps", "finished_at", "last_exit", "error")

Name: TypeAlias = Annotated[str, typer.Argument(metavar="MODEL", help="The queue's model.", show_default=False)]

cache = typer.Typer(no_args_is_help=True, help="Answers that are kept and used again.")
deadletter = typer.Typer(no_args_is_help=True, help="Jobs that no relay could bring to an end.")


def queues(as_json: AsJson = False, admin_url: AdminUrl = DEFAULT_ADMIN_URL, admin_token: AdminToken = None) -> None:
    """Show every queue's depths."""
    with open_admin(admin_url, admin_token) as admin:
        found = admin.queues()
    if as_json:
        screen.print_json(found)
    else:
        screen.print_rows(COLUMNS, [_depths(queue) for queue in found])


def pause(model: Name, admin_url: AdminUrl = DEFAULT_ADMIN_URL, admin_token: AdminToken = None) -> None:
    """Hide a queue's waiting jobs from relays and scaler; running ones go on, new ones are accepted."""
    with open_admin(admin_url, admin_token) as admin:
        _ = admin.pause(model)
    say(f"{model} is paused; end it with: relayq resume {model}")


def resume(model: Name, admin_url: AdminUrl = DEFAULT_ADMIN_URL, admin_token: AdminToken = None) -> None:
    """End a pause; the jobs keep their order."""
    with open_admin(admin_url, admin_token) as admin:
        _ = admin.resume(model)
    say(f"{model} runs")


def purge(
    model: Name,
    *,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    admin_url: AdminUrl = DEFAULT_ADMIN_URL,
    admin_token: AdminToken = None,
) -> None:
    """Cancel every waiting job of a queue; running ones go on."""
    if not yes:
        _ = typer.confirm(f"Cancel every waiting job of {model}?", abort=True)
    with open_admin(admin_url, admin_token) as admin:
        say(f"{admin.purge(model).get('purged', 0)} jobs cancelled")


@cache.command()
def clear(
    model: Annotated[
        str | None, typer.Option("--model", "-m", help="Only this model's results; everything when left out.")
    ] = None,
    admin_url: AdminUrl = DEFAULT_ADMIN_URL,
    admin_token: AdminToken = None,
) -> None:
    """Forget kept answers; the jobs and their results stay."""
    with open_admin(admin_url, admin_token) as admin:
        say(f"{admin.clear_cache(model)} kept answers forgotten")


@deadletter.command("list")
def list_letters(
    model: Name,
    as_json: Annotated[bool, typer.Option("--json", help="One status document a line.")] = False,
    admin_url: AdminUrl = DEFAULT_ADMIN_URL,
    admin_token: AdminToken = None,
) -> None:
    """Show a queue's dead letters, oldest first."""
    with open_admin(admin_url, admin_token) as admin:
        found = admin.deadletters(model)
    if as_json:
        for letter in found:
            screen.print_json(letter)
    else:
        screen.print_rows(LETTER_COLUMNS, [_row(letter) for letter in found])


@deadletter.command()
def redrive(
    model: Name,
    *,
    ids: Annotated[list[str] | None, typer.Argument(metavar="[ID]...", help="Dead letters.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="All of them.")] = False,
    per_second: Annotated[
        float | None, typer.Option("--per-second", min=0.1, max=1000, help="Not faster than this.")
    ] = None,
    as_json: AsJson = False,
    admin_url: AdminUrl = DEFAULT_ADMIN_URL,
    admin_token: AdminToken = None,
) -> None:
    """Queue dead letters again, with fresh counters."""
    if bool(ids) == everything:
        leave(ExitCode.USAGE, "give the ids of dead letters, or --all")
    with open_admin(admin_url, admin_token) as admin:
        answer = admin.redrive(model, None if everything else ids, per_second=per_second)
    if as_json:
        screen.print_json(answer)
    for refused in answer.get("refused", []):
        say(f"{refused.get('job_id')}: {refused.get('detail')}")
    say(f"{len(answer.get('redriven', []))} redriven")
    if answer.get("refused") or answer.get("remaining"):
        leave(ExitCode.BAD_VERDICT, f"{answer.get('remaining', 0)} are left: {answer.get('stopped') or 'see above'}")


@deadletter.command()
def drop(
    model: Name,
    job_id: Annotated[str, typer.Argument(metavar="ID", show_default=False)],
    admin_url: AdminUrl = DEFAULT_ADMIN_URL,
    admin_token: AdminToken = None,
) -> None:
    """Remove one dead letter; its record stays readable until its retention ends."""
    with open_admin(admin_url, admin_token) as admin:
        admin.drop(model, job_id)
    say("dropped")


def _depths(queue: dict[str, Any]) -> dict[str, Any]:
    """One level: ``held`` are jobs of a paused queue, ``paused`` says why it is."""
    depths = queue.get("depths", {})
    return {**depths, **queue, "held": depths.get("paused")}


def _row(letter: dict[str, Any]) -> dict[str, Any]:
    error = letter.get("error") or {}
    return {**letter, "error": f"{error.get('code', '')}: {error.get('message', '')}" if error else ""}
