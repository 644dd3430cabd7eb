"""watch and events: jobs as they change."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from itertools import islice
from typing import Annotated, Any, Final, TypeAlias

import typer

from relayq.client import Client
from relayq.command import screen
from relayq.command.connection import DEFAULT_URL, ApiKey, Headers, Url, open_client
from relayq.command.exit_code import ExitCode
from relayq.job import Job

PATIENT_SECONDS: Final = 60.0
PAGE: Final = 100
Lines: TypeAlias = Annotated[bool, typer.Option("--json", help="One JSON object a line.")]


def watch(
    job_ids: Annotated[
        list[str] | None,
        typer.Argument(metavar="[ID]...", help="Until all these have a verdict; the newest otherwise."),
    ] = None,
    *,
    service: Annotated[str | None, typer.Option("--service", "-s", help="Only this service type.")] = None,
    model: Annotated[str | None, typer.Option("--model", "-m", help="Only this model.")] = None,
    wanted: Annotated[str | None, typer.Option("--status", help="Only this status.")] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=PAGE, help="How many of the newest.")] = 20,
    interval: Annotated[float, typer.Option("--interval", min=0.1, metavar="SECONDS", help="Between two looks.")] = 1,
    as_json: Lines = False,
    url: Url = DEFAULT_URL,
    api_key: ApiKey = None,
    header: Headers = None,
) -> None:
    """Show jobs live: a table on a terminal, otherwise a line for each change.

    With ids: exit code 0 when all completed, 1 when one ended otherwise. Without: until Ctrl-C.
    """
    with open_client(url, api_key, header, patience_seconds=PATIENT_SECONDS) as client:

        def look(known: Mapping[str, Job]) -> list[Job]:
            if job_ids:
                return [_again(client, one, known.get(one), service) for one in dict.fromkeys(job_ids)]
            found = client.jobs(service_type=service, model=model, status=wanted, page_size=limit)
            return list(islice(found, limit))

        ended = _follow(look, interval, ends=bool(job_ids), as_json=as_json)
    if any(job.status != "completed" for job in ended):
        raise typer.Exit(ExitCode.BAD_VERDICT)


def events(
    job_id: Annotated[str, typer.Argument(metavar="ID", help="The job's id.", show_default=False)],
    *,
    service: Annotated[
        str | None, typer.Option("--service", "-s", help="The job's service type; found out when left out.")
    ] = None,
    pipeline: Annotated[
        str | None, typer.Option("--pipeline", "-P", help="The pipeline whose run it is; found out when left out.")
    ] = None,
    last_event_id: Annotated[str, typer.Option("--after", metavar="EVENT", help="Only what came after it.")] = "",
    as_json: Lines = False,
    url: Url = DEFAULT_URL,
    api_key: ApiKey = None,
    header: Headers = None,
) -> None:
    """Follow one job's events to its verdict. Exit code 0 when it completed, 1 after another verdict."""
    verdict = ""
    with open_client(url, api_key, header, patience_seconds=PATIENT_SECONDS) as client:
        for event in client.events(job_id, service_type=service, pipeline=pipeline, last_event_id=last_event_id):
            if as_json:
                screen.print_json({"event": event.name, "id": event.id, "data": event.data})
            else:
                print(_event_line(event.name, event.data), flush=True)
            if event.name == "done" and isinstance(event.data, dict):
                verdict = str(event.data.get("status", ""))
    if verdict not in {"completed", ""}:  # "": nothing was left to tell
        raise typer.Exit(ExitCode.BAD_VERDICT)


def _again(client: Client, job_id: str, known: Job | None, service_type: str | None) -> Job:
    if known is None:
        return client.status(job_id, service_type=service_type)
    return known if known.terminal else client.status(job_id, service_type=known.service_type, pipeline=known.pipeline)


def _follow(look: Callable[[Mapping[str, Job]], list[Job]], interval: float, *, ends: bool, as_json: bool) -> list[Job]:
    """Show what ``look`` finds until all of it has a verdict (for ever unless ``ends``); the last finding."""
    known: dict[str, Job] = {}
    with screen.live_jobs(active=sys.stdout.isatty() and not as_json) as table:
        while True:
            found = look(known)
            if table is not None:
                table(found)
            else:
                for job in found if ends else reversed(found):
                    _print_change(known.get(job.job_id), job, as_json=as_json)
            known = {job.job_id: job for job in found}
            if ends and all(job.terminal for job in found):
                return found
            time.sleep(interval)


def _print_change(before: Job | None, now: Job, *, as_json: bool) -> None:
    if before is not None and _shown(before.raw) == _shown(now.raw):
        return
    if as_json:
        screen.print_json(now.raw)
    else:
        print(f"{now.job_id} {now.model} {_event_line('', now.raw)}", flush=True)


def _shown(document: Mapping[str, Any]) -> list[Any]:
    return [document.get(name) for name in ("status", "cancel_requested", "queue_position", "attempts", "progress")]


def _event_line(name: str, data: Any) -> str:
    """``status processing, attempt 2``; a progress event's members as they are."""
    if not isinstance(data, dict) or "status" not in data:
        members = {key: value for key, value in data.items() if key != "job_id"} if isinstance(data, dict) else data
        return f"{name} {screen.json_text(members)}".strip()
    words = [str(data["status"])]
    if data.get("cancel_requested") and data["status"] == "processing":
        words.append("cancel requested")
    if isinstance(data.get("queue_position"), int):
        words.append(f"{data['queue_position']} ahead")
    if isinstance(data.get("attempts"), int) and data["attempts"] > 1:
        words.append(f"attempt {data['attempts']}")
    error = data.get("error")
    if isinstance(error, dict):
        words.append(f"{error.get('code')}: {error.get('message')}")
    return f"{name} {', '.join(words)}".strip()
