"""Status with long poll, cancel, and the list of jobs."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Mapping
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from gateway.documents import etag_of, matches, status_document
from gateway.edge import Edge, edge_of, place_asked
from gateway.handlers.answers import integer, json_answer, query_of
from gateway.problems import Refusal
from queuecore import clock
from queuecore.broker import Broker, Cancelled
from queuecore.errors import OutcomeUnknown
from queuecore.job import JobRecord, Status
from queuecore.names import is_job_id
from queuecore.telemetry.names import Event

_log = logging.getLogger(__name__)

LONGEST_WAIT_SECONDS: Final = 60
RETRY_AFTER_SECONDS: Final = "1"
LARGEST_PAGE: Final = 200
_CURSOR: Final = re.compile(r"(\d{1,15}):([0-9a-f-]{36})\Z")


# -- status -----------------------------------------------------------------------------------------------------


async def status(request: Request) -> Response:
    """``GET /jobs/{service_type}/{id}``, at once or when it differs from the client's ETag."""
    edge = edge_of(request)
    tenant = (await edge.caller(request, "read")).tenant
    wait = integer("wait", query_of(request, {"wait"}).get("wait", "0"), 0, LONGEST_WAIT_SECONDS)
    seen = request.headers.get("if-none-match")
    if wait and seen:
        record = await _changed(edge, request, tenant, seen, wait)
    else:
        record = await _find(edge, request, tenant)
    document = status_document(record)
    headers = {"etag": etag_of(document)}
    if not record.terminal:
        headers["retry-after"] = RETRY_AFTER_SECONDS
    if matches(seen, headers["etag"]):
        return Response(status_code=304, headers=headers)
    if record.status == Status.PENDING and record.model in edge.brokers:
        document["queue_position"] = await edge.brokers[record.model].position(record.id)
    return json_answer(200, document, headers)


async def _find(edge: Edge, request: Request, tenant: str) -> JobRecord:
    return await edge.find(tenant, place_asked(request), request.path_params["id"])


async def _changed(edge: Edge, request: Request, tenant: str, seen: str, wait_seconds: int) -> JobRecord:
    end = clock.monotonic() + wait_seconds
    with edge.waiters.waiting(request.path_params["id"]) as waiter:
        while True:
            record = await _find(edge, request, tenant)
            left = end - clock.monotonic()
            if left <= 0 or edge.waiters.closing or not matches(seen, etag_of(status_document(record))):
                return record
            if await request.is_disconnected():
                return record
            await waiter.wait(left)


# -- cancel -----------------------------------------------------------------------------------------------------


async def cancel(request: Request) -> Response:
    """``DELETE /jobs/{service_type}/{id}``: 200 cancelled, 202 its owner was told, 409 another verdict."""
    edge = edge_of(request)
    tenant = (await edge.caller(request, "cancel")).tenant
    record = await _find(edge, request, tenant)
    cancelled = await cancel_surely(edge.broker_of(record), record.id)
    document = status_document(await _find(edge, request, tenant))
    over = Status.CANCELLED in {cancelled.status, document["status"]}
    if over and not cancelled.already:
        _log.info("job cancelled", extra={"event": Event.JOB_CANCELLED, "job_id": record.id, "model": record.model})
    return json_answer(200 if over else 202, document, {"etag": etag_of(document)})


async def cancel_surely(broker: Broker, job_id: str) -> Cancelled:
    """Cancel, again after a lost reply: a repeat changes nothing more."""
    for pause_seconds in (0.05, 0.2):
        try:
            return await broker.cancel(job_id)
        except OutcomeUnknown:
            await clock.sleep(pause_seconds)
    return await broker.cancel(job_id)


# -- list -------------------------------------------------------------------------------------------------------


async def jobs(request: Request) -> Response:
    """``GET /jobs``: the tenant's jobs over all models, newest first."""
    edge = edge_of(request)
    tenant = (await edge.caller(request, "read")).tenant
    query = query_of(request, {"service_type", "model", "status", "limit", "cursor"})
    limit = integer("limit", query.get("limit", "50"), 1, LARGEST_PAGE)
    wanted, cursor = status_and_cursor(query)
    brokers = [edge.brokers[name] for name in _models(edge, query)]
    found, following = await merged(brokers, wanted, tenant, limit, cursor)
    document: dict[str, Any] = {"jobs": [status_document(record) for record in found], "cursor": following}
    return json_answer(200, document)


def status_and_cursor(query: Mapping[str, str]) -> tuple[Status | None, str]:
    """The parameters ``status`` and ``cursor`` of a list.

    Raises:
        Refusal: one is not what it may be.
    """
    wanted = query.get("status")
    if wanted is not None and wanted not in set(Status):
        raise Refusal(400, "invalid_request", f"status: one of {', '.join(Status)}")
    cursor = query.get("cursor", "")
    place = _CURSOR.match(cursor)
    if cursor and not (place and is_job_id(place[2])):
        raise Refusal(400, "invalid_request", "cursor: not one of ours")
    return Status(wanted) if wanted else None, cursor


def _models(edge: Edge, query: dict[str, str]) -> list[str]:
    names = list(edge.config.models)
    service_type, model = query.get("service_type"), query.get("model")
    if service_type is not None and service_type not in edge.config.service_types:
        raise Refusal(400, "invalid_request", f"service_type: one of {', '.join(edge.config.service_types)}")
    if model is not None and model not in names:
        raise Refusal(400, "invalid_request", f"model: one of {', '.join(names)}")
    return [
        name
        for name in names
        if model in {None, name} and service_type in {None, edge.config.models[name].service_type}
    ]


async def merged(
    brokers: list[Broker], status: Status | None, tenant: str | None, limit: int, cursor: str
) -> tuple[list[JobRecord], str]:
    """One page over several queues; ``tenant`` None is everybody's.

    A cursor is the place of the last job looked at (``<created_at>:<id>``), the same in every queue.

    A queue may end its page early, with a cursor; jobs of the others behind that place must wait for the next page.
    """
    pages = await asyncio.gather(
        *(broker.jobs(status=status, tenant=tenant, limit=limit, cursor=cursor) for broker in brokers)
    )
    unfinished = [_place(page.cursor) for page in pages if page.cursor]
    reached = max(unfinished, default=(-1, ""))
    records = sorted((record for page in pages for record in page.jobs), key=_key, reverse=True)
    safe = [record for record in records if _key(record) >= reached]
    if len(safe) > limit or (len(safe) == limit and (unfinished or len(records) > limit)):
        last = safe[limit - 1]
        return safe[:limit], f"{last.created_at}:{last.id}"
    return safe, f"{reached[0]}:{reached[1]}" if unfinished else ""


def _key(record: JobRecord) -> tuple[int, str]:
    return record.created_at, record.id


def _place(cursor: str) -> tuple[int, str]:
    moment, _, job_id = cursor.partition(":")
    return int(moment), job_id
