"""What is shown: every page is complete HTML, read from the queue when it is asked for."""

from __future__ import annotations

import asyncio
import json
from typing import Any, Final, NamedTuple

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from gateway.console.access import Sessions
from gateway.console.redrive import FASTEST_PER_SECOND, SLOWEST_PER_SECOND, Redrives
from gateway.console.rendering import ROOT, link, page
from gateway.console.timeline import story
from gateway.edge import Edge
from gateway.handlers.answers import integer, query_of
from gateway.handlers.jobs import merged, status_and_cursor
from gateway.problems import Refusal
from queuecore.broker import Broker, QueueCounts, Server
from queuecore.job import Status
from queuecore.names import is_job_id

CLAIMS_SHOWN: Final = 50
RECENT_SHOWN: Final = 10
JOBS_SHOWN: Final = 50
LETTERS_SHOWN: Final = 50
PARAMS_SHOWN: Final = 4_000
FARTHEST: Final = 10_000_000

# What an action has done, said on the page it leads to. Fixed texts: a link of somebody else cannot put words here.
_SAID: Final = {
    "paused": "The queue is paused: waiting jobs stay, running ones go on.",
    "resumed": "The queue is running again.",
    "purged": "Waiting jobs cancelled: {n}.",
    "redriving": "Redrive started. Jobs: {n}.",
    "stopped": "The redrive was stopped; the rest are dead letters as before.",
    "dropped": "Taken off the list: {n}. Their records stay until their retention ends.",
    "cancelled": "The job is cancelled.",
    "cancelling": "Its relay was told to stop; the job ends cancelled.",
    "redelivering": "Planned anew: {n}. A day of attempts begins again.",
    "redriven": "The job waits again, with fresh counters.",
}


class Queue(NamedTuple):
    """One row of the queues' table."""

    name: str
    service_type: str
    transport: str
    max_pending: int
    counts: QueueCounts
    submitted: float
    finished: float

    @property
    def waiting(self) -> int:
        """Could run now, or could but for the pause."""
        return self.counts.pending + self.counts.paused


class Pages:
    """Handlers of GET."""

    def __init__(self, edge: Edge, server: Server, sessions: Sessions, redrives: Redrives) -> None:
        self._edge = edge
        self._server = server
        self._sessions = sessions
        self._redrives = redrives

    async def sign_in(self, request: Request) -> Response:
        """The form that asks for the token."""
        if not self._sessions.enabled:
            return RedirectResponse(ROOT, 303)
        return page(request, "login.html", {"next": request.query_params.get("next", ROOT), "wrong": False})

    async def queues(self, request: Request) -> Response:
        """Every queue."""
        _ = query_of(request, {"model", "said", "n"})
        rows = await asyncio.gather(*(self._row(name) for name in self._edge.brokers))
        return await self.show(request, "queues.html", {"queues": rows})

    async def queue(self, request: Request) -> Response:
        """One queue: depths, who runs what, the newest jobs."""
        name, broker = self._chosen(query_of(request, {"model", "said", "n"}).get("model", ""))
        row, claims, recent = await asyncio.gather(
            self._row(name),
            broker.jobs(status=Status.PROCESSING, limit=CLAIMS_SHOWN),
            broker.jobs(limit=RECENT_SHOWN),
        )
        values = {"queue": row, "claims": claims.jobs, "more_claims": bool(claims.cursor), "recent": recent.jobs}
        return await self.show(request, "queue.html", values)

    async def jobs(self, request: Request) -> Response:
        """Search: an id leads to its job, filters to a list, newest first."""
        query = query_of(request, {"q", "model", "status", "cursor"})
        wanted = query.get("q", "").strip().lower()
        if wanted and is_job_id(wanted):
            return RedirectResponse(link(f"/jobs/{wanted}"), 303)
        # A select without a choice sends an empty field.
        model = query.get("model", "")
        status, cursor = status_and_cursor({name: text for name, text in query.items() if text})
        names = [self._chosen(model)[0]] if model else list(self._edge.brokers)
        found, following = await merged(
            [self._edge.brokers[name] for name in names], status, None, JOBS_SHOWN, cursor
        )  # fmt: skip
        values = {
            "jobs": found,
            "cursor": following,
            "at_start": not cursor,
            "q": wanted,
            "model": model,
            "status": status or "",
            "models": list(self._edge.brokers),
            "statuses": list(Status),
        }
        return await self.show(request, "jobs.html", values)

    async def job(self, request: Request) -> Response:
        """One job with its story."""
        _ = query_of(request, {"said"})
        job_id = request.path_params["id"]
        if not is_job_id(job_id):
            raise Refusal(404, "job_not_found", f"{job_id} is not a job id.")
        record = await self._edge.reader.get(job_id)
        now = await self._server.now_ms()
        position = None
        if record.status == Status.PENDING and record.model in self._edge.brokers:
            position = await self._edge.brokers[record.model].position(record.id)
        values = {
            "job": record,
            "story": story(record, now),
            "position": position,
            "params": _readable(record.params),
            "configured": record.model in self._edge.brokers,
        }
        return await self.show(request, "job.html", values, now)

    async def deadletters(self, request: Request) -> Response:
        """The dead letters of one queue; of the first that has some, unless one is named."""
        query = query_of(request, {"model", "offset", "said", "n"})
        offset = integer("offset", query.get("offset", "0"), 0, FARTHEST)
        names = list(self._edge.brokers)
        counts = await asyncio.gather(*(self._edge.brokers[name].counts() for name in names))
        totals = {name: one.deadletter for name, one in zip(names, counts, strict=True)}
        fullest = next((name for name, total in totals.items() if total), names[0])
        name, broker = self._chosen(query.get("model") or fullest)
        letters = await broker.deadletters(offset=offset, limit=LETTERS_SHOWN)
        values = {
            "model": name,
            "totals": totals,
            "total": totals[name],
            "offset": offset,
            "limit": LETTERS_SHOWN,
            "letters": letters,
            "order": self._redrives.of(name),
            "slowest": SLOWEST_PER_SECOND,
            "fastest": FASTEST_PER_SECOND,
        }
        return await self.show(request, "deadletters.html", values)

    async def show(
        self, request: Request, template: str, values: dict[str, Any], now_ms: int | None = None
    ) -> Response:
        """A page with what its action has said, and the queue's time."""
        text = _SAID.get(request.query_params.get("said", ""), "")
        count = request.query_params.get("n", "")
        said = text.format(n=count if count.isascii() and count.isdigit() else "some")
        now = await self._server.now_ms() if now_ms is None else now_ms
        return page(request, template, {"now": now, "said": said, **values})

    async def _row(self, name: str) -> Queue:
        model, rates = self._edge.config.models[name], self._edge.rates[name]
        return Queue(
            name, model.service_type, model.transport, model.max_pending, await self._edge.brokers[name].counts(),
            rates.submitted.per_second(), rates.finished.per_second(),
        )  # fmt: skip

    def _chosen(self, name: str) -> tuple[str, Broker]:
        broker = self._edge.brokers.get(name)
        if broker is None:
            raise Refusal(
                404, "model_not_found", f"There is no model {name!r}; there are: {', '.join(self._edge.brokers)}."
            )
        return name, broker


def _readable(params: str) -> str:
    """Params with line breaks, where that keeps what they say; cut where they are long."""
    try:
        text = json.dumps(json.loads(params), ensure_ascii=False, indent=2) if params else ""
    except (ValueError, RecursionError):
        text = params
    return (
        text if len(text) <= PARAMS_SHOWN else text[:PARAMS_SHOWN] + f"\n… {len(text) - PARAMS_SHOWN} characters more"
    )
