"""Waiting for a job: until its verdict (``Prefer: wait=N``), or for each change of it (the event stream)."""

from __future__ import annotations

import re
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from gateway.documents import etag_of, path_of, status_document
from gateway.edge import Edge
from gateway.handlers.answers import json_answer
from gateway.problems import Refusal
from queuecore import clock
from queuecore.errors import BrokerError, JobError
from queuecore.job import JobRecord

LONGEST_WAIT_SECONDS: Final = 60
_WAIT: Final = re.compile(r'\s*wait\s*=\s*"?(\d{1,6})"?\s*(?:;.*)?\Z', re.IGNORECASE)


def preferred_wait(request: Request) -> int:
    """Seconds of ``Prefer: wait=N``, at most a minute; 0 when there is none. What is not understood is ignored."""
    for header in request.headers.getlist("prefer"):
        for preference in header.split(","):
            if match := _WAIT.match(preference):
                return min(int(match[1]), LONGEST_WAIT_SECONDS)
    return 0


async def submitted(
    edge: Edge, request: Request, record: JobRecord, *, replay: bool = False, duplicate: bool = False, cache: str = ""
) -> Response:
    """The answer to a submission: at once, or when the job has its verdict if that comes in the time preferred.

    ``duplicate``: the record is of the first job of this item, and the document says so. ``cache``: hit when it is of
    the job whose result answers this request.
    """
    wait_seconds = preferred_wait(request)
    headers: dict[str, str] = {"idempotent-replay": "true"} if replay else {}
    if cache:
        headers["x-cache"] = cache
    if wait_seconds:
        try:
            record = await _verdict(edge, request, record, wait_seconds)
            headers["preference-applied"] = f"wait={wait_seconds}"
        except (Refusal, BrokerError, JobError):
            pass  # too many wait, or Redis is away: the job is accepted, and that is said
    document = status_document(record)
    status = 200 if replay or duplicate or record.terminal else 202
    shown = document | {"deduplicated": True} if duplicate else document
    return json_answer(status, shown, {"location": path_of(record), "etag": etag_of(document), **headers})


async def _verdict(edge: Edge, request: Request, record: JobRecord, wait_seconds: float) -> JobRecord:
    end = clock.monotonic() + wait_seconds
    with edge.waiters.waiting(record.id) as waiter:  # registered before the record is read (case K2)
        while True:
            record = await edge.records.get(record.id)
            left = end - clock.monotonic()
            if record.terminal or left <= 0 or edge.waiters.closing or await request.is_disconnected():
                return record
            await waiter.wait(left)
