"""autoscale-plan: what KEDA will do, for a queue as it is or as it might be."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from relayq.autoscale import STABILISATION_SECONDS, forecast, jobs_to_start, relays_wanted
from relayq.command import screen
from relayq.command.connection import DEFAULT_ADMIN_URL, AdminToken, AdminUrl, AsJson, open_admin
from relayq.command.exit_code import ExitCode, leave

COLUMNS = ("at_seconds", "waiting", "running", "unfinished", "starts")


class Kind(StrEnum):
    """``scaling.kind`` of the chart."""

    SCALED_JOB = "ScaledJob"
    SCALED_OBJECT = "ScaledObject"


def autoscale_plan(
    model: Annotated[str | None, typer.Argument(help="Ask the admin port for this queue.", show_default=False)] = None,
    *,
    waiting: Annotated[int | None, typer.Option(min=0, help="Jobs that wait.", show_default=False)] = None,
    running: Annotated[int | None, typer.Option(min=0, help="Jobs that run.", show_default=False)] = None,
    relays: Annotated[
        int | None,
        typer.Option(min=0, help="Unfinished Kubernetes Jobs, or pods of the Deployment; default: one a running job."),
    ] = None,
    kind: Annotated[Kind, typer.Option(help="scaling.kind")] = Kind.SCALED_JOB,
    least: Annotated[int, typer.Option("--min", min=0, help="scaling.min")] = 0,
    most: Annotated[int, typer.Option("--max", min=1, help="scaling.max")] = 10,
    polling_seconds: Annotated[float, typer.Option(min=1, help="scaling.pollingSeconds")] = 5,
    cooldown_seconds: Annotated[int, typer.Option(min=0, help="scaling.cooldownSeconds")] = 300,
    start_seconds: Annotated[float, typer.Option(min=0, help="From a Job's creation to its claim.")] = 10,
    job_seconds: Annotated[float, typer.Option(min=0.1, help="How long one job runs.")] = 60,
    as_json: AsJson = False,
    admin_url: AdminUrl = DEFAULT_ADMIN_URL,
    admin_token: AdminToken = None,
) -> None:
    """Say what KEDA will do for a queue's state; changes nothing."""
    if model is not None and waiting is None and running is None:
        with open_admin(admin_url, admin_token) as admin:
            depths = next((queue["depths"] for queue in admin.queues() if queue["model"] == model), None)
        if depths is None:
            leave(ExitCode.USAGE, f"no such model: {model}")
        waiting, running = depths["pending"], depths["processing"]
    if waiting is None and running is None:
        leave(ExitCode.USAGE, "give a MODEL, or --waiting and --running")
    waiting, running = waiting or 0, running or 0
    now = running if relays is None else relays
    if kind is Kind.SCALED_OBJECT:
        wanted = relays_wanted(waiting, running, now, least, most)
        if as_json:
            screen.print_json({"waiting": waiting, "running": running, "relays": now, "wanted": wanted})
            return
        print(f"{waiting} waiting + {running} running: {wanted} relays wanted (of {least} to {most}), {now} there.")
        print(_pace(now, wanted, least, cooldown_seconds))
        return
    starts = jobs_to_start(waiting, running, now, most)
    ahead = forecast(
        waiting,
        running,
        unfinished=now,
        most=most,
        polling_seconds=polling_seconds,
        start_seconds=start_seconds,
        job_seconds=job_seconds,
    )
    if as_json:
        document = {"waiting": waiting, "running": running, "unfinished": now, "starts": starts}
        looks = [look._asdict() for look in ahead.looks]
        screen.print_json({**document, "forecast": {**ahead._asdict(), "looks": looks}})
        return
    print(f"{waiting} waiting + {running} running, at most {most}, {now} unfinished Jobs: KEDA starts {starts} now.")
    if ahead.looks:
        screen.print_rows(COLUMNS, [look._asdict() for look in ahead.looks])
        print(
            f"{ahead.jobs} Jobs in all; the last job waits {screen.span(ahead.longest_wait_seconds)}; "
            f"empty after {screen.span(ahead.empty_after_seconds)}, if nothing is added and nobody dies."
        )


def _pace(now: int, wanted: int, least: int, cooldown_seconds: int) -> str:
    if wanted > now:
        return (
            "Scale-out: at most doubled, or 4 more, every 15 s."
            if now
            else "From zero: one at once, more from then on."
        )
    if wanted == now:
        return "Nothing to do."
    if wanted or least:
        return f"Scale-in after {STABILISATION_SECONDS} s; a relay that goes finishes its job first."
    return f"To zero {cooldown_seconds} s after the last open job."
