"""``GET /jobs/{service_type}/{id}/events``: the job's changes as Server-Sent Events.

``status`` carries the status document at each change, ``progress`` a waiting job's place in the queue when it moved or
a running model's newest line, ``done`` the last document; then the stream ends. An event's id is the version of its
document, so a client that comes back with Last-Event-ID is told only what it does not know, and 204 (which ends an
EventSource) after ``done``. A comment every 15 s keeps proxies from cutting a quiet stream. All streams share one
subscription.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from gateway.documents import etag_of, status_document
from gateway.edge import Edge, edge_of, place_asked
from gateway.waiters import Waiter
from queuecore import clock
from queuecore.errors import BrokerError, JobError
from queuecore.job import JobRecord, Status

COMMENT_SECONDS: Final = 15.0
PROGRESS_SECONDS: Final = 2.0
RETRY_MS: Final = 2_000


async def events(request: Request) -> Response:
    """The stream."""
    edge = edge_of(request)
    tenant = (await edge.caller(request, "read")).tenant
    place = place_asked(request), request.path_params["id"]
    record = await edge.find(tenant, *place)
    seen = request.headers.get("last-event-id", "")
    if record.terminal and seen == _done_id(status_document(record)):
        return Response(status_code=204)
    stream = Stream(edge, tenant, place, seen)
    return StreamingResponse(
        stream.events(),
        headers={"content-type": "text/event-stream", "cache-control": "no-store", "x-accel-buffering": "no"},
    )


class Stream:
    """One client's."""

    def __init__(self, edge: Edge, tenant: str, place: tuple[str, str], seen: str) -> None:
        self._edge = edge
        self._tenant = tenant
        self._place = place
        self._seen = seen
        self._position: int | None = None
        self._position_at = float("-inf")
        self._heard = 0, 0  # fence and sequence of the newest line that was passed on

    async def events(self) -> AsyncIterator[bytes]:
        """Until the verdict, the end of the process, or the end of the job's retention."""
        edge = self._edge
        # A response that has begun cannot refuse any more: too many waiters end it, and the client comes again later.
        yield f"retry: {RETRY_MS}\n\n".encode()
        with edge.waiters.waiting(self._place[1]) as waiter:
            spoken = clock.monotonic()
            while not edge.waiters.closing:
                try:
                    record = await edge.find(self._tenant, *self._place)
                    news = await self._news(record)
                except JobError:
                    return
                except BrokerError:
                    record, news = None, b""  # Redis is away: the stream waits for it
                if news:
                    spoken = clock.monotonic()
                    yield news
                if record is not None and record.terminal:
                    return
                if clock.monotonic() - spoken >= COMMENT_SECONDS:
                    spoken = clock.monotonic()
                    yield b": still there\n\n"
                await self._rest(waiter, spoken)

    async def _rest(self, waiter: Waiter, spoken: float) -> None:
        await waiter.wait(max(0.01, spoken + COMMENT_SECONDS - clock.monotonic()))

    async def _news(self, record: JobRecord) -> bytes:
        document = status_document(record)
        version = _id(document)
        text = b""
        if version != self._seen:
            if record.status == Status.PENDING:
                document["queue_position"] = self._position = await self._where(record)
            text += _event("status", version, document)
            self._seen = version
        if record.terminal:
            return text + _event("done", _done_id(document), document)
        if record.status == Status.PENDING and clock.monotonic() - self._position_at >= PROGRESS_SECONDS:
            position = await self._where(record)
            if position != self._position:
                self._position = position
                text += _event("progress", version, {"job_id": record.id, "queue_position": position})
        elif record.status == Status.PROCESSING:
            text += await self._spoken(record, version)
        return text

    async def _spoken(self, record: JobRecord, version: str) -> bytes:
        broker = self._edge.brokers.get(record.model)
        said = await broker.progress(record) if broker else None
        if said is None or (record.fence, said.sequence) <= self._heard:
            return b""
        self._heard = record.fence, said.sequence
        return _event("progress", version, {"job_id": record.id, "sequence": said.sequence, "text": said.text})

    async def _where(self, record: JobRecord) -> int | None:
        self._position_at = clock.monotonic()
        broker = self._edge.brokers.get(record.model)
        return None if broker is None else await broker.position(record.id)


def _id(document: dict[str, Any]) -> str:
    return etag_of(document).removeprefix("W/").strip('"')


def _done_id(document: dict[str, Any]) -> str:
    return f"{_id(document)}-done"


def _event(name: str, event_id: str, data: object) -> bytes:
    return f"event: {name}\nid: {event_id}\ndata: ".encode() + msgspec.json.encode(data) + b"\n\n"
